//! Calls of code that is not this crate's: other executors' wakers, drops of what users gave, `tracing` subscribers.
//!
//! Two rules hold for all of them. None runs under a lock of this crate, so it may call the crate again. None unwinds
//! through a frame of this crate that something still refers to: a panic ends here, after the panic hook has told of
//! it, because nobody who could be told waits for its result.

use core::task::Waker;

/// Runs `f`. Under `std` a panic in it ends here; elsewhere it is the platform's to handle.
#[inline(always)]
pub(crate) fn contain(f: impl FnOnce()) {
    #[cfg(feature = "std")]
    if let Err(payload) = std::panic::catch_unwind(core::panic::AssertUnwindSafe(f)) {
        discard(payload);
    }
    #[cfg(not(feature = "std"))]
    f();
}

/// Drops the payload of a panic. Should its drop panic too, what that carries stays where it is.
#[cfg(feature = "std")]
#[cold]
fn discard(payload: std::boxed::Box<dyn core::any::Any + Send>) {
    let dropped = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| drop(payload)));
    core::mem::forget(dropped);
}

/// Wakes by `waker`, and drops it.
#[inline]
#[cfg_attr(heddle_loom, allow(dead_code))]
pub(crate) fn wake(waker: Waker) {
    contain(|| waker.wake());
}
