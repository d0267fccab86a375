//! Loom models of the protocols.

use std::convert::Infallible;
use std::sync::Arc;
use std::vec::Vec;

use crate::user_sched::{ExecutorRecord, PENDING_COMPLETION, PENDING_KICK, PENDING_SPARE, RUNNING_RESERVE};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use loom::thread;

use crate::protocol::ring::{Consumer, ENTRY_WORDS, Place, Producer};
use crate::protocol::{Fate, Found, Levels, Phase, Runnable, record};

fn both(first: impl FnOnce() + 'static, second: impl FnOnce() + 'static) {
    let other = thread::spawn(second);
    first();
    other.join().unwrap();
}

/// As many switches at bad moments as a model with loops can have.
fn bounded(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Two CPUs take a level and leave it, in every interleaving: the bit ends as the counts say.
#[test]
fn bits_follow_counts() {
    const BIT: u64 = 1 << 9;
    for (first_keeps, second_keeps) in [(false, false), (true, false), (false, true), (true, true)] {
        bounded(move || {
            let page = Arc::new((Levels::new(), AtomicU64::new(0)));
            let run = |keeps: bool| {
                let page = page.clone();
                move || {
                    page.0.publish(&page.1, 0, BIT);
                    if !keeps {
                        page.0.publish(&page.1, BIT, 0);
                    }
                }
            };
            both(run(first_keeps), run(second_keeps));
            let is_ready = first_keeps || second_keeps;
            assert_eq!(page.1.load(Ordering::Relaxed), if is_ready { BIT } else { 0 });
        });
    }
}

/// Something becomes ready while an executor begins a turn: the executor sees it, or the thread that made it ready sees
/// the turn.
#[test]
fn a_turn_against_a_completion() {
    loom::model(|| {
        let shared = Arc::new((ExecutorRecord::new(), AtomicU64::new(0)));
        let kernel = shared.clone();
        let sees_turn = thread::spawn(move || {
            kernel.1.store(1, Ordering::Relaxed);
            let _ = record::post(&kernel.0, PENDING_COMPLETION);
            record::running(&kernel.0).is_some()
        });
        let goes_on = record::begin_turn(&shared.0, 50);
        if !goes_on {
            record::end_turn(&shared.0);
            assert_eq!(record::take(&shared.0), PENDING_COMPLETION);
            // A coroutine that was made ready is visible with its reason.
            assert_eq!(shared.1.load(Ordering::Relaxed), 1);
        }
        assert!(sees_turn.join().unwrap() || !goes_on);
    });
}

/// An interrupt is posted while the executor ends a masked stretch: one of the two makes it look.
#[test]
fn mask_and_interrupt() {
    loom::model(|| {
        let shared = Arc::new(ExecutorRecord::new());
        record::mask(&shared);
        let kernel = shared.clone();
        let interrupts = thread::spawn(move || record::post(&kernel, PENDING_KICK));
        let looks = record::unmask(&shared);
        assert!(interrupts.join().unwrap() || looks);
    });
}

/// An interrupt comes while the handler of another one drains: each reason is taken exactly once.
#[test]
fn a_reason_is_taken_once() {
    loom::model(|| {
        let shared = Arc::new((ExecutorRecord::new(), AtomicU32::new(0)));
        record::mask(&shared.0);
        let kernel = shared.clone();
        let poster = thread::spawn(move || {
            kernel.1.fetch_add(1, Ordering::Relaxed);
            record::post(&kernel.0, PENDING_COMPLETION)
        });
        let mut found = 0;
        let mut drain = || {
            while record::take(&shared.0) != 0 {
                found += shared.1.swap(0, Ordering::Relaxed);
            }
        };
        drain();
        while record::unmask(&shared.0) {
            record::mask(&shared.0);
            drain();
        }
        let must_interrupt = poster.join().unwrap();
        if must_interrupt && record::enter_handler(&shared.0) {
            drain();
        }
        assert_eq!(found, 1);
        assert_eq!(shared.0.pending.load(Ordering::Relaxed), 0);
    });
}

/// Two executors block one after the other while something is ready: exactly one sees that it is the last.
#[test]
fn the_last_executor_notices() {
    loom::model(|| {
        let count = Arc::new(Runnable::new());
        count.starts();
        count.starts();
        let other = count.clone();
        let second = thread::spawn(move || other.blocks());
        let first = count.blocks();
        assert!(first != second.join().unwrap());
        assert_eq!(count.count(), 0);
    });
}

/// A spare executor is on its way to sleep when the last one blocks: it is woken, or does not fall asleep.
#[test]
fn last_executor_blocks_while_a_spare_goes_to_sleep() {
    loom::model(|| {
        // The sleep is a futex wait on `pending`: the look at the word and the entry into the queue are one step.
        let shared = Arc::new((ExecutorRecord::new(), AtomicBool::new(false), loom::sync::Mutex::new(false)));
        let last = shared.clone();
        let waker = thread::spawn(move || {
            let _ = record::post(&last.0, PENDING_KICK);
            let mut sleeps = last.2.lock().unwrap();
            if *sleeps {
                *sleeps = false;
                last.1.store(true, Ordering::Relaxed);
            }
        });
        let sleeps = {
            let mut sleeps = shared.2.lock().unwrap();
            *sleeps = shared.0.pending.load(Ordering::SeqCst) == 0;
            *sleeps
        };
        waker.join().unwrap();
        assert!(!sleeps || shared.1.load(Ordering::Relaxed));
    });
}

/// The other executor blocks while the one in reserve is on its way to sleep, which may take a reason to look without
/// looking for what is not urgent. Whoever sees that it is the last leaves word that all is for the reserve.
#[test]
fn a_reserve_that_falls_asleep_last_is_told() {
    loom::model(|| {
        let count = Runnable::new();
        count.starts();
        count.starts();
        let shared = Arc::new((ExecutorRecord::new(), count, AtomicBool::new(false)));
        let regular = shared.clone();
        let other = thread::spawn(move || {
            let (record, count, is_blocked) = &*regular;
            is_blocked.store(true, Ordering::Relaxed);
            if count.blocks() {
                let reason = if record::is_reserve(record) { PENDING_SPARE } else { PENDING_KICK };
                let _ = record::post(record, reason);
            }
        });
        let (record, count, is_blocked) = &*shared;
        record::attend(record);
        record.running.store(RUNNING_RESERVE, Ordering::SeqCst);
        let sleeps = record.pending.load(Ordering::SeqCst) == 0;
        if sleeps && count.blocks() && is_blocked.load(Ordering::Relaxed) {
            let _ = record::post(record, PENDING_SPARE);
        }
        other.join().unwrap();
        assert!(!sleeps || record.pending.load(Ordering::Relaxed) & PENDING_SPARE != 0);
    });
}

/// An interrupt for the last turn comes while the executor goes to sleep: it does not sleep over what was posted,
/// because its handler has taken the reason after the last look.
#[test]
fn a_handler_takes_nothing_from_a_sleeper() {
    loom::model(|| {
        let shared = Arc::new((ExecutorRecord::new(), AtomicU32::new(0), AtomicU32::new(0)));
        let _ = record::begin_turn(&shared.0, 50);
        let kernel = shared.clone();
        let poster = thread::spawn(move || {
            kernel.1.store(1, Ordering::Relaxed);
            if record::post(&kernel.0, PENDING_KICK) && record::running(&kernel.0).is_some() {
                kernel.2.store(1, Ordering::Relaxed);
            }
        });
        let handler = || {
            if shared.2.swap(0, Ordering::Relaxed) != 0 && record::enter_handler(&shared.0) {
                record::take(&shared.0);
                let _ = record::unmask(&shared.0);
            }
        };
        record::end_turn(&shared.0);
        handler();
        record::before_sleep(&shared.0);
        record::take(&shared.0);
        let has_found = shared.1.load(Ordering::Relaxed) != 0;
        handler();
        // As the kernel does, at the word: whoever posts later wakes the thread.
        let sleeps = shared.0.pending.load(Ordering::Relaxed) == 0;
        poster.join().unwrap();
        let is_woken = shared.0.pending.load(Ordering::Relaxed) != 0;
        record::after_sleep(&shared.0);
        assert!(has_found || !sleeps || is_woken);
    });
}

/// A handler has left it to the thread to look: what is posted meanwhile is seen by that look or the next turn's, or is
/// told by another interrupt.
#[test]
fn a_notice_is_attended() {
    loom::model(|| {
        let shared = Arc::new((ExecutorRecord::new(), AtomicU32::new(0)));
        record::mask(&shared.0);
        shared.0.pending.store(PENDING_KICK, Ordering::Relaxed);
        let kernel = shared.clone();
        let poster = thread::spawn(move || {
            kernel.1.store(1, Ordering::Relaxed);
            record::post(&kernel.0, PENDING_COMPLETION)
        });
        record::attend(&shared.0);
        let mut seen = shared.1.load(Ordering::Relaxed) == 1;
        if !record::begin_turn(&shared.0, 50) {
            record::attend(&shared.0);
            assert_eq!(shared.1.load(Ordering::Relaxed), 1);
            seen = true;
        }
        let must_interrupt = poster.join().unwrap();
        assert!(seen || must_interrupt && record::enter_handler(&shared.0));
    });
}

/// A ring in plain memory.
struct Memory {
    head: AtomicU32,
    tail: AtomicU32,
    entries: Vec<AtomicU64>,
}

impl Memory {
    fn new(order: u32) -> Self {
        let entries = (0..ENTRY_WORDS << order).map(|_| AtomicU64::new(0)).collect();
        Self { head: AtomicU32::new(0), tail: AtomicU32::new(0), entries }
    }

    fn pop(&self) -> Option<[u64; 3]> {
        Consumer { head: &self.head, tail: &self.tail, entries: &self.entries }.pop()
    }

    fn tail(&self) -> u32 {
        self.tail.load(Ordering::Acquire)
    }

    /// Empty, from this count on.
    fn start_at(&self, count: u32) {
        self.head.store(count, Ordering::Relaxed);
        self.tail.store(count, Ordering::Relaxed);
    }
}

impl Place for Memory {
    type Missing = Infallible;

    fn head(&self) -> Result<u32, Infallible> {
        Ok(self.head.load(Ordering::Acquire))
    }

    fn write(&self, index: usize, words: [u64; ENTRY_WORDS]) -> Result<(), Infallible> {
        for (number, word) in words.into_iter().enumerate() {
            self.entries[index * ENTRY_WORDS + number].store(word, Ordering::Relaxed);
        }
        Ok(())
    }

    fn publish(&self, old: u32, new: u32) -> Result<(), Infallible> {
        // As the kernel does it: an exchange.
        assert_eq!(self.tail.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire), Ok(old));
        Ok(())
    }
}

