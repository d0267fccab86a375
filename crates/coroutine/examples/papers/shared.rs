//! Experiment A: a shared variable that everybody waits for.

use heddle_coroutine::{block_on, spawn_local, yield_now};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The numbers 1 to `number` in the order of creation.
pub fn order(number: usize, shuffled: bool) -> Vec<usize> {
    let mut order: Vec<usize> = (1..=number).collect();
    let mut state = 88_172_645_463_325_252u64;
    for last in (1..if shuffled { number } else { 0 }).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(last, (state % (last as u64 + 1)) as usize);
    }
    order
}

pub fn coroutines(order: &[usize]) {
    block_on(async {
        let shared = Rc::new(Cell::new(0));
        let start = |number: &usize| {
            let (shared, number) = (shared.clone(), *number);
            spawn_local(async move {
                while shared.get() != number {
                    yield_now().await;
                }
                shared.set(number + 1);
            })
        };
        let handles: Vec<_> = order.iter().map(start).collect();
        shared.set(1);
        for handle in handles {
            handle.await.expect("no coroutine panics");
        }
        assert_eq!(shared.get(), order.len() + 1);
    });
}

pub fn threads(order: &[usize]) {
    let shared = Arc::new(AtomicUsize::new(0));
    let start = |number: &usize| {
        let (shared, number) = (shared.clone(), *number);
        let body = move || {
            while shared.load(Ordering::Acquire) != number {
                thread::yield_now();
            }
            shared.store(number + 1, Ordering::Release);
        };
        thread::Builder::new().stack_size(64 << 10).spawn(body).expect("a thread")
    };
    let handles: Vec<_> = order.iter().map(start).collect();
    shared.store(1, Ordering::Release);
    handles.into_iter().for_each(|handle| handle.join().expect("no thread panics"));
    assert_eq!(shared.load(Ordering::Relaxed), order.len() + 1);
}
