//! Sockets: UNIX domain sockets, unix(7), here; those of families that have packets behind [`protocol`], the
//! internet's in [`inet`].
//!
//! A UNIX socket owns an [`Inbox`], where everything sent to it waits, and knows the inbox of its peer. Neither inbox
//! knows the sockets, so nothing keeps itself alive. Whoever waits to read watches the own inbox, whoever waits to
//! write the peer's.

mod address;
pub mod collector;
pub mod device_ioctl;
mod in_flight;
mod inbox;
pub mod inet;
pub mod interface;
pub mod namespace;
pub mod netlink;
mod options;
pub mod packet;
pub mod protocol;
mod receive;
mod send;

use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use heddle_inet::settings::Settings;
use linux_raw_sys::{ioctl, net};

use crate::arch::paging::PAGE_SIZE;
use crate::call::Call;
use crate::error::{Errno, TryError, TryResult};
use crate::fs::offer::ReadOffer;
use crate::fs::{File, IoBuffer, OpenFile, SocketNode, StatusFlags};
use crate::memory::fallible;
use crate::process::Thread;
use crate::sync::SpinLock;
use crate::wait::node::WaitNode;
use crate::wait::queue::{Events, WaitQueue, Watch};

use heddle_kernel_core::fallible::push_back_reserved;

pub use crate::net::address::{Address, find_target};
pub use crate::net::inbox::{
    Ancillary, CAPACITY as BUFFER_BYTES, DATAGRAMS_MAX, Inbox, PeerIdentity, Sender,
};
use crate::net::namespace::NetNamespace;

pub use crate::net::options::{OptionFlags, SocketOptions};
pub use crate::net::receive::{ReceiveHow, Received};

/// The kind of traffic: bytes, messages or datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Bytes over a connection.
    Stream,
    /// Messages, each for itself.
    Datagram,
    /// Messages over a connection.
    Packets,
}

impl Style {
    /// The style of a socket type.
    ///
    /// # Errors
    /// `ESOCKTNOSUPPORT`.
    pub const fn from_type(number: u32) -> Result<Self, Errno> {
        match number {
            net::SOCK_STREAM => Ok(Self::Stream),
            // As in Linux, raw sockets of this family are datagrams.
            net::SOCK_DGRAM | net::SOCK_RAW => Ok(Self::Datagram),
            net::SOCK_SEQPACKET => Ok(Self::Packets),
            _ => Err(Errno::ESOCKTNOSUPPORT),
        }
    }

    /// The socket type.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Stream => net::SOCK_STREAM,
            Self::Datagram => net::SOCK_DGRAM,
            Self::Packets => net::SOCK_SEQPACKET,
        }
    }

    const fn is_connected(self) -> bool {
        !matches!(self, Self::Datagram)
    }
}

/// A direction of a socket.
const READING: u8 = 1;
const WRITING: u8 = 2;

/// A socket.
pub struct Socket {
    /// The kind of traffic.
    pub style: Style,
    /// The namespace that it was made in, which has its abstract name.
    pub namespace: Arc<NetNamespace>,
    node: SocketNode,
    /// The listing that has shown it last.
    listed: AtomicU32,
    inbox: Arc<Inbox>,
    state: SpinLock<SocketState>,
    /// Connections to be accepted have come.
    arrivals: WaitQueue,
    send_timeout_ns: AtomicU64,
    receive_timeout_ns: AtomicU64,
    /// The directions that `shutdown` ended here: the bits of [`READING`] and [`WRITING`].
    ended: AtomicU8,
    /// It was connected by connect(2), to whoever accepts.
    is_client: AtomicBool,
    /// It is a client that has sent something and has not received all that came since.
    is_asking: AtomicBool,
    options: SocketOptions,
}

struct SocketState {
    address: Option<Arc<Address>>,
    peer: Option<Peer>,
    listening: Option<Listening>,
}

/// The other side.
#[derive(Clone)]
struct Peer {
    inbox: Arc<Inbox>,
    identity: PeerIdentity,
}

struct Listening {
    waiting: VecDeque<Arc<Socket>>,
    limit: usize,
    identity: PeerIdentity,
}

