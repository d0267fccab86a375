//! The machine's network: the user's notation, what QEMU attaches, and what the kernels are told.
//!
//! ```text
//!   NetworkOptions ── prepare ──▶ Prepared { Network ──▶ machine (-netdev), kernels (heddle.net=…)
//!                                     relays  ──▶ publications on IPv6 addresses, which QEMU cannot forward
//!                                     peer    ──▶ the socket between two machines }
//! ```

mod peer;
mod publication;
mod relay;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::RawFd;
use std::path::Path;

use anyhow::{Context, Result, bail};
use heddle_abi::boot::{KEY_NET, NET_DHCP, NET_VALUE_MAX};

pub use publication::{Forward, Protocol};

/// The guest's addresses where QEMU's own network stack is its router.
const USER_ADDRESSES: [InterfaceAddress; 2] = [
    InterfaceAddress { address: IpAddr::V4(GUEST), length: 24 },
    InterfaceAddress { address: IpAddr::V6(Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 15)), length: 64 },
];
/// That router.
const USER_GATEWAYS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 0, 2, 2)), IpAddr::V6(Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 2))];
/// The guest's address for forwarded ports.
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);

/// The network of the machine.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct NetworkOptions {
    /// Make a port of the guest reachable at a port of this host, as `8080:80`, `127.0.0.1:8080:80` or
    /// `[::1]:5353:53/udp`; without ADDRESS at all addresses of the host.
    #[arg(short = 'p', long = "publish", value_name = "[ADDRESS:]HOST:GUEST[/udp]")]
    pub publish: Vec<String>,
    /// The network: `user` (outgoing connections and names, through this host, whose own local services are at
    /// 10.0.2.2), `none`, `tap=NAME` (a tap device of this host), `socket=PATH` (a second machine with the same PATH).
    #[arg(long = "net", value_name = "user|none|tap=NAME|socket=PATH", default_value = "user")]
    pub kind: String,
    /// An address of the guest on a tap device or a socket. `dhcp`, the default on a tap device, asks the network for
    /// one of IPv4, and for its router, its servers of names and the host's name; it works with `--net user` too.
    #[arg(long = "address", value_name = "ADDRESS/LENGTH|dhcp")]
    pub addresses: Vec<String>,
    /// The router for all other addresses on a tap device or a socket.
    #[arg(long = "gateway", value_name = "ADDRESS")]
    pub gateways: Vec<IpAddr>,
}

/// An address, and the length of the network's part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    address: IpAddr,
    length: u8,
}

/// The other end of the guest's interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// There is no interface.
    #[default]
    None,
    /// QEMU's own network stack, with ports of the host that it forwards.
    User(Vec<Forward>),
    /// A tap device of the host.
    Tap(String),
    /// A UNIX socket that QEMU inherits.
    Socket {
        /// It.
        descriptor: RawFd,
        /// Whether it listens for the other machine.
        listens: bool,
    },
}

/// A network to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// The other end.
    pub backend: Backend,
    addresses: Vec<InterfaceAddress>,
    gateways: Vec<IpAddr>,
    /// Whether the guest asks for an address of IPv4.
    uses_dhcp: bool,
    /// The interface's hardware address, where it is not this tool's choice.
    hardware: Option<String>,
}

impl Network {
    /// A tap device of the host, with everything that the guest has on it.
    ///
    /// # Errors
    /// If a text is no address.
    pub fn tap(name: &str, addresses: &[String], gateways: Vec<IpAddr>, hardware: String) -> Result<Self> {
        let backend = Backend::Tap(name.to_owned());
        let addresses = addresses.iter().map(|text| parse_address(text)).collect::<Result<_>>()?;
        Ok(Self { backend, addresses, gateways, uses_dhcp: false, hardware: Some(hardware) })
    }

    /// The interface's hardware address.
    #[must_use]
    pub fn hardware_address(&self) -> String {
        let own = || format!("52:54:00:12:34:{:02x}", 0x56 + self.station());
        self.hardware.clone().unwrap_or_else(own)
    }

    /// QEMU's own network stack without forwarded ports.
    #[must_use]
    pub fn user() -> Self {
        Self::with_forwards(Vec::new())
    }

    fn with_forwards(forwards: Vec<Forward>) -> Self {
        let (addresses, gateways) = (USER_ADDRESSES.to_vec(), USER_GATEWAYS.to_vec());
        Self { backend: Backend::User(forwards), addresses, gateways, uses_dhcp: false, hardware: None }
    }

    /// It with an address of IPv4 that the guest asks for, if `uses_dhcp`.
    fn with_dhcp(mut self, uses_dhcp: bool) -> Self {
        self.uses_dhcp = uses_dhcp;
        if uses_dhcp {
            self.addresses.retain(|with| with.address.is_ipv6());
            self.gateways.retain(IpAddr::is_ipv6);
        }
        self
    }

