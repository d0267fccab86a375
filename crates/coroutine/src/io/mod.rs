//! File descriptors whose readiness coroutines wait for; on Windows sockets.
//!
//! [`Async`] reads and writes by itself ([`Async::read`], [`Async::write_all`] and the like), and by the traits of
//! others where a feature says so: `futures-io` for those of `futures`, `tokio-io` for tokio's.

mod net;
#[cfg(any(feature = "futures-io", feature = "tokio-io"))]
mod traits;

#[cfg(any(feature = "futures-io", feature = "tokio-io"))]
pub use traits::Stream;

use crate::os::{self, AsFd, BorrowedFd};
use crate::reactor;
use core::future::Future;
use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::io;

/// A file descriptor (a socket, a pipe) in non-blocking mode, waited for by the executors' reactor.
#[derive(Debug)]
pub struct Async<T: AsFd> {
    inner: T,
    /// The reactor's numbers for the waits of whoever has it alone, and reads or writes by a trait.
    #[cfg(any(feature = "futures-io", feature = "tokio-io"))]
    waits: [u64; 2],
}

impl<T: AsFd> Async<T> {
    /// Takes `inner`, and puts it into non-blocking mode, in which it stays: that is the file's, and so other
    /// descriptors' of the same file too.
    ///
    /// # Errors
    /// `PermissionDenied` for a file that is always ready.
    pub fn new(inner: T) -> io::Result<Async<T>> {
        os::set_nonblocking(os::borrow(&inner))?;
        reactor::get()?.add_source(os::borrow(&inner))?;
        Ok(Async {
            inner,
            #[cfg(any(feature = "futures-io", feature = "tokio-io"))]
            waits: [0; 2],
        })
    }

    /// The wrapped value. Closing it otherwise than by dropping this is not possible.
    pub fn get_ref(&self) -> &T {
        &self.inner
    }

    /// Tries `operation` until it does not fail with `WouldBlock`, waiting for readability before each new attempt.
    pub async fn read_with<R>(&self, operation: impl FnMut(&T) -> io::Result<R>) -> io::Result<R> {
        self.retry(false, operation).await
    }

    /// Tries `operation` until it does not fail with `WouldBlock`, waiting for writability before each new attempt.
    pub async fn write_with<R>(&self, operation: impl FnMut(&T) -> io::Result<R>) -> io::Result<R> {
        self.retry(true, operation).await
    }

    async fn retry<R>(
        &self,
        writable: bool,
        mut operation: impl FnMut(&T) -> io::Result<R>,
    ) -> io::Result<R> {
        let mut wait = ReactorWait { fd: os::borrow(&self.inner), writable, number: 0 };
        poll_fn(|cx| {
            loop {
                match operation(&self.inner) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        return match wait.watch(cx.waker()) {
                            Ok(()) => Poll::Pending,
                            Err(error) => Poll::Ready(Err(error)),
                        };
                    }
                    outcome => return Poll::Ready(outcome),
                }
            }
        })
        .await
    }

    /// Tries `operation`, and has the caller woken for another attempt if it would block.
    #[cfg(any(feature = "futures-io", feature = "tokio-io"))]
    fn poll_with<R>(
        &mut self,
        writable: bool,
        cx: &mut Context<'_>,
        mut operation: impl FnMut(&mut T) -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        loop {
            match operation(&mut self.inner) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let number = &mut self.waits[usize::from(writable)];
                    let fd = os::raw(os::borrow(&self.inner));
                    let watched = reactor::get().and_then(|r| r.watch(fd, writable, *number, cx.waker()));
                    return match watched {
                        Ok(watched) => {
                            *number = watched;
                            Poll::Pending
                        }
                        Err(error) => Poll::Ready(Err(error)),
                    };
                }
                outcome => return Poll::Ready(outcome),
            }
        }
    }

    /// Reads what there is into `buffer`, waiting for the first byte; 0 at the end.
    ///
    /// # Errors
    /// The error of the read.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize>
    where
        for<'a> &'a T: io::Read,
    {
        self.read_with(|mut inner| io::Read::read(&mut inner, buffer)).await
    }

    /// Writes as much of `bytes` as there is room for, waiting for some.
    ///
    /// # Errors
    /// The error of the write.
    pub async fn write(&self, bytes: &[u8]) -> io::Result<usize>
    where
        for<'a> &'a T: io::Write,
    {
        self.write_with(|mut inner| io::Write::write(&mut inner, bytes)).await
    }

    /// Writes all of `bytes`.
    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()>
    where
        for<'a> &'a T: io::Write,
    {
        while !bytes.is_empty() {
            let written = self.write_with(|mut inner| io::Write::write(&mut inner, bytes)).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// Fills `buffer`.
    pub async fn read_exact(&self, buffer: &mut [u8]) -> io::Result<()>
    where
        for<'a> &'a T: io::Read,
    {
        let mut filled = 0;
        while filled < buffer.len() {
            let rest = &mut buffer[filled..];
            let read = self.read_with(|mut inner| io::Read::read(&mut inner, rest)).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            filled += read;
        }
        Ok(())
    }
}

/// The kind of readiness that is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Direction {
    /// Reading, accepting.
    Read,
    /// Writing, having connected.
    Write,
}

