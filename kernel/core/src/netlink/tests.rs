//! Requests as programs make them, and what they are answered.

use core::net::IpAddr;
use std::vec::Vec;

use proptest::prelude::*;

use super::message::{HEADER_BYTES, Header, attributes};
use super::*;

const REQUEST: u16 = 1;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;

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
        has_link: true,
        addresses,
        traffic: TrafficCounts { received_packets: 7, ..TrafficCounts::default() },
    };
    let interfaces = [
        interface(1, "lo", InterfaceKind::Loopback, [0; 6], &local[..]),
        interface(2, "eth0", InterfaceKind::Ethernet, mac, &outer[..]),
    ];
    let gateways = ["10.0.2.2".parse().unwrap(), "fec0::2".parse().unwrap()];
    f(&Network { interfaces: &interfaces, gateways: &gateways })
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
        answer(network, bytes, 1234, is_privileged, &mut take).unwrap();
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
fn changes_are_refused() {
    let mut up = std::vec![0; 16];
    (up[4], up[8], up[12]) = (1, 1, 1);
    assert_eq!(errno(&ask(&request(16, ACK, &up), false)), 1, "only root");
    assert_eq!(errno(&ask(&request(16, ACK, &up), true)), 0, "it is up");
    up[8] = 0;
    assert_eq!(errno(&ask(&request(16, ACK, &up), true)), 95, "it stays up");
    let mut address = std::vec![2, 24, 0, 0, 2, 0, 0, 0];
    address.extend(attribute(2, &[10, 0, 2, 15]));
    assert_eq!(errno(&ask(&request(20, ACK, &address), true)), 17);
    assert_eq!(errno(&ask(&request(34, DUMP, &[0]), false)), 95, "rules");
}

#[test]
fn a_configuration_is_checked() {
    for text in ["", "x", "1.2.3.4/33", "1.2.3.4/", "1.2.3.4/8,", "/8", "::/129"] {
        assert_eq!(Configuration::parse(text), Err(InvalidConfiguration), "{text}");
    }
    let configuration = Configuration::parse("10.0.2.15/24,fec0::f/64,10.0.2.2,fec0::2").unwrap();
    assert_eq!((configuration.addresses.len(), configuration.gateways.len()), (2, 2));
    assert_eq!(with("10.1.2.3/0").network(), with("0.0.0.0/0"));
    assert_eq!(with("10.1.2.3/32").network(), with("10.1.2.3/32"));
    assert_eq!(with("10.1.2.3/31").broadcast(), None);
}

#[test]
fn a_receiver_that_is_full_ends_the_answer() {
    let result = with_network(|network| {
        answer(network, &request(18, DUMP, &[0]), 1, false, &mut |_| Err(ReceiverFull))
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
        with_network(|network| answer(network, &bytes, 1, true, &mut |bytes| {
            assert!(bytes.len() <= REPLY_BYTES_MAX);
            Ok(())
        })).unwrap();
    }
}
