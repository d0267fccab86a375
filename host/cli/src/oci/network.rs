//! A machine in an engine's network name space: a tap device there is bridged with the interface that the engine has
//! made, whose addresses, router and hardware address become the guest's. Some engines (podman) make the interface
//! before they call the runtime; others (`ctr --cni`, hooks) put it into the new container's name space before they
//! have the program started, so that such a machine boots only then.
//!
//! ```text
//!   engine's bridge or router ── veth ── eth0 ── bridge ── tap ── QEMU ── guest's eth0
//!                                        └──────── name space ────┘
//! ```

#![allow(unsafe_code)] // unshare(2) changes what other threads may rely on, which rustix makes unsafe to ask for.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use anyhow::{Context, Result, bail};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use serde::Deserialize;

use super::bundle::Connection;
use crate::network::Network;

/// Names in the name space.
const BRIDGE: &str = "heddle-bridge";
const TAP: &str = "heddle-tap";

/// An interface, as ip(8) describes it.
#[derive(Debug, Deserialize)]
struct Link {
    ifname: String,
    #[serde(default)]
    address: String,
    #[serde(default)]
    addr_info: Vec<Address>,
    #[serde(default)]
    flags: Vec<String>,
    ifalias: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Address {
    local: IpAddr,
    prefixlen: u8,
    scope: String,
}

#[derive(Debug, Deserialize)]
struct Route {
    gateway: Option<IpAddr>,
}

/// Where the process of a container's machine is, as far as networks go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkPlace {
    /// In the name space that this process had: the machine has QEMU's user network.
    Host,
    /// In one that the engine has made ready.
    Ready,
    /// In a new one, into which an engine may put an interface until it wants the program started.
    New,
    /// There is none: this process may not make one.
    Nowhere,
}

/// Enters the container's name space with the calling thread, and so with those that it starts later. Engines find the
/// name space by the process, and put an interface or other containers into it.
///
/// # Errors
/// If the engine's name space cannot be entered.
pub fn enter(connection: &Connection) -> Result<NetworkPlace> {
    let path = match connection {
        Connection::Host => return Ok(NetworkPlace::Host),
        Connection::None => {
            // SAFETY: only what this thread sees of networks changes, and it has no socket yet.
            let made = unsafe { unshare_unsafe(UnshareFlags::NEWNET) };
            return Ok(if made.is_ok() { NetworkPlace::New } else { NetworkPlace::Nowhere });
        }
        Connection::Namespace(path) => path,
    };
    let namespace = File::open(path).with_context(|| path.display().to_string())?;
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let own = std::fs::metadata("/proc/thread-self/ns/net").context("this process's name space")?;
    // The host's own interfaces are nobody's to take.
    if identity(namespace.metadata().context("the name space")?) == identity(own) {
        return Ok(NetworkPlace::Host);
    }
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .context("entering the network's name space")?;
    Ok(NetworkPlace::Ready)
}

/// The interface as the engine made it. It is kept in the interface's description, for the next machine that takes it
/// over: a container of a pod that is started again, for which nobody makes a new interface.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Taken {
    hardware: String,
    addresses: Vec<String>,
    gateways: Vec<IpAddr>,
}

/// Begins a description.
const TAKEN: &str = "heddle";

impl Taken {
    fn description(&self) -> String {
        let gateways: Vec<String> = self.gateways.iter().map(ToString::to_string).collect();
        format!("{TAKEN} {} {} {}", self.hardware, self.addresses.join(","), gateways.join(","))
    }

    fn from_description(text: &str) -> Option<Self> {
        let mut words = text.strip_prefix(TAKEN)?.strip_prefix(' ')?.split(' ');
        let mut list =
            || words.next().map(|list| list.split(',').filter(|item| !item.is_empty()).map(str::to_owned));
        let hardware = list()?.next()?;
        let addresses = list()?.collect();
        let gateways = list()?.map(|item| item.parse()).collect::<Result<_, _>>().ok()?;
        Some(Self { hardware, addresses, gateways })
    }
}

