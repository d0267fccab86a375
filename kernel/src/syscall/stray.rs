//! System calls that a machine delivers as faults at the kernel's entry: see [`crate::arch::stray`].

use crate::arch::paging::USER_END;
use crate::arch::{Trap, UserContext};
use crate::call::caller::Caller;
use crate::memory::shootdown::ProgramRuns;
use crate::memory::space::RemoteAccess;
use crate::process::Thread;
use crate::{arch, sched, user_sched};

/// Calls that may be interrupted before one tells.
const TRIES_MAX: usize = 64;

/// The trap, or the system call that a fault at the kernel's entry stands for.
#[inline]
pub fn adopted(thread: &Thread, context: &mut UserContext, trap: Trap) -> Trap {
    match trap {
        Trap::PageFault { address, .. } if address >= USER_END => adopt(thread, context, trap, address),
        Trap::CallInstruction => note_instruction(thread, context, trap),
        trap => trap,
    }
}

/// A debugger may have read the text that would be patched, and write back what it has read.
#[cold]
fn note_instruction(thread: &Thread, context: &UserContext, trap: Trap) -> Trap {
    if !thread.is_traced() {
        thread.space().note_call(context.ip(), context.syscall_number() as u32);
    }
    trap
}

#[cold]
fn adopt(thread: &Thread, context: &mut UserContext, trap: Trap, address: usize) -> Trap {
    let Some(place) = context.strayed_call(address) else { return trap };
    let mut code = [0; arch::CALL_INSTRUCTION.len()];
    let space = thread.space();
    // The program has not executed bytes that it cannot execute, and need not have the right to read them. They may lie
    // in two pages.
    let mut read = |index: usize| {
        space.try_read_remote(place + index, &mut code[index..=index], RemoteAccess::Forced).is_ok()
    };
    let is_read = (0..arch::CALL_INSTRUCTION.len()).all(&mut read);
    if !is_read || !space.is_executable(place, code.len()) || code != arch::CALL_INSTRUCTION {
        return trap;
    }
    context.adopt_call();
    Trap::SystemCall
}

/// Finds out how this machine delivers system calls, by one that the thread makes before its program's first
/// instruction and that is not carried out: a `syscall` of the vDSO.
pub async fn find_out(thread: &Thread, caller: &Caller) {
    let Some(place) = user_sched::call_instruction(&thread.space()) else { return };
    let mut code = [0; arch::CALL_INSTRUCTION.len()];
    for _ in 0..TRIES_MAX {
        if caller.resolve(|space| space.read_bytes(place, &mut code)).await.is_err() {
            return;
        }
        if !sched::enter_program(thread.priority()) {
            sched::yield_now().await;
            continue;
        }
        let mut context = UserContext::new_user();
        context.set_ip(place);
        thread.activate_space();
        thread.load_float();
        let trap = arch::enter_user::<ProgramRuns>(&mut context);
        sched::leave_program();
        let has_strayed = match trap {
            Trap::SystemCall | Trap::CallInstruction => false,
            Trap::PageFault { address, .. } if context.is_at_entry(address) => true,
            Trap::PageFault { .. } | Trap::Interrupt => continue,
            Trap::Exception { .. } => return,
        };
        if has_strayed {
            ::log::info!("system calls fault at the kernel's entry here, and are taken for calls");
        }
        arch::stray::settle(has_strayed);
        return;
    }
}
