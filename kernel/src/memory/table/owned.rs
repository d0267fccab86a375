//! Pages and tables that only one root leads to.

use core::ops::Range;

use heddle_kernel_core::tlb::leaf_table::{GROUP, each_occupied};

use super::{PageTable, Root, table};
use crate::arch::paging;
use crate::arch::paging::{LEVELS, PAGE_SIZE, PageTableEntry};
use crate::error::Errno;
use crate::memory::frame;

/// Pages and tables that only one root leads to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Owns {
    /// Pages of memory.
    pub pages: usize,
    /// Page tables, the root not included.
    pub tables: usize,
}

impl Root {
    /// Pages and tables in a locked range that only this root leads to.
    pub fn own(self, range: Range<usize>) -> Owns {
        let mut owns = Owns::default();
        count_own(table(self.0), LEVELS - 1, range, &mut owns);
        owns
    }
}

fn count_own(current: &'static PageTable, level: usize, range: Range<usize>, owns: &mut Owns) {
    let span = paging::span(level);
    let base = range.start & !(paging::span(level + 1) - 1);
    let first = paging::index(range.start, level) / GROUP * GROUP;
    let last = (paging::index(range.end - 1, level) / GROUP + 1) * GROUP;
    let _ = each_occupied(&current[first..last], |index, entry: PageTableEntry| {
        let start = base + (first + index) * span;
        let part = start.max(range.start)..(start + span).min(range.end);
        if level == 1 && entry.is_large() {
            // The table that is kept for a split is nobody else's either.
            owns.tables += usize::from(part.start == start && part.end == start + span);
            let is_own = frame::mappers(entry.physical()) == 1 && frame::is_whole(entry.physical());
            owns.pages += if is_own { part.len() / PAGE_SIZE } else { 0 };
            return Ok(());
        }
        let is_own = (level > 0 || entry.is_counted()) && frame::references(entry.physical()) == 1;
        if part.start >= part.end || !is_own {
            return Ok(());
        }
        if level == 0 {
            owns.pages += 1;
        } else {
            // A table that covers more than the range is other ranges' too.
            owns.tables += usize::from(part.start == start && part.end == start + span);
            count_own(table(entry.physical()), level - 1, part, owns);
        }
        Ok::<_, Errno>(())
    });
}
