//! The bytes of messages: RFC 2131, section 2, and the options of RFC 2132, RFC 3396, RFC 3397 and RFC 3442.

use core::net::Ipv4Addr;
use core::ops::Range;

/// The port that servers listen at.
pub const SERVER_PORT: u16 = 67;
/// The port that clients listen at.
pub const CLIENT_PORT: u16 = 68;

/// The longest message that is looked at, which servers are told.
pub const DATAGRAM_BYTES_MAX: usize = 1472;
/// The most bytes of a message of this client.
pub const DRAFT_BYTES_MAX: usize = 512;
/// The least that relays of BOOTP pass on.
const DRAFT_BYTES_MIN: usize = 300;

/// All fields, and the magic number behind them.
const HEAD_BYTES: usize = 240;
const MAGIC: [u8; 4] = [99, 130, 83, 99];
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const ETHERNET: u8 = 1;
const MAC_BYTES: u8 = 6;
/// The bit of the flags that asks for an answer to everyone.
const BROADCAST: u8 = 0x80;

/// Where in a message the fields are.
mod at {
    use core::ops::Range;

    pub const TRANSACTION: Range<usize> = 4..8;
    pub const SECONDS: Range<usize> = 8..10;
    pub const FLAGS: usize = 10;
    pub const CLIENT: Range<usize> = 12..16;
    pub const YOURS: Range<usize> = 16..20;
    pub const MAC: Range<usize> = 28..34;
    pub const SERVER_NAME: Range<usize> = 44..108;
    pub const FILE: Range<usize> = 108..236;
    pub const MAGIC: Range<usize> = 236..240;
}

/// Numbers of options.
#[allow(missing_docs, reason = "the names are those of RFC 2132")]
pub mod code {
    pub const PAD: u8 = 0;
    pub const SUBNET_MASK: u8 = 1;
    pub const ROUTER: u8 = 3;
    pub const NAME_SERVERS: u8 = 6;
    pub const HOST_NAME: u8 = 12;
    pub const DOMAIN_NAME: u8 = 15;
    pub const MTU: u8 = 26;
    pub const REQUESTED_ADDRESS: u8 = 50;
    pub const LEASE_TIME: u8 = 51;
    pub const OVERLOAD: u8 = 52;
    pub const MESSAGE_KIND: u8 = 53;
    pub const SERVER: u8 = 54;
    pub const PARAMETERS: u8 = 55;
    pub const SIZE_MAX: u8 = 57;
    pub const RENEWAL_TIME: u8 = 58;
    pub const REBINDING_TIME: u8 = 59;
    pub const CLIENT: u8 = 61;
    pub const DOMAIN_SEARCH: u8 = 119;
    pub const CLASSLESS_ROUTES: u8 = 121;
    pub const END: u8 = 255;
}

/// The options that servers are asked for. Routes of any length stand before the router, whom they replace.
const WANTED: [u8; 11] = [
    code::SUBNET_MASK,
    code::CLASSLESS_ROUTES,
    code::ROUTER,
    code::NAME_SERVERS,
    code::HOST_NAME,
    code::DOMAIN_NAME,
    code::MTU,
    code::LEASE_TIME,
    code::RENEWAL_TIME,
    code::REBINDING_TIME,
    code::DOMAIN_SEARCH,
];

/// The kinds of messages that a client sends or understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of RFC 2131")]
pub enum MessageKind {
    Discover = 1,
    Offer = 2,
    Request = 3,
    Decline = 4,
    Ack = 5,
    Nak = 6,
    Release = 7,
}

/// A client's message to be.
#[derive(Clone, Copy, Debug)]
pub struct Draft<'a> {
    /// Its kind.
    pub kind: MessageKind,
    /// The number that answers repeat.
    pub transaction: u32,
    /// Seconds since the client has begun.
    pub seconds: u16,
    /// The client's address, if it has one.
    pub client: Option<Ipv4Addr>,
    /// The client's hardware address.
    pub mac: [u8; 6],
    /// The address that it asks for.
    pub requested: Option<Ipv4Addr>,
    /// The server whose offer it takes or declines, or whose lease it gives back.
    pub server: Option<Ipv4Addr>,
    /// The client's name, at most 64 bytes; empty for none.
    pub name: &'a [u8],
}

/// Puts options one behind the other.
struct Writer<'a> {
    bytes: &'a mut [u8; DRAFT_BYTES_MAX],
    length: usize,
}

impl Writer<'_> {
    fn option(&mut self, code: u8, value: &[u8]) {
        let end = self.length + 2 + value.len();
        if let (Ok(count), Some(place)) = (u8::try_from(value.len()), self.bytes.get_mut(self.length..end)) {
            (place[0], place[1]) = (code, count);
            place[2..].copy_from_slice(value);
            self.length = end;
        }
    }
}

