//! The lock that a practitioner writes first: stripes of the key space, each a mutex around an ordered map of what is
//! held there. A request takes the mutexes of all stripes that it touches, in order, so that no two requests wait in a
//! circle.

use std::collections::BTreeMap;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::side::Side;

/// Stripes of a lock.
const STRIPES: usize = 64;
/// Keys in a row that fall into one stripe: sixteen of the workloads' ranges.
const BLOCK: u64 = 16 << 10;

#[derive(Default)]
struct Held {
    /// Start to end of all that touch the stripe; disjoint.
    ranges: BTreeMap<u64, u64>,
    waiters: usize,
}

impl Held {
    fn overlaps(&self, start: u64, end: u64) -> bool {
        self.ranges.range(..end).next_back().is_some_and(|(_, &before)| before > start)
    }
}

/// On a line of its own.
#[derive(Default)]
#[repr(align(64))]
struct Stripe {
    held: Mutex<Held>,
    released: Condvar,
}

/// 64 stripes.
pub struct Stripes(Vec<Stripe>);

/// A set of stripes, a bit each.
#[derive(Clone, Copy)]
struct Touched(u64);

impl Touched {
    fn by(start: u64, end: u64) -> Self {
        let (first, last) = (start / BLOCK, (end - 1) / BLOCK);
        if last - first >= STRIPES as u64 - 1 {
            return Self(u64::MAX);
        }
        let row = u64::MAX >> (STRIPES as u64 - 1 - (last - first));
        Self(row.rotate_left((first % STRIPES as u64) as u32))
    }

    fn stripes(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let at = left.trailing_zeros() as usize;
            (left != 0).then(|| {
                left &= left - 1;
                at
            })
        })
    }
}

impl Stripes {
    /// Holds the range, or says which stripe it conflicts in, with that one's mutex.
    fn insert(&self, start: u64, end: u64) -> Result<(), (usize, MutexGuard<'_, Held>)> {
        let touched = Touched::by(start, end);
        if touched.0.is_power_of_two() {
            let at = touched.0.trailing_zeros() as usize;
            let mut held = self.0[at].held.lock();
            if held.overlaps(start, end) {
                return Err((at, held));
            }
            held.ranges.insert(start, end);
            return Ok(());
        }
        let mut all = Vec::with_capacity(touched.0.count_ones() as usize);
        for at in touched.stripes() {
            let held = self.0[at].held.lock();
            if held.overlaps(start, end) {
                return Err((at, held));
            }
            all.push(held);
        }
        all.iter_mut().for_each(|held| {
            held.ranges.insert(start, end);
        });
        Ok(())
    }
}

impl Side for Stripes {
    type Held = (u64, u64);
    const NAME: &'static str = "stripes";
    const SHARES: bool = false;

    fn new(_: u64) -> Self {
        Self((0..STRIPES).map(|_| Stripe::default()).collect())
    }

    fn parameters(&self) -> String {
        format!(
            "{STRIPES} stripes of parking_lot's Mutex and Condvar around a BTreeMap, {BLOCK} keys in a row"
        )
    }

    #[inline]
    fn try_lock(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        self.insert(start, end).is_ok().then_some((start, end))
    }

    #[inline]
    fn lock(&self, start: u64, end: u64) -> (u64, u64) {
        while let Err((at, mut held)) = self.insert(start, end) {
            held.waiters += 1;
            self.0[at].released.wait(&mut held);
            held.waiters -= 1;
        }
        (start, end)
    }

    #[inline]
    fn unlock(&self, (start, end): (u64, u64)) {
        // One after the other: who finds some of them free does not get the rest before they are.
        for at in Touched::by(start, end).stripes() {
            let mut held = self.0[at].held.lock();
            held.ranges.remove(&start);
            let waiters = held.waiters;
            drop(held);
            if waiters > 0 {
                self.0[at].released.notify_all();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_touches_the_stripes_of_its_blocks() {
        let touched = |start, end| Touched::by(start, end).stripes().collect::<Vec<_>>();
        assert_eq!(touched(0, 1), [0]);
        assert_eq!(touched(BLOCK - 1, BLOCK + 1), [0, 1]);
        assert_eq!(touched(63 * BLOCK, 65 * BLOCK), [0, 63]);
        assert_eq!(touched(BLOCK, 65 * BLOCK).len(), STRIPES);
        assert_eq!(touched(0, u64::MAX).len(), STRIPES);
    }
}
