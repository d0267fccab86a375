//! Signals: handlers, masks, restart, alternate stacks, faults.
#![allow(unsafe_code, reason = "installing a handler and catching a fault have no safe form")]

use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{
    SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, kill, raise, sigaction, sigprocmask,
};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid, getppid, pause, pipe, read, write};

use crate::harness::{OrFail, Outcome, in_child, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    handler_runs_and_returns
    siginfo_names_the_sender
    blocked_signal_stays_pending
    ignored_signal_does_nothing
    mask_during_handler
    reset_hand
    interrupted_read_restarts
    interrupted_read_fails
    sleep_reports_the_rest
    alternate_stack
    fault_has_address
    unhandled_fault_kills
    a_jump_into_the_kernel_is_no_call
    divide_by_zero_signal
    handlers_learn_which_trap_it_was
    child_sends_sigchld
    waits_find_no_child_that_nobody_wants
    broken_pipe_signal
    signal_survives_fork_not_exec
    kill_checks
    registers_survive_handlers
    stop_is_not_catchable
    sigsuspend_swaps_mask
    process_group_signal
    thread_directed_signal
    sigtimedwait_takes_signal
    alarm_kills
}

static COUNT: AtomicU32 = AtomicU32::new(0);
static VALUE: AtomicI32 = AtomicI32::new(0);
static ADDRESS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(signal: libc::c_int) {
    COUNT.fetch_add(1, Ordering::SeqCst);
    VALUE.store(signal, Ordering::SeqCst);
}

extern "C" fn inform(_: libc::c_int, information: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to SA_SIGINFO handlers; si_addr and si_pid read the union as the
    // tests that use them expect.
    unsafe {
        COUNT.fetch_add(1, Ordering::SeqCst);
        ADDRESS.store((*information).si_addr() as usize, Ordering::SeqCst);
        VALUE.store((*information).si_pid(), Ordering::SeqCst);
    }
}

fn install(signal: Signal, handler: SigHandler, flags: SaFlags) -> Outcome {
    let action = SigAction::new(handler, flags, SigSet::empty());
    // SAFETY: the handlers of this file only touch atomics.
    unsafe { sigaction(signal, &action) }.map(drop).or_fail()
}

fn handler_runs_and_returns() -> Outcome {
    install(Signal::SIGUSR1, SigHandler::Handler(count), SaFlags::empty())?;
    for round in 1..=100 {
        raise(Signal::SIGUSR1).or_fail()?;
        expect_eq!(COUNT.load(Ordering::SeqCst), round);
    }
    expect_eq!(VALUE.load(Ordering::SeqCst), libc::SIGUSR1);
    Ok(())
}

fn siginfo_names_the_sender() -> Outcome {
    install(Signal::SIGUSR1, SigHandler::SigAction(inform), SaFlags::SA_SIGINFO | SaFlags::SA_RESTART)?;
    let parent = getpid();
    let child = spawn_child(|| i32::from(kill(parent, Signal::SIGUSR1).is_err()))?;
    waitpid(child, None).or_fail()?;
    expect_eq!(VALUE.load(Ordering::SeqCst), child.as_raw());
    Ok(())
}

fn blocked_signal_stays_pending() -> Outcome {
    install(Signal::SIGUSR2, SigHandler::Handler(count), SaFlags::empty())?;
    let mut set = SigSet::empty();
    set.add(Signal::SIGUSR2);
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&set), None).or_fail()?;
    raise(Signal::SIGUSR2).or_fail()?;
    raise(Signal::SIGUSR2).or_fail()?;
    expect_eq!(COUNT.load(Ordering::SeqCst), 0);
    sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&set), None).or_fail()?;
    expect_eq!(COUNT.load(Ordering::SeqCst), 1);
    Ok(())
}

fn ignored_signal_does_nothing() -> Outcome {
    install(Signal::SIGTERM, SigHandler::SigIgn, SaFlags::empty())?;
    raise(Signal::SIGTERM).or_fail()
}

