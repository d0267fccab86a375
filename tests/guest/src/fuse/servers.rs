//! Means of Debian's programs that serve file systems: splicing, several descriptors, extended attributes, the ends of
//! descriptors, and lines about their mounts.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd::{gettid, pipe2};

use crate::extended::{get, list, remove, set};
use crate::fuse::Served;
use crate::fuse::server::{Asked, Server, opcode};
use crate::harness::{OrFail, Outcome, in_child};
use crate::mounts::{Stage, mount_with, umount};
use crate::pi::wait_until_it_waits;
use crate::{expect, expect_eq};

crate::tests! {
    a_server_waits_for_requests_by_a_pipe_that_does_not_wait
    a_splice_heeds_the_side_that_would_block
    a_second_descriptor_serves_the_same_mount
    extended_attributes_are_the_servers
    a_server_without_extended_attributes
    each_closed_descriptor_is_told_of
    a_mount_says_who_serves_it
}

/// Room for the longest request: a write of 64 KiB.
const REQUEST_BYTES: usize = 1 << 18;

/// Reads a request by a pipe, as libfuse does.
fn next_by_pipe(server: &Server, pipe: &(OwnedFd, OwnedFd)) -> Result<Asked, i32> {
    let device = server.device().map_err(|error| error.raw_os_error().unwrap_or(0))?;
    let moved = splice(device.as_fd(), None, &pipe.1, None, REQUEST_BYTES, SpliceFFlags::empty());
    let mut bytes = vec![0; moved.map_err(|error| error as i32)?];
    let mut from = File::from(pipe.0.try_clone().map_err(|_| libc::EMFILE)?);
    from.read_exact(&mut bytes).map_err(|error| error.raw_os_error().unwrap_or(0))?;
    Ok(Asked::parse(&bytes))
}

/// Answers a request with bytes by a pipe, as libfuse does: the header is in the pipe before its length is known.
fn answer_by_pipe(server: &Server, asked: &Asked, pipe: &(OwnedFd, OwnedFd)) -> Outcome {
    let fields = server.with(|files| files.answer(asked)).and_then(Result::ok).ok_or("no answer")?;
    let header = std::array::from_fn(|place| match place {
        0 => AtomicU32::new(32_784),
        2 => AtomicU32::new(asked.unique as u32),
        3 => AtomicU32::new((asked.unique >> 32) as u32),
        _ => AtomicU32::new(0),
    });
    let header: Box<[AtomicU32; 4]> = Box::new(header);
    let part = libc::iovec { iov_base: header.as_ptr().cast_mut().cast(), iov_len: 16 };
    // SAFETY: the header stays as long as it is in the pipe.
    let given = unsafe { libc::vmsplice(pipe.1.as_raw_fd(), &raw const part, 1, libc::SPLICE_F_NONBLOCK) };
    expect_eq!(given, 16);
    nix::unistd::write(&pipe.1, &fields).or_fail()?;
    let length = 16 + fields.len();
    header[0].store(length as u32, Ordering::SeqCst);
    let device = server.device().or_fail()?;
    let moved = splice(&pipe.0, None, device.as_fd(), None, length, SpliceFFlags::empty());
    expect_eq!(moved, Ok(length));
    Ok(())
}

fn a_server_waits_for_requests_by_a_pipe_that_does_not_wait() -> Outcome {
    let served = Served::new("fuse-pipe")?;
    let (server, tid) = (served.server.clone(), Arc::new(AtomicI32::new(0)));
    let own = tid.clone();
    let thread = std::thread::spawn(move || -> Result<i32, String> {
        let pipe = pipe2(OFlag::O_NONBLOCK).or_fail()?;
        fcntl(&pipe.0, FcntlArg::F_SETPIPE_SZ(REQUEST_BYTES as i32)).or_fail()?;
        own.store(gettid().as_raw(), Ordering::SeqCst);
        loop {
            match next_by_pipe(&server, &pipe) {
                Ok(asked) if asked.opcode == opcode::READ => answer_by_pipe(&server, &asked, &pipe)?,
                Ok(asked) => server.answer(&asked),
                Err(libc::ENOENT | libc::EINTR) => {}
                Err(error) => return Ok(error),
            }
        }
    });
    wait_until_it_waits(&tid)?;
    fs::write(served.top.join("file"), "text").or_fail()?;
    wait_until_it_waits(&tid)?;
    expect_eq!(fs::read(served.top.join("file")).or_fail()?, b"text");
    umount(&served.top, 0).or_fail()?;
    expect_eq!(thread.join().map_err(|_| "the server")??, libc::ENODEV);
    Ok(())
}

