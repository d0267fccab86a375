//! The operations: how an entry becomes a result, or the future of one.

use alloc::sync::Arc;
use linux_raw_sys::general::__NR_io_uring_enter;
use linux_raw_sys::io_uring::{
    IORING_ACCEPT_MULTISHOT, IORING_ASYNC_CANCEL_ALL, IORING_ASYNC_CANCEL_ANY, IORING_ASYNC_CANCEL_FD,
    IORING_ASYNC_CANCEL_FD_FIXED, IORING_CQE_F_MORE, IORING_POLL_ADD_MULTI, io_uring_op as Op,
};
use linux_raw_sys::net::MSG_DONTWAIT;

use heddle_kernel_core::uring::{InvalidEntry, Sqe, SqeFlags, SystemCall, Target, is_system_call};

use crate::call::CallFuture;
use crate::call::asynchronous::AsyncRequest;
use crate::call::caller::Caller;
use crate::error::{Errno, TryError, TryResult};
use crate::fs::{OpenFile, StatusFlags, downcast};
use crate::memory::fallible;
use crate::sched;
use crate::sched::Budget;
use crate::sync::SpinLock;
use crate::syscall::submitted::{Attempt, attempt, complete};
use crate::syscall::uring::request::{Submitter, UringRequest, level_of};
use crate::syscall::uring::ring::Uring;
use crate::syscall::uring::timeout;
use crate::wait::node::{WaitKind, Waiter};
use crate::wait::queue::Events;

/// An entry that has started.
pub enum StartedEntry {
    /// It is over, with this result.
    Done(i32),
    /// It waits.
    Waits(Arc<UringRequest>, CallFuture),
}

impl From<InvalidEntry> for TryError {
    fn from(_: InvalidEntry) -> Self {
        Self::Error(Errno::EINVAL)
    }
}

/// Whether there is an operation of this number.
pub fn is_known(opcode: u8) -> bool {
    const OWN: [Op; 7] = [
        Op::IORING_OP_NOP,
        Op::IORING_OP_POLL_ADD,
        Op::IORING_OP_POLL_REMOVE,
        Op::IORING_OP_TIMEOUT,
        Op::IORING_OP_TIMEOUT_REMOVE,
        Op::IORING_OP_ASYNC_CANCEL,
        Op::IORING_OP_LINK_TIMEOUT,
    ];
    is_system_call(opcode) || OWN.iter().any(|&operation| opcode == operation as u8)
}

/// Whether an entry can start at all; one that cannot ends the batch.
///
/// # Errors
/// `EINVAL`.
pub fn check(sqe: &Sqe) -> Result<(), Errno> {
    let flags = sqe.known_flags().map_err(|_| Errno::EINVAL)?;
    let takes_no_file = flags.contains(SqeFlags::FIXED_FILE) && !sqe.accepts_fixed_file();
    if !is_known(sqe.opcode) || sqe.personality != 0 || takes_no_file {
        return Err(Errno::EINVAL);
    }
    level_of(sqe).map(|_| ())
}

