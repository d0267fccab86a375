//! Requests and their answers.

use core::net::IpAddr;

use super::loopback::LoopbackChange;
use super::message::{AF_BRIDGE, AF_INET, AF_INET6, AF_UNSPEC, HEADER_BYTES, Header, Reply, attributes};
use super::network::{Interface, InterfaceAddress, InterfaceKind, Network};
use super::route::{Route, TABLE_MAIN, family};
use super::settings::{EINVAL, ENETUNREACH, EOPNOTSUPP, GivenRoute, METRIC_V6, NetworkChange};

/// Bytes of the longest message that is sent.
pub const REPLY_BYTES_MAX: usize = 1024;

const NLMSG_NOOP: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_MULTI: u16 = 2;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_CAPPED: u16 = 0x100;

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
const RTM_GETNEIGH: u16 = 30;
const RTM_NEWNSID: u16 = 88;
const RTM_GETNSID: u16 = 90;

const EPERM: i32 = 1;
const ENODEV: i32 = 19;

const IFLA_ADDRESS: u16 = 1;
const IFLA_BROADCAST: u16 = 2;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_QDISC: u16 = 6;
const IFLA_STATS: u16 = 7;
const IFLA_TXQLEN: u16 = 13;
const IFLA_OPERSTATE: u16 = 16;
const IFLA_LINKMODE: u16 = 17;
const IFLA_STATS64: u16 = 23;
const IFLA_GROUP: u16 = 27;
const IFLA_PROMISCUITY: u16 = 30;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_CARRIER: u16 = 33;
const IFLA_ALT_IFNAME: u16 = 53;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_LABEL: u16 = 3;
const IFA_BROADCAST: u16 = 4;
const IFA_CACHEINFO: u16 = 6;
const IFA_FLAGS: u16 = 8;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_CACHEINFO: u16 = 12;
const RTA_TABLE: u16 = 15;
const RTA_PREF: u16 = 20;
const RTM_F_CLONED: u32 = 0x200;

const NETNSA_NSID: u16 = 1;
const NETNSA_PID: u16 = 2;
const NETNSA_FD: u16 = 3;
/// `NETNSA_NSID_NOT_ASSIGNED`, and the bytes of a `struct rtgenmsg`.
const NO_NUMBER: u32 = u32::MAX;
const GENERAL_BYTES: usize = 4;

/// Bytes of `struct ifinfomsg`, and where its index, flags and mask of flags are.
const LINK_BYTES: usize = 16;
const LINK_INDEX: usize = 4;
const LINK_FLAGS: usize = 8;
const LINK_CHANGE: usize = 12;
/// Bytes of `struct ifaddrmsg`, and of `struct rtmsg`.
const ADDRESS_BYTES: usize = 8;
const ROUTE_BYTES: usize = 12;
/// Counters of `struct rtnl_link_stats64`.
const STATISTICS: usize = 25;
const IFF_UP: u32 = 1;

/// The receiver takes no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverFull;

/// The result of carrying one request out: an errno.
type Outcome = Result<(), i32>;
/// Carries out a change of an interface.
pub type Changer<'a> = &'a dyn Fn(&NetworkChange) -> Result<(), i32>;

/// Whom the answers are for.
struct Requester<'a> {
    header: Header,
    /// The port of the socket that asks.
    port: u32,
    /// Takes a message.
    take: &'a mut dyn FnMut(&[u8]) -> Result<(), ReceiverFull>,
    /// A message was not taken.
    is_full: bool,
}

impl Requester<'_> {
    fn message(&self, kind: u16, flags: u16) -> Reply {
        Reply::new(kind, flags, self.header.sequence, self.port)
    }

    fn send(&mut self, message: &mut Reply) {
        self.is_full |= (self.take)(message.finish()).is_err();
    }

    const fn is_dump(&self) -> bool {
        self.header.flags & NLM_F_DUMP == NLM_F_DUMP
    }
}

