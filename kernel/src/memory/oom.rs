//! When memory runs out: what everyone does who found none, in one order.
//!
//! First what is only kept to be quick is given back ([`reclaim`]), and then what can be had again from elsewhere
//! ([`writeback`]). If that was not enough, a process ends (`process::oom`), and whoever asked waits until there is
//! more, or until it is to die itself.

use alloc::boxed::Box;
use core::future::Future;
use core::pin::pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::Poll;

use crate::arch::time::now_ns;
use crate::error::Errno;
use crate::memory::{fallible, reclaim, writeback};
use crate::time;

/// How long who found no memory waits before it looks again.
const WAIT_NS: u64 = 5_000_000;

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
        let mut sleep = pin!(time::sleep_until(now_ns() + WAIT_NS));
        core::future::poll_fn(|context| {
            if is_over() {
                return Poll::Ready(Err(Errno::ENOMEM));
            }
            sleep.as_mut().poll(context).map(Ok)
        })
        .await
    }
}
