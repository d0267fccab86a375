//! The system calls that entries stand for.

use linux_raw_sys::general as linux;
use linux_raw_sys::io_uring::{IORING_FSYNC_DATASYNC, io_uring_op as Op};

use super::{InvalidEntry, Sqe};

/// No message of `io_uring` sends `SIGPIPE`: `MSG_NOSIGNAL`.
const NOSIGNAL: u64 = 0x4000;

/// A system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemCall {
    /// Its number.
    pub number: u32,
    /// Its arguments.
    pub arguments: [u64; 6],
}

/// The kinds of file that an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// One with positions.
    Positioned,
    /// One without, or none.
    Other,
}

impl Sqe {
    /// The system call that it describes, if it is one that takes its arguments as they are.
    ///
    /// # Errors
    /// [`InvalidEntry`]: it uses a field that its operation doesn't have, or a flag that is unknown.
    pub fn system_call(&self, target: Target) -> Result<Option<SystemCall>, InvalidEntry> {
        let (fd, length, flags) = (self.fd as u64, u64::from(self.len), u64::from(self.op_flags));
        let call = |number, arguments| Ok(Some(SystemCall { number, arguments }));
        let is_positioned = target == Target::Positioned && self.off != u64::MAX;
        let position = if is_positioned { self.off } else { u64::MAX };
        match self.opcode {
            op if op == Op::IORING_OP_READ as u8 || op == Op::IORING_OP_READ_FIXED as u8 => {
                let number = if is_positioned { linux::__NR_pread64 } else { linux::__NR_read };
                call(number, [fd, self.addr, length, self.off, 0, 0])
            }
            op if op == Op::IORING_OP_WRITE as u8 || op == Op::IORING_OP_WRITE_FIXED as u8 => {
                let number = if is_positioned { linux::__NR_pwrite64 } else { linux::__NR_write };
                call(number, [fd, self.addr, length, self.off, 0, 0])
            }
            op if op == Op::IORING_OP_READV as u8 => {
                call(linux::__NR_preadv2, [fd, self.addr, length, position, 0, flags])
            }
            op if op == Op::IORING_OP_WRITEV as u8 => {
                call(linux::__NR_pwritev2, [fd, self.addr, length, position, 0, flags])
            }
            op if op == Op::IORING_OP_FSYNC as u8 => {
                self.require(
                    self.op_flags & !IORING_FSYNC_DATASYNC == 0 && self.addr == 0 && self.has_no_indices(),
                )?;
                let is_data = self.op_flags & IORING_FSYNC_DATASYNC != 0;
                let number = if is_data { linux::__NR_fdatasync } else { linux::__NR_fsync };
                call(number, [fd, 0, 0, 0, 0, 0])
            }
            op if op == Op::IORING_OP_SENDMSG as u8 => {
                self.require(self.off == 0 && self.file_index == 0)?;
                call(linux::__NR_sendmsg, [fd, self.addr, flags | NOSIGNAL, 0, 0, 0])
            }
            op if op == Op::IORING_OP_RECVMSG as u8 => {
                self.require(self.off == 0 && self.file_index == 0)?;
                call(linux::__NR_recvmsg, [fd, self.addr, flags, 0, 0, 0])
            }
            op if op == Op::IORING_OP_SEND as u8 => {
                self.require(self.file_index >> 16 == 0)?;
                let address_length = u64::from(self.file_index as u16);
                let flags = flags | NOSIGNAL;
                call(linux::__NR_sendto, [fd, self.addr, length, flags, self.off, address_length])
            }
            op if op == Op::IORING_OP_RECV as u8 => {
                self.require(self.off == 0 && self.file_index == 0)?;
                call(linux::__NR_recvfrom, [fd, self.addr, length, flags, 0, 0])
            }
            op if op == Op::IORING_OP_ACCEPT as u8 => {
                self.require(self.len == 0 && self.buf_index == 0)?;
                call(linux::__NR_accept4, [fd, self.addr, self.off, flags, 0, 0])
            }
            op if op == Op::IORING_OP_CONNECT as u8 => {
                self.require(
                    self.len == 0 && self.op_flags == 0 && self.buf_index == 0 && self.file_index == 0,
                )?;
                call(linux::__NR_connect, [fd, self.addr, self.off, 0, 0, 0])
            }
            op if op == Op::IORING_OP_SHUTDOWN as u8 => {
                self.require(self.off == 0 && self.addr == 0 && self.op_flags == 0 && self.has_no_indices())?;
                call(linux::__NR_shutdown, [fd, length, 0, 0, 0, 0])
            }
            op if op == Op::IORING_OP_FALLOCATE as u8 => {
                self.require(self.op_flags == 0 && self.has_no_indices())?;
                call(linux::__NR_fallocate, [fd, length, self.off, self.addr, 0, 0])
            }
            op if op == Op::IORING_OP_FADVISE as u8 => {
                self.require(self.addr == 0 && self.has_no_indices())?;
                call(linux::__NR_fadvise64, [fd, self.off, length, flags, 0, 0])
            }
            op if op == Op::IORING_OP_SYNC_FILE_RANGE as u8 => {
                self.require(self.addr == 0 && self.has_no_indices())?;
                call(linux::__NR_sync_file_range, [fd, self.off, length, flags, 0, 0])
            }
            op if op == Op::IORING_OP_FSETXATTR as u8 => {
                call(linux::__NR_fsetxattr, [fd, self.addr, self.off, length, flags, 0])
            }
            op if op == Op::IORING_OP_FGETXATTR as u8 => {
                self.require(self.op_flags == 0)?;
                call(linux::__NR_fgetxattr, [fd, self.addr, self.off, length, 0, 0])
            }
            _ => self.call_about_names(),
        }
    }

