//! Priority inheritance: what is lent to a coroutine by those who wait for it.
//!
//! A coroutine runs at the most urgent of its own level and the levels lent to it. A held mutex lends the level of its
//! most urgent waiter to its holder, a join that of the joiner to the coroutine that it awaits. Each such source has a
//! number, and each coroutine to which something is lent has a record of the sources, under a lock of its own: there is
//! no graph, and nothing is shared by those who have nothing to do with each other.
//!
//! Along a chain of waiters a loan passes by their turns. Whoever waits and gets another level is woken, at that level;
//! its futures, polled, find that it has changed and lend anew. So every link of a chain costs one turn at the level
//! that is passed on, and a ring of waiters, which waits for ever anyway, comes to rest when levels do.

use crate::lock::Lock;
use crate::registry::{CHUNK_SHIFT, CHUNK_SLOTS, CHUNKS, Global};
use crate::sched::{Id, Table};
use crate::sync::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use crate::waker;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr;

/// Priority lent to the coroutine of one slot.
struct Record {
    /// Of the coroutine; what is recorded of another is over.
    generation: u32,
    /// The level that was lent last.
    lent: Option<u8>,
    loans: Loans,
}

/// Source and level of each loan. Most often there is one, for which no memory is taken.
struct Loans {
    first: Option<(u64, u8)>,
    others: Vec<(u64, u8)>,
}

impl Loans {
    const fn new() -> Loans {
        Loans { first: None, others: Vec::new() }
    }

    fn all(&mut self) -> impl Iterator<Item = &mut (u64, u8)> {
        self.first.iter_mut().chain(&mut self.others)
    }

    /// Removes all. Returns how many there were.
    fn clear(&mut self) -> usize {
        let number = self.all().count();
        *self = Loans::new();
        number
    }

