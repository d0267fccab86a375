//! System calls at one place again and again: on a machine with direct calls the place becomes a jump into the
//! kernel, and everywhere it must stay what it is to a program, a signal's handler and a debugger.
#![allow(unsafe_code)] // System calls at places of this module's own, and looks at them.

use std::arch::global_asm;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid, getppid};

use crate::harness::{OrFail, Outcome, in_child, is_direct};
use crate::{expect, expect_eq};

crate::tests! {
    registers_flags_and_the_red_zone_are_kept
    code_may_jump_past_the_number
    places_become_jumps
    a_place_may_begin_a_page_and_may_not_cross_its_end
    all_arguments_arrive
    a_handler_finds_the_program_in_its_own_code
    a_call_that_is_interrupted_is_made_again
    a_debugger_steps_over_it
    children_have_the_places_and_their_own
    threads_share_the_places
    a_handler_in_the_kernel_is_a_fault
}

/// Uses of a place after which it has become what it becomes.
const USES: usize = 10;
/// Words below the stack pointer that a function without calls may use.
const RED_ZONE_WORDS: usize = 16;
const REGISTERS: usize = 12;
/// Where the record has what: registers with a pattern, `rcx`, `r11`, the result, the address behind the call, flags,
/// the red zone.
const RCX: usize = REGISTERS;
const R11: usize = REGISTERS + 1;
const RESULT: usize = REGISTERS + 2;
const BEHIND: usize = REGISTERS + 3;
const FLAGS: usize = REGISTERS + 4;
const RED_ZONE: usize = REGISTERS + 5;
const RECORD_WORDS: usize = RED_ZONE + RED_ZONE_WORDS;
const PATTERN: u64 = 0x1234_5000;
/// Carry and direction.
const SET_FLAGS: u64 = 0x401;

static RECORD: [AtomicU64; RECORD_WORDS] = [const { AtomicU64::new(0) }; RECORD_WORDS];

global_asm!(
    ".global heddle_test_keep, heddle_test_skip, heddle_test_ask, heddle_test_ask_shortly",
    // Makes a call with a pattern in every register and below the stack pointer, and records what it finds then.
    "heddle_test_keep:",
    "push rbx", "push rbp", "push r12", "push r13", "push r14", "push r15",
    ".set at, 0",
    ".rept {red_zone_words}",
    ".set at, at + 1",
    "mov qword ptr [rsp - 8 * at], {pattern} + 100 + at",
    ".endr",
    "mov rbx, {pattern}", "mov rbp, {pattern} + 1", "mov rdi, {pattern} + 2", "mov rsi, {pattern} + 3",
    "mov rdx, {pattern} + 4", "mov r8, {pattern} + 5", "mov r9, {pattern} + 6", "mov r10, {pattern} + 7",
    "mov r12, {pattern} + 8", "mov r13, {pattern} + 9", "mov r14, {pattern} + 10", "mov r15, {pattern} + 11",
    "stc", "std",
    "mov eax, 110",
    "syscall",
    "2:",
    "mov [rip + {record}], rbx", "mov [rip + {record} + 8], rbp", "mov [rip + {record} + 16], rdi",
    "mov [rip + {record} + 24], rsi", "mov [rip + {record} + 32], rdx", "mov [rip + {record} + 40], r8",
    "mov [rip + {record} + 48], r9", "mov [rip + {record} + 56], r10", "mov [rip + {record} + 64], r12",
    "mov [rip + {record} + 72], r13", "mov [rip + {record} + 80], r14", "mov [rip + {record} + 88], r15",
    "mov [rip + {record} + 8 * {rcx}], rcx", "mov [rip + {record} + 8 * {r11}], r11",
    "mov [rip + {record} + 8 * {result}], rax",
    "lea rax, [rip + 2b]", "mov [rip + {record} + 8 * {behind}], rax",
    ".set at, 0",
    ".rept {red_zone_words}",
    "mov rax, [rsp - 8 * (at + 1)]", "mov [rip + {record} + 8 * ({red_zone} + at)], rax",
    ".set at, at + 1",
    ".endr",
    "pushfq", "pop rax", "mov [rip + {record} + 8 * {flags}], rax",
    "cld",
    "pop r15", "pop r14", "pop r13", "pop r12", "pop rbp", "pop rbx",
    "ret",
    // fn(skips_the_number, number) -> result: the call of getppid, or of `number` where it is skipped.
    "heddle_test_skip:",
    "mov eax, esi",
    "test edi, edi",
    "jnz 2f",
    "mov eax, 110",
    "2: syscall",
    "ret",
    // fn() -> result, with nothing in the way of a jump.
    ".balign 16",
    "heddle_test_ask:",
    "mov eax, 110",
    "syscall",
    "ret",
    // fn() -> result, whose number is a register's, before bytes that nobody executes.
    ".balign 16",
    "heddle_test_ask_shortly:",
    "push 110", "pop rax", "nop",
    "syscall",
    "ret",
    ".byte 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0",
    ".balign 16",
    red_zone_words = const RED_ZONE_WORDS,
    pattern = const PATTERN,
    record = sym RECORD,
    rcx = const RCX,
    r11 = const R11,
    result = const RESULT,
    behind = const BEHIND,
    flags = const FLAGS,
    red_zone = const RED_ZONE,
);

