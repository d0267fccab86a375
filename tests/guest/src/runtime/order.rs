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
