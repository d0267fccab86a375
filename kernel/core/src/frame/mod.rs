//! Ownership of page frames, as pure bookkeeping: only [`slab`] touches a frame's contents.
//!
//! - [`Descriptor`]: sixteen bytes for each frame: its state, its reference count, two links.
//! - [`Layout`]: which physical addresses have a descriptor, and which one.
//! - [`Buddy`]: free blocks of 2^k frames; allocation and release in O(orders).
//! - [`LargeRun`]: runs of frames that page tables map by one entry.
//! - [`slab`]: objects smaller than a frame, several to a frame, with the frame's descriptor as the only header.
//!
//! Frames are named by the index of their descriptor. Two frames whose indices lie in the same block of
//! [`BLOCK_FRAMES`] are as far apart in memory as in index, so contiguous indices of a block are contiguous memory.
//!
//! The structures lock nothing: their owner does. Only the reference count is meant for concurrent use, by all
//! holders of a reference.

mod buddy;
mod descriptor;
mod large;
mod layout;
mod references;
pub mod slab;

pub use buddy::{Buddy, ORDERS};
pub use descriptor::Descriptor;
pub use large::{LARGE_FRAMES, LARGE_ORDER, LargeRun};
pub use layout::{Layout, Region};
pub use references::References;

/// Bytes of a frame.
pub const FRAME_BYTES: u64 = 4096;
/// Frames of the largest block.
pub const BLOCK_FRAMES: u32 = 1 << (ORDERS - 1);
