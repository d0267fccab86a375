//! Makes other processors drop translations: which of them must, which have, and which operations wait for it.
//!
//! No processor spins for another one. An operation that took entries out of a page table *posts* a generation to the
//! processors that may have them cached, and what it took out is released when all of those have *acknowledged* it.
//!
//! A processor passes by flushing. It has to before it next touches memory of programs, in user mode or in a copy; one
//! that is idle or elsewhere in the kernel owes nothing until then, and counts as acknowledged. So only processors in
//! user mode are waited for.
//!
//! # Why no request is missed
//! The poster takes entries out, then reads which processors have used the space ([`Users`]), then writes their
//! requests, then reads their modes. A processor records its use, then loads the page table, then writes its mode, then
//! reads its requests, then touches memory. All of these are sequentially consistent: either the poster sees the use or
//! the processor's walk comes after the removal; either the poster sees the mode and waits, or the processor sees the
//! request and flushes first.
//!
//! A use is recorded before the page table is loaded, because a processor may walk a table for no visible reason from
//! then on. It is recorded with the number of the processor's changes of the page table, and the number goes up before
//! a change, so uses from before are void: the change itself forgets what they left.
//!
//! A generation is taken after the removal, so a processor that passes it or a later one flushes after the removal.
//!
//! A processor looks at the requests only when `attention` is set. The poster sets it after the request and before it
//! reads the mode; the processor clears it before it reads the requests. So the argument is the same.
//!
//! # Tables
//! A processor in the kernel owes no flush for a *page*: it touches no memory of programs, and drops what is cached
//! before it does. A *table* is another matter: the processor may walk its page table for no visible reason,
//! and would take what has become of a freed table for entries, cache them, and mark them as used. So a table is
//! released only when every processor that may have it in its page table has *flushed* ([`Shootdown::is_flushed`]),
//! whatever it does; those that are idle are interrupted for that, and those in the kernel come to it
//! ([`Shootdown::catch_up`]). A processor that changes its page table may walk the one before until the change is done
//! ([`Shootdown::end_root_change`]), so uses of that count until then.
//!
//! # Barriers
//! A memory barrier on every processor that runs a program (membarrier(2)) goes the same way without a flush: a change
//! of mode is a barrier, so a processor passes by changing its mode, and one that is in the kernel has passed.
//!
//! # Several spaces in one page table
//! A program that reaches into another's space caches translations although its processor never used that space. What
//! was taken out of such a table is therefore released only when *all* processors have acknowledged
//! ([`Shootdown::post_to_all`]); as no operation waits for that, one generation serves many removals.

use alloc::vec::Vec;
use core::future::poll_fn;
use core::task::{Context, Poll, Waker};

use crate::fallible::push_reserved;
use crate::tlb::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, fence, implied_fence};

#[repr(align(128))]
struct Processor {
    /// The space whose memory this processor may touch at this moment, by its identity; 0 for none.
    mode: AtomicUsize,
    /// The last generation posted to it.
    requested: AtomicU64,
    /// The last generation it acknowledged.
    acknowledged: AtomicU64,
    /// The last barrier posted to it, and the last it passed.
    barrier_requested: AtomicU64,
    barrier_passed: AtomicU64,
    /// Set after a request: it looks at the requests when it next changes its mode.
    attention: AtomicBool,
    /// Counts its changes of the page table, from 1.
    epoch: AtomicU64,
    /// The last of them that is done.
    settled: AtomicU64,
    /// On a processor that keeps translations of several roots: the one from which on its uses of tables in slots
    /// count.
    kept: AtomicU64,
}

/// The state of up to `N` processors, 32 at most.
pub struct Shootdown<const N: usize> {
    processors: [Processor; N],
    generation: AtomicU64,
    /// The last barrier.
    barrier: AtomicU64,
    /// Coroutines that wait until some processor passes.
    waiting: Mutex<Vec<Waker>>,
}

/// The processors that have used a space since they last changed their page table.
pub struct Users<const N: usize> {
    epochs: [AtomicU64; N],
}

