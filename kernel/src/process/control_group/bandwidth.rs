//! Limits on the processor time of groups: `cpu.max`.
//!
//! A group has a quota of time in each period. A coroutine adds up, every [`LOOK_NS`] while a group has a limit, the
//! time that the processes of such groups have used, those that have ended included. A group that has used its quota is
//! *throttled*: its threads have [`PendingWork::THROTTLED`] and do not go back to their programs until a period begins
//! in which there is something left. Calls that are under way go on and are not interrupted, as in Linux since it
//! throttles at the same place. Time that was used beyond the quota is taken from the periods that follow, so the
//! distance of looks changes when a group stands still and not how much it gets. Turns and switches look at nothing for
//! this; a new thread of a group looks whether that stands still.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::task::{Poll, Waker};

use heddle_kernel_core::cgroup::cpu::{Bandwidth, Period};
use heddle_kernel_core::fallible::push_reserved;

use crate::arch;
use crate::arch::time::now_ns;
use crate::error::Errno;
use crate::process::control_group::{ControlGroup, freeze};
use crate::process::{Process, Thread, table};
use crate::sched::Budget;
use crate::signal::PendingWork;
use crate::sync::SpinLock;
use crate::time::sleep_until;

/// How often the groups are looked at: Linux's slice of a quota.
const LOOK_NS: u64 = 5_000_000;
/// The cost of changing a thread's bits, in units of a [`Budget`].
const FOLLOW_COST: u32 = 4;
/// The most groups with a limit.
const LIMITED_MAX: usize = 4096;

/// The limit of a group.
pub struct GroupBandwidth {
    period: SpinLock<Period>,
    /// It has a quota, or had one at the last look.
    is_limited: AtomicBool,
    /// Its threads stand still.
    is_throttled: AtomicBool,
    /// The time that the processes in it were found to have used, while a look adds that up.
    sum_ns: AtomicU64,
}

impl GroupBandwidth {
    /// No limit.
    pub const fn new() -> Self {
        Self {
            period: SpinLock::new(Period::UNLIMITED),
            is_limited: AtomicBool::new(false),
            is_throttled: AtomicBool::new(false),
            sum_ns: AtomicU64::new(0),
        }
    }

    /// Its limit.
    pub fn limit(&self) -> Bandwidth {
        self.period.lock().limit
    }

    /// `nr_periods`, `nr_throttled` and `throttled_usec` of `cpu.stat`.
    pub fn counts(&self) -> [u64; 3] {
        let period = self.period.lock();
        [period.periods, period.throttled_periods, period.throttled_ns / 1000]
    }

    /// It has no limit any more, since the controller is gone.
    pub(super) fn reset(&self) {
        self.period.lock().change(Bandwidth::NONE, now_ns());
    }
}

/// The groups that have a limit, or had one at the last look.
static LIMITED: SpinLock<Vec<Arc<ControlGroup>>> = SpinLock::new(Vec::new());
static LOOKER: SpinLock<Option<Waker>> = SpinLock::new(None);

/// Gives a group another limit.
///
/// # Errors
/// `ENOSPC` (too many groups have one), `ENOMEM`.
pub fn set(group: &Arc<ControlGroup>, limit: Bandwidth) -> Result<(), Errno> {
    let own = &group.bandwidth;
    let mut limited = LIMITED.lock();
    if limit.quota_us.is_some() && !own.is_limited.load(Ordering::Relaxed) {
        if limited.len() >= LIMITED_MAX {
            return Err(Errno::ENOSPC);
        }
        limited.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        push_reserved(&mut limited, group.clone());
        own.period.lock().forget();
        own.is_limited.store(true, Ordering::Relaxed);
    }
    own.period.lock().change(limit, now_ns());
    drop(limited);
    if let Some(waker) = &*LOOKER.lock() {
        waker.wake_by_ref();
    }
    Ok(())
}

impl ControlGroup {
    /// The time of the processes that have left it.
    fn used_ns(&self) -> u64 {
        let (user, system) = self.used();
        user + system
    }

