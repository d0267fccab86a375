//! Files and directories of a shared folder.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;

use heddle_kernel_core::ninep::{Attributes, GETATTR_BASIC, MessageWriter, Reader, kind, set};
use linux_raw_sys::general as linux;

use crate::device::share::GiveUp;
use crate::error::Errno;
use crate::fs::dentry::copy_name;
use crate::fs::inode::{
    Contents, Creation, Inode, InodeChange, LinkTarget, Listed, Metadata, Opening, Rename, Statistics,
    Timestamp,
};
use crate::fs::lock::FileLocks;
use crate::fs::share::file::SharedFile;
use crate::fs::share::state::FileState;
use crate::fs::share::{CHUNK, Fid};
use crate::fs::{Dentry, File, FileType, StatusFlags};
use crate::memory::fallible;
use crate::process::Thread;

/// A file, by a handle that is never opened.
pub struct SharedNode {
    pub(super) fid: Fid,
    kind: FileType,
    number: u64,
    /// The file's state, from the first time that this node needed it.
    state: spin::Once<Arc<FileState>>,
}

fn timestamp((seconds, nanoseconds): (u64, u64)) -> Timestamp {
    Timestamp { seconds: seconds as i64, nanoseconds: (nanoseconds % 1_000_000_000) as u32 }
}

impl SharedNode {
    /// The node of a handle.
    pub(super) fn new(fid: Fid) -> Result<Arc<Self>, Errno> {
        let attributes = attributes(&fid)?;
        let kind = FileType::from_mode(attributes.mode).ok_or(Errno::EIO)?;
        fallible::try_arc(Self { fid, kind, number: attributes.number, state: spin::Once::new() })
    }

    /// Another node as one of this folder.
    fn sibling(&self, node: &Arc<dyn Inode>) -> Result<Arc<Self>, Errno> {
        let any: Arc<dyn Any + Send + Sync> = node.clone();
        let other: Arc<Self> = any.downcast().map_err(|_| Errno::EXDEV)?;
        if Arc::ptr_eq(&other.fid.server, &self.fid.server) { Ok(other) } else { Err(Errno::EXDEV) }
    }

    /// The file's state.
    pub(super) fn state(&self) -> Result<&Arc<FileState>, Errno> {
        if let Some(state) = self.state.get() {
            return Ok(state);
        }
        let state = self.fid.server.state_of(self.number, true)?.ok_or(Errno::ENOMEM)?;
        Ok(self.state.call_once(|| state))
    }

    /// Device and inode number.
    pub(super) fn identity(&self) -> (u64, u64) {
        (self.fid.server.device, self.number)
    }

    /// A request about this file whose reply says nothing.
    fn tell(&self, request: u8, rest: impl FnOnce(&mut MessageWriter<'_>)) -> Result<(), Errno> {
        let write = |writer: &mut MessageWriter<'_>| {
            writer.u32(self.fid.number);
            rest(writer);
        };
        self.fid.server.call(request, write, |_| Ok(()))
    }

    fn set_attributes(&self, valid: u32, change: &InodeChange, size: u64) -> Result<(), Errno> {
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

    /// Changes the length.
    pub(super) fn truncate(&self, size: u64) -> Result<(), Errno> {
        self.set_attributes(set::SIZE, &InodeChange::default(), size)
    }

    /// The length in bytes.
    pub(super) fn size(&self) -> Result<u64, Errno> {
        Ok(attributes(&self.fid)?.size)
    }

    /// The length in bytes; a thread that is killed waits for the answer all the same, because it has pages to store.
    pub(super) fn size_for_sure(&self) -> Result<u64, Errno> {
        Ok(attributes_or(GiveUp::Never, &self.fid)?.size)
    }
}

impl SharedNode {
    /// Creates a FIFO or a socket in this directory.
    fn create_node(&self, name: &[u8], mode: u32, gid: u32) -> Result<(), Errno> {
        self.tell(kind::MKNOD, |writer| {
            writer.string(name);
            for field in [mode, 0, 0, gid] {
                writer.u32(field);
            }
        })
    }

