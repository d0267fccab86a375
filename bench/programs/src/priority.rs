//! How soon what is urgent runs: `priority n=WAKES by=coroutine|thread policy=relaxed|strict [background=K]`.
//!
//! Two processes, each with one urgent coroutine that waits for a pipe and `background` ones that compute in turns. The
//! background ones write the time into the *other* process's pipe now and then, so the urgent one there becomes ready
//! while something less urgent runs in both. Its delay is from that time until it runs. With threads the urgent one is
//! `SCHED_FIFO` and the others are ordinary. Prints the median, the 99th percentile and the maximum.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use heddle_rt::{SpawnBuilder, try_spawn, yield_now};
use nix::sys::wait::waitpid;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{ForkResult, fork, pipe};

use crate::arguments::Arguments;
use crate::coroutine::executor;
use crate::measure::report;

/// The level of the urgent coroutine, and of the background ones.
const URGENT: u8 = 8;
const BACKGROUND: u8 = 50;
/// `SCHED_FIFO` of the urgent thread.
const FIFO: i32 = 50;
/// Additions in one turn of a background coroutine: about 20 µs.
const TURN: u64 = 20_000;
/// Background turns between two wakes of the other process.
const TURNS_PER_WAKE: u64 = 8;

/// The monotonic clock, which both processes share.
fn now_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| Duration::from(time).as_nanos() as u64)
}

/// Runs the two processes; the second one's delays come back through a pipe.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let wakes = arguments.number("n", 500)?;
    let text = |error: nix::Error| error.to_string();
    let (to_first, to_second, results) =
        (pipe().map_err(text)?, pipe().map_err(text)?, pipe().map_err(text)?);
    #[allow(unsafe_code, reason = "fork")]
    // SAFETY: the process has one thread, so the child may do anything.
    let forked = unsafe { fork() }.map_err(text)?;
    if let ForkResult::Child = forked {
        drop((to_second.1, to_first.0, results.0));
        let delays = side(arguments, wakes, to_second.0, to_first.1);
        let sent = delays.and_then(|delays| {
            let bytes: Vec<u8> = delays.iter().flat_map(|delay| delay.to_ne_bytes()).collect();
            File::from(results.1).write_all(&bytes).map_err(|error| error.to_string())
        });
        std::process::exit(i32::from(sent.is_err()));
    }
    drop((to_first.1, to_second.0, results.1));
    let mut delays = side(arguments, wakes, to_first.0, to_second.1)?;
    let mut bytes = Vec::new();
    File::from(results.0).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    delays.extend(bytes.chunks_exact(8).filter_map(|chunk| chunk.try_into().ok().map(u64::from_ne_bytes)));
    if let ForkResult::Parent { child } = forked {
        waitpid(child, None).map_err(text)?;
    }
    if delays.len() < 2 * wakes as usize {
        return Err(format!("{} of {} delays", delays.len(), 2 * wakes));
    }
    delays.sort_unstable();
    for (name, rank) in [("median", 50), ("p99", 99), ("max", 100)] {
        let index = (delays.len() * rank / 100).saturating_sub(1);
        report(&format!("priority-{name}"), 1, delays[index].into());
    }
    Ok(())
}

/// State that a process's parts share.
struct Side {
    turns: AtomicU64,
    is_over: AtomicBool,
    wakes: u64,
}

impl Side {
    /// One turn of background work; the time for the other process if it is due.
    fn turn(&self) -> Option<[u8; 8]> {
        for number in 0..TURN {
            std::hint::black_box(number);
        }
        let turn = self.turns.fetch_add(1, Ordering::Relaxed) + 1;
        let is_due = turn.is_multiple_of(TURNS_PER_WAKE) && turn / TURNS_PER_WAKE <= self.wakes;
        is_due.then(|| now_ns().to_ne_bytes())
    }

    /// Whether the other process has had all its wakes, and this one too.
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
            && self.turns.load(Ordering::Relaxed) >= self.wakes * TURNS_PER_WAKE
    }
}

