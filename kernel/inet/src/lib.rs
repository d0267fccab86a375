//! The TCP/IP engine: protocols between sockets above and an Ethernet link below, without hardware.
//!
//! - [`platform`]: what the engine needs of its surroundings.
//! - [`link`]: the device below.
//! - [`engine`]: what belongs to no socket alone: the demultiplexer, addresses, routes.
//! - [`interface`]: the Ethernet interface, its addresses and neighbours.
//! - [`tcp`], [`udp`], [`raw`]: sockets.
//! - [`dhcp`]: the way of DHCP's messages.
#![cfg_attr(not(test), no_std)]
#![cfg_attr(test, allow(clippy::disallowed_macros, clippy::disallowed_methods))]

extern crate alloc;

pub mod address;
mod conflict;
pub mod counters;
#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "room is reserved before each"))]
pub mod datagram;
#[cfg_attr(
    not(test),
    expect(clippy::disallowed_methods, reason = "packets have the room that was reserved for them")
)]
pub mod dhcp;
#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "room is reserved before each"))]
pub mod engine;
pub mod error;
#[cfg_attr(
    not(test),
    expect(
        clippy::disallowed_methods,
        reason = "room is reserved before each; two pieces that meet were one entry"
    )
)]
mod fragment;
#[cfg_attr(
    not(test),
    expect(clippy::disallowed_methods, reason = "packets have the room that was reserved for them")
)]
mod icmp;
#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "room is reserved before each"))]
pub mod interface;
pub mod ip;
pub mod link;
#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "room for all sockets is reserved first"))]
mod listing;
mod local;
mod lock;
#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "room for all answers is reserved first"))]
mod membership;
pub mod options;
#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "in `Platform::reserved`"))]
pub mod platform;
#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "room is reserved before each"))]
mod ports;
#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "room is reserved before each"))]
pub mod raw;
#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "the new ring is reserved whole"))]
mod ring;
pub mod settings;
pub mod tcp;
#[cfg_attr(
    not(test),
    expect(clippy::disallowed_methods, reason = "packets have the room that was reserved for them")
)]
pub mod udp;

#[cfg(test)]
mod tests;
