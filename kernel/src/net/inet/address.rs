//! `struct sockaddr_in` and `struct sockaddr_in6`.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use heddle_inet::address::Endpoint;
use linux_raw_sys::net;

use crate::error::Errno;
use crate::net::protocol::SocketAddress;

/// `struct sockaddr_in`.
const V4_BYTES: usize = 16;
/// `struct sockaddr_in6` without the scope, which old programs leave out.
const V6_BYTES_MIN: usize = 24;
const V6_BYTES: usize = 28;

/// Reads an address for a socket of IPv6 or IPv4.
///
/// # Errors
/// `EINVAL` (too short), `EAFNOSUPPORT`.
pub fn parse(address: &SocketAddress, is_v6: bool) -> Result<Endpoint, Errno> {
    let bytes = address.as_slice();
    let needed = if is_v6 { V6_BYTES_MIN } else { V4_BYTES };
    if bytes.len() < needed {
        return Err(Errno::EINVAL);
    }
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    match address.family() {
        net::AF_INET if !is_v6 => parse_v4(address),
        net::AF_INET6 if is_v6 => {
            let mut octets = [0; 16];
            octets.copy_from_slice(&bytes[8..24]);
            Ok(Endpoint::new(IpAddr::V6(Ipv6Addr::from(octets)), port))
        }
        _ => Err(Errno::EAFNOSUPPORT),
    }
}

/// As [`parse`], to be bound to: IPv4's may say `AF_UNSPEC` if it is any, for old programs.
///
/// # Errors
/// As for [`parse`].
pub fn parse_own(address: &SocketAddress, is_v6: bool) -> Result<Endpoint, Errno> {
    let bytes = address.as_slice();
    let is_old = !is_v6 && bytes.len() >= V4_BYTES && address.family() == net::AF_UNSPEC;
    if is_old && bytes[4..8] == [0; 4] {
        return parse_v4(address);
    }
    parse(address, is_v6)
}

/// As [`parse`], for datagrams, which a socket of IPv6 sends to IPv4, too, unless it is one of IPv6 only.
///
/// # Errors
/// As for [`parse`].
pub fn parse_peer(address: &SocketAddress, is_v6: bool, is_only_v6: bool) -> Result<Endpoint, Errno> {
    if !is_v6 || address.family() != net::AF_INET {
        return parse(address, is_v6);
    }
    let endpoint = parse(address, false)?;
    if is_only_v6 { Err(Errno::EAFNOSUPPORT) } else { Ok(endpoint) }
}

/// Reads an address of IPv4, whatever its family says.
///
/// # Errors
/// `EINVAL` (too short).
pub fn parse_v4(address: &SocketAddress) -> Result<Endpoint, Errno> {
    let bytes = address.as_slice();
    if bytes.len() < V4_BYTES {
        return Err(Errno::EINVAL);
    }
    let v4 = Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]);
    Ok(Endpoint::new(IpAddr::V4(v4), u16::from_be_bytes([bytes[2], bytes[3]])))
}

/// The address as a socket of IPv6 or IPv4 tells it.
pub fn encode(endpoint: Endpoint, is_v6: bool) -> SocketAddress {
    let mut bytes = [0; V6_BYTES];
    bytes[2..4].copy_from_slice(&endpoint.port.to_be_bytes());
    if is_v6 {
        let address = match endpoint.address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        bytes[..2].copy_from_slice(&(net::AF_INET6 as u16).to_ne_bytes());
        bytes[8..24].copy_from_slice(&address.octets());
        return SocketAddress::new(&bytes);
    }
    bytes[..2].copy_from_slice(&(net::AF_INET as u16).to_ne_bytes());
    if let IpAddr::V4(v4) = endpoint.address {
        bytes[4..8].copy_from_slice(&v4.octets());
    }
    SocketAddress::new(&bytes[..V4_BYTES])
}
