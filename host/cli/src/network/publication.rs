//! Published ports: `[ADDRESS:]HOST:GUEST[/tcp|/udp]`.
//!
//! QEMU forwards ports of the host's IPv4 addresses. Those of IPv6 addresses are served by a [`Relay`] to a forwarded
//! port of the loopback. Every port is bound here once before the machine starts, so that one that is taken is found
//! before anything has happened; QEMU binds it again a moment later.

use std::fmt;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, TcpListener, UdpSocket};

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

use super::relay::{Listener, Relay};

/// Connections that wait to be accepted by a relay.
const BACKLOG: i32 = 128;

/// A transport protocol whose ports are published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Streams.
    Tcp,
    /// Datagrams.
    Udp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

/// A port of the host that QEMU forwards to one of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    protocol: Protocol,
    host: SocketAddrV4,
    guest: SocketAddrV4,
}

impl fmt::Display for Forward {
    /// As QEMU's `hostfwd`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, guest) = (self.host, self.guest);
        let (from, to) = (host.ip(), guest.ip());
        write!(formatter, "{}:{from}:{}-{to}:{}", self.protocol, host.port(), guest.port())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Publication {
    address: Option<IpAddr>,
    host_port: u16,
    guest_port: u16,
    protocol: Protocol,
}

/// The ports that QEMU forwards and those it can't, after a look whether they are free.
///
/// # Errors
/// If one is taken, not allowed, or written wrongly.
pub fn prepare(texts: &[String], guest: Ipv4Addr) -> Result<(Vec<Forward>, Vec<Relay>)> {
    let (mut forwards, mut relays) = (Vec::new(), Vec::new());
    // Held until all are tried, so that one port that is wanted twice is found too.
    let mut tried = Vec::new();
    for text in texts {
        let wanted = parse(text).with_context(|| format!("-p {text}: not [ADDRESS:]HOST:GUEST[/udp]"))?;
        let Publication { protocol, host_port, .. } = wanted;
        let guest = SocketAddrV4::new(guest, wanted.guest_port);
        if let None | Some(IpAddr::V4(_)) = wanted.address {
            let address = match wanted.address {
                Some(IpAddr::V4(address)) => address,
                _ => Ipv4Addr::UNSPECIFIED,
            };
            let host = SocketAddrV4::new(address, host_port);
            tried.push(listener(protocol, host.into()).map_err(|error| refusal(text, host.into(), error))?);
            forwards.push(Forward { protocol, host, guest });
        }
        if let None | Some(IpAddr::V6(_)) = wanted.address {
            let address = match wanted.address {
                Some(IpAddr::V6(address)) => address,
                _ => Ipv6Addr::UNSPECIFIED,
            };
            let host = SocketAddrV6::new(address, host_port, 0, 0);
            match listener(protocol, host.into()) {
                Ok(listener) => {
                    let (inner, held) = free_port(protocol)?;
                    tried.push(held);
                    forwards.push(Forward { protocol, host: inner, guest });
                    relays.push(Relay::new(listener, inner));
                }
                // A host without IPv6 has no addresses of it either.
                Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) if wanted.address.is_none() => {}
                Err(error) => return Err(refusal(text, host.into(), error)),
            }
        }
    }
    Ok((forwards, relays))
}

fn refusal(text: &str, host: SocketAddr, error: Errno) -> anyhow::Error {
    let reason = match error {
        Errno::ADDRINUSE => String::from("the port is taken"),
        error => std::io::Error::from(error).to_string(),
    };
    anyhow::anyhow!("-p {text}: {host}: {reason}")
}

fn parse(text: &str) -> Option<Publication> {
    let (ports, protocol) = match text.rsplit_once('/') {
        Some((ports, "tcp")) => (ports, Protocol::Tcp),
        Some((ports, "udp")) => (ports, Protocol::Udp),
        Some(_) => return None,
        None => (text, Protocol::Tcp),
    };
    let (rest, guest) = ports.rsplit_once(':')?;
    let (address, host) = match rest.rsplit_once(':') {
        Some((address, host)) => (Some(parse_address(address)?), host),
        None => (None, rest),
    };
    let port = |text: &str| text.parse::<u16>().ok().filter(|&port| port != 0);
    Some(Publication { address, host_port: port(host)?, guest_port: port(guest)?, protocol })
}

