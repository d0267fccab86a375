//! Waiting for events: `IORING_OP_POLL_ADD`, and its changes by `IORING_OP_POLL_REMOVE`.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};
use linux_raw_sys::io_uring::{
    IORING_CQE_F_MORE, IORING_POLL_ADD_LEVEL, IORING_POLL_ADD_MULTI, IORING_POLL_UPDATE_EVENTS,
    IORING_POLL_UPDATE_USER_DATA, io_uring_op as Op,
};

use heddle_kernel_core::uring::{Sqe, SqeFlags};

use crate::call::caller::Caller;
use crate::error::{Errno, TryResult};
use crate::fs::{FileType, OpenFile};
use crate::memory::fallible;
use crate::syscall::uring::completions::{Completion, Origin};
use crate::syscall::uring::operation::{OpenEntry, StartedEntry, is_cancelled, new_active, pin};
use crate::syscall::uring::request::{Submitter, UringRequest, Uses};
use crate::syscall::uring::ring::Uring;
use crate::wait::node::WaitKind;
use crate::wait::queue::{Events, Listener, RelayQueue, Watch};

/// The events that a request waits for.
fn wanted(events: u32) -> Events {
    Events::from_bits_truncate(events) | Events::ERR | Events::HUP
}

/// `IORING_OP_POLL_ADD`.
pub fn add(
    ring: &Arc<Uring>,
    submitter: &mut Submitter<'_>,
    sqe: &Sqe,
    (open, resource): OpenEntry,
) -> TryResult<StartedEntry> {
    const KNOWN: u32 = IORING_POLL_ADD_MULTI | IORING_POLL_ADD_LEVEL;
    let is_multishot = sqe.len & IORING_POLL_ADD_MULTI != 0;
    let is_plain = sqe.off == 0 && sqe.addr == 0 && sqe.buf_index == 0;
    if sqe.len & !KNOWN != 0 || !is_plain || is_multishot && sqe.has(SqeFlags::SKIP_SUCCESS) {
        return Err(Errno::EINVAL.into());
    }
    let wanted = wanted(sqe.op_flags);
    if !is_multishot {
        let ready = open.file.poll(&open, None, wanted)?.intersection(wanted);
        if !ready.is_empty() {
            return Ok(StartedEntry::Done(ready.bits() as i32, 0));
        }
    }
    let uses = Uses { file: resource, ..Uses::default() };
    let active = new_active(submitter, sqe, linux_raw_sys::general::__NR_poll, (0, uses))?;
    active.request.set_file(open.clone());
    active.events.store(sqe.op_flags, Ordering::Relaxed);
    // The watch stands when the submission is over, so that what happens from then on is told of once: an event that
    // came between a later registration and its look would be seen by both.
    let registration = PollRegistration(PollListener::new(ring)?);
    let found = registration.look(&open, wanted)?;
    let poll = RegisteredPoll { open, registration, found: Some(found), is_multishot };
    Ok(StartedEntry::Waits(active.clone(), pin(wait_for_events(ring.clone(), active, poll))?))
}

/// The registration of a poll at its file: it notes what it is told, as the file may be drained again before the
/// request has its turn, and an event counts all the same.
struct PollListener {
    generation: AtomicU32,
    /// Events, or [`OVER`].
    noted: AtomicU32,
    /// See [`Uring::told_polls`].
    told: Arc<AtomicU32>,
    relay: Arc<RelayQueue>,
}

/// The registration has ended: a wake that comes still is nobody's.
const OVER: u32 = 1 << 31;

impl PollListener {
    fn new(ring: &Uring) -> Result<Arc<Self>, Errno> {
        let (generation, noted) = (AtomicU32::new(0), AtomicU32::new(0));
        let told = ring.told_polls.clone();
        fallible::try_arc(Self { generation, noted, told, relay: RelayQueue::new()? })
    }

    /// Takes what was noted.
    fn take(&self, then: u32) -> u32 {
        let noted = self.noted.swap(then, Ordering::AcqRel);
        if noted != 0 {
            self.told.fetch_sub(1, Ordering::Relaxed);
        }
        noted
    }
}

