//! The engine: what belongs to no socket alone. Packets come in and go out here, and the demultiplexer finds whom
//! they are for.
//!
//! ```text
//!   Link ─▶ receive ─▶ interface: Ethernet, ARP ─▶ receive_packet: IP, fragments ─▶ receive_tcp ─▶ a connection
//!                                                                               ─▶ receive_udp, receive_raw
//!                                                                               ─▶ ICMP: answers, errors to sockets
//!   Link ◀─ interface: neighbours, Ethernet ◀─ send_packet: checksum, fragments ◀─ sockets
//! ```
//!
//! Locks are taken in this order: a socket's state, `connections`, ports, and last the neighbours and the link. None
//! is held while a packet is received.

use crate::lock::SpinMutex;
use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU32, Ordering};
use heddle_kernel_core::hash::KeyedMap;
use spin::Once;

use crate::address::Tuple;
use crate::counters::Counters;
use crate::error::{InetError, InetResult};
use crate::fragment::Reassembly;
use crate::interface::{ETHERNET_INDEX, Interface, InterfaceAddress, LOOPBACK_INDEX, Received};
use crate::ip::{ETHERNET_BYTES, FRAGMENT_BYTES, FragmentPlace, IpHeader, V6_BYTES, fold, protocol, sum};
use crate::link::{ChecksumOffload, Link, TransmitOffload};
use crate::local::{LoopbackAddresses, put_ethernet};
use crate::platform::{OutOfMemory, Platform, try_arc};
use crate::ports::PortTable;
use crate::raw::RawSocket;
use crate::settings::Settings;
use crate::tcp::TcpSocket;
use crate::tcp::half_open::{HalfOpen, HalfOpenQueue};
use crate::tcp::held::{Plans, is_of_use};
use crate::udp::UdpSocket;

/// How long a port stays taken after a connection that this machine closed first.
pub(crate) const TIME_WAIT_NS: u64 = 60_000_000_000;
/// The most records of such connections, `net.ipv4.tcp_max_tw_buckets`; beyond that none is made.
const TIME_WAIT_MAX: usize = 8192;
/// Pieces of memory for frames that are kept.
const SCRATCH_MAX: usize = 4;

/// The numbers with which an ended connection goes on answering.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastNumbers {
    pub sent: u32,
    pub received: u32,
}

/// A place in the demultiplexer.
pub(crate) enum Entry<P: Platform> {
    /// A connection within the machine: no packets come for it.
    Local(Weak<TcpSocket<P>>),
    /// A connection over the link. It lives until it has ended, whether a program has it open or not.
    Wire(Arc<TcpSocket<P>>),
    /// A connection that a peer has asked for and not confirmed.
    HalfOpen(HalfOpen),
    /// A connection that has ended; its port stays taken.
    TimeWait { until_ns: u64, is_reusable: bool, numbers: Option<LastNumbers> },
}

impl<P: Platform> Entry<P> {
    /// Whether a new connection may take the place.
    pub fn is_recyclable(&self) -> bool {
        match self {
            Self::Local(socket) => socket.strong_count() == 0,
            // Between two ends in one machine nothing can be under way any more.
            Self::TimeWait { numbers, .. } => numbers.is_none(),
            Self::Wire(_) | Self::HalfOpen(_) => false,
        }
    }
}

/// See the module.
pub struct Engine<P: Platform> {
    /// Taken before the ports' lock.
    pub(crate) connections: SpinMutex<KeyedMap<Tuple, Entry<P>>>,
    pub(crate) tcp_ports: SpinMutex<PortTable<TcpSocket<P>>>,
    pub(crate) udp_ports: SpinMutex<PortTable<UdpSocket<P>>>,
    pub(crate) raw_sockets: SpinMutex<Vec<Weak<RawSocket<P>>>>,
    /// Connections in [`Entry::TimeWait`], the oldest first.
    time_wait: SpinMutex<VecDeque<(u64, Tuple)>>,
    /// Ends of waits within the machine. Taken after a connection's lock.
    pub(crate) plans: SpinMutex<Plans<P>>,
    /// Connections in [`Entry::HalfOpen`].
    pub(crate) half_open: SpinMutex<HalfOpenQueue>,
    /// Connections that wait for room on the link.
    pub(crate) waits_for_link: SpinMutex<Vec<Weak<TcpSocket<P>>>>,
    interface: Once<Interface>,
    pub(crate) loopback: LoopbackAddresses,
    pub(crate) alarm: P::Alarm,
    reassembly: SpinMutex<Reassembly>,
    groups: SpinMutex<KeyedMap<IpAddr, u32>>,
    /// Memory in which frames are put together.
    scratch: SpinMutex<Vec<Vec<u8>>>,
    identification: AtomicU32,
    /// Counts of events.
    pub counters: Counters,
    /// Settings that an administrator changes.
    pub settings: Settings,
}