fn mask_during_handler() -> Outcome {
    static NESTED: AtomicU32 = AtomicU32::new(0);
    extern "C" fn nest(_: libc::c_int) {
        let depth = NESTED.fetch_add(1, Ordering::SeqCst);
        if depth < 3 {
            let _ = raise(Signal::SIGUSR1);
        }
        VALUE.store(NESTED.load(Ordering::SeqCst) as i32 - depth as i32, Ordering::SeqCst);
    }
    install(Signal::SIGUSR1, SigHandler::Handler(nest), SaFlags::empty())?;
    raise(Signal::SIGUSR1).or_fail()?;
    expect_eq!(NESTED.load(Ordering::SeqCst), 4);
    expect_eq!(VALUE.load(Ordering::SeqCst), 1);
    NESTED.store(0, Ordering::SeqCst);
    install(Signal::SIGUSR1, SigHandler::Handler(nest), SaFlags::SA_NODEFER)?;
    raise(Signal::SIGUSR1).or_fail()?;
    expect_eq!(VALUE.load(Ordering::SeqCst), 4);
    Ok(())
}

fn reset_hand() -> Outcome {
    let ended = in_child(|| {
        let _ = install(Signal::SIGUSR1, SigHandler::Handler(count), SaFlags::SA_RESETHAND);
        let _ = raise(Signal::SIGUSR1);
        let _ = raise(Signal::SIGUSR1);
        0
    })?;
    expect!(matches!(ended, WaitStatus::Signaled(_, Signal::SIGUSR1, _)));
    Ok(())
}

/// Blocks in a read, is sent a signal, then is sent a byte; returns what the read said.
fn read_across_signal(flags: SaFlags) -> Result<nix::Result<usize>, String> {
    install(Signal::SIGUSR1, SigHandler::Handler(count), flags)?;
    let (reader, writer) = pipe().or_fail()?;
    let parent = getpid();
    let child = spawn_child(|| {
        std::thread::sleep(Duration::from_millis(100));
        let _ = kill(parent, Signal::SIGUSR1);
        std::thread::sleep(Duration::from_millis(100));
        i32::from(write(&writer, b"x").is_err())
    })?;
    let mut byte = [0];
    let result = read(&reader, &mut byte);
    loop {
        match waitpid(child, None) {
            Err(Errno::EINTR) => {}
            other => break other.map(drop).or_fail()?,
        }
    }
    Ok(result)
}

fn interrupted_read_restarts() -> Outcome {
    expect_eq!(read_across_signal(SaFlags::SA_RESTART)?, Ok(1));
    expect_eq!(COUNT.load(Ordering::SeqCst), 1);
    Ok(())
}

fn interrupted_read_fails() -> Outcome {
    expect_eq!(read_across_signal(SaFlags::empty())?, Err(Errno::EINTR));
    expect_eq!(COUNT.load(Ordering::SeqCst), 1);
    Ok(())
}

fn sleep_reports_the_rest() -> Outcome {
    install(Signal::SIGUSR1, SigHandler::Handler(count), SaFlags::SA_RESTART)?;
    let parent = getpid();
    let child = spawn_child(|| {
        std::thread::sleep(Duration::from_millis(100));
        i32::from(kill(parent, Signal::SIGUSR1).is_err())
    })?;
    let request = libc::timespec { tv_sec: 30, tv_nsec: 0 };
    let mut rest = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both point to timespecs of this frame.
    let result = unsafe { libc::nanosleep(&raw const request, &raw mut rest) };
    expect_eq!((result, Errno::last()), (-1, Errno::EINTR));
    expect!(rest.tv_sec < 30 && rest.tv_sec >= 1);
    waitpid(child, None).map(drop).or_fail()
}

