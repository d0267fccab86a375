//! Native asynchronous I/O: `io_submit` and its relatives, as libaio has them.
//!
//! - [`context`]: the ring of events and the requests under way. A context is found by the address of its ring, which
//!   is a mapping of its space, and so ends with it.
//! - [`submit`]: how a control block becomes a request.
//!
//! A request that has to wait is a coroutine of the kernel, also where Linux would make the submitter wait.

pub mod context;
mod submit;

use heddle_kernel_core::aio::EVENT_BYTES;

use crate::call::caller::Caller;
use crate::error::Errno;
use crate::fs::aio_share::REQUESTS_MAX;
use crate::memory::source::Object as Backing;
use crate::memory::space::{Flags, MapRequest, Placement, Protection};
use crate::process::Resource;
use crate::sched::Budget;
use crate::syscall::aio::context::{AioContext, EventReader};
use crate::syscall::fs::get;
use crate::syscall::fs::poll::{get_mask, get_timeout};
use crate::syscall::{Call, SyscallResult, pending};
use crate::time::now_ns;
use crate::wait::engine::until;
use crate::wait::node::WaitKind;
use crate::wait::queue::Events;

pub use crate::syscall::aio::submit::io_submit;

/// Events that are copied in one go.
const AT_ONCE: usize = 16;
/// Units of work of one such copy.
const COPY_COST: u32 = 8;
/// Units of work of looking at one request.
const LOOK_COST: u32 = 2;

/// io_setup(2).
pub fn io_setup(call: &mut Call<'_>) -> SyscallResult {
    let (requests, result) = (call.uint(0), call.word(1));
    // More than Linux could count the bytes of.
    const IMPOSSIBLE: u32 = 0x1000_0000 / 64;
    if u64::from_ne_bytes(get(call, result)?) != 0 || requests == 0 || requests > IMPOSSIBLE {
        return Err(Errno::EINVAL.into());
    }
    if requests > REQUESTS_MAX {
        return Err(Errno::EAGAIN.into());
    }
    let caller = call.thread.clone();
    pending(async move {
        let space = caller.space();
        let context = AioContext::new(requests, &space).await?;
        let length = context.bytes();
        let limit = caller.process.limit(Resource::AddressSpace).soft;
        if (space.mapped_bytes() as u64).saturating_add(length as u64) > limit {
            return Err(Errno::ENOMEM);
        }
        let request = MapRequest {
            placement: Placement::Any,
            length,
            protection: Protection::READ | Protection::WRITE,
            flags: Flags::SHARED,
            object: Backing::Source(context.clone()),
            offset: 0,
            key: None,
        };
        let address = space.map(request).await?;
        let stored = caller.resolve(|space| space.write_bytes(result, &address.to_ne_bytes())).await;
        if stored.is_err() {
            context.close();
            space.unmap(address, length).await?;
        }
        stored.map(|()| 0)
    })
}

/// io_destroy(2).
pub fn io_destroy(call: &mut Call<'_>) -> SyscallResult {
    let (space, address) = (call.thread.space(), call.word(0));
    let context = AioContext::find(&space, address)?;
    if !context.close() {
        return Err(Errno::EINVAL.into());
    }
    let caller = call.thread.clone();
    pending(async move {
        let mut budget = Budget::new();
        let mut from = (0, 0);
        while let Some(((address, number), request)) = context.next_from(from) {
            caller.pace(&mut budget, LOOK_COST).await?;
            if let Some(request) = request {
                request.kill();
            }
            from = (address, number + 1);
        }
        let ended = caller.wait_until(WaitKind::Killable, |watch| {
            context.queue.watch(watch, Events::IN)?;
            Ok(context.is_idle().then_some(()))
        });
        ended.await?;
        space.unmap(address, context.bytes()).await?;
        Ok(0)
    })
}

