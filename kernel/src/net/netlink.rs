//! Netlink sockets, netlink(7), of the family for routing: a request is answered while it is sent, and the answers wait
//! in the socket. Groups can be joined, but nothing is told to them.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use heddle_kernel_core::netlink::{NetworkChange, ReceiverFull, answer};
use linux_raw_sys::{general as linux, ioctl, net};

use heddle_kernel_core::fallible::{extend_reserved, push_back_reserved};

use crate::call::Call;
use crate::error::{Errno, TryError, TryResult};
use crate::fs::{File, IoBuffer, OpenFile, SocketNode};
use crate::memory::fallible;
use crate::net::device_ioctl;
use crate::net::interface::{self, with_network};
use crate::net::namespace::NetNamespace;
use crate::net::protocol::{Incoming, OptionValue, Outgoing, ProtocolSocket, SocketAddress};
use crate::process::Thread;
use crate::sync::SpinLock;
use crate::wait::queue::{Events, WaitQueue, Watch};

/// The protocol that there is.
const NETLINK_ROUTE: u32 = 0;
/// Bytes of `struct sockaddr_nl`.
const ADDRESS_BYTES: usize = 12;
/// The longest request.
const REQUEST_BYTES_MAX: usize = 32 << 10;
/// Messages of one answer are packed into datagrams up to this size: less than what any program receives with.
const DATAGRAM_BYTES: usize = 3840;
/// Bytes of answers that may wait.
const WAITING_BYTES_MAX: usize = 208 << 10;
/// The flag of a message that is a part of an answer.
const NLM_F_MULTI: u16 = 2;
/// Port numbers for sockets whose process has given its own number to another, downwards.
const FIRST_PORT: u32 = u32::MAX - 4096;

const SOL_NETLINK: u32 = 270;
const SO_BUFFER_BYTES: u32 = 212_992;

/// The ports in use, by the number of a namespace and their own.
static PORTS: SpinLock<BTreeMap<(u64, u32), ()>> = SpinLock::new(BTreeMap::new());

#[derive(Default)]
struct Answers {
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Some did not fit.
    is_lost: bool,
}

/// A netlink socket.
pub struct NetlinkSocket {
    node: SocketNode,
    namespace: Arc<NetNamespace>,
    kind: u32,
    /// The process that made it, and whether that may change the network.
    pid: u32,
    is_privileged: bool,
    /// 0 until it has one.
    port: AtomicU32,
    groups: AtomicU32,
    answers: SpinLock<Answers>,
    queue: WaitQueue,
    receive_timeout_ns: AtomicU64,
}

impl NetlinkSocket {
    /// A socket as `socket` makes it.
    ///
    /// # Errors
    /// `ESOCKTNOSUPPORT`, `EPROTONOSUPPORT`, `ENOMEM`.
    pub fn open(thread: &Thread, kind: u32, protocol: u32) -> Result<Arc<Self>, Errno> {
        if !matches!(kind, net::SOCK_RAW | net::SOCK_DGRAM) {
            return Err(Errno::ESOCKTNOSUPPORT);
        }
        if protocol != NETLINK_ROUTE {
            return Err(Errno::EPROTONOSUPPORT);
        }
        let (credentials, namespace) = (thread.credentials(), NetNamespace::of(thread)?);
        fallible::try_arc(Self {
            node: SocketNode::new((credentials.fsuid, credentials.fsgid)),
            kind,
            pid: thread.process.own_pid as u32,
            is_privileged: namespace.grants(&credentials, linux::CAP_NET_ADMIN),
            namespace,
            port: AtomicU32::new(0),
            groups: AtomicU32::new(0),
            answers: SpinLock::new(Answers::default()),
            queue: WaitQueue::new(),
            receive_timeout_ns: AtomicU64::new(0),
        })
    }

