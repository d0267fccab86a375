//! A thread, as the decisions see it.

use bitflags::bitflags;

use crate::signal::{Pending, SignalSet};
use crate::signal_state::Trace;

bitflags! {
    /// A message to or from a thread.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Note: u32 {
        /// A signal that isn't blocked may be pending.
        const SIGNAL = 1;
        /// The thread is to end.
        const DIE = 2;
        /// The group is stopping or stopped.
        const STOP = 4;
        /// The thread waits in a stop.
        const STOPPED = 8;
        /// The thread has begun to end: it acts on no signal any more.
        const LEAVING = 16;
        /// The thread is traced: it has a [`Trace`].
        const TRACED = 1 << 13;
        /// The thread is to stop for its tracer.
        const TRAP = 1 << 14;
        /// The thread waits in a stop for its tracer.
        const TRACE_STOPPED = 1 << 15;
    }
}

/// A thread of a group.
pub trait Member {
    /// Its number. It changes only while the thread is the only one.
    fn id(&self) -> i32;

    /// The signals that it holds back.
    fn blocked(&self) -> SignalSet;

    /// Stores the signals that it holds back.
    fn set_blocked(&self, blocked: SignalSet);

    /// The signals that it waits for: they are neither ignored nor fatal meanwhile.
    fn awaited(&self) -> SignalSet;

    /// Looks at the signals that are pending for this thread only.
    fn with_pending<R>(&self, access: impl FnOnce(&mut Pending) -> R) -> R;

    /// Looks at how it is traced, if it is.
    fn with_trace<R>(&self, access: impl FnOnce(Option<&mut Trace>) -> R) -> R;

    /// The notes that the thread has been given.
    fn notes(&self) -> Note;

    /// Tells it.
    fn add(&self, note: Note);

    /// Takes a note back.
    fn remove(&self, note: Note);

    /// Makes it look at its notes: wakes it if it waits, interrupts it if it runs a program.
    fn kick(&self);
}
