//! Packet sockets, packet(7): frames of an interface as they come and go.
//!
//! ```text
//!   device ─▶ Frames::receive ─┬─▶ engine              engine ─▶ Tapped::transmit ─┬─▶ device
//!                              └─▶ PacketRegistry::offer ◀─────────────────────────┘
//! ```
//!
//! On the loopback sockets see the datagrams of UDP and of raw sockets, and what packet sockets send there;
//! connections within the machine have no packets.

mod options;
pub mod registry;
mod ring;
mod send;

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use linux_raw_sys::{general as linux, ioctl, net};

use heddle_kernel_core::fallible::{extend_reserved, push_back_reserved, resize_reserved};
use heddle_kernel_core::netlink::InterfaceKind;
use heddle_kernel_core::packet_filter::{PacketFilter, PacketView};

use crate::arch::cpu;
use crate::call::Call;
use crate::error::{Errno, TryError, TryResult};
use crate::fs::{File, IoBuffer, OpenFile, SocketNode, StatusFlags};
use crate::memory::{MapSource, fallible};
use crate::net::device_ioctl;
use crate::net::interface::with_network;
use crate::net::namespace::NetNamespace;
use crate::net::options::SocketOptions;
use crate::net::packet::registry::{Checksums, Frame, HEADER, PacketKind};
use crate::net::packet::ring::{PacketRing, RingPacket, Version};
use crate::net::protocol::{Incoming, OptionValue, Outgoing, ProtocolSocket, SocketAddress};
use crate::process::Thread;
use crate::random;
use crate::sync::SpinLock;
use crate::wait::queue::{Events, WaitQueue, Watch};

/// `ETH_P_ALL`, in the order of the machine: all protocols, in both directions.
const EVERY_PROTOCOL: u16 = 3;
/// Bytes of `struct sockaddr_ll`, of which the last eight are a hardware address.
const ADDRESS_BYTES: usize = 20;
const HARDWARE_AT: usize = 12;
const MAC_BYTES: usize = 6;
/// The memory that a packet counts for beside its bytes, as in Linux.
const PACKET_COST: usize = 768;
/// Bytes of `struct tpacket_auxdata`.
const AUXILIARY_BYTES: usize = 20;
/// `TP_STATUS_KERNEL`: the frame of a ring is free. `TP_STATUS_LOSING`: packets were lost.
const STATUS_KERNEL: u32 = 0;
const STATUS_LOSING: u32 = 4;
/// `TP_STATUS_USER`, `TP_STATUS_CSUMNOTREADY`, `TP_STATUS_CSUM_VALID`.
const STATUS_USER: u32 = 1;
const STATUS_SUMS_MISSING: u32 = 8;
const STATUS_SUMS_RIGHT: u32 = 128;
/// Options that are on or off.
const WANTS_AUXILIARY: u32 = 1;
const IGNORES_OUTGOING: u32 = 2;
const WANTS_ORIGIN: u32 = 4;
const PASSES_QUEUES: u32 = 8;

/// A packet that waits.
struct ReceivedPacket {
    bytes: Vec<u8>,
    /// How long it was before the filter cut it.
    length: usize,
    address: [u8; ADDRESS_BYTES],
    status: u32,
}

impl ReceivedPacket {
    const fn cost(&self) -> usize {
        self.bytes.len() + PACKET_COST
    }

    /// `struct tpacket_auxdata`.
    fn auxiliary(&self, network: usize) -> [u8; AUXILIARY_BYTES] {
        let mut bytes = [0; AUXILIARY_BYTES];
        let words = [self.status, self.length as u32, self.bytes.len() as u32];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes[14..16].copy_from_slice(&(network as u16).to_ne_bytes());
        bytes
    }
}

#[derive(Default)]
struct PacketState {
    waiting: VecDeque<ReceivedPacket>,
    bytes: usize,
    /// Since they were asked for last.
    packets: u32,
    drops: u32,
    error: Option<Errno>,
    filter: Option<Arc<PacketFilter>>,
    memberships: Vec<options::Membership>,
    /// The ring that packets go to in place of the queue.
    ring: Option<PacketRing>,
    ring_options: RingOptions,
}

/// Settings of the next ring.
#[derive(Clone, Copy)]
struct RingOptions {
    version: Version,
    reserve: usize,
}

impl Default for RingOptions {
    fn default() -> Self {
        Self { version: Version::First, reserve: 0 }
    }
}

/// A packet socket.
pub struct PacketSocket {
    node: SocketNode,
    namespace: Arc<NetNamespace>,
    kind: u32,
    /// The protocol and the number of the interface that it listens to; 0 for none, and for all.
    binding: AtomicU64,
    state: SpinLock<PacketState>,
    queue: WaitQueue,
    options: SocketOptions,
    flags: AtomicU32,
    timeouts_ns: [AtomicU64; 2],
}

