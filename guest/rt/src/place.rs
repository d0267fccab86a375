//! An executor thread's place in the machine's order of priorities: its record in the process's pages, which the kernel
//! looks at, and the system page, which the kernel writes. `docs/SHARED-SCHEDULER.md` has the protocol.
//!
//! The threads take user interrupts: their handler, the vDSO's `__heddle_notice`, sets a word ([`is_noticed`]), because
//! it interrupts code that may hold any lock. The thread looks when it is next where its coroutine can yield:
//! between turns, and at each call. Urgent work need not wait for that, if the process has more than one executor
//! thread: then there is one in reserve ([`stand_by`]), which the kernel and other threads wake instead.
#![allow(unsafe_code)] // The pages that the kernel has mapped.

use core::cell::Cell;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use heddle_abi::protocol::record;
use heddle_abi::protocol::turn::{self, TurnSource};
use heddle_abi::user_sched::calls::{GIVE_WAY, INTERRUPT, Notice, POLICY, REGISTER, UNREGISTER, policy};
use heddle_abi::user_sched::{
    AT_HEDDLE_PROCESS, AT_HEDDLE_SYSTEM, EXECUTORS_MAX, ExecutorRecord, MAGIC, PENDING_KICK, PENDING_SPARE,
    ProcessPages, RUNNING_RESERVE, SystemPage, VERSION,
};
use heddle_coroutine::host::Told;
use std::ffi::CStr;
use std::sync::OnceLock;

/// The pages of a kernel that has them.
struct Pages {
    process: &'static ProcessPages,
    system: &'static SystemPage,
    /// Where user interrupts enter, and what they call; 0 if the vDSO has no such thing.
    entry: usize,
    notice: usize,
    /// The argument of each executor's handler.
    notices: [Notice; EXECUTORS_MAX],
}

static PAGES: OnceLock<Option<Pages>> = OnceLock::new();
/// Every executor compares before each turn.
static IS_STRICT: AtomicBool = AtomicBool::new(false);

fn pages() -> Option<&'static Pages> {
    PAGES.get_or_init(find).as_ref()
}

fn find() -> Option<Pages> {
    // SAFETY: reads the auxiliary vector.
    let address = |kind: u32| match unsafe { libc::getauxval(kind.into()) } {
        0 => None,
        address => Some(core::ptr::with_exposed_provenance::<()>(address as usize)),
    };
    // SAFETY: the kernel that passes the addresses has mapped the pages there for as long as the program runs, and
    // everything in them is atomic.
    let (process, system): (&ProcessPages, &SystemPage) =
        unsafe { (&*address(AT_HEDDLE_PROCESS)?.cast(), &*address(AT_HEDDLE_SYSTEM)?.cast()) };
    let ours = [(&process.header.magic, &process.header.version), (&system.magic, &system.version)];
    let is_known = |(magic, version): &(&core::sync::atomic::AtomicU32, &core::sync::atomic::AtomicU32)| {
        magic.load(Ordering::Relaxed) == MAGIC && version.load(Ordering::Relaxed) == VERSION
    };
    if !ours.iter().all(is_known) {
        return None;
    }
    let (entry, notice) = handler().unwrap_or((0, 0));
    let notices = core::array::from_fn(|_| Notice { function: notice, noticed: AtomicU32::new(0) });
    Some(Pages { process, system, entry, notice, notices })
}

