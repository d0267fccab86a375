//! The sockets in `/proc/net`.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU32, Ordering};

use heddle_inet::address::Endpoint;
use heddle_inet::tcp::{Listing, TcpState};

use crate::error::Errno;
use crate::fs::{File, downcast_arc};
use crate::memory::fallible;
use crate::net::namespace::NetNamespace;
use crate::net::{Address, Socket};
use crate::process::table;
use crate::procfs::{Subject, Text};

type Shown = Result<(), Errno>;

/// Width of a line about an IPv4 socket.
const LINE_WIDTH: usize = 149;
/// Room for such a line, or one of IPv6, which is not padded.
const LINE_BYTES_MAX: usize = 256;

/// All TCP sockets with an address.
pub(super) fn tcp_sockets(namespace: &NetNamespace) -> Result<Vec<Listing>, Errno> {
    match namespace.running_engine() {
        Some(engine) => engine.tcp_sockets().map_err(|_| Errno::ENOMEM),
        None => Ok(Vec::new()),
    }
}

/// An endpoint: the address in words of this machine's byte order, and the port.
struct Hexadecimal {
    words: [u32; 4],
    count: usize,
    port: u16,
}

impl Hexadecimal {
    fn new(endpoint: Endpoint, is_v6: bool) -> Self {
        let octets = match endpoint.address {
            IpAddr::V4(address) if !is_v6 => {
                let words = [u32::from_ne_bytes(address.octets()), 0, 0, 0];
                return Self { words, count: 1, port: endpoint.port };
            }
            // Any address is written alike in both families.
            IpAddr::V4(address) if address.is_unspecified() => [0; 16],
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(octets.chunks_exact(4)) {
            *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        Self { words, count: 4, port: endpoint.port }
    }
}

impl core::fmt::Display for Hexadecimal {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for word in &self.words[..self.count] {
            write!(formatter, "{word:08X}")?;
        }
        write!(formatter, ":{:04X}", self.port)
    }
}

/// Text of a limited length.
struct SocketLine {
    bytes: [u8; LINE_BYTES_MAX],
    length: usize,
}

impl core::fmt::Write for SocketLine {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let place = self.bytes.get_mut(self.length..self.length + text.len()).ok_or(core::fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        self.length += text.len();
        Ok(())
    }
}

/// Appends a line, padded with blanks to `width`.
pub(super) fn padded(text: &mut Text, width: usize, arguments: core::fmt::Arguments<'_>) -> Shown {
    let mut line = SocketLine { bytes: [0; LINE_BYTES_MAX], length: 0 };
    core::fmt::Write::write_fmt(&mut line, arguments).map_err(|_| Errno::EIO)?;
    let line = core::str::from_utf8(&line.bytes[..line.length]).unwrap_or_default();
    text.line(format_args!("{line:width$}\n"))
}

fn tcp_table(subject: &Subject, text: &mut Text, is_v6: bool) -> Shown {
    let width = if is_v6 {
        text.bytes(b"  sl  local_address                         remote_address                        ")?;
        text.bytes(b"st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n")?;
        0
    } else {
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";
        padded(text, LINE_WIDTH, format_args!("{head}"))?;
        LINE_WIDTH
    };
    let sockets = tcp_sockets(&*subject.network()?)?;
    for (number, socket) in sockets.iter().filter(|socket| socket.is_v6 == is_v6).enumerate() {
        let (local, remote) = (Hexadecimal::new(socket.local, is_v6), Hexadecimal::new(socket.remote, is_v6));
        let (state, user) = (socket.state as u8, socket.user);
        let inode = socket.inode;
        let (sending, receiving) = (socket.send_queue, socket.receive_queue);
        padded(
            text,
            width,
            format_args!(
                "{number:4}: {local} {remote} {state:02X} {sending:08X}:{receiving:08X} 00:00000000 00000000 \
                 {user:5}        0 {inode} 1 0000000000000000 100 0 0 10 0"
            ),
        )?;
    }
    Ok(())
}

/// `/proc/net/tcp`.
pub fn tcp(subject: &Subject, text: &mut Text) -> Shown {
    tcp_table(subject, text, false)
}

/// `/proc/net/tcp6`.
pub fn tcp_v6(subject: &Subject, text: &mut Text) -> Shown {
    tcp_table(subject, text, true)
}

/// UDP, raw and ping sockets, which look alike.
fn datagram_table(text: &mut Text, is_v6: bool, sockets: &[Listing]) -> Shown {
    const WIDTH: usize = 127;
    let width = if is_v6 {
        text.bytes(b"  sl  local_address                         remote_address                        ")?;
        text.bytes(b"st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n")?;
        0
    } else {
        text.bytes(
            b"   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout ",
        )?;
        text.bytes(b"inode ref pointer drops             \n")?;
        WIDTH
    };
    for (number, socket) in sockets.iter().filter(|socket| socket.is_v6 == is_v6).enumerate() {
        let (local, remote) = (Hexadecimal::new(socket.local, is_v6), Hexadecimal::new(socket.remote, is_v6));
        let (state, user, receiving) = (socket.state as u8, socket.user, socket.receive_queue);
        let inode = socket.inode;
        padded(
            text,
            width,
            format_args!(
                "{number:5}: {local} {remote} {state:02X} 00000000:{receiving:08X} 00:00000000 00000000 {user:5}     \
                    0 {inode} 2 0000000000000000 0"
            ),
        )?;
    }
    Ok(())
}

fn udp_sockets(namespace: &NetNamespace) -> Result<Vec<Listing>, Errno> {
    match namespace.running_engine() {
        Some(engine) => engine.udp_sockets().map_err(|_| Errno::ENOMEM),
        None => Ok(Vec::new()),
    }
}

/// `/proc/net/udp`.
pub fn udp(subject: &Subject, text: &mut Text) -> Shown {
    datagram_table(text, false, &udp_sockets(&*subject.network()?)?)
}

/// `/proc/net/udp6`.
pub fn udp_v6(subject: &Subject, text: &mut Text) -> Shown {
    datagram_table(text, true, &udp_sockets(&*subject.network()?)?)
}

/// The raw sockets, or the ping sockets.
fn raw_table(subject: &Subject, text: &mut Text, is_v6: bool, is_ping: bool) -> Shown {
    let namespace = subject.network()?;
    let mut sockets = Vec::new();
    for (ping, listing) in namespace.running_engine().map(|engine| engine.raw_listings()).unwrap_or_default()
    {
        if ping == is_ping {
            fallible::try_push(&mut sockets, listing)?;
        }
    }
    datagram_table(text, is_v6, &sockets)
}

/// `/proc/net/raw`.
pub fn raw(subject: &Subject, text: &mut Text) -> Shown {
    raw_table(subject, text, false, false)
}

/// `/proc/net/raw6`.
pub fn raw_v6(subject: &Subject, text: &mut Text) -> Shown {
    raw_table(subject, text, true, false)
}

/// `/proc/net/icmp`.
pub fn ping(subject: &Subject, text: &mut Text) -> Shown {
    raw_table(subject, text, false, true)
}

/// `/proc/net/icmp6`.
pub fn ping_v6(subject: &Subject, text: &mut Text) -> Shown {
    raw_table(subject, text, true, true)
}

/// Descriptors that one part of `/proc/net/unix` looks at.
const DESCRIPTORS_AT_ONCE: usize = 128;

/// `/proc/net/unix`: some descriptors of a process in each part. A socket is shown once.
pub fn unix(subject: &Subject, text: &mut Text, from: u64) -> Result<Option<u64>, Errno> {
    static LISTINGS: AtomicU32 = AtomicU32::new(0);
    // A position is the number of the listing, a process and a descriptor of it.
    const PROCESS_BITS: u32 = 23;
    const DESCRIPTOR_BITS: u32 = 21;
    const LISTING_MASK: u32 = (1 << (u64::BITS - PROCESS_BITS - DESCRIPTOR_BITS)) - 1;
    let (listing, next, mut number) = if from == 0 {
        text.bytes(b"Num       RefCount Protocol Flags    Type St Inode Path\n")?;
        ((LISTINGS.fetch_add(1, Ordering::Relaxed) & LISTING_MASK).max(1), 0, 0)
    } else {
        let (above, number) = (from >> DESCRIPTOR_BITS, from & ((1 << DESCRIPTOR_BITS) - 1));
        ((above >> PROCESS_BITS) as u32, above & ((1 << PROCESS_BITS) - 1), number as usize)
    };
    let Some(process) = table::next_process(i32::try_from(next).unwrap_or(i32::MAX)) else { return Ok(None) };
    // Another process may have come to the place of the one that the part before ended in.
    number = if u64::try_from(process.pid) == Ok(next) { number } else { 0 };
    let position = |pid: i32, number: usize| {
        let pid = u64::from(pid.cast_unsigned());
        Some(((u64::from(listing) << PROCESS_BITS | pid) << DESCRIPTOR_BITS) | number as u64)
    };
    let namespace = subject.network()?;
    if let Some(thread) = process.main_thread() {
        let descriptors = thread.descriptors();
        for _ in 0..DESCRIPTORS_AT_ONCE {
            let Some(index) = descriptors.next_in_use(number) else {
                return Ok(position(process.pid.saturating_add(1), 0));
            };
            number = index + 1;
            let open = i32::try_from(index).ok().and_then(|index| descriptors.get(index).ok());
            let socket: Option<Arc<Socket>> = open.and_then(|open| downcast_arc(&open.file));
            let is_own = |socket: &Arc<Socket>| Arc::ptr_eq(&socket.namespace, &namespace);
            if let Some(socket) = socket.filter(|socket| is_own(socket) && socket.mark_listed(listing)) {
                unix_line(text, &socket)?;
            }
        }
        return Ok(position(process.pid, number));
    }
    Ok(position(process.pid.saturating_add(1), 0))
}

fn unix_line(text: &mut Text, socket: &Socket) -> Shown {
    const LISTENS: u32 = 1 << 16;
    const UNCONNECTED: u8 = 1;
    const CONNECTED: u8 = 3;
    let flags = if socket.is_listening() { LISTENS } else { 0 };
    let state = if socket.is_connected() { CONNECTED } else { UNCONNECTED };
    let (kind, inode) = (socket.style.number(), socket.metadata().inode);
    text.line(format_args!(
        "0000000000000000: 00000002 00000000 {flags:08X} {kind:04X} {state:02X} {inode:5}"
    ))?;
    match socket.address().as_deref() {
        Some(Address::Path(path)) => {
            text.bytes(b" ")?;
            text.bytes(path)?;
        }
        Some(Address::Abstract(name)) => {
            text.bytes(b" @")?;
            for &byte in name {
                text.bytes(&[if byte == 0 { b'@' } else { byte }])?;
            }
        }
        Some(Address::Unnamed) | None => {}
    }
    text.bytes(b"\n")
}

/// `/proc/net/sockstat`.
pub fn usage(subject: &Subject, text: &mut Text) -> Shown {
    let sockets = tcp_sockets(&*subject.network()?)?;
    let waiting = sockets.iter().filter(|socket| socket.state == TcpState::TimeWait).count();
    let used = sockets.len() - waiting;
    let datagrams = udp_sockets(&*subject.network()?)?.len();
    text.line(format_args!("sockets: used {}\n", used + datagrams))?;
    text.line(format_args!("TCP: inuse {used} orphan 0 tw {waiting} alloc {used} mem 0\n"))?;
    text.line(format_args!("UDP: inuse {datagrams} mem 0\n"))?;
    text.bytes(b"UDPLITE: inuse 0\nRAW: inuse 0\nFRAG: inuse 0 memory 0\n")
}
