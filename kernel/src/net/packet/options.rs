//! The options of packet sockets, packet(7) and socket(7).

use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::{general as linux, net};

use heddle_inet::settings::Settings;
use heddle_kernel_core::packet_filter::{PacketFilter, PacketProgramError};

use crate::error::Errno;
use crate::memory::fallible;
use crate::net::options::OptionFlags;
use crate::net::packet::ring::{HEADER_BYTES, PacketRing, Version};
use crate::net::packet::{
    IGNORES_OUTGOING, PASSES_QUEUES, PacketSocket, WANTS_AUXILIARY, WANTS_ORIGIN, device,
};
use crate::net::protocol::OptionValue;
use crate::process::Thread;
use crate::time::NS_PER_SECOND;

const PACKET_ADD_MEMBERSHIP: u32 = 1;
const PACKET_DROP_MEMBERSHIP: u32 = 2;
const PACKET_RX_RING: u32 = 5;
const PACKET_STATISTICS: u32 = 6;
pub(super) const PACKET_AUXDATA: u32 = 8;
const PACKET_ORIGDEV: u32 = 9;
const PACKET_VERSION: u32 = 10;
const PACKET_HDRLEN: u32 = 11;
const PACKET_RESERVE: u32 = 12;
const PACKET_QDISC_BYPASS: u32 = 20;
const PACKET_IGNORE_OUTGOING: u32 = 23;

/// `PACKET_MR_UNICAST`, the last kind of membership.
const MEMBERSHIP_KINDS: u16 = 3;
/// Memberships of one socket.
const MEMBERSHIPS_MAX: usize = 64;
/// Bytes of a hardware address of the interfaces that there are.
const MAC_BYTES: u16 = 6;
/// The highest `SO_PRIORITY` that needs no capability.
const ORDINARY_PRIORITY_MAX: u32 = 6;
/// The time limit that a negative one stands for: no wait. It is told as 0.
const ZERO_TIMEOUT_NS: u64 = 1;

/// A `struct packet_mreq`. The device receives everything as it is, so a membership changes nothing; it is kept so
/// that it can be taken back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Membership {
    interface: u32,
    kind: u16,
    length: u16,
    address: [u8; 8],
}

impl Membership {
    fn parse(value: &[u8]) -> Result<Self, Errno> {
        let bytes = value.first_chunk::<16>().ok_or(Errno::EINVAL)?;
        let [a, b, c, d, kind_low, kind_high, length_low, length_high, address @ ..] = *bytes;
        Ok(Self {
            interface: u32::from_ne_bytes([a, b, c, d]),
            kind: u16::from_ne_bytes([kind_low, kind_high]),
            length: u16::from_ne_bytes([length_low, length_high]),
            address,
        })
    }
}

fn flag_of(name: u32) -> Option<u32> {
    match name {
        PACKET_AUXDATA => Some(WANTS_AUXILIARY),
        PACKET_ORIGDEV => Some(WANTS_ORIGIN),
        // No frame waits in a queue that it could pass by.
        PACKET_QDISC_BYPASS => Some(PASSES_QUEUES),
        PACKET_IGNORE_OUTGOING => Some(IGNORES_OUTGOING),
        _ => None,
    }
}

/// The value of an option.
pub(super) fn get(socket: &PacketSocket, level: u32, name: u32) -> Result<OptionValue, Errno> {
    if level == net::SOL_PACKET {
        if name == PACKET_STATISTICS {
            let mut state = socket.state.lock();
            let (packets, drops) = (core::mem::take(&mut state.packets), core::mem::take(&mut state.drops));
            return Ok(OptionValue::new([packets.to_ne_bytes(), drops.to_ne_bytes()].as_flattened()));
        }
        let ring = socket.state.lock().ring_options;
        let number = match name {
            PACKET_VERSION => ring.version as u32,
            PACKET_RESERVE => ring.reserve as u32,
            _ => socket.has(flag_of(name).ok_or(Errno::ENOPROTOOPT)?).into(),
        };
        return Ok(OptionValue::int(number));
    }
    if level != net::SOL_SOCKET {
        return Err(Errno::ENOPROTOOPT);
    }
    let options = &socket.options;
    let number = match name {
        net::SO_TYPE => socket.kind,
        net::SO_DOMAIN => net::AF_PACKET,
        net::SO_ERROR => socket.state.lock().error.take().map_or(0, |error| error.0.into()),
        net::SO_SNDBUF | net::SO_RCVBUF => options.buffer(name == net::SO_SNDBUF),
        net::SO_SNDLOWAT => 1,
        net::SO_RCVLOWAT => options.low_water().load(Ordering::Relaxed),
        net::SO_PRIORITY => options.priority(),
        net::SO_MARK => options.mark().load(Ordering::Relaxed),
        net::SO_PROTOCOL | net::SO_ACCEPTCONN | net::SO_BSDCOMPAT => 0,
        net::SO_LINGER => {
            let (is_on, seconds) = options.linger();
            let words = [u32::from(is_on).to_ne_bytes(), seconds.to_ne_bytes()];
            return Ok(OptionValue::new(words.as_flattened()));
        }
        net::SO_SNDTIMEO_OLD | net::SO_RCVTIMEO_OLD => {
            let limit = &socket.timeouts_ns[usize::from(name == net::SO_SNDTIMEO_OLD)];
            let limit = limit.load(Ordering::Relaxed);
            let words = [limit / NS_PER_SECOND, limit % NS_PER_SECOND / 1000].map(u64::to_ne_bytes);
            return Ok(OptionValue::new(words.as_flattened()));
        }
        // The program of the filter, which nobody asks for.
        net::SO_GET_FILTER => {
            let is_set = socket.state.lock().filter.is_some();
            return if is_set { Err(Errno::EACCES) } else { Ok(OptionValue::new(&[])) };
        }
        _ => OptionFlags::of(name).map(|flag| options.has(flag).into()).ok_or(Errno::ENOPROTOOPT)?,
    };
    Ok(OptionValue::int(number))
}

