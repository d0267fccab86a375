//! getsockopt(2) and setsockopt(2).

use core::sync::atomic::Ordering;
use linux_raw_sys::net;

use crate::error::{Errno, TryResult};
use crate::net::{BUFFER_BYTES, Socket};
use crate::syscall::fs::{get, put};
use crate::syscall::net::socket::get_socket;
use crate::syscall::{Call, SyscallResult};
use crate::time::NS_PER_SECOND;

/// getsockopt(2).
pub fn getsockopt(call: &mut Call<'_>) -> SyscallResult {
    let (_, socket) = get_socket(call)?;
    if call.uint(1) != net::SOL_SOCKET {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let number = |value: u32| Ok((value.to_ne_bytes(), 4));
    let (mut bytes, mut length) = ([0; 16], 4);
    let small: Result<([u8; 4], usize), Errno> = match call.uint(2) {
        net::SO_TYPE => number(socket.style.number()),
        net::SO_DOMAIN => number(net::AF_UNIX),
        net::SO_PROTOCOL | net::SO_REUSEADDR | net::SO_KEEPALIVE | net::SO_OOBINLINE => number(0),
        net::SO_ERROR => number(socket.inbox().take_error().map_or(0, |error| error.0.into())),
        net::SO_ACCEPTCONN => number(socket.is_listening().into()),
        net::SO_PASSCRED => number(socket.inbox().passes_identity().into()),
        net::SO_BROADCAST => number(socket.broadcast().load(Ordering::Relaxed).into()),
        net::SO_SNDBUF | net::SO_RCVBUF => number(BUFFER_BYTES as u32),
        net::SO_PEERCRED => {
            let identity = socket.peer_identity();
            bytes[..4].copy_from_slice(&identity.pid.to_ne_bytes());
            bytes[4..8].copy_from_slice(&identity.uid.to_ne_bytes());
            bytes[8..12].copy_from_slice(&identity.gid.to_ne_bytes());
            Ok(([0; 4], 12))
        }
        net::SO_LINGER => Ok(([0; 4], 8)),
        option @ (net::SO_SNDTIMEO_OLD | net::SO_RCVTIMEO_OLD) => {
            let timeout = socket.timeout(option == net::SO_SNDTIMEO_OLD).load(Ordering::Relaxed);
            bytes[..8].copy_from_slice(&(timeout / NS_PER_SECOND).to_ne_bytes());
            bytes[8..].copy_from_slice(&(timeout % NS_PER_SECOND / 1000).to_ne_bytes());
            Ok(([0; 4], 16))
        }
        _ => Err(Errno::ENOPROTOOPT),
    };
    let (value, size) = small?;
    if size == length {
        bytes[..4].copy_from_slice(&value);
    }
    let room = i32::from_ne_bytes(get(call, call.word(4))?);
    length = size.min(usize::try_from(room).map_err(|_| Errno::EINVAL)?);
    put(call, call.word(3), &bytes[..length])?;
    put(call, call.word(4), &(length as u32).to_ne_bytes())?;
    Ok(0.into())
}

/// setsockopt(2).
pub fn setsockopt(call: &mut Call<'_>) -> SyscallResult {
    let (_, socket) = get_socket(call)?;
    if call.uint(1) != net::SOL_SOCKET {
        return Err(Errno::EOPNOTSUPP.into());
    }
    if call.int(4) < 4 {
        return Err(Errno::EINVAL.into());
    }
    let value = u32::from_ne_bytes(get(call, call.word(3))?);
    match call.uint(2) {
        net::SO_PASSCRED => socket.inbox().set_passes_identity(value != 0),
        net::SO_BROADCAST => socket.broadcast().store(value != 0, Ordering::Relaxed),
        // Accepted without effect: a local connection has nothing that they would change.
        net::SO_REUSEADDR
        | net::SO_KEEPALIVE
        | net::SO_LINGER
        | net::SO_SNDBUF
        | net::SO_RCVBUF
        | net::SO_SNDBUFFORCE
        | net::SO_RCVBUFFORCE
        | net::SO_PRIORITY
        | net::SO_OOBINLINE => {}
        option @ (net::SO_SNDTIMEO_OLD | net::SO_RCVTIMEO_OLD) => {
            set_timeout(call, &socket, option == net::SO_SNDTIMEO_OLD)?;
        }
        _ => return Err(Errno::ENOPROTOOPT.into()),
    }
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
    let timeout = if seconds as i64 <= 0 && microseconds == 0 {
        0
    } else {
        seconds.saturating_mul(NS_PER_SECOND).saturating_add(microseconds * 1000)
    };
    socket.timeout(send).store(timeout, Ordering::Relaxed);
    Ok(())
}