    /// Gives the socket this port.
    fn claim(&self, port: u32) -> Result<(), Errno> {
        let mut ports = PORTS.lock();
        if self.port.load(Ordering::Acquire) != 0 {
            return Err(Errno::EINVAL);
        }
        let key = (self.namespace.number(), port);
        if ports.contains_key(&key) {
            return Err(Errno::EADDRINUSE);
        }
        fallible::try_insert(&mut ports, key, ())?;
        self.port.store(port, Ordering::Release);
        Ok(())
    }

    /// The socket's port; it gets the number of its process, or another if that is taken.
    fn own_port(&self) -> Result<u32, Errno> {
        let mut wanted = self.pid;
        loop {
            let port = self.port.load(Ordering::Acquire);
            if port != 0 {
                return Ok(port);
            }
            match self.claim(wanted) {
                Err(Errno::EADDRINUSE) => {
                    // The lowest that is taken above the ordinary numbers has a free neighbour.
                    let number = self.namespace.number();
                    let range = (number, FIRST_PORT / 2)..=(number, u32::MAX);
                    let lowest = PORTS.lock().range(range).next().map(|(&(_, port), ())| port);
                    wanted = lowest.map_or(FIRST_PORT, |port| port - 1);
                }
                Ok(()) | Err(Errno::EINVAL) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Answers the requests in a program's memory. Returns their bytes.
    fn take_request(&self, buffer: &mut IoBuffer<'_>) -> TryResult<usize> {
        let length = buffer.remaining();
        if length > REQUEST_BYTES_MAX {
            return Err(Errno::EMSGSIZE.into());
        }
        let mut bytes = fallible::try_filled(0, length)?;
        buffer.copy_in(&mut bytes)?;
        self.request(&bytes)?;
        Ok(length)
    }

    /// Answers the requests in `bytes`.
    fn request(&self, bytes: &[u8]) -> Result<(), Errno> {
        let port = self.own_port()?;
        let mut answers = self.answers.lock();
        let before = answers.waiting.len();
        let change = |change: &NetworkChange| {
            interface::change(&self.namespace, &[*change]).map_err(|error| error.0.into())
        };
        let mut take = |message: &[u8]| answers.append(message, before).map_err(|_| ReceiverFull);
        let result = with_network(&self.namespace, |network| {
            answer(network, bytes, port, self.is_privileged, &change, &mut take)
        });
        answers.is_lost |= result.is_err();
        drop(answers);
        self.queue.wake(Events::IN | Events::RDNORM);
        Ok(())
    }

    /// Puts a message of the kernel's own into the socket.
    ///
    /// # Errors
    /// `ENOBUFS`, `ENOMEM`.
    pub fn tell(&self, message: &[u8]) -> Result<(), Errno> {
        let mut answers = self.answers.lock();
        let before = answers.waiting.len();
        answers.append(message, before)?;
        drop(answers);
        self.queue.wake(Events::IN | Events::RDNORM);
        Ok(())
    }

    fn events(&self) -> Events {
        let answers = self.answers.lock();
        let mut events = Events::OUT | Events::WRNORM;
        events.set(Events::IN | Events::RDNORM, !answers.waiting.is_empty() || answers.is_lost);
        events.set(Events::ERR, answers.is_lost);
        events
    }
}

impl Answers {
    /// Adds a message: to the last datagram, if that belongs to the same answer and has room.
    fn append(&mut self, message: &[u8], before: usize) -> Result<(), Errno> {
        if self.bytes + message.len() > WAITING_BYTES_MAX {
            return Err(Errno::ENOBUFS);
        }
        let is_part = message.get(6..8).is_some_and(|flags| flags[0] & NLM_F_MULTI as u8 != 0);
        let may_join = is_part && self.waiting.len() > before;
        match self.waiting.back_mut().filter(|_| may_join) {
            Some(last) if last.len() + message.len() <= DATAGRAM_BYTES => {
                last.try_reserve(message.len()).map_err(|_| Errno::ENOMEM)?;
                extend_reserved(last, message);
            }
            _ => {
                self.waiting.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
                push_back_reserved(&mut self.waiting, fallible::try_to_vec(message)?);
            }
        }
        self.bytes += message.len();
        Ok(())
    }
}

/// A `struct sockaddr_nl`.
fn encode(port: u32, groups: u32) -> SocketAddress {
    let mut bytes = [0; ADDRESS_BYTES];
    bytes[..2].copy_from_slice(&(net::AF_NETLINK as u16).to_ne_bytes());
    bytes[4..8].copy_from_slice(&port.to_ne_bytes());
    bytes[8..].copy_from_slice(&groups.to_ne_bytes());
    SocketAddress::new(&bytes)
}

/// The port and the groups of a `struct sockaddr_nl`.
fn decode(address: &SocketAddress) -> Result<(u32, u32), Errno> {
    let bytes = address.as_slice();
    if bytes.len() < ADDRESS_BYTES || address.family() != net::AF_NETLINK {
        return Err(Errno::EINVAL);
    }
    let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    Ok((word(4), word(8)))
}

impl ProtocolSocket for NetlinkSocket {
    fn is_stream(&self) -> bool {
        false
    }

    fn bind(&self, _: &Arc<Thread>, address: &SocketAddress) -> Result<(), Errno> {
        let (port, groups) = decode(address)?;
        let own = self.port.load(Ordering::Acquire);
        match (port, own) {
            (0, _) => drop(self.own_port()?),
            (port, 0) => self.claim(port)?,
            (port, own) if port != own => return Err(Errno::EINVAL),
            _ => {}
        }
        self.groups.store(groups, Ordering::Relaxed);
        Ok(())
    }

    fn connect(&self, _: &Arc<Thread>, address: &SocketAddress, _: bool) -> TryResult<()> {
        if address.family() == net::AF_UNSPEC {
            return Ok(());
        }
        // There is nobody but the kernel.
        if decode(address)?.0 != 0 {
            return Err(Errno::ECONNREFUSED.into());
        }
        Ok(self.own_port().map(drop)?)
    }

    fn listen(&self, _: i32) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn accept(&self) -> TryResult<(Arc<dyn File>, SocketAddress)> {
        Err(Errno::EOPNOTSUPP.into())
    }

    fn local_address(&self) -> Result<SocketAddress, Errno> {
        Ok(encode(self.port.load(Ordering::Acquire), self.groups.load(Ordering::Relaxed)))
    }

    fn peer_address(&self) -> Result<SocketAddress, Errno> {
        Ok(encode(0, 0))
    }

    fn shut_down(&self, _: bool, _: bool) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn send(&self, buffer: &mut IoBuffer<'_>, message: &Outgoing<'_>) -> TryResult<usize> {
        if message.flags & net::MSG_OOB != 0 {
            return Err(Errno::EOPNOTSUPP.into());
        }
        if let Some(address) = message.address
            && decode(address)?.0 != 0
        {
            return Err(Errno::ECONNREFUSED.into());
        }
        self.take_request(buffer)
    }

    fn receive(
        &self,
        buffer: &mut IoBuffer<'_>,
        flags: u32,
        _: usize,
        message: &mut Incoming,
    ) -> TryResult<usize> {
        if flags & net::MSG_OOB != 0 {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let mut answers = self.answers.lock();
        if core::mem::take(&mut answers.is_lost) {
            return Err(Errno::ENOBUFS.into());
        }
        let first = answers.waiting.front().ok_or(TryError::WouldBlock)?;
        let before = buffer.mark();
        let count = match buffer.copy_out(first) {
            Ok(count) => count,
            Err(fault) => {
                buffer.rewind(before);
                return Err(fault.into());
            }
        };
        message.length = first.len();
        message.address = Some(encode(0, 0));
        if flags & net::MSG_PEEK == 0
            && let Some(taken) = answers.waiting.pop_front()
        {
            answers.bytes -= taken.len();
        }
        Ok(count)
    }

    fn option(&self, level: u32, name: u32) -> Result<OptionValue, Errno> {
        match (level, name) {
            (net::SOL_SOCKET, net::SO_TYPE) => Ok(OptionValue::int(self.kind)),
            (net::SOL_SOCKET, net::SO_DOMAIN) => Ok(OptionValue::int(net::AF_NETLINK)),
            (net::SOL_SOCKET, net::SO_PROTOCOL) => Ok(OptionValue::int(NETLINK_ROUTE)),
            (net::SOL_SOCKET, net::SO_SNDBUF | net::SO_RCVBUF) => Ok(OptionValue::int(SO_BUFFER_BYTES)),
            (net::SOL_SOCKET, net::SO_ERROR) => {
                let is_lost = core::mem::take(&mut self.answers.lock().is_lost);
                Ok(OptionValue::int(if is_lost { Errno::ENOBUFS.0.into() } else { 0 }))
            }
            // Options that are on or off are kept by nobody: what they would change does not happen here.
            (SOL_NETLINK, 1..=12) => Ok(OptionValue::int(0)),
            _ => Err(Errno::ENOPROTOOPT),
        }
    }

    fn set_option(&self, _: &Arc<Thread>, level: u32, name: u32, value: &[u8]) -> Result<(), Errno> {
        match (level, name) {
            (net::SOL_SOCKET, net::SO_RCVTIMEO_OLD | net::SO_RCVTIMEO_NEW) => {
                let seconds = value.get(..8).and_then(|bytes| bytes.try_into().ok()).map(i64::from_ne_bytes);
                let micros = value.get(8..16).and_then(|bytes| bytes.try_into().ok()).map(i64::from_ne_bytes);
                let (seconds, micros) = seconds.zip(micros).ok_or(Errno::EINVAL)?;
                if !(0..1_000_000).contains(&micros) {
                    return Err(Errno::EDOM);
                }
                let seconds = u64::try_from(seconds).unwrap_or(0);
                let total = seconds.saturating_mul(1_000_000_000).saturating_add(micros as u64 * 1000);
                self.receive_timeout_ns.store(total, Ordering::Relaxed);
                Ok(())
            }
            (net::SOL_SOCKET, _) | (SOL_NETLINK, 1..=12) => Ok(()),
            _ => Err(Errno::ENOPROTOOPT),
        }
    }
}

impl File for NetlinkSocket {
    fn read(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        self.receive(buffer, 0, 0, &mut Incoming::default())
    }

    fn write(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        self.take_request(buffer)
    }

    fn poll(&self, _: &OpenFile, watch: Option<&Watch>, wanted: Events) -> Result<Events, Errno> {
        if let Some(watch) = watch {
            self.queue.watch_to_take(watch, wanted)?;
        }
        Ok(self.events())
    }

    fn ioctl(&self, call: &Call<'_>, _: &OpenFile, request: u32, argument: usize) -> TryResult<usize> {
        if request == ioctl::FIONREAD {
            let length = self.answers.lock().waiting.front().map_or(0, Vec::len);
            crate::call::put(call, argument, &(length as u32).to_ne_bytes())?;
            return Ok(0);
        }
        device_ioctl::carry_out(call, &self.namespace, request, argument).unwrap_or(Err(Errno::ENOTTY.into()))
    }

    fn timeout_ns(&self, write: bool) -> Option<u64> {
        let timeout = if write { 0 } else { self.receive_timeout_ns.load(Ordering::Relaxed) };
        Some(timeout).filter(|&timeout| timeout > 0)
    }

    fn socket_node(&self) -> Option<&SocketNode> {
        Some(&self.node)
    }
}

impl Drop for NetlinkSocket {
    fn drop(&mut self) {
        let port = *self.port.get_mut();
        if port != 0 {
            PORTS.lock().remove(&(self.namespace.number(), port));
        }
    }
}
