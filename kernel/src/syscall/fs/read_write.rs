//! `read`, `write` and their kin.

use alloc::vec::Vec;
use linux_raw_sys::general as linux;

use crate::error::{Attempt, Errno};
use crate::fs::buffer::Segment;
use crate::fs::{Kind, OpenFile};
use crate::syscall::fs::transfer::{Direction, Segments, Transfer};
use crate::syscall::fs::{TRANSFER_LIMIT, get_bytes, get_file};
use crate::syscall::{Call, Outcome};

/// read(2).
pub fn read(call: &mut Call<'_>) -> Outcome {
    start(call, Direction::Read, one(call), None, 0)
}

/// write(2).
pub fn write(call: &mut Call<'_>) -> Outcome {
    start(call, Direction::Write, one(call), None, 0)
}

/// pread64(2).
pub fn pread64(call: &mut Call<'_>) -> Outcome {
    start(call, Direction::Read, one(call), Some(call.word(3) as i64), 0)
}

/// pwrite64(2).
pub fn pwrite64(call: &mut Call<'_>) -> Outcome {
    start(call, Direction::Write, one(call), Some(call.word(3) as i64), 0)
}

/// readv(2).
pub fn readv(call: &mut Call<'_>) -> Outcome {
    let segments = many(call, call.word(1), call.word(2))?;
    start(call, Direction::Read, segments, None, 0)
}

/// writev(2).
pub fn writev(call: &mut Call<'_>) -> Outcome {
    let segments = many(call, call.word(1), call.word(2))?;
    start(call, Direction::Write, segments, None, 0)
}

/// preadv(2).
pub fn preadv(call: &mut Call<'_>) -> Outcome {
    let segments = many(call, call.word(1), call.word(2))?;
    start(call, Direction::Read, segments, Some(call.word(3) as i64), 0)
}

/// pwritev(2).
pub fn pwritev(call: &mut Call<'_>) -> Outcome {
    let segments = many(call, call.word(1), call.word(2))?;
    start(call, Direction::Write, segments, Some(call.word(3) as i64), 0)
}

/// preadv2(2).
pub fn preadv2(call: &mut Call<'_>) -> Outcome {
    vectored_with_flags(call, Direction::Read)
}

/// pwritev2(2).
pub fn pwritev2(call: &mut Call<'_>) -> Outcome {
    vectored_with_flags(call, Direction::Write)
}

fn vectored_with_flags(call: &mut Call<'_>, direction: Direction) -> Outcome {
    const KNOWN: u32 = linux::RWF_HIPRI | linux::RWF_DSYNC | linux::RWF_SYNC | linux::RWF_NOWAIT;
    let flags = call.uint(5);
    if flags & !KNOWN != 0 {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let segments = many(call, call.word(1), call.word(2))?;
    let position = call.word(3) as i64;
    start(call, direction, segments, (position != -1).then_some(position), flags)
}

/// The memory that address and length in the arguments 1 and 2 name.
fn one(call: &Call<'_>) -> Segments {
    Segments::One([Segment { address: call.word(1), length: call.word(2).min(TRANSFER_LIMIT) }])
}

/// The memory that an array of `struct iovec` names.
///
/// # Errors
/// A page fault; `EINVAL` (too many, or too long together), `ENOMEM`.
pub fn many(call: &Call<'_>, address: usize, count: usize) -> Attempt<Segments> {
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
        segments.push(Segment { address: word(0), length });
    }
    Ok(Segments::Many(segments))
}

fn start(
    call: &Call<'_>,
    direction: Direction,
    segments: Segments,
    position: Option<i64>,
    flags: u32,
) -> Outcome {
    let open = get_file(call, 0)?;
    check_direction(&open, direction)?;
    let has_positions = open.file.is_seekable();
    let position = match position {
        Some(position) => {
            let position = u64::try_from(position).map_err(|_| Errno::EINVAL)?;
            if !has_positions {
                return Err(Errno::ESPIPE.into());
            }
            Some(position)
        }
        None => None,
    };
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
    };
    transfer.start()
}

/// Whether the file was opened for this.
///
/// # Errors
/// `EBADF`, `EISDIR`.
pub fn check_direction(open: &OpenFile, direction: Direction) -> Result<(), Errno> {
    let allowed = match direction {
        Direction::Read => open.is_readable(),
        Direction::Write => open.is_writable(),
    };
    if !allowed {
        return Err(Errno::EBADF);
    }
    let directory = open.place.as_ref().is_some_and(|place| place.entry.node.kind() == Kind::Directory);
    if directory { Err(Errno::EISDIR) } else { Ok(()) }
}
