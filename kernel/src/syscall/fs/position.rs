//! lseek(2).

use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::FileType;
use crate::syscall::fs::get_file;
use crate::syscall::{Call, SyscallResult};

/// lseek(2).
pub fn lseek(call: &mut Call<'_>) -> SyscallResult {
    let open = get_file(call, 0)?;
    let (distance, whence) = (call.word(1) as i64, call.uint(2));
    if !open.file.is_seekable() {
        return Err(Errno::ESPIPE.into());
    }
    let mut offset = open.offset.lock();
    if open.file.stays_at_start() && whence <= linux::SEEK_HOLE {
        *offset = 0;
        return Ok(0.into());
    }
    let from = |base: u64| {
        let sum = i64::try_from(base).ok().and_then(|base| base.checked_add(distance));
        sum.ok_or(Errno::EOVERFLOW).and_then(|sum| u64::try_from(sum).map_err(|_| Errno::EINVAL))
    };
    let directory = open.place.as_ref().is_some_and(|place| place.entry.node.kind() == FileType::Directory);
    let new = match whence {
        linux::SEEK_SET => from(0)?,
        linux::SEEK_CUR => from(*offset)?,
        linux::SEEK_END if directory => return Err(Errno::EINVAL.into()),
        linux::SEEK_END => from(open.file.size().unwrap_or(0))?,
        linux::SEEK_DATA | linux::SEEK_HOLE => {
            let start = u64::try_from(distance).map_err(|_| Errno::ENXIO)?;
            open.file.seek_data(start, whence == linux::SEEK_DATA)?
        }
        _ => return Err(Errno::EINVAL.into()),
    };
    *offset = new;
    Ok((new as usize).into())
}
