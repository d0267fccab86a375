//! The file system that holds everything: a tree in memory, with an image beneath it where there is one.
//!
//! The root file system is such a tree over the read-only image; `/dev`, further tmpfs mounts, pipes and `memfd`s are
//! trees without one. Linux would stack overlayfs on tmpfs and EROFS. One file system does the same with less: a node
//! may have a *lower* node in the image, and what the tree doesn't know of it, it reads there, in place.
//! - A name that is looked up for the first time is found in the image's directory and becomes a node here; a name
//!   that was removed leaves a *whiteout*, unless the image never had it.
//! - A page of a file is the image's own memory until it is written, and then a copy: page by page, never the
//!   whole file.
//! - Since a node keeps its lower node wherever it is moved, directories are renamed without copying.
//!
//! Nodes made from the image and not changed since are a cache: [`drain`] throws them away.
//!
//! Locks, in this order: `mutation` of the tree (whatever changes names, so that checks and changes of several
//! directories are one step), a directory's children, a node's attributes or contents.

mod content;
pub mod deferred_contents;
pub mod deferred_trees;
mod directory;
mod drain;
mod file;
mod handle;
mod node;
mod page;
mod seals;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::Any;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use heddle_erofs::Image;

use crate::error::Errno;
use crate::fs::inode::{Contents, Statistics, device_number};
use crate::fs::{Dentry, FileType, Mount};
use crate::memory;
use crate::memory::fallible;
use crate::process::Credentials;
use crate::sync::SpinLock;

use heddle_kernel_core::hash::KeyedMap;

use crate::fs::tree::handle::Handles;
pub use crate::fs::tree::handle::{
    FileHandle, HANDLE_BYTES_MAX, decode_handle, encode_handle, encode_node_handle,
};
pub use crate::fs::tree::node::TreeNode;
use crate::fs::tree::node::{Attributes, Body};
use crate::fs::tree::seals::Seals;

/// A file system in memory.
pub struct Tree {
    device: u64,
    next_inode: AtomicU64,
    image: Option<Image<'static>>,
    /// Nodes of the image with several names, so that each name leads to the same node.
    shared: SpinLock<KeyedMap<u64, Arc<TreeNode>>>,
    mutation: SpinLock<()>,
    handles: Handles,
    /// Mounts that show the tree or a part of it.
    mounts: AtomicU32,
    /// Pages in use, and the most that may be; 0 for no limit.
    pages: AtomicU64,
    page_limit: u64,
}

/// Pages in use in all trees with a limit.
static LIMITED_PAGES: AtomicU64 = AtomicU64::new(0);
/// Pages that all trees hold, for `/proc/meminfo`.
static ALL_PAGES: AtomicU64 = AtomicU64::new(0);
/// The next number of a file system without a device.
static NEXT_DEVICE: AtomicU32 = AtomicU32::new(20);
/// Numbers of nodes that are not in the image start above all that are.
const FIRST_INODE: u64 = 1 << 32;

impl Tree {
    /// An empty file system of at most `page_limit` pages (0: as much as there is memory).
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(page_limit: u64) -> Result<Arc<Self>, Errno> {
        Self::with_image(None, page_limit)
    }

    fn with_image(image: Option<Image<'static>>, page_limit: u64) -> Result<Arc<Self>, Errno> {
        fallible::try_arc(Self {
            device: device_number(0, NEXT_DEVICE.fetch_add(1, Ordering::Relaxed)),
            next_inode: AtomicU64::new(if image.is_some() { FIRST_INODE } else { 1 }),
            image,
            shared: SpinLock::new(KeyedMap::default()),
            mutation: SpinLock::new(()),
            handles: Handles::new(),
            mounts: AtomicU32::new(0),
            pages: AtomicU64::new(0),
            page_limit,
        })
    }

