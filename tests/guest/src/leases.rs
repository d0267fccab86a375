//! Leases (`F_SETLEASE`) and directories whose owner is told of changes (`F_NOTIFY`): fcntl(2).

#![allow(unsafe_code)] // The C library has no safe forms of these calls.

use std::ffi::CString;
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Gid, Uid, alarm, getpid, pipe, read, setresgid, setresuid, write};

use crate::harness::{OrFail, Outcome, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    leases_are_given_and_told
    openings_keep_leases_away
    an_opening_breaks_a_lease
    an_opening_waits_for_the_holder
    a_reader_is_content_with_a_read_lease
    truncation_waits_for_the_holder
    a_broken_lease_ends_by_itself
    a_wait_for_a_lease_can_be_interrupted
    leases_need_the_owner
    a_lease_lives_as_long_as_its_opening
    lease_signals_carry_the_descriptor
    a_directory_tells_once_or_always
    directories_tell_nobody_when_that_is_forbidden
    a_directory_tells_what_was_asked
}

const F_SETSIG: i32 = 10;
const READ: i32 = libc::F_RDLCK as i32;
const WRITE: i32 = libc::F_WRLCK as i32;
const NONE: i32 = libc::F_UNLCK as i32;

fn control(file: RawFd, command: i32, argument: usize) -> Result<i32, Errno> {
    // SAFETY: no pointers are passed.
    Errno::result(unsafe { libc::syscall(libc::SYS_fcntl, file, command, argument) } as i32)
}

fn set(file: &OwnedFd, lease: i32) -> Result<i32, Errno> {
    control(file.as_raw_fd(), libc::F_SETLEASE, lease as usize)
}

fn get(file: &OwnedFd) -> Result<i32, Errno> {
    control(file.as_raw_fd(), libc::F_GETLEASE, 0)
}

fn open(path: &str, flags: i32) -> Result<OwnedFd, Errno> {
    let path = CString::new(path).map_err(|_| Errno::EINVAL)?;
    // SAFETY: a valid path; the descriptor is new.
    unsafe { Ok(OwnedFd::from_raw_fd(Errno::result(libc::open(path.as_ptr(), flags))?)) }
}

/// A directory of its own with a file, removed at the end.
struct Scratch {
    directory: String,
    file: String,
}

