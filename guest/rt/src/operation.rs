//! A call in flight, as its future sees it.
//!
//! On Linux the future makes attempts and waits for readiness in between; on Heddle it hands the call to the kernel and
//! waits for its result. The memory of the call is then kept by a state that the future and the ring share: the future
//! may be dropped, and the state stays until the result has come.
#![allow(unsafe_code)] // The state is reached by the cookie that the kernel gives back.

use crate::heddle::{self, Submitted};
use crate::linux;
use crate::place;
use crate::words::Words;
use atomic_waker::AtomicWaker;
use core::cell::UnsafeCell;
use core::future::{Future, poll_fn};
use core::mem::ManuallyDrop;
use core::pin::pin;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use core::task::{Context, Poll};
use heddle_abi::call::Entry;
use heddle_abi::protocol::{Found, Phase};
use heddle_coroutine::Id;
use std::sync::Arc;

/// Carries a call out; gives back what `keep` was, which it kept where it was meanwhile.
pub(crate) async fn run<K: Send + 'static>(mut keep: K, words: impl FnOnce(&mut K) -> Words) -> (i64, K) {
    if heddle::is_here() {
        // SAFETY: a state that is left keeps what it has, which is its own, until the kernel has let go.
        return unsafe { fly(keep, words, false) }.await;
    }
    let words = words(&mut keep);
    (unless_forked(linux::run(&words)).await, keep)
}

/// A call on Linux. In a child that was forked meanwhile it has ended, as on Heddle.
async fn unless_forked(call: impl Future<Output = i64>) -> i64 {
    let mut call = pin!(call);
    let forks = heddle_coroutine::forks();
    poll_fn(|context| {
        if heddle_coroutine::forks() != forks {
            return Poll::Ready(IS_THE_PARENTS);
        }
        call.as_mut().poll(context)
    })
    .await
}

/// The result, in a forked child, of a call that was in flight at the fork.
const IS_THE_PARENTS: i64 = -(libc::ECANCELED as i64);

/// [`run`] for memory that is only borrowed.
///
/// # Safety
/// The future is not leaked: its drop waits until the kernel has let go of the memory.
pub(crate) async unsafe fn run_borrowed<K: Send>(
    mut keep: K,
    words: impl FnOnce(&mut K) -> Words,
) -> (i64, K) {
    if heddle::is_here() {
        // SAFETY: the caller's promise.
        return unsafe { fly(keep, words, true) }.await;
    }
    let words = words(&mut keep);
    (unless_forked(linux::run(&words)).await, keep)
}

/// The ring's part of a call's state.
pub(crate) struct Header {
    phase: Phase,
    result: AtomicI64,
    /// By which the kernel cancels the call; set once it waits.
    token: AtomicU64,
    waker: AtomicWaker,
    /// See [`heddle_coroutine::forks`]: in which process the call was handed over.
    forks: AtomicU32,
    makes_descriptor: bool,
    /// Gives a reference to the whole state up.
    release: unsafe fn(NonNull<Header>),
}

/// Its header comes first, so that a pointer to one is a pointer to the other.
#[repr(C)]
struct State<K> {
    header: Header,
    keep: UnsafeCell<Option<K>>,
}

// SAFETY: `keep` is touched by the future alone, or, once that has left it, by the thread that drops the state last.
unsafe impl<K: Send> Sync for State<K> {}

/// The ring's reference to a call: one of the two that its `Arc` counts.
pub(crate) struct Handle(NonNull<Header>);

// SAFETY: the state behind it is `Send` and `Sync`, because `K` is `Send`.
unsafe impl Send for Handle {}

impl Handle {
    fn new<K: Send>(state: &Arc<State<K>>) -> Handle {
        let pointer = Arc::into_raw(state.clone()).cast::<Header>();
        // SAFETY: an `Arc` does not point to null.
        Handle(unsafe { NonNull::new_unchecked(pointer.cast_mut()) })
    }

