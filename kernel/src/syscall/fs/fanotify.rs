//! fanotify_init(2), fanotify_mark(2).

use alloc::sync::Arc;
use heddle_kernel_core::fanotify::{event, init, is_valid_init, mark};
use linux_raw_sys::general as linux;

use crate::error::{Errno, TryResult};
use crate::fs::access::{self, Access};
use crate::fs::fanotify::{FanGroup, FanObject};
use crate::fs::tree::encode_node_handle;
use crate::fs::{FileType, OpenFile, Path, StatusFlags, downcast_arc};
use crate::memory::fallible;
use crate::syscall::fs::{add, find, get_file, get_path};
use crate::syscall::{Call, SyscallResult};

/// fanotify_init(2).
pub fn fanotify_init(call: &mut Call<'_>) -> SyscallResult {
    let (flags, access) = (call.uint(0), call.uint(1));
    let is_privileged = call.thread.credentials().is_capable(linux::CAP_SYS_ADMIN);
    if !is_privileged && (flags & init::PRIVILEGED != 0 || flags & init::BY_HANDLE == 0) {
        return Err(Errno::EPERM.into());
    }
    if !is_valid_init(flags, access) {
        return Err(Errno::EINVAL.into());
    }
    let group = FanGroup::new(flags, access, call.thread.credentials().uid, is_privileged)?;
    let status = if flags & init::NONBLOCK != 0 { linux::O_NONBLOCK } else { 0 };
    let status = StatusFlags::RDWR | StatusFlags::from_bits_retain(status);
    let open = fallible::try_arc(OpenFile::new(group, status))?;
    add(call, open, flags & init::CLOEXEC != 0)
}

/// The flags and the mask of fanotify_mark(2), which go together.
#[derive(Clone, Copy)]
struct MarkRequest {
    flags: u32,
    mask: u32,
}

impl MarkRequest {
    fn new(flags: u32, mask: u64) -> Result<Self, Errno> {
        let command = flags & (mark::ADD | mark::REMOVE | mark::FLUSH);
        let how = flags & (mark::IGNORE | mark::IGNORED_MASK);
        let mut mask = u32::try_from(mask).map_err(|_| Errno::EINVAL)?;
        let is_command = match command {
            mark::ADD | mark::REMOVE => mask != 0,
            mark::FLUSH => flags & !(mark::KINDS | mark::FLUSH) == 0,
            _ => false,
        };
        if flags & !mark::KNOWN != 0
            || flags & mark::KINDS == mark::KINDS
            || !is_command
            || mask & !event::KNOWN != 0
            || how == mark::IGNORE | mark::IGNORED_MASK
        {
            return Err(Errno::EINVAL);
        }
        if how == mark::IGNORED_MASK {
            mask &= !event::MODIFIERS;
        }
        Ok(Self { flags, mask })
    }

    const fn has(self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    const fn is_for_node(self) -> bool {
        !self.has(mark::KINDS)
    }

    /// Whether the group takes such marks.
    fn check(self, group: &FanGroup) -> Result<(), Errno> {
        if !group.is_privileged() && !self.is_for_node() {
            return Err(Errno::EPERM);
        }
        let by_handle = group.flags() & init::BY_HANDLE != 0;
        let needs_handle = self.mask & !(event::WITH_PATH | event::PERMISSIONS | event::MODIFIERS) != 0;
        if self.mask & event::PERMISSIONS != 0 && group.flags() & init::CLASSES == 0
            || self.has(mark::EVICTABLE) && !self.is_for_node()
            || needs_handle && (!by_handle || self.has(mark::MOUNT))
        {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }
}

/// The place that a mark is to be on.
fn place(call: &Call<'_>, flags: u32) -> TryResult<Path> {
    let (descriptor, path) = (call.int(3), call.word(4));
    let place = if path == 0 {
        let open = call.thread.descriptors().get(descriptor)?;
        if open.flags().contains(StatusFlags::PATH) {
            return Err(Errno::EBADF.into());
        }
        open.place.clone().ok_or(Errno::EINVAL)?
    } else {
        let path = get_path(call, 4)?;
        let how = if flags & mark::DONT_FOLLOW != 0 { linux::AT_SYMLINK_NOFOLLOW } else { 0 };
        find(call, descriptor, &path, how)?
    };
    if flags & mark::ONLYDIR != 0 && place.entry.node.kind() != FileType::Directory {
        return Err(Errno::ENOTDIR.into());
    }
    access::check(&*place.entry.node, &call.thread.credentials(), Access::READ)?;
    Ok(place)
}

/// fanotify_mark(2).
pub fn fanotify_mark(call: &mut Call<'_>) -> SyscallResult {
    let mut request = MarkRequest::new(call.uint(1), call.word(2) as u64)?;
    let open = get_file(call, 0)?;
    let group = downcast_arc::<FanGroup>(&open.file).ok_or(Errno::EINVAL)?;
    request.check(&group)?;
    if request.has(mark::FLUSH) {
        group.flush(request.flags & mark::KINDS);
        return Ok(0.into());
    }
    let place = place(call, request.flags)?;
    let node = &place.entry.node;
    let (is_directory, by_handle) =
        (node.kind() == FileType::Directory, group.flags() & init::BY_HANDLE != 0);
    let is_strict = group.flags() & init::REPORT_TARGET_FID != 0 || request.has(mark::IGNORE);
    let is_about_names = request.mask & (event::NAMES | event::MODIFIERS) != 0;
    if request.has(mark::ADD) && is_strict && is_about_names && request.is_for_node() && !is_directory {
        return Err(Errno::ENOTDIR.into());
    }
    if by_handle {
        encode_node_handle(node, Some(&place.entry))?;
    }
    let survives = request.has(mark::IGNORED_SURVIVES);
    if request.has(mark::ADD) && request.has(mark::IGNORE) && !survives {
        if !request.is_for_node() {
            return Err(Errno::EINVAL.into());
        }
        if is_directory {
            return Err(Errno::EISDIR.into());
        }
    }
    if !request.is_for_node() || !is_directory {
        request.mask &= !event::ON_CHILD;
    }
    let object = match request.flags & mark::KINDS {
        mark::MOUNT => Some(FanObject::Mount(Arc::downgrade(&place.mount))),
        mark::FILE_SYSTEM => Some(FanObject::FileSystem(node.device())),
        _ => None,
    };
    match object {
        Some(object) if request.has(mark::ADD) => group.mark_object(object, request.mask, request.flags)?,
        Some(object) => group.unmark_object(&object, request.mask, request.flags)?,
        None if request.has(mark::ADD) => group.mark_node(node, request.mask, request.flags)?,
        None => group.unmark_node(node, request.mask, request.flags)?,
    }
    Ok(0.into())
}
