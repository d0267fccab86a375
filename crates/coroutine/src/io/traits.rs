//! The traits by which others read and write: those of `futures`, and those of tokio.

use super::Async;
use crate::os::AsFd;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
#[cfg(unix)]
use std::os::unix::net::UnixStream;

/// Streams of bytes that can be told that no more will be written.
pub trait Stream: AsFd + Read + Write {
    /// Ends the direction of writing. A stream that cannot only flushes.
    ///
    /// # Errors
    /// The error of the shutdown.
    fn end_writing(&mut self) -> io::Result<()> {
        self.flush()
    }
}

impl Stream for TcpStream {
    fn end_writing(&mut self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

#[cfg(unix)]
impl Stream for UnixStream {
    fn end_writing(&mut self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

/// Ends the direction of writing; a peer that has gone first is no error.
fn poll_end<T: Stream + Unpin>(stream: &mut Async<T>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    stream.poll_with(true, cx, T::end_writing).map(|ended| match ended {
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        ended => ended,
    })
}

#[cfg(feature = "futures-io")]
impl<T: Stream + Unpin> futures_io::AsyncRead for Async<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(false, cx, |stream| stream.read(buffer))
    }
}

#[cfg(feature = "futures-io")]
impl<T: Stream + Unpin> futures_io::AsyncWrite for Async<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_with(true, cx, |stream| stream.write(bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_with(true, cx, T::flush)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        poll_end(&mut self, cx)
    }
}

#[cfg(feature = "tokio-io")]
impl<T: Stream + Unpin> tokio::io::AsyncRead for Async<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = self.poll_with(false, cx, |stream| stream.read(buffer.initialize_unfilled()));
        read.map(|read| read.map(|length| buffer.advance(length)))
    }
}

#[cfg(feature = "tokio-io")]
impl<T: Stream + Unpin> tokio::io::AsyncWrite for Async<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_with(true, cx, |stream| stream.write(bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_with(true, cx, T::flush)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        poll_end(&mut self, cx)
    }
}
