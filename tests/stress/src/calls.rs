//! Random system calls with random, boundary and half-valid arguments.
#![allow(unsafe_code, reason = "the point is to make calls that no safe interface would")]

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::arguments::Plan;
use crate::random::Random;

/// Numbers that end the worker, stop it or reboot the machine, and so would end the test rather than test.
const LEFT_OUT: [i64; 18] = [
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigreturn,
    libc::SYS_reboot,
    libc::SYS_kexec_load,
    libc::SYS_vfork,
    libc::SYS_pause,
    libc::SYS_ptrace,
    libc::SYS_seccomp,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_rt_sigtimedwait,
    // These reach other processes than the worker's, the one that checks among them.
    libc::SYS_pidfd_send_signal,
    libc::SYS_prlimit64,
    libc::SYS_process_vm_writev,
    libc::SYS_rt_tgsigqueueinfo,
];
const NUMBERS_END: usize = 460;
/// A worker that a random call left waiting is ended after this long; that is part of the game and no failure.
const WAIT_SECONDS: u32 = 2;
/// A killed worker that has not ended by then never will.
const DEATH_SECONDS: u64 = 60;

/// How many calls were made, in memory that all workers share.
static MADE: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());

/// Makes room for [`MADE`], which stays.
fn count_calls() -> Result<&'static AtomicU64, String> {
    let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: fresh memory, at an address that the kernel chooses.
    let place = unsafe { mmap_anonymous(None, NonZeroUsize::MIN, rights, MapFlags::MAP_SHARED) };
    let place = place.map_err(|error| format!("mmap: {error}"))?.as_ptr().cast::<AtomicU64>();
    MADE.store(place, Ordering::Relaxed);
    // SAFETY: a page of zeros that this process never unmaps; what workers do to their mapping is theirs.
    Ok(unsafe { &*place })
}

/// Runs workers until each has made its steps. A worker may die of what it did; the machine may not.
pub fn run(plan: &Plan) -> Result<(), String> {
    let slice = 200;
    let made = count_calls()?;
    for process in 0..plan.processes {
        for round in 0..plan.steps.div_ceil(slice) {
            let worker = process * 1_000_000 + round;
            // SAFETY: this process has one thread.
            let child = match unsafe { fork() }.map_err(|error| format!("fork: {error}"))? {
                ForkResult::Child => {
                    run_worker(plan, worker, slice);
                    // SAFETY: `_exit` has no preconditions.
                    unsafe { libc::_exit(0) }
                }
                ForkResult::Parent { child } => child,
            };
            await_end(child).map_err(|error| format!("worker {worker}: {error}"))?;
        }
    }
    println!("{} calls", made.load(Ordering::Relaxed));
    let text =
        std::fs::read_to_string("/proc/self/status").map_err(|error| format!("afterwards: {error}"))?;
    if text.starts_with("Name:") { Ok(()) } else { Err("afterwards /proc/self/status is garbage".to_owned()) }
}

/// Waits for a worker. One that blocked or ignored its alarm is killed, which nothing may withstand.
fn await_end(child: Pid) -> Result<(), String> {
    let start = Instant::now();
    let mut killed = false;
    loop {
        match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) => return Ok(()),
            Ok(WaitStatus::StillAlive) => std::thread::sleep(Duration::from_millis(2)),
            other => return Err(format!("wait gave {other:?}")),
        }
        let seconds = start.elapsed().as_secs();
        if seconds > u64::from(2 * WAIT_SECONDS) && !killed {
            killed = true;
            kill(child, Signal::SIGKILL).map_err(|error| format!("killing it: {error}"))?;
        }
        if seconds > DEATH_SECONDS {
            let status = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            return Err(format!("it lives on after SIGKILL: {status}"));
        }
    }
}

fn run_worker(plan: &Plan, worker: u64, steps: u64) {
    // SAFETY: the new process group keeps random kills from reaching the parent; the alarm ends a worker that waits.
    unsafe {
        libc::setsid();
        libc::alarm(WAIT_SECONDS);
    }
    let _ = setrlimit(Resource::RLIMIT_NPROC, 64, 64);
    let _ = setrlimit(Resource::RLIMIT_AS, 64 << 20, 64 << 20);
    let _ = setrlimit(Resource::RLIMIT_FSIZE, 1 << 20, 1 << 20);
    let _ = std::env::set_current_dir("/tmp");
    let threads: Vec<_> = (1..plan.threads)
        .map(|thread| {
            let random = Random::new(plan.seed, worker * 100 + thread);
            std::thread::Builder::new().stack_size(64 << 10).spawn(move || hammer(random, steps))
        })
        .collect();
    hammer(Random::new(plan.seed, worker * 100), steps);
    drop(threads);
}

fn hammer(mut random: Random, steps: u64) {
    let mut scratch = vec![0u64; 1024];
    for _ in 0..steps {
        let number = random.below(NUMBERS_END) as i64;
        if LEFT_OUT.contains(&number) {
            continue;
        }
        for word in scratch.iter_mut().take(16) {
            *word = random.next() >> random.below(64);
        }
        let mut argument = || value(&mut random, scratch.as_mut_ptr() as usize);
        let arguments = [argument(), argument(), argument(), argument(), argument(), argument()];
        // A clone into this worker's memory without a stack of its own would be a second flow on one stack.
        if matches!(number, libc::SYS_clone | libc::SYS_clone3) {
            continue;
        }
        // Signals to 0 and -1 reach more than this worker.
        if matches!(number, libc::SYS_kill | libc::SYS_tkill | libc::SYS_tgkill | libc::SYS_rt_sigqueueinfo) {
            continue;
        }
        // SAFETY: the first process made it before it made any worker; where a random call took it, the worker ends.
        unsafe { (*MADE.load(Ordering::Relaxed)).fetch_add(1, Ordering::Relaxed) };
        // SAFETY: whatever the call does to this process is its own business; the parent only waits for its end.
        unsafe {
            let [a, b, c, d, e, f] = arguments;
            libc::syscall(number, a, b, c, d, e, f);
        }
    }
}

/// An argument: small numbers, boundaries, flags, addresses good, bad and half good.
fn value(random: &mut Random, scratch: usize) -> usize {
    const PAGE_BYTES: usize = 4096;
    let boundaries = [
        0,
        1,
        usize::MAX,
        usize::MAX - PAGE_BYTES,
        i32::MAX as usize,
        i64::MAX as usize,
        0x8000_0000,
        0x7fff_ffff_f000,
        0x8000_0000_0000,
        0xffff_8000_0000_0000,
    ];
    match random.below(10) {
        0..=2 => random.below(10),
        3 => *random.pick(&boundaries),
        4 | 5 => scratch + random.below(1024) * 8,
        6 => 1usize << random.below(64),
        7 => random.below(1 << 16),
        8 => (scratch & !(PAGE_BYTES - 1)) + PAGE_BYTES * random.below(8) - random.below(16),
        _ => random.next() as usize,
    }
}
