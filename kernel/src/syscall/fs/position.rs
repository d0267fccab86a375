//! lseek(2).

use alloc::sync::Arc;
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::{FileType, OpenFile, Sought};
use crate::sched::Budget;
use crate::syscall::fs::get_file;
use crate::syscall::{Call, SyscallResult, pending};

/// lseek(2).
pub fn lseek(call: &mut Call<'_>) -> SyscallResult {
    let open = get_file(call, 0)?;
    let (distance, whence) = (call.word(1) as i64, call.uint(2));
    if whence > linux::SEEK_HOLE {
        return Err(Errno::EINVAL.into());
    }
    if !open.file.is_seekable() {
        return Err(Errno::ESPIPE.into());
    }
    let is_directory =
        open.place.as_ref().is_some_and(|place| place.entry.node.kind() == FileType::Directory);
    if is_directory && matches!(whence, linux::SEEK_DATA | linux::SEEK_HOLE) {
        return Err(Errno::EINVAL.into());
    }
    if matches!(whence, linux::SEEK_DATA | linux::SEEK_HOLE) && !open.file.stays_at_start() {
        let start = u64::try_from(distance).map_err(|_| Errno::ENXIO)?;
        return seek_data(call, open, start, whence == linux::SEEK_DATA);
    }
    // A file that has its answers from elsewhere is not asked with a spinlock held.
    let _alone = open.lock_alone()?;
    let size = if whence == linux::SEEK_END && !is_directory { open.file.size().unwrap_or(0) } else { 0 };
    let mut offset = open.offset.lock();
    if open.file.stays_at_start() && whence <= linux::SEEK_HOLE {
        *offset = 0;
        return Ok(0.into());
    }
    let from = |base: u64| {
        let sum = i64::try_from(base).ok().and_then(|base| base.checked_add(distance));
        sum.ok_or(Errno::EOVERFLOW).and_then(|sum| u64::try_from(sum).map_err(|_| Errno::EINVAL))
    };
    let new = match whence {
        linux::SEEK_SET => from(0)?,
        linux::SEEK_CUR => from(*offset)?,
        linux::SEEK_END if is_directory => return Err(Errno::EINVAL.into()),
        linux::SEEK_END => from(size)?,
        _ => return Err(Errno::EINVAL.into()),
    };
    *offset = new;
    Ok((new as usize).into())
}

/// The cost of a step of a search, in units of a [`Budget`].
const STEP_COST: u32 = 32;

/// Goes to the first data, or to the first hole: a file may be looked through page by page.
fn seek_data(call: &Call<'_>, open: Arc<OpenFile>, start: u64, data: bool) -> SyscallResult {
    let mut reached = match open.file.seek_data(start, data)? {
        Sought::Found(found) => {
            *open.offset.lock() = found;
            return Ok((found as usize).into());
        }
        Sought::UpTo(reached) => reached,
    };
    let caller = call.thread.clone();
    pending(async move {
        let mut budget = Budget::new();
        loop {
            caller.pace(&mut budget, STEP_COST).await?;
            match open.file.seek_data(reached, data) {
                Ok(Sought::Found(found)) => {
                    *open.offset.lock() = found;
                    return Ok(found as usize);
                }
                Ok(Sought::UpTo(next)) => reached = next,
                Err(error) => return Err(error),
            }
        }
    })
}
