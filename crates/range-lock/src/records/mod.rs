//! Records of what lies in ranges, which whoever holds a range can read without another lock.
//!
//! A [`RecordIndex`] is a skip list of immutable records, in the order of a key each: the start of the range, as a rule.
//! There is one writer, [`Records`]; its owner decides how writers exclude each other. It exchanges a run of
//! records for another run by one store in the lowest level, so readers see all of the old run or all of the new one.
//! Readers take no lock: they search under a pin, and what they find stays in place until the pin ends.
//!
//! What a record *owns* is another matter: it is moved out when the record is replaced, so that an object goes when its
//! last range goes, and not when the last reader of some epoch does. The range lock keeps it instead: see "Records" in
//! `PROTOCOL.md`, and the contract of [`Record::value`].
#![allow(unsafe_code)] // Records live in raw blocks of the epoch module, with as many links as they have levels.

mod writer;

use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::mem::{ManuallyDrop, offset_of};
use core::ptr::{self, NonNull};

use crate::epoch::{DefaultEpoch, Epoch, Header, Pin};
use crate::sync::{AtomicPtr, AtomicUsize, Ordering};

pub use writer::{RecordCursor, Records, SpareRecords};

/// The levels of an index: a quarter of the records of one level are in the next, so this is enough for 65,536.
const LEVELS: usize = if cfg!(heddle_loom) { 2 } else { 8 };

/// In a record's state: it was replaced.
const REPLACED: u32 = 1;
/// The bits from here on are its height.
const HEIGHT_SHIFT: u32 = 1;

/// A record. Nothing of it changes as long as it can be found.
#[repr(C)]
pub struct Record<V> {
    /// `header.state` holds the bits above.
    header: Header,
    key: usize,
    /// The record before it, or the next spare one. The writer's alone.
    previous: UnsafeCell<*mut Self>,
    /// Moved out when the record is replaced.
    value: ManuallyDrop<V>,
    /// The next record in each level: as many links as it has levels.
    next: [AtomicPtr<Self>; 0],
}

// SAFETY: readers get nothing but shared references to the value, and `previous` is the writer's alone, of which there
// is one.
unsafe impl<V: Send + Sync> Sync for Record<V> {}

impl<V> Record<V> {
    const FITS: () = assert!(align_of::<Self>() <= 64, "values may be aligned to a cache line at most");

    /// The bytes of a record with so many levels.
    const fn size(height: usize) -> usize {
        offset_of!(Self, next) + height * size_of::<AtomicPtr<Self>>()
    }

    /// The number that orders it among the others.
    #[inline]
    pub const fn key(&self) -> usize {
        self.key
    }

    /// Whether it was not replaced, as far as is known here. Someone who has taken the lock of a part of its range since
    /// the pin began, and keeps it, knows of all that was done to this part.
    #[inline]
    pub fn is_current(&self) -> bool {
        // Relaxed: what was done to the part was released with its lock.
        self.header.state.load(Ordering::Relaxed) & REPLACED == 0
    }

    /// Its value.
    ///
    /// # Safety
    /// What the value owns is gone once the record was replaced. The caller looks at the value's own bytes only; or it
    /// holds the lock of a part of the record's range as long as it follows what the value owns, be it from a copy of the
    /// bytes; it has found the record since it had the lock, or has found it current since; and every writer that
    /// holds no lock of this part replaces the record by one that owns the same.
    #[inline]
    pub unsafe fn value(&self) -> &V {
        &self.value
    }
}

impl<V: fmt::Debug> fmt::Debug for Record<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record").field("key", &self.key).finish_non_exhaustive()
    }
}

/// The links of a record.
///
/// # Safety
/// The pointer is to a whole block of this type.
#[inline(always)]
unsafe fn links<V>(record: *mut Record<V>) -> *const AtomicPtr<Record<V>> {
    // SAFETY: the links lie in the block, behind the fields.
    unsafe { (&raw const (*record).next).cast() }
}

