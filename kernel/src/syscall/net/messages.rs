//! sendmmsg(2) and recvmmsg(2): several messages in one call.

use alloc::vec::Vec;
use linux_raw_sys::{general as linux, net};

use crate::arch::time::now_ns;
use crate::call::caller::{Caller, carry_out};
use crate::error::{Errno, TryError, TryResult};
use crate::memory::fallible;
use crate::syscall::net::message::{ReceiveMessage, SendMessage, prepare_receive, prepare_send};
use crate::syscall::net::packets;
use crate::syscall::net::socket::{get_protocol, get_socket, manner};
use crate::syscall::{Call, SyscallResult, user};
use crate::time::timespec_ns;
use crate::wait::operation::{Operation, Step};
use crate::wait::queue::Watch;

/// `struct mmsghdr`: a header, and the number of bytes that were moved.
const ENTRY: usize = size_of::<net::mmsghdr>();
const LENGTH_AT: usize = core::mem::offset_of!(net::mmsghdr, msg_len);
/// After the first message nothing waits; `linux-raw-sys` leaves the flag out.
const WAIT_FOR_ONE: u32 = 0x10000;
/// Linux takes as many at once.
const COUNT_LIMIT: usize = linux::UIO_MAXIOV as usize;

/// Messages that are moved one after the other.
struct Several<O> {
    thread: Caller,
    messages: Vec<O>,
    /// The address of the first `struct mmsghdr`.
    entries: usize,
    /// How many have been moved.
    done: usize,
    finished: bool,
    /// The bytes of a message that was moved, while its length could not be stored yet.
    unstored: Option<usize>,
    /// After the first, only what is there at once is taken.
    is_one_enough: bool,
    /// When to stop; looked at after each message.
    deadline_ns: Option<u64>,
}

impl<O: Operation> Operation for Several<O> {
    fn attempt(&mut self) -> TryResult<usize> {
        if self.done < self.messages.len() && !self.finished {
            let at = self.entries.wrapping_add(self.done * ENTRY + LENGTH_AT);
            let space = self.thread.space();
            let moved = match self.unstored {
                Some(moved) => moved,
                None => {
                    space.probe_write(at, size_of::<u32>())?;
                    match self.messages[self.done].attempt() {
                        Err(TryError::WouldBlock) if self.is_one_enough && self.done > 0 => {
                            self.finished = true;
                            return Ok(self.done);
                        }
                        result => result?,
                    }
                }
            };
            self.unstored = Some(moved);
            user::write_int(&space, at, moved as u32)?;
            self.unstored = None;
            self.done += 1;
            self.finished = self.deadline_ns.is_some_and(|deadline| now_ns() >= deadline);
        }
        self.finished |= self.done >= self.messages.len();
        Ok(self.done)
    }

    /// A step is a message.
    fn step(&mut self, no_wait: bool) -> Step {
        match self.attempt() {
            Ok(done) if self.finished => Step::Finished(Ok(done)),
            Ok(_) => Step::Again,
            Err(TryError::Fault(fault)) => Step::Fault(fault),
            Err(TryError::WouldBlock) if !no_wait => Step::Wait,
            Err(TryError::WouldBlock) => Step::Finished(self.end(Errno::EAGAIN)),
            Err(TryError::Error(error)) => Step::Finished(self.end(error)),
        }
    }

    fn partial(&self) -> Option<usize> {
        (self.done > 0).then_some(self.done)
    }

    fn can_go_on(&self, watch: &Watch) -> Result<bool, Errno> {
        self.messages.get(self.done).map_or(Ok(true), |message| message.can_go_on(watch))
    }
}

/// Prepares each message, up to the first that is wrong unless that is the very first.
fn prepare<O>(
    call: &Call<'_>,
    flags: u32,
    each: impl Fn(&Call<'_>, usize, u32) -> TryResult<O>,
) -> TryResult<Vec<O>> {
    let count = (call.uint(2) as usize).min(COUNT_LIMIT);
    let mut messages = Vec::new();
    for index in 0..count {
        match each(call, call.word(1).wrapping_add(index * ENTRY), flags) {
            Ok(message) => fallible::try_push(&mut messages, message)?,
            Err(TryError::Error(_)) if index > 0 => break,
            Err(halt) => return Err(halt),
        }
    }
    Ok(messages)
}

/// sendmmsg(2).
pub fn sendmmsg(call: &mut Call<'_>) -> SyscallResult {
    let flags = call.uint(3);
    if let Some((open, socket)) = get_protocol(call)? {
        let each = |call: &Call<'_>, at, flags| {
            packets::prepare_send(call, (open.clone(), socket.clone()), at, flags)
        };
        let several = several(call, prepare(call, flags, each)?, false, None);
        return carry_out(call.thread, manner(&open, true, flags), several);
    }
    let (open, _) = get_socket(call)?;
    let messages: Vec<SendMessage> = prepare(call, flags, prepare_send)?;
    carry_out(call.thread, manner(&open, true, flags), several(call, messages, false, None))
}

fn several<O>(
    call: &Call<'_>,
    messages: Vec<O>,
    is_one_enough: bool,
    deadline_ns: Option<u64>,
) -> Several<O> {
    Several {
        thread: call.thread.clone(),
        messages,
        entries: call.word(1),
        done: 0,
        finished: false,
        unstored: None,
        is_one_enough,
        deadline_ns,
    }
}

/// recvmmsg(2).
pub fn recvmmsg(call: &mut Call<'_>) -> SyscallResult {
    let flags = call.uint(3);
    let deadline_ns = match call.word(4) {
        0 => None,
        address => {
            let [seconds, nanoseconds] = user::read_words(&call.thread.space(), address)?;
            Some(now_ns().saturating_add(timespec_ns(seconds, nanoseconds)?))
        }
    };
    let own = flags & !WAIT_FOR_ONE;
    let is_one_enough = flags & WAIT_FOR_ONE != 0;
    if let Some((open, socket)) = get_protocol(call)? {
        let each = |call: &Call<'_>, at, flags| {
            packets::prepare_receive(call, (open.clone(), socket.clone()), at, flags)
        };
        let several = several(call, prepare(call, own, each)?, is_one_enough, deadline_ns);
        return carry_out(call.thread, manner(&open, false, own), several);
    }
    let (open, _) = get_socket(call)?;
    let messages: Vec<ReceiveMessage> = prepare(call, own, prepare_receive)?;
    carry_out(call.thread, manner(&open, false, own), several(call, messages, is_one_enough, deadline_ns))
}
