//! The ring of results, in memory of the program: see [`heddle_abi::call`]; [`heddle_abi::protocol::ring`] has the
//! protocol.
//!
//! The kernel writes to it as to any user memory, under the lock of the process's calls, and keeps the tail itself:
//! whatever the program writes into head, tail or entries, only its own results suffer.

use heddle_abi::call::{
    COMPLETION_BYTES, RING_HEAD, RING_HEADER_BYTES, RING_ORDER_MAX, RING_ORDER_MIN, RING_TAIL,
};
use heddle_abi::protocol::ring::{ENTRY_WORDS, Place, Producer};

use crate::call::user;
use crate::error::Errno;
use crate::memory::Space;
use crate::memory::user::PageFault;

/// A registered ring.
pub struct Ring {
    address: usize,
    pub producer: Producer,
}

impl Ring {
    /// A ring at an address, with nothing in it.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn new(address: usize, order: u32) -> Result<Self, Errno> {
        let is_usable = address.is_multiple_of(8) && (RING_ORDER_MIN..=RING_ORDER_MAX).contains(&order);
        if is_usable { Ok(Self { address, producer: Producer::new(order) }) } else { Err(Errno::EINVAL) }
    }

    /// The memory in the space where it was registered.
    const fn place<'a>(address: usize, space: &'a Space) -> Memory<'a> {
        Memory { address, space }
    }

    /// Admits up to `count` calls: see [`Producer::admit`].
    ///
    /// # Errors
    /// The page that is missing.
    pub fn admit(&mut self, space: &Space, count: u32) -> Result<u32, PageFault> {
        self.producer.admit(&Self::place(self.address, space), count)
    }

    /// Puts a result in.
    ///
    /// # Errors
    /// The page that is missing; nothing has been put in then.
    pub fn put(&mut self, space: &Space, cookie: u64, coroutine: u64, result: i64) -> Result<(), PageFault> {
        self.producer.put(&Self::place(self.address, space), [cookie, coroutine, result as u64, 0])
    }

    /// Writes head and tail for the first time.
    ///
    /// # Errors
    /// The page that is missing.
    pub fn clear(&self, space: &Space) -> Result<(), PageFault> {
        let start = self.producer.tail();
        user::write_int(space, self.address.wrapping_add(RING_HEAD), start)?;
        user::write_int(space, self.address.wrapping_add(RING_TAIL), start)
    }
}

struct Memory<'a> {
    address: usize,
    space: &'a Space,
}

impl Place for Memory<'_> {
    type Missing = PageFault;

    fn head(&self) -> Result<u32, PageFault> {
        self.space.load_u32(self.address.wrapping_add(RING_HEAD))
    }

    fn write(&self, index: usize, words: [u64; ENTRY_WORDS]) -> Result<(), PageFault> {
        let entry = self.address.wrapping_add(RING_HEADER_BYTES).wrapping_add(index * COMPLETION_BYTES);
        user::write_words(self.space, entry, &words)
    }

    /// One access. A program that keeps writing there keeps its value.
    fn publish(&self, old: u32, new: u32) -> Result<(), PageFault> {
        let address = self.address.wrapping_add(RING_TAIL);
        let found = self.space.compare_exchange_u32(address, old, new)?;
        if found != old {
            self.space.compare_exchange_u32(address, found, new)?;
        }
        Ok(())
    }
}

const _: () = assert!(COMPLETION_BYTES == ENTRY_WORDS * size_of::<u64>());