    /// Adds or changes the loan of `source`. `false` if there is no memory for it.
    fn set(&mut self, source: u64, level: u8) -> bool {
        if let Some(loan) = self.all().find(|loan| loan.0 == source) {
            loan.1 = level;
        } else {
            if self.first.is_some() && self.others.try_reserve(1).is_err() {
                return false;
            }
            self.others.extend(self.first.replace((source, level)));
            LOANS.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Removes the loan of `source`. Whether there was one.
    fn remove(&mut self, source: u64) -> bool {
        if self.first.is_some_and(|loan| loan.0 == source) {
            self.first = self.others.pop();
        } else {
            let Some(at) = self.others.iter().position(|loan| loan.0 == source) else { return false };
            self.others.swap_remove(at);
        }
        if self.others.is_empty() {
            self.others = Vec::new();
        }
        LOANS.fetch_sub(1, Ordering::Relaxed);
        true
    }
}

type Records = [Lock<Record>; CHUNK_SLOTS as usize];

/// Chunks of records in a group.
const GROUP: usize = if cfg!(miri) { 2 } else { 64 };

type Group = [AtomicPtr<Records>; GROUP];

/// Groups of chunks of records, which lie beside the chunks of the table of slots. Memory for a group and for a chunk
/// is taken when the first record in it is needed.
static RECORDS: [AtomicPtr<Group>; CHUNKS / GROUP] =
    [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS / GROUP];

/// The last number of a source.
static SOURCES: AtomicU64 = AtomicU64::new(0);

/// Number of loans, so that those who don't use them don't look for records.
static LOANS: AtomicUsize = AtomicUsize::new(0);

/// A number for something that lends; not 0.
pub(crate) fn new_source() -> u64 {
    SOURCES.fetch_add(1, Ordering::Relaxed) + 1
}

/// The source `source` lends `level` to `target` from now on.
pub(crate) fn lend(target: Id, source: u64, level: u8) {
    let is_alive =
        || Global.slot(target.index()).is_some_and(|slot| slot.generation() == target.generation());
    // Without memory for the record nothing is lent.
    let Some(record) = record(target, true).filter(|_| is_alive()) else { return };
    let changed = record.with(|record| {
        if record.generation != target.generation() {
            LOANS.fetch_sub(record.loans.clear(), Ordering::Relaxed);
            (record.generation, record.lent) = (target.generation(), None);
        }
        record.loans.set(source, level) && record.settle(target)
    });
    if changed {
        look_again(target);
    }
}

/// The source `source` lends nothing to `target` any more.
pub(crate) fn take_back(target: Id, source: u64) {
    let Some(record) = record(target, false) else {
        // A forked child, which has lost the records.
        return waker::lend(target, None);
    };
    let changed = record.with(|record| {
        record.generation == target.generation() && record.loans.remove(source) && record.settle(target)
    });
    if changed {
        look_again(target);
    }
}

/// The own level of `id` has changed from `before` to `now`: what is lent to it is lent again, and what it lends too.
pub(crate) fn changed(id: Id, before: u8, now: u8) {
    let is_used = LOANS.load(Ordering::Relaxed) != 0;
    if let Some(record) = record(id, false).filter(|_| is_used) {
        record.with(|record| {
            if record.generation == id.generation() && record.lent.is_some() {
                waker::lend(id, record.lent);
            }
        });
    }
    if now < before || is_used && now != before {
        waker::wake(id);
    }
}

/// In a forked child: a thread that is gone may have held one of the locks.
#[cfg(all(feature = "std", feature = "scheduler"))]
pub(crate) fn start_anew() {
    RECORDS.iter().for_each(|records| records.store(ptr::null_mut(), Ordering::Relaxed));
    LOANS.store(0, Ordering::Relaxed);
}

/// `target` has another level: if it waits, it is polled at that level, and what it waits for learns of it. The caller
/// itself goes on at its new level.
fn look_again(target: Id) {
    if waker::here_for(target).and_then(|here| here.current()) != Some(target) {
        waker::wake(target);
    }
}

impl Record {
    /// Lends the most urgent of what is lent. Whether that is another than before.
    fn settle(&mut self, target: Id) -> bool {
        let lent = self.loans.all().map(|loan| loan.1).min();
        let changed = lent != self.lent;
        if changed {
            self.lent = lent;
            waker::lend(target, lent);
        }
        changed
    }
}

/// The record of `id`. Memory for it is taken if `make` says so.
fn record(id: Id, make: bool) -> Option<&'static Lock<Record>> {
    let chunk = (id.index() >> CHUNK_SHIFT) as usize;
    let group = needed(RECORDS.get(chunk / GROUP)?, make.then_some(new_group))?;
    let records = needed(&group[chunk % GROUP], make.then_some(new_records))?;
    records.get((id.index() & (CHUNK_SLOTS - 1)) as usize)
}

/// The value at `place`, or one that has just been made for it.
#[allow(unsafe_code)]
fn needed<T>(place: &'static AtomicPtr<T>, make: Option<fn() -> Option<Box<T>>>) -> Option<&'static T> {
    // SAFETY: published below, and never freed.
    if let Some(found) = unsafe { place.load(Ordering::Acquire).as_ref() } {
        return Some(found);
    }
    let make = make?;
    let fresh = Box::into_raw(make()?);
    let published = place.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire);
    let found = published.map_or_else(
        |other| {
            // SAFETY: made above, and not published.
            drop(unsafe { Box::from_raw(fresh) });
            other
        },
        |_| fresh,
    );
    // SAFETY: as above.
    unsafe { found.as_ref() }
}

#[cold]
fn new_group() -> Option<Box<Group>> {
    new_array(|| AtomicPtr::new(ptr::null_mut()))
}

#[cold]
fn new_records() -> Option<Box<Records>> {
    new_array(|| Lock::new(Record { generation: 0, lent: None, loans: Loans::new() }))
}

/// An array in memory of its own, or `None` if there is none.
fn new_array<T, const N: usize>(element: impl FnMut() -> T) -> Option<Box<[T; N]>> {
    let mut list = Vec::new();
    list.try_reserve_exact(N).ok()?;
    list.resize_with(N, element);
    list.into_boxed_slice().try_into().ok()
}
