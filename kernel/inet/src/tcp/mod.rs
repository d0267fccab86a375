//! TCP sockets.
//!
//! A socket listens, or is one end of a connection. Connections within the machine are [`fused`]; those over a link run
//! smoltcp's TCP ([`wire`]).

mod close;
#[cfg_attr(
    not(test),
    expect(clippy::disallowed_methods, reason = "the place in the table is reserved, or taken over")
)]
mod connect;
pub(crate) mod fused;
#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "in `Platform::reserved`"))]
mod fused_link;
#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "room is reserved before each"))]
pub(crate) mod half_open;
#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "room is reserved before each"))]
pub(crate) mod handshake;
#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "room is reserved before each"))]
pub(crate) mod held;
#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "room is reserved before each"))]
pub(crate) mod listener;
#[cfg_attr(
    not(test),
    expect(clippy::disallowed_methods, reason = "room is reserved before each, or in `Platform::reserved`")
)]
mod over_link;
#[cfg_attr(
    not(test),
    expect(clippy::disallowed_methods, reason = "packets have the room that was reserved for them")
)]
pub(crate) mod segment;
mod state;
mod wire;

use crate::lock::SpinMutex;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use spin::Once;

use crate::address::{Endpoint, Tuple, unspecified_like};
use crate::engine::Engine;
use crate::error::{InetError, InetResult, MoveError};
use crate::options::Options;
use crate::platform::{Platform, Readiness, random_u64, try_arc};
use crate::ports::Claim;
use crate::settings::Settings;
use crate::tcp::fused_link::FusedLink;
use crate::tcp::listener::Listener;
use crate::tcp::over_link::{Patience, Seen};
use crate::tcp::wire::Wire;

pub use crate::tcp::fused::{Progress, Reading};
pub use crate::tcp::over_link::Work;
pub use crate::tcp::state::TcpState;
pub use crate::tcp::wire::Pace;

/// Whether `connect` has been called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connecting {
    No,
    /// And has not been answered yet.
    Started,
    /// And failed, and the socket was shut down before anyone was told.
    Dead,
    Done,
}

/// The segment size that is told of connections within the machine: an MTU of 65,535, as the loopback has.
const LOCAL_SEGMENT: usize = 65_483;

pub(crate) enum Phase<P: Platform> {
    /// Nothing yet, or nothing any more.
    Closed,
    Listening(Listener<P>),
    /// Waits for room in a listener's queue.
    Knocking,
    /// One end of a [`Pair`], which is in `TcpSocket::fused`.
    Fused,
    /// A connection over the link.
    Wire(Box<Wire>),
}

pub(crate) struct State<P: Platform> {
    /// The port that it has bound, and whether by `bind` rather than by `connect`.
    bound: Option<Bound>,
    local: Option<Endpoint>,
    remote: Option<Endpoint>,
    pub(crate) phase: Phase<P>,
    connecting: Connecting,
    error: Option<InetError>,
    /// It has an entry in the demultiplexer, and holds its port with or without `SO_REUSEADDR`.
    registered: Option<(Tuple, bool)>,
    /// `close` has been called.
    closed: bool,
    /// Reading has ended: of a connection over the link, or of a socket without a connection.
    reading_ended: bool,
    /// The state that waiters have been told, and when the next pass over the connection is planned.
    seen: Seen,
    planned_ns: u64,
    /// How long a closed connection waits for the peer.
    patience: Patience,
    /// An error that the network reported, which may pass.
    soft_error: Option<InetError>,
}

#[derive(Clone, Copy, Debug)]
struct Bound {
    port: u16,
    address: Option<IpAddr>,
    /// The program named the port, and keeps it when a connection is dissolved.
    is_named: bool,
}

/// See the module.
pub struct TcpSocket<P: Platform> {
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
    /// Its first connection within the machine; further ones hang on that.
    fused: Once<FusedLink<P>>,
    pub(crate) state: SpinMutex<State<P>>,
    /// Packets that have come over the link and wait for [`TcpSocket::work`].
    inbox: SpinMutex<VecDeque<Vec<u8>>>,
}

