//! Chains of requests: what starts at once, and the coroutine of what waits.
//!
//! A chain is one entry, or entries that are linked, each of which starts when the one before has ended. It begins in
//! the submitter's turn; from the first request that waits on it is a coroutine. One request stands for the chain among
//! the process's asynchronous calls, so that the end of the process reaches it.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::task::Poll;
use linux_raw_sys::general::__NR_io_uring_enter;
use linux_raw_sys::io_uring::{
    IORING_CQE_F_MORE, IORING_CQE_F_NOTIF, IORING_RECV_MULTISHOT, IORING_RECVSEND_FIXED_BUF,
    IORING_RECVSEND_POLL_FIRST, IORING_TIMEOUT_ETIME_SUCCESS, io_uring_op as Op,
};
use linux_raw_sys::net::MSG_WAITALL;

use heddle_kernel_core::uring::{Sqe, SqeFlags};

use crate::arch::UserContext;
use crate::call::CallFuture;
use crate::call::asynchronous::AsyncRequest;
use crate::call::asynchronous::charge::charged;
use crate::call::caller::Caller;
use crate::error::{Errno, TryError};
use crate::memory::fallible;
use crate::process::executor;
use crate::sched;
use crate::sched::Budget;
use crate::sync::SpinLock;
use crate::syscall::uring::completions::{Completion, Origin};
use crate::syscall::uring::operation::{self, StartedEntry};
use crate::syscall::uring::resources::{BufferResource, FileResource, ResourceEra};
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
    /// The data of its completion, which an update of a poll may change.
    user_data: AtomicU64,
    /// Flags of its completion.
    pub completion_flags: AtomicU32,
    /// The events that a poll waits for.
    pub events: AtomicU32,
    /// A poll is to look again, for other events.
    pub has_changed: AtomicBool,
    /// When a timeout ends, on the monotonic clock.
    pub deadline_ns: SpinLock<u64>,
    /// The timeout that is linked to it: its user data, and when it ends.
    pub linked: SpinLock<Option<(u64, u64)>>,
    /// Registered resources that it uses.
    pub uses: SpinLock<Uses>,
}

/// Registered resources that a request uses.
#[derive(Default)]
pub struct Uses {
    pub file: Option<Arc<FileResource>>,
    pub buffer: Option<Arc<BufferResource>>,
    /// If it waits, the time in which it began. It is held: what was taken out then is told of after this request.
    pub era: Option<Arc<ResourceEra>>,
}

impl UringRequest {
    /// A request for an entry.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(
        sqe: &Sqe,
        request: Arc<AsyncRequest>,
        deadline_ns: u64,
        uses: Uses,
    ) -> Result<Arc<Self>, Errno> {
        fallible::try_arc(Self {
            sqe: *sqe,
            request,
            user_data: AtomicU64::new(sqe.user_data),
            completion_flags: AtomicU32::new(0),
            events: AtomicU32::new(0),
            has_changed: AtomicBool::new(false),
            deadline_ns: SpinLock::new(deadline_ns),
            linked: SpinLock::new(None),
            uses: SpinLock::new(uses),
        })
    }

    pub fn user_data(&self) -> u64 {
        self.user_data.load(Ordering::Relaxed)
    }

    pub(super) fn set_user_data(&self, user_data: u64) {
        self.user_data.store(user_data, Ordering::Relaxed);
    }

    /// Sets flags of its completion.
    pub fn set_flags(&self, flags: u32) {
        self.completion_flags.store(flags, Ordering::Relaxed);
    }
}