    /// Makes a user the owner of what it has just created. A host that runs the machine as an ordinary user owns all
    /// that is made here, and refuses.
    fn give_to(&self, uid: u32) {
        if uid != SERVER_UID {
            let change = InodeChange { uid: Some(uid), ..InodeChange::default() };
            let _ = self.set_attributes(set::UID, &change, 0);
        }
    }
}

/// The user as whom the host was told that the requests are made.
const SERVER_UID: u32 = 0;

/// Permissions as they are stored on the host: a program of the guest must not leave one there that runs with the
/// rights of the host's user. The bit of a directory only says which group its files get.
const fn storable(permissions: u32, is_directory: bool) -> u32 {
    permissions & !if is_directory { linux::S_ISUID } else { linux::S_ISUID | linux::S_ISGID }
}

fn attributes(fid: &Fid) -> Result<Attributes, Errno> {
    attributes_or(GiveUp::Forget, fid)
}

fn attributes_or(give_up: GiveUp, fid: &Fid) -> Result<Attributes, Errno> {
    let write = |writer: &mut MessageWriter<'_>| {
        writer.u32(fid.number);
        writer.u64(GETATTR_BASIC);
    };
    fid.server.call_or(give_up, kind::GETATTR, write, Attributes::read)
}

impl Inode for SharedNode {
    fn keeps_entries(&self) -> bool {
        false
    }

    fn kind(&self) -> FileType {
        self.kind
    }

