//! `io_uring`: the layout of the rings, and the entries that programs submit.
//!
//! An entry ([`Sqe`]) is a few words that a program wrote. Most name a system call with its arguments in other places;
//! [`Sqe::system_call`] puts them in their order.

mod calls;
mod entry;
mod layout;
mod restrict;
mod slots;
#[cfg(test)]
mod tests;

pub use calls::{SystemCall, Target, is_system_call};
pub use entry::{Sqe, SqeFlags};
pub use layout::{CQE_BYTES, ENTRIES_MAX, RingLayout, SQE_BYTES, SQE_WORDS, at};
pub use restrict::{Restriction, Restrictions};
pub use slots::FreeSlots;

/// An entry, a flag or a number of entries that Linux answers with `EINVAL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidEntry;
