//! poll, select, epoll, eventfd, timerfd, signalfd.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::select::{FdSet, select};
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::sys::wait::waitpid;
use nix::unistd::{pipe, read, write};

use crate::harness::{OrFail, Outcome, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    poll_reports_readiness
    poll_waits_for_writer
    poll_times_out
    select_reports_readiness
    epoll_level_and_edge
    epoll_oneshot_and_removal
    eventfd_counts
    timerfd_expires
    signalfd_reads_signals
}

fn poll_reports_readiness() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let mut set =
        [PollFd::new(reader.as_fd(), PollFlags::POLLIN), PollFd::new(writer.as_fd(), PollFlags::POLLOUT)];
    expect_eq!(poll(&mut set, PollTimeout::ZERO), Ok(1));
    expect_eq!(set[1].revents(), Some(PollFlags::POLLOUT));
    write(&writer, b"x").or_fail()?;
    let mut set = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
    expect_eq!(poll(&mut set, PollTimeout::ZERO), Ok(1));
    drop(writer);
    let mut set = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
    expect_eq!(poll(&mut set, PollTimeout::NONE), Ok(1));
    expect_eq!(set[0].revents(), Some(PollFlags::POLLIN | PollFlags::POLLHUP));
    Ok(())
}

fn poll_waits_for_writer() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let child = spawn_child(|| {
        std::thread::sleep(Duration::from_millis(50));
        i32::from(write(&writer, b"x").is_err())
    })?;
    let mut set = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
    expect_eq!(poll(&mut set, PollTimeout::NONE), Ok(1));
    waitpid(child, None).map(drop).or_fail()
}

fn poll_times_out() -> Outcome {
    let (reader, _writer) = pipe().or_fail()?;
    let begin = std::time::Instant::now();
    let mut set = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
    expect_eq!(poll(&mut set, 50u16), Ok(0));
    expect!(begin.elapsed() >= Duration::from_millis(50));
    Ok(())
}

fn select_reports_readiness() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let mut readable = FdSet::new();
    readable.insert(reader.as_fd());
    let mut timeout = TimeVal::milliseconds(10);
    expect_eq!(select(None, &mut readable, None, None, &mut timeout), Ok(0));
    expect!(!readable.contains(reader.as_fd()));
    write(&writer, b"x").or_fail()?;
    readable.insert(reader.as_fd());
    expect_eq!(select(None, &mut readable, None, None, None), Ok(1));
    expect!(readable.contains(reader.as_fd()));
    Ok(())
}

fn epoll_level_and_edge() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    for (flags, second) in [(EpollFlags::EPOLLIN, 1), (EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0)] {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).or_fail()?;
        epoll.add(&reader, EpollEvent::new(flags, 42)).or_fail()?;
        write(&writer, b"x").or_fail()?;
        let mut events = [EpollEvent::empty(); 4];
        expect_eq!(epoll.wait(&mut events, EpollTimeout::NONE), Ok(1));
        expect_eq!((events[0].data(), events[0].events()), (42, EpollFlags::EPOLLIN));
        expect_eq!(epoll.wait(&mut events, EpollTimeout::ZERO), Ok(second));
        write(&writer, b"y").or_fail()?;
        expect_eq!(epoll.wait(&mut events, EpollTimeout::ZERO), Ok(1));
        read(&reader, &mut [0; 16]).or_fail()?;
        expect_eq!(epoll.wait(&mut events, EpollTimeout::ZERO), Ok(0));
    }
    Ok(())
}

fn epoll_oneshot_and_removal() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let epoll = Epoll::new(EpollCreateFlags::empty()).or_fail()?;
    let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT;
    epoll.add(&reader, EpollEvent::new(flags, 1)).or_fail()?;
    expect_eq!(epoll.add(&reader, EpollEvent::new(flags, 1)), Err(Errno::EEXIST));
    write(&writer, b"x").or_fail()?;
    let mut events = [EpollEvent::empty(); 4];
    expect_eq!(epoll.wait(&mut events, EpollTimeout::NONE), Ok(1));
    expect_eq!(epoll.wait(&mut events, EpollTimeout::ZERO), Ok(0));
    epoll.modify(&reader, &mut EpollEvent::new(flags, 2)).or_fail()?;
    expect_eq!(epoll.wait(&mut events, EpollTimeout::ZERO), Ok(1));
    expect_eq!(events[0].data(), 2);
    epoll.delete(&reader).or_fail()?;
    expect_eq!(epoll.delete(&reader), Err(Errno::ENOENT));
    let file = std::fs::File::open("/etc/passwd").or_fail()?;
    expect_eq!(epoll.add(&file, EpollEvent::new(flags, 1)), Err(Errno::EPERM));
    Ok(())
}

fn eventfd_counts() -> Outcome {
    let event = EventFd::from_value_and_flags(3, EfdFlags::EFD_NONBLOCK).or_fail()?;
    event.write(4).or_fail()?;
    expect_eq!(event.read(), Ok(7));
    expect_eq!(event.read(), Err(Errno::EAGAIN));
    let event =
        EventFd::from_value_and_flags(2, EfdFlags::EFD_SEMAPHORE | EfdFlags::EFD_NONBLOCK).or_fail()?;
    expect_eq!((event.read(), event.read(), event.read()), (Ok(1), Ok(1), Err(Errno::EAGAIN)));
    Ok(())
}

fn timerfd_expires() -> Outcome {
    let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::empty()).or_fail()?;
    timer
        .set(Expiration::Interval(Duration::from_millis(10).into()), TimerSetTimeFlags::empty())
        .or_fail()?;
    std::thread::sleep(Duration::from_millis(35));
    let mut count = [0; 8];
    expect_eq!(read(&timer, &mut count), Ok(8));
    expect!(u64::from_ne_bytes(count) >= 3);
    expect!(timer.get().or_fail()?.is_some());
    timer.unset().or_fail()?;
    expect!(timer.get().or_fail()?.is_none());
    Ok(())
}

fn signalfd_reads_signals() -> Outcome {
    let mut set = SigSet::empty();
    set.add(Signal::SIGUSR1);
    set.thread_block().or_fail()?;
    let file = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK).or_fail()?;
    expect!(file.read_signal().or_fail()?.is_none());
    raise(Signal::SIGUSR1).or_fail()?;
    let mut waiting = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
    expect_eq!(poll(&mut waiting, PollTimeout::NONE), Ok(1));
    let read = file.read_signal().or_fail()?;
    expect_eq!(read.map(|signal| signal.ssi_signo as i32), Some(libc::SIGUSR1));
    Ok(())
}
