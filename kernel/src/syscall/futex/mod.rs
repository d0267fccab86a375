//! futex(2) and the robust list.
//!
//! Waiters are kept in buckets by the hash of their key. The lock of a bucket orders a waiter's look at the word
//! against a waker's: the word is read and the waiter entered under the lock, so a wake after a change of the word
//! finds whoever read the old value.

pub mod pi;
mod requeue_pi;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use linux_raw_sys::general as linux;

use crate::error::{Errno, TryError, TryResult};
use crate::memory::values::read_timespec;
use crate::memory::{Space, fallible};
use crate::process::{Thread, table};
use crate::sync::SpinLock;
use crate::syscall::caller::Caller;
use crate::syscall::{Call, SyscallResult, pending, user};
use crate::time::{Clock, Deadline};
use crate::wait::node::WaitKind;

const BUCKETS: usize = 256;

/// What identifies a word that is waited at.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum FutexKey {
    /// A word of one space, which outlives the wait because the waiting thread is in it.
    Private { space: usize, address: usize },
    /// A word of an object that spaces share, which the mapping keeps.
    Shared { object: usize, offset: u64 },
}

impl FutexKey {
    fn of(space: &Arc<Space>, address: usize, is_private: bool) -> Self {
        if !is_private && let Some((object, offset)) = space.shared_object_at(address) {
            return Self::Shared { object: Arc::as_ptr(&object).cast::<()>() as usize, offset };
        }
        Self::Private { space: Arc::as_ptr(space) as usize, address }
    }

