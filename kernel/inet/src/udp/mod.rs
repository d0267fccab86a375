//! UDP sockets, RFC 768.

mod delivery;

use crate::lock::SpinMutex;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::sync::atomic::{AtomicU64, Ordering};

use crate::address::{Endpoint, loopback_like, unspecified_like};
use crate::datagram::{Datagram, DatagramQueue, ErrorReport};
use crate::engine::Engine;
use crate::error::{InetError, InetResult, MoveError};
use crate::interface::LOOPBACK_INDEX;
use crate::ip::{ETHERNET_BYTES, IpHeader, protocol};
use crate::options::Options;
use crate::platform::{Platform, Readiness, Waiters, random_u64, try_arc};
use crate::ports::Claim;
use crate::settings::Settings;
use crate::tcp::{Listing, TcpState};

/// Bytes of a UDP header.
pub(crate) const HEADER_BYTES: usize = 8;
/// The most bytes of one datagram.
const PAYLOAD_MAX: usize = 65_507;
/// The longest buffer of a datagram that is kept for the next one.
const SPARE_BYTES_MAX: usize = 2048;
/// The default of `SO_RCVBUF`: `net.core.rmem_default`.
const BUFFER_DEFAULT: u32 = 212_992;

struct UdpState {
    port: Option<u16>,
    local: Option<Endpoint>,
    remote: Option<Endpoint>,
    /// The address was named by `bind`, and not found by `connect`.
    is_address_bound: bool,
    /// The port was named by `bind`, and not chosen.
    is_port_named: bool,
    queue: DatagramQueue,
    /// The buffer of a datagram that was received, for the next one to be sent: who answers needs no other.
    spare: Vec<u8>,
    reading_ended: bool,
    writing_ended: bool,
}

/// See the module.
pub struct UdpSocket<P: Platform> {
    engine: Arc<Engine<P>>,
    /// Whether it was opened as IPv6.
    pub is_v6: bool,
    /// The user who opened it.
    pub user: u32,
    waiters: Arc<P::Waiters>,
    /// The number of its inode, which lists show; 0 until a program has it.
    pub inode: AtomicU64,
    /// Its options.
    pub options: Options,
    state: SpinMutex<UdpState>,
}

/// Settings of a datagram that is sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendOptions {
    /// Where to, if not to the peer.
    pub target: Option<Endpoint>,
    /// From which address: `IP_PKTINFO`.
    pub source: Option<IpAddr>,
    /// Time to live, or hop limit.
    pub ttl: Option<u8>,
    /// Type of service, or traffic class.
    pub tos: Option<u8>,
}

impl<P: Platform> UdpSocket<P> {
    /// A socket without addresses.
    ///
    /// # Errors
    /// [`InetError::NoMemory`].
    pub fn new(engine: &Arc<Engine<P>>, is_v6: bool, user: u32) -> InetResult<Arc<Self>> {
        let state = UdpState {
            port: None,
            local: None,
            remote: None,
            is_address_bound: false,
            is_port_named: false,
            queue: DatagramQueue::default(),
            spare: Vec::new(),
            reading_ended: false,
            writing_ended: false,
        };
        let options = engine.settings.options();
        options.send_buffer.store(BUFFER_DEFAULT, Ordering::Relaxed);
        options.receive_buffer.store(BUFFER_DEFAULT, Ordering::Relaxed);
        Ok(try_arc::<P, _>(Self {
            engine: engine.clone(),
            is_v6,
            user,
            waiters: P::waiters()?,
            inode: AtomicU64::new(0),
            options,
            state: SpinMutex::new(state),
        })?)
    }

    /// Those who wait for it.
    #[must_use]
    pub fn waiters(&self) -> &Arc<P::Waiters> {
        &self.waiters
    }

