//! Headers of IPv4 and IPv6, and the Internet checksum.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of an Ethernet header, which frames have room for in front of the packet.
pub const ETHERNET_BYTES: usize = 14;
/// Bytes of an IPv4 header without options.
pub const V4_BYTES: usize = 20;
/// Bytes of an IPv6 header without extensions.
pub const V6_BYTES: usize = 40;

/// Bytes of an ICMP header, and of the extension header of a fragment.
pub const ICMP_BYTES: usize = 8;
/// See [`ICMP_BYTES`].
pub const FRAGMENT_BYTES: usize = 8;

/// Protocol numbers.
pub mod protocol {
    #![allow(missing_docs, reason = "the names are those of the protocols")]
    pub const HOP_BY_HOP: u8 = 0;
    pub const ICMP: u8 = 1;
    pub const IGMP: u8 = 2;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const ROUTING: u8 = 43;
    pub const FRAGMENT: u8 = 44;
    pub const ICMP_V6: u8 = 58;
    pub const NONE: u8 = 59;
    pub const DESTINATION_OPTIONS: u8 = 60;
    pub const RAW: u8 = 255;
}

/// The fields of a header, of either version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// From where.
    pub source: IpAddr,
    /// Where to.
    pub destination: IpAddr,
    /// The protocol of the payload.
    pub protocol: u8,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Type of service, or traffic class.
    pub tos: u8,
}

/// The place of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentPlace {
    /// The same for all fragments of a packet.
    pub identification: u32,
    /// Where its payload belongs.
    pub offset: usize,
    /// Whether others follow.
    pub has_more: bool,
}

/// A packet that makes sense so far.
#[derive(Clone, Copy, Debug)]
pub struct Parsed<'a> {
    /// The fields of the header.
    pub header: IpHeader,
    /// Bytes of all headers.
    pub header_bytes: usize,
    /// Its payload.
    pub payload: &'a [u8],
    /// Its place, if it is a fragment.
    pub fragment: Option<FragmentPlace>,
}

/// Extension headers of IPv6 that are walked over.
const EXTENSIONS_MAX: usize = 8;

impl IpHeader {
    /// Bytes of the header when it is written.
    #[must_use]
    pub const fn length(&self) -> usize {
        if self.destination.is_ipv4() { V4_BYTES } else { V6_BYTES }
    }

