//! Signals that a thread's own instruction causes.

use alloc::sync::Arc;
use heddle_kernel_core::signal::{Detail, Information, Signal};

use crate::arch;
use crate::arch::UserContext;
use crate::memory::space::FaultError;
use crate::process::Thread;

/// Sends the signal of an exception.
pub fn post_exception(thread: &Arc<Thread>, context: &UserContext, vector: u8, code: u64) {
    let cause = arch::exception_signal(vector, code);
    post(thread, cause.signal as i32, cause.code, context.ip(), context);
}

/// Sends the signal of an access to memory that can't be resolved.
pub fn post_page_fault(thread: &Arc<Thread>, context: &UserContext, address: usize, failure: FaultError) {
    let Some(cause) = failure.signal() else { return };
    if let FaultError::Key(key) = failure {
        let detail = Detail::Key { address, key };
        force(thread, Information { signal: Signal::SEGV, code: cause.code, errno: 0, detail }, false);
        return;
    }
    post(thread, cause.signal as i32, cause.code, address, context);
}

/// Ends the process, or runs its handler, for a frame that can't be returned through.
pub fn force_segv(thread: &Arc<Thread>) {
    force(thread, Information::kernel(Signal::SEGV), false);
}

/// Sends a synchronous signal with the address it is about.
pub fn post(thread: &Arc<Thread>, signal: i32, code: i32, address: usize, context: &UserContext) {
    let Some(signal) = Signal::new(signal) else { return };
    let address = if code == Information::FROM_KERNEL { 0 } else { address };
    let detail = Detail::Fault { address, trap: context.trap_number() as i32 };
    ::log::debug!("thread {}: {signal:?} at {:#x}, address {address:#x}", thread.tid(), context.ip());
    force(thread, Information { signal, code, errno: 0, detail }, false);
}

/// Sends a signal that cannot be held back: if it is blocked or ignored, or `fatal` is set, the default action is
/// taken, which ends the process.
pub fn force(thread: &Arc<Thread>, information: Information, fatal: bool) {
    let actions = thread.process.actions();
    let mut state = thread.process.signal_state();
    state.force(thread, information, fatal, &mut actions.lock());
}
