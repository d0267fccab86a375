//! The calls in their three forms, batches, and what becomes of calls that are dropped, on the kernel this runs on.
#![allow(unsafe_code)] // A wake of a futex, and a call with borrowed memory.

#[path = "../../../crates/coroutine/tests/support/mod.rs"]
mod support;

use core::future::Future;
use core::pin::pin;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use heddle_rt::{Builder, ChildInfo, PollFd, Span};
use std::ffi::CString;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;

fn run<T>(main: impl Future<Output = T>) -> T {
    Builder::new().threads(2).run(main)
}

#[test]
fn read_and_write_through_a_pipe() {
    run(async {
        let (reader, writer) = io::pipe().unwrap();
        let reading = heddle_rt::spawn(async move { heddle_rt::read(&reader, vec![0; 8]).await });
        heddle_rt::nanosleep(Duration::from_millis(5).into()).await.unwrap();
        assert_eq!(heddle_rt::write(&writer, "five!").await.0.unwrap(), 5);
        let (length, buffer) = reading.await.unwrap();
        assert_eq!(&buffer[..length.unwrap()], b"five!");
    });
}

#[test]
fn a_large_write_goes_on_when_there_is_room() {
    run(async {
        let (reader, writer) = io::pipe().unwrap();
        let sent: Arc<[u8]> = (0..300_000).map(|byte| byte as u8).collect();
        let all = sent.clone();
        let writing = heddle_rt::spawn(async move {
            let mut rest = all.to_vec();
            while !rest.is_empty() {
                let (length, buffer) = heddle_rt::write(&writer, rest).await;
                rest = buffer[length.unwrap()..].to_vec();
            }
        });
        let mut got = Vec::new();
        loop {
            let (length, buffer) = heddle_rt::read(&reader, vec![0; 50_000]).await;
            let length = length.unwrap();
            if length == 0 {
                break;
            }
            got.extend_from_slice(&buffer[..length]);
        }
        writing.await.unwrap();
        assert!(got == *sent);
    });
}

#[test]
fn files_are_opened_written_at_a_place_and_synchronized() {
    run(async {
        let name = std::env::temp_dir().join(format!("heddle-rt-{}", std::process::id()));
        let path = CString::new(name.to_str().unwrap()).unwrap();
        let file = heddle_rt::open(path, libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC, 0o600).await.unwrap();
        assert_eq!(heddle_rt::write(&file, "0123456789").await.0.unwrap(), 10);
        assert_eq!(heddle_rt::write_at(&file, "ab", 4).await.0.unwrap(), 2);
        heddle_rt::fsync(&file).await.unwrap();
        let (length, buffer) = heddle_rt::read_at(&file, vec![0; 4], 3).await;
        assert_eq!((length.unwrap(), &buffer[..]), (4, &b"3ab6"[..]));
        heddle_rt::close(file.into()).await.unwrap();
        std::fs::remove_file(name).unwrap();
        let missing = heddle_rt::open(c"/no/such/file".into(), libc::O_RDONLY, 0).await;
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
    });
}

#[test]
fn a_listener_accepts() {
    run(async {
        let Ok(listener) = TcpListener::bind("127.0.0.1:0") else { return };
        let place = listener.local_addr().unwrap();
        let accepting = heddle_rt::spawn(async move { heddle_rt::accept(&listener, 0).await.unwrap() });
        let client = TcpStream::connect(place).unwrap();
        let served = accepting.await.unwrap();
        assert_eq!(heddle_rt::send(&client, "ping", 0).await.0.unwrap(), 4);
        let (length, buffer) = heddle_rt::recv(&served, vec![0; 10], 0).await;
        assert_eq!(&buffer[..length.unwrap()], b"ping");
        drop(client);
        assert_eq!(heddle_rt::recv(&served, vec![0; 10], 0).await.0.unwrap(), 0);
    });
}

#[test]
fn sockets_send_and_receive() {
    run(async {
        let (one, other) = UnixStream::pair().unwrap();
        let echo = heddle_rt::spawn(async move {
            for _ in 0..100 {
                let (length, mut buffer) = heddle_rt::recv(&other, vec![0; 64], 0).await;
                buffer.truncate(length.unwrap());
                heddle_rt::send(&other, buffer, 0).await.0.unwrap();
            }
        });
        for round in 0..100_u8 {
            heddle_rt::send(&one, vec![round; 3], 0).await.0.unwrap();
            let (length, buffer) = heddle_rt::recv(&one, vec![0; 64], 0).await;
            assert_eq!(&buffer[..length.unwrap()], [round; 3]);
        }
        echo.await.unwrap();
    });
}

