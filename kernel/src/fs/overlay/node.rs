//! A node of an overlay: an entry of the upper layer, or one of a lower layer, or directories of several.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use heddle_kernel_core::fallible::push_reserved;
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::inode::{
    Creation, FileType, Inode, InodeChange, LinkTarget, Listed, Metadata, Opening, Rename, Statistics,
};
use crate::fs::lock::FileLocks;
use crate::fs::notify::Marks;
use crate::fs::overlay::names::OverlayNames;
use crate::fs::overlay::{MARKS, Overlay, copy_up, file, top_of};
use crate::fs::xattr::Extended;
use crate::fs::{Dentry, File, StatusFlags};
use crate::memory::fallible;
use crate::process::Thread;
use crate::sched::detour::DetourLock;
use crate::sync::SpinLock;

/// `OVERLAYFS_SUPER_MAGIC`.
const MAGIC: u32 = 0x794c_7630;

/// An entry of a layer.
#[derive(Clone)]
pub(super) struct LayerEntry {
    pub layer: usize,
    pub entry: Arc<Dentry>,
}

/// A node.
pub(super) struct OverlayNode {
    pub overlay: Arc<Overlay>,
    kind: FileType,
    /// Its number, which stays when it is copied.
    number: u64,
    /// Its entry in the upper layer, from the beginning or since it was copied.
    pub upper: spin::Once<Arc<Dentry>>,
    /// Its entries in lower layers, from the top down. A file has only one.
    pub lowers: Vec<LayerEntry>,
    /// It was in the upper layer from the beginning.
    pub began_upper: bool,
    /// Held by whoever copies it.
    pub copying: DetourLock,
    /// Its entry in the overlay, or one of them.
    entry: SpinLock<Weak<Dentry>>,
    pub children: SpinLock<OverlayNames>,
    pub locks: FileLocks,
    pub marks: Marks,
}

impl OverlayNode {
    /// The node of what was found in layers: at least one entry.
    pub fn new(
        overlay: &Arc<Overlay>,
        upper: Option<Arc<Dentry>>,
        lowers: Vec<LayerEntry>,
    ) -> Result<Arc<Self>, Errno> {
        let first = upper.as_ref().or(lowers.first().map(|lower| &lower.entry)).ok_or(Errno::ENOENT)?;
        let metadata = first.node.metadata();
        let (place, began_upper) = (spin::Once::new(), upper.is_some());
        if let Some(upper) = upper {
            place.call_once(|| upper);
        }
        fallible::try_arc(Self {
            overlay: overlay.clone(),
            kind: metadata.kind,
            number: overlay.number(metadata.device, metadata.inode),
            upper: place,
            lowers,
            began_upper,
            copying: DetourLock::new(),
            entry: SpinLock::new(Weak::new()),
            children: SpinLock::new(OverlayNames::new()),
            locks: FileLocks::new(),
            marks: Marks::new(),
        })
    }

    /// The node of the overlay's top.
    pub fn root(overlay: &Arc<Overlay>) -> Result<Arc<Self>, Errno> {
        let mut layers = overlay.layers.iter().enumerate();
        let upper =
            if overlay.has_upper { layers.next().map(|(_, place)| place.entry.clone()) } else { None };
        let mut lowers = Vec::new();
        lowers.try_reserve_exact(overlay.layers.len()).map_err(|_| Errno::ENOMEM)?;
        layers.for_each(|(layer, place)| push_reserved(&mut lowers, top_of(layer, place)));
        Self::new(overlay, upper, lowers)
    }

    /// Says which its entry in the overlay is.
    pub fn set_entry(&self, entry: &Arc<Dentry>) {
        let before = core::mem::replace(&mut *self.entry.lock(), Arc::downgrade(entry));
        drop(before);
    }

    /// Its entry in the overlay.
    pub fn entry(&self) -> Option<Arc<Dentry>> {
        self.entry.lock().upgrade()
    }

    /// The entry that it is shown by: that of the upper layer, or else the topmost one.
    pub fn real(&self) -> Result<LayerEntry, Errno> {
        match self.upper.get() {
            Some(entry) => Ok(LayerEntry { layer: 0, entry: entry.clone() }),
            None => self.lowers.first().cloned().ok_or(Errno::EIO),
        }
    }

