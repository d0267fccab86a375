//! An executor of several cores that the platform runs: the kernel's.
//!
//! A [`Machine`] is a static; each of its processors calls [`Machine::start`] once and then runs what the
//! [`Core`] that it got picks. Nothing here knows how a processor sleeps, or how one disturbs another: that is the
//! [`Platform`].
#![allow(unsafe_code)] // Cores are reached through pointers to entries that are never freed.

use crate::builder::{Builder, SpawnError};
use crate::core_entry::{AsideTurn, CoreEntry, Hooks};
use crate::handle::JoinHandle;
use crate::registry::{Global, acquire_core, single, why_no_slot};
use crate::sched::{self, Id, Picked, Rank, Stealing, WATCH_PARKED};
use crate::statistics::Statistics;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
use crate::task::{self, TaskRef};
use crate::{turn, waker};
use core::future::Future;
use core::marker::PhantomData;
use core::ptr;
use core::task::Waker;

/// Most cores of one machine, and threads of one executor.
pub const MACHINE_CORES: usize = 64;

/// Services that a machine needs of the processor and the rest of the kernel. One machine per implementing type.
///
/// # Safety
/// The machine's exclusion rests on these, and with it the memory of coroutines:
/// - [`Platform::this_core`] never gives one number to two callers that run at the same time, unless one of them is a
///   handler that has interrupted the other. A [`Core`] is used only where it gives that core's number.
/// - If [`Platform::FENCED`] is `false`, [`Platform::heavy_barrier`] makes every core of the machine pass a full fence
///   before it returns.
pub unsafe trait Platform: Sync + 'static {
    /// Whether the light barrier of a core's gate is a full fence. `false` only if [`Platform::heavy_barrier`]
    /// makes every core pass one.
    const FENCED: bool = true;

    /// The number of the core that the caller runs on, as it was given to [`Machine::start`]; `None` outside of the
    /// machine. Called on every wake, from any context.
    fn this_core() -> Option<u32>;

    /// Makes core `core` look at its inbox: it is parked, or exposed with a program that is less urgent than what
    /// was posted. From any context; must not wait. May be called for the calling core itself, by a handler that
    /// interrupted it between [`Core::try_park`] and its sleep.
    fn kick(core: u32);

    /// The thief's barrier: see the safety contract. A full fence, unless a platform needs none of its owners.
    fn heavy_barrier() {
        fence(Ordering::SeqCst);
    }

    /// Something of `level` was left with `core`, which sleeps or runs a program and is not kicked, because what it
    /// runs is no less urgent: the place to have another core take it. From any context; must not wait.
    #[inline(always)]
    fn left(core: u32, level: u8) {
        let _ = (core, level);
    }

    /// Called before each turn: the place to start a time slice.
    #[inline(always)]
    fn before_turn(core: u32, id: Id, level: u8) {
        let _ = (core, id, level);
    }
}

/// State that the cores of a machine share.
pub(crate) struct Shared {
    /// No more coroutines are taken.
    closed: AtomicU32,
    /// 1: idle cores are kicked as soon as a core has more than it runs next. 0: they look from time to time.
    eager: AtomicU32,
    /// 1: an idle core looks at the others from time to time.
    pub watched: AtomicU32,
    /// 1: cores watch during turns, see [`Host::is_watching`](crate::host::Host::is_watching).
    #[cfg(feature = "std")]
    pub watching: AtomicU32,
    /// Bit `n`: core `n` is in reserve. It runs what is urgent, is never idle, and nothing is left with it.
    reserve: AtomicU64,
    /// Bit `n`: core `n` is parked.
    idle: AtomicU64,
    /// Bit `n`: core `n` was started.
    started: AtomicU64,
    cores: [AtomicPtr<CoreEntry>; MACHINE_CORES],
}

impl Shared {
    pub const fn new() -> Shared {
        Shared {
            closed: AtomicU32::new(0),
            eager: AtomicU32::new(1),
            watched: AtomicU32::new(0),
            #[cfg(feature = "std")]
            watching: AtomicU32::new(0),
            reserve: AtomicU64::new(0),
            idle: AtomicU64::new(0),
            started: AtomicU64::new(0),
            cores: [const { AtomicPtr::new(ptr::null_mut()) }; MACHINE_CORES],
        }
    }

    /// Makes `entry` core `number`, from which on others steal from it.
    pub fn add(&self, number: u32, entry: &'static CoreEntry) {
        if let Some(place) = self.cores.get(number as usize) {
            place.store(ptr::from_ref(entry).cast_mut(), Ordering::Release);
            self.started.fetch_or(1 << (number & 63), Ordering::AcqRel);
        }
    }

