//! Wakes: one of several that read or accept, everybody at the end; webs of epoll instances; the answers of calls that
//! wait with a mask and a time.
#![allow(unsafe_code, reason = "raw calls show what the C library hides: the time that is left")]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::mpsc::channel;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::select::{FdSet, select};
use nix::sys::signal::{SigHandler, SigSet, Signal, raise, signal};
use nix::unistd::{pipe, read, write};

use crate::harness::{OrFail, Outcome};
use crate::{expect, expect_eq};

crate::tests! {
    readers_share_what_comes
    readers_all_see_the_end
    a_reader_that_leaves_passes_its_turn_on
    acceptors_each_get_a_connection
    epoll_waiters_share_events
    exclusive_interests_wake_somebody
    epoll_circles_through_closed_instances
    epoll_webs_see_events
    epoll_paths_are_limited
    epoll_instances_end_with_many_entries
    polls_of_many_see_one
    adding_twice_at_once_is_refused_once
    timeouts_tell_what_is_left
    zero_timeouts_heed_mask_and_signals
}

/// Lets threads that were just started get to where they wait.
fn settle() {
    std::thread::sleep(Duration::from_millis(30));
}

fn readers_share_what_comes() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    std::thread::scope(|scope| {
        let (sender, receiver) = channel();
        for _ in 0..4 {
            let (reader, sender) = (&reader, sender.clone());
            scope.spawn(move || sender.send(read(reader, &mut [0; 1])));
        }
        settle();
        // One wake, and four who get something.
        write(&writer, b"abcd").or_fail()?;
        for _ in 0..4 {
            expect_eq!(receiver.recv().or_fail()?, Ok(1));
        }
        Ok(())
    })
}

fn readers_all_see_the_end() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| read(&reader, &mut [0; 1]))).collect();
        settle();
        drop(writer);
        for thread in threads {
            expect_eq!(thread.join().map_err(|_| "a reader failed")?, Ok(0));
        }
        Ok(())
    })
}

extern "C" fn nothing(_: i32) {}

fn a_reader_that_leaves_passes_its_turn_on() -> Outcome {
    let action = nix::sys::signal::SigAction::new(
        SigHandler::Handler(nothing),
        nix::sys::signal::SaFlags::empty(),
        SigSet::empty(),
    );
    // SAFETY: the handler does nothing.
    unsafe { nix::sys::signal::sigaction(Signal::SIGUSR1, &action) }.or_fail()?;
    for _ in 0..50 {
        let (reader, writer) = pipe().or_fail()?;
        std::thread::scope(|scope| {
            let (sender, receiver) = channel();
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let (reader, sender) = (&reader, sender.clone());
                    scope.spawn(move || {
                        // SAFETY: it has no conditions.
                        let _ = sender.send(unsafe { libc::pthread_self() });
                        read(reader, &mut [0; 1])
                    })
                })
                .collect();
            let first = receiver.recv().or_fail()?;
            receiver.recv().or_fail()?;
            std::thread::sleep(Duration::from_millis(1));
            write(&writer, b"x").or_fail()?;
            // SAFETY: the thread has not been joined.
            unsafe { libc::pthread_kill(first, libc::SIGUSR1) };
            write(&writer, b"y").or_fail()?;
            let results: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            expect!(results.iter().all(|result| matches!(result, Ok(Ok(1) | Err(Errno::EINTR)))));
            Ok::<(), String>(())
        })?;
    }
    Ok(())
}

fn acceptors_each_get_a_connection() -> Outcome {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    let address = SocketAddr::from_abstract_name(b"heddle-acceptors").or_fail()?;
    let listener = UnixListener::bind_addr(&address).or_fail()?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| listener.accept().map(drop))).collect();
        settle();
        for _ in 0..4 {
            UnixStream::connect_addr(&address).or_fail()?;
        }
        for thread in threads {
            thread.join().map_err(|_| "an acceptor failed")?.or_fail()?;
        }
        Ok(())
    })
}

fn wait_one(epoll: &Epoll, timeout: EpollTimeout) -> Result<u64, String> {
    let mut events = [EpollEvent::empty()];
    let count = epoll.wait(&mut events, timeout).or_fail()?;
    Ok(if count == 0 { u64::MAX } else { events[0].data() })
}

fn epoll() -> Result<Epoll, String> {
    Epoll::new(EpollCreateFlags::empty()).or_fail()
}

