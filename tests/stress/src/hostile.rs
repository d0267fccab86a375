//! Programs that take all they can get: processes, threads, memory. The machine survives them, and gets everything
//! back.
#![allow(unsafe_code, reason = "fork has no safe form")]

use std::os::fd::OwnedFd;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, Uid, fork, pipe, read, setpgid, setuid};

use crate::arguments::Plan;

/// The number of runs after which memory that is lost in each of them counts as a leak.
const RUNS: u32 = 4;
/// Per-CPU caches and tables that grow by doubling make the figures differ by less than this; what leaks for each of
/// hundreds of processes or threads makes them differ by more.
const SLACK_FRAMES: u64 = 16;
const SLACK_BYTES: u64 = 16 << 10;
const STACK_BYTES: usize = 32 << 10;
/// Whose processes the fork bomb's are, and how many it may have.
const BOMB_USER: u32 = 12_345;
const BOMB_PROCESSES: u64 = 60;
const BOMB_TIME: Duration = Duration::from_secs(1);
/// On a busy host it takes longer until the limit is met.
const BOMB_TIME_MAX: Duration = Duration::from_secs(30);
const PAGE_BYTES: usize = 4096;

type Part = fn(&Plan) -> Result<(), String>;

/// Runs each part until it leaves as much memory as there was.
pub fn run(plan: &Plan) -> Result<(), String> {
    let parts: [(&str, Part); 5] = [
        ("short processes in a row", in_a_row),
        ("processes at once", at_once),
        ("threads at once", threads),
        ("a program that allocates until it is killed", glutton),
        ("a fork bomb under a limit", bomb),
    ];
    for (name, part) in parts {
        weigh(|| part(plan)).map_err(|reason| format!("{name}: {reason}"))?;
        println!("{name}");
    }
    Ok(())
}

/// Free frames and those of the kernel's heap, and the heap's bytes, in Heddle.
fn memory() -> Option<(u64, u64)> {
    std::fs::write("/proc/heddle/drain", "1").ok()?;
    let text = std::fs::read_to_string("/proc/heddle/memory").ok()?;
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<u64>().ok()
    };
    Some((number("free_frames ")? + number("heap_frames ")?, number("heap_bytes ")?))
}

/// The kernel's objects by their sizes, a line each.
fn objects() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/heddle/memory").unwrap_or_default();
    text.lines().filter(|line| line.starts_with("objects_")).map(str::to_owned).collect()
}

/// Runs a part until it leaves as much memory as there was, or finds that it never does.
pub fn weigh(part: impl Fn() -> Result<(), String>) -> Result<(), String> {
    let mut difference = String::new();
    for _ in 0..RUNS {
        let (before, objects) = (memory(), objects());
        part()?;
        let Some(before) = before else { return Ok(()) };
        // Processes that have ended may still be giving back memory.
        for _ in 0..100 {
            let after = memory().ok_or("no figures of memory")?;
            if after.0 + SLACK_FRAMES >= before.0 && after.1 <= before.1 + SLACK_BYTES {
                return Ok(());
            }
            difference = format!("leaks: {before:?} before, {after:?} after (frames, bytes)");
            std::thread::sleep(Duration::from_millis(20));
        }
        for (before, after) in objects.iter().zip(self::objects()).filter(|(before, after)| *before != after)
        {
            println!("{before} before, {after} after");
        }
        println!("{difference}");
    }
    Err(difference)
}

