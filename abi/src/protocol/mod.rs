//! The protocols of the pages that kernel and programs share: which party changes which word, and in which order.
//! `docs/SHARED-SCHEDULER.md` is the page about them; the layouts are `heddle-abi`'s.
//!
//! - [`Levels`]: the system bitmap, from counts of the CPUs that have a level ready.
//! - [`record`]: an executor's record: the turn of a coroutine against what becomes ready meanwhile, mask and pending
//!   word of user interrupts.
//! - [`turn`]: the way of an executor from one turn to the next.
//! - [`process_level`]: the level that a process's words give to its threads.
//! - [`Runnable`]: how many executors of a process can run, and the notice when the last one cannot.
//! - [`ring`]: the ring of completions, the kernel's side and the program's.
//! - [`monotonic_ns`]: the clock of the system page.
//! - [`Phase`], [`Fate`]: a call in flight, its end and its cancellation, in the program and in the kernel.
//!
//! Each is checked by a loom model: `check.sh loom`; `check.sh weaken` weakens their orderings one by one.

#[cfg(not(heddle_loom))]
mod clock;
mod fate;
mod levels;
#[cfg(all(test, heddle_loom))]
mod models;
mod phase;
pub mod record;
pub mod ring;
mod runnable;
pub mod turn;

#[cfg(not(heddle_loom))]
pub use clock::monotonic_ns;
pub use fate::Fate;
pub use levels::{Levels, process_level};
pub use phase::{Found, Phase};
pub use runnable::Runnable;

#[cfg(not(heddle_loom))]
pub(crate) use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(heddle_loom)]
pub(crate) use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
