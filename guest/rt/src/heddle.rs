//! Calls on Heddle: the ring through which results come back, and the calls by which executors sleep.
//!
//! Any executor thread takes results out, one at a time: a thread that finds the lock held leaves them to its holder,
//! which looks again after releasing it. Calls are ended without the lock, since that runs code of others: wakers of
//! other executors, and drops of buffers whose futures are gone. Both may panic, and make calls.
#![allow(unsafe_code)] // The ring is memory that the kernel writes.

use crate::operation::Handle;
use crate::{listing, place};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use core::task::{Context, Waker};
use core::time::Duration;
use heddle_abi::call::{
    CANCEL, CANCEL_AND_WAIT, COMPLETION_BYTES, DONE, Entry, FOR_EVER, LEVEL, NOT_STARTED, RING, RING_HEAD,
    RING_HEADER_BYTES, RING_ORDER_MAX, RING_TAIL, SUBMIT, SUBMIT_MAX, WAIT, WAITS,
};
use heddle_abi::protocol::ring::{Consumer, ENTRY_WORDS};
use heddle_coroutine::Id;
use heddle_coroutine::host::{self, Host, Told};
use std::cell::{Cell, RefCell};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The first ring holds so many results, as a power of two; a larger one replaces it when that is too few.
const FIRST_ORDER: u32 = 8;

static HERE: OnceLock<Option<&'static Ring>> = OnceLock::new();

/// Whether the kernel is Heddle's.
#[inline]
pub(crate) fn is_here() -> bool {
    ring().is_some()
}

#[inline]
fn ring() -> Option<&'static Ring> {
    *HERE.get_or_init(detect)
}

/// Registers a ring. A kernel without rings is Linux's. On both, executors continue in forked children.
fn detect() -> Option<&'static Ring> {
    heddle_coroutine::follow_forks();
    let memory = RingMemory::new(FIRST_ORDER)?;
    if memory.register().is_err() {
        memory.give_back();
        return None;
    }
    let tail = memory.counter(RING_TAIL);
    let ring: &'static Ring = Box::leak(Box::new(Ring {
        tail: AtomicPtr::new(tail.as_ptr()),
        order: AtomicU32::new(FIRST_ORDER),
        head: AtomicU32::new(0),
        memory: Mutex::new(memory),
        refused: Mutex::new(Vec::new()),
    }));
    listing::open();
    // Executors that started before look into it only as far as they poll calls; `Builder::run` comes first.
    host::install(ring);
    Some(ring)
}

/// A system call by number. Errors are negated.
fn system_call(number: u32, arguments: [u64; 4]) -> i64 {
    let [a, b, c, d] = arguments;
    // SAFETY: Heddle's own calls, each with the memory that `heddle_abi::call` asks for, which the callers keep.
    let result = unsafe { libc::syscall(number.into(), a, b, c, d) };
    if result == -1 { -i64::from(crate::words::last_error()) } else { result }
}

/// The memory of a ring. It is never unmapped once it has been one: another thread may be looking at its tail.
struct RingMemory {
    start: *mut u8,
    order: u32,
}

// SAFETY: what several threads touch are the counters, which are atomic, and entries under the ring's lock.
unsafe impl Send for RingMemory {}

impl RingMemory {
    fn new(order: u32) -> Option<RingMemory> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory at a place of the kernel's choice.
        let start =
            unsafe { libc::mmap(core::ptr::null_mut(), Self::bytes(order), protection, flags, -1, 0) };
        (start != libc::MAP_FAILED).then_some(RingMemory { start: start.cast(), order })
    }

    const fn bytes(order: u32) -> usize {
        RING_HEADER_BYTES + (COMPLETION_BYTES << order)
    }

    fn register(&self) -> io::Result<()> {
        match system_call(RING, [self.start.expose_provenance() as u64, self.order.into(), 0, 0]) {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(-error as i32)),
        }
    }

    /// For memory that is no ring.
    fn give_back(self) {
        // SAFETY: mapped by `new`, and not shared with another thread yet.
        unsafe { libc::munmap(self.start.cast(), Self::bytes(self.order)) };
    }

    fn counter(&self, offset: usize) -> &'static AtomicU32 {
        // SAFETY: an aligned word of the header, which stays mapped.
        unsafe { AtomicU32::from_ptr(self.start.add(offset).cast()) }
    }

    fn consumer(&self) -> Consumer<'static> {
        // SAFETY: the entries, which stay mapped, and are words that the kernel and threads write.
        let entries = unsafe {
            core::slice::from_raw_parts(self.start.add(RING_HEADER_BYTES).cast(), ENTRY_WORDS << self.order)
        };
        Consumer { head: self.counter(RING_HEAD), tail: self.counter(RING_TAIL), entries }
    }
}

