//! The scheduler: every task, thread of a program or kernel work, is a coroutine with one of 64 priority levels.
//!
//! The queues, wakes, inboxes and stealing are `heddle-coroutine`'s; this module gives it the processors. See
//! [`priority`] for what each level is for. The kernel is cooperative: a coroutine runs until its future returns
//! `Pending`. Programs are preempted: an interrupt returns control to the thread's coroutine, which gives way at the
//! end of its turn, or when [`enter_program`] says that something more urgent is ready. A post from another CPU of
//! something more urgent than the program that a CPU runs interrupts that CPU.

mod balance;
mod budget;
pub mod detour;
mod entity;
mod parameters;
pub mod priority;
#[cfg(feature = "checking")]
pub mod stretch;
pub mod usage;
mod yield_now;

use core::future::Future;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use core::task::Waker;

use heddle_abi::protocol::Levels;
pub use heddle_coroutine::sched::Fetched;
use heddle_coroutine::sched::Phase;
use heddle_coroutine::{Builder, Core, Id, Machine, Platform, SpawnError};

use crate::arch;
use crate::arch::MAX_CPUS;
use crate::error::Errno;
use crate::time::system_page::PAGE;

pub use crate::sched::budget::Budget;
pub use crate::sched::entity::{
    ROUND_ROBIN_NS, SLICE_NS, SchedEntity, SliceEnd, THROTTLED, charge_realtime, is_realtime_throttled,
    realtime_share_ns, set_realtime_share_ns,
};
pub use crate::sched::parameters::{Parameters, Policy};
pub use crate::sched::priority::Priority;
pub use crate::sched::yield_now::yield_now;
pub use heddle_coroutine::{move_to, preempted};

/// One pick in so many serves a level below the most urgent one, so that threads that sleep a lot cannot starve those
/// that compute.
const SHARE_PICKS: u32 = 32;

/// Turns of kernel coroutines after which interrupts are let in: programs let them in whenever they run.
const TURNS_WITHOUT_INTERRUPTS: u32 = 16;

/// The processors, for `heddle-coroutine`.
struct Processors;

#[allow(unsafe_code, reason = "the machine's exclusion rests on what it says")]
// SAFETY: a processor reads its own number, and every barrier of its cores is a fence.
unsafe impl Platform for Processors {
    fn this_core() -> Option<u32> {
        Some(arch::cpu::id() as u32)
    }

    fn kick(core: u32) {
        KICKS.fetch_add(1, Ordering::Relaxed);
        arch::cpu::kick(core as usize);
    }

    fn left(core: u32, level: u8) {
        if 1 << level & Priority::PLACED_BITS != 0 {
            balance::left(core, Priority::new(level));
        }
    }
}

static MACHINE: Machine<Processors> = Machine::new();
static KICKS: AtomicU64 = AtomicU64::new(0);

/// A CPU's part of the machine. Only that CPU uses it.
struct Part(spin::Once<Core<Processors>>);

#[allow(unsafe_code, reason = "each CPU reaches only its own part")]
// SAFETY: `core` picks the element by the number of the CPU that runs, interrupts are off in kernel code, and a
// coroutine that is between two awaits stays on its CPU; so a `Core` is used by one CPU only.
unsafe impl Sync for Part {}

static PARTS: [Part; MAX_CPUS] = [const { Part(spin::Once::new()) }; MAX_CPUS];

/// This CPU's part of the machine, `None` before it has started.
#[inline(always)]
fn core() -> Option<&'static Core<Processors>> {
    PARTS[arch::cpu::id()].0.get()
}

/// Makes this CPU a part of the machine. Coroutines can be spawned on it from here on.
///
/// # Errors
/// `ENOMEM`.
pub fn start_cpu() -> Result<(), Errno> {
    let number = arch::cpu::id();
    let core = MACHINE.start(number as u32).ok_or(Errno::ENOMEM)?;
    core.set_share(SHARE_PICKS, Priority::SHARED_FIRST);
    PARTS[number].0.call_once(|| core);
    Ok(())
}

/// A handle on a task. It keeps nothing alive; when the task has ended it does nothing.
#[derive(Clone, Copy, Debug)]
pub struct TaskRef(Id);

impl TaskRef {
    /// Makes the task ready if it waits.
    pub fn wake(&self) {
        heddle_coroutine::wake(self.0);
    }

