//! How a thread is traced, ptrace(2): who traces it, and the registers that its tracer sees while it is stopped.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use heddle_kernel_core::signal_state::{Trace, TraceOptions};

use crate::arch::UserContext;
use crate::arch::debug::DebugRegisters;
use crate::error::Errno;
use crate::memory::fallible;
use crate::process::Thread;
use crate::process::logged_call::LoggedCall;
use crate::signal::PendingWork;
use crate::sync::SpinLock;

/// The tracing of a thread.
pub struct Tracee {
    /// The reasons for which it stops, and the stop it is in.
    pub trace: Trace,
    /// The thread that traces it.
    pub tracer: Weak<Thread>,
    /// Whether the tracer may look into anything: a program that raises its rights may do so only then.
    pub is_tracer_privileged: bool,
    /// Its registers, from the beginning of a call or a stop on.
    pub context: UserContext,
    /// The tracer has changed them inside of a call.
    pub is_changed: bool,
    /// The trap flag is the tracer's, not the program's.
    pub is_step_forced: bool,
    /// Where its accesses to memory are watched.
    pub debug: DebugRegisters,
}

impl Tracee {
    /// A thread that `tracer` traces.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(tracer: &Arc<Thread>, options: TraceOptions, is_seized: bool) -> Result<Box<Self>, Errno> {
        fallible::try_box(Self {
            trace: Trace::new(options, is_seized),
            tracer: Arc::downgrade(tracer),
            is_tracer_privileged: tracer.credentials().is_capable(linux_raw_sys::general::CAP_SYS_PTRACE),
            context: UserContext::new_user(),
            is_changed: false,
            is_step_forced: false,
            debug: DebugRegisters::default(),
        })
    }
}

#[derive(Default)]
pub(super) struct Tracing {
    tracee: SpinLock<Option<Box<Tracee>>>,
    /// The tracing that ended in a stop which the thread has not left yet: its registers count.
    left: SpinLock<Option<Box<Tracee>>>,
    /// The call under way whose record goes to the log.
    logged: SpinLock<Option<Box<LoggedCall>>>,
}

impl Thread {
    /// Notes the call that the thread is in; returns the one before.
    #[must_use]
    pub fn replace_logged_call(&self, call: Option<Box<LoggedCall>>) -> Option<Box<LoggedCall>> {
        core::mem::replace(&mut *self.tracing.logged.lock(), call)
    }

    /// Looks at how the thread is traced, if it is.
    pub fn with_tracee<R>(&self, access: impl FnOnce(Option<&mut Tracee>) -> R) -> R {
        access(self.tracing.tracee.lock().as_deref_mut())
    }

    /// Changes how the thread is traced, with its signal state locked; returns what was before, to be dropped without a
    /// lock held.
    #[must_use]
    pub(in crate::process) fn set_tracee(&self, tracee: Option<Box<Tracee>>) -> Option<Box<Tracee>> {
        core::mem::replace(&mut *self.tracing.tracee.lock(), tracee)
    }

    /// Keeps the tracing that has ended in a stop for the thread to leave it by; returns one from before.
    #[must_use]
    pub(in crate::process) fn leave_tracee(&self, tracee: Option<Box<Tracee>>) -> Option<Box<Tracee>> {
        core::mem::replace(&mut *self.tracing.left.lock(), tracee)
    }

    /// The tracing that has ended in the stop that the thread leaves.
    #[must_use]
    pub fn take_left_tracee(&self) -> Option<Box<Tracee>> {
        self.tracing.left.lock().take()
    }

    /// Whether another thread traces this one.
    #[must_use]
    pub fn is_traced(&self) -> bool {
        self.work().contains(PendingWork::TRACED)
    }

    /// The thread that traces this one.
    #[must_use]
    pub fn tracer(&self) -> Option<Arc<Thread>> {
        if !self.is_traced() {
            return None;
        }
        self.with_tracee(|tracee| tracee.and_then(|tracee| tracee.tracer.upgrade()))
    }
}
