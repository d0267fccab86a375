//! Moving bytes from file to file: `sendfile`, `copy_file_range`, `splice`, `tee`, `vmsplice`.

use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::general as linux;

use crate::call::caller::{Caller, carry_out};
use crate::error::{Errno, TryError, TryResult};
use crate::fs::inode::device_number;
use crate::fs::pipe::{self, PipeEnd};
use crate::fs::{FileType, IoBuffer, OpenFile, StatusFlags, downcast};
use crate::net::{Socket, Style};
use crate::syscall::fs::read_write::{check_direction, many};
use crate::syscall::fs::transfer::{Transfer, TransferDirection, broken_pipe};
use crate::syscall::fs::{TRANSFER_LIMIT, get, get_file};
use crate::syscall::{Call, SyscallResult};
use crate::wait::operation::{Operation, Step, WaitOptions};
use crate::wait::queue::{Events, Watch};

use heddle_kernel_core::fallible::resize_reserved;

/// Bytes moved at a time from a file with positions.
const CHUNK: usize = 64 << 10;
/// Bytes moved at a time from one without: what the other end has room for when it is ready at all, so that nothing is
/// left in between.
const STREAM_CHUNK: usize = linux::PIPE_BUF as usize;

/// A flag of splice(2) that `linux-raw-sys` leaves out, like its siblings.
const SPLICE_NONBLOCK: u32 = 2;
/// All flags of splice(2).
const SPLICE_KNOWN: u32 = 0xf;

/// One side of a copy.
struct SpliceSide {
    open: Arc<OpenFile>,
    /// A position of its own; else the open file's.
    position: Option<u64>,
    /// Where that position goes at the end; 0 for nowhere.
    position_at: usize,
}

impl SpliceSide {
    /// A side whose position is in user memory, if `position_at` isn't 0.
    fn new(call: &Call<'_>, open: Arc<OpenFile>, position_at: usize) -> TryResult<Self> {
        let position = match position_at {
            0 => None,
            address => {
                call.thread.space().probe_write(address, 8)?;
                let position = i64::from_ne_bytes(get(call, address)?);
                Some(u64::try_from(position).map_err(|_| Errno::EINVAL)?)
            }
        };
        Ok(Self { open, position, position_at })
    }

    /// Checks that so many bytes from its position on are bytes that a file can have.
    fn check_end(&self, length: usize) -> Result<(), Errno> {
        let start = if self.open.file.is_seekable() {
            self.position.unwrap_or_else(|| *self.open.offset.lock())
        } else {
            0
        };
        let end = start.checked_add(length as u64).map(i64::try_from);
        if matches!(end, Some(Ok(_))) { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// Reads or writes at the side's position, and moves it.
    fn operate(&mut self, buffer: &mut IoBuffer<'_>, write: bool) -> TryResult<usize> {
        let open = &*self.open;
        let operate = |buffer: &mut IoBuffer<'_>, offset| {
            if write { open.file.write(open, buffer, offset) } else { open.file.read(open, buffer, offset) }
        };
        open.report(if write { linux::IN_MODIFY } else { linux::IN_ACCESS });
        if let Some(position) = &mut self.position {
            let moved = operate(buffer, *position)?;
            *position += moved as u64;
            return Ok(moved);
        }
        if !open.file.is_seekable() {
            return operate(buffer, 0);
        }
        let appended = write && open.flags().contains(StatusFlags::APPEND);
        if open.file.ranges().is_none() {
            return open.move_alone(appended, |offset| {
                let result = operate(buffer, offset);
                let moved = result.as_ref().map_or(0, |moved| *moved);
                (result, moved)
            })?;
        }
        let mut offset = open.offset.lock();
        let moved = operate(buffer, *offset)?;
        *offset = if appended { open.file.size().unwrap_or(*offset) } else { *offset + moved as u64 };
        Ok(moved)
    }

    /// Goes back over what was read but not written.
    fn back(&mut self, count: usize) {
        match &mut self.position {
            Some(position) => *position -= count as u64,
            None if self.open.file.is_seekable() => *self.open.offset.lock() -= count as u64,
            None => {}
        }
    }
}

struct Copy {
    thread: Caller,
    from: SpliceSide,
    to: SpliceSide,
    left: usize,
    done: usize,
    buffer: Vec<u8>,
    /// Bytes that were read and could not be written yet.
    held: core::ops::Range<usize>,
    finished: bool,
    kind: CopyManner,
    /// Which sides are not waited for: that which is read from, that which is written to.
    no_wait: SideWaits,
    /// Whether the side that is written to is the one that would block.
    is_full: bool,
}

/// Which sides of a copy end it instead of being waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SideWaits {
    from: bool,
    to: bool,
}

