//! The writer of an index, and memory for its records.

use alloc::sync::Arc;
use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::Range;
use core::ptr::{self, NonNull};

use super::{HEIGHT_SHIFT, LEVELS, REPLACED, Record, RecordIndex, follow, links};
use crate::epoch::{Context, DefaultEpoch, Epoch, OutOfMemory};
use crate::sync::{AtomicPtr, Ordering};

/// Memory for records that are to come.
pub struct SpareRecords<V, E: Epoch = DefaultEpoch> {
    /// Linked by `previous`; each has its height.
    first: *mut Record<V>,
    count: usize,
    /// For the heights.
    seed: u32,
    epoch: PhantomData<fn() -> E>,
}

// SAFETY: blocks without a value, which belong to no thread.
unsafe impl<V, E: Epoch> Send for SpareRecords<V, E> {}
// SAFETY: a shared reference gives nothing but the count.
unsafe impl<V, E: Epoch> Sync for SpareRecords<V, E> {}

impl<V, E: Epoch> fmt::Debug for SpareRecords<V, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpareRecords").field("count", &self.count).finish_non_exhaustive()
    }
}

impl<V, E: Epoch> SpareRecords<V, E> {
    /// Memory for so many records. Their heights follow from `seed`: with one that is known to whoever chooses what is
    /// recorded, searches may become linear.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(count: usize, seed: u32) -> Result<Self, OutOfMemory> {
        let mut spare = Self::empty(seed);
        spare.fill(count)?;
        Ok(spare)
    }

    const fn empty(seed: u32) -> Self {
        // The generator stays at 0.
        let seed = if seed == 0 { u32::MAX } else { seed };
        Self { first: ptr::null_mut(), count: 0, seed, epoch: PhantomData }
    }

    /// Makes sure that there is memory for so many.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    #[inline]
    pub fn fill(&mut self, count: usize) -> Result<(), OutOfMemory> {
        while self.count < count {
            let height = self.height();
            let block = match E::at_hand() {
                Some(context) => context.alloc(Record::<V>::size(height)),
                None => E::with(|context| context.alloc(Record::<V>::size(height)))?,
            }?;
            let record = block.cast::<Record<V>>().as_ptr();
            // SAFETY: the block is ours and large enough for so many links.
            unsafe {
                (*record).header.state.store((height as u32) << HEIGHT_SHIFT, Ordering::Relaxed);
                for level in 0..height {
                    links(record).add(level).cast_mut().write(AtomicPtr::new(ptr::null_mut()));
                }
            }
            self.push(record);
        }
        Ok(())
    }

    /// How many records there is memory for.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// How many levels the next record has: more than *n* with a probability of 4⁻ⁿ.
    fn height(&mut self) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 17;
        self.seed ^= self.seed << 5;
        let highest = 1 << (2 * (LEVELS - 1));
        1 + (self.seed | highest).trailing_zeros() as usize / 2
    }

    fn trim(&mut self, count: usize) {
        E::with_any(|context| {
            while self.count > count
                && let Some(block) = self.pop().and_then(NonNull::new)
            {
                // SAFETY: never published.
                unsafe { context.free(block.cast()) };
            }
        });
    }

    fn push(&mut self, record: *mut Record<V>) {
        // SAFETY: the block is ours, and nobody else looks at this field.
        unsafe { (&raw mut (*record).previous).write(self.first.into()) };
        self.first = record;
        self.count += 1;
    }

    fn pop(&mut self) -> Option<*mut Record<V>> {
        let record = NonNull::new(self.first)?.as_ptr();
        // SAFETY: written by `push`.
        self.first = unsafe { *(*record).previous.get() };
        self.count -= 1;
        Some(record)
    }
}

impl<V, E: Epoch> Drop for SpareRecords<V, E> {
    fn drop(&mut self) {
        if !self.first.is_null() {
            self.trim(0);
        }
    }
}

/// The writer of an index.
pub struct Records<V: Send + Sync, E: Epoch = DefaultEpoch> {
    index: Arc<RecordIndex<V, E>>,
    len: usize,
    spare: SpareRecords<V, E>,
}

impl<V: Send + Sync, E: Epoch> fmt::Debug for Records<V, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Records").field("len", &self.len).finish_non_exhaustive()
    }
}

impl<V: Send + Sync, E: Epoch> Records<V, E> {
    /// The writer of an index. `None` if it has or had one. The heights of records follow from `seed`, as
    /// [`SpareRecords::new`] says.
    #[must_use]
    pub fn of(index: Arc<RecordIndex<V, E>>, seed: u32) -> Option<Self> {
        // Relaxed: nobody has written yet.
        let is_first = index.has_writer.swap(1, Ordering::Relaxed) == 0;
        is_first.then(|| Self { index, len: 0, spare: SpareRecords::empty(seed) })
    }

