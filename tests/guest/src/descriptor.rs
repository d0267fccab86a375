//! Descriptors of objects other than files, and the end of what they hold.

use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use nix::errno::Errno;
use nix::fcntl::{
    AT_FDCWD, AtFlags, FallocateFlags, FcntlArg, SealFlag, SpliceFFlags, fallocate, fcntl, splice, tee,
};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair};
use nix::sys::statfs::{OVERLAYFS_SUPER_MAGIC, statfs};
use nix::unistd::{linkat, pipe, write};

use crate::harness::{OrFail, Outcome, Scratch, in_child};
use crate::{expect, expect_eq};

crate::tests! {
    a_pipe_opens_again_without_waiting
    splice_moves_and_tee_copies
    record_locks_end_with_their_process
    closing_any_descriptor_gives_locks_up
    seals_hold
    an_unnamed_file_gets_a_name
    sockets_travel_in_sockets
    watchers_of_watchers_are_limited
    shared_mapping_sees_writes
    size_limit_stops_a_write
}

fn a_pipe_opens_again_without_waiting() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    write(&writer, b"left").or_fail()?;
    drop(writer);
    // As a shell's process substitution: the writer is gone when the name is opened.
    let mut again = File::open(format!("/proc/self/fd/{}", reader.as_raw_fd())).or_fail()?;
    let mut text = String::new();
    again.read_to_string(&mut text).or_fail()?;
    expect_eq!(text, "left");
    Ok(())
}

fn splice_moves_and_tee_copies() -> Outcome {
    let scratch = Scratch::new("splice")?;
    fs::write(scratch.path("from"), b"0123456789").or_fail()?;
    let from = File::open(scratch.path("from")).or_fail()?;
    let (first_out, first_in) = pipe().or_fail()?;
    let (second_out, second_in) = pipe().or_fail()?;
    let mut at = 2;
    expect_eq!(splice(&from, Some(&mut at), &first_in, None, 5, SpliceFFlags::empty()), Ok(5));
    expect_eq!(at, 7);
    expect_eq!(tee(&first_out, &second_in, 3, SpliceFFlags::empty()), Ok(3));
    let to = File::create_new(scratch.path("to")).or_fail()?;
    expect_eq!(splice(&first_out, None, &to, None, 100, SpliceFFlags::empty()), Ok(5));
    expect_eq!(fs::read(scratch.path("to")).or_fail()?, b"23456");
    let mut copied = [0; 8];
    expect_eq!(nix::unistd::read(&second_out, &mut copied), Ok(3));
    expect_eq!(&copied[..3], b"234");
    let none = splice(&first_out, None, &second_in, None, 1, SpliceFFlags::SPLICE_F_NONBLOCK);
    expect_eq!(none, Err(Errno::EAGAIN));
    let files = splice(&from, None, &to, None, 1, SpliceFFlags::empty());
    expect_eq!(files, Err(Errno::EINVAL));
    Ok(())
}

fn lock(kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

fn record_locks_end_with_their_process() -> Outcome {
    let scratch = Scratch::new("locks")?;
    let file =
        OpenOptions::new().read(true).write(true).create_new(true).open(scratch.path("f")).or_fail()?;
    in_child(|| fcntl(&file, FcntlArg::F_SETLK(&lock(libc::F_WRLCK))).map_or(1, |_| 0))?;
    expect_eq!(fcntl(&file, FcntlArg::F_SETLK(&lock(libc::F_WRLCK))), Ok(0));
    Ok(())
}

fn closing_any_descriptor_gives_locks_up() -> Outcome {
    let scratch = Scratch::new("close-locks")?;
    let file =
        OpenOptions::new().read(true).write(true).create_new(true).open(scratch.path("f")).or_fail()?;
    fcntl(&file, FcntlArg::F_SETLK(&lock(libc::F_WRLCK))).or_fail()?;
    let others = || in_child(|| fcntl(&file, FcntlArg::F_SETLK(&lock(libc::F_RDLCK))).map_or(1, |_| 0));
    expect!(matches!(others()?, nix::sys::wait::WaitStatus::Exited(_, 1)));
    drop(File::open(scratch.path("f")).or_fail()?);
    expect!(matches!(others()?, nix::sys::wait::WaitStatus::Exited(_, 0)));
    Ok(())
}

fn seals_hold() -> Outcome {
    let file = File::from(memfd_create(c"sealed", MFdFlags::MFD_ALLOW_SEALING).or_fail()?);
    file.set_len(100).or_fail()?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW)).or_fail()?;
    let denied = |result: std::io::Result<()>| {
        result.err().and_then(|error| error.raw_os_error()) == Some(libc::EPERM)
    };
    expect!(denied(file.set_len(50)) && denied(file.set_len(200)));
    expect!(denied(file.write_at(&[1; 100], 50).map(|_| ())));
    expect_eq!(file.write_at(&[1; 50], 50).or_fail()?, 50);
    let (keep, punch) = (FallocateFlags::FALLOC_FL_KEEP_SIZE, FallocateFlags::FALLOC_FL_PUNCH_HOLE);
    let allocate = |flags, length| fallocate(&file, flags, 0, length);
    expect_eq!(allocate(FallocateFlags::empty(), 200), Err(Errno::EPERM));
    expect_eq!(allocate(keep, 200), Err(Errno::EPERM));
    allocate(punch | keep, 200).or_fail()?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SEAL)).or_fail()?;
    expect!(denied(file.write_at(b"x", 0).map(|_| ())));
    // Memory for what is zeros anyway is no write, a hole is.
    allocate(FallocateFlags::empty(), 100).or_fail()?;
    expect_eq!(allocate(punch | keep, 50), Err(Errno::EPERM));
    expect_eq!(fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_GROW)), Err(Errno::EPERM));
    Ok(())
}

