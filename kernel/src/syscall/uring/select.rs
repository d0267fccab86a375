//! Receiving into buffers that the program provides, once or until an error comes.
//!
//! A buffer is only taken when the file is ready: a request that waits holds none.

use alloc::sync::Arc;
use linux_raw_sys::general as linux;
use linux_raw_sys::io_uring::{IORING_CQE_F_MORE, io_uring_op as Op};
use linux_raw_sys::net::{MSG_DONTWAIT, MSG_WAITALL};

use heddle_kernel_core::uring::{Sqe, SystemCall};

use crate::arch::UserContext;
use crate::call::CallFuture;
use crate::call::caller::Caller;
use crate::error::{Errno, TryError, TryResult};
use crate::fs::OpenFile;
use crate::memory::{Space, fallible};
use crate::sched;
use crate::syscall::Restart;
use crate::syscall::net::framed::{MessageFrame, get_frame, receive_framed, receive_into};
use crate::syscall::submitted::{Attempt, SubmittedCall, attempt};
use crate::syscall::uring::completions::{Completion, Origin};
use crate::syscall::uring::operation::{StartedEntry, is_cancelled, new_active, pin};
use crate::syscall::uring::provided::SelectedBuffer;
use crate::syscall::uring::request::{Submitter, UringRequest, Uses};
use crate::syscall::uring::ring::Uring;
use crate::wait::node::WaitKind;
use crate::wait::queue::Events;

/// A request that takes a buffer.
struct BufferSelection {
    ring: Arc<Uring>,
    active: Arc<UringRequest>,
    open: Arc<OpenFile>,
    is_multishot: bool,
}

/// The result of an attempt.
enum Tried {
    /// It is over; the flags are those of its completion.
    Done(Result<usize, Errno>, u32),
    /// It has a buffer and waits for more.
    Waits(CallFuture, SelectedBuffer),
    /// There is nothing yet.
    NotReady,
    /// Other attempts have all buffers, and may give them back.
    NoBufferYet,
}

/// Starts an entry whose buffer the kernel chooses.
///
/// # Errors
/// `EINVAL`, `ENOMEM`; a page fault.
pub fn start(
    ring: &Arc<Uring>,
    submitter: &mut Submitter<'_>,
    sqe: &Sqe,
    (open, uses): (Arc<OpenFile>, Uses),
    is_multishot: bool,
) -> TryResult<StartedEntry> {
    use heddle_kernel_core::uring::SqeFlags;
    let is_message = sqe.is(Op::IORING_OP_RECVMSG);
    let has_length = sqe.len != 0 && !is_message;
    let is_wrong = !sqe.has(SqeFlags::BUFFER_SELECT) || sqe.op_flags & MSG_WAITALL != 0 || has_length;
    if is_multishot && is_wrong || sqe.is(Op::IORING_OP_READV) && sqe.len != 1 {
        return Err(Errno::EINVAL.into());
    }
    // The fields that a system call would refuse.
    sqe.system_call(heddle_kernel_core::uring::Target::Other)?;
    let active = new_active(submitter, sqe, linux::__NR_recvfrom, (0, uses))?;
    active.request.set_file(open.clone());
    let selection = BufferSelection { ring: ring.clone(), active: active.clone(), open, is_multishot };
    if !is_multishot {
        match selection.attempt(submitter.context)? {
            Tried::Done(result, flags) => {
                return Ok(StartedEntry::Done(active.request.outcome(result) as i32, flags));
            }
            Tried::NotReady if selection.is_refused() => return Err(Errno::EAGAIN.into()),
            Tried::NotReady | Tried::NoBufferYet => {}
            Tried::Waits(future, buffer) => {
                active.set_flags(buffer.flags());
                return Ok(StartedEntry::Waits(active, future));
            }
        }
    }
    Ok(StartedEntry::Waits(active, pin(selection.run())?))
}

impl BufferSelection {
    /// Whether it does not wait.
    fn is_refused(&self) -> bool {
        let sqe = &self.active.sqe;
        sqe.is_receive() && sqe.op_flags & MSG_DONTWAIT != 0 || sqe.is_read() && sqe.op_flags != 0
    }

    fn is_ready(&self) -> Result<bool, Errno> {
        let ready = self.open.file.poll(&self.open, None, Events::IN)?;
        Ok(ready.intersects(Events::IN | Events::ERR | Events::HUP))
    }