    /// The side of the readers.
    #[must_use]
    pub const fn index(&self) -> &Arc<RecordIndex<V, E>> {
        &self.index
    }

    /// How many records there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes sure that there is memory for so many more records.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    #[inline]
    pub fn reserve(&mut self, count: usize) -> Result<(), OutOfMemory> {
        self.spare.fill(count)
    }

    /// How many more records there is memory for.
    #[must_use]
    pub const fn spare_count(&self) -> usize {
        self.spare.count
    }

    /// Gives the memory for more records than so many back.
    pub fn trim(&mut self, count: usize) {
        if self.spare.count > count {
            self.spare.trim(count);
        }
    }

    /// Exchanges the memory for records for other.
    pub const fn exchange_spare(&mut self, spare: &mut SpareRecords<V, E>) {
        core::mem::swap(&mut self.spare, spare);
    }

    /// A place in front of the first record.
    #[must_use]
    pub fn front(&self) -> RecordCursor<'_, V> {
        RecordCursor { head: &self.index.head[0], at: ptr::null_mut() }
    }

    /// The last record whose key is at most `key`, or the front.
    #[inline]
    #[must_use]
    pub fn floor(&self, key: usize) -> RecordCursor<'_, V> {
        let (mut links_here, mut at) = (self.index.head.as_ptr(), ptr::null_mut());
        let mut level = self.index.levels.load(Ordering::Relaxed);
        while level > 0 {
            level -= 1;
            loop {
                // SAFETY: the head has all levels, and a record that is reached in a level has that level.
                let next = unsafe { (*links_here.add(level)).load(Ordering::Relaxed) };
                // SAFETY: nothing is replaced while the writer is borrowed.
                if next.is_null() || unsafe { (*next).key } > key {
                    break;
                }
                at = next;
                // SAFETY: a pointer to a whole record.
                links_here = unsafe { links(next) };
            }
        }
        RecordCursor { head: &self.index.head[0], at }
    }

    /// The last record whose key is below `key`, or the front.
    #[inline]
    #[must_use]
    pub fn before(&self, key: usize) -> RecordCursor<'_, V> {
        if key == 0 { self.front() } else { self.floor(key - 1) }
    }

    /// Exchanges all records with keys in `old` for new ones, for which memory was reserved. The new keys ascend, none is
    /// below `old.start`, and all are below that of the first record behind `old`. Values of what was replaced go to
    /// `gone`, after the exchange.
    ///
    /// # Panics
    /// If the new keys don't fit, or for want of memory: nothing was exchanged then.
    pub fn replace(
        &mut self,
        old: Range<usize>,
        new: impl IntoIterator<Item = (usize, V)>,
        mut gone: impl FnMut(V),
    ) {
        let index = &*self.index;
        // The links into the run, in each level; the run itself; and what is behind it.
        let mut into: [*const AtomicPtr<Record<V>>; LEVELS] = [index.head.as_ptr(); LEVELS];
        let (mut previous, mut links_here) = (ptr::null_mut::<Record<V>>(), index.head.as_ptr());
        let levels = index.levels.load(Ordering::Relaxed);
        for level in (0..levels).rev() {
            loop {
                // SAFETY: as in `floor`.
                let next = unsafe { (*links_here.add(level)).load(Ordering::Relaxed) };
                // SAFETY: as in `floor`.
                if next.is_null() || unsafe { (*next).key } >= old.start {
                    break;
                }
                previous = next;
                // SAFETY: as in `floor`.
                links_here = unsafe { links(next) };
            }
            into[level] = links_here;
        }
        let mut run = Run { first: [ptr::null_mut(); LEVELS], last: [ptr::null_mut(); LEVELS] };
        let (mut least, mut added, mut height) = (old.start, 0, levels);
        for (key, value) in new {
            assert!(key >= least, "keys ascend");
            least = key + 1;
            let record = self.spare.pop().expect("records were reserved");
            // SAFETY: the block is ours.
            let its_height = unsafe {
                (&raw mut (*record).key).write(key);
                (&raw mut (*record).previous).write(previous.into());
                (&raw mut (*record).value).write(ManuallyDrop::new(value));
                ((*record).header.state.load(Ordering::Relaxed) >> HEIGHT_SHIFT) as usize
            };
            run.append(record, its_height);
            previous = record;
            added += 1;
            height = height.max(its_height);
        }
        let (mut first, mut behind) = (ptr::null_mut(), ptr::null_mut());
        for (level, into) in into.iter().enumerate().take(height) {
            // SAFETY: as in `floor`; and each of these has the level in which it was reached.
            let begin = unsafe { (*into.add(level)).load(Ordering::Relaxed) };
            let mut end = begin;
            // SAFETY: as above.
            while !end.is_null() && unsafe { (*end).key } < old.end {
                // SAFETY: as above.
                end = unsafe { (*links(end).add(level)).load(Ordering::Relaxed) };
            }
            if level == 0 {
                (first, behind) = (begin, end);
                // SAFETY: as above.
                assert!(end.is_null() || least <= unsafe { (*end).key }, "keys fit");
            }
            run.close(level, end);
        }
        if height > levels {
            index.levels.store(height, Ordering::Relaxed);
        }
        for (level, (into, begin)) in into.iter().zip(run.first).enumerate().take(height) {
            // Release: the new records. The lowest level first, though any order would do: see `PROTOCOL.md`.
            // SAFETY: as above.
            unsafe { (*into.add(level)).store(begin, Ordering::Release) };
        }
        if let Some(behind) = NonNull::new(behind) {
            // SAFETY: only the writer looks at this field.
            unsafe { *(*behind.as_ptr()).previous.get() = previous };
        }
        self.len += added;
        if first != behind {
            let mut retire = |context| retire(context, first, behind, &mut gone);
            self.len -= match E::at_hand() {
                Some(context) => retire(context),
                None => E::with_any(&mut retire),
            };
        }
    }
}

