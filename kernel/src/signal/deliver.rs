//! Signal delivery: the decisions of a thread before it goes back to user mode.

use alloc::sync::Arc;
use core::sync::atomic::{Ordering, fence};
use heddle_kernel_core::protection_key::KeyRights;
use heddle_kernel_core::signal::{Action, AlternateStack, DefaultAction, Information, Signal, SignalSet};
use heddle_kernel_core::signal_state::Delivery;
use linux_raw_sys::general as linux;

use crate::arch::float::with_key_rights;
use crate::arch::{FloatState, UserContext, protection_key, signal as frame};
use crate::error::{Errno, TryError, TryResult};
use crate::memory::Space;
use crate::process::control_group::freeze;
use crate::process::{ExitStatus, Thread, executor, rseq};
use crate::sched;
use crate::signal::{PendingWork, fault, stop, trace};
use crate::wait::node::WaitKind;

/// How a thread goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Back to user mode.
    Resume,
    /// The thread ends.
    Exit,
    /// The thread ends with its process, by this signal, and leaves a core dump first.
    Dump(Signal),
}

/// Does everything that [`PendingWork`] asks for. `interrupted` is the restart code of the call that just ended with
/// one.
pub async fn before_user(
    thread: &Arc<Thread>,
    context: &mut UserContext,
    interrupted: Option<Errno>,
) -> Next {
    let mut interrupted = interrupted;
    loop {
        let next = carry_out(thread, context, interrupted.take()).await;
        if next != Next::Resume {
            return next;
        }
        if !thread.work().contains(PendingWork::RESTART) || rseq::settle(thread, context).await {
            return Next::Resume;
        }
    }
}

/// All work but [`PendingWork::RESTART`], which comes last.
async fn carry_out(thread: &Arc<Thread>, context: &mut UserContext, mut interrupted: Option<Errno>) -> Next {
    loop {
        let work = thread.work();
        if work.contains(PendingWork::DIE) {
            return Next::Exit;
        }
        if work.contains(PendingWork::BARRIER) {
            fence(Ordering::SeqCst);
            thread.remove_work(PendingWork::BARRIER);
        }
        if work.contains(PendingWork::STORE) {
            thread.remove_work(PendingWork::STORE);
            rseq::leaves_program(thread);
            if let Err(error) = thread
                .deferred_results()
                .store(&thread.space(), || thread.is_interrupted(WaitKind::Killable))
                .await
            {
                context.set_result(error.to_result());
            }
        }
        if work.contains(PendingWork::ISOLATE) {
            rseq::leaves_program(thread);
            thread.remove_work(PendingWork::ISOLATE);
            thread.space().renew().await;
        }
        if work.contains(PendingWork::AFFINITY) {
            thread.remove_work(PendingWork::AFFINITY);
            rseq::leaves_program(thread);
            let affinity = thread.scheduling().affinity;
            sched::move_to(affinity).await;
        }
        if work.contains(PendingWork::CALL) {
            interrupted = trace::call_ends(thread, context).await;
            continue;
        }
        if work.contains(PendingWork::TRACED) && work.intersects(PendingWork::TRAP | PendingWork::STOP) {
            trace::trap(thread, context).await;
            interrupted = trace::interruption(context);
            continue;
        }
        if work.contains(PendingWork::STOP) {
            rseq::leaves_program(thread);
            stop::wait(thread).await;
            continue;
        }
        if work.contains(PendingWork::FROZEN) {
            rseq::leaves_program(thread);
            freeze::wait(thread).await;
            continue;
        }
        if !work.contains(PendingWork::SIGNAL) {
            break;
        }
        let Some(mut delivery) = take(thread) else { continue };
        delivery.information = crate::process::timers::delivered(&thread.process, delivery.information);
        if delivery.is_traced {
            let passed = trace::deliver(thread, context, delivery).await;
            interrupted = trace::interruption(context);
            let Some(passed) = passed else { continue };
            delivery = passed;
        }
        crate::process::logged_call::log_signal(thread, &delivery.information);
        let Delivery { information, action, .. } = delivery;
        if action.has_handler() {
            if let Some(code) = interrupted.take() {
                resolve_for_handler(context, code, &action);
            }
            call_handler(thread, context, &information, &action).await;
            if work.contains(PendingWork::TRACED) {
                trace::step_into_handler(thread, context).await;
            }
        } else if leaves_dump(thread, information.signal) {
            // The dump tells of it.
            thread.requeue(information);
            return Next::Dump(information.signal);
        } else {
            carry_out_default(thread, &delivery);
        }
    }
    if let Some(code) = interrupted {
        restart(context, code);
    }
    thread.restore_mask();
    if thread.work().contains(PendingWork::TRACED) {
        trace::arm(thread, context);
    }
    if thread.work().contains(PendingWork::INTERRUPT) {
        thread.remove_work(PendingWork::INTERRUPT);
        executor::enter_handler(thread, context).await;
    }
    Next::Resume
}

