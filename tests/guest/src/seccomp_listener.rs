//! Listeners of seccomp(2): another thread decides about calls that a filter hands over.

#![allow(unsafe_code)] // The C library has no safe forms of these calls.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork, gettid, pipe};

use crate::harness::{OrFail, Outcome, in_child};
use crate::{expect, expect_eq};

crate::tests! {
    a_listener_decides
    a_listener_hears_of_children
    a_listener_gives_descriptors
    a_listener_is_polled
    a_listener_that_ends_refuses_all
    a_signal_ends_the_wait
    a_received_call_waits_for_death_only
    a_process_ends_while_it_waits
    listeners_that_are_refused
    requests_that_are_refused
}

const NEW_LISTENER: u32 = 8;
const TSYNC: u32 = 1;
const TSYNC_ESRCH: u32 = 16;
const WAIT_KILLABLE: u32 = 32;
const RECEIVE: u64 = 0xc050_2100;
const SEND: u64 = 0xc018_2101;
const IS_VALID: u64 = 0x4008_2102;
const ADD: u64 = 0x4018_2103;
const CALL: libc::c_long = libc::SYS_getppid;

/// `struct seccomp_notif`.
#[repr(C)]
#[derive(Default, Debug)]
struct Notification {
    id: u64,
    pid: i32,
    flags: u32,
    number: i32,
    architecture: u32,
    instruction_pointer: u64,
    arguments: [u64; 6],
}

/// `struct seccomp_notif_resp`.
#[repr(C)]
#[derive(Default)]
struct Reply {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

/// `struct seccomp_notif_addfd`.
#[repr(C)]
#[derive(Default)]
struct Add {
    id: u64,
    flags: u32,
    source: u32,
    number: u32,
    descriptor_flags: u32,
}

/// A filter that asks about [`CALL`].
fn install(flags: u32) -> Result<i64, Errno> {
    let line = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut lines = [
        line(0x20, 0, 0, 0),
        line(0x15, 0, 1, CALL as u32),
        line(0x06, 0, 0, 0x7fc0_0000),
        line(0x06, 0, 0, 0x7fff_0000),
    ];
    let program = libc::sock_fprog { len: lines.len() as u16, filter: lines.as_mut_ptr() };
    // SAFETY: the program is valid while the call lasts.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        Errno::result(libc::syscall(libc::SYS_seccomp, 1, flags, &raw const program))
    }
}

fn request<T>(listener: &impl AsRawFd, request: u64, argument: &mut T) -> Result<i32, Errno> {
    // SAFETY: the argument is as long as the request says.
    Errno::result(unsafe { libc::ioctl(listener.as_raw_fd(), request, &raw mut *argument) })
}

fn receive(listener: &OwnedFd) -> Result<Notification, Errno> {
    let mut notification = Notification::default();
    request(listener, RECEIVE, &mut notification)?;
    Ok(notification)
}

fn reply(listener: &OwnedFd, id: u64, value: i64, error: i32, flags: u32) -> Result<i32, Errno> {
    request(listener, SEND, &mut Reply { id, value, error, flags })
}

fn is_valid(listener: &OwnedFd, id: u64) -> Result<i32, Errno> {
    request(listener, IS_VALID, &mut id.clone())
}

fn call(argument: usize) -> Result<i64, Errno> {
    // SAFETY: no pointers.
    Errno::result(unsafe { libc::syscall(CALL, argument) })
}

fn owned(descriptor: i64) -> OwnedFd {
    // SAFETY: a descriptor that has just been made.
    unsafe { OwnedFd::from_raw_fd(descriptor as RawFd) }
}

/// The events that the listener reports within a second.
fn ready(listener: &OwnedFd, wanted: PollFlags) -> Result<PollFlags, String> {
    let mut polled = [PollFd::new(listener.as_fd(), wanted)];
    poll(&mut polled, PollTimeout::from(1000_u16)).or_fail()?;
    polled[0].revents().ok_or_else(|| "unknown events".to_owned())
}

/// Runs `asker` in a thread with a filter, and `decider` with its listener.
fn with_listener<T: Send>(
    flags: u32,
    asker: impl FnOnce() -> T + Send,
    decider: impl FnOnce(OwnedFd, i32, libc::pthread_t) -> Outcome,
) -> Result<T, String> {
    let (give, take) = mpsc::channel();
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let listener = install(NEW_LISTENER | flags);
            // SAFETY: no arguments.
            let _ = give.send((listener, gettid().as_raw(), unsafe { libc::pthread_self() }));
            asker()
        });
        let (listener, tid, handle) = take.recv().or_fail()?;
        decider(owned(listener.or_fail()?), tid, handle)?;
        thread.join().map_err(|_| "the thread that asks has panicked".to_owned())
    })
}

