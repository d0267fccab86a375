//! Files and directories that a server has.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicU64, Ordering};

use heddle_kernel_core::fuse::{
    FuseAttributes, FuseEntry, FuseListed, FuseMessage, FuseReader, ROOT_ID, opcode, read_attributes, set,
};
use linux_raw_sys::general as linux;

use crate::arch::time::now_ns;
use crate::error::Errno;
use crate::fs::fuse::FuseSession;
use crate::fs::fuse::connection::{Connection, GiveBack};
use crate::fs::fuse::file::{self, FuseHandle};
use crate::fs::inode::{
    Creation, Inode, InodeChange, LinkTarget, Listed, Metadata, Opening, Rename, Statistics, Timestamp,
};
use crate::fs::lock::FileLocks;
use crate::fs::xattr::ServedAttributes;
use crate::fs::{Dentry, File, FileType};
use crate::memory::fallible;
use crate::process::Thread;
use crate::sync::SpinLock;

/// `FUSE_SUPER_MAGIC`.
const MAGIC: u32 = 0x6573_5546;
/// Bytes of an answer with attributes, and of that to `STATFS`.
const ATTRIBUTES_BYTES: usize = 104;
const STATISTICS_BYTES: usize = 80;
/// Bytes of entries that are asked for at a time.
const LISTING_BYTES: u32 = 16 << 10;
/// The longest target of a link.
const TARGET_MAX: usize = 4096;

/// Attributes, and until when they are good.
#[derive(Default)]
struct KnownAttributes {
    attributes: Option<FuseAttributes>,
    until_ns: u64,
}

/// How far a directory has been listed. A listing in several calls goes on with its handle, because many servers know
/// positions of an open directory only, and its end is known, so that nobody has to ask once more.
#[derive(Default)]
enum FuseListing {
    /// Nothing is known.
    #[default]
    Unknown,
    /// By this handle.
    Open(Arc<FuseHandle>),
    /// Up to the end, which is this position.
    Over(u64),
}

/// A file of the server.
pub(super) struct FuseNode {
    pub session: Arc<FuseSession>,
    /// The server's number of it.
    pub id: u64,
    generation: u64,
    kind: FileType,
    /// The looks at it that the server has counted.
    looks: AtomicU64,
    known: SpinLock<KnownAttributes>,
    locks: FileLocks,
    /// The handle by which it was created, for the thread that did so.
    pub created: SpinLock<Option<(i32, Arc<FuseHandle>)>>,
    listing: SpinLock<FuseListing>,
}

/// The node as one of a server.
pub(super) fn fuse_node(node: &Arc<dyn Inode>) -> Result<Arc<FuseNode>, Errno> {
    let any: Arc<dyn Any + Send + Sync> = node.clone();
    any.downcast().map_err(|_| Errno::EXDEV)
}

fn timestamp((seconds, nanoseconds): (u64, u32)) -> Timestamp {
    Timestamp { seconds: seconds.cast_signed(), nanoseconds: nanoseconds % 1_000_000_000 }
}

impl FuseNode {
    pub fn new(
        session: &Arc<FuseSession>,
        id: u64,
        generation: u64,
        kind: FileType,
    ) -> Result<Arc<Self>, Errno> {
        fallible::try_arc(Self {
            session: session.clone(),
            id,
            generation,
            kind,
            looks: AtomicU64::new(0),
            known: SpinLock::new(KnownAttributes::default()),
            locks: FileLocks::new(),
            created: SpinLock::new(None),
            listing: SpinLock::new(FuseListing::default()),
        })
    }

    pub fn connection(&self) -> &Arc<Connection> {
        &self.session.connection
    }

    /// Begins a request about this node.
    pub fn message(&self, opcode: u32, room: usize) -> Result<FuseMessage, Errno> {
        FuseMessage::new(opcode, self.id, room).map_err(|_| Errno::ENOMEM)
    }

    /// Puts a question whose answer gives nothing that would have to be given back.
    pub fn ask(&self, message: FuseMessage, answer_max: usize) -> Result<Vec<u8>, Errno> {
        self.connection().ask(message, answer_max, GiveBack::Nothing)
    }

