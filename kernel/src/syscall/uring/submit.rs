//! io_uring_enter(2): submitting, and waiting for completions.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::io_uring as abi;

use heddle_kernel_core::fallible::push_back_reserved;
use heddle_kernel_core::uring::Sqe;

use crate::arch::UserContext;
use crate::call::caller::Caller;
use crate::error::{Errno, TryResult};
use crate::fs::downcast_arc;
use crate::memory::fallible;
use crate::sched::Budget;
use crate::signal::SignalSet;
use crate::syscall::fs::get_file;
use crate::syscall::fs::poll::{get_mask, get_timeout};
use crate::syscall::uring::operation;
use crate::syscall::uring::request::{RequestChain, Submitter, code};
use crate::syscall::uring::ring::Uring;
use crate::syscall::{Call, SyscallResult, pending};
use crate::time::now_ns;
use crate::wait::engine::until;
use crate::wait::node::WaitKind;
use crate::wait::queue::Events;

const KNOWN: u32 = abi::IORING_ENTER_GETEVENTS | abi::IORING_ENTER_EXT_ARG;

/// Entries that one call submits before it lets others have their turn.
const AT_ONCE: u32 = 32;
/// Units of work of one entry.
const ENTRY_COST: u32 = 8;

/// The ring behind the descriptor in argument 0.
///
/// # Errors
/// `EBADF`, `EOPNOTSUPP`.
pub fn get_ring(call: &Call<'_>) -> Result<Arc<Uring>, Errno> {
    downcast_arc(&get_file(call, 0)?.file).ok_or(Errno::EOPNOTSUPP)
}

/// The one that submits: there is one at a time.
struct Turn<'a> {
    ring: &'a Uring,
}

impl<'a> Turn<'a> {
    fn try_take(ring: &'a Uring) -> Option<Self> {
        let was_taken = core::mem::replace(&mut ring.submission.lock().is_taken, true);
        (!was_taken).then_some(Self { ring })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.ring.submission.lock().is_taken = false;
        self.ring.queue.wake(Events::OUT | Events::WRNORM);
    }
}

/// The result of a batch.
enum Batch {
    /// It goes on with the next chain.
    GoesOn,
    /// There is no more, or an entry has ended it.
    Ends,
}

/// Takes a chain from the ring and starts it; adds what it took to `taken`.
fn submit_chain(
    ring: &Arc<Uring>,
    submitter: &mut Submitter<'_>,
    taken: &mut u32,
    most: u32,
) -> Result<Batch, Errno> {
    let mut entries: VecDeque<Sqe> = VecDeque::new();
    let mut refused = None;
    while *taken < most {
        // Without memory nothing has been taken.
        entries.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let Ok(Some(sqe)) = ring.take_sqe() else { break };
        *taken += 1;
        push_back_reserved(&mut entries, sqe);
        if let Err(error) = operation::check(&sqe) {
            refused = refused.or(Some((sqe.user_data, error)));
        }
        if !sqe.is_linked() {
            break;
        }
    }
    if let Some((user_data, error)) = refused {
        // The first entry that cannot start says why, and takes its chain with it.
        let mut is_told = false;
        for sqe in entries {
            let is_it = !is_told && sqe.user_data == user_data && operation::check(&sqe).is_err();
            is_told |= is_it;
            ring.post(sqe.user_data, code(if is_it { error } else { Errno::ECANCELED }), 0);
        }
        let goes_on = ring.setup & abi::IORING_SETUP_SUBMIT_ALL != 0;
        return Ok(if goes_on { Batch::GoesOn } else { Batch::Ends });
    }
    if entries.is_empty() {
        return Ok(Batch::Ends);
    }
    let sequence = {
        let mut submission = ring.submission.lock();
        submission.sequence += 1;
        submission.sequence
    };
    RequestChain::new(ring.clone(), entries, sequence).start(submitter);
    Ok(Batch::GoesOn)
}

/// The event that the program waits for, after submitting.
#[derive(Clone, Copy)]
struct CompletionWait {
    completions: u32,
    deadline_ns: Option<u64>,
    mask: Option<SignalSet>,
}

