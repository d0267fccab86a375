//! The order of ordinary levels over the processes of a user, and the part of the processor that a user has.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::time::TimeValLike;
use nix::sys::wait::WaitStatus;
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::{Pid, Uid, pipe, read, setuid, write};

use super::api::{Api, Block, DONE, Scheduler};
use crate::harness::{OrFail, Outcome, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    every_level_goes_before_the_next
    every_level_goes_before_the_next_on_all_processors
    executors_bring_no_time
    a_change_of_parameters_brings_no_time
    leaving_and_joining_brings_no_time
    long_calls_bring_no_time
    a_change_of_processor_brings_no_time
    a_nice_value_goes_before_the_order
    a_group_is_the_users
    pinned_executors_end
}

const NOBODY: u32 = 65534;
/// The more urgent level of two processes, and the other.
const PAIRS: [(u32, u32); 9] =
    [(20, 21), (24, 40), (31, 32), (32, 33), (42, 43), (33, 38), (3, 19), (10, 32), (32, 50)];

/// The turns of the more urgent process.
const TURNS: u64 = 1_000;
const RELAXED: u32 = 0;
const STRICT: u32 = 1;

/// State that the processes of a test share.
#[repr(C)]
struct Shared {
    turns: AtomicU64,
    settled: AtomicU32,
    before: AtomicU64,
    after: AtomicU64,
    stop: AtomicU32,
    ready: AtomicU32,
    work: [AtomicU64; 2],
}

impl Shared {
    fn new() -> Result<&'static Self, String> {
        let size = std::num::NonZeroUsize::new(4096).ok_or("no size")?;
        let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: new memory, zeroed, which stays until the process ends.
        unsafe { Ok(&*mmap_anonymous(None, size, rights, MapFlags::MAP_SHARED).or_fail()?.as_ptr().cast()) }
    }
}

fn stay_on(cpus: impl IntoIterator<Item = usize>) -> Outcome {
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(cpu).or_fail()?;
    }
    sched_setaffinity(Pid::from_raw(0), &set).or_fail()
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

fn wait_for(child: Pid) -> Outcome {
    let status = nix::sys::wait::waitpid(child, None).or_fail()?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    Ok(())
}

/// A process with so many executors, each of which runs one coroutine of `level` until that has ended. The argument of
/// `turn` is the number of the executor and of the turn; it returns whether the coroutine has ended.
fn executors(
    api: Api,
    (executors, level, policy): (usize, u32, u32),
    turn: &(impl Fn(usize, u64) -> bool + Sync),
) -> i32 {
    let scheduler = Scheduler::new(api, executors as u32, executors as u32 + 8);
    let barrier = Barrier::new(executors);
    let run = |number: usize| {
        let id = AtomicU64::new(0);
        let mut block = Block::new(Box::new(|header: &super::api::Header| {
            if turn(number, header.polls()) {
                return DONE;
            }
            scheduler.wake(number as u32, id.load(Ordering::Relaxed));
            0
        }));
        let is_in = scheduler.enter(number as u32).is_ok() && scheduler.policy(policy) >= 0;
        if is_in {
            id.store(scheduler.spawn(number as u32, &mut block, level), Ordering::Relaxed);
        }
        barrier.wait();
        if is_in {
            scheduler.run(number as u32);
        }
        is_in
    };
    let all_ran = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..executors).map(|number| scope.spawn(move || run(number))).collect();
        threads.into_iter().all(|thread| thread.join().unwrap_or(false))
    });
    i32::from(!all_ran)
}

/// Whether a coroutine of the user's of that level waits for a processor, as the kernel says.
fn is_waiting(api: Api, level: u32) -> bool {
    let group = api.header_word(72) as usize;
    let word = |number: usize| u64::from(api.system_word(192 + 8 * group + 4 * number)) << (32 * number);
    (word(0) | word(1)) >> level & 1 != 0
}

