//! System calls that a program takes itself, `PR_SET_SYSCALL_USER_DISPATCH`: a call from outside of some instructions
//! becomes a `SIGSYS`, unless a byte of the program says otherwise. Programs that run those of another system use that.

use alloc::sync::Arc;

use heddle_kernel_core::seccomp::ARCHITECTURE;
use heddle_kernel_core::signal::{Detail, Information, Signal};
use linux_raw_sys::{general as linux, prctl};

use crate::arch::UserContext;
use crate::process::Thread;
use crate::signal::fault;

/// Whether a call is not the kernel's: a signal is on its way then, and the registers are as before the call.
pub async fn is_taken(thread: &Arc<Thread>, context: &mut UserContext) -> bool {
    let Some(dispatch) = thread.user_dispatch() else { return false };
    if context.ip().wrapping_sub(dispatch.first) < dispatch.length {
        return false;
    }
    let number = context.syscall_number();
    if dispatch.selector != 0 {
        let mut says = [0];
        let read = thread.resolve(|space| space.read_bytes(dispatch.selector, &mut says)).await;
        let fatal = match (read, u32::from(says[0])) {
            (Ok(()), prctl::PR_SYS_DISPATCH_OFF) => return false,
            (Ok(()), prctl::PR_SYS_DISPATCH_ON) => None,
            (Ok(()), _) => Some(Signal::SYS),
            (Err(_), _) => Some(Signal::SEGV),
        };
        if let Some(signal) = fatal {
            fault::force(thread, Information::kernel(signal), true);
            return true;
        }
    }
    context.set_result(number);
    let detail = Detail::Call { address: context.ip(), number: number as i32, architecture: ARCHITECTURE };
    let code = linux::SYS_USER_DISPATCH as i32;
    fault::force(thread, Information { signal: Signal::SYS, code, errno: 0, detail }, false);
    true
}
