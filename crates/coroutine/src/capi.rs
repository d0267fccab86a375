//! The scheduler's core for C, and for a vDSO: functions over memory that the caller gives.
//!
//! Nothing here allocates, waits for other cores (but for a thief to leave, which takes a bounded time), calls back or
//! refers to anything outside of the memory. A core of the machine is told to look at its inbox by the caller, who
//! finds whom to tell in the `kicks` of [`Memory`].
#![allow(unsafe_code)] // C's pointers, and symbols with C's names.

use crate::sched::{self, CoreState, Id, Outcome, Slot, Table, Woken};
use crate::sync::{AtomicU64, Ordering};
use core::slice;

/// Where the caller keeps slots and cores. All-zero memory holds neither coroutines nor work; every core is set up by
/// [`heddle_core_init`], and gets slots by [`heddle_slot_give`].
#[repr(C)]
pub struct Memory {
    slots: *const Slot,
    cores: *const CoreState,
    slot_count: u32,
    core_count: u32,
    /// Bit `n` is set when core `n` must be kicked, by a function that was given this structure; the caller clears it.
    kicks: AtomicU64,
}

/// The result of [`heddle_pick`].
#[repr(C)]
pub struct Pick {
    id: u64,
    task: *mut (),
    level: u32,
    cancelled: u32,
}

/// No core: the caller of a request is none.
pub const NO_CORE: u32 = u32::MAX;

impl Table for Memory {
    #[inline]
    fn slot(&self, index: u32) -> Option<&Slot> {
        // SAFETY: by the functions' contract `slots` is an array of `slot_count` slots.
        unsafe { slice::from_raw_parts(self.slots, self.slot_count as usize) }.get(index as usize)
    }

    #[inline]
    fn core(&self, index: u32) -> Option<&CoreState> {
        // SAFETY: by the functions' contract `cores` is an array of `core_count` cores.
        unsafe { slice::from_raw_parts(self.cores, self.core_count as usize) }.get(index as usize)
    }

    #[inline]
    fn kick(&self, core: u32) {
        self.kicks.fetch_or(1 << (core & 63), Ordering::Relaxed);
    }
}

/// Bytes of a slot; slots lie at multiples of it.
#[unsafe(no_mangle)]
pub extern "C" fn heddle_slot_bytes() -> usize {
    size_of::<Slot>()
}

/// Bytes of a core; cores lie at multiples of it.
#[unsafe(no_mangle)]
pub extern "C" fn heddle_core_bytes() -> usize {
    size_of::<CoreState>()
}

/// Sets up core `core`; `stealing` is 0 if no other core takes work from it, else 2.
///
/// # Safety
/// `memory` points to a [`Memory`] whose arrays are valid, aligned to 128 and all-zero or used by these functions only;
/// so for every function here. The functions of one core are called by one thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_core_init(memory: *const Memory, core: u32, stealing: u32) {
    // SAFETY: by contract.
    if let Some(state) = unsafe { &*memory }.core(core).filter(|_| (core as usize) < sched::MAX_OWNERS) {
        state.set_index(core as u16, core);
        state.gate().set_stealing(if stealing == 0 {
            sched::Stealing::Never
        } else {
            sched::Stealing::Fenced
        });
    }
}

/// Gives the unused slot `index`, which is not 0, to core `core`.
///
/// # Safety
/// See [`heddle_core_init`]; the slot was not given before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_slot_give(memory: *const Memory, core: u32, index: u32) {
    // SAFETY: by contract.
    let memory = unsafe { &*memory };
    if let Some(state) = memory.core(core).filter(|_| index != 0) {
        state.give_slot(memory, index);
    }
}

/// Makes `task` a ready coroutine of `core`, at `level`; returns its id, 0 if the core has no free slot.
///
/// # Safety
/// See [`heddle_core_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_spawn(memory: *const Memory, core: u32, task: *mut (), level: u32) -> u64 {
    // SAFETY: by contract.
    let memory = unsafe { &*memory };
    let id = memory.core(core).and_then(|state| state.spawn(memory, task, level.min(63) as u8));
    id.map_or(0, Id::to_bits)
}

