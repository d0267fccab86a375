//! The system calls about processes, threads, signals and scheduling; one file a family.

pub mod clone;
pub mod identity;
