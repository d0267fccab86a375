//! The life of a thread: one coroutine from its first instruction to its end.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::pin::{Pin, pin};
use core::task::{Context as TaskContext, Poll};

use crate::arch::paging::PAGE_SIZE;
use crate::arch::{FloatState, Trap, UserContext};
use crate::call::SyscallState;
use crate::call::caller::Caller;
use crate::error::{Errno, TryError};
use crate::memory::oom::Shortage;
use crate::memory::shootdown::ProgramRuns;
use crate::memory::space::{FaultAccess, FaultError};
use crate::memory::user::PageFault;
use crate::process::oom::ExitReserve;
use crate::process::{Thread, cpu_time, dump, executor, rseq};
use crate::sched::Budget;
use crate::signal::filter::Decision;
use crate::signal::{Next, PendingWork};
use crate::syscall::process::core_dump;
use crate::syscall::stray;
use crate::wait::node::WaitKind;
use crate::{arch, sched, signal, syscall};

/// Starts the thread's coroutine with the given registers.
///
/// # Errors
/// `ENOMEM`.
pub fn spawn(thread: &Arc<Thread>, context: UserContext) -> Result<(), Errno> {
    let (priority, affinity) =
        thread.look_at_entity(|entity| (entity.priority, entity.parameters().affinity));
    let task = sched::spawn_on(priority, affinity, checked(run(thread.clone(), context)))?;
    thread.set_task(task);
    Ok(())
}

/// The most bytes of a thread's coroutine: what a thread costs besides its own pages. A larger future is boxed while
/// it is needed.
const FUTURE_BYTES_MAX: usize = 1024;

/// Threads whose calls somebody looks at before they are carried out.
const WATCHED: PendingWork = PendingWork::TRACED.union(PendingWork::LOGGED).union(PendingWork::LASTING);

/// Makes the build fail if the future is larger than a thread's may be.
const fn checked<F>(future: F) -> F {
    const { assert!(size_of::<F>() < FUTURE_BYTES_MAX, "a thread's future is too large") };
    future
}

/// The boxes that are made here at a time, for whose memory the thread waits: see [`boxed`].
const BOXES: usize = 1;

/// Boxes a future, directly after [`wait_for_memory`] or [`wait_for_exit_memory`].
#[expect(clippy::disallowed_methods, reason = "a frame for it is reserved")]
fn boxed<F: Future>(future: F) -> Pin<Box<F>> {
    const { assert!(size_of::<F>() <= PAGE_SIZE, "a frame holds it") };
    Box::pin(future)
}

/// Waits until there is memory to box a future in.
///
/// # Errors
/// `ENOMEM`: the thread is to die.
async fn wait_for_memory(thread: &Thread) -> Result<(), Errno> {
    let mut shortage = Shortage::default();
    while crate::memory::heap::reserve(BOXES).is_err() {
        rseq::leaves_program(thread);
        shortage.make_room(|| thread.is_interrupted(WaitKind::Killable)).await?;
    }
    Ok(())
}

/// Waits until there is memory to box the thread's end in, its own or that of the reserve. Where even that is in use,
/// a thread whose process ends gives back what it has: those that the reserve is for may wait for it. Then others
/// do not learn of its end by words in its memory, so a thread of a process that goes on keeps it.
async fn wait_for_exit_memory(thread: &Thread) -> Option<ExitReserve> {
    let mut shortage = Shortage::default();
    loop {
        if crate::memory::heap::reserve(BOXES).is_ok() {
            return None;
        }
        if let Some(reserve) = ExitReserve::take()
            && crate::memory::heap::reserve_urgently(BOXES).is_ok()
        {
            return Some(reserve);
        }
        if thread.try_space().is_some() && thread.process.signal_state().ending().is_some() {
            thread.leave_space();
            thread.leave_descriptors(thread.process.thread_count() == 1).await;
            continue;
        }
        // Nothing ends this wait early; the threads that have the reserve give it back.
        let _ = shortage.make_room(|| false).await;
    }
}

