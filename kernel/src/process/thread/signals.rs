//! A thread's signals: what it holds back, what it waits for, what is pending for it.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use heddle_kernel_core::signal::{AlternateStack, Information, Pending, SignalSet};
use heddle_kernel_core::signal_state::{Member, Note, Trace};

use crate::process::Thread;
use crate::signal::PendingWork;
use crate::sync::SpinLock;

pub(super) struct Signals {
    blocked: AtomicU64,
    /// Signals that `sigwait` waits for: they are neither ignored nor fatal meanwhile.
    awaited: AtomicU64,
    /// The mask to go back to once a signal has been delivered: `sigsuspend`, `ppoll`, `pselect`.
    saved_mask: SpinLock<Option<SignalSet>>,
    pending: SpinLock<Pending>,
    alternate_stack: SpinLock<AlternateStack>,
}

impl Signals {
    pub(super) fn new(blocked: SignalSet) -> Self {
        Self {
            blocked: AtomicU64::new(blocked.0),
            awaited: AtomicU64::new(0),
            saved_mask: SpinLock::new(None),
            pending: SpinLock::new(Pending::new()),
            alternate_stack: SpinLock::new(AlternateStack::default()),
        }
    }
}

impl Member for Thread {
    fn id(&self) -> i32 {
        self.tid()
    }

    fn blocked(&self) -> SignalSet {
        SignalSet(self.signals.blocked.load(Ordering::Relaxed))
    }

    fn set_blocked(&self, blocked: SignalSet) {
        self.signals.blocked.store(blocked.0, Ordering::Relaxed);
    }

    fn awaited(&self) -> SignalSet {
        SignalSet(self.signals.awaited.load(Ordering::Relaxed))
    }

    fn with_pending<R>(&self, access: impl FnOnce(&mut Pending) -> R) -> R {
        access(&mut self.signals.pending.lock())
    }

    fn with_trace<R>(&self, access: impl FnOnce(Option<&mut Trace>) -> R) -> R {
        self.with_tracee(|tracee| access(tracee.map(|tracee| &mut tracee.trace)))
    }

    fn notes(&self) -> Note {
        Note::from_bits_truncate(self.work().bits())
    }

    fn add(&self, note: Note) {
        self.add_work(note.into());
    }

    fn remove(&self, note: Note) {
        self.remove_work(note.into());
    }

    fn kick(&self) {
        self.kick();
    }
}

impl Thread {
    /// The signals that are pending for this thread only.
    #[must_use]
    pub fn pending_signals(&self) -> SignalSet {
        self.signals.pending.lock().set()
    }

    /// How many instances of signals are queued for the thread itself.
    #[must_use]
    pub fn queued_signals(&self) -> usize {
        self.signals.pending.lock().queued()
    }

    /// An instance of a signal that is queued for the thread itself, or for its process, the oldest first.
    #[must_use]
    pub fn queued_signal(&self, index: usize, is_shared: bool) -> Option<Information> {
        if is_shared {
            return self.process.signal_state().queued_signal(index);
        }
        self.signals.pending.lock().get(index).copied()
    }

    /// Makes a signal pending again that was taken and could not be reported. It stays with the thread that took it.
    pub fn requeue(&self, information: Information) {
        // Without memory for what is known of it, the signal itself stays.
        let _ = self.signals.pending.lock().push(information, usize::MAX);
    }

    /// Says which signals the thread waits for. Only the thread itself does.
    pub fn set_awaited(&self, awaited: SignalSet) {
        self.signals.awaited.store(awaited.0, Ordering::Relaxed);
    }

    /// The signals that are held back.
    #[must_use]
    pub fn blocked(&self) -> SignalSet {
        Member::blocked(self)
    }

    /// Changes the signals that are held back. Only the thread itself does.
    pub fn set_blocked(self: &Arc<Self>, blocked: SignalSet) {
        self.process.signal_state().set_blocked(self, blocked);
    }

    /// Waits with another mask (`ppoll`, `pselect`, `epoll_pwait`, `sigsuspend`): the old one comes back when the call
    /// ends, but only after a signal that ended the wait has found the new one.
    pub fn set_blocked_for_wait(self: &Arc<Self>, blocked: SignalSet) {
        self.signals.saved_mask.lock().get_or_insert(self.blocked());
        self.add_work(PendingWork::MASK);
        self.set_blocked(blocked);
    }

    /// Goes back to the mask from before a call that waited with another one.
    pub fn restore_mask(self: &Arc<Self>) {
        if let Some(mask) = self.forget_saved_mask() {
            self.set_blocked(mask);
        }
    }

    /// The mask that the frame of a handler keeps: from before a call that waited with another one.
    #[must_use]
    pub fn mask_for_frame(&self) -> SignalSet {
        let saved = *self.signals.saved_mask.lock();
        saved.unwrap_or(self.blocked())
    }

    /// The mask from before the wait has been put elsewhere, or is put back now.
    pub fn forget_saved_mask(&self) -> Option<SignalSet> {
        if !self.work().contains(PendingWork::MASK) {
            return None;
        }
        self.remove_work(PendingWork::MASK);
        self.signals.saved_mask.lock().take()
    }

    /// The alternate signal stack.
    #[must_use]
    pub fn alternate_stack(&self) -> AlternateStack {
        *self.signals.alternate_stack.lock()
    }

    /// Changes the alternate signal stack.
    pub fn set_alternate_stack(&self, stack: AlternateStack) {
        *self.signals.alternate_stack.lock() = stack;
    }
}