/// Starts an entry.
///
/// # Errors
/// Its error; a page fault: it is to be started again once the page is there.
pub fn start(ring: &Arc<Uring>, submitter: &mut Submitter<'_>, sqe: &Sqe) -> TryResult<StartedEntry> {
    check(sqe)?;
    if sqe.is(Op::IORING_OP_NOP) {
        return Ok(StartedEntry::Done(0));
    }
    let space = submitter.caller.space();
    if sqe.is(Op::IORING_OP_TIMEOUT_REMOVE) {
        timeout::remove(ring, &space, sqe)?;
        return Ok(StartedEntry::Done(0));
    }
    if sqe.is(Op::IORING_OP_POLL_REMOVE) {
        // Changing a poll's events or data is not offered.
        if sqe.len != 0 || sqe.off != 0 || sqe.op_flags != 0 || sqe.buf_index != 0 || sqe.file_index != 0 {
            return Err(Errno::EINVAL.into());
        }
        let found =
            ring.find(sqe.addr, |active| active.sqe.is(Op::IORING_OP_POLL_ADD) && !is_cancelled(active));
        found.ok_or(Errno::ENOENT)?.request.cancel();
        return Ok(StartedEntry::Done(0));
    }
    if sqe.is(Op::IORING_OP_ASYNC_CANCEL) {
        return cancel(ring, submitter, sqe);
    }
    if sqe.is(Op::IORING_OP_LINK_TIMEOUT) {
        // One that follows another is part of that.
        return Err(Errno::EINVAL.into());
    }
    if sqe.is(Op::IORING_OP_TIMEOUT) {
        let deadline_ns = timeout::deadline(&space, sqe)?;
        let active = new_active(submitter, sqe, __NR_io_uring_enter, deadline_ns)?;
        let future = timeout::wait(ring.clone(), active.clone(), timeout::target(ring, sqe));
        return Ok(StartedEntry::Waits(active, pin(future)?));
    }
    let open = if sqe.accepts_fixed_file() { Some(file(ring, submitter.caller, sqe)?) } else { None };
    if let Some(open) = &open
        && sqe.is(Op::IORING_OP_POLL_ADD)
    {
        return poll(ring, submitter, sqe, open);
    }
    if sqe.is(Op::IORING_OP_READ_FIXED) || sqe.is(Op::IORING_OP_WRITE_FIXED) {
        check_buffer(ring, sqe)?;
    }
    if sqe.is(Op::IORING_OP_CLOSE)
        && let Ok(open) = submitter.caller.descriptors().get(sqe.fd)
        && downcast::<Uring>(&open).is_some()
    {
        return Err(Errno::EBADF.into());
    }
    let is_positioned = open.as_ref().is_some_and(|open| open.file.is_seekable());
    let target = if is_positioned { Target::Positioned } else { Target::Other };
    let call = sqe.system_call(target)?.ok_or(Errno::EINVAL)?;
    start_as_call(ring, submitter, sqe, call, open)
}

fn is_cancelled(active: &UringRequest) -> bool {
    active.request.is_interrupted(WaitKind::Interruptible)
}

fn pin(future: impl Future<Output = Result<usize, Errno>> + Send + 'static) -> Result<CallFuture, Errno> {
    Ok(alloc::boxed::Box::into_pin(fallible::try_box(future)?))
}

fn new_active(
    submitter: &mut Submitter<'_>,
    sqe: &Sqe,
    number: u32,
    deadline_ns: u64,
) -> Result<Arc<UringRequest>, Errno> {
    let level = level_of(sqe)?;
    let request = AsyncRequest::new(submitter.unused.take(), submitter.caller, (number, level), [0; 2])?;
    fallible::try_arc(UringRequest { sqe: *sqe, request, deadline_ns: SpinLock::new(deadline_ns) })
}

/// The file that an entry is about.
fn file(ring: &Uring, caller: &Caller, sqe: &Sqe) -> Result<Arc<OpenFile>, Errno> {
    let open = if sqe.flags & SqeFlags::FIXED_FILE.bits() == 0 {
        caller.descriptors().get(sqe.fd)?
    } else {
        let registered = ring.registered.lock();
        let index = usize::try_from(sqe.fd).map_err(|_| Errno::EBADF)?;
        registered.files.get(index).and_then(Option::clone).ok_or(Errno::EBADF)?
    };
    if open.flags().contains(StatusFlags::PATH) { Err(Errno::EBADF) } else { Ok(open) }
}

/// Whether a transfer stays inside the registered buffer that it names.
fn check_buffer(ring: &Uring, sqe: &Sqe) -> Result<(), Errno> {
    let buffer = ring.registered.lock().buffers.get(usize::from(sqe.buf_index)).copied();
    let (address, length) = buffer.ok_or(Errno::EFAULT)?;
    let end = sqe.addr.checked_add(u64::from(sqe.len)).ok_or(Errno::EOVERFLOW)?;
    if sqe.addr < address || end > address + length { Err(Errno::EFAULT) } else { Ok(()) }
}