/// Lets the records of a run go that was exchanged. Returns how many they are.
fn retire<V>(
    context: Context,
    first: *mut Record<V>,
    behind: *mut Record<V>,
    gone: &mut impl FnMut(V),
) -> usize {
    let pin = context.pin();
    let (mut at, mut count) = (first, 0);
    while at != behind
        && let Some(record) = NonNull::new(at)
    {
        // SAFETY: the writer unlinked the run, in all levels, and lets each of its records go once; what a record owns
        // is its own until it is moved out here.
        let value = unsafe {
            at = (*links(record.as_ptr())).load(Ordering::Relaxed);
            let state = &record.as_ref().header.state;
            state.store(state.load(Ordering::Relaxed) | REPLACED, Ordering::Relaxed);
            let value = ptr::read(&raw const (*record.as_ptr()).value);
            pin.retire(record.cast());
            value
        };
        count += 1;
        gone(ManuallyDrop::into_inner(value));
    }
    count
}

/// A run of new records that nobody sees yet: the first and the last in each level.
struct Run<V> {
    first: [*mut Record<V>; LEVELS],
    last: [*mut Record<V>; LEVELS],
}

impl<V> Run<V> {
    fn append(&mut self, record: *mut Record<V>, height: usize) {
        for level in 0..height {
            self.close(level, record);
            self.last[level] = record;
        }
    }

    /// Says what comes behind the run so far, in one level.
    fn close(&mut self, level: usize, next: *mut Record<V>) {
        match NonNull::new(self.last[level]) {
            // SAFETY: a record of the run, which has this level. Relaxed: the run is published afterwards.
            Some(last) => unsafe { (*links(last.as_ptr()).add(level)).store(next, Ordering::Relaxed) },
            None => self.first[level] = next,
        }
    }
}

/// A place in the order of records, for the writer.
pub struct RecordCursor<'a, V> {
    head: &'a AtomicPtr<Record<V>>,
    /// Null stands for the front.
    at: *mut Record<V>,
}

impl<'a, V> RecordCursor<'a, V> {
    /// The value there; `None` at the front, and behind the last record.
    #[inline]
    #[must_use]
    pub fn get(&self) -> Option<&'a V> {
        // SAFETY: nothing is replaced while the writer is borrowed, and what is not replaced owns what it did.
        NonNull::new(self.at).map(|at| unsafe { &*follow::<V>(at.as_ptr()).value })
    }

    /// The next record. `false`, without a move, if there is none.
    #[inline]
    pub fn move_next(&mut self) -> bool {
        let next = match NonNull::new(self.at) {
            // SAFETY: as in `get`; the lowest level has all records.
            Some(at) => unsafe { (*links(at.as_ptr())).load(Ordering::Relaxed) },
            None => self.head.load(Ordering::Relaxed),
        };
        if next.is_null() {
            return false;
        }
        self.at = next;
        true
    }

    /// The record before, or the front.
    #[inline]
    pub fn move_previous(&mut self) {
        if let Some(at) = NonNull::new(self.at) {
            // SAFETY: as in `get`, and the writer alone looks at this field.
            self.at = unsafe { *(*at.as_ptr()).previous.get() };
        }
    }
}

impl<V> fmt::Debug for RecordCursor<'_, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordCursor").finish_non_exhaustive()
    }
}
