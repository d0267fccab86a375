//! The pages that a program and the kernel both write.

use super::{AtomicU32, AtomicU64};

/// Executor threads that a process may have.
pub const EXECUTORS_MAX: usize = 64;

/// A program's pages. All zero but for the header when the program starts, and again in a child after fork. The kernel
/// believes nothing in them.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct ProcessPages {
    /// Page 0.
    pub header: ProcessHeader,
    /// Page 1: a record for each executor thread, by its number.
    pub executors: [ExecutorRecord; EXECUTORS_MAX],
}

/// The first page.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct ProcessHeader {
    /// [`MAGIC`](super::MAGIC); the kernel writes it when it makes the page.
    pub magic: AtomicU32,
    /// [`VERSION`](super::VERSION); likewise.
    pub version: AtomicU32,
    reserved0: [AtomicU32; 14],
    /// Bit `n`: a coroutine of level `n` is ready and in no executor's own queue, so that any executor may run it.
    /// The program writes it; with each registered executor's `ready` it makes up the process's bitmap.
    pub bitmap: AtomicU64,
    /// The number of the group that the process's executors belong to, 0 for none; the kernel writes it when one
    /// registers.
    pub group: AtomicU32,
    reserved1: AtomicU32,
    reserved2: [AtomicU64; 6],
    /// Where the program keeps what `/proc/PID/heddle` shows.
    pub coroutines: CoroutineTable,
    reserved3: AtomicU64,
}

/// The memory that an executor thread and the kernel communicate through.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ExecutorRecord {
    /// 0: the thread may be interrupted. The program sets and clears it, the kernel sets it when it enters the handler.
    pub mask: AtomicU32,
    /// Reasons to look around: `PENDING_*`. Set by kernel and other executors, taken by the thread with an exchange.
    pub pending: AtomicU32,
    /// Level of the coroutine that the thread runs, or [`RUNNING_NONE`] while it looks for one. The program writes it.
    pub running: AtomicU32,
    reserved0: AtomicU32,
    /// Bit `n`: a coroutine of level `n` is ready in the thread's own queue. The program writes it.
    pub ready: AtomicU64,
    /// Id of the coroutine that the thread runs, 0 for none. The program writes it.
    pub current: AtomicU64,
    /// Interrupts that the kernel has delivered to the thread. Kernel only.
    pub interrupts: AtomicU64,
    reserved1: [AtomicU64; 3],
}

impl ExecutorRecord {
    /// A record of zeros, but that no coroutine runs.
    #[must_use]
    pub fn new() -> Self {
        Self {
            mask: AtomicU32::new(0),
            pending: AtomicU32::new(0),
            running: AtomicU32::new(RUNNING_NONE),
            reserved0: AtomicU32::new(0),
            ready: AtomicU64::new(0),
            current: AtomicU64::new(0),
            interrupts: AtomicU64::new(0),
            reserved1: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl Default for ExecutorRecord {
    fn default() -> Self {
        Self::new()
    }
}

/// `running` of an executor that runs no coroutine: it looks at its inbox and the ring before it sleeps.
pub const RUNNING_NONE: u32 = 64;
/// `running` of an executor in reserve, while it sleeps at its pending word: it is told only of what is more urgent
/// than what every other executor runs, and when no other can run.
pub const RUNNING_RESERVE: u32 = 65;

/// In `pending`: completions have come.
pub const PENDING_COMPLETION: u32 = 1;
/// In `pending`: another executor has left something in the thread's inbox.
pub const PENDING_KICK: u32 = 2;
/// In `pending`, of an executor in reserve: no other executor of the process can run.
pub const PENDING_SPARE: u32 = 4;

/// Where a program keeps an array of [`CoroutineInfo`]; zeros if it keeps none.
#[repr(C)]
#[derive(Debug)]
pub struct CoroutineTable {
    /// Address of the first entry.
    pub address: AtomicU64,
    /// Entries.
    pub count: AtomicU32,
    /// Bytes from one entry to the next, at least those of [`CoroutineInfo`]: entries may be parts of larger ones.
    pub stride: AtomicU32,
}

/// The program's record of one coroutine. Only readers of `/proc` use it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CoroutineInfo {
    /// Id, 0 for an unused entry.
    pub id: u64,
    /// The program's own number for what kind of coroutine it is.
    pub kind: u32,
    /// Its level.
    pub level: u8,
    /// One of [`state`].
    pub state: u8,
    /// Zero.
    pub reserved: u16,
    /// Turns it has had.
    pub polls: u64,
    /// Nanoseconds on the monotonic clock since when it is in its state.
    pub since_ns: u64,
    /// Nanoseconds that it was ready and did not run, all together.
    pub delayed_ns: u64,
}

/// States of a coroutine, as a program knows them. Whether one that runs holds a stack because its thread was preempted
/// or is blocked, the kernel knows.
pub mod state {
    /// Queued.
    pub const READY: u8 = 0;
    /// In a turn: the `current` of some executor.
    pub const RUNNING: u8 = 1;
    /// Waits to be woken.
    pub const WAITING: u8 = 2;
}

#[cfg(not(heddle_loom))]
const _: () = {
    use super::PAGE_BYTES;
    use core::mem::offset_of;
    assert!(offset_of!(ProcessHeader, bitmap) == 64);
    assert!(offset_of!(ProcessHeader, group) == 72);
    assert!(offset_of!(ProcessHeader, coroutines) == 128);
    assert!(offset_of!(ProcessHeader, reserved3) == 144);
    assert!(size_of::<ProcessHeader>() == PAGE_BYTES);
    assert!(size_of::<ExecutorRecord>() == 64 && offset_of!(ExecutorRecord, ready) == 16);
    assert!(offset_of!(ProcessPages, executors) == PAGE_BYTES);
    assert!(size_of::<ProcessPages>() == 2 * PAGE_BYTES);
    assert!(size_of::<CoroutineInfo>() == 40);
};
