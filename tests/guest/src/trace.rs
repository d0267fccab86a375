//! ptrace(2), and the memory of other processes.

#![allow(unsafe_code)] // The C library has no safe form of these calls.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
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

fn expect(condition: bool) -> Outcome {
    expect!(condition);
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