    /// Reads a packet; none that is damaged.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Parsed<'_>> {
        match packet.first()? >> 4 {
            4 => Self::parse_v4(packet),
            6 => Self::parse_v6(packet),
            _ => None,
        }
    }

    /// Reads the beginning of a packet, as an ICMP error quotes it.
    #[must_use]
    pub fn parse_beginning(quote: &[u8]) -> Option<Parsed<'_>> {
        let is_v4 = quote.first()? >> 4 == 4;
        let header_bytes = if is_v4 { usize::from(quote[0] & 15) * 4 } else { V6_BYTES };
        if header_bytes < V4_BYTES || quote.len() < header_bytes {
            return None;
        }
        let header = if is_v4 {
            let address =
                |at: usize| IpAddr::V4(Ipv4Addr::new(quote[at], quote[at + 1], quote[at + 2], quote[at + 3]));
            Self {
                source: address(12),
                destination: address(16),
                protocol: quote[9],
                ttl: quote[8],
                tos: quote[1],
            }
        } else {
            let address = |at: usize| -> Option<IpAddr> {
                let octets: [u8; 16] = *quote.get(at..)?.first_chunk()?;
                Some(IpAddr::V6(Ipv6Addr::from(octets)))
            };
            Self { source: address(8)?, destination: address(24)?, protocol: quote[6], ttl: quote[7], tos: 0 }
        };
        Some(Parsed { header, header_bytes, payload: &quote[header_bytes..], fragment: None })
    }

    fn parse_v4(packet: &[u8]) -> Option<Parsed<'_>> {
        let head: &[u8; V4_BYTES] = packet.first_chunk()?;
        let header_bytes = usize::from(head[0] & 15) * 4;
        let total = usize::from(u16::from_be_bytes([head[2], head[3]]));
        if header_bytes < V4_BYTES || total < header_bytes || total > packet.len() {
            return None;
        }
        if fold(sum(&packet[..header_bytes], 0)) != 0xffff {
            return None;
        }
        let place = u16::from_be_bytes([head[6], head[7]]);
        let (offset, has_more) = (usize::from(place & 0x1fff) * 8, place & 0x2000 != 0);
        let identification = u16::from_be_bytes([head[4], head[5]]).into();
        let address =
            |at: usize| IpAddr::V4(Ipv4Addr::new(head[at], head[at + 1], head[at + 2], head[at + 3]));
        let header = Self {
            source: address(12),
            destination: address(16),
            protocol: head[9],
            ttl: head[8],
            tos: head[1],
        };
        let fragment = (offset > 0 || has_more).then_some(FragmentPlace { identification, offset, has_more });
        Some(Parsed { header, header_bytes, payload: &packet[header_bytes..total], fragment })
    }

    fn parse_v6(packet: &[u8]) -> Option<Parsed<'_>> {
        let head: &[u8; V6_BYTES] = packet.first_chunk()?;
        let length = usize::from(u16::from_be_bytes([head[4], head[5]]));
        let packet = packet.get(..V6_BYTES + length)?;
        let address = |at: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&head[at..at + 16]);
            IpAddr::V6(Ipv6Addr::from(octets))
        };
        let mut header = Self {
            source: address(8),
            destination: address(24),
            protocol: head[6],
            ttl: head[7],
            tos: head[0] << 4 | head[1] >> 4,
        };
        let (mut at, mut fragment) = (V6_BYTES, None);
        for _ in 0..EXTENSIONS_MAX {
            match header.protocol {
                protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => {
                    let extension: &[u8; 2] = packet.get(at..)?.first_chunk()?;
                    header.protocol = extension[0];
                    at += 8 + usize::from(extension[1]) * 8;
                }
                protocol::FRAGMENT => {
                    let extension: &[u8; 8] = packet.get(at..)?.first_chunk()?;
                    header.protocol = extension[0];
                    let place = u16::from_be_bytes([extension[2], extension[3]]);
                    let identification =
                        u32::from_be_bytes([extension[4], extension[5], extension[6], extension[7]]);
                    let (offset, has_more) = (usize::from(place & !7), place & 1 != 0);
                    at += 8;
                    if offset > 0 || has_more {
                        fragment = Some(FragmentPlace { identification, offset, has_more });
                        // Bytes after the first fragment's header are part of the whole.
                        break;
                    }
                }
                _ => break,
            }
        }
        Some(Parsed { header, header_bytes: at, payload: packet.get(at..)?, fragment })
    }

    /// Writes the header of a packet with so many bytes of payload. `place`, of IPv4 only, makes it a fragment.
    pub fn write(&self, buffer: &mut [u8], payload_bytes: usize, place: Option<FragmentPlace>) {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let total = (V4_BYTES + payload_bytes) as u16;
                let (identification, place) = match place {
                    Some(place) => (
                        place.identification as u16,
                        (place.offset / 8) as u16 | u16::from(place.has_more) << 13,
                    ),
                    // Not to be cut into fragments.
                    None => (0, 0x4000),
                };
                buffer[..V4_BYTES].fill(0);
                (buffer[0], buffer[1]) = (0x45, self.tos);
                buffer[2..4].copy_from_slice(&total.to_be_bytes());
                buffer[4..6].copy_from_slice(&identification.to_be_bytes());
                buffer[6..8].copy_from_slice(&place.to_be_bytes());
                (buffer[8], buffer[9]) = (self.ttl, self.protocol);
                buffer[12..16].copy_from_slice(&source.octets());
                buffer[16..20].copy_from_slice(&destination.octets());
                let checksum = !fold(sum(&buffer[..V4_BYTES], 0));
                buffer[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                buffer[..V6_BYTES].fill(0);
                (buffer[0], buffer[1]) = (0x60 | self.tos >> 4, self.tos << 4);
                buffer[4..6].copy_from_slice(&(payload_bytes as u16).to_be_bytes());
                (buffer[6], buffer[7]) = (self.protocol, self.ttl);
                buffer[8..24].copy_from_slice(&source.octets());
                buffer[24..40].copy_from_slice(&destination.octets());
            }
            // The ends of a packet are of one version.
            _ => {}
        }
    }

    /// The sum of the pseudo header that the checksums of TCP, UDP and ICMPv6 cover.
    #[must_use]
    pub fn pseudo_sum(&self, payload_bytes: usize) -> u64 {
        let start = u64::from(self.protocol) + payload_bytes as u64;
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                sum(&destination.octets(), sum(&source.octets(), start))
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                sum(&destination.octets(), sum(&source.octets(), start))
            }
            _ => start,
        }
    }

    /// Whether the checksum in a payload is right.
    #[must_use]
    pub fn has_valid_checksum(&self, payload: &[u8]) -> bool {
        fold(sum(payload, self.pseudo_sum(payload.len()))) == 0xffff
    }
}

/// Adds the 16-bit words of `bytes` up, not folded. Pieces but the last must be of even length.
#[must_use]
pub fn sum(bytes: &[u8], start: u64) -> u64 {
    let mut total = start;
    let mut words = bytes.chunks_exact(4);
    for word in &mut words {
        total += u64::from(u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
    }
    match *words.remainder() {
        [first] => total + (u64::from(first) << 8),
        [first, second] => total + u64::from(u16::from_be_bytes([first, second])),
        [first, second, third] => {
            total + u64::from(u16::from_be_bytes([first, second])) + (u64::from(third) << 8)
        }
        _ => total,
    }
}

/// Folds a sum to 16 bits.
#[must_use]
pub const fn fold(mut total: u64) -> u16 {
    while total > 0xffff {
        total = (total >> 16) + (total & 0xffff);
    }
    total as u16
}

/// The checksum of bytes without a pseudo header.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u16 {
    !fold(sum(bytes, 0))
}