/// Joins a tap device to the interface of the name space that this thread is in. A name space without an interface is a
/// machine without one.
///
/// # Errors
/// If there are several interfaces, another machine has the one, or the tools or rights to join one are missing.
pub fn join() -> Result<Network> {
    // Only this one tells descriptions.
    let described: Vec<Link> = ask(&["link", "show"])?;
    if let Some(taken) = described.iter().find_map(|link| Taken::from_description(link.ifalias.as_deref()?)) {
        if described.iter().any(|link| link.ifname == TAP && link.flags.iter().any(|flag| flag == "LOWER_UP"))
        {
            bail!("another machine has the interface: of a pod's containers one can have the network");
        }
        return taken.network();
    }
    let links: Vec<Link> = ask(&["addr", "show"])?;
    let mut connected = links
        .into_iter()
        .filter(|link| link.ifname != "lo" && link.addr_info.iter().any(|address| address.scope == "global"));
    let Some(link) = connected.next() else { return Ok(Network::default()) };
    if let Some(other) = connected.next() {
        bail!("interfaces {} and {}: a machine has one", link.ifname, other.ifname);
    }
    let mut gateways = Vec::new();
    for family in ["-4", "-6"] {
        let routes: Vec<Route> = ask(&[family, "route", "show", "default"])?;
        gateways.extend(routes.into_iter().filter_map(|route| route.gateway).take(1));
    }
    let global = link.addr_info.iter().filter(|address| address.scope == "global");
    let addresses = global.map(|address| format!("{}/{}", address.local, address.prefixlen)).collect();
    let taken = Taken { hardware: link.address.clone(), addresses, gateways };
    let name = link.ifname.as_str();
    // The guest takes the interface's hardware address, by which the engine's network knows it; the interface, now
    // nothing but a port of the bridge, gets another.
    let other = other_address(&link.address)?;
    for step in [
        &["link", "add", BRIDGE, "type", "bridge"][..],
        &["tuntap", "add", "dev", TAP, "mode", "tap", "vnet_hdr"],
        &["link", "set", name, "alias", &taken.description()],
        &["addr", "flush", "dev", name],
        &["link", "set", name, "address", &other],
        &["link", "set", name, "master", BRIDGE],
        &["link", "set", TAP, "master", BRIDGE],
        &["link", "set", TAP, "up"],
        &["link", "set", BRIDGE, "up"],
    ] {
        run(step)?;
    }
    taken.network()
}

impl Taken {
    fn network(self) -> Result<Network> {
        Network::tap(TAP, &self.addresses, self.gateways, self.hardware)
    }
}

/// A hardware address that differs from this one, and that nobody was given.
fn other_address(address: &str) -> Result<String> {
    let bytes: Vec<u8> = address.split(':').filter_map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    let [first, .., last] = bytes[..] else { bail!("{address}: not a hardware address") };
    let mut other = bytes.clone();
    // Locally administered, and none that is for many.
    other[0] = (first | 2) & !1;
    let end = other.len() - 1;
    other[end] = last ^ 0x80;
    other[1] ^= 0x40;
    Ok(other.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":"))
}

fn ask<T: for<'a> Deserialize<'a>>(words: &[&str]) -> Result<T> {
    let mut command = Command::new("ip");
    let output = command.arg("-json").args(words).output().context("ip, of Debian's iproute2")?;
    if !output.status.success() {
        bail!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    // Where there is nothing to show, it may show nothing at all.
    let text = if output.stdout.trim_ascii().is_empty() { b"[]".to_vec() } else { output.stdout };
    serde_json::from_slice(&text).with_context(|| format!("ip {}", words.join(" ")))
}

fn run(words: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(words).output().context("ip, of Debian's iproute2")?;
    if !output.status.success() {
        bail!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_address_is_local_and_different() {
        let other = other_address("96:3a:00:11:22:33").unwrap();
        assert_eq!(other, "96:7a:00:11:22:b3");
        assert!(other_address("").is_err());
    }

    #[test]
    fn a_description_says_what_was_taken() {
        for (addresses, gateways) in
            [(vec!["10.88.0.2/16", "fd00::2/64"], vec!["10.88.0.1", "fd00::1"]), (vec![], vec![])]
        {
            let taken = Taken {
                hardware: "96:3a:00:11:22:33".to_owned(),
                addresses: addresses.into_iter().map(str::to_owned).collect(),
                gateways: gateways.into_iter().map(|text| text.parse().unwrap()).collect(),
            };
            assert_eq!(Taken::from_description(&taken.description()), Some(taken));
        }
        assert_eq!(Taken::from_description("uplink"), None);
        assert_eq!(Taken::from_description("heddle"), None);
    }

    #[test]
    fn interfaces_are_read() {
        let text = r#"[{"ifname":"lo","address":"00:00:00:00:00:00","addr_info":[]},{},{"ifname":"eth0","address":
            "96:3a:00:11:22:33","mtu":1500,"addr_info":[{"family":"inet","local":"10.88.0.2","prefixlen":16,
            "scope":"global"},{"family":"inet6","local":"fe80::1","prefixlen":64,"scope":"link"}]}]"#;
        assert!(serde_json::from_str::<Vec<Link>>(text).is_err(), "an interface has a name");
        let links: Vec<Link> = serde_json::from_str(&text.replace("{},", "")).unwrap();
        assert_eq!(links[1].addr_info[0].local, "10.88.0.2".parse::<IpAddr>().unwrap());
    }
}
