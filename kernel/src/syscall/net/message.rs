//! Sending and receiving on sockets.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use linux_raw_sys::{general as linux, net};

use crate::call::caller::{Caller, carry_out};
use crate::error::{Errno, TryError, TryResult};
use crate::fs::buffer::IoSegment;
use crate::fs::{IoBuffer, OpenFile, downcast};
use crate::memory::fallible;
use crate::net::{Address, Ancillary, Inbox, PeerIdentity, ReceiveHow, Received, Socket, Style, find_target};
use crate::process::pid_namespace;
use crate::syscall::fs::read_write::many;
use crate::syscall::fs::transfer::{Segments, broken_pipe};
use crate::syscall::fs::{TRANSFER_LIMIT, encode, field, get, get_bytes};
use crate::syscall::net::packets;
use crate::syscall::net::socket::{ADDRESS_LIMIT, get_address, get_protocol, get_socket, manner};
use crate::syscall::uring::Uring;
use crate::syscall::{Call, SyscallResult};
use crate::wait::operation::{CUT_BYTES, Operation};
use crate::wait::queue::{Events, Watch};

use heddle_kernel_core::fallible::{extend_reserved, resize_reserved};

const HEADER: usize = size_of::<net::cmsghdr>();
/// The most control data of one message.
pub const CONTROL_LIMIT: usize = 20 << 10;
/// The most descriptors of one message, as in Linux.
const FILES_LIMIT: usize = 253;
const WORD: usize = size_of::<usize>();
/// `struct ucred`.
const IDENTITY_BYTES: usize = 12;
/// The most control data that a received message brings along.
const CONTROL_BYTES_MAX: usize =
    2 * HEADER + IDENTITY_BYTES.next_multiple_of(WORD) + (4 * FILES_LIMIT).next_multiple_of(WORD);

/// A message on its way out.
pub struct SendMessage {
    thread: Caller,
    open: Arc<OpenFile>,
    socket: Arc<Socket>,
    segments: Segments,
    target: Option<Arc<Inbox>>,
    ancillary: Option<Ancillary>,
    flags: u32,
    done: usize,
}

impl Operation for SendMessage {
    fn attempt(&mut self) -> TryResult<usize> {
        let space = self.thread.space();
        let segments = self.segments.as_slice();
        let total: usize = segments.iter().map(|segment| segment.length).sum();
        let before = self.done;
        loop {
            let mut buffer = IoBuffer::user(&space, segments);
            buffer.skip(self.done);
            let result = self.socket.send(&mut buffer, self.target.as_ref(), &mut self.ancillary);
            match result {
                Ok(count) => self.done += count,
                Err(TryError::Error(Errno::EPIPE)) if self.flags & net::MSG_NOSIGNAL == 0 => {
                    broken_pipe(&self.thread);
                    return Err(Errno::EPIPE.into());
                }
                Err(halt) => return Err(halt),
            }
            if self.done >= total || self.socket.style != Style::Stream {
                return Ok(self.done);
            }
            if self.done >= before + CUT_BYTES {
                return Err(TryError::WouldBlock);
            }
        }
    }

    fn partial(&self) -> Option<usize> {
        (self.done > 0).then_some(self.done)
    }

    fn can_go_on(&self, watch: &Watch) -> Result<bool, Errno> {
        if let Some(target) = &self.target {
            return target.watch_for_room(watch, self.socket.options().send_limit());
        }
        self.open.file.can_go_on(&self.open, watch, Events::OUT)
    }
}

/// sendto(2).
pub fn sendto(call: &mut Call<'_>) -> SyscallResult {
    if let Some(target) = get_protocol(call)? {
        return packets::sendto(call, target);
    }
    let (open, socket) = get_socket(call)?;
    let target = match call.word(4) {
        0 => None,
        address => target_of(call, &socket, get_address(call, address, call.int(5))?.as_ref())?,
    };
    let segment = IoSegment { address: call.word(1), length: call.word(2).min(TRANSFER_LIMIT) };
    let ancillary = with_identity(call, &socket, target.as_ref(), Ancillary::default());
    let (thread, segments, flags) = (call.thread.clone(), Segments::One([segment]), call.uint(3));
    start_send(call, SendMessage { thread, open, socket, segments, target, ancillary, flags, done: 0 })
}

