//! Restartable sequences. The C library has registered an area for each thread; the tests use it, or give it back and
//! register their own.

#![allow(unsafe_code)] // The C library has no wrapper for the call, and a section is assembly.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::wait::WaitStatus;
use nix::unistd::{Pid, gettid};

use crate::harness::{OrFail, Outcome, in_child};
use crate::{expect, expect_eq};

crate::tests! {
    rseq_registers_once
    rseq_area_says_the_cpu
    rseq_counters_lose_nothing
    rseq_section_starts_again_after_a_signal
    rseq_section_starts_again_after_preemption
    rseq_section_starts_again_on_another_cpu
    rseq_section_behind_a_wrong_signature_is_a_fault
    rseq_section_with_bad_description_is_a_fault
    rseq_is_inherited_by_fork_only
    membarrier_restarts_sections
}

/// The signature with which the C library registers.
const SIGNATURE: u32 = 0x5305_3053;
const AREA_BYTES: usize = 32;
const UNREGISTER: i32 = 1;
const PRIVATE_RSEQ: i32 = 128;
const REGISTER_PRIVATE_RSEQ: i32 = 256;
const FLAG_CPU: u32 = 1;
const THREADS: usize = 6;

unsafe extern "C" {
    /// Where the C library's area is, from the thread pointer.
    static __rseq_offset: isize;
    /// How much of it is in use; 0 if the kernel has refused it.
    static __rseq_size: u32;
}

/// `struct rseq` of `linux/rseq.h`.
#[repr(C, align(32))]
pub struct Area {
    cpu_id_start: AtomicU32,
    cpu_id: AtomicU32,
    section: AtomicU64,
    flags: AtomicU32,
    rest: [AtomicU32; 3],
}

impl Area {
    const fn new() -> Self {
        Self {
            cpu_id_start: AtomicU32::new(0),
            cpu_id: AtomicU32::new(u32::MAX),
            section: AtomicU64::new(0),
            flags: AtomicU32::new(0),
            rest: [const { AtomicU32::new(0x5a5a_5a5a) }; 3],
        }
    }
}

/// The calling thread's area of the C library.
pub fn own_area() -> &'static Area {
    let thread: *const u8;
    // SAFETY: the word at the thread pointer is its own address, and the area lies in the thread's control block, which
    // the kernel's interface lays out as `Area`. No test keeps it past its thread.
    unsafe {
        std::arch::asm!("mov {}, fs:0", out(reg) thread, options(nostack, readonly));
        &*thread.offset(__rseq_offset).cast::<Area>()
    }
}

fn rseq(area: *const Area, length: usize, flags: i32, signature: u32) -> Result<i64, Errno> {
    // SAFETY: who passes an area keeps it until it is unregistered or the thread ends.
    Errno::result(unsafe { libc::syscall(libc::SYS_rseq, area, length, flags, signature) })
}

fn membarrier(command: i32, flags: u32, cpu: i32) -> Result<i64, Errno> {
    // SAFETY: the call takes numbers.
    Errno::result(unsafe { libc::syscall(libc::SYS_membarrier, command, flags, cpu) })
}

/// Runs `body` with the C library's registration given back.
fn unregistered(body: impl FnOnce() -> Outcome) -> Outcome {
    expect_eq!(rseq(own_area(), AREA_BYTES, UNREGISTER, SIGNATURE), Ok(0));
    let outcome = body();
    expect_eq!(rseq(own_area(), AREA_BYTES, 0, SIGNATURE), Ok(0));
    outcome
}

fn is_offered() -> bool {
    // SAFETY: the C library has set it before the program began.
    unsafe { __rseq_size != 0 }
}

/// A page for an area, which stays to the process's end.
fn page(protection: ProtFlags) -> Result<*const Area, String> {
    let length = NonZeroUsize::new(4096).ok_or("no length")?;
    // SAFETY: a mapping at a place of the kernel's choice.
    let page = unsafe { mmap_anonymous(None, length, protection, MapFlags::MAP_PRIVATE) };
    Ok(page.or_fail()?.as_ptr().cast_const().cast())
}

