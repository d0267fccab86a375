//! Mutual exclusion and waiting inside the kernel.
//!
//! The kernel is cooperative and runs with interrupts off, so a [`SpinLock`] is only ever contended by another
//! CPU, and then for the few instructions of a critical section. Whatever takes longer waits on a [`WaitQueue`],
//! as a suspended coroutine, holding no spinlock.

#[cfg(feature = "checking")]
pub mod order;
mod spin_lock;

pub use crate::sync::spin_lock::{SpinGuard, SpinLock};
