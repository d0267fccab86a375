//! The protocols of address spaces that need no machine, so that they are tested and modelled on the host.
//!
//! - [`kept`]: several composed roots for each processor, whose translations it keeps.
//! - [`large_page`]: entries that lead to a large page in place of a leaf table.
//! - [`leaf_table`]: page tables that several roots share.
//! - [`one_lock`]: a lock without ranges, whose waiters are suspended.
//! - [`roots`]: the roots that processors compose of the tables of slots.
//! - [`shootdown`]: translations that other processors must drop, and when they have.
//! - [`tags`]: translations that a processor may keep of page tables that it does not use.
//!
//! `check.sh loom` runs models of the real code under loom, and `check.sh weaken` expects them to notice each ordering
//! of `weaken.txt` that is weakened.

pub mod kept;
pub mod large_page;
pub mod leaf_table;
pub mod one_lock;
pub mod roots;
pub mod shootdown;
pub(crate) mod sync;
pub mod tags;

pub use one_lock::{OneGuard, OneLock};
