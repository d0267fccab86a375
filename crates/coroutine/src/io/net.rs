//! Connecting and accepting.
#![allow(unsafe_code)] // The standard library connects by blocking, so the calls are made here.

use super::Async;
use core::mem;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};

impl Async<TcpStream> {
    /// Connects to `address`.
    ///
    /// # Errors
    /// The error of connecting.
    pub async fn connect(address: SocketAddr) -> io::Result<Async<TcpStream>> {
        let stream = Async::new(TcpStream::from(socket(&address)?))?;
        begin_connect(&stream, &address)?;
        // Writable: connected, or failed.
        super::ready(stream.get_ref().as_fd(), super::Direction::Write).await?;
        match stream.get_ref().take_error()? {
            None => Ok(stream),
            Some(error) => Err(error),
        }
    }
}

impl Async<TcpListener> {
    /// Listens at `address`.
    ///
    /// # Errors
    /// The error of binding.
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Async<TcpListener>> {
        Async::new(TcpListener::bind(address)?)
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// The error of accepting.
    pub async fn accept(&self) -> io::Result<(Async<TcpStream>, SocketAddr)> {
        let (stream, address) = self.read_with(TcpListener::accept).await?;
        Ok((Async::new(stream)?, address))
    }
}

impl Async<UnixListener> {
    /// Waits for a connection.
    ///
    /// # Errors
    /// The error of accepting.
    pub async fn accept(&self) -> io::Result<(Async<UnixStream>, UnixAddr)> {
        let (stream, address) = self.read_with(UnixListener::accept).await?;
        Ok((Async::new(stream)?, address))
    }
}

impl Async<UdpSocket> {
    /// A socket at `address`.
    ///
    /// # Errors
    /// The error of binding.
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Async<UdpSocket>> {
        Async::new(UdpSocket::bind(address)?)
    }

    /// Sends a datagram to `address`.
    ///
    /// # Errors
    /// The error of sending.
    pub async fn send_to(&self, bytes: &[u8], address: SocketAddr) -> io::Result<usize> {
        self.write_with(|socket| socket.send_to(bytes, address)).await
    }

    /// Waits for a datagram.
    ///
    /// # Errors
    /// The error of receiving.
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.read_with(|socket| socket.recv_from(buffer)).await
    }
}

/// A TCP socket of the address's family, in non-blocking mode.
fn socket(address: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: makes a descriptor.
    let fd = unsafe { libc::socket(family, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: made above, and known here alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn begin_connect(stream: &Async<TcpStream>, address: &SocketAddr) -> io::Result<()> {
    let fd = stream.get_ref().as_raw_fd();
    let result = match address {
        SocketAddr::V4(address) => {
            // SAFETY: an address of zeros is one.
            let mut raw: libc::sockaddr_in = unsafe { mem::zeroed() };
            raw.sin_family = libc::AF_INET as libc::sa_family_t;
            raw.sin_port = address.port().to_be();
            raw.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
            // SAFETY: an address of this size, which lives for the call.
            unsafe { libc::connect(fd, (&raw const raw).cast(), size_of_val(&raw) as libc::socklen_t) }
        }
        SocketAddr::V6(address) => {
            // SAFETY: as above.
            let mut raw: libc::sockaddr_in6 = unsafe { mem::zeroed() };
            raw.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            raw.sin6_port = address.port().to_be();
            raw.sin6_addr.s6_addr = address.ip().octets();
            raw.sin6_flowinfo = address.flowinfo();
            raw.sin6_scope_id = address.scope_id();
            // SAFETY: as above.
            unsafe { libc::connect(fd, (&raw const raw).cast(), size_of_val(&raw) as libc::socklen_t) }
        }
    };
    if result == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        // An interrupted one goes on too.
        error if matches!(error.raw_os_error(), Some(libc::EINPROGRESS | libc::EINTR)) => Ok(()),
        error => Err(error),
    }
}