/// Takes the most urgent ready coroutine of `core`; returns 0 if there is none.
///
/// # Safety
/// See [`heddle_core_init`]; `pick` is a place to write to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_pick(memory: *const Memory, core: u32, pick: *mut Pick) -> u32 {
    // SAFETY: by contract.
    let memory = unsafe { &*memory };
    let Some(picked) = memory.core(core).and_then(|state| state.pick(memory)) else { return 0 };
    let found = Pick {
        id: picked.id.to_bits(),
        task: picked.task,
        level: picked.level.into(),
        cancelled: picked.cancelled.into(),
    };
    // SAFETY: by contract.
    unsafe { pick.write(found) };
    1
}

/// Ends the turn that [`heddle_pick`] began: the coroutine has ended if `complete`, else it waits or was woken.
///
/// # Safety
/// See [`heddle_core_init`]; `id` is being run by `core`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_finish(memory: *const Memory, core: u32, id: u64, complete: u32) {
    // SAFETY: by contract.
    let memory = unsafe { &*memory };
    let Some(id) = Id::from_bits(id) else { return };
    let outcome = if complete != 0 { Outcome::Complete } else { Outcome::Pending };
    if let (Some(state), Some(slot)) = (memory.core(core), memory.slot(id.index())) {
        if slot.generation() == id.generation() {
            state.finish(memory, id, slot, outcome);
        }
    }
}

/// Makes the coroutine `id` ready. `here` is the caller's core, or [`NO_CORE`]. Returns 0 if the id is stale.
///
/// # Safety
/// See [`heddle_core_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_wake(memory: *const Memory, here: u32, id: u64) -> u32 {
    // SAFETY: by contract.
    let memory = unsafe { &*memory };
    Id::from_bits(id).map_or(0, |id| known(sched::wake(memory, memory.core(here), id)))
}

/// Gives the coroutine `id` the level `level`. Otherwise like [`heddle_wake`].
///
/// # Safety
/// See [`heddle_core_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_reprio(memory: *const Memory, here: u32, id: u64, level: u32) -> u32 {
    // SAFETY: by contract.
    let memory = unsafe { &*memory };
    let level = level.min(63) as u8;
    Id::from_bits(id).map_or(0, |id| known(sched::set_priority(memory, memory.core(here), id, level)))
}

/// Asks that the coroutine `id` be given to its core once more, as cancelled. Otherwise like [`heddle_wake`].
///
/// # Safety
/// See [`heddle_core_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_cancel(memory: *const Memory, here: u32, id: u64) -> u32 {
    // SAFETY: by contract.
    let memory = unsafe { &*memory };
    Id::from_bits(id).map_or(0, |id| known(sched::cancel(memory, memory.core(here), id)))
}

/// The levels at which core `core` has ready coroutines: bit `n` for level `n`.
///
/// # Safety
/// See [`heddle_core_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_bitmap(memory: *const Memory, core: u32) -> u64 {
    // SAFETY: by contract.
    unsafe { &*memory }.core(core).map_or(0, |state| state.ready().bitmap())
}

/// Announces that `core` sleeps (`watch` 64) or runs a program of level `watch`; returns 0 if something more urgent is
/// ready. See [`CoreState::expose`]; 255 takes the announcement back.
///
/// # Safety
/// See [`heddle_core_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_expose(memory: *const Memory, core: u32, watch: u32) -> u32 {
    // SAFETY: by contract.
    let Some(state) = unsafe { &*memory }.core(core) else { return 0 };
    if watch > 64 {
        state.inbox().cover();
        return 1;
    }
    state.expose(watch as u8).into()
}

/// Moves up to `want` ready coroutines from `victim` to `thief`, the caller; returns how many.
///
/// # Safety
/// See [`heddle_core_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_steal(memory: *const Memory, thief: u32, victim: u32, want: u32) -> u32 {
    // SAFETY: by contract.
    let memory = unsafe { &*memory };
    let (Some(to), Some(from)) = (memory.core(thief), memory.core(victim)) else { return 0 };
    let heavy = || crate::sync::fence(Ordering::SeqCst);
    sched::steal(memory, to, from, u64::MAX, want as usize, heavy) as u32
}

fn known(woken: Woken) -> u32 {
    (woken != Woken::Stale).into()
}

/// The core has no panic path; a shared object must have a handler all the same. The symbol that this one needs exists
/// nowhere, so that the object does not link if anything can reach it.
#[cfg(all(feature = "vdso", not(feature = "std"), not(test)))]
#[panic_handler]
fn unreachable(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe extern "C" {
        fn heddle_a_panic_is_reachable() -> !;
    }
    // SAFETY: never linked, see above.
    unsafe { heddle_a_panic_is_reachable() }
}
