//! io_uring_enter(2): submitting, and waiting for completions.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::io_uring as abi;

use heddle_kernel_core::fallible::push_back_reserved;
use heddle_kernel_core::uring::{Sqe, SqeFlags};

use crate::arch::UserContext;
use crate::call::caller::Caller;
use crate::error::{Errno, TryResult};
use crate::fs::{OpenFile, downcast_arc};
use crate::memory::fallible;
use crate::sched;
use crate::sched::Budget;
use crate::signal::SignalSet;
use crate::syscall::fs::get_file;
use crate::syscall::fs::poll::{get_mask, get_timeout};
use crate::syscall::uring::completions::{Completion, Origin};
use crate::syscall::uring::operation;
use crate::syscall::uring::poller::Poller;
use crate::syscall::uring::registered_rings;
use crate::syscall::uring::request::{RequestChain, Submitter, code};
use crate::syscall::uring::ring::Uring;
use crate::syscall::{Call, SyscallResult, pending};
use crate::time::now_ns;
use crate::wait::engine::until;
use crate::wait::node::WaitKind;
use crate::wait::queue::{Events, Watch};

const KNOWN: u32 = abi::IORING_ENTER_GETEVENTS
    | abi::IORING_ENTER_SQ_WAKEUP
    | abi::IORING_ENTER_SQ_WAIT
    | abi::IORING_ENTER_EXT_ARG
    | abi::IORING_ENTER_REGISTERED_RING;

/// Entries that one call submits before it lets others have their turn.
const AT_ONCE: u32 = 32;
/// Units of work of one entry.
pub const ENTRY_COST: u32 = 8;

/// The ring behind the descriptor in argument 0.
///
/// # Errors
/// `EBADF`, `EOPNOTSUPP`.
pub fn get_ring(call: &Call<'_>) -> Result<Arc<Uring>, Errno> {
    downcast_arc(&get_file(call, 0)?.file).ok_or(Errno::EOPNOTSUPP)
}

/// The one that submits: there is one at a time.
pub struct Turn<'a> {
    ring: &'a Uring,
}

