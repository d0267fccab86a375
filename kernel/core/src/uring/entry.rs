//! An entry of the submission ring.

use linux_raw_sys::io_uring::{io_uring_op as Op, io_uring_sqe_flags_bit};

use super::{InvalidEntry, SQE_WORDS, is_system_call};

bitflags::bitflags! {
    /// The flags of an entry, `IOSQE_`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SqeFlags: u8 {
        /// `fd` is an index of the registered files.
        const FIXED_FILE = 1 << io_uring_sqe_flags_bit::IOSQE_FIXED_FILE_BIT as u8;
        /// It starts when all before it have ended, and all behind it when it has.
        const DRAIN = 1 << io_uring_sqe_flags_bit::IOSQE_IO_DRAIN_BIT as u8;
        /// The next one starts when this one has ended well.
        const LINK = 1 << io_uring_sqe_flags_bit::IOSQE_IO_LINK_BIT as u8;
        /// The next one starts when this one has ended.
        const HARDLINK = 1 << io_uring_sqe_flags_bit::IOSQE_IO_HARDLINK_BIT as u8;
        /// It need not be tried at once.
        const ASYNC = 1 << io_uring_sqe_flags_bit::IOSQE_ASYNC_BIT as u8;
        /// The kernel chooses the buffer, from a group of those that the program provides.
        const BUFFER_SELECT = 1 << io_uring_sqe_flags_bit::IOSQE_BUFFER_SELECT_BIT as u8;
        /// No completion if it ends well.
        const SKIP_SUCCESS = 1 << io_uring_sqe_flags_bit::IOSQE_CQE_SKIP_SUCCESS_BIT as u8;
    }
}

/// An entry of the submission ring. The names are Linux's, of the first use of each field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are Linux's; io_uring_enter(2) explains them")]
pub struct Sqe {
    pub opcode: u8,
    pub flags: u8,
    pub ioprio: u16,
    pub fd: i32,
    pub off: u64,
    pub addr: u64,
    pub len: u32,
    pub op_flags: u32,
    pub user_data: u64,
    pub buf_index: u16,
    pub personality: u16,
    pub file_index: u32,
    pub addr3: u64,
}

impl Sqe {
    /// The entry that consists of these words.
    #[must_use]
    pub const fn from_words(words: [u64; SQE_WORDS]) -> Self {
        let [head, off, addr, lengths, user_data, numbers, addr3, _] = words;
        Self {
            opcode: head as u8,
            flags: (head >> 8) as u8,
            ioprio: (head >> 16) as u16,
            fd: (head >> 32) as i32,
            off,
            addr,
            len: lengths as u32,
            op_flags: (lengths >> 32) as u32,
            user_data,
            buf_index: numbers as u16,
            personality: (numbers >> 16) as u16,
            file_index: (numbers >> 32) as u32,
            addr3,
        }
    }

    /// Its flags.
    ///
    /// # Errors
    /// [`InvalidEntry`]: one is unknown.
    pub const fn known_flags(&self) -> Result<SqeFlags, InvalidEntry> {
        match SqeFlags::from_bits(self.flags) {
            Some(flags) => Ok(flags),
            None => Err(InvalidEntry),
        }
    }

    /// Whether the next entry belongs to the same chain.
    #[must_use]
    pub const fn is_linked(&self) -> bool {
        SqeFlags::from_bits_truncate(self.flags).intersects(SqeFlags::LINK.union(SqeFlags::HARDLINK))
    }

    /// Whether it is this operation.
    #[must_use]
    pub const fn is(&self, operation: Op) -> bool {
        self.opcode == operation as u8
    }

    /// Whether it has a flag.
    #[must_use]
    pub const fn has(&self, flag: SqeFlags) -> bool {
        self.flags & flag.bits() != 0
    }

    /// Whether it is one of these operations.
    #[must_use]
    pub fn is_any(&self, operations: &[Op]) -> bool {
        operations.iter().any(|&operation| self.is(operation))
    }

    /// Whether `fd` names the file that it is about, so that it may be a registered one.
    #[must_use]
    pub fn takes_file(&self) -> bool {
        const OWN: [Op; 6] = [
            Op::IORING_OP_POLL_ADD,
            Op::IORING_OP_SPLICE,
            Op::IORING_OP_TEE,
            Op::IORING_OP_URING_CMD,
            Op::IORING_OP_SEND_ZC,
            Op::IORING_OP_SENDMSG_ZC,
        ];
        const NONE: [Op; 3] = [Op::IORING_OP_SOCKET, Op::IORING_OP_EPOLL_CTL, Op::IORING_OP_MADVISE];
        self.is_any(&OWN)
            || self.is(Op::IORING_OP_MSG_RING)
            || is_system_call(self.opcode) && !self.is_path_operation() && !self.is_any(&NONE)
    }

    /// Whether it is about names, so that a registered file makes no sense.
    #[must_use]
    pub fn is_path_operation(&self) -> bool {
        self.is_any(&[
            Op::IORING_OP_OPENAT,
            Op::IORING_OP_OPENAT2,
            Op::IORING_OP_CLOSE,
            Op::IORING_OP_STATX,
            Op::IORING_OP_UNLINKAT,
            Op::IORING_OP_RENAMEAT,
            Op::IORING_OP_MKDIRAT,
            Op::IORING_OP_SYMLINKAT,
            Op::IORING_OP_LINKAT,
            Op::IORING_OP_SETXATTR,
            Op::IORING_OP_GETXATTR,
        ])
    }

    /// Whether it reads or writes by offset and length, so that its I/O priority counts.
    #[must_use]
    pub fn is_transfer(&self) -> bool {
        self.is_read() || self.is_any(&[Op::IORING_OP_WRITE, Op::IORING_OP_WRITEV, Op::IORING_OP_WRITE_FIXED])
    }

    /// Whether it reads by offset and length.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.is_any(&[Op::IORING_OP_READ, Op::IORING_OP_READV, Op::IORING_OP_READ_FIXED])
    }

    /// Whether it sends or receives.
    #[must_use]
    pub fn is_message(&self) -> bool {
        self.is_receive()
            || self.is_any(&[
                Op::IORING_OP_SEND,
                Op::IORING_OP_SENDMSG,
                Op::IORING_OP_SEND_ZC,
                Op::IORING_OP_SENDMSG_ZC,
            ])
    }

    /// Whether it receives.
    #[must_use]
    pub fn is_receive(&self) -> bool {
        self.is(Op::IORING_OP_RECV) || self.is(Op::IORING_OP_RECVMSG)
    }

    /// Whether the kernel may choose its buffer.
    #[must_use]
    pub fn may_select_buffer(&self) -> bool {
        self.is_receive() || self.is(Op::IORING_OP_READ) || self.is(Op::IORING_OP_READV)
    }

    /// Whether it may be submitted to a ring with `IORING_SETUP_IOPOLL`.
    #[must_use]
    pub fn may_be_polled(&self) -> bool {
        self.is_transfer()
            || self.is_any(&[
                Op::IORING_OP_NOP,
                Op::IORING_OP_FILES_UPDATE,
                Op::IORING_OP_PROVIDE_BUFFERS,
                Op::IORING_OP_REMOVE_BUFFERS,
                Op::IORING_OP_MSG_RING,
                Op::IORING_OP_URING_CMD,
            ])
    }
}
