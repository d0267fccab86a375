//! Chains of requests: what starts at once, and the coroutine of what waits.
//!
//! A chain is one entry, or entries that are linked, each of which starts when the one before has ended. It begins in
//! the submitter's turn; from the first request that waits on it is a coroutine. One request stands for the chain among
//! the process's asynchronous calls, so that the end of the process reaches it.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::future::Future;
use core::pin::Pin;
use core::task::Poll;
use linux_raw_sys::general::__NR_io_uring_enter;
use linux_raw_sys::io_uring::{IORING_RECVSEND_POLL_FIRST, IORING_TIMEOUT_ETIME_SUCCESS, io_uring_op as Op};
use linux_raw_sys::net::MSG_WAITALL;

use heddle_kernel_core::uring::{Sqe, SqeFlags};

use crate::arch::UserContext;
use crate::call::CallFuture;
use crate::call::asynchronous::AsyncRequest;
use crate::call::caller::Caller;
use crate::error::{Errno, TryError};
use crate::memory::fallible;
use crate::process::executor;
use crate::sched;
use crate::sched::Budget;
use crate::sync::SpinLock;
use crate::syscall::uring::operation::{self, StartedEntry};
use crate::syscall::uring::ring::Uring;
use crate::syscall::uring::timeout;
use crate::wait::engine::until;
use crate::wait::node::WaitKind;
use crate::wait::queue::Events;

/// Units of work of one request, beside what it does itself.
const REQUEST_COST: u32 = 4;

/// The program's level of a request that says nothing of it: an ordinary one.
const ORDINARY_LEVEL: u8 = 32;
/// The level of a request of the class "idle".
const IDLE_LEVEL: u8 = 63;

/// A request under way.
pub struct UringRequest {
    pub sqe: Sqe,
    pub request: Arc<AsyncRequest>,
    /// When a timeout ends, on the monotonic clock.
    pub deadline_ns: SpinLock<u64>,
}

/// The level of an entry: what its I/O priority says, where it has one.
///
/// # Errors
/// `EINVAL`.
pub fn level_of(sqe: &Sqe) -> Result<u8, Errno> {
    let is_message = [Op::IORING_OP_SEND, Op::IORING_OP_RECV, Op::IORING_OP_SENDMSG, Op::IORING_OP_RECVMSG]
        .iter()
        .any(|&operation| sqe.is(operation));
    if is_message && sqe.ioprio & !(IORING_RECVSEND_POLL_FIRST as u16) == 0 || sqe.is(Op::IORING_OP_ACCEPT) {
        return Ok(ORDINARY_LEVEL);
    }
    let is_transfer = [
        Op::IORING_OP_READ,
        Op::IORING_OP_WRITE,
        Op::IORING_OP_READV,
        Op::IORING_OP_WRITEV,
        Op::IORING_OP_READ_FIXED,
        Op::IORING_OP_WRITE_FIXED,
    ]
    .iter()
    .any(|&operation| sqe.is(operation));
    if sqe.ioprio != 0 && !is_transfer { Err(Errno::EINVAL) } else { level_of_priority(sqe.ioprio) }
}

/// The level of an I/O priority; 0 stands for none.
///
/// # Errors
/// `EINVAL`.
pub fn level_of_priority(priority: u16) -> Result<u8, Errno> {
    const CLASS_SHIFT: u16 = 13;
    const REALTIME: u16 = 1;
    const BEST_EFFORT: u16 = 2;
    const IDLE: u16 = 3;
    const LEVELS: u16 = 8;
    let (class, data) = (priority >> CLASS_SHIFT, priority & ((1 << CLASS_SHIFT) - 1));
    match class {
        0 if priority == 0 => Ok(ORDINARY_LEVEL),
        _ if data >= LEVELS => Err(Errno::EINVAL),
        REALTIME => Ok(data as u8),
        BEST_EFFORT => Ok(ORDINARY_LEVEL),
        IDLE => Ok(IDLE_LEVEL),
        _ => Err(Errno::EINVAL),
    }
}

/// The result as a completion has it.
pub fn code(error: Errno) -> i32 {
    -i32::from(error.0)
}

