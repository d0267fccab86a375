//! One processor takes a page away while another runs a program that reads it through a cache of translations.
#![allow(unsafe_code, reason = "loom's cell reports two accesses at once")]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::*;

const SPACE: usize = 1;
const PRESENT: u64 = 1;

struct Machine {
    state: Shootdown<2>,
    users: Users<2>,
    /// The page-table entry.
    entry: AtomicU64,
    /// The page. A processor that reads it while another writes it has a stale translation.
    page: UnsafeCell<u64>,
}

impl Machine {
    /// Processor 1 loads the page table, and walks it because it wants to.
    fn load(&self, cached: &mut Option<u64>) {
        self.state.begin_root_change(1);
        self.state.note(1, &self.users);
        *cached = Some(self.entry.load(Ordering::Relaxed));
        self.state.end_root_change(1);
    }

    /// A program on processor 1: enters user mode, reads the page if its translation allows, and comes back.
    fn run(&self, cached: &mut Option<u64>) {
        self.state.enter(1, SPACE, || *cached = None);
        let translation = *cached.get_or_insert_with(|| self.entry.load(Ordering::Relaxed));
        if translation == PRESENT {
            // SAFETY: the model checks that no thread writes meanwhile.
            self.page.with(|page| unsafe { page.read() });
        }
        // An interrupt, or a system call: nothing else ends a program's turn.
        self.state.leave(1, || *cached = None);
    }

    /// Takes the page out on processor 0, asks with `post`, and uses the page for something else when the other has
    /// acknowledged.
    fn take_away(&self, post: impl FnOnce(&Self) -> Posted) {
        self.entry.store(0, Ordering::Relaxed);
        let posted = post(self);
        while !self.state.is_acknowledged(posted) {
            thread::yield_now();
        }
        // SAFETY: as above.
        self.page.with_mut(|page| unsafe { page.write(2) });
    }
}

fn machine() -> Arc<Machine> {
    Arc::new(Machine {
        state: Shootdown::new(),
        users: Users::default(),
        entry: AtomicU64::new(PRESENT),
        page: UnsafeCell::new(1),
    })
}

#[test]
fn no_page_is_reused_while_a_stale_translation_is_in_use() {
    loom::model(|| {
        let machine = machine();
        let other = thread::spawn({
            let machine = machine.clone();
            move || {
                let mut cached = None;
                machine.load(&mut cached);
                machine.run(&mut cached);
                machine.run(&mut cached);
            }
        });
        machine.take_away(|machine| machine.state.post(1..2, &machine.users));
        other.join().expect("no panic");
    });
}

#[test]
fn one_that_goes_to_another_page_table_and_back_has_nothing_stale() {
    loom::model(|| {
        let machine = machine();
        let other = thread::spawn({
            let machine = machine.clone();
            move || {
                let mut cached = None;
                machine.load(&mut cached);
                // Elsewhere, where it has nothing of this space.
                machine.state.begin_root_change(1);
                machine.state.end_root_change(1);
                machine.load(&mut cached);
                machine.run(&mut cached);
            }
        });
        machine.take_away(|machine| machine.state.post(1..2, &machine.users));
        other.join().expect("no panic");
    });
}

#[test]
fn no_page_is_reused_while_another_space_of_the_same_page_table_reaches_for_it() {
    loom::model(|| {
        let machine = machine();
        let other = thread::spawn({
            let machine = machine.clone();
            move || {
                // It has the page table loaded, and never says that it uses the space.
                let mut cached = Some(machine.entry.load(Ordering::Relaxed));
                machine.run(&mut cached);
                machine.run(&mut cached);
            }
        });
        machine.take_away(|machine| machine.state.post_to_all(1..2));
        other.join().expect("no panic");
    });
}

/// The page of [`Machine`] is a table here: the processor walks it whenever it likes, in the kernel too.
#[test]
fn no_table_is_reused_while_a_walker_may_be_in_it() {
    loom::model(|| {
        let machine = machine();
        let other = thread::spawn({
            let machine = machine.clone();
            move || {
                let mut cached = None;
                let walk = |cached: &Option<u64>| {
                    if *cached == Some(PRESENT) {
                        // SAFETY: the model checks that no thread writes meanwhile.
                        machine.page.with(|page| unsafe { page.read() });
                    }
                };
                machine.load(&mut cached);
                walk(&cached);
                machine.state.catch_up(1, || cached = None);
                walk(&cached);
                // Another page table, in the kernel: until it is loaded, the walker is in the one before.
                machine.state.begin_root_change(1);
                walk(&cached);
                cached = None;
                machine.state.end_root_change(1);
                machine.state.catch_up(1, || cached = None);
                // Idle from here on, and woken by the interrupt.
                machine.state.retire(1);
            }
        });
        machine.entry.store(0, Ordering::Relaxed);
        let posted = machine.state.post(1..2, &machine.users);
        while !machine.state.is_flushed(posted) {
            thread::yield_now();
        }
        // SAFETY: as above.
        machine.page.with_mut(|page| unsafe { page.write(2) });
        other.join().expect("no panic");
    });
}

#[test]
fn a_waiter_is_woken() {
    loom::model(|| {
        let machine = machine();
        let other = thread::spawn({
            let machine = machine.clone();
            move || machine.run(&mut None)
        });
        machine.entry.store(0, Ordering::Relaxed);
        let posted = machine.state.post_to_all(1..2);
        // The other one's turn ends by itself, so that nothing has to be kicked.
        loom::future::block_on(machine.state.flushed_in(posted, SPACE, |_| {}));
        loom::future::block_on(machine.state.acknowledged(posted, |_| {}));
        other.join().expect("no panic");
    });
}

/// The pattern that membarrier(2) is for: one side has only a compiler's fence between its store and its load.
#[test]
fn a_barrier_orders_a_plain_store_and_load_of_the_other() {
    loom::model(|| {
        let machine = machine();
        let flags = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let other = thread::spawn({
            let (machine, flags) = (machine.clone(), flags.clone());
            move || {
                machine.state.enter(1, SPACE, || {});
                flags[1].store(1, Ordering::Relaxed);
                // An interrupt may come here, and only it makes the processor pass.
                machine.state.leave(1, || {});
                machine.state.enter(1, SPACE, || {});
                let seen = flags[0].load(Ordering::Relaxed);
                machine.state.leave(1, || {});
                seen
            }
        });
        flags[0].store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let posted = machine.state.post_barrier(1..2, |space| space == SPACE);
        loom::future::block_on(machine.state.barrier_passed(posted, |_| {}));
        fence(Ordering::SeqCst);
        let seen = flags[1].load(Ordering::Relaxed);
        let seen_by_other = other.join().expect("no panic");
        assert!(seen == 1 || seen_by_other == 1, "both missed the other's store");
    });
}