fn rseq_registers_once() -> Outcome {
    expect!(is_offered());
    let own = own_area();
    expect_eq!(rseq(own, AREA_BYTES, 0, SIGNATURE), Err(Errno::EBUSY));
    expect_eq!(rseq(own, AREA_BYTES, 0, 1), Err(Errno::EPERM));
    expect_eq!(rseq(own, 64, 0, SIGNATURE), Err(Errno::EINVAL));
    expect_eq!(rseq(own, AREA_BYTES, 2, SIGNATURE), Err(Errno::EINVAL));
    expect_eq!(rseq(own, AREA_BYTES, UNREGISTER | 2, SIGNATURE), Err(Errno::EINVAL));
    expect_eq!(rseq(own, AREA_BYTES, UNREGISTER, 1), Err(Errno::EPERM));
    let other = Area::new();
    expect_eq!(rseq(&raw const other, AREA_BYTES, 0, SIGNATURE), Err(Errno::EINVAL));
    expect_eq!(rseq(&raw const other, AREA_BYTES, UNREGISTER, SIGNATURE), Err(Errno::EINVAL));
    unregistered(|| {
        expect_eq!(own.cpu_id_start.load(Ordering::Relaxed), 0);
        expect_eq!(own.cpu_id.load(Ordering::Relaxed), u32::MAX);
        expect_eq!(rseq(own, AREA_BYTES, UNREGISTER, SIGNATURE), Err(Errno::EINVAL));
        let unaligned = (&raw const other).wrapping_byte_add(8);
        expect_eq!(rseq(unaligned, AREA_BYTES, 0, 7), Err(Errno::EINVAL));
        expect_eq!(rseq(std::ptr::without_provenance(!31), AREA_BYTES, 0, 7), Err(Errno::EFAULT));
        expect_eq!(rseq(&raw const other, 28, 0, 7), Err(Errno::EINVAL));
        expect_eq!(rseq(page(ProtFlags::PROT_NONE)?, AREA_BYTES, 0, 7), Err(Errno::EFAULT));
        other.section.store(8, Ordering::Relaxed);
        expect_eq!(rseq(&raw const other, AREA_BYTES, 0, 7), Ok(0));
        expect_eq!(other.section.load(Ordering::Relaxed), 0);
        expect_eq!(other.cpu_id.load(Ordering::Relaxed), other.cpu_id_start.load(Ordering::Relaxed));
        expect_eq!(rseq(&raw const other, AREA_BYTES, UNREGISTER, 7), Ok(0));
        expect_eq!(other.cpu_id.load(Ordering::Relaxed), u32::MAX);
        expect!(other.rest.iter().all(|word| word.load(Ordering::Relaxed) == 0x5a5a_5a5a));
        Ok(())
    })
}