impl Scratch {
    fn new() -> Result<Self, String> {
        let directory = format!("/tmp/leases-{}", getpid());
        fs::create_dir(&directory).or_fail()?;
        let file = format!("{directory}/file");
        fs::write(&file, b"content").or_fail()?;
        Ok(Self { directory, file })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn blocked(signals: &[Signal]) -> Result<SigSet, String> {
    let mut set = SigSet::empty();
    signals.iter().for_each(|&signal| set.add(signal));
    set.thread_block().or_fail()?;
    Ok(set)
}

/// Waits for one of these signals, which are blocked; the test's own limit ends a wait in vain.
fn wait_for(set: &SigSet) -> Result<libc::siginfo_t, Errno> {
    let mut information = std::mem::MaybeUninit::uninit();
    // SAFETY: valid pointers; the structure is filled in when the call succeeds.
    unsafe {
        Errno::result(libc::sigwaitinfo(set.as_ref(), information.as_mut_ptr()))?;
        Ok(information.assume_init())
    }
}

/// Whether one of these signals is pending; takes it.
fn came(set: &SigSet) -> bool {
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: valid pointers.
    unsafe { libc::sigtimedwait(set.as_ref(), std::ptr::null_mut(), &raw const at_once) > 0 }
}

/// The exit status of a child that does something and succeeds.
fn succeeds(body: impl FnOnce() -> Result<(), Errno>) -> i32 {
    body().map_or_else(|error| error as i32, |()| 0)
}

fn leases_are_given_and_told() -> Outcome {
    let scratch = Scratch::new()?;
    let file = open(&scratch.file, libc::O_RDONLY).or_fail()?;
    expect_eq!(get(&file), Ok(NONE));
    expect_eq!(set(&file, NONE), Err(Errno::EAGAIN));
    for lease in [READ, WRITE, READ] {
        expect_eq!(set(&file, lease), Ok(0));
        expect_eq!(get(&file), Ok(lease));
    }
    // The first lease makes the process the owner.
    expect_eq!(control(file.as_raw_fd(), libc::F_GETOWN, 0), Ok(getpid().as_raw()));
    expect_eq!(set(&file, NONE), Ok(0));
    expect_eq!(control(file.as_raw_fd(), libc::F_GETOWN, 0), Ok(0));
    expect_eq!(set(&file, 3), Err(Errno::EINVAL));
    expect_eq!(set(&file, -1), Err(Errno::EINVAL));
    let (from, _to) = pipe().or_fail()?;
    expect_eq!(set(&from, READ), Err(Errno::EINVAL));
    expect_eq!(get(&from), Ok(NONE));
    expect_eq!(set(&open(&scratch.directory, libc::O_RDONLY).or_fail()?, READ), Err(Errno::EINVAL));
    expect_eq!(set(&open(&scratch.file, libc::O_PATH).or_fail()?, READ), Err(Errno::EBADF));
    Ok(())
}

fn openings_keep_leases_away() -> Outcome {
    let scratch = Scratch::new()?;
    let reader = open(&scratch.file, libc::O_RDONLY).or_fail()?;
    let second = open(&scratch.file, libc::O_RDONLY).or_fail()?;
    expect_eq!(set(&reader, WRITE), Err(Errno::EAGAIN));
    expect_eq!(set(&reader, READ), Ok(0));
    expect_eq!(set(&second, READ), Ok(0));
    expect_eq!(set(&second, WRITE), Err(Errno::EAGAIN));
    expect_eq!(set(&reader, NONE), Ok(0));
    drop(reader);
    expect_eq!(set(&second, WRITE), Ok(0));
    drop(second);
    let writer = open(&scratch.file, libc::O_RDWR).or_fail()?;
    expect_eq!(set(&writer, READ), Err(Errno::EAGAIN));
    expect_eq!(set(&writer, WRITE), Ok(0));
    expect_eq!(set(&writer, READ), Err(Errno::EAGAIN));
    expect_eq!(get(&writer), Ok(WRITE));
    expect_eq!(set(&writer, NONE), Ok(0));
    let reader = open(&scratch.file, libc::O_RDONLY).or_fail()?;
    expect_eq!(set(&reader, READ), Err(Errno::EAGAIN));
    expect_eq!(set(&writer, WRITE), Err(Errno::EAGAIN));
    Ok(())
}

fn an_opening_breaks_a_lease() -> Outcome {
    let scratch = Scratch::new()?;
    let signals = blocked(&[Signal::SIGIO])?;
    let file = open(&scratch.file, libc::O_RDONLY).or_fail()?;
    set(&file, READ).or_fail()?;
    drop(open(&scratch.file, libc::O_RDONLY | libc::O_NONBLOCK).or_fail()?);
    expect!(!came(&signals));
    let denied = |flags| open(&scratch.file, flags | libc::O_NONBLOCK).err();
    expect_eq!(denied(libc::O_WRONLY), Some(Errno::EWOULDBLOCK));
    expect!(came(&signals));
    // It is told once.
    expect_eq!(denied(libc::O_RDWR | libc::O_TRUNC), Some(Errno::EWOULDBLOCK));
    expect!(!came(&signals));
    expect_eq!(get(&file), Ok(NONE));
    expect_eq!(fs::read(&scratch.file).or_fail()?, b"content");
    let other = open(&scratch.file, libc::O_RDONLY).or_fail()?;
    expect_eq!(set(&other, READ), Err(Errno::EAGAIN));
    expect_eq!(set(&file, NONE), Ok(0));
    drop(open(&scratch.file, libc::O_WRONLY | libc::O_NONBLOCK).or_fail()?);
    // Names come and go without the holder.
    set(&other, READ).or_fail()?;
    fs::rename(&scratch.file, format!("{}/other", scratch.directory)).or_fail()?;
    fs::remove_file(format!("{}/other", scratch.directory)).or_fail()?;
    expect_eq!(get(&other), Ok(READ));
    expect!(!came(&signals));
    Ok(())
}

fn an_opening_waits_for_the_holder() -> Outcome {
    let scratch = Scratch::new()?;
    let signals = blocked(&[Signal::SIGIO])?;
    for lease in [READ, WRITE] {
        let file = open(&scratch.file, libc::O_RDONLY).or_fail()?;
        set(&file, lease).or_fail()?;
        let child =
            spawn_child(|| succeeds(|| open(&scratch.file, libc::O_WRONLY | libc::O_TRUNC).map(drop)))?;
        expect_eq!(wait_for(&signals).or_fail()?.si_signo, libc::SIGIO);
        expect_eq!(get(&file), Ok(NONE));
        expect_eq!(fs::metadata(&scratch.file).or_fail()?.len(), 7);
        expect_eq!(set(&file, NONE), Ok(0));
        expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
        expect_eq!(fs::metadata(&scratch.file).or_fail()?.len(), 0);
        fs::write(&scratch.file, b"content").or_fail()?;
    }
    Ok(())
}

fn a_reader_is_content_with_a_read_lease() -> Outcome {
    let scratch = Scratch::new()?;
    let signals = blocked(&[Signal::SIGIO])?;
    let file = open(&scratch.file, libc::O_RDONLY).or_fail()?;
    set(&file, WRITE).or_fail()?;
    let child = spawn_child(|| succeeds(|| open(&scratch.file, libc::O_RDONLY).map(drop)))?;
    wait_for(&signals).or_fail()?;
    expect_eq!(get(&file), Ok(READ));
    expect_eq!(set(&file, READ), Ok(0));
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
    expect_eq!(get(&file), Ok(READ));
    Ok(())
}

fn truncation_waits_for_the_holder() -> Outcome {
    let scratch = Scratch::new()?;
    let signals = blocked(&[Signal::SIGIO])?;
    let file = open(&scratch.file, libc::O_RDONLY).or_fail()?;
    set(&file, READ).or_fail()?;
    let child = spawn_child(|| i32::from(nix::unistd::truncate(scratch.file.as_str(), 3).is_err()))?;
    wait_for(&signals).or_fail()?;
    expect_eq!(fs::metadata(&scratch.file).or_fail()?.len(), 7);
    expect_eq!(set(&file, NONE), Ok(0));
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
    expect_eq!(fs::metadata(&scratch.file).or_fail()?.len(), 3);
    Ok(())
}

fn a_broken_lease_ends_by_itself() -> Outcome {
    const TIME: &str = "/proc/sys/fs/lease-break-time";
    const ENABLED: &str = "/proc/sys/fs/leases-enable";
    let before = fs::read_to_string(TIME).or_fail()?;
    expect_eq!(before, "45\n");
    fs::write(TIME, "1").or_fail()?;
    let scratch = Scratch::new()?;
    let signals = blocked(&[Signal::SIGIO])?;
    let file = open(&scratch.file, libc::O_RDONLY).or_fail()?;
    set(&file, WRITE).or_fail()?;
    // The holder does nothing: a reader leaves it a lease to read, a writer none.
    let opened = open(&scratch.file, libc::O_RDONLY).map(drop);
    let left = get(&file);
    let opened_to_write = open(&scratch.file, libc::O_WRONLY).map(drop);
    fs::write(TIME, &before).or_fail()?;
    expect_eq!((opened, left, opened_to_write), (Ok(()), Ok(READ), Ok(())));
    expect!(came(&signals));
    expect_eq!(get(&file), Ok(NONE));
    expect_eq!(set(&file, NONE), Err(Errno::EAGAIN));
    fs::write(ENABLED, "0").or_fail()?;
    let refused = set(&file, READ);
    fs::write(ENABLED, "1").or_fail()?;
    expect_eq!(refused, Err(Errno::EINVAL));
    expect_eq!(set(&file, READ), Ok(0));
    Ok(())
}

extern "C" fn nothing(_: i32) {}

fn a_wait_for_a_lease_can_be_interrupted() -> Outcome {
    let scratch = Scratch::new()?;
    blocked(&[Signal::SIGIO])?;
    let file = open(&scratch.file, libc::O_RDONLY).or_fail()?;
    set(&file, READ).or_fail()?;
    let child = spawn_child(|| {
        // A handler without SA_RESTART.
        let action = nix::sys::signal::SigAction::new(
            SigHandler::Handler(nothing),
            nix::sys::signal::SaFlags::empty(),
            SigSet::empty(),
        );
        // SAFETY: the handler does nothing.
        let _ = unsafe { nix::sys::signal::sigaction(Signal::SIGALRM, &action) };
        alarm::set(1);
        succeeds(|| open(&scratch.file, libc::O_WRONLY | libc::O_TRUNC).map(drop))
    })?;
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, libc::EINTR)));
    expect_eq!(fs::read(&scratch.file).or_fail()?, b"content");
    expect_eq!(set(&file, NONE), Ok(0));
    // The interrupted opening counts no more.
    expect_eq!(set(&file, WRITE), Ok(0));
    Ok(())
}