/// The kernel puts more results in than the ring has entries, as far as there is room, while two threads take them out:
/// each comes once, whole.
#[test]
fn results_pass_through_a_small_ring() {
    const RESULTS: u64 = 3;
    bounded(|| {
        let ring = Arc::new(Memory::new(1));
        let taken = Arc::new(AtomicU32::new(0));
        let take = |ring: &Memory, taken: &AtomicU32| {
            while let Some([cookie, coroutine, result]) = ring.pop() {
                assert_eq!((coroutine, result), (cookie * 10, cookie * 100));
                let bit = 1 << cookie;
                assert_eq!(taken.fetch_or(bit, Ordering::Relaxed) & bit, 0);
            }
        };
        let other = {
            let (ring, taken) = (ring.clone(), taken.clone());
            thread::spawn(move || take(&ring, &taken))
        };
        let mut producer = Producer::new(1);
        for cookie in 1..=RESULTS {
            while producer.admit(&*ring, 1) == Ok(0) {
                take(&ring, &taken);
                thread::yield_now();
            }
            let Ok(()) = producer.put(&*ring, [cookie, cookie * 10, cookie * 100, 0]);
            producer.give_back(1);
        }
        other.join().unwrap();
        take(&ring, &taken);
        assert_eq!(taken.load(Ordering::Relaxed), 0b1110);
    });
}

