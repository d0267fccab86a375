//! A core as the executors know it: scheduling state, who runs on it, and how to disturb it.
#![allow(unsafe_code)] // Hooks and machines are kept as atomic pointers to statics, because cores are reused.

#[cfg(all(feature = "std", feature = "scheduler"))]
use crate::machine::MACHINE_CORES;
use crate::machine::Shared;
use crate::sched::{CoreState, Id, Rank, Stealing, Table};
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering, compiler_fence};
use core::ptr;

/// Functions that differ between platforms and need no context.
pub(crate) struct Hooks {
    /// Makes the core look at its inbox.
    pub kick: fn(&CoreEntry),
    /// Whether the caller runs on the core.
    pub is_here: fn(&CoreEntry) -> bool,
    /// Something of this level was left with the core, which goes on with what is no less urgent.
    pub left: fn(&CoreEntry, u8),
}

/// A core. Entries are never freed: a late waker may still look at one.
#[repr(C, align(128))]
pub(crate) struct CoreEntry {
    pub state: CoreState,
    /// The id of the coroutine that is being polled, 0 if none; with [`NESTED`] in a turn within another's.
    current: AtomicU64,
    /// 1: the coroutine whose turn goes on, not within another's, is ready again when it ends. The thread itself writes
    /// it, and handlers that interrupt it, and only while `current` is the bare id.
    woken: AtomicU32,
    /// Coroutines spawned here less coroutines ended here, modulo 2^64: only sums over a machine mean something.
    live: AtomicU64,
    /// Coroutines that were spawned into the inbox.
    live_posted: AtomicU64,
    taken: AtomicU32,
    /// Level of the coroutine that is being polled, in an executor of several threads.
    pub running: AtomicU32,
    /// The word on which the core's thread sleeps.
    #[allow(dead_code)]
    pub parker: AtomicU32,
    /// 1: a thread runs the core.
    thread: AtomicU32,
    /// Memory of ended coroutines. Owner's thread only.
    #[cfg(feature = "std")]
    pub blocks: crate::blocks::Blocks,
    /// Chunks of the table from which it has had slots since an executor took it.
    #[cfg(feature = "std")]
    pub chunks: crate::registry::ChunkSet,
    /// 1: the core's thread sleeps in the reactor, not on `parker`.
    #[cfg(feature = "std")]
    pub polling: AtomicU32,
    hooks: AtomicPtr<Hooks>,
    shared: AtomicPtr<Shared>,
}

/// In `current`: no wake goes by `woken`, which is another turn's. No id has this bit, since indices have 24.
const NESTED: u64 = 1 << 31;

/// A turn that was put aside: see [`Core::put_aside`](crate::Core::put_aside).
#[derive(Debug)]
#[must_use = "the turn has to be taken up again"]
pub struct AsideTurn {
    current: u64,
    woken: u32,
}

