//! The interface's settings, as the engine is told of them.

use heddle_inet::interface::{InterfaceAddress, InterfaceRoute, InterfaceSettings};
use heddle_kernel_core::fallible::try_collect;
use heddle_kernel_core::netlink::DeviceSettings;

use crate::error::Errno;
use crate::net::namespace::NetNamespace;

/// Has the engine's interface work with these settings.
///
/// # Errors
/// `ENOMEM`.
pub fn configure(settings: &DeviceSettings) -> Result<(), Errno> {
    let Some(interface) = NetNamespace::first()?.engine()?.interface() else { return Ok(()) };
    let own = |with: &heddle_kernel_core::netlink::InterfaceAddress| InterfaceAddress {
        address: with.address,
        prefix: with.length,
    };
    let addresses = try_collect(settings.addresses.iter().map(own)).map_err(|_| Errno::ENOMEM)?;
    let routes = settings.routes.iter().map(|route| InterfaceRoute {
        destination: own(&route.destination),
        gateway: route.gateway,
        metric: route.metric,
    });
    let routes = try_collect(routes).map_err(|_| Errno::ENOMEM)?;
    interface.change(InterfaceSettings {
        addresses,
        routes,
        is_up: settings.is_up,
        mtu: settings.mtu as usize,
    });
    Ok(())
}
