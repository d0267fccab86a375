//! The shared scheduler: the vDSO's coroutines, the pages that program and kernel share, user interrupts, and the order
//! of priorities over processes. Linux has none of it, and the tests are skipped there by passing.
#![allow(unsafe_code)] // The vDSO's functions are C's, and the pages are reached by address.

mod api;
mod interrupt;
mod levels;
mod order;

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::wait::WaitStatus;

use self::api::{Api, Block, Body, DONE, Scheduler, WAITS};
use crate::harness::{OrFail, Outcome, in_child};
use crate::listing::{Listed, listing};
use crate::{expect, expect_eq};

pub use self::interrupt::TESTS as INTERRUPT_TESTS;
pub use self::levels::TESTS as LEVELS_TESTS;
pub use self::order::TESTS as ORDER_TESTS;

crate::tests! {
    the_c_examples_run
    pages_are_there
    a_child_has_fresh_pages
    levels_are_served_in_order
    a_wake_is_neither_lost_nor_doubled
    wakes_from_another_thread
    executors_share_their_work
    a_hundred_thousand_coroutines
    a_blocked_executor_wakes_a_spare_one
    garbage_in_the_pages_does_no_harm
    bad_calls_are_refused
    proc_lists_coroutines
    fork_and_exec_with_a_scheduler
}

/// Runs a C example; returns what it printed.
fn example(name: &str, program: &[u8]) -> Result<String, String> {
    let path = format!("/tmp/heddle-{name}-{}", std::process::id());
    std::fs::write(&path, program).or_fail()?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).or_fail()?;
    let output = Command::new(&path).output();
    std::fs::remove_file(&path).or_fail()?;
    let output = output.or_fail()?;
    expect!(output.status.success());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn the_c_examples_run() -> Outcome {
    const ORDER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/order"));
    const CALLS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/calls"));
    if Api::find().is_none() {
        return Ok(());
    }
    // Several processors run several calls at once, so that only one makes the order of their ends certain.
    let is_alone = std::thread::available_parallelism().or_fail()?.get() == 1;
    let words = |text: &str| {
        let mut words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        if !is_alone {
            words.sort();
        }
        words
    };
    let order = "urgent background-waits ordinary background";
    expect_eq!(words(&example("order", ORDER)?), words(order));
    // A call that is canceled ends at any time beside the others.
    let text = example("calls", CALLS)?;
    expect!(text.contains("canceled"));
    let calls = "written 3 urgent ordinary background";
    expect_eq!(words(&text.replace("canceled", "")), words(calls));
    Ok(())
}

fn pages_are_there() -> Outcome {
    let Some(api) = Api::find() else { return Ok(()) };
    expect_eq!(api.header_word(0), u32::from_le_bytes(*b"HEDL"));
    expect_eq!(api.header_word(4), 1);
    expect_eq!(api.system_word(0), u32::from_le_bytes(*b"HEDL"));
    // A zombie of a thread would be at 64 too: nothing runs.
    expect_eq!(api.record(5).running.load(Ordering::Relaxed), 64);
    let page = api.system;
    let status = in_child(move || {
        // SAFETY: in a child of its own, which this kills.
        unsafe { (page as *mut u32).write_volatile(1) };
        0
    })?;
    expect!(matches!(status, WaitStatus::Signaled(..)));
    Ok(())
}

fn a_child_has_fresh_pages() -> Outcome {
    let Some(api) = Api::find() else { return Ok(()) };
    api.bitmap().store(5, Ordering::Relaxed);
    api.record(3).ready.store(77, Ordering::Relaxed);
    let status = in_child(|| {
        let is_fresh = api.header_word(0) == u32::from_le_bytes(*b"HEDL")
            && api.bitmap().load(Ordering::Relaxed) == 0
            && api.record(3).ready.load(Ordering::Relaxed) == 0;
        api.bitmap().store(9, Ordering::Relaxed);
        i32::from(!is_fresh)
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    expect_eq!(api.bitmap().load(Ordering::Relaxed), 5);
    expect_eq!(api.record(3).ready.load(Ordering::Relaxed), 77);
    Ok(())
}

fn levels_are_served_in_order() -> Outcome {
    let Some(api) = Api::find() else { return Ok(()) };
    let scheduler = Scheduler::new(api, 1, 64);
    let log = AtomicU64::new(0);
    let mut blocks: Vec<_> = [50u32, 32, 10, 44, 10]
        .iter()
        .enumerate()
        .map(|(index, &level)| {
            let log = &log;
            let body: Body<'_> = Box::new(move |_| {
                let before = log.load(Ordering::Relaxed);
                log.store(before * 10 + index as u64 + 1, Ordering::Relaxed);
                DONE
            });
            (level, Block::new(body))
        })
        .collect();
    scheduler.enter(0)?;
    for (level, block) in &mut blocks {
        expect!(scheduler.spawn(0, block, *level) != 0);
    }
    expect_eq!(scheduler.run(0), 5);
    expect_eq!(log.load(Ordering::Relaxed), 35241);
    scheduler.leave(0);
    Ok(())
}

