//! `/proc/net`: interfaces, routes, sockets, and `/proc/sys/net`.

use core::net::IpAddr;

use heddle_kernel_core::netlink::{Interface, Route, TrafficCounts};

use crate::error::Errno;
use crate::net::interface::{ETHERNET, with_network};
use crate::procfs::sockets::padded;
use crate::procfs::{Subject, Text};

type Shown = Result<(), Errno>;

/// Bits of a route's flags: usable, by a router, to one host.
const ROUTE_UP: u32 = 1;
const ROUTE_GATEWAY: u32 = 2;
const ROUTE_HOST: u32 = 4;
/// As above, for the machine itself.
const ROUTE_LOCAL: u32 = 0x8000_0000;

/// `/proc/net/dev`.
pub fn devices(subject: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"Inter-|   Receive                                                |  Transmit\n")?;
    text.bytes(b" face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs ")?;
    text.bytes(b"drop fifo colls carrier compressed\n")?;
    with_network(&*subject.network()?, |network| {
        for Interface { name, traffic, .. } in network.interfaces {
            let TrafficCounts { received_packets, received_bytes, received_errors, received_dropped, .. } =
                traffic;
            let TrafficCounts { sent_packets, sent_bytes, sent_errors, sent_dropped, .. } = traffic;
            text.line(format_args!(
                "{name:>6}: {received_bytes:7} {received_packets:7} {received_errors:4} {received_dropped:4}    0     \
                 0          0         0 {sent_bytes:8} {sent_packets:7} {sent_errors:4} {sent_dropped:4}    0     \
                 0       0          0\n"
            ))?;
        }
        Ok(())
    })
}

/// `/proc/net/route`: IPv4, addresses as numbers of this machine's byte order.
pub fn routes(subject: &Subject, text: &mut Text) -> Shown {
    const WIDTH: usize = 127;
    text.line(format_args!(
        "{:WIDTH$}\n",
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"
    ))?;
    with_network(&*subject.network()?, |network| {
        let mut result = Ok(());
        network.routes(&mut |route| {
            let IpAddr::V4(destination) = route.destination.address else { return true };
            if !route.is_main() {
                return true;
            }
            let gateway = match route.gateway {
                Some(IpAddr::V4(gateway)) => u32::from_ne_bytes(gateway.octets()),
                _ => 0,
            };
            let name = network.by_index(route.interface).map_or("*", |interface| interface.name);
            let destination = u32::from_ne_bytes(destination.octets());
            let mask = u32::from_ne_bytes(route.destination.mask().octets());
            result = padded(
                text,
                WIDTH,
                format_args!(
                    "{name}\t{destination:08X}\t{gateway:08X}\t{:04X}\t0\t0\t0\t{mask:08X}\t0\t0\t0",
                    flags(route)
                ),
            );
            result.is_ok()
        });
        result
    })
}

fn flags(route: &Route) -> u32 {
    let gateway = if route.gateway.is_some() { ROUTE_GATEWAY } else { 0 };
    let bits = if route.destination.address.is_ipv4() { 32 } else { 128 };
    let host = if route.destination.length == bits { ROUTE_HOST } else { 0 };
    ROUTE_UP | gateway | host
}

/// An address as 32 digits.
fn digits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// `/proc/net/ipv6_route`.
pub fn routes_v6(subject: &Subject, text: &mut Text) -> Shown {
    with_network(&*subject.network()?, |network| {
        let mut result = Ok(());
        network.routes(&mut |route| {
            if route.destination.address.is_ipv4() {
                return true;
            }
            let name = network.by_index(route.interface).map_or("*", |interface| interface.name);
            let (destination, length) = (digits(route.destination.address), route.destination.length);
            let gateway = route.gateway.map_or(0, digits);
            let flags = flags(route) | if route.is_main() { 0 } else { ROUTE_LOCAL };
            let metric = route.metric;
            result = text.line(format_args!(
                "{destination:032x} {length:02x} {:032x} 00 {gateway:032x} {metric:08x} 00000001 00000000 {flags:08x} \
                 {name:>8}\n",
                0
            ));
            result.is_ok()
        });
        result
    })
}

/// `/proc/net/if_inet6`.
pub fn addresses_v6(subject: &Subject, text: &mut Text) -> Shown {
    with_network(&*subject.network()?, |network| {
        for Interface { index, name, addresses, .. } in network.interfaces {
            for with in addresses.iter().filter(|with| with.address.is_ipv6()) {
                // The kernel's own numbers for how far an address reaches.
                let scope = match with.scope() {
                    254 => 0x10,
                    253 => 0x20,
                    200 => 0x40,
                    _ => 0,
                };
                let (address, length) = (digits(with.address), with.length);
                text.line(format_args!(
                    "{address:032x} {index:02x} {length:02x} {scope:02x} {:02x} {name:>8}\n",
                    with.flags()
                ))?;
            }
        }
        Ok(())
    })
}

/// `/proc/net/arp`.
pub fn neighbours(subject: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"IP address       HW type     Flags       HW address            Mask     Device\n")?;
    let namespace = subject.network()?;
    let engine = namespace.running_engine();
    let Some(interface) = engine.and_then(|engine| engine.interface()) else { return Ok(()) };
    for (address, [a, b, c, d, e, f]) in interface.neighbours() {
        let IpAddr::V4(address) = address else { continue };
        text.line(format_args!(
            "{address:16} 0x1         0x2         {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}     *        \
             {ETHERNET}\n"
        ))?;
    }
    Ok(())
}

/// `/proc/net/netlink`.
pub fn netlink_sockets(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n")
}