    /// The parameter for the kernel's command line; none without an interface.
    ///
    /// # Errors
    /// If there are too many addresses.
    pub fn kernel_argument(&self) -> Result<Option<String>> {
        if self.backend == Backend::None {
            return Ok(None);
        }
        let addresses = self.addresses.iter().map(|with| format!("{}/{}", with.address, with.length));
        let dhcp = self.uses_dhcp.then(|| NET_DHCP.to_owned());
        let gateways = self.gateways.iter().map(ToString::to_string);
        let items: Vec<String> = dhcp.into_iter().chain(addresses).chain(gateways).collect();
        let value = items.join(",");
        if value.len() > NET_VALUE_MAX {
            bail!("--address: too many addresses");
        }
        Ok(Some(format!("{KEY_NET}={value}")))
    }

    /// The number by which the interface's hardware address differs from others on the same link.
    #[must_use]
    fn station(&self) -> u8 {
        match self.backend {
            Backend::Socket { listens: true, .. } => 1,
            Backend::Socket { listens: false, .. } => 2,
            _ => 0,
        }
    }
}

/// Objects that must live as long as the machine.
#[derive(Debug)]
pub struct Prepared {
    /// For the machine and its kernel.
    pub network: Network,
    relays: Vec<relay::Relay>,
    _peer: Option<peer::Peer>,
}

impl Prepared {
    /// Starts to serve what QEMU cannot forward.
    pub fn serve(&mut self) {
        for relay in self.relays.drain(..) {
            relay.start();
        }
    }
}

/// Makes a network of what the user wants, and sees to it that the ports of this host are free.
///
/// # Errors
/// If the options contradict each other, a port is taken, or a socket cannot be made.
pub fn prepare(options: &NetworkOptions) -> Result<Prepared> {
    let (kind, value) = match options.kind.split_once('=') {
        Some((kind, value)) => (kind, Some(value)),
        None => (options.kind.as_str(), None),
    };
    let plain = |network| Prepared { network, relays: Vec::new(), _peer: None };
    if matches!(kind, "none" | "tap" | "socket") {
        refuse(!options.publish.is_empty(), "-p", kind)?;
    }
    let (addresses, asked_for) = parse_addresses(options)?;
    match (kind, value) {
        ("user", None) => {
            refuse(!addresses.is_empty(), "--address", kind)?;
            refuse(!options.gateways.is_empty(), "--gateway", kind)?;
            let (forwards, relays) = publication::prepare(&options.publish, GUEST)?;
            let network = Network::with_forwards(forwards).with_dhcp(asked_for);
            Ok(Prepared { network, relays, _peer: None })
        }
        ("none", None) => {
            refuse(!options.addresses.is_empty(), "--address", kind)?;
            refuse(!options.gateways.is_empty(), "--gateway", kind)?;
            Ok(plain(Network::default()))
        }
        ("tap", Some(name)) if is_interface_name(name) => {
            let (backend, gateways) = (Backend::Tap(name.to_owned()), options.gateways.clone());
            Ok(plain(Network { backend, addresses, gateways, uses_dhcp: asked_for, hardware: None }))
        }
        ("socket", Some(path)) if !path.is_empty() => {
            let peer = peer::Peer::open(Path::new(path)).with_context(|| format!("--net socket={path}"))?;
            let backend = Backend::Socket { descriptor: peer.descriptor(), listens: peer.listens() };
            let addresses =
                if options.addresses.is_empty() { socket_addresses(peer.listens()) } else { addresses };
            let gateways = options.gateways.clone();
            let network = Network { backend, addresses, gateways, uses_dhcp: asked_for, hardware: None };
            Ok(Prepared { network, relays: Vec::new(), _peer: Some(peer) })
        }
        _ => bail!("--net {}: one of user, none, tap=NAME, socket=PATH", options.kind),
    }
}

fn refuse(given: bool, option: &str, kind: &str) -> Result<()> {
    if given {
        bail!("{option} cannot be used with --net {kind}");
    }
    Ok(())
}

/// The addresses on a socket unless others are given: 10.0.3.1 for the machine that came first, 10.0.3.2 for the other.
fn socket_addresses(listens: bool) -> Vec<InterfaceAddress> {
    let number = if listens { 1 } else { 2 };
    vec![
        InterfaceAddress { address: Ipv4Addr::new(10, 0, 3, number).into(), length: 24 },
        InterfaceAddress {
            address: Ipv6Addr::new(0xfd00, 3, 0, 0, 0, 0, 0, number.into()).into(),
            length: 64,
        },
    ]
}

/// The addresses that the user names, and whether the guest asks for another.
fn parse_addresses(options: &NetworkOptions) -> Result<(Vec<InterfaceAddress>, bool)> {
    let is_dhcp = |text: &&String| *text == NET_DHCP;
    let named = options.addresses.iter().filter(|text| !is_dhcp(text));
    let addresses = named.map(|text| parse_address(text)).collect::<Result<Vec<_>>>()?;
    let asked_for = options.addresses.iter().any(|text| is_dhcp(&text));
    // With a tap device, no address stands for `dhcp`.
    let is_asked_for = asked_for || options.addresses.is_empty() && options.kind.starts_with("tap=");
    if asked_for && addresses.iter().any(|with| with.address.is_ipv4()) {
        bail!("--address dhcp: the guest has no further address of IPv4");
    }
    if is_asked_for && let Some(gateway) = options.gateways.iter().find(|gateway| gateway.is_ipv4()) {
        bail!("--gateway {gateway}: with DHCP, the network names the router");
    }
    Ok((addresses, is_asked_for))
}

