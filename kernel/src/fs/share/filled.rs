//! Pages that were filled with what the host has sent.

use heddle_kernel_core::ninep::{Failure, Reader};

use crate::fs::share::pages::PAGE;
use crate::memory::FrameRef;

const PAGE_BYTES: usize = PAGE as usize;

/// Pages of a reply, as far as there was memory for them.
pub struct FilledPages<const N: usize> {
    pub frames: [Option<FrameRef>; N],
    /// Bytes of the reply.
    pub length: usize,
}

impl<const N: usize> FilledPages<N> {
    /// Reads the reply to a request to read.
    ///
    /// # Errors
    /// It is malformed.
    pub fn read(reader: &mut Reader<'_>) -> Result<Self, Failure> {
        let length = reader.u32()? as usize;
        let bytes = reader.bytes(length)?;
        let mut frames = [const { None }; N];
        for (place, page) in frames.iter_mut().zip(bytes.chunks(PAGE_BYTES)) {
            // All that there is no memory for is read again when it is needed.
            let Ok(frame) = FrameRef::allocate() else { break };
            frame.write(0, page);
            frame.clear(page.len()..PAGE_BYTES);
            *place = Some(frame);
        }
        Ok(Self { frames, length })
    }
}
