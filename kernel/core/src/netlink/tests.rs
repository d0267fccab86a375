//! Requests as programs make them, and what they are answered.

use core::net::IpAddr;
use std::vec::Vec;

use proptest::prelude::*;

use super::message::{HEADER_BYTES, Header, attributes};
use super::settings::{EADDRNOTAVAIL, EEXIST, EINVAL, EOPNOTSUPP};
use super::*;

const REQUEST: u16 = 1;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;
/// The error of a change in these tests.
const REFUSED: i32 = 99;

fn with(text: &str) -> InterfaceAddress {
    Configuration::parse(text).unwrap().addresses[0]
}

/// Calls `f` with the network of a machine behind QEMU's router.
fn with_network<R>(f: impl FnOnce(&Network<'_>) -> R) -> R {
    let local = [with("127.0.0.1/8"), with("::1/128")];
    let mac = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
    let outer = [with("10.0.2.15/24"), with("fec0::f/64"), link_local(mac)];
    let interface = |index, name, kind, mac, addresses| Interface {
        index,
        name,
        kind,
        mtu: 1500,
        mac,
        is_up: true,
        has_link: true,
        addresses,
        traffic: TrafficCounts { received_packets: 7, ..TrafficCounts::default() },
    };
    let interfaces = [
        interface(1, "lo", InterfaceKind::Loopback, [0; 6], &local[..]),
        interface(2, "eth0", InterfaceKind::Ethernet, mac, &outer[..]),
    ];
    let routes = ["10.0.2.2", "fec0::2"].map(|gateway| default_route(gateway.parse().unwrap()));
    f(&Network { interfaces: &interfaces, routes: &routes })
}

fn request(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(((HEADER_BYTES + body.len()) as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((flags | REQUEST).to_ne_bytes());
    bytes.extend(77_u32.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(body);
    bytes
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::from(((4 + value.len()) as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The answers, each as its header and its body.
fn ask(bytes: &[u8], is_privileged: bool) -> Vec<(Header, Vec<u8>)> {
    let mut answers = Vec::new();
    with_network(|network| {
        let mut take = |bytes: &[u8]| {
            let (header, message, rest) = Header::split(bytes).expect("a message");
            assert!(rest.is_empty(), "one message");
            answers.push((header, message[HEADER_BYTES..].to_vec()));
            Ok(())
        };
        answer(network, bytes, 1234, is_privileged, &|_| Err(REFUSED), &mut take).unwrap();
    });
    for (header, _) in &answers {
        assert_eq!((header.sequence, header.port), (77, 1234));
    }
    answers
}

fn find(body: &[u8], fixed: usize, wanted: u16) -> Option<Vec<u8>> {
    attributes(&body[fixed..]).find(|(kind, _)| *kind == wanted).map(|(_, value)| value.to_vec())
}

fn errno(answers: &[(Header, Vec<u8>)]) -> i32 {
    let [(header, body)] = answers else { panic!("{} answers", answers.len()) };
    assert_eq!(header.kind, 2);
    -i32::from_ne_bytes(body[..4].try_into().unwrap())
}

#[test]
fn links_are_listed() {
    let answers = ask(&request(18, DUMP, &[0]), false);
    let kinds: Vec<u16> = answers.iter().map(|(header, _)| header.kind).collect();
    assert_eq!(kinds, [16, 16, 3]);
    assert!(answers.iter().all(|(header, _)| header.flags & 2 != 0), "parts of one answer");
    assert_eq!(find(&answers[0].1, 16, 3).unwrap(), b"lo\0");
    let eth = &answers[1].1;
    assert_eq!(find(eth, 16, 3).unwrap(), b"eth0\0");
    assert_eq!(find(eth, 16, 1).unwrap(), [0x52, 0x54, 0, 0x12, 0x34, 0x56]);
    assert_eq!(find(eth, 16, 4).unwrap(), 1500_u32.to_ne_bytes());
    assert_eq!(find(eth, 16, 23).unwrap()[..8], 7_u64.to_ne_bytes());
    // <BROADCAST,MULTICAST,UP,LOWER_UP>, as `ip` shows it.
    assert_eq!(eth[8..12], 0x11043_u32.to_ne_bytes());
}

#[test]
fn one_link_is_found_by_name_or_index() {
    let mut body = std::vec![0; 16];
    body.extend(attribute(3, b"eth0\0"));
    let answers = ask(&request(18, 0, &body), false);
    assert_eq!((answers.len(), answers[0].0.kind), (1, 16));
    body = std::vec![0; 16];
    body[4] = 1;
    assert_eq!(find(&ask(&request(18, 0, &body), false)[0].1, 16, 3).unwrap(), b"lo\0");
    body[4] = 9;
    assert_eq!(errno(&ask(&request(18, 0, &body), false)), 19);
}

#[test]
fn addresses_are_listed_by_family() {
    let count = |family: u8| ask(&request(22, DUMP, &[family]), false).len() - 1;
    assert_eq!((count(2), count(10), count(0)), (2, 3, 5));
    let answers = ask(&request(22, DUMP, &[2]), false);
    let eth = &answers[1].1;
    assert_eq!(eth[..8], [2, 24, 0x80, 0, 2, 0, 0, 0]);
    assert_eq!(find(eth, 8, 2).unwrap(), [10, 0, 2, 15]);
    assert_eq!(find(eth, 8, 4).unwrap(), [10, 0, 2, 255]);
    assert_eq!(find(eth, 8, 3).unwrap(), b"eth0\0");
}

#[test]
fn routes_are_found() {
    let to = |text: &str| {
        with_network(|network| {
            let address: IpAddr = text.parse().unwrap();
            let route = network.route_to(address)?;
            Some((route.interface, route.gateway.map(|gateway| gateway.to_string()), network.source(&route)))
        })
    };
    let source = |text: &str| Some(text.parse::<IpAddr>().unwrap());
    assert_eq!(to("127.1.2.3"), Some((1, None, source("127.0.0.1"))));
    assert_eq!(to("10.0.2.15"), Some((2, None, source("10.0.2.15"))));
    assert_eq!(to("10.0.2.7"), Some((2, None, source("10.0.2.15"))));
    assert_eq!(to("1.1.1.1"), Some((2, Some("10.0.2.2".into()), source("10.0.2.15"))));
    assert_eq!(to("2001::1"), Some((2, Some("fec0::2".into()), source("fec0::f"))));
    assert_eq!(to("fe80::1").unwrap().2, source("fe80::5054:ff:fe12:3456"));
    assert_eq!(to("::1").unwrap().0, 1);
}

#[test]
fn one_route_is_answered_as_linux_does() {
    let mut body = std::vec![2, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    body.extend(attribute(1, &[8, 8, 8, 8]));
    let answers = ask(&request(26, 0, &body), false);
    let route = &answers[0].1;
    assert_eq!(answers[0].0.kind, 24);
    assert_eq!(find(route, 12, 5).unwrap(), [10, 0, 2, 2]);
    assert_eq!(find(route, 12, 7).unwrap(), [10, 0, 2, 15]);
    assert_eq!(find(route, 12, 1).unwrap(), [8, 8, 8, 8]);
}

#[test]
fn changes_need_a_privilege() {
    let mut up = std::vec![0; 16];
    (up[4], up[8], up[12]) = (1, 1, 1);
    assert_eq!(errno(&ask(&request(16, ACK, &up), false)), 1, "only root");
    for (flag, is_up) in [(1, true), (0, false)] {
        up[8] = flag;
        let change = NetworkChange::Loopback(LoopbackChange::Link { is_up });
        assert_eq!(change_of(&request(16, ACK, &up)), Ok(change));
    }
    assert_eq!(errno(&ask(&request(34, DUMP, &[0]), false)), 95, "rules");
    // So `ip` finds out whether links are changed by netlink.
    assert_eq!(errno(&ask(&request(16, ACK, &[0; 16]), true)), 19);
}

/// The change that a request asks for, and the error if it asks for none.
fn change_of(bytes: &[u8]) -> Result<NetworkChange, i32> {
    let asked = core::cell::Cell::new(None);
    let mut error = 0;
    with_network(|network| {
        let change = |change: &NetworkChange| {
            asked.set(Some(*change));
            Ok(())
        };
        let mut take = |bytes: &[u8]| {
            error = -i32::from_ne_bytes(bytes[HEADER_BYTES..HEADER_BYTES + 4].try_into().unwrap());
            Ok(())
        };
        answer(network, bytes, 1234, true, &change, &mut take).unwrap();
    });
    asked.get().ok_or(error)
}

#[test]
fn changes_are_understood() {
    let mut link = std::vec![0; 16];
    (link[4], link[12]) = (2, 1);
    let down = NetworkChange::Link { is_up: Some(false), mtu: None };
    assert_eq!(change_of(&request(16, ACK, &link)), Ok(down));
    link[12] = 0;
    link.extend(attribute(4, &1400_u32.to_ne_bytes()));
    assert_eq!(change_of(&request(16, ACK, &link)), Ok(NetworkChange::Link { is_up: None, mtu: Some(1400) }));
    let mut address = std::vec![2, 24, 0, 0, 2, 0, 0, 0];
    address.extend(attribute(2, &[10, 0, 2, 99]));
    let own = with("10.0.2.99/24");
    let added = NetworkChange::AddAddress { with: own, replaces: false };
    assert_eq!(change_of(&request(20, ACK, &address)), Ok(added));
    assert_eq!(change_of(&request(21, ACK, &address)), Ok(NetworkChange::RemoveAddress(own)));
    address[4] = 9;
    assert_eq!(change_of(&request(20, ACK, &address)), Err(19));
    let mut route = std::vec![2, 16, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0];
    route.extend(attribute(1, &[10, 5, 0, 0]));
    assert_eq!(change_of(&request(24, ACK, &route)), Err(19), "neither router nor interface");
    route.extend(attribute(5, &[10, 0, 2, 3]));
    let gateway = Some("10.0.2.3".parse().unwrap());
    let given = GivenRoute { destination: with("10.5.0.0/16"), gateway, metric: 0, protocol: 3 };
    assert_eq!(
        change_of(&request(24, ACK, &route)),
        Ok(NetworkChange::AddRoute { route: given, replaces: false })
    );
    let removed = NetworkChange::RemoveRoute { destination: with("10.5.0.0/16"), gateway, metric: None };
    assert_eq!(change_of(&request(25, ACK, &route)), Ok(removed));
    route[7] = 6;
    assert_eq!(change_of(&request(24, ACK, &route)), Err(95), "a black hole");
}

#[test]
fn changes_have_the_errors_of_linux() {
    let limits = DeviceLimits { mac: [0x52, 0x54, 0, 0x12, 0x34, 0x56], mtu: 1500 };
    let mut settings = DeviceSettings { mtu: 1500, is_up: true, ..DeviceSettings::default() };
    let mut apply = |change: NetworkChange| settings.apply(&change, &limits).err().unwrap_or(0);
    let add = |text: &str| NetworkChange::AddAddress { with: with(text), replaces: false };
    let route = |to: &str, gateway: Option<&str>| GivenRoute {
        destination: with(to),
        gateway: gateway.map(|gateway| gateway.parse().unwrap()),
        metric: 0,
        protocol: 3,
    };
    let add_route =
        |to: &str, gateway| NetworkChange::AddRoute { route: route(to, gateway), replaces: false };
    let remove_route =
        |to: &str| NetworkChange::RemoveRoute { destination: with(to), gateway: None, metric: None };
    assert_eq!(apply(add("10.0.2.15/24")), 0);
    assert_eq!(apply(add("10.0.2.15/24")), 17);
    assert_eq!(apply(add("127.0.0.5/8")), 22);
    assert_eq!(apply(add_route("0.0.0.0/0", Some("10.0.9.9"))), 101, "the router is not on the link");
    assert_eq!(apply(add_route("0.0.0.0/0", Some("10.0.2.2"))), 0);
    assert_eq!(apply(add_route("0.0.0.0/0", Some("10.0.2.3"))), 17);
    assert_eq!(apply(add_route("10.0.2.0/24", None)), 17, "it follows from the address");
    assert_eq!(apply(add_route("10.7.0.1/16", None)), 22, "bits behind the length");
    assert_eq!(apply(add_route("10.7.0.0/16", None)), 0);
    assert_eq!(apply(remove_route("10.7.0.0/16")), 0);
    assert_eq!(apply(remove_route("10.7.0.0/16")), 3);
    assert_eq!(apply(NetworkChange::RemoveAddress(with("10.0.2.16/24"))), 99);
    assert_eq!(apply(NetworkChange::Link { is_up: None, mtu: Some(9000) }), 22);
    assert_eq!(apply(NetworkChange::Link { is_up: Some(false), mtu: Some(1400) }), 0);
    assert_eq!(apply(add_route("0.0.0.0/0", Some("10.0.2.2"))), 100);
    assert_eq!(apply(NetworkChange::Link { is_up: Some(true), mtu: None }), 0);
    assert_eq!(apply(add_route("0.0.0.0/0", Some("10.0.2.2"))), 0);
    assert_eq!(apply(NetworkChange::RemoveAddress(with("10.0.2.15/24"))), 0);
    assert_eq!((settings.mtu, settings.routes.len()), (1400, 0));
    assert_eq!(settings.addresses, [link_local(limits.mac)]);
}

#[test]
fn a_configuration_is_checked() {
    for text in ["", "x", "dhcp6", "1.2.3.4/33", "1.2.3.4/", "1.2.3.4/8,", "/8", "::/129"] {
        assert_eq!(Configuration::parse(text), Err(InvalidConfiguration), "{text}");
    }
    let configuration = Configuration::parse("10.0.2.15/24,fec0::f/64,10.0.2.2,fec0::2").unwrap();
    assert_eq!((configuration.addresses.len(), configuration.gateways.len()), (2, 2));
    assert!(!configuration.uses_dhcp);
    let configuration = Configuration::parse("dhcp,fec0::f/64,fec0::2").unwrap();
    assert!(configuration.uses_dhcp && configuration.addresses == [with("fec0::f/64")]);
    assert_eq!(with("10.1.2.3/0").network(), with("0.0.0.0/0"));
    assert_eq!(with("10.1.2.3/32").network(), with("10.1.2.3/32"));
    assert_eq!(with("10.1.2.3/31").broadcast(), None);
}

#[test]
fn a_receiver_that_is_full_ends_the_answer() {
    let result = with_network(|network| {
        answer(network, &request(18, DUMP, &[0]), 1, false, &|_| Ok(()), &mut |_| Err(ReceiverFull))
    });
    assert_eq!(result, Err(ReceiverFull));
}

proptest! {
    #[test]
    fn no_request_does_harm(
        kind in 0_u16..120,
        flags in any::<u16>(),
        body in prop::collection::vec(any::<u8>(), 0..96),
    ) {
        let mut bytes = request(kind, flags, &body);
        ask(&bytes, true);
        // A length that lies.
        bytes[0] = body.first().copied().unwrap_or(0);
        with_network(|network| answer(network, &bytes, 1, true, &|_| Ok(()), &mut |bytes| {
            assert!(bytes.len() <= REPLY_BYTES_MAX);
            Ok(())
        })).unwrap();
    }
}

#[test]
fn a_loopback_has_its_addresses_while_it_is_up() {
    let [v4, v6] = LOOPBACK_ADDRESSES;
    let add = |with, replaces| LoopbackChange::AddAddress { with, replaces };
    let mut loopback = Loopback::DOWN;
    assert_eq!(loopback.addresses(), []);
    assert_eq!(loopback.apply(add(v4, false)), Ok(()));
    assert_eq!(loopback.apply(add(v4, false)), Err(EEXIST));
    assert_eq!(loopback.apply(add(v4, true)), Ok(()));
    assert_eq!(loopback.apply(add(with("10.0.0.1/8"), false)), Err(EOPNOTSUPP));
    assert_eq!(loopback.addresses(), [v4]);
    assert_eq!(loopback.apply(LoopbackChange::Link { is_up: true }), Ok(()));
    assert_eq!(loopback, Loopback::UP);
    assert_eq!(loopback.addresses(), [v4, v6]);
    assert_eq!(loopback.apply(LoopbackChange::RemoveAddress(v4)), Ok(()));
    assert_eq!(loopback.apply(LoopbackChange::RemoveAddress(v4)), Err(EADDRNOTAVAIL));
    // Up already: nothing comes back.
    assert_eq!(loopback.apply(LoopbackChange::Link { is_up: true }), Ok(()));
    assert_eq!(loopback.addresses(), [v6]);
    assert_eq!(loopback.apply(LoopbackChange::Link { is_up: false }), Ok(()));
    assert_eq!(loopback, Loopback::DOWN);
}

#[test]
fn no_network_has_a_number_in_another() {
    const GETNSID: u16 = 90;
    let [(header, body)] =
        &ask(&request(GETNSID, 0, &[&[0; 4][..], &attribute(3, &[5, 0, 0, 0])].concat()), false)[..]
    else {
        panic!("one answer");
    };
    assert_eq!(header.kind, GETNSID - 2);
    assert_eq!(body[4..], attribute(1, &[0xff; 4]));
    let [(_, refusal)] = &ask(&request(GETNSID, 0, &[0; 4]), false)[..] else { panic!("one answer") };
    assert_eq!(refusal[..4], (-EINVAL).to_ne_bytes());
}
