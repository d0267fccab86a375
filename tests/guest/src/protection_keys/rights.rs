//! The rights register: a thread's own, also while it waits, in handlers, and seen from outside.

use std::arch::x86_64::__cpuid_count;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};

use super::{
    BY_KEY, FIRST_RIGHTS, NO_ACCESS, NO_STORES, PAGE, RW, allocate, handle, have_keys, map, pointer, protect,
    rights, rights_with, set_rights, touch,
};
use crate::harness::{OrFail, Outcome, own_path, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    threads_have_rights_of_their_own
    handlers_start_anew_and_the_old_rights_come_back
    a_handler_changes_the_rights_of_the_interrupted
    rights_outlast_waits
    a_waiting_reader_is_asked_for_its_rights
    a_debugger_sees_and_sets_them
    a_program_starts_with_the_first_rights
}

fn threads_have_rights_of_their_own() -> Outcome {
    if !have_keys() {
        return Ok(());
    }
    let (ask, asked) = channel::<()>();
    let (tell, told) = channel();
    let before = std::thread::spawn(move || {
        while asked.recv().is_ok() {
            let _ = tell.send(rights());
        }
    });
    let key = allocate(NO_STORES).or_fail()?;
    let own = rights();
    expect_eq!(own, rights_with(key, NO_STORES));
    ask.send(()).or_fail()?;
    // It has not been asked whether the key is to be had.
    expect_eq!(told.recv().or_fail()?, FIRST_RIGHTS);
    let after = std::thread::spawn(rights).join();
    expect_eq!(after.unwrap_or(0), own);
    for round in 0..200 {
        set_rights(rights_with(key, round % 4));
        ask.send(()).or_fail()?;
        expect_eq!(told.recv().or_fail()?, FIRST_RIGHTS);
        expect_eq!(rights(), rights_with(key, round % 4));
    }
    drop(ask);
    let _ = before.join();
    Ok(())
}

static IN_HANDLER: AtomicU32 = AtomicU32::new(0);

extern "C" fn note(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    IN_HANDLER.store(rights(), Ordering::Relaxed);
    set_rights(0);
}

fn handlers_start_anew_and_the_old_rights_come_back() -> Outcome {
    if !have_keys() {
        return Ok(());
    }
    handle(libc::SIGUSR1, note);
    for wanted in [FIRST_RIGHTS, 0, FIRST_RIGHTS & !(3 << 4) | NO_STORES << 4] {
        set_rights(wanted);
        IN_HANDLER.store(1, Ordering::Relaxed);
        // SAFETY: signals this thread.
        unsafe { libc::raise(libc::SIGUSR1) };
        expect_eq!((IN_HANDLER.load(Ordering::Relaxed), rights()), (FIRST_RIGHTS, wanted));
    }
    Ok(())
}

static FAULTS: AtomicUsize = AtomicUsize::new(0);
/// Where the extended state has the rights.
static OFFSET: AtomicUsize = AtomicUsize::new(0);

/// Gives the interrupted code all rights.
extern "C" fn permit(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    FAULTS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the kernel passes a ucontext with an extended state, whose part for the rights is at the offset that the
    // processor names; byte 513 has bit 9 of the parts that are there.
    unsafe {
        let state = (*context.cast::<libc::ucontext_t>()).uc_mcontext.fpregs.cast::<u8>();
        state.add(OFFSET.load(Ordering::Relaxed)).cast::<u32>().write_unaligned(0);
        *state.add(513) |= 2;
    }
}

fn a_handler_changes_the_rights_of_the_interrupted() -> Outcome {
    if !have_keys() {
        return Ok(());
    }
    OFFSET.store(__cpuid_count(0xd, 9).ebx as usize, Ordering::Relaxed);
    handle(libc::SIGSEGV, permit);
    let place = map(PAGE)?;
    let key = allocate(NO_ACCESS).or_fail()?;
    protect(place, PAGE, RW, key).or_fail()?;
    // SAFETY: the handler permits it.
    unsafe { pointer::<u8>(place).write_volatile(1) };
    expect_eq!((FAULTS.load(Ordering::Relaxed), rights()), (1, 0));
    // The same where the rights were the first ones.
    set_rights(FIRST_RIGHTS);
    // SAFETY: likewise.
    unsafe { pointer::<u8>(place).write_volatile(2) };
    expect_eq!((FAULTS.load(Ordering::Relaxed), rights()), (2, 0));
    Ok(())
}

fn rights_outlast_waits() -> Outcome {
    if !have_keys() {
        return Ok(());
    }
    let place = map(PAGE)?;
    let key = allocate(0).or_fail()?;
    protect(place, PAGE, RW, key).or_fail()?;
    let (there, back) = (nix::unistd::pipe().or_fail()?, nix::unistd::pipe().or_fail()?);
    let child = spawn_child(|| {
        // Another process on the same processor, with other rights.
        set_rights(0);
        let mut byte = [0];
        while matches!(nix::unistd::read(&there.0, &mut byte), Ok(1)) {
            if rights() != 0 || nix::unistd::write(&back.1, &byte) != Ok(1) || byte == [99] {
                break;
            }
        }
        i32::from(rights() != 0)
    })?;
    let mut there = std::fs::File::from(there.1);
    for round in 0..100_u8 {
        // Loads are allowed, stores every second time; the answer comes to memory with the key.
        let allowed = round % 2 == 0;
        set_rights(rights_with(key, if allowed { 0 } else { NO_STORES }));
        let mine = rights();
        there.write_all(&[round]).or_fail()?;
        // SAFETY: memory of the test.
        let read = Errno::result(unsafe { libc::read(back.0.as_raw_fd(), pointer(place), 1) });
        expect_eq!(rights(), mine);
        if allowed {
            expect_eq!(read, Ok(1));
            // SAFETY: memory of the test.
            expect_eq!(unsafe { pointer::<u8>(place).read_volatile() }, round);
        } else {
            expect_eq!(read, Err(Errno::EFAULT));
            // Whether the byte is lost is the kernel's affair; a new pipe starts without it.
            let mut byte = [0];
            nix::unistd::read(&back.0, &mut byte).or_fail()?;
            expect_eq!(byte, [round]);
        }
    }
    drop(there);
    let status = waitpid(child, None).or_fail()?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    Ok(())
}

