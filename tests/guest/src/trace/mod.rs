//! ptrace(2), and the memory of other processes.

#![allow(unsafe_code)] // The C library has no safe form of these calls.

pub mod memory;
pub mod relations;

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::harness::{OrFail, Outcome, own_path, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    a_traced_program_stops_after_exec
    signals_are_passed_changed_or_dropped
    system_calls_are_seen
    a_system_call_is_replaced
    emulated_calls_are_not_made
    registers_and_memory_are_changed
    steps_are_single
    a_step_ends_after_a_call_and_in_a_handler
}

const SYSGOOD: usize = libc::PTRACE_O_TRACESYSGOOD as usize;

/// The call as the kernel has it, without the C library's change for the requests that read.
fn trace(request: u32, pid: Pid, address: usize, data: usize) -> Result<i64, Errno> {
    // SAFETY: what the kernel writes is at addresses that the callers below own.
    Errno::result(unsafe { libc::syscall(libc::SYS_ptrace, request, pid.as_raw(), address, data) })
}

fn cont(pid: Pid, signal: i32) -> Result<i64, Errno> {
    trace(libc::PTRACE_CONT, pid, 0, signal as usize)
}

fn to_call(pid: Pid) -> Result<i64, Errno> {
    trace(libc::PTRACE_SYSCALL, pid, 0, 0)
}

fn step(pid: Pid) -> Result<i64, Errno> {
    trace(libc::PTRACE_SINGLESTEP, pid, 0, 0)
}

fn peek(pid: Pid, address: usize) -> Result<u64, Errno> {
    let mut word = 0_u64;
    trace(libc::PTRACE_PEEKDATA, pid, address, (&raw mut word).addr())?;
    Ok(word)
}

fn message(pid: Pid) -> Result<u64, Errno> {
    let mut word = 0_u64;
    trace(libc::PTRACE_GETEVENTMSG, pid, 0, (&raw mut word).addr())?;
    Ok(word)
}

fn registers(pid: Pid) -> Result<libc::user_regs_struct, Errno> {
    // SAFETY: zeros are registers.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    trace(libc::PTRACE_GETREGS, pid, 0, (&raw mut registers).addr())?;
    Ok(registers)
}

fn set_registers(pid: Pid, registers: &libc::user_regs_struct) -> Result<i64, Errno> {
    trace(libc::PTRACE_SETREGS, pid, 0, std::ptr::from_ref(registers).addr())
}

fn information(pid: Pid) -> Result<libc::siginfo_t, Errno> {
    // SAFETY: zeros are a siginfo_t.
    let mut information: libc::siginfo_t = unsafe { std::mem::zeroed() };
    trace(libc::PTRACE_GETSIGINFO, pid, 0, (&raw mut information).addr())?;
    Ok(information)
}

/// The next change of a process or thread, as wait4 has it.
fn wait(pid: Pid) -> Result<i32, Errno> {
    let mut status = 0;
    // SAFETY: the status lives during the call.
    Errno::result(unsafe { libc::wait4(pid.as_raw(), &raw mut status, libc::__WALL, std::ptr::null_mut()) })?;
    Ok(status)
}

/// A status: stopped by this signal, at this event.
const fn stopped(signal: i32, event: i32) -> i32 {
    event << 16 | signal << 8 | 0x7f
}

const CALL: i32 = stopped(libc::SIGTRAP | 0x80, 0);

fn exited(code: i32) -> i32 {
    code << 8
}

/// A child that is traced from the stop on that it makes first.
fn tracee(options: usize, body: impl FnOnce() -> i32) -> Result<Pid, String> {
    let child = spawn_child(|| {
        if trace(libc::PTRACE_TRACEME, Pid::from_raw(0), 0, 0).is_err() {
            return 99;
        }
        let _ = nix::sys::signal::raise(Signal::SIGSTOP);
        body()
    })?;
    expect_eq!(wait(child), Ok(stopped(libc::SIGSTOP, 0)));
    trace(libc::PTRACE_SETOPTIONS, child, 0, options).or_fail()?;
    Ok(child)
}

/// Kills a child and waits for its end.
fn end(child: Pid) -> Outcome {
    nix::sys::signal::kill(child, Signal::SIGKILL).or_fail()?;
    for _ in 0..16 {
        if wait(child).or_fail()? & 0x7f == libc::SIGKILL {
            return Ok(());
        }
    }
    Err("it does not end".to_owned())
}

fn own_call() -> i64 {
    // SAFETY: the call takes nothing.
    unsafe { libc::syscall(libc::SYS_getppid) }
}