fn epoll_waiters_share_events() -> Outcome {
    let instance = epoll()?;
    let counters: Vec<_> =
        (0..4).map(|_| EventFd::from_flags(EfdFlags::empty())).collect::<Result<_, _>>().or_fail()?;
    for (index, counter) in counters.iter().enumerate() {
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT, index as u64);
        instance.add(counter, event).or_fail()?;
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..4).map(|_| scope.spawn(|| wait_one(&instance, EpollTimeout::NONE))).collect();
        settle();
        for counter in &counters {
            counter.write(1).or_fail()?;
        }
        let mut seen = Vec::new();
        for thread in threads {
            seen.push(thread.join().map_err(|_| "a waiter failed")??);
        }
        seen.sort_unstable();
        expect_eq!(seen, [0, 1, 2, 3]);
        Ok(())
    })
}

fn exclusive_interests_wake_somebody() -> Outcome {
    let counter = EventFd::from_flags(EfdFlags::EFD_SEMAPHORE).or_fail()?;
    let instances = [epoll()?, epoll()?, epoll()?];
    let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLEXCLUSIVE;
    for instance in &instances {
        instance.add(&counter, EpollEvent::new(flags, 1)).or_fail()?;
        let mut event = EpollEvent::new(EpollFlags::EPOLLIN, 1);
        expect_eq!(instance.modify(&counter, &mut event), Err(Errno::EINVAL));
        expect_eq!(instance.add(&instances[0].0, EpollEvent::new(flags, 1)).is_err(), true);
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = instances
            .iter()
            .map(|instance| {
                let counter = &counter;
                scope.spawn(move || -> Outcome {
                    expect_eq!(wait_one(instance, EpollTimeout::NONE)?, 1);
                    counter.read().map(drop).or_fail()
                })
            })
            .collect();
        settle();
        for _ in 0..3 {
            counter.write(1).or_fail()?;
            std::thread::sleep(Duration::from_millis(5));
        }
        for thread in threads {
            thread.join().map_err(|_| "a waiter failed")??;
        }
        Ok(())
    })
}

/// Six calls that any program can make.
fn epoll_circles_through_closed_instances() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let (first, second, third) = (epoll()?, epoll()?, epoll()?);
    let event = |number| EpollEvent::new(EpollFlags::EPOLLIN, number);
    first.add(&reader, event(1)).or_fail()?;
    second.add(&first.0, event(2)).or_fail()?;
    third.add(&second.0, event(3)).or_fail()?;
    expect_eq!(first.add(&third.0, event(4)), Err(Errno::ELOOP));
    drop(second);
    first.add(&third.0, event(4)).or_fail()?;
    write(&writer, b"x").or_fail()?;
    expect_eq!(wait_one(&first, EpollTimeout::ZERO)?, 1);
    Ok(())
}

fn epoll_webs_see_events() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    // Each instance of a level watches each of the level below: several ways lead to the top.
    const WIDTH: usize = 2;
    let event = |number: usize| EpollEvent::new(EpollFlags::EPOLLIN, number as u64);
    let mut levels: Vec<Vec<Epoll>> = Vec::new();
    for level in 0..4 {
        let mut instances = Vec::new();
        for _ in 0..WIDTH {
            let instance = epoll()?;
            match levels.last() {
                None => instance.add(&reader, event(level)).or_fail()?,
                Some(below) => {
                    for inner in below {
                        instance.add(&inner.0, event(level)).or_fail()?;
                    }
                }
            }
            instances.push(instance);
        }
        levels.push(instances);
    }
    for round in 0..3 {
        for instance in levels.iter().flatten() {
            expect_eq!(wait_one(instance, EpollTimeout::ZERO)?, u64::MAX);
        }
        write(&writer, &[round]).or_fail()?;
        for (level, instances) in levels.iter().enumerate() {
            for instance in instances {
                expect_eq!(wait_one(instance, EpollTimeout::ZERO)?, level as u64);
            }
        }
        read(&reader, &mut [0]).or_fail()?;
    }
    Ok(())
}

