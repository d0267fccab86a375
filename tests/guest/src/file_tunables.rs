//! Settings in `/proc/sys/fs` about files, pipes and descriptors.
#![allow(unsafe_code, reason = "some of the calls have no safe form")]

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown, symlink};

use nix::errno::Errno;
use nix::sys::stat::Mode;
use nix::sys::wait::WaitStatus;
use nix::unistd::mkfifo;

use crate::harness::{OrFail, Outcome, Scratch, in_child};
use crate::tunables::{Changed, USER, as_user, as_user_number, last_error, os, shown};
use crate::{expect, expect_eq};

crate::tests! {
    links_of_others_are_not_followed
    files_of_others_are_not_reused
    names_are_given_to_what_one_may_write
    pipes_grow_to_the_limit
    new_pipes_are_as_large_as_they_may_be
    pipes_of_a_user_are_limited
    descriptors_have_a_highest_limit
    contexts_have_requests_up_to_the_limit
}

/// Another user.
const OTHER: u32 = 23_456;

/// A sticky directory to which everybody may write.
fn common(name: &str) -> Result<Scratch, String> {
    let scratch = Scratch::new(name)?;
    fs::set_permissions(scratch.path(""), fs::Permissions::from_mode(0o1777)).or_fail()?;
    Ok(scratch)
}

fn pipe_size(pipe: &std::os::fd::OwnedFd) -> Result<i32, Errno> {
    use std::os::fd::AsRawFd;
    // SAFETY: no argument is a pointer.
    Errno::result(unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_GETPIPE_SZ) })
}

fn links_of_others_are_not_followed() -> Outcome {
    let scratch = common("links")?;
    let (file, link, own) = (scratch.path("file"), scratch.path("link"), scratch.path("own"));
    fs::write(&file, "text").or_fail()?;
    symlink(&file, &link).or_fail()?;
    symlink(&file, &own).or_fail()?;
    std::os::unix::fs::lchown(&link, Some(OTHER), None).or_fail()?;
    std::os::unix::fs::lchown(&own, Some(USER), None).or_fail()?;
    let open = |path: &std::path::Path| File::open(path).map(drop).map_err(os);
    let changed = Changed::to("fs/protected_symlinks", "1")?;
    expect_eq!(as_user(|| open(&link))?, Errno::EACCES as i32);
    expect_eq!(open(&link), Err(Errno::EACCES));
    expect_eq!(as_user(|| open(&own))?, 0);
    // Whoever owns the directory may lead others.
    std::os::unix::fs::lchown(&link, Some(0), None).or_fail()?;
    expect_eq!(as_user(|| open(&link))?, 0);
    std::os::unix::fs::lchown(&link, Some(OTHER), None).or_fail()?;
    // A link that is not the last of the path is followed.
    let inner = scratch.path("inner");
    symlink(scratch.path(""), &inner).or_fail()?;
    std::os::unix::fs::lchown(&inner, Some(OTHER), None).or_fail()?;
    expect_eq!(as_user(|| open(&inner.join("file")))?, 0);
    drop(changed);
    let _changed = Changed::to("fs/protected_symlinks", "0")?;
    expect_eq!(as_user(|| open(&link))?, 0);
    Ok(())
}

fn files_of_others_are_not_reused() -> Outcome {
    let scratch = common("reuse")?;
    let (file, fifo) = (scratch.path("file"), scratch.path("fifo"));
    fs::write(&file, "text").or_fail()?;
    mkfifo(&fifo, Mode::from_bits_truncate(0o666)).or_fail()?;
    for path in [&file, &fifo] {
        chown(path, Some(OTHER), None).or_fail()?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o666)).or_fail()?;
    }
    let open = |path: &std::path::Path, create: bool| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(create).custom_flags(libc::O_NONBLOCK);
        options.open(path).map(drop).map_err(os)
    };
    for (name, path) in [("fs/protected_regular", &file), ("fs/protected_fifos", &fifo)] {
        for (value, mode, expected) in [
            ("0", 0o1777, 0),
            ("1", 0o1777, libc::EACCES),
            ("1", 0o1775, 0),
            ("2", 0o1775, libc::EACCES),
            ("2", 0o755, 0),
        ] {
            let _changed = Changed::to(name, value)?;
            fs::set_permissions(scratch.path(""), fs::Permissions::from_mode(mode)).or_fail()?;
            expect_eq!((name, value, mode, as_user(|| open(path, true))?), (name, value, mode, expected));
            expect_eq!(as_user(|| open(path, false))?, 0);
        }
    }
    Ok(())
}

