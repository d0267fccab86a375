//! Of those who wait for the same, the most urgent gets it: by realtime priority, and where one is woken for what one
//! takes also by nice value, among equals the one that came first. Linux has this order for futexes only and wakes by
//! the order of arrival elsewhere, so the tests pass there without a look at the order.
//!
//! Everything runs on one CPU: a waiter that is woken says so before anybody else can be.

#![allow(unsafe_code)] // System calls that have no safe form.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};

use linux_raw_sys::io_uring::io_uring_op as Op;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::{gettid, pipe, read, write};

use crate::harness::{OrFail, Outcome, Scratch, is_heddle};
use crate::pi::{become_fifo, use_one_cpu, wait_until_it_waits};
use crate::uring::ring::{Ring, Sqe};
use crate::{expect, expect_eq};

crate::tests! {
    of_readers_of_a_pipe
    of_writers_of_a_full_pipe
    of_those_who_accept
    of_those_who_accept_tcp
    of_receivers_of_datagrams
    of_waiters_at_one_epoll
    of_instances_that_watch_exclusively
    of_readers_of_an_event_counter
    of_waiters_for_a_semaphore
    of_receivers_of_messages
    of_receivers_from_a_posix_queue
    of_those_who_lock_a_file
    of_more_waiters_than_a_group_has
    requests_wait_by_their_levels
    a_nice_waiter_is_not_passed_over_for_ever
}

/// A waiter: its realtime priority, or 0 and its nice value.
type Urgency = (i32, i32);

const WAITERS: [Urgency; 7] = [(0, 0), (10, 0), (30, 0), (0, 10), (0, -5), (20, 0), (0, 0)];
const EXPECTED: [usize; 7] = [2, 5, 1, 4, 0, 6, 3];

fn take_urgency((realtime, nice): Urgency) -> Outcome {
    if realtime > 0 {
        return become_fifo(realtime).or_fail();
    }
    // SAFETY: nothing of this process's memory is touched.
    Errno::result(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) }).map(drop).or_fail()
}

/// The order in which threads get what they wait for, of which `give` makes one available.
fn order_of(
    waiters: &[Urgency],
    take: impl Fn() -> Outcome + Sync,
    give: impl Fn() -> Outcome,
) -> Result<Vec<usize>, String> {
    use_one_cpu()?;
    let order = Mutex::new(Vec::new());
    let numbers: Vec<_> = waiters.iter().map(|_| AtomicI32::new(0)).collect();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (index, (urgency, number)) in waiters.iter().zip(&numbers).enumerate() {
            let (take, order) = (&take, &order);
            threads.push(scope.spawn(move || {
                take_urgency(*urgency)?;
                number.store(gettid().as_raw(), Ordering::SeqCst);
                take()?;
                order.lock().or_fail()?.push(index);
                Ok::<_, String>(())
            }));
            wait_until_it_waits(number)?;
        }
        for given in 1..=waiters.len() {
            give()?;
            while order.lock().or_fail()?.len() < given {
                std::thread::yield_now();
            }
        }
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "panicked")?)
    })?;
    order.into_inner().or_fail()
}

fn is_by_urgency(take: impl Fn() -> Outcome + Sync, give: impl Fn() -> Outcome) -> Outcome {
    let order = order_of(&WAITERS, take, give)?;
    // Linux has an order of its own.
    expect_eq!(if is_heddle() { &order[..] } else { &EXPECTED }, &EXPECTED[..]);
    Ok(())
}

/// As [`is_by_urgency`], of what all are woken for, or of what knows no nice values: only realtime threads have
/// an order.
fn is_by_priority(take: impl Fn() -> Outcome + Sync, give: impl Fn() -> Outcome) -> Outcome {
    let order = order_of(&WAITERS, take, give)?;
    let expected = &EXPECTED[..3];
    expect_eq!(if is_heddle() { &order[..3] } else { expected }, expected);
    Ok(())
}

fn of_readers_of_a_pipe() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let take = || read(&reader, &mut [0]).map(drop).or_fail();
    is_by_urgency(take, || write(&writer, b"x").map(drop).or_fail())
}

fn of_writers_of_a_full_pipe() -> Outcome {
    const PAGE: usize = 4096;
    let (reader, writer) = pipe().or_fail()?;
    // SAFETY: nothing of this process's memory is touched.
    Errno::result(unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, PAGE) }).or_fail()?;
    expect_eq!(write(&writer, &[0; PAGE]), Ok(PAGE));
    let take = || write(&writer, &[0; PAGE]).map(drop).or_fail();
    is_by_priority(take, || read(&reader, &mut [0; PAGE]).map(drop).or_fail())
}

fn of_those_who_accept() -> Outcome {
    let directory = Scratch::new("urgency")?;
    let path = directory.path("listener");
    let listener = UnixListener::bind(&path).or_fail()?;
    let kept = Mutex::new(Vec::new());
    let take = || listener.accept().map(drop).or_fail();
    is_by_urgency(take, || Ok(kept.lock().or_fail()?.push(UnixStream::connect(&path).or_fail()?)))
}

