//! The order of realtime threads, as sched(7) says it: by priority, among equals by who came first.

#![allow(unsafe_code)] // System calls that have no safe form.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_yield};
use nix::unistd::{Pid, gettid, pipe, read, write};

use crate::harness::{OrFail, Outcome, spawn_child};
use crate::pi::{self, use_one_cpu, wait_until_it_waits};
use crate::{expect, expect_eq};

crate::tests! {
    each_priority_goes_before_those_below
    a_woken_thread_preempts_only_less_urgent_ones
    a_woken_thread_goes_behind_its_equals
    a_change_of_priority_changes_the_place
    nothing_below_runs_while_threads_yield
    equals_of_round_robin_take_turns
    an_owner_goes_before_the_priority_below_its_waiter
    the_most_urgent_have_all_processors
    a_thread_that_has_not_run_yet_is_running
}

/// The words of a test's threads, in order.
struct Log {
    entries: [AtomicU32; 256],
    count: AtomicUsize,
}

impl Log {
    const fn new() -> Self {
        Self { entries: [const { AtomicU32::new(0) }; 256], count: AtomicUsize::new(0) }
    }

    fn say(&self, what: u32) {
        let place = self.count.fetch_add(1, Ordering::SeqCst);
        if let Some(entry) = self.entries.get(place) {
            entry.store(what, Ordering::SeqCst);
        }
    }

    fn said(&self) -> Vec<u32> {
        let count = self.count.load(Ordering::SeqCst).min(self.entries.len());
        self.entries[..count].iter().map(|entry| entry.load(Ordering::SeqCst)).collect()
    }
}

fn set_policy(tid: i32, policy: i32, priority: i32) -> Result<(), Errno> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameters live during the call.
    Errno::result(unsafe { libc::syscall(libc::SYS_sched_setscheduler, tid, policy, &raw const parameters) })
        .map(drop)
}

fn become_fifo(priority: i32) {
    set_policy(0, libc::SCHED_FIFO, priority).expect("root may have realtime priorities");
}

/// A realtime thread that does something when it is let.
struct Worker<'s> {
    tid: i32,
    go: Arc<OwnedFd>,
    thread: ScopedJoinHandle<'s, ()>,
}

/// Starts a thread of a realtime priority below the caller's, which waits to be let do its work.
fn worker<'s>(
    scope: &'s Scope<'s, '_>,
    priority: i32,
    work: impl FnOnce() + Send + 's,
) -> Result<Worker<'s>, String> {
    let (gate, go) = pipe().or_fail()?;
    let tid = Arc::new(AtomicI32::new(0));
    let own = tid.clone();
    let thread = scope.spawn(move || {
        become_fifo(priority);
        own.store(gettid().as_raw(), Ordering::SeqCst);
        let _ = read(&gate, &mut [0]);
        work();
    });
    wait_until_it_waits(&tid)?;
    Ok(Worker { tid: tid.load(Ordering::SeqCst), go: Arc::new(go), thread })
}

fn let_go(go: &OwnedFd) {
    let _ = write(go.as_fd(), b"x");
}

impl Worker<'_> {
    fn go(&self) {
        let_go(&self.go);
    }

    fn end(self) -> Outcome {
        self.thread.join().map_err(|_| "a thread panicked".to_owned())
    }
}

fn each_priority_goes_before_those_below() -> Outcome {
    use_one_cpu()?;
    become_fifo(99);
    let log = Log::new();
    // Every priority once, in an order that has nothing to do with theirs. The threads start with this one's.
    let priorities: Vec<i32> = (0..98).map(|number| number * 37 % 98 + 1).collect();
    thread::scope(|scope| {
        for &priority in &priorities {
            let log = &log;
            scope.spawn(move || {
                become_fifo(priority);
                log.say(priority as u32);
            });
        }
    });
    expect_eq!(log.said(), (1..=98).rev().collect::<Vec<u32>>());
    Ok(())
}

