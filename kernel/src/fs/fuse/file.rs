//! Open files of a server, and their pages.

use alloc::sync::Arc;
use alloc::vec::Vec;

use heddle_kernel_core::OutOfMemory;
use heddle_kernel_core::fuse::{FuseMessage, FuseReader, opcode, opened};
use linux_raw_sys::general as linux;

use crate::error::{Errno, TryResult};
use crate::fs::fuse::FuseSession;
use crate::fs::fuse::connection::{CONTENTS_MAX, GiveBack};
use crate::fs::fuse::node::FuseNode;
use crate::fs::inode::{Inode, InodeChange, Opening};
use crate::fs::{File, FileType, IoBuffer, OpenFile, StatusFlags};
use crate::memory::{FrameRef, MapSource, PageRef, fallible};
use crate::process::detour::with_thread_here;
use crate::sync::SpinLock;
use crate::wait::node::WaitKind;

/// Bytes of the answer to `OPEN`.
pub(super) const OPENED_BYTES: usize = 16;
const PAGE_BYTES: usize = 4096;

/// A file that the server has opened.
pub(super) struct FuseHandle {
    session: Arc<FuseSession>,
    node: u64,
    /// The server's number of it.
    pub number: u64,
    flags: u32,
    /// How the server wants it used.
    will: u32,
    is_directory: bool,
    /// The server has nothing to close.
    is_nothing: bool,
}

/// The request that closes a handle.
pub(super) fn release(
    node: u64,
    handle: u64,
    flags: u32,
    is_directory: bool,
) -> Result<FuseMessage, OutOfMemory> {
    let opcode = if is_directory { opcode::RELEASEDIR } else { opcode::RELEASE };
    let mut message = FuseMessage::new(opcode, node, 24)?;
    message.u64(handle);
    message.u32(flags);
    message.u32(0);
    message.u64(0);
    Ok(message)
}

impl FuseHandle {
    /// Has the server open a file with these flags of open(2).
    pub fn open(node: &FuseNode, flags: u32) -> Result<Arc<Self>, Errno> {
        let is_directory = node.kind() == FileType::Directory;
        let opcode = if is_directory { opcode::OPENDIR } else { opcode::OPEN };
        let mut message = node.message(opcode, 8)?;
        message.u32(flags);
        message.u32(0);
        let give_back = GiveBack::Open(node.id, is_directory);
        match node.connection().ask(message, OPENED_BYTES, give_back) {
            Ok(answer) => Self::of_answer(node, &answer, flags),
            // A server without states of open files.
            Err(Errno::ENOSYS) => Self::new(node, (0, 0), flags, true),
            Err(error) => Err(error),
        }
    }

    /// The handle in an answer.
    pub fn of_answer(node: &FuseNode, answer: &[u8], flags: u32) -> Result<Arc<Self>, Errno> {
        let mut reader = FuseReader::new(answer);
        let opened = (reader.u64()?, reader.u32()?);
        Self::new(node, opened, flags, false).inspect_err(|_| {
            let is_directory = node.kind() == FileType::Directory;
            node.connection().release(release(node.id, opened.0, flags, is_directory));
        })
    }

    fn new(
        node: &FuseNode,
        (number, will): (u64, u32),
        flags: u32,
        is_nothing: bool,
    ) -> Result<Arc<Self>, Errno> {
        let is_directory = node.kind() == FileType::Directory;
        let session = node.session.clone();
        fallible::try_arc_with(|| Self {
            session,
            node: node.id,
            number,
            flags,
            will,
            is_directory,
            is_nothing,
        })
    }
}

impl Drop for FuseHandle {
    fn drop(&mut self) {
        if !self.is_nothing {
            self.session.connection.release(release(self.node, self.number, self.flags, self.is_directory));
        }
    }
}

/// An open file or directory.
struct FuseFile {
    // Dropped first: a handle must be closed before the file is forgotten.
    handle: Arc<FuseHandle>,
    node: Arc<FuseNode>,
    /// Bytes of a stream that the server has given and no program has taken.
    unread: SpinLock<Vec<u8>>,
}

