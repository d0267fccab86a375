//! The machine's one Ethernet interface: addresses, routes, and the neighbours' hardware addresses (ARP, RFC 826, and
//! neighbour discovery, RFC 4861).

use crate::lock::SpinMutex;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use heddle_kernel_core::hash::KeyedMap;

use crate::address::{broadcast, same_prefix};
use crate::conflict::Probed;
use crate::error::{InetError, InetResult};
use crate::ip::{ETHERNET_BYTES, IpHeader, V6_BYTES, fold, protocol, sum};
use crate::link::{Link, LinkCapabilities, TransmitOffload};
use crate::platform::OutOfMemory;

/// The interface numbers that programs see.
pub const LOOPBACK_INDEX: u32 = 1;
/// See [`LOOPBACK_INDEX`].
pub const ETHERNET_INDEX: u32 = 2;

/// An address and how many of its bits the subnet has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The address.
    pub address: IpAddr,
    /// The subnet's bits.
    pub prefix: u8,
}

/// A route that does not follow from an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceRoute {
    /// The addresses that it leads to, by their first and the bits that are theirs.
    pub destination: InterfaceAddress,
    /// The router, if they are not on the link.
    pub gateway: Option<IpAddr>,
    /// The cost: the lowest of equal length counts.
    pub metric: u32,
}

/// The part of an interface that can be changed.
#[derive(Debug)]
pub struct InterfaceSettings {
    /// Its addresses.
    pub addresses: Vec<InterfaceAddress>,
    /// Further routes.
    pub routes: Vec<InterfaceRoute>,
    /// Whether packets come and go.
    pub is_up: bool,
    /// Bytes of the largest packet.
    pub mtu: usize,
}

/// How long a neighbour's hardware address is used before it is asked for again.
const FRESH_NS: u64 = 60_000_000_000;
/// How long an answer is waited for before the question is repeated, and how often that is done.
const ASK_NS: u64 = 1_000_000_000;
const ASK_MAX: u8 = 3;
/// Frames that wait for one answer, and neighbours that are known.
const WAITING_MAX: usize = 16;
const NEIGHBOURS_MAX: usize = 1024;

/// The packet size that every link of IPv6 carries, and the longest packet.
const MTU_MIN: usize = 1280;
const MTU_MAX: usize = 65_535;

const TYPE_V4: [u8; 2] = [0x08, 0x00];
const TYPE_ARP: [u8; 2] = [0x08, 0x06];
const TYPE_V6: [u8; 2] = [0x86, 0xdd];
/// The hardware address of everyone on the link.
pub(crate) const EVERYONE: [u8; 6] = [0xff; 6];

const ARP_BYTES: usize = 28;
pub(crate) const ARP_REQUEST: u8 = 1;
const ARP_REPLY: u8 = 2;

const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
/// Of both: a header of four bytes, flags, and the address.
const NEIGHBOUR_BYTES: usize = 24;
/// An option with a hardware address.
const NEIGHBOUR_OPTION: usize = 8;

struct Neighbour {
    mac: Option<[u8; 6]>,
    /// When it was heard of last, or asked for.
    since_ns: u64,
    asked: u8,
    waiting: Vec<(Vec<u8>, TransmitOffload)>,
}

/// See the module.
pub struct Interface {
    pub(crate) link: &'static dyn Link,
    mac: [u8; 6],
    capabilities: LinkCapabilities,
    settings: SpinMutex<InterfaceSettings>,
    neighbours: SpinMutex<KeyedMap<IpAddr, Neighbour>>,
    /// An address that may become this machine's.
    pub(crate) probed: SpinMutex<Option<Probed>>,
    /// The address that its hardware address makes.
    pub(crate) link_local: Ipv6Addr,
}

/// The contents of a frame.
pub(crate) enum Received<'a> {
    /// A packet of IP.
    Packet(&'a [u8]),
    /// Nothing for anyone else.
    Nothing,
}