/// The value of an option of which the program says more: for which version it wants the length of a frame's
/// description.
pub(super) fn get_about(
    socket: &PacketSocket,
    level: u32,
    name: u32,
    given: u32,
) -> Result<OptionValue, Errno> {
    if (level, name) != (net::SOL_PACKET, PACKET_HDRLEN) {
        return get(socket, level, name);
    }
    Version::of(given).ok_or(Errno::EINVAL)?;
    Ok(OptionValue::int(HEADER_BYTES as u32))
}

/// The first `int` of a value.
fn int(value: &[u8]) -> Result<u32, Errno> {
    value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes)).ok_or(Errno::EINVAL)
}

/// Sets an option.
pub(super) fn set(
    socket: &PacketSocket,
    thread: &Thread,
    level: u32,
    name: u32,
    value: &[u8],
) -> Result<(), Errno> {
    match level {
        net::SOL_PACKET => set_for_packets(socket, name, value),
        net::SOL_SOCKET => set_for_socket(socket, thread, name, value),
        _ => Err(Errno::ENOPROTOOPT),
    }
}

fn set_for_packets(socket: &PacketSocket, name: u32, value: &[u8]) -> Result<(), Errno> {
    if matches!(name, PACKET_ADD_MEMBERSHIP | PACKET_DROP_MEMBERSHIP) {
        return change_membership(socket, name == PACKET_ADD_MEMBERSHIP, Membership::parse(value)?);
    }
    if name == PACKET_RX_RING {
        return set_ring(socket, value);
    }
    if matches!(name, PACKET_VERSION | PACKET_RESERVE) {
        let number = int(value)?;
        let mut state = socket.state.lock();
        if state.ring.is_some() {
            return Err(Errno::EBUSY);
        }
        match name {
            PACKET_VERSION => state.ring_options.version = Version::of(number).ok_or(Errno::EINVAL)?,
            _ if number > i32::MAX as u32 => return Err(Errno::EINVAL),
            _ => state.ring_options.reserve = number as usize,
        }
        return Ok(());
    }
    let flag = flag_of(name).ok_or(Errno::ENOPROTOOPT)?;
    let number = int(value)?;
    if name == PACKET_IGNORE_OUTGOING && number > 1 {
        return Err(Errno::EINVAL);
    }
    if number == 0 {
        socket.flags.fetch_and(!flag, Ordering::Relaxed);
    } else {
        socket.flags.fetch_or(flag, Ordering::Relaxed);
    }
    Ok(())
}

/// Has packets go to a ring from now on, or to the queue again.
fn set_ring(socket: &PacketSocket, value: &[u8]) -> Result<(), Errno> {
    let words = value.first_chunk::<16>().ok_or(Errno::EINVAL)?.as_chunks::<4>().0;
    let request = core::array::from_fn(|index| words.get(index).map_or(0, |word| u32::from_ne_bytes(*word)));
    let options = socket.state.lock().ring_options;
    let ring = PacketRing::new(request, options.version, options.reserve)?;
    let mut state = socket.state.lock();
    if ring.is_some() && state.ring.is_some() {
        return Err(Errno::EBUSY);
    }
    let old = core::mem::replace(&mut state.ring, ring);
    let waiting = core::mem::take(&mut state.waiting);
    state.bytes = 0;
    drop(state);
    drop((old, waiting));
    Ok(())
}

