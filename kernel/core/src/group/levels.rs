//! Levels in a group: those of members that are ordered, those of urgent ones before them, and two for all others.

/// Levels of members that are ordered.
pub const ORDERED: u8 = 44;
/// The level of a member that is behind all of these, at a level of the whole machine.
pub const BEHIND: u8 = ORDERED;
/// The level of a member that has nothing to do with the others: it is a realtime thread, or has a nice value.
pub const APART: u8 = BEHIND + 1;
/// The first of the levels of members that run what is urgent in the whole machine. They go before all ordered ones,
/// need no turn of the group's, and give way only to each other.
pub(super) const URGENT: u8 = APART + 1;
/// How many urgent levels there are.
pub const URGENT_LEVELS: u8 = 16;
/// The first of them, as programs and the machine count.
pub const URGENT_FIRST: u8 = 4;

/// The level of a member that runs what has this level in the whole machine, [`URGENT_FIRST`] or one of the next.
#[must_use]
pub const fn urgent(level: u8) -> u8 {
    let above = level.saturating_sub(URGENT_FIRST);
    URGENT + if above < URGENT_LEVELS { above } else { URGENT_LEVELS - 1 }
}

/// The level of a member as programs see it in [`Group::ready`](super::Group::ready): the inverse of [`urgent`].
#[must_use]
pub const fn level_for_programs(level: u8) -> u8 {
    if level >= URGENT { level - URGENT + URGENT_FIRST } else { level }
}

/// The place of a level in the order: the smaller goes first.
pub(super) const fn order_of(level: u8) -> u8 {
    if level >= URGENT { level - URGENT } else { level + URGENT_LEVELS }
}

/// Whether a member of that level uses the group's time.
pub(super) const fn uses_group(level: u8) -> bool {
    level != BEHIND && level != APART
}
