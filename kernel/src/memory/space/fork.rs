//! fork: a copy of a space at the same addresses, copy-on-write.

use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::Ordering;

use crate::error::Errno;
use crate::memory::counters::count;
use crate::memory::gather::Gather;
use crate::memory::overcommit::Promise;
use crate::memory::slots::Slot;
use crate::memory::source::Object;
use crate::memory::space::keys::GroupKey;
use crate::memory::space::{Flags, Space, SpaceState};
use crate::memory::{counters, overcommit};
use crate::sched::Budget;
use heddle_kernel_core::mapping::{Backing, Mapping, Mappings};
use smallvec::SmallVec;

/// The bytes of a space that fork(2) shares in one step, those of a table of leaf tables, and the step's cost.
const SHARED_BYTES: usize = 1 << 30;
const SHARED_COST: u32 = 32;
/// The mappings that fork(2) copies in one step, and the step's cost.
const MAPPINGS_PER_STEP: usize = 16;
const MAPPINGS_COST: u32 = 8;
/// The cost of clearing a small range, in units of a [`Budget`].
const CLEAR_COST: u32 = 4;
/// The bytes of a leaf table. Where a larger table is missing, all that it would cover is passed over at once.
const LEAF_TABLE_BYTES: usize = 1 << 21;

impl Space {
    /// A space with this one's contents at the same addresses: it claims the same slot.
    ///
    /// Leaf tables are shared, not copied, so the cost follows the number of 2 MiB parts in use and not of pages.
    ///
    /// If `child_runs_next` on this CPU, the child gets the tables that the CPU has in its root, and the parent the new
    /// ones, which lead to the same pages. Then neither the child nor, when that has left for another program, the
    /// parent has to replace the other's tables.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub async fn fork(&self, child_runs_next: bool) -> Result<Arc<Self>, Errno> {
        let range = self.range();
        let _guard = self.lock.lock(range.clone()).await?;
        let child = self.empty_child().await?;
        let shared = self.share_tables(&child, range.clone()).await;
        self.pages_are_shared_with(&child);
        // A program that runs in this space on another CPU would go on in the tables that it has.
        let exchanges = child_runs_next && shared.is_ok() && self.is_in_slot() && self.thread_count() == 1;
        if exchanges {
            self.exchange_tables(&child);
        }
        // Even after a failure: some of this space's tables may be read-only now.
        let mut gather = Gather::new();
        gather.mark(range);
        count(&counters::FLUSH_FORK);
        // Those who use the tables that were there before are told, whose ever they are now.
        let before = if exchanges { &*child } else { self };
        before.finish(&mut gather).await;
        shared?;
        child.drop_what_is_not_inherited().await?;
        child.renew_pages().await?;
        child.renew_attachments()?;
        child.inherit_calls(self);
        // Under this space's lock, so that a thread that unmaps an object's pages looks at the child afterwards.
        crate::memory::space::unmap::register(&child)?;
        Ok(child)
    }

    /// Gives each the other's tables, and with them the identity by which CPUs know them. The child is not used yet,
    /// and of this space nothing but the kernel's copies, which look at the identity again ([`Self::activate`]).
    fn exchange_tables(&self, child: &Self) {
        let (old, new) = (self.identity(), child.identity());
        self.identity.change(new, || {
            for (own, other) in [(&self.root, &child.root), (&self.entry, &child.entry)] {
                other.store(own.swap(other.load(Ordering::SeqCst), Ordering::SeqCst), Ordering::SeqCst);
            }
            child.users.copy(&self.users);
            child.identity.set(old);
        });
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

    /// Copies of the records for a child, which inherits no locks. The caller has locked the space's range, so that
    /// they don't change between two steps.
    async fn copied_mappings(&self) -> Result<Mappings<Object>, Errno> {
        let mut copies = Mappings::new();
        let mut budget = Budget::new();
        let mut at = 0;
        loop {
            let mut next: SmallVec<[Mapping<Object>; MAPPINGS_PER_STEP]> = SmallVec::new();
            next.extend(
                self.state.lock().mappings.overlapping(at..usize::MAX).take(MAPPINGS_PER_STEP).cloned(),
            );
            let Some(last) = next.last() else { return Ok(copies) };
            at = last.end;
            for mut mapping in next {
                mapping.flags.remove(Flags::LOCKED);
                copies.reserve(1)?;
                copies.insert(mapping);
            }
            budget.step(MAPPINGS_COST).await;
        }
    }

    /// A space with copies of the records and none of the pages.
    async fn empty_child(&self) -> Result<Arc<Self>, Errno> {
        let mappings = self.copied_mappings().await?;
        let state = {
            let state = self.state.lock();
            if overcommit::is_limited() {
                // A child is promised as much again; no mapping of it is a larger request than its parent's was.
                overcommit::check(state.mappings.totals().promised)?;
            }
            let brk = state.brk.clone();
            let window = state.window.clone();
            let search = state.search;
            let pages = state.pages.clone();
            let has_attachments = state.has_attachments;
            let group = state.group.as_ref().map(GroupKey::join);
            SpaceState {
                mappings,
                promise: Promise::new(state.mappings.totals().promised),
                layout: state.layout,
                window,
                search,
                brk,
                is_brk_moving: false,
                slot: state.slot.as_ref().map(|slot| Slot::claim(slot.number())),
                pages,
                has_attachments,
                keys: state.keys,
                group,
            }
        };
        let range = self.range();
        let child = Self::with_state(state, range, self.limits.for_child())?;
        child.keys.copy(&self.keys);
        child.set_isolation(self.credentials(), self.isolation());
        Ok(child)
    }

    /// In a child without running threads: drops what `MADV_DONTFORK` and `MADV_WIPEONFORK` keep from it.
    async fn drop_what_is_not_inherited(&self) -> Result<(), Errno> {
        let special = Flags::NOT_INHERITED | Flags::WIPED_IN_CHILD;
        let (mut at, mut budget) = (0, Budget::new());
        loop {
            let is_special = |mapping: &Mapping<Object>| mapping.flags.intersects(special);
            let next = self.find_record(at, &mut budget, is_special).await;
            let Some((range, flags)) = next.map(|mapping| (mapping.range(), mapping.flags)) else {
                return Ok(());
            };
            budget.step(CLEAR_COST).await;
            at = range.end;
            self.clear(range.clone()).await?;
            if flags.contains(Flags::NOT_INHERITED) {
                let mut state = self.state.lock();
                state.mappings.reserve(1)?;
                state.mappings.remove(range, |_| {});
                state.note_promises();
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
        self.exchange_object(&Object::Source(old), &Object::Source(new.clone()), is_touched).await?;
        self.set_pages(new);
        Ok(())
    }
    /// In a space whose threads are in the kernel: gives mappings of one object another in its place.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub async fn exchange(&self, old: &Object, new: &Object) -> Result<(), Errno> {
        self.exchange_object(old, new, true).await
    }

    async fn exchange_object(&self, old: &Object, new: &Object, is_touched: bool) -> Result<(), Errno> {
        let (mut at, mut budget) = (0, Budget::new());
        loop {
            let is_old = |mapping: &Mapping<Object>| mapping.backing.is_same(old);
            let next = self.find_record(at, &mut budget, is_old).await;
            let Some(range) = next.as_ref().map(Mapping::range) else { return Ok(()) };
            budget.step(CLEAR_COST).await;
            at = range.end;
            if is_touched {
                self.clear(range.clone()).await?;
            }
            let mut state = self.state.lock();
            state.mappings.reserve(2)?;
            state.mappings.change(range, |mapping| mapping.backing = new.clone());
        }
    }
}