    /// Its number among the kernel's coroutines.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.0.to_bits()
    }

    /// A waker of it.
    #[must_use]
    pub fn waker(&self) -> Waker {
        heddle_coroutine::waker(self.0)
    }

    /// The task that a waker wakes, if it is one.
    #[must_use]
    pub fn of(waker: &Waker) -> Option<Self> {
        heddle_coroutine::id_of(waker).map(Self)
    }

    /// Its level; nothing if it has ended.
    #[must_use]
    pub fn level(&self) -> Option<u8> {
        heddle_coroutine::priority(self.0)
    }

    /// Whether it is ready and waits for a CPU.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        heddle_coroutine::phase(self.0) == Some(Phase::Queued)
    }

    /// Whether it waits to be woken.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        heddle_coroutine::phase(self.0) == Some(Phase::Waiting)
    }

    /// Whether the task, whose turn goes on, is ready to go on when it ends: it gives way, or was woken meanwhile.
    #[must_use]
    pub fn is_notified(&self) -> bool {
        heddle_coroutine::is_woken_in_turn(self.0)
    }

    /// Whether the task runs or is ready to; a hint, unless it is the caller's.
    #[must_use]
    pub fn runs_or_is_ready(&self) -> bool {
        heddle_coroutine::is_ready(self.0)
    }

    /// [`TaskRef::set_priority`] that does not poll a task that waits.
    pub fn set_priority_at_rest(&self, priority: Priority, front: bool) {
        heddle_coroutine::set_rank_at_rest(self.0, priority.rank(), front);
    }

    /// Takes the task into this CPU's queue, if it is ready in another one's. That one is not disturbed.
    pub fn fetch(&self) -> Fetched {
        core().map_or(Fetched::Elsewhere, |core| core.fetch(self.0))
    }

    /// Changes the priority, wherever the task is. One that is queued goes behind its equals, with `front` before them.
    pub fn set_priority(&self, priority: Priority, front: bool) {
        heddle_coroutine::set_rank(self.0, priority.rank(), front);
    }
}

/// Creates a coroutine and makes it ready.
///
/// # Errors
/// `ENOMEM`.
pub fn spawn(
    priority: Priority,
    future: impl Future<Output = ()> + Send + 'static,
) -> Result<TaskRef, Errno> {
    spawn_on(priority, u64::MAX, future)
}

/// Creates a coroutine that runs only on the CPUs of `affinity`, a bit each.
///
/// # Errors
/// `ENOMEM`, `EINVAL` (no CPU that runs is among them).
pub fn spawn_on(
    priority: Priority,
    affinity: u64,
    future: impl Future<Output = ()> + Send + 'static,
) -> Result<TaskRef, Errno> {
    let rank = priority.rank();
    let builder = Builder::new().priority(rank.level()).order(rank.order()).cores(affinity);
    #[cfg(feature = "checking")]
    let future = checked(future);
    let handle = MACHINE.spawn(builder, future).map_err(|error| match error {
        SpawnError::NoCore => Errno::EINVAL,
        _ => Errno::ENOMEM,
    })?;
    let id = handle.id();
    handle.detach();
    Ok(TaskRef(id))
}

/// A coroutine that is looked at whenever it returns: it must hold no spinlock then.
#[cfg(feature = "checking")]
async fn checked(future: impl Future<Output = ()>) {
    let mut future = core::pin::pin!(future);
    core::future::poll_fn(|context| {
        stretch::begin();
        let result = future.as_mut().poll(context);
        stretch::end("a coroutine's return");
        crate::sync::order::expect_none("where a coroutine returns");
        result
    })
    .await;
}

/// The coroutine that runs on this CPU, as a number; 0 for none.
#[cfg(feature = "checking")]
pub fn current() -> u64 {
    MACHINE.current().map_or(0, Id::to_bits)
}

/// A function that a CPU calls before it halts.
static BEFORE_HALT: spin::Once<fn()> = spin::Once::new();

/// Has `hook` called on each CPU before it halts, with no spinlock held. It must not wait.
pub fn set_before_halt(hook: fn()) {
    BEFORE_HALT.call_once(|| hook);
}

/// A function that a CPU calls now and then between two turns.
static BETWEEN_TURNS: spin::Once<fn()> = spin::Once::new();

/// Has `hook` called on each CPU now and then between two turns, with no spinlock held. It must not wait.
pub fn set_between_turns(hook: fn()) {
    BETWEEN_TURNS.call_once(|| hook);
}

/// Bit `n`: CPU `n` is halted.
static IDLE: AtomicU64 = AtomicU64::new(0);

/// Whether a CPU has nothing to do: what becomes ready is likely to run there. A hint.
#[must_use]
pub fn has_idle_cpu() -> bool {
    IDLE.load(Ordering::Relaxed) != 0
}

/// Halts until the next interrupt.
fn halt() {
    #[cfg(feature = "checking")]
    crate::sync::order::expect_none("before a halt");
    if let Some(hook) = BEFORE_HALT.get() {
        hook();
    }
    usage::halts();
    let bit = 1 << arch::cpu::id();
    IDLE.fetch_or(bit, Ordering::Relaxed);
    arch::cpu::idle();
    IDLE.fetch_and(!bit, Ordering::Relaxed);
    usage::goes_on();
}

/// Lets interrupts in: for long stretches of kernel code.
pub fn poll_interrupts() {
    #[cfg(feature = "checking")]
    crate::sync::order::expect_none("where interrupts are let in");
    arch::cpu::poll_interrupts();
}