unsafe extern "C" {
    safe fn heddle_test_keep();
    fn heddle_test_skip(skips_number: i32, number: i32) -> i64;
    safe fn heddle_test_ask() -> i64;
    safe fn heddle_test_ask_shortly() -> i64;
}

fn parent() -> i64 {
    getppid().as_raw().into()
}

fn registers_flags_and_the_red_zone_are_kept() -> Outcome {
    for _ in 0..USES {
        RECORD.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        heddle_test_keep();
        let record = RECORD.each_ref().map(|word| word.load(Ordering::Relaxed));
        for (number, register) in (0..).zip(&record[..REGISTERS]) {
            expect_eq!(*register, PATTERN + number);
        }
        expect_eq!(record[RESULT] as i64, parent());
        expect_eq!(record[RCX], record[BEHIND]);
        expect_eq!((record[FLAGS] & SET_FLAGS, record[R11]), (SET_FLAGS, record[FLAGS]));
        for (number, word) in (1..).zip(&record[RED_ZONE..]) {
            expect_eq!(*word, PATTERN + 100 + number);
        }
    }
    Ok(())
}

fn code_may_jump_past_the_number() -> Outcome {
    for _ in 0..USES {
        // SAFETY: getppid and getpid have no preconditions.
        let (asked, skipped) =
            unsafe { (heddle_test_skip(0, 0), heddle_test_skip(1, libc::SYS_getpid as i32)) };
        expect_eq!((asked, skipped), (parent(), i64::from(getpid().as_raw())));
    }
    Ok(())
}

/// How many places have become jumps, in Heddle.
fn patched() -> Result<u64, String> {
    let text = std::fs::read_to_string("/proc/heddle/counters").or_fail()?;
    let count = text.lines().find_map(|line| line.strip_prefix("calls_patched ")).ok_or("no counter")?;
    count.trim().parse().or_fail()
}

fn bytes_of(function: extern "C" fn() -> i64) -> [u8; 16] {
    // SAFETY: the functions that are looked at are aligned to as many bytes, all of them text.
    unsafe { (function as *const [u8; 16]).read_volatile() }
}

fn places_become_jumps() -> Outcome {
    let (before, count) = (bytes_of(heddle_test_ask), if is_direct() { patched()? } else { 0 });
    let shortly_before = bytes_of(heddle_test_ask_shortly);
    for _ in 0..USES {
        expect_eq!((heddle_test_ask(), heddle_test_ask_shortly()), (parent(), parent()));
        // SAFETY: getppid has no preconditions.
        expect_eq!(unsafe { libc::syscall(libc::SYS_getppid) }, parent());
    }
    let (after, shortly_after) = (bytes_of(heddle_test_ask), bytes_of(heddle_test_ask_shortly));
    if !is_direct() {
        expect_eq!((after, shortly_after), (before, shortly_before));
        return Ok(());
    }
    expect_eq!(after[..3], [0xff, 0x24, 0x25]);
    expect_eq!(shortly_after[..6], [before_call(&shortly_before), &[0xeb, 1]].concat()[..]);
    expect!(patched()? >= count + 2);
    Ok(())
}

fn before_call(bytes: &[u8; 16]) -> &[u8] {
    &bytes[..4]
}