fn of_those_who_accept_tcp() -> Outcome {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    let address = listener.local_addr().or_fail()?;
    let kept = Mutex::new(Vec::new());
    let take = || listener.accept().map(drop).or_fail();
    is_by_urgency(take, || Ok(kept.lock().or_fail()?.push(TcpStream::connect(address).or_fail()?)))
}

fn of_receivers_of_datagrams() -> Outcome {
    let (one, other) = UnixDatagram::pair().or_fail()?;
    is_by_urgency(|| one.recv(&mut [0]).map(drop).or_fail(), || other.send(b"x").map(drop).or_fail())?;
    let one = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    let other = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    other.connect(one.local_addr().or_fail()?).or_fail()?;
    is_by_urgency(|| one.recv(&mut [0]).map(drop).or_fail(), || other.send(b"x").map(drop).or_fail())
}

fn watching(files: &OwnedFd, flags: EpollFlags) -> Result<Epoll, String> {
    let epoll = Epoll::new(EpollCreateFlags::empty()).or_fail()?;
    epoll.add(files, EpollEvent::new(EpollFlags::EPOLLIN | flags, 0)).or_fail()?;
    Ok(epoll)
}

fn wait_at(epoll: &Epoll) -> Outcome {
    let mut events = [EpollEvent::empty()];
    expect_eq!(epoll.wait(&mut events, EpollTimeout::NONE), Ok(1));
    Ok(())
}

fn of_waiters_at_one_epoll() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let epoll = watching(&reader, EpollFlags::EPOLLET)?;
    is_by_urgency(|| wait_at(&epoll), || write(&writer, b"x").map(drop).or_fail())
}

/// `EPOLLEXCLUSIVE`: an instance stands where the most urgent of its waiters does.
fn of_instances_that_watch_exclusively() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let take = || {
        let epoll = watching(&reader, EpollFlags::EPOLLEXCLUSIVE)?;
        wait_at(&epoll)?;
        expect_eq!(read(&reader, &mut [0]), Ok(1));
        Ok(())
    };
    is_by_urgency(take, || write(&writer, b"x").map(drop).or_fail())
}

fn of_readers_of_an_event_counter() -> Outcome {
    let counter = EventFd::from_flags(EfdFlags::EFD_SEMAPHORE).or_fail()?;
    is_by_urgency(|| counter.read().map(drop).or_fail(), || counter.write(1).map(drop).or_fail())
}

fn of_waiters_for_a_semaphore() -> Outcome {
    // SAFETY: nothing of this process's memory is touched.
    let set = Errno::result(unsafe { libc::semget(libc::IPC_PRIVATE, 1, 0o600) }).or_fail()?;
    let change = |sem_op| {
        let mut operation = libc::sembuf { sem_num: 0, sem_op, sem_flg: 0 };
        // SAFETY: the operation lives through the call.
        Errno::result(unsafe { libc::semop(set, &raw mut operation, 1) }).map(drop).or_fail()
    };
    let outcome = is_by_priority(|| change(-1), || change(1));
    // SAFETY: as above.
    unsafe { libc::semctl(set, 0, libc::IPC_RMID) };
    outcome
}

fn of_receivers_of_messages() -> Outcome {
    // SAFETY: nothing of this process's memory is touched.
    let queue = Errno::result(unsafe { libc::msgget(libc::IPC_PRIVATE, 0o600) }).or_fail()?;
    let take = || {
        let mut message = [0_u64; 2];
        // SAFETY: a word for the kind, and one for the text.
        Errno::result(unsafe { libc::msgrcv(queue, message.as_mut_ptr().cast(), 8, 0, 0) })
            .map(drop)
            .or_fail()
    };
    let give = || {
        let message = [1_u64; 2];
        // SAFETY: as above.
        Errno::result(unsafe { libc::msgsnd(queue, message.as_ptr().cast(), 8, 0) }).map(drop).or_fail()
    };
    let outcome = is_by_priority(take, give);
    // SAFETY: as above.
    unsafe { libc::msgctl(queue, libc::IPC_RMID, std::ptr::null_mut()) };
    outcome
}

fn of_receivers_from_a_posix_queue() -> Outcome {
    let (name, flags) = (c"/urgency", libc::O_CREAT | libc::O_RDWR);
    // SAFETY: a null pointer asks for the usual sizes.
    let queue = unsafe { libc::mq_open(name.as_ptr(), flags, 0o600, std::ptr::null_mut::<libc::mq_attr>()) };
    Errno::result(queue).or_fail()?;
    // SAFETY: the name is a string.
    unsafe { libc::mq_unlink(name.as_ptr()) };
    let take = || {
        let mut text = [0; 8192];
        // SAFETY: as long as the queue's messages may be.
        let taken = unsafe { libc::mq_receive(queue, text.as_mut_ptr(), text.len(), std::ptr::null_mut()) };
        Errno::result(taken).map(drop).or_fail()
    };
    // SAFETY: a byte is there.
    let give = || Errno::result(unsafe { libc::mq_send(queue, c"x".as_ptr(), 1, 0) }).map(drop).or_fail();
    is_by_priority(take, give)
}

