//! The network's interfaces, configured as the kernel's command line says, by netlink.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use anyhow::{Context, Result, bail};
use heddle_abi::boot::{KEY_NET, NET_DHCP};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, send, socket};

use crate::dhcp::{self, Keeping};
use crate::root::option;

/// The loopback's index, which is always the same.
const LOOPBACK_INDEX: u32 = 1;
/// The interface with a device.
pub const INTERFACE: &str = "eth0";

// Linux's numbers, from `linux/netlink.h`, `linux/rtnetlink.h` and `linux/if_addr.h`.
const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;
const IFF_UP: u32 = 1;
const IFLA_MTU: u16 = 4;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
/// No search for others with the address, which would keep it from use for a second.
const IFA_F_NODAD: u8 = 2;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RT_TABLE_MAIN: u8 = 254;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_LINK: u8 = 253;
const RTPROT_BOOT: u8 = 3;
const RTN_UNICAST: u8 = 1;

/// Starts the loopback, and the interface if the machine has one. Returns what to wait for, if the network is asked for
/// an address.
pub fn configure() -> Result<Option<Keeping>> {
    let mut route = Route::open().context("netlink")?;
    route.start(LOOPBACK_INDEX).context("starting lo")?;
    let Some(items) = option(KEY_NET)? else { return Ok(None) };
    // Addresses are those of the command line: without a search for duplicates, and none from routers.
    for setting in ["all/accept_ra", "default/accept_ra", "eth0/accept_ra", "eth0/accept_dad"] {
        let path = Path::new("/proc/sys/net/ipv6/conf").join(setting);
        std::fs::write(&path, "0").with_context(|| path.display().to_string())?;
    }
    let path = format!("/sys/class/net/{INTERFACE}/ifindex");
    let index = std::fs::read_to_string(&path).context(path)?;
    let index: u32 = index.trim().parse().context("the interface's index")?;
    route.start(index).context("starting eth0")?;
    for item in items.split(',').filter(|item| *item != NET_DHCP) {
        match item.split_once('/') {
            Some((address, length)) => route.add_address(index, address.parse()?, length.parse()?),
            None => route.add_gateway(index, item.parse()?),
        }
        .with_context(|| item.to_owned())?;
    }
    let uses_dhcp = items.split(',').any(|item| item == NET_DHCP);
    uses_dhcp.then(|| dhcp::start(route, index)).transpose().context("DHCP")
}

/// A netlink socket.
pub struct Route {
    socket: OwnedFd,
    sequence: u32,
}

impl Route {
    fn open() -> io::Result<Self> {
        // Without a protocol: routing, whose number is 0.
        let socket = socket(AddressFamily::NETLINK, SocketType::RAW, None)?;
        Ok(Self { socket, sequence: 0 })
    }

    fn start(&mut self, index: u32) -> Result<()> {
        let mut message = Message::new(RTM_NEWLINK, 0);
        // struct ifinfomsg: family, padding, type, index, flags, change.
        message.bytes(&[0; 4]).number(index).number(IFF_UP).number(IFF_UP);
        self.request(message)
    }

    fn add_address(&mut self, index: u32, address: IpAddr, length: u8) -> Result<()> {
        self.address(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, index, address, length)
    }

    /// Adds an address that may be there.
    pub fn set_address(&mut self, index: u32, address: IpAddr, length: u8) -> Result<()> {
        self.address(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, index, address, length)
    }

    /// Takes an address away.
    pub fn remove_address(&mut self, index: u32, address: IpAddr, length: u8) -> Result<()> {
        self.address(RTM_DELADDR, 0, index, address, length)
    }

    fn address(&mut self, kind: u16, flags: u16, index: u32, address: IpAddr, length: u8) -> Result<()> {
        let mut message = Message::new(kind, flags);
        // struct ifaddrmsg: family, prefix length, flags, scope, index.
        message.bytes(&[family(address), length, IFA_F_NODAD, 0]).number(index);
        let bytes = octets(address);
        message.attribute(IFA_LOCAL, &bytes).attribute(IFA_ADDRESS, &bytes);
        if let IpAddr::V4(address) = address
            && length < 31
        {
            let broadcast = address.to_bits() | u32::MAX >> length;
            message.attribute(IFA_BROADCAST, &broadcast.to_be_bytes());
        }
        self.request(message)
    }

