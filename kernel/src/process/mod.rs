//! Processes and threads.
//!
//! A [`Process`] is a Linux thread group: what its threads share. A [`Thread`] is one flow of control and, in the
//! scheduler, one coroutine: [`run`] enters user mode, handles the trap that comes back, awaits where it must wait.
//! Which resources two threads share follows from `clone`'s flags, so address space, descriptors and directories hang
//! off the thread and the process holds the rest.
//!
//! Lock order: [`table`], a process's links, its signal state, a thread's pending signals, its actions. Nothing of a
//! file or an address space is touched with one of them held.

pub mod calls;
mod cpu_time;
mod credentials;
mod exec;
pub mod executor;
mod exit;
mod job;
mod limits;
mod pressure;
mod restartable;
mod run;
pub mod signal;
pub mod start;
mod status;
pub mod table;
mod thread;
mod thread_group;
mod timers;

pub use crate::file::Directories;
pub use credentials::{Capabilities, Credentials};
pub use job::{Group, Session, Terminal, is_orphaned};
pub use limits::{Limit, Limits, Resource};
pub use start::{Program, initialize, start};
pub use status::{ExitStatus, RunState};
pub use thread::Thread;
pub use thread_group::{Layout, Process};