fn target_of(
    call: &Call<'_>,
    socket: &Socket,
    address: Option<&Address>,
) -> Result<Option<Arc<Inbox>>, Errno> {
    // A connected socket takes no address; Linux looks away for streams that are connected.
    if socket.style == Style::Stream {
        return Err(if socket.peer_address().is_ok() { Errno::EISCONN } else { Errno::EOPNOTSUPP });
    }
    if socket.style == Style::Packets {
        // The address doesn't matter, as long as there is a peer.
        return if socket.is_connected() { Ok(None) } else { Err(Errno::ENOTCONN) };
    }
    if socket.has_ended_sending() {
        return Err(Errno::EPIPE);
    }
    let target = find_target(call.thread, address.ok_or(Errno::EINVAL)?, socket)?;
    if !target.takes_from(socket.inbox()) {
        return Err(Errno::EPERM);
    }
    Ok(Some(target.inbox().clone()))
}

/// The control data of a message, with the sender's identity if the receiver wants to know it.
fn with_identity(
    call: &Call<'_>,
    socket: &Socket,
    target: Option<&Arc<Inbox>>,
    mut ancillary: Ancillary,
) -> Option<Ancillary> {
    let wanted = socket.inbox().passes_identity()
        || match target {
            Some(target) => target.passes_identity(),
            None => socket.peer_passes_identity(),
        };
    if wanted && ancillary.identity.is_none() {
        ancillary.identity = Some(PeerIdentity::of_sender(call.thread));
    }
    (wanted || ancillary.identity.is_some() || !ancillary.files().is_empty()).then_some(ancillary)
}

fn start_send(call: &Call<'_>, operation: SendMessage) -> SyscallResult {
    if operation.flags & net::MSG_OOB != 0 {
        return Err(Errno::EOPNOTSUPP.into());
    }
    carry_out(call.thread, manner(&operation.open, true, operation.flags), operation)
}

/// A `struct msghdr`.
pub(super) struct Header {
    pub name: usize,
    pub name_length: usize,
    pub vectors: usize,
    pub vector_count: usize,
    pub control: usize,
    pub control_length: usize,
}

pub(super) const MESSAGE: usize = size_of::<net::msghdr>();

pub(super) fn get_header(call: &Call<'_>, address: usize) -> TryResult<Header> {
    let bytes: [u8; MESSAGE] = get(call, address)?;
    // The fields that are pointers are read by their places.
    let word = |offset: usize| {
        let mut word = [0; WORD];
        word.copy_from_slice(&bytes[offset..offset + WORD]);
        usize::from_ne_bytes(word)
    };
    let name_length = field!(&bytes, net::msghdr, msg_namelen);
    Ok(Header {
        name: word(core::mem::offset_of!(net::msghdr, msg_name)),
        name_length: usize::try_from(name_length).map_err(|_| Errno::EINVAL)?.min(ADDRESS_LIMIT),
        vectors: word(core::mem::offset_of!(net::msghdr, msg_iov)),
        vector_count: word(core::mem::offset_of!(net::msghdr, msg_iovlen)),
        control: word(core::mem::offset_of!(net::msghdr, msg_control)),
        control_length: word(core::mem::offset_of!(net::msghdr, msg_controllen)),
    })
}

/// sendmsg(2).
pub fn sendmsg(call: &mut Call<'_>) -> SyscallResult {
    if let Some(target) = get_protocol(call)? {
        return packets::sendmsg(call, target);
    }
    let operation = prepare_send(call, call.word(1), call.uint(2))?;
    start_send(call, operation)
}

