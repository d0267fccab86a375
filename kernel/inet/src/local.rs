//! The addresses that are this machine's, and what is sent on the loopback as it is.

use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::address::loopback_like;
use crate::engine::Engine;
use crate::error::{InetError, InetResult};
use crate::interface::LOOPBACK_INDEX;
use crate::ip::{ETHERNET_BYTES, IpHeader};
use crate::platform::Platform;
use crate::settings::Settings;

/// The types of Ethernet frames with a packet of IP.
const V4_TYPE: u16 = 0x0800;
const V6_TYPE: u16 = 0x86dd;

/// The families whose addresses the loopback has and uses.
pub(crate) struct LoopbackAddresses {
    v4: AtomicBool,
    v6: AtomicBool,
}

impl Default for LoopbackAddresses {
    fn default() -> Self {
        Self { v4: AtomicBool::new(true), v6: AtomicBool::new(true) }
    }
}

impl LoopbackAddresses {
    /// Whether an address is one of the loopback's.
    fn has(&self, address: IpAddr) -> bool {
        let family = if address.is_ipv4() { &self.v4 } else { &self.v6 };
        address.is_loopback() && family.load(Ordering::Relaxed)
    }
}

impl<P: Platform> Engine<P> {
    /// Says whether the loopback can be used by addresses of each family: it is up and has one.
    pub fn set_loopback(&self, v4: bool, v6: bool) {
        self.loopback.v4.store(v4, Ordering::Relaxed);
        self.loopback.v6.store(v6, Ordering::Relaxed);
    }

    /// Whether an address is this machine's.
    #[must_use]
    pub fn is_local(&self, address: IpAddr) -> bool {
        self.loopback.has(address) || self.interface().is_some_and(|interface| interface.has(address))
    }

    /// Whether an address stands for everyone on a link.
    #[must_use]
    pub fn is_broadcast(&self, address: IpAddr) -> bool {
        match self.interface() {
            _ if address.is_loopback() => false,
            Some(interface) => interface.is_broadcast(address),
            None => matches!(address, IpAddr::V4(v4) if v4.is_broadcast()),
        }
    }

    /// Whether a socket may be bound to an address to receive what is sent there.
    pub(crate) fn may_bind(&self, address: IpAddr) -> bool {
        self.is_local(address) || address.is_multicast() || self.is_broadcast(address)
    }

    /// The address that a packet to `target` comes from, for a socket that is bound to `bound`.
    pub(crate) fn source_for(&self, target: IpAddr, bound: Option<IpAddr>) -> InetResult<IpAddr> {
        let bound = bound.filter(|bound| !bound.is_multicast() && !self.is_broadcast(*bound));
        if let Some(bound) = bound.filter(|bound| bound.is_ipv4() != target.is_ipv4()) {
            let is_v4 = bound.is_ipv4();
            return Err(if is_v4 { InetError::FamilyNotSupported } else { InetError::NetworkUnreachable });
        }
        if target.is_loopback() {
            if !self.loopback.has(target) {
                return Err(InetError::NetworkUnreachable);
            }
            return Ok(bound.unwrap_or_else(|| loopback_like(target)));
        }
        if self.is_local(target) {
            return Ok(bound.unwrap_or(target));
        }
        let found = match self.interface() {
            Some(interface) => interface.source_for(target)?,
            // Groups and broadcasts stay within the machine.
            None if target.is_multicast() || self.is_broadcast(target) => loopback_like(target),
            None => return Err(InetError::NetworkUnreachable),
        };
        Ok(bound.unwrap_or(found))
    }

    /// Somebody has sent the packet of a frame with this type on the loopback. Call it with no lock held. A packet
    /// for no address of this machine is lost.
    pub fn receive_on_loopback(&self, packet: &[u8], kind: u16) {
        let is_known =
            matches!((kind, packet.first().map(|first| first >> 4)), (V4_TYPE, Some(4)) | (V6_TYPE, Some(6)));
        let is_ours = IpHeader::parse(packet).is_some_and(|parsed| self.takes_on_loopback(&parsed.header));
        self.counters.local_packet::<P>(packet.len());
        if is_known && is_ours {
            self.receive_packet(packet, false, LOOPBACK_INDEX);
        }
    }

    /// Whether a packet that somebody sends on the loopback is taken, by its addresses; as in Linux those of the
    /// machine are suspect there.
    fn takes_on_loopback(&self, header: &IpHeader) -> bool {
        let (source, target) = (header.source, header.destination);
        let is_wanted = self.is_local(target) || target.is_multicast();
        if !source.is_ipv4() {
            return is_wanted;
        }
        let may = |setting| Settings::get(setting) != 0;
        let is_loopback = source.is_loopback() || target.is_loopback();
        is_wanted
            && (may(&self.settings.accepts_local) || !self.is_local(source))
            && (may(&self.settings.routes_loopback) || !is_loopback)
    }
}

/// Writes the Ethernet header of a frame on the loopback, where nobody has a hardware address.
pub(crate) fn put_ethernet(frame: &mut [u8], is_v4: bool) {
    frame[..ETHERNET_BYTES].fill(0);
    let kind = if is_v4 { V4_TYPE } else { V6_TYPE };
    frame[ETHERNET_BYTES - 2..ETHERNET_BYTES].copy_from_slice(&kind.to_be_bytes());
}
