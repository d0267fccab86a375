//! Where the bytes of a read or write call are.

use crate::memory::Space;
use crate::memory::raw::FrameSlice;
use crate::memory::user::PageFault;

/// A piece of user memory, as in `struct iovec`.
#[derive(Clone, Copy, Debug)]
pub struct IoSegment {
    /// Its first address.
    pub address: usize,
    /// Its length in bytes.
    pub length: usize,
}

/// A cursor over the memory of one read or write: user memory in one or more segments, or a kernel buffer.
///
/// It remembers how far it has come, so that an attempt that stopped (a fault, a full pipe) goes on where it was.
pub struct IoBuffer<'a> {
    target: BufferTarget<'a>,
    done: usize,
    length: usize,
    unity: Atomicity,
    appends: bool,
    missed: Option<PageFault>,
    is_unfinished: bool,
    waits_for_pages: bool,
}

/// The lock that makes a transfer atomic, of files that have [`crate::fs::range_lock::Ranges`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomicity {
    /// Nothing: it needn't.
    None,
    /// That nobody holds a range of the file; else the attempt has to wait.
    Alone,
    /// That it holds the range.
    Held,
}

/// A position in an [`IoBuffer`].
#[derive(Clone, Copy, Debug)]
pub struct BufferMark {
    done: usize,
    index: usize,
    within: usize,
}