/// The facts of an interface.
#[derive(Clone, Copy)]
struct PacketDevice {
    index: u32,
    hardware: u16,
    mac: [u8; MAC_BYTES],
    mtu: usize,
    is_up: bool,
    is_loopback: bool,
}

fn device(namespace: &NetNamespace, index: u32) -> Option<PacketDevice> {
    with_network(namespace, |network| {
        network.by_index(index).map(|found| PacketDevice {
            index,
            hardware: found.kind.number(),
            mac: found.mac,
            mtu: found.mtu as usize,
            is_up: found.is_up,
            is_loopback: found.kind == InterfaceKind::Loopback,
        })
    })
}

impl PacketSocket {
    /// An open socket that listens on all interfaces if it has a protocol, which is in network order.
    ///
    /// # Errors
    /// `EPERM`, `ESOCKTNOSUPPORT`, `ENOBUFS`, `ENOMEM`.
    pub fn open(
        thread: &Thread,
        kind: u32,
        protocol: u32,
        status: StatusFlags,
    ) -> Result<Arc<OpenFile>, Errno> {
        let (credentials, namespace) = (thread.credentials(), NetNamespace::of(thread)?);
        if !namespace.grants(&credentials, linux::CAP_NET_RAW) {
            return Err(Errno::EPERM);
        }
        if !matches!(kind, net::SOCK_RAW | net::SOCK_DGRAM) {
            return Err(Errno::ESOCKTNOSUPPORT);
        }
        let socket = fallible::try_arc(Self {
            node: SocketNode::new((credentials.fsuid, credentials.fsgid)),
            namespace,
            kind,
            binding: AtomicU64::new(binding(u16::from_be(protocol as u16), 0)),
            state: SpinLock::new(PacketState::default()),
            queue: WaitQueue::new(),
            options: SocketOptions::new(),
            flags: AtomicU32::new(0),
            timeouts_ns: [AtomicU64::new(0), AtomicU64::new(0)],
        })?;
        let open = fallible::try_arc(OpenFile::new(socket.clone(), status))?;
        socket.namespace.packets().add(&socket)?;
        Ok(open)
    }

    const fn is_raw(&self) -> bool {
        self.kind == net::SOCK_RAW
    }

    /// Where in a frame the socket's bytes begin.
    const fn start(&self) -> usize {
        if self.is_raw() { 0 } else { HEADER }
    }

    /// The protocol and the interface that it is bound to.
    fn bound(&self) -> (u16, u32) {
        let binding = self.binding.load(Ordering::Acquire);
        ((binding >> 32) as u16, binding as u32)
    }

    fn has(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Relaxed) & flag != 0
    }

    /// Takes a copy of a frame if it is for the socket.
    fn take(&self, frame: &Frame<'_>) {
        let (protocol, interface) = self.bound();
        let is_outgoing = frame.kind == PacketKind::Outgoing;
        let is_wanted = match protocol {
            0 => false,
            EVERY_PROTOCOL => !(is_outgoing && self.has(IGNORES_OUTGOING)),
            protocol => !is_outgoing && protocol == frame.protocol(),
        };
        if !is_wanted || interface != 0 && interface != frame.interface {
            return;
        }
        let bytes = frame.bytes.get(self.start()..).unwrap_or_default();
        let mut state = self.state.lock();
        let mut length = bytes.len();
        if let Some(filter) = &state.filter {
            let mut seed = [0; 4];
            random::fill(&mut seed);
            let view = PacketView {
                frame: frame.bytes,
                start: self.start(),
                network: HEADER,
                protocol: frame.protocol(),
                kind: frame.kind as u8,
                interface: frame.interface,
                hardware: frame.hardware,
                processor: cpu::id() as u32,
                random: u32::from_ne_bytes(seed),
            };
            length = length.min(filter.run(&view) as usize);
            if length == 0 {
                return;
            }
        }
        state.packets = state.packets.saturating_add(1);
        let status = match frame.checksums {
            Checksums::Unknown => STATUS_USER,
            Checksums::Right => STATUS_USER | STATUS_SUMS_RIGHT,
            Checksums::Missing => STATUS_USER | STATUS_SUMS_MISSING,
        };
        let address =
            address(frame.protocol(), frame.interface, frame.hardware, frame.kind as u8, frame.source());
        let link = HEADER - self.start();
        let packet = RingPacket { bytes: &bytes[..length], length: bytes.len(), link, address, status };
        let limit = self.options.buffer(false) as usize;
        if state.keep(&packet, limit).is_break() {
            state.drops = state.drops.saturating_add(1);
            return;
        }
        drop(state);
        self.queue.wake(Events::IN | Events::RDNORM);
    }
}

