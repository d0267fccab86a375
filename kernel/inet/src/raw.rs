//! Raw sockets, and ping sockets (`SOCK_DGRAM` of ICMP).

use crate::lock::SpinMutex;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::sync::atomic::{AtomicU64, Ordering};

use crate::address::{Endpoint, loopback_like, unspecified_like};
use crate::datagram::{Datagram, DatagramQueue, ErrorReport};
use crate::engine::Engine;
use crate::error::{InetError, InetResult, MoveError};
use crate::ip::{ETHERNET_BYTES, IpHeader, V4_BYTES, checksum, fold, protocol, sum};
use crate::options::Options;
use crate::platform::{Platform, Readiness, Waiters, random_u64, try_arc};
use crate::tcp::{Listing, TcpState};
use crate::udp::SendOptions;

/// The most bytes of a packet's payload.
const PAYLOAD_MAX: usize = 65_535 - V4_BYTES;
/// Bytes of an ICMP header.
const ICMP_BYTES: usize = 8;
const BUFFER_DEFAULT: u32 = 212_992;
/// Types of echo messages.
pub(crate) const ECHO_REPLY: u8 = 0;
pub(crate) const ECHO_REQUEST: u8 = 8;
pub(crate) const ECHO_REQUEST_V6: u8 = 128;
pub(crate) const ECHO_REPLY_V6: u8 = 129;

struct RawState {
    local: Option<IpAddr>,
    remote: Option<Endpoint>,
    /// A ping socket's number: the identifier of its echo requests.
    identifier: u16,
    queue: DatagramQueue,
    /// `ICMP6_FILTER` or `ICMP_FILTER`: a set bit blocks a type.
    filter: [u32; 8],
    ended: bool,
}

/// See the module.
pub struct RawSocket<P: Platform> {
    engine: Arc<Engine<P>>,
    /// Whether it was opened as IPv6.
    pub is_v6: bool,
    /// Whether it is a ping socket.
    pub is_ping: bool,
    /// The protocol that it receives.
    pub protocol: u8,
    /// The user who opened it.
    pub user: u32,
    waiters: Arc<P::Waiters>,
    /// The number of its inode, which lists show; 0 until a program has it.
    pub inode: AtomicU64,
    /// Its options.
    pub options: Options,
    state: SpinMutex<RawState>,
}

/// The shortest message of ICMP that has a checksum.
const CHECKED_BYTES_MIN: usize = 4;

impl<P: Platform> RawSocket<P> {
    /// A socket that receives from here on.
    ///
    /// # Errors
    /// [`InetError::NoMemory`].
    pub fn new(
        engine: &Arc<Engine<P>>,
        is_v6: bool,
        is_ping: bool,
        protocol: u8,
        user: u32,
    ) -> InetResult<Arc<Self>> {
        let state = RawState {
            local: None,
            remote: None,
            identifier: 0,
            queue: DatagramQueue::default(),
            filter: [0; 8],
            ended: false,
        };
        let options = engine.settings.options();
        options.send_buffer.store(BUFFER_DEFAULT, Ordering::Relaxed);
        options.receive_buffer.store(BUFFER_DEFAULT, Ordering::Relaxed);
        options.header_included.store((protocol == protocol::RAW).into(), Ordering::Relaxed);
        let socket = try_arc::<P, _>(Self {
            engine: engine.clone(),
            is_v6,
            is_ping,
            protocol,
            user,
            waiters: P::waiters()?,
            inode: AtomicU64::new(0),
            options,
            state: SpinMutex::new(state),
        })?;
        let mut all = engine.raw_sockets.lock();
        all.try_reserve(1).map_err(|_| InetError::NoMemory)?;
        all.push(Arc::downgrade(&socket));
        Ok(socket)
    }

    /// Those who wait for it.
    #[must_use]
    pub fn waiters(&self) -> &Arc<P::Waiters> {
        &self.waiters
    }

