//! Copying what is to be changed from a lower layer to the upper one.
//!
//! A copy is made in the working directory, where nobody looks, and then moved to its place. Directories on the way to
//! it come first. The copy of a long file takes many turns.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general as linux;

use crate::error::{Errno, TryError};
use crate::fs::inode::{Contents, Creation, FileType, Inode, InodeChange, LinkTarget, Opening, Rename};
use crate::fs::overlay::node::{LayerEntry, OverlayNode};
use crate::fs::overlay::{MARKS, Pace, overlay_node};
use crate::fs::xattr::Extended;
use crate::fs::{Dentry, IoBuffer, OpenFile, Path, Sought, StatusFlags};
use crate::memory::fallible;
use crate::process::Credentials;
use crate::process::executable::as_error;

/// Bytes that are copied at a time, which count as so many steps.
const PIECE_BYTES: usize = 8 << 10;
const PIECE_STEPS: u32 = 32;

/// The entry of a node in the upper layer, copied there if it isn't yet, with at most so many bytes.
///
/// # Errors
/// `EROFS` (there is no upper layer), `ENOENT` (it has no name any more), `EPERM`, `EINTR`, `ENOSPC`, `ENOMEM`, `EIO`.
pub(super) fn copy_up(node: &OverlayNode, bytes: u64) -> Result<Arc<Dentry>, Errno> {
    node.overlay.check_writable()?;
    if let Some(upper) = node.upper.get() {
        return Ok(upper.clone());
    }
    // From the node up to the first directory that is there.
    let mut missing = Vec::new();
    let mut next = node.entry().ok_or(Errno::ENOENT)?;
    while !overlay_node(&next.node)?.is_upper() {
        let parent = next.parent().ok_or(Errno::EIO)?;
        fallible::try_push(&mut missing, next)?;
        next = parent;
    }
    let (mut upper, mut pace) = (overlay_node(&next.node)?.upper.get().cloned(), Pace::default());
    while let Some(entry) = missing.pop() {
        let bytes = if missing.is_empty() { bytes } else { u64::MAX };
        let node = overlay_node(&entry.node)?;
        upper = Some(copy_one(&node, &entry, bytes, &mut pace)?);
    }
    upper.ok_or(Errno::EIO)
}

/// Copies a node whose parent is in the upper layer.
fn copy_one(
    node: &OverlayNode,
    entry: &Arc<Dentry>,
    bytes: u64,
    pace: &mut Pace,
) -> Result<Arc<Dentry>, Errno> {
    let overlay = &node.overlay;
    let _copying = node.copying.lock_killably().ok_or(Errno::EINTR)?;
    if let Some(upper) = node.upper.get() {
        return Ok(upper.clone());
    }
    let work = overlay.work.as_ref().ok_or(Errno::EROFS)?;
    let made = make_copy(node, work, bytes, pace)?;
    let _changes = overlay.changes.lock();
    let moved = put_in_place(entry, work, &made);
    if let Err(error) = moved {
        // Nobody else knows it.
        let _ = work.node.unlink(&made);
        return Err(error);
    }
    Ok(node.upper.call_once(|| made).clone())
}

fn put_in_place(entry: &Arc<Dentry>, work: &Arc<Dentry>, made: &Arc<Dentry>) -> Result<(), Errno> {
    if entry.is_removed() {
        return Err(Errno::ENOENT);
    }
    let parent = overlay_node(&entry.parent().ok_or(Errno::EIO)?.node)?;
    let target = parent.upper.get().ok_or(Errno::EIO)?;
    let before = target.node.metadata();
    work.node.rename(made, target, &entry.name()?, Rename::Keep)?;
    // To programs nothing has happened in the directory.
    target.node.change(&InodeChange {
        accessed: Some(before.accessed),
        modified: Some(before.modified),
        ..InodeChange::default()
    })
}

/// A copy in the working directory, with contents, attributes and times, if the mounter may make one.
fn make_copy(
    node: &OverlayNode,
    work: &Arc<Dentry>,
    bytes: u64,
    pace: &mut Pace,
) -> Result<Arc<Dentry>, Errno> {
    let lower = node.lowers.first().ok_or(Errno::EIO)?;
    let metadata = lower.entry.node.metadata();
    let mounter = &node.overlay.mounter;
    let is_device = matches!(metadata.kind, FileType::Character | FileType::Block);
    let may_give = metadata.uid == mounter.fsuid && mounter.is_in_group(metadata.gid)
        || mounter.is_capable_over(metadata.uid, metadata.gid, linux::CAP_CHOWN);
    if !may_give || is_device && !mounter.is_capable(linux::CAP_MKNOD) {
        return Err(Errno::EPERM);
    }
    let target = match metadata.kind {
        FileType::Symlink => match lower.entry.node.follow(None)? {
            LinkTarget::Text(target) => target,
            LinkTarget::Path(_) => return Err(Errno::EIO),
        },
        _ => Vec::new(),
    };
    let contents = match metadata.kind {
        FileType::Regular => Contents::Regular,
        FileType::Directory => Contents::Directory,
        FileType::Symlink => Contents::Symlink(&target),
        FileType::Fifo => Contents::Fifo,
        FileType::Socket => Contents::Socket,
        kind @ (FileType::Character | FileType::Block) => Contents::Device(kind, metadata.special),
    };
    // Whatever it is to permit, it does so once it is whole and its owner's.
    let creation = Creation { contents, permissions: 0, credentials: &Credentials::ROOT };
    let made = work.node.create(work, &node.overlay.copy_name()?, &creation)?;
    let filled = fill(node, lower, &made, bytes.min(metadata.size), pace).and_then(|()| {
        made.node.change(&InodeChange {
            permissions: Some(metadata.permissions),
            uid: Some(metadata.uid),
            gid: Some(metadata.gid),
            accessed: Some(metadata.accessed),
            modified: Some(metadata.modified),
        })
    });
    if let Err(error) = filled {
        let _ = work.node.unlink(&made);
        return Err(error);
    }
    Ok(made)
}

