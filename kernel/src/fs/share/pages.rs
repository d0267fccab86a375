//! The bytes of a file that are kept: a cache that all mappings, reads and writes of the guest see.
//!
//! A page that was handed out to be written counts as written until it has been stored while nobody could write it.
//! So storing takes the pages from all who have them mapped, and then sends them to the host; whoever touches one again
//! says so. That happens for `msync` and `fsync`, at the end of the last mapping and of the machine, and when memory is
//! short, where pages that are stored are given up as well.
//!
//! Calls that write go to the host at once, and change what is kept here. Pages that the host has changed are not
//! thrown away page by page: the *generation* is counted up, and a page of an older one is as good as none, unless
//! it was written through a mapping.

use alloc::collections::BTreeMap;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use heddle_kernel_core::ninep::{MessageWriter, Reader, kind};

use crate::error::{Errno, TryResult};
use crate::fs::IoBuffer;
use crate::fs::share::file::ask_to_read;
use crate::fs::share::filled::FilledPages;
use crate::fs::share::handle::Handle;
use crate::fs::share::{CHUNK, Server};
use crate::memory::{FrameRef, fallible};
use crate::sched;
use crate::sync::SpinLock;

pub const PAGE: u64 = 4096;
const PAGE_BYTES: usize = PAGE as usize;
/// Pages that are read at once.
const AHEAD: usize = CHUNK / PAGE_BYTES;
/// Looks for a page that others change meanwhile, before they have to wait.
const TURNS_MAX: usize = 8;
/// Pages that one step drops.
const STEP: usize = 32;
/// Longest file in pages of which is found out whether all of it is kept.
pub const COMPLETE_MAX: u64 = 256;

pub struct SharedPageSlot {
    frame: FrameRef,
    generation: u64,
}

/// Pages of a file.
#[derive(Default)]
pub struct PageSlots {
    /// By their numbers.
    slots: BTreeMap<u64, SharedPageSlot>,
    /// When pages were handed out to be written last, by [`SharedPageCache::moment`], where the host has not what they
    /// hold.
    written: BTreeMap<u64, u64>,
}

#[derive(Default)]
struct SharedPageCache {
    pages: PageSlots,
    /// Counts pages that were handed out to be written.
    moment: u64,
    /// Counts changes of the file past the cache: what was read before one may be old.
    changes: u64,
    /// Counts what the host has changed.
    generation: u64,
    /// Where [`SharedPages::take_some`] goes on.
    hand: u64,
}

/// The state of a file's pages at a moment: what is asked for after it counts unless they have changed since.
pub struct PagesMark {
    changes: u64,
    generation: u64,
}

/// The pages of a file.
pub struct SharedPages {
    cache: SpinLock<SharedPageCache>,
    /// Used since [`SharedPages::take_some`] came by.
    is_used: AtomicBool,
}

impl SharedPages {
    pub fn new() -> Self {
        Self { cache: SpinLock::new(SharedPageCache::default()), is_used: AtomicBool::new(false) }
    }

    /// The host may have changed the file.
    pub fn distrust(&self) {
        self.cache.lock().generation += 1;
    }

    /// Whether all bytes of a file of this length are kept.
    pub fn is_complete(&self, size: u64) -> bool {
        let pages = size.div_ceil(PAGE);
        let cache = self.cache.lock();
        pages <= COMPLETE_MAX
            && cache.pages.slots.range(..pages).filter(|(index, slot)| cache.is_right(**index, slot)).count()
                as u64
                == pages
    }

    /// Whether no page is kept.
    pub fn is_empty(&self) -> bool {
        self.cache.lock().pages.slots.is_empty()
    }

    /// The state before the host is asked for pages.
    pub fn mark(&self) -> PagesMark {
        let cache = self.cache.lock();
        PagesMark { changes: cache.changes, generation: cache.generation }
    }