    /// Core `number` serves the machine no more.
    #[cfg(all(feature = "std", feature = "scheduler"))]
    pub fn remove(&self, number: u32) {
        let others = !(1 << (number & 63));
        self.started.fetch_and(others, Ordering::Relaxed);
        self.idle.fetch_and(others, Ordering::Relaxed);
    }

    /// One thread is left, which runs: there is no reserve, and nobody watches.
    #[cfg(all(feature = "std", feature = "scheduler"))]
    pub fn stay_alone(&self) {
        self.reserve.store(0, Ordering::Relaxed);
        self.watching.store(0, Ordering::Relaxed);
        self.watched.store(0, Ordering::Relaxed);
        self.idle.store(0, Ordering::Relaxed);
    }

    #[inline(always)]
    pub fn core(&self, number: u32) -> Option<&'static CoreEntry> {
        // SAFETY: null or a registry entry, which is never freed.
        unsafe { self.cores.get(number as usize)?.load(Ordering::Acquire).as_ref() }
    }

    /// Core `number` goes to sleep, or has woken.
    pub fn set_idle(&self, number: u32, idle: bool) {
        let bit = 1 << (number & 63);
        if idle {
            self.idle.fetch_or(bit, Ordering::AcqRel);
        } else if self.idle.load(Ordering::Relaxed) & bit != 0 {
            self.idle.fetch_and(!bit, Ordering::AcqRel);
        }
    }

    /// Whether every core is parked.
    #[cfg(feature = "std")]
    pub fn all_idle(&self) -> bool {
        self.idle.load(Ordering::Relaxed) == self.regular()
    }

    /// The started cores that are not in reserve.
    #[inline(always)]
    pub fn regular(&self) -> u64 {
        self.started.load(Ordering::Acquire) & !self.reserve.load(Ordering::Relaxed)
    }

    /// Makes core `number` the one in reserve. Before it is added.
    #[cfg(feature = "std")]
    pub fn set_reserve(&self, number: u32) {
        self.reserve.store(1 << (number & 63), Ordering::Relaxed);
    }

    /// The core in reserve.
    #[cfg(feature = "std")]
    pub fn reserve_core(&self) -> Option<&'static CoreEntry> {
        self.core(self.reserve.load(Ordering::Relaxed).trailing_zeros())
    }

    /// Has idle cores look for work themselves, except for what is urgent.
    #[cfg(feature = "std")]
    pub fn set_lazy(&self) {
        self.eager.store(0, Ordering::Relaxed);
    }

    /// Forgets the cores, for another use.
    #[cfg(feature = "std")]
    pub fn reset(&self) {
        self.started.store(0, Ordering::Relaxed);
        self.idle.store(0, Ordering::Relaxed);
        self.watched.store(0, Ordering::Relaxed);
        self.watching.store(0, Ordering::Relaxed);
        self.reserve.store(0, Ordering::Relaxed);
        self.cores.iter().for_each(|core| core.store(ptr::null_mut(), Ordering::Relaxed));
        self.closed.store(0, Ordering::Release);
    }

    /// Takes no more coroutines, and has the cores' threads end.
    #[cfg(feature = "std")]
    pub fn close(&self) {
        self.closed.store(1, Ordering::Release);
    }

    #[cfg(feature = "std")]
    #[inline(always)]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire) != 0
    }

    /// Disturbs one parked core of `mask`, so that it looks for work. `false`: none was parked any more.
    pub fn kick_idle(&self, mask: u64) -> bool {
        loop {
            let idle = self.idle.load(Ordering::Relaxed) & mask;
            if idle == 0 {
                return false;
            }
            let bit = idle & idle.wrapping_neg();
            // Another may have kicked this one since.
            if self.idle.fetch_and(!bit, Ordering::AcqRel) & bit != 0
                && let Some(core) = self.core(bit.trailing_zeros())
            {
                core.kick();
                return true;
            }
        }
    }
}

/// The calling core `entry` has queued something: disturbs an idle core if that may be of use.
#[inline(always)]
pub(crate) fn shared_work(entry: &CoreEntry) {
    // SAFETY: null, or the machine of the core on which the caller runs, which outlives its cores' running.
    if let Some(shared) = unsafe { entry.shared().as_ref() } {
        if shared.idle.load(Ordering::Relaxed) == 0 {
            return;
        }
        let ready = entry.state.ready();
        let kick = if shared.eager.load(Ordering::Relaxed) != 0 {
            ready.has_two()
        } else {
            shared.watched.load(Ordering::Relaxed) == 0 || entry.has_more_urgent()
        };
        if kick {
            shared.kick_idle(u64::MAX);
        }
    }
}