fn a_listener_decides() -> Outcome {
    // SAFETY: no pointers.
    let parent = unsafe { libc::syscall(CALL) };
    let asker = || [call(5), call(6), call(7), call(8)];
    let results = with_listener(0, asker, |listener, tid, _| {
        let first = receive(&listener).or_fail()?;
        expect_eq!((first.pid, first.flags, first.number), (tid, 0, CALL as i32));
        expect_eq!((first.architecture, first.arguments[0]), (0xc000_003e, 5));
        expect!(first.instruction_pointer != 0);
        expect_eq!(is_valid(&listener, first.id), Ok(0));
        expect_eq!(is_valid(&listener, first.id + 1), Err(Errno::ENOENT));
        expect_eq!(reply(&listener, first.id, 0, -libc::EDOM, 0), Ok(0));
        let second = receive(&listener).or_fail()?;
        expect_eq!((second.id, second.arguments[0]), (first.id + 1, 6));
        expect_eq!(is_valid(&listener, first.id), Err(Errno::ENOENT));
        expect_eq!(reply(&listener, first.id, 0, 0, 0), Err(Errno::ENOENT));
        expect_eq!(reply(&listener, second.id, 4_000_000_000, 0, 0), Ok(0));
        let third = receive(&listener).or_fail()?;
        expect_eq!(reply(&listener, third.id, 1, 0, 1), Err(Errno::EINVAL));
        expect_eq!(reply(&listener, third.id, 0, -1, 1), Err(Errno::EINVAL));
        expect_eq!(reply(&listener, third.id, 0, 0, 2), Err(Errno::EINVAL));
        expect_eq!(reply(&listener, third.id, 0, 0, 1), Ok(0));
        let fourth = receive(&listener).or_fail()?;
        // An error counts more than a value.
        expect_eq!(reply(&listener, fourth.id, 9, -libc::EBADE, 0), Ok(0));
        Ok(())
    })?;
    expect_eq!(results, [Err(Errno::EDOM), Ok(4_000_000_000), Ok(parent), Err(Errno::EBADE)]);
    Ok(())
}

fn a_listener_hears_of_children() -> Outcome {
    let asker = || {
        // SAFETY: the child makes one call and ends.
        match unsafe { fork() } {
            Ok(ForkResult::Child) => {
                let status = i32::from(call(1) != Ok(77));
                // SAFETY: no pointers.
                unsafe { libc::_exit(status) }
            }
            Ok(ForkResult::Parent { child }) => Some((child.as_raw(), waitpid(child, None))),
            Err(_) => None,
        }
    };
    let mut asked = 0;
    let status = with_listener(0, asker, |listener, _, _| {
        let notification = receive(&listener).or_fail()?;
        asked = notification.pid;
        expect_eq!(reply(&listener, notification.id, 77, 0, 0), Ok(0));
        // It goes when the last thread with the filter has gone.
        expect!(ready(&listener, PollFlags::empty())?.contains(PollFlags::POLLHUP));
        Ok(())
    })?;
    let (child, status) = status.ok_or("no child")?;
    expect_eq!(asked, child);
    expect!(matches!(status, Ok(WaitStatus::Exited(_, 0))));
    Ok(())
}