/// Makes a page of text beside another, with a function that asks for the parent this far before the end of the first,
/// uses the function, and returns what is there then.
fn place_before_a_pages_end(distance: usize) -> Result<[u8; 8], String> {
    const PAGE: usize = 4096;
    const ASK: [u8; 8] = [0xb8, 110, 0, 0, 0, 0x0f, 0x05, 0xc3];
    // SAFETY: a new mapping, in which a function is written before it is called, and which is given back afterwards.
    unsafe {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let pages = libc::mmap(std::ptr::null_mut(), 2 * PAGE, rights, flags, -1, 0);
        expect!(pages != libc::MAP_FAILED);
        let place = pages.add(PAGE - distance).cast::<[u8; 8]>();
        place.write_unaligned(ASK);
        expect_eq!(libc::mprotect(pages, 2 * PAGE, libc::PROT_READ | libc::PROT_EXEC), 0);
        let ask: extern "C" fn() -> i64 = std::mem::transmute(place);
        for _ in 0..USES {
            expect_eq!(ask(), parent());
        }
        let after = place.read_unaligned();
        expect_eq!(libc::munmap(pages, 2 * PAGE), 0);
        Ok(after)
    }
}

fn a_place_may_begin_a_page_and_may_not_cross_its_end() -> Outcome {
    for distance in 0..10 {
        let has_become_a_jump = place_before_a_pages_end(distance)?[0] == 0xff;
        // Seven bytes are a jump, and one of them in the other page is enough.
        expect_eq!((distance, has_become_a_jump), (distance, is_direct() && !(1..7).contains(&distance)));
    }
    Ok(())
}

fn all_arguments_arrive() -> Outcome {
    let file = std::fs::File::open("/proc/self/exe").or_fail()?;
    for _ in 0..USES {
        use std::os::fd::AsRawFd;
        // SAFETY: a new mapping of a file, which is given back.
        let word = unsafe {
            let (length, rights) = (4096_usize, libc::PROT_READ);
            let place = libc::syscall(
                libc::SYS_mmap,
                0_usize,
                length,
                rights,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                0_usize,
            );
            expect!(place > 0);
            let magic = (place as *const [u8; 4]).read();
            expect_eq!(libc::syscall(libc::SYS_munmap, place, length), 0);
            magic
        };
        expect_eq!(word, *b"\x7fELF");
    }
    Ok(())
}

static STRANGE: AtomicUsize = AtomicUsize::new(0);
static ALARMS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn look_at_place(_: i32, _: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: the kernel passes the registers of the program that it has interrupted.
    let (ip, sp) = unsafe {
        let registers = &(*context).uc_mcontext.gregs;
        (registers[libc::REG_RIP as usize], registers[libc::REG_RSP as usize])
    };
    ALARMS.fetch_add(1, Ordering::Relaxed);
    if ip <= 0 || sp <= 0 {
        STRANGE.store(ip as usize, Ordering::Relaxed);
    }
}

fn handle(signal: i32, handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::ucontext_t), flags: i32) {
    // SAFETY: all zeros is a value of this type, and the handlers here only touch atomics.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | flags;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
    }
}

fn set_alarm(interval_us: i64) {
    let interval = libc::timeval { tv_sec: 0, tv_usec: interval_us };
    let timer = libc::itimerval { it_interval: interval, it_value: interval };
    // SAFETY: the timer lives in this frame.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
}

fn a_handler_finds_the_program_in_its_own_code() -> Outcome {
    const ALARMS_WANTED: usize = 200;
    handle(libc::SIGALRM, look_at_place, 0);
    set_alarm(500);
    let limit = Instant::now() + Duration::from_secs(40);
    while ALARMS.load(Ordering::Relaxed) < ALARMS_WANTED && Instant::now() < limit {
        for _ in 0..1000 {
            expect_eq!(heddle_test_ask(), parent());
        }
    }
    set_alarm(0);
    expect_eq!(STRANGE.load(Ordering::Relaxed), 0);
    expect!(ALARMS.load(Ordering::Relaxed) >= ALARMS_WANTED);
    Ok(())
}