/// Wakes before the wait, during the poll, at its end and afterwards: one turn follows each that found it waiting.
fn a_wake_is_neither_lost_nor_doubled() -> Outcome {
    let Some(api) = Api::find() else { return Ok(()) };
    let scheduler = Scheduler::new(api, 1, 8);
    let (polls, id) = (AtomicU32::new(0), AtomicU64::new(0));
    let mut waiter = Block::new(Box::new(|_| {
        match polls.fetch_add(1, Ordering::Relaxed) {
            // Woken in its own turn, twice: one more turn.
            0 => {
                scheduler.wake(0, id.load(Ordering::Relaxed));
                scheduler.wake(0, id.load(Ordering::Relaxed));
                WAITS
            }
            // Waits, and is woken by the other, twice before it runs: one more turn.
            1 => WAITS,
            _ => DONE,
        }
    }));
    let mut waker = Block::new(Box::new(|_| {
        scheduler.wake(0, id.load(Ordering::Relaxed));
        scheduler.wake(0, id.load(Ordering::Relaxed));
        DONE
    }));
    scheduler.enter(0)?;
    id.store(scheduler.spawn(0, &mut waiter, 20), Ordering::Relaxed);
    // Before its first turn: it is ready already.
    expect_eq!(scheduler.wake(0, id.load(Ordering::Relaxed)), 1);
    scheduler.spawn(0, &mut waker, 30);
    scheduler.run(0);
    expect_eq!(polls.load(Ordering::Relaxed), 3);
    expect_eq!(scheduler.wake(0, id.load(Ordering::Relaxed)), 0);
    scheduler.leave(0);
    Ok(())
}

/// A thread that is no executor wakes at every moment of the coroutine's turns.
fn wakes_from_another_thread() -> Outcome {
    const ROUNDS: u32 = 2_000;
    let Some(api) = Api::find() else { return Ok(()) };
    let scheduler = Scheduler::new(api, 1, 8);
    let (wanted, seen, id) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU64::new(0));
    let mut waiter = Block::new(Box::new(|_| {
        seen.store(wanted.load(Ordering::Acquire), Ordering::Release);
        if seen.load(Ordering::Relaxed) == ROUNDS { DONE } else { WAITS }
    }));
    scheduler.enter(0)?;
    id.store(scheduler.spawn(0, &mut waiter, 20), Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                wanted.store(round, Ordering::Release);
                scheduler.wake(api::NO_EXECUTOR, id.load(Ordering::Relaxed));
                // Every other round at once, into whatever the coroutine is doing.
                while round % 2 == 0 && seen.load(Ordering::Acquire) < round {
                    std::thread::yield_now();
                }
            }
        });
        scheduler.run(0);
    });
    expect_eq!(seen.load(Ordering::Relaxed), ROUNDS);
    scheduler.leave(0);
    Ok(())
}

fn executors_share_their_work() -> Outcome {
    const COROUTINES: usize = 300;
    let Some(api) = Api::find() else { return Ok(()) };
    let scheduler = Scheduler::new(api, 4, COROUTINES as u32);
    let turns = AtomicU32::new(0);
    let mut blocks: Vec<_> = (0..COROUTINES)
        .map(|_| {
            Block::new(Box::new(|block: &api::Header| {
                turns.fetch_add(1, Ordering::Relaxed);
                if block.polls() == 3 {
                    return DONE;
                }
                scheduler.wake(api::NO_EXECUTOR, block.id());
                WAITS
            }))
        })
        .collect();
    scheduler.enter(0)?;
    for (index, block) in blocks.iter_mut().enumerate() {
        expect!(scheduler.spawn(0, block, 20 + index as u32 % 8) != 0);
    }
    std::thread::scope(|scope| {
        for number in 1..4 {
            let scheduler = &scheduler;
            scope.spawn(move || {
                scheduler.enter(number).expect("an executor");
                scheduler.run(number);
                scheduler.leave(number);
            });
        }
        scheduler.run(0);
    });
    expect_eq!(turns.load(Ordering::Relaxed), 3 * COROUTINES as u32);
    scheduler.leave(0);
    Ok(())
}

