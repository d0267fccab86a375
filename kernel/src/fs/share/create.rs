//! New files of shared folders.

use alloc::sync::Arc;

use heddle_abi::control::SpecialFile;
use heddle_kernel_core::ninep::{MessageWriter, kind, set};
use linux_raw_sys::general as linux;

use crate::device::share::GiveUp;
use crate::error::Errno;
use crate::fs::Dentry;
use crate::fs::inode::{Contents, Creation, InodeChange};
use crate::fs::share::asking::attributes;
use crate::fs::share::kept::VALID_NS;
use crate::fs::share::node::{SharedNode, storable};
use crate::fs::share::special;

/// The user as whom the host was told that the requests are made.
const SERVER_UID: u32 = 0;

impl SharedNode {
    /// Creates a FIFO or a socket in this directory.
    fn create_special(
        &self,
        this: &Arc<Dentry>,
        name: &[u8],
        mode: u32,
        owner: (u32, u32),
    ) -> Result<(), Errno> {
        let asked = self.tell(kind::MKNOD, |writer| {
            writer.string(name);
            for field in [mode, 0, 0, owner.1] {
                writer.u32(field);
            }
        });
        match asked {
            Err(Errno::ENXIO) => {
                let folder = self.server().folder;
                let fields = SpecialFile { number: 0, folder, mode, owner: Some(owner), path: b"" };
                special::ask(special::path(this, name)?, fields)
            }
            result => result,
        }
    }

    /// Gives a FIFO or a socket other permissions.
    pub(super) fn change_special(&self, permissions: u32) -> Result<(), Errno> {
        let entry = self.entry.lock().upgrade().ok_or(Errno::ENOENT)?;
        let directory = entry.parent().ok_or(Errno::ENOENT)?;
        let mode = self.kind.mode() | permissions;
        let fields = SpecialFile { number: 0, folder: self.server().folder, mode, owner: None, path: b"" };
        special::ask(special::path(&directory, &entry.name()?)?, fields)
    }

    /// Makes a user the owner of what it has just created. A host that runs the machine as an ordinary user owns all
    /// that is made here, and refuses.
    fn give_to(&self, uid: u32) {
        if uid != SERVER_UID {
            let change = InodeChange { uid: Some(uid), ..InodeChange::default() };
            let _ = self.set_attributes(set::UID, &change, 0);
        }
    }

    /// Has the host create a file in this directory.
    pub(super) fn ask_to_create(
        &self,
        this: &Arc<Dentry>,
        name: &[u8],
        creation: &Creation<'_>,
    ) -> Result<Arc<Dentry>, Errno> {
        let is_directory = matches!(creation.contents, Contents::Directory);
        let permissions = storable(creation.permissions, is_directory);
        let gid = creation.credentials.fsgid;
        let mut opened = None;
        if !self.state.was_heard_of(VALID_NS) {
            // If the host hangs, then in a walk, as everywhere.
            match self.fid.walk(name) {
                Ok(_) => return Err(Errno::EEXIST),
                Err(Errno::ENOENT) => {}
                Err(error) => return Err(error),
            }
        }
        let began = self.server().next_moment();
        match creation.contents {
            Contents::Regular => {
                // The handle becomes the new file's, opened; a node wants one that is not.
                let fid = self.fid.again()?;
                let write = |writer: &mut MessageWriter<'_>| {
                    writer.u32(fid.number);
                    writer.string(name);
                    writer.u32(linux::O_RDWR | linux::O_CREAT | linux::O_EXCL);
                    writer.u32(permissions);
                    writer.u32(gid);
                };
                self.server().call(kind::CREATE, write, |_| Ok(()))?;
                opened = Some(fid);
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
            Contents::Fifo | Contents::Socket => {
                let kind = if matches!(creation.contents, Contents::Fifo) {
                    linux::S_IFIFO
                } else {
                    linux::S_IFSOCK
                };
                self.create_special(this, name, kind | permissions, (creation.credentials.fsuid, gid))?;
            }
            Contents::Device(..) => return Err(Errno::EPERM),
        }
        let question = self.server().question();
        let fid = self.fid.walk(name)?;
        // It may have the number of a file that the host has removed.
        let attributes = attributes(GiveUp::Forget, &fid, false)?;
        self.server().forget(attributes.number, began);
        let made = Self::with_attributes(fid, &question, &attributes)?;
        *made.created.lock() = opened;
        made.give_to(creation.credentials.fsuid);
        made.entry_at(this, name)
    }
}