    /// Reads pages from this one on from the host, and keeps them. How many there are now, one after the other; zero
    /// if there is no memory to keep any.
    fn fill(&self, handle: &Handle, first: u64, size: u64, most: usize) -> Result<usize, Errno> {
        let mark = self.mark();
        let fid = handle.fid()?;
        let offset = first.checked_mul(PAGE).ok_or(Errno::EFBIG)?;
        let count = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX).min(most * PAGE_BYTES);
        let ask = |writer: &mut MessageWriter<'_>| ask_to_read(writer, fid, offset, count);
        let filled = fid.server.call(kind::READ, ask, FilledPages::<AHEAD>::read)?;
        Ok(self.keep(&fid.server, &mark, first, filled, count))
    }

    /// Keeps pages from this one on that the host was asked for after `mark`, `count` bytes of them. How many there are
    /// now, one after the other.
    pub fn keep<const N: usize>(
        &self,
        server: &Server,
        mark: &PagesMark,
        first: u64,
        filled: FilledPages<N>,
        count: usize,
    ) -> usize {
        let FilledPages { frames, length } = filled;
        // A part of a page is only good at the end of the file.
        let whole = if length >= count { length.div_ceil(PAGE_BYTES) } else { length / PAGE_BYTES };
        let mut cache = self.cache.lock();
        let (mut kept, mut added) = (0, 0);
        for (index, frame) in (first..).zip(frames.into_iter().take(whole).map_while(|frame| frame)) {
            // Somebody else may have been faster, or have written what was read here.
            if cache.changes != mark.changes {
                break;
            }
            if !cache.has(index) {
                let slot = SharedPageSlot { frame, generation: mark.generation };
                match fallible::try_insert(&mut cache.pages.slots, index, slot) {
                    Ok(old) => added += usize::from(old.is_none()),
                    Err(_) => break,
                }
            }
            kept += 1;
        }
        drop(cache);
        server.count_frames(added as isize);
        kept
    }

    /// The page as the host has it, which is not kept if that changes meanwhile: part by part, whatever the host sends
    /// at once.
    fn fetch(&self, handle: &Handle, index: u64) -> Result<FrameRef, Errno> {
        let (fid, offset) = (handle.fid()?, index.checked_mul(PAGE).ok_or(Errno::EFBIG)?);
        let frame = FrameRef::allocate_zeroed()?;
        let mut done = 0;
        while done < PAGE_BYTES {
            let left = PAGE_BYTES - done;
            let read = |reader: &mut Reader<'_>| {
                let length = reader.u32()? as usize;
                let bytes = reader.bytes(length)?;
                frame.write(done, &bytes[..bytes.len().min(left)]);
                Ok(bytes.len())
            };
            let ask = |writer: &mut MessageWriter<'_>| ask_to_read(writer, fid, offset + done as u64, left);
            match fid.server.call(kind::READ, ask, read)? {
                0 => break,
                count => done += count,
            }
        }
        Ok(frame)
    }

    /// A page to be mapped, of a file of this length. The length is asked for after the look at what has changed the
    /// file, so that no page is kept that a truncation has cut off meanwhile. If changes overtake that again and
    /// again, the writers wait.
    pub fn page(
        &self,
        handle: &Handle,
        index: u64,
        size: impl Fn() -> Result<u64, Errno>,
        write: bool,
    ) -> Result<FrameRef, Errno> {
        self.is_used.store(true, Ordering::Relaxed);
        let server = &handle.node().fid.server;
        let mut ahead = if server.has_room() { AHEAD } else { 1 };
        for _ in 0..TURNS_MAX {
            let (changes, generation) = {
                let cache = self.cache.lock();
                (cache.changes, cache.generation)
            };
            let size = size()?;
            if index.saturating_mul(PAGE) >= size {
                return Err(Errno::EFAULT);
            }
            {
                let mut cache = self.cache.lock();
                if cache.changes != changes {
                    continue;
                }
                if let Some(frame) = cache.hand_out(index, write)? {
                    return Ok(frame);
                }
            }
            server.make_room();
            if ahead > 0 && self.fill(handle, index, size, ahead)? > 0 {
                continue;
            }
            ahead = 0;
            let frame = self.fetch(handle, index)?;
            let mut cache = self.cache.lock();
            if cache.changes == changes && !cache.has(index) {
                let slot = SharedPageSlot { frame, generation };
                let old = fallible::try_insert(&mut cache.pages.slots, index, slot)?;
                drop(cache);
                server.count_frames(isize::from(old.is_none()));
            }
        }
        self.page_alone(handle, index, size()?, write)
    }

    /// The same while nobody else of the guest changes the file: the page as the host has it at one moment, whatever
    /// the host changes.
    fn page_alone(&self, handle: &Handle, index: u64, size: u64, write: bool) -> Result<FrameRef, Errno> {
        let _contents = handle.node().state.lock_contents()?;
        let size = handle.node().state.last().map_or(size, |known| known.size);
        if index.saturating_mul(PAGE) >= size {
            return Err(Errno::EFAULT);
        }
        for _ in 0..TURNS_MAX {
            let generation = self.cache.lock().generation;
            let frame = self.fetch(handle, index)?;
            let mut cache = self.cache.lock();
            if cache.generation != generation {
                continue;
            }
            let (mut added, mut old) = (0, None);
            if !cache.has(index) {
                let slot = SharedPageSlot { frame, generation };
                old = fallible::try_insert(&mut cache.pages.slots, index, slot)?;
                added = isize::from(old.is_none());
            }
            let frame = cache.hand_out(index, write);
            drop(cache);
            drop(old);
            handle.node().fid.server.count_frames(added);
            return frame?.ok_or(Errno::EIO);
        }
        // The host changes it all the time: who only reads gets it as it was, and nobody else does.
        if write { Err(Errno::EIO) } else { self.fetch(handle, index) }
    }

    /// The page, if it is kept and right.
    pub fn resident(&self, index: u64) -> Option<FrameRef> {
        self.cache.lock().hand_out(index, false).ok().flatten()
    }

    /// Reads: from pages that are kept up to the first that is not, which is fetched, with those behind it, if it is
    /// the first of all.
    pub fn read(
        &self,
        handle: &Handle,
        size: u64,
        buffer: &mut IoBuffer<'_>,
        offset: u64,
    ) -> TryResult<usize> {
        let Some(left) = size.checked_sub(offset).filter(|&left| left > 0) else { return Ok(0) };
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.remaining()).min(CHUNK);
        self.is_used.store(true, Ordering::Relaxed);
        let server = &handle.node().fid.server;
        for is_filled in [false, true] {
            let done = self.copy_kept(buffer, offset, count)?;
            if done > 0 || count == 0 {
                return Ok(done);
            }
            if is_filled {
                break;
            }
            server.make_room();
            if !server.has_room() || self.fill(handle, offset / PAGE, size, AHEAD)? == 0 {
                break;
            }
        }
        let limit =
            self.cache.lock().next_right(offset / PAGE + 1).map_or(u64::MAX, |next| next * PAGE - offset);
        let count = count.min(usize::try_from(limit).unwrap_or(usize::MAX));
        crate::fs::share::file::read(handle.fid()?, buffer, offset, count)
    }

    /// Reads a file that the host does not have by its name any more, so that it cannot say what has changed: as the
    /// host has it now, past the length that is known too, but for what was written through mappings.
    pub fn read_lost(
        &self,
        handle: &Handle,
        size: u64,
        buffer: &mut IoBuffer<'_>,
        offset: u64,
    ) -> TryResult<usize> {
        let known = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let count = buffer.remaining().min(CHUNK);
        let first = offset / PAGE;
        let next_written = self.cache.lock().pages.written.range(first..).next().map(|(&index, _)| index);
        let fid = match handle.fid() {
            Ok(fid) => fid,
            Err(error @ (Errno::ENOENT | Errno::ESTALE)) => {
                // Opened without the host, and what is kept is all there is of it.
                return match self.copy_kept(buffer, offset, count.min(known))? {
                    0 if count.min(known) > 0 => Err(error.into()),
                    done => Ok(done),
                };
            }
            Err(error) => return Err(error.into()),
        };
        if next_written == Some(first) {
            let rest_of_page = (PAGE - offset % PAGE) as usize;
            return self.copy_kept(buffer, offset, count.min(known).min(rest_of_page));
        }
        let limit = next_written.map_or(u64::MAX, |next| next * PAGE - offset);
        let count = count.min(usize::try_from(limit).unwrap_or(usize::MAX));
        crate::fs::share::file::read(fid, buffer, offset, count)
    }

    /// Copies what is kept from here on. An error is one of the first byte.
    fn copy_kept(&self, buffer: &mut IoBuffer<'_>, offset: u64, count: usize) -> TryResult<usize> {
        let mut done = 0;
        while done < count {
            let at = offset + done as u64;
            let within = (at % PAGE) as usize;
            let length = (PAGE_BYTES - within).min(count - done);
            let Some(frame) = self.resident(at / PAGE) else { break };
            match buffer.copy_out_frame(frame.bytes().part(within..within + length)) {
                Ok(copied) => done += copied,
                Err(_) if done > 0 => break,
                Err(fault) => return Err(fault.into()),
            }
        }
        Ok(done)
    }

    /// These bytes were written to the file, which was so long before. They are kept where the rest of their page is.
    pub fn was_written(&self, server: &Server, offset: u64, bytes: &[u8], before: u64) {
        let mut added = 0;
        let mut cache = self.cache.lock();
        cache.changes += 1;
        let end = offset + bytes.len() as u64;
        for index in offset / PAGE..end.div_ceil(PAGE) {
            let (start, stop) = ((index * PAGE).max(offset), ((index + 1) * PAGE).min(end));
            let part = &bytes[(start - offset) as usize..(stop - offset) as usize];
            if cache.has(index) {
                if let Some(slot) = cache.pages.slots.get(&index) {
                    slot.frame.write((start % PAGE) as usize, part);
                }
                continue;
            }
            added -= isize::from(cache.remove(index).is_some());
            let is_whole = start == index * PAGE && (stop == (index + 1) * PAGE || stop >= before);
            if is_whole
                && server.has_room()
                && let Ok(frame) = FrameRef::allocate()
            {
                frame.write(0, part);
                frame.clear(part.len()..PAGE_BYTES);
                let slot = SharedPageSlot { frame, generation: cache.generation };
                added += isize::from(fallible::try_insert(&mut cache.pages.slots, index, slot).is_ok());
            }
        }
        drop(cache);
        server.count_frames(added);
    }

    /// The file was made this long, and had another length before.
    pub fn was_truncated(&self, server: &Server, before: u64, size: u64) {
        let mut cache = self.cache.lock();
        cache.changes += 1;
        let end = before.min(size);
        if let Some(slot) = cache.pages.slots.get(&(end / PAGE)).filter(|_| !end.is_multiple_of(PAGE)) {
            slot.frame.clear((end % PAGE) as usize..PAGE_BYTES);
        }
        drop(cache);
        if size == 0 {
            self.hand_over(server);
        }
        while self.drop_some(server, size.div_ceil(PAGE)) {
            sched::poll_interrupts();
        }
    }

    /// Drops some of the pages from `first` on; whether there may be more. Splitting the map would need memory, and how
    /// many there are a program decides. None comes meanwhile: the change was counted before, and whoever fetches one
    /// looks at the length after the count.
    fn drop_some(&self, server: &Server, first: u64) -> bool {
        let mut cache = self.cache.lock();
        for dropped in 0..STEP {
            if cache.pages.slots.last_key_value().is_none_or(|(&last, _)| last < first) {
                drop(cache);
                server.count_frames(-(dropped as isize));
                return false;
            }
            if let Some((index, _)) = cache.pages.slots.pop_last() {
                cache.pages.written.remove(&index);
            }
        }
        drop(cache);
        server.count_frames(-(STEP as isize));
        true
    }

    /// Drops some pages that nobody has mapped and the host has, unless the file was used since the last time;
    /// `forced` drops them all the same. How many they were, and whether there may be more of them.
    pub fn take_some(&self, server: &Server, forced: bool) -> (usize, bool) {
        if self.is_used.swap(false, Ordering::Relaxed) && !forced {
            return (0, false);
        }
        let mut cache = self.cache.lock();
        let (mut unused, mut count, mut looked, mut next) = ([0; STEP], 0, 0, 0);
        for (&index, slot) in cache.pages.slots.range(cache.hand..).take(STEP) {
            if !cache.pages.written.contains_key(&index) && slot.frame.is_unique() {
                unused[count] = index;
                count += 1;
            }
            (looked, next) = (looked + 1, index + 1);
        }
        for index in &unused[..count] {
            cache.pages.slots.remove(index);
        }
        cache.hand = if looked == STEP { next } else { 0 };
        drop(cache);
        server.count_frames(-(count as isize));
        (count, looked == STEP)
    }

    /// Leaves all pages to be dropped in steps.
    pub fn hand_over(&self, server: &Server) {
        let pages = core::mem::take(&mut self.cache.lock().pages);
        server.count_frames(-(pages.slots.len() as isize));
        if pages.slots.len() > STEP {
            server.drop_later(pages);
        }
    }
}

