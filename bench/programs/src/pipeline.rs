//! Experiment B of papers 1 and 2, with threads: `pipeline n=THREADS bytes=1|256|4096`; with `as=coroutine`
//! [`crate::coroutine`] runs it.
//!
//! N + 1 pipes in a chain: thread i reads `bytes` bytes from pipe i, writes them to pipe i + 1 and closes its writing
//! end. Main writes into the first pipe and reads from the last.

use std::fs::File;
use std::io::{Read, Write};

use crate::arguments::Arguments;
use crate::measure::{allow_descriptors, report};

const STACK_BYTES: usize = 64 << 10;

/// Of how many threads or coroutines the chain is that runs unmeasured before the one that counts.
const WARM_UP: u64 = 10;

/// Measures one chain. A short one runs before it: what comes first in a process pays for binding and translating code.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let count = arguments.number("n", 200)?;
    let bytes = arguments.number("bytes", 1)? as usize;
    allow_descriptors(2 * (count + 1) + 16)?;
    let chain = |count| match arguments.text("as", "thread") {
        "coroutine" => crate::coroutine::pipeline(arguments, count, bytes),
        _ => threads(count, bytes),
    };
    chain(count.min(WARM_UP))?;
    report(&format!("pipeline-{bytes}-{count}"), count, chain(count)?);
    Ok(())
}

/// The time from the first write until the last byte has arrived and all threads have ended, in nanoseconds.
fn threads(count: u64, bytes: usize) -> Result<u128, String> {
    let pipe = || nix::unistd::pipe().map_err(|error| format!("pipe: {error}"));
    let (first, writer) = pipe()?;
    let mut input = File::from(first);
    let mut threads = Vec::new();
    for number in 1..=count {
        let (reader, writer) = pipe()?;
        let (mut from, mut to) = (std::mem::replace(&mut input, File::from(reader)), File::from(writer));
        let step = move || -> Result<(), std::io::Error> {
            let mut buffer = vec![0; bytes];
            from.read_exact(&mut buffer)?;
            to.write_all(&buffer)
        };
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(step);
        threads.push(thread.map_err(|error| format!("thread {number}: {error}"))?);
    }
    let data = vec![7; bytes];
    let mut result = vec![0; bytes];
    let begin = std::time::Instant::now();
    File::from(writer).write_all(&data).map_err(|error| error.to_string())?;
    input.read_exact(&mut result).map_err(|error| error.to_string())?;
    for thread in threads {
        thread.join().map_err(|_| "a thread panicked")?.map_err(|error| error.to_string())?;
    }
    let elapsed = begin.elapsed().as_nanos();
    if result != data {
        return Err("the bytes that arrived are not those that were sent".to_owned());
    }
    Ok(elapsed)
}
