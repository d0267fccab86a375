//! The address space of a process.
//!
//! A [`Space`] is a tree of page tables, a range of addresses, and the mappings in it. Nearly all spaces lie in a
//! *slot*, one entry of a root: a CPU runs them by having this entry in its own root ([`crate::memory::roots`]),
//! beside those of others. A position-independent program has a slot to itself while there are enough; one that is
//! linked to fixed addresses lies in the low window, and what fork makes in its parent's slot. A *whole* space has
//! all addresses, and a CPU loads its root instead: what a space becomes when its program asks for an address outside
//! the slot.
//!
//! Where a space lies says nothing about who may reach it: that is its [`crate::memory::isolation`].
//!
//! # Order of work
//! Operations on mappings are `async`: they lock the range they change ([`lock`]), look at the mappings under a short
//! spinlock, change page-table entries, flush, release what was taken out, and unlock. The spinlock is never held
//! across an await. Nearly always they finish at their first poll.

mod advise;
mod ahead;
mod attach;
mod brk;
mod call_places;
mod domain;
mod dump;
mod fault;
mod fork;
mod keys;
mod large;
mod layout;
mod limits;
mod list;
mod lock;
mod map;
mod page_map;
mod policy;
mod records;
mod remap;
mod remote;
pub(in crate::memory) mod resident;
mod search;
mod unmap;
mod usage;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use heddle_abi::boot::{KEY_PCID, KEY_SLOTS};
use heddle_kernel_core::mapping::Mappings;
use heddle_kernel_core::protection_key::SpaceKeys;
use heddle_kernel_core::tlb::roots::Identity;
use heddle_kernel_core::tlb::tags::Abilities;

use crate::arch::paging::PageTableEntry;
use crate::arch::{mitigations, paging};
use crate::boot;
use crate::error::Errno;
use crate::memory::counters::count;
use crate::memory::deferred_free::TAG_ROOT;
use crate::memory::fallible::try_arc;
use crate::memory::gather::Gather;
use crate::memory::isolation::{CredentialSet, IsolationCell, IsolationPolicy};
use crate::memory::overcommit::Promise;
use crate::memory::process_pages::Pages;
use crate::memory::shootdown::{PendingFlush, Removals, Users};
use crate::memory::slots::Slot;
use crate::memory::source::Object;
use crate::memory::space::ahead::FaultAhead;
use crate::memory::space::call_places::ProgramCalls;
use crate::memory::space::keys::{GroupKey, KeysSeen};
use crate::memory::space::limits::SpaceLimits;
use crate::memory::space::lock::SpaceLock;
use crate::memory::space::resident::Resident;
use crate::memory::table::Root;
use crate::memory::{counters, deferred_free, roots, shootdown, slots};
use crate::sync::SpinLock;

pub use crate::memory::space::fault::{FaultAccess, FaultError};
pub use crate::memory::space::keys::KeyChange;
pub use crate::memory::space::layout::SpaceLayout;
pub use crate::memory::space::limits::FutureLocks;
pub use crate::memory::space::list::MappingView;
pub use crate::memory::space::lock::CpuEpoch;
pub use crate::memory::space::map::{MapRequest, Placement};
pub use crate::memory::space::page_map::{PAGES_AT_ONCE, PageState};
pub use crate::memory::space::remote::RemoteAccess;
pub use crate::memory::space::unmap::{unmap_mapping_range, unmap_shared, write_back};
pub use crate::memory::space::usage::Usage;
pub use heddle_kernel_core::mapping::{Flags, Mapping, Protection};

/// Addresses below this are never mapped.
pub const LOWEST_ADDRESS: usize = 0x1_0000;
/// How far mappings stay away from a stack that may grow.
const STACK_GUARD_BYTES: usize = 1 << 20;

pub(super) use crate::memory::space::lock::drain as drain_locks;

/// Where a space lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceKind {
    /// In a slot, for programs that can be anywhere.
    Slot,
    /// In the low window, for programs that are linked to fixed addresses.
    Window,
    /// Everywhere: all addresses can be mapped.
    Whole,
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
    /// The promise to the mappings.
    promise: Promise,
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
    /// The protection keys that the program has.
    keys: SpaceKeys,
    /// The group to which isolation by keys counts it.
    group: Option<GroupKey>,
}

