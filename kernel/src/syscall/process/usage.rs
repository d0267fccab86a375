//! getrusage(2), times(2).

use alloc::sync::Arc;
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::process::Process;
use crate::syscall::{Call, SyscallResult, user};
use crate::time::clock_ticks;

/// Words of `struct rusage`.
pub const WORDS: usize = 18;

const MAX_RESIDENT: usize = 4;
const VOLUNTARY_SWITCHES: usize = 16;
const INVOLUNTARY_SWITCHES: usize = 17;

fn words(user_ns: u64, system_ns: u64) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    words[0] = user_ns / 1_000_000_000;
    words[1] = user_ns % 1_000_000_000 / 1000;
    words[2] = system_ns / 1_000_000_000;
    words[3] = system_ns % 1_000_000_000 / 1000;
    words
}

/// What a process that has been waited for used, with its own children.
pub fn of_process_and_children(process: &Arc<Process>) -> [u64; WORDS] {
    let (user, system) = process.cpu_times();
    let (children_user, children_system) = process.children_times();
    words(user + children_user, system + children_system)
}

/// getrusage(2).
pub fn getrusage(call: &mut Call<'_>) -> SyscallResult {
    let process = &call.thread.process;
    let space = call.thread.space();
    let result = match call.int(0) {
        0 => {
            let (user, system) = process.cpu_times();
            let mut words = words(user, system);
            words[MAX_RESIDENT] = space.resident_pages() as u64 * 4;
            let switches = process.switches();
            words[VOLUNTARY_SWITCHES] = switches.voluntary;
            words[INVOLUNTARY_SWITCHES] = switches.involuntary;
            words
        }
        linux::RUSAGE_CHILDREN => {
            let (user, system) = process.children_times();
            words(user, system)
        }
        1 => {
            let (user, system) = call.thread.cpu_times();
            let mut words = words(user, system);
            let switches = call.thread.switches();
            words[VOLUNTARY_SWITCHES] = switches.voluntary;
            words[INVOLUNTARY_SWITCHES] = switches.involuntary;
            words
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
