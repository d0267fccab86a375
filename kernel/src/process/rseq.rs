//! Restartable sequences, rseq(2): a program's short sections that work on data of the CPU they run on, and start again
//! when they were interrupted in between.
//!
//! A thread registers an area in its memory. The kernel keeps the CPU's number there, and finds there the section that
//! the thread is in. It looks at the area only on the way back to a program that may have lost its CPU between two of
//! its instructions, that runs on another CPU now, or that has a signal's handler or a user interrupt to run first:
//! [`PendingWork::RESTART`] says so. A system call that waits is no such case, since sections contain none.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use heddle_kernel_core::signal::section::{SIGNATURE_BYTES, Section};

use crate::arch::{UserContext, paging};
use crate::error::{Errno, TryError, TryResult};
use crate::memory::user::PageFault;
use crate::memory::{Space, values as user};
use crate::process::Thread;
use crate::signal::PendingWork;
use crate::wait::node::WaitKind;
use crate::{arch, signal};

/// The size of an area, and what it is aligned to. Linux 6.1 knows no larger one.
pub const AREA_BYTES: usize = 32;
/// Where in the area the address of a section's description is. Two numbers of the CPU come before it.
const SECTION_OFFSET: usize = 8;
/// Where in the area the flags are. The words behind them are not the kernel's.
const FLAGS_OFFSET: usize = 16;
/// The number of the CPU for a thread that is not registered (any more).
const CPU_UNINITIALIZED: u32 = u32::MAX;

/// A thread's area.
pub struct RseqRegistration {
    /// 0 for none.
    address: AtomicUsize,
    signature: AtomicU32,
    /// The CPU that the thread ran on last, plus one.
    cpu: AtomicU32,
}

impl RseqRegistration {
    /// None.
    pub const fn new() -> Self {
        Self { address: AtomicUsize::new(0), signature: AtomicU32::new(0), cpu: AtomicU32::new(0) }
    }

    /// The address of the area and the signature, if there is one.
    pub fn get(&self) -> Option<(usize, u32)> {
        let address = self.address.load(Ordering::Relaxed);
        (address != 0).then(|| (address, self.signature.load(Ordering::Relaxed)))
    }

    /// Replaces the area. Only the thread itself does, or who makes it.
    pub fn set(&self, registration: Option<(usize, u32)>) {
        let (address, signature) = registration.unwrap_or((0, 0));
        self.signature.store(signature, Ordering::Relaxed);
        self.address.store(address, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.address.load(Ordering::Relaxed) != 0
    }
}

/// A turn of the thread starts on this CPU.
#[inline]
pub fn turn_starts(thread: &Thread) {
    let cpu = arch::cpu::id() as u32 + 1;
    if thread.restartable.cpu.load(Ordering::Relaxed) != cpu {
        thread.restartable.cpu.store(cpu, Ordering::Relaxed);
        leaves_program(thread);
    }
}

/// The thread may give up its CPU between two instructions of its program.
pub fn leaves_program(thread: &Thread) {
    if thread.restartable.is_set() {
        thread.add_work(PendingWork::RESTART);
    }
}

/// Starts the section again that the thread is in, if it is in one, and says which CPU it runs on.
///
/// # Errors
/// A page that is missing; `EINVAL` for what Linux answers with a segmentation fault.
pub fn attempt(thread: &Thread, space: &Space, context: &mut UserContext) -> TryResult<()> {
    let Some((address, signature)) = thread.restartable.get() else { return Ok(()) };
    let [numbers, description] = user::read_words(space, address)?;
    if description != 0 {
        let words = user::read_words(space, usize::try_from(description).map_err(|_| Errno::EINVAL)?)?;
        let section = Section::new(words, paging::USER_END).map_err(|_| Errno::EINVAL)?;
        if user::read_int(space, section.abort - SIGNATURE_BYTES)? != signature {
            return Err(Errno::EINVAL.into());
        }
        let is_inside = section.contains(context.ip());
        if is_inside && (words[0] >> 32 != 0 || user::read_int(space, address + FLAGS_OFFSET)? != 0) {
            return Err(Errno::EINVAL.into());
        }
        user::write_words(space, address + SECTION_OFFSET, &[0])?;
        if is_inside {
            context.set_ip(section.abort);
        }
    }
    let cpu = arch::cpu::id() as u32;
    if numbers != both(cpu, cpu) {
        write_numbers(space, address, cpu, cpu)?;
    }
    Ok(())
}

/// Does what [`PendingWork::RESTART`] asks for if that needs no page that is missing. `false` if it is still to do.
pub fn try_settle(thread: &Thread, context: &mut UserContext) -> bool {
    thread.remove_work(PendingWork::RESTART);
    let is_settled = attempt(thread, &thread.space(), context).is_ok();
    if !is_settled {
        thread.add_work(PendingWork::RESTART);
    }
    is_settled
}

/// Does what [`PendingWork::RESTART`] asks for. `false` if the thread has a segmentation fault to take instead. Nothing
/// may wait between this and the program.
pub async fn settle(thread: &Arc<Thread>, context: &mut UserContext) -> bool {
    loop {
        thread.remove_work(PendingWork::RESTART);
        match attempt(thread, &thread.space(), context) {
            Ok(()) => return true,
            Err(TryError::Fault(missing)) if thread.resolve_missing(missing).await.is_ok() => {}
            // It dies for another reason, as when memory ran out.
            Err(_) if thread.is_interrupted(WaitKind::Killable) => return false,
            Err(_) => {
                signal::force_segv(thread);
                return false;
            }
        }
    }
}

/// Begins: the area has the CPU's number when the program goes on. A section that an earlier thread has left there is
/// forgotten.
///
/// # Errors
/// A page that is missing; the thread is not registered then.
pub fn register(thread: &Thread, address: usize, signature: u32) -> Result<(), PageFault> {
    let space = thread.space();
    let [_, description] = user::read_words(&space, address)?;
    if description != 0 {
        user::write_words(&space, address + SECTION_OFFSET, &[0])?;
    }
    let cpu = arch::cpu::id() as u32;
    write_numbers(&space, address, cpu, cpu)?;
    thread.restartable.set(Some((address, signature)));
    Ok(())
}

/// Ends: the area says so.
///
/// # Errors
/// A page that is missing; the thread is still registered then.
pub fn unregister(thread: &Thread, address: usize) -> Result<(), PageFault> {
    write_numbers(&thread.space(), address, 0, CPU_UNINITIALIZED)?;
    thread.restartable.set(None);
    Ok(())
}

/// The two numbers as they lie in the area: the one that is always valid to index with, and the one to compare.
const fn both(start: u32, current: u32) -> u64 {
    start as u64 | (current as u64) << 32
}

fn write_numbers(space: &Space, address: usize, start: u32, current: u32) -> Result<(), PageFault> {
    user::write_words(space, address, &[both(start, current)])
}