/// Follows a pointer for as long as a pin, or the writer's hold on the index, lasts.
///
/// # Safety
/// The pointer was read from the index under a pin that outlives `'g`, or by the writer, who replaces nothing in `'g`.
#[inline(always)]
unsafe fn follow<'g, V>(record: *mut Record<V>) -> &'g Record<V> {
    // SAFETY: see the contract.
    let record = unsafe { &*record };
    #[cfg(heddle_loom)]
    record.header.contents.with(|_| ());
    record
}

/// The side of the readers.
pub struct RecordIndex<V: Send + Sync, E: Epoch = DefaultEpoch> {
    head: [AtomicPtr<Record<V>>; LEVELS],
    /// Levels in which there may be records. Only ever raised; one who sees too few searches longer.
    levels: AtomicUsize,
    /// Not 0 once there is a writer.
    has_writer: AtomicUsize,
    epoch: PhantomData<fn() -> E>,
}

// SAFETY: records are shared under the protocol of this module.
unsafe impl<V: Send + Sync, E: Epoch> Send for RecordIndex<V, E> {}
// SAFETY: as above.
unsafe impl<V: Send + Sync, E: Epoch> Sync for RecordIndex<V, E> {}

impl<V: Send + Sync, E: Epoch> Default for RecordIndex<V, E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V: Send + Sync, E: Epoch> fmt::Debug for RecordIndex<V, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordIndex").finish_non_exhaustive()
    }
}

impl<V: Send + Sync, E: Epoch> RecordIndex<V, E> {
    /// An index without records.
    #[must_use]
    pub fn new() -> Self {
        let () = Record::<V>::FITS;
        Self {
            head: core::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            levels: AtomicUsize::new(1),
            has_writer: AtomicUsize::new(0),
            epoch: PhantomData,
        }
    }

    /// Runs `f` with a reader, whose pin lasts as long.
    #[inline]
    pub fn read<R>(&self, f: impl FnOnce(&RecordReader<'_, V, E>) -> R) -> R {
        match E::at_hand() {
            Some(context) => f(&RecordReader { index: self, pin: context.pin() }),
            None => E::with_any(|context| f(&RecordReader { index: self, pin: context.pin() })),
        }
    }
}

impl<V: Send + Sync, E: Epoch> Drop for RecordIndex<V, E> {
    fn drop(&mut self) {
        E::with_any(|context| {
            let mut at = self.head[0].load(Ordering::Relaxed);
            while let Some(record) = NonNull::new(at) {
                // SAFETY: nobody reads the index any more, so the records are its own; each is in the lowest level once.
                unsafe {
                    at = (*links(record.as_ptr())).load(Ordering::Relaxed);
                    ManuallyDrop::drop(&mut (*record.as_ptr()).value);
                    context.free(record.cast());
                }
            }
        });
    }
}

/// A pinned reader of an index.
pub struct RecordReader<'a, V: Send + Sync, E: Epoch> {
    index: &'a RecordIndex<V, E>,
    pin: Pin,
}

impl<V: Send + Sync, E: Epoch> RecordReader<'_, V, E> {
    /// The last record whose key is at most `key`.
    #[inline]
    pub fn floor(&self, key: usize) -> Option<&Record<V>> {
        let (mut links_here, mut found) = (self.index.head.as_ptr(), None);
        let mut level = self.index.levels.load(Ordering::Relaxed);
        while level > 0 {
            level -= 1;
            loop {
                // SAFETY: the head has all levels, and a record that is reached in a level has that level.
                let next = self.pin.read(unsafe { &*links_here.add(level) });
                if next.is_null() {
                    break;
                }
                // SAFETY: read under the pin, as which the reference lives.
                let record = unsafe { follow(next) };
                if record.key > key {
                    break;
                }
                found = Some(record);
                // SAFETY: a pointer to a whole record.
                links_here = unsafe { links(next) };
            }
        }
        found
    }
}

impl<V: Send + Sync, E: Epoch> fmt::Debug for RecordReader<'_, V, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordReader").finish_non_exhaustive()
    }
}