    /// Takes a buffer and tries.
    fn attempt(&self, context: &mut UserContext) -> TryResult<Tried> {
        let (sqe, request) = (&self.active.sqe, &self.active.request);
        let space = request.space();
        let wanted = wanted_length(sqe, &space)?;
        let trial = match self.ring.try_buffer(sqe.buf_index, &space) {
            Ok(Some(trial)) => trial,
            Ok(None) => return Ok(Tried::NoBufferYet),
            Err(TryError::Error(error)) => return Ok(Tried::Done(Err(error), 0)),
            Err(halt) => return Err(halt),
        };
        let buffer = trial.buffer;
        // A request that waits needs a buffer to wait for, but holds none.
        if self.open.file.is_pollable() && !self.is_ready()? {
            if trial.give_back() {
                return Ok(Tried::NotReady);
            }
            return Ok(Tried::Done(Err(Errno::ENOMEM), buffer.flags()));
        }
        let length = if wanted == 0 { buffer.length } else { wanted.min(buffer.length) };
        let started = self.call(&space, &buffer, length).and_then(|call| attempt(request, context, &call));
        let is_whole = sqe.is_receive() && sqe.op_flags & MSG_WAITALL != 0;
        let is_unused = match &started {
            Err(_) | Ok(Attempt::Done(Err(Errno::EAGAIN))) => true,
            Ok(Attempt::Waits(_)) => !is_whole && !self.open.file.is_seekable(),
            // Nothing was received, which a read tells with its buffer.
            Ok(Attempt::Done(Ok(0) | Err(_))) => sqe.is_receive(),
            Ok(Attempt::Done(Ok(_))) => false,
        };
        let flags = if is_unused && trial.give_back() { 0 } else { buffer.flags() };
        match started {
            Err(TryError::Error(error)) => Ok(Tried::Done(Err(error), flags)),
            Err(halt) => Err(halt),
            Ok(Attempt::Done(Err(Errno::EAGAIN))) => Ok(Tried::NotReady),
            Ok(Attempt::Waits(_)) if is_unused => Ok(Tried::NotReady),
            Ok(Attempt::Waits(future)) => Ok(Tried::Waits(future, buffer)),
            Ok(Attempt::Done(result)) => {
                let result = result.map(|count| self.frame(&space, &buffer, length, count));
                Ok(Tried::Done(result, flags))
            }
        }
    }

