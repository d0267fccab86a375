//! Sharing, taking over, copying and leaving, one after another.

use super::machine::{GARBAGE, Machine, TestEntry};
use super::*;

/// A table with one private and one shared page that may be stored to, and the entry for it.
fn filled(machine: &Machine) -> (AtomicU64, [u64; 2]) {
    let table = machine.allocate().expect("room");
    let pages = [false, true].map(|shared| {
        let page = machine.allocate().expect("room");
        store(&machine.entries(table)[usize::from(shared)], TestEntry::page(page, true, shared));
        page
    });
    (AtomicU64::new(TestEntry::for_table(table).0), pages)
}

fn leave(machine: &Machine, slot: &AtomicU64) {
    let old = load::<TestEntry>(slot);
    store(slot, TestEntry::EMPTY);
    release(machine, old.address(), 1);
}

#[test]
fn an_own_table_stays_as_it_is() {
    let machine = Machine::new(3);
    let (slot, _) = filled(&machine);
    let before = load::<TestEntry>(&slot);
    assert_eq!(own(&machine, &slot), Ok(Owned::Kept(before)));
    leave(&machine, &slot);
    assert_eq!(machine.used(), 0);
}

#[test]
fn a_copy_has_the_pages_without_the_right_to_store_to_private_ones() {
    let machine = Machine::new(4);
    let (slot, child) = (filled(&machine), AtomicU64::new(0));
    let (slot, pages) = slot;
    share(&machine, load(&slot), &slot, &child);
    assert_eq!(look(&machine, &child, 0), look(&machine, &slot, 0));
    let Ok(Owned::Copied { new, old }) = own(&machine, &slot) else { panic!("shared by two") };
    assert_eq!(load::<TestEntry>(&slot), new);
    for slot in [&slot, &child] {
        let entry = |index| look(&machine, slot, index).expect("there is a table");
        assert!(!entry(0).allows_stores() && entry(1).allows_stores());
        assert_eq!([entry(0).address(), entry(1).address()], pages);
    }
    assert!(pages.iter().all(|&page| machine.references(page) == 2));
    release(&machine, old.address(), 1);
    // The child is the last one now.
    assert!(matches!(own(&machine, &child), Ok(Owned::Kept(_))));
    leave(&machine, &slot);
    leave(&machine, &child);
    assert_eq!(machine.used(), 0);
    assert_eq!(machine.page(pages[0]).get(), GARBAGE);
}

#[test]
fn without_memory_for_a_copy_the_table_stays_shared() {
    let machine = Machine::new(3);
    let ((slot, _), child) = (filled(&machine), AtomicU64::new(0));
    share(&machine, load(&slot), &slot, &child);
    let before = load::<TestEntry>(&slot);
    assert_eq!(own(&machine, &slot), Err(OutOfMemory));
    assert_eq!(load::<TestEntry>(&slot), before);
    leave(&machine, &child);
    assert!(matches!(own(&machine, &slot), Ok(Owned::Kept(_))));
}
