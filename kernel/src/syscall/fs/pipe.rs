//! pipe(2).

use alloc::sync::Arc;
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::{OpenFile, StatusFlags, pipe};
use crate::syscall::{Call, SyscallResult};

/// pipe(2).
pub fn pipe(call: &mut Call<'_>) -> SyscallResult {
    make(call, 0)
}

/// pipe2(2).
pub fn pipe2(call: &mut Call<'_>) -> SyscallResult {
    make(call, call.uint(1))
}

fn make(call: &mut Call<'_>, flags: u32) -> SyscallResult {
    if flags & !(linux::O_CLOEXEC | linux::O_NONBLOCK | linux::O_DIRECT) != 0 {
        return Err(Errno::EINVAL.into());
    }
    call.thread.space().probe_write(call.word(0), 8)?;
    let status = StatusFlags::from_bits_retain(flags & (linux::O_NONBLOCK | linux::O_DIRECT));
    let (reader, writer) = pipe::pair(&call.thread.credentials(), status)?;
    let descriptors = add_pair(call, reader, writer, flags & linux::O_CLOEXEC != 0)?;
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&descriptors[0].to_ne_bytes());
    bytes[4..].copy_from_slice(&descriptors[1].to_ne_bytes());
    call.thread.store_result(call.word(0), &bytes)?;
    Ok(0.into())
}

/// Gives two open files descriptors, or neither.
pub fn add_pair(
    call: &Call<'_>,
    first: Arc<OpenFile>,
    second: Arc<OpenFile>,
    close_on_exec: bool,
) -> Result<[i32; 2], Errno> {
    let (table, limit) = (call.thread.descriptors(), call.thread.process.descriptor_limit());
    let one = table.add(first, 0, limit, close_on_exec)?;
    match table.add(second, 0, limit, close_on_exec) {
        Ok(two) => Ok([one, two]),
        Err(error) => {
            drop(table.remove(one));
            Err(error)
        }
    }
}
