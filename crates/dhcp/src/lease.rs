//! A lease: an address, for how long, and the settings that come with it.

use core::fmt;
use core::fmt::Write;
use core::net::Ipv4Addr;

use crate::message::{Message, code};

/// The servers of names that the resolvers of C libraries ask at most.
pub const NAME_SERVERS_MAX: usize = 3;
/// Bytes of a list of domains, and of a host's name, at most.
const SEARCH_BYTES: usize = 256;
/// See [`SEARCH_BYTES`].
pub const HOST_NAME_BYTES: usize = 64;
/// Bytes of `/etc/resolv.conf`, at most: a line of domains, and one for each server.
const RESOLVER_BYTES: usize = 400;
/// The most bytes of a list of domains before they are decoded.
const ENCODED_BYTES: usize = 512;
/// The most routes that are taken from a server, beside the one by its router.
const ROUTES_MAX: usize = 16;

/// The duration of a lease that never ends.
const FOR_EVER: u32 = u32::MAX;
/// The duration that a lease has if its server does not say.
const HOUR: u32 = 3600;

/// A text of at most so many bytes, which are ASCII.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text<const BYTES: usize> {
    bytes: [u8; BYTES],
    length: usize,
}

impl<const BYTES: usize> Text<BYTES> {
    /// The empty text.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: [0; BYTES], length: 0 }
    }

    /// It as bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// It as a string.
    #[must_use]
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Adds bytes, all or none.
    fn put(&mut self, bytes: &[u8]) -> Option<()> {
        let place = self.bytes.get_mut(self.length..self.length + bytes.len())?;
        place.copy_from_slice(bytes);
        self.length += bytes.len();
        Some(())
    }
}

impl<const BYTES: usize> Default for Text<BYTES> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const BYTES: usize> fmt::Debug for Text<BYTES> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(formatter)
    }
}

impl<const BYTES: usize> Write for Text<BYTES> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.put(text.as_bytes()).ok_or(fmt::Error)
    }
}

/// A route that comes with an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaticRoute {
    /// The first of the addresses that it leads to.
    pub destination: Ipv4Addr,
    /// Bits that they have in common.
    pub prefix: u8,
    /// The router, if they are not on the link.
    pub router: Option<Ipv4Addr>,
}

/// The settings that come with an address. Two are equal if a renewal has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The address.
    pub address: Ipv4Addr,
    /// Bits of its subnet.
    pub prefix: u8,
    /// The server that gave it.
    pub server: Ipv4Addr,
    /// The router to all other addresses, unless the server names routes of any length.
    pub router: Option<Ipv4Addr>,
    /// Those routes.
    static_routes: [Option<StaticRoute>; ROUTES_MAX],
    /// The servers of names.
    name_servers: [Option<Ipv4Addr>; NAME_SERVERS_MAX],
    /// The domains in which names are looked for, separated by spaces.
    pub search: Text<SEARCH_BYTES>,
    /// The name that the network gives this host; empty for none.
    pub host_name: Text<HOST_NAME_BYTES>,
    /// Bytes of the largest packet.
    pub mtu: Option<u16>,
}

/// How long a lease is valid, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Until it is to be renewed: T1.
    pub renewal: u32,
    /// Until any server may renew it: T2.
    pub rebinding: u32,
    /// Until it is over.
    pub end: u32,
}

impl Lease {
    /// The lease in an offer or an acknowledgement, and for how long, if not for ever; none that no host could use.
    #[must_use]
    pub fn of(message: &Message<'_>) -> Option<(Self, Option<Validity>)> {
        let (mut mask, mut seconds, mut renewal, mut rebinding) = (None, None, None, None);
        let mut lease = Self {
            address: message.yours,
            prefix: 0,
            server: message.server.filter(|server| is_host(*server))?,
            router: None,
            static_routes: [None; ROUTES_MAX],
            name_servers: [None; NAME_SERVERS_MAX],
            search: Text::new(),
            host_name: Text::new(),
            mtu: None,
        };
        let (mut domain, mut has_search, mut has_routes) = (Text::new(), false, false);
        for (kind, value) in message.options() {
            match kind {
                code::SUBNET_MASK => mask = Some(word(value)?),
                code::ROUTER if lease.router.is_none() => {
                    lease.router = hosts(value).find(|router| *router != lease.address);
                }
                code::NAME_SERVERS => lease.add_name_servers(value),
                code::HOST_NAME => lease.host_name = name(value, b"").unwrap_or_default(),
                // More than one domain is not in the standard, and common.
                code::DOMAIN_NAME => domain = name(value, b" ").unwrap_or_default(),
                code::MTU => lease.mtu = value.try_into().ok().map(u16::from_be_bytes),
                code::LEASE_TIME => seconds = Some(word(value)?),
                code::RENEWAL_TIME => renewal = word(value),
                code::REBINDING_TIME => rebinding = word(value),
                code::DOMAIN_SEARCH => has_search = true,
                code::CLASSLESS_ROUTES => has_routes = true,
                _ => {}
            }
        }
        lease.search = domain;
        if has_search && let Some(search) = search(message) {
            lease.search = search;
        }
        lease.prefix = prefix(lease.address, mask)?;
        if has_routes && let Some(routes) = static_routes(message, lease.address) {
            // The server's other router is for clients that don't know of these.
            (lease.router, lease.static_routes) = (None, routes);
        }
        Some((lease, validity(seconds.unwrap_or(HOUR), renewal, rebinding)))
    }

