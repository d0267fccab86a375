//! POSIX access control lists, acl(5), as extended attributes.

#![allow(unsafe_code)] // The C library has no safe forms of these calls.

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::wait::WaitStatus;

use crate::harness::{OrFail, Outcome, Scratch, in_child, skip};
use crate::{expect, expect_eq};

crate::tests! {
    a_list_and_the_mode_are_one
    a_list_decides_who_may_use_a_file
    a_default_list_is_for_new_files
    lists_that_are_refused
}

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const NO_ID: u32 = u32::MAX;
const USER: u32 = 1000;

/// A list: the tag, the permissions and the number of each entry.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for &(tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

/// Owner, a named user, group, mask and others.
fn named(owner: u16, user: u16, group: u16, mask: u16, other: u16) -> Vec<u8> {
    list(&[(1, owner, NO_ID), (2, user, USER), (4, group, NO_ID), (16, mask, NO_ID), (32, other, NO_ID)])
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

fn set(path: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
    let (path, name) = (c_path(path), CString::new(name).unwrap_or_default());
    // SAFETY: valid strings and bytes.
    let result =
        unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    Errno::result(result).map(drop)
}

fn get(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let (path, name) = (c_path(path), CString::new(name).unwrap_or_default());
    let mut value = vec![0; 256];
    // SAFETY: valid strings and memory.
    let length =
        unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    value.truncate(Errno::result(length)? as usize);
    Ok(value)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode() & 0o7777)
}

/// A folder of files with lists, unless the file system of this kernel's `/tmp` has none.
fn scratch(name: &str) -> Result<Option<Scratch>, String> {
    let scratch = Scratch::new(name)?;
    fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o755)).or_fail()?;
    if set(&scratch.0, ACCESS, &list(&[(1, 7, NO_ID), (4, 5, NO_ID), (32, 5, NO_ID)]))
        == Err(Errno::EOPNOTSUPP)
    {
        skip("/tmp has no access control lists here");
        return Ok(None);
    }
    Ok(Some(scratch))
}

fn a_list_and_the_mode_are_one() -> Outcome {
    let Some(scratch) = scratch("acl-mode")? else { return Ok(()) };
    let file = scratch.path("file");
    fs::write(&file, b"text").or_fail()?;
    expect_eq!(get(&file, ACCESS), Err(Errno::ENODATA));
    expect_eq!(set(&file, ACCESS, &named(6, 7, 4, 5, 1)), Ok(()));
    expect_eq!(mode(&file), 0o651);
    expect_eq!(get(&file, ACCESS), Ok(named(6, 7, 4, 5, 1)));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o427)).or_fail()?;
    expect_eq!(get(&file, ACCESS), Ok(named(4, 7, 4, 2, 7)));
    // One that says no more than the mode is not kept.
    expect_eq!(set(&file, ACCESS, &list(&[(1, 6, NO_ID), (4, 4, NO_ID), (32, 0, NO_ID)])), Ok(()));
    expect_eq!((mode(&file), get(&file, ACCESS)), (0o640, Err(Errno::ENODATA)));
    Ok(())
}

fn a_list_decides_who_may_use_a_file() -> Outcome {
    let Some(scratch) = scratch("acl-use")? else { return Ok(()) };
    let file = scratch.path("file");
    fs::write(&file, b"text").or_fail()?;
    let cases = [
        // Permissions of the named user, the mask and others; whether the user may read, and may write.
        (6, 7, 0, true, true),
        (6, 4, 0, true, false),
        (0, 7, 7, false, false),
        (4, 6, 6, true, false),
    ];
    for (user, mask, other, reads, writes) in cases {
        expect_eq!(set(&file, ACCESS, &named(6, user, 0, mask, other)), Ok(()));
        let status = in_child(|| {
            // SAFETY: no pointers.
            unsafe {
                libc::setgroups(0, std::ptr::null());
                libc::syscall(libc::SYS_setresgid, USER, USER, USER);
                libc::syscall(libc::SYS_setresuid, USER, USER, USER);
            }
            let is_read = OpenOptions::new().read(true).open(&file).is_ok();
            let is_written = OpenOptions::new().write(true).open(&file).is_ok();
            i32::from(is_read) + 2 * i32::from(is_written)
        })?;
        let expected = i32::from(reads) + 2 * i32::from(writes);
        expect!(matches!(status, WaitStatus::Exited(_, code) if code == expected));
    }
    Ok(())
}

fn a_default_list_is_for_new_files() -> Outcome {
    let Some(scratch) = scratch("acl-new")? else { return Ok(()) };
    let directory = scratch.path("directory");
    fs::create_dir(&directory).or_fail()?;
    expect_eq!(set(&directory, DEFAULT, &named(7, 6, 5, 7, 4)), Ok(()));
    let (file, inner) = (directory.join("file"), directory.join("inner"));
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o662).open(&file).or_fail()?;
    // The list takes the place of the umask.
    expect_eq!(mode(&file), 0o660);
    expect_eq!(get(&file, ACCESS), Ok(named(6, 6, 5, 6, 0)));
    expect_eq!(get(&file, DEFAULT), Err(Errno::ENODATA));
    fs::create_dir(&inner).or_fail()?;
    expect_eq!(get(&inner, DEFAULT), Ok(named(7, 6, 5, 7, 4)));
    expect_eq!(get(&inner, ACCESS), Ok(named(7, 6, 5, 7, 4)));
    Ok(())
}

fn lists_that_are_refused() -> Outcome {
    let Some(scratch) = scratch("acl-bad")? else { return Ok(()) };
    let file = scratch.path("file");
    fs::write(&file, b"text").or_fail()?;
    expect_eq!(set(&file, DEFAULT, &named(7, 7, 7, 7, 7)), Err(Errno::EACCES));
    let others = [(1, 7, NO_ID), (4, 7, NO_ID), (32, 7, NO_ID)];
    expect_eq!(set(&file, ACCESS, &list(&others[..2])), Err(Errno::EINVAL));
    expect_eq!(set(&file, ACCESS, &list(&[others[0], others[2], others[1]])), Err(Errno::EINVAL));
    expect_eq!(set(&file, ACCESS, &[2, 0, 0]), Err(Errno::EINVAL));
    expect_eq!(set(&file, ACCESS, &[9, 0, 0, 0]), Err(Errno::EOPNOTSUPP));
    // A named user needs a mask.
    expect_eq!(
        set(&file, ACCESS, &list(&[others[0], (2, 7, USER), others[1], others[2]])),
        Err(Errno::EINVAL)
    );
    Ok(())
}
