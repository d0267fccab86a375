//! User interrupts: what brings an executor thread to its handler, and what the interrupted code notices of it.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::api::{self, Api, Block, DONE, Scheduler, WAITS};
use crate::harness::{OrFail, Outcome};
use crate::{expect, expect_eq};

crate::tests! {
    an_interrupt_brings_an_urgent_coroutine_forward
    an_interrupt_starts_a_restartable_section_again
    a_completion_interrupts_what_is_less_urgent
    a_completion_wakes_who_sleeps
    a_ring_is_replaced_while_calls_wait
    interrupts_leave_registers_alone
    signals_mask_interrupts
}

/// A coroutine computes without end at a background level; one that waits on the same executor is woken from a thread
/// that is none, and must run although that turn does not end.
fn an_interrupt_brings_an_urgent_coroutine_forward() -> Outcome {
    interrupt_turn(|urgent_ran, running| {
        running.store(1, Ordering::Release);
        while urgent_ran.load(Ordering::Acquire) == 0 {
            std::hint::spin_loop();
        }
    })
}

/// The same in a restartable section, in which the thread would stay for ever if the handler came back into it.
fn an_interrupt_starts_a_restartable_section_again() -> Outcome {
    interrupt_turn(|urgent_ran, running| {
        while urgent_ran.load(Ordering::Acquire) == 0 {
            crate::rseq::wait_in_section(crate::rseq::own_area(), running, true);
        }
    })
}

/// Runs `turn`, which ends when the urgent coroutine has run. It says that it is running.
fn interrupt_turn(turn: impl Fn(&AtomicU32, &AtomicU32)) -> Outcome {
    let Some(api) = Api::find() else { return Ok(()) };
    let scheduler = Scheduler::new(api, 2, 8);
    let (urgent_ran, id, running) = (AtomicU32::new(0), AtomicU64::new(0), AtomicU32::new(0));
    let mut urgent = Block::new(Box::new(|block: &api::Header| {
        if block.polls() == 1 {
            return WAITS;
        }
        urgent_ran.store(1, Ordering::Release);
        DONE
    }));
    let mut endless = Block::new(Box::new(|_| {
        turn(&urgent_ran, &running);
        DONE
    }));
    scheduler.enter(0)?;
    id.store(scheduler.spawn(0, &mut urgent, 10), Ordering::Relaxed);
    scheduler.spawn(0, &mut endless, 50);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Only when the first runs its endless turn: otherwise this one would take the urgent coroutine.
            while running.load(Ordering::Acquire) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            scheduler.enter(1).expect("an executor");
            scheduler.run(1);
            scheduler.leave(1);
        });
        scope.spawn(|| {
            while running.load(Ordering::Acquire) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(20));
            scheduler.wake(api::NO_EXECUTOR, id.load(Ordering::Relaxed));
        });
        scheduler.run(0);
    });
    expect_eq!(urgent_ran.load(Ordering::Relaxed), 1);
    expect!(api.record(0).interrupts.load(Ordering::Relaxed) >= 1);
    scheduler.leave(0);
    Ok(())
}

const RING_ORDER: u32 = 4;
const RING_WORDS: usize = 16 + (4 << RING_ORDER);