fn spawn(body: impl FnOnce() -> i32) -> Result<Pid, Errno> {
    // SAFETY: this process has one thread whenever it forks.
    match unsafe { fork() }? {
        ForkResult::Child => {
            let status = body();
            // SAFETY: `_exit` has no preconditions.
            unsafe { libc::_exit(status) }
        }
        ForkResult::Parent { child } => Ok(child),
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn in_a_row(plan: &Plan) -> Result<(), String> {
    for number in 0..plan.steps {
        let status = (number % 100) as i32;
        let child = spawn(|| status).map_err(|error| format!("process {number}: {error}"))?;
        match waitpid(child, None).map_err(text)? {
            WaitStatus::Exited(_, found) if found == status => {}
            other => return Err(format!("process {number}: {other:?}")),
        }
    }
    Ok(())
}

fn at_once(plan: &Plan) -> Result<(), String> {
    let (reader, writer): (OwnedFd, OwnedFd) = pipe().map_err(text)?;
    let mut writer = Some(writer);
    let mut children = Vec::new();
    for number in 0..plan.processes {
        let child = spawn(|| {
            drop(writer.take());
            // The end of the pipe comes when everybody is there.
            i32::from(read(&reader, &mut [0]) != Ok(0))
        });
        children.push(child.map_err(|error| format!("process {number}: {error}"))?);
    }
    drop(writer);
    for child in children {
        match waitpid(child, None).map_err(text)? {
            WaitStatus::Exited(_, 0) => {}
            other => return Err(format!("{other:?}")),
        }
    }
    Ok(())
}

/// In a process of its own, whose end gives back what the C library keeps.
fn threads(plan: &Plan) -> Result<(), String> {
    let count = plan.threads as usize;
    let child = spawn(|| {
        let barrier = Arc::new(Barrier::new(count + 1));
        let mut handles = Vec::new();
        for _ in 0..count {
            let barrier = barrier.clone();
            let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
            match builder.spawn(move || barrier.wait().is_leader()) {
                Ok(handle) => handles.push(handle),
                Err(_) => return 1,
            }
        }
        let own = usize::from(barrier.wait().is_leader());
        let leaders = handles.into_iter().filter_map(|handle| handle.join().ok()).filter(|&leads| leads);
        i32::from(leaders.count() + own != 1) * 2
    });
    match waitpid(child.map_err(text)?, None).map_err(text)? {
        WaitStatus::Exited(_, 0) => Ok(()),
        WaitStatus::Exited(_, 1) => Err(String::from("a thread could not be made")),
        other => Err(format!("{other:?}")),
    }
}

fn glutton(_: &Plan) -> Result<(), String> {
    let child = spawn(|| {
        loop {
            let mut piece = vec![0_u8; 1 << 20];
            for byte in piece.iter_mut().step_by(PAGE_BYTES) {
                *byte = 1;
            }
            std::mem::forget(piece);
        }
    });
    match waitpid(child.map_err(text)?, None).map_err(text)? {
        WaitStatus::Signaled(_, Signal::SIGKILL, _) => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

fn bomb(_: &Plan) -> Result<(), String> {
    let child = spawn(|| {
        let prepared = setpgid(Pid::from_raw(0), Pid::from_raw(0))
            .and_then(|()| setrlimit(Resource::RLIMIT_NPROC, BOMB_PROCESSES, BOMB_PROCESSES))
            .and_then(|()| setuid(Uid::from_raw(BOMB_USER)));
        if prepared.is_err() {
            return 1;
        }
        let mut refused = false;
        let (end, last) = (Instant::now() + BOMB_TIME, Instant::now() + BOMB_TIME_MAX);
        while Instant::now() < if refused { end } else { last } {
            // Parents and children alike go on.
            // SAFETY: each process has one thread.
            match unsafe { fork() } {
                Ok(_) => {}
                Err(Errno::EAGAIN) => {
                    refused = true;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(_) => return 2,
            }
        }
        i32::from(!refused) * 3
    });
    let child = child.map_err(text)?;
    let status = waitpid(child, None).map_err(text)?;
    // The rest of the bomb; there is none if all have come to their end.
    let _ = killpg(child, Signal::SIGKILL);
    match status {
        WaitStatus::Exited(_, 0) => {}
        other => return Err(format!("{other:?}")),
    }
    for _ in 0..500 {
        if killpg(child, None) == Err(Errno::ESRCH) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(String::from("processes outlive SIGKILL"))
}
