//! Reading and writing the files of `/proc`.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{ProcNode, Text, What};
use crate::error::{Attempt, Errno};
use crate::file::node::{Metadata, Node};
use crate::file::{File, IoBuffer, OpenFile};
use crate::memory::fallible;
use crate::sync::SpinLock;

/// The most bytes that a write to such a file takes.
const WRITE_LIMIT: usize = 4096;

/// An open file: what it showed when it was last read from the start.
struct ProcFile {
    node: Arc<ProcNode>,
    shown: SpinLock<Option<Vec<u8>>>,
}

pub(super) fn open(node: Arc<ProcNode>) -> Result<Arc<dyn File>, Errno> {
    Ok(fallible::try_arc(ProcFile { node, shown: SpinLock::new(None) })?)
}

impl File for ProcFile {
    fn read(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> Attempt<usize> {
        let (What::Text(show) | What::Writable(show, _)) = self.node.item.what else {
            return Err(Errno::EISDIR.into());
        };
        let mut shown = self.shown.lock();
        // A reader that starts again sees what is now; one that goes on sees the rest of what it began.
        let text = match shown.take() {
            Some(text) if offset > 0 => text,
            before => {
                drop(before);
                let mut text = Text::new();
                show(&self.node.subject, &mut text)?;
                text.into_bytes()
            }
        };
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
        let result = buffer.copy_out(&text[from..]);
        *shown = Some(text);
        Ok(result?)
    }

    fn write(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> Attempt<usize> {
        let What::Writable(_, store) = self.node.item.what else { return Err(Errno::EIO.into()) };
        let length = buffer.remaining();
        if length > WRITE_LIMIT {
            return Err(Errno::EINVAL.into());
        }
        let mut bytes = fallible::try_filled(0, length)?;
        buffer.copy_in(&mut bytes)?;
        store(&self.node.subject, &bytes)?;
        Ok(length)
    }

    fn truncate(&self, _: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn metadata(&self) -> Metadata {
        self.node.metadata()
    }
}
