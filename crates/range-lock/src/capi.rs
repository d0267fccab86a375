//! The C interface, `include/heddle_range_lock.h`: 64-bit keys, a 64-bit payload, opaque pointers.
#![allow(unsafe_code)] // Every function takes the caller's pointers.

use alloc::boxed::Box;
use core::ptr::{self, NonNull};
use core::time::Duration;

use crate::request::{Guard, Request};
use crate::{LockError, Mode, RangeLock, RawGuard, Span, TimeoutError, TryLockError};

/// `heddle_range_lock`.
pub type CLock = RangeLock<u64, u64>;

/// `heddle_range_status`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// The range holds no key.
    Empty = 1,
    /// A conflicting range is held or waited for.
    Conflict = 2,
    /// The time was up.
    TimedOut = 3,
    /// No memory.
    NoMemory = 4,
}

impl From<LockError> for Status {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Empty => Self::Empty,
            LockError::OutOfMemory => Self::NoMemory,
        }
    }
}

impl From<TryLockError> for Status {
    fn from(error: TryLockError) -> Self {
        match error {
            TryLockError::Empty => Self::Empty,
            TryLockError::Conflict => Self::Conflict,
            TryLockError::OutOfMemory => Self::NoMemory,
        }
    }
}

impl From<TimeoutError> for Status {
    fn from(error: TimeoutError) -> Self {
        match error {
            TimeoutError::Empty => Self::Empty,
            TimeoutError::TimedOut => Self::TimedOut,
            TimeoutError::OutOfMemory => Self::NoMemory,
        }
    }
}

/// `heddle_range_holder`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CHolder {
    start: u64,
    end: u64,
    payload: u64,
    shared: bool,
    waiting: bool,
}

/// The C interface's range: the largest number as an end is no bound, and 0 as a start bounds nothing.
fn span(start: u64, end: u64) -> Span<u64> {
    Span { start: Some(start), end: (end != u64::MAX).then_some(end) }
}

/// Acquires by `how` and stores the outcome.
///
/// # Safety
/// `lock` is a live lock, `held` may be written.
unsafe fn acquire<'a, R: Into<Status>>(
    lock: *const CLock,
    (start, end, shared, payload): (u64, u64, bool, u64),
    held: *mut *mut (),
    how: impl FnOnce(Request<&'a CLock>) -> Result<Guard<'a, u64, u64>, R>,
) -> Status {
    // SAFETY: see the contract.
    let (lock, held): (&'a CLock, _) = unsafe { (&*lock, &mut *held) };
    let request = lock.request_as(span(start, end), payload);
    match how(if shared { request.shared() } else { request }) {
        Ok(guard) => {
            *held = guard.into_raw().into_ptr().as_ptr();
            Status::Ok
        }
        Err(error) => {
            *held = ptr::null_mut();
            error.into()
        }
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn heddle_range_lock_new() -> *mut CLock {
    let layout = core::alloc::Layout::new::<CLock>();
    // SAFETY: the layout is not empty; the lock is written before the pointer is handed out, as a box's.
    unsafe {
        let place = alloc::alloc::alloc(layout).cast::<CLock>();
        if !place.is_null() {
            place.write(RangeLock::new());
        }
        place
    }
}

/// See the header.
///
/// # Safety
/// `lock` is null or came from [`heddle_range_lock_new`], and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_range_lock_free(lock: *mut CLock) {
    if !lock.is_null() {
        // SAFETY: allocated with the layout of a box of it, and given up by the caller.
        drop(unsafe { Box::from_raw(lock) });
    }
}

/// See the header.
///
/// # Safety
/// `lock` is a live lock, `held` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_range_try_lock(
    lock: *const CLock,
    start: u64,
    end: u64,
    shared: bool,
    payload: u64,
    held: *mut *mut (),
) -> Status {
    // SAFETY: the caller's contract.
    unsafe { acquire(lock, (start, end, shared, payload), held, Request::try_lock) }
}

/// See the header.
///
/// # Safety
/// `lock` is a live lock, `held` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_range_acquire(
    lock: *const CLock,
    start: u64,
    end: u64,
    shared: bool,
    payload: u64,
    held: *mut *mut (),
) -> Status {
    // SAFETY: the caller's contract.
    unsafe { acquire(lock, (start, end, shared, payload), held, Request::lock) }
}

/// See the header.
///
/// # Safety
/// `lock` is a live lock, `held` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_range_acquire_timeout(
    lock: *const CLock,
    start: u64,
    end: u64,
    shared: bool,
    payload: u64,
    timeout_ns: u64,
    held: *mut *mut (),
) -> Status {
    let timeout = Duration::from_nanos(timeout_ns);
    // SAFETY: the caller's contract.
    unsafe { acquire(lock, (start, end, shared, payload), held, |request| request.lock_timeout(timeout)) }
}

/// See the header.
///
/// # Safety
/// `lock` is a live lock and `held` a range of it that was not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_range_release(lock: *const CLock, held: *mut ()) {
    if let Some(held) = NonNull::new(held) {
        // SAFETY: the caller's contract.
        unsafe { (*lock).release_raw(RawGuard::from_ptr(held)) }
    }
}

/// See the header.
///
/// # Safety
/// `lock` is a live lock and `held` a range of it that was not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_range_downgrade(lock: *const CLock, held: *mut ()) {
    if let Some(held) = NonNull::new(held) {
        // SAFETY: the caller's contract; the guard is turned into a raw one again before it could be dropped.
        unsafe {
            let mut guard = Guard::from_raw(&*lock, RawGuard::from_ptr(held));
            guard.downgrade();
            let _ = guard.into_raw();
        }
    }
}

/// See the header.
///
/// # Safety
/// `lock` is a live lock, `found` and `holder` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_range_first_conflict(
    lock: *const CLock,
    start: u64,
    end: u64,
    found: *mut bool,
    holder: *mut CHolder,
) -> Status {
    // SAFETY: the caller's contract.
    let (lock, found, holder) = unsafe { (&*lock, &mut *found, &mut *holder) };
    match lock.first_conflict(span(start, end)) {
        Ok(first) => {
            *found = first.is_some();
            if let Some(first) = first {
                *holder = CHolder {
                    start: first.range.start.unwrap_or(0),
                    end: first.range.end.unwrap_or(u64::MAX),
                    payload: first.payload,
                    shared: first.mode == Mode::Shared,
                    waiting: first.waiting,
                };
            }
            Status::Ok
        }
        Err(error) => error.into(),
    }
}