    fn add_name_servers(&mut self, value: &[u8]) {
        let mut free = self.name_servers.iter_mut().filter(|place| place.is_none());
        for server in hosts(value) {
            match free.next() {
                Some(place) => *place = Some(server),
                None => return,
            }
        }
    }

    /// The servers of names.
    pub fn name_servers(&self) -> impl Iterator<Item = Ipv4Addr> {
        self.name_servers.into_iter().flatten()
    }

    /// The routes, in an order in which they can be set: those to the link come before those by its routers. The one to
    /// the address's own network is left out.
    pub fn routes(&self) -> impl Iterator<Item = StaticRoute> {
        let (own, all) = (network(self.address, self.prefix), self.static_routes);
        let near = all.into_iter().flatten().filter(move |route| {
            route.router.is_none() && (route.destination, route.prefix) != (own, self.prefix)
        });
        let far = all.into_iter().flatten().filter(|route| route.router.is_some());
        let router = self.router.map(|router| StaticRoute {
            destination: Ipv4Addr::UNSPECIFIED,
            prefix: 0,
            router: Some(router),
        });
        near.chain(far).chain(router)
    }

    /// The contents of `/etc/resolv.conf`.
    #[must_use]
    pub fn resolver(&self) -> Text<RESOLVER_BYTES> {
        let mut text = Text::new();
        // There is room for the longest.
        if !self.search.is_empty() {
            let _ = writeln!(text, "search {}", self.search.as_str());
        }
        for server in self.name_servers() {
            let _ = writeln!(text, "nameserver {server}");
        }
        text
    }
}

/// The first address of a network.
fn network(address: Ipv4Addr, prefix: u8) -> Ipv4Addr {
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
    Ipv4Addr::from_bits(address.to_bits() & mask)
}

/// A number of four bytes.
fn word(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_be_bytes)
}

/// Whether an address can be one host's.
pub(crate) const fn is_host(address: Ipv4Addr) -> bool {
    let first = address.octets()[0];
    first != 0 && first != 127 && first < 224
}

/// The addresses of hosts in a list.
fn hosts(value: &[u8]) -> impl Iterator<Item = Ipv4Addr> {
    let addresses =
        value.chunks_exact(4).map(|octets| Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]));
    addresses.filter(|address| is_host(*address))
}

/// The bits of an address's subnet: by its mask, or by its class as it was before there were masks.
fn prefix(address: Ipv4Addr, mask: Option<u32>) -> Option<u8> {
    let mask = mask.unwrap_or(match address.octets()[0] {
        ..128 => 0xff00_0000,
        128..192 => 0xffff_0000,
        192.. => 0xffff_ff00,
    });
    let bits = mask.leading_ones();
    let is_mask = bits > 0 && mask.trailing_zeros() == 32 - bits;
    let host = address.to_bits() & !mask;
    // In a subnet, the first address and the last are not a host's.
    let is_in_it = bits >= 31 || host != 0 && host != !mask;
    (is_host(address) && is_mask && is_in_it).then_some(bits as u8)
}

fn validity(end: u32, renewal: Option<u32>, rebinding: Option<u32>) -> Option<Validity> {
    if end == FOR_EVER {
        return None;
    }
    // A server that gives no time at all would be asked again at once.
    let end = end.max(4);
    let rebinding = rebinding.filter(|&rebinding| rebinding > 1 && rebinding < end);
    let rebinding = rebinding.unwrap_or((end - end / 8).min(end - 1));
    let renewal = renewal.filter(|&renewal| renewal > 0 && renewal < rebinding);
    Some(Validity { renewal: renewal.unwrap_or((end / 2).min(rebinding - 1)), rebinding, end })
}

