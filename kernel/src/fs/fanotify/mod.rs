//! fanotify(7): groups, their marks on mounts and file systems, and the events that wait to be read.
//!
//! Marks on nodes are in the nodes' lists beside those of inotify ([`crate::fs::notify`]); marks on mounts and file
//! systems are with their group. An event is offered to one group after the other, which works out from all of its
//! marks whether it wants it. There are few groups, and while there are none an event costs what it cost without.

mod file;
mod group;
mod mask;

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use heddle_kernel_core::fanotify::event;

use crate::error::Errno;
use crate::fs::fanotify::group::PermissionRequest;
use crate::fs::{Dentry, FileType, Inode, Mount, OpenFile};
use crate::memory::fallible;
use crate::sync::SpinLock;
use crate::wait::queue::{Events, Watch};

pub use crate::fs::fanotify::group::{FanGroup, FanObject};
pub use crate::fs::fanotify::mask::FanMask;

/// Limits, as in Linux.
pub const GROUPS_MAX: usize = 128;
pub const MARKS_MAX: usize = 8192;
pub const QUEUE_MAX: usize = 16_384;

static GROUPS: SpinLock<Vec<Weak<FanGroup>>> = SpinLock::new(Vec::new());
/// The length of the list, for a look without the lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// How many groups may be asked for permission.
static ASKING: AtomicUsize = AtomicUsize::new(0);

/// Something that happened to a file.
struct Occurrence<'a> {
    /// The event's bit, with `FAN_ONDIR` if it is about a directory.
    what: u32,
    /// The file, or the directory whose name it is.
    node: &'a Arc<dyn Inode>,
    entry: Option<&'a Arc<Dentry>>,
    mount: Option<&'a Arc<Mount>>,
    /// The directory that the file is in.
    parent: Option<Arc<Dentry>>,
    name: &'a [u8],
}

/// Whether there are no groups.
#[inline]
pub fn is_idle() -> bool {
    COUNT.load(Ordering::Relaxed) == 0
}

fn next_group(index: usize) -> Option<Option<Arc<FanGroup>>> {
    GROUPS.lock().get(index).map(Weak::upgrade)
}

fn with_kind(what: u32, kind: FileType) -> u32 {
    if kind == FileType::Directory { what | event::ONDIR } else { what }
}

fn tell(occurrence: &Occurrence<'_>) {
    let mut index = 0;
    while let Some(group) = next_group(index) {
        index += 1;
        if let Some(group) = group {
            group.tell(occurrence);
        }
    }
}

/// Something was done with a file by an open description of it, or to its attributes by a name.
pub fn report(entry: &Arc<Dentry>, mount: Option<&Arc<Mount>>, what: u32) {
    let parent = entry.parent();
    let name = entry.name();
    tell(&Occurrence {
        what: with_kind(what, entry.node.kind()),
        node: &entry.node,
        entry: Some(entry),
        mount,
        parent,
        name: name.as_deref().unwrap_or_default(),
    });
}

/// Something happened to a node that is nothing to its directory.
pub fn report_self(node: &Arc<dyn Inode>, what: u32) {
    let what = with_kind(what, node.kind());
    tell(&Occurrence { what, node, entry: None, mount: None, parent: None, name: b"" });
}

/// A name came into a directory, or left it.
pub fn report_name(directory: &Dentry, name: &[u8], kind: FileType, what: u32) {
    let what = with_kind(what, kind);
    tell(&Occurrence { what, node: &directory.node, entry: None, mount: None, parent: None, name });
}

/// Whether somebody may have to permit that a file is opened.
#[inline]
pub fn is_asked() -> bool {
    ASKING.load(Ordering::Relaxed) != 0
}

/// The question to all groups that want to be asked whether a file may be opened.
pub struct OpenPermission {
    requests: Vec<Arc<PermissionRequest>>,
}

impl OpenPermission {
    /// Asks; `None` if nobody wants to be.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn ask(open: &OpenFile) -> Result<Option<Self>, Errno> {
        let Some(place) = open.place.as_ref().filter(|_| open.is_told()) else { return Ok(None) };
        let entry = &place.entry;
        let name = entry.name();
        let occurrence = Occurrence {
            what: with_kind(event::OPEN_PERM, entry.node.kind()),
            node: &entry.node,
            entry: Some(entry),
            mount: Some(&place.mount),
            parent: entry.parent(),
            name: name.as_deref().unwrap_or_default(),
        };
        let (mut requests, mut index) = (Vec::new(), 0);
        while let Some(group) = next_group(index) {
            index += 1;
            if let Some(group) = group
                && let Some(request) = group.ask(&occurrence)?
            {
                fallible::try_push(&mut requests, request)?;
            }
        }
        Ok((!requests.is_empty()).then_some(Self { requests }))
    }

    /// Whether all have answered.
    ///
    /// # Errors
    /// `EPERM`: one of them has not permitted it; `ENOMEM`.
    pub fn is_given(&self, watch: &Watch) -> Result<Option<()>, Errno> {
        for request in &self.requests {
            request.queue.watch(watch, Events::IN)?;
            match request.answered() {
                None => return Ok(None),
                Some(false) => return Err(Errno::EPERM),
                Some(true) => {}
            }
        }
        Ok(Some(()))
    }
}
