//! The bytes of pipes and stream sockets, in frames.
//!
//! Few bytes are copied under the lock of the queue's object. Many are copied without it: a writer fills frames of its
//! own and appends them, a reader copies from frames that stay where they are until it has. So two CPUs copy at the
//! same time, and nobody spins while 16 pages are copied.

use core::ops::Range;

use heddle_kernel_core::pipe::{PAGE_BYTES, PageQueue};

use crate::error::{Errno, TryError, TryResult};
use crate::fs::IoBuffer;
use crate::memory::FrameRef;
use crate::memory::user::PageFault;
use crate::sync::{SpinGuard, SpinLock};
use crate::wait::queue::{Events, WaitQueue};

/// Bytes that wait to be read.
pub type ByteQueue = PageQueue<FrameRef>;

/// The least that is copied without the lock; below, taking it twice costs more.
pub const LARGE_BYTES: usize = 2 * PAGE_BYTES;
/// Up to this size bytes that follow others, which went to a reader directly, are copied under the same lock, so that
/// no other writer's come between.
const WHOLE_BYTES: usize = 32 << 10;
/// Pauses between two looks at a queue whose bytes are borrowed: who has them needs the lock to give them back.
const PAUSES: u32 = 32;
/// Pages that are copied at a time without the lock.
const LOT_PAGES: usize = 16;

/// An object with bytes to read, as its lock guards it.
pub trait HasBytes {
    /// The bytes.
    fn bytes(&mut self) -> &mut ByteQueue;

    /// Takes bytes out that were borrowed and copied.
    fn take_borrowed(&mut self, count: usize) {
        self.bytes().take_borrowed(count);
    }
}

/// A part of a page.
struct PagePart {
    frame: FrameRef,
    range: Range<usize>,
}

/// Pages on their way from or to a queue.
struct Lot {
    parts: [Option<PagePart>; LOT_PAGES],
    count: usize,
    bytes: usize,
}

impl Lot {
    const EMPTY: Self = Self { parts: [const { None }; LOT_PAGES], count: 0, bytes: 0 };

    /// Takes another part; whether there is room for one more.
    fn add(&mut self, frame: FrameRef, range: Range<usize>) -> bool {
        self.bytes += range.len();
        if let Some(place) = self.parts.get_mut(self.count) {
            *place = Some(PagePart { frame, range });
            self.count += 1;
        }
        self.count < LOT_PAGES
    }

    /// Copies up to `limit` bytes from the buffer to new frames. Returns why it is fewer.
    fn fill(&mut self, buffer: &mut IoBuffer<'_>, limit: usize) -> Option<TryError> {
        while self.bytes < limit && self.count < LOT_PAGES {
            let frame = match FrameRef::allocate() {
                Ok(frame) => frame,
                Err(error) => return Some(error.into()),
            };
            let length = PAGE_BYTES.min(limit - self.bytes);
            let before = buffer.done();
            let result = buffer.copy_in_frame(frame.bytes().part(0..length));
            let copied = buffer.done() - before;
            if copied > 0 {
                self.add(frame, 0..copied);
            }
            if let Err(fault) = result {
                return Some(fault.into());
            }
        }
        None
    }

    /// Copies all of it to the buffer, as far as that reaches.
    fn drain(&self, buffer: &mut IoBuffer<'_>) -> Result<(), PageFault> {
        for part in self.parts.iter().flatten() {
            buffer.copy_out_frame(part.frame.bytes().part(part.range.clone()))?;
        }
        Ok(())
    }
}

/// Whether so many bytes, behind others of the same write that went to a reader directly, are copied without the lock.
pub const fn is_large(bytes: usize, direct: usize) -> bool {
    bytes >= LARGE_BYTES && (direct == 0 || bytes > WHOLE_BYTES)
}

/// Copies at most `limit` bytes from the buffer into the queue.
///
/// # Errors
/// A fault before the first byte, `ENOMEM`.
#[inline]
pub fn fill(queue: &mut ByteQueue, buffer: &mut IoBuffer<'_>, limit: usize) -> TryResult<usize> {
    let limit = limit.min(buffer.remaining()).min(queue.room());
    // Most often the last page has room for all.
    if let Some((frame, free)) = queue.tail()
        && free.len() >= limit
    {
        let before = buffer.done();
        let result = buffer.copy_in_frame(frame.bytes().part(free.start..free.start + limit));
        let copied = buffer.done() - before;
        queue.commit(copied);
        return match result {
            Err(fault) if copied == 0 => Err(fault.into()),
            _ => Ok(copied),
        };
    }
    fill_pages(queue, buffer, limit)
}

/// Copies `limit` bytes into the queue, which needs pages for them.
#[inline(never)]
fn fill_pages(queue: &mut ByteQueue, buffer: &mut IoBuffer<'_>, limit: usize) -> TryResult<usize> {
    let mut moved = 0;
    // Bytes that go as a whole have their memory before the first is copied.
    let mut spare = None;
    if limit <= PAGE_BYTES {
        spare = Some(FrameRef::allocate()?);
        queue.reserve_places(1).map_err(|_| Errno::ENOMEM)?;
    }
    while moved < limit {
        let Some((frame, free)) = queue.tail() else {
            let added = match spare.take() {
                Some(frame) => Ok(frame),
                None => FrameRef::allocate(),
            }
            .and_then(|frame| queue.add(frame).map_err(|_| Errno::ENOMEM));
            match added {
                Err(_) if moved > 0 => return Ok(moved),
                added => added?,
            }
            continue;
        };
        let end = free.end.min(free.start + limit - moved);
        let before = buffer.done();
        let result = buffer.copy_in_frame(frame.bytes().part(free.start..end));
        let copied = buffer.done() - before;
        queue.commit(copied);
        moved += copied;
        if let Err(fault) = result {
            return if moved > 0 { Ok(moved) } else { Err(fault.into()) };
        }
    }
    Ok(moved)
}

