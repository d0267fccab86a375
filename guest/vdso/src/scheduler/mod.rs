//! The scheduler of paper 3 for programs in any language: `spawn`, `get_cid`, `wake`, `reprio` and a loop that runs
//! coroutines by level, on one thread or several.
//!
//! The queues are those of the kernel's scheduler, compiled from the same source (`heddle_coroutine::sched`). All state
//! lies in memory that the program gives. `include/heddle.h` is the reference of the functions.
//!
//! - [`memory`]: how that memory is laid out and set up.
//! - [`run`]: an executor's loop, and what its interrupts do.

pub mod memory;
pub mod run;

use core::mem::size_of;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use heddle_abi::protocol::record;
use heddle_abi::user_sched::calls::{INTERRUPT, POLICY, REGISTER, UNREGISTER, policy};
use heddle_abi::user_sched::{CoroutineInfo, ExecutorRecord, ProcessPages, state};
use heddle_coroutine::sched::{self, Batches, CoreState, Id, Slot, Table};

use crate::arch;
use crate::clock::monotonic_now;
use crate::ring::Ring;

/// An executor that is disturbed has the most urgent level until it has looked at what there is.
const LENT: usize = 1;

/// A coroutine, in memory of the program's.
#[repr(C)]
pub struct Coroutine {
    /// One turn of it: returns 0 when it waits, 1 when it has ended.
    poll: unsafe extern "C" fn(*mut Coroutine) -> u32,
    /// Called last, if not null: from then on the memory is the program's again.
    done: Option<unsafe extern "C" fn(*mut Coroutine)>,
    /// The record that `/proc/PID/heddle` shows.
    info: CoroutineInfo,
}

/// An executor's thread as its interrupts find it.
#[repr(C, align(64))]
pub struct Executor {
    /// The function that `__heddle_interrupt` calls with the address of this structure; first in it.
    on_interrupt: AtomicPtr<()>,
    scheduler: AtomicPtr<Scheduler>,
    number: AtomicU32,
    is_registered: AtomicU32,
}

/// A process's scheduler, at the beginning of the memory that the program gives.
#[repr(C, align(128))]
pub struct Scheduler {
    slots: *const Slot,
    cores: *const CoreState,
    executors: *const Executor,
    records: *const ExecutorRecord,
    /// The process's pages, if the kernel has such.
    pages: *const ProcessPages,
    slot_count: u32,
    core_count: u32,
    /// Cores to kick, by bit.
    kicks: AtomicU64,
    /// Executors that sleep, or are about to.
    parked: AtomicU64,
    live: AtomicU32,
    policy: AtomicU32,
    ring: Ring,
    /// Slots that no core keeps, one in each batch.
    free: Batches,
    /// Whether the records are those of the process's pages, so that the kernel knows them.
    is_known: u32,
}

impl Table for Scheduler {
    #[inline]
    fn slot(&self, index: u32) -> Option<&Slot> {
        if index >= self.slot_count {
            return None;
        }
        // SAFETY: `init` has put so many slots there.
        Some(unsafe { &*self.slots.add(index as usize) })
    }

    #[inline]
    fn core(&self, index: u32) -> Option<&CoreState> {
        if index >= self.core_count {
            return None;
        }
        // SAFETY: `init` has put so many cores there.
        Some(unsafe { &*self.cores.add(index as usize) })
    }

    #[inline]
    fn kick(&self, core: u32) {
        self.kicks.fetch_or(1 << (core & 63), Ordering::Relaxed);
    }

    #[inline]
    fn queued(&self, _index: u32, slot: &Slot, level: u8) {
        let block: *mut Coroutine = slot.task().cast();
        // SAFETY: a queued coroutine's memory is the scheduler's, and its owner's gate is held.
        if let Some(info) = unsafe { block.as_mut() }.map(|block| &mut block.info) {
            if info.state != state::READY {
                info.since_ns = monotonic_now();
            }
            (info.state, info.level) = (state::READY, level);
        }
    }
}

impl Scheduler {
    #[inline]
    fn record(&self, number: u32) -> Option<&ExecutorRecord> {
        if number >= self.core_count {
            return None;
        }
        // SAFETY: `init` has put as many records there as cores, or they are the process's.
        Some(unsafe { &*self.records.add(number as usize) })
    }

    /// The group that the kernel orders the process's executors in.
    #[inline]
    fn group(&self) -> u32 {
        // SAFETY: null, or the process's pages, which stay.
        unsafe { self.pages.as_ref() }.map_or(0, |pages| pages.header.group.load(Ordering::Relaxed))
    }

