//! Large pages: private anonymous memory comes 2 MiB at a time where its program fills it in order, or has asked for
//! that.
//!
//! To clear a large page takes longer than a stretch of the kernel may. So it is done in steps by a fault that waits,
//! with the large page's addresses locked, before anybody can see it: faults on other parts of it wait for the lock and
//! find it.
//!
//! Memory that nobody asked for is given with care, as [`ahead`](super::ahead) does: to a walk that comes to the start
//! of a large page, or, at the first touch of such a start, to a space that has earned it. It earns one large page each
//! time that a walk comes from the place of one to the next: so a buffer that is filled again and again is large from
//! its beginning. Whether a program has filled a large page or only touched its start does not show in faults; so the
//! walk goes on only if there is something in the last page of the one before.

use core::ops::Range;
use core::sync::atomic::Ordering;

use crate::arch::paging::PAGE_SIZE;
use crate::error::Errno;
use crate::memory::counters::count;
use crate::memory::frame::{LARGE_BYTES, LargeFrame};
use crate::memory::gather::Gather;
use crate::memory::large_policy::LargePolicy;
use crate::memory::source::Object;
use crate::memory::space::ahead::PAGES_MAX;
use crate::memory::space::{Flags, Mapping, Protection, Space, resident};
use crate::memory::table::LargePlace;
use crate::memory::{counters, frame, large_policy};
use crate::sched::Budget;

/// Pages that are cleared in one step, and the step's cost in units of a [`Budget`].
const CLEARED_PAGES: usize = 16;
const CLEARED_COST: u32 = 24;
/// The cost of copying a page.
const COPIED_COST: u32 = 2;
/// The part of memory that is to be left beside a large page for which a program has asked, and one that it fills.
const ASKED_PART: usize = 16;
const FILLED_PART: usize = 8;

/// The addresses of the large page around an address.
pub(super) const fn large_around(address: usize) -> Range<usize> {
    let start = address & !(LARGE_BYTES - 1);
    start..start + LARGE_BYTES
}

/// Whether a mapping can have a large page at these addresses.
fn has_place_for(mapping: &Mapping<Object>, large: &Range<usize>) -> bool {
    matches!(mapping.backing, Object::Anonymous(_))
        && !mapping.flags.intersects(Flags::SHARED | Flags::GROWS_DOWN)
        && mapping.protection.contains(Protection::WRITE)
        && !mapping.protection.contains(Protection::EXECUTE)
        && mapping.start <= large.start
        && large.end <= mapping.end
}

impl Space {
    /// `PR_SET_THP_DISABLE`.
    pub fn set_large_pages_off(&self, is_off: bool) {
        self.limits.large_pages_are_off.store(is_off, Ordering::Relaxed);
    }

    /// The policy for this space.
    fn large_policy(&self) -> LargePolicy {
        let is_off = self.limits.large_pages_are_off.load(Ordering::Relaxed);
        if is_off { LargePolicy::Never } else { large_policy::current() }
    }

    /// Whether private anonymous memory of so many bytes should begin where a large page can.
    pub(super) fn wants_alignment(&self, length: usize) -> bool {
        length.is_multiple_of(LARGE_BYTES) && self.large_policy() == LargePolicy::Always
    }

    /// Whether memory with these properties may have large pages: `THPeligible`.
    #[must_use]
    pub fn may_have_large(&self, range: &Range<usize>, flags: Flags, is_anonymous: bool) -> bool {
        let first = range.start.next_multiple_of(LARGE_BYTES);
        is_anonymous
            && !flags.contains(Flags::SHARED)
            && first.saturating_add(LARGE_BYTES) <= range.end
            && self.large_policy().allows(flags)
    }

    /// Whether a store to a page that is not there should bring a large page in. `pages` is how many pages the walk
    /// would bring that it is a part of.
    #[inline]
    pub(super) fn wants_large(&self, mapping: &Mapping<Object>, page: usize, pages: usize) -> bool {
        let is_start = page.is_multiple_of(LARGE_BYTES);
        (is_start || mapping.flags.contains(Flags::LARGE_PAGES))
            && self.wants_large_here(mapping, page, pages)
    }

    #[inline(never)]
    fn wants_large_here(&self, mapping: &Mapping<Object>, page: usize, pages: usize) -> bool {
        if !has_place_for(mapping, &large_around(page)) || !self.large_policy().allows(mapping.flags) {
            return false;
        }
        mapping.flags.contains(Flags::LARGE_PAGES)
            || frame::is_plentiful() && (pages == PAGES_MAX || self.ahead.has_earned())
    }

    /// Whether a large page to which the program may store begins at an address, as far as that can be seen at once.
    pub(super) fn is_large_at(&self, address: usize) -> bool {
        let large = large_around(address);
        if address != large.start {
            return false;
        }
        let Ok(Some(_guard)) = self.lock.try_lock(large) else { return false };
        matches!(self.root().large_place(address), LargePlace::Large(entry) if entry.is_writable())
    }

    /// Whether a store to a page that [`Self::wants_large`] should bring a large page in, seen from what has become of
    /// the one before. If not, a walk is over.
    pub(super) fn deserves_large(&self, page: usize) -> bool {
        let is_asked_for = {
            let state = self.state.lock();
            state.mappings.get(page).is_some_and(|mapping| mapping.flags.contains(Flags::LARGE_PAGES))
        };
        if is_asked_for
            || self.ahead.pages(page) < PAGES_MAX
            || self.is_filled(page.saturating_sub(LARGE_BYTES))
        {
            return true;
        }
        self.ahead.forget(page);
        false
    }