/// The level of an entry: what its I/O priority says, where it has one.
///
/// # Errors
/// `EINVAL`.
pub fn level_of(sqe: &Sqe) -> Result<u8, Errno> {
    const OF_MESSAGES: u32 = IORING_RECVSEND_POLL_FIRST | IORING_RECV_MULTISHOT | IORING_RECVSEND_FIXED_BUF;
    if sqe.is_message() && u32::from(sqe.ioprio) & !OF_MESSAGES == 0 || sqe.is(Op::IORING_OP_ACCEPT) {
        return Ok(ORDINARY_LEVEL);
    }
    if sqe.ioprio != 0 && !sqe.is_transfer() { Err(Errno::EINVAL) } else { level_of_priority(sqe.ioprio) }
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
    /// That one asked for no completion, so that those behind it get none.
    is_silent: bool,
    /// Where its completions come from: the submitter's turn, then a coroutine.
    origin: Origin,
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
        let origin = Origin::Submission;
        Self { ring, rest, sequence, is_drain: false, is_broken: false, is_silent: false, origin }
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
                self.cancel(&sqe);
                continue;
            }
            match operation::start(&self.ring, submitter, &sqe) {
                Ok(StartedEntry::Done(result, flags)) => self.finish(&sqe, (result, flags), None),
                Ok(StartedEntry::Waits(active, future)) => match self.enter(active, future) {
                    Ok(waiting) => return self.go_on(submitter, Some(waiting)),
                    Err(error) => self.finish(&sqe, (code(error), 0), None),
                },
                Err(TryError::Error(error)) => self.finish(&sqe, (code(error), 0), None),
                Err(TryError::WouldBlock) => self.finish(&sqe, (code(Errno::EAGAIN), 0), None),
                Err(TryError::Fault(_)) => {
                    // It was there a moment ago.
                    if fallible_push_front(&mut self.rest, sqe).is_err() {
                        self.finish(&sqe, (code(Errno::ENOMEM), 0), None);
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
        active.request.take_place();
        {
            let mut uses = active.uses.lock();
            if uses.file.is_some() || uses.buffer.is_some() {
                uses.era = self.ring.eras.lock().current();
            }
        }
        let number = self.ring.requests.lock().enter(&active)?;
        if self.ring.is_closed() {
            active.request.kill();
        }
        Ok(WaitingEntry { active, number, future })
    }

    /// Goes on as a coroutine.
    fn go_on(mut self, submitter: &Submitter<'_>, first: Option<WaitingEntry>) {
        self.origin = Origin::Elsewhere;
        let holder = match &first {
            Some(waiting) => Ok(waiting.active.request.clone()),
            None => new_holder(submitter.caller),
        };
        let ring = self.ring.clone();
        let (sequence, is_drain) = (self.sequence, self.is_drain);
        let entry = first.as_ref().map(|waiting| (waiting.active.clone(), waiting.number));
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
            let priority = executor::priority_of(submitter.caller, holder.level());
            let (thread, its_holder) = (Arc::clone(submitter.caller), holder.clone());
            let coroutine = charged(thread, move || run(self, its_holder, first));
            let spawned = entered.and_then(|_| sched::spawn(priority, coroutine));
            if spawned.is_err() {
                ring.end_chain(sequence);
                calls.leave(&holder, 0);
                holder.release();
            }
            spawned
        });
        if spawned.is_err() {
            if let Some((active, number)) = &entry {
                drop(ring.requests.lock().leave(active, *number));
            }
            if let Some(user_data) = entry.map(|(active, _)| active.user_data()).or(lost) {
                ring.post(Completion::new(user_data, code(Errno::ENOMEM), 0), Origin::Submission);
            }
        }
    }

    /// A request has ended: posts its completion and that of the timeout that is linked to it.
    fn finish(&mut self, sqe: &Sqe, (result, completion_flags): (i32, u32), timeout: Option<(Sqe, i32)>) {
        let has_failed = has_failed(sqe, result);
        let is_skipped = sqe.has(SqeFlags::SKIP_SUCCESS);
        if has_failed || !is_skipped {
            // Timeouts that have ended by themselves.
            let is_over = result == 0 || result == code(Errno::ETIME);
            let is_counted = !(sqe.is(Op::IORING_OP_TIMEOUT) && is_over);
            let completion = Completion::new(sqe.user_data, result, completion_flags);
            self.ring.post_counted(completion, self.origin, is_counted);
        }
        let is_zero_copy = sqe.is(Op::IORING_OP_SEND_ZC) || sqe.is(Op::IORING_OP_SENDMSG_ZC);
        if is_zero_copy && completion_flags & IORING_CQE_F_MORE != 0 {
            // The bytes have been copied, so that the program may change them.
            self.ring.post(Completion::new(sqe.user_data, 0, IORING_CQE_F_NOTIF), self.origin);
        }
        if has_failed && !sqe.has(SqeFlags::HARDLINK) {
            self.is_broken = true;
            self.is_silent |= is_skipped;
        }
        let timeout = timeout.or_else(|| Some((self.take_timeout(sqe)?, code(Errno::ECANCELED))));
        if let Some((timeout, result)) = timeout
            && !timeout.has(SqeFlags::SKIP_SUCCESS)
        {
            self.ring.post(Completion::new(timeout.user_data, result, 0), self.origin);
        }
    }

    /// A request does not start.
    fn cancel(&self, sqe: &Sqe) {
        if !self.is_silent {
            let completion = Completion::new(sqe.user_data, code(Errno::ECANCELED), 0);
            self.ring.post(completion, self.origin);
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
    let is_one_buffer = sqe.is_transfer()
        && !sqe.is(Op::IORING_OP_READV)
        && !sqe.is(Op::IORING_OP_WRITEV)
        && !sqe.has(SqeFlags::BUFFER_SELECT);
    let is_whole_message =
        (sqe.is(Op::IORING_OP_SEND) || sqe.is(Op::IORING_OP_RECV)) && sqe.op_flags & MSG_WAITALL != 0;
    result < 0 || (is_one_buffer || is_whole_message) && (result as u32) < sqe.len
}

/// A request that stands for a chain of which none has started.
pub fn new_holder(caller: &Caller) -> Result<Arc<AsyncRequest>, Errno> {
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
                    chain.cancel(&sqe);
                    continue;
                }
                match begin(&chain, &caller, &sqe).await {
                    Ok(Ok(waiting)) => waiting,
                    Ok(Err(outcome)) => {
                        chain.finish(&sqe, outcome, None);
                        continue;
                    }
                    Err(error) => {
                        chain.finish(&sqe, (code(error), 0), None);
                        continue;
                    }
                }
            }
        };
        let WaitingEntry { active, number, future } = waiting;
        let mut sqe = active.sqe;
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
            deadline => {
                let deadline = deadline.and_then(Result::ok);
                *active.linked.lock() = linked.as_ref().map(|timeout| timeout.user_data).zip(deadline);
                drive(&holder, &active, future).await
            }
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
        drop(ring.requests.lock().leave(&active, number));
        active.request.release_file();
        sqe.user_data = active.user_data();
        let flags = active.completion_flags.load(Ordering::Relaxed);
        // Tags of what it used are posted behind its completion.
        let uses = core::mem::take(&mut *active.uses.lock());
        drop(active);
        chain.finish(&sqe, (result, flags), timeout);
        drop(uses);
    }
    ring.end_chain(chain.sequence);
    drop(caller);
    holder.release();
    holder.thread.process.asynchronous.leave(&holder, 0);
}

