//! The server of a folder: requests and replies, the handles that it knows, and the states of its files.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::{AtomicU32, Ordering};
use core::task::{Context, Poll};

use heddle_kernel_core::fallible::{push_reserved, vacate};
use heddle_kernel_core::ninep::{
    Failure, HEADER_BYTES, MessageWriter, NO_FID, NO_TAG, Reader, VERSION, kind,
};

use crate::device::share::{Exchange, GiveUp, MESSAGE_BYTES, Share};
use crate::error::{Errno, TryResult};
use crate::fs::File;
use crate::fs::inode::NAME_LIMIT;
use crate::fs::share::kept::CacheCounts;
use crate::fs::share::node::SharedNode;
use crate::fs::share::pages::{PageSlots, drop_step};
use crate::fs::share::state::FileState;
use crate::memory::fallible;
use crate::sched;
use crate::sched::{Budget, Priority, TaskRef};
use crate::sync::SpinLock;

/// Bytes of file contents in one message: what is left beside the longest header, in whole pages.
pub const CHUNK: usize = MESSAGE_BYTES - 4096;

/// A folder's server.
pub struct Server {
    share: Share,
    next_fid: AtomicU32,
    /// The number of the file system.
    pub(super) device: u64,
    /// The states of files, by their numbers.
    states: SpinLock<BTreeMap<u64, Weak<FileState>>>,
    pub(super) kept: CacheCounts,
    /// Sockets that are bound to files, by the files' numbers.
    pub(super) sockets: SpinLock<BTreeMap<u64, Weak<dyn File>>>,
    /// Handles to be given back, and the coroutine that does.
    gone: SpinLock<Option<Box<GoneFid>>>,
    /// Pages of files that have ended, to be dropped by it.
    gone_pages: SpinLock<Vec<PageSlots>>,
    /// States of which the names are to be dropped by it.
    gone_names: SpinLock<Vec<Arc<FileState>>>,
    keeper: spin::Once<TaskRef>,
    /// The folder's number between host and guest.
    pub(super) folder: u32,
    root: spin::Once<Weak<SharedNode>>,
}

impl From<Failure> for Errno {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(number) => u16::try_from(number).map_or(Self::EIO, Self),
            Failure::Malformed => Self::EIO,
        }
    }
}

/// Adds to a list, or returns what there is no memory for.
fn push_if_room<T>(list: &SpinLock<Vec<T>>, item: T) -> Option<T> {
    let mut list = list.lock();
    match list.try_reserve(1) {
        Ok(()) => {
            push_reserved(&mut list, item);
            None
        }
        Err(_) => Some(item),
    }
}

/// The usual fate of a request whose thread is killed.
const fn usual(request: u8) -> GiveUp {
    match request {
        // Later requests rely on these.
        kind::VERSION | kind::ATTACH | kind::SETATTR | kind::CLUNK => GiveUp::Never,
        _ => GiveUp::Forget,
    }
}

