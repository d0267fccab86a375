//! Routing netlink, rtnetlink(7): a snapshot of the machine's interfaces, and the answers to requests about them.
//!
//! ```text
//!   Network (interfaces, routes) ── routes() ──▶ Route (also for /proc/net)
//!             └── answer(request) ──▶ messages for the requester, NetworkChange ──▶ DeviceSettings
//! ```
//!
//! The interface with a device can be changed, by [`DeviceSettings::apply`], and the little that there is to change of
//! the loopback, by [`Loopback::apply`].

mod answer;
mod loopback;
mod message;
mod network;
mod route;
mod settings;
#[cfg(all(test, not(heddle_loom)))]
mod tests;

pub use answer::{REPLY_BYTES_MAX, ReceiverFull, answer};
pub use loopback::{LOOPBACK_ADDRESSES, Loopback, LoopbackChange};
pub use network::{
    Configuration, Interface, InterfaceAddress, InterfaceKind, InvalidConfiguration, Network, TrafficCounts,
    link_local,
};
pub use route::{Route, RouteKind, default_route};
pub use settings::{DeviceLimits, DeviceSettings, GivenRoute, NetworkChange};
