//! process_vm_readv(2), process_vm_writev(2), kcmp(2).

use alloc::sync::Arc;
use alloc::vec::Vec;

use heddle_kernel_core::fallible::push_reserved;

use crate::call::caller::Caller;
use crate::error::{Errno, TryResult};
use crate::memory::space::RemoteAccess;
use crate::memory::{Space, fallible};
use crate::process::access::{ViewerIds, may_access};
use crate::process::{Thread, table};
use crate::sched::Budget;
use crate::syscall::process::ptrace::{read_memory, write_memory};
use crate::syscall::{Call, SyscallResult, pending, user};

/// The most segments of a list.
const SEGMENTS_MAX: usize = 1024;
const PAGE_BYTES: usize = 4096;
/// The end of what addresses a segment may name.
const USER_END: usize = 1 << 47;

/// The memory of one side: segments with their addresses and lengths.
struct Side {
    segments: Vec<(usize, usize)>,
    /// The segment, and how much of it has been moved.
    at: (usize, usize),
}

impl Side {
    /// Reads a list; addresses of the caller itself are checked, as in Linux.
    fn read(space: &Space, address: usize, count: usize, is_own: bool) -> TryResult<Self> {
        if count > SEGMENTS_MAX {
            return Err(Errno::EINVAL.into());
        }
        let mut segments = Vec::new();
        segments.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
        let mut total = 0_usize;
        for index in 0..count {
            let [base, length] = user::read_words(space, address.wrapping_add(index * 16))?;
            let length = isize::try_from(length).map_err(|_| Errno::EINVAL)? as usize;
            let base = base as usize;
            if is_own && base.checked_add(length).is_none_or(|end| end > USER_END) {
                return Err(Errno::EFAULT.into());
            }
            total = total
                .checked_add(length)
                .filter(|&total| isize::try_from(total).is_ok())
                .ok_or(Errno::EINVAL)?;
            push_reserved(&mut segments, (base, length));
        }
        Ok(Self { segments, at: (0, 0) })
    }

    /// Where the next bytes are, and how many up to the segment's end.
    fn next(&mut self) -> Option<(usize, usize)> {
        loop {
            let &(base, length) = self.segments.get(self.at.0)?;
            if self.at.1 < length {
                return Some((base.wrapping_add(self.at.1), length - self.at.1));
            }
            self.at = (self.at.0 + 1, 0);
        }
    }
}

/// process_vm_readv(2).
pub fn process_vm_readv(call: &mut Call<'_>) -> SyscallResult {
    transfer(call, true)
}

/// process_vm_writev(2).
pub fn process_vm_writev(call: &mut Call<'_>) -> SyscallResult {
    transfer(call, false)
}

fn transfer(call: &Call<'_>, is_read: bool) -> SyscallResult {
    if call.word(5) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let space = call.thread.space();
    let local = Side::read(&space, call.word(1), call.word(2), true)?;
    let remote = Side::read(&space, call.word(3), call.word(4), false)?;
    if !local.segments.iter().any(|segment| segment.1 > 0)
        || !remote.segments.iter().any(|segment| segment.1 > 0)
    {
        return Ok(0.into());
    }
    let target = table::thread(call.thread.process.named(call.int(0))).ok_or(Errno::ESRCH)?;
    if !may_access(call.thread, &target, ViewerIds::Real) {
        return Err(Errno::EPERM.into());
    }
    let there = target.try_space().ok_or(Errno::ESRCH)?;
    let caller = call.thread.clone();
    pending(async move { move_all(&caller, &there, local, remote, is_read).await })
}

/// Moves bytes until one side is at its end, or at memory that is not there.
async fn move_all(
    caller: &Caller,
    there: &Arc<Space>,
    mut local: Side,
    mut remote: Side,
    is_read: bool,
) -> Result<usize, Errno> {
    let is_dying = || caller.is_dying();
    let mut bytes = fallible::try_filled(0, PAGE_BYTES)?;
    let (mut done, mut budget) = (0, Budget::new());
    while let (Some((ours, room)), Some((theirs, left))) = (local.next(), remote.next()) {
        if caller.pace(&mut budget, Budget::ATTEMPT).await.is_err() {
            break;
        }
        let length = room.min(left).min(PAGE_BYTES - theirs % PAGE_BYTES).min(PAGE_BYTES - ours % PAGE_BYTES);
        let piece = &mut bytes[..length];
        let moved = if is_read {
            match read_memory(there, theirs, piece, RemoteAccess::Checked, is_dying).await {
                Ok(_) => caller.resolve(|space| space.write_bytes(ours, piece)).await,
                Err(error) => Err(error),
            }
        } else {
            match caller.resolve(|space| space.read_bytes(ours, piece)).await {
                Ok(()) => {
                    write_memory(there, theirs, piece, RemoteAccess::Checked, is_dying).await.map(|_| ())
                }
                Err(error) => Err(error),
            }
        };
        match moved {
            Ok(()) => {}
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
        (local.at.1, remote.at.1) = (local.at.1 + length, remote.at.1 + length);
        done += length;
    }
    Ok(done)
}

/// The order in which kcmp(2) puts two objects: 0 the same, 1 less, 2 greater.
fn compare<T: ?Sized>(first: *const T, second: *const T) -> usize {
    match first.cast::<u8>().cmp(&second.cast()) {
        core::cmp::Ordering::Equal => 0,
        core::cmp::Ordering::Less => 1,
        core::cmp::Ordering::Greater => 2,
    }
}

/// kcmp(2).
pub fn kcmp(call: &mut Call<'_>) -> SyscallResult {
    const FILE: i32 = 0;
    const VM: i32 = 1;
    const FILES: i32 = 2;
    const FS: i32 = 3;
    const SIGHAND: i32 = 4;
    const IO: i32 = 5;
    const SYSVSEM: i32 = 6;
    let find = |number| table::thread(call.thread.process.named(number)).ok_or(Errno::ESRCH);
    let (first, second) = (find(call.int(0))?, find(call.int(1))?);
    let may = |target: &Arc<Thread>| may_access(call.thread, target, ViewerIds::Real);
    if !may(&first) || !may(&second) {
        return Err(Errno::EPERM.into());
    }
    let result = match call.int(2) {
        FILE => {
            let file = |thread: &Thread, number: usize| {
                i32::try_from(number)
                    .map_err(|_| Errno::EBADF)
                    .and_then(|number| thread.descriptors().get(number))
            };
            compare(Arc::as_ptr(&file(&first, call.word(3))?), Arc::as_ptr(&file(&second, call.word(4))?))
        }
        VM => compare(Arc::as_ptr(&first.space()), Arc::as_ptr(&second.space())),
        FILES => compare(Arc::as_ptr(&first.descriptors()), Arc::as_ptr(&second.descriptors())),
        FS => compare(Arc::as_ptr(&first.directories()), Arc::as_ptr(&second.directories())),
        SIGHAND => compare(Arc::as_ptr(&first.process.actions()), Arc::as_ptr(&second.process.actions())),
        // A thread's input and output has a context of its own.
        IO => compare(Arc::as_ptr(&first), Arc::as_ptr(&second)),
        SYSVSEM => {
            let undoes = |thread: &Thread| thread.process.semaphore_undoes().clone();
            match (undoes(&first), undoes(&second)) {
                (None, None) => 0,
                (Some(ours), Some(theirs)) => compare(Arc::as_ptr(&ours), Arc::as_ptr(&theirs)),
                (ours, _) => {
                    if ours.is_none() {
                        1
                    } else {
                        2
                    }
                }
            }
        }
        _ => return Err(Errno::EINVAL.into()),
    };
    Ok(result.into())
}