fn a_traced_program_stops_after_exec() -> Outcome {
    let program = std::ffi::CString::new(own_path().into_os_string().into_encoded_bytes()).or_fail()?;
    let child = tracee(0, || {
        let arguments = [c"test".as_ptr(), c"--list".as_ptr(), std::ptr::null()];
        // SAFETY: the program's path and arguments are strings, and the list ends.
        unsafe {
            libc::close(1);
            libc::execv(program.as_ptr(), arguments.as_ptr())
        }
    })?;
    cont(child, 0).or_fail()?;
    expect_eq!(wait(child), Ok(stopped(libc::SIGTRAP, 0)));
    let seen = information(child).or_fail()?;
    expect_eq!((seen.si_signo, seen.si_code), (libc::SIGTRAP, libc::SI_USER));
    // A new program's registers are 0 but for those that say where it is.
    let registers = registers(child).or_fail()?;
    expect_eq!((registers.rbx, registers.r12, registers.cs), (0, 0, 0x33));
    end(child)
}

static SEEN: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: i32) {
    SEEN.fetch_add(signal, Ordering::Relaxed);
}

fn handle(signal: i32) {
    // SAFETY: the handler does nothing but add.
    unsafe { libc::signal(signal, note as extern "C" fn(i32) as libc::sighandler_t) };
}

fn signals_are_passed_changed_or_dropped() -> Outcome {
    let child = tracee(0, || {
        handle(libc::SIGUSR1);
        handle(libc::SIGUSR2);
        for _ in 0..3 {
            let _ = nix::sys::signal::raise(Signal::SIGUSR1);
        }
        // An ignored signal is told of, too.
        let _ = nix::sys::signal::raise(Signal::SIGCHLD);
        SEEN.load(Ordering::Relaxed)
    })?;
    cont(child, 0).or_fail()?;
    for passed in [libc::SIGUSR1, libc::SIGUSR2, 0] {
        expect_eq!(wait(child), Ok(stopped(libc::SIGUSR1, 0)));
        let seen = information(child).or_fail()?;
        expect_eq!((seen.si_signo, seen.si_code), (libc::SIGUSR1, libc::SI_TKILL));
        cont(child, passed).or_fail()?;
    }
    expect_eq!(wait(child), Ok(stopped(libc::SIGCHLD, 0)));
    cont(child, 0).or_fail()?;
    expect_eq!(wait(child), Ok(exited(libc::SIGUSR1 + libc::SIGUSR2)));
    // A fatal one ends it only when it is passed.
    let child = tracee(0, || {
        let _ = nix::sys::signal::raise(Signal::SIGTERM);
        5
    })?;
    cont(child, 0).or_fail()?;
    expect_eq!(wait(child), Ok(stopped(libc::SIGTERM, 0)));
    cont(child, libc::SIGINT).or_fail()?;
    expect_eq!(wait(child), Ok(libc::SIGINT));
    Ok(())
}

#[repr(C)]
#[derive(Default, Debug)]
struct CallInformation {
    kind: u8,
    padding: [u8; 3],
    architecture: u32,
    ip: u64,
    sp: u64,
    words: [u64; 7],
}

fn call_information(pid: Pid) -> Result<(i64, CallInformation), Errno> {
    const GET: u32 = 0x420e;
    let mut information = CallInformation::default();
    let size = trace(GET, pid, size_of::<CallInformation>(), (&raw mut information).addr())?;
    Ok((size, information))
}

fn system_calls_are_seen() -> Outcome {
    let child = tracee(SYSGOOD, || {
        // SAFETY: the call takes numbers.
        unsafe { libc::syscall(libc::SYS_close, 12345_i64, 2_i64, 3_i64, 4_i64, 5_i64, 6_i64) };
        0
    })?;
    let (size, none) = call_information(child).or_fail()?;
    expect_eq!((size, none.kind, none.architecture), (24, 0, 0xc000_003e));
    loop {
        to_call(child).or_fail()?;
        expect_eq!(wait(child), Ok(CALL));
        let (size, entry) = call_information(child).or_fail()?;
        let at_entry = registers(child).or_fail()?;
        expect_eq!((size, message(child)), (80, Ok(1)));
        expect_eq!((entry.kind, entry.words[0], entry.ip), (1, at_entry.orig_rax, at_entry.rip));
        expect_eq!(at_entry.rax as i64, -i64::from(libc::ENOSYS));
        to_call(child).or_fail()?;
        expect_eq!(wait(child), Ok(CALL));
        let (size, exit) = call_information(child).or_fail()?;
        expect_eq!((size, exit.kind, message(child)), (33, 2, Ok(2)));
        expect_eq!(information(child).or_fail()?.si_code, libc::SIGTRAP | 0x80);
        if entry.words[0] == libc::SYS_close as u64 && entry.words[1] == 12345 {
            expect_eq!(entry.words, [libc::SYS_close as u64, 12345, 2, 3, 4, 5, 6]);
            expect_eq!((exit.words[0] as i64, exit.words[1] as u8), (-i64::from(libc::EBADF), 1));
            break;
        }
    }
    cont(child, 0).or_fail()?;
    expect_eq!(wait(child), Ok(exited(0)));
    Ok(())
}

