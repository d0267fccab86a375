//! Questions about interfaces and changes of them by `ioctl`, netdevice(7): on sockets of any family.

use core::net::{IpAddr, Ipv4Addr};

use heddle_kernel_core::netlink::{
    GivenRoute, Interface, InterfaceAddress, InterfaceKind, LoopbackChange, Network, NetworkChange,
};
use linux_raw_sys::general as linux;
use linux_raw_sys::net;

use crate::call::{Call, get, put};
use crate::error::{Errno, TryResult};
use crate::net::interface::{self, with_network};
use crate::net::namespace::NetNamespace;

// Numbers of `linux/sockios.h`.
const SIOCADDRT: u32 = 0x890b;
const SIOCDELRT: u32 = 0x890c;
const SIOCGIFNAME: u32 = 0x8910;
const SIOCGIFCONF: u32 = 0x8912;
const SIOCGIFFLAGS: u32 = 0x8913;
const SIOCSIFFLAGS: u32 = 0x8914;
const SIOCGIFADDR: u32 = 0x8915;
const SIOCSIFADDR: u32 = 0x8916;
const SIOCGIFDSTADDR: u32 = 0x8917;
const SIOCGIFBRDADDR: u32 = 0x8919;
const SIOCGIFNETMASK: u32 = 0x891b;
const SIOCSIFNETMASK: u32 = 0x891c;
const SIOCGIFMETRIC: u32 = 0x891d;
const SIOCGIFMTU: u32 = 0x8921;
const SIOCSIFMTU: u32 = 0x8922;
const SIOCGIFHWADDR: u32 = 0x8927;
const SIOCGIFINDEX: u32 = 0x8933;
const SIOCGIFTXQLEN: u32 = 0x8942;
const SIOCETHTOOL: u32 = 0x8946;
const SIOCGIFMAP: u32 = 0x8970;
/// The requests of that file, those that set something among them.
const REQUESTS: core::ops::RangeInclusive<u32> = 0x8910..=0x8971;

/// Bytes of an interface's name with its zero, and of `struct ifreq`.
const NAME_BYTES: usize = 16;
const REQUEST_BYTES: usize = 40;
const QUEUE_LENGTH: u32 = 1000;
const IFF_UP: u32 = 1;

/// Bytes of `struct rtentry`, and where its destination, router, mask, flags and metric are.
const ROUTE_BYTES: usize = 120;
const ROUTE_TARGET: usize = 8;
const ROUTE_ROUTER: usize = 24;
const ROUTE_MASK: usize = 40;
const ROUTE_FLAGS: usize = 56;
const ROUTE_METRIC: usize = 80;
const RTF_GATEWAY: u16 = 2;
const RTF_HOST: u16 = 4;
/// `RTPROT_BOOT`.
const PROTOCOL_BOOT: u8 = 3;

/// The value of a `struct ifreq`, behind the name.
type Value = [u8; REQUEST_BYTES - NAME_BYTES];

/// Carries a request out, if it is one about interfaces.
///
/// # Errors
/// `ENODEV`, `EADDRNOTAVAIL`, `EPERM`, `EOPNOTSUPP`, a fault.
pub fn carry_out(
    call: &Call<'_>,
    namespace: &NetNamespace,
    request: u32,
    argument: usize,
) -> Option<TryResult<usize>> {
    match request {
        SIOCGIFCONF => Some(configuration(call, namespace, argument)),
        SIOCADDRT | SIOCDELRT => Some(route(call, namespace, request == SIOCADDRT, argument)),
        request if REQUESTS.contains(&request) => Some(one(call, namespace, request, argument)),
        _ => None,
    }
}

fn one(call: &Call<'_>, namespace: &NetNamespace, request: u32, argument: usize) -> TryResult<usize> {
    let fields: [u8; REQUEST_BYTES] = get(call, argument)?;
    let word = u32::from_ne_bytes([fields[16], fields[17], fields[18], fields[19]]);
    let name = fields[..NAME_BYTES].split(|&byte| byte == 0).next().unwrap_or_default();
    // An alias of an interface, as `eth0:1`, has the interface's answers.
    let name = name.split(|&byte| byte == b':').next().unwrap_or_default();
    let is_privileged = namespace.grants(&call.thread.credentials(), linux::CAP_NET_ADMIN);
    if matches!(request, SIOCSIFFLAGS | SIOCSIFMTU | SIOCSIFADDR | SIOCSIFNETMASK) {
        if !is_privileged {
            return Err(Errno::EPERM.into());
        }
        set(namespace, name, request, &fields)?;
        return Ok(0);
    }
    let answer = with_network(namespace, |network| -> Result<([u8; NAME_BYTES], Value), Errno> {
        let mut padded = [0; NAME_BYTES];
        if request == SIOCGIFNAME {
            let name = network.by_index(word).ok_or(Errno::ENODEV)?.name.as_bytes();
            padded[..name.len()].copy_from_slice(name);
            return Ok((padded, fields[NAME_BYTES..].try_into().unwrap_or_default()));
        }
        padded.copy_from_slice(&fields[..NAME_BYTES]);
        let interface = network.by_name(name).ok_or(Errno::ENODEV)?;
        Ok((padded, value(interface, request, is_privileged)?))
    });
    let (name, value) = answer?;
    put(call, argument, &name)?;
    put(call, argument + NAME_BYTES, &value)?;
    Ok(0)
}