fn change_membership(socket: &PacketSocket, joins: bool, wanted: Membership) -> Result<(), Errno> {
    let mut state = socket.state.lock();
    if !joins {
        // One that is not there is no mistake.
        state.memberships.retain(|known| *known != wanted);
        return Ok(());
    }
    drop(state);
    device(&socket.namespace, wanted.interface).ok_or(Errno::ENODEV)?;
    if wanted.length > MAC_BYTES || wanted.kind > MEMBERSHIP_KINDS {
        return Err(Errno::EINVAL);
    }
    state = socket.state.lock();
    if state.memberships.len() >= MEMBERSHIPS_MAX {
        return Err(Errno::ENOBUFS);
    }
    fallible::try_push(&mut state.memberships, wanted)
}

fn set_for_socket(socket: &PacketSocket, thread: &Thread, name: u32, value: &[u8]) -> Result<(), Errno> {
    let options = &socket.options;
    let credentials = thread.credentials();
    let grants = |capability| socket.namespace.grants(&credentials, capability);
    let number = int(value)?;
    match name {
        net::SO_SNDBUF | net::SO_RCVBUF => {
            let settings = &socket.namespace.engine()?.settings;
            let sends = name == net::SO_SNDBUF;
            let most = if sends { &settings.send_buffer_max } else { &settings.receive_buffer_max };
            options.set_buffer(sends, number.min(Settings::get(most)));
        }
        net::SO_SNDBUFFORCE | net::SO_RCVBUFFORCE => {
            if !credentials.is_capable(linux::CAP_NET_ADMIN) {
                return Err(Errno::EPERM);
            }
            options.set_buffer(name == net::SO_SNDBUFFORCE, number);
        }
        net::SO_PRIORITY => {
            let is_ordinary = number <= ORDINARY_PRIORITY_MAX;
            if !is_ordinary && !grants(linux::CAP_NET_ADMIN) {
                return Err(Errno::EPERM);
            }
            options.set_priority(number);
        }
        // Whoever has such a socket may set marks.
        net::SO_MARK => options.mark().store(number, Ordering::Relaxed),
        net::SO_RCVLOWAT => {
            let bytes = if (number as i32) < 0 { i32::MAX as u32 } else { number.max(1) };
            options.low_water().store(bytes, Ordering::Relaxed);
        }
        net::SO_LINGER => {
            let seconds = int(value.get(4..).unwrap_or_default())?;
            options.set_linger((number != 0).then_some(seconds));
        }
        net::SO_RCVTIMEO_OLD | net::SO_SNDTIMEO_OLD => {
            let limit = timeout_ns(value)?;
            let place = &socket.timeouts_ns[usize::from(name == net::SO_SNDTIMEO_OLD)];
            place.store(limit, Ordering::Relaxed);
        }
        net::SO_DETACH_FILTER => replace_filter(socket, None)?,
        net::SO_DEBUG if number != 0 && !credentials.is_capable(linux::CAP_NET_ADMIN) => {
            return Err(Errno::EACCES);
        }
        // The lock stays for ever.
        net::SO_LOCK_FILTER if number == 0 && options.has(OptionFlags::LOCK_FILTER) => {
            return Err(Errno::EPERM);
        }
        net::SO_BSDCOMPAT => {}
        _ => options.set(OptionFlags::of(name).ok_or(Errno::ENOPROTOOPT)?, number != 0),
    }
    Ok(())
}

fn timeout_ns(value: &[u8]) -> Result<u64, Errno> {
    let words = value.first_chunk::<16>().ok_or(Errno::EINVAL)?.as_chunks::<8>().0;
    let [seconds, microseconds] = [words[0], words[1]].map(i64::from_ne_bytes);
    if !(0..1_000_000).contains(&microseconds) {
        return Err(Errno::EDOM);
    }
    Ok(match u64::try_from(seconds) {
        Err(_) => ZERO_TIMEOUT_NS,
        Ok(seconds) => seconds.saturating_mul(NS_PER_SECOND).saturating_add(microseconds as u64 * 1000),
    })
}

/// `SO_ATTACH_FILTER`, with a program as it lies in memory.
pub(super) fn attach(socket: &PacketSocket, program: &[u8]) -> Result<(), Errno> {
    let filter = PacketFilter::new(program).map_err(|refused| match refused {
        PacketProgramError::Invalid => Errno::EINVAL,
        PacketProgramError::OutOfMemory => Errno::ENOMEM,
    })?;
    replace_filter(socket, Some(fallible::try_arc(filter)?))
}

fn replace_filter(socket: &PacketSocket, filter: Option<Arc<PacketFilter>>) -> Result<(), Errno> {
    if socket.options.has(OptionFlags::LOCK_FILTER) {
        return Err(Errno::EPERM);
    }
    let length = |filter: &Option<Arc<PacketFilter>>| filter.as_ref().map_or(0, |filter| filter.len());
    let mut state = socket.state.lock();
    if filter.is_none() && state.filter.is_none() {
        return Err(Errno::ENOENT);
    }
    socket.namespace.packets().count_filter(length(&state.filter), length(&filter))?;
    let old = core::mem::replace(&mut state.filter, filter);
    drop(state);
    drop(old);
    Ok(())
}
