//! Condition variables over locks that inherit priorities: waiters are moved from a word to a lock.

use core::sync::atomic::Ordering;
use linux_raw_sys::general as linux;

use crate::error::{Errno, TryResult};
use crate::syscall::caller::Caller;
use crate::syscall::futex::{Two, WAITERS, bucket_of, key, pi, register};
use crate::syscall::{Call, SyscallResult, pending};
use crate::time::Deadline;

/// `FUTEX_WAIT_REQUEUE_PI`: waits at the first word to be moved to the lock at the second, and for that lock.
pub(super) fn wait(call: &Call<'_>, words: &Two, deadline: Deadline) -> SyscallResult {
    let Caller::Thread(thread) = call.thread else { return Err(Errno::ENOSYS.into()) };
    if words.address == words.other {
        return Err(Errno::EINVAL.into());
    }
    let lock = pi::PiWaiter::new(thread, words.other, words.is_private)?;
    let (expected, any) = (call.uint(2), linux::FUTEX_BITSET_MATCH_ANY);
    let registration =
        register(call.thread, words.address, expected, any, words.is_private, Some(lock.clone()))?;
    let wait = pi::Wait(lock);
    let caller = call.thread.clone();
    pending(async move {
        let result = wait.granted(&caller, deadline).await;
        // Not to be moved any more, and then not to be given the lock.
        drop(registration);
        let lock = wait.0.clone();
        let was_moved = lock.waits();
        drop(wait);
        if lock.is_granted() {
            return Ok(0);
        }
        // Who has been moved must not wait at the first word again.
        result.unwrap_or(Err(if was_moved { Errno::EAGAIN } else { Errno::ERESTARTNOINTR }))
    })
}

/// `FUTEX_CMP_REQUEUE_PI`: the first waiter gets the lock if it is free; it and the others wait for it otherwise.
pub(super) fn requeue(call: &Call<'_>, words: &Two) -> TryResult<usize> {
    let (wake_count, move_count, expected) = (call.int(2), call.int(3), call.uint(5));
    if wake_count != 1 || move_count < 0 || words.address == words.other {
        return Err(Errno::EINVAL.into());
    }
    let space = call.thread.space();
    let from = key(&space, words.address, words.is_private)?;
    let to = key(&space, words.other, words.is_private)?;
    if from == to {
        return Err(Errno::EINVAL.into());
    }
    let mut bucket = WAITERS[bucket_of(&from)].lock();
    if space.load_u32(words.address)? != expected {
        return Err(Errno::EAGAIN.into());
    }
    let count = move_count as usize + 1;
    let (mut moved, mut index) = (0, 0);
    while moved < count {
        let Some(position) = bucket[index..].iter().position(|entry| entry.key == from) else { break };
        index += position;
        let entry = &bucket[index];
        let lock = entry.lock.as_ref().filter(|lock| lock.is_for(&to)).ok_or(Errno::EINVAL)?;
        let is_granted = match pi::with_locks(|locks| locks.acquire(lock, true)) {
            Ok(is_granted) => is_granted,
            // What has been moved stays so.
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
