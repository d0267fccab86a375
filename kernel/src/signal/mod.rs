//! Signals: sending, and what a thread does about them before it goes back to user mode.
//!
//! A process's signal state has one lock, as in Linux: it covers the list of threads, the signals pending for the
//! process as a whole, stopping and ending. A thread's own pending signals have a lock below it. The bits of
//! [`PendingWork`] tell a thread that there is something to look at; who sets one kicks the thread.

mod deliver;
pub mod dispatch;
mod fault;
pub mod fd;
pub mod filter;
mod send;
mod stop;
pub mod trace;

use bitflags::bitflags;
use heddle_kernel_core::signal_state::{GroupState, Note};

use crate::process::Thread;

pub use crate::signal::send::{
    pending, requeue, send_to_group, send_to_member, send_to_process, send_to_process_by, send_to_thread,
    take_pending,
};
pub use heddle_kernel_core::signal::{Detail, Information, Signal, SignalSet};
pub use heddle_kernel_core::signal_state::ChildChange;

pub use crate::signal::deliver::{Next, before_user};
pub use crate::signal::fault::{force_segv, post_exception, post_page_fault};
pub use crate::signal::send::{Permission, discard, queued_count};
pub use crate::signal::stop::thread_left;

bitflags! {
    /// Work that a thread has to do before it goes back to user mode.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PendingWork: u32 {
        /// A signal that isn't blocked may be pending.
        const SIGNAL = Note::SIGNAL.bits();
        /// The thread is to end.
        const DIE = Note::DIE.bits();
        /// The process is stopping or stopped.
        const STOP = Note::STOP.bits();
        /// The thread waits in a stop.
        const STOPPED = Note::STOPPED.bits();
        /// The thread is giving up what it has, and acts on no signal any more.
        const LEAVING = Note::LEAVING.bits();
        /// A call waited with another signal mask; the old one comes back.
        const MASK = 1 << 5;
        /// Registers were replaced: see `Thread::replace_context`.
        const CONTEXT = 1 << 6;
        /// The CPUs that the thread may use have changed.
        const AFFINITY = 1 << 7;
        /// The thread's program may have to be interrupted: see `executor`.
        const INTERRUPT = 1 << 8;
        /// The program acts as another user now, whom others may reach: see `signal::deliver`.
        const ISOLATE = 1 << 9;
        /// A call's results have to be stored still: see `Thread::store_result`.
        const STORE = 1 << 10;
        /// Another thread waits until this one has passed a memory barrier: membarrier(2).
        const BARRIER = 1 << 11;
        /// The program may have been interrupted in a section that is to start again: see `restartable`.
        const RESTART = 1 << 12;
        /// Another thread traces this one.
        const TRACED = Note::TRACED.bits();
        /// The thread is to stop for its tracer.
        const TRAP = Note::TRAP.bits();
        /// The thread waits in a stop for its tracer.
        const TRACE_STOPPED = Note::TRACE_STOPPED.bits();
        /// A call of a traced thread has ended, or will have when the thread looks at this.
        const CALL = 1 << 16;
        /// A traced thread has executed a program.
        const EXECUTED = 1 << 17;
        /// The thread's accesses to memory are watched.
        const DEBUG = 1 << 18;
        /// The thread's control group is frozen: see `process::control_group::freeze`.
        const FROZEN = 1 << 20;
        /// The thread's calls are noted in the log: see `syscall::trace`.
        const LOGGED = 1 << 24;
        /// The thread's calls are filtered: see `process::seccomp`. It stays, and is no work between calls.
        const FILTERED = 1 << 19;
        /// Calls from outside of some instructions are the program's own: see `signal::dispatch`. It stays, likewise.
        const DISPATCHED = 1 << 25;
        /// The thread has rights to protection keys that are not the first ones, to be loaded when its turn starts.
        const KEYS = 1 << 26;
    }
}

impl PendingWork {
    /// The bits that stay, and are no work between calls.
    pub const LASTING: Self = Self::FILTERED.union(Self::DISPATCHED).union(Self::KEYS);

    /// Whether there is something to do before the thread goes back to user mode.
    #[inline]
    #[must_use]
    pub const fn is_pressing(self) -> bool {
        self.intersects(Self::LASTING.complement())
    }
}

impl From<Note> for PendingWork {
    fn from(note: Note) -> Self {
        Self::from_bits_retain(note.bits())
    }
}

/// The part of a process that signals and endings are about.
pub type SignalState = GroupState<Thread>;
