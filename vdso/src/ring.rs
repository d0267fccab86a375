//! The ring in which asynchronous calls' results come back: see `heddle_abi::call`.

use core::ptr::{null_mut, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use heddle_abi::call::{COMPLETION_BYTES, RING, RING_HEAD, RING_HEADER_BYTES, RING_TAIL};

use crate::arch;

/// A ring, or none.
#[repr(C)]
pub struct Ring {
    memory: AtomicPtr<u8>,
    order: AtomicU32,
}

impl Ring {
    /// None.
    pub const fn new() -> Self {
        Self { memory: AtomicPtr::new(null_mut()), order: AtomicU32::new(0) }
    }

    /// Makes `memory` the process's ring, once; returns 0 or a negative errno.
    ///
    /// # Safety
    /// The memory is that of a ring of this order, and stays so; each call's cookie is 0 or where its result goes.
    pub unsafe fn register(&self, memory: *mut u8, order: u32) -> i32 {
        // SAFETY: the memory is the ring's from here on.
        let result = unsafe { arch::call(RING as usize, [memory as usize, order as usize, 0, 0]) } as i32;
        if result == 0 {
            self.order.store(order, Ordering::Relaxed);
            self.memory.store(memory, Ordering::Release);
        }
        result
    }

    /// Stores the results that have come, and names the coroutine of each. Other threads may be doing the same, and a
    /// handler in the midst of it: an entry is whose exchange moves the head past it.
    #[inline]
    pub fn drain(&self, mut ready: impl FnMut(u64)) {
        let ring = self.memory.load(Ordering::Acquire);
        if ring.is_null() {
            return;
        }
        let mask = (1u32 << (self.order.load(Ordering::Relaxed) & 31)).wrapping_sub(1);
        // SAFETY: two words of the ring's header.
        let (head, tail) =
            unsafe { (&*ring.add(RING_HEAD).cast::<AtomicU32>(), &*ring.add(RING_TAIL).cast::<AtomicU32>()) };
        loop {
            let at = head.load(Ordering::Acquire);
            if at == tail.load(Ordering::Acquire) {
                return;
            }
            let offset = RING_HEADER_BYTES + (at & mask) as usize * COMPLETION_BYTES;
            // SAFETY: inside of the ring. Another may have taken the entry, and the kernel be writing there: then the
            // exchange fails, and what was read is not used.
            let (cookie, coroutine, result) = unsafe {
                let words: *const AtomicU64 = ring.add(offset).cast();
                let word = |index: usize| (*words.add(index)).load(Ordering::Relaxed);
                (word(0), word(1), word(2))
            };
            if head.compare_exchange(at, at.wrapping_add(1), Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
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
