//! An executor's record: what its thread publishes, and what other threads and the kernel post to it.
//!
//! Two pairs of words are Dekker's, each side writing one, passing a sequentially consistent fence, and reading the
//! other: `running` and `pending` at the beginning of a turn, `mask` and `pending` at the end of a masked stretch.
//! Either the thread sees what became ready, or the one that made it ready sees that the thread must be interrupted.

use crate::user_sched::{ExecutorRecord, RUNNING_NONE, RUNNING_RESERVE};

use crate::protocol::{Ordering, fence};

/// The thread: is about to run a coroutine of `level`. `false`: something has become ready; it should look first, after
/// [`end_turn`].
#[inline(always)]
#[must_use]
pub fn begin_turn(record: &ExecutorRecord, level: u32) -> bool {
    record.running.store(level, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    record.pending.load(Ordering::Relaxed) == 0
}

/// The thread: runs no coroutine.
#[inline(always)]
pub fn end_turn(record: &ExecutorRecord) {
    record.running.store(RUNNING_NONE, Ordering::Release);
}

/// The thread: takes the reasons to look around. State that it reads afterwards is at least as new as they are.
#[inline(always)]
pub fn take(record: &ExecutorRecord) -> u32 {
    record.pending.swap(0, Ordering::Acquire)
}

/// The thread: is not interrupted from here on.
#[inline(always)]
pub fn mask(record: &ExecutorRecord) {
    record.mask.store(1, Ordering::Relaxed);
}

/// The thread: may be interrupted again. `true`: something came meanwhile that no interrupt will tell; it should look.
#[inline(always)]
#[must_use]
pub fn unmask(record: &ExecutorRecord) -> bool {
    record.mask.store(0, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    record.pending.load(Ordering::Relaxed) != 0
}

/// The thread: takes the reasons to look around, and may be interrupted again if a handler has left that to it. State
/// that it looks at afterwards is at least as new as the reasons.
#[inline]
pub fn attend(record: &ExecutorRecord) {
    take(record);
    if record.mask.load(Ordering::Relaxed) != 0 {
        // A reason posted before is found by the look, a later one interrupts.
        let _ = unmask(record);
    }
}

/// The thread, before it looks for the last time and sleeps at `pending`: its handler is not entered from here on. It
/// would take the reasons, and the thread would sleep over what they are about.
#[inline(always)]
pub fn before_sleep(record: &ExecutorRecord) {
    mask(record);
}

/// The thread sleeps no more, or has not. Reasons that have come stay for the look before its next turn or sleep.
#[inline(always)]
pub fn after_sleep(record: &ExecutorRecord) {
    let _ = unmask(record);
}

/// By any thread or the kernel: something has become ready. `true`: the thread must be made to look, by an interrupt,
/// or it sees the word when it returns from where it is.
#[inline(always)]
#[must_use]
pub fn post(record: &ExecutorRecord, reason: u32) -> bool {
    record.pending.fetch_or(reason, Ordering::Release);
    fence(Ordering::SeqCst);
    record.mask.load(Ordering::Relaxed) == 0
}

/// After [`post`]: the level of what the thread runs, if it runs a coroutine.
#[inline(always)]
#[must_use]
pub fn running(record: &ExecutorRecord) -> Option<u32> {
    let level = record.running.load(Ordering::Relaxed);
    (level < RUNNING_NONE).then_some(level)
}

/// Whether the executor sleeps in reserve.
#[inline(always)]
#[must_use]
pub fn is_reserve(record: &ExecutorRecord) -> bool {
    record.running.load(Ordering::Relaxed) == RUNNING_RESERVE
}

/// The kernel, on the thread's way to its program: whether it goes to its handler instead. If so it is masked.
#[inline(always)]
#[must_use]
pub fn enter_handler(record: &ExecutorRecord) -> bool {
    if record.mask.load(Ordering::Relaxed) != 0 || record.pending.load(Ordering::Relaxed) == 0 {
        return false;
    }
    record.mask.store(1, Ordering::Relaxed);
    true
}
