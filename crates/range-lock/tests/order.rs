//! Bounded overtaking: the bound is zero. Any sequence of arrivals, releases and cancellations is served as a queue
//! in the order of arrival serves it, and whoever may go on has been woken.

#![cfg(not(heddle_loom))]

#[path = "common/allocator.rs"]
mod allocator;

use heddle_range_lock::{Guard, LockFuture, RangeLock, Span, TryLockError};
use proptest::prelude::*;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

#[derive(Clone, Debug)]
enum Operation {
    /// Asks for a range and waits.
    Arrive(Span<u8>, bool),
    /// Asks for a range and does not wait.
    Try(Span<u8>, bool),
    /// Releases or withdraws one of the requests.
    Leave(prop::sample::Index),
    /// Makes a request shared, if it is held.
    Downgrade(prop::sample::Index),
}

fn span() -> impl Strategy<Value = Span<u8>> {
    let near = (0u8..40, 1u8..12).prop_map(|(start, length)| Span::from(start..start + length));
    let open = (0u8..40).prop_map(|start| Span::from(start..));
    prop_oneof![15 => near, 1 => open, 1 => Just(Span::from(..))]
}

fn operation() -> impl Strategy<Value = Operation> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        4 => (span(), any::<bool>()).prop_map(|(span, shared)| Operation::Arrive(span, shared)),
        1 => (span(), any::<bool>()).prop_map(|(span, shared)| Operation::Try(span, shared)),
        4 => index().prop_map(Operation::Leave),
        1 => index().prop_map(Operation::Downgrade),
    ]
}

/// A waker that remembers.
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

enum Stage<'a> {
    Waiting(LockFuture<&'a RangeLock<u8>>),
    Held(Guard<'a, u8>),
}

/// A live request; a queue of them is the specification.
struct Entry<'a> {
    span: Span<u8>,
    shared: bool,
    stage: Stage<'a>,
    woken: Arc<Flag>,
}

fn conflict(earlier: &[Entry<'_>], span: &Span<u8>, shared: bool) -> bool {
    earlier.iter().any(|entry| entry.span.overlaps(span) && !(entry.shared && shared))
}

/// Polls everyone who waits, in the order of arrival: ready exactly those whom no earlier request is in the way of,
/// and none of these without a wake.
fn serve(queue: &mut [Entry<'_>], newest_arrived: bool) {
    for at in 0..queue.len() {
        let free = !conflict(&queue[..at], &queue[at].span, queue[at].shared);
        let is_new = newest_arrived && at + 1 == queue.len();
        let entry = &mut queue[at];
        let Stage::Waiting(future) = &mut entry.stage else { continue };
        let woken = entry.woken.0.swap(false, Ordering::Relaxed);
        assert!(is_new || woken || !free, "nobody woke {:?}, which is free", entry.span);
        let waker = Waker::from(entry.woken.clone());
        match Pin::new(future).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(guard) => {
                assert!(free, "{:?} overtook an earlier request", entry.span);
                entry.stage = Stage::Held(guard.unwrap());
            }
            Poll::Pending => assert!(!free, "{:?} waits for nobody", entry.span),
        }
    }
}

fn apply<'a>(lock: &'a RangeLock<u8>, queue: &mut Vec<Entry<'a>>, operation: Operation) {
    let woken = Arc::new(Flag(AtomicBool::new(false)));
    match operation {
        Operation::Arrive(span, shared) => {
            let request = lock.request(span);
            let future = if shared { request.shared() } else { request }.lock_async();
            queue.push(Entry { span, shared, stage: Stage::Waiting(future), woken });
            serve(queue, true);
        }
        Operation::Try(span, shared) => {
            let request = lock.request(span);
            match if shared { request.shared() } else { request }.try_lock() {
                Ok(guard) => {
                    assert!(!conflict(queue, &span, shared), "{span:?} overtook an earlier request");
                    queue.push(Entry { span, shared, stage: Stage::Held(guard), woken });
                }
                Err(error) => {
                    assert_eq!(error, TryLockError::Conflict);
                    assert!(conflict(queue, &span, shared));
                }
            }
        }
        _ if queue.is_empty() => {}
        Operation::Leave(at) => {
            let at = at.index(queue.len());
            drop(queue.remove(at));
            serve(queue, false);
        }
        Operation::Downgrade(at) => {
            let at = at.index(queue.len());
            if let Stage::Held(guard) = &mut queue[at].stage {
                guard.downgrade();
                queue[at].shared = true;
                serve(queue, false);
            }
        }
    }
}

/// Operations of one case at most.
const LONGEST: usize = if cfg!(miri) { 40 } else { 150 };

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 3 } else { 400 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn requests_are_served_in_the_order_of_their_arrival(
        operations in prop::collection::vec(operation(), 1..LONGEST),
    ) {
        let lock = RangeLock::<u8>::new();
        let mut queue = Vec::new();
        for operation in operations {
            apply(&lock, &mut queue, operation);
            prop_assert_eq!(lock.holders().unwrap().len(), queue.len());
        }
        drop(queue);
        prop_assert!(lock.try_lock(..).is_ok());
    }
}
