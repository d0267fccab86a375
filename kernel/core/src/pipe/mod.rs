//! The bytes in a pipe or in a stream socket: pages of bytes in order, up to a capacity.
//!
//! The queue says where bytes lie, and its owner copies them: a page is anything that names a page. A writer copies to
//! the [free part](PageQueue::tail) of the last page and then [commits](PageQueue::commit); a reader copies from the
//! [first](PageQueue::head) and then [consumes](PageQueue::consume). So a copy that stops half-way (a page of user
//! memory is missing) has done exactly what it reported.
//!
//! A large copy is made without the queue's lock. A writer [reserves](PageQueue::reserve) room, fills pages of its
//! own, and [appends](PageQueue::append) them. A reader [borrows](PageQueue::borrow) the first bytes, which stay where
//! they are and count as before, and [takes](PageQueue::take_borrowed) those that it has copied; nobody else may
//! consume meanwhile. Bytes that were committed never change, so they can be [shared](PageQueue::share_into) with
//! another queue.

#[cfg(test)]
mod tests;

use alloc::collections::VecDeque;
use core::ops::Range;

use crate::fallible::push_back_reserved;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// Pages for which an empty queue may keep places.
const KEPT_PLACES: usize = 64;

pub use crate::OutOfMemory;

/// A page and what of it holds bytes.
#[derive(Debug)]
struct Filled<P> {
    page: P,
    start: u16,
    end: u16,
    /// Another queue may have the page too, so nothing is written to it any more.
    is_shared: bool,
}

impl<P> Filled<P> {
    fn range(&self) -> Range<usize> {
        usize::from(self.start)..usize::from(self.end)
    }
}

/// Bytes in pages.
#[derive(Debug)]
pub struct PageQueue<P> {
    /// None is empty but the last, which may be.
    pages: VecDeque<Filled<P>>,
    length: usize,
    /// Room that writers have, who have not appended yet.
    reserved: usize,
    capacity: usize,
    is_borrowed: bool,
}

impl<P> PageQueue<P> {
    /// An empty queue that holds at most `capacity` bytes; allocates nothing.
    #[must_use]
    pub const fn new(capacity: usize) -> Self {
        Self { pages: VecDeque::new(), length: 0, reserved: 0, capacity, is_borrowed: false }
    }

    /// Bytes in the queue.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether there is nothing to read.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The most it may hold.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes in the queue, and room that writers have, who have not appended yet.
    #[must_use]
    pub const fn claimed(&self) -> usize {
        self.length + self.reserved
    }

    /// Pages of memory that it takes.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Bytes that may still be written; none while there are many pages that are hardly filled.
    #[must_use]
    pub fn room(&self) -> usize {
        if self.pages.len() >= self.pages_max() { 0 } else { self.byte_room() }
    }

    const fn byte_room(&self) -> usize {
        self.capacity - self.claimed()
    }

    /// Pages from which on it counts as full: a program can have pages with one byte each.
    const fn pages_max(&self) -> usize {
        2 * self.capacity / PAGE_BYTES + 2
    }

    /// Changes the capacity; says whether the contents, and what writers have reserved, fit.
    pub const fn set_capacity(&mut self, capacity: usize) -> bool {
        let fits = self.claimed() <= capacity;
        if fits {
            self.capacity = capacity;
        }
        fits
    }

    /// The last page and its free part, as far as the capacity reaches; `None` if it has none, so that a page
    /// must be [added](Self::add).
    #[must_use]
    #[inline]
    pub fn tail(&self) -> Option<(&P, Range<usize>)> {
        let last = self.pages.back().filter(|last| !last.is_shared)?;
        let end = usize::from(last.end);
        let free = end..PAGE_BYTES.min(end + self.byte_room());
        (!free.is_empty()).then_some((&last.page, free))
    }

    /// Makes the first `count` bytes of the [free part](Self::tail) contents.
    #[inline]
    pub fn commit(&mut self, count: usize) {
        debug_assert!(count <= self.byte_room());
        if let Some(last) = self.pages.back_mut() {
            last.end += count as u16;
            self.length += count;
        }
    }

