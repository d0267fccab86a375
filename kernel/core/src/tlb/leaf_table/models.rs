//! Two roots that share a table with two pages, after a fork.

use loom::sync::Arc;
use loom::thread;

use super::machine::{GARBAGE, Machine, TestEntry};
use super::*;

const TABLE: u64 = 0;
const PAGES: [u64; 2] = [1, 2];

struct Forked {
    machine: Machine,
    /// The roots' entries for the table.
    roots: [AtomicU64; 2],
}

fn forked() -> Arc<Forked> {
    let machine = Machine::new(7);
    assert_eq!(machine.allocate(), Some(TABLE));
    for (index, page) in PAGES.into_iter().enumerate() {
        assert_eq!(machine.allocate(), Some(page));
        store(&machine.entries(TABLE)[index], TestEntry::page(page, true, false));
    }
    let roots = [AtomicU64::new(TestEntry::for_table(TABLE).0), AtomicU64::new(0)];
    share(&machine, load(&roots[0]), &roots[0], &roots[1]);
    Arc::new(Forked { machine, roots })
}

impl Forked {
    /// A store to a page whose address is locked in a root: as the fault handler does it.
    fn write(&self, root: usize, index: usize, value: u64) {
        let slot = &self.roots[root];
        let table = match own(&self.machine, slot).expect("frames are left") {
            Owned::Kept(table) => table,
            Owned::Copied { new, old } => {
                // Nothing is cached here, so the old table can be left at once.
                release(&self.machine, old.address(), 1);
                new
            }
        };
        assert!(table.allows_stores());
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
        release(&self.machine, page, 0);
    }

    fn read(&self, root: usize, index: usize) -> u64 {
        let entry = look(&self.machine, &self.roots[root], index).expect("there is a table");
        assert_ne!(entry.bits(), GARBAGE);
        self.machine.page(entry.address()).get()
    }

    fn exit(&self, root: usize) {
        let old = load::<TestEntry>(&self.roots[root]);
        store(&self.roots[root], TestEntry::EMPTY);
        release(&self.machine, old.address(), 1);
    }
}

/// Runs `other` on a second thread and `this` on the first.
fn run(
    other: impl Fn(&Forked) + Copy + Send + Sync + 'static,
    this: impl Fn(&Forked) + Copy + Send + Sync + 'static,
    check: impl Fn(&Forked) + Copy + Send + Sync + 'static,
) {
    let mut model = loom::model::Builder::new();
    // Two threads that copy have more interleavings than can be tried.
    model.preemption_bound = Some(3);
    model.check(move || {
        let forked = forked();
        let thread = thread::spawn({
            let forked = forked.clone();
            move || other(&forked)
        });
        this(&forked);
        thread.join().expect("no panic");
        check(&forked);
    });
}

#[test]
fn parent_and_child_write_the_same_page() {
    run(
        |forked| forked.write(1, 0, 11),
        |forked| forked.write(0, 0, 10),
        |forked| {
            assert_eq!((forked.read(0, 0), forked.read(1, 0)), (10, 11));
            assert_eq!((forked.read(0, 1), forked.read(1, 1)), (0, 0));
            forked.exit(0);
            forked.exit(1);
            assert_eq!(forked.machine.used(), 0);
        },
    );
}

#[test]
fn the_child_reads_and_exits_while_the_parent_writes() {
    run(
        |forked| {
            assert_eq!(forked.read(1, 0), 0);
            forked.exit(1);
        },
        |forked| forked.write(0, 0, 10),
        |forked| {
            assert_eq!((forked.read(0, 0), forked.read(0, 1)), (10, 0));
            forked.exit(0);
            assert_eq!(forked.machine.used(), 0);
        },
    );
}

#[test]
fn a_child_that_has_written_leaves_the_parent_what_it_took_the_right_from() {
    run(
        |forked| {
            forked.write(1, 0, 11);
            assert_eq!(forked.read(1, 0), 11);
        },
        // Whether it copies the table or takes it over, the other page is the child's too.
        |forked| forked.write(0, 1, 10),
        |forked| {
            assert_eq!((forked.read(0, 0), forked.read(0, 1)), (0, 10));
            assert_eq!((forked.read(1, 0), forked.read(1, 1)), (11, 0));
            forked.exit(0);
            forked.exit(1);
            assert_eq!(forked.machine.used(), 0);
        },
    );
}

#[test]
fn threads_of_one_process_write_different_pages() {
    run(
        |forked| forked.write(0, 1, 11),
        |forked| forked.write(0, 0, 10),
        |forked| {
            assert_eq!((forked.read(0, 0), forked.read(0, 1)), (10, 11));
            assert_eq!((forked.read(1, 0), forked.read(1, 1)), (0, 0));
            forked.exit(0);
            forked.exit(1);
            assert_eq!(forked.machine.used(), 0);
        },
    );
}

#[test]
fn a_look_finds_no_table_that_was_released() {
    run(
        |forked| {
            forked.exit(1);
            assert_eq!(forked.read(0, 1), 0);
        },
        |forked| forked.write(0, 0, 10),
        |forked| assert_eq!((forked.read(0, 0), forked.read(0, 1)), (10, 0)),
    );
}

#[test]
fn a_look_finds_no_table_that_both_have_left() {
    run(
        |forked| assert_eq!(forked.read(0, 1), 0),
        |forked| {
            forked.write(0, 0, 10);
            forked.exit(1);
        },
        |forked| assert_eq!((forked.read(0, 0), forked.read(0, 1)), (10, 0)),
    );
}
