//! Futexes: who waits at which word, and what the end of a thread does to those that it holds.
//!
//! Waiters are kept in buckets by the hash of their key. The lock of a bucket orders a waiter's look at the word
//! against a waker's: the word is read and the waiter entered under the lock, so a wake after a change of the word
//! finds whoever read the old value.

pub(in crate::process) mod donation;
pub mod pi;
pub mod requeue_pi;
pub mod robust;
mod wake_op;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::task::Poll;
use linux_raw_sys::general as linux;

use crate::call::caller::Caller;
use crate::error::{Errno, TryResult};
use crate::memory::{Space, fallible, values as user};
use crate::process::Thread;
use crate::sync::SpinLock;
use crate::time::Deadline;
use crate::wait::node::{Interrupted, WaitKind};

use heddle_kernel_core::fallible::{insert_reserved, push_reserved};

pub use crate::process::futex::donation::Donation;
pub use crate::process::futex::wake_op::wake_op;

const BUCKETS: usize = 256;

/// The identity of a futex word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum FutexKey {
    /// A word of one space, which outlives the wait because the waiting thread is in it.
    Private { space: usize, address: usize },
    /// A word of an object that spaces share, by the object's serial number: the mapping may go while a thread waits,
    /// and another object come to where it was.
    Shared { object: (u64, u64), offset: u64 },
}

impl FutexKey {
    fn of(space: &Arc<Space>, address: usize, is_private: bool) -> Self {
        if !is_private && let Some((object, offset)) = space.shared_object_at(address) {
            return Self::Shared { object, offset };
        }
        Self::Private { space: Arc::as_ptr(space) as usize, address }
    }

    const fn parts(&self) -> (u64, u64) {
        match *self {
            Self::Private { space, address } => (space as u64, address as u64),
            Self::Shared { object: (device, number), offset } => {
                (device.rotate_left(40) ^ number.rotate_left(12), offset)
            }
        }
    }
}

/// A thread that waits.
struct FutexWaiter {
    thread: Caller,
    is_woken: AtomicBool,
    /// Index of the bucket that holds the entry; a requeue changes it, with both buckets locked.
    bucket: AtomicUsize,
}

struct FutexEntry {
    key: FutexKey,
    bitset: u32,
    /// As urgent as the thread was when it began to wait: the most urgent are woken first.
    rank: u8,
    waiter: Arc<FutexWaiter>,
    /// The lock to be moved to: `FUTEX_WAIT_REQUEUE_PI`.
    lock: Option<Arc<pi::PiWaiter>>,
}

impl FutexEntry {
    /// Takes its place among those who wait in the bucket; there is room.
    fn enter(self, bucket: &mut Vec<Self>) {
        if self.rank == Thread::RANK_ORDINARY {
            return push_reserved(bucket, self);
        }
        let behind = bucket.iter().position(|each| each.rank > self.rank);
        let place = behind.unwrap_or(bucket.len());
        insert_reserved(bucket, place, self);
    }
}

static WAITERS: [SpinLock<Vec<FutexEntry>>; BUCKETS] = [const { SpinLock::new(Vec::new()) }; BUCKETS];

/// Gives back the room of buckets in which nobody waits.
pub fn drain() {
    for bucket in &WAITERS {
        let mut entries = bucket.lock();
        if entries.is_empty() {
            *entries = Vec::new();
        }
    }
}