/// Where interrupts enter, and the function that they call.
fn handler() -> Option<(usize, usize)> {
    let function = |name: &CStr| {
        // SAFETY: looks up names in an object that is loaded already.
        let address = unsafe {
            let object = libc::dlopen(c"linux-vdso.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
            if object.is_null() { ptr::null_mut() } else { libc::dlsym(object, name.as_ptr()) }
        };
        (!address.is_null()).then_some(address.expose_provenance())
    };
    let entry = function(c"__heddle_interrupt_entry")?;
    // SAFETY: the vDSO's function of that name takes nothing and returns an address: vdso/include/heddle.h.
    let entry = unsafe { core::mem::transmute::<usize, extern "C" fn() -> usize>(entry) };
    Some((entry(), function(c"__heddle_notice")?))
}

fn call(number: u32, arguments: [usize; 3]) -> bool {
    let [a, b, c] = arguments;
    // SAFETY: these calls take numbers, and a handler with its argument, which live as long as the program.
    unsafe { libc::syscall(number.into(), a, b, c) != -1 }
}

/// A thread's place, as far as it is known.
#[derive(Clone, Copy)]
enum Place {
    /// It has not looked.
    Unknown,
    /// It has none.
    None,
    /// Its record.
    At(Here),
}

/// A place that a thread has.
#[derive(Clone, Copy)]
struct Here {
    record: &'static ExecutorRecord,
    system: &'static SystemPage,
    group: &'static AtomicU32,
    noticed: &'static AtomicU32,
}

thread_local! {
    static PLACE: Cell<Place> = const { Cell::new(Place::Unknown) };
}

/// Makes the calling thread an executor of the process, if the kernel has such.
#[cold]
fn register() -> Place {
    let place = pages().and_then(|pages| {
        let number = (0..EXECUTORS_MAX).find(|&number| take(pages, number))?;
        let (record, notice) = (&pages.process.executors[number], &pages.notices[number]);
        let group = &pages.process.header.group;
        Some(Place::At(Here { record, system: pages.system, group, noticed: &notice.noticed }))
    });
    let place = place.unwrap_or(Place::None);
    PLACE.set(place);
    place
}

/// Takes the record of that number for the calling thread, if it is free.
fn take(pages: &'static Pages, number: usize) -> bool {
    let notice = &pages.notices[number];
    let entry = if pages.notice == 0 { 0 } else { pages.entry };
    if !call(REGISTER, [number, entry, ptr::from_ref(notice).expose_provenance()]) {
        return false;
    }
    // The record is this thread's own from here on. Its previous owner may have left it in a turn, or masked.
    let record = &pages.process.executors[number];
    record::end_turn(record);
    if record::unmask(record) {
        notice.noticed.store(1, Ordering::Relaxed);
    }
    true
}

#[inline]
fn place() -> Place {
    match PLACE.get() {
        Place::Unknown => register(),
        known => known,
    }
}

/// The things that a thread looks at before a turn.
struct Look<'a, H, T> {
    here: Here,
    settle: &'a dyn Fn() -> u64,
    has_results: H,
    take_results: T,
}

impl<H: Fn() -> bool, T: Fn()> TurnSource for Look<'_, H, T> {
    #[inline(always)]
    fn has_results(&self) -> bool {
        (self.has_results)()
    }

    #[inline(always)]
    fn take_results(&self) {
        (self.take_results)();
    }

    #[inline(always)]
    fn settle(&self) -> u64 {
        (self.settle)()
    }

    #[inline(always)]
    fn attends(&self) {
        self.here.noticed.store(0, Ordering::Relaxed);
    }

    #[inline(always)]
    fn is_before(&self, level: u32) -> bool {
        self.here.system.has_before(self.here.group.load(Ordering::Relaxed), level)
    }

    #[inline(always)]
    fn give_way(&self) {
        call(GIVE_WAY, [0; 3]);
    }
}

/// Before a turn: takes the results that have come, has `settle` work out which levels are ready in the thread's queue,
/// publishes that and what is about to run, and yields if the policy says so.
#[inline]
pub(crate) fn before_turn(settle: &dyn Fn() -> u64, has_results: impl Fn() -> bool, take_results: impl Fn()) {
    let Place::At(here) = place() else {
        take_results();
        settle();
        return;
    };
    let look = Look { here, settle, has_results, take_results };
    turn::before_turn(here.record, IS_STRICT.load(Ordering::Relaxed), &look);
}

impl Here {
    /// Takes the reasons to look, which gives the level back that was lent with them, and allows interrupts again. What
    /// is looked at afterwards is at least as new.
    fn attend(&self) {
        self.noticed.store(0, Ordering::Relaxed);
        record::attend(self.record);
    }
}

/// Whether an interrupt has asked the thread to look, and it has not yet.
#[inline]
pub(crate) fn is_noticed() -> bool {
    matches!(PLACE.get(), Place::At(here) if here.noticed.load(Ordering::Relaxed) != 0)
}

/// Whether something more urgent than the calling coroutine is ready, or may be. A coroutine that computes for long
/// asks from time to time, and lets that go first by [`preempted`](crate::preempted); calls do so by themselves. On
/// Heddle an interrupt reports finished calls.
#[inline]
#[must_use]
pub fn should_yield() -> bool {
    is_noticed() || heddle_coroutine::should_yield()
}

/// Before the thread sleeps: nothing is ready here.
pub(crate) fn before_sleep() {
    if let Place::At(here) = PLACE.get() {
        here.record.ready.store(0, Ordering::Relaxed);
        record::end_turn(here.record);
        here.attend();
    }
}

/// Whether threads have records, by which they can be told of what is urgent.
pub(crate) fn is_known() -> bool {
    pages().is_some()
}

/// 1 more than the number of the executor in reserve, 0 if there is none.
static RESERVE: AtomicU32 = AtomicU32::new(0);

/// The calling thread is the one in reserve.
pub(crate) fn reserve() {
    if let (Place::At(here), Some(pages)) = (place(), pages()) {
        let number = pages.process.executors.iter().position(|each| ptr::eq(each, here.record));
        RESERVE.store(number.map_or(0, |number| number as u32 + 1), Ordering::SeqCst);
    }
}

