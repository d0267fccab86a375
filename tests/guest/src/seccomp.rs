//! seccomp(2): strict mode, filters, what a filter may do with a call, and who has it.

#![allow(unsafe_code)] // The C library has no safe forms of these calls.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};

use crate::harness::{OrFail, Outcome, in_child, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    strict_mode_leaves_four_calls
    a_filter_gives_errors
    the_strictest_of_several_filters_counts
    a_filter_traps
    a_filter_ends_the_process
    a_filter_asks_the_tracer
    a_filter_is_inherited_and_shown
    a_filter_for_all_threads
    filters_need_a_right_or_a_promise
    filters_that_are_refused
    a_tracer_asks_which_filters_are_logged
}

const LD: u16 = 0x20;
const JEQ: u16 = 0x15;
const RET: u16 = 0x06;
const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;
const TRAP: u32 = 0x0003_0000;
const TRACE: u32 = 0x7ff0_0000;
const KILL_PROCESS: u32 = 0x8000_0000;
const TSYNC: u32 = 1;
/// The call that the filters here are about.
const CALL: libc::c_long = libc::SYS_getppid;

const fn line(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

fn install(lines: &mut [libc::sock_filter], flags: u32) -> Result<i64, Errno> {
    let program = libc::sock_fprog { len: lines.len() as u16, filter: lines.as_mut_ptr() };
    // SAFETY: the program is valid while the call lasts.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, 1, flags, &raw const program) };
    Errno::result(result)
}

/// Installs a filter with an answer for [`CALL`].
fn answer(answer: u32, flags: u32) -> Result<i64, Errno> {
    let call = CALL as u32;
    install(
        &mut [line(LD, 0, 0, 0), line(JEQ, 0, 1, call), line(RET, 0, 0, answer), line(RET, 0, 0, ALLOW)],
        flags,
    )
}

fn promise() {
    // SAFETY: no pointers.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
}

fn call() -> Result<i64, Errno> {
    // SAFETY: no pointers.
    Errno::result(unsafe { libc::syscall(CALL) })
}

/// The exit status of a child for which all of this holds.
fn holds(conditions: &[bool]) -> i32 {
    conditions.iter().position(|&holds| !holds).map_or(0, |index| index as i32 + 1)
}

fn strict_mode_leaves_four_calls() -> Outcome {
    let status = in_child(|| {
        // SAFETY: no pointers.
        unsafe {
            libc::prctl(libc::PR_SET_SECCOMP, 1);
            libc::syscall(libc::SYS_write, -1, 0, 0);
            libc::syscall(libc::SYS_exit, 7);
        }
        1
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 7)));
    let status = in_child(|| {
        // SAFETY: no pointers.
        unsafe {
            libc::syscall(libc::SYS_seccomp, 0, 0, 0);
            libc::syscall(libc::SYS_getpid);
        }
        1
    })?;
    expect!(matches!(status, WaitStatus::Signaled(_, Signal::SIGKILL, _)));
    Ok(())
}

fn a_filter_gives_errors() -> Outcome {
    let status = in_child(|| {
        promise();
        // SAFETY: no pointers.
        let mode = || unsafe { libc::prctl(libc::PR_GET_SECCOMP) };
        let before = mode();
        let installed = answer(ERRNO | 77, 0);
        holds(&[
            before == 0,
            installed == Ok(0),
            call() == Err(Errno::from_raw(77)),
            mode() == 2,
            answer(ERRNO | 9999, 0) == Ok(0),
            call() == Err(Errno::from_raw(4095)),
        ])
    })?;
    expect_eq!(status, WaitStatus::Exited(status.pid().ok_or("no child")?, 0));
    Ok(())
}

