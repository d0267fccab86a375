//! Condition variables over locks that inherit priorities: waiters are moved from a word to a lock.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::general as linux;

use crate::call::caller::Caller;
use crate::error::{Errno, TryResult};
use crate::memory::Space;
use crate::process::Thread;
use crate::process::futex::pi::Wait;
use crate::process::futex::{FutexRegistration, WAITERS, Words, bucket_of, key, pi, register};
use crate::time::Deadline;

/// A wait at one word, to be moved to a lock that inherits priorities.
pub struct RequeueWait {
    registration: FutexRegistration,
    lock: Wait,
}

impl RequeueWait {
    /// `FUTEX_WAIT_REQUEUE_PI`: enters the thread at the first word, to be moved to the lock at the second.
    ///
    /// # Errors
    /// `EAGAIN` (the first word has another value than expected), `EINVAL`, `ENOMEM`, a page fault.
    pub fn enter(caller: &Caller, thread: &Arc<Thread>, words: &Words, expected: u32) -> TryResult<Self> {
        if words.address == words.other {
            return Err(Errno::EINVAL.into());
        }
        let lock = pi::PiWaiter::new(thread, words.other, words.is_private)?;
        let any = linux::FUTEX_BITSET_MATCH_ANY;
        let registration =
            register(caller, words.address, expected, any, words.is_private, Some(lock.clone()))?;
        Ok(Self { registration, lock: Wait(lock) })
    }

    /// Waits until the thread has the lock.
    ///
    /// # Errors
    /// `ETIMEDOUT`; interrupted, `EAGAIN` for a thread that has been moved and must not wait at the first word again,
    /// otherwise `ERESTARTNOINTR`.
    pub async fn granted(self, caller: &Caller, deadline: Deadline) -> Result<usize, Errno> {
        let result = self.lock.granted(caller, deadline).await;
        // Not to be moved any more, and then not to be given the lock.
        drop(self.registration);
        let was_moved = self.lock.0.waits();
        if self.lock.end() {
            return Ok(0);
        }
        result.unwrap_or(Err(if was_moved { Errno::EAGAIN } else { Errno::ERESTARTNOINTR }))
    }
}

/// `FUTEX_CMP_REQUEUE_PI`: the first waiter gets the lock if it is free; it and the others wait for it otherwise.
///
/// # Errors
/// `EAGAIN` (the first word has another value than expected), `EINVAL`, those of [`pi::acquire`].
pub fn requeue(space: &Arc<Space>, words: &Words, move_count: usize, expected: u32) -> TryResult<usize> {
    if words.address == words.other {
        return Err(Errno::EINVAL.into());
    }
    let from = key(space, words.address, words.is_private)?;
    let to = key(space, words.other, words.is_private)?;
    if from == to {
        return Err(Errno::EINVAL.into());
    }
    let mut bucket = WAITERS[bucket_of(&from)].lock();
    if space.load_u32(words.address)? != expected {
        return Err(Errno::EAGAIN.into());
    }
    let count = move_count.saturating_add(1);
    let (mut moved, mut index) = (0, 0);
    while moved < count {
        let Some(position) = bucket[index..].iter().position(|entry| entry.key == from) else { break };
        index += position;
        let entry = &bucket[index];
        let lock = entry.lock.as_ref().filter(|lock| lock.is_for(&to)).ok_or(Errno::EINVAL)?;
        let is_granted = match pi::with_locks(|locks| locks.acquire(lock, true)) {
            Ok(is_granted) => is_granted,
            // Waiters that have been moved stay moved.
            Err(_) if moved > 0 => break,
            Err(error) => return Err(error),
        };
        let entry = bucket.remove(index);
        entry.waiter.is_woken.store(true, Ordering::Release);
        if is_granted {
            entry.waiter.thread.wake();
        }
        moved += 1;
    }
    Ok(moved)
}
