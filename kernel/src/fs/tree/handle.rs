//! File handles, open_by_handle_at(2): numbers that lead back to a node without its name.
//!
//! As in Linux's tmpfs only nodes of which a handle was made can be found by one, so the tree has an index of no
//! others. The index keeps nothing alive: a node leaves it when it goes. A node of the image that is in it is no cache
//! any more ([`super::drain`]), since nothing else would lead back to its name.

use alloc::sync::{Arc, Weak};
use core::any::Any;
use heddle_kernel_core::xarray::Sparse;

use crate::error::Errno;
use crate::fs::tree::directory::tree_node;
use crate::fs::tree::{Tree, TreeNode};
use crate::fs::{Dentry, FileType, Inode, Path};
use crate::sync::SpinLock;

/// The identity of a node, three words as in Linux's tmpfs: a random number of the tree, and the node's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHandle {
    generation: u32,
    inode: u64,
}

impl FileHandle {
    /// Its type in `struct file_handle`.
    pub const TYPE: i32 = 1;
    /// Its length there.
    pub const BYTES: usize = 12;

    /// As it lies in `f_handle`.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.generation.to_ne_bytes());
        bytes[4..].copy_from_slice(&self.inode.to_ne_bytes());
        bytes
    }

    /// Reads it from `f_handle`, which may be longer. `None` if that is too short.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (generation, rest) = bytes.split_first_chunk()?;
        let inode = u64::from_ne_bytes(*rest.first_chunk()?);
        Some(Self { generation: u32::from_ne_bytes(*generation), inode })
    }
}

/// The nodes of which handles were made, by number.
pub(super) struct Handles {
    /// Makes a handle of another tree with the same number of a node a different one. Chosen with the first handle.
    generation: spin::Once<u32>,
    nodes: SpinLock<Sparse<ExportedNode>>,
}

/// A node of which a handle was made, and the name that it had then.
struct ExportedNode {
    node: Weak<TreeNode>,
    entry: Weak<Dentry>,
}

impl Handles {
    pub const fn new() -> Self {
        Self { generation: spin::Once::new(), nodes: SpinLock::new(Sparse::new()) }
    }

    /// Forgets a node that goes.
    pub fn forget(&self, inode: u64) {
        let old = self.nodes.lock().remove(inode);
        drop(old);
    }
}

fn random_generation() -> u32 {
    let mut bytes = [0; size_of::<u32>()];
    crate::random::fill(&mut bytes);
    u32::from_ne_bytes(bytes)
}

/// The tree that a place is in, if handles can be made of what is there. Linux's tmpfs has them, also for a `memfd`,
/// which lies here in the tree of the pipes; its ramfs and the file system of pipes have none.
fn exporting_tree(place: &Path) -> Option<&Arc<Tree>> {
    let node: &dyn Any = &*place.entry.node;
    let node = node.downcast_ref::<TreeNode>()?;
    let exports = match place.mount.file_system.kind {
        "tmpfs" | "devtmpfs" => true,
        "pipefs" => node.kind == FileType::Regular,
        _ => false,
    };
    exports.then_some(&node.tree)
}

/// The handle of the file at a place.
///
/// # Errors
/// `EOPNOTSUPP` (the file system has none), `ENOMEM`.
pub fn encode_handle(place: &Path) -> Result<FileHandle, Errno> {
    let tree = exporting_tree(place).ok_or(Errno::EOPNOTSUPP)?;
    let node = tree_node(&place.entry.node)?;
    let exported = ExportedNode { node: Arc::downgrade(&node), entry: Arc::downgrade(&place.entry) };
    node.attributes.lock().exported = true;
    let old = tree.handles.nodes.lock().insert(node.inode, exported).map_err(|_| Errno::ENOMEM)?;
    drop(old);
    let generation = *tree.handles.generation.call_once(random_generation);
    Ok(FileHandle { generation, inode: node.inode })
}

/// The handle of a node, by the name that it has here if that is known.
///
/// # Errors
/// `EOPNOTSUPP` (its file system has none), `ENOMEM`.
pub fn encode_node_handle(node: &Arc<dyn Inode>, entry: Option<&Arc<Dentry>>) -> Result<FileHandle, Errno> {
    let node = tree_node(node).map_err(|_| Errno::EOPNOTSUPP)?;
    let handles = &node.tree.handles;
    let exported =
        ExportedNode { node: Arc::downgrade(&node), entry: entry.map_or_else(Weak::new, Arc::downgrade) };
    node.attributes.lock().exported = true;
    let mut nodes = handles.nodes.lock();
    let old = if entry.is_none() && nodes.get(node.inode).is_some() {
        None
    } else {
        nodes.insert(node.inode, exported).map_err(|_| Errno::ENOMEM)?
    };
    drop(nodes);
    drop(old);
    let generation = *handles.generation.call_once(random_generation);
    Ok(FileHandle { generation, inode: node.inode })
}

/// The place of the file that a handle names, in the file system that `at` is in.
///
/// # Errors
/// `ESTALE` (there is no such file), `ENOMEM`.
pub fn decode_handle(at: &Path, handle: FileHandle) -> Result<Path, Errno> {
    let tree = exporting_tree(at).ok_or(Errno::ESTALE)?;
    if tree.handles.generation.get() != Some(&handle.generation) {
        return Err(Errno::ESTALE);
    }
    let found = {
        let nodes = tree.handles.nodes.lock();
        nodes
            .get(handle.inode)
            .and_then(|exported| Some((exported.node.upgrade()?, exported.entry.upgrade())))
    };
    let (node, entry) = found.ok_or(Errno::ESTALE)?;
    let is_nameless = node.attributes.lock().links == 0;
    let entry = match entry {
        Some(entry) if is_nameless || !entry.is_removed() => entry,
        // That name has gone. Where others are is not known, so the file is found without one, as Linux's
        // disconnected dentries are.
        _ => {
            let entry = Dentry::new(node, None, b"")?;
            if is_nameless {
                entry.mark_removed();
            }
            entry
        }
    };
    Ok(Path { mount: at.mount.clone(), entry })
}

/// The most bytes in `f_handle` that a call takes.
pub const HANDLE_BYTES_MAX: usize = 128;
