//! Telling inotify(7), fanotify(7), and the owners of directories watched by `F_NOTIFY`, what happens to files.
//!
//! A node has a list of *marks*, each of which has a receiver and says which events it wants. The calls that
//! do something to a file report it here, to the node itself and, with the name, to the directory it is in. While
//! nothing is marked anywhere, that is one load.
//!
//! A mark keeps its node in memory as long as the node has a name. After that the node goes when the last who has it
//! open closes it, which is when `IN_DELETE_SELF` is due.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use linux_raw_sys::general as linux;

use heddle_kernel_core::fallible::{insert_reserved, push_reserved};

use crate::error::Errno;
use crate::fs::fanotify::{self, FanGroup, FanMask};
use crate::fs::inotify::Inotify;
use crate::fs::lease::MESSAGE_BAND;
use crate::fs::{Dentry, FileType, Inode, OpenFile, Path};
use crate::memory::fallible;
use crate::process::io_signal::ReadyNotice;
use crate::sync::SpinLock;

/// How many marks there are.
static MARKS: AtomicUsize = AtomicUsize::new(0);
/// Joins the two events of a rename.
static NEXT_COOKIE: AtomicU32 = AtomicU32::new(1);

/// The events of using a file, of which `IN_EXCL_UNLINK` wants none once the file has lost its name.
const USE: u32 =
    linux::IN_ACCESS | linux::IN_MODIFY | linux::IN_OPEN | linux::IN_CLOSE_WRITE | linux::IN_CLOSE_NOWRITE;

/// Something in a directory got another name there. No bit of inotify's, and no modifier that marks keep.
const RENAME: u32 = 0x1000_0000;

/// Whether owners may ask to be told of what happens in a directory: `/proc/sys/fs/dir-notify-enable`.
pub static OWNERS_ARE_TOLD: AtomicU32 = AtomicU32::new(1);

/// The receiver of a mark's events.
enum MarkReceiver {
    /// An instance of inotify.
    Instance(Weak<Inotify>),
    /// The owner of an open directory, as long as a process has not closed it: `F_NOTIFY`.
    Owner { notice: Arc<ReadyNotice>, description: u64, pid: i32 },
    /// A group of fanotify(7), which keeps its masks here.
    Group { number: u64, group: Weak<FanGroup>, bits: FanMask },
}

/// The events of a node that a receiver wants to know of.
pub struct Mark {
    /// Its number: the watch descriptor.
    pub number: i32,
    /// The `IN_` bits of events and modifiers.
    pub mask: AtomicU32,
    receiver: MarkReceiver,
    node: Weak<dyn Inode>,
    /// The node, while it has a name.
    hold: SpinLock<Option<Arc<dyn Inode>>>,
}

