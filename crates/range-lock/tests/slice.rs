//! Guards that lend the data they guard.

#![cfg(not(heddle_loom))]

#[path = "common/allocator.rs"]
mod allocator;

use heddle_range_lock::{LockError, LockedSlice, RangeLock, TryLockError};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;

#[test]
fn threads_write_parts_and_read_the_whole() {
    const PARTS: usize = 16;
    let rounds = if cfg!(miri) { 5 } else { 2000 };
    let data = LockedSlice::new(vec![0u64; PARTS * 4]);
    thread::scope(|scope| {
        for thread in 0..4 {
            let data = &data;
            scope.spawn(move || {
                for round in 0..rounds {
                    let at = (round * 7 + thread * 3) % (PARTS - 1) * 4;
                    let mut part = data.lock(at..at + 8).unwrap();
                    part.iter_mut().for_each(|value| *value += 1);
                    if round % 3 == 0 {
                        let part = part.downgrade();
                        assert_eq!(part[..4].iter().max(), part[..4].iter().min(), "written as a whole");
                    }
                }
            });
        }
        for _ in 0..rounds / 4 {
            let all = data.lock_shared(..).unwrap();
            assert!(all.chunks(4).all(|part| part.iter().all(|value| *value == part[0])));
        }
    });
    assert_eq!(data.into_inner().iter().sum::<u64>(), 4 * rounds as u64 * 8);
}

#[test]
fn ranges_are_those_of_the_slice() {
    let mut data = LockedSlice::<String>::new(["a", "b", "c"].map(String::from));
    let first = data.try_lock(..1).unwrap();
    assert_eq!(data.try_lock(0..=1).unwrap_err(), TryLockError::Conflict);
    assert_eq!(data.try_lock_shared(1..=2).unwrap().concat(), "bc");
    for range in [0..4, 4..5, 2..2] {
        assert_eq!(data.try_lock(range.clone()).unwrap_err(), TryLockError::Empty, "{range:?}");
        assert_eq!(data.lock(range).unwrap_err(), LockError::Empty);
    }
    assert_eq!(data.try_lock(2..=usize::MAX).unwrap_err(), TryLockError::Empty);
    drop(first);
    {
        let mut future = pin!(data.lock_async(1..));
        let Poll::Ready(Ok(mut rest)) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("nobody holds it");
        };
        rest[1].push('!');
        assert_eq!(format!("{rest:?} {:?}", rest.range()), r#"["b", "c!"] 1..3"#);
    }
    data.get_mut()[0].clear();
    assert_eq!(data.into_inner().concat(), "bc!");
}

#[test]
fn a_lock_says_who_holds_what() {
    let lock = RangeLock::<u64, char>::new();
    let held = lock.request_as(3..=7, 'a').try_lock().unwrap();
    let text = format!("{lock:?}");
    assert!(text.contains("3..8") && text.contains("'a'"), "{text}");
    let mut waiting = pin!(lock.request_as(..=4, 'b').lock_async());
    assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert!(format!("{waiting:?}").contains("is_queued: true"));
    assert!(format!("{lock:?}").contains("waiting: true"));
    drop(held);
}
