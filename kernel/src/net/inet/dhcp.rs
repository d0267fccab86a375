//! The machine's address by DHCP: the coroutine that asks for a lease, keeps it, and sets the interface up by it.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::net::{IpAddr, Ipv4Addr};
use core::sync::atomic::{AtomicBool, Ordering};
use heddle_abi::boot::NET_PATIENCE_SECONDS;
use heddle_dhcp::{
    CLIENT_PORT, Change, Client, Lease, RELEASE_PATIENCE_NS, SERVER_PORT, StaticRoute, Step, Text,
};
use heddle_inet::dhcp::DhcpPort;
use heddle_inet::link::Link;
use heddle_inet::platform::Readiness;
use heddle_inet::udp::UdpSocket;
use heddle_kernel_core::netlink::{GivenRoute, InterfaceAddress, NetworkChange, default_route};

use crate::error::Errno;
use crate::fs::setup;
use crate::memory::fallible;
use crate::net::inet::platform::Kernel;
use crate::net::interface::{self, Ethernet};
use crate::net::namespace::NetNamespace;
use crate::process::host_name::HOST_NAME_BYTES;
use crate::process::namespaces::Namespaces;
use crate::sched::{Budget, Priority};
use crate::time::NS_PER_SECOND;
use crate::wait::engine::kernel_until_deadline;
use crate::wait::queue::{Events, WaitQueue};
use crate::{random, sched, time};

/// The name of a machine that nobody has named. Servers are told it.
const NAME: &str = "heddle";
/// The line of `/etc/hosts` for another name: the address is the one that Debian gives a machine's own name.
const HOSTS_BYTES: usize = 80;
/// How long the coroutine waits when there is no memory for a wait.
const RETRY_NS: u64 = 10_000_000;
/// How often it looks whether its last message has left.
const DRAIN_NS: u64 = 1_000_000;

/// The socket for the messages, if leases are asked for.
static SOCKET: spin::Once<Arc<UdpSocket<Kernel>>> = spin::Once::new();
/// There has been a lease.
static IS_BOUND: AtomicBool = AtomicBool::new(false);
/// The machine ends, and the lease is to be given back; and that is done.
static IS_ENDING: AtomicBool = AtomicBool::new(false);
static IS_RELEASED: AtomicBool = AtomicBool::new(false);
/// Notified of the first lease, and when it was given back.
static CHANGED: WaitQueue = WaitQueue::new();

/// Starts to ask for a lease.
///
/// # Errors
/// `EADDRINUSE`, `ENOMEM`.
pub fn start(ethernet: &Ethernet) -> Result<(), Errno> {
    let port = DhcpPort::open(NetNamespace::first()?.engine()?, [CLIENT_PORT, SERVER_PORT])?;
    let mut seed = [0; 8];
    random::fill(&mut seed);
    let client = Client::new(ethernet.device.mac(), NAME, u64::from_ne_bytes(seed), time::now_ns());
    let socket = port.socket().clone();
    sched::spawn(Priority::KERNEL, keep(port, fallible::try_box(client)?))?;
    SOCKET.call_once(|| socket);
    Ok(())
}

/// Waits until there is a lease, or has been long enough without one: then the answer is `false`. A machine that wants
/// none need not wait.
pub async fn wait_for_lease() -> bool {
    if SOCKET.get().is_none() {
        return true;
    }
    let deadline_ns = time::now_ns() + u64::from(NET_PATIENCE_SECONDS) * NS_PER_SECOND;
    let is_bound = kernel_until_deadline(&CHANGED, deadline_ns, || IS_BOUND.load(Ordering::Acquire)).await;
    is_bound.unwrap_or(false)
}

/// Gives the lease back, as the machine ends, and waits a little until the server has been told. Without memory for the
/// wait the server is not told, and the lease ends by itself.
pub async fn release() {
    let Some(socket) = SOCKET.get().filter(|_| IS_BOUND.load(Ordering::Acquire)) else { return };
    IS_ENDING.store(true, Ordering::Release);
    socket.waiters().queue.wake(Events::IN);
    let deadline_ns = time::now_ns() + RELEASE_PATIENCE_NS;
    let is_released = || IS_RELEASED.load(Ordering::Acquire);
    let _ = kernel_until_deadline(&CHANGED, deadline_ns, is_released).await;
}

/// Keeps a lease as long as the machine runs.
async fn keep(port: DhcpPort<Kernel>, mut client: Box<Client>) {
    let socket = port.socket();
    let mut held = None;
    let mut budget = Budget::new();
    loop {
        budget.step(Budget::ATTEMPT).await;
        let now_ns = time::now_ns();
        if IS_ENDING.load(Ordering::Acquire) {
            return give_back(&port, &mut client).await;
        }
        if port.is_taken(client.probed()) {
            ::log::warn!("dhcp: another host has the address, which is declined");
            client.conflict(now_ns);
        }
        let mut change = None;
        let has_come = port.receive(|bytes| change = client.receive(now_ns, bytes));
        let mut until_ns = None;
        match client.step(now_ns) {
            Step::Wait(moment_ns) => until_ns = Some(moment_ns),
            Step::Lost => change = Some(Change::Lost),
            Step::Bound => change = Some(Change::Bound),
            Step::Probe(address) => port.probe(address),
            Step::Send(outgoing) => {
                // A message that cannot be sent is lost, and sent again later.
                let _ = port.send(outgoing.from, outgoing.to, outgoing.bytes);
            }
        }
        match (change, client.lease()) {
            (Some(Change::Bound), Some(lease)) => {
                let is_new = held.is_none();
                take(&mut held, lease).await;
                if is_new {
                    // Neighbours may know another host by the address.
                    port.announce(lease.address);
                }
            }
            (Some(Change::Lost), _) => give_up(&mut held),
            _ => {}
        }
        let Some(until_ns) = until_ns.filter(|_| !has_come) else { continue };
        let queue = &socket.waiters().queue;
        let goes_on = || socket.readiness().contains(Readiness::IN) || IS_ENDING.load(Ordering::Acquire);
        if kernel_until_deadline(queue, until_ns, goes_on).await.is_err() {
            time::sleep_until(time::now_ns() + RETRY_NS).await;
        }
    }
}

