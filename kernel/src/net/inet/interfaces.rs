//! The options by which sockets name an interface.

use core::net::{IpAddr, Ipv4Addr};
use core::sync::atomic::Ordering;

use heddle_inet::options::Options;
use heddle_kernel_core::netlink::Interface;

use crate::error::Errno;
use crate::net::inet::InetSocket;
use crate::net::interface::with_network;
use crate::net::protocol::OptionValue;

/// Bytes of an interface's name with its zero.
const INTERFACE_NAME_BYTES: usize = 16;

/// `IP_MULTICAST_IF`: an address, or the second one of a `struct ip_mreq`, or that and an interface's number of a
/// `struct ip_mreqn`.
pub(super) fn set_multicast_address(socket: &InetSocket, value: &[u8]) -> Result<(), Errno> {
    let word = |at: usize| value.get(at..).and_then(<[u8]>::first_chunk::<4>);
    let address = if value.len() >= 8 { word(4) } else { word(0) };
    let address = *address.ok_or(Errno::EINVAL)?;
    let index = if value.len() >= 12 { word(8).map_or(0, |word| u32::from_ne_bytes(*word)) } else { 0 };
    if !has_interface(socket, index, address) {
        return Err(Errno::EADDRNOTAVAIL);
    }
    socket.options().multicast_address.store(u32::from_ne_bytes(address), Ordering::Relaxed);
    Ok(())
}

/// Whether there is an interface with this number, or, where that is 0, one with this address, unless that is any.
pub(super) fn has_interface(socket: &InetSocket, index: u32, address: [u8; 4]) -> bool {
    match (index, Ipv4Addr::from(address)) {
        (0, Ipv4Addr::UNSPECIFIED) => true,
        (0, address) => with_network(&socket.namespace, |network| {
            let has = |interface: &Interface<'_>| {
                interface.addresses.iter().any(|with| with.address == IpAddr::V4(address))
            };
            network.interfaces.iter().any(has)
        }),
        (index, _) => with_network(&socket.namespace, |network| network.by_index(index).is_some()),
    }
}

/// `SO_BINDTODEVICE`: no name sets it back.
pub(super) fn bind_interface(socket: &InetSocket, value: &[u8]) -> Result<(), Errno> {
    let name = value.split(|&byte| byte == 0).next().unwrap_or_default();
    let name = &name[..name.len().min(INTERFACE_NAME_BYTES - 1)];
    let index = if name.is_empty() {
        0
    } else {
        let index = with_network(&socket.namespace, |network| network.by_name(name).map(|found| found.index));
        index.ok_or(Errno::ENODEV)?
    };
    socket.options().bound_interface.store(index, Ordering::Relaxed);
    Ok(())
}

/// The name of the interface that the socket is bound to, with a zero behind it; nothing if there is none.
pub(super) fn bound_interface(socket: &InetSocket) -> OptionValue {
    let index = Options::get(&socket.options().bound_interface);
    let (mut padded, mut length) = ([0; INTERFACE_NAME_BYTES], 0);
    with_network(&socket.namespace, |network| {
        if let Some(interface) = network.by_index(index) {
            let name = interface.name.as_bytes();
            padded[..name.len()].copy_from_slice(name);
            length = name.len() + 1;
        }
    });
    OptionValue::new(&padded[..length])
}
