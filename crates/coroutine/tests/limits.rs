//! Limits of a process, each of which ends in an error that names it. In a process of its own, because it reaches them.
#![cfg(all(feature = "std", not(heddle_loom), not(miri)))]

use heddle_coroutine::{
    Builder, Executor, LocalExecutor, MACHINE_CORES, MAX_CORES, MAX_COROUTINES, SpawnError, StartError,
    block_on, coroutine_run, move_to, yield_now,
};
use std::future::pending;
use std::sync::Mutex;

/// The tests share the process.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> impl Sized {
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn message(f: impl FnOnce() + std::panic::UnwindSafe) -> String {
    let payload = std::panic::catch_unwind(f).unwrap_err();
    payload.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[test]
fn threads_of_an_executor() {
    let _alone = alone();
    assert_eq!(Executor::try_new(MACHINE_CORES + 1).err(), Some(StartError::TooManyThreads));
    assert_eq!(message(|| drop(Executor::new(MACHINE_CORES + 1))), StartError::TooManyThreads.to_string());
    let executor = Executor::try_new(MACHINE_CORES).unwrap();
    assert_eq!(executor.threads(), MACHINE_CORES);
    assert_eq!(executor.block_on(async { 7 }), 7);
    assert_eq!(Executor::new(0).threads(), 1);
}

/// The number of the worker that runs the caller.
fn worker() -> usize {
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    name.strip_prefix("heddle-").and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[test]
fn masks_of_an_executor_of_many_threads() {
    let _alone = alone();
    let executor = Executor::new(40);
    for core in [1, 30, 31, 32, 39] {
        let there = executor.try_spawn(Builder::new().cores(1 << core), async {
            for _ in 0..3 {
                yield_now().await;
            }
            worker()
        });
        let there = executor.block_on(there.unwrap()).unwrap();
        assert!(there == core || there.min(core) >= 31, "runs on {there}, not on {core}");
        let moved = executor.spawn(async move {
            move_to(1 << core).await;
            let first = worker();
            move_to(1 << 2).await;
            (first, worker())
        });
        let (first, second) = executor.block_on(moved).unwrap();
        assert!(first == core || first.min(core) >= 31, "runs on {first}, not on {core}");
        assert_eq!(second, 2);
    }
    // The first coroutine stays on its thread, which bears no such name.
    assert_eq!(executor.block_on(async { worker() }), 0);
}

#[test]
fn threads_of_all_executors() {
    let _alone = alone();
    let mut executors = Vec::new();
    let error = loop {
        match LocalExecutor::try_new() {
            Ok(executor) => executors.push(executor),
            Err(error) => break error,
        }
    };
    assert_eq!((executors.len(), error), (MAX_CORES, StartError::TooManyCores));
    assert_eq!(coroutine_run(async {}, 0), Err(SpawnError::TooMany));
    assert_eq!(message(|| drop(LocalExecutor::new())), StartError::TooManyCores.to_string());
    // An executor of several threads that gets one of them gives it back.
    executors.pop();
    assert_eq!(Executor::try_new(2).err(), Some(StartError::TooManyCores));
    assert_eq!(block_on(async { 3 }), 3);
    assert_eq!(Executor::try_new(2).err(), Some(StartError::TooManyCores));
    drop(executors);
    assert_eq!(Executor::try_new(2).unwrap().block_on(async { 4 }), 4);
}

#[test]
#[cfg_attr(
    all(debug_assertions, not(miri)),
    ignore = "four million coroutines: `check.sh long`, `check.sh miri`"
)]
fn coroutines_of_a_process() {
    let _alone = alone();
    let executor = LocalExecutor::new();
    let mut number = 0;
    let error = loop {
        match executor.try_spawn(Builder::new(), pending::<()>()) {
            Ok(handle) => handle.detach(),
            Err(error) => break error,
        }
        number += 1;
    };
    assert_eq!((number, error), (MAX_COROUTINES - 1, SpawnError::TooMany));
    assert_eq!(message(|| block_on(pending::<()>())), SpawnError::TooMany.to_string());
    drop(executor);
    assert_eq!(block_on(async { 5 }), 5);
}
