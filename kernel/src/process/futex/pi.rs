//! Futexes that inherit priorities: whoever owns such a lock is as urgent as the most urgent of those who wait for it,
//! and along a chain of locks as urgent as those who wait for its waiters.
//!
//! The kernel knows a lock only while somebody waits for it. One lock guards all of this: a loan passes along a chain
//! whose locks lie anywhere, and these are the slow ways only. Under it the word in the program's memory is changed
//! together with who owns the lock, so the two never differ.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use core::task::Poll;
use linux_raw_sys::general as linux;

use crate::call::caller::Caller;
use crate::error::{Errno, TryError, TryResult};
use crate::memory::{Space, fallible};
use crate::process::futex::donation::Donations;
use crate::process::futex::{FutexKey, key, wake_op};
use crate::process::{Thread, table};
use crate::sync::SpinLock;
use crate::time::Deadline;
use crate::wait::node::{Interrupted, WaitKind};

use heddle_kernel_core::fallible::insert_reserved;

/// A chain longer than this counts as a circle.
const CHAIN_MAX: usize = 1024;

/// A thread that waits, or may come to wait, for a lock.
pub struct PiWaiter {
    thread: Arc<Thread>,
    key: FutexKey,
    /// Where the word is for this thread.
    space: Arc<Space>,
    address: usize,
    /// As urgent as its thread was when it was last put in order.
    rank: AtomicU8,
    /// In the list of a lock.
    waits: AtomicBool,
    is_granted: AtomicBool,
}

impl PiWaiter {
    pub(super) fn new(thread: &Arc<Thread>, address: usize, is_private: bool) -> TryResult<Arc<Self>> {
        let space = thread.space();
        Ok(fallible::try_arc(Self {
            thread: thread.clone(),
            key: key(&space, address, is_private)?,
            space,
            address,
            rank: AtomicU8::new(thread.rank()),
            waits: AtomicBool::new(false),
            is_granted: AtomicBool::new(false),
        })?)
    }

    /// Whether the thread owns the lock now.
    pub(super) fn is_granted(&self) -> bool {
        self.is_granted.load(Ordering::Acquire)
    }

    /// Whether it waits for the lock, and no longer for being moved there.
    pub(super) fn waits(&self) -> bool {
        self.waits.load(Ordering::Acquire)
    }

    pub(super) fn is_for(&self, key: &FutexKey) -> bool {
        self.key == *key
    }

    fn grant(&self) {
        self.waits.store(false, Ordering::Relaxed);
        self.is_granted.store(true, Ordering::Release);
        self.thread.wake();
    }
}

/// A lock with waiters.
struct PiLock {
    key: FutexKey,
    owner: Arc<Thread>,
    /// The most urgent first, among equals the first to come.
    waiters: Vec<Arc<PiWaiter>>,
}

impl PiLock {
    /// Puts a waiter where it belongs; there is room.
    fn insert(&mut self, waiter: Arc<PiWaiter>) {
        let rank = waiter.thread.rank();
        waiter.rank.store(rank, Ordering::Relaxed);
        let behind = |each: &Arc<PiWaiter>| each.rank.load(Ordering::Relaxed) > rank;
        let position = self.waiters.iter().position(behind).unwrap_or(self.waiters.len());
        insert_reserved(&mut self.waiters, position, waiter);
    }
}

/// Every lock with waiters, in the order of their keys, and the donations outside of locks.
pub(super) struct PiLocks {
    locks: Vec<PiLock>,
    pub(super) donations: Donations,
}

static LOCKS: SpinLock<PiLocks> = SpinLock::new(PiLocks { locks: Vec::new(), donations: Donations::new() });
/// How many there are of both, for a look without the lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

pub(super) fn with_locks<R>(act: impl FnOnce(&mut PiLocks) -> R) -> R {
    let mut locks = LOCKS.lock();
    let result = act(&mut locks);
    COUNT.store(locks.locks.len() + locks.donations.count(), Ordering::Relaxed);
    result
}

/// Whether somebody waits for the lock at this word.
pub(super) fn has_waiters(key: &FutexKey) -> bool {
    COUNT.load(Ordering::Relaxed) != 0 && LOCKS.lock().find(key).is_ok()
}

impl PiLocks {
    fn find(&self, key: &FutexKey) -> Result<usize, usize> {
        self.locks.binary_search_by(|lock| lock.key.cmp(key))
    }

    fn get(&mut self, key: &FutexKey) -> Option<&mut PiLock> {
        let index = self.find(key).ok()?;
        self.locks.get_mut(index)
    }

