//! Routing netlink, rtnetlink(7): a snapshot of the machine's interfaces, and the answers to requests about them.
//!
//! ```text
//!   Network (interfaces, gateways) ── routes() ──▶ Route (also for /proc/net)
//!             └── answer(request) ──▶ messages for the requester
//! ```
//!
//! Addresses and routes are those that the machine was started with; requests that would change them are refused.

mod answer;
mod message;
mod network;
mod route;
#[cfg(all(test, not(heddle_loom)))]
mod tests;

pub use answer::{REPLY_BYTES_MAX, ReceiverFull, answer};
pub use network::{
    Configuration, Interface, InterfaceAddress, InterfaceKind, InvalidConfiguration, Network, TrafficCounts,
    link_local,
};
pub use route::{Route, RouteKind};