    /// The node that an entry is about, which the server has looked at once for it.
    pub fn of_entry(session: &Arc<FuseSession>, entry: &FuseEntry) -> Result<Arc<Self>, Errno> {
        let found = Self::find_or_make(session, entry);
        match &found {
            Ok(node) => {
                node.looks.fetch_add(1, Ordering::Relaxed);
                node.learn(&entry.attributes, entry.valid_ns);
            }
            Err(_) => session.connection.forget(entry.node, 1),
        }
        found
    }

    fn find_or_make(session: &Arc<FuseSession>, entry: &FuseEntry) -> Result<Arc<Self>, Errno> {
        let kind = FileType::from_mode(entry.attributes.mode).ok_or(Errno::EIO)?;
        if entry.node == ROOT_ID {
            return Err(Errno::EIO);
        }
        let is_it = |known: &Arc<Self>| known.kind == kind && known.generation == entry.generation;
        // A node that goes takes itself out of the table, so none may be dropped with that locked.
        let known = session.nodes.lock().get(&entry.node).and_then(Weak::upgrade);
        if let Some(known) = known.filter(is_it) {
            return Ok(known);
        }
        let made = Self::new(session, entry.node, entry.generation, kind)?;
        let mut nodes = session.nodes.lock();
        // Somebody may have been faster; theirs is the one then.
        let other = nodes.get(&entry.node).and_then(Weak::upgrade);
        let is_there = other.as_ref().is_some_and(is_it);
        let inserted = if is_there {
            Ok(None)
        } else {
            fallible::try_insert(&mut nodes, entry.node, Arc::downgrade(&made))
        };
        drop(nodes);
        match other.filter(|_| is_there) {
            Some(other) => Ok(other),
            None => inserted.map(|_| made),
        }
    }

    /// Notes what the server has said.
    pub fn learn(&self, attributes: &FuseAttributes, valid_ns: u64) {
        let until_ns = now_ns().saturating_add(valid_ns);
        *self.known.lock() = KnownAttributes { attributes: Some(*attributes), until_ns };
    }

    /// The attributes are to be asked for anew.
    pub fn expire(&self) {
        self.known.lock().until_ns = 0;
    }

    /// The attributes as they are now.
    pub fn attributes(&self) -> Result<FuseAttributes, Errno> {
        {
            let known = self.known.lock();
            if let Some(attributes) = known.attributes.filter(|_| now_ns() < known.until_ns) {
                return Ok(attributes);
            }
        }
        let mut message = self.message(opcode::GETATTR, 16)?;
        message.u64(0);
        message.u64(0);
        let answer = self.ask(message, ATTRIBUTES_BYTES)?;
        self.learn_answer(&answer)
    }

    fn learn_answer(&self, answer: &[u8]) -> Result<FuseAttributes, Errno> {
        let (attributes, valid_ns) = read_attributes(answer)?;
        if FileType::from_mode(attributes.mode) != Some(self.kind) {
            return Err(Errno::EIO);
        }
        self.learn(&attributes, valid_ns);
        Ok(attributes)
    }

    fn metadata_of(&self, attributes: &FuseAttributes) -> Metadata {
        Metadata {
            device: self.session.device,
            inode: attributes.number,
            kind: self.kind,
            permissions: attributes.mode & 0o7777,
            links: attributes.links,
            uid: attributes.uid,
            gid: attributes.gid,
            special: u64::from(attributes.device),
            size: attributes.size,
            blocks: attributes.blocks,
            accessed: timestamp(attributes.accessed),
            modified: timestamp(attributes.modified),
            changed: timestamp(attributes.changed),
            born: Timestamp::default(),
        }
    }

