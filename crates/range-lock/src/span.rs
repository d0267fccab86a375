//! Half-open ranges with explicit bounds.

#![allow(unsafe_code)] // Bounds that are missing are not written.

use core::fmt;
use core::mem::MaybeUninit;
use core::ops::{Bound, Range, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// A half-open range `[start, end)` over an ordered type. `None` is a bound outside the key space, below every
/// key at the start and above every key at the end, so that the smallest and the largest key can be locked too.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span<T> {
    /// The first key of the range; `None`: no lower bound.
    pub start: Option<T>,
    /// The first key behind the range; `None`: no upper bound.
    pub end: Option<T>,
}

impl<T: Ord + Copy> Span<T> {
    /// Whether the range holds no key.
    pub fn is_empty(&self) -> bool {
        matches!((self.start, self.end), (Some(start), Some(end)) if start >= end)
    }

    /// Whether the two ranges have a key in common (neither being empty).
    #[inline(always)]
    pub fn overlaps(&self, other: &Self) -> bool {
        below(self.start, other.end) && below(other.start, self.end)
    }

    /// Whether `key` lies in the range.
    pub fn contains(&self, key: T) -> bool {
        below(Some(key), self.end) && self.start.is_none_or(|start| start <= key)
    }

    /// Whether every key of `other` lies in the range.
    pub fn covers(&self, other: &Self) -> bool {
        let start = match (self.start, other.start) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(mine), Some(theirs)) => mine <= theirs,
        };
        start && reaches(self.end, other.end)
    }
}

/// Whether a range that starts at `start` has keys below `end`.
#[inline(always)]
pub(crate) fn below<T: Ord>(start: Option<T>, end: Option<T>) -> bool {
    match (start, end) {
        (Some(start), Some(end)) => start < end,
        _ => true,
    }
}

/// Whether the upper bound `limit` is at or above the upper bound `end`.
#[inline]
pub(crate) fn reaches<T: Ord>(limit: Option<T>, end: Option<T>) -> bool {
    match (limit, end) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(limit), Some(end)) => limit >= end,
    }
}

/// A range as nodes keep it: a third smaller than a [`Span`], and compared without a look at each bound's tag. Made
/// field by field: copying a [`Span`] that was just written as a whole would stall on the way through the cache.
pub(crate) struct Bounds<T> {
    pub(crate) start: MaybeUninit<T>,
    pub(crate) end: MaybeUninit<T>,
    /// Which bounds there are not: [`NO_START`], [`NO_END`].
    pub(crate) open: usize,
}

impl<T: Copy> Clone for Bounds<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Copy> Copy for Bounds<T> {}

/// There is no lower bound.
pub(crate) const NO_START: usize = 1;
/// There is no upper bound.
pub(crate) const NO_END: usize = 2;

impl<T: Ord + Copy> Bounds<T> {
    #[inline(always)]
    pub(crate) fn of(span: Span<T>) -> Self {
        let open =
            if span.start.is_none() { NO_START } else { 0 } | if span.end.is_none() { NO_END } else { 0 };
        Self {
            start: span.start.map_or(MaybeUninit::uninit(), MaybeUninit::new),
            end: span.end.map_or(MaybeUninit::uninit(), MaybeUninit::new),
            open,
        }
    }

    /// Reads bounds that were written a moment ago, each the way it was written: one load of several would wait until
    /// they have all reached the cache.
    ///
    /// # Safety
    /// `bounds` are readable, and no one writes them now.
    #[inline(always)]
    pub(crate) unsafe fn of_written(bounds: *const Self) -> Self {
        // SAFETY: see the contract.
        unsafe {
            Self {
                start: (&raw const (*bounds).start).read_volatile(),
                end: (&raw const (*bounds).end).read_volatile(),
                open: (&raw const (*bounds).open).read_volatile(),
            }
        }
    }

    #[inline(always)]
    pub(crate) fn start(&self) -> Option<T> {
        // SAFETY: a bound that is not marked missing was written.
        (self.open & NO_START == 0).then(|| unsafe { self.start.assume_init() })
    }

    #[inline(always)]
    pub(crate) fn end(&self) -> Option<T> {
        // SAFETY: as in `start`.
        (self.open & NO_END == 0).then(|| unsafe { self.end.assume_init() })
    }

    #[inline(always)]
    pub(crate) fn span(&self) -> Span<T> {
        Span { start: self.start(), end: self.end() }
    }

