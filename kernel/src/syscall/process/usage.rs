//! getrusage(2), times(2).

use alloc::sync::Arc;
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::process::Process;
use crate::process::thread::UsageCounts;
use crate::syscall::{Call, SyscallResult, user};
use crate::time::clock_ticks;

/// Words of `struct rusage`.
pub const WORDS: usize = 18;

const PAGE_KIB: u64 = 4;
const MAX_RESIDENT: usize = 4;
const FAULTS: usize = 8;
const VOLUNTARY_SWITCHES: usize = 16;
const INVOLUNTARY_SWITCHES: usize = 17;

fn words((user_ns, system_ns): (u64, u64), counts: UsageCounts) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    words[0] = user_ns / 1_000_000_000;
    words[1] = user_ns % 1_000_000_000 / 1000;
    words[2] = system_ns / 1_000_000_000;
    words[3] = system_ns % 1_000_000_000 / 1000;
    words[MAX_RESIDENT] = counts.peak_pages * PAGE_KIB;
    words[FAULTS] = counts.faults;
    words[VOLUNTARY_SWITCHES] = counts.voluntary;
    words[INVOLUNTARY_SWITCHES] = counts.involuntary;
    words
}

/// Resource usage of a process that has been waited for, with that of its own children.
pub fn of_process_and_children(process: &Arc<Process>) -> [u64; WORDS] {
    let (user, system) = process.cpu_times();
    let (children_user, children_system) = process.children_times();
    let times = (user + children_user, system + children_system);
    words(times, process.counts() + process.children_counts())
}

/// getrusage(2).
pub fn getrusage(call: &mut Call<'_>) -> SyscallResult {
    let process = &call.thread.process;
    let space = call.thread.space();
    let result = match call.int(0) {
        0 => {
            process.keep_peak(space.peak_resident_pages());
            words(process.cpu_times(), process.counts())
        }
        linux::RUSAGE_CHILDREN => words(process.children_times(), process.children_counts()),
        1 => {
            process.keep_peak(space.peak_resident_pages());
            let peak_pages = process.counts().peak_pages;
            words(call.thread.cpu_times(), UsageCounts { peak_pages, ..call.thread.counts() })
        }
        _ => return Err(Errno::EINVAL.into()),
    };
    user::write_words(&space, call.word(1), &result)?;
    Ok(0.into())
}

/// times(2).
pub fn times(call: &mut Call<'_>) -> SyscallResult {
    let process = &call.thread.process;
    if call.word(0) != 0 {
        let (own, children) = (process.cpu_times(), process.children_times());
        let ticks = [own.0, own.1, children.0, children.1].map(|time| clock_ticks(time) as u64);
        user::write_words(&call.thread.space(), call.word(0), &ticks)?;
    }
    Ok((clock_ticks(crate::arch::time::now_ns()) as usize).into())
}
