//! Signals: sending, and what a thread does about them before it goes back to user mode.
//!
//! A process's signal state has one lock, as in Linux: it covers the list of threads, the signals pending for the
//! process as a whole, stopping and ending. A thread's own pending signals have a lock below it. The bits of
//! [`PendingWork`] tell a thread that there is something to look at; who sets one kicks the thread.

mod deliver;
mod fault;
pub mod fd;
mod send;
mod stop;

use alloc::sync::Arc;
use alloc::vec::Vec;
use bitflags::bitflags;
use heddle_kernel_core::signal::Pending;

use crate::process::{ExitStatus, Thread};

pub use crate::signal::send::{
    pending, requeue, send_to_group, send_to_process, send_to_thread, take_pending,
};
pub use heddle_kernel_core::signal::{Detail, Information, Signal, SignalSet};

pub use crate::signal::deliver::{Next, before_user, restore_mask};
pub use crate::signal::fault::{force_segv, post_exception, post_page_fault};
pub use crate::signal::send::{Permission, discard, kill_other_threads, recheck, start_group_exit};
pub use crate::signal::stop::thread_left;

bitflags! {
    /// What a thread has to look at before it goes back to user mode.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PendingWork: u32 {
        /// A signal that isn't blocked may be pending.
        const SIGNAL = 1;
        /// The thread is to end.
        const DIE = 2;
        /// The process is stopping or stopped.
        const STOP = 4;
        /// The thread waits in a stop.
        const STOPPED = 8;
        /// A call waited with another signal mask; the old one comes back.
        const MASK = 16;
        /// Registers were replaced: see `Thread::replace_context`.
        const CONTEXT = 32;
        /// The CPUs that the thread may use have changed.
        const AFFINITY = 64;
        /// The thread's program may have to be interrupted: see `executor`.
        const INTERRUPT = 128;
        /// The program acts as another user now: see `signal::deliver`.
        const LEAVE = 256;
        /// A call's results have to be stored still: see `Thread::store_result`.
        const STORE = 512;
        /// Another thread waits until this one has passed a memory barrier: membarrier(2).
        const BARRIER = 1024;
        /// The program may have been interrupted in a section that is to start again: see `restartable`.
        const RESTART = 2048;
    }
}

/// What the parent has not been told (by `wait4`) yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildChange {
    /// Nothing.
    None,
    /// Stopped by this signal.
    Stopped(Signal),
    /// Gone on.
    Continued,
}

/// The part of a process that signals and endings are about.
pub struct SignalState {
    /// The threads that have not ended.
    pub threads: Vec<Arc<Thread>>,
    /// Signals for the process as a whole.
    pub pending: Pending,
    /// The process is ending, with this status; set once.
    pub ending: Option<ExitStatus>,
    /// The process has ended: no thread is left.
    pub ended: Option<ExitStatus>,
    /// The signal that stops or has stopped the process.
    pub stop: Option<Signal>,
    /// What `wait4` of the parent is to report.
    pub change: ChildChange,
    /// The thread that runs `execve` and ends all others.
    pub exec: Option<i32>,
    /// How many of the threads are giving up what they have.
    pub leaving: usize,
}

impl SignalState {
    /// No threads, nothing pending.
    pub const fn new() -> Self {
        Self {
            threads: Vec::new(),
            pending: Pending::new(),
            ending: None,
            ended: None,
            stop: None,
            change: ChildChange::None,
            exec: None,
            leaving: 0,
        }
    }
}
