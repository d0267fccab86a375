//! Socket addresses as the kernel has them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Bytes of a `struct sockaddr_in`.
const V4_BYTES: usize = size_of::<libc::sockaddr_in>();
/// Bytes of a `struct sockaddr_in6`.
const V6_BYTES: usize = size_of::<libc::sockaddr_in6>();

/// Memory for an address that a call gives: its length, then its bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PeerAddress {
    length: u32,
    bytes: [u8; V6_BYTES],
}

impl PeerAddress {
    /// From the record's beginning to the address.
    pub(crate) const BYTES_OFFSET: u64 = core::mem::offset_of!(PeerAddress, bytes) as u64;

    /// The address that a call has left; `None` if it is not an internet address.
    #[must_use]
    pub fn get(&self) -> Option<SocketAddr> {
        let family = u16::from_ne_bytes([self.bytes[0], self.bytes[1]]);
        let port = u16::from_be_bytes([self.bytes[2], self.bytes[3]]);
        match (i32::from(family), self.length as usize) {
            (libc::AF_INET, V4_BYTES..) => {
                let address: [u8; 4] = self.bytes[4..8].try_into().ok()?;
                Some((Ipv4Addr::from(address), port).into())
            }
            (libc::AF_INET6, V6_BYTES..) => {
                let flow = u32::from_ne_bytes(self.bytes[4..8].try_into().ok()?);
                let address: [u8; 16] = self.bytes[8..24].try_into().ok()?;
                let scope = u32::from_ne_bytes(self.bytes[24..28].try_into().ok()?);
                Some(SocketAddrV6::new(Ipv6Addr::from(address), port, flow, scope).into())
            }
            _ => None,
        }
    }

    /// [`PeerAddress::get`] of a call that has succeeded on an internet socket.
    pub(crate) fn expect(&self) -> io::Result<SocketAddr> {
        self.get().ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

impl Default for PeerAddress {
    /// Room for an address, and none yet.
    fn default() -> PeerAddress {
        PeerAddress { length: V6_BYTES as u32, bytes: [0; V6_BYTES] }
    }
}

/// The bytes of a `struct sockaddr_in` or `sockaddr_in6`.
pub(crate) fn encode(address: &SocketAddr) -> Vec<u8> {
    let family = (family(address) as u16).to_ne_bytes();
    let port = address.port().to_be_bytes();
    match address.ip() {
        IpAddr::V4(ip) => [&family[..], &port, &ip.octets(), &[0; 8]].concat(),
        IpAddr::V6(ip) => {
            let (flow, scope) = match address {
                SocketAddr::V6(address) => (address.flowinfo(), address.scope_id()),
                SocketAddr::V4(_) => (0, 0),
            };
            [&family[..], &port, &flow.to_ne_bytes(), &ip.octets(), &scope.to_ne_bytes()].concat()
        }
    }
}

/// `AF_INET` or `AF_INET6`.
pub(crate) fn family(address: &SocketAddr) -> i32 {
    if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_conversion_to_sockaddr() {
        for text in ["1.2.3.4:5", "[2001:db8::9]:65535", "[fe80::1%7]:80"] {
            let address: SocketAddr = text.parse().unwrap();
            let encoded = encode(&address);
            let mut record = PeerAddress::default();
            record.bytes[..encoded.len()].copy_from_slice(&encoded);
            record.length = encoded.len() as u32;
            assert_eq!(record.get(), Some(address));
        }
        assert_eq!(PeerAddress::default().get(), None);
    }
}
