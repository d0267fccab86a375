//! How soon a coroutine of one process runs while another process of the same user works at a less urgent level:
//! `order urgent=LEVEL other=LEVEL user=UID policy=relaxed|strict [n=WAKES]`.
//!
//! The other process computes in turns and writes the time into a pipe now and then, from which the urgent coroutine
//! reads it: its delay is from then until it runs. In order it is a turn at most. Prints the median, the 99th
//! percentile and the maximum.

use std::os::fd::OwnedFd;
use std::time::Duration;

use heddle_rt::{SpawnBuilder, try_spawn, yield_now};
use nix::sys::wait::waitpid;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{ForkResult, Uid, fork, pipe, setuid};

use crate::arguments::Arguments;
use crate::coroutine::executor;
use crate::measure::report;

/// Additions in one turn of the less urgent coroutine.
const TURN: u64 = 20_000;
/// Its turns between two wakes of the urgent one.
const TURNS_PER_WAKE: u64 = 8;

/// The monotonic clock, which both processes share.
fn now_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| Duration::from(time).as_nanos() as u64)
}

/// Runs the two processes.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let wakes = arguments.number("n", 200)? as usize;
    let (urgent, other) = (arguments.number("urgent", 31)?, arguments.number("other", 32)?);
    let user = arguments.number("user", 0)?;
    let text = |error: nix::Error| error.to_string();
    let (from, to) = pipe().map_err(text)?;
    let (is_ready, ready) = pipe().map_err(text)?;
    #[allow(unsafe_code, reason = "fork")]
    // SAFETY: the process has one thread, so the child may do anything.
    let forked = unsafe { fork() }.map_err(text)?;
    if let ForkResult::Child = forked {
        drop((from, ready));
        // Times that are written before the urgent coroutine reads would wait for its process to start.
        let is_done = match nix::unistd::read(&is_ready, &mut [0]) {
            Ok(1) => work(arguments, other, user, to),
            _ => Err("the urgent process has ended".to_owned()),
        };
        std::process::exit(i32::from(is_done.is_err()));
    }
    drop((to, is_ready));
    let delays = delays(arguments, urgent, user, (ready, from), wakes);
    if let ForkResult::Parent { child } = forked {
        waitpid(child, None).map_err(text)?;
    }
    let mut delays = delays?;
    delays.sort_unstable();
    for (name, rank) in [("median", 50), ("p99", 99), ("max", 100)] {
        let index = (delays.len() * rank / 100).saturating_sub(1);
        report(&format!("order-{urgent}-{other}-{user}-{name}"), 1, delays[index].into());
    }
    Ok(())
}

/// Runs one coroutine of `level` in the executor that the arguments ask for, as `user`.
fn alone<T: Send + 'static>(
    arguments: &Arguments,
    level: u64,
    user: u64,
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, String> {
    setuid(Uid::from_raw(user as u32)).map_err(|error| error.to_string())?;
    // The main coroutine has that level too, or a less urgent one could not start beside the other process.
    let builder = executor(arguments)?.strict(arguments.text("policy", "relaxed") == "strict");
    let builder = builder.priority(level as u8);
    builder.run(async move {
        let spawned = try_spawn(SpawnBuilder::new().priority(level as u8), work);
        spawned.map_err(|error| error.to_string())?.await.map_err(|error| error.to_string())
    })
}

fn work(arguments: &Arguments, level: u64, user: u64, to: OwnedFd) -> Result<(), String> {
    alone(arguments, level, user, async move {
        for turn in 1_u64.. {
            for number in 0..TURN {
                std::hint::black_box(number);
            }
            // Until nobody reads any more.
            if turn.is_multiple_of(TURNS_PER_WAKE)
                && nix::unistd::write(&to, &now_ns().to_ne_bytes()).is_err()
            {
                break;
            }
            yield_now().await;
        }
    })
}

fn delays(
    arguments: &Arguments,
    level: u64,
    user: u64,
    (ready, from): (OwnedFd, OwnedFd),
    wakes: usize,
) -> Result<Vec<u64>, String> {
    alone(arguments, level, user, async move {
        let mut delays = Vec::with_capacity(wakes);
        let mut buffer = vec![0; 8];
        nix::unistd::write(&ready, &[1]).map_err(|error| error.to_string())?;
        while delays.len() < wakes {
            let (length, read) = heddle_rt::read(&from, buffer).await;
            let sent = read.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
            match (length, sent) {
                (Ok(8), Some(sent)) => delays.push(now_ns().saturating_sub(sent)),
                (length, _) => return Err(format!("the other process has ended: {length:?}")),
            }
            buffer = read;
        }
        Ok(delays)
    })?
}
