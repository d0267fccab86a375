//! The way of DHCP's messages: a UDP socket, and frames from a host that has no address yet.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use core::sync::atomic::Ordering;

use crate::address::Endpoint;
use crate::engine::Engine;
use crate::error::{InetError, InetResult, MoveError};
use crate::ip::{ETHERNET_BYTES, IpHeader, V4_BYTES, fold, protocol, sum};
use crate::platform::Platform;
use crate::udp::{HEADER_BYTES, SendOptions, UdpSocket};

/// The default time to live.
const TTL: u8 = 64;

/// A client's port.
pub struct DhcpPort<P: Platform> {
    engine: Arc<Engine<P>>,
    socket: Arc<UdpSocket<P>>,
    /// The ports of the client and of servers.
    ports: [u16; 2],
}

impl<P: Platform> DhcpPort<P> {
    /// Opens the client's port of these, to talk to the servers' at the other.
    ///
    /// # Errors
    /// [`InetError::NoMemory`], [`InetError::AddressInUse`].
    pub fn open(engine: &Arc<Engine<P>>, ports: [u16; 2]) -> InetResult<Self> {
        let socket = UdpSocket::new(engine, false, 0)?;
        socket.options.broadcast.store(1, Ordering::Relaxed);
        socket.bind(Endpoint { address: Ipv4Addr::UNSPECIFIED.into(), port: ports[0] })?;
        Ok(Self { engine: engine.clone(), socket, ports })
    }

    /// The socket on which messages come.
    #[must_use]
    pub const fn socket(&self) -> &Arc<UdpSocket<P>> {
        &self.socket
    }

    /// Sends a message, without `from` as a host without an address does.
    ///
    /// # Errors
    /// [`InetError::NetworkUnreachable`], [`InetError::NoBuffers`], [`InetError::NoMemory`].
    pub fn send(&self, from: Option<Ipv4Addr>, to: Ipv4Addr, bytes: &[u8]) -> InetResult<()> {
        let Some(from) = from else { return self.send_without_address(to, bytes) };
        let target = Endpoint { address: to.into(), port: self.ports[1] };
        let how = SendOptions { target: Some(target), source: Some(from.into()), ..SendOptions::default() };
        let sent = self.socket.send(bytes.len(), &how, |place| {
            place.copy_from_slice(bytes);
            Ok::<_, InetError>(bytes.len())
        });
        match sent {
            Ok(_) => Ok(()),
            Err(MoveError::Inet(error) | MoveError::Copy(error)) => Err(error),
        }
    }

    /// Sends a message from 0.0.0.0, which no socket can: RFC 1122, 3.2.1.3.
    fn send_without_address(&self, to: Ipv4Addr, bytes: &[u8]) -> InetResult<()> {
        let header = IpHeader {
            source: Ipv4Addr::UNSPECIFIED.into(),
            destination: to.into(),
            protocol: protocol::UDP,
            ttl: TTL,
            tos: 0,
        };
        let start = ETHERNET_BYTES + V4_BYTES;
        let mut frame = Vec::new();
        frame.try_reserve_exact(start + HEADER_BYTES + bytes.len()).map_err(|_| InetError::NoMemory)?;
        frame.resize(start + HEADER_BYTES, 0);
        frame.extend_from_slice(bytes);
        let datagram = &mut frame[start..];
        let length = u16::try_from(datagram.len()).map_err(|_| InetError::MessageTooLong)?;
        datagram[..2].copy_from_slice(&self.ports[0].to_be_bytes());
        datagram[2..4].copy_from_slice(&self.ports[1].to_be_bytes());
        datagram[4..6].copy_from_slice(&length.to_be_bytes());
        // Not left to the device: servers that read frames of the link see them as they are sent.
        let checksum = match !fold(sum(datagram, header.pseudo_sum(datagram.len()))) {
            0 => 0xffff,
            checksum => checksum,
        };
        datagram[6..8].copy_from_slice(&checksum.to_be_bytes());
        self.engine.counters.udp(false).sent.count();
        self.engine.send_packet(&header, &mut frame, None)
    }

    /// Asks the link who has an address.
    pub fn probe(&self, address: Ipv4Addr) {
        if let Some(interface) = self.engine.interface() {
            interface.probe(address);
        }
    }

    /// Whether somebody has the address that is asked about.
    #[must_use]
    pub fn is_taken(&self, address: Option<Ipv4Addr>) -> bool {
        self.engine.interface().is_some_and(|interface| interface.is_taken(address))
    }

    /// Tells the link of a new address.
    pub fn announce(&self, address: Ipv4Addr) {
        if let Some(interface) = self.engine.interface() {
            interface.announce(address);
        }
    }

    /// Whether something waits to be sent until a neighbour has answered.
    #[must_use]
    pub fn is_sending(&self) -> bool {
        self.engine.interface().is_some_and(crate::interface::Interface::has_waiting)
    }

    /// Takes the next message, and gives it to `take` if a server has sent it. `false`: there is none.
    pub fn receive(&self, take: impl FnOnce(&[u8])) -> bool {
        let received = self.socket.receive(false, true, |datagram| {
            let is_servers = datagram.source.port == self.ports[1] && datagram.source.address.is_ipv4();
            if is_servers {
                take(datagram.payload());
            }
            Ok::<_, InetError>(())
        });
        // An error that the network has reported is told once, before the next message.
        !matches!(received, Ok(None) | Err(MoveError::Inet(InetError::WouldBlock)))
    }
}

impl<P: Platform> Drop for DhcpPort<P> {
    fn drop(&mut self) {
        self.socket.close();
    }
}
