//! The ring in which asynchronous calls' results come back: see `heddle_abi::call`.

use core::ptr::{null_mut, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use heddle_abi::call::{RING, RING_HEAD, RING_HEADER_BYTES, RING_TAIL};
use heddle_abi::protocol::ring::{Consumer, ENTRY_WORDS};

use crate::arch;

/// Where in a ring's header the program's side keeps the ring's order: beside the head, which is the program's too. So
/// one pointer says all, and a thread that still looks at a ring that has been replaced finds what belongs to it.
const ORDER: usize = RING_HEAD + 8;

/// A ring, or none.
#[repr(C)]
pub struct Ring {
    memory: AtomicPtr<u8>,
}

impl Ring {
    /// None.
    pub const fn new() -> Self {
        Self { memory: AtomicPtr::new(null_mut()) }
    }

    /// Makes `memory` the process's ring; returns 0 or a negative errno. Results in the previous ring are taken out
    /// by `ready` as in [`Ring::drain`].
    ///
    /// # Safety
    /// The memory is that of a ring of this order, and stays so until the last executor has left; each call's cookie
    /// is 0 or where its result goes.
    pub unsafe fn register(&self, memory: *mut u8, order: u32, mut ready: impl FnMut(u64)) -> i32 {
        // SAFETY: the memory is the ring's from here on.
        let result = unsafe { arch::call(RING as usize, [memory as usize, order as usize, 0, 0]) } as i32;
        if result == 0 {
            // SAFETY: a word of the header, of which the kernel knows nothing.
            unsafe { (*memory.add(ORDER).cast::<AtomicU32>()).store(order, Ordering::Relaxed) };
            // Nothing is put into the one before any more; an entry belongs to the thread that takes it.
            self.drain(&mut ready);
            self.memory.store(memory, Ordering::Release);
            self.drain(ready);
        }
        result
    }

    /// Stores the results that have come, and names the coroutine of each. Other threads may be doing the same, and a
    /// handler in the midst of it.
    #[inline]
    pub fn drain(&self, mut ready: impl FnMut(u64)) {
        let ring = self.memory.load(Ordering::Acquire);
        if ring.is_null() {
            return;
        }
        // SAFETY: as `register` has left it.
        let order = unsafe { (*ring.add(ORDER).cast::<AtomicU32>()).load(Ordering::Relaxed) };
        let entries = ENTRY_WORDS << (order & 31);
        // SAFETY: two words of the ring's header, and its entries.
        let consumer = unsafe {
            Consumer {
                head: &*ring.add(RING_HEAD).cast(),
                tail: &*ring.add(RING_TAIL).cast(),
                entries: core::slice::from_raw_parts(ring.add(RING_HEADER_BYTES).cast(), entries),
            }
        };
        while let Some([cookie, coroutine, result]) = consumer.pop() {
            let place: *mut u64 = with_exposed_provenance_mut(cookie as usize);
            if !place.is_null() {
                // SAFETY: by the contract of `register`.
                unsafe { place.write(result) };
            }
            ready(coroutine);
        }
    }
}

impl Default for Ring {
    fn default() -> Self {
        Self::new()
    }
}
