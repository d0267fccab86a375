//! The descriptor of one frame.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::frame::references::References;

/// State word: nothing here, or not the first frame of a free block.
const OTHER: u32 = 0;
/// State word: first frame of a free block; the order is in the low bits.
const FREE: u32 = 1 << 8;
/// State word: a slab; the class is in the low bits.
const SLAB: u32 = 2 << 8;
const LOW: u32 = 0xff;

/// Bookkeeping of one frame. All fields are atomic so that descriptors can be shared; which of them may be used
/// concurrently is the crate's convention: only the reference count.
#[derive(Debug, Default)]
pub struct Descriptor {
    state: AtomicU32,
    /// References to a frame in use; for a slab, its packed free list.
    count: References,
    pub(crate) next: AtomicU32,
    pub(crate) previous: AtomicU32,
}

/// No frame, in a link.
pub(crate) const NONE: u32 = u32::MAX;

impl Descriptor {
    /// The descriptor of a frame that is neither free nor used.
    #[cfg(not(heddle_loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            state: AtomicU32::new(OTHER),
            count: References::new(0),
            next: AtomicU32::new(NONE),
            previous: AtomicU32::new(NONE),
        }
    }

    /// How many references there are. Exact only for a caller that holds the only one.
    #[must_use]
    pub fn references(&self) -> u32 {
        self.count.get()
    }

    /// Sets the count of a frame that has no other users yet.
    pub fn set_references(&self, count: u32) {
        self.count.set(count);
    }

    /// Adds a reference; the caller holds one already.
    pub fn add_reference(&self) {
        self.count.add();
    }

    /// Drops a reference; `true` if it was the last, and the frame is the caller's to free.
    #[must_use]
    pub fn drop_reference(&self) -> bool {
        self.count.subtract()
    }

    pub(crate) fn set_free(&self, order: usize) {
        self.state.store(FREE | order as u32, Ordering::Relaxed);
    }

    pub(crate) fn set_other(&self) {
        self.state.store(OTHER, Ordering::Relaxed);
    }

    pub(crate) fn set_slab(&self, class: usize) {
        self.state.store(SLAB | class as u32, Ordering::Relaxed);
    }

    /// The order of the free block that starts here.
    pub(crate) fn free_order(&self) -> Option<usize> {
        let state = self.state.load(Ordering::Relaxed);
        (state & !LOW == FREE).then_some((state & LOW) as usize)
    }

    /// The class of the slab that this frame is.
    #[must_use]
    pub fn slab_class(&self) -> Option<usize> {
        let state = self.state.load(Ordering::Relaxed);
        (state & !LOW == SLAB).then_some((state & LOW) as usize)
    }

    pub(crate) fn packed(&self) -> u32 {
        self.count.word()
    }

    pub(crate) fn set_packed(&self, value: u32) {
        self.count.set(value);
    }
}
