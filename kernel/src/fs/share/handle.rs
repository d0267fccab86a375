//! Opened handles of files.
//!
//! A file whose bytes are all kept, and that has been as it is for some time, is opened without a word to the host: its
//! handle is *lazy*, and is opened once something is needed from the host. The host may take the file's name away
//! meanwhile, so the bytes stay as long as a handle is lazy; a part of the memory is for that, and no more files are
//! opened in this way than fit there. Before the guest takes a name away itself, and when the host has changed a file,
//! lazy handles get one that the host has opened. A file that is mapped has such a handle, which further handles have
//! in common with the mappings.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use heddle_kernel_core::ninep::{Attributes, MessageWriter, kind};
use linux_raw_sys::general as linux;

use crate::device::share::GiveUp;
use crate::error::Errno;
use crate::fs::share::Fid;
use crate::fs::share::asking::attributes;
use crate::fs::share::node::SharedNode;
use crate::fs::share::pages::{COMPLETE_MAX, PAGE};
use crate::memory::fallible;

/// Lazy handles of a file.
#[derive(Default)]
pub struct LazyHandles {
    count: usize,
    /// Opened for all of them.
    opened: Option<Arc<Fid>>,
    /// Calls under way that take a name of the file away.
    losing: usize,
    /// The file has lost a name, so that a node may have none by which it could be opened later.
    has_lost: bool,
}

impl LazyHandles {
    /// Whether there are handles for which the bytes have to stay.
    pub const fn is_pinning(&self) -> bool {
        self.count > 0 && self.opened.is_none()
    }

    /// Whether the host has opened the file for them.
    pub const fn is_opened(&self) -> bool {
        self.opened.is_some()
    }
}

/// A handle of a file by which its bytes are read, and perhaps written.
pub struct Handle {
    node: Arc<SharedNode>,
    fid: spin::Once<Arc<Fid>>,
    /// It is counted among the lazy ones of the file, for which so many frames are pinned.
    is_lazy: AtomicBool,
    pinned: usize,
    /// Whatever is written by it comes at the end.
    appends: bool,
}

impl Handle {
    /// A handle that the host has opened with these flags.
    pub fn opened(node: Arc<SharedNode>, fid: Fid, flags: u32) -> Result<Arc<Self>, Errno> {
        Self::sharing(node, fallible::try_arc(fid)?, flags & linux::O_APPEND != 0)
    }

    fn sharing(node: Arc<SharedNode>, fid: Arc<Fid>, appends: bool) -> Result<Arc<Self>, Errno> {
        node.state.hold();
        let fid = spin::Once::initialized(fid);
        fallible::try_arc(Self { node, fid, is_lazy: AtomicBool::new(false), pinned: 0, appends })
    }

    /// A handle to read, if that needs no word to the host; `may_be_lazy` if the host need not have opened the file.
    pub fn at_once(node: &Arc<SharedNode>, may_be_lazy: bool) -> Result<Option<Arc<Self>>, Errno> {
        if let Some(fid) = node.state.mapped_fid() {
            return Self::sharing(node.clone(), fid, false).map(Some);
        }
        if may_be_lazy { Self::lazy(node) } else { Ok(None) }
    }

    /// A lazy handle, if all bytes are kept.
    fn lazy(node: &Arc<SharedNode>) -> Result<Option<Arc<Self>>, Errno> {
        let (state, server) = (&node.state, &node.fid.server);
        let is_to_be_asked = |size| !state.has_asked_generation() && state.pages.is_complete(size);
        if state.settled_size(server).is_some_and(is_to_be_asked) {
            // By it the file is told from another that gets its name and its number later.
            match node.ask_generation() {
                Ok(()) => {}
                Err(Errno::EINTR) => return Err(Errno::EINTR),
                Err(_) => return Ok(None),
            }
        }
        let Some(size) = state.settled_size(server) else { return Ok(None) };
        let pages = size.div_ceil(PAGE);
        let pinned = pages.min(COMPLETE_MAX) as usize;
        if pages > COMPLETE_MAX || !server.pin(pinned) {
            return Ok(None);
        }
        // Counted before the bytes are looked at, so that they stay; its end counts it out, whatever comes.
        let keeps_its_names = {
            let mut lazy = state.lazy.lock();
            lazy.count += 1;
            lazy.losing == 0 && !lazy.has_lost
        };
        let is_lazy = AtomicBool::new(true);
        let handle = Self { node: node.clone(), fid: spin::Once::new(), is_lazy, pinned, appends: false };
        if keeps_its_names && state.pages.is_complete(size) {
            fallible::try_arc(handle).map(Some)
        } else {
            Ok(None)
        }
    }

