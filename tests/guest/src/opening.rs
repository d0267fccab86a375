//! Flags of open(2) and openat2(2) that do not go together, and what a file without a name tells of itself.
#![allow(unsafe_code, reason = "openat2 has no safe form that takes any flags")]

use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::sys::stat::{Mode, fstat};

use crate::expect_eq;
use crate::harness::{OrFail, Outcome, Scratch};
use crate::mounts::Stage;

crate::tests! {
    openat2_refuses_what_open_ignores
    a_file_without_a_name_is_written
    a_file_without_a_name_shows_its_number
    the_upper_half_of_a_calls_number_is_ignored
}

#[repr(C)]
struct How {
    flags: u64,
    mode: u64,
    resolve: u64,
}

fn openat2(path: &std::path::Path, flags: i32, mode: u64) -> Result<OwnedFd, Errno> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
    let how = How { flags: flags as u64, mode, resolve: 0 };
    // SAFETY: path and settings live during the call.
    let opened = Errno::result(unsafe {
        libc::syscall(libc::SYS_openat2, libc::AT_FDCWD, path.as_ptr(), &raw const how, size_of::<How>())
    })?;
    // SAFETY: the descriptor is new.
    Ok(unsafe { OwnedFd::from_raw_fd(opened as i32) })
}

fn openat2_refuses_what_open_ignores() -> Outcome {
    let scratch = Scratch::new("openat2")?;
    let path = &scratch.0;
    let beside_path = [
        libc::O_RDWR,
        libc::O_CREAT,
        libc::O_EXCL,
        libc::O_NOCTTY,
        libc::O_DIRECT,
        libc::O_APPEND,
        libc::O_TMPFILE,
    ];
    for flags in beside_path {
        expect_eq!((flags, openat2(path, libc::O_PATH | flags, 0).err()), (flags, Some(Errno::EINVAL)));
        let ignored = OFlag::from_bits_retain(libc::O_PATH | flags);
        open(path, ignored, Mode::empty()).or_fail()?;
    }
    openat2(path, libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC, 0).or_fail()?;
    for mode in [0o1_0000, 1 << 40, u64::MAX] {
        let flags = libc::O_TMPFILE | libc::O_RDWR;
        expect_eq!((mode, openat2(path, flags, mode).err()), (mode, Some(Errno::EINVAL)));
    }
    Ok(())
}

fn a_file_without_a_name_is_written() -> Outcome {
    let scratch = Scratch::new("unnamed")?;
    let temporary = libc::O_TMPFILE & !libc::O_DIRECTORY;
    for flags in [
        libc::O_TMPFILE | libc::O_RDONLY,
        libc::O_TMPFILE | libc::O_RDWR | libc::O_CREAT,
        temporary | libc::O_RDWR,
    ] {
        expect_eq!((flags, openat2(&scratch.0, flags, 0o600).err()), (flags, Some(Errno::EINVAL)));
        let plain = open(&scratch.0, OFlag::from_bits_retain(flags), Mode::S_IRUSR);
        expect_eq!((flags, plain.err()), (flags, Some(Errno::EINVAL)));
    }
    Ok(())
}

fn a_file_without_a_name_shows_its_number() -> Outcome {
    // Not every file system of Linux makes such files: a tmpfs does.
    let stage = Stage::new("number")?;
    let directory = stage.directory("in")?;
    let file = openat2(&directory, libc::O_TMPFILE | libc::O_RDWR, 0o600).or_fail()?;
    let flags = fcntl(&file, FcntlArg::F_GETFL).or_fail()?;
    expect_eq!(flags & libc::O_TMPFILE, libc::O_TMPFILE);
    let shown = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).or_fail()?;
    let number = fstat(&file).or_fail()?.st_ino;
    expect_eq!(shown, directory.join(format!("#{number} (deleted)")));
    Ok(())
}

fn the_upper_half_of_a_calls_number_is_ignored() -> Outcome {
    for upper in [1_i64, 0x3fff_ffff, -1] {
        // SAFETY: getpid has no effect, whatever the upper half says.
        expect_eq!(unsafe { libc::syscall(upper << 32 | libc::SYS_getpid) }, std::process::id().into());
    }
    // SAFETY: there is no call of this number.
    expect_eq!(Errno::result(unsafe { libc::syscall(-1) }), Err(Errno::ENOSYS));
    Ok(())
}
