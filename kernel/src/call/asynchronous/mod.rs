//! System calls that go on by themselves.
//!
//! A program hands in calls, one or a batch ([`calls::submit`]). Each is started like any other; what need not wait is
//! finished at once, and what waits goes on as a coroutine of the kernel, at the level of the program's coroutine that
//! made it, and its result goes into the ring ([`ring`]). The functions that implement calls are the same
//! ([`crate::call::caller::Caller`]). No thread and no stack waits.
//!
//! There are never more calls under way than the ring has room for results, so it cannot overflow. A program may
//! cancel a call; the end of the process and `execve` cancel all and wait for them, and nothing of them is inherited by
//! a fork. The thread that made a call pays for its time ([`charge`]). Once a call's result is in the ring the kernel
//! touches none of its memory.

mod capable;
pub mod charge;
pub mod request;
pub mod ring;

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::call::asynchronous::ring::Ring;
use crate::error::{Errno, TryResult};
use crate::memory::{Space, fallible};
use crate::process::{Process, Thread, executor};
use crate::sync::SpinLock;
use crate::wait::queue::{Events, WaitQueue};

use heddle_kernel_core::fallible::push_reserved;

pub use crate::call::asynchronous::capable::is_async_capable;
pub use crate::call::asynchronous::request::AsyncRequest;

/// A process's calls that go on by themselves.
pub struct Calls {
    pub state: SpinLock<AsyncCallsState>,
    /// Notified when a call has ended.
    pub ended: WaitQueue,
}

pub struct AsyncCallsState {
    pub ring: Option<Ring>,
    slots: Vec<AsyncSlot>,
    /// Indices of slots without a call.
    free: Vec<u32>,
    /// Threads that sleep until there is something in the ring, the first to be woken first.
    pub sleepers: VecDeque<Arc<RingSleeper>>,
}

/// Where a call under way is found by its token: index and generation.
struct AsyncSlot {
    generation: u32,
    request: Option<Arc<AsyncRequest>>,
}

/// A thread in [`calls::wait`].
pub struct RingSleeper {
    pub thread: Arc<Thread>,
    pub is_woken: AtomicBool,
}

impl Calls {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        let state =
            AsyncCallsState { ring: None, slots: Vec::new(), free: Vec::new(), sleepers: VecDeque::new() };
        Self { state: SpinLock::new(state), ended: WaitQueue::new() }
    }

    /// Enters a call that waits; returns its token.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn enter(&self, request: &Arc<AsyncRequest>) -> Result<u64, Errno> {
        let mut state = self.state.lock();
        let index = match state.free.pop() {
            Some(index) => index,
            None => {
                // Room to free every slot there is, so that leaving needs no memory.
                let slots = state.slots.len();
                state.free.try_reserve(slots + 1).map_err(|_| Errno::ENOMEM)?;
                fallible::try_push(&mut state.slots, AsyncSlot { generation: 0, request: None })?;
                slots as u32
            }
        };
        let slot = &mut state.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.request = Some(request.clone());
        let token = u64::from(slot.generation) << 32 | u64::from(index);
        request.set_token(token);
        Ok(token)
    }

    pub fn find(&self, token: u64) -> Option<Arc<AsyncRequest>> {
        let state = self.state.lock();
        let slot = state.slots.get(token as u32 as usize)?;
        slot.request.clone().filter(|_| u64::from(slot.generation) == token >> 32)
    }

    /// Takes a call out that has ended, and that needed room for `credits` results in the process's ring.
    pub fn leave(&self, request: &AsyncRequest, credits: u32) {
        let taken = {
            let mut state = self.state.lock();
            state.release_credits(credits);
            state.leave(request)
        };
        drop(taken);
        request.fate.end();
        self.ended.wake(Events::all());
    }

    /// Lets as many of `count` calls start as there is room for, at least one; what of it is not used is given back by
    /// [`Calls::release_credits`].
    ///
    /// # Errors
    /// `EAGAIN` (there is no room), `ENXIO` (there is no ring), the page of the ring's header that is missing.
    pub fn admit(&self, count: u32, space: &Space) -> TryResult<u32> {
        let mut state = self.state.lock();
        let ring = state.ring.as_mut().ok_or(Errno::ENXIO)?;
        let admitted = ring.admit(space, count)?;
        if admitted == 0 { Err(Errno::EAGAIN.into()) } else { Ok(admitted) }
    }

    pub fn release_credits(&self, count: u32) {
        if count > 0 {
            self.state.lock().release_credits(count);
        }
    }

    /// Wakes one of the threads that sleep in [`calls::wait`], for something of the program's `level`. `false` if none
    /// does.
    pub fn wake_one(&self, level: u8) -> bool {
        let sleeper = self.state.lock().sleepers.pop_front();
        let Some(sleeper) = sleeper else { return false };
        executor::lend(&sleeper.thread, level);
        sleeper.is_woken.store(true, Ordering::Release);
        sleeper.thread.wake();
        true
    }

    fn cancel_all(&self) {
        let mut index = 0;
        while let Some((found, request)) = self.next(index) {
            request.kill();
            index = found + 1;
        }
    }

    /// The first call under way whose token has an index from `from` on, and that index.
    #[must_use]
    pub fn next(&self, from: usize) -> Option<(usize, Arc<AsyncRequest>)> {
        let state = self.state.lock();
        let mut rest = state.slots.iter().enumerate().skip(from);
        rest.find_map(|(index, slot)| Some((index, slot.request.clone()?)))
    }

    fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.slots.len() == state.free.len()
    }
}

impl AsyncCallsState {
    pub fn leave(&mut self, request: &AsyncRequest) -> Option<Arc<AsyncRequest>> {
        let index = request.token() as u32;
        let taken = self.slots.get_mut(index as usize)?.request.take()?;
        // There is room, by `Calls::enter`.
        push_reserved(&mut self.free, index);
        Some(taken)
    }

    /// So many calls need no entry of the ring any more.
    const fn release_credits(&mut self, count: u32) {
        if let Some(ring) = &mut self.ring {
            ring.producer.give_back(count);
        }
    }
}

/// Cancels every call of a process whose last thread is about to leave its space, waits until they have ended, and
/// forgets the ring.
pub async fn end_all(process: &Arc<Process>) {
    let calls = &process.asynchronous;
    if calls.state.lock().ring.is_none() && calls.is_idle() {
        return;
    }
    // A chain of requests goes on to the next, which is entered before the one in front of it leaves.
    let is_over = || {
        calls.cancel_all();
        calls.is_idle()
    };
    while !is_over() {
        // Without memory for a watch, look again when everyone else has had a turn.
        if crate::wait::engine::kernel_until(&calls.ended, is_over).await.is_err() {
            crate::sched::yield_now().await;
        }
    }
    let mut state = calls.state.lock();
    state.ring = None;
    let slots = core::mem::take(&mut state.slots);
    let free = core::mem::take(&mut state.free);
    drop(state);
    drop((slots, free));
    calls.ended.clear();
}
