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
use crate::fs::share::handle::Handle;
use crate::fs::share::{CHUNK, Server};
use crate::memory::{FrameRef, fallible};
use crate::sync::SpinLock;

pub const PAGE: u64 = 4096;
const PAGE_BYTES: usize = PAGE as usize;
/// Pages that are read at once.
const AHEAD: usize = CHUNK / PAGE_BYTES;
/// Pages that one step drops.
const STEP: usize = 32;
/// Longest file in pages of which is found out whether all of it is kept.
const COMPLETE_MAX: u64 = 256;

pub struct SharedPageSlot {
    frame: FrameRef,
    /// When it was handed out to be written last, by [`SharedPageCache::moment`]; zero if the host has what it holds.
    written: u64,
    generation: u64,
}

/// Pages by their numbers in the file.
pub type PageSlots = BTreeMap<u64, SharedPageSlot>;

#[derive(Default)]
struct SharedPageCache {
    slots: PageSlots,
    /// Counts pages that were handed out to be written.
    moment: u64,
    /// Counts changes of the file past the cache: what was read before one may be old.
    changes: u64,
    /// Counts what the host has changed.
    generation: u64,
    /// Where [`SharedPages::take_some`] goes on.
    hand: u64,
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
            && cache.slots.range(..pages).filter(|(_, slot)| cache.is_right(slot)).count() as u64 == pages
    }

    /// Reads pages from this one on from the host, and keeps them. How many there are now, one after the other; zero
    /// if there is no memory to keep any.
    fn fill(&self, handle: &Handle, first: u64, size: u64, most: usize) -> Result<usize, Errno> {
        let (changes, generation) = {
            let cache = self.cache.lock();
            (cache.changes, cache.generation)
        };
        let fid = handle.fid()?;
        let offset = first.checked_mul(PAGE).ok_or(Errno::EFBIG)?;
        let count = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX).min(most * PAGE_BYTES);
        let mut frames = [const { None }; AHEAD];
        let read = |reader: &mut Reader<'_>| {
            let length = reader.u32()? as usize;
            let bytes = reader.bytes(length)?;
            for (place, page) in frames.iter_mut().zip(bytes.chunks(PAGE_BYTES)) {
                // All that there is no memory for is read again when it is needed.
                let Ok(frame) = FrameRef::allocate() else { break };
                frame.write(0, page);
                frame.clear(page.len()..PAGE_BYTES);
                *place = Some(frame);
            }
            Ok(length)
        };
        let length = fid.server.call(kind::READ, |writer| ask_to_read(writer, fid, offset, count), read)?;
        // A part of a page is only good at the end of the file.
        let whole = if length >= count { length.div_ceil(PAGE_BYTES) } else { length / PAGE_BYTES };
        let mut cache = self.cache.lock();
        let (mut kept, mut added) = (0, 0);
        for (index, frame) in (first..).zip(frames.into_iter().take(whole).map_while(|frame| frame)) {
            // Somebody else may have been faster, or have written what was read here.
            if cache.changes != changes {
                break;
            }
            if cache.slots.get(&index).is_none_or(|slot| !cache.is_right(slot)) {
                let slot = SharedPageSlot { frame, written: 0, generation };
                match fallible::try_insert(&mut cache.slots, index, slot) {
                    Ok(old) => added += usize::from(old.is_none()),
                    Err(_) => break,
                }
            }
            kept += 1;
        }
        drop(cache);
        fid.server.count_frames(added as isize);
        Ok(kept)
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

    /// A page to be mapped.
    pub fn page(&self, handle: &Handle, index: u64, size: u64, write: bool) -> Result<FrameRef, Errno> {
        self.is_used.store(true, Ordering::Relaxed);
        let server = &handle.node().fid.server;
        let mut ahead = if server.has_room() { AHEAD } else { 1 };
        loop {
            let (changes, generation) = {
                let mut cache = self.cache.lock();
                if let Some(frame) = cache.hand_out(index, write) {
                    return Ok(frame);
                }
                (cache.changes, cache.generation)
            };
            if index.saturating_mul(PAGE) >= size {
                return Err(Errno::EFAULT);
            }
            server.make_room();
            if ahead > 0 && self.fill(handle, index, size, ahead)? > 0 {
                continue;
            }
            ahead = 0;
            let frame = self.fetch(handle, index)?;
            let mut cache = self.cache.lock();
            if cache.changes == changes && cache.slots.get(&index).is_none_or(|slot| !cache.is_right(slot)) {
                let slot = SharedPageSlot { frame, written: 0, generation };
                let old = fallible::try_insert(&mut cache.slots, index, slot)?;
                drop(cache);
                server.count_frames(isize::from(old.is_none()));
            }
        }
    }

    /// The page, if it is kept and right.
    pub fn resident(&self, index: u64) -> Option<FrameRef> {
        self.cache.lock().hand_out(index, false)
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
            let is_right = cache.slots.get(&index).is_some_and(|slot| cache.is_right(slot));
            if is_right {
                if let Some(slot) = cache.slots.get(&index) {
                    slot.frame.write((start % PAGE) as usize, part);
                }
                continue;
            }
            added -= isize::from(cache.slots.remove(&index).is_some());
            let is_whole = start == index * PAGE && (stop == (index + 1) * PAGE || stop >= before);
            if is_whole
                && server.has_room()
                && let Ok(frame) = FrameRef::allocate()
            {
                frame.write(0, part);
                frame.clear(part.len()..PAGE_BYTES);
                let slot = SharedPageSlot { frame, written: 0, generation: cache.generation };
                added += isize::from(fallible::try_insert(&mut cache.slots, index, slot).is_ok());
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
        if let Some(slot) = cache.slots.get(&(end / PAGE)).filter(|_| !end.is_multiple_of(PAGE)) {
            slot.frame.clear((end % PAGE) as usize..PAGE_BYTES);
        }
        drop(cache);
        while self.drop_some(server, size.div_ceil(PAGE)) {}
    }

    /// Drops some of the pages from `first` on; whether there may be more. Splitting the map would need memory, and how
    /// many there are a program decides. The caller holds the lock on the contents, so that none comes meanwhile.
    fn drop_some(&self, server: &Server, first: u64) -> bool {
        let mut cache = self.cache.lock();
        for dropped in 0..STEP {
            if cache.slots.last_key_value().is_none_or(|(&last, _)| last < first) {
                drop(cache);
                server.count_frames(-(dropped as isize));
                return false;
            }
            cache.slots.pop_last();
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
        for (&index, slot) in cache.slots.range(cache.hand..).take(STEP) {
            if slot.written == 0 && slot.frame.is_unique() {
                unused[count] = index;
                count += 1;
            }
            (looked, next) = (looked + 1, index + 1);
        }
        for index in &unused[..count] {
            cache.slots.remove(index);
        }
        cache.hand = if looked == STEP { next } else { 0 };
        drop(cache);
        server.count_frames(-(count as isize));
        (count, looked == STEP)
    }

    /// Leaves all pages to be dropped in steps, at the end of the file's state.
    pub fn hand_over(&self, server: &Server) {
        let slots = core::mem::take(&mut self.cache.lock().slots);
        server.count_frames(-(slots.len() as isize));
        if slots.len() > STEP {
            server.drop_later(slots);
        }
    }
}

/// Drops some pages; whether there are more.
pub fn drop_step(slots: &mut PageSlots) -> bool {
    for _ in 0..STEP {
        slots.pop_last();
    }
    !slots.is_empty()
}

/// Pages that were written through mappings.
impl SharedPages {
    /// The first page in a range that was written, and the last.
    pub fn written(&self, pages: &Range<u64>) -> Option<(Range<u64>, u64)> {
        let cache = self.cache.lock();
        let (first, _) = cache.written_from(pages.start, pages.end)?;
        let last = cache.slots.range(first..pages.end).next_back().map_or(first, |(index, _)| *index);
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
            let is_lost = cache.slots.get(&index).is_some_and(|slot| slot.written <= moment);
            let slot = if is_lost { cache.slots.remove(&index) } else { None };
            drop(cache);
            server.count_frames(-isize::from(slot.is_some()));
        }
    }

    /// Gives up pages that nobody has mapped, after `send` has stored those that were written.
    pub fn give_up(&self, server: &Server, send: impl Fn(u64, &FrameRef) -> Result<(), Errno>) {
        let mut at = 0;
        loop {
            let mut cache = self.cache.lock();
            let next = cache.slots.range(at..).find(|(_, slot)| slot.frame.is_unique());
            let Some((&index, slot)) = next else { return };
            let (frame, written, moment) = (slot.frame.clone(), slot.written, cache.moment);
            at = index + 1;
            if written > 0 {
                drop(cache);
                if send(index, &frame).is_err() {
                    continue;
                }
                cache = self.cache.lock();
                // Whoever got it meanwhile to write to it did so at a later moment.
                cache.stored(index, moment);
            }
            drop(frame);
            let is_unused = |slot: &SharedPageSlot| slot.written == 0 && slot.frame.is_unique();
            let unused = cache.slots.get(&index).is_some_and(is_unused);
            let slot = if unused { cache.slots.remove(&index) } else { None };
            drop(cache);
            server.count_frames(-isize::from(slot.is_some()));
            drop(slot);
        }
    }
}