    /// Whether the large page at an address has something in its last page, or there are small ones, each of which a
    /// walk has touched or brought. Unknown is no.
    fn is_filled(&self, address: usize) -> bool {
        let large = large_around(address);
        let Ok(Some(_guard)) = self.lock.try_lock(large.clone()) else { return false };
        match self.root().large_place(address) {
            LargePlace::Large(entry) => !frame::is_zero(entry.part(large.end - PAGE_SIZE).physical()),
            LargePlace::Table => true,
            LargePlace::Empty => false,
        }
    }

    /// Brings a large page in around a page that a store has missed, with all of its addresses locked. `false` if there
    /// is none, or it has no place any more.
    pub(super) async fn bring_in_large(&self, page: usize) -> Result<bool, Errno> {
        let large = large_around(page);
        let found = {
            let state = self.state.lock();
            let mapping = state.mappings.get(page).filter(|mapping| has_place_for(mapping, &large));
            mapping.map(|mapping| (mapping.flags, mapping.key))
        };
        let Some((flags, key)) = found else { return Ok(false) };
        if self.root().large_place(page) != LargePlace::Empty {
            return Ok(false);
        }
        let Some(found) = find(flags) else {
            count(&counters::LARGE_FALLBACKS);
            return Ok(false);
        };
        let mut budget = Budget::new();
        for first in (0..LARGE_BYTES / PAGE_SIZE).step_by(CLEARED_PAGES) {
            found.clear(first..first + CLEARED_PAGES);
            budget.step(CLEARED_COST).await;
        }
        self.root().map_large(large.start, found, key)?;
        self.pages_came(LARGE_BYTES / PAGE_SIZE);
        count(&counters::FAULTS);
        count(&counters::LARGE_FAULTS);
        if page == large.start {
            self.ahead.brought_large(page, large.end);
        }
        Ok(true)
    }
}

impl Space {
    /// Makes large pages of the small ones in a range: `MADV_COLLAPSE`.
    ///
    /// # Errors
    /// `EINVAL` (a place that cannot have a large page, or has nothing; the others have been done), `ENOMEM`; `EINTR`
    /// if the caller is to die.
    pub(super) async fn collapse(
        &self,
        range: Range<usize>,
        is_dying: &(impl Fn() -> bool + Sync),
    ) -> Result<(), Errno> {
        let first = range.start.next_multiple_of(LARGE_BYTES);
        let mut result = Ok(());
        for start in (first..range.end & !(LARGE_BYTES - 1)).step_by(LARGE_BYTES) {
            if is_dying() {
                return Err(Errno::EINTR);
            }
            match self.collapse_one(start..start + LARGE_BYTES).await {
                Err(Errno::EINVAL) => result = Err(Errno::EINVAL),
                done => done?,
            }
        }
        result
    }

    /// Nobody is in the place while its pages are copied: who comes waits for the lock, and CPUs have forgotten it.
    async fn collapse_one(&self, large: Range<usize>) -> Result<(), Errno> {
        let _guard = self.lock.lock(large.clone()).await?;
        let allowed = {
            let state = self.state.lock();
            let mapping = state.mappings.get(large.start).filter(|mapping| has_place_for(mapping, &large));
            mapping.filter(|mapping| !mapping.flags.contains(Flags::SMALL_PAGES)).map(|mapping| mapping.key)
        };
        let Some(key) = allowed else { return Err(Errno::EINVAL) };
        if self.limits.large_pages_are_off.load(Ordering::Relaxed) {
            return Err(Errno::EINVAL);
        }
        match self.root().large_place(large.start) {
            LargePlace::Large(_) => return Ok(()),
            LargePlace::Empty => return Err(Errno::EINVAL),
            LargePlace::Table => {}
        }
        let found = LargeFrame::allocate(frame::total_frames() / ASKED_PART).ok_or(Errno::ENOMEM)?;
        let Some(old) = self.root().take_table(large.start) else { return Err(Errno::EINVAL) };
        let mut gather = Gather::new();
        gather.mark(large.clone());
        self.finish(&mut gather).await;
        let (mut budget, mut resident) = (Budget::new(), 0);
        for number in 0..LARGE_BYTES / PAGE_SIZE {
            let page = old.page(number);
            if resident::counts(page) {
                found.copy(number, page.physical());
                resident += 1;
            } else {
                found.clear(number..number + 1);
            }
            budget.step(COPIED_COST).await;
        }
        if let Err(error) = self.root().map_large(large.start, found, key) {
            // Nothing above the table has gone, so this does not happen.
            self.pages_went(resident);
            gather.take(old.entry(), 1, large);
            self.finish(&mut gather).await;
            return Err(error);
        }
        self.pages_came(LARGE_BYTES / PAGE_SIZE - resident);
        gather.take(old.entry(), 1, large);
        self.finish(&mut gather).await;
        Ok(())
    }
}

/// A large page, if it leaves enough memory: what a program fills in order leaves an eighth of all, what it has asked
/// for a sixteenth.
fn find(flags: Flags) -> Option<LargeFrame> {
    let part = if flags.contains(Flags::LARGE_PAGES) { ASKED_PART } else { FILLED_PART };
    let left = frame::total_frames() / part;
    LargeFrame::allocate(left).or_else(|| {
        if !large_policy::is_worth_an_effort(flags) {
            return None;
        }
        // Single frames in caches may be what a block lacks.
        frame::drain_cached();
        LargeFrame::allocate(left)
    })
}
