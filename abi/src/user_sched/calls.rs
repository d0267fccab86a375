//! Heddle's own system calls for executor threads. They are made like Linux's, by number; Linux answers `ENOSYS`.
//! The numbers below [`REGISTER`] belong to the asynchronous calls.

/// `register(number, handler, argument)`: the calling thread becomes executor `number` of its process, below
/// [`EXECUTORS_MAX`](super::EXECUTORS_MAX). `handler` is where a user interrupt enters, the vDSO's
/// `__heddle_interrupt` or 0 for none; `argument` is passed to it. A second call by the same thread replaces the
/// first. `EINVAL` (number), `EBUSY` (another living thread has it), `ENOMEM`.
pub const REGISTER: u32 = 0x4844_0010;

/// `unregister()`: the calling thread is an executor no more. The end of a thread does the same. Returns 0.
pub const UNREGISTER: u32 = 0x4844_0011;

/// `interrupt(number, lent)`: sets [`PENDING_KICK`](super::PENDING_KICK) of executor `number`, wakes it if it sleeps at
/// that word and, if it is in its program and its mask is 0, interrupts it. `lent` is 0, or 1 more than a level that
/// the thread has until its own is next worked out. Returns 1 if it is woken or interrupted, 0 if it sees the word
/// itself: masked, or in the kernel. `EINVAL` (no such executor).
pub const INTERRUPT: u32 = 0x4844_0012;

/// `give_way()`: the calling thread takes the level of its process's best coroutine, and whatever is more urgent runs
/// first. Returns 0.
pub const GIVE_WAY: u32 = 0x4844_0013;

/// `policy(policy)`: sets the process's [`policy`]; [`policy::KEEP`] only asks. Returns the one before. `EINVAL`.
pub const POLICY: u32 = 0x4844_0014;

/// When a process yields to more urgent work elsewhere.
pub mod policy {
    /// At the clock tick.
    pub const RELAXED: u32 = 0;
    /// Before each coroutine too: the executor compares, and calls [`GIVE_WAY`](super::GIVE_WAY).
    pub const STRICT: u32 = 1;
    /// No change.
    pub const KEEP: u32 = u32::MAX;
}

/// The frame that the kernel pushes before it enters a user interrupt's handler, [`RED_ZONE_BYTES`] below the stack
/// pointer; the stack pointer then points at it. The handler returns by `popfq` at `flags` and then `ret 128`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct InterruptFrame {
    /// From [`REGISTER`].
    pub argument: u64,
    /// Flags of the interrupted code.
    pub flags: u64,
    /// Where the interrupted code continues.
    pub ip: u64,
}

/// The argument of `__heddle_notice` when that is registered as a handler, for programs that check for reasons
/// themselves and only want to know when: argument of [`REGISTER`], its first member is the address of that function.
#[repr(C)]
#[derive(Debug)]
pub struct Notice {
    /// `__heddle_notice`.
    pub function: usize,
    /// Set to 1 by an interrupt, for the program to clear when it looks. The handler leaves reasons and mask alone.
    pub noticed: super::AtomicU32,
}

/// Bytes below the stack pointer that a function may use without moving it.
pub const RED_ZONE_BYTES: usize = 128;

const _: () = assert!(size_of::<InterruptFrame>() == 24);