    /// Whether the two ranges have a key in common.
    #[inline(always)]
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        if self.open | other.open == 0 {
            // SAFETY: no bound is missing.
            return unsafe { self.overlaps_closed(other) };
        }
        self.span().overlaps(&other.span())
    }

    /// The same where no bound is missing.
    ///
    /// # Safety
    /// Both ranges have both bounds.
    #[inline(always)]
    pub(crate) unsafe fn overlaps_closed(&self, other: &Self) -> bool {
        // Not `&&`: either half alone is as good as random, and a search makes this test for many ranges.
        // SAFETY: see the contract.
        unsafe {
            (self.start.assume_init() < other.end.assume_init())
                & (other.start.assume_init() < self.end.assume_init())
        }
    }
}

impl<T> From<Range<T>> for Span<T> {
    fn from(range: Range<T>) -> Self {
        Self { start: Some(range.start), end: Some(range.end) }
    }
}

impl<T> From<RangeFrom<T>> for Span<T> {
    fn from(range: RangeFrom<T>) -> Self {
        Self { start: Some(range.start), end: None }
    }
}

impl<T> From<RangeTo<T>> for Span<T> {
    fn from(range: RangeTo<T>) -> Self {
        Self { start: None, end: Some(range.end) }
    }
}

impl<T> From<RangeFull> for Span<T> {
    fn from(_: RangeFull) -> Self {
        Self { start: None, end: None }
    }
}

/// Ranges that end with a key of their own: of whole numbers, since the first key behind it has to be known. Behind the
/// largest number there is none.
macro_rules! inclusive {
    ($($number:ty),*) => { $(
        impl From<RangeInclusive<$number>> for Span<$number> {
            fn from(range: RangeInclusive<$number>) -> Self {
                // One that was iterated to its end is empty, though its bounds do not say so.
                let end = if range.is_empty() { Some(*range.start()) } else { range.end().checked_add(1) };
                Self { start: Some(*range.start()), end }
            }
        }

        impl From<RangeToInclusive<$number>> for Span<$number> {
            fn from(range: RangeToInclusive<$number>) -> Self {
                Self { start: None, end: range.end.checked_add(1) }
            }
        }
    )* };
}

inclusive!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);

impl Span<usize> {
    /// The indexes that a range over a slice of `len` elements names; `None` if it reaches beyond.
    pub(crate) fn within(range: impl RangeBounds<usize>, len: usize) -> Option<Range<usize>> {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before.checked_add(1)?,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.checked_add(1)?,
            Bound::Excluded(&end) => end,
            Bound::Unbounded => len,
        };
        (start <= end && end <= len).then_some(start..end)
    }
}

impl<T: fmt::Debug> fmt::Debug for Span<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(start) = &self.start {
            start.fmt(f)?;
        }
        f.write_str("..")?;
        self.end.as_ref().map_or(Ok(()), |end| end.fmt(f))
    }
}

#[cfg(all(test, not(heddle_loom)))]
mod tests {
    use super::*;

    #[test]
    fn bounds_lie_outside_the_key_space() {
        let all = Span::<u8>::from(..);
        assert!(!all.is_empty() && all.contains(0) && all.contains(u8::MAX));
        assert!(Span::from(u8::MAX..).contains(u8::MAX));
        assert!(!Span::from(..0u8).overlaps(&Span::from(0u8..)));
        assert!(all.covers(&Span::from(3u8..9)) && !Span::from(3u8..9).covers(&all));
    }

    #[test]
    fn inclusive_ranges_hold_their_last_key() {
        assert_eq!(Span::from(3u8..=8), Span::from(3u8..9));
        assert_eq!(Span::from(3u8..=u8::MAX), Span::from(3u8..));
        assert_eq!(Span::from(..=-1i64), Span::from(..0i64));
        assert!(Span::from(RangeInclusive::new(5u8, 4)).is_empty());
        let mut spent = u8::MAX..=u8::MAX;
        let _ = spent.next();
        assert!(Span::from(spent).is_empty());
    }

    #[test]
    fn half_open_ranges_that_touch_do_not_overlap() {
        assert!(!Span::from(0..4).overlaps(&Span::from(4..8)));
        assert!(Span::from(0..5).overlaps(&Span::from(4..8)));
        assert!(Span::from(4..4).is_empty() && Span { start: Some(5), end: Some(4) }.is_empty());
    }
}