impl Socket {
    /// A socket without address and peer, which belongs to a user and a group.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(style: Style, namespace: Arc<NetNamespace>, owner: (u32, u32)) -> Result<Arc<Self>, Errno> {
        let state = SocketState { address: None, peer: None, listening: None };
        fallible::try_arc(Self {
            style,
            namespace,
            node: SocketNode::new(owner),
            listed: AtomicU32::new(0),
            inbox: Inbox::new()?,
            state: SpinLock::new(state),
            arrivals: WaitQueue::new(),
            send_timeout_ns: AtomicU64::new(0),
            receive_timeout_ns: AtomicU64::new(0),
            ended: AtomicU8::new(0),
            is_client: AtomicBool::new(false),
            is_asking: AtomicBool::new(false),
            options: SocketOptions::new(),
        })
    }

    /// Two sockets that are each other's peer.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn pair(style: Style, thread: &Thread) -> Result<[Arc<Self>; 2], Errno> {
        let credentials = thread.credentials();
        let owner = (credentials.fsuid, credentials.fsgid);
        let namespace = NetNamespace::of(thread)?;
        let (first, second) =
            (Self::new(style, namespace.clone(), owner)?, Self::new(style, namespace, owner)?);
        let identity = PeerIdentity::of(thread);
        let peer = |of: &Arc<Self>| Some(Peer { inbox: of.inbox.clone(), identity });
        first.state.lock().peer = peer(&second);
        second.state.lock().peer = peer(&first);
        Ok([first, second])
    }

    /// The address it is bound to.
    #[must_use]
    pub fn address(&self) -> Option<Arc<Address>> {
        self.state.lock().address.clone()
    }

    /// The peer's address; nothing for a peer without one.
    ///
    /// # Errors
    /// `ENOTCONN`.
    pub fn peer_address(&self) -> Result<Option<Arc<Address>>, Errno> {
        let state = self.state.lock();
        state.peer.as_ref().map(|peer| peer.inbox.address()).ok_or(Errno::ENOTCONN)
    }

    /// The credentials of the peer when the connection was made: `SO_PEERCRED`.
    #[must_use]
    pub fn peer_identity(&self) -> PeerIdentity {
        self.state.lock().peer.as_ref().map_or(PeerIdentity::NONE, |peer| peer.identity)
    }

    /// Whether a listing, by its number, has not shown it yet; it counts as shown then.
    pub fn mark_listed(&self, listing: u32) -> bool {
        self.listed.swap(listing, Ordering::Relaxed) != listing
    }

    /// Whether it has a peer.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.state.lock().peer.is_some()
    }

    /// Whether a datagram socket takes what another one sends: one that is connected takes from its peer only.
    #[must_use]
    pub fn takes_from(&self, sender: &Arc<Inbox>) -> bool {
        self.state.lock().peer.as_ref().is_none_or(|peer| Arc::ptr_eq(&peer.inbox, sender))
    }

    /// Whether it accepts connections.
    #[must_use]
    pub fn is_listening(&self) -> bool {
        self.state.lock().listening.is_some()
    }

    /// The queue of received messages.
    #[must_use]
    pub const fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    /// How long sending (or receiving) waits, in nanoseconds; 0 for ever.
    #[must_use]
    pub const fn timeout(&self, send: bool) -> &AtomicU64 {
        if send { &self.send_timeout_ns } else { &self.receive_timeout_ns }
    }

    /// The options that are kept.
    #[must_use]
    pub const fn options(&self) -> &SocketOptions {
        &self.options
    }

    /// Binds it to an address.
    ///
    /// # Errors
    /// `EINVAL` (it has one), `EADDRINUSE`, or those of making the file.
    pub fn bind(self: &Arc<Self>, thread: &Arc<Thread>, address: Address) -> Result<(), Errno> {
        if self.state.lock().address.is_some() {
            return address.bind_again(thread);
        }
        let address = address::register(self, thread, address)?;
        let mut state = self.state.lock();
        if state.address.is_some() {
            return Err(Errno::EINVAL);
        }
        self.inbox.set_address(&address);
        state.address = Some(address);
        Ok(())
    }

    /// Makes it accept connections.
    ///
    /// # Errors
    /// `EOPNOTSUPP`, `EINVAL` (no address, or connected).
    pub fn listen(&self, backlog: i32, thread: &Thread) -> Result<(), Errno> {
        if !self.style.is_connected() {
            return Err(Errno::EOPNOTSUPP);
        }
        let most = Settings::get(&self.namespace.engine()?.settings.backlog_max) as usize;
        // As in Linux, a negative number is a large one.
        let limit = usize::try_from(backlog).map_or(most, |backlog| backlog.min(most));
        let mut state = self.state.lock();
        if state.address.is_none() || state.peer.is_some() {
            return Err(Errno::EINVAL);
        }
        match &mut state.listening {
            Some(listening) => listening.limit = limit,
            None => {
                let identity = PeerIdentity::of(thread);
                state.listening = Some(Listening { waiting: VecDeque::new(), limit, identity });
            }
        }
        drop(state);
        self.inbox.set_server();
        self.arrivals.wake(Events::OUT);
        Ok(())
    }

    /// Connects to a bound socket.
    ///
    /// # Errors
    /// Blocks while the other's queue is full. `EISCONN`, `ECONNREFUSED`, `EPROTOTYPE`, `EINVAL`, `ENOMEM`.
    pub fn connect(self: &Arc<Self>, target: &Arc<Self>, thread: &Thread) -> TryResult<()> {
        if target.style != self.style {
            return Err(Errno::EPROTOTYPE.into());
        }
        if !self.style.is_connected() {
            if !target.takes_from(&self.inbox) {
                return Err(Errno::EPERM.into());
            }
            let peer = Peer { inbox: target.inbox.clone(), identity: PeerIdentity::NONE };
            let old = self.state.lock().peer.replace(peer);
            drop(old);
            return Ok(());
        }
        let target_is_closed = target.inbox.is_closed();
        {
            let target = target.state.lock();
            let listening = target.listening.as_ref().ok_or(Errno::ECONNREFUSED)?;
            // Linux lets one more wait than was asked for.
            let is_full = listening.waiting.len() > listening.limit;
            drop(target);
            if target_is_closed {
                return Err(Errno::ECONNREFUSED.into());
            }
            if is_full {
                return Err(TryError::WouldBlock);
            }
            let state = self.state.lock();
            if state.peer.is_some() {
                return Err(Errno::EISCONN.into());
            }
            if state.listening.is_some() {
                return Err(Errno::EINVAL.into());
            }
        }
        let accepted = Self::new(self.style, target.namespace.clone(), target.node.owner())?;
        accepted.inbox.set_passes_identity(target.inbox.passes_identity());
        accepted.inbox.set_server_of(&target.inbox);
        let mut state = target.state.lock();
        let address = state.address.clone();
        let listening = state.listening.as_mut().ok_or(Errno::ECONNREFUSED)?;
        if target.inbox.is_closed() {
            return Err(Errno::ECONNREFUSED.into());
        }
        if listening.waiting.len() > listening.limit {
            return Err(TryError::WouldBlock);
        }
        listening.waiting.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        {
            // Nobody else knows the new socket.
            let mut inner = accepted.state.lock_below(1);
            if let Some(address) = &address {
                accepted.inbox.set_address(address);
            }
            inner.address = address;
            inner.peer = Some(Peer { inbox: self.inbox.clone(), identity: PeerIdentity::of(thread) });
        }
        let identity = listening.identity;
        push_back_reserved(&mut listening.waiting, accepted.clone());
        drop(state);
        self.is_client.store(true, Ordering::Relaxed);
        self.state.lock().peer = Some(Peer { inbox: accepted.inbox.clone(), identity });
        target.arrivals.wake(Events::IN | Events::RDNORM);
        Ok(())
    }

    /// Takes the peer of a datagram socket away: a connection to `AF_UNSPEC`.
    pub fn disconnect(&self) {
        let old = self.state.lock().peer.take();
        drop(old);
    }

    /// Takes the connection that came first.
    ///
    /// # Errors
    /// Blocks while there is none. `EINVAL`: it doesn't listen.
    pub fn accept(&self) -> TryResult<Arc<Self>> {
        let mut state = self.state.lock();
        let listening = state.listening.as_mut().ok_or(Errno::EINVAL)?;
        let Some(accepted) = listening.waiting.pop_front() else {
            return Err(if self.inbox.is_closed() { Errno::EINVAL.into() } else { TryError::WouldBlock });
        };
        drop(state);
        self.inbox.set_server();
        accepted.inbox.set_server();
        self.arrivals.wake(Events::OUT);
        Ok(accepted)
    }

    /// Registers for room in the queue of connections.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn watch_for_room(&self, watch: &Watch) -> Result<(), Errno> {
        self.arrivals.watch(watch, Events::OUT)
    }

    /// Whether a connection would find room.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.state
            .lock()
            .listening
            .as_ref()
            .is_none_or(|listening| listening.waiting.len() <= listening.limit)
    }

    /// shutdown(2), which any socket can be, connected or not. That of a datagram socket is its own matter: the peer
    /// is not told, but finds that nobody reads.
    pub fn shut_down(&self, reading: bool, writing: bool) {
        let ended = if reading { READING } else { 0 } | if writing { WRITING } else { 0 };
        self.ended.fetch_or(ended, Ordering::Relaxed);
        if reading {
            self.inbox.close();
        }
        if writing
            && self.style.is_connected()
            && let Some(peer) = self.peer_inbox()
        {
            peer.end();
        }
        self.inbox.queue.wake(Events::all());
        self.arrivals.wake(Events::all());
    }

    /// Shows what comes along with all that waits here, and in connections that nobody has accepted.
    fn each_waiting(&self, found: &mut impl FnMut(&Ancillary)) {
        self.inbox.each_waiting(found);
        let state = self.state.lock();
        let waiting = state.listening.iter().flat_map(|listening| &listening.waiting);
        waiting.for_each(|socket| socket.inbox.each_waiting(found));
    }

    /// Drops all that waits here, which nobody can receive.
    fn drop_unread(&self) {
        self.inbox.close_for_good();
        let listening = self.state.lock().listening.take();
        drop(listening);
    }

    /// Whether `shutdown` ended its sending.
    #[must_use]
    pub fn has_ended_sending(&self) -> bool {
        self.has_ended(WRITING)
    }

    /// Whether `shutdown` ended a direction here.
    fn has_ended(&self, direction: u8) -> bool {
        self.ended.load(Ordering::Relaxed) & direction != 0
    }

    /// Says whether it is a client that waits for an answer.
    #[inline]
    fn set_asking(&self, is_asking: bool) {
        if self.is_client.load(Ordering::Relaxed) {
            self.is_asking.store(is_asking, Ordering::Relaxed);
        }
    }

    fn peer_inbox(&self) -> Option<Arc<Inbox>> {
        self.state.lock().peer.as_ref().map(|peer| peer.inbox.clone())
    }
}