/// Carries out the requests in `bytes`, one after the other, and calls `take` with each message of the answers, which
/// go to the socket with number `port`. Requests to change something need `is_privileged`, and call `change`.
///
/// # Errors
/// [`ReceiverFull`], if `take` returned it.
pub fn answer(
    network: &Network<'_>,
    bytes: &[u8],
    port: u32,
    is_privileged: bool,
    change: Changer<'_>,
    take: &mut dyn FnMut(&[u8]) -> Result<(), ReceiverFull>,
) -> Result<(), ReceiverFull> {
    let mut rest = bytes;
    while let Some((header, message, following)) = Header::split(rest) {
        rest = following;
        if header.flags & NLM_F_REQUEST == 0 || header.kind <= NLMSG_DONE && header.kind != NLMSG_NOOP {
            continue;
        }
        let mut requester = Requester { header, port, take: &mut *take, is_full: false };
        let outcome = carry_out(network, message, is_privileged, &mut requester, change);
        let is_done =
            outcome.is_ok() && header.flags & NLM_F_ACK == 0 || outcome.is_ok() && requester.is_dump();
        if !is_done {
            acknowledge(&mut requester, message, outcome);
        }
        if requester.is_full {
            return Err(ReceiverFull);
        }
    }
    Ok(())
}

/// The answer that says how a request ended: with the header of the request, and all of it if it failed.
fn acknowledge(requester: &mut Requester<'_>, request: &[u8], outcome: Outcome) {
    const ROOM: usize = REPLY_BYTES_MAX - 2 * HEADER_BYTES;
    let failed = outcome.is_err() && request.len() <= ROOM;
    let quoted = if failed { request } else { &request[..HEADER_BYTES] };
    let mut reply = requester.message(NLMSG_ERROR, if failed { 0 } else { NLM_F_CAPPED });
    reply.word(outcome.err().map_or(0, |errno| errno.wrapping_neg()).cast_unsigned()).bytes(quoted);
    requester.send(&mut reply);
}

fn carry_out(
    network: &Network<'_>,
    request: &[u8],
    is_privileged: bool,
    requester: &mut Requester<'_>,
    change: Changer<'_>,
) -> Outcome {
    let body = &request[HEADER_BYTES..];
    let replaces = requester.header.flags & NLM_F_REPLACE != 0;
    let kind = requester.header.kind;
    match (kind, requester.is_dump()) {
        (NLMSG_NOOP, _) => return Ok(()),
        (RTM_GETLINK, true) => dump_links(network, body, requester),
        (RTM_GETLINK, false) => {
            let interface = find_interface(network, body)?;
            let mut reply = requester.message(RTM_NEWLINK, 0);
            describe_link(interface, &mut reply);
            requester.send(&mut reply);
            return Ok(());
        }
        (RTM_GETADDR, true) => dump_addresses(network, body, requester),
        (RTM_GETROUTE, true) => dump_routes(network, body, requester),
        (RTM_GETROUTE, false) => return find_route(network, body, requester),
        // Neighbours come and go in the engine, and nobody needs them to go on.
        (RTM_GETNEIGH, true) => {}
        (RTM_GETADDR | RTM_GETNEIGH, false) => return Err(EOPNOTSUPP),
        (RTM_GETNSID, false) => return number_of_namespace(body, requester),
        // Every fourth number, from 18 on, only asks.
        (18.., _) if kind % 4 == 2 => return Err(EOPNOTSUPP),
        _ if !is_privileged => return Err(EPERM),
        (RTM_NEWLINK, _) => {
            let has_name = |(kind, _): (u16, &[u8])| matches!(kind, IFLA_IFNAME | IFLA_ALT_IFNAME);
            let is_named = word(body, LINK_INDEX)? != 0
                || attributes(body.get(LINK_BYTES..).unwrap_or(&[])).any(has_name);
            return match set_link(network, body, change) {
                // None of these can be made. Of nothing, `ip` learns by this error that there is such a request.
                Err(ENODEV) if requester.header.flags & NLM_F_CREATE != 0 => Err(EOPNOTSUPP),
                Err(EINVAL) if !is_named => Err(ENODEV),
                result => result,
            };
        }
        (RTM_SETLINK, _) => return set_link(network, body, change),
        (RTM_NEWADDR, _) => return add_address(network, body, replaces, change),
        (RTM_DELADDR, _) => return remove_address(network, body, change),
        // No interface can be removed.
        (RTM_DELLINK, _) => return find_interface(network, body).and(Err(EOPNOTSUPP)),
        (RTM_NEWROUTE, _) => return add_route(network, body, replaces, change),
        (RTM_DELROUTE, _) => return remove_route(network, body, change),
        _ => return Err(EOPNOTSUPP),
    }
    let mut done = requester.message(NLMSG_DONE, NLM_F_MULTI);
    done.word(0);
    requester.send(&mut done);
    Ok(())
}

