//! The operations: how an entry becomes a result, or the future of one.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::general::{__NR_io_uring_enter, __NR_splice, __NR_tee};
use linux_raw_sys::io_uring::{
    IORING_ACCEPT_MULTISHOT, IORING_CQE_F_MORE, IORING_RECV_MULTISHOT, IORING_SETUP_IOPOLL,
    IORING_SETUP_R_DISABLED, io_uring_op as Op,
};
use linux_raw_sys::net::MSG_DONTWAIT;

use heddle_kernel_core::uring::{InvalidEntry, Sqe, SqeFlags, SystemCall, Target, is_system_call};

use crate::call::CallFuture;
use crate::call::asynchronous::AsyncRequest;
use crate::call::caller::Caller;
use crate::error::{Errno, TryError, TryResult};
use crate::fs::{OpenFile, StatusFlags, downcast};
use crate::memory::fallible;
use crate::net::protocol::protocol_socket;
use crate::sched;
use crate::syscall::Restart;
use crate::syscall::fs::{read_write, splice};
use crate::syscall::submitted::{Attempt, SubmittedCall, attempt, complete};
use crate::syscall::uring::completions::{Completion, Origin};
use crate::syscall::uring::direct::DirectSlot;
use crate::syscall::uring::request::{Submitter, UringRequest, Uses, level_of};
use crate::syscall::uring::resources::{BufferResource, FileResource};
use crate::syscall::uring::ring::Uring;
use crate::syscall::uring::{cancel, direct, message_ring, poll, select, timeout};
use crate::wait::node::WaitKind;
use crate::wait::queue::Events;

/// An entry that has started.
pub enum StartedEntry {
    /// It is over, with this result and flags of its completion.
    Done(i32, u32),
    /// It waits.
    Waits(Arc<UringRequest>, CallFuture),
}

/// The file that an entry is about, and how it is registered if it is.
pub type OpenEntry = (Arc<OpenFile>, Option<Arc<FileResource>>);

impl From<InvalidEntry> for TryError {
    fn from(_: InvalidEntry) -> Self {
        Self::Error(Errno::EINVAL)
    }
}

/// Whether there is an operation of this number.
pub fn is_known(opcode: u8) -> bool {
    const OWN: [Op; 16] = [
        Op::IORING_OP_NOP,
        Op::IORING_OP_POLL_ADD,
        Op::IORING_OP_POLL_REMOVE,
        Op::IORING_OP_TIMEOUT,
        Op::IORING_OP_TIMEOUT_REMOVE,
        Op::IORING_OP_ASYNC_CANCEL,
        Op::IORING_OP_LINK_TIMEOUT,
        Op::IORING_OP_FILES_UPDATE,
        Op::IORING_OP_PROVIDE_BUFFERS,
        Op::IORING_OP_REMOVE_BUFFERS,
        Op::IORING_OP_SPLICE,
        Op::IORING_OP_TEE,
        Op::IORING_OP_MSG_RING,
        Op::IORING_OP_URING_CMD,
        Op::IORING_OP_SEND_ZC,
        Op::IORING_OP_SENDMSG_ZC,
    ];
    is_system_call(opcode) || OWN.iter().any(|&operation| opcode == operation as u8)
}

/// Whether an entry can start at all; one that cannot ends the batch.
///
/// # Errors
/// `EINVAL`, `EOPNOTSUPP`, `EACCES` (the ring is restricted).
pub fn check(ring: &Uring, sqe: &Sqe) -> Result<(), Errno> {
    if !is_known(sqe.opcode) {
        return Err(Errno::EINVAL);
    }
    let flags = sqe.known_flags().map_err(|_| Errno::EINVAL)?;
    if flags.contains(SqeFlags::BUFFER_SELECT) && !sqe.may_select_buffer() {
        return Err(Errno::EOPNOTSUPP);
    }
    if flags.contains(SqeFlags::SKIP_SUCCESS) {
        ring.skips_completions.store(true, Ordering::Relaxed);
    }
    if flags.contains(SqeFlags::DRAIN) && ring.skips_completions.load(Ordering::Relaxed) {
        return Err(Errno::EOPNOTSUPP);
    }
    let may_be_restricted = ring.setup & IORING_SETUP_R_DISABLED != 0;
    if may_be_restricted && !ring.rules.lock().restrictions.allows_entry(sqe.opcode, sqe.flags) {
        return Err(Errno::EACCES);
    }
    let level = level_of(sqe);
    if ring.setup & IORING_SETUP_IOPOLL != 0 && !sqe.may_be_polled() || sqe.personality != 0 {
        return Err(Errno::EINVAL);
    }
    level.map(|_| ())
}