/// io_cancel(2): only what waits for events can be cancelled, as in Linux.
pub fn io_cancel(call: &mut Call<'_>) -> SyscallResult {
    const KEY_AT: usize = 8;
    let (address, control) = (call.word(0), call.word(1));
    let key = u32::from_ne_bytes(get(call, control.wrapping_add(KEY_AT))?);
    let context = AioContext::find(&call.thread.space(), address)?;
    let request = context.find_poll(control as u64).filter(|_| key == 0).ok_or(Errno::EINVAL)?;
    request.cancel();
    // The event says the rest.
    Err(Errno::EINPROGRESS.into())
}

/// io_getevents(2).
pub fn io_getevents(call: &mut Call<'_>) -> SyscallResult {
    take_events(call)
}

/// io_pgetevents(2).
pub fn io_pgetevents(call: &mut Call<'_>) -> SyscallResult {
    let argument = call.word(5);
    if argument != 0 {
        let [mask, size] = call.thread.space().read::<[u64; 2]>(argument)?;
        if let Some(mask) = get_mask(call, mask as usize, size as usize)? {
            call.thread.set_blocked_for_wait(mask);
        }
    }
    take_events(call)
}

fn take_events(call: &Call<'_>) -> SyscallResult {
    let (least, most) = (call.word(1).cast_signed(), call.word(2).cast_signed());
    let timeout = get_timeout(call, call.word(4))?;
    let context = AioContext::find(&call.thread.space(), call.word(0))?;
    let (Ok(least), Ok(most)) = (usize::try_from(least), usize::try_from(most)) else {
        return Err(Errno::EINVAL.into());
    };
    if least > most {
        return Err(Errno::EINVAL.into());
    }
    let deadline_ns = timeout.map(|timeout| now_ns().saturating_add(timeout));
    let (caller, address) = (call.thread.clone(), call.word(3));
    pending(async move {
        let mut taken = 0;
        loop {
            match copy_events(&context, &caller, address, (taken, most)).await {
                Ok(copied) => taken += copied,
                Err(error) if taken == 0 => return Err(error),
                Err(_) => return Ok(taken),
            }
            if taken >= least {
                return Ok(taken);
            }
            let waited = until(&caller, WaitKind::Interruptible, deadline_ns, |watch| {
                context.queue.watch(watch, Events::IN)?;
                if context.is_closed() {
                    return Err(Errno::EINVAL);
                }
                Ok((context.ready() > 0).then_some(()))
            });
            match waited.await {
                Ok(Some(())) => {}
                Ok(None) => return Ok(taken),
                Err(_) if taken > 0 => return Ok(taken),
                Err(error) if error.is_restart() => return Err(Errno::EINTR),
                Err(error) => return Err(error),
            }
        }
    })
}

/// Copies events to the program's array, behind the first `taken`, until there are none or `most`; returns how many.
async fn copy_events(
    context: &AioContext,
    caller: &Caller,
    address: usize,
    (taken, most): (usize, usize),
) -> Result<usize, Errno> {
    let turn = caller.wait_until(WaitKind::Killable, |watch| {
        context.queue.watch(watch, Events::OUT)?;
        Ok(EventReader::try_new(context))
    });
    let reader = turn.await?;
    let mut budget = Budget::new();
    let mut copied = 0;
    loop {
        let mut events = [[0; EVENT_BYTES]; AT_ONCE];
        let room = (most - taken - copied).min(AT_ONCE);
        let count = reader.peek(&mut events[..room]);
        if count == 0 {
            return Ok(copied);
        }
        let place = address.wrapping_add((taken + copied) * EVENT_BYTES);
        let stored = caller.resolve(|space| space.write_bytes(place, events[..count].as_flattened())).await;
        match stored {
            Ok(()) => {}
            Err(error) if copied == 0 => return Err(error),
            Err(_) => return Ok(copied),
        }
        reader.advance(count);
        copied += count;
        if caller.pace(&mut budget, COPY_COST).await.is_err() {
            return Ok(copied);
        }
    }
}
