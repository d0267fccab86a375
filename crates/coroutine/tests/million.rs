//! A million coroutines at once. In a process of its own, because it takes most of the table.
#![cfg(all(feature = "std", not(heddle_loom), not(miri)))]

use heddle_coroutine::{Builder, LocalExecutor, yield_now};
use std::cell::Cell;
use std::future::pending;
use std::rc::Rc;

#[test]
fn a_million_coroutines() {
    let executor = LocalExecutor::new();
    let ended = Rc::new(Cell::new(0u32));
    let number = 1_000_000;
    for i in 0..number {
        let ended = ended.clone();
        let body = async move {
            yield_now().await;
            ended.set(ended.get() + 1);
        };
        executor.try_spawn(Builder::new().priority((i % 64) as u8), body).unwrap().detach();
    }
    executor.run();
    assert_eq!(ended.get(), number);
}

#[test]
fn a_million_coroutines_are_dropped_with_their_executor() {
    let alive = Rc::new(());
    let executor = LocalExecutor::new();
    for _ in 0..1_000_000 {
        let alive = alive.clone();
        executor
            .spawn(async move {
                let _alive = alive;
                pending::<()>().await;
            })
            .detach();
    }
    drop(executor);
    assert_eq!(Rc::strong_count(&alive), 1);
}
