//! syscall::time

pub mod adjust;
pub mod clock;
pub mod timer;
