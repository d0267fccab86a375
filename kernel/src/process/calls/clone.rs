//! fork(2), vfork(2), clone(2).

use core::sync::atomic::AtomicBool;

use crate::sync::WaitQueue;

/// What a parent in `vfork` waits for.
pub struct Vfork {
    pub(in crate::process) done: AtomicBool,
    pub(in crate::process) waiters: WaitQueue,
}