    fn unspecified(&self) -> IpAddr {
        if self.is_v6 { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) }
    }

    /// The number that stands in the place of a port.
    fn number(&self, state: &RawState) -> u16 {
        if self.is_ping { state.identifier } else { self.protocol.into() }
    }

    /// Its own end.
    #[must_use]
    pub fn local(&self) -> Endpoint {
        let state = self.state.lock();
        Endpoint { address: state.local.unwrap_or_else(|| self.unspecified()), port: self.number(&state) }
    }

    /// The peer's end.
    ///
    /// # Errors
    /// [`InetError::NotConnected`].
    pub fn remote(&self) -> InetResult<Endpoint> {
        self.state.lock().remote.ok_or(InetError::NotConnected)
    }

    /// Binds it to an address, and a ping socket to an identifier.
    ///
    /// # Errors
    /// [`InetError::AddressNotAvailable`].
    pub fn bind(&self, wanted: Endpoint) -> InetResult<()> {
        if !wanted.address.is_unspecified() && !self.engine.may_bind(wanted.address) {
            return Err(InetError::AddressNotAvailable);
        }
        let mut state = self.state.lock();
        state.local = Some(wanted.address).filter(|address| !address.is_unspecified());
        if self.is_ping {
            state.identifier = wanted.port;
            Self::number_ping(&mut state);
        }
        Ok(())
    }

    fn number_ping(state: &mut RawState) {
        while state.identifier == 0 {
            state.identifier = random_u64::<P>() as u16;
        }
    }

    /// Sets the peer, or takes it away.
    ///
    /// # Errors
    /// [`InetError::NetworkUnreachable`].
    pub fn connect(&self, target: Option<Endpoint>) -> InetResult<()> {
        let mut state = self.state.lock();
        state.remote = None;
        let Some(target) = target else { return Ok(()) };
        let source = self.engine.source_for(target.address, state.local)?;
        state.local = Some(source);
        state.remote = Some(target);
        if self.is_ping {
            Self::number_ping(&mut state);
        }
        Ok(())
    }

    /// Sends a packet with `length` bytes, which `copy` puts where they belong.
    ///
    /// # Errors
    /// [`InetError::DestinationRequired`], [`InetError::MessageTooLong`], [`InetError::NetworkUnreachable`], …; those
    /// of `copy`.
    pub fn send<F>(
        &self,
        length: usize,
        how: &SendOptions,
        copy: impl FnOnce(&mut [u8]) -> Result<usize, F>,
    ) -> Result<usize, MoveError<F>> {
        let (local, target, identifier) = {
            let mut state = self.state.lock();
            if let Some(error) = state.queue.error.take() {
                return Err(error.into());
            }
            let target = how.target.or(state.remote).ok_or(InetError::DestinationRequired)?;
            if self.is_ping {
                Self::number_ping(&mut state);
            }
            (state.local, target, state.identifier)
        };
        if length > PAYLOAD_MAX {
            return Err(InetError::MessageTooLong.into());
        }
        let is_any = target.address.is_unspecified();
        let destination = if is_any { loopback_like(target.address) } else { target.address };
        if self.engine.is_broadcast(destination) && !Options::is_on(&self.options.broadcast) {
            return Err(InetError::Access.into());
        }
        let source = self.engine.source_for(destination, how.source.or(local))?;
        let options = &self.options;
        let mut header = IpHeader {
            source,
            destination,
            protocol: self.protocol,
            ttl: how.ttl.unwrap_or_else(|| options.ttl_for(&self.engine.settings, destination)),
            tos: how.tos.unwrap_or_else(|| options.tos_for(destination)),
        };
        let has_header = Options::is_on(&options.header_included) && !self.is_v6;
        let start = ETHERNET_BYTES + if has_header { 0 } else { header.length() };
        let mut frame = Vec::new();
        frame.try_reserve_exact(start + length).map_err(|_| InetError::NoMemory)?;
        frame.resize(start + length, 0);
        let copied = copy(&mut frame[start..]).map_err(MoveError::Copy)?;
        frame.truncate(start + copied);
        if has_header {
            self.complete_header(&mut frame, &mut header)?;
        } else {
            self.complete_message(&mut frame[start..], &header, identifier)?;
        }
        self.engine.send_packet(&header, &mut frame, None)?;
        Ok(copied)
    }

    /// Fills in what a program may leave out of a header that it gives.
    fn complete_header(&self, frame: &mut [u8], header: &mut IpHeader) -> InetResult<()> {
        let packet = &mut frame[ETHERNET_BYTES..];
        let total = packet.len() as u16;
        let head = packet.first_chunk_mut::<V4_BYTES>().ok_or(InetError::Invalid)?;
        let header_bytes = usize::from(head[0] & 15) * 4;
        if head[0] >> 4 != 4 || header_bytes != V4_BYTES {
            return Err(InetError::Invalid);
        }
        head[2..4].copy_from_slice(&total.to_be_bytes());
        if let (IpAddr::V4(source), [0, 0, 0, 0]) = (header.source, [head[12], head[13], head[14], head[15]])
        {
            head[12..16].copy_from_slice(&source.octets());
        }
        header.source = IpAddr::V4(Ipv4Addr::new(head[12], head[13], head[14], head[15]));
        (header.protocol, header.ttl, header.tos) = (head[9], head[8], head[1]);
        Ok(())
    }

    /// Fills in the identifier and the checksum of an ICMP message.
    fn complete_message(&self, message: &mut [u8], header: &IpHeader, identifier: u16) -> InetResult<()> {
        let is_v6 = self.protocol == protocol::ICMP_V6;
        if self.is_ping {
            let head = message.first_chunk_mut::<ICMP_BYTES>().ok_or(InetError::Invalid)?;
            let request = if is_v6 { ECHO_REQUEST_V6 } else { ECHO_REQUEST };
            if head[0] != request || head[1] != 0 {
                return Err(InetError::Invalid);
            }
            head[4..6].copy_from_slice(&identifier.to_be_bytes());
        }
        // The checksum has its place, or there is no message.
        if is_v6 && message.len() < CHECKED_BYTES_MIN {
            return Err(InetError::Invalid);
        }
        if self.is_ping || is_v6 {
            message[2..4].fill(0);
            let start = if is_v6 { header.pseudo_sum(message.len()) } else { 0 };
            let sum = !fold(sum(message, start));
            message[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        Ok(())
    }

    /// Whether a packet is for the socket.
    fn wants(&self, state: &RawState, header: &IpHeader, payload: &[u8]) -> bool {
        if self.is_v6 == header.source.is_ipv4() || self.protocol != header.protocol {
            return false;
        }
        let is_ours =
            state.local.is_none_or(|local| local == header.destination || header.destination.is_multicast());
        let is_peer = state.remote.is_none_or(|remote| remote.address == header.source);
        if !is_ours || !is_peer {
            return false;
        }
        let kind = payload.first().copied().unwrap_or(0);
        if self.is_ping {
            let reply = if self.is_v6 { ECHO_REPLY_V6 } else { ECHO_REPLY };
            return kind == reply && payload.get(4..6) == Some(&state.identifier.to_be_bytes());
        }
        let is_icmp = matches!(self.protocol, protocol::ICMP | protocol::ICMP_V6);
        !is_icmp || state.filter[usize::from(kind) / 32] >> (kind % 32) & 1 == 0
    }

    /// Takes a copy of a packet if it is for the socket.
    fn deliver(&self, header: &IpHeader, packet: &[u8], payload: &[u8], interface: u32) -> bool {
        let mut state = self.state.lock();
        if state.ended || !self.wants(&state, header, payload) {
            return false;
        }
        // Of IPv4 a raw socket sees the header.
        let seen = if self.is_v6 || self.is_ping { payload } else { packet };
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact(seen.len()).is_err() {
            return true;
        }
        bytes.extend_from_slice(seen);
        let datagram = Datagram {
            bytes,
            start: 0,
            source: Endpoint { address: header.source, port: 0 },
            destination: header.destination,
            port: 0,
            interface,
            ttl: header.ttl,
            tos: header.tos,
            arrived_ns: if Options::is_on(&self.options.notes_arrival) { P::now_ns() } else { 0 },
        };
        let limit = Options::get(&self.options.receive_buffer) as usize;
        let has_come = state.queue.push(datagram, limit);
        drop(state);
        if has_come {
            self.waiters.wake(Readiness::IN);
        }
        true
    }

    /// Gives the first packet to `take`, and removes it unless it is only peeked at.
    ///
    /// # Errors
    /// [`InetError::WouldBlock`], an error that the network reported; those of `take`, after which it stays.
    pub fn receive<T, F>(
        &self,
        peek: bool,
        take: impl FnOnce(&Datagram) -> Result<T, F>,
    ) -> Result<Option<T>, MoveError<F>> {
        let mut state = self.state.lock();
        let is_ended = state.ended;
        let received = state.queue.receive(is_ended, peek, 0, take)?;
        drop(state);
        // The datagram itself is dropped without the lock.
        Ok(received.map(|(taken, _)| taken))
    }

    /// Takes a report of an error.
    pub fn take_report(&self) -> Option<ErrorReport> {
        self.state.lock().queue.take_report()
    }

    /// Notes an error that the network reported for an echo request.
    pub(crate) fn report(&self, report: ErrorReport) {
        let wanted = if self.is_v6 {
            Options::is_on(&self.options.receive_errors_v6)
        } else {
            Options::is_on(&self.options.receive_errors)
        };
        let mut state = self.state.lock();
        let is_told = state.remote.is_some();
        state.queue.report(report, wanted, is_told);
        drop(state);
        self.waiters.wake(Readiness::ERROR | Readiness::IN);
    }

    /// Whether it is the ping socket with this identifier.
    pub(crate) fn is_ping_with(&self, identifier: u16, is_v6: bool) -> bool {
        self.is_ping && self.is_v6 == is_v6 && self.state.lock().identifier == identifier
    }

    /// The types of ICMP messages that are blocked, a bit each.
    pub fn set_filter(&self, filter: &[u32]) {
        let mut state = self.state.lock();
        for (place, bits) in state.filter.iter_mut().zip(filter) {
            *place = *bits;
        }
    }

    /// See [`RawSocket::set_filter`].
    #[must_use]
    pub fn filter(&self) -> [u32; 8] {
        self.state.lock().filter
    }

    /// Joins or leaves a multicast group.
    ///
    /// # Errors
    /// [`InetError::Invalid`], [`InetError::AddressInUse`], [`InetError::AddressNotAvailable`].
    pub fn join(&self, group: IpAddr, interface: u32, joins: bool) -> InetResult<()> {
        if !group.is_multicast() {
            return Err(InetError::Invalid);
        }
        self.state.lock().queue.join(group, interface, joins)?;
        self.engine.count_group(group, joins);
        Ok(())
    }

    /// shutdown(2).
    ///
    /// # Errors
    /// [`InetError::NotConnected`].
    pub fn shut_down(&self, reading: bool) -> InetResult<()> {
        let mut state = self.state.lock();
        let is_connected = state.remote.is_some();
        state.ended |= reading && is_connected;
        drop(state);
        self.waiters.wake(Readiness::all());
        if is_connected { Ok(()) } else { Err(InetError::NotConnected) }
    }

    /// The program has closed it: call it once, last.
    pub fn close(&self) {
        self.engine.raw_sockets.lock().retain(|socket| !core::ptr::eq(socket.as_ptr(), self));
        let mut state = self.state.lock();
        state.ended = true;
        for group in state.queue.groups() {
            self.engine.count_group(group, false);
        }
        state.queue.clear();
    }

    /// The events that it is ready for.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        let state = self.state.lock();
        let mut ready = Readiness::OUT;
        ready.set(Readiness::IN, state.queue.has_data() || state.ended);
        ready.set(Readiness::ERROR, state.queue.error.is_some() || state.queue.has_reports());
        ready
    }

    /// Takes the error that is to be told.
    pub fn take_error(&self) -> Option<InetError> {
        self.state.lock().queue.error.take()
    }

    /// Bytes of the next packet.
    #[must_use]
    pub fn next_length(&self) -> usize {
        self.state.lock().queue.lengths().0
    }

    /// It as a list of all sockets shows it.
    #[must_use]
    pub fn listing(&self) -> Listing {
        let local = self.local();
        let any = Endpoint { address: unspecified_like(local.address), port: 0 };
        let state = self.state.lock();
        Listing {
            local,
            remote: state.remote.unwrap_or(any),
            state: TcpState::Close,
            send_queue: 0,
            receive_queue: state.queue.lengths().1,
            user: self.user,
            inode: self.inode.load(Ordering::Relaxed),
            is_v6: self.is_v6,
        }
    }
}

