//! getsockopt(2) and setsockopt(2).

use core::sync::atomic::Ordering;
use linux_raw_sys::{general as linux, net};

use heddle_kernel_core::packet_filter::{INSTRUCTION_BYTES, LENGTH_MAX};

use crate::error::{Errno, TryResult};
use crate::net::protocol::ProtocolSocket;
use crate::net::{BUFFER_BYTES, OptionFlags, Socket};
use crate::syscall::fs::{get, get_bytes, put};
use crate::syscall::net::socket::{get_protocol, get_socket};
use crate::syscall::{Call, SyscallResult};
use crate::time::NS_PER_SECOND;

/// The highest `SO_PRIORITY` that needs no capability.
const ORDINARY_PRIORITY_MAX: u32 = 6;
/// The time limit that a negative one stands for: no wait. It is told as 0.
const ZERO_TIMEOUT_NS: u64 = 1;

/// The bytes of an option's value that any option looks at.
const OPTION_BYTES: usize = 256;

/// The bytes of an option's value, and how many there are.
fn value_of(call: &Call<'_>, socket: &Socket, option: u32) -> Result<([u8; 16], usize), Errno> {
    let mut bytes = [0; 16];
    let number = match option {
        net::SO_TYPE => socket.style.number(),
        net::SO_DOMAIN => net::AF_UNIX,
        net::SO_PROTOCOL => 0,
        net::SO_ERROR => socket.inbox().error().map_or(0, |error| error.0.into()),
        net::SO_ACCEPTCONN => socket.is_listening().into(),
        net::SO_PASSCRED => socket.inbox().passes_identity().into(),
        net::SO_PRIORITY => socket.options().priority(),
        net::SO_SNDBUF | net::SO_RCVBUF => socket.options().buffer(option == net::SO_SNDBUF),
        net::SO_SNDLOWAT => 1,
        net::SO_RCVLOWAT => socket.options().low_water().load(Ordering::Relaxed),
        net::SO_MARK => socket.options().mark().load(Ordering::Relaxed),
        net::SO_PEEK_OFF => socket.inbox().peek_offset() as u32,
        net::SO_NETNS_COOKIE => {
            bytes[..8].copy_from_slice(&socket.namespace.number().to_ne_bytes());
            return Ok((bytes, 8));
        }
        // Nothing has been set that these would tell.
        net::SO_BSDCOMPAT => 0,
        net::SO_PEERCRED => {
            let identity = socket.peer_identity().seen_by(call.thread);
            bytes[..4].copy_from_slice(&identity.pid.to_ne_bytes());
            bytes[4..8].copy_from_slice(&identity.uid.to_ne_bytes());
            bytes[8..12].copy_from_slice(&identity.gid.to_ne_bytes());
            return Ok((bytes, 12));
        }
        net::SO_LINGER => {
            let (is_on, seconds) = socket.options().linger();
            bytes[..4].copy_from_slice(&u32::from(is_on).to_ne_bytes());
            bytes[4..8].copy_from_slice(&seconds.to_ne_bytes());
            return Ok((bytes, 8));
        }
        net::SO_SNDTIMEO_OLD | net::SO_RCVTIMEO_OLD => {
            let timeout = socket.timeout(option == net::SO_SNDTIMEO_OLD).load(Ordering::Relaxed);
            bytes[..8].copy_from_slice(&(timeout / NS_PER_SECOND).to_ne_bytes());
            bytes[8..].copy_from_slice(&(timeout % NS_PER_SECOND / 1000).to_ne_bytes());
            return Ok((bytes, 16));
        }
        _ => {
            OptionFlags::of(option).map(|flag| socket.options().has(flag).into()).ok_or(Errno::ENOPROTOOPT)?
        }
    };
    bytes[..4].copy_from_slice(&number.to_ne_bytes());
    Ok((bytes, 4))
}

