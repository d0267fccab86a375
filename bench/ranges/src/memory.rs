//! Memory of each side as the system sees it: resident pages, so that what an allocator spends on alignment counts too.

use std::fs;

use crate::side::Side;
use crate::workload::UNIT;

/// Bytes of this process that are in memory.
///
/// # Errors
/// Where there is no `/proc`.
pub fn resident() -> std::io::Result<usize> {
    let pages = fs::read_to_string("/proc/self/statm")?;
    let pages = pages.split(' ').nth(1).and_then(|field| field.parse::<usize>().ok());
    Ok(pages.unwrap_or_default() * rustix::param::page_size())
}

/// In which order ranges are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// In none, so that sorted structures are cut as they would be.
    Shuffled,
    /// From the lowest on.
    Ascending,
    /// From the highest on.
    Descending,
}

impl Order {
    /// All of them.
    pub const ALL: [Order; 3] = [Order::Shuffled, Order::Ascending, Order::Descending];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Order::Shuffled => "shuffled",
            Order::Ascending => "ascending",
            Order::Descending => "descending",
        }
    }

    /// The one of this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Order> {
        Order::ALL.into_iter().find(|order| order.name() == name)
    }

    /// The range that is the `at`-th of so many. Some may come twice, and others not at all.
    fn range(self, at: u64, ranges: u64) -> u64 {
        match self {
            Order::Shuffled => at.wrapping_mul(0x9E37_79B9_7F4A_7C15) % ranges,
            Order::Ascending => at,
            Order::Descending => ranges - 1 - at,
        }
    }
}

/// Bytes of a side with so many ranges held, and after all were released and as many locked and released again; 0 where
/// the system does not tell. To be called in a process of its own: what earlier runs left free would be taken up.
pub fn measure<S: Side>(ranges: u64, order: Order) -> (usize, usize) {
    let mut held: Vec<Option<S::Held>> = (0..ranges).map(|_| None).collect();
    let now = || resident().unwrap_or_default();
    let before = now();
    let lock = S::new(2 * ranges * UNIT);
    for at in (0..ranges).map(|at| order.range(at, ranges)) {
        if held[at as usize].is_none() {
            held[at as usize] = lock.try_lock(2 * at * UNIT, (2 * at + 1) * UNIT);
        }
    }
    for at in 0..ranges {
        if held[at as usize].is_none() {
            held[at as usize] = lock.try_lock(2 * at * UNIT, (2 * at + 1) * UNIT);
        }
    }
    let full = now().saturating_sub(before);
    held.iter_mut().filter_map(Option::take).for_each(|held| lock.unlock(held));
    for at in (0..ranges).rev() {
        if let Some(held) = lock.try_lock(2 * at * UNIT, (2 * at + 1) * UNIT) {
            lock.unlock(held);
        }
    }
    (full, now().saturating_sub(before))
}
