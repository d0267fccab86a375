//! Wakers as hostile as safe code can make them.
#![allow(dead_code, unsafe_code)] // Each program takes what it needs; a waker's own table of functions.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{RawWaker, RawWakerVTable, Wake, Waker};

/// Panics when it is woken.
struct Panicking;

impl Wake for Panicking {
    fn wake(self: Arc<Self>) {
        panic!("{HOSTILE}")
    }
}

/// A waker that panics when it is woken.
pub fn panicking() -> Waker {
    Waker::from(Arc::new(Panicking))
}

/// The message of every panic in here.
pub const HOSTILE: &str = "hostile";

/// Runs its closure when it is woken, and when its last reference goes.
pub struct Running<F: Fn() + Send + Sync + 'static> {
    run: F,
    /// Wakes and drops so far.
    pub wakes: AtomicUsize,
}

impl<F: Fn() + Send + Sync + 'static> Running<F> {
    /// Such a waker, and what counts its wakes.
    pub fn new(run: F) -> (Arc<Self>, Waker) {
        let this = Arc::new(Self { run, wakes: AtomicUsize::new(0) });
        (this.clone(), Waker::from(this))
    }
}

impl<F: Fn() + Send + Sync + 'static> Wake for Running<F> {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
        (self.run)();
    }
}

thread_local! {
    static DROPS_PANIC: Cell<bool> = const { Cell::new(false) };
}

/// From now on each drop of [`drop_panics`] in this thread panics, or none does.
pub fn set_drops_panic(panic: bool) {
    DROPS_PANIC.set(panic);
}

/// A waker whose drop panics while [`set_drops_panic`] says so.
pub fn drop_panics() -> Waker {
    const fn table() -> &'static RawWakerVTable {
        &TABLE
    }
    static TABLE: RawWakerVTable = RawWakerVTable::new(
        |_| RawWaker::new(std::ptr::null(), table()),
        |_| (),
        |_| (),
        |_| {
            if DROPS_PANIC.get() && !std::thread::panicking() {
                panic!("{HOSTILE}")
            }
        },
    );
    // SAFETY: the functions touch no data.
    unsafe { Waker::from_raw(RawWaker::new(std::ptr::null(), table())) }
}

/// Keeps the panics of this module out of the tests' output.
pub fn quiet() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let old = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let payload = info.payload();
            let is_ours = payload.downcast_ref::<&str>() == Some(&HOSTILE)
                || payload.downcast_ref::<String>().is_some_and(|text| text == HOSTILE);
            if !is_ours {
                old(info);
            }
        }));
    });
}
