//! Threads that borrow, and threads that park.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::agree;
use crate::text::Numbers;

/// Sorts, the halves of what is large in threads of their own.
fn merge_sort(values: &mut [u64], spare: &mut [u64]) {
    const ALONE: usize = 2000;
    if values.len() <= 1 {
        return;
    }
    let middle = values.len() / 2;
    {
        let (left, right) = values.split_at_mut(middle);
        let (left_spare, right_spare) = spare.split_at_mut(middle);
        if left.len() > ALONE {
            thread::scope(|scope| {
                scope.spawn(|| merge_sort(left, left_spare));
                merge_sort(right, right_spare);
            });
        } else {
            merge_sort(left, left_spare);
            merge_sort(right, right_spare);
        }
    }
    let (mut left, mut right) = (0, middle);
    for place in spare.iter_mut() {
        let takes_left = right == values.len() || left < middle && values[left] <= values[right];
        let from = if takes_left { &mut left } else { &mut right };
        *place = values[*from];
        *from += 1;
    }
    values.copy_from_slice(spare);
}

pub fn sort() -> Result<String, String> {
    let mut numbers = Numbers::new(7);
    let mut values: Vec<u64> = (0..60_000).map(|_| numbers.next() % 1_000_000).collect();
    let mut expected = values.clone();
    expected.sort_unstable();
    let mut spare = vec![0; values.len()];
    merge_sort(&mut values, &mut spare);
    agree(values == expected, true)?;
    Ok(format!("from {} to {}", values[0], values[values.len() - 1]))
}

/// Each of a circle of threads waits until the one before has handed it the baton.
pub fn relay() -> Result<String, String> {
    const RUNNERS: usize = 5;
    const HANDOVERS: usize = 500;
    static BATON: AtomicUsize = AtomicUsize::new(0);
    let handles: Vec<std::sync::OnceLock<thread::Thread>> =
        (0..RUNNERS).map(|_| std::sync::OnceLock::new()).collect();
    let steps: Vec<AtomicUsize> = (0..RUNNERS).map(|_| AtomicUsize::new(0)).collect();
    thread::scope(|scope| {
        for number in 0..RUNNERS {
            let (handles, steps) = (&handles, &steps);
            let runner = scope.spawn(move || {
                loop {
                    let turn = BATON.load(Ordering::Acquire);
                    if turn < HANDOVERS && turn % RUNNERS != number {
                        thread::park();
                        continue;
                    }
                    if turn < HANDOVERS {
                        steps[number].fetch_add(1, Ordering::Relaxed);
                        BATON.store(turn + 1, Ordering::Release);
                    }
                    if let Some(next) = handles[(number + 1) % RUNNERS].get() {
                        next.unpark();
                    }
                    if turn >= HANDOVERS {
                        break;
                    }
                }
            });
            let _ = handles[number].set(runner.thread().clone());
            // A thread that handed over before this one was known could not wake it.
            runner.thread().unpark();
        }
    });
    let steps: Vec<usize> = steps.into_iter().map(AtomicUsize::into_inner).collect();
    agree(&steps, &vec![HANDOVERS / RUNNERS; RUNNERS])?;
    Ok(format!("{steps:?}"))
}