/// The family that a dump is about, the first byte of every request.
fn wanted_family(body: &[u8]) -> u8 {
    body.first().copied().unwrap_or(AF_UNSPEC)
}

fn word(body: &[u8], at: usize) -> Result<u32, i32> {
    let bytes = body.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u32::from_ne_bytes).ok_or(EINVAL)
}

fn find_interface<'a>(network: &Network<'a>, body: &[u8]) -> Result<&'a Interface<'a>, i32> {
    let index = word(body, LINK_INDEX)?;
    if index != 0 {
        return network.by_index(index).ok_or(ENODEV);
    }
    let rest = body.get(LINK_BYTES..).unwrap_or(&[]);
    let named = attributes(rest).find(|(kind, _)| matches!(*kind, IFLA_IFNAME | IFLA_ALT_IFNAME));
    let (_, name) = named.ok_or(EINVAL)?;
    network.by_name(name.split(|&byte| byte == 0).next().unwrap_or(name)).ok_or(ENODEV)
}

fn dump_links(network: &Network<'_>, body: &[u8], requester: &mut Requester<'_>) {
    if wanted_family(body) == AF_BRIDGE {
        return;
    }
    for interface in network.interfaces {
        let mut reply = requester.message(RTM_NEWLINK, NLM_F_MULTI);
        describe_link(interface, &mut reply);
        requester.send(&mut reply);
    }
}

fn describe_link(interface: &Interface<'_>, reply: &mut Reply) {
    let queue_length = 1000;
    let discipline = match interface.kind {
        InterfaceKind::Loopback if interface.is_up => "noqueue",
        InterfaceKind::Loopback => "noop",
        InterfaceKind::Ethernet => "pfifo_fast",
    };
    reply.bytes(&[AF_UNSPEC, 0]).half(interface.kind.number());
    reply.word(interface.index).word(interface.flags()).word(0);
    reply.attribute_text(IFLA_IFNAME, interface.name).attribute_word(IFLA_TXQLEN, queue_length);
    reply.attribute(IFLA_OPERSTATE, &[interface.state()]).attribute(IFLA_LINKMODE, &[0]);
    reply.attribute_word(IFLA_MTU, interface.mtu).attribute_word(IFLA_GROUP, 0);
    reply.attribute_word(IFLA_PROMISCUITY, 0);
    reply.attribute_word(IFLA_NUM_TX_QUEUES, 1).attribute_word(IFLA_NUM_RX_QUEUES, 1);
    reply.attribute(IFLA_CARRIER, &[u8::from(interface.has_link)]).attribute_text(IFLA_QDISC, discipline);
    reply.attribute(IFLA_ADDRESS, &interface.mac).attribute(IFLA_BROADCAST, &interface.broadcast_mac());
    let counts = &interface.traffic;
    let mut wide = [0; STATISTICS * 8];
    let mut narrow = [0; (STATISTICS - 1) * 4];
    let values = [
        counts.received_packets,
        counts.sent_packets,
        counts.received_bytes,
        counts.sent_bytes,
        counts.received_errors,
        counts.sent_errors,
        counts.received_dropped,
        counts.sent_dropped,
    ];
    for ((wide, narrow), value) in wide.chunks_exact_mut(8).zip(narrow.chunks_exact_mut(4)).zip(values) {
        wide.copy_from_slice(&value.to_ne_bytes());
        narrow.copy_from_slice(&(value as u32).to_ne_bytes());
    }
    reply.attribute(IFLA_STATS64, &wide).attribute(IFLA_STATS, &narrow);
}

