//! The two ends of a program's streams share this: bytes pumped between non-blocking descriptors, and the framed
//! messages of the control port. The host tool is one user, the Linux guest's init the other.

mod message;
mod pump;

pub use message::{Malformed, Message, Messages, Outbox};
pub use pump::{Drained, Filled, Pump};
