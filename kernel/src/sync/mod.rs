//! Mutual exclusion and waiting inside the kernel.
//!
//! The kernel is cooperative and runs with interrupts off, so a [`SpinLock`] is only ever contended by another
//! CPU, and then for the few instructions of a critical section. Whatever takes longer waits on a [`WaitQueue`],
//! as a suspended coroutine, holding no spinlock.

mod kernel_wait;
#[cfg(feature = "checking")]
pub mod order;
mod spin_lock;
mod wait_queue;

pub use kernel_wait::until;
pub use spin_lock::{SpinGuard, SpinLock};
pub use wait_queue::{Disposition, Events, WaitQueue, Watch, Watcher};
