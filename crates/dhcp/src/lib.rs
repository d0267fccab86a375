//! A client of DHCP, RFC 2131: it asks a network for an address, finds out whether somebody has it, keeps it, and gives
//! it back.
//!
//! Everything here is state: no sockets, no clocks, no memory of its own. The owner calls [`Client::step`] until it
//! says how long there is nothing to do, sends what it is given, hands each message that comes to [`Client::receive`],
//! and says by [`Client::conflict`] that somebody has the address which [`Step::Probe`] named.
//! Steps and messages tell of changes: a lease has come, or is over.
//!
//! ```text
//!   Selecting ── offer ──▶ Requesting ── ACK ──▶ Checking ──▶ Bound ── T1 ──▶ Renewing ── T2 ──▶ Rebinding
//!       ▲                      │ NAK, silence        │ taken    ▲───── ACK ─────┘───────────────────┘ │
//!       │                      │                 Declining     │                                     │
//!       └──────────────────────┴────── 10 s ─────────┘─────────┴──────── NAK, end of the lease ──────┘
//! ```
//!
//! - [`message`]: the messages' bytes.
//! - [`lease`]: an address and what comes with it.
//! - [`client`]: the states.

#![cfg_attr(not(test), no_std)]

pub mod client;
pub mod lease;
pub mod message;

#[cfg(test)]
mod tests;

pub use client::{Change, Client, Outgoing, RELEASE_PATIENCE_NS, Step};
pub use lease::{Lease, StaticRoute, Text};
pub use message::{CLIENT_PORT, DATAGRAM_BYTES_MAX, SERVER_PORT};
