//! A process: what the threads of a thread group share.
//!
//! Each part has a file with its fields, which nobody else sees, and what can be done with them.

mod accounting;
mod attached;
mod family;
mod members;
mod program;

use alloc::sync::{Arc, Weak};
use heddle_kernel_core::signal::{Actions, Signal};

use crate::call::asynchronous::Calls;
use crate::error::Errno;
use crate::memory::fallible;
use crate::process::control_group::ControlPlace;
use crate::process::executor::Executors;
use crate::process::pid_namespace::Pids;
use crate::process::{Group, Limits};
use crate::sync::SpinLock;

pub use crate::process::thread_group::attached::Attachment;
pub use crate::process::thread_group::program::ProcessLayout;

/// A thread group.
pub struct Process {
    /// Its number, that of its first thread.
    pub pid: i32,
    /// Its number in its own namespace.
    pub own_pid: i32,
    /// The namespace that it is in.
    pub pids: Pids,
    /// When it started, on the monotonic clock.
    pub start_ns: u64,
    family: family::Family,
    members: members::Members,
    program: program::RunningProgram,
    accounting: accounting::ProcessAccounting,
    attached: attached::Attached,
    /// The threads that run the program's coroutines.
    executors: Executors,
    /// The control group that it is in.
    pub(in crate::process) control: ControlPlace,
    /// Its calls that go on by themselves.
    pub asynchronous: Calls,
}

/// The parts of a new process.
pub struct ProcessParts {
    pub pid: i32,
    pub own_pid: i32,
    pub pids: Pids,
    pub parent: Weak<Process>,
    pub group: Arc<Group>,
    pub actions: Arc<SpinLock<Actions>>,
    pub limits: Limits,
    /// The signal that the parent gets at the end; 0 for none.
    pub exit_signal: i32,
    /// The user id at the start.
    pub uid: u32,
    /// The thread that makes it; 0 for the kernel.
    pub creator: i32,
}

impl ProcessParts {
    /// A process of the superuser that the kernel makes.
    pub fn of_kernel(
        pid: i32,
        parent: Weak<Process>,
        group: Arc<Group>,
        actions: Arc<SpinLock<Actions>>,
    ) -> Self {
        let exit_signal = Signal::CHLD.number();
        Self {
            pid,
            own_pid: pid,
            pids: None,
            parent,
            group,
            actions,
            limits: Limits::initial(),
            exit_signal,
            uid: 0,
            creator: 0,
        }
    }
}

impl Process {
    /// A process without threads.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(parts: ProcessParts) -> Result<Arc<Self>, Errno> {
        let process = fallible::try_arc(Self {
            pid: parts.pid,
            own_pid: parts.own_pid,
            pids: parts.pids,
            start_ns: crate::arch::time::now_ns(),
            accounting: accounting::ProcessAccounting::new(&parts.limits),
            program: program::RunningProgram::new(parts.limits),
            members: members::Members::new(parts.actions),
            family: family::Family::new(
                &parts.parent,
                parts.group,
                parts.exit_signal,
                parts.uid,
                parts.creator,
            ),
            attached: attached::Attached::default(),
            executors: Executors::new(),
            control: ControlPlace::default(),
            asynchronous: Calls::new(),
        })?;
        process.look_at_dump_limit();
        if process.is_init() {
            process.signal_state().set_init();
        }
        Ok(process)
    }

    /// The threads that run the program's coroutines.
    #[must_use]
    pub const fn executors(&self) -> &Executors {
        &self.executors
    }
}
