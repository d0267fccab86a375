//! `read`, `write` and their kin.

use alloc::vec::Vec;
use linux_raw_sys::general as linux;

use crate::error::{Errno, TryResult};
use crate::fs::buffer::IoSegment;
use crate::fs::{FileType, OpenFile};
use crate::syscall::fs::transfer::{Segments, Transfer, TransferDirection};
use crate::syscall::fs::{TRANSFER_LIMIT, get_bytes, get_file};
use crate::syscall::{Call, SyscallResult};

use heddle_kernel_core::fallible::push_reserved;

/// read(2).
pub fn read(call: &mut Call<'_>) -> SyscallResult {
    start(call, TransferDirection::Read, one(call), None, 0)
}

/// write(2).
pub fn write(call: &mut Call<'_>) -> SyscallResult {
    start(call, TransferDirection::Write, one(call), None, 0)
}

/// pread64(2).
pub fn pread64(call: &mut Call<'_>) -> SyscallResult {
    start(call, TransferDirection::Read, one(call), Some(call.word(3) as i64), 0)
}

/// pwrite64(2).
pub fn pwrite64(call: &mut Call<'_>) -> SyscallResult {
    start(call, TransferDirection::Write, one(call), Some(call.word(3) as i64), 0)
}

/// readv(2).
pub fn readv(call: &mut Call<'_>) -> SyscallResult {
    let segments = many(call, call.word(1), call.word(2))?;
    start(call, TransferDirection::Read, segments, None, 0)
}

/// writev(2).
pub fn writev(call: &mut Call<'_>) -> SyscallResult {
    let segments = many(call, call.word(1), call.word(2))?;
    start(call, TransferDirection::Write, segments, None, 0)
}

/// preadv(2).
pub fn preadv(call: &mut Call<'_>) -> SyscallResult {
    let segments = many(call, call.word(1), call.word(2))?;
    start(call, TransferDirection::Read, segments, Some(call.word(3) as i64), 0)
}

/// pwritev(2).
pub fn pwritev(call: &mut Call<'_>) -> SyscallResult {
    let segments = many(call, call.word(1), call.word(2))?;
    start(call, TransferDirection::Write, segments, Some(call.word(3) as i64), 0)
}

/// preadv2(2).
pub fn preadv2(call: &mut Call<'_>) -> SyscallResult {
    vectored_with_flags(call, TransferDirection::Read)
}

/// pwritev2(2).
pub fn pwritev2(call: &mut Call<'_>) -> SyscallResult {
    vectored_with_flags(call, TransferDirection::Write)
}

/// The flags of preadv2(2) that are known.
const FLAGS_KNOWN: u32 =
    linux::RWF_HIPRI | linux::RWF_DSYNC | linux::RWF_SYNC | linux::RWF_NOWAIT | linux::RWF_APPEND;

/// A read or write of one piece of memory with the flags of preadv2(2), for `io_uring`.
pub fn one_with_flags(
    call: &Call<'_>,
    is_read: bool,
    (address, length): (usize, usize),
    position: Option<i64>,
    flags: u32,
) -> SyscallResult {
    if flags & !FLAGS_KNOWN != 0 {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let direction = if is_read { TransferDirection::Read } else { TransferDirection::Write };
    let segments = Segments::One([IoSegment { address, length: length.min(TRANSFER_LIMIT) }]);
    start(call, direction, segments, position, flags)
}

fn vectored_with_flags(call: &mut Call<'_>, direction: TransferDirection) -> SyscallResult {
    let flags = call.uint(5);
    if flags & !FLAGS_KNOWN != 0 {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let segments = many(call, call.word(1), call.word(2))?;
    let position = call.word(3) as i64;
    start(call, direction, segments, (position != -1).then_some(position), flags)
}

/// The memory that address and length in the arguments 1 and 2 name.
fn one(call: &Call<'_>) -> Segments {
    Segments::One([IoSegment { address: call.word(1), length: call.word(2).min(TRANSFER_LIMIT) }])
}

/// The memory that an array of `struct iovec` names.
///
/// # Errors
/// A page fault; `EINVAL` (too many, or too long together), `ENOMEM`.
pub fn many(call: &Call<'_>, address: usize, count: usize) -> TryResult<Segments> {
    const ENTRY: usize = size_of::<linux::iovec>();
    const WORD: usize = size_of::<usize>();
    if count > linux::UIO_MAXIOV as usize {
        return Err(Errno::EINVAL.into());
    }
    let bytes = get_bytes(call, address, count * ENTRY)?;
    let mut segments = Vec::new();
    segments.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
    let mut total = 0_usize;
    for entry in bytes.chunks_exact(ENTRY) {
        let word = |index: usize| {
            let mut word = [0; WORD];
            word.copy_from_slice(&entry[index * WORD..(index + 1) * WORD]);
            usize::from_ne_bytes(word)
        };
        let length = isize::try_from(word(1)).map_err(|_| Errno::EINVAL)? as usize;
        let length = length.min(TRANSFER_LIMIT - total);
        total += length;
        push_reserved(&mut segments, IoSegment { address: word(0), length });
    }
    Ok(Segments::Many(segments))
}

fn start(
    call: &Call<'_>,
    direction: TransferDirection,
    segments: Segments,
    position: Option<i64>,
    flags: u32,
) -> SyscallResult {
    let position = position.map(u64::try_from).transpose().map_err(|_| Errno::EINVAL)?;
    let open = get_file(call, 0)?;
    let has_positions = open.file.is_seekable();
    if position.is_some() && !has_positions {
        return Err(Errno::ESPIPE.into());
    }
    check_direction(&open, direction)?;
    // Bytes that no file can have.
    let last = i64::MAX as u64;
    if let Some(position) = position.filter(|&position| position > last - TRANSFER_LIMIT as u64) {
        let length: usize = segments.as_slice().iter().map(|segment| segment.length).sum();
        if position + length as u64 > last {
            return Err(Errno::EINVAL.into());
        }
    }
    let transfer = Transfer {
        thread: call.thread.clone(),
        open,
        segments,
        direction,
        position,
        has_positions,
        no_wait: flags & linux::RWF_NOWAIT != 0,
        done: 0,
        held: None,
        probed: None,
        missed: None,
        is_unfinished: false,
        does_without: false,
        some_is_enough: false,
        is_appended: flags & linux::RWF_APPEND != 0,
    };
    transfer.start()
}

/// Whether the file was opened for this.
///
/// # Errors
/// `EBADF`, `EISDIR`.
pub fn check_direction(open: &OpenFile, direction: TransferDirection) -> Result<(), Errno> {
    let allowed = match direction {
        TransferDirection::Read => open.is_readable(),
        TransferDirection::Write => open.is_writable(),
    };
    if !allowed {
        return Err(Errno::EBADF);
    }
    let directory = open.place.as_ref().is_some_and(|place| place.entry.node.kind() == FileType::Directory);
    if directory { Err(Errno::EISDIR) } else { Ok(()) }
}