impl SideWaits {
    /// As in Linux the flag of splice(2) is about the pipe, and each file's own about the file. A unix stream heeds
    /// both, and between two pipes each counts for both.
    fn of(from: &OpenFile, to: &OpenFile, kind: CopyManner) -> Self {
        let nonblocking = |side: &OpenFile| side.flags().contains(StatusFlags::NONBLOCK);
        let is_pipe = |side: &OpenFile| downcast::<PipeEnd>(side).is_some();
        let (of_from, of_to) = (nonblocking(from), nonblocking(to));
        let flag = kind == CopyManner::Splice { no_wait: true };
        match (is_pipe(from), is_pipe(to)) {
            (true, true) => Self { from: flag || of_from || of_to, to: flag || of_from || of_to },
            (true, false) => Self { from: flag || of_from, to: of_to },
            (false, true) => {
                let heeds_both = downcast::<Socket>(from).is_some_and(|socket| socket.style == Style::Stream);
                Self { from: of_from || heeds_both && (flag || of_to), to: flag || of_to }
            }
            (false, false) => Self { from: of_from, to: of_to },
        }
    }
}

/// The kinds of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyManner {
    /// All of it, and counted as a read and a write: sendfile(2), copy_file_range(2).
    Whole,
    /// As much as is there, instead of waiting for more: splice(2).
    Splice { no_wait: bool },
}

impl Copy {
    /// Moves a piece; whether that was the last.
    fn move_some(&mut self) -> TryResult<bool> {
        if let (Some(from), Some(to)) =
            (downcast::<PipeEnd>(&self.from.open), downcast::<PipeEnd>(&self.to.open))
        {
            let moved = from.pass_on(to, self.left, true)?;
            self.done += moved;
            self.left -= moved;
            self.from.open.report(linux::IN_ACCESS);
            self.to.open.report(linux::IN_MODIFY);
            return Ok(moved == 0 || self.left == 0);
        }
        if self.held.is_empty() {
            let stream = !self.from.open.file.is_seekable();
            self.is_full =
                stream && !self.to.open.file.poll(&self.to.open, None, Events::OUT)?.contains(Events::OUT);
            if self.is_full {
                return Err(TryError::WouldBlock);
            }
            let most = if stream { STREAM_CHUNK } else { CHUNK };
            let chunk = self.left.min(self.record_bytes().unwrap_or(most));
            self.buffer
                .try_reserve_exact(chunk.saturating_sub(self.buffer.len()))
                .map_err(|_| Errno::ENOMEM)?;
            resize_reserved(&mut self.buffer, chunk, 0);
            let mut buffer = IoBuffer::kernel_out(&mut self.buffer);
            let result = self.from.operate(&mut buffer, false);
            if buffer.is_unfinished() {
                return Ok(false);
            }
            let mut read = match result {
                // A short count is a result; a copy waits only for its first byte.
                Err(TryError::WouldBlock) if self.done > 0 => 0,
                result => result?,
            };
            if read == 0 {
                return Ok(true);
            }
            // A record is written whole: what is there of it may come in pieces.
            while self.to.open.file.record_bytes().is_some() && read < chunk {
                let mut buffer = IoBuffer::kernel_out(&mut self.buffer[read..]);
                match self.from.operate(&mut buffer, false) {
                    Ok(more @ 1..) => read += more,
                    _ => break,
                }
            }
            self.held = 0..read;
        }
        let mut buffer = IoBuffer::kernel_in(&self.buffer[self.held.clone()]);
        let result = self.to.operate(&mut buffer, true);
        self.is_full = matches!(result, Err(TryError::WouldBlock));
        let written = buffer.done();
        self.held.start += written;
        self.done += written;
        self.left -= written;
        if let (CopyManner::Whole, Caller::Thread(thread)) = (self.kind, &self.thread) {
            thread.count_bytes_read(written);
            thread.count_bytes_written(written);
        }
        let seekable = self.from.open.file.is_seekable();
        if !self.held.is_empty() && seekable {
            self.from.back(self.held.len());
            self.held = 0..0;
        }
        result?;
        Ok(self.left == 0 || self.held.is_empty() && self.record_bytes().is_some())
    }

