//! The machine's address by DHCP: a thread that asks for a lease, keeps it, and sets the interface up by it, as the
//! Heddle kernel does.
#![allow(unsafe_code)] // No safe function binds a socket to an interface.

use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use heddle_abi::boot::NET_PATIENCE_SECONDS;
use heddle_dhcp::{
    CLIENT_PORT, Change, Client, DATAGRAM_BYTES_MAX, Lease, RELEASE_PATIENCE_NS, SERVER_PORT, StaticRoute,
    Step,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::arp::Arp;
use crate::network::{INTERFACE, Route};

/// The name of a machine that nobody has named. Servers are told it.
const NAME: &str = "heddle";
/// The least that IPv6 works with; below, Linux would switch it off.
const MTU_MIN: u16 = 1280;
/// How often the thread looks whether its last message has left.
const DRAIN: Duration = Duration::from_millis(1);

/// The thread that keeps a lease, as others see it.
pub struct Keeping {
    /// Hears of the first lease.
    bound: Receiver<()>,
    /// Its end is the machine's end, of which the thread hears; and the thread's end.
    end: UnixStream,
    ended: Receiver<()>,
}

impl Keeping {
    /// Waits for the first lease. `false`: none has come for long enough.
    pub fn wait(&self) -> bool {
        self.bound.recv_timeout(Duration::from_secs(NET_PATIENCE_SECONDS.into())).is_ok()
    }

    /// Gives the lease back, as the machine ends, and waits a little until the server has been told.
    pub fn give_back(&self) {
        let _ = self.end.shutdown(std::net::Shutdown::Write);
        // The thread says nothing, but drops its side.
        let _ = self.ended.recv_timeout(Duration::from_nanos(RELEASE_PATIENCE_NS));
    }
}

/// Starts to ask for a lease for the interface with this index.
pub fn start(route: Route, index: u32) -> Result<Keeping> {
    let socket = open().with_context(|| format!("a socket of {INTERFACE}"))?;
    let path = format!("/sys/class/net/{INTERFACE}/address");
    let mac = std::fs::read_to_string(&path).context(path)?;
    let mut bytes = [0; 6];
    for (byte, text) in bytes.iter_mut().zip(mac.trim().split(':')) {
        *byte = u8::from_str_radix(text, 16).context("the interface's hardware address")?;
    }
    let arp = Arp::open(index, bytes).context("a socket for ARP")?;
    let mut random = [0; 8];
    rustix::io::read(std::fs::File::open("/dev/urandom").context("/dev/urandom")?, &mut random)?;
    let start = Instant::now();
    let mtu = mtu().context("the MTU")?;
    let ((bound, first), (end, keeper_end), (ending, ended)) = (channel(), UnixStream::pair()?, channel());
    let client = Client::new(bytes, NAME, u64::from_ne_bytes(random), 0);
    let keeper =
        Keeper { socket, arp, route, index, start, mtu, bound, end: keeper_end, _ending: ending, held: None };
    std::thread::spawn(move || keeper.run(client));
    Ok(Keeping { bound: first, end, ended })
}

/// Bytes of the largest packet, as they are set.
fn mtu() -> Result<u32> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{INTERFACE}/mtu"))?;
    Ok(text.trim().parse()?)
}

