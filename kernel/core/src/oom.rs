//! The choice of a victim when memory runs out, and its numbers in `/proc`: `oom_score_adj`, `oom_adj` and
//! `oom_score` as proc(5) has them.

/// The value that keeps a process from being chosen.
pub const ADJUSTMENT_MIN: i32 = -1000;
/// The value that makes a process the first choice.
pub const ADJUSTMENT_MAX: i32 = 1000;
/// The values of the old file `oom_adj`: never, and first.
pub const LEGACY_MIN: i32 = -17;
/// See [`LEGACY_MIN`].
pub const LEGACY_MAX: i32 = 15;

/// The points of a process with so many pages in memory, out of `total`: the one with the most is chosen. `None` if it
/// never is. The adjustment is not rounded, so that no process that has nearly all memory comes before one with
/// [`ADJUSTMENT_MAX`].
#[must_use]
pub fn points(pages: usize, adjustment: i32, total: usize) -> Option<i64> {
    (adjustment > ADJUSTMENT_MIN).then(|| pages as i64 + i64::from(adjustment) * total as i64 / 1000)
}

/// The value of `oom_score`: 0 for a process that is never chosen, 666 for one without pages and adjustment.
#[must_use]
pub fn score(points: Option<i64>, total: usize) -> i64 {
    points.map_or(0, |points| ((1000 + points * 1000 / (total.max(1) as i64)) * 2 / 3).max(0))
}

/// The adjustment that a value of `oom_adj` stands for; `None` outside of its range.
#[must_use]
pub fn from_legacy(value: i32) -> Option<i32> {
    match value {
        LEGACY_MAX => Some(ADJUSTMENT_MAX),
        LEGACY_MIN..LEGACY_MAX => Some(value * ADJUSTMENT_MAX / -LEGACY_MIN),
        _ => None,
    }
}

/// The value of `oom_adj` for an adjustment.
#[must_use]
pub fn to_legacy(adjustment: i32) -> i32 {
    (adjustment * -LEGACY_MIN / ADJUSTMENT_MAX).min(LEGACY_MAX)
}

/// An adjustment as a program writes it: a decimal number, white space around it.
#[must_use]
pub fn parse(text: &[u8]) -> Option<i32> {
    core::str::from_utf8(text).ok()?.trim_ascii().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_adjustment_counts_in_thousandths_of_memory() {
        assert_eq!(points(10, 0, 64_000), Some(10));
        assert_eq!(points(10, 500, 64_000), Some(32_010));
        assert_eq!(points(10, -999, 64_000), Some(10 - 999 * 64));
        assert_eq!(points(64_000, -1000, 64_000), None);
        assert!(points(1, 1000, 31_912) > points(31_911, 0, 31_912));
    }

    #[test]
    fn the_score_is_between_0_and_2000_thirds() {
        assert_eq!(score(points(0, 0, 64_000), 64_000), 666);
        assert_eq!(score(points(64_000, 1000, 64_000), 64_000), 2000);
        assert_eq!(score(points(0, -1000, 64_000), 64_000), 0);
        assert_eq!(score(points(0, -999, 64_000), 64_000), 0);
        assert_eq!(score(Some(5), 0), 4000);
    }

    #[test]
    fn old_values_are_scaled() {
        assert_eq!(from_legacy(15), Some(1000));
        assert_eq!(from_legacy(-17), Some(-1000));
        assert_eq!(from_legacy(-18), None);
        assert_eq!(from_legacy(16), None);
        assert_eq!(from_legacy(8), Some(470));
        assert_eq!(to_legacy(1000), 15);
        assert_eq!(to_legacy(-1000), -17);
        assert_eq!(to_legacy(470), 7);
    }

    #[test]
    fn numbers_may_have_white_space_around() {
        assert_eq!(parse(b" -5\n"), Some(-5));
        assert_eq!(parse(b"5x"), None);
        assert_eq!(parse(b""), None);
    }
}
