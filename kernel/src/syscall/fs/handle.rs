//! `name_to_handle_at` and `open_by_handle_at`.

use linux_raw_sys::general as linux;

use crate::error::{Errno, TryResult};
use crate::fs::tree::{FileHandle, HANDLE_BYTES_MAX, decode_handle, encode_handle};
use crate::fs::{Path, StatusFlags};
use crate::syscall::fs::{find, get, get_bytes, get_path, open, put};
use crate::syscall::{Call, SyscallResult};

/// `struct file_handle` before `f_handle`: its length and its type.
const HEADER_BYTES: usize = 8;

fn header(length: usize, kind: i32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&(length as u32).to_ne_bytes());
    header[4..].copy_from_slice(&kind.to_ne_bytes());
    header
}

/// The length in the `struct file_handle` at an address.
fn handle_bytes(call: &Call<'_>, address: usize) -> TryResult<usize> {
    let [b0, b1, b2, b3, ..] = get::<HEADER_BYTES>(call, address)?;
    let length = u32::from_ne_bytes([b0, b1, b2, b3]) as usize;
    if length > HANDLE_BYTES_MAX { Err(Errno::EINVAL.into()) } else { Ok(length) }
}

/// name_to_handle_at(2).
pub fn name_to_handle_at(call: &mut Call<'_>) -> SyscallResult {
    /// The type of a handle for which there was no room.
    const INVALID: i32 = 0xff;
    let (handle, mount_id, flags) = (call.word(2), call.word(3), call.uint(4));
    if flags & !(linux::AT_SYMLINK_FOLLOW | linux::AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let path = get_path(call, 1)?;
    let mut how = flags & linux::AT_EMPTY_PATH;
    if flags & linux::AT_SYMLINK_FOLLOW == 0 {
        how |= linux::AT_SYMLINK_NOFOLLOW;
    }
    let place = find(call, call.int(0), &path, how)?;
    let found = encode_handle(&place)?;
    let room = handle_bytes(call, handle)?;
    let is_room = room >= FileHandle::BYTES;
    put(call, mount_id, &place.mount.id.to_ne_bytes())?;
    let kind = if is_room { FileHandle::TYPE } else { INVALID };
    if is_room {
        put(call, handle.wrapping_add(HEADER_BYTES), &found.to_bytes())?;
    }
    put(call, handle, &header(FileHandle::BYTES, kind))?;
    if is_room { Ok(0.into()) } else { Err(Errno::EOVERFLOW.into()) }
}

/// The place whose file system a descriptor names.
fn place_in_file_system(call: &Call<'_>, descriptor: i32) -> Result<Path, Errno> {
    if descriptor == linux::AT_FDCWD {
        return Ok(call.thread.directories().working());
    }
    let open = call.thread.descriptors().get(descriptor)?;
    if open.flags().contains(StatusFlags::PATH) {
        return Err(Errno::EBADF);
    }
    // Objects that are in no file system have no handles either.
    open.place.clone().ok_or(Errno::ESTALE)
}

/// open_by_handle_at(2).
pub fn open_by_handle_at(call: &mut Call<'_>) -> SyscallResult {
    let (address, flags) = (call.word(1), call.uint(2));
    if !call.thread.credentials().is_capable(linux::CAP_DAC_READ_SEARCH) {
        return Err(Errno::EPERM.into());
    }
    let length = handle_bytes(call, address)?;
    if length == 0 {
        return Err(Errno::EINVAL.into());
    }
    let bytes = get_bytes(call, address.wrapping_add(HEADER_BYTES), length)?;
    let at = place_in_file_system(call, call.int(0))?;
    let handle = FileHandle::from_bytes(&bytes).ok_or(Errno::ESTALE)?;
    open::open_place(call, decode_handle(&at, handle)?, flags)
}
