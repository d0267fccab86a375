//! The shared scheduler: programs see the kernel's ready work, and the kernel sees theirs. The protocol is in
//! `docs/SHARED-SCHEDULER.md`; the programs' executor threads are in `process::executor`.
//!
//! - [`object`]: the vDSO, the system page and the page of the time namespace, mapped into every program.
//! - `memory::process_pages`: the pages of a process.

mod object;

pub use crate::user_sched::object::{call_instruction, clock, first_clock, map};
