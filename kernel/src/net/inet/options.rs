//! The options of internet sockets, socket(7), ip(7), ipv6(7), tcp(7).

use alloc::sync::Arc;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use heddle_inet::ip::protocol;
use heddle_inet::options::Options;
use heddle_inet::settings::Settings;
use linux_raw_sys::{general as linux, net};

use crate::error::Errno;
use crate::net::inet::arrival;
use crate::net::inet::interfaces::{bind_interface, bound_interface, has_interface, set_multicast_address};
use crate::net::inet::tcp_options;
use crate::net::inet::{InetSocket, Transport};
use crate::net::interface::with_network;
use crate::net::protocol::OptionValue;
use crate::process::Thread;
use crate::time::NS_PER_SECOND;

/// The highest `SO_PRIORITY` that needs no capability.
const ORDINARY_PRIORITY_MAX: u32 = 6;
/// The time limit that a negative one stands for: no wait. It is told as 0.
const ZERO_TIMEOUT_NS: u64 = 1;
/// The smallest buffers, as Linux has them.
const SEND_BUFFER_MIN: u32 = 4608;
pub(super) const RECEIVE_BUFFER_MIN: u32 = 2304;
/// The sizes that are reported of a connection's buffers before it is made: `tcp_wmem` and `tcp_rmem`.
const SEND_BUFFER_FIRST: u32 = 16_384;
const RECEIVE_BUFFER_FIRST: u32 = 131_072;
/// Bits of [`Options::buffers_set`].
const SEND_BUFFER_SET: u32 = 1;
const RECEIVE_BUFFER_SET: u32 = 2;
/// The bits of `IP_TOS` that tell of congestion.
const ECN_MASK: u32 = 3;

/// The level of `ICMP_FILTER`, which is `SOL_RAW`, and the options; `linux-raw-sys` leaves them out.
const SOL_ICMP_FILTER_LEVEL: u32 = net::SOL_RAW;
const ICMP_FILTER: u32 = 1;
const ICMP6_FILTER: u32 = 1;

