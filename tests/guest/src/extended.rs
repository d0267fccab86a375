//! Extended attributes, and calls that few programs make.
#![allow(unsafe_code, reason = "these calls have no safe form")]

use std::ffi::{CString, c_void};
use std::fs::{self, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::harness::{OrFail, Outcome, Scratch, in_child, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    attributes_are_kept_and_listed
    attributes_have_rules
    a_circle_of_locks_is_refused
    several_messages_in_one_call
    unshare_separates_threads
    many_descriptors_in_one_epoll
    io_priorities_are_kept
    load_averages_are_numbers
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

pub fn set(path: &Path, name: &str, value: &[u8], flags: i32) -> Result<(), Errno> {
    let (path, name) = (c_path(path), CString::new(name).unwrap_or_default());
    let value_at = value.as_ptr().cast::<c_void>();
    // SAFETY: the strings and the value live through the call.
    let result = unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value_at, value.len(), flags) };
    Errno::result(result).map(drop)
}

pub fn get(path: &Path, name: &str, room: usize) -> Result<Vec<u8>, Errno> {
    let (path, name) = (c_path(path), CString::new(name).unwrap_or_default());
    let mut value = vec![0_u8; room];
    // SAFETY: the call writes at most `room` bytes.
    let result = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), room) };
    value.truncate(Errno::result(result)? as usize);
    Ok(value)
}

pub fn list(path: &Path) -> Result<Vec<String>, Errno> {
    let path = c_path(path);
    let mut names = vec![0_u8; 4096];
    // SAFETY: the call writes at most as many bytes as there is room for.
    let result = unsafe { libc::listxattr(path.as_ptr(), names.as_mut_ptr().cast(), names.len()) };
    names.truncate(Errno::result(result)? as usize);
    let names = names.split(|&byte| byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
}

pub fn remove(path: &Path, name: &str) -> Result<(), Errno> {
    let (path, name) = (c_path(path), CString::new(name).unwrap_or_default());
    // SAFETY: the strings live through the call.
    Errno::result(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) }).map(drop)
}

/// Of `trusted` attributes, because Linux 6.1 has no others on tmpfs.
fn attributes_are_kept_and_listed() -> Outcome {
    let scratch = Scratch::new("attributes")?;
    let path = scratch.path("file");
    fs::write(&path, "contents").or_fail()?;
    set(&path, "trusted.one", b"1", 0).or_fail()?;
    set(&path, "trusted.two", b"twenty-two", libc::XATTR_CREATE).or_fail()?;
    expect_eq!(get(&path, "trusted.two", 100), Ok(b"twenty-two".to_vec()));
    expect_eq!(get(&path, "trusted.two", 3), Err(Errno::ERANGE));
    expect_eq!(set(&path, "trusted.one", b"x", libc::XATTR_CREATE), Err(Errno::EEXIST));
    expect_eq!(set(&path, "trusted.three", b"x", libc::XATTR_REPLACE), Err(Errno::ENODATA));
    set(&path, "trusted.one", b"", libc::XATTR_REPLACE).or_fail()?;
    expect_eq!(get(&path, "trusted.one", 100), Ok(Vec::new()));
    let mut names = list(&path).or_fail()?;
    names.retain(|name| name.starts_with("trusted."));
    names.sort();
    expect_eq!(names, ["trusted.one", "trusted.two"]);
    let moved = scratch.path("moved");
    fs::rename(&path, &moved).or_fail()?;
    expect_eq!(get(&moved, "trusted.two", 100), Ok(b"twenty-two".to_vec()));
    remove(&moved, "trusted.two").or_fail()?;
    expect_eq!(get(&moved, "trusted.two", 100), Err(Errno::ENODATA));
    expect_eq!(remove(&moved, "trusted.two"), Err(Errno::ENODATA));
    Ok(())
}

