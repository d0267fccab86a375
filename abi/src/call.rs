//! Asynchronous system calls: their numbers, the entry that describes one, and the ring in which results come back.
//!
//! The ring is memory of the program, which it registers with [`RING`]: a header of [`RING_HEADER_BYTES`], then
//! entries of [`COMPLETION_BYTES`]. The kernel writes entries and the tail, the program the head; both count up for
//! ever, and the entry of a number is found by its lower bits. The kernel has a tail of its own and believes of the
//! program's head no more than how much room it leaves: a call that has to wait is only taken while there is room for
//! its result, so the ring cannot overflow.

/// The first of Heddle's own system calls. Linux answers them with `ENOSYS`.
pub const FIRST: u32 = 0x4844_0000;
/// `(entries, count)`: starts `count` calls described by [`Entry`]s and writes its state into each. Returns how
/// many were started, at least one, or an error if the first could not be.
pub const SUBMIT: u32 = FIRST;
/// `(token, flags)`: cancels a call that waits. Its result still comes, through the ring. `ENOENT` if it has already
/// come.
pub const CANCEL: u32 = FIRST + 1;
/// `(address, order)`: makes the memory at `address` the ring, with `1 << order` entries. The head and the tail that it
/// holds are set to the tail of the ring before it, or to 0, so that a tail says how many results there have been.
/// Later completions go there; those in an earlier ring stay.
/// `EINVAL`, `EBUSY` (more calls are in flight than it has entries).
pub const RING: u32 = FIRST + 2;
/// `(word, value, seen, timeout)`: sleeps while the 32-bit word has this value and the ring's tail is `seen`, until
/// another thread wakes the word as a futex (private), or `timeout` nanoseconds are over. `EAGAIN` if the word differs,
/// `ETIMEDOUT`, `EINTR`. A completion wakes one of a process's sleepers.
///
/// `seen` is the tail at which the ring was found empty. A tail that is read again after that look may count a result
/// that came in between, and the sleep would be over it.
pub const WAIT: u32 = FIRST + 3;
/// `(token, level)`: gives a call that waits another level, as that of the coroutine that awaits it has changed.
/// `ENOENT` if its result has already come, `EINVAL` (no such level).
pub const LEVEL: u32 = FIRST + 4;

/// For [`CANCEL`]: return when the call is over, so that the kernel does not touch its memory any more.
pub const CANCEL_AND_WAIT: u64 = 1;
/// For [`WAIT`]: no timeout.
pub const FOR_EVER: u64 = u64::MAX;

/// The smallest and the largest ring, as powers of two.
pub const RING_ORDER_MIN: u32 = 4;
/// See [`RING_ORDER_MIN`].
pub const RING_ORDER_MAX: u32 = 17;
/// The most entries of one [`SUBMIT`].
pub const SUBMIT_MAX: usize = 4096;

/// Bytes of the ring's header.
pub const RING_HEADER_BYTES: usize = 128;
/// Where in the header the program counts what it has taken out: 32 bits.
pub const RING_HEAD: usize = 0;
/// Where in the header the kernel counts what it has put in: 32 bits, on a cache line of its own.
pub const RING_TAIL: usize = 64;
/// Bytes of one [`Completion`].
pub const COMPLETION_BYTES: usize = size_of::<Completion>();

/// A call to be started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Entry {
    /// Linux's number of the system call.
    pub number: u32,
    /// The level of the calling coroutine.
    pub level: u32,
    /// Comes back in the completion.
    pub cookie: u64,
    /// The calling coroutine, which comes back in the completion too.
    pub coroutine: u64,
    /// The call's arguments.
    pub arguments: [u64; 6],
    /// Written by the kernel: one of [`NOT_STARTED`], [`DONE`], [`WAITS`].
    pub state: u64,
    /// Written by the kernel: the result of a call that is done, as the system call itself would return it; the token
    /// by which one that waits is cancelled.
    pub outcome: u64,
}

/// Where [`Entry::state`] is.
pub const ENTRY_STATE: usize = core::mem::offset_of!(Entry, state);
/// Words of an [`Entry`] that the kernel reads.
pub const ENTRY_WORDS: usize = ENTRY_STATE / 8;

/// [`Entry::state`]: not looked at, because a call before it could not be started.
pub const NOT_STARTED: u64 = 0;
/// [`Entry::state`]: finished; nothing comes through the ring.
pub const DONE: u64 = 1;
/// [`Entry::state`]: still in flight; its result comes through the ring.
pub const WAITS: u64 = 2;

/// The result of a call that had to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Completion {
    /// [`Entry::cookie`].
    pub cookie: u64,
    /// [`Entry::coroutine`].
    pub coroutine: u64,
    /// The result of the system call itself; `-ECANCELED` if it was cancelled.
    pub result: i64,
    /// Zero.
    pub reserved: u64,
}
