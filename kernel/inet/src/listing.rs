//! Lists of all sockets, for `/proc/net`.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::engine::{Engine, Entry};
use crate::platform::{OutOfMemory, Platform};
use crate::tcp::{Listing, TcpSocket, TcpState};
use crate::udp::UdpSocket;

impl<P: Platform> Engine<P> {
    /// Every TCP socket that is bound or connected.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn tcp_sockets(&self) -> Result<Vec<Listing>, OutOfMemory> {
        let mut sockets: Vec<Arc<TcpSocket<P>>> = Vec::new();
        let mut ended = Vec::new();
        {
            let connections = self.connections.lock();
            sockets.try_reserve(connections.len()).map_err(|_| OutOfMemory)?;
            ended.try_reserve(connections.len()).map_err(|_| OutOfMemory)?;
            for (tuple, entry) in connections.iter() {
                match entry {
                    Entry::Local(socket) => sockets.extend(socket.upgrade()),
                    Entry::Wire(socket) => sockets.push(socket.clone()),
                    Entry::HalfOpen(_) => ended.push(Listing::nobody(tuple, TcpState::SynReceived)),
                    Entry::TimeWait { .. } => ended.push(Listing::nobody(tuple, TcpState::TimeWait)),
                }
            }
        }
        let bound: Vec<Arc<TcpSocket<P>>> = self.tcp_ports.lock().all()?;
        let mut listings = ended;
        listings.try_reserve(sockets.len() + bound.len()).map_err(|_| OutOfMemory)?;
        listings.extend(bound.iter().filter(|socket| socket.is_listening()).map(|socket| socket.listing()));
        listings.extend(sockets.iter().map(|socket| socket.listing()));
        Ok(listings)
    }

    /// Every UDP socket that is bound.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn udp_sockets(&self) -> Result<Vec<Listing>, OutOfMemory> {
        let bound: Vec<Arc<UdpSocket<P>>> = self.udp_ports.lock().all()?;
        let mut listings = Vec::new();
        listings.try_reserve_exact(bound.len()).map_err(|_| OutOfMemory)?;
        listings.extend(bound.iter().map(|socket| socket.listing()));
        Ok(listings)
    }

    /// Every raw and ping socket, with whether it is a ping socket.
    #[must_use]
    pub fn raw_listings(&self) -> Vec<(bool, Listing)> {
        let sockets = self.raw_sockets();
        let mut listings = Vec::new();
        if listings.try_reserve_exact(sockets.len()).is_ok() {
            listings.extend(sockets.iter().map(|socket| (socket.is_ping, socket.listing())));
        }
        listings
    }
}
