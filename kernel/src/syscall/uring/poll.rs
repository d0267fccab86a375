//! Waiting for events: `IORING_OP_POLL_ADD`, and its changes by `IORING_OP_POLL_REMOVE`.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::io_uring::{
    IORING_CQE_F_MORE, IORING_POLL_ADD_LEVEL, IORING_POLL_ADD_MULTI, IORING_POLL_UPDATE_EVENTS,
    IORING_POLL_UPDATE_USER_DATA, io_uring_op as Op,
};

use heddle_kernel_core::uring::{Sqe, SqeFlags};

use crate::call::caller::Caller;
use crate::error::{Errno, TryResult};
use crate::fs::OpenFile;
use crate::syscall::uring::completions::{Completion, Origin};
use crate::syscall::uring::operation::{OpenEntry, StartedEntry, is_cancelled, new_active, pin};
use crate::syscall::uring::request::{Submitter, UringRequest, Uses};
use crate::syscall::uring::ring::Uring;
use crate::wait::node::{WaitKind, Waiter};
use crate::wait::queue::Events;

/// The events that a request waits for.
fn wanted(events: u32) -> Events {
    Events::from_bits_truncate(events) | Events::ERR | Events::HUP
}

/// `IORING_OP_POLL_ADD`.
pub fn add(
    ring: &Arc<Uring>,
    submitter: &mut Submitter<'_>,
    sqe: &Sqe,
    (open, resource): OpenEntry,
) -> TryResult<StartedEntry> {
    const KNOWN: u32 = IORING_POLL_ADD_MULTI | IORING_POLL_ADD_LEVEL;
    let is_multishot = sqe.len & IORING_POLL_ADD_MULTI != 0;
    let is_plain = sqe.off == 0 && sqe.addr == 0 && sqe.buf_index == 0;
    if sqe.len & !KNOWN != 0 || !is_plain || is_multishot && sqe.has(SqeFlags::SKIP_SUCCESS) {
        return Err(Errno::EINVAL.into());
    }
    let wanted = wanted(sqe.op_flags);
    if !is_multishot {
        let ready = open.file.poll(&open, None, wanted)?.intersection(wanted);
        if !ready.is_empty() {
            return Ok(StartedEntry::Done(ready.bits() as i32, 0));
        }
    }
    let uses = Uses { file: resource, buffer: None };
    let active = new_active(submitter, sqe, linux_raw_sys::general::__NR_poll, (0, uses))?;
    active.request.set_file(open.clone());
    active.events.store(sqe.op_flags, Ordering::Relaxed);
    // The watch stands when the submission is over, so that what happens from then on is told of once: an event that
    // came between a later registration and its look would be seen by both.
    let watch = is_multishot.then(|| active.request.node.begin_in_steps());
    let found = watch.map(|watch| open.file.poll(&open, Some(&watch), wanted)).transpose()?;
    let future = wait_for_events(ring.clone(), active.clone(), open, found);
    Ok(StartedEntry::Waits(active, pin(future)?))
}

/// Waits until a file is ready. A poll of many shots comes with the events that its registration has `found`; it posts
/// a completion each time the file wakes its waiters.
async fn wait_for_events(
    ring: Arc<Uring>,
    active: Arc<UringRequest>,
    open: Arc<OpenFile>,
    mut found: Option<Events>,
) -> Result<usize, Errno> {
    let caller = Caller::Request(active.request.clone());
    let is_multishot = found.is_some();
    loop {
        let wanted = wanted(active.events.load(Ordering::Relaxed));
        // The watch stands before the completion is posted, so that no event after that is missed.
        let ready = match found.take() {
            Some(found) => found,
            None => open.file.poll(&open, Some(&caller.node().begin_in_steps()), wanted)?,
        };
        let ready = ready.intersection(wanted);
        if !ready.is_empty() {
            let result = ready.bits() as i32;
            let completion = Completion::new(active.user_data(), result, IORING_CQE_F_MORE);
            if !is_multishot || !ring.post_if_room(completion, Origin::Elsewhere) {
                caller.node().end();
                return Ok(ready.bits() as usize);
            }
        }
        // A turn may be a wake's that an earlier one has seen.
        let wake = core::future::poll_fn(|_| {
            if caller.node().was_woken() { core::task::Poll::Ready(()) } else { core::task::Poll::Pending }
        });
        let waited = caller.wait(WaitKind::Interruptible, wake).await;
        if waited.is_err() || is_cancelled(&active) {
            caller.node().end();
            return Err(Errno::ECANCELED);
        }
    }
}

/// `IORING_OP_POLL_REMOVE`: ends a poll, or changes its events or user data.
///
/// # Errors
/// `EINVAL`, `ENOENT`, `ENOMEM`.
pub fn remove(ring: &Uring, sqe: &Sqe) -> Result<(), Errno> {
    const UPDATES: u32 = IORING_POLL_UPDATE_EVENTS | IORING_POLL_UPDATE_USER_DATA;
    let flags = sqe.len;
    let (events, user_data) =
        (flags & IORING_POLL_UPDATE_EVENTS != 0, flags & IORING_POLL_UPDATE_USER_DATA != 0);
    let is_known = flags & !(UPDATES | IORING_POLL_ADD_MULTI) == 0 && flags != IORING_POLL_ADD_MULTI;
    let is_plain = sqe.buf_index == 0 && sqe.file_index == 0;
    if !is_known || !is_plain || !user_data && sqe.off != 0 || !events && sqe.op_flags != 0 {
        return Err(Errno::EINVAL);
    }
    let found = ring.find(sqe.addr, |active| active.sqe.is(Op::IORING_OP_POLL_ADD) && !is_cancelled(active));
    let found = found.ok_or(Errno::ENOENT)?;
    if !events && !user_data {
        found.request.cancel();
        return Ok(());
    }
    if events {
        found.events.store(sqe.op_flags, Ordering::Relaxed);
    }
    if user_data {
        ring.requests.lock().rename(&found, sqe.off)?;
    }
    // It looks again, with the new events.
    found.request.node.wake_from_queue();
    Ok(())
}