/// The only executor that runs blocks in a system call while a coroutine is ready in its queue, which would end the
/// wait. The kernel wakes the one that sleeps.
fn a_blocked_executor_wakes_a_spare_one() -> Outcome {
    let Some(api) = Api::find() else { return Ok(()) };
    let scheduler = Scheduler::new(api, 2, 8);
    let (reader, writer) = nix::unistd::pipe().or_fail()?;
    let got = AtomicU32::new(0);
    let mut helper = Block::new(Box::new(|_| nix::unistd::write(&writer, b"x").map_or(DONE, |_| DONE)));
    let helper_place = &raw mut helper;
    let mut blocker = Block::new(Box::new(|_| {
        // SAFETY: nobody else uses it before it is spawned here.
        scheduler.spawn(0, unsafe { &mut *helper_place }, 45);
        let mut byte = [0];
        got.store(nix::unistd::read(&reader, &mut byte).unwrap_or(0) as u32, Ordering::Relaxed);
        DONE
    }));
    scheduler.enter(0)?;
    scheduler.spawn(0, &mut blocker, 40);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            scheduler.enter(1).expect("an executor");
            scheduler.run(1);
            scheduler.leave(1);
        });
        // The other sleeps by then.
        std::thread::sleep(Duration::from_millis(20));
        scheduler.run(0);
    });
    expect_eq!(got.load(Ordering::Relaxed), 1);
    scheduler.leave(0);
    Ok(())
}