    /// The most bytes of a record, if one side has records.
    fn record_bytes(&self) -> Option<usize> {
        let from = self.from.open.file.record_bytes();
        from.or_else(|| self.to.open.file.record_bytes())
    }

    fn store_positions(&self) -> TryResult<()> {
        let space = self.thread.space();
        for side in [&self.from, &self.to] {
            if let (Some(position), true) = (side.position, side.position_at != 0) {
                space.write_bytes(side.position_at, &position.to_ne_bytes())?;
            }
        }
        Ok(())
    }
}

impl Operation for Copy {
    fn attempt(&mut self) -> TryResult<usize> {
        if !self.finished {
            self.finished = match self.move_some() {
                Err(TryError::WouldBlock)
                    if self.kind != CopyManner::Whole && self.done > 0 && self.held.is_empty() =>
                {
                    true
                }
                result => result?,
            };
        }
        if self.finished {
            self.store_positions()?;
        }
        Ok(self.done)
    }

    fn step(&mut self, no_wait: bool) -> Step {
        match self.attempt() {
            Ok(done) if self.finished => Step::Finished(Ok(done)),
            Ok(_) => Step::Again,
            Err(TryError::Fault(fault)) => Step::Fault(fault),
            Err(TryError::WouldBlock) if no_wait => Step::Finished(self.end(Errno::EAGAIN)),
            Err(TryError::WouldBlock) => {
                let ends = if self.is_full { self.no_wait.to } else { self.no_wait.from };
                if ends { Step::Finished(self.end(Errno::EAGAIN)) } else { Step::Wait }
            }
            Err(TryError::Error(error)) => {
                if error == Errno::EPIPE {
                    broken_pipe(&self.thread);
                }
                Step::Finished(self.end(error))
            }
        }
    }

    fn partial(&self) -> Option<usize> {
        // The call ends anyhow; a position that can't be stored is the program's own doing.
        let _ = self.store_positions();
        (self.done > 0).then_some(self.done)
    }

    fn can_go_on(&self, watch: &Watch) -> Result<bool, Errno> {
        let writable = self.to.open.file.can_go_on(&self.to.open, watch, Events::OUT)?;
        if !self.held.is_empty() || !writable {
            return Ok(writable);
        }
        self.from.open.file.can_go_on(&self.from.open, watch, Events::IN)
    }
}

fn copy(call: &Call<'_>, from: SpliceSide, to: SpliceSide, length: usize, kind: CopyManner) -> SyscallResult {
    check_direction(&from.open, TransferDirection::Read)?;
    check_direction(&to.open, TransferDirection::Write)?;
    let left = length.min(TRANSFER_LIMIT);
    if left == 0 {
        return Ok(0.into());
    }
    let no_wait = SideWaits::of(&from.open, &to.open, kind);
    let manner = WaitOptions { no_wait: no_wait.from && no_wait.to, deadline_ns: None };
    let thread = call.thread.clone();
    if let (CopyManner::Whole, Caller::Thread(thread)) = (kind, &thread) {
        thread.count_read();
        thread.count_write();
    }
    let (buffer, finished, is_full) = (Vec::new(), false, false);
    let operation =
        Copy { thread, from, to, left, done: 0, buffer, held: 0..0, finished, kind, no_wait, is_full };
    carry_out(call.thread, manner, operation)
}

/// sendfile(2).
pub fn sendfile(call: &mut Call<'_>) -> SyscallResult {
    if call.word(2) != 0 {
        let _: [u8; 8] = get(call, call.word(2))?;
    }
    let from = get_file(call, 1)?;
    check_direction(&from, TransferDirection::Read).map_err(no_directory)?;
    if call.word(2) != 0 && !from.file.is_seekable() {
        return Err(Errno::ESPIPE.into());
    }
    let to = get_file(call, 0)?;
    check_direction(&to, TransferDirection::Write)?;
    if !from.file.is_seekable() || to.flags().contains(StatusFlags::APPEND) {
        return Err(Errno::EINVAL.into());
    }
    let from = SpliceSide::new(call, from, call.word(2))?;
    let to = SpliceSide { open: to, position: None, position_at: 0 };
    from.check_end(call.word(3))?;
    to.check_end(call.word(3))?;
    copy(call, from, to, call.word(3), CopyManner::Whole)
}

/// The error for a directory, which has no pages to give.
fn no_directory(error: Errno) -> Errno {
    if error == Errno::EISDIR { Errno::EINVAL } else { error }
}