fn fill(
    node: &OverlayNode,
    lower: &LayerEntry,
    made: &Arc<Dentry>,
    bytes: u64,
    pace: &mut Pace,
) -> Result<(), Errno> {
    if let (Some(from), Some(to)) = (lower.entry.node.extended(), made.node.extended()) {
        copy_attributes(from, to, node.overlay.has_user_marks)?;
    }
    if node.kind() != FileType::Regular {
        return Ok(());
    }
    let open = |layer: usize, entry: &Arc<Dentry>, flags: StatusFlags| {
        let mount = node.overlay.layers.get(layer).ok_or(Errno::EIO)?.mount.clone();
        let place = Path { mount, entry: entry.clone() };
        let opening = Opening { flags, flags_of_call: 0, place: &place, thread: None };
        let file = entry.node.clone().open(&opening)?;
        fallible::try_arc(OpenFile::at(file, flags, place))
    };
    let from = open(lower.layer, &lower.entry, StatusFlags::empty())?;
    let to = open(0, made, StatusFlags::WRONLY)?;
    copy_contents(&from, &to, bytes, pace)
}

fn copy_contents(from: &OpenFile, to: &OpenFile, bytes: u64, pace: &mut Pace) -> Result<(), Errno> {
    let mut piece: Vec<u8> = fallible::try_filled(0, PIECE_BYTES)?;
    let mut at = 0;
    while at < bytes {
        // Holes stay holes.
        match from.file.seek_data(at, true) {
            Ok(Sought::Found(data)) => at = data,
            Ok(Sought::UpTo(end)) => {
                at = end;
                pace.step(1)?;
                continue;
            }
            Err(_) => break,
        }
        let most = usize::try_from(bytes.saturating_sub(at)).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        // As far as the next multiple, so that pages are copied whole.
        let most = most.min(PIECE_BYTES - at as usize % PIECE_BYTES);
        let count = read_some(from, piece.get_mut(..most).ok_or(Errno::EIO)?, at)?;
        if count == 0 {
            break;
        }
        write_all(to, piece.get(..count).ok_or(Errno::EIO)?, at)?;
        at += count as u64;
        pace.step(PIECE_STEPS)?;
    }
    while !to.file.truncate(bytes)? {
        pace.step(PIECE_STEPS)?;
    }
    Ok(())
}

fn read_some(open: &OpenFile, piece: &mut [u8], at: u64) -> Result<usize, Errno> {
    loop {
        let mut buffer = IoBuffer::kernel_out(piece);
        match open.file.read(open, &mut buffer, at) {
            Ok(0) if buffer.is_unfinished() => {}
            // A range of it is being written.
            Err(TryError::WouldBlock) => super::give_way()?,
            result => return result.map_err(as_error),
        }
    }
}

fn write_all(open: &OpenFile, piece: &[u8], at: u64) -> Result<(), Errno> {
    let mut buffer = IoBuffer::kernel_in(piece);
    while buffer.remaining() > 0 {
        let done = buffer.done() as u64;
        if open.file.write(open, &mut buffer, at + done).map_err(as_error)? == 0 {
            return Err(Errno::EIO);
        }
    }
    Ok(())
}

fn copy_attributes(from: &Extended, to: &Extended, has_user_marks: bool) -> Result<(), Errno> {
    use crate::fs::acl::AclKind;
    for kind in AclKind::ALL.into_iter().filter(|&kind| from.acls.has(kind)) {
        to.acls.set(kind, from.acls.copy(kind)?)?;
    }
    let names = from.names(true)?;
    let plain = names.split(|&letter| letter == 0).filter(|name| !name.is_empty());
    for name in plain.filter(|name| AclKind::of(name).is_none()) {
        if !name.starts_with(MARKS[usize::from(has_user_marks)]) {
            to.set(name, &from.get(name)?, 0)?;
        }
    }
    Ok(())
}
