//! Blocks in a list, linked through themselves.

use core::ptr::{self, NonNull};

use super::block::{self, Header};

/// Blocks of one size. Lists are moved as a whole: a block that was in limbo for long is no longer in the cache, and
/// walking a list of them would wait for each.
#[derive(Clone, Copy)]
pub(super) struct List {
    pub(super) first: *mut Header,
    last: *mut Header,
    pub(super) count: usize,
}

impl List {
    pub(super) const EMPTY: Self = Self { first: ptr::null_mut(), last: ptr::null_mut(), count: 0 };

    #[inline]
    pub(super) fn push(&mut self, block: NonNull<Header>) {
        if self.first.is_null() {
            self.last = block.as_ptr();
        }
        // SAFETY: `link` is no one's but the owner's of the list once a block is retired; readers never look at it.
        unsafe { block::set_link(block, self.first) };
        self.first = block.as_ptr();
        self.count += 1;
    }

    pub(super) fn pop(&mut self) -> Option<NonNull<Header>> {
        let block = NonNull::new(self.first)?;
        // SAFETY: blocks in a list are its owner's alone.
        self.first = unsafe { block::link(block) };
        self.count -= 1;
        Some(block)
    }

    /// Puts all of `other` in front.
    #[inline]
    pub(super) fn splice(&mut self, other: &mut Self) {
        // Most are empty.
        if other.count == 0 {
            return;
        }
        let taken = core::mem::replace(other, Self::EMPTY);
        let Some(last) = NonNull::new(taken.last) else { return };
        if self.first.is_null() {
            self.last = taken.last;
        }
        // SAFETY: blocks in a list are its owner's alone.
        unsafe { block::set_link(last, self.first) };
        self.first = taken.first;
        self.count += taken.count;
    }
}

/// In the models this fails if a reader of the block is not ordered before.
#[inline(always)]
pub(super) fn must_be_unread(_block: NonNull<Header>) {
    #[cfg(heddle_loom)]
    // SAFETY: the header is valid.
    unsafe {
        (*_block.as_ptr()).contents.with_mut(|_| ());
    }
}

#[cfg(heddle_loom)]
impl List {
    pub(super) fn must_be_unread(&self) {
        let mut at = self.first;
        for _ in 0..self.count {
            let Some(block) = NonNull::new(at) else { return };
            must_be_unread(block);
            // SAFETY: blocks in a list are its owner's alone.
            at = unsafe { block::link(block) };
        }
    }
}