/// Polls the thread's life and does what belongs to each switch to it and away from it.
async fn run(thread: Arc<Thread>, mut context: UserContext) {
    let mut life = pin!(live(thread.clone(), &mut context));
    core::future::poll_fn(|poll_context| {
        thread.arrive(poll_context.waker());
        rseq::turn_starts(&thread);
        let start_ns = crate::arch::time::now_ns();
        let has_time = thread.start_turn(start_ns);
        thread.start_meter(start_ns);
        if thread.process.alarms().is_armed() {
            cpu_time::plan(&thread);
        }
        let is_watched = signal::trace::watch(&thread);
        let result =
            if has_time { life.as_mut().poll(poll_context) } else { left_out(&thread, poll_context) };
        if is_watched {
            arch::debug::DebugRegisters::unload();
        }
        thread.save_key_rights();
        let now_ns = crate::arch::time::now_ns();
        thread.end_meter(now_ns);
        if thread.process.alarms().is_armed() {
            cpu_time::check(&thread);
        }
        if result.is_pending() {
            thread.end_sample();
            // The thread may go on elsewhere.
            thread.with_float(FloatState::save);
            let is_waiting = thread.end_turn(now_ns);
            thread.count_switch(is_waiting);
            executor::turn_ends(&thread, false);
        }
        thread.depart();
        result
    })
    .await;
}

/// The thread's turn is left out, wherever it is in its life: it goes to the end of its queue.
#[cold]
fn left_out(thread: &Thread, context: &TaskContext<'_>) -> Poll<()> {
    thread.look_at_entity(|entity| entity.preempted());
    context.waker().wake_by_ref();
    Poll::Pending
}

/// Why a thread that is about to enter its program has to wait.
#[derive(PartialEq, Eq)]
enum HeldBack {
    /// Something more urgent runs first.
    IsPreempted,
    /// Another of its user's executors runs first.
    GivesWay,
}

/// Whether the thread has to wait. If not, it is interrupted from here on for what is more urgent.
#[inline(always)]
fn held_back(thread: &Thread) -> Option<HeldBack> {
    match thread.priority_of_no_executor() {
        Some(priority) if sched::enter_program(priority) => None,
        Some(_) => preempted_unless_starved(thread),
        None => executor_held_back(thread),
    }
}

/// A thread that computes has a turn now and then before those that mostly sleep.
#[inline(never)]
fn preempted_unless_starved(thread: &Thread) -> Option<HeldBack> {
    let mut is_starved = false;
    thread.with_entity(|entity| is_starved = entity.is_starved(crate::arch::time::now_ns()));
    if is_starved && sched::enter_program(thread.priority()) { None } else { Some(HeldBack::IsPreempted) }
}

#[inline(never)]
fn executor_held_back(thread: &Thread) -> Option<HeldBack> {
    if !executor::may_enter(thread) {
        return Some(HeldBack::GivesWay);
    }
    let priority = thread.priority();
    if !sched::enter_program(priority) {
        return Some(HeldBack::IsPreempted);
    }
    // Whoever of the group became ready before the CPU could be interrupted is seen here; and the level that a late
    // call has lent is given back, at which others would not interrupt.
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
    if !executor::may_enter(thread) || thread.priority() != priority {
        sched::leave_program();
        return Some(HeldBack::GivesWay);
    }
    None
}

/// Lets what is more urgent run.
async fn stands_back(thread: &Thread, reason: HeldBack) {
    let is_last = thread.look_at_entity(|entity| entity.preempted());
    rseq::leaves_program(thread);
    if is_last || reason == HeldBack::GivesWay {
        sched::yield_now().await;
    } else {
        sched::preempted().await;
    }
}

/// Before the program's first instruction.
async fn begin(thread: &Arc<Thread>, caller: &Caller) {
    let child_tid = thread.take_child_tid();
    syscall::trace::attach(thread);
    // Without memory the thread is to die.
    if child_tid != 0 && wait_for_memory(thread).await.is_ok() {
        boxed(store_tid(thread, child_tid)).await;
    }
    if arch::stray::is_unknown() && wait_for_memory(thread).await.is_ok() {
        boxed(stray::find_out(thread, caller)).await;
    }
}

