//! TCP segments, RFC 9293: as the handshake, resets and ended connections need them. Connections leave them to smoltcp.

use alloc::vec::Vec;

use crate::address::Endpoint;
use crate::ip::{ETHERNET_BYTES, IpHeader, protocol};
use crate::platform::OutOfMemory;

/// Bytes of a header without options.
pub(crate) const HEADER_BYTES: usize = 20;
/// Where in it the checksum is.
pub(crate) const SUM_AT: usize = 16;
/// Where a segment has its flags, and its window.
pub(crate) const FLAGS_AT: usize = 13;
/// See [`FLAGS_AT`].
pub(crate) const WINDOW_AT: usize = 14;

/// Flags of a segment.
pub(crate) mod flags {
    pub const FIN: u8 = 1;
    pub const SYN: u8 = 2;
    pub const RST: u8 = 4;
    pub const PSH: u8 = 8;
    pub const ACK: u8 = 16;
}

/// The options that a SYN offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offer {
    pub segment_max: u16,
    pub scale: Option<u8>,
    pub selective: bool,
}

/// The segment size of a peer that names none, RFC 9293.
const SEGMENT_DEFAULT: u16 = 536;

/// A segment's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment<'a> {
    pub source_port: u16,
    pub target_port: u16,
    pub number: u32,
    pub acknowledged: u32,
    pub flags: u8,
    pub window: u16,
    options: &'a [u8],
    pub data: &'a [u8],
}

impl<'a> Segment<'a> {
    /// Reads a segment; none that is damaged.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let head: &[u8; HEADER_BYTES] = bytes.first_chunk()?;
        let header_bytes = usize::from(head[12] >> 4) * 4;
        let options = bytes.get(HEADER_BYTES..header_bytes)?;
        let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let number = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        Some(Self {
            source_port: word(0),
            target_port: word(2),
            number: number(4),
            acknowledged: number(8),
            flags: head[13],
            window: word(14),
            options,
            data: &bytes[header_bytes..],
        })
    }

    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Numbers that it takes.
    pub fn length(&self) -> u32 {
        self.data.len() as u32 + u32::from(self.has(flags::SYN)) + u32::from(self.has(flags::FIN))
    }

    /// The number behind it.
    pub fn end(&self) -> u32 {
        self.number.wrapping_add(self.length())
    }

    /// The options of a SYN.
    pub fn offer(&self) -> Offer {
        let mut offer = Offer { segment_max: SEGMENT_DEFAULT, scale: None, selective: false };
        let mut rest = self.options;
        while let [kind, tail @ ..] = rest {
            match *kind {
                0 => break,
                1 => {
                    rest = tail;
                    continue;
                }
                _ => {}
            }
            let Some(&length) = tail.first() else { break };
            let Some(option) = rest.get(..usize::from(length)).filter(|_| length >= 2) else { break };
            match option {
                [2, 4, high, low] if (*high, *low) != (0, 0) => {
                    offer.segment_max = u16::from_be_bytes([*high, *low]);
                }
                [3, 3, shift] => offer.scale = Some((*shift).min(14)),
                [4, 2] => offer.selective = true,
                _ => {}
            }
            rest = &rest[option.len()..];
        }
        offer
    }
}

/// A segment to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draft<'a> {
    pub from: Endpoint,
    pub to: Endpoint,
    pub number: u32,
    pub acknowledged: Option<u32>,
    pub flags: u8,
    pub window: u16,
    pub offer: Option<Offer>,
    pub data: &'a [u8],
}

impl Draft<'_> {
    pub fn header(&self) -> IpHeader {
        IpHeader {
            source: self.from.address,
            destination: self.to.address,
            protocol: protocol::TCP,
            ttl: 64,
            tos: 0,
        }
    }

    /// A frame with the segment, behind room for Ethernet's header, with or without the one of IP, and without the
    /// checksum.
    pub fn frame(&self, with_header: bool) -> Result<Vec<u8>, OutOfMemory> {
        let mut options = [1; 12];
        let mut count = 0;
        if let Some(offer) = self.offer {
            options[..2].copy_from_slice(&[2, 4]);
            options[2..4].copy_from_slice(&offer.segment_max.to_be_bytes());
            count = 4;
            if offer.selective {
                options[count..count + 4].copy_from_slice(&[1, 1, 4, 2]);
                count += 4;
            }
            if let Some(shift) = offer.scale {
                options[count..count + 4].copy_from_slice(&[1, 3, 3, shift]);
                count += 4;
            }
        }
        let header = self.header();
        let start = ETHERNET_BYTES + header.length();
        let header_bytes = HEADER_BYTES + count;
        let mut frame = Vec::new();
        frame.try_reserve_exact(start + header_bytes + self.data.len()).map_err(|_| OutOfMemory)?;
        frame.resize(start, 0);
        if with_header {
            header.write(&mut frame[ETHERNET_BYTES..], header_bytes + self.data.len(), None);
        }
        let flags = self.flags | if self.acknowledged.is_some() { flags::ACK } else { 0 };
        frame.extend_from_slice(&self.from.port.to_be_bytes());
        frame.extend_from_slice(&self.to.port.to_be_bytes());
        frame.extend_from_slice(&self.number.to_be_bytes());
        frame.extend_from_slice(&self.acknowledged.unwrap_or(0).to_be_bytes());
        frame.extend_from_slice(&[(header_bytes as u8 / 4) << 4, flags]);
        frame.extend_from_slice(&self.window.to_be_bytes());
        frame.extend_from_slice(&[0; 4]);
        frame.extend_from_slice(&options[..count]);
        frame.extend_from_slice(self.data);
        Ok(frame)
    }
}

/// Whether a sequence number is before another.
pub(crate) const fn is_before(one: u32, other: u32) -> bool {
    (one.wrapping_sub(other) as i32) < 0
}
