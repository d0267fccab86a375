//! File descriptors whose readiness coroutines wait for.

use crate::reactor;
use core::future::Future;
use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// A file descriptor in non-blocking mode (a socket, a pipe), waited for by the executors' reactor.
#[derive(Debug)]
pub struct Async<T: AsFd> {
    inner: T,
    key: usize,
}

impl<T: AsFd> Async<T> {
    /// Takes `inner`, which is in non-blocking mode.
    pub fn new(inner: T) -> io::Result<Async<T>> {
        let key = reactor::get()?.add_source(inner.as_fd())?;
        Ok(Async { inner, key })
    }

    /// What was wrapped. Closing it otherwise than by dropping this is not possible.
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
        poll_fn(|cx| {
            loop {
                match operation(&self.inner) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        // Readiness that came since the attempt is reported at once: interest is level-triggered.
                        match reactor::get() {
                            Ok(reactor) => reactor.watch(self.key, writable, cx.waker()),
                            Err(error) => return Poll::Ready(Err(error)),
                        }
                        return Poll::Pending;
                    }
                    outcome => return Poll::Ready(outcome),
                }
            }
        })
        .await
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

/// What a descriptor is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
    Ready { fd, direction, waker: None }
}

/// See [`ready`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Ready<'a> {
    fd: BorrowedFd<'a>,
    direction: Direction,
    waker: Option<Waker>,
}

impl Ready<'_> {
    fn is_ready(&self) -> bool {
        let events = if self.direction == Direction::Write { libc::POLLOUT } else { libc::POLLIN };
        let mut entry = libc::pollfd { fd: self.fd.as_raw_fd(), events, revents: 0 };
        #[allow(unsafe_code)]
        // SAFETY: one entry, which lives for the call.
        let found = unsafe { libc::poll(&raw mut entry, 1, 0) };
        found != 0
    }
}

impl Future for Ready<'_> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.waker.is_some() && self.is_ready() {
            return Poll::Ready(Ok(()));
        }
        // Readiness that is there already is reported at once: interest is level-triggered.
        let writable = self.direction == Direction::Write;
        let watched =
            reactor::get().and_then(|reactor| reactor.watch_raw(self.fd.as_raw_fd(), writable, cx.waker()));
        match watched {
            Ok(()) => {
                self.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl Drop for Ready<'_> {
    fn drop(&mut self) {
        if let (Some(waker), Ok(reactor)) = (&self.waker, reactor::get()) {
            reactor.unwatch_raw(self.fd.as_raw_fd(), self.direction == Direction::Write, waker);
        }
    }
}

impl<T: AsFd> Drop for Async<T> {
    fn drop(&mut self) {
        if let Ok(reactor) = reactor::get() {
            reactor.remove_source(self.key, self.inner.as_fd());
        }
    }
}
