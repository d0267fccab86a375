//! The machine's address by DHCP: a thread that asks for a lease, keeps it, and sets the interface up by it, as the
//! Heddle kernel does.
#![allow(unsafe_code)] // No safe function binds a socket to an interface.

use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use heddle_abi::boot::NET_PATIENCE_SECONDS;
use heddle_dhcp::{CLIENT_PORT, Change, Client, DATAGRAM_BYTES_MAX, Lease, SERVER_PORT, Step};

use crate::network::{INTERFACE, Route};

/// The name of a machine that nobody has named. Servers are told it.
const NAME: &str = "heddle";
/// The least that IPv6 works with; below, Linux would switch it off.
const MTU_MIN: u16 = 1280;

/// The first lease, to come.
pub struct Bound(Receiver<()>);

impl Bound {
    /// Waits for it. `false`: none has come for long enough.
    pub fn wait(&self) -> bool {
        self.0.recv_timeout(Duration::from_secs(NET_PATIENCE_SECONDS.into())).is_ok()
    }
}

/// Starts to ask for a lease for the interface with this index.
pub fn start(route: Route, index: u32) -> Result<Bound> {
    let socket = open().with_context(|| format!("a socket of {INTERFACE}"))?;
    let path = format!("/sys/class/net/{INTERFACE}/address");
    let mac = std::fs::read_to_string(&path).context(path)?;
    let mut bytes = [0; 6];
    for (byte, text) in bytes.iter_mut().zip(mac.trim().split(':')) {
        *byte = u8::from_str_radix(text, 16).context("the interface's hardware address")?;
    }
    let mut random = [0; 8];
    rustix::io::read(std::fs::File::open("/dev/urandom").context("/dev/urandom")?, &mut random)?;
    let start = Instant::now();
    let (bound, receiver) = channel();
    let client = Client::new(bytes, NAME, u64::from_ne_bytes(random), 0);
    let keeper = Keeper { socket, route, index, start, bound, held: None };
    std::thread::spawn(move || keeper.run(client));
    Ok(Bound(receiver))
}

/// A socket at the client's port of the interface, which needs no address.
fn open() -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, CLIENT_PORT))?;
    socket.set_broadcast(true)?;
    let name = INTERFACE.as_bytes();
    // SAFETY: The name is that many bytes of memory, which the call reads and does not keep.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTODEVICE,
            name.as_ptr().cast(),
            name.len() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}

struct Keeper {
    socket: UdpSocket,
    route: Route,
    index: u32,
    start: Instant,
    bound: Sender<()>,
    held: Option<Lease>,
}

impl Keeper {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Keeps a lease as long as the machine runs.
    fn run(mut self, mut client: Client) {
        let mut bytes = [0; DATAGRAM_BYTES_MAX];
        loop {
            let now_ns = self.now_ns();
            let until_ns = match client.step(now_ns) {
                Step::Wait(until_ns) => until_ns,
                Step::Lost => {
                    self.give_up();
                    continue;
                }
                Step::Send(outgoing) => {
                    // A message that cannot be sent is lost, and sent again later.
                    let _ = self.socket.send_to(outgoing.bytes, (outgoing.to, SERVER_PORT));
                    continue;
                }
            };
            // At least a little, since 0 stands for ever.
            let pause = Duration::from_nanos(until_ns.saturating_sub(now_ns)).max(Duration::from_millis(1));
            let waits = self.socket.set_read_timeout(Some(pause).filter(|_| until_ns < u64::MAX));
            let received = waits.and_then(|()| self.socket.recv_from(&mut bytes));
            let Ok((length, source)) = received else { continue };
            if source.port() != SERVER_PORT {
                continue;
            }
            match (client.receive(self.now_ns(), &bytes[..length]), client.lease()) {
                (Some(Change::Bound), Some(lease)) => self.take(*lease),
                (Some(Change::Lost), _) => self.give_up(),
                _ => {}
            }
        }
    }

    /// Sets the interface and the names up as a lease says. A setting that is impossible is left out.
    fn take(&mut self, lease: Lease) {
        let own = |lease: &Lease| (IpAddr::V4(lease.address), lease.prefix);
        let old = self.held.replace(lease);
        if let Some(old) = old.filter(|old| own(old) != own(&lease)) {
            self.remove(&old);
        } else if let Some(router) =
            old.and_then(|old| old.router).filter(|router| lease.router != Some(*router))
        {
            let _ = self.route.remove_gateway(self.index, router.into());
        }
        let (address, length) = own(&lease);
        let mut results = vec![self.route.set_address(self.index, address, length).context("the address")];
        if let Some(mtu) = lease.mtu.filter(|mtu| *mtu >= MTU_MIN) {
            results.push(self.route.set_mtu(self.index, mtu.into()).context("the MTU"));
        }
        if let Some(router) = lease.router {
            results.push(self.route.set_gateway(self.index, router.into()).context("the router"));
        }
        results.push(
            std::fs::write("/etc/resolv.conf", lease.resolver().as_bytes()).context("/etc/resolv.conf"),
        );
        results.push(set_host_name(lease.host_name.as_str()).context("the host's name"));
        for error in results.into_iter().filter_map(Result::err) {
            eprintln!("heddle-init: DHCP: {error:#}");
        }
        // Nobody waits for a later one.
        let _ = self.bound.send(());
    }

    /// The time of the lease is over, or its server wants it back.
    fn give_up(&mut self) {
        if let Some(old) = self.held.take() {
            self.remove(&old);
        }
    }

    /// Takes an address away, and the route that came with it. A program may have done so before.
    fn remove(&mut self, old: &Lease) {
        if let Some(router) = old.router {
            let _ = self.route.remove_gateway(self.index, router.into());
        }
        let _ = self.route.remove_address(self.index, old.address.into(), old.prefix);
    }
}

/// A machine that nobody has named takes the name that the network gives it.
fn set_host_name(name: &str) -> Result<()> {
    let old = rustix::system::uname();
    if old.nodename().to_bytes() != NAME.as_bytes() || name.is_empty() || name == NAME {
        return Ok(());
    }
    rustix::system::sethostname(name.as_bytes())?;
    let mut hosts = std::fs::File::options().append(true).create(true).open("/etc/hosts")?;
    io::Write::write_all(&mut hosts, format!("127.0.1.1\t{name}\n").as_bytes())?;
    Ok(())
}
