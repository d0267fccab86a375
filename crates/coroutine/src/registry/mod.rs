//! The process-wide (or kernel-wide) table of slots and cores.
//!
//! Wakers hold a coroutine's id and nothing else: no count, no pointer. That makes cloning and dropping one free and
//! lets it outlive everything, but asks for a table that is found without context and whose addresses are never
//! given back: a slot looked up by a stale id must still be a slot. So slots live in chunks that are allocated on
//! demand, kept for ever and reused by whichever executor needs them next. After a burst the system gets the pages of
//! chunks that are wholly free ([`shrink`]); the addresses stay, and lead to slots that nobody uses.
#![allow(unsafe_code)] // Chunks and cores are allocated by hand, because allocation may fail.

#[cfg(feature = "std")]
mod chunks;
mod pool;
#[cfg(feature = "std")]
mod shrink;

use crate::builder::{SpawnError, StartError};
use crate::core_entry::CoreEntry;
#[cfg(feature = "std")]
use crate::sched::Id;
use crate::sched::{CoreState, MAX_OWNERS, Slot, Table};
use crate::sync::{AtomicPtr, Ordering};
use alloc::alloc::{Layout, alloc_zeroed};
use core::ptr;

#[cfg(feature = "std")]
pub(crate) use chunks::ChunkSet;
#[cfg(feature = "std")]
pub(crate) use pool::shrink_if_due;
pub(crate) use pool::{refill, single, spill};
#[cfg(all(feature = "std", feature = "scheduler"))]
pub(crate) use shrink::{pause_sorts, resume_sorts};

/// Slots in a chunk, 16 KiB.
pub(crate) const CHUNK_SLOTS: u32 = 512;
pub(crate) const CHUNK_SHIFT: u32 = 9;
/// Chunks begin with a page, so that their pages hold nothing else.
const CHUNK_ALIGN: usize = if cfg!(feature = "std") { 4096 } else { align_of::<Slot>() };

const CHUNK_LAYOUT: Layout =
    match Layout::from_size_align(CHUNK_SLOTS as usize * size_of::<Slot>(), CHUNK_ALIGN) {
        Ok(layout) => layout,
        Err(_) => unreachable!(),
    };

/// A size of the table. Under the interpreter it is small, because that looks at every element of an array at each
/// access; without an operating system a part that is never used takes memory all the same.
const fn sized(interpreted: usize, hosted: usize, bare: usize) -> usize {
    match (cfg!(miri), cfg!(feature = "std")) {
        (true, _) => interpreted,
        (false, true) => hosted,
        (false, false) => bare,
    }
}

pub(crate) const CHUNKS: usize = sized(8, 8192, 2048);

/// Most coroutines that can be alive at the same time, less one: 4,194,304 with the feature `std`, 1,048,576 without.
pub const MAX_COROUTINES: u32 = CHUNK_SLOTS * CHUNKS as u32;

/// Most cores that all executors of a process (or a kernel) together can have: 4,096 with the feature `std`, 256
/// without.
pub const MAX_CORES: usize = sized(32, MAX_OWNERS, 256);

static SLOTS: [AtomicPtr<Slot>; CHUNKS] = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];
static CORES: [AtomicPtr<CoreEntry>; MAX_CORES] = [const { AtomicPtr::new(ptr::null_mut()) }; MAX_CORES];

/// The table itself.
#[derive(Clone, Copy)]
pub(crate) struct Global;

impl Table for Global {
    #[inline(always)]
    fn slot(&self, index: u32) -> Option<&'static Slot> {
        let chunk = SLOTS.get((index >> CHUNK_SHIFT) as usize)?.load(Ordering::Acquire);
        if chunk.is_null() {
            return None;
        }
        // SAFETY: a chunk holds CHUNK_SLOTS initialized slots, is published by a release store after that and never
        // freed; the offset is below CHUNK_SLOTS.
        Some(unsafe { &*chunk.add((index & (CHUNK_SLOTS - 1)) as usize) })
    }

    #[inline(always)]
    fn core(&self, index: u32) -> Option<&'static CoreState> {
        entry(index).map(|entry| &entry.state)
    }

    fn may_run(&self, slot: &Slot, core: &CoreState) -> bool {
        crate::task::cores_of(slot) & 1 << (core.number() & 63) != 0
    }

    fn left(&self, core: u32, level: u8) {
        if let Some(entry) = entry(core) {
            entry.left(level);
        }
    }

    fn kick(&self, core: u32) {
        if let Some(entry) = entry(core) {
            entry.kick();
        }
    }

    #[cfg(feature = "std")]
    #[inline(always)]
    fn queued(&self, index: u32, slot: &Slot, level: u8) {
        if let (Some(host), Some(id)) = (crate::host::host(), Id::new(index, slot.generation())) {
            host.queued(id, level);
        }
    }

    #[cfg(feature = "std")]
    #[inline(always)]
    fn posted(&self, id: Id) {
        if let Some(host) = crate::host::host() {
            host.posted(id);
        }
    }
}

