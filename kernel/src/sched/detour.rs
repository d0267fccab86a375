//! Detours: what a CPU does while a call on its kernel stack waits for the host.
//!
//! Operations of a file system are plain functions, so one that waits for the host cannot be suspended as a future. It
//! waits on its stack: the CPU leaves that stack as it stands and runs the scheduler's loop on another one. When the
//! wait is over, the loop ends where it holds nothing, between two turns, and the CPU goes back; the loop's stack is
//! free again. So any stack that waits can be gone back to at any time, however many there are, in any order.
//!
//! **A stack goes on on the CPU that it was left on**, so that whatever its frames refer to of that CPU stays right. A
//! thread that waits in a detour therefore cannot be moved to an idle CPU; everything else can.
//!
//! **Ordinary turns pay nothing.** The loop lets interrupts in at every sixteenth turn, and then looks whether a wait
//! is over. When one is, a coroutine of the CPU (the *keeper*), which interrupts wake, takes turns until the loop
//! looks.
//!
//! `unsafe` here: changing stacks, and the list of those that were left, whose elements lie on them.
#![allow(unsafe_code)]

use core::cell::Cell;
use core::future::poll_fn;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use core::task::Poll;

use crate::arch;
use crate::arch::{MAX_CPUS, protection_key, stack};
use crate::sched;
use crate::sched::{Priority, TaskRef, usage};

/// The number of a CPU's own stack; spare ones follow.
const OWN: usize = 0;
/// The most stacks that wait on one CPU.
const WAITING_MAX: usize = stack::SPARE_STACKS + 1;
/// No stack.
const NONE: usize = usize::MAX;

/// Functions that are told of threads in detours. Each gets what [`usage::thread_starts`] got.
#[derive(Clone, Copy)]
pub struct Hooks {
    /// The thread, whose turn goes on, leaves the CPU.
    pub leaves: fn(*const ()),
    /// It has the CPU again.
    pub returns: fn(*const ()),
    /// Whether it is to die.
    pub is_dying: fn(*const ()) -> bool,
}

static HOOKS: spin::Once<Hooks> = spin::Once::new();

/// Names the functions that are told of threads in detours.
pub fn set_hooks(hooks: Hooks) {
    HOOKS.call_once(|| hooks);
}

/// Gives frames for stacks, which keep them.
static FRAMES: spin::Once<fn() -> Option<u64>> = spin::Once::new();

/// Names the function that gives zeroed frames for stacks.
pub fn set_frames(zeroed_frame: fn() -> Option<u64>) {
    FRAMES.call_once(|| zeroed_frame);
}

/// A stack that was left, as an element on itself.
struct LeftStack<'a> {
    /// Where the stack stands.
    at: AtomicUsize,
    stack: usize,
    is_over: &'a dyn Fn() -> bool,
}

/// A CPU's part. Only that CPU uses it, but for `keeper`.
pub(super) struct CpuDetours {
    waiting: [AtomicPtr<LeftStack<'static>>; WAITING_MAX],
    count: AtomicUsize,
    /// The stack that runs.
    current: AtomicUsize,
    /// A stack that was left for good, which can be given back once the CPU is on another.
    left: AtomicUsize,
    /// The CPU's own stack was left for good.
    is_own_free: AtomicBool,
    keeper: spin::Once<TaskRef>,
}

static CPUS: [CpuDetours; MAX_CPUS] = [const {
    CpuDetours {
        waiting: [const { AtomicPtr::new(ptr::null_mut()) }; WAITING_MAX],
        count: AtomicUsize::new(0),
        current: AtomicUsize::new(OWN),
        left: AtomicUsize::new(NONE),
        is_own_free: AtomicBool::new(false),
        keeper: spin::Once::new(),
    }
}; MAX_CPUS];

/// CPUs on which stacks wait, a bit each.
static WAITING: AtomicU64 = AtomicU64::new(0);
/// Spare stacks that nobody uses, a bit each.
static SPARE: AtomicU64 = AtomicU64::new(u64::MAX);
const _: () = assert!(stack::SPARE_STACKS == u64::BITS as usize, "a bit for each");

/// This CPU's part.
pub(super) fn here() -> &'static CpuDetours {
    &CPUS[arch::cpu::id()]
}

/// Has every CPU look whether waits on it are over. From any context.
#[inline]
pub fn look_again() {
    if WAITING.load(Ordering::SeqCst) != 0 {
        wake_keepers();
    }
}

