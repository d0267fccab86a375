//! The state of a stopped process: its memory, registers and signals; and the memory of others.

#![allow(unsafe_code)] // As in the module above.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::expect_eq;
use crate::harness::{OrFail, Outcome, spawn_child};
use crate::trace::*;

crate::tests! {
    blocked_calls_start_again
    pending_signals_are_shown
    the_mask_is_changed
    floating_point_registers_are_changed
    accesses_are_watched
    requests_fail_as_on_linux
    proc_shows_the_tracer
    memory_is_read_and_written_through_proc
    process_vm_moves_memory
    kcmp_compares
}

fn blocked_calls_start_again() -> Outcome {
    let (reader, writer) = nix::unistd::pipe().or_fail()?;
    let child = spawn_child(|| {
        let mut byte = [0];
        let read = nix::unistd::read(&reader, &mut byte);
        i32::from(read == Ok(1)) + i32::from(byte[0])
    })?;
    until_asleep(child)?;
    trace(libc::PTRACE_ATTACH, child, 0, 0).or_fail()?;
    expect_eq!(wait(child), Ok(stopped(libc::SIGSTOP, 0)));
    let before = registers(child).or_fail()?;
    expect_eq!((before.orig_rax, before.rax as i64), (libc::SYS_read as u64, -512));
    cont(child, 0).or_fail()?;
    until_asleep(child)?;
    nix::unistd::write(&writer, &[7]).or_fail()?;
    expect_eq!(wait(child), Ok(exited(8)));
    Ok(())
}

fn pending_signals_are_shown() -> Outcome {
    let child = tracee(0, || {
        let mut set = nix::sys::signal::SigSet::empty();
        set.add(Signal::SIGUSR1);
        set.add(Signal::SIGUSR2);
        let _ = set.thread_block();
        let _ = nix::sys::signal::raise(Signal::SIGUSR2);
        let _ = nix::sys::signal::kill(nix::unistd::getpid(), Signal::SIGUSR1);
        let _ = nix::sys::signal::raise(Signal::SIGSTOP);
        0
    })?;
    cont(child, 0).or_fail()?;
    expect_eq!(wait(child), Ok(stopped(libc::SIGSTOP, 0)));
    // SAFETY: zeros are a siginfo_t.
    let mut found: [libc::siginfo_t; 4] = unsafe { std::mem::zeroed() };
    for (flags, signal) in [(0_u64, libc::SIGUSR2), (1, libc::SIGUSR1)] {
        let request = [0, flags | 4 << 32];
        let count = trace(0x4209, child, request.as_ptr().addr(), found.as_mut_ptr().addr());
        expect_eq!((count, found[0].si_signo), (Ok(1), signal));
    }
    let request = [0_u64, 2];
    let failed = trace(0x4209, child, request.as_ptr().addr(), found.as_mut_ptr().addr());
    expect_eq!(failed, Err(Errno::EINVAL));
    end(child)
}

fn the_mask_is_changed() -> Outcome {
    let child = tracee(0, || {
        let _ = nix::sys::signal::raise(Signal::SIGTERM);
        5
    })?;
    let mut mask = 0_u64;
    trace(0x420a, child, 8, (&raw mut mask).addr()).or_fail()?;
    expect_eq!(mask, 0);
    mask = 1 << (libc::SIGTERM - 1);
    expect_eq!(trace(0x420b, child, 4, (&raw mut mask).addr()), Err(Errno::EINVAL));
    trace(0x420b, child, 8, (&raw mut mask).addr()).or_fail()?;
    cont(child, 0).or_fail()?;
    expect_eq!(wait(child), Ok(exited(5)));
    Ok(())
}

fn floating_point_registers_are_changed() -> Outcome {
    let child = tracee(0, || {
        let (mut before, mut after) = (17.0_f64, 0.0_f64);
        // SAFETY: a breakpoint, and a register that is named.
        unsafe {
            std::arch::asm!("movsd xmm7, [{before}]", "int3", "movsd [{after}], xmm7",
                before = in(reg) &raw mut before, after = in(reg) &raw mut after, out("xmm7") _);
        }
        after as i32
    })?;
    cont(child, 0).or_fail()?;
    expect_eq!(wait(child), Ok(stopped(libc::SIGTRAP, 0)));
    // SAFETY: zeros are registers.
    let mut float: libc::user_fpregs_struct = unsafe { std::mem::zeroed() };
    trace(libc::PTRACE_GETFPREGS, child, 0, (&raw mut float).addr()).or_fail()?;
    let words = [float.xmm_space[28], float.xmm_space[29]];
    let value = f64::from_bits(u64::from(words[0]) | u64::from(words[1]) << 32);
    expect_eq!(value, 17.0);
    let bits = 23.0_f64.to_bits();
    (float.xmm_space[28], float.xmm_space[29]) = (bits as u32, (bits >> 32) as u32);
    trace(libc::PTRACE_SETFPREGS, child, 0, (&raw mut float).addr()).or_fail()?;
    let mut area = vec![0_u8; 8192];
    let mut set = libc::iovec { iov_base: area.as_mut_ptr().cast(), iov_len: area.len() };
    let extended = trace(libc::PTRACE_GETREGSET, child, 0x202, (&raw mut set).addr());
    expect(extended.is_ok())?;
    expect(set.iov_len >= 512 && area[160 + 7 * 16 + 6] == bits.to_le_bytes()[6])?;
    cont(child, 0).or_fail()?;
    expect_eq!(wait(child), Ok(exited(23)));
    Ok(())
}

