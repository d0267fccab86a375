//! brk: the heap that grows behind a program's image.

use crate::arch::paging::PAGE_SIZE;
use crate::memory::source::Object;
use crate::memory::space::{Flags, FutureLocks, MapRequest, Placement, Space};

impl Space {
    /// Says where the heap begins: behind the image. `exec` calls this.
    pub fn set_brk(&self, start: usize) {
        let start = start.next_multiple_of(PAGE_SIZE);
        self.state.lock().brk = start..start;
    }

    /// The heap: its first address and its end.
    #[must_use]
    pub fn brk_range(&self) -> core::ops::Range<usize> {
        self.state.lock().brk.clone()
    }

    /// Moves the end of the heap, and returns where it is now: unchanged if the request cannot be met. Threads that ask
    /// at the same time move it one after another.
    pub async fn brk(&self, end: usize) -> usize {
        while core::mem::replace(&mut self.state.lock().is_brk_moving, true) {
            crate::sched::yield_now().await;
        }
        let end = self.move_brk(end).await;
        self.state.lock().is_brk_moving = false;
        end
    }

    async fn move_brk(&self, end: usize) -> usize {
        let old = self.brk_range();
        if end < old.start {
            return old.end;
        }
        let (old_top, Some(new_top)) =
            (old.end.next_multiple_of(PAGE_SIZE), end.checked_next_multiple_of(PAGE_SIZE))
        else {
            return old.end;
        };
        let done = if new_top > old_top {
            let mut request = MapRequest::anonymous(Placement::FixedIfFree(old_top), new_top - old_top);
            request.flags = Flags::HEAP;
            request.flags.set(Flags::LOCKED, self.future_locks() != FutureLocks::Off);
            request.object = Object::Anonymous(Some("[heap]"));
            // A heap that would leave the slot stops growing instead: allocators then use mmap.
            self.check_range(old_top, new_top - old_top).is_some() && self.map(request).await.is_ok()
        } else {
            new_top == old_top || self.unmap(new_top, old_top - new_top).await.is_ok()
        };
        if !done {
            return old.end;
        }
        self.state.lock().brk.end = end;
        end
    }
}