    fn real_node(&self) -> Option<&Arc<dyn Inode>> {
        let entry = self.upper.get().or_else(|| self.lowers.first().map(|lower| &lower.entry))?;
        Some(&entry.node)
    }

    /// Whether it is shown by an entry of the upper layer.
    pub fn is_upper(&self) -> bool {
        self.upper.get().is_some()
    }
}

impl Inode for OverlayNode {
    fn kind(&self) -> FileType {
        self.kind
    }

    fn metadata(&self) -> Metadata {
        let Some(real) = self.real_node() else { return Metadata::anonymous(self.kind, self.number) };
        let found = real.metadata();
        let is_merged = self.kind == FileType::Directory && !self.lowers.is_empty();
        Metadata {
            device: self.overlay.device,
            inode: self.number,
            // Directories of several layers can't be counted at once.
            links: if is_merged { 1 } else { found.links },
            ..found
        }
    }

    fn statistics(&self) -> Statistics {
        let found = self.overlay.layers.first().map(|layer| layer.entry.node.statistics());
        let none = Statistics {
            magic: MAGIC,
            blocks: 0,
            free: 0,
            nodes: 0,
            free_nodes: 0,
            device: self.overlay.device,
        };
        found.map_or(none, |found| Statistics { magic: MAGIC, device: self.overlay.device, ..found })
    }

    fn device(&self) -> u64 {
        self.overlay.device
    }

    fn lookup(&self, this: &Arc<Dentry>, name: &[u8]) -> Result<Arc<Dentry>, Errno> {
        self.entry_of(this, name)
    }

    fn list(&self, cookie: u64, visit: &mut dyn FnMut(Listed<'_>) -> bool) -> Result<(), Errno> {
        self.list_names(cookie, visit)
    }

    fn create(&self, this: &Arc<Dentry>, name: &[u8], creation: &Creation<'_>) -> Result<Arc<Dentry>, Errno> {
        self.create_name(this, name, creation)
    }

    fn link(&self, this: &Arc<Dentry>, name: &[u8], node: &Arc<dyn Inode>) -> Result<(), Errno> {
        self.link_name(this, name, node)
    }

    fn unlink(&self, entry: &Arc<Dentry>) -> Result<(), Errno> {
        self.unlink_name(entry)
    }

    fn rename(&self, entry: &Arc<Dentry>, to: &Arc<Dentry>, name: &[u8], how: Rename) -> Result<(), Errno> {
        self.rename_name(entry, to, name, how)
    }

    fn follow(&self, thread: Option<&Arc<Thread>>) -> Result<LinkTarget, Errno> {
        self.real_node().ok_or(Errno::EIO)?.follow(thread)
    }

    fn change(&self, change: &InodeChange) -> Result<(), Errno> {
        let upper = copy_up::copy_up(self, u64::MAX)?;
        upper.node.change(change)
    }

    fn prepare_change(&self) -> Result<(), Errno> {
        copy_up::copy_up(self, u64::MAX).map(drop)
    }

    fn extended(&self) -> Option<&Extended> {
        self.real_node()?.extended()
    }

    fn shows_attribute(&self, name: &[u8]) -> bool {
        !name.starts_with(MARKS[usize::from(self.overlay.has_user_marks)])
    }

    fn locks(&self, _: bool) -> Result<Option<&FileLocks>, Errno> {
        Ok(Some(&self.locks))
    }

    fn marks(&self) -> Option<&Marks> {
        Some(&self.marks)
    }

    fn bind_socket(&self, socket: Weak<dyn File>) -> Result<(), Errno> {
        self.real_node().ok_or(Errno::EIO)?.bind_socket(socket)
    }

    fn bound_socket(&self) -> Option<Arc<dyn File>> {
        self.real_node()?.bound_socket()
    }

    fn open(self: Arc<Self>, opening: &Opening<'_>) -> Result<Arc<dyn File>, Errno> {
        let cuts = opening.flags_of_call & linux::O_TRUNC != 0;
        let writes = cuts || opening.flags.intersects(StatusFlags::WRONLY | StatusFlags::RDWR);
        if self.kind == FileType::Regular && writes {
            copy_up::copy_up(&self, if cuts { 0 } else { u64::MAX })?;
        }
        file::open(self, opening)
    }
}
