//! `/sys/class/net`: what each interface of the first network namespace is, one word a file.

use heddle_kernel_core::netlink::{Interface, InterfaceKind};

use crate::error::Errno;
use crate::net::interface::with_network;
use crate::net::namespace::NetNamespace;
use crate::procfs::{Subject, Text};

type Shown = Result<(), Errno>;

/// Calls `f` with interface `INDEX`.
fn with<const INDEX: u32>(f: impl FnOnce(&Interface<'_>) -> Shown) -> Shown {
    with_network(NetNamespace::first()?, |network| f(network.by_index(INDEX).ok_or(Errno::ENODEV)?))
}

fn hardware_address(mac: [u8; 6], text: &mut Text) -> Shown {
    let [a, b, c, d, e, f] = mac;
    text.line(format_args!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}\n"))
}

pub fn address<const INDEX: u32>(_: &Subject, text: &mut Text) -> Shown {
    with::<INDEX>(|interface| hardware_address(interface.mac, text))
}

pub fn broadcast<const INDEX: u32>(_: &Subject, text: &mut Text) -> Shown {
    with::<INDEX>(|interface| hardware_address(interface.broadcast_mac(), text))
}

pub fn address_length(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"6\n")
}

pub fn mtu<const INDEX: u32>(_: &Subject, text: &mut Text) -> Shown {
    with::<INDEX>(|interface| text.line(format_args!("{}\n", interface.mtu)))
}

pub fn flags<const INDEX: u32>(_: &Subject, text: &mut Text) -> Shown {
    // Without the bits that are told elsewhere, as in Linux.
    with::<INDEX>(|interface| text.line(format_args!("{:#x}\n", interface.flags() & 0xffbf)))
}

pub fn index<const INDEX: u32>(_: &Subject, text: &mut Text) -> Shown {
    with::<INDEX>(|interface| text.line(format_args!("{}\n", interface.index)))
}

pub fn kind<const INDEX: u32>(_: &Subject, text: &mut Text) -> Shown {
    with::<INDEX>(|interface| text.line(format_args!("{}\n", interface.kind.number())))
}

pub fn carrier<const INDEX: u32>(_: &Subject, text: &mut Text) -> Shown {
    with::<INDEX>(|interface| text.line(format_args!("{}\n", u32::from(interface.has_link))))
}

pub fn state<const INDEX: u32>(_: &Subject, text: &mut Text) -> Shown {
    with::<INDEX>(|interface| {
        text.bytes(match (interface.kind, interface.has_link && interface.is_up) {
            (InterfaceKind::Loopback, _) => b"unknown\n",
            (InterfaceKind::Ethernet, true) => b"up\n",
            (InterfaceKind::Ethernet, false) => b"down\n",
        })
    })
}

/// The speed of an interface that has none is not told.
pub fn speed<const INDEX: u32>(_: &Subject, text: &mut Text) -> Shown {
    with::<INDEX>(|interface| match interface.kind {
        InterfaceKind::Loopback => Err(Errno::EINVAL),
        InterfaceKind::Ethernet => text.bytes(b"-1\n"),
    })
}

pub fn queue_length(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"1000\n")
}

/// A counter, by its place among the names of `statistics`.
pub fn statistic<const INDEX: u32, const WHICH: usize>(_: &Subject, text: &mut Text) -> Shown {
    with::<INDEX>(|Interface { traffic, .. }| {
        let values = [
            traffic.received_bytes,
            traffic.received_dropped,
            traffic.received_errors,
            traffic.received_packets,
            traffic.sent_bytes,
            traffic.sent_dropped,
            traffic.sent_errors,
            traffic.sent_packets,
        ];
        text.line(format_args!("{}\n", values[WHICH % values.len()]))
    })
}
