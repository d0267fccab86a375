//! Sockets: making, naming and connecting them.

use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::{general as linux, net};

use crate::arch::time::now_ns;
use crate::call::caller::{Caller, carry_out};
use crate::error::{Errno, TryError, TryResult};
use crate::fs::{File, OpenFile, StatusFlags, downcast_arc};
use crate::memory::fallible;
use crate::net::inet::InetSocket;
use crate::net::namespace::NetNamespace;
use crate::net::netlink::NetlinkSocket;
use crate::net::packet::PacketSocket;
use crate::net::protocol::{ProtocolSocket, SocketAddress, protocol_socket};
use crate::net::{Address, Socket, Style, find_target};
use crate::syscall::fs::{get, get_bytes, get_file, put};
use crate::syscall::{Call, SyscallResult};
use crate::wait::operation::{Operation, WaitOptions};
use crate::wait::queue::{Events, Watch};

/// The most bytes an address may have, `struct sockaddr_storage`.
pub const ADDRESS_LIMIT: usize = 128;

/// The bits of a socket type that aren't flags; `linux-raw-sys` leaves the mask out.
const TYPE_MASK: u32 = 0xf;

/// The socket behind the descriptor in argument 0.
///
/// # Errors
/// `EBADF`, `ENOTSOCK`.
pub fn get_socket(call: &Call<'_>) -> Result<(Arc<OpenFile>, Arc<Socket>), Errno> {
    let open = get_file(call, 0)?;
    let socket = downcast_arc(&open.file).ok_or(Errno::ENOTSOCK)?;
    Ok((open, socket))
}

/// An open file and the socket that it is.
type OpenProtocol = (Arc<OpenFile>, Arc<dyn ProtocolSocket>);

/// The socket behind the descriptor in argument 0, if it is of a family that has packets.
///
/// # Errors
/// `EBADF`.
pub fn get_protocol(call: &Call<'_>) -> Result<Option<OpenProtocol>, Errno> {
    let open = get_file(call, 0)?;
    Ok(protocol_socket(&open.file).map(|socket| (open, socket)))
}

/// The address that two arguments name, as bytes.
///
/// # Errors
/// A fault; `EINVAL`.
pub fn get_address_bytes(call: &Call<'_>, address: usize, length: i32) -> TryResult<SocketAddress> {
    let length =
        usize::try_from(length).ok().filter(|&length| length <= ADDRESS_LIMIT).ok_or(Errno::EINVAL)?;
    Ok(SocketAddress::new(&get_bytes(call, address, length)?))
}

