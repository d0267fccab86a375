//! Moving bytes between a file and user memory: what `read`, `write` and their kin have in common.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use linux_raw_sys::general as linux;

use crate::arch::paging::USER_END;
use crate::call::caller::{Caller, carry_out};
use crate::error::{Errno, TryError, TryResult};
use crate::fs::buffer::{Atomicity, IoSegment};
use crate::fs::offer::{OFFER_BYTES, ReadOffer};
use crate::fs::range_lock::RangeGuard;
use crate::fs::{IoBuffer, OpenFile, StatusFlags};
use crate::memory::fallible;
use crate::memory::user::PageFault;
use crate::process::{Limits, Resource, Thread};
use crate::signal::{Information, Signal, send_to_thread};
use crate::syscall::SyscallResult;
use crate::wait::operation::{Operation, Step, WaitOptions};
use crate::wait::queue::{Events, Watch};

/// Bytes that one attempt moves from or to a file that has no boundaries of its own, so that a large call doesn't keep
/// others from running, nor a lock of the file for long.
const ATTEMPT_BYTES: usize = 32 << 10;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferDirection {
    /// From the file to memory.
    Read,
    /// From memory to the file.
    Write,
}

/// Where user memory is: most calls name one piece.
pub enum Segments {
    /// One piece.
    One([IoSegment; 1]),
    /// Several.
    Many(Vec<IoSegment>),
}

impl Segments {
    /// The pieces in order.
    #[must_use]
    pub fn as_slice(&self) -> &[IoSegment] {
        match self {
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }
}

/// A read or write under way.
pub struct Transfer {
    /// The caller that asked for it.
    pub thread: Caller,
    /// The file.
    pub open: Arc<OpenFile>,
    /// The memory.
    pub segments: Segments,
    /// Which way.
    pub direction: TransferDirection,
    /// Where in the file; `None` is the open file's own offset.
    pub position: Option<u64>,
    /// Whether the file has positions: a read goes on until all of the memory is filled or the end is reached.
    pub has_positions: bool,
    /// Nothing waits, whatever the file's flags say.
    pub no_wait: bool,
    /// Bytes moved.
    pub done: usize,
    /// The file's range, while it is held.
    pub held: Option<Box<RangeGuard>>,
    /// How much of the memory is known to be there, once some of it was not.
    pub probed: Option<usize>,
    /// The missing page at which the last attempt stopped, after it had moved something.
    pub missed: Option<PageFault>,
    /// The last attempt got on without moving anything.
    pub is_unfinished: bool,
    /// Some of the memory will never be there: it ends before that.
    pub does_without: bool,
    /// A write ends with what there was room for.
    pub some_is_enough: bool,
    /// Whether it appends, whatever the file's flags say (`RWF_APPEND`).
    pub is_appended: bool,
}

impl Transfer {
    fn total(&self) -> usize {
        self.segments.as_slice().iter().map(|segment| segment.length).sum()
    }

    /// Whether some of the memory is at addresses that no program has. Only asked where nothing has been moved.
    #[cold]
    fn is_impossible(&self) -> bool {
        self.segments.as_slice().iter().any(|segment| {
            segment.length > 0 && segment.address.checked_add(segment.length).is_none_or(|end| end > USER_END)
        })
    }

    fn events(&self) -> Events {
        match self.direction {
            TransferDirection::Read => Events::IN,
            TransferDirection::Write => Events::OUT,
        }
    }

    /// Where in the file the bytes are that are still to be moved.
    fn range(&self) -> Range<u64> {
        let left = (self.total() - self.done) as u64;
        if self.appends() {
            return self.open.file.size().unwrap_or(0)..u64::MAX;
        }
        let start = match self.position {
            Some(position) => position + self.done as u64,
            None => *self.open.offset.lock(),
        };
        start..start.saturating_add(left)
    }

    fn appends(&self) -> bool {
        self.direction == TransferDirection::Write
            && (self.is_appended || self.open.flags().contains(StatusFlags::APPEND))
    }

    /// Whether the transfer is to happen at once, although it may take several attempts.
    fn is_one_piece(&self) -> bool {
        self.has_positions && self.open.file.ranges().is_some()
    }