/// A name, without the zero that some servers put behind it, if all of its letters are fit for names or `others`.
fn name<const BYTES: usize>(value: &[u8], others: &[u8]) -> Option<Text<BYTES>> {
    let end = value.iter().position(|&byte| byte == 0).unwrap_or(value.len());
    let value = value[..end].trim_ascii();
    let is_fit = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._".contains(byte) || others.contains(byte);
    let is_name = value.first().is_some_and(u8::is_ascii_alphanumeric) && value.iter().all(is_fit);
    let mut text = Text::new();
    // One byte stays free, for those who want a zero at the end.
    (is_name && value.len() < BYTES).then(|| text.put(value))??;
    Some(text)
}

/// Puts the pieces of an option together, RFC 3396. Returns how many bytes they have; nothing if there is no room.
fn join(message: &Message<'_>, wanted: u8, bytes: &mut [u8; ENCODED_BYTES]) -> Option<usize> {
    let mut length = 0;
    for (_, value) in message.options().filter(|(kind, _)| *kind == wanted) {
        bytes.get_mut(length..length + value.len())?.copy_from_slice(value);
        length += value.len();
    }
    Some(length)
}

/// The routes of any length, RFC 3442, as far as the host with this address can use them; nothing from a list that is
/// damaged.
fn static_routes(message: &Message<'_>, own: Ipv4Addr) -> Option<[Option<StaticRoute>; ROUTES_MAX]> {
    let mut bytes = [0; ENCODED_BYTES];
    let length = join(message, code::CLASSLESS_ROUTES, &mut bytes)?;
    let (mut rest, mut routes) = (&bytes[..length], [None; ROUTES_MAX]);
    let mut free = routes.iter_mut();
    while let [prefix @ 0..=32, tail @ ..] = rest {
        let significant = usize::from(prefix.div_ceil(8));
        let (destination, tail) = tail.split_at_checked(significant)?;
        let (router, tail) = tail.split_first_chunk::<4>()?;
        rest = tail;
        let mut octets = [0; 4];
        octets[..significant].copy_from_slice(destination);
        let (destination, router) = (network(Ipv4Addr::from(octets), *prefix), Ipv4Addr::from(*router));
        // A router of zeroes says that there is none, as these hosts are on the link.
        let is_near = router.is_unspecified();
        if (is_near || is_host(router) && router != own)
            && let Some(place) = free.next()
        {
            let router = Some(router).filter(|_| !is_near);
            *place = Some(StaticRoute { destination, prefix: *prefix, router });
        }
    }
    (length > 0 && rest.is_empty()).then_some(routes)
}

/// The list of domains, RFC 3397, all pieces of which make one.
fn search(message: &Message<'_>) -> Option<Text<SEARCH_BYTES>> {
    let mut bytes = [0; ENCODED_BYTES];
    let length = join(message, code::DOMAIN_SEARCH, &mut bytes)?;
    let encoded = &bytes[..length];
    let (mut text, mut position) = (Text::new(), 0);
    while position < encoded.len() {
        if !text.is_empty() {
            text.put(b" ")?;
        }
        position = decode(encoded, position, &mut text)?;
    }
    (!text.is_empty()).then_some(text)
}

/// Decodes a name as RFC 1035 encodes it, labels and references to earlier ones. Returns where the next begins.
fn decode(encoded: &[u8], start: usize, text: &mut Text<SEARCH_BYTES>) -> Option<usize> {
    let (mut position, mut next, mut is_first) = (start, None, true);
    loop {
        let length = usize::from(*encoded.get(position)?);
        match length {
            0 if is_first => return None,
            0 => return next.or(Some(position + 1)),
            1..64 => {
                let label = encoded.get(position + 1..position + 1 + length)?;
                let label: Text<64> = name(label, b"").filter(|name| name.as_bytes().len() == length)?;
                if !core::mem::take(&mut is_first) {
                    text.put(b".")?;
                }
                text.put(label.as_bytes())?;
                position += 1 + length;
            }
            _ if length >= 0xc0 => {
                let target = (length & 0x3f) << 8 | usize::from(*encoded.get(position + 1)?);
                next = next.or(Some(position + 2));
                // Backwards only, and labels take room: so it ends.
                if target >= position {
                    return None;
                }
                position = target;
            }
            _ => return None,
        }
    }
}
