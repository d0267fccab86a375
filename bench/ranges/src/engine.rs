//! A storage engine's aliasing area, as the thesis' experiment has it: blobs of 1 MB lie in a buffer pool in extents of
//! several sizes, scattered as they were allocated. To copy a blob out in one piece, a worker makes a range of virtual
//! addresses show its extents one behind the other. Small blobs find room in an area of the worker's own; for large
//! ones it reserves a range of the shared area, 128 GB of addresses, under a range lock: LeanStore's way (Nguyen,
//! Leis).
//!
//! The pool is a memfd, and `mremap` with an old size of 0 shows its pages a second time. A range that is given up
//! shows nothing, so whoever gets it next may not find what was there before. Each copy is checked page by page, so a
//! lock that lets two workers in is found out.
#![allow(unsafe_code)] // Mappings, and copies out of them.

use std::io::Error;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::random::{Random, Zipf};
use crate::side::Side;
use crate::store::Keys;

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;
/// Pages of a blob: 1 MB.
pub const BLOB_PAGES: u64 = 256;
/// Blobs.
const BLOBS: u64 = 1000;
/// Pages of the shared area: 128 GB of addresses.
pub const AREA_PAGES: u64 = 128 << 30 >> PAGE_BYTES.ilog2();
/// Pages of a worker's own area: blobs up to this size need no lock.
const LOCAL_PAGES: u64 = 64;
/// Pages of a blob's extents.
const EXTENTS: [u64; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 1];

const _: () = assert!(LOCAL_PAGES < BLOB_PAGES);

/// Mapped memory.
#[derive(Clone, Copy)]
struct MappedArea(*mut u8);

// SAFETY: addresses; the engine says who reads and maps where.
unsafe impl Send for MappedArea {}
// SAFETY: as above.
unsafe impl Sync for MappedArea {}

/// The pool and the shared area; made once and used by all runs.
pub struct BlobEngine {
    pool: MappedArea,
    area: MappedArea,
    /// Where the next range is looked for.
    cursor: AtomicU64,
    zipf: Zipf,
}

/// A worker's own area, and the memory into which it copies, as a client's.
pub struct BlobSession {
    local: MappedArea,
    client: Vec<u64>,
}

/// Fails with the system's last error.
fn fails(what: &str) -> ! {
    panic!("{what}: {}", Error::last_os_error())
}

/// Reserves addresses that show nothing.
fn reserve(pages: u64) -> MappedArea {
    MappedArea(hide(ptr::null_mut(), pages, 0))
}

/// Makes `pages` pages show nothing, those at `place` with `MAP_FIXED`.
fn hide(place: *mut u8, pages: u64, fixed: i32) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    // SAFETY: new addresses, or ones that the caller has for itself.
    let place =
        unsafe { libc::mmap(place.cast(), (pages * PAGE_BYTES) as usize, libc::PROT_NONE, flags, -1, 0) };
    if place == libc::MAP_FAILED {
        fails("mmap");
    }
    place.cast()
}

impl BlobSession {
    /// A worker's.
    pub fn new() -> Self {
        let words = BLOB_PAGES * PAGE_BYTES / size_of::<u64>() as u64;
        Self { local: reserve(LOCAL_PAGES), client: vec![0; words as usize] }
    }
}

impl Default for BlobSession {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for BlobSession {
    fn drop(&mut self) {
        // SAFETY: the session's own mapping, which nobody uses any more.
        unsafe { libc::munmap(self.local.0.cast(), (LOCAL_PAGES * PAGE_BYTES) as usize) };
    }
}

impl BlobEngine {
    /// The only one.
    pub fn get() -> &'static Self {
        static ENGINE: OnceLock<BlobEngine> = OnceLock::new();
        ENGINE.get_or_init(|| {
            let bytes = BLOBS * BLOB_PAGES * PAGE_BYTES;
            // SAFETY: a new file, and a new mapping of it, which stay until the program ends.
            let pool = unsafe {
                let file = libc::memfd_create(c"heddle-pool".as_ptr(), libc::MFD_CLOEXEC);
                if file < 0 || libc::ftruncate(file, bytes as i64) != 0 {
                    fails("memfd_create");
                }
                let access = libc::PROT_READ | libc::PROT_WRITE;
                libc::mmap(ptr::null_mut(), bytes as usize, access, libc::MAP_SHARED, file, 0)
            };
            if pool == libc::MAP_FAILED {
                fails("mmap");
            }
            let pool = MappedArea(pool.cast());
            for page in 0..BLOBS * BLOB_PAGES {
                // SAFETY: inside of the pool, which nobody else has yet.
                unsafe { pool.0.add((page * PAGE_BYTES) as usize).cast::<u64>().write(page) };
            }
            let area = reserve(AREA_PAGES);
            Self { pool, area, cursor: AtomicU64::new(0), zipf: Zipf::new(BLOBS, 0.99) }
        })
    }

