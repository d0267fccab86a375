//! Signals of files that have become ready: `O_ASYNC`, `F_SETOWN`, `F_SETOWN_EX`, `F_SETSIG`.

#![allow(unsafe_code)] // The C library has no safe forms of these calls.

use std::os::fd::{AsRawFd, RawFd};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{getpid, pipe, write};

use crate::harness::{OrFail, Outcome, in_child};
use crate::{expect, expect_eq};

crate::tests! {
    a_pipe_tells_its_owner
    signals_carry_the_descriptor
    a_socket_tells_its_owner
    owners_are_kept_and_told
}

const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;
const F_SETOWN_EX: i32 = 15;
const F_GETOWN_EX: i32 = 16;

fn control(file: RawFd, command: i32, argument: usize) -> Result<i32, Errno> {
    // SAFETY: pointers that are passed here are valid.
    Errno::result(unsafe { libc::syscall(libc::SYS_fcntl, file, command, argument) } as i32)
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

fn blocked(signals: &[Signal]) -> Result<SigSet, String> {
    let mut set = SigSet::empty();
    signals.iter().for_each(|&signal| set.add(signal));
    set.thread_block().or_fail()?;
    Ok(set)
}

fn a_pipe_tells_its_owner() -> Outcome {
    let (from, to) = pipe().or_fail()?;
    let set = blocked(&[Signal::SIGIO])?;
    control(from.as_raw_fd(), libc::F_SETOWN, getpid().as_raw() as usize).or_fail()?;
    control(from.as_raw_fd(), libc::F_SETFL, libc::O_ASYNC as usize).or_fail()?;
    expect!(control(from.as_raw_fd(), libc::F_GETFL, 0).or_fail()? & libc::O_ASYNC != 0);
    for _ in 0..10 {
        write(&to, b"a").or_fail()?;
        expect_eq!(wait_for(&set).or_fail()?.si_signo, libc::SIGIO);
    }
    // The end of the other side is told as well.
    drop(to);
    expect_eq!(wait_for(&set).or_fail()?.si_signo, libc::SIGIO);
    Ok(())
}

fn signals_carry_the_descriptor() -> Outcome {
    let (from, to) = pipe().or_fail()?;
    let set = blocked(&[Signal::SIGUSR1])?;
    let file = from.as_raw_fd();
    control(file, libc::F_SETOWN, getpid().as_raw() as usize).or_fail()?;
    control(file, F_SETSIG, libc::SIGUSR1 as usize).or_fail()?;
    control(file, libc::F_SETFL, libc::O_ASYNC as usize).or_fail()?;
    write(&to, b"a").or_fail()?;
    let information = wait_for(&set).or_fail()?;
    // SAFETY: as sigaction(2) lays the structure out: the band, then the descriptor.
    let (band, descriptor) = unsafe {
        let words = (&raw const information).cast::<u64>();
        (words.add(2).read(), words.add(3).cast::<i32>().read())
    };
    expect_eq!((information.si_code, band, descriptor), (1, 0x41, file));
    expect_eq!(control(file, F_GETSIG, 0), Ok(libc::SIGUSR1));
    // The pipe's end would be told as well.
    control(file, libc::F_SETFL, 0).or_fail()?;
    expect_eq!(control(file, F_SETSIG, 65), Err(Errno::EINVAL));
    expect_eq!(control(file, F_SETSIG, 0), Ok(0));
    Ok(())
}

fn a_socket_tells_its_owner() -> Outcome {
    let mut ends = [0; 2];
    // SAFETY: a valid array, and descriptors that it was given.
    unsafe {
        Errno::result(libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr())).or_fail()?
    };
    let set = blocked(&[Signal::SIGIO])?;
    let (owner, on) = (getpid().as_raw(), 1);
    // SAFETY: valid pointers.
    unsafe {
        Errno::result(libc::ioctl(ends[0], 0x8901, &raw const owner)).or_fail()?;
        Errno::result(libc::ioctl(ends[0], libc::FIOASYNC, &raw const on)).or_fail()?;
        let mut read = 0;
        Errno::result(libc::ioctl(ends[0], 0x8903, &raw mut read)).or_fail()?;
        expect_eq!(read, owner);
        Errno::result(libc::write(ends[1], b"a".as_ptr().cast(), 1) as i32).or_fail()?;
    }
    expect_eq!(wait_for(&set).or_fail()?.si_signo, libc::SIGIO);
    // SAFETY: descriptors of this test.
    unsafe {
        libc::close(ends[1]);
        libc::close(ends[0]);
    }
    Ok(())
}

fn owners_are_kept_and_told() -> Outcome {
    let (from, _to) = pipe().or_fail()?;
    let file = from.as_raw_fd();
    expect_eq!(control(file, libc::F_GETOWN, 0), Ok(0));
    expect_eq!(control(file, libc::F_SETOWN, 999_999), Err(Errno::ESRCH));
    expect_eq!(control(file, libc::F_SETOWN, i32::MIN as usize), Err(Errno::EINVAL));
    let pid = getpid().as_raw();
    let owner = [0, nix::unistd::gettid().as_raw()];
    expect_eq!(control(file, F_SETOWN_EX, (&raw const owner) as usize), Ok(0));
    let mut read = [9; 2];
    expect_eq!(control(file, F_GETOWN_EX, (&raw mut read) as usize), Ok(0));
    expect_eq!(read, owner);
    for (owner, error) in [([3, pid], Errno::EINVAL), ([1, 999_999], Errno::ESRCH), ([0, -1], Errno::ESRCH)] {
        expect_eq!(control(file, F_SETOWN_EX, (&raw const owner) as usize), Err(error));
    }
    expect_eq!(control(file, F_SETOWN_EX, 1), Err(Errno::EFAULT));
    // An owner that has ended is none.
    let child = in_child(|| {
        let own = [1, getpid().as_raw()];
        i32::from(control(file, F_SETOWN_EX, (&raw const own) as usize).is_err())
    })?;
    expect!(matches!(child, nix::sys::wait::WaitStatus::Exited(_, 0)));
    expect_eq!(control(file, libc::F_GETOWN, 0), Ok(0));
    Ok(())
}