/// Starts an entry.
///
/// # Errors
/// Its error; a page fault: it is to be started again once the page is there.
pub fn start(ring: &Arc<Uring>, submitter: &mut Submitter<'_>, sqe: &Sqe) -> TryResult<StartedEntry> {
    check(ring, sqe)?;
    if sqe.is(Op::IORING_OP_NOP) {
        return Ok(StartedEntry::Done(0, 0));
    }
    if sqe.has(SqeFlags::FIXED_FILE) && sqe.is_path_operation() {
        return Err(Errno::EBADF.into());
    }
    if !sqe.takes_file() {
        return start_without_file(ring, submitter, sqe);
    }
    let (open, resource) = file(ring, submitter.caller, sqe)?;
    if sqe.is(Op::IORING_OP_POLL_ADD) {
        return poll::add(ring, submitter, sqe, (open, resource));
    }
    if sqe.is(Op::IORING_OP_MSG_RING) {
        return message_ring::start(ring, sqe, &open);
    }
    if sqe.is(Op::IORING_OP_URING_CMD) {
        // No file has commands of its own.
        return Err(Errno::EOPNOTSUPP.into());
    }
    if ring.setup & IORING_SETUP_IOPOLL != 0 {
        // No file's transfers are polled for.
        return Err(Errno::EOPNOTSUPP.into());
    }
    let mut uses = Uses { file: resource, ..Uses::default() };
    if sqe.is(Op::IORING_OP_READ_FIXED) || sqe.is(Op::IORING_OP_WRITE_FIXED) {
        uses.buffer = Some(fixed_buffer(ring, sqe)?);
    }
    let is_multishot = sqe.is_receive() && u32::from(sqe.ioprio) & IORING_RECV_MULTISHOT != 0;
    if sqe.has(SqeFlags::BUFFER_SELECT) || is_multishot {
        return select::start(ring, submitter, sqe, (open, uses), is_multishot);
    }
    let call = call_of(ring, submitter, sqe, &open, &mut uses)?;
    let is_zero_copy = sqe.is(Op::IORING_OP_SEND_ZC) || sqe.is(Op::IORING_OP_SENDMSG_ZC);
    if is_zero_copy && protocol_socket(&open.file).is_none() {
        return Ok(StartedEntry::Done(-i32::from(Errno::EOPNOTSUPP.0), IORING_CQE_F_MORE));
    }
    start_as_call(ring, submitter, sqe, call, (Some(open), uses))
}

/// As [`start`], of an entry that is about no open file.
fn start_without_file(
    ring: &Arc<Uring>,
    submitter: &mut Submitter<'_>,
    sqe: &Sqe,
) -> TryResult<StartedEntry> {
    const DONE: StartedEntry = StartedEntry::Done(0, 0);
    let space = submitter.caller.space();
    if sqe.is(Op::IORING_OP_TIMEOUT) {
        let deadline_ns = timeout::deadline(&space, sqe)?;
        let active = new_active(submitter, sqe, __NR_io_uring_enter, (deadline_ns, Uses::default()))?;
        let future = timeout::wait(ring.clone(), active.clone(), timeout::target(ring, sqe));
        return Ok(StartedEntry::Waits(active, pin(future)?));
    }
    if sqe.is(Op::IORING_OP_TIMEOUT_REMOVE) {
        let Some(deadline_ns) = timeout::remove(ring, &space, sqe)? else { return Ok(DONE) };
        let active = new_active(submitter, sqe, __NR_io_uring_enter, (0, Uses::default()))?;
        let future = timeout::update_linked(ring.clone(), sqe.addr, deadline_ns);
        return Ok(StartedEntry::Waits(active, pin(future)?));
    }
    if sqe.is(Op::IORING_OP_POLL_REMOVE) {
        poll::remove(ring, sqe)?;
        return Ok(DONE);
    }
    if sqe.is(Op::IORING_OP_ASYNC_CANCEL) {
        return cancel::start(ring, submitter, sqe);
    }
    if sqe.is(Op::IORING_OP_LINK_TIMEOUT) {
        // One that follows another is part of that.
        return Err(Errno::EINVAL.into());
    }
    if sqe.is(Op::IORING_OP_PROVIDE_BUFFERS) || sqe.is(Op::IORING_OP_REMOVE_BUFFERS) {
        return Ok(StartedEntry::Done(select::provide_or_remove(ring, sqe)?, 0));
    }
    if sqe.is(Op::IORING_OP_FILES_UPDATE) {
        return direct::start_update(ring, submitter, sqe);
    }
    if sqe.is(Op::IORING_OP_CLOSE) {
        if sqe.file_index != 0 {
            sqe.system_call(Target::Other)?;
            direct::close(ring, sqe)?;
            return Ok(DONE);
        }
        if let Ok(open) = submitter.caller.descriptors().get(sqe.fd)
            && downcast::<Uring>(&open).is_some()
        {
            return Err(Errno::EBADF.into());
        }
    }
    let call = sqe.system_call(Target::Other)?.ok_or(Errno::EINVAL)?;
    start_as_call(ring, submitter, sqe, call.into(), (None, Uses::default()))
}

