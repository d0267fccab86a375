//! File systems that programs serve, fuse(4).
//!
//! A program (the *server*) opens `/dev/fuse`, names the descriptor in mount(2), and reads requests and writes answers
//! by it. Operations of nodes are plain functions, so whoever asks waits in a detour ([`crate::sched::detour`]) and can
//! be killed meanwhile; what the server answers later is given back to it. A server that is gone leaves `ENOTCONN`.
//!
//! A server is a program of this machine, and may be hung on purpose. So nothing waits for one that others wait for: no
//! spinlock is held, and the stacks that such waits take are limited, for each server and for all. Beyond the limit a
//! call fails with `ENOMEM`, because a CPU that waited without a stack might be the one that the server needs.
//!
//! Names and bytes are not kept: each look asks the server, so it has nothing to invalidate. Attributes are kept for as
//! long as the server says. Pages are read for the mapping that misses them; shared mappings that can be written are
//! refused (`ENODEV`), as Linux does for files with direct input and output. Locks hold among the programs of this
//! machine, and the server is not asked for them. Only the first user namespace mounts such file systems.

mod attributes;
mod connection;
mod device;
mod file;
mod names;
mod node;

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicU32, Ordering};

use heddle_kernel_core::fuse::{FuseOptions, ROOT_ID};

use crate::error::Errno;
use crate::fs::dentry::copy_name;
use crate::fs::fuse::connection::Connection;
use crate::fs::fuse::device::FuseDevice;
use crate::fs::fuse::node::{FuseNode, fuse_node};
use crate::fs::inode::device_number;
use crate::fs::mount::SuperblockWords;
use crate::fs::{Dentry, FileType, Inode, Mount, downcast};
use crate::memory::fallible;
use crate::process::Thread;
use crate::sync::SpinLock;

pub use crate::fs::fuse::device::{NODE, register};

/// The kind, as `/proc/mounts` shows it.
pub const KIND: &str = "fuse";

static NEXT_DEVICE: AtomicU32 = AtomicU32::new(1 << 17);

/// A mounted file system, from its mounting until its last node is gone.
struct FuseSession {
    connection: Arc<Connection>,
    device: u64,
    /// The nodes that are in use, by the server's numbers.
    nodes: SpinLock<BTreeMap<u64, Weak<FuseNode>>>,
}

impl Drop for FuseSession {
    fn drop(&mut self) {
        // Nobody can ask any more, and the server hears so.
        self.connection.end(Errno::ENOTCONN);
    }
}

/// Ends the connection to a server, whose mount has this root: what waits for it ends with an error.
pub fn abort(root: &Arc<dyn Inode>) {
    if let Ok(node) = fuse_node(root) {
        node.connection().end(Errno::ENOTCONN);
    }
}

/// A mount of what a program serves by the descriptor that the options name. The kind may have a name of its own.
///
/// # Errors
/// `EINVAL` (an option, or the descriptor is none of `/dev/fuse`, or serves another mount), `ENOMEM`, `ENOSPC`.
pub fn mount(
    thread: &Thread,
    subtype: Option<&[u8]>,
    source: &[u8],
    options: &[u8],
    flags: u32,
) -> Result<Arc<Mount>, Errno> {
    let options = FuseOptions::parse(options).ok_or(Errno::EINVAL)?;
    // As in Linux the kind has one name.
    if subtype.is_some() && options.subtype.is_some() {
        return Err(Errno::EINVAL);
    }
    let subtype = subtype.or(options.subtype.map(str::as_bytes)).unwrap_or_default();
    let words = SuperblockWords {
        subtype: copy_name(subtype)?,
        options: copy_name(&options.shown().map_err(|_| Errno::ENOMEM)?)?,
    };
    let kind = FileType::from_mode(options.root_mode).ok_or(Errno::EINVAL)?;
    if !matches!(kind, FileType::Directory | FileType::Regular) {
        return Err(Errno::EINVAL);
    }
    let open = thread.descriptors().get(options.descriptor).map_err(|_| Errno::EINVAL)?;
    let device = downcast::<FuseDevice>(&open).ok_or(Errno::EINVAL)?;
    let connection = Connection::new(&options)?;
    let session = fallible::try_arc(FuseSession {
        connection: connection.clone(),
        device: device_number(0, NEXT_DEVICE.fetch_add(1, Ordering::Relaxed)),
        nodes: SpinLock::new(BTreeMap::new()),
    })?;
    let root = FuseNode::new(&session, ROOT_ID, 0, kind)?;
    fallible::try_insert(&mut session.nodes.lock(), ROOT_ID, Arc::downgrade(&root))?;
    let mount = Mount::new(Dentry::new(root, None, b"")?, KIND, source, flags)?;
    mount.file_system.set_words(words);
    connection.begin()?;
    device.serve(connection)?;
    Ok(mount)
}
