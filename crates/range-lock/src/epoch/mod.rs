//! Epoch-based reclamation with recycled blocks.
//!
//! A reader pins its [`Participant`] for the length of a search: it announces the global epoch it began in. A block
//! that was unlinked waits in the unlinking participant's limbo until every reader that began by then is gone, and then
//! becomes that participant's next allocation. Nothing on the retiring side allocates: limbo and free lists are linked
//! through the blocks themselves.
//!
//! `crossbeam-epoch` was not taken because registering, deferring and sealing a bag of it allocate without a way
//! to report failure, and because it returns memory to the allocator instead of to the next acquisition.
//!
//! Narrower announcements (hazard pointers, intervals of epochs) would keep less back for a reader that is preempted,
//! but they need every read to be of what is still linked, and a chunk's slots go on naming nodes that its successor
//! has let go.
#![allow(unsafe_code)] // Raw blocks are linked, recycled and handed out here; every other module goes through this.

mod block;
mod list;
mod local;
#[cfg(heddle_loom)]
mod model;
mod slab;
#[cfg(all(feature = "std", not(heddle_loom)))]
mod thread;

use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};

use crate::sync::{AtomicPtr, AtomicUsize, Ordering, const_fn, fence};

pub(crate) use block::Header;
use local::Local;
#[cfg(heddle_loom)]
pub use model::ModelEpoch;
use slab::Pool;
#[cfg(all(feature = "std", not(heddle_loom)))]
pub use thread::{ThreadEpoch, ThreadSlot};

/// Retired blocks that are worth a collection, at least.
const PATIENCE: usize = if cfg!(heddle_loom) { 1 } else { 40 };

/// Memory could not be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

/// The default source of participants: the running thread's, under `std`.
#[cfg(all(feature = "std", not(heddle_loom)))]
pub type DefaultEpoch = ThreadEpoch;
/// The default source of participants: any idle one, claimed for the length of each operation.
#[cfg(not(any(feature = "std", heddle_loom)))]
pub type DefaultEpoch = SharedEpoch;
/// Under loom: the model's threads'.
#[cfg(heddle_loom)]
pub type DefaultEpoch = ModelEpoch;

/// How the running context (thread, CPU) finds its [`Participant`].
///
/// # Safety
/// `with` passes a participant that no other context uses until the closure returns, and always participants of
/// one and the same [`Domain`]. Nested calls in one context may pass the same participant. The participant of `at_hand`
/// is as good until the operation that asked for it returns.
pub unsafe trait Epoch {
    /// Runs `f` with this context's participant; fails where one had to be allocated and could not be.
    fn with<R>(f: impl FnOnce(Context) -> R) -> Result<R, OutOfMemory>;

    /// This context's participant, where it is at hand without a call: spares the common path what a closure costs.
    #[inline]
    fn at_hand() -> Option<Context> {
        None
    }

    /// Runs `f` with some participant, without ever allocating: the way a release takes.
    fn with_any<R>(f: impl FnOnce(Context) -> R) -> R;
}

/// Everything that reads one another's blocks: a global epoch and the list of participants.
pub struct Domain {
    epoch: AtomicUsize,
    participants: AtomicPtr<Participant>,
    count: AtomicUsize,
    pool: Pool,
    /// For releases by contexts that have no participant when none is idle.
    reserve: Participant,
}

/// One context's part in a [`Domain`]: whether it is reading, its limbo and its free blocks.
#[repr(align(128))] // Two lines: neighbours prefetch in pairs, and every pin writes here.
pub struct Participant {
    /// The epoch this participant began to read in; 0 while it does not read.
    since: AtomicUsize,
    claimed: AtomicUsize,
    /// Not 0 once a domain has it.
    attached: AtomicUsize,
    next: AtomicPtr<Participant>,
    local: UnsafeCell<Local>,
}

// SAFETY: `local` is only touched by the context that holds the participant's claim (the contract of `Context::new`
// and of `Epoch::with`); the other fields are atomics.
unsafe impl Sync for Participant {}
// SAFETY: the blocks in `local` are plain memory that belongs to no thread.
unsafe impl Send for Participant {}

