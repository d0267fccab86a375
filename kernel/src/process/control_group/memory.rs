//! Groups that have more memory than they may, `memory.max`.
//!
//! A process is charged for its pages when they come ([`crate::memory::charge`]). A group with too much cannot give
//! anything back, so a process of it ends, chosen as where the machine has run out of memory; or all of them, where
//! `memory.oom.group` says so.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use heddle_kernel_core::oom::ADJUSTMENT_MIN;
use heddle_kernel_core::signal::{Information, Signal};

use crate::memory::charge::{MemoryEvent, excess};
use crate::process::control_group::ControlGroup;
use crate::process::{Process, oom, table};
use crate::sched::Budget;
use crate::signal::send_to_process;

/// The cost of a look at a process, in units of a [`Budget`].
const LOOK_COST: u32 = 8;

/// Has the space of a process count for the group that it is in now. A space that `is_new` brings nothing along.
pub fn follow(process: &Process, is_new: bool) {
    let Some(space) = process.main_thread().and_then(|thread| thread.try_space()) else { return };
    let mut group = process.control_group();
    if is_new {
        space.set_owner(process.pid);
    } else if !space.is_owned_by(process.pid) {
        // A child that has borrowed the space leaves it where it is.
        return;
    }
    loop {
        space.enter_group(group.as_ref().map(|group| &group.memory), is_new);
        // Somebody may have moved it meanwhile, whose look at the space came before: the last looks again.
        let now = process.control_group();
        if now.as_ref().map(|group| group.number) == group.as_ref().map(|group| group.number) {
            return;
        }
        group = now;
    }
}

/// Ends processes of groups that have too much.
pub async fn enforce() {
    let mut budget = Budget::new();
    loop {
        excess().await;
        let (mut next, mut last) = (0, 0);
        while let Some(process) = table::next_process(next) {
            next = process.pid.saturating_add(1);
            budget.step(LOOK_COST).await;
            let Some(group) = process.control_group() else { continue };
            // The outermost: what ends there is enough for those in it, or they are found next time.
            let over = group.upwards().filter(|group| group.memory.is_over()).last();
            if let Some(over) = over.filter(|over| over.number != last) {
                last = over.number;
                make_room(over, &mut budget).await;
            }
        }
    }
}

/// Ends a process of a group, unless one is ending already.
async fn make_room(group: &ControlGroup, budget: &mut Budget) {
    group.memory.count(MemoryEvent::Max);
    let (mut next, mut chosen) = (0, None);
    while let Some(process) = table::next_process(next) {
        next = process.pid.saturating_add(1);
        budget.step(LOOK_COST).await;
        if !process.is_in_group(group) {
            continue;
        }
        // Of one that has ended, waited for or not, there is nothing to be had.
        if oom::resident_pages(&process) == 0 {
            continue;
        }
        if oom::is_dying(&process) {
            tell(group);
            return;
        }
        if process.oom_adjustment() == ADJUSTMENT_MIN {
            continue;
        }
        let points = oom::points(&process);
        if points > chosen.as_ref().and_then(|(points, _)| *points) {
            chosen = Some((points, process));
        }
    }
    group.memory.count(MemoryEvent::OutOfMemory);
    if let Some((_, victim)) = chosen {
        let own = victim.control_group();
        let within = own.as_deref().into_iter().flat_map(ControlGroup::upwards);
        let domain = within
            .take_while(|each| each.is_within(group))
            .filter(|each| each.memory.ends_as_whole.load(Ordering::Relaxed))
            .last();
        match domain {
            Some(domain) => {
                domain.memory.count(MemoryEvent::GroupKill);
                end_all(domain, budget).await;
                tell(domain);
            }
            None => end(&victim),
        }
    }
    tell(group);
}

async fn end_all(group: &ControlGroup, budget: &mut Budget) {
    let mut next = 0;
    while let Some(process) = table::next_process(next) {
        next = process.pid.saturating_add(1);
        budget.step(LOOK_COST).await;
        if process.is_in_group(group)
            && oom::resident_pages(&process) > 0
            && !oom::is_dying(&process)
            && process.oom_adjustment() != ADJUSTMENT_MIN
        {
            end(&process);
        }
    }
}

fn end(process: &Arc<Process>) {
    let pages = oom::resident_pages(process);
    ::log::warn!("a group has too much memory: process {} ends, with {pages} pages", process.pid);
    if let Some(group) = process.control_group() {
        group.memory.count(MemoryEvent::Kill);
        tell(&group);
    }
    if let Some(space) = process.main_thread().and_then(|thread| thread.try_space()) {
        space.doom();
    }
    // SIGKILL always finds room.
    let _ = send_to_process(process, Information::kernel(Signal::KILL));
}

/// Tells those who watch the events of a group, or of those above.
fn tell(group: &ControlGroup) {
    let [all, own] = &group.memory_events;
    group.tell(own);
    group.tell(all);
    for above in group.upwards().skip(1) {
        above.tell(&above.memory_events[0]);
    }
}