fn cpus() -> Result<Vec<usize>, String> {
    let set = sched_getaffinity(Pid::from_raw(0)).or_fail()?;
    Ok((0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect())
}

fn pin(thread: Pid, cpu: usize) -> Outcome {
    let mut set = CpuSet::new();
    set.set(cpu).or_fail()?;
    sched_setaffinity(thread, &set).or_fail()
}

fn rseq_area_says_the_cpu() -> Outcome {
    let area = own_area();
    for cpu in cpus()?.into_iter().cycle().take(20) {
        pin(Pid::from_raw(0), cpu)?;
        expect_eq!(area.cpu_id.load(Ordering::Relaxed) as usize, cpu);
        expect_eq!(area.cpu_id_start.load(Ordering::Relaxed) as usize, cpu);
        expect_eq!(sched_getcpu().or_fail()?, cpu);
    }
    Ok(())
}

/// A counter on a cache line of its own.
#[repr(C, align(64))]
struct Counter(AtomicU64);

const SLOTS: usize = 64;
static COUNTERS: [Counter; SLOTS] = [const { Counter(AtomicU64::new(0)) }; SLOTS];

/// Adds 1 to the counter of the CPU, with a wait in between that makes an interruption likely. Returns how often the
/// section was interrupted.
fn count(area: &Area, wait: u64) -> u64 {
    let mut aborts = 0_u64;
    // SAFETY: the section stores to the counter of the CPU, of which there are enough, and nothing else; the area is
    // the calling thread's.
    unsafe {
        std::arch::asm!(
            ".pushsection .data.heddle_rseq, \"aw\"",
            ".balign 32",
            "44: .long 0, 0",
            ".quad 22f, 33f - 22f, 55f",
            ".popsection",
            "jmp 13f",
            // The signature, as the operand of an instruction that is undefined.
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "55: inc {aborts}",
            "13: lea {scratch}, [rip + 44b]",
            "mov [{area} + 8], {scratch}",
            "22: mov {scratch:e}, [{area} + 4]",
            "shl {scratch}, 6",
            "add {scratch}, {counters}",
            "mov {value}, [{scratch}]",
            "mov {left}, {wait}",
            "66: dec {left}",
            "jg 66b",
            "inc {value}",
            "mov [{scratch}], {value}",
            "33:",
            area = in(reg) area,
            counters = in(reg) &raw const COUNTERS,
            wait = in(reg) wait,
            aborts = inout(reg) aborts,
            scratch = out(reg) _,
            value = out(reg) _,
            left = out(reg) _,
            options(nostack),
        );
    }
    area.section.store(0, Ordering::Relaxed);
    aborts
}

fn rseq_counters_lose_nothing() -> Outcome {
    const ROUNDS: u64 = 3000;
    let counted: u64 = std::thread::scope(|scope| {
        let runners: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    let area = own_area();
                    for round in 0..ROUNDS {
                        count(area, 20 + round % 1000);
                        if round % 64 == 0 {
                            std::thread::yield_now();
                        }
                    }
                    ROUNDS
                })
            })
            .collect();
        runners.into_iter().map(|runner| runner.join().unwrap_or(0)).sum()
    });
    let sum: u64 = COUNTERS.iter().map(|counter| counter.0.load(Ordering::Relaxed)).sum();
    expect_eq!(counted, ROUNDS * THREADS as u64);
    expect_eq!(sum, counted);
    Ok(())
}

/// Waits in a section until it is interrupted. It goes on behind the right signature if it `is_signed`, else behind a
/// wrong one. `started` is set when the section has begun.
pub fn wait_in_section(area: &Area, started: &AtomicU32, is_signed: bool) {
    // SAFETY: the section stores to `started` only.
    unsafe {
        std::arch::asm!(
            ".pushsection .data.heddle_rseq, \"aw\"",
            ".balign 32",
            "44: .long 0, 0",
            ".quad 22f, 33f - 22f, 55f",
            ".long 0, 0",
            ".quad 22f, 33f - 22f, 77f",
            ".popsection",
            "jmp 13f",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "55: jmp 88f",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x12345678",
            "77: jmp 88f",
            "13: lea {scratch}, [rip + 44b]",
            "add {scratch}, {offset}",
            "mov [{area} + 8], {scratch}",
            "22: mov dword ptr [{started}], 1",
            "66: pause",
            "jmp 66b",
            "33: nop",
            "88:",
            area = in(reg) area,
            started = in(reg) started,
            offset = in(reg) if is_signed { 0_usize } else { 32 },
            scratch = out(reg) _,
            options(nostack),
        );
    }
}

static SECTION_SEEN: AtomicU64 = AtomicU64::new(1);
static HANDLED: AtomicU32 = AtomicU32::new(0);

