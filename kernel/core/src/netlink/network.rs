//! The machine's interfaces and their addresses.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use heddle_abi::boot::NET_DHCP;

use super::settings::GivenRoute;
use crate::fallible::try_push;

/// Bits of `ifi_flags`, netdevice(7).
mod flag {
    pub const UP: u32 = 1;
    pub const BROADCAST: u32 = 1 << 1;
    pub const LOOPBACK: u32 = 1 << 3;
    pub const RUNNING: u32 = 1 << 6;
    pub const MULTICAST: u32 = 1 << 12;
    pub const LOWER_UP: u32 = 1 << 16;
}

/// An address, and the length of the network's part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The address.
    pub address: IpAddr,
    /// The length in bits.
    pub length: u8,
}

/// How far an address or a route reaches, as `rtm_scope` has it.
pub mod scope {
    /// Everywhere.
    pub const UNIVERSE: u8 = 0;
    /// A site.
    pub const SITE: u8 = 200;
    /// A link.
    pub const LINK: u8 = 253;
    /// This machine.
    pub const HOST: u8 = 254;
}

impl InterfaceAddress {
    /// An address, unless the length is more than it has.
    #[must_use]
    pub fn new(address: IpAddr, length: u8) -> Option<Self> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        (length <= bits).then_some(Self { address, length })
    }

    /// The mask of an IPv4 network; all zeroes for IPv6.
    #[must_use]
    pub fn mask(&self) -> Ipv4Addr {
        match self.address {
            IpAddr::V4(_) => {
                Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - u32::from(self.length)).unwrap_or(0))
            }
            IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
        }
    }

    /// The network: the address with the host's part cleared.
    #[must_use]
    pub fn network(&self) -> Self {
        let address = match self.address {
            IpAddr::V4(address) => IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & self.mask().to_bits())),
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.length)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
            }
        };
        Self { address, length: self.length }
    }

    /// The address of all hosts of an IPv4 network, where there is one.
    #[must_use]
    pub fn broadcast(&self) -> Option<Ipv4Addr> {
        match self.address {
            IpAddr::V4(address) if self.length < 31 && !address.is_loopback() => {
                Some(Ipv4Addr::from_bits(address.to_bits() | !self.mask().to_bits()))
            }
            _ => None,
        }
    }

    /// Whether the network has this address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let with = Self { address, length: self.length };
        address.is_ipv4() == self.address.is_ipv4() && with.network() == self.network()
    }

    /// `IFA_F_…`: permanent, and used without a search for others that have it.
    #[must_use]
    pub const fn flags(&self) -> u32 {
        const NO_SEARCH: u32 = 0x02;
        const PERMANENT: u32 = 0x80;
        match self.address {
            IpAddr::V6(address) if !address.is_loopback() => PERMANENT | NO_SEARCH,
            _ => PERMANENT,
        }
    }

    /// How far the address reaches.
    #[must_use]
    pub fn scope(&self) -> u8 {
        match self.address {
            address if address.is_loopback() => scope::HOST,
            IpAddr::V4(address) if address.is_link_local() => scope::LINK,
            IpAddr::V6(address) if address.is_unicast_link_local() => scope::LINK,
            IpAddr::V6(address) if address.segments()[0] & 0xffc0 == 0xfec0 => scope::SITE,
            _ => scope::UNIVERSE,
        }
    }
}

/// The address that an interface has on its link by its hardware address, RFC 4291 appendix A.
#[must_use]
pub const fn link_local(mac: [u8; 6]) -> InterfaceAddress {
    let [a, b, c, d, e, f] = mac;
    let address = Ipv6Addr::new(
        0xfe80,
        0,
        0,
        0,
        u16::from_be_bytes([a ^ 2, b]),
        u16::from_be_bytes([c, 0xff]),
        u16::from_be_bytes([0xfe, d]),
        u16::from_be_bytes([e, f]),
    );
    InterfaceAddress { address: IpAddr::V6(address), length: 64 }
}

/// The kind of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterfaceKind {
    /// It leads back to this machine.
    Loopback,
    /// A device that carries Ethernet frames.
    Ethernet,
}

impl InterfaceKind {
    /// `ARPHRD_…`.
    #[must_use]
    pub const fn number(self) -> u16 {
        match self {
            Self::Loopback => 772,
            Self::Ethernet => 1,
        }
    }
}

