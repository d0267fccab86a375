//! Telling inotify(7) what happens to files.
//!
//! A node has a list of *marks*, each of which belongs to an instance and says which events it wants. The calls that
//! do something to a file report it here, to the node itself and, with the name, to the directory it is in. While
//! nothing is marked anywhere, that is one load.
//!
//! A mark keeps its node in memory as long as the node has a name. After that the node goes when the last who has it
//! open closes it, which is when `IN_DELETE_SELF` is due.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::inotify::Inotify;
use crate::fs::{Dentry, FileType, Inode};
use crate::memory::fallible;
use crate::sync::SpinLock;

/// How many marks there are.
static MARKS: AtomicUsize = AtomicUsize::new(0);
/// Joins the two events of a rename.
static NEXT_COOKIE: AtomicU32 = AtomicU32::new(1);

/// The events of using a file, of which `IN_EXCL_UNLINK` wants none once the file has lost its name.
const USE: u32 =
    linux::IN_ACCESS | linux::IN_MODIFY | linux::IN_OPEN | linux::IN_CLOSE_WRITE | linux::IN_CLOSE_NOWRITE;

/// The events of a node that an instance wants to know of.
pub struct InotifyMark {
    /// Its number: the watch descriptor.
    pub number: i32,
    /// The `IN_` bits of events and modifiers.
    pub mask: AtomicU32,
    instance: Weak<Inotify>,
    node: Weak<dyn Inode>,
    /// The node, while it has a name.
    hold: SpinLock<Option<Arc<dyn Inode>>>,
}

impl InotifyMark {
    /// A mark on a node that keeps marks.
    ///
    /// # Errors
    /// `EOPNOTSUPP` (nothing is reported of nodes of its file system), `ENOMEM`.
    pub fn new(
        number: i32,
        mask: u32,
        instance: &Arc<Inotify>,
        node: &Arc<dyn Inode>,
    ) -> Result<Arc<Self>, Errno> {
        let marks = node.marks().ok_or(Errno::EOPNOTSUPP)?;
        // Dropped on failure, which counts it back.
        MARKS.fetch_add(1, Ordering::Relaxed);
        let mark = fallible::try_arc(Self {
            number,
            mask: AtomicU32::new(mask),
            instance: Arc::downgrade(instance),
            node: Arc::downgrade(node),
            hold: SpinLock::new(Some(node.clone())),
        })?;
        fallible::try_push(&mut marks.0.lock(), mark.clone())?;
        Ok(mark)
    }

    /// Whether it is a mark on this node.
    #[must_use]
    pub fn is_on(&self, node: &Arc<dyn Inode>) -> bool {
        core::ptr::addr_eq(self.node.as_ptr(), Arc::as_ptr(node))
    }

    /// Takes the mark off its node.
    pub fn take_off(self: &Arc<Self>) {
        if let Some(node) = self.node.upgrade()
            && let Some(marks) = node.marks()
        {
            let mut list = marks.0.lock();
            let place = list.iter().position(|mark| Arc::ptr_eq(mark, self));
            let old = place.map(|place| list.swap_remove(place));
            drop(list);
            drop(old);
        }
        let hold = self.hold.lock().take();
        drop(hold);
    }
}

impl Drop for InotifyMark {
    fn drop(&mut self) {
        MARKS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The marks on a node.
pub struct Marks(SpinLock<Vec<Arc<InotifyMark>>>);

impl Default for Marks {
    fn default() -> Self {
        Self::new()
    }
}

impl Marks {
    /// No marks.
    #[must_use]
    pub const fn new() -> Self {
        Self(SpinLock::new(Vec::new()))
    }

    /// Lets the node go when nobody has it open any more: its last name is gone.
    pub fn nameless(&self) {
        let mut index = 0;
        loop {
            let list = self.0.lock();
            let Some(mark) = list.get(index).cloned() else { return };
            drop(list);
            let hold = mark.hold.lock().take();
            drop(hold);
            index += 1;
        }
    }

    fn tell(&self, event: u32, cookie: u32, name: &[u8], is_unlinked: bool) {
        let mut index = 0;
        loop {
            let list = self.0.lock();
            let Some(mark) = list.get(index).cloned() else { return };
            drop(list);
            index += 1;
            let mask = mark.mask.load(Ordering::Relaxed);
            let is_excluded = is_unlinked && mask & linux::IN_EXCL_UNLINK != 0;
            if mask & event & linux::IN_ALL_EVENTS == 0 || is_excluded {
                continue;
            }
            let Some(instance) = mark.instance.upgrade() else { continue };
            instance.push(mark.number, event, cookie, name);
            if mask & linux::IN_ONESHOT != 0 {
                let _ = instance.remove(mark.number);
                index -= 1;
            }
        }
    }
}

impl Drop for Marks {
    /// The node is gone.
    fn drop(&mut self) {
        for mark in core::mem::take(self.0.get_mut()) {
            let Some(instance) = mark.instance.upgrade() else { continue };
            if mark.mask.load(Ordering::Relaxed) & linux::IN_DELETE_SELF != 0 {
                instance.push(mark.number, linux::IN_DELETE_SELF, 0, b"");
            }
            let _ = instance.remove(mark.number);
        }
    }
}

/// Whether there are no marks at all.
#[inline]
#[must_use]
pub fn is_idle() -> bool {
    MARKS.load(Ordering::Relaxed) == 0
}

fn with_kind(event: u32, kind: FileType) -> u32 {
    if kind == FileType::Directory { event | linux::IN_ISDIR } else { event }
}

/// Something happened to a file: its own marks hear of it, and those of its directory with its name.
pub fn report(entry: &Arc<Dentry>, event: u32) {
    if is_idle() {
        return;
    }
    // Uses of a file that has lost this name are not reported; other events are about the node.
    let is_unlinked = event & USE != 0 && entry.is_removed();
    let event = with_kind(event, entry.node.kind());
    if let Some(parent) = entry.parent()
        && let Some(marks) = parent.node.marks()
        && let Ok(name) = entry.name()
    {
        marks.tell(event, 0, &name, is_unlinked);
    }
    if let Some(marks) = entry.node.marks() {
        marks.tell(event, 0, b"", is_unlinked);
    }
}

/// Something happened to a node that is nothing to its directory.
pub fn report_self(node: &dyn Inode, event: u32) {
    if is_idle() {
        return;
    }
    if let Some(marks) = node.marks() {
        marks.tell(with_kind(event, node.kind()), 0, b"", false);
    }
}

/// A name came into a directory, or left it.
pub fn report_name(directory: &Dentry, name: &[u8], kind: FileType, event: u32) {
    if is_idle() {
        return;
    }
    if let Some(marks) = directory.node.marks() {
        marks.tell(with_kind(event, kind), 0, name, false);
    }
}

/// A file got another name.
pub fn report_rename(from: &Dentry, old_name: &[u8], to: &Dentry, name: &[u8], node: &dyn Inode) {
    if is_idle() {
        return;
    }
    let cookie = NEXT_COOKIE.fetch_add(1, Ordering::Relaxed);
    let sides = [(from, old_name, linux::IN_MOVED_FROM), (to, name, linux::IN_MOVED_TO)];
    for (directory, name, event) in sides {
        if let Some(marks) = directory.node.marks() {
            marks.tell(with_kind(event, node.kind()), cookie, name, false);
        }
    }
    report_self(node, linux::IN_MOVE_SELF);
}
