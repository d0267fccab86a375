//! Whether more memory may be promised than there is: `vm.overcommit_memory`.

/// How promises are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A single request that is larger than all memory is refused.
    Heuristic,
    /// Nothing is.
    Always,
    /// All promises together stay below a part of memory.
    Limited,
}

impl Mode {
    /// The mode of a number.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Heuristic),
            1 => Some(Self::Always),
            2 => Some(Self::Limited),
            _ => None,
        }
    }

    /// Whether a request for so many bytes may be granted when `promised` have been, out of `total`, of which
    /// `max` may be promised.
    #[must_use]
    pub fn allows(self, bytes: usize, promised: usize, total: usize, max: usize) -> bool {
        match self {
            Self::Heuristic => bytes <= total,
            Self::Always => true,
            Self::Limited => promised.saturating_add(bytes) <= max,
        }
    }
}

/// How much may be promised in [`Mode::Limited`].
#[must_use]
pub fn limit(total: usize, ratio: u32) -> usize {
    (total as u128 * u128::from(ratio) / 100).try_into().unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_has_its_limit() {
        assert!(Mode::Heuristic.allows(100, 1000, 100, 50));
        assert!(!Mode::Heuristic.allows(101, 0, 100, 50));
        assert!(Mode::Always.allows(usize::MAX, usize::MAX, 100, 50));
        assert!(Mode::Limited.allows(10, 40, 100, 50));
        assert!(!Mode::Limited.allows(11, 40, 100, 50));
        assert!(!Mode::Limited.allows(usize::MAX, 40, 100, 50));
        assert_eq!(limit(usize::MAX, u32::MAX), usize::MAX);
    }

    #[test]
    fn numbers_are_modes() {
        let modes = [0, 1, 2, 3].map(Mode::from_number);
        assert_eq!(modes, [Some(Mode::Heuristic), Some(Mode::Always), Some(Mode::Limited), None]);
    }
}
