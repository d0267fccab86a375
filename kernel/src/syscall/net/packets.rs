//! Sending and receiving on sockets of the families that have packets.

use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::net;

use crate::call::caller::{Caller, carry_out};
use crate::error::{Errno, TryError, TryResult};
use crate::fs::buffer::IoSegment;
use crate::fs::{IoBuffer, OpenFile};
use crate::memory::fallible;
use crate::net::protocol::{Incoming, Outgoing, ProtocolSocket, SocketAddress};
use crate::syscall::fs::read_write::many;
use crate::syscall::fs::transfer::{Segments, broken_pipe};
use crate::syscall::fs::{TRANSFER_LIMIT, get, get_bytes};
use crate::syscall::net::message::{CONTROL_LIMIT, MessageFields, get_header, message_fields, too_many};
use crate::syscall::net::socket::{ADDRESS_LIMIT, get_address_bytes, manner};
use crate::syscall::{Call, SyscallResult};
use crate::wait::operation::{Operation, Step};
use crate::wait::queue::{Events, Watch};

/// The socket that a call works on.
type Target = (Arc<OpenFile>, Arc<dyn ProtocolSocket>);

/// Bytes that one attempt moves.
const ATTEMPT_BYTES: usize = 128 << 10;
/// The most control data that a message is received with.
const RECEIVED_CONTROL_MAX: usize = 512;

/// A message on its way out.
pub struct SendPackets {
    thread: Caller,
    open: Arc<OpenFile>,
    socket: Arc<dyn ProtocolSocket>,
    segments: Segments,
    address: Option<SocketAddress>,
    control: Vec<u8>,
    flags: u32,
    done: usize,
}

impl SendPackets {
    fn total(&self) -> usize {
        self.segments.as_slice().iter().map(|segment| segment.length).sum()
    }
}

impl Operation for SendPackets {
    fn attempt(&mut self) -> TryResult<usize> {
        self.socket.used_by(&self.thread);
        let space = self.thread.space();
        let mut buffer = IoBuffer::user(&space, self.segments.as_slice());
        buffer.skip(self.done);
        let is_stream = self.socket.is_stream();
        if is_stream {
            buffer.truncate(ATTEMPT_BYTES);
        }
        let message = Outgoing {
            thread: &self.thread,
            address: self.address.as_ref(),
            control: &self.control,
            flags: self.flags,
        };
        match self.socket.send(&mut buffer, &message) {
            Ok(count) => {
                self.done += count;
                // The call goes on behind the bytes before a missing page.
                match buffer.missed() {
                    Some(missing) if is_stream => Err(missing.into()),
                    _ => Ok(self.done),
                }
            }
            Err(TryError::Error(Errno::EPIPE)) => {
                if self.flags & net::MSG_NOSIGNAL == 0 && is_stream && self.done == 0 {
                    broken_pipe(&self.thread);
                }
                Err(Errno::EPIPE.into())
            }
            Err(halt) => Err(halt),
        }
    }

    fn step(&mut self, no_wait: bool) -> Step {
        match self.attempt() {
            Ok(done) if done < self.total() && self.socket.is_stream() => Step::Again,
            Ok(done) => Step::Finished(Ok(done)),
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
        self.open.file.can_go_on(&self.open, watch, Events::OUT)
    }
}

/// sendto(2).
pub fn sendto(call: &Call<'_>, (open, socket): Target) -> SyscallResult {
    let address = match call.word(4) {
        0 => None,
        address => Some(get_address_bytes(call, address, call.int(5))?),
    };
    let segment = IoSegment { address: call.word(1), length: call.word(2).min(TRANSFER_LIMIT) };
    let (thread, segments, flags) = (call.thread.clone(), Segments::One([segment]), call.uint(3));
    let control = Vec::new();
    start_send(call, SendPackets { thread, open, socket, segments, address, control, flags, done: 0 })
}

/// sendmsg(2).
pub fn sendmsg(call: &Call<'_>, target: Target) -> SyscallResult {
    let operation = prepare_send(call, target, call.word(1), call.uint(2))?;
    start_send(call, operation)
}

fn start_send(call: &Call<'_>, operation: SendPackets) -> SyscallResult {
    carry_out(call.thread, manner(&operation.open, true, operation.flags), operation)
}

/// The operation that sends the message of a `struct msghdr`.
///
/// # Errors
/// The error in the header or its buffers; a page fault.
pub fn prepare_send(
    call: &Call<'_>,
    (open, socket): Target,
    address: usize,
    flags: u32,
) -> TryResult<SendPackets> {
    let header = get_header(call, address)?;
    let segments = many(call, header.vectors, header.vector_count).map_err(too_many)?;
    let address = match header.name {
        0 => None,
        _ if header.name_length == 0 => None,
        name => Some(get_address_bytes(call, name, header.name_length as i32)?),
    };
    if header.control_length > CONTROL_LIMIT {
        return Err(Errno::ENOBUFS.into());
    }
    let control = match header.control {
        0 => Vec::new(),
        control => get_bytes(call, control, header.control_length)?,
    };
    Ok(SendPackets { thread: call.thread.clone(), open, socket, segments, address, control, flags, done: 0 })
}

/// A message on its way in.
pub struct ReceivePackets {
    thread: Caller,
    open: Arc<OpenFile>,
    socket: Arc<dyn ProtocolSocket>,
    segments: Segments,
    places: MessageFields,
    flags: u32,
    done: usize,
}

impl ReceivePackets {
    fn total(&self) -> usize {
        self.segments.as_slice().iter().map(|segment| segment.length).sum()
    }