impl<P: Platform> Engine<P> {
    /// Gives copies of a packet to the raw and ping sockets that want it. Returns whether there was one.
    pub(crate) fn receive_raw(
        &self,
        header: &IpHeader,
        packet: &[u8],
        payload: &[u8],
        interface: u32,
    ) -> bool {
        let mut is_delivered = false;
        for socket in self.raw_sockets() {
            is_delivered |= socket.deliver(header, packet, payload, interface);
        }
        is_delivered
    }

    /// All raw and ping sockets; as many as there is memory for.
    pub(crate) fn raw_sockets(&self) -> Vec<Arc<RawSocket<P>>> {
        let all = self.raw_sockets.lock();
        let mut sockets = Vec::new();
        if all.is_empty() || sockets.try_reserve_exact(all.len()).is_err() {
            return sockets;
        }
        sockets.extend(all.iter().filter_map(Weak::upgrade));
        sockets
    }
}

/// The checksum of an ICMP message, in its place.
pub(crate) fn put_icmp_sum(message: &mut [u8], header: &IpHeader) {
    message[2..4].fill(0);
    let sum = if header.protocol == protocol::ICMP_V6 {
        !fold(sum(message, header.pseudo_sum(message.len())))
    } else {
        checksum(message)
    };
    message[2..4].copy_from_slice(&sum.to_be_bytes());
}
