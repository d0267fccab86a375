//! Waiting that respects priorities: by key, for a lock, for permits, for messages.
//!
//! Whenever several wait and one can go on, it is the most urgent one, as its level is *then*; among equals the one
//! that came first. Whoever waits for a [`Mutex`] or a `JoinHandle` lends its level to the coroutine that it waits for
//! (see `wait/inherit.rs`). What has no need of priorities (one-shot channels, cells, streams) other crates have.

pub(crate) mod inherit;
mod list;

pub mod channel;
pub mod map;
pub mod mutex;
pub mod semaphore;

pub use channel::{Receiver, Sender, channel};
pub use map::WakerMap;
pub use mutex::{Mutex, MutexGuard};
pub use semaphore::{Permit, Semaphore};
