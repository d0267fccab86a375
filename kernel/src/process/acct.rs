//! Process accounting, acct(2): a record of each process that ends is appended to a file.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use heddle_kernel_core::acct::{DUMPED, FORKED, Record, SIGNALED};

use crate::fs::{IoBuffer, OpenFile};
use crate::process::{ExitStatus, Thread};
use crate::sync::SpinLock;
use crate::time::{Clock, NS_PER_SECOND, clock_ticks};

static FILE: SpinLock<Option<Arc<OpenFile>>> = SpinLock::new(None);
/// Whether there is a file, for a look without the lock.
static IS_ON: AtomicBool = AtomicBool::new(false);

const BYTES_PER_KIB: usize = 1024;

/// Whether processes that end are to be recorded.
#[inline]
#[must_use]
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Has records written to another file, which was opened to append, or no more.
pub fn set_file(file: Option<Arc<OpenFile>>) {
    let before = {
        let mut current = FILE.lock();
        IS_ON.store(file.is_some(), Ordering::Relaxed);
        core::mem::replace(&mut *current, file)
    };
    drop(before);
}

/// Records a process of which `thread` was the last, and which had so many bytes mapped. A record for which the file
/// has no room is lost.
pub(super) fn record_end(thread: &Thread, status: ExitStatus, mapped_bytes: usize) {
    let Some(open) = FILE.lock().clone() else { return };
    let process = &thread.process;
    let (credentials, (user, system)) = (thread.credentials(), process.cpu_times());
    let mut flags = if process.has_executed() { 0 } else { FORKED };
    if let ExitStatus::Signaled { core, .. } = status {
        flags |= SIGNALED | if core { DUMPED } else { 0 };
    }
    let elapsed_ns = crate::arch::time::now_ns().saturating_sub(process.start_ns);
    let begin_ns = Clock::Realtime.now_ns().saturating_sub(elapsed_ns);
    let record = Record {
        flags,
        terminal: process.session().terminal().map_or(0, |terminal| terminal.device() as u16),
        exit_code: status.to_wait_status().cast_unsigned(),
        uid: credentials.uid,
        gid: credentials.gid,
        pid: process.pid.cast_unsigned(),
        ppid: process.parent_pid().cast_unsigned(),
        begin_s: (begin_ns / NS_PER_SECOND) as u32,
        elapsed: clock_ticks(elapsed_ns).cast_unsigned(),
        user: clock_ticks(user).cast_unsigned(),
        system: clock_ticks(system).cast_unsigned(),
        memory_kib: (mapped_bytes / BYTES_PER_KIB) as u64,
        minor_faults: process.counts().faults,
        name: thread.name(),
    };
    let _ = open.file.write(&open, &mut IoBuffer::kernel_in(&record.to_bytes()), 0);
}