/// Drops some pages; whether there are more.
pub fn drop_step(pages: &mut PageSlots) -> bool {
    for _ in 0..STEP {
        pages.slots.pop_last();
        pages.written.pop_last();
    }
    !pages.slots.is_empty()
}

/// Pages that were written through mappings.
impl SharedPages {
    /// The first page in a range that was written, and the last.
    pub fn written(&self, pages: &Range<u64>) -> Option<(Range<u64>, u64)> {
        let cache = self.cache.lock();
        let mut written = cache.pages.written.range(pages.start..pages.end.max(pages.start));
        let (&first, _) = written.next()?;
        let last = written.next_back().map_or(first, |(&index, _)| index);
        Some((first..last + 1, cache.moment))
    }

    /// Stores what was written of these pages by `send`. A page handed out before `clean`, and in no program's reach
    /// any more, need not be stored again.
    pub fn store(
        &self,
        pages: Range<u64>,
        clean: u64,
        send: impl Fn(u64, &FrameRef) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let (mut at, mut result) = (pages.start, Ok(()));
        loop {
            let next = self.cache.lock().written_from(at, pages.end);
            let Some((index, frame)) = next else { return result };
            at = index + 1;
            match send(index, &frame) {
                Ok(()) => self.cache.lock().stored(index, clean),
                Err(error) => result = Err(error),
            }
        }
    }

