//! `io_uring`: the layout of the rings, and the entries that programs submit.
//!
//! An entry ([`Sqe`]) is a few words that a program wrote. Most name a system call with its arguments in other places;
//! [`Sqe::system_call`] puts them in their order.

use linux_raw_sys::general as linux;
use linux_raw_sys::io_uring::{
    IORING_FSYNC_DATASYNC, IORING_SETUP_CLAMP, IORING_SETUP_CQSIZE, io_uring_op as Op, io_uring_sqe_flags_bit,
};

/// An entry, a flag or a number of entries that Linux answers with `EINVAL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidEntry;

/// Words of an entry.
pub const SQE_WORDS: usize = 8;
/// Bytes of an entry.
pub const SQE_BYTES: usize = SQE_WORDS * 8;
/// Bytes of a completion.
pub const CQE_BYTES: usize = 16;

/// Where the fields are in the pages of the rings.
pub mod at {
    /// The kernel's index of the submission ring.
    pub const SQ_HEAD: usize = 0;
    /// The program's.
    pub const SQ_TAIL: usize = 64;
    /// The program's index of the completion ring.
    pub const CQ_HEAD: usize = 128;
    /// The kernel's.
    pub const CQ_TAIL: usize = 192;
    /// Entries of the submission ring, less one.
    pub const SQ_MASK: usize = 256;
    /// Entries of the completion ring, less one.
    pub const CQ_MASK: usize = 260;
    /// Entries of the submission ring.
    pub const SQ_ENTRIES: usize = 264;
    /// Entries of the completion ring.
    pub const CQ_ENTRIES: usize = 268;
    /// Indices in the submission ring that named no entry.
    pub const SQ_DROPPED: usize = 272;
    /// The kernel's flags (`IORING_SQ_`).
    pub const SQ_FLAGS: usize = 276;
    /// The program's flags (`IORING_CQ_`).
    pub const CQ_FLAGS: usize = 280;
    /// Completions that were lost for want of memory.
    pub const CQ_OVERFLOW: usize = 284;
    /// The completions; behind them the indices of the submission ring.
    pub const CQES: usize = 320;
}

/// The most entries of the submission ring, as in Linux.
pub const ENTRIES_MAX: u32 = 32768;

/// The sizes of a pair of rings: powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    /// Entries of the submission ring.
    pub sq_entries: u32,
    /// Entries of the completion ring.
    pub cq_entries: u32,
}

impl RingLayout {
    /// The sizes for a program that asked for `entries`, and with `IORING_SETUP_CQSIZE` for `cq_entries`.
    ///
    /// # Errors
    /// [`InvalidEntry`]: none, or too many.
    pub const fn new(entries: u32, cq_entries: u32, setup: u32) -> Result<Self, InvalidEntry> {
        let clamps = setup & IORING_SETUP_CLAMP != 0;
        let Some(sq_entries) = size(entries, ENTRIES_MAX, clamps) else { return Err(InvalidEntry) };
        if setup & IORING_SETUP_CQSIZE == 0 {
            return Ok(Self { sq_entries, cq_entries: sq_entries * 2 });
        }
        match size(cq_entries, ENTRIES_MAX * 2, clamps) {
            Some(cq_entries) if cq_entries >= sq_entries => Ok(Self { sq_entries, cq_entries }),
            _ => Err(InvalidEntry),
        }
    }

    /// Where a completion is; the index may be any.
    #[must_use]
    pub const fn cqe(&self, index: u32) -> usize {
        at::CQES + (index & (self.cq_entries - 1)) as usize * CQE_BYTES
    }

    /// Where an index of the submission ring is.
    #[must_use]
    pub const fn sq_index(&self, index: u32) -> usize {
        self.array() + (index & (self.sq_entries - 1)) as usize * 4
    }

    /// Where the indices of the submission ring begin.
    #[must_use]
    pub const fn array(&self) -> usize {
        at::CQES + self.cq_entries as usize * CQE_BYTES
    }