    const fn parts(&self) -> (u64, u64) {
        match *self {
            Self::Private { space, address } => (space as u64, address as u64),
            Self::Shared { object, offset } => (object as u64, offset),
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
            return bucket.push(self);
        }
        let behind = bucket.iter().position(|each| each.rank > self.rank);
        bucket.insert(behind.unwrap_or(bucket.len()), self);
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

/// futex(2).
pub fn futex(call: &mut Call<'_>) -> SyscallResult {
    let operation = call.uint(1);
    let is_private = operation & linux::FUTEX_PRIVATE_FLAG != 0;
    let command = operation & linux::FUTEX_CMD_MASK as u32;
    let takes_clock =
        matches!(command, linux::FUTEX_WAIT_BITSET | linux::FUTEX_WAIT_REQUEUE_PI | linux::FUTEX_LOCK_PI2);
    if operation & linux::FUTEX_CLOCK_REALTIME != 0 && !takes_clock {
        return Err(Errno::ENOSYS.into());
    }
    let clock = if operation & linux::FUTEX_CLOCK_REALTIME != 0 { Clock::Realtime } else { Clock::Monotonic };
    let (address, value) = (call.word(0), call.uint(2));
    let arguments = Two { address, other: call.word(4), is_private };
    match command {
        linux::FUTEX_WAIT => wait(call, value, linux::FUTEX_BITSET_MATCH_ANY, Timeout::Relative),
        linux::FUTEX_WAIT_BITSET => wait(call, value, call.uint(5), Timeout::Absolute(clock)),
        linux::FUTEX_WAKE => done(wake(call.thread, &arguments, value, linux::FUTEX_BITSET_MATCH_ANY)),
        linux::FUTEX_WAKE_BITSET => done(wake(call.thread, &arguments, value, call.uint(5))),
        linux::FUTEX_REQUEUE => done(requeue(call, &arguments, None)),
        linux::FUTEX_CMP_REQUEUE => done(requeue(call, &arguments, Some(call.uint(5)))),
        linux::FUTEX_WAKE_OP => done(wake_op(call, &arguments)),
        linux::FUTEX_LOCK_PI => pi::lock(call, is_private, absolute(call, Clock::Realtime)?, true),
        linux::FUTEX_LOCK_PI2 => pi::lock(call, is_private, absolute(call, clock)?, true),
        linux::FUTEX_TRYLOCK_PI => pi::lock(call, is_private, Deadline::NEVER, false),
        linux::FUTEX_UNLOCK_PI => done(pi::unlock(call, is_private)),
        linux::FUTEX_WAIT_REQUEUE_PI => requeue_pi::wait(call, &arguments, absolute(call, clock)?),
        linux::FUTEX_CMP_REQUEUE_PI => done(requeue_pi::requeue(call, &arguments)),
        _ => Err(Errno::ENOSYS.into()),
    }
}

fn done(result: TryResult<usize>) -> SyscallResult {
    result.map(Into::into)
}

/// The two words of an operation.
struct Two {
    address: usize,
    other: usize,
    is_private: bool,
}

enum Timeout {
    Relative,
    Absolute(Clock),
}

fn key(space: &Arc<Space>, address: usize, is_private: bool) -> TryResult<FutexKey> {
    if !address.is_multiple_of(size_of::<u32>()) {
        return Err(Errno::EINVAL.into());
    }
    Ok(FutexKey::of(space, address, is_private))
}

fn wait(call: &mut Call<'_>, expected: u32, bitset: u32, timeout: Timeout) -> SyscallResult {
    let is_private = call.uint(1) & linux::FUTEX_PRIVATE_FLAG != 0;
    let space = call.thread.space();
    let deadline = match call.word(3) {
        0 => Deadline::NEVER,
        address => {
            let time = read_timespec(&space, address)?;
            match timeout {
                Timeout::Relative => Deadline::after(Some(time)),
                Timeout::Absolute(clock) => Deadline::at(clock, time),
            }
        }
    };
    wait_until(call.thread, call.word(0), expected, bitset, is_private, deadline)
}

/// The absolute timeout in the fourth argument.
fn absolute(call: &Call<'_>, clock: Clock) -> TryResult<Deadline> {
    Ok(match call.word(3) {
        0 => Deadline::NEVER,
        address => Deadline::at(clock, read_timespec(&call.thread.space(), address)?),
    })
}

/// Enters a waiter at the word, if it has the value expected.
fn register(
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

fn wait_until(
    thread: &Caller,
    address: usize,
    expected: u32,
    bitset: u32,
    is_private: bool,
    deadline: Deadline,
) -> SyscallResult {
    let registration = register(thread, address, expected, bitset, is_private, None)?;
    let thread = thread.clone();
    pending(async move {
        let waiter = registration.0.clone();
        let mut sleep = deadline.sleep();
        let waiting = core::future::poll_fn(|context| {
            if waiter.is_woken.load(Ordering::Acquire) {
                return core::task::Poll::Ready(Ok(()));
            }
            core::pin::Pin::new(&mut sleep).poll(context).map(|()| Err(Errno::ETIMEDOUT))
        });
        match thread.wait(WaitKind::Interruptible, waiting).await {
            Ok(result) => result.map(|()| 0),
            // A wake that came with the signal counts.
            Err(_) if waiter.is_woken.load(Ordering::Acquire) => Ok(0),
            Err(_) if deadline == Deadline::NEVER => Err(Errno::ERESTARTSYS),
            Err(_) => {
                thread.set_restart(fallible::try_arc(move |call: &mut Call<'_>| {
                    wait_until(call.thread, address, expected, bitset, is_private, deadline)
                })?);
                Err(Errno::ERESTART_RESTARTBLOCK)
            }
        }
    })
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

fn wake(thread: &Arc<Thread>, arguments: &Two, count: u32, bitset: u32) -> TryResult<usize> {
    if bitset == 0 {
        return Err(Errno::EINVAL.into());
    }
    let key = key(&thread.space(), arguments.address, arguments.is_private)?;
    if pi::has_waiters(&key) {
        return Err(Errno::EINVAL.into());
    }
    // Linux wakes one where a program asks for none.
    Ok(wake_key(&key, count.max(1), bitset))
}

fn requeue(call: &Call<'_>, arguments: &Two, expected: Option<u32>) -> TryResult<usize> {
    let (wake_count, move_count) = (call.int(2), call.int(3));
    if wake_count < 0 || move_count < 0 {
        return Err(Errno::EINVAL.into());
    }
    let space = call.thread.space();
    let from = key(&space, arguments.address, arguments.is_private)?;
    let to = key(&space, arguments.other, arguments.is_private)?;
    let (from_index, to_index) = (bucket_of(&from), bucket_of(&to));
    let (wake_count, move_count) = (wake_count as usize, move_count as usize);
    // In the order of their indices, so that two requeues can't wait for each other.
    let mut first = WAITERS[from_index.min(to_index)].lock();
    let mut second = (from_index != to_index).then(|| WAITERS[from_index.max(to_index)].lock_below(1));
    if let Some(expected) = expected
        && space.load_u32(arguments.address)? != expected
    {
        return Err(Errno::EAGAIN.into());
    }
    let (source, mut target) = match &mut second {
        None => (&mut *first, None),
        Some(second) if from_index < to_index => (&mut *first, Some(&mut **second)),
        Some(second) => (&mut **second, Some(&mut *first)),
    };
    let (mut woken, mut moved, mut index) = (0, 0, 0);
    while index < source.len() && (woken < wake_count || moved < move_count) {
        if source[index].key != from {
            index += 1;
        } else if source[index].lock.is_some() {
            // It waits to be moved to a lock that inherits priorities, and to nothing else.
            return Err(Errno::EINVAL.into());
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
                    target.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
                    let entry = source.remove(index);
                    entry.waiter.bucket.store(to_index, Ordering::Release);
                    FutexEntry { key: to, ..entry }.enter(target);
                }
            }
        }
    }
    Ok(woken + moved)
}

/// What `FUTEX_WAKE_OP` does to the second word, unpacked.
struct WordOperation {
    operation: u32,
    comparison: u32,
    operand: u32,
    compared: u32,
}

impl WordOperation {
    fn decode(encoded: u32) -> Self {
        let field = |shift: u32| ((encoded << (20 - shift)) as i32 >> 20) as u32;
        let operation = encoded >> 28 & 0xf;
        let operand = field(12);
        let is_shift = operation & linux::FUTEX_OP_OPARG_SHIFT != 0;
        Self {
            operation: operation & !linux::FUTEX_OP_OPARG_SHIFT,
            comparison: encoded >> 24 & 0xf,
            operand: if is_shift { 1 << (operand & 31) } else { operand },
            compared: field(0),
        }
    }

