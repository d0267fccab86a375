//! Rings of `io_uring` that a thread has registered for itself.

use alloc::boxed::Box;
use alloc::sync::Arc;

use crate::error::Errno;
use crate::fs::OpenFile;
use crate::memory::fallible;
use crate::process::Thread;
use crate::sync::SpinLock;

/// The rings by their numbers; `None` for a thread that has registered none.
#[derive(Default)]
pub(super) struct ThreadRings(SpinLock<Option<Box<RingSlots>>>);

type RingSlots = [Option<Arc<OpenFile>>; Thread::RINGS_MAX];

impl Thread {
    /// The most rings that a thread registers.
    pub const RINGS_MAX: usize = 16;

    /// Registers a ring under a number, or under the first that is free; returns the number.
    ///
    /// # Errors
    /// `EBUSY` (there is no free one), `ENOMEM`.
    pub fn enter_ring(&self, number: Option<usize>, open: Arc<OpenFile>) -> Result<usize, Errno> {
        let empty = fallible::try_box(RingSlots::default())?;
        let mut rings = self.rings.0.lock();
        let slots = rings.get_or_insert(empty);
        let number = match number {
            Some(number) => Some(number).filter(|&number| slots[number].is_none()),
            None => slots.iter().position(Option::is_none),
        };
        let number = number.ok_or(Errno::EBUSY)?;
        slots[number] = Some(open);
        Ok(number)
    }

    /// Takes a registered ring out, to be dropped without a lock held.
    #[must_use]
    pub fn take_ring(&self, number: usize) -> Option<Arc<OpenFile>> {
        self.rings.0.lock().as_mut().and_then(|slots| slots[number].take())
    }

    /// The ring that is registered under a number.
    #[must_use]
    pub fn ring(&self, number: usize) -> Option<Arc<OpenFile>> {
        self.rings.0.lock().as_ref().and_then(|slots| slots[number].clone())
    }

    /// Gives the registered rings up, at the thread's end and with a new program: one after the other, as each may be
    /// the end of many files.
    pub async fn leave_rings(&self) {
        let Some(rings) = self.rings.0.lock().take() else { return };
        for open in rings.into_iter().flatten() {
            drop(open);
            crate::sched::yield_now().await;
        }
    }
}
