//! The ring in which asynchronous calls' results come back: the kernel puts them in, threads take them out.
//! The layout is `crate::call`'s.
//!
//! Tail and head count up for ever. The kernel writes an entry and then moves the tail past it; a thread reads an entry
//! and then moves the head past it. So a thread that sees a tail sees the entries before it, and a kernel that sees a
//! head may write the entries before that again.

use crate::protocol::{AtomicU32, AtomicU64, Ordering};

/// Words of an entry: cookie, coroutine, result, and a zero.
pub const ENTRY_WORDS: usize = 4;

/// The memory of a ring as the kernel reaches it. Any access may find it missing.
pub trait Place {
    /// The error of an access to missing memory.
    type Missing;

    /// The head, as the program has it. Entries written afterwards come after what the program read before.
    ///
    /// # Errors
    /// The head is not in memory.
    fn head(&self) -> Result<u32, Self::Missing>;

    /// Writes the entry of that index.
    ///
    /// # Errors
    /// It is not in memory.
    fn write(&self, index: usize, words: [u64; ENTRY_WORDS]) -> Result<(), Self::Missing>;

    /// Makes the tail `new`, which makes what was written before visible. It was `old`, unless the program has written
    /// there.
    ///
    /// # Errors
    /// It is not in memory.
    fn publish(&self, old: u32, new: u32) -> Result<(), Self::Missing>;
}

/// The kernel's side. It believes of what the program writes no more than how much room the head leaves.
pub struct Producer {
    order: u32,
    tail: u32,
    /// Results that are to come and have no entry yet.
    admitted: u32,
}

impl Producer {
    /// Of an empty ring of `1 << order` entries.
    #[must_use]
    pub const fn new(order: u32) -> Self {
        Self { order, tail: 0, admitted: 0 }
    }

    /// How many results it has room for.
    #[must_use]
    pub const fn entries(&self) -> u32 {
        1 << self.order
    }

    /// The producer of another, empty ring that replaces this one. It continues the count of this one, so that
    /// no tail of the one can be taken for the other's. `None` if more results are to come than that has room for.
    #[must_use]
    pub const fn replaced_by(&self, order: u32) -> Option<Self> {
        let next = Self { order, tail: self.tail, admitted: self.admitted };
        if self.admitted > next.entries() { None } else { Some(next) }
    }

    /// How many results have been put in.
    #[must_use]
    pub const fn tail(&self) -> u32 {
        self.tail
    }

    /// Results that are to come.
    #[must_use]
    pub const fn admitted(&self) -> u32 {
        self.admitted
    }

    /// Admits as many of `count` results as there is room for beside those that are to come. A head that cannot be
    /// leaves no room.
    ///
    /// # Errors
    /// The head is missing.
    pub fn admit<P: Place>(&mut self, place: &P, count: u32) -> Result<u32, P::Missing> {
        let free = self.entries().saturating_sub(self.tail.wrapping_sub(place.head()?));
        let admitted = count.min(free.saturating_sub(self.admitted));
        self.admitted += admitted;
        Ok(admitted)
    }

    /// So many results do not come after all, or have been put in.
    pub const fn give_back(&mut self, count: u32) {
        self.admitted = self.admitted.saturating_sub(count);
    }

    /// Puts a result in that was admitted, and stays admitted until [`Producer::give_back`].
    ///
    /// # Errors
    /// The memory of the entry or of the tail is missing; nothing has been put in then.
    pub fn put<P: Place>(&mut self, place: &P, words: [u64; ENTRY_WORDS]) -> Result<(), P::Missing> {
        place.write((self.tail & ((1 << self.order) - 1)) as usize, words)?;
        let next = self.tail.wrapping_add(1);
        place.publish(self.tail, next)?;
        self.tail = next;
        Ok(())
    }
}

/// The program's side: any thread, at any time, a handler in the midst of it too.
pub struct Consumer<'a> {
    /// The number of results taken out.
    pub head: &'a AtomicU32,
    /// The number of results put in.
    pub tail: &'a AtomicU32,
    /// The words of the entries, as many as a power of two.
    pub entries: &'a [AtomicU64],
}

impl Consumer<'_> {
    /// Takes the next result: cookie, coroutine, result.
    #[inline]
    #[must_use]
    pub fn pop(&self) -> Option<[u64; 3]> {
        let mask = (self.entries.len() / ENTRY_WORDS).wrapping_sub(1);
        loop {
            // Acquire: the tail that is read next is at least as new as the one seen by the thread that moved the head.
            let at = self.head.load(Ordering::Acquire);
            // Acquire: the entry is whole.
            if at == self.tail.load(Ordering::Acquire) {
                return None;
            }
            let start = (at as usize & mask) * ENTRY_WORDS;
            // Another may have taken the entry, and the kernel be writing there: then the exchange fails, and what was
            // read is not used.
            let word = |index: usize| Some(self.entries.get(start + index)?.load(Ordering::Relaxed));
            let (Some(cookie), Some(coroutine), Some(result)) = (word(0), word(1), word(2)) else {
                return None;
            };
            // Release: the kernel that sees the head writes the entry after it was read.
            let next = at.wrapping_add(1);
            if self.head.compare_exchange(at, next, Ordering::Release, Ordering::Relaxed).is_ok() {
                return Some([cookie, coroutine, result]);
            }
        }
    }
}