fn alternate_stack() -> Outcome {
    extern "C" fn where_am_i(_: libc::c_int) {
        let local = 0u8;
        ADDRESS.store(&raw const local as usize, Ordering::SeqCst);
    }
    let mut stack = vec![0u8; 1 << 16];
    let range = stack.as_ptr() as usize..stack.as_ptr() as usize + stack.len();
    let description = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
    // SAFETY: the memory lives to the end of this test, and the handler has returned by then.
    expect_eq!(unsafe { libc::sigaltstack(&raw const description, std::ptr::null_mut()) }, 0);
    install(Signal::SIGUSR1, SigHandler::Handler(where_am_i), SaFlags::SA_ONSTACK)?;
    raise(Signal::SIGUSR1).or_fail()?;
    expect!(range.contains(&ADDRESS.load(Ordering::SeqCst)));
    install(Signal::SIGUSR1, SigHandler::Handler(where_am_i), SaFlags::empty())?;
    raise(Signal::SIGUSR1).or_fail()?;
    expect!(!range.contains(&ADDRESS.load(Ordering::SeqCst)));
    Ok(())
}

fn fault_has_address() -> Outcome {
    extern "C" fn report(_: libc::c_int, information: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: a SIGSEGV's siginfo carries an address; `_exit` has no preconditions.
        unsafe {
            let hit = (*information).si_addr() as usize == 0x10 && (*information).si_code == 1;
            libc::_exit(if hit { 7 } else { 8 })
        }
    }
    let ended = in_child(|| {
        let _ = install(Signal::SIGSEGV, SigHandler::SigAction(report), SaFlags::SA_SIGINFO);
        // SAFETY: the read faults by intent; the handler ends the process.
        unsafe { std::ptr::without_provenance::<u8>(0x10).read_volatile() }.into()
    })?;
    expect!(matches!(ended, WaitStatus::Exited(_, 7)));
    Ok(())
}

fn unhandled_fault_kills() -> Outcome {
    let ended = in_child(|| {
        // SAFETY: the default action; the write then faults by intent and ends the process.
        unsafe {
            let _ = nix::sys::signal::signal(Signal::SIGSEGV, SigHandler::SigDfl);
            std::ptr::without_provenance_mut::<u8>(0x10).write_volatile(1);
        }
        0
    })?;
    expect!(matches!(ended, WaitStatus::Signaled(_, Signal::SIGSEGV, _)));
    Ok(())
}

/// The tool may tell of the kernel the address of its system calls' entry, and that faults there are calls.
const ENTRY_VARIABLE: &str = "HEDDLE_CALL_ENTRY";
const STRAY_VARIABLE: &str = "HEDDLE_CALLS_STRAY";
/// An address that Linux's kernel may have, too.
const SOMEWHERE_IN_THE_KERNEL: usize = 0xffff_ffff_8100_0000;
const CALL: [u8; 2] = [0x0f, 0x05];
const STATUS: i32 = 9;

/// Jumps to an address in the kernel with registers as after a `syscall` at `place`, by which the process would end.
fn jump_into_the_kernel(to: usize, place: usize) -> i32 {
    // SAFETY: the jump faults, or is a call: both end the process.
    unsafe {
        std::arch::asm!(
            "jmp rdx",
            in("rdx") to, in("rcx") place + CALL.len(), in("r11") 0x202,
            in("rax") libc::SYS_exit_group, in("rdi") i64::from(STATUS),
            options(noreturn)
        )
    }
}

/// A program that jumps to where calls enter makes none. Where the machine delivers calls by faults there, it makes
/// those that it could make by a jump to the instruction.
fn a_jump_into_the_kernel_is_no_call() -> Outcome {
    let to = match std::env::var(ENTRY_VARIABLE) {
        Ok(text) => usize::from_str_radix(text.trim_start_matches("0x"), 16).or_fail()?,
        Err(_) => SOMEWHERE_IN_THE_KERNEL,
    };
    let calls_stray = std::env::var(STRAY_VARIABLE).is_ok();
    for protection in [libc::PROT_READ, libc::PROT_READ | libc::PROT_EXEC] {
        // SAFETY: a new mapping, into which less is written than it holds.
        let place = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let place = libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_WRITE, flags, -1, 0);
            expect!(place != libc::MAP_FAILED);
            std::ptr::copy_nonoverlapping(CALL.as_ptr(), place.cast(), CALL.len());
            expect_eq!(libc::mprotect(place, 4096, protection), 0);
            place as usize
        };
        let ended = in_child(|| jump_into_the_kernel(to, place))?;
        let is_call = calls_stray && protection & libc::PROT_EXEC != 0;
        expect!(match ended {
            WaitStatus::Exited(_, status) => is_call && status == STATUS,
            WaitStatus::Signaled(_, signal, _) => !is_call && signal == Signal::SIGSEGV,
            _ => false,
        });
    }
    Ok(())
}

