//! Levels that a waiting process lends to the one that it waits for. Linux has nothing like it, and the tests are
//! skipped there by passing.
//!
//! Everything runs on one CPU: an urgent client, an ordinary server, and between them a realtime process that computes.
//! Its count at the time of the answer says who ran before that.

#![allow(unsafe_code)] // System calls and shared memory that have no safe form.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, Uid, setuid};

use crate::harness::{OrFail, Outcome, Scratch, is_heddle, spawn_child};
use crate::pi::use_one_cpu;
use crate::{expect, expect_eq};

crate::tests! {
    a_clients_request_is_served_at_its_level
    the_first_request_is_too
    so_it_is_over_tcp
    a_tcp_client_that_has_its_answer_lends_nothing
    a_client_that_polls_lends_its_level
    a_request_that_is_passed_on_keeps_its_level
    the_level_is_given_back_with_the_answer
    a_pipe_lends_within_a_user
    a_pipe_lends_nothing_to_another_user
    a_server_lends_its_clients_nothing
    a_client_that_has_its_answer_lends_nothing
}

const CLIENT: i32 = 50;
const BETWEEN: i32 = 10;

fn set_policy(policy: i32, priority: i32) -> Outcome {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameters live during the call.
    Errno::result(unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) }).map(drop).or_fail()
}

/// Memory that the processes of a test share.
#[derive(Default)]
struct Shared {
    /// How far the realtime process in between has counted, and the server when it computes.
    between: AtomicU64,
    server: AtomicU64,
    is_over: AtomicBool,
}

impl Shared {
    fn new() -> Result<&'static Self, String> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping of zeros, which are a value of this type, and which is never unmapped.
        unsafe {
            let address = libc::mmap(std::ptr::null_mut(), size_of::<Self>(), protection, flags, -1, 0);
            expect!(address != libc::MAP_FAILED);
            Ok(&*address.cast())
        }
    }

    /// Lets the process in between end, for another one.
    fn begin_again(&self) {
        std::thread::sleep(Duration::from_millis(5));
        self.is_over.store(false, Ordering::Relaxed);
        self.between.store(0, Ordering::Relaxed);
    }

    fn count(&self, counter: &AtomicU64) {
        while !self.is_over.load(Ordering::Relaxed) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Processes that are ended with the test.
struct Children(Vec<Pid>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &self.0 {
            let _ = kill(*child, Signal::SIGKILL);
            let _ = waitpid(*child, None);
        }
    }
}

impl Children {
    fn start(&mut self, body: impl FnOnce() -> Outcome) -> Outcome {
        let child = spawn_child(|| i32::from(body().is_err()))?;
        self.0.push(child);
        Ok(())
    }

    /// A realtime process that computes as soon as nothing more urgent runs.
    fn start_between(&mut self, shared: &'static Shared) -> Outcome {
        self.start(|| {
            set_policy(libc::SCHED_FIFO, BETWEEN)?;
            shared.count(&shared.between);
            Ok(())
        })
    }
}

/// Answers each byte by itself, until there are no more.
fn echo(mut from: impl Read, mut to: impl Write) -> Outcome {
    let mut byte = [0];
    while from.read(&mut byte).or_fail()? == 1 {
        to.write_all(&byte).or_fail()?;
    }
    Ok(())
}

fn ask(mut to: &UnixStream) -> Outcome {
    to.write_all(b"?").or_fail()?;
    to.read_exact(&mut [0]).or_fail()
}

/// An ordinary server that accepts one connection and does `serve` with it.
fn start_server(
    children: &mut Children,
    path: &std::path::Path,
    serve: impl FnOnce(UnixStream) -> Outcome,
) -> Outcome {
    let (mut is_ready, ready) = std::io::pipe().or_fail()?;
    children.start(|| {
        set_policy(libc::SCHED_OTHER, 0)?;
        let listener = UnixListener::bind(path).or_fail()?;
        (&ready).write_all(b"r").or_fail()?;
        serve(listener.accept().or_fail()?.0)
    })?;
    is_ready.read_exact(&mut [0]).or_fail()
}

/// Prepares this process as the client, on one CPU.
fn be_client() -> Result<(&'static Shared, Children, Scratch), String> {
    use_one_cpu()?;
    // Tests before this one may have used up the realtime threads' part of this second.
    std::thread::sleep(Duration::from_secs(1));
    set_policy(libc::SCHED_FIFO, CLIENT)?;
    Ok((Shared::new()?, Children(Vec::new()), Scratch::new("inheritance")?))
}

