//! Prioritized coroutines: control blocks, ready queues, bitmaps, executor.
#![no_std]
#![cfg_attr(heddle_loom, allow(dead_code))] // Only the protocols are compiled for the model checker.

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(any(feature = "std", test, heddle_loom))]
extern crate std;

pub mod sched;
mod sync;

#[cfg(all(feature = "std", not(heddle_loom)))]
mod blocks;
#[cfg(feature = "alloc")]
mod builder;
#[cfg(all(feature = "capi", not(heddle_loom)))]
pub mod capi;
#[cfg(all(feature = "alloc", not(heddle_loom)))]
mod core_entry;
#[cfg(feature = "alloc")]
pub mod global;
#[cfg(all(feature = "alloc", not(heddle_loom)))]
mod handle;
#[cfg(all(feature = "std", not(heddle_loom)))]
pub mod io;
#[cfg(feature = "alloc")]
mod join;
#[cfg(all(feature = "std", not(heddle_loom)))]
mod local;
#[cfg(all(feature = "alloc", not(heddle_loom)))]
mod lock;
#[cfg(all(feature = "alloc", not(heddle_loom)))]
mod machine;
#[cfg(all(feature = "std", not(heddle_loom)))]
mod park;
#[cfg(all(feature = "std", not(heddle_loom)))]
mod pool;
#[cfg(all(feature = "std", not(heddle_loom)))]
mod reactor;
#[cfg(all(feature = "alloc", not(heddle_loom)))]
mod registry;
#[cfg(all(feature = "alloc", not(heddle_loom)))]
mod task;
#[cfg(all(feature = "std", not(heddle_loom)))]
mod threads;
#[cfg(all(feature = "std", not(heddle_loom)))]
pub mod time;
#[cfg(all(feature = "alloc", not(heddle_loom)))]
mod turn;
#[cfg(all(feature = "alloc", not(heddle_loom)))]
pub mod wait;
#[cfg(all(feature = "alloc", not(heddle_loom)))]
mod waker;

pub use sched::Id;

#[cfg(feature = "alloc")]
pub use builder::{Builder, DEFAULT_PRIORITY, SpawnError};
#[cfg(all(feature = "alloc", not(heddle_loom)))]
pub use handle::{AbortOnDrop, JoinHandle, LocalJoinHandle};
#[cfg(all(feature = "std", not(heddle_loom)))]
pub use local::{LocalExecutor, block_on, coroutine_run};
#[cfg(all(feature = "alloc", not(heddle_loom)))]
pub use machine::{Core, MACHINE_CORES, Machine, Platform};
#[cfg(all(feature = "std", not(heddle_loom)))]
pub use pool::Executor;
#[cfg(all(feature = "alloc", not(heddle_loom)))]
pub use registry::{MAX_CORES, MAX_COROUTINES};
#[cfg(all(feature = "alloc", not(heddle_loom)))]
pub use task::JoinError;
#[cfg(all(feature = "std", not(heddle_loom)))]
pub use threads::{current_id, spawn, spawn_local, try_spawn, try_spawn_local};
#[cfg(all(feature = "alloc", not(heddle_loom)))]
pub use turn::{MoveTo, Preempted, YieldNow, move_to, preempted, yield_now};
#[cfg(all(feature = "alloc", not(heddle_loom)))]
pub use waker::{abort, id_of, set_priority, wake, waker};
