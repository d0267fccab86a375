//! Memory that counts for groups of processes (`process::control_group`), and how much a group may have.
//!
//! A space counts for its group in shares of [`SHARE_PAGES`]. It takes another one when more pages have come than it
//! has paid for, and gives some back when many have gone, so a page that comes or goes costs a comparison; a space
//! without a group has paid for everything. Pages that a child shares with its parent count for both: whichever of them
//! is left with a page has paid for it.
//!
//! A page is charged when it is there already. A group that has too much is left to a coroutine
//! (`process::control_group::memory`), because whoever brings a page in holds locks and can end nobody. Nothing of a
//! program's memory can be had again from elsewhere, so there is nothing to be tried before.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use core::task::{Poll, Waker};

use crate::memory::space::Space;
use crate::sync::SpinLock;

/// Pages that a space takes at a time.
const SHARE_PAGES: usize = 32;
/// Pages that may go before a space gives any back.
const SLACK_PAGES: usize = 3 * SHARE_PAGES;

/// An event in a group, counted for it and for all above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryEvent {
    /// It had more than it may have.
    Max,
    /// Somebody had to end.
    OutOfMemory,
    /// A process of it has ended for that.
    Kill,
    /// All processes of it have.
    GroupKill,
}

impl MemoryEvent {
    /// All of them, in the order of `memory.events`.
    pub const ALL: [Self; 4] = [Self::Max, Self::OutOfMemory, Self::Kill, Self::GroupKill];
}

/// The memory of a group and of those in it.
pub struct GroupMemory {
    parent: Option<Arc<Self>>,
    pages: AtomicUsize,
    peak: AtomicUsize,
    max: AtomicUsize,
    /// The limit of `memory.swap.max` in bytes, which always holds: there is no swap.
    pub swap_max: AtomicU64,
    /// Whether all processes end where one has to.
    pub ends_as_whole: AtomicBool,
    /// Events in it and below, and in it alone.
    events: [AtomicU64; 4],
    own_events: [AtomicU64; 4],
}

impl GroupMemory {
    /// The memory of a new group.
    #[must_use]
    pub const fn new(parent: Option<Arc<Self>>) -> Self {
        Self {
            parent,
            pages: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            max: AtomicUsize::new(usize::MAX),
            swap_max: AtomicU64::new(u64::MAX),
            ends_as_whole: AtomicBool::new(false),
            events: [const { AtomicU64::new(0) }; 4],
            own_events: [const { AtomicU64::new(0) }; 4],
        }
    }

    fn upwards(&self) -> impl Iterator<Item = &Self> {
        core::iter::successors(Some(self), |group| group.parent.as_deref())
    }

