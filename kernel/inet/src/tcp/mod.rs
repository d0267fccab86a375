//! TCP sockets.
//!
//! A socket listens, or is one end of a connection. Connections within the machine are [`fused`]; those over a link run
//! smoltcp's TCP ([`wire`]).

mod close;
mod connect;
pub(crate) mod fused;
pub(crate) mod handshake;
pub(crate) mod listener;
mod over_link;
pub(crate) mod segment;
mod wire;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::sync::atomic::Ordering;
use spin::Once;
use spin::mutex::SpinMutex;

use crate::address::{Endpoint, Tuple, unspecified_like};
use crate::engine::Engine;
use crate::error::{InetError, InetResult, MoveError};
use crate::options::Options;
use crate::platform::{Platform, Readiness, random_u64, try_arc};
use crate::ports::Claim;
use crate::tcp::fused::{Pair, Side};
use crate::tcp::listener::Listener;
use crate::tcp::over_link::Seen;
use crate::tcp::wire::Wire;

pub use crate::tcp::fused::Progress;
pub use crate::tcp::over_link::Work;

/// The state of a socket as `TCP_INFO` and `/proc/net/tcp` number it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are TCP's")]
pub enum TcpState {
    Established = 1,
    SynSent = 2,
    SynReceived = 3,
    FinWait1 = 4,
    FinWait2 = 5,
    TimeWait = 6,
    Close = 7,
    CloseWait = 8,
    LastAck = 9,
    Listen = 10,
    Closing = 11,
}

/// Whether `connect` has been called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connecting {
    No,
    /// And has not been answered yet.
    Started,
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
    /// Reading has ended, of a connection over the link.
    reading_ended: bool,
    /// The state that waiters have been told, and when the next pass over the connection is planned.
    seen: Seen,
    planned_ns: u64,
    /// When a closed connection stops waiting for the peer.
    orphaned_until_ns: u64,
    /// An error that the network reported, which may pass.
    soft_error: Option<InetError>,
}

#[derive(Clone, Copy, Debug)]
struct Bound {
    port: u16,
    address: Option<IpAddr>,
}

/// See the module.
pub struct TcpSocket<P: Platform> {
    engine: Arc<Engine<P>>,
    /// Whether it was opened as IPv6.
    pub is_v6: bool,
    /// The user who opened it.
    pub user: u32,
    waiters: Arc<P::Waiters>,
    /// Its options.
    pub options: Options,
    fused: Once<(Arc<Pair<P>>, Side)>,
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
    /// Whether it was opened as IPv6.
    pub is_v6: bool,
}

impl Listing {
    /// A connection without a socket.
    pub(crate) fn nobody(tuple: &Tuple, state: TcpState) -> Self {
        let (local, remote) = tuple.endpoints();
        let is_v6 = !local.address.is_ipv4();
        Self { local, remote, state, send_queue: 0, receive_queue: 0, user: 0, is_v6 }
    }
}