/// A socket as a list of all shows it.
#[derive(Clone, Copy, Debug)]
pub struct Listing {
    /// Its own end.
    pub local: Endpoint,
    /// The peer's.
    pub remote: Endpoint,
    /// How it stands.
    pub state: TcpState,
    /// Bytes to be sent, or connections that a listener may have waiting.
    pub send_queue: usize,
    /// Bytes to be read, or connections that wait.
    pub receive_queue: usize,
    /// The user who opened it.
    pub user: u32,
    /// The number of its inode; 0 if it has none.
    pub inode: u64,
    /// Whether it was opened as IPv6.
    pub is_v6: bool,
}

impl Listing {
    /// A connection without a socket.
    pub(crate) fn nobody(tuple: &Tuple, state: TcpState) -> Self {
        let (local, remote) = tuple.endpoints();
        let is_v6 = !local.address.is_ipv4();
        Self { local, remote, state, send_queue: 0, receive_queue: 0, user: 0, inode: 0, is_v6 }
    }
}

impl<P: Platform> TcpSocket<P> {
    /// A socket that does nothing yet.
    ///
    /// # Errors
    /// [`InetError::NoMemory`].
    pub fn new(engine: &Arc<Engine<P>>, is_v6: bool, user: u32) -> InetResult<Arc<Self>> {
        Self::with_waiters(engine, is_v6, user, P::waiters()?)
    }

    /// As [`TcpSocket::new`], with waiters that are there already.
    fn with_waiters(
        engine: &Arc<Engine<P>>,
        is_v6: bool,
        user: u32,
        waiters: Arc<P::Waiters>,
    ) -> InetResult<Arc<Self>> {
        let state = State {
            bound: None,
            local: None,
            remote: None,
            phase: Phase::Closed,
            connecting: Connecting::No,
            error: None,
            registered: None,
            closed: false,
            reading_ended: false,
            seen: Seen::default(),
            planned_ns: u64::MAX,
            patience: Patience::default(),
            soft_error: None,
        };
        Ok(try_arc::<P, _>(Self {
            engine: engine.clone(),
            is_v6,
            user,
            waiters,
            inode: AtomicU64::new(0),
            options: engine.settings.options(),
            fused: Once::new(),
            state: SpinMutex::new(state),
            inbox: SpinMutex::new(VecDeque::new()),
        })?)
    }

    /// Those who wait for it.
    #[must_use]
    pub fn waiters(&self) -> &Arc<P::Waiters> {
        &self.waiters
    }

    /// The address that stands for any, in the family of the socket.
    fn unspecified(&self) -> Endpoint {
        let address = if self.is_v6 {
            IpAddr::V6(core::net::Ipv6Addr::UNSPECIFIED)
        } else {
            IpAddr::V4(core::net::Ipv4Addr::UNSPECIFIED)
        };
        Endpoint { address, port: 0 }
    }

    /// Its own end, as `getsockname` tells it.
    #[must_use]
    pub fn local(&self) -> Endpoint {
        self.state.lock().local.unwrap_or_else(|| self.unspecified())
    }

    /// The peer's end.
    ///
    /// # Errors
    /// [`InetError::NotConnected`].
    pub fn remote(&self) -> InetResult<Endpoint> {
        if let Some(link) = self.fused()
            && link.progress().over
        {
            return Err(InetError::NotConnected);
        }
        let state = self.state.lock();
        match &state.phase {
            Phase::Fused => {}
            Phase::Wire(wire) if wire.is_connected() => {}
            _ => return Err(InetError::NotConnected),
        }
        state.remote.ok_or(InetError::NotConnected)
    }

    /// The peer's end, of a connection that may be over.
    #[must_use]
    pub fn peer(&self) -> Endpoint {
        self.state.lock().remote.unwrap_or_else(|| self.unspecified())
    }