pub(crate) struct Ring {
    /// The tail of the current memory.
    tail: AtomicPtr<u32>,
    /// Of the current memory; stale ones only lead to another look.
    order: AtomicU32,
    /// A copy of the head of the current memory.
    head: AtomicU32,
    memory: Mutex<RingMemory>,
    /// Tasks that wait for room.
    refused: Mutex<Vec<Waker>>,
}

/// The locks that a thread holds while it forks.
type Forking = (MutexGuard<'static, RingMemory>, MutexGuard<'static, Vec<Waker>>);

thread_local! {
    static FORKING: Cell<Option<Forking>> = const { Cell::new(None) };
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Results that a thread takes out of the ring under its lock before it ends their calls.
const TAKEN_AT_ONCE: usize = 8;

/// Ends the call of `cookie`.
///
/// # Safety
/// The kernel has given the cookie back in a result, which is used once.
unsafe fn complete(cookie: u64, result: u64) {
    // SAFETY: the caller's promise.
    contained(|| unsafe { Handle::from_cookie(cookie) }.complete(result as i64));
}

/// Runs code of others. A panic in it ends here, after the panic hook has told of it, because no frame of this thread
/// waits for what it does.
fn contained(code: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(code)) {
        // Its drop might panic too.
        core::mem::forget(payload);
    }
}

impl Ring {
    #[inline(always)]
    fn tail(&self) -> u32 {
        // SAFETY: the tail of a ring's memory, which stays mapped.
        unsafe { AtomicU32::from_ptr(self.tail.load(Ordering::Acquire)) }.load(Ordering::Acquire)
    }

    #[inline(always)]
    fn has_results(&self) -> bool {
        self.tail() != self.head.load(Ordering::Relaxed)
    }

    /// Takes all results, unless another thread is doing so.
    fn drain(&self) {
        while self.has_results() {
            let Ok(memory) = self.memory.try_lock() else { return };
            let consumer = memory.consumer();
            let (mut taken, mut count) = ([(0, 0); TAKEN_AT_ONCE], 0);
            for place in &mut taken {
                let Some([cookie, _, result]) = consumer.pop() else { break };
                *place = (cookie, result);
                count += 1;
            }
            self.head.store(consumer.head.load(Ordering::Relaxed), Ordering::Relaxed);
            drop(memory);
            for (cookie, result) in taken.into_iter().take(count) {
                // SAFETY: the kernel gives back each cookie once.
                unsafe { complete(cookie, result) };
            }
            self.wake_refused();
        }
    }

    /// There may be room again.
    fn wake_refused(&self) {
        let refused = core::mem::take(&mut *locked(&self.refused));
        refused.into_iter().for_each(|waker| contained(|| waker.wake()));
    }

    /// Replaces the ring by a larger one. `false` if there is none.
    fn grow(&self, seen: u32) -> bool {
        let mut taken = Vec::new();
        let has_grown = self.replace(seen, |result| taken.push(result));
        for (cookie, result) in taken {
            // SAFETY: the kernel gives back each cookie once.
            unsafe { complete(cookie, result) };
        }
        self.wake_refused();
        has_grown
    }

    /// [`Ring::grow`], which gives the results that are in the old one to `take`.
    fn replace(&self, seen: u32, mut take: impl FnMut((u64, u64))) -> bool {
        let mut memory = locked(&self.memory);
        if memory.order > seen {
            // Another thread was faster.
            return true;
        }
        let mut take_all = |memory: &RingMemory| {
            let consumer = memory.consumer();
            while let Some([cookie, _, result]) = consumer.pop() {
                take((cookie, result));
            }
            self.head.store(consumer.head.load(Ordering::Relaxed), Ordering::Relaxed);
        };
        take_all(&memory);
        if memory.order >= RING_ORDER_MAX {
            return false;
        }
        let Some(larger) = RingMemory::new(memory.order + 2) else { return false };
        if larger.register().is_err() {
            larger.give_back();
            return false;
        }
        // From here on nothing is put into the old one.
        take_all(&memory);
        self.head.store(larger.counter(RING_HEAD).load(Ordering::Relaxed), Ordering::Relaxed);
        self.tail.store(larger.counter(RING_TAIL).as_ptr(), Ordering::Release);
        self.order.store(larger.order, Ordering::Relaxed);
        *memory = larger;
        true
    }

