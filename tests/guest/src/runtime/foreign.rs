//! Asynchronous calls that are awaited with wakers of other executors, which may panic and call again, and what such a
//! program's buffers do when they are dropped.
#![allow(unsafe_code, reason = "the traits of buffers are unsafe")]

use std::future::Future;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use heddle_rt::{Buffer, BufferMut, Builder};

use crate::harness::{OrFail, Outcome};
use crate::{expect, expect_eq};

crate::tests! {
    wakers_of_others_panic_and_call_again
    buffers_of_dropped_calls_panic_and_call_again
    more_results_than_the_ring_has_room_for
}

/// Makes a call when it is woken, and then panics.
struct Evil {
    file: UnixStream,
    woken: AtomicUsize,
}

/// A call that waits, is polled once, and is dropped.
fn call_for_a_moment(file: &UnixStream) {
    let mut call = Box::pin(heddle_rt::recv(file, vec![0; 1], 0));
    let _ = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
}

impl Wake for Evil {
    fn wake(self: Arc<Self>) {
        self.woken.fetch_add(1, Ordering::SeqCst);
        call_for_a_moment(&self.file);
        panic!("as planned");
    }
}

fn wakers_of_others_panic_and_call_again() -> Outcome {
    for threads in [1, 2] {
        Builder::new().threads(threads).run(async {
            let (quiet, _other) = UnixStream::pair().or_fail()?;
            let evil = Arc::new(Evil { file: quiet, woken: AtomicUsize::new(0) });
            let (one, other) = UnixStream::pair().or_fail()?;
            let waker = Waker::from(evil.clone());
            for round in 1..=50_usize {
                let mut calls = Vec::new();
                for _ in 0..3 {
                    let mut call = Box::pin(heddle_rt::recv(&one, vec![0; 1], 0));
                    expect!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
                    calls.push(call);
                }
                expect_eq!(heddle_rt::send(&other, "abc", 0).await.0.or_fail()?, 3);
                while evil.woken.load(Ordering::SeqCst) < 3 * round {
                    heddle_rt::nanosleep(Duration::from_micros(100).into()).await.or_fail()?;
                }
                for call in calls {
                    expect_eq!(call.await.0.or_fail()?, 1);
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// A buffer whose drop makes a call and then panics.
struct EvilBuffer {
    bytes: [u8; 4],
    place: Option<Box<[u8]>>,
    file: UnixStream,
    dropped: Arc<AtomicUsize>,
}

// SAFETY: the bytes are in an allocation of their own.
unsafe impl Buffer for EvilBuffer {
    fn bytes(&self) -> &[u8] {
        self.place.as_deref().unwrap_or(&[])
    }
}

// SAFETY: as above.
unsafe impl BufferMut for EvilBuffer {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.place.as_deref_mut().unwrap_or(&mut [])
    }
}

impl Drop for EvilBuffer {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
        call_for_a_moment(&self.file);
        if !std::thread::panicking() {
            panic!("as planned: {:?}", self.bytes);
        }
    }
}

fn buffers_of_dropped_calls_panic_and_call_again() -> Outcome {
    const CALLS: usize = 60;
    Builder::new().threads(2).run(async {
        let (quiet, _other) = UnixStream::pair().or_fail()?;
        let (one, other) = UnixStream::pair().or_fail()?;
        let dropped = Arc::new(AtomicUsize::new(0));
        for _ in 0..CALLS {
            let file = quiet.try_clone().or_fail()?;
            let (bytes, place) = ([0; 4], Some(vec![0; 4].into()));
            let buffer = EvilBuffer { bytes, place, file, dropped: dropped.clone() };
            let mut call = Box::pin(heddle_rt::recv(&one, buffer, 0));
            expect!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            // On Heddle the buffer goes when the kernel has let go of it; on Linux now.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(call)));
        }
        while dropped.load(Ordering::SeqCst) < CALLS {
            heddle_rt::nanosleep(Duration::from_micros(100).into()).await.or_fail()?;
        }
        expect_eq!(heddle_rt::send(&other, "left", 0).await.0.or_fail()?, 4);
        let (length, bytes) = heddle_rt::recv(&one, vec![0; 8], 0).await;
        expect_eq!(bytes[..length.or_fail()?], b"left"[..]);
        Ok(())
    })
}

/// Waits whose results come all at once, while the ring is replaced by larger ones, with wakers of others among them.
fn more_results_than_the_ring_has_room_for() -> Outcome {
    const CALLS: usize = 3000;
    type Waiting<'a> = Pin<Box<dyn Future<Output = std::io::Result<usize>> + 'a>>;
    Builder::new().threads(1).run(async {
        let (quiet, _other) = UnixStream::pair().or_fail()?;
        let evil = Arc::new(Evil { file: quiet, woken: AtomicUsize::new(0) });
        let waker = Waker::from(evil.clone());
        let (one, other) = UnixStream::pair().or_fail()?;
        let mut calls: Vec<Waiting<'_>> = Vec::new();
        for number in 0..CALLS {
            let one = &one;
            let mut call: Waiting<'_> = Box::pin(async move { heddle_rt::recv(one, vec![0; 1], 0).await.0 });
            let waker = if number % 10 == 0 { &waker } else { Waker::noop() };
            expect!(call.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
            calls.push(call);
        }
        drop(other);
        while evil.woken.load(Ordering::SeqCst) < CALLS / 10 {
            heddle_rt::nanosleep(Duration::from_millis(1).into()).await.or_fail()?;
        }
        for call in calls {
            expect_eq!(call.await.or_fail()?, 0);
        }
        Ok(())
    })
}