fn divide_by_zero_signal() -> Outcome {
    let ended = in_child(|| {
        // SAFETY: the division traps by intent and ends the process.
        unsafe {
            std::arch::asm!("div {zero:e}", zero = in(reg) 0, inout("eax") 1 => _, inout("edx") 0 => _);
        }
        0
    })?;
    expect!(matches!(ended, WaitStatus::Signaled(_, Signal::SIGFPE, _)));
    let ended = in_child(|| {
        // SAFETY: the instruction is undefined by intent and ends the process.
        unsafe { std::arch::asm!("ud2") };
        0
    })?;
    expect!(matches!(ended, WaitStatus::Signaled(_, Signal::SIGILL, _)));
    Ok(())
}

/// Ends the process unless number, code, address and error of the trap are those of [`TRAP`].
extern "C" fn compare_trap(_: i32, information: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel hands over both.
    let (information, registers) =
        unsafe { (&*information, &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs) };
    let at = |register: i32| registers[register as usize];
    // SAFETY: the signal is about an address, if about anything.
    let address = unsafe { information.si_addr() } as i64;
    let found = [
        at(libc::REG_TRAPNO),
        information.si_code.into(),
        address * i64::from(information.si_code != ILL_ILLOPN),
        at(libc::REG_CR2),
        at(libc::REG_ERR),
    ];
    let wrong = found.iter().zip(&TRAP).position(|(found, wanted)| *found != wanted.load(Ordering::Relaxed));
    // SAFETY: nothing has to be put in order.
    unsafe { libc::_exit(wrong.map_or(0, |place| place as i32 + 1)) };
}

const ILL_ILLOPN: i32 = 2;
static TRAP: [AtomicI64; 5] = [const { AtomicI64::new(0) }; 5];

fn handlers_learn_which_trap_it_was() -> Outcome {
    type Trap = (fn(), [i64; 5]);
    let traps: [Trap; 4] = [
        // SAFETY: it traps, and the handler ends the process.
        (|| unsafe { std::ptr::without_provenance_mut::<u8>(8).write_volatile(1) }, [14, 1, 8, 8, 6]),
        // SAFETY: as above.
        (|| unsafe { std::arch::asm!("ud2") }, [6, ILL_ILLOPN.into(), 0, 0, 0]),
        // SAFETY: as above.
        (|| unsafe { std::arch::asm!("int3") }, [3, 0x80, 0, 0, 0]),
        // SAFETY: as above.
        (|| unsafe { std::arch::asm!("cli") }, [13, 0x80, 0, 0, 0]),
    ];
    // The last one is no trap where programs have the kernel's level.
    let count = traps.len() - usize::from(crate::harness::is_direct());
    for (run, expected) in traps.into_iter().take(count) {
        let status = crate::harness::in_child(|| {
            for (wanted, value) in TRAP.iter().zip(expected) {
                wanted.store(value, Ordering::Relaxed);
            }
            // SAFETY: all zeros is a value of this type, and the handler may be called at any time.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = compare_trap as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO;
                for signal in [libc::SIGSEGV, libc::SIGILL, libc::SIGTRAP] {
                    libc::sigaction(signal, &raw const action, std::ptr::null_mut());
                }
            }
            run();
            100
        })?;
        expect!(matches!(status, WaitStatus::Exited(_, 0)));
    }
    Ok(())
}