/// The readiness that an operation waits for on a file open with `O_NONBLOCK`: the request waits all the same,
/// unless the operation itself says otherwise.
fn readiness(sqe: &Sqe, open: Option<&Arc<OpenFile>>) -> Option<(Arc<OpenFile>, Events)> {
    let open = open.filter(|open| open.flags().contains(StatusFlags::NONBLOCK))?;
    let is = |operations: &[Op]| operations.iter().any(|&operation| sqe.is(operation));
    let is_message =
        is(&[Op::IORING_OP_SEND, Op::IORING_OP_RECV, Op::IORING_OP_SENDMSG, Op::IORING_OP_RECVMSG]);
    let is_vector = is(&[Op::IORING_OP_READV, Op::IORING_OP_WRITEV]);
    if is_message && sqe.op_flags & MSG_DONTWAIT != 0 || is_vector && sqe.op_flags != 0 {
        return None;
    }
    let reads = [
        Op::IORING_OP_READ,
        Op::IORING_OP_READ_FIXED,
        Op::IORING_OP_READV,
        Op::IORING_OP_RECV,
        Op::IORING_OP_RECVMSG,
        Op::IORING_OP_ACCEPT,
    ];
    Some((open.clone(), if is(&reads) { Events::IN } else { Events::OUT }))
}

/// Starts an entry that is a system call.
fn start_as_call(
    ring: &Arc<Uring>,
    submitter: &mut Submitter<'_>,
    sqe: &Sqe,
    call: SystemCall,
    open: Option<Arc<OpenFile>>,
) -> TryResult<StartedEntry> {
    let active = new_active(submitter, sqe, call.number, 0)?;
    let retry = readiness(sqe, open.as_ref());
    if let Some(open) = open {
        active.request.set_file(open);
    }
    if sqe.is(Op::IORING_OP_ACCEPT) && sqe.ioprio != 0 {
        if u32::from(sqe.ioprio) != IORING_ACCEPT_MULTISHOT {
            return Err(Errno::EINVAL.into());
        }
        let future = accept_many(ring.clone(), active.clone(), call, retry);
        return Ok(StartedEntry::Waits(active, pin(future)?));
    }
    let request = active.request.clone();
    let first = match attempt(&request, submitter.context, call)? {
        Attempt::Done(Err(Errno::EAGAIN)) if retry.is_some() => Some(Attempt::Done(Err(Errno::EAGAIN))),
        Attempt::Done(Err(Errno::EINPROGRESS)) if retry.is_some() => Some(Attempt::Done(Err(Errno::EAGAIN))),
        Attempt::Done(result) if request.late.is_empty() => {
            let result = request.outcome(result) as i32;
            drop(active);
            submitter.unused = Some(request);
            return Ok(StartedEntry::Done(result));
        }
        started => Some(started),
    };
    let future = complete(request, call, first, retry);
    Ok(StartedEntry::Waits(active, pin(future)?))
}

/// Accepts connections, each with a completion of its own, until one fails.
async fn accept_many(
    ring: Arc<Uring>,
    active: Arc<UringRequest>,
    call: SystemCall,
    retry: Option<(Arc<OpenFile>, Events)>,
) -> Result<usize, Errno> {
    loop {
        let descriptor = complete(active.request.clone(), call, None, retry.clone()).await?;
        ring.post(active.sqe.user_data, descriptor as i32, IORING_CQE_F_MORE);
        if is_cancelled(&active) {
            return Err(Errno::ECANCELED);
        }
        sched::yield_now().await;
    }
}

/// `IORING_OP_POLL_ADD`.
fn poll(
    ring: &Arc<Uring>,
    submitter: &mut Submitter<'_>,
    sqe: &Sqe,
    open: &Arc<OpenFile>,
) -> TryResult<StartedEntry> {
    let is_multishot = sqe.len & IORING_POLL_ADD_MULTI != 0;
    if sqe.len & !IORING_POLL_ADD_MULTI != 0 || sqe.off != 0 || sqe.addr != 0 || sqe.buf_index != 0 {
        return Err(Errno::EINVAL.into());
    }
    let wanted = Events::from_bits_truncate(sqe.op_flags) | Events::ERR | Events::HUP;
    if !is_multishot {
        let ready = open.file.poll(open, None, wanted)?.intersection(wanted);
        if !ready.is_empty() {
            return Ok(StartedEntry::Done(ready.bits() as i32));
        }
    }
    let active = new_active(submitter, sqe, linux_raw_sys::general::__NR_poll, 0)?;
    active.request.set_file(open.clone());
    let future = wait_for_events(ring.clone(), active.clone(), open.clone(), (wanted, is_multishot));
    Ok(StartedEntry::Waits(active, pin(future)?))
}

