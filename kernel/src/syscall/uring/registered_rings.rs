//! Rings that a thread has registered for itself (`IORING_REGISTER_RING_FDS`): io_uring_enter(2) finds them by a number
//! of the thread's, without a look into the table of descriptors.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::call::caller::Caller;
use crate::error::{Errno, TryResult};
use crate::fs::{OpenFile, downcast};
use crate::process::Thread;
use crate::sched;
use crate::syscall::fs::get_bytes;
use crate::syscall::uring::ring::Uring;
use crate::syscall::{Call, SyscallResult, pending};

/// `struct io_uring_rsrc_update`: a number, a reserved word, and a descriptor.
const ELEMENT_BYTES: usize = 16;
/// The number that asks for any.
const ANY: u32 = u32::MAX;

/// An element of the list that a program hands in.
struct RingUpdate {
    number: u32,
    reserved: u32,
    descriptor: u64,
}

impl RingUpdate {
    fn of(bytes: &[u8; ELEMENT_BYTES]) -> Self {
        let word = u128::from_ne_bytes(*bytes);
        Self { number: word as u32, reserved: (word >> 32) as u32, descriptor: (word >> 64) as u64 }
    }
}

/// The list of a call.
fn list(call: &Call<'_>, address: usize, count: usize) -> TryResult<Vec<u8>> {
    if count == 0 || count > Thread::RINGS_MAX {
        return Err(Errno::EINVAL.into());
    }
    get_bytes(call, address, count * ELEMENT_BYTES)
}

/// Registers rings. The numbers that were chosen are written into the list.
pub fn register(call: &Call<'_>, address: usize, count: usize) -> SyscallResult {
    let bytes = list(call, address, count)?;
    // The pages of the answers are there before anything happens.
    call.thread.space().probe_write(address, count * ELEMENT_BYTES)?;
    let (mut done, mut failed) = (0, None);
    for element in bytes.as_chunks().0 {
        let at = address + done * ELEMENT_BYTES;
        let entered = enter(call.thread, &RingUpdate::of(element)).and_then(|number| {
            call.thread.store_result(at, &(number as u32).to_ne_bytes()).inspect_err(|_| {
                drop(call.thread.take_ring(number));
            })
        });
        match entered {
            Ok(()) => done += 1,
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    match failed {
        Some(error) if done == 0 => Err(error.into()),
        _ => Ok(done.into()),
    }
}

/// The call is never asynchronous: its thread is not over, and will give the ring up.
fn enter(caller: &Caller, update: &RingUpdate) -> Result<usize, Errno> {
    if update.reserved != 0 {
        return Err(Errno::EINVAL);
    }
    let number = (update.number != ANY).then_some(update.number as usize);
    if number.is_some_and(|number| number >= Thread::RINGS_MAX) {
        return Err(Errno::EINVAL);
    }
    let open = caller.descriptors().get(update.descriptor as i32)?;
    if downcast::<Uring>(&open).is_none() {
        return Err(Errno::EOPNOTSUPP);
    }
    caller.enter_ring(number, open)
}

/// Forgets rings by their numbers.
pub fn unregister(call: &Call<'_>, address: usize, count: usize) -> SyscallResult {
    let bytes = list(call, address, count)?;
    let caller = call.thread.clone();
    pending(async move {
        for (done, element) in bytes.as_chunks().0.iter().enumerate() {
            let update = RingUpdate::of(element);
            let number = update.number as usize;
            if update.reserved != 0 || update.descriptor != 0 || number >= Thread::RINGS_MAX {
                return if done == 0 { Err(Errno::EINVAL) } else { Ok(done) };
            }
            if let Some(open) = caller.take_ring(number) {
                drop(open);
                // It may have been the end of many files.
                sched::yield_now().await;
            }
        }
        Ok(bytes.len() / ELEMENT_BYTES)
    })
}

/// The ring that the calling thread has registered under the number in argument 0.
///
/// # Errors
/// `EINVAL` (there is no such number), `EBADF` (there is no ring).
pub fn get(call: &Call<'_>) -> Result<Arc<OpenFile>, Errno> {
    let number = call.uint(0) as usize;
    if number >= Thread::RINGS_MAX {
        return Err(Errno::EINVAL);
    }
    call.thread.ring(number).ok_or(Errno::EBADF)
}