impl Interface {
    /// An interface on `link`.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(
        link: &'static dyn Link,
        addresses: &[InterfaceAddress],
        gateways: &[IpAddr],
    ) -> Result<Self, OutOfMemory> {
        let mac = link.mac();
        let mut own = Vec::new();
        own.try_reserve_exact(addresses.len() + 1).map_err(|_| OutOfMemory)?;
        own.extend_from_slice(addresses);
        let link_local = link_local(mac);
        let every_link_has = InterfaceAddress { address: IpAddr::V6(link_local), prefix: 64 };
        if !own.contains(&every_link_has) {
            own.push(every_link_has);
        }
        let mut routes = Vec::new();
        routes.try_reserve_exact(gateways.len()).map_err(|_| OutOfMemory)?;
        routes.extend(gateways.iter().map(|&gateway| InterfaceRoute {
            destination: InterfaceAddress { address: gateway, prefix: 0 },
            gateway: Some(gateway),
            metric: 0,
        }));
        let mtu = link.mtu().clamp(MTU_MIN, MTU_MAX);
        Ok(Self {
            link,
            mac,
            capabilities: link.capabilities(),
            settings: SpinMutex::new(InterfaceSettings { addresses: own, routes, is_up: true, mtu }),
            neighbours: SpinMutex::new(KeyedMap::default()),
            probed: SpinMutex::new(None),
            link_local,
        })
    }

    /// Has other settings from now on.
    pub fn change(&self, mut settings: InterfaceSettings) {
        settings.mtu = settings.mtu.clamp(MTU_MIN, self.link.mtu().clamp(MTU_MIN, MTU_MAX));
        let old = core::mem::replace(&mut *self.settings.lock(), settings);
        drop(old);
    }

    /// Bytes of the largest packet.
    #[must_use]
    pub fn mtu(&self) -> usize {
        self.settings.lock().mtu
    }

    /// Work that the link takes over.
    #[must_use]
    pub const fn capabilities(&self) -> LinkCapabilities {
        self.capabilities
    }

    /// The neighbours whose hardware addresses are known; none if there is no memory to list them.
    #[must_use]
    pub fn neighbours(&self) -> Vec<(IpAddr, [u8; 6])> {
        let neighbours = self.neighbours.lock();
        let mut all = Vec::new();
        if all.try_reserve_exact(neighbours.len()).is_ok() {
            all.extend(neighbours.iter().filter_map(|(&address, known)| Some((address, known.mac?))));
        }
        all
    }

    /// Whether frames wait for the hardware address of a neighbour.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        self.neighbours.lock().values().any(|known| !known.waiting.is_empty())
    }

    /// Whether an address is its own.
    #[must_use]
    pub fn has(&self, address: IpAddr) -> bool {
        let settings = self.settings.lock();
        settings.is_up && settings.addresses.iter().any(|own| own.address == address)
    }

    /// Whether an address stands for everyone on the link.
    #[must_use]
    pub fn is_broadcast(&self, address: IpAddr) -> bool {
        matches!(address, IpAddr::V4(v4) if v4.is_broadcast() || self.settings.lock().is_broadcast(v4))
    }

    fn is_on_link(&self, address: IpAddr) -> bool {
        self.settings.lock().next_hop(address) == Some(address)
    }

    /// The address that packets to `target` come from.
    ///
    /// # Errors
    /// [`InetError::NetworkUnreachable`].
    pub fn source_for(&self, target: IpAddr) -> InetResult<IpAddr> {
        let settings = self.settings.lock();
        let hop = match target {
            _ if !settings.is_up => None,
            IpAddr::V4(v4) if v4.is_broadcast() || settings.is_broadcast(v4) => Some(target),
            _ if target.is_multicast() => Some(target),
            _ => settings.next_hop(target),
        };
        let hop = hop.ok_or(InetError::NetworkUnreachable)?;
        let fits = |own: &&InterfaceAddress| own.address.is_ipv4() == target.is_ipv4();
        let same = |own: &&InterfaceAddress| same_prefix(own.address, hop, own.prefix);
        let own = settings.addresses.iter().filter(fits).find(same);
        let own = own.or_else(|| settings.addresses.iter().find(fits));
        own.map(|own| own.address).ok_or(InetError::NetworkUnreachable)
    }

    /// Sends a frame whose packet is complete, behind room for the Ethernet header.
    ///
    /// # Errors
    /// [`InetError::NetworkUnreachable`]; [`InetError::NoBuffers`]: the link is full. A frame that waits for an answer
    /// of its neighbour counts as sent.
    pub fn send(
        &self,
        frame: &mut [u8],
        target: IpAddr,
        offload: TransmitOffload,
        now_ns: u64,
    ) -> InetResult<()> {
        let kind = if target.is_ipv4() { TYPE_V4 } else { TYPE_V6 };
        frame[6..12].copy_from_slice(&self.mac);
        frame[12..14].copy_from_slice(&kind);
        let mac = match target {
            IpAddr::V4(v4) if v4.is_multicast() => {
                let [_, second, third, fourth] = v4.octets();
                [0x01, 0x00, 0x5e, second & 0x7f, third, fourth]
            }
            IpAddr::V6(v6) if v6.is_multicast() => multicast_mac(v6),
            _ if self.is_broadcast(target) => EVERYONE,
            _ => {
                let hop = self.settings.lock().next_hop(target);
                let hop = hop.ok_or(InetError::NetworkUnreachable)?;
                match self.resolve(hop, frame, offload, now_ns)? {
                    Some(mac) => mac,
                    None => return Ok(()),
                }
            }
        };
        frame[..6].copy_from_slice(&mac);
        self.link.transmit(frame, offload).map_err(|_| InetError::NoBuffers)
    }

    /// The hardware address of a neighbour. If it is not known it is asked for, and the frame waits.
    fn resolve(
        &self,
        hop: IpAddr,
        frame: &[u8],
        offload: TransmitOffload,
        now_ns: u64,
    ) -> InetResult<Option<[u8; 6]>> {
        let mut neighbours = self.neighbours.lock();
        if let Some(known) = neighbours.get_mut(&hop) {
            let age_ns = now_ns.saturating_sub(known.since_ns);
            if let Some(mac) = known.mac {
                if age_ns > FRESH_NS && known.asked < ASK_MAX {
                    // It goes on being used while it is asked again.
                    known.asked += 1;
                    known.since_ns = now_ns.saturating_sub(FRESH_NS - ASK_NS);
                    drop(neighbours);
                    self.ask(hop, Some(mac));
                } else if age_ns > FRESH_NS {
                    known.mac = None;
                    known.asked = 0;
                }
                return Ok(Some(mac));
            }
        } else {
            if neighbours.len() >= NEIGHBOURS_MAX {
                forget_oldest(&mut neighbours);
            }
            neighbours.try_reserve(1).map_err(|_| InetError::NoMemory)?;
            neighbours.insert(hop, Neighbour { mac: None, since_ns: 0, asked: 0, waiting: Vec::new() });
        }
        let Some(known) = neighbours.get_mut(&hop) else { return Ok(None) };
        if known.waiting.len() >= WAITING_MAX {
            known.waiting.remove(0);
        }
        let mut copy = Vec::new();
        copy.try_reserve_exact(frame.len()).map_err(|_| InetError::NoMemory)?;
        copy.extend_from_slice(frame);
        known.waiting.try_reserve(1).map_err(|_| InetError::NoMemory)?;
        known.waiting.push((copy, offload));
        let asks = known.asked == 0 || now_ns.saturating_sub(known.since_ns) >= ASK_NS;
        if asks {
            known.asked = known.asked.saturating_add(1);
            known.since_ns = now_ns;
        }
        let is_silent = known.asked > ASK_MAX;
        if is_silent {
            // Nobody answers. The next packet asks anew.
            neighbours.remove(&hop);
            return Err(InetError::HostUnreachable);
        }
        drop(neighbours);
        if asks {
            self.ask(hop, None);
        }
        Ok(None)
    }

    /// Asks for a neighbour's hardware address: everyone, or itself.
    fn ask(&self, hop: IpAddr, known: Option<[u8; 6]>) {
        match hop {
            IpAddr::V4(hop) => {
                let source = match self.source_for(IpAddr::V4(hop)) {
                    Ok(IpAddr::V4(v4)) => v4,
                    _ => Ipv4Addr::UNSPECIFIED,
                };
                let frame = self.arp(ARP_REQUEST, known.unwrap_or(EVERYONE), [0; 6], source, hop);
                let _ = self.link.transmit(&frame, TransmitOffload::default());
            }
            IpAddr::V6(hop) => {
                let source = self.source_for(IpAddr::V6(hop)).ok();
                let source = match source {
                    Some(IpAddr::V6(v6)) => v6,
                    _ => self.link_local,
                };
                let group = solicited_node(hop);
                let mac = known.unwrap_or_else(|| multicast_mac(group));
                let frame = self.neighbour_message(NEIGHBOUR_SOLICITATION, mac, source, group, hop);
                let _ = self.link.transmit(&frame, TransmitOffload::default());
            }
        }
    }

    pub(crate) fn arp(
        &self,
        operation: u8,
        to: [u8; 6],
        target_mac: [u8; 6],
        source: Ipv4Addr,
        target: Ipv4Addr,
    ) -> [u8; ETHERNET_BYTES + ARP_BYTES] {
        let mut frame = [0; ETHERNET_BYTES + ARP_BYTES];
        frame[..6].copy_from_slice(&to);
        frame[6..12].copy_from_slice(&self.mac);
        frame[12..14].copy_from_slice(&TYPE_ARP);
        frame[14..22].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, operation]);
        frame[22..28].copy_from_slice(&self.mac);
        frame[28..32].copy_from_slice(&source.octets());
        frame[32..38].copy_from_slice(&target_mac);
        frame[38..42].copy_from_slice(&target.octets());
        frame
    }

    fn neighbour_message(
        &self,
        kind: u8,
        to: [u8; 6],
        source: Ipv6Addr,
        destination: Ipv6Addr,
        target: Ipv6Addr,
    ) -> [u8; ETHERNET_BYTES + V6_BYTES + NEIGHBOUR_BYTES + NEIGHBOUR_OPTION] {
        let mut frame = [0; ETHERNET_BYTES + V6_BYTES + NEIGHBOUR_BYTES + NEIGHBOUR_OPTION];
        frame[..6].copy_from_slice(&to);
        frame[6..12].copy_from_slice(&self.mac);
        frame[12..14].copy_from_slice(&TYPE_V6);
        let header = IpHeader {
            source: source.into(),
            destination: destination.into(),
            protocol: protocol::ICMP_V6,
            ttl: 255,
            tos: 0,
        };
        let (_, packet) = frame.split_at_mut(ETHERNET_BYTES);
        let (head, message) = packet.split_at_mut(V6_BYTES);
        header.write(head, message.len(), None);
        message[0] = kind;
        if kind == NEIGHBOUR_ADVERTISEMENT {
            // Solicited, and overriding what was known.
            message[4] = 0x60;
        }
        message[8..24].copy_from_slice(&target.octets());
        message[24] = if kind == NEIGHBOUR_ADVERTISEMENT { 2 } else { 1 };
        message[25] = 1;
        message[26..32].copy_from_slice(&self.mac);
        let checksum = !fold(sum(message, header.pseudo_sum(message.len())));
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        frame
    }

    /// Looks at a frame: answers ARP, and gives packets to the caller.
    pub(crate) fn receive<'a>(&self, frame: &'a [u8], now_ns: u64) -> Received<'a> {
        let Some(head) = frame.first_chunk::<ETHERNET_BYTES>() else { return Received::Nothing };
        let is_ours = head[..6] == self.mac || head[0] & 1 != 0;
        if !is_ours || !self.settings.lock().is_up {
            return Received::Nothing;
        }
        match [head[12], head[13]] {
            TYPE_V4 | TYPE_V6 => Received::Packet(&frame[ETHERNET_BYTES..]),
            TYPE_ARP => {
                self.receive_arp(&frame[ETHERNET_BYTES..], now_ns);
                Received::Nothing
            }
            _ => Received::Nothing,
        }
    }

    fn receive_arp(&self, message: &[u8], now_ns: u64) {
        let Some(message) = message.first_chunk::<ARP_BYTES>() else { return };
        if message[..6] != [0, 1, 8, 0, 6, 4] || message[6] != 0 {
            return;
        }
        let mut mac = [0; 6];
        mac.copy_from_slice(&message[8..14]);
        let source = Ipv4Addr::new(message[14], message[15], message[16], message[17]);
        let target = Ipv4Addr::new(message[24], message[25], message[26], message[27]);
        if mac != self.mac {
            self.note_claim(source, target, message[7] == ARP_REQUEST);
        }
        if mac[0] & 1 != 0 || !self.has(IpAddr::V4(target)) {
            return;
        }
        if !source.is_unspecified() && !self.has(IpAddr::V4(source)) {
            self.learn(IpAddr::V4(source), mac, message[7] == ARP_REQUEST, now_ns);
        }
        if message[7] == ARP_REQUEST {
            let frame = self.arp(ARP_REPLY, mac, mac, target, source);
            let _ = self.link.transmit(&frame, TransmitOffload::default());
        }
    }

    /// A message of neighbour discovery, whose checksum is right.
    pub(crate) fn receive_neighbour(&self, header: &IpHeader, message: &[u8], now_ns: u64) {
        // Only neighbours send with a hop limit that no router has lowered.
        let (IpAddr::V6(source), 255) = (header.source, header.ttl) else { return };
        let Some(head) = message.first_chunk::<NEIGHBOUR_BYTES>() else { return };
        if head[1] != 0 {
            return;
        }
        let mut octets = [0; 16];
        octets.copy_from_slice(&head[8..24]);
        let target = Ipv6Addr::from(octets);
        let wanted = if head[0] == NEIGHBOUR_ADVERTISEMENT { 2 } else { 1 };
        let mac = option_mac(&message[NEIGHBOUR_BYTES..], wanted).filter(|mac| mac[0] & 1 == 0);
        match head[0] {
            NEIGHBOUR_SOLICITATION if self.has(IpAddr::V6(target)) => {
                let Some(mac) = mac else { return };
                if !source.is_unspecified() {
                    self.learn(IpAddr::V6(source), mac, true, now_ns);
                }
                let frame = self.neighbour_message(NEIGHBOUR_ADVERTISEMENT, mac, target, source, target);
                let _ = self.link.transmit(&frame, TransmitOffload::default());
            }
            NEIGHBOUR_ADVERTISEMENT if !self.has(IpAddr::V6(target)) => {
                if let Some(mac) = mac {
                    self.learn(IpAddr::V6(target), mac, false, now_ns);
                }
            }
            _ => {}
        }
    }

    /// Notes a neighbour's hardware address, and sends what waited for it. A host that only asks is noted too, because
    /// an answer will follow.
    fn learn(&self, address: IpAddr, mac: [u8; 6], asks: bool, now_ns: u64) {
        let mut neighbours = self.neighbours.lock();
        if !neighbours.contains_key(&address) {
            if !asks || !self.is_on_link(address) {
                return;
            }
            if neighbours.len() >= NEIGHBOURS_MAX {
                forget_oldest(&mut neighbours);
            }
            if neighbours.try_reserve(1).is_err() {
                return;
            }
        }
        let known = neighbours.entry(address).or_insert(Neighbour {
            mac: None,
            since_ns: now_ns,
            asked: 0,
            waiting: Vec::new(),
        });
        known.mac = Some(mac);
        known.since_ns = now_ns;
        known.asked = 0;
        let waiting = core::mem::take(&mut known.waiting);
        drop(neighbours);
        for (mut frame, offload) in waiting {
            frame[..6].copy_from_slice(&mac);
            let _ = self.link.transmit(&frame, offload);
        }
    }
}

