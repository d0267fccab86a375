//! Groups of fanotify(7): their marks, and the events that wait.

use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use heddle_kernel_core::fallible::{extend_reserved, push_back_reserved, push_reserved};
use heddle_kernel_core::fanotify::{
    INFO_DIRECTORY, INFO_DIRECTORY_NAME, INFO_FID, RECORD_BYTES_MAX, event, file_record, init, mark,
};

use crate::error::Errno;
use crate::fs::fanotify::mask::FanMask;
use crate::fs::fanotify::owner::FanOwner;
use crate::fs::fanotify::{ASKING, MARKS, OBJECT_GROUPS, Occurrence, QUEUE_MAX};
use crate::fs::notify::{self, Mark};
use crate::fs::tree::{FileHandle, encode_node_handle};
use crate::fs::{Inode, Mount, Path};
use crate::memory::fallible;
use crate::process::{Process, detour};
use crate::sync::{SpinGuard, SpinLock};
use crate::wait::queue::{Events, WaitQueue};

/// Events that are looked at for one to be merged with, as in Linux.
const MERGE_MAX: usize = 128;
/// Marks on mounts and file systems, which are looked at for each event.
const OBJECTS_MAX: usize = 128;

/// An object of a mark, other than a node.
#[derive(Clone)]
pub enum FanObject {
    /// Everything that is reached through a mount, which is not kept.
    Mount(Weak<Mount>),
    /// A file system by its device's number.
    FileSystem(u64),
}

impl FanObject {
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Mount(own), Self::Mount(other)) => Weak::ptr_eq(own, other),
            (Self::FileSystem(own), Self::FileSystem(other)) => own == other,
            _ => false,
        }
    }

    const fn is_mount(&self) -> bool {
        matches!(self, Self::Mount(_))
    }
}

struct ObjectMark {
    object: FanObject,
    mask: FanMask,
}

/// A thread that waits for permission.
pub(super) struct PermissionRequest {
    /// 0: not answered.
    answer: AtomicU8,
    pub(super) queue: WaitQueue,
}

const ALLOWED: u8 = 1;
const DENIED: u8 = 2;

impl PermissionRequest {
    pub(super) fn answer(&self, is_allowed: bool) {
        self.answer.store(if is_allowed { ALLOWED } else { DENIED }, Ordering::Release);
        self.queue.wake(Events::IN);
    }

    /// The answer, once there is one.
    pub(super) fn answered(&self) -> Option<bool> {
        match self.answer.load(Ordering::Acquire) {
            0 => None,
            answer => Some(answer == ALLOWED),
        }
    }
}

pub(super) struct FanEvent {
    pub(super) mask: u32,
    pub(super) pid: i32,
    /// The process, where it is to be told by a descriptor.
    pub(super) process: Option<Weak<Process>>,
    pub(super) place: Option<Path>,
    pub(super) records: Vec<u8>,
    pub(super) request: Option<Arc<PermissionRequest>>,
}

impl Drop for FanEvent {
    /// Nobody will answer any more what was not read.
    fn drop(&mut self) {
        if let Some(request) = &self.request {
            request.answer(true);
        }
    }
}

impl FanEvent {
    fn is_like(&self, other: &Self) -> bool {
        let is_same_place = match (&self.place, &other.place) {
            (Some(own), Some(other)) => own.is(other),
            (None, None) => true,
            _ => false,
        };
        let names = |event: &Self| event.mask & event::NAMES != 0;
        self.pid == other.pid
            && self.request.is_none()
            && other.request.is_none()
            && is_same_place
            && self.records == other.records
            && names(self) == names(other)
            && self.mask & event::ONDIR == other.mask & event::ONDIR
    }
}

#[derive(Default)]
struct GroupMarks {
    nodes: Vec<Arc<Mark>>,
    objects: Vec<ObjectMark>,
}

/// The numbers of groups.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// A group.
pub struct FanGroup {
    /// A number that no other group has or had.
    number: u64,
    /// Nobody can read it any more.
    pub(super) is_closed: AtomicBool,
    owner: Arc<FanOwner>,
    pub(super) flags: u32,
    /// The flags of open(2) for the descriptors in events.
    pub(super) access: u32,
    pub(super) is_privileged: bool,
    marks: SpinLock<GroupMarks>,
    pub(super) events: SpinLock<VecDeque<FanEvent>>,
    /// Requests that were read and wait for their answers, by the descriptor that was given.
    pub(super) asked: SpinLock<Vec<(i32, Arc<PermissionRequest>)>>,
    pub(super) queue: WaitQueue,
    /// How many marks are on file systems.
    file_systems: AtomicUsize,
}