impl<P: Platform> TcpSocket<P> {
    /// A socket that does nothing yet.
    ///
    /// # Errors
    /// [`InetError::NoMemory`].
    pub fn new(engine: &Arc<Engine<P>>, is_v6: bool, user: u32) -> InetResult<Arc<Self>> {
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
            orphaned_until_ns: u64::MAX,
            soft_error: None,
        };
        Ok(try_arc::<P, _>(Self {
            engine: engine.clone(),
            is_v6,
            user,
            waiters: P::waiters()?,
            options: Options::new(),
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
        if let Some((pair, side)) = self.fused.get()
            && pair.progress(*side).over
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
        if self.state.lock().local.is_some() {
            return Err(InetError::Invalid);
        }
        self.options.only_v6.store(is_on.into(), Ordering::Relaxed);
        Ok(())
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
        if state.bound.is_some() || state.local.is_some() {
            return Err(InetError::Invalid);
        }
        let free = Options::is_on(&self.options.free_bind);
        if !wanted.address.is_unspecified() && !free && !self.engine.is_local(wanted.address) {
            return Err(InetError::AddressNotAvailable);
        }
        self.bind_locked(&mut state, wanted)
    }

    fn bind_locked(self: &Arc<Self>, state: &mut State<P>, wanted: Endpoint) -> InetResult<()> {
        let address = Some(wanted.address).filter(|address| !address.is_unspecified());
        let random = random_u64::<P>() as u32;
        let claim = self.claim(address);
        let port = self.engine.tcp_ports.lock().bind(wanted.port, claim, Arc::downgrade(self), random)?;
        state.bound = Some(Bound { port, address });
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
        if let Some((pair, side)) = self.fused.get() {
            pair.set_buffers(*side, &self.options);
        }
    }

    /// Has it accept connections, of which `backlog` may wait.
    ///
    /// # Errors
    /// [`InetError::Invalid`] (it is connected), [`InetError::AddressInUse`].
    pub fn listen(self: &Arc<Self>, backlog: usize) -> InetResult<()> {
        let mut state = self.state.lock();
        let is_fresh = state.connecting == Connecting::No;
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
        if let Some((pair, side)) = self.fused.get() {
            return pair.send(*side, wanted, copy);
        }
        match self.send_over_link(wanted, &mut copy) {
            Some(result) => result,
            None => Err(self.unconnected(true).into()),
        }
    }

    /// The error of moving bytes without a connection.
    fn unconnected(&self, sends: bool) -> InetError {
        let mut state = self.state.lock();
        if let Some(error) = state.error.take() {
            return error;
        }
        match state.phase {
            Phase::Knocking => InetError::WouldBlock,
            _ if sends => InetError::BrokenPipe,
            _ => InetError::NotConnected,
        }
    }

    /// Receives: gives the bytes that are there to `copy`, which says how many it took. With `peek` they stay, and as
    /// many as it says are passed over. 0 is the end.
    ///
    /// # Errors
    /// [`InetError::WouldBlock`], [`InetError::NotConnected`], the connection's error; those of `copy`.
    pub fn receive<F>(
        &self,
        peek: Option<usize>,
        mut copy: impl FnMut(&[u8]) -> Result<usize, F>,
    ) -> Result<usize, MoveError<F>> {
        if let Some((pair, side)) = self.fused.get() {
            return pair.receive(*side, peek, copy);
        }
        match self.receive_over_link(peek, &mut copy) {
            Some(result) => result,
            None => Err(self.unconnected(false).into()),
        }
    }

    /// Sends a byte of urgent data.
    ///
    /// # Errors
    /// As for [`TcpSocket::send`].
    pub fn send_urgent(&self, byte: u8) -> InetResult<()> {
        if let Some((pair, side)) = self.fused.get() {
            return pair.send_urgent(*side, byte);
        }
        Err(self.unconnected(true))
    }

    /// Takes the byte of urgent data.
    ///
    /// # Errors
    /// [`InetError::Invalid`]: there is none.
    pub fn receive_urgent(&self, peek: bool) -> InetResult<u8> {
        if let Some((pair, side)) = self.fused.get() {
            return pair.receive_urgent(*side, peek);
        }
        Err(self.unconnected(false))
    }

    /// The events that it is ready for.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        if let Some((pair, side)) = self.fused.get() {
            let low_water = Options::get(&self.options.low_water) as usize;
            return pair.readiness(*side, low_water);
        }
        let mut state = self.state.lock();
        let mut ready = Readiness::empty();
        match &mut state.phase {
            Phase::Listening(listener) => ready.set(Readiness::IN, listener.has_waiting()),
            Phase::Knocking | Phase::Fused => {}
            Phase::Wire(_) => return self.readiness_over_link(&mut state),
            Phase::Closed => {
                ready |= Readiness::OUT | Readiness::HANG_UP;
                let was_connecting = state.error.is_some() || state.connecting != Connecting::No;
                if was_connecting {
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
        own.or_else(|| self.fused.get().and_then(|(pair, side)| pair.take_error(*side)))
    }

    /// How far the connection is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        match self.fused.get() {
            Some((pair, side)) => pair.progress(*side),
            None => self.progress_over_link(),
        }
    }

    /// Its state in TCP's words.
    #[must_use]
    pub fn tcp_state(&self) -> TcpState {
        if let Some((pair, side)) = self.fused.get() {
            let progress = pair.progress(*side);
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
            is_v6: self.is_v6,
        }
    }

    /// The engine that it belongs to.
    #[must_use]
    pub const fn engine(&self) -> &Arc<Engine<P>> {
        &self.engine
    }
}
