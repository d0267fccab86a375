//! fork: a private copy of a space, copy-on-write.

use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::arch::paging;
use crate::error::Errno;
use crate::memory::counters::count;
use crate::memory::fallible::try_arc;
use crate::memory::gather::Gather;
use crate::memory::shootdown::{Removals, Users};
use crate::memory::source::Object;
use crate::memory::space::lock::SpaceLock;
use crate::memory::space::{Flags, LOWEST_ADDRESS, Space, SpaceState};
use crate::memory::table::Root;
use crate::memory::{counters, heap};
use crate::sched::Budget;
use crate::sync::SpinLock;
use heddle_kernel_core::mapping::{Backing, Mapping, Mappings};

/// The bytes of a space that fork(2) shares in one step, those of a table of leaf tables, and the step's cost.
const SHARED_BYTES: usize = 1 << 30;
const SHARED_COST: u32 = 32;
/// The bytes of a leaf table. Where a larger table is missing, all that it would cover is passed over at once.
const LEAF_TABLE_BYTES: usize = 1 << 21;

impl Space {
    /// A private space with this one's contents at the same addresses.
    ///
    /// Leaf tables are shared, not copied, so the cost follows the number of 2 MiB parts in use and not of pages.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub async fn fork(&self) -> Result<Arc<Self>, Errno> {
        let range = self.range();
        let _guard = self.lock.lock(range.clone()).await?;
        let child = self.empty_child()?;
        let shared = self.share_tables(&child, range.clone()).await;
        // Even after a failure: some of this space's tables may be read-only now.
        let mut gather = Gather::new();
        gather.mark(range);
        count(&counters::FLUSH_FORK);
        self.finish(&mut gather).await;
        shared?;
        child.drop_what_is_not_inherited().await?;
        child.renew_pages().await?;
        child.renew_attachments()?;
        // Under this space's lock, so that a thread that unmaps an object's pages looks at the child afterwards.
        crate::memory::space::unmap::register(&child)?;
        Ok(child)
    }

    /// Gives the child all tables, some at a time.
    async fn share_tables(&self, child: &Self, range: Range<usize>) -> Result<(), Errno> {
        let mut budget = Budget::new();
        let mut at = range.start;
        while at < range.end {
            let above = self.root().next_table(at);
            if above - at > LEAF_TABLE_BYTES {
                at = above;
                continue;
            }
            let next = ((at & !(SHARED_BYTES - 1)) + SHARED_BYTES).min(range.end);
            self.root().share_with(child.root(), at..next)?;
            at = next;
            budget.step(SHARED_COST).await;
        }
        Ok(())
    }

    /// A space with copies of the records and none of the pages.
    fn empty_child(&self) -> Result<Arc<Self>, Errno> {
        let count = self.state.lock().mappings.len();
        heap::reserve(count * Mappings::<Object>::MAPPING_BYTES)?;
        let state = {
            let state = self.state.lock();
            let brk = state.brk.clone();
            let window = state.window.clone();
            let search = state.search;
            let pages = state.pages.clone();
            let has_attachments = state.has_attachments;
            SpaceState {
                mappings: state.mappings.clone(),
                layout: state.layout,
                window,
                search,
                brk,
                is_brk_moving: false,
                slot: None,
                pages,
                has_attachments,
            }
        };
        let root = Root::new()?;
        try_arc(Self {
            identity: crate::memory::space::new_identity(),
            root: AtomicU64::new(root.0),
            stack_limit: AtomicUsize::new(self.stack_limit.load(Ordering::Relaxed)),
            start: AtomicUsize::new(LOWEST_ADDRESS),
            end: AtomicUsize::new(paging::USER_END),
            users: Users::default(),
            removals: Removals::new(),
            unseen: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            lock: SpaceLock::new(),
            state: SpinLock::new(state),
        })
    }

    /// In a child without running threads: drops what `MADV_DONTFORK` and `MADV_WIPEONFORK` keep from it.
    async fn drop_what_is_not_inherited(&self) -> Result<(), Errno> {
        let special = Flags::NOT_INHERITED | Flags::WIPED_IN_CHILD;
        let mut at = 0;
        loop {
            let next = {
                let state = self.state.lock();
                let rest = state.mappings.overlapping(at..usize::MAX);
                rest.filter(|mapping| mapping.flags.intersects(special)).map(|m| (m.range(), m.flags)).next()
            };
            let Some((range, flags)) = next else { return Ok(()) };
            at = range.end;
            self.clear(range.clone()).await?;
            if flags.contains(Flags::NOT_INHERITED) {
                self.state.lock().mappings.remove(range, |_| {});
            }
        }
    }

    /// In a child without running threads: gives it pages of its own to share with the kernel, in place of the
    /// parent's.
    async fn renew_pages(&self) -> Result<(), Errno> {
        let Some(old) = self.pages() else { return Ok(()) };
        let new = old.for_child()?;
        // A page that is touched after the tables were shared is in the parent's only.
        let is_touched = old.is_touched();
        let (old, object) = (Object::Source(old), Object::Source(new.clone()));
        let mut at = 0;
        loop {
            let next = {
                let state = self.state.lock();
                let mut rest = state.mappings.overlapping(at..usize::MAX);
                rest.find(|mapping| mapping.backing.is_same(&old)).map(Mapping::range)
            };
            let Some(range) = next else { break };
            at = range.end;
            if is_touched {
                self.clear(range.clone()).await?;
            }
            crate::memory::space::reserve_mappings(2)?;
            self.state.lock().mappings.change(range, |mapping| mapping.backing = object.clone());
        }
        self.set_pages(new);
        Ok(())
    }
}