#[test]
fn poll_waits_for_the_first_or_for_its_time() {
    run(async {
        let (one, other) = UnixStream::pair().unwrap();
        let entry = PollFd { fd: one.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let (found, _) = heddle_rt::poll(vec![entry], 5).await;
        assert_eq!(found.unwrap(), 0);
        let writing = heddle_rt::spawn(async move {
            heddle_rt::nanosleep(Duration::from_millis(5).into()).await.unwrap();
            heddle_rt::write(&other, "x").await.0.unwrap();
            other
        });
        let (found, entries) = heddle_rt::poll(vec![entry], -1).await;
        assert_eq!(found.unwrap(), 1);
        assert_eq!(entries[0].revents & libc::POLLIN, libc::POLLIN);
        drop(writing.await.unwrap());
    });
}

/// Dropped before a thread has taken it up, or after.
#[test]
fn a_futex_wait_may_be_dropped_at_once() {
    run(async {
        for _ in 0..50 {
            let word = Arc::new(AtomicU32::new(0));
            let mut waiting = Box::pin(heddle_rt::futex_wait(word.clone(), 0));
            let poll = |context: &mut Context<'_>| Poll::Ready(waiting.as_mut().poll(context).is_pending());
            assert!(core::future::poll_fn(poll).await);
            drop(waiting);
        }
    });
}

#[test]
fn a_futex_wait_ends_with_a_wake() {
    run(async {
        let word = Arc::new(AtomicU32::new(0));
        let waiting = heddle_rt::spawn(heddle_rt::futex_wait(word.clone(), 0));
        heddle_rt::nanosleep(Duration::from_millis(10).into()).await.unwrap();
        word.store(1, Ordering::Release);
        // SAFETY: wakes at a word.
        unsafe {
            libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1)
        };
        let result = waiting.await.unwrap();
        assert!(result.is_ok() || result.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock));
        let differs = heddle_rt::futex_wait(word, 0).await.unwrap_err();
        assert_eq!(differs.kind(), io::ErrorKind::WouldBlock);
    });
}

#[test]
fn a_child_is_waited_for() {
    run(async {
        #[allow(clippy::zombie_processes, reason = "waited for by number")]
        let child = Command::new("/bin/sh").args(["-c", "exit 7"]).spawn().unwrap();
        let info = Box::new(ChildInfo::default());
        let (result, info) = heddle_rt::waitid(libc::P_PID, child.id(), info, libc::WEXITED).await;
        result.unwrap();
        assert_eq!((info.pid as u32, info.status), (child.id(), 7));
    });
}

/// A child of any group, and each change of its state: stopped, continued, ended.
#[test]
fn a_child_of_unknown_number_is_waited_for() {
    use std::os::unix::process::CommandExt;
    run(async {
        #[allow(clippy::zombie_processes, reason = "waited for by group")]
        let child =
            Command::new("/bin/sh").args(["-c", "kill -STOP $$; exit 9"]).process_group(0).spawn().unwrap();
        let wait = async |options| {
            let info = Box::new(ChildInfo::default());
            let (result, info) = heddle_rt::waitid(libc::P_PGID, child.id(), info, options).await;
            result.unwrap();
            assert_eq!(info.pid as u32, child.id());
            (info.code, info.status)
        };
        assert_eq!(wait(libc::WSTOPPED | libc::WEXITED).await, (libc::CLD_STOPPED, libc::SIGSTOP));
        // SAFETY: a signal to the child.
        assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGCONT) }, 0);
        assert_eq!(wait(libc::WEXITED).await, (libc::CLD_EXITED, 9));
    });
}

#[test]
fn many_calls_wait_at_once() {
    const CALLS: usize = 2000;
    run(async {
        let mut pairs = Vec::new();
        for _ in 0..CALLS / 10 {
            pairs.push(Arc::new(UnixStream::pair().unwrap()));
        }
        let done = Arc::new(AtomicUsize::new(0));
        let readers: Vec<_> = (0..CALLS)
            .map(|number| {
                let (pair, done) = (pairs[number % pairs.len()].clone(), done.clone());
                heddle_rt::spawn(async move {
                    assert_eq!(heddle_rt::recv(&pair.0, vec![0; 1], 0).await.0.unwrap(), 1);
                    done.fetch_add(1, Ordering::Relaxed);
                })
            })
            .collect();
        heddle_rt::nanosleep(Duration::from_millis(1).into()).await.unwrap();
        for number in 0..CALLS {
            assert_eq!(heddle_rt::send(&pairs[number % pairs.len()].1, "x", 0).await.0.unwrap(), 1);
        }
        for reader in readers {
            reader.await.unwrap();
        }
        assert_eq!(done.load(Ordering::Relaxed), CALLS);
    });
}