fn a_woken_thread_preempts_only_less_urgent_ones() -> Outcome {
    use_one_cpu()?;
    become_fifo(50);
    let log = &Log::new();
    thread::scope(|scope| {
        // The priorities next to each other: whatever shares a level in some kernel, these do.
        let above = worker(scope, 21, || log.say(21))?;
        let equal = worker(scope, 20, || log.say(20))?;
        let below = worker(scope, 19, || log.say(19))?;
        let [wake_above, wake_equal, wake_below] = [&above, &equal, &below].map(|worker| worker.go.clone());
        let runs = worker(scope, 20, move || {
            log.say(1);
            let_go(&wake_below);
            let_go(&wake_equal);
            log.say(2);
            let_go(&wake_above);
            // It was preempted, so it is the first of its equals.
            log.say(3);
            let _ = sched_yield();
            log.say(4);
        })?;
        runs.go();
        runs.end()?;
        Ok::<_, String>(())
    })?;
    expect_eq!(log.said(), [1, 2, 21, 3, 20, 4, 19]);
    Ok(())
}

fn a_woken_thread_goes_behind_its_equals() -> Outcome {
    use_one_cpu()?;
    become_fifo(50);
    let log = Log::new();
    thread::scope(|scope| {
        let names = [1, 2, 3, 4, 5];
        let workers: Vec<_> = names
            .iter()
            .map(|&name| {
                worker(scope, 20, {
                    let log = &log;
                    move || log.say(name)
                })
            })
            .collect::<Result<_, _>>()?;
        for number in [2, 0, 4, 1, 3] {
            workers[number].go();
        }
        workers.into_iter().try_for_each(Worker::end)
    })?;
    expect_eq!(log.said(), [3, 1, 5, 2, 4]);
    Ok(())
}

/// Lets three threads of the given priorities go, changes one's, and returns in which order they ran.
fn order_after(priorities: [i32; 3], changed: usize, priority: i32) -> Result<Vec<u32>, String> {
    let log = Log::new();
    thread::scope(|scope| {
        let start = |name: usize| {
            worker(scope, priorities[name], {
                let log = &log;
                move || log.say(name as u32)
            })
        };
        let workers = [start(0)?, start(1)?, start(2)?];
        workers.iter().for_each(Worker::go);
        set_policy(workers[changed].tid, libc::SCHED_FIFO, priority).or_fail()?;
        workers.into_iter().try_for_each(Worker::end)
    })?;
    Ok(log.said())
}

fn a_change_of_priority_changes_the_place() -> Outcome {
    use_one_cpu()?;
    become_fifo(50);
    // Raised above the others, and to theirs: behind them.
    expect_eq!(order_after([20, 20, 20], 1, 21)?, [1, 0, 2]);
    expect_eq!(order_after([15, 20, 20], 0, 20)?, [1, 2, 0]);
    // Lowered below the others, and to theirs: before them.
    expect_eq!(order_after([20, 20, 20], 1, 19)?, [0, 2, 1]);
    expect_eq!(order_after([20, 20, 25], 2, 20)?, [2, 0, 1]);
    // A change to the same value does not change the place.
    expect_eq!(order_after([20, 20, 20], 0, 20)?, [0, 1, 2]);
    Ok(())
}

fn nothing_below_runs_while_threads_yield() -> Outcome {
    const YIELDS: u64 = 300;
    use_one_cpu()?;
    become_fifo(50);
    let (turns, seen) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        let yields = || {
            for _ in 0..YIELDS {
                turns.fetch_add(1, Ordering::SeqCst);
                let _ = sched_yield();
            }
        };
        let below = worker(scope, 10, || seen.store(turns.load(Ordering::SeqCst), Ordering::SeqCst))?;
        let (one, other) = (worker(scope, 30, yields)?, worker(scope, 30, yields)?);
        [&below, &one, &other].iter().for_each(|worker| worker.go());
        [one, other, below].into_iter().try_for_each(Worker::end)
    })?;
    expect_eq!(seen.load(Ordering::SeqCst), 2 * YIELDS);
    Ok(())
}

/// Goes on until the other has run too: who takes no turns with its equals would never end.
fn meet(own: &AtomicU32, other: &AtomicU32) {
    own.store(1, Ordering::SeqCst);
    while other.load(Ordering::SeqCst) == 0 {
        std::hint::spin_loop();
    }
}

fn equals_of_round_robin_take_turns() -> Outcome {
    use_one_cpu()?;
    become_fifo(50);
    let (first, second) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        let workers =
            [worker(scope, 20, || meet(&first, &second))?, worker(scope, 20, || meet(&second, &first))?];
        for worker in &workers {
            set_policy(worker.tid, libc::SCHED_RR, 20).or_fail()?;
            let mut slice = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: the time is written to memory of its size.
            Errno::result(unsafe { libc::sched_rr_get_interval(worker.tid, &raw mut slice) }).or_fail()?;
            expect!(slice.tv_sec != 0 || slice.tv_nsec != 0);
        }
        workers.iter().for_each(Worker::go);
        workers.into_iter().try_for_each(Worker::end)
    })
}

