//! An executor's loop.

use core::sync::atomic::Ordering;

use heddle_abi::protocol::record;
use heddle_abi::user_sched::calls::{GIVE_WAY, policy};
use heddle_abi::user_sched::{ExecutorRecord, state};
use heddle_coroutine::sched::{self, CoreState, Outcome, Table, WATCH_PARKED};

use super::{Coroutine, Executor, Scheduler};
use crate::arch;
use crate::clock::monotonic_now;

/// Free slots that an executor keeps for itself.
const KEPT_SLOTS: u32 = 32;
/// The function of a coroutine returned that it has ended.
const DONE: u32 = 1;
const CALL_FUTEX: usize = 202;
/// The level of a thread that others may have to wait for.
const MOST_URGENT: u32 = 0;
/// `FUTEX_WAIT`, of a word that lies in a mapping that the kernel shares.
const FUTEX_WAIT: usize = 0;

/// See `heddle.h`.
///
/// # Safety
/// See [`__heddle_enter`]; the coroutines' functions may be called.
#[cfg_attr(heddle_vdso, unsafe(no_mangle))]
pub unsafe extern "C" fn __heddle_run(scheduler: *const Scheduler, number: u32) -> u64 {
    // SAFETY: by contract.
    let scheduler = unsafe { &*scheduler };
    let (Some(core), Some(record)) = (scheduler.core(number), scheduler.record(number)) else { return 0 };
    let mut turns = 0;
    // The kernel knows no level of it while it has no coroutine: so it compares before the next in any case.
    let mut has_looked = true;
    while scheduler.live.load(Ordering::Acquire) != 0 {
        core.drain(scheduler);
        let bitmap = core.ready().bitmap();
        record.ready.store(bitmap, Ordering::Relaxed);
        // The last turn is over only now, when the record says what comes next: in between it would have no level.
        record::end_turn(record);
        if bitmap == 0 {
            has_looked = true;
            if !steal(scheduler, core, record) {
                sleep(scheduler, core, record);
            }
            continue;
        }
        let best = bitmap.trailing_zeros();
        if (has_looked || scheduler.policy.load(Ordering::Relaxed) == policy::STRICT)
            && arch::system_page().has_before(scheduler.group(), best)
        {
            // SAFETY: touches no memory of the program's.
            unsafe { arch::call(GIVE_WAY as usize, [0; 4]) };
        }
        has_looked = false;
        if !record::begin_turn(record, best) {
            record::end_turn(record);
            scheduler.look_around(number, record);
            continue;
        }
        turns += u64::from(turn(scheduler, core, record));
    }
    record.ready.store(0, Ordering::Relaxed);
    record::end_turn(record);
    // The executor that ran the last coroutine wakes the others, so that they return too.
    loop {
        let parked = scheduler.parked.load(Ordering::Acquire);
        if parked == 0 {
            return turns;
        }
        scheduler.wake_parked(parked);
    }
}

/// Runs one coroutine for one turn.
fn turn(scheduler: &Scheduler, core: &CoreState, record: &ExecutorRecord) -> bool {
    let Some(picked) = core.pick(scheduler) else { return false };
    record.ready.store(core.ready().bitmap(), Ordering::Relaxed);
    record.running.store(picked.level.into(), Ordering::Relaxed);
    record.current.store(picked.id.to_bits(), Ordering::Relaxed);
    let pointer: *mut Coroutine = picked.task.cast();
    let now_ns = monotonic_now();
    // SAFETY: what `spawn` was given; it is the scheduler's, and this executor's during the turn.
    let poll = unsafe {
        let info = &mut (*pointer).info;
        info.delayed_ns = info.delayed_ns.wrapping_add(now_ns.wrapping_sub(info.since_ns));
        info.polls = info.polls.wrapping_add(1);
        info.level = picked.level;
        info.since_ns = now_ns;
        info.state = state::RUNNING;
        (*pointer).poll
    };
    // From here on another thread that makes something more urgent ready interrupts this one.
    let is_watched = scheduler.core_count > 1 && core.expose(picked.level);
    // SAFETY: the program's function, with its coroutine.
    let result = unsafe { poll(pointer) };
    if is_watched {
        core.inbox().cover();
    }
    record.current.store(0, Ordering::Relaxed);
    if result != DONE {
        let since_ns = monotonic_now();
        // SAFETY: as above. It becomes another executor's only after `finish`.
        unsafe {
            (*pointer).info.since_ns = since_ns;
            (*pointer).info.state = state::WAITING;
        }
        core.finish(scheduler, picked.id, picked.slot, Outcome::Pending);
        return true;
    }
    // SAFETY: as above.
    let done = unsafe {
        (*pointer).info.id = 0;
        (*pointer).done
    };
    core.finish(scheduler, picked.id, picked.slot, Outcome::Complete);
    if core.free_slots() > KEPT_SLOTS
        && let Some(index) = core.take_slot(scheduler)
    {
        scheduler.free.put(scheduler, index);
    }
    if let Some(done) = done {
        // SAFETY: the program's function, with its coroutine, which has no other reference any more.
        unsafe { done(pointer) };
    }
    scheduler.live.fetch_sub(1, Ordering::AcqRel);
    true
}