/// Sleeps as the executor in reserve until a reason is posted to it.
pub(crate) fn stand_by() -> Told {
    let Place::At(here) = place() else {
        // Too many executors: this one stays out of the way.
        std::thread::sleep(core::time::Duration::from_millis(10));
        return Told::Urgent;
    };
    let record = here.record;
    record.ready.store(0, Ordering::Relaxed);
    record.running.store(RUNNING_RESERVE, Ordering::SeqCst);
    loop {
        let word = record.pending.as_ptr();
        // SAFETY: sleeps at the word as long as it is 0; the kernel wakes by the page that it shares.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, 0, ptr::null::<libc::timespec>()) };
        let reasons = record.pending.load(Ordering::Acquire);
        if reasons != 0 {
            // They stay where they are, and the lent level with them, until the thread looks.
            record::end_turn(record);
            return if reasons & PENDING_SPARE != 0 { Told::Spare } else { Told::Urgent };
        }
    }
}

/// Tells the executor in reserve of something of `level`.
pub(crate) fn rouse(level: u8) {
    let (number @ 1.., Some(pages)) = (RESERVE.load(Ordering::SeqCst), pages()) else { return };
    let number = number as usize - 1;
    if let Place::At(here) = PLACE.get()
        && ptr::eq(here.record, &pages.process.executors[number])
    {
        // That is the calling thread, which looks before its next turn. It is told for its sleep, in case that this is
        // a handler which has interrupted it on its way there.
        queued(level);
        if record::running(here.record).is_none() {
            let _ = record::post(here.record, PENDING_KICK);
        }
        return;
    }
    call(INTERRUPT, [number, usize::from(level) + 1, 0]);
}

/// A coroutine of `level` has become ready on the calling thread.
#[inline]
pub(crate) fn queued(level: u8) {
    if let Place::At(here) = PLACE.get() {
        turn::queued(here.record, level);
    }
}

/// In a forked child, whose pages are new: no thread is an executor. The calling one becomes one again, in the midst of
/// its turn.
pub(crate) fn after_fork() {
    RESERVE.store(0, Ordering::SeqCst);
    let Some(pages) = pages() else { return };
    pages.notices.iter().for_each(|notice| notice.noticed.store(0, Ordering::Relaxed));
    if IS_STRICT.load(Ordering::Relaxed) {
        set_strict(true);
    }
    if let Place::At(_) = PLACE.replace(Place::Unknown) {
        place();
        set_current(heddle_coroutine::current_id().map_or(0, heddle_coroutine::Id::to_bits));
    }
}

/// A turn begins, of a coroutine that may have become ready after the look before it.
#[inline]
pub(crate) fn turn_begins(id: u64, level: u8) {
    if let Place::At(here) = PLACE.get() {
        here.record.current.store(id, Ordering::Relaxed);
        turn::turn_begins(here.record, level);
    }
}

/// The coroutine that the calling thread runs, 0 for none.
#[inline]
pub(crate) fn set_current(id: u64) {
    if let Place::At(here) = PLACE.get() {
        here.record.current.store(id, Ordering::Relaxed);
    }
}

/// The monotonic clock; 0 if only the kernel knows it.
#[inline]
pub(crate) fn now_ns() -> u64 {
    pages().and_then(|pages| heddle_abi::protocol::monotonic_ns(&pages.system.clock, counter)).unwrap_or(0)
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn counter() -> u64 {
    // SAFETY: reads a counter that programs may read.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Registers a table of coroutines, with entries of `stride` bytes, with the kernel.
pub(crate) fn publish_table(address: usize, stride: usize) {
    if let Some(pages) = pages() {
        let table = &pages.process.header.coroutines;
        table.count.store(COUNT.load(Ordering::Relaxed), Ordering::Relaxed);
        table.address.store(address as u64, Ordering::Relaxed);
        table.stride.store(stride as u32, Ordering::Relaxed);
    }
}

/// Entries of the table of coroutines in use, in this process or the one that it was forked from.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Raises the number of entries in use of the table of coroutines.
pub(crate) fn raise_count(count: u32) {
    if COUNT.load(Ordering::Relaxed) < count
        && COUNT.fetch_max(count, Ordering::Relaxed) < count
        && let Some(pages) = pages()
    {
        pages.process.header.coroutines.count.fetch_max(count, Ordering::Relaxed);
    }
}

/// The calling thread runs no executor any more.
pub(crate) fn leave() {
    if let Place::At(here) = PLACE.replace(Place::Unknown) {
        here.record.ready.store(0, Ordering::Relaxed);
        record::end_turn(here.record);
        call(UNREGISTER, [0; 3]);
    }
}

/// Says whether executors compare before each turn.
pub(crate) fn set_strict(strict: bool) {
    IS_STRICT.store(strict, Ordering::Relaxed);
    if pages().is_some() {
        call(POLICY, [if strict { policy::STRICT } else { policy::RELAXED } as usize, 0, 0]);
    }
}
