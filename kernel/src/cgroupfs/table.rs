//! The files of a group: what each shows, and what it does with what is written.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use heddle_kernel_core::cgroup::{Controllers, GroupLimit, RequestError};
use heddle_kernel_core::signal::{Information, Signal};

use crate::arch;
use crate::cgroupfs::file::{Showing, WriteProgress, Writing};
use crate::cgroupfs::{check_move, cpu, memory};
use crate::error::Errno;
use crate::process::control_group::{self, ControlGroup, EventFile, freeze, move_process};
use crate::process::{Process, table};
use crate::sched::usage;
use crate::signal::send_to_process;

/// Writes a part of what a file shows; returns where the next part begins.
type Show = fn(&mut Showing<'_>) -> Result<Option<u64>, Errno>;
/// Takes what a program writes.
type Store = fn(Writing<'_>) -> Result<WriteProgress, Errno>;
/// The event file of a group that a file is.
type Event = fn(&ControlGroup) -> &EventFile;

/// A file.
pub(super) struct GroupFile {
    pub name: &'static [u8],
    pub permissions: u32,
    pub is_on_root: bool,
    /// The controller that it belongs to, if any.
    pub controller: Controllers,
    pub show: Option<Show>,
    pub store: Option<Store>,
    pub event: Option<Event>,
}

impl GroupFile {
    const fn new(name: &'static [u8], show: Option<Show>, store: Option<Store>) -> Self {
        let readable = if show.is_some() { 0o444 } else { 0 };
        let permissions = readable | if store.is_some() { 0o200 } else { 0 };
        let controller = Controllers::empty();
        Self { name, permissions, is_on_root: false, controller, show, store, event: None }
    }

    const fn on_root(self) -> Self {
        Self { is_on_root: true, ..self }
    }

    const fn of_pids(self) -> Self {
        Self { controller: Controllers::PIDS, ..self }
    }

    const fn of_cpu(self) -> Self {
        Self { controller: Controllers::CPU, ..self }
    }

    const fn of_memory(self) -> Self {
        Self { controller: Controllers::MEMORY, ..self }
    }

    const fn with_events(self, event: Event) -> Self {
        Self { event: Some(event), ..self }
    }
}

/// Processes that one part of a list, or one step of a write, looks at.
const STEP: usize = 64;
/// Every number of a process, and so every number of them, is below this: Linux's `PID_MAX_LIMIT`.
const THREADS_MAX: u64 = 1 << 22;

pub(super) static FILES: &[GroupFile] = &[
    GroupFile::new(b"cgroup.controllers", Some(show_controllers), None).on_root(),
    GroupFile::new(b"cgroup.events", Some(show_events), None).with_events(|group| &group.events),
    GroupFile::new(b"cgroup.freeze", Some(show_freeze), Some(store_freeze)),
    GroupFile::new(b"cgroup.kill", None, Some(store_kill)),
    GroupFile::new(b"cgroup.max.depth", Some(show_depth), Some(store_depth)).on_root(),
    GroupFile::new(b"cgroup.max.descendants", Some(show_most), Some(store_most)).on_root(),
    GroupFile::new(b"cgroup.procs", Some(show_processes), Some(store_processes)).on_root(),
    GroupFile::new(b"cgroup.stat", Some(show_numbers), None).on_root(),
    GroupFile::new(b"cgroup.subtree_control", Some(show_enabled), Some(store_enabled)).on_root(),
    GroupFile::new(b"cgroup.threads", Some(show_threads), Some(store_threads)).on_root(),
    GroupFile::new(b"cgroup.type", Some(show_kind), Some(store_kind)),
    GroupFile::new(b"cpu.max", Some(cpu::show_max), Some(cpu::store_max)).of_cpu(),
    GroupFile::new(b"cpu.stat", Some(show_usage), None).on_root(),
    GroupFile::new(b"cpu.weight", Some(cpu::show_weight), Some(cpu::store_weight)).of_cpu(),
    GroupFile::new(b"cpu.weight.nice", Some(cpu::show_nice), Some(cpu::store_nice)).of_cpu(),
    GroupFile::new(b"memory.current", Some(memory::show_current), None).of_memory(),
    GroupFile::new(b"memory.events", Some(memory::show_events), None)
        .of_memory()
        .with_events(|group| &group.memory_events[0]),
    GroupFile::new(b"memory.events.local", Some(memory::show_own_events), None)
        .of_memory()
        .with_events(|group| &group.memory_events[1]),
    GroupFile::new(b"memory.max", Some(memory::show_max), Some(memory::store_max)).of_memory(),
    GroupFile::new(b"memory.oom.group", Some(memory::show_whole), Some(memory::store_whole)).of_memory(),
    GroupFile::new(b"memory.peak", Some(memory::show_peak), None).of_memory(),
    GroupFile::new(b"memory.stat", Some(memory::show_stat), None).of_memory(),
    GroupFile::new(b"memory.swap.current", Some(memory::show_swap), None).of_memory(),
    GroupFile::new(b"memory.swap.max", Some(memory::show_swap_max), Some(memory::store_swap_max)).of_memory(),
    GroupFile::new(b"pids.current", Some(show_tasks), None).of_pids(),
    GroupFile::new(b"pids.events", Some(show_refusals), None)
        .of_pids()
        .with_events(|group| &group.thread_events),
    GroupFile::new(b"pids.max", Some(show_tasks_max), Some(store_tasks_max)).of_pids(),
];

fn show_names(showing: &mut Showing<'_>, controllers: Controllers) -> Result<Option<u64>, Errno> {
    for (place, name) in controllers.names().enumerate() {
        let space = if place > 0 { " " } else { "" };
        showing.text.line(format_args!("{space}{name}"))?;
    }
    if !controllers.is_empty() {
        showing.text.bytes(b"\n")?;
    }
    Ok(None)
}

fn show_controllers(showing: &mut Showing<'_>) -> Result<Option<u64>, Errno> {
    let controllers = showing.group.controllers();
    show_names(showing, controllers)
}

fn show_enabled(showing: &mut Showing<'_>) -> Result<Option<u64>, Errno> {
    let enabled = showing.group.enabled();
    show_names(showing, enabled)
}

fn store_enabled(writing: Writing<'_>) -> Result<WriteProgress, Errno> {
    let available = writing.group.controllers();
    writing.group.change_enabled(|enabled| {
        enabled.changed(writing.text, available).map_err(|error| match error {
            RequestError::Invalid => Errno::EINVAL,
            RequestError::Absent => Errno::ENOENT,
        })
    })?;
    Ok(WriteProgress::Done)
}

fn show_events(showing: &mut Showing<'_>) -> Result<Option<u64>, Errno> {
    let (populated, frozen) = (showing.group.is_populated(), showing.group.is_frozen());
    showing.text.line(format_args!("populated {}\nfrozen {}\n", u8::from(populated), u8::from(frozen)))?;
    Ok(None)
}

fn show_kind(showing: &mut Showing<'_>) -> Result<Option<u64>, Errno> {
    showing.text.line(format_args!("{}\n", showing.group.kind()))?;
    Ok(None)
}

/// Threads of one process are not in several groups here.
fn store_kind(writing: Writing<'_>) -> Result<WriteProgress, Errno> {
    Err(if writing.text == "threaded" { Errno::EOPNOTSUPP } else { Errno::EINVAL })
}

fn show_numbers(showing: &mut Showing<'_>) -> Result<Option<u64>, Errno> {
    let (below, dying) = showing.group.descendants();
    showing.text.line(format_args!("nr_descendants {below}\nnr_dying_descendants {dying}\n"))?;
    Ok(None)
}

fn show_depth(showing: &mut Showing<'_>) -> Result<Option<u64>, Errno> {
    let limit = showing.group.with_limits(|depth, _| GroupLimit(*depth));
    showing.text.line(format_args!("{limit}\n"))?;
    Ok(None)
}

fn show_most(showing: &mut Showing<'_>) -> Result<Option<u64>, Errno> {
    let limit = showing.group.with_limits(|_, most| GroupLimit(*most));
    showing.text.line(format_args!("{limit}\n"))?;
    Ok(None)
}

/// A limit on levels or groups, which are `int`s in Linux.
fn small_limit(text: &str) -> Result<u64, Errno> {
    if text == "max" {
        return Ok(u64::MAX);
    }
    let number: i32 = text.parse().map_err(|_| Errno::EINVAL)?;
    u64::try_from(number).map_err(|_| Errno::ERANGE)
}

fn store_depth(writing: Writing<'_>) -> Result<WriteProgress, Errno> {
    let limit = small_limit(writing.text)?;
    writing.group.with_limits(|depth, _| *depth = limit);
    Ok(WriteProgress::Done)
}

fn store_most(writing: Writing<'_>) -> Result<WriteProgress, Errno> {
    let limit = small_limit(writing.text)?;
    writing.group.with_limits(|_, most| *most = limit);
    Ok(WriteProgress::Done)
}

/// The processes from `from` on that one step looks at, and where the next step begins.
fn step_from(from: i32) -> (impl Iterator<Item = Arc<Process>>, impl Fn(i32) -> Option<i32>) {
    let mut next = from;
    let processes = core::iter::from_fn(move || {
        let process = table::next_process(next)?;
        next = process.pid.saturating_add(1);
        Some(process)
    });
    let after = |last: i32| table::next_process(last.saturating_add(1)).map(|process| process.pid);
    (processes.take(STEP), after)
}

fn has_ended(process: &Process) -> bool {
    process.exit_status().is_some()
}

/// The number of a process or thread as the viewer knows it; 0 if they don't.
fn shown(viewer: Option<&Process>, number: i32) -> i32 {
    viewer.map_or(number, |viewer| viewer.shown(number))
}

fn show_processes(showing: &mut Showing<'_>) -> Result<Option<u64>, Errno> {
    let (processes, after) = step_from(showing.from as i32);
    let mut last = None;
    for process in processes {
        last = Some(process.pid);
        if process.is_member_of(showing.group) && !has_ended(&process) {
            showing.text.line(format_args!("{}\n", shown(showing.viewer, process.pid)))?;
        }
    }
    Ok(last.and_then(after).map(|next| next as u64))
}

/// As [`show_processes`], with the number of a process above that of a thread in the positions.
fn show_threads(showing: &mut Showing<'_>) -> Result<Option<u64>, Errno> {
    let (pid, tid) = ((showing.from >> 32) as i32, showing.from as u32 as i32);
    let (processes, after) = step_from(pid);
    let (mut last, mut left) = (None, STEP);
    for process in processes {
        last = Some(process.pid);
        if !process.is_member_of(showing.group) {
            continue;
        }
        let mut from = if process.pid == pid { tid } else { 0 };
        while let Some(thread) = process.next_thread(from) {
            if left == 0 {
                return Ok(Some((process.pid as u64) << 32 | from as u64));
            }
            from = thread.tid().saturating_add(1);
            left -= 1;
            showing.text.line(format_args!("{}\n", shown(showing.viewer, thread.tid())))?;
        }
    }
    Ok(last.and_then(after).map(|next| (next as u64) << 32))
}

/// The process that a write names by its number, or by that of one of its threads; 0 is the writer.
fn named(writing: &Writing<'_>) -> Result<Arc<Process>, Errno> {
    let number: i32 = writing.text.parse().map_err(|_| Errno::EINVAL)?;
    match number {
        0 => Ok(writing.writer.clone()),
        1.. => {
            let thread = table::thread(writing.writer.named(number)).ok_or(Errno::ESRCH)?;
            Ok(thread.process.clone())
        }
        _ => Err(Errno::EINVAL),
    }
}

fn store_processes(writing: Writing<'_>) -> Result<WriteProgress, Errno> {
    let process = named(&writing)?;
    let from = ControlGroup::of(&process.control_group())?;
    check_move(&from, writing.group, writing.opener)?;
    move_process(control_group::lock(), &process, writing.group)?;
    Ok(WriteProgress::Done)
}

/// A thread moves alone only within a domain of threads, and each group is a domain.
fn store_threads(writing: Writing<'_>) -> Result<WriteProgress, Errno> {
    let process = named(&writing)?;
    let from = ControlGroup::of(&process.control_group())?;
    check_move(&from, writing.group, writing.opener)?;
    if from.number == writing.group.number { Ok(WriteProgress::Done) } else { Err(Errno::EOPNOTSUPP) }
}

fn show_freeze(showing: &mut Showing<'_>) -> Result<Option<u64>, Errno> {
    showing.text.line(format_args!("{}\n", u8::from(showing.group.is_freezing())))?;
    Ok(None)
}

/// Calls `act` for each process in a group and below, some at a time, until a whole round finds none for which it
/// returns true: processes that start meanwhile may have smaller numbers.
fn walk(writing: Writing<'_>, act: impl Fn(&Arc<Process>) -> bool) -> WriteProgress {
    let walk = &mut *writing.walk;
    let (processes, after) = step_from(walk.next);
    let mut last = None;
    for process in processes {
        last = Some(process.pid);
        if process.is_in_group(writing.group) && !has_ended(&process) {
            walk.has_found |= act(&process);
        }
    }
    match last.and_then(after) {
        Some(next) => walk.next = next,
        None if walk.has_found => (walk.next, walk.has_found) = (0, false),
        None => return WriteProgress::Done,
    }
    WriteProgress::More
}

fn store_freeze(writing: Writing<'_>) -> Result<WriteProgress, Errno> {
    let number: i32 = writing.text.parse().map_err(|_| Errno::EINVAL)?;
    if !matches!(number, 0 | 1) {
        return Err(Errno::ERANGE);
    }
    let group = writing.group.clone();
    // Once: of two that write different numbers at the same time the later one has its way.
    if !core::mem::replace(&mut writing.walk.has_begun, true) {
        group.set_freezing(number == 1);
    }
    let progress = walk(writing, freeze::follow);
    if progress == WriteProgress::Done {
        freeze::look_at(&group);
    }
    Ok(progress)
}

fn store_kill(writing: Writing<'_>) -> Result<WriteProgress, Errno> {
    let number: i32 = writing.text.parse().map_err(|_| Errno::EINVAL)?;
    if number != 1 {
        return Err(Errno::ERANGE);
    }
    Ok(walk(writing, |process| {
        if process.signal_state().ending().is_some() {
            return false;
        }
        // Only a queued realtime signal can be refused.
        let _ = send_to_process(process, Information::kernel(Signal::KILL));
        true
    }))
}

fn show_tasks(showing: &mut Showing<'_>) -> Result<Option<u64>, Errno> {
    showing.text.line(format_args!("{}\n", showing.group.tasks()))?;
    Ok(None)
}

fn show_refusals(showing: &mut Showing<'_>) -> Result<Option<u64>, Errno> {
    let refusals = showing.group.threads.refusals.load(Ordering::Relaxed);
    showing.text.line(format_args!("max {refusals}\n"))?;
    Ok(None)
}

fn show_tasks_max(showing: &mut Showing<'_>) -> Result<Option<u64>, Errno> {
    let limit = GroupLimit(showing.group.threads.max.load(Ordering::Relaxed));
    showing.text.line(format_args!("{limit}\n"))?;
    Ok(None)
}

fn store_tasks_max(writing: Writing<'_>) -> Result<WriteProgress, Errno> {
    let limit = GroupLimit::parse(writing.text).ok_or(Errno::EINVAL)?;
    if limit != GroupLimit::MAX && limit.0 > THREADS_MAX {
        return Err(Errno::EINVAL);
    }
    writing.group.threads.max.store(limit.0, Ordering::Relaxed);
    Ok(WriteProgress::Done)
}

/// Processor time of the group and those below: what has left it, and what is in it. The root's is that of all CPUs.
fn show_usage(showing: &mut Showing<'_>) -> Result<Option<u64>, Errno> {
    let [mut user, mut system] = showing.sums;
    if showing.group.is_root() {
        for each in (0..arch::cpu::count()).map(usage::of_cpu) {
            (user, system) = (user + each.user_ns, system + each.system_ns);
        }
        return write_usage(showing, user, system);
    }
    let (processes, after) = step_from(showing.from as i32);
    let mut last = None;
    for process in processes {
        last = Some(process.pid);
        if process.is_in_group(showing.group) {
            let times = process.times_in_group();
            (user, system) = (user + times.0, system + times.1);
        }
    }
    showing.sums = [user, system];
    if let Some(next) = last.and_then(after) {
        return Ok(Some(next as u64));
    }
    let left = showing.group.used();
    write_usage(showing, user + left.0, system + left.1)
}

fn write_usage(showing: &mut Showing<'_>, user: u64, system: u64) -> Result<Option<u64>, Errno> {
    let (user, system) = (user / 1000, system / 1000);
    let usage = user + system;
    showing.text.line(format_args!("usage_usec {usage}\nuser_usec {user}\nsystem_usec {system}\n"))?;
    if !showing.group.is_root() && showing.group.controllers().contains(Controllers::CPU) {
        cpu::show_throttling(showing)?;
    }
    Ok(None)
}
