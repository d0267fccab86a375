//! wait

pub mod caller;
pub mod kernel;
pub mod queue;
pub mod syscall;
