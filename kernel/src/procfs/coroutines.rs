//! `/proc/PID/heddle`: a program's executors and coroutines, and the kernel's coroutines that belong to it: its
//! threads, and asynchronous calls. `docs/SHARED-SCHEDULER.md` has the format.
//!
//! The program itself reports its coroutines: in an array of records in its memory, read as it is at that moment. The
//! kernel knows which of them is in a turn, and whether that turn holds a stack because its thread was preempted or is
//! blocked.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use heddle_abi::user_sched::calls::policy;
use heddle_abi::user_sched::{CoroutineInfo, state};

use crate::error::Errno;
use crate::memory::Space;
use crate::process::{Process, RunState, Thread};
use crate::procfs::{Subject, Text};
use crate::sched::TaskRef;

/// Entries that are looked at; the program says how many there are.
const ENTRIES_MAX: u32 = 1 << 20;
const WORDS: usize = size_of::<CoroutineInfo>() / size_of::<u64>();

/// The kind of line that a part begins with: the upper half of its position. The lower half is an index.
const CALLS: u64 = 1;
const COROUTINES: u64 = 2;
/// Most lines of a part, which is made in one go.
const LINES: usize = 100;

pub fn list(subject: &Subject, text: &mut Text, from: u64) -> Result<Option<u64>, Errno> {
    let process = subject.process()?;
    let index = from as u32 as usize;
    let next = match from >> 32 {
        0 => {
            show_threads(&process, text)?;
            Some((CALLS, 0))
        }
        CALLS => show_calls(&process, index, text)?.map(|next| (CALLS, next)).or(Some((COROUTINES, 0))),
        _ => show_coroutines(subject, index, text)?.map(|next| (COROUTINES, next)),
    };
    Ok(next.map(|(what, index)| what << 32 | index as u64))
}

fn show_threads(process: &Process, text: &mut Text) -> Result<(), Errno> {
    let policy = if process.executors().policy() == policy::STRICT { "strict" } else { "relaxed" };
    text.line(format_args!("policy {policy}\n"))?;
    for (executor, thread) in &process.executors().snapshot()? {
        let Some(record) = executor.record() else { continue };
        text.line(format_args!(
            "executor {} thread {} level {} ready {:016x} interrupts {}\n",
            executor.number,
            thread.tid(),
            thread.priority().level(),
            record.ready.load(Ordering::Relaxed),
            record.interrupts.load(Ordering::Relaxed),
        ))?;
    }
    let now_ns = crate::arch::time::now_ns();
    for thread in process.threads() {
        let (tid, switches) = (thread.tid(), thread.counts());
        text.line(format_args!(
            "coroutine {:x} kernel thread {tid} level {} {} polls {} since {}\n",
            thread.task().map_or(0, TaskRef::number),
            thread.priority().level(),
            state_of(&thread),
            switches.voluntary + switches.involuntary,
            now_ns.saturating_sub(thread.since_ns()),
        ))?;
    }
    Ok(())
}

/// Calls from an index on; where the rest begins.
fn show_calls(process: &Process, mut index: usize, text: &mut Text) -> Result<Option<usize>, Errno> {
    let now_ns = crate::arch::time::now_ns();
    for _ in 0..LINES {
        let Some((found, request)) = process.asynchronous.next(index) else { return Ok(None) };
        index = found + 1;
        let Some(task) = request.task() else { continue };
        let state = match () {
            () if task.is_ready() => "ready",
            () if task.is_waiting() => "waiting",
            () => "running",
        };
        text.line(format_args!(
            "coroutine {:x} kernel call {} level {} {state} polls {} since {}\n",
            task.number(),
            request.number,
            task.level().unwrap_or_default(),
            request.polls(),
            now_ns.saturating_sub(request.since_ns()),
        ))?;
    }
    Ok(Some(index))
}

/// The program's coroutines from an entry on; where the rest begins.
fn show_coroutines(subject: &Subject, from: usize, text: &mut Text) -> Result<Option<usize>, Errno> {
    let executors = subject.process()?.executors().snapshot()?;
    let space = subject.thread()?.space();
    let Some(pages) = space.pages() else { return Ok(None) };
    let Some(header) = pages.header() else { return Ok(None) };
    let table = &header.coroutines;
    let address = table.address.load(Ordering::Relaxed) as usize;
    let count = table.count.load(Ordering::Relaxed).min(ENTRIES_MAX) as usize;
    let stride = table.stride.load(Ordering::Relaxed) as usize;
    if stride < size_of::<CoroutineInfo>() {
        return Ok(None);
    }
    let holder = |id: u64| {
        let mut all = executors.iter();
        let found = all.find(|(each, _)| {
            each.record().is_some_and(|record| record.current.load(Ordering::Relaxed) == id)
        });
        found.map(|(_, thread)| thread.clone())
    };
    let until = count.min(from + LINES);
    for index in from..until {
        let Some(words) = read(&space, address.wrapping_add(index.wrapping_mul(stride))) else {
            text.line(format_args!("unreadable from {index} of {count}\n"))?;
            return Ok(None);
        };
        show(words, holder, text)?;
    }
    Ok((until < count).then_some(until))
}

/// The words of an entry; nothing if the program's memory is not there.
fn read(space: &Arc<Space>, address: usize) -> Option<[u64; WORDS]> {
    loop {
        match space.read::<[u64; WORDS]>(address) {
            Ok(words) => return Some(words),
            Err(fault) if matches!(space.try_fault_in(fault), Some(Ok(()))) => {}
            Err(_) => return None,
        }
    }
}

fn show(
    [id, kind, polls, since_ns, delayed_ns]: [u64; WORDS],
    holder: impl Fn(u64) -> Option<Arc<Thread>>,
    text: &mut Text,
) -> Result<(), Errno> {
    if id == 0 {
        return Ok(());
    }
    let [level, told] = [(kind >> 32) as u8, (kind >> 40) as u8];
    let state = match holder(id) {
        Some(thread) => state_of(&thread),
        None if told == state::READY => "ready",
        None => "waiting",
    };
    let since_ns = crate::arch::time::now_ns().saturating_sub(since_ns);
    let kind = kind as u32;
    text.line(format_args!(
        "coroutine {id:x} program kind {kind} level {level} {state} polls {polls} since {since_ns} delayed \
         {delayed_ns}\n"
    ))
}

/// The state of the coroutine that has the stack of this thread.
fn state_of(thread: &Thread) -> &'static str {
    match thread.run_state() {
        RunState::Running => "running",
        _ if thread.task().is_some_and(TaskRef::is_ready) => "preempted",
        _ => "blocked",
    }
}
