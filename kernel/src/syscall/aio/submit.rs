//! io_submit(2).

use alloc::sync::Arc;
use linux_raw_sys::general::__NR_poll;

use heddle_kernel_core::aio::{
    AioOperation, CONTROL_BYTES, ControlBlock, HAS_PRIORITY, InvalidControl, TELLS_COUNTER,
};

use crate::call::CallFuture;
use crate::call::asynchronous::AsyncRequest;
use crate::call::asynchronous::charge::charged;
use crate::call::caller::Caller;
use crate::error::Errno;
use crate::fs::eventfd::EventCounter;
use crate::fs::{OpenFile, StatusFlags, downcast_arc};
use crate::memory::fallible;
use crate::process::executor;
use crate::sched;
use crate::sched::Budget;
use crate::syscall::aio::context::{AioContext, ControlKey, PendingControl};
use crate::syscall::submitted::{Attempt, attempt_later};
use crate::syscall::uring::level_of_priority;
use crate::syscall::{Call, SyscallResult, pending};
use crate::wait::node::WaitKind;
use crate::wait::queue::Events;

/// Units of work of one control block, beside the work that it asks for.
const CONTROL_COST: u32 = 8;

/// io_submit(2).
pub fn io_submit(call: &mut Call<'_>) -> SyscallResult {
    let (count, list) = (call.word(1).cast_signed(), call.word(2));
    let context = AioContext::find(&call.thread.space(), call.word(0))?;
    let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
    let caller = call.thread.clone();
    pending(async move {
        let mut budget = Budget::new();
        for index in 0..count {
            let mut submitted = caller.pace(&mut budget, CONTROL_COST).await;
            if submitted.is_ok() {
                submitted = submit_one(&context, &caller, list.wrapping_add(index * size_of::<u64>())).await;
            }
            match submitted {
                Ok(()) => {}
                Err(error) if index == 0 => return Err(error),
                Err(_) => return Ok(index),
            }
        }
        Ok(count)
    })
}

/// Starts the request whose control block is named by the word at `place`.
async fn submit_one(context: &Arc<AioContext>, caller: &Caller, place: usize) -> Result<(), Errno> {
    const KEY_AT: usize = 8;
    let address = caller.resolve(|space| space.read::<u64>(place)).await? as usize;
    let mut bytes = [0; CONTROL_BYTES];
    caller.resolve(|space| space.read_bytes(address, &mut bytes)).await?;
    let block = ControlBlock::parse(&bytes);
    if block.reserved != 0 {
        return Err(Errno::EINVAL);
    }
    let open = caller.descriptors().get(block.fd)?;
    if open.flags().contains(StatusFlags::PATH) {
        return Err(Errno::EBADF);
    }
    let mut counter = None;
    if block.flags & TELLS_COUNTER != 0 {
        let file = caller.descriptors().get(block.counter)?.file.clone();
        counter = Some(downcast_arc::<EventCounter>(&file).ok_or(Errno::EINVAL)?);
    }
    // A program may ask io_cancel(2) with it.
    caller.resolve(|space| space.write_bytes(address.wrapping_add(KEY_AT), &[0; 4])).await?;
    let priority = if block.flags & HAS_PRIORITY != 0 { block.priority } else { 0 };
    let level = level_of_priority(priority)?;
    if block.reads() && !open.is_readable() || block.writes() && !open.is_writable() {
        return Err(Errno::EBADF);
    }
    let operation = block.operation(open.file.is_seekable()).map_err(|refused| match refused {
        InvalidControl::Invalid => Errno::EINVAL,
        InvalidControl::NotSupported => Errno::EOPNOTSUPP,
    })?;
    let number = match operation {
        AioOperation::Call(call) => call.number,
        AioOperation::Poll(_) => __NR_poll,
    };
    let request = AsyncRequest::new(None, caller, (number, level), [0; 2])?;
    request.set_file(open.clone());
    let pending = PendingControl {
        data: block.data,
        counter,
        request: Some(request.clone()),
        is_poll: block.is_poll(),
    };
    let key = context.enter(address as u64, pending)?;
    let started = start(context, caller, (key, request.clone()), operation, open).await;
    if started.is_err() {
        request.release_file();
        request.release();
        context.leave(key);
    }
    started
}

/// Carries out what need not wait, and makes a coroutine of what does.
async fn start(
    context: &Arc<AioContext>,
    caller: &Caller,
    (key, request): (ControlKey, Arc<AsyncRequest>),
    operation: AioOperation,
    open: Arc<OpenFile>,
) -> Result<(), Errno> {
    let future: CallFuture = match operation {
        AioOperation::Poll(events) => {
            let wait = wait_for_events(request.clone(), open, Events::from_bits_truncate(events));
            alloc::boxed::Box::into_pin(fallible::try_box(wait)?)
        }
        AioOperation::Call(call) => {
            drop(open);
            match attempt_later(&request, &call.into()).await {
                Ok(Attempt::Waits(future)) => future,
                done => {
                    let result = match done {
                        Ok(Attempt::Done(result)) => result,
                        Ok(Attempt::Waits(_)) => return Err(Errno::EINVAL),
                        Err(error) => Err(error),
                    };
                    end(context, (key, &request), result).await;
                    return Ok(());
                }
            }
        }
    };
    let calls = &caller.process.asynchronous;
    calls.enter(&request)?;
    let priority = executor::priority_of(caller, request.level());
    let (own, its_request) = (context.clone(), request.clone());
    let coroutine = charged(request.thread.clone(), move || run(own, key, its_request, future));
    let spawned = sched::spawn(priority, coroutine);
    if spawned.is_err() {
        calls.leave(&request, 0);
    } else if context.is_closed() {
        // Whoever closed it may have looked before the request was there to be ended.
        request.kill();
    }
    spawned.map(drop)
}

/// The coroutine of a request.
async fn run(context: Arc<AioContext>, key: ControlKey, request: Arc<AsyncRequest>, mut future: CallFuture) {
    request.begin();
    let result = core::future::poll_fn(|task| {
        request.polled(task);
        future.as_mut().poll(task)
    })
    .await;
    drop(future);
    let process = request.thread.process.clone();
    end(&context, (key, &request), result).await;
    drop(context);
    process.asynchronous.leave(&request, 0);
}

/// Makes an event of a result. Nothing of the request is left when the event is seen.
async fn end(
    context: &AioContext,
    (key, request): (ControlKey, &Arc<AsyncRequest>),
    result: Result<usize, Errno>,
) {
    let is_over = || request.is_interrupted(WaitKind::Killable);
    let result = request.late.store(&request.space(), is_over).await.and(result);
    let result = request.outcome(result);
    request.release_file();
    request.release();
    context.end(key, result);
}

/// Waits until a file is ready. A poll that is cancelled ends without an event of the file.
async fn wait_for_events(
    request: Arc<AsyncRequest>,
    open: Arc<OpenFile>,
    events: Events,
) -> Result<usize, Errno> {
    let wanted = events | Events::ERR | Events::HUP;
    let caller = Caller::Request(request);
    let waited = caller.wait_until(WaitKind::Interruptible, |watch| {
        let ready = open.file.poll(&open, Some(watch), wanted)?.intersection(wanted);
        Ok((!ready.is_empty()).then_some(ready))
    });
    match waited.await {
        Ok(ready) => Ok(ready.bits() as usize),
        Err(error) if error.is_restart() || error == Errno::EINTR => Ok(0),
        Err(error) => Err(error),
    }
}