/// Counters of an interface.
#[allow(missing_docs, reason = "the names say it")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficCounts {
    pub received_packets: u64,
    pub received_bytes: u64,
    pub received_errors: u64,
    pub received_dropped: u64,
    pub sent_packets: u64,
    pub sent_bytes: u64,
    pub sent_errors: u64,
    pub sent_dropped: u64,
}

/// An interface, as it is at the moment.
#[derive(Clone, Copy, Debug)]
pub struct Interface<'a> {
    /// From 1.
    pub index: u32,
    /// At most 15 bytes.
    pub name: &'a str,
    /// The kind.
    pub kind: InterfaceKind,
    /// Bytes of the largest packet.
    pub mtu: u32,
    /// The hardware address; zeroes for the loopback.
    pub mac: [u8; 6],
    /// Whether packets come and go.
    pub is_up: bool,
    /// Whether the device is connected.
    pub has_link: bool,
    /// Its addresses.
    pub addresses: &'a [InterfaceAddress],
    /// Its counters.
    pub traffic: TrafficCounts,
}

impl Interface<'_> {
    /// `ifi_flags`.
    #[must_use]
    pub const fn flags(&self) -> u32 {
        let up = if self.is_up { flag::UP } else { 0 };
        let link = if self.has_link && self.is_up { flag::RUNNING | flag::LOWER_UP } else { 0 };
        let kind = match self.kind {
            InterfaceKind::Loopback => flag::LOOPBACK,
            InterfaceKind::Ethernet => flag::BROADCAST | flag::MULTICAST,
        };
        up | link | kind
    }

    /// The hardware address of all on the link.
    #[must_use]
    pub const fn broadcast_mac(&self) -> [u8; 6] {
        match self.kind {
            InterfaceKind::Loopback => [0; 6],
            InterfaceKind::Ethernet => [0xff; 6],
        }
    }

    /// `IF_OPER_…`: unknown for a loopback that is up, up or down for a device.
    #[must_use]
    pub const fn state(&self) -> u8 {
        match (self.kind, self.has_link && self.is_up) {
            (InterfaceKind::Loopback, true) => 0,
            (InterfaceKind::Ethernet, true) => 6,
            (_, false) => 2,
        }
    }
}

/// Everything that is asked about.
#[derive(Clone, Copy, Debug)]
pub struct Network<'a> {
    /// All interfaces, by index.
    pub interfaces: &'a [Interface<'a>],
    /// The routes that were given, by the interface with a device.
    pub routes: &'a [GivenRoute],
}

impl<'a> Network<'a> {
    /// The interface with this index.
    #[must_use]
    pub fn by_index(&self, index: u32) -> Option<&'a Interface<'a>> {
        self.interfaces.iter().find(|interface| interface.index == index)
    }

    /// The interface with this name.
    #[must_use]
    pub fn by_name(&self, name: &[u8]) -> Option<&'a Interface<'a>> {
        self.interfaces.iter().find(|interface| interface.name.as_bytes() == name)
    }
}

/// The network as the machine is told of it, `heddle.net`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configuration {
    /// The addresses of the interface.
    pub addresses: Vec<InterfaceAddress>,
    /// The routers.
    pub gateways: Vec<IpAddr>,
    /// Whether the network is asked for an address.
    pub uses_dhcp: bool,
}

/// A configuration that cannot be understood, or for which there is no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidConfiguration;

impl Configuration {
    /// Parses `ADDRESS/LENGTH`, `GATEWAY` and `dhcp`, separated by commas.
    ///
    /// # Errors
    /// [`InvalidConfiguration`].
    pub fn parse(text: &str) -> Result<Self, InvalidConfiguration> {
        let mut configuration = Self::default();
        for item in text.split(',') {
            if item == NET_DHCP {
                configuration.uses_dhcp = true;
            } else if let Some((address, length)) = item.split_once('/') {
                let address = address.parse().map_err(|_| InvalidConfiguration)?;
                let length = length.parse().map_err(|_| InvalidConfiguration)?;
                let with = InterfaceAddress::new(address, length).ok_or(InvalidConfiguration)?;
                try_push(&mut configuration.addresses, with).map_err(|_| InvalidConfiguration)?;
            } else {
                let gateway = item.parse().map_err(|_| InvalidConfiguration)?;
                try_push(&mut configuration.gateways, gateway).map_err(|_| InvalidConfiguration)?;
            }
        }
        Ok(configuration)
    }
}
