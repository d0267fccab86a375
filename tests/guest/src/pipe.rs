//! Pipes and FIFOs.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::stat::Mode;
use nix::sys::wait::waitpid;
use nix::unistd::{pipe, pipe2, read, write};

use crate::harness::{OrFail, Outcome, Scratch, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    bytes_in_order
    end_of_file
    capacity_and_nonblocking
    atomic_small_writes
    large_transfer
    fifo_connects
    pipe_flags
    ping_pong
}

fn bytes_in_order() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    write(&writer, b"hello ").or_fail()?;
    write(&writer, b"world").or_fail()?;
    let mut buffer = [0; 5];
    expect_eq!(read(&reader, &mut buffer), Ok(5));
    expect_eq!(&buffer, b"hello");
    let mut rest = [0; 100];
    expect_eq!(read(&reader, &mut rest), Ok(6));
    expect_eq!(&rest[..6], b" world");
    expect_eq!(read(&writer, &mut rest), Err(Errno::EBADF));
    expect_eq!(write(&reader, b"x"), Err(Errno::EBADF));
    Ok(())
}

fn end_of_file() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    write(&writer, b"last").or_fail()?;
    let copy = writer.try_clone().or_fail()?;
    drop(writer);
    drop(copy);
    let mut text = String::new();
    File::from(reader).read_to_string(&mut text).or_fail()?;
    expect_eq!(text, "last");
    Ok(())
}

fn capacity_and_nonblocking() -> Outcome {
    let (reader, writer) = pipe2(OFlag::O_NONBLOCK).or_fail()?;
    let mut byte = [0];
    expect_eq!(read(&reader, &mut byte), Err(Errno::EAGAIN));
    let block = [7; 4096];
    let mut total = 0;
    loop {
        match write(&writer, &block) {
            Ok(count) => total += count,
            Err(error) => {
                expect_eq!(error, Errno::EAGAIN);
                break;
            }
        }
    }
    expect_eq!(total, 65536);
    let size = fcntl(&writer, FcntlArg::F_GETPIPE_SZ).or_fail()?;
    expect_eq!(size, 65536);
    Ok(())
}

fn atomic_small_writes() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let children: Vec<_> = (0..4u8)
        .map(|index| {
            spawn_child(|| {
                let line = [b'a' + index; 512];
                i32::from((0..50).any(|_| write(&writer, &line) != Ok(512)))
            })
        })
        .collect::<Result<_, _>>()?;
    drop(writer);
    let mut all = Vec::new();
    File::from(reader).read_to_end(&mut all).or_fail()?;
    for child in children {
        waitpid(child, None).or_fail()?;
    }
    expect_eq!(all.len(), 4 * 50 * 512);
    for line in all.chunks(512) {
        expect!(line.iter().all(|byte| *byte == line[0]));
    }
    Ok(())
}

fn large_transfer() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let pattern = |index: usize| (index.wrapping_mul(2_654_435_761) >> 13) as u8;
    let child = spawn_child(|| {
        let data: Vec<u8> = (0..3_000_000).map(pattern).collect();
        i32::from(File::from(writer.try_clone().unwrap()).write_all(&data).is_err())
    })?;
    drop(writer);
    let mut data = Vec::new();
    File::from(reader).read_to_end(&mut data).or_fail()?;
    waitpid(child, None).or_fail()?;
    expect_eq!(data.len(), 3_000_000);
    expect!(data.iter().enumerate().all(|(index, &byte)| byte == pattern(index)));
    Ok(())
}

fn fifo_connects() -> Outcome {
    let scratch = Scratch::new("fifo")?;
    let path = scratch.path("fifo");
    nix::unistd::mkfifo(&path, Mode::from_bits_truncate(0o600)).or_fail()?;
    let error = nix::fcntl::open(&path, OFlag::O_WRONLY | OFlag::O_NONBLOCK, Mode::empty()).err();
    expect_eq!(error, Some(Errno::ENXIO));
    let child = spawn_child(|| i32::from(std::fs::write(&path, "through the fifo").is_err()))?;
    expect_eq!(std::fs::read_to_string(&path).or_fail()?, "through the fifo");
    waitpid(child, None).map(drop).or_fail()
}

fn pipe_flags() -> Outcome {
    let (reader, _writer) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).or_fail()?;
    expect_eq!(fcntl(&reader, FcntlArg::F_GETFD).or_fail()?, libc::FD_CLOEXEC);
    let flags = fcntl(&reader, FcntlArg::F_GETFL).or_fail()?;
    expect_eq!(flags & (libc::O_NONBLOCK | libc::O_ACCMODE), libc::O_NONBLOCK);
    let link = std::fs::read_link(format!("/proc/self/fd/{}", reader.as_raw_fd())).or_fail()?;
    expect!(link.to_string_lossy().starts_with("pipe:["));
    Ok(())
}

fn ping_pong() -> Outcome {
    let (from_child, to_parent) = pipe().or_fail()?;
    let (from_parent, to_child) = pipe().or_fail()?;
    let child = spawn_child(|| {
        let mut byte = [0];
        for _ in 0..1000 {
            if read(&from_parent, &mut byte) != Ok(1) || write(&to_parent, &[byte[0] + 1]) != Ok(1) {
                return 1;
            }
        }
        0
    })?;
    let mut byte = [0];
    for round in 0..1000u32 {
        write(&to_child, &[round as u8 & 0x7f]).or_fail()?;
        expect_eq!(read(&from_child, &mut byte), Ok(1));
        expect_eq!(byte[0], (round as u8 & 0x7f) + 1);
    }
    waitpid(child, None).map(drop).or_fail()
}