impl InterfaceSettings {
    /// Whether an address stands for everyone in a network of the interface.
    fn is_broadcast(&self, address: Ipv4Addr) -> bool {
        self.addresses.iter().any(|own| match own.address {
            IpAddr::V4(v4) => own.prefix < 31 && broadcast(v4, own.prefix) == address,
            IpAddr::V6(_) => false,
        })
    }

    /// The neighbour that packets to an address go to: itself, or a router. Of all routes the one with the longest
    /// prefix counts, and among equals the cheapest.
    fn next_hop(&self, target: IpAddr) -> Option<IpAddr> {
        if !self.is_up {
            return None;
        }
        let own = self.addresses.iter().filter(|own| same_prefix(own.address, target, own.prefix));
        let near = own.map(|own| own.prefix).max();
        let leads = |route: &&InterfaceRoute| {
            same_prefix(route.destination.address, target, route.destination.prefix)
        };
        let rank = |route: &&InterfaceRoute| (core::cmp::Reverse(route.destination.prefix), route.metric);
        match self.routes.iter().filter(leads).min_by_key(rank) {
            Some(route) if near.is_none_or(|near| route.destination.prefix > near) => {
                Some(route.gateway.unwrap_or(target))
            }
            _ => near.map(|_| target),
        }
    }
}

