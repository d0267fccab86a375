//! Reclaim: caches that are released when memory runs short.
//!
//! A part of the kernel that caches memory registers a function that releases it. A fault that finds no frame has them
//! called, and tries once more. If that is not enough, pages are unmapped from all programs, where they can be read
//! again ([`crate::memory::writeback`]).

use crate::sync::SpinLock;

const RECLAIMERS_MAX: usize = 8;

type Reclaimers = [Option<fn()>; RECLAIMERS_MAX];

static RECLAIMERS: SpinLock<Reclaimers> = SpinLock::new([None; RECLAIMERS_MAX]);

/// Has `reclaim` called when memory is short: from coroutines that hold no spinlock. It must not wait.
///
/// # Panics
/// If there are too many; parts of the kernel register once, at their start.
pub fn register(reclaim: fn()) {
    let mut reclaimers = RECLAIMERS.lock();
    let free = reclaimers.iter_mut().find(|slot| slot.is_none());
    *free.expect("room for every cache of the kernel") = Some(reclaim);
}

/// Frees what can be freed at once. Returns whether a program can have a frame now: what came back may be no more than
/// the emergency reserve lacked.
pub fn reclaim() -> bool {
    let before = crate::memory::frame::free_frames();
    let reclaimers = *RECLAIMERS.lock();
    for reclaim in reclaimers.into_iter().flatten() {
        reclaim();
    }
    crate::memory::frame::drain_caches();
    crate::memory::frame::free_frames() > before && crate::memory::frame::can_allocate(1)
}