fn a_call_that_is_interrupted_is_made_again() -> Outcome {
    handle(libc::SIGALRM, look_at_place, libc::SA_RESTART);
    let (reader, writer) = nix::unistd::pipe().or_fail()?;
    let mut byte = [0];
    for _ in 0..USES {
        nix::unistd::write(&writer, b"x").or_fail()?;
        expect_eq!(nix::unistd::read(&reader, &mut byte), Ok(1));
    }
    // The reader waits, is interrupted several times, and waits on.
    let child = crate::harness::spawn_child(|| {
        set_alarm(2000);
        let mut byte = [0];
        let read = nix::unistd::read(&reader, &mut byte);
        set_alarm(0);
        i32::from(read != Ok(1) || byte != *b"y" || ALARMS.load(Ordering::Relaxed) < 3)
    })?;
    std::thread::sleep(Duration::from_millis(200));
    nix::unistd::write(&writer, b"y").or_fail()?;
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
    Ok(())
}

fn a_debugger_steps_over_it() -> Outcome {
    let child = crate::harness::spawn_child(|| {
        let _ = nix::sys::ptrace::traceme();
        for _ in 0..USES {
            heddle_test_ask();
            heddle_test_ask_shortly();
        }
        let _ = nix::sys::signal::raise(Signal::SIGSTOP);
        let results = [heddle_test_ask(), heddle_test_ask_shortly(), heddle_test_ask()];
        i32::from(results != [parent(); 3])
    })?;
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Stopped(child, Signal::SIGSTOP)));
    let mut addresses = 0;
    for _ in 0..100_000 {
        nix::sys::ptrace::step(child, None).or_fail()?;
        match waitpid(child, Some(WaitPidFlag::__WALL)).or_fail()? {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {
                let ip = nix::sys::ptrace::getregs(child).or_fail()?.rip;
                expect!((ip as i64) > 0);
                // Behind the function lies its jump, where nobody is ever seen.
                let padding = heddle_test_ask_shortly as *const () as u64 + 7;
                expect!(!(padding..padding + 9).contains(&ip));
                let start = heddle_test_ask as *const () as u64;
                addresses += usize::from((start..start + 8).contains(&ip));
            }
            WaitStatus::Exited(_, status) => {
                expect_eq!(status, 0);
                expect!(addresses >= 4);
                return Ok(());
            }
            other => return Err(format!("{other:?}")),
        }
    }
    Err(String::from("the child's steps have no end"))
}

fn children_have_the_places_and_their_own() -> Outcome {
    for _ in 0..USES {
        heddle_test_ask();
    }
    let me = i64::from(getpid().as_raw());
    let status = in_child(|| {
        let mut wrong = heddle_test_ask() != me;
        // Places that the parent has not used.
        for _ in 0..USES {
            wrong |= heddle_test_ask_shortly() != me;
            // SAFETY: getppid has no preconditions.
            wrong |= unsafe { heddle_test_skip(0, 0) } != me;
        }
        i32::from(wrong)
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    for _ in 0..USES {
        expect_eq!((heddle_test_ask(), heddle_test_ask_shortly()), (parent(), parent()));
    }
    let output = std::process::Command::new("/bin/sh").args(["-c", "echo $PPID"]).output().or_fail()?;
    expect_eq!(String::from_utf8_lossy(&output.stdout).trim().parse(), Ok(me));
    Ok(())
}

fn threads_share_the_places() -> Outcome {
    const THREADS: usize = 4;
    static WRONG: AtomicI64 = AtomicI64::new(0);
    heddle_test_ask();
    let parent = parent();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let wrong = heddle_test_ask() != parent || heddle_test_ask_shortly() != parent;
                    WRONG.fetch_add(wrong.into(), Ordering::Relaxed);
                }
            });
        }
    });
    expect_eq!(WRONG.load(Ordering::Relaxed), 0);
    Ok(())
}

fn a_handler_in_the_kernel_is_a_fault() -> Outcome {
    let status = in_child(|| {
        // SAFETY: all zeros is a value of this type; the handler's address is nobody's.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = 0xffff_ffff_8010_0000;
            libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
        }
        let _ = nix::sys::signal::kill(Pid::this(), Signal::SIGUSR1);
        0
    })?;
    expect!(matches!(status, WaitStatus::Signaled(_, Signal::SIGSEGV, _)));
    Ok(())
}
