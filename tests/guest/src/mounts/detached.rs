//! Mounting by descriptor: open_tree(2), move_mount(2), fsopen(2) and its kin, mount_setattr(2).

#![allow(unsafe_code)] // The C library does not know these calls.

use std::ffi::CString;
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;

use crate::harness::{OrFail, Outcome};
use crate::mounts::{Stage, line_at, lines_below, mount, text, umount};
use crate::{expect, expect_eq};

crate::tests! {
    a_tree_is_copied_and_shown_elsewhere
    a_copy_goes_with_its_descriptor
    a_descriptor_moves_its_mount
    a_file_system_is_made_step_by_step
    steps_that_are_refused
    a_mounted_file_system_is_picked_and_changed
    attributes_of_a_mount_change
    attributes_that_are_refused
}

const OPEN_TREE_CLONE: i32 = 1;
const AT_RECURSIVE: i32 = 0x8000;
const MOVE_MOUNT_F_EMPTY_PATH: i32 = 4;
const SET_FLAG: i32 = 0;
const SET_STRING: i32 = 1;
const CREATE: i32 = 6;
const RECONFIGURE: i32 = 7;
const ATTR_RDONLY: u64 = 1;
const ATTR_NOSUID: u64 = 2;
const ATTR_NOEXEC: u64 = 8;
const ATTR_ATIME: u64 = 0x70;
const ATTR_NOATIME: u64 = 0x10;

fn descriptor(result: i64) -> Result<OwnedFd, Errno> {
    // SAFETY: a new descriptor, which nobody else owns.
    Errno::result(result).map(|number| unsafe { OwnedFd::from_raw_fd(number as i32) })
}

fn open_tree(path: &Path, flags: i32) -> Result<OwnedFd, Errno> {
    let path = text(path);
    // SAFETY: a string.
    descriptor(unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) })
}

fn move_mount(from: &OwnedFd, to: &Path, flags: i32) -> Result<(), Errno> {
    let to = text(to);
    // SAFETY: two strings.
    let result = unsafe {
        let call = libc::SYS_move_mount;
        libc::syscall(call, from.as_raw_fd(), c"".as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags)
    };
    Errno::result(result).map(drop)
}

fn fsopen(kind: &str) -> Result<OwnedFd, Errno> {
    let kind = CString::new(kind).unwrap_or_default();
    // SAFETY: a string.
    descriptor(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), 0) })
}

fn fsconfig(context: &OwnedFd, command: i32, name: Option<&str>, value: Option<&str>) -> Result<(), Errno> {
    let strings = [name, value].map(|text| text.map(|text| CString::new(text).unwrap_or_default()));
    let [name, value] =
        strings.each_ref().map(|text| text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr()));
    // SAFETY: strings or null.
    let result = unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), command, name, value, 0) };
    Errno::result(result).map(drop)
}

fn fsmount(context: &OwnedFd, attributes: u64) -> Result<OwnedFd, Errno> {
    // SAFETY: numbers.
    descriptor(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), 0, attributes) })
}

/// mount_setattr(2) with the words of `struct mount_attr`.
pub fn set_attributes(path: &Path, flags: i32, words: [u64; 4], size: usize) -> Result<(), Errno> {
    let path = text(path);
    // SAFETY: a string and memory.
    let result = unsafe {
        let call = libc::SYS_mount_setattr;
        libc::syscall(call, libc::AT_FDCWD, path.as_ptr(), flags, words.as_ptr(), size)
    };
    Errno::result(result).map(drop)
}

fn a_tree_is_copied_and_shown_elsewhere() -> Outcome {
    let stage = Stage::new("open-tree")?;
    let (one, two, three) = (stage.mounted("one")?, stage.directory("two")?, stage.directory("three")?);
    let _inner = stage.mounted("one/inner")?;
    fs::write(one.join("inner/file"), "").or_fail()?;
    let whole = open_tree(&one, OPEN_TREE_CLONE | AT_RECURSIVE).or_fail()?;
    let alone = open_tree(&one, OPEN_TREE_CLONE).or_fail()?;
    expect_eq!(lines_below(&stage.scratch.0)?.len(), 3);
    // It can be looked into before it is anywhere.
    let inside = nix::sys::stat::fstatat(&whole, "inner/file", nix::fcntl::AtFlags::empty());
    expect!(inside.is_ok());
    move_mount(&whole, &two, MOVE_MOUNT_F_EMPTY_PATH).or_fail()?;
    move_mount(&alone, &three, MOVE_MOUNT_F_EMPTY_PATH).or_fail()?;
    expect!(two.join("inner/file").exists() && !three.join("inner/file").exists());
    expect_eq!((lines_below(&two)?.len(), lines_below(&three)?.len()), (2, 1));
    drop((whole, alone));
    expect!(two.join("inner/file").exists());
    Ok(())
}

