//! Tracers and what they trace: children, threads, attached processes, stops of groups, ends.

#![allow(unsafe_code)] // As in the module above.

use std::fs::File;
use std::io::Read;

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::expect_eq;
use crate::harness::{OrFail, Outcome, own_path, spawn_child};
use crate::trace::*;

crate::tests! {
    children_are_traced
    vfork_is_told_before_and_after
    the_end_is_told_before
    exec_is_told_with_the_number_before
    threads_are_traced_and_waited_for
    attach_stops_and_detach_goes_on
    attach_finds_a_stopped_process
    seize_and_interrupt
    a_listener_hears_of_the_end_of_a_stop
    the_end_of_a_tracer_releases_or_kills
    a_parent_waits_behind_the_tracer
}

fn children_are_traced() -> Outcome {
    let child = tracee(libc::PTRACE_O_TRACEFORK as usize, || {
        let Ok(grandchild) = spawn_child(|| 4) else { return 98 };
        nix::sys::wait::waitpid(grandchild, None)
            .map_or(97, |status| i32::from(status == nix::sys::wait::WaitStatus::Exited(grandchild, 4)))
    })?;
    cont(child, 0).or_fail()?;
    expect_eq!(wait(child), Ok(stopped(libc::SIGTRAP, libc::PTRACE_EVENT_FORK)));
    let grandchild = Pid::from_raw(message(child).or_fail()? as i32);
    expect_eq!(information(child).or_fail()?.si_code, libc::SIGTRAP | libc::PTRACE_EVENT_FORK << 8);
    expect_eq!(wait(grandchild), Ok(stopped(libc::SIGSTOP, 0)));
    cont(child, 0).or_fail()?;
    cont(grandchild, 0).or_fail()?;
    expect_eq!(wait(grandchild), Ok(exited(4)));
    // The child hears of it after the tracer.
    let mut status = wait(child).or_fail()?;
    if status == stopped(libc::SIGCHLD, 0) {
        cont(child, 0).or_fail()?;
        status = wait(child).or_fail()?;
    }
    expect_eq!(status, exited(1));
    Ok(())
}

fn vfork_is_told_before_and_after() -> Outcome {
    let options = libc::PTRACE_O_TRACEVFORKDONE as usize;
    let child = tracee(options, || {
        // SAFETY: the child does nothing but end, without a stack.
        unsafe {
            std::arch::asm!("syscall", "test eax, eax", "jnz 2f", "mov edi, 6", "mov eax, 60", "syscall", "2:",
                inout("rax") libc::SYS_vfork => _, out("rdi") _, out("rcx") _, out("r11") _);
        }
        0
    })?;
    cont(child, 0).or_fail()?;
    let mut status = wait(child).or_fail()?;
    if status == stopped(libc::SIGCHLD, 0) {
        cont(child, 0).or_fail()?;
        status = wait(child).or_fail()?;
    }
    expect_eq!(status, stopped(libc::SIGTRAP, libc::PTRACE_EVENT_VFORK_DONE));
    end(child)
}

fn the_end_is_told_before() -> Outcome {
    let child = tracee(libc::PTRACE_O_TRACEEXIT as usize, || 9)?;
    cont(child, 0).or_fail()?;
    expect_eq!(wait(child), Ok(stopped(libc::SIGTRAP, libc::PTRACE_EVENT_EXIT)));
    expect_eq!(message(child), Ok(9 << 8));
    expect_eq!(peek(child, WORD.as_ptr().addr()), Ok(WORD.load(Ordering::Relaxed)));
    cont(child, 0).or_fail()?;
    expect_eq!(wait(child), Ok(exited(9)));
    Ok(())
}

