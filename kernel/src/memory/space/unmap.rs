//! Pages that an object has given up: a file that was cut off must not be seen through mappings of it any longer.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::arch::paging::PAGE_SIZE;
use crate::error::Errno;
use crate::memory::MapSource;
use crate::memory::fallible::try_push;
use crate::memory::source::Object;
use crate::memory::space::{Flags, Space};
use crate::sched::Budget;
use crate::sync::SpinLock;

/// All spaces. The place of one that is gone goes to a new one.
static SPACES: SpinLock<Vec<Weak<Space>>> = SpinLock::new(Vec::new());
/// How many spaces there have ever been.
static REGISTERED: AtomicU64 = AtomicU64::new(0);

/// Makes a new space known: before anything is mapped in it, or for a child before its parent is unlocked.
pub(super) fn register(space: &Arc<Space>) -> Result<(), Errno> {
    let mut spaces = SPACES.lock();
    let space = Arc::downgrade(space);
    let gone = spaces.iter().position(|known| known.strong_count() == 0);
    let old = match gone {
        Some(index) => Some(core::mem::replace(&mut spaces[index], space)),
        None => {
            try_push(&mut spaces, space)?;
            None
        }
    };
    REGISTERED.fetch_add(1, Ordering::Release);
    drop(spaces);
    drop(old);
    Ok(())
}

/// Takes the pages with these numbers of an object out of every space that maps them; later accesses ask the object
/// again. It must refuse the pages, or give others, before this is called.
///
/// A fault that found the old page holds its range until it has mapped it, so waiting for the range is enough. A fork
/// holds the whole space until its child is known; if spaces came while these were looked at, all are looked at again.
///
/// False if a page stays mapped for want of memory.
pub async fn unmap_mapping_range(source: &Arc<dyn MapSource>, pages: Range<u64>) -> bool {
    unmap(source, pages, false).await
}

/// The same where pages are still the object's: private mappings keep theirs, which may be copies that were written to.
pub async fn unmap_shared(source: &Arc<dyn MapSource>, pages: Range<u64>) -> bool {
    unmap(source, pages, true).await
}

async fn unmap(source: &Arc<dyn MapSource>, pages: Range<u64>, only_shared: bool) -> bool {
    let mut forgotten = true;
    loop {
        let before = REGISTERED.load(Ordering::Acquire);
        let mut index = 0;
        loop {
            let space = match SPACES.lock().get(index) {
                Some(space) => space.upgrade(),
                None => break,
            };
            index += 1;
            if let Some(space) = space {
                forgotten &= space.forget_object(source, &pages, only_shared).await;
            }
        }
        if REGISTERED.load(Ordering::Acquire) == before {
            return forgotten;
        }
    }
}

/// Stores what was written to these pages of an object, where that is more than memory. They are unmapped everywhere
/// first, so that the next store causes a fault.
///
/// # Errors
/// The error that keeps the object from being stored.
pub async fn write_back(source: &Arc<dyn MapSource>, pages: Range<u64>) -> Result<(), Errno> {
    let Some(written) = source.written(&pages) else { return Ok(()) };
    let is_unmapped = unmap_shared(source, written.pages.clone()).await;
    source.store(&written, is_unmapped)
}

impl Space {
    /// Whether a locked range maps this part of an object throughout, as one mapping.
    fn still_maps(&self, source: &Arc<dyn MapSource>, range: &Range<usize>, offset: u64) -> bool {
        let state = self.state.lock();
        state.mappings.get(range.start).is_some_and(|mapping| {
            let same =
                matches!(&mapping.backing, Object::Source(mapped) if mapped.serial() == source.serial());
            same && mapping.end >= range.end && mapping.offset_of(range.start) == offset
        })
    }

    async fn forget_object(
        &self,
        source: &Arc<dyn MapSource>,
        pages: &Range<u64>,
        only_shared: bool,
    ) -> bool {
        let (mut at, mut forgotten, mut budget) = (0, true, Budget::new());
        while let Some(mapping) = self.mapping_at_or_above(at) {
            budget.step(1).await;
            at = mapping.end;
            let same =
                matches!(&mapping.object, Object::Source(mapped) if mapped.serial() == source.serial());
            if !same || only_shared && !mapping.flags.contains(Flags::SHARED) {
                continue;
            }
            let first = mapping.offset / PAGE_SIZE as u64;
            let address = |page: u64| {
                let distance = usize::try_from(page.saturating_sub(first)).unwrap_or(usize::MAX);
                mapping.start.saturating_add(distance.saturating_mul(PAGE_SIZE)).min(mapping.end)
            };
            let range = address(pages.start)..address(pages.end);
            if range.is_empty() {
                continue;
            }
            // Without memory for the lock's record or for a table of its own the pages stay mapped, which only
            // shows the program what it could have read before.
            let Ok(_guard) = self.lock.lock(range.clone()).await else {
                forgotten = false;
                continue;
            };
            if !self.still_maps(source, &range, mapping.offset + (range.start - mapping.start) as u64) {
                // Something else has been mapped there meanwhile, of which nothing must be lost.
                at = mapping.start;
                continue;
            }
            if self.clear(range).await.is_err() {
                ::log::warn!("pages of a file stay mapped: no memory");
                forgotten = false;
            }
        }
        forgotten
    }
}