/// The waiter's priority and the one below it are next to each other, so the loan must be exact too.
fn an_owner_goes_before_the_priority_below_its_waiter() -> Outcome {
    use_one_cpu()?;
    become_fifo(50);
    let log = Log::new();
    let lock = AtomicU32::new(0);
    let (gate, goes_on) = pipe().or_fail()?;
    thread::scope(|scope| {
        let owner = worker(scope, 10, || {
            let _ = pi::lock(&lock);
            let _ = read(&gate, &mut [0]);
            log.say(10);
            let _ = pi::unlock(&lock);
            log.say(1);
        })?;
        let waiter = worker(scope, 22, || {
            let _ = pi::lock(&lock);
            log.say(22);
            let _ = pi::unlock(&lock);
        })?;
        let between = worker(scope, 21, || log.say(21))?;
        let tids = [AtomicI32::new(owner.tid), AtomicI32::new(waiter.tid)];
        for (worker, tid) in [&owner, &waiter].into_iter().zip(&tids) {
            worker.go();
            wait_until_it_waits(tid)?;
        }
        between.go();
        let _ = write(goes_on.as_fd(), b"x");
        [waiter, between, owner].into_iter().try_for_each(Worker::end)
    })?;
    expect_eq!(log.said(), [10, 22, 21, 1]);
    Ok(())
}

/// As many urgent threads as there are processors wait for each other without giving way: so each gets one, although
/// less urgent realtime threads have them all.
fn the_most_urgent_have_all_processors() -> Outcome {
    const LOOKS: u32 = 20_000;
    let allowed = sched_getaffinity(Pid::from_raw(0)).or_fail()?;
    let cpus = (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu).unwrap_or(false)).count() as u32;
    become_fifo(50);
    let (arrived, left, stop) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    let below = AtomicU64::new(0);
    let progress = AtomicU64::new(0);
    thread::scope(|scope| {
        let start = |_| {
            worker(scope, 10, || {
                while stop.load(Ordering::SeqCst) == 0 {
                    below.fetch_add(1, Ordering::SeqCst);
                }
            })
        };
        let busy: Vec<_> = (0..cpus).map(start).collect::<Result<_, _>>()?;
        let start = |_| {
            worker(scope, 11, || {
                arrived.fetch_add(1, Ordering::SeqCst);
                while arrived.load(Ordering::SeqCst) < cpus {
                    std::hint::spin_loop();
                }
                // Every processor has one of these threads now.
                let before = below.load(Ordering::SeqCst);
                for _ in 0..LOOKS {
                    std::hint::black_box(below.load(Ordering::SeqCst));
                }
                progress.fetch_add(below.load(Ordering::SeqCst) - before, Ordering::SeqCst);
                // None leaves its processor to others while one of them still looks.
                left.fetch_add(1, Ordering::SeqCst);
                while left.load(Ordering::SeqCst) < cpus {
                    std::hint::spin_loop();
                }
            })
        };
        let urgent: Vec<_> = (0..cpus).map(start).collect::<Result<_, _>>()?;
        busy.iter().for_each(Worker::go);
        // Sleeps, so that the others have the processors.
        thread::sleep(std::time::Duration::from_millis(20));
        urgent.iter().for_each(Worker::go);
        let ended = urgent.into_iter().try_for_each(Worker::end);
        stop.store(1, Ordering::SeqCst);
        ended.and(busy.into_iter().try_for_each(Worker::end))
    })?;
    expect_eq!(progress.load(Ordering::SeqCst), 0);
    Ok(())
}

/// A process that is ready and has not run yet is in state R. It waits for nothing all its life.
fn a_thread_that_has_not_run_yet_is_running() -> Outcome {
    use_one_cpu()?;
    become_fifo(50);
    // It has this one's priority, so it runs when this one waits for a moment, if at all.
    let child = spawn_child(|| 0)?;
    let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).or_fail()?;
    nix::sys::wait::waitpid(child, None).or_fail()?;
    let state = stat.rsplit_once(") ").and_then(|(_, fields)| fields.chars().next());
    expect!(matches!(state, Some('R' | 'Z')));
    Ok(())
}