/// A thread is about to sleep while another replaces the ring and a result comes. It does not sleep over the result,
/// whichever ring it has looked at and wherever the result is.
#[test]
fn nobody_sleeps_over_a_replaced_ring() {
    struct Kernel {
        producer: Producer,
        ring: usize,
        sleeps: bool,
    }
    struct Process {
        kernel: loom::sync::Mutex<Kernel>,
        rings: [Memory; 2],
        current: AtomicUsize,
        taken: AtomicU32,
    }
    fn drain(process: &Process, ring: usize) {
        while process.rings[ring].pop().is_some() {
            process.taken.fetch_add(1, Ordering::Relaxed);
        }
    }
    fn put(process: &Process) {
        let mut kernel = process.kernel.lock().unwrap();
        let ring = kernel.ring;
        let Ok(()) = kernel.producer.put(&process.rings[ring], [1, 10, 100, 0]);
        kernel.sleeps = false;
    }
    bounded(|| {
        let kernel = Kernel { producer: Producer::new(1), ring: 0, sleeps: false };
        let process = Arc::new(Process {
            kernel: loom::sync::Mutex::new(kernel),
            rings: [Memory::new(1), Memory::new(1)],
            current: AtomicUsize::new(0),
            taken: AtomicU32::new(0),
        });
        put(&process);
        drain(&process, 0);
        let replacing = {
            let process = process.clone();
            thread::spawn(move || {
                {
                    let mut kernel = process.kernel.lock().unwrap();
                    kernel.producer = kernel.producer.replaced_by(1).unwrap();
                    kernel.ring = 1;
                    process.rings[1].start_at(kernel.producer.tail());
                }
                drain(&process, 0);
                process.current.store(1, Ordering::Release);
            })
        };
        let completing = {
            let process = process.clone();
            thread::spawn(move || put(&process))
        };
        let current = process.current.load(Ordering::Acquire);
        let seen = process.rings[current].tail();
        if seen == process.rings[current].head.load(Ordering::Acquire) {
            let mut kernel = process.kernel.lock().unwrap();
            kernel.sleeps = kernel.producer.tail() == seen;
        }
        replacing.join().unwrap();
        completing.join().unwrap();
        let sleeps = process.kernel.lock().unwrap().sleeps;
        // An awake process looks at the ring that is current.
        assert!(!sleeps || process.taken.load(Ordering::Relaxed) == 2, "sleeps, and a result is there");
        drain(&process, 1);
        assert_eq!(process.taken.load(Ordering::Relaxed), 2);
    });
}

