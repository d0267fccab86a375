//! One processor takes a page away while the host stops another, whose program reads the page through a cache of
//! translations, and lets it go on.
#![allow(unsafe_code, reason = "loom's cell reports two accesses at once")]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::tlb::shootdown::{Shootdown, Users};
use crate::tlb::sync::AtomicU64;

const SPACE: usize = 1;
const PRESENT: u64 = 1;

struct Machine {
    state: Shootdown<2>,
    users: Users<2>,
    byte: Preempted,
    /// The page-table entry.
    entry: AtomicU64,
    /// The page. A processor that reads it while another writes it has a stale translation.
    page: UnsafeCell<u64>,
}

impl Machine {
    fn read(&self, cached: &mut Option<u64>) {
        let translation = *cached.get_or_insert_with(|| self.entry.load(Ordering::Relaxed));
        if translation == PRESENT {
            // SAFETY: the model checks that no thread writes meanwhile.
            self.page.with(|page| unsafe { page.read() });
        }
    }

    /// A program on processor 1, which the host stops between two reads.
    fn run(&self) {
        let mut cached = None;
        self.state.begin_root_change(1);
        self.state.note(1, &self.users);
        self.state.end_root_change(1);
        self.state.enter(1, SPACE, || cached = None);
        self.read(&mut cached);
        self.byte.stops();
        if self.byte.goes_on() {
            cached = None;
        }
        self.read(&mut cached);
        self.state.leave(1, || cached = None);
    }

    /// Takes the page out on processor 0 and uses it for something else when the other has acknowledged, or its host
    /// has promised to flush.
    fn take_away(&self) {
        self.entry.store(0, Ordering::Relaxed);
        let posted = self.state.post(1..2, &self.users);
        if !self.state.is_acknowledged(posted) && self.byte.ask_for_flush() {
            self.state.note_flushed(posted, 1);
        }
        while !self.state.is_acknowledged(posted) {
            thread::yield_now();
        }
        // SAFETY: as above.
        self.page.with_mut(|page| unsafe { page.write(2) });
    }
}

#[test]
fn no_page_is_reused_before_the_host_of_a_stopped_processor_flushes() {
    loom::model(|| {
        let machine = Arc::new(Machine {
            state: Shootdown::new(),
            users: Users::default(),
            byte: Preempted::new(),
            entry: AtomicU64::new(PRESENT),
            page: UnsafeCell::new(1),
        });
        let other = thread::spawn({
            let machine = machine.clone();
            move || machine.run()
        });
        machine.take_away();
        other.join().expect("no panic");
    });
}