/// Lets a child run up to the beginning of a call of this number.
fn reach(child: Pid, number: i64) -> Outcome {
    for _ in 0..1000 {
        to_call(child).or_fail()?;
        let status = wait(child).or_fail()?;
        if status == CALL {
            let (_, information) = call_information(child).or_fail()?;
            if information.kind == 1 && information.words[0] == number as u64 {
                return Ok(());
            }
        }
    }
    Err("the call is not made".to_owned())
}

fn a_system_call_is_replaced() -> Outcome {
    let child = tracee(SYSGOOD, || {
        let replaced = own_call();
        let skipped = own_call();
        i32::from(replaced == i64::from(std::process::id()) && skipped == 4711)
    })?;
    reach(child, libc::SYS_getppid)?;
    let mut changed = registers(child).or_fail()?;
    changed.orig_rax = libc::SYS_getpid as u64;
    set_registers(child, &changed).or_fail()?;
    reach(child, libc::SYS_getppid)?;
    let mut changed = registers(child).or_fail()?;
    (changed.orig_rax, changed.rax) = (u64::MAX, 4711);
    set_registers(child, &changed).or_fail()?;
    to_call(child).or_fail()?;
    expect_eq!(wait(child), Ok(CALL));
    expect_eq!(registers(child).or_fail()?.rax, 4711);
    cont(child, 0).or_fail()?;
    expect_eq!(wait(child), Ok(exited(1)));
    Ok(())
}

fn emulated_calls_are_not_made() -> Outcome {
    let child = tracee(SYSGOOD, || (own_call() == 4711).into())?;
    loop {
        trace(libc::PTRACE_SYSEMU, child, 0, 0).or_fail()?;
        expect_eq!(wait(child), Ok(CALL));
        let mut at_call = registers(child).or_fail()?;
        if at_call.orig_rax == libc::SYS_getppid as u64 {
            at_call.rax = 4711;
            set_registers(child, &at_call).or_fail()?;
            cont(child, 0).or_fail()?;
            break;
        }
        // Made all the same: the call is replaced by itself.
        at_call.rip -= 2;
        at_call.rax = at_call.orig_rax;
        at_call.orig_rax = u64::MAX;
        set_registers(child, &at_call).or_fail()?;
        for _ in 0..2 {
            to_call(child).or_fail()?;
            expect_eq!(wait(child), Ok(CALL));
        }
    }
    expect_eq!(wait(child), Ok(exited(1)));
    Ok(())
}

static WORD: AtomicU64 = AtomicU64::new(0x1122_3344_5566_7788);

#[inline(never)]
extern "C" fn answer() -> u64 {
    std::hint::black_box(0x1234_5678)
}

