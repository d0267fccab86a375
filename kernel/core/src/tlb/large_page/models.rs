//! Two roots that share a large page of two pages after a fork, and threads of one root.

use loom::sync::Arc;
use loom::thread;

use super::machine::{GARBAGE, LargeMachine, TestEntry};
use super::*;
use crate::tlb::leaf_table;

struct Forked {
    machine: LargeMachine,
    roots: [AtomicU64; 2],
}

impl Forked {
    /// A store to a page whose address is locked in a root, in a mapping that allows stores to the whole large page: as
    /// the fault handler does it. Nothing is cached here.
    fn write(&self, root: usize, index: usize, value: u64) {
        let slot = &self.roots[root];
        let found = load::<TestEntry>(slot);
        if found.is_large() && (found.allows_stores() || take_over(&self.machine, slot)) {
            // The page is locked, so that its right stays, whatever becomes of the entry.
            self.machine.page(found.part(index).address()).set(value);
            return;
        }
        let table = split(&self.machine, slot);
        let entry = &self.machine.entries(table.address())[index];
        let old = load::<TestEntry>(entry);
        let page = old.address();
        if old.allows_stores() || self.machine.references(page) == 1 {
            self.machine.page(page).set(value);
            return;
        }
        let copy = self.machine.allocate().expect("frames are left");
        self.machine.page(copy).set(value);
        store(entry, TestEntry::page(copy, true, false));
        leaf_table::release(&self.machine, page, 0);
    }

    fn entry(&self, root: usize, index: usize) -> TestEntry {
        self.machine.walk(load(&self.roots[root]), index)
    }

    fn read(&self, root: usize, index: usize) -> u64 {
        let entry = self.entry(root, index);
        assert_ne!(entry.bits(), GARBAGE);
        self.machine.page(entry.address()).get()
    }

    /// Takes the right to store to a locked page away, as mprotect(2) does.
    fn forbid(&self, root: usize, index: usize) {
        let table = split(&self.machine, &self.roots[root]);
        let entry = &self.machine.entries(table.address())[index];
        store(entry, load::<TestEntry>(entry).without_stores());
    }

    /// All is locked.
    fn exit(&self, root: usize) {
        let old = load::<TestEntry>(&self.roots[root]);
        store(&self.roots[root], TestEntry::EMPTY);
        if old.is_large() {
            release(&self.machine, old.address());
        } else {
            leaf_table::release(&self.machine, old.address(), 1);
        }
    }
}

/// Runs `other` on a second thread and `this` on the first, after a fork.
fn run(
    other: impl Fn(&Forked) + Copy + Send + Sync + 'static,
    this: impl Fn(&Forked) + Copy + Send + Sync + 'static,
    check: impl Fn(&Forked) + Copy + Send + Sync + 'static,
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let (machine, entry) = LargeMachine::new(4);
        let roots = [AtomicU64::new(entry.0), AtomicU64::new(0)];
        let table = machine.allocate().expect("room");
        share(&machine, entry, &roots[0], &roots[1], table);
        let forked = Arc::new(Forked { machine, roots });
        let thread = thread::spawn({
            let forked = forked.clone();
            move || other(&forked)
        });
        this(&forked);
        thread.join().expect("no panic");
        check(&forked);
        forked.exit(0);
        forked.exit(1);
        assert_eq!(forked.machine.used(), 0);
    });
}

#[test]
fn parent_and_child_write_the_same_page_of_a_large_one() {
    run(
        |forked| forked.write(1, 0, 11),
        |forked| forked.write(0, 0, 10),
        |forked| {
            assert_eq!((forked.read(0, 0), forked.read(1, 0)), (10, 11));
            assert_eq!((forked.read(0, 1), forked.read(1, 1)), (0, 0));
        },
    );
}

#[test]
fn threads_of_one_process_split_a_large_page_once() {
    run(
        |forked| forked.write(0, 1, 11),
        |forked| forked.write(0, 0, 10),
        |forked| {
            assert_eq!((forked.read(0, 0), forked.read(0, 1)), (10, 11));
            assert_eq!((forked.read(1, 0), forked.read(1, 1)), (0, 0));
        },
    );
}

#[test]
fn a_child_that_has_split_a_large_page_keeps_what_the_parent_writes_elsewhere() {
    run(
        |forked| {
            forked.write(1, 0, 11);
            assert_eq!(forked.read(1, 0), 11);
        },
        |forked| forked.write(0, 1, 10),
        |forked| {
            assert_eq!((forked.read(0, 0), forked.read(0, 1)), (0, 10));
            assert_eq!((forked.read(1, 0), forked.read(1, 1)), (11, 0));
        },
    );
}

/// Runs two threads of a process whose child has exited.
fn run_alone(
    other: impl Fn(&Forked) + Copy + Send + Sync + 'static,
    this: impl Fn(&Forked) + Copy + Send + Sync + 'static,
    check: impl Fn(&Forked) + Copy + Send + Sync + 'static,
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let (machine, entry) = LargeMachine::new(4);
        let roots = [AtomicU64::new(entry.without_stores().0), AtomicU64::new(0)];
        let forked = Arc::new(Forked { machine, roots });
        let thread = thread::spawn({
            let forked = forked.clone();
            move || other(&forked)
        });
        this(&forked);
        thread.join().expect("no panic");
        check(&forked);
        forked.exit(0);
        assert_eq!(forked.machine.used(), 0);
    });
}

#[test]
fn a_right_that_is_forbidden_to_a_part_does_not_come_back_with_the_whole_large_page() {
    run_alone(
        |forked| forked.forbid(0, 1),
        |forked| forked.write(0, 0, 10),
        |forked| {
            assert!(!forked.entry(0, 1).allows_stores());
            assert_eq!(forked.read(0, 0), 10);
        },
    );
}

#[test]
fn a_part_that_goes_does_not_take_the_bookkeeping_of_a_large_page_with_it() {
    run_alone(
        |forked| forked.forbid(0, 1),
        |forked| {
            let table = split(&forked.machine, &forked.roots[0]);
            let entry = &forked.machine.entries(table.address())[0];
            let old = load::<TestEntry>(entry);
            store(entry, TestEntry::EMPTY);
            leaf_table::release(&forked.machine, old.address(), 0);
        },
        |forked| assert!(!forked.entry(0, 1).allows_stores()),
    );
}

#[test]
fn a_large_page_is_taken_over_when_the_other_root_has_left_it() {
    run(
        |forked| {
            assert_eq!(forked.read(1, 0), 0);
            let old = load::<TestEntry>(&forked.roots[1]);
            assert!(old.is_large());
            store(&forked.roots[1], TestEntry::EMPTY);
            release(&forked.machine, old.address());
            // Something else, for the end of the model.
            let table = forked.machine.allocate().expect("room");
            store(&forked.roots[1], TestEntry::for_table(table));
        },
        |forked| forked.write(0, 0, 10),
        |forked| assert_eq!((forked.read(0, 0), forked.read(0, 1)), (10, 0)),
    );
}