impl<const N: usize> Default for Users<N> {
    fn default() -> Self {
        Self { epochs: core::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl<const N: usize> Users<N> {
    /// Takes over those of `other`, of which no processor records a use meanwhile that matters here.
    pub fn copy(&self, other: &Self) {
        for (own, other) in self.epochs.iter().zip(&other.epochs) {
            own.store(other.load(Ordering::SeqCst), Ordering::SeqCst);
        }
    }
}

/// A generation and the processors it was posted to.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    generation: u64,
    processors: u32,
}

impl Posted {
    /// Posted to no processor.
    pub const NONE: Self = Self { generation: 0, processors: 0 };

    /// The processors.
    #[inline]
    pub fn processors(self) -> impl Iterator<Item = usize> {
        bits(self.processors)
    }
}

/// A barrier and the processors it was posted to.
#[derive(Clone, Copy, Debug)]
pub struct PostedBarrier {
    number: u64,
    processors: u32,
}

/// The numbers of the bits that are set.
#[inline]
fn bits(mut left: u32) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let next = (left != 0).then(|| left.trailing_zeros() as usize);
        left &= left.wrapping_sub(1);
        next
    })
}

impl<const N: usize> Shootdown<N> {
    /// No processor has been asked to flush.
    #[cfg(not(heddle_loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            processors: [const {
                Processor {
                    mode: AtomicUsize::new(0),
                    requested: AtomicU64::new(0),
                    acknowledged: AtomicU64::new(0),
                    barrier_requested: AtomicU64::new(0),
                    barrier_passed: AtomicU64::new(0),
                    attention: AtomicBool::new(false),
                    epoch: AtomicU64::new(1),
                    settled: AtomicU64::new(1),
                    kept: AtomicU64::new(1),
                }
            }; N],
            generation: AtomicU64::new(0),
            barrier: AtomicU64::new(0),
            waiting: Mutex::new(Vec::new()),
        }
    }

    /// The same for models.
    #[cfg(heddle_loom)]
    #[must_use]
    pub fn new() -> Self {
        let processor = |_| Processor {
            mode: AtomicUsize::new(0),
            requested: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
            barrier_requested: AtomicU64::new(0),
            barrier_passed: AtomicU64::new(0),
            attention: AtomicBool::new(false),
            epoch: AtomicU64::new(1),
            settled: AtomicU64::new(1),
            kept: AtomicU64::new(1),
        };
        Self {
            processors: core::array::from_fn(processor),
            generation: AtomicU64::new(0),
            barrier: AtomicU64::new(0),
            waiting: Mutex::new(Vec::new()),
        }
    }

    /// To be called on processor `me` before it loads another page table, which makes it forget all translations, or
    /// all of some. Returns the number of the change.
    pub fn begin_root_change(&self, me: usize) -> u64 {
        let epoch = &self.processors[me].epoch;
        let number = epoch.load(Ordering::Relaxed) + 1;
        epoch.store(number, Ordering::Relaxed);
        number
    }

    /// To be called on processor `me` when it has loaded the page table, and has nothing of others.
    pub fn end_root_change(&self, me: usize) {
        let processor = &self.processors[me];
        processor.settled.store(processor.epoch.load(Ordering::Relaxed), Ordering::SeqCst);
    }

    /// The same on a processor that keeps translations of tables in slots: its uses of these count from change
    /// `oldest` on ([`crate::tlb::kept`]).
    pub fn end_root_change_keeping(&self, me: usize, oldest: u64) {
        self.processors[me].kept.store(oldest, Ordering::SeqCst);
        self.end_root_change(me);
    }

    /// To be called on processor `me` before it uses the space of `users`: before it loads a page table for that, if it
    /// has another one loaded, and after [`Self::begin_root_change`] then.
    #[inline]
    pub fn note(&self, me: usize, users: &Users<N>) {
        let epoch = self.processors[me].epoch.load(Ordering::Relaxed);
        if users.epochs[me].load(Ordering::Relaxed) != epoch {
            users.epochs[me].store(epoch, Ordering::SeqCst);
            implied_fence();
        }
    }

    /// Whether a processor has used the space since one of its changes of the page table.
    fn has_used(&self, processor: usize, users: &Users<N>, since: &AtomicU64) -> bool {
        // The fences of `post` and `note` order the two. If that of `note` was first, both numbers are seen, or later
        // ones, which void the use. If that of `post` was first, the walk comes after the removal, and nothing has to
        // be seen. An older number of the processor's is no harm: it then counts as one that has used the space.
        users.epochs[processor].load(Ordering::Relaxed) >= since.load(Ordering::Relaxed)
    }

    /// To be called on processor `me` before it touches memory of `space`; `flush` makes it forget all translations.
    #[inline]
    pub fn enter(&self, me: usize, space: usize, flush: impl FnOnce()) {
        self.change_mode(me, space, flush);
    }

    /// To be called on processor `me` when it no longer does.
    #[inline]
    pub fn leave(&self, me: usize, flush: impl FnOnce()) {
        self.change_mode(me, 0, flush);
    }

    #[inline]
    fn change_mode(&self, me: usize, mode: usize, flush: impl FnOnce()) {
        let processor = &self.processors[me];
        processor.mode.store(mode, Ordering::SeqCst);
        implied_fence();
        if processor.attention.load(Ordering::SeqCst) {
            self.pass(processor, flush);
        }
    }

    /// To be called on processor `me` now and then while it touches no memory of programs, and before it goes idle: it
    /// flushes if it was asked to.
    #[inline]
    pub fn catch_up(&self, me: usize, flush: impl FnOnce()) {
        let processor = &self.processors[me];
        if processor.attention.load(Ordering::SeqCst) {
            self.pass(processor, flush);
        }
    }

    #[cold]
    fn pass(&self, processor: &Processor, flush: impl FnOnce()) {
        // A request that is not seen below sets it again.
        processor.attention.swap(false, Ordering::SeqCst);
        let barrier = processor.barrier_requested.load(Ordering::SeqCst);
        processor.barrier_passed.store(barrier, Ordering::SeqCst);
        let generation = processor.requested.load(Ordering::SeqCst);
        if generation != processor.acknowledged.load(Ordering::Relaxed) {
            flush();
            // Another may have acknowledged a later one meanwhile, for this processor.
            processor.acknowledged.fetch_max(generation, Ordering::SeqCst);
        }
        let waiting = core::mem::take(&mut *self.waiting.lock());
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Asks those of `others` to flush that have used a space since they changed their page table last. The entries
    /// have been taken out before.
    #[inline]
    pub fn post(&self, others: impl Iterator<Item = usize>, users: &Users<N>) -> Posted {
        fence(Ordering::SeqCst);
        self.post_to(others.filter(|&other| self.has_used(other, users, &self.processors[other].settled)))
    }

    /// The same for a space in a slot, on processors that keep translations of several roots.
    pub fn post_to_keepers(&self, others: impl Iterator<Item = usize>, users: &Users<N>) -> Posted {
        fence(Ordering::SeqCst);
        self.post_to(others.filter(|&other| self.has_used(other, users, &self.processors[other].kept)))
    }

    /// Asks all `others` to flush. The entries have been taken out before.
    pub fn post_to_all(&self, others: impl Iterator<Item = usize>) -> Posted {
        self.post_to(others)
    }

    #[inline]
    fn post_to(&self, others: impl Iterator<Item = usize>) -> Posted {
        let mut posted = Posted::NONE;
        for other in others {
            if posted.processors == 0 {
                posted.generation = self.generation.fetch_add(1, Ordering::SeqCst) + 1;
            }
            self.processors[other].requested.fetch_max(posted.generation, Ordering::SeqCst);
            self.processors[other].attention.swap(true, Ordering::SeqCst);
            posted.processors |= 1 << other;
        }
        implied_fence();
        posted
    }

    /// Asks those of `others` that `is_chosen` names by the space they may touch, for a memory barrier. One that is in
    /// the kernel passes a barrier before it next touches memory of programs, and has passed one since it last did.
    pub fn post_barrier(
        &self,
        others: impl Iterator<Item = usize>,
        is_chosen: impl Fn(usize) -> bool,
    ) -> PostedBarrier {
        let number = self.barrier.fetch_add(1, Ordering::SeqCst) + 1;
        let mut posted = PostedBarrier { number, processors: 0 };
        for other in others.filter(|&other| self.has_mode(other, &is_chosen)) {
            self.processors[other].barrier_requested.fetch_max(number, Ordering::SeqCst);
            self.processors[other].attention.swap(true, Ordering::SeqCst);
            posted.processors |= 1 << other;
        }
        implied_fence();
        posted
    }

    fn has_mode(&self, processor: usize, is_chosen: impl Fn(usize) -> bool) -> bool {
        let mode = self.mode(processor);
        mode != 0 && is_chosen(mode)
    }

    /// Whether all processors have passed the barrier.
    pub fn is_barrier_passed(&self, posted: PostedBarrier) -> bool {
        bits(posted.processors).all(|processor| self.has_passed_barrier(posted, processor))
    }

    fn has_passed_barrier(&self, posted: PostedBarrier, processor: usize) -> bool {
        self.processors[processor].barrier_passed.load(Ordering::SeqCst) >= posted.number
            || self.mode(processor) == 0
    }

    /// Waits until all have passed the barrier; `kick` interrupts those that have not.
    pub async fn barrier_passed(&self, posted: PostedBarrier, kick: impl Fn(usize)) {
        bits(posted.processors).filter(|&other| !self.has_passed_barrier(posted, other)).for_each(kick);
        poll_fn(|context| self.poll(context, || self.is_barrier_passed(posted))).await;
    }

    /// The space that a processor may touch at this moment, 0 for none.
    pub fn mode(&self, processor: usize) -> usize {
        self.processors[processor].mode.load(Ordering::SeqCst)
    }

    fn is_passed_by(&self, posted: Posted, processor: usize) -> bool {
        let other = &self.processors[processor];
        other.acknowledged.load(Ordering::SeqCst) >= posted.generation
            || other.mode.load(Ordering::SeqCst) == 0
    }

    /// Whether all processors have acknowledged.
    pub fn is_acknowledged(&self, posted: Posted) -> bool {
        posted.processors().all(|processor| self.is_passed_by(posted, processor))
    }

    /// The processors that have not.
    pub fn behind(&self, posted: Posted) -> impl Iterator<Item = usize> {
        posted.processors().filter(move |&processor| !self.is_passed_by(posted, processor))
    }

    /// Whether all processors have flushed, also those that owe nothing for a page: for tables.
    pub fn is_flushed(&self, posted: Posted) -> bool {
        self.unflushed(posted).next().is_none()
    }

    /// The processors that have not flushed.
    pub fn unflushed(&self, posted: Posted) -> impl Iterator<Item = usize> {
        posted.processors().filter(move |&processor| {
            self.processors[processor].acknowledged.load(Ordering::SeqCst) < posted.generation
        })
    }

    /// Says that a processor that does not run will have flushed before it runs again: its host sees to that.
    pub fn note_flushed(&self, posted: Posted, processor: usize) {
        self.processors[processor].acknowledged.fetch_max(posted.generation, Ordering::SeqCst);
        let waiting = core::mem::take(&mut *self.waiting.lock());
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Says that processor `me` will run no program, and has none's tables in its page table.
    pub fn retire(&self, me: usize) {
        self.processors[me].acknowledged.store(u64::MAX, Ordering::SeqCst);
    }

    /// Whether no processor runs this space with old translations.
    pub fn is_flushed_in(&self, posted: Posted, space: usize) -> bool {
        posted.processors().all(|other| self.mode(other) != space || self.is_passed_by(posted, other))
    }

    /// Waits until no processor runs this space with old translations; `kick` interrupts those that do.
    pub async fn flushed_in(&self, posted: Posted, space: usize, kick: impl Fn(usize)) {
        if self.is_flushed_in(posted, space) {
            return;
        }
        posted.processors().filter(|&other| self.mode(other) == space).for_each(kick);
        poll_fn(|context| self.poll(context, || self.is_flushed_in(posted, space))).await;
    }

    /// Waits until all processors have acknowledged; `kick` interrupts those that have not.
    pub async fn acknowledged(&self, posted: Posted, kick: impl Fn(usize)) {
        self.behind(posted).for_each(kick);
        poll_fn(|context| self.poll(context, || self.is_acknowledged(posted))).await;
    }

    fn poll(&self, context: &mut Context<'_>, is_over: impl Fn() -> bool) -> Poll<()> {
        if is_over() {
            return Poll::Ready(());
        }
        let mut waiting = self.waiting.lock();
        if waiting.try_reserve(1).is_ok() {
            push_reserved(&mut waiting, context.waker().clone());
        } else {
            context.waker().wake_by_ref();
        }
        drop(waiting);
        if is_over() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl<const N: usize> Default for Shootdown<N> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(heddle_loom)))]