fn attributes_have_rules() -> Outcome {
    let scratch = Scratch::new("rules")?;
    let path = scratch.path("file");
    fs::write(&path, "").or_fail()?;
    expect_eq!(set(&path, "", b"", 0), Err(Errno::ERANGE));
    expect_eq!(set(&path, "unknown.name", b"", 0), Err(Errno::EOPNOTSUPP));
    expect_eq!(set(&path, &format!("trusted.{}", "n".repeat(250)), b"", 0), Err(Errno::ERANGE));
    expect_eq!(set(&path, "trusted.large", &vec![0; 70_000], 0), Err(Errno::E2BIG));
    expect_eq!(list(&scratch.path("nothing")), Err(Errno::ENOENT));
    expect_eq!(get(&scratch.path("nothing"), "trusted.a", 1), Err(Errno::ENOENT));
    set(&path, "trusted.secret", b"s", 0).or_fail()?;
    let ended = in_child(|| {
        let user = nix::unistd::Uid::from_raw(12_345);
        if nix::unistd::setuid(user).is_err() {
            return 1;
        }
        let hidden = list(&path).is_ok_and(|names| names.iter().all(|name| !name.starts_with("trusted.")));
        let denied = set(&path, "trusted.mine", b"", 0) == Err(Errno::EPERM);
        let unknown = get(&path, "trusted.secret", 10) == Err(Errno::ENODATA);
        i32::from(!(hidden && denied && unknown))
    })?;
    expect!(matches!(ended, nix::sys::wait::WaitStatus::Exited(_, 0)));
    Ok(())
}

fn a_circle_of_locks_is_refused() -> Outcome {
    use nix::fcntl::{FcntlArg, fcntl};
    let scratch = Scratch::new("circle")?;
    let path = scratch.path("file");
    fs::write(&path, [0; 100]).or_fail()?;
    let file = OpenOptions::new().read(true).write(true).open(&path).or_fail()?;
    let range = |start: i64| libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: 10,
        l_pid: 0,
    };
    fcntl(&file, FcntlArg::F_SETLK(&range(0))).or_fail()?;
    let (ready, waits) = nix::unistd::pipe().or_fail()?;
    let child = spawn_child(|| {
        let Ok(file) = OpenOptions::new().read(true).write(true).open(&path) else { return 1 };
        if fcntl(&file, FcntlArg::F_SETLK(&range(20))).is_err() {
            return 2;
        }
        let _ = nix::unistd::write(&waits, b"x");
        // Waits until the parent, which is refused, gives its lock up.
        i32::from(fcntl(&file, FcntlArg::F_SETLKW(&range(0))).is_err()) * 3
    })?;
    nix::unistd::read(&ready, &mut [0]).or_fail()?;
    // The child may not wait yet; once it does, this one must not.
    std::thread::sleep(std::time::Duration::from_millis(300));
    expect_eq!(fcntl(&file, FcntlArg::F_SETLKW(&range(20))), Err(Errno::EDEADLK));
    drop(file);
    let status = nix::sys::wait::waitpid(child, None).or_fail()?;
    expect!(matches!(status, nix::sys::wait::WaitStatus::Exited(_, 0)));
    Ok(())
}

fn several_messages_in_one_call() -> Outcome {
    let (left, right) = UnixDatagram::pair().or_fail()?;
    let texts: [&[u8]; 3] = [b"one", b"three", b"fifteen letters"];
    let mut vectors =
        texts.map(|text| libc::iovec { iov_base: text.as_ptr().cast_mut().cast(), iov_len: text.len() });
    let message = |vector: &mut libc::iovec| {
        // SAFETY: all of these structures may be zero.
        let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
        message.msg_hdr.msg_iov = vector;
        message.msg_hdr.msg_iovlen = 1;
        message
    };
    let mut messages: Vec<_> = vectors.iter_mut().map(message).collect();
    // SAFETY: three messages with a vector each.
    let sent = unsafe { libc::sendmmsg(left.as_raw_fd(), messages.as_mut_ptr(), 3, 0) };
    expect_eq!(Errno::result(sent).or_fail()?, 3);
    expect_eq!(messages.iter().map(|message| message.msg_len).collect::<Vec<_>>(), [3, 5, 15]);
    let mut room = [[0_u8; 8]; 4];
    let mut vectors: Vec<_> = room
        .iter_mut()
        .map(|room| libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() })
        .collect();
    let mut messages: Vec<_> = vectors.iter_mut().map(message).collect();
    let flags = libc::MSG_WAITFORONE;
    let none = std::ptr::null_mut();
    // SAFETY: four messages with a vector each.
    let received = unsafe { libc::recvmmsg(right.as_raw_fd(), messages.as_mut_ptr(), 4, flags, none) };
    expect_eq!(Errno::result(received).or_fail()?, 3);
    expect_eq!(messages.iter().map(|message| message.msg_len).collect::<Vec<_>>(), [3, 5, 8, 0]);
    expect!(messages[2].msg_hdr.msg_flags & libc::MSG_TRUNC != 0);
    expect_eq!(&room[1][..5], b"three");
    // SAFETY: as before; nothing is there.
    let received =
        unsafe { libc::recvmmsg(right.as_raw_fd(), messages.as_mut_ptr(), 4, libc::MSG_DONTWAIT, none) };
    expect_eq!(Errno::result(received), Err(Errno::EAGAIN));
    Ok(())
}