/// The operation that sends the message of a `struct msghdr`.
///
/// # Errors
/// The error in the header or its buffers; a page fault.
pub fn prepare_send(call: &Call<'_>, address: usize, flags: u32) -> TryResult<SendMessage> {
    let (open, socket) = get_socket(call)?;
    let header = get_header(call, address)?;
    let segments = many(call, header.vectors, header.vector_count).map_err(too_many)?;
    let target = match header.name {
        0 => None,
        _ if header.name_length == 0 => None,
        name => target_of(call, &socket, get_address(call, name, header.name_length as i32)?.as_ref())?,
    };
    let ancillary = get_control(call, &header)?;
    let ancillary = with_identity(call, &socket, target.as_ref(), ancillary);
    let thread = call.thread.clone();
    Ok(SendMessage { thread, open, socket, segments, target, ancillary, flags, done: 0 })
}

/// Too many pieces have an error of their own here.
pub(super) fn too_many(halt: TryError) -> TryError {
    if halt == TryError::Error(Errno::EINVAL) { Errno::EMSGSIZE.into() } else { halt }
}

/// Reads the control data of a message to send.
fn get_control(call: &Call<'_>, header: &Header) -> TryResult<Ancillary> {
    let mut ancillary = Ancillary::default();
    if header.control == 0 || header.control_length == 0 {
        return Ok(ancillary);
    }
    if header.control_length > CONTROL_LIMIT {
        return Err(Errno::ENOBUFS.into());
    }
    let bytes = get_bytes(call, header.control, header.control_length)?;
    let mut rest = &bytes[..];
    while rest.len() >= HEADER {
        let length = field!(rest, net::cmsghdr, cmsg_len) as usize;
        let level = field!(rest, net::cmsghdr, cmsg_level) as u32;
        let kind = field!(rest, net::cmsghdr, cmsg_type) as u32;
        let data = rest.get(HEADER..length).ok_or(Errno::EINVAL)?;
        if level == net::SOL_SOCKET {
            match kind {
                net::SCM_RIGHTS => add_files(call, data, &mut ancillary)?,
                net::SCM_CREDENTIALS => ancillary.identity = Some(check_identity(call, data)?),
                _ => return Err(Errno::EINVAL.into()),
            }
        }
        rest = rest.get(length.next_multiple_of(WORD)..).unwrap_or_default();
    }
    ancillary.depart(call.thread)?;
    Ok(ancillary)
}

fn add_files(call: &Call<'_>, data: &[u8], ancillary: &mut Ancillary) -> Result<(), Errno> {
    let table = call.thread.descriptors();
    if data.len() / 4 + ancillary.files().len() > FILES_LIMIT {
        return Err(Errno::EINVAL);
    }
    for descriptor in data.chunks_exact(4) {
        let number = i32::from_ne_bytes([descriptor[0], descriptor[1], descriptor[2], descriptor[3]]);
        let open = table.get(number)?;
        // As in Linux: a ring could be kept by the sockets that are registered with it.
        if downcast::<Uring>(&open).is_some() {
            return Err(Errno::EINVAL);
        }
        ancillary.add_file(open)?;
    }
    Ok(())
}

/// An identity that a program claims: its own, unless it may claim any.
fn check_identity(call: &Call<'_>, data: &[u8]) -> Result<PeerIdentity, Errno> {
    let number = |index: usize| -> Result<[u8; 4], Errno> {
        data.get(index * 4..).and_then(<[u8]>::first_chunk).copied().ok_or(Errno::EINVAL)
    };
    if data.len() != IDENTITY_BYTES {
        return Err(Errno::EINVAL);
    }
    let who = call.thread.credentials();
    let claimed = PeerIdentity {
        pid: call.thread.process.named(i32::from_ne_bytes(number(0)?)),
        uid: who.user(u32::from_ne_bytes(number(1)?))?,
        gid: who.group(u32::from_ne_bytes(number(2)?))?,
    };
    let owner = pid_namespace::owner(&call.thread.process.pids);
    let may_claim = (claimed.pid == call.thread.process.pid
        || who.is_capable_in(&owner, linux::CAP_SYS_ADMIN))
        && ([who.uid, who.euid, who.suid].contains(&claimed.uid) || who.has_capability(linux::CAP_SETUID))
        && ([who.gid, who.egid, who.sgid].contains(&claimed.gid) || who.has_capability(linux::CAP_SETGID));
    if !may_claim {
        return Err(Errno::EPERM);
    }
    if claimed.pid != call.thread.process.pid && crate::process::table::process(claimed.pid).is_none() {
        return Err(Errno::ESRCH);
    }
    Ok(claimed)
}