/// The core of registry index `index`.
#[inline(always)]
pub(crate) fn entry(index: u32) -> Option<&'static CoreEntry> {
    let entry = CORES.get(index as usize)?.load(Ordering::Acquire);
    // SAFETY: an entry is initialized before it is published and never freed.
    unsafe { entry.as_ref() }
}

/// The chunk in which the slot of index `index` lies.
#[cfg(feature = "std")]
pub(crate) const fn chunk_of(index: u32) -> u32 {
    index >> CHUNK_SHIFT
}

/// Calls `each` with every slot of chunk `chunk`, until it returns `false`; whether it never did.
#[cfg(feature = "std")]
fn for_each_slot_of(chunk: u32, each: &mut impl FnMut(u32, &'static Slot) -> bool) -> bool {
    (chunk << CHUNK_SHIFT..(chunk + 1) << CHUNK_SHIFT)
        .all(|index| Global.slot(index).is_none_or(|slot| each(index, slot)))
}

/// Calls `each` with every slot that may have been in use since memory was taken for it, until it returns `false`.
#[cfg(all(feature = "std", feature = "scheduler"))]
pub(crate) fn for_each_slot(mut each: impl FnMut(u32, &'static Slot) -> bool) {
    let _ = (0..CHUNKS as u32)
        .take_while(|chunk| Global.slot(chunk << CHUNK_SHIFT).is_some())
        .filter(|chunk| !shrink::is_released(*chunk))
        .all(|chunk| for_each_slot_of(chunk, &mut each));
}

/// Calls `each` with every slot of the chunks from which one of `cores` has had slots, until it returns `false`.
#[cfg(feature = "std")]
pub(crate) fn for_each_slot_of_cores(
    cores: &[&'static CoreEntry],
    mut each: impl FnMut(u32, &'static Slot) -> bool,
) {
    let _ = ChunkSet::union(cores.iter().map(|core| &core.chunks))
        .all(|chunk| for_each_slot_of(chunk, &mut each));
}

/// Why there is no slot for another coroutine.
#[cold]
pub(crate) fn why_no_slot() -> SpawnError {
    let is_full = SLOTS.iter().all(|place| !place.load(Ordering::Relaxed).is_null());
    if is_full { SpawnError::TooMany } else { SpawnError::NoMemory }
}

/// Calls `each` with every core that there is.
#[cfg(all(feature = "std", feature = "scheduler"))]
pub(crate) fn for_each_core(each: impl FnMut(&'static CoreEntry)) {
    (0..MAX_CORES as u32).map_while(entry).for_each(each);
}

/// Takes a core that no executor uses, or makes one.
pub(crate) fn acquire_core() -> Result<&'static CoreEntry, StartError> {
    for (index, place) in CORES.iter().enumerate() {
        let mut entry = place.load(Ordering::Acquire);
        if entry.is_null() {
            let layout = Layout::new::<CoreEntry>();
            // SAFETY: the layout is not zero-sized.
            let fresh: *mut CoreEntry = unsafe { alloc_zeroed(layout) }.cast();
            if fresh.is_null() {
                return Err(StartError::NoMemory);
            }
            // SAFETY: `fresh` is allocated with the layout of a `CoreEntry` and nobody else knows it.
            unsafe { fresh.write(CoreEntry::new(index as u16)) };
            match place.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => entry = fresh,
                Err(other) => {
                    // SAFETY: allocated above with this layout, and not published.
                    unsafe { alloc::alloc::dealloc(fresh.cast(), layout) };
                    entry = other;
                }
            }
        }
        // SAFETY: as in `entry`; non-null here.
        let entry: &'static CoreEntry = unsafe { &*entry };
        if entry.try_take() {
            return Ok(entry);
        }
    }
    Err(StartError::TooManyCores)
}

/// Takes a chunk whose pages were given back into use again, or allocates one, and returns the index of its first
/// usable slot and how many there are.
fn grow() -> Option<(u32, u32)> {
    #[cfg(feature = "std")]
    if let Some(chunk) = shrink::take_back() {
        return Some(usable(chunk));
    }
    let layout = CHUNK_LAYOUT;
    // SAFETY: the layout is not zero-sized.
    let chunk: *mut Slot = unsafe { alloc_zeroed(layout) }.cast();
    if chunk.is_null() {
        return None;
    }
    // All-zero memory is an array of unused slots, see `sched`.
    for (number, place) in SLOTS.iter().enumerate() {
        if place.load(Ordering::Relaxed).is_null()
            && place.compare_exchange(ptr::null_mut(), chunk, Ordering::Release, Ordering::Relaxed).is_ok()
        {
            #[cfg(feature = "std")]
            shrink::count_grown();
            return Some(usable(number as u32));
        }
    }
    // SAFETY: allocated above with this layout, and not published.
    unsafe { alloc::alloc::dealloc(chunk.cast(), layout) };
    None
}

/// The first usable slot of chunk `chunk`, and how many there are: index 0 is the links' "none".
const fn usable(chunk: u32) -> (u32, u32) {
    if chunk == 0 { (1, CHUNK_SLOTS - 1) } else { (chunk << CHUNK_SHIFT, CHUNK_SLOTS) }
}
