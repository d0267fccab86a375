//! Realtime threads on several CPUs: the most urgent run, wherever they were queued. An executor that comes to find its
//! place among its user's does so where it need not wait for one of these.
//!
//! A CPU whose queue holds a realtime thread that has to wait there interrupts those that run something less urgent,
//! and whoever is about to run something looks whether a more urgent realtime thread waits elsewhere. Each side first
//! says what it has (the queue and the published levels; the rank of the program) by an exchange of the inbox's word,
//! and then looks at the other's: so one of the two sees the other.

use core::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use heddle_coroutine::Core;

use crate::arch;
use crate::arch::MAX_CPUS;
use crate::sched::{MACHINE, Priority, Processors};

/// The level of a CPU that sleeps: less urgent than any other.
const IDLE: u16 = u16::MAX;

/// The priority of the program that a CPU runs or is about to run.
static RUNNING: [AtomicU16; MAX_CPUS] = [const { AtomicU16::new(0) }; MAX_CPUS];
/// CPUs, a bit each, in whose inboxes a realtime thread was left while they ran something more urgent.
static LEFT: AtomicU64 = AtomicU64::new(0);

/// Interrupts every CPU of `mask` that runs something less urgent, so that it looks for what waits.
fn publish(mask: u64, priority: Priority) {
    for number in (0..arch::cpu::count()).filter(|&number| mask >> number & 1 != 0) {
        if RUNNING[number].load(Ordering::Relaxed) > priority.to_bits() {
            MACHINE.disturb(number as u32);
        }
    }
}

/// A realtime thread was left with a CPU that goes on with what is no less urgent.
pub(super) fn left(core: u32, priority: Priority) {
    LEFT.fetch_or(1 << core, Ordering::SeqCst);
    publish(!(1 << core), priority);
}

/// This CPU is about to sleep.
pub(super) fn idles(core: &Core<Processors>) {
    RUNNING[core.number() as usize].store(IDLE, Ordering::Relaxed);
}

/// See [`crate::sched::enter_program`].
pub(super) fn enter_program(core: &Core<Processors>, priority: Priority) -> bool {
    let own = 1 << core.number();
    RUNNING[core.number() as usize].store(priority.to_bits(), Ordering::Relaxed);
    if !core.enter_program(priority.rank()) {
        return false;
    }
    crate::sched::publish(core);
    let left = LEFT.load(Ordering::Relaxed);
    if left & own != 0 {
        // The inbox is empty by now: what was left there is in the queue.
        LEFT.fetch_and(!own, Ordering::Relaxed);
    }
    if core.statistics().ready_levels() & Priority::PLACED_BITS != 0
        && let Some((rank, cores)) = core.first_waiting()
    {
        publish(cores & !own, Priority::from_bits(rank.to_bits()));
    }
    let before = (2u64 << priority.level()).wrapping_sub(1) & Priority::PLACED_BITS;
    let elsewhere = crate::sched::ready_levels() & before;
    if (elsewhere != 0 || left & !own != 0) && core.pull_before(priority.rank()) {
        core.enter_kernel();
        return false;
    }
    true
}
