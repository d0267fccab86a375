//! The pages of a file that programs have mapped: a cache that all mappings, reads and writes of the guest see.
//!
//! A page that was handed out to be written counts as written until it has been stored while nobody could write it.
//! So storing takes the pages from all who have them mapped, and then sends them to the host; whoever touches one again
//! says so. That happens for `msync` and `fsync`, at the end of the last mapping and of the machine, and when memory is
//! short, where pages that are stored are given up as well.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use heddle_kernel_core::ninep::{MessageWriter, Reader, kind};

use crate::error::{Errno, TryResult};
use crate::fs::IoBuffer;
use crate::fs::share::node::SharedNode;
use crate::fs::share::state::FileState;
use crate::fs::share::{CHUNK, Fid};
use crate::memory::source::Written;
use crate::memory::{FrameRef, MapSource, PageRef, fallible};
use crate::sync::SpinLock;

const PAGE: u64 = 4096;
const PAGE_BYTES: usize = PAGE as usize;

struct SharedPageSlot {
    frame: FrameRef,
    /// When it was handed out to be written last, by [`SharedPageCache::moment`]; zero if the host has what it holds.
    written: u64,
}

#[derive(Default)]
struct SharedPageCache {
    slots: BTreeMap<u64, SharedPageSlot>,
    /// Counts pages that were handed out to be written.
    moment: u64,
    /// Counts changes of the file past the cache: what was read before one may be old.
    changes: u64,
}

/// The pages of a file.
pub struct SharedPages {
    node: Arc<SharedNode>,
    fid: Arc<Fid>,
    /// A handle that was opened for writing.
    writer: SpinLock<Option<Arc<Fid>>>,
    cache: SpinLock<SharedPageCache>,
    /// The length when the host told it last: it does not know a name that was removed.
    size: AtomicU64,
}

impl SharedPages {
    pub fn new(node: Arc<SharedNode>, fid: Arc<Fid>, size: u64) -> Result<Arc<Self>, Errno> {
        let size = AtomicU64::new(size);
        let (writer, cache) = (SpinLock::new(None), SpinLock::new(SharedPageCache::default()));
        fallible::try_arc(Self { node, fid, writer, cache, size })
    }

    /// Lets the pages be stored by this handle.
    pub fn store_by(&self, fid: &Arc<Fid>) {
        let mut writer = self.writer.lock();
        if writer.is_none() {
            *writer = Some(fid.clone());
        }
    }

    fn size(&self) -> u64 {
        match self.node.size_for_sure() {
            Ok(size) => {
                self.size.store(size, Ordering::Relaxed);
                size
            }
            Err(_) => self.size.load(Ordering::Relaxed),
        }
    }