impl Participant {
    const_fn! {
        /// An idle participant, for [`Domain::attach`].
        pub fn new() -> Self {
            Self {
                since: AtomicUsize::new(0),
                claimed: AtomicUsize::new(0),
                attached: AtomicUsize::new(0),
                next: AtomicPtr::new(ptr::null_mut()),
                local: UnsafeCell::new(Local::new()),
            }
        }
    }

    /// Whether its context is in an operation. For the context itself, to check that it is in none.
    pub fn is_reading(&self) -> bool {
        self.since.load(Ordering::Relaxed) != 0
    }

    fn claim(&self) -> bool {
        self.claimed.load(Ordering::Relaxed) == 0
            && self.claimed.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn give_back(&self) {
        self.claimed.store(0, Ordering::Release);
    }
}

impl fmt::Debug for Participant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Participant").field("claimed", &self.claimed).finish_non_exhaustive()
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain").field("held_bytes", &self.pool.bytes()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

impl Default for Participant {
    fn default() -> Self {
        Self::new()
    }
}

impl Domain {
    const_fn! {
        /// A domain without participants.
        pub fn new() -> Self {
            Self {
                epoch: AtomicUsize::new(1),
                participants: AtomicPtr::new(ptr::null_mut()),
                count: AtomicUsize::new(1),
                pool: Pool::new(),
                reserve: Participant::new(),
            }
        }
    }

