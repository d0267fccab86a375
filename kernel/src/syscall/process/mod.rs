//! The system calls about processes, threads, signals and scheduling; one file a family.

pub mod acct;
pub mod advice;
pub mod arch_prctl;
pub mod clone;
pub mod core_dump;
pub mod credentials;
pub mod exec;
pub mod exit;
pub mod identity;
mod isolation;
pub mod key;
pub mod keyctl;
pub mod limits;
pub mod machine;
pub mod namespaces;
mod new_process;
pub mod perf;
pub mod pidfd;
mod privilege;
pub mod ptrace;
pub mod remote;
pub mod seccomp;
pub mod seccomp_listener;
pub mod system;
pub mod unshare;
pub mod usage;