impl Server {
    /// Makes a request and reads its reply.
    pub(super) fn ask<T>(
        &self,
        request: u8,
        write: impl FnOnce(&mut MessageWriter<'_>) -> TryResult<()>,
        read: impl FnOnce(&mut Reader<'_>) -> TryResult<T>,
    ) -> TryResult<T> {
        self.ask_or(usual(request), request, write, read)
    }

    /// The same with a choice of what becomes of it if the thread is killed.
    pub(super) fn ask_or<T>(
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
    pub(super) fn call<T>(
        &self,
        request: u8,
        write: impl FnOnce(&mut MessageWriter<'_>),
        read: impl FnOnce(&mut Reader<'_>) -> Result<T, Failure>,
    ) -> Result<T, Errno> {
        self.call_or(usual(request), request, write, read)
    }

    /// The same with a choice of what becomes of it if the thread is killed.
    pub(super) fn call_or<T>(
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
    pub(super) fn write(
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
        crate::fs::share::file::ask_to_read(&mut writer, fid, offset, count);
        fill(writer.space(count).ok_or(Errno::EIO)?)?;
        let length = writer.finish().ok_or(Errno::EIO)?;
        // The pages that are kept here follow what the host has, so its answer is awaited.
        let mut made = made.exchange(length, GiveUp::Never)?;
        let mut reader = Reader::of_reply(made.reply(), kind::WRITE).map_err(Errno::from)?;
        let written = count.min(reader.u32().map_err(Errno::from)? as usize);
        taken(&made.request()[length - count..][..written]);
        Ok(written)
    }

    /// Requests on their way.
    pub(super) const fn exchange(&self) -> &Exchange {
        &self.share.exchange
    }

    /// Whether something is known of a file of this number.
    pub(super) fn knows(&self, number: u64) -> bool {
        self.states.lock().get(&number).is_some_and(|state| state.strong_count() > 0)
    }

    /// The state of a file, which all its nodes have in common.
    pub(super) fn state_of(self: &Arc<Self>, number: u64) -> Result<Arc<FileState>, Errno> {
        let mut all = self.states.lock();
        if let Some(state) = all.get(&number).and_then(Weak::upgrade) {
            return Ok(state);
        }
        // Made without a look at the list, into which its end looks.
        let state = fallible::try_arc(FileState::new(self, number))?;
        match fallible::try_insert(&mut all, number, Arc::downgrade(&state)) {
            Ok(_) => Ok(state),
            Err(error) => {
                drop(all);
                drop(state);
                Err(error)
            }
        }
    }

    /// A state has ended.
    pub(super) fn forget_state(&self, number: u64) {
        let mut all = self.states.lock();
        if all.get(&number).is_some_and(|state| state.strong_count() == 0) {
            all.remove(&number);
        }
    }

    /// The state after that of a number, of which the first comes after the last.
    pub(super) fn state_after(&self, number: u64) -> Option<(u64, Option<Arc<FileState>>)> {
        let all = self.states.lock();
        let next = all.range(number.saturating_add(1)..).next();
        next.map(|(&number, state)| (number, state.upgrade()))
    }

    /// The file of this number is a new one; what was known of another that had it is not about this.
    pub(super) fn forget(&self, number: u64, began: u64) {
        let (known, is_other) = {
            let mut all = self.states.lock();
            let known = all.get(&number).and_then(Weak::upgrade);
            // Somebody else may have found the new file already.
            let is_other = known.as_ref().is_none_or(|state| state.born <= began);
            if is_other {
                all.remove(&number);
            }
            (known, is_other)
        };
        if is_other {
            self.sockets.lock().remove(&number);
        }
        if let Some(state) = known.filter(|_| is_other) {
            state.part();
            self.drop_names_later(state);
        }
    }

    /// The file of this number is another than that of this state, which nodes still have.
    pub(super) fn part(&self, state: &Arc<FileState>, number: u64) {
        {
            let mut all = self.states.lock();
            if all.get(&number).is_none_or(|known| !core::ptr::eq(known.as_ptr(), Arc::as_ptr(state))) {
                return;
            }
            all.remove(&number);
        }
        state.expire(self);
        if state.part() {
            // Announcements find the files below by other names from now on, if by any.
            self.has_lost_name();
            self.drop_names_later(state.clone());
        }
    }

    /// Whether this is the state of the file that has the number now, as far as is known.
    pub(super) fn is_state_of(&self, state: &Arc<FileState>, number: u64) -> bool {
        let all = self.states.lock();
        all.get(&number).is_some_and(|known| core::ptr::eq(known.as_ptr(), Arc::as_ptr(state)))
    }

    pub(super) fn fid(self: &Arc<Self>) -> Result<Fid, Errno> {
        let number = self.next_fid.fetch_add(1, Ordering::Relaxed);
        let place = Some(fallible::try_box(GoneFid { number, next: None })?);
        Ok(Fid { server: self.clone(), number, place, is_live: false })
    }

    /// The folder itself.
    pub(super) fn root(&self) -> Option<Arc<SharedNode>> {
        self.root.get()?.upgrade()
    }

    pub(super) fn set_root(&self, root: &Arc<SharedNode>) {
        self.root.call_once(|| Arc::downgrade(root));
    }

    /// The folder's name between host and guest.
    pub(super) fn tag(&self) -> &[u8] {
        &self.share.tag
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
    pub(super) async fn give_back(self: Arc<Self>) {
        let mut budget = Budget::new();
        loop {
            let is_any = |_: &mut Context<'_>| match (self.next_gone(), self.next_gone_pages()) {
                (None, None) if self.gone_names.lock().is_empty() => Poll::Pending,
                gone => Poll::Ready(gone),
            };
            let (number, slots) = poll_fn(is_any).await;
            let state = self.gone_names.lock().pop();
            while state.as_ref().is_some_and(|state| state.forget_any_name(&self)) {
                budget.step(1).await;
            }
            drop(state);
            if let Some(number) = number {
                self.clunk(number);
            }
            budget.step(Budget::ATTEMPT).await;
            let Some(mut slots) = slots else { continue };
            while drop_step(&mut slots) {
                budget.step(Budget::ATTEMPT).await;
            }
        }
    }

    /// Gives a handle back, and others with it. The server forgets them whatever it says, so nobody waits for its
    /// answer.
    fn clunk(&self, number: u32) {
        let mut first = Some(number);
        self.exchange().post(|buffer, tag| {
            let number = first.take().or_else(|| self.next_gone())?;
            let mut writer = MessageWriter::new(buffer, kind::CLUNK, tag as u16);
            writer.u32(number);
            writer.finish()
        });
        if let Some(number) = first {
            // There are many already.
            let _ = self.call(kind::CLUNK, |writer| writer.u32(number), |_| Ok(()));
        }
    }

    pub(super) fn next_gone_pages(&self) -> Option<PageSlots> {
        self.gone_pages.lock().pop()
    }

    /// Has pages dropped by the keeper; here and now if there is no memory for that.
    pub(super) fn drop_later(&self, slots: PageSlots) {
        let kept = push_if_room(&self.gone_pages, slots);
        drop(kept);
        self.wake_keeper();
    }

    /// The same for the names in a directory.
    fn drop_names_later(&self, state: Arc<FileState>) {
        let kept = push_if_room(&self.gone_names, state);
        self.wake_keeper();
        while kept.as_ref().is_some_and(|state| state.forget_any_name(self)) {
            sched::poll_interrupts();
        }
    }

    pub(super) fn wake_keeper(&self) {
        if let Some(keeper) = self.keeper.get() {
            keeper.wake();
        }
    }

    /// The server of a folder, which has not been spoken to yet.
    pub(super) fn new(share: Share, folder: u32, device: u64) -> Result<Arc<Self>, Errno> {
        let server = fallible::try_arc(Self {
            share,
            next_fid: AtomicU32::new(0),
            device,
            states: SpinLock::new(BTreeMap::new()),
            kept: CacheCounts::new(),
            sockets: SpinLock::new(BTreeMap::new()),
            gone: SpinLock::new(None),
            gone_pages: SpinLock::new(Vec::new()),
            gone_names: SpinLock::new(Vec::new()),
            keeper: spin::Once::new(),
            folder,
            root: spin::Once::new(),
        })?;
        let keeper = sched::spawn(Priority::BACKGROUND, server.clone().give_back())?;
        server.keeper.call_once(|| keeper);
        Ok(server)
    }

    /// Agrees on the protocol and gets the folder itself.
    pub(super) fn attach(self: &Arc<Self>) -> Result<Fid, Errno> {
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
pub struct Fid {
    pub(super) server: Arc<Server>,
    pub(super) number: u32,
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
    pub(super) const fn live(mut self) -> Self {
        self.is_live = true;
        self
    }

    /// A handle of the same file.
    pub(super) fn again(&self) -> Result<Self, Errno> {
        self.walk_names(GiveUp::Forget, &[]).map(|walk| walk.fid)
    }

    /// A handle of the file of a name in this directory.
    pub(super) fn walk(&self, name: &[u8]) -> Result<Self, Errno> {
        let WalkAnswer { fid, count, .. } = self.walk_names(GiveUp::Forget, &[name])?;
        if count == 1 { Ok(fid) } else { Err(Errno::ENOENT) }
    }

    /// Number and version of the file of a name in this directory, without a handle that has to be given back: the walk
    /// goes on to a name that no file can have, and says how far it came. `None` if the name has no file, or the server
    /// does not say how far it came.
    pub(super) fn number_of(&self, name: &[u8]) -> Result<Option<(u64, u32)>, Errno> {
        match self.walk_names(GiveUp::Forget, &[name, &IMPOSSIBLE_NAME]) {
            Ok(WalkAnswer { count: 1, first, .. }) => Ok(Some(first)),
            Err(error @ (Errno::EINTR | Errno::ENOMEM)) => Err(error),
            _ => Ok(None),
        }
    }

    /// Waits until the host answers questions about this file, before a request in which it looks at the file.
    ///
    /// In those QEMU 7.2 holds a lock of the whole folder, shared; creations and renames wait for it, and all others
    /// behind them. If the host hangs, it is to hang here instead: a walk holds no lock. This one goes to a name that
    /// no file can have, so it looks at the file itself and leaves no handle.
    ///
    /// # Errors
    /// `EINTR`: the thread was killed meanwhile. `ENOMEM`. The answer itself says nothing.
    pub(super) fn probe(&self, give_up: GiveUp) -> Result<(), Errno> {
        match self.walk_names(give_up, &[&IMPOSSIBLE_NAME]) {
            Err(error @ (Errno::EINTR | Errno::ENOMEM)) => Err(error),
            _ => Ok(()),
        }
    }

    fn walk_names(&self, give_up: GiveUp, names: &[&[u8]]) -> Result<WalkAnswer, Errno> {
        let fid = self.server.fid()?;
        let walk = |writer: &mut MessageWriter<'_>| {
            writer.u32(self.number);
            writer.u32(fid.number);
            writer.u16(names.len() as u16);
            for name in names {
                writer.string(name);
            }
        };
        let read = |reader: &mut Reader<'_>| {
            let count = usize::from(reader.u16()?);
            Ok((count, if count > 0 { reader.qid_and_version()? } else { (0, 0) }))
        };
        // A handle that comes too late has to be given back.
        let give_up = if give_up == GiveUp::Never { give_up } else { GiveUp::Tell(fid.number) };
        let (count, first) = self.server.call_or(give_up, kind::WALK, walk, read)?;
        Ok(WalkAnswer { fid: if count == names.len() { fid.live() } else { fid }, count, first })
    }
}

/// The answer to a walk.
struct WalkAnswer {
    /// The handle, which the server knows if the walk came to its end.
    fid: Fid,
    /// How many names it came past.
    count: usize,
    /// Number and version of the first one's file.
    first: (u64, u32),
}

/// A name that is too long for any file.
const IMPOSSIBLE_NAME: [u8; NAME_LIMIT + 1] = [b'-'; NAME_LIMIT + 1];

impl Drop for Fid {
    fn drop(&mut self) {
        let Some(mut place) = self.place.take().filter(|_| self.is_live) else { return };
        let mut gone = self.server.gone.lock();
        place.next = gone.take();
        *gone = Some(place);
        drop(gone);
        self.server.wake_keeper();
    }
}
