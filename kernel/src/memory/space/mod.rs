//! The address space of a process.
//!
//! A [`Space`] is a page-table root, a range of addresses, and the mappings in it. By default spaces are *shared*:
//! all of them use one root, each within a slot of its own, so that going from one to another changes nothing in the
//! processor. A *private* space has its own root and the whole lower half: what fork makes, what a program that is
//! not position-independent needs, and what a shared space becomes when its program asks for an address outside the
//! slot.
//!
//! # Order of work
//! Operations on mappings are `async`: they lock the range they change ([`lock`]), look at the mappings under a short
//! spinlock, change page-table entries, flush, release what was taken out, and unlock. The spinlock is never held
//! across an await. Nearly always they finish at their first poll.

mod advise;
mod attach;
mod brk;
mod fault;
mod fork;
mod list;
mod lock;
mod map;
mod remap;
mod unmap;
mod usage;

use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use heddle_abi::boot::{KEY_ISOLATION, KEY_PCID, KEY_SLOTS};
use heddle_kernel_core::mapping::Mappings;

use crate::arch::{cpu, paging};
use crate::boot;
use crate::error::Errno;
use crate::memory::counters::count;
use crate::memory::deferred_free::{TAG_ROOT, TAG_SLOT, TlbScope};
use crate::memory::fallible::try_arc;
use crate::memory::gather::Gather;
use crate::memory::process_pages::Pages;
use crate::memory::shootdown::{PendingFlush, Removals, Users};
use crate::memory::slots::{SLOT_BYTES, Slot};
use crate::memory::source::Object;
use crate::memory::space::lock::SpaceLock;
use crate::memory::table::Root;
use crate::memory::{counters, deferred_free, heap, shootdown, slots};
use crate::sync::SpinLock;

pub use crate::memory::space::fault::{FaultAccess, FaultError};
pub use crate::memory::space::list::MappingView;
pub use crate::memory::space::lock::CpuEpoch;
pub use crate::memory::space::map::{MapRequest, Placement};
pub use crate::memory::space::unmap::{unmap_mapping_range, write_back};
pub use crate::memory::space::usage::Usage;
pub use heddle_kernel_core::mapping::{Flags, Mapping, Protection};

/// Addresses below this are never mapped.
const LOWEST_ADDRESS: usize = 0x1_0000;
/// How far mappings stay away from a stack that may grow.
const STACK_GUARD_BYTES: usize = 1 << 20;
/// Where the image of a position-independent program goes in a private space, or above.
const IMAGE_BASE: usize = 0x5555_0000_0000;
/// Slots kept free below the top of the stack for its growth.
const STACK_MAX_BYTES: usize = 64 << 20;

pub(super) use crate::memory::space::lock::drain as drain_locks;

/// How a space relates to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceKind {
    /// In the space that programs share; private if that is full, or if the machine isolates programs.
    Shared,
    /// With a page table of its own, all addresses included: for programs that are not position-independent, or that
    /// must be out of others' reach.
    Private,
}

/// Where things go in a space, randomized once.
#[derive(Clone, Copy, Debug)]
pub struct SpaceLayout {
    /// Where the image of a position-independent program goes.
    pub image_base: usize,
    /// Mappings without a wish are placed below this.
    pub mmap_top: usize,
    /// End of the first stack.
    pub stack_top: usize,
}

/// State of the search for free addresses, so that it need not begin at the top each time.
#[derive(Clone, Copy, Default)]
struct Search {
    /// No free range above this, inside the window, is longer than `skipped`. 0 stands for nothing known.
    top: usize,
    skipped: usize,
}

impl Search {
    /// A range has become free.
    fn note_free(&mut self, range: &Range<usize>) {
        if self.top != 0 && range.end > self.top {
            // It may have joined free ranges on both sides, so nothing is known any more.
            *self = Self::default();
        }
    }
}

struct SpaceState {
    mappings: Mappings<Object>,
    layout: SpaceLayout,
    /// Where addresses are looked for first.
    window: Range<usize>,
    search: Search,
    brk: Range<usize>,
    /// The end of the heap is being moved, which takes several steps.
    is_brk_moving: bool,
    slot: Option<Slot>,
    /// The pages that the process shares with the kernel.
    pages: Option<Arc<Pages>>,
    /// Whether objects may be mapped of which a child gets others ([`MapSource::for_child`](crate::memory::MapSource)).
    has_attachments: bool,
}

