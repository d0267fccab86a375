//! Directories laid over one another, `overlayfs`: names of the *upper* one hide those of the *lower* ones, and all
//! changes go there.
//!
//! A name is looked up from the top layer down. A file is the first that is found; directories of one name are shown as
//! one. A removed name of a lower layer leaves a *whiteout* in the upper one, a device with the number 0. A directory
//! made anew over a lower one is marked *opaque*. A file of a lower layer is copied to the upper one before it is
//! changed ([`copy_up`]). These marks are Linux's, so layers can be exchanged with it.
//!
//! Layers are directories of other file systems, whose operations may wait for the host: no spinlock is held across
//! them. Changes of names are made under a [`DetourLock`] of the overlay. Directories that are not in the upper layer
//! alone keep their names (`EXDEV`), as with Linux's `redirect_dir=off`; names of one lower file become several files.
//!
//! Changes are made with the kernel's rights, so only the first user namespace mounts overlays.

mod copy_up;
mod file;
mod names;
mod node;
mod rename;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use heddle_kernel_core::fallible::push_reserved;
use heddle_kernel_core::overlay::{OptionError, OverlayOptions};
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::access::{self, Access};
use crate::fs::inode::{Contents, Creation, FileType, InodeChange, device_number};
use crate::fs::overlay::node::{LayerEntry, OverlayNode};
use crate::fs::tree::TreeNode;
use crate::fs::{Dentry, Inode, Mount, Path, fuse};
use crate::memory::fallible;
use crate::process::Credentials;
use crate::sched::detour::{self, DetourLock};

/// The kind, as `/proc/mounts` shows it.
pub const KIND: &str = "overlay";
/// The attribute of an opaque directory, for the privileged and for all.
const OPAQUE: [&[u8]; 2] = [b"trusted.overlay.opaque", b"user.overlay.opaque"];
/// Attributes that are the overlay's own, and not its files'.
const MARKS: [&[u8]; 2] = [b"trusted.overlay.", b"user.overlay."];
/// The directory in the working directory that is really worked in.
const WORK: &[u8] = b"work";
/// Overlays may lie over one another so often.
const DEPTH_MAX: u32 = 2;

static NEXT_DEVICE: AtomicU32 = AtomicU32::new(1 << 16);

/// An overlay.
struct Overlay {
    device: u64,
    /// The tops of the layers, the upper one first if there is one.
    layers: Vec<Path>,
    has_upper: bool,
    /// The numbers of the layers' file systems, each once.
    devices: Vec<u64>,
    /// Where copies are made, in the upper layer's file system.
    work: Option<Arc<Dentry>>,
    has_user_marks: bool,
    /// Whoever mounted it, with whose rights copies are made.
    mounter: Arc<Credentials>,
    /// How many overlays lie beneath this one, and this one.
    depth: u32,
    /// Held by whoever changes names.
    changes: DetourLock,
    next_copy: AtomicU64,
}

impl Overlay {
    /// Whether changes may be made in the upper layer. As in Linux the file system counts, and not the mount by which
    /// the layer was named.
    ///
    /// # Errors
    /// `EROFS`: they may not, or there is none.
    fn check_writable(&self) -> Result<(), Errno> {
        let upper = self.layers.first().filter(|_| self.has_upper).ok_or(Errno::EROFS)?;
        if upper.mount.file_system.flags() & linux::MS_RDONLY != 0 { Err(Errno::EROFS) } else { Ok(()) }
    }

    fn opaque_mark(&self) -> &'static [u8] {
        OPAQUE[usize::from(self.has_user_marks)]
    }

    /// Whether a directory of a layer hides those of the layers below it.
    fn is_opaque(&self, entry: &Dentry) -> bool {
        let value = entry.node.extended().and_then(|extended| extended.get(self.opaque_mark()).ok());
        value.is_some_and(|value| *value == *b"y")
    }

    /// Has a directory of the upper layer hide those below it.
    fn make_opaque(&self, entry: &Dentry) -> Result<(), Errno> {
        entry.node.extended().ok_or(Errno::EOPNOTSUPP)?.set(self.opaque_mark(), b"y", 0)
    }

    /// The number of a node that has this one in a layer's file system. One device is shown for all layers.
    fn number(&self, device: u64, inode: u64) -> u64 {
        const PLACE: u32 = 54;
        let place = self.devices.iter().position(|&known| known == device).unwrap_or(0);
        inode ^ (place as u64) << PLACE
    }

    /// A name in the working directory that nothing has.
    fn copy_name(&self) -> Result<Vec<u8>, Errno> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let number = self.next_copy.fetch_add(1, Ordering::Relaxed);
        let mut name = Vec::new();
        name.try_reserve_exact(17).map_err(|_| Errno::ENOMEM)?;
        push_reserved(&mut name, b'#');
        for place in (0..16).rev() {
            push_reserved(&mut name, DIGITS[(number >> (place * 4) & 15) as usize]);
        }
        Ok(name)
    }
}

/// Whether an entry of a layer stands for a name that was removed.
fn is_whiteout(entry: &Dentry) -> bool {
    entry.node.kind() == FileType::Character && entry.node.metadata().special == 0
}

/// The node as one of an overlay.
fn overlay_node(node: &Arc<dyn Inode>) -> Result<Arc<OverlayNode>, Errno> {
    let any: Arc<dyn Any + Send + Sync> = node.clone();
    any.downcast().map_err(|_| Errno::EXDEV)
}

