//! Hardware counters of a thread, where the system and its processor have them (perf_event_open(2)).
#![allow(unsafe_code)] // A system call that no library here wraps.

use std::fs::File;
use std::io::Read;
use std::os::fd::FromRawFd;

/// `struct perf_event_attr` as it was first published.
#[repr(C)]
struct Attributes {
    kind: u32,
    bytes: u32,
    config: u64,
    sample_period: u64,
    sample_kind: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint_kind: u32,
    breakpoint: u64,
}

const HARDWARE: u32 = 0;
const CACHE: u32 = 3;
/// Reads of the first data cache that missed.
const L1_READ_MISSES: u64 = 1 << 16;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
/// The times for which the counter was wanted, and ran: it may have taken turns with others.
const TIMES: u64 = 1 | 2;
const CLOSE_ON_EXEC: u64 = 8;

/// The events, the first three without the kernel's part.
const EVENTS: [(u32, u64, u64); EVENTS_COUNT] = [
    (HARDWARE, 0, EXCLUDE_KERNEL),
    (HARDWARE, 1, EXCLUDE_KERNEL),
    (CACHE, L1_READ_MISSES, EXCLUDE_KERNEL),
    (HARDWARE, 0, 0),
    (HARDWARE, 1, 0),
    (CACHE, L1_READ_MISSES, 0),
];
const EVENTS_COUNT: usize = 6;

/// Names of the events, in the order of [`Counts`].
pub const NAMES: [&str; EVENTS_COUNT] =
    ["user cycles", "user instructions", "user L1 misses", "cycles", "instructions", "L1 misses"];

/// How often each event came; `None` where it is not counted.
pub type Counts = [Option<f64>; EVENTS_COUNT];

/// Counters of the calling thread, which count since they were made.
pub struct Counters([Option<File>; EVENTS_COUNT]);

impl Counters {
    /// Those that the system lets this thread have.
    pub fn start() -> Self {
        Self::of(EVENTS)
    }

    fn of(events: [(u32, u64, u64); EVENTS_COUNT]) -> Self {
        Self(events.map(|(kind, config, excluded)| {
            let attributes = Attributes {
                kind,
                bytes: size_of::<Attributes>() as u32,
                config,
                sample_period: 0,
                sample_kind: 0,
                read_format: TIMES,
                flags: excluded | EXCLUDE_HYPERVISOR,
                wakeup: 0,
                breakpoint_kind: 0,
                breakpoint: 0,
            };
            let (this_thread, any_processor, no_group) = (0, -1, -1);
            // SAFETY: the attributes have the size that they name, and live for the call.
            let file = unsafe {
                libc::syscall(
                    libc::SYS_perf_event_open,
                    &raw const attributes,
                    this_thread,
                    any_processor,
                    no_group,
                    CLOSE_ON_EXEC,
                )
            };
            // SAFETY: a descriptor that was just made, and is known here alone.
            (file >= 0).then(|| unsafe { File::from_raw_fd(file as i32) })
        }))
    }

    /// The counts so far, as if each counter had always run.
    pub fn read(&mut self) -> Counts {
        self.0.each_mut().map(|file| {
            let mut bytes = [0; 24];
            file.as_mut()?.read_exact(&mut bytes).ok()?;
            let word =
                |at: usize| u64::from_ne_bytes(bytes[at * 8..][..8].try_into().unwrap_or_default()) as f64;
            let (count, wanted, ran) = (word(0), word(1), word(2));
            (ran > 0.0).then(|| count * wanted / ran)
        })
    }
}

/// The counts of several threads, for each of so many operations.
pub fn for_each(threads: &[Counts], operations: u64) -> Counts {
    std::array::from_fn(|event| {
        let sum: Option<f64> = threads.iter().map(|counts| counts[event]).sum();
        sum.map(|sum| sum / operations.max(1) as f64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The system's own clock of a thread is counted the same way where processors count nothing.
    #[test]
    fn what_the_system_counts_is_read() {
        let (software, thread_ns) = (1, 1);
        let mut counters = Counters::of([(software, thread_ns, EXCLUDE_KERNEL); EVENTS_COUNT]);
        let mut sum = 0_u64;
        for number in 0..1_000_000_u64 {
            sum = std::hint::black_box(sum ^ number);
        }
        let counts = counters.read();
        // A system that lets no program count is no failure.
        assert!(counts.iter().flatten().all(|count| *count > 1000.0), "{counts:?} {sum}");
        let each = for_each(&[counts, counts], 4);
        assert!(counts[0].zip(each[0]).is_none_or(|(count, each)| (each - count / 2.0).abs() < 1.0));
    }
}
