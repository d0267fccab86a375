//! One copy instead of two: a reader that waits offers its memory, and whoever writes copies there at once.
//!
//! An object with a buffer (a pipe) has at most one offer, under its lock, and only while its buffer is empty: so bytes
//! keep their order. The writer finds the reader's pages in the reader's tables, with their range locked, so no page
//! table changes and the way is the same under each isolation; where a page is missing, or another operation holds the
//! range, everything goes through the buffer. An offer is filled once. The bytes that were copied belong to the reader,
//! which takes the offer back when its wait ends, and ends its read with them. Where several readers wait there is no
//! offer, because their order decides.

use alloc::sync::Arc;

use crate::fs::IoBuffer;
use crate::memory::Space;
use crate::memory::raw::FrameSlice;
use crate::wait::node::WaitNode;
use crate::wait::queue::Watch;

/// The least that a read must ask for, and a write must bring. Below, looking for pages costs more than a copy.
pub const OFFER_BYTES: usize = 4096;
/// The most that is copied under the object's lock.
const OFFER_BYTES_MAX: usize = 64 << 10;

/// Memory of a reader that waits.
pub struct ReadOffer {
    watch: Watch,
    space: Arc<Space>,
    address: usize,
    length: usize,
    filled: usize,
}

impl ReadOffer {
    /// Memory of the one who waits by `watch`.
    pub fn new(watch: Watch, space: Arc<Space>, address: usize, length: usize) -> Self {
        Self { watch, space, address, length: length.min(OFFER_BYTES_MAX), filled: 0 }
    }
}

/// The place of an object's offer.
#[derive(Default)]
pub struct OfferPlace(Option<ReadOffer>);

impl OfferPlace {
    /// No offer.
    pub const fn new() -> Self {
        Self(None)
    }

    /// Whether there is one.
    #[inline]
    pub const fn is_taken(&self) -> bool {
        self.0.is_some()
    }

    /// Puts an offer there, where none is.
    pub fn put(&mut self, offer: ReadOffer) {
        self.0 = Some(offer);
    }

    /// Takes a waiter's offer back, if it is still there.
    pub fn take(&mut self, waiter: &Arc<WaitNode>) -> Option<ReadOffer> {
        self.0.take_if(|offer| offer.watch.is_of(waiter))
    }

    /// Takes the offer away if nothing has been copied: its reader has to be found by order. To be dropped without the
    /// object's lock.
    pub fn cancel(&mut self) -> Option<ReadOffer> {
        self.0.take_if(|offer| offer.filled == 0)
    }

    /// Copies what it can. Returns the bytes, and whom to wake without the object's lock.
    pub fn fill(&mut self, buffer: &mut IoBuffer<'_>) -> (usize, Option<Watch>) {
        let Some(offer) = &mut self.0 else { return (0, None) };
        // Once only: bytes may have gone by way of the buffer since, to other readers.
        if offer.filled > 0 || offer.watch.is_stale() {
            return (0, None);
        }
        let length = offer.length.min(buffer.remaining());
        let copy = |part: FrameSlice<'_>| {
            let before = buffer.done();
            // A fault stops here; the write meets it again and says so.
            let _ = buffer.copy_in_frame(part);
            buffer.done() - before
        };
        let copied = offer.space.try_fill(offer.address, length, copy);
        offer.filled = copied;
        (copied, (copied > 0).then(|| offer.watch.clone()))
    }
}

impl ReadOffer {
    /// Bytes that were copied.
    #[must_use]
    pub const fn filled(&self) -> usize {
        self.filled
    }
}
