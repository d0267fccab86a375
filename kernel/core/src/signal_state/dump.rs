//! A core dump before the end of a group: one thread, which took the signal, writes it. All others are told to end, and
//! wait before that until it is written, so that memory and registers stay what they were.

use alloc::sync::Arc;

use crate::signal::Signal;
use crate::signal_state::{Closed, ExitStatus, GroupState, Member, Note};

impl<M: Member> GroupState<M> {
    /// Whether a signal that leaves a dump is to be taken by a thread, which may write one; otherwise it ends the group
    /// when it is sent.
    pub const fn set_dumps(&mut self, dumps: bool) {
        self.dumps = dumps;
    }

    /// Whether a thread writes a dump.
    #[must_use]
    pub const fn is_dumping(&self) -> bool {
        self.dumper.is_some()
    }

    /// The thread is going to write a dump, and the group ends by `signal` then: all other threads are told.
    ///
    /// # Errors
    /// [`Closed`]: the group ends already, or becomes one thread in `execve`.
    pub fn begin_dump(&mut self, thread: &Arc<M>, signal: Signal) -> Result<(), Closed> {
        if self.ending.is_some() || self.exec.is_some() {
            return Err(Closed);
        }
        self.ending = Some(ExitStatus::Signaled { signal, core: false });
        self.stop = None;
        self.dumper = Some(thread.id());
        for other in self.threads.iter().filter(|other| !Arc::ptr_eq(other, thread)) {
            other.add(Note::DIE);
            other.kick();
        }
        Ok(())
    }

    /// The thread, which is about to end, waits for a dump from now on. `false`: there is none to wait for.
    #[must_use]
    pub fn park(&mut self, thread: &Arc<M>) -> bool {
        let waits = self.dumper.is_some_and(|dumper| dumper != thread.id());
        self.parked += usize::from(waits);
        waits
    }

    /// The thread could not wait for the dump.
    pub const fn unpark(&mut self) {
        self.parked = self.parked.saturating_sub(1);
    }

    /// Whether all other threads wait, or have gone beyond that before the dump began.
    #[must_use]
    pub const fn are_others_parked(&self) -> bool {
        self.parked + self.leaving + 1 >= self.threads.len()
    }

    /// The dump is over, and `is_there` if anything of it was written: every thread ends.
    pub fn end_dump(&mut self, thread: &Arc<M>, is_there: bool) {
        (self.dumper, self.parked) = (None, 0);
        if let Some(ExitStatus::Signaled { core, .. }) = &mut self.ending {
            *core = is_there;
        }
        thread.add(Note::DIE);
    }
}
