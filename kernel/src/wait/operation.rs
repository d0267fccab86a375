//! The driver of calls that may wait.
//!
//! An operation on a file never waits: its attempts say that they would block, or that a page of user memory is
//! missing. [`carry_out`] makes of it a blocking call, a non-blocking one, or an asynchronous request. It goes on from
//! where the last attempt stopped: what was moved before a missing page stays moved.

use core::future::Future;

use crate::error::{Errno, TryError, TryResult};
use crate::memory::heap;
use crate::memory::user::PageFault;
use crate::sched;
use crate::sched::{Budget, Priority};
use crate::wait::engine::{Waited, ready};
use crate::wait::node::{WaitKind, Waiter};
use crate::wait::queue::Watch;

/// A waiter that works on user memory.
pub trait Agent: Waiter + Clone + 'static {
    /// Brings a page in if that needs no waiting; nothing if it does.
    fn try_fault_in(&self, fault: PageFault) -> Option<Result<(), Errno>>;

    /// Brings a page in.
    fn fault_in(&self, fault: PageFault) -> impl Future<Output = Result<(), Errno>> + Send;
}

/// The state of an operation after an attempt.
pub enum Step {
    /// It is over.
    Finished(Result<usize, Errno>),
    /// A page of user memory is missing.
    Fault(PageFault),
    /// It would block.
    Wait,
    /// It needs what [`Operation::acquire`] gets.
    Acquire,
    /// It has got on, and is not through.
    Again,
}

/// Bytes after which an attempt may say that it would block, though it would not: it is repeated at once.
pub const CUT_BYTES: usize = 128 << 10;

/// An attempt that is repeated until it is done.
pub trait Operation: Send + Sync + 'static {
    /// Goes on; the value is the call's result.
    ///
    /// # Errors
    /// See [`TryError`].
    fn attempt(&mut self) -> TryResult<usize>;

    /// Goes on by a bounded amount of work.
    fn step(&mut self, no_wait: bool) -> Step {
        let before = self.partial().unwrap_or(0);
        match self.attempt() {
            Ok(value) => Step::Finished(Ok(value)),
            Err(TryError::Fault(fault)) => Step::Fault(fault),
            // The other side may keep pace, so that a loop within the attempt would not end.
            Err(TryError::WouldBlock) if self.partial().unwrap_or(0) >= before + CUT_BYTES => Step::Again,
            Err(TryError::WouldBlock) if !no_wait => Step::Wait,
            Err(TryError::WouldBlock) => Step::Finished(self.end(Errno::EAGAIN)),
            Err(TryError::Error(error)) => Step::Finished(self.end(error)),
        }
    }

    /// The result if the call has to end now, when it has done something.
    fn partial(&self) -> Option<usize> {
        None
    }

    /// The end by an error: what was done before counts more.
    ///
    /// # Errors
    /// The error, if nothing was done.
    fn end(&self, error: Errno) -> Result<usize, Errno> {
        self.partial().ok_or(error)
    }

    /// Whether a wait may end; called with a watch that it must register.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn can_go_on(&self, watch: &Watch) -> Result<bool, Errno>;

    /// A wait has ended: what the operation gave to others for its time is taken back. Returns the call's result, if
    /// that has ended it.
    fn end_wait(&mut self) -> Option<usize> {
        None
    }

    /// Whether several waiters in its place would wait for something that one of them takes.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// How long it waits at most, if its [`WaitOptions`] have no deadline.
    fn timeout_ns(&self) -> Option<u64> {
        None
    }

    /// A page that it asked for can't be brought in. Whether it goes on with what is there.
    fn does_without(&mut self) -> bool {
        false
    }

    /// Gets what [`Step::Acquire`] asks for.
    fn acquire(&mut self) -> impl Future<Output = Result<(), Errno>> + Send {
        core::future::ready(Ok(()))
    }
}

/// How an [`Operation`] waits.
#[derive(Clone, Copy, Debug, Default)]
pub struct WaitOptions {
    /// It doesn't.
    pub no_wait: bool,
    /// When it ends by itself with `EAGAIN`.
    pub deadline_ns: Option<u64>,
}

/// An operation that has started.
pub enum Started<F> {
    /// It is over.
    Finished(Result<usize, Errno>),
    /// It has to wait: the rest of it.
    Waits(F),
}

