//! Watches the order in which locks are taken, and reports orders that can deadlock, whether they do so this time or
//! not.
//!
//! Locks that are made at the same place of the source form a [`LockClass`]: what holds of one holds of all. Taking a
//! lock while others are held adds an edge from each of their classes to the class of the new one. Two threads that run
//! at the same time can deadlock if the edges form a circle, so the first edge that closes one is reported, with the
//! places where both orders were seen. This is the method of Linux's lockdep.
//!
//! Nothing here allocates or waits for more than a few steps; [`Held`] is kept by the caller, one for each processor
//! (of spinlocks) or for each task (of locks that suspend). A checker costs much, so it belongs into builds for tests.
#![forbid(unsafe_code)]
#![allow(clippy::result_large_err, reason = "a report is the end of the run")]

mod graph;
mod held;
mod report;
#[cfg(test)]
mod tests;

use core::panic::Location;
use core::sync::atomic::AtomicU16;

pub use graph::{CLASSES, EDGES, Graph};
pub use held::{Held, Taken};
pub use report::{Edge, PATH_MAX, Report};

/// A place of the source.
pub type Place = &'static Location<'static>;

/// The state of a lock: where it was made, and the number of its class once it has been taken.
#[derive(Debug)]
pub struct LockClass {
    place: Place,
    number: AtomicU16,
}

impl LockClass {
    /// The class of what the caller makes.
    #[must_use]
    #[track_caller]
    pub const fn new() -> Self {
        Self { place: Location::caller(), number: AtomicU16::new(graph::UNKNOWN) }
    }
}

impl Default for LockClass {
    #[track_caller]
    fn default() -> Self {
        Self::new()
    }
}
