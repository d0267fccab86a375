//! membarrier(2): a memory barrier on every processor that runs a thread of the caller's program, or any program.
//!
//! A thread that is to pass a barrier gets a note to look at before it goes back to its program, and is interrupted.
//! A CPU that runs no thread just then has passed one since: a switch is one.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{Ordering, fence};
use linux_raw_sys::general::{membarrier_cmd as command, membarrier_cmd_flag as flag};

use crate::call::caller::Caller;
use crate::error::Errno;
use crate::memory::fallible;
use crate::process::{Thread, table};
use crate::signal::PendingWork;
use crate::syscall::{Call, SyscallResult, pending};
use crate::{arch, sched};

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
        GLOBAL => barrier(call.thread, PendingWork::BARRIER, |_| true),
        GLOBAL_EXPEDITED => {
            // Only programs that have asked for it take part.
            barrier(call.thread, PendingWork::BARRIER, |thread| {
                thread.process.barriers() & REGISTER_GLOBAL != 0
            })
        }
        PRIVATE | CORE | RESTART => {
            let (needed, work) = match wanted {
                PRIVATE => (REGISTER_PRIVATE, PendingWork::BARRIER),
                CORE => (REGISTER_CORE, PendingWork::BARRIER),
                _ => (REGISTER_RESTART, PendingWork::BARRIER | PendingWork::RESTART),
            };
            if process.barriers() & needed == 0 {
                return Err(Errno::EPERM.into());
            }
            let space = call.thread.space();
            // A processor that there is not runs nothing of the program.
            let cpu = (flags == ONE_CPU).then(|| call.uint(2) as usize);
            barrier(call.thread, work, |thread| {
                cpu.is_none_or(|cpu| thread.cpu() == Some(cpu))
                    && thread.try_space().is_some_and(|own| Arc::ptr_eq(&own, &space))
            })
        }
        _ => Err(Errno::EINVAL.into()),
    }
}

/// Completes when each thread that was running, of those that `is_chosen`, has passed a barrier and begun the rest of
/// `work`. The way back to a program also makes the processor forget instructions that it has read ahead.
fn barrier(caller: &Caller, work: PendingWork, is_chosen: impl Fn(&Thread) -> bool) -> SyscallResult {
    fence(Ordering::SeqCst);
    let mut noted: Vec<Arc<Thread>> = Vec::new();
    if arch::cpu::count() > 1 {
        for process in table::each_process() {
            for thread in process.threads() {
                let is_elsewhere = is_running(&thread) && !Arc::ptr_eq(&thread, caller);
                if is_elsewhere && is_chosen(&thread) {
                    fallible::try_push(&mut noted, thread)?;
                }
            }
        }
    }
    if noted.is_empty() {
        return Ok(0.into());
    }
    for thread in &noted {
        thread.add_work(work);
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
