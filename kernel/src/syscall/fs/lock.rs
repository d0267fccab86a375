//! Advisory locks: the lock commands of fcntl(2), and flock(2).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use heddle_kernel_core::file_lock::{ByteRange, LockKind};
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::lock::{FileLocks, LockOwner};
use crate::fs::{Inode, OpenFile};
use crate::memory::fallible;
use crate::sync::SpinLock;
use crate::syscall::fs::{encode, field, get, get_file, put};
use crate::syscall::{Call, SyscallResult, pending};
use crate::wait::node::WaitKind;

/// The node that holds an open file's locks.
fn node_of(open: &OpenFile) -> Result<Arc<dyn Inode>, Errno> {
    let node = open.place.as_ref().ok_or(Errno::EBADF)?.entry.node.clone();
    node.locks(true)?;
    Ok(node)
}

/// The locks of a node that has some or can have some.
fn locks(node: &Arc<dyn Inode>) -> Result<&FileLocks, Errno> {
    node.locks(true)?.ok_or(Errno::ENOLCK)
}

/// The lock commands of fcntl(2), for a process's locks or for those of an open file description.
pub(super) fn fcntl(call: &Call<'_>, open: &Arc<OpenFile>, of_description: bool) -> SyscallResult {
    let bytes: [u8; size_of::<linux::flock>()] = get(call, call.word(2))?;
    let (start, length) = (field!(&bytes, linux::flock, l_start), field!(&bytes, linux::flock, l_len));
    let base = match field!(&bytes, linux::flock, l_whence) as u32 {
        linux::SEEK_SET => 0,
        linux::SEEK_CUR => *open.offset.lock(),
        linux::SEEK_END => open.file.size().unwrap_or(0),
        _ => return Err(Errno::EINVAL.into()),
    };
    let range = range_of(base, start, length)?;
    let kind = match field!(&bytes, linux::flock, l_type) as u32 {
        linux::F_RDLCK => Some(LockKind::Shared),
        linux::F_WRLCK => Some(LockKind::Exclusive),
        linux::F_UNLCK => None,
        _ => return Err(Errno::EINVAL.into()),
    };
    if of_description && field!(&bytes, linux::flock, l_pid) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let process = call.thread.process.pid;
    let owner = if of_description { LockOwner::Description(open.id()) } else { LockOwner::Process(process) };
    let node = node_of(open)?;
    let command = call.uint(1);
    if matches!(command, linux::F_GETLK | linux::F_OFD_GETLK) {
        let kind = kind.ok_or(Errno::EINVAL)?;
        let mut answer = bytes;
        let kind_at = core::mem::offset_of!(linux::flock, l_type);
        match locks(&node)?.conflict(owner, range, kind) {
            None => answer[kind_at..kind_at + 2].copy_from_slice(&(linux::F_UNLCK as i16).to_ne_bytes()),
            Some(lock) => {
                let length =
                    lock.range.last.checked_sub(lock.range.first).and_then(|last| last.checked_add(1));
                answer = encode!(linux::flock {
                    l_type: if lock.kind == LockKind::Shared { linux::F_RDLCK } else { linux::F_WRLCK },
                    l_whence: linux::SEEK_SET,
                    l_start: lock.range.first,
                    l_len: if lock.range.last == u64::MAX { 0 } else { length.unwrap_or(0) },
                    l_pid: match lock.owner {
                        LockOwner::Process(pid) => call.thread.process.shown(pid),
                        LockOwner::Description(_) => -1,
                    },
                });
            }
        }
        put(call, call.word(2), &answer)?;
        return Ok(0.into());
    }
    let permitted = match kind {
        Some(LockKind::Shared) => open.is_readable(),
        Some(LockKind::Exclusive) => open.is_writable(),
        None => true,
    };
    if !permitted {
        return Err(Errno::EBADF.into());
    }
    if locks(&node)?.set(owner, range, kind, None)? {
        return Ok(0.into());
    }
    if !matches!(command, linux::F_SETLKW | linux::F_OFD_SETLKW) {
        return Err(Errno::EAGAIN.into());
    }
    // Whoever waits for a process's lock may be waited for.
    let waiting = match owner {
        LockOwner::Process(pid) => kind.map(|kind| Waiting::begin(pid, &node, range, kind)).transpose()?,
        LockOwner::Description(_) => None,
    };
    let thread = call.thread.clone();
    pending(async move {
        let attempt = |watch: &_| Ok(locks(&node)?.set(owner, range, kind, Some(watch))?.then_some(0));
        let result = thread.wait_until(WaitKind::Interruptible, attempt).await;
        drop(waiting);
        result
    })
}