impl CoreEntry {
    pub fn new(index: u16) -> CoreEntry {
        let state = CoreState::new();
        state.set_index(index, 0);
        CoreEntry {
            state,
            current: AtomicU64::new(0),
            woken: AtomicU32::new(0),
            live: AtomicU64::new(0),
            live_posted: AtomicU64::new(0),
            taken: AtomicU32::new(0),
            running: AtomicU32::new(0),
            parker: AtomicU32::new(0),
            thread: AtomicU32::new(0),
            #[cfg(feature = "std")]
            blocks: crate::blocks::Blocks::new(),
            #[cfg(feature = "std")]
            chunks: crate::registry::ChunkSet::new(),
            #[cfg(feature = "std")]
            polling: AtomicU32::new(0),
            hooks: AtomicPtr::new(ptr::null_mut()),
            shared: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Takes the entry for an executor, unless another has it.
    pub fn try_take(&self) -> bool {
        self.taken.load(Ordering::Relaxed) == 0
            && self.taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Sets up a taken entry as core `number` of the machine `shared`, if any.
    pub fn set_up(&self, number: u32, hooks: &'static Hooks, shared: *const Shared, stealing: Stealing) {
        self.state.set_index(self.state.index() as u16, number);
        self.state.set_share(0);
        self.state.set_share_from(0);
        self.state.inbox().cover();
        self.state.gate().set_stealing(stealing);
        self.live.store(0, Ordering::Relaxed);
        self.live_posted.store(0, Ordering::Relaxed);
        #[cfg(feature = "std")]
        self.chunks.clear();
        self.shared.store(shared.cast_mut(), Ordering::Relaxed);
        self.hooks.store(ptr::from_ref(hooks).cast_mut(), Ordering::Release);
    }

    /// Gives a taken entry back. Its queues are empty and no thread runs on it.
    #[allow(dead_code)]
    pub fn give_back(&self) {
        self.shared.store(ptr::null_mut(), Ordering::Relaxed);
        self.taken.store(0, Ordering::Release);
    }

    /// Says whether a thread runs the core.
    #[cfg(feature = "std")]
    pub fn set_thread(&self, runs: bool) {
        self.thread.store(runs as u32, Ordering::SeqCst);
    }

    /// Whether a thread runs the core.
    #[cfg(feature = "std")]
    pub fn has_thread(&self) -> bool {
        self.thread.load(Ordering::SeqCst) != 0
    }

    /// In a forked child, where the core's thread, if it had one, is gone.
    #[cfg(all(feature = "std", feature = "scheduler"))]
    pub fn lose_thread(&self) {
        // SAFETY: null, or a machine of an `Executor`, which is never freed.
        if let Some(shared) = unsafe { self.shared().as_ref() }.filter(|_| self.has_thread()) {
            self.set_thread(false);
            shared.remove(self.state.number());
        }
    }

    /// In a forked child, on the core's thread: no other thread serves its machine.
    #[cfg(all(feature = "std", feature = "scheduler"))]
    pub fn stay_alone(&self) {
        // SAFETY: as above.
        if let Some(shared) = unsafe { self.shared().as_ref() } {
            shared.stay_alone();
        }
    }

    /// Disturbs an idle core of the same machine.
    #[cfg(feature = "std")]
    pub fn kick_another(&self) {
        // SAFETY: null, or a machine of an `Executor`, which is never freed.
        if let Some(shared) = unsafe { self.shared().as_ref() } {
            shared.kick_idle(u64::MAX);
        }
    }

    /// The machine of which it is a core, if that is an executor's of several threads.
    #[cfg(feature = "std")]
    pub fn pool(&self) -> Option<&Shared> {
        // SAFETY: as above.
        unsafe { self.shared().as_ref() }
    }

    /// The cores of its machine, or itself.
    #[cfg(all(feature = "std", feature = "scheduler"))]
    pub fn cores_of_machine(&'static self) -> std::vec::Vec<&'static CoreEntry> {
        let machine =
            |shared: &Shared| (0..MACHINE_CORES as u32).filter_map(|core| shared.core(core)).collect();
        self.pool().map_or_else(|| std::vec::Vec::from([self]), machine)
    }

    /// Whether something was left with the core in reserve, which sleeps, for this one to take.
    #[cfg(feature = "std")]
    pub fn is_more_in_reserve(&self) -> bool {
        let reserve = self.pool().and_then(Shared::reserve_core);
        reserve.is_some_and(|reserve| !reserve.is_in_turn() && !reserve.state.inbox().is_empty())
    }

    #[inline(always)]
    fn hooks(&self) -> Option<&'static Hooks> {
        // SAFETY: null or from a `&'static Hooks` in `set_up`.
        unsafe { self.hooks.load(Ordering::Acquire).as_ref() }
    }

    /// Makes the core look at its inbox.
    pub fn kick(&self) {
        if let Some(hooks) = self.hooks() {
            (hooks.kick)(self);
        }
    }

    /// Something of `level` was left with the core, which goes on with what is no less urgent.
    pub fn left(&self, level: u8) {
        if let Some(hooks) = self.hooks() {
            (hooks.left)(self, level);
        }
    }

    /// Whether the caller runs on this core.
    #[cfg_attr(feature = "std", allow(dead_code))]
    #[inline(always)]
    pub fn is_here(&self) -> bool {
        self.hooks().is_some_and(|hooks| (hooks.is_here)(self))
    }

    /// The machine of which this is a core; null for an executor of one thread.
    #[inline(always)]
    pub fn shared(&self) -> *const Shared {
        self.shared.load(Ordering::Relaxed)
    }

    /// Whether something more urgent than what is being polled here is queued here.
    pub fn has_more_urgent(&self) -> bool {
        self.state.ready().bitmap().trailing_zeros() < self.running.load(Ordering::Relaxed)
    }

    /// Whether a turn goes on here, of an executor of several threads.
    #[cfg(feature = "std")]
    pub fn is_in_turn(&self) -> bool {
        self.running.load(Ordering::Relaxed) < crate::sched::LEVELS as u32
    }

    /// The coroutine that is being polled on this core.
    #[inline(always)]
    pub fn current(&self) -> Option<Id> {
        Id::from_bits(self.current_bits() & !NESTED)
    }

    #[inline(always)]
    fn current_bits(&self) -> u64 {
        self.current.load(Ordering::Relaxed)
    }

    /// Owner: a turn of `id` begins. Returns what [`CoreEntry::end_turn`] needs to go back to the turn that goes on
    /// around it, if any.
    #[inline(always)]
    pub fn begin_turn(&self, id: Id) -> u64 {
        let outer = self.current_bits();
        if outer == 0 {
            self.current.store(id.to_bits(), Ordering::Relaxed);
        } else {
            self.begin_nested(id);
        }
        outer
    }

    #[cold]
    #[inline(never)]
    fn begin_nested(&self, id: Id) {
        self.current.store(id.to_bits() | NESTED, Ordering::Relaxed);
    }

    /// Owner: the turn ends. Returns whether the coroutine was woken in it by [`CoreEntry::wake_current`].
    #[inline(always)]
    pub fn end_turn(&self, outer: u64) -> bool {
        self.current.store(outer, Ordering::Relaxed);
        // From here on a handler that wakes the coroutine goes through the gate; what one did before is seen below.
        compiler_fence();
        if outer != 0 || self.woken.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.woken.store(0, Ordering::Relaxed);
        true
    }

    /// Owner, or a handler on its thread: if a turn of `id` goes on here, and not within another turn, it is ready
    /// again when the turn ends. `false` if not: then nothing has happened.
    #[inline(always)]
    pub fn wake_current(&self, id: u64) -> bool {
        let is_current = self.current_bits() == id;
        if is_current {
            self.woken.store(1, Ordering::Relaxed);
        }
        is_current
    }

    /// Owner: whether the coroutine whose turn goes on was woken by [`CoreEntry::wake_current`].
    pub fn is_current_woken(&self) -> bool {
        self.woken.load(Ordering::Relaxed) != 0
    }

    /// Owner: puts the turn that goes on aside, so that others are no turns within it. Wakes of its coroutine are
    /// noted in its slot from here on.
    pub fn put_aside(&self) -> AsideTurn {
        let current = self.current.swap(0, Ordering::Relaxed);
        // A handler that wakes the coroutine goes through the gate now; what one did before is in the word.
        compiler_fence();
        AsideTurn { current, woken: self.woken.swap(0, Ordering::Relaxed) }
    }

    /// Owner, with no turn going on: takes a turn up again.
    pub fn take_up(&self, turn: AsideTurn) {
        self.woken.store(turn.woken, Ordering::Relaxed);
        self.current.store(turn.current, Ordering::Relaxed);
    }

    /// Its share of the machine's number of living coroutines.
    #[allow(dead_code)]
    pub fn live(&self) -> u64 {
        self.live.load(Ordering::Relaxed).wrapping_add(self.live_posted.load(Ordering::Relaxed))
    }

    /// Anybody: counts a spawn into the inbox.
    pub fn count_live_remote(&self) {
        self.live_posted.fetch_add(1, Ordering::Relaxed);
    }

    /// Owner: counts a spawn or an end.
    #[inline(always)]
    pub fn count_live(&self, change: u64) {
        let live = self.live.load(Ordering::Relaxed);
        self.live.store(live.wrapping_add(change), Ordering::Relaxed);
    }

    /// The slot of index `index` is for a coroutine of this core, which may move to others of its machine.
    pub fn note_slot(&self, index: u32) {
        #[cfg(feature = "std")]
        self.chunks.insert_of(index);
        #[cfg(not(feature = "std"))]
        let _ = index;
    }

    /// Owner: spawns into the own queue. [`why_no_slot`](crate::registry::why_no_slot) tells why it could not.
    #[inline(always)]
    pub fn spawn(&self, table: &impl Table, task: *mut (), rank: Rank) -> Option<Id> {
        loop {
            if let Some(id) = self.state.spawn(table, task, rank) {
                self.count_live(1);
                return Some(id);
            }
            if !crate::registry::refill(self) {
                return None;
            }
        }
    }
}
