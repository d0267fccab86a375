//! Files and directories of a shared folder.

use alloc::sync::{Arc, Weak};
use core::any::Any;
use core::sync::atomic::Ordering;

use heddle_kernel_core::ninep::knowledge::{FileQuestion, Judgement};
use heddle_kernel_core::ninep::{Attributes, MessageWriter, Reader, kind, set};
use linux_raw_sys::general as linux;

use crate::device::share::GiveUp;
use crate::error::Errno;
use crate::fs::inode::{
    Creation, Inode, InodeChange, LinkTarget, Listed, Metadata, Opening, Rename, Statistics, Timestamp,
};
use crate::fs::lock::FileLocks;
use crate::fs::share::asking::attributes;
use crate::fs::share::file::SharedFile;
use crate::fs::share::handle::Handle;
use crate::fs::share::names::{KnownName, NameQuestion, OldName};
use crate::fs::share::state::{FileState, Outcome};
use crate::fs::share::{Fid, Server, handle, listing};
use crate::fs::{Dentry, File, FileType, StatusFlags};
use crate::memory::fallible;
use crate::process::Thread;
use crate::sync::SpinLock;

/// A file, by a handle that is never opened.
pub struct SharedNode {
    pub(super) fid: Fid,
    pub(super) kind: FileType,
    pub(super) number: u64,
    /// The file's state.
    pub(super) state: Arc<FileState>,
    /// A name of it.
    pub(super) entry: SpinLock<Weak<Dentry>>,
    /// The handle by which the guest created the file, for whoever opens it first.
    pub(super) created: SpinLock<Option<Fid>>,
}

fn timestamp((seconds, nanoseconds): (u64, u64)) -> Timestamp {
    Timestamp { seconds: seconds as i64, nanoseconds: (nanoseconds % 1_000_000_000) as u32 }
}

impl SharedNode {
    /// The node of the folder's handle, about which the question was put before it was made.
    pub(super) fn new(fid: Fid, question: &FileQuestion) -> Result<Arc<Self>, Errno> {
        let attributes = attributes(GiveUp::Forget, &fid, true)?;
        Self::with_attributes(fid, question, &attributes)
    }

    pub(super) fn with_attributes(
        fid: Fid,
        question: &FileQuestion,
        attributes: &Attributes,
    ) -> Result<Arc<Self>, Errno> {
        let kind = FileType::from_mode(attributes.mode).ok_or(Errno::EIO)?;
        let state = Self::state_for(&fid, kind, question, attributes)?;
        fid.server.show_time(attributes);
        let judgement = state.learn(question, attributes);
        let (created, entry) = (SpinLock::new(None), SpinLock::new(Weak::new()));
        let node = fallible::try_arc(Self { fid, kind, number: attributes.number, state, entry, created })?;
        node.state.found_by(&node);
        if judgement == Judgement::Changed {
            handle::open_for_lazy(&node);
        }
        Ok(node)
    }

    /// The state for a file that was found by a new way. A state of its number that is known already may be another
    /// file's, since the host gives numbers of files that are gone to new ones at once. Where the generations do not
    /// say it, who has opened a file without the host, and a directory, keep theirs if it is gone from where it was
    /// found.
    fn state_for(
        fid: &Fid,
        kind: FileType,
        question: &FileQuestion,
        attributes: &Attributes,
    ) -> Result<Arc<FileState>, Errno> {
        let (server, number) = (&fid.server, attributes.number);
        let state = server.state_of(number)?;
        let Some(other) = state.unheld_node() else { return Ok(state) };
        let is_same = if state.is_unchanged(attributes) {
            Some(true)
        } else {
            state.last().and_then(|known| known.is_same_file(attributes))
        };
        let is_other = match is_same {
            Some(is_same) => !is_same,
            // Nobody has it open, so it does no harm if they are two files; somebody may be about to, and then one file
            // must have one state. It may have known something of another, but this answer is the newest.
            None if kind == FileType::Regular && !state.is_lazy() => {
                state.doubt_before(question.begun);
                state.pages.distrust();
                false
            }
            None => match other.ask(GiveUp::Forget) {
                Err(Errno::ENOENT | Errno::ESTALE) => true,
                Err(Errno::EINTR) => return Err(Errno::EINTR),
                _ => false,
            },
        };
        if !is_other {
            return Ok(state);
        }
        server.part(&state, number);
        server.state_of(number)
    }