/// io_uring_enter(2).
pub fn io_uring_enter(call: &mut Call<'_>) -> SyscallResult {
    let (to_submit, flags) = (call.uint(1), call.uint(3));
    if flags & !KNOWN != 0 {
        return Err(Errno::EINVAL.into());
    }
    let ring = get_ring(call)?;
    if !ring.is_enabled.load(Ordering::Acquire) {
        return Err(Errno::EBADFD.into());
    }
    let wait = if flags & abi::IORING_ENTER_GETEVENTS == 0 { None } else { Some(get_wait(call, &ring)?) };
    check_issuer(call, &ring)?;
    let most = to_submit.min(ring.submitted());
    let mut taken = 0;
    let mut is_over = most == 0;
    if !is_over && let Some(_turn) = Turn::try_take(&ring) {
        let mut submitter = Submitter { caller: call.thread, context: call.context, unused: None };
        while taken < most.min(AT_ONCE) && !is_over {
            match submit_chain(&ring, &mut submitter, &mut taken, most) {
                Ok(Batch::GoesOn) => {}
                Ok(Batch::Ends) => is_over = true,
                Err(error) if taken == 0 => return Err(error.into()),
                Err(_) => is_over = true,
            }
        }
        is_over |= taken >= most;
    }
    if is_over && (taken != to_submit || wait.is_none()) {
        return Ok((taken as usize).into());
    }
    if let Some(mask) = wait.and_then(|wait| wait.mask) {
        call.thread.set_blocked_for_wait(mask);
    }
    if is_over && wait.is_some_and(|wait| is_satisfied(&ring, wait.completions)) {
        return Ok((taken as usize).into());
    }
    let caller = call.thread.clone();
    pending(async move {
        if !is_over {
            submit_rest(&ring, &caller, &mut taken, most).await?;
        }
        let waited = match wait.filter(|_| taken == to_submit) {
            Some(wait) => wait_for_completions(&ring, &caller, wait).await,
            None => Ok(()),
        };
        if taken > 0 { Ok(taken as usize) } else { waited.map(|()| 0) }
    })
}

fn check_issuer(call: &Call<'_>, ring: &Uring) -> Result<(), Errno> {
    if ring.setup & abi::IORING_SETUP_SINGLE_ISSUER == 0 {
        return Ok(());
    }
    let own = call.thread.tid() as u32;
    match ring.issuer.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed) {
        Err(other) if other != own => Err(Errno::EEXIST),
        _ => Ok(()),
    }
}

fn get_wait(call: &Call<'_>, ring: &Uring) -> TryResult<CompletionWait> {
    let completions = call.uint(2).min(ring.memory.layout.cq_entries);
    let (argument, size) = (call.word(4), call.word(5));
    if call.uint(3) & abi::IORING_ENTER_EXT_ARG == 0 {
        return Ok(CompletionWait { completions, deadline_ns: None, mask: get_mask(call, argument, size)? });
    }
    if size != size_of::<abi::io_uring_getevents_arg>() {
        return Err(Errno::EINVAL.into());
    }
    let [mask, sizes, timeout] = call.thread.space().read::<[u64; 3]>(argument)?;
    if sizes >> 32 != 0 {
        return Err(Errno::EINVAL.into());
    }
    let mask = get_mask(call, mask as usize, sizes as u32 as usize)?;
    let timeout = get_timeout(call, timeout as usize)?;
    Ok(CompletionWait {
        completions,
        deadline_ns: timeout.map(|timeout| now_ns().saturating_add(timeout)),
        mask,
    })
}

/// Submits what is left of a batch.
async fn submit_rest(ring: &Arc<Uring>, caller: &Caller, taken: &mut u32, most: u32) -> Result<(), Errno> {
    let turn = caller.wait_until(WaitKind::Killable, |watch| {
        ring.queue.watch(watch, Events::OUT)?;
        Ok(Turn::try_take(ring))
    });
    let _turn = turn.await?;
    let mut budget = Budget::exhausted();
    while *taken < most {
        caller.pace(&mut budget, ENTRY_COST).await?;
        let mut context = fallible::try_box(UserContext::new_user())?;
        let mut submitter = Submitter { caller, context: &mut context, unused: None };
        match submit_chain(ring, &mut submitter, taken, most) {
            Ok(Batch::GoesOn) => {}
            Err(error) if *taken == 0 => return Err(error),
            Ok(Batch::Ends) | Err(_) => break,
        }
    }
    Ok(())
}

/// Whether there are so many completions to take.
fn is_satisfied(ring: &Uring, completions: u32) -> bool {
    ring.flush();
    ring.ready() >= completions
}

/// Waits for completions.
///
/// # Errors
/// `ETIME`, `EINTR`, if there is none to take.
async fn wait_for_completions(ring: &Uring, caller: &Caller, wait: CompletionWait) -> Result<(), Errno> {
    let waited = until(caller, WaitKind::Interruptible, wait.deadline_ns, |watch| {
        ring.queue.watch(watch, Events::IN)?;
        Ok(is_satisfied(ring, wait.completions).then_some(()))
    });
    match waited.await {
        Ok(Some(())) => Ok(()),
        _ if ring.ready() > 0 => Ok(()),
        Ok(None) => Err(Errno::ETIME),
        Err(error) if error.is_restart() => Err(Errno::EINTR),
        Err(error) => Err(error),
    }
}
