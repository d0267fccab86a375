//! A processor goes from a root to another one and back, with a translation that it has kept, while another processor
//! takes the page away.
#![allow(unsafe_code, reason = "loom's cell reports two accesses at once")]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::tlb::shootdown::{Shootdown, Users};
use crate::tlb::sync::{AtomicU64, Ordering};

const SPACE: usize = 1;
const PRESENT: u64 = 1;
/// The roots of processor 1: that of the space, and that of another program.
const OWN: usize = 0;
const OTHER: usize = 1;

struct Machine {
    state: Shootdown<2>,
    users: Users<2>,
    /// The page-table entry.
    entry: AtomicU64,
    /// The page. A processor that reads it while another writes it has a stale translation.
    page: UnsafeCell<u64>,
}

/// Processor 1 as the other does not see it.
struct Processor {
    kept: KeptRoots<2>,
    loaded: usize,
    /// The entry that it has cached with the tag of [`OWN`].
    cached: Option<u64>,
}

impl Processor {
    fn flush(&mut self) {
        if self.loaded == OWN {
            self.cached = None;
        }
        self.kept.mark_others(Some(self.loaded));
    }
}

impl Machine {
    /// Loads a root: the one that has the space's table, or the other.
    fn load(&self, processor: &mut Processor, wanted: usize) {
        let change = self.state.begin_root_change(1);
        let needed = |root| if root == wanted { Change::Nothing } else { Change::Replace };
        let selection = processor.kept.select(0, change, needed);
        if wanted == OWN {
            self.state.note(1, &self.users);
        }
        processor.loaded = selection.root;
        if selection.root == OWN && !selection.keeps {
            processor.cached = None;
        }
        self.state.end_root_change_keeping(1, processor.kept.oldest());
    }

    fn run(&self, processor: &mut Processor) {
        self.state.enter(1, SPACE, || processor.flush());
        let translation = *processor.cached.get_or_insert_with(|| self.entry.load(Ordering::Relaxed));
        if translation == PRESENT {
            // SAFETY: the model checks that no thread writes meanwhile.
            self.page.with(|page| unsafe { page.read() });
        }
        self.state.leave(1, || processor.flush());
    }
}

#[test]
fn no_kept_translation_of_a_composed_root_is_used_after_a_removal() {
    loom::model(|| {
        let machine = Arc::new(Machine {
            state: Shootdown::new(),
            users: Users::default(),
            entry: AtomicU64::new(PRESENT),
            page: UnsafeCell::new(1),
        });
        let mut processor = Processor { kept: KeptRoots::new(), loaded: OWN, cached: None };
        processor.kept.set_available(2);
        machine.load(&mut processor, OWN);
        machine.run(&mut processor);
        machine.load(&mut processor, OTHER);
        let other = thread::spawn({
            let machine = machine.clone();
            move || {
                // A request may come while another program's root is loaded.
                machine.state.catch_up(1, || processor.flush());
                machine.load(&mut processor, OWN);
                machine.run(&mut processor);
            }
        });
        machine.entry.store(0, Ordering::Relaxed);
        let posted = machine.state.post_to_keepers(1..2, &machine.users);
        while !machine.state.is_acknowledged(posted) {
            thread::yield_now();
        }
        // SAFETY: the model checks that nobody reads meanwhile.
        machine.page.with_mut(|page| unsafe { page.write(2) });
        other.join().expect("no panic");
    });
}
