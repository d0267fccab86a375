//! The contents of regular files.

use heddle_erofs::{Image, Inode, Page};
use heddle_kernel_core::xarray::Sparse;

use crate::error::{Errno, TryError, TryResult};
use crate::fs::tree::page::{PAGE, PAGE_BYTES, Source};
use crate::fs::tree::{Tree, page};
use crate::fs::{IoBuffer, Sought};
use crate::memory::{FrameRef, PageRef};

/// The largest file, as Linux has it for tmpfs.
pub const SIZE_LIMIT: u64 = i64::MAX as u64;

/// Pages that are dropped or provided while the file's lock is held.
const STEP_PAGES: u64 = 64;
/// Pages that are looked at for data or a hole while the file's lock is held.
const SEEK_PAGES: u64 = 256;

/// A page that differs from the image.
enum PageSlot {
    Page(FrameRef),
    /// The image's bytes in a frame that can be shared and counted; nobody has written to it.
    Copy(FrameRef),
    /// Punched out, where the image has data.
    Hole,
}

/// The contents of a regular file.
pub struct Content {
    slots: Sparse<PageSlot>,
    size: u64,
    /// Pages below this number that have no slot are the image's.
    image_pages: u64,
    /// Pages of its own, for `st_blocks`.
    own: u64,
}

impl Content {
    /// An empty file.
    pub const fn new() -> Self {
        Self { slots: Sparse::new(), size: 0, image_pages: 0, own: 0 }
    }

    /// The file that the image holds.
    pub const fn from_image(inode: &Inode) -> Self {
        Self { slots: Sparse::new(), size: inode.size, image_pages: inode.size.div_ceil(PAGE), own: 0 }
    }

    /// Length in bytes.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Pages of its own and of the image.
    pub const fn pages(&self) -> u64 {
        self.own + self.image_pages
    }

    /// Whether it is as the image has it.
    pub fn is_clean(&mut self, tree: &Tree, inode: &Inode) -> bool {
        self.drop_copies(tree);
        self.slots.is_empty() && self.size == inode.size && self.image_pages == inode.size.div_ceil(PAGE)
    }

    /// Where the bytes of page `index` are.
    pub fn source(&self, lower: Lower<'_>, index: u64) -> Source {
        match self.slots.get(index) {
            Some(PageSlot::Page(page) | PageSlot::Copy(page)) => Source::Own(page.clone()),
            Some(PageSlot::Hole) => Source::Hole,
            None if index < self.image_pages => {
                lower.map_or(Source::Hole, |(image, inode)| in_image(image, inode, index))
            }
            None => Source::Hole,
        }
    }

    /// The page `index` as the file's own; whether it has just become so.
    fn own(&mut self, tree: &Tree, lower: Lower<'_>, index: u64) -> Result<(FrameRef, bool), Errno> {
        if let Some(PageSlot::Copy(page)) = self.slots.get(index) {
            let page = page.clone();
            self.slots.insert(index, PageSlot::Page(page)).map_err(|_| Errno::ENOMEM)?;
        }
        let source = self.source(lower, index);
        if let Source::Own(page) = source {
            return Ok((page, false));
        }
        self.add(tree, index, &source, PageSlot::Page).map(|page| (page, true))
    }

    /// A new frame with the bytes of `source` as page `index`.
    fn add(
        &mut self,
        tree: &Tree,
        index: u64,
        source: &Source,
        slot: fn(FrameRef) -> PageSlot,
    ) -> Result<FrameRef, Errno> {
        tree.take_page()?;
        let page = page::copy(source);
        let inserted = page.and_then(|page| match self.slots.insert(index, slot(page.clone())) {
            Ok(_) => Ok(page),
            Err(_) => Err(Errno::ENOMEM),
        });
        match inserted {
            Ok(_) => self.own += 1,
            Err(_) => tree.give_page(),
        }
        inserted
    }

