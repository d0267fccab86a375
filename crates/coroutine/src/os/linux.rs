//! Sleeping on a word by `futex`, and fences in other threads by `membarrier`.
#![allow(unsafe_code)] // System calls.

use crate::sync::{AtomicU32, AtomicUsize, Ordering, fence};
use core::alloc::Layout;
use core::ptr;
use core::time::Duration;

/// Wakes the thread that sleeps on `word`. Safe in signal handlers.
pub(crate) fn wake_word(word: &AtomicU32) {
    // SAFETY: a futex wake only reads the address, which is valid; it changes no memory.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
    }
}

/// Sleeps as long as `word` is `calm`, until it is woken or for `limit`. May return early.
pub(crate) fn sleep_on(word: &'static AtomicU32, calm: u32, limit: Option<Duration>) {
    let timeout = limit.map(|limit| libc::timespec {
        tv_sec: limit.as_secs().min(1 << 30) as libc::time_t,
        tv_nsec: limit.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the word lives for ever, the timeout for the call. A signal or a spurious return does no harm: the
    // caller looks for work after every sleep.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            calm,
            timeout,
        );
    }
}

/// Whether every thread of the process can be made to pass a fence, so that owners need none of their own.
pub(crate) fn has_heavy_barrier() -> bool {
    if cfg!(miri) {
        return false;
    }
    // SAFETY: registers the process; has no effect on memory.
    unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 }
}

/// Makes every running thread of the process pass a fence, if [`has_heavy_barrier`]; one of its own otherwise.
pub(crate) fn heavy_barrier() {
    fence(Ordering::SeqCst);
    if !cfg!(miri) {
        // SAFETY: a barrier; without registration it fails, and then owners have fences of their own.
        unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) };
        fence(Ordering::SeqCst);
    }
}

/// Whether the system can take back the pages of memory with this alignment and size: whether it is whole pages.
pub(crate) fn can_discard(layout: Layout) -> bool {
    static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);
    let mut page = PAGE_BYTES.load(Ordering::Relaxed);
    if page == 0 {
        // SAFETY: asks for a constant of the system.
        page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(usize::MAX);
        PAGE_BYTES.store(page, Ordering::Relaxed);
    }
    is_whole_pages(layout, page)
}

const fn is_whole_pages(layout: Layout, page: usize) -> bool {
    page != 0 && layout.align().is_multiple_of(page) && layout.size().is_multiple_of(page)
}

/// Gives the pages of memory back to the system: afterwards they are zeros, or what they were.
///
/// # Safety
/// The memory has this layout and is the caller's, with whatever content.
pub(crate) unsafe fn discard(start: *mut u8, layout: Layout) {
    // The system would take the rest of a page too.
    if !cfg!(miri) && can_discard(layout) {
        // SAFETY: by contract, and since its first and its last page are its own. It stays mapped.
        unsafe { libc::madvise(start.cast(), layout.size(), libc::MADV_DONTNEED) };
    }
}

#[cfg(test)]
mod tests {
    use super::is_whole_pages;
    use core::alloc::Layout;

    #[test]
    fn only_whole_pages_are_given_back() {
        let chunk = Layout::from_size_align(16 << 10, 4 << 10).unwrap();
        assert!(is_whole_pages(chunk, 4 << 10));
        // Half a page of what is behind it would go too.
        assert!(!is_whole_pages(chunk, 64 << 10) && !is_whole_pages(chunk, 16 << 10));
        assert!(!is_whole_pages(Layout::from_size_align(6 << 10, 4 << 10).unwrap(), 4 << 10));
        assert!(!is_whole_pages(chunk, usize::MAX) && !is_whole_pages(chunk, 0));
    }
}
