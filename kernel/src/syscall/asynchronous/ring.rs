//! The ring of results, in memory of the program: see [`heddle_abi::call`].
//!
//! The kernel writes to it as to any user memory, under the lock of the process's calls, and keeps the tail itself:
//! whatever the program writes into head, tail or entries, only its own results suffer.

use heddle_abi::call::{
    COMPLETION_BYTES, RING_HEAD, RING_HEADER_BYTES, RING_ORDER_MAX, RING_ORDER_MIN, RING_TAIL,
};

use crate::error::Errno;
use crate::memory::Space;
use crate::memory::user::PageFault;
use crate::syscall::user;

/// A registered ring.
pub(super) struct Ring {
    address: usize,
    order: u32,
    tail: u32,
}

impl Ring {
    /// A ring at an address, with nothing in it.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn new(address: usize, order: u32) -> Result<Self, Errno> {
        let is_usable = address.is_multiple_of(8) && (RING_ORDER_MIN..=RING_ORDER_MAX).contains(&order);
        if is_usable { Ok(Self { address, order, tail: 0 }) } else { Err(Errno::EINVAL) }
    }

    /// The bytes that it takes.
    pub const fn bytes(&self) -> usize {
        RING_HEADER_BYTES + (COMPLETION_BYTES << self.order)
    }

    const fn head_address(&self) -> usize {
        self.address.wrapping_add(RING_HEAD)
    }

    /// What the program says it has taken out.
    ///
    /// # Errors
    /// The page that is missing.
    pub fn head(&self, space: &Space) -> Result<u32, PageFault> {
        space.load_u32(self.head_address())
    }

    /// What has been put in.
    pub const fn tail(&self) -> u32 {
        self.tail
    }

    /// How many entries are free if the program has taken out `head`. A head that cannot be leaves no room.
    pub const fn room(&self, head: u32) -> u32 {
        (1_u32 << self.order).saturating_sub(self.tail.wrapping_sub(head))
    }

    /// Puts a result in.
    ///
    /// # Errors
    /// The page that is missing; nothing has been put in then.
    pub fn put(&mut self, space: &Space, cookie: u64, coroutine: u64, result: i64) -> Result<(), PageFault> {
        let index = (self.tail & ((1 << self.order) - 1)) as usize;
        let entry = self.address.wrapping_add(RING_HEADER_BYTES).wrapping_add(index * COMPLETION_BYTES);
        user::write_words(space, entry, &[cookie, coroutine, result as u64, 0])?;
        let next = self.tail.wrapping_add(1);
        store(space, self.address.wrapping_add(RING_TAIL), self.tail, next)?;
        self.tail = next;
        Ok(())
    }

    /// Writes head and tail for the first time.
    ///
    /// # Errors
    /// The page that is missing.
    pub fn clear(&self, space: &Space) -> Result<(), PageFault> {
        user::write_int(space, self.head_address(), 0)?;
        user::write_int(space, self.address.wrapping_add(RING_TAIL), 0)
    }
}

/// Stores a word in one access, which also makes what was written before visible. It is `old`, unless the program has
/// written there; one that keeps writing keeps its value.
fn store(space: &Space, address: usize, old: u32, new: u32) -> Result<(), PageFault> {
    let found = space.compare_exchange_u32(address, old, new)?;
    if found != old {
        space.compare_exchange_u32(address, found, new)?;
    }
    Ok(())
}