    fn unspecified(&self) -> Endpoint {
        let address =
            if self.is_v6 { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
        Endpoint { address, port: 0 }
    }

    /// Its own end.
    #[must_use]
    pub fn local(&self) -> Endpoint {
        self.state.lock().local.unwrap_or_else(|| self.unspecified())
    }

    /// The peer's end.
    ///
    /// # Errors
    /// [`InetError::NotConnected`].
    pub fn remote(&self) -> InetResult<Endpoint> {
        self.state.lock().remote.ok_or(InetError::NotConnected)
    }

    fn claim(&self, address: Option<IpAddr>) -> Claim {
        Claim::new(address, self.is_v6, &self.options, self.user)
    }

    /// Binds it.
    ///
    /// # Errors
    /// [`InetError::Invalid`] (it is bound), [`InetError::AddressInUse`], [`InetError::AddressNotAvailable`].
    pub fn bind(self: &Arc<Self>, wanted: Endpoint) -> InetResult<()> {
        let mut state = self.state.lock();
        if state.port.is_some() {
            return Err(InetError::Invalid);
        }
        let free = Options::is_on(&self.options.free_bind)
            || Settings::get(&self.engine.settings.binds_anywhere) != 0;
        if !wanted.address.is_unspecified() && !free && !self.engine.may_bind(wanted.address) {
            return Err(InetError::AddressNotAvailable);
        }
        self.bind_locked(&mut state, wanted)
    }

    fn bind_locked(self: &Arc<Self>, state: &mut UdpState, wanted: Endpoint) -> InetResult<()> {
        let address = Some(wanted.address).filter(|address| !address.is_unspecified());
        let random = random_u64::<P>() as u32;
        let mut claim = self.claim(address);
        // Any address of IPv4 is none of IPv6.
        claim.v6 &= address.is_some() || !wanted.address.is_ipv4();
        let port = self.engine.udp_ports.lock().bind(
            wanted.port,
            claim,
            Arc::downgrade(self),
            (self.engine.settings.ports(), random),
        )?;
        state.port = Some(port);
        state.local = Some(Endpoint { port, ..wanted });
        state.is_address_bound = address.is_some();
        state.is_port_named = wanted.port != 0;
        Ok(())
    }

    /// `SO_REUSEADDR` or `SO_REUSEPORT` has changed.
    pub fn reuse_changed(self: &Arc<Self>) {
        let state = self.state.lock();
        if let Some(port) = state.port {
            let (address, shared) = (&self.options.reuse_address, &self.options.reuse_port);
            let (address, shared) = (Options::is_on(address), Options::is_on(shared));
            self.engine.udp_ports.lock().set_reuse(port, self, address, shared);
        }
    }

    /// Sets `IPV6_V6ONLY`.
    ///
    /// # Errors
    /// [`InetError::Invalid`]: it is bound.
    pub fn set_only_v6(&self, is_on: bool) -> InetResult<()> {
        if self.state.lock().port.is_some() {
            return Err(InetError::Invalid);
        }
        self.options.only_v6.store(is_on.into(), Ordering::Relaxed);
        Ok(())
    }

    /// Sets the peer, or takes it away.
    ///
    /// # Errors
    /// [`InetError::NetworkUnreachable`], [`InetError::Access`] (a broadcast without `SO_BROADCAST`).
    pub fn connect(self: &Arc<Self>, target: Option<Endpoint>) -> InetResult<()> {
        let mut state = self.state.lock();
        let Some(target) = target else {
            let Some(port) = state.port else { return Ok(()) };
            let bound = state.local.filter(|_| state.is_address_bound).map(|local| local.address);
            state.remote = None;
            if !state.is_port_named {
                self.engine.udp_ports.lock().unbind(port, Arc::as_ptr(self));
                state.port = None;
                state.local = bound.map(|address| Endpoint { address, port: 0 });
                return Ok(());
            }
            self.engine.udp_ports.lock().set_remote(port, self, bound, None);
            if bound.is_none() {
                state.local = Some(Endpoint { port, ..self.unspecified() });
            }
            return Ok(());
        };
        let target = self.reachable(target)?;
        let bound = state.local.filter(|_| state.is_address_bound).map(|local| local.address);
        let source = self.engine.source_for(target.address, bound)?;
        if state.port.is_none() {
            let any = self.unspecified();
            self.bind_locked(&mut state, any)?;
        }
        let Some(port) = state.port else { return Err(InetError::Invalid) };
        state.local = Some(Endpoint { address: source, port });
        state.remote = Some(target);
        self.engine.udp_ports.lock().set_remote(port, self, Some(source), Some(target));
        Ok(())
    }

    /// The endpoint that a program means, if the socket may send there.
    fn reachable(&self, target: Endpoint) -> InetResult<Endpoint> {
        if self.is_v6 && target.address.is_ipv4() && Options::is_on(&self.options.only_v6) {
            return Err(InetError::NetworkUnreachable);
        }
        if self.engine.is_broadcast(target.address) && !Options::is_on(&self.options.broadcast) {
            return Err(InetError::Access);
        }
        let is_any = target.address.is_unspecified();
        let address = if is_any { loopback_like(target.address) } else { target.address };
        Ok(Endpoint { address, ..target })
    }

    /// Sends a datagram of `length` bytes, which `copy` puts where they belong.
    ///
    /// # Errors
    /// [`InetError::DestinationRequired`], [`InetError::MessageTooLong`], [`InetError::NetworkUnreachable`], an error
    /// that the network reported, …; those of `copy`.
    pub fn send<F>(
        self: &Arc<Self>,
        length: usize,
        how: &SendOptions,
        copy: impl FnOnce(&mut [u8]) -> Result<usize, F>,
    ) -> Result<usize, MoveError<F>> {
        let (local, target, mut bytes) = {
            let mut state = self.state.lock();
            if state.port.is_none() {
                let any = self.unspecified();
                self.bind_locked(&mut state, any)?;
            }
            let target = match how.target {
                Some(target) if target.port == 0 => return Err(InetError::Invalid.into()),
                Some(target) => self.reachable(target)?,
                None => state.remote.ok_or(InetError::DestinationRequired)?,
            };
            if length > PAYLOAD_MAX {
                return Err(InetError::MessageTooLong.into());
            }
            if let Some(error) = state.queue.error.take() {
                return Err(error.into());
            }
            if state.writing_ended {
                return Err(InetError::BrokenPipe.into());
            }
            let Some(local) = state.local else { return Err(InetError::Invalid.into()) };
            (local, target, core::mem::take(&mut state.spare))
        };
        let bound = Some(local.address).filter(|address| !address.is_unspecified());
        let source = self.engine.source_for(target.address, how.source.or(bound))?;
        let header = self.header(source, target.address, how);
        let start = ETHERNET_BYTES + header.length() + HEADER_BYTES;
        let more = (start + length).saturating_sub(bytes.len());
        bytes.try_reserve_exact(more).map_err(|_| InetError::NoMemory)?;
        bytes.resize(start + length, 0);
        bytes[..start].fill(0);
        let copied = copy(&mut bytes[start..]).map_err(MoveError::Copy)?;
        bytes.truncate(start + copied);
        let from = Endpoint { address: source, port: local.port };
        let datagram = Datagram {
            bytes,
            start,
            source: from,
            destination: target.address,
            port: target.port,
            interface: LOOPBACK_INDEX,
            ttl: header.ttl,
            tos: header.tos,
            arrived_ns: 0,
        };
        self.engine.send_udp(self, datagram, &header, target)?;
        Ok(copied)
    }

    fn header(&self, source: IpAddr, destination: IpAddr, how: &SendOptions) -> IpHeader {
        let options = &self.options;
        IpHeader {
            source,
            destination,
            protocol: protocol::UDP,
            ttl: how.ttl.unwrap_or_else(|| options.ttl_for(&self.engine.settings, destination)),
            tos: how.tos.unwrap_or_else(|| options.tos_for(destination)),
        }
    }

    /// A datagram has come. Returns whether it was for the socket.
    pub(crate) fn deliver(&self, mut datagram: Datagram, checks_group: bool) -> bool {
        if Options::is_on(&self.options.notes_arrival) {
            datagram.arrived_ns = P::now_ns();
        }
        let mut state = self.state.lock();
        if checks_group && !state.queue.receives(datagram.destination, &self.options) {
            return false;
        }
        let limit = Options::get(&self.options.receive_buffer) as usize;
        let is_v6 = !datagram.destination.is_ipv4();
        let has_come = state.queue.push(datagram, limit);
        drop(state);
        if has_come {
            self.waiters.wake(Readiness::IN);
        } else {
            let counters = self.engine.counters.udp(is_v6);
            counters.errors.count();
            counters.queue_full.count();
        }
        true
    }

    /// The network reported an error for something that was sent to `report.destination`.
    pub(crate) fn report(&self, report: ErrorReport, is_fatal: bool) {
        let wanted = if report.destination.address.is_ipv4() {
            Options::is_on(&self.options.receive_errors)
        } else {
            Options::is_on(&self.options.receive_errors_v6)
        };
        let mut state = self.state.lock();
        if state.remote.is_some_and(|remote| remote != report.destination) {
            // A socket with another peer hears nothing.
            return;
        }
        let is_told = is_fatal && state.remote.is_some();
        state.queue.report(report, wanted, is_told);
        drop(state);
        if wanted || is_told {
            self.waiters.wake(Readiness::ERROR | Readiness::IN | Readiness::OUT);
        }
    }

    /// Gives the first datagram to `take`, and removes it unless it is only peeked at. Of a socket that was shut down
    /// a call that waits reads the end; with `no_wait` there is nothing, as in Linux.
    ///
    /// # Errors
    /// [`InetError::WouldBlock`], an error that the network reported; those of `take`, after which it stays.
    pub fn receive<T, F>(
        &self,
        peek: bool,
        no_wait: bool,
        take: impl FnOnce(&Datagram) -> Result<T, F>,
    ) -> Result<Option<T>, MoveError<F>> {
        let mut state = self.state.lock();
        let is_ended = state.reading_ended && !no_wait;
        let offset = self.options.peek_offset.load(Ordering::Relaxed);
        let skip = if peek { usize::try_from(offset).unwrap_or(0) } else { 0 };
        let mut received = state.queue.receive(is_ended, peek, skip, take)?;
        if let Some((_, Some(taken))) = &mut received
            && state.spare.capacity() == 0
            && taken.bytes.capacity() <= SPARE_BYTES_MAX
        {
            state.spare = core::mem::take(&mut taken.bytes);
        }
        drop(state);
        if let Some((_, Some(taken))) = &received {
            self.engine.counters.taken::<P>(!taken.destination.is_ipv4());
        }
        // The datagram itself is dropped without the lock.
        Ok(received.map(|(taken, _)| taken))
    }

    /// Takes a report of an error: `MSG_ERRQUEUE`.
    pub fn take_report(&self) -> Option<ErrorReport> {
        self.state.lock().queue.take_report()
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
    /// [`InetError::NotConnected`]; as in Linux the directions end all the same.
    pub fn shut_down(&self, reading: bool, writing: bool) -> InetResult<()> {
        let mut state = self.state.lock();
        let is_connected = state.remote.is_some();
        state.reading_ended |= reading;
        state.writing_ended |= writing;
        drop(state);
        self.waiters.wake(Readiness::all());
        if is_connected { Ok(()) } else { Err(InetError::NotConnected) }
    }

    /// The program has closed it: call it once, last.
    pub fn close(&self) {
        let mut state = self.state.lock();
        if let Some(port) = state.port.take() {
            self.engine.udp_ports.lock().unbind(port, self);
        }
        for group in state.queue.groups() {
            self.engine.count_group(group, false);
        }
        state.queue.clear();
        state.spare = Vec::new();
    }

    /// The events that it is ready for.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        let state = self.state.lock();
        let mut ready = Readiness::OUT;
        ready.set(Readiness::IN, state.queue.has_data() || state.reading_ended);
        ready.set(Readiness::READ_HANG_UP, state.reading_ended);
        ready.set(Readiness::HANG_UP, state.reading_ended && state.writing_ended);
        ready.set(Readiness::ERROR, state.queue.error.is_some() || state.queue.has_reports());
        ready
    }

    /// Takes the error that is to be told.
    pub fn take_error(&self) -> Option<InetError> {
        self.state.lock().queue.error.take()
    }

    /// Bytes of the next datagram.
    #[must_use]
    pub fn next_length(&self) -> usize {
        self.state.lock().queue.lengths().0
    }

    /// It as a list of all sockets shows it.
    #[must_use]
    pub fn listing(&self) -> Listing {
        let state = self.state.lock();
        let local = state.local.unwrap_or_else(|| self.unspecified());
        let any = Endpoint { address: unspecified_like(local.address), port: 0 };
        Listing {
            local,
            remote: state.remote.unwrap_or(any),
            state: if state.remote.is_some() { TcpState::Established } else { TcpState::Close },
            send_queue: 0,
            receive_queue: state.queue.lengths().1,
            user: self.user,
            inode: self.inode.load(Ordering::Relaxed),
            is_v6: self.is_v6,
        }
    }
}
