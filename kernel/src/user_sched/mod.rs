//! The shared scheduler: what programs see of the kernel's, and what the kernel sees of theirs. The protocol is in
//! `docs/SHARED-SCHEDULER.md`; the programs' executor threads are in `process::executor`.
//!
//! - [`object`]: the vDSO and the system page, mapped into every program.
//! - [`Pages`]: the pages of a process.

mod object;
mod pages;

use heddle_abi::protocol::Levels;

pub use crate::user_sched::object::{map, set_clock};
pub use crate::user_sched::pages::Pages;

static LEVELS: Levels = Levels::new();

/// The ready levels of a CPU's queue have changed: tells programs.
pub fn levels_changed(old: u64, new: u64) {
    LEVELS.publish(&object::SYSTEM.bitmap, &object::SYSTEM.best, old, new);
}

/// The levels at which something waits for a processor, a bit each.
#[must_use]
pub fn ready_levels() -> u64 {
    object::SYSTEM.bitmap.load(core::sync::atomic::Ordering::Relaxed)
}
