//! Half-open ranges with explicit bounds.

use core::fmt;
use core::ops::{Range, RangeFrom, RangeFull, RangeTo};

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
        // Not `&&`: either half alone is as good as random, and a search makes this test for many ranges.
        below(self.start, other.end) & below(other.start, self.end)
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
    fn half_open_ranges_that_touch_do_not_overlap() {
        assert!(!Span::from(0..4).overlaps(&Span::from(4..8)));
        assert!(Span::from(0..5).overlaps(&Span::from(4..8)));
        assert!(Span::from(4..4).is_empty() && Span { start: Some(5), end: Some(4) }.is_empty());
    }
}
