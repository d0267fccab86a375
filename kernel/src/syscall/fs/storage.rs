//! A file's length and memory: `truncate`, `fallocate`, and the syncing of what is already where it will ever be.

use alloc::sync::Arc;
use core::ops::Range;
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::access::Access;
use crate::fs::flags::FileFlags;
use crate::fs::inode::Opening;
use crate::fs::lease::LeaseBreak;
use crate::fs::range_lock::RangeGuard;
use crate::fs::{FileType, OpenFile, StatusFlags, access, flags};
use crate::memory::space::{unmap_mapping_range, write_back};
use crate::memory::writeback::StoreWait;
use crate::memory::{MapSource, fallible, writeback};
use crate::process::Resource;
use crate::process::executable::again_if_stale;
use crate::sched::Budget;
use crate::signal::Signal;
use crate::syscall::caller::Caller;
use crate::syscall::fs::open::finish;
use crate::syscall::fs::transfer::{TransferDirection, tell_writer};
use crate::syscall::fs::{find, get_file, get_path};
use crate::syscall::{Call, SyscallResult, pending};
use crate::wait::node::WaitKind;
use crate::wait::queue::Events;

const PAGE_BYTES: u64 = 4096;

/// truncate(2).
pub fn truncate(call: &mut Call<'_>) -> SyscallResult {
    let size = u64::try_from(call.word(1) as i64).map_err(|_| Errno::EINVAL)?;
    let path = get_path(call, 0)?;
    // The name may change hands between the opening and the change, too.
    again_if_stale(|| truncate_path(call, &path, size))
}

fn truncate_path(call: &Call<'_>, path: &[u8], size: u64) -> SyscallResult {
    let open = open_to_truncate(call, path)?;
    if let Some(leases) = LeaseBreak::find(&open) {
        let thread = call.thread.clone();
        return pending(async move {
            leases.wait(&thread).await?;
            check_size(&thread, &open, size)?;
            finish(truncate_file(&thread, &open, size, 0)).await
        });
    }
    check_size(call.thread, &open, size)?;
    truncate_file(call.thread, &open, size, 0)
}

fn open_to_truncate(call: &Call<'_>, path: &[u8]) -> Result<Arc<OpenFile>, Errno> {
    let place = find(call, linux::AT_FDCWD, path, 0)?;
    match place.entry.node.kind() {
        FileType::Regular => {}
        FileType::Directory => return Err(Errno::EISDIR),
        _ => return Err(Errno::EINVAL),
    }
    access::check_place(&place, &call.thread.credentials(), Access::WRITE)?;
    flags::check_without(&*place.entry.node, FileFlags::APPEND)?;
    // Opened like any writer, so that a program that runs from it is left alone.
    let flags = StatusFlags::WRONLY;
    let opening = Opening { flags, flags_of_call: 0, place: &place, thread: Some(call.thread) };
    let file = place.entry.node.clone().open(&opening)?;
    let open = fallible::try_arc(OpenFile::at(file, flags, place))?;
    if open.came_too_late() { Err(Errno::EROFS) } else { Ok(open) }
}

/// The cost of a step of truncation or allocation, in units of a [`Budget`].
const STEP_COST: u32 = 32;

/// Checks that a file may grow to a size: the signal comes with the error, but not for a call that goes on by itself,
/// as Linux's workers take none.
fn check_size(caller: &Caller, open: &OpenFile, size: u64) -> Result<(), Errno> {
    let limit = caller.process.limit(Resource::FileSize).soft;
    let grows = open.file.size().is_some_and(|before| before < size);
    if grows && size > limit {
        if let Caller::Thread(thread) = caller {
            tell_writer(thread, Signal::XFSZ);
        }
        return Err(Errno::EFBIG);
    }
    Ok(())
}

/// Before a change of a file's length or memory: set-id bits go as before a write. Returns whether nobody reads or
/// writes the file by ranges, who would have to be waited for.
fn begin_change(caller: &Caller, open: &OpenFile) -> Result<bool, Errno> {
    let Some(ranges) = open.file.ranges() else { return Ok(true) };
    open.file.before_transfer(caller, Events::OUT)?;
    Ok(!ranges.are_used())
}