/// Carries an operation out: at once if it can be done, else as a future.
pub fn carry_out<O: Operation>(
    agent: &impl Agent,
    options: WaitOptions,
    mut operation: O,
) -> Started<impl Future<Output = Result<usize, Errno>> + Send + 'static> {
    let mut budget = Budget::new();
    let step = loop {
        let step = operation.step(options.no_wait);
        match step {
            Step::Finished(result) => return Started::Finished(result),
            Step::Again if !budget.spend(Budget::ATTEMPT) && !sched::should_yield(Priority::NORMAL) => {}
            Step::Fault(fault) => match agent.try_fault_in(fault) {
                Some(Ok(())) if !budget.spend(1) => {}
                Some(Ok(())) => break Step::Again,
                // The agent waits for memory, if there is any for the future.
                Some(Err(Errno::ENOMEM)) if heap::reserve(1).is_ok() => break step,
                Some(Err(Errno::EFAULT)) if operation.does_without() => {}
                Some(Err(error)) => return Started::Finished(operation.end(error)),
                None => break step,
            },
            Step::Again | Step::Wait | Step::Acquire => break step,
        }
    };
    Started::Waits(go_on(agent.clone(), options, operation, step))
}

/// The cost of bringing in a page, in units of a [`Budget`].
const FAULT_COST: u32 = 8;

/// Goes on after `step`. A block instead of an `async fn`, which would keep its arguments twice.
fn go_on<A: Agent, O: Operation>(
    agent: A,
    mut options: WaitOptions,
    mut operation: O,
    mut step: Step,
) -> impl Future<Output = Result<usize, Errno>> + Send + 'static {
    let (mut fruitless, mut budget) = (false, Budget::exhausted());
    async move {
        loop {
            let result = match step {
                Step::Finished(result) => {
                    if agent.node().take_turn() {
                        pass_on(&operation);
                    }
                    return result;
                }
                Step::Again => pace(&agent, &mut budget, Budget::ATTEMPT).await,
                Step::Fault(fault) => match agent.fault_in(fault).await {
                    // As many pages as the program likes may be missing, one after the other.
                    Ok(()) => pace(&agent, &mut budget, FAULT_COST).await,
                    Err(Errno::EFAULT) if operation.does_without() => Ok(()),
                    Err(error) => Err(error),
                },
                Step::Acquire => operation.acquire().await,
                Step::Wait if core::mem::take(&mut fruitless) => take_turns(&agent).await,
                Step::Wait => {
                    if options.deadline_ns.is_none() {
                        let after = |timeout| crate::arch::time::now_ns().saturating_add(timeout);
                        options.deadline_ns = operation.timeout_ns().map(after);
                    }
                    let is_exclusive = operation.is_exclusive();
                    let check = |watch: Watch| operation.can_go_on(&watch.exclusive_if(is_exclusive));
                    let waited = ready(&agent, WaitKind::Interruptible, options.deadline_ns, check).await;
                    if let Some(done) = operation.end_wait() {
                        step = Step::Finished(Ok(done));
                        continue;
                    }
                    waited.and_then(|waited| {
                        // If the next attempt finds the opposite too, others run.
                        fruitless = waited == Waited::NotAtAll;
                        if waited == Waited::InVain { Err(Errno::EAGAIN) } else { Ok(()) }
                    })
                }
            };
            step = match result {
                Ok(()) => operation.step(options.no_wait),
                Err(error) => Step::Finished(operation.end(error)),
            };
        }
    }
}

/// Passes the rest of what the operation waited for to the next waiter.
fn pass_on(operation: &impl Operation) {
    // These watches are not stored, so there is no failure but that of the file, which the next waiter finds too.
    if operation.can_go_on(&Watch::nobody()) != Ok(false) {
        let _ = operation.can_go_on(&Watch::pass_on());
    }
}

/// The turn of a call that waited and then could not go on although the file said it could: a file's readiness can be
/// about less than the call wants. Others run, and a signal ends it.
///
/// # Errors
/// `ERESTARTSYS`.
async fn take_turns(waiter: &impl Waiter) -> Result<(), Errno> {
    if waiter.is_interrupted(WaitKind::Interruptible) {
        return Err(Errno::ERESTARTSYS);
    }
    sched::yield_now().await;
    Ok(())
}

/// A step of work whose amount a program chooses, on behalf of a waiter: when the budget is exhausted, interrupts are
/// let in, others run, and the call ends if its thread is to die.
///
/// # Errors
/// `EINTR`, which nobody sees.
#[inline]
pub async fn pace(waiter: &(impl Waiter + ?Sized), budget: &mut Budget, cost: u32) -> Result<(), Errno> {
    if budget.spend(cost) {
        budget.look().await;
        if waiter.is_interrupted(WaitKind::Killable) {
            return Err(Errno::EINTR);
        }
    }
    Ok(())
}
