//! Groups whose threads stand still, `cgroup.freeze`.
//!
//! A thread of a frozen group has [`PendingWork::FROZEN`] and waits before it goes back to its program; a call that
//! waits is interrupted for that, as by a stop. The bits follow the group: whoever freezes, thaws or moves sets them
//! after that, thread by thread, and a new thread begins with what its group says while the table is locked. The bit of
//! a group that has used its time ([`bandwidth`](super::bandwidth)) is set in the same way.

use alloc::sync::Arc;
use core::sync::atomic::{Ordering, fence};
use core::task::Poll;

use crate::process::control_group::ControlGroup;
use crate::process::{Process, Thread};
use crate::signal::PendingWork;

impl ControlGroup {
    /// The value of `cgroup.freeze`.
    #[must_use]
    pub fn is_freezing(&self) -> bool {
        self.is_freezing.load(Ordering::Acquire)
    }

    /// Changes it. The bits of the threads are the caller's.
    pub fn set_freezing(&self, is_freezing: bool) {
        self.is_freezing.store(is_freezing, Ordering::Release);
    }

    /// Whether its threads are to stand still, by itself or by a group that it is in.
    #[must_use]
    pub fn must_freeze(&self) -> bool {
        self.upwards().any(Self::is_freezing)
    }

    /// Whether all its threads stand still, and those below, because they must.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        let live = self.counts.live.load(Ordering::Relaxed);
        self.must_freeze() && self.counts.frozen.load(Ordering::Relaxed) >= live
    }
}

/// Tells those who watch a group and those above whether they are frozen, if that has changed.
pub fn look_at(group: &ControlGroup) {
    for each in group.upwards() {
        let is_frozen = each.is_frozen();
        if each.was_frozen.swap(is_frozen, Ordering::Relaxed) != is_frozen {
            each.tell(&each.events);
        }
    }
}

/// Why the threads of a group stand still.
const REASONS: PendingWork = PendingWork::FROZEN.union(PendingWork::THROTTLED);

/// The bits that the threads of a process are to have.
fn reasons(process: &Process) -> PendingWork {
    let mut reasons = PendingWork::empty();
    if let Some(group) = process.control_group() {
        reasons.set(PendingWork::FROZEN, group.must_freeze());
        reasons.set(PendingWork::THROTTLED, group.must_rest());
    }
    reasons
}

/// Sets the bits of a process's threads as its group says now. Returns whether one was changed.
pub fn follow(process: &Arc<Process>) -> bool {
    let mut has_changed = false;
    for thread in process.threads() {
        has_changed |= follow_one(process, &thread);
    }
    has_changed
}

/// The same for one of its threads.
pub fn follow_one(process: &Process, thread: &Thread) -> bool {
    let before = thread.work() & REASONS;
    let mut must = reasons(process);
    loop {
        thread.add_work(must);
        thread.remove_work(REASONS - must);
        // Somebody may have moved or thawed it meanwhile, whose look at the bits came before: the last looks again.
        fence(Ordering::SeqCst);
        let now = reasons(process);
        if now == must {
            break;
        }
        must = now;
    }
    if !before.is_empty() || !must.is_empty() {
        thread.kick();
    }
    must != before
}

/// A thread that has not run yet begins as its group says. The table is locked.
pub fn begin(thread: &Thread) {
    let must = reasons(&thread.process);
    if !must.is_empty() {
        thread.add_work(must);
    }
}

/// A thread as it counts among the frozen ones of its group, while it does.
#[derive(Default)]
pub struct FrozenThread(Option<Arc<ControlGroup>>);

impl FrozenThread {
    /// Counts it where its process is now, if it is to stand still.
    pub fn update(&mut self, thread: &Thread) {
        let group = thread.process.control_group().filter(|_| thread.work().contains(PendingWork::FROZEN));
        if group.as_ref().map(|group| group.number) == self.0.as_ref().map(|group| group.number) {
            return;
        }
        self.leave();
        if let Some(group) = group {
            for each in group.upwards() {
                each.counts.frozen.fetch_add(1, Ordering::Relaxed);
            }
            look_at(&group);
            self.0 = Some(group);
        }
    }

    fn leave(&mut self) {
        let Some(group) = self.0.take() else { return };
        for each in group.upwards() {
            each.counts.frozen.fetch_sub(1, Ordering::Relaxed);
        }
        look_at(&group);
    }
}

impl Drop for FrozenThread {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Waits until the thread may go on, or has something else to do.
pub async fn wait(thread: &Arc<Thread>) {
    let mut frozen = FrozenThread::default();
    core::future::poll_fn(|_| {
        let work = thread.work();
        let has_other = work.intersects(PendingWork::DIE | PendingWork::TRAP | PendingWork::BARRIER);
        if !work.contains(PendingWork::FROZEN) || has_other {
            return Poll::Ready(());
        }
        frozen.update(thread);
        Poll::Pending
    })
    .await;
}