/// Starts a request of a chain in its coroutine: one that waits, or a result.
async fn begin(
    chain: &RequestChain,
    caller: &Caller,
    sqe: &Sqe,
) -> Result<Result<WaitingEntry, (i32, u32)>, Errno> {
    loop {
        let started = {
            let mut context = fallible::try_box(UserContext::new_user())?;
            let mut submitter = Submitter { caller, context: &mut context, unused: None };
            operation::start(&chain.ring, &mut submitter, sqe)
        };
        match started {
            Ok(StartedEntry::Done(result, flags)) => return Ok(Err((result, flags))),
            Ok(StartedEntry::Waits(active, future)) => return chain.enter(active, future).map(Ok),
            Err(TryError::Error(error)) => return Err(error),
            Err(TryError::WouldBlock) => return Err(Errno::EAGAIN),
            Err(TryError::Fault(fault)) => caller.space().fault_in_for(fault, || caller.is_dying()).await?,
        }
        sched::yield_now().await;
    }
}

/// Polls a request until it has ended; cancels it when the time of the timeout that is linked to it is over. The other
/// result is `ETIME` then.
async fn drive(
    holder: &AsyncRequest,
    active: &UringRequest,
    mut future: CallFuture,
) -> (Result<usize, Errno>, Option<Errno>) {
    let linked_deadline = || active.linked.lock().map(|linked| linked.1);
    let mut deadline_ns = linked_deadline();
    let mut sleep = deadline_ns.map(crate::time::sleep_until);
    let mut fired = None;
    core::future::poll_fn(|context| {
        active.request.polled(context);
        if holder.is_interrupted(WaitKind::Killable) {
            active.request.fate.kill();
        }
        let now_linked = linked_deadline();
        if now_linked != deadline_ns {
            // The timeout has been updated.
            deadline_ns = now_linked;
            sleep = deadline_ns.map(crate::time::sleep_until);
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