    fn order(&self) -> u32 {
        self.order.load(Ordering::Relaxed)
    }
}

impl Host for Ring {
    #[inline]
    fn before_turn(&self, settle: &dyn Fn() -> u64) {
        place::before_turn(settle, || self.has_results(), || self.drain());
    }

    fn sleep(&self, word: &AtomicU32, calm: u32, limit: Option<Duration>) {
        place::before_sleep();
        let seen = self.tail();
        if seen != self.head.load(Ordering::Relaxed) && self.memory.try_lock().is_ok() {
            return self.drain();
        }
        // If another thread is taking results, it also takes those up to `seen`.
        let limit = limit.map_or(FOR_EVER, |limit| u64::try_from(limit.as_nanos()).unwrap_or(FOR_EVER));
        let word = word.as_ptr().expose_provenance() as u64;
        // Whatever ends the sleep, the executor looks for work.
        system_call(WAIT, [word, calm.into(), seen.into(), limit]);
        self.drain();
    }

    fn queued(&self, id: Id, level: u8) {
        place::queued(level);
        listing::queued(id, level);
    }

    fn posted(&self, id: Id) {
        listing::posted(id);
    }

    fn is_of_kind(&self, id: Id, kind: u32) {
        listing::is_of_kind(id, kind);
    }

    fn turn_begins(&self, id: Id, level: u8) {
        listing::turn_begins(id, level);
    }

    fn turn_ends(&self, id: Id, has_ended: bool) {
        listing::turn_ends(id, has_ended);
    }

    fn before_fork(&self) {
        FORKING.set(ring().map(|ring| (locked(&ring.memory), locked(&ring.refused))));
    }

    fn after_fork(&self, is_child: bool) {
        let Some((memory, mut refused)) = FORKING.take() else { return };
        if !is_child {
            drop((memory, refused));
            // A thread that has come to sleep meanwhile could not take the results that it saw.
            self.drain();
            return;
        }
        // Calls in flight, and their results, are the parent's. A coroutine that waits for room is woken with all
        // others.
        refused.clear();
        self.head.store(0, Ordering::Relaxed);
        // Without memory for the ring, calls say that there is none.
        let _ = memory.register();
        place::after_fork();
        listing::publish();
    }

    fn is_watching(&self) -> bool {
        place::is_known()
    }

    fn urgent(&self, level: u8) {
        place::rouse(level);
    }

    fn raise(&self, level: u8) {
        place::queued(level);
    }

    fn reserve(&self) {
        place::reserve();
    }

    fn stand_by(&self) -> Told {
        let told = place::stand_by();
        self.drain();
        told
    }
}

/// The state of a call that was handed over.
pub(crate) enum Submitted {
    /// It is finished.
    Done(i64),
    /// Its handle's `complete` will be called.
    Flying,
    /// It will be handed over with others; then its future is polled again.
    Collected,
    /// There is no room; the waker will be woken when there may be.
    Refused,
}

/// The calls of the batch that a thread is collecting, and memory for them.
struct Batch {
    is_open: Cell<bool>,
    entries: RefCell<Vec<Entry>>,
}

thread_local! {
    static BATCH: Batch = const { Batch { is_open: Cell::new(false), entries: RefCell::new(Vec::new()) } };
}

/// Hands a call to the kernel.
pub(crate) fn submit(mut entry: Entry, handle: Handle, context: &Context<'_>) -> Submitted {
    let Some(ring) = ring() else { return Submitted::Done(-i64::from(libc::ENOSYS)) };
    entry.cookie = handle.into_cookie();
    let is_collected = BATCH.with(|batch| {
        let is_open = batch.is_open.get();
        if is_open {
            batch.entries.borrow_mut().push(entry);
        }
        is_open
    });
    if is_collected {
        return Submitted::Collected;
    }
    let mut is_listed = false;
    loop {
        let order = ring.order();
        let started = start(core::slice::from_mut(&mut entry));
        // SAFETY: the cookie's handle, which is used once: the kernel has not taken the call, or is done with it.
        let take = || unsafe { Handle::from_cookie(entry.cookie) };
        match (started, entry.state) {
            (1, DONE) => {
                drop(take());
                return Submitted::Done(entry.outcome as i64);
            }
            (1, WAITS) => {
                crate::operation::set_token(entry.cookie, entry.outcome);
                return Submitted::Flying;
            }
            (error, _) if error == NO_ROOM => {
                if !ring.grow(order) {
                    if is_listed {
                        drop(take());
                        return Submitted::Refused;
                    }
                    // Cloned without the lock: the waker may be another executor's.
                    let waker = context.waker().clone();
                    // Once more: results that were taken before this was in the list wake nobody in it.
                    locked(&ring.refused).push(waker);
                    is_listed = true;
                }
            }
            (error, _) => {
                drop(take());
                return Submitted::Done(error);
            }
        }
    }
}