#[cold]
fn wake_keepers() {
    let mask = WAITING.load(Ordering::SeqCst);
    for (_, cpu) in CPUS.iter().enumerate().filter(|(number, _)| mask >> number & 1 != 0) {
        if let Some(keeper) = cpu.keeper.get() {
            keeper.wake();
        }
    }
}

impl CpuDetours {
    /// Between two turns: goes back to a stack whose wait is over, if there is one. The loop that calls this does not
    /// go on then.
    pub(super) fn look(&self) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let Some((at, stack)) = self.take_over() else { return };
        self.left.store(self.current.swap(stack, Ordering::Relaxed), Ordering::Relaxed);
        let mut nowhere = 0;
        // SAFETY: the stack was left on this CPU, and has just been taken out of the list, so nobody else goes back to
        // it. Nobody comes back to this one; it is given back only by whoever runs next.
        unsafe { stack::switch_to(at, &raw mut nowhere) };
    }

    /// Whether a wait on this CPU is over.
    fn is_any_over(&self) -> bool {
        (0..self.count.load(Ordering::Relaxed)).any(|index| self.is_over(index))
    }

    fn is_over(&self, index: usize) -> bool {
        let waiting = self.waiting[index].load(Ordering::Relaxed);
        // SAFETY: elements of the list lie on stacks that were left, and stay until they are taken out.
        unsafe { ((*waiting).is_over)() }
    }

    /// Takes a stack whose wait is over out of the list: where it stands, and its number.
    fn take_over(&self) -> Option<(usize, usize)> {
        let index = (0..self.count.load(Ordering::Relaxed)).find(|&index| self.is_over(index))?;
        let waiting = self.remove(index);
        // SAFETY: as above; nothing has run on that stack since.
        Some(unsafe { ((*waiting).at.load(Ordering::Relaxed), (*waiting).stack) })
    }

    fn remove(&self, index: usize) -> *mut LeftStack<'static> {
        let last = self.count.load(Ordering::Relaxed) - 1;
        let removed = self.waiting[index].load(Ordering::Relaxed);
        self.waiting[index].store(self.waiting[last].load(Ordering::Relaxed), Ordering::Relaxed);
        self.count.store(last, Ordering::Relaxed);
        if last == 0 {
            WAITING.fetch_and(!(1 << arch::cpu::id()), Ordering::SeqCst);
        }
        removed
    }

    fn add(&self, waiting: &LeftStack<'_>) {
        let count = self.count.load(Ordering::Relaxed);
        self.waiting[count].store(ptr::from_ref(waiting).cast_mut().cast(), Ordering::Relaxed);
        self.count.store(count + 1, Ordering::Relaxed);
        WAITING.fetch_or(1 << arch::cpu::id(), Ordering::SeqCst);
    }

    fn forget(&self, waiting: &LeftStack<'_>) {
        let count = self.count.load(Ordering::Relaxed);
        let is_it = |index: &usize| {
            ptr::addr_eq(self.waiting[*index].load(Ordering::Relaxed), ptr::from_ref(waiting))
        };
        if let Some(index) = (0..count).find(is_it) {
            self.remove(index);
        }
    }

    /// A stack that nobody uses: its number and its upper end.
    fn take_stack(&self) -> Option<(usize, usize)> {
        let frames = *FRAMES.get()?;
        if self.is_own_free.swap(false, Ordering::Relaxed) {
            return Some((OWN, stack::top(arch::cpu::id(), frames)?));
        }
        let take = |free: u64| (free != 0).then_some(free & free.wrapping_sub(1));
        let free = SPARE.fetch_update(Ordering::Acquire, Ordering::Relaxed, take).ok()?;
        let number = free.trailing_zeros() as usize;
        let top = stack::top(MAX_CPUS + number, frames);
        if top.is_none() {
            SPARE.fetch_or(1 << number, Ordering::Release);
        }
        Some((OWN + 1 + number, top?))
    }

    /// Gives the stack back that was left for good, if there is one.
    fn give_back(&self) {
        match self.left.swap(NONE, Ordering::Relaxed) {
            NONE => {}
            OWN => self.is_own_free.store(true, Ordering::Relaxed),
            number => {
                SPARE.fetch_or(1 << (number - OWN - 1), Ordering::Release);
            }
        }
    }

    /// Starts the keeper if there is none yet.
    fn has_keeper(&self) -> bool {
        if self.keeper.get().is_none() {
            let cpu = arch::cpu::id();
            let keep = poll_fn(move |context| {
                if CPUS[cpu].is_any_over() {
                    context.waker().wake_by_ref();
                }
                Poll::Pending
            });
            if let Ok(keeper) = sched::spawn_on(Priority::KERNEL, 1 << cpu, keep) {
                self.keeper.call_once(|| keeper);
            }
        }
        self.keeper.get().is_some()
    }

    /// Leaves the stack of `waiting`, which is in the list, until its wait is over. Without a stack for the loop it
    /// keeps the CPU if it may; if not, `false`, and the wait has ended without being over.
    fn leave(&self, waiting: &LeftStack<'_>, may_stay: bool) -> bool {
        let stack = if self.has_keeper() { self.take_stack() } else { None };
        let is_over = stack.is_some() || may_stay;
        match stack {
            Some((stack, top)) => {
                self.current.store(stack, Ordering::Relaxed);
                // SAFETY: the stack was nobody's and is this CPU's now, until the loop there leaves it for good.
                // `waiting` is on the stack that is left, whose frames stay until `look` or `stay` goes back to it.
                unsafe { stack::call_on(top, run, waiting.at.as_ptr()) };
            }
            None if may_stay => self.stay(waiting),
            None => self.forget(waiting),
        }
        self.give_back();
        is_over
    }

    /// Without a stack for the loop: keeps the CPU until this wait is over or that of another stack, to which it goes
    /// back then.
    #[cold]
    fn stay(&self, waiting: &LeftStack<'_>) {
        while !(waiting.is_over)() {
            if let Some((at, stack)) = self.take_over() {
                if stack == waiting.stack {
                    // Its own wait, which was over in between.
                    return;
                }
                self.current.store(stack, Ordering::Relaxed);
                // SAFETY: as in `look`; this stack is in the list, and is gone back to like any other.
                unsafe { stack::switch_to(at, waiting.at.as_ptr()) };
                return;
            }
            sched::poll_interrupts();
            core::hint::spin_loop();
        }
        self.forget(waiting);
    }
}