fn a_listener_gives_descriptors() -> Outcome {
    let (ours, theirs) = pipe().or_fail()?;
    let source = theirs.as_raw_fd() as u32;
    let asker = || [call(1), call(2)];
    let results = with_listener(0, asker, |listener, _, _| {
        let asked = receive(&listener).or_fail()?;
        let id = asked.id;
        let add = |flags, number| Add { id, flags, source, number, descriptor_flags: libc::O_CLOEXEC as u32 };
        let given = request(&listener, ADD, &mut add(0, 0)).or_fail()?;
        let flags = |descriptor| {
            // SAFETY: no pointers.
            Errno::result(unsafe { libc::fcntl(descriptor, libc::F_GETFD) })
        };
        expect_eq!(flags(given), Ok(libc::FD_CLOEXEC));
        expect_eq!(request(&listener, ADD, &mut add(1, 300)), Ok(300));
        expect_eq!(flags(300), Ok(libc::FD_CLOEXEC));
        expect_eq!(request(&listener, ADD, &mut add(0, 300)), Err(Errno::EINVAL));
        expect_eq!(request(&listener, ADD, &mut add(4, 0)), Err(Errno::EINVAL));
        expect_eq!(request(&listener, ADD, &mut add(1, 1 << 30)), Err(Errno::EBADF));
        let wrong = &mut Add { id, source: 4000, ..Add::default() };
        expect_eq!(request(&listener, ADD, wrong), Err(Errno::EBADF));
        let wrong = &mut Add { id, source, descriptor_flags: 1, ..Add::default() };
        expect_eq!(request(&listener, ADD, wrong), Err(Errno::EINVAL));
        let wrong = &mut Add { id: id + 1, source, ..Add::default() };
        expect_eq!(request(&listener, ADD, wrong), Err(Errno::ENOENT));
        // A longer structure is taken if what is unknown is zero, a shorter one is not.
        let longer = 0x4020_2103;
        expect_eq!(request(&listener, longer, &mut (add(1, 301), 0_u64)), Ok(301));
        expect_eq!(request(&listener, longer, &mut (add(1, 301), 1_u64)), Err(Errno::E2BIG));
        expect_eq!(request(&listener, 0x4010_2103, &mut add(1, 301)), Err(Errno::EINVAL));
        expect_eq!(reply(&listener, id, 0, 0, 0), Ok(0));
        let second = receive(&listener).or_fail()?;
        let mut add = Add { id: second.id, flags: 3, source, number: 302, descriptor_flags: 0 };
        expect_eq!(request(&listener, ADD, &mut add), Ok(302));
        expect_eq!(flags(302), Ok(0));
        Ok(())
    })?;
    expect_eq!(results, [Ok(0), Ok(302)]);
    // SAFETY: no pointers.
    expect_eq!(nix::unistd::write(unsafe { std::os::fd::BorrowedFd::borrow_raw(302) }, b"x"), Ok(1));
    expect_eq!(nix::unistd::read(&ours, &mut [0; 2]), Ok(1));
    Ok(())
}

fn a_listener_is_polled() -> Outcome {
    let (go, wait) = mpsc::channel::<()>();
    let asker = move || {
        let _ = wait.recv();
        call(1)
    };
    let all = PollFlags::POLLIN | PollFlags::POLLOUT;
    let result = with_listener(0, asker, |listener, _, _| {
        let mut polled = [PollFd::new(listener.as_fd(), all)];
        expect_eq!(poll(&mut polled, PollTimeout::ZERO), Ok(0));
        go.send(()).or_fail()?;
        expect_eq!(ready(&listener, all)?, PollFlags::POLLIN);
        let asked = receive(&listener).or_fail()?;
        expect_eq!(ready(&listener, all)?, PollFlags::POLLOUT);
        expect_eq!(reply(&listener, asked.id, 3, 0, 0), Ok(0));
        expect_eq!(ready(&listener, PollFlags::empty())?, PollFlags::POLLHUP);
        Ok(())
    })?;
    expect_eq!(result, Ok(3));
    Ok(())
}

fn a_listener_that_ends_refuses_all() -> Outcome {
    let result = with_listener(
        0,
        || [call(1), call(2)],
        |listener, _, _| {
            receive(&listener).or_fail()?;
            drop(listener);
            Ok(())
        },
    )?;
    expect_eq!(result, [Err(Errno::ENOSYS), Err(Errno::ENOSYS)]);
    let result = with_listener(
        0,
        || call(1),
        |listener, _, _| {
            expect_eq!(ready(&listener, PollFlags::POLLIN)?, PollFlags::POLLIN);
            drop(listener);
            Ok(())
        },
    )?;
    expect_eq!(result, Err(Errno::ENOSYS));
    Ok(())
}

static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn handle(_: i32) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

fn set_handler(flags: i32) {
    // SAFETY: a valid action with a handler that only counts.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = flags;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
    }
}

fn a_signal_ends_the_wait() -> Outcome {
    set_handler(0);
    let result = with_listener(
        0,
        || call(1),
        |listener, _, thread| {
            expect_eq!(ready(&listener, PollFlags::POLLIN)?, PollFlags::POLLIN);
            // SAFETY: the thread has not been joined.
            unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
            expect!(ready(&listener, PollFlags::empty())?.contains(PollFlags::POLLHUP));
            // The call that was announced is not there any more.
            expect_eq!(receive(&listener).map(|asked| asked.id), Err(Errno::ENOENT));
            Ok(())
        },
    )?;
    expect_eq!((result, HANDLED.swap(0, Ordering::SeqCst)), (Err(Errno::EINTR), 1));
    set_handler(libc::SA_RESTART);
    let result = with_listener(
        0,
        || call(1),
        |listener, _, thread| {
            let first = receive(&listener).or_fail()?;
            // SAFETY: the thread has not been joined.
            unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
            let second = receive(&listener).or_fail()?;
            expect_eq!(second.id, first.id + 1);
            expect_eq!(reply(&listener, first.id, 1, 0, 0), Err(Errno::ENOENT));
            expect_eq!(reply(&listener, second.id, 2, 0, 0), Ok(0));
            Ok(())
        },
    )?;
    expect_eq!((result, HANDLED.swap(0, Ordering::SeqCst)), (Ok(2), 1));
    Ok(())
}