    /// The page as the host has it.
    fn fetch(&self, index: u64) -> Result<FrameRef, Errno> {
        let offset = index.checked_mul(PAGE).ok_or(Errno::EFBIG)?;
        if offset >= self.size() {
            return Err(Errno::EFAULT);
        }
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
            let ask = |writer: &mut MessageWriter<'_>| {
                crate::fs::share::file::ask_to_read(writer, &self.fid, offset + done as u64, left);
            };
            match self.fid.server.call(kind::READ, ask, read)? {
                0 => break,
                count => done += count,
            }
        }
        Ok(frame)
    }

    fn page(&self, index: u64, write: bool) -> Result<PageRef, Errno> {
        loop {
            let changes = {
                let mut cache = self.cache.lock();
                if let Some(frame) = cache.hand_out(index, write) {
                    return Ok(PageRef::Counted(frame));
                }
                cache.changes
            };
            let frame = self.fetch(index)?;
            let mut cache = self.cache.lock();
            // Somebody else may have been faster, or have written what was read here.
            if cache.changes == changes && !cache.slots.contains_key(&index) {
                fallible::try_insert(&mut cache.slots, index, SharedPageSlot { frame, written: 0 })?;
            }
        }
    }

    /// Reads: from cached pages up to the first that is not, or from the host up to the first that is.
    pub fn read(&self, fid: &Fid, buffer: &mut IoBuffer<'_>, offset: u64) -> TryResult<usize> {
        let Some(left) = self.size().checked_sub(offset).filter(|&left| left > 0) else { return Ok(0) };
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.remaining()).min(CHUNK);
        let mut done = 0;
        while done < count {
            let at = offset + done as u64;
            let within = (at % PAGE) as usize;
            let length = (PAGE_BYTES - within).min(count - done);
            let Some(frame) = self.cached(at / PAGE) else { break };
            match buffer.copy_out_frame(frame.bytes().part(within..within + length)) {
                Ok(copied) => done += copied,
                Err(_) if done > 0 => return Ok(done),
                Err(fault) => return Err(fault.into()),
            }
        }
        if done > 0 || count == 0 {
            return Ok(done);
        }
        let next = self.cache.lock().slots.range(offset / PAGE + 1..).next().map(|(index, _)| index * PAGE);
        let limit = next.map_or(u64::MAX, |next| next.saturating_sub(offset));
        crate::fs::share::file::read(
            fid,
            buffer,
            offset,
            count.min(usize::try_from(limit).unwrap_or(usize::MAX)),
        )
    }

    fn cached(&self, index: u64) -> Option<FrameRef> {
        self.cache.lock().slots.get(&index).map(|slot| slot.frame.clone())
    }

    /// These bytes were written to the file.
    pub fn was_written(&self, offset: u64, bytes: &[u8]) {
        let mut cache = self.cache.lock();
        cache.changes += 1;
        let end = offset + bytes.len() as u64;
        for (index, slot) in cache.slots.range(offset / PAGE..end.div_ceil(PAGE)) {
            let (start, stop) = ((index * PAGE).max(offset), ((index + 1) * PAGE).min(end));
            let part = &bytes[(start - offset) as usize..(stop - offset) as usize];
            slot.frame.write((start % PAGE) as usize, part);
        }
    }

    /// The file was made this long, and had another length before.
    pub fn was_truncated(&self, before: u64, size: u64) {
        self.size.store(size, Ordering::Relaxed);
        let mut cache = self.cache.lock();
        cache.changes += 1;
        let end = before.min(size);
        if let Some(slot) = cache.slots.get(&(end / PAGE)).filter(|_| !end.is_multiple_of(PAGE)) {
            slot.frame.clear((end % PAGE) as usize..PAGE_BYTES);
        }
        drop(cache);
        while self.drop_some(size.div_ceil(PAGE)) {}
    }

    /// Drops some of the pages from `first` on; whether there may be more. Splitting the map would need memory, and how
    /// many there are a program decides. The caller holds the lock on the contents, so that none comes meanwhile.
    fn drop_some(&self, first: u64) -> bool {
        const SOME: usize = 32;
        let mut cache = self.cache.lock();
        for _ in 0..SOME {
            if cache.slots.last_key_value().is_none_or(|(&last, _)| last < first) {
                return false;
            }
            cache.slots.pop_last();
        }
        true
    }

    /// Sends a page to the host, as far as the file reaches.
    fn send(&self, index: u64, frame: &FrameRef) -> Result<(), Errno> {
        let fid = self.writer.lock().clone().ok_or(Errno::EIO)?;
        let _contents = self.node.state()?.lock_contents_to_store();
        let offset = index * PAGE;
        let length = self.size().saturating_sub(offset).min(PAGE) as usize;
        let mut done = 0;
        while done < length {
            let fill = |place: &mut [u8]| {
                frame.bytes().part(done..length).read(place);
                Ok(())
            };
            let sent = fid.server.write(&fid, offset + done as u64, length - done, fill, |_| {});
            match sent.map_err(crate::process::executable::as_error)? {
                0 => return Err(Errno::EIO),
                count => done += count,
            }
        }
        Ok(())
    }

    /// Stores what was written of these pages. A page handed out before `clean`, and in no program's reach any
    /// more, need not be stored again.
    fn store(&self, pages: Range<u64>, clean: u64) -> Result<(), Errno> {
        let (mut at, mut result) = (pages.start, Ok(()));
        loop {
            let next = self.cache.lock().written_from(at, pages.end);
            let Some((index, frame)) = next else { return result };
            at = index + 1;
            match self.send(index, &frame) {
                Ok(()) => self.cache.lock().stored(index, clean),
                Err(error) => result = Err(error),
            }
        }
    }

    /// Gives up pages that nobody has mapped.
    fn give_up(&self) {
        let mut at = 0;
        loop {
            let mut cache = self.cache.lock();
            let next = cache.slots.range(at..).find(|(_, slot)| slot.frame.is_unique());
            let Some((&index, slot)) = next else { return };
            let (frame, written, moment) = (slot.frame.clone(), slot.written, cache.moment);
            at = index + 1;
            if written > 0 {
                drop(cache);
                if self.send(index, &frame).is_err() {
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
            drop(slot);
        }
    }
}

impl SharedPageCache {
    fn hand_out(&mut self, index: u64, write: bool) -> Option<FrameRef> {
        let slot = self.slots.get_mut(&index)?;
        if write {
            self.moment += 1;
            slot.written = self.moment;
        }
        Some(slot.frame.clone())
    }

    fn written_from(&self, first: u64, end: u64) -> Option<(u64, FrameRef)> {
        let mut slots = self.slots.range(first..end.max(first));
        slots.find(|(_, slot)| slot.written > 0).map(|(index, slot)| (*index, slot.frame.clone()))
    }

    fn stored(&mut self, index: u64, clean: u64) {
        if let Some(slot) = self.slots.get_mut(&index)
            && slot.written <= clean
        {
            slot.written = 0;
        }
    }
}

/// A source of mappings: while there is one, the file has pages.
pub struct Mapped {
    state: Arc<FileState>,
    pages: Arc<SharedPages>,
}

impl Mapped {
    pub fn new(state: Arc<FileState>, pages: Arc<SharedPages>) -> Self {
        Self { state, pages }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // Nobody can write any more.
        if let Err(error) = self.pages.store(0..u64::MAX, u64::MAX) {
            ::log::warn!("a mapped file of a shared folder could not be stored: {error:?}");
        }
        self.state.unmapped();
    }
}

impl MapSource for Mapped {
    fn page(&self, index: u64, write: bool) -> Result<PageRef, Errno> {
        self.pages.page(index, write)
    }

    fn resident(&self, index: u64) -> Option<PageRef> {
        self.pages.cache.lock().hand_out(index, false).map(PageRef::Counted)
    }

    fn written(&self, pages: &Range<u64>) -> Option<Written> {
        let cache = self.pages.cache.lock();
        let (first, _) = cache.written_from(pages.start, pages.end)?;
        let last = cache.slots.range(first..pages.end).next_back().map_or(first, |(index, _)| *index);
        Some(Written { pages: first..last + 1, moment: cache.moment })
    }

    fn store(&self, written: &Written, is_unmapped: bool) -> Result<(), Errno> {
        self.pages.store(written.pages.clone(), if is_unmapped { written.moment } else { 0 })
    }

    fn give_up(&self) {
        self.pages.give_up();
    }

    fn identity(&self) -> (u64, u64) {
        self.pages.node.identity()
    }
}
