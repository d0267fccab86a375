//! `/proc/PID/heddle`: a program's executors and coroutines.
//!
//! What is known of the coroutines is what the program tells: an array of records in its memory, read as it is at that
//! moment. What of them is in a turn, and whether that turn holds a stack because its thread was preempted or is
//! blocked, the kernel knows.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use heddle_abi::shared::calls::policy;
use heddle_abi::shared::{CoroutineInfo, state};

use super::{Subject, Text};
use crate::error::Errno;
use crate::memory::Space;
use crate::process::{RunState, Thread};

/// Entries that are looked at; the program says how many there are.
const ENTRIES_MAX: u32 = 1 << 20;
const WORDS: usize = size_of::<CoroutineInfo>() / size_of::<u64>();

pub fn list(subject: &Subject, text: &mut Text) -> Result<(), Errno> {
    let process = subject.process()?;
    let thread = subject.thread()?;
    let policy = if process.executors.policy() == policy::STRICT { "strict" } else { "relaxed" };
    text.line(format_args!("policy {policy}\n"))?;
    let executors = process.executors.snapshot()?;
    for (executor, thread) in &executors {
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
    let space = thread.space();
    let Some(pages) = space.pages() else { return Ok(()) };
    let Some(header) = pages.header() else { return Ok(()) };
    let table = &header.coroutines;
    let address = table.address.load(Ordering::Relaxed) as usize;
    let count = table.count.load(Ordering::Relaxed).min(ENTRIES_MAX) as usize;
    let stride = table.stride.load(Ordering::Relaxed) as usize;
    if stride < size_of::<CoroutineInfo>() {
        return Ok(());
    }
    let holder = |id: u64| {
        let mut all = executors.iter();
        let found = all.find(|(each, _)| {
            each.record().is_some_and(|record| record.current.load(Ordering::Relaxed) == id)
        });
        found.map(|(_, thread)| thread.clone())
    };
    for index in 0..count {
        let Some(words) = read(&space, address.wrapping_add(index.wrapping_mul(stride))) else { break };
        show(words, holder, text)?;
    }
    Ok(())
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
        Some(thread) => match thread.run_state() {
            RunState::Running => "running",
            _ if thread.is_ready() => "preempted",
            _ => "blocked",
        },
        None if told == state::READY => "ready",
        None => "waiting",
    };
    let since_ns = crate::time::now_ns().saturating_sub(since_ns);
    text.line(format_args!("{id:x} {} {level} {state} {polls} {since_ns} {delayed_ns}\n", kind as u32))
}
