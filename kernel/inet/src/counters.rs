//! Counts of events, for `/proc/net/snmp` and its kin: RFC 4293, RFC 4022 and RFC 4113, as Linux counts them.
//!
//! Events of the loopback, of which there may be millions a second on each CPU, are counted once each and in a stripe
//! of the CPU; what they stand for in each of the layers is added up when somebody asks. All others are counted in
//! place.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::ip::protocol;
use crate::platform::Platform;

/// Stripes of the loopback's counters.
const STRIPES: usize = 8;
/// Segments with which a connection is opened.
const OPENING_SEGMENTS: u64 = 3;
/// Bytes of the headers of a segment, with the timestamps that Linux would put there, and of a datagram, by version of
/// IP.
const SEGMENT_HEADERS: [u64; 2] = [20 + 32, 40 + 32];
const DATAGRAM_HEADERS: [u64; 2] = [20 + 8, 40 + 8];

/// A count that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts one more.
    #[inline]
    pub fn count(&self) {
        self.add(1);
    }

    /// Counts so many more.
    #[inline]
    pub fn add(&self, events: u64) {
        self.0.fetch_add(events, Ordering::Relaxed);
    }

    /// The count.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Events of one version of IP.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct IpCounters {
    pub received: Counter,
    pub header_errors: Counter,
    pub address_errors: Counter,
    pub unknown_protocols: Counter,
    pub discarded: Counter,
    pub delivered: Counter,
    pub sent: Counter,
    pub sent_discarded: Counter,
    pub without_route: Counter,
    pub fragments_received: Counter,
    pub reassembled: Counter,
    pub cut: Counter,
    pub fragments_sent: Counter,
}

/// Events of UDP over one version of IP. `taken` are datagrams that programs have received.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct UdpCounters {
    pub no_ports: Counter,
    pub errors: Counter,
    pub checksum_errors: Counter,
    pub queue_full: Counter,
    pub sent: Counter,
}

/// Events of TCP.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct TcpCounters {
    pub active_opens: Counter,
    pub passive_opens: Counter,
    pub attempts_failed: Counter,
    pub established_resets: Counter,
    pub segments_received: Counter,
    pub segments_sent: Counter,
    pub segments_repeated: Counter,
    pub errors: Counter,
    pub checksum_errors: Counter,
    pub resets_sent: Counter,
    /// Connections that found a listener's queue full.
    pub queue_full: Counter,
    /// Resets because of bytes that nobody has read, and because a program asked for one by `SO_LINGER`.
    pub aborts_unread: Counter,
    pub aborts_asked: Counter,
}

/// Kinds of ICMP messages that are counted one by one: the first of both versions, and those that ask of ICMPv6.
const KINDS: usize = 32;
const KINDS_V6_FROM: u8 = 128;

/// Events of one version of ICMP.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct IcmpCounters {
    pub received: Counter,
    pub errors: Counter,
    pub checksum_errors: Counter,
    pub sent: Counter,
    received_kinds: [Counter; KINDS],
    sent_kinds: [Counter; KINDS],
}

fn kind_index(kind: u8) -> Option<usize> {
    let half = KINDS as u8 / 2;
    match kind {
        _ if kind < half => Some(usize::from(kind)),
        _ if (KINDS_V6_FROM..KINDS_V6_FROM + half).contains(&kind) => {
            Some(usize::from(kind - KINDS_V6_FROM + half))
        }
        _ => None,
    }
}

impl IcmpCounters {
    /// Counts a message of a kind that has come.
    pub(crate) fn receive(&self, kind: u8) {
        self.received.count();
        if let Some(index) = kind_index(kind) {
            self.received_kinds[index].count();
        }
    }

    /// Counts a message of a kind that is sent.
    pub(crate) fn send(&self, kind: u8) {
        self.sent.count();
        if let Some(index) = kind_index(kind) {
            self.sent_kinds[index].count();
        }
    }

    /// How many messages of a kind have come, and were sent.
    #[must_use]
    pub fn of_kind(&self, kind: u8) -> [u64; 2] {
        kind_index(kind)
            .map_or([0; 2], |index| [self.received_kinds[index].get(), self.sent_kinds[index].get()])
    }
}

/// Events of the loopback on one CPU, by version of IP.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe {
    segments: [Counter; 2],
    datagrams: [Counter; 2],
    taken: [Counter; 2],
    /// Further packets, and the bytes of all: of segments and datagrams without headers.
    packets: Counter,
    bytes: Counter,
}

