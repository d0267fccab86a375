//! Objects whose pages can be read again: stores to them are written back to somewhere else than memory.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use crate::error::Errno;
use crate::memory::fallible::try_push;
use crate::memory::source::{MapSource, Written};
use crate::memory::space::unmap_shared;
use crate::sync::SpinLock;

/// All of them that are mapped.
static MAPPED: SpinLock<Vec<Weak<dyn MapSource>>> = SpinLock::new(Vec::new());

/// Has an object stored at the machine's end, and its pages taken when memory is short.
///
/// # Errors
/// `ENOMEM`.
pub fn register(source: &Arc<dyn MapSource>) -> Result<(), Errno> {
    let mut mapped = MAPPED.lock();
    mapped.retain(|known| known.strong_count() > 0);
    try_push(&mut mapped, Arc::downgrade(source))
}

/// The object at this place of the list, if it still is one; `None` behind the last.
fn nth(index: usize) -> Option<Option<Arc<dyn MapSource>>> {
    MAPPED.lock().get(index).map(Weak::upgrade)
}

/// Stores what was written to all objects.
///
/// # Errors
/// The first error of storing one.
pub fn store_all() -> Result<(), Errno> {
    let mut result = Ok(());
    for source in (0..).map_while(nth).flatten() {
        result = result.and(source.store(&Written { pages: 0..u64::MAX, moment: 0 }, false));
    }
    result
}

/// Gives pages back that are not mapped.
pub fn drain() {
    (0..).map_while(nth).flatten().for_each(|source| source.give_up());
}

/// Takes all pages from the programs that have them mapped shared, and gives them back; whether that was any memory.
pub async fn evict() -> bool {
    let before = crate::memory::frame::free_frames();
    let mut index = 0;
    while let Some(next) = nth(index) {
        index += 1;
        if let Some(source) = next {
            // Pages that remain mapped are kept.
            unmap_shared(&source, 0..u64::MAX).await;
        }
    }
    // Deferred frees still refer to unmapped pages, so they are released first.
    crate::memory::frame::drain_caches();
    drain();
    crate::memory::frame::drain_caches();
    crate::memory::frame::free_frames() > before
}