    /// Bytes that the peer's kernel has not acknowledged.
    #[must_use]
    pub fn unacknowledged(&self) -> usize {
        match &self.state.lock().phase {
            Phase::Wire(wire) => wire.unacknowledged(),
            _ => 0,
        }
    }

    /// Sets `IPV6_V6ONLY`.
    ///
    /// # Errors
    /// [`InetError::Invalid`]: it is bound.
    pub fn set_only_v6(&self, is_on: bool) -> InetResult<()> {
        let state = self.state.lock();
        if state.bound.is_some() || state.registered.is_some() {
            return Err(InetError::Invalid);
        }
        drop(state);
        self.options.only_v6.store(is_on.into(), Ordering::Relaxed);
        Ok(())
    }

    /// Its connection within the machine.
    #[inline]
    fn fused(&self) -> Option<&FusedLink<P>> {
        self.fused.get()?.current()
    }

    /// The links that its connections within the machine have needed.
    #[cfg(test)]
    pub(crate) fn links(&self) -> usize {
        self.fused.get().map_or(0, FusedLink::count)
    }

    /// The claim of the socket when it is bound to `address`.
    fn claim(&self, address: Option<IpAddr>) -> Claim {
        Claim::new(address, self.is_v6, &self.options, self.user)
    }

    /// Binds it.
    ///
    /// # Errors
    /// [`InetError::Invalid`] (it is bound), [`InetError::AddressInUse`], [`InetError::AddressNotAvailable`].
    pub fn bind(self: &Arc<Self>, wanted: Endpoint) -> InetResult<()> {
        let mut state = self.state.lock();
        if state.bound.is_some() || state.registered.is_some() || !matches!(state.phase, Phase::Closed) {
            return Err(InetError::Invalid);
        }
        let free = Options::is_on(&self.options.free_bind)
            || Settings::get(&self.engine.settings.binds_anywhere) != 0;
        if !wanted.address.is_unspecified() && !free && !self.engine.is_local(wanted.address) {
            return Err(InetError::AddressNotAvailable);
        }
        self.bind_locked(&mut state, wanted)
    }

    fn bind_locked(self: &Arc<Self>, state: &mut State<P>, wanted: Endpoint) -> InetResult<()> {
        let address = Some(wanted.address).filter(|address| !address.is_unspecified());
        let random = random_u64::<P>() as u32;
        let mut claim = self.claim(address);
        // Any address of IPv4 is none of IPv6.
        claim.v6 &= address.is_some() || !wanted.address.is_ipv4();
        let port = self.engine.tcp_ports.lock().bind(
            wanted.port,
            claim,
            Arc::downgrade(self),
            (self.engine.settings.ports(), random),
        )?;
        state.bound = Some(Bound { port, address, is_named: wanted.port != 0 });
        state.local = Some(Endpoint { port, ..wanted });
        Ok(())
    }

    /// `SO_REUSEADDR` or `SO_REUSEPORT` has changed.
    pub fn reuse_changed(self: &Arc<Self>) {
        let state = self.state.lock();
        if let Some(bound) = state.bound {
            let (address, port) = (&self.options.reuse_address, &self.options.reuse_port);
            let (address, shared) = (Options::is_on(address), Options::is_on(port));
            self.engine.tcp_ports.lock().set_reuse(bound.port, self, address, shared);
        }
    }

    /// The sizes of the buffers have changed.
    pub fn buffers_changed(&self) {
        if let Some(link) = self.fused() {
            link.set_buffers(&self.options);
        }
    }

    /// `TCP_CORK` or `TCP_NODELAY` has changed.
    pub fn cork_changed(&self) {
        if let Some(link) = self.fused() {
            link.pair.set_cork(link.side, Options::is_on(&self.options.cork));
            if Options::is_on(&self.options.no_delay) {
                link.pair.push(link.side);
            }
        }
    }