impl Listener for PollListener {
    fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    fn notify(self: Arc<Self>, events: Events) {
        // Counted before it is noted, so that whoever takes it finds it counted.
        self.told.fetch_add(1, Ordering::Relaxed);
        let is_first = !events.is_empty() && self.noted.fetch_or(events.bits(), Ordering::AcqRel) == 0;
        if !is_first {
            self.told.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn relay(&self) -> &Arc<RelayQueue> {
        &self.relay
    }
}

/// Ends the registration when it is dropped.
struct PollRegistration(Arc<PollListener>);

impl PollRegistration {
    /// Registers, in place of the registration before, and looks.
    fn look(&self, open: &OpenFile, wanted: Events) -> Result<Events, Errno> {
        self.end();
        self.0.take(0);
        open.file.poll(open, Some(&Watch::listener(self.0.clone(), false)), wanted)
    }

    /// Looks after a wake. The events that the wake of a pipe or socket told count where the file says nothing now,
    /// unless they were told to have everybody look. Other files wake for less than what they are asked for.
    fn look_again(&self, open: &OpenFile, wanted: Events) -> Result<Events, Errno> {
        let told = Events::from_bits_retain(self.0.take(0));
        let ready = open.file.poll(open, None, wanted)?.intersection(wanted);
        let says_what = matches!(open.kind(), FileType::Fifo | FileType::Socket);
        let is_exact = says_what && !told.contains(Events::IN | Events::OUT);
        Ok(if ready.is_empty() && is_exact { told.intersection(wanted) } else { ready })
    }

    /// The events of which it was told and that nobody has looked at.
    fn told_before(&self, open: &OpenFile, wanted: Events) -> Result<Events, Errno> {
        let is_told = self.0.noted.load(Ordering::Acquire) != 0;
        if is_told { self.look_again(open, wanted) } else { Ok(Events::empty()) }
    }

    /// Waits until it is told of something, or the request has changed.
    async fn told(&self, active: &UringRequest, caller: &Caller) -> Result<(), Errno> {
        caller
            .wait_until(WaitKind::Interruptible, |watch| {
                self.0.relay.watch(watch, Events::IN)?;
                let is_told = self.0.noted.load(Ordering::Acquire) != 0;
                Ok((is_told || active.has_changed.load(Ordering::Acquire)).then_some(()))
            })
            .await
    }

    fn end(&self) {
        self.0.generation.fetch_add(1, Ordering::AcqRel);
    }
}

impl Drop for PollRegistration {
    fn drop(&mut self) {
        self.end();
        self.0.take(OVER);
    }
}

/// A poll that waits, and the events that its registration has found.
struct RegisteredPoll {
    open: Arc<OpenFile>,
    registration: PollRegistration,
    found: Option<Events>,
    is_multishot: bool,
}

/// Waits until a file is ready. A poll of many shots posts a completion each time the file wakes its waiters.
async fn wait_for_events(
    ring: Arc<Uring>,
    active: Arc<UringRequest>,
    mut poll: RegisteredPoll,
) -> Result<usize, Errno> {
    let caller = Caller::Request(active.request.clone());
    let tell = |events: Events| {
        let completion = Completion::new(active.user_data(), events.bits() as i32, IORING_CQE_F_MORE);
        ring.post_if_room(completion, Origin::Elsewhere)
    };
    loop {
        let has_changed = active.has_changed.swap(false, Ordering::AcqRel);
        let wanted = wanted(active.events.load(Ordering::Relaxed));
        let ready = match poll.found.take() {
            Some(found) if !has_changed => found,
            _ if has_changed => poll.registration.look(&poll.open, wanted)?,
            _ => poll.registration.look_again(&poll.open, wanted)?,
        };
        let ready = ready.intersection(wanted);
        if !ready.is_empty() && (!poll.is_multishot || !tell(ready)) {
            return Ok(ready.bits() as usize);
        }
        let told = poll.registration.told(&active, &caller).await;
        if told.is_err() || is_cancelled(&active) {
            // Events of many shots that came before are told of all the same. One shot was promised to end so.
            let before = poll.registration.told_before(&poll.open, wanted);
            if let Ok(before) = before
                && poll.is_multishot
                && !before.is_empty()
            {
                tell(before);
            }
            return Err(Errno::ECANCELED);
        }
    }
}

/// `IORING_OP_POLL_REMOVE`: ends a poll, or changes its events or user data.
///
/// # Errors
/// `EINVAL`, `ENOENT`, `ENOMEM`.
pub fn remove(ring: &Uring, sqe: &Sqe) -> Result<(), Errno> {
    const UPDATES: u32 = IORING_POLL_UPDATE_EVENTS | IORING_POLL_UPDATE_USER_DATA;
    let flags = sqe.len;
    let (events, user_data) =
        (flags & IORING_POLL_UPDATE_EVENTS != 0, flags & IORING_POLL_UPDATE_USER_DATA != 0);
    let is_known = flags & !(UPDATES | IORING_POLL_ADD_MULTI) == 0 && flags != IORING_POLL_ADD_MULTI;
    let is_plain = sqe.buf_index == 0 && sqe.file_index == 0;
    if !is_known || !is_plain || !user_data && sqe.off != 0 || !events && sqe.op_flags != 0 {
        return Err(Errno::EINVAL);
    }
    let found = ring.find(sqe.addr, |active| active.sqe.is(Op::IORING_OP_POLL_ADD) && !is_cancelled(active));
    let found = found.ok_or(Errno::ENOENT)?;
    if !events && !user_data {
        found.request.cancel();
        return Ok(());
    }
    if events {
        found.events.store(sqe.op_flags, Ordering::Relaxed);
    }
    if user_data {
        ring.requests.lock().rename(&found, sqe.off)?;
    }
    // It looks again, with the new events.
    found.has_changed.store(true, Ordering::Release);
    found.request.node.wake();
    Ok(())
}
