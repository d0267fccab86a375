//! The life of a thread: one coroutine from its first instruction to its end.

use alloc::sync::Arc;
use core::pin::pin;
use core::sync::atomic::Ordering;
use core::task::Poll;

use super::Thread;
use super::signal::{self, Next, Work};
use crate::arch::{self, Trap, UserContext};
use crate::error::{Errno, Halt};
use crate::memory::space::Access;
use crate::schedule;
use crate::syscall::{self, Started};

/// Starts the thread's coroutine with the given registers.
///
/// # Errors
/// `ENOMEM`.
pub(super) fn spawn(thread: &Arc<Thread>, context: UserContext) -> Result<(), Errno> {
    let priority = thread.standing.lock().priority;
    let affinity = thread.scheduling.lock().affinity;
    let task = schedule::spawn_on(priority, affinity, run(thread.clone(), context))?;
    thread.task.call_once(|| task);
    Ok(())
}

/// Polls the thread's life and does what belongs to each switch to it and away from it.
async fn run(thread: Arc<Thread>, context: UserContext) {
    let mut life = pin!(live(thread.clone(), context));
    core::future::poll_fn(|poll_context| {
        thread.waker.call_once(|| poll_context.waker().clone());
        thread.cpu.store(arch::cpu::id() as u32 + 1, Ordering::Release);
        let start_ns = crate::time::now_ns();
        let parameters = *thread.scheduling.lock();
        let changed = thread.standing.lock().start(&parameters, start_ns);
        thread.apply_priority(changed);
        let user_before = thread.user_ns.load(Ordering::Relaxed);
        let result = life.as_mut().poll(poll_context);
        let now_ns = crate::time::now_ns();
        let user = thread.user_ns.load(Ordering::Relaxed) - user_before;
        thread.system_ns.fetch_add((now_ns - start_ns).saturating_sub(user), Ordering::Relaxed);
        if result.is_pending() {
            // The thread may go on elsewhere.
            thread.float.lock().save();
            thread.switches.fetch_add(1, Ordering::Relaxed);
            let parameters = *thread.scheduling.lock();
            let changed = thread.standing.lock().end(&parameters, now_ns);
            thread.apply_priority(changed);
        }
        thread.cpu.store(0, Ordering::Release);
        match result {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
}

async fn live(thread: Arc<Thread>, mut context: UserContext) {
    let mut interrupted = None;
    loop {
        if interrupted.is_some() || !thread.work().is_empty() {
            if thread.work().contains(Work::CONTEXT)
                && let Some(replaced) = thread.take_context()
            {
                context = *replaced;
                interrupted = None;
            }
            if signal::before_user(&thread, &mut context, interrupted.take()).await == Next::Exit {
                break;
            }
        }
        let (priority, until_ns) = {
            let standing = thread.standing.lock();
            (standing.priority, standing.until_ns)
        };
        if !schedule::enter_program(priority) {
            thread.standing.lock().give_way();
            schedule::preempted().await;
            continue;
        }
        arch::time::set_timer(until_ns);
        let trap = enter(&thread, &mut context);
        schedule::leave_program();
        match trap {
            Trap::SystemCall => interrupted = system_call(&thread, &mut context).await,
            Trap::PageFault { address, write, execute, .. } => {
                resolve_fault(&thread, &context, address, Access { write, execute }).await;
            }
            Trap::Exception { vector, code } => signal::post_exception(&thread, &context, vector, code),
            Trap::Interrupt => {
                if crate::time::now_ns() >= until_ns {
                    thread.standing.lock().give_way();
                    schedule::yield_now().await;
                }
            }
        }
    }
    super::exit::end_thread(&thread).await;
}

/// Runs the program until its next trap, in its address space and with its floating-point registers.
fn enter(thread: &Arc<Thread>, context: &mut UserContext) -> Trap {
    thread.activate_space();
    thread.float.lock().restore();
    let start_ns = crate::time::now_ns();
    let trap = arch::enter_user(context);
    let spent = crate::time::now_ns().saturating_sub(start_ns);
    thread.user_ns.fetch_add(spent, Ordering::Relaxed);
    trap
}

/// Carries out a system call. Returns the restart code if a signal interrupted it.
async fn system_call(thread: &Arc<Thread>, context: &mut UserContext) -> Option<Errno> {
    let result = loop {
        match syscall::start(thread, context) {
            Ok(Started::Done(value)) => break Ok(value),
            Ok(Started::Pending(future)) => break future.await,
            Ok(Started::GiveWay) => {
                thread.standing.lock().give_way();
                schedule::yield_now().await;
                break Ok(0);
            }
            Err(Halt::Error(error)) => break Err(error),
            // Only files that wait say so, and they are driven by `Thread::retry`.
            Err(Halt::Block) => break Err(Errno::EAGAIN),
            Err(Halt::Fault(fault)) => {
                if let Err(error) = thread.space().fault_in(fault).await {
                    break Err(error);
                }
            }
        }
    };
    syscall::trace::finished(thread, context, &result);
    let mut restart = None;
    match result {
        Ok(value) => context.set_result(value),
        Err(error) => {
            context.set_result(error.to_result());
            if error.is_restart() {
                restart = Some(error);
            }
            if error.is_restart() || error == Errno::EINTR {
                return restart;
            }
        }
    }
    signal::restore_mask(thread);
    None
}

async fn resolve_fault(thread: &Arc<Thread>, context: &UserContext, address: usize, access: Access) {
    if let Err(error) = thread.space().fault(address, access).await {
        signal::post_page_fault(thread, context, address, error);
    }
}
