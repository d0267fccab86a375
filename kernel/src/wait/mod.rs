//! Waiting: one engine for the calls of threads, for asynchronous requests, and for the kernel's own coroutines.
//!
//! - [`queue`]: what an object that can become ready has, and what a waiter registers there.
//! - [`node`]: the part of a waiter that queues know, and what ends a wait early.
//! - [`engine`]: registers, checks and suspends until there is an answer, a deadline or an interruption.
//! - [`clock_change`]: waiting for a time of day, which may be set meanwhile.
//! - [`relay`]: what is woken because a queue was, in steps.
//! - [`forgotten`]: watches of queues that have ended.
//! - [`operation`]: the driver that turns attempts, which never wait, into blocking, non-blocking and asynchronous
//!   calls.
//!
//! Threads, requests and files are known here by traits only: [`node::Waiter`], [`operation::Agent`],
//! [`operation::Operation`] and [`queue::Listener`].

pub mod clock_change;
pub mod engine;
pub mod forgotten;
pub mod node;
pub mod operation;
pub mod queue;
pub mod relay;
