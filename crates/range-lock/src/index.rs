//! The index: an immutable sorted array of the buckets at some time. It only tells where to begin a search, so it
//! may be out of date; it is built anew once enough cuts were made or unmade.
#![allow(unsafe_code)] // An index is one block: a head, then its cuts.

use core::ptr::{self, NonNull};
use core::slice;

use crate::epoch::{Header, OutOfMemory, Pin};
use crate::node::Node;
use crate::sync::{AtomicPtr, Ordering};
use crate::table::{Bucket, Table, chunk_of, is_dead, kill};

#[repr(C)]
pub(crate) struct Index<T, P> {
    header: Header,
    len: usize,
    /// Gives the block the alignment of what follows.
    _cuts: [Cut<T, P>; 0],
}

pub(crate) struct Cut<T, P> {
    pub(crate) lo: T,
    pub(crate) bucket: *mut Bucket<T, P>,
}

impl<T, P> Index<T, P> {
    fn first(index: NonNull<Self>) -> *mut Cut<T, P> {
        index.as_ptr().wrapping_byte_add(size_of::<Self>()).cast()
    }

    /// The cuts, in order.
    ///
    /// # Safety
    /// The index was read from the table under a pin that outlives `'g`, or is the caller's own.
    #[inline]
    pub(crate) unsafe fn cuts<'g>(index: NonNull<Self>) -> &'g [Cut<T, P>] {
        #[cfg(heddle_loom)]
        // SAFETY: see the contract.
        unsafe {
            (*index.as_ptr()).header.contents.with(|_| ());
        }
        // SAFETY: `len` cuts were written behind the head before the index was published.
        unsafe { slice::from_raw_parts(Self::first(index), (*index.as_ptr()).len) }
    }
}

/// The weight of a search that the index led to a bucket before the right one.
const STRAY: usize = 1;
/// The weight of a cut that the index does not know: that of some searches, each of which costs a few more steps, as
/// building the index takes some for every bucket.
const CHANGE: usize = if cfg!(heddle_loom) { 1 } else { 64 };