/// The loop on another stack.
extern "C" fn run() -> ! {
    sched::run_cpu()
}

/// Waits until `is_over`, which is asked on this CPU: between turns, when [`look_again`] was called. It must not wait,
/// and holds nothing when it returns. Meanwhile the CPU goes on with other coroutines; outside of any coroutine, as
/// while the kernel starts, it does nothing else.
pub fn wait(is_over: &dyn Fn() -> bool) {
    let _ = wait_in(is_over, true);
}

/// As [`wait`]; `false` if there was no stack for the CPU to go on, and `may_stay` is not set.
fn wait_in(is_over: &dyn Fn() -> bool, may_stay: bool) -> bool {
    let turn = sched::core().filter(|_| sched::MACHINE.current().is_some());
    #[cfg(feature = "checking")]
    crate::sync::order::expect_none("where a call waits in a detour");
    let Some(core) = turn else {
        while !is_over() {
            if !may_stay {
                return false;
            }
            core::hint::spin_loop();
        }
        return true;
    };
    let here = here();
    let waiting = LeftStack { at: AtomicUsize::new(0), stack: here.current.load(Ordering::Relaxed), is_over };
    here.add(&waiting);
    // Only now: whoever ends the wait from here on sees that somebody waits.
    if is_over() {
        here.forget(&waiting);
        return true;
    }
    let (thread, hooks) = (usage::thread_here(), HOOKS.get());
    if let Some((thread, hooks)) = thread.zip(hooks) {
        (hooks.leaves)(thread);
    }
    // Those of whoever waits, a thread or a request; other turns begin with the first ones.
    let rights = protection_key::take_rights();
    #[cfg(feature = "checking")]
    sched::stretch::end("a detour");
    // SAFETY: the turn is taken up below before it goes on. Until then it stays where it is, so its coroutine does not
    // end; and no other turn goes on here then, because a loop is left between two turns only, or in a turn that was
    // put aside.
    let aside = unsafe { core.put_aside() };
    let is_ended = here.leave(&waiting, may_stay);
    // SAFETY: as above.
    unsafe { core.take_up(aside) };
    #[cfg(feature = "checking")]
    sched::stretch::begin();
    // Others may be over, too.
    if let Some(keeper) = here.keeper.get().filter(|_| here.count.load(Ordering::Relaxed) > 0) {
        keeper.wake();
    }
    if let Some((thread, hooks)) = thread.zip(hooks) {
        (hooks.returns)(thread);
    }
    if let Some(rights) = rights {
        protection_key::set_rights(rights);
    }
    is_ended
}