    fn header(&self) -> &Header {
        // SAFETY: the reference counted for this handle keeps it.
        unsafe { self.0.as_ref() }
    }

    /// As a word, for the kernel. The reference is the word's from now on.
    pub fn into_cookie(self) -> u64 {
        ManuallyDrop::new(self).0.as_ptr().expose_provenance() as u64
    }

    /// # Safety
    /// `cookie` comes from [`Handle::into_cookie`], and is used once.
    pub unsafe fn from_cookie(cookie: u64) -> Handle {
        let pointer = core::ptr::with_exposed_provenance_mut(cookie as usize);
        // SAFETY: the caller's promise.
        Handle(unsafe { NonNull::new_unchecked(pointer) })
    }

    /// The call has ended. Wakes, and drops what the call kept if its future is gone: both may be others' code.
    pub fn complete(self, result: i64) {
        let header = self.header();
        header.result.store(result, Ordering::Relaxed);
        if header.phase.complete() {
            header.waker.wake();
        } else {
            header.discard();
        }
    }

    /// [`Handle::complete`] of a call whose future is polled again anyway.
    pub fn land(self, result: i64) {
        let header = self.header();
        header.result.store(result, Ordering::Relaxed);
        if !header.phase.complete() {
            header.discard();
        }
    }

    /// The call could not be started; its future, which is polled again anyway, is to try again.
    pub fn refuse(self) {
        self.header().phase.refuse();
    }
}

/// The call of this cookie waits in the kernel, and is cancelled by `token`. Its future is inside the poll that started
/// it, so the state is there, whatever has come through the ring meanwhile.
pub(crate) fn set_token(cookie: u64, token: u64) {
    let header = core::ptr::with_exposed_provenance::<Header>(cookie as usize);
    // SAFETY: the future that is being polled has a reference to the state.
    unsafe { (*header).token.store(token, Ordering::Relaxed) };
}

impl Drop for Handle {
    fn drop(&mut self) {
        let release = self.header().release;
        // SAFETY: the reference that was counted for this handle is given up, once.
        unsafe { release(self.0) };
    }
}

/// # Safety
/// The header is a `State<K>`'s, and the caller gives up a counted reference to it.
unsafe fn release<K>(header: NonNull<Header>) {
    // SAFETY: the caller's promise; the header is the state's first member.
    drop(unsafe { Arc::from_raw(header.as_ptr().cast::<State<K>>()) });
}

impl Header {
    /// Whether the call was handed over before a fork, and this is the child.
    fn is_the_parents(&self) -> bool {
        self.forks.load(Ordering::Relaxed) != heddle_coroutine::forks()
    }

