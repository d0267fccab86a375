//! The group that a process is in, and how its threads count there.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use heddle_kernel_core::cgroup::Controllers;

use crate::error::Errno;
use crate::process::control_group::{ControlGroup, Groups, Hierarchy, cpu, freeze, memory};
use crate::process::{Process, table};
use crate::sync::SpinLock;

/// The group of a process, none before it has entered one.
#[derive(Default)]
pub struct ControlPlace(SpinLock<PlaceState>);

#[derive(Default)]
struct PlaceState {
    group: Groups,
    /// Threads of the process, and it itself when they have ended.
    tasks: u64,
    /// Threads of the process.
    live: u64,
    /// The processor time that it had used when it came.
    times: (u64, u64),
    /// Its threads have parts in the processors by their group.
    has_parts: bool,
}

impl ControlGroup {
    /// Counts threads at each level, up to its limit.
    fn charge(&self, count: u64) -> Result<(), Errno> {
        for (levels, group) in self.upwards().enumerate() {
            let max = group.threads.max.load(Ordering::Relaxed);
            if group.counts.tasks.fetch_add(count, Ordering::Relaxed) + count <= max {
                continue;
            }
            for counted in self.upwards().take(levels + 1) {
                counted.counts.tasks.fetch_sub(count, Ordering::Relaxed);
            }
            if let Some(limited) = self.with_pids() {
                limited.threads.refusals.fetch_add(1, Ordering::Relaxed);
            }
            return Err(Errno::EAGAIN);
        }
        Ok(())
    }

    /// The innermost group that has files about the number of threads.
    fn with_pids(&self) -> Option<&Self> {
        self.upwards().find(|group| group.controllers().contains(Controllers::PIDS))
    }

    /// Counts threads at each level, whatever the limits.
    fn charge_anyway(&self, count: u64) {
        for group in self.upwards() {
            group.counts.tasks.fetch_add(count, Ordering::Relaxed);
        }
    }

    fn uncharge(&self, count: u64) {
        for group in self.upwards() {
            group.counts.tasks.fetch_sub(count, Ordering::Relaxed);
        }
    }

    /// So many more threads live in it. Returns at how many levels from here up they are the first.
    fn add_live(&self, count: u64) -> usize {
        self.counts.own_live.fetch_add(count, Ordering::Relaxed);
        let add = |group: &&Self| group.counts.live.fetch_add(count, Ordering::Relaxed) == 0;
        self.upwards().filter(add).count()
    }

    /// So many fewer threads live in it. Returns at how many levels from here up they were the last.
    fn remove_live(&self, count: u64) -> usize {
        self.counts.own_live.fetch_sub(count, Ordering::Relaxed);
        let remove = |group: &&Self| group.counts.live.fetch_sub(count, Ordering::Relaxed) == count;
        self.upwards().filter(remove).count()
    }

    /// Tells those who watch the events of so many levels from here up.
    fn tell_levels(&self, levels: usize) {
        self.upwards().take(levels).for_each(|group| group.tell(&group.events));
    }

    fn keep_times(&self, before: (u64, u64), now: (u64, u64)) {
        for group in self.upwards() {
            group.used[0].fetch_add(now.0.saturating_sub(before.0), Ordering::Relaxed);
            group.used[1].fetch_add(now.1.saturating_sub(before.1), Ordering::Relaxed);
        }
    }
}

/// A fork into this group was refused: tells those who watch how often.
pub fn tell_refused(group: &Groups) {
    if let Some(group) = group.as_ref().and_then(|group| group.with_pids()) {
        group.tell(&group.thread_events);
    }
}

/// A thread that came or went was the first, or the last, at so many levels: to be told once the table is unlocked.
#[must_use]
#[derive(Default)]
pub struct LevelChange(Option<(Arc<ControlGroup>, usize)>);

impl LevelChange {
    /// Tells those who watch.
    pub fn tell(self) {
        let Some((group, levels)) = self.0 else { return };
        group.tell_levels(levels);
        freeze::look_at(&group);
    }
}

impl Process {
    /// The group that it is in.
    #[must_use]
    pub fn control_group(&self) -> Groups {
        self.control.0.lock().group.clone()
    }

    /// Whether it is in this group or below.
    #[must_use]
    pub fn is_in_group(&self, group: &ControlGroup) -> bool {
        let state = self.control.0.lock();
        group.is_root() || state.group.as_ref().is_some_and(|own| own.is_within(group))
    }

    /// Whether it is in this very group.
    #[must_use]
    pub fn is_member_of(&self, group: &ControlGroup) -> bool {
        let state = self.control.0.lock();
        state.group.as_ref().map_or_else(|| group.is_root(), |own| own.number == group.number)
    }