#[test]
fn a_batch_gives_every_output() {
    run(async {
        let pairs: Vec<_> = (0..40).map(|_| UnixStream::pair().unwrap()).collect();
        let reading = heddle_rt::spawn({
            let readers: Vec<OwnedFd> = pairs.iter().map(|pair| pair.0.try_clone().unwrap().into()).collect();
            async move { heddle_rt::batch(readers.iter().map(|reader| heddle_rt::read(reader, vec![0; 4]))).await }
        });
        heddle_rt::yield_now().await;
        let written = heddle_rt::batch(
            pairs.iter().enumerate().map(|(i, pair)| heddle_rt::write(&pair.1, vec![i as u8; 2])),
        )
        .await;
        assert!(written.iter().all(|(result, _)| matches!(result, Ok(2))));
        for (number, (length, buffer)) in reading.await.unwrap().into_iter().enumerate() {
            assert_eq!(&buffer[..length.unwrap()], [number as u8; 2]);
        }
    });
}

/// Polls once.
fn poll_once<F: Future>(future: core::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn dropped_calls_leave_the_data_and_the_memory_alone() {
    run(async {
        let (one, other) = UnixStream::pair().unwrap();
        for round in 0..200_u8 {
            let mut buffer = [0xee; 16];
            {
                let file = one.as_fd();
                // SAFETY: the future is dropped at the end of the block.
                let mut reading = pin!(unsafe { heddle_rt::read_borrowed(file, &mut buffer) });
                assert!(poll_once(reading.as_mut()).is_pending());
            }
            drop(Box::pin(heddle_rt::read(&one, vec![0; 16])));
            {
                let mut owned = Box::pin(heddle_rt::read(&one, vec![0; 16]));
                assert!(poll_once(owned.as_mut()).is_pending());
            }
            // The owned call's cancellation is under way; a result that it takes from us would be a lost byte.
            heddle_rt::nanosleep(Duration::from_micros(200).into()).await.unwrap();
            heddle_rt::write(&other, vec![round; 4]).await.0.unwrap();
            assert_eq!(buffer, [0xee; 16]);
            let (length, got) = heddle_rt::read(&one, vec![0; 16]).await;
            assert_eq!(&got[..length.unwrap()], [round; 4]);
        }
    });
}

#[test]
fn the_synchronous_forms_do_the_same() {
    let (reader, writer) = io::pipe().unwrap();
    assert_eq!(heddle_rt::write_sync(&writer, b"abc").unwrap(), 3);
    let mut buffer = [0; 8];
    assert_eq!(heddle_rt::read_sync(&reader, &mut buffer).unwrap(), 3);
    assert_eq!(&buffer[..3], b"abc");
    let mut entries = [PollFd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
    assert_eq!(heddle_rt::poll_sync(&mut entries, 0).unwrap(), 0);
    heddle_rt::nanosleep_sync(Span::from(Duration::from_micros(1))).unwrap();
    heddle_rt::close_sync(OwnedFd::from(reader).into()).unwrap();
}

#[test]
fn non_blocking_descriptors_are_not_waited_for() {
    run(async {
        let (one, other) = UnixStream::pair().unwrap();
        one.set_nonblocking(true).unwrap();
        let (result, _) = heddle_rt::read(&one, vec![0; 1]).await;
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(other);
    });
}

#[test]
fn coroutine_run_ends_with_the_last_coroutine() {
    let done = Arc::new(AtomicUsize::new(0));
    let inner = done.clone();
    let main = async move {
        for level in 0..64 {
            let done = inner.clone();
            let child = async move {
                heddle_rt::nanosleep(Duration::from_millis(1).into()).await.unwrap();
                done.fetch_add(1, Ordering::Relaxed);
            };
            heddle_rt::coroutine_run(child, level).unwrap();
        }
    };
    heddle_rt::coroutine_run(main, 32).unwrap();
    assert_eq!(done.load(Ordering::Relaxed), 64);
}