extern "C" fn note_section(_: i32) {
    SECTION_SEEN.store(own_area().section.load(Ordering::Relaxed), Ordering::Relaxed);
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

fn handle(signal: Signal) -> Outcome {
    let action = SigAction::new(SigHandler::Handler(note_section), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler only touches atomics.
    unsafe { sigaction(signal, &action) }.map(drop).or_fail()
}

/// Another thread waits in a section for `interrupt`, which is given its number and must end the wait. Something else
/// may end it earlier.
fn expect_restart(interrupt: impl FnOnce(Pid) -> Outcome) -> Outcome {
    let started = AtomicU32::new(0);
    let number = AtomicI32::new(0);
    let [is_last, is_over] = [const { AtomicBool::new(false) }; 2];
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            number.store(gettid().as_raw(), Ordering::Release);
            let area = own_area();
            while !is_last.load(Ordering::Acquire) {
                wait_in_section(area, &started, true);
            }
            let section = area.section.load(Ordering::Relaxed);
            while !is_over.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            section
        });
        while started.load(Ordering::Acquire) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        is_last.store(true, Ordering::Release);
        let outcome = interrupt(Pid::from_raw(number.load(Ordering::Acquire)));
        is_over.store(true, Ordering::Release);
        // The kernel has taken note of the end of the section.
        expect_eq!(waiter.join().map_err(|_| "the waiter panicked".to_string())?, 0);
        outcome
    })
}

fn rseq_section_starts_again_after_a_signal() -> Outcome {
    handle(Signal::SIGUSR1)?;
    expect_restart(|thread| {
        // SAFETY: the call takes numbers.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread.as_raw(), libc::SIGUSR1) };
        Errno::result(sent).map(drop).or_fail()
    })?;
    // The section was left before the handler ran, which would not have come back into it either.
    while HANDLED.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    expect_eq!(SECTION_SEEN.load(Ordering::Relaxed), 0);
    Ok(())
}

fn rseq_section_starts_again_after_preemption() -> Outcome {
    // Two threads on one CPU, of which neither gives it up.
    pin(Pid::from_raw(0), cpus()?[0])?;
    let started = [const { AtomicU32::new(0) }; 2];
    std::thread::scope(|scope| {
        for started in &started {
            scope.spawn(|| wait_in_section(own_area(), started, true));
        }
    });
    expect!(started.iter().all(|started| started.load(Ordering::Relaxed) == 1));
    Ok(())
}

fn rseq_section_starts_again_on_another_cpu() -> Outcome {
    let cpus = cpus()?;
    let Some(&other) = cpus.get(1) else { return Ok(()) };
    expect_restart(|thread| {
        pin(thread, cpus[0])?;
        pin(thread, other)
    })
}

#[track_caller]
fn ends_by_segv(body: impl FnOnce()) -> Outcome {
    let line = std::panic::Location::caller().line();
    let ended = in_child(|| {
        body();
        0
    })?;
    match ended {
        WaitStatus::Signaled(_, Signal::SIGSEGV, _) => Ok(()),
        other => Err(format!("line {line}: no segmentation fault but {other:?}")),
    }
}

fn rseq_section_behind_a_wrong_signature_is_a_fault() -> Outcome {
    handle(Signal::SIGALRM)?;
    let started = AtomicU32::new(0);
    ends_by_segv(|| {
        nix::unistd::alarm::set(1);
        wait_in_section(own_area(), &started, false);
    })
}

fn rseq_section_with_bad_description_is_a_fault() -> Outcome {
    handle(Signal::SIGUSR1)?;
    let raise = |description: u64| {
        own_area().section.store(description, Ordering::Relaxed);
        let _ = nix::sys::signal::raise(Signal::SIGUSR1);
    };
    // No memory, and none of the program's.
    ends_by_segv(|| raise(8))?;
    ends_by_segv(|| raise(u64::MAX - 31))?;
    // A version that there is not; a section that goes on within itself; one that wraps around.
    for words in [[1, 0x1000, 16, 0x2000], [0, 0x1000, 16, 0x1008], [0, 0x1000, u64::MAX, 0x2000_u64]] {
        ends_by_segv(|| raise((&raw const words).addr() as u64))?;
    }
    // One that the program is not in is no matter, once its signature is right.
    let code = [0, SIGNATURE];
    let words = [0, 0x1000, 16, (&raw const code).addr() as u64 + 8];
    let ended = in_child(|| {
        raise((&raw const words).addr() as u64);
        i32::from(own_area().section.load(Ordering::Relaxed) != 0)
    })?;
    expect!(matches!(ended, WaitStatus::Exited(_, 0)));
    Ok(())
}