fn exec_is_told_with_the_number_before() -> Outcome {
    let program = std::ffi::CString::new(own_path().into_os_string().into_encoded_bytes()).or_fail()?;
    let child = tracee(libc::PTRACE_O_TRACEEXEC as usize | SYSGOOD, || {
        let arguments = [c"test".as_ptr(), c"--list".as_ptr(), std::ptr::null()];
        // SAFETY: as in the test above.
        unsafe {
            libc::close(1);
            libc::execv(program.as_ptr(), arguments.as_ptr())
        }
    })?;
    reach(child, libc::SYS_execve)?;
    to_call(child).or_fail()?;
    expect_eq!(wait(child), Ok(stopped(libc::SIGTRAP, libc::PTRACE_EVENT_EXEC)));
    expect_eq!(message(child), Ok(child.as_raw() as u64));
    to_call(child).or_fail()?;
    expect_eq!(wait(child), Ok(CALL));
    let after = registers(child).or_fail()?;
    expect_eq!((after.rax, after.orig_rax), (0, libc::SYS_execve as u64));
    end(child)
}

fn threads_are_traced_and_waited_for() -> Outcome {
    let child = tracee(libc::PTRACE_O_TRACECLONE as usize, || {
        let joined = std::thread::spawn(|| 5).join();
        joined.unwrap_or(1)
    })?;
    cont(child, 0).or_fail()?;
    expect_eq!(wait(child), Ok(stopped(libc::SIGTRAP, libc::PTRACE_EVENT_CLONE)));
    let thread = Pid::from_raw(message(child).or_fail()? as i32);
    expect_eq!(wait(thread), Ok(stopped(libc::SIGSTOP, 0)));
    cont(child, 0).or_fail()?;
    cont(thread, 0).or_fail()?;
    // The process may be ending by then, and its status counts.
    let status = wait(thread).or_fail()?;
    expect(status == exited(0) || status == exited(5))?;
    expect_eq!(wait(thread), Err(Errno::ECHILD));
    expect_eq!(wait(child), Ok(exited(5)));
    Ok(())
}

fn attach_stops_and_detach_goes_on() -> Outcome {
    let child = counter()?;
    until_asleep(child)?;
    trace(libc::PTRACE_ATTACH, child, 0, 0).or_fail()?;
    expect_eq!(wait(child), Ok(stopped(libc::SIGSTOP, 0)));
    expect_eq!(trace(libc::PTRACE_ATTACH, child, 0, 0), Err(Errno::EPERM));
    trace(libc::PTRACE_DETACH, child, 0, 0).or_fail()?;
    until_asleep(child)?;
    expect_eq!(trace(libc::PTRACE_DETACH, child, 0, 0), Err(Errno::ESRCH));
    trace(libc::PTRACE_ATTACH, child, 0, 0).or_fail()?;
    expect_eq!(wait(child), Ok(stopped(libc::SIGSTOP, 0)));
    trace(libc::PTRACE_DETACH, child, 0, libc::SIGUSR1 as usize).or_fail()?;
    expect_eq!(wait(child), Ok(exited(3)));
    Ok(())
}

fn attach_finds_a_stopped_process() -> Outcome {
    let child = counter()?;
    until_asleep(child)?;
    nix::sys::signal::kill(child, Signal::SIGSTOP).or_fail()?;
    let mut status = 0;
    // SAFETY: the status lives during the call.
    unsafe { libc::waitpid(child.as_raw(), &raw mut status, libc::WUNTRACED) };
    expect_eq!(status, stopped(libc::SIGSTOP, 0));
    trace(libc::PTRACE_ATTACH, child, 0, 0).or_fail()?;
    expect_eq!(wait(child), Ok(stopped(libc::SIGSTOP, 0)));
    expect_eq!(information(child).map(|_| ()), Err(Errno::EINVAL));
    cont(child, 0).or_fail()?;
    // The stop that the request sends, which the process had made already.
    expect_eq!(wait(child), Ok(stopped(libc::SIGSTOP, 0)));
    expect(information(child).is_ok())?;
    trace(libc::PTRACE_DETACH, child, 0, libc::SIGUSR1 as usize).or_fail()?;
    nix::sys::signal::kill(child, Signal::SIGCONT).or_fail()?;
    expect_eq!(wait(child), Ok(exited(3)));
    Ok(())
}

const EVENT_STOP: i32 = 128;