    /// Moves what can be moved at once. If a page was missing then, it is in `missed`.
    fn move_some(&mut self) -> TryResult<usize> {
        let open = &*self.open;
        open.file.before_transfer(&self.thread, self.events())?;
        if self.held.as_ref().is_some_and(|held| !held.covers(&self.range())) {
            // The file's end, or the shared position, was elsewhere by the time the range was free.
            self.held = None;
            return Err(TryError::WouldBlock);
        }
        let is_one_piece = self.is_one_piece();
        let space = self.thread.space();
        let mut buffer = IoBuffer::user(&space, self.segments.as_slice());
        buffer.skip(self.done);
        buffer.set_appending(self.appends());
        if self.has_positions {
            buffer.truncate(ATTEMPT_BYTES);
        }
        buffer.set_waiting_for_pages(!self.does_without);
        let operate = |buffer: &mut IoBuffer<'_>, offset| match self.direction {
            TransferDirection::Read => open.file.read(open, buffer, offset),
            TransferDirection::Write => open.file.write(open, buffer, offset),
        };
        if self.direction == TransferDirection::Write && self.has_positions {
            self.limit_size(&mut buffer)?;
        }
        if is_one_piece {
            let is_target = self.direction == TransferDirection::Read;
            buffer.set_unity(if self.held.is_some() { Atomicity::Held } else { Atomicity::Alone });
            // A write must not stop in its middle; a read that did so begins anew, and then looks first.
            if self.held.is_none()
                && (!is_target || self.probed.is_some())
                && let Err((there, fault)) = buffer.probe(self.probed.unwrap_or(0), usize::MAX, is_target)
            {
                self.probed = Some(there);
                return Err(fault.into());
            }
        }
        let before = buffer.done();
        let result = match self.position {
            Some(position) => operate(&mut buffer, position + self.done as u64),
            None if self.has_positions && !is_one_piece => open.move_alone(self.appends(), |offset| {
                let result = operate(&mut buffer, offset);
                (result, buffer.done() - before)
            })?,
            None if self.has_positions => {
                let mut offset = open.offset.lock();
                let result = operate(&mut buffer, *offset);
                *offset += (buffer.done() - before) as u64;
                if buffer.done() > before && self.appends() {
                    *offset = open.file.size().unwrap_or(*offset);
                }
                result
            }
            None => operate(&mut buffer, 0),
        };
        let moved = buffer.done() - before;
        (self.missed, self.is_unfinished) = (buffer.missed(), buffer.is_unfinished());
        self.done += moved;
        if moved > 0 {
            self.probed = None;
            self.count(moved);
            open.report(match self.direction {
                TransferDirection::Read => linux::IN_ACCESS,
                TransferDirection::Write => linux::IN_MODIFY,
            });
        }
        match result {
            Err(_) if moved > 0 => Ok(moved),
            result => result,
        }
    }

    /// Whether its memory may be offered while it waits. Requests have levels and ends of their own, and offer none.
    #[inline]
    fn may_offer(&self) -> bool {
        matches!(&self.segments, Segments::One([segment]) if segment.length - self.done >= OFFER_BYTES)
            && self.direction == TransferDirection::Read
            && matches!(self.thread, Caller::Thread(_))
    }

    /// Offers the memory of a read that is about to wait.
    #[inline(never)]
    fn offer(&self, watch: &Watch) {
        if let (Caller::Thread(thread), Segments::One([segment])) = (&self.thread, &self.segments)
            && watch.is_wait()
        {
            let (address, length) = (segment.address.wrapping_add(self.done), segment.length - self.done);
            self.open.file.offer(ReadOffer::new(watch.clone(), thread.space(), address, length));
        }
    }

    /// Takes the offer back, with what was copied. Returns whether there is something.
    #[inline(never)]
    fn take_offer(&mut self) -> bool {
        let moved = match &self.thread {
            Caller::Thread(thread) => self.open.file.take_offer(thread.node()),
            Caller::Request(_) => 0,
        };
        if moved > 0 {
            self.done += moved;
            self.count(moved);
            self.open.report(linux::IN_ACCESS);
        }
        moved > 0
    }

    /// Counts bytes that were moved, for `/proc/PID/io`: as in Linux those of system calls only.
    #[inline]
    fn count(&self, moved: usize) {
        if let Caller::Thread(thread) = &self.thread {
            match self.direction {
                TransferDirection::Read => thread.count_bytes_read(moved),
                TransferDirection::Write => thread.count_bytes_written(moved),
            }
        }
    }

    /// Keeps a write below the limit of a file's size.
    fn limit_size(&self, buffer: &mut IoBuffer<'_>) -> Result<(), Errno> {
        let limit = self.thread.process.limit(Resource::FileSize).soft;
        if limit == Limits::INFINITY || buffer.remaining() == 0 || self.open.file.size().is_none() {
            return Ok(());
        }
        let at = match self.position {
            _ if self.appends() => self.open.file.size().unwrap_or(0),
            Some(position) => position + self.done as u64,
            None => *self.open.offset.lock(),
        };
        let room = limit.saturating_sub(at);
        if room == 0 {
            tell_writer(&self.thread, Signal::XFSZ);
            return Err(Errno::EFBIG);
        }
        buffer.truncate(usize::try_from(room).unwrap_or(usize::MAX));
        Ok(())
    }