    /// Takes the lock for the waiter's thread, or enters the waiter; `false` then. Without `may_wait` that is `EAGAIN`.
    pub(super) fn acquire(&mut self, waiter: &Arc<PiWaiter>, may_wait: bool) -> TryResult<bool> {
        let own = waiter.thread.own_tid() as u32;
        let (space, address) = (&waiter.space, waiter.address);
        loop {
            let word = space.load_u32(address)?;
            let holder = word & linux::FUTEX_TID_MASK;
            if holder == own {
                return Err(Errno::EDEADLK.into());
            }
            let known = self.get(&waiter.key).map(|lock| lock.owner.clone());
            if known.is_none() && holder == 0 {
                let taken = own | word & linux::FUTEX_OWNER_DIED;
                if space.compare_exchange_u32(address, word, taken)? == word {
                    waiter.is_granted.store(true, Ordering::Release);
                    return Ok(true);
                }
                continue;
            }
            let owner = match known {
                Some(owner) if owner.own_tid() as u32 == holder => owner,
                Some(_) => return Err(Errno::EINVAL.into()),
                None => living_thread(waiter.thread.process.named(holder as i32))?,
            };
            if !may_wait {
                return Err(Errno::EAGAIN.into());
            }
            let marked = word | linux::FUTEX_WAITERS;
            if word != marked && space.compare_exchange_u32(address, word, marked)? != word {
                continue;
            }
            self.enter(waiter, owner)?;
            return Ok(false);
        }
    }

    fn enter(&mut self, waiter: &Arc<PiWaiter>, owner: Arc<Thread>) -> Result<(), Errno> {
        self.check_chain(&waiter.thread, &owner)?;
        let index = match self.find(&waiter.key) {
            Ok(index) => index,
            Err(index) => {
                self.locks.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
                insert_reserved(
                    &mut self.locks,
                    index,
                    PiLock { key: waiter.key, owner: owner.clone(), waiters: Vec::new() },
                );
                index
            }
        };
        if self.locks[index].waiters.try_reserve(1).is_err() {
            self.tidy(index);
            return Err(Errno::ENOMEM);
        }
        self.locks[index].insert(waiter.clone());
        waiter.waits.store(true, Ordering::Release);
        let before = waiter.thread.pi_wait().lock().replace(waiter.clone());
        drop(before);
        self.settle(owner);
        Ok(())
    }

    /// `EDEADLK` if `owner` waits, along whatever chain, for `waiter`.
    fn check_chain(&mut self, waiter: &Arc<Thread>, owner: &Arc<Thread>) -> Result<(), Errno> {
        let mut current = owner.clone();
        for _ in 0..CHAIN_MAX {
            if Arc::ptr_eq(&current, waiter) {
                break;
            }
            let waits_for = current.pi_wait().lock().as_ref().map(|waiter| waiter.key);
            match waits_for.and_then(|key| self.get(&key).map(|lock| lock.owner.clone())) {
                Some(next) => current = next,
                None => return Ok(()),
            }
        }
        Err(Errno::EDEADLK)
    }

    /// Works out what is lent to a thread, and passes what has changed along the chain of locks it waits in.
    pub(super) fn settle(&mut self, thread: Arc<Thread>) {
        let mut current = thread;
        for _ in 0..CHAIN_MAX {
            let by_locks = self.first_waiter(&current);
            current.set_rank_by_locks(by_locks);
            if !current.lend(by_locks.into_iter().chain(self.donations.rank_for(&current)).min()) {
                return;
            }
            match self.reorder(&current).or_else(|| self.donations.server_of(&current)) {
                Some(owner) => current = owner,
                None => return,
            }
        }
    }

    /// The rank of the most urgent waiter for a lock of this thread's.
    fn first_waiter(&self, owner: &Arc<Thread>) -> Option<u8> {
        let owned = self.locks.iter().filter(|lock| Arc::ptr_eq(&lock.owner, owner));
        let first = owned.filter_map(|lock| lock.waiters.first());
        first.map(|waiter| waiter.rank.load(Ordering::Relaxed)).min()
    }

    /// Puts a waiting thread where its level belongs now; returns who owns the lock it waits for.
    fn reorder(&mut self, thread: &Arc<Thread>) -> Option<Arc<Thread>> {
        let waiter = thread.pi_wait().lock().clone()?;
        let lock = self.get(&waiter.key)?;
        let position = lock.waiters.iter().position(|each| Arc::ptr_eq(each, &waiter))?;
        let waiter = lock.waiters.remove(position);
        lock.insert(waiter);
        Some(lock.owner.clone())
    }

    /// Gives the lock to its first waiter, whose number is in the word already.
    fn hand_over(&mut self, index: usize) {
        let lock = &mut self.locks[index];
        let waiter = lock.waiters.remove(0);
        let before = core::mem::replace(&mut lock.owner, waiter.thread.clone());
        self.tidy(index);
        let waited = waiter.thread.pi_wait().lock().take();
        self.settle(before);
        self.settle(waiter.thread.clone());
        waiter.grant();
        drop(waited);
    }

    /// Takes a waiter out that does not wait any more.
    fn leave(&mut self, waiter: &Arc<PiWaiter>) {
        if !waiter.waits.swap(false, Ordering::Relaxed) {
            return;
        }
        let waited = waiter.thread.pi_wait().lock().take();
        drop(waited);
        let Ok(index) = self.find(&waiter.key) else { return };
        let lock = &mut self.locks[index];
        lock.waiters.retain(|each| !Arc::ptr_eq(each, waiter));
        let owner = lock.owner.clone();
        self.tidy(index);
        self.settle(owner);
    }

