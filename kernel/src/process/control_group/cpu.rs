//! Parts of groups in the processors: `cpu.weight`.
//!
//! The scheduler knows threads and their weights. So a coroutine looks every [`ROUND_NS`], while a process is in a
//! group with the controller, who has used time, and gives each such thread its part of what its group has beside the
//! other groups. That costs the threads' own turns nothing. A part is right on average, not in each round: a thread
//! that begins to compute has its nice value's weight until the next look. Limits on time are in
//! [`bandwidth`](super::bandwidth).

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::task::{Poll, Waker};

use alloc::sync::Arc;

use heddle_kernel_core::cgroup::Controllers;
use heddle_kernel_core::cgroup::cpu::WEIGHT_DEFAULT;
use heddle_kernel_core::fairness::Weight;

use crate::arch::time::now_ns;
use crate::process::control_group::ControlGroup;
use crate::process::{Process, RunState, Thread, table};
use crate::sched::{Budget, Policy};
use crate::sync::SpinLock;
use crate::time::sleep_until;

/// How often the groups are looked at.
const ROUND_NS: u64 = 10_000_000;
/// The cost of a look at a thread, in units of a [`Budget`].
const LOOK_COST: u32 = 4;
/// Parts of a part are numbers with so many bits behind the point.
const FRACTION_BITS: u32 = 16;

/// A group's part, and what a round finds of it.
pub struct GroupCpu {
    /// `cpu.weight`.
    pub weight: AtomicU32,
    /// The round in which these were last set anew.
    round: AtomicU64,
    /// The weights of the threads and groups in it that want to compute.
    inner: AtomicU64,
}

impl GroupCpu {
    /// The part of a new group.
    #[must_use]
    pub fn new() -> Self {
        Self { weight: AtomicU32::new(WEIGHT_DEFAULT), round: AtomicU64::new(0), inner: AtomicU64::new(0) }
    }

    /// As it was in the beginning, since the controller is gone.
    pub fn reset(&self) {
        self.weight.store(WEIGHT_DEFAULT, Ordering::Relaxed);
        begin();
    }

    /// Its weight in the scheduler's units.
    fn units(&self) -> u64 {
        u64::from(self.weight.load(Ordering::Relaxed)) * Weight::UNIT / u64::from(WEIGHT_DEFAULT)
    }

    /// Begins a round, if it has not begun here yet; whether it had not.
    fn begins(&self, round: u64) -> bool {
        if self.round.swap(round, Ordering::Relaxed) == round {
            return false;
        }
        self.inner.store(0, Ordering::Relaxed);
        true
    }
}

impl ControlGroup {
    /// The innermost group with the controller that it is, or is in.
    fn with_cpu(&self) -> Option<&Self> {
        self.upwards().find(|group| group.controllers().contains(Controllers::CPU))
    }
}

/// There may be something to look at.
static IS_ON: AtomicBool = AtomicBool::new(false);
static LOOKER: SpinLock<Option<Waker>> = SpinLock::new(None);

/// A group has got the controller, or a process one that has it.
pub fn begin() {
    if IS_ON.swap(true, Ordering::AcqRel) {
        return;
    }
    if let Some(waker) = &*LOOKER.lock() {
        waker.wake_by_ref();
    }
}

/// A process has come into a group.
pub fn entered(group: &ControlGroup) {
    if !IS_ON.load(Ordering::Acquire) && group.with_cpu().is_some() {
        begin();
    }
}

async fn wait_until_on() {
    core::future::poll_fn(|context| {
        let before = LOOKER.lock().replace(context.waker().clone());
        drop(before);
        if IS_ON.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Keeps the parts of groups, for ever.
pub async fn keep() {
    let (mut round, mut pause_ns) = (0, ROUND_NS);
    loop {
        wait_until_on().await;
        sleep_until(now_ns() + pause_ns).await;
        let start_ns = now_ns();
        round += 1;
        // Whoever comes from here on is seen by the next round.
        IS_ON.store(false, Ordering::Release);
        let is_needed = look(round).await;
        share_out(round).await;
        // Many processes make the looks rarer: a tenth of the time at most.
        pause_ns = ROUND_NS.max((now_ns() - start_ns).saturating_mul(9));
        if is_needed {
            IS_ON.store(true, Ordering::Release);
        }
    }
}

fn each_process() -> impl Iterator<Item = Arc<Process>> {
    let mut next = 0;
    core::iter::from_fn(move || {
        let process = table::next_process(next)?;
        next = process.pid.saturating_add(1);
        Some(process)
    })
}

/// Whether a thread has used time since the last look, or wants to.
fn is_active(thread: &Thread) -> bool {
    let (user, system) = thread.cpu_times();
    let now = user + system;
    let before = thread.look_at_entity(|entity| core::mem::replace(&mut entity.looked_ns, now));
    now > before || thread.run_state() == RunState::Running
}

fn own_units(thread: &Thread) -> u64 {
    let parameters = thread.scheduling();
    if parameters.policy.is_realtime() { 0 } else { parameters.weight().units() }
}

/// Looks who has used time. Whether a process is in a group with the controller.
async fn look(round: u64) -> bool {
    let (mut budget, mut is_needed) = (Budget::new(), false);
    for process in each_process() {
        budget.step(1).await;
        let group = process.control_group();
        let Some(inner) = group.as_deref().and_then(ControlGroup::with_cpu) else { continue };
        is_needed = true;
        let mut next = 0;
        while let Some(thread) = process.next_thread(next) {
            next = thread.tid().saturating_add(1);
            budget.step(LOOK_COST).await;
            if !is_active(&thread) {
                continue;
            }
            let mut units = own_units(&thread);
            for above in inner.upwards() {
                let is_first = above.cpu.begins(round);
                above.cpu.inner.fetch_add(units, Ordering::Relaxed);
                units = if is_first { above.cpu.units() } else { 0 };
            }
        }
    }
    is_needed
}

/// The weight of a thread with so many units in a group with the controller.
fn part(inner: &ControlGroup, round: u64, units: u64) -> Weight {
    // The part of the outermost group, and of that the parts further in.
    let (mut part, mut own) = (1 << FRACTION_BITS, units);
    let mut outermost = 0;
    for group in inner.upwards() {
        let all = group.cpu.inner.load(Ordering::Relaxed);
        if group.cpu.round.load(Ordering::Relaxed) == round && all > 0 {
            part = part * own / all.max(own);
        }
        own = group.cpu.units();
        outermost = own;
    }
    Weight::of_units((outermost * part) >> FRACTION_BITS)
}

/// Gives threads their parts.
async fn share_out(round: u64) {
    let mut budget = Budget::new();
    for process in each_process() {
        budget.step(1).await;
        let group = process.control_group();
        let inner = group.as_deref().and_then(ControlGroup::with_cpu);
        // Only whoever has had a part has to be told that there is none any more.
        if !process.notes_parts(inner.is_some()) && inner.is_none() {
            continue;
        }
        let mut next = 0;
        while let Some(thread) = process.next_thread(next) {
            next = thread.tid().saturating_add(1);
            budget.step(LOOK_COST).await;
            let weight = match inner {
                Some(inner) if thread.scheduling().policy != Policy::Idle => {
                    Some(part(inner, round, own_units(&thread).max(1)))
                }
                _ => None,
            };
            thread.look_at_entity(|entity| {
                if weight.is_some() || entity.has_group_weight() {
                    entity.set_group_weight(weight);
                }
            });
        }
    }
}