/// An address space.
pub struct Space {
    identity: usize,
    root: AtomicU64,
    /// End of the stack's growth, as a size; the process's limit.
    stack_limit: AtomicUsize,
    /// All addresses that may be mapped.
    start: AtomicUsize,
    end: AtomicUsize,
    users: Users,
    removals: Removals,
    /// How many flushes were posted without waiting for them, and up to which of these a wait has completed since.
    unseen: AtomicU64,
    seen: AtomicU64,
    lock: SpaceLock,
    state: SpinLock<SpaceState>,
}

/// Prepares the shared space.
pub(super) fn initialize() {
    lock::initialize();
    // Made while memory is certain to be there.
    let _ = Space::none();
    if let Some(count) = boot::number(KEY_SLOTS) {
        slots::limit(usize::try_from(count).unwrap_or(usize::MAX));
    }
    if boot::is(KEY_ISOLATION, "private") {
        IS_ISOLATED.store(true, Ordering::Relaxed);
        ::log::info!("isolation: every program has its own page table");
    }
    if boot::is(KEY_PCID, "on") && !paging::use_tags() {
        ::log::warn!("the processors have no PCID: translations are flushed when the page table changes");
    }
}

/// Makes sure that `count` records can be added to the mappings.
fn reserve_mappings(count: usize) -> Result<(), Errno> {
    heap::reserve(count * Mappings::<Object>::GROWTH_BYTES)
}

/// 0 stands for no space.
fn new_identity() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Whether every program gets a page table of its own.
static IS_ISOLATED: AtomicBool = AtomicBool::new(false);