fn the_strictest_of_several_filters_counts() -> Outcome {
    let status = in_child(|| {
        promise();
        let own = std::os::unix::process::parent_id();
        let _ = (answer(ERRNO | 5, 0), answer(ALLOW, 0), answer(0x7ffc_0000, 0));
        let error = call();
        let _ = answer(ERRNO | 6, 0);
        // Of equal ones the newest.
        holds(&[own > 0, error == Err(Errno::from_raw(5)), call() == Err(Errno::from_raw(6))])
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    Ok(())
}

static TRAPPED: AtomicBool = AtomicBool::new(false);

extern "C" fn trapped(signal: i32, information: *mut libc::siginfo_t, _: *mut libc::c_void) {
    /// `struct siginfo` of `SIGSYS`.
    #[repr(C)]
    struct Call {
        head: [i32; 4],
        address: usize,
        number: i32,
        architecture: u32,
    }
    // SAFETY: the kernel passes a valid structure.
    let call = unsafe { &*information.cast::<Call>() };
    let is_right = signal == libc::SIGSYS
        && call.head[1] == 5
        && call.head[2] == 1
        && call.address != 0
        && call.number == CALL as i32
        && call.architecture == 0xc000_003e;
    TRAPPED.store(is_right, Ordering::Relaxed);
}

fn a_filter_traps() -> Outcome {
    let status = in_child(|| {
        // SAFETY: a valid action with a handler that only stores.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = trapped as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut());
        }
        promise();
        let _ = answer(TRAP | 5, 0);
        // The call's number is left where its result would be.
        holds(&[call() == Ok(CALL), TRAPPED.load(Ordering::Relaxed)])
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    Ok(())
}

fn a_filter_ends_the_process() -> Outcome {
    // An action that is not known is the strictest.
    for action in [KILL_PROCESS, 0, 0x0001_0000] {
        let status = in_child(|| {
            promise();
            let _ = answer(action, 0);
            let _ = call();
            1
        })?;
        expect!(matches!(status, WaitStatus::Signaled(_, Signal::SIGSYS, _)));
    }
    Ok(())
}

fn a_filter_asks_the_tracer() -> Outcome {
    let child = spawn_child(|| {
        let _ = ptrace::traceme();
        let _ = raise(Signal::SIGSTOP);
        promise();
        let _ = answer(TRACE | 3, 0);
        let changed = call();
        let refused = call();
        holds(&[changed == Ok(0), refused == Ok(123)])
    })?;
    waitpid(child, None).or_fail()?;
    ptrace::setoptions(child, ptrace::Options::PTRACE_O_TRACESECCOMP).or_fail()?;
    for index in 0..2 {
        ptrace::cont(child, None).or_fail()?;
        let status = waitpid(child, None).or_fail()?;
        expect!(matches!(status, WaitStatus::PtraceEvent(_, Signal::SIGTRAP, 7)));
        expect_eq!(ptrace::getevent(child).or_fail()?, 3);
        let mut registers = ptrace::getregs(child).or_fail()?;
        expect_eq!(registers.orig_rax, CALL as u64);
        if index == 0 {
            registers.orig_rax = libc::SYS_getuid as u64;
        } else {
            (registers.orig_rax, registers.rax) = (u64::MAX, 123);
        }
        ptrace::setregs(child, registers).or_fail()?;
    }
    ptrace::cont(child, None).or_fail()?;
    expect_eq!(waitpid(child, None).or_fail()?, WaitStatus::Exited(child, 0));
    // Without a tracer the call is none.
    let status = in_child(|| {
        promise();
        let _ = answer(TRACE, 0);
        holds(&[call() == Err(Errno::ENOSYS)])
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    Ok(())
}

fn a_filter_is_inherited_and_shown() -> Outcome {
    let status = in_child(|| {
        promise();
        let _ = (answer(ERRNO | 77, 0), answer(ERRNO | 77, 0));
        let shown = |text: &str| {
            let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
            status.lines().any(|line| line == text)
        };
        let child = in_child(|| {
            holds(&[call() == Err(Errno::from_raw(77)), shown("Seccomp:\t2"), shown("Seccomp_filters:\t2")])
        });
        let thread = std::thread::spawn(call).join();
        let script = "grep -q '^Seccomp:.2$' /proc/self/status";
        let executed = std::process::Command::new("/bin/sh").args(["-c", script]).status();
        holds(&[
            matches!(child, Ok(WaitStatus::Exited(_, 0))),
            matches!(thread, Ok(Err(error)) if error == Errno::from_raw(77)),
            executed.is_ok_and(|status| status.success()),
        ])
    })?;
    expect_eq!(status, WaitStatus::Exited(status.pid().ok_or("no child")?, 0));
    Ok(())
}

fn a_filter_for_all_threads() -> Outcome {
    let status = in_child(|| {
        promise();
        let (ready, go) = (AtomicBool::new(false), AtomicBool::new(false));
        let seen = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                ready.store(true, Ordering::SeqCst);
                while !go.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                call()
            });
            while !ready.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let installed = answer(ERRNO | 78, TSYNC);
            go.store(true, Ordering::SeqCst);
            (installed, other.join().unwrap_or(Ok(0)))
        });
        // A thread that has a filter of its own is in the way, and is named.
        ready.store(false, Ordering::SeqCst);
        go.store(false, Ordering::SeqCst);
        let named = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let _ = answer(ERRNO | 79, 0);
                ready.store(true, Ordering::SeqCst);
                while !go.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                nix::unistd::gettid().as_raw()
            });
            while !ready.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let installed = answer(ERRNO | 80, TSYNC);
            go.store(true, Ordering::SeqCst);
            installed == other.join().map(i64::from).map_err(|_| Errno::EINVAL)
        });
        holds(&[seen == (Ok(0), Err(Errno::from_raw(78))), named, call() == Err(Errno::from_raw(78))])
    })?;
    expect_eq!(status, WaitStatus::Exited(status.pid().ok_or("no child")?, 0));
    Ok(())
}

