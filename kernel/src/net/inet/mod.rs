//! Internet sockets, ip(7), ipv6(7), tcp(7), udp(7), raw(7): what Linux's programs see of the TCP/IP engine.

mod address;
mod arrival;
mod control;
mod device;
pub mod dhcp;
mod errors;
mod interfaces;
mod options;
pub mod platform;
pub mod settings;
mod tcp_options;

use alloc::sync::Arc;
use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use heddle_inet::error::{InetError, MoveError};
use heddle_inet::ip::protocol;
use heddle_inet::options::Options;
use heddle_inet::platform::Readiness;
use heddle_inet::raw::RawSocket;
use heddle_inet::settings::Settings;
use heddle_inet::tcp::{Reading, TcpSocket};
use heddle_inet::udp::{SendOptions, UdpSocket};
use linux_raw_sys::{general as linux, ioctl, net};

pub use crate::net::inet::device::attach;

use crate::call::Call;
use crate::error::{Errno, TryError, TryResult};
use crate::fs::{File, IoBuffer, OpenFile, SocketNode, downcast_arc};
use crate::memory::fallible;
use crate::memory::user::PageFault;
use crate::net::device_ioctl;
use crate::net::inet::platform::{Kernel, SocketWaiters, events};
use crate::net::namespace::NetNamespace;
use crate::net::protocol::{Incoming, OptionValue, Outgoing, ProtocolSocket, SocketAddress};
use crate::process::Thread;
use crate::time::NS_PER_SECOND;
use crate::wait::operation::Operation;
use crate::wait::queue::{Events, Watch};

const TCP: u32 = protocol::TCP as u32;
const UDP: u32 = protocol::UDP as u32;
const ICMP: u32 = protocol::ICMP as u32;
const ICMP_V6: u32 = protocol::ICMP_V6 as u32;

/// The transport of a socket's data.
enum Transport {
    Tcp(Arc<TcpSocket<Kernel>>),
    Udp(Arc<UdpSocket<Kernel>>),
    /// Raw and ping sockets.
    Raw(Arc<RawSocket<Kernel>>),
}

/// An internet socket.
pub struct InetSocket {
    transport: Transport,
    node: SocketNode,
    namespace: Arc<NetNamespace>,
    is_v6: bool,
    send_timeout_ns: AtomicU64,
    receive_timeout_ns: AtomicU64,
    /// It has connected, and its thread chose whom it asks.
    is_client: AtomicBool,
    /// As a client, it has sent something since it received all that came.
    is_asking: AtomicBool,
    /// Of datagrams.
    last_arrival: arrival::LastArrival,
}

impl From<InetError> for TryError {
    fn from(error: InetError) -> Self {
        match error {
            InetError::WouldBlock => Self::WouldBlock,
            error => Self::Error(error.into()),
        }
    }
}

impl From<MoveError<PageFault>> for TryError {
    fn from(error: MoveError<PageFault>) -> Self {
        match error {
            MoveError::Inet(error) => error.into(),
            MoveError::Copy(fault) => fault.into(),
        }
    }
}

