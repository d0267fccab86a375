//! Where things are in the memory of the rings.

use linux_raw_sys::io_uring::{
    IORING_SETUP_CLAMP, IORING_SETUP_CQE32, IORING_SETUP_CQSIZE, IORING_SETUP_SQE128,
};

use super::InvalidEntry;

/// Words of an entry.
pub const SQE_WORDS: usize = 8;
/// Bytes of an entry, twice as many with `IORING_SETUP_SQE128`.
pub const SQE_BYTES: usize = SQE_WORDS * 8;
/// Bytes of a completion, twice as many with `IORING_SETUP_CQE32`.
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
    /// Bytes of an entry of the submission ring.
    pub sqe_size: usize,
    /// Bytes of a completion.
    pub cqe_size: usize,
}

impl RingLayout {
    /// The sizes for a program that asked for `entries`, and with `IORING_SETUP_CQSIZE` for `cq_entries`.
    ///
    /// # Errors
    /// [`InvalidEntry`]: none, or too many.
    pub const fn new(entries: u32, cq_entries: u32, setup: u32) -> Result<Self, InvalidEntry> {
        let clamps = setup & IORING_SETUP_CLAMP != 0;
        let Some(sq_entries) = size(entries, ENTRIES_MAX, clamps) else { return Err(InvalidEntry) };
        let sqe_size = if setup & IORING_SETUP_SQE128 == 0 { SQE_BYTES } else { 2 * SQE_BYTES };
        let cqe_size = if setup & IORING_SETUP_CQE32 == 0 { CQE_BYTES } else { 2 * CQE_BYTES };
        if setup & IORING_SETUP_CQSIZE == 0 {
            return Ok(Self { sq_entries, cq_entries: sq_entries * 2, sqe_size, cqe_size });
        }
        match size(cq_entries, ENTRIES_MAX * 2, clamps) {
            Some(cq_entries) if cq_entries >= sq_entries => {
                Ok(Self { sq_entries, cq_entries, sqe_size, cqe_size })
            }
            _ => Err(InvalidEntry),
        }
    }

    /// Where a completion is; the index may be any.
    #[must_use]
    pub const fn cqe(&self, index: u32) -> usize {
        at::CQES + (index & (self.cq_entries - 1)) as usize * self.cqe_size
    }

    /// Where an index of the submission ring is.
    #[must_use]
    pub const fn sq_index(&self, index: u32) -> usize {
        self.array() + (index & (self.sq_entries - 1)) as usize * 4
    }

    /// Where the indices of the submission ring begin.
    #[must_use]
    pub const fn array(&self) -> usize {
        at::CQES + self.cq_entries as usize * self.cqe_size
    }

    /// Bytes of both rings.
    #[must_use]
    pub const fn ring_bytes(&self) -> usize {
        self.array() + self.sq_entries as usize * 4
    }

    /// Bytes of the entries.
    #[must_use]
    pub const fn sqe_bytes(&self) -> usize {
        self.sq_entries as usize * self.sqe_size
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
