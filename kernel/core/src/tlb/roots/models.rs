//! A processor that begins to run a program, while another takes the program's table out of its root or gives the table
//! to a child.
#![allow(unsafe_code, reason = "loom's cell reports two accesses at once")]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::fence;
use loom::thread;

use super::*;
use crate::tlb::shootdown::{Shootdown, Users};

const SLOT: usize = 0;
const TABLE: u64 = 0x1000 | PRESENT;
const OTHER: u64 = 0x2000 | PRESENT;
/// Identities of the tables.
const FIRST: usize = 1;
const SECOND: usize = 2;

struct Machine {
    state: Shootdown<2>,
    users: Users<2>,
    /// The root of processor 1.
    root: [AtomicU64; 1],
    /// The program's table, and the identity by which processors know it.
    table: AtomicU64,
    identity: Identity,
    /// The memory behind [`TABLE`].
    page: UnsafeCell<u64>,
}

impl Machine {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Shootdown::new(),
            users: Users::default(),
            root: [AtomicU64::new(0)],
            table: AtomicU64::new(TABLE),
            identity: Identity::new(FIRST),
            page: UnsafeCell::new(1),
        })
    }

    /// Processor 1 puts the program into its root, and returns the identity with which it did.
    fn activate(&self, cached: &mut Option<u64>) -> usize {
        loop {
            let identity = self.identity.get();
            let table = self.table.load(Ordering::SeqCst);
            if identity == 0 || table == 0 {
                thread::yield_now();
                if self.table.load(Ordering::SeqCst) == 0 {
                    return 0;
                }
                continue;
            }
            let change = needed(&self.root, SLOT, table);
            if change == Change::Replace {
                self.state.begin_root_change(1);
            }
            self.state.note(1, &self.users);
            if change != Change::Nothing {
                put(&self.root, SLOT, table);
            }
            if change == Change::Replace {
                *cached = None;
            }
            if self.identity.get() == identity {
                return identity;
            }
            take_out(&self.root, SLOT, table);
        }
    }

    /// The processor reads through its root, unless it has the translation cached.
    fn access(&self, cached: &mut Option<u64>) {
        let entry = *cached.get_or_insert_with(|| self.root[SLOT].load(Ordering::SeqCst));
        if entry == TABLE {
            // SAFETY: the model checks that no thread writes meanwhile.
            self.page.with(|page| unsafe { page.read() });
        }
    }

    /// Waits until processor 1 has flushed since.
    fn flushed(&self) {
        let posted = self.state.post_to_all(1..2);
        while !self.state.is_acknowledged(posted) {
            thread::yield_now();
        }
    }

    fn write(&self) {
        // SAFETY: as above.
        self.page.with_mut(|page| unsafe { page.write(2) });
    }
}

#[test]
fn no_processor_has_a_table_that_has_left() {
    loom::model(|| {
        let machine = Machine::new();
        let other = thread::spawn({
            let machine = machine.clone();
            move || {
                let mut cached = None;
                let identity = machine.activate(&mut cached);
                machine.state.enter(1, identity, || cached = None);
                // A program that enters with an old identity finds the entry gone, and faults.
                machine.access(&mut cached);
                machine.state.leave(1, || cached = None);
                // Whatever it runs next in another slot, this entry stays as it is.
                machine.state.enter(1, SECOND, || cached = None);
                machine.access(&mut cached);
                machine.state.leave(1, || cached = None);
            }
        });
        machine.table.store(0, Ordering::SeqCst);
        machine.identity.change(SECOND, || {
            take_out(&machine.root, SLOT, TABLE);
        });
        machine.flushed();
        machine.write();
        other.join().expect("no panic");
        assert_ne!(machine.root[SLOT].load(Ordering::SeqCst), TABLE);
    });
}

#[test]
fn a_copy_does_not_see_what_the_child_does_with_the_tables_it_got() {
    loom::model(|| {
        let machine = Machine::new();
        let other = thread::spawn({
            let machine = machine.clone();
            move || {
                let mut cached = None;
                loop {
                    let identity = machine.activate(&mut cached);
                    machine.state.enter(1, identity, || cached = None);
                    if machine.identity.get() == identity {
                        machine.access(&mut cached);
                        machine.state.leave(1, || cached = None);
                        break;
                    }
                    machine.state.leave(1, || cached = None);
                }
            }
        });
        // fork: the child gets the table, the parent another one.
        machine.identity.change(SECOND, || machine.table.store(OTHER, Ordering::SeqCst));
        fence(Ordering::SeqCst);
        machine.flushed();
        machine.write();
        other.join().expect("no panic");
    });
}

#[test]
fn a_processor_that_has_looked_anew_keeps_the_table() {
    loom::model(|| {
        let machine = Machine::new();
        let other = thread::spawn({
            let machine = machine.clone();
            move || {
                let mut cached = None;
                let identity = machine.activate(&mut cached);
                machine.state.enter(1, identity, || cached = None);
                machine.state.leave(1, || cached = None);
                identity
            }
        });
        // The program's isolation changes.
        machine.identity.change(SECOND, || {
            take_out(&machine.root, SLOT, TABLE);
        });
        machine.flushed();
        forget(&machine.root, SLOT, TABLE);
        let active = other.join().expect("no panic");
        // It would not look again, and fault for ever.
        if active == SECOND {
            assert_eq!(machine.root[SLOT].load(Ordering::SeqCst), TABLE);
        }
    });
}
