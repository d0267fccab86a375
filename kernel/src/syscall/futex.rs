//! futex(2) and the calls about the end of a thread.

use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::general as linux;

use crate::call::caller::Caller;
use crate::error::{Errno, TryResult};
use crate::memory::fallible;
use crate::memory::values::read_timespec;
use crate::process::access::{ViewerIds, may_access};
use crate::process::futex::requeue_pi::RequeueWait;
use crate::process::futex::{Words, last_woken, pi, register, requeue_pi};
use crate::process::{futex, table};
use crate::syscall::record::field;
use crate::syscall::{Call, SyscallResult, get_bytes, pending, user};
use crate::time::{Clock, Deadline};

use heddle_kernel_core::fallible::push_reserved;

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
    let arguments = Words { address, other: call.word(4), is_private };
    match command {
        linux::FUTEX_WAIT => wait(call, value, linux::FUTEX_BITSET_MATCH_ANY, Timeout::Relative),
        linux::FUTEX_WAIT_BITSET => wait(call, value, call.uint(5), Timeout::Absolute(clock)),
        linux::FUTEX_WAKE => done(futex::wake(call.thread, &arguments, value, linux::FUTEX_BITSET_MATCH_ANY)),
        linux::FUTEX_WAKE_BITSET => done(futex::wake(call.thread, &arguments, value, call.uint(5))),
        linux::FUTEX_REQUEUE => done(requeue(call, &arguments, None)),
        linux::FUTEX_CMP_REQUEUE => done(requeue(call, &arguments, Some(call.uint(5)))),
        linux::FUTEX_WAKE_OP => done(wake_op(call, &arguments)),
        linux::FUTEX_LOCK_PI => lock_pi(call, is_private, absolute(call, Clock::Realtime)?, true),
        linux::FUTEX_LOCK_PI2 => lock_pi(call, is_private, absolute(call, clock)?, true),
        linux::FUTEX_TRYLOCK_PI => lock_pi(call, is_private, Deadline::NEVER, false),
        linux::FUTEX_UNLOCK_PI => unlock_pi(call, is_private),
        linux::FUTEX_WAIT_REQUEUE_PI => wait_requeue_pi(call, &arguments, absolute(call, clock)?),
        linux::FUTEX_CMP_REQUEUE_PI => done(requeue_to_pi(call, &arguments)),
        _ => Err(Errno::ENOSYS.into()),
    }
}

fn done(result: TryResult<usize>) -> SyscallResult {
    result.map(Into::into)
}

enum Timeout {
    Relative,
    Absolute(Clock),
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
                Timeout::Absolute(clock) => Deadline::at(clock, call.thread.clock_moment(clock, time)),
            }
        }
    };
    wait_until(call.thread, call.word(0), expected, bitset, is_private, deadline)
}

/// The absolute timeout in the fourth argument.
fn absolute(call: &Call<'_>, clock: Clock) -> TryResult<Deadline> {
    Ok(match call.word(3) {
        0 => Deadline::NEVER,
        address => {
            let time = read_timespec(&call.thread.space(), address)?;
            Deadline::at(clock, call.thread.clock_moment(clock, time))
        }
    })
}

fn wait_until(
    caller: &Caller,
    address: usize,
    expected: u32,
    bitset: u32,
    is_private: bool,
    deadline: Deadline,
) -> SyscallResult {
    let registration = register(caller, address, expected, bitset, is_private, None)?;
    let caller = caller.clone();
    pending(async move {
        match registration.wait(&caller, deadline).await {
            Ok(result) => result.map(|()| 0),
            Err(_) if deadline == Deadline::NEVER => Err(Errno::ERESTARTSYS),
            Err(_) => {
                let again = fallible::try_arc(move |call: &mut Call<'_>| {
                    wait_until(call.thread, address, expected, bitset, is_private, deadline)
                });
                // Without memory for that the program is told of the signal, which it expects.
                caller.set_restart(again.map_err(|_| Errno::EINTR)?);
                Err(Errno::ERESTART_RESTARTBLOCK)
            }
        }
    })
}

/// How many waiters to wake and to move; neither is negative.
fn counts(call: &Call<'_>) -> Result<(usize, usize), Errno> {
    let count = |index| usize::try_from(call.int(index)).map_err(|_| Errno::EINVAL);
    Ok((count(2)?, count(3)?))
}

fn requeue(call: &Call<'_>, words: &Words, expected: Option<u32>) -> TryResult<usize> {
    let (space, counts) = (call.thread.space(), counts(call)?);
    let shared = [words.address, words.other].into_iter().filter(|_| !words.is_private);
    for address in shared.filter(|address| address.is_multiple_of(4)) {
        // As for a wake, though here somebody may wait at the first word only.
        user::read_int(&space, address)?;
    }
    futex::requeue(&space, words, counts, expected)
}

fn requeue_to_pi(call: &Call<'_>, words: &Words) -> TryResult<usize> {
    let (wake_count, move_count) = counts(call)?;
    if wake_count != 1 {
        return Err(Errno::EINVAL.into());
    }
    requeue_pi::requeue(&call.thread.space(), words, move_count, call.uint(5))
}

fn wake_op(call: &Call<'_>, words: &Words) -> TryResult<usize> {
    futex::wake_op(&call.thread.space(), words, (call.uint(2), call.uint(3)), call.uint(5))
}