/// One executor runs a background coroutine that does not end before it is interrupted; an urgent one waits for a read.
/// The interrupt's handler records it as ready, and it has the next turn.
fn a_completion_interrupts_what_is_less_urgent() -> Outcome {
    let Some(api) = Api::find() else { return Ok(()) };
    let scheduler = Scheduler::new(api, 1, 8);
    let mut ring = [0; RING_WORDS];
    let (reader, writer) = nix::unistd::pipe().or_fail()?;
    let (result, log, is_running) = (AtomicU64::new(u64::MAX), AtomicU32::new(0), AtomicU32::new(0));
    let mut byte = 0u8;
    let place = &raw mut byte;
    let note = |digit| log.store(log.load(Ordering::Relaxed) * 10 + digit, Ordering::Relaxed);
    let mut urgent = Block::new(Box::new(|block: &api::Header| {
        if block.polls() == 1 {
            return match api.read_later(reader.as_raw_fd(), place, 10, block.id(), &result) {
                2 => WAITS,
                _ => DONE,
            };
        }
        note(2);
        DONE
    }));
    let mut background = Block::new(Box::new(|_| {
        is_running.store(1, Ordering::Release);
        while api.record(0).interrupts.load(Ordering::Acquire) == 0 {
            std::hint::spin_loop();
        }
        // Recorded by the handler already, which this turn goes on behind.
        note(if result.load(Ordering::Relaxed) == 1 { 1 } else { 9 });
        DONE
    }));
    let mut last = Block::new(Box::new(|_| {
        note(3);
        DONE
    }));
    scheduler.enter(0)?;
    expect_eq!(scheduler.ring(&mut ring, RING_ORDER), 0);
    scheduler.spawn(0, &mut urgent, 10);
    scheduler.spawn(0, &mut background, 50);
    scheduler.spawn(0, &mut last, 51);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while is_running.load(Ordering::Acquire) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(5));
            nix::unistd::write(&writer, b"z")
        });
        scheduler.run(0);
    });
    expect_eq!(log.load(Ordering::Relaxed), 123);
    expect_eq!(byte, b'z');
    scheduler.leave(0);
    Ok(())
}

/// Calls are started with one ring and end with another, or with the one before it: each result comes once.
fn a_ring_is_replaced_while_calls_wait() -> Outcome {
    const CALLS: usize = 3;
    let Some(api) = Api::find() else { return Ok(()) };
    let scheduler = Scheduler::new(api, 1, 8);
    let mut rings = [[0; RING_WORDS]; CALLS];
    let pipes: Vec<_> = (0..CALLS).map(|_| nix::unistd::pipe().or_fail()).collect::<Result<_, _>>()?;
    let results: Vec<AtomicU64> = (0..CALLS).map(|_| AtomicU64::new(u64::MAX)).collect();
    let mut bytes = [0u8; CALLS];
    let place = &raw mut bytes;
    let mut waiter = Block::new(Box::new(|block: &api::Header| {
        if block.polls() == 1 {
            for (number, (reader, _)) in pipes.iter().enumerate() {
                let byte = place.cast::<u8>().wrapping_add(number);
                if api.read_later(reader.as_raw_fd(), byte, 32, block.id(), &results[number]) != 2 {
                    return DONE;
                }
            }
            for (ring, (_, writer)) in rings[1..].iter_mut().zip(&pipes) {
                if nix::unistd::write(writer, b"r") != Ok(1) || scheduler.ring(ring, RING_ORDER) != 0 {
                    return DONE;
                }
            }
            return if nix::unistd::write(&pipes[CALLS - 1].1, b"r") == Ok(1) { WAITS } else { DONE };
        }
        if results.iter().all(|result| result.load(Ordering::Relaxed) == 1) { DONE } else { WAITS }
    }));
    scheduler.enter(0)?;
    let mut first = [0; RING_WORDS];
    expect_eq!(scheduler.ring(&mut first, RING_ORDER), 0);
    expect!(scheduler.spawn(0, &mut waiter, 32) != 0);
    scheduler.run(0);
    expect_eq!(bytes, *b"rrr");
    expect!(results.iter().all(|result| result.load(Ordering::Relaxed) == 1));
    scheduler.leave(0);
    Ok(())
}

fn a_completion_wakes_who_sleeps() -> Outcome {
    const ROUNDS: u64 = 200;
    let Some(api) = Api::find() else { return Ok(()) };
    let scheduler = Scheduler::new(api, 2, 8);
    let mut ring = [0; RING_WORDS];
    let (reader, writer) = nix::unistd::pipe().or_fail()?;
    let (result, sum) = (AtomicU64::new(0), AtomicU64::new(0));
    let mut byte = 0u8;
    let place = &raw mut byte;
    let mut waiter = Block::new(Box::new(|block: &api::Header| {
        sum.fetch_add(result.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        loop {
            if sum.load(Ordering::Relaxed) == ROUNDS {
                return DONE;
            }
            if api.read_later(reader.as_raw_fd(), place, 10, block.id(), &result) == 2 {
                return WAITS;
            }
            sum.fetch_add(1, Ordering::Relaxed);
        }
    }));
    scheduler.enter(0)?;
    expect_eq!(scheduler.ring(&mut ring, RING_ORDER), 0);
    scheduler.spawn(0, &mut waiter, 10);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            scheduler.enter(1).expect("an executor");
            scheduler.run(1);
            scheduler.leave(1);
        });
        scope.spawn(|| {
            for round in 0..ROUNDS {
                if round % 3 == 0 {
                    std::thread::sleep(Duration::from_micros(300));
                }
                let _ = nix::unistd::write(&writer, b"z");
            }
        });
        scheduler.run(0);
    });
    expect_eq!(sum.load(Ordering::Relaxed), ROUNDS);
    scheduler.leave(0);
    Ok(())
}

