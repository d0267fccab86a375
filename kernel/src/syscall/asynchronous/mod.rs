//! The system calls for system calls that go on by themselves: see [`heddle_abi::call`].

use alloc::sync::Arc;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::Poll;
use heddle_abi::call::{CANCEL_AND_WAIT, DONE, ENTRY_STATE, ENTRY_WORDS, Entry, FOR_EVER, SUBMIT_MAX, WAITS};
use heddle_kernel_core::fallible::push_back_reserved;

use crate::arch::UserContext;
use crate::call::asynchronous::charge::charged;
use crate::call::asynchronous::request::{AsyncRequest, run};
use crate::call::asynchronous::ring::Ring;
use crate::call::asynchronous::{Calls, RingSleeper, is_async_capable};
use crate::call::caller::Caller;
use crate::error::{Errno, TryError};
use crate::memory::fallible;
use crate::memory::user::PageFault;
use crate::process::{executor, futex};
use crate::sched;
use crate::signal::{PendingWork, filter};
use crate::syscall::{Call, CallFuture, SyscallResult, SyscallState, pending, start_call, user};
use crate::time::Deadline;
use crate::wait::node::WaitKind;
use crate::wait::queue::Events;

/// The least urgent level.
const LEVEL_MAX: u64 = 63;

/// The result of an asynchronous call: [`Entry::state`] and [`Entry::outcome`].
type Answer = [u64; 2];

/// Gives the room back that was not used.
struct Admission<'a> {
    calls: &'a Calls,
    left: u32,
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        self.calls.release_credits(self.left);
    }
}

/// Starts calls.
pub fn submit(call: &mut Call<'_>) -> SyscallResult {
    let (address, count) = (call.word(0), call.word(1));
    if count == 0 || count > SUBMIT_MAX || !address.is_multiple_of(8) {
        return Err(Errno::EINVAL.into());
    }
    let caller = call.thread;
    let calls = &caller.process.asynchronous;
    let space = caller.space();
    let mut admission = Admission { calls, left: calls.admit(count as u32, &space)? };
    let admitted = admission.left as usize;
    let mut unused = None;
    for index in 0..admitted {
        let entry = address + index * size_of::<Entry>();
        let words = match space.read::<[u64; ENTRY_WORDS]>(entry) {
            Ok(words) => words,
            // Nothing has happened yet.
            Err(fault) if index == 0 => return Err(fault.into()),
            Err(_) => return Ok(index.into()),
        };
        let answer = match start_one(call, &words, &mut unused) {
            Ok(answer) => answer,
            Err(error) if index == 0 => return Err(error.into()),
            Err(_) => return Ok(index.into()),
        };
        if answer[0] == WAITS {
            admission.left -= 1;
        }
        if user::write_words(&space, entry + ENTRY_STATE, &answer).is_err() {
            // The page is missing, or another thread has changed the mapping; the call must not be started again.
            let caller = caller.clone();
            return pending(async move {
                caller.resolve(|space| user::write_words(space, entry + ENTRY_STATE, &answer)).await?;
                Ok(index + 1)
            });
        }
    }
    Ok(admitted.into())
}

/// Starts a call, described by the first words of an [`Entry`]. `unused` is where a request is left of which nothing
/// has become, for the next call: most that a program hands in need not wait.
fn start_one(
    call: &mut Call<'_>,
    words: &[u64; ENTRY_WORDS],
    unused: &mut Option<Arc<AsyncRequest>>,
) -> Result<Answer, Errno> {
    let [head, cookie, coroutine, arguments @ ..] = *words;
    let (number, level) = (head as u32, (head >> 32).min(LEVEL_MAX) as u8);
    let request = AsyncRequest::new(unused.take(), call.thread, (number, level), [cookie, coroutine])?;
    let mut done = |request: Arc<AsyncRequest>, result| {
        let outcome = request.outcome(result) as u64;
        *unused = Some(request);
        Ok([DONE, outcome])
    };
    if !is_async_capable(number) {
        return done(request, Err(Errno::ENOSYS));
    }
    if call.thread.work().contains(PendingWork::FILTERED)
        && let Err(error) = filter::check_request(call.thread, number, arguments)
    {
        return done(request, Err(error));
    }
    let arguments = arguments.map(|word| word as usize);
    let started = {
        let caller = Caller::Request(request.clone());
        start_call(number as usize, &mut Call::with_arguments(&caller, call.context, arguments))
    };
    match started {
        Ok(SyscallState::Done(value)) if request.late.is_empty() => done(request, Ok(value)),
        Ok(SyscallState::Done(value)) => {
            let future: CallFuture =
                alloc::boxed::Box::into_pin(fallible::try_box(async move { Ok(value) })?);
            spawn(call.thread, request, future)
        }
        Ok(SyscallState::Yield) => done(request, Ok(0)),
        Ok(SyscallState::Pending(future)) => spawn(call.thread, request, future),
        Err(TryError::Error(error)) => done(request, Err(error)),
        Err(TryError::WouldBlock) => done(request, Err(Errno::EAGAIN)),
        Err(TryError::Fault(fault)) => {
            let later = start_later(request.clone(), number as usize, arguments, fault);
            let future: CallFuture = alloc::boxed::Box::into_pin(fallible::try_box(later)?);
            spawn(call.thread, request, future)
        }
    }
}

/// Lets a call go on by itself.
fn spawn(caller: &Caller, request: Arc<AsyncRequest>, future: CallFuture) -> Result<Answer, Errno> {
    let calls = &caller.process.asynchronous;
    let token = calls.enter(&request)?;
    let priority = executor::priority_of(caller, request.level());
    let its_request = request.clone();
    let coroutine = charged(Arc::clone(caller), move || run(its_request, future));
    match sched::spawn(priority, coroutine) {
        Ok(task) => request.is_carried_by(task),
        Err(error) => {
            // The future is gone; the room is still the caller's.
            let taken = calls.state.lock().leave(&request);
            drop(taken);
            request.release();
            return Err(error);
        }
    }
    Ok([WAITS, token])
}

