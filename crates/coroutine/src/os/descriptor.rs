//! Objects that a poller can wait for: file descriptors, and on Windows sockets.

use std::io;

#[cfg(unix)]
pub(crate) use std::os::fd::{AsFd, BorrowedFd, RawFd};
#[cfg(windows)]
pub(crate) use std::os::windows::io::{AsSocket as AsFd, BorrowedSocket as BorrowedFd, RawSocket as RawFd};

/// The descriptor of `of`.
#[inline]
pub(crate) fn borrow<T: AsFd>(of: &T) -> BorrowedFd<'_> {
    #[cfg(unix)]
    return of.as_fd();
    #[cfg(windows)]
    return of.as_socket();
}

/// The number of a descriptor.
#[inline]
pub(crate) fn raw(fd: BorrowedFd<'_>) -> RawFd {
    #[cfg(unix)]
    return std::os::fd::AsRawFd::as_raw_fd(&fd);
    #[cfg(windows)]
    return std::os::windows::io::AsRawSocket::as_raw_socket(&fd);
}

/// The descriptor of a number.
///
/// # Safety
/// It is open as long as the result is used.
#[inline]
#[allow(unsafe_code)]
pub(crate) unsafe fn borrow_raw<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: see the contract.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Puts the file into non-blocking mode.
#[cfg(unix)]
#[allow(unsafe_code)]
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: asks for a number.
    let flags = unsafe { libc::fcntl(raw(fd), libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    if flags & libc::O_NONBLOCK != 0 {
        return Ok(());
    }
    // SAFETY: sets a number.
    let set = unsafe { libc::fcntl(raw(fd), libc::F_SETFL, flags | libc::O_NONBLOCK) };
    if set < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Puts the socket into non-blocking mode.
#[cfg(windows)]
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    socket2::SockRef::from(&fd).set_nonblocking(true)
}