impl<'a> Turn<'a> {
    /// Becomes the one that submits, if there is none.
    pub fn try_take(ring: &'a Uring) -> Option<Self> {
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
pub enum Batch {
    /// It goes on with the next chain.
    GoesOn,
    /// There is no more, or an entry has ended it.
    Ends,
}

/// Takes a chain from the ring and starts it; adds what it took to `taken`.
///
/// # Errors
/// `ENOMEM`: nothing was taken.
pub fn submit_chain(
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
        if let Err(error) = operation::check(ring, &sqe) {
            refused = refused.or(Some((entries.len() - 1, error)));
        }
        if !sqe.is_linked() {
            break;
        }
    }
    if let Some((at, error)) = refused {
        // The first entry that cannot start says why, and takes its chain with it.
        let is_silent = entries.front().is_some_and(|sqe| sqe.has(SqeFlags::SKIP_SUCCESS));
        for (index, sqe) in entries.into_iter().enumerate() {
            if index == 0 || index == at || !is_silent {
                let result = code(if index == at { error } else { Errno::ECANCELED });
                ring.post(Completion::new(sqe.user_data, result, 0), Origin::Submission);
            }
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
    /// Whether it is the thread for which completions are deferred (`IORING_SETUP_DEFER_TASKRUN`).
    is_issuer: bool,
}

/// io_uring_enter(2).
pub fn io_uring_enter(call: &mut Call<'_>) -> SyscallResult {
    let (to_submit, flags) = (call.uint(1), call.uint(3));
    if flags & !KNOWN != 0 {
        return Err(Errno::EINVAL.into());
    }
    // It is held for as long as the call waits: a ring whose descriptor is closed meanwhile goes on until then.
    let is_registered = flags & abi::IORING_ENTER_REGISTERED_RING != 0;
    let open = if is_registered { registered_rings::get(call)? } else { get_file(call, 0)? };
    let ring: Arc<Uring> = downcast_arc(&open.file).ok_or(Errno::EOPNOTSUPP)?;
    if !ring.is_enabled.load(Ordering::Acquire) {
        return Err(Errno::EBADFD.into());
    }
    let wait = if flags & abi::IORING_ENTER_GETEVENTS == 0 { None } else { Some(get_wait(call, &ring)?) };
    if let Some(poller) = ring.poller.get() {
        return enter_polled(call, (open, &ring), poller, wait);
    }
    if to_submit > 0 {
        check_issuer(call, &ring)?;
    }
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
    // As in Linux, who asks for events has those requests go on first that have been woken, even if it waits for none.
    // Where there is something to take, only polls count that have been told of something: two events would be one
    // completion otherwise.
    let waits_for_none = wait.is_some_and(|wait| wait.completions == 0);
    let has_none = || ring.ready() == 0 && !ring.has_more() && ring.has_requests();
    let lets_go_on = waits_for_none && (ring.has_told_polls() || has_none());
    if is_over && !lets_go_on && wait.is_some_and(|wait| is_satisfied(&ring, wait)) {
        return ended(&ring, taken).map(Into::into).map_err(Into::into);
    }
    let caller = call.thread.clone();
    pending(async move {
        let _held = open;
        if !is_over {
            submit_rest(&ring, &caller, &mut taken, most).await?;
        }
        if lets_go_on {
            sched::yield_now().await;
        }
        let waited = match wait.filter(|_| taken == to_submit) {
            Some(wait) => wait_for_completions(&ring, &caller, wait).await,
            None => Ok(()),
        };
        if taken > 0 { Ok(taken as usize) } else { waited.and_then(|()| ended(&ring, 0)) }
    })
}

/// The result of a wait that has ended well: `EBADR` says that completions were lost.
fn ended(ring: &Uring, taken: u32) -> Result<usize, Errno> {
    if taken == 0 && ring.take_lost() { Err(Errno::EBADR) } else { Ok(taken as usize) }
}

/// As [`io_uring_enter`], of a ring whose submissions a coroutine takes: wakes that, and waits.
fn enter_polled(
    call: &Call<'_>,
    (open, ring): (Arc<OpenFile>, &Arc<Uring>),
    poller: &Arc<Poller>,
    wait: Option<CompletionWait>,
) -> SyscallResult {
    let (to_submit, flags) = (call.uint(1), call.uint(3));
    ring.flush(true);
    if poller.is_over() {
        return Err(Errno::EOWNERDEAD.into());
    }
    if flags & abi::IORING_ENTER_SQ_WAKEUP != 0 {
        poller.wake();
    }
    let waits_for_room = flags & abi::IORING_ENTER_SQ_WAIT != 0;
    if !waits_for_room && wait.is_none_or(|wait| is_satisfied(ring, wait)) {
        return Ok((to_submit as usize).into());
    }
    if let Some(mask) = wait.and_then(|wait| wait.mask) {
        call.thread.set_blocked_for_wait(mask);
    }
    let (caller, ring, poller) = (call.thread.clone(), ring.clone(), poller.clone());
    pending(async move {
        let _held = open;
        if waits_for_room {
            let has_room = |watch: &Watch| {
                ring.queue.watch(watch, Events::OUT)?;
                let has_room = ring.submitted() < ring.memory.layout.sq_entries || poller.is_over();
                Ok(has_room.then_some(()))
            };
            caller.wait_until(WaitKind::Interruptible, has_room).await?;
        }
        let waited = match wait {
            Some(wait) => wait_for_completions(&ring, &caller, wait).await,
            None => Ok(()),
        };
        if to_submit > 0 { Ok(to_submit as usize) } else { waited.map(|()| 0) }
    })
}

/// Whether the calling thread may use a ring of a single issuer.
///
/// # Errors
/// `EEXIST`.
pub fn check_issuer(call: &Call<'_>, ring: &Uring) -> Result<(), Errno> {
    let issuer = ring.issuer.load(Ordering::Relaxed);
    if issuer == 0 || issuer == call.thread.tid() as u32 { Ok(()) } else { Err(Errno::EEXIST) }
}

fn get_wait(call: &Call<'_>, ring: &Uring) -> TryResult<CompletionWait> {
    let completions = call.uint(2).min(ring.memory.layout.cq_entries);
    let (argument, size) = (call.word(4), call.word(5));
    let is_issuer = ring.issuer.load(Ordering::Relaxed) == call.thread.tid() as u32;
    if ring.setup & abi::IORING_SETUP_DEFER_TASKRUN != 0 && !is_issuer {
        return Err(Errno::EEXIST.into());
    }
    if call.uint(3) & abi::IORING_ENTER_EXT_ARG == 0 {
        let mask = get_mask(call, argument, size)?;
        return Ok(CompletionWait { completions, deadline_ns: None, mask, is_issuer });
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
        is_issuer,
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
fn is_satisfied(ring: &Uring, wait: CompletionWait) -> bool {
    ring.flush(wait.is_issuer);
    ring.ready() >= wait.completions
}

/// Waits for completions. As in Linux, a timeout that ends by itself ends the wait, however many are there.
///
/// # Errors
/// `ETIME`, `EINTR`, if there is none to take.
async fn wait_for_completions(ring: &Uring, caller: &Caller, wait: CompletionWait) -> Result<(), Errno> {
    let timeouts = ring.timeouts();
    let waited = until(caller, WaitKind::Interruptible, wait.deadline_ns, |watch| {
        ring.queue.watch(watch, Events::IN)?;
        // Timeouts counted here are in the ring after the flush.
        let has_fired = ring.timeouts() != timeouts;
        Ok((is_satisfied(ring, wait) || has_fired).then_some(()))
    });
    match waited.await {
        Ok(Some(())) => Ok(()),
        _ if ring.ready() > 0 => Ok(()),
        Ok(None) => Err(Errno::ETIME),
        Err(error) if error.is_restart() => Err(Errno::EINTR),
        Err(error) => Err(error),
    }
}
