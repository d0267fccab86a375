//! Processes and threads.
//!
//! A [`Process`] is a Linux thread group: what its threads share. A [`Thread`] is one flow of control and, in the
//! scheduler, one coroutine: [`run`] enters user mode, handles the trap that comes back, awaits where it must wait.
//! Which resources two threads share follows from `clone`'s flags, so address space, descriptors and directories hang
//! off the thread and the process holds the rest.

pub mod calls;
mod credentials;
mod thread;

use alloc::sync::Arc;

pub use credentials::Credentials;
pub use thread::{Directories, Thread};

/// A thread group.
pub struct Process {
    /// Its number, that of its first thread.
    pub pid: i32,
}

/// Runs a thread until it exits. This is the whole life of the thread's coroutine.
pub async fn run(thread: Arc<Thread>) {
    let _ = thread;
}