    /// Processor time that it has used since it came into its group.
    #[must_use]
    pub fn times_in_group(&self) -> (u64, u64) {
        let now = self.cpu_times();
        let before = self.control.0.lock().times;
        (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1))
    }

    /// A new process comes into a group with its first thread. The table is locked.
    ///
    /// # Errors
    /// `EAGAIN`: the group, or one above it, has as many threads as it may.
    pub fn enter_control_group(&self, group: &Groups) -> Result<LevelChange, Errno> {
        let mut state = self.control.0.lock();
        let mut change = LevelChange::default();
        if let Some(group) = group {
            group.charge(1)?;
            change = LevelChange(Some((group.clone(), group.add_live(1))));
            cpu::entered(group);
        }
        *state = PlaceState { group: group.clone(), tasks: 1, live: 1, times: (0, 0), has_parts: false };
        Ok(change)
    }

    /// Notes whether its threads have parts in the processors by their group; whether they had, or have.
    pub fn notes_parts(&self, has_parts: bool) -> bool {
        core::mem::replace(&mut self.control.0.lock().has_parts, has_parts) || has_parts
    }

    /// One more thread. The table is locked.
    ///
    /// # Errors
    /// `EAGAIN`: the group, or one above it, has as many threads as it may.
    pub fn count_new_thread(&self) -> Result<(), Errno> {
        let mut state = self.control.0.lock();
        if let Some(group) = &state.group {
            group.charge(1)?;
            // It has a thread, so this is the first at no level.
            group.add_live(1);
        }
        state.tasks += 1;
        state.live += 1;
        Ok(())
    }

    /// A thread that was counted doesn't start: there are others.
    pub fn take_back_thread(&self) {
        let _ = self.count_ended_thread(false);
    }

    /// A thread has ended. With `is_kept` the process counts in its place until somebody has waited for it.
    pub fn count_ended_thread(&self, is_kept: bool) -> LevelChange {
        let mut state = self.control.0.lock();
        state.live = state.live.saturating_sub(1);
        let gone = u64::from(!is_kept);
        state.tasks = state.tasks.saturating_sub(gone);
        let Some(group) = &state.group else { return LevelChange::default() };
        group.uncharge(gone);
        LevelChange(Some((group.clone(), group.remove_live(1))))
    }

    /// Somebody has waited for the process, which counts no more.
    pub fn leave_control_group(&self) {
        let times = self.cpu_times();
        let mut state = self.control.0.lock();
        if let Some(group) = &state.group {
            group.uncharge(state.tasks);
            group.keep_times(state.times, times);
        }
        state.tasks = 0;
        state.times = times;
    }
}

impl Drop for ControlPlace {
    /// A process that never started.
    fn drop(&mut self) {
        let state = self.0.get_mut();
        if let Some(group) = state.group.take() {
            group.uncharge(state.tasks);
            if state.live > 0 {
                group.remove_live(state.live);
            }
        }
    }
}

/// Moves a process with all its threads into another group. Limits don't apply to that.
///
/// # Errors
/// `ENODEV`, `EBUSY`, `EOPNOTSUPP`: the group takes no processes.
pub fn move_process(
    hierarchy: Hierarchy,
    process: &Arc<Process>,
    to: &Arc<ControlGroup>,
) -> Result<(), Errno> {
    to.check_entry(&hierarchy)?;
    let target = to.as_groups();
    let times = process.cpu_times();
    // No thread starts meanwhile.
    let table = table::lock();
    let mut state = process.control.0.lock();
    let (tasks, live) = (state.tasks, state.live);
    let is_same = state.group.as_ref().map(|group| group.number) == target.as_ref().map(|group| group.number);
    if is_same || live == 0 {
        return Ok(());
    }
    let before = core::mem::replace(&mut state.group, target.clone());
    let entered_times = core::mem::replace(&mut state.times, times);
    let mut told = [const { None }; 2];
    if let Some(group) = before {
        group.uncharge(tasks);
        group.keep_times(entered_times, times);
        let levels = group.remove_live(live);
        told[0] = Some((group, levels));
    }
    if let Some(group) = target {
        group.charge_anyway(tasks);
        let levels = group.add_live(live);
        cpu::entered(&group);
        told[1] = Some((group, levels));
    }
    drop(state);
    drop(table);
    drop(hierarchy);
    memory::follow(process, false);
    freeze::follow(process);
    for (group, levels) in told.into_iter().flatten() {
        group.tell_levels(levels);
        freeze::look_at(&group);
    }
    Ok(())
}
