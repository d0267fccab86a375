//! Completions: the ring of them, those that found no room, and those that wait for the submitter.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::io_uring::{
    IORING_CQ_EVENTFD_DISABLED, IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_TASKRUN_FLAG, IORING_SQ_CQ_OVERFLOW,
    IORING_SQ_TASKRUN,
};

use heddle_kernel_core::fallible::push_back_reserved;
use heddle_kernel_core::uring::at;

use crate::fs::eventfd::EventCounter;
use crate::sync::SpinLock;
use crate::syscall::uring::ring::{RingMemory, Uring};
use crate::wait::queue::Events;

/// A completion.
#[derive(Clone, Copy, Debug, Default)]
pub struct Completion {
    pub user_data: u64,
    pub result: i32,
    pub flags: u32,
    /// The second half in a ring with `IORING_SETUP_CQE32`.
    pub wide: [u64; 2],
}

impl Completion {
    pub const fn new(user_data: u64, result: i32, flags: u32) -> Self {
        Self { user_data, result, flags, wide: [0; 2] }
    }

    /// As the words of a ring.
    pub const fn words(&self) -> [u64; 4] {
        [self.user_data, self.result as u32 as u64 | (self.flags as u64) << 32, self.wide[0], self.wide[1]]
    }
}

/// Where a completion comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The turn in which a program submits.
    Submission,
    /// A coroutine, or another ring.
    Elsewhere,
}

#[derive(Default)]
struct CompletionState {
    tail: u32,
    /// How many there have been, but for those of timeouts, with those without room.
    counted: u64,
    /// How many timeouts have ended by themselves, the others.
    timeouts: u64,
    /// Without room.
    overflow: VecDeque<Completion>,
    /// Put into the ring once the submitter asks for events (`IORING_SETUP_DEFER_TASKRUN`).
    deferred: VecDeque<Completion>,
    /// One was lost, and nobody has been told.
    is_lost: bool,
}

/// The eventfd that is told of completions.
#[derive(Clone)]
pub struct Notification {
    pub counter: Arc<EventCounter>,
    /// Only of those that come from elsewhere than a submission.
    pub is_async: bool,
}

/// The completions of a ring.
#[derive(Default)]
pub struct Completions {
    state: SpinLock<CompletionState>,
    pub notification: SpinLock<Option<Notification>>,
}

impl Completions {
    /// The memory of completions that are kept outside of the ring.
    pub fn kept_bytes(&self) -> usize {
        let state = self.state.lock();
        (state.overflow.len() + state.deferred.len()) * size_of::<Completion>()
    }
}

/// How much a flush does under the lock.
const FLUSH_STEP: usize = 256;

impl CompletionState {
    fn has_room(&self, memory: &RingMemory) -> bool {
        let head = memory.word(at::CQ_HEAD).load(Ordering::Acquire);
        self.overflow.is_empty()
            && self.tail.wrapping_sub(head) as usize + self.deferred.len() < memory.layout.cq_entries as usize
    }

    /// Puts a completion into the ring, if there is room.
    fn put(&mut self, memory: &RingMemory, completion: &Completion) -> bool {
        let head = memory.word(at::CQ_HEAD).load(Ordering::Acquire);
        if self.tail.wrapping_sub(head) >= memory.layout.cq_entries {
            return false;
        }
        memory.put(self.tail, completion.words());
        self.tail = self.tail.wrapping_add(1);
        memory.word(at::CQ_TAIL).store(self.tail, Ordering::Release);
        true
    }

