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

/// A group's time in the present period of its limit, and how often it had none left.
#[derive(Debug)]
pub struct Period {
    /// The limit.
    pub limit: Bandwidth,
    end_ns: u64,
    /// The rest of the quota; negative if more was used.
    left_ns: i64,
    /// The time that the group had used at the last look, if there was one.
    seen_ns: Option<u64>,
    looked_ns: u64,
    is_throttled: bool,
    /// Periods in which the group used time, or waited for it.
    pub periods: u64,
    /// Those at whose end it waited.
    pub throttled_periods: u64,
    /// How long it waited.
    pub throttled_ns: u64,
}

impl Period {
    /// No limit.
    pub const UNLIMITED: Self = Self {
        limit: Bandwidth::NONE,
        end_ns: 0,
        left_ns: 0,
        seen_ns: None,
        looked_ns: 0,
        is_throttled: false,
        periods: 0,
        throttled_periods: 0,
        throttled_ns: 0,
    };

    /// Begins a period with another limit. Time that was used before counts for nothing.
    pub fn change(&mut self, limit: Bandwidth, now_ns: u64) {
        self.limit = limit;
        self.end_ns = now_ns.saturating_add(limit.period_us * NS_PER_US);
        self.left_ns = limit.quota_us.map_or(0, nanoseconds);
    }

    /// Nobody looks until the next limit.
    pub const fn forget(&mut self) {
        self.seen_ns = None;
    }

    /// The group has used so much since it was made, on so many processors. Returns whether it has to wait.
    ///
    /// The sum is not taken at one moment: a process that moves or ends meanwhile is missing, or there twice. So no
    /// more counts than the processors have had since the last look.
    pub fn look(&mut self, used_ns: u64, now_ns: u64, processors: u64) -> bool {
        let before = self.seen_ns.replace(used_ns).unwrap_or(used_ns);
        let most_ns = now_ns.saturating_sub(self.looked_ns).saturating_mul(processors);
        let new_ns = used_ns.saturating_sub(before).min(most_ns).try_into().unwrap_or(i64::MAX);
        if self.is_throttled {
            self.throttled_ns += now_ns.saturating_sub(self.looked_ns);
        }
        self.looked_ns = now_ns;
        let Some(quota) = self.limit.quota_us.map(nanoseconds) else {
            self.is_throttled = false;
            return false;
        };
        self.left_ns = self.left_ns.saturating_sub(new_ns);
        if now_ns >= self.end_ns {
            let period_ns = self.limit.period_us * NS_PER_US;
            let count = (now_ns - self.end_ns) / period_ns + 1;
            self.end_ns += count * period_ns;
            self.periods += if new_ns > 0 || self.is_throttled { count } else { 0 };
            self.throttled_periods += if self.is_throttled { count } else { 0 };
            let more = quota.saturating_mul(count.try_into().unwrap_or(i64::MAX));
            self.left_ns = self.left_ns.saturating_add(more).min(quota);
        }
        self.is_throttled = self.left_ns <= 0;
        self.is_throttled
    }
}

const NS_PER_US: u64 = 1000;

/// A time in microseconds that is at most [`QUOTA_MAX_US`].
fn nanoseconds(us: u64) -> i64 {
    us.saturating_mul(NS_PER_US).try_into().unwrap_or(i64::MAX)
}

#[cfg(all(test, not(heddle_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_group_gets_its_quota_and_no_more() {
        const MS: u64 = 1_000_000;
        // It takes all the time between two looks, unless it waits.
        for (quota, look) in [(10, 5), (50, 5), (1, 5), (33, 7), (100, 5), (20, 300)] {
            let mut period = Period::UNLIMITED;
            period.change(Bandwidth { quota_us: Some(quota * 1000), period_us: 100_000 }, 0);
            let (mut used, mut now, mut waits) = (7 * MS, 0, period.look(7 * MS, 0, 1));
            while now < 60_000 * MS {
                now += look * MS;
                used += if waits { 0 } else { look * MS };
                waits = period.look(used, now, 1);
            }
            let (got, due) = ((used / MS - 7) as i64, (quota * 600) as i64);
            assert!((got - due).abs() <= (quota + look) as i64, "{quota}, {look}: {got} of {due}");
            let is_counted = period.periods >= 599 && period.throttled_periods <= period.periods;
            assert!(is_counted && (quota == 100 || period.throttled_ns > 0));
        }
    }

    #[test]
    fn a_sum_that_jumps_counts_as_far_as_it_can_be_true() {
        const MS: u64 = 1_000_000;
        let mut period = Period::UNLIMITED;
        period.change(Bandwidth { quota_us: Some(50_000), period_us: 100_000 }, 0);
        assert!(!period.look(0, 0, 1));
        // A process with a long history was missing, and one that ends is there twice.
        assert!(!period.look(1_000_000 * MS, 5 * MS, 1));
        assert!(!period.look(1_003_000 * MS, 10 * MS, 1));
        assert!(!period.look(1_000_000 * MS, 15 * MS, 1));
        assert_eq!(period.left_ns, 40 * MS as i64);
    }

    #[test]
    fn idle_periods_do_not_count_nor_add_up() {
        let mut period = Period::UNLIMITED;
        period.change(Bandwidth { quota_us: Some(10_000), period_us: 100_000 }, 0);
        assert!(!period.look(0, 0, 2));
        assert!(!period.look(0, 10_000_000_000, 2));
        assert_eq!((period.periods, period.left_ns), (0, 10_000_000));
        assert!(period.look(10_000_000, 10_010_000_000, 2));
        // Without a limit it goes on.
        period.change(Bandwidth::NONE, 10_020_000_000);
        assert!(!period.look(20_000_000, 10_030_000_000, 2));
    }

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
