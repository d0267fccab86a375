//! Inspection: the ranges that are held, and by whom.

use alloc::vec::Vec;

use crate::epoch::Epoch;
use crate::error::LockError;
use crate::lock::{Mode, RangeLock};
use crate::node::{Node, WAITING};
use crate::span::Span;
use crate::sync::Ordering;

/// A range that someone holds or waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder<T, P> {
    /// The range.
    pub range: Span<T>,
    /// How it is held or asked for.
    pub mode: Mode,
    /// Whether it is still waited for.
    pub waiting: bool,
    /// The payload that the holder attached.
    pub payload: P,
}

impl<T: Ord + Copy, P: Copy> Holder<T, P> {
    /// The description of a live node; `None` if it is released.
    fn of(node: &Node<T, P>) -> Option<Self> {
        node.is_live().then(|| Self {
            range: node.bounds.span(),
            mode: if node.is_shared() { Mode::Shared } else { Mode::Exclusive },
            waiting: node.state(Ordering::Relaxed) & WAITING != 0,
            payload: node.payload,
        })
    }
}

impl<T: Ord + Copy, P: Copy, E: Epoch> RangeLock<T, P, E> {
    /// Of those an exclusive request for `range` would conflict with now, the holder with the lowest start; a
    /// waiter only if there is no holder. Others may come and go meanwhile.
    pub fn first_conflict(&self, range: impl Into<Span<T>>) -> Result<Option<Holder<T, P>>, LockError> {
        let mut first: Option<Holder<T, P>> = None;
        self.visit(range.into(), |holder| {
            let key = |holder: &Holder<T, P>| (holder.waiting, holder.range.start);
            if first.as_ref().is_none_or(|first| key(&holder) < key(first)) {
                first = Some(holder);
            }
            Ok(())
        })?;
        Ok(first)
    }

    /// Everyone who holds or waits for a range now, by the start of the range; for people who debug.
    pub fn holders(&self) -> Result<Vec<Holder<T, P>>, LockError> {
        let mut all = Vec::new();
        self.visit(Span::from(..), |holder| {
            all.try_reserve(1).map_err(|_| LockError::OutOfMemory)?;
            all.push(holder);
            Ok(())
        })?;
        all.sort_unstable_by_key(|holder| holder.range.start);
        Ok(all)
    }

    /// Calls `visit` for all live nodes that overlap `span`, until it fails.
    fn visit(
        &self,
        span: Span<T>,
        mut visit: impl FnMut(Holder<T, P>) -> Result<(), LockError>,
    ) -> Result<(), LockError> {
        if span.is_empty() {
            return Err(LockError::Empty);
        }
        E::with(|context| {
            let mut outcome = Ok(());
            let pin = context.pin();
            self.table().walk(&pin, &span, true, |chunk| {
                let mut overlapping = chunk.nodes(&pin).filter(|node| node.bounds.span().overlaps(&span));
                outcome = overlapping.by_ref().filter_map(Holder::of).try_for_each(&mut visit);
                outcome.is_ok()
            })?;
            outcome
        })?
    }
}