/// The work of an entry that is about a file.
fn call_of(
    ring: &Uring,
    submitter: &Submitter<'_>,
    sqe: &Sqe,
    open: &Arc<OpenFile>,
    uses: &mut Uses,
) -> TryResult<SubmittedCall> {
    let target = if open.file.is_seekable() { Target::Positioned } else { Target::Other };
    if sqe.is(Op::IORING_OP_SPLICE) || sqe.is(Op::IORING_OP_TEE) {
        return splice_of(ring, submitter, sqe, open);
    }
    if sqe.is(Op::IORING_OP_SEND_ZC) || sqe.is(Op::IORING_OP_SENDMSG_ZC) {
        return send_of(ring, sqe, uses);
    }
    let call = sqe.system_call(target)?.ok_or(Errno::EINVAL)?;
    let is_one_buffer = sqe.is_transfer() && !sqe.is(Op::IORING_OP_READV) && !sqe.is(Op::IORING_OP_WRITEV);
    if !is_one_buffer || sqe.op_flags == 0 {
        return Ok(call.into());
    }
    let (is_read, flags) = (sqe.is_read(), sqe.op_flags);
    let is_at = target == Target::Positioned && sqe.off != u64::MAX;
    let (address, length, position) = (sqe.addr as usize, sqe.len as usize, is_at.then_some(sqe.off as i64));
    function(move |call| read_write::one_with_flags(call, is_read, (address, length), position, flags))
}