impl PacketState {
    /// Puts a packet into the ring, or into the queue. `Break`: there is no room.
    fn keep(&mut self, packet: &RingPacket<'_>, limit: usize) -> ControlFlow<()> {
        if let Some(ring) = &mut self.ring {
            return ring.put(packet, self.drops > 0);
        }
        if self.bytes > limit || self.waiting.try_reserve(1).is_err() {
            return ControlFlow::Break(());
        }
        let Ok(bytes) = fallible::try_to_vec(packet.bytes) else { return ControlFlow::Break(()) };
        let (length, address, status) = (packet.length, packet.address, packet.status);
        let received = ReceivedPacket { bytes, length, address, status };
        self.bytes += received.cost();
        push_back_reserved(&mut self.waiting, received);
        ControlFlow::Continue(())
    }

    /// Whether there is something to read.
    fn has_packet(&self) -> bool {
        self.ring.as_ref().map_or(!self.waiting.is_empty(), PacketRing::has_unread)
    }
}

const fn binding(protocol: u16, interface: u32) -> u64 {
    (protocol as u64) << 32 | interface as u64
}

/// A `struct sockaddr_ll`.
fn address(
    protocol: u16,
    interface: u32,
    hardware: u16,
    kind: u8,
    mac: [u8; MAC_BYTES],
) -> [u8; ADDRESS_BYTES] {
    let mut bytes = [0; ADDRESS_BYTES];
    bytes[..2].copy_from_slice(&(net::AF_PACKET as u16).to_ne_bytes());
    bytes[2..4].copy_from_slice(&protocol.to_be_bytes());
    bytes[4..8].copy_from_slice(&interface.to_ne_bytes());
    bytes[8..10].copy_from_slice(&hardware.to_ne_bytes());
    (bytes[10], bytes[11]) = (kind, MAC_BYTES as u8);
    bytes[HARDWARE_AT..HARDWARE_AT + MAC_BYTES].copy_from_slice(&mac);
    bytes
}

/// The protocol and the interface of a `struct sockaddr_ll`.
fn decode(bytes: &[u8]) -> Result<(u16, u32), Errno> {
    let head = bytes.first_chunk::<ADDRESS_BYTES>().ok_or(Errno::EINVAL)?;
    let [_, _, p, q, a, b, c, d, ..] = *head;
    Ok((u16::from_be_bytes([p, q]), u32::from_ne_bytes([a, b, c, d])))
}

/// Appends a control message with `data`, if there is room for all of it.
fn put_control(message: &mut Incoming, level: u32, name: u32, data: &[u8]) {
    let length = size_of::<net::cmsghdr>() + data.len();
    let padded = length.next_multiple_of(size_of::<usize>());
    if message.control.capacity() - message.control.len() < padded {
        message.flags |= net::MSG_CTRUNC;
        return;
    }
    extend_reserved(&mut message.control, &length.to_ne_bytes());
    extend_reserved(&mut message.control, &level.to_ne_bytes());
    extend_reserved(&mut message.control, &name.to_ne_bytes());
    extend_reserved(&mut message.control, data);
    let end = message.control.len() + padded - length;
    resize_reserved(&mut message.control, end, 0);
}

impl ProtocolSocket for PacketSocket {
    fn is_stream(&self) -> bool {
        false
    }

    fn bind(&self, _: &Arc<Thread>, address: &SocketAddress) -> Result<(), Errno> {
        let (protocol, interface) = decode(address.as_slice())?;
        if address.family() != net::AF_PACKET {
            return Err(Errno::EINVAL);
        }
        let found = if interface == 0 { None } else { Some(device(&self.namespace, interface)) };
        let found = found.map(|found| found.ok_or(Errno::ENODEV)).transpose()?;
        let protocol = if protocol == 0 { self.bound().0 } else { protocol };
        let mut state = self.state.lock();
        self.binding.store(binding(protocol, interface), Ordering::Release);
        if found.is_some_and(|found| !found.is_up) {
            state.error = Some(Errno::ENETDOWN);
            drop(state);
            self.queue.wake(Events::ERR);
        }
        Ok(())
    }

    fn connect(&self, _: &Arc<Thread>, _: &SocketAddress, _: bool) -> TryResult<()> {
        Err(Errno::EOPNOTSUPP.into())
    }

    fn listen(&self, _: i32) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn accept(&self) -> TryResult<(Arc<dyn File>, SocketAddress)> {
        Err(Errno::EOPNOTSUPP.into())
    }

    fn local_address(&self) -> Result<SocketAddress, Errno> {
        let (protocol, interface) = self.bound();
        let found = device(&self.namespace, interface);
        let (hardware, mac) = found.map_or((0, [0; MAC_BYTES]), |found| (found.hardware, found.mac));
        let mut bytes = address(protocol, interface, hardware, 0, mac);
        if found.is_none() {
            bytes[11] = 0;
        }
        let length = HARDWARE_AT + usize::from(bytes[11]);
        Ok(SocketAddress::new(&bytes[..length]))
    }

