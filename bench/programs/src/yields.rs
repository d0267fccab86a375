//! Paper 5's experiment: two processes that call `sched_yield` in a loop: `yields n=CALLS with=exec|fork`.
//!
//! Both are bound to CPU 0, so each call hands the CPU over. The time is from the moment both are ready until the
//! parent has made its calls.
#![allow(unsafe_code, reason = "fork has no safe form")]

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use crate::arguments::Arguments;
use crate::measure::{pin, report};

/// Runs one pair.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let calls = arguments.number("n", 100_000)?;
    let with = arguments.text("with", "exec");
    pin(0)?;
    if arguments.text("role", "") == "child" {
        print!("r");
        std::io::stdout().flush().map_err(|error| error.to_string())?;
        yield_times(calls);
        return Ok(());
    }
    let before = counters();
    let nanoseconds = match with {
        "exec" => with_exec(calls).map_err(|error| error.to_string())?,
        "fork" => with_fork(calls).map_err(|error| error.to_string())?,
        _ => return Err(format!("unknown partner '{with}'")),
    };
    report(&format!("yield-{with}-{calls}"), calls, nanoseconds);
    for ((name, before), (_, after)) in before.iter().zip(counters()) {
        println!("count yield-{with}-{calls}:{name} {}", after - before);
    }
    Ok(())
}

/// Heddle's counters of page tables and flushes, from before the other side is made until it is gone; on Linux how
/// often it went from one thread to another, which a yield need not do there.
fn counters() -> Vec<(String, u64)> {
    let Ok(text) = std::fs::read_to_string("/proc/heddle/counters") else {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let switches = text.lines().find_map(|line| line.strip_prefix("ctxt ")?.trim().parse().ok());
        return switches.map(|switches| ("switches".to_owned(), switches)).into_iter().collect();
    };
    let counter = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        let is_meant = name == "switches" || name.starts_with("page_table") || name.starts_with("flushes");
        is_meant.then_some((name.to_owned(), value.parse().ok()?))
    };
    text.lines().filter_map(counter).collect()
}

fn yield_times(calls: u64) {
    for _ in 0..calls {
        std::thread::yield_now();
    }
}

fn timed(calls: u64) -> u128 {
    let begin = std::time::Instant::now();
    yield_times(calls);
    begin.elapsed().as_nanos()
}

fn with_exec(calls: u64) -> Result<u128, std::io::Error> {
    let mut child = Command::new("/proc/self/exe")
        .args(["yields", "role=child", &format!("n={calls}")])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut ready = [0];
    child.stdout.take().ok_or_else(|| std::io::Error::other("no pipe"))?.read_exact(&mut ready)?;
    let result = timed(calls);
    child.wait()?;
    Ok(result)
}

fn with_fork(calls: u64) -> Result<u128, std::io::Error> {
    let (reader, writer) = nix::unistd::pipe()?;
    // SAFETY: there is one thread.
    match unsafe { nix::unistd::fork() }? {
        nix::unistd::ForkResult::Child => {
            let _ = nix::unistd::write(&writer, b"r");
            yield_times(calls);
            // SAFETY: `_exit` has no preconditions.
            unsafe { libc::_exit(0) }
        }
        nix::unistd::ForkResult::Parent { child } => {
            nix::unistd::read(&reader, &mut [0])?;
            let result = timed(calls);
            nix::sys::wait::waitpid(child, None)?;
            Ok(result)
        }
    }
}
