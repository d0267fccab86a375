//! Processes as descriptors: pidfd_open, pidfd_send_signal, pidfd_getfd, `CLONE_PIDFD`, `P_PIDFD`.

#![allow(unsafe_code)] // The C library has no wrappers for these calls.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, getpid, pipe, read, write};

use crate::harness::{OrFail, Outcome, in_child, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    a_pidfd_is_readable_once_the_process_has_ended
    pidfd_open_fails
    pidfd_send_signal_sends
    pidfd_send_signal_with_information
    waitid_takes_a_pidfd
    clone_gives_a_pidfd
    clone_without_pidfd
    pidfd_getfd_takes_a_descriptor
    pidfd_getfd_needs_permission
    fdinfo_names_the_process
}

const NONBLOCK: u32 = libc::O_NONBLOCK as u32;

fn descriptor(result: i64) -> Result<OwnedFd, Errno> {
    let number = Errno::result(result)?;
    // SAFETY: the kernel has just made the descriptor, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(number as i32) })
}

fn pidfd_open(pid: Pid, flags: u32) -> Result<OwnedFd, Errno> {
    // SAFETY: the call takes two numbers.
    descriptor(unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), flags) })
}

fn pidfd_getfd(pidfd: &OwnedFd, number: i32, flags: u32) -> Result<OwnedFd, Errno> {
    // SAFETY: the call takes three numbers.
    descriptor(unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), number, flags) })
}

fn pidfd_send_signal(
    pidfd: impl AsFd,
    signal: i32,
    information: Option<&libc::siginfo_t>,
    flags: u32,
) -> Result<(), Errno> {
    let information = information.map_or(std::ptr::null(), std::ptr::from_ref);
    let number = pidfd.as_fd().as_raw_fd();
    // SAFETY: the information is null or lives during the call.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, number, signal, information, flags) };
    Errno::result(result).map(drop)
}

fn is_readable(pidfd: &OwnedFd, timeout: PollTimeout) -> Result<bool, String> {
    let mut set = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
    poll(&mut set, timeout).or_fail()?;
    Ok(set[0].revents() == Some(PollFlags::POLLIN))
}

/// A child that waits for the other end of the pipe to be closed, and then exits with 3.
fn waiting_child() -> Result<(Pid, OwnedFd), String> {
    let (reader, writer) = pipe().or_fail()?;
    let raw = writer.as_raw_fd();
    let child = spawn_child(|| {
        // SAFETY: the child's copy is not used again.
        unsafe { libc::close(raw) };
        let _ = read(&reader, &mut [0]);
        3
    })?;
    Ok((child, writer))
}

fn a_pidfd_is_readable_once_the_process_has_ended() -> Outcome {
    let (child, end) = waiting_child()?;
    let pidfd = pidfd_open(child, 0).or_fail()?;
    expect_eq!(fcntl(&pidfd, FcntlArg::F_GETFD), Ok(libc::FD_CLOEXEC));
    expect_eq!(fcntl(&pidfd, FcntlArg::F_GETFL).or_fail()? & libc::O_NONBLOCK, 0);
    expect_eq!(read(&pidfd, &mut [0; 8]), Err(Errno::EINVAL));
    expect!(!is_readable(&pidfd, PollTimeout::ZERO)?);
    let epoll = Epoll::new(EpollCreateFlags::empty()).or_fail()?;
    epoll.add(&pidfd, EpollEvent::new(EpollFlags::EPOLLIN, 7)).or_fail()?;
    let mut events = [EpollEvent::empty(); 2];
    expect_eq!(epoll.wait(&mut events, EpollTimeout::ZERO), Ok(0));
    drop(end);
    expect!(is_readable(&pidfd, PollTimeout::NONE)?);
    expect_eq!(epoll.wait(&mut events, EpollTimeout::NONE), Ok(1));
    expect_eq!((events[0].data(), events[0].events()), (7, EpollFlags::EPOLLIN));
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 3)));
    expect!(is_readable(&pidfd, PollTimeout::ZERO)?);
    let own = pidfd_open(getpid(), NONBLOCK).or_fail()?;
    expect!(fcntl(&own, FcntlArg::F_GETFL).or_fail()? & libc::O_NONBLOCK != 0);
    expect!(!is_readable(&own, PollTimeout::from(1u8))?);
    Ok(())
}