fn an_unnamed_file_gets_a_name() -> Outcome {
    let scratch = Scratch::new("unnamed")?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_TMPFILE);
    let mut file = match options.open(scratch.path(".")) {
        // Linux before 6.3 has no unnamed files on the overlay that its guest's root is.
        Err(error)
            if error.raw_os_error() == Some(libc::EOPNOTSUPP)
                && statfs(&scratch.0).or_fail()?.filesystem_type() == OVERLAYFS_SUPER_MAGIC =>
        {
            return Ok(());
        }
        opened => opened.or_fail()?,
    };
    file.write_all(b"kept").or_fail()?;
    expect_eq!(file.metadata().or_fail()?.nlink(), 0);
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    let to = scratch.path("named");
    linkat(AT_FDCWD, &*name, AT_FDCWD, &to, AtFlags::AT_SYMLINK_FOLLOW).or_fail()?;
    expect_eq!(fs::read(&to).or_fail()?, b"kept");
    // A file that was deleted stays deleted.
    fs::remove_file(&to).or_fail()?;
    let again = linkat(AT_FDCWD, &*name, AT_FDCWD, &to, AtFlags::AT_SYMLINK_FOLLOW);
    expect_eq!(again, Err(Errno::ENOENT));
    Ok(())
}

fn pair() -> Result<(OwnedFd, OwnedFd), String> {
    socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::empty()).or_fail()
}

fn sockets_travel_in_sockets() -> Outcome {
    let (_, mut inner) = pair()?;
    // Linux limits the depth; a kernel that doesn't must survive it.
    for _ in 0..2000 {
        let (sender, receiver) = pair()?;
        let files = [inner.as_raw_fd()];
        let message = [ControlMessage::ScmRights(&files)];
        let data = [IoSlice::new(b"x")];
        match sendmsg::<()>(sender.as_raw_fd(), &data, &message, MsgFlags::empty(), None) {
            Ok(_) => inner = receiver,
            Err(Errno::ETOOMANYREFS) => break,
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(())
}

fn watchers_of_watchers_are_limited() -> Outcome {
    let watch =
        |outer: &Epoll, inner: &Epoll| outer.add(inner.0.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0));
    let new = || Epoll::new(EpollCreateFlags::empty()).or_fail();
    let mut chain = vec![new()?];
    let refused = loop {
        let next = new()?;
        let result = watch(&chain[chain.len() - 1], &next);
        chain.push(next);
        if result.is_err() || chain.len() > 100 {
            break result;
        }
    };
    expect!(matches!(refused, Err(Errno::ELOOP | Errno::EINVAL)));
    let (one, two) = (new()?, new()?);
    watch(&one, &two).or_fail()?;
    expect_eq!(watch(&two, &one), Err(Errno::ELOOP));
    Ok(())
}

#[allow(unsafe_code, reason = "mmap has no safe form")]
fn shared_mapping_sees_writes() -> Outcome {
    let scratch = Scratch::new("mapped")?;
    fs::copy("/etc/passwd", scratch.path("f")).or_fail()?;
    let file = OpenOptions::new().read(true).write(true).open(scratch.path("f")).or_fail()?;
    // SAFETY: a new mapping of a file that stays open and long enough.
    let address = unsafe {
        libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    expect!(address != libc::MAP_FAILED);
    // SAFETY: inside the mapping.
    let first = || unsafe { address.cast::<u8>().read_volatile() };
    let before = first();
    file.write_at(&[before ^ 0x20], 0).or_fail()?;
    expect_eq!(first(), before ^ 0x20);
    // SAFETY: the mapping from above, not used any more.
    unsafe { libc::munmap(address, 4096) };
    Ok(())
}

#[allow(unsafe_code, reason = "changes a signal's action")]
fn size_limit_stops_a_write() -> Outcome {
    let scratch = Scratch::new("limit")?;
    let path = scratch.path("f");
    let status = in_child(|| {
        let limit = libc::rlimit { rlim_cur: 1000, rlim_max: 1000 };
        // SAFETY: plain calls with a valid structure, in a process of its own.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
        }
        let Ok(file) = File::create(&path) else { return 1 };
        let part = file.write_at(&[7; 600], 600).ok();
        let none = file.write_at(b"x", 1000).err().and_then(|error| error.raw_os_error());
        i32::from(part != Some(400)) * 2 + i32::from(none != Some(libc::EFBIG)) * 4
    })?;
    expect!(matches!(status, nix::sys::wait::WaitStatus::Exited(_, 0)));
    Ok(())
}
