//! Pages of files.

use crate::error::{Errno, TryResult};
use crate::fs::IoBuffer;
use crate::memory::{FrameRef, frame};

/// Bytes in a page.
pub const PAGE: u64 = 4096;
/// The same, as a length in memory.
pub const PAGE_BYTES: usize = PAGE as usize;

/// Where a page's bytes are.
pub enum Source {
    /// In a page of the file's own.
    Own(FrameRef),
    /// In the image: up to a page, zeroes follow.
    Image(&'static [u8]),
    /// Nowhere: it is a hole.
    Hole,
}

/// Copies `length` bytes from `within` the page on to the buffer.
pub fn copy_out(
    source: &Source,
    within: usize,
    length: usize,
    buffer: &mut IoBuffer<'_>,
) -> TryResult<usize> {
    match source {
        Source::Own(page) => Ok(buffer.copy_out_frame(page.bytes().part(within..within + length))?),
        Source::Image(bytes) => {
            let bytes = bytes.get(within..).unwrap_or_default();
            let stored = bytes.len().min(length);
            let copied = buffer.copy_out(&bytes[..stored])?;
            Ok(copied + buffer.copy_out(&frame::zeros()[..length - stored])?)
        }
        Source::Hole => Ok(buffer.copy_out(&frame::zeros()[..length])?),
    }
}

/// A page of the file's own with the same bytes.
pub fn copy(source: &Source) -> Result<FrameRef, Errno> {
    let page = FrameRef::allocate_zeroed()?;
    if let Source::Image(bytes) = source {
        page.write(0, bytes);
    }
    Ok(page)
}