fn pidfd_open_fails() -> Outcome {
    let error = |pid, flags| pidfd_open(Pid::from_raw(pid), flags).err();
    expect_eq!(error(0, 0), Some(Errno::EINVAL));
    expect_eq!(error(-1, 0), Some(Errno::EINVAL));
    expect_eq!(error(getpid().as_raw(), 1), Some(Errno::EINVAL));
    let child = spawn_child(|| 0)?;
    waitpid(child, None).or_fail()?;
    expect_eq!(error(child.as_raw(), 0), Some(Errno::ESRCH));
    // A thread that leads no group.
    let (started, ended) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    let tid = std::sync::atomic::AtomicI32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            tid.store(nix::unistd::gettid().as_raw(), std::sync::atomic::Ordering::SeqCst);
            started.wait();
            ended.wait();
        });
        started.wait();
        let found = error(tid.load(std::sync::atomic::Ordering::SeqCst), 0);
        ended.wait();
        expect_eq!(found, Some(Errno::EINVAL));
        Ok(())
    })
}

fn pidfd_send_signal_sends() -> Outcome {
    let (child, end) = waiting_child()?;
    let pidfd = pidfd_open(child, 0).or_fail()?;
    expect_eq!(pidfd_send_signal(&pidfd, 0, None, 0), Ok(()));
    expect_eq!(pidfd_send_signal(&pidfd, 65, None, 0), Err(Errno::EINVAL));
    expect_eq!(pidfd_send_signal(&pidfd, libc::SIGTERM, None, 8), Err(Errno::EINVAL));
    expect_eq!(pidfd_send_signal(&end, libc::SIGTERM, None, 0), Err(Errno::EBADF));
    let directory = File::open(format!("/proc/{child}")).or_fail()?;
    expect_eq!(pidfd_send_signal(&directory, 0, None, 0), Ok(()));
    expect_eq!(pidfd_send_signal(&pidfd, libc::SIGTERM, None, 0), Ok(()));
    expect!(is_readable(&pidfd, PollTimeout::NONE)?);
    // A zombie can still be sent signals to.
    expect_eq!(pidfd_send_signal(&pidfd, libc::SIGTERM, None, 0), Ok(()));
    expect!(matches!(waitpid(child, None), Ok(WaitStatus::Signaled(_, Signal::SIGTERM, _))));
    expect_eq!(pidfd_send_signal(&pidfd, libc::SIGTERM, None, 0), Err(Errno::ESRCH));
    expect_eq!(pidfd_send_signal(&directory, 0, None, 0), Err(Errno::ESRCH));
    Ok(())
}

fn pidfd_send_signal_with_information() -> Outcome {
    // SAFETY: all zeros are a valid siginfo_t.
    let mut information: libc::siginfo_t = unsafe { std::mem::zeroed() };
    information.si_signo = libc::SIGUSR1;
    information.si_code = libc::SI_QUEUE;
    let set = SigSet::from(Signal::SIGUSR1);
    set.thread_block().or_fail()?;
    let own = pidfd_open(getpid(), 0).or_fail()?;
    expect_eq!(pidfd_send_signal(&own, libc::SIGUSR2, Some(&information), 0), Err(Errno::EINVAL));
    expect_eq!(pidfd_send_signal(&own, libc::SIGUSR1, Some(&information), 0), Ok(()));
    let mut found: libc::siginfo_t = information;
    // SAFETY: both pointers are to live values.
    let signal = unsafe { libc::sigwaitinfo(set.as_ref(), &raw mut found) };
    expect_eq!((signal, found.si_code), (libc::SIGUSR1, libc::SI_QUEUE));
    let (child, end) = waiting_child()?;
    let pidfd = pidfd_open(child, 0).or_fail()?;
    for code in [libc::SI_USER, libc::SI_TKILL] {
        information.si_code = code;
        expect_eq!(pidfd_send_signal(&pidfd, libc::SIGUSR1, Some(&information), 0), Err(Errno::EPERM));
        expect_eq!(pidfd_send_signal(&own, libc::SIGUSR1, Some(&information), 0), Ok(()));
    }
    drop(end);
    waitpid(child, None).map(drop).or_fail()
}