/// Cores that share their work.
pub struct Machine<P: Platform> {
    shared: Shared,
    platform: PhantomData<fn() -> P>,
}

impl<P: Platform> Machine<P> {
    const HOOKS: Hooks = Hooks {
        kick: |entry| P::kick(entry.state.number()),
        is_here: |entry| P::this_core() == Some(entry.state.number()),
        left: |entry, level| P::left(entry.state.number(), level),
    };

    /// A machine without cores.
    pub const fn new() -> Machine<P> {
        Machine { shared: Shared::new(), platform: PhantomData }
    }

    /// Makes the calling processor core `number`, below [`MACHINE_CORES`], which [`Platform::this_core`] says it is.
    /// `None` if it was started, if the caller is not that core, or if there is no memory.
    pub fn start(&'static self, number: u32) -> Option<Core<P>> {
        let place = self.shared.cores.get(number as usize).filter(|_| P::this_core() == Some(number))?;
        let entry = acquire_core().ok().filter(|_| place.load(Ordering::Relaxed).is_null())?;
        entry.set_up(
            number,
            &Self::HOOKS,
            &self.shared,
            if P::FENCED { Stealing::Fenced } else { Stealing::Barrier },
        );
        self.shared.add(number, entry);
        Some(Core { entry, shared: &self.shared, platform: PhantomData })
    }

    /// Kicks core `number` if it sleeps or runs a program, of whatever level. `false`: it is in the kernel, and will
    /// look by itself.
    pub fn disturb(&self, number: u32) -> bool {
        self.shared.core(number).is_some_and(|entry| {
            let kick = entry.state.inbox().watch() != 0 && entry.state.inbox().prod(0);
            if kick {
                P::kick(number);
            }
            kick
        })
    }

    /// The coroutine that is being polled on the calling core.
    pub fn current(&self) -> Option<Id> {
        self.shared.core(P::this_core()?)?.current()
    }

    /// Spawns `future`. On a core of the machine that its mask allows, it is queued there, otherwise it is left in
    /// the inbox of an allowed core, an idle one if there is one.
    pub fn spawn<F>(&'static self, builder: Builder, future: F) -> Result<JoinHandle<F::Output>, SpawnError>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let here = P::this_core().filter(|core| builder.cores >> (core & 63) & 1 != 0);
        let here = here.and_then(|core| self.shared.core(core));
        spawn_on(&self.shared, here, builder, future)
    }
}

impl<P: Platform> Default for Machine<P> {
    fn default() -> Machine<P> {
        Machine::new()
    }
}

/// Spawns into the queue of `here`, a core on which the caller runs, or else into some allowed core's inbox.
#[inline]
pub(crate) fn spawn_on<F>(
    shared: &Shared,
    here: Option<&'static CoreEntry>,
    builder: Builder,
    future: F,
) -> Result<JoinHandle<F::Output>, SpawnError>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    spawn_by(builder, future, false, |task| place_on(shared, here, builder, task))
}

/// Puts a new coroutine where [`spawn_on`] says.
#[inline]
pub(crate) fn place_on(
    shared: &Shared,
    here: Option<&'static CoreEntry>,
    builder: Builder,
    task: *mut (),
) -> Result<Id, SpawnError> {
    match here {
        Some(entry) => {
            let id = entry.spawn(&Global, task, builder.rank);
            shared_work(entry);
            id.ok_or_else(why_no_slot)
        }
        None => post_to(shared, task, builder),
    }
}

/// Allocates a coroutine and has `place` put it into some queue. `local`: the handle stays on the executor's thread.
#[inline(always)]
pub(crate) fn spawn_by<F: Future + 'static>(
    builder: Builder,
    future: F,
    local: bool,
    place: impl FnOnce(*mut ()) -> Result<Id, SpawnError>,
) -> Result<JoinHandle<F::Output>, SpawnError> {
    let task = task::allocate(future, local, builder).map_err(|_| SpawnError::NoMemory)?;
    match place(task.as_ptr().cast()) {
        Ok(id) => {
            #[cfg(feature = "std")]
            if builder.kind != 0
                && let Some(host) = crate::host::host()
            {
                host.is_of_kind(id, builder.kind);
            }
            // SAFETY: the coroutine was just made with this output, and has no handle yet.
            Ok(unsafe { JoinHandle::new(TaskRef(task), id) })
        }
        Err(error) => {
            // SAFETY: it was not spawned, so nobody else has it.
            unsafe { TaskRef(task).discard() };
            Err(error)
        }
    }
}