/// Data comes to a file after a call that reads it was cancelled: the call, whose coroutine is about to look at the
/// file or does so, leaves it there.
#[test]
fn data_after_a_cancellation_stays() {
    loom::model(|| {
        let shared = Arc::new((Fate::new(), AtomicU32::new(0)));
        let kernel = {
            let shared = shared.clone();
            thread::spawn(move || {
                let (fate, data) = &*shared;
                fate.work();
                let taken = if fate.is_cancelled() { 0 } else { data.swap(0, Ordering::Relaxed) };
                fate.pause();
                taken
            })
        };
        let (fate, data) = &*shared;
        fate.cancel();
        while fate.is_busy() {
            thread::yield_now();
        }
        data.store(1, Ordering::Relaxed);
        assert_eq!(kernel.join().unwrap(), 0);
        assert_eq!(data.load(Ordering::Relaxed), 1);
    });
}

/// The future of a call that has borrowed memory is dropped while the call ends and its result comes through the ring.
/// Once the drop is over only the program touches the memory, and the result is handled once.
#[test]
fn a_cancelled_call_lets_go_of_its_memory() {
    struct Call {
        memory: UnsafeCell<u64>,
        phase: Phase,
        fate: Fate,
        ring: Memory,
        discarded: AtomicU32,
    }
    #[allow(unsafe_code, reason = "the cell's order is what the model checks")]
    // SAFETY: loom reports an access to the cell that nothing orders.
    unsafe impl Sync for Call {}
    fn drain(call: &Call) {
        while let Some([_, _, result]) = call.ring.pop() {
            assert_eq!(result, 7);
            if !call.phase.complete() {
                call.discarded.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    bounded(|| {
        let call = Arc::new(Call {
            memory: UnsafeCell::new(0),
            phase: Phase::new(),
            fate: Fate::new(),
            ring: Memory::new(1),
            discarded: AtomicU32::new(0),
        });
        let kernel = {
            let call = call.clone();
            thread::spawn(move || {
                let mut producer = Producer::new(1);
                let _ = producer.admit(&call.ring, 1);
                if !call.fate.is_cancelled() {
                    #[allow(unsafe_code, reason = "what the call reads into")]
                    // SAFETY: loom reports an access that nothing orders.
                    call.memory.with_mut(|memory| unsafe { *memory = 1 });
                }
                let Ok(()) = producer.put(&call.ring, [1, 2, 7, 0]);
                call.fate.end();
            })
        };
        let drainer = {
            let call = call.clone();
            thread::spawn(move || drain(&call))
        };
        let is_dropped = call.phase.leave();
        if is_dropped {
            call.fate.cancel();
            while !call.fate.is_over() {
                thread::yield_now();
            }
        } else {
            assert_eq!(call.phase.look(), Found::Done);
        }
        #[allow(unsafe_code, reason = "the program's memory again")]
        // SAFETY: as above.
        call.memory.with_mut(|memory| unsafe { *memory = 2 });
        kernel.join().unwrap();
        drainer.join().unwrap();
        drain(&call);
        assert_eq!(call.discarded.load(Ordering::Relaxed), u32::from(is_dropped));
    });
}

/// A result is taken once, by the future or by the completer, and is seen whole.
#[test]
fn completion_against_drop() {
    struct Call {
        phase: Phase,
        result: UnsafeCell<u64>,
        taken: AtomicU32,
    }
    #[allow(unsafe_code, reason = "the cell's order is what the model checks")]
    // SAFETY: loom reports an access to the cell that nothing orders.
    unsafe impl Sync for Call {}
    fn take(call: &Call) {
        #[allow(unsafe_code, reason = "the result, which the phase guards")]
        // SAFETY: loom reports an access that the phase does not order.
        call.result.with(|result| assert_eq!(unsafe { *result }, 7));
        call.taken.fetch_add(1, Ordering::Relaxed);
    }
    loom::model(|| {
        let call =
            Arc::new(Call { phase: Phase::new(), result: UnsafeCell::new(0), taken: AtomicU32::new(0) });
        let completer = call.clone();
        let completer = thread::spawn(move || {
            #[allow(unsafe_code, reason = "the result, which the phase guards")]
            // SAFETY: as above.
            completer.result.with_mut(|result| unsafe { *result = 7 });
            if !completer.phase.complete() {
                take(&completer);
            }
        });
        if !call.phase.leave() {
            take(&call);
            assert_eq!(call.phase.look(), Found::Done);
        }
        completer.join().unwrap();
        assert_eq!(call.taken.load(Ordering::Relaxed), 1);
    });
}
