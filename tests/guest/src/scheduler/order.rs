//! The order of priorities over processes.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::wait::WaitStatus;
use nix::unistd::{Pid, pipe, read, write};

use super::api::{Api, Block, DONE, Scheduler};
use crate::harness::{OrFail, Outcome, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    an_urgent_process_runs_first
    strict_gives_way_between_coroutines
    relaxed_goes_on_until_the_tick
    a_level_in_the_header_counts_from_the_tick
}

/// State that the processes of a test share.
#[repr(C)]
struct Shared {
    turns: AtomicU64,
    before: AtomicU64,
    after: AtomicU64,
    stop: AtomicU32,
    log: AtomicU32,
}

impl Shared {
    fn new() -> Result<&'static Self, String> {
        let size = std::num::NonZeroUsize::new(4096).ok_or("no size")?;
        let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: new memory, zeroed, which stays until the process ends.
        unsafe { Ok(&*mmap_anonymous(None, size, rights, MapFlags::MAP_SHARED).or_fail()?.as_ptr().cast()) }
    }

    /// Appends a digit to the log.
    fn note(&self, digit: u32) {
        let log = self.log.load(Ordering::SeqCst);
        self.log.store(log * 10 + digit, Ordering::SeqCst);
    }
}

fn stay_on_first() -> Outcome {
    let mut set = CpuSet::new();
    set.set(0).or_fail()?;
    sched_setaffinity(Pid::from_raw(0), &set).or_fail()
}

fn wait_for(child: Pid) -> Outcome {
    let status = nix::sys::wait::waitpid(child, None).or_fail()?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    Ok(())
}

fn read_byte(from: &OwnedFd) -> bool {
    read(from, &mut [0]).is_ok_and(|count| count == 1)
}

/// A process with background coroutines computes; one with an urgent coroutine wakes, and has the processor until that
/// one has ended.
fn an_urgent_process_runs_first() -> Outcome {
    const TURNS: u32 = 2_000;
    let Some(api) = Api::find() else { return Ok(()) };
    let shared = Shared::new()?;
    stay_on_first()?;
    let (go, started) = pipe().or_fail()?;
    let background = spawn_child(|| {
        let scheduler = Scheduler::new(api, 1, 8);
        let id = AtomicU64::new(0);
        let mut block = Block::new(Box::new(|_| {
            if shared.turns.fetch_add(1, Ordering::SeqCst) == 0 {
                let _ = write(started.as_fd(), b"x");
            }
            scheduler.wake(0, id.load(Ordering::Relaxed));
            shared.stop.load(Ordering::SeqCst)
        }));
        if scheduler.enter(0).is_err() {
            return 1;
        }
        id.store(scheduler.spawn(0, &mut block, 50), Ordering::Relaxed);
        scheduler.run(0);
        0
    })?;
    let urgent = spawn_child(|| {
        let scheduler = Scheduler::new(api, 1, 8);
        let id = AtomicU64::new(0);
        let mut block = Block::new(Box::new(|header: &super::api::Header| {
            if header.polls() == 1 {
                // Blocks the thread: when it wakes, it has the level of this coroutine.
                if !read_byte(&go) {
                    return DONE;
                }
                shared.before.store(shared.turns.load(Ordering::SeqCst), Ordering::SeqCst);
            }
            if header.polls() < u64::from(TURNS) {
                scheduler.wake(0, id.load(Ordering::Relaxed));
                return 0;
            }
            shared.after.store(shared.turns.load(Ordering::SeqCst), Ordering::SeqCst);
            shared.stop.store(1, Ordering::SeqCst);
            DONE
        }));
        if scheduler.enter(0).is_err() {
            return 1;
        }
        id.store(scheduler.spawn(0, &mut block, 10), Ordering::Relaxed);
        scheduler.run(0);
        0
    })?;
    wait_for(urgent)?;
    wait_for(background)?;
    let (before, after) = (shared.before.load(Ordering::SeqCst), shared.after.load(Ordering::SeqCst));
    expect!(before > 0);
    expect_eq!(after, before);
    Ok(())
}

