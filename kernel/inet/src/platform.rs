//! The world around the engine: the clock, randomness, memory, and those who wait.

use alloc::sync::Arc;
use bitflags::bitflags;

/// There was no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

bitflags! {
    /// The events that a socket is ready for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Readiness: u32 {
        /// Bytes to read, a connection to accept, or the end.
        const IN = 1 << 0;
        /// Room to write.
        const OUT = 1 << 1;
        /// An error to be told.
        const ERROR = 1 << 2;
        /// Both directions have ended.
        const HANG_UP = 1 << 3;
        /// The peer has ended its direction.
        const READ_HANG_UP = 1 << 4;
        /// Urgent data.
        const PRIORITY = 1 << 5;
    }
}

/// Those who wait for one socket.
pub trait Waiters: Send + Sync + 'static {
    /// Wakes those who wait for one of these. The engine may hold locks of its own: nothing of the engine may be
    /// called.
    fn wake(&self, ready: Readiness);

    /// Has the socket's `work` called soon, from a place that holds no lock, at the level of the most urgent waiter.
    fn work(&self);

    /// Its connection has come to a listener, whose waiters these are: whoever serves that is to serve this.
    fn follow(&self, listener: &Self) {
        let _ = listener;
    }
}

/// The engine's surroundings. There is one of each kind for all engines, so the functions take no object.
pub trait Platform: Sized + Send + Sync + 'static {
    /// The waiters of a socket.
    type Waiters: Waiters;
    /// Whoever calls one engine's `tick`. It is dropped with the engine.
    type Alarm: Send + Sync;

    /// Nanoseconds of a clock that never goes back.
    fn now_ns() -> u64;

    /// Fills `bytes` with random ones.
    fn random(bytes: &mut [u8]);

    /// Runs `make`, which allocates at most `bytes` in one piece, if that cannot fail.
    ///
    /// # Errors
    /// [`OutOfMemory`]; `make` was not called.
    fn reserved<R>(bytes: usize, make: impl FnOnce() -> R) -> Result<R, OutOfMemory>;

    /// A small number that differs between CPUs: each counts in memory of its own.
    fn stripe() -> usize;

    /// The waiters of a new socket.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    fn waiters() -> Result<Arc<Self::Waiters>, OutOfMemory>;

    /// Has `Engine::tick` called at this moment, or earlier if an earlier one was asked for.
    fn tick_at(alarm: &Self::Alarm, moment_ns: u64);

    /// Whether somebody wants to see the packets on the loopback.
    fn watches_loopback(alarm: &Self::Alarm) -> bool {
        let _ = alarm;
        false
    }

    /// Shows them a packet with an Ethernet header. It is called with no lock of a socket held.
    fn show_on_loopback(alarm: &Self::Alarm, frame: &[u8]) {
        let _ = (alarm, frame);
    }

    /// Starts what calls the `work` of a connection over a link when its [`Waiters::work`] asks for it, and when the
    /// moment comes that the last call of `work` named.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    fn start_worker(socket: Arc<crate::tcp::TcpSocket<Self>>) -> Result<(), OutOfMemory>;
}

/// An `Arc` that may not be had.
pub(crate) fn try_arc<P: Platform, T>(value: T) -> Result<Arc<T>, OutOfMemory> {
    P::reserved(size_of::<T>() + 2 * size_of::<usize>(), || Arc::new(value))
}

/// A 64-bit random number.
pub(crate) fn random_u64<P: Platform>() -> u64 {
    let mut bytes = [0; 8];
    P::random(&mut bytes);
    u64::from_ne_bytes(bytes)
}
