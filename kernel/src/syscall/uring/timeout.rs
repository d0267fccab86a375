//! Timeouts.

use alloc::sync::Arc;
use linux_raw_sys::io_uring::{
    IORING_LINK_TIMEOUT_UPDATE, IORING_TIMEOUT_ABS, IORING_TIMEOUT_BOOTTIME, IORING_TIMEOUT_ETIME_SUCCESS,
    IORING_TIMEOUT_REALTIME, IORING_TIMEOUT_UPDATE, io_uring_op as Op,
};

use heddle_kernel_core::uring::Sqe;

use crate::call::caller::Caller;
use crate::error::{Errno, TryResult};
use crate::memory::Space;
use crate::sched::Budget;
use crate::syscall::uring::request::UringRequest;
use crate::syscall::uring::ring::Uring;
use crate::syscall::user;
use crate::time::{Clock, Deadline, NS_PER_SECOND};
use crate::wait::engine::until;
use crate::wait::node::WaitKind;
use crate::wait::queue::Events;

const CLOCKS: u32 = IORING_TIMEOUT_BOOTTIME | IORING_TIMEOUT_REALTIME;

/// When the time of a `struct timespec` at `address` has come.
///
/// # Errors
/// A page fault; `EINVAL`.
fn read(space: &Space, address: u64, flags: u32) -> TryResult<u64> {
    let address = usize::try_from(address).map_err(|_| Errno::EFAULT)?;
    let [seconds, nanoseconds] = space.read::<[u64; 2]>(address)?;
    // More nanoseconds than a second has are taken as they are.
    if seconds.cast_signed() < 0 || nanoseconds.cast_signed() < 0 {
        return Err(Errno::EINVAL.into());
    }
    let time_ns = seconds.saturating_mul(NS_PER_SECOND).saturating_add(nanoseconds);
    let deadline = if flags & IORING_TIMEOUT_ABS == 0 {
        Deadline::after(Some(time_ns))
    } else if flags & IORING_TIMEOUT_REALTIME != 0 {
        Deadline::at(Clock::Realtime, time_ns)
    } else {
        Deadline::at(Clock::Monotonic, time_ns)
    };
    Ok(deadline.moment_ns())
}

fn check(sqe: &Sqe, known: u32) -> Result<(), Errno> {
    let is_known = sqe.op_flags & !known == 0 && sqe.op_flags & CLOCKS != CLOCKS;
    let is_plain = sqe.len == 1 && sqe.buf_index == 0 && sqe.file_index == 0;
    if is_known && is_plain { Ok(()) } else { Err(Errno::EINVAL) }
}

/// The deadline of `IORING_OP_TIMEOUT`.
///
/// # Errors
/// A page fault; `EINVAL`.
pub fn deadline(space: &Space, sqe: &Sqe) -> TryResult<u64> {
    check(sqe, IORING_TIMEOUT_ABS | CLOCKS | IORING_TIMEOUT_ETIME_SUCCESS)?;
    read(space, sqe.addr, sqe.op_flags)
}

/// The deadline of `IORING_OP_LINK_TIMEOUT`.
///
/// # Errors
/// `EFAULT`, `EINVAL`.
pub async fn read_later(caller: &Caller, sqe: &Sqe) -> Result<u64, Errno> {
    check(sqe, IORING_TIMEOUT_ABS | CLOCKS)?;
    if sqe.off != 0 {
        return Err(Errno::EINVAL);
    }
    let space = caller.space();
    user::resolve_attempt(&space, || caller.is_dying(), |space| read(space, sqe.addr, sqe.op_flags)).await
}

/// How many completions there will have been when a timeout is over by their count.
pub fn target(ring: &Uring, sqe: &Sqe) -> Option<u64> {
    (sqe.off != 0).then(|| ring.counted() + u64::from(sqe.off as u32))
}

/// Waits until a timeout is over: its time has come, or there have been `target` completions.
///
/// # Errors
/// `ETIME`; interrupted.
pub async fn wait(ring: Arc<Uring>, active: Arc<UringRequest>, target: Option<u64>) -> Result<usize, Errno> {
    let caller = Caller::Request(active.request.clone());
    loop {
        let deadline_ns = *active.deadline_ns.lock();
        let waited = until(&caller, WaitKind::Interruptible, Some(deadline_ns), |watch| {
            if let Some(target) = target {
                ring.queue.watch(watch, Events::IN)?;
                if ring.counted() >= target {
                    return Ok(Some(true));
                }
            }
            Ok((*active.deadline_ns.lock() != deadline_ns).then_some(false))
        });
        match waited.await? {
            None => return Err(Errno::ETIME),
            Some(true) => return Ok(0),
            Some(false) => {}
        }
    }
}

/// `IORING_OP_TIMEOUT_REMOVE`: ends a timeout, or changes its time; of a linked one it is the new deadline.
///
/// # Errors
/// `ENOENT`, `EINVAL`; a page fault.
pub fn remove(ring: &Uring, space: &Space, sqe: &Sqe) -> TryResult<Option<u64>> {
    let updates = IORING_TIMEOUT_UPDATE | IORING_LINK_TIMEOUT_UPDATE;
    let flags = sqe.op_flags;
    let is_update = flags & updates != 0;
    let is_plain = sqe.len == 0 && sqe.buf_index == 0 && sqe.file_index == 0 && sqe.ioprio == 0;
    let is_known = flags & !(updates | IORING_TIMEOUT_ABS | CLOCKS) == 0;
    if !is_plain || !is_known || !is_update && flags != 0 || flags & CLOCKS == CLOCKS {
        return Err(Errno::EINVAL.into());
    }
    let deadline_ns = if is_update { Some(read(space, sqe.off, flags)?) } else { None };
    // As in Linux, the flag for linked ones alone is no update.
    let deadline_ns = deadline_ns.filter(|_| flags & IORING_TIMEOUT_UPDATE != 0);
    if deadline_ns.is_some() && flags & IORING_LINK_TIMEOUT_UPDATE != 0 {
        return Ok(deadline_ns);
    }
    let found = ring.find(sqe.addr, |active| {
        active.sqe.is(Op::IORING_OP_TIMEOUT) && !active.request.is_interrupted(WaitKind::Interruptible)
    });
    let found = found.ok_or(Errno::ENOENT)?;
    match deadline_ns {
        Some(deadline_ns) => {
            *found.deadline_ns.lock() = deadline_ns;
            found.request.wake();
        }
        None => found.request.cancel(),
    }
    Ok(None)
}

/// Gives the linked timeout with these user data another deadline.
///
/// # Errors
/// `ENOENT`.
pub async fn update_linked(ring: Arc<Uring>, user_data: u64, deadline_ns: u64) -> Result<usize, Errno> {
    const LOOK_COST: u32 = 2;
    let (mut budget, mut from) = (Budget::new(), (0, 0));
    loop {
        budget.step(LOOK_COST).await;
        let next = ring.requests.lock().next(from);
        let Some(((of_request, number), active)) = next else { return Err(Errno::ENOENT) };
        from = (of_request, number + 1);
        let is_it = {
            let mut linked = active.linked.lock();
            let is_it = linked.is_some_and(|linked| linked.0 == user_data);
            if is_it {
                *linked = Some((user_data, deadline_ns));
            }
            is_it
        };
        if is_it {
            active.request.wake();
            return Ok(0);
        }
    }
}