fn dump_addresses(network: &Network<'_>, body: &[u8], requester: &mut Requester<'_>) {
    let wanted = wanted_family(body);
    // As in Linux: all of one family, then all of the other.
    for each in [AF_INET, AF_INET6] {
        if wanted != AF_UNSPEC && wanted != each {
            continue;
        }
        for interface in network.interfaces {
            for with in interface.addresses.iter().filter(|with| family(with.address) == each) {
                let mut reply = requester.message(RTM_NEWADDR, NLM_F_MULTI);
                describe_address(interface, with, &mut reply);
                requester.send(&mut reply);
            }
        }
    }
}

fn describe_address(interface: &Interface<'_>, with: &InterfaceAddress, reply: &mut Reply) {
    let flags = with.flags();
    reply.bytes(&[family(with.address), with.length, flags as u8, with.scope()]).word(interface.index);
    reply.attribute_address(IFA_ADDRESS, with.address);
    if with.address.is_ipv4() {
        reply.attribute_address(IFA_LOCAL, with.address);
        if let Some(broadcast) = with.broadcast() {
            reply.attribute_address(IFA_BROADCAST, IpAddr::V4(broadcast));
        }
        reply.attribute_text(IFA_LABEL, interface.name);
    }
    reply.attribute_word(IFA_FLAGS, flags);
    // Valid and preferred for ever, made at the start.
    let mut ages = [0; 16];
    ages[..8].fill(0xff);
    reply.attribute(IFA_CACHEINFO, &ages);
}

fn dump_routes(network: &Network<'_>, body: &[u8], requester: &mut Requester<'_>) {
    let wanted = wanted_family(body);
    for each in [AF_INET, AF_INET6] {
        if wanted != AF_UNSPEC && wanted != each {
            continue;
        }
        network.routes(&mut |route| {
            if route.family() == each {
                let mut reply = requester.message(RTM_NEWROUTE, NLM_F_MULTI);
                describe_route(route, 0, &mut reply);
                requester.send(&mut reply);
            }
            true
        });
    }
}

fn describe_route(route: &Route, flags: u32, reply: &mut Reply) {
    let lengths = [route.destination.length, 0, 0];
    reply.bytes(&[route.family()]).bytes(&lengths);
    reply.bytes(&[route.table, route.protocol, route.scope, route.kind as u8]).word(flags);
    reply.attribute_word(RTA_TABLE, u32::from(route.table));
    if route.destination.length > 0 {
        reply.attribute_address(RTA_DST, route.destination.address);
    }
    if route.metric > 0 {
        reply.attribute_word(RTA_PRIORITY, route.metric);
    }
    if let Some(source) = route.source {
        reply.attribute_address(RTA_PREFSRC, source);
    }
    if let Some(gateway) = route.gateway {
        reply.attribute_address(RTA_GATEWAY, gateway);
    }
    reply.attribute_word(RTA_OIF, route.interface);
    if route.family() == AF_INET6 {
        reply.attribute(RTA_CACHEINFO, &[0; 32]).attribute(RTA_PREF, &[0]);
    }
}

/// The address of an attribute.
fn address(value: &[u8]) -> Result<IpAddr, i32> {
    if let Ok(octets) = <[u8; 4]>::try_from(value) {
        return Ok(IpAddr::from(octets));
    }
    <[u8; 16]>::try_from(value).map(IpAddr::from).map_err(|_| EINVAL)
}