fn seize_and_interrupt() -> Outcome {
    let child = counter()?;
    until_asleep(child)?;
    expect_eq!(trace(libc::PTRACE_SEIZE, child, 0, 1 << 30), Err(Errno::EIO));
    trace(libc::PTRACE_SEIZE, child, 0, SYSGOOD).or_fail()?;
    until_asleep(child)?;
    trace(libc::PTRACE_INTERRUPT, child, 0, 0).or_fail()?;
    expect_eq!(wait(child), Ok(stopped(libc::SIGTRAP, EVENT_STOP)));
    expect_eq!(registers(child).or_fail()?.orig_rax, libc::SYS_pause as u64);
    cont(child, 0).or_fail()?;
    until_asleep(child)?;
    nix::sys::signal::kill(child, Signal::SIGUSR1).or_fail()?;
    expect_eq!(wait(child), Ok(stopped(libc::SIGUSR1, 0)));
    cont(child, libc::SIGUSR1).or_fail()?;
    expect_eq!(wait(child), Ok(exited(3)));
    Ok(())
}

fn a_listener_hears_of_the_end_of_a_stop() -> Outcome {
    let child = counter()?;
    until_asleep(child)?;
    trace(libc::PTRACE_SEIZE, child, 0, 0).or_fail()?;
    nix::sys::signal::kill(child, Signal::SIGTSTP).or_fail()?;
    expect_eq!(wait(child), Ok(stopped(libc::SIGTSTP, 0)));
    expect_eq!(trace(libc::PTRACE_LISTEN, child, 0, 0), Err(Errno::EIO));
    // An orphaned group is not stopped by that one.
    cont(child, libc::SIGSTOP).or_fail()?;
    expect_eq!(wait(child), Ok(stopped(libc::SIGSTOP, EVENT_STOP)));
    trace(libc::PTRACE_LISTEN, child, 0, 0).or_fail()?;
    expect_eq!(registers(child).map(|_| ()), Err(Errno::ESRCH));
    nix::sys::signal::kill(child, Signal::SIGCONT).or_fail()?;
    expect_eq!(wait(child), Ok(stopped(libc::SIGTRAP, EVENT_STOP)));
    cont(child, 0).or_fail()?;
    expect_eq!(wait(child), Ok(stopped(libc::SIGCONT, 0)));
    cont(child, 0).or_fail()?;
    until_asleep(child)?;
    end(child)
}

fn the_end_of_a_tracer_releases_or_kills() -> Outcome {
    for (options, status) in [(0, exited(3)), (libc::PTRACE_O_EXITKILL as usize, libc::SIGKILL)] {
        let child = counter()?;
        until_asleep(child)?;
        let tracer = spawn_child(|| {
            let seized = trace(libc::PTRACE_SEIZE, child, 0, options);
            i32::from(seized.is_err())
        })?;
        expect_eq!(wait(tracer), Ok(exited(0)));
        nix::sys::signal::kill(child, Signal::SIGUSR1).or_fail()?;
        expect_eq!(wait(child), Ok(status));
    }
    Ok(())
}

fn a_parent_waits_behind_the_tracer() -> Outcome {
    let child = counter()?;
    until_asleep(child)?;
    let (reader, writer) = nix::unistd::pipe().or_fail()?;
    let tracer = spawn_child(|| {
        if trace(libc::PTRACE_SEIZE, child, 0, 0).is_err() {
            return 1;
        }
        let _ = nix::sys::signal::kill(child, Signal::SIGKILL);
        // The end is seen, and left for later.
        let is_seen = nix::sys::wait::waitid(
            nix::sys::wait::Id::Pid(child),
            nix::sys::wait::WaitPidFlag::WEXITED | nix::sys::wait::WaitPidFlag::WNOWAIT,
        );
        let _ = nix::unistd::write(&writer, b"x");
        // SAFETY: waits for the parent's word.
        unsafe { libc::pause() };
        i32::from(is_seen.is_err())
    })?;
    let mut byte = [0];
    File::from(reader).read_exact(&mut byte).or_fail()?;
    let mut status = 0;
    // SAFETY: the status lives during the call.
    let seen = unsafe { libc::waitpid(child.as_raw(), &raw mut status, libc::WNOHANG) };
    expect_eq!(seen, 0);
    nix::sys::signal::kill(tracer, Signal::SIGKILL).or_fail()?;
    expect_eq!(wait(tracer), Ok(libc::SIGKILL));
    expect_eq!(wait(child), Ok(libc::SIGKILL));
    Ok(())
}