    fn metadata_of(&self, attributes: &Attributes) -> Metadata {
        Metadata {
            device: self.fid.server.device,
            inode: self.number,
            kind: self.kind,
            permissions: attributes.mode & 0o7777,
            links: attributes.links as u32,
            uid: attributes.uid,
            gid: attributes.gid,
            special: attributes.device,
            size: attributes.size,
            blocks: attributes.blocks,
            accessed: timestamp(attributes.accessed),
            modified: timestamp(attributes.modified),
            changed: timestamp(attributes.changed),
            born: timestamp(attributes.changed),
        }
    }

    /// The server.
    pub(super) fn server(&self) -> &Arc<Server> {
        &self.fid.server
    }

    /// Another node as one of this folder.
    pub(super) fn sibling(&self, node: &Arc<dyn Inode>) -> Result<Arc<Self>, Errno> {
        let any: Arc<dyn Any + Send + Sync> = node.clone();
        let other: Arc<Self> = any.downcast().map_err(|_| Errno::EXDEV)?;
        if Arc::ptr_eq(&other.fid.server, &self.fid.server) { Ok(other) } else { Err(Errno::EXDEV) }
    }

    /// Device and inode number.
    pub(super) fn identity(&self) -> (u64, u64) {
        (self.fid.server.device, self.number)
    }

    /// A request about this file whose reply says nothing.
    pub(super) fn tell(&self, request: u8, rest: impl FnOnce(&mut MessageWriter<'_>)) -> Result<(), Errno> {
        let write = |writer: &mut MessageWriter<'_>| {
            writer.u32(self.fid.number);
            rest(writer);
        };
        self.fid.server.call(request, write, |_| Ok(()))
    }

    /// Changes attributes; whether they are this file's for sure. The host finds a file by its name, which may have
    /// been given to another since it was looked up.
    ///
    /// # Errors
    /// The host's.
    pub(super) fn set_attributes(&self, valid: u32, change: &InodeChange, size: u64) -> Result<bool, Errno> {
        self.probe_if_old()?;
        self.state.change(self.server());
        if valid & (set::MODE | set::UID | set::GID) != 0 {
            self.state.change_access();
        }
        let mut result = self.ask_to_set(valid, change, size);
        if result == Err(Errno::ENXIO)
            && let Some(permissions) = change.permissions
        {
            // QEMU opens no special file, which it would have to for its permissions.
            result = self.change_special(storable(permissions, false));
            let rest = valid & !set::MODE;
            if result.is_ok() && rest != 0 {
                result = self.ask_to_set(rest, change, size);
            }
        }
        self.state.change(self.server());
        result?;
        if Arc::strong_count(&self.state) > 1 && self.ask_after_walk(GiveUp::Forget).is_err() {
            // The other nodes' file may be as it was, or not.
            self.state.doubt(self.server());
            self.state.pages.distrust();
            return Ok(false);
        }
        Ok(true)
    }

    fn ask_to_set(&self, valid: u32, change: &InodeChange, size: u64) -> Result<(), Errno> {
        let time = |time: Option<Timestamp>| {
            time.map_or([0; 2], |time| [time.seconds as u64, time.nanoseconds.into()])
        };
        self.tell(kind::SETATTR, |writer| {
            writer.u32(valid);
            let is_directory = self.kind == FileType::Directory;
            writer.u32(storable(change.permissions.unwrap_or(0), is_directory));
            writer.u32(change.uid.unwrap_or(0));
            writer.u32(change.gid.unwrap_or(0));
            writer.u64(size);
            for part in [time(change.accessed), time(change.modified)].into_iter().flatten() {
                writer.u64(part);
            }
        })
    }

    /// Changes the length, while the caller holds the contents.
    ///
    /// # Errors
    /// The host's; `ESTALE` if it does not have the file by its name any more, which is how it would find it.
    pub(super) fn truncate(&self, size: u64) -> Result<(), Errno> {
        // Right before, since it cannot be undone.
        self.probe_if_old()?;
        let before = match self.ask_after_walk(GiveUp::Forget) {
            Ok(attributes) => attributes.size,
            Err(Errno::ENOENT) => return Err(Errno::ESTALE),
            Err(error) => return Err(error),
        };
        if !self.set_attributes(set::SIZE, &InodeChange::default(), size)? {
            return Err(Errno::ESTALE);
        }
        self.state.set_size(self.server(), size);
        self.state.pages.was_truncated(self.server(), before, size);
        Ok(())
    }

