//! One processor takes a page away while another comes back to the page table with a translation that it has kept.
#![allow(unsafe_code, reason = "loom's cell reports two accesses at once")]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::tlb::shootdown::{Shootdown, Users};

const TABLE: usize = 1;
const OTHER: usize = 2;
const PRESENT: u64 = 1;

struct Machine {
    state: Shootdown<2>,
    users: Users<2>,
    removals: Removals,
    /// The page-table entry.
    entry: AtomicU64,
    /// The page. A processor that reads it while another writes it has a stale translation.
    page: UnsafeCell<u64>,
}

impl Machine {
    /// Processor 1 was in the table, with a translation, is in another one, and comes back.
    fn come_back(&self, tags: &mut Tags<2>, mut cached: Option<u64>) {
        self.state.begin_root_change(1);
        tags.choose(OTHER, 0);
        self.state.end_root_change(1);
        self.state.begin_root_change(1);
        self.state.note(1, &self.users);
        if !tags.choose(TABLE, self.removals.count()).keeps {
            cached = None;
        }
        self.state.end_root_change(1);
        self.state.enter(1, TABLE, || cached = None);
        let translation = cached.unwrap_or_else(|| self.entry.load(Ordering::Relaxed));
        if translation == PRESENT {
            // SAFETY: the model checks that no thread writes meanwhile.
            self.page.with(|page| unsafe { page.read() });
        }
        self.state.leave(1, || {});
    }

    /// Takes the page out on processor 0 and uses it for something else when the other has acknowledged.
    fn take_away(&self) {
        self.entry.store(0, Ordering::Relaxed);
        self.removals.add();
        let posted = self.state.post(1..2, &self.users);
        while !self.state.is_acknowledged(posted) {
            thread::yield_now();
        }
        // SAFETY: as above.
        self.page.with_mut(|page| unsafe { page.write(2) });
    }
}

#[test]
fn no_kept_translation_is_used_after_a_removal() {
    loom::model(|| {
        let machine = Arc::new(Machine {
            state: Shootdown::new(),
            users: Users::default(),
            removals: Removals::new(),
            entry: AtomicU64::new(PRESENT),
            page: UnsafeCell::new(1),
        });
        let mut tags = Tags::<2>::new();
        machine.state.note(1, &machine.users);
        tags.choose(TABLE, 0);
        let other = thread::spawn({
            let machine = machine.clone();
            move || machine.come_back(&mut tags, Some(PRESENT))
        });
        machine.take_away();
        other.join().unwrap();
    });
}