/// getsockopt(2).
pub fn getsockopt(call: &mut Call<'_>) -> SyscallResult {
    if let Some((_, socket)) = get_protocol(call)? {
        let room = i32::from_ne_bytes(get(call, call.word(4))?);
        let room = usize::try_from(room).map_err(|_| Errno::EINVAL)?;
        // Packet sockets look at what is in the place of the value.
        let has_more = call.uint(1) == net::SOL_PACKET && room >= size_of::<u32>();
        let given = if has_more { u32::from_ne_bytes(get(call, call.word(3))?) } else { 0 };
        let value = socket.option_about(call.uint(1), call.uint(2), given)?;
        let bytes = value.as_slice();
        // Small numbers of IP fit into a byte where there is no room for an `int`.
        let is_byte = call.uint(1) == net::SOL_IP
            && call.uint(2) != net::IP_MULTICAST_IF
            && (1..size_of::<u32>()).contains(&room)
            && bytes.first_chunk().is_some_and(|word| u32::from_ne_bytes(*word) <= u8::MAX.into());
        let bytes = &bytes[..bytes.len().min(if is_byte { 1 } else { room })];
        put(call, call.word(3), bytes)?;
        put(call, call.word(4), &(bytes.len() as u32).to_ne_bytes())?;
        return Ok(0.into());
    }
    let (_, socket) = get_socket(call)?;
    if call.uint(1) != net::SOL_SOCKET {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let room = i32::from_ne_bytes(get(call, call.word(4))?);
    let room = usize::try_from(room).map_err(|_| Errno::EINVAL)?;
    let (bytes, length) = value_of(call, &socket, call.uint(2))?;
    let length = length.min(room);
    put(call, call.word(3), &bytes[..length])?;
    put(call, call.word(4), &(length as u32).to_ne_bytes())?;
    if call.uint(2) == net::SO_ERROR {
        // Only now: a call that misses a page starts again.
        socket.inbox().error_was_reported();
    }
    Ok(0.into())
}

/// setsockopt(2).
pub fn setsockopt(call: &mut Call<'_>) -> SyscallResult {
    if let Some((_, socket)) = get_protocol(call)? {
        let length = usize::try_from(call.int(4)).map_err(|_| Errno::EINVAL)?;
        if (call.uint(1), call.uint(2)) == (net::SOL_SOCKET, net::SO_ATTACH_FILTER) {
            return attach_filter(call, &*socket, length);
        }
        let mut bytes = [0; OPTION_BYTES];
        let bytes = &mut bytes[..length.min(OPTION_BYTES)];
        call.thread.space().read_bytes(call.word(3), bytes)?;
        socket.set_option(call.thread, call.uint(1), call.uint(2), bytes)?;
        return Ok(0.into());
    }
    let (_, socket) = get_socket(call)?;
    let option = call.uint(2);
    if call.int(4) < 0 {
        return Err(Errno::EINVAL.into());
    }
    if call.uint(1) != net::SOL_SOCKET {
        return Err(Errno::EOPNOTSUPP.into());
    }
    if call.int(4) < 4 {
        return Err(Errno::EINVAL.into());
    }
    let value = u32::from_ne_bytes(get(call, call.word(3))?);
    let credentials = call.thread.credentials();
    let may_administer = credentials.is_capable(linux::CAP_NET_ADMIN);
    let grants = |capability| socket.namespace.grants(&credentials, capability);
    let may_mark = || grants(linux::CAP_NET_ADMIN) || grants(linux::CAP_NET_RAW);
    match option {
        net::SO_PASSCRED => socket.inbox().set_passes_identity(value != 0),
        net::SO_SNDBUF | net::SO_RCVBUF => {
            socket.options().set_buffer(option == net::SO_SNDBUF, value.min(BUFFER_BYTES as u32));
        }
        net::SO_SNDBUFFORCE | net::SO_RCVBUFFORCE if !may_administer => return Err(Errno::EPERM.into()),
        net::SO_SNDBUFFORCE | net::SO_RCVBUFFORCE => {
            let asked = if value as i32 >= 0 { value } else { 0 };
            socket.options().set_buffer(option == net::SO_SNDBUFFORCE, asked);
        }
        net::SO_PRIORITY => {
            let is_ordinary = value <= ORDINARY_PRIORITY_MAX;
            if !is_ordinary && !may_mark() {
                return Err(Errno::EPERM.into());
            }
            socket.options().set_priority(value);
        }
        net::SO_MARK if !may_mark() => {
            return Err(Errno::EPERM.into());
        }
        net::SO_MARK => socket.options().mark().store(value, Ordering::Relaxed),
        net::SO_DEBUG if value != 0 && !may_administer => return Err(Errno::EACCES.into()),
        net::SO_PEEK_OFF => socket.inbox().set_peek_offset(value as i32),
        net::SO_RCVLOWAT => {
            let bytes = if (value as i32) < 0 { i32::MAX as u32 } else { value.max(1) };
            socket.options().low_water().store(bytes, Ordering::Relaxed);
        }
        net::SO_BSDCOMPAT => {}
        net::SO_LINGER => {
            if call.int(4) < 8 {
                return Err(Errno::EINVAL.into());
            }
            let seconds = u32::from_ne_bytes(get(call, call.word(3).wrapping_add(4))?);
            socket.options().set_linger((value != 0).then_some(seconds));
        }
        net::SO_SNDTIMEO_OLD | net::SO_RCVTIMEO_OLD => {
            set_timeout(call, &socket, option == net::SO_SNDTIMEO_OLD)?;
        }
        // Only addresses of the Internet have ports.
        net::SO_REUSEPORT if value != 0 => return Err(Errno::EOPNOTSUPP.into()),
        _ => socket.options().set(OptionFlags::of(option).ok_or(Errno::ENOPROTOOPT)?, value != 0),
    }
    Ok(0.into())
}

/// `SO_ATTACH_FILTER`, whose value is a `struct sock_fprog`: a length, and where the instructions are.
fn attach_filter(call: &Call<'_>, socket: &dyn ProtocolSocket, length: usize) -> SyscallResult {
    const HEADER_BYTES: usize = 16;
    if length != HEADER_BYTES {
        return Err(Errno::EINVAL.into());
    }
    let header: [u8; HEADER_BYTES] = get(call, call.word(3))?;
    let [low, high, _, _, _, _, _, _, pointer @ ..] = header;
    let count = usize::from(u16::from_ne_bytes([low, high]));
    if count == 0 || count > LENGTH_MAX {
        return Err(Errno::EINVAL.into());
    }
    let program = get_bytes(call, usize::from_ne_bytes(pointer), count * INSTRUCTION_BYTES)?;
    socket.set_filter(&program)?;
    Ok(0.into())
}

fn set_timeout(call: &Call<'_>, socket: &Socket, send: bool) -> TryResult<()> {
    if call.int(4) < 16 {
        return Err(Errno::EINVAL.into());
    }
    let seconds = u64::from_ne_bytes(get(call, call.word(3))?);
    let microseconds = u64::from_ne_bytes(get(call, call.word(3).wrapping_add(8))?);
    if microseconds >= 1_000_000 {
        return Err(Errno::EDOM.into());
    }
    let timeout = if (seconds as i64) < 0 {
        ZERO_TIMEOUT_NS
    } else if seconds == 0 && microseconds == 0 {
        0
    } else {
        seconds.saturating_mul(NS_PER_SECOND).saturating_add(microseconds * 1000)
    };
    socket.timeout(send).store(timeout, Ordering::Relaxed);
    Ok(())
}
