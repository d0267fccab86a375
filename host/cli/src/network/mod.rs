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
use heddle_abi::boot::{KEY_NET, NET_VALUE_MAX};

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
    /// An address of the guest on a tap device or a socket.
    #[arg(long = "address", value_name = "ADDRESS/LENGTH")]
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
        Ok(Self { backend, addresses: parse_addresses(addresses)?, gateways, hardware: Some(hardware) })
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
        Self { backend: Backend::User(forwards), addresses, gateways, hardware: None }
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
        let items: Vec<String> = addresses.chain(self.gateways.iter().map(ToString::to_string)).collect();
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
    match (kind, value) {
        ("user", None) => {
            refuse(!options.addresses.is_empty(), "--address", kind)?;
            refuse(!options.gateways.is_empty(), "--gateway", kind)?;
            let (forwards, relays) = publication::prepare(&options.publish, GUEST)?;
            return Ok(Prepared { network: Network::with_forwards(forwards), relays, _peer: None });
        }
        ("none" | "tap" | "socket", _) => refuse(!options.publish.is_empty(), "-p", kind)?,
        _ => {}
    }
    match (kind, value) {
        ("none", None) => {
            refuse(!options.addresses.is_empty(), "--address", kind)?;
            refuse(!options.gateways.is_empty(), "--gateway", kind)?;
            Ok(plain(Network::default()))
        }
        ("tap", Some(name)) if is_interface_name(name) => {
            if options.addresses.is_empty() {
                bail!("--net tap={name}: the guest needs an --address");
            }
            let addresses = parse_addresses(&options.addresses)?;
            let backend = Backend::Tap(name.to_owned());
            Ok(plain(Network { backend, addresses, gateways: options.gateways.clone(), hardware: None }))
        }
        ("socket", Some(path)) if !path.is_empty() => {
            let peer = peer::Peer::open(Path::new(path)).with_context(|| format!("--net socket={path}"))?;
            let backend = Backend::Socket { descriptor: peer.descriptor(), listens: peer.listens() };
            let mut addresses = parse_addresses(&options.addresses)?;
            if addresses.is_empty() {
                addresses = socket_addresses(peer.listens());
            }
            let network = Network { backend, addresses, gateways: options.gateways.clone(), hardware: None };
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

fn parse_addresses(texts: &[String]) -> Result<Vec<InterfaceAddress>> {
    texts.iter().map(|text| parse_address(text)).collect()
}

fn parse_address(text: &str) -> Result<InterfaceAddress> {
    let parsed = text.split_once('/').and_then(|(address, length)| {
        let address: IpAddr = address.parse().ok()?;
        let length: u8 = length.parse().ok()?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        (length <= bits).then_some(InterfaceAddress { address, length })
    });
    parsed.with_context(|| format!("--address {text}: not ADDRESS/LENGTH"))
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
    fn options_that_do_not_fit_are_refused() {
        for kind in
            ["", "users", "user=1", "none=1", "tap", "tap=", "tap=a,b", "tap=a/b", "socket", "socket="]
        {
            assert!(prepare(&options(kind, &[])).is_err(), "{kind}");
        }
        assert!(prepare(&options("tap=tap0", &[])).is_err(), "a tap device without an address");
        for address in ["1.2.3.4", "1.2.3.4/33", "::1/129", "x/1", "1.2.3.4/"] {
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
