//! The shared scheduler: what programs see of the kernel's, and what the kernel sees of theirs. The protocol is in
//! `docs/SHARED-SCHEDULER.md`.
//!
//! - [`object`]: the vDSO and the system page, mapped into every program.

mod object;

pub use object::{Places, map, set_clock};
