//! The TCP/IP engine: protocols between sockets above and an Ethernet link below, without hardware.
//!
//! - [`platform`]: what the engine needs of its surroundings.
//! - [`link`]: the device below.
//! - [`engine`]: what belongs to no socket alone: the demultiplexer, addresses, routes.
//! - [`interface`]: the Ethernet interface, its addresses and neighbours.
//! - [`tcp`], [`udp`], [`raw`]: sockets.
#![cfg_attr(not(test), no_std)]
#![cfg_attr(test, allow(clippy::disallowed_macros))]
#![allow(
    clippy::disallowed_methods,
    reason = "allocations follow a reservation: `Platform::reserved`, `try_reserve`"
)]

extern crate alloc;

pub mod address;
pub mod counters;
pub mod datagram;
pub mod engine;
pub mod error;
mod fragment;
mod icmp;
pub mod interface;
pub mod ip;
pub mod link;
mod listing;
mod lock;
mod membership;
pub mod options;
pub mod platform;
mod ports;
pub mod raw;
mod ring;
pub mod settings;
pub mod tcp;
pub mod udp;

#[cfg(test)]
mod tests;