/// Lets others have a turn, in the midst of a long piece of work. No lock is held but [`DetourLock`]s.
///
/// # Errors
/// `EINTR`: the thread is to die.
fn give_way() -> Result<(), Errno> {
    if detour::give_way() { Ok(()) } else { Err(Errno::EINTR) }
}

/// How much has been done since others had a turn.
#[derive(Default)]
struct Pace(u32);

impl Pace {
    /// So many small steps between turns.
    const STEPS: u32 = 64;

    /// Another piece of work, of so many steps.
    fn step(&mut self, steps: u32) -> Result<(), Errno> {
        self.0 += steps;
        if self.0 < Self::STEPS {
            return Ok(());
        }
        self.0 = 0;
        give_way()
    }
}

/// A place that can be a layer: a directory of a file system that stores files. Those that compute theirs decide by
/// whoever opens them what they show.
fn directory(place: Path) -> Result<Path, Errno> {
    const COMPUTED: [u32; 3] = [linux::PROC_SUPER_MAGIC, linux::SYSFS_MAGIC, linux::CGROUP2_SUPER_MAGIC];
    // Locks of the overlay are held while a layer answers, and a program may never do so.
    if place.mount.file_system.kind == fuse::KIND {
        return Err(Errno::EINVAL);
    }
    let node = &place.entry.node;
    let is_layer = node.kind() == FileType::Directory && !COMPUTED.contains(&node.statistics().magic);
    if is_layer { Ok(place) } else { Err(Errno::EINVAL) }
}

/// A mount of the overlay that the options describe, whose paths `find` finds.
///
/// # Errors
/// `EINVAL` (an option; the layers don't go together, or are no directories), `EACCES`, `EROFS`, `ENOMEM`,
/// `ENOSPC`, and those of `find`.
pub fn mount(
    source: &[u8],
    options: &[u8],
    flags: u32,
    mounter: &Arc<Credentials>,
    find: impl Fn(&[u8]) -> Result<Path, Errno>,
) -> Result<Arc<Mount>, Errno> {
    let options = OverlayOptions::parse(options).map_err(|error| match error {
        OptionError::Invalid => Errno::EINVAL,
        OptionError::OutOfMemory => Errno::ENOMEM,
    })?;
    let mut layers = Vec::new();
    layers.try_reserve_exact(options.lowers.len() + 1).map_err(|_| Errno::ENOMEM)?;
    let upper = options.upper.as_deref().map(&find).transpose()?.map(directory).transpose()?;
    let work = match (&upper, options.work.as_deref()) {
        (Some(upper), Some(path)) => {
            let work = directory(find(path)?)?;
            for place in [upper, &work] {
                access::check_place(place, mounter, Access::WRITE | Access::EXECUTE)?;
            }
            Some(work_directory(upper, work, mounter)?)
        }
        _ => None,
    };
    let has_upper = upper.is_some();
    if let Some(upper) = upper {
        push_reserved(&mut layers, upper);
    }
    for path in &options.lowers {
        push_reserved(&mut layers, directory(find(path)?)?);
    }
    let below = layers.iter().filter_map(|layer| Some(overlay_node(&layer.entry.node).ok()?.overlay.depth));
    let depth = below.max().unwrap_or(0) + 1;
    if depth > DEPTH_MAX {
        return Err(Errno::EINVAL);
    }
    let mut devices = Vec::new();
    for device in layers.iter().map(|layer| layer.entry.node.metadata().device) {
        if !devices.contains(&device) {
            fallible::try_push(&mut devices, device)?;
        }
    }
    let overlay = fallible::try_arc(Overlay {
        device: device_number(0, NEXT_DEVICE.fetch_add(1, Ordering::Relaxed)),
        layers,
        has_upper,
        devices,
        work,
        has_user_marks: options.has_user_marks,
        mounter: mounter.clone(),
        depth,
        changes: DetourLock::new(),
        next_copy: AtomicU64::new(0),
    })?;
    let root = Dentry::new(OverlayNode::root(&overlay)?, None, b"")?;
    overlay_node(&root.node)?.set_entry(&root);
    let flags = if has_upper { flags } else { flags | linux::MS_RDONLY };
    Mount::new(root, KIND, source, flags)
}

/// The place for copies: a directory in the working one, which must lie beside the upper layer.
fn work_directory(upper: &Path, work: Path, mounter: &Credentials) -> Result<Arc<Dentry>, Errno> {
    let is_apart = !upper.entry.is_in(&work.entry) && !work.entry.is_in(&upper.entry);
    let node: &dyn Any = &*upper.entry.node;
    // Marks and renames are needed, which trees in memory have.
    let is_tree = node.is::<TreeNode>();
    if !Arc::ptr_eq(&upper.mount, &work.mount) || !is_apart || !is_tree || upper.mount.is_read_only() {
        return Err(Errno::EINVAL);
    }
    let base = &work.entry;
    let creation =
        Creation { contents: Contents::Directory, permissions: 0, credentials: &Credentials::ROOT };
    match base.node.create(base, WORK, &creation) {
        Err(Errno::EEXIST) => {
            let found = base.node.lookup(base, WORK)?;
            let metadata = found.node.metadata();
            // Nobody else is to reach copies that are not ready.
            if metadata.kind != FileType::Directory || metadata.uid != mounter.fsuid {
                return Err(Errno::EINVAL);
            }
            let closed = InodeChange { permissions: Some(0), ..InodeChange::default() };
            found.node.change(&closed).map(|()| found)
        }
        made => made,
    }
}

/// The entry of a layer's top.
fn top_of(layer: usize, place: &Path) -> LayerEntry {
    LayerEntry { layer, entry: place.entry.clone() }
}