/// Tells the server that its address is free, and the machine's end when that has left.
async fn give_back(port: &DhcpPort<Kernel>, client: &mut Client) {
    let deadline_ns = time::now_ns() + RELEASE_PATIENCE_NS;
    if let Some(outgoing) = client.release(time::now_ns()) {
        ::log::info!("dhcp: the lease is given back");
        let _ = port.send(outgoing.from, outgoing.to, outgoing.bytes);
    }
    while port.is_sending() && time::now_ns() < deadline_ns {
        time::sleep_until(time::now_ns() + DRAIN_NS).await;
    }
    IS_RELEASED.store(true, Ordering::Release);
    CHANGED.wake(Events::all());
}

const fn interface_address(lease: &Lease) -> InterfaceAddress {
    InterfaceAddress { address: IpAddr::V4(lease.address), length: lease.prefix }
}

fn apply(what: &NetworkChange) -> Result<(), Errno> {
    interface::change(NetNamespace::first()?, &[*what])
}

/// Changes the interface. An impossible setting, say a router in no network of the host, is left out.
fn change(what: &NetworkChange) {
    if let Err(error) = apply(what) {
        ::log::warn!("dhcp: {what:?}: {error:?}");
    }
}

/// Sets the interface and the names up as a lease says.
async fn take(held: &mut Option<Lease>, lease: &Lease) {
    ::log::info!("dhcp: {}/{} from {}", lease.address, lease.prefix, lease.server);
    if let Some(old) = held.replace(*lease) {
        leave(&old, Some(lease));
    }
    change(&NetworkChange::AddAddress { with: interface_address(lease), replaces: true });
    if let Some(mtu) = lease.mtu {
        change(&NetworkChange::Link { is_up: None, mtu: Some(mtu.into()) });
    }
    for route in lease.routes() {
        change(&NetworkChange::AddRoute { route: given_route(&route), replaces: true });
    }
    let resolver = lease.resolver();
    // A server that names no servers of names leaves those that the image has.
    if lease.name_servers().next().is_some()
        && let Err(error) = setup::write(b"/etc/resolv.conf", resolver.as_bytes(), false).await
    {
        ::log::warn!("dhcp: /etc/resolv.conf: {error:?}");
    }
    if let Err(error) = set_host_name(lease).await {
        ::log::warn!("dhcp: the host's name: {error:?}");
    }
    IS_BOUND.store(true, Ordering::Release);
    CHANGED.wake(Events::all());
}

/// The time of the lease is over, or its server wants it back.
fn give_up(held: &mut Option<Lease>) {
    if let Some(old) = held.take() {
        ::log::warn!("dhcp: {} is no longer this machine's", old.address);
        leave(&old, None);
    }
}

const fn given_route(route: &StaticRoute) -> GivenRoute {
    let gateway = match route.router {
        Some(router) => Some(IpAddr::V4(router)),
        None => None,
    };
    let destination = InterfaceAddress { address: IpAddr::V4(route.destination), length: route.prefix };
    GivenRoute { destination, gateway, ..default_route(IpAddr::V4(Ipv4Addr::UNSPECIFIED)) }
}

/// Takes away what came with a lease and does not come with the next one. A program may have done so before.
fn leave(old: &Lease, next: Option<&Lease>) {
    let is_kept = |route: &StaticRoute| next.is_some_and(|next| next.routes().any(|other| other == *route));
    for route in old.routes().filter(|route| !is_kept(route)) {
        let GivenRoute { destination, gateway, metric, .. } = given_route(&route);
        let gone = NetworkChange::RemoveRoute { destination, gateway, metric: Some(metric) };
        let _ = apply(&gone);
    }
    if next.is_none_or(|next| interface_address(next) != interface_address(old)) {
        let _ = apply(&NetworkChange::RemoveAddress(interface_address(old)));
    }
    if let (Some(mtu), None) = (old.mtu, next.and_then(|next| next.mtu))
        && let Some(ethernet) = interface::ethernet()
        && ethernet.settings().mtu == u32::from(mtu)
    {
        change(&NetworkChange::Link { is_up: None, mtu: Some(ethernet.device.mtu() as u32) });
    }
}

/// A machine that nobody has named takes the name that the network gives it.
async fn set_host_name(lease: &Lease) -> Result<(), Errno> {
    let names = &Namespaces::initial()?.names;
    let old = names.host_name();
    let is_unnamed = old.split(|&byte| byte == 0).next() == Some(NAME.as_bytes());
    let name = lease.host_name.as_bytes();
    if !is_unnamed || name.is_empty() || name == NAME.as_bytes() {
        return Ok(());
    }
    let mut bytes = [0; HOST_NAME_BYTES];
    bytes[..name.len()].copy_from_slice(name);
    names.set_host_name(bytes);
    let mut line = Text::<HOSTS_BYTES>::new();
    // The file's last line may have no end. The longest name has room.
    let _ =
        core::fmt::Write::write_fmt(&mut line, format_args!("\n127.0.1.1\t{}\n", lease.host_name.as_str()));
    setup::write(b"/etc/hosts", line.as_bytes(), true).await
}