    /// Pages that its spaces have taken.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.pages.load(Ordering::Relaxed)
    }

    /// The most that they had at a time.
    #[must_use]
    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// The most that they may have; `usize::MAX` for no limit.
    #[must_use]
    pub fn max(&self) -> usize {
        self.max.load(Ordering::Relaxed)
    }

    /// Changes the limit.
    pub fn set_max(&self, pages: usize) {
        self.max.store(pages, Ordering::Relaxed);
        if self.is_over() {
            tell();
        }
    }

    /// Whether they have more than they may.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.pages() > self.max()
    }

    /// How often something happened, in it alone or below as well.
    #[must_use]
    pub fn events(&self, event: MemoryEvent, is_own: bool) -> u64 {
        let events = if is_own { &self.own_events } else { &self.events };
        events[event as usize].load(Ordering::Relaxed)
    }

    /// Counts something that happened in it.
    pub fn count(&self, event: MemoryEvent) {
        self.own_events[event as usize].fetch_add(1, Ordering::Relaxed);
        for group in self.upwards() {
            group.events[event as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn charge(&self, pages: usize) {
        let mut is_over = false;
        for group in self.upwards() {
            let now = group.pages.fetch_add(pages, Ordering::Relaxed) + pages;
            group.peak.fetch_max(now, Ordering::Relaxed);
            is_over |= now > group.max();
        }
        if is_over {
            tell();
        }
    }

    fn uncharge(&self, pages: usize) {
        let mut is_over = false;
        for group in self.upwards() {
            let now = group.pages.fetch_sub(pages, Ordering::Relaxed) - pages;
            is_over |= now > group.max();
        }
        if is_over {
            // Whoever has ended was not enough.
            tell();
        }
    }
}

/// A group may have too much, and nobody has looked yet.
static IS_OVER: AtomicBool = AtomicBool::new(false);
/// The coroutine that looks.
static LOOKER: SpinLock<Option<Waker>> = SpinLock::new(None);

#[cold]
fn tell() {
    IS_OVER.store(true, Ordering::Release);
    if let Some(waker) = &*LOOKER.lock() {
        waker.wake_by_ref();
    }
}

/// Waits until a group may have more than it may.
pub async fn excess() {
    core::future::poll_fn(|context| {
        let waker = context.waker().clone();
        let before = LOOKER.lock().replace(waker);
        drop(before);
        if IS_OVER.swap(false, Ordering::AcqRel) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// The pages that a space has taken for its group.
#[derive(Default)]
struct GroupShare {
    group: Option<Arc<GroupMemory>>,
    /// Pages taken.
    taken: usize,
    /// Pages that it had when it came from the root group, where they stay.
    others: usize,
}

/// How a space counts for its group.
pub(super) struct SpaceCharge {
    /// So many pages have been paid for; no number is larger where there is no group.
    paid: AtomicUsize,
    /// With fewer, some are given back.
    floor: AtomicUsize,
    /// The process whose program the space is.
    owner: AtomicI32,
    share: SpinLock<GroupShare>,
}

impl Default for SpaceCharge {
    fn default() -> Self {
        let share = SpinLock::new(GroupShare::default());
        Self {
            paid: AtomicUsize::new(usize::MAX),
            floor: AtomicUsize::new(0),
            owner: AtomicI32::new(0),
            share,
        }
    }
}

impl SpaceCharge {
    /// So many pages are there now, more than before.
    #[inline]
    pub fn have_come(&self, pages: &AtomicUsize, now: usize) {
        if now > self.paid.load(Ordering::Relaxed) {
            self.settle(pages);
        }
    }

    /// So many pages are there now, fewer than before.
    #[inline]
    pub fn have_gone(&self, pages: &AtomicUsize, now: usize) {
        if now < self.floor.load(Ordering::Relaxed) {
            self.settle(pages);
        }
    }

    #[cold]
    fn settle(&self, pages: &AtomicUsize) {
        self.settle_share(&mut self.share.lock(), pages.load(Ordering::Relaxed));
    }

    fn settle_share(&self, share: &mut GroupShare, pages: usize) {
        let Some(group) = &share.group else {
            self.paid.store(usize::MAX, Ordering::Relaxed);
            self.floor.store(0, Ordering::Relaxed);
            return;
        };
        share.others = share.others.min(pages);
        let own = pages - share.others;
        if own > share.taken {
            let more = own.next_multiple_of(SHARE_PAGES) - share.taken;
            group.charge(more);
            share.taken += more;
        } else if share.taken - own > 2 * SHARE_PAGES {
            let less = share.taken - own.next_multiple_of(SHARE_PAGES);
            group.uncharge(less);
            share.taken -= less;
        }
        let paid = share.others + share.taken;
        self.paid.store(paid, Ordering::Relaxed);
        self.floor.store(paid.saturating_sub(SLACK_PAGES), Ordering::Relaxed);
    }
}

impl Drop for GroupShare {
    fn drop(&mut self) {
        if let Some(group) = &self.group {
            group.uncharge(self.taken);
        }
    }
}

impl Space {
    /// Says whose program the space is.
    pub fn set_owner(&self, pid: i32) {
        self.charge().0.owner.store(pid, Ordering::Relaxed);
    }

    /// Whether it is this process's, and not borrowed from its parent.
    #[must_use]
    pub fn is_owned_by(&self, pid: i32) -> bool {
        self.charge().0.owner.load(Ordering::Relaxed) == pid
    }

    /// Counts for this group from now on. As in Linux, pages that come from the root group count for nobody, unless the
    /// space `is_new`; between two groups they move along.
    pub fn enter_group(&self, group: Option<&Arc<GroupMemory>>, is_new: bool) {
        let (charge, pages) = self.charge();
        let is_in_none = charge.paid.load(Ordering::Relaxed) == usize::MAX;
        if is_in_none && group.is_none() {
            return;
        }
        let mut share = charge.share.lock();
        let is_same = match (&share.group, group) {
            (Some(own), Some(group)) => Arc::ptr_eq(own, group),
            (None, None) => true,
            _ => false,
        };
        if is_same {
            return;
        }
        let before = core::mem::replace(&mut share.group, group.cloned());
        let taken = core::mem::take(&mut share.taken);
        if before.is_none() && !is_new {
            share.others = pages.load(Ordering::Relaxed);
        }
        // Given back first, so that a group above both never has it twice.
        if let Some(before) = &before {
            before.uncharge(taken);
        }
        charge.settle_share(&mut share, pages.load(Ordering::Relaxed));
        drop(share);
        drop(before);
    }
}
