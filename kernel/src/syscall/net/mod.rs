//! syscall::net

pub mod message;
pub mod messages;
pub mod options;
pub mod packets;
pub mod socket;