/// Takes work from another executor. Meanwhile the thread is as urgent as it may be: inside another's gate it must not
/// lose the processor to that one, which would wait there for it, and in the kernel's order wait for ever.
fn steal(scheduler: &Scheduler, core: &CoreState, record: &ExecutorRecord) -> bool {
    record.running.store(MOST_URGENT, Ordering::Relaxed);
    let has_stolen = steal_from_any(scheduler, core);
    record::end_turn(record);
    has_stolen
}

fn steal_from_any(scheduler: &Scheduler, core: &CoreState) -> bool {
    let mut number = 0;
    while let Some(victim) = scheduler.core(number) {
        number += 1;
        if victim.index() != core.index() && victim.has_work() {
            let heavy = || core::sync::atomic::fence(Ordering::SeqCst);
            if sched::steal(scheduler, core, victim, u64::MAX, 1, heavy) != 0 {
                return true;
            }
        }
    }
    false
}

/// Sleeps until something is posted, or another executor has something to spare.
fn sleep(scheduler: &Scheduler, core: &CoreState, record: &ExecutorRecord) {
    record::before_sleep(record);
    sleep_masked(scheduler, core, record);
    record::after_sleep(record);
}

fn sleep_masked(scheduler: &Scheduler, core: &CoreState, record: &ExecutorRecord) {
    scheduler.look_around(core.number(), record);
    if !core.expose(WATCH_PARKED) {
        return;
    }
    let bit = 1 << (core.number() & 63);
    scheduler.parked.fetch_or(bit, Ordering::SeqCst);
    // Coroutines that were offered before this executor was seen to sleep are found here.
    if scheduler.live.load(Ordering::SeqCst) != 0 && !steal(scheduler, core, record) {
        let word = &raw const record.pending;
        // SAFETY: waits at the word as long as it is 0.
        unsafe { arch::call(CALL_FUTEX, [word as usize, FUTEX_WAIT, 0, 0]) };
    }
    scheduler.parked.fetch_and(!bit, Ordering::AcqRel);
    core.inbox().cover();
}

/// A user interrupt: something has become ready that is more urgent than what this thread runs, or may be. Records the
/// coroutines whose calls have ended as ready, and wakes an executor that runs what is urgent at once.
pub(super) unsafe extern "C" fn interrupted(executor: *const Executor) {
    // SAFETY: what `enter` has registered.
    let executor = unsafe { &*executor };
    // SAFETY: the scheduler that it belongs to.
    let Some(scheduler) = (unsafe { executor.scheduler.load(Ordering::Relaxed).cast_const().as_ref() })
    else {
        return;
    };
    let number = executor.number.load(Ordering::Relaxed);
    let Some(record) = scheduler.record(number) else { return };
    loop {
        scheduler.look_around(number, record);
        scheduler.wake_parked(scheduler.parked.load(Ordering::Acquire));
        if !record::unmask(record) {
            return;
        }
        record::mask(record);
    }
}