/// Runs ready coroutines on this CPU, most urgent first, and halts when there are none. Every CPU ends up here.
pub fn run_cpu() -> ! {
    if core().is_none()
        && let Err(error) = start_cpu()
    {
        ::log::error!("CPU {} cannot take part: {error:?}", arch::cpu::id());
        arch::cpu::halt();
    }
    let Some(core) = core() else { arch::cpu::halt() };
    let detours = detour::here();
    let mut turns = 0;
    loop {
        if core.run_one() {
            turns += 1;
            if turns % TURNS_WITHOUT_INTERRUPTS == 0 {
                poll_interrupts();
                if let Some(hook) = BETWEEN_TURNS.get() {
                    hook();
                }
                detours.look();
            }
        } else if core.try_park() {
            balance::idles(core);
            publish(core);
            halt();
            core.unpark();
        }
    }
}

/// Whether nothing else is ready on this CPU.
#[must_use]
pub fn is_alone() -> bool {
    core().is_none_or(|core| !core.statistics().has_work())
}

/// Whether something that is no less urgent is ready on this CPU.
#[must_use]
pub fn is_contended(priority: Priority) -> bool {
    let upto = (2u64 << priority.level()).wrapping_sub(1);
    core().is_some_and(|core| core.statistics().ready_levels() & upto != 0)
}

/// Interrupts the program that a CPU runs, so that its thread looks what is ready.
pub fn disturb(cpu: usize) {
    MACHINE.disturb(cpu as u32);
}

/// Whether a coroutine of this level should give way at this moment: something more urgent is ready.
#[must_use]
pub fn should_yield(priority: Priority) -> bool {
    core().is_some_and(|core| core.should_yield(priority.rank()))
}

/// Announces that this CPU is about to run a program of this level: from now on it is interrupted for anything more
/// urgent. `false` if something more urgent is ready already; the thread then gives way first.
#[must_use]
#[inline(always)]
pub fn enter_program(priority: Priority) -> bool {
    let enters = may_enter_program(priority);
    #[cfg(feature = "checking")]
    if enters {
        stretch::end("the entry of a program");
    }
    enters
}

#[inline(always)]
fn may_enter_program(priority: Priority) -> bool {
    let Some(core) = core() else { return true };
    // The only CPU is interrupted by whatever may make something ready.
    if arch::cpu::count() > 1 {
        return balance::enter_program(core, priority);
    }
    let enters = !core.should_yield(priority.rank());
    if enters {
        publish_to_readers(core);
    }
    enters
}

/// The levels that all CPUs have told programs.
static LEVELS: Levels = Levels::new();

/// The levels that this CPU has told programs.
static PUBLISHED: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

/// How many executors of programs there are, which look at the levels.
static READERS: AtomicUsize = AtomicUsize::new(0);

/// Counts as one who looks at the ready levels, while it lives.
pub struct LevelReader(());

impl LevelReader {
    /// The levels are right for the calling thread's program from its next entry on.
    #[must_use]
    pub fn new() -> Self {
        READERS.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for LevelReader {
    fn drop(&mut self) {
        READERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tells programs which levels are ready on the only CPU, if one of them looks.
#[inline]
fn publish_to_readers(core: &Core<Processors>) {
    if READERS.load(Ordering::Relaxed) != 0 {
        publish(core);
    }
}

/// Tells programs and other CPUs which levels are ready here, if that has changed.
#[inline]
fn publish(core: &Core<Processors>) {
    let now = core.statistics().ready_levels();
    let published = &PUBLISHED[core.number() as usize];
    let before = published.load(Ordering::Relaxed);
    if now != before {
        published.store(now, Ordering::Relaxed);
        LEVELS.publish(&PAGE.bitmap, before, now);
    }
}

/// The levels at which something waits for a processor, a bit each.
#[must_use]
pub fn ready_levels() -> u64 {
    PAGE.bitmap.load(Ordering::Relaxed)
}

/// Takes one coroutine of `levels` from another CPU's queue into this one's, if there is one.
pub fn pull(levels: u64) {
    if arch::cpu::count() > 1
        && ready_levels() & levels != 0
        && let Some(core) = core()
    {
        core.pull(levels);
    }
}

/// Ends what [`enter_program`] announced.
#[inline(always)]
pub fn leave_program() {
    #[cfg(feature = "checking")]
    stretch::begin();
    if arch::cpu::count() > 1
        && let Some(core) = core()
    {
        core.enter_kernel();
    }
}

/// Called by the timer interrupt: wakes what is due.
pub fn on_timer() {
    crate::time::on_timer();
}

/// How often a CPU went from one coroutine to the next.
#[must_use]
pub fn switches() -> u64 {
    PARTS.iter().filter_map(|part| part.0.get()).map(|part| part.statistics().picks()).sum()
}

/// Figures for `/proc/heddle`.
#[must_use]
pub fn counters() -> [(&'static str, u64); 4] {
    let mut sums = [0; 3];
    for part in PARTS.iter().filter_map(|part| part.0.get()) {
        let statistics = part.statistics();
        sums[0] += statistics.picks();
        sums[1] += statistics.wakes();
        sums[2] += u64::from(statistics.steals());
    }
    [("turns", sums[0]), ("wakes", sums[1]), ("steals", sums[2]), ("kicks", KICKS.load(Ordering::Relaxed))]
}
