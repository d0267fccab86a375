//! syscall::net

pub mod framed;
pub mod message;
pub mod messages;
pub mod options;
pub mod packets;
pub mod socket;
