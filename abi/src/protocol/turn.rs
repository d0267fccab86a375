//! The way of an executor's thread from one turn to the next, where the program says so in its own words.
//!
//! The rule is that **what the record says is never behind what the thread knows or has been told**. The kernel works
//! the thread's level out from the record at any moment, and whoever has lost the processor at the level of its last
//! turn, with an urgent result in its hands, waits until those between have nothing left. It holds because of this:
//!
//! - Taking the reasons to look gives back the level that was lent with them. From before that, and before results are
//!   taken out, until the record says what has come of them, the thread's level is the most urgent it may have.
//! - What others left with the executor and what results have made ready is all in its queue when the levels are
//!   published. From `settle` on, others tell of what they leave.
//! - The thread gives way at the level of the turn that comes, not of the one before, and looks again afterwards.
//!
//! Nothing is known of the level of a thread that ran nothing, so it comes to its turn before others of its user. It
//! compares in any case before it runs something: that turn may be another's.

use crate::protocol::{Ordering, record};
use crate::user_sched::ExecutorRecord;

/// The program's part.
pub trait TurnSource {
    /// Whether results have come that nobody has taken out.
    fn has_results(&self) -> bool;
    /// Takes them out, which makes coroutines ready.
    fn take_results(&self);
    /// Applies what others have left with the executor, and has them tell of what they leave from now on. Returns the
    /// levels that are ready, a bit each.
    fn settle(&self) -> u64;
    /// The reasons to look are about to be taken.
    fn attends(&self);
    /// Whether something elsewhere in the machine goes before a coroutine of `level`.
    fn is_before(&self, level: u32) -> bool;
    /// Lets that run.
    fn give_way(&self);
}

/// The level of a thread that has been told of something and does not know yet what it is.
const MOST_URGENT: u32 = 0;

/// The thread, between two turns: looks at what has come, publishes what is ready and what it is about to run, and in
/// the strict order, or if it has run nothing, gives way to what is more urgent elsewhere. If nothing is ready it runs
/// nothing.
#[inline(always)]
pub fn before_turn(record: &ExecutorRecord, is_strict: bool, source: &impl TurnSource) {
    let mut compares = is_strict || record::running(record).is_none();
    loop {
        let is_told = record.pending.load(Ordering::Relaxed) != 0;
        if is_told || source.has_results() {
            if is_strict {
                record.running.store(MOST_URGENT, Ordering::Relaxed);
            }
            if is_told {
                source.attends();
                record::attend(record);
            }
            source.take_results();
        }
        let ready = source.settle();
        if record.ready.load(Ordering::Relaxed) != ready {
            record.ready.store(ready, Ordering::Relaxed);
        }
        if ready == 0 {
            return record::end_turn(record);
        }
        let level = ready.trailing_zeros();
        if !record::begin_turn(record, level) {
            continue;
        }
        // Once: the page may be a moment old, and what it shows may be for another processor.
        if !compares || !source.is_before(level) {
            return;
        }
        source.give_way();
        compares = false;
    }
}

/// The thread: a coroutine of `level` has become ready in its queue. In the midst of a turn of a less urgent one the
/// thread may lose the processor, and is to get it back for this.
#[inline(always)]
pub fn queued(record: &ExecutorRecord, level: u8) {
    if u32::from(level) < record.running.load(Ordering::Relaxed) {
        let ready = record.ready.load(Ordering::Relaxed) | 1u64 << (level & 63);
        record.ready.store(ready, Ordering::Relaxed);
    }
}

/// The thread: the turn is of a coroutine of `level`, which may have become ready after the look before it.
#[inline(always)]
pub fn turn_begins(record: &ExecutorRecord, level: u8) {
    if u32::from(level) < record.running.load(Ordering::Relaxed) {
        record.running.store(level.into(), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(heddle_loom)))]
mod tests {
    use super::{TurnSource, before_turn, queued};
    use crate::protocol::record;
    use crate::user_sched::{ExecutorRecord, PENDING_COMPLETION};
    use core::cell::{Cell, RefCell};
    use core::sync::atomic::Ordering;
    use std::vec::Vec;

    /// No level.
    const NONE: u32 = 64;
    /// The least urgent coroutine, which is always ready, and the level of something elsewhere that goes before it.
    const LAST: u8 = 53;
    const ELSEWHERE: u32 = 50;
    /// Levels at which a call ends: before and behind what is elsewhere, and none.
    const ENDS: [u32; 4] = [NONE, 46, 49, 52];
    /// Moments at which one may end.
    const MOMENTS: u32 = 6;