    /// Forgets a lock that nobody waits for.
    fn tidy(&mut self, index: usize) {
        if self.locks[index].waiters.is_empty() {
            self.locks.remove(index);
        }
        if self.locks.is_empty() {
            self.locks = Vec::new();
        }
    }

    /// Gives up one of the locks that a thread which ends owns; `None` when there is none.
    fn abandon_one(
        &mut self,
        thread: &Arc<Thread>,
        force: bool,
    ) -> Option<Result<(), (Arc<Space>, TryError)>> {
        let index = self.locks.iter().position(|lock| Arc::ptr_eq(&lock.owner, thread))?;
        let first = self.locks[index].waiters.first()?.clone();
        let word = first.thread.own_tid() as u32 | linux::FUTEX_WAITERS | linux::FUTEX_OWNER_DIED;
        match wake_op::update(&first.space, first.address, |_| Ok(word)) {
            Err(halt) if !force => return Some(Err((first.space.clone(), halt))),
            _ => self.hand_over(index),
        }
        Some(Ok(()))
    }
}

/// The thread of this number, unless it has given up its locks already.
fn living_thread(tid: i32) -> Result<Arc<Thread>, Errno> {
    let thread = table::thread(tid).ok_or(Errno::ESRCH)?;
    if thread.has_released_pi_locks() { Err(Errno::ESRCH) } else { Ok(thread) }
}

/// Ends the wait of a waiter, whatever comes.
pub struct Wait(pub(super) Arc<PiWaiter>);

impl Wait {
    /// Ends the wait. Whether the thread has got the lock.
    #[must_use]
    pub fn end(self) -> bool {
        let waiter = self.0.clone();
        drop(self);
        waiter.is_granted()
    }

    /// Waits until the waiter has the lock (0) or the time is over (`ETIMEDOUT`).
    pub async fn granted(
        &self,
        caller: &Caller,
        deadline: Deadline,
    ) -> Result<Result<usize, Errno>, Interrupted> {
        let mut sleep = deadline.sleep();
        let waiting = core::future::poll_fn(|context| {
            if self.0.is_granted() {
                return Poll::Ready(Ok(0));
            }
            core::pin::Pin::new(&mut sleep).poll(context).map(|()| Err(Errno::ETIMEDOUT))
        });
        caller.wait(WaitKind::Interruptible, waiting).await
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        with_locks(|locks| locks.leave(&self.0));
    }
}

/// Takes a lock for the thread; `None`: it is the thread's now. Without `may_wait` a lock that is taken is `EAGAIN`.
///
/// # Errors
/// `EAGAIN`, `EDEADLK`, `EINVAL`, `ENOMEM`, `ESRCH`, a page fault.
pub fn acquire(
    thread: &Arc<Thread>,
    address: usize,
    is_private: bool,
    may_wait: bool,
) -> TryResult<Option<Wait>> {
    let waiter = PiWaiter::new(thread, address, is_private)?;
    Ok(if with_locks(|locks| locks.acquire(&waiter, may_wait))? { None } else { Some(Wait(waiter)) })
}

/// `FUTEX_UNLOCK_PI`.
///
/// # Errors
/// `EINVAL`, `EPERM`, a page fault.
pub fn unlock(thread: &Arc<Thread>, space: &Arc<Space>, address: usize, is_private: bool) -> TryResult<()> {
    let key = key(space, address, is_private)?;
    with_locks(|locks| {
        loop {
            let word = space.load_u32(address)?;
            if word & linux::FUTEX_TID_MASK != thread.own_tid() as u32 {
                return Err(Errno::EPERM.into());
            }
            let known = locks.find(&key).ok();
            let new = match known.map(|index| &locks.locks[index]) {
                None => 0,
                Some(lock) if !Arc::ptr_eq(&lock.owner, thread) => return Err(Errno::EINVAL.into()),
                Some(lock) => {
                    let first = lock.waiters.first().ok_or(Errno::EINVAL)?;
                    first.thread.own_tid() as u32 | linux::FUTEX_WAITERS
                }
            };
            if space.compare_exchange_u32(address, word, new)? != word {
                continue;
            }
            if let Some(index) = known {
                locks.hand_over(index);
            }
            return Ok(());
        }
    })
}

/// A thread that ends gives up the locks that others wait for; the first of them learns that their owner has died.
pub async fn owner_ends(thread: &Arc<Thread>) {
    with_locks(|_| thread.set_released_pi_locks(true));
    if COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mut force = false;
    while let Some(result) = with_locks(|locks| locks.abandon_one(thread, force)) {
        force = match result {
            Ok(()) => false,
            // Without its page the word stays as it is.
            Err((space, TryError::Fault(fault))) => thread.resolve_at_end(&space, fault).await.is_err(),
            Err(_) => true,
        };
    }
}

/// A thread is scheduled in another way now: whoever it waits for inherits that.
pub fn level_changed(thread: &Arc<Thread>) {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    with_locks(|locks| {
        if let Some(awaited) = locks.reorder(thread).or_else(|| locks.donations.server_of(thread)) {
            locks.settle(awaited);
        }
    });
}
