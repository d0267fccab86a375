//! The decisions of System V IPC, without a machine: identifiers, permissions, whether a set of semaphores lets a row
//! of operations through, and which message a receiver means.
//!
//! Nothing here waits or wakes. A waiter is kept with a token of the caller's, which comes back with the result.

pub mod message;
pub mod permission;
pub mod registry;
pub mod semaphore;

pub use crate::OutOfMemory;
