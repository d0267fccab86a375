//! Processes and threads.
//!
//! A [`Process`] is a Linux thread group: what its threads share. A [`Thread`] is one flow of control and, in the
//! scheduler, one coroutine: [`run`] enters user mode, handles the trap that comes back, awaits where it must wait.
//! Which resources two threads share follows from `clone`'s flags, so address space, descriptors and directories hang
//! off the thread and the process holds the rest.
//!
//! Lock order: [`table`], a process's links, its signal state, a thread's pending signals, its actions. Nothing of a
//! file or an address space is touched with one of them held.

pub mod access;
pub mod acct;
pub mod control_group;
pub mod cpu_time;
pub mod credential_set;
mod credentials;
pub mod detour;
pub mod dump;
pub mod exec;
pub mod executable;
pub mod executor;
pub mod exit;
pub mod futex;
pub mod host_name;
pub mod io_signal;
pub mod job;
pub mod keys;
mod limits;
pub mod load;
pub mod logged_call;
pub mod namespace_counts;
pub mod namespaces;
pub mod oom;
pub mod perf;
pub mod pid_namespace;
pub mod pidfd;
mod privilege;
pub mod rseq;
pub mod running;
pub mod seccomp;
pub mod start;
mod status;
pub mod table;
pub mod thread;
mod thread_group;
pub mod time_namespace;
pub mod timers;
pub mod trace;
mod user_group;
pub mod user_namespace;
pub mod user_task;
pub mod vfork;

pub use crate::process::credentials::{Capabilities, Credentials, SecureBits};
pub use crate::process::job::{ControllingTerminal, Group, Session, is_orphaned};
pub use crate::process::limits::{DESCRIPTORS_MAX, Limits, Resource, ResourceLimit};
pub use crate::process::privilege::{CLOSED_DUMPABLE, FileCapabilities};
pub use crate::process::start::{Program, initialize, start};
pub use crate::process::status::RunState;
pub use crate::process::thread::Thread;
pub use crate::process::thread_group::{Attachment, Process, ProcessParts};
pub use heddle_kernel_core::signal_state::ExitStatus;
