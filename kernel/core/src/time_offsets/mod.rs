//! The offsets of a time namespace, and the text by which they are set: `/proc/PID/timens_offsets`,
//! time_namespaces(7).

#[cfg(all(test, not(heddle_loom)))]
mod tests;

const NS_PER_SECOND: i64 = 1_000_000_000;
/// The most seconds that Linux's clocks can show.
const SECONDS_MAX: i64 = i64::MAX / NS_PER_SECOND;

/// How far clocks are ahead of those of the first namespace, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeOffsets {
    /// `CLOCK_MONOTONIC` and its relatives.
    pub monotonic_ns: i64,
    /// `CLOCK_BOOTTIME`.
    pub boottime_ns: i64,
}

/// Offsets that are not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetError {
    /// `EINVAL`: the text says none.
    Invalid,
    /// `ERANGE`: a clock would be below zero, or come near its end.
    OutOfRange,
}

/// An offset as it is shown: seconds, rounded down, and nanoseconds.
#[must_use]
pub const fn parts(offset_ns: i64) -> (i64, i64) {
    (offset_ns.div_euclid(NS_PER_SECOND), offset_ns.rem_euclid(NS_PER_SECOND))
}

impl TimeOffsets {
    /// These with what the lines of a text set, when the clocks of the first namespace show `now_ns`.
    ///
    /// # Errors
    /// The text is not taken, as a whole.
    pub fn changed(mut self, text: &str, now_ns: u64) -> Result<Self, OffsetError> {
        const LINES_MAX: usize = 2;
        let mut count = 0;
        for line in text.split_terminator('\n') {
            count += 1;
            let mut words = line.split_ascii_whitespace();
            let (clock, seconds, nanoseconds) = (words.next(), words.next(), words.next());
            let number = |word: Option<&str>| word.and_then(|word| word.parse::<i64>().ok());
            let seconds = number(seconds).ok_or(OffsetError::Invalid)?;
            let nanoseconds = number(nanoseconds).filter(|part| (0..NS_PER_SECOND).contains(part));
            let nanoseconds = nanoseconds.ok_or(OffsetError::Invalid)?;
            let place = match clock {
                Some("monotonic" | "1") => &mut self.monotonic_ns,
                Some("boottime" | "7") => &mut self.boottime_ns,
                _ => return Err(OffsetError::Invalid),
            };
            if !(-SECONDS_MAX..=SECONDS_MAX).contains(&seconds) {
                return Err(OffsetError::OutOfRange);
            }
            let now = i128::from(now_ns)
                + i128::from(seconds) * i128::from(NS_PER_SECOND)
                + i128::from(nanoseconds);
            if !(0..=i128::from(SECONDS_MAX / 2) * i128::from(NS_PER_SECOND)).contains(&now) {
                return Err(OffsetError::OutOfRange);
            }
            *place = seconds.saturating_mul(NS_PER_SECOND).saturating_add(nanoseconds);
        }
        if (1..=LINES_MAX).contains(&count) { Ok(self) } else { Err(OffsetError::Invalid) }
    }
}
