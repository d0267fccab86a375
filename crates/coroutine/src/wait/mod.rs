//! Waiting that respects priorities: by key, for a lock, for permits, for messages, for a notification.
//!
//! Whenever several wait and one can go on, it is the most urgent one; among equals the one that came first to their
//! level. A coroutine whose level changes while it waits is polled, and from then on waits at its new level. Whoever
//! waits for a [`Mutex`] or a `JoinHandle` lends its level to the coroutine that it waits for (see
//! `wait/inherit.rs`). To wait, to go on and to give up take a bounded number of steps, however many wait.

pub(crate) mod inherit;
mod list;

pub mod channel;
pub mod map;
pub mod mutex;
pub mod notify;
pub mod oneshot;
pub mod rwlock;
pub mod semaphore;

pub use channel::{Receiver, Sender, channel};
pub use map::WakerMap;
pub use mutex::{Mutex, MutexGuard};
pub use notify::Notify;
pub use rwlock::RwLock;
pub use semaphore::{Permit, Semaphore};
