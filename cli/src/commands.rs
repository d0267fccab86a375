//! The commands of the front door.

pub mod bench;
pub mod run;
pub mod test;