    /// Moves what can be moved without waiting, and leaves the rest to a future.
    pub fn start(self) -> SyscallResult {
        let (caller, no_wait) = (self.thread.clone(), self.no_wait);
        if let Caller::Thread(thread) = &caller {
            match self.direction {
                TransferDirection::Read => thread.count_read(),
                TransferDirection::Write => thread.count_write(),
            }
        }
        carry_out(&caller, WaitOptions { no_wait, deadline_ns: None }, self)
    }

    /// Whether several attempts are needed, which must look like one.
    fn needs_range(&self) -> bool {
        self.has_positions
            && self.held.is_none()
            && !self.no_wait
            && self.total() - self.done > ATTEMPT_BYTES
            && self.is_one_piece()
    }
}

impl Operation for Transfer {
    fn attempt(&mut self) -> TryResult<usize> {
        self.move_some()
    }

    fn step(&mut self, no_wait: bool) -> Step {
        if self.needs_range() {
            return Step::Acquire;
        }
        match self.attempt() {
            Ok(0) if self.is_unfinished => Step::Again,
            Ok(0) if self.done == 0 && self.is_impossible() => Step::Finished(Err(Errno::EFAULT)),
            Ok(0) => Step::Finished(Ok(self.done)),
            Ok(_) => {
                let again = |transfer: &Self| match transfer.direction {
                    TransferDirection::Write => !transfer.open.file.writes_once(),
                    TransferDirection::Read => transfer.has_positions,
                };
                match self.missed.take() {
                    _ if self.done >= self.total() => Step::Finished(Ok(self.done)),
                    Some(fault) => Step::Fault(fault),
                    None if again(self) => Step::Again,
                    None => Step::Finished(Ok(self.done)),
                }
            }
            Err(TryError::Fault(fault)) => {
                self.probed = self.probed.or(Some(0));
                Step::Fault(fault)
            }
            Err(TryError::WouldBlock) if !no_wait && self.is_one_piece() => Step::Acquire,
            Err(TryError::WouldBlock)
                if self.done > 0 && (self.direction == TransferDirection::Read || self.some_is_enough) =>
            {
                Step::Finished(Ok(self.done))
            }
            Err(TryError::WouldBlock) if self.done == 0 && self.is_impossible() => {
                Step::Finished(Err(Errno::EFAULT))
            }
            Err(TryError::WouldBlock) if no_wait || self.open.flags().contains(StatusFlags::NONBLOCK) => {
                Step::Finished(self.end(Errno::EAGAIN))
            }
            Err(TryError::WouldBlock) => Step::Wait,
            Err(TryError::Error(error)) => {
                if error == Errno::EPIPE && self.direction == TransferDirection::Write {
                    broken_pipe(&self.thread);
                }
                Step::Finished(self.end(error))
            }
        }
    }

    fn partial(&self) -> Option<usize> {
        (self.done > 0).then_some(self.done)
    }

    fn can_go_on(&self, watch: &Watch) -> Result<bool, Errno> {
        let can = self.open.file.can_go_on(&self.open, watch, self.events())?;
        if !can && self.may_offer() {
            self.offer(watch);
        }
        Ok(can)
    }

    #[inline]
    fn end_wait(&mut self) -> Option<usize> {
        // Bytes that came since may be another reader's by now, and what follows them is not what follows these; an
        // error is the next call's.
        (self.may_offer() && self.take_offer()).then_some(self.done)
    }

    fn is_exclusive(&self) -> bool {
        self.direction == TransferDirection::Read
    }

    fn timeout_ns(&self) -> Option<u64> {
        self.open.file.timeout_ns(self.direction == TransferDirection::Write)
    }

    fn does_without(&mut self) -> bool {
        self.direction == TransferDirection::Read
            && !self.has_positions
            && !core::mem::replace(&mut self.does_without, true)
    }

    /// Holds the range of what is still to be moved.
    async fn acquire(&mut self) -> Result<(), Errno> {
        let is_shared = self.direction == TransferDirection::Read;
        let (file, range) = (self.open.file.clone(), self.range());
        // Boxed, because few transfers come here.
        let held = fallible::try_box(RangeGuard::lock(file, range, is_shared))?;
        self.held = Some(fallible::try_box(Box::into_pin(held).await?)?);
        Ok(())
    }
}

/// Tells a thread that it wrote to something that nobody reads.
pub fn broken_pipe(thread: &Arc<Thread>) {
    tell_writer(thread, Signal::PIPE);
}

/// Sends a thread a signal about its own write, which counts as its own, too.
pub fn tell_writer(thread: &Arc<Thread>, signal: Signal) {
    let information = Information::user(signal, thread.process.pid, thread.credentials().uid);
    // A realtime signal may find no room; these always do.
    let _ = send_to_thread(thread, information);
}