impl File for Socket {
    fn held_pages(&self) -> usize {
        let contents = self.inbox.contents.lock();
        contents.bytes.pages() + contents.message_bytes / PAGE_SIZE
    }

    fn read(&self, open: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        if buffer.remaining() == 0 {
            return Ok(0);
        }
        let no_wait = open.flags().contains(StatusFlags::NONBLOCK);
        // Control data is dropped, descriptors included.
        Ok(self.receive(buffer, ReceiveHow { no_wait, ..ReceiveHow::default() })?.count)
    }

    fn write(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        self.send(buffer, None, &mut self.writers_identity())
    }

    fn before_transfer(&self, thread: &Arc<Thread>, events: Events) -> Result<(), Errno> {
        self.note_writer(thread, events);
        Ok(())
    }

    fn offer(&self, offer: ReadOffer) {
        if self.style == Style::Stream && self.is_connected() {
            self.inbox.offer(offer);
        }
    }

    fn take_offer(&self, waiter: &Arc<WaitNode>) -> usize {
        let taken = self.inbox.take_offer(waiter);
        if taken > 0 && self.is_asking.load(Ordering::Relaxed) && !self.inbox.contents.lock().has_data() {
            self.set_asking(false);
        }
        taken
    }

    fn poll(&self, _: &OpenFile, watch: Option<&Watch>, events: Events) -> Result<Events, Errno> {
        let peer = self.peer_inbox();
        if let Some(watch) = watch {
            self.inbox.queue.watch_to_take(watch, events)?;
            if let Some(peer) = &peer
                && self.is_asking.load(Ordering::Relaxed)
            {
                watch.awaits(|| peer.server());
            }
            if watch.is_exclusive() {
                self.inbox.cancel_offer();
                // All that a read of a connected stream waits for, its end too, comes to its own inbox.
                if events == Events::IN && watch.is_wait() && self.style == Style::Stream && peer.is_some() {
                    let own = self.inbox.readiness(0);
                    let is_ready = own.has_data || own.has_ended || own.has_error;
                    return Ok(if is_ready { Events::IN | Events::RDNORM } else { Events::empty() });
                }
            }
            self.arrivals.watch_to_take(watch, events)?;
            if let Some(peer) = &peer {
                // Input at that queue is for the other side.
                peer.queue.watch(watch, events.difference(Events::IN | Events::RDNORM))?;
            }
        }
        let mut ready = Events::empty();
        if let Some(listening) = &self.state.lock().listening {
            let (ends_reading, ends_writing) = (self.has_ended(READING), self.has_ended(WRITING));
            ready.set(Events::IN | Events::RDNORM, ends_reading || !listening.waiting.is_empty());
            ready.set(Events::RDHUP, ends_reading);
            ready.set(Events::HUP, ends_reading && ends_writing);
            return Ok(ready);
        }
        let limit = self.options.send_limit();
        let own = self.inbox.readiness(limit);
        ready.set(Events::IN | Events::RDNORM, own.has_data || own.has_ended);
        ready.set(Events::RDHUP, own.has_ended);
        ready.set(Events::ERR, own.has_error);
        match &peer {
            Some(peer) => {
                let theirs = peer.readiness(limit);
                ready.set(Events::OUT | Events::WRNORM, theirs.has_room || theirs.is_closed);
                let has_ended = if self.style.is_connected() {
                    theirs.is_closed || theirs.has_ended
                } else {
                    self.has_ended(WRITING)
                };
                ready.set(Events::HUP, own.has_ended && has_ended);
            }
            None => {
                ready |= Events::OUT | Events::WRNORM;
                let is_hung_up = self.style.is_connected() || own.has_ended && self.has_ended(WRITING);
                ready.set(Events::HUP, is_hung_up);
            }
        }
        Ok(ready)
    }