/// Linked entries, of which the first are the next to start.
pub struct RequestChain {
    ring: Arc<Uring>,
    rest: VecDeque<Sqe>,
    /// Its place among all chains of the ring.
    sequence: u64,
    is_drain: bool,
    /// One has failed, and those behind it don't start.
    is_broken: bool,
}

/// A request that waits.
struct WaitingEntry {
    active: Arc<UringRequest>,
    number: u64,
    future: CallFuture,
}

/// The submitting thread, and an unused request that the next entry may take.
pub struct Submitter<'a> {
    pub caller: &'a Caller,
    pub context: &'a mut UserContext,
    pub unused: Option<Arc<AsyncRequest>>,
}

impl RequestChain {
    pub const fn new(ring: Arc<Uring>, rest: VecDeque<Sqe>, sequence: u64) -> Self {
        Self { ring, rest, sequence, is_drain: false, is_broken: false }
    }

    /// Starts it: as far as it need not wait at once, then as a coroutine.
    pub fn start(mut self, submitter: &mut Submitter<'_>) {
        let drains = self.rest.iter().any(|sqe| sqe.flags & SqeFlags::DRAIN.bits() != 0);
        let has_to_wait = {
            let submission = self.ring.submission.lock();
            !submission.drains.is_empty() || drains && !submission.under_way.is_empty()
        };
        self.is_drain = drains;
        if has_to_wait {
            return self.go_on(submitter, None);
        }
        // A long chain goes on as a coroutine.
        const AT_ONCE: u32 = 16;
        for _ in 0..AT_ONCE {
            let Some(sqe) = self.rest.pop_front() else { return };
            if self.is_broken {
                self.ring.post(sqe.user_data, code(Errno::ECANCELED), 0);
                continue;
            }
            match operation::start(&self.ring, submitter, &sqe) {
                Ok(StartedEntry::Done(result)) => self.finish(&sqe, result, None),
                Ok(StartedEntry::Waits(active, future)) => match self.enter(active, future) {
                    Ok(waiting) => return self.go_on(submitter, Some(waiting)),
                    Err(error) => self.finish(&sqe, code(error), None),
                },
                Err(TryError::Error(error)) => self.finish(&sqe, code(error), None),
                Err(TryError::WouldBlock) => self.finish(&sqe, code(Errno::EAGAIN), None),
                Err(TryError::Fault(_)) => {
                    // It was there a moment ago.
                    if fallible_push_front(&mut self.rest, sqe).is_err() {
                        self.finish(&sqe, code(Errno::ENOMEM), None);
                        continue;
                    }
                    return self.go_on(submitter, None);
                }
            }
        }
        if !self.rest.is_empty() {
            self.go_on(submitter, None);
        }
    }

    fn enter(&self, active: Arc<UringRequest>, future: CallFuture) -> Result<WaitingEntry, Errno> {
        let number = self.ring.requests.lock().enter(&active)?;
        if self.ring.is_closed() {
            active.request.kill();
        }
        Ok(WaitingEntry { active, number, future })
    }

    /// Goes on as a coroutine.
    fn go_on(self, submitter: &Submitter<'_>, first: Option<WaitingEntry>) {
        let holder = match &first {
            Some(waiting) => Ok(waiting.active.request.clone()),
            None => new_holder(submitter.caller),
        };
        let ring = self.ring.clone();
        let (sequence, is_drain) = (self.sequence, self.is_drain);
        let entry = first.as_ref().map(|waiting| (waiting.active.sqe.user_data, waiting.number));
        // If there is no memory, every entry gets a completion that says so.
        let lost = self.rest.front().map(|sqe| sqe.user_data).filter(|_| first.is_none());
        let spawned = holder.and_then(|holder| {
            let calls = &submitter.caller.process.asynchronous;
            calls.enter(&holder)?;
            let entered = {
                let mut submission = ring.submission.lock();
                let drain = if is_drain {
                    fallible::try_insert(&mut submission.drains, sequence, ())
                } else {
                    Ok(None)
                };
                drain.and_then(|_| fallible::try_insert(&mut submission.under_way, sequence, ()))
            };
            let priority = executor::priority_of(submitter.caller, holder.level);
            let spawned = entered.and_then(|_| sched::spawn(priority, run(self, holder.clone(), first)));
            if spawned.is_err() {
                ring.end_chain(sequence);
                calls.leave(&holder, 0);
                holder.release();
            }
            spawned
        });
        if spawned.is_err() {
            if let Some((user_data, number)) = entry {
                drop(ring.requests.lock().leave(user_data, number));
            }
            if let Some(user_data) = entry.map(|entry| entry.0).or(lost) {
                ring.post(user_data, code(Errno::ENOMEM), 0);
            }
        }
    }

