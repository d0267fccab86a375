//! Heddle's asynchronous calls: those that wait go on in a coroutine of their own.

use heddle_abi::call::{
    CANCEL, CANCEL_AND_WAIT, DONE, Entry, RING, RING_HEADER_BYTES, RING_ORDER_MIN, SUBMIT, WAITS,
};

use super::{Shot, close, errno, must, sys};

super::cases! {
    ring read_that_waits sleep_that_waits batch_that_waits
}

type Outcome = Result<(), String>;

const RING_BYTES: usize = RING_HEADER_BYTES + (32 << RING_ORDER_MIN);

/// Makes one of Heddle's calls.
fn heddle(number: u32, arguments: [u64; 2]) -> i64 {
    let [first, second] = arguments;
    // SAFETY: the memory that the arguments point to outlives what the kernel does with it: see the callers.
    unsafe { libc::syscall(number.into(), first, second) }
}

/// Memory for a ring. It stays until the process ends, since completions may come.
fn ring_memory() -> u64 {
    static MEMORY: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *MEMORY.get_or_init(|| Box::leak(vec![0u64; RING_BYTES / 8].into_boxed_slice()).as_ptr() as u64)
}

fn register() -> i64 {
    heddle(RING, [ring_memory(), RING_ORDER_MIN.into()])
}

/// Starts calls that must wait; one that fails at once is this call's failure.
fn submit(entries: &[std::cell::Cell<Entry>]) -> i64 {
    let started = heddle(SUBMIT, [entries.as_ptr() as u64, entries.len() as u64]);
    let failed = entries.iter().map(std::cell::Cell::get).find(|entry| entry.state == DONE);
    match failed {
        Some(entry) if started >= 0 => {
            // Requests that were started beside it must not stay.
            entries.iter().for_each(cancel_if_waiting);
            // SAFETY: this thread's own.
            unsafe { *libc::__errno_location() = -(entry.outcome as i64) as i32 };
            -1
        }
        _ => started,
    }
}

fn cancel_if_waiting(entry: &std::cell::Cell<Entry>) {
    if entry.get().state == WAITS {
        let _ = heddle(CANCEL, [entry.get().outcome, CANCEL_AND_WAIT]);
        entry.set(Entry { state: DONE, ..entry.get() });
    }
}

/// Cancels a call; that it is over already is as good.
fn cancel(shot: &mut Shot, entry: &std::cell::Cell<Entry>) -> Outcome {
    let token = entry.get().outcome;
    shot.fire(|| {
        let result = heddle(CANCEL, [token, CANCEL_AND_WAIT]);
        if result < 0 && errno() == libc::ENOENT { 0 } else { result }
    })
    .map(|_| ())
}

fn entry(number: i64, arguments: [u64; 6]) -> std::cell::Cell<Entry> {
    std::cell::Cell::new(Entry { number: number as u32, level: 31, arguments, ..Entry::default() })
}

fn ring(shot: &mut Shot) -> Outcome {
    shot.fire(register).map(|_| ())
}

fn wait_and_cancel(shot: &mut Shot, entries: &[std::cell::Cell<Entry>]) -> Outcome {
    must("RING", register())?;
    let started = shot.fire(|| submit(entries))?;
    if started != entries.len() as i64 {
        entries.iter().for_each(cancel_if_waiting);
        return Ok(());
    }
    entries.iter().try_for_each(|entry| cancel(shot, entry))
}

fn read_that_waits(shot: &mut Shot) -> Outcome {
    let mut ends = [0i32; 2];
    must("pipe2", sys!(SYS_pipe2, ends.as_mut_ptr(), 0))?;
    let mut bytes = [0u8; 64];
    let call = [entry(libc::SYS_read, [ends[0] as u64, bytes.as_mut_ptr() as u64, 64, 0, 0, 0])];
    let result = wait_and_cancel(shot, &call);
    close(ends[0].into())?;
    close(ends[1].into())?;
    result
}

fn sleep_that_waits(shot: &mut Shot) -> Outcome {
    let time = [1000i64, 0];
    wait_and_cancel(shot, &[entry(libc::SYS_nanosleep, [time.as_ptr() as u64, 0, 0, 0, 0, 0])])
}

fn batch_that_waits(shot: &mut Shot) -> Outcome {
    let (time, word) = ([1000i64, 0], 1u32);
    let futex = [&raw const word as u64, libc::FUTEX_WAIT as u64, 1, time.as_ptr() as u64, 0, 0];
    let sleep = [time.as_ptr() as u64, 0, 0, 0, 0, 0];
    let calls = [
        entry(libc::SYS_futex, futex),
        entry(libc::SYS_nanosleep, sleep),
        entry(libc::SYS_futex, futex),
        entry(libc::SYS_nanosleep, sleep),
    ];
    wait_and_cancel(shot, &calls)
}
