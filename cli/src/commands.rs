//! The commands of the front door.

pub mod run;