/// There is no room in the ring for another result.
const NO_ROOM: i64 = -(libc::EAGAIN as i64);

fn start(entries: &mut [Entry]) -> i64 {
    system_call(SUBMIT, [entries.as_mut_ptr().expose_provenance() as u64, entries.len() as u64, 0, 0])
}

/// Whether a call may be made on Heddle at once: none are collected on this thread, and nothing more urgent waits for
/// it.
#[inline]
pub(crate) fn is_free() -> bool {
    is_here() && !place::is_noticed() && !BATCH.with(|batch| batch.is_open.get())
}

/// The result of handing over the collected calls.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Collected {
    /// There were none.
    None,
    /// Their futures are to be polled again.
    Some,
    /// The same, and not all could be started: they are to be started one at a time.
    Refused,
}

/// Collects the calls that `poll` starts, and hands them over in one entry into the kernel.
pub(crate) fn collect(poll: impl FnOnce()) -> Collected {
    struct Stop;
    impl Stop {
        fn finish(&self) -> Collected {
            let mut entries = BATCH.with(|batch| {
                batch.is_open.set(false);
                batch.entries.take()
            });
            let found = match (entries.is_empty(), submit_all(&mut entries)) {
                (true, _) => Collected::None,
                (false, true) => Collected::Some,
                (false, false) => Collected::Refused,
            };
            entries.clear();
            BATCH.with(|batch| batch.entries.replace(entries));
            found
        }
    }
    impl Drop for Stop {
        // Also when a poll panics: the calls that are collected have their futures' words.
        fn drop(&mut self) {
            self.finish();
        }
    }
    if !is_here() || BATCH.with(|batch| batch.is_open.replace(true)) {
        poll();
        return Collected::None;
    }
    let stop = Stop;
    poll();
    let found = stop.finish();
    core::mem::forget(stop);
    found
}

/// Hands calls over whose futures are polled again afterwards. `false` if some could not be started.
fn submit_all(batch: &mut [Entry]) -> bool {
    let Some(ring) = ring() else { return true };
    let mut rest = batch;
    while !rest.is_empty() {
        let (order, length) = (ring.order(), rest.len().min(SUBMIT_MAX));
        let started = start(&mut rest[..length]);
        let (front, back) = rest.split_at_mut(usize::try_from(started).unwrap_or(0).min(length));
        for entry in front {
            if entry.state == WAITS {
                crate::operation::set_token(entry.cookie, entry.outcome);
            } else {
                debug_assert_ne!(entry.state, NOT_STARTED, "the kernel counts what it has started");
                // SAFETY: the kernel is done with the call.
                unsafe { Handle::from_cookie(entry.cookie) }.land(entry.outcome as i64);
            }
        }
        rest = back;
        if started <= 0 && !(started == NO_ROOM && ring.grow(order)) {
            // SAFETY: the kernel has not taken these calls.
            rest.iter().for_each(|entry| unsafe { Handle::from_cookie(entry.cookie) }.refuse());
            return false;
        }
    }
    true
}

/// Gives a call that waits the level of its coroutine, which has changed.
pub(crate) fn set_level(token: u64, level: u8) {
    // A call that has ended meanwhile needs no level.
    system_call(LEVEL, [token, level.into(), 0, 0]);
}

/// Cancels a call that waits; with `wait`, returns when the kernel does not touch its memory any more.
pub(crate) fn cancel(token: u64, wait: bool) {
    let flags = if wait { CANCEL_AND_WAIT } else { 0 };
    // A call that has ended meanwhile needs no cancelling.
    system_call(CANCEL, [token, flags, 0, 0]);
}