/// Splices in a thread of its own between two descriptors, waits until that waits, and returns what came of it after
/// `end`.
fn spliced(
    from: OwnedFd,
    to: OwnedFd,
    end: impl FnOnce() -> Outcome,
) -> Result<Result<usize, Errno>, String> {
    let tid = Arc::new(AtomicI32::new(0));
    let own = tid.clone();
    let thread = std::thread::spawn(move || {
        own.store(gettid().as_raw(), Ordering::SeqCst);
        splice(&from, None, &to, None, 1, SpliceFFlags::empty())
    });
    wait_until_it_waits(&tid)?;
    end()?;
    thread.join().map_err(|_| "the splice".to_owned())
}

fn a_splice_heeds_the_side_that_would_block() -> Outcome {
    let write = |to: &OwnedFd| nix::unistd::write(to, b"x").or_fail().map(drop);
    let (none, flag) = (SpliceFFlags::empty(), SpliceFFlags::SPLICE_F_NONBLOCK);
    // From a datagram socket, which heeds its own flag only.
    let pair = || socketpair(AddressFamily::Unix, SockType::Datagram, None, SockFlag::empty()).or_fail();
    let (given, taken) = pair()?;
    let (pipe_out, pipe_in) = pipe2(OFlag::O_NONBLOCK).or_fail()?;
    let sent = given.try_clone().or_fail()?;
    let result = spliced(taken, pipe_in.try_clone().or_fail()?, || write(&sent))?;
    expect_eq!(result, Ok(1));
    drop(pipe_out);
    // From a stream, which heeds the pipe's as well.
    let (_given, taken) =
        socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::empty()).or_fail()?;
    let (_pipe_out, pipe_in) = pipe2(OFlag::O_NONBLOCK).or_fail()?;
    expect_eq!(splice(&taken, None, &pipe_in, None, 1, none), Err(Errno::EAGAIN));
    let (_pipe_out, pipe_in) = pipe2(OFlag::empty()).or_fail()?;
    expect_eq!(splice(&taken, None, &pipe_in, None, 1, flag), Err(Errno::EAGAIN));
    // From a pipe to a socket: the flag is the pipe's.
    let (pipe_out, pipe_in) = pipe2(OFlag::empty()).or_fail()?;
    expect_eq!(splice(&pipe_out, None, &taken, None, 1, flag), Err(Errno::EAGAIN));
    let (full, _other) =
        socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_NONBLOCK).or_fail()?;
    let result = spliced(pipe_out, full, || write(&pipe_in))?;
    expect_eq!(result, Ok(1));
    Ok(())
}

fn a_second_descriptor_serves_the_same_mount() -> Outcome {
    const CLONE: libc::c_ulong = 0x8004_e500;
    let served = Served::new("fuse-clone")?;
    let first = served.server.device().or_fail()?;
    let second = OpenOptions::new().read(true).write(true).open("/dev/fuse").or_fail()?;
    let clone = |of: i32| {
        // SAFETY: the request reads one number.
        Errno::result(unsafe { libc::ioctl(second.as_raw_fd(), CLONE, &raw const of) }).err()
    };
    expect_eq!(clone(second.as_raw_fd()), Some(Errno::EINVAL));
    expect_eq!(clone(-1), Some(Errno::EINVAL));
    expect_eq!(clone(first.as_raw_fd()), None);
    drop(first);
    // The mount is served as long as one is open.
    served.server.replace_device(second);
    let thread = served.server.start(|_| {});
    fs::write(served.top.join("file"), "x").or_fail()?;
    expect_eq!(fs::read(served.top.join("file")).or_fail()?, b"x");
    umount(&served.top, 0).or_fail()?;
    expect_eq!(thread.join().ok(), Some(libc::ENODEV));
    Ok(())
}

fn extended_attributes_are_the_servers() -> Outcome {
    let served = Served::new("fuse-extended")?;
    let _thread = served.server.start(|_| {});
    let path = served.top.join("file");
    fs::write(&path, "x").or_fail()?;
    expect_eq!(get(&path, "user.one", 100), Err(Errno::ENODATA));
    set(&path, "user.one", b"value", 0).or_fail()?;
    set(&path, "security.two", b"", 0).or_fail()?;
    expect_eq!(get(&path, "user.one", 100), Ok(b"value".to_vec()));
    expect_eq!(get(&path, "user.one", 4), Err(Errno::ERANGE));
    expect_eq!(get(&path, "user.one", 5).map(|value| value.len()), Ok(5));
    let c_path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).or_fail()?;
    // SAFETY: strings, and room for nothing.
    let length = unsafe { libc::getxattr(c_path.as_ptr(), c"user.one".as_ptr(), std::ptr::null_mut(), 0) };
    expect_eq!(length, 5);
    // SAFETY: as above.
    expect_eq!(unsafe { libc::listxattr(c_path.as_ptr(), std::ptr::null_mut(), 0) }, 22);
    expect_eq!(list(&path).or_fail()?, ["security.two", "user.one"]);
    remove(&path, "user.one").or_fail()?;
    expect_eq!(remove(&path, "user.one"), Err(Errno::ENODATA));
    expect_eq!(list(&path).or_fail()?, ["security.two"]);
    Ok(())
}