/// A socket at the client's port of the interface, which needs no address.
fn open() -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, CLIENT_PORT))?;
    socket.set_broadcast(true)?;
    socket.set_nonblocking(true)?;
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
    arp: Arp,
    route: Route,
    index: u32,
    start: Instant,
    /// The interface's own MTU.
    mtu: u32,
    bound: Sender<()>,
    /// Has an end when the machine has.
    end: UnixStream,
    /// Dropped at the thread's end, which somebody waits for.
    _ending: Sender<()>,
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
            if self.arp.is_taken(client.probed()) {
                eprintln!("heddle-init: DHCP: another host has the address, which is declined");
                client.conflict(now_ns);
            }
            let mut change = None;
            let received = self.socket.recv_from(&mut bytes);
            if let Ok((length, source)) = &received
                && source.port() == SERVER_PORT
            {
                change = client.receive(now_ns, &bytes[..*length]);
            }
            let mut until_ns = None;
            match client.step(now_ns) {
                Step::Wait(moment_ns) => until_ns = Some(moment_ns),
                Step::Lost => change = Some(Change::Lost),
                Step::Bound => change = Some(Change::Bound),
                Step::Probe(address) => self.arp.ask(Ipv4Addr::UNSPECIFIED, address),
                Step::Send(outgoing) => {
                    // A message that cannot be sent is lost, and sent again later.
                    let _ = self.socket.send_to(outgoing.bytes, (outgoing.to, SERVER_PORT));
                }
            }
            match (change, client.lease()) {
                (Some(Change::Bound), Some(lease)) => {
                    let is_new = self.held.is_none();
                    self.take(*lease);
                    if is_new {
                        // Neighbours may know another host by the address.
                        self.arp.ask(lease.address, lease.address);
                    }
                }
                (Some(Change::Lost), _) => self.give_up(),
                _ => {}
            }
            let Some(until_ns) = until_ns.filter(|_| received.is_err()) else { continue };
            if self.is_told_to_end(until_ns) {
                return self.give_back(&mut client);
            }
        }
    }

    /// Waits until a moment, or something comes. Returns whether that is the machine's end.
    fn is_told_to_end(&self, until_ns: u64) -> bool {
        let pause = Duration::from_nanos(until_ns.saturating_sub(self.now_ns()));
        let seconds = i64::try_from(pause.as_secs()).unwrap_or(i64::MAX);
        let pause = Timespec { tv_sec: seconds, tv_nsec: pause.subsec_nanos().into() };
        let mut sources = [self.socket.as_fd(), self.arp.as_fd(), self.end.as_fd()]
            .map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN));
        // Without an end in sight there is none; an interrupted wait is begun again by the caller.
        let limit = Some(&pause).filter(|_| until_ns < u64::MAX);
        poll(&mut sources, limit).is_ok() && !sources[2].revents().is_empty()
    }

    /// Tells the server that its address is free, and waits until that has left, as the neighbour may have to be asked
    /// first.
    fn give_back(&self, client: &mut Client) {
        let start = Instant::now();
        if let Some(outgoing) = client.release(self.now_ns()) {
            let _ = self.socket.send_to(outgoing.bytes, (outgoing.to, SERVER_PORT));
        }
        while self.unsent() > 0 && start.elapsed() < Duration::from_nanos(RELEASE_PATIENCE_NS) {
            std::thread::sleep(DRAIN);
        }
    }

    /// Bytes of messages that have not left.
    fn unsent(&self) -> i32 {
        let mut bytes = 0;
        // SAFETY: The number lives through the call.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        if result == 0 { bytes } else { 0 }
    }

    /// Sets the interface and the names up as a lease says. A setting that is impossible is left out.
    fn take(&mut self, lease: Lease) {
        if let Some(old) = self.held.replace(lease) {
            self.leave(&old, Some(&lease));
        }
        let (address, length) = own(&lease);
        let mut results = vec![self.route.set_address(self.index, address, length).context("the address")];
        if let Some(mtu) = lease.mtu.filter(|mtu| *mtu >= MTU_MIN) {
            results.push(self.route.set_mtu(self.index, mtu.into()).context("the MTU"));
        }
        for StaticRoute { destination, prefix, router } in lease.routes() {
            let set = self.route.set_route(self.index, (destination.into(), prefix), router.map(IpAddr::V4));
            results.push(set.with_context(|| format!("the route to {destination}/{prefix}")));
        }
        // A server that names no servers of names leaves those that the image has.
        if lease.name_servers().next().is_some() {
            let written = std::fs::write("/etc/resolv.conf", lease.resolver().as_bytes());
            results.push(written.context("/etc/resolv.conf"));
        }
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
            self.leave(&old, None);
        }
    }

    /// Takes away what came with a lease and does not come with the next one. A program may have done so before.
    fn leave(&mut self, old: &Lease, next: Option<&Lease>) {
        let is_kept =
            |route: &StaticRoute| next.is_some_and(|next| next.routes().any(|other| other == *route));
        for StaticRoute { destination, prefix, router } in old.routes().filter(|route| !is_kept(route)) {
            let gone = (destination.into(), prefix);
            let _ = self.route.remove_route(self.index, gone, router.map(IpAddr::V4));
        }
        let (address, length) = own(old);
        if next.is_none_or(|next| own(next) != (address, length)) {
            let _ = self.route.remove_address(self.index, address, length);
        }
        if let (Some(set), None) = (old.mtu, next.and_then(|next| next.mtu))
            && mtu().is_ok_and(|now| now == u32::from(set))
        {
            let _ = self.route.set_mtu(self.index, self.mtu);
        }
    }
}

fn own(lease: &Lease) -> (IpAddr, u8) {
    (IpAddr::V4(lease.address), lease.prefix)
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