impl Mark {
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
        Self::put(number, mask, MarkReceiver::Instance(Arc::downgrade(instance)), node)
    }

    /// A mark of a group of fanotify(7).
    ///
    /// # Errors
    /// As [`Mark::new`].
    pub fn of_group(group: &Arc<FanGroup>, bits: FanMask, node: &Arc<dyn Inode>) -> Result<Arc<Self>, Errno> {
        Self::put(
            0,
            0,
            MarkReceiver::Group { number: group.number(), group: Arc::downgrade(group), bits },
            node,
        )
    }

    /// The masks of a mark of fanotify(7).
    #[must_use]
    pub const fn fan_mask(&self) -> Option<&FanMask> {
        match &self.receiver {
            MarkReceiver::Group { bits, .. } => Some(bits),
            _ => None,
        }
    }

    fn put(
        number: i32,
        mask: u32,
        receiver: MarkReceiver,
        node: &Arc<dyn Inode>,
    ) -> Result<Arc<Self>, Errno> {
        let marks = node.marks().ok_or(Errno::EOPNOTSUPP)?;
        // Dropped on failure, which counts it back.
        MARKS.fetch_add(1, Ordering::Relaxed);
        let mark = fallible::try_arc(Self {
            number,
            mask: AtomicU32::new(mask),
            receiver,
            node: Arc::downgrade(node),
            hold: SpinLock::new(Some(node.clone())),
        })?;
        let mut list = marks.list.lock();
        list.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        if mark.fan_mask().is_some() {
            insert_reserved(&mut list, 0, mark.clone());
            marks.groups.fetch_add(1, Ordering::Relaxed);
        } else {
            push_reserved(&mut list, mark.clone());
        }
        drop(list);
        Ok(mark)
    }

    /// The numbers of its node and of that's file system, as long as it exists.
    #[must_use]
    pub fn place(&self) -> Option<(u64, u64)> {
        let metadata = self.node.upgrade()?.metadata();
        Some((metadata.inode, metadata.device))
    }

    /// Whether it is a mark on this node.
    #[must_use]
    pub fn is_on(&self, node: &Arc<dyn Inode>) -> bool {
        core::ptr::addr_eq(self.node.as_ptr(), Arc::as_ptr(node))
    }

    /// Whether it tells the owner of this open directory, on behalf of this process if one is named.
    fn is_of(&self, open: u64, process: Option<i32>) -> bool {
        match self.receiver {
            MarkReceiver::Owner { description, pid, .. } => {
                description == open && process.is_none_or(|process| process == pid)
            }
            MarkReceiver::Instance(_) | MarkReceiver::Group { .. } => false,
        }
    }

    /// Takes the mark off its node.
    pub fn take_off(self: &Arc<Self>) {
        if let Some(node) = self.node.upgrade()
            && let Some(marks) = node.marks()
        {
            let mut list = marks.list.lock();
            let place = list.iter().position(|mark| Arc::ptr_eq(mark, self));
            let old = place.map(|place| {
                if self.fan_mask().is_some() {
                    marks.groups.fetch_sub(1, Ordering::Relaxed);
                    list.remove(place)
                } else {
                    list.swap_remove(place)
                }
            });
            drop(list);
            drop(old);
        }
        let hold = self.hold.lock().take();
        drop(hold);
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        MARKS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The marks on a node.
pub struct Marks {
    list: SpinLock<Vec<Arc<Mark>>>,
    /// How many at the list's head are of groups of fanotify(7). Changed with the list locked.
    groups: AtomicU32,
}

impl Default for Marks {
    fn default() -> Self {
        Self::new()
    }
}

impl Marks {
    /// No marks.
    #[must_use]
    pub const fn new() -> Self {
        Self { list: SpinLock::new(Vec::new()), groups: AtomicU32::new(0) }
    }

    /// Whether a group of fanotify(7) has a mark here.
    #[inline]
    #[must_use]
    pub fn has_groups(&self) -> bool {
        self.groups.load(Ordering::Relaxed) != 0
    }

    /// The marks of groups, which come first in the list.
    fn of_groups<'a>(&self, list: &'a [Arc<Mark>]) -> impl Iterator<Item = (u64, &'a Arc<Mark>)> + use<'a> {
        let count = self.groups.load(Ordering::Relaxed) as usize;
        list.iter().take(count).filter_map(|mark| match &mark.receiver {
            MarkReceiver::Group { number, .. } => Some((*number, mark)),
            _ => None,
        })
    }

    /// The group with a mark here whose number comes next after this one.
    #[must_use]
    pub fn next_group(&self, after: u64) -> Option<(u64, Option<Arc<FanGroup>>)> {
        if !self.has_groups() {
            return None;
        }
        let list = self.list.lock();
        let above = self.of_groups(&list).filter(|(number, _)| *number > after);
        let (number, mark) = above.min_by_key(|(number, _)| *number)?;
        match &mark.receiver {
            MarkReceiver::Group { group, .. } => Some((number, group.upgrade())),
            _ => None,
        }
    }

    /// Whether the group of a number has a mark here.
    #[must_use]
    pub fn has_group(&self, number: u64) -> bool {
        self.has_groups() && self.of_groups(&self.list.lock()).any(|(own, _)| own == number)
    }

    /// The mark of a group, if it has one.
    #[must_use]
    pub fn mark_of(&self, number: u64) -> Option<Arc<Mark>> {
        let list = self.list.lock();
        self.of_groups(&list).find(|(own, _)| *own == number).map(|(_, mark)| mark.clone())
    }

    /// Looks at the mark of a group, if it has one.
    pub fn look_for(&self, number: u64, look: impl FnOnce(&FanMask)) {
        if !self.has_groups() {
            return;
        }
        let list = self.list.lock();
        let found = self.of_groups(&list).find(|(own, _)| *own == number);
        if let Some(bits) = found.and_then(|(_, mark)| mark.fan_mask()) {
            look(bits);
        }
    }

    /// Lets the node go when nobody has it open any more: its last name is gone.
    pub fn nameless(&self) {
        let mut index = 0;
        loop {
            let list = self.list.lock();
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
            let list = self.list.lock();
            let Some(mark) = list.get(index).cloned() else { return };
            drop(list);
            index += 1;
            let mask = mark.mask.load(Ordering::Relaxed);
            let is_excluded = is_unlinked && mask & linux::IN_EXCL_UNLINK != 0;
            if mask & event & (linux::IN_ALL_EVENTS | RENAME) == 0 || is_excluded {
                continue;
            }
            let is_last = mask & linux::IN_ONESHOT != 0;
            match &mark.receiver {
                MarkReceiver::Instance(instance) => {
                    let Some(instance) = instance.upgrade() else { continue };
                    instance.push(mark.number, event, cookie, name);
                    if is_last {
                        let _ = instance.remove(mark.number);
                    }
                }
                MarkReceiver::Owner { notice, .. } => {
                    if is_last {
                        mark.take_off();
                    }
                    notice.tell_message(MESSAGE_BAND);
                }
                // Groups are told apart from the lists.
                MarkReceiver::Group { .. } => {}
            }
            index -= usize::from(is_last);
        }
    }
}

impl Drop for Marks {
    /// The node is gone.
    fn drop(&mut self) {
        for mark in core::mem::take(self.list.get_mut()) {
            if let MarkReceiver::Group { group, .. } = &mark.receiver {
                if let Some(group) = group.upgrade() {
                    group.forget(&mark);
                }
                continue;
            }
            let MarkReceiver::Instance(instance) = &mark.receiver else { continue };
            let Some(instance) = instance.upgrade() else { continue };
            if mark.mask.load(Ordering::Relaxed) & linux::IN_DELETE_SELF != 0 {
                instance.push(mark.number, linux::IN_DELETE_SELF, 0, b"");
            }
            let _ = instance.remove(mark.number);
        }
    }
}

/// Tells the owner of an open directory what happens in it, as `F_NOTIFY` of fcntl(2) asks, until the process closes
/// it. `claim` is called before anything is told.
///
/// # Errors
/// `ENOTDIR`, `EINVAL` (nothing is reported of the file system), `ENOMEM`.
pub fn watch_directory(open: &OpenFile, pid: i32, asked: u32, claim: impl FnOnce()) -> Result<(), Errno> {
    let place = open.place.as_ref().ok_or(Errno::ENOTDIR)?;
    let node = &place.entry.node;
    let is_directory = node.kind() == FileType::Directory;
    if asked & !linux::DN_MULTISHOT == 0 {
        if is_directory {
            forget_directory(open, Some(pid));
        }
        return Ok(());
    }
    if !is_directory {
        return Err(Errno::ENOTDIR);
    }
    let mut mask = if asked & linux::DN_MULTISHOT == 0 { linux::IN_ONESHOT } else { 0 };
    for (bit, events) in [
        (linux::DN_ACCESS, linux::IN_ACCESS),
        (linux::DN_MODIFY, linux::IN_MODIFY),
        (linux::DN_CREATE, linux::IN_CREATE | linux::IN_MOVED_TO),
        (linux::DN_DELETE, linux::IN_DELETE | linux::IN_MOVED_FROM),
        (linux::DN_RENAME, RENAME),
        (linux::DN_ATTRIB, linux::IN_ATTRIB),
    ] {
        mask |= if asked & bit != 0 { events } else { 0 };
    }
    let marks = node.marks().ok_or(Errno::EINVAL)?;
    let notice = open.make_notice()?;
    claim();
    let before = marks.list.lock().iter().find(|mark| mark.is_of(open.id(), Some(pid))).cloned();
    if let Some(mark) = before {
        let old = mark.mask.load(Ordering::Relaxed);
        // Once told more than once, always.
        mark.mask.store((old | mask) & !(linux::IN_ONESHOT & !(old & mask)), Ordering::Relaxed);
        return Ok(());
    }
    Mark::put(0, mask, MarkReceiver::Owner { notice, description: open.id(), pid }, node)?;
    Ok(())
}

/// A process has closed an open directory, or nobody has it open any more: nothing of it is told then.
pub fn forget_directory(open: &OpenFile, pid: Option<i32>) {
    let Some(marks) = open.place.as_ref().and_then(|place| place.entry.node.marks()) else { return };
    loop {
        let mark = marks.list.lock().iter().find(|mark| mark.is_of(open.id(), pid)).cloned();
        let Some(mark) = mark else { return };
        mark.take_off();
    }
}

/// Whether there are no marks at all.
#[inline]
#[must_use]
pub fn is_idle() -> bool {
    MARKS.load(Ordering::Relaxed) == 0
}

/// A group of fanotify(7) gets marks that are on no node.
pub fn begin() {
    MARKS.fetch_add(1, Ordering::Relaxed);
}

/// It has none any more.
pub fn end() {
    MARKS.fetch_sub(1, Ordering::Relaxed);
}

fn with_kind(event: u32, kind: FileType) -> u32 {
    if kind == FileType::Directory { event | linux::IN_ISDIR } else { event }
}

/// Something happened to a file: its own marks hear of it, and those of its directory with its name.
pub fn report(entry: &Arc<Dentry>, event: u32) {
    if is_idle() {
        return;
    }
    if !fanotify::is_idle() {
        fanotify::report(entry, None, event);
    }
    report_to_lists(entry, event);
}

/// The same of what is done by an open description of the file.
pub fn report_at(place: &Path, event: u32) {
    if !fanotify::is_idle() {
        fanotify::report(&place.entry, Some(&place.mount), event);
    }
    report_to_lists(&place.entry, event);
}

fn report_to_lists(entry: &Arc<Dentry>, event: u32) {
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
pub fn report_self(node: &Arc<dyn Inode>, event: u32) {
    if is_idle() {
        return;
    }
    if !fanotify::is_idle() {
        fanotify::report_self(node, event);
    }
    if let Some(marks) = node.marks() {
        // A move and the end of a directory itself never said that it is one.
        let is_plain = matches!(event, linux::IN_MOVE_SELF | linux::IN_DELETE_SELF);
        let event = if is_plain { event } else { with_kind(event, node.kind()) };
        marks.tell(event, 0, b"", false);
    }
}

/// A name came into a directory, or left it.
pub fn report_name(directory: &Dentry, name: &[u8], kind: FileType, event: u32) {
    if is_idle() {
        return;
    }
    if !fanotify::is_idle() {
        fanotify::report_name(directory, name, kind, event);
    }
    if let Some(marks) = directory.node.marks() {
        marks.tell(with_kind(event, kind), 0, name, false);
    }
}

/// A file got another name.
pub fn report_rename(from: &Dentry, old_name: &[u8], to: &Dentry, name: &[u8], node: &Arc<dyn Inode>) {
    if is_idle() {
        return;
    }
    let cookie = NEXT_COOKIE.fetch_add(1, Ordering::Relaxed);
    if Arc::ptr_eq(&from.node, &to.node)
        && let Some(marks) = from.node.marks()
    {
        marks.tell(with_kind(RENAME, node.kind()), 0, name, false);
    }
    let sides = [(from, old_name, linux::IN_MOVED_FROM), (to, name, linux::IN_MOVED_TO)];
    for (directory, name, event) in sides {
        if !fanotify::is_idle() {
            fanotify::report_name(directory, name, node.kind(), event);
        }
        if let Some(marks) = directory.node.marks() {
            marks.tell(with_kind(event, node.kind()), cookie, name, false);
        }
    }
    report_self(node, linux::IN_MOVE_SELF);
}
