//! The Heddle host tool.

fn main() {}
