//! Sequences of operations, chosen by the fuzzer, whose outcomes are those of a plain list: which requests are granted,
//! which wait, in which order, and that whoever can go on has been woken.
#![no_main]

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use arbitrary::Arbitrary;
use heddle_range_lock::{Guard, LockFuture, Mode, RangeLock, Span, TryLockError};
use libfuzzer_sys::fuzz_target;

/// Requests at a time; more are not made, as each step looks at all of them.
const MOST: usize = 200;
/// Requests of [`Operation::TryLockMany`].
const MANY: u8 = 64;

type Key = u16;
type Lock = RangeLock<Key, u32>;

/// A range of few keys, or with bounds as they come.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Range {
    Near(Key, u8),
    Any(Option<Key>, Option<Key>),
}

impl Range {
    fn span(self) -> Span<Key> {
        match self {
            Range::Near(start, length) => {
                Span { start: Some(start), end: Some(start.saturating_add(length.into())) }
            }
            Range::Any(start, end) => Span { start, end },
        }
    }
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Operation {
    TryLock {
        range: Range,
        shared: bool,
    },
    /// Some single keys, at a distance of `stride`.
    TryLockMany {
        start: Key,
        stride: u8,
        count: u8,
        shared: bool,
    },
    /// Polled once.
    LockAsync {
        range: Range,
        shared: bool,
    },
    Poll(u8),
    /// Of a guard, or of a request that waits.
    Drop(u8),
    DropMany {
        first: u8,
        count: u8,
    },
    Downgrade(u8),
    Shrink(u8, Range),
    Split(u8, Key),
    Look(Range),
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

enum State<'a> {
    Held(Guard<'a, Key, u32>),
    Waits(Pin<Box<LockFuture<&'a Lock>>>, Arc<Flag>),
}

/// A request that is held or waits, as the list has it.
struct Entry<'a> {
    /// Its payload, and its place in the queue.
    number: u32,
    span: Span<Key>,
    shared: bool,
    state: State<'a>,
}

impl Entry<'_> {
    fn is_held(&self) -> bool {
        matches!(self.state, State::Held(_))
    }
}

struct Model<'a> {
    lock: &'a Lock,
    entries: Vec<Entry<'a>>,
    last: u32,
}

impl<'a> Model<'a> {
    /// Whether a request that is made or waits as `number` conflicts with one that came before it.
    fn is_blocked(&self, span: &Span<Key>, shared: bool, number: u32) -> bool {
        self.entries.iter().any(|other| {
            (other.is_held() || other.number < number)
                && other.number != number
                && other.span.overlaps(span)
                && !(shared && other.shared)
        })
    }

    fn try_lock(&mut self, span: Span<Key>, shared: bool) {
        self.last += 1;
        let number = self.last;
        let request = self.lock.request_as(span, number);
        match if shared { request.shared().try_lock() } else { request.try_lock() } {
            Ok(guard) => {
                assert!(!span.is_empty() && !self.is_blocked(&span, shared, number), "granted: {span:?}");
                self.entries.push(Entry { number, span, shared, state: State::Held(guard) });
            }
            Err(TryLockError::Empty) => assert!(span.is_empty()),
            Err(error) => {
                assert_eq!(error, TryLockError::Conflict);
                assert!(self.is_blocked(&span, shared, number), "refused: {span:?}");
            }
        }
    }

    fn lock_async(&mut self, span: Span<Key>, shared: bool) {
        self.last += 1;
        let number = self.last;
        let request = self.lock.request_as(span, number);
        let request = if shared { request.shared() } else { request };
        let state = State::Waits(Box::pin(request.lock_async()), Arc::default());
        self.entries.push(Entry { number, span, shared, state });
        self.poll(self.entries.len() - 1);
    }