async fn live(thread: Arc<Thread>, context: &mut UserContext) {
    let caller = Caller::Thread(thread.clone());
    let mut interrupted = None;
    let mut visits = 0;
    begin(&thread, &caller).await;
    loop {
        if interrupted.is_some() || thread.work().is_pressing() {
            if thread.work().contains(PendingWork::CONTEXT)
                && let Some(replaced) = thread.take_context()
            {
                *context = *replaced;
                thread.use_call_places();
                interrupted = None;
            }
            if thread.work().contains(PendingWork::DIE) {
                break;
            }
            let is_settled = interrupted.is_none()
                && thread.work() - PendingWork::LASTING == PendingWork::RESTART
                && rseq::try_settle(&thread, context);
            if !is_settled {
                if wait_for_memory(&thread).await.is_err() {
                    break;
                }
                let next = boxed(signal::before_user(&thread, context, interrupted.take())).await;
                if let Next::Dump(signal) = next {
                    core_dump::end_with_dump(&thread, context, signal).await;
                }
                if next != Next::Resume {
                    break;
                }
            }
        }
        if let Some(reason) = held_back(&thread) {
            stands_back(&thread, reason).await;
            continue;
        }
        let Some(until_ns) = slice_end(&thread) else {
            sched::yield_now().await;
            continue;
        };
        arch::time::set_timer(until_ns);
        thread.activate_space();
        thread.load_float();
        thread.end_sample();
        let trap = arch::enter_user::<ProgramRuns>(context);
        visits = u32::wrapping_add(visits, 1);
        thread.begin_sample(visits);
        sched::leave_program();
        match stray::adopted(&thread, context, trap) {
            Trap::SystemCall | Trap::CallInstruction => {
                if thread.work().intersects(WATCHED)
                    && let Err(restart) = look_at_call(&caller, context).await
                {
                    interrupted = restart;
                    continue;
                }
                #[cfg(feature = "checking")]
                crate::memory::fault_injection::call_starts();
                interrupted = match syscall::start(&caller, context) {
                    Ok(SyscallState::Done(value)) => end_call(&thread, context, Ok(value)),
                    Ok(SyscallState::Yield) => {
                        thread.look_at_entity(|entity| entity.give_way());
                        sched::yield_now().await;
                        end_call(&thread, context, Ok(0))
                    }
                    Ok(SyscallState::Pending(future)) => {
                        let result = future.await;
                        end_call(&thread, context, result)
                    }
                    Err(error) => {
                        let result = match Lack::of(error, context) {
                            Ok(lack) => start_again(&caller, context, lack).await,
                            Err(error) => Err(error),
                        };
                        end_call(&thread, context, result)
                    }
                }
            }
            Trap::PageFault { address, write, execute, .. } => {
                resolve_fault(&thread, context, address, FaultAccess { write, execute, is_remote: false })
                    .await;
            }
            Trap::Exception { vector, code } => {
                if arch::debug::is_trap(vector) && thread.is_traced() {
                    signal::trace::debug_trap(&thread, code);
                }
                signal::post_exception(&thread, context, vector, code);
            }
            Trap::Interrupt if is_slice_over(&thread, until_ns) => sched::yield_now().await,
            Trap::Interrupt => {}
        }
    }
    end(&thread, context).await;
}

/// Has a call looked at before it begins. It does not begin on an error, which may be a restart code. Without memory
/// the thread is to die.
async fn look_at_call(caller: &Caller, context: &mut UserContext) -> Result<(), Option<Errno>> {
    wait_for_memory(caller).await.map_err(|_| None)?;
    match boxed(is_call_passed(caller, context)).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(None),
        Err(restart) => Err(Some(restart)),
    }
}

/// Lets the log, a tracer and filters look at a call before it begins. Whether it is to begin.
///
/// # Errors
/// A restart code: a signal has interrupted the wait for a filter's listener.
async fn is_call_passed(caller: &Caller, context: &mut UserContext) -> Result<bool, Errno> {
    let thread = &**caller;
    if thread.work().contains(PendingWork::DISPATCHED) && signal::dispatch::is_taken(thread, context).await {
        return Ok(false);
    }
    if thread.work().contains(PendingWork::LOGGED) {
        syscall::trace::begins(thread, context).await;
    }
    if thread.work().contains(PendingWork::TRACED) && !signal::trace::call_begins(thread, context).await {
        return Ok(false);
    }
    if !thread.work().contains(PendingWork::FILTERED) {
        return Ok(true);
    }
    let decision = match signal::filter::decide(thread, context) {
        Decision::AskTracer(data) => signal::filter::ask_tracer(thread, context, data).await,
        decision => decision,
    };
    match decision {
        Decision::Proceed | Decision::AskTracer(_) => Ok(true),
        Decision::Refused => Ok(false),
        Decision::AskListener(listener, data) => listener.ask(caller, context, data).await,
    }
}

/// The end of a thread.
async fn end(thread: &Arc<Thread>, context: &mut UserContext) {
    syscall::trace::ended(thread);
    if thread.process.signal_state().is_dumping() && crate::memory::heap::reserve(BOXES).is_ok() {
        boxed(dump::wait(thread, context)).await;
    }
    if thread.work().contains(PendingWork::TRACED) && crate::memory::heap::reserve(BOXES).is_ok() {
        boxed(signal::trace::ends(thread, context, thread.last_status())).await;
    }
    let reserve = wait_for_exit_memory(thread).await;
    boxed(crate::process::exit::end_thread(thread)).await;
    drop(reserve);
}