fn names_are_given_to_what_one_may_write() -> Outcome {
    let scratch = common("names")?;
    let file = scratch.path("file");
    fs::write(&file, "text").or_fail()?;
    let link = |name: &str| fs::hard_link(&file, scratch.path(name)).map_err(os);
    let changed = Changed::to("fs/protected_hardlinks", "1")?;
    expect_eq!(as_user(|| link("first"))?, Errno::EPERM as i32);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).or_fail()?;
    expect_eq!(as_user(|| link("second"))?, 0);
    // A program that runs with its group's rights.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o2676)).or_fail()?;
    expect_eq!(as_user(|| link("third"))?, Errno::EPERM as i32);
    drop(changed);
    let _changed = Changed::to("fs/protected_hardlinks", "0")?;
    expect_eq!(as_user(|| link("fourth"))?, 0);
    Ok(())
}

fn pipes_grow_to_the_limit() -> Outcome {
    use std::os::fd::AsRawFd;
    // Rounded up to a size that a pipe can have.
    let _changed = Changed::to("fs/pipe-max-size", "70000")?;
    expect_eq!(shown("fs/pipe-max-size")?, "131072");
    let result = as_user(|| {
        let (reader, _writer) = nix::unistd::pipe()?;
        // SAFETY: no argument is a pointer.
        let size = |size: i32| unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETPIPE_SZ, size) };
        Errno::result(size(131_072))?;
        if Errno::result(size(131_073)) == Err(Errno::EPERM) { Ok(()) } else { Err(Errno::EBADMSG) }
    })?;
    expect_eq!(result, 0);
    Ok(())
}

fn new_pipes_are_as_large_as_they_may_be() -> Outcome {
    let _changed = Changed::to("fs/pipe-max-size", "4096")?;
    let has =
        |size: i32| if pipe_size(&nix::unistd::pipe()?.0)? == size { Ok(()) } else { Err(Errno::EBADMSG) };
    expect_eq!(as_user(|| has(4096))?, 0);
    expect_eq!(has(65_536), Ok(()));
    Ok(())
}

fn pipes_of_a_user_are_limited() -> Outcome {
    use std::os::fd::AsRawFd;
    const PIPE_USER: u32 = 4711;
    let soft = Changed::to("fs/pipe-user-pages-soft", "40")?;
    let result = as_user_number(PIPE_USER, || {
        let pipes = (0..4).map(|_| nix::unistd::pipe()).collect::<Result<Vec<_>, _>>()?;
        let sizes = pipes.iter().map(|pipe| pipe_size(&pipe.0)).collect::<Result<Vec<_>, _>>()?;
        // SAFETY: no argument is a pointer.
        let grown = unsafe { libc::fcntl(pipes[0].0.as_raw_fd(), libc::F_SETPIPE_SZ, 1 << 17) };
        let is_refused = Errno::result(grown) == Err(Errno::EPERM);
        if sizes == [65_536, 65_536, 8192, 8192] && is_refused { Ok(()) } else { Err(Errno::EBADMSG) }
    })?;
    expect_eq!(result, 0);
    // Those of a privileged thread are not.
    let pipes = (0..4).map(|_| nix::unistd::pipe()).collect::<Result<Vec<_>, _>>().or_fail()?;
    expect_eq!(pipe_size(&pipes[3].0), Ok(65_536));
    drop((soft, pipes));
    let _changed = Changed::to("fs/pipe-user-pages-hard", "40")?;
    let result = as_user_number(PIPE_USER, || {
        let first = [nix::unistd::pipe()?, nix::unistd::pipe()?];
        if nix::unistd::pipe().err() != Some(Errno::ENFILE) {
            return Err(Errno::EBADMSG);
        }
        drop(first);
        nix::unistd::pipe().map(drop)
    })?;
    expect_eq!(result, 0);
    Ok(())
}

fn descriptors_have_a_highest_limit() -> Outcome {
    let _changed = Changed::to("fs/nr_open", "8192")?;
    for (hard, expected) in [(8192, 0), (8193, libc::EPERM)] {
        let status = in_child(|| {
            let limit = libc::rlimit { rlim_cur: 64, rlim_max: hard };
            // SAFETY: the structure lives through the call.
            let result = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
            if result == 0 { 0 } else { Errno::last_raw() }
        })?;
        expect!(matches!(status, WaitStatus::Exited(_, code) if code == expected));
    }
    Ok(())
}

fn contexts_have_requests_up_to_the_limit() -> Outcome {
    let used: u64 = shown("fs/aio-nr")?.parse().or_fail()?;
    let _changed = Changed::to("fs/aio-max-nr", &(used + 200).to_string())?;
    let setup = |requests: u32| {
        let mut context = 0_u64;
        // SAFETY: the context's number lives through the call.
        last_error(unsafe { libc::syscall(libc::SYS_io_setup, requests, &raw mut context) }).map(|_| context)
    };
    let context = setup(100).or_fail()?;
    expect_eq!(setup(60_000).map(drop), Err(Errno::EAGAIN));
    // SAFETY: the context is this test's.
    last_error(unsafe { libc::syscall(libc::SYS_io_destroy, context) }).or_fail()?;
    Ok(())
}
