//! Multicast groups, told to the routers and switches of the link: IGMPv2 (RFC 2236) and MLDv1 (RFC 2710), which
//! listeners of their third and second versions understand.
//!
//! A group is reported when its first socket joins, when a router asks, and its end when the last socket leaves.
//! Answers to routers are sent at once: a virtual machine is on no link with so many members that they would have to
//! wait for one another.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::engine::Engine;
use crate::interface::Interface;
use crate::ip::{ETHERNET_BYTES, IpHeader, V6_BYTES, fold, protocol, sum};
use crate::link::TransmitOffload;
use crate::platform::Platform;

/// Bytes of an IPv4 header with one option, which asks routers to look at the packet.
const V4_BYTES: usize = 24;
const ROUTER_ALERT: [u8; 4] = [0x94, 4, 0, 0];
/// The same as an extension header of IPv6, behind which ICMPv6 follows.
const ROUTER_ALERT_V6: [u8; 8] = [protocol::ICMP_V6, 0, 5, 2, 0, 0, 1, 0];

const QUERY: u8 = 0x11;
const REPORT: u8 = 0x16;
const LEAVE: u8 = 0x17;
const MESSAGE_BYTES: usize = 8;

pub(crate) const QUERY_V6: u8 = 130;
const REPORT_V6: u8 = 131;
const DONE_V6: u8 = 132;
const MESSAGE_V6_BYTES: usize = 24;

const ALL_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 2);
const ALL_ROUTERS_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

/// Groups that one question is answered for at most.
const ANSWERS_MAX: usize = 64;

/// Whether routers hear of a group: not of that of all hosts, nor of those that don't leave the machine.
fn is_reported(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(v4) => v4.is_multicast() && v4.octets() != [224, 0, 0, 1],
        IpAddr::V6(v6) => {
            let words = v6.segments();
            let is_all_hosts = words[0] == 0xff02 && words[1..] == [0, 0, 0, 0, 0, 0, 1];
            v6.is_multicast() && words[0] & 0xf > 1 && !is_all_hosts
        }
    }
}

impl<P: Platform> Engine<P> {
    /// The first socket of the machine is in a group, or the last one has left.
    pub(crate) fn announce(&self, group: IpAddr, joins: bool) {
        if let Some(interface) = self.interface().filter(|_| is_reported(group)) {
            match group {
                IpAddr::V4(group) => announce_v4(interface, group, joins, P::now_ns()),
                IpAddr::V6(group) => announce_v6(interface, group, joins, P::now_ns()),
            }
        }
    }

    /// A message of IGMP has come over the link.
    pub(crate) fn receive_igmp(&self, message: &[u8]) {
        let Some(head) = message.first_chunk::<MESSAGE_BYTES>() else { return };
        if head[0] == QUERY && fold(sum(message, 0)) == 0xffff {
            let group = Ipv4Addr::new(head[4], head[5], head[6], head[7]);
            self.answer_query(IpAddr::V4(group));
        }
    }

    /// A question for members has come, as a message of ICMPv6 whose checksum is right.
    pub(crate) fn receive_query(&self, message: &[u8]) {
        let Some(head) = message.first_chunk::<MESSAGE_V6_BYTES>() else { return };
        let mut octets = [0; 16];
        octets.copy_from_slice(&head[8..]);
        self.answer_query(IpAddr::V6(Ipv6Addr::from(octets)));
    }

    /// Reports a group, or if it is unspecified all of its version.
    fn answer_query(&self, asked: IpAddr) {
        let fits = |group: &IpAddr| {
            if asked.is_unspecified() { group.is_ipv4() == asked.is_ipv4() } else { *group == asked }
        };
        let mut found = Vec::new();
        if found.try_reserve_exact(ANSWERS_MAX).is_ok() {
            self.each_group(|group| {
                if found.len() < ANSWERS_MAX && fits(&group) {
                    found.push(group);
                }
            });
        }
        for group in found {
            self.announce(group, true);
        }
    }
}

fn announce_v4(interface: &Interface, group: Ipv4Addr, joins: bool, now_ns: u64) {
    let target = if joins { group } else { ALL_ROUTERS };
    let Ok(IpAddr::V4(source)) = interface.source_for(IpAddr::V4(target)) else { return };
    let mut frame = [0; ETHERNET_BYTES + V4_BYTES + MESSAGE_BYTES];
    let (head, message) = frame[ETHERNET_BYTES..].split_at_mut(V4_BYTES);
    head[..4].copy_from_slice(&[0x46, 0xc0, 0, (V4_BYTES + MESSAGE_BYTES) as u8]);
    head[6] = 0x40;
    (head[8], head[9]) = (1, protocol::IGMP);
    head[12..16].copy_from_slice(&source.octets());
    head[16..20].copy_from_slice(&target.octets());
    head[20..].copy_from_slice(&ROUTER_ALERT);
    let checksum = !fold(sum(head, 0));
    head[10..12].copy_from_slice(&checksum.to_be_bytes());
    message[0] = if joins { REPORT } else { LEAVE };
    message[4..].copy_from_slice(&group.octets());
    let checksum = !fold(sum(message, 0));
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    // A report that is lost is made again when a router asks.
    let _ = interface.send(&mut frame, IpAddr::V4(target), TransmitOffload::default(), now_ns);
}

fn announce_v6(interface: &Interface, group: Ipv6Addr, joins: bool, now_ns: u64) {
    let target = if joins { group } else { ALL_ROUTERS_V6 };
    let (source, destination) = (IpAddr::V6(interface.link_local), IpAddr::V6(target));
    let mut frame = [0; ETHERNET_BYTES + V6_BYTES + ROUTER_ALERT_V6.len() + MESSAGE_V6_BYTES];
    let outer = IpHeader { source, destination, protocol: protocol::HOP_BY_HOP, ttl: 1, tos: 0 };
    outer.write(&mut frame[ETHERNET_BYTES..], ROUTER_ALERT_V6.len() + MESSAGE_V6_BYTES, None);
    let extension = ETHERNET_BYTES + V6_BYTES;
    frame[extension..extension + ROUTER_ALERT_V6.len()].copy_from_slice(&ROUTER_ALERT_V6);
    let message = &mut frame[extension + ROUTER_ALERT_V6.len()..];
    message[0] = if joins { REPORT_V6 } else { DONE_V6 };
    message[8..].copy_from_slice(&group.octets());
    let inner = IpHeader { protocol: protocol::ICMP_V6, ..outer };
    let checksum = !fold(sum(message, inner.pseudo_sum(message.len())));
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let _ = interface.send(&mut frame, destination, TransmitOffload::default(), now_ns);
}