fn side(arguments: &Arguments, wakes: u64, from: OwnedFd, to: OwnedFd) -> Result<Vec<u64>, String> {
    let background = arguments.number("background", 3)?;
    let side = Arc::new(Side { turns: AtomicU64::new(0), is_over: AtomicBool::new(false), wakes });
    let to = Arc::new(to);
    match arguments.text("by", "coroutine") {
        "coroutine" => {
            let builder = executor(arguments)?.strict(arguments.text("policy", "relaxed") == "strict");
            builder.run(with_coroutines(side, background, from, to))
        }
        "thread" => with_threads(&side, background, from, &to),
        other => Err(format!("unknown way '{other}'")),
    }
}

fn delay(bytes: &[u8]) -> Option<u64> {
    let sent = u64::from_ne_bytes(bytes.try_into().ok()?);
    Some(now_ns().saturating_sub(sent))
}

async fn with_coroutines(
    side: Arc<Side>,
    background: u64,
    from: OwnedFd,
    to: Arc<OwnedFd>,
) -> Result<Vec<u64>, String> {
    let level = |level| SpawnBuilder::new().priority(level);
    let urgent = {
        let side = side.clone();
        try_spawn(level(URGENT), async move {
            let mut delays = Vec::new();
            let mut buffer = vec![0; 8];
            while (delays.len() as u64) < side.wakes {
                let (length, read) = heddle_rt::read(&from, buffer).await;
                if length.map_err(|error| error.to_string())? != 8 {
                    return Err("the other process has ended".to_owned());
                }
                delays.extend(delay(&read));
                buffer = read;
            }
            side.is_over.store(true, Ordering::Relaxed);
            Ok(delays)
        })
    };
    let mut workers = Vec::new();
    for _ in 0..background {
        let (side, to) = (side.clone(), to.clone());
        let worker = async move {
            while !side.is_over() {
                if let Some(time) = side.turn() {
                    let _ = heddle_rt::write(&to, time.to_vec()).await;
                }
                yield_now().await;
            }
        };
        workers.push(try_spawn(level(BACKGROUND), worker).map_err(|error| error.to_string())?);
    }
    let delays = urgent.map_err(|error| error.to_string())?.await.map_err(|error| error.to_string())?;
    for worker in workers {
        worker.await.map_err(|error| error.to_string())?;
    }
    delays
}

fn with_threads(
    side: &Arc<Side>,
    background: u64,
    from: OwnedFd,
    to: &Arc<OwnedFd>,
) -> Result<Vec<u64>, String> {
    let workers: Vec<_> = (0..background)
        .map(|_| {
            let (side, to) = (side.clone(), to.clone());
            std::thread::spawn(move || {
                while !side.is_over() {
                    if let Some(time) = side.turn() {
                        let _ = nix::unistd::write(&*to, &time);
                    }
                    std::thread::yield_now();
                }
            })
        })
        .collect();
    let urgent = {
        let side = side.clone();
        std::thread::spawn(move || -> Result<Vec<u64>, String> {
            let parameters = libc::sched_param { sched_priority: FIFO };
            #[allow(unsafe_code, reason = "sched_setscheduler")]
            // SAFETY: reads the parameters.
            let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
            if result != 0 {
                return Err(format!("SCHED_FIFO: {}", std::io::Error::last_os_error()));
            }
            let (mut from, mut delays, mut buffer) = (File::from(from), Vec::new(), [0; 8]);
            while (delays.len() as u64) < side.wakes {
                from.read_exact(&mut buffer).map_err(|error| error.to_string())?;
                delays.extend(delay(&buffer));
            }
            side.is_over.store(true, Ordering::Relaxed);
            Ok(delays)
        })
    };
    let delays = urgent.join().map_err(|_| "a thread panicked")?;
    for worker in workers {
        worker.join().map_err(|_| "a thread panicked")?;
    }
    delays
}