fn filters_need_a_right_or_a_promise() -> Outcome {
    let status = in_child(|| {
        // SAFETY: no pointers.
        unsafe { libc::syscall(libc::SYS_setresuid, 1000, 1000, 1000) };
        let before = answer(ALLOW, 0);
        promise();
        holds(&[before == Err(Errno::EACCES), answer(ALLOW, 0) == Ok(0)])
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    Ok(())
}

fn filters_that_are_refused() -> Outcome {
    let ret = line(RET, 0, 0, ALLOW);
    let status = in_child(|| {
        promise();
        let refused = |lines: &mut [libc::sock_filter]| install(lines, 0) == Err(Errno::EINVAL);
        holds(&[
            refused(&mut []),
            refused(&mut [line(LD, 0, 0, 64), ret]),
            refused(&mut [line(LD, 0, 0, 2), ret]),
            refused(&mut [line(LD, 0, 0, 0)]),
            refused(&mut [line(JEQ, 1, 0, 0), ret]),
            refused(&mut [line(0x60, 0, 0, 1), ret]),
            refused(&mut [line(0x34, 0, 0, 0), ret]),
            refused(&mut [line(0x30, 0, 0, 0), ret]),
            install(&mut [ret], 64) == Err(Errno::EINVAL),
        ])
    })?;
    expect_eq!(status, WaitStatus::Exited(status.pid().ok_or("no child")?, 0));
    Ok(())
}

fn a_tracer_asks_which_filters_are_logged() -> Outcome {
    const METADATA: libc::c_uint = 0x420d;
    const LOG: u32 = 2;
    let child = spawn_child(|| {
        promise();
        let filters = [answer(ALLOW, 0), answer(ALLOW, LOG), answer(ALLOW, 0)];
        if filters.iter().any(Result::is_err) || ptrace::traceme().is_err() {
            return 1;
        }
        i32::from(raise(Signal::SIGSTOP).is_err())
    })?;
    waitpid(child, None).or_fail()?;
    let ask = |place: u64, size: usize| {
        let mut words = [place, 99];
        // SAFETY: both words live through the call, and the size is at most theirs.
        let result =
            unsafe { libc::syscall(libc::SYS_ptrace, METADATA, child.as_raw(), size, words.as_mut_ptr()) };
        Errno::result(result).map(|count| (count, words))
    };
    for (place, flags) in [(0, 0), (1, u64::from(LOG)), (2, 0)] {
        expect_eq!(ask(place, 16), Ok((16, [place, flags])));
    }
    expect_eq!(ask(1, 8), Ok((8, [1, 99])));
    expect_eq!(ask(3, 16), Err(Errno::ENOENT));
    expect_eq!(ask(0, 7), Err(Errno::EINVAL));
    ptrace::kill(child).or_fail()?;
    waitpid(child, None).or_fail()?;
    Ok(())
}