/// An address space.
pub struct Space {
    /// Changes when CPUs have to look anew at how they run the space.
    identity: Identity,
    /// Withdrawals under way: CPUs may still use the space by an identity that it had before.
    withdrawals: AtomicUsize,
    /// The tables, as a root. CPUs load it only if the space is a whole one.
    root: AtomicU64,
    limits: SpaceLimits,
    /// The process was chosen to end because memory ran out.
    is_doomed: AtomicBool,
    resident: Resident,
    ahead: FaultAhead,
    /// The root's entry for the slot; 0 in a whole space.
    entry: AtomicU64,
    slot_number: usize,
    /// Whose program it is, and the isolation that it has chosen.
    credentials: AtomicUsize,
    isolation: IsolationCell,
    /// All addresses that may be mapped.
    start: AtomicUsize,
    end: AtomicUsize,
    users: Users,
    removals: Removals,
    /// Threads that run in the space.
    threads: AtomicUsize,
    /// How many flushes were posted without waiting for them, and up to which of these a wait has completed since.
    unseen: AtomicU64,
    seen: AtomicU64,
    keys: KeysSeen,
    lock: SpaceLock,
    calls: Option<Box<ProgramCalls>>,
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
    let is_dry_run = boot::is(KEY_PCID, "dry-run");
    if is_dry_run || boot::is(KEY_PCID, "on") {
        match paging::use_tags(is_dry_run) {
            Abilities { has_tags: false, .. } => {
                ::log::warn!(
                    "the processors have no PCID: translations are flushed when the page table changes"
                );
            }
            Abilities { forgets_elsewhere: true, .. } => ::log::info!("pcid, invpcid"),
            Abilities { .. } => ::log::info!("pcid"),
        }
    }
}