/// Copies from the queue into the buffer and consumes what was copied.
///
/// # Errors
/// A fault before the first byte.
#[inline]
pub fn drain(queue: &mut ByteQueue, buffer: &mut IoBuffer<'_>) -> TryResult<usize> {
    let mut moved = 0;
    while buffer.remaining() > 0
        && let Some((frame, range)) = queue.head()
    {
        let before = buffer.done();
        let result = buffer.copy_out_frame(frame.bytes().part(range));
        let copied = buffer.done() - before;
        queue.consume(copied);
        moved += copied;
        if let Err(fault) = result {
            return if moved > 0 { Ok(moved) } else { Err(fault.into()) };
        }
    }
    Ok(moved)
}

/// Copies from the queue into the buffer, but the first `skip` bytes, and leaves all there.
///
/// # Errors
/// A fault.
pub fn peek(queue: &ByteQueue, buffer: &mut IoBuffer<'_>, mut skip: usize) -> TryResult<usize> {
    let before = buffer.done();
    for (frame, range) in queue.parts() {
        let skipped = skip.min(range.len());
        skip -= skipped;
        if buffer.remaining() == 0 {
            break;
        }
        buffer.copy_out_frame(frame.bytes().part(range.start + skipped..range.end))?;
    }
    Ok(buffer.done() - before)
}

/// The lock of a reader that is to consume: waits until nobody has borrowed bytes, which lasts as long as a copy of
/// some pages.
#[inline]
pub fn lock_to_read<T: HasBytes>(lock: &SpinLock<T>) -> SpinGuard<'_, T> {
    loop {
        let mut guard = lock.lock();
        if !guard.bytes().is_borrowed() {
            return guard;
        }
        drop(guard);
        (0..PAUSES).for_each(|_| core::hint::spin_loop());
    }
}

/// Copies up to `limit` bytes, and not more than a lot's, from the buffer to the queue. The copy is made without the
/// lock; `is_open` says whether the object still takes bytes then. Writers in `queue` hear of room that was not needed.
///
/// # Errors
/// Blocks if there is no room. A fault before the first byte, `ENOMEM`, `EPIPE`.
pub fn fill_unlocked<'a, T: HasBytes>(
    (lock, queue): (&'a SpinLock<T>, &WaitQueue),
    mut guard: SpinGuard<'a, T>,
    buffer: &mut IoBuffer<'_>,
    limit: usize,
    is_open: fn(&T) -> bool,
) -> TryResult<usize> {
    let wanted = limit.min(buffer.remaining()).min(guard.bytes().room()).min(LOT_PAGES * PAGE_BYTES);
    if wanted == 0 {
        return Err(TryError::WouldBlock);
    }
    guard.bytes().reserve(wanted);
    drop(guard);
    let before = buffer.mark();
    let mut lot = Lot::EMPTY;
    let halt = lot.fill(buffer, wanted);
    let mut guard = lock.lock();
    guard.bytes().unreserve(wanted);
    let refused = if !is_open(&guard) {
        Some(Errno::EPIPE)
    } else if guard.bytes().reserve_places(lot.count).is_err() {
        Some(Errno::ENOMEM)
    } else {
        None
    };
    if refused.is_none() {
        for part in lot.parts.iter_mut().filter_map(Option::take) {
            guard.bytes().append(part.frame, part.range.len());
        }
    }
    drop(guard);
    if refused.is_some() || lot.bytes < wanted {
        queue.wake(Events::OUT | Events::WRNORM);
    }
    if let Some(error) = refused {
        buffer.rewind(before);
        return Err(error.into());
    }
    match halt {
        Some(halt) if lot.bytes == 0 => Err(halt),
        _ => Ok(lot.bytes),
    }
}

/// Copies from the queue into the buffer and consumes what was copied, which is made without the lock. Returns the
/// lock, and the bytes.
///
/// # Errors
/// A fault before the first byte.
pub fn drain_unlocked<'a, T: HasBytes>(
    lock: &'a SpinLock<T>,
    mut guard: SpinGuard<'a, T>,
    buffer: &mut IoBuffer<'_>,
) -> (SpinGuard<'a, T>, TryResult<usize>) {
    let mut moved = 0;
    // Nothing that is appended meanwhile: the owner has looked for boundaries, and for missing pages, in what was
    // there, and a writer that goes on would make the read as long as its buffer.
    buffer.truncate(guard.bytes().len());
    while buffer.remaining() > 0 && !guard.bytes().is_empty() {
        let wanted = buffer.remaining();
        let mut lot = Lot::EMPTY;
        guard.bytes().borrow(|frame, range| lot.add(frame.clone(), range) && lot.bytes < wanted);
        drop(guard);
        let before = buffer.done();
        let result = lot.drain(buffer);
        let copied = buffer.done() - before;
        guard = lock.lock();
        guard.take_borrowed(copied);
        moved += copied;
        if let Err(fault) = result {
            let result = if moved > 0 { Ok(moved) } else { Err(fault.into()) };
            return (guard, result);
        }
    }
    (guard, Ok(moved))
}