fn child_sends_sigchld() -> Outcome {
    install(Signal::SIGCHLD, SigHandler::SigAction(inform), SaFlags::SA_SIGINFO | SaFlags::SA_RESTART)?;
    let child = spawn_child(|| 0)?;
    waitpid(child, None).or_fail()?;
    expect_eq!((COUNT.load(Ordering::SeqCst), VALUE.load(Ordering::SeqCst)), (1, child.as_raw()));
    install(Signal::SIGCHLD, SigHandler::SigIgn, SaFlags::empty())?;
    spawn_child(|| 0)?;
    expect_eq!(waitpid(None, None), Err(Errno::ECHILD));
    Ok(())
}

fn waits_find_no_child_that_nobody_wants() -> Outcome {
    for (handler, flags) in [
        (SigHandler::SigIgn, SaFlags::empty()),
        (SigHandler::Handler(count), SaFlags::SA_NOCLDWAIT | SaFlags::SA_RESTART),
    ] {
        install(Signal::SIGCHLD, handler, flags)?;
        // A KVM that interprets the kernel takes a quarter of a second for a round: then fewer have to do.
        let begun = std::time::Instant::now();
        for _ in (0..100).take_while(|_| begun.elapsed() < Duration::from_secs(10)) {
            spawn_child(|| 0)?;
            while waitpid(None, Some(WaitPidFlag::WNOHANG)) == Ok(WaitStatus::StillAlive) {}
            expect_eq!(waitpid(None, None), Err(Errno::ECHILD));
            let child = spawn_child(|| 0)?;
            expect_eq!(waitpid(child, None), Err(Errno::ECHILD));
        }
    }
    Ok(())
}

fn broken_pipe_signal() -> Outcome {
    let ended = in_child(|| {
        // SAFETY: the default disposition runs no code of ours.
        let _ = unsafe { nix::sys::signal::signal(Signal::SIGPIPE, SigHandler::SigDfl) };
        let Ok((reader, writer)) = pipe() else { return 9 };
        drop(reader);
        let _ = write(&writer, b"x");
        0
    })?;
    expect!(matches!(ended, WaitStatus::Signaled(_, Signal::SIGPIPE, _)));
    install(Signal::SIGPIPE, SigHandler::SigIgn, SaFlags::empty())?;
    let (reader, writer) = pipe().or_fail()?;
    drop(reader);
    expect_eq!(write(&writer, b"x"), Err(Errno::EPIPE));
    Ok(())
}

fn signal_survives_fork_not_exec() -> Outcome {
    install(Signal::SIGUSR1, SigHandler::Handler(count), SaFlags::empty())?;
    let ended = in_child(|| {
        let _ = raise(Signal::SIGUSR1);
        COUNT.load(Ordering::SeqCst) as i32
    })?;
    expect!(matches!(ended, WaitStatus::Exited(_, 1)));
    install(Signal::SIGUSR2, SigHandler::SigIgn, SaFlags::empty())?;
    let status = std::process::Command::new("/bin/sh")
        .args(["-c", "kill -USR2 $$; kill -USR1 $$; exit 3"])
        .status()
        .or_fail()?;
    expect_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGUSR1));
    Ok(())
}

fn kill_checks() -> Outcome {
    expect_eq!(kill(getpid(), None), Ok(()));
    expect_eq!(kill(Pid::from_raw(999_999), None), Err(Errno::ESRCH));
    // SAFETY: kill has no memory effects.
    expect_eq!(unsafe { libc::kill(getppid().as_raw(), 999) }, -1);
    expect_eq!(Errno::last(), Errno::EINVAL);
    Ok(())
}

fn registers_survive_handlers() -> Outcome {
    install(Signal::SIGALRM, SigHandler::Handler(count), SaFlags::SA_RESTART)?;
    let interval = libc::timeval { tv_sec: 0, tv_usec: 2_000 };
    let timer = libc::itimerval { it_interval: interval, it_value: interval };
    // SAFETY: the timer description lives in this frame.
    expect_eq!(unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) }, 0);
    let (mut float, mut integer) = (1.0f64, 1u64);
    while COUNT.load(Ordering::SeqCst) < 20 {
        for _ in 0..1000 {
            float = std::hint::black_box(float * 2.0) / 2.0;
            integer = std::hint::black_box(integer.rotate_left(7)).rotate_right(7);
        }
        expect_eq!((float, integer), (1.0, 1));
    }
    Ok(())
}

