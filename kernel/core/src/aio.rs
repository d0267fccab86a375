//! Native asynchronous I/O (`io_submit`): control blocks that programs submit, and the ring of their events.
//!
//! A context is known by the address of its ring, which the program may read by itself: a header of eight words and
//! events of four. The kernel writes at the tail, whoever takes events moves the head.

use linux_raw_sys::general as linux;

use crate::uring::SystemCall;

/// Bytes of a control block (`struct iocb`).
pub const CONTROL_BYTES: usize = 64;
/// Bytes of an event (`struct io_event`).
pub const EVENT_BYTES: usize = 32;
/// Bytes of the ring's header.
pub const HEADER_BYTES: usize = 32;
/// By this word a program knows a ring that it can read.
pub const MAGIC: u32 = 0xa10a_10a1;
/// The layout's version.
pub const COMPATIBLE: u32 = 1;

/// Where the words of the header are.
pub mod at {
    /// How many events there is room for, less the one that stays empty.
    pub const ENTRIES: usize = 4;
    /// The next event to take.
    pub const HEAD: usize = 8;
    /// The place of the next event to come.
    pub const TAIL: usize = 12;
    /// [`MAGIC`](super::MAGIC).
    pub const MAGIC: usize = 16;
    /// [`COMPATIBLE`](super::COMPATIBLE).
    pub const COMPATIBLE: usize = 20;
    /// [`HEADER_BYTES`](super::HEADER_BYTES).
    pub const HEADER: usize = 28;
}

/// `IOCB_FLAG_RESFD`: an eventfd is told of the end.
pub const TELLS_COUNTER: u32 = 1;
/// `IOCB_FLAG_IOPRIO`: the block has an I/O priority.
pub const HAS_PRIORITY: u32 = 2;

/// The most bytes that one transfer moves, as in Linux.
const TRANSFER_MAX: u64 = 0x7fff_f000;

const READ: u16 = 0;
const WRITE: u16 = 1;
const SYNC: u16 = 2;
const DATA_SYNC: u16 = 3;
const POLL: u16 = 5;
const READ_VECTOR: u16 = 7;
const WRITE_VECTOR: u16 = 8;

/// The size of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRing {
    /// Places for events; one of them stays empty.
    pub entries: u32,
}

impl EventRing {
    /// A ring for at least `requests` events that fills its pages.
    #[must_use]
    pub const fn new(requests: u32, page_bytes: usize) -> Self {
        let bytes = HEADER_BYTES + (requests as usize + 2) * EVENT_BYTES;
        let rounded = bytes.next_multiple_of(page_bytes);
        Self { entries: ((rounded - HEADER_BYTES) / EVENT_BYTES) as u32 }
    }

    /// Its bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        HEADER_BYTES + self.entries as usize * EVENT_BYTES
    }

    /// A place, whatever a program has written to its word.
    #[must_use]
    pub const fn place(self, word: u32) -> u32 {
        word % self.entries
    }

    /// The place behind.
    #[must_use]
    pub const fn next(self, place: u32) -> u32 {
        self.place(place + 1)
    }

    /// How many events lie from `head` to `tail`.
    #[must_use]
    pub const fn count(self, head: u32, tail: u32) -> u32 {
        (self.place(tail) + self.entries - self.place(head)) % self.entries
    }

    /// Whether one more request may start, beside those under way and the events that nobody has taken.
    #[must_use]
    pub const fn has_room(self, head: u32, tail: u32, under_way: u32) -> bool {
        self.count(head, tail) + under_way + 1 < self.entries
    }

    /// Where an event lies.
    #[must_use]
    pub const fn offset(self, place: u32) -> usize {
        HEADER_BYTES + place as usize * EVENT_BYTES
    }
}

/// The reason why a control block is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidControl {
    /// `EINVAL`
    Invalid,
    /// `EOPNOTSUPP`
    NotSupported,
}

/// The work of a control block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AioOperation {
    /// A system call.
    Call(SystemCall),
    /// To wait for one of these events.
    Poll(u32),
}