enum BufferTarget<'a> {
    User { space: &'a Space, segments: &'a [IoSegment], index: usize, within: usize },
    KernelOut(&'a mut [u8]),
    KernelIn(&'a [u8]),
}

impl<'a> IoBuffer<'a> {
    /// User memory of `space`; the segments' sum must have been checked to fit an `isize`.
    #[must_use]
    pub fn user(space: &'a Space, segments: &'a [IoSegment]) -> Self {
        let length = match segments {
            [one] => one.length,
            several => several.iter().map(|segment| segment.length).sum(),
        };
        Self {
            target: BufferTarget::User { space, segments, index: 0, within: 0 },
            done: 0,
            length,
            unity: Atomicity::None,
            appends: false,
            missed: None,
            is_unfinished: false,
            waits_for_pages: false,
        }
    }

    /// A kernel buffer to be filled.
    #[must_use]
    pub fn kernel_out(bytes: &'a mut [u8]) -> Self {
        let length = bytes.len();
        Self {
            target: BufferTarget::KernelOut(bytes),
            done: 0,
            length,
            unity: Atomicity::None,
            appends: false,
            missed: None,
            is_unfinished: false,
            waits_for_pages: false,
        }
    }

    /// Whether its bytes come from another file, by splice(2) or a call like it.
    #[must_use]
    pub const fn is_spliced(&self) -> bool {
        matches!(self.target, BufferTarget::KernelIn(_))
    }

    /// A kernel buffer to be read from.
    #[must_use]
    pub fn kernel_in(bytes: &'a [u8]) -> Self {
        Self {
            target: BufferTarget::KernelIn(bytes),
            done: 0,
            length: bytes.len(),
            unity: Atomicity::None,
            appends: false,
            missed: None,
            is_unfinished: false,
            waits_for_pages: false,
        }
    }

    /// Says that the transfer comes back when a page is missing, before anything is moved.
    pub const fn set_waiting_for_pages(&mut self, waits: bool) {
        self.waits_for_pages = waits;
    }

    /// Looks for a page that is missing for the next `most` bytes, of a read that is to take them all at once: other
    /// readers would get the rest meanwhile.
    ///
    /// # Errors
    /// The missing page, if the transfer comes back when it is there.
    #[inline]
    pub fn check_target(&self, most: usize) -> Result<(), PageFault> {
        let is_one_page = match &self.target {
            BufferTarget::User { segments, index, within, .. } => {
                segments.get(*index).is_none_or(|segment| {
                    let place = segment.address.wrapping_add(*within) % PIECE_BYTES;
                    most <= (segment.length - within).min(PIECE_BYTES - place)
                })
            }
            _ => true,
        };
        // A transfer that misses the first page has done nothing yet.
        if is_one_page || !self.waits_for_pages {
            return Ok(());
        }
        self.probe(0, most, true).map_err(|(_, fault)| fault)
    }

    /// Passes over the next `count` bytes, which an earlier attempt has moved.
    pub fn skip(&mut self, count: usize) {
        let mut left = count.min(self.remaining());
        self.done += left;
        if let BufferTarget::User { segments, index, within, .. } = &mut self.target {
            while left > 0 {
                let step = left.min(segments[*index].length - *within);
                *within += step;
                left -= step;
                if left > 0 {
                    (*index, *within) = (*index + 1, 0);
                }
            }
        }
    }

    /// The lock that makes the transfer atomic.
    #[must_use]
    pub const fn unity(&self) -> Atomicity {
        self.unity
    }

    /// Makes the bytes go to the end of the file, wherever the position is.
    pub const fn set_appending(&mut self, appends: bool) {
        self.appends = appends;
    }

    /// Whether the bytes go to the end of the file.
    pub const fn appends(&self) -> bool {
        self.appends
    }

    /// Says what makes the transfer happen at once.
    pub const fn set_unity(&mut self, unity: Atomicity) {
        self.unity = unity;
    }

    /// Checks that the memory of the next `most` bytes, but the first `from`, can be read, or written if `is_target`.
    /// The first piece is left out: whoever misses it has done nothing yet.
    ///
    /// # Errors
    /// The page that is missing, and how many bytes before it are there.
    pub fn probe(&self, from: usize, most: usize, is_target: bool) -> Result<(), (usize, PageFault)> {
        let BufferTarget::User { space, segments, index, within } = &self.target else { return Ok(()) };
        let (mut at, mut skipped, most) = (0, *within, most.min(self.remaining()));
        for segment in &segments[*index..] {
            let mut inside = skipped;
            skipped = 0;
            while inside < segment.length && at < most {
                let address = segment.address.wrapping_add(inside);
                let count = (segment.length - inside).min(PIECE_BYTES - address % PIECE_BYTES);
                if at > 0 && at + count > from {
                    let there = if is_target {
                        space.probe_write(address, 1)
                    } else {
                        space.load_u32(address).map(drop)
                    };
                    there.map_err(|fault| (at, fault))?;
                }
                inside += count;
                at += count;
            }
        }
        Ok(())
    }

    /// The missing page at which the last copy stopped. An attempt that has moved something before says so to nobody
    /// else: the transfer goes on there.
    #[must_use]
    pub const fn missed(&self) -> Option<PageFault> {
        self.missed
    }

    /// Says that an attempt has moved nothing, but got on with what it prepares: the next one goes on with it.
    pub const fn set_unfinished(&mut self) {
        self.is_unfinished = true;
    }

    /// Whether an attempt that moved nothing is to be repeated.
    #[must_use]
    pub const fn is_unfinished(&self) -> bool {
        self.is_unfinished
    }

    /// Bytes moved so far.
    #[must_use]
    pub const fn done(&self) -> usize {
        self.done
    }

    /// Bytes still to move.
    #[must_use]
    pub const fn remaining(&self) -> usize {
        self.length - self.done
    }

    /// Lets the next operations see at most `limit` more bytes.
    pub fn truncate(&mut self, limit: usize) {
        self.length = self.length.min(self.done + limit);
    }

    /// Copies `bytes`, or as much as there is room for, into the memory; returns the number of bytes.
    ///
    /// # Errors
    /// [`PageFault`] when a page is missing; what was copied before counts as [`IoBuffer::done`].
    pub fn copy_out(&mut self, bytes: &[u8]) -> Result<usize, PageFault> {
        self.each(bytes.len(), |place, range| match place {
            Place::User(space, address) => space.write_bytes(address, &bytes[range]),
            Place::KernelOut(target) => {
                target.copy_from_slice(&bytes[range]);
                Ok(())
            }
            Place::KernelIn(_) => Ok(()),
        })
    }

    /// Copies a part of a frame, or as much as there is room for, into the memory; returns the number of bytes.
    ///
    /// # Errors
    /// As for [`IoBuffer::copy_out`].
    pub fn copy_out_frame(&mut self, bytes: FrameSlice<'_>) -> Result<usize, PageFault> {
        self.each(bytes.len(), |place, range| match place {
            Place::User(space, address) => space.write_frame(address, bytes.part(range)),
            Place::KernelOut(target) => {
                bytes.part(range).read(target);
                Ok(())
            }
            Place::KernelIn(_) => Ok(()),
        })
    }

    /// Fills a part of a frame, or as much as is left, from the memory; returns the number of bytes.
    ///
    /// # Errors
    /// As for [`IoBuffer::copy_in`].
    pub fn copy_in_frame(&mut self, bytes: FrameSlice<'_>) -> Result<usize, PageFault> {
        self.each(bytes.len(), |place, range| match place {
            Place::User(space, address) => space.read_frame(address, bytes.part(range)),
            Place::KernelIn(source) => {
                bytes.part(range).write(source);
                Ok(())
            }
            Place::KernelOut(_) => Ok(()),
        })
    }

    /// Fills `bytes`, or as much as is left, from the memory; returns the number of bytes.
    ///
    /// # Errors
    /// [`PageFault`] when a page is missing; what was copied before counts as [`IoBuffer::done`].
    pub fn copy_in(&mut self, bytes: &mut [u8]) -> Result<usize, PageFault> {
        self.each(bytes.len(), |place, range| match place {
            Place::User(space, address) => space.read_bytes(address, &mut bytes[range]),
            Place::KernelIn(source) => {
                bytes[range].copy_from_slice(source);
                Ok(())
            }
            Place::KernelOut(_) => Ok(()),
        })
    }

    /// Like [`IoBuffer::copy_in`], but the bytes stay to be taken.
    ///
    /// # Errors
    /// [`PageFault`] when a page is missing.
    pub fn peek(&mut self, bytes: &mut [u8]) -> Result<usize, PageFault> {
        let before = self.mark();
        let result = self.copy_in(bytes);
        self.rewind(before);
        result
    }

    /// Where it is, to come back to with [`IoBuffer::rewind`].
    #[must_use]
    pub const fn mark(&self) -> BufferMark {
        let (index, within) = match &self.target {
            BufferTarget::User { index, within, .. } => (*index, *within),
            BufferTarget::KernelOut(_) | BufferTarget::KernelIn(_) => (0, 0),
        };
        BufferMark { done: self.done, index, within }
    }

    /// Goes back to where it was.
    pub const fn rewind(&mut self, mark: BufferMark) {
        self.done = mark.done;
        if let BufferTarget::User { index, within, .. } = &mut self.target {
            (*index, *within) = (mark.index, mark.within);
        }
    }

    /// Cuts the next `limit` bytes into pieces that are contiguous and stay within one page, and advances over each
    /// piece that `copy` has done.
    fn each(
        &mut self,
        limit: usize,
        mut copy: impl FnMut(Place<'_>, core::ops::Range<usize>) -> Result<(), PageFault>,
    ) -> Result<usize, PageFault> {
        let limit = limit.min(self.remaining());
        let mut moved = 0;
        while moved < limit {
            let (done, rest) = (self.done, limit - moved);
            let count = match &mut self.target {
                BufferTarget::User { space, segments, index, within } => {
                    let segment = segments[*index];
                    if *within == segment.length {
                        (*index, *within) = (*index + 1, 0);
                        continue;
                    }
                    let address = segment.address.wrapping_add(*within);
                    let count = rest.min(segment.length - *within).min(PIECE_BYTES - address % PIECE_BYTES);
                    if let Err(fault) = copy(Place::User(space, address), moved..moved + count) {
                        self.missed = Some(fault);
                        return Err(fault);
                    }
                    *within += count;
                    count
                }
                BufferTarget::KernelOut(bytes) => {
                    copy(Place::KernelOut(&mut bytes[done..done + rest]), moved..moved + rest)?;
                    rest
                }
                BufferTarget::KernelIn(bytes) => {
                    copy(Place::KernelIn(&bytes[done..done + rest]), moved..moved + rest)?;
                    rest
                }
            };
            moved += count;
            self.done += count;
        }
        Ok(moved)
    }
}

/// Pieces end at page boundaries, so that a fault never leaves a half-copied piece behind that counts as not done.
const PIECE_BYTES: usize = 4096;

enum Place<'a> {
    User(&'a Space, usize),
    KernelOut(&'a mut [u8]),
    KernelIn(&'a [u8]),
}