/// The end of a wait for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramWait {
    /// It is over.
    Over,
    /// The thread is to die.
    Killed,
    /// There is no stack on which the CPU could go on.
    NoStack,
}

/// The most waits for programs: the other stacks are for waits that the host ends.
const PROGRAM_WAITS_MAX: usize = stack::SPARE_STACKS / 4 * 3;
static PROGRAM_WAITS: AtomicUsize = AtomicUsize::new(0);

/// Waits until a program has done something. The CPU may be the one that the program needs, so it is never kept: a wait
/// for which there is no stack does not begin. A thread that is to die does not wait at all.
#[must_use]
pub fn wait_for_program(is_over: &dyn Fn() -> bool) -> ProgramWait {
    let thread = usage::thread_here().zip(HOOKS.get());
    let is_dying = || thread.is_some_and(|(thread, hooks)| (hooks.is_dying)(thread));
    let relaxed = Ordering::Relaxed;
    let one_more = |count| (count < PROGRAM_WAITS_MAX).then_some(count + 1);
    if is_over() {
        return ProgramWait::Over;
    }
    if PROGRAM_WAITS.fetch_update(relaxed, relaxed, one_more).is_err() {
        return ProgramWait::NoStack;
    }
    let has_ended = wait_in(&|| is_over() || is_dying(), false);
    PROGRAM_WAITS.fetch_sub(1, relaxed);
    match has_ended {
        _ if is_over() => ProgramWait::Over,
        true => ProgramWait::Killed,
        false => ProgramWait::NoStack,
    }
}

/// As [`wait`]; `false` if it ended because the thread whose turn goes on was killed meanwhile. One that was to die
/// before waits as long as it takes: it gives back what it has.
#[must_use]
pub fn wait_killably(is_over: &dyn Fn() -> bool) -> bool {
    let killable = usage::thread_here().zip(HOOKS.get()).filter(|(thread, hooks)| !(hooks.is_dying)(*thread));
    let Some((thread, hooks)) = killable else {
        wait(is_over);
        return true;
    };
    wait(&|| is_over() || (hooks.is_dying)(thread));
    // A wait that was over may have begun anew, if others were faster.
    !(hooks.is_dying)(thread) || is_over()
}

/// Lets others have a turn, in the midst of a long piece of work that holds no spinlock. `false`: the thread is to die.
#[must_use]
pub fn give_way() -> bool {
    let is_first = Cell::new(true);
    wait_killably(&|| {
        if is_first.replace(false) {
            look_again();
            return false;
        }
        true
    })
}

/// A lock whose holder may wait for the host. Others wait in detours.
#[derive(Debug, Default)]
pub struct DetourLock(AtomicBool);

impl DetourLock {
    /// An unlocked lock.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Waits until the lock is free.
    #[must_use]
    pub fn lock(&self) -> DetourGuard<'_> {
        while self.0.swap(true, Ordering::SeqCst) {
            wait(&|| !self.0.load(Ordering::SeqCst));
        }
        DetourGuard(self)
    }

    /// As [`DetourLock::lock`]. `None`: the thread was killed meanwhile.
    #[must_use]
    pub fn lock_killably(&self) -> Option<DetourGuard<'_>> {
        while self.0.swap(true, Ordering::SeqCst) {
            if !wait_killably(&|| !self.0.load(Ordering::SeqCst)) {
                return None;
            }
        }
        Some(DetourGuard(self))
    }

    /// As [`DetourLock::lock`], where the holder may wait for a program ([`wait_for_program`]).
    ///
    /// # Errors
    /// The wait ended before the lock was free.
    pub fn lock_beside_programs(&self) -> Result<DetourGuard<'_>, ProgramWait> {
        while self.0.swap(true, Ordering::SeqCst) {
            match wait_for_program(&|| !self.0.load(Ordering::SeqCst)) {
                ProgramWait::Over => {}
                end => return Err(end),
            }
        }
        Ok(DetourGuard(self))
    }
}

/// The right to what a [`DetourLock`] guards, until dropped.
#[derive(Debug)]
pub struct DetourGuard<'a>(&'a DetourLock);

impl Drop for DetourGuard<'_> {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::SeqCst);
        look_again();
    }
}