/// An IPv6 address is in brackets, because it has colons too.
fn parse_address(text: &str) -> Option<IpAddr> {
    match text.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?.parse().ok().map(IpAddr::V6),
        None => text.parse().ok().map(IpAddr::V4),
    }
}

/// A socket at this address of this host.
fn listener(protocol: Protocol, address: SocketAddr) -> Result<Listener, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let kind = match protocol {
        Protocol::Tcp => SocketType::STREAM,
        Protocol::Udp => SocketType::DGRAM,
    };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    if address.is_ipv6() {
        // The IPv4 addresses are QEMU's.
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    if protocol == Protocol::Tcp {
        // Connections of a machine that has ended may linger.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    bind(&socket, &address)?;
    match protocol {
        Protocol::Tcp => {
            listen(&socket, BACKLOG)?;
            Ok(Listener::Tcp(TcpListener::from(socket)))
        }
        Protocol::Udp => Ok(Listener::Udp(UdpSocket::from(socket))),
    }
}

/// A port of the loopback that is free, and the socket that holds it until all are found.
fn free_port(protocol: Protocol) -> Result<(SocketAddrV4, Listener)> {
    let held =
        listener(protocol, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).context("finding a free port")?;
    match held.address().context("finding a free port")? {
        SocketAddr::V4(address) => Ok((address, held)),
        SocketAddr::V6(_) => bail!(std::io::Error::from(ErrorKind::InvalidData)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);

    #[test]
    fn publications_are_parsed() {
        let is = |text, address: Option<&str>, host_port, guest_port, protocol| {
            let address = address.map(|text| text.parse().unwrap());
            assert_eq!(parse(text), Some(Publication { address, host_port, guest_port, protocol }), "{text}");
        };
        is("8080:80", None, 8080, 80, Protocol::Tcp);
        is("8080:80/tcp", None, 8080, 80, Protocol::Tcp);
        is("53:5353/udp", None, 53, 5353, Protocol::Udp);
        is("127.0.0.1:1:2", Some("127.0.0.1"), 1, 2, Protocol::Tcp);
        is("[::1]:1:2/udp", Some("::1"), 1, 2, Protocol::Udp);
        for text in
            ["", "80", "80:", ":80", "0:80", "80:0", "1:65536", "1:2/sctp", "::1:1:2", "x:1:2", "[::1:1:2"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_taken_port_is_refused() {
        for (address, protocol) in
            [("127.0.0.1", "tcp"), ("[::1]", "tcp"), ("127.0.0.1", "udp"), ("[::1]", "udp")]
        {
            let (taken, port) = match protocol {
                "tcp" => {
                    let taken = TcpListener::bind(format!("{address}:0")).unwrap();
                    let port = taken.local_addr().unwrap().port();
                    (Listener::Tcp(taken), port)
                }
                _ => {
                    let taken = UdpSocket::bind(format!("{address}:0")).unwrap();
                    let port = taken.local_addr().unwrap().port();
                    (Listener::Udp(taken), port)
                }
            };
            let text = format!("{address}:{port}:80/{protocol}");
            let error = prepare(std::slice::from_ref(&text), GUEST).expect_err(&text).to_string();
            assert!(error.contains("the port is taken") && error.contains(&text), "{error}");
            drop(taken);
        }
    }

    #[test]
    fn ipv4_is_forwarded_and_ipv6_relayed() {
        let (_, held) = free_port(Protocol::Tcp).unwrap();
        let port = held.address().unwrap().port();
        drop(held);
        let (forwards, relays) = prepare(&[format!("127.0.0.1:{port}:80")], GUEST).unwrap();
        assert_eq!(forwards[0].to_string(), format!("tcp:127.0.0.1:{port}-10.0.2.15:80"));
        assert_eq!((forwards.len(), relays.len()), (1, 0));
        let (forwards, relays) = prepare(&[format!("[::1]:{port}:80/udp")], GUEST).unwrap();
        assert!(forwards[0].to_string().starts_with("udp:127.0.0.1:"), "{}", forwards[0]);
        assert_eq!((forwards.len(), relays.len()), (1, 1));
        let twice = [format!("127.0.0.1:{port}:80"), format!("127.0.0.1:{port}:81")];
        assert!(prepare(&twice, GUEST).is_err(), "one port for two");
    }
}
