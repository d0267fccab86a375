//! Calls on processes and threads.

use std::ptr::null;
use std::sync::atomic::{AtomicI32, Ordering};

use super::{Shot, errno, must, path, sys};

super::cases! {
    fork fork_by_clone3 borrowed_space thread execute wait wait_id affinity limits usage names set_groups
    robust_list scheduling groups system process_handle wait_by_handle fork_with_handle barriers
    filter_listener
}

type Outcome = Result<(), String>;

const STACK_BYTES: usize = 64 << 10;

fn reap(child: i64) -> Outcome {
    let mut status = 0i32;
    must("wait4", sys!(SYS_wait4, child, &raw mut status, 0, 0))?;
    if status == 0 { Ok(()) } else { Err(format!("the child ended with status {status:#x}")) }
}

fn forked(flags: i32) -> i64 {
    let child = sys!(SYS_clone, flags, 0, 0, 0, 0);
    if child == 0 {
        // SAFETY: it does not return.
        unsafe { libc::_exit(0) };
    }
    child
}

fn fork(shot: &mut Shot) -> Outcome {
    reap(shot.fire(|| forked(libc::SIGCHLD))?)
}

fn fork_by_clone3(shot: &mut Shot) -> Outcome {
    let mut request = [0u64; 8];
    request[4] = libc::SIGCHLD as u64;
    let child = shot.fire(|| {
        let child = sys!(SYS_clone3, request.as_ptr(), 64);
        if child == 0 {
            // SAFETY: it does not return.
            unsafe { libc::_exit(0) };
        }
        child
    })?;
    reap(child)
}

extern "C" fn nothing(_: *mut libc::c_void) -> libc::c_int {
    0
}

/// A new task with a stack of its own.
fn cloned(stack: &mut [u64], flags: i32, word: *mut i32) -> i64 {
    let top = stack.as_mut_ptr_range().end.cast();
    // SAFETY: the stack is large enough and outlives the task, which the caller waits for and which touches nothing.
    let result = unsafe { libc::clone(nothing, top, flags, std::ptr::null_mut(), word, null::<u8>(), word) };
    i64::from(result)
}

fn borrowed_space(shot: &mut Shot) -> Outcome {
    let mut stack = vec![0u64; STACK_BYTES / 8];
    let stack = std::cell::RefCell::new(&mut stack);
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    reap(shot.fire(|| cloned(&mut stack.borrow_mut(), flags, std::ptr::null_mut()))?)
}

fn thread(shot: &mut Shot) -> Outcome {
    let mut stack = vec![0u64; STACK_BYTES / 8];
    let stack = std::cell::RefCell::new(&mut stack);
    let word = AtomicI32::new(1);
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_CHILD_CLEARTID;
    shot.fire(|| cloned(&mut stack.borrow_mut(), flags, word.as_ptr()))?;
    while word.load(Ordering::Acquire) != 0 {
        let wait = [0i64, 10_000_000];
        let _ = sys!(SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, 1, wait.as_ptr(), 0, 0);
    }
    Ok(())
}

/// The child orders the failure, the parent asks what failed.
fn execute(shot: &mut Shot) -> Outcome {
    let name = path("/proc/self/exe");
    let arguments = [name.as_ptr(), c"nothing".as_ptr(), null()];
    let environment = [c"A=B".as_ptr(), null()];
    let child = sys!(SYS_clone, libc::SIGCHLD, 0, 0, 0, 0);
    if child == 0 {
        let result = shot.fire(|| sys!(SYS_execve, name.as_ptr(), arguments.as_ptr(), environment.as_ptr()));
        if let Err(reason) = result {
            eprintln!("execve: {reason}");
        }
        // SAFETY: it does not return.
        unsafe { libc::_exit(1) };
    }
    reap(must("fork", child)?)?;
    shot.read_failed()
}

fn wait(shot: &mut Shot) -> Outcome {
    // Two, because a child whose status could not be told is gone, as in Linux.
    for _ in 0..2 {
        must("fork", forked(libc::SIGCHLD))?;
    }
    let (mut status, mut usage) = (0i32, [0i64; 18]);
    let (status, usage) = (&raw mut status, usage.as_mut_ptr());
    shot.fire(|| sys!(SYS_wait4, -1, status, 0, usage))?;
    while sys!(SYS_wait4, -1, 0, 0, 0) >= 0 {}
    Ok(())
}

fn wait_id(shot: &mut Shot) -> Outcome {
    for _ in 0..2 {
        must("fork", forked(libc::SIGCHLD))?;
    }
    let mut information = [0u64; 16];
    let pointer = information.as_mut_ptr();
    shot.fire(|| sys!(SYS_waitid, libc::P_ALL, 0, pointer, libc::WEXITED, 0))?;
    while sys!(SYS_wait4, -1, 0, 0, 0) >= 0 {}
    Ok(())
}

fn affinity(shot: &mut Shot) -> Outcome {
    let mut mask = [0u64; 16];
    let pointer = mask.as_mut_ptr();
    shot.fire(|| sys!(SYS_sched_getaffinity, 0, 128, pointer))?;
    shot.fire(|| sys!(SYS_sched_setaffinity, 0, 128, pointer)).map(|_| ())
}

fn limits(shot: &mut Shot) -> Outcome {
    let mut limit = [0u64; 2];
    let pointer = limit.as_mut_ptr();
    shot.fire(|| sys!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 0, pointer))?;
    shot.fire(|| sys!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, pointer, 0)).map(|_| ())
}