    fn add_gateway(&mut self, index: u32, gateway: IpAddr) -> Result<()> {
        let everything = match gateway {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        self.route(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, index, (everything, 0), Some(gateway))
    }

    /// Adds a route, in place of one to the same addresses. Without a gateway they are on the link.
    pub fn set_route(
        &mut self,
        index: u32,
        destination: (IpAddr, u8),
        gateway: Option<IpAddr>,
    ) -> Result<()> {
        self.route(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, index, destination, gateway)
    }

    /// Takes a route away.
    pub fn remove_route(
        &mut self,
        index: u32,
        destination: (IpAddr, u8),
        gateway: Option<IpAddr>,
    ) -> Result<()> {
        self.route(RTM_DELROUTE, 0, index, destination, gateway)
    }

    fn route(
        &mut self,
        kind: u16,
        flags: u16,
        index: u32,
        (destination, length): (IpAddr, u8),
        gateway: Option<IpAddr>,
    ) -> Result<()> {
        let mut message = Message::new(kind, flags);
        let scope = if gateway.is_some() { RT_SCOPE_UNIVERSE } else { RT_SCOPE_LINK };
        let family = family(destination);
        // struct rtmsg: family, lengths of both prefixes, type of service, table, protocol, scope, type, flags.
        message.bytes(&[family, length, 0, 0, RT_TABLE_MAIN, RTPROT_BOOT, scope, RTN_UNICAST]).number(0);
        if length > 0 {
            message.attribute(RTA_DST, &octets(destination));
        }
        if let Some(gateway) = gateway {
            message.attribute(RTA_GATEWAY, &octets(gateway));
        }
        message.attribute(RTA_OIF, &index.to_ne_bytes());
        self.request(message)
    }

    /// Sets the bytes of the largest packet.
    pub fn set_mtu(&mut self, index: u32, mtu: u32) -> Result<()> {
        let mut message = Message::new(RTM_NEWLINK, 0);
        message.bytes(&[0; 4]).number(index).number(0).number(0);
        message.attribute(IFLA_MTU, &mtu.to_ne_bytes());
        self.request(message)
    }

    /// Sends a message and waits for the kernel's answer to it.
    fn request(&mut self, message: Message) -> Result<()> {
        self.sequence += 1;
        send(&self.socket, &message.finish(self.sequence), SendFlags::empty())?;
        let mut answer = [0; 4096];
        let (length, _) = recv(&self.socket, &mut answer, RecvFlags::empty())?;
        let word = |at: usize| answer[..length].get(at..at + 4)?.try_into().ok().map(i32::from_ne_bytes);
        let kind = word(4).map(|word| word & 0xffff);
        match (kind, word(16)) {
            (Some(kind), Some(0)) if kind == i32::from(NLMSG_ERROR) => Ok(()),
            (Some(kind), Some(error)) if kind == i32::from(NLMSG_ERROR) => {
                Err(io::Error::from_raw_os_error(-error).into())
            }
            _ => bail!("netlink answered otherwise than expected"),
        }
    }
}

fn family(address: IpAddr) -> u8 {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    family.as_raw().to_ne_bytes()[0]
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// A message in the making.
struct Message(Vec<u8>);

impl Message {
    /// Bytes of `struct nlmsghdr`: length, type, flags, sequence number, port.
    const HEADER_BYTES: usize = 16;

    fn new(kind: u16, flags: u16) -> Self {
        let mut message = Self(vec![0; Self::HEADER_BYTES]);
        message.0[4..6].copy_from_slice(&kind.to_ne_bytes());
        message.0[6..8].copy_from_slice(&(flags | NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
        message
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn number(&mut self, number: u32) -> &mut Self {
        self.bytes(&number.to_ne_bytes())
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        // All values here are some whole words long, so that no padding is needed.
        let length = 4 + u16::try_from(value.len()).unwrap_or(u16::MAX - 4);
        self.bytes(&length.to_ne_bytes()).bytes(&kind.to_ne_bytes()).bytes(value)
    }

    fn finish(mut self, sequence: u32) -> Vec<u8> {
        let length = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.0
    }
}