/// The time until which the thread may run now. `None`: others have to run first.
#[inline]
fn slice_end(thread: &Thread) -> Option<u64> {
    let until_ns = thread.until_ns();
    if until_ns != sched::THROTTLED {
        return Some(until_ns);
    }
    if !sched::is_alone() {
        sched::leave_program();
        thread.look_at_entity(|entity| entity.give_way());
        rseq::leaves_program(thread);
        return None;
    }
    Some(thread.remaining_slice())
}

/// Looks at clocks and coroutines after an interrupt. Whether the thread's slice is over.
#[inline(never)]
fn is_slice_over(thread: &Arc<Thread>, until_ns: u64) -> bool {
    executor::tick(thread);
    let is_watched = thread.process.alarms().is_armed();
    let until_ns = if is_watched { cpu_time::look(thread) } else { until_ns };
    let is_over = arch::time::now_ns() >= until_ns;
    if is_over {
        thread.look_at_entity(|entity| entity.give_way());
        rseq::leaves_program(thread);
    }
    is_over
}

/// Stores the thread's number in its memory. As in Linux, an address that can't be written to is the program's
/// problem.
async fn store_tid(thread: &Arc<Thread>, address: usize) {
    let tid = (thread.own_tid() as u32).to_ne_bytes();
    let _ = thread.resolve(|space| space.write_bytes(address, &tid)).await;
}

/// A thing that a call did not find, for which it waits before it starts again.
enum Lack {
    Page(PageFault),
    Memory,
}

impl Lack {
    /// The reason why a call did not begin, or the error that is its result.
    fn of(error: TryError, context: &UserContext) -> Result<Self, Errno> {
        match error {
            TryError::Fault(fault) => Ok(Self::Page(fault)),
            TryError::Error(Errno::ENOMEM) if syscall::waits_for_memory(context) => Ok(Self::Memory),
            TryError::Error(error) => Err(error),
            // Only files that wait say so, and those are driven by `carry_out`.
            TryError::WouldBlock => Err(Errno::EAGAIN),
        }
    }
}

/// Brings in the page that a call has met, or waits for memory, and starts the call again until it is done.
async fn start_again(caller: &Caller, context: &mut UserContext, mut lack: Lack) -> Result<usize, Errno> {
    let (mut budget, mut shortage, mut is_repeated) = (Budget::new(), Shortage::default(), false);
    loop {
        wait_for_memory(caller).await?;
        let space = caller.space();
        boxed(async {
            // Others may take the pages away again and again.
            caller.pace(&mut budget, Budget::ATTEMPT).await?;
            match lack {
                Lack::Page(fault) => space.fault_in_for(fault, || caller.is_dying()).await,
                Lack::Memory if is_repeated => shortage.make_room(|| caller.is_dying()).await,
                Lack::Memory => Ok(()),
            }
        })
        .await?;
        match lack {
            Lack::Page(_) => caller.count_fault(),
            Lack::Memory => is_repeated = true,
        }
        match syscall::start(caller, context) {
            Ok(SyscallState::Done(value)) => return Ok(value),
            Ok(SyscallState::Pending(future)) => return future.await,
            Ok(SyscallState::Yield) => {
                sched::yield_now().await;
                return Ok(0);
            }
            Err(error) => lack = Lack::of(error, context)?,
        }
    }
}

/// Gives the program the result of its call. Returns the restart code if a signal interrupted it.
#[inline]
fn end_call(thread: &Arc<Thread>, context: &mut UserContext, result: Result<usize, Errno>) -> Option<Errno> {
    #[cfg(feature = "checking")]
    crate::memory::fault_injection::call_ends();
    syscall::trace::finished(thread, &result);
    match result {
        Ok(value) => context.set_result(value),
        Err(error) => {
            context.set_result(error.to_result());
            if error.is_restart() {
                return Some(error);
            }
            if error == Errno::EINTR {
                return None;
            }
        }
    }
    thread.restore_mask();
    None
}

async fn resolve_fault(thread: &Arc<Thread>, context: &UserContext, address: usize, access: FaultAccess) {
    let space = thread.space();
    let resolved = match space.try_fault(address, access) {
        Some(Err(FaultError::OutOfMemory)) | None => {
            rseq::leaves_program(thread);
            if wait_for_memory(thread).await.is_err() {
                return;
            }
            let is_over = || thread.is_interrupted(WaitKind::Killable);
            boxed(space.fault(address, access, is_over)).await
        }
        Some(resolved) => resolved,
    };
    match resolved {
        // Without memory the thread is to die, and sees to that next.
        Err(FaultError::OutOfMemory) => {}
        Ok(()) => thread.count_fault(),
        Err(error) => signal::post_page_fault(thread, context, address, error),
    }
}