    /// A thread and the kernel around it, which may end a call, and work the thread's level out, whenever the thread
    /// asks its program for something.
    struct Machine {
        record: ExecutorRecord,
        /// The calls that end at each moment, as digits.
        script: Cell<u32>,
        left: Cell<u32>,
        ring: RefCell<Vec<u8>>,
        queue: Cell<u64>,
        /// The level that is lent.
        boost: Cell<u32>,
        yields: Cell<u32>,
    }

    impl Machine {
        fn new(script: u32, last_turn: u32) -> Machine {
            let record = ExecutorRecord::new();
            record.running.store(last_turn, Ordering::Relaxed);
            let queue = Cell::new(1 << LAST);
            record.ready.store(1 << LAST, Ordering::Relaxed);
            let (ring, boost) = (RefCell::default(), Cell::new(NONE));
            let (script, left) = (Cell::new(script), Cell::new(MOMENTS));
            Machine { record, script, left, ring, queue, boost, yields: Cell::new(0) }
        }

        /// As the kernel does: see `completed`, `refresh` and `level` of its executors.
        fn moment(&self) {
            if self.left.get() != 0 {
                self.left.set(self.left.get() - 1);
                let level = ENDS[(self.script.get() % ENDS.len() as u32) as usize];
                self.script.set(self.script.get() / ENDS.len() as u32);
                if level != NONE {
                    self.ring.borrow_mut().push(level as u8);
                    let _ = record::post(&self.record, PENDING_COMPLETION);
                    self.boost.set(self.boost.get().min(level));
                }
            }
            let level = self.level();
            assert!(level <= self.known(), "level {level}, with {} ready", self.known());
        }

        fn level(&self) -> u32 {
            if self.record.pending.load(Ordering::Relaxed) == 0 {
                self.boost.set(NONE);
            }
            let ready = self.record.ready.load(Ordering::Relaxed).trailing_zeros();
            ready.min(self.record.running.load(Ordering::Relaxed)).min(self.boost.get())
        }

        fn take_one(&self) -> Option<u8> {
            self.ring.borrow_mut().pop()
        }

        /// The most urgent that is ready, or will be once its result has been taken out.
        fn known(&self) -> u32 {
            let results = self.ring.borrow().iter().map(|&level| u32::from(level)).min().unwrap_or(NONE);
            results.min(self.queue.get().trailing_zeros())
        }
    }

    impl TurnSource for Machine {
        fn has_results(&self) -> bool {
            self.moment();
            !self.ring.borrow().is_empty()
        }

        fn take_results(&self) {
            self.moment();
            while let Some(level) = self.take_one() {
                self.queue.set(self.queue.get() | 1 << level);
                queued(&self.record, level);
                self.moment();
            }
        }

        fn settle(&self) -> u64 {
            self.moment();
            self.queue.get()
        }

        fn attends(&self) {
            self.moment();
        }

        fn is_before(&self, level: u32) -> bool {
            self.moment();
            ELSEWHERE < level
        }

        fn give_way(&self) {
            self.moment();
            // The kernel compares again.
            if ELSEWHERE < self.level() {
                assert!(ELSEWHERE < self.known(), "it gives way to less urgent work");
                self.yields.set(self.yields.get() + 1);
            }
        }
    }

    /// In the relaxed order a thread compares only before its first coroutine.
    #[test]
    fn a_thread_that_ran_nothing_compares() {
        for (last_turn, yields) in [(LAST.into(), 0), (NONE, 1)] {
            let machine = Machine::new(0, last_turn);
            machine.left.set(0);
            before_turn(&machine.record, false, &machine);
            assert_eq!(machine.yields.get(), yields);
            before_turn(&machine.record, false, &machine);
            assert_eq!(machine.yields.get(), yields);
        }
    }

    /// Calls end at any moments: the level is never less urgent than what has come, and nothing is passed over.
    #[test]
    fn a_level_is_never_behind_what_has_come() {
        for script in 0..(ENDS.len() as u32).pow(MOMENTS) {
            for last_turn in [46, 49, 53, NONE] {
                let machine = Machine::new(script, last_turn);
                before_turn(&machine.record, true, &machine);
                machine.moment();
                let running = machine.record.running.load(Ordering::Relaxed);
                assert_eq!(running, machine.queue.get().trailing_zeros());
                let is_told = machine.record.pending.load(Ordering::Relaxed) != 0;
                assert!(machine.ring.borrow().is_empty() || is_told);
                assert!(machine.yields.get() <= 1);
            }
        }
    }
}