/// Waits for the reads and writes of a range that are under way, and keeps others from it.
async fn hold(caller: &Caller, open: &OpenFile, range: Range<u64>) -> Result<Option<RangeGuard>, Errno> {
    if open.file.ranges().is_none() {
        return Ok(None);
    }
    let lock = RangeGuard::lock(open.file.clone(), range, false);
    caller.wait(WaitKind::Killable, lock).await?.map(Some)
}

/// Gives a file a length, and ends a call with this result: whoever has mapped what is cut off loses it first.
pub(super) fn truncate_file(
    caller: &Caller,
    open: &Arc<OpenFile>,
    size: u64,
    result: usize,
) -> SyscallResult {
    let is_free = begin_change(caller, open)?;
    let is_done = is_free && open.file.truncate(size)?;
    let source = open.file.clone().mapped_source();
    if is_done && source.is_none() {
        open.report(linux::IN_MODIFY);
        return Ok(result.into());
    }
    let (caller, open) = (caller.clone(), open.clone());
    pending(async move {
        if !is_done {
            let _held = hold(&caller, &open, size..u64::MAX).await?;
            let mut budget = Budget::new();
            while !open.file.truncate(size)? {
                caller.pace(&mut budget, STEP_COST).await?;
            }
        }
        open.report(linux::IN_MODIFY);
        if let Some(source) = source {
            unmap_mapping_range(&source, size.div_ceil(PAGE_BYTES)..u64::MAX).await;
        }
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
    flags::check_open_without(&open, FileFlags::APPEND)?;
    check_size(call.thread, &open, size)?;
    truncate_file(call.thread, &open, size, 0)
}

/// Checks the bits of a mode, and that they go together.
fn check_allocation_mode(mode: u32) -> Result<(), Errno> {
    const KEEP: u32 = linux::FALLOC_FL_KEEP_SIZE;
    const PUNCH: u32 = linux::FALLOC_FL_PUNCH_HOLE;
    const ZERO: u32 = linux::FALLOC_FL_ZERO_RANGE;
    const COLLAPSE: u32 = linux::FALLOC_FL_COLLAPSE_RANGE;
    const INSERT: u32 = linux::FALLOC_FL_INSERT_RANGE;
    const UNSHARE: u32 = linux::FALLOC_FL_UNSHARE_RANGE;
    let is_unknown = mode & !(KEEP | PUNCH | ZERO | COLLAPSE | INSERT | UNSHARE) != 0;
    if is_unknown || mode & (PUNCH | ZERO) == PUNCH | ZERO || mode & (PUNCH | KEEP) == PUNCH {
        return Err(Errno::EOPNOTSUPP);
    }
    let is_alone = |bit: u32, with: u32| mode & bit == 0 || mode & !(bit | with) == 0;
    if is_alone(COLLAPSE, 0) && is_alone(INSERT, 0) && is_alone(UNSHARE, KEEP) {
        Ok(())
    } else {
        Err(Errno::EINVAL)
    }
}

/// fallocate(2).
pub fn fallocate(call: &mut Call<'_>) -> SyscallResult {
    let open = get_file(call, 0)?;
    let (first, length) = (call.word(2) as i64, call.word(3) as i64);
    if first < 0 || length <= 0 {
        return Err(Errno::EINVAL.into());
    }
    check_allocation_mode(call.uint(1))?;
    crate::syscall::fs::read_write::check_direction(&open, TransferDirection::Write)?;
    let only_grows = call.uint(1) & !linux::FALLOC_FL_KEEP_SIZE == 0;
    let barred = if only_grows { FileFlags::IMMUTABLE } else { FileFlags::FIXED };
    flags::check_open_without(&open, barred)?;
    if first.checked_add(length).is_none() {
        return Err(Errno::EFBIG.into());
    }
    if open.kind() == FileType::Fifo {
        return Err(Errno::ESPIPE.into());
    }
    let (first, end) = (first as u64, (first + length) as u64);
    let mode = call.uint(1);
    if mode & (linux::FALLOC_FL_PUNCH_HOLE | linux::FALLOC_FL_KEEP_SIZE) == 0 {
        check_size(call.thread, &open, end)?;
    }
    let is_free = begin_change(call.thread, &open)?;
    let mut at = first;
    if is_free {
        at += open.file.allocate(mode, first, end - first)?;
    }
    let takes = mode & (linux::FALLOC_FL_PUNCH_HOLE | linux::FALLOC_FL_ZERO_RANGE) != 0;
    let source = takes.then(|| open.file.clone().mapped_source()).flatten();
    if at >= end && source.is_none() {
        open.report(linux::IN_MODIFY);
        return Ok(0.into());
    }
    let caller = call.thread.clone();
    pending(async move {
        if at < end {
            let _held = hold(&caller, &open, first..end).await?;
            let mut budget = Budget::new();
            while at < end {
                caller.pace(&mut budget, STEP_COST).await?;
                at += open.file.allocate(mode, at, end - at)?;
            }
        }
        open.report(linux::IN_MODIFY);
        if let Some(source) = source {
            unmap_mapping_range(&source, first.div_ceil(PAGE_BYTES)..end / PAGE_BYTES).await;
        }
        Ok(0)
    })
}

/// fadvise64(2): there is nothing to prepare.
pub fn fadvise64(call: &mut Call<'_>) -> SyscallResult {
    let open = get_file(call, 0)?;
    if open.kind() == FileType::Fifo {
        return Err(Errno::ESPIPE.into());
    }
    if call.uint(3) > linux::POSIX_FADV_NOREUSE || (call.word(2) as i64) < 0 {
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
    if !is_stored(&open) {
        return Err(Errno::EINVAL.into());
    }
    Ok(0.into())
}

/// Whether a file is one of bytes that a file system keeps.
fn is_stored(open: &OpenFile) -> bool {
    matches!(open.kind(), FileType::Regular | FileType::Block) && open.file.is_seekable()
}

/// fsync(2).
pub fn fsync(call: &mut Call<'_>) -> SyscallResult {
    store_file(call, false)
}

/// fdatasync(2).
pub fn fdatasync(call: &mut Call<'_>) -> SyscallResult {
    store_file(call, true)
}

fn store_file(call: &Call<'_>, is_for_data: bool) -> SyscallResult {
    let open: Arc<OpenFile> = get_file(call, 0)?;
    open.file.store(is_for_data)?;
    if is_stored(&open) || open.kind() == FileType::Directory {
        store(&open)
    } else {
        Err(Errno::EINVAL.into())
    }
}

/// Stores what programs have written to mappings of a file; everything else is where it will ever be.
fn store(open: &Arc<OpenFile>) -> SyscallResult {
    let written = |source: &Arc<dyn MapSource>| source.written(&(0..u64::MAX)).is_some();
    let Some(source) = open.file.clone().mapped_source().filter(written) else {
        open.file.loss()?;
        return Ok(0.into());
    };
    let open = open.clone();
    pending(async move {
        write_back(&source, 0..u64::MAX).await?;
        open.file.loss()?;
        Ok(0)
    })
}

/// sync(2).
pub fn sync(_: &mut Call<'_>) -> SyscallResult {
    pending(async {
        // Nobody is told what could not be stored.
        let _ = writeback::store_all(StoreWait::Willing).await;
        Ok(0)
    })
}

/// syncfs(2).
pub fn syncfs(call: &mut Call<'_>) -> SyscallResult {
    let open = get_file(call, 0)?;
    let wait = StoreWait::of(open.place.as_ref().map(|place| place.entry.node.device()));
    pending(async move {
        writeback::store_all(wait).await?;
        Ok(0)
    })
}

/// sync_file_range(2).
pub fn sync_file_range(call: &mut Call<'_>) -> SyscallResult {
    const KNOWN: u32 =
        linux::SYNC_FILE_RANGE_WAIT_BEFORE | linux::SYNC_FILE_RANGE_WRITE | linux::SYNC_FILE_RANGE_WAIT_AFTER;
    let open = get_file(call, 0)?;
    let (first, length) = (call.word(1) as i64, call.word(2) as i64);
    let valid =
        first >= 0 && length >= 0 && first.checked_add(length).is_some() && call.uint(3) & !KNOWN == 0;
    match open.kind() {
        _ if !valid => Err(Errno::EINVAL.into()),
        FileType::Regular | FileType::Block | FileType::Directory | FileType::Symlink => store(&open),
        _ => Err(Errno::ESPIPE.into()),
    }
}