/// Waits until a file is ready; with more than one shot, a completion is posted each time the file wakes its waiters.
async fn wait_for_events(
    ring: Arc<Uring>,
    active: Arc<UringRequest>,
    open: Arc<OpenFile>,
    (wanted, is_multishot): (Events, bool),
) -> Result<usize, Errno> {
    let caller = Caller::Request(active.request.clone());
    loop {
        // The watch stands before the completion is posted, so that no event after that is missed.
        let watch = caller.node().begin();
        let ready = open.file.poll(&open, Some(&watch), wanted)?.intersection(wanted);
        if !ready.is_empty() {
            if !is_multishot {
                caller.node().end();
                return Ok(ready.bits() as usize);
            }
            ring.post(active.sqe.user_data, ready.bits() as i32, IORING_CQE_F_MORE);
        }
        let mut is_woken = false;
        let wake = core::future::poll_fn(|_| {
            if core::mem::replace(&mut is_woken, true) {
                core::task::Poll::Ready(())
            } else {
                core::task::Poll::Pending
            }
        });
        let waited = caller.wait(WaitKind::Interruptible, wake).await;
        if waited.is_err() || is_cancelled(&active) {
            caller.node().end();
            return Err(Errno::ECANCELED);
        }
    }
}

/// The requests that `IORING_OP_ASYNC_CANCEL` looks for.
struct Pattern {
    user_data: Option<u64>,
    file: Option<Arc<OpenFile>>,
}

impl Pattern {
    fn matches(&self, active: &UringRequest) -> bool {
        let is_same_file = |open: &Arc<OpenFile>| {
            active.request.file().is_some_and(|of_request| Arc::ptr_eq(open, &of_request))
        };
        !is_cancelled(active)
            && self.user_data.is_none_or(|user_data| active.sqe.user_data == user_data)
            && self.file.as_ref().is_none_or(is_same_file)
    }
}

/// `IORING_OP_ASYNC_CANCEL`.
fn cancel(ring: &Arc<Uring>, submitter: &mut Submitter<'_>, sqe: &Sqe) -> TryResult<StartedEntry> {
    const KNOWN: u32 = IORING_ASYNC_CANCEL_ALL
        | IORING_ASYNC_CANCEL_FD
        | IORING_ASYNC_CANCEL_ANY
        | IORING_ASYNC_CANCEL_FD_FIXED;
    let flags = sqe.op_flags;
    let has = |flag: u32| flags & flag != 0;
    let by_file = has(IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_FD_FIXED);
    let is_plain = sqe.off == 0 && sqe.len == 0 && sqe.file_index == 0 && sqe.ioprio == 0;
    if flags & !KNOWN != 0 || !is_plain || by_file && has(IORING_ASYNC_CANCEL_ANY) {
        return Err(Errno::EINVAL.into());
    }
    let sought = if by_file {
        let mut named = *sqe;
        named.flags = if has(IORING_ASYNC_CANCEL_FD_FIXED) { SqeFlags::FIXED_FILE.bits() } else { 0 };
        Pattern { user_data: None, file: Some(file(ring, submitter.caller, &named)?) }
    } else if has(IORING_ASYNC_CANCEL_ANY) {
        Pattern { user_data: None, file: None }
    } else {
        Pattern { user_data: Some(sqe.addr), file: None }
    };
    let takes_all = has(IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_ANY);
    if let (Some(user_data), false) = (sought.user_data, takes_all) {
        let found = ring.find(user_data, |active| sought.matches(active)).ok_or(Errno::ENOENT)?;
        found.request.cancel();
        return Ok(StartedEntry::Done(0));
    }
    let active = new_active(submitter, sqe, __NR_io_uring_enter, 0)?;
    let future = cancel_all(ring.clone(), active.clone(), sought, takes_all);
    Ok(StartedEntry::Waits(active, pin(future)?))
}

/// Cancels every request that matches, or the first; the result is how many, or 0 for the one.
async fn cancel_all(
    ring: Arc<Uring>,
    own: Arc<UringRequest>,
    sought: Pattern,
    takes_all: bool,
) -> Result<usize, Errno> {
    const LOOK_COST: u32 = 2;
    let (mut budget, mut from, mut cancelled) = (Budget::new(), (0, 0), 0);
    loop {
        budget.step(LOOK_COST).await;
        let next = ring.requests.lock().next(from);
        let Some(((user_data, number), active)) = next else { break };
        from = (user_data, number + 1);
        if Arc::ptr_eq(&active, &own) || !sought.matches(&active) {
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