/// How far the process in between has come while `wait` waited.
fn count_between(
    children: &mut Children,
    shared: &'static Shared,
    wait: impl FnOnce() -> Outcome,
) -> Result<u64, String> {
    children.start_between(shared)?;
    wait()?;
    let count = shared.between.load(Ordering::Relaxed);
    shared.is_over.store(true, Ordering::Relaxed);
    Ok(count)
}

fn a_clients_request_is_served_at_its_level() -> Outcome {
    if !is_heddle() {
        return Ok(());
    }
    let (shared, mut children, directory) = be_client()?;
    let path = directory.path("server");
    start_server(&mut children, &path, |stream| echo(&stream, &stream))?;
    let stream = UnixStream::connect(path).or_fail()?;
    ask(&stream)?;
    expect_eq!(count_between(&mut children, shared, || ask(&stream))?, 0);
    Ok(())
}

fn the_first_request_is_too() -> Outcome {
    if !is_heddle() {
        return Ok(());
    }
    let (shared, mut children, directory) = be_client()?;
    let path = directory.path("server");
    start_server(&mut children, &path, |stream| echo(&stream, &stream))?;
    // The server has not accepted yet: whoever listens is awaited.
    let wait = || ask(&UnixStream::connect(path).or_fail()?);
    expect_eq!(count_between(&mut children, shared, wait)?, 0);
    Ok(())
}

/// As [`start_server`], over TCP. Returns the server's port.
fn start_tcp_server(
    children: &mut Children,
    serve: impl FnOnce(TcpStream) -> Outcome,
) -> Result<u16, String> {
    let (mut is_ready, ready) = std::io::pipe().or_fail()?;
    children.start(|| {
        set_policy(libc::SCHED_OTHER, 0)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
        (&ready).write_all(&listener.local_addr().or_fail()?.port().to_ne_bytes()).or_fail()?;
        serve(listener.accept().or_fail()?.0)
    })?;
    let mut port = [0; 2];
    is_ready.read_exact(&mut port).or_fail()?;
    Ok(u16::from_ne_bytes(port))
}

fn ask_by_tcp(mut to: &TcpStream) -> Outcome {
    to.write_all(b"?").or_fail()?;
    to.read_exact(&mut [0]).or_fail()
}

fn so_it_is_over_tcp() -> Outcome {
    if !is_heddle() {
        return Ok(());
    }
    let (shared, mut children, _directory) = be_client()?;
    let port = start_tcp_server(&mut children, |stream| echo(&stream, &stream))?;
    let mut stream = None;
    // The server has not accepted yet: whoever listens is awaited.
    let first = count_between(&mut children, shared, || {
        let connected = stream.insert(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).or_fail()?);
        ask_by_tcp(connected)
    });
    expect_eq!(first?, 0);
    shared.begin_again();
    let stream = stream.ok_or("not connected")?;
    expect_eq!(count_between(&mut children, shared, || ask_by_tcp(&stream))?, 0);
    Ok(())
}

/// It waits for what the server says by itself.
fn a_tcp_client_that_has_its_answer_lends_nothing() -> Outcome {
    if !is_heddle() {
        return Ok(());
    }
    let (shared, mut children, _directory) = be_client()?;
    let port = start_tcp_server(&mut children, |mut stream| {
        stream.read_exact(&mut [0]).or_fail()?;
        stream.write_all(b"!").or_fail()?;
        while shared.server.fetch_add(1, Ordering::Relaxed) < 100_000 {}
        stream.write_all(b"news").or_fail()
    })?;
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).or_fail()?;
    ask_by_tcp(&stream)?;
    let between = count_between(&mut children, shared, || stream.read_exact(&mut [0]).or_fail());
    expect!(between? > 0);
    Ok(())
}

fn a_client_that_polls_lends_its_level() -> Outcome {
    if !is_heddle() {
        return Ok(());
    }
    let (shared, mut children, directory) = be_client()?;
    let path = directory.path("server");
    start_server(&mut children, &path, |stream| echo(&stream, &stream))?;
    let mut stream = UnixStream::connect(path).or_fail()?;
    ask(&stream)?;
    let between = count_between(&mut children, shared, || {
        stream.write_all(b"?").or_fail()?;
        let mut entries = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
        expect_eq!(poll(&mut entries, PollTimeout::NONE).or_fail()?, 1);
        Ok(())
    });
    expect_eq!(between?, 0);
    stream.read_exact(&mut [0]).or_fail()
}

