//! Internet sockets over the loopback.
#![allow(unsafe_code, reason = "the calls are made as C makes them")]

pub mod again;
pub mod counts;
pub mod datagram;
pub mod interfaces;
pub mod large;
pub mod options;
pub mod readiness;
pub mod settings;
pub mod stream;
pub mod waits;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, SocketAddrV6, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;

use crate::harness::OrFail;

/// A listener on a port of its own, and where it is.
fn listener() -> Result<(TcpListener, SocketAddr), String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    let address = listener.local_addr().or_fail()?;
    Ok((listener, address))
}

/// Two ends of a connection: who connected, and who was accepted.
fn connection() -> Result<(TcpStream, TcpStream), String> {
    let (listener, address) = listener()?;
    let client = TcpStream::connect(address).or_fail()?;
    let (server, _) = listener.accept().or_fail()?;
    Ok((client, server))
}

/// A socket as `socket` makes it.
fn raw_socket(family: i32, kind: i32) -> Result<OwnedFd, String> {
    // SAFETY: the call takes no pointers.
    let number = Errno::result(unsafe { libc::socket(family, kind, 0) }).or_fail()?;
    // SAFETY: nobody else has the descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// An address as the calls take it.
fn raw_address(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: zeroes are a valid address of no family.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let pointer = (&raw mut storage).cast::<u8>();
    let copy = |from: *const u8, length: usize| {
        // SAFETY: the storage is longer than any address.
        unsafe { std::ptr::copy_nonoverlapping(from, pointer, length) };
        length as libc::socklen_t
    };
    let length = match address {
        SocketAddr::V4(v4) => {
            let raw = raw_v4(v4);
            copy((&raw const raw).cast(), size_of_val(&raw))
        }
        SocketAddr::V6(v6) => {
            let raw = raw_v6(v6);
            copy((&raw const raw).cast(), size_of_val(&raw))
        }
    };
    (storage, length)
}

fn raw_v4(address: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
        sin_zero: [0; 8],
    }
}

fn raw_v6(address: SocketAddrV6) -> libc::sockaddr_in6 {
    libc::sockaddr_in6 {
        sin6_family: libc::AF_INET6 as u16,
        sin6_port: address.port().to_be(),
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
        sin6_scope_id: 0,
    }
}

/// bind(2).
fn bind(socket: &impl AsRawFd, address: SocketAddr) -> nix::Result<()> {
    let (raw, length) = raw_address(address);
    // SAFETY: the address lives through the call.
    Errno::result(unsafe { libc::bind(socket.as_raw_fd(), (&raw const raw).cast(), length) }).map(drop)
}

/// connect(2).
fn connect(socket: &impl AsRawFd, address: SocketAddr) -> nix::Result<()> {
    let (raw, length) = raw_address(address);
    // SAFETY: the address lives through the call.
    Errno::result(unsafe { libc::connect(socket.as_raw_fd(), (&raw const raw).cast(), length) }).map(drop)
}

/// setsockopt(2) with an `int`.
fn set(socket: &impl AsRawFd, level: i32, option: i32, value: i32) -> nix::Result<()> {
    let pointer = (&raw const value).cast();
    // SAFETY: the value lives through the call.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, pointer, 4) };
    Errno::result(result).map(drop)
}

/// getsockopt(2) of an `int`.
fn get(socket: &impl AsRawFd, level: i32, option: i32) -> nix::Result<i32> {
    let (mut value, mut length) = (0_i32, 4);
    let pointer = (&raw mut value).cast();
    // SAFETY: value and length live through the call.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, pointer, &raw mut length) };
    Errno::result(result).map(|_| value)
}

/// The events for which poll(2) finds a socket ready, within 100 ms if it was `wanted`.
fn ready(socket: &impl AsRawFd, wanted: i16) -> i16 {
    let mut entry = libc::pollfd { fd: socket.as_raw_fd(), events: wanted, revents: 0 };
    // SAFETY: the entry lives through the call.
    unsafe { libc::poll(&raw mut entry, 1, if wanted == 0 { 0 } else { 100 }) };
    entry.revents
}

/// recv(2) with flags.
fn receive(socket: &impl AsRawFd, buffer: &mut [u8], flags: i32) -> nix::Result<usize> {
    // SAFETY: the buffer lives through the call.
    let count = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), flags) };
    Errno::result(count).map(|count| count as usize)
}

/// send(2) with flags.
fn send(socket: &impl AsRawFd, bytes: &[u8], flags: i32) -> nix::Result<usize> {
    // SAFETY: the bytes live through the call.
    let count = unsafe {
        libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags | libc::MSG_NOSIGNAL)
    };
    Errno::result(count).map(|count| count as usize)
}
