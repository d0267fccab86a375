//! The frames and tables that an operation has taken out of a page table and may release only after the translations
//! are flushed.

use core::ops::Range;

use crate::arch::paging;
use crate::arch::paging::{PAGE_SIZE, PageTableEntry};
use crate::memory::deferred_free;
use crate::memory::frame::FrameRef;
use crate::memory::shootdown::PendingFlush;

const INLINE: usize = 8;
/// Words of a page.
const SPILL: usize = PAGE_SIZE / size_of::<u64>();
/// Above this many pages, flushing everything is cheaper than page by page.
const PAGES_BY_PAGE: usize = 16;

/// Pages that are counted in one go, at most a leaf table's more.
const COUNTED_MAX: usize = 4096;

/// No addresses, such that a union with it is the other range.
const NOTHING: Range<usize> = Range { start: usize::MAX, end: 0 };

/// References to frames and tables, and the addresses whose translations are stale.
///
/// It holds a few entries itself and, if it can get one, a page of more. A full gather is flushed, drained and used
/// again.
pub struct Gather {
    inline: [u64; INLINE],
    spill: Option<FrameRef>,
    length: usize,
    stale: Range<usize>,
    /// Whether other CPUs must flush too.
    everywhere: bool,
    /// Whether tables were taken.
    has_tables: bool,
    /// Pages of programs that were taken out.
    pages: usize,
}

impl Gather {
    /// Nothing gathered.
    pub const fn new() -> Self {
        Self {
            inline: [0; INLINE],
            spill: None,
            length: 0,
            stale: NOTHING,
            everywhere: false,
            has_tables: false,
            pages: 0,
        }
    }

    /// Whether nothing is stale and nothing waits for release.
    pub const fn is_empty(&self) -> bool {
        self.length == 0 && self.stale.start >= self.stale.end
    }

    /// Whether another entry finds room; tries to get a page for more.
    pub fn has_room(&mut self) -> bool {
        self.has_room_for(1)
    }

    /// Whether `count` more entries find room.
    pub fn has_room_for(&mut self, count: usize) -> bool {
        if self.length + count <= INLINE {
            return true;
        }
        if self.spill.is_none() {
            self.spill = FrameRef::allocate().ok();
        }
        self.spill.is_some() && self.length + count <= INLINE + SPILL
    }

    /// Marks the translations of some addresses as stale.
    pub fn mark(&mut self, range: Range<usize>) {
        self.mark_here(range);
        self.everywhere = true;
    }

    /// Marks translations as stale of which other CPUs may keep theirs: they only lack a right, and another fault of
    /// theirs costs less than interrupting them.
    pub fn mark_here(&mut self, range: Range<usize>) {
        self.stale = self.stale.start.min(range.start)..self.stale.end.max(range.end);
    }

    /// Whether other CPUs must flush too.
    pub const fn is_everywhere(&self) -> bool {
        self.everywhere
    }

    /// Takes an entry that was in a table of `level` and covered `range`. There must be room.
    pub fn take(&mut self, entry: PageTableEntry, level: usize, range: Range<usize>) {
        self.mark(range);
        self.has_tables |= level > 0;
        if level == 0 && !entry.is_counted() {
            return;
        }
        let word = deferred_free::entry_word(entry, level);
        match self.length.checked_sub(INLINE) {
            None => self.inline[self.length] = word,
            Some(at) => {
                if let Some(page) = &self.spill {
                    page.write(at * 8, &word.to_le_bytes());
                }
            }
        }
        self.length += 1;
    }

    /// Counts pages of programs that were taken out.
    pub const fn count_pages(&mut self, count: usize) {
        self.pages += count;
    }

    /// Whether so many were counted that others should have their turn before more are.
    pub const fn is_count_full(&self) -> bool {
        self.pages >= COUNTED_MAX
    }

    /// How many these were since the last time.
    pub const fn take_page_count(&mut self) -> usize {
        core::mem::replace(&mut self.pages, 0)
    }

    /// The pages whose translations are stale, if they are few, and no table is.
    pub fn few_pages(&self) -> Option<impl ExactSizeIterator<Item = usize> + Clone> {
        let is_few = !self.has_tables && self.stale.len() / PAGE_SIZE <= PAGES_BY_PAGE;
        is_few.then(|| self.stale.clone().step_by(PAGE_SIZE))
    }

    /// Flushes this CPU's stale translations. Returns whether there were any.
    pub fn flush_here(&self) -> bool {
        if self.stale.start >= self.stale.end {
            return false;
        }
        let pages = self.stale.len() / PAGE_SIZE;
        if pages > PAGES_BY_PAGE {
            crate::memory::counters::count(&crate::memory::counters::FLUSH_ALL);
            paging::flush_all();
        } else {
            crate::memory::counters::add(&crate::memory::counters::FLUSH_PAGE, pages as u64);
            self.stale.clone().step_by(PAGE_SIZE).for_each(paging::flush_page);
        }
        true
    }

    /// Releases everything when the CPUs have flushed to which `posted` went.
    pub fn release(&mut self, posted: PendingFlush) {
        let spill = self.spill.as_ref();
        let word = |at: usize| match at.checked_sub(INLINE) {
            None => self.inline[at],
            Some(at) => spill.map_or(0, |page| {
                let mut bytes = [0; 8];
                page.bytes().part(at * 8..at * 8 + 8).read(&mut bytes);
                u64::from_le_bytes(bytes)
            }),
        };
        deferred_free::release(posted, (0..self.length).map(word));
        self.length = 0;
        self.stale = NOTHING;
        self.everywhere = false;
        self.has_tables = false;
    }
}