    /// A request has ended: posts its completion and that of the timeout that is linked to it.
    fn finish(&mut self, sqe: &Sqe, result: i32, timeout: Option<(Sqe, i32)>) {
        let flags = SqeFlags::from_bits_truncate(sqe.flags);
        let has_failed = has_failed(sqe, result);
        if has_failed || !flags.contains(SqeFlags::SKIP_SUCCESS) {
            self.ring.post(sqe.user_data, result, 0);
        }
        if has_failed && !flags.contains(SqeFlags::HARDLINK) {
            self.is_broken = true;
        }
        let timeout = timeout.or_else(|| Some((self.take_timeout(sqe)?, code(Errno::ECANCELED))));
        if let Some((timeout, result)) = timeout {
            self.ring.post(timeout.user_data, result, 0);
        }
    }

    /// The timeout that is linked to a request, if there is one.
    fn take_timeout(&mut self, sqe: &Sqe) -> Option<Sqe> {
        let is_linked = sqe.is_linked() && self.rest.front()?.is(Op::IORING_OP_LINK_TIMEOUT);
        if is_linked { self.rest.pop_front() } else { None }
    }

    /// Waits until the chains have ended that this one has to come after.
    async fn wait_for_turn(&self, caller: &Caller) -> Result<(), Errno> {
        loop {
            let waited = until(caller, WaitKind::Killable, None, |watch| {
                self.ring.queue.watch(watch, Events::IN)?;
                let submission = self.ring.submission.lock();
                let awaited = if self.is_drain { &submission.under_way } else { &submission.drains };
                Ok(awaited.range(..self.sequence).next().is_none().then_some(()))
            });
            match waited.await {
                Ok(_) => return Ok(()),
                Err(Errno::ENOMEM) => sched::yield_now().await,
                Err(error) => return Err(error),
            }
        }
    }
}

fn fallible_push_front(queue: &mut VecDeque<Sqe>, sqe: Sqe) -> Result<(), Errno> {
    queue.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    heddle_kernel_core::fallible::push_front_reserved(queue, sqe);
    Ok(())
}

/// Whether what is linked to a request doesn't start: it has failed, or moved less than it was to.
fn has_failed(sqe: &Sqe, result: i32) -> bool {
    if sqe.is(Op::IORING_OP_TIMEOUT) && result == code(Errno::ETIME) {
        return sqe.op_flags & IORING_TIMEOUT_ETIME_SUCCESS == 0;
    }
    let is_one_buffer =
        [Op::IORING_OP_READ, Op::IORING_OP_WRITE, Op::IORING_OP_READ_FIXED, Op::IORING_OP_WRITE_FIXED]
            .iter()
            .any(|&operation| sqe.is(operation));
    let is_whole_message =
        (sqe.is(Op::IORING_OP_SEND) || sqe.is(Op::IORING_OP_RECV)) && sqe.op_flags & MSG_WAITALL != 0;
    result < 0 || (is_one_buffer || is_whole_message) && (result as u32) < sqe.len
}

/// A request that stands for a chain of which none has started.
fn new_holder(caller: &Caller) -> Result<Arc<AsyncRequest>, Errno> {
    AsyncRequest::new(None, caller, (__NR_io_uring_enter, ORDINARY_LEVEL), [0; 2])
}

impl Uring {
    /// A chain has ended.
    fn end_chain(&self, sequence: u64) {
        let has_waiters = {
            let mut submission = self.submission.lock();
            submission.under_way.remove(&sequence);
            submission.drains.remove(&sequence).is_some() || !submission.drains.is_empty()
        };
        if has_waiters {
            self.queue.wake(Events::IN);
        }
    }
}

