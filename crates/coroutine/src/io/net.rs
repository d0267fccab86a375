//! Connecting and accepting.

use super::Async;
use crate::os;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
#[cfg(unix)]
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};

impl Async<TcpStream> {
    /// Connects to `address`.
    ///
    /// # Errors
    /// The error of connecting.
    pub async fn connect(address: SocketAddr) -> io::Result<Async<TcpStream>> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        let stream = Async::new(TcpStream::from(socket))?;
        match SockRef::from(stream.get_ref()).connect(&address.into()) {
            Err(error) if !goes_on(&error) => return Err(error),
            _ => {}
        }
        // Writable: connected, or failed.
        super::ready(os::borrow(stream.get_ref()), super::Direction::Write).await?;
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

#[cfg(unix)]
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

/// Whether connecting goes on after this error, as an interrupted call does too.
fn goes_on(error: &io::Error) -> bool {
    #[cfg(unix)]
    return matches!(error.raw_os_error(), Some(libc::EINPROGRESS | libc::EINTR));
    #[cfg(not(unix))]
    return error.kind() == io::ErrorKind::WouldBlock;
}
