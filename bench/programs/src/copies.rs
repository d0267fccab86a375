//! Bytes from one program to another, in pieces of a size: `copies n=PIECES bytes=SIZE via=pipe|unix|tcp [cpus=1|2]`.
//!
//! The other program reads with a buffer of the size of a piece, and answers with a byte when it has everything. With
//! `cpus=1` both are bound to CPU 0, with 2 to CPUs 0 and 1.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::arguments::Arguments;
use crate::measure::{pin, report};

/// Runs one size over one channel.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let pieces = arguments.number("n", 1000)?;
    let bytes = arguments.number("bytes", 65_536)?;
    let cpus = arguments.number("cpus", 1)?;
    let via = arguments.text("via", "pipe");
    let text = |error: std::io::Error| format!("{via}: {error}");
    if arguments.text("role", "") == "child" {
        pin(cpus as usize - 1)?;
        return read_all(pieces, bytes as usize).map_err(text);
    }
    let (to, from) = ends(via).map_err(text)?;
    let mut child = start_reader(from, via, pieces, bytes, cpus).map_err(text)?;
    pin(0)?;
    let nanoseconds = write_all(File::from(to), &mut child, pieces, bytes as usize).map_err(text)?;
    let status = child.wait().map_err(text)?;
    if !status.success() {
        return Err(format!("the reader: {status}"));
    }
    report(&format!("{via}-{bytes}-{cpus}"), pieces, nanoseconds);
    Ok(())
}

/// Pieces before the clock starts.
const fn warm_up(pieces: u64) -> u64 {
    pieces.div_ceil(10)
}

/// Where to write, and where the other side reads.
fn ends(via: &str) -> std::io::Result<(OwnedFd, OwnedFd)> {
    match via {
        "pipe" => {
            let (reader, writer) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
            Ok((writer, reader))
        }
        "unix" => UnixStream::pair().map(|(one, other)| (one.into(), other.into())),
        "tcp" => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let stream = TcpStream::connect(listener.local_addr()?)?;
            Ok((stream.into(), listener.accept()?.0.into()))
        }
        _ => Err(std::io::Error::other("no such channel")),
    }
}

fn start_reader(from: OwnedFd, via: &str, pieces: u64, bytes: u64, cpus: u64) -> std::io::Result<Child> {
    Command::new("/proc/self/exe")
        .args(["copies", "role=child"])
        .args([format!("via={via}"), format!("n={pieces}"), format!("bytes={bytes}"), format!("cpus={cpus}")])
        .stdin(Stdio::from(from))
        .stdout(Stdio::piped())
        .spawn()
}

/// Nanoseconds from the first byte after the warm-up until the reader has the last.
fn write_all(mut to: File, child: &mut Child, pieces: u64, bytes: usize) -> std::io::Result<u128> {
    let mut answers = child.stdout.take().ok_or_else(|| std::io::Error::other("no answers"))?;
    let piece = vec![7_u8; bytes];
    let mut send = |count| {
        (0..count).try_for_each(|_| to.write_all(&piece))?;
        answers.read_exact(&mut [0])
    };
    send(warm_up(pieces))?;
    let begin = Instant::now();
    send(pieces)?;
    Ok(begin.elapsed().as_nanos())
}

fn read_all(pieces: u64, bytes: usize) -> std::io::Result<()> {
    // Standard input has a buffer of its own, which would copy once more.
    let mut from = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let mut output = std::io::stdout().lock();
    let mut buffer = vec![0_u8; bytes];
    for count in [warm_up(pieces), pieces] {
        let mut left = count * bytes as u64;
        while left > 0 {
            let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            match from.read(&mut buffer[..most])? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                some => left -= some as u64,
            }
        }
        output.write_all(&[1])?;
        output.flush()?;
    }
    Ok(())
}