/// copy_file_range(2).
pub fn copy_file_range(call: &mut Call<'_>) -> SyscallResult {
    let (from, to) = (get_file(call, 0)?, get_file(call, 2)?);
    for index in [1, 3] {
        if call.word(index) != 0 {
            let _: [u8; 8] = get(call, call.word(index))?;
        }
    }
    if call.uint(5) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let kinds = [from.metadata(), to.metadata()];
    if kinds.iter().any(|metadata| metadata.kind == FileType::Directory) {
        return Err(Errno::EISDIR.into());
    }
    if kinds.iter().any(|metadata| metadata.kind != FileType::Regular) {
        return Err(Errno::EINVAL.into());
    }
    if to.flags().contains(StatusFlags::APPEND) {
        return Err(Errno::EBADF.into());
    }
    if kinds[0].device != kinds[1].device {
        return Err(Errno::EXDEV.into());
    }
    let same = kinds[0].inode == kinds[1].inode;
    let (from, to) = (SpliceSide::new(call, from, call.word(1))?, SpliceSide::new(call, to, call.word(3))?);
    let start = |side: &SpliceSide| side.position.unwrap_or_else(|| *side.open.offset.lock());
    let length = call.word(4);
    if same && start(&from).abs_diff(start(&to)) < length as u64 {
        return Err(Errno::EINVAL.into());
    }
    copy(call, from, to, length, CopyManner::Whole)
}

/// `/dev/null`, which takes pages, and the two devices of random bytes, which give them as well.
const NULL: u64 = device_number(1, 3);
const RANDOM: [u64; 2] = [device_number(1, 8), device_number(1, 9)];

/// Whether bytes can be spliced out of a file: events, and the devices of zeros, have no pages to give.
fn gives_pages(open: &OpenFile) -> bool {
    let metadata = open.metadata();
    match metadata.kind {
        FileType::Fifo | FileType::Socket => true,
        FileType::Character => !open.file.stays_at_start() || RANDOM.contains(&metadata.special),
        _ => open.file.is_seekable(),
    }
}

/// Whether bytes can be spliced into a file: events take numbers.
fn takes_pages(open: &OpenFile) -> bool {
    let metadata = open.metadata();
    match metadata.kind {
        FileType::Fifo | FileType::Socket => true,
        FileType::Character => {
            !open.file.stays_at_start() || metadata.special == NULL || RANDOM.contains(&metadata.special)
        }
        _ => open.file.is_seekable(),
    }
}

