//! Parts of groups in processor time: `cpu.weight` and `cpu.max`.

use core::fmt;

/// The weight of a new group.
pub const WEIGHT_DEFAULT: u32 = 100;
/// The largest weight.
pub const WEIGHT_MAX: u32 = 10_000;
/// The period of a new group.
pub const PERIOD_US: u64 = 100_000;
/// The shortest and the longest period, and the least time in one.
const PERIOD_MIN_US: u64 = 1000;
const PERIOD_MAX_US: u64 = 1_000_000;
const QUOTA_MIN_US: u64 = 1000;
/// More time than this overflows Linux's counters.
const QUOTA_MAX_US: u64 = (1 << 44) - 1;

/// The weights of the nice values -20 to 19 in Linux, of which 1024 is `cpu.weight` 100.
const NICE_WEIGHTS: [u32; 40] = [
    88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916, 9548, 7620, 6100, 4904, 3906, 3121,
    2501, 1991, 1586, 1277, 1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87, 70, 56, 45, 36, 29,
    23, 18, 15,
];

/// The weight that a text says.
#[must_use]
pub fn parse_weight(text: &str) -> Option<Result<u32, OutOfRange>> {
    let weight: u64 = text.parse().ok()?;
    Some(match u32::try_from(weight) {
        Ok(weight @ 1..=WEIGHT_MAX) => Ok(weight),
        _ => Err(OutOfRange),
    })
}

/// A number that is none of those that may be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange;

/// The weight of a nice value.
#[must_use]
pub fn weight_of_nice(nice: i64) -> Option<u32> {
    let place = usize::try_from(nice.checked_add(20)?).ok()?;
    // Rounded as Linux does.
    NICE_WEIGHTS.get(place).map(|&weight| (weight * WEIGHT_DEFAULT + 512) / 1024)
}

/// The nice value whose weight is closest.
#[must_use]
pub fn nice_of_weight(weight: u32) -> i64 {
    let weight = (u64::from(weight) * 1024 + 50) / 100;
    let distance = |&place: &usize| weight.abs_diff(NICE_WEIGHTS[place].into());
    let closest = (0..NICE_WEIGHTS.len()).min_by_key(distance).unwrap_or(20);
    closest as i64 - 20
}

/// How much time a group may use in each period, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bandwidth {
    /// The time; none for no limit.
    pub quota_us: Option<u64>,
    /// The period.
    pub period_us: u64,
}

impl Bandwidth {
    /// No limit.
    pub const NONE: Self = Self { quota_us: None, period_us: PERIOD_US };

    /// The limit after a text to a group that has `self`: `max` or a time, and a period if that is to change.
    #[must_use]
    pub fn changed(self, text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        // As in Linux what follows the digits of a number does not count, nor a period that is none.
        let number = |word: &str| word[..word.bytes().take_while(u8::is_ascii_digit).count()].parse().ok();
        let quota_us = match words.next()? {
            "max" => None,
            word => Some(number(word)?),
        };
        let period_us = words.next().and_then(number).unwrap_or(self.period_us);
        let is_possible = (PERIOD_MIN_US..=PERIOD_MAX_US).contains(&period_us)
            && quota_us.is_none_or(|quota_us| (QUOTA_MIN_US..=QUOTA_MAX_US).contains(&quota_us));
        is_possible.then_some(Self { quota_us, period_us })
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.quota_us {
            None => write!(formatter, "max {}", self.period_us),
            Some(quota_us) => write!(formatter, "{quota_us} {}", self.period_us),
        }
    }
}

#[cfg(all(test, not(heddle_loom)))]
mod tests {
    use super::*;

    #[test]
    fn weights_and_nice_values_fit() {
        assert_eq!(parse_weight("100"), Some(Ok(100)));
        assert_eq!(parse_weight("0"), Some(Err(OutOfRange)));
        assert_eq!(parse_weight("10001"), Some(Err(OutOfRange)));
        assert_eq!(parse_weight("x"), None);
        for nice in -20..20 {
            // Nice values 14 and 15 have one weight, which Linux, that keeps its own unit, tells apart.
            let weight = weight_of_nice(nice);
            assert_eq!(weight.map(nice_of_weight).map(weight_of_nice), Some(weight));
        }
        assert_eq!((weight_of_nice(0), weight_of_nice(20), weight_of_nice(-21)), (Some(100), None, None));
    }

    #[test]
    fn limits_are_read() {
        let shown = |text: &str| Bandwidth::NONE.changed(text).map(|limit| limit.to_string());
        assert_eq!(shown("max").as_deref(), Some("max 100000"));
        assert_eq!(shown("5000").as_deref(), Some("5000 100000"));
        assert_eq!(shown("5000 20000").as_deref(), Some("5000 20000"));
        assert_eq!(shown("5000 x").as_deref(), Some("5000 100000"));
        for wrong in ["", "x", "999", "5000 999", "5000 1000001", "-1"] {
            assert_eq!(shown(wrong), None);
        }
    }
}