    fn poll(&mut self, at: usize) {
        let entry = &self.entries[at];
        let (span, number) = (entry.span, entry.number);
        let is_blocked = self.is_blocked(&span, entry.shared, number);
        let entry = &mut self.entries[at];
        let State::Waits(future, flag) = &mut entry.state else { return };
        flag.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(flag.clone());
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(Ok(guard)) => {
                assert!(!is_blocked && !span.is_empty(), "granted: {span:?}");
                entry.state = State::Held(guard);
            }
            Poll::Ready(Err(_)) => {
                assert!(span.is_empty(), "refused: {span:?}");
                self.entries.swap_remove(at);
            }
            Poll::Pending => assert!(is_blocked && !span.is_empty(), "waits: {span:?}"),
        }
    }

    fn shrink(&mut self, at: usize, span: Span<Key>) {
        let entry = &mut self.entries[at];
        let State::Held(guard) = &mut entry.state else { return };
        let fits = !span.is_empty() && entry.span.covers(&span);
        assert_eq!(guard.shrink(span).is_ok(), fits);
        if fits {
            entry.span = span;
        }
    }

    fn split(&mut self, at: usize, key: Key) {
        if !self.entries[at].is_held() {
            return;
        }
        let Entry { number, span, shared, state } = self.entries.swap_remove(at);
        let State::Held(guard) = state else { return };
        let is_inside = span.contains(key) && span.start != Some(key);
        let mut add = |span, guard| {
            self.entries.push(Entry { number, span, shared, state: State::Held(guard) });
        };
        match guard.split(key) {
            Ok((low, high)) => {
                assert!(is_inside);
                add(Span { start: span.start, end: Some(key) }, low);
                add(Span { start: Some(key), end: span.end }, high);
            }
            Err((guard, _)) => {
                assert!(!is_inside);
                add(span, guard);
            }
        }
    }

    fn look(&self, span: Span<Key>) {
        let Ok(found) = self.lock.first_conflict(span) else { return assert!(span.is_empty()) };
        let overlapping = self.entries.iter().filter(|entry| entry.span.overlaps(&span));
        let first = overlapping.map(|entry| (!entry.is_held(), entry.span.start)).min();
        assert_eq!(found.map(|holder| (holder.waiting, holder.range.start)), first);
    }

    fn apply(&mut self, operation: Operation) {
        let count = self.entries.len();
        let at = |number: u8| usize::from(number) % count.max(1);
        match operation {
            Operation::TryLock { .. } | Operation::TryLockMany { .. } | Operation::LockAsync { .. }
                if count > MOST => {}
            Operation::TryLock { range, shared } => self.try_lock(range.span(), shared),
            Operation::TryLockMany { start, stride, count, shared } => {
                for number in 0..Key::from(count % MANY) {
                    let start = start.wrapping_add(number.wrapping_mul(Key::from(stride)));
                    self.try_lock(Range::Near(start, 1).span(), shared);
                }
            }
            Operation::LockAsync { range, shared } => self.lock_async(range.span(), shared),
            Operation::Look(range) => self.look(range.span()),
            _ if count == 0 => {}
            Operation::Poll(number) => self.poll(at(number)),
            Operation::Drop(number) => drop(self.entries.swap_remove(at(number))),
            Operation::DropMany { first, count: many } => {
                let first = at(first);
                self.entries.drain(first..count.min(first + usize::from(many)));
            }
            Operation::Downgrade(number) => {
                let entry = &mut self.entries[at(number)];
                if let State::Held(guard) = &mut entry.state {
                    guard.downgrade();
                    entry.shared = true;
                }
            }
            Operation::Shrink(number, range) => self.shrink(at(number), range.span()),
            Operation::Split(number, key) => self.split(at(number), key),
        }
    }

    /// The lock lists the same requests; those that nothing blocks have been woken.
    fn compare(&self) {
        let mut seen: Vec<_> = self.lock.holders().unwrap();
        assert_eq!(seen.len(), self.entries.len());
        seen.sort_unstable_by_key(|holder| (holder.payload, holder.range.start));
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.sort_unstable_by_key(|entry| (entry.number, entry.span.start));
        for (holder, entry) in seen.iter().zip(entries) {
            let mode = if entry.shared { Mode::Shared } else { Mode::Exclusive };
            let listed = (holder.payload, holder.range, holder.mode, holder.waiting);
            assert_eq!(listed, (entry.number, entry.span, mode, !entry.is_held()));
            match &entry.state {
                State::Held(guard) => assert_eq!((guard.range(), guard.mode()), (entry.span, mode)),
                State::Waits(_, flag) => {
                    let is_blocked = self.is_blocked(&entry.span, entry.shared, entry.number);
                    assert!(is_blocked || flag.0.load(Ordering::Relaxed), "asleep: {:?}", entry.span);
                }
            }
        }
    }
}

fuzz_target!(|operations: Vec<Operation>| {
    let lock = Lock::new();
    let mut model = Model { lock: &lock, entries: Vec::new(), last: 0 };
    for operation in operations {
        model.apply(operation);
        model.compare();
    }
    // Whoever waits is served when those before are gone; some may have been woken already and not looked since.
    loop {
        (0..model.entries.len()).rev().for_each(|at| model.poll(at));
        let Some(at) = model.entries.iter().position(Entry::is_held) else { break };
        drop(model.entries.swap_remove(at));
    }
    assert!(model.entries.is_empty());
    assert!(lock.try_lock(..).is_ok());
});
