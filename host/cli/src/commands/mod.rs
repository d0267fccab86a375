//! The commands of the front door.

pub mod bench;
pub mod clean;
pub mod run;
pub mod test;