    /// The length in bytes.
    pub(super) fn size(&self, give_up: GiveUp) -> Result<u64, Errno> {
        self.length(give_up).map(|length| length.bytes)
    }

    /// The length, and whether the host has the file by its name.
    pub(super) fn length(&self, give_up: GiveUp) -> Result<Length, Errno> {
        match self.state.current_size(self.server()) {
            Some(bytes) => Ok(Length { bytes, is_lost: false }),
            None => self.asked_length(give_up),
        }
    }

    /// The same, as the host has it now.
    pub(super) fn asked_length(&self, give_up: GiveUp) -> Result<Length, Errno> {
        match self.ask(give_up) {
            Ok(attributes) => Ok(Length { bytes: attributes.size, is_lost: false }),
            Err(error @ (Errno::ENOENT | Errno::ESTALE)) => {
                let last = self.state.last().ok_or(error)?;
                Ok(Length { bytes: last.size, is_lost: true })
            }
            Err(error) => Err(error),
        }
    }
}

/// The length of a file.
#[derive(Clone, Copy)]
pub(super) struct Length {
    pub(super) bytes: u64,
    /// The host does not have the file by this name any more, and the length is what it was.
    pub(super) is_lost: bool,
}

/// Names.
impl SharedNode {
    /// An entry of this node.
    pub(super) fn entry_at(
        self: &Arc<Self>,
        directory: &Arc<Dentry>,
        name: &[u8],
    ) -> Result<Arc<Dentry>, Errno> {
        let entry = Dentry::new(self.clone(), Some(directory.clone()), name)?;
        let old = core::mem::replace(&mut *self.entry.lock(), Arc::downgrade(&entry));
        drop(old);
        Ok(entry)
    }

    /// Keeps an entry that the host has said to be there, if there is memory for it.
    fn keep(&self, name: &[u8], entry: &Arc<Dentry>, asked: &NameQuestion) {
        let (mut is_new, mut old, mut is_kept) = (false, None, true);
        self.state.answer_name(asked, |names| match names.insert(name, entry.clone()) {
            Ok(kept) => (is_new, old) = kept,
            Err(_) => is_kept = false,
        });
        if !is_kept {
            self.server().has_lost_name();
        }
        self.lose(old.filter(|old| !Arc::ptr_eq(old, entry)));
        self.server().count_names(isize::from(is_new));
        self.server().make_room();
    }

    /// An entry's file has lost its name on the host: whoever has it open asks for it by that, and hears so.
    fn lose(&self, entry: OldName) {
        if let Some(Ok(node)) = entry.map(|entry| self.sibling(&entry.node)) {
            node.state.expire(self.server());
        }
    }

    /// Asks the host for a name in this directory, of which this entry is known.
    fn walk(
        &self,
        this: &Arc<Dentry>,
        name: &[u8],
        asked: &NameQuestion,
        known: Option<(Arc<Dentry>, Arc<Self>)>,
    ) -> Result<Arc<Dentry>, Errno> {
        // A node of a file that has the number no more is left to who has it.
        if let Some((entry, node)) = known
            && let Some((number, version)) = self.fid.number_of(name)?
            && number == node.number
            && self.server().is_state_of(&node.state, node.number)
        {
            node.state.found_by(&node);
            // A directory's version says nothing about its names, which are asked about by themselves.
            let is_confirmed = node.kind == FileType::Directory || node.state.is_confirmed(version);
            let is_current = is_confirmed && node.state.is_current(self.server());
            match if is_current { Ok(()) } else { node.ask_after_walk(GiveUp::Forget).map(drop) } {
                Ok(()) => {
                    self.keep(name, &entry, asked);
                    return Ok(entry);
                }
                // Its handle leads to where the file was before.
                Err(Errno::ENOENT | Errno::ESTALE) => {}
                Err(error) => return Err(error),
            }
        }
        let found = self.find_with_others(this, name, asked);
        match &found {
            Ok(entry) => self.keep(name, entry, asked),
            Err(Errno::ENOENT) => {
                let mut old = None;
                // One that is not kept is asked for again.
                self.state.answer_name(asked, |names| {
                    old = names.remove(name);
                    let _ = names.insert_absent(name);
                });
                self.server().count_names(-isize::from(old.is_some()));
                self.lose(old);
            }
            Err(_) => {}
        }
        found
    }
}

