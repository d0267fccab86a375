//! The cost of a system call synchronously, asynchronously, and through io_uring: `asynccall n=CALLS
//! by=sync|async|uring`. Three figures: a read that completes at once, a read that waits (a byte through a pipe whose
//! reader waits before the writer writes), and 32 reads in a batch, by the call.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Instant;

use heddle_rt::spawn;
use io_uring::{IoUring, opcode, types};

use crate::arguments::Arguments;
use crate::coroutine::executor;
use crate::measure::report;

const BATCH: usize = 32;

/// Prints the three figures.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let count = arguments.number("n", 10_000)?;
    let zero = OwnedFd::from(File::open("/dev/zero").map_err(|error| format!("/dev/zero: {error}"))?);
    let figures = match arguments.text("by", "async") {
        "sync" => synchronous(count, &zero),
        "async" => executor(arguments)?.run(asynchronous(count, &zero)),
        "uring" => uring(count, &zero),
        other => return Err(format!("unknown way '{other}'")),
    };
    let figures = figures.map_err(|error| error.to_string())?;
    for (name, nanoseconds) in ["asynccall-now", "asynccall-waits", "asynccall-batch-32"].iter().zip(figures)
    {
        report(name, count, nanoseconds);
    }
    Ok(())
}

type Figures = std::io::Result<[u128; 3]>;

fn pipe() -> std::io::Result<(OwnedFd, OwnedFd)> {
    nix::unistd::pipe().map_err(Into::into)
}

/// Two threads hand a byte back and forth for the call that waits: a round is two such calls.
fn synchronous(count: u64, zero: &OwnedFd) -> Figures {
    let mut buffer = [0];
    let begin = Instant::now();
    for _ in 0..count {
        heddle_rt::read_sync(zero, &mut buffer)?;
    }
    let now = begin.elapsed().as_nanos();
    let ((there, to), (back, from)) = (pipe()?, pipe()?);
    let rounds = count / 2;
    let partner = std::thread::spawn(move || -> std::io::Result<()> {
        let (mut there, mut from) = (File::from(there), File::from(from));
        let mut byte = [0];
        for _ in 0..rounds {
            there.read_exact(&mut byte)?;
            from.write_all(&byte)?;
        }
        Ok(())
    });
    let (mut to, mut back) = (File::from(to), File::from(back));
    let begin = Instant::now();
    for _ in 0..rounds {
        to.write_all(&[1])?;
        back.read_exact(&mut buffer)?;
    }
    let waits = begin.elapsed().as_nanos();
    partner.join().map_err(|_| std::io::ErrorKind::Other)??;
    let begin = Instant::now();
    for _ in 0..count / BATCH as u64 {
        for _ in 0..BATCH {
            heddle_rt::read_sync(zero, &mut buffer)?;
        }
    }
    Ok([now, waits, begin.elapsed().as_nanos()])
}

async fn asynchronous(count: u64, zero: &OwnedFd) -> Figures {
    let mut buffer = vec![0];
    let begin = Instant::now();
    for _ in 0..count {
        let (result, same) = heddle_rt::read(zero, buffer).await;
        result?;
        buffer = same;
    }
    let now = begin.elapsed().as_nanos();
    let ((there, to), (back, from)) = (pipe()?, pipe()?);
    let rounds = count / 2;
    let partner = spawn(async move {
        let mut byte = vec![0];
        for _ in 0..rounds {
            let (result, read) = heddle_rt::read(&there, byte).await;
            result?;
            let (result, written) = heddle_rt::write(&from, read).await;
            result?;
            byte = written;
        }
        std::io::Result::Ok(())
    });
    let begin = Instant::now();
    for _ in 0..rounds {
        let (result, written) = heddle_rt::write(&to, buffer).await;
        result?;
        let (result, read) = heddle_rt::read(&back, written).await;
        result?;
        buffer = read;
    }
    let waits = begin.elapsed().as_nanos();
    partner.await.map_err(|error| std::io::Error::other(error.to_string()))??;
    let mut buffers: Vec<Vec<u8>> = (0..BATCH).map(|_| vec![0]).collect();
    let begin = Instant::now();
    for _ in 0..count / BATCH as u64 {
        let calls = buffers.drain(..).map(|buffer| heddle_rt::read(zero, buffer));
        let done = heddle_rt::batch(calls).await;
        for (result, buffer) in done {
            result?;
            buffers.push(buffer);
        }
    }
    Ok([now, waits, begin.elapsed().as_nanos()])
}

fn uring(count: u64, zero: &OwnedFd) -> Figures {
    let mut ring = IoUring::new(64)?;
    let mut buffers = [[0_u8; 1]; BATCH];
    let address: Vec<*mut u8> = buffers.iter_mut().map(|buffer| buffer.as_mut_ptr()).collect();
    let read = |file: &OwnedFd, index: usize| {
        opcode::Read::new(types::Fd(file.as_raw_fd()), address[index], 1).offset(u64::MAX).build()
    };
    let begin = Instant::now();
    for _ in 0..count {
        push(&mut ring, &[read(zero, 0)])?;
        take(&mut ring, 1)?;
    }
    let now = begin.elapsed().as_nanos();
    let (reader, writer) = pipe()?;
    let begin = Instant::now();
    for _ in 0..count {
        push(&mut ring, &[read(&reader, 0)])?;
        ring.submit()?;
        nix::unistd::write(writer.as_fd(), &[1])?;
        take(&mut ring, 1)?;
    }
    let waits = begin.elapsed().as_nanos();
    let begin = Instant::now();
    for _ in 0..count / BATCH as u64 {
        let entries: Vec<_> = (0..BATCH).map(|index| read(zero, index)).collect();
        push(&mut ring, &entries)?;
        take(&mut ring, BATCH)?;
    }
    Ok([now, waits, begin.elapsed().as_nanos()])
}

fn push(ring: &mut IoUring, entries: &[io_uring::squeue::Entry]) -> std::io::Result<()> {
    #[allow(unsafe_code, reason = "the kernel writes into memory that an entry names")]
    // SAFETY: the entries name buffers that `uring` keeps until it has taken their completions.
    unsafe { ring.submission().push_multiple(entries) }.map_err(|_| std::io::ErrorKind::OutOfMemory.into())
}

/// Submits, and takes `count` completions.
fn take(ring: &mut IoUring, count: usize) -> std::io::Result<()> {
    ring.submit_and_wait(count)?;
    for completion in ring.completion().take(count) {
        if completion.result() != 1 {
            return Err(std::io::Error::from_raw_os_error(-completion.result()));
        }
    }
    Ok(())
}