/// Linux's limit on paths that end one instance above the one that watches a file.
fn epoll_paths_are_limited() -> Outcome {
    const PATHS: usize = 500;
    let (reader, _writer) = pipe().or_fail()?;
    let (other, _other_writer) = pipe().or_fail()?;
    let event = || EpollEvent::new(EpollFlags::EPOLLIN, 1);
    let (inner, empty) = (epoll()?, epoll()?);
    inner.add(&reader, event()).or_fail()?;
    let mut outer = Vec::new();
    for _ in 0..PATHS {
        let instance = epoll()?;
        instance.add(&inner.0, event()).or_fail()?;
        // Where there is no file there is no path.
        instance.add(&empty.0, event()).or_fail()?;
        outer.push(instance);
    }
    let more = epoll()?;
    expect_eq!(more.add(&inner.0, event()), Err(Errno::EINVAL));
    more.add(&empty.0, event()).or_fail()?;
    expect_eq!(empty.add(&other, event()), Err(Errno::EINVAL));
    // A refused entry has left nothing, and one that goes makes room.
    inner.add(&other, event()).or_fail()?;
    drop(outer.pop());
    more.add(&inner.0, event()).or_fail()?;
    outer[0].delete(&inner.0).or_fail()?;
    epoll()?.add(&inner.0, event()).or_fail()
}

/// An instance ends while it watches one file under many numbers, and more instances than one wake tells at once watch
/// that too: the file goes on, and who watches it hears of it.
fn epoll_instances_end_with_many_entries() -> Outcome {
    const COUNT: usize = 100;
    let event = |data| EpollEvent::new(EpollFlags::EPOLLIN, data);
    for _ in 0..4 {
        let (reader, writer) = pipe().or_fail()?;
        let watched = epoll()?;
        watched.add(&reader, event(7)).or_fail()?;
        let watchers = (0..COUNT).map(|_| epoll()).collect::<Result<Vec<_>, _>>()?;
        for instance in &watchers {
            instance.add(&watched.0, event(8)).or_fail()?;
        }
        let large = epoll()?;
        let copies = (0..COUNT).map(|_| reader.try_clone().or_fail()).collect::<Result<Vec<_>, _>>()?;
        for (number, copy) in copies.iter().enumerate() {
            large.add(copy, event(number as u64)).or_fail()?;
        }
        write(&writer, b"x").or_fail()?;
        for instance in &watchers {
            expect_eq!(wait_one(instance, EpollTimeout::NONE)?, 8);
        }
        drop(large);
        read(&reader, &mut [0]).or_fail()?;
        expect_eq!(wait_one(&watched, EpollTimeout::ZERO)?, u64::MAX);
        write(&writer, b"x").or_fail()?;
        for instance in watchers.iter().rev() {
            expect_eq!(wait_one(instance, EpollTimeout::NONE)?, 8);
        }
        // All of them end before what they watch, or after it.
        drop(copies);
        drop(reader);
        drop(watched);
        drop(watchers);
    }
    Ok(())
}

/// More descriptors than a call looks at in one go, of which one becomes ready while it waits.
fn polls_of_many_see_one() -> Outcome {
    const PIPES: usize = 150;
    let pipes = (0..PIPES).map(|_| pipe().or_fail()).collect::<Result<Vec<_>, _>>()?;
    for chosen in [0, PIPES / 2, PIPES - 1] {
        std::thread::scope(|scope| {
            let (reader, writer) = &pipes[chosen];
            scope.spawn(move || {
                settle();
                write(writer, b"x")
            });
            let mut set: Vec<PollFd<'_>> =
                pipes.iter().map(|(end, _)| PollFd::new(end.as_fd(), PollFlags::POLLIN)).collect();
            expect_eq!(poll(&mut set, PollTimeout::NONE), Ok(1));
            let ready = |entry: &PollFd<'_>| entry.revents() == Some(PollFlags::POLLIN);
            expect_eq!(set.iter().position(ready), Some(chosen));
            expect_eq!(set.iter().filter(|entry| entry.any() == Some(true)).count(), 1);
            read(reader, &mut [0]).or_fail()?;
            scope.spawn(move || {
                settle();
                write(writer, b"x")
            });
            let mut readers = FdSet::new();
            pipes.iter().for_each(|(end, _)| readers.insert(end.as_fd()));
            expect_eq!(select(None, &mut readers, None, None, None), Ok(1));
            expect!(readers.contains(reader.as_fd()));
            read(reader, &mut [0]).or_fail().map(drop)
        })?;
    }
    let mut set: Vec<PollFd<'_>> =
        pipes.iter().map(|(end, _)| PollFd::new(end.as_fd(), PollFlags::POLLIN)).collect();
    expect_eq!(poll(&mut set, 5_u8), Ok(0));
    // A number that is no descriptor among them.
    let mut raw: Vec<libc::pollfd> = pipes
        .iter()
        .map(|(end, _)| libc::pollfd { fd: end.as_raw_fd(), events: libc::POLLIN, revents: -1 })
        .collect();
    raw[70].fd = 1_000_000;
    raw[71].fd = -1;
    // SAFETY: the slice lives through the call.
    let found = unsafe { libc::poll(raw.as_mut_ptr(), raw.len() as libc::nfds_t, -1) };
    expect_eq!((found, raw[70].revents, raw[71].revents, raw[0].revents), (1, libc::POLLNVAL, 0, 0));
    Ok(())
}