impl Space {
    /// An empty space.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(kind: SpaceKind) -> Result<Arc<Self>, Errno> {
        let slot = if kind == SpaceKind::Shared && !IS_ISOLATED.load(Ordering::Relaxed) {
            Slot::take()
        } else {
            None
        };
        let (root, range, layout) = match &slot {
            Some(slot) => (Root(paging::shared_root()), slot.range(), SpaceLayout::in_slot(slot.range())),
            None => (Root::new()?, LOWEST_ADDRESS..paging::USER_END, SpaceLayout::in_lower_half()),
        };
        let state = SpaceState {
            mappings: Mappings::new(),
            layout,
            window: range.start..layout.mmap_top,
            search: Search::default(),
            brk: 0..0,
            is_brk_moving: false,
            slot,
            pages: None,
            has_attachments: false,
        };
        let space = Self {
            identity: new_identity(),
            root: AtomicU64::new(root.0),
            stack_limit: AtomicUsize::new(8 << 20),
            start: AtomicUsize::new(range.start),
            end: AtomicUsize::new(range.end),
            users: Users::default(),
            removals: Removals::new(),
            unseen: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            lock: SpaceLock::new(),
            state: SpinLock::new(state),
        };
        // On failure the space is dropped, and with it the slot or root.
        let space = try_arc(space)?;
        unmap::register(&space)?;
        Ok(space)
    }

    /// A space in which nothing can be mapped: for threads that have given theirs up.
    #[must_use]
    pub fn none() -> Arc<Self> {
        static NONE: spin::Once<Arc<Space>> = spin::Once::new();
        let none = || {
            Arc::new(Self {
                identity: new_identity(),
                root: AtomicU64::new(paging::shared_root()),
                stack_limit: AtomicUsize::new(0),
                start: AtomicUsize::new(0),
                end: AtomicUsize::new(0),
                users: Users::default(),
                removals: Removals::new(),
                unseen: AtomicU64::new(0),
                seen: AtomicU64::new(0),
                lock: SpaceLock::new(),
                state: SpinLock::new(SpaceState {
                    mappings: Mappings::new(),
                    layout: SpaceLayout { image_base: 0, mmap_top: 0, stack_top: 0 },
                    window: 0..0,
                    search: Search::default(),
                    brk: 0..0,
                    is_brk_moving: false,
                    slot: None,
                    pages: None,
                    has_attachments: false,
                }),
            })
        };
        NONE.call_once(none).clone()
    }

    /// The addresses that can be mapped.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.start.load(Ordering::Relaxed)..self.end.load(Ordering::Relaxed)
    }

    /// Whether the space has the shared page table.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.root() == Root(paging::shared_root())
    }

    /// The number of its slot in the shared space, 0 for a private space.
    #[must_use]
    pub fn slot(&self) -> usize {
        self.state.lock().slot.as_ref().map_or(0, Slot::number)
    }

    /// Where image, stack and mappings of a program go.
    #[must_use]
    pub fn layout(&self) -> SpaceLayout {
        self.state.lock().layout
    }

    /// Changes where things go, in a new private space.
    pub fn set_layout(&self, layout: SpaceLayout) {
        let mut state = self.state.lock();
        state.layout = layout;
        state.window.end = layout.mmap_top;
    }

    /// The pages that the process shares with the kernel.
    #[must_use]
    pub fn pages(&self) -> Option<Arc<Pages>> {
        self.state.lock().pages.clone()
    }

    /// Says which pages the process shares with the kernel, in a new space.
    pub fn set_pages(&self, pages: Arc<Pages>) {
        self.state.lock().pages = Some(pages);
    }

    /// How far a stack may grow, in bytes (`RLIMIT_STACK`).
    pub fn set_stack_limit(&self, bytes: usize) {
        self.stack_limit.store(bytes.min(STACK_MAX_BYTES), Ordering::Relaxed);
    }

    fn root(&self) -> Root {
        Root(self.root.load(Ordering::Acquire))
    }

    /// A number that no other space has or had: CPUs remember it longer than the space lives.
    const fn identity(&self) -> usize {
        self.identity
    }

    /// Makes this CPU use the space. Cheap if it does, or if the space shares its page table with the one in use.
    #[inline]
    pub fn activate(&self) {
        let root = self.root();
        if paging::current_root() != root.0 || !shootdown::is_active(self.identity()) {
            self.switch_to(root);
        }
    }

    #[inline(never)]
    fn switch_to(&self, root: Root) {
        if paging::current_root() == root.0 {
            shootdown::activate(self.identity(), &self.users);
        } else {
            count(&counters::ROOT_CHANGES);
            shootdown::load(root.0, self.identity(), &self.users, &self.removals);
        }
    }

    /// Flushes what `gather` names wherever it may be cached, waits until no CPU runs this space with old translations,
    /// and releases what was taken out.
    async fn finish(&self, gather: &mut Gather) {
        if gather.is_empty() {
            return;
        }
        let posted = self.flush(gather);
        posted.flushed_in(self.identity()).await;
        gather.release(self.holders(posted));
    }

    /// The same without the wait. `false` if a CPU still runs this space with old translations: the next
    /// [`Self::finish`] waits for it.
    fn finish_now(&self, gather: &mut Gather) -> bool {
        if gather.is_empty() {
            return true;
        }
        let posted = self.flush(gather);
        gather.release(self.holders(posted));
        let is_seen = posted.is_flushed_in(self.identity());
        if !is_seen {
            self.unseen.fetch_add(1, Ordering::AcqRel);
        }
        is_seen
    }

    fn flush(&self, gather: &Gather) -> PendingFlush {
        if paging::has_tags() && gather.is_everywhere() && !self.is_shared() {
            let number = self.removals.add();
            if gather.flush_here(self.root().0) {
                shootdown::has_flushed(self.identity(), number);
            }
        } else {
            gather.flush_here(self.root().0);
        }
        if gather.is_everywhere() { shootdown::post(&self.users) } else { PendingFlush::NOBODY }
    }

    /// The CPUs that may have cached entries taken out of this space, a generation having been posted to its users.
    fn holders(&self, posted: PendingFlush) -> TlbScope {
        if self.is_shared() { TlbScope::Any } else { TlbScope::Pending(posted) }
    }

    /// Free addresses for a mapping.
    fn find_free(&self, length: usize) -> Option<usize> {
        let mut state = self.state.lock();
        let SpaceState { mappings, search, window, .. } = &mut *state;
        if length <= search.skipped || search.top == 0 {
            *search = Search { top: window.end, skipped: 0 };
        }
        let below = window.start..search.top.min(window.end);
        let found =
            mappings.find_free(length, paging::PAGE_SIZE, below, STACK_GUARD_BYTES, &mut search.skipped);
        match found {
            Some(start) => search.top = start + length,
            None => *search = Search::default(),
        }
        found.or_else(|| {
            mappings.find_free(length, paging::PAGE_SIZE, self.range(), STACK_GUARD_BYTES, &mut 0)
        })
    }

    /// Whether `range` is whole pages of this space.
    fn check_range(&self, start: usize, length: usize) -> Option<Range<usize>> {
        let length = length.checked_next_multiple_of(paging::PAGE_SIZE)?;
        let end = start.checked_add(length)?;
        let all = self.range();
        (start.is_multiple_of(paging::PAGE_SIZE) && all.start <= start && end <= all.end)
            .then_some(start..end)
    }

    /// Gives the space a root of its own, with everything at its address; other threads of the process take it over
    /// when they run next.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub async fn leave_shared(&self) -> Result<(), Errno> {
        let _guard = self.lock.lock(self.range()).await?;
        if !self.is_shared() {
            return Ok(());
        }
        let old = self.root();
        let new = Root::new()?;
        let range = self.range();
        let whole = range.start..range.start + SLOT_BYTES;
        if let Err(error) = old.move_to(new, whole, 2) {
            deferred_free::release(
                TlbScope::Pending(PendingFlush::NOBODY),
                core::iter::once(new.0 | TAG_ROOT),
            );
            return Err(error);
        }
        self.root.store(new.0, Ordering::Release);
        count(&counters::ROOT_CHANGES);
        if paging::current_root() == old.0 {
            shootdown::load(new.0, self.identity(), &self.users, &self.removals);
        }
        self.start.store(LOWEST_ADDRESS, Ordering::Relaxed);
        self.end.store(paging::USER_END, Ordering::Relaxed);
        // Entries that are removed from the new root later are flushed only on CPUs that use it.
        shootdown::post_to_all().acknowledged().await;
        let slot = self.state.lock().slot.take();
        deferred_free::release(
            TlbScope::Pending(PendingFlush::NOBODY),
            slot.into_iter().map(|slot| slot.into_word() | TAG_SLOT),
        );
        Ok(())
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let root = self.root();
        if !self.is_shared() {
            if paging::current_root() == root.0 {
                shootdown::load_shared();
            }
            deferred_free::release(
                TlbScope::Pending(PendingFlush::NOBODY),
                core::iter::once(root.0 | TAG_ROOT),
            );
            return;
        }
        let Some(slot) = self.state.get_mut().slot.take() else { return };
        let mut gather = Gather::new();
        let range = slot.range();
        let end = range.start + SLOT_BYTES;
        let mut at = range.start;
        // Whole tables go at once, so that this is a few steps; it copies nothing, and cannot fail.
        while at < end {
            match root.remove(at..end, &mut gather) {
                Ok(reached) => at = reached,
                Err(_) => break,
            }
            count(&counters::FLUSH_EXIT);
            let posted = self.flush(&gather);
            gather.release(self.holders(posted));
        }
        deferred_free::release(TlbScope::Any, core::iter::once(slot.into_word() | TAG_SLOT));
    }
}