impl<T: Ord + Copy, P: Copy> Table<T, P> {
    /// Counts a search that was led astray. An index that is a little out of date is built anew that way too, if its
    /// faults are met often enough.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_stray(&self, pin: &Pin) {
        // The models build it at every change.
        if !cfg!(heddle_loom) {
            self.note_drift(pin, STRAY);
        }
    }

    /// Counts cuts made or unmade, and builds the index anew when it has drifted too far.
    #[inline(never)]
    pub(crate) fn note_changes(&self, pin: &Pin, made: usize) {
        self.note_drift(pin, made * CHANGE);
    }

    fn note_drift(&self, pin: &Pin, weight: usize) {
        let changes = self.changes.fetch_add(weight, Ordering::Relaxed) + weight;
        // A bucket may be taken off the count before the thread that linked it has put it on.
        let buckets = usize::try_from(self.buckets.load(Ordering::Relaxed) as isize).unwrap_or(0);
        let drift = if cfg!(heddle_loom) { 0 } else { CHANGE * (1 + buckets / 8) };
        if changes > drift {
            self.changes.store(0, Ordering::Relaxed);
            // Searches only take longer without it, and the next change tries again.
            let _ = self.rebuild_index(pin);
        }
    }

    /// Leaves an unlinked bucket to the next index, since the present one may name it.
    pub(crate) fn bury(&self, bucket: *mut Bucket<T, P>) {
        self.bury_all(bucket, bucket);
    }

    /// Puts the linked buckets from `first` to `last` into the graveyard.
    fn bury_all(&self, first: *mut Bucket<T, P>, last: *mut Bucket<T, P>) {
        // SAFETY: the burying context alone holds the unlinked buckets' links.
        let link = unsafe { &(*last).buried };
        let mut head = self.graveyard.load(Ordering::Relaxed);
        loop {
            link.store(head, Ordering::Relaxed);
            match self.graveyard.compare_exchange(head, first, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Builds the index anew, merges idle empty buckets on the way, and retires the buckets only the old one named.
    #[inline(never)]
    pub(crate) fn rebuild_index(&self, pin: &Pin) -> Result<(), OutOfMemory> {
        let old = pin.read(&self.index);
        // Acquire: these were unlinked before, so the walk below cannot come by them.
        let graves = self.graveyard.swap(ptr::null_mut(), Ordering::Acquire);
        let built = self.build_index(pin);
        let exchanged = built.is_ok_and(|new| {
            // Release: the index. The block that it names was acquired on the way to it.
            let done = self.index.compare_exchange(old, new, Ordering::Release, Ordering::Relaxed).is_ok();
            if !done && let Some(new) = NonNull::new(new) {
                // SAFETY: never published.
                unsafe { pin.context().free(new.cast()) };
            }
            done
        });
        if exchanged {
            // SAFETY: the exchange unlinked the old index, and with it the last names of the buried buckets.
            unsafe {
                if let Some(old) = NonNull::new(old) {
                    pin.retire(old.cast());
                }
                let mut at = graves;
                while let Some(bucket) = NonNull::new(at) {
                    at = (*bucket.as_ptr()).buried.load(Ordering::Relaxed);
                    pin.retire(bucket.cast());
                }
            }
        } else if !graves.is_null() {
            let mut last = graves;
            // SAFETY: taken out of the graveyard above, so they are this context's.
            unsafe {
                while let Some(next) = NonNull::new((*last).buried.load(Ordering::Relaxed)) {
                    last = next.as_ptr();
                }
            }
            self.bury_all(graves, last);
        }
        built.map(|_| ())
    }

    /// The index of the buckets there are now; null if there is but the first.
    fn build_index(&self, pin: &Pin) -> Result<*mut Index<T, P>, OutOfMemory> {
        let mut count = 0usize;
        self.sweep(pin, |_| count += 1)?;
        if count == 0 {
            return Ok(ptr::null_mut());
        }
        let room = count;
        let size = size_of::<Index<T, P>>() + room * size_of::<Cut<T, P>>();
        let index = pin.context().alloc(size)?.cast::<Index<T, P>>();
        let first = Index::first(index);
        let mut len = 0usize;
        let mut cell = &self.head;
        while len < room {
            // SAFETY: read under `pin`.
            let Some(chunk) = (unsafe { chunk_of::<T, P>(pin.read(cell)) }) else { break };
            let Some(next) = NonNull::new(chunk.next()) else { break };
            // SAFETY: read under `pin`; the index is ours and has `room` places.
            unsafe {
                let bucket = Bucket::follow(next.as_ptr());
                first.add(len).write(Cut { lo: bucket.lo, bucket: next.as_ptr() });
                len += 1;
                cell = &bucket.word;
            }
        }
        // SAFETY: the index is ours.
        unsafe { (&raw mut (*index.as_ptr()).len).write(len) };
        Ok(index.as_ptr())
    }

    /// Goes through the buckets beyond the first, merging into their neighbours those that are dead, or empty and
    /// unchanged since the last sweep.
    fn sweep(&self, pin: &Pin, mut stays: impl FnMut(&Bucket<T, P>)) -> Result<(), OutOfMemory> {
        let mut cell: &AtomicPtr<Header> = &self.head;
        loop {
            let word = pin.read(cell);
            // SAFETY: read under `pin`.
            let Some(chunk) = (unsafe { chunk_of::<T, P>(word) }) else { return Ok(()) };
            if chunk.next().is_null() {
                return Ok(());
            }
            // SAFETY: read under `pin`.
            let next = unsafe { Bucket::follow(chunk.next()) };
            let inside = pin.read(&next.word);
            // SAFETY: read under `pin`.
            let idle = unsafe { chunk_of::<T, P>(inside) }
                .is_some_and(|chunk| chunk.sweep() && !chunk.nodes(pin).any(Node::is_live));
            if idle {
                kill(pin, next);
            }
            if (idle || is_dead(inside)) && !is_dead(word) {
                self.unlink(pin, cell, chunk, chunk.next())?;
                continue;
            }
            stays(next);
            cell = &next.word;
        }
    }
}