fn a_waiting_reader_is_asked_for_its_rights() -> Outcome {
    if !have_keys() {
        return Ok(());
    }
    let length = 16 * PAGE;
    let place = map(length)?;
    // SAFETY: memory of the test.
    unsafe { pointer::<u8>(place).write_bytes(1, length) };
    let key = allocate(NO_STORES).or_fail()?;
    protect(place, length, RW, key).or_fail()?;
    let (reader, writer) = nix::unistd::pipe().or_fail()?;
    let child = spawn_child(|| {
        // Until the reader waits, so that its memory could be written to at once.
        for _ in 0..20 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        i32::from(nix::unistd::write(&writer, &[2; 16 * PAGE]) != Ok(16 * PAGE))
    })?;
    // SAFETY: memory of the test, to which the call must not store.
    let read = Errno::result(unsafe { libc::read(reader.as_raw_fd(), pointer(place), length) });
    expect_eq!(read, Err(Errno::EFAULT));
    // SAFETY: the rights allow loads.
    expect_eq!(unsafe { pointer::<u8>(place).read_volatile() }, 1);
    let mut left = [0; 16 * PAGE];
    let mut count = 0;
    while count < left.len() {
        let read = nix::unistd::read(&reader, &mut left).or_fail()?;
        expect!(read > 0);
        count += read;
    }
    expect!(matches!(waitpid(child, None).or_fail()?, WaitStatus::Exited(_, 0)));
    Ok(())
}

const NT_X86_XSTATE: usize = 0x202;

/// The extended state of a stopped process, got or set.
fn state(request: libc::c_uint, pid: i32, bytes: &mut [u8]) -> Result<usize, Errno> {
    let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: the vector names the buffer.
    Errno::result(unsafe { libc::ptrace(request, pid, NT_X86_XSTATE, &raw mut vector) })?;
    Ok(vector.iov_len)
}

/// The rights in an extended state.
fn rights_in(bytes: &[u8]) -> Option<u32> {
    let offset = __cpuid_count(0xd, 9).ebx as usize;
    let is_there = bytes.get(513).is_some_and(|bits| bits & 2 != 0);
    Some(u32::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?)).filter(|_| is_there)
}

fn trace_me() {
    // SAFETY: has the parent trace this process.
    unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
}

fn go_on(pid: i32) -> Result<(), Errno> {
    // SAFETY: a stopped child.
    Errno::result(unsafe { libc::ptrace(libc::PTRACE_CONT, pid, 0, 0) }).map(drop)
}

fn a_debugger_sees_and_sets_them() -> Outcome {
    if !have_keys() {
        return Ok(());
    }
    let (seen, given) = (FIRST_RIGHTS & !(3 << 8), FIRST_RIGHTS & !(3 << 10));
    let child = spawn_child(|| {
        trace_me();
        set_rights(seen);
        let _ = nix::sys::signal::raise(Signal::SIGSTOP);
        let is_given = rights() == given;
        let _ = nix::sys::signal::raise(Signal::SIGSTOP);
        i32::from(!is_given || rights() != 0)
    })?;
    expect!(matches!(waitpid(child, None).or_fail()?, WaitStatus::Stopped(..)));
    let mut bytes = vec![0; 1 << 14];
    let length = state(libc::PTRACE_GETREGSET, child.as_raw(), &mut bytes).or_fail()?;
    bytes.truncate(length);
    expect_eq!(rights_in(&bytes), Some(seen));
    let offset = __cpuid_count(0xd, 9).ebx as usize;
    bytes[offset..offset + 4].copy_from_slice(&given.to_ne_bytes());
    expect_eq!(state(libc::PTRACE_SETREGSET, child.as_raw(), &mut bytes), Ok(length));
    expect_eq!(state(libc::PTRACE_GETREGSET, child.as_raw(), &mut bytes), Ok(length));
    expect_eq!(rights_in(&bytes), Some(given));
    go_on(child.as_raw()).or_fail()?;
    expect!(matches!(waitpid(child, None).or_fail()?, WaitStatus::Stopped(..)));
    // A state without this part is one with rights to everything.
    bytes[513] &= !2;
    state(libc::PTRACE_SETREGSET, child.as_raw(), &mut bytes).or_fail()?;
    go_on(child.as_raw()).or_fail()?;
    expect!(matches!(waitpid(child, None).or_fail()?, WaitStatus::Exited(_, 0)));
    Ok(())
}

fn a_program_starts_with_the_first_rights() -> Outcome {
    if !have_keys() {
        return Ok(());
    }
    let place = map(PAGE)?;
    let key = allocate(NO_ACCESS).or_fail()?;
    protect(place, PAGE, RW, key).or_fail()?;
    // A forked child has the rights and the keys.
    expect_eq!(touch(place, false)?, Some((BY_KEY, key)));
    set_rights(0);
    let output = Command::new(own_path()).args(["--as=space", "rights"]).output().or_fail()?;
    expect_eq!(String::from_utf8_lossy(&output.stdout), format!("{FIRST_RIGHTS:#x}"));
    Ok(())
}