impl SpaceLayout {
    fn in_slot(slot: Range<usize>) -> Self {
        // Image low, stack and mappings high; each within a gigabyte or a few, to need few tables.
        let random = cpu::random();
        let page = |bits: u32, shift: u32| (random >> shift & ((1 << bits) - 1)) as usize * paging::PAGE_SIZE;
        let stack_top = slot.end - page(18, 0);
        let mmap_top = stack_top - STACK_MAX_BYTES - page(12, 18);
        let image_base = slot.start + (1 << 30) + page(22, 32);
        Self { image_base, mmap_top, stack_top }
    }

    /// Where things go in a private space that is not randomized.
    pub const FIXED: Self = Self {
        image_base: IMAGE_BASE,
        mmap_top: paging::USER_END - STACK_MAX_BYTES - paging::PAGE_SIZE,
        stack_top: paging::USER_END - paging::PAGE_SIZE,
    };

    fn in_lower_half() -> Self {
        let random = cpu::random();
        let page = |bits: u32, shift: u32| (random >> shift & ((1 << bits) - 1)) as usize * paging::PAGE_SIZE;
        let stack_top = paging::USER_END - page(22, 0);
        let mmap_top = stack_top - STACK_MAX_BYTES - page(12, 22);
        let image_base = IMAGE_BASE + page(24, 34);
        Self { image_base, mmap_top, stack_top }
    }
}
