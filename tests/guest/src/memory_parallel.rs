//! Faults of some threads beside changes by another of other parts of the same mapping.
#![allow(unsafe_code, reason = "mapping memory has no safe form")]

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags};
use nix::sys::mman::{madvise, mmap, mmap_anonymous, mprotect, munmap};

use crate::harness::{OrFail, Outcome};
use crate::{expect, expect_eq};

crate::tests! {
    faults_beside_changes_of_own_memory
    faults_beside_changes_of_a_mapped_file
}

const PAGE: usize = 0x1000;
/// Pages that are changed by one thread, and those of each thread that touches some.
const CHANGED: usize = 24;
const TOUCHED: usize = 8;
const TOUCHERS: usize = 2;
const PAGES: usize = CHANGED + TOUCHED * TOUCHERS;
const ROUNDS: usize = 400;
const RW: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);

/// A mapping of [`PAGES`] pages.
struct Place {
    start: NonNull<std::ffi::c_void>,
    file: Option<File>,
}

// SAFETY: only addresses, and each thread keeps to pages of its own.
unsafe impl Sync for Place {}

impl Place {
    fn new(file: Option<File>) -> Result<Self, String> {
        let length = NonZeroUsize::new(PAGES * PAGE).ok_or("0")?;
        let start = match &file {
            // SAFETY: a new mapping at a place of the kernel's choice.
            Some(file) => unsafe { mmap(None, length, RW, MapFlags::MAP_SHARED, file.as_fd(), 0) },
            // SAFETY: as above.
            None => unsafe { mmap_anonymous(None, length, RW, MapFlags::MAP_PRIVATE) },
        };
        Ok(Self { start: start.or_fail()?, file })
    }

    fn page(&self, number: usize) -> NonNull<std::ffi::c_void> {
        // SAFETY: inside of the mapping.
        unsafe { self.start.byte_add(number * PAGE) }
    }

    /// Maps a part anew where it was.
    fn map_again(&self, first: usize, count: usize) -> Outcome {
        let address = NonZeroUsize::new(self.page(first).as_ptr().addr());
        let length = NonZeroUsize::new(count * PAGE).ok_or("0")?;
        let offset = (first * PAGE) as i64;
        let mapped = match &self.file {
            // SAFETY: over pages that are the calling thread's to change.
            Some(file) => unsafe {
                mmap(address, length, RW, MapFlags::MAP_SHARED | MapFlags::MAP_FIXED, file.as_fd(), offset)
            },
            // SAFETY: as above.
            None => unsafe {
                mmap_anonymous(address, length, RW, MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED)
            },
        };
        expect_eq!(mapped.or_fail()?, self.page(first));
        Ok(())
    }

    /// Splits the mapping and joins it again, in each round in other places.
    fn change(&self) -> Outcome {
        for round in 0..ROUNDS {
            let (first, count) = (round % (CHANGED - 8), 1 + round % 7);
            // Up to the neighbour's first page, now and then.
            let first = if round % 3 == 0 { CHANGED - count } else { first };
            let part = self.page(first);
            // SAFETY: pages that nobody else touches.
            unsafe {
                mprotect(part, count * PAGE, ProtFlags::PROT_READ).or_fail()?;
                mprotect(part, count * PAGE, RW).or_fail()?;
                if round % 2 == 0 {
                    munmap(part, count * PAGE).or_fail()?;
                }
            }
            self.map_again(first, count)?;
        }
        Ok(())
    }

    /// Touches pages again and again that are not there.
    fn touch(&self, first: usize, is_over: &AtomicBool) -> Outcome {
        let mut rounds = 0;
        while !is_over.load(Ordering::Relaxed) || rounds < 10 {
            let number = first + rounds % TOUCHED;
            rounds += 1;
            let page = self.page(number);
            // SAFETY: the thread's own page.
            unsafe { madvise(page, PAGE, MmapAdvise::MADV_DONTNEED) }.or_fail()?;
            // SAFETY: aligned, and in the mapping as long as this thread runs.
            let word = unsafe { page.cast::<AtomicU64>().as_ref() };
            let expected = if self.file.is_some() { number as u64 } else { 0 };
            expect_eq!(word.load(Ordering::Relaxed), expected);
            word.store(expected, Ordering::Relaxed);
        }
        Ok(())
    }

    fn run(&self) -> Outcome {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let touchers: Vec<_> = (0..TOUCHERS)
                .map(|number| {
                    let is_over = &is_over;
                    scope.spawn(move || self.touch(CHANGED + number * TOUCHED, is_over))
                })
                .collect();
            let changed = self.change();
            is_over.store(true, Ordering::Relaxed);
            let touched =
                touchers.into_iter().try_for_each(|thread| thread.join().unwrap_or(Err("panicked".into())));
            changed.and(touched)
        })?;
        // It is one mapping again.
        let maps = std::fs::read_to_string("/proc/self/maps").or_fail()?;
        let start = self.start.as_ptr().addr();
        let line = format!("{start:x}-{:x} ", start + PAGES * PAGE);
        expect!(self.file.is_none() || maps.lines().any(|found| found.starts_with(&line)));
        // SAFETY: nothing of it is used any more.
        unsafe { munmap(self.start, PAGES * PAGE) }.or_fail()
    }
}

fn faults_beside_changes_of_own_memory() -> Outcome {
    Place::new(None)?.run()
}

fn faults_beside_changes_of_a_mapped_file() -> Outcome {
    // SAFETY: the name is a string.
    let descriptor = Errno::result(unsafe { libc::memfd_create(c"pages".as_ptr(), 0) }).or_fail()?;
    // SAFETY: just made, and nobody else's.
    let file = unsafe { File::from_raw_fd(descriptor) };
    for number in 0..PAGES {
        file.write_all_at(&(number as u64).to_ne_bytes(), (number * PAGE) as u64).or_fail()?;
    }
    file.set_len((PAGES * PAGE) as u64).or_fail()?;
    Place::new(Some(file))?.run()
}