#[cfg(all(test, not(heddle_loom)))]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;
    use std::vec::Vec;

    use super::{Consumer, ENTRY_WORDS, Place, Producer};
    use crate::protocol::{AtomicU32, AtomicU64, Ordering};

    struct Shared {
        head: AtomicU32,
        tail: AtomicU32,
        entries: Vec<AtomicU64>,
        is_missing: Cell<bool>,
    }

    impl Shared {
        fn new(order: u32) -> Self {
            let entries = (0..ENTRY_WORDS << order).map(|_| AtomicU64::new(0)).collect();
            let (head, tail) = (AtomicU32::new(0), AtomicU32::new(0));
            Self { head, tail, entries, is_missing: Cell::new(false) }
        }

        fn pop(&self) -> Option<u64> {
            let consumer = Consumer { head: &self.head, tail: &self.tail, entries: &self.entries };
            consumer.pop().map(|[cookie, ..]| cookie)
        }
    }

    impl Place for Shared {
        type Missing = ();

        fn head(&self) -> Result<u32, ()> {
            Ok(self.head.load(Ordering::Acquire))
        }

        fn write(&self, index: usize, words: [u64; ENTRY_WORDS]) -> Result<(), ()> {
            for (number, word) in words.into_iter().enumerate() {
                self.entries[index * ENTRY_WORDS + number].store(word, Ordering::Relaxed);
            }
            Ok(())
        }

        fn publish(&self, _old: u32, new: u32) -> Result<(), ()> {
            if self.is_missing.get() {
                return Err(());
            }
            self.tail.store(new, Ordering::Release);
            Ok(())
        }
    }

    #[test]
    fn no_more_is_admitted_than_there_is_room_for() {
        let shared = Shared::new(1);
        let mut producer = Producer::new(1);
        assert_eq!(producer.admit(&shared, 3), Ok(2));
        assert_eq!(producer.admit(&shared, 1), Ok(0));
        producer.put(&shared, [1; ENTRY_WORDS]).unwrap();
        producer.give_back(1);
        assert_eq!(producer.admit(&shared, 1), Ok(0));
        assert_eq!((shared.pop(), shared.pop()), (Some(1), None));
        assert_eq!(producer.admit(&shared, 9), Ok(1));
        assert_eq!(producer.admitted(), 2);
    }

    #[test]
    fn a_head_that_cannot_be_leaves_no_room() {
        let shared = Shared::new(4);
        let mut producer = Producer::new(4);
        for head in [1, 17, u32::MAX, 1 << 31] {
            shared.head.store(head, Ordering::Relaxed);
            let admitted = producer.admit(&shared, 100).unwrap();
            assert!(admitted <= 16, "{head} {admitted}");
            producer.give_back(admitted);
        }
    }

    #[test]
    fn a_result_whose_page_is_missing_is_put_in_later() {
        let shared = Shared::new(4);
        let mut producer = Producer::new(4);
        assert_eq!(producer.admit(&shared, 1), Ok(1));
        shared.is_missing.set(true);
        assert_eq!(producer.put(&shared, [7; ENTRY_WORDS]), Err(()));
        assert_eq!((producer.tail(), shared.pop()), (0, None));
        shared.is_missing.set(false);
        assert_eq!(producer.put(&shared, [7; ENTRY_WORDS]), Ok(()));
        assert_eq!((producer.tail(), shared.pop()), (1, Some(7)));
    }

    #[test]
    fn a_larger_ring_goes_on() {
        let (small, large) = (Shared::new(1), Shared::new(2));
        let mut producer = Producer::new(1);
        assert_eq!(producer.admit(&small, 2), Ok(2));
        producer.put(&small, [1; ENTRY_WORDS]).unwrap();
        producer.give_back(1);
        assert!(producer.replaced_by(0).is_some());
        let mut next = producer.replaced_by(2).unwrap();
        large.head.store(next.tail(), Ordering::Relaxed);
        large.tail.store(next.tail(), Ordering::Relaxed);
        assert_eq!((next.tail(), next.admitted(), large.pop()), (1, 1, None));
        assert_eq!(next.admit(&large, 9), Ok(3));
        next.put(&large, [2; ENTRY_WORDS]).unwrap();
        assert_eq!((small.pop(), large.pop()), (Some(1), Some(2)));
        assert!(next.replaced_by(1).is_none());
    }

    #[test]
    fn counts_go_around() {
        struct Far(Shared);
        impl Place for Far {
            type Missing = Infallible;
            fn head(&self) -> Result<u32, Infallible> {
                Ok(self.0.head.load(Ordering::Acquire))
            }
            fn write(&self, index: usize, words: [u64; ENTRY_WORDS]) -> Result<(), Infallible> {
                self.0.write(index, words).unwrap();
                Ok(())
            }
            fn publish(&self, old: u32, new: u32) -> Result<(), Infallible> {
                assert_eq!(self.0.tail.swap(new, Ordering::Release), old);
                Ok(())
            }
        }
        let far = Far(Shared::new(1));
        let mut producer = Producer { order: 1, tail: u32::MAX - 3, admitted: 0 };
        far.0.head.store(u32::MAX - 3, Ordering::Relaxed);
        far.0.tail.store(u32::MAX - 3, Ordering::Relaxed);
        for number in 0..9 {
            assert_eq!(producer.admit(&far, 1), Ok(1));
            producer.put(&far, [number; ENTRY_WORDS]).unwrap();
            producer.give_back(1);
            assert_eq!(far.0.pop(), Some(number));
        }
        assert_eq!(far.0.pop(), None);
    }
}