/// The turns that coroutines of one process have while another works at a more urgent level, each with an executor for
/// each of `cpus`. On several processors those count that pass a coroutine that waits: one that has met a page that
/// another brings in does not, and leaves its processor to others.
fn turns_beside(
    api: Api,
    (urgent, other): (u32, u32),
    policy: u32,
    uid: u32,
    cpus: usize,
) -> Result<u64, String> {
    const STARTED: u64 = 20;
    let shared = Shared::new()?;
    let (go, started) = pipe().or_fail()?;
    let background = spawn_child(|| {
        let turn = |_, turns| {
            if cpus == 1 || is_waiting(api, urgent) {
                shared.turns.fetch_add(1, Ordering::SeqCst);
            }
            if turns == STARTED {
                let _ = write(started.as_fd(), b"x");
            }
            shared.stop.load(Ordering::SeqCst) != 0
        };
        if setuid(Uid::from_raw(uid)).is_err() { 1 } else { executors(api, (cpus, other, policy), &turn) }
    })?;
    let working = spawn_child(|| {
        let since: Vec<_> = (0..cpus).map(|_| AtomicU64::new(0)).collect();
        let turn = |number: usize, turns: u64| {
            if turns == 1 && !read(&go, &mut [0]).is_ok_and(|count| count == 1) {
                return true;
            }
            if turns == STARTED && shared.settled.fetch_add(1, Ordering::SeqCst) + 1 == cpus as u32 {
                shared.before.store(shared.turns.load(Ordering::SeqCst), Ordering::SeqCst);
                shared.ready.store(1, Ordering::SeqCst);
            }
            if shared.ready.load(Ordering::SeqCst) == 0 {
                return false;
            }
            if since[number].fetch_add(1, Ordering::Relaxed) < TURNS {
                return false;
            }
            let now = shared.turns.load(Ordering::SeqCst);
            // The first that ends: from here on a processor is free for the other process.
            if shared.stop.swap(1, Ordering::SeqCst) == 0 {
                shared.after.store(now, Ordering::SeqCst);
            }
            true
        };
        if setuid(Uid::from_raw(uid)).is_err() { 1 } else { executors(api, (cpus, urgent, policy), &turn) }
    })?;
    wait_for(working)?;
    wait_for(background)?;
    Ok(shared.after.load(Ordering::SeqCst) - shared.before.load(Ordering::SeqCst))
}