    /// Drops pages that could not be stored, unless they were written after this moment.
    pub fn forget_written(&self, server: &Server, moment: u64) {
        let mut at = 0;
        loop {
            let mut cache = self.cache.lock();
            let Some((index, _)) = cache.written_from(at, u64::MAX) else { return };
            at = index + 1;
            let is_lost = cache.pages.written.get(&index).is_some_and(|&written| written <= moment);
            let slot = if is_lost { cache.remove(index) } else { None };
            drop(cache);
            server.count_frames(-isize::from(slot.is_some()));
            drop(slot);
            sched::poll_interrupts();
        }
    }

    /// Gives up pages that nobody has mapped, after `send` has stored those that were written. Waits for the host.
    pub fn give_up(&self, server: &Server, send: impl Fn(u64, &FrameRef) -> Result<(), Errno>) {
        let mut at = 0;
        loop {
            let next = self.cache.lock().unmapped_from(&mut at);
            sched::poll_interrupts();
            let Some(next) = next else { return };
            let Some((index, frame, moment)) = next else { continue };
            if let Some(moment) = moment {
                if send(index, &frame).is_err() {
                    continue;
                }
                // Whoever got it meanwhile to write to it did so at a later moment.
                self.cache.lock().stored(index, moment);
            }
            drop(frame);
            let mut cache = self.cache.lock();
            let is_unused = cache.pages.slots.get(&index).is_some_and(|slot| slot.frame.is_unique())
                && !cache.pages.written.contains_key(&index);
            let slot = if is_unused { cache.remove(index) } else { None };
            drop(cache);
            server.count_frames(-isize::from(slot.is_some()));
            drop(slot);
        }
    }
}