/// A control block, in the program's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlBlock {
    /// Handed back with the event.
    pub data: u64,
    /// `RWF_` flags.
    pub rw_flags: u32,
    /// The number of its operation.
    pub opcode: u16,
    /// Its I/O priority, with [`HAS_PRIORITY`].
    pub priority: u16,
    /// The file.
    pub fd: i32,
    /// The memory, the vector or the events to wait for.
    pub buffer: u64,
    /// Bytes, or parts of the vector.
    pub length: u64,
    /// The position in the file.
    pub offset: i64,
    /// Has to be 0.
    pub reserved: u64,
    /// [`TELLS_COUNTER`] and [`HAS_PRIORITY`].
    pub flags: u32,
    /// The eventfd.
    pub counter: i32,
}

impl ControlBlock {
    /// A block of the program's bytes.
    #[must_use]
    pub fn parse(bytes: &[u8; CONTROL_BYTES]) -> Self {
        let words = bytes.as_chunks::<8>().0;
        let word = |index: usize| u64::from_ne_bytes(words[index]);
        let halves = |index: usize| (word(index) as u32, (word(index) >> 32) as u32);
        let (low, high) = halves(2);
        Self {
            data: word(0),
            rw_flags: halves(1).1,
            opcode: low as u16,
            priority: (low >> 16) as u16,
            fd: high.cast_signed(),
            buffer: word(3),
            length: word(4),
            offset: word(5).cast_signed(),
            reserved: word(6),
            flags: halves(7).0,
            counter: halves(7).1.cast_signed(),
        }
    }

    /// Whether it reads from its file; the others but `POLL` and the two of `fsync` write.
    #[must_use]
    pub const fn reads(&self) -> bool {
        matches!(self.opcode, READ | READ_VECTOR)
    }

    /// Whether it writes to its file.
    #[must_use]
    pub const fn writes(&self) -> bool {
        matches!(self.opcode, WRITE | WRITE_VECTOR)
    }

    /// Whether it only waits for events.
    #[must_use]
    pub const fn is_poll(&self) -> bool {
        self.opcode == POLL
    }