fn garbage_in_the_pages_does_no_harm() -> Outcome {
    let Some(api) = Api::find() else { return Ok(()) };
    let status = in_child(|| {
        let mut seed = 0x1234_5678_9abc_def1u64;
        for round in 0..300 {
            for number in 0..4 {
                // No handler: where it would lead to is the program's own affair.
                api.register(number, 0, 0);
            }
            for word in 0..1024 {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                let value = if word % 5 == 0 { seed % 70 } else { seed };
                // SAFETY: the process's own two pages.
                unsafe { (api.process as *mut u64).add(word).write_volatile(value) };
            }
            api.interrupt(round % 6);
            api.give_way();
            std::thread::yield_now();
            if round % 50 == 0 {
                std::thread::sleep(Duration::from_micros(100));
                let _ = std::fs::read_to_string("/proc/self/heddle");
            }
        }
        0
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    // The pages may be taken away, too.
    let status = in_child(|| {
        api.register(0, 0, 0);
        // SAFETY: nothing of this program's lies there but what it stops using.
        unsafe { libc::munmap(api.process as *mut libc::c_void, 8192) };
        for _ in 0..20 {
            api.give_way();
            std::thread::sleep(Duration::from_micros(10));
        }
        0
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    Ok(())
}

fn bad_calls_are_refused() -> Outcome {
    let Some(api) = Api::find() else { return Ok(()) };
    expect_eq!(api.register(64, 0, 0), -i64::from(libc::EINVAL));
    expect_eq!(api.register(usize::MAX, 0, 0), -i64::from(libc::EINVAL));
    expect_eq!(api.interrupt(7), -i64::from(libc::EINVAL));
    expect_eq!(api.policy(5), -i64::from(libc::EINVAL));
    expect_eq!(api.policy(1), 0);
    expect_eq!(api.policy(u32::MAX), 1);
    expect_eq!(api.register(2, 0, 0), 0);
    let other = std::thread::spawn(move || api.register(2, 0, 0)).join().map_err(|_| "panicked")?;
    expect_eq!(other, -i64::from(libc::EBUSY));
    // A handler that is nowhere is a segmentation fault of the program.
    let status = in_child(|| {
        api.register(0, 0x10, 0);
        api.record(0).running.store(50, Ordering::Relaxed);
        api.interrupt(0);
        std::thread::yield_now();
        0
    })?;
    expect!(matches!(status, WaitStatus::Signaled(_, nix::sys::signal::Signal::SIGSEGV, _)));
    Ok(())
}

fn proc_lists_coroutines() -> Outcome {
    let Some(api) = Api::find() else { return Ok(()) };
    let scheduler = Scheduler::new(api, 1, 8);
    let text = std::cell::RefCell::new(String::new());
    let ids = std::cell::Cell::new([0; 2]);
    let mut blocks: Vec<Block<'_>> = Vec::new();
    blocks.push(Block::new(Box::new(|_| {
        scheduler.wake(0, ids.get()[0]);
        std::thread::sleep(Duration::from_millis(20));
        text.borrow_mut().push_str(&listing(0));
        scheduler.wake(0, ids.get()[1]);
        DONE
    })));
    blocks.push(Block::new(Box::new(|_| DONE)));
    for _ in 0..2 {
        let mut turns = 0;
        blocks.push(Block::new(Box::new(move |_| {
            turns += 1;
            if turns == 2 { DONE } else { WAITS }
        })));
    }
    api.show(&blocks);
    scheduler.enter(0)?;
    for (block, level) in blocks.iter_mut().zip([12, 48, 10, 11]) {
        block.header.set_kind(level + 100);
        let id = scheduler.spawn(0, block, level);
        ids.set([id, ids.get()[0]]);
    }
    expect_eq!(scheduler.run(0), 6);
    let text = text.borrow();
    expect!(text.contains("policy relaxed"));
    expect_eq!(Listed::find(&text, 112)?.main(), ("program", 12, "running", 1));
    expect_eq!(Listed::find(&text, 148)?.main(), ("program", 48, "ready", 0));
    expect_eq!(Listed::find(&text, 110)?.main(), ("program", 10, "waiting", 1));
    let woken = Listed::find(&text, 111)?;
    expect_eq!(woken.main(), ("program", 11, "ready", 1));
    expect!(woken.since_ns >= 20_000_000);
    expect!(text.contains(" kernel thread "));
    scheduler.leave(0);
    Ok(())
}

/// A child of a process with a scheduler has none until it makes one, and may run another program.
fn fork_and_exec_with_a_scheduler() -> Outcome {
    let Some(api) = Api::find() else { return Ok(()) };
    let scheduler = Scheduler::new(api, 1, 8);
    let statuses = std::cell::RefCell::new(Vec::new());
    let mut forker = Block::new(Box::new(|_| {
        statuses.borrow_mut().push(in_child(|| {
            let inner = Scheduler::new(api, 1, 8);
            let mut block = Block::new(Box::new(|_| DONE));
            let entered = inner.enter(0).is_ok();
            inner.spawn(0, &mut block, 10);
            i32::from(!(entered && inner.run(0) == 1))
        }));
        let ran = Command::new("/proc/self/exe").arg("--list").output();
        statuses.borrow_mut().push(ran.map_err(|error| error.to_string()).map(|output| {
            let status = output.status.code().unwrap_or(-1);
            WaitStatus::Exited(nix::unistd::Pid::from_raw(1), status)
        }));
        DONE
    }));
    scheduler.enter(0)?;
    scheduler.spawn(0, &mut forker, 10);
    expect_eq!(scheduler.run(0), 1);
    for status in statuses.borrow().iter() {
        expect!(matches!(status, Ok(WaitStatus::Exited(_, 0))));
    }
    scheduler.leave(0);
    Ok(())
}

/// As many as wait at the same time, each woken once, by the one before it.
fn a_hundred_thousand_coroutines() -> Outcome {
    const COUNT: usize = 100_000;
    let Some(api) = Api::find() else { return Ok(()) };
    let scheduler = Scheduler::new(api, 1, COUNT as u32);
    let ids: Vec<AtomicU64> = (0..COUNT).map(|_| AtomicU64::new(0)).collect();
    let ran = AtomicU32::new(0);
    let (scheduler, ids, ran) = (&scheduler, &ids, &ran);
    let mut blocks: Vec<Block<'_>> = (0..COUNT)
        .map(|number| {
            let body: Body<'_> = Box::new(move |block: &api::Header| {
                // The last has its first turn last, when all others wait.
                if block.polls() == 1 && number + 1 != COUNT {
                    return WAITS;
                }
                ran.fetch_add(1, Ordering::Relaxed);
                if let Some(next) = number.checked_sub(1) {
                    scheduler.wake(0, ids[next].load(Ordering::Relaxed));
                }
                DONE
            });
            Block::new(body)
        })
        .collect();
    scheduler.enter(0)?;
    for (block, id) in blocks.iter_mut().zip(ids) {
        let spawned = scheduler.spawn(0, block, 32);
        expect!(spawned != 0);
        id.store(spawned, Ordering::Relaxed);
    }
    let mut last = Block::new(Box::new(|_| DONE));
    expect_eq!(scheduler.spawn(0, &mut last, 32), 0);
    expect_eq!(scheduler.run(0), 2 * COUNT as u64 - 1);
    expect_eq!(ran.load(Ordering::Relaxed), COUNT as u32);
    scheduler.leave(0);
    Ok(())
}