mod tests {
    use super::*;

    const SPACE: usize = 7;

    #[test]
    fn a_processor_that_runs_the_space_is_waited_for_until_it_flushes() {
        let state = Shootdown::<2>::new();
        let mut flushes = 0;
        state.enter(1, SPACE, || unreachable!("nobody asked"));
        let posted = state.post_to_all(1..2);
        assert!(!state.is_acknowledged(posted) && !state.is_flushed_in(posted, SPACE));
        assert!(state.is_flushed_in(posted, SPACE + 1), "it runs another space");
        state.leave(1, || flushes += 1);
        assert!(state.is_acknowledged(posted) && state.is_flushed_in(posted, SPACE));
        state.enter(1, SPACE, || unreachable!("it has flushed"));
        assert_eq!(flushes, 1);
    }

    #[test]
    fn a_processor_in_the_kernel_is_not_waited_for_and_flushes_before_it_runs_the_space() {
        let state = Shootdown::<2>::new();
        let posted = state.post_to_all(1..2);
        assert!(state.is_acknowledged(posted));
        let mut flushes = 0;
        state.enter(1, SPACE, || flushes += 1);
        assert_eq!(flushes, 1);
        assert!(state.is_acknowledged(posted));
    }

    #[test]
    fn a_barrier_waits_for_those_that_run_the_space_and_flushes_nothing() {
        let state = Shootdown::<3>::new();
        let no_flush = || unreachable!("nobody asked");
        state.enter(1, SPACE, no_flush);
        state.enter(2, SPACE + 1, no_flush);
        let posted = state.post_barrier(1..3, |space| space == SPACE);
        assert!(!state.is_barrier_passed(posted));
        state.leave(2, no_flush);
        assert!(!state.is_barrier_passed(posted));
        state.leave(1, no_flush);
        state.enter(1, SPACE, no_flush);
        assert!(state.is_barrier_passed(posted));
    }