    /// Provides places for so many pages.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn reserve_places(&mut self, count: usize) -> Result<(), OutOfMemory> {
        self.pages.try_reserve(count).map_err(|_| OutOfMemory)
    }

    /// Adds a free page.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn add(&mut self, page: P) -> Result<(), OutOfMemory> {
        self.reserve_places(1)?;
        push_back_reserved(&mut self.pages, Filled { page, start: 0, end: 0, is_shared: false });
        Ok(())
    }

    /// Keeps room for a writer.
    ///
    /// # Panics
    /// If there is less, in debug builds.
    pub const fn reserve(&mut self, count: usize) {
        debug_assert!(count <= self.byte_room());
        self.reserved += count;
    }

    /// Gives reserved room back: before bytes are appended there, and whatever was not needed.
    pub const fn unreserve(&mut self, count: usize) {
        self.reserved = self.reserved.saturating_sub(count);
    }

    /// Appends a page whose first `count` bytes are contents. Places for it have been [reserved](Self::reserve_places).
    pub fn append(&mut self, page: P, count: usize) {
        debug_assert!((1..=PAGE_BYTES).contains(&count) && count <= self.byte_room());
        // An empty page stays the last: none is in the middle.
        if self.pages.back().is_some_and(|last| last.start == last.end) {
            self.pages.pop_back();
        }
        push_back_reserved(&mut self.pages, Filled { page, start: 0, end: count as u16, is_shared: false });
        self.length += count;
    }

    /// The first page and what it has to read; `None` if there is nothing.
    #[must_use]
    #[inline]
    pub fn head(&self) -> Option<(&P, Range<usize>)> {
        if self.length == 0 {
            return None;
        }
        self.pages.front().map(|first| (&first.page, first.range()))
    }

    /// All pages and what they have to read, the oldest first.
    pub fn parts(&self) -> impl Iterator<Item = (&P, Range<usize>)> {
        self.pages.iter().map(|filled| (&filled.page, filled.range()))
    }

    /// Removes the oldest `count` bytes.
    #[inline]
    pub fn consume(&mut self, count: usize) {
        if let Some(first) = self.pages.front_mut()
            && count < usize::from(first.end - first.start)
        {
            first.start += count as u16;
            self.length -= count;
            return;
        }
        if count == self.length
            && self.pages.len() == 1
            && let Some(last) = self.pages.front_mut().filter(|last| !last.is_shared)
        {
            // Kept for what comes next.
            (last.start, last.end, self.length) = (0, 0, 0);
            return;
        }
        self.consume_pages(count);
    }

    #[inline(never)]
    fn consume_pages(&mut self, count: usize) {
        let mut left = count.min(self.length);
        self.length -= left;
        let keeps_places = self.length > 0 || self.pages.capacity() <= KEPT_PLACES;
        while let Some(first) = self.pages.front_mut() {
            let here = left.min(usize::from(first.end - first.start));
            first.start += here as u16;
            left -= here;
            if first.start < first.end {
                return;
            }
            let is_last = self.length == 0 && self.pages.len() == 1;
            if is_last
                && keeps_places
                && let Some(last) = self.pages.front_mut().filter(|last| !last.is_shared)
            {
                // For what comes next.
                (last.start, last.end) = (0, 0);
                return;
            }
            self.pages.pop_front();
        }
        if !keeps_places {
            self.pages = VecDeque::new();
        }
    }

    /// Takes everything out, to be dropped without the queue's lock. Bytes that are borrowed are gone too.
    #[must_use]
    pub fn take(&mut self) -> Self {
        let rest = Self { reserved: self.reserved, ..Self::new(self.capacity) };
        core::mem::replace(self, rest)
    }

    /// Whether somebody has borrowed bytes, so that nobody else may consume.
    #[must_use]
    pub const fn is_borrowed(&self) -> bool {
        self.is_borrowed
    }

    /// Takes `count` bytes out that were borrowed and copied.
    pub fn take_borrowed(&mut self, count: usize) {
        self.is_borrowed = false;
        self.consume(count);
    }
}

impl<P: Clone> PageQueue<P> {
    /// Shows the first pages and what they have to read to `visit`, until it says that it has enough. They stay until
    /// they are [taken](Self::take_borrowed).
    pub fn borrow(&mut self, mut visit: impl FnMut(&P, Range<usize>) -> bool) {
        debug_assert!(!self.is_borrowed, "one reader at a time");
        self.is_borrowed = true;
        for filled in &self.pages {
            if !visit(&filled.page, filled.range()) {
                break;
            }
        }
    }

    /// Appends up to `count` of the first bytes to another queue, as far as it has room, and keeps them. Both have the
    /// pages then, and nobody writes to these any more. Returns how many bytes it was.
    ///
    /// # Errors
    /// [`OutOfMemory`]; nothing was appended.
    pub fn share_into(&mut self, target: &mut Self, count: usize) -> Result<usize, OutOfMemory> {
        let most = count.min(self.length).min(target.room());
        let (mut count, mut pages) = (0, 0);
        for filled in &self.pages {
            if count == most || target.pages.len() + pages >= target.pages_max() {
                break;
            }
            count += filled.range().len().min(most - count);
            pages += 1;
        }
        let mut left = count;
        target.reserve_places(pages)?;
        for filled in self.pages.iter_mut().take(pages) {
            let here = left.min(filled.range().len());
            left -= here;
            if here > 0 {
                filled.is_shared = true;
                let end = filled.start + here as u16;
                let page = filled.page.clone();
                // An empty page stays the last.
                if target.pages.back().is_some_and(|last| last.start == last.end) {
                    target.pages.pop_back();
                }
                let copy = Filled { page, start: filled.start, end, is_shared: true };
                push_back_reserved(&mut target.pages, copy);
            }
        }
        target.length += count;
        Ok(count)
    }
}