fn a_request_that_is_passed_on_keeps_its_level() -> Outcome {
    if !is_heddle() {
        return Ok(());
    }
    let (shared, mut children, directory) = be_client()?;
    let (front, back) = (directory.path("front"), directory.path("back"));
    start_server(&mut children, &back, |stream| echo(&stream, &stream))?;
    start_server(&mut children, &front, |mut stream| {
        let behind = UnixStream::connect(back).or_fail()?;
        let mut byte = [0];
        while stream.read(&mut byte).or_fail()? == 1 {
            ask(&behind)?;
            stream.write_all(&byte).or_fail()?;
        }
        Ok(())
    })?;
    let stream = UnixStream::connect(front).or_fail()?;
    ask(&stream)?;
    expect_eq!(count_between(&mut children, shared, || ask(&stream))?, 0);
    Ok(())
}

fn the_level_is_given_back_with_the_answer() -> Outcome {
    if !is_heddle() {
        return Ok(());
    }
    let (shared, mut children, directory) = be_client()?;
    let path = directory.path("server");
    start_server(&mut children, &path, |mut stream| {
        for _ in 0..2 {
            stream.read_exact(&mut [0]).or_fail()?;
            stream.write_all(b"!").or_fail()?;
        }
        shared.count(&shared.server);
        Ok(())
    })?;
    let stream = UnixStream::connect(path).or_fail()?;
    ask(&stream)?;
    children.start_between(shared)?;
    ask(&stream)?;
    expect_eq!(shared.between.load(Ordering::Relaxed), 0);
    while shared.between.load(Ordering::Relaxed) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let server = shared.server.load(Ordering::Relaxed);
    shared.is_over.store(true, Ordering::Relaxed);
    expect_eq!(server, 0);
    Ok(())
}

/// Asks an ordinary process by a pair of pipes, first with nothing between.
fn ask_by_pipes(user: Option<Uid>) -> Result<u64, String> {
    let (shared, mut children, _directory) = be_client()?;
    let (questions, mut ask) = std::io::pipe().or_fail()?;
    let (mut answers, answer) = std::io::pipe().or_fail()?;
    children.start(|| {
        set_policy(libc::SCHED_OTHER, 0)?;
        if let Some(user) = user {
            setuid(user).or_fail()?;
        }
        echo(questions, answer)
    })?;
    let mut wait = || {
        ask.write_all(b"?").or_fail()?;
        answers.read_exact(&mut [0]).or_fail()
    };
    wait()?;
    count_between(&mut children, shared, wait)
}

fn a_pipe_lends_within_a_user() -> Outcome {
    if !is_heddle() {
        return Ok(());
    }
    expect_eq!(ask_by_pipes(None)?, 0);
    Ok(())
}

fn a_pipe_lends_nothing_to_another_user() -> Outcome {
    if !is_heddle() {
        return Ok(());
    }
    expect!(ask_by_pipes(Some(Uid::from_raw(65534)))? > 0);
    Ok(())
}

/// Whoever accepts waits for clients that it did not choose.
fn a_server_lends_its_clients_nothing() -> Outcome {
    if !is_heddle() {
        return Ok(());
    }
    let (shared, mut children, directory) = be_client()?;
    let path = directory.path("server");
    let listener = UnixListener::bind(&path).or_fail()?;
    children.start(|| {
        set_policy(libc::SCHED_OTHER, 0)?;
        let mut stream = UnixStream::connect(path).or_fail()?;
        for _ in 0..2 {
            stream.write_all(b"?").or_fail()?;
            stream.read_exact(&mut [0]).or_fail()?;
        }
        Ok(())
    })?;
    let mut stream = listener.accept().or_fail()?.0;
    stream.read_exact(&mut [0]).or_fail()?;
    let between = count_between(&mut children, shared, || {
        stream.write_all(b"!").or_fail()?;
        stream.read_exact(&mut [0]).or_fail()
    });
    expect!(between? > 0);
    stream.write_all(b"!").or_fail()
}

/// It waits for what the server says by itself.
fn a_client_that_has_its_answer_lends_nothing() -> Outcome {
    if !is_heddle() {
        return Ok(());
    }
    let (shared, mut children, directory) = be_client()?;
    let path = directory.path("server");
    start_server(&mut children, &path, |mut stream| {
        stream.read_exact(&mut [0]).or_fail()?;
        stream.write_all(b"!").or_fail()?;
        while shared.server.fetch_add(1, Ordering::Relaxed) < 100_000 {}
        stream.write_all(b"news").or_fail()
    })?;
    let mut stream = UnixStream::connect(path).or_fail()?;
    ask(&stream)?;
    let between = count_between(&mut children, shared, || stream.read_exact(&mut [0]).or_fail());
    expect!(between? > 0);
    Ok(())
}
