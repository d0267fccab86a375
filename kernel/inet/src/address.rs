//! Addresses as the engine compares them. An IPv4 address mapped into IPv6 is the IPv4 address: only the socket that a
//! program opened knows in which family it wants to see it.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// The address, in its canonical form.
    pub address: IpAddr,
    /// The port, 0 for none.
    pub port: u16,
}

impl Endpoint {
    /// An endpoint, its address made canonical.
    #[must_use]
    pub fn new(address: IpAddr, port: u16) -> Self {
        Self { address: address.to_canonical(), port }
    }
}

/// The ends of a connection, as one of them sees it: a key of the demultiplexer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    local: u128,
    remote: u128,
    ports: u32,
}

/// The address as a number, IPv4 addresses mapped.
fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

impl Tuple {
    /// The key of the connection between two endpoints.
    #[must_use]
    pub fn new(local: Endpoint, remote: Endpoint) -> Self {
        Self {
            local: number(local.address),
            remote: number(remote.address),
            ports: u32::from(local.port) << 16 | u32::from(remote.port),
        }
    }

    /// A number that spreads connections over those who serve a port.
    #[must_use]
    pub const fn spread(&self) -> u32 {
        let mixed = self.local ^ self.remote.rotate_left(64) ^ self.ports as u128;
        let folded = (mixed >> 64) as u64 ^ mixed as u64;
        (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
    }

    /// The endpoints, local first.
    #[must_use]
    pub fn endpoints(&self) -> (Endpoint, Endpoint) {
        let address = |bits| IpAddr::V6(Ipv6Addr::from_bits(bits));
        let ports = self.ports.to_be_bytes();
        (
            Endpoint::new(address(self.local), u16::from_be_bytes([ports[0], ports[1]])),
            Endpoint::new(address(self.remote), u16::from_be_bytes([ports[2], ports[3]])),
        )
    }
}

/// The address that stands for any, in the family of another.
#[must_use]
pub const fn unspecified_like(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

/// The loopback address in the family of another.
#[must_use]
pub const fn loopback_like(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    }
}

/// Whether two addresses have the same first `bits` bits.
#[must_use]
pub fn same_prefix(one: IpAddr, other: IpAddr, bits: u8) -> bool {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0);
            one.to_bits() & mask == other.to_bits() & mask
        }
        (IpAddr::V6(one), IpAddr::V6(other)) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0);
            one.to_bits() & mask == other.to_bits() & mask
        }
        _ => false,
    }
}

/// The address at the end of an IPv4 subnet, which all of it receive.
#[must_use]
pub const fn broadcast(address: Ipv4Addr, bits: u8) -> Ipv4Addr {
    let host = match u32::MAX.checked_shr(bits as u32) {
        Some(host) => host,
        None => 0,
    };
    Ipv4Addr::from_bits(address.to_bits() | host)
}
