//! The shared scheduler: what programs see of the kernel's, and what the kernel sees of theirs. The protocol is in
//! `docs/SHARED-SCHEDULER.md`; the programs' executor threads are in `process::executor`.
//!
//! - [`object`]: the vDSO and the system page, mapped into every program.
//! - [`Pages`]: the pages of a process.

mod object;
mod pages;

pub use crate::user_sched::object::map;
pub use crate::user_sched::pages::Pages;
