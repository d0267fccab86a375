//! The meeting of a coroutine's end with whoever awaits it.
//!
//! Two parties share a coroutine's memory: its executor and its `JoinHandle`. Neither counts references; each sets
//! one bit when it leaves, and the second to leave frees. `PROTOCOL.md` has the state diagram.
#![allow(unsafe_code)] // The waker's place belongs to whichever party the state word says.

mod joiner;
#[cfg(all(test, heddle_loom, not(heddle_shuttle)))]
mod models;

use crate::sync::{AtomicU32, Ordering, UnsafeCell};
use core::task::{Poll, Waker};
use joiner::Joiner;

/// The output (or the error) is stored.
const COMPLETE: u32 = 1;
/// The executor will not touch the memory again.
const DONE: u32 = 2;
/// The handle exists.
const HANDLE: u32 = 4;
/// The waker's place is filled, and belongs to the executor.
const WAKER: u32 = 8;
/// The output was taken or dropped.
const TAKEN: u32 = 16;
/// Both parties are on one thread, so plain loads and stores are enough.
const LOCAL: u32 = 32;

/// The duty of a party that leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Leave {
    /// The other party is still there.
    Nothing,
    /// Free the memory; the output is gone already.
    Free,
    /// Drop the output, then ask [`JoinCell::output_dropped`] whether to free.
    DropOutput,
}

/// State of the join, and the place of the joiner's waker.
pub(crate) struct JoinCell {
    waker: UnsafeCell<Option<Joiner>>,
    state: AtomicU32,
    /// A word that has nothing to do with the join, where alignment leaves room for one: the cores on which the
    /// coroutine may run, by bit.
    pub cores: AtomicU32,
}

impl JoinCell {
    /// A coroutine that runs and whose handle exists. `local`: both stay on one thread.
    pub fn new(local: bool, cores: u32) -> JoinCell {
        let state = HANDLE | if local { LOCAL } else { 0 };
        let waker = UnsafeCell::new(None);
        JoinCell { waker, state: AtomicU32::new(state), cores: AtomicU32::new(cores) }
    }

    /// Replaces the state by `next(state)` until `next` gives `None` or it succeeds; returns the state before.
    #[inline(always)]
    fn update(&self, mut next: impl FnMut(u32) -> Option<u32>) -> Result<u32, u32> {
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            let Some(new) = next(state) else { return Err(state) };
            if state & LOCAL != 0 {
                self.state.store(new, Ordering::Relaxed);
                return Ok(state);
            }
            // Release: what this party wrote (output, waker) is visible to the other. Acquire: and the reverse.
            match self.state.compare_exchange_weak(state, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(state) => return Ok(state),
                Err(now) => state = now,
            }
        }
    }

    /// Whether both parties are on one thread, on which the future has to stay too.
    #[inline(always)]
    pub fn is_local(&self) -> bool {
        self.state.load(Ordering::Relaxed) & LOCAL != 0
    }

    /// Whether the output is stored.
    #[inline(always)]
    pub fn is_complete(&self) -> bool {
        self.state.load(Ordering::Acquire) & COMPLETE != 0
    }

    /// Executor, after it stored the output: announces it, wakes the joiner and leaves.
    #[inline(always)]
    pub fn complete(&self) -> Leave {
        let end = |state| Some(state | COMPLETE | if state & WAKER == 0 { DONE } else { 0 });
        let (Ok(before) | Err(before)) = self.update(end);
        if before & HANDLE == 0 {
            return Leave::DropOutput;
        }
        if before & WAKER == 0 {
            return Leave::Nothing;
        }
        // It is only read: the handle, which saw no completion yet, may be comparing it with another at this moment.
        // SAFETY: WAKER was set when COMPLETE was announced, so the handle does not write to the place any more.
        self.waker.with(|waker| unsafe { (*waker).as_ref().map(Joiner::wake) });
        let (Ok(before) | Err(before)) = self.update(|state| Some(state | DONE));
        if before & HANDLE == 0 { Leave::Free } else { Leave::Nothing }
    }

    /// Executor that found no handle at [`JoinCell::complete`], after it dropped the output: always the last.
    /// Handle, after it took or dropped the output: marks it, leaves, and returns whether to free.
    pub fn output_dropped(&self) -> bool {
        let (Ok(before) | Err(before)) = self.update(|state| Some((state | TAKEN) & !HANDLE));
        before & DONE != 0 || before & HANDLE == 0
    }

    /// Handle: ready if the output is stored and was not taken; otherwise `waker` is woken when it is.
    #[inline(always)]
    pub fn poll(&self, waker: &Waker) -> Poll<()> {
        // Taking the output acquires it.
        let state = self.state.load(Ordering::Relaxed);
        if state & COMPLETE != 0 {
            return Poll::Ready(());
        }
        self.wait(state, waker)
    }

    /// The coroutine runs, or did when `state` was read.
    fn wait(&self, state: u32, waker: &Waker) -> Poll<()> {
        if state & WAKER != 0 {
            // SAFETY: the executor only reads the place until it announces completion, and only the handle writes.
            let same = self.waker.with(|old| unsafe { (*old).as_ref().is_some_and(|old| old.is(waker)) });
            if same {
                return Poll::Pending;
            }
            let back = |state| (state & COMPLETE == 0).then_some(state & !WAKER);
            if self.update(back).is_err() {
                return Poll::Ready(());
            }
        }
        let Some(joiner) = Joiner::new(waker) else {
            // No memory to keep it in: it looks again at its next turn, until there is some or the output.
            waker.wake_by_ref();
            return Poll::Pending;
        };
        // SAFETY: WAKER is clear and only the handle sets it, so the place is the handle's.
        self.waker.with_mut(|place| unsafe { *place = Some(joiner) });
        let give = |state| (state & COMPLETE == 0).then_some(state | WAKER);
        if self.update(give).is_err() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Handle: marks the output taken, which [`JoinCell::poll`] said is there. `false` if it was taken before.
    #[inline(always)]
    pub fn take_output(&self) -> bool {
        let take = |state| (state & TAKEN == 0).then_some(state | TAKEN);
        self.update(take).is_ok()
    }

    /// Handle: leaves.
    #[inline(always)]
    pub fn drop_handle(&self) -> Leave {
        let leave = |state| (state & COMPLETE == 0 || state & TAKEN != 0).then_some(state & !HANDLE);
        match self.update(leave) {
            Err(_) => Leave::DropOutput,
            Ok(before) if before & DONE != 0 => Leave::Free,
            Ok(_) => Leave::Nothing,
        }
    }

    /// Both parties have left, or the coroutine was never started: drops the joiner's waker.
    #[inline(always)]
    pub fn clear(&self) {
        // SAFETY: nobody else has the memory any more.
        drop(self.waker.with_mut(|waker| unsafe { (*waker).take() }));
    }
}
