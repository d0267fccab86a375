//! Mapping, touching and unmapping disjoint memory from several sides at once:
//! `memory n=ROUNDS sides=1..4 with=threads|processes [pages=P]`. Side i is bound to CPU i.
#![allow(unsafe_code, reason = "mapping memory and fork have no safe form")]

use std::sync::Barrier;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use crate::arguments::Arguments;
use crate::measure::{pin, report};

const PAGE_BYTES: usize = 4096;

/// Runs all sides; the time is from the moment all may start until all are done.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let rounds = arguments.number("n", 2_000)?;
    let sides = arguments.number("sides", 1)? as usize;
    let pages = arguments.number("pages", 16)? as usize;
    let with = arguments.text("with", "threads");
    let nanoseconds = match with {
        "threads" => with_threads(sides, rounds, pages)?,
        "processes" => with_processes(sides, rounds, pages)?,
        _ => return Err(format!("unknown sides '{with}'")),
    };
    report(&format!("memory-{with}-{sides}"), rounds * sides as u64, nanoseconds);
    Ok(())
}

fn with_threads(sides: usize, rounds: u64, pages: usize) -> Result<u128, String> {
    let barrier = Barrier::new(sides + 1);
    std::thread::scope(|scope| {
        let side = |cpu| {
            let barrier = &barrier;
            scope.spawn(move || {
                let pinned = pin(cpu);
                barrier.wait();
                pinned.and_then(|()| work(rounds, pages).map_err(|error| error.to_string()))
            })
        };
        let threads: Vec<_> = (0..sides).map(side).collect();
        barrier.wait();
        let begin = std::time::Instant::now();
        for thread in threads {
            thread.join().map_err(|_| "a thread panicked")??;
        }
        Ok(begin.elapsed().as_nanos())
    })
}

fn with_processes(sides: usize, rounds: u64, pages: usize) -> Result<u128, String> {
    let (reader, writer) = nix::unistd::pipe().map_err(|error| error.to_string())?;
    let mut children = Vec::new();
    for cpu in 0..sides {
        // SAFETY: there is one thread.
        match unsafe { fork() }.map_err(|error| error.to_string())? {
            ForkResult::Child => {
                let started = pin(cpu).is_ok() && nix::unistd::read(&reader, &mut [0]) == Ok(1);
                let done = started && work(rounds, pages).is_ok();
                // SAFETY: `_exit` has no preconditions.
                unsafe { libc::_exit(i32::from(!done)) }
            }
            ForkResult::Parent { child } => children.push(child),
        }
    }
    let begin = std::time::Instant::now();
    nix::unistd::write(&writer, &vec![1; sides]).map_err(|error| error.to_string())?;
    for child in children {
        match waitpid(child, None) {
            Ok(WaitStatus::Exited(_, 0)) => {}
            other => return Err(format!("a side ended with {other:?}")),
        }
    }
    Ok(begin.elapsed().as_nanos())
}

/// Each round maps memory, writes to each page, and looks at the end whether everything is still there.
fn work(rounds: u64, pages: usize) -> Result<(), std::io::Error> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    for round in 0..rounds {
        // SAFETY: a new mapping at an address of the kernel's choice; the accesses lie in it, and nothing refers to it
        // when it goes.
        unsafe {
            let memory = libc::mmap(std::ptr::null_mut(), pages * PAGE_BYTES, protection, flags, -1, 0);
            if memory == libc::MAP_FAILED {
                return Err(std::io::Error::last_os_error());
            }
            // Its own address and the round: what another side, or an earlier round, would not have written.
            let word = |page: usize| memory.cast::<u8>().add(page * PAGE_BYTES).cast::<u64>();
            let value = |page: usize| word(page).addr() as u64 ^ (round << 48);
            for page in 0..pages {
                word(page).write_volatile(value(page));
            }
            if let Some(page) = (0..pages).find(|&page| word(page).read_volatile() != value(page)) {
                return Err(std::io::Error::other(format!("page {page} of round {round} was changed")));
            }
            if libc::munmap(memory, pages * PAGE_BYTES) != 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
    }
    Ok(())
}