/// All counts. Pairs are those of IPv4 and of IPv6.
#[derive(Debug, Default)]
pub struct Counters {
    ip: [IpCounters; 2],
    udp: [UdpCounters; 2],
    icmp: [IcmpCounters; 2],
    /// Those of TCP over both.
    pub tcp: TcpCounters,
    stripes: [Stripe; STRIPES],
}

/// The events of the loopback, and datagrams that programs have received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalEvents {
    /// Segments of TCP, each of which was sent and received.
    pub segments: u64,
    /// Datagrams of UDP, of which the same is true.
    pub datagrams: u64,
    /// Datagrams that programs have received, from wherever they came.
    pub taken: u64,
}

impl Counters {
    /// Those of IPv6, or of IPv4.
    #[must_use]
    pub const fn ip(&self, is_v6: bool) -> &IpCounters {
        &self.ip[is_v6 as usize]
    }

    /// Those of UDP over IPv6, or over IPv4.
    #[must_use]
    pub const fn udp(&self, is_v6: bool) -> &UdpCounters {
        &self.udp[is_v6 as usize]
    }

    /// Those of ICMPv6, or of ICMP.
    #[must_use]
    pub const fn icmp(&self, is_v6: bool) -> &IcmpCounters {
        &self.icmp[is_v6 as usize]
    }

    #[inline]
    fn stripe<P: Platform>(&self) -> &Stripe {
        &self.stripes[P::stripe() % STRIPES]
    }

    /// A segment with so many bytes has gone from one socket of the machine to another.
    #[inline]
    pub(crate) fn segment<P: Platform>(&self, is_v6: bool, bytes: usize) {
        let stripe = self.stripe::<P>();
        stripe.segments[usize::from(is_v6)].count();
        stripe.bytes.add(bytes as u64);
    }

    /// A datagram with so many bytes has gone from one socket of the machine to another.
    #[inline]
    pub(crate) fn datagram<P: Platform>(&self, is_v6: bool, bytes: usize) {
        let stripe = self.stripe::<P>();
        stripe.datagrams[usize::from(is_v6)].count();
        stripe.bytes.add(bytes as u64);
    }

    /// A packet of so many bytes, which is none of these, has gone to this machine itself.
    pub(crate) fn local_packet<P: Platform>(&self, bytes: usize) {
        let stripe = self.stripe::<P>();
        stripe.packets.count();
        stripe.bytes.add(bytes as u64);
    }

    /// A program has received a datagram.
    #[inline]
    pub(crate) fn taken<P: Platform>(&self, is_v6: bool) {
        self.stripe::<P>().taken[usize::from(is_v6)].count();
    }

    /// A connection within the machine was opened.
    pub(crate) fn opened<P: Platform>(&self, is_v6: bool) {
        self.tcp.passive_opens.count();
        self.stripe::<P>().segments[usize::from(is_v6)].add(OPENING_SEGMENTS);
    }

    /// Somebody was told of an error by ICMP within the machine.
    pub(crate) fn local_error(&self, is_v6: bool, kind: u8) {
        self.icmp(is_v6).send(kind);
        self.icmp(is_v6).receive(kind);
        let ip = self.ip(is_v6);
        ip.sent.count();
        ip.received.count();
        ip.delivered.count();
    }

    /// A packet with this protocol and first byte of payload is sent.
    pub(crate) fn packet(&self, is_v6: bool, protocol: u8, first: Option<&u8>) {
        self.ip(is_v6).sent.count();
        if matches!(protocol, protocol::ICMP | protocol::ICMP_V6)
            && let Some(&kind) = first
        {
            self.icmp(is_v6).send(kind);
        }
    }

    /// The packets of the loopback until now, each of which was sent and received, and their bytes.
    #[must_use]
    pub fn loopback(&self) -> (u64, u64) {
        let (mut packets, mut bytes) = (0, 0);
        for stripe in &self.stripes {
            packets += stripe.packets.get();
            bytes += stripe.bytes.get();
        }
        for is_v6 in [false, true] {
            let LocalEvents { segments, datagrams, .. } = self.local(is_v6);
            packets += segments + datagrams;
            let version = usize::from(is_v6);
            bytes += segments * SEGMENT_HEADERS[version] + datagrams * DATAGRAM_HEADERS[version];
        }
        (packets, bytes)
    }

    /// The events of the loopback until now.
    #[must_use]
    pub fn local(&self, is_v6: bool) -> LocalEvents {
        let mut sum = LocalEvents::default();
        for stripe in &self.stripes {
            sum.segments += stripe.segments[usize::from(is_v6)].get();
            sum.datagrams += stripe.datagrams[usize::from(is_v6)].get();
            sum.taken += stripe.taken[usize::from(is_v6)].get();
        }
        sum
    }
}
