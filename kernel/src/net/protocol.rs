//! Sockets of the families that have packets: what the calls ask of them.
//!
//! UNIX sockets have calls of their own, because what they carry is more than bytes: descriptors and identities.

use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::net;

use crate::error::{Errno, TryResult};
use crate::fs::{File, IoBuffer, downcast_arc};
use crate::net::inet::InetSocket;
use crate::net::netlink::NetlinkSocket;
use crate::net::packet::PacketSocket;
use crate::process::Thread;

/// The longest address of these families.
const ADDRESS_BYTES: usize = 32;

/// A `struct sockaddr_*`.
#[derive(Clone, Copy, Debug, Default)]
pub struct SocketAddress {
    bytes: [u8; ADDRESS_BYTES],
    length: usize,
}

impl SocketAddress {
    /// An address of these bytes; as many as fit.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        let length = bytes.len().min(ADDRESS_BYTES);
        let mut address = Self { length, ..Self::default() };
        address.bytes[..length].copy_from_slice(&bytes[..length]);
        address
    }

    /// Its bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Its family; `AF_UNSPEC` if it is too short to have one.
    #[must_use]
    pub fn family(&self) -> u32 {
        if self.length < 2 {
            net::AF_UNSPEC
        } else {
            u16::from_ne_bytes([self.bytes[0], self.bytes[1]]).into()
        }
    }
}

/// Beside the bytes of a message that is sent.
pub struct Outgoing<'a> {
    /// The sender.
    pub thread: &'a Arc<Thread>,
    /// Where to; nothing for the peer.
    pub address: Option<&'a SocketAddress>,
    /// Control data, a row of `struct cmsghdr`.
    pub control: &'a [u8],
    /// `MSG_` bits.
    pub flags: u32,
}

/// Beside the bytes of a message that was received.
#[derive(Default)]
pub struct Incoming {
    /// Where from, if that is known, and wanted.
    pub address: Option<SocketAddress>,
    /// Control data; what it has capacity for is wanted.
    pub control: Vec<u8>,
    /// Whether somebody wants the address.
    pub wants_address: bool,
    /// `MSG_` bits for the program.
    pub flags: u32,
    /// Bytes of the whole message.
    pub length: usize,
}

/// The value of an option.
pub struct OptionValue {
    bytes: [u8; Self::BYTES],
    length: usize,
}

impl OptionValue {
    /// `struct tcp_info` is the longest.
    const BYTES: usize = 256;

    /// A value of these bytes; as many as fit.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        let length = bytes.len().min(Self::BYTES);
        let mut value = Self { bytes: [0; Self::BYTES], length };
        value.bytes[..length].copy_from_slice(&bytes[..length]);
        value
    }

    /// A C `int`.
    #[must_use]
    pub fn int(value: u32) -> Self {
        Self::new(&value.to_ne_bytes())
    }

    /// Its bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// A socket of a family that has packets. As with all files, nothing here waits.
pub trait ProtocolSocket: File {
    /// A thread is about to move data: what is done for the socket elsewhere is done at the level of the thread.
    fn used_by(&self, thread: &Thread) {
        let _ = thread;
    }

    /// Whether it carries bytes and not messages: a call goes on until all are moved.
    fn is_stream(&self) -> bool;

    /// `SO_RCVLOWAT`: the bytes of a stream that a read waits for.
    fn low_water(&self) -> usize {
        1
    }

    /// bind(2).
    ///
    /// # Errors
    /// `EINVAL`, `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES`, …
    fn bind(&self, thread: &Arc<Thread>, address: &SocketAddress) -> Result<(), Errno>;

    /// connect(2). Called again after a wait that it asked for.
    ///
    /// # Errors
    /// Blocks while it waits for the peer, `EINPROGRESS` if it must not wait.
    fn connect(&self, thread: &Arc<Thread>, address: &SocketAddress, may_wait: bool) -> TryResult<()>;

    /// listen(2).
    ///
    /// # Errors
    /// `EOPNOTSUPP`, `EINVAL`, `EADDRINUSE`.
    fn listen(&self, backlog: i32) -> Result<(), Errno>;

    /// accept(2): the new socket, and the peer's address.
    ///
    /// # Errors
    /// Blocks while there is none. `EOPNOTSUPP`, `EINVAL`.
    fn accept(&self) -> TryResult<(Arc<dyn File>, SocketAddress)>;

    /// getsockname(2).
    ///
    /// # Errors
    /// Of the family.
    fn local_address(&self) -> Result<SocketAddress, Errno>;

    /// getpeername(2).
    ///
    /// # Errors
    /// `ENOTCONN`.
    fn peer_address(&self) -> Result<SocketAddress, Errno>;

    /// shutdown(2).
    ///
    /// # Errors
    /// `ENOTCONN`.
    fn shut_down(&self, reading: bool, writing: bool) -> Result<(), Errno>;

    /// Sends what is in `buffer`: a stream as much as there is room for, else a message.
    ///
    /// # Errors
    /// Blocks while there is no room. Those of send(2).
    fn send(&self, buffer: &mut IoBuffer<'_>, message: &Outgoing<'_>) -> TryResult<usize>;

    /// Receives into `buffer`; `flags` has `MSG_` bits, and `done` says how many bytes of a stream the call has
    /// already, or has peeked at. Returns the bytes copied.
    ///
    /// # Errors
    /// Blocks while there is nothing. Those of recv(2).
    fn receive(
        &self,
        buffer: &mut IoBuffer<'_>,
        flags: u32,
        done: usize,
        message: &mut Incoming,
    ) -> TryResult<usize>;

    /// getsockopt(2).
    ///
    /// # Errors
    /// `ENOPROTOOPT`, …
    fn option(&self, level: u32, name: u32) -> Result<OptionValue, Errno>;

    /// As [`ProtocolSocket::option`], where a program has said more in the place of the value.
    ///
    /// # Errors
    /// As there; `EINVAL`.
    fn option_about(&self, level: u32, name: u32, given: u32) -> Result<OptionValue, Errno> {
        let _ = given;
        self.option(level, name)
    }

    /// setsockopt(2).
    ///
    /// # Errors
    /// `ENOPROTOOPT`, `EINVAL`, `EPERM`, …
    fn set_option(&self, thread: &Arc<Thread>, level: u32, name: u32, value: &[u8]) -> Result<(), Errno>;

    /// `SO_ATTACH_FILTER`, with the instructions as they lie in memory.
    ///
    /// # Errors
    /// `EINVAL`, `EPERM` (it is locked), `ENOMEM`; `ENOPROTOOPT`: the family has no filters.
    fn set_filter(&self, program: &[u8]) -> Result<(), Errno> {
        let _ = program;
        Err(Errno::ENOPROTOOPT)
    }
}

/// The socket that a file is, if it is of a family that has packets.
#[must_use]
pub fn protocol_socket(file: &Arc<dyn File>) -> Option<Arc<dyn ProtocolSocket>> {
    let inet: Option<Arc<InetSocket>> = downcast_arc(file);
    if let Some(socket) = inet {
        return Some(socket);
    }
    let netlink: Option<Arc<NetlinkSocket>> = downcast_arc(file);
    if let Some(socket) = netlink {
        return Some(socket);
    }
    let packet: Option<Arc<PacketSocket>> = downcast_arc(file);
    packet.map(|socket| -> Arc<dyn ProtocolSocket> { socket })
}