    const fn has_no_indices(&self) -> bool {
        self.buf_index == 0 && self.file_index == 0
    }

    /// As [`Self::system_call`], of those that take no registered file.
    fn call_about_names(&self) -> Result<Option<SystemCall>, InvalidEntry> {
        let (fd, length, flags) = (self.fd as u64, u64::from(self.len), u64::from(self.op_flags));
        let call = |number, arguments| Ok(Some(SystemCall { number, arguments }));
        match self.opcode {
            op if op == Op::IORING_OP_OPENAT as u8 => {
                self.require(self.buf_index == 0)?;
                call(linux::__NR_openat, [fd, self.addr, flags, length, 0, 0])
            }
            op if op == Op::IORING_OP_OPENAT2 as u8 => {
                self.require(self.buf_index == 0)?;
                call(linux::__NR_openat2, [fd, self.addr, self.off, length, 0, 0])
            }
            op if op == Op::IORING_OP_CLOSE as u8 => {
                let unused = self.off | self.addr | length | flags;
                self.require(unused == 0 && self.buf_index == 0)?;
                call(linux::__NR_close, [fd, 0, 0, 0, 0, 0])
            }
            op if op == Op::IORING_OP_STATX as u8 => {
                self.require(self.buf_index == 0 && self.file_index == 0)?;
                call(linux::__NR_statx, [fd, self.addr, flags, length, self.off, 0])
            }
            op if op == Op::IORING_OP_UNLINKAT as u8 => {
                self.require(self.off == 0 && self.len == 0 && self.buf_index == 0 && self.file_index == 0)?;
                call(linux::__NR_unlinkat, [fd, self.addr, flags, 0, 0, 0])
            }
            op if op == Op::IORING_OP_RENAMEAT as u8 => {
                self.require(self.buf_index == 0 && self.file_index == 0)?;
                call(
                    linux::__NR_renameat2,
                    [fd, self.addr, i64::from(self.len as i32) as u64, self.off, flags, 0],
                )
            }
            op if op == Op::IORING_OP_MKDIRAT as u8 => {
                let unused = self.off | flags;
                self.require(unused == 0 && self.buf_index == 0 && self.file_index == 0)?;
                call(linux::__NR_mkdirat, [fd, self.addr, length, 0, 0, 0])
            }
            op if op == Op::IORING_OP_SOCKET as u8 => {
                self.require(self.addr == 0 && self.op_flags == 0 && self.buf_index == 0)?;
                call(linux::__NR_socket, [fd, self.off, length, 0, 0, 0])
            }
            op if op == Op::IORING_OP_SYMLINKAT as u8 => {
                self.require(self.len == 0 && self.op_flags == 0 && self.has_no_indices())?;
                call(linux::__NR_symlinkat, [self.addr, fd, self.off, 0, 0, 0])
            }
            op if op == Op::IORING_OP_LINKAT as u8 => {
                self.require(self.has_no_indices())?;
                let to = i64::from(self.len as i32) as u64;
                call(linux::__NR_linkat, [fd, self.addr, to, self.off, flags, 0])
            }
            op if op == Op::IORING_OP_MADVISE as u8 => {
                self.require(self.off == 0 && self.has_no_indices())?;
                call(linux::__NR_madvise, [self.addr, length, flags, 0, 0, 0])
            }
            op if op == Op::IORING_OP_EPOLL_CTL as u8 => {
                self.require(self.has_no_indices())?;
                call(linux::__NR_epoll_ctl, [fd, length, self.off as i32 as u64, self.addr, 0, 0])
            }
            op if op == Op::IORING_OP_SETXATTR as u8 => {
                call(linux::__NR_setxattr, [self.addr3, self.addr, self.off, length, flags, 0])
            }
            op if op == Op::IORING_OP_GETXATTR as u8 => {
                self.require(self.op_flags == 0)?;
                call(linux::__NR_getxattr, [self.addr3, self.addr, self.off, length, 0, 0])
            }
            _ => Ok(None),
        }
    }

    const fn require(&self, holds: bool) -> Result<(), InvalidEntry> {
        if holds { Ok(()) } else { Err(InvalidEntry) }
    }
}

/// Whether [`Sqe::system_call`] knows the operation.
#[must_use]
pub fn is_system_call(opcode: u8) -> bool {
    let sqe = Sqe::from_words([u64::from(opcode), 0, 0, 0, 0, 0, 0, 0]);
    matches!(sqe.system_call(Target::Other), Ok(Some(_)))
}