    #[test]
    fn one_that_comes_back_to_a_page_table_knows_it_again() {
        let (state, users) = (Shootdown::<2>::new(), Users::<2>::default());
        for _ in 0..2 {
            state.begin_root_change(1);
            state.end_root_change(1);
            assert_eq!(state.post(1..2, &users).processors().count(), 0);
            state.note(1, &users);
            assert_eq!(state.post(1..2, &users).processors().count(), 1);
        }
    }

    #[test]
    fn passing_a_later_generation_passes_the_earlier_ones() {
        let state = Shootdown::<3>::new();
        state.enter(2, SPACE, || {});
        let first = state.post_to_all(2..3);
        let second = state.post_to_all(2..3);
        state.leave(2, || {});
        state.enter(2, SPACE, || {});
        assert!(state.is_acknowledged(first) && state.is_acknowledged(second));
    }

    #[test]
    fn nothing_is_posted_to_processors_that_cannot_know() {
        let (state, users) = (Shootdown::<3>::new(), Users::<3>::default());
        state.note(1, &users);
        state.note(2, &users);
        state.begin_root_change(2);
        let posted = state.post(1..3, &users);
        assert_eq!(posted.processors().collect::<Vec<_>>(), [1, 2], "its walker may still be there");
        state.end_root_change(2);
        let posted = state.post(1..3, &users);
        assert_eq!(posted.processors().collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn a_table_waits_for_processors_in_the_kernel_and_a_page_does_not() {
        let state = Shootdown::<3>::new();
        let posted = state.post_to_all(1..3);
        assert!(state.is_acknowledged(posted));
        assert_eq!(state.unflushed(posted).collect::<Vec<_>>(), [1, 2]);
        let mut flushes = 0;
        state.catch_up(1, || flushes += 1);
        state.catch_up(1, || flushes += 1);
        assert_eq!((flushes, state.is_flushed(posted)), (1, false));
        state.note_flushed(posted, 2);
        assert!(state.is_flushed(posted));
        state.enter(2, SPACE, || unreachable!("its host did"));
        state.retire(1);
        assert!(state.is_flushed(state.post_to_all(1..2)));
    }
}

#[cfg(all(test, heddle_loom))]
mod models;