fn parse_address(text: &str) -> Result<InterfaceAddress> {
    let parsed = text.split_once('/').and_then(|(address, length)| {
        let address: IpAddr = address.parse().ok()?;
        let length: u8 = length.parse().ok()?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        (length <= bits).then_some(InterfaceAddress { address, length })
    });
    parsed.with_context(|| format!("--address {text}: not ADDRESS/LENGTH, nor dhcp"))
}

/// Whether Linux could have an interface of this name; QEMU's option lists can hold any such.
fn is_interface_name(name: &str) -> bool {
    const NAME_BYTES_MAX: usize = 15;
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'/' && byte != b',';
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(kind: &str, addresses: &[&str]) -> NetworkOptions {
        NetworkOptions {
            publish: Vec::new(),
            kind: kind.to_owned(),
            addresses: addresses.iter().map(ToString::to_string).collect(),
            gateways: Vec::new(),
        }
    }

    #[test]
    fn kernels_are_told_of_addresses() {
        let argument =
            |options: &NetworkOptions| prepare(options).unwrap().network.kernel_argument().unwrap();
        let user = "heddle.net=10.0.2.15/24,fec0::f/64,10.0.2.2,fec0::2";
        assert_eq!(argument(&options("user", &[])).as_deref(), Some(user));
        assert_eq!(argument(&options("none", &[])), None);
        let mut tap = options("tap=tap0", &["192.168.1.2/24", "fd00::1/64"]);
        tap.gateways.push("192.168.1.1".parse().unwrap());
        assert_eq!(argument(&tap).as_deref(), Some("heddle.net=192.168.1.2/24,fd00::1/64,192.168.1.1"));
    }

    #[test]
    fn a_guest_asks_for_its_address() {
        let argument = |kind: &str, addresses: &[&str]| {
            prepare(&options(kind, addresses)).unwrap().network.kernel_argument().unwrap().unwrap()
        };
        assert_eq!(argument("user", &["dhcp"]), "heddle.net=dhcp,fec0::f/64,fec0::2");
        assert_eq!(argument("tap=tap0", &[]), "heddle.net=dhcp");
        assert_eq!(argument("tap=tap0", &["dhcp", "fd00::1/64"]), "heddle.net=dhcp,fd00::1/64");
        assert_eq!(argument("tap=tap0", &["fd00::1/64"]), "heddle.net=fd00::1/64");
        let mut tap = options("tap=tap0", &[]);
        tap.gateways.push("fd00::2".parse().unwrap());
        assert_eq!(
            prepare(&tap).unwrap().network.kernel_argument().unwrap().unwrap(),
            "heddle.net=dhcp,fd00::2"
        );
        tap.gateways.push("192.168.1.1".parse().unwrap());
        assert!(prepare(&tap).is_err(), "a router beside the network's");
        for kind in ["none", "user", "tap=tap0"] {
            assert!(prepare(&options(kind, &["dhcp", "1.2.3.4/8"])).is_err(), "{kind}");
        }
        assert!(prepare(&options("none", &["dhcp"])).is_err());
    }

    #[test]
    fn options_that_do_not_fit_are_refused() {
        for kind in
            ["", "users", "user=1", "none=1", "tap", "tap=", "tap=a,b", "tap=a/b", "socket", "socket="]
        {
            assert!(prepare(&options(kind, &[])).is_err(), "{kind}");
        }
        for address in ["1.2.3.4", "1.2.3.4/33", "::1/129", "x/1", "1.2.3.4/", "DHCP"] {
            assert!(prepare(&options("tap=tap0", &[address])).is_err(), "{address}");
        }
        assert!(prepare(&options("user", &["1.2.3.4/8"])).is_err());
        let mut published = options("none", &[]);
        published.publish.push(String::from("1:1"));
        assert!(prepare(&published).is_err());
    }

    #[test]
    fn the_second_on_a_socket_has_other_addresses() {
        let folder = tempfile();
        let kind = format!("socket={}/peers", folder.display());
        let first = prepare(&options(&kind, &[])).unwrap();
        let second = prepare(&options(&kind, &[])).unwrap();
        let text = |prepared: &Prepared| prepared.network.kernel_argument().unwrap().unwrap();
        assert_eq!(text(&first), "heddle.net=10.0.3.1/24,fd00:3::1/64");
        assert_eq!(text(&second), "heddle.net=10.0.3.2/24,fd00:3::2/64");
        assert_ne!(first.network.station(), second.network.station());
        drop((first, second));
        assert!(!folder.join("peers").exists(), "the socket goes with the machine that made it");
        std::fs::remove_dir(&folder).unwrap();
    }

    fn tempfile() -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("heddle-peers-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }
}