fn leases_need_the_owner() -> Outcome {
    const USER: u32 = 12_345;
    let scratch = Scratch::new()?;
    let foreign = open(&scratch.file, libc::O_RDONLY).or_fail()?;
    let own_path = format!("{}/own", scratch.directory);
    fs::write(&own_path, b"").or_fail()?;
    nix::unistd::chown(own_path.as_str(), Some(Uid::from_raw(USER)), None).or_fail()?;
    let child = spawn_child(|| {
        succeeds(|| {
            setresgid(Gid::from_raw(USER), Gid::from_raw(USER), Gid::from_raw(USER))?;
            setresuid(Uid::from_raw(USER), Uid::from_raw(USER), Uid::from_raw(USER))?;
            let refused = [set(&foreign, READ), set(&foreign, NONE)];
            // A bad argument is seen first.
            if refused != [Err(Errno::EACCES); 2] || set(&foreign, 7) != Err(Errno::EINVAL) {
                return Err(Errno::EDOM);
            }
            set(&open(&own_path, libc::O_RDONLY)?, READ).map(drop)
        })
    })?;
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
    Ok(())
}

fn a_lease_lives_as_long_as_its_opening() -> Outcome {
    let scratch = Scratch::new()?;
    blocked(&[Signal::SIGIO])?;
    let denied = || open(&scratch.file, libc::O_WRONLY | libc::O_NONBLOCK).err();
    let file = open(&scratch.file, libc::O_RDONLY).or_fail()?;
    let copy = file.try_clone().or_fail()?;
    set(&file, READ).or_fail()?;
    drop(file);
    expect_eq!(get(&copy), Ok(READ));
    // A child's closing is not the last.
    let child = spawn_child(|| 0)?;
    waitpid(child, None).or_fail()?;
    expect_eq!(denied(), Some(Errno::EWOULDBLOCK));
    drop(copy);
    expect_eq!(denied(), None);
    Ok(())
}