/// `FUTEX_LOCK_PI`, `FUTEX_LOCK_PI2`, `FUTEX_TRYLOCK_PI`.
fn lock_pi(call: &Call<'_>, is_private: bool, deadline: Deadline, may_wait: bool) -> SyscallResult {
    // The thread owns the lock, so it is the thread that has to wait.
    let Caller::Thread(thread) = call.thread else { return Err(Errno::ENOSYS.into()) };
    let Some(wait) = pi::acquire(thread, call.word(0), is_private, may_wait)? else { return Ok(0.into()) };
    let caller = call.thread.clone();
    pending(async move {
        let result = wait.granted(&caller, deadline).await;
        if wait.end() { Ok(0) } else { result.unwrap_or(Err(Errno::ERESTARTNOINTR)) }
    })
}

fn unlock_pi(call: &Call<'_>, is_private: bool) -> SyscallResult {
    pi::unlock(call.thread, &call.thread.space(), call.word(0), is_private)?;
    Ok(0.into())
}

fn wait_requeue_pi(call: &Call<'_>, words: &Words, deadline: Deadline) -> SyscallResult {
    let Caller::Thread(thread) = call.thread else { return Err(Errno::ENOSYS.into()) };
    let wait = RequeueWait::enter(call.thread, thread, words, call.uint(2))?;
    let caller = call.thread.clone();
    pending(async move { wait.granted(&caller, deadline).await })
}

/// futex_waitv(2).
pub fn futex_waitv(call: &mut Call<'_>) -> SyscallResult {
    let (list, count, clock) = (call.word(0), call.uint(1), call.int(4).cast_unsigned());
    if call.uint(2) != 0 || list == 0 || count == 0 || count > linux::FUTEX_WAITV_MAX {
        return Err(Errno::EINVAL.into());
    }
    let space = call.thread.space();
    let deadline = match (call.word(3), clock) {
        (0, _) => Deadline::NEVER,
        (address, linux::CLOCK_REALTIME | linux::CLOCK_MONOTONIC) => {
            let clock = if clock == linux::CLOCK_REALTIME { Clock::Realtime } else { Clock::Monotonic };
            Deadline::at(clock, call.thread.clock_moment(clock, read_timespec(&space, address)?))
        }
        _ => return Err(Errno::EINVAL.into()),
    };
    let bytes = get_bytes(call, list, count as usize * size_of::<linux::futex_waitv>())?;
    let words = bytes.chunks_exact(size_of::<linux::futex_waitv>()).map(waited_word);
    let mut waits = Vec::new();
    waits.try_reserve_exact(count as usize).map_err(|_| Errno::ENOMEM)?;
    for word in words.clone() {
        word?;
    }
    for (address, expected, is_private) in words.flatten() {
        match register(call.thread, address, expected, linux::FUTEX_BITSET_MATCH_ANY, is_private, None) {
            Ok(registration) => push_reserved(&mut waits, registration),
            // A wake that came to one of the words before counts, so that it isn't lost.
            Err(error) => return last_woken(&waits).map_or(Err(error), |index| Ok(index.into())),
        }
    }
    let caller = call.thread.clone();
    pending(async move {
        match futex::wait_for_any(&waits, &caller, deadline).await {
            Ok(result) => result,
            Err(_) => Err(Errno::ERESTARTSYS),
        }
    })
}

/// A word to wait at as the program described it: address, value expected, whether one space only uses it.
fn waited_word(bytes: &[u8]) -> Result<(usize, u32, bool), Errno> {
    let flags: u32 = field!(bytes, linux::futex_waitv, flags);
    let reserved: u32 = field!(bytes, linux::futex_waitv, __reserved);
    let known = linux::FUTEX_32 | linux::FUTEX_PRIVATE_FLAG;
    if flags & !known != 0 || flags & linux::FUTEX_32 == 0 || reserved != 0 {
        return Err(Errno::EINVAL);
    }
    let (value, address): (u64, u64) =
        (field!(bytes, linux::futex_waitv, val), field!(bytes, linux::futex_waitv, uaddr));
    // As Linux, which compares the lower half.
    Ok((address as usize, value as u32, flags & linux::FUTEX_PRIVATE_FLAG != 0))
}

/// set_robust_list(2).
pub fn set_robust_list(call: &mut Call<'_>) -> SyscallResult {
    const HEAD_BYTES: usize = 24;
    if call.word(1) != HEAD_BYTES {
        return Err(Errno::EINVAL.into());
    }
    call.thread.set_robust_list(call.word(0));
    Ok(0.into())
}

/// get_robust_list(2).
pub fn get_robust_list(call: &mut Call<'_>) -> SyscallResult {
    let target = match call.int(0) {
        0 => Arc::clone(call.thread),
        tid => table::thread(call.thread.process.named(tid)).ok_or(Errno::ESRCH)?,
    };
    if !may_access(call.thread, &target, ViewerIds::Real) {
        return Err(Errno::EPERM.into());
    }
    let space = call.thread.space();
    user::write_words(&space, call.word(1), &[target.robust_list() as u64])?;
    user::write_words(&space, call.word(2), &[24])?;
    Ok(0.into())
}

/// set_tid_address(2).
pub fn set_tid_address(call: &mut Call<'_>) -> SyscallResult {
    call.thread.set_clear_child_tid(call.word(0));
    Ok((call.thread.own_tid() as usize).into())
}
