//! An executor thread's place in the machine's order of priorities: its record in the process's pages, which the kernel
//! looks at, and the system page, which the kernel writes. `docs/SHARED-SCHEDULER.md` says who writes what and when.
//!
//! The threads take no user interrupts: a completion is seen when the turn that is under way ends.
#![allow(unsafe_code)] // The pages that the kernel has mapped.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, Ordering};
use heddle_abi::shared::calls::{GIVE_WAY, POLICY, REGISTER, UNREGISTER, policy};
use heddle_abi::shared::{
    AT_HEDDLE_PROCESS, AT_HEDDLE_SYSTEM, EXECUTORS_MAX, ExecutorRecord, MAGIC, ProcessPages, SystemPage,
    VERSION, levels,
};
use heddle_shared::record;
use std::sync::OnceLock;

/// The pages of a kernel that has them.
struct Pages {
    process: &'static ProcessPages,
    system: &'static SystemPage,
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
    ours.iter().all(is_known).then_some(Pages { process, system })
}

fn call(number: u32, arguments: [usize; 3]) -> bool {
    let [a, b, c] = arguments;
    // SAFETY: these calls take numbers only; no handler is registered.
    unsafe { libc::syscall(number.into(), a, b, c) != -1 }
}

/// What a thread knows of its place.
#[derive(Clone, Copy)]
enum Place {
    /// It has not looked.
    Unknown,
    /// It has none.
    None,
    /// Its record.
    At(&'static ExecutorRecord, &'static SystemPage),
}

thread_local! {
    static PLACE: Cell<Place> = const { Cell::new(Place::Unknown) };
}

/// Makes the calling thread an executor of the process, if the kernel has such.
#[cold]
fn register() -> Place {
    let place = pages().and_then(|pages| {
        let number = (0..EXECUTORS_MAX).find(|&number| {
            let record = &pages.process.executors[number];
            record::end_turn(record);
            call(REGISTER, [number, 0, 0])
        })?;
        Some(Place::At(&pages.process.executors[number], pages.system))
    });
    let place = place.unwrap_or(Place::None);
    PLACE.set(place);
    place
}

#[inline]
fn place() -> Place {
    match PLACE.get() {
        Place::Unknown => register(),
        known => known,
    }
}

/// Before a turn, with `ready` in the thread's queue: publishes that and what is about to run, and gives way if the
/// policy says so. `look` looks for results that have come.
#[inline]
pub(crate) fn before_turn(ready: u64, mut look: impl FnMut()) {
    let Place::At(record, system) = place() else { return look() };
    if record.ready.load(Ordering::Relaxed) != ready {
        record.ready.store(ready, Ordering::Relaxed);
    }
    look();
    if ready == 0 {
        return record::end_turn(record);
    }
    let level = ready.trailing_zeros();
    if IS_STRICT.load(Ordering::Relaxed) && system.bitmap.load(Ordering::Relaxed) & levels::before(level) != 0
    {
        call(GIVE_WAY, [0; 3]);
    }
    if !record::begin_turn(record, level) {
        // What has come may be more urgent; the executor picks after this. Until its next turn the record says a level
        // that is at worst not urgent enough, which costs an interrupt.
        record::take(record);
        look();
    }
}

/// Before the thread sleeps: nothing is ready here.
pub(crate) fn before_sleep() {
    if let Place::At(record, _) = PLACE.get() {
        record.ready.store(0, Ordering::Relaxed);
        record::end_turn(record);
        record::take(record);
    }
}

/// The calling thread runs no executor any more.
pub(crate) fn leave() {
    if let Place::At(record, _) = PLACE.replace(Place::Unknown) {
        record.ready.store(0, Ordering::Relaxed);
        record::end_turn(record);
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
