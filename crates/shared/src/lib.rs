//! The protocols of the pages that kernel and programs share: who changes which word in which order.
//! `docs/SHARED-SCHEDULER.md` is the page about them; the layouts are `heddle-abi`'s.
//!
//! - [`Levels`]: the system bitmap, from counts of the CPUs that have a level ready.
//! - [`record`]: an executor's record: the turn of a coroutine against what becomes ready meanwhile, mask and pending
//!   word of user interrupts.
//! - [`process_level`]: what a process's words make its threads' level.
//! - [`Runnable`]: how many executors of a process can run, and who notices that the last one cannot.
//!
//! Each is checked by a loom model: `check.sh loom`.
#![no_std]

#[cfg(test)]
extern crate std;

mod levels;
#[cfg(all(test, heddle_loom))]
mod models;
pub mod record;
mod runnable;

pub use levels::{Levels, process_level};
pub use runnable::Runnable;

#[cfg(not(heddle_loom))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(heddle_loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