fn value(interface: &Interface<'_>, request: u32, is_privileged: bool) -> Result<Value, Errno> {
    let mut value = Value::default();
    let mut number = |number: u32| value[..4].copy_from_slice(&number.to_ne_bytes());
    match request {
        // Only the lower half is told.
        SIOCGIFFLAGS => value[..2].copy_from_slice(&(interface.flags() as u16).to_ne_bytes()),
        SIOCGIFMTU => number(interface.mtu),
        SIOCGIFINDEX => number(interface.index),
        SIOCGIFTXQLEN => number(QUEUE_LENGTH),
        SIOCGIFMETRIC => number(0),
        SIOCGIFMAP => {}
        SIOCGIFHWADDR => {
            value[..2].copy_from_slice(&interface.kind.number().to_ne_bytes());
            value[2..8].copy_from_slice(&interface.mac);
        }
        SIOCGIFADDR | SIOCGIFDSTADDR | SIOCGIFBRDADDR | SIOCGIFNETMASK => {
            let with = interface.addresses.iter().find(|with| with.address.is_ipv4());
            let with = with.ok_or(Errno::EADDRNOTAVAIL)?;
            let address = match (request, with.address) {
                (SIOCGIFBRDADDR, _) => with.broadcast().unwrap_or(Ipv4Addr::UNSPECIFIED),
                (SIOCGIFNETMASK, _) => with.mask(),
                (_, IpAddr::V4(address)) => address,
                (_, IpAddr::V6(_)) => return Err(Errno::EADDRNOTAVAIL),
            };
            value = encode(address);
        }
        SIOCETHTOOL => return Err(Errno::EOPNOTSUPP),
        _ if !is_privileged => return Err(Errno::EPERM),
        _ => return Err(Errno::EOPNOTSUPP),
    }
    Ok(value)
}

/// Carries a change out.
fn set(
    namespace: &NetNamespace,
    name: &[u8],
    request: u32,
    fields: &[u8; REQUEST_BYTES],
) -> Result<(), Errno> {
    let word = u32::from_ne_bytes([fields[16], fields[17], fields[18], fields[19]]);
    let found = with_network(namespace, |network| {
        let interface = network.by_name(name)?;
        let own = interface.addresses.iter().find(|with| with.address.is_ipv4()).copied();
        Some((interface.kind, interface.mtu, own))
    });
    let (kind, mtu, own) = found.ok_or(Errno::ENODEV)?;
    let change = match request {
        SIOCSIFFLAGS => NetworkChange::Link { is_up: Some(word & IFF_UP != 0), mtu: None },
        SIOCSIFMTU => NetworkChange::Link { is_up: None, mtu: Some(word) },
        _ => {
            let address = decode(&fields[NAME_BYTES..]).ok_or(Errno::EINVAL)?;
            NetworkChange::SetAddress(match (request, own) {
                (SIOCSIFADDR, _) => InterfaceAddress { address: address.into(), length: class_bits(address) },
                (_, None) => return Err(Errno::EADDRNOTAVAIL),
                (_, Some(own)) => InterfaceAddress { length: mask_bits(address)?, ..own },
            })
        }
    };
    if kind == InterfaceKind::Loopback {
        return match change {
            NetworkChange::Link { is_up: Some(is_up), .. } => {
                interface::change(namespace, &[NetworkChange::Loopback(LoopbackChange::Link { is_up })])
            }
            NetworkChange::Link { mtu: wanted, .. } if wanted == Some(mtu) => Ok(()),
            NetworkChange::SetAddress(with) if Some(with) == own => Ok(()),
            NetworkChange::SetAddress(with) => {
                let change = LoopbackChange::AddAddress { with, replaces: true };
                interface::change(namespace, &[NetworkChange::Loopback(change)])
            }
            _ => Err(Errno::EOPNOTSUPP),
        };
    }
    if matches!(change, NetworkChange::SetAddress(_)) {
        // An address brings its interface up.
        return interface::change(namespace, &[change, NetworkChange::Link { is_up: Some(true), mtu: None }]);
    }
    interface::change(namespace, &[change])
}

