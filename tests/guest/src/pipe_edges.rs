//! Large pieces in pipes and streams that meet something else: descriptors among the bytes, memory that is missing in
//! the midst of a piece, and many pieces that are cut after a byte.
#![allow(unsafe_code, reason = "memory that the kernel finds missing")]

use std::io::{IoSlice, IoSliceMut, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, sendmsg,
    socketpair,
};
use nix::sys::stat::fstat;
use nix::unistd::{pipe, read, write};

use crate::harness::{OrFail, Outcome};
use crate::{expect, expect_eq};

crate::tests! {
    descriptors_behind_large_pieces_come_one_by_one
    a_write_counts_what_lies_before_missing_memory
    pieces_that_are_cut_take_little_memory
    nothing_is_spliced_to_what_takes_no_pages
}

const PAGE: usize = 4096;

/// The device and file behind a descriptor.
fn file_of(fd: &OwnedFd) -> Result<(u64, u64), String> {
    let status = fstat(fd).or_fail()?;
    Ok((status.st_dev, status.st_ino))
}

/// A receive ends before a second message with descriptors, also when it copies a large piece while they are sent.
fn descriptors_behind_large_pieces_come_one_by_one() -> Outcome {
    const ROUNDS: usize = 300;
    let (here, there) =
        socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::empty()).or_fail()?;
    let (one, two) = pipe().or_fail()?;
    let expected = [file_of(&one)?, file_of(&two)?];
    let sender = std::thread::spawn(move || -> Outcome {
        let mut file = std::fs::File::from(there.try_clone().or_fail()?);
        for _ in 0..ROUNDS {
            file.write_all(&[0; 4 * PAGE]).or_fail()?;
            for fd in [&one, &two] {
                let (numbers, bytes) = ([fd.as_raw_fd()], [IoSlice::new(&[1])]);
                let message = [ControlMessage::ScmRights(&numbers)];
                let sent =
                    sendmsg::<()>(there.as_raw_fd(), &bytes, &message, MsgFlags::empty(), None).or_fail()?;
                expect_eq!(sent, 1);
            }
        }
        Ok(())
    });
    let (mut bytes, mut files) = (0, Vec::new());
    let mut buffer = vec![0; 16 * PAGE];
    loop {
        let mut space = nix::cmsg_space!([i32; 8]);
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let came =
            recvmsg::<()>(here.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty()).or_fail()?;
        if came.bytes == 0 {
            break;
        }
        bytes += came.bytes;
        expect!(!came.flags.contains(MsgFlags::MSG_CTRUNC));
        let mut here = 0;
        for message in came.cmsgs().or_fail()? {
            if let ControlMessageOwned::ScmRights(numbers) = message {
                for number in numbers {
                    // SAFETY: the message brought it, and nobody else has it.
                    files.push(file_of(&unsafe { OwnedFd::from_raw_fd(number) })?);
                    here += 1;
                }
            }
        }
        expect!(here <= 1);
    }
    sender.join().map_err(|_| "the sender panicked")??;
    expect_eq!(bytes, ROUNDS * (4 * PAGE + 2));
    expect_eq!(files.len(), 2 * ROUNDS);
    expect!(files.iter().enumerate().all(|(index, file)| *file == expected[index % 2]));
    Ok(())
}

/// Memory at which every access fails.
fn missing(length: usize) -> IoSlice<'static> {
    // SAFETY: only the kernel looks there, and finds nothing: the first page is never mapped.
    IoSlice::new(unsafe { std::slice::from_raw_parts(std::ptr::without_provenance(64), length) })
}