/// Whoever has the lock gives it up at once, so that one is enough for all.
fn of_those_who_lock_a_file() -> Outcome {
    let directory = Scratch::new("urgency")?;
    let path = directory.path("lock");
    let file = || std::fs::File::create(&path).or_fail();
    let held = Mutex::new(Some(Flock::lock(file()?, FlockArg::LockExclusive).map_err(|_| "not locked")?));
    let order = Mutex::new(Vec::new());
    let take = || {
        let lock = Flock::lock(file()?, FlockArg::LockExclusive).map_err(|_| "not locked")?;
        // SAFETY: both only look.
        let (policy, nice) =
            unsafe { (libc::sched_getscheduler(0), libc::getpriority(libc::PRIO_PROCESS, 0)) };
        let mut parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: the parameters live through the call.
        unsafe { libc::syscall(libc::SYS_sched_getparam, 0, &raw mut parameters) };
        let is_realtime = policy == libc::SCHED_FIFO;
        order.lock().or_fail()?.push(if is_realtime { parameters.sched_priority } else { -nice - 100 });
        drop(lock);
        Ok(())
    };
    order_of(&WAITERS, take, || Ok(drop(held.lock().or_fail()?.take())))?;
    let order = order.into_inner().or_fail()?;
    // All are woken, and the scheduler decides: only realtime threads have an order.
    let expected = [30, 20, 10];
    expect_eq!(if is_heddle() { &order[..3] } else { &expected }, &expected[..]);
    Ok(())
}

fn of_more_waiters_than_a_group_has() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let realtime = |number: i32| if number % 50 == 7 { number / 50 + 1 } else { 0 };
    let waiters: Vec<Urgency> = (0..150).map(|number| (realtime(number), 0)).collect();
    let take = || read(&reader, &mut [0]).map(drop).or_fail();
    let order = order_of(&waiters, take, || write(&writer, b"x").map(drop).or_fail())?;
    let expected = [107, 57, 7];
    expect_eq!(if is_heddle() { &order[..3] } else { &expected }, &expected[..]);
    Ok(())
}

/// A request of a ring has the level of its I/O priority.
fn requests_wait_by_their_levels() -> Outcome {
    if !is_heddle() {
        return Ok(());
    }
    use_one_cpu()?;
    const IDLE: u16 = 3 << 13;
    let (reader, writer) = pipe().or_fail()?;
    let ring = Ring::new(8)?;
    let mut texts = [[0_u8; 1]; 3];
    let [first, second, third] = &mut texts;
    let read = |data, ioprio, text: &mut [u8]| {
        let sqe = Sqe { ioprio, off: u64::MAX, ..Sqe::new(Op::IORING_OP_READ, reader.as_raw_fd(), data) };
        sqe.buffer(text)
    };
    ring.submit(&[read(1, IDLE, first), read(2, 0, second), read(3, 0, third)])?;
    // Until all wait.
    std::thread::sleep(std::time::Duration::from_millis(50));
    let mut order = Vec::new();
    for _ in 0..3 {
        expect_eq!(write(&writer, b"x"), Ok(1));
        order.extend(ring.await_completions(1)?.iter().map(|completion| completion.0));
    }
    expect_eq!(order, [2, 3, 1]);
    Ok(())
}

/// A nice value is a share, no right to everything: others that are less nice come again and again.
fn a_nice_waiter_is_not_passed_over_for_ever() -> Outcome {
    use_one_cpu()?;
    let (mut reader, mut writer) = std::io::pipe().or_fail()?;
    let is_over = Mutex::new(false);
    let number = AtomicI32::new(0);
    std::thread::scope(|scope| {
        let nice = scope.spawn(|| {
            take_urgency((0, 10))?;
            number.store(gettid().as_raw(), Ordering::SeqCst);
            (&reader).read_exact(&mut [0]).or_fail()?;
            *is_over.lock().or_fail()? = true;
            Ok::<_, String>(())
        });
        wait_until_it_waits(&number)?;
        let others: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut byte = [1];
                    while byte[0] != 0 && (&reader).read(&mut byte).or_fail()? == 1 {}
                    Ok::<_, String>(())
                })
            })
            .collect();
        let mut given = 0;
        while !*is_over.lock().or_fail()? {
            (&writer).write_all(&[1]).or_fail()?;
            std::thread::sleep(std::time::Duration::from_millis(1));
            given += 1;
            expect!(given < 1000);
        }
        (&writer).write_all(&[0, 0]).or_fail()?;
        others.into_iter().try_for_each(|thread| thread.join().map_err(|_| "panicked")?)?;
        nice.join().map_err(|_| "panicked")?
    })?;
    writer.flush().or_fail()?;
    reader.read(&mut []).map(drop).or_fail()
}