fn stop_is_not_catchable() -> Outcome {
    for signal in [Signal::SIGKILL, Signal::SIGSTOP] {
        let action = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
        // SAFETY: the call is refused.
        expect_eq!(unsafe { sigaction(signal, &action) }.err(), Some(Errno::EINVAL));
    }
    Ok(())
}

fn sigsuspend_swaps_mask() -> Outcome {
    install(Signal::SIGUSR1, SigHandler::Handler(count), SaFlags::empty())?;
    let mut set = SigSet::empty();
    set.add(Signal::SIGUSR1);
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&set), None).or_fail()?;
    raise(Signal::SIGUSR1).or_fail()?;
    SigSet::empty().suspend().or_fail()?;
    expect_eq!(COUNT.load(Ordering::SeqCst), 1);
    let now = SigSet::thread_get_mask().or_fail()?;
    expect!(now.contains(Signal::SIGUSR1));
    Ok(())
}

fn process_group_signal() -> Outcome {
    let leader = spawn_child(|| {
        let _ = nix::unistd::setpgid(Pid::from_raw(0), Pid::from_raw(0));
        pause();
        0
    })?;
    let _ = nix::unistd::setpgid(leader, leader);
    let member = spawn_child(|| {
        pause();
        0
    })?;
    nix::unistd::setpgid(member, leader).or_fail()?;
    kill(Pid::from_raw(-leader.as_raw()), Signal::SIGTERM).or_fail()?;
    for pid in [leader, member] {
        expect_eq!(waitpid(pid, None).or_fail()?, WaitStatus::Signaled(pid, Signal::SIGTERM, false));
    }
    Ok(())
}

fn thread_directed_signal() -> Outcome {
    static HIT: AtomicI32 = AtomicI32::new(0);
    extern "C" fn note(_: libc::c_int) {
        // SAFETY: gettid has no preconditions.
        HIT.store(unsafe { libc::gettid() }, Ordering::SeqCst);
    }
    install(Signal::SIGUSR1, SigHandler::Handler(note), SaFlags::empty())?;
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        // SAFETY: gettid has no preconditions.
        let _ = sender.send(unsafe { libc::gettid() });
        while HIT.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let tid = receiver.recv().or_fail()?;
    // SAFETY: tgkill has no memory effects.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, getpid().as_raw(), tid, libc::SIGUSR1) };
    expect_eq!(result, 0);
    expect!(thread.join().is_ok());
    expect_eq!(HIT.load(Ordering::SeqCst), tid);
    Ok(())
}

fn sigtimedwait_takes_signal() -> Outcome {
    let mut set = SigSet::empty();
    set.add(Signal::SIGUSR1);
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&set), None).or_fail()?;
    raise(Signal::SIGUSR1).or_fail()?;
    expect_eq!(set.wait().or_fail()?, Signal::SIGUSR1);
    let nothing = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    // SAFETY: the set and the time live in this frame.
    let result = unsafe { libc::sigtimedwait(set.as_ref(), std::ptr::null_mut(), &raw const nothing) };
    expect_eq!((result, Errno::last()), (-1, Errno::EAGAIN));
    Ok(())
}

fn alarm_kills() -> Outcome {
    let ended = in_child(|| {
        // SAFETY: the default disposition runs no code of ours.
        let _ = unsafe { nix::sys::signal::signal(Signal::SIGALRM, SigHandler::SigDfl) };
        nix::unistd::alarm::set(1);
        pause();
        0
    })?;
    expect!(matches!(ended, WaitStatus::Signaled(_, Signal::SIGALRM, _)));
    Ok(())
}