fn post_to(shared: &Shared, task: *mut (), builder: Builder) -> Result<Id, SpawnError> {
    if shared.closed.load(Ordering::Relaxed) != 0 {
        return Err(SpawnError::NoExecutor);
    }
    let allowed = shared.regular() & builder.cores;
    let idle = shared.idle.load(Ordering::Relaxed) & allowed;
    let number = if idle != 0 { idle } else { allowed }.trailing_zeros();
    let entry = shared.core(number).ok_or(SpawnError::NoCore)?;
    let slot = single(entry).ok_or_else(why_no_slot)?;
    entry.count_live_remote();
    sched::post_new(&Global, slot, task, builder.rank, entry.state.index() as u16).ok_or(SpawnError::NoMemory)
}

/// A processor's part of a machine. Stays on the processor that started it.
pub struct Core<P: Platform> {
    pub(crate) entry: &'static CoreEntry,
    shared: &'static Shared,
    platform: PhantomData<*const P>,
}

impl<P: Platform> Core<P> {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.entry.state.number()
    }

    /// Its counters.
    #[inline(always)]
    pub fn statistics(&self) -> Statistics<'_> {
        Statistics(&self.entry.state)
    }

    /// Serves a level below the most urgent ready one at every `every`-th turn, in rotation, but nothing at the cost
    /// of a level more urgent than `from`. 0, the default: never.
    pub fn set_share(&self, every: u32, from: u8) {
        self.entry.state.set_share(every);
        self.entry.state.set_share_from(from);
    }

    /// Runs one turn of the most urgent ready coroutine, of another core if none is ready here. `false` if there was
    /// none: then it is time to park.
    #[inline]
    pub fn run_one(&self) -> bool {
        let Some(picked) = self.entry.state.pick(&Global).or_else(|| self.steal()) else { return false };
        if let Some(target) = elsewhere(self.shared, self.entry, &picked) {
            self.entry.state.hand_over(&Global, picked.id, picked.slot, target);
            return true;
        }
        P::before_turn(self.number(), picked.id, picked.level);
        #[cfg(feature = "std")]
        crate::threads::enter(self.entry, || turn::run(self.entry, picked));
        #[cfg(not(feature = "std"))]
        turn::run(self.entry, picked);
        true
    }

    /// Within a turn: puts it aside, so that the core can run others while the poll stands where it is, on a stack of
    /// its own. The coroutine counts as running meanwhile: it is not polled, and wakes are kept for it.
    ///
    /// # Safety
    /// The turn does not end before [`Core::take_up`] has been called with what this returns.
    pub unsafe fn put_aside(&self) -> AsideTurn {
        self.entry.put_aside()
    }

    /// Goes on with a turn that was put aside.
    ///
    /// # Safety
    /// It was put aside on this core, and has not been taken up. No other turn goes on here, but those put aside.
    pub unsafe fn take_up(&self, turn: AsideTurn) {
        self.entry.take_up(turn);
    }

    /// Within a turn: makes the coroutine whose waker this is ready again, as the waker would, for less. `false` if
    /// it isn't its turn here, or one within another's: then nothing has happened.
    #[inline]
    pub fn yield_current(&self, waker: &Waker) -> bool {
        waker::id_of(waker).is_some_and(|id| self.entry.wake_current(id.to_bits()))
    }

    fn steal(&self) -> Option<Picked<'static>> {
        steal_for(self.shared, self.entry, P::heavy_barrier).then(|| self.entry.state.pick(&Global))?
    }

    /// Takes one ready coroutine of `levels`, a bit each, from another core into this one's queue. `false` if there was
    /// none.
    pub fn pull(&self, levels: u64) -> bool {
        victims(self.shared, self.entry).any(|victim| {
            victim.state.ready().bitmap() & levels != 0
                && sched::steal(&Global, &self.entry.state, &victim.state, levels, 1, P::heavy_barrier) != 0
        })
    }

    /// Announces that the core is about to sleep. `true`: nothing is ready, and whoever posts from now on kicks it;
    /// the processor may sleep, but must not miss a kick between this call and its sleep. [`Core::unpark`] follows
    /// the sleep. `false`: there is work.
    pub fn try_park(&self) -> bool {
        if !self.entry.state.expose(WATCH_PARKED) {
            return false;
        }
        self.shared.set_idle(self.number(), true);
        true
    }

    /// Ends what [`Core::try_park`] announced.
    pub fn unpark(&self) {
        self.entry.state.inbox().cover();
        self.shared.set_idle(self.number(), false);
    }

    /// Takes the first ready coroutine that is more urgent than `rank`, orders within a level included, from another
    /// core into this one's queue. `false` if there was none; `true` also if another core was at such a queue: then
    /// there may be one, and the caller looks again before it runs anything less urgent.
    pub fn pull_before(&self, rank: Rank) -> bool {
        victims(self.shared, self.entry).any(|victim| {
            let ready = victim.state.ready();
            (!victim.state.inbox().is_empty() || ready.is_before(rank))
                && sched::steal_before(&Global, &self.entry.state, &victim.state, rank, P::heavy_barrier)
        })
    }

    /// The rank of the most urgent coroutine that is queued here, and the cores it may run on.
    pub fn first_waiting(&self) -> Option<(Rank, u64)> {
        self.entry.state.first_queued(&Global, |slot| (slot.rank(), task::cores_of(slot)))
    }

    /// About to run a program, outside of the scheduler, at `rank`: whoever posts something more urgent from now on
    /// kicks the core, until [`Core::enter_kernel`]. `false` if something more urgent is ready already: then the
    /// running coroutine should give way. Other ready coroutines are offered to idle cores.
    pub fn enter_program(&self, rank: Rank) -> bool {
        self.entry.state.drain(&Global);
        if !self.entry.state.expose_program(rank) {
            return false;
        }
        if self.entry.state.ready().bitmap() != 0 && self.shared.idle.load(Ordering::Relaxed) != 0 {
            self.offer();
        }
        true
    }

    /// Kicks an idle core that may run something of what is queued here, if there is one.
    #[cold]
    fn offer(&self) {
        let (idle, mut able) = (self.shared.idle.load(Ordering::Relaxed), 0);
        let is_wanted = |slot: &sched::Slot| {
            able = task::cores_of(slot) & idle;
            able != 0
        };
        if self.entry.state.is_any_queued(&Global, is_wanted) {
            self.shared.kick_idle(able);
        }
    }

    /// Back from a program: posts need not kick any more.
    pub fn enter_kernel(&self) {
        self.entry.state.inbox().cover();
    }

    /// Whether something more urgent than `rank` is ready here, requests in the inbox included.
    #[inline]
    pub fn should_yield(&self, rank: Rank) -> bool {
        self.entry.state.drain(&Global);
        self.entry.state.ready().is_before(rank)
    }
}

