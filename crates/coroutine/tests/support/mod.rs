//! Helpers for tests: an allocator that checks, which a program has by having this module, and wakers that misbehave.
#![allow(unsafe_code, dead_code)]

pub mod family;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::task::{RawWaker, RawWakerVTable, Waker};
use std::thread;
use std::time::Duration;

/// Ends the process if a block is given back with another layout than it was taken with, or twice. A block that is
/// given back is overwritten.
struct Checking;

const ALIVE: usize = 0x00a1_1fe0_0d5e_c0de;
const HEADER: usize = 32;

fn whole(layout: Layout) -> (Layout, usize) {
    let offset = HEADER.max(layout.align());
    let size = layout.size() + offset;
    (Layout::from_size_align(size, layout.align().max(16)).expect("a layout with a header"), offset)
}

// SAFETY: blocks of the system's allocator, each behind a header.
unsafe impl GlobalAlloc for Checking {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (whole, offset) = whole(layout);
        // SAFETY: the header is within the block, before what the caller gets.
        unsafe {
            let start = System.alloc(whole);
            if start.is_null() {
                return start;
            }
            let block = start.add(offset);
            block.sub(HEADER).cast::<[usize; 3]>().write([ALIVE, layout.size(), layout.align()]);
            block
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let (whole, offset) = whole(layout);
        // SAFETY: the header that `alloc` wrote.
        unsafe {
            let header = block.sub(HEADER).cast::<[usize; 3]>();
            if header.read() != [ALIVE, layout.size(), layout.align()] {
                eprintln!("a block was given back twice, or as {layout:?}: {:x?}", header.read());
                std::process::abort();
            }
            header.write([0; 3]);
            block.write_bytes(0xdd, layout.size());
            System.dealloc(block.sub(offset), whole);
        }
    }
}

#[cfg(not(miri))] // Which looks at layouts itself.
#[global_allocator]
static ALLOCATOR: Checking = Checking;

/// Runs `f` on a thread of its own, and fails if it hangs: nothing here takes a part of that time.
pub fn ends<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> R {
    let (send, receive) = channel();
    let running = thread::spawn(move || {
        let result = f();
        let _ = send.send(());
        result
    });
    // Told of the end, or of a panic by the sender's drop.
    let told = receive.recv_timeout(Duration::from_secs(if cfg!(miri) { 3600 } else { 60 }));
    assert!(told != Err(std::sync::mpsc::RecvTimeoutError::Timeout), "it hangs");
    match running.join() {
        Ok(result) => result,
        Err(payload) => std::panic::resume_unwind(payload),
    }
}

/// The action of a waker when one of its functions is called for the first time after it was armed.
pub type Deed = Arc<dyn Fn() + Send + Sync>;

/// The functions of a waker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum On {
    Wake,
    Clone,
    Drop,
}

pub struct Evil {
    on: On,
    deed: Deed,
    armed: AtomicBool,
    pub woken: AtomicBool,
}

impl Evil {
    fn is_called(&self, on: On) {
        if on == self.on && !thread::panicking() && self.armed.swap(false, Ordering::SeqCst) {
            (self.deed)();
        }
    }

    pub fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }
}

/// A waker that does `deed` the first time that its function `on` is called once it is armed.
pub fn evil(on: On, deed: Deed) -> (Waker, Arc<Evil>) {
    let (armed, woken) = (AtomicBool::new(false), AtomicBool::new(false));
    let evil = Arc::new(Evil { on, deed, armed, woken });
    let raw = RawWaker::new(Arc::into_raw(evil.clone()).cast(), &VTABLE);
    // SAFETY: the functions count references to an `Evil`, which is `Sync`.
    (unsafe { Waker::from_raw(raw) }, evil)
}

/// A waker that only notes that it was called.
pub fn noting() -> (Waker, Arc<Evil>) {
    evil(On::Wake, Arc::new(|| ()))
}

static VTABLE: RawWakerVTable = RawWakerVTable::new(
    |data| {
        // SAFETY: a counted reference, which is left.
        unsafe { &*data.cast::<Evil>() }.is_called(On::Clone);
        // SAFETY: as above.
        unsafe { Arc::increment_strong_count(data.cast::<Evil>()) };
        RawWaker::new(data, &VTABLE)
    },
    |data| {
        // SAFETY: the reference is given up.
        let evil = unsafe { Arc::from_raw(data.cast::<Evil>()) };
        evil.woken.store(true, Ordering::SeqCst);
        evil.is_called(On::Wake);
    },
    |data| {
        // SAFETY: a counted reference, which is left.
        let evil = unsafe { &*data.cast::<Evil>() };
        evil.woken.store(true, Ordering::SeqCst);
        evil.is_called(On::Wake);
    },
    |data| {
        // SAFETY: the reference is given up.
        let evil = unsafe { Arc::from_raw(data.cast::<Evil>()) };
        evil.is_called(On::Drop);
    },
);
