//! The end of a filter's decision about a system call, seccomp(2): the call is carried out, has another result, or
//! its thread ends.

use alloc::sync::Arc;
use heddle_kernel_core::seccomp::{ARCHITECTURE, CallData, FilterAction, data_of};
use heddle_kernel_core::signal::{Detail, Information, Signal};
use linux_raw_sys::general as linux;

use crate::arch::UserContext;
use crate::error::Errno;
use crate::process::Thread;
use crate::process::seccomp::listener::FilterListener;
use crate::process::seccomp::{Mode, call_data};
use crate::signal::{fault, trace};

/// `si_code` of a signal that a filter sends.
const SYS_SECCOMP: i32 = 1;
/// The largest error of a call.
const ERRNO_MAX: u16 = 4095;

/// The fate of a call.
pub enum Decision {
    /// It is carried out.
    Proceed,
    /// It is not, and the registers have its result.
    Refused,
    /// The tracer is asked.
    AskTracer(u16),
    /// The filter's listener is asked.
    AskListener(Arc<FilterListener>, CallData),
}

/// Whether strict mode permits the call.
fn is_strict_call(number: usize) -> bool {
    [linux::__NR_read, linux::__NR_write, linux::__NR_exit, linux::__NR_rt_sigreturn]
        .iter()
        .any(|&known| known as usize == number)
}

/// Ends the thread: with its process if it is the only one.
fn end(thread: &Arc<Thread>, information: Information) {
    if thread.process.thread_count() > 1 {
        thread.exit(information.signal.number() as u8);
    } else {
        fault::force(thread, information, true);
    }
}

/// Decides about the call that the registers describe.
pub fn decide(thread: &Arc<Thread>, context: &mut UserContext) -> Decision {
    let number = context.syscall_number();
    let filter = match thread.seccomp() {
        Mode::Disabled => return Decision::Proceed,
        Mode::Strict if is_strict_call(number) => return Decision::Proceed,
        Mode::Strict => {
            end(thread, Information::kernel(Signal::KILL));
            return Decision::Refused;
        }
        Mode::Filters(filter) => filter,
    };
    let call = call_data(context);
    let (answer, giver) = filter.answer(&call);
    let (action, data) = (FilterAction::of(answer), data_of(answer));
    if giver.is_logged() && action != FilterAction::Allow || action == FilterAction::Log {
        // Not by default: a program decides how often.
        ::log::debug!("seccomp: thread {}, call {number}: {action:?}", thread.tid());
    }
    let detail = Detail::Call { address: context.ip(), number: number as i32, architecture: ARCHITECTURE };
    let signal = |errno| Information { signal: Signal::SYS, code: SYS_SECCOMP, errno, detail };
    match action {
        FilterAction::Allow | FilterAction::Log => return Decision::Proceed,
        FilterAction::Trace => return Decision::AskTracer(data),
        FilterAction::Errno => context.set_result(0_usize.wrapping_sub(data.min(ERRNO_MAX).into())),
        FilterAction::Notify => match giver.listener() {
            Some(listener) => return Decision::AskListener(listener.clone(), call),
            None => context.set_result(Errno::ENOSYS.to_result()),
        },
        FilterAction::Trap => {
            context.set_result(number);
            fault::force(thread, signal(i32::from(data)), false);
        }
        FilterAction::KillThread => {
            context.set_result(number);
            end(thread, signal(0));
        }
        FilterAction::KillProcess => {
            context.set_result(number);
            fault::force(thread, signal(0), true);
        }
    }
    Decision::Refused
}

/// Lets the tracer decide, who may change the call, and then the filters about what it has made of it; they cannot
/// ask it again.
pub async fn ask_tracer(thread: &Arc<Thread>, context: &mut UserContext, data: u16) -> Decision {
    if !trace::filtered(thread, context, u64::from(data)).await {
        return Decision::Refused;
    }
    match decide(thread, context) {
        Decision::AskTracer(_) => Decision::Proceed,
        decision => decision,
    }
}

/// The error of a call that a program hands in without waiting, if filters don't permit it. There are no registers
/// that a handler could look at, so what a filter would do but to give an error is `EPERM`.
///
/// # Errors
/// As said.
pub fn check_request(thread: &Thread, number: u32, arguments: [u64; 6]) -> Result<(), Errno> {
    let filter = match thread.seccomp() {
        Mode::Disabled => return Ok(()),
        Mode::Strict => return Err(Errno::EPERM),
        Mode::Filters(filter) => filter,
    };
    let data = CallData { number, instruction_pointer: 0, arguments };
    match FilterAction::of(filter.answer(&data).0) {
        FilterAction::Allow | FilterAction::Log => Ok(()),
        _ => Err(Errno::EPERM),
    }
}