/// Waits until `fd` is ready, for callers that don't own it as an [`Async`]: a short attempt may still find that it is
/// not. The descriptor stays open meanwhile.
///
/// # Errors
/// `PermissionDenied` for a file that is always ready.
pub fn ready(fd: BorrowedFd<'_>, direction: Direction) -> Ready<'_> {
    Ready(ReactorWait { fd, writable: direction == Direction::Write, number: 0 })
}

/// A wait of its own, however many its coroutine has for the same descriptor.
#[derive(Debug)]
struct ReactorWait<'a> {
    fd: BorrowedFd<'a>,
    writable: bool,
    /// The reactor's number for it, 0 as long as it has none.
    number: u64,
}

impl ReactorWait<'_> {
    /// Has the reactor wake `waker`. Readiness that is there already is reported at once: interest is level-triggered.
    fn watch(&mut self, waker: &Waker) -> io::Result<()> {
        self.number = reactor::get()?.watch(os::raw(self.fd), self.writable, self.number, waker)?;
        Ok(())
    }
}

impl Drop for ReactorWait<'_> {
    fn drop(&mut self) {
        if let (true, Ok(reactor)) = (self.number != 0, reactor::get()) {
            reactor.unwatch(os::raw(self.fd), self.writable, self.number);
        }
    }
}

/// See [`ready`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Ready<'a>(ReactorWait<'a>);

impl Ready<'_> {
    /// Whether an attempt makes sense: the descriptor is ready.
    #[cfg(all(unix, not(heddle_portable)))]
    fn is_ready(&self) -> bool {
        let events = if self.0.writable { libc::POLLOUT } else { libc::POLLIN };
        let mut entry = libc::pollfd { fd: os::raw(self.0.fd), events, revents: 0 };
        #[allow(unsafe_code)]
        // SAFETY: one entry, which lives for the call.
        let found = unsafe { libc::poll(&raw mut entry, 1, 0) };
        found != 0
    }

    /// Whether an attempt makes sense: an event has ended the wait.
    #[cfg(any(not(unix), heddle_portable))]
    fn is_ready(&self) -> bool {
        let wait = &self.0;
        reactor::get().is_ok_and(|reactor| !reactor.is_watched(os::raw(wait.fd), wait.writable, wait.number))
    }
}

impl Future for Ready<'_> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.0.number != 0 && self.is_ready() {
            return Poll::Ready(Ok(()));
        }
        match self.0.watch(cx.waker()) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl<T: AsFd> Drop for Async<T> {
    fn drop(&mut self) {
        if let Ok(reactor) = reactor::get() {
            #[cfg(any(feature = "futures-io", feature = "tokio-io"))]
            for (number, writable) in self.waits.into_iter().zip([false, true]).filter(|wait| wait.0 != 0) {
                reactor.unwatch(os::raw(os::borrow(&self.inner)), writable, number);
            }
            reactor.remove_source(os::borrow(&self.inner));
        }
    }
}
