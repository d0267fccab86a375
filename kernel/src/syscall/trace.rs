//! `heddle.strace=1`: a line in the log for every system call.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::arch::UserContext;
use crate::error::Errno;
use crate::process::Thread;

static ENABLED: AtomicBool = AtomicBool::new(false);

/// Numbers of unknown calls that were logged already, a bit each.
static LOGGED: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];

/// Switches tracing on.
pub fn enable() {
    ENABLED.store(true, Ordering::Relaxed);
}

/// Writes the line of a call that has ended.
#[inline]
pub fn finished(thread: &Arc<Thread>, context: &UserContext, result: &Result<usize, Errno>) {
    if ENABLED.load(Ordering::Relaxed) {
        write(thread, context, result);
    }
}

#[cold]
fn write(thread: &Arc<Thread>, context: &UserContext, result: &Result<usize, Errno>) {
    let number = context.syscall_number();
    let name = crate::arch::syscall_name(number).unwrap_or("?");
    let [a, b, c, d, e, f] = core::array::from_fn(|index| context.argument(index));
    let tid = thread.tid();
    match result {
        Ok(value) => {
            ::log::info!("strace {tid} {name}({a:#x}, {b:#x}, {c:#x}, {d:#x}, {e:#x}, {f:#x}) = {value:#x}")
        }
        Err(error) => {
            ::log::info!("strace {tid} {name}({a:#x}, {b:#x}, {c:#x}, {d:#x}, {e:#x}, {f:#x}) = {error:?}");
        }
    }
}

/// Notes a call that the kernel doesn't have, once per number.
pub fn unknown(number: usize) {
    let bit = 1 << (number % 64);
    let word = LOGGED.get(number / 64);
    if word.is_none_or(|word| word.fetch_or(bit, Ordering::Relaxed) & bit == 0) && number < LOGGED.len() * 64
    {
        match crate::arch::syscall_name(number) {
            Some(name) => ::log::warn!("unknown system call {name}"),
            None => ::log::warn!("unknown system call {number}"),
        }
    }
}