    fn executor(&self, number: u32) -> Option<&Executor> {
        if number >= self.core_count {
            return None;
        }
        // SAFETY: as in `core`.
        Some(unsafe { &*self.executors.add(number as usize) })
    }

    /// Kicks the executors that the queues asked to be kicked.
    fn deliver_kicks(&self) {
        if self.kicks.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut kicks = self.kicks.swap(0, Ordering::AcqRel);
        while kicks != 0 {
            self.disturb(kicks.trailing_zeros());
            kicks &= kicks.wrapping_sub(1);
        }
    }

    /// Takes the reasons to look around, and the completions that have come: stores each result and makes its coroutine
    /// ready.
    fn look_around(&self, number: u32, record: &ExecutorRecord) {
        record::take(record);
        self.ring.drain(|coroutine| {
            if let Some(id) = Id::from_bits(coroutine) {
                sched::wake(self, self.core(number), id);
            }
        });
    }

    /// Makes an executor look around.
    fn disturb(&self, number: u32) {
        if self.is_known != 0 {
            // SAFETY: touches no memory of the program's but the record.
            unsafe { arch::call(INTERRUPT as usize, [number as usize, LENT, 0, 0]) };
        }
    }

    /// Something is ready on `core` that another executor could run: wakes one that sleeps.
    fn offer(&self, core: &CoreState, record: &ExecutorRecord) {
        let parked = self.parked.load(Ordering::Relaxed);
        if parked == 0 {
            return;
        }
        let running = record.running.load(Ordering::Relaxed);
        if core.ready().has_two() || core.ready().bitmap().trailing_zeros() < running {
            self.wake_parked(parked);
        }
    }

    fn wake_parked(&self, parked: u64) {
        let bit = parked & parked.wrapping_neg();
        if bit != 0 && self.parked.fetch_and(!bit, Ordering::AcqRel) & bit != 0 {
            self.disturb(bit.trailing_zeros());
        }
    }
}

/// See `heddle.h`.
///
/// # Safety
/// `scheduler` is from `__heddle_scheduler_init`; so for every function here. The calling thread is the executor's.
#[cfg_attr(heddle_vdso, unsafe(no_mangle))]
pub unsafe extern "C" fn __heddle_enter(scheduler: *const Scheduler, number: u32) -> i32 {
    // SAFETY: by contract.
    let scheduler = unsafe { &*scheduler };
    let (Some(record), Some(executor)) = (scheduler.record(number), scheduler.executor(number)) else {
        return -22;
    };
    record::end_turn(record);
    if scheduler.is_known == 0 {
        return 0;
    }
    executor.on_interrupt.store(run::interrupted as *mut (), Ordering::Relaxed);
    let entry = arch::interrupt_entry();
    // SAFETY: the handler and its argument belong together, and live as long as the scheduler.
    let result = unsafe {
        arch::call(REGISTER as usize, [number as usize, entry, (executor as *const Executor) as usize, 0])
    };
    executor.is_registered.store((result == 0).into(), Ordering::Relaxed);
    result as i32
}

/// See `heddle.h`.
///
/// # Safety
/// See [`__heddle_enter`].
#[cfg_attr(heddle_vdso, unsafe(no_mangle))]
pub unsafe extern "C" fn __heddle_leave(scheduler: *const Scheduler, number: u32) {
    // SAFETY: by contract.
    let scheduler = unsafe { &*scheduler };
    if let Some(executor) = scheduler.executor(number)
        && executor.is_registered.swap(0, Ordering::Relaxed) != 0
    {
        // SAFETY: touches no memory of the program's.
        unsafe { arch::call(UNREGISTER as usize, [0; 4]) };
    }
}

/// See `heddle.h`.
///
/// # Safety
/// See [`__heddle_enter`]; `coroutine` is the scheduler's until `done`.
#[cfg_attr(heddle_vdso, unsafe(no_mangle))]
pub unsafe extern "C" fn __heddle_spawn(
    scheduler: *const Scheduler,
    number: u32,
    coroutine: *mut Coroutine,
    level: u32,
) -> u64 {
    // SAFETY: by contract.
    let (scheduler, block) = unsafe { (&*scheduler, &mut *coroutine) };
    let (Some(core), Some(record)) = (scheduler.core(number), scheduler.record(number)) else { return 0 };
    let level = level.min(63) as u8;
    let Some(index) = core.take_slot(scheduler).or_else(|| scheduler.free.take(scheduler)) else { return 0 };
    // The id that the slot will have, so that the block is complete before another executor can have it.
    let generation = scheduler.slot(index).map_or(0, |slot| slot.generation().wrapping_add(1));
    let Some(id) = Id::new(index, generation) else { return 0 };
    block.info = CoroutineInfo {
        id: id.to_bits(),
        kind: block.info.kind,
        level,
        state: state::READY,
        since_ns: monotonic_now(),
        ..CoroutineInfo::default()
    };
    scheduler.live.fetch_add(1, Ordering::Relaxed);
    sched::post_new(scheduler, index, coroutine.cast(), level, number as u16);
    core.drain(scheduler);
    record.ready.store(core.ready().bitmap(), Ordering::Relaxed);
    scheduler.offer(core, record);
    scheduler.deliver_kicks();
    id.to_bits()
}