/// A page that nobody has mapped: its number, its frame, and the moment now if it was written.
type Unmapped = (u64, FrameRef, Option<u64>);

impl SharedPageCache {
    /// Whether a page is what the file holds, as far as is known.
    fn is_right(&self, index: u64, slot: &SharedPageSlot) -> bool {
        slot.generation == self.generation || self.pages.written.contains_key(&index)
    }

    /// Whether a page is kept and right.
    fn has(&self, index: u64) -> bool {
        self.pages.slots.get(&index).is_some_and(|slot| self.is_right(index, slot))
    }

    fn hand_out(&mut self, index: u64, write: bool) -> Result<Option<FrameRef>, Errno> {
        if !self.has(index) {
            return Ok(None);
        }
        if write {
            fallible::try_insert(&mut self.pages.written, index, self.moment + 1)?;
            self.moment += 1;
        }
        Ok(self.pages.slots.get(&index).map(|slot| slot.frame.clone()))
    }

    fn remove(&mut self, index: u64) -> Option<SharedPageSlot> {
        self.pages.written.remove(&index);
        self.pages.slots.remove(&index)
    }

    /// The first page from this one on that is kept and right.
    fn next_right(&self, first: u64) -> Option<u64> {
        // Those of an older generation bound the search as well; then less is read at once.
        self.pages.slots.range(first..).next().map(|(index, _)| *index)
    }

    fn written_from(&self, first: u64, end: u64) -> Option<(u64, FrameRef)> {
        let (&index, _) = self.pages.written.range(first..end.max(first)).next()?;
        self.pages.slots.get(&index).map(|slot| (index, slot.frame.clone()))
    }

    /// Looks for a page from `at` on that nobody has mapped, among some; `None` behind the last. `at` moves on.
    fn unmapped_from(&self, at: &mut u64) -> Option<Option<Unmapped>> {
        self.pages.slots.range(*at..).next()?;
        for (&index, slot) in self.pages.slots.range(*at..).take(STEP) {
            *at = index + 1;
            if slot.frame.is_unique() {
                let moment = self.pages.written.contains_key(&index).then_some(self.moment);
                return Some(Some((index, slot.frame.clone(), moment)));
            }
        }
        Some(None)
    }

    fn stored(&mut self, index: u64, clean: u64) {
        if self.pages.written.get(&index).is_some_and(|&written| written <= clean) {
            self.pages.written.remove(&index);
            // Whoever reads from the host meanwhile may get what it had before, and must not keep that once the page
            // here is gone.
            self.changes += 1;
            if let Some(slot) = self.pages.slots.get_mut(&index) {
                slot.generation = self.generation;
            }
        }
    }
}