    /// The page `index` to be mapped: the image's own, unless somebody shares the file's memory or it is to be
    /// written.
    pub fn map(
        &mut self,
        tree: &Tree,
        lower: Lower<'_>,
        index: u64,
        write: bool,
        shared: bool,
    ) -> Result<PageRef, Errno> {
        if index >= self.size.div_ceil(PAGE) {
            return Err(Errno::EFAULT);
        }
        if !write && let source @ Source::Image(bytes) = self.source(lower, index) {
            let in_place = PageRef::from_image(bytes).filter(|_| !shared);
            return match in_place {
                Some(page) => Ok(page),
                None => Ok(PageRef::Counted(self.add(tree, index, &source, PageSlot::Copy)?)),
            };
        }
        Ok(PageRef::Counted(self.own(tree, lower, index)?.0))
    }

    /// Drops copies of the image that nobody has mapped.
    fn drop_copies(&mut self, tree: &Tree) {
        let mut at = 0;
        while let Some((index, slot)) = self.slots.next(at) {
            let unused = matches!(slot, PageSlot::Copy(page) if page.is_unique());
            if unused {
                self.drop_slot(tree, index);
            }
            let Some(next) = index.checked_add(1) else { break };
            at = next;
        }
    }

    /// The page `index`, if it can be mapped for reading as it is.
    pub fn resident(&self, lower: Lower<'_>, index: u64, shared: bool) -> Option<PageRef> {
        if index >= self.size.div_ceil(PAGE) {
            return None;
        }
        match self.source(lower, index) {
            Source::Own(page) => Some(PageRef::Counted(page)),
            Source::Image(bytes) => PageRef::from_image(bytes).filter(|_| !shared),
            Source::Hole => None,
        }
    }

    /// Takes data from `buffer`, `most` bytes at most.
    pub fn write(
        &mut self,
        tree: &Tree,
        lower: Lower<'_>,
        buffer: &mut IoBuffer<'_>,
        offset: u64,
        most: usize,
    ) -> TryResult<usize> {
        let limit = usize::try_from(SIZE_LIMIT.saturating_sub(offset)).unwrap_or(usize::MAX);
        if limit == 0 && buffer.remaining() > 0 {
            return Err(Errno::EFBIG.into());
        }
        let (total, mut written) = (buffer.remaining().min(limit).min(most), 0);
        while written < total {
            let at = offset + written as u64;
            let within = (at % PAGE) as usize;
            let length = (PAGE_BYTES - within).min(total - written);
            let step = self
                .own(tree, lower, at / PAGE)
                .map_err(TryError::Error)
                .and_then(|(page, _)| Ok(buffer.copy_in_frame(page.bytes().part(within..within + length))?));
            match step {
                Ok(count) => written += count,
                Err(_) if written > 0 => break,
                Err(halt) => return Err(halt),
            }
            self.size = self.size.max(offset + written as u64);
        }
        Ok(written)
    }

    /// Changes the length; what is cut off is gone, and zero when the file grows again. A file is cut from its end, so
    /// many pages at a time: whether it has the length.
    pub fn truncate(&mut self, tree: &Tree, lower: Lower<'_>, size: u64) -> Result<bool, Errno> {
        if size > SIZE_LIMIT {
            return Err(Errno::EFBIG);
        }
        if size < self.size {
            let within = (size % PAGE) as usize;
            let index = size / PAGE;
            if within > 0 && !matches!(self.source(lower, index), Source::Hole) {
                self.own(tree, lower, index)?.0.clear(within..PAGE_BYTES);
            }
            let first = size.div_ceil(PAGE);
            for dropped in 0.. {
                let Some(last) = self.slots.last().map(|(last, _)| last).filter(|&last| last >= first) else {
                    break;
                };
                if dropped == STEP_PAGES {
                    // All above is gone.
                    self.size = self.size.min((last + 1) * PAGE);
                    self.image_pages = self.image_pages.min(last + 1);
                    return Ok(false);
                }
                self.drop_slot(tree, last);
            }
            self.image_pages = self.image_pages.min(first);
        }
        self.size = size;
        Ok(true)
    }