/// Moves bytes between the engine and a program; what was moved before a missing page counts.
fn moved(
    buffer: &mut IoBuffer<'_>,
    copy: impl FnOnce(&mut IoBuffer<'_>) -> Result<usize, PageFault>,
) -> Result<usize, PageFault> {
    let before = buffer.done();
    match copy(buffer) {
        Err(fault) if buffer.done() == before => Err(fault),
        _ => Ok(buffer.done() - before),
    }
}

impl InetSocket {
    /// The number of the socket, or of its network, which no other has.
    fn cookie(&self, name: u32) -> OptionValue {
        let is_network = name == net::SO_NETNS_COOKIE;
        let number = if is_network { self.namespace.number() } else { self.node.inode };
        OptionValue::new(&number.to_ne_bytes())
    }

    /// A socket as `socket` makes it.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT`, `ESOCKTNOSUPPORT`, `EPERM`, `ENOMEM`.
    pub fn open(thread: &Thread, is_v6: bool, kind: u32, protocol: u32) -> Result<Arc<Self>, Errno> {
        let credentials = thread.credentials();
        let namespace = NetNamespace::of(thread)?;
        let engine = namespace.engine()?;
        let transport = match (kind, protocol) {
            (net::SOCK_STREAM, 0 | TCP) => Transport::Tcp(TcpSocket::new(engine, is_v6, credentials.euid)?),
            (net::SOCK_DGRAM, 0 | UDP) => Transport::Udp(UdpSocket::new(engine, is_v6, credentials.euid)?),
            (net::SOCK_DGRAM, ICMP | ICMP_V6) if is_v6 == (protocol == ICMP_V6) => {
                let settings = &engine.settings;
                let first = Settings::get(&settings.ping_group_first);
                let allowed = first..=Settings::get(&settings.ping_group_last);
                let mut groups = credentials.supplementary_groups().iter().chain([&credentials.egid]);
                if !groups.any(|group| allowed.contains(group)) {
                    return Err(Errno::EACCES);
                }
                Transport::Raw(RawSocket::new(engine, is_v6, true, protocol as u8, credentials.euid)?)
            }
            (net::SOCK_RAW, _) if !namespace.grants(&credentials, linux::CAP_NET_RAW) => {
                return Err(Errno::EPERM);
            }
            (net::SOCK_RAW, 1..=255) => {
                Transport::Raw(RawSocket::new(engine, is_v6, false, protocol as u8, credentials.euid)?)
            }
            (net::SOCK_STREAM | net::SOCK_DGRAM | net::SOCK_RAW, _) => return Err(Errno::EPROTONOSUPPORT),
            _ => return Err(Errno::ESOCKTNOSUPPORT),
        };
        Self::with(transport, namespace, is_v6, (credentials.fsuid, credentials.fsgid))
    }

    fn with(
        transport: Transport,
        namespace: Arc<NetNamespace>,
        is_v6: bool,
        owner: (u32, u32),
    ) -> Result<Arc<Self>, Errno> {
        let node = SocketNode::new(owner);
        let inode = match &transport {
            Transport::Tcp(socket) => &socket.inode,
            Transport::Udp(socket) => &socket.inode,
            Transport::Raw(socket) => &socket.inode,
        };
        inode.store(node.inode, Ordering::Relaxed);
        fallible::try_arc(Self {
            transport,
            node,
            namespace,
            is_v6,
            send_timeout_ns: AtomicU64::new(0),
            receive_timeout_ns: AtomicU64::new(0),
            is_client: AtomicBool::new(false),
            last_arrival: arrival::LastArrival::new(),
            is_asking: AtomicBool::new(false),
        })
    }

    /// The wait for the end of a socket that is about to be closed, if it is one of these and waits.
    pub fn lingering(file: &Arc<dyn File>) -> Option<Lingering> {
        let socket: Arc<Self> = downcast_arc(file)?;
        let seconds = u32::try_from(socket.options().linger.load(Ordering::Relaxed)).ok()?;
        match &socket.transport {
            Transport::Tcp(tcp) => Some(Lingering { socket: tcp.clone(), seconds }),
            _ => None,
        }
    }

    fn waiters(&self) -> &SocketWaiters {
        match &self.transport {
            Transport::Tcp(socket) => socket.waiters(),
            Transport::Udp(socket) => socket.waiters(),
            Transport::Raw(socket) => socket.waiters(),
        }
    }

    fn options(&self) -> &Options {
        match &self.transport {
            Transport::Tcp(socket) => &socket.options,
            Transport::Udp(socket) => &socket.options,
            Transport::Raw(socket) => &socket.options,
        }
    }

    fn readiness(&self) -> Readiness {
        match &self.transport {
            Transport::Tcp(socket) => socket.readiness(),
            Transport::Udp(socket) => socket.readiness(),
            Transport::Raw(socket) => socket.readiness(),
        }
    }

    fn take_error(&self) -> Option<Errno> {
        match &self.transport {
            Transport::Tcp(socket) => socket.take_error().map(Errno::from),
            Transport::Udp(socket) => socket.take_error().map(Errno::from),
            Transport::Raw(socket) => socket.take_error().map(Errno::from),
        }
    }

    fn set_only_v6(&self, is_on: bool) -> Result<(), Errno> {
        match &self.transport {
            Transport::Tcp(socket) => Ok(socket.set_only_v6(is_on)?),
            Transport::Udp(socket) => Ok(socket.set_only_v6(is_on)?),
            Transport::Raw(_) => Ok(()),
        }
    }

    /// Sends what is in `buffer`.
    fn send_with(&self, buffer: &mut IoBuffer<'_>, how: &SendOptions) -> TryResult<usize> {
        let length = buffer.remaining();
        match &self.transport {
            Transport::Tcp(socket) => {
                let count = socket.send(length, |free| moved(buffer, |buffer| buffer.copy_in(free)))?;
                if self.is_client.load(Ordering::Relaxed) {
                    self.is_asking.store(true, Ordering::Relaxed);
                }
                Ok(count)
            }
            Transport::Udp(socket) => Ok(socket.send(length, how, |free| whole(buffer, free))?),
            Transport::Raw(socket) => Ok(socket.send(length, how, |free| whole(buffer, free))?),
        }
    }

    /// Joins or leaves a multicast group.
    fn join(&self, group: IpAddr, interface: u32, joins: bool) -> Result<(), Errno> {
        match &self.transport {
            Transport::Tcp(_) => Err(Errno::ENOPROTOOPT),
            Transport::Udp(socket) => Ok(socket.join(group, interface, joins)?),
            Transport::Raw(socket) => Ok(socket.join(group, interface, joins)?),
        }
    }

    /// Tells the engine of an option that it looks at only when it changes.
    fn option_changed(&self, level: u32, name: u32) {
        match (&self.transport, level, name) {
            (Transport::Tcp(socket), net::SOL_SOCKET, net::SO_REUSEADDR | net::SO_REUSEPORT) => {
                socket.reuse_changed();
            }
            (Transport::Udp(socket), net::SOL_SOCKET, net::SO_REUSEADDR | net::SO_REUSEPORT) => {
                socket.reuse_changed();
            }
            (Transport::Tcp(socket), net::SOL_SOCKET | net::SOL_TCP, _) => {
                socket.buffers_changed();
                socket.cork_changed();
                socket.timers_changed();
            }
            _ => {}
        }
    }

    const fn timeout(&self, send: bool) -> &AtomicU64 {
        if send { &self.send_timeout_ns } else { &self.receive_timeout_ns }
    }
}

impl ProtocolSocket for InetSocket {
    fn used_by(&self, thread: &Thread) {
        self.waiters().used_by(thread);
    }

    fn is_stream(&self) -> bool {
        matches!(self.transport, Transport::Tcp(_))
    }

    fn low_water(&self) -> usize {
        (Options::get(&self.options().low_water) as usize).max(1)
    }

    fn bind(&self, thread: &Arc<Thread>, address: &SocketAddress) -> Result<(), Errno> {
        let endpoint = address::parse_own(address, self.is_v6)?;
        let first = Settings::get(&self.namespace.engine()?.settings.unprivileged_port);
        let is_privileged = (1..first).contains(&u32::from(endpoint.port));
        if is_privileged && !self.namespace.grants(&thread.credentials(), linux::CAP_NET_BIND_SERVICE) {
            return Err(Errno::EACCES);
        }
        match &self.transport {
            Transport::Tcp(socket) => Ok(socket.bind(endpoint)?),
            Transport::Udp(socket) => Ok(socket.bind(endpoint)?),
            Transport::Raw(socket) => Ok(socket.bind(endpoint)?),
        }
    }

    fn connect(&self, _: &Arc<Thread>, address: &SocketAddress, may_wait: bool) -> TryResult<()> {
        if address.as_slice().len() < 2 {
            return Err(Errno::EINVAL.into());
        }
        let endpoint = match (address.family(), &self.transport) {
            (net::AF_UNSPEC, _) => None,
            // One that has started a connection tells of that before it looks at an address.
            (_, Transport::Tcp(socket)) if socket.has_started() => Some(socket.peer()),
            (_, Transport::Tcp(_)) => Some(address::parse(address, self.is_v6)?),
            _ => Some(address::parse_peer(address, self.is_v6, Options::is_on(&self.options().only_v6))?),
        };
        self.is_client.store(endpoint.is_some(), Ordering::Relaxed);
        match (&self.transport, endpoint) {
            (Transport::Tcp(socket), None) => socket.disconnect(),
            (Transport::Tcp(socket), Some(endpoint)) => socket.connect(endpoint, may_wait)?,
            (Transport::Udp(socket), endpoint) => socket.connect(endpoint)?,
            (Transport::Raw(socket), endpoint) => socket.connect(endpoint)?,
        }
        Ok(())
    }

    fn listen(&self, backlog: i32) -> Result<(), Errno> {
        match &self.transport {
            Transport::Tcp(socket) => {
                socket.waiters().set_server();
                // A negative number is as large as an unsigned one.
                Ok(socket.listen(backlog as u32 as usize)?)
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    fn accept(&self) -> TryResult<(Arc<dyn File>, SocketAddress)> {
        match &self.transport {
            Transport::Tcp(socket) => {
                let accepted = socket.accept()?;
                socket.waiters().set_server();
                accepted.waiters().set_server();
                let peer = accepted.peer();
                let peer = address::encode(peer, self.is_v6);
                let (namespace, owner) = (self.namespace.clone(), self.node.owner());
                Ok((Self::with(Transport::Tcp(accepted), namespace, self.is_v6, owner)?, peer))
            }
            _ => Err(Errno::EOPNOTSUPP.into()),
        }
    }

    fn local_address(&self) -> Result<SocketAddress, Errno> {
        match &self.transport {
            Transport::Tcp(socket) => Ok(address::encode(socket.local(), self.is_v6)),
            Transport::Udp(socket) => Ok(address::encode(socket.local(), self.is_v6)),
            Transport::Raw(socket) => Ok(address::encode(socket.local(), self.is_v6)),
        }
    }

    fn peer_address(&self) -> Result<SocketAddress, Errno> {
        match &self.transport {
            Transport::Tcp(socket) => Ok(address::encode(socket.remote()?, self.is_v6)),
            Transport::Udp(socket) => Ok(address::encode(socket.remote()?, self.is_v6)),
            Transport::Raw(socket) => Ok(address::encode(socket.remote()?, self.is_v6)),
        }
    }

    fn shut_down(&self, reading: bool, writing: bool) -> Result<(), Errno> {
        match &self.transport {
            Transport::Tcp(socket) => Ok(socket.shut_down(reading, writing)?),
            Transport::Udp(socket) => Ok(socket.shut_down(reading, writing)?),
            Transport::Raw(socket) => Ok(socket.shut_down(reading)?),
        }
    }

    fn send(&self, buffer: &mut IoBuffer<'_>, message: &Outgoing<'_>) -> TryResult<usize> {
        let is_v6_datagram = self.is_v6 && matches!(self.transport, Transport::Udp(_));
        if message.flags & net::MSG_OOB == 0 || is_v6_datagram {
            let how = match &self.transport {
                Transport::Tcp(_) => SendOptions::default(),
                _ => self.send_options(message)?,
            };
            return self.send_with(buffer, &how);
        }
        match &self.transport {
            Transport::Tcp(socket) => send_urgent(socket, buffer),
            _ => Err(Errno::EOPNOTSUPP.into()),
        }
    }

    fn receive(
        &self,
        buffer: &mut IoBuffer<'_>,
        flags: u32,
        done: usize,
        message: &mut Incoming,
    ) -> TryResult<usize> {
        match &self.transport {
            Transport::Tcp(socket) => {
                let peeks = flags & net::MSG_PEEK != 0;
                if flags & net::MSG_ERRQUEUE != 0 {
                    return Err(Errno::EAGAIN.into());
                }
                if flags & net::MSG_OOB != 0 {
                    let byte = socket.receive_urgent(peeks)?;
                    message.flags |= net::MSG_OOB;
                    return Ok(buffer.copy_out(&[byte])?);
                }
                let mut wanted = buffer.remaining();
                let drops = flags & net::MSG_TRUNC != 0;
                let reading = match done {
                    _ if peeks => Reading::Peek(done),
                    0 => Reading::First,
                    _ => Reading::Further,
                };
                let count = socket.receive(reading, |bytes| {
                    if drops {
                        let count = bytes.len().min(wanted);
                        wanted -= count;
                        return Ok(count);
                    }
                    moved(buffer, |buffer| buffer.copy_out(bytes))
                })?;
                if self.is_client.load(Ordering::Relaxed) {
                    // One that waits has received all that came.
                    self.is_asking.store(false, Ordering::Relaxed);
                } else {
                    socket.waiters().set_server();
                }
                message.length = count;
                Ok(count)
            }
            _ if flags & net::MSG_ERRQUEUE != 0 => self.receive_report(buffer, message),
            Transport::Udp(socket) => {
                let peek = flags & net::MSG_PEEK != 0;
                let no_wait = flags & net::MSG_DONTWAIT != 0;
                let taken = socket.receive(peek, no_wait, |datagram| self.take(datagram, buffer, message))?;
                let count = taken.unwrap_or(0);
                let offset = socket.options.peek_offset.load(Ordering::Relaxed);
                if offset >= 0 {
                    let moved = if peek { offset + count as i32 } else { (offset - count as i32).max(0) };
                    socket.options.peek_offset.store(moved, Ordering::Relaxed);
                }
                Ok(count)
            }
            Transport::Raw(socket) => {
                let peek = flags & net::MSG_PEEK != 0;
                let taken = socket.receive(peek, |datagram| self.take(datagram, buffer, message))?;
                Ok(taken.unwrap_or(0))
            }
        }
    }

    fn option(&self, level: u32, name: u32) -> Result<OptionValue, Errno> {
        options::get(self, level, name)
    }

    fn set_option(&self, thread: &Arc<Thread>, level: u32, name: u32, value: &[u8]) -> Result<(), Errno> {
        options::set(self, thread, level, name, value)
    }
}

/// Copies the whole of a message from a program, or starts over after a missing page.
fn whole(buffer: &mut IoBuffer<'_>, free: &mut [u8]) -> Result<usize, PageFault> {
    let before = buffer.mark();
    buffer.copy_in(free).inspect_err(|_| buffer.rewind(before))
}

/// Sends all but the last byte as they are, and that one as urgent.
fn send_urgent(socket: &TcpSocket<Kernel>, buffer: &mut IoBuffer<'_>) -> TryResult<usize> {
    let wanted = buffer.remaining();
    if wanted != 1 {
        return Ok(
            socket.send(wanted.saturating_sub(1), |free| moved(buffer, |buffer| buffer.copy_in(free)))?
        );
    }
    let mut byte = [0];
    buffer.copy_in(&mut byte)?;
    socket.send_urgent(byte[0])?;
    Ok(1)
}

/// The wait of a close by `SO_LINGER`.
pub struct Lingering {
    socket: Arc<TcpSocket<Kernel>>,
    seconds: u32,
}

impl Lingering {
    /// How long it waits at most.
    pub fn limit_ns(&self) -> u64 {
        u64::from(self.seconds) * NS_PER_SECOND
    }
}

impl Operation for Lingering {
    fn attempt(&mut self) -> TryResult<usize> {
        if self.socket.is_draining() { Err(TryError::WouldBlock) } else { Ok(0) }
    }

    /// The descriptor is closed, however the wait ends.
    fn partial(&self) -> Option<usize> {
        Some(0)
    }

    fn can_go_on(&self, watch: &Watch) -> Result<bool, Errno> {
        self.socket.waiters().queue.watch(watch, Events::all())?;
        Ok(!self.socket.is_draining())
    }
}

impl File for InetSocket {
    fn before_transfer(&self, thread: &Arc<Thread>, _: Events) -> Result<(), Errno> {
        self.waiters().used_by(thread);
        Ok(())
    }

    fn read(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        if buffer.remaining() == 0 {
            return Ok(0);
        }
        self.receive(buffer, 0, 0, &mut Incoming::default())
    }

    fn write(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        self.send_with(buffer, &SendOptions::default())
    }

    fn poll(&self, _: &OpenFile, watch: Option<&Watch>, wanted: Events) -> Result<Events, Errno> {
        if let Some(watch) = watch {
            self.waiters().queue.watch_to_take(watch, wanted)?;
            if self.is_asking.load(Ordering::Relaxed)
                && let Transport::Tcp(socket) = &self.transport
                && let Some(server) = socket.server_waiters()
            {
                watch.awaits(|| server.server());
            }
        }
        Ok(events(self.readiness()))
    }

    fn ioctl(&self, call: &Call<'_>, _: &OpenFile, request: u32, argument: usize) -> TryResult<usize> {
        let value = match (&self.transport, request) {
            (Transport::Tcp(socket), ioctl::FIONREAD | ioctl::TIOCOUTQ) if socket.is_listening() => {
                return Err(Errno::EINVAL.into());
            }
            (Transport::Tcp(socket), ioctl::FIONREAD) => socket.progress().before_mark,
            (Transport::Tcp(socket), ioctl::TIOCOUTQ) => socket.unacknowledged(),
            (Transport::Tcp(socket), ioctl::SIOCATMARK) => socket.progress().at_mark.into(),
            (Transport::Udp(socket), ioctl::FIONREAD) => socket.next_length(),
            (Transport::Raw(socket), ioctl::FIONREAD) => socket.next_length(),
            (Transport::Udp(_) | Transport::Raw(_), ioctl::TIOCOUTQ) => 0,
            (Transport::Udp(_) | Transport::Raw(_), net::SIOCGSTAMP_OLD | net::SIOCGSTAMPNS_OLD) => {
                crate::call::put(call, argument, &self.last_arrival.tell(self.options(), request)?)?;
                return Ok(0);
            }
            _ => {
                let about_interfaces = device_ioctl::carry_out(call, &self.namespace, request, argument);
                return about_interfaces.unwrap_or(Err(Errno::ENOTTY.into()));
            }
        };
        crate::call::put(call, argument, &(value as u32).to_ne_bytes())?;
        Ok(0)
    }

    fn timeout_ns(&self, write: bool) -> Option<u64> {
        Some(self.timeout(write).load(Ordering::Relaxed)).filter(|&timeout| timeout > 0)
    }

    fn lingers(&self) -> bool {
        self.options().linger.load(Ordering::Relaxed) > 0
    }

    fn socket_node(&self) -> Option<&SocketNode> {
        Some(&self.node)
    }
}

impl Drop for InetSocket {
    fn drop(&mut self) {
        match &self.transport {
            Transport::Tcp(socket) => socket.close(),
            Transport::Udp(socket) => socket.close(),
            Transport::Raw(socket) => socket.close(),
        }
    }
}
