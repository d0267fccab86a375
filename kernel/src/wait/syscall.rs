//! How a system call waits.
//!
//! Every wait has a kind. An interruptible wait ends with [`Interrupted`] when a signal is to be delivered to the
//! thread, a killable one only when the thread is to die, an uninterruptible one never. A call that goes on by itself
//! knows no signals; its cancellation ends interruptible waits, and the end of its process killable ones too. Nothing
//! drops a future that waits: the wait returns, and the call decides what to report (a partial count, `EINTR`, one of
//! the restart codes of [`Errno`]). The waits themselves are methods of [`Caller`](crate::wait::caller::Caller).

use crate::error::Errno;

/// What ends a wait early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitKind {
    /// Nothing.
    Uninterruptible,
    /// The thread's death.
    Killable,
    /// A signal.
    Interruptible,
}

/// The wait ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

impl From<Interrupted> for Errno {
    /// The usual answer of a call that a signal interrupted: restart if the handler says so.
    fn from(_: Interrupted) -> Self {
        Self::ERESTARTSYS
    }
}
