//! Prioritized stackless coroutines, for kernels and for Linux.
//!
//! An executor that knows priorities: 64 levels, 0 the most urgent, first in first out within a level. Picking the
//! next coroutine, waking one and changing the level of any of them, queued, running or waiting, from any core, take
//! constant time. The same scheduler runs in the Heddle kernel, on one thread or several on Linux, and, as a C library,
//! wherever memory can be given to it.
//!
//! ```
//! use heddle_coroutine::{Builder, LocalExecutor, set_priority, yield_now};
//! use std::cell::RefCell;
//! use std::rc::Rc;
//!
//! let executor = LocalExecutor::new();
//! let log = Rc::new(RefCell::new(Vec::new()));
//! let worker = |name: &'static str| {
//!     let log = log.clone();
//!     async move {
//!         for _ in 0..2 {
//!             log.borrow_mut().push(name);
//!             yield_now().await;
//!         }
//!     }
//! };
//!
//! let backup = executor.try_spawn(Builder::new().priority(40).name("backup"), worker("backup")).unwrap();
//! let report = executor.try_spawn(Builder::new().priority(20).name("report"), worker("report")).unwrap();
//! // Queued already, and suddenly urgent.
//! set_priority(backup.id(), 10);
//! executor.block_on(async {
//!     report.await.unwrap();
//!     backup.await.unwrap();
//! });
//! assert_eq!(*log.borrow(), ["backup", "backup", "report", "report"]);
//! ```
//!
//! # Which part for what
//! - [`LocalExecutor`], [`block_on`], [`coroutine_run`]: one thread; coroutines need not be `Send`; its own spawning,
//!   polling, yielding and waking take no atomic read-modify-write.
//! - [`Executor`]: several threads, which share their work and watch each other's urgency.
//! - [`Machine`] and [`Platform`] (without `std`): the cores of a kernel; see "In a kernel" in the README.
//! - Feature `scheduler`: the scheduler alone, over memory that the caller gives (`sched`), and what runtimes need to
//!   put other things than Linux's under an executor; feature `capi`: the scheduler's C interface.
//! - [`wait`]: mutex, read-write lock, semaphore, channels, notification and waiting by key, in which the most urgent
//!   goes first and holders inherit. [`JoinSet`]: coroutines awaited as they end. [`spawn_blocking`]: for what blocks.
//! - [`time`], [`io`]: timers, file descriptors, connections.
//!
//! # Ids and wakers
//! A coroutine is named by an [`Id`], and a waker holds an id and nothing else: it is cloned and dropped for free, may
//! outlive everything, and may be used in interrupt handlers, and on Linux in signal handlers. When a coroutine ends,
//! its id reaches nothing any more, and never another coroutine.
//!
//! # Priorities
//! Strict by default: a level runs only when no more urgent one is ready. [`LocalExecutor::share`] and
//! [`Executor::share`] opt into a share for lower levels, and [`Statistics::waiting`] and
//! [`Statistics::longest_wait`] show who is kept waiting. Whoever awaits a handle or a held [`wait::Mutex`] lends its
//! level to the coroutine it waits for, along the whole chain, until it waits no more. A join lends when the joiner
//! looks: one that was as urgent as the coroutine it awaits, and stays so while that one's level is lowered, lends at
//! its next turn.
//!
//! # Fork
//! A forked child must not use its parent's executors, as is usual with threads, unless the process has called
//! `follow_forks` (feature `scheduler`). Then the thread that forked goes on, with the coroutines of its core, which
//! are woken once; the other threads of an executor are gone and their coroutines with them. Timers and descriptors go
//! on being watched.
//!
//! # Features
//! `std` (default) contains `alloc`, which contains the core. `std`: threads, timers, descriptors, panics
//! caught into a [`JoinError`]. Without `std` a panic in a coroutine is the platform's panic. `tracing`: a span per
//! turn, with id, name and level. `futures-io`, `tokio-io`: the traits by which others read and write. `scheduler`: the
//! modules that kernels and runtimes build on, which change without notice. `capi`: the core's C interface. 64-bit
//! targets only, as a waker's word holds an id. The minimum Rust version is 1.88, and a change of it
//! is a minor version.
//!
//! # Platforms
//! Made for Linux, where executors sleep by `futex` and steal with `membarrier`. macOS and other Unix systems, and
//! Windows, have the standard library's means: sleeping takes a mutex, cores that are stolen from pay a fence a turn,
//! and wakers are not for signal handlers. Descriptors are sockets on Windows. Those systems are built for in CI's long
//! tier, and their code runs there on Linux (the cfg `heddle_portable`); nothing has run on them.
//!
//! # Implementation notes
//! Slots of coroutines live in a process-wide table whose addresses are never given back: that is what makes uncounted
//! wakers sound. On Linux its memory is, after a burst. The protocol, with its proofs and models, is in `PROTOCOL.md`.
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(heddle_loom, allow(dead_code))] // Only the protocols are compiled for the model checker.

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(any(feature = "std", test, heddle_loom))]
extern crate std;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("a waker's data word holds an id of 64 bits");