/// Gives a call another level.
pub fn set_level(call: &mut Call<'_>) -> SyscallResult {
    let (token, level) = (call.word(0) as u64, call.word(1) as u64);
    if level > LEVEL_MAX {
        return Err(Errno::EINVAL.into());
    }
    let request = call.thread.process.asynchronous.find(token).ok_or(Errno::ENOENT)?;
    request.set_level(level as u8);
    Ok(0.into())
}

/// Cancels a call: nothing that comes from now on is lost with it.
pub fn cancel(call: &mut Call<'_>) -> SyscallResult {
    let (token, flags) = (call.word(0) as u64, call.word(1) as u64);
    if flags & !CANCEL_AND_WAIT != 0 {
        return Err(Errno::EINVAL.into());
    }
    let request = call.thread.process.asynchronous.find(token).ok_or(Errno::ENOENT)?;
    request.cancel();
    if flags & CANCEL_AND_WAIT == 0 && !request.fate.is_busy() {
        return Ok(0.into());
    }
    if flags & CANCEL_AND_WAIT == 0 {
        // Another CPU is in the midst of it: what it takes until it has seen the cancellation, it takes before that.
        return pending(async move {
            while request.fate.is_busy() {
                sched::yield_now().await;
            }
            Ok(0)
        });
    }
    let caller = call.thread.clone();
    pending(async move {
        let calls = &caller.process.asynchronous;
        loop {
            let waited = caller.wait_until(WaitKind::Uninterruptible, |watch| {
                calls.ended.watch(watch, Events::all())?;
                Ok(request.fate.is_over().then_some(()))
            });
            if waited.await.is_ok() {
                return Ok(0);
            }
            // Without memory for a watch, look again when everyone else has had a turn.
            sched::yield_now().await;
        }
    })
}

/// Registers a ring.
pub fn ring(call: &mut Call<'_>) -> SyscallResult {
    let mut ring = Ring::new(call.word(0), call.uint(1))?;
    let space = call.thread.space();
    space.probe_write(call.word(0), heddle_abi::call::RING_HEADER_BYTES)?;
    let mut state = call.thread.process.asynchronous.state.lock();
    if let Some(before) = &state.ring {
        ring.producer = before.producer.replaced_by(call.uint(1)).ok_or(Errno::EBUSY)?;
    }
    ring.clear(&space)?;
    state.ring = Some(ring);
    Ok(0.into())
}

/// Takes a sleeper off the list when it stops sleeping for another reason than its wake.
struct RingWait {
    caller: Caller,
    sleeper: Arc<RingSleeper>,
}

impl Drop for RingWait {
    fn drop(&mut self) {
        let mut state = self.caller.process.asynchronous.state.lock();
        let position = state.sleepers.iter().position(|each| Arc::ptr_eq(each, &self.sleeper));
        let taken = position.and_then(|position| state.sleepers.remove(position));
        drop(state);
        drop(taken);
    }
}

/// Sleeps until there is something in the ring, or a futex wakes the thread.
pub fn wait(call: &mut Call<'_>) -> SyscallResult {
    let (word, value, seen, timeout_ns) = (call.word(0), call.uint(1), call.uint(2), call.word(3) as u64);
    let calls = &call.thread.process.asynchronous;
    let deadline = if timeout_ns == FOR_EVER { Deadline::NEVER } else { Deadline::after(Some(timeout_ns)) };
    let woken = futex::enter(call.thread, word, value)?;
    let sleeper =
        fallible::try_arc(RingSleeper { thread: Arc::clone(call.thread), is_woken: AtomicBool::new(false) })?;
    {
        let mut state = calls.state.lock();
        if state.ring.as_ref().ok_or(Errno::ENXIO)?.producer.tail() != seen {
            return Ok(0.into());
        }
        state.sleepers.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        push_back_reserved(&mut state.sleepers, sleeper.clone());
    }
    let sleep = RingWait { caller: call.thread.clone(), sleeper };
    pending(async move {
        let mut time = deadline.sleep();
        let waiting = core::future::poll_fn(|context| {
            if woken.is_woken() || sleep.sleeper.is_woken.load(Ordering::Acquire) {
                return Poll::Ready(Ok(0));
            }
            Pin::new(&mut time).poll(context).map(|()| Err(Errno::ETIMEDOUT))
        });
        sleep.caller.wait(WaitKind::Interruptible, waiting).await.unwrap_or(Err(Errno::EINTR))
    })
}

/// Starts a call that missed a page which is not in memory, once that is there.
async fn start_later(
    request: Arc<AsyncRequest>,
    number: usize,
    arguments: [usize; 6],
    mut missing: PageFault,
) -> Result<usize, Errno> {
    loop {
        let space = request.space();
        space.fault_in_for(missing, || request.is_interrupted(WaitKind::Killable)).await?;
        let started = {
            let caller = Caller::Request(request.clone());
            let mut context = fallible::try_box(UserContext::new_user())?;
            start_call(number, &mut Call::with_arguments(&caller, &mut context, arguments))
        };
        match started {
            Ok(SyscallState::Done(value)) => return Ok(value),
            Ok(SyscallState::Pending(future)) => return future.await,
            Ok(SyscallState::Yield) => return Ok(0),
            Err(TryError::Error(error)) => return Err(error),
            Err(TryError::WouldBlock) => return Err(Errno::EAGAIN),
            Err(TryError::Fault(fault)) => missing = fault,
        }
        sched::yield_now().await;
    }
}