    /// The bytes that it goes on for: all, or `SO_RCVLOWAT`.
    #[inline(always)]
    fn least(&self, is_stream: bool) -> usize {
        if !is_stream || self.flags & net::MSG_OOB != 0 {
            return 0;
        }
        let all = self.flags & net::MSG_WAITALL != 0;
        if all { self.total() } else { self.socket.low_water().min(self.total()) }
    }

    /// Ends with the bytes that earlier attempts received.
    #[cold]
    #[inline(never)]
    fn end_with_bytes(&self) -> Step {
        match self.store(0, &Incoming::default(), self.socket.is_stream()) {
            Err(TryError::Fault(fault)) => Step::Fault(fault),
            _ => Step::Finished(Ok(self.done)),
        }
    }

    #[inline(always)]
    fn store(&self, count: usize, message: &Incoming, is_stream: bool) -> TryResult<usize> {
        let (thread, places) = (&self.thread, &self.places);
        if places.name_length_at != 0 {
            let name = message.address.as_ref().map_or(&[][..], SocketAddress::as_slice);
            thread.store_result(places.name, &name[..name.len().min(places.name_room)])?;
            thread.store_result(places.name_length_at, &(name.len() as u32).to_ne_bytes())?;
        }
        if places.control_length_at != 0 {
            thread.store_result(places.control, &message.control)?;
            thread.store_result(places.control_length_at, &message.control.len().to_ne_bytes())?;
        }
        let mut flags = message.flags;
        if !is_stream && message.length > count {
            flags |= net::MSG_TRUNC;
        }
        if places.flags_at != 0 {
            thread.store_result(places.flags_at, &flags.to_ne_bytes())?;
        }
        let whole = self.flags & net::MSG_TRUNC != 0 && !is_stream;
        Ok(if whole { message.length } else { self.done })
    }
}

impl Operation for ReceivePackets {
    fn attempt(&mut self) -> TryResult<usize> {
        self.socket.used_by(&self.thread);
        self.places.probe(&self.thread)?;
        let space = self.thread.space();
        let mut buffer = IoBuffer::user(&space, self.segments.as_slice());
        buffer.skip(self.done);
        let is_stream = self.socket.is_stream();
        if is_stream {
            buffer.truncate(ATTEMPT_BYTES);
        }
        let room = self.places.control_room.min(RECEIVED_CONTROL_MAX);
        let mut message = Incoming {
            address: None,
            control: fallible::try_with_capacity(room)?,
            wants_address: self.places.name_length_at != 0,
            flags: 0,
            length: 0,
        };
        let count = self.socket.receive(&mut buffer, self.flags, self.done, &mut message)?;
        self.done += count;
        if let Some(missing) = buffer.missed()
            && is_stream
        {
            return Err(missing.into());
        }
        let no_wait = self.flags & net::MSG_DONTWAIT != 0;
        if count > 0 && self.done < self.least(is_stream) && !no_wait {
            return Err(TryError::WouldBlock);
        }
        // A short count says that nothing is left: who is told of events once then waits for the next.
        if count == ATTEMPT_BYTES && self.done < self.total() && is_stream {
            return Err(TryError::WouldBlock);
        }
        self.store(count, &message, is_stream)
    }

