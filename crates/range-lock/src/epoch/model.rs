//! One participant per thread of a model. Models begin anew thousands of times, so everything here is made and
//! dropped with each run instead of living in statics.

use alloc::boxed::Box;
use core::cell::Cell;

use super::{Context, Domain, Epoch, OutOfMemory, Participant};

/// Threads of a model at most.
const THREADS: usize = 4;

struct Place {
    domain: Domain,
    /// Each in a box: all together are too large for a model's stack.
    participants: [Box<Participant>; THREADS],
}

loom::lazy_static! {
    static ref PLACE: Place = Place {
        domain: Domain::new(),
        participants: core::array::from_fn(|_| Box::new(Participant::new())),
    };
}

loom::thread_local! {
    static CURRENT: Cell<Option<&'static Participant>> = Cell::new(None);
}

/// The participants of a model's threads.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModelEpoch;

fn place() -> &'static Place {
    core::ops::Deref::deref(&PLACE)
}

// SAFETY: a participant is claimed by one thread of the model and never given back.
unsafe impl Epoch for ModelEpoch {
    fn with<R>(f: impl FnOnce(Context) -> R) -> Result<R, OutOfMemory> {
        Ok(Self::with_any(f))
    }

    fn with_any<R>(f: impl FnOnce(Context) -> R) -> R {
        let place = place();
        let participant = CURRENT.with(Cell::get).unwrap_or_else(|| {
            let mine = place.participants.iter().find(|participant| participant.claim());
            let mine = mine.expect("a model of no more threads than participants");
            place.domain.attach(mine);
            CURRENT.with(|current| current.set(Some(mine)));
            mine
        });
        // SAFETY: claimed above by this thread.
        f(unsafe { Context::new(&place.domain, participant) })
    }
}

impl Drop for Participant {
    fn drop(&mut self) {
        let local = self.local.get_mut();
        while let Some(block) = local.pop_anything() {
            // SAFETY: the run is over: nobody reads any more.
            unsafe { super::block::deallocate(block) }
        }
    }
}