fn a_copy_goes_with_its_descriptor() -> Outcome {
    let stage = Stage::new("dissolve")?;
    let one = stage.mounted("one")?;
    let _inner = stage.mounted("one/inner")?;
    let tree = open_tree(&one, OPEN_TREE_CLONE | AT_RECURSIVE).or_fail()?;
    umount(&one.join("inner"), 0).or_fail()?;
    umount(&one, 0).or_fail()?;
    let inside = nix::sys::stat::fstatat(&tree, "inner", nix::fcntl::AtFlags::empty());
    expect!(inside.is_ok());
    drop(tree);
    // Without the copy it is only a place.
    let place = open_tree(&one, 0).or_fail()?;
    let two = stage.directory("two")?;
    expect_eq!(move_mount(&place, &two, MOVE_MOUNT_F_EMPTY_PATH), Err(Errno::EINVAL));
    expect_eq!(open_tree(&one, AT_RECURSIVE).map(drop), Err(Errno::EINVAL));
    expect_eq!(open_tree(&one, 0x4000_0000).map(drop), Err(Errno::EINVAL));
    expect_eq!(open_tree(&stage.path("nothing"), OPEN_TREE_CLONE).map(drop), Err(Errno::ENOENT));
    Ok(())
}

fn a_descriptor_moves_its_mount() -> Outcome {
    let stage = Stage::new("move-mount")?;
    let (one, two) = (stage.mounted("one")?, stage.directory("two")?);
    let id = line_at(&one)?.id;
    let place = open_tree(&one, 0).or_fail()?;
    expect_eq!(move_mount(&place, &two, 0), Err(Errno::ENOENT));
    expect_eq!(move_mount(&place, &two, 0x4000_0000), Err(Errno::EINVAL));
    move_mount(&place, &two, MOVE_MOUNT_F_EMPTY_PATH).or_fail()?;
    expect_eq!(line_at(&two)?.id, id);
    expect_eq!(lines_below(&one)?.len(), 0);
    Ok(())
}

fn a_file_system_is_made_step_by_step() -> Outcome {
    let stage = Stage::new("fsopen")?;
    let one = stage.directory("one")?;
    let context = fsopen("tmpfs").or_fail()?;
    fsconfig(&context, SET_STRING, Some("source"), Some("steps")).or_fail()?;
    fsconfig(&context, SET_STRING, Some("mode"), Some("0700")).or_fail()?;
    fsconfig(&context, CREATE, None, None).or_fail()?;
    let tree = fsmount(&context, ATTR_NOSUID | ATTR_NOATIME).or_fail()?;
    expect_eq!(lines_below(&one)?.len(), 0);
    move_mount(&tree, &one, MOVE_MOUNT_F_EMPTY_PATH).or_fail()?;
    let line = line_at(&one)?;
    expect_eq!((&*line.source, &*line.options), ("steps", "rw,nosuid,noatime"));
    expect_eq!(nix::sys::stat::stat(&one).or_fail()?.st_mode & 0o777, 0o700);
    // One that is read-only for all.
    let two = stage.directory("two")?;
    let context = fsopen("tmpfs").or_fail()?;
    fsconfig(&context, SET_FLAG, Some("ro"), None).or_fail()?;
    fsconfig(&context, CREATE, None, None).or_fail()?;
    let tree = fsmount(&context, 0).or_fail()?;
    move_mount(&tree, &two, MOVE_MOUNT_F_EMPTY_PATH).or_fail()?;
    let line = line_at(&two)?;
    expect_eq!((&*line.source, line.common.starts_with("ro"), line.has("rw")), ("none", true, true));
    expect_eq!(fs::write(two.join("file"), "").map_err(|error| error.raw_os_error()), Err(Some(libc::EROFS)));
    Ok(())
}

fn steps_that_are_refused() -> Outcome {
    let _stage = Stage::new("fsopen-errors")?;
    expect_eq!(fsopen("nosuchfs").map(drop), Err(Errno::ENODEV));
    let context = fsopen("tmpfs").or_fail()?;
    expect_eq!(fsmount(&context, 0).map(drop), Err(Errno::EINVAL));
    expect_eq!(fsconfig(&context, 99, None, None), Err(Errno::EOPNOTSUPP));
    expect_eq!(fsconfig(&context, SET_FLAG, None, None), Err(Errno::EINVAL));
    expect_eq!(fsconfig(&context, SET_STRING, Some("mode"), None), Err(Errno::EINVAL));
    expect_eq!(fsconfig(&context, CREATE, Some("mode"), None), Err(Errno::EINVAL));
    fsconfig(&context, SET_STRING, Some("source"), Some("one")).or_fail()?;
    expect_eq!(fsconfig(&context, SET_STRING, Some("source"), Some("two")), Err(Errno::EINVAL));
    fsconfig(&context, CREATE, None, None).or_fail()?;
    expect_eq!(fsconfig(&context, CREATE, None, None), Err(Errno::EBUSY));
    expect_eq!(fsconfig(&context, RECONFIGURE, None, None), Err(Errno::EBUSY));
    expect_eq!(fsmount(&context, 0x4000_0000).map(drop), Err(Errno::EINVAL));
    drop(fsmount(&context, 0).or_fail()?);
    let plain = OwnedFd::from(fs::File::open("/").or_fail()?);
    expect_eq!(fsconfig(&plain, CREATE, None, None), Err(Errno::EINVAL));
    expect_eq!(fsmount(&plain, 0).map(drop), Err(Errno::EINVAL));
    Ok(())
}