fn check_order(cpus: usize) -> Outcome {
    let Some(api) = Api::find() else { return Ok(()) };
    stay_on(0..cpus)?;
    let mut failures = Vec::new();
    for pair in PAIRS {
        for policy in [RELAXED, STRICT] {
            // In the relaxed order a turn on another processor ends by an interrupt, which comes as late as the host
            // lets the processor run that sends it: by then the more urgent process may have had many turns.
            let most = if policy == RELAXED && cpus > 1 { cpus as u64 * TURNS / 2 } else { cpus as u64 };
            for uid in [0, NOBODY] {
                // Two urgent levels are not ordered exactly once the realtime threads' time is used up.
                if uid == 0 && pair.1 < 20 {
                    continue;
                }
                let turns = turns_beside(api, pair, policy, uid, cpus)?;
                if turns > most {
                    failures.push((pair, policy, uid, turns));
                }
            }
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(format!("turns out of order: {failures:?}")) }
}

fn every_level_goes_before_the_next() -> Outcome {
    check_order(1)
}

fn every_level_goes_before_the_next_on_all_processors() -> Outcome {
    check_order(cpus())
}

/// One user has 50 executors, another one; each has half of a processor.
///
/// The scheduler divides time by the clock, which also goes on while the host runs something else: whoever had the
/// turn then owes it, and gives it back in later turns. So the clocks show what the scheduler does, in the long run.
/// The work is what the host gave in these times, which it owes nobody. Both are looked at again until they are near
/// to 1.
fn executors_bring_no_time() -> Outcome {
    const MANY: usize = 50;
    const OTHER: u32 = 1000;
    let Some(api) = Api::find() else { return Ok(()) };
    stay_on([0])?;
    let shared = Shared::new()?;
    let start = |user: usize, uid: u32, count: usize| {
        spawn_child(move || {
            if setuid(Uid::from_raw(uid)).is_err() {
                return 1;
            }
            let barrier = Arc::new(Barrier::new(count));
            let threads: Vec<_> = (0..count)
                .map(|number| {
                    let barrier = barrier.clone();
                    std::thread::spawn(move || {
                        let is_in = api.register(number, 0, 0) == 0;
                        api.record(number).running.store(30 + (number % 3) as u32, Ordering::SeqCst);
                        barrier.wait();
                        shared.ready.fetch_add(1, Ordering::SeqCst);
                        while shared.stop.load(Ordering::Relaxed) == 0 {
                            shared.work[user].fetch_add(1, Ordering::Relaxed);
                        }
                        is_in
                    })
                })
                .collect();
            i32::from(!threads.into_iter().all(|thread| thread.join().unwrap_or(false)))
        })
    };
    let children = [start(0, NOBODY, MANY)?, start(1, OTHER, 1)?];
    let ratios =
        shares(shared, children, |[time, work]| (0.8..1.25).contains(&time) && (0.4..2.5).contains(&work))?;
    match ratios {
        None => Ok(()),
        Some([time, work]) => Err(format!("the time is {time:.2} and the work {work:.2} to 1")),
    }
}

/// Waits until the shares of two processes, the first's to the second's, are as they should be by time and work; then
/// ends the processes. Returns the shares if they did not come to be so.
fn shares(
    shared: &Shared,
    children: [Pid; 2],
    is_fair: impl Fn([f64; 2]) -> bool,
) -> Result<Option<[f64; 2]>, String> {
    const PART_MS: i64 = 800;
    const PARTS: i64 = 20;
    let used = |child: Pid| -> Result<i64, String> {
        Ok(clock_gettime(clock_getcpuclockid(child).or_fail()?).or_fail()?.num_milliseconds())
    };
    let clocks = || -> Result<[i64; 2], String> { Ok([used(children[0])?, used(children[1])?]) };
    // The start is left out, when both have what a new thread has.
    while clocks()?.iter().any(|&used| used < 100) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let work = || [0, 1].map(|user: usize| shared.work[user].load(Ordering::SeqCst));
    let begin = (clocks()?, work());
    let mut unfair = None;
    for part in 1..=PARTS {
        let mut times = [0; 2];
        while times[0] + times[1] < part * PART_MS {
            std::thread::sleep(Duration::from_millis(10));
            let now = clocks()?;
            times = [0, 1].map(|user| now[user] - begin.0[user]);
        }
        let now = work();
        let done = [0, 1].map(|user| now[user] - begin.1[user]);
        let ratios = [times[0] as f64 / times[1] as f64, done[0] as f64 / done[1] as f64];
        unfair = Some(ratios).filter(|&ratios| !is_fair(ratios));
        if unfair.is_none() {
            break;
        }
    }
    shared.stop.store(1, Ordering::SeqCst);
    for child in children {
        wait_for(child)?;
    }
    Ok(unfair)
}

/// A process of one user that does `trick` over and over beside another user's that computes: it has no more than half
/// of the processor.
fn gains_nothing(name: &str, trick: impl Fn(Api)) -> Outcome {
    const OTHER: u32 = 1000;
    let Some(api) = Api::find() else { return Ok(()) };
    stay_on([0])?;
    let shared = Shared::new()?;
    let start = |user: usize, uid: u32, turn: &dyn Fn()| {
        spawn_child(|| {
            if setuid(Uid::from_raw(uid)).is_err() {
                return 1;
            }
            while shared.stop.load(Ordering::Relaxed) == 0 {
                turn();
                shared.work[user].fetch_add(1, Ordering::Relaxed);
            }
            0
        })
    };
    let children = [start(0, NOBODY, &|| trick(api))?, start(1, OTHER, &|| ())?];
    match shares(shared, children, |[time, _]| time < 1.25)? {
        None => Ok(()),
        Some([time, _]) => Err(format!("{name} has {time:.2} times the other's time")),
    }
}

/// Computes for about a millisecond.
fn compute() {
    let from = std::time::Instant::now();
    while from.elapsed() < Duration::from_millis(1) {
        std::hint::spin_loop();
    }
}

fn a_change_of_parameters_brings_no_time() -> Outcome {
    gains_nothing("who sets its affinity", |api| {
        let _ = api.register(0, 0, 0);
        compute();
        let _ = stay_on([0]);
    })
}

fn leaving_and_joining_brings_no_time() -> Outcome {
    gains_nothing("who leaves and joins", |api| {
        let _ = api.register(0, 0, 0);
        (0..9).for_each(|_| compute());
        // A turn as an ordinary thread, then one as the first of a group that is new.
        let _ = api.unregister();
        std::thread::yield_now();
        let _ = api.register(0, 0, 0);
        std::thread::yield_now();
    })
}

/// Threads of one user, in a process of its own, that do `start` once and `turn` over and over until the test ends.
fn threads_of(
    shared: &'static Shared,
    (user, uid, count): (usize, u32, usize),
    start: impl Fn(usize) + Sync,
    turn: impl Fn(usize) + Sync,
) -> Result<Pid, String> {
    spawn_child(|| {
        if setuid(Uid::from_raw(uid)).is_err() {
            return 1;
        }
        std::thread::scope(|scope| {
            for number in 0..count {
                let (start, turn) = (&start, &turn);
                scope.spawn(move || {
                    start(number);
                    while shared.stop.load(Ordering::Relaxed) == 0 {
                        turn(number);
                        shared.work[user].fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        0
    })
}

/// The calling thread is an executor from now on, in the midst of a coroutine of that level.
fn runs_level(api: Api, number: usize, level: u32) {
    let _ = api.register(number, 0, 0);
    api.record(number).running.store(level, Ordering::Relaxed);
}

/// 20 executors that are in a call nearly always have what one has.
fn long_calls_bring_no_time() -> Outcome {
    const MANY: usize = 20;
    const OTHER: u32 = 1000;
    let Some(api) = Api::find() else { return Ok(()) };
    stay_on([0])?;
    let shared = Shared::new()?;
    let calls = |_| {
        let mut random = vec![0; 1 << 20];
        // SAFETY: the vector is that long.
        unsafe { libc::getrandom(random.as_mut_ptr().cast(), random.len(), 0) };
    };
    let children = [
        threads_of(shared, (0, NOBODY, MANY), |number| runs_level(api, number, 32), calls)?,
        threads_of(shared, (1, OTHER, 1), |_| (), |_| compute())?,
    ];
    match shares(shared, children, |[time, _]| time < 1.25)? {
        None => Ok(()),
        Some([time, _]) => Err(format!("who calls has {time:.2} times the other's time")),
    }
}

/// An executor that goes from processor to processor has no more than half of one, where others are busy.
fn a_change_of_processor_brings_no_time() -> Outcome {
    const OTHER: u32 = 1000;
    let Some(api) = Api::find() else { return Ok(()) };
    if cpus() < 2 {
        return Ok(());
    }
    stay_on(0..2)?;
    let shared = Shared::new()?;
    let at = AtomicU32::new(0);
    let hops = |_| {
        let _ = stay_on([at.fetch_xor(1, Ordering::Relaxed) as usize]);
        (0..8).for_each(|_| compute());
    };
    let children = [
        threads_of(shared, (0, NOBODY, 1), |number| runs_level(api, number, 32), hops)?,
        threads_of(shared, (1, OTHER, 2), |number| stay_on([number]).unwrap_or(()), |_| compute())?,
    ];
    // Half of one processor to one and a half.
    match shares(shared, children, |[time, _]| time < 0.5)? {
        None => Ok(()),
        Some([time, _]) => Err(format!("who hops has {time:.2} times the others' time")),
    }
}

/// A more urgent level is no way out of a nice value, and one with a nice value takes nothing from its user's others.
fn a_nice_value_goes_before_the_order() -> Outcome {
    let Some(api) = Api::find() else { return Ok(()) };
    stay_on([0])?;
    let shared = Shared::new()?;
    let at_level = |level: u32, nice: i32| {
        move |number: usize| {
            // SAFETY: no memory is touched.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
            runs_level(api, number, level);
        }
    };
    let children = [
        threads_of(shared, (0, NOBODY, 1), at_level(20, 19), |_| compute())?,
        threads_of(shared, (1, NOBODY, 1), at_level(40, 0), |_| compute())?,
    ];
    match shares(shared, children, |[time, _]| time < 0.25)? {
        None => Ok(()),
        Some([time, _]) => Err(format!("who is nice has {time:.2} times the other's time")),
    }
}

/// An executor that changes its user belongs to the other one's group.
fn a_group_is_the_users() -> Outcome {
    let Some(api) = Api::find() else { return Ok(()) };
    expect_eq!(api.register(0, 0, 0), 0);
    let before = api.header_word(72);
    setuid(Uid::from_raw(NOBODY)).or_fail()?;
    expect!(before != 0 && api.header_word(72) != 0);
    expect!(before != api.header_word(72));
    Ok(())
}

/// Executors that are bound to a processor each, in two processes, with sleeps and yields.
fn pinned_executors_end() -> Outcome {
    let Some(api) = Api::find() else { return Ok(()) };
    let cpus = cpus();
    for round in 0..20 {
        let start = |level: u32| {
            spawn_child(move || {
                let turn = |number: usize, turns: u64| {
                    if turns == 1 && stay_on([number]).is_err() {
                        return true;
                    }
                    match (turns + number as u64) % 20 {
                        0 => std::thread::sleep(Duration::from_micros(20)),
                        5 | 10 => std::thread::yield_now(),
                        _ => {}
                    }
                    turns == 400
                };
                executors(api, (cpus, level, round % 2), &turn)
            })
        };
        let children = [start(30)?, start(35)?, start(30)?];
        for child in children {
            wait_for(child)?;
        }
    }
    // Nobody is listed as waiting who is not there any more.
    expect_eq!(api.register(0, 0, 0), 0);
    let group = api.header_word(72) as usize;
    expect!(group != 0);
    expect_eq!((api.system_word(192 + 8 * group), api.system_word(196 + 8 * group)), (0, 0));
    Ok(())
}