fn accesses_are_watched() -> Outcome {
    let child = tracee(0, || {
        for value in [1, 2] {
            // Reads are not watched.
            std::hint::black_box(WORD.load(Ordering::Relaxed));
            WORD.store(value, Ordering::Relaxed);
        }
        0
    })?;
    let debug = |index: usize| 848 + 8 * index;
    let poke = |index: usize, value: usize| trace(libc::PTRACE_POKEUSER, child, debug(index), value);
    expect_eq!(poke(4, 0), Err(Errno::EIO));
    expect_eq!(poke(0, 1 << 63), Err(Errno::EINVAL));
    poke(0, WORD.as_ptr().addr()).or_fail()?;
    // A store of 8 bytes.
    poke(7, 1 | 0b1001 << 16).or_fail()?;
    let mut status = 0_u64;
    for value in [1, 2] {
        cont(child, 0).or_fail()?;
        expect_eq!(wait(child), Ok(stopped(libc::SIGTRAP, 0)));
        expect_eq!(information(child).or_fail()?.si_code, 4);
        expect_eq!(peek(child, WORD.as_ptr().addr()), Ok(value));
        trace(libc::PTRACE_PEEKUSER, child, debug(6), (&raw mut status).addr()).or_fail()?;
        expect_eq!(status & 15, 1);
        poke(6, 0).or_fail()?;
    }
    poke(7, 0).or_fail()?;
    cont(child, 0).or_fail()?;
    expect_eq!(wait(child), Ok(exited(0)));
    Ok(())
}

fn requests_fail_as_on_linux() -> Outcome {
    let own = nix::unistd::getpid();
    expect_eq!(trace(libc::PTRACE_ATTACH, own, 0, 0), Err(Errno::EPERM));
    expect_eq!(trace(libc::PTRACE_ATTACH, Pid::from_raw(0x3fff_ffff), 0, 0), Err(Errno::ESRCH));
    expect_eq!(cont(own, 0), Err(Errno::ESRCH));
    expect_eq!(trace(4711, own, 0, 0), Err(Errno::ESRCH));
    let child = tracee(0, || 0)?;
    expect_eq!(trace(4711, child, 0, 0), Err(Errno::EIO));
    expect_eq!(cont(child, 65), Err(Errno::EIO));
    expect_eq!(trace(libc::PTRACE_SETOPTIONS, child, 0, 1 << 30), Err(Errno::EINVAL));
    expect_eq!(trace(libc::PTRACE_INTERRUPT, child, 0, 0), Err(Errno::EIO));
    expect_eq!(trace(libc::PTRACE_LISTEN, child, 0, 0), Err(Errno::EIO));
    expect_eq!(trace(libc::PTRACE_GETREGS, child, 0, 8), Err(Errno::EFAULT));
    let set = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 8 };
    expect_eq!(trace(libc::PTRACE_GETREGSET, child, 77, (&raw const set).addr()), Err(Errno::EINVAL));
    let mut bad = registers(child).or_fail()?;
    bad.cs = 8;
    expect_eq!(set_registers(child, &bad), Err(Errno::EIO));
    cont(child, 0).or_fail()?;
    expect_eq!(wait(child), Ok(exited(0)));
    Ok(())
}

fn proc_shows_the_tracer() -> Outcome {
    let child = tracee(0, || {
        // SAFETY: waits for a signal.
        unsafe { libc::pause() }
    })?;
    expect_eq!(field(child, "TracerPid:")?, std::process::id().to_string());
    expect_eq!(state(child)?, "t (tracing stop)");
    trace(libc::PTRACE_DETACH, child, 0, 0).or_fail()?;
    expect_eq!(field(child, "TracerPid:")?, "0");
    end(child)
}

