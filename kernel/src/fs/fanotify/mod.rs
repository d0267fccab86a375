//! fanotify(7): groups, their marks on mounts and file systems, and the events that wait to be read.
//!
//! Marks on nodes are in the nodes' lists beside those of inotify ([`crate::fs::notify`]); marks on mounts and file
//! systems are with their group. Whoever does something to a file looks for groups that have marks on it, on its
//! directory, or on mounts or file systems at all; each of these works out from all of its marks whether it wants the
//! event. So an event costs what the marks that may be meant cost, and nothing else while there are no marks.

mod file;
mod group;
mod mask;
mod owner;

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use heddle_kernel_core::fanotify::event;

use crate::call::caller::Caller;
use crate::error::Errno;
use crate::fs::fanotify::group::PermissionRequest;
use crate::fs::notify::Marks;
use crate::fs::{Dentry, FileType, Inode, Mount, OpenFile};
use crate::memory::fallible;
use crate::sync::SpinLock;
use crate::wait::node::WaitKind;
use crate::wait::queue::{Events, Watch};

pub use crate::fs::fanotify::group::{FanGroup, FanObject};
pub use crate::fs::fanotify::mask::FanMask;
pub use crate::fs::fanotify::owner::{GROUPS_MAX, MARKS_MAX};

/// The most events that wait in a group, as in Linux.
pub const QUEUE_MAX: usize = 16_384;

/// The groups that have marks on mounts or file systems, by their numbers.
static OBJECT_GROUPS: SpinLock<Vec<(u64, Weak<FanGroup>)>> = SpinLock::new(Vec::new());
/// How many marks there are.
static MARKS: AtomicUsize = AtomicUsize::new(0);
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

/// Whether there are no marks.
#[inline]
pub fn is_idle() -> bool {
    MARKS.load(Ordering::Relaxed) == 0
}

/// The next group after a number that has marks on mounts or file systems.
fn next_with_objects(after: u64) -> Option<(u64, Option<Arc<FanGroup>>)> {
    let groups = OBJECT_GROUPS.lock();
    let next = groups.iter().filter(|(number, _)| *number > after).min_by_key(|(number, _)| *number);
    next.map(|(number, group)| (*number, group.upgrade()))
}

fn with_kind(what: u32, kind: FileType) -> u32 {
    if kind == FileType::Directory { what | event::ONDIR } else { what }
}

/// Whether a group may want to know what happens to a file.
fn is_marked(node: &Arc<dyn Inode>, parent: Option<&Arc<Dentry>>) -> bool {
    let has_groups = |node: &Arc<dyn Inode>| node.marks().is_some_and(Marks::has_groups);
    has_groups(node)
        || parent.is_some_and(|parent| has_groups(&parent.node))
        || !OBJECT_GROUPS.lock().is_empty()
}

/// Visits each group that may want an event, once. No list may shift meanwhile and hide one, so groups come in the
/// order of their numbers.
fn each_group(
    occurrence: &Occurrence<'_>,
    mut visit: impl FnMut(&Arc<FanGroup>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let own = occurrence.node.marks();
    let above = occurrence.parent.as_ref().and_then(|parent| parent.node.marks());
    for list in own.iter().chain(&above) {
        let mut last = 0;
        while let Some((number, group)) = list.next_group(last) {
            last = number;
            // The node's own come first.
            let is_told =
                !core::ptr::eq(*list, own.unwrap_or(list)) && own.is_some_and(|own| own.has_group(number));
            if let Some(group) = group.filter(|_| !is_told) {
                visit(&group)?;
            }
        }
    }
    let mut last = 0;
    while let Some((number, group)) = next_with_objects(last) {
        last = number;
        let is_told = [own, above].into_iter().flatten().any(|list| list.has_group(number));
        if let Some(group) = group.filter(|_| !is_told) {
            visit(&group)?;
        }
    }
    Ok(())
}

fn tell(occurrence: &Occurrence<'_>) {
    // Telling does not fail.
    let _ = each_group(occurrence, |group| {
        group.tell(occurrence);
        Ok(())
    });
}

/// Something was done with a file by an open description of it, or to its attributes by a name.
pub fn report(entry: &Arc<Dentry>, mount: Option<&Arc<Mount>>, what: u32) {
    let parent = entry.parent();
    if !is_marked(&entry.node, parent.as_ref()) {
        return;
    }
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
    if !is_marked(node, None) {
        return;
    }
    let what = with_kind(what, node.kind());
    tell(&Occurrence { what, node, entry: None, mount: None, parent: None, name: b"" });
}

/// A name came into a directory, or left it.
pub fn report_name(directory: &Dentry, name: &[u8], kind: FileType, what: u32) {
    if !is_marked(&directory.node, None) {
        return;
    }
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
    /// Asks; `None` if nobody wants to be. `what` is the event that waits: `OPEN_PERM`, or `OPEN_EXEC_PERM` of a
    /// program.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn ask(open: &OpenFile, what: u32) -> Result<Option<Self>, Errno> {
        let Some(place) = open.place.as_ref().filter(|_| open.is_told()) else { return Ok(None) };
        let entry = &place.entry;
        let parent = entry.parent();
        if !is_marked(&entry.node, parent.as_ref()) {
            return Ok(None);
        }
        let name = entry.name();
        let occurrence = Occurrence {
            what: with_kind(what, entry.node.kind()),
            node: &entry.node,
            entry: Some(entry),
            mount: Some(&place.mount),
            parent,
            name: name.as_deref().unwrap_or_default(),
        };
        let mut requests = Vec::new();
        each_group(&occurrence, |group| match group.ask(&occurrence)? {
            Some(request) => fallible::try_push(&mut requests, request),
            None => Ok(()),
        })?;
        Ok((!requests.is_empty()).then_some(Self { requests }))
    }

    /// Waits until all have answered.
    ///
    /// # Errors
    /// `EPERM`; `EINTR`: the thread is to die; `ENOMEM`.
    pub async fn wait(&self, caller: &Caller) -> Result<(), Errno> {
        caller.wait_until(WaitKind::Killable, |watch| self.is_given(watch)).await
    }

    /// Whether all have answered.
    ///
    /// # Errors
    /// `EPERM`: one of them has not permitted it; `ENOMEM`.
    fn is_given(&self, watch: &Watch) -> Result<Option<()>, Errno> {
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
