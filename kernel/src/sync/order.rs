//! Lock checks of the checking build: every order is compared with those seen before, no lock is taken where
//! it must not be, and no spinlock is held where a coroutine may be left. A violation ends the machine, with both
//! places.
//!
//! - Spinlocks are held by a CPU. A CPU holds none when a coroutine returns, when it enters a program, and when it lets
//!   interrupts in; an interrupt handler takes none.
//! - Locks that suspend (of ranges) are held by a coroutine, and nobody waits for one with a spinlock in hand. A
//!   resource that is only tried makes nobody wait, so it has no order, but counts as held.

#![allow(clippy::result_large_err, reason = "a report is the end of the run")]

use core::ops::Range;
use core::panic::Location;
use core::sync::atomic::{AtomicBool, Ordering};

use heddle_kernel_core::lock_order::{Graph, Held, LockClass, Place, Report, Taken};
use spin::mutex::SpinMutex;

use crate::arch::{MAX_CPUS, cpu, interrupt};

/// The most spinlocks of a CPU, and the most suspending locks of a coroutine, that are held at once.
const HELD_MAX: usize = 16;
/// The most suspending locks that all coroutines hold at once.
const SUSPENDING_MAX: usize = 4096;

static GRAPH: Graph = Graph::new();
static CPUS: [SpinMutex<Held<HELD_MAX>>; MAX_CPUS] = [const { SpinMutex::new(Held::new()) }; MAX_CPUS];
static SUSPENDING: SpinMutex<SuspendingTable> = SpinMutex::new(SuspendingTable::new());
/// Says which coroutine runs on this CPU.
static CURRENT: spin::Once<fn() -> u64> = spin::Once::new();
/// Says whether this CPU is in an operation of a range lock.
static READING: spin::Once<fn() -> bool> = spin::Once::new();
/// After a report nothing is checked, so that it gets out.
static REPORTED: AtomicBool = AtomicBool::new(false);

fn report(report: &Report) -> ! {
    REPORTED.store(true, Ordering::SeqCst);
    panic!("{report}");
}

fn is_off() -> bool {
    REPORTED.load(Ordering::Relaxed)
}

/// Names the function that says which coroutine runs: suspending locks are held by coroutines.
pub fn set_current(current: fn() -> u64) {
    CURRENT.call_once(|| current);
}

/// Names the function that says whether this CPU reads under a pin of the range lock.
pub fn set_reading(is_reading: fn() -> bool) {
    READING.call_once(|| is_reading);
}

fn current() -> u64 {
    CURRENT.get().map_or(0, |current| current())
}

/// A spinlock is about to be taken.
#[track_caller]
pub fn taking(class: &LockClass, level: u8, lock: usize) {
    if is_off() {
        return;
    }
    let place = Location::caller();
    if interrupt::is_in_handler() || cpu::are_interrupts_on() {
        REPORTED.store(true, Ordering::SeqCst);
        panic!("lock order: {place} takes a spinlock in an interrupt handler, or with interrupts on");
    }
    let mut held = CPUS[cpu::id()].lock();
    let result = GRAPH.number(class, level).and_then(|number| {
        let wanted = Taken { class: number, lock, part: 0..usize::MAX, place };
        GRAPH.take(&held, &wanted)?;
        if held.push(wanted) { Ok(()) } else { Err(Report::Full) }
    });
    drop(held);
    if let Err(found) = result {
        report(&found);
    }
}

/// A spinlock is given back.
pub fn giving(lock: usize) {
    if !CPUS[cpu::id()].lock().remove(lock, 0) && !is_off() {
        REPORTED.store(true, Ordering::SeqCst);
        panic!("lock order: CPU {} gives back a spinlock that it does not hold", cpu::id());
    }
}