    /// Closes a descriptor that is the result, because the future is gone.
    fn discard(&self) {
        let result = self.result.load(Ordering::Relaxed);
        if self.makes_descriptor && result >= 0 {
            // SAFETY: the descriptor was made for this call, and is known nowhere else.
            unsafe { libc::close(result as i32) };
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Grounded,
    Flying,
    Landed,
}

/// The future's side.
struct Flight<K: Send> {
    state: ManuallyDrop<Arc<State<K>>>,
    stage: Stage,
    borrows: bool,
    /// The level that the kernel knows.
    level: u8,
}

/// # Safety
/// If `borrows`, the future is not leaked.
async unsafe fn fly<K: Send>(keep: K, words: impl FnOnce(&mut K) -> Words, borrows: bool) -> (i64, K) {
    if place::is_noticed() {
        // Something more urgent has become ready, and before a call is where a coroutine can be preempted.
        heddle_coroutine::preempted().await;
    }
    let mut keep = UnsafeCell::new(Some(keep));
    // A `Some`, by the line above.
    let words = words(keep.get_mut().as_mut().expect("kept"));
    let header = Header {
        phase: Phase::new(),
        result: AtomicI64::new(0),
        token: AtomicU64::new(0),
        waker: AtomicWaker::new(),
        forks: AtomicU32::new(0),
        makes_descriptor: words.makes_descriptor,
        release: release::<K>,
    };
    let state = ManuallyDrop::new(Arc::new(State { header, keep }));
    let mut flight = Flight { state, stage: Stage::Grounded, borrows, level: 0 };
    let result = poll_fn(|context| flight.poll(&words, context)).await;
    // SAFETY: the call is over, so the future is the only one to touch `keep`.
    let keep = unsafe { (*flight.state.keep.get()).take() };
    (result, keep.expect("kept"))
}

impl<K: Send> Flight<K> {
    /// The ring of this process will not report the call, so its reference is released here.
    fn strand(&mut self) {
        self.stage = Stage::Landed;
        let pointer = Arc::as_ptr(&self.state).cast::<Header>().cast_mut();
        if let Some(pointer) = NonNull::new(pointer) {
            drop(Handle(pointer));
        }
    }

    fn poll(&mut self, words: &Words, context: &mut Context<'_>) -> Poll<i64> {
        loop {
            let header = &self.state.header;
            if self.stage == Stage::Grounded {
                header.phase.again();
                header.forks.store(heddle_coroutine::forks(), Ordering::Relaxed);
                let entry = entry(words, context);
                self.stage = Stage::Flying;
                self.level = entry.level as u8;
                match heddle::submit(entry, Handle::new(&self.state), context) {
                    Submitted::Done(result) => {
                        self.stage = Stage::Landed;
                        return Poll::Ready(result);
                    }
                    Submitted::Flying => {}
                    Submitted::Collected => return Poll::Pending,
                    Submitted::Refused => {
                        self.stage = Stage::Grounded;
                        return Poll::Pending;
                    }
                }
            }
            let mut found = header.phase.look();
            if found == Found::Flying {
                header.waker.register(context.waker());
                // Results that came before the waker was registered woke no task.
                found = header.phase.look();
            }
            match found {
                Found::Flying if header.is_the_parents() => {
                    self.strand();
                    return Poll::Ready(IS_THE_PARENTS);
                }
                Found::Flying => {
                    // A coroutine that gets another level while it waits is polled.
                    let level = level_of(awaiting(context));
                    if level != self.level {
                        self.level = level;
                        heddle::set_level(header.token.load(Ordering::Relaxed), level);
                    }
                    return Poll::Pending;
                }
                Found::Refused => self.stage = Stage::Grounded,
                Found::Done => {
                    self.stage = Stage::Landed;
                    return Poll::Ready(header.result.load(Ordering::Relaxed));
                }
            }
        }
    }
}

impl<K: Send> Drop for Flight<K> {
    fn drop(&mut self) {
        if self.stage == Stage::Flying
            && self.state.header.is_the_parents()
            && self.state.header.phase.look() == Found::Flying
        {
            self.strand();
        }
        if self.stage == Stage::Flying {
            let header = &self.state.header;
            if header.phase.leave() {
                heddle::cancel(header.token.load(Ordering::Relaxed), self.borrows);
            } else {
                header.discard();
            }
            if self.borrows {
                // SAFETY: the kernel is done with the call, and nothing else touches `keep`. The state may live longer
                // than what was borrowed, and then is empty.
                drop(unsafe { (*self.state.keep.get()).take() });
            }
        }
        // SAFETY: dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.state) };
    }
}

/// The coroutine that awaits a call.
fn awaiting(context: &Context<'_>) -> Option<Id> {
    heddle_coroutine::id_of(context.waker()).or_else(heddle_coroutine::current_id)
}

/// Its level, lent ones included.
fn level_of(id: Option<Id>) -> u8 {
    id.and_then(heddle_coroutine::priority).unwrap_or(heddle_coroutine::DEFAULT_PRIORITY)
}

fn entry(words: &Words, context: &Context<'_>) -> Entry {
    let id = awaiting(context);
    Entry {
        number: words.number as u32,
        level: level_of(id).into(),
        coroutine: id.map_or(0, Id::to_bits),
        arguments: words.arguments,
        ..Entry::default()
    }
}