fn usage(shot: &mut Shot) -> Outcome {
    let mut usage = [0i64; 18];
    let pointer = usage.as_mut_ptr();
    shot.fire(|| sys!(SYS_getrusage, libc::RUSAGE_SELF, pointer))?;
    shot.fire(|| sys!(SYS_times, pointer))?;
    shot.fire(|| sys!(SYS_sysinfo, pointer))?;
    shot.fire(|| sys!(SYS_clock_gettime, libc::CLOCK_REALTIME, pointer)).map(|_| ())
}

fn names(shot: &mut Shot) -> Outcome {
    let mut name = *b"heddle-stress\0\0\0";
    let pointer = name.as_mut_ptr();
    shot.fire(|| sys!(SYS_prctl, libc::PR_SET_NAME, pointer, 0, 0, 0))?;
    shot.fire(|| sys!(SYS_prctl, libc::PR_GET_NAME, pointer, 0, 0, 0)).map(|_| ())
}

fn system(shot: &mut Shot) -> Outcome {
    let mut names = [0u8; 512];
    let pointer = names.as_mut_ptr();
    shot.fire(|| sys!(SYS_uname, pointer))?;
    shot.fire(|| sys!(SYS_getrandom, pointer, 100, 0)).map(|_| ())
}

fn set_groups(shot: &mut Shot) -> Outcome {
    let groups = [1u32, 2, 3];
    shot.fire(|| sys!(SYS_setgroups, 3, groups.as_ptr()))?;
    let mut got = [0u32; 8];
    let pointer = got.as_mut_ptr();
    shot.fire(|| sys!(SYS_getgroups, 8, pointer)).map(|_| ())
}

fn robust_list(shot: &mut Shot) -> Outcome {
    let (mut head, mut length) = (0u64, 0u64);
    let (head, length) = (&raw mut head, &raw mut length);
    shot.fire(|| sys!(SYS_get_robust_list, 0, head, length)).map(|_| ())
}

fn scheduling(shot: &mut Shot) -> Outcome {
    let mut parameter = 0i32;
    let pointer = &raw mut parameter;
    shot.fire(|| sys!(SYS_sched_getparam, 0, pointer))?;
    shot.fire(|| sys!(SYS_sched_setscheduler, 0, libc::SCHED_OTHER, pointer)).map(|_| ())
}

/// A child makes itself a session.
fn groups(shot: &mut Shot) -> Outcome {
    let child = sys!(SYS_clone, libc::SIGCHLD, 0, 0, 0, 0);
    if child == 0 {
        let result = shot.fire(|| sys!(SYS_setsid));
        if let Err(reason) = &result {
            eprintln!("setsid: {reason} ({})", errno());
        }
        // SAFETY: it does not return.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    reap(must("fork", child)?)?;
    shot.read_failed()
}

fn process_handle(shot: &mut Shot) -> Outcome {
    // SAFETY: it only tells.
    let own = unsafe { libc::getpid() };
    let handle = shot.fire(|| sys!(SYS_pidfd_open, own, 0))?;
    shot.fire(|| sys!(SYS_pidfd_send_signal, handle, 0, 0, 0))?;
    super::close(handle)
}

fn wait_by_handle(shot: &mut Shot) -> Outcome {
    let child = must("clone", forked(libc::SIGCHLD))?;
    let handle = must("pidfd_open", sys!(SYS_pidfd_open, child, 0))?;
    let mut ready = [libc::pollfd { fd: handle as i32, events: libc::POLLIN, revents: 0 }];
    let ready = ready.as_mut_ptr();
    shot.fire(|| sys!(SYS_poll, ready, 1, 10_000))?;
    let mut information = [0u64; 16];
    let information = information.as_mut_ptr();
    // It stays to be waited for, since a copy that fails would lose it.
    let flags = libc::WEXITED | libc::WNOWAIT;
    shot.fire(|| sys!(SYS_waitid, libc::P_PIDFD, handle, information, flags, 0))?;
    super::close(handle)?;
    reap(child)
}

fn fork_with_handle(shot: &mut Shot) -> Outcome {
    let mut handle = -1i32;
    let mut request = [0u64; 8];
    request[0] = libc::CLONE_PIDFD as u64;
    request[1] = &raw mut handle as u64;
    request[4] = libc::SIGCHLD as u64;
    let child = shot.fire(|| {
        let child = sys!(SYS_clone3, request.as_ptr(), 64);
        if child == 0 {
            // SAFETY: it does not return.
            unsafe { libc::_exit(0) };
        }
        child
    })?;
    // SAFETY: the kernel wrote it, through the address in the request.
    super::close(unsafe { (&raw const handle).read_volatile() }.into())?;
    reap(child)
}

fn barriers(shot: &mut Shot) -> Outcome {
    for command in [
        libc::MEMBARRIER_CMD_QUERY,
        libc::MEMBARRIER_CMD_GLOBAL,
        libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED,
        libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED,
        libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED,
        libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED,
    ] {
        shot.fire(|| sys!(SYS_membarrier, command, 0, 0))?;
    }
    Ok(())
}

/// A filter that permits everything, with a listener that nobody asks.
fn filter_listener(shot: &mut Shot) -> Outcome {
    must("prctl", sys!(SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
    let lines = [libc::sock_filter { code: 6, jt: 0, jf: 0, k: 0x7fff_0000 }];
    let program = libc::sock_fprog { len: 1, filter: lines.as_ptr().cast_mut() };
    let listener = shot.fire(|| sys!(SYS_seccomp, 1, 8, &raw const program))?;
    must("close", sys!(SYS_close, listener))?;
    Ok(())
}