fn a_write_counts_what_lies_before_missing_memory() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).or_fail()?;
    expect_eq!(write(&writer, &vec![7; 13 * PAGE]), Ok(13 * PAGE));
    // There is room for all of the first part, and not for both.
    let good: Vec<u8> = (0..3 * PAGE - 96).map(|index| (index % 251) as u8).collect();
    let count = nix::sys::uio::writev(&writer, &[IoSlice::new(&good), missing(8 * PAGE)]).or_fail()?;
    expect!(count >= 2 * PAGE && count <= good.len());
    let mut buffer = vec![0; 16 * PAGE];
    expect_eq!(read(&reader, &mut buffer), Ok(13 * PAGE + count));
    expect!(buffer[13 * PAGE..][..count] == good[..count]);
    // Bytes that were not written took no room.
    expect_eq!(write(&writer, &vec![8; 16 * PAGE]), Ok(16 * PAGE));
    Ok(())
}

fn pieces_that_are_cut_take_little_memory() -> Outcome {
    const PIECES: usize = 6000;
    let free = || -> Result<u64, String> {
        let text = std::fs::read_to_string("/proc/meminfo").or_fail()?;
        let line = text.lines().find(|line| line.starts_with("MemFree:"));
        line.and_then(|line| line.split_ascii_whitespace().nth(1)?.parse().ok()).ok_or("no MemFree".into())
    };
    let (reader, writer) = pipe().or_fail()?;
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).or_fail()?;
    let before = free()?;
    let mut written = 0;
    for _ in 0..PIECES {
        match nix::sys::uio::writev(&writer, &[IoSlice::new(&[3]), missing(4 * PAGE)]) {
            Ok(count) => written += count,
            // Linux takes all of a page or nothing.
            Err(error) => expect!(error == Errno::EFAULT || error == Errno::EAGAIN),
        }
    }
    expect!(written <= 16 * PAGE);
    // A page for each of them would be 24 MB.
    expect!(free()? + 8000 > before);
    let mut buffer = vec![0; 16 * PAGE];
    if written > 0 {
        expect_eq!(read(&reader, &mut buffer), Ok(written));
    }
    expect_eq!(write(&writer, &vec![8; 16 * PAGE]), Ok(16 * PAGE));
    Ok(())
}

/// Files that take numbers, or nothing, say so at once, although the pipe is empty and could be waited for.
fn nothing_is_spliced_to_what_takes_no_pages() -> Outcome {
    use nix::fcntl::{SpliceFFlags, splice};
    use nix::sys::epoll::{Epoll, EpollCreateFlags};
    use nix::sys::eventfd::EventFd;
    use nix::sys::inotify::{InitFlags, Inotify};
    use nix::sys::signalfd::{SigSet, SignalFd};
    use nix::sys::timerfd::{ClockId, TimerFd, TimerFlags};
    use std::os::fd::AsFd;

    let (reading, _writing) = pipe().or_fail()?;
    let event = EventFd::new().or_fail()?;
    let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::empty()).or_fail()?;
    let zero = std::fs::OpenOptions::new().write(true).open("/dev/zero").or_fail()?;
    for target in [event.as_fd(), timer.as_fd(), zero.as_fd()] {
        expect_eq!(splice(&reading, None, target, None, 100, SpliceFFlags::empty()), Err(Errno::EINVAL));
    }
    let epoll = Epoll::new(EpollCreateFlags::empty()).or_fail()?;
    let signals = SignalFd::new(&SigSet::empty()).or_fail()?;
    let inotify = Inotify::init(InitFlags::empty()).or_fail()?;
    for target in [epoll.0.as_fd(), signals.as_fd()] {
        expect_eq!(splice(&reading, None, target, None, 100, SpliceFFlags::empty()), Err(Errno::EINVAL));
    }
    let refused = splice(&reading, None, &inotify, None, 100, SpliceFFlags::empty());
    expect_eq!(refused, Err(Errno::EBADF));
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null").or_fail()?;
    let (reading, writing) = pipe().or_fail()?;
    write(&writing, b"text").or_fail()?;
    expect_eq!(splice(&reading, None, &null, None, 100, SpliceFFlags::empty()), Ok(4));
    Ok(())
}