fn a_mounted_file_system_is_picked_and_changed() -> Outcome {
    let stage = Stage::new("fspick")?;
    let one = stage.mounted("one")?;
    let fspick = |path: &Path| {
        let path = text(path);
        // SAFETY: a string.
        descriptor(unsafe { libc::syscall(libc::SYS_fspick, libc::AT_FDCWD, path.as_ptr(), 0) })
    };
    let context = fspick(&one).or_fail()?;
    fsconfig(&context, SET_FLAG, Some("ro"), None).or_fail()?;
    fsconfig(&context, RECONFIGURE, None, None).or_fail()?;
    expect!(line_at(&one)?.common.starts_with("ro"));
    let context = fspick(&one).or_fail()?;
    fsconfig(&context, SET_FLAG, Some("rw"), None).or_fail()?;
    fsconfig(&context, RECONFIGURE, None, None).or_fail()?;
    expect!(line_at(&one)?.common.starts_with("rw"));
    let two = stage.directory("two")?;
    expect_eq!(fspick(&two).map(drop), Err(Errno::EINVAL));
    Ok(())
}

fn attributes_of_a_mount_change() -> Outcome {
    let stage = Stage::new("setattr")?;
    let one = stage.mounted("one")?;
    let inner = stage.mounted("one/inner")?;
    set_attributes(&one, 0, [ATTR_RDONLY | ATTR_NOSUID, 0, 0, 0], 32).or_fail()?;
    expect_eq!(line_at(&one)?.options, "ro,nosuid,relatime");
    expect_eq!(line_at(&inner)?.options, "rw,relatime");
    set_attributes(&one, AT_RECURSIVE, [ATTR_NOEXEC | ATTR_NOATIME, ATTR_RDONLY | ATTR_ATIME, 0, 0], 32)
        .or_fail()?;
    expect_eq!(line_at(&one)?.options, "rw,nosuid,noexec,noatime");
    expect_eq!(line_at(&inner)?.options, "rw,noexec,noatime");
    set_attributes(&one, AT_RECURSIVE, [0, 0, libc::MS_SHARED, 0], 32).or_fail()?;
    expect!(line_at(&one)?.number("shared").is_some() && line_at(&inner)?.number("shared").is_some());
    // Before it is shown anywhere.
    let tree = open_tree(&inner, OPEN_TREE_CLONE).or_fail()?;
    // SAFETY: a string and memory.
    let result = unsafe {
        let words = [ATTR_RDONLY, 0, 0, 0_u64];
        let call = libc::SYS_mount_setattr;
        libc::syscall(call, tree.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, words.as_ptr(), 32)
    };
    expect_eq!(result, 0);
    let two = stage.directory("two")?;
    move_mount(&tree, &two, MOVE_MOUNT_F_EMPTY_PATH).or_fail()?;
    expect_eq!(line_at(&two)?.options, "ro,noexec,noatime");
    Ok(())
}

fn attributes_that_are_refused() -> Outcome {
    let stage = Stage::new("setattr-errors")?;
    let (one, two) = (stage.mounted("one")?, stage.directory("two")?);
    expect_eq!(set_attributes(&two, 0, [ATTR_RDONLY, 0, 0, 0], 32), Err(Errno::EINVAL));
    expect_eq!(set_attributes(&one, 0, [ATTR_NOATIME, 0, 0, 0], 32), Err(Errno::EINVAL));
    expect_eq!(set_attributes(&one, 0, [0, ATTR_NOATIME, 0, 0], 32), Err(Errno::EINVAL));
    expect_eq!(set_attributes(&one, 0, [1 << 40, 0, 0, 0], 32), Err(Errno::EINVAL));
    expect_eq!(set_attributes(&one, 0, [0, 0, libc::MS_SHARED | libc::MS_SLAVE, 0], 32), Err(Errno::EINVAL));
    expect_eq!(set_attributes(&one, 0, [0, 0, 0, 0], 16), Err(Errno::EINVAL));
    expect_eq!(set_attributes(&one, 0, [0, 0, 0, 0], 8192), Err(Errno::E2BIG));
    expect_eq!(set_attributes(&one, 0x4000_0000, [0, 0, 0, 0], 32), Err(Errno::EINVAL));
    expect_eq!(set_attributes(&one, 0, [0, 0, 0, 0], 32), Ok(()));
    mount(None, &one, None, libc::MS_UNBINDABLE).or_fail()?;
    expect_eq!(open_tree(&one, OPEN_TREE_CLONE).map(drop), Err(Errno::EINVAL));
    Ok(())
}
