//! Cancelling requests: `IORING_OP_ASYNC_CANCEL` and `IORING_REGISTER_SYNC_CANCEL`.

use alloc::sync::Arc;
use linux_raw_sys::general::__NR_io_uring_enter;
use linux_raw_sys::io_uring::{
    IORING_ASYNC_CANCEL_ALL, IORING_ASYNC_CANCEL_ANY, IORING_ASYNC_CANCEL_FD, IORING_ASYNC_CANCEL_FD_FIXED,
};

use heddle_kernel_core::uring::{Sqe, SqeFlags};

use crate::arch::time::now_ns;
use crate::call::caller::Caller;
use crate::error::{Errno, TryResult};
use crate::fs::OpenFile;
use crate::sched;
use crate::sched::Budget;
use crate::syscall::uring::operation::{StartedEntry, file, is_cancelled, new_active, pin};
use crate::syscall::uring::request::{Submitter, UringRequest, Uses};
use crate::syscall::uring::ring::Uring;
use crate::syscall::{Call, SyscallResult, pending};
use crate::wait::engine::until;
use crate::wait::node::WaitKind;
use crate::wait::queue::Events;

/// The flags of a cancellation.
const KNOWN: u32 =
    IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_FD_FIXED;
/// Turns that others get before a cancellation waits with its time limit.
const TURNS: u32 = 16;
/// Units of work that a look at a request costs.
const LOOK_COST: u32 = 2;

/// The requests that `IORING_OP_ASYNC_CANCEL` looks for.
struct Pattern {
    user_data: Option<u64>,
    file: Option<Arc<OpenFile>>,
}

impl Pattern {
    /// Those that an entry, or a registration in its form, names.
    fn new(ring: &Uring, caller: &Caller, sqe: &Sqe) -> Result<Self, Errno> {
        let has = |flag: u32| sqe.op_flags & flag != 0;
        if has(IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_FD_FIXED) {
            let mut named = *sqe;
            named.flags = if has(IORING_ASYNC_CANCEL_FD_FIXED) { SqeFlags::FIXED_FILE.bits() } else { 0 };
            return Ok(Self { user_data: None, file: Some(file(ring, caller, &named)?.0) });
        }
        let is_any = has(IORING_ASYNC_CANCEL_ANY);
        Ok(Self { user_data: (!is_any).then_some(sqe.addr), file: None })
    }

    /// Whether a request is one of them, cancelled or not.
    fn names(&self, active: &UringRequest) -> bool {
        let is_same_file = |open: &Arc<OpenFile>| {
            active.request.file().is_some_and(|of_request| Arc::ptr_eq(open, &of_request))
        };
        self.user_data.is_none_or(|user_data| active.user_data() == user_data)
            && self.file.as_ref().is_none_or(is_same_file)
    }

    fn matches(&self, active: &UringRequest) -> bool {
        !is_cancelled(active) && self.names(active)
    }
}

/// `IORING_OP_ASYNC_CANCEL`.
pub fn start(ring: &Arc<Uring>, submitter: &mut Submitter<'_>, sqe: &Sqe) -> TryResult<StartedEntry> {
    let flags = sqe.op_flags;
    let has = |flag: u32| flags & flag != 0;
    let by_file = has(IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_FD_FIXED);
    let is_plain = sqe.off == 0 && sqe.len == 0 && sqe.file_index == 0 && sqe.ioprio == 0;
    if flags & !KNOWN != 0 || !is_plain || by_file && has(IORING_ASYNC_CANCEL_ANY) {
        return Err(Errno::EINVAL.into());
    }
    let sought = Pattern::new(ring, submitter.caller, sqe)?;
    let takes_all = has(IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_ANY);
    if let (Some(user_data), false) = (sought.user_data, takes_all) {
        let found = ring.find(user_data, |active| sought.matches(active)).ok_or(Errno::ENOENT)?;
        found.request.cancel();
        return Ok(StartedEntry::Done(0, 0));
    }
    let active = new_active(submitter, sqe, __NR_io_uring_enter, (0, Uses::default()))?;
    let own = active.clone();
    let ring = ring.clone();
    let future = async move { cancel_all(&ring, Some(&own), &sought, takes_all).await };
    Ok(StartedEntry::Waits(active, pin(future)?))
}