fn rseq_is_inherited_by_fork_only() -> Outcome {
    let again = |area| rseq(area, AREA_BYTES, 0, SIGNATURE);
    let ended = in_child(|| i32::from(again(own_area()) != Err(Errno::EBUSY)))?;
    expect!(matches!(ended, WaitStatus::Exited(_, 0)));
    // A thread starts without; the C library registers its own area before the thread's function runs.
    let area = own_area();
    let thread = std::thread::spawn(move || again(area));
    expect_eq!(thread.join().map_err(|_| "the thread panicked".to_string())?, Err(Errno::EINVAL));
    Ok(())
}

/// Which of two counters threads count in, and the counters.
static ACTIVE: AtomicU64 = AtomicU64::new(0);

/// Adds 1, in a section, to the counter that `ACTIVE` names at the section's start.
fn count_in_active(area: &Area, wait: u64) {
    // SAFETY: the section stores to a counter only; only threads of one CPU and test use it.
    unsafe {
        std::arch::asm!(
            ".pushsection .data.heddle_rseq, \"aw\"",
            ".balign 32",
            "44: .long 0, 0",
            ".quad 22f, 33f - 22f, 55f",
            ".popsection",
            "jmp 13f",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "55:",
            "13: lea {scratch}, [rip + 44b]",
            "mov [{area} + 8], {scratch}",
            "22: mov {scratch}, [{active}]",
            "shl {scratch}, 6",
            "add {scratch}, {counters}",
            "mov {left}, {wait}",
            "66: dec {left}",
            "jg 66b",
            "inc qword ptr [{scratch}]",
            "33:",
            area = in(reg) area,
            active = in(reg) &ACTIVE,
            counters = in(reg) &raw const COUNTERS,
            wait = in(reg) wait,
            scratch = out(reg) _,
            left = out(reg) _,
            options(nostack),
        );
    }
    area.section.store(0, Ordering::Relaxed);
}

fn membarrier_restarts_sections() -> Outcome {
    const ROUNDS: u64 = 200;
    expect_eq!(membarrier(PRIVATE_RSEQ, 0, 0), Err(Errno::EPERM));
    expect_eq!(membarrier(REGISTER_PRIVATE_RSEQ, FLAG_CPU, 0), Err(Errno::EINVAL));
    expect_eq!(membarrier(REGISTER_PRIVATE_RSEQ, 0, 0), Ok(0));
    expect_eq!(membarrier(PRIVATE_RSEQ, 2, 0), Err(Errno::EINVAL));
    expect_eq!(membarrier(PRIVATE_RSEQ, FLAG_CPU, 100_000), Ok(0));
    let cpus = cpus()?;
    let worker_cpu = cpus[cpus.len() - 1];
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = pin(Pid::from_raw(0), worker_cpu);
            while !is_over.load(Ordering::Relaxed) {
                count_in_active(own_area(), 2000);
            }
        });
        let outcome = (0..ROUNDS).try_for_each(|round| {
            let (before, after) = ((round % 2) as usize, (round + 1) % 2);
            ACTIVE.store(after, Ordering::Release);
            let (flags, cpu) = if round % 3 == 0 { (FLAG_CPU, worker_cpu as i32) } else { (0, 0) };
            expect_eq!(membarrier(PRIVATE_RSEQ, flags, cpu), Ok(0));
            // No section that has seen the old value is left.
            let count = COUNTERS[before].0.load(Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(200));
            expect_eq!(COUNTERS[before].0.load(Ordering::Relaxed), count);
            Ok(())
        });
        is_over.store(true, Ordering::Relaxed);
        outcome
    })
}