    /// The work with a buffer.
    fn call(&self, space: &Space, buffer: &SelectedBuffer, length: u32) -> TryResult<SubmittedCall> {
        let sqe = &self.active.sqe;
        if sqe.is(Op::IORING_OP_RECVMSG) {
            let header = usize::try_from(sqe.addr).map_err(|_| Errno::EFAULT)?;
            let (address, length, flags) = (buffer.address as usize, length as usize, sqe.op_flags);
            let frame = if self.is_multishot { Some(get_frame(space, header)?) } else { None };
            if frame.as_ref().is_some_and(|frame| frame.bytes() > length) {
                return Err(Errno::EFAULT.into());
            }
            let function: Restart =
                fallible::try_arc(move |call: &mut crate::syscall::Call<'_>| match &frame {
                    Some(frame) => receive_framed(call, frame, (address, length), flags),
                    None => receive_into(call, header, (address, length), flags),
                })?;
            return Ok(SubmittedCall::Function(function));
        }
        let (fd, address, length) = (sqe.fd as u64, buffer.address, u64::from(length));
        if sqe.is(Op::IORING_OP_RECV) {
            let arguments = [fd, address, length, u64::from(sqe.op_flags), 0, 0];
            return Ok(SystemCall { number: linux::__NR_recvfrom, arguments }.into());
        }
        let position = (self.open.file.is_seekable() && sqe.off != u64::MAX).then_some(sqe.off as i64);
        let (place, flags) = ((address as usize, length as usize), sqe.op_flags);
        let read = move |call: &mut crate::syscall::Call<'_>| {
            crate::syscall::fs::read_write::one_with_flags(call, true, place, position, flags)
        };
        let function: Restart = fallible::try_arc(read)?;
        Ok(SubmittedCall::Function(function))
    }

    /// Notes the length of a message in the header in front of it. Returns how much of the buffer is used.
    fn frame(&self, space: &Space, buffer: &SelectedBuffer, length: u32, count: usize) -> usize {
        let sqe = &self.active.sqe;
        if !self.is_multishot || !sqe.is(Op::IORING_OP_RECVMSG) {
            return count;
        }
        let Ok(frame) = get_frame(space, sqe.addr as usize) else { return count };
        let caller = Caller::Request(self.active.request.clone());
        let at = (buffer.address as usize).wrapping_add(MessageFrame::LENGTH_AT);
        // Without memory for a page that has gone meanwhile the program does not learn it.
        let _ = caller.store_result(at, &(count as u32).to_ne_bytes());
        frame.bytes() + count.min(length as usize - frame.bytes())
    }

    /// Waits until there is something, and goes on, as often as the entry says.
    async fn run(self) -> Result<usize, Errno> {
        let caller = Caller::Request(self.active.request.clone());
        loop {
            match self.attempt_later().await {
                Ok(Tried::Done(Ok(count), flags))
                    if self.is_multishot && count > 0 && self.is_more(count) =>
                {
                    let user_data = self.active.user_data();
                    let completion = Completion::new(user_data, count as i32, flags | IORING_CQE_F_MORE);
                    if !self.ring.post_if_room(completion, Origin::Elsewhere) {
                        self.active.set_flags(flags);
                        return Ok(count);
                    }
                    if is_cancelled(&self.active) {
                        return Err(Errno::ECANCELED);
                    }
                    sched::yield_now().await;
                }
                Ok(Tried::Done(result, flags)) => {
                    self.active.set_flags(flags);
                    return result;
                }
                Ok(Tried::Waits(future, buffer)) => {
                    self.active.set_flags(buffer.flags());
                    return future.await;
                }
                Ok(Tried::NoBufferYet) => {
                    if is_cancelled(&self.active) {
                        return Err(Errno::ECANCELED);
                    }
                    sched::yield_now().await;
                }
                Ok(Tried::NotReady) if self.is_refused() => return Err(Errno::EAGAIN),
                Ok(Tried::NotReady) => {
                    caller
                        .wait_until(WaitKind::Interruptible, |watch| {
                            let ready = self.open.file.poll(&self.open, Some(watch), Events::IN)?;
                            Ok(ready.intersects(Events::IN | Events::ERR | Events::HUP).then_some(()))
                        })
                        .await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether more can come behind a message of this length: a header alone is the end of a stream.
    fn is_more(&self, count: usize) -> bool {
        let sqe = &self.active.sqe;
        if !sqe.is(Op::IORING_OP_RECVMSG) {
            return true;
        }
        let frame = get_frame(&self.active.request.space(), sqe.addr as usize);
        frame.map_or(true, |frame| count > frame.bytes())
    }

    /// As [`Self::attempt`], after bringing in the pages that are missing.
    async fn attempt_later(&self) -> Result<Tried, Errno> {
        let request = &self.active.request;
        loop {
            let tried = {
                let mut context = fallible::try_box(UserContext::new_user())?;
                self.attempt(&mut context)
            };
            match tried {
                Ok(tried) => return Ok(tried),
                Err(TryError::Fault(fault)) => {
                    let is_over = || request.is_interrupted(WaitKind::Killable);
                    request.space().fault_in_for(fault, is_over).await?;
                }
                Err(TryError::Error(error)) => return Err(error),
                Err(TryError::WouldBlock) => return Ok(Tried::NotReady),
            }
            sched::yield_now().await;
        }
    }
}

/// The bytes that an entry wants at most; 0 for as many as the buffer has.
fn wanted_length(sqe: &Sqe, space: &Space) -> TryResult<u32> {
    let address = usize::try_from(sqe.addr).map_err(|_| Errno::EFAULT)?;
    let length = if sqe.is(Op::IORING_OP_READV) {
        space.read::<[u64; 2]>(address)?[1]
    } else if sqe.is(Op::IORING_OP_RECVMSG) {
        // Name, its length, the vectors and their number.
        let [_, _, vectors, count] = space.read::<[u64; 4]>(address)?;
        match count {
            0 => 0,
            1 => space.read::<[u64; 2]>(usize::try_from(vectors).map_err(|_| Errno::EFAULT)?)?[1],
            _ => return Err(Errno::EINVAL.into()),
        }
    } else {
        u64::from(sqe.len)
    };
    Ok(u32::try_from(length).unwrap_or(u32::MAX))
}

/// `IORING_OP_PROVIDE_BUFFERS` and `IORING_OP_REMOVE_BUFFERS`.
///
/// # Errors
/// `EINVAL`, `E2BIG`, `EOVERFLOW`, `EFAULT`, `ENOENT`, `ENOMEM`.
pub fn provide_or_remove(ring: &Uring, sqe: &Sqe) -> Result<i32, Errno> {
    const NUMBERS: u32 = u16::MAX as u32;
    let count = sqe.fd.cast_unsigned();
    if sqe.op_flags != 0 || sqe.file_index != 0 {
        return Err(Errno::EINVAL);
    }
    if sqe.is(Op::IORING_OP_REMOVE_BUFFERS) {
        if sqe.addr != 0 || sqe.len != 0 || sqe.off != 0 || count == 0 || count > NUMBERS {
            return Err(Errno::EINVAL);
        }
        return ring.provided.lock().remove(sqe.buf_index, count).map(|removed| removed as i32);
    }
    if count == 0 || count > NUMBERS {
        return Err(Errno::E2BIG);
    }
    let bytes = u64::from(sqe.len).checked_mul(count.into()).ok_or(Errno::EOVERFLOW)?;
    let end = sqe.addr.checked_add(bytes).ok_or(Errno::EOVERFLOW)?;
    if end > crate::arch::paging::USER_END as u64 {
        return Err(Errno::EFAULT);
    }
    let first = u16::try_from(sqe.off).map_err(|_| Errno::E2BIG)?;
    if u32::from(first) + count >= NUMBERS {
        return Err(Errno::EINVAL);
    }
    ring.provided.lock().provide(sqe.buf_index, (sqe.addr, sqe.len), (first, count))?;
    Ok(0)
}
