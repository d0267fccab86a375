//! Renames in an overlay: all of it is copied to the upper layer first, and happens there.

use alloc::sync::Arc;

use crate::error::Errno;
use crate::fs::Dentry;
use crate::fs::dentry::copy_name;
use crate::fs::inode::{FileType, Inode, Rename};
use crate::fs::overlay::copy_up::copy_up;
use crate::fs::overlay::names::{WHITEOUT, discard, look};
use crate::fs::overlay::node::OverlayNode;
use crate::fs::overlay::overlay_node;

impl OverlayNode {
    pub(super) fn rename_name(
        &self,
        entry: &Arc<Dentry>,
        to: &Arc<Dentry>,
        name: &[u8],
        how: Rename,
    ) -> Result<(), Errno> {
        let (node, target) = (overlay_node(&entry.node)?, overlay_node(&to.node)?);
        if !Arc::ptr_eq(&target.overlay, &self.overlay) || node.is_fixed() {
            return Err(Errno::EXDEV);
        }
        copy_up(&node, u64::MAX)?;
        let (source_upper, target_upper) = (copy_up(self, u64::MAX)?, copy_up(&target, u64::MAX)?);
        let other = match target.entry_of(to, name) {
            Ok(other) => Some(other),
            Err(Errno::ENOENT) => None,
            Err(error) => return Err(error),
        };
        if let Some(other) = &other {
            prepare_target(&node, other, how)?;
        }
        let from = entry.parent().ok_or(Errno::EINVAL)?;
        let changes = self.overlay.changes.lock_killably().ok_or(Errno::EINTR)?;
        let old_name = self.current_name(entry)?;
        if to.is_removed() {
            return Err(Errno::ENOENT);
        }
        if to.is_at_or_below(entry) || other.as_ref().is_some_and(|other| from.is_at_or_below(other)) {
            let is_circle = to.is_at_or_below(entry) || how == Rename::Exchange;
            return Err(if is_circle { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        let moving = Moving {
            from: (self, &from, &source_upper, &old_name),
            to: (&target, to, &target_upper, name),
            entry,
            node: &node,
        };
        let old = match (other, how) {
            (Some(_), Rename::Keep) => return Err(Errno::EEXIST),
            (None, Rename::Exchange) => return Err(Errno::ENOENT),
            (Some(other), Rename::Exchange) => return moving.exchange(&other),
            (Some(other), _) if moving.is_same(&other) => return Ok(()),
            (other, _) => moving.replace(other)?,
        };
        drop(changes);
        if let Some(old) = old {
            discard(&self.overlay, &old);
        }
        Ok(())
    }

    /// A directory that is not in the upper layer alone keeps its name.
    fn is_fixed(&self) -> bool {
        self.kind() == FileType::Directory && !self.lowers.is_empty()
    }
}

/// Checks and copies the holder of a rename's new name, before the names are locked.
fn prepare_target(node: &OverlayNode, other: &Arc<Dentry>, how: Rename) -> Result<(), Errno> {
    let other = overlay_node(&other.node)?;
    if how == Rename::Exchange {
        if other.is_fixed() {
            return Err(Errno::EXDEV);
        }
        return copy_up(&other, u64::MAX).map(drop);
    }
    match (node.kind() == FileType::Directory, other.kind() == FileType::Directory) {
        _ if how == Rename::Keep => Err(Errno::EEXIST),
        (true, false) => Err(Errno::ENOTDIR),
        (false, true) => Err(Errno::EISDIR),
        (true, true) => other.check_empty(),
        (false, false) => Ok(()),
    }
}

/// A place of a rename: the directory, its entry, its entry in the upper layer, and the name.
type Place<'a> = (&'a OverlayNode, &'a Arc<Dentry>, &'a Arc<Dentry>, &'a [u8]);

/// A rename, with the changes locked and all of it in the upper layer.
struct Moving<'a> {
    from: Place<'a>,
    to: Place<'a>,
    entry: &'a Arc<Dentry>,
    node: &'a OverlayNode,
}

impl Moving<'_> {
    /// Whether both are names of one file.
    fn is_same(&self, other: &Arc<Dentry>) -> bool {
        let Ok(other) = overlay_node(&other.node) else { return false };
        match (self.node.upper.get(), other.upper.get()) {
            (Some(one), Some(two)) => Arc::ptr_eq(&one.node, &two.node),
            _ => false,
        }
    }

    fn own(&self) -> Result<Arc<Dentry>, Errno> {
        let (_, _, upper, name) = self.from;
        look(upper, name)?.ok_or(Errno::ENOENT)
    }

    /// A directory that comes where a lower layer has one of its name hides that.
    fn hide_below(&self, (directory, _, _, name): Place<'_>, moved: &Arc<Dentry>) -> Result<(), Errno> {
        if moved.node.kind() == FileType::Directory && directory.is_below(name)? {
            directory.overlay.make_opaque(moved)?;
        }
        Ok(())
    }

    fn replace(&self, other: Option<Arc<Dentry>>) -> Result<Option<Arc<Dentry>>, Errno> {
        let (source, _, _, old_name) = self.from;
        let (target, to, _, name) = self.to;
        let (own, copied) = (self.own()?, copy_name(name)?);
        let replaced = other.as_ref().map(|other| overlay_node(&other.node)).transpose()?;
        if let Some(replaced) = replaced.as_ref().filter(|replaced| replaced.kind() == FileType::Directory) {
            replaced.check_still_empty()?;
        }
        self.hide_below(self.to, &own)?;
        // The cover of a lower file of the old name is made first, since a lack of memory must not bring that back.
        let work = source.overlay.work.as_ref().ok_or(Errno::EROFS)?;
        let whiteout = if source.is_below(old_name)? {
            Some(work.node.create(work, &source.overlay.copy_name()?, &WHITEOUT)?)
        } else {
            None
        };
        let old = self.exchange_in(work, &own, whiteout.as_ref()).inspect_err(|_| {
            if let Some(whiteout) = &whiteout {
                let _ = work.node.unlink(whiteout);
            }
        })?;
        if let (Some(other), Some(replaced)) = (&other, &replaced) {
            other.mark_removed();
            replaced.lost_name();
        }
        source.children.lock().hide(old_name);
        let before = self.entry.set_position(to.clone(), copied);
        drop(before);
        target.children.lock().keep(name, self.entry)?;
        target.show(name, self.entry);
        Ok(old)
    }

    /// Moves the entry of the upper layer to its new name, and what is there to the working directory, which is
    /// returned; the whiteout, if any, to the old name. Each step can be taken back.
    fn exchange_in(
        &self,
        work: &Arc<Dentry>,
        own: &Arc<Dentry>,
        whiteout: Option<&Arc<Dentry>>,
    ) -> Result<Option<Arc<Dentry>>, Errno> {
        let (source, _, source_upper, old_name) = self.from;
        let (_, _, target_upper, name) = self.to;
        let old = look(target_upper, name)?;
        let how = if old.is_some() { Rename::Exchange } else { Rename::Keep };
        let spare = source.overlay.copy_name()?;
        source_upper.node.rename(own, target_upper, name, how)?;
        let cleared = match (&old, whiteout) {
            (_, Some(whiteout)) => work.node.rename(whiteout, source_upper, old_name, how),
            (Some(old), None) => source_upper.node.rename(old, work, &spare, Rename::Keep),
            (None, None) => Ok(()),
        };
        cleared.inspect_err(|_| {
            // The places of both were free a moment ago.
            let _ = target_upper.node.rename(own, source_upper, old_name, how);
        })?;
        Ok(old)
    }

    fn exchange(&self, other: &Arc<Dentry>) -> Result<(), Errno> {
        let (source, from, source_upper, old_name) = self.from;
        let (target, to, target_upper, name) = self.to;
        let (own, theirs) = (self.own()?, look(target_upper, name)?.ok_or(Errno::ENOENT)?);
        let names = (copy_name(name)?, copy_name(old_name)?);
        self.hide_below(self.to, &own)?;
        self.hide_below(self.from, &theirs)?;
        source_upper.node.rename(&own, target_upper, name, Rename::Exchange)?;
        let before =
            (self.entry.set_position(to.clone(), names.0), other.set_position(from.clone(), names.1));
        drop(before);
        target.children.lock().keep(name, self.entry)?;
        source.children.lock().keep(old_name, other)?;
        target.show(name, self.entry);
        source.show(old_name, other);
        Ok(())
    }
}