/// Where the results of a receiving call go.
pub(super) struct MessageFields {
    /// The sender's address: where, how much room, and where its length goes (4 bytes).
    pub name: usize,
    pub name_room: usize,
    pub name_length_at: usize,
    /// Control data: where, how much room, and where its length goes (a word).
    pub control: usize,
    pub control_room: usize,
    pub control_length_at: usize,
    /// Where the flags go; 0 for nowhere.
    pub flags_at: usize,
}

impl MessageFields {
    /// Makes sure that what is received can be stored.
    pub fn probe(&self, thread: &Caller) -> TryResult<()> {
        let space = thread.space();
        for (address, length) in [
            (self.name, self.name_room),
            (self.name_length_at, 4),
            (self.control, self.control_room),
            (self.control_length_at, WORD),
            (self.flags_at, 4),
        ] {
            if address != 0 && length > 0 {
                space.probe_write(address, length)?;
            }
        }
        Ok(())
    }
}

/// Where the results go of a call that receives by the `struct msghdr` at `address`.
pub(super) const fn message_fields(header: &Header, address: usize) -> MessageFields {
    let has_name = header.name != 0;
    let name_length_at = address + core::mem::offset_of!(net::msghdr, msg_namelen);
    let control_room =
        if header.control_length < CONTROL_LIMIT { header.control_length } else { CONTROL_LIMIT };
    MessageFields {
        name: header.name,
        name_room: if has_name { header.name_length } else { 0 },
        name_length_at: if has_name { name_length_at } else { 0 },
        control: header.control,
        control_room: if header.control == 0 { 0 } else { control_room },
        control_length_at: address + core::mem::offset_of!(net::msghdr, msg_controllen),
        flags_at: address + core::mem::offset_of!(net::msghdr, msg_flags),
    }
}

/// A message on its way in.
pub struct ReceiveMessage {
    thread: Caller,
    open: Arc<OpenFile>,
    socket: Arc<Socket>,
    segments: Segments,
    places: MessageFields,
    flags: u32,
    done: usize,
    /// Control data that came along with the bytes received so far.
    ancillary: Option<Ancillary>,
}

impl Operation for ReceiveMessage {
    fn attempt(&mut self) -> TryResult<usize> {
        self.places.probe(&self.thread)?;
        let space = self.thread.space();
        let total: usize = self.segments.as_slice().iter().map(|segment| segment.length).sum();
        let is_stream = self.socket.style == Style::Stream;
        let peek = self.flags & net::MSG_PEEK != 0;
        // A read waits for `SO_RCVLOWAT` bytes, or for all.
        let all = self.flags & net::MSG_WAITALL != 0 && is_stream;
        let low_water = self.socket.options().low_water().load(Ordering::Relaxed) as usize;
        let least = if all { total } else { low_water.min(total) };
        let before = self.done;
        loop {
            let mut buffer = IoBuffer::user(&space, self.segments.as_slice());
            buffer.skip(self.done);
            // The bytes are out of the socket by now, so nothing may fail after.
            let texts = self.texts()?;
            let no_wait = self.flags & net::MSG_DONTWAIT != 0;
            let how = ReceiveHow { peek, goes_on: self.done > 0, no_wait };
            let has_enough = self.done > 0 && (self.done >= least || no_wait);
            let received = match self.socket.receive(&mut buffer, how) {
                Err(TryError::WouldBlock) if has_enough => Received::default(),
                result => result?,
            };
            self.done += received.count;
            if received.ancillary.is_some() {
                self.ancillary = received.ancillary;
            }
            let is_left = received.count > 0 && self.done < total && is_stream && !peek;
            if is_left && let Some(missing) = buffer.missed() {
                // The bytes before the missing page are taken; the call goes on behind them.
                return Err(missing.into());
            }
            if is_left && self.done < least && self.ancillary.is_none() {
                if self.done >= before + CUT_BYTES {
                    return Err(TryError::WouldBlock);
                }
                continue;
            }
            let ancillary = self.ancillary.take();
            return self.store(Received { ancillary, ..received }, texts);
        }
    }