fn find_route(network: &Network<'_>, body: &[u8], requester: &mut Requester<'_>) -> Outcome {
    let rest = body.get(ROUTE_BYTES..).ok_or(EINVAL)?;
    let (_, value) = attributes(rest).find(|(kind, _)| *kind == RTA_DST).ok_or(EINVAL)?;
    let target = address(value)?;
    if family(target) != wanted_family(body) {
        return Err(EINVAL);
    }
    let mut route = network.route_to(target).ok_or(ENETUNREACH)?;
    route.source = network.source(&route);
    let length = if target.is_ipv4() { 32 } else { 128 };
    route.destination = InterfaceAddress { address: target, length };
    let mut reply = requester.message(RTM_NEWROUTE, 0);
    describe_route(&route, RTM_F_CLONED, &mut reply);
    requester.send(&mut reply);
    Ok(())
}

/// The number by which the network knows another one: it has none, because no interface leads from one to the other.
fn number_of_namespace(body: &[u8], requester: &mut Requester<'_>) -> Outcome {
    let rest = body.get(GENERAL_BYTES..).unwrap_or(&[]);
    let names_one = |(kind, _): (u16, &[u8])| matches!(kind, NETNSA_PID | NETNSA_FD);
    if !attributes(rest).any(names_one) {
        return Err(EINVAL);
    }
    let mut reply = requester.message(RTM_NEWNSID, 0);
    reply.bytes(&[AF_UNSPEC, 0, 0, 0]).attribute_word(NETNSA_NSID, NO_NUMBER);
    requester.send(&mut reply);
    Ok(())
}

/// A request to set an interface up or down, and its largest packet; the loopback's stays as it is.
fn set_link(network: &Network<'_>, body: &[u8], change: Changer<'_>) -> Outcome {
    let interface = find_interface(network, body)?;
    let (flags, mask) = (word(body, LINK_FLAGS)?, word(body, LINK_CHANGE)?);
    let mask = if mask == 0 { flags } else { mask };
    let mut mtu = None;
    for (kind, value) in attributes(body.get(LINK_BYTES..).ok_or(EINVAL)?) {
        match kind {
            IFLA_IFNAME | IFLA_ALT_IFNAME => {
                let name = value.split(|&byte| byte == 0).next().unwrap_or(value);
                if name != interface.name.as_bytes() {
                    return Err(EOPNOTSUPP);
                }
            }
            IFLA_MTU => mtu = Some(word(value, 0)?),
            _ => return Err(EOPNOTSUPP),
        }
    }
    // Of the other flags none can be changed.
    if (flags ^ interface.flags()) & mask & !IFF_UP != 0 {
        return Err(EOPNOTSUPP);
    }
    let is_up = (mask & IFF_UP != 0).then_some(flags & IFF_UP != 0);
    if interface.kind == InterfaceKind::Loopback {
        if mtu.is_some_and(|mtu| mtu != interface.mtu) {
            return Err(EOPNOTSUPP);
        }
        let Some(is_up) = is_up else { return Ok(()) };
        return change(&NetworkChange::Loopback(LoopbackChange::Link { is_up }));
    }
    change(&NetworkChange::Link { is_up, mtu })
}

/// The interface and the address of a request about one.
fn named_address<'a>(
    network: &Network<'a>,
    body: &[u8],
) -> Result<(&'a Interface<'a>, InterfaceAddress), i32> {
    let interface = network.by_index(word(body, 4)?).ok_or(ENODEV)?;
    let rest = body.get(ADDRESS_BYTES..).ok_or(EINVAL)?;
    let find = |wanted| attributes(rest).find(|(kind, _)| *kind == wanted);
    let (_, local) = find(IFA_LOCAL).or_else(|| find(IFA_ADDRESS)).ok_or(EINVAL)?;
    let local = address(local)?;
    if family(local) != wanted_family(body) {
        return Err(EINVAL);
    }
    Ok((interface, InterfaceAddress::new(local, body[1]).ok_or(EINVAL)?))
}