impl<P: Platform> Engine<P> {
    /// An engine that knows the loopback only, whose addresses can be used. Its `alarm` calls [`Engine::tick`].
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(alarm: P::Alarm) -> Result<Arc<Self>, OutOfMemory> {
        try_arc::<P, _>(Self {
            alarm,
            loopback: LoopbackAddresses::default(),
            connections: SpinMutex::new(KeyedMap::default()),
            tcp_ports: SpinMutex::new(PortTable::new(false)),
            udp_ports: SpinMutex::new(PortTable::new(true)),
            raw_sockets: SpinMutex::new(Vec::new()),
            time_wait: SpinMutex::new(VecDeque::new()),
            plans: SpinMutex::new(VecDeque::new()),
            half_open: SpinMutex::new(HalfOpenQueue::default()),
            waits_for_link: SpinMutex::new(Vec::new()),
            interface: Once::new(),
            reassembly: SpinMutex::new(Reassembly::default()),
            groups: SpinMutex::new(KeyedMap::default()),
            scratch: SpinMutex::new(Vec::new()),
            identification: AtomicU32::new(1),
            counters: Counters::default(),
            settings: Settings::new(),
        })
    }

    /// Gives it a link with addresses, and routers for what is not on the link. The first call counts.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn configure(
        &self,
        link: &'static dyn Link,
        addresses: &[InterfaceAddress],
        gateways: &[IpAddr],
    ) -> Result<(), OutOfMemory> {
        let interface = Interface::new(link, addresses, gateways)?;
        self.interface.call_once(|| interface);
        Ok(())
    }

    /// The interface on the link, if there is one.
    #[must_use]
    pub fn interface(&self) -> Option<&Interface> {
        self.interface.get()
    }

    /// One more socket, or one less, is in a group. Call it with no lock held but a socket's.
    pub(crate) fn count_group(&self, group: IpAddr, joins: bool) {
        let mut groups = self.groups.lock();
        let mut is_changed = false;
        if joins {
            if groups.try_reserve(1).is_ok() {
                let count = groups.entry(group).or_insert(0);
                *count += 1;
                is_changed = *count == 1;
            }
        } else if let Some(count) = groups.get_mut(&group) {
            *count -= 1;
            if *count == 0 {
                groups.remove(&group);
                is_changed = true;
            }
        }
        drop(groups);
        if is_changed {
            self.announce(group, joins);
        }
    }

    /// Calls `found` with each group that a socket is in, under a lock.
    pub(crate) fn each_group(&self, found: impl FnMut(IpAddr)) {
        self.groups.lock().keys().copied().for_each(found);
    }

    /// Whether a socket of the machine is in a group.
    pub(crate) fn is_joined(&self, group: IpAddr) -> bool {
        self.groups.lock().contains_key(&group)
    }

    /// The connection of `owner`, or a half-open one of nobody, gives its place up. It held its port as `holds` says;
    /// if it `waits`, the port stays taken, and `numbers` answer what may still come. Within the machine, a client
    /// that connects again may have met the accepted end of its former connection: the place is the later one's then.
    pub(crate) fn leave(
        &self,
        owner: *const TcpSocket<P>,
        tuple: Tuple,
        holds: Option<bool>,
        waits_ns: Option<u64>,
        is_reusable: bool,
        numbers: Option<LastNumbers>,
    ) {
        let port = tuple.endpoints().0.port;
        let mut connections = self.connections.lock();
        let is_others = match connections.get(&tuple) {
            Some(Entry::Local(socket)) => socket.as_ptr() != owner,
            Some(Entry::Wire(socket)) => Arc::as_ptr(socket) != owner,
            Some(Entry::HalfOpen(_)) => !owner.is_null(),
            Some(Entry::TimeWait { .. }) => true,
            None => false,
        };
        let old = if is_others { None } else { connections.remove(&tuple) };
        let until_ns = P::now_ns() + waits_ns.unwrap_or(0);
        let mut keeps = false;
        if waits_ns.is_some() && !is_others {
            let mut waiting = self.time_wait.lock();
            let has_room = waiting.len() < TIME_WAIT_MAX
                && waiting.try_reserve(1).is_ok()
                && connections.try_reserve(1).is_ok();
            if has_room {
                keeps = self.tcp_ports.lock().hold(port, is_reusable).is_ok();
                if keeps {
                    connections.insert(tuple, Entry::TimeWait { until_ns, is_reusable, numbers });
                    // In the order of their ends; nearly all wait equally long.
                    let place = waiting.partition_point(|(end_ns, _)| *end_ns <= until_ns);
                    waiting.insert(place, (until_ns, tuple));
                }
            }
        }
        if let Some(is_reusable) = holds {
            self.tcp_ports.lock().release(port, is_reusable);
        }
        drop(connections);
        drop(old);
        if keeps {
            P::tick_at(&self.alarm, until_ns);
        }
    }

    /// Does what is due, and says when it wants to be called next.
    pub fn tick(&self) -> Option<u64> {
        let now_ns = P::now_ns();
        let next_open = self.ask_again(now_ns);
        let next_wait = self.expire(now_ns);
        let next_held = self.end_waits(now_ns);
        [next_open, next_wait, next_held].into_iter().flatten().min()
    }

    /// Forgets ended connections whose time is over.
    fn expire(&self, now_ns: u64) -> Option<u64> {
        loop {
            let mut connections = self.connections.lock();
            let mut waiting = self.time_wait.lock();
            let (until_ns, tuple) = *waiting.front()?;
            if until_ns > now_ns {
                return Some(until_ns);
            }
            waiting.pop_front();
            // Another connection may have taken the place since.
            if let Some(&Entry::TimeWait { until_ns: own, is_reusable, .. }) = connections.get(&tuple)
                && own == until_ns
            {
                connections.remove(&tuple);
                self.tcp_ports.lock().release(tuple.endpoints().0.port, is_reusable);
            }
        }
    }

    /// Gives memory back that is only kept to be quicker, or to remember what has ended: within the machine nothing
    /// of an ended connection can still be under way.
    pub fn reclaim(&self) {
        let mut connections = self.connections.lock();
        let mut ports = self.tcp_ports.lock();
        connections.retain(|tuple, entry| match entry {
            Entry::TimeWait { numbers: None, is_reusable, .. } => {
                ports.release(tuple.endpoints().0.port, *is_reusable);
                false
            }
            _ => true,
        });
        ports.shrink();
        let mut plans = self.plans.lock();
        plans.retain(is_of_use);
        if plans.is_empty() {
            *plans = VecDeque::new();
        }
        drop(plans);
        if connections.is_empty() {
            *connections = KeyedMap::default();
            *self.time_wait.lock() = VecDeque::new();
        }
        drop(ports);
        drop(connections);
        self.udp_ports.lock().shrink();
        let scratch = core::mem::take(&mut *self.scratch.lock());
        drop(scratch);
        let mut raw = self.raw_sockets.lock();
        if raw.is_empty() {
            *raw = Vec::new();
        }
        drop(raw);
        let mut groups = self.groups.lock();
        if groups.is_empty() {
            *groups = KeyedMap::default();
        }
    }

    /// The link has sent something after it had been full.
    pub fn link_has_room(&self) {
        let waiting = core::mem::take(&mut *self.waits_for_link.lock());
        for socket in waiting {
            if let Some(socket) = socket.upgrade() {
                socket.has_work();
            }
        }
    }

    /// A frame has come over the link. `checked`: the sums in it are known to be right. Call it with no lock held.
    pub fn receive(&self, frame: &[u8], checked: bool) {
        let Some(interface) = self.interface() else { return };
        if let Received::Packet(packet) = interface.receive(frame, P::now_ns()) {
            self.receive_packet(packet, checked, ETHERNET_INDEX);
        }
    }

    /// A packet has come by an interface.
    pub(crate) fn receive_packet(&self, packet: &[u8], checked: bool, interface: u32) {
        let is_v6 = packet.first().is_some_and(|first| first >> 4 == 6);
        let counters = self.counters.ip(is_v6);
        counters.received.count();
        let Some(parsed) = IpHeader::parse(packet) else {
            counters.header_errors.count();
            return;
        };
        let header = parsed.header;
        if !self.is_local_destination(&header, interface) {
            counters.address_errors.count();
            return;
        }
        let whole = &packet[..parsed.header_bytes + parsed.payload.len()];
        match parsed.fragment {
            None => self.receive_payload(&header, whole, parsed.payload, checked, interface),
            Some(place) => {
                counters.fragments_received.count();
                let complete = self.reassembly.lock().add(&header, place, parsed.payload, P::now_ns());
                let Some((header, payload)) = complete else { return };
                counters.reassembled.count();
                // The packet that raw sockets see begins with the first fragment's header, which says the length of a
                // fragment.
                let mut packet = Vec::new();
                if packet.try_reserve_exact(header.length() + payload.len()).is_err() {
                    return;
                }
                packet.resize(header.length(), 0);
                header.write(&mut packet, payload.len(), None);
                packet.extend_from_slice(&payload);
                self.receive_payload(&header, &packet, &payload, false, interface);
            }
        }
    }

    fn is_local_destination(&self, header: &IpHeader, interface: u32) -> bool {
        let (source, destination) = (header.source, header.destination);
        if source.is_multicast() || self.is_broadcast(source) {
            return false;
        }
        if interface == LOOPBACK_INDEX {
            return true;
        }
        // Addresses of the loopback are of no link.
        if source.is_loopback() || destination.is_loopback() || self.is_local(source) {
            return false;
        }
        self.is_local(destination)
            || self.is_broadcast(destination)
            || destination.is_multicast() && (self.is_joined(destination) || is_for_all_hosts(destination))
    }

    fn receive_payload(
        &self,
        header: &IpHeader,
        packet: &[u8],
        payload: &[u8],
        checked: bool,
        interface: u32,
    ) {
        let is_raw = self.receive_raw(header, packet, payload, interface);
        let counters = self.counters.ip(!header.source.is_ipv4());
        let is_known = match header.protocol {
            protocol::ICMP | protocol::IGMP => header.source.is_ipv4(),
            protocol::ICMP_V6 | protocol::NONE => !header.source.is_ipv4(),
            other => matches!(other, protocol::TCP | protocol::UDP),
        };
        if is_known || is_raw { &counters.delivered } else { &counters.unknown_protocols }.count();
        match header.protocol {
            protocol::TCP => {
                if !self.is_local(header.destination) || header.source.is_unspecified() {
                    return;
                }
                let tcp = &self.counters.tcp;
                tcp.segments_received.count();
                if checked || header.has_valid_checksum(payload) {
                    self.receive_tcp(header, packet, payload);
                } else {
                    tcp.errors.count();
                    tcp.checksum_errors.count();
                }
            }
            protocol::UDP => {
                let is_single = self.is_local(header.destination);
                if !self.receive_udp(header, payload, checked, interface) && is_single && !is_raw {
                    self.counters.udp(!header.source.is_ipv4()).no_ports.count();
                    // Port unreachable.
                    let (kind, code) = if header.source.is_ipv4() { (3, 3) } else { (1, 4) };
                    self.send_error(header, packet, kind, code);
                }
            }
            protocol::ICMP if header.source.is_ipv4() => self.receive_icmp(header, payload),
            protocol::ICMP_V6 if !header.source.is_ipv4() => self.receive_icmp(header, payload),
            protocol::IGMP if interface == ETHERNET_INDEX => self.receive_igmp(payload),
            protocol::IGMP | protocol::NONE => {}
            _ if !is_raw && self.is_local(header.destination) => {
                // Protocol unreachable, or an unknown next header.
                let (kind, code) = if header.source.is_ipv4() { (3, 2) } else { (4, 1) };
                self.send_error(header, packet, kind, code);
            }
            _ => {}
        }
    }

    /// Sends a packet. Its payload lies in `frame` behind room for the headers of Ethernet and IP, which are written
    /// here, unless the frame has a complete header already (`IP_HDRINCL`: the header's first byte is not 0).
    /// `sum_at` is where in the payload a checksum with a pseudo header belongs.
    ///
    /// # Errors
    /// [`InetError::NetworkUnreachable`], [`InetError::NoBuffers`], [`InetError::NoMemory`].
    pub(crate) fn send_packet(
        &self,
        header: &IpHeader,
        frame: &mut [u8],
        sum_at: Option<usize>,
    ) -> InetResult<()> {
        let start = ETHERNET_BYTES + header.length();
        let payload_bytes = frame.len() - start;
        let is_v6 = !header.destination.is_ipv4();
        self.counters.packet(is_v6, header.protocol, frame.get(start));
        let has_header = frame[ETHERNET_BYTES] != 0;
        let is_local = self.is_local(header.destination);
        if has_header {
            let head = &mut frame[ETHERNET_BYTES..start];
            head[10..12].fill(0);
            let checksum = !fold(sum(head, 0));
            head[10..12].copy_from_slice(&checksum.to_be_bytes());
        } else {
            header.write(&mut frame[ETHERNET_BYTES..], payload_bytes, None);
        }
        if is_local {
            self.counters.local_packet::<P>(frame.len() - ETHERNET_BYTES);
            if P::watches_loopback(&self.alarm) {
                put_ethernet(frame, !is_v6);
                P::show_on_loopback(&self.alarm, frame);
            }
            self.receive_packet(&frame[ETHERNET_BYTES..], true, LOOPBACK_INDEX);
            return Ok(());
        }
        let is_for_all = header.destination.is_multicast() || self.is_broadcast(header.destination);
        let Some(interface) = self.interface() else {
            if is_for_all {
                return Ok(());
            }
            self.counters.ip(is_v6).without_route.count();
            return Err(InetError::NetworkUnreachable);
        };
        let fits = header.length() + payload_bytes <= interface.mtu();
        let mut offload = TransmitOffload::default();
        if let Some(at) = sum_at {
            offload.checksum = put_sum(header, frame, at, fits && interface.capabilities().transmit_checksum);
        }
        if fits {
            return interface.send(frame, header.destination, offload, P::now_ns());
        }
        self.send_fragments(interface, header, &frame[start..])
    }

    /// Sends a packet that is longer than the link takes, in pieces.
    fn send_fragments(&self, interface: &Interface, header: &IpHeader, payload: &[u8]) -> InetResult<()> {
        let is_v4 = header.source.is_ipv4();
        let head_bytes = if is_v4 { header.length() } else { V6_BYTES + FRAGMENT_BYTES };
        let piece = (interface.mtu() - head_bytes) & !7;
        let identification = self.identification.fetch_add(1, Ordering::Relaxed);
        let mut frame = Vec::new();
        frame.try_reserve_exact(ETHERNET_BYTES + head_bytes + piece).map_err(|_| InetError::NoMemory)?;
        for (number, part) in payload.chunks(piece).enumerate() {
            let offset = number * piece;
            let has_more = offset + part.len() < payload.len();
            let place = FragmentPlace { identification, offset, has_more };
            frame.clear();
            frame.resize(ETHERNET_BYTES + head_bytes, 0);
            if is_v4 {
                header.write(&mut frame[ETHERNET_BYTES..], part.len(), Some(place));
            } else {
                let outer = IpHeader { protocol: protocol::FRAGMENT, ..*header };
                outer.write(&mut frame[ETHERNET_BYTES..], FRAGMENT_BYTES + part.len(), None);
                let extension = &mut frame[ETHERNET_BYTES + V6_BYTES..];
                extension[0] = header.protocol;
                let word = offset as u16 | u16::from(has_more);
                extension[2..4].copy_from_slice(&word.to_be_bytes());
                extension[4..8].copy_from_slice(&identification.to_be_bytes());
            }
            frame.extend_from_slice(part);
            interface.send(&mut frame, header.destination, TransmitOffload::default(), P::now_ns())?;
            self.counters.ip(!is_v4).fragments_sent.count();
        }
        self.counters.ip(!is_v4).cut.count();
        Ok(())
    }

    /// Memory for a frame of so many bytes, to be given back.
    pub(crate) fn scratch(&self, bytes: usize) -> Result<Vec<u8>, OutOfMemory> {
        let mut scratch = self.scratch.lock().pop().unwrap_or_default();
        scratch.clear();
        scratch.try_reserve_exact(bytes).map_err(|_| OutOfMemory)?;
        Ok(scratch)
    }

    /// Takes the memory of [`Engine::scratch`] back.
    pub(crate) fn give_scratch(&self, scratch: Vec<u8>) {
        let mut all = self.scratch.lock();
        if all.len() < SCRATCH_MAX && all.try_reserve(1).is_ok() {
            all.push(scratch);
        }
    }
}

/// Puts a checksum with a pseudo header into a payload that lies in a frame: the whole of it, or the part that the
/// device wants.
pub(crate) fn put_sum(
    header: &IpHeader,
    frame: &mut [u8],
    at: usize,
    is_offloaded: bool,
) -> Option<ChecksumOffload> {
    let start = ETHERNET_BYTES + header.length();
    let payload = &mut frame[start..];
    let pseudo = header.pseudo_sum(payload.len());
    payload[at..at + 2].fill(0);
    if is_offloaded {
        payload[at..at + 2].copy_from_slice(&fold(pseudo).to_be_bytes());
        return Some(ChecksumOffload { start, offset: at });
    }
    let checksum = match !fold(sum(payload, pseudo)) {
        // For UDP, 0 means that there is none.
        0 => 0xffff,
        checksum => checksum,
    };
    payload[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    None
}

/// The groups of all hosts on a link, in which every host is; and those to which questions for neighbours go.
fn is_for_all_hosts(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(v4) => v4.octets() == [224, 0, 0, 1],
        IpAddr::V6(v6) => {
            let words = v6.segments();
            words[0] == 0xff02 && words[1..5] == [0; 4] && (words[5..] == [0, 0, 1] || words[5] == 1)
        }
    }
}