    /// Its work, on a file that has positions or one that has none.
    ///
    /// # Errors
    /// [`InvalidControl`].
    pub fn operation(&self, is_positioned: bool) -> Result<AioOperation, InvalidControl> {
        if self.reserved != 0 || self.length.cast_signed() < 0 {
            return Err(InvalidControl::Invalid);
        }
        let fd = self.fd as u64;
        let call = |number, arguments| Ok(AioOperation::Call(SystemCall { number, arguments }));
        if self.reads() || self.writes() {
            if is_positioned && self.offset < 0 {
                return Err(InvalidControl::Invalid);
            }
            let offset = self.offset.cast_unsigned();
            if matches!(self.opcode, READ_VECTOR | WRITE_VECTOR) {
                let position = if is_positioned { offset } else { u64::MAX };
                let number = if self.reads() { linux::__NR_preadv2 } else { linux::__NR_pwritev2 };
                let flags = u64::from(self.rw_flags);
                return call(number, [fd, self.buffer, self.length, position, 0, flags]);
            }
            // No system call takes flags with one buffer.
            if self.rw_flags != 0 {
                return Err(InvalidControl::NotSupported);
            }
            let number = match (self.reads(), is_positioned) {
                (true, true) => linux::__NR_pread64,
                (true, false) => linux::__NR_read,
                (false, true) => linux::__NR_pwrite64,
                (false, false) => linux::__NR_write,
            };
            return call(number, [fd, self.buffer, self.length.min(TRANSFER_MAX), offset, 0, 0]);
        }
        let is_plain = self.length == 0 && self.offset == 0 && self.rw_flags == 0;
        match self.opcode {
            SYNC | DATA_SYNC if is_plain && self.buffer == 0 => {
                let number = if self.opcode == SYNC { linux::__NR_fsync } else { linux::__NR_fdatasync };
                call(number, [fd, 0, 0, 0, 0, 0])
            }
            POLL if is_plain && self.buffer <= u64::from(u16::MAX) => {
                Ok(AioOperation::Poll(self.buffer as u32))
            }
            _ => Err(InvalidControl::Invalid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_fill_their_pages() {
        assert_eq!(EventRing::new(1, 4096).entries, 127);
        assert_eq!(EventRing::new(125, 4096).entries, 127);
        assert_eq!(EventRing::new(126, 4096).entries, 255);
        assert_eq!(EventRing::new(126, 4096).bytes(), 8192);
    }

    #[test]
    fn no_word_of_a_program_leads_outside() {
        let ring = EventRing::new(1, 4096);
        for (head, tail, count) in
            [(0, 0, 0), (0, 5, 5), (126, 1, 2), (5, 4, 126), (127, 0, 0), (u32::MAX, 3, 0)]
        {
            let expected = if head == u32::MAX { (3 + 127 - u32::MAX % 127) % 127 } else { count };
            assert_eq!(ring.count(head, tail), expected, "{head} {tail}");
            assert!(ring.offset(ring.place(head)) + EVENT_BYTES <= ring.bytes());
        }
        assert!(ring.has_room(0, 0, 125));
        assert!(!ring.has_room(0, 0, 126), "one place stays empty");
        assert!(!ring.has_room(1, 0, 0));
    }

    #[test]
    fn blocks_become_calls() {
        let mut bytes = [0; CONTROL_BYTES];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &77_u64.to_ne_bytes());
        put(16, &1_u16.to_ne_bytes());
        put(20, &9_i32.to_ne_bytes());
        put(24, &0x1000_u64.to_ne_bytes());
        put(32, &u64::from(u32::MAX).to_ne_bytes());
        put(40, &4096_u64.to_ne_bytes());
        put(56, &1_u32.to_ne_bytes());
        put(60, &5_u32.to_ne_bytes());
        let block = ControlBlock::parse(&bytes);
        assert_eq!((block.data, block.fd, block.flags, block.counter), (77, 9, TELLS_COUNTER, 5));
        let call = |number, position| {
            let arguments = [9, 0x1000, 0x7fff_f000, position, 0, 0];
            Ok(AioOperation::Call(SystemCall { number, arguments }))
        };
        assert_eq!(block.operation(true), call(linux::__NR_pwrite64, 4096));
        assert_eq!(block.operation(false), call(linux::__NR_write, 4096));
        let refused = |change: fn(&mut ControlBlock)| {
            let mut block = block;
            change(&mut block);
            block.operation(true)
        };
        assert_eq!(refused(|block| block.offset = -1), Err(InvalidControl::Invalid));
        assert_eq!(refused(|block| block.reserved = 1), Err(InvalidControl::Invalid));
        assert_eq!(refused(|block| block.length = u64::MAX), Err(InvalidControl::Invalid));
        assert_eq!(refused(|block| block.opcode = 4), Err(InvalidControl::Invalid));
        assert_eq!(refused(|block| block.opcode = POLL), Err(InvalidControl::Invalid));
        assert_eq!(refused(|block| block.rw_flags = 1), Err(InvalidControl::NotSupported));
    }

    #[test]
    fn polls_and_syncs_are_plain() {
        let poll = ControlBlock { opcode: POLL, buffer: 5, ..ControlBlock::default() };
        assert_eq!(poll.operation(false), Ok(AioOperation::Poll(5)));
        assert_eq!(ControlBlock { buffer: 1 << 16, ..poll }.operation(false), Err(InvalidControl::Invalid));
        let sync = ControlBlock { opcode: DATA_SYNC, fd: 3, ..ControlBlock::default() };
        let call = SystemCall { number: linux::__NR_fdatasync, arguments: [3, 0, 0, 0, 0, 0] };
        assert_eq!(sync.operation(true), Ok(AioOperation::Call(call)));
        assert_eq!(ControlBlock { offset: 1, ..sync }.operation(true), Err(InvalidControl::Invalid));
    }
}
