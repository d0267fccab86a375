//! membarrier(2): a memory barrier on every processor that runs a thread of the caller's program, or any program.
//!
//! A thread that is to pass a barrier gets a note to look at before it goes back to its program, and is interrupted.
//! Who runs nothing just then has passed one since: a switch is one.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{Ordering, fence};
use linux_raw_sys::general::membarrier_cmd as command;

use crate::arch;
use crate::error::Errno;
use crate::memory::fallible;
use crate::process::signal::Work;
use crate::process::{Thread, table};
use crate::schedule;
use crate::syscall::{Call, Caller, Outcome, pending};

const GLOBAL: u32 = command::MEMBARRIER_CMD_GLOBAL as u32;
const GLOBAL_EXPEDITED: u32 = command::MEMBARRIER_CMD_GLOBAL_EXPEDITED as u32;
const REGISTER_GLOBAL: u32 = command::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED as u32;
const PRIVATE: u32 = command::MEMBARRIER_CMD_PRIVATE_EXPEDITED as u32;
const REGISTER_PRIVATE: u32 = command::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED as u32;
const CORE: u32 = command::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE as u32;
const REGISTER_CORE: u32 = command::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE as u32;
/// What `MEMBARRIER_CMD_QUERY` answers. The commands about restartable sequences need rseq(2).
const OFFERED: u32 =
    GLOBAL | GLOBAL_EXPEDITED | REGISTER_GLOBAL | PRIVATE | REGISTER_PRIVATE | CORE | REGISTER_CORE;

/// membarrier(2).
pub fn membarrier(call: &mut Call<'_>) -> Outcome {
    if call.uint(1) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let registered = &call.thread.process.barriers;
    match call.uint(0) {
        0 => Ok((OFFERED as usize).into()),
        registration @ (REGISTER_GLOBAL | REGISTER_PRIVATE | REGISTER_CORE) => {
            registered.fetch_or(registration, Ordering::Relaxed);
            Ok(0.into())
        }
        GLOBAL => barrier(call.thread, |_| true),
        GLOBAL_EXPEDITED => {
            // Only programs that have asked for it take part.
            barrier(call.thread, |thread| {
                thread.process.barriers.load(Ordering::Relaxed) & REGISTER_GLOBAL != 0
            })
        }
        wanted @ (PRIVATE | CORE) => {
            let needed = if wanted == PRIVATE { REGISTER_PRIVATE } else { REGISTER_CORE };
            if registered.load(Ordering::Relaxed) & needed == 0 {
                return Err(Errno::EPERM.into());
            }
            let space = call.thread.space();
            barrier(call.thread, |thread| thread.try_space().is_some_and(|own| Arc::ptr_eq(&own, &space)))
        }
        _ => Err(Errno::EINVAL.into()),
    }
}

/// Completes when each thread that was running, of those that `is_chosen`, has passed a barrier. The way back to a
/// program also makes the processor forget instructions that it has read ahead.
fn barrier(caller: &Caller, is_chosen: impl Fn(&Thread) -> bool) -> Outcome {
    fence(Ordering::SeqCst);
    let mut noted: Vec<Arc<Thread>> = Vec::new();
    if arch::cpu::count() > 1 {
        let mut next_process = table::next_process(0);
        while let Some(process) = next_process {
            let mut next = process.next_thread(0);
            while let Some(thread) = next {
                let is_elsewhere = is_running(&thread) && !Arc::ptr_eq(&thread, caller);
                if is_elsewhere && is_chosen(&thread) {
                    fallible::try_push(&mut noted, thread.clone())?;
                }
                next = process.next_thread(thread.tid() + 1);
            }
            next_process = table::next_process(process.pid + 1);
        }
    }
    if noted.is_empty() {
        return Ok(0.into());
    }
    for thread in &noted {
        thread.add_work(Work::BARRIER);
        thread.kick();
    }
    pending(async move {
        while noted.iter().any(|thread| is_running(thread) && thread.work().contains(Work::BARRIER)) {
            schedule::yield_now().await;
        }
        fence(Ordering::SeqCst);
        Ok(0)
    })
}

fn is_running(thread: &Thread) -> bool {
    thread.cpu.load(Ordering::SeqCst) != 0
}