/// A value that is kept as it is set.
enum KeptOption<'a> {
    /// On or off.
    Flag(&'a AtomicU32),
    /// A number within bounds.
    Number(&'a AtomicU32, u32, u32),
    /// A number within bounds, -1 for the default that follows.
    Signed(&'a AtomicI32, i32, i32, i32),
}

/// The options that are only kept, or that the engine looks at by itself.
fn kept<'a>(options: &'a Options, is_tcp: bool, level: u32, name: u32) -> Option<KeptOption<'a>> {
    use KeptOption::{Flag, Number, Signed};
    Some(match (level, name) {
        (net::SOL_SOCKET, net::SO_REUSEADDR) => Flag(&options.reuse_address),
        (net::SOL_SOCKET, net::SO_REUSEPORT) => Flag(&options.reuse_port),
        (net::SOL_SOCKET, net::SO_BROADCAST) => Flag(&options.broadcast),
        (net::SOL_SOCKET, net::SO_KEEPALIVE) => Flag(&options.keep_alive),
        (net::SOL_SOCKET, net::SO_OOBINLINE) => Flag(&options.out_of_band_inline),
        (net::SOL_SOCKET, net::SO_DONTROUTE) => Flag(&options.no_route),
        (net::SOL_SOCKET, net::SO_NO_CHECK) => Flag(&options.no_check),
        (net::SOL_SOCKET, net::SO_PASSCRED) => Flag(&options.pass_credentials),
        (net::SOL_SOCKET, net::SO_PASSSEC) => Flag(&options.pass_label),
        (net::SOL_SOCKET, net::SO_NOFCS) => Flag(&options.no_frame_check),
        (net::SOL_SOCKET, net::SO_LOCK_FILTER) => Flag(&options.lock_filter),
        (net::SOL_SOCKET, net::SO_SELECT_ERR_QUEUE) => Flag(&options.select_error_queue),
        (net::SOL_TCP, net::TCP_NODELAY) if is_tcp => Flag(&options.no_delay),
        (net::SOL_TCP, net::TCP_CORK) if is_tcp => Flag(&options.cork),
        (net::SOL_TCP, net::TCP_QUICKACK) if is_tcp => Flag(&options.quick_ack),
        (net::SOL_TCP, net::TCP_KEEPIDLE) if is_tcp => Number(&options.keep_idle, 1, 32767),
        (net::SOL_TCP, net::TCP_KEEPINTVL) if is_tcp => Number(&options.keep_interval, 1, 32767),
        (net::SOL_TCP, net::TCP_KEEPCNT) if is_tcp => Number(&options.keep_count, 1, 127),
        (net::SOL_TCP, net::TCP_SYNCNT) if is_tcp => Number(&options.syn_count, 1, 127),
        (net::SOL_TCP, net::TCP_USER_TIMEOUT) if is_tcp => Number(&options.user_timeout, 0, i32::MAX as u32),
        (net::SOL_TCP, net::TCP_FASTOPEN) if is_tcp => Number(&options.fast_open, 0, i32::MAX as u32),
        (net::SOL_TCP, net::TCP_FASTOPEN_CONNECT) if is_tcp => Flag(&options.fast_open_connect),
        (net::SOL_TCP, net::TCP_NOTSENT_LOWAT) if is_tcp => Number(&options.unsent_low_water, 0, u32::MAX),
        (net::SOL_IP, net::IP_RECVOPTS) => Flag(&options.receive_options),
        (net::SOL_IP, net::IP_RETOPTS) => Flag(&options.return_options),
        (net::SOL_IP, net::IP_TRANSPARENT) => Flag(&options.transparent),
        (net::SOL_IP, net::IP_MULTICAST_LOOP) => Flag(&options.multicast_loop),
        (net::SOL_IP, net::IP_MULTICAST_ALL) => Flag(&options.multicast_all),
        (net::SOL_IP, net::IP_MTU_DISCOVER) => Number(&options.mtu_discover, 0, 5),
        (net::SOL_IP, net::IP_PKTINFO) => Flag(&options.packet_info),
        (net::SOL_IP, net::IP_RECVTTL) => Flag(&options.receive_ttl),
        (net::SOL_IP, net::IP_RECVTOS) => Flag(&options.receive_tos),
        (net::SOL_IP, net::IP_RECVORIGDSTADDR) => Flag(&options.receive_destination),
        (net::SOL_IP, net::IP_RECVERR) => Flag(&options.receive_errors),
        (net::SOL_IP, net::IP_FREEBIND) => Flag(&options.free_bind),
        (net::SOL_IP, net::IP_BIND_ADDRESS_NO_PORT) => Flag(&options.no_port),
        (net::SOL_IPV6, net::IPV6_UNICAST_HOPS) => Signed(&options.hops, -1, 255, 64),
        (net::SOL_IPV6, net::IPV6_MULTICAST_HOPS) => Signed(&options.multicast_hops, -1, 255, 1),
        (net::SOL_IPV6, net::IPV6_MULTICAST_LOOP) => Flag(&options.multicast_loop_v6),
        (net::SOL_IPV6, net::IPV6_TCLASS) => Signed(&options.traffic_class, -1, 255, 0),
        (net::SOL_IPV6, net::IPV6_RECVPKTINFO) => Flag(&options.packet_info_v6),
        (net::SOL_IPV6, net::IPV6_RECVHOPLIMIT) => Flag(&options.receive_hops),
        (net::SOL_IPV6, net::IPV6_RECVTCLASS) => Flag(&options.receive_class),
        (net::SOL_IPV6, net::IPV6_RECVORIGDSTADDR) => Flag(&options.receive_destination_v6),
        (net::SOL_IPV6, net::IPV6_RECVERR) => Flag(&options.receive_errors_v6),
        _ => return None,
    })
}

