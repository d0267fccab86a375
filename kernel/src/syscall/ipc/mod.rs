//! syscall::ipc

pub mod mqueue;