/// 0 stands for no space.
fn new_identity() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Space {
    /// An empty space.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(kind: SpaceKind) -> Result<Arc<Self>, Errno> {
        let slot = match kind {
            SpaceKind::Slot => Some(Slot::take()),
            SpaceKind::Window => Some(Slot::claim(slots::WINDOW)),
            SpaceKind::Whole => None,
        };
        let (range, layout) = match &slot {
            Some(slot) => (slot.range(), SpaceLayout::in_slot(slot.range())),
            None => (0..paging::USER_END, SpaceLayout::in_lower_half()),
        };
        let range = range.start.max(LOWEST_ADDRESS)..range.end;
        let state = SpaceState {
            mappings: Mappings::new(),
            promise: Promise::default(),
            layout,
            window: range.start..layout.mmap_top,
            search: Search::default(),
            brk: 0..0,
            is_brk_moving: false,
            slot,
            pages: None,
            has_attachments: false,
            keys: keys::first_keys(),
            group: None,
        };
        let space = Self::with_state(state, range, SpaceLimits::new(8 << 20))?;
        unmap::register(&space)?;
        Ok(space)
    }

    /// A space with these records, and no page.
    fn with_state(state: SpaceState, range: Range<usize>, limits: SpaceLimits) -> Result<Arc<Self>, Errno> {
        let root = Root::new()?;
        let slot_number = state.slot.as_ref().map_or(0, Slot::number);
        let is_whole = state.slot.is_none();
        let mut space = Self::on_root(root, state, range, limits);
        space.slot_number = slot_number;
        space.calls = ProgramCalls::new()?;
        if is_whole {
            paging::adopt_kernel_half(root.0);
        } else {
            // On failure the space is dropped, and with it root and claim.
            space.entry = AtomicU64::new(root.slot_entry(slot_number)?);
        }
        try_arc(space)
    }

    fn on_root(root: Root, state: SpaceState, range: Range<usize>, limits: SpaceLimits) -> Self {
        Self {
            identity: Identity::new(new_identity()),
            withdrawals: AtomicUsize::new(0),
            root: AtomicU64::new(root.0),
            limits,
            is_doomed: AtomicBool::new(false),
            resident: Resident::default(),
            ahead: FaultAhead::new(),
            entry: AtomicU64::new(0),
            slot_number: 0,
            credentials: AtomicUsize::new(CredentialSet::FIRST.0),
            isolation: IsolationCell::new(IsolationPolicy::Default),
            start: AtomicUsize::new(range.start),
            end: AtomicUsize::new(range.end),
            users: Users::default(),
            removals: Removals::new(),
            threads: AtomicUsize::new(0),
            unseen: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            keys: KeysSeen::new(),
            lock: SpaceLock::new(),
            calls: None,
            state: SpinLock::new(state),
        }
    }

    /// A space in which nothing can be mapped: for threads that have given theirs up.
    #[must_use]
    pub fn none() -> Arc<Self> {
        static NONE: spin::Once<Arc<Space>> = spin::Once::new();
        #[expect(clippy::disallowed_methods, reason = "made at the start of the machine")]
        let none = || {
            let state = SpaceState {
                mappings: Mappings::new(),
                promise: Promise::default(),
                layout: SpaceLayout { image_base: 0, mmap_top: 0, stack_top: 0 },
                window: 0..0,
                search: Search::default(),
                brk: 0..0,
                is_brk_moving: false,
                slot: None,
                pages: None,
                has_attachments: false,
                keys: SpaceKeys::none(),
                group: None,
            };
            Arc::new(Self::on_root(Root(paging::boot_root()), state, 0..0, SpaceLimits::new(0)))
        };
        NONE.call_once(none).clone()
    }

    /// The addresses that can be mapped.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.start.load(Ordering::Relaxed)..self.end.load(Ordering::Relaxed)
    }

    /// The space's entry in roots; `None` for a whole space.
    fn entry(&self) -> Option<u64> {
        let entry = self.entry.load(Ordering::SeqCst);
        (entry != 0).then_some(entry)
    }

    /// Whether all of the space lies in a slot.
    #[must_use]
    pub fn is_in_slot(&self) -> bool {
        self.entry().is_some()
    }

    /// The number of its slot, if it lies in one.
    #[must_use]
    pub fn slot(&self) -> Option<usize> {
        self.entry().map(|_| self.slot_number)
    }

    /// Where image, stack and mappings of a program go.
    #[must_use]
    pub fn layout(&self) -> SpaceLayout {
        self.state.lock().layout
    }

    /// Changes where things go, in a new space.
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

    fn root(&self) -> Root {
        Root(self.root.load(Ordering::Acquire))
    }

    /// A number that no other space has or had: CPUs remember it longer than the space lives.
    fn identity(&self) -> usize {
        self.identity.get()
    }

    /// Makes this CPU use the space. Cheap if it does.
    #[inline]
    pub fn activate(&self) {
        if !self.is_active() {
            self.switch_to();
        }
    }

    /// Whether this CPU uses the space. Others may make it look anew until it has entered ([`shootdown::enter`]).
    #[inline]
    pub fn is_active(&self) -> bool {
        shootdown::is_active(self.identity.glance())
    }

    /// A thread runs in the space from here on.
    pub fn attach(&self) {
        self.threads.fetch_add(1, Ordering::Relaxed);
    }

    /// One no longer does.
    pub fn detach(&self) {
        self.threads.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many threads run in the space, of whatever process.
    #[must_use]
    pub fn thread_count(&self) -> usize {
        self.threads.load(Ordering::Relaxed)
    }

    #[inline(never)]
    fn switch_to(&self) {
        loop {
            let identity = self.identity();
            if identity == 0 {
                // Another CPU gives it other tables, which takes a few instructions.
                core::hint::spin_loop();
                continue;
            }
            let entry = self.entry();
            match entry {
                Some(entry) => roots::run(self.slot_number, entry, self.domain(), identity, &self.users),
                None => self.load_root(identity),
            }
            if mitigations::has_barrier() {
                mitigations::enter_domain(self.domain());
            }
            // The space may be leaving its slot on another CPU.
            if self.identity() == identity {
                return;
            }
            if let Some(entry) = entry {
                roots::take_back(self.slot_number, entry);
            }
        }
    }

    fn load_root(&self, identity: usize) {
        let root = self.root();
        if paging::current_root() == root.0 || self.range().is_empty() {
            shootdown::activate(identity, &self.users);
        } else {
            count(&counters::ROOT_CHANGES);
            shootdown::load(root.0, identity, &self.users, &self.removals);
        }
    }

    /// Whether this CPU may have translations of the space.
    fn is_here(&self) -> bool {
        match self.entry() {
            Some(entry) => roots::is_here(self.slot_number, entry),
            None => paging::current_root() == self.root().0,
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
        gather.release(posted);
    }

    /// The same without the wait. `false` if a CPU still runs this space with old translations: the next
    /// [`Self::finish`] waits for it.
    fn finish_now(&self, gather: &mut Gather) -> bool {
        if gather.is_empty() {
            return true;
        }
        let posted = self.flush(gather);
        gather.release(posted);
        let is_seen = posted.is_flushed_in(self.identity());
        if !is_seen {
            self.unseen.fetch_add(1, Ordering::AcqRel);
        }
        is_seen
    }

    fn flush(&self, gather: &Gather) -> PendingFlush {
        if paging::has_tags() && gather.is_everywhere() {
            return self.flush_kept(gather);
        }
        if self.is_here() {
            gather.flush_here();
        }
        if gather.is_everywhere() { shootdown::post(&self.users) } else { PendingFlush::NONE }
    }

    /// The same everywhere, on processors that keep translations of roots which they don't use.
    #[inline(never)]
    fn flush_kept(&self, gather: &Gather) -> PendingFlush {
        let is_here = self.is_here();
        if let Some(entry) = self.entry() {
            if is_here {
                gather.flush_here();
            }
            roots::flush_kept(self.slot_number, entry, gather.few_pages());
            return shootdown::post_to_keepers(&self.users);
        }
        let number = self.removals.add();
        if is_here && gather.flush_here() {
            shootdown::has_flushed(self.identity(), number);
        } else if !is_here && let Some(pages) = gather.few_pages() {
            shootdown::flush_elsewhere(self.identity(), number, pages);
        }
        shootdown::post(&self.users)
    }

    /// Whether `range` is whole pages of this space.
    fn check_range(&self, start: usize, length: usize) -> Option<Range<usize>> {
        let length = length.checked_next_multiple_of(paging::PAGE_SIZE)?;
        let end = start.checked_add(length)?;
        let all = self.range();
        (start.is_multiple_of(paging::PAGE_SIZE) && all.start <= start && end <= all.end)
            .then_some(start..end)
    }

    /// Gives the space all addresses, with everything at its place; other threads of the process take its root over
    /// when they run next.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub async fn leave_slot(&self) -> Result<(), Errno> {
        let _guard = self.lock.lock(self.range()).await?;
        let Some(entry) = self.entry() else { return Ok(()) };
        paging::adopt_kernel_half(self.root().0);
        self.entry.store(0, Ordering::SeqCst);
        self.start.store(LOWEST_ADDRESS, Ordering::Relaxed);
        self.end.store(paging::USER_END, Ordering::Relaxed);
        self.withdraw(entry).await;
        drop(self.state.lock().slot.take());
        Ok(())
    }

    /// Takes the space out of all CPUs' roots. They look anew at where it is and who may reach it before they run it
    /// again.
    async fn withdraw(&self, entry: u64) {
        self.withdrawals.fetch_add(1, Ordering::SeqCst);
        // A CPU that puts the entry into its root meanwhile takes it back.
        self.identity.change(new_identity(), || {
            roots::withdraw(self.slot_number, entry);
        });
        shootdown::post_to_all().acknowledged().await;
        roots::forget(self.slot_number, entry);
        self.withdrawals.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether a CPU that touches the space of an identity may be touching this one.
    pub fn may_have_identity(&self, identity: usize) -> bool {
        identity == self.identity() || self.withdrawals.load(Ordering::SeqCst) != 0
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let root = self.root();
        let entry = PageTableEntry(*self.entry.get_mut());
        match self.state.get_mut().slot.take() {
            Some(slot) if entry.is_present() => {
                if roots::withdraw(slot.number(), entry.0) {
                    count(&counters::FLUSH_EXIT);
                }
                root.release_empty();
                let word = deferred_free::slot_word(slot, entry);
                // A CPU that had the table in its root has recorded a use since it last flushed everything.
                let posted = shootdown::post_to_keepers(&self.users);
                deferred_free::release(posted, core::iter::once(word));
            }
            Some(_) => root.release_empty(),
            None => {
                if paging::current_root() == root.0 {
                    shootdown::leave_space();
                }
                deferred_free::release(PendingFlush::NONE, core::iter::once(root.0 | TAG_ROOT));
            }
        }
    }
}