impl FanGroup {
    /// A group without marks.
    ///
    /// # Errors
    /// `EMFILE` (there are too many), `ENOMEM`.
    pub fn new(flags: u32, access: u32, user: u32, is_privileged: bool) -> Result<Arc<Self>, Errno> {
        let owner = FanOwner::enter(user)?;
        let made = fallible::try_arc(Self {
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            is_closed: AtomicBool::new(false),
            owner: owner.clone(),
            flags,
            access,
            is_privileged,
            marks: SpinLock::new(GroupMarks::default()),
            events: SpinLock::new(VecDeque::new()),
            asked: SpinLock::new(Vec::new()),
            queue: WaitQueue::new(),
            file_systems: AtomicUsize::new(0),
        });
        // Dropped without having counted if there was no memory.
        let group = made.inspect_err(|_| owner.leave())?;
        if flags & init::CLASSES != 0 {
            ASKING.fetch_add(1, Ordering::Relaxed);
        }
        Ok(group)
    }

    /// See the field.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    fn is_unlimited(&self) -> bool {
        self.flags & init::UNLIMITED_MARKS != 0
    }

    /// A mark is gone.
    fn count_gone(&self) {
        self.owner.remove_mark();
        MARKS.fetch_sub(1, Ordering::Relaxed);
    }

    /// The flags of fanotify_init(2).
    #[must_use]
    pub const fn flags(&self) -> u32 {
        self.flags
    }

    /// Whether it was made by somebody privileged.
    #[must_use]
    pub const fn is_privileged(&self) -> bool {
        self.is_privileged
    }

    /// Marks a node, or adds to its mark.
    ///
    /// # Errors
    /// `ENOSPC`, `EOPNOTSUPP`, `ENOMEM`.
    pub fn mark_node(self: &Arc<Self>, node: &Arc<dyn Inode>, mask: u32, flags: u32) -> Result<(), Errno> {
        let mut marks = self.marks.lock();
        let list = node.marks().ok_or(Errno::EOPNOTSUPP)?;
        if list.has_group(self.number) {
            list.look_for(self.number, |bits| bits.add(mask, flags));
            return Ok(());
        }
        marks.nodes.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let bits = FanMask::default();
        bits.add(mask, flags);
        self.owner.add_mark(self.is_unlimited())?;
        let new = Mark::of_group(self, bits, node).inspect_err(|_| self.owner.remove_mark())?;
        push_reserved(&mut marks.nodes, new);
        MARKS.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Marks a mount or a file system, or adds to the mark.
    ///
    /// # Errors
    /// `ENOSPC`, `ENOMEM`.
    pub fn mark_object(self: &Arc<Self>, object: FanObject, mask: u32, flags: u32) -> Result<(), Errno> {
        let mut marks = self.marks.lock();
        if let Some(known) = marks.objects.iter().find(|known| known.object.is(&object)) {
            known.mask.add(mask, flags);
            return Ok(());
        }
        if marks.objects.len() >= OBJECTS_MAX {
            return Err(Errno::ENOSPC);
        }
        let bits = FanMask::default();
        bits.add(mask, flags);
        marks.objects.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        self.owner.add_mark(self.is_unlimited())?;
        if marks.objects.is_empty() {
            let listed = fallible::try_push(&mut OBJECT_GROUPS.lock(), (self.number, Arc::downgrade(self)));
            listed.inspect_err(|_| self.owner.remove_mark())?;
            notify::begin();
        }
        self.file_systems.fetch_add(usize::from(!object.is_mount()), Ordering::Relaxed);
        push_reserved(&mut marks.objects, ObjectMark { object, mask: bits });
        MARKS.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Takes bits of a node's mark away, and the mark with the last.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn unmark_node(&self, node: &Arc<dyn Inode>, mask: u32, flags: u32) -> Result<(), Errno> {
        let mut marks = self.marks.lock();
        let known = node.marks().and_then(|list| list.mark_of(self.number)).ok_or(Errno::ENOENT)?;
        let is_empty = known.fan_mask().is_none_or(|bits| bits.remove(mask, flags));
        let place = marks.nodes.iter().position(|mark| Arc::ptr_eq(mark, &known)).filter(|_| is_empty);
        let gone = place.map(|place| marks.nodes.swap_remove(place));
        drop(marks);
        if let Some(gone) = gone {
            gone.take_off();
            self.count_gone();
        }
        Ok(())
    }

    /// The same of a mount or a file system.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn unmark_object(&self, object: &FanObject, mask: u32, flags: u32) -> Result<(), Errno> {
        let marks = self.marks.lock();
        let place = marks.objects.iter().position(|known| known.object.is(object)).ok_or(Errno::ENOENT)?;
        if marks.objects[place].mask.remove(mask, flags) {
            self.drop_object(marks, place);
        }
        Ok(())
    }

    /// Takes the mark at a place of the list away.
    fn drop_object(&self, mut marks: SpinGuard<'_, GroupMarks>, place: usize) {
        let gone = marks.objects.swap_remove(place);
        self.file_systems.fetch_sub(usize::from(!gone.object.is_mount()), Ordering::Relaxed);
        self.count_gone();
        if marks.objects.is_empty() {
            OBJECT_GROUPS.lock().retain(|(number, _)| *number != self.number);
            notify::end();
        }
        drop(marks);
        drop(gone);
    }

    /// Takes all marks of a kind away: on nodes, mounts or file systems.
    pub fn flush(&self, kind: u32) {
        loop {
            let mut marks = self.marks.lock();
            if kind == 0 {
                let Some(gone) = marks.nodes.pop() else { return };
                drop(marks);
                gone.take_off();
                self.count_gone();
            } else {
                let is_meant = |known: &ObjectMark| known.object.is_mount() == (kind == mark::MOUNT);
                let Some(place) = marks.objects.iter().position(is_meant) else { return };
                self.drop_object(marks, place);
            }
        }
    }

    /// A node that was marked is gone.
    pub fn forget(&self, gone: &Arc<Mark>) {
        let mut marks = self.marks.lock();
        let place = marks.nodes.iter().position(|mark| Arc::ptr_eq(mark, gone));
        let old = place.map(|place| marks.nodes.swap_remove(place));
        drop(marks);
        if old.is_some() {
            self.count_gone();
        }
        drop(old);
    }

    /// The event's bits that the group wants.
    fn wants(&self, occurrence: &Occurrence<'_>) -> u32 {
        let what = occurrence.what;
        let (mut wanted, mut ignored) = (0, 0);
        let mut add = |(more, less): (u32, u32)| {
            wanted |= more;
            ignored |= less;
        };
        if let Some(own) = occurrence.node.marks() {
            own.look_for(self.number, |bits| add(bits.look(what, true)));
        }
        if let Some(above) = occurrence.parent.as_ref().and_then(|parent| parent.node.marks()) {
            above.look_for(self.number, |bits| add(bits.look(what, false)));
        }
        // A file system may have to be asked for its number, which waits.
        let has_file_systems = self.file_systems.load(Ordering::Relaxed) != 0;
        let device = has_file_systems.then(|| occurrence.node.device());
        let marks = self.marks.lock();
        for known in &marks.objects {
            let is_here = match &known.object {
                FanObject::Mount(mount) => {
                    occurrence.mount.is_some_and(|here| core::ptr::eq(Arc::as_ptr(here), mount.as_ptr()))
                }
                FanObject::FileSystem(marked) => device == Some(*marked),
            };
            if is_here {
                add(known.mask.look(what, true));
            }
        }
        let left = what & wanted & !ignored & !event::MODIFIERS;
        if left == 0 { 0 } else { left | what & event::ONDIR }
    }

    pub(super) fn tell(&self, occurrence: &Occurrence<'_>) {
        let mut mask = self.wants(occurrence);
        let by_handle = self.flags & init::BY_HANDLE != 0;
        let has_path = occurrence.entry.is_some() && occurrence.mount.is_some();
        if mask & !event::ONDIR == 0 || !by_handle && (mask & event::WITH_PATH == 0 || !has_path) {
            return;
        }
        if !by_handle {
            // Whether it is a directory shows at the descriptor.
            mask &= !event::ONDIR;
        }
        // Without memory the reader must hear that something was lost.
        match self.event(occurrence, mask) {
            Ok(event) => self.push(event),
            Err(_) => self.push(Self::overflow()),
        }
    }

    const fn overflow() -> FanEvent {
        FanEvent {
            mask: event::OVERFLOW,
            pid: 0,
            process: None,
            place: None,
            records: Vec::new(),
            request: None,
        }
    }

    fn event(&self, occurrence: &Occurrence<'_>, mask: u32) -> Result<FanEvent, Errno> {
        let by_thread = self.flags & init::REPORT_TID != 0;
        let pid =
            detour::with_thread_here(|thread| if by_thread { thread.tid() } else { thread.process.pid });
        let place = match (occurrence.entry, occurrence.mount) {
            (Some(entry), Some(mount)) if self.flags & init::BY_HANDLE == 0 => {
                Some(Path { mount: mount.clone(), entry: entry.clone() })
            }
            _ => None,
        };
        let records = if self.flags & init::BY_HANDLE == 0 { Vec::new() } else { self.records(occurrence)? };
        let has_process = self.flags & init::REPORT_PIDFD != 0;
        let process =
            has_process.then(|| detour::with_thread_here(|thread| Arc::downgrade(&thread.process))).flatten();
        Ok(FanEvent { mask, pid: pid.unwrap_or(0), process, place, records, request: None })
    }

    /// The records that say which file it is.
    fn records(&self, occurrence: &Occurrence<'_>) -> Result<Vec<u8>, Errno> {
        let is_name = occurrence.what & event::NAMES != 0;
        let is_directory = occurrence.what & event::ONDIR != 0;
        let has_name = self.flags & init::REPORT_NAME != 0;
        let own = |bytes: &mut Vec<u8>, kind, node: &Arc<dyn Inode>, entry, name: Option<&[u8]>| {
            let handle = encode_node_handle(node, entry)?;
            let mut room = [0; RECORD_BYTES_MAX];
            let file_system = node.device();
            let length =
                file_record(&mut room, kind, file_system, (FileHandle::TYPE, handle.to_bytes()), name);
            bytes.try_reserve(length).map_err(|_| Errno::ENOMEM)?;
            extend_reserved(bytes, &room[..length]);
            Ok::<(), Errno>(())
        };
        let mut bytes = Vec::new();
        let directory = match &occurrence.parent {
            _ if self.flags & init::REPORT_DIR_FID == 0 => None,
            _ if is_name => Some((occurrence.node, None, occurrence.name)),
            // A directory is told of by itself.
            _ if is_directory => Some((occurrence.node, occurrence.entry, &b"."[..])),
            Some(parent) => Some((&parent.node, Some(parent), occurrence.name)),
            None => None,
        };
        if let Some((node, entry, name)) = directory {
            let kind = if has_name { INFO_DIRECTORY_NAME } else { INFO_DIRECTORY };
            own(&mut bytes, kind, node, entry, has_name.then_some(name))?;
        }
        if self.flags & init::REPORT_FID != 0
            && !(is_name && directory.is_some())
            && !(is_directory && directory.is_some())
            || bytes.is_empty()
        {
            own(&mut bytes, INFO_FID, occurrence.node, occurrence.entry, None)?;
        }
        Ok(bytes)
    }

    /// Asks for permission, if the group wants to be asked.
    pub(super) fn ask(&self, occurrence: &Occurrence<'_>) -> Result<Option<Arc<PermissionRequest>>, Errno> {
        let mask = self.wants(occurrence) & event::PERMISSIONS;
        if mask == 0 {
            return Ok(None);
        }
        let request =
            fallible::try_arc(PermissionRequest { answer: AtomicU8::new(0), queue: WaitQueue::new() })?;
        let mut event = self.event(occurrence, mask)?;
        event.request = Some(request.clone());
        self.push(event);
        if self.is_closed.load(Ordering::Acquire) {
            // The queue was emptied before this came into it.
            request.answer(true);
        }
        Ok(Some(request))
    }

    fn push(&self, new: FanEvent) {
        let mut events = self.events.lock();
        if new.request.is_none()
            && let Some(like) = events.iter_mut().rev().take(MERGE_MAX).find(|old| old.is_like(&new))
        {
            like.mask |= new.mask;
            drop(events);
            drop(new);
            return;
        }
        let is_full = events.len() >= QUEUE_MAX && self.flags & init::UNLIMITED_QUEUE == 0;
        let (kept, lost) =
            if is_full || events.try_reserve(1).is_err() { (None, Some(new)) } else { (Some(new), None) };
        let is_told = events.back().is_some_and(|last| last.mask == event::OVERFLOW);
        match kept {
            Some(new) => push_back_reserved(&mut events, new),
            None if is_told || events.try_reserve(1).is_err() => {}
            None => push_back_reserved(&mut events, Self::overflow()),
        }
        drop(events);
        // Whoever waits for permission by it goes on.
        drop(lost);
        self.queue.wake(Events::IN | Events::RDNORM);
    }
}

impl Drop for FanGroup {
    fn drop(&mut self) {
        for (_, request) in core::mem::take(self.asked.get_mut()) {
            request.answer(true);
        }
        self.owner.leave();
        if self.flags & init::CLASSES != 0 {
            ASKING.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