    /// The next blob to read.
    pub fn choose(&self, keys: Keys, random: &mut Random) -> u64 {
        match keys {
            Keys::Uniform => random.below(BLOBS),
            _ => self.zipf.item(random),
        }
    }

    /// Copies a blob out through the shared area.
    ///
    /// # Panics
    /// If another worker had the same range.
    pub fn read<S: Side>(&self, lock: &S, blob: u64, session: &mut BlobSession) {
        let step = BLOB_PAGES.max(S::area_step());
        let (page, held) = loop {
            let page = self.cursor.fetch_add(step, Ordering::Relaxed) % AREA_PAGES;
            if let Some(held) = lock.try_lock(page, page + BLOB_PAGES) {
                break (page, held);
            }
        };
        // SAFETY: the range's pages are inside of the area, and locked.
        unsafe {
            let place = self.area.0.add((page * PAGE_BYTES) as usize);
            self.copy(place, blob, &EXTENTS, &mut session.client);
        }
        lock.unlock(held);
    }

    /// Copies the first extents of a blob out through the worker's own area, as a small blob would be.
    ///
    /// # Panics
    /// If something else was there.
    pub fn read_small(&self, blob: u64, session: &mut BlobSession) {
        // SAFETY: the area is the session's own, and has room for these extents.
        unsafe { self.copy(session.local.0, blob, &EXTENTS[..6], &mut session.client) };
    }

    /// Shows extents of a blob at `place`, copies them into `client`, and hides them again.
    ///
    /// # Safety
    /// The caller has the addresses from `place` on, as many as the extents are long, for itself.
    unsafe fn copy(&self, place: *mut u8, blob: u64, extents: &[u64], client: &mut [u64]) {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let mut shown = 0;
        for (tier, pages) in extents.iter().enumerate() {
            let source = (extent(blob, tier) * PAGE_BYTES) as usize;
            let bytes = (pages * PAGE_BYTES) as usize;
            // SAFETY: an old size of 0 leaves the pool's own mapping as it is; the new place is the caller's.
            let placed = unsafe {
                let target = place.add((shown * PAGE_BYTES) as usize);
                libc::mremap(self.pool.0.add(source).cast(), 0, bytes, flags, target)
            };
            if placed == libc::MAP_FAILED {
                fails("mremap");
            }
            shown += pages;
        }
        let words = (shown * PAGE_BYTES) as usize / size_of::<u64>();
        // SAFETY: the pages that were just shown, which nobody writes; the client's memory is apart from them.
        unsafe { client[..words].as_mut_ptr().copy_from_nonoverlapping(place.cast::<u64>(), words) };
        hide(place, shown, libc::MAP_FIXED);
        let mut seen = client.chunks(PAGE_BYTES as usize / size_of::<u64>()).map(|page| page[0]);
        for (tier, pages) in extents.iter().enumerate() {
            let first = extent(blob, tier);
            for page in first..first + pages {
                assert_eq!(seen.next(), Some(page), "two workers in one range");
            }
        }
    }
}

/// The first page in the pool of a blob's extent: extents of one size lie together, in an order of their own.
fn extent(blob: u64, tier: usize) -> u64 {
    let before: u64 = EXTENTS[..tier].iter().sum();
    before * BLOBS + (blob * 617 + tier as u64 * 37) % BLOBS * EXTENTS[tier]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_fill_the_pool_once() {
        let mut pages = vec![false; (BLOBS * BLOB_PAGES) as usize];
        for (blob, tier) in (0..BLOBS).flat_map(|blob| (0..EXTENTS.len()).map(move |tier| (blob, tier))) {
            let first = extent(blob, tier) as usize;
            for page in &mut pages[first..first + EXTENTS[tier] as usize] {
                assert!(!std::mem::replace(page, true), "two extents in one page");
            }
        }
        assert!(pages.iter().all(|page| *page));
        assert_eq!(EXTENTS.iter().sum::<u64>(), BLOB_PAGES);
        assert!(EXTENTS[..6].iter().sum::<u64>() <= LOCAL_PAGES);
    }
}