#[cfg(feature = "scheduler")]
pub mod sched;
#[cfg(not(feature = "scheduler"))]
#[allow(dead_code, unused_imports, reason = "what only the feature `scheduler` shows")]
mod sched;
mod sync;

#[cfg(all(feature = "std", not(heddle_loom)))]
mod blocking;
#[cfg(all(feature = "std", not(heddle_loom)))]
mod blocks;
#[cfg(feature = "alloc")]
mod builder;
#[cfg(all(feature = "capi", not(heddle_loom)))]
pub mod capi;
#[cfg(all(feature = "alloc", not(heddle_loom)))]
mod core_entry;
#[cfg(feature = "alloc")]
mod foreign;
#[cfg(all(feature = "std", feature = "scheduler", not(heddle_loom)))]
#[cfg_attr(not(unix), allow(dead_code, reason = "only Unix forks"))]
mod fork;
#[cfg(all(feature = "alloc", not(heddle_loom)))]
#[cfg_attr(not(feature = "std"), allow(dead_code, reason = "only processes fork"))]
mod forks;
#[cfg(all(feature = "alloc", feature = "scheduler"))]
pub mod global;
#[cfg(all(feature = "alloc", not(heddle_loom)))]
mod handle;
#[cfg(all(feature = "std", feature = "scheduler", not(heddle_loom)))]
pub mod host;
#[cfg(all(feature = "std", not(feature = "scheduler"), not(heddle_loom)))]
#[allow(dead_code, reason = "what only the feature `scheduler` shows")]
mod host;
#[cfg(all(feature = "std", not(heddle_loom)))]
pub mod io;
#[cfg(feature = "alloc")]
mod join;
#[cfg(all(feature = "std", not(heddle_loom)))]
mod join_set;
#[cfg(all(feature = "std", not(heddle_loom)))]
mod local;
#[cfg(all(feature = "alloc", not(heddle_loom)))]
mod lock;
#[cfg(all(feature = "alloc", not(heddle_loom)))]
mod machine;
#[cfg(all(feature = "std", not(heddle_loom)))]
mod os;
#[cfg(all(feature = "std", not(heddle_loom)))]
mod park;
#[cfg(all(feature = "std", not(heddle_loom)))]
mod pool;
#[cfg(all(feature = "std", not(heddle_loom)))]
mod reactor;
#[cfg(all(feature = "alloc", not(heddle_loom)))]
mod registry;
#[cfg(all(feature = "alloc", not(heddle_loom)))]
mod statistics;
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

pub use sched::{Id, Phase, Rank};

#[cfg(all(feature = "std", not(heddle_loom)))]
pub use blocking::{BlockingHandle, spawn_blocking};
#[cfg(feature = "alloc")]
pub use builder::{Builder, DEFAULT_PRIORITY, SpawnError, StartError};
#[cfg(all(feature = "alloc", not(heddle_loom)))]
pub use core_entry::AsideTurn;
#[cfg(all(feature = "std", feature = "scheduler", not(heddle_loom)))]
pub use fork::follow_forks;
#[cfg(all(feature = "std", feature = "scheduler", not(heddle_loom)))]
pub use forks::forks;
#[cfg(all(feature = "alloc", not(heddle_loom)))]
pub use handle::{AbortOnDrop, JoinHandle, LocalJoinHandle};
#[cfg(all(feature = "std", not(heddle_loom)))]
pub use join_set::JoinSet;
#[cfg(all(feature = "std", not(heddle_loom)))]
pub use local::{LocalExecutor, block_on, coroutine_run};
#[cfg(all(feature = "alloc", not(heddle_loom)))]
pub use machine::{Core, MACHINE_CORES, Machine, Platform};
#[cfg(all(feature = "std", not(heddle_loom)))]
pub use pool::{Executor, Handle};
#[cfg(all(feature = "alloc", not(heddle_loom)))]
pub use registry::{MAX_CORES, MAX_COROUTINES};
#[cfg(all(feature = "alloc", not(heddle_loom)))]
pub use statistics::Statistics;
#[cfg(all(feature = "alloc", not(heddle_loom)))]
pub use task::JoinError;
#[cfg(all(feature = "std", not(heddle_loom)))]
pub use threads::{current_id, spawn, spawn_local, try_spawn, try_spawn_local};
#[cfg(all(feature = "std", not(heddle_loom)))]
pub use turn::should_yield;
#[cfg(all(feature = "alloc", not(heddle_loom)))]
pub use turn::{MoveTo, Preempted, YieldNow, move_to, preempted, yield_now};
#[cfg(all(feature = "alloc", not(heddle_loom)))]
pub use waker::{
    abort, id_of, is_ready, is_woken_in_turn, phase, priority, set_priority, set_rank, set_rank_at_rest,
    wake, waker,
};

#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
struct Readme;
