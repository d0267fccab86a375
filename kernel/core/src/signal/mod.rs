//! The rules of Linux signals that need no machine: which signal comes next, what it does by default, and how its
//! information and its frame are laid out in a program's memory. See signal(7) and sigaction(2).

mod action;
mod information;
mod pending;
pub mod section;
mod set;
mod stack;
pub mod x86_64;

#[cfg(test)]
mod tests;

pub use action::{Action, ActionFlags, Actions, DefaultAction};
pub use information::{Detail, Information};
pub use pending::{Overflow, Pending};
pub use set::{Signal, SignalSet};
pub use stack::{AlternateStack, AlternateStackError};
