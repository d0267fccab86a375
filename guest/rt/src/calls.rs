//! The system calls, each in three forms made from one description: `read` is asynchronous and owns what it uses,
//! `read_sync` keeps the thread, `read_borrowed` is asynchronous and borrows, which makes it `unsafe`.
//!
//! The owned forms give their buffers back beside the result. A form that is dropped cancels its call: a buffer it owns
//! lives until the kernel has let go of it, and the drop of a borrowed form waits for that.

use crate::net::PeerAddress;
use heddle_rt_macros::call;
use libc::{
    SYS_accept4, SYS_close, SYS_connect, SYS_fsync, SYS_futex, SYS_nanosleep, SYS_openat, SYS_poll,
    SYS_pread64, SYS_pwrite64, SYS_read, SYS_recvfrom, SYS_sendto, SYS_waitid, SYS_write,
};
use std::os::fd::OwnedFd;

pub use libc::pollfd as PollFd;

/// The result of [`waitid`] about a child: the first members of a `siginfo_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ChildInfo {
    /// `SIGCHLD`, or 0 if there was no child to tell of.
    pub signal: i32,
    /// 0.
    pub errno: i32,
    /// `CLD_EXITED` and its kin.
    pub code: i32,
    padding: i32,
    /// The child.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its status, or the signal that ended it.
    pub status: i32,
    rest: [[u32; 5]; 5],
}

const _: () = assert!(size_of::<ChildInfo>() == size_of::<libc::siginfo_t>());

/// The directory that relative paths start from: the working directory.
const WORKING_DIRECTORY: u64 = libc::AT_FDCWD as u64;
const PRIVATE_WAIT: u64 = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as u64;

/// read(2): up to as many bytes as the buffer has.
#[call(SYS_read)]
fn read(file: Fd, buffer: Output) -> usize {
    [file.word(), buffer.address(), buffer.length(), 0, 0, 0]
}

/// write(2).
#[call(SYS_write)]
fn write(file: Fd, buffer: Input) -> usize {
    [file.word(), buffer.address(), buffer.length(), 0, 0, 0]
}

/// pread(2).
#[call(SYS_pread64)]
fn read_at(file: Fd, buffer: Output, position: u64) -> usize {
    [file.word(), buffer.address(), buffer.length(), position, 0, 0]
}

/// pwrite(2).
#[call(SYS_pwrite64)]
fn write_at(file: Fd, buffer: Input, position: u64) -> usize {
    [file.word(), buffer.address(), buffer.length(), position, 0, 0]
}

/// open(2), with `O_CLOEXEC`.
#[call(SYS_openat)]
fn open(path: Path, flags: i32, mode: u32) -> OwnedFd {
    [WORKING_DIRECTORY, path.address(), (flags | libc::O_CLOEXEC) as u64, mode.into(), 0, 0]
}

/// close(2).
#[call(SYS_close)]
fn close(file: Closing) -> () {
    [file.word(), 0, 0, 0, 0, 0]
}

/// accept4(2), with `SOCK_CLOEXEC` and these flags; the peer's address is not asked for.
#[call(SYS_accept4)]
fn accept(socket: Fd, flags: i32) -> OwnedFd {
    [socket.word(), 0, 0, (flags | libc::SOCK_CLOEXEC) as u64, 0, 0]
}

/// accept4(2), with `SOCK_CLOEXEC` and these flags, and with the peer's address.
#[call(SYS_accept4)]
fn accept_from(socket: Fd, peer: Record<PeerAddress>, flags: i32) -> OwnedFd {
    let flags = (flags | libc::SOCK_CLOEXEC) as u64;
    [socket.word(), peer.address() + PeerAddress::BYTES_OFFSET, peer.address(), flags, 0, 0]
}

/// connect(2), to the address whose bytes are a `struct sockaddr`.
#[call(SYS_connect)]
fn connect(socket: Fd, address: Input) -> () {
    [socket.word(), address.address(), address.length(), 0, 0, 0]
}

/// send(2).
#[call(SYS_sendto)]
fn send(socket: Fd, buffer: Input, flags: i32) -> usize {
    [socket.word(), buffer.address(), buffer.length(), flags as u64, 0, 0]
}

/// recv(2).
#[call(SYS_recvfrom)]
fn recv(socket: Fd, buffer: Output, flags: i32) -> usize {
    [socket.word(), buffer.address(), buffer.length(), flags as u64, 0, 0]
}

/// sendto(2), to the address whose bytes are a `struct sockaddr`.
#[call(SYS_sendto)]
fn send_to(socket: Fd, buffer: Input, flags: i32, address: Input) -> usize {
    [socket.word(), buffer.address(), buffer.length(), flags as u64, address.address(), address.length()]
}

/// recvfrom(2), with the sender's address.
#[call(SYS_recvfrom)]
fn recv_from(socket: Fd, buffer: Output, flags: i32, peer: Record<PeerAddress>) -> usize {
    let from = peer.address() + PeerAddress::BYTES_OFFSET;
    [socket.word(), buffer.address(), buffer.length(), flags as u64, from, peer.address()]
}

/// poll(2), with a timeout in milliseconds, or -1.
#[call(SYS_poll)]
fn poll(files: Records<PollFd>, timeout_ms: i32) -> usize {
    [files.address(), files.length(), timeout_ms as u64, 0, 0, 0]
}

/// nanosleep(2).
#[call(SYS_nanosleep)]
fn nanosleep(time: Span) -> () {
    [time.address(), 0, 0, 0, 0, 0]
}

/// futex(2), `FUTEX_WAIT` within the process: waits while the word has the value `expected`. May end without a wake.
#[call(SYS_futex)]
fn futex_wait(word: Word, expected: u32) -> () {
    [word.address(), PRIVATE_WAIT, expected.into(), 0, 0, 0]
}

/// waitid(2): waits for a child of this kind (`P_ALL`, `P_PID`, `P_PGID`) and number.
#[call(SYS_waitid)]
fn waitid(kind: u32, id: u32, info: Record<ChildInfo>, options: i32) -> () {
    [kind.into(), id.into(), info.address(), options as u64, 0, 0]
}

/// fsync(2).
#[call(SYS_fsync)]
fn fsync(file: Fd) -> () {
    [file.word(), 0, 0, 0, 0, 0]
}
