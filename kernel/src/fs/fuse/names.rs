//! Changes of names: files that are made, links, removals and renames.

use alloc::sync::Arc;

use heddle_kernel_core::fuse::{FuseEntry, FuseReader, opcode};
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::dentry::copy_name;
use crate::fs::fuse::connection::GiveBack;
use crate::fs::fuse::file::{FuseHandle, OPENED_BYTES};
use crate::fs::fuse::node::{FuseNode, fuse_node};
use crate::fs::inode::{Contents, Creation, Inode, Rename};
use crate::fs::lookup::paced;
use crate::fs::{Dentry, FileType};
use crate::process::detour::with_thread_here;

impl FuseNode {
    /// The directory entry that the server's answer is about.
    pub(super) fn entry_of(
        &self,
        answer: &[u8],
        directory: &Arc<Dentry>,
        name: &[u8],
    ) -> Result<Arc<Dentry>, Errno> {
        let entry = FuseEntry::read(&mut FuseReader::new(answer))?;
        if entry.node == 0 {
            return Err(Errno::ENOENT);
        }
        let node = Self::of_entry(&self.session, &entry)?;
        Dentry::new(node, Some(directory.clone()), name)
    }

    pub(super) fn create_name(
        &self,
        this: &Arc<Dentry>,
        name: &[u8],
        creation: &Creation<'_>,
    ) -> Result<Arc<Dentry>, Errno> {
        self.connection().check_caller()?;
        self.expire();
        let mode = creation.permissions;
        let (kind, device) = match creation.contents {
            Contents::Regular => match self.create_opened(this, name, mode) {
                // Without it, a file is made and then opened.
                Err(Errno::ENOSYS) => (linux::S_IFREG, 0),
                made => return made,
            },
            Contents::Directory => {
                let mut message = self.message(opcode::MKDIR, 8 + name.len() + 1)?;
                message.u32(mode);
                message.u32(0);
                message.name(name);
                let answer = self.connection().ask(message, FuseEntry::BYTES, GiveBack::Node)?;
                return self.entry_of(&answer, this, name);
            }
            Contents::Symlink(target) => {
                let mut message = self.message(opcode::SYMLINK, name.len() + target.len() + 2)?;
                message.name(name);
                message.name(target);
                let answer = self.connection().ask(message, FuseEntry::BYTES, GiveBack::Node)?;
                return self.entry_of(&answer, this, name);
            }
            Contents::Device(kind, number) => {
                (kind.mode(), u32::try_from(number).map_err(|_| Errno::EINVAL)?)
            }
            Contents::Fifo => (linux::S_IFIFO, 0),
            Contents::Socket => (linux::S_IFSOCK, 0),
        };
        let mut message = self.message(opcode::MKNOD, 16 + name.len() + 1)?;
        message.u32(kind | mode);
        message.u32(device);
        message.u64(0);
        message.name(name);
        let answer = self.connection().ask(message, FuseEntry::BYTES, GiveBack::Node)?;
        self.entry_of(&answer, this, name)
    }

    /// Makes a regular file, which the server opens at once for whoever opens it first.
    fn create_opened(&self, this: &Arc<Dentry>, name: &[u8], mode: u32) -> Result<Arc<Dentry>, Errno> {
        let flags = linux::O_RDWR | linux::O_CREAT | linux::O_EXCL;
        let mut message = self.message(opcode::CREATE, 16 + name.len() + 1)?;
        message.u32(flags);
        message.u32(linux::S_IFREG | mode);
        message.u64(0);
        message.name(name);
        let most = FuseEntry::BYTES + OPENED_BYTES;
        let answer = self.connection().ask(message, most, GiveBack::Created)?;
        let entry = self.entry_of(&answer, this, name)?;
        let node = fuse_node(&entry.node)?;
        let opened = answer.get(FuseEntry::BYTES..).ok_or(Errno::EIO)?;
        let handle = FuseHandle::of_answer(&node, opened, linux::O_RDWR)?;
        let maker = with_thread_here(|thread| thread.tid()).unwrap_or(0);
        let before = node.created.lock().replace((maker, handle));
        drop(before);
        Ok(entry)
    }

    pub(super) fn link_name(&self, name: &[u8], node: &Arc<dyn Inode>) -> Result<(), Errno> {
        self.connection().check_caller()?;
        let node = fuse_node(node)?;
        if !Arc::ptr_eq(&node.session, &self.session) {
            return Err(Errno::EXDEV);
        }
        let mut message = self.message(opcode::LINK, 8 + name.len() + 1)?;
        message.u64(node.id);
        message.name(name);
        let answer = self.connection().ask(message, FuseEntry::BYTES, GiveBack::Node)?;
        self.expire();
        let entry = FuseEntry::read(&mut FuseReader::new(&answer))?;
        // The look that the answer counts is the node's, or given back.
        drop(Self::of_entry(&self.session, &entry)?);
        Ok(())
    }

    pub(super) fn unlink_name(&self, entry: &Arc<Dentry>) -> Result<(), Errno> {
        self.connection().check_caller()?;
        let node = fuse_node(&entry.node)?;
        let name = entry.name()?;
        let is_directory = node.kind() == FileType::Directory;
        let opcode = if is_directory { opcode::RMDIR } else { opcode::UNLINK };
        let mut message = self.message(opcode, name.len() + 1)?;
        message.name(&name);
        self.ask(message, 0)?;
        entry.mark_removed();
        self.expire();
        node.expire();
        Ok(())
    }

    pub(super) fn rename_name(
        &self,
        entry: &Arc<Dentry>,
        to: &Arc<Dentry>,
        name: &[u8],
        how: Rename,
    ) -> Result<(), Errno> {
        self.connection().check_caller()?;
        let target = fuse_node(&to.node)?;
        if !Arc::ptr_eq(&target.session, &self.session) {
            return Err(Errno::EXDEV);
        }
        if to.is_in_by_steps(entry, paced())? {
            return Err(Errno::EINVAL);
        }
        let (old_name, new_name) = (entry.name()?, copy_name(name)?);
        let room = 16 + old_name.len() + name.len() + 2;
        let flags = match how {
            Rename::Replace => 0,
            Rename::Keep => linux::RENAME_NOREPLACE,
            Rename::Exchange => linux::RENAME_EXCHANGE,
        };
        let mut message = self.message(if flags == 0 { opcode::RENAME } else { opcode::RENAME2 }, room)?;
        message.u64(target.id);
        if flags != 0 {
            message.u32(flags);
            message.u32(0);
        }
        message.name(&old_name);
        message.name(name);
        match self.ask(message, 0) {
            // A server that knows no flags.
            Err(Errno::ENOSYS) if flags != 0 => return Err(Errno::EINVAL),
            answer => drop(answer?),
        }
        drop(entry.set_position(to.clone(), new_name));
        for node in [self, &*target, &*fuse_node(&entry.node)?] {
            node.expire();
        }
        Ok(())
    }
}