/// The first `int` of a value; a single byte counts where Linux lets it.
pub(super) fn int(value: &[u8], level: u32) -> Result<u32, Errno> {
    match value {
        [first, second, third, fourth, ..] => Ok(u32::from_ne_bytes([*first, *second, *third, *fourth])),
        [first, ..] if level == net::SOL_IP => Ok((*first).into()),
        [] if level == net::SOL_IP => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

/// The protocol's number.
fn protocol_number(socket: &InetSocket) -> u32 {
    match &socket.transport {
        Transport::Tcp(_) => protocol::TCP.into(),
        Transport::Udp(_) => protocol::UDP.into(),
        Transport::Raw(raw) => raw.protocol.into(),
    }
}

fn kind(socket: &InetSocket) -> u32 {
    match &socket.transport {
        Transport::Tcp(_) => net::SOCK_STREAM,
        Transport::Udp(_) => net::SOCK_DGRAM,
        Transport::Raw(raw) if raw.is_ping => net::SOCK_DGRAM,
        Transport::Raw(_) => net::SOCK_RAW,
    }
}

/// `SO_SNDBUF` or `SO_RCVBUF`.
fn buffer(socket: &InetSocket, sends: bool) -> u32 {
    let options = socket.options();
    let (value, bit, first) = if sends {
        (&options.send_buffer, SEND_BUFFER_SET, SEND_BUFFER_FIRST)
    } else {
        (&options.receive_buffer, RECEIVE_BUFFER_SET, RECEIVE_BUFFER_FIRST)
    };
    match &socket.transport {
        Transport::Tcp(tcp) if Options::get(&options.buffers_set) & bit == 0 && tcp.remote().is_err() => {
            first
        }
        _ => Options::get(value),
    }
}

/// The value of an option.
///
/// # Errors
/// `ENOPROTOOPT`.
pub fn get(socket: &InetSocket, level: u32, name: u32) -> Result<OptionValue, Errno> {
    let options = socket.options();
    let is_tcp = matches!(socket.transport, Transport::Tcp(_));
    if level == net::SOL_IPV6 && !socket.is_v6 {
        return Err(Errno::EOPNOTSUPP);
    }
    if let Some(kept) = kept(options, is_tcp, level, name) {
        return Ok(OptionValue::int(match kept {
            KeptOption::Flag(value) | KeptOption::Number(value, ..) => value.load(Ordering::Relaxed),
            KeptOption::Signed(value, _, _, default) => match value.load(Ordering::Relaxed) {
                -1 => default as u32,
                value => value as u32,
            },
        }));
    }
    let tcp = match &socket.transport {
        Transport::Tcp(tcp) => Some(tcp),
        _ => None,
    };
    if let Some(tcp) = tcp.filter(|_| level == net::SOL_TCP) {
        return tcp_options::get(socket, tcp, name);
    }
    let number = match (level, name) {
        (net::SOL_SOCKET, net::SO_TYPE) => kind(socket),
        (net::SOL_SOCKET, net::SO_TIMESTAMP | net::SO_TIMESTAMPNS) => arrival::option(options, name),
        (net::SOL_SOCKET, net::SO_DOMAIN) => {
            if socket.is_v6 {
                net::AF_INET6
            } else {
                net::AF_INET
            }
        }
        (net::SOL_SOCKET, net::SO_PROTOCOL) => protocol_number(socket),
        (net::SOL_SOCKET, net::SO_ERROR) => socket.take_error().map_or(0, |error| error.0.into()),
        (net::SOL_SOCKET, net::SO_ACCEPTCONN) => tcp.is_some_and(|tcp| tcp.is_listening()).into(),
        (net::SOL_SOCKET, net::SO_SNDLOWAT) => 1,
        (net::SOL_SOCKET, net::SO_PRIORITY) => Options::get(&options.priority),
        (net::SOL_SOCKET, net::SO_MARK) => Options::get(&options.mark),
        (net::SOL_SOCKET, net::SO_SNDBUF | net::SO_RCVBUF) => buffer(socket, name == net::SO_SNDBUF),
        (net::SOL_SOCKET, net::SO_DEBUG) => Options::get(&options.debug),
        (net::SOL_SOCKET, net::SO_RCVLOWAT) => Options::get(&options.low_water),
        (net::SOL_SOCKET, net::SO_BSDCOMPAT | net::SO_INCOMING_CPU) => 0,
        (net::SOL_SOCKET, net::SO_PEEK_OFF) => match &socket.transport {
            Transport::Udp(_) => options.peek_offset.load(Ordering::Relaxed) as u32,
            _ => return Err(Errno::EOPNOTSUPP),
        },
        (net::SOL_IP, net::IP_TOS) => Options::get(&options.tos),
        (net::SOL_SOCKET, net::SO_COOKIE | net::SO_NETNS_COOKIE) => return Ok(socket.cookie(name)),
        (net::SOL_SOCKET, net::SO_PEERCRED) => {
            let mut bytes = [0xff; 12];
            bytes[..4].fill(0);
            return Ok(OptionValue::new(&bytes));
        }
        (net::SOL_SOCKET, net::SO_LINGER) => {
            let mut bytes = [0; 8];
            let is_on = options.linger.load(Ordering::Relaxed) >= 0;
            bytes[..4].copy_from_slice(&u32::from(is_on).to_ne_bytes());
            bytes[4..].copy_from_slice(&Options::get(&options.linger_seconds).to_ne_bytes());
            return Ok(OptionValue::new(&bytes));
        }
        (net::SOL_SOCKET, net::SO_RCVTIMEO_OLD | net::SO_SNDTIMEO_OLD) => {
            let timeout = socket.timeout(name == net::SO_SNDTIMEO_OLD).load(Ordering::Relaxed);
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&(timeout / NS_PER_SECOND).to_ne_bytes());
            bytes[8..].copy_from_slice(&(timeout % NS_PER_SECOND / 1000).to_ne_bytes());
            return Ok(OptionValue::new(&bytes));
        }
        (net::SOL_IP, net::IP_TTL) => match Options::get(&options.ttl) {
            0 => Settings::get(&socket.namespace.engine()?.settings.ttl),
            ttl => ttl,
        },
        (net::SOL_IP, net::IP_MULTICAST_IF) => Options::get(&options.multicast_address),
        (net::SOL_IPV6, net::IPV6_MULTICAST_IF) => Options::get(&options.multicast_interface),
        (net::SOL_SOCKET, net::SO_BINDTODEVICE) => return Ok(bound_interface(socket)),
        (net::SOL_IP, net::IP_MULTICAST_TTL) => Options::get(&options.multicast_ttl),
        (net::SOL_IP, net::IP_HDRINCL) => Options::get(&options.header_included),
        (net::SOL_IP, net::IP_MTU) => {
            let tcp = tcp.filter(|tcp| tcp.remote().is_ok()).ok_or(Errno::ENOTCONN)?;
            tcp.segment_bytes() as u32 + if tcp.local().address.is_ipv4() { 40 } else { 60 }
        }
        (SOL_ICMP_FILTER_LEVEL, ICMP_FILTER) | (net::SOL_ICMPV6, ICMP6_FILTER)
            if (level == net::SOL_ICMPV6) == socket.is_v6 =>
        {
            return message_filter(socket);
        }
        (net::SOL_IP, net::IP_OPTIONS) => return Ok(OptionValue::new(&[])),
        (net::SOL_IPV6, net::IPV6_V6ONLY) => Options::get(&options.only_v6),
        (net::SOL_IPV6, net::IPV6_MTU_DISCOVER) => Options::get(&options.mtu_discover),
        (net::SOL_IP | net::SOL_SOCKET, _) => return Err(Errno::ENOPROTOOPT),
        (net::SOL_UDP, _) if matches!(socket.transport, Transport::Udp(_)) => return Err(Errno::ENOPROTOOPT),
        _ if socket.is_v6 => return Err(Errno::ENOPROTOOPT),
        _ => return Err(Errno::EOPNOTSUPP),
    };
    Ok(OptionValue::int(number))
}

/// The filter of a raw socket of ICMP, as long as its family has it.
fn message_filter(socket: &InetSocket) -> Result<OptionValue, Errno> {
    let Transport::Raw(raw) = &socket.transport else { return Err(Errno::ENOPROTOOPT) };
    let mut bytes = [0; 32];
    for (place, word) in bytes.chunks_exact_mut(4).zip(raw.filter()) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    Ok(OptionValue::new(if socket.is_v6 { &bytes } else { &bytes[..4] }))
}

/// Sets an option.
///
/// # Errors
/// `ENOPROTOOPT`, `EINVAL`, `EPERM`, `EDOM`.
pub fn set(
    socket: &InetSocket,
    thread: &Arc<Thread>,
    level: u32,
    name: u32,
    value: &[u8],
) -> Result<(), Errno> {
    let options = socket.options();
    let is_tcp = matches!(socket.transport, Transport::Tcp(_));
    if level == net::SOL_IPV6 && !socket.is_v6 {
        return Err(Errno::ENOPROTOOPT);
    }
    // Values of these levels are numbers of at least four bytes before anything else.
    let has_text = [(net::SOL_SOCKET, net::SO_BINDTODEVICE), (net::SOL_TCP, net::TCP_CONGESTION)];
    let is_number = level == net::SOL_SOCKET || level == net::SOL_TCP && is_tcp;
    if is_number && !has_text.contains(&(level, name)) && value.len() < 4 {
        return Err(Errno::EINVAL);
    }
    if is_tcp && (level, name) == (net::SOL_IPV6, net::IPV6_MULTICAST_HOPS) {
        return Err(Errno::ENOPROTOOPT);
    }
    if let Some(kept) = kept(options, is_tcp, level, name) {
        let is_named = (level, name) == (net::SOL_IP, net::IP_TRANSPARENT);
        if is_named && !socket.namespace.grants(&thread.credentials(), linux::CAP_NET_ADMIN) {
            return Err(Errno::EPERM);
        }
        let number = int(value, level)?;
        let is_strict = (level, name) == (net::SOL_IPV6, net::IPV6_MULTICAST_LOOP)
            || (level, name) == (net::SOL_IP, net::IP_MULTICAST_ALL) && !value.is_empty();
        if is_strict && number > 1 {
            return Err(Errno::EINVAL);
        }
        match kept {
            KeptOption::Flag(flag) => flag.store((number != 0).into(), Ordering::Relaxed),
            KeptOption::Number(place, first, last) => {
                if !(first..=last).contains(&number) {
                    return Err(Errno::EINVAL);
                }
                place.store(number, Ordering::Relaxed);
            }
            KeptOption::Signed(place, first, last, _) => {
                if !(first..=last).contains(&(number as i32)) {
                    return Err(Errno::EINVAL);
                }
                place.store(number as i32, Ordering::Relaxed);
            }
        }
        socket.option_changed(level, name);
        return Ok(());
    }
    match level {
        net::SOL_SOCKET => set_for_socket(socket, thread, name, value),
        _ => set_for_protocol(socket, level, name, value),
    }
}

/// The options of `SOL_SOCKET` that are more than kept.
fn set_for_socket(socket: &InetSocket, thread: &Thread, name: u32, value: &[u8]) -> Result<(), Errno> {
    let (options, level) = (socket.options(), net::SOL_SOCKET);
    let credentials = thread.credentials();
    let grants = |capability| socket.namespace.grants(&credentials, capability);
    let may_mark = || grants(linux::CAP_NET_ADMIN) || grants(linux::CAP_NET_RAW);
    match name {
        net::SO_SNDBUF | net::SO_RCVBUF | net::SO_SNDBUFFORCE | net::SO_RCVBUFFORCE => {
            let forces = name == net::SO_SNDBUFFORCE || name == net::SO_RCVBUFFORCE;
            if forces && !credentials.is_capable(linux::CAP_NET_ADMIN) {
                return Err(Errno::EPERM);
            }
            let asked = int(value, level)?;
            let settings = &socket.namespace.engine()?.settings;
            let is_send = name == net::SO_SNDBUF;
            let most = if is_send { &settings.send_buffer_max } else { &settings.receive_buffer_max };
            let asked = if forces { asked.min(i32::MAX as u32 / 2) } else { asked.min(Settings::get(most)) };
            if name == net::SO_SNDBUF || name == net::SO_SNDBUFFORCE {
                options.buffers_set.fetch_or(SEND_BUFFER_SET, Ordering::Relaxed);
                options.send_buffer.store((asked * 2).max(SEND_BUFFER_MIN), Ordering::Relaxed);
            } else {
                options.buffers_set.fetch_or(RECEIVE_BUFFER_SET, Ordering::Relaxed);
                options.receive_buffer.store((asked * 2).max(RECEIVE_BUFFER_MIN), Ordering::Relaxed);
            }
            socket.option_changed(level, name);
        }
        net::SO_PRIORITY => {
            let priority = int(value, level)?;
            let is_ordinary = priority <= ORDINARY_PRIORITY_MAX;
            if !is_ordinary && !may_mark() {
                return Err(Errno::EPERM);
            }
            options.priority.store(priority, Ordering::Relaxed);
        }
        net::SO_MARK => {
            if !may_mark() {
                return Err(Errno::EPERM);
            }
            options.mark.store(int(value, level)?, Ordering::Relaxed);
        }
        net::SO_LINGER => {
            let &[a, b, c, d, e, f, g, h, ..] = value else { return Err(Errno::EINVAL) };
            let is_on = [a, b, c, d] != [0; 4];
            let seconds = u32::from_ne_bytes([e, f, g, h]).min(i32::MAX as u32);
            if is_on {
                options.linger_seconds.store(seconds, Ordering::Relaxed);
            }
            options.linger.store(if is_on { seconds as i32 } else { -1 }, Ordering::Relaxed);
        }
        net::SO_RCVTIMEO_OLD | net::SO_SNDTIMEO_OLD => {
            let timeout = timeout_ns(value)?;
            socket.timeout(name == net::SO_SNDTIMEO_OLD).store(timeout, Ordering::Relaxed);
        }
        net::SO_DEBUG => {
            let is_on = int(value, level)? != 0;
            if is_on && !credentials.is_capable(linux::CAP_NET_ADMIN) {
                return Err(Errno::EACCES);
            }
            options.debug.store(is_on.into(), Ordering::Relaxed);
        }
        net::SO_RCVLOWAT => {
            let bytes = int(value, level)?;
            let bytes = if (bytes as i32) < 0 { i32::MAX as u32 } else { bytes.max(1) };
            options.low_water.store(bytes, Ordering::Relaxed);
        }
        net::SO_PEEK_OFF => match &socket.transport {
            Transport::Udp(_) => options.peek_offset.store(int(value, level)? as i32, Ordering::Relaxed),
            _ => return Err(Errno::EOPNOTSUPP),
        },
        net::SO_BSDCOMPAT | net::SO_INCOMING_CPU => {
            int(value, level)?;
        }
        net::SO_TIMESTAMP | net::SO_TIMESTAMPNS => {
            arrival::set_option(options, name, int(value, level)? != 0)
        }
        net::SO_BINDTODEVICE => bind_interface(socket, value)?,
        net::SO_DETACH_FILTER => return Err(Errno::ENOENT),
        _ => return Err(Errno::ENOPROTOOPT),
    }
    Ok(())
}

/// The `SO_PRIORITY` that a type of service brings along.
const fn priority_for(tos: u32) -> u32 {
    const BEST_EFFORT: u32 = 0;
    const FILLER: u32 = 1;
    const BULK: u32 = 2;
    const INTERACTIVE_BULK: u32 = 4;
    const INTERACTIVE: u32 = 6;
    match tos >> 1 & 15 {
        1 => FILLER,
        0..=3 => BEST_EFFORT,
        4..=7 => BULK,
        8..=11 => INTERACTIVE,
        _ => INTERACTIVE_BULK,
    }
}

/// Sets `IP_TOS`.
fn set_service(options: &Options, is_tcp: bool, tos: u32) {
    // The bits of congestion are a connection's own.
    let tos = if is_tcp { tos & !ECN_MASK | Options::get(&options.tos) & ECN_MASK } else { tos };
    options.tos.store(tos, Ordering::Relaxed);
    options.priority.store(priority_for(tos), Ordering::Relaxed);
}

/// The options of the protocols that are more than kept.
fn set_for_protocol(socket: &InetSocket, level: u32, name: u32, value: &[u8]) -> Result<(), Errno> {
    let options = socket.options();
    if let (Transport::Tcp(tcp), net::SOL_TCP) = (&socket.transport, level) {
        return tcp_options::set(socket, tcp, name, value);
    }
    let is_tcp = matches!(socket.transport, Transport::Tcp(_));
    match (level, name) {
        (net::SOL_IP, net::IP_TTL | net::IP_MULTICAST_TTL) if value.is_empty() => return Err(Errno::EINVAL),
        (net::SOL_IP, net::IP_TTL) => {
            let ttl = match int(value, level)? {
                u32::MAX => 0,
                ttl @ 1..=255 => ttl,
                _ => return Err(Errno::EINVAL),
            };
            options.ttl.store(ttl, Ordering::Relaxed);
        }
        (net::SOL_IP, net::IP_TOS) => set_service(options, is_tcp, int(value, level)? & 0xff),
        (net::SOL_IP, net::IP_MULTICAST_TTL | net::IP_MULTICAST_IF) if is_tcp => return Err(Errno::EINVAL),
        (net::SOL_IP, net::IP_MULTICAST_TTL) if !is_tcp => {
            let ttl = match int(value, level)? {
                u32::MAX => 1,
                ttl @ 0..=255 => ttl,
                _ => return Err(Errno::EINVAL),
            };
            options.multicast_ttl.store(ttl, Ordering::Relaxed);
        }
        (net::SOL_IP, net::IP_OPTIONS) if value.is_empty() => {}
        (net::SOL_IP, net::IP_HDRINCL) => match &socket.transport {
            Transport::Raw(_) => {
                options.header_included.store((int(value, level)? != 0).into(), Ordering::Relaxed);
            }
            _ => return Err(Errno::ENOPROTOOPT),
        },
        (SOL_ICMP_FILTER_LEVEL, ICMP_FILTER) | (net::SOL_ICMPV6, ICMP6_FILTER)
            if (level == net::SOL_ICMPV6) == socket.is_v6 =>
        {
            let Transport::Raw(raw) = &socket.transport else { return Err(Errno::ENOPROTOOPT) };
            let mut filter = [0; 8];
            for (place, word) in filter.iter_mut().zip(value.chunks_exact(4)) {
                *place = u32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
            }
            raw.set_filter(&filter);
        }
        (net::SOL_RAW, _) | (net::SOL_IPV6, net::IPV6_CHECKSUM) => {
            if !matches!(socket.transport, Transport::Raw(_)) {
                return Err(Errno::ENOPROTOOPT);
            }
            int(value, level)?;
        }
        (net::SOL_UDP, _) if matches!(socket.transport, Transport::Udp(_)) => return Err(Errno::ENOPROTOOPT),
        (net::SOL_IP, net::IP_ADD_MEMBERSHIP | net::IP_DROP_MEMBERSHIP) if !is_tcp => {
            let group = value.first_chunk::<4>().ok_or(Errno::EINVAL)?;
            let interface =
                value.get(8..12).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_ne_bytes(*word));
            let address = value.get(4..).and_then(<[u8]>::first_chunk::<4>).copied().unwrap_or_default();
            if !has_interface(socket, interface, address) {
                return Err(Errno::ENODEV);
            }
            let group = IpAddr::V4(Ipv4Addr::from(*group));
            socket.join(group, interface, name == net::IP_ADD_MEMBERSHIP)?;
        }
        (net::SOL_IPV6, net::IPV6_ADD_MEMBERSHIP | net::IPV6_DROP_MEMBERSHIP) if !is_tcp => {
            let group = value.first_chunk::<16>().ok_or(Errno::EINVAL)?;
            let interface =
                value.get(16..20).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_ne_bytes(*word));
            let group = IpAddr::V6(Ipv6Addr::from(*group));
            socket.join(group, interface, name == net::IPV6_ADD_MEMBERSHIP)?;
        }
        // There is one interface over which groups are reached, whichever is named.
        (net::SOL_IP, net::IP_MULTICAST_IF) if !is_tcp => set_multicast_address(socket, value)?,
        (net::SOL_IPV6, net::IPV6_MULTICAST_IF) if !is_tcp => {
            let index = int(value, level)?;
            if index != 0 && !with_network(&socket.namespace, |network| network.by_index(index).is_some()) {
                return Err(Errno::ENODEV);
            }
            options.multicast_interface.store(index, Ordering::Relaxed);
        }
        (net::SOL_IPV6, net::IPV6_V6ONLY) => {
            let flag = int(value, level)?;
            socket.set_only_v6(flag != 0)?;
        }
        (net::SOL_IPV6, net::IPV6_MTU_DISCOVER) => {
            options.mtu_discover.store(int(value, level)?, Ordering::Relaxed);
        }
        _ => return Err(Errno::ENOPROTOOPT),
    }
    Ok(())
}

/// The nanoseconds of a `struct timeval`; 0 for ever.
fn timeout_ns(value: &[u8]) -> Result<u64, Errno> {
    let word = |at: usize| -> Result<u64, Errno> {
        value
            .get(at..)
            .and_then(<[u8]>::first_chunk)
            .map(|word| u64::from_ne_bytes(*word))
            .ok_or(Errno::EINVAL)
    };
    let (seconds, microseconds) = (word(0)?, word(8)?);
    if microseconds >= 1_000_000 {
        return Err(Errno::EDOM);
    }
    Ok(if (seconds as i64) < 0 {
        ZERO_TIMEOUT_NS
    } else if seconds == 0 && microseconds == 0 {
        0
    } else {
        seconds.saturating_mul(NS_PER_SECOND).saturating_add(microseconds * 1000)
    })
}
