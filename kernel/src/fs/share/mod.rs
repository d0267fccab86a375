//! Folders of the host: a file system whose nodes are the host's files, reached by 9P over a virtio device.
//!
//! Nothing is kept here but a *fid*, the server's handle, for each node and each open file; what a file is, holds and
//! is called the host says each time. Several looks at one file give several nodes, which have the same number and
//! share a state: locks, the pipe of a FIFO, and the pages of a file while it is mapped.
//!
//! Locks hold among the guest's programs; QEMU's server would grant all that it is asked for, so it is not asked.
//!
//! FIFOs and sockets are nodes on the host, and pipes and sockets in the guest: nothing passes between the two. There
//! are no device files.

mod file;
mod node;
mod pages;
mod state;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::{AtomicU32, Ordering};
use core::task::Poll;

use heddle_abi::boot::{KEY_SHARE, SHARE_READ_ONLY, SHARE_TAG, SHARE_VALUE_MAX};
use heddle_kernel_core::fallible::vacate;
use heddle_kernel_core::ninep::{
    Failure, HEADER_BYTES, MessageWriter, NO_FID, NO_TAG, Reader, VERSION, kind,
};
use linux_raw_sys::general as linux;

use crate::boot;
use crate::device::share::{GiveUp, MESSAGE_BYTES, Share};
use crate::error::{Errno, TryResult};
use crate::fs::inode::{FileType, device_number};
use crate::fs::share::node::SharedNode;
use crate::fs::share::state::FileState;
use crate::fs::{Dentry, File, Mount, setup};
use crate::memory::fallible;
use crate::sched;
use crate::sched::{Budget, Priority, TaskRef};
use crate::sync::SpinLock;

/// Bytes of file contents in one message: what is left beside the longest header, in whole pages.
const CHUNK: usize = MESSAGE_BYTES - 4096;

/// A folder's server.
struct Server {
    share: Share,
    next_fid: AtomicU32,
    /// The number of the file system.
    device: u64,
    /// The states of files, by their numbers.
    states: SpinLock<BTreeMap<u64, Weak<FileState>>>,
    /// Sockets that are bound to files, by the files' numbers.
    sockets: SpinLock<BTreeMap<u64, Weak<dyn File>>>,
    /// Handles to be given back, and the coroutine that does.
    gone: SpinLock<Option<Box<GoneFid>>>,
    keeper: spin::Once<TaskRef>,
}

impl From<Failure> for Errno {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(number) => u16::try_from(number).map_or(Self::EIO, Self),
            Failure::Malformed => Self::EIO,
        }
    }
}

/// What becomes of a request whose thread is killed, unless it is said.
const fn usual(request: u8) -> GiveUp {
    match request {
        // What comes after relies on these.
        kind::VERSION | kind::ATTACH | kind::SETATTR | kind::CLUNK => GiveUp::Never,
        _ => GiveUp::Forget,
    }
}

