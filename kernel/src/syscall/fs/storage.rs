//! A file's length and memory: `truncate`, `fallocate`, and the syncing of what is already where it will ever be.

use alloc::sync::Arc;
use core::ops::Range;
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::access::Access;
use crate::fs::inode::Opening;
use crate::fs::{FileType, OpenFile, StatusFlags, access};
use crate::memory::space::{unmap_mapping_range, write_back};
use crate::memory::{MapSource, fallible, writeback};
use crate::syscall::fs::transfer::TransferDirection;
use crate::syscall::fs::{find, get_file, get_path};
use crate::syscall::{Call, SyscallResult, pending};

const PAGE_BYTES: u64 = 4096;

/// truncate(2).
pub fn truncate(call: &mut Call<'_>) -> SyscallResult {
    let size = u64::try_from(call.word(1) as i64).map_err(|_| Errno::EINVAL)?;
    let path = get_path(call, 0)?;
    let place = find(call, linux::AT_FDCWD, &path, 0)?;
    match place.entry.node.kind() {
        FileType::Regular => {}
        FileType::Directory => return Err(Errno::EISDIR.into()),
        _ => return Err(Errno::EINVAL.into()),
    }
    access::check_place(&place, &call.thread.credentials(), Access::WRITE)?;
    // Opened like any writer, so that a program that runs from it is left alone.
    let flags = StatusFlags::WRONLY;
    let opening = Opening { flags, flags_of_call: 0, place: &place, thread: Some(call.thread) };
    let file = place.entry.node.clone().open(&opening)?;
    let open = fallible::try_arc(OpenFile::at(file, flags, place))?;
    open.file.truncate(size)?;
    open.report(linux::IN_MODIFY);
    after_loss(&open, 0, size.div_ceil(PAGE_BYTES)..u64::MAX)
}

/// Ends a call that has taken pages from a file, with this result: whoever has them mapped loses them first.
pub(super) fn after_loss(open: &Arc<OpenFile>, result: usize, pages: Range<u64>) -> SyscallResult {
    let Some(source) = open.file.clone().mapped_source() else { return Ok(result.into()) };
    pending(async move {
        unmap_mapping_range(&source, pages).await;
        Ok(result)
    })
}

/// ftruncate(2).
pub fn ftruncate(call: &mut Call<'_>) -> SyscallResult {
    let size = u64::try_from(call.word(1) as i64).map_err(|_| Errno::EINVAL)?;
    let open = get_file(call, 0)?;
    if !open.is_writable() {
        return Err(Errno::EINVAL.into());
    }
    open.file.truncate(size)?;
    open.report(linux::IN_MODIFY);
    after_loss(&open, 0, size.div_ceil(PAGE_BYTES)..u64::MAX)
}

/// fallocate(2).
pub fn fallocate(call: &mut Call<'_>) -> SyscallResult {
    let open = get_file(call, 0)?;
    let (first, length) = (call.word(2) as i64, call.word(3) as i64);
    if first < 0 || length <= 0 {
        return Err(Errno::EINVAL.into());
    }
    crate::syscall::fs::read_write::check_direction(&open, TransferDirection::Write)?;
    if first.checked_add(length).is_none() {
        return Err(Errno::EFBIG.into());
    }
    if open.metadata().kind == FileType::Fifo {
        return Err(Errno::ESPIPE.into());
    }
    let (first, end) = (first as u64, (first + length) as u64);
    open.file.allocate(call.uint(1), first, end - first)?;
    open.report(linux::IN_MODIFY);
    if call.uint(1) & (linux::FALLOC_FL_PUNCH_HOLE | linux::FALLOC_FL_ZERO_RANGE) == 0 {
        return Ok(0.into());
    }
    after_loss(&open, 0, first.div_ceil(PAGE_BYTES)..end / PAGE_BYTES)
}

/// fadvise64(2): there is nothing to prepare.
pub fn fadvise64(call: &mut Call<'_>) -> SyscallResult {
    let open = get_file(call, 0)?;
    if !open.file.is_seekable() {
        return Err(Errno::ESPIPE.into());
    }
    if call.uint(3) > linux::POSIX_FADV_NOREUSE {
        return Err(Errno::EINVAL.into());
    }
    Ok(0.into())
}

/// readahead(2): everything is in memory.
pub fn readahead(call: &mut Call<'_>) -> SyscallResult {
    let open = get_file(call, 0)?;
    if !open.is_readable() {
        return Err(Errno::EBADF.into());
    }
    Ok(0.into())
}

/// fsync(2) and fdatasync(2).
pub fn fsync(call: &mut Call<'_>) -> SyscallResult {
    let open: Arc<OpenFile> = get_file(call, 0)?;
    match open.metadata().kind {
        FileType::Fifo | FileType::Socket => Err(Errno::EINVAL.into()),
        _ => store(&open),
    }
}

/// Stores what programs have written to mappings of a file; everything else is where it will ever be.
fn store(open: &Arc<OpenFile>) -> SyscallResult {
    let written = |source: &Arc<dyn MapSource>| source.written(&(0..u64::MAX)).is_some();
    let Some(source) = open.file.clone().mapped_source().filter(written) else { return Ok(0.into()) };
    pending(async move {
        write_back(&source, 0..u64::MAX).await?;
        Ok(0)
    })
}

/// sync(2).
pub fn sync(_: &mut Call<'_>) -> SyscallResult {
    // Nobody is told what could not be stored.
    let _ = writeback::store_all();
    Ok(0.into())
}

/// syncfs(2).
pub fn syncfs(call: &mut Call<'_>) -> SyscallResult {
    get_file(call, 0)?;
    writeback::store_all()?;
    Ok(0.into())
}

/// sync_file_range(2).
pub fn sync_file_range(call: &mut Call<'_>) -> SyscallResult {
    let open = get_file(call, 0)?;
    let valid = call.word(1) as i64 >= 0 && call.word(2) as i64 >= 0;
    match open.file.is_seekable() {
        _ if !valid => Err(Errno::EINVAL.into()),
        true => store(&open),
        false => Err(Errno::ESPIPE.into()),
    }
}