/// Where the picked coroutine must run, if it may not run on `entry`.
#[inline(always)]
pub(crate) fn elsewhere(
    shared: &Shared,
    entry: &CoreEntry,
    picked: &Picked<'_>,
) -> Option<&'static sched::CoreState> {
    let mask = task::cores_of(picked.slot);
    if mask >> entry.state.number() & 1 != 0 {
        return None;
    }
    let allowed = mask & shared.regular();
    shared.core(allowed.trailing_zeros()).map(|entry| &entry.state)
}

/// Started cores other than `thief` from which something might be taken, from the next number up.
pub(crate) fn victims<'a>(
    shared: &'a Shared,
    thief: &'a CoreEntry,
) -> impl Iterator<Item = &'static CoreEntry> + 'a {
    let number = thief.state.number();
    let others = shared.started.load(Ordering::Acquire) & !(1 << (number & 63));
    let mut left = others.rotate_right(number & 63);
    core::iter::from_fn(move || {
        while left != 0 {
            let bit = left.trailing_zeros();
            left &= left.wrapping_sub(1);
            if let Some(core) = shared.core((bit + number) & 63)
                && core.state.has_work()
            {
                return Some(core);
            }
        }
        None
    })
}

/// Takes work from other cores into the queue of `thief`, the calling core; returns whether there was any.
pub(crate) fn steal_for(shared: &Shared, thief: &CoreEntry, heavy: fn()) -> bool {
    victims(shared, thief)
        .any(|victim| sched::steal(&Global, &thief.state, &victim.state, u64::MAX, sched::BATCH, heavy) != 0)
}

/// Takes what is more urgent than the best of `thief`, the calling core, from another core.
#[cfg(feature = "std")]
pub(crate) fn steal_urgent(shared: &Shared, thief: &CoreEntry, heavy: fn()) {
    let own = thief.state.ready().bitmap();
    if own == 0 {
        return;
    }
    let above = (own & own.wrapping_neg()).wrapping_sub(1);
    for victim in victims(shared, thief) {
        if victim.state.ready().bitmap() & above != 0 {
            sched::steal(&Global, &thief.state, &victim.state, above, 1, heavy);
        }
    }
}
