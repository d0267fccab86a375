//! The system calls about processes, threads, signals and scheduling; one file a family.

pub mod clone;
pub mod credentials;
pub mod exec;
pub mod executor;
pub mod exit;
pub mod futex;
pub mod identity;
pub mod limits;
pub mod membarrier;
pub mod pidfd;
pub mod rseq;
pub mod schedule;
pub mod signal;
pub mod system;
pub mod time;
pub mod timer;
pub mod unshare;
pub mod usage;