/// See `heddle.h`.
///
/// # Safety
/// See [`__heddle_enter`].
#[cfg_attr(heddle_vdso, unsafe(no_mangle))]
pub unsafe extern "C" fn __heddle_get_cid(scheduler: *const Scheduler, number: u32) -> u64 {
    // SAFETY: by contract.
    let record = unsafe { &*scheduler }.record(number);
    record.map_or(0, |record| record.current.load(Ordering::Relaxed))
}

/// See `heddle.h`.
///
/// # Safety
/// See [`__heddle_enter`]; `number` may be no executor's.
#[cfg_attr(heddle_vdso, unsafe(no_mangle))]
pub unsafe extern "C" fn __heddle_wake(scheduler: *const Scheduler, number: u32, id: u64) -> u32 {
    // SAFETY: by contract.
    let scheduler = unsafe { &*scheduler };
    let Some(id) = Id::from_bits(id) else { return 0 };
    let known = sched::wake(scheduler, scheduler.core(number), id) != sched::Woken::Stale;
    changed(scheduler, number);
    known.into()
}

/// See `heddle.h`.
///
/// # Safety
/// See [`__heddle_enter`]; `number` may be no executor's.
#[cfg_attr(heddle_vdso, unsafe(no_mangle))]
pub unsafe extern "C" fn __heddle_reprio(
    scheduler: *const Scheduler,
    number: u32,
    id: u64,
    level: u32,
) -> u32 {
    // SAFETY: by contract.
    let scheduler = unsafe { &*scheduler };
    let Some(id) = Id::from_bits(id) else { return 0 };
    let level = level.min(63) as u8;
    let known = sched::set_priority(scheduler, scheduler.core(number), id, level) != sched::Woken::Stale;
    changed(scheduler, number);
    known.into()
}

/// After a request by `number`, if that is an executor: notifies the executors that it concerns.
fn changed(scheduler: &Scheduler, number: u32) {
    if let (Some(core), Some(record)) = (scheduler.core(number), scheduler.record(number)) {
        record.ready.store(core.ready().bitmap(), Ordering::Relaxed);
        scheduler.offer(core, record);
    }
    scheduler.deliver_kicks();
}

/// See `heddle.h`.
///
/// # Safety
/// See [`__heddle_enter`].
#[cfg_attr(heddle_vdso, unsafe(no_mangle))]
pub unsafe extern "C" fn __heddle_policy(scheduler: *const Scheduler, new: u32) -> i32 {
    // SAFETY: by contract.
    let scheduler = unsafe { &*scheduler };
    // SAFETY: touches no memory of the program's.
    let result = unsafe { arch::call(POLICY as usize, [new as usize, 0, 0, 0]) } as i32;
    if result >= 0 && new != policy::KEEP {
        scheduler.policy.store(new, Ordering::Relaxed);
    }
    result
}

/// See `heddle.h`.
///
/// # Safety
/// See [`__heddle_enter`]; the memory is a ring's, and each call's cookie is 0 or where its result goes.
#[cfg_attr(heddle_vdso, unsafe(no_mangle))]
pub unsafe extern "C" fn __heddle_ring(scheduler: *const Scheduler, memory: *mut u8, order: u32) -> i32 {
    // SAFETY: by contract.
    let scheduler = unsafe { &*scheduler };
    let ready = |coroutine| {
        if let Some(id) = Id::from_bits(coroutine) {
            sched::wake(scheduler, None, id);
        }
    };
    // SAFETY: by contract.
    let result = unsafe { scheduler.ring.register(memory, order, ready) };
    scheduler.deliver_kicks();
    result
}

/// Where a user interrupt enters, for programs that register their own argument: the address of a structure whose first
/// word is a function, which is called with that address and uses general registers only.
#[cfg_attr(heddle_vdso, unsafe(no_mangle))]
pub extern "C" fn __heddle_interrupt_entry() -> usize {
    arch::interrupt_entry()
}

const _: () = assert!(size_of::<Coroutine>() == 56);