/// Takes the next signal with its action; ignored ones are dropped on the way. `None` clears the note that there is
/// one.
fn take(thread: &Arc<Thread>) -> Option<Delivery> {
    let actions = thread.process.actions();
    let mut state = thread.process.signal_state();
    state.deliver(thread, &mut actions.lock())
}

/// Whether the default action of a signal is to write a core dump.
fn leaves_dump(thread: &Thread, signal: Signal) -> bool {
    DefaultAction::of(signal) == DefaultAction::Core && thread.process.dumps_core()
}

fn carry_out_default(thread: &Arc<Thread>, delivery: &Delivery) {
    let signal = delivery.information.signal;
    match DefaultAction::of(signal) {
        DefaultAction::Ignore | DefaultAction::Continue => {}
        DefaultAction::Stop => {
            if signal == Signal::STOP || !crate::process::job::is_orphaned(&thread.process) {
                thread.process.signal_state().begin_stop(delivery.token, signal);
            }
        }
        DefaultAction::Terminate | DefaultAction::Core => {
            thread.process.signal_state().begin_exit(ExitStatus::Signaled { signal, core: false });
        }
    }
}

fn resolve_for_handler(context: &mut UserContext, code: Errno, action: &Action) {
    let restarts =
        code == Errno::ERESTARTNOINTR || code == Errno::ERESTARTSYS && action.flags.has(linux::SA_RESTART);
    if restarts {
        context.restart_syscall();
    } else {
        context.set_result(Errno::EINTR.to_result());
    }
}

fn restart(context: &mut UserContext, code: Errno) {
    context.restart_syscall();
    if code == Errno::ERESTART_RESTARTBLOCK {
        context.set_result(linux::__NR_restart_syscall as usize);
    }
}

/// Puts the handler's frame on the stack and makes the handler the next thing to run; a stack that can't take it is a
/// segmentation fault.
async fn call_handler(
    thread: &Arc<Thread>,
    context: &mut UserContext,
    information: &Information,
    action: &Action,
) {
    loop {
        match try_call_handler(thread, context, information, action) {
            Ok(()) => break,
            Err(TryError::Fault(missing)) if thread.resolve_missing(missing).await.is_ok() => {}
            Err(_) if thread.is_interrupted(WaitKind::Killable) => return,
            Err(_) => {
                fault::force(thread, Information::kernel(Signal::SEGV), information.signal == Signal::SEGV);
                return;
            }
        }
    }
    executor::mask(thread);
    // The frame has it.
    let _ = thread.forget_saved_mask();
    let own = if action.flags.has(linux::SA_NODEFER) {
        SignalSet::EMPTY
    } else {
        SignalSet::of(&[information.signal])
    };
    thread.set_blocked(thread.blocked().union(action.mask).union(own));
}

fn try_call_handler(
    thread: &Arc<Thread>,
    context: &mut UserContext,
    information: &Information,
    action: &Action,
) -> TryResult<()> {
    let space = thread.space();
    // The signal frame keeps the address at which the section starts again.
    thread.remove_work(PendingWork::RESTART);
    rseq::attempt(thread, &space, context)?;
    thread.with_float(|float| put_frame(thread, &space, context, information, action, float))
}

fn put_frame(
    thread: &Arc<Thread>,
    space: &Space,
    context: &mut UserContext,
    information: &Information,
    action: &Action,
    float: &mut FloatState,
) -> TryResult<()> {
    let mask = thread.mask_for_frame();
    let stack = thread.alternate_stack();
    let top = if action.flags.has(linux::SA_ONSTACK) { stack.top_for(context.sp()) } else { None };
    float.save();
    let is_interruptible = executor::is_unmasked(thread);
    let rights = protection_key::rights();
    let has_key_rights = protection_key::are_on() && (rights != KeyRights::INITIAL || space.has_keys());
    let with_rights = if has_key_rights { Some(with_key_rights(float.as_bytes(), rights)?) } else { None };
    let float_bytes = with_rights.as_deref().unwrap_or_else(|| float.as_bytes());
    let setup = frame::Setup {
        information,
        action,
        mask,
        is_interruptible,
        stack: &stack,
        top,
        float: float_bytes,
        has_key_rights,
    };
    let call = frame::prepare(context, &setup).ok_or(Errno::EFAULT)?;
    let is_on_alternate = top.is_some() || stack.contains(context.sp());
    if is_on_alternate && !stack.holds(call.address) {
        // It would overflow. Where the stack ends is where the next handler would start at its top again, for ever.
        return Err(Errno::EFAULT.into());
    }
    space.write_bytes(call.float_address, &call.float_head)?;
    space.write_bytes(call.float_address + call.float_head.len(), &float_bytes[call.float_head.len()..])?;
    space.write_bytes(call.float_address + float_bytes.len(), call.float_tail())?;
    space.write(call.address, &call.words)?;
    float.reset();
    if has_key_rights {
        protection_key::set_rights(space.first_rights());
    }
    if top.is_some() && stack.disarms() {
        thread.set_alternate_stack(AlternateStack::default());
    }
    call.enter(context, action.handler, information.signal);
    Ok(())
}