    /// Bytes of both rings.
    #[must_use]
    pub const fn ring_bytes(&self) -> usize {
        self.array() + self.sq_entries as usize * 4
    }

    /// Bytes of the entries.
    #[must_use]
    pub const fn sqe_bytes(&self) -> usize {
        self.sq_entries as usize * SQE_BYTES
    }
}

const fn size(asked: u32, most: u32, clamps: bool) -> Option<u32> {
    match asked {
        0 => None,
        asked if asked <= most => Some(asked.next_power_of_two()),
        _ if clamps => Some(most),
        _ => None,
    }
}

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

    /// Whether `fd` names the file that it is about, so that it may be a registered one.
    #[must_use]
    pub fn accepts_fixed_file(&self) -> bool {
        self.is(Op::IORING_OP_POLL_ADD)
            || self.opcode != Op::IORING_OP_SOCKET as u8
                && is_system_call(self.opcode)
                && !self.is_path_operation()
    }

    fn is_path_operation(&self) -> bool {
        [
            Op::IORING_OP_OPENAT,
            Op::IORING_OP_OPENAT2,
            Op::IORING_OP_CLOSE,
            Op::IORING_OP_STATX,
            Op::IORING_OP_UNLINKAT,
            Op::IORING_OP_RENAMEAT,
            Op::IORING_OP_MKDIRAT,
        ]
        .iter()
        .any(|&operation| self.is(operation))
    }

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
                self.require(self.op_flags == 0)?;
                let number = if is_positioned { linux::__NR_pread64 } else { linux::__NR_read };
                call(number, [fd, self.addr, length, self.off, 0, 0])
            }
            op if op == Op::IORING_OP_WRITE as u8 || op == Op::IORING_OP_WRITE_FIXED as u8 => {
                self.require(self.op_flags == 0)?;
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
                self.require(self.op_flags & !IORING_FSYNC_DATASYNC == 0 && self.addr == 0)?;
                let is_data = self.op_flags & IORING_FSYNC_DATASYNC != 0;
                let number = if is_data { linux::__NR_fdatasync } else { linux::__NR_fsync };
                call(number, [fd, 0, 0, 0, 0, 0])
            }
            op if op == Op::IORING_OP_SENDMSG as u8 => {
                call(linux::__NR_sendmsg, [fd, self.addr, flags, 0, 0, 0])
            }
            op if op == Op::IORING_OP_RECVMSG as u8 => {
                call(linux::__NR_recvmsg, [fd, self.addr, flags, 0, 0, 0])
            }
            op if op == Op::IORING_OP_SEND as u8 => {
                let address_length = u64::from(self.file_index as u16);
                call(linux::__NR_sendto, [fd, self.addr, length, flags, self.off, address_length])
            }
            op if op == Op::IORING_OP_RECV as u8 => {
                self.require(self.off == 0)?;
                call(linux::__NR_recvfrom, [fd, self.addr, length, flags, 0, 0])
            }
            op if op == Op::IORING_OP_ACCEPT as u8 => {
                self.require(self.len == 0 && self.buf_index == 0 && self.file_index == 0)?;
                call(linux::__NR_accept4, [fd, self.addr, self.off, flags, 0, 0])
            }
            op if op == Op::IORING_OP_CONNECT as u8 => {
                self.require(self.len == 0 && self.op_flags == 0 && self.file_index == 0)?;
                call(linux::__NR_connect, [fd, self.addr, self.off, 0, 0, 0])
            }
            op if op == Op::IORING_OP_SHUTDOWN as u8 => {
                self.require(self.off == 0 && self.addr == 0 && self.op_flags == 0)?;
                call(linux::__NR_shutdown, [fd, length, 0, 0, 0, 0])
            }
            op if op == Op::IORING_OP_FALLOCATE as u8 => {
                self.require(self.op_flags == 0)?;
                call(linux::__NR_fallocate, [fd, length, self.off, self.addr, 0, 0])
            }
            _ => self.call_about_names(),
        }
    }

    /// As [`Self::system_call`], of those that take no registered file.
    fn call_about_names(&self) -> Result<Option<SystemCall>, InvalidEntry> {
        let (fd, length, flags) = (self.fd as u64, u64::from(self.len), u64::from(self.op_flags));
        let call = |number, arguments| Ok(Some(SystemCall { number, arguments }));
        self.require(self.flags & SqeFlags::FIXED_FILE.bits() == 0)?;
        match self.opcode {
            op if op == Op::IORING_OP_OPENAT as u8 => {
                self.require(self.off == 0 && self.buf_index == 0 && self.file_index == 0)?;
                call(linux::__NR_openat, [fd, self.addr, flags, length, 0, 0])
            }
            op if op == Op::IORING_OP_OPENAT2 as u8 => {
                self.require(self.op_flags == 0 && self.buf_index == 0 && self.file_index == 0)?;
                call(linux::__NR_openat2, [fd, self.addr, self.off, length, 0, 0])
            }
            op if op == Op::IORING_OP_CLOSE as u8 => {
                let unused = self.off | self.addr | length | flags;
                self.require(unused == 0 && self.buf_index == 0 && self.file_index == 0)?;
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
                self.require(self.addr == 0 && self.op_flags == 0 && self.file_index == 0)?;
                call(linux::__NR_socket, [fd, self.off, length, 0, 0, 0])
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_two() {
        assert_eq!(RingLayout::new(0, 0, 0), Err(InvalidEntry));
        assert_eq!(RingLayout::new(5, 0, 0), Ok(RingLayout { sq_entries: 8, cq_entries: 16 }));
        assert_eq!(RingLayout::new(ENTRIES_MAX + 1, 0, 0), Err(InvalidEntry));
        let most = RingLayout { sq_entries: ENTRIES_MAX, cq_entries: ENTRIES_MAX * 2 };
        assert_eq!(RingLayout::new(u32::MAX, 0, IORING_SETUP_CLAMP), Ok(most));
        assert_eq!(RingLayout::new(8, 4, IORING_SETUP_CQSIZE), Err(InvalidEntry));
        assert_eq!(
            RingLayout::new(8, 9, IORING_SETUP_CQSIZE),
            Ok(RingLayout { sq_entries: 8, cq_entries: 16 })
        );
    }

    #[test]
    fn no_completion_crosses_a_page_and_indices_wrap() {
        let layout = RingLayout { sq_entries: 4, cq_entries: 512 };
        for index in 0..512 {
            assert!(layout.cqe(index) % 4096 <= 4096 - CQE_BYTES);
            assert_eq!(layout.cqe(index), layout.cqe(index + 512));
        }
        assert_eq!(layout.sq_index(4), layout.array());
        assert_eq!(layout.sq_index(u32::MAX) + 4, layout.ring_bytes());
    }

    #[test]
    fn a_read_is_at_a_position_where_there_are_positions() {
        let words = |off| [Op::IORING_OP_READ as u64 | 7 << 32, off, 0x1000, 64, 1, 0, 0, 0];
        let number = |off, target| Sqe::from_words(words(off)).system_call(target).unwrap().unwrap().number;
        assert_eq!(number(5, Target::Positioned), linux::__NR_pread64);
        assert_eq!(number(u64::MAX, Target::Positioned), linux::__NR_read);
        assert_eq!(number(5, Target::Other), linux::__NR_read);
        let call = Sqe::from_words(words(5)).system_call(Target::Positioned).unwrap().unwrap();
        assert_eq!(call.arguments[..4], [7, 0x1000, 64, 5]);
    }

    #[test]
    fn unknown_operations_and_flags_are_told() {
        assert!(is_system_call(Op::IORING_OP_READV as u8));
        assert!(!is_system_call(Op::IORING_OP_NOP as u8));
        assert!(!is_system_call(255));
        assert_eq!(Sqe::from_words([0x8000, 0, 0, 0, 0, 0, 0, 0]).known_flags(), Err(InvalidEntry));
        assert!(Sqe::from_words([0x400, 0, 0, 0, 0, 0, 0, 0]).is_linked());
    }
}
