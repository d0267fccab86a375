//! UDP.

use super::address::{PeerAddress, encode};
use super::send_now;
use crate::buffer::{Buffer, BufferMut};
use crate::calls;
use std::io;
use std::net::{self, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};

/// A socket for datagrams.
#[derive(Debug)]
pub struct UdpSocket(net::UdpSocket);

impl UdpSocket {
    /// Receives at the first of these addresses that can be had.
    ///
    /// # Errors
    /// None can, or a name has no address.
    pub fn bind(addresses: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        Ok(UdpSocket(net::UdpSocket::bind(addresses)?))
    }

    /// Takes over a socket, whose file is put into blocking mode, in which asynchronous calls wait.
    ///
    /// # Errors
    /// The mode cannot be changed.
    pub fn from_std(socket: net::UdpSocket) -> io::Result<UdpSocket> {
        socket.set_nonblocking(false)?;
        Ok(UdpSocket(socket))
    }

    /// Sets the peer of [`UdpSocket::send`], from which alone datagrams are received then. Nothing is sent.
    ///
    /// # Errors
    /// Those of connect(2).
    pub fn connect(&self, addresses: impl ToSocketAddrs) -> io::Result<()> {
        self.0.connect(addresses)
    }

    /// Sends a datagram to the peer.
    pub async fn send<B: Buffer>(&self, buffer: B) -> (io::Result<usize>, B) {
        match send_now(&self.0, buffer.bytes()) {
            Some(result) => (result, buffer),
            None => calls::send(&self.0, buffer, libc::MSG_NOSIGNAL).await,
        }
    }

    /// Waits for a datagram. Bytes that the buffer has no room for are lost.
    pub async fn recv<B: BufferMut>(&self, buffer: B) -> (io::Result<usize>, B) {
        calls::recv(&self.0, buffer, 0).await
    }

    /// Sends a datagram to this address.
    pub async fn send_to<B: Buffer>(&self, buffer: B, address: SocketAddr) -> (io::Result<usize>, B) {
        let (result, buffer, _) = calls::send_to(&self.0, buffer, libc::MSG_NOSIGNAL, encode(&address)).await;
        (result, buffer)
    }

    /// Waits for a datagram, and says where it came from.
    pub async fn recv_from<B: BufferMut>(&self, buffer: B) -> (io::Result<(usize, SocketAddr)>, B) {
        let peer = Box::new(PeerAddress::default());
        let (result, buffer, peer) = calls::recv_from(&self.0, buffer, 0, peer).await;
        (result.and_then(|length| Ok((length, peer.expect()?))), buffer)
    }

    /// Where it receives.
    ///
    /// # Errors
    /// Those of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// The standard library's socket, for its options: broadcast, multicast, time to live.
    #[must_use]
    pub fn get_ref(&self) -> &net::UdpSocket {
        &self.0
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