fn registers_and_memory_are_changed() -> Outcome {
    let child = tracee(0, || {
        let _ = nix::sys::signal::raise(Signal::SIGUSR1);
        i32::from(WORD.load(Ordering::Relaxed) == 7) + 2 * i32::from(answer() == 0x1234_5679)
    })?;
    cont(child, 0).or_fail()?;
    expect_eq!(wait(child), Ok(stopped(libc::SIGUSR1, 0)));
    let address = WORD.as_ptr().addr();
    expect_eq!(peek(child, address), Ok(0x1122_3344_5566_7788));
    expect_eq!(peek(child, address + 3).map(|word| word as u32 & 0xff_ffff), Ok(0x33_4455));
    trace(libc::PTRACE_POKEDATA, child, address, 7).or_fail()?;
    // Text is written although the program may not; this process's own stays what it is.
    let code = (answer as extern "C" fn() -> u64 as *const ()).addr();
    let at = (0..64).find(|&at| {
        // SAFETY: the function's text is followed by others'.
        unsafe { ((code + at) as *const u32).read_unaligned() == 0x1234_5678 }
    });
    let at = code + at.ok_or("no such constant in the text")?;
    let before = peek(child, at).or_fail()?;
    trace(libc::PTRACE_POKETEXT, child, at, (before + 1) as usize).or_fail()?;
    expect_eq!(peek(child, at), Ok(before + 1));
    expect_eq!(answer(), 0x1234_5678);
    expect_eq!(peek(child, 0), Err(Errno::EIO));
    let offset = std::mem::offset_of!(libc::user_regs_struct, r15);
    trace(libc::PTRACE_POKEUSER, child, offset, 99).or_fail()?;
    let mut word = 0_u64;
    trace(libc::PTRACE_PEEKUSER, child, offset, (&raw mut word).addr()).or_fail()?;
    let old = registers(child).or_fail()?;
    expect_eq!((word, old.r15), (99, 99));
    expect_eq!(trace(libc::PTRACE_PEEKUSER, child, 4, (&raw mut word).addr()), Err(Errno::EIO));
    expect_eq!(trace(libc::PTRACE_PEEKUSER, child, 928, (&raw mut word).addr()), Err(Errno::EIO));
    let mut set = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: 8 };
    trace(libc::PTRACE_GETREGSET, child, 1, (&raw mut set).addr()).or_fail()?;
    expect_eq!((word, set.iov_len), (99, 8));
    cont(child, 0).or_fail()?;
    expect_eq!(wait(child), Ok(exited(3)));
    Ok(())
}

fn steps_are_single() -> Outcome {
    let child = tracee(0, || {
        // SAFETY: instructions without effect behind a breakpoint.
        unsafe { std::arch::asm!("int3", "nop", "nop", "pushfq", "pop {flags}", "nop", flags = out(reg) _) };
        0
    })?;
    cont(child, 0).or_fail()?;
    expect_eq!(wait(child), Ok(stopped(libc::SIGTRAP, 0)));
    expect_eq!(information(child).or_fail()?.si_code, 0x80);
    let start = registers(child).or_fail()?.rip;
    for length in [1, 2] {
        step(child).or_fail()?;
        expect_eq!(wait(child), Ok(stopped(libc::SIGTRAP, 0)));
        expect_eq!(information(child).or_fail()?.si_code, 2);
        let now = registers(child).or_fail()?;
        expect_eq!((now.rip - start, now.eflags & 0x100), (length, 0));
    }
    cont(child, 0).or_fail()?;
    expect_eq!(wait(child), Ok(exited(0)));
    Ok(())
}

fn a_step_ends_after_a_call_and_in_a_handler() -> Outcome {
    let child = tracee(SYSGOOD, || {
        handle(libc::SIGUSR1);
        own_call();
        let _ = nix::sys::signal::raise(Signal::SIGUSR1);
        SEEN.load(Ordering::Relaxed)
    })?;
    reach(child, libc::SYS_getppid)?;
    let at_call = registers(child).or_fail()?.rip;
    step(child).or_fail()?;
    expect_eq!(wait(child), Ok(stopped(libc::SIGTRAP, 0)));
    expect_eq!(registers(child).or_fail()?.rip, at_call);
    cont(child, 0).or_fail()?;
    expect_eq!(wait(child), Ok(stopped(libc::SIGUSR1, 0)));
    trace(libc::PTRACE_SINGLESTEP, child, 0, libc::SIGUSR1 as usize).or_fail()?;
    expect_eq!(wait(child), Ok(stopped(libc::SIGTRAP, 0)));
    let handler = (note as extern "C" fn(i32) as *const ()).addr() as u64;
    expect_eq!(registers(child).or_fail()?.rip, handler);
    cont(child, 0).or_fail()?;
    expect_eq!(wait(child), Ok(exited(libc::SIGUSR1)));
    Ok(())
}

/// A child that counts.
fn counter() -> Result<Pid, String> {
    spawn_child(|| {
        handle(libc::SIGUSR1);
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
            if SEEN.load(Ordering::Relaxed) != 0 {
                return 3;
            }
        }
    })
}

/// Waits until a process sleeps, as `/proc` shows it.
fn until_asleep(pid: Pid) -> Outcome {
    while !state(pid)?.starts_with('S') {
        std::thread::yield_now();
    }
    Ok(())
}

fn state(pid: Pid) -> Result<String, String> {
    field(pid, "State:")
}

fn field(pid: Pid, name: &str) -> Result<String, String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).or_fail()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.map(|line| line.trim().to_owned()).ok_or_else(|| format!("no {name}"))
}

fn expect(condition: bool) -> Outcome {
    expect!(condition);
    Ok(())
}