impl Draft<'_> {
    /// Writes the message. Returns its length.
    pub fn write(&self, bytes: &mut [u8; DRAFT_BYTES_MAX]) -> usize {
        bytes.fill(0);
        bytes[..3].copy_from_slice(&[REQUEST, ETHERNET, MAC_BYTES]);
        bytes[at::TRANSACTION].copy_from_slice(&self.transaction.to_be_bytes());
        bytes[at::SECONDS].copy_from_slice(&self.seconds.to_be_bytes());
        let is_answered = matches!(self.kind, MessageKind::Discover | MessageKind::Request);
        match self.client {
            Some(client) => bytes[at::CLIENT].copy_from_slice(&client.octets()),
            // Without an address it can only be reached as everyone is.
            None if is_answered => bytes[at::FLAGS] = BROADCAST,
            None => {}
        }
        bytes[at::MAC].copy_from_slice(&self.mac);
        bytes[at::MAGIC].copy_from_slice(&MAGIC);
        let mut writer = Writer { bytes, length: HEAD_BYTES };
        writer.option(code::MESSAGE_KIND, &[self.kind as u8]);
        let [a, b, c, d, e, f] = self.mac;
        writer.option(code::CLIENT, &[ETHERNET, a, b, c, d, e, f]);
        if let Some(requested) = self.requested {
            writer.option(code::REQUESTED_ADDRESS, &requested.octets());
        }
        if let Some(server) = self.server {
            writer.option(code::SERVER, &server.octets());
        }
        if is_answered {
            writer.option(code::SIZE_MAX, &(DATAGRAM_BYTES_MAX as u16).to_be_bytes());
            writer.option(code::PARAMETERS, &WANTED);
        }
        if is_answered && !self.name.is_empty() {
            writer.option(code::HOST_NAME, self.name);
        }
        let end = writer.length;
        bytes[end] = code::END;
        (end + 1).max(DRAFT_BYTES_MIN)
    }
}

/// A server's message that makes sense so far.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Its kind.
    pub kind: MessageKind,
    /// The number of the client's message that it answers.
    pub transaction: u32,
    /// The client's hardware address.
    pub mac: [u8; 6],
    /// The address that the client may have.
    pub yours: Ipv4Addr,
    /// The server.
    pub server: Option<Ipv4Addr>,
    /// Where options are: their own place, and fields that hold options too.
    areas: [&'a [u8]; 3],
}

/// The options of one place. `Err` stands for one that is longer than the place.
struct Walk<'a>(&'a [u8]);

impl<'a> Iterator for Walk<'a> {
    type Item = Result<(u8, &'a [u8]), ()>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let place = self.0;
            match place {
                [] | [code::END, ..] => return None,
                [code::PAD, rest @ ..] => self.0 = rest,
                [kind, length, rest @ ..] if usize::from(*length) <= rest.len() => {
                    let (value, rest) = rest.split_at(usize::from(*length));
                    self.0 = rest;
                    return Some(Ok((*kind, value)));
                }
                _ => {
                    self.0 = &[];
                    return Some(Err(()));
                }
            }
        }
    }
}

/// An address, if a value is one.
fn address(value: &[u8]) -> Option<Ipv4Addr> {
    let octets: [u8; 4] = value.try_into().ok()?;
    Some(Ipv4Addr::from(octets))
}

impl<'a> Message<'a> {
    /// Reads a server's message; none that is damaged.
    #[must_use]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        if bytes.len() > DATAGRAM_BYTES_MAX {
            return None;
        }
        let (head, options) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        if head[..3] != [REPLY, ETHERNET, MAC_BYTES] || head[at::MAGIC] != MAGIC {
            return None;
        }
        let (mut kind, mut server, mut overload) = (None, None, 0);
        for option in Walk(options) {
            match option.ok()? {
                (code::MESSAGE_KIND, &[number]) => kind = message_kind(number),
                (code::SERVER, value) => server = address(value),
                (code::OVERLOAD, &[fields]) => overload = fields,
                _ => {}
            }
        }
        let field = |bit: u8, range: Range<usize>| if overload & bit != 0 { &bytes[range] } else { &[][..] };
        let areas = [options, field(1, at::FILE), field(2, at::SERVER_NAME)];
        if areas[1..].iter().any(|area| Walk(area).any(|option| option.is_err())) {
            return None;
        }
        Some(Self {
            kind: kind?,
            transaction: u32::from_be_bytes(head[at::TRANSACTION].try_into().ok()?),
            mac: head[at::MAC].try_into().ok()?,
            yours: address(&head[at::YOURS])?,
            server,
            areas,
        })
    }

    /// Its options. One that is too long for one piece comes as several.
    pub fn options(&self) -> impl Iterator<Item = (u8, &'a [u8])> {
        self.areas.into_iter().flat_map(Walk).filter_map(Result::ok)
    }
}

const fn message_kind(number: u8) -> Option<MessageKind> {
    match number {
        2 => Some(MessageKind::Offer),
        5 => Some(MessageKind::Ack),
        6 => Some(MessageKind::Nak),
        // Messages of clients don't come from servers.
        _ => None,
    }
}