    /// Makes a range read as zeroes, within the length and so many pages at a time. Returns where it stopped.
    pub fn punch(&mut self, tree: &Tree, lower: Lower<'_>, first: u64, end: u64) -> Result<u64, Errno> {
        let size = self.size.next_multiple_of(PAGE);
        let mut at = first;
        for _ in 0..STEP_PAGES {
            if at >= end.min(size) {
                return Ok(end);
            }
            let (index, within) = (at / PAGE, (at % PAGE) as usize);
            let length = (PAGE - within as u64).min(end.min(size) - at) as usize;
            if length == PAGE_BYTES {
                if index < self.image_pages {
                    let old = self.slots.insert(index, PageSlot::Hole).map_err(|_| Errno::ENOMEM)?;
                    self.forget(tree, old.as_ref());
                } else {
                    match self.slots.next(index) {
                        Some((next, _)) if next > index => {
                            at = (next * PAGE).min(end.min(size));
                            continue;
                        }
                        Some(_) => self.drop_slot(tree, index),
                        None => return Ok(end),
                    }
                }
            } else if !matches!(self.source(lower, index), Source::Hole) {
                self.own(tree, lower, index)?.0.clear(within..within + length);
            }
            at += length as u64;
        }
        Ok(at)
    }

    /// Provides memory for a range, so many pages at a time. Returns where it stopped.
    pub fn allocate(
        &mut self,
        tree: &Tree,
        lower: Lower<'_>,
        first: u64,
        end: u64,
        grow: bool,
    ) -> Result<u64, Errno> {
        if end > SIZE_LIMIT {
            return Err(Errno::EFBIG);
        }
        let from = first / PAGE;
        let reached = end.div_ceil(PAGE).min(from + STEP_PAGES);
        for index in from..reached {
            if matches!(self.source(lower, index), Source::Hole) {
                self.own(tree, lower, index)?;
            }
        }
        let stopped = end.min(reached * PAGE);
        if grow {
            self.size = self.size.max(stopped);
        }
        Ok(stopped)
    }

    /// The first byte from `offset` on that is data (or, if not `data`, in a hole; the end of the file is one), looking
    /// at so many pages at a time.
    pub fn seek(&self, offset: u64, data: bool) -> Result<Sought, Errno> {
        if offset >= self.size {
            return Err(Errno::ENXIO);
        }
        let mut index = offset / PAGE;
        for _ in 0..SEEK_PAGES {
            if index * PAGE >= self.size {
                return if data { Err(Errno::ENXIO) } else { Ok(Sought::Found(self.size)) };
            }
            let is_data = match self.slots.get(index) {
                Some(slot) => !matches!(slot, PageSlot::Hole),
                None => index < self.image_pages,
            };
            if is_data == data {
                return Ok(Sought::Found(offset.max(index * PAGE)));
            }
            index = match self.slots.next(index) {
                // Over a stretch of nothing to the next slot.
                Some((next, _)) if data && index >= self.image_pages => next.max(index + 1),
                None if data && index >= self.image_pages => return Err(Errno::ENXIO),
                _ => index + 1,
            };
        }
        Ok(Sought::UpTo(index * PAGE))
    }

    /// Pages of its own.
    pub const fn own_pages(&self) -> u64 {
        self.own
    }

    /// Frees up to `count` pages, which count nowhere any more; whether there are none left.
    pub fn free_some(&mut self, count: u64) -> bool {
        for _ in 0..count {
            let Some((index, _)) = self.slots.last() else { return true };
            drop(self.slots.remove(index));
        }
        false
    }

    fn drop_slot(&mut self, tree: &Tree, index: u64) {
        let old = self.slots.remove(index);
        self.forget(tree, old.as_ref());
    }

    fn forget(&mut self, tree: &Tree, slot: Option<&PageSlot>) {
        if let Some(PageSlot::Page(_) | PageSlot::Copy(_)) = slot {
            self.own -= 1;
            tree.give_page();
        }
    }
}

/// The image and the node in it, where a file has one.
pub type Lower<'a> = Option<(&'a Image<'static>, &'a Inode)>;

fn in_image(image: &Image<'static>, inode: &Inode, index: u64) -> Source {
    let (offset, length) = match inode.page(index) {
        Some(Page::InPlace { offset }) => (offset, PAGE_BYTES),
        Some(Page::Inline { offset, length }) => (offset, length),
        None => return Source::Hole,
    };
    let bytes = usize::try_from(offset).ok().and_then(|offset| image.bytes().get(offset..offset + length));
    bytes.map_or(Source::Hole, Source::Image)
}