    /// Changes attributes, the length among them by a handle if there is one.
    pub fn set_attributes(
        &self,
        change: &InodeChange,
        size: Option<u64>,
        handle: Option<u64>,
    ) -> Result<(), Errno> {
        let mut valid = 0;
        for (is_asked, bit) in [
            (change.permissions.is_some(), set::MODE),
            (change.uid.is_some(), set::UID),
            (change.gid.is_some(), set::GID),
            (size.is_some(), set::SIZE),
            (change.accessed.is_some(), set::ATIME),
            (change.modified.is_some(), set::MTIME),
            (handle.is_some(), set::FH),
        ] {
            valid |= if is_asked { bit } else { 0 };
        }
        let (accessed, modified) = (change.accessed.unwrap_or_default(), change.modified.unwrap_or_default());
        let mut message = self.message(opcode::SETATTR, 88)?;
        message.u32(valid);
        message.u32(0);
        message.u64(handle.unwrap_or(0));
        message.u64(size.unwrap_or(0));
        message.u64(0);
        message.u64(accessed.seconds.cast_unsigned());
        message.u64(modified.seconds.cast_unsigned());
        message.u64(0);
        message.u32(accessed.nanoseconds);
        message.u32(modified.nanoseconds);
        message.u32(0);
        message.u32(change.permissions.unwrap_or(0) | self.kind.mode());
        message.u32(0);
        message.u32(change.uid.unwrap_or(0));
        message.u32(change.gid.unwrap_or(0));
        message.u32(0);
        self.expire();
        let answer = self.ask(message, ATTRIBUTES_BYTES)?;
        self.learn_answer(&answer).map(drop)
    }

    /// Notes how far the directory has been listed.
    fn note_listing(&self, listing: FuseListing) {
        // A handle that is not used any more is closed without the lock.
        let before = core::mem::replace(&mut *self.listing.lock(), listing);
        drop(before);
    }

    /// Entries of a directory, from a position on.
    fn list_from(&self, handle: u64, position: u64) -> Result<Vec<u8>, Errno> {
        let mut message = self.message(opcode::READDIR, 40)?;
        message.u64(handle);
        message.u64(position);
        message.u32(LISTING_BYTES);
        message.u32(0);
        message.u64(0);
        message.u64(0);
        self.ask(message, LISTING_BYTES as usize)
    }
}

impl Drop for FuseNode {
    fn drop(&mut self) {
        // A handle must be closed before the file is forgotten.
        drop(self.created.get_mut().take());
        drop(core::mem::take(self.listing.get_mut()));
        let mut nodes = self.session.nodes.lock();
        // A newer node of this number stays.
        let removed = match nodes.get(&self.id) {
            Some(known) if known.strong_count() == 0 => nodes.remove(&self.id),
            _ => None,
        };
        drop(nodes);
        drop(removed);
        self.session.connection.forget(self.id, *self.looks.get_mut());
    }
}

impl Inode for FuseNode {
    fn keeps_entries(&self) -> bool {
        false
    }

    fn kind(&self) -> FileType {
        self.kind
    }

    fn access(&self) -> Metadata {
        let metadata = self.metadata();
        if self.connection().checks_permissions {
            return metadata;
        }
        // The server decides; nobody runs what nobody may run.
        let runs =
            if self.kind == FileType::Directory || metadata.permissions & 0o111 != 0 { 0o111 } else { 0 };
        let sticky = metadata.permissions & (linux::S_ISUID | linux::S_ISGID);
        Metadata { permissions: 0o666 | runs | sticky, ..metadata }
    }

    fn metadata(&self) -> Metadata {
        self.metadata_now().unwrap_or_else(|_| {
            let last = self.known.lock().attributes;
            let none = || Metadata { device: self.session.device, ..Metadata::anonymous(self.kind, self.id) };
            last.map_or_else(none, |last| self.metadata_of(&last))
        })
    }

    fn metadata_now(&self) -> Result<Metadata, Errno> {
        self.connection().check_caller()?;
        self.attributes().map(|attributes| self.metadata_of(&attributes))
    }

    fn statistics(&self) -> Statistics {
        let device = self.session.device;
        let none = Statistics { magic: MAGIC, blocks: 0, free: 0, nodes: 0, free_nodes: 0, device };
        let may_ask = self.connection().check_caller();
        let asked = may_ask
            .and_then(|()| self.message(opcode::STATFS, 0))
            .and_then(|message| self.ask(message, STATISTICS_BYTES));
        let Ok(answer) = asked else { return none };
        let mut reader = FuseReader::new(&answer);
        let mut next = || reader.u64().unwrap_or(0);
        let (blocks, free, _, nodes, free_nodes) = (next(), next(), next(), next(), next());
        let (_, _, block_bytes) = (reader.u32(), reader.u32(), reader.u32().unwrap_or(4096));
        let pages = |blocks: u64| blocks.saturating_mul(block_bytes.into()) / 4096;
        Statistics { blocks: pages(blocks), free: pages(free), nodes, free_nodes, ..none }
    }