/// One process runs a coroutine of level 45 and then one of 55; meanwhile one of level 50 becomes ready in another, on
/// the same processor. Returns the order in which they ended: 1 for 45, 2 for 50, 3 for 55.
fn order_under(policy: u32) -> Result<u32, String> {
    let Some(api) = Api::find() else { return Ok(if policy == 1 { 123 } else { 132 }) };
    let shared = Shared::new()?;
    stay_on_first()?;
    let (go, wake) = pipe().or_fail()?;
    let (ready, is_ready) = pipe().or_fail()?;
    let other = spawn_child(|| {
        let scheduler = Scheduler::new(api, 1, 8);
        let mut block = Block::new(Box::new(|_| {
            let _ = write(is_ready.as_fd(), b"x");
            if read_byte(&go) {
                shared.note(2);
            }
            DONE
        }));
        if scheduler.enter(0).is_err() {
            return 1;
        }
        scheduler.spawn(0, &mut block, 50);
        scheduler.run(0);
        0
    })?;
    let first = spawn_child(|| {
        let scheduler = Scheduler::new(api, 1, 8);
        let mut better = Block::new(Box::new(|_| {
            // The other process waits in its read by then: its level is behind that of this thread from here on.
            if !read_byte(&ready) {
                return DONE;
            }
            while api.record(0).running.load(Ordering::Relaxed) != 45 {}
            // Gives the other the time to get from its write to its read.
            std::thread::sleep(std::time::Duration::from_millis(5));
            let _ = write(wake.as_fd(), b"x");
            // It is ready and waits for the processor, which the page says.
            while api.ready_levels() & (1 << 50) == 0 {
                std::hint::spin_loop();
            }
            shared.note(1);
            DONE
        }));
        let mut worse = Block::new(Box::new(|_| {
            shared.note(3);
            DONE
        }));
        if scheduler.enter(0).is_err() || scheduler.policy(policy) != 0 {
            return 1;
        }
        scheduler.spawn(0, &mut better, 45);
        scheduler.spawn(0, &mut worse, 55);
        scheduler.run(0);
        0
    })?;
    wait_for(first)?;
    wait_for(other)?;
    Ok(shared.log.load(Ordering::SeqCst))
}

fn strict_gives_way_between_coroutines() -> Outcome {
    expect_eq!(order_under(1)?, 123);
    Ok(())
}

/// The two turns are much shorter than a tick; one that falls between them may show the other order, seldom.
fn relaxed_goes_on_until_the_tick() -> Outcome {
    let mut orders = Vec::new();
    for _ in 0..5 {
        orders.push(order_under(0)?);
    }
    expect!(orders.iter().all(|order| [123, 132].contains(order)) && orders.contains(&132));
    Ok(())
}

/// An executor in the background waits for a processor that an ordinary thread keeps; that one puts something ordinary
/// into the header's bitmap, and the executor is ordinary from the next tick on.
fn a_level_in_the_header_counts_from_the_tick() -> Outcome {
    let Some(api) = Api::find() else { return Ok(()) };
    stay_on_first()?;
    let (turns, stop) = (AtomicU64::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if api.register(0, 0, 0) != 0 {
                return;
            }
            api.record(0).running.store(50, Ordering::SeqCst);
            while stop.load(Ordering::SeqCst) == 0 {
                api.give_way();
                turns.fetch_add(1, Ordering::SeqCst);
            }
        });
        while turns.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        while api.ready_levels() & (1 << 50) == 0 {
            std::hint::spin_loop();
        }
        api.bitmap().store(1 << 32, Ordering::SeqCst);
        let (before, start) = (turns.load(Ordering::SeqCst), std::time::Instant::now());
        // A tick is some milliseconds; without one that looks, the thread would wait as long as this one runs.
        while turns.load(Ordering::SeqCst) == before && start.elapsed().as_secs() < 10 {
            std::hint::spin_loop();
        }
        let ran = turns.load(Ordering::SeqCst) != before;
        api.bitmap().store(0, Ordering::SeqCst);
        stop.store(1, Ordering::SeqCst);
        expect!(ran);
        Ok(())
    })
}
