//! Common to the guest programs of the experiments: arguments, timing and its lines, several experiments in one boot.

pub mod arguments;
pub mod batch;
pub mod measure;