fn a_server_without_extended_attributes() -> Outcome {
    let served = Served::new("fuse-no-extended")?;
    let server = served.server.clone();
    let _thread = std::thread::spawn(move || {
        while let Ok(asked) = server.next() {
            if (opcode::SETXATTR..=opcode::REMOVEXATTR).contains(&asked.opcode) {
                let _ = server.say(asked.unique, -libc::ENOSYS, &[]);
            } else {
                server.answer(&asked);
            }
        }
    });
    let path = served.top.join("file");
    fs::write(&path, "x").or_fail()?;
    expect_eq!(set(&path, "user.one", b"value", 0), Err(Errno::EOPNOTSUPP));
    expect_eq!(get(&path, "user.one", 100), Err(Errno::EOPNOTSUPP));
    expect_eq!(remove(&path, "user.one"), Err(Errno::EOPNOTSUPP));
    Ok(())
}

fn each_closed_descriptor_is_told_of() -> Outcome {
    let served = Served::new("fuse-closed")?;
    let _thread = served.server.start(|_| {});
    let path = served.top.join("file");
    fs::write(&path, "x").or_fail()?;
    let flushes = || served.server.with(|files| files.count(opcode::FLUSH));
    let file = File::open(&path).or_fail()?;
    let before = flushes();
    // One is put in the place of another.
    let other = file.try_clone().or_fail()?;
    let zero = File::open("/dev/null").or_fail()?;
    // SAFETY: numbers; the copy's descriptor is one still.
    Errno::result(unsafe { libc::dup2(zero.as_raw_fd(), other.as_raw_fd()) }).or_fail()?;
    expect_eq!(flushes(), before + 1);
    drop(other);
    expect_eq!(flushes(), before + 1);
    // A range of them, the end of a process, and of a program.
    let other = file.try_clone().or_fail()?;
    let number = other.as_raw_fd().cast_unsigned();
    // SAFETY: numbers; the copy is forgotten.
    Errno::result(unsafe { libc::syscall(libc::SYS_close_range, number, number, 0) }).or_fail()?;
    std::mem::forget(other);
    expect_eq!(flushes(), before + 2);
    in_child(|| 0)?;
    // On Heddle the child does not wait for the answer.
    while flushes() < before + 3 {
        std::thread::yield_now();
    }
    let _ = std::process::Command::new("/proc/self/exe").arg("--list").output().or_fail()?;
    while flushes() < before + 4 {
        std::thread::yield_now();
    }
    drop(file);
    while flushes() < before + 5 {
        std::thread::yield_now();
    }
    expect_eq!(flushes(), before + 5);
    Ok(())
}

/// The line of the last mount on a directory.
fn information(top: &Path) -> Result<String, String> {
    let all = fs::read_to_string("/proc/self/mountinfo").or_fail()?;
    let place = top.to_string_lossy().into_owned();
    let last = all.lines().filter(|line| line.split(' ').nth(4) == Some(&place)).last();
    last.map(str::to_owned).ok_or_else(|| format!("nothing is mounted on {place}"))
}

fn a_mount_says_who_serves_it() -> Outcome {
    let stage = Stage::new("fuse-line")?;
    let top = stage.directory("served")?;
    let try_mount = |kind: &str, more: &str| {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").or_fail()?;
        let rest = format!("fd={},rootmode=40000,user_id=0,group_id=7{more}", device.as_raw_fd());
        let mounted = mount_with(Some(Path::new("a b")), &top, Some(kind), libc::MS_NOSUID, Some(&rest));
        Ok::<_, String>((mounted.err(), device))
    };
    let (none, device) = try_mount("fuse.some", ",allow_other,default_permissions,max_read=5000")?;
    expect_eq!(none, None);
    let line = information(&top)?;
    let expected =
        " - fuse.some a\\040b rw,user_id=0,group_id=7,default_permissions,allow_other,max_read=5000";
    expect!(line.ends_with(expected));
    let mounts = fs::read_to_string("/proc/self/mounts").or_fail()?;
    let shown = mounts.lines().find(|line| line.contains("fuse.some")).unwrap_or_default();
    expect!(shown.ends_with(
        " fuse.some rw,nosuid,relatime,user_id=0,group_id=7,default_permissions,allow_other,max_read=5000 0 0"
    ));
    umount(&top, 0).or_fail()?;
    drop(device);
    let (none, device) = try_mount("fuse", ",subtype=other")?;
    expect_eq!(none, None);
    expect!(information(&top)?.ends_with(" - fuse.other a\\040b rw,user_id=0,group_id=7"));
    umount(&top, 0).or_fail()?;
    drop(device);
    expect_eq!(try_mount("fuse.", "")?.0, Some(Errno::EINVAL));
    expect_eq!(try_mount("fuse.one", ",subtype=other")?.0, Some(Errno::EINVAL));
    Ok(())
}