    fn partial(&self) -> Option<usize> {
        (self.done > 0).then_some(self.done)
    }

    fn can_go_on(&self, watch: &Watch) -> Result<bool, Errno> {
        self.open.file.can_go_on(&self.open, watch, Events::IN)
    }

    fn is_exclusive(&self) -> bool {
        true
    }
}

/// Where the sender's name and the control data of a message are put together.
struct Texts {
    name: Vec<u8>,
    control: Vec<u8>,
}

impl ReceiveMessage {
    /// Room for whatever may have to be stored.
    fn texts(&self) -> Result<Texts, Errno> {
        let places = &self.places;
        let control_bytes = places.control_room.min(CONTROL_BYTES_MAX);
        Ok(Texts {
            name: Address::room(places.name_length_at != 0)?,
            control: fallible::try_with_capacity(control_bytes)?,
        })
    }

    fn store(&self, received: Received, texts: Texts) -> TryResult<usize> {
        let (thread, places) = (&self.thread, &self.places);
        let Texts { mut name, mut control } = texts;
        let mut flags = self.flags & net::MSG_CMSG_CLOEXEC;
        if received.length > received.count && self.socket.style != Style::Stream {
            flags |= net::MSG_TRUNC;
        }
        if places.name_length_at != 0 {
            // The peer of a connection is told if it has a name.
            let has_peer = self.socket.style != Style::Datagram && self.done > 0;
            let peer = has_peer.then(|| self.socket.peer_address().ok().flatten()).flatten();
            if let Some(sender) = received.sender.as_ref().or(peer.as_ref()) {
                Address::encode_into(Some(sender), &mut name);
            }
            thread.store_result(places.name, &name[..name.len().min(places.name_room)])?;
            thread.store_result(places.name_length_at, &(name.len() as u32).to_ne_bytes())?;
        }
        if received.ancillary.is_some() || self.socket.inbox().passes_identity() {
            self.encode_control(received.ancillary.unwrap_or_default(), &mut control, &mut flags);
        }
        if places.control_length_at != 0 {
            thread.store_result(places.control, &control)?;
            thread.store_result(places.control_length_at, &control.len().to_ne_bytes())?;
        }
        if places.flags_at != 0 {
            thread.store_result(places.flags_at, &flags.to_ne_bytes())?;
        }
        let whole = self.flags & net::MSG_TRUNC != 0 && self.socket.style != Style::Stream;
        Ok(if whole { received.length } else { self.done })
    }

    /// Turns what came along into control data; what doesn't fit is lost, and the flags say so.
    fn encode_control(&self, mut ancillary: Ancillary, control: &mut Vec<u8>, flags: &mut u32) {
        let room = self.places.control_room;
        if self.socket.inbox().passes_identity() {
            let identity = ancillary.identity.unwrap_or(PeerIdentity::UNKNOWN);
            let identity = identity.seen_by(&self.thread);
            let mut bytes = [0; IDENTITY_BYTES];
            bytes[..4].copy_from_slice(&identity.pid.to_ne_bytes());
            bytes[4..8].copy_from_slice(&identity.uid.to_ne_bytes());
            bytes[8..].copy_from_slice(&identity.gid.to_ne_bytes());
            // As in Linux, a part of them is better than nothing.
            let fit = bytes.len().min(room.saturating_sub(HEADER));
            let is_told = room >= HEADER && push_control(control, room, net::SCM_CREDENTIALS, &bytes[..fit]);
            if !is_told || fit < bytes.len() {
                *flags |= net::MSG_CTRUNC;
            }
        }
        if ancillary.files().is_empty() {
            return;
        }
        let (table, limit) = (self.thread.descriptors(), self.thread.process.descriptor_limit());
        let close_on_exec = self.flags & net::MSG_CMSG_CLOEXEC != 0;
        let fit = room.saturating_sub(control.len() + HEADER) / 4;
        let mut numbers = [0; 4 * FILES_LIMIT];
        let (count, mut stored) = (ancillary.files().len(), 0);
        let places = numbers.chunks_exact_mut(4);
        for (file, place) in ancillary.take_files().into_iter().take(fit).zip(places) {
            let Ok(number) = table.add(file, 0, limit, close_on_exec) else { break };
            place.copy_from_slice(&number.to_ne_bytes());
            stored += 1;
        }
        if stored < count {
            *flags |= net::MSG_CTRUNC;
        }
        if stored > 0 {
            push_control(control, room, net::SCM_RIGHTS, &numbers[..4 * stored]);
        }
    }
}