    fn metadata(&self) -> Metadata {
        let device = self.fid.server.device;
        // The host may have removed it; what is left is what it was.
        let Ok(attributes) = attributes(&self.fid) else {
            return Metadata { device, links: 0, ..Metadata::anonymous(self.kind, self.number) };
        };
        Metadata {
            device,
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

    fn statistics(&self) -> Statistics {
        let read = |reader: &mut Reader<'_>| {
            let (magic, block_bytes) = (reader.u32()?, u64::from(reader.u32()?));
            let (blocks, _, free) = (reader.u64()?, reader.u64()?, reader.u64()?);
            let (nodes, free_nodes) = (reader.u64()?, reader.u64()?);
            let pages = |blocks: u64| blocks.saturating_mul(block_bytes) / 4096;
            let (blocks, free) = (pages(blocks), pages(free));
            Ok(Statistics { magic, blocks, free, nodes, free_nodes, device: self.fid.server.device })
        };
        let asked = self.fid.server.call(kind::STATFS, |writer| writer.u32(self.fid.number), read);
        let magic = linux::V9FS_MAGIC;
        let device = self.fid.server.device;
        asked.unwrap_or(Statistics { magic, blocks: 0, free: 0, nodes: 0, free_nodes: 0, device })
    }

    fn lookup(&self, this: &Arc<Dentry>, name: &[u8]) -> Result<Arc<Dentry>, Errno> {
        Dentry::new(Self::new(self.fid.walk(Some(name))?)?, Some(this.clone()), name)
    }

    fn list(&self, cookie: u64, visit: &mut dyn FnMut(Listed<'_>) -> bool) -> Result<(), Errno> {
        let server = &self.fid.server;
        let open = self.fid.walk(None)?;
        let flags = linux::O_RDONLY | linux::O_DIRECTORY;
        let write = |writer: &mut MessageWriter<'_>| {
            writer.u32(open.number);
            writer.u32(flags);
        };
        server.call(kind::OPEN, write, |_| Ok(()))?;
        let mut next = cookie;
        loop {
            let write = |writer: &mut MessageWriter<'_>| {
                writer.u32(open.number);
                writer.u64(next);
                writer.u32(CHUNK as u32);
            };
            // Copied, because `visit` may ask the server too.
            let read = |reader: &mut Reader<'_>| {
                let length = reader.u32()? as usize;
                Ok(fallible::try_to_vec(reader.bytes(length)?))
            };
            let listing: Vec<u8> = server.call(kind::READDIR, write, read)??;
            if listing.is_empty() {
                return Ok(());
            }
            let mut reader = Reader::of_fields(&listing);
            while !reader.is_empty() {
                let entry =
                    heddle_kernel_core::ninep::DirectoryEntry::read(&mut reader).map_err(Errno::from)?;
                next = entry.next;
                if matches!(entry.name, b"." | b"..") {
                    continue;
                }
                let kind = FileType::from_mode(u32::from(entry.kind) << 12).unwrap_or(FileType::Regular);
                let listed = Listed { name: entry.name, inode: entry.number, kind, next: entry.next };
                if !visit(listed) {
                    return Ok(());
                }
            }
        }
    }

    fn create(&self, this: &Arc<Dentry>, name: &[u8], creation: &Creation<'_>) -> Result<Arc<Dentry>, Errno> {
        let is_directory = matches!(creation.contents, Contents::Directory);
        let permissions = storable(creation.permissions, is_directory);
        let gid = creation.credentials.fsgid;
        match creation.contents {
            Contents::Regular => {
                // The handle becomes the new file's, opened; a node wants one that is not.
                let fid = self.fid.walk(None)?;
                let write = |writer: &mut MessageWriter<'_>| {
                    writer.u32(fid.number);
                    writer.string(name);
                    writer.u32(linux::O_RDWR | linux::O_CREAT | linux::O_EXCL);
                    writer.u32(permissions);
                    writer.u32(gid);
                };
                self.fid.server.call(kind::CREATE, write, |_| Ok(()))?;
            }
            Contents::Directory => self.tell(kind::MKDIR, |writer| {
                writer.string(name);
                writer.u32(permissions);
                writer.u32(gid);
            })?,
            Contents::Symlink(target) => self.tell(kind::SYMLINK, |writer| {
                writer.string(name);
                writer.string(target);
                writer.u32(gid);
            })?,
            Contents::Fifo => self.create_node(name, linux::S_IFIFO | permissions, gid)?,
            Contents::Socket => self.create_node(name, linux::S_IFSOCK | permissions, gid)?,
            Contents::Device(..) => return Err(Errno::EPERM),
        }
        let entry = self.lookup(this, name)?;
        let made = self.sibling(&entry.node)?;
        if matches!(creation.contents, Contents::Fifo | Contents::Socket) {
            self.fid.server.forget(made.number);
        }
        made.give_to(creation.credentials.fsuid);
        Ok(entry)
    }

    fn link(&self, _: &Arc<Dentry>, name: &[u8], node: &Arc<dyn Inode>) -> Result<(), Errno> {
        let node = self.sibling(node)?;
        self.tell(kind::LINK, |writer| {
            writer.u32(node.fid.number);
            writer.string(name);
        })
    }

    fn unlink(&self, entry: &Arc<Dentry>) -> Result<(), Errno> {
        let name = entry.name()?;
        let flags = if entry.node.kind() == FileType::Directory { linux::AT_REMOVEDIR } else { 0 };
        self.tell(kind::UNLINKAT, |writer| {
            writer.string(&name);
            writer.u32(flags);
        })?;
        entry.mark_removed();
        Ok(())
    }

    fn rename(&self, entry: &Arc<Dentry>, to: &Arc<Dentry>, name: &[u8], how: Rename) -> Result<(), Errno> {
        let target = self.sibling(&to.node)?;
        let (old_name, new_name) = (entry.name()?, copy_name(name)?);
        match how {
            Rename::Replace => {}
            // The protocol has no such rename; between this look and the rename the host may have made the name.
            Rename::Keep if target.fid.walk(Some(name)).is_ok() => return Err(Errno::EEXIST),
            Rename::Keep => {}
            Rename::Exchange => return Err(Errno::EINVAL),
        }
        self.tell(kind::RENAMEAT, |writer| {
            writer.string(&old_name);
            writer.u32(target.fid.number);
            writer.string(name);
        })?;
        drop(entry.set_position(to.clone(), new_name));
        Ok(())
    }

    fn follow(&self, _: Option<&Arc<Thread>>) -> Result<LinkTarget, Errno> {
        if self.kind != FileType::Symlink {
            return Err(Errno::EINVAL);
        }
        let read = |reader: &mut Reader<'_>| Ok(fallible::try_to_vec(reader.string()?));
        let write = |writer: &mut MessageWriter<'_>| writer.u32(self.fid.number);
        Ok(LinkTarget::Text(self.fid.server.call(kind::READLINK, write, read)??))
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
        if valid == 0 { Ok(()) } else { self.set_attributes(valid, change, 0) }
    }

    fn locks(&self, make: bool) -> Result<Option<&FileLocks>, Errno> {
        if make {
            return Ok(Some(&self.state()?.locks));
        }
        if self.state.get().is_none() {
            let Some(state) = self.fid.server.state_of(self.number, false)? else { return Ok(None) };
            self.state.call_once(|| state);
        }
        Ok(self.state.get().map(|state| &state.locks))
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
            FileType::Fifo => return self.state()?.pipe()?.open_end(opening.flags),
            _ => return Err(Errno::ENXIO),
        }
        let fid = self.fid.walk(None)?;
        let access = match opening.flags {
            flags if flags.contains(StatusFlags::EXECUTE) => linux::O_RDONLY,
            flags => flags.bits() & linux::O_ACCMODE,
        };
        let write = |writer: &mut MessageWriter<'_>| {
            writer.u32(fid.number);
            writer.u32(access);
        };
        fid.server.call(kind::OPEN, write, |_| Ok(()))?;
        let fid = fallible::try_arc(fid)?;
        let stores = opening.flags.contains(StatusFlags::RDWR);
        let file = fallible::try_arc(SharedFile::regular(self.clone(), fid, stores))?;
        // Last, because nobody would take it back.
        if opening.flags.contains(StatusFlags::EXECUTE) {
            self.state()?.begin_executing()?;
        } else if opening.flags.intersects(StatusFlags::WRONLY | StatusFlags::RDWR) {
            self.state()?.begin_writing()?;
        }
        Ok(file)
    }
}