fn add_address(network: &Network<'_>, body: &[u8], replaces: bool, change: Changer<'_>) -> Outcome {
    let (interface, with) = named_address(network, body)?;
    if interface.kind == InterfaceKind::Loopback {
        return change(&NetworkChange::Loopback(LoopbackChange::AddAddress { with, replaces }));
    }
    change(&NetworkChange::AddAddress { with, replaces })
}

fn remove_address(network: &Network<'_>, body: &[u8], change: Changer<'_>) -> Outcome {
    let (interface, with) = named_address(network, body)?;
    if interface.kind == InterfaceKind::Loopback {
        return change(&NetworkChange::Loopback(LoopbackChange::RemoveAddress(with)));
    }
    change(&NetworkChange::RemoveAddress(with))
}

/// A route that a request names: one by the interface with a device.
struct NamedRoute {
    destination: InterfaceAddress,
    gateway: Option<IpAddr>,
    metric: Option<u32>,
    protocol: u8,
    has_interface: bool,
}

fn named_route(network: &Network<'_>, body: &[u8]) -> Result<NamedRoute, i32> {
    let rest = body.get(ROUTE_BYTES..).ok_or(EINVAL)?;
    let is_v4 = match wanted_family(body) {
        AF_INET => true,
        AF_INET6 => false,
        _ => return Err(EOPNOTSUPP),
    };
    let any = if is_v4 { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    let [_, length, source_length, service, table, protocol, _, kind, ..] = *body else { return Err(EINVAL) };
    // Routes to others, in the table that is looked at.
    let is_plain =
        source_length == 0 && service == 0 && matches!(kind, 0 | 1) && matches!(table, 0 | TABLE_MAIN);
    if !is_plain {
        return Err(EOPNOTSUPP);
    }
    let mut named = NamedRoute {
        destination: InterfaceAddress::new(any, length).ok_or(EINVAL)?,
        gateway: None,
        metric: None,
        protocol,
        has_interface: false,
    };
    for (kind, value) in attributes(rest) {
        match kind {
            RTA_DST => named.destination.address = address(value)?,
            RTA_GATEWAY => named.gateway = Some(address(value)?),
            RTA_PRIORITY => named.metric = Some(word(value, 0)?).filter(|&metric| metric != 0),
            RTA_TABLE if word(value, 0)? == u32::from(TABLE_MAIN) => {}
            RTA_OIF => {
                let interface = network.by_index(word(value, 0)?).ok_or(ENODEV)?;
                if interface.kind == InterfaceKind::Loopback {
                    return Err(EOPNOTSUPP);
                }
                named.has_interface = true;
            }
            RTA_PREF => {}
            _ => return Err(EOPNOTSUPP),
        }
    }
    if named.destination.address.is_ipv4() != is_v4 {
        return Err(EINVAL);
    }
    Ok(named)
}

fn add_route(network: &Network<'_>, body: &[u8], replaces: bool, change: Changer<'_>) -> Outcome {
    let NamedRoute { destination, gateway, metric, protocol, has_interface } = named_route(network, body)?;
    if gateway.is_none() && !has_interface {
        return Err(ENODEV);
    }
    let default = if destination.address.is_ipv4() { 0 } else { METRIC_V6 };
    let route = GivenRoute { destination, gateway, metric: metric.unwrap_or(default), protocol };
    change(&NetworkChange::AddRoute { route, replaces })
}

fn remove_route(network: &Network<'_>, body: &[u8], change: Changer<'_>) -> Outcome {
    let NamedRoute { destination, gateway, metric, .. } = named_route(network, body)?;
    change(&NetworkChange::RemoveRoute { destination, gateway, metric })
}
