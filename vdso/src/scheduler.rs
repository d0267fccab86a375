//! The scheduler of paper 3 for programs in any language: `spawn`, `get_cid`, `wake`, `reprio` and a loop that runs
//! coroutines by level, on one thread or several.
//!
//! The queues are those of the kernel's scheduler, compiled from the same source (`heddle_coroutine::sched`). All state
//! lies in memory that the program gives. `include/heddle.h` is the reference of the functions.

use core::mem::size_of;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use heddle_abi::shared::calls::{GIVE_WAY, INTERRUPT, POLICY, REGISTER, UNREGISTER, policy};
use heddle_abi::shared::{
    CoroutineInfo, EXECUTORS_MAX, ExecutorRecord, MAGIC, ProcessPages, VERSION, levels, state,
};
use heddle_coroutine::sched::{self, Batches, CoreState, Id, Outcome, Slot, Stealing, Table, WATCH_PARKED};
use heddle_shared::record;

use crate::arch;
use crate::clock::monotonic_now;
use crate::ring::Ring;

/// Memory is taken in pieces that begin at multiples of this.
const ALIGNMENT: usize = 128;
/// An executor that is disturbed has the most urgent level until it has looked at what there is.
const LENT: usize = 1;
/// Free slots that an executor keeps for itself.
const KEPT_SLOTS: u32 = 32;
/// The function of a coroutine returned that it has ended.
const DONE: u32 = 1;
const CALL_FUTEX: usize = 202;
/// `FUTEX_WAIT`, of a word that lies in a mapping that the kernel shares.
const FUTEX_WAIT: usize = 0;

/// A coroutine, in memory of the program's.
#[repr(C)]
pub struct Coroutine {
    /// One turn of it: returns 0 when it waits, 1 when it has ended.
    poll: unsafe extern "C" fn(*mut Coroutine) -> u32,
    /// Called last, if not null: from then on the memory is the program's again.
    done: Option<unsafe extern "C" fn(*mut Coroutine)>,
    /// What `/proc/PID/heddle` shows of it.
    info: CoroutineInfo,
}

/// An executor's thread as its interrupts find it.
#[repr(C, align(64))]
pub struct Executor {
    /// What `__heddle_interrupt` calls with the address of this structure; first in it.
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
    executor.on_interrupt.store(interrupted as *mut (), Ordering::Relaxed);
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

/// A request has been made by executor `number`, if it is one: tells whom it concerns.
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
/// See [`__heddle_enter`]; the coroutines' functions may be called.
#[cfg_attr(heddle_vdso, unsafe(no_mangle))]
pub unsafe extern "C" fn __heddle_run(scheduler: *const Scheduler, number: u32) -> u64 {
    // SAFETY: by contract.
    let scheduler = unsafe { &*scheduler };
    let (Some(core), Some(record)) = (scheduler.core(number), scheduler.record(number)) else { return 0 };
    let mut turns = 0;
    while scheduler.live.load(Ordering::Acquire) != 0 {
        core.drain(scheduler);
        let bitmap = core.ready().bitmap();
        record.ready.store(bitmap, Ordering::Relaxed);
        if bitmap == 0 {
            if !steal(scheduler, core) {
                sleep(scheduler, core, record);
            }
            continue;
        }
        let best = bitmap.trailing_zeros();
        if scheduler.policy.load(Ordering::Relaxed) == policy::STRICT
            && arch::system_page().bitmap.load(Ordering::Relaxed) & levels::before(best) != 0
        {
            // SAFETY: touches no memory of the program's.
            unsafe { arch::call(GIVE_WAY as usize, [0; 4]) };
        }
        if !record::begin_turn(record, best) {
            record::end_turn(record);
            scheduler.look_around(number, record);
            continue;
        }
        turns += u64::from(turn(scheduler, core, record));
        record::end_turn(record);
    }
    record.ready.store(0, Ordering::Relaxed);
    // Whoever ran the last one wakes the others, so that they return too.
    loop {
        let parked = scheduler.parked.load(Ordering::Acquire);
        if parked == 0 {
            return turns;
        }
        scheduler.wake_parked(parked);
    }
}

/// See `heddle.h`.
///
/// # Safety
/// See [`__heddle_enter`]; the memory is a ring's, and each call's cookie is 0 or where its result goes.
#[cfg_attr(heddle_vdso, unsafe(no_mangle))]
pub unsafe extern "C" fn __heddle_ring(scheduler: *const Scheduler, memory: *mut u8, order: u32) -> i32 {
    // SAFETY: by contract.
    let scheduler = unsafe { &*scheduler };
    // SAFETY: by contract.
    unsafe { scheduler.ring.register(memory, order) }
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
    // From here on whoever makes something more urgent ready, and is not this thread, has it interrupted.
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
        // SAFETY: the program's function, with its coroutine, which nobody refers to any more.
        unsafe { done(pointer) };
    }
    scheduler.live.fetch_sub(1, Ordering::AcqRel);
    true
}

/// Takes work from another executor.
fn steal(scheduler: &Scheduler, core: &CoreState) -> bool {
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
    scheduler.look_around(core.number(), record);
    if !core.expose(WATCH_PARKED) {
        return;
    }
    let bit = 1 << (core.number() & 63);
    scheduler.parked.fetch_or(bit, Ordering::SeqCst);
    // What was offered before this executor was seen to sleep is found here.
    if scheduler.live.load(Ordering::SeqCst) != 0 && !steal(scheduler, core) {
        let word = &raw const record.pending;
        // SAFETY: waits at the word as long as it is 0.
        unsafe { arch::call(CALL_FUTEX, [word as usize, FUTEX_WAIT, 0, 0]) };
    }
    scheduler.parked.fetch_and(!bit, Ordering::AcqRel);
    core.inbox().cover();
}

/// A user interrupt: something has become ready that is more urgent than what this thread runs, or may be. Records the
/// coroutines whose calls have ended as ready, and wakes an executor that runs what is urgent at once.
unsafe extern "C" fn interrupted(executor: *const Executor) {
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

/// Where a user interrupt enters, for programs that register their own argument: the address of a structure whose first
/// word is a function, which is called with that address and uses general registers only.
#[cfg_attr(heddle_vdso, unsafe(no_mangle))]
pub extern "C" fn __heddle_interrupt_entry() -> usize {
    arch::interrupt_entry()
}

const _: () = assert!(size_of::<Coroutine>() == 56);
