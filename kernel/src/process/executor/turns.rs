//! The turns of an executor thread: how they start, whether it may enter its program, and how they end.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use heddle_kernel_core::group::{APART, BEHIND, End, Payer, Start};

use crate::arch::time::now_ns;
use crate::process::Thread;
use crate::sched;
use crate::sched::{Priority, SliceEnd, TaskRef};
use crate::signal::PendingWork;

use super::{GroupMembership, refresh, wake_spare};

/// A turn of an executor thread starts. `false`: its user's executors have had their time, and it has to be left out.
#[inline(never)]
pub(in crate::process) fn turn_starts(thread: &Thread, now_ns: u64) -> bool {
    let slot = thread.executor();
    if slot.is_blocked.swap(false, Ordering::Relaxed) {
        let executors = thread.process.executors();
        executors.regular_changes(thread);
        executors.runnable.starts();
    }
    slot.is_called.store(false, Ordering::Relaxed);
    slot.is_in.store(false, Ordering::Relaxed);
    let arrives = thread.priority() == Priority::ARRIVAL;
    if arrives {
        slot.may_arrive.store(false, Ordering::Relaxed);
    }
    let executor = slot.get();
    let membership = executor.as_ref().and_then(|executor| executor.membership.as_ref());
    // Nobody waits for the end of one that is killed longer than they must.
    let is_alone = sched::is_alone() || thread.work().contains(PendingWork::DIE);
    let mut has_time = true;
    thread.with_entity(|entity| {
        let affinity = entity.parameters().affinity;
        let payer =
            membership.map(|membership| membership.starts(affinity, Start { now_ns, arrives, is_alone }));
        match payer {
            Some(Payer::Group(account)) if entity.is_ordinary() => entity.start_shared(now_ns, account),
            Some(Payer::Nobody(account)) if entity.is_ordinary() => {
                entity.start_shared(now_ns, account);
                has_time = false;
            }
            _ => {
                entity.start_seldom(now_ns);
                if membership.is_some_and(|membership| membership.level() == BEHIND) {
                    entity.go_on_behind(now_ns);
                }
            }
        }
    });
    has_time
}

/// A turn of an executor thread ends, at the level that it had last. Whether it ends because the thread waits.
#[inline(never)]
pub(in crate::process) fn charge(thread: &Thread, now_ns: u64) -> bool {
    if thread.priority().is_realtime() && !thread.scheduling().policy.is_realtime() {
        sched::charge_realtime(now_ns.saturating_sub(thread.since_ns()));
    }
    let executor = thread.executor().get();
    let mut is_waiting = false;
    thread.with_entity(|entity| {
        is_waiting = entity.is_waiting();
        match executor.as_ref().and_then(|executor| executor.membership.as_ref()) {
            Some(membership) => {
                let was_shared = entity.is_shared();
                entity.end_shared(now_ns, |ran_ns| membership.charge(ran_ns));
                if !was_shared && entity.is_ordinary() {
                    // The next turn is the group's again, until more is known.
                    entity.go_on_shared(now_ns, membership.account());
                }
            }
            None => entity.end_seldom(now_ns),
        }
    });
    is_waiting
}

/// A call of an executor thread that goes on by itself has used so much time. Whether its group pays for it.
#[inline(never)]
pub(in crate::process) fn group_pays_for_call(thread: &Thread, ran_ns: u64) -> bool {
    let executor = thread.executor().get();
    let membership = executor.as_ref().and_then(|executor| executor.membership.as_ref());
    let payer = membership.filter(|membership| !matches!(membership.level(), BEHIND | APART));
    let pays = payer.filter(|_| thread.look_at_entity(|entity| entity.is_ordinary()));
    if let Some(membership) = pays {
        let _ = membership.charge(ran_ns);
    }
    pays.is_some()
}

/// Whether the thread, an executor that is about to enter its program, has the turn of its user's executors. If not, it
/// gives way.
#[inline]
pub fn may_enter(thread: &Thread) -> bool {
    thread.executor().may_stay() || has_turn(thread)
}

#[inline(never)]
fn has_turn(thread: &Thread) -> bool {
    let slot = thread.executor();
    if slot.is_called.swap(false, Ordering::Relaxed) {
        thread.with_entity(|_| {});
    }
    let executor = slot.get();
    let is_in = slot.is_in.load(Ordering::Relaxed);
    let membership = executor.as_ref().and_then(|executor| executor.membership.as_ref());
    let enters = membership.is_none_or(|membership| {
        change_payer(thread, membership);
        membership.may_enter(is_in, thread.priority())
    });
    slot.is_in.store(enters, Ordering::Relaxed);
    if enters {
        slot.may_arrive.store(true, Ordering::Relaxed);
    }
    enters
}

/// In the midst of a turn: what is background from here on is the thread's own, what is not any more is the group's.
fn change_payer(thread: &Thread, membership: &GroupMembership) {
    let is_behind = membership.level() == BEHIND;
    let is_shared = thread.look_at_entity(|entity| entity.is_shared());
    if is_behind != is_shared || membership.level() == APART {
        return;
    }
    let now_ns = now_ns();
    thread.with_entity(|entity| {
        entity.end_shared(now_ns, |ran_ns| membership.charge(ran_ns));
        if is_behind {
            entity.go_on_behind(now_ns);
        } else if entity.is_ordinary() {
            entity.go_on_shared(now_ns, membership.account());
        }
    });
}

/// A turn of the thread ends, because it waits or has to give way.
#[inline(always)]
pub fn turn_ends(thread: &Arc<Thread>, is_aside: bool) {
    if thread.executor().is_executor() {
        executor_turn_ends(thread, is_aside);
    }
}

#[inline(never)]
fn executor_turn_ends(thread: &Arc<Thread>, is_aside: bool) {
    refresh(thread);
    let ending = thread.look_at_entity(|entity| entity.ending());
    let end = match ending {
        // It gives way in the kernel, or was woken by now.
        SliceEnd::Blocked if !is_aside && thread.task().is_some_and(TaskRef::is_notified) => End::Keeps,
        SliceEnd::Blocked => End::Waits,
        SliceEnd::Yielded => End::Yields,
        SliceEnd::Preempted => End::Keeps,
    };
    let waits = end == End::Waits;
    thread.executor().is_in.store(false, Ordering::Relaxed);
    if waits && !thread.executor().is_blocked.swap(true, Ordering::Relaxed) {
        thread.process.executors().regular_changes(thread);
        let is_last = thread.process.executors().runnable.blocks();
        if let Some(executor) = thread.executor().get().filter(|_| is_last) {
            wake_spare(thread, &executor);
        }
    }
    if let Some(membership) = thread.executor().get().as_ref().and_then(|each| each.membership.as_ref()) {
        membership.ends(end);
        if waits {
            // When it is woken it looks for its place at once.
            thread.with_entity(|_| {});
        }
    }
}