/// Cancels every request that matches, or the first; the result is how many, or 0 for the one.
async fn cancel_all(
    ring: &Uring,
    own: Option<&Arc<UringRequest>>,
    sought: &Pattern,
    takes_all: bool,
) -> Result<usize, Errno> {
    let (mut budget, mut from, mut cancelled) = (Budget::new(), (0, 0), 0);
    loop {
        budget.step(LOOK_COST).await;
        let next = ring.requests.lock().next(from);
        let Some(((user_data, number), active)) = next else { break };
        from = (user_data, number + 1);
        if own.is_some_and(|own| Arc::ptr_eq(&active, own)) || !sought.matches(&active) {
            continue;
        }
        active.request.cancel();
        if !takes_all {
            return Ok(0);
        }
        cancelled += 1;
    }
    if cancelled == 0 && !takes_all { Err(Errno::ENOENT) } else { Ok(cancelled) }
}

/// `IORING_REGISTER_SYNC_CANCEL`: cancels, and waits until the requests have ended.
pub fn cancel_and_wait(call: &Call<'_>, ring: &Arc<Uring>, address: usize) -> SyscallResult {
    const NANOSECONDS: u64 = 1_000_000_000;
    let [user_data, numbers, seconds, nanoseconds, rest @ ..] =
        call.thread.space().read::<[u64; 8]>(address)?;
    let flags = (numbers >> 32) as u32;
    if flags & !KNOWN != 0 || rest != [0; 4] {
        return Err(Errno::EINVAL.into());
    }
    let words = [(numbers & 0xffff_ffff) << 32, 0, user_data, u64::from(flags) << 32, 0, 0, 0, 0];
    let sought = Pattern::new(ring, call.thread, &Sqe::from_words(words))?;
    let is_endless = seconds == u64::MAX && nanoseconds == u64::MAX;
    let limit_ns = seconds.saturating_mul(NANOSECONDS).saturating_add(nanoseconds);
    let deadline_ns = (!is_endless).then(|| now_ns().saturating_add(limit_ns));
    let takes_all = flags & (IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_ANY) != 0;
    let (ring, caller) = (ring.clone(), call.thread.clone());
    pending(async move {
        let cancelled = match cancel_all(&ring, None, &sought, takes_all).await? {
            0 if takes_all => return Err(Errno::ENOENT),
            cancelled => cancelled,
        };
        // Those that only wait end in their next turn, whatever the time.
        for _ in 0..TURNS {
            if !is_any_left(&ring, &sought).await {
                return Ok(cancelled);
            }
            sched::yield_now().await;
        }
        loop {
            let before = ring.counted();
            if !is_any_left(&ring, &sought).await {
                return Ok(cancelled);
            }
            let waited = until(&caller, WaitKind::Interruptible, deadline_ns, |watch| {
                ring.queue.watch(watch, Events::IN)?;
                Ok((ring.counted() != before).then_some(()))
            });
            if waited.await?.is_none() {
                return Err(Errno::ETIME);
            }
        }
    })
}

/// Whether there is a request that was cancelled and has not ended.
async fn is_any_left(ring: &Uring, sought: &Pattern) -> bool {
    let (mut budget, mut from) = (Budget::new(), (0, 0));
    loop {
        budget.step(LOOK_COST).await;
        let next = ring.requests.lock().next(from);
        let Some(((user_data, number), active)) = next else { return false };
        if is_cancelled(&active) && sought.names(&active) {
            return true;
        }
        from = (user_data, number + 1);
    }
}
