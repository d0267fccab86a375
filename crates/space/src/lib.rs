//! The protocols of address spaces that need no machine, so that they are tested and modelled on the host.
//!
//! - [`one_lock`]: a lock without ranges, whose waiters are suspended.
//! - [`shootdown`]: what other processors must forget, and when they have.
//!
//! Models of the real code run under loom: `RUSTFLAGS="--cfg heddle_loom" cargo test -p heddle-space --release`.
#![cfg_attr(not(any(test, heddle_loom)), no_std)]

extern crate alloc;

pub mod one_lock;
pub mod shootdown;
mod sync;

pub use one_lock::{OneGuard, OneLock};