/// Permissions as they are stored on the host: a program of the guest must not leave one there that runs with the
/// rights of the host's user. The bit of a directory only says which group its files get.
pub(super) const fn storable(permissions: u32, is_directory: bool) -> u32 {
    permissions & !if is_directory { linux::S_ISUID } else { linux::S_ISUID | linux::S_ISGID }
}

impl Inode for SharedNode {
    fn keeps_entries(&self) -> bool {
        false
    }

    fn kind(&self) -> FileType {
        self.kind
    }

    fn access(&self) -> Metadata {
        self.state.access(self.server()).map_or_else(|| self.metadata(), |known| self.metadata_of(&known))
    }

    fn metadata(&self) -> Metadata {
        let known = self.state.current(self.server()).ok_or(Errno::ENODATA);
        // The name may be gone; what is left is what the file was.
        let last = || self.state.last().ok_or(Errno::ENOENT);
        match known.or_else(|_| self.ask(GiveUp::Forget)).or_else(|_| last()) {
            Ok(attributes) => self.metadata_of(&attributes),
            Err(_) => Metadata {
                device: self.fid.server.device,
                links: 0,
                ..Metadata::anonymous(self.kind, self.number)
            },
        }
    }

    fn statistics(&self) -> Statistics {
        let read = |reader: &mut Reader<'_>| {
            let (magic, block_bytes) = (reader.u32()?, u64::from(reader.u32()?));
            let (blocks, _, free) = (reader.u64()?, reader.u64()?, reader.u64()?);
            let (nodes, free_nodes) = (reader.u64()?, reader.u64()?);
            let pages = |blocks: u64| blocks.saturating_mul(block_bytes) / 4096;
            let (blocks, free) = (pages(blocks), pages(free));
            Ok(Statistics { magic, blocks, free, nodes, free_nodes, device: self.fid.server.device })
        };
        let _ = self.probe_if_old();
        let asked = self.fid.server.call(kind::STATFS, |writer| writer.u32(self.fid.number), read);
        let magic = linux::V9FS_MAGIC;
        let device = self.fid.server.device;
        asked.unwrap_or(Statistics { magic, blocks: 0, free: 0, nodes: 0, free_nodes: 0, device })
    }

    fn device(&self) -> u64 {
        self.fid.server.device
    }

    fn lookup(&self, this: &Arc<Dentry>, name: &[u8]) -> Result<Arc<Dentry>, Errno> {
        self.refresh()?;
        let asked = self.state.ask_name(self.server());
        let known = match self.state.find_name(name) {
            KnownName::Absent => return Err(Errno::ENOENT),
            // A directory that was found by another way since has another path, and so have the files in it.
            KnownName::Present { entry, is_current }
                if entry.parent().is_some_and(|parent| Arc::ptr_eq(&parent, this)) =>
            {
                let node = self.sibling(&entry.node)?;
                if is_current && node.state.is_current(self.server()) {
                    return Ok(entry);
                }
                Some((entry, node))
            }
            _ => None,
        };
        self.walk(this, name, &asked, known)
    }

    fn list(&self, cookie: u64, visit: &mut dyn FnMut(Listed<'_>) -> bool) -> Result<(), Errno> {
        listing::list(self, cookie, visit)
    }

    fn create(&self, this: &Arc<Dentry>, name: &[u8], creation: &Creation<'_>) -> Result<Arc<Dentry>, Errno> {
        // The host may have another directory of that path by now.
        self.refresh()?;
        let server = self.server();
        let began = self.state.change(server);
        let made = self.ask_to_create(this, name, creation);
        let outcome = made.as_ref().map_or(Outcome::Unknown, Outcome::Present);
        self.state.changed_name(server, began, name, outcome);
        match &made {
            Ok(_) => server.make_room(),
            // It may still happen.
            Err(Errno::EINTR) => self.state.doubt(server),
            Err(_) => {}
        }
        made
    }

    fn link(&self, _: &Arc<Dentry>, name: &[u8], node: &Arc<dyn Inode>) -> Result<(), Errno> {
        let node = self.sibling(node)?;
        self.add_name(name, &node)
    }

    fn unlink(&self, entry: &Arc<Dentry>) -> Result<(), Errno> {
        let node = self.sibling(&entry.node)?;
        self.remove_name(entry, &node)
    }

    fn rename(&self, entry: &Arc<Dentry>, to: &Arc<Dentry>, name: &[u8], how: Rename) -> Result<(), Errno> {
        self.move_name(entry, to, name, how)
    }

    fn follow(&self, _: Option<&Arc<Thread>>) -> Result<LinkTarget, Errno> {
        if self.kind != FileType::Symlink {
            return Err(Errno::EINVAL);
        }
        if let Some(known) = self.state.target(self.server()) {
            return Ok(LinkTarget::Text(fallible::try_to_vec(&known)?));
        }
        let read = |reader: &mut Reader<'_>| Ok(fallible::try_to_vec(reader.string()?));
        let write = |writer: &mut MessageWriter<'_>| writer.u32(self.fid.number);
        self.probe_if_old()?;
        let target = self.fid.server.call(kind::READLINK, write, read)??;
        if let Ok(kept) = fallible::try_to_vec(&target).and_then(fallible::try_arc) {
            self.state.set_target(&kept);
        }
        Ok(LinkTarget::Text(target))
    }

    fn change(&self, change: &InodeChange) -> Result<(), Errno> {
        let mut valid = 0;
        for (is_asked, bits) in [
            (change.permissions.is_some(), set::MODE),
            (change.uid.is_some(), set::UID),
            (change.gid.is_some(), set::GID),
            (change.accessed.is_some(), set::ATIME | set::ATIME_SET),
            (change.modified.is_some(), set::MTIME | set::MTIME_SET),
        ] {
            valid |= if is_asked { bits } else { 0 };
        }
        if valid == 0 { Ok(()) } else { self.set_attributes(valid, change, 0).map(drop) }
    }

    fn locks(&self, _: bool) -> Result<Option<&FileLocks>, Errno> {
        Ok(Some(&self.state.locks))
    }

    fn bind_socket(&self, socket: Weak<dyn File>) -> Result<(), Errno> {
        let mut sockets = self.fid.server.sockets.lock();
        sockets.retain(|_, bound| bound.strong_count() > 0);
        fallible::try_insert(&mut sockets, self.number, socket)?;
        Ok(())
    }

    fn bound_socket(&self) -> Option<Arc<dyn File>> {
        self.fid.server.sockets.lock().get(&self.number)?.upgrade()
    }

    fn open(self: Arc<Self>, opening: &Opening<'_>) -> Result<Arc<dyn File>, Errno> {
        match self.kind {
            FileType::Regular => {}
            FileType::Directory => return Ok(fallible::try_arc(SharedFile::directory(self))?),
            FileType::Symlink => return Err(Errno::ELOOP),
            FileType::Fifo => return self.state.pipe()?.open_end(opening.flags),
            _ => return Err(Errno::ENXIO),
        }
        let is_executed = opening.flags.contains(StatusFlags::EXECUTE);
        let access = if is_executed { linux::O_RDONLY } else { opening.flags.bits() & linux::O_ACCMODE };
        if self.state.is_read_ahead.swap(false, Ordering::Relaxed)
            && let Some(above) = opening.place.entry.parent()
        {
            self.sibling(&above.node)?.state.use_read_ahead();
        }
        // A program that runs must stay to be had, whatever becomes of the name.
        let at_once = if access == linux::O_RDONLY { Handle::at_once(&self, !is_executed)? } else { None };
        // The host finds the end, of which it alone knows for sure, whatever becomes of the name.
        let appends = access != linux::O_RDONLY && opening.flags.contains(StatusFlags::APPEND);
        let stores = opening.flags.contains(StatusFlags::RDWR);
        let appender = if appends { self.open_to_append(opening)? } else { None };
        let handle = match (at_once, &appender) {
            (Some(handle), _) => handle,
            (None, Some(appender)) if !stores => {
                drop(self.created.lock().take());
                appender.clone()
            }
            (None, _) => self.open_on_host(access, opening)?,
        };
        let file = fallible::try_arc(SharedFile::regular(self.clone(), handle, appender, stores))?;
        // Last, because nobody would take it back.
        if is_executed {
            self.state.begin_executing()?;
        } else if opening.flags.intersects(StatusFlags::WRONLY | StatusFlags::RDWR) {
            self.state.begin_writing()?;
        }
        Ok(file)
    }
}