    /// The host's handle.
    ///
    /// # Errors
    /// Those of opening it; `ESTALE` if the host has another file of that name.
    pub fn fid(&self) -> Result<&Arc<Fid>, Errno> {
        if let Some(fid) = self.fid.get() {
            return Ok(fid);
        }
        let kept = self.node.state.lazy.lock().opened.clone();
        let fid = match kept {
            Some(fid) => fid,
            None => open_unheld(&self.node)?,
        };
        let fid = self.fid.call_once(|| {
            self.node.state.hold();
            fid
        });
        self.settle();
        Ok(fid)
    }

    /// The host's handle, if the host has opened the file for this one.
    pub fn opened_fid(&self) -> Option<&Arc<Fid>> {
        self.fid.get()
    }

    /// Whether whatever is written by it comes at the end.
    pub const fn appends(&self) -> bool {
        self.appends
    }

    /// Counts a lazy handle out.
    fn settle(&self) {
        if !self.is_lazy.swap(false, Ordering::AcqRel) {
            return;
        }
        let mut lazy = self.node.state.lazy.lock();
        lazy.count -= 1;
        let opened = if lazy.count == 0 { lazy.opened.take() } else { None };
        drop(lazy);
        drop(opened);
        self.node.fid.server.unpin(self.pinned);
    }

    /// The file.
    pub const fn node(&self) -> &Arc<SharedNode> {
        &self.node
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.settle();
        if self.fid.get().is_some() {
            self.node.state.let_go();
        }
    }
}

/// Opens a file on the host.
///
/// # Errors
/// The host's; `ESTALE` if it has another file of that name.
pub fn open(node: &SharedNode, flags: u32) -> Result<Fid, Errno> {
    let (fid, version) = open_unasked(node, flags)?;
    if !node.state.is_confirmed(version) {
        // All that is known is to be about the file that was opened.
        node.ask_after_walk(GiveUp::Forget)?;
    }
    Ok(fid)
}

/// The same without a question about what is known of the file; the handle, and the version of the file.
fn open_unasked(node: &SharedNode, flags: u32) -> Result<(Fid, u32), Errno> {
    let fid = node.fid.again()?;
    let write = |writer: &mut MessageWriter<'_>| {
        writer.u32(fid.number);
        writer.u32(flags);
    };
    let (number, version) = node.fid.server.call(kind::OPEN, write, |reader| reader.qid_and_version())?;
    if number == node.number { Ok((fid, version)) } else { Err(Errno::ESTALE) }
}

/// The same for a file that nobody holds on the host, where another may have its name and its number by now. The host
/// tells them apart if its file system counts generations. Nothing is learnt here, since what is learnt may have lazy
/// handles opened, and would come back here as long as the host changes the file.
fn open_unheld(node: &SharedNode) -> Result<Arc<Fid>, Errno> {
    let (fid, version) = open_unasked(node, linux::O_RDONLY)?;
    if !node.state.is_confirmed(version) {
        node.state.expire(node.server());
    }
    let answer = attributes(GiveUp::Forget, &fid, true)?;
    let is_other = |known: Attributes| known.is_same_file(&answer) == Some(false);
    if node.state.last().is_some_and(is_other) {
        return Err(Errno::ESTALE);
    }
    fallible::try_arc(fid)
}

/// Opens a file on the host for all lazy handles, if there are any.
pub fn open_for_lazy(node: &SharedNode) {
    if !node.state.lazy.lock().is_pinning() {
        return;
    }
    // If that fails, the bytes that are kept are all there is, and they stay.
    let Ok(fid) = open_unheld(node) else { return };
    let mut lazy = node.state.lazy.lock();
    let unneeded = if lazy.is_pinning() { lazy.opened.replace(fid) } else { Some(fid) };
    drop(lazy);
    drop(unneeded);
}

/// A call that takes a name of a file away. Nobody opens the file lazily meanwhile.
pub struct NameLoss<'a>(&'a SharedNode);

impl<'a> NameLoss<'a> {
    /// Before the host is asked for it.
    pub fn begin(node: &'a SharedNode) -> Self {
        node.state.lazy.lock().losing += 1;
        open_for_lazy(node);
        Self(node)
    }

    /// The host has answered; a call that was interrupted may still succeed.
    pub fn end(self, result: &Result<(), Errno>) {
        if matches!(result, Ok(()) | Err(Errno::EINTR)) {
            self.0.state.lazy.lock().has_lost = true;
        }
    }
}

impl Drop for NameLoss<'_> {
    fn drop(&mut self) {
        self.0.state.lazy.lock().losing -= 1;
    }
}