/// Ends the machine if this CPU holds a spinlock, or is in an operation of a range lock.
#[track_caller]
pub fn expect_none(what: &str) {
    if READING.get().is_some_and(|is_reading| is_reading()) && !is_off() {
        REPORTED.store(true, Ordering::SeqCst);
        panic!("lock order: a pin is held {what} at {}", Location::caller());
    }
    let first = CPUS[cpu::id()].lock().iter().next().map(|taken| taken.place);
    if let Some(place) = first
        && !is_off()
    {
        REPORTED.store(true, Ordering::SeqCst);
        panic!("lock order: the spinlock taken at {place} is held {what} at {}", Location::caller());
    }
}

/// The suspending locks that are held, by the coroutine that holds them.
struct SuspendingTable {
    entries: [Option<(u64, Taken)>; SUSPENDING_MAX],
    /// No entry from here on is in use, so that a search does not take longer than what is held asks for.
    end: usize,
}

impl SuspendingTable {
    const fn new() -> Self {
        Self { entries: [const { None }; SUSPENDING_MAX], end: 0 }
    }

    fn in_use(&self) -> impl Iterator<Item = &(u64, Taken)> {
        self.entries[..self.end].iter().flatten()
    }

    /// Takes note of a lock. One that finds no room is not checked.
    fn add(&mut self, owner: u64, taken: Taken) {
        let free = self.entries[..self.end].iter().position(Option::is_none).unwrap_or(self.end);
        if let Some(entry) = self.entries.get_mut(free) {
            *entry = Some((owner, taken));
            self.end = self.end.max(free + 1);
        }
    }

    fn remove(&mut self, gone: &Taken) {
        let is_it =
            |entry: &Option<(u64, Taken)>| entry.as_ref().is_some_and(|(_, taken)| taken.overlaps(gone));
        if let Some(index) = self.entries[..self.end].iter().position(is_it) {
            self.entries[index] = None;
        }
        while self.end > 0 && self.entries[self.end - 1].is_none() {
            self.end -= 1;
        }
    }
}

/// A suspending lock, held or wanted.
pub struct Suspending {
    taken: Taken,
}

impl Suspending {
    /// It is about to be waited for.
    pub fn waiting(class: &LockClass, lock: usize, part: Range<usize>, place: Place) {
        if is_off() {
            return;
        }
        expect_none("where a coroutine may wait");
        let mut held = Held::<HELD_MAX>::new();
        let owner = current();
        for (_, taken) in SUSPENDING.lock().in_use().filter(|(holder, _)| *holder == owner) {
            if !held.push(taken.clone()) {
                report(&Report::Full);
            }
        }
        let result = GRAPH
            .number(class, 0)
            .and_then(|number| GRAPH.take(&held, &Taken { class: number, lock, part, place }));
        if let Err(found) = result {
            report(&found);
        }
    }

    /// It is held from now on.
    #[must_use]
    pub fn had(class: &LockClass, lock: usize, part: Range<usize>, place: Place) -> Self {
        let number = GRAPH.number(class, 0).unwrap_or_else(|found| report(&found));
        let taken = Taken { class: number, lock, part, place };
        SUSPENDING.lock().add(current(), taken.clone());
        Self { taken }
    }
}

impl Drop for Suspending {
    fn drop(&mut self) {
        SUSPENDING.lock().remove(&self.taken);
    }
}

/// Deliberate mistakes, for the test that shows that each is noticed.
///
/// Returns `false` for a name of none, and otherwise only if nobody noticed.
pub fn provoke(name: &[u8]) -> bool {
    static FIRST: crate::sync::SpinLock<u32> = crate::sync::SpinLock::new(0);
    static SECOND: crate::sync::SpinLock<u32> = crate::sync::SpinLock::new(0);
    match name {
        b"inversion" => {
            let first = FIRST.lock();
            drop((SECOND.lock(), first));
            let second = SECOND.lock();
            drop((FIRST.lock(), second));
        }
        b"self-deadlock" => {
            let first = FIRST.lock();
            // Only the check keeps this from hanging.
            drop((FIRST.lock(), first));
        }
        b"handler" => {
            interrupt::provoke_handler(|| drop(FIRST.lock()));
        }
        b"await" => {
            let guard = FIRST.lock();
            expect_none("where a coroutine may wait");
            drop(guard);
        }
        _ => return false,
    }
    true
}
