//! How two processes that both want one processor share it: by nice value and policy, about as Linux does.
//!
//! The tests compare processor time, and work, which the processes count themselves, while the two together use a
//! given time. Bounds on work are wider: a busy host takes the machine's processor away from the one more than from the
//! other.

#![allow(unsafe_code)] // Clocks of processes and memory they share have no safe form.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use crate::expect;
use crate::harness::{OrFail, Outcome, spawn_child};
use crate::pi::use_one_cpu;

crate::tests! {
    equals_share_equally
    five_nice_values_are_a_third
    the_nicest_gets_little
    a_negative_value_gets_more
    batch_has_its_nice_value
    idle_gets_next_to_nothing
}

/// A way to be scheduled: the policy and the nice value.
type Way = (i32, i32);

const ORDINARY: Way = (libc::SCHED_OTHER, 0);

/// State that the processes share.
#[repr(C)]
struct Shared {
    work: [AtomicU64; 2],
    ready: AtomicU32,
    stop: AtomicU32,
}

fn shared() -> Result<&'static Shared, String> {
    let size = std::num::NonZeroUsize::new(size_of::<Shared>()).ok_or("no size")?;
    let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: new memory, zeroed, which stays until the process ends.
    unsafe { Ok(&*mmap_anonymous(None, size, rights, MapFlags::MAP_SHARED).or_fail()?.as_ptr().cast()) }
}

/// The processor time that a process has used.
fn used(process: Pid) -> Result<Duration, String> {
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: the time is written to memory of its size; the clock's number is made as the C library makes it.
    let time = unsafe {
        Errno::result(libc::clock_gettime(!process.as_raw() << 3 | 2, time.as_mut_ptr())).or_fail()?;
        time.assume_init()
    };
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

fn compute(shared: &Shared, number: usize, (policy, nice): Way) -> i32 {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters live during the call.
    let is_set = unsafe {
        libc::sched_setscheduler(0, policy, &raw const parameters) == 0
            && libc::setpriority(libc::PRIO_PROCESS, 0, nice) == 0
    };
    // Both start together, when neither is ahead.
    shared.ready.fetch_add(1, Ordering::SeqCst);
    while shared.ready.load(Ordering::SeqCst) < 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    while shared.stop.load(Ordering::Relaxed) == 0 {
        shared.work[number].fetch_add(1, Ordering::Relaxed);
    }
    i32::from(!is_set)
}

/// Runs two processes on one processor until they have used so much of it, and returns how many times the second's work
/// the first has done, and how many times its time the first has had.
fn ratios(ways: [Way; 2], milliseconds: u64) -> Result<[f64; 2], String> {
    use_one_cpu()?;
    let shared = shared()?;
    let start = |number: usize| spawn_child(|| compute(shared, number, ways[number]));
    let processes = [start(0)?, start(1)?];
    let times = loop {
        let times = [used(processes[0])?, used(processes[1])?];
        if times[0] + times[1] >= Duration::from_millis(milliseconds) {
            break times.map(|time| time.as_secs_f64());
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let work = [0, 1].map(|number| shared.work[number].load(Ordering::SeqCst));
    shared.stop.store(1, Ordering::SeqCst);
    for process in processes {
        let status = waitpid(process, None).or_fail()?;
        expect!(matches!(status, nix::sys::wait::WaitStatus::Exited(_, 0)));
    }
    Ok([work[0] as f64 / work[1] as f64, times[0] / times[1]])
}

/// Fails the test unless the ratio of times is between two others, and that of work not much outside.
fn check(ways: [Way; 2], milliseconds: u64, least: f64, most: f64) -> Outcome {
    let [work, time] = ratios(ways, milliseconds)?;
    if (least..=most).contains(&time) && (least / 2.0..=most * 2.0).contains(&work) {
        return Ok(());
    }
    Err(format!("of {ways:?} the work is {work:.2} and the time {time:.2} to 1, expected {least} to {most}"))
}

fn equals_share_equally() -> Outcome {
    check([ORDINARY, ORDINARY], 500, 0.75, 1.33)
}

/// 1024 to 335: 3.06.
fn five_nice_values_are_a_third() -> Outcome {
    check([ORDINARY, (libc::SCHED_OTHER, 5)], 800, 2.2, 4.3)
}

/// 1024 to 15: 68.
fn the_nicest_gets_little() -> Outcome {
    check([ORDINARY, (libc::SCHED_OTHER, 19)], 1500, 15.0, 150.0)
}

/// 9548 to 1024: 9.3.
fn a_negative_value_gets_more() -> Outcome {
    check([(libc::SCHED_OTHER, -10), ORDINARY], 1500, 5.5, 16.0)
}

fn batch_has_its_nice_value() -> Outcome {
    check([(libc::SCHED_BATCH, 0), ORDINARY], 500, 0.7, 1.43)?;
    check([(libc::SCHED_BATCH, 0), (libc::SCHED_BATCH, 5)], 800, 2.2, 4.3)
}

/// 1024 to 3: 341. In this time it may get nothing.
fn idle_gets_next_to_nothing() -> Outcome {
    check([ORDINARY, (libc::SCHED_IDLE, 0)], 1500, 20.0, f64::INFINITY)
}