fn unshare_separates_threads() -> Outcome {
    use nix::sched::{CloneFlags, unshare};
    let (reader, _writer) = nix::unistd::pipe().or_fail()?;
    let number = reader.as_raw_fd();
    let own = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_FILES).map_err(|error| error.to_string())?;
        nix::unistd::chdir("/tmp").map_err(|error| error.to_string())?;
        // SAFETY: the copy of the table that this thread has now holds a descriptor of this number.
        Errno::result(unsafe { libc::close(number) }).map_err(|error| error.to_string())
    });
    let before = std::env::current_dir().or_fail()?;
    own.join().map_err(|_| "panicked")??;
    expect_eq!(std::env::current_dir().or_fail()?, before);
    // SAFETY: asks for flags only.
    expect!(unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0);
    expect_eq!(unshare(CloneFlags::from_bits_retain(0x1)), Err(Errno::EINVAL));
    Ok(())
}

fn many_descriptors_in_one_epoll() -> Outcome {
    let epoll = Epoll::new(EpollCreateFlags::empty()).or_fail()?;
    let mut pipes = Vec::new();
    for number in 0..400 {
        let ends = nix::unistd::pipe().or_fail()?;
        epoll.add(&ends.0, EpollEvent::new(EpollFlags::EPOLLIN, number)).or_fail()?;
        pipes.push(ends);
    }
    expect_eq!(epoll.add(&pipes[7].0, EpollEvent::new(EpollFlags::EPOLLIN, 0)), Err(Errno::EEXIST));
    // Places of what is taken out or closed serve others.
    for number in (0..400).step_by(2) {
        epoll.delete(&pipes[number].0).or_fail()?;
    }
    pipes.truncate(300);
    expect_eq!(epoll.delete(&pipes[2].0), Err(Errno::ENOENT));
    for number in (0..300).step_by(2) {
        epoll.add(&pipes[number].0, EpollEvent::new(EpollFlags::EPOLLIN, number as u64)).or_fail()?;
    }
    for ends in &pipes {
        nix::unistd::write(&ends.1, b"x").or_fail()?;
    }
    let mut seen = std::collections::BTreeSet::new();
    let mut events = [EpollEvent::empty(); 64];
    while seen.len() < 300 {
        let count = epoll.wait(&mut events, EpollTimeout::from(1000_u16)).or_fail()?;
        expect!(count > 0);
        for event in &events[..count] {
            seen.insert(event.data());
            nix::unistd::read(&pipes[event.data() as usize].0, &mut [0]).or_fail()?;
        }
    }
    expect_eq!(epoll.wait(&mut events, EpollTimeout::ZERO).or_fail()?, 0);
    Ok(())
}

fn io_priorities_are_kept() -> Outcome {
    const PROCESS: i32 = 1;
    const BEST_EFFORT: i32 = 2 << 13;
    // SAFETY: numbers only.
    let set = |value: i32| Errno::result(unsafe { libc::syscall(libc::SYS_ioprio_set, PROCESS, 0, value) });
    // SAFETY: numbers only.
    let get = || Errno::result(unsafe { libc::syscall(libc::SYS_ioprio_get, PROCESS, 0) });
    set(BEST_EFFORT | 3).or_fail()?;
    expect_eq!(get().or_fail()?, i64::from(BEST_EFFORT | 3));
    let inherited = in_child(|| i32::from(get() != Ok(i64::from(BEST_EFFORT | 3))))?;
    expect!(matches!(inherited, nix::sys::wait::WaitStatus::Exited(_, 0)));
    expect_eq!(set(7 << 13), Err(Errno::EINVAL));
    Ok(())
}

fn load_averages_are_numbers() -> Outcome {
    let text = fs::read_to_string("/proc/loadavg").or_fail()?;
    let fields: Vec<_> = text.split_whitespace().collect();
    expect_eq!(fields.len(), 5);
    for field in &fields[..3] {
        expect!(field.parse::<f64>().is_ok());
    }
    // The one who reads it runs.
    let running: u32 = fields[3].split('/').next().unwrap_or_default().parse().or_fail()?;
    expect!(running >= 1);
    Ok(())
}
