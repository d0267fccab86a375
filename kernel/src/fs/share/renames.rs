//! Changes of names: links, removals and renames.

use alloc::sync::Arc;

use heddle_kernel_core::ninep::kind;
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::dentry::copy_name;
use crate::fs::inode::{Inode, Rename};
use crate::fs::share::handle::NameLoss;
use crate::fs::share::node::SharedNode;
use crate::fs::share::state::Outcome;
use crate::fs::{Dentry, FileType};

impl SharedNode {
    /// Has the host change the name `name` in this directory, and notes what has become of it.
    fn change_name(
        &self,
        name: &[u8],
        outcome: Outcome<'_>,
        ask: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let began = self.state.change(self.server());
        match ask() {
            Ok(()) => {
                self.state.changed_name(self.server(), began, name, outcome);
            }
            Err(error) => {
                self.state.changed_name(self.server(), began, name, Outcome::Unknown);
                if error == Errno::EINTR {
                    // It may still happen.
                    self.state.doubt(self.server());
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Has the host move a name, and notes what has become of both.
    fn change_both(&self, name: &[u8], to: (&Self, &[u8]), entry: &Arc<Dentry>) -> Result<(), Errno> {
        let (server, (target, new_name)) = (self.server(), to);
        let is_same = Arc::ptr_eq(&self.state, &target.state);
        let began = self.state.change(server);
        let began_there = if is_same { began } else { target.state.change(server) };
        let renamed = self.tell(kind::RENAMEAT, |writer| {
            writer.string(name);
            writer.u32(target.fid.number);
            writer.string(new_name);
        });
        let (here, there) = match renamed {
            Ok(()) => (Outcome::Absent, Outcome::Present(entry)),
            Err(_) => (Outcome::Unknown, Outcome::Unknown),
        };
        let after = self.state.changed_name(server, began, name, here);
        let began_there = if is_same { after } else { began_there };
        target.state.changed_name(server, began_there, new_name, there);
        if renamed == Err(Errno::EINTR) {
            // It may still happen.
            self.state.doubt(server);
            target.state.doubt(server);
        }
        renamed
    }

    /// Gives a file a name in this directory.
    pub(super) fn add_name(&self, name: &[u8], node: &Self) -> Result<(), Errno> {
        self.refresh()?;
        node.probe_if_old()?;
        node.state.change(self.server());
        // The entry of the new name is made when it is looked up.
        self.change_name(name, Outcome::Other, || {
            self.tell(kind::LINK, |writer| {
                writer.u32(node.fid.number);
                writer.string(name);
            })
        })?;
        node.state.count_name(self.server(), true);
        Ok(())
    }

    /// Takes a file's name in this directory away.
    pub(super) fn remove_name(&self, entry: &Arc<Dentry>, node: &Self) -> Result<(), Errno> {
        let name = entry.name()?;
        let flags = if node.kind == FileType::Directory { linux::AT_REMOVEDIR } else { 0 };
        self.refresh()?;
        node.probe_if_old()?;
        let loss = NameLoss::begin(node);
        node.state.change(self.server());
        let removed = self.change_name(&name, Outcome::Absent, || {
            self.tell(kind::UNLINKAT, |writer| {
                writer.string(&name);
                writer.u32(flags);
            })
        });
        loss.end(&removed);
        removed?;
        entry.mark_removed();
        node.state.count_name(self.server(), false);
        Ok(())
    }

    /// Moves a name of this directory, as [`Inode::rename`].
    pub(super) fn move_name(
        &self,
        entry: &Arc<Dentry>,
        to: &Arc<Dentry>,
        name: &[u8],
        how: Rename,
    ) -> Result<(), Errno> {
        let target = self.sibling(&to.node)?;
        let (old_name, new_name) = (entry.name()?, copy_name(name)?);
        self.refresh()?;
        target.refresh()?;
        match how {
            Rename::Replace => {}
            // The protocol has no such rename; between this look and the rename the host may have made the name.
            Rename::Keep => match target.fid.walk(name) {
                Ok(_) => return Err(Errno::EEXIST),
                Err(Errno::ENOENT) => {}
                Err(error) => return Err(error),
            },
            Rename::Exchange => return Err(Errno::EINVAL),
        }
        let replaced = match target.lookup(to, name) {
            Ok(replaced) => Some(replaced),
            Err(Errno::ENOENT) => None,
            Err(error) => return Err(error),
        };
        let replaced_node = replaced.as_ref().map(|entry| self.sibling(&entry.node)).transpose()?;
        let moved = self.sibling(&entry.node)?;
        moved.probe_if_old()?;
        let mut loss = None;
        if let Some(node) = &replaced_node {
            if node.number == moved.number {
                // Two names of one file: nothing is to be done, as rename(2) says.
                return Ok(());
            }
            loss = Some(NameLoss::begin(node));
            node.state.change(self.server());
        }
        moved.state.change(self.server());
        let renamed = self.change_both(&old_name, (&target, name), entry);
        if let Some(loss) = loss {
            loss.end(&renamed);
        }
        renamed?;
        drop(entry.set_position(to.clone(), new_name));
        moved.state.change(self.server());
        // Announcements of the host may be on their way with the old path.
        if moved.kind == FileType::Directory {
            self.server().distrust();
        } else {
            moved.state.expire(self.server());
        }
        if let (Some(entry), Some(node)) = (&replaced, &replaced_node) {
            entry.mark_removed();
            node.state.count_name(self.server(), false);
        }
        Ok(())
    }
}