    fn step(&mut self, no_wait: bool) -> Step {
        let before = self.done;
        match self.attempt() {
            Ok(value) => Step::Finished(Ok(value)),
            Err(TryError::Fault(fault)) => Step::Fault(fault),
            Err(TryError::WouldBlock) if self.done > before => Step::Again,
            // A call that has bytes, and does not want more, was stopped by a missing page or the length of an attempt.
            Err(TryError::WouldBlock)
                if self.done > 0 && self.done >= self.least(self.socket.is_stream()) =>
            {
                self.end_with_bytes()
            }
            Err(TryError::WouldBlock) if !no_wait => Step::Wait,
            Err(TryError::WouldBlock) => Step::Finished(self.end(Errno::EAGAIN)),
            Err(TryError::Error(error)) => Step::Finished(self.end(error)),
        }
    }

    fn partial(&self) -> Option<usize> {
        (self.done > 0).then_some(self.done)
    }

    fn can_go_on(&self, watch: &Watch) -> Result<bool, Errno> {
        let events = match self.flags & net::MSG_OOB {
            // Urgent data ends a call that has bytes, though nothing may follow it.
            0 if self.done > 0 => Events::IN | Events::PRI,
            0 => Events::IN,
            _ => Events::PRI,
        };
        self.open.file.can_go_on(&self.open, watch, events)
    }

    fn is_exclusive(&self) -> bool {
        true
    }
}

/// The room for an address as a program says it.
pub(super) fn room_of_name(length: i32) -> Result<usize, Errno> {
    usize::try_from(length).map_err(|_| Errno::EINVAL)
}

/// recvfrom(2).
pub fn recvfrom(call: &Call<'_>, (open, socket): Target) -> SyscallResult {
    let segment = IoSegment { address: call.word(1), length: call.word(2).min(TRANSFER_LIMIT) };
    let (name, length_at) = (call.word(4), call.word(5));
    let name_room = if name == 0 || length_at == 0 {
        0
    } else {
        room_of_name(i32::from_ne_bytes(get(call, length_at)?))?
    };
    let places = MessageFields {
        name,
        name_room: name_room.min(ADDRESS_LIMIT),
        name_length_at: if name == 0 { 0 } else { length_at },
        control: 0,
        control_room: 0,
        control_length_at: 0,
        flags_at: 0,
    };
    let (thread, segments, flags) = (call.thread.clone(), Segments::One([segment]), call.uint(3));
    start_receive(call, ReceivePackets { thread, open, socket, segments, places, flags, done: 0 })
}

/// recvmsg(2).
pub fn recvmsg(call: &Call<'_>, target: Target) -> SyscallResult {
    let operation = prepare_receive(call, target, call.word(1), call.uint(2))?;
    start_receive(call, operation)
}

/// Receives into memory, with the rest of the results where `places` says.
pub(super) fn receive_at(
    call: &Call<'_>,
    (open, socket): Target,
    segments: Segments,
    places: MessageFields,
    flags: u32,
) -> SyscallResult {
    let thread = call.thread.clone();
    start_receive(call, ReceivePackets { thread, open, socket, segments, places, flags, done: 0 })
}

fn start_receive(call: &Call<'_>, mut operation: ReceivePackets) -> SyscallResult {
    let manner = manner(&operation.open, false, operation.flags);
    if manner.no_wait {
        operation.flags |= net::MSG_DONTWAIT;
    }
    carry_out(call.thread, manner, operation)
}

/// The operation that receives a message as a `struct msghdr` describes it.
///
/// # Errors
/// The error in the header or its buffers; a page fault.
pub fn prepare_receive(
    call: &Call<'_>,
    (open, socket): Target,
    address: usize,
    flags: u32,
) -> TryResult<ReceivePackets> {
    let header = get_header(call, address)?;
    let segments = many(call, header.vectors, header.vector_count).map_err(too_many)?;
    let places = message_fields(&header, address);
    Ok(ReceivePackets { thread: call.thread.clone(), open, socket, segments, places, flags, done: 0 })
}
