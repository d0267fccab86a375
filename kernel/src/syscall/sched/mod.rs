//! syscall::sched

pub mod executor;
pub mod membarrier;
pub mod policy;
pub mod rseq;