pub(super) fn open(node: Arc<FuseNode>, opening: &Opening<'_>) -> Result<Arc<dyn File>, Errno> {
    match node.kind() {
        FileType::Regular | FileType::Directory => {}
        FileType::Symlink => return Err(Errno::ELOOP),
        // The server has no say in pipes, sockets and devices.
        _ => return Err(Errno::ENXIO),
    }
    let opener = if opening.flags_of_call & linux::O_CREAT != 0 {
        opening.thread.map(|thread| thread.tid())
    } else {
        None
    };
    let created = {
        let mut created = node.created.lock();
        let is_own = created.as_ref().is_some_and(|(maker, _)| Some(*maker) == opener);
        if is_own { created.take() } else { None }
    };
    let access = if opening.flags.contains(StatusFlags::EXECUTE) {
        linux::O_RDONLY
    } else {
        // The kernel makes and cuts files, and waits, by itself.
        opening.flags.bits()
            & (linux::O_ACCMODE | linux::O_APPEND | linux::O_NONBLOCK | linux::O_DIRECT | linux::O_DIRECTORY)
    };
    let handle = match created {
        Some((_, handle)) => handle,
        None => FuseHandle::open(&node, access)?,
    };
    Ok(fallible::try_arc(FuseFile { handle, node, unread: SpinLock::new(Vec::new()) })?)
}

/// Reads from the server, so many bytes at most.
fn read(node: &FuseNode, handle: &FuseHandle, offset: u64, count: usize) -> Result<Vec<u8>, Errno> {
    let mut message = node.message(opcode::READ, 40)?;
    message.u64(handle.number);
    message.u64(offset);
    message.u32(count as u32);
    message.u32(0);
    message.u64(0);
    message.u32(handle.flags);
    message.u32(0);
    node.ask(message, count)
}

impl FuseFile {
    fn expect_bytes(&self) -> Result<(), Errno> {
        if self.handle.is_directory { Err(Errno::EISDIR) } else { Ok(()) }
    }

    fn sync(&self, is_for_data: bool) -> Result<(), Errno> {
        let opcode = if self.handle.is_directory { opcode::FSYNCDIR } else { opcode::FSYNC };
        let mut message = self.node.message(opcode, 16)?;
        message.u64(self.handle.number);
        message.u32(u32::from(is_for_data));
        message.u32(0);
        absent_is_done(self.node.ask(message, 0).map(drop))
    }
}

/// A request that the server does not know need not be carried out.
fn absent_is_done(answer: Result<(), Errno>) -> Result<(), Errno> {
    if answer == Err(Errno::ENOSYS) { Ok(()) } else { answer }
}

