//! The strict order of heddle-rt's coroutines.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use heddle_rt::wait::channel;
use heddle_rt::{Builder, SpawnBuilder, current_id, set_priority, try_spawn, yield_now};
use nix::sys::wait::WaitStatus;

use crate::expect;
use crate::harness::{Outcome, in_child, is_heddle};

crate::tests! {
    what_is_left_with_a_stuck_thread_goes_before_the_reserves_own
    what_may_run_on_one_thread_and_in_reserve_goes_on
}

/// Levels, the most urgent first.
const URGENT: u8 = 46;
const BETWEEN: u8 = 49;
const LAST: u8 = 53;
/// Turns of what is between that may pass.
const TURNS_MAX: u32 = 1000;

/// The least urgent coroutine keeps its thread, so the one in reserve runs what a call has made ready. From then on
/// that always has something to do, and makes something more urgent ready, which has last run on the other thread.
fn what_is_left_with_a_stuck_thread_goes_before_the_reserves_own() -> Outcome {
    if !is_heddle() {
        return Ok(());
    }
    let ended = in_child(|| Builder::new().threads(1).strict(true).run(stuck()).unwrap_or(2))?;
    expect!(matches!(ended, WaitStatus::Exited(_, 0)));
    Ok(())
}

/// 0: the urgent coroutine has run in time.
async fn stuck() -> std::io::Result<i32> {
    let is_done = Arc::new(AtomicBool::new(false));
    let is_late = Arc::new(AtomicBool::new(false));
    let (go, wait) = channel(1);
    let done = is_done.clone();
    let urgent = async move {
        let _: Option<()> = wait.recv().await;
        done.store(true, Ordering::SeqCst);
    };
    let (done, late) = (is_done.clone(), is_late.clone());
    let between = async move {
        let _ = heddle_rt::nanosleep(Duration::from_millis(20).into()).await;
        let _ = go.send(()).await;
        for _ in 0..TURNS_MAX {
            if done.load(Ordering::SeqCst) {
                return;
            }
            yield_now().await;
        }
        late.store(true, Ordering::SeqCst);
    };
    let error = |error: heddle_rt::SpawnError| std::io::Error::other(error.to_string());
    try_spawn(SpawnBuilder::new().priority(URGENT), urgent).map_err(error)?.detach();
    try_spawn(SpawnBuilder::new().priority(BETWEEN), between).map_err(error)?.detach();
    if let Some(id) = current_id() {
        set_priority(id, LAST);
    }
    // Both have their first turn.
    yield_now().await;
    while !is_done.load(Ordering::SeqCst) && !is_late.load(Ordering::SeqCst) {
        std::hint::spin_loop();
    }
    Ok(i32::from(is_late.load(Ordering::SeqCst)))
}

/// Pairs that talk to each other, each kept to one thread and the one in reserve, among others that have long turns and
/// no such bound. One that the reserve has run, and which another thread finds there, is not that thread's to take.
fn what_may_run_on_one_thread_and_in_reserve_goes_on() -> Outcome {
    const THREADS: u64 = 3;
    const ROUNDS: u32 = 200;
    if !is_heddle() {
        return Ok(());
    }
    let ended = in_child(|| {
        let main = async {
            let mut players = Vec::new();
            for place in 0..3 * THREADS {
                let cores = 1 << (place % THREADS) | 1 << THREADS;
                let level = [URGENT, BETWEEN, LAST][(place / THREADS) as usize];
                let (to_one, one) = channel(1);
                let (to_other, other) = channel(1);
                let first = async move {
                    for round in 0..ROUNDS {
                        let _ = to_other.send(round).await;
                        let _ = one.recv().await;
                        if round % 8 == 0 {
                            let _ = heddle_rt::nanosleep(Duration::from_micros(300).into()).await;
                        }
                    }
                };
                let second = async move {
                    while let Some(round) = other.recv().await {
                        let _ = to_one.send(round).await;
                    }
                };
                let builder = SpawnBuilder::new().cores(cores);
                players.push(try_spawn(builder.priority(level), first));
                players.push(try_spawn(builder.priority(LAST), second));
            }
            let is_done = Arc::new(AtomicBool::new(false));
            for _ in 0..THREADS {
                let done = is_done.clone();
                let long = async move {
                    while !done.load(Ordering::SeqCst) {
                        (0..50_000).for_each(|_| std::hint::spin_loop());
                        yield_now().await;
                    }
                };
                players.push(try_spawn(SpawnBuilder::new().priority(LAST + 1), long));
            }
            let others = players.split_off(players.len() - THREADS as usize);
            for player in players {
                let Ok(player) = player else { return 1 };
                let _ = player.await;
            }
            is_done.store(true, Ordering::SeqCst);
            for other in others {
                let Ok(other) = other else { return 1 };
                let _ = other.await;
            }
            0
        };
        Builder::new().threads(THREADS as usize).strict(true).run(main)
    })?;
    expect!(matches!(ended, WaitStatus::Exited(_, 0)));
    Ok(())
}