    /// Adds a participant that the caller placed itself (a kernel's per-CPU data). It starts idle; whoever uses it
    /// through [`Context::new`] must be its only user, so claim it with [`Domain::claim_attached`] for good.
    ///
    /// A participant belongs to one domain: returns `false`, without any effect, if this or another domain has it.
    pub fn attach(&'static self, participant: &'static Participant) -> bool {
        // Relaxed: only the one who sets it goes on.
        if participant.attached.swap(1, Ordering::Relaxed) != 0 {
            return false;
        }
        let new = ptr::from_ref(participant).cast_mut();
        let mut head = self.participants.load(Ordering::Relaxed);
        loop {
            participant.next.store(head, Ordering::Relaxed);
            // Release: the participant; those it leads to were released by whoever attached them.
            match self.participants.compare_exchange(head, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Claims an attached participant for one context; `false` if it is taken already.
    pub fn claim_attached(&self, participant: &'static Participant) -> bool {
        participant.claim()
    }

    /// Claims an idle participant, or allocates one.
    pub fn claim(&'static self) -> Result<&'static Participant, OutOfMemory> {
        if let Some(idle) = self.claim_idle() {
            return Ok(idle);
        }
        let layout = core::alloc::Layout::new::<Participant>();
        // SAFETY: the layout is not zero-sized.
        let raw = unsafe { alloc::alloc::alloc(layout) }.cast::<Participant>();
        let place = NonNull::new(raw).ok_or(OutOfMemory)?;
        // SAFETY: freshly allocated with this type's layout, and never freed: a participant lives as long as its
        // domain, which is `'static`.
        let participant: &'static Participant = unsafe {
            place.write(Participant::new());
            place.as_ref()
        };
        participant.claim();
        self.attach(participant);
        Ok(participant)
    }

    fn claim_idle(&'static self) -> Option<&'static Participant> {
        self.iter().find(|participant| participant.claim())
    }

    /// Gives a claimed participant back; its limbo stays with it for the next claimant.
    ///
    /// # Safety
    /// The caller holds the claim, and no [`Context`] of it is in use.
    pub unsafe fn release(&'static self, participant: &'static Participant) {
        // SAFETY: the caller holds the claim.
        let context = unsafe { Context::new(self, participant) };
        context.collect();
        context.drain();
        participant.give_back();
    }

    /// Runs `f` with an idle participant, or with the reserve when every other one is taken: never allocates,
    /// and waits only for another context in the same plight.
    pub fn with_idle<R>(&'static self, f: impl FnOnce(Context) -> R) -> R {
        struct GiveBack(&'static Participant);
        impl Drop for GiveBack {
            fn drop(&mut self) {
                self.0.give_back();
            }
        }
        let participant = self.claim_idle().unwrap_or_else(|| {
            while !self.reserve.claim() {
                core::hint::spin_loop();
            }
            &self.reserve
        });
        let claim = GiveBack(participant);
        // SAFETY: claimed above, given back by the guard when `f` is through.
        f(unsafe { Context::new(self, claim.0) })
    }

    /// Gives the free blocks of idle participants back to the allocator, and what is in their limbo if no one reads:
    /// that of contexts that have ended, for instance.
    pub fn trim(&'static self) {
        for participant in self.iter().filter(|participant| participant.claim()) {
            // SAFETY: claimed by the filter, and used by no one else.
            unsafe { self.release(participant) };
        }
        self.pool.open().trim();
    }

    /// Bytes the domain holds from the allocator: slabs with blocks in use, in limbo or free, and blocks too large for
    /// one. Exact when its participants are quiet.
    pub fn held_bytes(&'static self) -> usize {
        self.pool.bytes()
    }

    fn iter(&'static self) -> impl Iterator<Item = &'static Participant> {
        let mut at = self.participants.load(Ordering::Acquire);
        core::iter::from_fn(move || {
            // SAFETY: participants are `'static` and their `next` is written before they are published.
            let participant: &'static Participant = unsafe { at.as_ref()? };
            at = participant.next.load(Ordering::Relaxed);
            Some(participant)
        })
    }

    /// Moves the epoch on. Returns an epoch below which every reader has begun later: what the caller unlinked in an
    /// earlier one is out of reach.
    fn advance(&'static self) -> (usize, usize) {
        // Release: what is unlinked, for readers that begin in the new epoch; their fence behind the announcement
        // acquires it.
        let epoch = self.epoch.fetch_add(1, Ordering::Release);
        // Against the one in `announce`: either the scan below sees a reader, or the reader sees what is unlinked, and
        // that the epoch has moved on.
        fence(Ordering::SeqCst);
        let mut oldest = usize::MAX;
        for participant in self.iter().chain([&self.reserve]) {
            // Acquire: its earlier reads happen before the reuse that this allows.
            let since = participant.since.load(Ordering::Acquire);
            if since != 0 {
                oldest = oldest.min(since);
            }
        }
        (epoch, oldest)
    }
}

impl Default for Domain {
    fn default() -> Self {
        Self::new()
    }
}

/// A participant in the hands of the context that may use it now.
#[derive(Clone, Copy)]
pub struct Context {
    domain: &'static Domain,
    participant: &'static Participant,
    /// Neither sent nor shared: the claim belongs to the running context.
    _here: PhantomData<*const ()>,
}

impl Context {
    /// Takes up a participant.
    ///
    /// # Safety
    /// The participant is attached to `domain`, and no other context uses it while this value or a copy is in use.
    pub unsafe fn new(domain: &'static Domain, participant: &'static Participant) -> Self {
        Self { domain, participant, _here: PhantomData }
    }

    /// Starts reading: until the pin is dropped, nothing reachable now is reused.
    #[inline]
    pub(crate) fn pin(&self) -> Pin {
        // SAFETY: this context alone uses the participant, and the reference ends with this statement.
        let outermost = unsafe { (*self.participant.local.get()).enter() };
        if outermost {
            let epoch = self.domain.epoch.load(Ordering::Relaxed);
            announce(&self.participant.since, epoch);
        }
        Pin { context: *self }
    }

    /// Starts reading in an earlier pin's epoch, if that is the present one still: what was reachable under that pin
    /// was not reused meanwhile, nor is it until this one is dropped.
    #[inline]
    pub(crate) fn pin_in(&self, epoch: usize) -> Option<Pin> {
        let is_present = || self.domain.epoch.load(Ordering::Relaxed) == epoch;
        if !is_present() {
            return None;
        }
        // SAFETY: as in `pin`.
        if unsafe { (*self.participant.local.get()).enter() } {
            announce(&self.participant.since, epoch);
        }
        let pin = Pin { context: *self };
        // Again: a scan that missed the announcement has moved the epoch on before.
        is_present().then_some(pin)
    }

    /// Whether an acquisition is likely to leave before another comes by, as this participant's last ones did or not.
    #[inline]
    pub(crate) fn may_pass(&self) -> bool {
        // SAFETY: as in `pin`.
        cfg!(heddle_loom) || unsafe { (*self.participant.local.get()).may_pass() }
    }

    /// Notes whether one has.
    #[inline]
    pub(crate) fn note_passing(&self, passed: bool) {
        // SAFETY: as in `pin`.
        unsafe { (*self.participant.local.get()).note_passing(passed) }
    }

    /// A block of at least `size` bytes, aligned to 64, its header written.
    #[inline]
    pub(crate) fn alloc(&self, size: usize) -> Result<NonNull<Header>, OutOfMemory> {
        // SAFETY: as in `pin`.
        if let Some(block) = unsafe { (*self.participant.local.get()).take(size) } {
            return Ok(block);
        }
        self.alloc_slow(size)
    }

    #[cold]
    fn alloc_slow(&self, size: usize) -> Result<NonNull<Header>, OutOfMemory> {
        // SAFETY: as in `pin`.
        if unsafe { (*self.participant.local.get()).worth_collecting() } {
            self.collect();
            // SAFETY: as in `pin`.
            if let Some(block) = unsafe { (*self.participant.local.get()).take(size) } {
                return Ok(block);
            }
        }
        let pool = &self.domain.pool;
        if let Some((class, _)) = block::class_of(size).filter(|(class, _)| slab::is_cut(*class)) {
            let mut blocks = pool.take(class);
            // SAFETY: as in `pin`.
            return unsafe {
                (*self.participant.local.get()).refill(class, &mut blocks);
                (*self.participant.local.get()).take(size).ok_or(OutOfMemory)
            };
        }
        let block = block::allocate(size).ok_or(OutOfMemory)?;
        pool.count_taken(block::size_of(block));
        Ok(block)
    }

    /// Takes back a block that no other context has seen, or can see any more.
    ///
    /// # Safety
    /// The block came from `alloc` in this domain, and no one else reads it.
    #[inline]
    pub(crate) unsafe fn free(&self, block: NonNull<Header>) {
        // SAFETY: as in `pin`; the block is exclusively the caller's.
        if let Some(surplus) = unsafe { (*self.participant.local.get()).put(block) } {
            self.give(&mut [surplus].into_iter());
        }
    }

    /// [`Self::free`] for a block that was allocated for a `B`.
    ///
    /// # Safety
    /// As there.
    #[inline]
    pub(crate) unsafe fn free_sized<B>(&self, block: NonNull<B>) {
        let block = block.cast();
        let Some((_, size)) = block::class_of(size_of::<B>()) else {
            // SAFETY: the caller's contract.
            return unsafe { self.free(block) };
        };
        // SAFETY: as in `pin`; the block is exclusively the caller's, and its size is that of its class.
        if let Some(surplus) = unsafe { (*self.participant.local.get()).put_sized(block, size) } {
            self.give(&mut [surplus].into_iter());
        }
    }

    /// Moves the epoch on, and makes free what its limbo no longer needs to keep.
    #[cold]
    pub(crate) fn collect(&self) {
        let (epoch, oldest) = self.domain.advance();
        // SAFETY: as in `pin`.
        unsafe { (*self.participant.local.get()).settle(epoch) };
        // SAFETY: as in `pin`.
        let mut others = unsafe { (*self.participant.local.get()).reclaim(oldest) };
        let others = core::iter::from_fn(|| {
            let block = NonNull::new(others)?;
            // SAFETY: the list is this context's now.
            others = unsafe { block::link(block) };
            Some(block)
        });
        // SAFETY: as in `pin`.
        let surplus = core::iter::from_fn(|| unsafe { (*self.participant.local.get()).pop_surplus() });
        self.give(&mut others.chain(surplus));
    }

    /// Collects if what is retired is worth to scan all participants, and again what was kept back before.
    #[cold]
    fn collect_patiently(&self, waiting: usize) {
        // SAFETY: as in `pin`.
        let kept_back = unsafe { (*self.participant.local.get()).kept_back() };
        if cfg!(heddle_loom)
            || waiting >= PATIENCE + 2 * self.domain.count.load(Ordering::Relaxed) + kept_back / 2
        {
            self.collect();
        }
    }

    /// Gives the free blocks back to the allocator.
    fn drain(&self) {
        // SAFETY: as in `pin`.
        self.give(&mut core::iter::from_fn(|| unsafe { (*self.participant.local.get()).pop_any() }));
    }

    /// Gives blocks up that `Local` handed out as surplus.
    #[cold]
    fn give(&self, blocks: &mut dyn Iterator<Item = NonNull<Header>>) {
        let pool = &self.domain.pool;
        // Some at a time, so that nobody waits for long; what follows the links is cold.
        loop {
            let mut session = None;
            for _ in 0..32 {
                let Some(block) = blocks.next() else { return };
                let size = block::size_of(block);
                if block::class_of_rounded(size).is_some_and(slab::is_cut) {
                    // SAFETY: cut from a slab of this domain's, and nothing links to it.
                    unsafe { session.get_or_insert_with(|| pool.open()).give(block) };
                } else {
                    session = None;
                    pool.count_given(size);
                    // SAFETY: taken from the allocator, and nothing links to it.
                    unsafe { block::deallocate(block) };
                }
            }
        }
    }
}

/// Announces an epoch to read in, before every read that follows.
#[inline]
fn announce(state: &AtomicUsize, value: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri), not(heddle_loom)))]
    {
        // A locked exchange is a full barrier on x86 and takes half the time of `mfence`.
        state.swap(value, Ordering::SeqCst);
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri), not(heddle_loom))))]
    {
        // Release: what was read under an earlier announcement.
        state.store(value, Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

/// A reading participant. The blocks that it reaches stay in place until it is dropped.
pub(crate) struct Pin {
    context: Context,
}

impl Pin {
    /// The participant that is pinned.
    #[inline]
    pub(crate) fn context(&self) -> Context {
        self.context
    }

    /// The epoch that keeps things in place: that of the outermost pin.
    #[inline]
    pub(crate) fn since(&self) -> usize {
        self.context.participant.since.load(Ordering::Relaxed)
    }

    /// Lets a block go that this context has unlinked.
    ///
    /// # Safety
    /// The block came from `alloc` in this domain, can no longer be reached by a pin taken from now on, and is
    /// retired once.
    pub(crate) unsafe fn retire(&self, block: NonNull<Header>) {
        // SAFETY: as in `Context::pin`; the caller unlinked the block.
        unsafe { (*self.context.participant.local.get()).bury(block) }
    }

    /// Reads a pointer; what it points to stays in place as long as the pin.
    #[inline(always)]
    pub(crate) fn read<V>(&self, place: &AtomicPtr<V>) -> *mut V {
        // Acquire: what it points to.
        place.load(Ordering::Acquire)
    }
}

impl Drop for Pin {
    #[inline]
    fn drop(&mut self) {
        let participant = self.context.participant;
        // SAFETY: as in `Context::pin`.
        if let Some(waiting) = unsafe { (*participant.local.get()).leave() } {
            participant.since.store(0, Ordering::Release);
            // Only now, when this context itself no longer keeps anything back.
            if waiting >= PATIENCE {
                self.context.collect_patiently(waiting);
            }
        }
    }
}

/// Participants of one static domain, claimed for the length of each operation: for `no_std` programs without
/// thread-locals. A kernel passes its CPU's own participant instead (see the README, "In a kernel").
#[cfg(not(heddle_loom))]
#[derive(Clone, Copy, Debug, Default)]
pub struct SharedEpoch;

#[cfg(not(heddle_loom))]
static SHARED: Domain = Domain::new();

// SAFETY: a participant is claimed before and given back after the closure runs, always in `SHARED`.
#[cfg(not(heddle_loom))]
unsafe impl Epoch for SharedEpoch {
    fn with<R>(f: impl FnOnce(Context) -> R) -> Result<R, OutOfMemory> {
        if let Some(idle) = SHARED.claim_idle() {
            idle.give_back();
        } else {
            SHARED.claim()?.give_back();
        }
        Ok(SHARED.with_idle(f))
    }

    fn with_any<R>(f: impl FnOnce(Context) -> R) -> R {
        SHARED.with_idle(f)
    }
}