fn a_received_call_waits_for_death_only() -> Outcome {
    set_handler(0);
    let result = with_listener(
        WAIT_KILLABLE,
        || {
            let first = call(1);
            (first, HANDLED.load(Ordering::SeqCst), call(2), HANDLED.load(Ordering::SeqCst))
        },
        |listener, _, thread| {
            let first = receive(&listener).or_fail()?;
            // SAFETY: the thread has not been joined.
            unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
            for _ in 0..100 {
                std::thread::yield_now();
            }
            expect_eq!((is_valid(&listener, first.id), HANDLED.load(Ordering::SeqCst)), (Ok(0), 0));
            expect_eq!(reply(&listener, first.id, 1, 0, 0), Ok(0));
            // A call that nobody has read is interrupted as ever.
            expect_eq!(ready(&listener, PollFlags::POLLIN)?, PollFlags::POLLIN);
            // SAFETY: as above.
            unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
            expect!(ready(&listener, PollFlags::empty())?.contains(PollFlags::POLLHUP));
            Ok(())
        },
    )?;
    expect_eq!(result, (Ok(1), 1, Err(Errno::EINTR), 2));
    Ok(())
}

fn a_process_ends_while_it_waits() -> Outcome {
    for flags in [0, WAIT_KILLABLE] {
        let status = in_child(|| {
            let ended = with_listener(
                flags,
                || call(1),
                |listener, _, _| {
                    receive(&listener).or_fail()?;
                    // SAFETY: no pointers.
                    unsafe { libc::_exit(7) }
                },
            );
            i32::from(ended.is_err())
        })?;
        expect!(matches!(status, WaitStatus::Exited(_, 7)));
    }
    Ok(())
}

fn listeners_that_are_refused() -> Outcome {
    let status = in_child(|| {
        let mut sizes = [0_u16; 3];
        // SAFETY: the sizes are as long as the call says.
        let told = unsafe { libc::syscall(libc::SYS_seccomp, 3, 0, &raw mut sizes) };
        let action = 0x7fc0_0000_u32;
        // SAFETY: a valid action.
        let known = unsafe { libc::syscall(libc::SYS_seccomp, 2, 0, &raw const action) };
        let conditions = [
            told == 0 && sizes == [80, 24, 64],
            known == 0,
            install(NEW_LISTENER | TSYNC) == Err(Errno::EINVAL),
            install(WAIT_KILLABLE) == Err(Errno::EINVAL),
            install(64 | NEW_LISTENER) == Err(Errno::EINVAL),
            // Without a listener nobody can be asked.
            install(0) == Ok(0) && call(1) == Err(Errno::ENOSYS),
        ];
        let first = install(NEW_LISTENER | TSYNC | TSYNC_ESRCH).map(owned);
        let has_second = install(NEW_LISTENER);
        let closes = first.as_ref().map_err(|error| *error).map(|first| {
            // SAFETY: no pointers.
            unsafe { libc::fcntl(first.as_raw_fd(), libc::F_GETFD) }
        });
        let first_ends = first.is_ok();
        drop(first);
        let third = install(NEW_LISTENER).map(owned);
        let more = [
            first_ends,
            has_second == Err(Errno::EBUSY),
            closes.is_ok_and(|closes| closes == libc::FD_CLOEXEC),
            third.is_ok(),
        ];
        conditions.iter().chain(&more).position(|&holds| !holds).map_or(0, |index| index as i32 + 1)
    })?;
    expect_eq!(status, WaitStatus::Exited(status.pid().ok_or("no child")?, 0));
    Ok(())
}

fn requests_that_are_refused() -> Outcome {
    let result = with_listener(
        0,
        || call(1),
        |listener, _, _| {
            let mut given = Notification { flags: 1, ..Notification::default() };
            expect_eq!(request(&listener, RECEIVE, &mut given), Err(Errno::EINVAL));
            expect_eq!(request(&listener, 0x2105, &mut given), Err(Errno::EINVAL));
            for at in [RECEIVE, SEND, IS_VALID, ADD] {
                // SAFETY: no memory is at this address, which the call finds out.
                let refused = unsafe { libc::ioctl(listener.as_raw_fd(), at, 8) };
                expect_eq!(Errno::result(refused), Err(Errno::EFAULT));
            }
            // The call that could not be told is told again.
            let asked = receive(&listener).or_fail()?;
            expect_eq!(nix::unistd::read(&listener, &mut [0; 8]), Err(Errno::EINVAL));
            expect_eq!(reply(&listener, asked.id, 0, 0, 0), Ok(0));
            Ok(())
        },
    )?;
    expect_eq!(result, Ok(0));
    Ok(())
}
