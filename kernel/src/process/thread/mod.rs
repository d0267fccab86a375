//! A thread and what hangs off it.
//!
//! Each part has a file with its fields, which nobody else sees, and what can be done with them.

mod accounting;
mod copy_out;
mod ending;
mod identity;
mod registers;
mod resources;
mod rings;
mod scheduling;
mod signals;
mod tracing;
mod user_pages;
mod wake;

use alloc::sync::Arc;
use heddle_kernel_core::protection_key::KeyRights;
use heddle_kernel_core::signal::SignalSet;

use crate::arch::FloatState;
use crate::error::Errno;
use crate::fs::{DescriptorTable, Directories};
use crate::memory::{Space, fallible};
use crate::process::namespaces::Namespaces;
use crate::process::rseq::RseqRegistration;
use crate::process::{Credentials, Process};
use crate::sched::Parameters;
use crate::signal::PendingWork;

pub(in crate::process) use crate::process::thread::accounting::UsageCounters;
pub use crate::process::thread::accounting::UsageCounts;
pub use crate::process::thread::copy_out::DeferredCopyOut;
pub use crate::process::thread::identity::UserDispatch;
pub use crate::process::thread::tracing::Tracee;

/// A thread of a program.
pub struct Thread {
    /// The thread group it belongs to.
    pub process: Arc<Process>,
    identity: identity::ThreadIdentity,
    resources: resources::Resources,
    signals: signals::Signals,
    wake: wake::Wake,
    registers: registers::ProgramRegisters,
    scheduling: scheduling::Scheduling,
    accounting: accounting::ThreadAccounting,
    ending: ending::Ending,
    tracing: tracing::Tracing,
    rings: rings::ThreadRings,
    /// rseq(2).
    pub restartable: RseqRegistration,
}

/// The parts of a new thread.
pub struct Parts {
    pub tid: i32,
    pub own_tid: i32,
    pub process: Arc<Process>,
    pub space: Arc<Space>,
    pub descriptors: Arc<DescriptorTable>,
    pub directories: Arc<Directories>,
    pub namespaces: Arc<Namespaces>,
    pub credentials: Arc<Credentials>,
    pub no_new_privileges: bool,
    pub name: [u8; Thread::NAME_BYTES],
    pub blocked: SignalSet,
    pub scheduling: Parameters,
    pub account: heddle_kernel_core::fairness::Account,
    pub float: FloatState,
    pub key_rights: KeyRights,
}

impl Thread {
    /// A thread without a coroutine.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(parts: Parts) -> Result<Arc<Self>, Errno> {
        let thread = fallible::try_arc(Self {
            process: parts.process,
            identity: identity::ThreadIdentity::new(
                (parts.tid, parts.own_tid),
                parts.name,
                parts.credentials,
                parts.no_new_privileges,
            ),
            resources: resources::Resources::new(
                parts.space,
                parts.descriptors,
                parts.directories,
                parts.namespaces,
            ),
            signals: signals::Signals::new(parts.blocked),
            wake: wake::Wake::new(parts.tid)?,
            registers: registers::ProgramRegisters::new(parts.float, parts.key_rights),
            scheduling: scheduling::Scheduling::new(parts.scheduling, parts.account),
            accounting: accounting::ThreadAccounting::default(),
            ending: ending::Ending::default(),
            tracing: tracing::Tracing::default(),
            rings: rings::ThreadRings::default(),
            restartable: RseqRegistration::new(),
        })?;
        if parts.key_rights != KeyRights::INITIAL {
            thread.add_work(PendingWork::KEYS);
        }
        thread.announce_rank();
        Ok(thread)
    }
}
