//! The machine's interfaces: `lo`, and `eth0` if the host gave the machine a network.
//!
//! One place keeps them, and everyone who shows or asks (netlink, `ioctl`, `/proc/net`, `/sys/class/net`) takes a
//! snapshot by [`with_network`]. Addresses and routes are those of the command line until a program changes them
//! ([`change`]); the engine is told of each change.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use heddle_abi::boot::{KEY_NET, NET_VALUE_MAX};
use heddle_inet::link::Link;
use heddle_kernel_core::fallible::try_collect;
use heddle_kernel_core::netlink::{
    Configuration, DeviceLimits, DeviceSettings, Interface, InterfaceKind, Network, NetworkChange,
    TrafficCounts, default_route, link_local,
};

use crate::boot;
use crate::device::net::{NetDevice, Traffic};
use crate::error::Errno;
use crate::memory::fallible;
use crate::net::namespace::NetNamespace;
use crate::sync::SpinLock;

/// The name of the interface to the host's network.
pub const ETHERNET: &str = "eth0";
/// The loopback's.
pub const LOOPBACK: &str = "lo";
/// Bytes of the largest packet on the loopback.
const LOOPBACK_MTU: u32 = 65_536;
const LOOPBACK_INDEX: u32 = 1;
const ETHERNET_INDEX: u32 = 2;

/// The interface with a device, and where it leads.
pub struct Ethernet {
    /// The device.
    pub device: &'static NetDevice,
    /// Whether it has an address of IPv4 from a server of DHCP.
    pub uses_dhcp: bool,
    /// Its addresses, its routes, and whether it is up.
    settings: SpinLock<Arc<DeviceSettings>>,
}

static ETHERNET_INTERFACE: spin::Once<Ethernet> = spin::Once::new();

/// The interface with a device, if the machine has one.
pub fn ethernet() -> Option<&'static Ethernet> {
    ETHERNET_INTERFACE.get()
}

/// Sets up the interface that the command line describes with the device that `find` finds. Without a description, or a
/// device, there is only the loopback, and nothing is looked for.
///
/// # Errors
/// `ENODEV` (the device does not work), `ENOMEM`.
pub fn initialize(
    find: impl FnOnce() -> Result<Option<&'static NetDevice>, Errno>,
) -> Result<Option<&'static Ethernet>, Errno> {
    let mut value = fallible::try_filled(0_u8, NET_VALUE_MAX)?;
    let Some(value) = boot::option(KEY_NET, &mut value) else { return Ok(None) };
    let Ok(Configuration { mut addresses, gateways, uses_dhcp }) = Configuration::parse(value) else {
        ::log::error!("{KEY_NET}={value}: not understood");
        return Ok(None);
    };
    let Some(device) = find()? else {
        ::log::error!("{KEY_NET}: the machine has no network device");
        return Ok(None);
    };
    fallible::try_push(&mut addresses, link_local(device.mac()))?;
    let routes = try_collect(gateways.into_iter().map(default_route)).map_err(|_| Errno::ENOMEM)?;
    let settings = DeviceSettings { addresses, routes, is_up: true, mtu: device.mtu() as u32 };
    let settings = SpinLock::new(fallible::try_arc(settings)?);
    Ok(Some(ETHERNET_INTERFACE.call_once(|| Ethernet { device, uses_dhcp, settings })))
}

fn counts(received: &Traffic, sent: &Traffic) -> TrafficCounts {
    TrafficCounts {
        received_packets: received.frames.load(Ordering::Relaxed),
        received_bytes: received.bytes.load(Ordering::Relaxed),
        received_errors: received.errors.load(Ordering::Relaxed),
        received_dropped: received.dropped.load(Ordering::Relaxed),
        sent_packets: sent.frames.load(Ordering::Relaxed),
        sent_bytes: sent.bytes.load(Ordering::Relaxed),
        sent_errors: sent.errors.load(Ordering::Relaxed),
        sent_dropped: sent.dropped.load(Ordering::Relaxed),
    }
}

/// Traffic of the loopback: what is sent is received at once.
fn loopback_traffic(namespace: &NetNamespace) -> TrafficCounts {
    let (packets, bytes) = namespace.running_engine().map_or((0, 0), |engine| engine.counters.loopback());
    TrafficCounts {
        received_packets: packets,
        received_bytes: bytes,
        sent_packets: packets,
        sent_bytes: bytes,
        ..TrafficCounts::default()
    }
}

/// Calls `f` with all interfaces of a namespace as they are now.
pub fn with_network<R>(namespace: &NetNamespace, f: impl FnOnce(&Network<'_>) -> R) -> R {
    let state = namespace.loopback();
    let loopback = Interface {
        index: LOOPBACK_INDEX,
        name: LOOPBACK,
        kind: InterfaceKind::Loopback,
        mtu: LOOPBACK_MTU,
        mac: [0; 6],
        is_up: state.is_up,
        has_link: true,
        addresses: state.addresses(),
        traffic: loopback_traffic(namespace),
    };
    let Some(Ethernet { device, settings, .. }) = ethernet().filter(|_| namespace.has_device()) else {
        return f(&Network { interfaces: &[loopback], routes: &[] });
    };
    let settings = settings.lock().clone();
    let ethernet = Interface {
        index: ETHERNET_INDEX,
        name: ETHERNET,
        kind: InterfaceKind::Ethernet,
        mtu: settings.mtu,
        mac: device.mac(),
        is_up: settings.is_up,
        has_link: device.has_link(),
        addresses: &settings.addresses,
        traffic: counts(&device.received, &device.sent),
    };
    f(&Network { interfaces: &[loopback, ethernet], routes: &settings.routes })
}

impl Ethernet {
    /// The settings as they are now.
    pub fn settings(&self) -> Arc<DeviceSettings> {
        self.settings.lock().clone()
    }
}

/// Changes an interface of a namespace: the loopback by one change, or the one with a device, all or nothing.
///
/// # Errors
/// `ENODEV` (there is none), `ENOMEM`, and those of [`DeviceSettings::apply`].
pub fn change(namespace: &NetNamespace, changes: &[NetworkChange]) -> Result<(), Errno> {
    if let [NetworkChange::Loopback(change)] = changes {
        return namespace.change_loopback(*change);
    }
    let ethernet = ethernet().filter(|_| namespace.has_device()).ok_or(Errno::ENODEV)?;
    let limits = DeviceLimits { mac: ethernet.device.mac(), mtu: ethernet.device.mtu() as u32 };
    let number = |error: i32| Errno(error as u16);
    // One after the other; all that is copied under the lock is bounded.
    let mut current = ethernet.settings.lock();
    let mut settings = current.try_clone().map_err(number)?;
    for change in changes {
        settings.apply(change, &limits).map_err(number)?;
    }
    let settings = fallible::try_arc(settings)?;
    crate::net::inet::settings::configure(&settings)?;
    let old = core::mem::replace(&mut *current, settings);
    drop(current);
    drop(old);
    Ok(())
}
