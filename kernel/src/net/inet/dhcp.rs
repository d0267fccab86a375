//! The machine's address by DHCP: the coroutine that asks for a lease, keeps it, and sets the interface up by it.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, Ordering};
use heddle_abi::boot::NET_PATIENCE_SECONDS;
use heddle_dhcp::{CLIENT_PORT, Change, Client, Lease, SERVER_PORT, Step, Text};
use heddle_inet::dhcp::DhcpPort;
use heddle_inet::link::Link;
use heddle_inet::platform::Readiness;
use heddle_kernel_core::netlink::{InterfaceAddress, NetworkChange, default_route};

use crate::error::Errno;
use crate::fs::setup;
use crate::memory::fallible;
use crate::net::inet::platform::{Kernel, engine};
use crate::net::interface::{self, Ethernet};
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

static IS_USED: AtomicBool = AtomicBool::new(false);
/// There has been a lease.
static IS_BOUND: AtomicBool = AtomicBool::new(false);
/// Notified of the first lease.
static BOUND: WaitQueue = WaitQueue::new();

/// Starts to ask for a lease.
///
/// # Errors
/// `EADDRINUSE`, `ENOMEM`.
pub fn start(ethernet: &Ethernet) -> Result<(), Errno> {
    let port = DhcpPort::open(engine()?, [CLIENT_PORT, SERVER_PORT])?;
    let mut seed = [0; 8];
    random::fill(&mut seed);
    let client = Client::new(ethernet.device.mac(), NAME, u64::from_ne_bytes(seed), time::now_ns());
    sched::spawn(Priority::KERNEL, keep(port, fallible::try_box(client)?))?;
    IS_USED.store(true, Ordering::Release);
    Ok(())
}

/// Waits until there is a lease, or has been long enough without one: then the answer is `false`. A machine that wants
/// none need not wait.
pub async fn wait_for_lease() -> bool {
    if !IS_USED.load(Ordering::Acquire) {
        return true;
    }
    let deadline_ns = time::now_ns() + u64::from(NET_PATIENCE_SECONDS) * NS_PER_SECOND;
    let is_bound = kernel_until_deadline(&BOUND, deadline_ns, || IS_BOUND.load(Ordering::Acquire)).await;
    is_bound.unwrap_or(false)
}

/// Keeps a lease as long as the machine runs.
async fn keep(port: DhcpPort<Kernel>, mut client: Box<Client>) {
    let socket = port.socket();
    let mut held = None;
    let mut budget = Budget::new();
    loop {
        budget.step(Budget::ATTEMPT).await;
        let now_ns = time::now_ns();
        let mut change = None;
        let has_come = port.receive(|bytes| change = client.receive(now_ns, bytes));
        match (change, client.lease()) {
            (Some(Change::Bound), Some(lease)) => take(&mut held, lease).await,
            (Some(Change::Lost), _) => give_up(&mut held),
            _ => {}
        }
        let until_ns = match client.step(now_ns) {
            Step::Wait(until_ns) => until_ns,
            Step::Lost => {
                give_up(&mut held);
                continue;
            }
            Step::Send(outgoing) => {
                // A message that cannot be sent is lost, and sent again later.
                let _ = port.send(outgoing.from, outgoing.to, outgoing.bytes);
                continue;
            }
        };
        if has_come {
            continue;
        }
        let queue = &socket.waiters().queue;
        let wait = kernel_until_deadline(queue, until_ns, || socket.readiness().contains(Readiness::IN));
        if wait.await.is_err() {
            time::sleep_until(time::now_ns() + RETRY_NS).await;
        }
    }
}

const fn interface_address(lease: &Lease) -> InterfaceAddress {
    InterfaceAddress { address: core::net::IpAddr::V4(lease.address), length: lease.prefix }
}

/// Changes the interface. An impossible setting, say a router in no network of the host, is left out.
fn change(what: &NetworkChange) {
    if let Err(error) = interface::change(&[*what]) {
        ::log::warn!("dhcp: {what:?}: {error:?}");
    }
}

/// Sets the interface and the names up as a lease says.
async fn take(held: &mut Option<Lease>, lease: &Lease) {
    ::log::info!("dhcp: {}/{} from {}", lease.address, lease.prefix, lease.server);
    let old = held.replace(*lease);
    if let Some(old) = old.filter(|old| interface_address(old) != interface_address(lease)) {
        remove(&old);
    } else if let Some(router) = old.and_then(|old| old.router).filter(|router| lease.router != Some(*router))
    {
        remove_route(router.into());
    }
    change(&NetworkChange::AddAddress { with: interface_address(lease), replaces: true });
    if let Some(mtu) = lease.mtu {
        change(&NetworkChange::Link { is_up: None, mtu: Some(mtu.into()) });
    }
    if let Some(router) = lease.router {
        change(&NetworkChange::AddRoute { route: default_route(router.into()), replaces: true });
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
    BOUND.wake(Events::all());
}

/// The time of the lease is over, or its server wants it back.
fn give_up(held: &mut Option<Lease>) {
    if let Some(old) = held.take() {
        ::log::warn!("dhcp: {} is no longer this machine's", old.address);
        remove(&old);
    }
}

/// Takes an address away, and the route that came with it. A program may have done so before.
fn remove(old: &Lease) {
    if let Some(router) = old.router {
        remove_route(router.into());
    }
    let _ = interface::change(&[NetworkChange::RemoveAddress(interface_address(old))]);
}

fn remove_route(router: core::net::IpAddr) {
    let route = default_route(router);
    let gone = NetworkChange::RemoveRoute {
        destination: route.destination,
        gateway: route.gateway,
        metric: Some(route.metric),
    };
    let _ = interface::change(&[gone]);
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