fn lease_signals_carry_the_descriptor() -> Outcome {
    let scratch = Scratch::new()?;
    let signals = blocked(&[Signal::SIGUSR1])?;
    let file = open(&scratch.file, libc::O_RDONLY).or_fail()?;
    control(file.as_raw_fd(), F_SETSIG, libc::SIGUSR1 as usize).or_fail()?;
    set(&file, READ).or_fail()?;
    let denied = open(&scratch.file, libc::O_WRONLY | libc::O_NONBLOCK).err();
    expect_eq!(denied, Some(Errno::EWOULDBLOCK));
    let information = wait_for(&signals).or_fail()?;
    // SAFETY: as sigaction(2) lays the structure out: the band, then the descriptor.
    let (band, descriptor) = unsafe {
        let words = (&raw const information).cast::<u64>();
        (words.add(2).read(), words.add(3).cast::<i32>().read())
    };
    expect_eq!((information.si_code, band, descriptor), (3, 0x441, file.as_raw_fd()));
    // The signal goes with the lease.
    expect_eq!(set(&file, NONE), Ok(0));
    expect_eq!(control(file.as_raw_fd(), 11, 0), Ok(0));
    Ok(())
}

const DN_ACCESS: usize = 1;
const DN_MODIFY: usize = 2;
const DN_CREATE: usize = 4;
const DN_DELETE: usize = 8;
const DN_RENAME: usize = 16;
const DN_ATTRIB: usize = 32;
const DN_MULTISHOT: usize = 0x8000_0000;

fn notify(directory: &OwnedFd, events: usize) -> Result<i32, Errno> {
    control(directory.as_raw_fd(), libc::F_NOTIFY, events)
}

