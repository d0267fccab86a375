//! The Heddle kernel.
fn main() {}
