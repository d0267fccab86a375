//! Memory.
pub mod fallible;
mod heap;
pub mod user;
/// Init.
pub fn initialize() {}