    /// A mount of an empty file system with this mode for its root; without a limit half the memory is one, as
    /// in Linux.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn mount(
        kind: &'static str,
        source: &[u8],
        permissions: u32,
        page_limit: u64,
        flags: u32,
    ) -> Result<Arc<Mount>, Errno> {
        let usual = memory::frame::total_frames() as u64 / 2;
        let tree = Self::new(if page_limit == 0 { usual } else { page_limit })?;
        let root = tree.node(&Contents::Directory, permissions, 0, 0)?;
        Mount::new(Dentry::new(root, None, b"")?, kind, source, flags)
    }

    /// A mount of the image, to be written over in memory.
    ///
    /// # Errors
    /// `EIO` (it is not an image that can be read), `ENOMEM`.
    pub fn mount_image(bytes: &'static [u8]) -> Result<Arc<Mount>, Errno> {
        let image = Image::open(bytes).map_err(|error| {
            log::error!("root image: {error}");
            Errno::EIO
        })?;
        // Files that programs write here must leave them room to run.
        let tree = Self::with_image(Some(image), memory::frame::total_frames() as u64 / 4 * 3)?;
        let root = image.inode(image.root()).map_err(|_| Errno::EIO)?;
        let root = TreeNode::from_image(&tree, root)?;
        Mount::new(Dentry::new(root, None, b"")?, "tmpfs", b"root", 0)
    }

    /// A node without a name yet.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn node(
        self: &Arc<Self>,
        contents: &Contents<'_>,
        permissions: u32,
        uid: u32,
        gid: u32,
    ) -> Result<Arc<TreeNode>, Errno> {
        let (kind, body) = match contents {
            Contents::Regular => (FileType::Regular, Body::regular()),
            Contents::Directory => (FileType::Directory, Body::directory()),
            Contents::Symlink(target) => {
                (FileType::Symlink, Body::Symlink(crate::fs::dentry::copy_name(target)? as Box<[u8]>))
            }
            Contents::Device(kind, number) => (*kind, Body::Device(*number)),
            Contents::Fifo => (FileType::Fifo, Body::fifo()),
            Contents::Socket => (FileType::Socket, Body::socket()),
        };
        let links = if kind == FileType::Directory { 2 } else { 1 };
        fallible::try_arc(TreeNode {
            tree: self.clone(),
            inode: self.next_inode.fetch_add(1, Ordering::Relaxed),
            kind,
            lower: None,
            attributes: SpinLock::new(Attributes::new(permissions, links, uid, gid)),
            body,
            writers: core::sync::atomic::AtomicI32::new(0),
            readers: core::sync::atomic::AtomicU32::new(0),
            leases: spin::Once::new(),
            locks: crate::fs::lock::FileLocks::new(),
            ranges: crate::fs::range_lock::Ranges::new(),
            extended: crate::fs::xattr::Extended::new(),
            marks: crate::fs::notify::Marks::new(),
            seals: Seals::new(linux_raw_sys::general::F_SEAL_SEAL),
            mapped: AtomicU8::new(0),
            write_hint: AtomicU8::new(0),
            flags: crate::fs::flags::KeptFlags::new(),
            opened_at: SpinLock::new(None),
        })
    }

    /// A file without a name, as `O_TMPFILE`, `memfd_create` and pipes need it.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn unnamed(
        self: &Arc<Self>,
        contents: &Contents<'_>,
        permissions: u32,
        credentials: &Credentials,
    ) -> Result<Arc<TreeNode>, Errno> {
        let node = self.node(contents, permissions, credentials.fsuid, credentials.fsgid)?;
        node.attributes.lock().links = 0;
        Ok(node)
    }

    /// Counts a mount of the tree that this entry is in, if it is in one.
    pub fn begin_mount(entry: &Dentry) {
        let node: &dyn Any = &*entry.node;
        if let Some(node) = node.downcast_ref::<TreeNode>() {
            node.tree.mounts.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a mount less; with the last the tree goes.
    pub fn end_mount(entry: &Arc<Dentry>) {
        let node: &dyn Any = &*entry.node;
        let Some(node) = node.downcast_ref::<TreeNode>() else { return };
        if node.tree.mounts.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        // A bind mount may have shown only a part.
        let mut root = entry.clone();
        while let Some(parent) = root.parent() {
            root = parent;
        }
        deferred_trees::take_apart(&root);
    }

    /// The most pages that all trees with a limit may have together: programs need room to run.
    fn shared_limit() -> u64 {
        memory::frame::total_frames() as u64 / 4 * 3
    }

    fn statistics(&self) -> Statistics {
        let used = self.pages.load(Ordering::Relaxed);
        let limit = if self.page_limit > 0 { self.page_limit } else { memory::frame::total_frames() as u64 };
        let shared = Self::shared_limit().saturating_sub(LIMITED_PAGES.load(Ordering::Relaxed));
        let spare = if self.page_limit > 0 { shared } else { limit };
        let free = limit.saturating_sub(used).min(spare).min(memory::frame::free_frames() as u64);
        let total = limit;
        let nodes = total;
        Statistics {
            magic: linux_raw_sys::general::TMPFS_MAGIC,
            blocks: total,
            free,
            nodes,
            free_nodes: free,
            device: self.device,
        }
    }

    /// Accounts for one more page.
    fn take_page(&self) -> Result<(), Errno> {
        // Pages that `give_page` takes back are counted on every way through.
        ALL_PAGES.fetch_add(1, Ordering::Relaxed);
        let used = self.pages.fetch_add(1, Ordering::Relaxed);
        if self.page_limit == 0 {
            return Ok(());
        }
        let together = LIMITED_PAGES.fetch_add(1, Ordering::Relaxed);
        if used >= self.page_limit || together >= Self::shared_limit() {
            self.give_page();
            return Err(Errno::ENOSPC);
        }
        Ok(())
    }

    fn give_page(&self) {
        self.give_pages(1);
    }

    fn give_pages(&self, count: u64) {
        ALL_PAGES.fetch_sub(count, Ordering::Relaxed);
        self.pages.fetch_sub(count, Ordering::Relaxed);
        if self.page_limit > 0 {
            LIMITED_PAGES.fetch_sub(count, Ordering::Relaxed);
        }
    }
}

/// How many pages of files are in memory.
#[must_use]
pub fn page_count() -> u64 {
    ALL_PAGES.load(Ordering::Relaxed)
}

pub use crate::fs::tree::drain::drain;
