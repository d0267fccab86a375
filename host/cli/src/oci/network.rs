//! A machine in an engine's network name space: a tap device there is bridged with the interface that the engine has
//! made, whose addresses, router and hardware address become the guest's.
//!
//! ```text
//!   engine's bridge or router ── veth ── eth0 ── bridge ── tap ── QEMU ── guest's eth0
//!                                        └──────── name space ────┘
//! ```

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::Deserialize;

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

/// Enters the name space with the calling thread, which starts QEMU, and joins a tap device to its interface. A name
/// space without an interface is a machine without one.
///
/// # Errors
/// If there are several interfaces, or the tools or rights to join one are missing.
pub fn join(path: &Path) -> Result<Network> {
    let namespace = File::open(path).with_context(|| path.display().to_string())?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .context("entering the network's name space")?;
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
    let addresses: Vec<String> =
        global.map(|address| format!("{}/{}", address.local, address.prefixlen)).collect();
    let name = link.ifname.as_str();
    // The guest takes the interface's hardware address, by which the engine's network knows it; the interface, now
    // nothing but a port of the bridge, gets another.
    let other = other_address(&link.address)?;
    for step in [
        &["link", "add", BRIDGE, "type", "bridge"][..],
        &["addr", "flush", "dev", name],
        &["link", "set", name, "address", &other],
        &["tuntap", "add", "dev", TAP, "mode", "tap", "vnet_hdr"],
        &["link", "set", name, "master", BRIDGE],
        &["link", "set", TAP, "master", BRIDGE],
        &["link", "set", TAP, "up"],
        &["link", "set", BRIDGE, "up"],
    ] {
        run(step)?;
    }
    Network::tap(TAP, &addresses, gateways, link.address)
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
    fn interfaces_are_read() {
        let text = r#"[{"ifname":"lo","address":"00:00:00:00:00:00","addr_info":[]},{},{"ifname":"eth0","address":
            "96:3a:00:11:22:33","mtu":1500,"addr_info":[{"family":"inet","local":"10.88.0.2","prefixlen":16,
            "scope":"global"},{"family":"inet6","local":"fe80::1","prefixlen":64,"scope":"link"}]}]"#;
        assert!(serde_json::from_str::<Vec<Link>>(text).is_err(), "an interface has a name");
        let links: Vec<Link> = serde_json::from_str(&text.replace("{},", "")).unwrap();
        assert_eq!(links[1].addr_info[0].local, "10.88.0.2".parse::<IpAddr>().unwrap());
    }
}