/// A process that waits for a byte-range lock.
#[derive(Clone)]
struct LockWaiter {
    number: u64,
    pid: i32,
    node: Arc<dyn Inode>,
    range: ByteRange,
    kind: LockKind,
}

/// Everybody who waits for a process's byte-range lock. Taken before the locks of any file.
static LOCK_WAITERS: SpinLock<Vec<LockWaiter>> = SpinLock::new(Vec::new());
static NEXT_WAITER: AtomicU64 = AtomicU64::new(0);
/// How far a chain of processes that wait for one another is followed, as in Linux.
const CHAIN_LIMIT: u32 = 10;

/// An entry of [`LOCK_WAITERS`], until it is dropped.
struct Waiting(u64);

impl Waiting {
    /// Notes that a process is about to wait.
    ///
    /// # Errors
    /// `EDEADLK` (it would wait for itself), `ENOMEM`.
    fn begin(pid: i32, node: &Arc<dyn Inode>, range: ByteRange, kind: LockKind) -> Result<Self, Errno> {
        let number = NEXT_WAITER.fetch_add(1, Ordering::Relaxed);
        let waiter = LockWaiter { number, pid, node: node.clone(), range, kind };
        let mut waiters = LOCK_WAITERS.lock();
        let mut blocker = waiter.blocker();
        for _ in 0..CHAIN_LIMIT {
            let Some(holder) = blocker else { break };
            if holder == pid {
                return Err(Errno::EDEADLK);
            }
            blocker = waiters.iter().find(|other| other.pid == holder).and_then(LockWaiter::blocker);
        }
        fallible::try_push(&mut waiters, waiter)?;
        Ok(Self(number))
    }
}

impl LockWaiter {
    /// The process that holds what is wanted, now.
    fn blocker(&self) -> Option<i32> {
        let locks = self.node.locks(false).ok()??;
        match locks.conflict(LockOwner::Process(self.pid), self.range, self.kind)?.owner {
            LockOwner::Process(pid) => Some(pid),
            LockOwner::Description(_) => None,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut waiters = LOCK_WAITERS.lock();
        let place = waiters.iter().position(|waiter| waiter.number == self.0);
        let old = place.map(|place| waiters.swap_remove(place));
        drop(waiters);
        drop(old);
    }
}

fn range_of(base: u64, start: i64, length: i64) -> Result<ByteRange, Errno> {
    let base = i64::try_from(base).map_err(|_| Errno::EOVERFLOW)?;
    let start = base.checked_add(start).ok_or(Errno::EOVERFLOW)?;
    // A negative length means the bytes before the start.
    let (first, last) = match length {
        0 => (start, None),
        length if length > 0 => (start, Some(start.checked_add(length - 1).ok_or(Errno::EOVERFLOW)?)),
        length => (start.checked_add(length).ok_or(Errno::EINVAL)?, Some(start - 1)),
    };
    let first = u64::try_from(first).map_err(|_| Errno::EINVAL)?;
    let last = last.map_or(Ok(u64::MAX), u64::try_from).map_err(|_| Errno::EINVAL)?;
    Ok(ByteRange { first, last })
}

/// flock(2).
pub fn flock(call: &mut Call<'_>) -> SyscallResult {
    /// Locks that keep others from opening, which Linux once had: nothing happens.
    const LOCK_MANDATORY: u32 = 32;
    let operation = call.uint(1);
    if operation & LOCK_MANDATORY != 0 {
        return Ok(0.into());
    }
    let kind = match operation & !linux::LOCK_NB {
        linux::LOCK_SH => Some(LockKind::Shared),
        linux::LOCK_EX => Some(LockKind::Exclusive),
        linux::LOCK_UN => None,
        _ => return Err(Errno::EINVAL.into()),
    };
    let open = get_file(call, 0)?;
    if open.place.is_none() {
        // Nobody else can open it, so nobody else can have a lock.
        return Ok(0.into());
    }
    let node = node_of(&open)?;
    if locks(&node)?.set_whole(open.id(), kind, None)? {
        return Ok(0.into());
    }
    if operation & linux::LOCK_NB != 0 {
        return Err(Errno::EAGAIN.into());
    }
    let thread = call.thread.clone();
    pending(async move {
        let attempt = |watch: &_| Ok(locks(&node)?.set_whole(open.id(), kind, Some(watch))?.then_some(0));
        thread.wait_until(WaitKind::Interruptible, attempt).await
    })
}