impl SharedPageCache {
    /// Whether a page is what the file holds, as far as is known.
    const fn is_right(&self, slot: &SharedPageSlot) -> bool {
        slot.generation == self.generation || slot.written > 0
    }

    fn hand_out(&mut self, index: u64, write: bool) -> Option<FrameRef> {
        let generation = self.generation;
        let slot = self.slots.get_mut(&index)?;
        if slot.generation != generation && slot.written == 0 {
            return None;
        }
        if write {
            self.moment += 1;
            slot.written = self.moment;
        }
        Some(slot.frame.clone())
    }

    /// The first page from this one on that is kept and right.
    fn next_right(&self, first: u64) -> Option<u64> {
        // Those of an older generation bound the search as well; then less is read at once.
        self.slots.range(first..).next().map(|(index, _)| *index)
    }

    fn written_from(&self, first: u64, end: u64) -> Option<(u64, FrameRef)> {
        let mut slots = self.slots.range(first..end.max(first));
        slots.find(|(_, slot)| slot.written > 0).map(|(index, slot)| (*index, slot.frame.clone()))
    }

    fn stored(&mut self, index: u64, clean: u64) {
        let generation = self.generation;
        if let Some(slot) = self.slots.get_mut(&index)
            && slot.written <= clean
        {
            slot.written = 0;
            slot.generation = generation;
        }
    }
}
