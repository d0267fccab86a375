//! syscall::time

pub mod clock;
pub mod timer;
