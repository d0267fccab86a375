//! The flags of files: ioctl_iflags(2), and the older and wider form that XFS began.

use core::mem::offset_of;
use linux_raw_sys::{general as linux, ioctl as requests};

use crate::error::Errno;
use crate::fs::flags::{self, FileFlags};
use crate::fs::{FileType, Inode, OpenFile};
use crate::syscall::fs::{get, put};
use crate::syscall::{Call, SyscallResult};

const EXTENDED_BYTES: usize = size_of::<linux::fsxattr>();
/// Bits of `fsx_xflags` that only make sense for one kind of file.
const OF_DIRECTORIES: u32 = linux::FS_XFLAG_EXTSZINHERIT;
const OF_REGULAR_FILES: u32 = linux::FS_XFLAG_EXTSIZE;

/// Whether ioctl(2) asks for flags.
pub const fn is_request(request: u32) -> bool {
    matches!(
        request,
        requests::FS_IOC_GETFLAGS
            | requests::FS_IOC_SETFLAGS
            | requests::FS_IOC_FSGETXATTR
            | requests::FS_IOC_FSSETXATTR
    )
}

/// Does one of the requests for flags.
pub fn ioctl(call: &Call<'_>, open: &OpenFile, request: u32, address: usize) -> SyscallResult {
    let node = flags::node_of(open).filter(|node| node.file_flags().is_some()).ok_or(Errno::ENOTTY)?;
    match request {
        requests::FS_IOC_GETFLAGS => {
            put(call, address, &u32::from(FileFlags::of(node).bits()).to_ne_bytes())?;
        }
        requests::FS_IOC_FSGETXATTR => {
            let mut bytes = [0; EXTENDED_BYTES];
            bytes[..4].copy_from_slice(&FileFlags::of(node).extended().to_ne_bytes());
            put(call, address, &bytes)?;
        }
        requests::FS_IOC_SETFLAGS => {
            let bits = u32::from_ne_bytes(get(call, address)?);
            let flags = FileFlags::from_bits_truncate(bits as u8);
            set(call, open, node, flags, has_no_more(bits, u32::from(flags.bits())))?;
        }
        _ => {
            let bytes: [u8; EXTENDED_BYTES] = get(call, address)?;
            let word = |at: usize| {
                bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_ne_bytes(*word))
            };
            let bits = word(offset_of!(linux::fsxattr, fsx_xflags));
            let flags = FileFlags::from_extended(bits);
            let is_wrong = bits & OF_REGULAR_FILES != 0 && node.kind() != FileType::Regular
                || bits & OF_DIRECTORIES != 0 && node.kind() != FileType::Directory;
            let others = [
                offset_of!(linux::fsxattr, fsx_extsize),
                offset_of!(linux::fsxattr, fsx_projid),
                offset_of!(linux::fsxattr, fsx_cowextsize),
            ];
            let checked = match has_no_more(bits, flags.extended()) {
                _ if is_wrong => Err(Errno::EINVAL),
                Ok(()) if others.map(word) != [0; 3] => Err(Errno::EOPNOTSUPP),
                checked => checked,
            };
            set(call, open, node, flags, checked)?;
        }
    }
    Ok(0.into())
}

/// Whether there are no other bits than those known.
const fn has_no_more(bits: u32, known: u32) -> Result<(), Errno> {
    if bits == known { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
}

fn set(
    call: &Call<'_>,
    open: &OpenFile,
    node: &dyn Inode,
    flags: FileFlags,
    checked: Result<(), Errno>,
) -> Result<(), Errno> {
    if open.place.as_ref().is_some_and(|place| place.mount.is_read_only()) {
        return Err(Errno::EROFS);
    }
    flags::change(node, flags, checked, &call.thread.credentials())
}
