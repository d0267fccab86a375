//! Calls that a program takes itself: `PR_SET_SYSCALL_USER_DISPATCH` of prctl(2).

#![allow(unsafe_code)] // The C library has no safe forms of these calls.

use std::os::unix::process::CommandExt;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicUsize, Ordering};

use nix::errno::Errno;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::wait::WaitStatus;

use crate::harness::{OrFail, Outcome, in_child};
use crate::{expect, expect_eq};

crate::tests! {
    a_call_becomes_a_signal
    calls_of_some_instructions_pass
    a_byte_that_says_nothing_ends_the_process
    children_and_programs_have_their_calls
    settings_that_are_refused
}

const SET: i32 = 59;
const OFF: usize = 0;
const ON: usize = 1;
const ALLOW: u8 = 0;
const BLOCK: u8 = 1;
/// `si_code`.
const SYS_USER_DISPATCH: i32 = 2;
/// The call that the tests make; no kernel has it.
const CALL: usize = 0xff00;

static SELECTOR: AtomicU8 = AtomicU8::new(ALLOW);
static CODE: AtomicI32 = AtomicI32::new(0);
static NUMBER: AtomicI32 = AtomicI32::new(0);
static ADDRESS: AtomicUsize = AtomicUsize::new(0);

fn set(mode: usize, first: usize, length: usize, selector: usize) -> Result<(), Errno> {
    // SAFETY: the kernel checks the arguments; the selector is a static or never read.
    Errno::result(unsafe { libc::prctl(SET, mode, first, length, selector) }).map(drop)
}

fn selector() -> usize {
    SELECTOR.as_ptr().addr()
}

/// Makes a call with the selector at `says` meanwhile, and nothing else.
#[inline(never)]
fn call(says: u8) -> usize {
    SELECTOR.store(says, Ordering::SeqCst);
    let result: usize;
    // SAFETY: the call does not exist, and a handler for it changes atomics only.
    unsafe {
        std::arch::asm!("syscall", inlateout("rax") CALL => result, out("rcx") _, out("r11") _);
    }
    SELECTOR.store(ALLOW, Ordering::SeqCst);
    result
}

extern "C" fn note(_: i32, information: *mut libc::siginfo_t, _: *mut libc::c_void) {
    SELECTOR.store(ALLOW, Ordering::SeqCst);
    // SAFETY: the kernel has filled it in: code, then behind 16 bytes address and number of the call.
    unsafe {
        CODE.store((*information).si_code, Ordering::SeqCst);
        let words = information.cast::<u64>();
        ADDRESS.store(words.add(2).read() as usize, Ordering::SeqCst);
        NUMBER.store(words.add(3).read() as i32, Ordering::SeqCst);
    }
}

fn handle() -> Outcome {
    let action = SigAction::new(SigHandler::SigAction(note), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler only stores to atomics.
    unsafe { sigaction(Signal::SIGSYS, &action) }.or_fail().map(drop)
}

const NO_CALL: usize = 0_usize.wrapping_sub(libc::ENOSYS as usize);

fn a_call_becomes_a_signal() -> Outcome {
    handle()?;
    set(ON, 0, 0, selector()).or_fail()?;
    expect_eq!(call(ALLOW), NO_CALL);
    expect_eq!(CODE.load(Ordering::SeqCst), 0);
    // The register is as before the call.
    expect_eq!(call(BLOCK), CALL);
    expect_eq!(CODE.load(Ordering::SeqCst), SYS_USER_DISPATCH);
    expect_eq!(NUMBER.load(Ordering::SeqCst), CALL as i32);
    expect!(ADDRESS.load(Ordering::SeqCst).abs_diff(call as fn(u8) -> usize as usize) < 4096);
    set(OFF, 0, 0, 0).or_fail()?;
    expect_eq!(call(BLOCK), NO_CALL);
    Ok(())
}

fn calls_of_some_instructions_pass() -> Outcome {
    handle()?;
    // All that there are.
    set(ON, 1, usize::MAX - 1, selector()).or_fail()?;
    expect_eq!(call(BLOCK), NO_CALL);
    // A page in which there is no program.
    set(ON, 4096, 4096, selector()).or_fail()?;
    expect_eq!(call(BLOCK), CALL);
    Ok(())
}

fn a_byte_that_says_nothing_ends_the_process() -> Outcome {
    handle()?;
    let end = |body: fn()| {
        in_child(|| {
            body();
            0
        })
    };
    let status = end(|| {
        let _ = set(ON, 0, 0, selector());
        call(7);
    })?;
    expect!(matches!(status, WaitStatus::Signaled(_, Signal::SIGSYS, _)));
    let status = end(|| {
        let _ = set(ON, 0, 0, 8);
        call(ALLOW);
    })?;
    expect!(matches!(status, WaitStatus::Signaled(_, Signal::SIGSEGV, _)));
    Ok(())
}

fn children_and_programs_have_their_calls() -> Outcome {
    handle()?;
    set(ON, 0, 0, selector()).or_fail()?;
    let status = in_child(|| i32::from(call(BLOCK) != NO_CALL))?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    let thread = std::thread::spawn(|| call(BLOCK));
    expect_eq!(thread.join().ok(), Some(NO_CALL));
    let mut program = std::process::Command::new("/proc/self/exe");
    // The new program has nothing at the selector's address.
    // SAFETY: one system call.
    unsafe { program.arg("--list").pre_exec(|| set(ON, 0, 0, selector()).map_err(Into::into)) };
    expect!(program.output().or_fail()?.status.success());
    expect_eq!(call(BLOCK), CALL);
    Ok(())
}

fn settings_that_are_refused() -> Outcome {
    expect_eq!(set(2, 0, 0, 0), Err(Errno::EINVAL));
    for (first, length, selector) in [(1, 0, 0), (0, 1, 0), (0, 0, 1)] {
        expect_eq!(set(OFF, first, length, selector), Err(Errno::EINVAL));
    }
    expect_eq!(set(ON, 1, 0, 0), Err(Errno::EINVAL));
    expect_eq!(set(ON, 1, usize::MAX, 0), Err(Errno::EINVAL));
    expect_eq!(set(ON, 0, 0, usize::MAX), Err(Errno::EFAULT));
    set(OFF, 0, 0, 0).or_fail()
}