fn memory_is_read_and_written_through_proc() -> Outcome {
    let child = tracee(0, || i32::from(WORD.load(Ordering::Relaxed) == 9))?;
    let memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{child}/mem")).or_fail()?;
    let mut bytes = [0; 8];
    memory.read_exact_at(&mut bytes, WORD.as_ptr().addr() as u64).or_fail()?;
    expect_eq!(u64::from_ne_bytes(bytes), WORD.load(Ordering::Relaxed));
    memory.write_all_at(&9_u64.to_ne_bytes(), WORD.as_ptr().addr() as u64).or_fail()?;
    let failed = memory.read_at(&mut bytes, 0).map_err(|error| error.raw_os_error());
    expect_eq!(failed, Err(Some(libc::EIO)));
    let auxiliary = std::fs::read(format!("/proc/{child}/auxv")).or_fail()?;
    expect(auxiliary.len() >= 16 && auxiliary.ends_with(&[0; 16]))?;
    cont(child, 0).or_fail()?;
    expect_eq!(wait(child), Ok(exited(1)));
    expect_eq!(memory.read_at(&mut bytes, WORD.as_ptr().addr() as u64).ok(), Some(0));
    Ok(())
}

fn process_vm_moves_memory() -> Outcome {
    let child = counter()?;
    until_asleep(child)?;
    let mut ours = vec![0_u8; 3 * 4096];
    let theirs = vec![7_u8; 3 * 4096];
    let child_of = spawn_child(|| {
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    })?;
    let local = |bytes: &mut [u8]| libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let there = |address: usize, length| libc::iovec { iov_base: address as *mut _, iov_len: length };
    let move_in = |pid: Pid, local: &[libc::iovec], remote: &[libc::iovec], flags: u64| {
        // SAFETY: the local buffer lives during the call.
        Errno::result(unsafe {
            libc::process_vm_readv(
                pid.as_raw(),
                local.as_ptr(),
                local.len() as u64,
                remote.as_ptr(),
                remote.len() as u64,
                flags,
            )
        })
    };
    let whole = there(theirs.as_ptr().addr(), theirs.len());
    expect_eq!(move_in(child_of, &[local(&mut ours)], &[whole], 0), Ok(theirs.len() as isize));
    expect_eq!(ours, theirs);
    // Up to memory that is not there.
    let parts = [there(theirs.as_ptr().addr(), 100), there(8, 100)];
    expect_eq!(move_in(child_of, &[local(&mut ours)], &parts, 0), Ok(100));
    expect_eq!(move_in(child_of, &[local(&mut ours)], &[there(8, 100)], 0), Err(Errno::EFAULT));
    expect_eq!(move_in(child_of, &[local(&mut ours)], &[whole], 1), Err(Errno::EINVAL));
    expect_eq!(move_in(Pid::from_raw(0x3fff_ffff), &[local(&mut ours)], &[whole], 0), Err(Errno::ESRCH));
    let mut word = 9_u64.to_ne_bytes();
    let target = there(WORD.as_ptr().addr(), 8);
    // SAFETY: the local buffer lives during the call.
    let written = unsafe { libc::process_vm_writev(child_of.as_raw(), &local(&mut word), 1, &target, 1, 0) };
    expect_eq!(written, 8);
    word = [0; 8];
    expect_eq!(move_in(child_of, &[local(&mut word)], &[target], 0), Ok(8));
    expect_eq!(u64::from_ne_bytes(word), 9);
    // Text may not be written so.
    let text = there((answer as extern "C" fn() -> u64 as *const ()).addr(), 8);
    // SAFETY: as above.
    let failed = unsafe { libc::process_vm_writev(child_of.as_raw(), &local(&mut word), 1, &text, 1, 0) };
    expect_eq!((failed, Errno::last()), (-1, Errno::EFAULT));
    end(child)?;
    end(child_of)
}

fn kcmp_compares() -> Outcome {
    let child = counter()?;
    let compare = |first: Pid, second: Pid, kind: i32, a: i32, b: i32| {
        // SAFETY: the call takes numbers.
        Errno::result(unsafe { libc::syscall(libc::SYS_kcmp, first.as_raw(), second.as_raw(), kind, a, b) })
    };
    let own = nix::unistd::getpid();
    let (reader, _writer) = nix::unistd::pipe().or_fail()?;
    let copy = nix::unistd::dup(&reader).or_fail()?;
    use std::os::fd::AsRawFd;
    let numbers = (reader.as_raw_fd(), copy.as_raw_fd());
    expect_eq!(compare(own, own, 0, numbers.0, numbers.1), Ok(0));
    expect(compare(own, own, 0, numbers.0, _writer.as_raw_fd()).is_ok_and(|order| order != 0))?;
    expect_eq!(compare(own, child, 0, 2, 2), Ok(0));
    for kind in 1..=4 {
        expect_eq!(compare(own, own, kind, 0, 0), Ok(0));
        expect(compare(own, child, kind, 0, 0).is_ok_and(|order| order == 1 || order == 2))?;
    }
    expect_eq!(compare(own, own, 0, 4711, 0), Err(Errno::EBADF));
    expect_eq!(compare(own, own, 8, 0, 0), Err(Errno::EINVAL));
    end(child)
}
