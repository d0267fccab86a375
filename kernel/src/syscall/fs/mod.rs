//! System calls about files, by family, and what they share.

pub mod attributes;
pub mod descriptor;
pub mod directory;
pub mod epoll;
pub mod event;
pub mod fanotify;
mod flags;
pub mod handle;
pub mod inotify;
pub mod landlock;
mod lease;
pub mod lock;
pub mod mount;
pub mod names;
pub mod open;
pub mod owner;
pub mod pipe;
pub mod poll;
pub mod position;
pub mod read_write;
pub mod splice;
pub mod stat;
pub mod storage;
pub mod transfer;
pub mod xattr;

use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::general as linux;

use crate::error::{Errno, TryResult};
use crate::fs::lookup::{LookupFlags, PATH_LIMIT};
use crate::fs::{OpenFile, Path};
use crate::syscall::{Call, SyscallResult};

use heddle_kernel_core::fallible::extend_reserved;

pub(crate) use crate::syscall::record::{encode, field};

pub use crate::call::{get, get_bytes, put};
pub use crate::fs::view::View;

/// The most bytes that one read or write moves, as in Linux.
pub const TRANSFER_LIMIT: usize = 0x7fff_f000;

/// Reads a string that ends with a zero byte, which is left out.
///
/// # Errors
/// A page fault, `ENOMEM`; `too_long` if it has `limit` bytes or more.
pub fn get_string(call: &Call<'_>, address: usize, limit: usize, too_long: Errno) -> TryResult<Vec<u8>> {
    let space = call.thread.space();
    let mut string = Vec::new();
    while string.len() < limit {
        let at = address.wrapping_add(string.len());
        // Not over the end of a page: the next one need not exist.
        let mut piece = [0; 128];
        let length = piece.len().min(4096 - at % 4096);
        let piece = &mut piece[..length];
        space.read_bytes(at, piece)?;
        let end = piece.iter().position(|&byte| byte == 0);
        let found = &piece[..end.unwrap_or(length)];
        string.try_reserve(found.len()).map_err(|_| Errno::ENOMEM)?;
        extend_reserved(&mut string, found);
        if end.is_some() {
            if string.len() >= limit {
                break;
            }
            return Ok(string);
        }
    }
    Err(too_long.into())
}

/// Reads the path that an argument points to.
///
/// # Errors
/// A page fault, `ENOMEM`, `ENAMETOOLONG`.
pub fn get_path(call: &Call<'_>, index: usize) -> TryResult<Vec<u8>> {
    get_string(call, call.word(index), PATH_LIMIT, Errno::ENAMETOOLONG)
}

/// The open file behind the descriptor in an argument, which may not be one of `O_PATH`.
///
/// # Errors
/// `EBADF`.
pub fn get_file(call: &Call<'_>, index: usize) -> Result<Arc<OpenFile>, Errno> {
    if index == 0
        && let Some(open) = call.thread.given_file()
    {
        return Ok(open);
    }
    let open = call.thread.descriptors().get(call.int(index))?;
    if open.flags().contains(crate::fs::StatusFlags::PATH) {
        return Err(Errno::EBADF);
    }
    Ok(open)
}

/// Gives an open file the lowest free descriptor; that is the call's result.
///
/// # Errors
/// `EMFILE`, `ENOMEM`.
pub fn add(call: &Call<'_>, open: Arc<OpenFile>, close_on_exec: bool) -> SyscallResult {
    let limit = call.thread.process.descriptor_limit();
    Ok((call.thread.descriptors().add(open, 0, limit, close_on_exec)? as usize).into())
}

/// Looks up `path` relative to a descriptor, with a link at the end followed unless `flags` (`AT_` bits) say
/// otherwise.
///
/// # Errors
/// Those of path_resolution(7).
pub fn find(call: &Call<'_>, descriptor: i32, path: &[u8], flags: u32) -> Result<Path, Errno> {
    let mut how = LookupFlags::FOLLOW;
    if flags & linux::AT_SYMLINK_NOFOLLOW != 0 {
        how.remove(LookupFlags::FOLLOW);
    }
    if flags & linux::AT_EMPTY_PATH != 0 {
        how.insert(LookupFlags::EMPTY);
    }
    View::of(call.thread, descriptor, path)?.walk(call.thread, path, how)?.existing()
}