fn waitid_takes_a_pidfd() -> Outcome {
    let (other, other_end) = waiting_child()?;
    let (child, end) = waiting_child()?;
    let pidfd = pidfd_open(child, NONBLOCK).or_fail()?;
    let exited = WaitPidFlag::WEXITED;
    expect_eq!(waitid(Id::PIDFd(pidfd.as_fd()), exited), Err(Errno::EAGAIN));
    expect_eq!(waitid(Id::PIDFd(pidfd.as_fd()), exited | WaitPidFlag::WNOHANG), Ok(WaitStatus::StillAlive));
    expect_eq!(waitid(Id::PIDFd(other_end.as_fd()), exited), Err(Errno::EBADF));
    let own = pidfd_open(getpid(), 0).or_fail()?;
    expect_eq!(waitid(Id::PIDFd(own.as_fd()), exited), Err(Errno::ECHILD));
    drop((other_end, end));
    let waiting = pidfd_open(child, 0).or_fail()?;
    let left = waitid(Id::PIDFd(waiting.as_fd()), exited | WaitPidFlag::WNOWAIT);
    expect_eq!(left, Ok(WaitStatus::Exited(child, 3)));
    expect_eq!(waitid(Id::PIDFd(pidfd.as_fd()), exited), Ok(WaitStatus::Exited(child, 3)));
    expect_eq!(waitid(Id::PIDFd(pidfd.as_fd()), exited), Err(Errno::ECHILD));
    waitpid(other, None).map(drop).or_fail()
}

/// clone(2) as a system call of its own, without another stack: like `fork`. The child exits with 5.
fn clone_like_fork(flags: libc::c_int, pidfd: &mut i32) -> Result<Pid, Errno> {
    let null = std::ptr::null_mut::<()>();
    let flags = i64::from(flags | libc::SIGCHLD);
    // SAFETY: without CLONE_VM the child has its own memory, and it leaves at once.
    let result =
        unsafe { libc::syscall(libc::SYS_clone, flags, null, std::ptr::from_mut(pidfd), null, null) };
    if result == 0 {
        // SAFETY: ends the child.
        unsafe { libc::_exit(5) }
    }
    Errno::result(result).map(|pid| Pid::from_raw(pid as i32))
}

extern "C" fn exit_with_6(_: *mut libc::c_void) -> libc::c_int {
    6
}

fn clone_gives_a_pidfd() -> Outcome {
    let mut number = -1;
    let child = clone_like_fork(libc::CLONE_PIDFD, &mut number).or_fail()?;
    let pidfd = descriptor(number.into()).or_fail()?;
    expect_eq!(fcntl(&pidfd, FcntlArg::F_GETFD), Ok(libc::FD_CLOEXEC));
    expect_eq!(waitid(Id::PIDFd(pidfd.as_fd()), WaitPidFlag::WEXITED), Ok(WaitStatus::Exited(child, 5)));

    // In the parent's memory.
    let mut stack = vec![0u128; 4096];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
    let mut number = -1;
    // SAFETY: the parent waits until the child, which has a stack of its own, has ended.
    let result = unsafe {
        let top = stack.as_mut_ptr_range().end.cast();
        libc::clone(exit_with_6, top, flags, std::ptr::null_mut(), &raw mut number)
    };
    let child = Pid::from_raw(Errno::result(result).or_fail()?);
    let pidfd = descriptor(number.into()).or_fail()?;
    expect_eq!(waitid(Id::PIDFd(pidfd.as_fd()), WaitPidFlag::WEXITED), Ok(WaitStatus::Exited(child, 6)));

    // clone3 has an argument of its own for it, beside that of CLONE_PARENT_SETTID.
    let (mut number, mut tid) = (-1i32, 0i32);
    let flags = (libc::CLONE_PIDFD | libc::CLONE_PARENT_SETTID) as u64;
    let mut arguments = [0u64; 8];
    arguments[0] = flags;
    arguments[1] = std::ptr::from_mut(&mut number).addr() as u64;
    arguments[3] = std::ptr::from_mut(&mut tid).addr() as u64;
    arguments[4] = libc::SIGCHLD as u64;
    // SAFETY: the arguments live during the call, and the child leaves at once.
    let result = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of_val(&arguments)) };
    if result == 0 {
        // SAFETY: ends the child.
        unsafe { libc::_exit(7) }
    }
    let child = Errno::result(result).or_fail()? as i32;
    let number = std::hint::black_box(number);
    let pidfd = descriptor(number.into()).or_fail()?;
    expect_eq!(std::hint::black_box(tid), child);
    let ended = waitid(Id::PIDFd(pidfd.as_fd()), WaitPidFlag::WEXITED);
    expect_eq!(ended, Ok(WaitStatus::Exited(Pid::from_raw(child), 7)));
    Ok(())
}

