//! A waiting thread as a waker.
#![allow(unsafe_code)] // Counts references by hand: an `Arc` aborts when memory is out.

use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::task::{RawWaker, RawWakerVTable, Waker};
use std::alloc::{Layout, alloc, dealloc};
use std::cell::OnceCell;
use std::thread::{self, Thread};
use std::thread_local;
use std::time::Instant;

use crate::epoch::OutOfMemory;

/// Looks at the flag before a thread parks: about as long as a short critical section elsewhere takes.
const SPINS: u32 = 100;

struct Shared {
    references: AtomicUsize,
    thread: Thread,
    woken: AtomicBool,
}

/// A reference to a thread's parker; wakers hold one each.
pub(crate) struct Parker(NonNull<Shared>);

thread_local! {
    static CURRENT: OnceCell<Parker> = const { OnceCell::new() };
}

impl Parker {
    /// The running thread's own, made at its first wait; a new one while its locals are torn down.
    pub(crate) fn current() -> Result<Self, OutOfMemory> {
        let kept = CURRENT.try_with(|current| {
            if current.get().is_none() {
                // Nobody else has set it meanwhile.
                let _ = current.set(Self::create()?);
            }
            current.get().cloned().ok_or(OutOfMemory)
        });
        kept.unwrap_or_else(|_| Self::create())
    }

    fn create() -> Result<Self, OutOfMemory> {
        let shared = Shared {
            references: AtomicUsize::new(1),
            thread: thread::current(),
            woken: AtomicBool::new(false),
        };
        // SAFETY: the layout is not empty, and the place is written before it is used.
        unsafe {
            let place = NonNull::new(alloc(Layout::new::<Shared>()).cast::<Shared>()).ok_or(OutOfMemory)?;
            place.write(shared);
            Ok(Self(place))
        }
    }

    fn shared(&self) -> &Shared {
        // SAFETY: there as long as a reference is.
        unsafe { self.0.as_ref() }
    }

    /// The waker of the thread.
    pub(crate) fn waker(&self) -> Waker {
        let parker = ManuallyDrop::new(self.clone());
        // SAFETY: the functions below keep the contract of wakers: atomics, and a reference for each.
        unsafe { Waker::from_raw(raw(parker.0)) }
    }

    fn wake(&self) {
        // Release: what was done before the wake.
        self.shared().woken.store(true, Ordering::Release);
        self.shared().thread.unpark();
    }

    /// Waits for a wake; `false` if the deadline came first.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> bool {
        let is_woken = || self.shared().woken.swap(false, Ordering::Acquire);
        for _ in 0..SPINS {
            if is_woken() {
                return true;
            }
            core::hint::spin_loop();
        }
        while !is_woken() {
            match deadline {
                None => thread::park(),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    thread::park_timeout(left);
                }
            }
        }
        true
    }
}

impl Clone for Parker {
    fn clone(&self) -> Self {
        self.shared().references.fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }
}

impl Drop for Parker {
    fn drop(&mut self) {
        // Release and acquire: all uses come before the end. A load and not a fence, which ThreadSanitizer does not
        // know.
        if self.shared().references.fetch_sub(1, Ordering::Release) == 1 {
            self.shared().references.load(Ordering::Acquire);
            // SAFETY: this was the last reference, to a block of this layout.
            unsafe {
                self.0.drop_in_place();
                dealloc(self.0.as_ptr().cast(), Layout::new::<Shared>());
            }
        }
    }
}

const VTABLE: RawWakerVTable = RawWakerVTable::new(
    |data| raw(ManuallyDrop::new((*borrow(data)).clone()).0),
    |data| ManuallyDrop::into_inner(borrow(data)).wake(),
    |data| borrow(data).wake(),
    |data| drop(ManuallyDrop::into_inner(borrow(data))),
);

fn raw(shared: NonNull<Shared>) -> RawWaker {
    RawWaker::new(shared.as_ptr().cast_const().cast(), &VTABLE)
}

/// The reference that a waker is.
fn borrow(data: *const ()) -> ManuallyDrop<Parker> {
    // SAFETY: made by `raw`, so not null.
    ManuallyDrop::new(Parker(unsafe { NonNull::new_unchecked(data.cast_mut().cast()) }))
}