/// The coroutine of a chain.
async fn run(mut chain: RequestChain, holder: Arc<AsyncRequest>, mut current: Option<WaitingEntry>) {
    holder.begin();
    core::future::poll_fn(|context| {
        holder.polled(context);
        Poll::Ready(())
    })
    .await;
    let ring = chain.ring.clone();
    let caller = Caller::Request(holder.clone());
    if current.is_none() && chain.wait_for_turn(&caller).await.is_err() {
        chain.is_broken = true;
    }
    let mut budget = Budget::new();
    loop {
        budget.step(REQUEST_COST).await;
        let waiting = match current.take() {
            Some(waiting) => waiting,
            None => {
                let Some(sqe) = chain.rest.pop_front() else { break };
                if chain.is_broken || ring.is_closed() || holder.is_interrupted(WaitKind::Killable) {
                    ring.post(sqe.user_data, code(Errno::ECANCELED), 0);
                    continue;
                }
                match begin(&chain, &caller, &sqe).await {
                    Ok(Ok(waiting)) => waiting,
                    Ok(Err(result)) => {
                        chain.finish(&sqe, result, None);
                        continue;
                    }
                    Err(error) => {
                        chain.finish(&sqe, code(error), None);
                        continue;
                    }
                }
            }
        };
        let WaitingEntry { active, number, future } = waiting;
        let sqe = active.sqe;
        let linked = chain.take_timeout(&sqe);
        let deadline = match &linked {
            Some(timeout) => Some(timeout::read_later(&caller, timeout).await),
            None => None,
        };
        let (result, has_fired) = match deadline {
            Some(Err(error)) => {
                drop(future);
                (Err(Errno::ECANCELED), Some(error))
            }
            deadline => drive(&holder, &active, future, deadline.and_then(Result::ok)).await,
        };
        let result = active
            .request
            .late
            .store(&active.request.space(), || active.request.is_interrupted(WaitKind::Killable))
            .await
            .and(result);
        let result = active.request.outcome(result) as i32;
        let timeout = linked.map(|timeout| {
            (
                timeout,
                code(match has_fired {
                    Some(Errno::ETIME) if result != code(Errno::ECANCELED) => Errno::EALREADY,
                    Some(error) => error,
                    None => Errno::ECANCELED,
                }),
            )
        });
        // Nothing of the request is left when its result is seen.
        drop(ring.requests.lock().leave(sqe.user_data, number));
        active.request.release_file();
        drop(active);
        chain.finish(&sqe, result, timeout);
    }
    ring.end_chain(chain.sequence);
    drop(caller);
    holder.release();
    holder.thread.process.asynchronous.leave(&holder, 0);
}

/// Starts a request of a chain in its coroutine: one that waits, or a result.
async fn begin(chain: &RequestChain, caller: &Caller, sqe: &Sqe) -> Result<Result<WaitingEntry, i32>, Errno> {
    loop {
        let started = {
            let mut context = fallible::try_box(UserContext::new_user())?;
            let mut submitter = Submitter { caller, context: &mut context, unused: None };
            operation::start(&chain.ring, &mut submitter, sqe)
        };
        match started {
            Ok(StartedEntry::Done(result)) => return Ok(Err(result)),
            Ok(StartedEntry::Waits(active, future)) => return chain.enter(active, future).map(Ok),
            Err(TryError::Error(error)) => return Err(error),
            Err(TryError::WouldBlock) => return Err(Errno::EAGAIN),
            Err(TryError::Fault(fault)) => caller.space().fault_in_for(fault, || caller.is_dying()).await?,
        }
        sched::yield_now().await;
    }
}

/// Polls a request until it has ended; cancels it when its time is over. The other result is `ETIME` then.
async fn drive(
    holder: &AsyncRequest,
    active: &UringRequest,
    mut future: CallFuture,
    deadline_ns: Option<u64>,
) -> (Result<usize, Errno>, Option<Errno>) {
    let mut sleep = deadline_ns.map(crate::time::sleep_until);
    let mut fired = None;
    core::future::poll_fn(|context| {
        active.request.polled(context);
        if holder.is_interrupted(WaitKind::Killable) {
            active.request.fate.kill();
        }
        if fired.is_none()
            && let Some(sleep) = &mut sleep
            && Pin::new(sleep).poll(context).is_ready()
        {
            fired = Some(Errno::ETIME);
            active.request.fate.cancel();
        }
        future.as_mut().poll(context).map(|result| (result, fired))
    })
    .await
}
