//! A machine of few frames, for tests and models.
#![allow(unsafe_code, reason = "loom's cell reports two accesses at once")]

use crate::frame::References;

use super::{Entry, Tables};
use crate::tlb::large_page::LargeEntry;
use crate::tlb::sync::{AtomicU64, AtomicUsize, Ordering};

#[cfg(not(heddle_loom))]
pub type Page = std::cell::Cell<u64>;
#[cfg(heddle_loom)]
pub struct Page(loom::cell::UnsafeCell<u64>);

#[cfg(heddle_loom)]
impl Page {
    pub fn get(&self) -> u64 {
        // SAFETY: the model checks that no thread writes meanwhile.
        self.0.with(|value| unsafe { *value })
    }

    pub fn set(&self, value: u64) {
        // SAFETY: the model checks that no other thread accesses it meanwhile.
        self.0.with_mut(|place| unsafe { *place = value });
    }

    fn new(value: u64) -> Self {
        Self(loom::cell::UnsafeCell::new(value))
    }
}

/// Entries of a table.
pub const ENTRIES: usize = super::GROUP;
const SHIFT: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestEntry(pub u64);

impl TestEntry {
    pub const EMPTY: Self = Self(0);
    const PRESENT: u64 = 1;
    const WRITE: u64 = 2;
    const COUNTED: u64 = 4;
    const SHARED: u64 = 8;
    const LOCKED: u64 = 16;
    const LARGE: u64 = 32;

    pub fn page(physical: u64, write: bool, shared: bool) -> Self {
        let bits = physical << SHIFT | Self::PRESENT | Self::COUNTED;
        Self(bits | if write { Self::WRITE } else { 0 } | if shared { Self::SHARED } else { 0 })
    }

    pub fn large(first: u64, write: bool) -> Self {
        Self(Self::page(first, write, false).0 | Self::LARGE)
    }
}

impl LargeEntry for TestEntry {
    fn is_large(self) -> bool {
        self.0 & Self::LARGE != 0
    }
    fn part(self, index: usize) -> Self {
        Self((self.0 & !(Self::LARGE | Self::LOCKED)) + ((index as u64) << SHIFT))
    }
    fn with_stores(self) -> Self {
        Self(self.0 | Self::WRITE)
    }
}

impl Entry for TestEntry {
    fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
    fn bits(self) -> u64 {
        self.0
    }
    fn for_table(physical: u64) -> Self {
        Self(physical << SHIFT | Self::PRESENT | Self::WRITE)
    }
    fn address(self) -> u64 {
        self.0 >> SHIFT
    }
    fn is_occupied(self) -> bool {
        self.0 & Self::PRESENT != 0
    }
    fn allows_stores(self) -> bool {
        self.0 & Self::WRITE != 0
    }
    fn without_stores(self) -> Self {
        Self(self.0 & !Self::WRITE)
    }
    fn holds_reference(self) -> bool {
        self.0 & Self::COUNTED != 0
    }
    fn keeps_stores(self) -> bool {
        self.0 & Self::SHARED != 0
    }
    fn is_replaced(self) -> bool {
        self.0 & Self::LOCKED != 0
    }
    fn replaced(self) -> Self {
        Self(self.0 | Self::LOCKED)
    }
}

pub struct Frame {
    pub references: References,
    pub entries: [AtomicU64; ENTRIES],
    pub page: Page,
}

/// Frames that are handed out once each; a freed one is overwritten with rubbish.
pub struct Machine {
    pub frames: Vec<Frame>,
    next: AtomicUsize,
    freed: AtomicUsize,
}

pub const GARBAGE: u64 = 0xffff_0001;

impl Machine {
    pub fn new(frames: usize) -> Self {
        let frame = |_| Frame {
            references: References::new(0),
            entries: core::array::from_fn(|_| AtomicU64::new(0)),
            page: Page::new(0),
        };
        Self {
            frames: (0..frames).map(frame).collect(),
            next: AtomicUsize::new(0),
            freed: AtomicUsize::new(0),
        }
    }

    /// How many frames are in use.
    pub fn used(&self) -> usize {
        self.next.load(Ordering::Relaxed).min(self.frames.len()) - self.freed.load(Ordering::Relaxed)
    }

    pub fn page(&self, physical: u64) -> &Page {
        &self.frames[physical as usize].page
    }
}

impl Tables for Machine {
    type Entry = TestEntry;

    fn entries(&self, physical: u64) -> &[AtomicU64] {
        &self.frames[physical as usize].entries
    }

    fn allocate(&self) -> Option<u64> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let frame = self.frames.get(index)?;
        frame.references.set(1);
        Some(index as u64)
    }

    fn references(&self, physical: u64) -> u32 {
        self.frames[physical as usize].references.get()
    }

    fn add_reference(&self, physical: u64) {
        self.frames[physical as usize].references.add();
    }

    fn drop_reference(&self, physical: u64) -> bool {
        self.frames[physical as usize].references.subtract()
    }

    fn free(&self, physical: u64) {
        let frame = &self.frames[physical as usize];
        // The processor's stores are releases.
        frame.entries.iter().for_each(|entry| entry.store(GARBAGE, Ordering::Release));
        frame.page.set(GARBAGE);
        self.freed.fetch_add(1, Ordering::Relaxed);
    }
}