fn clone_without_pidfd() -> Outcome {
    let mut number = -1;
    let both = libc::CLONE_PIDFD | libc::CLONE_PARENT_SETTID;
    expect_eq!(clone_like_fork(both, &mut number), Err(Errno::EINVAL));
    let thread = libc::CLONE_PIDFD | libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_VM;
    expect_eq!(clone_like_fork(thread, &mut number), Err(Errno::EINVAL));
    // No descriptor is left: no child either.
    let ended = in_child(|| {
        let limit = libc::rlimit { rlim_cur: 3, rlim_max: 3 };
        // SAFETY: the limit lives during the call.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        let mut number = -1;
        let result = clone_like_fork(libc::CLONE_PIDFD, &mut number);
        i32::from(result != Err(Errno::EMFILE) || waitpid(None, None) != Err(Errno::ECHILD))
    })?;
    expect!(matches!(ended, WaitStatus::Exited(_, 0)));
    Ok(())
}

fn pidfd_getfd_takes_a_descriptor() -> Outcome {
    let (report, told) = pipe().or_fail()?;
    let (hold, release) = pipe().or_fail()?;
    let child = spawn_child(|| {
        let Ok(memory) = memfd_create(c"shared", MFdFlags::empty()) else { return 1 };
        let mut memory = File::from(memory);
        let _ = memory.write_all(b"from the child");
        let _ = write(&told, &memory.as_raw_fd().to_ne_bytes());
        let _ = read(&hold, &mut [0]);
        i32::from(memory.stream_position().ok() != Some(5))
    })?;
    let mut number = [0; 4];
    read(&report, &mut number).or_fail()?;
    let number = i32::from_ne_bytes(number);
    let pidfd = pidfd_open(child, 0).or_fail()?;
    let taken = pidfd_getfd(&pidfd, number, 0).or_fail()?;
    expect_eq!(fcntl(&taken, FcntlArg::F_GETFD), Ok(libc::FD_CLOEXEC));
    let mut taken = File::from(taken);
    taken.rewind().or_fail()?;
    let mut text = [0; 5];
    taken.read_exact(&mut text).or_fail()?;
    expect_eq!(&text, b"from ");
    expect_eq!(pidfd_getfd(&pidfd, 700, 0).err(), Some(Errno::EBADF));
    expect_eq!(pidfd_getfd(&pidfd, number, 1).err(), Some(Errno::EINVAL));
    expect_eq!(pidfd_getfd(&report, number, 0).err(), Some(Errno::EBADF));
    write(&release, b"x").or_fail()?;
    expect!(is_readable(&pidfd, PollTimeout::NONE)?);
    expect_eq!(pidfd_getfd(&pidfd, number, 0).err(), Some(Errno::ESRCH));
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
    expect_eq!(pidfd_getfd(&pidfd, number, 0).err(), Some(Errno::ESRCH));
    Ok(())
}

fn pidfd_getfd_needs_permission() -> Outcome {
    let own = pidfd_open(getpid(), 0).or_fail()?;
    let ended = in_child(|| {
        let user = nix::unistd::Uid::from_raw(1000);
        if nix::unistd::setuid(user).is_err() {
            return 1;
        }
        i32::from(pidfd_getfd(&own, 0, 0).err() != Some(Errno::EPERM)) * 2
    })?;
    expect!(matches!(ended, WaitStatus::Exited(_, 0)));
    Ok(())
}

fn fdinfo_names_the_process() -> Outcome {
    let (child, end) = waiting_child()?;
    let pidfd = pidfd_open(child, 0).or_fail()?;
    let path = format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd());
    let text = std::fs::read_to_string(&path).or_fail()?;
    expect!(text.contains(&format!("Pid:\t{child}\nNSpid:\t{child}\n")));
    let link = std::fs::read_link(format!("/proc/self/fd/{}", pidfd.as_raw_fd())).or_fail()?;
    expect_eq!(link.to_string_lossy(), "anon_inode:[pidfd]");
    drop(end);
    waitpid(child, None).or_fail()?;
    let text = std::fs::read_to_string(&path).or_fail()?;
    expect!(text.contains("\nPid:\t-1\n"));
    Ok(())
}