/// A computation in registers, flags and red zone, interrupted as often as can be.
fn interrupts_leave_registers_alone() -> Outcome {
    fn mix(rounds: u64) -> u64 {
        let mut words = [1u64, 2, 3, 5, 8, 13, 21, 34];
        let mut scale = 1.0f64;
        for round in 0..rounds {
            for index in 0..8 {
                words[index] = words[index]
                    .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                    .rotate_left(index as u32 + 1)
                    .wrapping_add(words[(index + 3) % 8]);
            }
            scale = (scale * 1.000_001 + f64::from(round as u32) * 1e-9).sqrt();
        }
        words.iter().fold(scale.to_bits(), |sum, word| sum.rotate_left(7) ^ word)
    }
    let Some(api) = Api::find() else { return Ok(()) };
    let scheduler = Scheduler::new(api, 1, 8);
    let rounds = 2_000_000;
    let expected = mix(std::hint::black_box(rounds));
    let (result, is_done) = (AtomicU64::new(0), AtomicU32::new(0));
    let mut worker = Block::new(Box::new(|_| {
        result.store(mix(std::hint::black_box(rounds)), Ordering::Relaxed);
        is_done.store(1, Ordering::Release);
        DONE
    }));
    scheduler.enter(0)?;
    scheduler.spawn(0, &mut worker, 50);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while is_done.load(Ordering::Acquire) == 0 {
                api.interrupt(0);
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        scheduler.run(0);
    });
    expect_eq!(result.load(Ordering::Relaxed), expected);
    expect!(api.record(0).interrupts.load(Ordering::Relaxed) >= 2);
    scheduler.leave(0);
    Ok(())
}

static MASK_IN_HANDLER: AtomicU32 = AtomicU32::new(u32::MAX);

fn signals_mask_interrupts() -> Outcome {
    extern "C" fn handler(_: libc::c_int) {
        let Some(api) = Api::find() else { return };
        // Posted while masked: it is told after the return.
        api.interrupt(0);
        MASK_IN_HANDLER.store(api.record(0).mask.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    let Some(api) = Api::find() else { return Ok(()) };
    let scheduler = Scheduler::new(api, 1, 8);
    scheduler.enter(0)?;
    let record = api.record(0);
    record.running.store(50, Ordering::Relaxed);
    let action = nix::sys::signal::SigAction::new(
        nix::sys::signal::SigHandler::Handler(handler),
        nix::sys::signal::SaFlags::empty(),
        nix::sys::signal::SigSet::empty(),
    );
    // SAFETY: the handler uses atomics and system calls.
    unsafe { nix::sys::signal::sigaction(nix::sys::signal::SIGUSR1, &action) }.or_fail()?;
    nix::sys::signal::raise(nix::sys::signal::SIGUSR1).or_fail()?;
    expect_eq!(MASK_IN_HANDLER.load(Ordering::Relaxed), 1);
    expect_eq!(record.mask.load(Ordering::Relaxed), 0);
    expect_eq!(record.interrupts.load(Ordering::Relaxed), 1);
    expect_eq!(record.pending.load(Ordering::Relaxed), 0);
    // In a masked stretch nothing is changed by a signal either.
    record.mask.store(1, Ordering::Relaxed);
    nix::sys::signal::raise(nix::sys::signal::SIGUSR1).or_fail()?;
    expect_eq!(record.mask.load(Ordering::Relaxed), 1);
    expect_eq!(record.interrupts.load(Ordering::Relaxed), 1);
    expect_eq!(record.pending.load(Ordering::Relaxed), 2);
    scheduler.leave(0);
    Ok(())
}