/// A function as work.
fn function(
    function: impl Fn(&mut crate::syscall::Call<'_>) -> crate::syscall::SyscallResult + Send + Sync + 'static,
) -> TryResult<SubmittedCall> {
    let function: Restart = fallible::try_arc(function)?;
    Ok(SubmittedCall::Function(function))
}

/// `IORING_OP_SPLICE` and `IORING_OP_TEE`. Positions are values here, -1 for none.
fn splice_of(
    ring: &Uring,
    submitter: &Submitter<'_>,
    sqe: &Sqe,
    to: &Arc<OpenFile>,
) -> TryResult<SubmittedCall> {
    const IN_IS_FIXED: u32 = 1 << 31;
    const KNOWN: u32 = 0xf;
    let flags = sqe.op_flags & !IN_IS_FIXED;
    let is_tee = sqe.is(Op::IORING_OP_TEE);
    if flags & !KNOWN != 0 || is_tee && (sqe.addr != 0 || sqe.off != 0) {
        return Err(Errno::EINVAL.into());
    }
    let mut input = *sqe;
    input.fd = sqe.file_index.cast_signed();
    input.flags = if sqe.op_flags & IN_IS_FIXED == 0 { 0 } else { SqeFlags::FIXED_FILE.bits() };
    let (from, _used) = file(ring, submitter.caller, &input)?;
    let (to, length) = (to.clone(), sqe.len as usize);
    if is_tee {
        return function(move |call| splice::tee_between(call, [from.clone(), to.clone()], length, flags));
    }
    let positions = [sqe.addr, sqe.off].map(|position| (position != u64::MAX).then_some(position));
    function(move |call| splice::splice_between(call, [from.clone(), to.clone()], positions, length, flags))
}

/// `IORING_OP_SEND_ZC` and its relative, as the operation that copies.
fn send_of(ring: &Uring, sqe: &Sqe, uses: &mut Uses) -> TryResult<SubmittedCall> {
    use linux_raw_sys::io_uring::IORING_RECVSEND_FIXED_BUF;
    let is_message = sqe.is(Op::IORING_OP_SENDMSG_ZC);
    let is_fixed = u32::from(sqe.ioprio) & IORING_RECVSEND_FIXED_BUF != 0;
    let has_more_shots = u32::from(sqe.ioprio) & IORING_RECV_MULTISHOT != 0;
    if sqe.has(SqeFlags::SKIP_SUCCESS) || has_more_shots || is_message && is_fixed {
        return Err(Errno::EINVAL.into());
    }
    if is_fixed {
        uses.buffer = Some(fixed_buffer(ring, sqe)?);
    }
    let mut plain = *sqe;
    plain.opcode = if is_message { Op::IORING_OP_SENDMSG } else { Op::IORING_OP_SEND } as u8;
    plain.ioprio = 0;
    Ok(plain.system_call(Target::Other)?.ok_or(Errno::EINVAL)?.into())
}

/// Whether a request has been cancelled.
pub fn is_cancelled(active: &UringRequest) -> bool {
    active.request.is_interrupted(WaitKind::Interruptible)
}

/// A future in its box.
///
/// # Errors
/// `ENOMEM`.
pub fn pin(future: impl Future<Output = Result<usize, Errno>> + Send + 'static) -> Result<CallFuture, Errno> {
    Ok(alloc::boxed::Box::into_pin(fallible::try_box(future)?))
}

/// A request for an entry, with a deadline and what it uses.
///
/// # Errors
/// `EINVAL`, `ENOMEM`.
pub fn new_active(
    submitter: &mut Submitter<'_>,
    sqe: &Sqe,
    number: u32,
    (deadline_ns, uses): (u64, Uses),
) -> Result<Arc<UringRequest>, Errno> {
    let level = level_of(sqe)?;
    let request = AsyncRequest::new(submitter.unused.take(), submitter.caller, (number, level), [0; 2])?;
    UringRequest::new(sqe, request, deadline_ns, uses)
}

/// The file that an entry is about.
///
/// # Errors
/// `EBADF`.
pub fn file(ring: &Uring, caller: &Caller, sqe: &Sqe) -> Result<OpenEntry, Errno> {
    let (open, resource) = if sqe.has(SqeFlags::FIXED_FILE) {
        let resource = ring.fixed_file(sqe.fd)?;
        (resource.value.clone(), Some(resource))
    } else {
        (caller.descriptors().get(sqe.fd)?, None)
    };
    if open.flags().contains(StatusFlags::PATH) { Err(Errno::EBADF) } else { Ok((open, resource)) }
}

/// The registered buffer that an entry names, if its transfer stays inside.
fn fixed_buffer(ring: &Uring, sqe: &Sqe) -> Result<Arc<BufferResource>, Errno> {
    let buffer = ring.buffers.lock().get(usize::from(sqe.buf_index)).and_then(Option::clone);
    let buffer = buffer.ok_or(Errno::EFAULT)?;
    let (address, length) = buffer.value;
    let end = sqe.addr.checked_add(u64::from(sqe.len)).ok_or(Errno::EOVERFLOW)?;
    if sqe.addr < address || end > address + length { Err(Errno::EFAULT) } else { Ok(buffer) }
}

/// The readiness that an operation waits for on a file open with `O_NONBLOCK`: the request waits all the same,
/// unless the operation itself says otherwise.
fn readiness(sqe: &Sqe, open: Option<&Arc<OpenFile>>) -> Option<(Arc<OpenFile>, Events)> {
    let open = open.filter(|open| open.flags().contains(StatusFlags::NONBLOCK))?;
    if sqe.is_message() && sqe.op_flags & MSG_DONTWAIT != 0 || sqe.is_transfer() && sqe.op_flags != 0 {
        return None;
    }
    let reads = sqe.is_read() || sqe.is_receive() || sqe.is(Op::IORING_OP_ACCEPT);
    Some((open.clone(), if reads { Events::IN } else { Events::OUT }))
}

/// The number under which a request is listed.
const fn number_of(sqe: &Sqe, call: &SubmittedCall) -> u32 {
    match call {
        SubmittedCall::Number(SystemCall { number, .. }) => *number,
        SubmittedCall::Function(_) if sqe.is(Op::IORING_OP_SPLICE) => __NR_splice,
        SubmittedCall::Function(_) if sqe.is(Op::IORING_OP_TEE) => __NR_tee,
        SubmittedCall::Function(_) => __NR_io_uring_enter,
    }
}

/// Starts an entry that is a system call or a function like one.
fn start_as_call(
    ring: &Arc<Uring>,
    submitter: &mut Submitter<'_>,
    sqe: &Sqe,
    call: SubmittedCall,
    (open, uses): (Option<Arc<OpenFile>>, Uses),
) -> TryResult<StartedEntry> {
    let slot = DirectSlot::of(submitter.caller, sqe)?;
    let active = new_active(submitter, sqe, number_of(sqe, &call), (0, uses))?;
    let retry = readiness(sqe, open.as_ref());
    if let Some(open) = open {
        active.request.set_file(open);
    }
    if let Some(slot) = slot {
        slot.prepare(&active)?;
    }
    if sqe.is(Op::IORING_OP_SEND_ZC) || sqe.is(Op::IORING_OP_SENDMSG_ZC) {
        active.set_flags(IORING_CQE_F_MORE);
    }
    if sqe.is(Op::IORING_OP_ACCEPT) && sqe.ioprio != 0 {
        let is_chosen = matches!(slot, None | Some(DirectSlot::Any));
        if u32::from(sqe.ioprio) != IORING_ACCEPT_MULTISHOT || !is_chosen {
            return Err(Errno::EINVAL.into());
        }
        let future = accept_many(ring.clone(), active.clone(), (call, slot), retry);
        return Ok(StartedEntry::Waits(active, pin(future)?));
    }
    let request = active.request.clone();
    let first = match attempt(&request, submitter.context, &call)? {
        Attempt::Done(Err(Errno::EAGAIN)) if retry.is_some() => Some(Attempt::Done(Err(Errno::EAGAIN))),
        Attempt::Done(Err(Errno::EINPROGRESS)) if retry.is_some() => Some(Attempt::Done(Err(Errno::EAGAIN))),
        Attempt::Done(result) if request.late.is_empty() => {
            let result = match slot {
                Some(slot) => slot.install(ring, &active, result),
                None => result,
            };
            let result = request.outcome(result) as i32;
            let flags = active.completion_flags.load(Ordering::Relaxed);
            drop(active);
            submitter.unused = slot.is_none().then_some(request);
            return Ok(StartedEntry::Done(result, flags));
        }
        started => Some(started),
    };
    let future = complete(request, call, first, retry);
    let Some(slot) = slot else { return Ok(StartedEntry::Waits(active, pin(future)?)) };
    let (ring, own) = (ring.clone(), active.clone());
    let future = async move {
        let result = future.await;
        slot.install(&ring, &own, result)
    };
    Ok(StartedEntry::Waits(active, pin(future)?))
}

/// Accepts connections, each with a completion of its own, until one fails.
async fn accept_many(
    ring: Arc<Uring>,
    active: Arc<UringRequest>,
    (call, slot): (SubmittedCall, Option<DirectSlot>),
    retry: Option<(Arc<OpenFile>, Events)>,
) -> Result<usize, Errno> {
    loop {
        let accepted = complete(active.request.clone(), call.clone(), None, retry.clone()).await;
        let descriptor = match slot {
            Some(slot) => slot.install(&ring, &active, accepted)?,
            None => accepted?,
        };
        let completion = Completion::new(active.user_data(), descriptor as i32, IORING_CQE_F_MORE);
        if !ring.post_if_room(completion, Origin::Elsewhere) {
            return Ok(descriptor);
        }
        if is_cancelled(&active) {
            return Err(Errno::ECANCELED);
        }
        sched::yield_now().await;
    }
}