/// Appends a piece of control data, for which there is memory; false if the program has no room.
fn push_control(control: &mut Vec<u8>, room: usize, kind: u32, data: &[u8]) -> bool {
    let length = HEADER + data.len();
    if control.len() + length > room {
        return false;
    }
    let padded = length.next_multiple_of(WORD).min(room - control.len());
    let start = control.len();
    let head = encode!(net::cmsghdr { cmsg_len: length, cmsg_level: net::SOL_SOCKET, cmsg_type: kind });
    extend_reserved(control, &head);
    extend_reserved(control, data);
    resize_reserved(control, start + padded, 0);
    true
}

/// recvfrom(2).
pub fn recvfrom(call: &mut Call<'_>) -> SyscallResult {
    if let Some(target) = get_protocol(call)? {
        return packets::recvfrom(call, target);
    }
    let segment = IoSegment { address: call.word(1), length: call.word(2).min(TRANSFER_LIMIT) };
    let (name, length_at) = (call.word(4), call.word(5));
    let name_room =
        if name == 0 { 0 } else { packets::room_of_name(i32::from_ne_bytes(get(call, length_at)?))? };
    let places = MessageFields {
        name,
        name_room: name_room.min(ADDRESS_LIMIT),
        name_length_at: if name == 0 { 0 } else { length_at },
        control: 0,
        control_room: 0,
        control_length_at: 0,
        flags_at: 0,
    };
    let operation = receive(call, Segments::One([segment]), places, call.uint(3))?;
    start_receive(call, operation)
}

/// recvmsg(2).
pub fn recvmsg(call: &mut Call<'_>) -> SyscallResult {
    if let Some(target) = get_protocol(call)? {
        return packets::recvmsg(call, target);
    }
    let operation = prepare_receive(call, call.word(1), call.uint(2))?;
    start_receive(call, operation)
}

/// The operation that receives a message as a `struct msghdr` describes it.
///
/// # Errors
/// The error in the header or its buffers; a page fault.
pub fn prepare_receive(call: &Call<'_>, address: usize, flags: u32) -> TryResult<ReceiveMessage> {
    let header = get_header(call, address)?;
    let segments = many(call, header.vectors, header.vector_count).map_err(too_many)?;
    let places = message_fields(&header, address);
    receive(call, segments, places, flags)
}

/// Receives into one piece of memory, with the rest of the results where `places` says.
pub(super) fn receive_at(
    call: &Call<'_>,
    segment: IoSegment,
    places: MessageFields,
    flags: u32,
) -> SyscallResult {
    let segments = Segments::One([segment]);
    if let Some(target) = get_protocol(call)? {
        return packets::receive_at(call, target, segments, places, flags);
    }
    start_receive(call, receive(call, segments, places, flags)?)
}

fn receive(
    call: &Call<'_>,
    segments: Segments,
    places: MessageFields,
    flags: u32,
) -> TryResult<ReceiveMessage> {
    let (open, socket) = get_socket(call)?;
    Ok(ReceiveMessage {
        thread: call.thread.clone(),
        open,
        socket,
        segments,
        places,
        flags,
        done: 0,
        ancillary: None,
    })
}

fn start_receive(call: &Call<'_>, mut operation: ReceiveMessage) -> SyscallResult {
    if operation.flags & net::MSG_OOB != 0 {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let manner = manner(&operation.open, false, operation.flags);
    if manner.no_wait {
        operation.flags |= net::MSG_DONTWAIT;
    }
    carry_out(call.thread, manner, operation)
}