impl Server {
    /// Makes a request and reads its reply.
    fn ask<T>(
        &self,
        request: u8,
        write: impl FnOnce(&mut MessageWriter<'_>) -> TryResult<()>,
        read: impl FnOnce(&mut Reader<'_>) -> TryResult<T>,
    ) -> TryResult<T> {
        self.ask_or(usual(request), request, write, read)
    }

    /// The same with a choice of what becomes of it if the thread is killed.
    fn ask_or<T>(
        &self,
        give_up: GiveUp,
        request: u8,
        write: impl FnOnce(&mut MessageWriter<'_>) -> TryResult<()>,
        read: impl FnOnce(&mut Reader<'_>) -> TryResult<T>,
    ) -> TryResult<T> {
        let mut made = self.share.exchange.begin()?;
        let tag = if request == kind::VERSION { NO_TAG } else { made.number() as u16 };
        let mut writer = MessageWriter::new(made.request(), request, tag);
        write(&mut writer)?;
        let length = writer.finish().ok_or(Errno::ENAMETOOLONG)?;
        let made = made.exchange(length, give_up)?;
        read(&mut Reader::of_reply(made.reply(), request).map_err(Errno::from)?)
    }

    /// A request that touches no user memory.
    fn call<T>(
        &self,
        request: u8,
        write: impl FnOnce(&mut MessageWriter<'_>),
        read: impl FnOnce(&mut Reader<'_>) -> Result<T, Failure>,
    ) -> Result<T, Errno> {
        self.call_or(usual(request), request, write, read)
    }

    /// The same with a choice of what becomes of it if the thread is killed.
    fn call_or<T>(
        &self,
        give_up: GiveUp,
        request: u8,
        write: impl FnOnce(&mut MessageWriter<'_>),
        read: impl FnOnce(&mut Reader<'_>) -> Result<T, Failure>,
    ) -> Result<T, Errno> {
        let write = |writer: &mut MessageWriter<'_>| {
            write(writer);
            Ok(())
        };
        let read = |reader: &mut Reader<'_>| Ok(read(reader).map_err(Errno::from)?);
        self.ask_or(give_up, request, write, read).map_err(crate::process::executable::as_error)
    }

    /// Writes `count` bytes that `fill` provides to an opened file; what was taken of them is shown to `taken`, which
    /// must not make a request. How many they were.
    fn write(
        &self,
        fid: &Fid,
        offset: u64,
        count: usize,
        fill: impl FnOnce(&mut [u8]) -> TryResult<()>,
        taken: impl FnOnce(&[u8]),
    ) -> TryResult<usize> {
        let mut made = self.share.exchange.begin()?;
        let tag = made.number() as u16;
        let mut writer = MessageWriter::new(made.request(), kind::WRITE, tag);
        file::ask_to_read(&mut writer, fid, offset, count);
        fill(writer.space(count).ok_or(Errno::EIO)?)?;
        let length = writer.finish().ok_or(Errno::EIO)?;
        // The pages that are kept here follow what the host has, so its answer is awaited.
        let mut made = made.exchange(length, GiveUp::Never)?;
        let mut reader = Reader::of_reply(made.reply(), kind::WRITE).map_err(Errno::from)?;
        let written = count.min(reader.u32().map_err(Errno::from)? as usize);
        taken(&made.request()[length - count..][..written]);
        Ok(written)
    }

    /// The state of a file, which all its nodes have in common.
    fn state_of(&self, number: u64, make: bool) -> Result<Option<Arc<FileState>>, Errno> {
        let mut all = self.states.lock();
        if let Some(state) = all.get(&number).and_then(Weak::upgrade) {
            return Ok(Some(state));
        }
        if !make {
            return Ok(None);
        }
        all.retain(|_, state| state.strong_count() > 0);
        let state = fallible::try_arc(FileState::new())?;
        fallible::try_insert(&mut all, number, Arc::downgrade(&state))?;
        Ok(Some(state))
    }

    /// The file of this number is a new one; what was known of another that had it is not about this.
    fn forget(&self, number: u64) {
        self.states.lock().remove(&number);
        self.sockets.lock().remove(&number);
    }

    fn fid(self: &Arc<Self>) -> Result<Fid, Errno> {
        let number = self.next_fid.fetch_add(1, Ordering::Relaxed);
        let place = Some(fallible::try_box(GoneFid { number, next: None })?);
        Ok(Fid { server: self.clone(), number, place, is_live: false })
    }

    /// A handle that nobody has any more, to be given back.
    fn next_gone(&self) -> Option<u32> {
        if let Some(late) = self.share.exchange.late() {
            return Some(late);
        }
        let mut gone = self.gone.lock();
        let first = gone.take()?;
        let (fid, _) = vacate(first);
        *gone = fid.next;
        Some(fid.number)
    }

    /// Gives handles back, each once nobody has it any more.
    async fn give_back(self: Arc<Self>) {
        let mut budget = Budget::new();
        loop {
            let number = poll_fn(|_| self.next_gone().map_or(Poll::Pending, Poll::Ready)).await;
            // The server forgets the handle whatever it says.
            let _ = self.call(kind::CLUNK, |writer| writer.u32(number), |_| Ok(()));
            budget.step(Budget::ATTEMPT).await;
        }
    }

    /// Agrees on the protocol and gets the folder itself.
    fn attach(self: &Arc<Self>) -> Result<Fid, Errno> {
        let version = |writer: &mut MessageWriter<'_>| {
            writer.u32(MESSAGE_BYTES as u32);
            writer.string(VERSION);
        };
        let agreed = |reader: &mut Reader<'_>| {
            let size = reader.u32()? as usize;
            Ok(size >= CHUNK + HEADER_BYTES + 16 && reader.string()? == VERSION)
        };
        if !self.call(kind::VERSION, version, agreed)? {
            return Err(Errno::EPROTO);
        }
        let fid = self.fid()?;
        let attach = |writer: &mut MessageWriter<'_>| {
            writer.u32(fid.number);
            writer.u32(NO_FID);
            writer.string(b"root");
            writer.string(b"");
            writer.u32(0);
        };
        self.call(kind::ATTACH, attach, |_| Ok(()))?;
        Ok(fid.live())
    }
}

/// A handle of the server's, given back once it has been dropped: by a coroutine, because it may be dropped where
/// nobody can wait for the host.
struct Fid {
    server: Arc<Server>,
    number: u32,
    /// Its place among those to be given back.
    place: Option<Box<GoneFid>>,
    is_live: bool,
}

/// A handle that nobody has any more, in a list of them.
struct GoneFid {
    number: u32,
    next: Option<Box<GoneFid>>,
}

impl Fid {
    /// The server knows it now.
    const fn live(mut self) -> Self {
        self.is_live = true;
        self
    }

    /// A handle of the same file, or with a name of one in this directory.
    fn walk(&self, name: Option<&[u8]>) -> Result<Self, Errno> {
        let fid = self.server.fid()?;
        let walk = |writer: &mut MessageWriter<'_>| {
            writer.u32(self.number);
            writer.u32(fid.number);
            writer.u16(u16::from(name.is_some()));
            if let Some(name) = name {
                writer.string(name);
            }
        };
        // A handle that comes too late has to be given back.
        let give_up = GiveUp::Tell(fid.number);
        let count = self.server.call_or(give_up, kind::WALK, walk, |reader| reader.u16())?;
        if count != u16::from(name.is_some()) {
            return Err(Errno::ENOENT);
        }
        Ok(fid.live())
    }
}

impl Drop for Fid {
    fn drop(&mut self) {
        let Some(mut place) = self.place.take().filter(|_| self.is_live) else { return };
        let mut gone = self.server.gone.lock();
        place.next = gone.take();
        *gone = Some(place);
        drop(gone);
        if let Some(keeper) = self.server.keeper.get() {
            keeper.wake();
        }
    }
}

/// Mounts the folders where the command line wants them.
///
/// # Errors
/// The error that keeps one from being mounted.
pub fn mount_all(shares: Vec<Share>) -> Result<(), Errno> {
    let mut buffer = [0; SHARE_VALUE_MAX];
    let Some(value) = boot::option(KEY_SHARE, &mut buffer) else { return Ok(()) };
    for share in shares {
        let number = core::str::from_utf8(&share.tag).ok().and_then(|tag| tag.strip_prefix(SHARE_TAG));
        let number: Option<usize> = number.and_then(|number| number.parse().ok());
        let Some(target) = number.and_then(|number| value.split(',').nth(number)) else { continue };
        let (path, flags) = match target.strip_suffix(SHARE_READ_ONLY) {
            Some(path) => (path, linux::MS_RDONLY),
            None => (target, 0),
        };
        let device = device_number(0, 60 + number.unwrap_or(0) as u32);
        let server = fallible::try_arc(Server {
            share,
            next_fid: AtomicU32::new(0),
            device,
            states: SpinLock::new(BTreeMap::new()),
            sockets: SpinLock::new(BTreeMap::new()),
            gone: SpinLock::new(None),
            keeper: spin::Once::new(),
        })?;
        let keeper = sched::spawn(Priority::BACKGROUND, server.clone().give_back())?;
        server.keeper.call_once(|| keeper);
        let root = SharedNode::new(server.attach()?)?;
        if crate::fs::Inode::kind(&*root) != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        let mount = Mount::new(Dentry::new(root, None, b"")?, "9p", &server.share.tag, flags)?;
        setup::attach_at(&mount, path.as_bytes())?;
    }
    Ok(())
}
