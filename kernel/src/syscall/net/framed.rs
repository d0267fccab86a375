//! Receiving into a buffer that the caller chooses in place of those that a `struct msghdr` names, for `io_uring`.

use linux_raw_sys::net;

use crate::error::{Errno, TryResult};
use crate::fs::buffer::IoSegment;
use crate::memory::Space;
use crate::syscall::net::message::{
    CONTROL_LIMIT, MESSAGE, MessageFields, get_header, message_fields, receive_at,
};
use crate::syscall::net::socket::ADDRESS_LIMIT;
use crate::syscall::{Call, SyscallResult};

const WORD: usize = size_of::<u64>();

/// Where the parts of a message are in a buffer that also has its header (`struct io_uring_recvmsg_out`).
pub struct MessageFrame {
    name_length: usize,
    control_length: usize,
}

impl MessageFrame {
    const HEADER: usize = 16;
    /// Where the length of the payload is.
    pub const LENGTH_AT: usize = 8;

    /// Bytes in front of the payload.
    pub const fn bytes(&self) -> usize {
        Self::HEADER + self.name_length + self.control_length
    }
}

/// The frame for which the `struct msghdr` at `address` reserves room.
///
/// # Errors
/// `EOVERFLOW`; a page fault.
pub fn get_frame(space: &Space, address: usize) -> TryResult<MessageFrame> {
    const WORDS: usize = MESSAGE / WORD;
    let words = space.read::<[u64; WORDS]>(address)?;
    let name_length = words[core::mem::offset_of!(net::msghdr, msg_namelen) / WORD] as u32 as usize;
    let control_length = words[core::mem::offset_of!(net::msghdr, msg_controllen) / WORD];
    let control_length = u32::try_from(control_length).map_err(|_| Errno::EOVERFLOW)? as usize;
    Ok(MessageFrame { name_length, control_length })
}

/// As recvmsg(2), into one piece of memory in place of those that the `struct msghdr` names.
pub fn receive_into(
    call: &Call<'_>,
    address: usize,
    (start, length): (usize, usize),
    flags: u32,
) -> SyscallResult {
    let header = get_header(call, address)?;
    receive_at(call, IoSegment { address: start, length }, message_fields(&header, address), flags)
}

/// Receives a message into a buffer, behind its header, name and control data.
pub fn receive_framed(
    call: &Call<'_>,
    frame: &MessageFrame,
    (start, length): (usize, usize),
    flags: u32,
) -> SyscallResult {
    const FLAGS_AT: usize = 12;
    let payload = IoSegment { address: start + frame.bytes(), length: length - frame.bytes() };
    let name = start + MessageFrame::HEADER;
    // The length of control data is stored as a word, whose other half is the payload's length, stored after it.
    let places = MessageFields {
        name,
        name_room: frame.name_length.min(ADDRESS_LIMIT),
        name_length_at: start,
        control: name + frame.name_length,
        control_room: frame.control_length.min(CONTROL_LIMIT),
        control_length_at: start + size_of::<u32>(),
        flags_at: start + FLAGS_AT,
    };
    receive_at(call, payload, places, flags)
}
