//! TCP.

use super::address::{PeerAddress, encode, family};
use super::send_now;
use crate::buffer::{Buffer, BufferMut, Rest};
use crate::words::{Words, output};
use crate::{calls, heddle};
use heddle_coroutine::io::{Direction, ready};
use std::io;
use std::net::{self, Shutdown, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A socket that takes connections.
#[derive(Debug)]
pub struct TcpListener(net::TcpListener);

impl TcpListener {
    /// Listens at the first of these addresses that can be had.
    ///
    /// # Errors
    /// None can, or a name has no address.
    pub fn bind(addresses: impl ToSocketAddrs) -> io::Result<TcpListener> {
        TcpListener::from_std(net::TcpListener::bind(addresses)?)
    }

    /// Takes over a listener, whose file is put into non-blocking mode.
    ///
    /// # Errors
    /// The mode cannot be changed.
    pub fn from_std(listener: net::TcpListener) -> io::Result<TcpListener> {
        listener.set_nonblocking(true)?;
        Ok(TcpListener(listener))
    }

    /// Waits for a connection; gives it with the peer's address. A future that is dropped takes none: it waits for a
    /// report that there is a connection, and takes that one without waiting.
    ///
    /// # Errors
    /// Those of accept(2), such as a connection that has ended before it was accepted, or too many open files.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let mut peer = Box::new(PeerAddress::default());
        loop {
            match calls::accept_from_sync(&self.0, &mut peer, 0) {
                // Another coroutine, thread or process was faster.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable().await?,
                accepted => return Ok((TcpStream(accepted?.into()), peer.expect()?)),
            }
        }
    }

    async fn readable(&self) -> io::Result<()> {
        if !heddle::is_here() {
            return ready(self.0.as_fd(), Direction::Read).await;
        }
        let listener = calls::PollFd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        calls::poll(vec![listener], -1).await.0.map(drop)
    }

    /// Where it listens.
    ///
    /// # Errors
    /// Those of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// The standard library's listener, for its options.
    #[must_use]
    pub fn get_ref(&self) -> &net::TcpListener {
        &self.0
    }
}

/// A connection.
#[derive(Debug)]
pub struct TcpStream(net::TcpStream);

impl TcpStream {
    /// Connects to the first of these addresses that answers.
    ///
    /// # Errors
    /// None does: the last one's error.
    pub async fn connect(addresses: impl ToSocketAddrs) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::InvalidInput, "a name without an address");
        for address in addresses.to_socket_addrs()? {
            match connect_one(&address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Takes over a connection, whose file is put into blocking mode, in which asynchronous calls wait.
    ///
    /// # Errors
    /// The mode cannot be changed.
    pub fn from_std(stream: net::TcpStream) -> io::Result<TcpStream> {
        stream.set_nonblocking(false)?;
        Ok(TcpStream(stream))
    }

    /// Waits for bytes; their number is 0 at the end of what the peer sends.
    pub async fn read<B: BufferMut>(&self, buffer: B) -> (io::Result<usize>, B) {
        calls::recv(&self.0, buffer, 0).await
    }

    /// Fills the buffer. An end before that is `UnexpectedEof`.
    pub async fn read_exact<B: BufferMut>(&self, buffer: B) -> (io::Result<()>, B) {
        let mut rest = Rest::of(buffer);
        while !rest.bytes().is_empty() {
            let (length, back) = calls::recv(&self.0, rest, 0).await;
            rest = back;
            match length {
                Ok(0) => return (Err(io::ErrorKind::UnexpectedEof.into()), rest.whole),
                Ok(length) => rest.from += length,
                Err(error) => return (Err(error), rest.whole),
            }
        }
        (Ok(()), rest.whole)
    }

    /// Sends some of the bytes. A peer that is gone is an error, never a SIGPIPE.
    pub async fn write<B: Buffer>(&self, buffer: B) -> (io::Result<usize>, B) {
        match send_now(&self.0, buffer.bytes()) {
            Some(result) => (result, buffer),
            None => calls::send(&self.0, buffer, libc::MSG_NOSIGNAL).await,
        }
    }

    /// Sends all of the bytes.
    pub async fn write_all<B: Buffer>(&self, buffer: B) -> (io::Result<()>, B) {
        let mut rest = Rest::of(buffer);
        while !rest.bytes().is_empty() {
            let (length, back) = self.write(rest).await;
            rest = back;
            match length {
                Ok(length) => rest.from += length,
                Err(error) => return (Err(error), rest.whole),
            }
        }
        (Ok(()), rest.whole)
    }

    /// Ends one direction, or both.
    ///
    /// # Errors
    /// Those of shutdown(2).
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.0.shutdown(how)
    }

    /// Whether small pieces are sent at once, although earlier ones are not acknowledged yet.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn set_nodelay(&self, is_on: bool) -> io::Result<()> {
        self.0.set_nodelay(is_on)
    }

    /// This end.
    ///
    /// # Errors
    /// Those of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// The other end.
    ///
    /// # Errors
    /// Those of getpeername(2).
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.0.peer_addr()
    }

    /// The standard library's stream, for its options.
    #[must_use]
    pub fn get_ref(&self) -> &net::TcpStream {
        &self.0
    }
}

async fn connect_one(address: &SocketAddr) -> io::Result<TcpStream> {
    let is_linux = !heddle::is_here();
    let mode = if is_linux { libc::SOCK_NONBLOCK } else { 0 };
    let kind = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC | mode) as u64;
    let socket = Words::new::<OwnedFd>(libc::SYS_socket, [family(address) as u64, kind, 0, 0, 0, 0]);
    let stream = net::TcpStream::from(output::<OwnedFd>(socket.call())?);
    match calls::connect(&stream, encode(address)).await.0 {
        Err(error) if is_linux && error.raw_os_error() == Some(libc::EINPROGRESS) => {
            ready(stream.as_fd(), Direction::Write).await?;
            stream.take_error()?.map_or(Ok(()), Err)?;
        }
        result => result?,
    }
    if is_linux { TcpStream::from_std(stream) } else { Ok(TcpStream(stream)) }
}

impl AsFd for TcpListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for TcpStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<TcpStream> for OwnedFd {
    fn from(stream: TcpStream) -> OwnedFd {
        stream.0.into()
    }
}