fn bucket_of(key: &FutexKey) -> usize {
    let (object, offset) = key.parts();
    let mixed = (object ^ offset.rotate_left(21)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as usize % BUCKETS
}

/// Takes its waiter out of the bucket when the wait ends for another reason than a wake.
pub struct FutexRegistration(Arc<FutexWaiter>);

impl FutexRegistration {
    /// Whether the waiter has been woken.
    pub fn is_woken(&self) -> bool {
        self.0.is_woken.load(Ordering::Acquire)
    }
}

impl Drop for FutexRegistration {
    fn drop(&mut self) {
        loop {
            if self.0.is_woken.load(Ordering::Acquire) {
                return;
            }
            let index = self.0.bucket.load(Ordering::Acquire);
            let mut bucket = WAITERS[index].lock();
            if self.0.bucket.load(Ordering::Acquire) == index {
                let position = bucket.iter().position(|entry| Arc::ptr_eq(&entry.waiter, &self.0));
                let entry = position.map(|position| bucket.remove(position));
                drop(bucket);
                drop(entry);
                return;
            }
        }
    }
}

/// The two words of an operation.
pub struct Words {
    /// The first.
    pub address: usize,
    /// The second.
    pub other: usize,
    /// Only threads of one address space use them.
    pub is_private: bool,
}

fn key(space: &Arc<Space>, address: usize, is_private: bool) -> TryResult<FutexKey> {
    if !address.is_multiple_of(size_of::<u32>()) {
        return Err(Errno::EINVAL.into());
    }
    Ok(FutexKey::of(space, address, is_private))
}

/// Enters a waiter at the word, if it has the value expected.
///
/// # Errors
/// `EAGAIN` (it has another value), `EINVAL`, `ENOMEM`, a page fault.
pub fn register(
    thread: &Caller,
    address: usize,
    expected: u32,
    bitset: u32,
    is_private: bool,
    lock: Option<Arc<pi::PiWaiter>>,
) -> TryResult<FutexRegistration> {
    if bitset == 0 {
        return Err(Errno::EINVAL.into());
    }
    let space = thread.space();
    let key = key(&space, address, is_private)?;
    let index = bucket_of(&key);
    let waiter = fallible::try_arc(FutexWaiter {
        thread: thread.clone(),
        is_woken: AtomicBool::new(false),
        bucket: AtomicUsize::new(index),
    })?;
    {
        let mut bucket = WAITERS[index].lock();
        if space.load_u32(address)? != expected {
            return Err(Errno::EAGAIN.into());
        }
        bucket.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        FutexEntry { key, bitset, rank: thread.rank(), waiter: waiter.clone(), lock }.enter(&mut bucket);
    }
    Ok(FutexRegistration(waiter))
}

/// For a call that waits for more than the word: enters `caller` as a waiter at a word of the process.
///
/// # Errors
/// `EAGAIN` (it does not have the value expected), `EINVAL`, `ENOMEM`, a page fault.
pub fn enter(caller: &Caller, address: usize, expected: u32) -> TryResult<FutexRegistration> {
    register(caller, address, expected, linux::FUTEX_BITSET_MATCH_ANY, true, None)
}

impl FutexRegistration {
    /// Waits to be woken (`Ok`), until the time is over (`ETIMEDOUT`), or a signal comes.
    pub async fn wait(&self, caller: &Caller, deadline: Deadline) -> Result<Result<(), Errno>, Interrupted> {
        woken_in_time(caller, deadline, || self.is_woken().then_some(())).await
    }
}

/// The place of the last of these waits that has been woken.
pub fn last_woken(waits: &[FutexRegistration]) -> Option<usize> {
    waits.iter().rposition(FutexRegistration::is_woken)
}

/// Waits until one of several waits is woken (`Ok` with its place), the time is over (`ETIMEDOUT`), or a signal comes.
pub async fn wait_for_any(
    waits: &[FutexRegistration],
    caller: &Caller,
    deadline: Deadline,
) -> Result<Result<usize, Errno>, Interrupted> {
    woken_in_time(caller, deadline, || last_woken(waits)).await
}

async fn woken_in_time<T>(
    caller: &Caller,
    deadline: Deadline,
    woken: impl Fn() -> Option<T>,
) -> Result<Result<T, Errno>, Interrupted> {
    let mut sleep = deadline.sleep();
    let waiting = core::future::poll_fn(|context| match woken() {
        Some(place) => Poll::Ready(Ok(place)),
        None => core::pin::Pin::new(&mut sleep).poll(context).map(|()| Err(Errno::ETIMEDOUT)),
    });
    match caller.wait(WaitKind::Interruptible, waiting).await {
        // A wake that came with the signal counts.
        Err(interrupted) => woken().map(Ok).ok_or(interrupted),
        result => result,
    }
}

/// Wakes up to `count` waiters of `key`.
fn wake_key(key: &FutexKey, count: u32, bitset: u32) -> usize {
    let mut woken = 0;
    let mut bucket = WAITERS[bucket_of(key)].lock();
    bucket.retain(|entry| {
        let is_chosen =
            woken < count as usize && entry.key == *key && entry.bitset & bitset != 0 && entry.lock.is_none();
        if is_chosen {
            woken += 1;
            entry.waiter.is_woken.store(true, Ordering::Release);
            entry.waiter.thread.wake();
        }
        !is_chosen
    });
    woken
}

/// `FUTEX_WAKE`, `FUTEX_WAKE_BITSET`.
///
/// # Errors
/// `EINVAL`, a page fault.
pub fn wake(thread: &Arc<Thread>, arguments: &Words, count: u32, bitset: u32) -> TryResult<usize> {
    if bitset == 0 {
        return Err(Errno::EINVAL.into());
    }
    let key = key(&thread.space(), arguments.address, arguments.is_private)?;
    if pi::has_waiters(&key) {
        return Err(Errno::EINVAL.into());
    }
    if !arguments.is_private && matches!(key, FutexKey::Private { .. }) {
        // A word that processes share must be there, also where nobody looks at its value.
        user::read_int(&thread.space(), arguments.address)?;
    }
    // Linux wakes one where a program asks for none.
    Ok(wake_key(&key, count.max(1), bitset))
}

/// `FUTEX_REQUEUE`, `FUTEX_CMP_REQUEUE`: wakes some waiters of the first word, and has others wait at the second.
///
/// # Errors
/// `EAGAIN` (the first word has another value than expected), `EINVAL`, `ENOMEM`, a page fault. Nothing has happened
/// then.
pub fn requeue(
    space: &Arc<Space>,
    words: &Words,
    (wake_count, move_count): (usize, usize),
    expected: Option<u32>,
) -> TryResult<usize> {
    let from = key(space, words.address, words.is_private)?;
    let to = key(space, words.other, words.is_private)?;
    let (from_index, to_index) = (bucket_of(&from), bucket_of(&to));
    // In the order of their indices, so that two requeues can't wait for each other.
    let mut first = WAITERS[from_index.min(to_index)].lock();
    let mut second = (from_index != to_index).then(|| WAITERS[from_index.max(to_index)].lock_below(1));
    if let Some(expected) = expected
        && space.load_u32(words.address)? != expected
    {
        return Err(Errno::EAGAIN.into());
    }
    let (source, mut target) = match &mut second {
        None => (&mut *first, None),
        Some(second) if from_index < to_index => (&mut *first, Some(&mut **second)),
        Some(second) => (&mut **second, Some(&mut *first)),
    };
    let found = source.iter().filter(|entry| entry.key == from);
    let affected = found.clone().take(wake_count.saturating_add(move_count));
    if affected.clone().any(|entry| entry.lock.is_some()) {
        // It waits to be moved to a lock that inherits priorities, and to nothing else.
        return Err(Errno::EINVAL.into());
    }
    if let Some(target) = &mut target {
        let moving = affected.count().saturating_sub(wake_count);
        target.try_reserve(moving).map_err(|_| Errno::ENOMEM)?;
    }
    // From here on nothing fails.
    let (mut woken, mut moved, mut index) = (0, 0, 0);
    while index < source.len() && (woken < wake_count || moved < move_count) {
        if source[index].key != from {
            index += 1;
        } else if woken < wake_count {
            let entry = source.remove(index);
            entry.waiter.is_woken.store(true, Ordering::Release);
            entry.waiter.thread.wake();
            woken += 1;
        } else {
            moved += 1;
            match &mut target {
                None => {
                    source[index].key = to;
                    index += 1;
                }
                Some(target) => {
                    let entry = source.remove(index);
                    entry.waiter.bucket.store(to_index, Ordering::Release);
                    FutexEntry { key: to, ..entry }.enter(target);
                }
            }
        }
    }
    Ok(woken + moved)
}

/// `CLONE_CHILD_CLEARTID`: writes 0 and wakes one waiter, if anybody else is left in the space.
pub async fn clear_and_wake(thread: &Arc<Thread>, address: usize) {
    let space = thread.space();
    // The program may have unmapped the word: then nobody waits at it.
    while let Err(fault) = user::write_int(&space, address, 0) {
        if thread.resolve_at_end(&space, fault).await.is_err() {
            return;
        }
    }
    wake_key(&FutexKey::of(&space, address, false), 1, linux::FUTEX_BITSET_MATCH_ANY);
}

/// Wakes whoever waits at a word that the kernel has changed; returns whether somebody did.
pub fn wake_word(space: &Arc<Space>, address: usize) -> bool {
    [true, false].into_iter().any(|is_private| {
        wake_key(&FutexKey::of(space, address, is_private), 1, linux::FUTEX_BITSET_MATCH_ANY) != 0
    })
}
