//! The meaning of the 64 levels for a program's coroutines.
//!
//! | levels | of a coroutine | in the order of the whole machine |
//! |---|---|---|
//! | 0–3 | | the kernel's; a program's count as 4 |
//! | 4–19 | urgent | as they are, for programs that may use realtime priorities; else as ordinary |
//! | 20–43 | ordinary | exact among the executors of one user, together one thread on each CPU; 32 is the default |
//! | 44–62 | background | as they are: behind all ordinary threads, in order |
//! | 63 | | the kernel's; a program's count as 62 |
//!
//! Within a process all 64 are different, and the smaller number goes first. Urgent levels that count as ordinary keep
//! their place among the user's.

/// Every level that counts as ordinary.
pub const ORDINARY: core::ops::RangeInclusive<u32> = 20..=43;
/// The most urgent level of a program.
pub const URGENT_FIRST: u32 = 4;
/// The least urgent level of a program.
pub const BACKGROUND_LAST: u32 = 62;

/// The number of levels that are ordered among the executors of one user: those before the background.
pub const ORDERED: u32 = 44;

/// Levels of a user's ready coroutines that go before one of `level`, as a bitmap.
#[must_use]
#[inline(always)]
pub const fn ordered_before(level: u32) -> u64 {
    (1 << if level < ORDERED { level } else { ORDERED }) - 1
}

/// Levels of ready work elsewhere that go before a coroutine of `level`, as a bitmap. A program yields if the system
/// bitmap has one of them. Ordinary work does not yield to other users' ordinary work: the clock tick decides between
/// those, and [`ordered_before`] among the user's own.
#[must_use]
#[inline(always)]
pub const fn before(level: u32) -> u64 {
    let first =
        if level >= *ORDINARY.start() && level <= *ORDINARY.end() { *ORDINARY.start() } else { level };
    if first >= 64 { u64::MAX } else { (1 << first) - 1 }
}

/// The machine-wide level of a program's coroutine of `level`: `None` for ordinary. `may_be_urgent`: the
/// program may use realtime priorities.
#[must_use]
#[inline(always)]
pub const fn in_machine(level: u32, may_be_urgent: bool) -> Option<u8> {
    if level < *ORDINARY.start() {
        let level = if level < URGENT_FIRST { URGENT_FIRST } else { level };
        return if may_be_urgent { Some(level as u8) } else { None };
    }
    if level <= *ORDINARY.end() {
        return None;
    }
    Some(if level > BACKGROUND_LAST { BACKGROUND_LAST } else { level } as u8)
}

#[cfg(test)]
mod tests {
    use super::{before, in_machine, ordered_before};

    #[test]
    fn levels_are_ordered() {
        assert_eq!(before(0), 0);
        assert_eq!(before(5), 0b11111);
        assert_eq!(before(20), (1 << 20) - 1);
        assert_eq!(before(43), (1 << 20) - 1);
        assert_eq!(before(44), (1 << 44) - 1);
        assert_eq!(before(63), u64::MAX >> 1);
        assert_eq!(before(64), u64::MAX);
    }

    #[test]
    fn ordinary_levels_are_ordered_too() {
        assert_eq!(ordered_before(0), 0);
        assert_eq!(ordered_before(32), u64::from(u32::MAX));
        assert_eq!(ordered_before(44), (1 << 44) - 1);
        assert_eq!(ordered_before(64), (1 << 44) - 1);
    }

    #[test]
    fn the_levels_a_program_may_use() {
        assert_eq!(in_machine(0, true), Some(4));
        assert_eq!(in_machine(19, true), Some(19));
        assert_eq!(in_machine(19, false), None);
        assert_eq!(in_machine(32, true), None);
        assert_eq!(in_machine(44, false), Some(44));
        assert_eq!(in_machine(63, true), Some(62));
        assert_eq!(in_machine(1000, false), Some(62));
    }
}