/// Splits a socket type from the flags in it.
fn split_flags(kind: u32) -> Result<(u32, StatusFlags, bool), Errno> {
    let flags = kind & !TYPE_MASK;
    if flags & !(linux::O_NONBLOCK | linux::O_CLOEXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    let status = StatusFlags::RDWR | StatusFlags::from_bits_retain(flags & linux::O_NONBLOCK);
    Ok((kind & TYPE_MASK, status, flags & linux::O_CLOEXEC != 0))
}

/// As [`split_flags`], with the style of a UNIX socket.
fn split_type(kind: u32) -> Result<(Style, StatusFlags, bool), Errno> {
    let (kind, status, close_on_exec) = split_flags(kind)?;
    Ok((Style::from_type(kind)?, status, close_on_exec))
}

fn check_family(call: &Call<'_>) -> Result<(), Errno> {
    if call.uint(0) != net::AF_UNIX {
        return Err(Errno::EAFNOSUPPORT);
    }
    if call.uint(2) != 0 && call.uint(2) != net::AF_UNIX { Err(Errno::EPROTONOSUPPORT) } else { Ok(()) }
}

/// socket(2).
pub fn socket(call: &mut Call<'_>) -> SyscallResult {
    if matches!(call.uint(0), net::AF_INET | net::AF_INET6) {
        let (kind, status, close_on_exec) = split_flags(call.uint(1))?;
        let is_v6 = call.uint(0) == net::AF_INET6;
        let socket = InetSocket::open(call.thread, is_v6, kind, call.uint(2))?;
        let open = fallible::try_arc(OpenFile::new(socket, status))?;
        return crate::syscall::fs::add(call, open, close_on_exec);
    }
    if call.uint(0) == net::AF_NETLINK {
        let (kind, status, close_on_exec) = split_flags(call.uint(1))?;
        let socket = NetlinkSocket::open(call.thread, kind, call.uint(2))?;
        let open = fallible::try_arc(OpenFile::new(socket, status))?;
        return crate::syscall::fs::add(call, open, close_on_exec);
    }
    if call.uint(0) == net::AF_PACKET {
        let (kind, status, close_on_exec) = split_flags(call.uint(1))?;
        let open = PacketSocket::open(call.thread, kind, call.uint(2), status)?;
        return crate::syscall::fs::add(call, open, close_on_exec);
    }
    check_family(call)?;
    let (style, status, close_on_exec) = split_type(call.uint(1))?;
    let credentials = call.thread.credentials();
    let owner = (credentials.fsuid, credentials.fsgid);
    let open =
        fallible::try_arc(OpenFile::new(Socket::new(style, NetNamespace::of(call.thread)?, owner)?, status))?;
    crate::syscall::fs::add(call, open, close_on_exec)
}

/// socketpair(2).
pub fn socketpair(call: &mut Call<'_>) -> SyscallResult {
    if matches!(call.uint(0), net::AF_INET | net::AF_INET6) {
        // As in Linux the sockets are made, and then found to have no pairs.
        let (kind, _, _) = split_flags(call.uint(1))?;
        call.thread.space().probe_write(call.word(3), 8)?;
        drop(InetSocket::open(call.thread, call.uint(0) == net::AF_INET6, kind, call.uint(2))?);
        return Err(Errno::EOPNOTSUPP.into());
    }
    check_family(call)?;
    let (style, status, close_on_exec) = split_type(call.uint(1))?;
    call.thread.space().probe_write(call.word(3), 8)?;
    let [first, second] = Socket::pair(style, call.thread)?;
    let first = fallible::try_arc(OpenFile::new(first, status))?;
    let second = fallible::try_arc(OpenFile::new(second, status))?;
    let descriptors = crate::syscall::fs::pipe::add_pair(call, first, second, close_on_exec)?;
    call.thread.store_result(call.word(3), &descriptors[0].to_ne_bytes())?;
    call.thread.store_result(call.word(3) + 4, &descriptors[1].to_ne_bytes())?;
    Ok(0.into())
}

/// The address that two arguments name; `None` for `AF_UNSPEC`.
///
/// # Errors
/// A fault; `EINVAL`.
pub fn get_address(call: &Call<'_>, address: usize, length: i32) -> TryResult<Option<Address>> {
    let length =
        usize::try_from(length).ok().filter(|&length| length <= ADDRESS_LIMIT).ok_or(Errno::EINVAL)?;
    let bytes = get_bytes(call, address, length)?;
    Ok(Address::parse(&bytes)?)
}

/// Stores an address as `accept` and `getsockname` do: as much as fits, and the whole length.
///
/// # Errors
/// A fault; `EINVAL`, `ENOMEM`.
pub fn put_address(
    call: &Call<'_>,
    address: usize,
    length_at: usize,
    value: Option<&Address>,
) -> TryResult<()> {
    if address == 0 {
        return Ok(());
    }
    let room = i32::from_ne_bytes(get(call, length_at)?);
    let room = usize::try_from(room).map_err(|_| Errno::EINVAL)?;
    let bytes = Address::encode(value)?;
    put(call, address, &bytes[..bytes.len().min(room)])?;
    put(call, length_at, &(bytes.len() as u32).to_ne_bytes())
}

/// As [`put_address`], of a family that has packets.
fn put_address_bytes(
    call: &Call<'_>,
    address: usize,
    length_at: usize,
    value: &SocketAddress,
) -> TryResult<()> {
    let room = i32::from_ne_bytes(get(call, length_at)?);
    let room = usize::try_from(room).map_err(|_| Errno::EINVAL)?;
    let bytes = value.as_slice();
    put(call, address, &bytes[..bytes.len().min(room)])?;
    put(call, length_at, &(bytes.len() as u32).to_ne_bytes())
}

/// bind(2).
pub fn bind(call: &mut Call<'_>) -> SyscallResult {
    if let Some((_, socket)) = get_protocol(call)? {
        let address = get_address_bytes(call, call.word(1), call.int(2))?;
        socket.bind(call.thread, &address)?;
        return Ok(0.into());
    }
    let (_, socket) = get_socket(call)?;
    let address = get_address(call, call.word(1), call.int(2))?.ok_or(Errno::EINVAL)?;
    socket.bind(call.thread, address)?;
    Ok(0.into())
}

/// listen(2).
pub fn listen(call: &mut Call<'_>) -> SyscallResult {
    if let Some((_, socket)) = get_protocol(call)? {
        socket.listen(call.int(1))?;
        return Ok(0.into());
    }
    let (_, socket) = get_socket(call)?;
    socket.listen(call.int(1), call.thread)?;
    Ok(0.into())
}

struct Connect {
    thread: Caller,
    socket: Arc<Socket>,
    target: Arc<Socket>,
}

impl Operation for Connect {
    fn attempt(&mut self) -> TryResult<usize> {
        self.socket.connect(&self.target, &self.thread)?;
        Ok(0)
    }

    fn can_go_on(&self, watch: &Watch) -> Result<bool, Errno> {
        self.target.watch_for_room(watch)?;
        Ok(self.target.has_room())
    }
}

/// A connection of a family that has packets.
struct ConnectProtocol {
    thread: Caller,
    open: Arc<OpenFile>,
    socket: Arc<dyn ProtocolSocket>,
    address: SocketAddress,
    may_wait: bool,
}

impl Operation for ConnectProtocol {
    fn attempt(&mut self) -> TryResult<usize> {
        self.socket.connect(&self.thread, &self.address, self.may_wait)?;
        Ok(0)
    }

    /// Time that is over is told as what goes on without the call.
    fn end(&self, error: Errno) -> Result<usize, Errno> {
        Err(if error == Errno::EAGAIN { Errno::EINPROGRESS } else { error })
    }

    fn can_go_on(&self, watch: &Watch) -> Result<bool, Errno> {
        self.open.file.can_go_on(&self.open, watch, Events::OUT)
    }
}

/// connect(2).
pub fn connect(call: &mut Call<'_>) -> SyscallResult {
    if let Some((open, socket)) = get_protocol(call)? {
        let address = get_address_bytes(call, call.word(1), call.int(2))?;
        let manner = manner(&open, true, 0);
        let (thread, may_wait) = (call.thread.clone(), !manner.no_wait);
        let operation = ConnectProtocol { thread, open, socket, address, may_wait };
        return carry_out(call.thread, manner, operation);
    }
    let (open, socket) = get_socket(call)?;
    let Some(address) = get_address(call, call.word(1), call.int(2))? else {
        if socket.style != Style::Datagram {
            return Err(Errno::EINVAL.into());
        }
        socket.disconnect();
        return Ok(0.into());
    };
    if socket.inbox().passes_identity() && socket.address().is_none() {
        // A socket that asks for identities has an address itself.
        socket.bind(call.thread, Address::Unnamed)?;
    }
    let target = find_target(call.thread, &address, &socket)?;
    let manner = manner(&open, true, 0);
    carry_out(call.thread, manner, Connect { thread: call.thread.clone(), socket, target })
}

/// How an operation on a socket waits, by its flags and options and those (`MSG_`) of the call.
pub fn manner(open: &OpenFile, send: bool, flags: u32) -> WaitOptions {
    let timeout = open.file.timeout_ns(send);
    WaitOptions {
        no_wait: open.flags().contains(StatusFlags::NONBLOCK) || flags & net::MSG_DONTWAIT != 0,
        deadline_ns: timeout.map(|timeout| now_ns().saturating_add(timeout)),
    }
}

/// A socket that accepts connections.
enum Acceptor {
    Unix(Arc<Socket>),
    Protocol(Arc<dyn ProtocolSocket>),
}

impl Acceptor {
    /// Fails for a socket that accepts nothing.
    fn check(&self) -> Result<(), Errno> {
        let is_listening = match self {
            Self::Unix(socket) => socket.is_listening(),
            Self::Protocol(socket) if socket.is_stream() => {
                let told = socket.option(net::SOL_SOCKET, net::SO_ACCEPTCONN)?;
                told.as_slice().iter().any(|&byte| byte != 0)
            }
            Self::Protocol(_) => return Err(Errno::EOPNOTSUPP),
        };
        if is_listening { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// Takes the connection that came first, and says where it is from. Makes at most one allocation, for the
    /// address.
    fn accept(&self) -> TryResult<(Arc<dyn File>, PeerName)> {
        Ok(match self {
            Self::Unix(socket) => {
                let accepted = socket.accept()?;
                let name = Address::encode(accepted.peer_address().ok().flatten().as_deref())?;
                (accepted, PeerName::Unix(name))
            }
            Self::Protocol(socket) => {
                let (accepted, name) = socket.accept()?;
                (accepted, PeerName::Protocol(name))
            }
        })
    }
}

/// The address of a peer as a program sees it.
enum PeerName {
    Unix(Vec<u8>),
    Protocol(SocketAddress),
}

impl PeerName {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Unix(bytes) => bytes,
            Self::Protocol(address) => address.as_slice(),
        }
    }
}

struct Accept {
    thread: Caller,
    open: Arc<OpenFile>,
    socket: Acceptor,
    status: StatusFlags,
    close_on_exec: bool,
    address: usize,
    length_at: usize,
}

impl Accept {
    /// The allocations for a connection that has been taken: its open file, and the peer's address.
    const ALLOCATIONS: usize = 2;

    /// How many bytes of the peer's address the program takes: its memory is there for them.
    fn room(&self) -> TryResult<usize> {
        let space = self.thread.space();
        let mut room = [0; 4];
        if self.address == 0 {
            return Ok(0);
        }
        space.read_bytes(self.length_at, &mut room)?;
        if i32::from_ne_bytes(room) < 0 {
            return Err(Errno::EINVAL.into());
        }
        space.probe_write(self.length_at, 4)?;
        let room = u32::from_ne_bytes(room) as usize;
        space.probe_write(self.address, room.min(ADDRESS_LIMIT))?;
        Ok(room)
    }
}

impl Operation for Accept {
    fn attempt(&mut self) -> TryResult<usize> {
        let room = match self.room() {
            Ok(room) => room,
            // An address is looked at when there is a connection to tell it of.
            Err(fault) => {
                self.socket.check()?;
                let ready = self.open.file.poll(&self.open, None, Events::IN)?;
                return Err(if ready.contains(Events::IN) { fault } else { TryError::WouldBlock });
            }
        };
        // A connection is taken only if nothing can fail afterwards: otherwise it stays for the next call.
        let (table, limit) = (self.thread.descriptors(), self.thread.process.descriptor_limit());
        table.make_room(limit)?;
        let (open, name) = fallible::reserved(Self::ALLOCATIONS, || -> TryResult<_> {
            let (accepted, name) = self.socket.accept()?;
            Ok((fallible::try_arc(OpenFile::new(accepted, self.status))?, name))
        })??;
        if self.address != 0 {
            let bytes = name.as_slice();
            self.thread.store_result(self.address, &bytes[..bytes.len().min(room)])?;
            self.thread.store_result(self.length_at, &(bytes.len() as u32).to_ne_bytes())?;
        }
        Ok(table.add_in_room(open, 0, limit, self.close_on_exec)? as usize)
    }

    fn can_go_on(&self, watch: &Watch) -> Result<bool, Errno> {
        self.open.file.can_go_on(&self.open, watch, Events::IN)
    }

    fn is_exclusive(&self) -> bool {
        true
    }
}

/// accept(2).
pub fn accept(call: &mut Call<'_>) -> SyscallResult {
    start_accept(call, 0)
}

/// accept4(2).
pub fn accept4(call: &mut Call<'_>) -> SyscallResult {
    start_accept(call, call.uint(3))
}

fn start_accept(call: &Call<'_>, flags: u32) -> SyscallResult {
    if flags & !(linux::O_NONBLOCK | linux::O_CLOEXEC) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let status = StatusFlags::RDWR | StatusFlags::from_bits_retain(flags & linux::O_NONBLOCK);
    let close_on_exec = flags & linux::O_CLOEXEC != 0;
    let (open, socket) = match get_protocol(call)? {
        Some((open, socket)) => (open, Acceptor::Protocol(socket)),
        None => {
            let (open, socket) = get_socket(call)?;
            if socket.style == Style::Datagram {
                return Err(Errno::EOPNOTSUPP.into());
            }
            (open, Acceptor::Unix(socket))
        }
    };
    let manner = manner(&open, false, 0);
    let (thread, address, length_at) = (call.thread.clone(), call.word(1), call.word(2));
    let operation = Accept { thread, open, socket, status, close_on_exec, address, length_at };
    carry_out(call.thread, manner, operation)
}

/// getsockname(2).
pub fn getsockname(call: &mut Call<'_>) -> SyscallResult {
    if let Some((_, socket)) = get_protocol(call)? {
        put_address_bytes(call, call.word(1), call.word(2), &socket.local_address()?)?;
        return Ok(0.into());
    }
    let (_, socket) = get_socket(call)?;
    put_address(call, call.word(1), call.word(2), socket.address().as_deref())?;
    Ok(0.into())
}

/// getpeername(2).
pub fn getpeername(call: &mut Call<'_>) -> SyscallResult {
    if let Some((_, socket)) = get_protocol(call)? {
        put_address_bytes(call, call.word(1), call.word(2), &socket.peer_address()?)?;
        return Ok(0.into());
    }
    let (_, socket) = get_socket(call)?;
    let address = socket.peer_address()?;
    put_address(call, call.word(1), call.word(2), address.as_deref())?;
    Ok(0.into())
}

/// shutdown(2).
pub fn shutdown(call: &mut Call<'_>) -> SyscallResult {
    if let Some((_, socket)) = get_protocol(call)? {
        let (reading, writing) = match call.uint(1) {
            net::SHUT_RD => (true, false),
            net::SHUT_WR => (false, true),
            net::SHUT_RDWR => (true, true),
            _ => return Err(Errno::EINVAL.into()),
        };
        socket.shut_down(reading, writing)?;
        return Ok(0.into());
    }
    let (_, socket) = get_socket(call)?;
    match call.uint(1) {
        net::SHUT_RD => socket.shut_down(true, false),
        net::SHUT_WR => socket.shut_down(false, true),
        net::SHUT_RDWR => socket.shut_down(true, true),
        _ => return Err(Errno::EINVAL.into()),
    }
    Ok(0.into())
}