    /// Puts it into the ring, or keeps it.
    fn put_or_keep(&mut self, memory: &RingMemory, completion: Completion) {
        if self.overflow.is_empty() && self.put(memory, &completion) {
            return;
        }
        if self.overflow.try_reserve(1).is_ok() {
            push_back_reserved(&mut self.overflow, completion);
            memory.word(at::SQ_FLAGS).fetch_or(IORING_SQ_CQ_OVERFLOW, Ordering::Release);
        } else {
            self.is_lost = true;
            memory.word(at::CQ_OVERFLOW).fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Uring {
    /// Posts a completion. Without room it is kept until there is some ([`Self::flush`]); without memory for that it
    /// is counted as lost.
    pub fn post(&self, completion: Completion, origin: Origin) {
        self.post_counted(completion, origin, true);
    }

    /// As [`Self::post`]; one of a timeout does not count for others.
    pub fn post_counted(&self, completion: Completion, origin: Origin, is_counted: bool) {
        self.enter_completion(completion, origin, is_counted);
        self.tell_of_completion(origin);
    }

    fn enter_completion(&self, completion: Completion, origin: Origin, is_counted: bool) {
        let mut state = self.completions.state.lock();
        state.counted += u64::from(is_counted);
        state.timeouts += u64::from(!is_counted);
        let is_deferred = self.setup & IORING_SETUP_DEFER_TASKRUN != 0 && origin == Origin::Elsewhere;
        if is_deferred && state.deferred.try_reserve(1).is_ok() {
            push_back_reserved(&mut state.deferred, completion);
            if self.setup & IORING_SETUP_TASKRUN_FLAG != 0 {
                self.memory.word(at::SQ_FLAGS).fetch_or(IORING_SQ_TASKRUN, Ordering::Release);
            }
        } else {
            state.put_or_keep(&self.memory, completion);
        }
    }

    fn tell_of_completion(&self, origin: Origin) {
        self.queue.wake(Events::IN | Events::RDNORM);
        let notification = self.completions.notification.lock().clone();
        if let Some(notification) = notification
            && !(notification.is_async && origin == Origin::Submission)
            && self.memory.word(at::CQ_FLAGS).load(Ordering::Relaxed) & IORING_CQ_EVENTFD_DISABLED == 0
        {
            notification.counter.signal();
        }
    }

    /// Posts one of several completions of a request, if the ring has room for it; the request ends otherwise.
    pub fn post_if_room(&self, completion: Completion, origin: Origin) -> bool {
        if !self.completions.state.lock().has_room(&self.memory) {
            return false;
        }
        self.post(completion, origin);
        true
    }

    /// Completions that the program has not taken.
    pub fn ready(&self) -> u32 {
        let tail = self.completions.state.lock().tail;
        tail.wrapping_sub(self.memory.word(at::CQ_HEAD).load(Ordering::Acquire))
    }

    /// Whether there are completions outside of the ring.
    pub fn has_more(&self) -> bool {
        let state = self.completions.state.lock();
        !state.overflow.is_empty() || !state.deferred.is_empty()
    }

    /// How many completions there have been, but for those of timeouts.
    pub fn counted(&self) -> u64 {
        self.completions.state.lock().counted
    }

    /// How many timeouts have ended by themselves.
    pub fn timeouts(&self) -> u64 {
        self.completions.state.lock().timeouts
    }

    /// Whether a completion was lost since the last question.
    pub fn take_lost(&self) -> bool {
        core::mem::take(&mut self.completions.state.lock().is_lost)
    }

    /// Puts completions into the ring that are kept outside of it, as far as there is room now, a bounded number. Those
    /// that wait for the submitter only if it `is_submitter`.
    pub fn flush(&self, is_submitter: bool) {
        let mut state = self.completions.state.lock();
        for _ in 0..FLUSH_STEP {
            let Some(&completion) = state.overflow.front() else { break };
            if !state.put(&self.memory, &completion) {
                break;
            }
            state.overflow.pop_front();
        }
        if state.overflow.is_empty() {
            self.memory.word(at::SQ_FLAGS).fetch_and(!IORING_SQ_CQ_OVERFLOW, Ordering::Release);
        }
        if !is_submitter {
            return;
        }
        for _ in 0..FLUSH_STEP {
            let Some(completion) = state.deferred.pop_front() else { break };
            state.put_or_keep(&self.memory, completion);
        }
        if state.deferred.is_empty() && self.setup & IORING_SETUP_TASKRUN_FLAG != 0 {
            self.memory.word(at::SQ_FLAGS).fetch_and(!IORING_SQ_TASKRUN, Ordering::Release);
        }
    }
}