    fn apply(&self, old: u32) -> Result<u32, Errno> {
        Ok(match self.operation {
            linux::FUTEX_OP_SET => self.operand,
            linux::FUTEX_OP_ADD => old.wrapping_add(self.operand),
            linux::FUTEX_OP_OR => old | self.operand,
            linux::FUTEX_OP_ANDN => old & !self.operand,
            linux::FUTEX_OP_XOR => old ^ self.operand,
            _ => return Err(Errno::ENOSYS),
        })
    }

    fn holds(&self, old: u32) -> Result<bool, Errno> {
        let (old, compared) = (old as i32, self.compared as i32);
        Ok(match self.comparison {
            linux::FUTEX_OP_CMP_EQ => old == compared,
            linux::FUTEX_OP_CMP_NE => old != compared,
            linux::FUTEX_OP_CMP_LT => old < compared,
            linux::FUTEX_OP_CMP_LE => old <= compared,
            linux::FUTEX_OP_CMP_GT => old > compared,
            linux::FUTEX_OP_CMP_GE => old >= compared,
            _ => return Err(Errno::ENOSYS),
        })
    }
}

fn wake_op(call: &Call<'_>, arguments: &Two) -> TryResult<usize> {
    let (count, other_count) = (call.uint(2), call.uint(3));
    let operation = WordOperation::decode(call.uint(5));
    let space = call.thread.space();
    let first = key(&space, arguments.address, arguments.is_private)?;
    let second = key(&space, arguments.other, arguments.is_private)?;
    operation.holds(0)?;
    let old = update(&space, arguments.other, |old| operation.apply(old))?;
    let mut woken = wake_key(&first, count, linux::FUTEX_BITSET_MATCH_ANY);
    if operation.holds(old)? {
        woken += wake_key(&second, other_count, linux::FUTEX_BITSET_MATCH_ANY);
    }
    Ok(woken)
}

/// Changes a word atomically; returns its old value.
fn update(space: &Space, address: usize, change: impl Fn(u32) -> Result<u32, Errno>) -> TryResult<u32> {
    loop {
        let old = space.load_u32(address)?;
        if space.compare_exchange_u32(address, old, change(old)?)? == old {
            return Ok(old);
        }
    }
}

/// `CLONE_CHILD_CLEARTID`: writes 0 and wakes one waiter, if anybody else is left in the space.
pub async fn clear_and_wake(thread: &Arc<Thread>, address: usize) {
    let space = thread.space();
    // The program may have unmapped the word: then nobody waits at it.
    if user::resolve(&space, |space| user::write_int(space, address, 0)).await.is_ok() {
        wake_key(&FutexKey::of(&space, address, false), 1, linux::FUTEX_BITSET_MATCH_ANY);
    }
}

/// Wakes whoever waits at a word that the kernel has changed; returns whether somebody did.
pub fn wake_word(space: &Arc<Space>, address: usize) -> bool {
    [true, false].into_iter().any(|is_private| {
        wake_key(&FutexKey::of(space, address, is_private), 1, linux::FUTEX_BITSET_MATCH_ANY) != 0
    })
}

/// The most entries of a robust list that are looked at: it may be a circle.
const ROBUST_LIST_MAX: usize = 2048;

/// Marks the robust futexes that the thread holds as left by a dead owner and wakes a waiter of each.
pub async fn release_robust_list(thread: &Arc<Thread>) {
    let head = thread.robust_list.swap(0, Ordering::Relaxed);
    if head == 0 {
        return;
    }
    let space = thread.space();
    let Ok([mut entry, offset, waiting]) =
        user::resolve(&space, |space| user::read_words::<3>(space, head)).await
    else {
        return;
    };
    let word_of = |entry: u64| (entry & !1).wrapping_add(offset) as usize;
    for _ in 0..ROBUST_LIST_MAX {
        if entry & !1 == head as u64 {
            break;
        }
        let next = user::resolve(&space, |space| user::read_words::<1>(space, (entry & !1) as usize)).await;
        if entry != waiting {
            mark_dead(thread, &space, word_of(entry)).await;
        }
        match next {
            Ok([next]) => entry = next,
            Err(_) => return,
        }
    }
    if waiting & !1 != 0 {
        mark_dead(thread, &space, word_of(waiting)).await;
    }
}

async fn mark_dead(thread: &Arc<Thread>, space: &Arc<Space>, address: usize) {
    let tid = thread.tid() as u32;
    let mark = |old: u32| if old & linux::FUTEX_TID_MASK == tid { Some(old) } else { None };
    loop {
        let attempt = update(space, address, |old| {
            Ok(mark(old).map_or(old, |old| old & linux::FUTEX_WAITERS | linux::FUTEX_OWNER_DIED))
        });
        match attempt {
            Ok(old) if mark(old).is_some() && old & linux::FUTEX_WAITERS != 0 => {
                wake_key(&FutexKey::of(space, address, false), 1, linux::FUTEX_BITSET_MATCH_ANY);
                return;
            }
            Err(TryError::Fault(fault)) if space.fault_in(fault).await.is_ok() => {}
            _ => return,
        }
    }
}

/// set_robust_list(2).
pub fn set_robust_list(call: &mut Call<'_>) -> SyscallResult {
    const HEAD_BYTES: usize = 24;
    if call.word(1) != HEAD_BYTES {
        return Err(Errno::EINVAL.into());
    }
    call.thread.robust_list.store(call.word(0), Ordering::Relaxed);
    Ok(0.into())
}

/// get_robust_list(2).
pub fn get_robust_list(call: &mut Call<'_>) -> SyscallResult {
    let target = match call.int(0) {
        0 => Arc::clone(call.thread),
        tid => table::thread(tid).ok_or(Errno::ESRCH)?,
    };
    let space = call.thread.space();
    user::write_words(&space, call.word(1), &[target.robust_list.load(Ordering::Relaxed) as u64])?;
    user::write_words(&space, call.word(2), &[24])?;
    Ok(0.into())
}

/// set_tid_address(2).
pub fn set_tid_address(call: &mut Call<'_>) -> SyscallResult {
    call.thread.clear_child_tid.store(call.word(0), Ordering::Relaxed);
    Ok((call.thread.tid() as usize).into())
}