fn adding_twice_at_once_is_refused_once() -> Outcome {
    let (instance, counter) = (epoll()?, EventFd::new().or_fail()?);
    let barrier = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        let add = || {
            let mut added = Vec::new();
            for _ in 0..500 {
                barrier.wait();
                added.push(instance.add(&counter, EpollEvent::new(EpollFlags::EPOLLIN, 1)));
                barrier.wait();
                if added.last() == Some(&Ok(())) {
                    let _ = instance.delete(&counter);
                }
                barrier.wait();
            }
            added
        };
        let other = scope.spawn(add);
        let (one, other) = (add(), other.join().map_err(|_| "a thread failed")?);
        for (one, other) in one.iter().zip(&other) {
            let mut both = [*one, *other];
            both.sort_unstable_by_key(Result::is_err);
            expect_eq!(both, [Ok(()), Err(Errno::EEXIST)]);
        }
        Ok(())
    })
}

/// ppoll(2) as the kernel has it; the time that is left is in `timeout` afterwards.
fn ppoll(file: Option<&OwnedFd>, timeout: &mut libc::timespec, mask: Option<u64>) -> Result<usize, Errno> {
    let descriptor = file.map_or(-1, |file| file.as_fd().as_raw_fd());
    let mut entry = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    let mask = mask.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: entry, time and mask live through the call.
    let result = unsafe {
        libc::syscall(libc::SYS_ppoll, &raw mut entry, 1, std::ptr::from_mut(timeout), mask, size_of::<u64>())
    };
    Errno::result(result).map(|count| count as usize)
}

fn timeouts_tell_what_is_left() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    write(&writer, b"x").or_fail()?;
    let mut timeout = libc::timespec { tv_sec: 100, tv_nsec: 0 };
    expect_eq!(ppoll(Some(&reader), &mut timeout, None), Ok(1));
    expect!(timeout.tv_sec >= 90 && timeout.tv_sec < 100);
    let mut timeout = libc::timespec { tv_sec: 0, tv_nsec: 2_000_000 };
    expect_eq!(ppoll(None, &mut timeout, None), Ok(0));
    expect_eq!((timeout.tv_sec, timeout.tv_nsec), (0, 0));
    let mut time = libc::timeval { tv_sec: 100, tv_usec: 0 };
    let mut set = [0_u64; 16];
    set[reader.as_raw_fd() as usize / 64] |= 1 << (reader.as_raw_fd() % 64);
    let none = std::ptr::null::<u64>();
    // SAFETY: the sets and the time live through the call.
    let result = unsafe {
        libc::syscall(libc::SYS_select, reader.as_raw_fd() + 1, set.as_mut_ptr(), none, none, &raw mut time)
    };
    expect_eq!(result, 1);
    expect!(time.tv_sec >= 90 && time.tv_sec < 100);
    Ok(())
}

fn zero_timeouts_heed_mask_and_signals() -> Outcome {
    // SAFETY: the handler does nothing.
    unsafe { signal(Signal::SIGUSR1, SigHandler::Handler(nothing)) }.or_fail()?;
    SigSet::from_iter([Signal::SIGUSR1]).thread_block().or_fail()?;
    raise(Signal::SIGUSR1).or_fail()?;
    let mut timeout = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    expect_eq!(ppoll(None, &mut timeout, None), Ok(0));
    expect_eq!(ppoll(None, &mut timeout, Some(0)), Err(Errno::EINTR));
    expect_eq!(ppoll(None, &mut timeout, Some(0)), Ok(0));
    Ok(())
}
