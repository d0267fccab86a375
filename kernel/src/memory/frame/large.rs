//! Large pages: 2 MiB of contiguous frames that page tables map by one entry. The rules are those of `kernel/core`'s
//! `frame` and `tlb::large_page`.
//!
//! `unsafe` here: frames' contents through the direct map.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU64, AtomicUsize};

use heddle_kernel_core::frame::{LARGE_FRAMES, LARGE_ORDER, LargeRun};

use super::{BUDDY, FrameRef, machine, note_free, note_released};
use crate::arch::paging;
use crate::arch::paging::PAGE_SIZE;
use crate::arch::user as copy;
use crate::sync::SpinLock;

/// Bytes of a large page.
pub const LARGE_BYTES: usize = LARGE_FRAMES as usize * PAGE_SIZE;

/// Held around looks at and changes of the mappers of large pages.
static MAPPERS: SpinLock<()> = SpinLock::new(());
/// Large pages that are mapped as a whole.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Bytes in large pages that are mapped as a whole: `AnonHugePages`.
pub fn large_bytes() -> usize {
    COUNT.load(Relaxed) * LARGE_BYTES
}

/// A large page that nothing leads to yet, with the table that a split of it will need.
#[derive(Debug)]
pub struct LargeFrame {
    first: u32,
    /// Taken when it is mapped; then the frames are no longer this value's.
    table: Option<FrameRef>,
}

impl LargeFrame {
    /// One with unspecified contents, if there is one, and so many frames are left afterwards.
    pub fn allocate(left: usize) -> Option<Self> {
        let table = FrameRef::allocate().ok()?;
        #[cfg(feature = "checking")]
        if crate::memory::fault_injection::fails(crate::memory::fault_injection::FailurePoint::Frame) {
            return None;
        }
        let mut buddy = BUDDY.lock();
        if buddy.free() < left.max(super::emergency_frames()) + LARGE_FRAMES as usize {
            return None;
        }
        let first = buddy.allocate(LARGE_ORDER)?;
        note_free(&buddy);
        Some(Self { first, table: Some(table) })
    }

    /// Fills pages of it with zeros, by their numbers.
    ///
    /// # Panics
    /// If it has no such pages.
    pub fn clear(&self, pages: core::ops::Range<usize>) {
        assert!(pages.start <= pages.end && pages.end <= LARGE_FRAMES as usize);
        let start = paging::direct_map::<u8>(machine().layout.physical(self.first)) as usize;
        // SAFETY: inside of frames that are this value's own; the routine is an ordinary loop of stores.
        let _ = unsafe { copy::clear(start + pages.start * PAGE_SIZE, pages.len() * PAGE_SIZE) };
    }

    /// Fills a page of it, by its number, with the contents of another page.
    ///
    /// # Panics
    /// If it has no such page.
    pub fn copy(&self, number: usize, page: u64) {
        assert!(number < LARGE_FRAMES as usize);
        let to =
            paging::direct_map::<u8>(machine().layout.physical(self.first)) as usize + number * PAGE_SIZE;
        // SAFETY: both are whole pages of the direct map, and the target is this value's own.
        let _ = unsafe { copy::copy_to(to, paging::direct_map(page), PAGE_SIZE) };
    }

    /// The address of its first page. Its new owner, a page-table entry, is its first mapper.
    pub fn into_physical(mut self) -> u64 {
        let machine = machine();
        let physical = machine.layout.physical(self.first);
        if let Some(table) = self.table.take() {
            let table = machine.layout.index(table.into_physical()).expect("the frame is counted");
            let _guard = MAPPERS.lock();
            LargeRun::new(machine.descriptors, self.first).begin(table);
        }
        COUNT.fetch_add(1, Relaxed);
        physical
    }
}

impl Drop for LargeFrame {
    fn drop(&mut self) {
        if self.table.is_some() {
            release(self.first);
        }
    }
}

/// Gives the frames back.
fn release(first: u32) {
    let mut buddy = BUDDY.lock();
    buddy.release(first, LARGE_ORDER);
    note_released(&buddy);
}

fn run(physical: u64) -> LargeRun<'static> {
    let machine = machine();
    let first = machine.layout.index(physical).expect("large pages are counted");
    LargeRun::new(machine.descriptors, first)
}

/// How many entries lead to a large page as a whole.
pub fn mappers(physical: u64) -> u32 {
    let _guard = MAPPERS.lock();
    run(physical).mappers()
}

/// Another entry leads to it, with a table for its split.
pub fn add_mapper(physical: u64, table: u64) {
    let table = machine().layout.index(table).expect("the frame is counted");
    let _guard = MAPPERS.lock();
    run(physical).add_mapper(table);
}

/// Takes the table for a split.
pub fn take_table(physical: u64) -> u64 {
    let table = {
        let _guard = MAPPERS.lock();
        run(physical).take_table()
    };
    machine().layout.physical(table)
}

/// An entry no longer leads to it; `true` if it was the last.
pub fn drop_mapper(physical: u64) -> bool {
    let is_last = {
        let _guard = MAPPERS.lock();
        run(physical).drop_mapper()
    };
    if is_last {
        COUNT.fetch_sub(1, Relaxed);
    }
    is_last
}

/// Whether nothing but its mappers has a reference to any frame of it.
pub fn is_whole(physical: u64) -> bool {
    run(physical).is_whole()
}

/// Frees one without mappers that is whole.
pub fn free_whole(physical: u64) {
    release(machine().layout.index(physical).expect("large pages are counted"));
}

/// The addresses of its pages.
pub fn pages(physical: u64) -> impl Iterator<Item = u64> {
    (0..u64::from(LARGE_FRAMES)).map(move |number| physical + number * PAGE_SIZE as u64)
}

/// Whether a page of a large one, which its owner keeps, holds nothing but zeros at the moment.
pub fn is_zero(page: u64) -> bool {
    const WORDS: usize = PAGE_SIZE / size_of::<u64>();
    // SAFETY: a whole page of the direct map, which the caller keeps in use; an atomic word may have any value.
    let words = unsafe { &*paging::direct_map::<[AtomicU64; WORDS]>(page) };
    words.iter().all(|word| word.load(Relaxed) == 0)
}
