//! One order of urgency over several processes, which a double plays.
#![cfg(all(feature = "std", not(heddle_loom)))]

mod support;

use heddle_coroutine::global::{Place, Policy, Step, System};
use heddle_coroutine::{Builder, LocalExecutor, yield_now};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The page on which all processes see each other, and whose turn it is.
#[derive(Default)]
struct Page {
    bitmaps: RefCell<Vec<u64>>,
    entries: Cell<usize>,
}

/// One process's view of the page.
struct View(Rc<Page>, usize);

impl System for View {
    fn publish(&self, bitmap: u64) {
        self.0.bitmaps.borrow_mut()[self.1] = bitmap;
    }

    fn best_elsewhere(&self) -> u8 {
        let bitmaps = self.0.bitmaps.borrow();
        let others = bitmaps.iter().enumerate().filter(|(process, _)| *process != self.1);
        others.map(|(_, bitmap)| bitmap.trailing_zeros() as u8).min().unwrap_or(64)
    }

    fn give_way(&self) {
        self.0.entries.set(self.0.entries.get() + 1);
    }
}

/// Processes with an executor each, and the kernel that runs one at a time.
struct Double {
    page: Rc<Page>,
    processes: Vec<(LocalExecutor, Place<View>)>,
    log: Rc<RefCell<String>>,
}

impl Double {
    fn new(processes: usize, policy: Policy) -> Double {
        let page = Rc::new(Page { bitmaps: RefCell::new(vec![0; processes]), entries: Cell::new(0) });
        let place = |process| Place::new(View(page.clone(), process), policy);
        let processes = (0..processes).map(|process| (LocalExecutor::new(), place(process))).collect();
        Double { page: page.clone(), processes, log: Rc::default() }
    }

    fn spawn(&self, process: usize, level: u8, turns: u32, name: char) {
        let (executor, place) = &self.processes[process];
        let log = self.log.clone();
        let body = async move {
            for _ in 0..turns {
                log.borrow_mut().push(name);
                yield_now().await;
            }
        };
        executor.try_spawn(Builder::new().priority(level), body).unwrap().detach();
        place.publish(executor.statistics().ready_levels());
    }

    /// Runs to the end: the kernel picks the process with the most urgent level whenever one enters it, has nothing to
    /// do, or has had `slice` turns.
    fn run(&self, slice: u32) -> String {
        loop {
            let bitmaps = self.page.bitmaps.borrow().clone();
            let best = (0..bitmaps.len()).min_by_key(|process| bitmaps[*process].trailing_zeros()).unwrap();
            if bitmaps[best] == 0 {
                return self.log.take();
            }
            let (executor, place) = &self.processes[best];
            for _ in 0..slice {
                if executor.run_one_in(place) != Step::Ran {
                    break;
                }
            }
        }
    }
}

fn play(policy: Policy) -> (String, usize) {
    let double = Double::new(3, policy);
    double.spawn(0, 20, 2, 'c');
    double.spawn(0, 5, 2, 'a');
    double.spawn(1, 10, 3, 'b');
    double.spawn(2, 30, 1, 'd');
    (double.run(8), double.page.entries.get())
}

#[test]
fn strict_is_the_exact_order_over_all_processes() {
    let (log, entries) = play(Policy::Strict);
    assert_eq!(log, "aabbbccd");
    assert!(entries >= 1);
}

#[test]
fn relaxed_enters_the_kernel_only_when_preempted() {
    let (log, entries) = play(Policy::Relaxed);
    assert_eq!((log.as_str(), entries), ("aaccbbbd", 0));
}

#[test]
fn every_k_bounds_the_inversion() {
    for k in 1..5 {
        let (log, _) = play(Policy::Every(k));
        let inverted = log.split('b').next().unwrap().matches('c').count();
        assert!(inverted < k.max(1) as usize + 1, "{k}: {log}");
        assert_eq!(log.len(), 8);
    }
    assert_eq!(play(Policy::Every(1)).0, "aabbbccd");
}