    fn peer_address(&self) -> Result<SocketAddress, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn shut_down(&self, _: bool, _: bool) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn send(&self, buffer: &mut IoBuffer<'_>, message: &Outgoing<'_>) -> TryResult<usize> {
        send::send(self, buffer, message.address)
    }

    fn receive(
        &self,
        buffer: &mut IoBuffer<'_>,
        flags: u32,
        _: usize,
        message: &mut Incoming,
    ) -> TryResult<usize> {
        const KNOWN: u32 =
            net::MSG_PEEK | net::MSG_DONTWAIT | net::MSG_TRUNC | net::MSG_ERRQUEUE | net::MSG_CMSG_CLOEXEC;
        if flags & !KNOWN != 0 {
            return Err(Errno::EINVAL.into());
        }
        if flags & net::MSG_ERRQUEUE != 0 {
            return Err(Errno::EAGAIN.into());
        }
        let mut state = self.state.lock();
        if let Some(error) = state.error.take() {
            return Err(error.into());
        }
        let first = state.waiting.front().ok_or(TryError::WouldBlock)?;
        let before = buffer.mark();
        let count = buffer.copy_out(&first.bytes).inspect_err(|_| buffer.rewind(before))?;
        message.length = first.bytes.len();
        message.address = Some(SocketAddress::new(&first.address));
        if self.has(WANTS_AUXILIARY) {
            let network = HEADER - self.start();
            put_control(message, net::SOL_PACKET, options::PACKET_AUXDATA, &first.auxiliary(network));
        }
        let taken = if flags & net::MSG_PEEK == 0 { state.waiting.pop_front() } else { None };
        if let Some(taken) = &taken {
            state.bytes -= taken.cost();
        }
        drop(state);
        drop(taken);
        Ok(count)
    }

    fn option(&self, level: u32, name: u32) -> Result<OptionValue, Errno> {
        options::get(self, level, name)
    }

    fn option_about(&self, level: u32, name: u32, given: u32) -> Result<OptionValue, Errno> {
        options::get_about(self, level, name, given)
    }

    fn set_option(&self, thread: &Arc<Thread>, level: u32, name: u32, value: &[u8]) -> Result<(), Errno> {
        options::set(self, thread, level, name, value)
    }

    fn set_filter(&self, program: &[u8]) -> Result<(), Errno> {
        options::attach(self, program)
    }
}

impl File for PacketSocket {
    fn read(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        self.receive(buffer, 0, 0, &mut Incoming::default())
    }

    fn write(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        send::send(self, buffer, None)
    }

    fn writes_once(&self) -> bool {
        true
    }

    fn poll(&self, _: &OpenFile, watch: Option<&Watch>, wanted: Events) -> Result<Events, Errno> {
        if let Some(watch) = watch {
            self.queue.watch_to_take(watch, wanted)?;
        }
        let state = self.state.lock();
        let mut events = Events::OUT | Events::WRNORM;
        events.set(Events::IN | Events::RDNORM, state.has_packet());
        events.set(Events::ERR, state.error.is_some());
        Ok(events)
    }

    fn ioctl(&self, call: &Call<'_>, _: &OpenFile, request: u32, argument: usize) -> TryResult<usize> {
        let value = match request {
            ioctl::FIONREAD => self.state.lock().waiting.front().map_or(0, |first| first.bytes.len()),
            ioctl::TIOCOUTQ => 0,
            _ => {
                let about_interfaces = device_ioctl::carry_out(call, &self.namespace, request, argument);
                return about_interfaces.unwrap_or(Err(Errno::ENOTTY.into()));
            }
        };
        crate::call::put(call, argument, &(value as u32).to_ne_bytes())?;
        Ok(0)
    }

    fn timeout_ns(&self, write: bool) -> Option<u64> {
        Some(self.timeouts_ns[usize::from(write)].load(Ordering::Relaxed)).filter(|&timeout| timeout > 0)
    }

    fn socket_node(&self) -> Option<&SocketNode> {
        Some(&self.node)
    }

    /// The ring's memory.
    fn map_source(self: Arc<Self>) -> Result<Arc<dyn MapSource>, Errno> {
        self.state.lock().ring.as_ref().map(PacketRing::source).ok_or(Errno::EINVAL)
    }

    fn released(&self, _: &OpenFile) {
        let registry = self.namespace.packets();
        drop(registry.remove(self));
        let filter = self.state.lock().filter.take();
        // As many as were counted when it was set.
        let _ = registry.count_filter(filter.map_or(0, |filter| filter.len()), 0);
    }
}
