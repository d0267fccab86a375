//! Pipes of packets: `O_DIRECT` of pipe2(2).

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{pipe2, read, write};

use crate::harness::{OrFail, Outcome, is_heddle};
use crate::{expect, expect_eq};

crate::tests! {
    a_read_takes_one_packet
    long_writes_become_several_packets
    packets_fill_a_pipe_by_number
    the_end_comes_behind_the_last_packet
    only_the_writing_end_shows_the_flag
    a_waiting_writer_goes_on_packet_by_packet
    a_descriptor_keeps_the_flag
}

const PAGE: usize = 4096;

fn pair() -> Result<(OwnedFd, OwnedFd), String> {
    pipe2(OFlag::O_DIRECT | OFlag::O_NONBLOCK).or_fail()
}

fn can_write(end: &OwnedFd) -> Result<bool, String> {
    let mut polled = [PollFd::new(end.as_fd(), PollFlags::POLLOUT)];
    Ok(poll(&mut polled, PollTimeout::ZERO).or_fail()? == 1)
}

fn a_read_takes_one_packet() -> Outcome {
    let (reader, writer) = pair()?;
    let mut buffer = [0; PAGE];
    expect_eq!(read(&reader, &mut buffer), Err(Errno::EAGAIN));
    for text in ["one", "second", "last"] {
        expect_eq!(write(&writer, text.as_bytes()), Ok(text.len()));
    }
    expect_eq!(read(&reader, &mut buffer), Ok(3));
    expect_eq!(&buffer[..3], b"one");
    // A rest without room is lost.
    expect_eq!(read(&reader, &mut buffer[..2]), Ok(2));
    expect_eq!(&buffer[..2], b"se");
    expect_eq!(read(&reader, &mut buffer), Ok(4));
    expect_eq!(&buffer[..4], b"last");
    expect_eq!(read(&reader, &mut buffer), Err(Errno::EAGAIN));
    Ok(())
}

fn long_writes_become_several_packets() -> Outcome {
    let (reader, writer) = pair()?;
    expect_eq!(write(&writer, &[7; 2 * PAGE + 5]), Ok(2 * PAGE + 5));
    let mut buffer = [0; 3 * PAGE];
    for length in [PAGE, PAGE, 5] {
        expect_eq!(read(&reader, &mut buffer), Ok(length));
    }
    Ok(())
}

fn packets_fill_a_pipe_by_number() -> Outcome {
    let (reader, writer) = pair()?;
    let capacity = fcntl(&writer, FcntlArg::F_GETPIPE_SZ).or_fail()? as usize;
    for _ in 0..capacity / PAGE {
        expect!(can_write(&writer)?);
        expect_eq!(write(&writer, b"x"), Ok(1));
    }
    expect!(!can_write(&writer)?);
    expect_eq!(write(&writer, b"x"), Err(Errno::EAGAIN));
    let mut buffer = [0; 8];
    expect_eq!(read(&reader, &mut buffer), Ok(1));
    expect!(can_write(&writer)?);
    expect_eq!(fcntl(&writer, FcntlArg::F_SETPIPE_SZ(PAGE as i32)), Err(Errno::EBUSY));
    Ok(())
}

fn the_end_comes_behind_the_last_packet() -> Outcome {
    let (reader, writer) = pair()?;
    expect_eq!(write(&writer, b"packet"), Ok(6));
    drop(writer);
    let mut buffer = [0; 8];
    expect_eq!(read(&reader, &mut buffer), Ok(6));
    expect_eq!(read(&reader, &mut buffer), Ok(0));
    Ok(())
}

fn only_the_writing_end_shows_the_flag() -> Outcome {
    let (reader, writer) = pair()?;
    let flags = |end: &OwnedFd| fcntl(end, FcntlArg::F_GETFL).map(OFlag::from_bits_retain).or_fail();
    expect!(flags(&writer)?.contains(OFlag::O_DIRECT | OFlag::O_WRONLY));
    expect!(!flags(&reader)?.contains(OFlag::O_DIRECT));
    let second = std::fs::File::open(format!("/proc/self/fd/{}", reader.as_raw_fd())).or_fail()?;
    expect_eq!(write(&writer, b"one"), Ok(3));
    expect_eq!(write(&writer, b"two"), Ok(3));
    let mut buffer = [0; 8];
    expect_eq!(read(&second, &mut buffer), Ok(3));
    Ok(())
}

fn a_waiting_writer_goes_on_packet_by_packet() -> Outcome {
    const PACKETS: usize = 100;
    let (reader, writer) = pipe2(OFlag::O_DIRECT).or_fail()?;
    let thread = std::thread::spawn(move || write(&writer, &vec![1; PACKETS * PAGE]));
    let mut buffer = vec![0; 2 * PAGE];
    for _ in 0..PACKETS {
        expect_eq!(read(&reader, &mut buffer), Ok(PAGE));
    }
    expect_eq!(read(&reader, &mut buffer), Ok(0));
    expect_eq!(thread.join().map_err(|_| "the writer panicked")?, Ok(PACKETS * PAGE));
    Ok(())
}

/// Heddle makes no packets of what a pipe's writer asks for later, and says so.
fn a_descriptor_keeps_the_flag() -> Outcome {
    let expected = if is_heddle() { Err(Errno::EINVAL) } else { Ok(0) };
    let (_reader, writer) = pair()?;
    expect_eq!(fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_DIRECT)), Ok(0));
    expect_eq!(fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)), expected);
    let (_reader, writer) = pipe2(OFlag::empty()).or_fail()?;
    expect_eq!(fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)), Ok(0));
    expect_eq!(fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_DIRECT)), expected);
    Ok(())
}