    fn device(&self) -> u64 {
        self.session.device
    }

    fn lookup(&self, this: &Arc<Dentry>, name: &[u8]) -> Result<Arc<Dentry>, Errno> {
        self.connection().check_caller()?;
        let mut message = self.message(opcode::LOOKUP, name.len() + 1)?;
        message.name(name);
        let answer = self.connection().ask(message, FuseEntry::BYTES, GiveBack::Node)?;
        self.entry_of(&answer, this, name)
    }

    fn list(&self, cookie: u64, visit: &mut dyn FnMut(Listed<'_>) -> bool) -> Result<(), Errno> {
        self.connection().check_caller()?;
        let known = match &*self.listing.lock() {
            FuseListing::Over(end) if *end == cookie && cookie != 0 => return Ok(()),
            FuseListing::Open(handle) if cookie != 0 => Some(handle.clone()),
            _ => None,
        };
        // With another handle the way to the position is from the beginning.
        let mut is_before = known.is_none() && cookie != 0;
        let handle = match known {
            Some(handle) => handle,
            None => FuseHandle::open(self, linux::O_RDONLY | linux::O_DIRECTORY)?,
        };
        self.note_listing(FuseListing::Open(handle.clone()));
        let mut next = if is_before { 0 } else { cookie };
        loop {
            let entries = self.list_from(handle.number, next)?;
            let mut reader = FuseReader::new(&entries);
            let before = next;
            while let Some(entry) = FuseListed::read(&mut reader)? {
                // Positions are counted on by the caller.
                next = i64::try_from(entry.next)
                    .ok()
                    .filter(|&next| next < i64::MAX - 2)
                    .ok_or(Errno::EIO)?
                    .cast_unsigned();
                if is_before {
                    is_before = next != cookie;
                    continue;
                }
                let kind = FileType::from_mode(entry.kind << 12).unwrap_or(FileType::Regular);
                let is_shown = !matches!(entry.name, b"." | b"..");
                let name = if is_shown { entry.name } else { &[] };
                if !visit(Listed { name, inode: entry.number, kind, next }) {
                    return Ok(());
                }
            }
            if entries.is_empty() || next == before {
                self.note_listing(FuseListing::Over(next));
                return Ok(());
            }
        }
    }

    fn create(&self, this: &Arc<Dentry>, name: &[u8], creation: &Creation<'_>) -> Result<Arc<Dentry>, Errno> {
        self.create_name(this, name, creation)
    }

    fn link(&self, _: &Arc<Dentry>, name: &[u8], node: &Arc<dyn Inode>) -> Result<(), Errno> {
        self.link_name(name, node)
    }

    fn unlink(&self, entry: &Arc<Dentry>) -> Result<(), Errno> {
        self.unlink_name(entry)
    }

    fn rename(&self, entry: &Arc<Dentry>, to: &Arc<Dentry>, name: &[u8], how: Rename) -> Result<(), Errno> {
        self.rename_name(entry, to, name, how)
    }

    fn follow(&self, _: Option<&Arc<Thread>>) -> Result<LinkTarget, Errno> {
        if self.kind != FileType::Symlink {
            return Err(Errno::EINVAL);
        }
        let target = self.ask(self.message(opcode::READLINK, 0)?, TARGET_MAX)?;
        Ok(LinkTarget::Text(target))
    }

    fn change(&self, change: &InodeChange) -> Result<(), Errno> {
        self.connection().check_caller()?;
        self.set_attributes(change, None, None)
    }

    fn served_attributes(&self) -> Option<&dyn ServedAttributes> {
        Some(self)
    }

    fn locks(&self, _: bool) -> Result<Option<&FileLocks>, Errno> {
        Ok(Some(&self.locks))
    }

    fn open(self: Arc<Self>, opening: &Opening<'_>) -> Result<Arc<dyn File>, Errno> {
        self.connection().check_caller()?;
        file::open(self, opening)
    }
}
