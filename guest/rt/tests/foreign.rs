//! Calls that are awaited with wakers of others, which panic or make the same call again, and buffers whose drop does.
#![allow(unsafe_code)] // A wake of a futex, and a buffer of its own.

#[path = "../../../crates/coroutine/tests/support/mod.rs"]
mod support;

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use core::task::Waker;
use core::time::Duration;
use heddle_rt::{Buffer, BufferMut, Builder, ChildInfo, PollFd};
use std::future::Future;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::task::Context;
use support::family::{Family, Waiting, every_way};
use support::{On, ends, evil};

fn reads() -> Family {
    let (reader, mut writer) = io::pipe().unwrap();
    let reader = Arc::new(reader);
    let wait = Arc::new(move || -> Waiting {
        let reader = reader.clone();
        Box::pin(async move { drop(heddle_rt::read(&*reader, vec![0; 1]).await) })
    });
    Family { wait, fire: Box::new(move || writer.write_all(b"four").unwrap()) }
}

fn receipts() -> Family {
    let (one, other) = UnixStream::pair().unwrap();
    let one = Arc::new(one);
    let wait = Arc::new(move || -> Waiting {
        let one = one.clone();
        Box::pin(async move { drop(heddle_rt::recv(&*one, vec![0; 1], 0).await) })
    });
    Family { wait, fire: Box::new(move || drop(other)) }
}

fn batches() -> Family {
    let (one, other) = UnixStream::pair().unwrap();
    let one = Arc::new(one);
    let wait = Arc::new(move || -> Waiting {
        let one = one.clone();
        Box::pin(async move {
            let reads = [(); 3].map(|()| heddle_rt::recv(&*one, vec![0; 1], 0));
            drop(heddle_rt::batch(reads).await);
        })
    });
    Family { wait, fire: Box::new(move || drop(other)) }
}

fn polls() -> Family {
    let (one, other) = UnixStream::pair().unwrap();
    let one = Arc::new(one);
    let wait = Arc::new(move || -> Waiting {
        let one = one.clone();
        Box::pin(async move {
            let entry = PollFd { fd: one.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            drop(heddle_rt::poll(vec![entry], 60_000).await);
        })
    });
    Family { wait, fire: Box::new(move || drop(other)) }
}

fn connections() -> Family {
    let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
    let address = listener.local_addr().unwrap();
    let wait = Arc::new(move || -> Waiting {
        let listener = listener.clone();
        Box::pin(async move { drop(heddle_rt::accept(&*listener, 0).await) })
    });
    // As many as there are waiters, and those that a waker adds.
    let fire = move || {
        let clients = [(); 4].map(|()| TcpStream::connect(address).unwrap());
        std::mem::forget(clients);
    };
    Family { wait, fire: Box::new(fire) }
}

fn sleeps() -> Family {
    let wait = Arc::new(|| -> Waiting {
        Box::pin(async { heddle_rt::nanosleep(Duration::from_millis(5).into()).await.unwrap() })
    });
    let fire = || {
        let sleep = heddle_rt::nanosleep(Duration::from_millis(6).into());
        Builder::new().threads(1).run(sleep).unwrap();
    };
    Family { wait, fire: Box::new(fire) }
}

fn words() -> Family {
    let word = Arc::new(AtomicU32::new(0));
    let fired = word.clone();
    let wait = Arc::new(move || -> Waiting {
        let word = word.clone();
        Box::pin(async move { drop(heddle_rt::futex_wait(word, 0).await) })
    });
    let fire = move || {
        fired.store(1, Ordering::Release);
        let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: wakes at a word.
        unsafe { libc::syscall(libc::SYS_futex, fired.as_ptr(), wake, i32::MAX) };
    };
    Family { wait, fire: Box::new(fire) }
}

fn children() -> Family {
    let mut child = Command::new("/bin/cat").stdin(Stdio::piped()).spawn().unwrap();
    let (id, input) = (child.id(), child.stdin.take());
    let wait = Arc::new(move || -> Waiting {
        Box::pin(async move {
            let options = libc::WEXITED | libc::WNOWAIT;
            drop(heddle_rt::waitid(libc::P_PID, id, Box::new(ChildInfo::default()), options).await);
        })
    });
    let fire = move || {
        drop(input);
        child.wait().unwrap();
    };
    Family { wait, fire: Box::new(fire) }
}

#[test]
fn reads_survive_evil_wakers() {
    every_way(reads);
    every_way(receipts);
    every_way(batches);
}

#[test]
fn polls_survive_evil_wakers() {
    every_way(polls);
}

#[test]
fn calls_on_threads_survive_evil_wakers() {
    every_way(connections);
    every_way(words);
}

#[test]
fn sleeps_and_children_survive_evil_wakers() {
    every_way(sleeps);
    every_way(children);
}

/// A buffer whose drop makes a call and then panics.
struct Evil(Vec<u8>);

static DROPPED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the bytes of a vector, which stay where they are and the same in number.
unsafe impl Buffer for Evil {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

// SAFETY: as above; nobody else has the vector.
unsafe impl BufferMut for Evil {
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for Evil {
    fn drop(&mut self) {
        DROPPED.fetch_add(1, Ordering::SeqCst);
        let _ = heddle_rt::nanosleep_sync(Duration::ZERO.into());
        let mut call = pin!(heddle_rt::nanosleep(Duration::from_millis(1).into()));
        let _ = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if !std::thread::panicking() {
            panic!("as planned");
        }
    }
}

/// Calls are dropped while they wait, and what they leave behind does its worst, where nobody awaits it.
#[test]
fn buffers_of_dropped_calls_may_panic() {
    ends(|| {
        Builder::new().threads(2).run(async {
            let (one, other) = UnixStream::pair().unwrap();
            for _ in 0..20 {
                let mut reading = Box::pin(heddle_rt::read(&one, Evil(vec![0; 4])));
                let (waker, evil) = evil(On::Wake, Arc::new(|| panic!("as planned")));
                evil.arm();
                assert!(reading.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
                let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(reading)));
                drop(dropped);
                heddle_rt::nanosleep(Duration::from_millis(1).into()).await.unwrap();
            }
            assert_eq!(DROPPED.load(Ordering::SeqCst), 20);
            heddle_rt::write(&other, "left").await.0.unwrap();
            let (length, buffer) = heddle_rt::read(&one, vec![0; 8]).await;
            assert_eq!(&buffer[..length.unwrap()], b"left");
        });
    });
}
