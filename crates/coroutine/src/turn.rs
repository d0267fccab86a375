//! One turn of one coroutine, the same for every executor, and what a coroutine can ask of its turn.
#![allow(unsafe_code)] // Task pointers are known to be such because only this crate stores them in slots.

use crate::core_entry::CoreEntry;
#[cfg(feature = "tracing")]
use crate::foreign::contain;
use crate::machine::{Core, Platform};
use crate::registry::{Global, spill};
use crate::sched::{self, Fetched, Id, Outcome, Picked, Slot, Table};
use crate::task::{Header, TaskRef};
use crate::waker;
use core::future::Future;
use core::mem::ManuallyDrop;
use core::pin::Pin;
use core::ptr::NonNull;
use core::task::{Context, Poll};

/// Polls the coroutine that `entry` picked, and files it according to the outcome. On the core's own thread.
#[inline(always)]
pub(crate) fn run(entry: &'static CoreEntry, picked: Picked<'_>) {
    let Some(task) = NonNull::new(picked.task.cast::<Header>()) else { return };
    let task = TaskRef(task);
    let outer = entry.begin_turn(picked.id);
    #[cfg(feature = "std")]
    if let Some(host) = crate::host::host() {
        host.turn_begins(picked.id, picked.level);
    }
    #[cfg(feature = "tracing")]
    let mut span = None;
    #[cfg(feature = "tracing")]
    contain(|| {
        let (id, name, level) = (picked.id, task.extras().name, picked.level);
        span = Some(tracing::trace_span!("turn", %id, name, level).entered());
    });
    let ended = if picked.cancelled {
        // SAFETY: this is the coroutine's last turn; `complete` follows below.
        unsafe { task.cancel() };
        true
    } else {
        let waker = ManuallyDrop::new(waker::waker(picked.id));
        // SAFETY: `pick` gave the turn to this core alone.
        unsafe { task.poll(&mut Context::from_waker(&waker)) }
    };
    #[cfg(feature = "tracing")]
    contain(|| drop(span));
    let outcome = if entry.end_turn(outer) { Outcome::Yielded } else { Outcome::Pending };
    #[cfg(feature = "std")]
    if let Some(host) = crate::host::host() {
        host.turn_ends(picked.id, ended);
    }
    if !ended {
        entry.state.finish(&Global, picked.id, picked.slot, outcome);
        return;
    }
    // First the id becomes stale, then the joiner learns of the end.
    entry.state.finish(&Global, picked.id, picked.slot, Outcome::Complete);
    entry.count_live(u64::MAX);
    // SAFETY: the output is stored, and nothing leads to the task from here any more.
    unsafe { task.complete() };
    spill(&entry.state, false);
}

/// The core that the caller runs on and the slot of the coroutine whose turn goes on there, if that is the one that
/// the waker in `cx` wakes. A waker of another coroutine is no proof of being it: anybody can have one.
fn turn_of(cx: &Context<'_>) -> Option<(&'static CoreEntry, &'static Slot)> {
    let id = waker::id_of(cx.waker())?;
    let entry = waker::here_for(id).filter(|entry| entry.current() == Some(id))?;
    Some((entry, Global.slot(id.index())?))
}

/// Gives way to the others of the level, and to more urgent ones: the coroutine goes to the tail of its queue.
pub fn yield_now() -> YieldNow {
    YieldNow { yielded: false }
}

/// See [`yield_now`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct YieldNow {
    yielded: bool,
}

impl Future for YieldNow {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.yielded {
            return Poll::Ready(());
        }
        self.yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Whether something more urgent than the calling coroutine is ready on its core, or may be: a coroutine with a long
/// turn then lets it go first, by [`preempted`].
#[cfg(feature = "std")]
pub fn should_yield() -> bool {
    let Some(entry) = crate::threads::here() else { return false };
    let slot = entry.current().and_then(|id| Global.slot(id.index()));
    !entry.state.inbox().is_empty()
        || entry.is_more_in_reserve()
        || slot.is_some_and(|slot| entry.state.ready().bitmap().trailing_zeros() < u32::from(slot.level()))
}

/// Gives way as one that was preempted: the coroutine goes to the *head* of its level's queue, so that it goes on
/// before the others of its level once what was more urgent is done.
pub fn preempted() -> Preempted {
    Preempted { yielded: false }
}

/// See [`preempted`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Preempted {
    yielded: bool,
}

impl Future for Preempted {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.yielded {
            return Poll::Ready(());
        }
        self.yielded = true;
        if let Some((entry, slot)) = turn_of(cx) {
            entry.state.requeue_at_head(slot);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Moves the calling coroutine to the cores of `mask` (bit `n`: core `n` of its machine; those from 31 on are not told
/// apart): ready once it runs on one of them. If none of them is started, it stays where it is; so does a coroutine
/// that need not be `Send`, and the one of [`Executor::block_on`](crate::Executor::block_on).
pub fn move_to(mask: u64) -> MoveTo {
    MoveTo { mask, asked: false }
}

/// See [`move_to`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct MoveTo {
    mask: u64,
    asked: bool,
}

impl Future for MoveTo {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let turn = turn_of(cx).filter(|_| !self.asked);
        if !turn.is_some_and(|(_, slot)| crate::task::set_cores(slot, self.mask)) {
            return Poll::Ready(());
        }
        self.asked = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<P: Platform> Core<P> {
    /// Takes the coroutine `id` into this core's queue, if it is ready in another one's and may run here. The other
    /// core is not kicked.
    pub fn fetch(&self, id: Id) -> Fetched {
        sched::fetch(&Global, &self.entry.state, id, P::heavy_barrier)
    }
}
