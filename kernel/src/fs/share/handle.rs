//! Opened handles of files.
//!
//! A file whose bytes are all kept is opened without a word to the host: its handle is *lazy*, and is opened once
//! something is needed from the host. Before the guest takes a file's name away, lazy handles get one that the host
//! has opened, since after that there is no name to open it by.

use alloc::sync::Arc;

use heddle_kernel_core::ninep::{MessageWriter, kind};
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::share::Fid;
use crate::fs::share::node::SharedNode;
use crate::memory::fallible;

/// Lazy handles of a file.
#[derive(Default)]
pub struct LazyHandles {
    count: usize,
    /// Opened when the file lost a name, for all of them.
    opened: Option<Arc<Fid>>,
}

/// A handle of a file by which its bytes are read, and perhaps written.
pub struct Handle {
    node: Arc<SharedNode>,
    fid: spin::Once<Arc<Fid>>,
    is_lazy: bool,
}

impl Handle {
    /// A handle that the host has opened.
    pub fn opened(node: Arc<SharedNode>, fid: Fid) -> Result<Arc<Self>, Errno> {
        let fid = spin::Once::initialized(fallible::try_arc(fid)?);
        fallible::try_arc(Self { node, fid, is_lazy: false })
    }

    /// A handle to read, if all bytes are kept.
    pub fn lazy(node: &Arc<SharedNode>) -> Result<Option<Arc<Self>>, Errno> {
        let Some(size) = node.state.current_size(&node.fid.server) else { return Ok(None) };
        node.state.lazy.lock().count += 1;
        // Counted, so that its end counts it out, whatever comes.
        let handle = Self { node: node.clone(), fid: spin::Once::new(), is_lazy: true };
        if node.state.pages.is_complete(size) { fallible::try_arc(handle).map(Some) } else { Ok(None) }
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
            None => fallible::try_arc(open(&self.node, linux::O_RDONLY)?)?,
        };
        Ok(self.fid.call_once(|| fid))
    }

    /// The file.
    pub const fn node(&self) -> &Arc<SharedNode> {
        &self.node
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.is_lazy {
            let mut lazy = self.node.state.lazy.lock();
            lazy.count -= 1;
            let opened = if lazy.count == 0 { lazy.opened.take() } else { None };
            drop(lazy);
            drop(opened);
        }
    }
}

/// Opens a file on the host.
///
/// # Errors
/// The host's; `ESTALE` if it has another file of that name.
pub fn open(node: &SharedNode, flags: u32) -> Result<Fid, Errno> {
    let fid = node.fid.walk(None)?;
    let write = |writer: &mut MessageWriter<'_>| {
        writer.u32(fid.number);
        writer.u32(flags);
    };
    let number = node.fid.server.call(kind::OPEN, write, |reader| reader.qid())?;
    if number == node.number { Ok(fid) } else { Err(Errno::ESTALE) }
}

/// Prepares lazy handles for the loss of a name.
pub fn keep_open(node: &SharedNode) {
    let is_needed = |lazy: &LazyHandles| lazy.count > 0 && lazy.opened.is_none();
    if !is_needed(&node.state.lazy.lock()) {
        return;
    }
    // If that fails, what is not kept of the bytes cannot be read later, and reading says so.
    let Some(fid) = open(node, linux::O_RDONLY).ok().and_then(|fid| fallible::try_arc(fid).ok()) else {
        return;
    };
    let mut lazy = node.state.lazy.lock();
    let unneeded = if is_needed(&lazy) { lazy.opened.replace(fid) } else { Some(fid) };
    drop(lazy);
    drop(unneeded);
}
