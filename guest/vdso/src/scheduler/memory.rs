//! The memory of a scheduler.

use core::mem::size_of;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use heddle_abi::user_sched::calls::policy;
use heddle_abi::user_sched::{EXECUTORS_MAX, ExecutorRecord, MAGIC, ProcessPages, VERSION};
use heddle_coroutine::sched::{self, Batches, CoreState, Slot, Stealing, Table};

use super::{Executor, Scheduler};
use crate::ring::Ring;

/// Memory is taken in pieces that begin at multiples of this.
const ALIGNMENT: usize = 128;

/// Where the parts lie in the memory, as offsets; the last is the size.
struct Plan {
    cores: usize,
    executors: usize,
    records: usize,
    slots: usize,
    bytes: usize,
}

fn plan(executors: u32, coroutines: u32) -> Option<Plan> {
    let (count, slot_count) = (executors as usize, coroutines as usize + 1);
    if executors == 0 || count > EXECUTORS_MAX || coroutines >= sched::MAX_SLOTS {
        return None;
    }
    let cores = size_of::<Scheduler>().next_multiple_of(ALIGNMENT);
    let executors = cores + count * size_of::<CoreState>();
    let records = (executors + count * size_of::<Executor>()).next_multiple_of(ALIGNMENT);
    let slots = (records + count * size_of::<ExecutorRecord>()).next_multiple_of(ALIGNMENT);
    Some(Plan { cores, executors, records, slots, bytes: slots + slot_count * size_of::<Slot>() })
}

/// See `heddle.h`.
#[cfg_attr(heddle_vdso, unsafe(no_mangle))]
pub extern "C" fn __heddle_scheduler_bytes(executors: u32, coroutines: u32) -> usize {
    plan(executors, coroutines).map_or(0, |plan| plan.bytes)
}

/// See `heddle.h`.
///
/// # Safety
/// `memory` is null or so many bytes of zeros at a multiple of 128; `pages` is null or what the auxiliary vector says.
#[cfg_attr(heddle_vdso, unsafe(no_mangle))]
pub unsafe extern "C" fn __heddle_scheduler_init(
    memory: *mut u8,
    bytes: usize,
    executors: u32,
    coroutines: u32,
    pages: *const ProcessPages,
) -> *mut Scheduler {
    let Some(plan) = plan(executors, coroutines) else { return null_mut() };
    if memory.is_null() || bytes < plan.bytes || memory as usize & (ALIGNMENT - 1) != 0 {
        return null_mut();
    }
    // SAFETY: by contract, null or the process's pages.
    let known = unsafe { pages.as_ref() }.filter(|pages| {
        let header = &pages.header;
        header.magic.load(Ordering::Relaxed) == MAGIC && header.version.load(Ordering::Relaxed) == VERSION
    });
    let at = |offset: usize| memory.wrapping_add(offset);
    let scheduler = Scheduler {
        slots: at(plan.slots).cast(),
        cores: at(plan.cores).cast(),
        executors: at(plan.executors).cast(),
        records: known.map_or(at(plan.records).cast(), |pages| (&raw const pages.executors).cast()),
        pages: known.map_or(core::ptr::null(), core::ptr::from_ref),
        slot_count: coroutines + 1,
        core_count: executors,
        kicks: AtomicU64::new(0),
        parked: AtomicU64::new(0),
        live: AtomicU32::new(0),
        policy: AtomicU32::new(policy::RELAXED),
        ring: Ring::new(),
        free: Batches::new(),
        is_known: known.is_some().into(),
    };
    let place: *mut Scheduler = memory.cast();
    // SAFETY: inside of the memory, by the plan, and aligned.
    let scheduler = unsafe {
        place.write(scheduler);
        &*place
    };
    let stealing = if executors > 1 { Stealing::Fenced } else { Stealing::Never };
    let mut number = 0;
    while let (Some(core), Some(executor)) = (scheduler.core(number), scheduler.executor(number)) {
        core.set_index(number as u16, number);
        core.gate().set_stealing(stealing);
        executor.scheduler.store(place, Ordering::Relaxed);
        executor.number.store(number, Ordering::Relaxed);
        number += 1;
    }
    // The last given is the first taken, so that slots are used from the bottom.
    let mut index = coroutines;
    while index != 0 {
        scheduler.free.put(scheduler, index);
        index -= 1;
    }
    place
}