    /// Has it accept connections, of which `backlog` may wait.
    ///
    /// # Errors
    /// [`InetError::Invalid`] (it is connected), [`InetError::AddressInUse`].
    pub fn listen(self: &Arc<Self>, backlog: usize) -> InetResult<()> {
        let mut state = self.state.lock();
        let is_fresh = state.connecting == Connecting::No;
        let backlog = backlog.min(Settings::get(&self.engine.settings.backlog_max) as usize);
        match &mut state.phase {
            Phase::Listening(listener) => {
                listener.set_limit(backlog);
                return Ok(());
            }
            Phase::Closed if is_fresh => {}
            _ => return Err(InetError::Invalid),
        }
        if state.bound.is_none() {
            let any = self.unspecified();
            self.bind_locked(&mut state, any)?;
        }
        let Some(bound) = state.bound else { return Err(InetError::Invalid) };
        self.engine.tcp_ports.lock().set_listening(bound.port, self, true)?;
        state.phase = Phase::Listening(Listener::new(backlog));
        Ok(())
    }

    /// Whether it listens.
    #[must_use]
    pub fn is_listening(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Listening(_))
    }

    /// Takes the connection that came first.
    ///
    /// # Errors
    /// [`InetError::WouldBlock`], [`InetError::Invalid`] (it doesn't listen).
    pub fn accept(&self) -> InetResult<Arc<Self>> {
        let mut state = self.state.lock();
        let Phase::Listening(listener) = &mut state.phase else { return Err(InetError::Invalid) };
        let accepted = listener.take()?;
        let knocking = listener.admit();
        drop(state);
        if let Some(client) = knocking {
            // There is room for one who waited.
            client.knock();
        }
        Ok(accepted)
    }

    /// Sends up to `wanted` bytes, which `copy` puts where they belong.
    ///
    /// # Errors
    /// [`InetError::WouldBlock`], [`InetError::BrokenPipe`], [`InetError::NotConnected`], the connection's error; those
    /// of `copy`.
    pub fn send<F>(
        &self,
        wanted: usize,
        mut copy: impl FnMut(&mut [u8]) -> Result<usize, F>,
    ) -> Result<usize, MoveError<F>> {
        if let Some(link) = self.fused() {
            return link.pair.send(&self.engine, link.side, wanted, copy);
        }
        match self.send_over_link(wanted, &mut copy) {
            Some(result) => result,
            None => Err(self.sent_unconnected().into()),
        }
    }

    /// The error of sending without a connection.
    fn sent_unconnected(&self) -> InetError {
        let mut state = self.state.lock();
        match (state.error.take(), &state.phase) {
            (Some(error), _) => error,
            (None, Phase::Knocking) => InetError::WouldBlock,
            (None, _) => InetError::BrokenPipe,
        }
    }

    /// The result of receiving without a connection.
    fn received_unconnected(&self) -> InetResult<usize> {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Listening(_)) {
            return Err(InetError::NotConnected);
        }
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        match state.phase {
            _ if state.reading_ended => Ok(0),
            Phase::Knocking => Err(InetError::WouldBlock),
            _ => Err(InetError::NotConnected),
        }
    }

    /// Receives: gives the bytes that are there to `copy`, which says how many it took. 0 is the end, or the mark of
    /// urgent data for a call that has bytes.
    ///
    /// # Errors
    /// [`InetError::WouldBlock`], [`InetError::NotConnected`], the connection's error; those of `copy`.
    pub fn receive<F>(
        &self,
        reading: Reading,
        mut copy: impl FnMut(&[u8]) -> Result<usize, F>,
    ) -> Result<usize, MoveError<F>> {
        if let Some(link) = self.fused() {
            return link.pair.receive(link.reader, reading, copy);
        }
        match self.receive_over_link(reading.peeked(), &mut copy) {
            Some(result) => result,
            None => Ok(self.received_unconnected()?),
        }
    }

    /// Sends a byte of urgent data.
    ///
    /// # Errors
    /// As for [`TcpSocket::send`].
    pub fn send_urgent(&self, byte: u8) -> InetResult<()> {
        if let Some(link) = self.fused() {
            return link.pair.send_urgent(link.side, byte);
        }
        Err(self.sent_unconnected())
    }

    /// Takes the byte of urgent data.
    ///
    /// # Errors
    /// [`InetError::Invalid`]: there is none. [`InetError::NotConnected`]: it listens.
    pub fn receive_urgent(&self, peek: bool) -> InetResult<u8> {
        if let Some(link) = self.fused() {
            return link.pair.receive_urgent(link.reader, peek);
        }
        let is_listening = matches!(self.state.lock().phase, Phase::Listening(_));
        Err(if is_listening { InetError::NotConnected } else { InetError::Invalid })
    }

    /// The events that it is ready for.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        if let Some(link) = self.fused() {
            return link.readiness(Options::get(&self.options.low_water) as usize);
        }
        let mut state = self.state.lock();
        let mut ready = Readiness::empty();
        match &mut state.phase {
            Phase::Listening(listener) => {
                ready.set(Readiness::IN, listener.has_waiting());
                return ready;
            }
            Phase::Knocking | Phase::Fused => {}
            Phase::Wire(_) => return self.readiness_over_link(&mut state),
            Phase::Closed => {
                ready |= Readiness::OUT | Readiness::HANG_UP;
                if state.reading_ended {
                    ready |= Readiness::IN | Readiness::READ_HANG_UP;
                }
            }
        }
        ready.set(Readiness::ERROR, state.error.is_some());
        ready
    }

    /// Takes the error that is to be told: `SO_ERROR`.
    pub fn take_error(&self) -> Option<InetError> {
        let own = self.state.lock().error.take();
        own.or_else(|| self.fused().and_then(FusedLink::take_error))
    }

    /// How far the connection is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        match self.fused() {
            Some(link) => link.progress(),
            None => self.progress_over_link(),
        }
    }

    /// Its state in TCP's words.
    #[must_use]
    pub fn tcp_state(&self) -> TcpState {
        if let Some(link) = self.fused() {
            let progress = link.progress();
            return match (progress.ended, progress.peer_ended) {
                _ if progress.over => TcpState::Close,
                (false, false) => TcpState::Established,
                (true, _) => TcpState::FinWait2,
                (false, true) => TcpState::CloseWait,
            };
        }
        match &self.state.lock().phase {
            Phase::Wire(wire) => over_link::tcp_state(wire.state()),
            Phase::Closed => TcpState::Close,
            Phase::Listening(_) => TcpState::Listen,
            Phase::Knocking => TcpState::SynSent,
            Phase::Fused => TcpState::Established,
        }
    }

    /// Payload bytes of the longest segment.
    #[must_use]
    pub fn segment_bytes(&self) -> usize {
        match &self.state.lock().phase {
            Phase::Wire(wire) => wire.segment_bytes(),
            _ => LOCAL_SEGMENT,
        }
    }

    /// It as a list of all sockets shows it.
    #[must_use]
    pub fn listing(&self) -> Listing {
        let state = self.tcp_state();
        let progress = self.progress();
        let inner = self.state.lock();
        let (send_queue, receive_queue) = match &inner.phase {
            Phase::Listening(listener) => listener.lengths(),
            _ => (progress.unsent, progress.unread),
        };
        let local = inner.local.unwrap_or_else(|| self.unspecified());
        let any = Endpoint { address: unspecified_like(local.address), port: 0 };
        Listing {
            local,
            remote: inner.remote.unwrap_or(any),
            state,
            send_queue,
            receive_queue,
            user: self.user,
            inode: self.inode.load(Ordering::Relaxed),
            is_v6: self.is_v6,
        }
    }

    /// The engine that it belongs to.
    #[must_use]
    pub const fn engine(&self) -> &Arc<Engine<P>> {
        &self.engine
    }
}
