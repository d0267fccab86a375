//! Sharing, splitting and taking over, one after another; and what processors may have cached.

use super::machine::{ENTRIES, LARGE, LargeMachine, TestEntry};
use super::*;
use crate::tlb::leaf_table;

fn leave(machine: &LargeMachine, slot: &AtomicU64) {
    let old = load::<TestEntry>(slot);
    store(slot, TestEntry::EMPTY);
    if old.is_large() {
        release(machine, old.address());
    } else {
        leaf_table::release(machine, old.address(), 1);
    }
}

#[test]
fn a_split_keeps_every_page_and_its_rights() {
    for write in [true, false] {
        let (machine, _) = LargeMachine::new(1);
        let entry = TestEntry::large(LARGE, write);
        let slot = AtomicU64::new(entry.0);
        let table = split(&machine, &slot);
        assert!(!table.is_large() && table.allows_stores());
        assert_eq!(load::<TestEntry>(&slot), table);
        for index in 0..ENTRIES {
            assert_eq!(machine.walk(table, index), entry.part(index));
            assert_eq!(machine.references(LARGE + index as u64), 1);
        }
        assert_eq!(split(&machine, &slot), table, "another split finds the first one's table");
        leave(&machine, &slot);
        assert_eq!(machine.used(), 0);
    }
}

#[test]
fn a_shared_large_page_is_taken_over_only_when_all_of_it_is_one_mapper_s() {
    let (machine, entry) = LargeMachine::new(3);
    let (parent, child) = (AtomicU64::new(entry.0), AtomicU64::new(0));
    share(&machine, entry, &parent, &child, machine.allocate().expect("room"));
    assert!(!load::<TestEntry>(&parent).allows_stores() && !load::<TestEntry>(&child).allows_stores());
    assert!(!take_over(&machine, &parent), "the child maps it");
    let table = split(&machine, &child);
    assert!((0..ENTRIES).all(|index| !machine.walk(table, index).allows_stores()));
    assert!((0..ENTRIES as u64).all(|page| machine.references(page) == 2));
    assert!(!take_over(&machine, &parent), "the child has its pages");
    leave(&machine, &child);
    assert!(take_over(&machine, &parent));
    assert!(load::<TestEntry>(&parent).allows_stores());
    leave(&machine, &parent);
    assert_eq!(machine.used(), 0);
}

#[test]
fn what_a_split_has_left_goes_with_its_last_page() {
    let (machine, entry) = LargeMachine::new(3);
    let (parent, child) = (AtomicU64::new(entry.0), AtomicU64::new(0));
    share(&machine, entry, &parent, &child, machine.allocate().expect("room"));
    let (first, second) = (split(&machine, &parent), split(&machine, &child));
    assert_ne!(first, second);
    assert!((0..ENTRIES as u64).all(|page| machine.references(page) == 2));
    leave(&machine, &parent);
    assert!((0..ENTRIES as u64).all(|page| machine.references(page) == 1));
    leave(&machine, &child);
    assert_eq!(machine.used(), 0);
}

/// A translation that a processor has cached.
#[derive(Clone, Copy)]
enum Cached {
    /// Of all pages.
    Large(TestEntry),
    /// Of one.
    Small(usize, TestEntry),
}

impl Cached {
    fn covers(&self, page: usize) -> bool {
        match self {
            Self::Large(_) => true,
            Self::Small(index, _) => *index == page,
        }
    }

    fn entry(&self, page: usize) -> TestEntry {
        match self {
            Self::Large(entry) => entry.part(page),
            Self::Small(_, entry) => *entry,
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// Processors cache any translation that they find, large or small, keep it as long as they like, and use any of those
/// that they have. Between operations, each of these is what the tables say.
#[test]
fn no_processor_keeps_a_large_translation_of_a_page_that_was_changed() {
    const CPUS: usize = 4;
    for seed in 1..2000 {
        let mut random = Random(seed);
        let (machine, entry) = LargeMachine::new(ENTRIES + 2);
        let slot = AtomicU64::new(entry.0);
        let mut caches: [Vec<Cached>; CPUS] = Default::default();
        for _ in 0..60 {
            let page = random.below(ENTRIES);
            match random.below(4) {
                // A processor uses a page, and keeps the translation.
                0 | 1 => {
                    let cache = &mut caches[random.below(CPUS)];
                    let found = load::<TestEntry>(&slot);
                    let walked = machine.walk(found, page);
                    if walked.is_occupied() {
                        cache.push(if found.is_large() {
                            Cached::Large(found)
                        } else {
                            Cached::Small(page, walked)
                        });
                    }
                }
                // A split alone changes nothing, and flushes nothing.
                2 => {
                    split(&machine, &slot);
                }
                // A page loses its right, or goes; then it is flushed everywhere.
                _ => {
                    let table = split(&machine, &slot);
                    let place = &machine.entries(table.address())[page];
                    let old = load::<TestEntry>(place);
                    if !old.is_occupied() {
                        continue;
                    }
                    if random.below(2) == 0 {
                        store(place, old.without_stores());
                    } else {
                        store(place, TestEntry::EMPTY);
                    }
                    caches.iter_mut().for_each(|cache| cache.retain(|cached| !cached.covers(page)));
                    if !load::<TestEntry>(place).is_occupied() {
                        leaf_table::release(&machine, old.address(), 0);
                    }
                }
            }
            for cached in caches.iter().flatten() {
                for page in (0..ENTRIES).filter(|&page| cached.covers(page)) {
                    let now = machine.walk(load(&slot), page);
                    assert_eq!(cached.entry(page), now, "page {page} in run {seed}");
                }
            }
        }
        leave(&machine, &slot);
        assert_eq!(machine.used(), 0);
    }
}