    fn ioctl(&self, call: &Call<'_>, _: &OpenFile, request: u32, argument: usize) -> TryResult<usize> {
        let bytes = match request {
            ioctl::SIOCATMARK if self.style == Style::Stream => 0,
            ioctl::SIOCATMARK => return Err(Errno::EOPNOTSUPP.into()),
            ioctl::FIONREAD if self.is_listening() => return Err(Errno::EINVAL.into()),
            ioctl::FIONREAD => self.inbox.bytes_to_read(self.style),
            ioctl::TIOCOUTQ => self.peer_inbox().map_or(0, |peer| peer.bytes_to_read(Style::Stream)),
            _ => {
                let about_interfaces = device_ioctl::carry_out(call, &self.namespace, request, argument);
                return about_interfaces.unwrap_or(Err(Errno::ENOTTY.into()));
            }
        };
        crate::call::put(call, argument, &(bytes as u32).to_ne_bytes())?;
        Ok(0)
    }

    fn timeout_ns(&self, write: bool) -> Option<u64> {
        Some(self.timeout(write).load(Ordering::Relaxed)).filter(|&timeout| timeout > 0)
    }

    fn socket_node(&self) -> Option<&SocketNode> {
        Some(&self.node)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let unread = self.inbox.close_for_good();
        if let Some(peer) = state.peer.take().filter(|_| self.style.is_connected()) {
            if unread {
                peer.inbox.reset();
            }
            peer.inbox.end();
        }
        if let Some(address) = state.address.take() {
            address::forget(&self.namespace, &address, self.style);
        }
        // Connections that nobody accepted end like any other when they are dropped with the state.
        self.arrivals.wake(Events::all());
        collector::socket_ended();
    }
}

/// The bound socket behind a weak reference that a file or name holds.
fn upgrade(socket: &Weak<Socket>) -> Result<Arc<Socket>, Errno> {
    socket.upgrade().ok_or(Errno::ECONNREFUSED)
}