/// Whether bytes can be spliced from one file to the other, at positions of their own or not.
fn check_splice(from: &OpenFile, to: &OpenFile, has_positions: [bool; 2]) -> Result<(), Errno> {
    if [from, to].into_iter().any(pipe::has_packets) {
        return Err(Errno::EINVAL);
    }
    check_direction(from, TransferDirection::Read).map_err(no_directory)?;
    check_direction(to, TransferDirection::Write).map_err(no_directory)?;
    if downcast::<PipeEnd>(from).is_none() && downcast::<PipeEnd>(to).is_none() {
        return Err(Errno::EINVAL);
    }
    for (open, is_at) in [from, to].into_iter().zip(has_positions) {
        if is_at && !open.file.is_seekable() {
            return Err(Errno::EINVAL);
        }
    }
    if let (Some(from), Some(to)) = (downcast::<PipeEnd>(from), downcast::<PipeEnd>(to))
        && from.is_end_of_same(to)
    {
        return Err(Errno::EINVAL);
    }
    let appends = downcast::<PipeEnd>(to).is_none() && to.flags().contains(StatusFlags::APPEND);
    if !gives_pages(from) || !takes_pages(to) || appends {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// As splice(2), with positions by value, for `io_uring`.
pub fn splice_between(
    call: &Call<'_>,
    [from, to]: [Arc<OpenFile>; 2],
    positions: [Option<u64>; 2],
    length: usize,
    flags: u32,
) -> SyscallResult {
    if length == 0 {
        return Ok(0.into());
    }
    for (open, position) in [&from, &to].into_iter().zip(positions) {
        if position.is_some() && downcast::<PipeEnd>(open).is_some() {
            return Err(Errno::ESPIPE.into());
        }
    }
    check_splice(&from, &to, positions.map(|position| position.is_some()))?;
    if positions.iter().flatten().any(|&position| i64::try_from(position).is_err()) {
        return Err(Errno::EINVAL.into());
    }
    let from = SpliceSide { open: from, position: positions[0], position_at: 0 };
    let to = SpliceSide { open: to, position: positions[1], position_at: 0 };
    copy(call, from, to, length, CopyManner::Splice { no_wait: flags & SPLICE_NONBLOCK != 0 })
}

/// splice(2).
pub fn splice(call: &mut Call<'_>) -> SyscallResult {
    let flags = call.uint(5);
    if call.word(4) == 0 {
        return Ok(0.into());
    }
    if flags & !SPLICE_KNOWN != 0 {
        return Err(Errno::EINVAL.into());
    }
    let (from, to) = (get_file(call, 0)?, get_file(call, 2)?);
    for (open, index) in [(&from, 1), (&to, 3)] {
        if call.word(index) != 0 && downcast::<PipeEnd>(open).is_some() {
            return Err(Errno::ESPIPE.into());
        }
    }
    for index in [3, 1] {
        if call.word(index) != 0 {
            let _: [u8; 8] = get(call, call.word(index))?;
        }
    }
    check_splice(&from, &to, [call.word(1) != 0, call.word(3) != 0])?;
    let (from, to) = (SpliceSide::new(call, from, call.word(1))?, SpliceSide::new(call, to, call.word(3))?);
    from.check_end(call.word(4))?;
    to.check_end(call.word(4))?;
    copy(call, from, to, call.word(4), CopyManner::Splice { no_wait: flags & SPLICE_NONBLOCK != 0 })
}

struct Tee {
    from: Arc<OpenFile>,
    to: Arc<OpenFile>,
    length: usize,
}

impl Operation for Tee {
    fn attempt(&mut self) -> TryResult<usize> {
        let from = downcast::<PipeEnd>(&self.from).ok_or(Errno::EINVAL)?;
        let to = downcast::<PipeEnd>(&self.to).ok_or(Errno::EINVAL)?;
        from.pass_on(to, self.length, false)
    }

    fn can_go_on(&self, watch: &Watch) -> Result<bool, Errno> {
        let readable = self.from.file.can_go_on(&self.from, watch, Events::IN)?;
        Ok(self.to.file.can_go_on(&self.to, watch, Events::OUT)? && readable)
    }
}

/// tee(2).
pub fn tee(call: &mut Call<'_>) -> SyscallResult {
    if call.uint(3) & !SPLICE_KNOWN != 0 {
        return Err(Errno::EINVAL.into());
    }
    if call.word(2) == 0 {
        return Ok(0.into());
    }
    let files = [get_file(call, 0)?, get_file(call, 1)?];
    tee_between(call, files, call.word(2), call.uint(3))
}

/// As tee(2), between these files.
pub fn tee_between(
    call: &Call<'_>,
    [from, to]: [Arc<OpenFile>; 2],
    length: usize,
    flags: u32,
) -> SyscallResult {
    if length == 0 {
        return Ok(0.into());
    }
    check_direction(&from, TransferDirection::Read)?;
    check_direction(&to, TransferDirection::Write)?;
    let no_wait = flags & SPLICE_NONBLOCK != 0 || from.flags().contains(StatusFlags::NONBLOCK);
    let length = length.min(TRANSFER_LIMIT);
    carry_out(call.thread, WaitOptions { no_wait, deadline_ns: None }, Tee { from, to, length })
}

/// vmsplice(2): bytes are copied, which is all that a program can tell.
pub fn vmsplice(call: &mut Call<'_>) -> SyscallResult {
    let open = get_file(call, 0)?;
    if downcast::<PipeEnd>(&open).is_none() {
        return Err(Errno::EBADF.into());
    }
    let flags = call.uint(3);
    if flags & !SPLICE_KNOWN != 0 {
        return Err(Errno::EINVAL.into());
    }
    let direction = if open.is_writable() { TransferDirection::Write } else { TransferDirection::Read };
    let segments = many(call, call.word(1), call.word(2))?;
    let no_wait = flags & SPLICE_NONBLOCK != 0;
    let thread = call.thread.clone();
    let has_positions = open.file.is_seekable();
    let transfer = Transfer {
        thread,
        open,
        segments,
        direction,
        position: None,
        has_positions,
        no_wait,
        done: 0,
        held: None,
        probed: None,
        missed: None,
        is_unfinished: false,
        does_without: false,
        some_is_enough: true,
        is_appended: false,
    };
    transfer.start()
}
