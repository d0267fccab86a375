//! The shared scheduler as kernel, vDSO and programs see it: layouts and numbers. `docs/SHARED-SCHEDULER.md` says which
//! side writes what, in which order, and what the kernel believes.
//!
//! - [`SystemPage`]: one for the machine, read-only to programs.
//! - [`TimePage`]: one for each time namespace, read-only to programs.
//! - [`ProcessPages`]: one for each program, which it may write: its ready levels, a record per executor thread.
//! - [`calls`]: Heddle's own system calls for executor threads; asynchronous calls have a module of their own.
//! - [`levels`]: the meaning of the 64 levels for a program.

pub mod calls;
pub mod levels;
mod process;
mod system;
mod time_page;

pub use process::{
    CoroutineInfo, CoroutineTable, EXECUTORS_MAX, ExecutorRecord, PENDING_COMPLETION, PENDING_KICK,
    PENDING_SPARE, ProcessHeader, ProcessPages, RUNNING_NONE, RUNNING_RESERVE, state,
};
pub use system::{CPU_SEGMENT, Clock, GROUPS_MAX, SystemPage};
pub use time_page::TimePage;

#[cfg(not(heddle_loom))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64};
#[cfg(heddle_loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64};

/// Version of everything in this module. Both pages carry it; a program that finds another one uses neither.
pub const VERSION: u32 = 1;

/// First word of both pages: `HEDL` in memory.
pub const MAGIC: u32 = u32::from_le_bytes(*b"HEDL");

/// Entry of the auxiliary vector (getauxval(3)) with the address of the process's [`ProcessPages`]. Its absence says
/// that the kernel is not Heddle, or has no shared scheduler.
pub const AT_HEDDLE_PROCESS: u32 = 0x4865_6401;

/// Entry of the auxiliary vector with the address of the [`SystemPage`].
pub const AT_HEDDLE_SYSTEM: u32 = 0x4865_6402;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
