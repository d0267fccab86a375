//! The layout of netlink messages: a header, a fixed structure, and attributes.

use core::net::IpAddr;

use super::REPLY_BYTES_MAX;

/// Bytes of `struct nlmsghdr`: length, type, flags, sequence number, port.
pub const HEADER_BYTES: usize = 16;
/// Bytes of an attribute's header: length and type.
const ATTRIBUTE_BYTES: usize = 4;
/// Messages and attributes start at multiples of this.
const ALIGNMENT: usize = 4;

pub const AF_UNSPEC: u8 = 0;
pub const AF_INET: u8 = 2;
pub const AF_BRIDGE: u8 = 7;
pub const AF_INET6: u8 = 10;

/// A message's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub length: u32,
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    pub port: u32,
}

impl Header {
    /// Splits the first message off: its header, all of its bytes, and what follows it.
    pub fn split(bytes: &[u8]) -> Option<(Self, &[u8], &[u8])> {
        let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let half = |at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let header =
            Self { length: word(0)?, kind: half(4)?, flags: half(6)?, sequence: word(8)?, port: word(12)? };
        let length = header.length as usize;
        if length < HEADER_BYTES {
            return None;
        }
        let message = bytes.get(..length)?;
        Some((header, message, bytes.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or(&[])))
    }
}

/// The attributes of a message, by type and value; ends at the first that makes no sense.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    /// A type may carry marks in its two upper bits.
    const TYPE_MASK: u16 = 0x3fff;
    core::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?);
        let value = bytes.get(ATTRIBUTE_BYTES..length)?;
        bytes = bytes.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or(&[]);
        Some((kind & TYPE_MASK, value))
    })
}

/// A message under construction. All messages here are shorter than the buffer; what would not fit is left out.
pub struct Reply {
    buffer: [u8; REPLY_BYTES_MAX],
    length: usize,
}

impl Reply {
    pub fn new(kind: u16, flags: u16, sequence: u32, port: u32) -> Self {
        let mut message = Self { buffer: [0; REPLY_BYTES_MAX], length: 0 };
        message.word(0).half(kind).half(flags).word(sequence).word(port);
        message
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        if let Some(place) = self.buffer.get_mut(self.length..self.length + bytes.len()) {
            place.copy_from_slice(bytes);
            self.length += bytes.len();
        }
        self
    }

    pub fn half(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub fn word(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub fn attribute(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        let padded = value.len().next_multiple_of(ALIGNMENT);
        if self.length + ATTRIBUTE_BYTES + padded <= self.buffer.len() {
            self.half((ATTRIBUTE_BYTES + value.len()) as u16).half(kind).bytes(value);
            self.length += padded - value.len();
        }
        self
    }

    pub fn attribute_word(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attribute(kind, &value.to_ne_bytes())
    }

    /// A text with its zero.
    pub fn attribute_text(&mut self, kind: u16, text: &str) -> &mut Self {
        let mut buffer = [0; 32];
        let length = text.len().min(buffer.len() - 1);
        buffer[..length].copy_from_slice(&text.as_bytes()[..length]);
        self.attribute(kind, &buffer[..=length])
    }

    pub fn attribute_address(&mut self, kind: u16, address: IpAddr) -> &mut Self {
        match address {
            IpAddr::V4(address) => self.attribute(kind, &address.octets()),
            IpAddr::V6(address) => self.attribute(kind, &address.octets()),
        }
    }

    /// The message, its length filled in.
    pub fn finish(&mut self) -> &[u8] {
        self.buffer[..4].copy_from_slice(&(self.length as u32).to_ne_bytes());
        &self.buffer[..self.length]
    }
}
