//! Options of internet sockets.

use std::os::fd::AsRawFd;

use nix::errno::Errno;

use super::{connection, get, raw_socket, set};
use crate::harness::Outcome;
use crate::{expect, expect_eq};

crate::tests! {
    defaults
    values_are_kept
    wrong_values
    wrong_levels
    buffers_are_doubled
    information_of_a_connection
    the_algorithm_has_a_name
    kinds_of_sockets
}

fn defaults() -> Outcome {
    let socket = raw_socket(libc::AF_INET6, libc::SOCK_STREAM)?;
    for (level, option, value) in [
        (libc::SOL_SOCKET, libc::SO_TYPE, libc::SOCK_STREAM),
        (libc::SOL_SOCKET, libc::SO_DOMAIN, libc::AF_INET6),
        (libc::SOL_SOCKET, libc::SO_PROTOCOL, libc::IPPROTO_TCP),
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN, 0),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 0),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY, 0),
        (libc::IPPROTO_TCP, libc::TCP_CORK, 0),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 7200),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 75),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 9),
        (libc::IPPROTO_TCP, libc::TCP_SYNCNT, 6),
        (libc::IPPROTO_TCP, libc::TCP_LINGER2, 60),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 0),
        (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 0),
        (libc::IPPROTO_IP, libc::IP_TTL, 64),
        (libc::IPPROTO_IP, libc::IP_TOS, 0),
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0),
        (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, 64),
    ] {
        expect_eq!((level, option, get(&socket, level, option)), (level, option, Ok(value)));
    }
    Ok(())
}

fn values_are_kept() -> Outcome {
    let socket = raw_socket(libc::AF_INET6, libc::SOCK_STREAM)?;
    for (level, option, value) in [
        (libc::SOL_SOCKET, libc::SO_REUSEADDR, 1),
        (libc::SOL_SOCKET, libc::SO_REUSEPORT, 1),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE, 1),
        (libc::SOL_SOCKET, libc::SO_PRIORITY, 5),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1),
        (libc::IPPROTO_TCP, libc::TCP_CORK, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 10),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 3),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 4),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 5000),
        (libc::IPPROTO_IP, libc::IP_TTL, 7),
        (libc::IPPROTO_IP, libc::IP_TOS, 0x10),
        (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, 9),
        (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1),
    ] {
        expect_eq!((level, option, set(&socket, level, option, value)), (level, option, Ok(())));
        expect_eq!((level, option, get(&socket, level, option)), (level, option, Ok(value)));
    }
    Ok(())
}

fn wrong_values() -> Outcome {
    let socket = raw_socket(libc::AF_INET, libc::SOCK_STREAM)?;
    for (level, option, value) in [
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 0),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 128),
        (libc::IPPROTO_TCP, libc::TCP_SYNCNT, 0),
        (libc::IPPROTO_IP, libc::IP_TTL, 0),
        (libc::IPPROTO_IP, libc::IP_TTL, 256),
    ] {
        expect_eq!((option, set(&socket, level, option, value)), (option, Err(Errno::EINVAL)));
    }
    Ok(())
}

fn wrong_levels() -> Outcome {
    let stream = raw_socket(libc::AF_INET, libc::SOCK_STREAM)?;
    expect_eq!(get(&stream, libc::SOL_SOCKET, 999), Err(Errno::ENOPROTOOPT));
    expect_eq!(get(&stream, libc::IPPROTO_TCP, 999), Err(Errno::ENOPROTOOPT));
    expect_eq!(set(&stream, libc::IPPROTO_TCP, 999, 0), Err(Errno::ENOPROTOOPT));
    expect_eq!(set(&stream, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1), Err(Errno::ENOPROTOOPT));
    let datagrams = raw_socket(libc::AF_INET, libc::SOCK_DGRAM)?;
    expect!(set(&datagrams, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).is_err());
    Ok(())
}

fn buffers_are_doubled() -> Outcome {
    let socket = raw_socket(libc::AF_INET, libc::SOCK_DGRAM)?;
    for option in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
        expect_eq!(get(&socket, libc::SOL_SOCKET, option), Ok(212_992));
        expect_eq!(set(&socket, libc::SOL_SOCKET, option, 20_000), Ok(()));
        expect_eq!(get(&socket, libc::SOL_SOCKET, option), Ok(40_000));
        expect_eq!(set(&socket, libc::SOL_SOCKET, option, 0), Ok(()));
    }
    expect_eq!(get(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF), Ok(4608));
    expect_eq!(get(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF), Ok(2304));
    Ok(())
}

fn information_of_a_connection() -> Outcome {
    let (client, _server) = connection()?;
    let mut bytes = [0_u8; 104];
    let mut length = 104;
    let pointer = bytes.as_mut_ptr().cast();
    // SAFETY: the bytes live through the call.
    let result = unsafe {
        libc::getsockopt(client.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, pointer, &raw mut length)
    };
    expect_eq!(result, 0);
    expect_eq!(length, 104);
    // Established.
    expect_eq!(bytes[0], 1);
    Ok(())
}

fn the_algorithm_has_a_name() -> Outcome {
    let socket = raw_socket(libc::AF_INET, libc::SOCK_STREAM)?;
    let mut bytes = [0_u8; 16];
    let mut length = 16;
    let pointer = bytes.as_mut_ptr().cast();
    // SAFETY: the bytes live through the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            pointer,
            &raw mut length,
        )
    };
    expect_eq!(result, 0);
    expect_eq!(&bytes[..6], b"cubic\0");
    let set = |name: &[u8]| {
        let pointer = name.as_ptr().cast();
        let length = name.len() as libc::socklen_t;
        // SAFETY: the bytes live through the call.
        Errno::result(unsafe {
            libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_CONGESTION, pointer, length)
        })
    };
    expect_eq!(set(b"nothing like it"), Err(Errno::ENOENT));
    expect_eq!(set(b"reno"), Ok(0));
    let pointer = bytes.as_mut_ptr().cast();
    length = 16;
    // SAFETY: the bytes live through the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            pointer,
            &raw mut length,
        )
    };
    expect_eq!(result, 0);
    expect_eq!(&bytes[..5], b"reno\0");
    Ok(())
}

fn kinds_of_sockets() -> Outcome {
    let make = |family, kind, protocol| {
        // SAFETY: the call takes no pointers.
        let number = Errno::result(unsafe { libc::socket(family, kind, protocol) })?;
        // SAFETY: the descriptor was just made.
        Errno::result(unsafe { libc::close(number) })
    };
    expect_eq!(make(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_TCP), Ok(0));
    expect_eq!(make(libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_UDP), Ok(0));
    expect_eq!(make(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_UDP), Err(Errno::EPROTONOSUPPORT));
    expect_eq!(make(libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_TCP), Err(Errno::EPROTONOSUPPORT));
    expect_eq!(make(libc::AF_INET, libc::SOCK_RAW, 0), Err(Errno::EPROTONOSUPPORT));
    expect_eq!(make(libc::AF_INET, libc::SOCK_RDM, 0), Err(Errno::ESOCKTNOSUPPORT));
    Ok(())
}