fn a_directory_tells_once_or_always() -> Outcome {
    let scratch = Scratch::new()?;
    let signals = blocked(&[Signal::SIGIO])?;
    let directory = open(&scratch.directory, libc::O_RDONLY).or_fail()?;
    let file = open(&scratch.file, libc::O_RDONLY).or_fail()?;
    expect_eq!(notify(&file, DN_CREATE), Err(Errno::ENOTDIR));
    expect_eq!(notify(&file, 0), Ok(0));
    let make = |name: &str| fs::write(format!("{}/{name}", scratch.directory), b"").or_fail();
    expect_eq!(notify(&directory, DN_CREATE), Ok(0));
    make("1")?;
    expect!(came(&signals));
    make("2")?;
    expect!(!came(&signals));
    expect_eq!(notify(&directory, DN_CREATE | DN_MULTISHOT), Ok(0));
    for name in ["3", "4", "5"] {
        make(name)?;
        expect!(came(&signals));
    }
    expect_eq!(notify(&directory, DN_MULTISHOT), Ok(0));
    make("6")?;
    expect!(!came(&signals));
    // Closing any descriptor of it ends it.
    expect_eq!(notify(&directory, DN_CREATE | DN_MULTISHOT), Ok(0));
    let copy = directory.try_clone().or_fail()?;
    drop(copy);
    make("7")?;
    expect!(!came(&signals));
    // A child's wish is its own.
    expect_eq!(notify(&directory, DN_CREATE | DN_MULTISHOT), Ok(0));
    let child = spawn_child(|| succeeds(|| notify(&directory, 0).map(drop)))?;
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
    make("8")?;
    expect!(came(&signals));
    Ok(())
}

fn directories_tell_nobody_when_that_is_forbidden() -> Outcome {
    const SETTING: &str = "/proc/sys/fs/dir-notify-enable";
    let scratch = Scratch::new()?;
    let directory = open(&scratch.directory, libc::O_RDONLY).or_fail()?;
    expect_eq!(fs::read_to_string(SETTING).or_fail()?, "1\n");
    fs::write(SETTING, "0").or_fail()?;
    let (told, wish) = (fs::read_to_string(SETTING), notify(&directory, DN_CREATE));
    fs::write(SETTING, "1\n").or_fail()?;
    expect_eq!(told.or_fail()?, "0\n");
    expect_eq!(wish, Err(Errno::EINVAL));
    expect_eq!(notify(&directory, DN_CREATE), Ok(0));
    Ok(())
}

fn a_directory_tells_what_was_asked() -> Outcome {
    let scratch = Scratch::new()?;
    let signals = blocked(&[Signal::SIGIO])?;
    // SAFETY: the handler is the default again.
    unsafe { signal(Signal::SIGIO, SigHandler::SigDfl).or_fail()? };
    let directory = open(&scratch.directory, libc::O_RDONLY).or_fail()?;
    let file = open(&scratch.file, libc::O_RDWR).or_fail()?;
    let second = format!("{}/second", scratch.directory);
    let elsewhere = format!("{}-elsewhere", scratch.directory);
    let rename = |from: &str, to: &str| fs::rename(from, to).or_fail();
    let each = [DN_ACCESS, DN_MODIFY, DN_CREATE, DN_DELETE, DN_RENAME, DN_ATTRIB];
    let mut told = Vec::new();
    for event in each {
        let mut of_this = Vec::new();
        let mut step = |what: &str| {
            if came(&signals) {
                of_this.push(what.to_owned());
            }
        };
        expect_eq!(notify(&directory, event | DN_MULTISHOT), Ok(0));
        read(&file, &mut [0; 1]).or_fail()?;
        step("read");
        write(&file, b"x").or_fail()?;
        step("write");
        fs::set_permissions(&scratch.file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).or_fail()?;
        step("chmod");
        rename(&scratch.file, &second)?;
        step("rename");
        rename(&second, &elsewhere)?;
        step("out");
        rename(&elsewhere, &scratch.file)?;
        step("in");
        fs::create_dir(&second).or_fail()?;
        step("mkdir");
        fs::remove_dir(&second).or_fail()?;
        step("rmdir");
        expect_eq!(notify(&directory, 0), Ok(0));
        told.push(of_this.join(" "));
    }
    expect_eq!(told, ["read", "write", "rename in mkdir", "rename out rmdir", "rename", "chmod"]);
    Ok(())
}
