//! Heddle's own calls for executor threads. `heddle_abi::user_sched::calls` says what each does.

use heddle_abi::user_sched::levels;

use crate::process::executor;
use crate::sched;
use crate::syscall::{Call, SyscallResult, SyscallState};

/// `register`.
pub fn register(call: &mut Call<'_>) -> SyscallResult {
    executor::register(call.thread, call.word(0), call.word(1), call.word(2))?;
    Ok(0.into())
}

/// `unregister`.
pub fn unregister(call: &mut Call<'_>) -> SyscallResult {
    executor::leave(call.thread);
    Ok(0.into())
}

/// `interrupt`.
pub fn interrupt(call: &mut Call<'_>) -> SyscallResult {
    let lent = call.word(1).checked_sub(1).map(|level| level.min(63) as u8);
    Ok(usize::from(executor::kick(&call.thread.process, call.word(0), lent)?).into())
}

/// `give_way`.
pub fn give_way(call: &mut Call<'_>) -> SyscallResult {
    executor::refresh(call.thread);
    let priority = call.thread.priority();
    sched::pull(levels::before(priority.level() as u32));
    if sched::should_yield(priority) || !executor::may_enter(call.thread) {
        Ok(SyscallState::Yield)
    } else {
        Ok(0.into())
    }
}

/// `policy`.
pub fn policy(call: &mut Call<'_>) -> SyscallResult {
    Ok((call.thread.process.executors().set_policy(call.uint(0))? as usize).into())
}
