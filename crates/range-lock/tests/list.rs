//! Any sequence of operations has the outcome that a plain list of ranges gives.

#![cfg(not(heddle_loom))]

#[path = "common/allocator.rs"]
mod allocator;

use heddle_range_lock::{Guard, Mode, RangeLock, Span, TryLockError};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Operation {
    TryLock { range: Span<u8>, shared: bool },
    Release(prop::sample::Index),
    Downgrade(prop::sample::Index),
    Shrink(prop::sample::Index, Span<u8>),
    Split(prop::sample::Index, u8),
    Look(Span<u8>),
}

fn span() -> impl Strategy<Value = Span<u8>> {
    let near =
        (any::<u8>(), 0u8..12).prop_map(|(start, length)| Span::from(start..start.saturating_add(length)));
    let any_bounds = any::<(Option<u8>, Option<u8>)>().prop_map(|(start, end)| Span { start, end });
    prop_oneof![9 => near, 1 => any_bounds]
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::*;
    let index = any::<prop::sample::Index>;
    prop_oneof![
        8 => (span(), any::<bool>()).prop_map(|(range, shared)| TryLock { range, shared }),
        3 => index().prop_map(Release),
        1 => index().prop_map(Downgrade),
        1 => (index(), span()).prop_map(|(at, range)| Shrink(at, range)),
        1 => (index(), any::<u8>()).prop_map(|(at, key)| Split(at, key)),
        1 => span().prop_map(Look),
    ]
}

/// The naive list: each guard's range and mode beside it.
type Held<'a> = Vec<(Guard<'a, u8, u32>, Span<u8>, bool)>;

fn conflicts(held: &Held<'_>, range: &Span<u8>, shared: bool) -> bool {
    held.iter().any(|(_, other, theirs)| other.overlaps(range) && !(shared && *theirs))
}

fn apply<'a>(lock: &'a RangeLock<u8, u32>, held: &mut Held<'a>, number: u32, operation: Operation) {
    match operation {
        Operation::TryLock { range, shared } => {
            let request = lock.request_as(range, number);
            let outcome = if shared { request.shared().try_lock() } else { request.try_lock() };
            match outcome {
                Ok(guard) => {
                    assert!(!range.is_empty() && !conflicts(held, &range, shared));
                    held.push((guard, range, shared));
                }
                Err(TryLockError::Empty) => assert!(range.is_empty()),
                Err(error) => {
                    assert_eq!(error, TryLockError::Conflict);
                    assert!(conflicts(held, &range, shared));
                }
            }
        }
        Operation::Look(range) if !range.is_empty() => {
            let found = lock.first_conflict(range).unwrap();
            let first =
                held.iter().filter(|(_, other, _)| other.overlaps(&range)).map(|entry| entry.1.start).min();
            assert_eq!(found.map(|holder| holder.range.start), first);
        }
        _ if held.is_empty() => {}
        Operation::Look(_) => {}
        Operation::Release(at) => drop(held.swap_remove(at.index(held.len()))),
        Operation::Downgrade(at) => {
            let at = at.index(held.len());
            held[at].0.downgrade();
            held[at].2 = true;
        }
        Operation::Shrink(at, range) => {
            let at = at.index(held.len());
            let fits = !range.is_empty() && held[at].1.covers(&range);
            assert_eq!(held[at].0.shrink(range).is_ok(), fits);
            if fits {
                held[at].1 = range;
            }
        }
        Operation::Split(at, key) => {
            let (guard, range, shared) = held.swap_remove(at.index(held.len()));
            let inside = range.contains(key) && range.start != Some(key);
            match guard.split(key) {
                Ok((low, high)) => {
                    assert!(inside);
                    held.push((low, Span { start: range.start, end: Some(key) }, shared));
                    held.push((high, Span { start: Some(key), end: range.end }, shared));
                }
                Err((guard, _)) => {
                    assert!(!inside);
                    held.push((guard, range, shared));
                }
            }
        }
    }
}

/// Operations of one case at most. Miri takes a second for a dozen.
const LONGEST: usize = if cfg!(miri) { 60 } else { 200 };

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 3 } else { 400 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn behaves_like_a_list(operations in prop::collection::vec(operation(), 1..LONGEST)) {
        let lock = RangeLock::<u8, u32>::new();
        let mut held = Held::new();
        for (number, operation) in operations.into_iter().enumerate() {
            apply(&lock, &mut held, number as u32, operation);
            let seen = lock.holders().unwrap();
            prop_assert_eq!(seen.len(), held.len());
            for (guard, range, shared) in &held {
                prop_assert_eq!(guard.range(), *range);
                let mode = if *shared { Mode::Shared } else { Mode::Exclusive };
                let same = |holder: &&heddle_range_lock::Holder<u8, u32>| {
                    holder.range == *range && holder.mode == mode && holder.payload == guard.payload()
                };
                prop_assert!(seen.iter().any(|holder| same(&holder)));
            }
        }
        drop(held);
        prop_assert!(lock.try_lock(..).is_ok());
    }
}