    /// Whether its threads are to stand still, by its limit or one above.
    pub(super) fn must_rest(&self) -> bool {
        self.upwards().any(|group| group.bandwidth.is_throttled.load(Ordering::Acquire))
    }

    fn has_limit(&self) -> bool {
        self.upwards().any(|group| group.bandwidth.is_limited.load(Ordering::Relaxed))
    }
}

async fn wait_until_limited() {
    core::future::poll_fn(|context| {
        let before = LOOKER.lock().replace(context.waker().clone());
        drop(before);
        if LIMITED.lock().is_empty() { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
}

/// The members of groups with a limit.
fn each_limited() -> impl Iterator<Item = Option<(Arc<Process>, Arc<ControlGroup>)>> {
    let mut next = 0;
    core::iter::from_fn(move || {
        let process = table::next_process(next)?;
        next = process.pid.saturating_add(1);
        let group = process.control_group().filter(|group| group.has_limit());
        Some(group.map(|group| (process, group)))
    })
}

/// The groups with a limit, one at a time: others may come meanwhile.
fn each_group() -> impl Iterator<Item = Arc<ControlGroup>> {
    let mut index = 0;
    core::iter::from_fn(move || {
        let group = LIMITED.lock().get(index).cloned();
        index += 1;
        group
    })
}

/// Keeps the limits of groups, for ever.
pub async fn keep() {
    loop {
        wait_until_limited().await;
        let start_ns = now_ns();
        look().await;
        forget().await;
        // Many processes make the looks rarer: a tenth of the time at most.
        let now = now_ns();
        sleep_until(now + LOOK_NS.max((now - start_ns).saturating_mul(9))).await;
    }
}

/// Looks what the groups have used, and lets them stand still or go on.
async fn look() {
    let mut budget = Budget::new();
    for group in each_group() {
        budget.step(1).await;
        group.bandwidth.sum_ns.store(0, Ordering::Relaxed);
    }
    for found in each_limited() {
        budget.step(1).await;
        let Some((process, group)) = found else { continue };
        let (user, system) = process.times_in_group();
        for above in group.upwards().filter(|above| above.bandwidth.is_limited.load(Ordering::Relaxed)) {
            above.bandwidth.sum_ns.fetch_add(user + system, Ordering::Relaxed);
        }
    }
    let mut has_changed = false;
    for group in each_group() {
        budget.step(1).await;
        let own = &group.bandwidth;
        let used_ns = group.used_ns() + own.sum_ns.load(Ordering::Relaxed);
        let is_throttled = own.period.lock().look(used_ns, now_ns(), arch::cpu::count() as u64);
        has_changed |= own.is_throttled.swap(is_throttled, Ordering::AcqRel) != is_throttled;
    }
    if !has_changed {
        return;
    }
    for found in each_limited() {
        budget.step(1).await;
        let Some((process, _)) = found else { continue };
        for thread in process.threads() {
            budget.step(FOLLOW_COST).await;
            freeze::follow_one(&process, &thread);
        }
    }
}

/// Takes groups off the list that have no limit any more, and let their threads go on, or are gone.
async fn forget() {
    let (mut index, mut budget) = (0, Budget::new());
    loop {
        budget.step(1).await;
        let mut limited = LIMITED.lock();
        let Some(group) = limited.get(index) else { return };
        let own = &group.bandwidth;
        let is_over = own.limit().quota_us.is_none() || group.is_removed();
        // Its threads go on first.
        if !is_over || own.is_throttled.load(Ordering::Relaxed) && !group.is_removed() {
            index += 1;
            continue;
        }
        own.is_limited.store(false, Ordering::Relaxed);
        let gone = limited.swap_remove(index);
        drop(limited);
        drop(gone);
    }
}

/// Waits until the thread may go on, or has something else to do.
pub async fn wait(thread: &Thread) {
    const OTHER: PendingWork = PendingWork::DIE
        .union(PendingWork::TRAP)
        .union(PendingWork::BARRIER)
        .union(PendingWork::STOP)
        .union(PendingWork::FROZEN);
    core::future::poll_fn(|_| {
        let work = thread.work();
        let may_go_on = !work.contains(PendingWork::THROTTLED) || work.intersects(OTHER);
        if may_go_on { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