impl File for FuseFile {
    fn read(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> TryResult<usize> {
        self.expect_bytes()?;
        let count = buffer.remaining().min(self.node.connection().read_max);
        if count == 0 {
            return Ok(0);
        }
        if self.is_seekable() {
            let answer = read(&self.node, &self.handle, offset, count)?;
            return Ok(buffer.copy_out(&answer)?);
        }
        // The server gives each byte once, so what a missing page keeps from the program stays here.
        let mut bytes = core::mem::take(&mut *self.unread.lock());
        if bytes.is_empty() {
            bytes = read(&self.node, &self.handle, offset, count)?;
        }
        let before = buffer.done();
        let copied = buffer.copy_out(&bytes);
        let taken = buffer.done() - before;
        if taken < bytes.len() {
            bytes.drain(..taken);
            *self.unread.lock() = bytes;
        }
        Ok(copied?)
    }

    fn write(&self, open: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> TryResult<usize> {
        self.expect_bytes()?;
        let count = buffer.remaining().min(self.node.connection().write_max());
        if count == 0 {
            return Ok(0);
        }
        let offset = if buffer.appends() || open.flags().contains(StatusFlags::APPEND) {
            // The end is where the server has it now.
            self.node.expire();
            self.node.attributes()?.size
        } else {
            offset
        };
        let mut message = self.node.message(opcode::WRITE, 40 + count)?;
        message.u64(self.handle.number);
        message.u64(offset);
        message.u32(count as u32);
        message.u32(0);
        message.u64(0);
        message.u32(open.flags().bits() & (linux::O_ACCMODE | linux::O_APPEND | linux::O_NONBLOCK));
        message.u32(0);
        // Looked at without taking it: the server says how much it took.
        buffer.peek(message.space(count)?)?;
        let answer = self.node.ask(message, 8);
        self.node.expire();
        let written = FuseReader::new(&answer?).u32().map_err(Errno::from)? as usize;
        if written > count {
            return Err(Errno::EIO.into());
        }
        buffer.skip(written);
        Ok(written)
    }

    fn is_pollable(&self) -> bool {
        false
    }

    fn is_seekable(&self) -> bool {
        self.handle.will & (opened::NONSEEKABLE | opened::STREAM) == 0
    }

    fn size(&self) -> Option<u64> {
        if self.handle.is_directory {
            return None;
        }
        self.node.attributes().ok().map(|attributes| attributes.size)
    }

    fn truncate(&self, size: u64) -> Result<bool, Errno> {
        self.expect_bytes()?;
        let handle = (!self.handle.is_nothing).then_some(self.handle.number);
        let set = self.node.set_attributes(&InodeChange::default(), Some(size), handle);
        set.map(|()| true)
    }

    fn allocate(&self, mode: u32, first: u64, length: u64) -> Result<u64, Errno> {
        self.expect_bytes()?;
        let mut message = self.node.message(opcode::FALLOCATE, 32)?;
        message.u64(self.handle.number);
        message.u64(first);
        message.u64(length);
        message.u32(mode);
        message.u32(0);
        let answer = self.node.ask(message, 0);
        self.node.expire();
        match answer {
            Err(Errno::ENOSYS) => Err(Errno::EOPNOTSUPP),
            answer => answer.map(|_| length),
        }
    }

    fn is_served(&self) -> bool {
        true
    }

    fn store(&self, is_for_data: bool) -> Result<(), Errno> {
        self.sync(is_for_data)
    }

    fn lingers(&self) -> bool {
        !self.handle.is_directory
    }

    fn flush(&self) -> Result<(), Errno> {
        let message = || {
            let mut message = self.node.message(opcode::FLUSH, 24)?;
            message.u64(self.handle.number);
            message.u64(0);
            message.u64(0);
            Ok::<_, Errno>(message)
        };
        if with_thread_here(|thread| thread.is_interrupted(WaitKind::Killable)) == Some(true) {
            self.node.connection().tell_dying(message().map_err(|_| OutOfMemory));
            return Ok(());
        }
        absent_is_done(self.node.ask(message()?, 0).map(drop))
    }

    fn map_source(self: Arc<Self>) -> Result<Arc<dyn MapSource>, Errno> {
        if self.handle.is_directory {
            return Err(Errno::ENODEV);
        }
        let (node, handle) = (self.node.clone(), self.handle.clone());
        Ok(fallible::try_arc(FusePages { handle, node })?)
    }

    fn map_shared(self: Arc<Self>) -> Result<Arc<dyn MapSource>, Errno> {
        Err(Errno::ENODEV)
    }

    fn released(&self, open: &OpenFile) {
        if let Ok(Some(locks)) = self.node.locks(false) {
            locks.release_description(open.id());
        }
    }
}

/// A file as the source of mappings. Its pages are the mappings' own: each that is missing is asked for.
struct FusePages {
    // Dropped first, as above.
    handle: Arc<FuseHandle>,
    node: Arc<FuseNode>,
}

impl MapSource for FusePages {
    fn page(&self, index: u64, _: bool) -> Result<PageRef, Errno> {
        const { assert!(PAGE_BYTES <= CONTENTS_MAX) };
        let offset = index.checked_mul(PAGE_BYTES as u64).ok_or(Errno::EFAULT)?;
        let frame = FrameRef::allocate_zeroed()?;
        let mut done = 0;
        while done < PAGE_BYTES {
            let count = (PAGE_BYTES - done).min(self.node.connection().read_max);
            // A server's word that memory is short is none of the machine's.
            let bytes =
                read(&self.node, &self.handle, offset + done as u64, count).map_err(|_| Errno::EIO)?;
            if bytes.is_empty() {
                break;
            }
            frame.write(done, &bytes);
            done += bytes.len();
        }
        // Behind the end there is none.
        if done == 0 { Err(Errno::EFAULT) } else { Ok(PageRef::Counted(frame)) }
    }

    fn identity(&self) -> (u64, u64) {
        (self.node.session.device, self.node.id)
    }
}
