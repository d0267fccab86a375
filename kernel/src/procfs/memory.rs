//! `/proc/PID/mem`: the memory of a program as a file.

use alloc::sync::{Arc, Weak};

use crate::error::{Errno, TryError, TryResult};
use crate::fs::inode::{Inode, Metadata};
use crate::fs::{File, IoBuffer, OpenFile};
use crate::memory::space::RemoteAccess;
use crate::memory::{Space, fallible};
use crate::procfs::ProcNode;

const PIECE_BYTES: usize = 512;
/// The most bytes that an attempt moves.
const ATTEMPT_BYTES: usize = 16 << 10;

/// An open file. It shows the memory that the process had when it was opened, until that is gone.
struct MemoryFile {
    node: Arc<ProcNode>,
    space: Weak<Space>,
}

pub(super) fn open(node: Arc<ProcNode>) -> Result<Arc<dyn File>, Errno> {
    let space = Arc::downgrade(&node.subject.thread().map_err(|_| Errno::EACCES)?.space());
    Ok(fallible::try_arc(MemoryFile { node, space })?)
}

impl MemoryFile {
    fn space(&self) -> Option<Arc<Space>> {
        self.space.upgrade().filter(|space| space.thread_count() > 0)
    }
}

/// The bytes of a page behind an address, of those wanted.
fn piece(address: usize, wanted: usize) -> usize {
    const PAGE_BYTES: usize = 4096;
    wanted.min(PIECE_BYTES).min(PAGE_BYTES - address % PAGE_BYTES)
}

/// The error for memory that is not there.
fn failure(error: TryError) -> TryError {
    if error == TryError::Error(Errno::EFAULT) { Errno::EIO.into() } else { error }
}

impl File for MemoryFile {
    fn is_pollable(&self) -> bool {
        false
    }

    fn read(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> TryResult<usize> {
        let Some(space) = self.space() else { return Ok(0) };
        let mut done = 0;
        while done < ATTEMPT_BYTES && buffer.remaining() > 0 {
            let address = (offset as usize).checked_add(done).ok_or(Errno::EIO)?;
            let mut bytes = [0; PIECE_BYTES];
            let length = piece(address, buffer.remaining());
            match space.try_read_remote(address, &mut bytes[..length], RemoteAccess::Forced) {
                Ok(()) => done += buffer.copy_out(&bytes[..length])?,
                Err(_) if done > 0 => break,
                Err(error) => return Err(failure(error)),
            }
        }
        Ok(done)
    }

    fn write(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> TryResult<usize> {
        let Some(space) = self.space() else { return Ok(0) };
        let mut done = 0;
        while done < ATTEMPT_BYTES && buffer.remaining() > 0 {
            let address = (offset as usize).checked_add(done).ok_or(Errno::EIO)?;
            let mut bytes = [0; PIECE_BYTES];
            let length = piece(address, buffer.remaining());
            let start = buffer.mark();
            buffer.copy_in(&mut bytes[..length])?;
            match space.try_write_remote(address, &bytes[..length], RemoteAccess::Forced) {
                Ok(()) => done += length,
                Err(error) => {
                    buffer.rewind(start);
                    if done > 0 {
                        break;
                    }
                    return Err(failure(error));
                }
            }
        }
        Ok(done)
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn metadata(&self) -> Metadata {
        self.node.metadata()
    }
}
