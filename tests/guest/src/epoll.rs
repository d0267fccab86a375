//! epoll_wait(2): how much it reports, and what it makes of its buffer.

#![allow(unsafe_code)] // The C library has no safe forms of these calls.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::harness::{OrFail, Outcome};
use crate::{expect, expect_eq};

crate::tests! {
    all_that_is_ready_is_reported
    a_bad_buffer_matters_with_a_report
    bad_arguments_in_their_order
}

/// More than one step of the kernel takes.
const MANY: usize = 1500;
/// Addresses that no program has memory at, and that no program can have.
const NOWHERE: usize = 0x10;
const OUTSIDE: usize = 0xffff_8000_0000_0000;

fn wait(epoll: RawFd, events: usize, count: i32) -> Result<i32, Errno> {
    // SAFETY: the kernel checks the buffer.
    Errno::result(unsafe { libc::syscall(libc::SYS_epoll_wait, epoll, events, count, 0) } as i32)
}

fn instance() -> Result<Epoll, String> {
    Epoll::new(EpollCreateFlags::empty()).or_fail()
}

fn all_that_is_ready_is_reported() -> Outcome {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).or_fail()?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).or_fail()?;
    let epoll = instance()?;
    let event = EventFd::from_value_and_flags(1, EfdFlags::empty()).or_fail()?;
    let copies: Result<Vec<OwnedFd>, _> = (0..MANY).map(|_| event.as_fd().try_clone_to_owned()).collect();
    let copies = copies.or_fail()?;
    for (number, copy) in copies.iter().enumerate() {
        // Every third is told of once.
        let edge = if number % 3 == 0 { EpollFlags::EPOLLET } else { EpollFlags::empty() };
        epoll.add(copy, EpollEvent::new(EpollFlags::EPOLLIN | edge, number as u64)).or_fail()?;
    }
    let mut events = vec![libc::epoll_event { events: 0, u64: u64::MAX }; 2 * MANY];
    let address = events.as_mut_ptr().addr();
    // The buffer's end need not be there.
    expect_eq!(wait(epoll.0.as_raw_fd(), address, 100_000_000), Ok(MANY as i32));
    let mut numbers: Vec<u64> = events[..MANY].iter().map(|event| event.u64).collect();
    numbers.sort_unstable();
    expect!(numbers.iter().copied().eq(0..MANY as u64));
    expect_eq!(wait(epoll.0.as_raw_fd(), address, 2 * MANY as i32), Ok(MANY as i32 * 2 / 3));
    // A call that asks for fewer goes round.
    let mut seen = vec![0; MANY];
    for _ in 0..4 {
        expect_eq!(wait(epoll.0.as_raw_fd(), address, 250), Ok(250));
        events[..250].iter().for_each(|event| seen[event.u64 as usize] += 1);
    }
    expect_eq!(seen.iter().filter(|&&count| count == 1).count(), MANY * 2 / 3);
    Ok(())
}

fn a_bad_buffer_matters_with_a_report() -> Outcome {
    let epoll = instance()?;
    let event = EventFd::from_value_and_flags(0, EfdFlags::empty()).or_fail()?;
    epoll.add(&event, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 7)).or_fail()?;
    let file = epoll.0.as_raw_fd();
    expect_eq!(wait(file, NOWHERE, 1), Ok(0));
    event.write(1).or_fail()?;
    expect_eq!(wait(file, NOWHERE, 1), Err(Errno::EFAULT));
    // The event is still to be reported.
    let mut report = libc::epoll_event { events: 0, u64: 0 };
    expect_eq!(wait(file, (&raw mut report).addr(), 1), Ok(1));
    let data = report.u64;
    expect_eq!(data, 7);
    expect_eq!(wait(file, NOWHERE, 1), Ok(0));
    // An event that has gone again is none.
    event.write(1).or_fail()?;
    event.read().or_fail()?;
    expect_eq!(wait(file, NOWHERE, 1), Ok(0));
    Ok(())
}

fn bad_arguments_in_their_order() -> Outcome {
    let epoll = instance()?;
    let file = epoll.0.as_raw_fd();
    expect_eq!(wait(-1, OUTSIDE, 0), Err(Errno::EINVAL));
    expect_eq!(wait(-1, OUTSIDE, i32::MAX), Err(Errno::EINVAL));
    expect_eq!(wait(-1, NOWHERE, i32::MAX / 12 + 1), Err(Errno::EINVAL));
    expect_eq!(wait(-1, OUTSIDE, 1), Err(Errno::EFAULT));
    expect_eq!(wait(-1, NOWHERE, 1), Err(Errno::EBADF));
    expect_eq!(wait(0, NOWHERE, 1), Err(Errno::EINVAL));
    expect_eq!(wait(file, OUTSIDE, 1), Err(Errno::EFAULT));
    expect_eq!(wait(file, NOWHERE, i32::MAX / 12), Ok(0));
    Ok(())
}
