//! When memory runs out: what everyone does who found none, in one order.
//!
//! First what is only kept to be quick is given back ([`reclaim`]), and then what can be had again from elsewhere
//! ([`writeback`]). If that was not enough, a process ends (`process::oom`), and whoever asked waits in a queue that
//! freed frames wake ([`frames_were_freed`]), until there is more or until it is to die itself.

use alloc::boxed::Box;
use core::future::Future;
use core::pin::pin;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::task::{Poll, Waker};

use crate::arch::time::now_ns;
use crate::error::Errno;
use crate::memory::{fallible, frame, reclaim, writeback};
use crate::sync::SpinLock;
use crate::time;

/// How long a coroutine waits for freed frames before it looks again all the same: a process that was chosen to end may
/// not get on with it, and a few frames stay in the caches of CPUs.
const WAIT_NS: u64 = 100_000_000;
/// The same without a place in the queue.
const WAIT_UNKNOWN_NS: u64 = 5_000_000;

/// Places in the queue.
const PLACES: usize = 64;

/// A place in the queue, taken if it has a waker.
type WaitPlace = SpinLock<Option<Waker>>;

/// Coroutines that wait for frames. A place is given back by the one that took it, so that no waker is dropped, and
/// nothing freed, by a CPU that frees frames.
static QUEUE: [WaitPlace; PLACES] = [const { SpinLock::new(None) }; PLACES];
/// How many places are taken, to be read without a lock.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Frames have been freed, which a program may have: wakes those that wait for them. Called with locks of the allocator
/// held; takes none but that of a place, and frees nothing.
#[inline]
pub fn frames_were_freed() {
    if WAITING.load(Ordering::Relaxed) != 0 {
        wake_all();
    }
}

#[cold]
fn wake_all() {
    for place in &QUEUE {
        if let Some(waker) = &*place.lock() {
            waker.wake_by_ref();
        }
    }
}

/// A place in the queue that is given back when this is dropped.
struct QueuedWaiter(&'static WaitPlace);

impl QueuedWaiter {
    /// Takes a place; nothing if there is none.
    fn new(waker: &Waker) -> Option<Self> {
        let waker = waker.clone();
        for place in &QUEUE {
            let mut taken = place.lock();
            if taken.is_none() {
                *taken = Some(waker);
                WAITING.fetch_add(1, Ordering::Relaxed);
                return Some(Self(place));
            }
        }
        None
    }
}

impl Drop for QueuedWaiter {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
        let waker = self.0.lock().take();
        drop(waker);
    }
}

static KILL: spin::Once<fn()> = spin::Once::new();

/// Has `kill` called when a process has to end; it allocates nothing.
pub fn set_kill(kill: fn()) {
    KILL.call_once(|| kill);
}

/// The last thing that was tried for the memory that somebody does not find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
enum Stage {
    #[default]
    Nothing,
    Reclaimed,
    WrittenBack,
}

/// The steps that a waiter has taken for memory that it does not find.
#[derive(Default)]
pub struct Shortage(Stage);

impl Shortage {
    /// Makes room, so that it is worth while to look again: by the next of the means, and by killing from the third
    /// time on.
    ///
    /// # Errors
    /// `ENOMEM`: `is_over` says that the one who asks has no use for memory any more. It is asked after each wake.
    pub async fn make_room(&mut self, is_over: impl Fn() -> bool) -> Result<(), Errno> {
        static IS_EVICTING: AtomicBool = AtomicBool::new(false);
        if is_over() {
            return Err(Errno::ENOMEM);
        }
        // Reclaim may free less than is needed, each time: so it is trusted once.
        if reclaim::reclaim() && self.0 == Stage::Nothing {
            self.0 = Stage::Reclaimed;
            return Ok(());
        }
        if !IS_EVICTING.swap(true, Ordering::AcqRel) {
            // Small, and one at a time: the emergency reserve has room for it.
            let is_room = match fallible::try_box(writeback::evict()) {
                Ok(evict) => Box::into_pin(evict).await,
                Err(_) => false,
            };
            IS_EVICTING.store(false, Ordering::Release);
            if is_room && self.0 < Stage::WrittenBack {
                self.0 = Stage::WrittenBack;
                return Ok(());
            }
            if let Some(kill) = KILL.get() {
                kill();
            }
        }
        wait_for_frames(is_over).await
    }
}

/// Waits until frames are freed.
///
/// # Errors
/// `ENOMEM`: it is over.
async fn wait_for_frames(is_over: impl Fn() -> bool) -> Result<(), Errno> {
    let before = frame::freed();
    let place = core::future::poll_fn(|context| Poll::Ready(QueuedWaiter::new(context.waker()))).await;
    let wait_ns = if place.is_some() { WAIT_NS } else { WAIT_UNKNOWN_NS };
    let mut sleep = pin!(time::sleep_until(now_ns() + wait_ns));
    core::future::poll_fn(|context| {
        if is_over() {
            return Poll::Ready(Err(Errno::ENOMEM));
        }
        // Between the last look and the place in the queue, or since.
        if frame::freed() != before {
            return Poll::Ready(Ok(()));
        }
        sleep.as_mut().poll(context).map(Ok)
    })
    .await
}
