//! membarrier(2): a memory barrier on every processor that runs a thread of the caller's program, or any program.
//!
//! Barriers go the way of translation flushes ([`crate::memory::shootdown`]): a CPU passes one by leaving its program,
//! so those that run a program of the address space are interrupted, and the caller waits until they have. No thread is
//! looked for. Only the command that restarts sequences is about threads, those of the caller's process.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{Ordering, fence};
use linux_raw_sys::general::{membarrier_cmd as command, membarrier_cmd_flag as flag};

use crate::call::caller::Caller;
use crate::error::Errno;
use crate::memory::fallible;
use crate::memory::shootdown::PendingBarrier;
use crate::process::Thread;
use crate::sched;
use crate::signal::PendingWork;
use crate::syscall::{Call, SyscallResult, pending};

const GLOBAL: u32 = command::MEMBARRIER_CMD_GLOBAL as u32;
const GLOBAL_EXPEDITED: u32 = command::MEMBARRIER_CMD_GLOBAL_EXPEDITED as u32;
const REGISTER_GLOBAL: u32 = command::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED as u32;
const PRIVATE: u32 = command::MEMBARRIER_CMD_PRIVATE_EXPEDITED as u32;
const REGISTER_PRIVATE: u32 = command::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED as u32;
const CORE: u32 = command::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE as u32;
const REGISTER_CORE: u32 = command::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE as u32;
const RESTART: u32 = command::MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ as u32;
const REGISTER_RESTART: u32 = command::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ as u32;
/// The commands that `MEMBARRIER_CMD_QUERY` reports.
const OFFERED: u32 = GLOBAL
    | GLOBAL_EXPEDITED
    | REGISTER_GLOBAL
    | PRIVATE
    | REGISTER_PRIVATE
    | CORE
    | REGISTER_CORE
    | RESTART
    | REGISTER_RESTART;
/// Only the processor that the third argument names, for the command that restarts sequences.
const ONE_CPU: u32 = flag::MEMBARRIER_CMD_FLAG_CPU as u32;

/// membarrier(2).
pub fn membarrier(call: &mut Call<'_>) -> SyscallResult {
    let (wanted, flags) = (call.uint(0), call.uint(1));
    if flags != 0 && (wanted != RESTART || flags != ONE_CPU) {
        return Err(Errno::EINVAL.into());
    }
    let process = &call.thread.process;
    match wanted {
        0 => Ok((OFFERED as usize).into()),
        registration @ (REGISTER_GLOBAL | REGISTER_PRIVATE | REGISTER_CORE | REGISTER_RESTART) => {
            process.add_barriers(registration);
            Ok(0.into())
        }
        // As in Linux: programs that have not asked for expedited barriers pass one with the others.
        GLOBAL | GLOBAL_EXPEDITED => barrier(|_| true),
        PRIVATE | CORE => {
            let needed = if wanted == PRIVATE { REGISTER_PRIVATE } else { REGISTER_CORE };
            if process.barriers() & needed == 0 {
                return Err(Errno::EPERM.into());
            }
            let space = call.thread.space();
            barrier(|identity| space.may_have_identity(identity))
        }
        RESTART => {
            if process.barriers() & REGISTER_RESTART == 0 {
                return Err(Errno::EPERM.into());
            }
            // A processor that there is not runs nothing of the program.
            restart_sequences(call.thread, (flags == ONE_CPU).then(|| call.uint(2) as usize))
        }
        _ => Err(Errno::EINVAL.into()),
    }
}

/// Completes when every other CPU that runs a program of an address space which `is_chosen` names has passed a barrier.
/// The way back to a program also makes the processor forget instructions that it has read ahead.
fn barrier(is_chosen: impl Fn(usize) -> bool) -> SyscallResult {
    fence(Ordering::SeqCst);
    match PendingBarrier::post(is_chosen) {
        None => Ok(0.into()),
        Some(posted) => pending(async move {
            posted.passed().await;
            fence(Ordering::SeqCst);
            Ok(0)
        }),
    }
}

/// Completes when each of the program's threads that was running, on `cpu` or anywhere, has begun to restart its
/// sequence.
fn restart_sequences(caller: &Caller, cpu: Option<usize>) -> SyscallResult {
    fence(Ordering::SeqCst);
    let mut noted: Vec<Arc<Thread>> = Vec::new();
    for thread in caller.process.threads() {
        let is_chosen = match (thread.cpu(), cpu) {
            (Some(_), None) => true,
            (running, chosen) => running.is_some() && running == chosen,
        };
        if is_chosen && !Arc::ptr_eq(&thread, caller) {
            fallible::try_push(&mut noted, thread)?;
        }
    }
    if noted.is_empty() {
        return Ok(0.into());
    }
    for thread in &noted {
        thread.add_work(PendingWork::BARRIER | PendingWork::RESTART);
        thread.kick();
    }
    pending(async move {
        while noted.iter().any(|thread| is_running(thread) && thread.work().contains(PendingWork::BARRIER)) {
            sched::yield_now().await;
        }
        fence(Ordering::SeqCst);
        Ok(0)
    })
}

fn is_running(thread: &Thread) -> bool {
    thread.cpu().is_some()
}