/// The IPv4 address in a `struct sockaddr`.
fn decode(bytes: &[u8]) -> Option<Ipv4Addr> {
    let (family, address) = (bytes.first_chunk::<2>()?, bytes.get(4..8)?.first_chunk::<4>()?);
    (u16::from_ne_bytes(*family) == net::AF_INET as u16).then(|| Ipv4Addr::from(*address))
}

/// The length of the network's part that an address has by its class.
const fn class_bits(address: Ipv4Addr) -> u8 {
    match address.octets()[0] {
        0..=127 => 8,
        128..=191 => 16,
        _ => 24,
    }
}

/// The length of a mask.
fn mask_bits(mask: Ipv4Addr) -> Result<u8, Errno> {
    let bits = mask.to_bits();
    let length = bits.leading_ones();
    if bits.checked_shl(length).unwrap_or(0) != 0 { Err(Errno::EINVAL) } else { Ok(length as u8) }
}

/// `SIOCADDRT` and `SIOCDELRT`: a route of IPv4.
fn route(call: &Call<'_>, namespace: &NetNamespace, adds: bool, argument: usize) -> TryResult<usize> {
    let fields: [u8; ROUTE_BYTES] = get(call, argument)?;
    if !namespace.grants(&call.thread.credentials(), linux::CAP_NET_ADMIN) {
        return Err(Errno::EPERM.into());
    }
    let half = |at: usize| u16::from_ne_bytes([fields[at], fields[at + 1]]);
    let flags = half(ROUTE_FLAGS);
    let target = decode(&fields[ROUTE_TARGET..]).ok_or(Errno::EAFNOSUPPORT)?;
    let length = match flags & RTF_HOST {
        0 => mask_bits(decode(&fields[ROUTE_MASK..]).unwrap_or(Ipv4Addr::UNSPECIFIED))?,
        _ => 32,
    };
    let gateway = match flags & RTF_GATEWAY {
        0 => None,
        _ => Some(decode(&fields[ROUTE_ROUTER..]).ok_or(Errno::EINVAL)?.into()),
    };
    let metric = u32::from(half(ROUTE_METRIC).saturating_sub(1));
    let destination = InterfaceAddress { address: target.into(), length };
    interface::change(
        namespace,
        &[if adds {
            let route = GivenRoute { destination, gateway, metric, protocol: PROTOCOL_BOOT };
            NetworkChange::AddRoute { route, replaces: false }
        } else {
            let metric = Some(metric).filter(|&metric| metric > 0);
            NetworkChange::RemoveRoute { destination, gateway, metric }
        }],
    )?;
    Ok(0)
}

/// An address as a `struct sockaddr_in`.
fn encode(address: Ipv4Addr) -> Value {
    let mut value = Value::default();
    value[..2].copy_from_slice(&(net::AF_INET as u16).to_ne_bytes());
    value[4..8].copy_from_slice(&address.octets());
    value
}

/// `SIOCGIFCONF`: name and IPv4 address of each interface that has one, as many as fit.
fn configuration(call: &Call<'_>, namespace: &NetNamespace, argument: usize) -> TryResult<usize> {
    let room = i32::from_ne_bytes(get(call, argument)?);
    let buffer = usize::from_ne_bytes(get(call, argument + 8)?);
    let room = usize::try_from(room).map_err(|_| Errno::EINVAL)?;
    let mut entries = [[0; REQUEST_BYTES]; 8];
    let count = with_network(namespace, |network: &Network<'_>| {
        let mut count = 0;
        for interface in network.interfaces {
            for with in interface.addresses {
                let (Some(entry), IpAddr::V4(address)) = (entries.get_mut(count), with.address) else {
                    continue;
                };
                entry[..interface.name.len()].copy_from_slice(interface.name.as_bytes());
                entry[NAME_BYTES..].copy_from_slice(&encode(address));
                count += 1;
            }
        }
        count
    });
    let fitting = if buffer == 0 { count } else { count.min(room / REQUEST_BYTES) };
    if buffer != 0 {
        put(call, buffer, entries[..fitting].as_flattened())?;
    }
    put(call, argument, &((fitting * REQUEST_BYTES) as u32).to_ne_bytes())?;
    Ok(0)
}