fn forget_oldest(neighbours: &mut KeyedMap<IpAddr, Neighbour>) {
    let oldest = neighbours.iter().min_by_key(|(_, known)| known.since_ns).map(|(address, _)| *address);
    if let Some(oldest) = oldest {
        neighbours.remove(&oldest);
    }
}

/// The hardware address in an option of neighbour discovery.
fn option_mac(mut options: &[u8], wanted: u8) -> Option<[u8; 6]> {
    while let [kind, units, ..] = *options {
        let length = usize::from(units) * 8;
        if length == 0 {
            return None;
        }
        let option = options.get(..length)?;
        if kind == wanted {
            return option.get(2..8)?.first_chunk().copied();
        }
        options = &options[length..];
    }
    None
}

/// The link-local address that a hardware address makes, RFC 4291.
fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    let word = |high, low| u16::from_be_bytes([high, low]);
    Ipv6Addr::new(
        0xfe80,
        0,
        0,
        0,
        word(mac[0] ^ 2, mac[1]),
        word(mac[2], 0xff),
        word(0xfe, mac[3]),
        word(mac[4], mac[5]),
    )
}

/// The group to which questions for an address go.
fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let octets = address.octets();
    let low = u16::from_be_bytes([octets[14], octets[15]]);
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(octets[13]), low)
}

fn multicast_mac(address: Ipv6Addr) -> [u8; 6] {
    let octets = address.octets();
    [0x33, 0x33, octets[12], octets[13], octets[14], octets[15]]
}
