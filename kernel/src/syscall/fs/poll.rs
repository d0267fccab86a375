//! `poll` and `select`.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use linux_raw_sys::general as linux;

use crate::arch::time::now_ns;
use crate::call::caller::Caller;
use crate::error::{Errno, TryError, TryResult};
use crate::fs::{DescriptorTable, OpenFile};
use crate::memory::{Space, fallible};
use crate::process::Thread;
use crate::sched::Budget;
use crate::signal::SignalSet;
use crate::syscall::fs::{get, get_bytes, put};
use crate::syscall::{Call, SyscallResult, SyscallState, pending, user};
use crate::wait::engine::{until, woken};
use crate::wait::node::{WaitKind, Waiter};
use crate::wait::queue::{Events, Watch};

use heddle_kernel_core::fallible::push_reserved;

/// One file that is waited for.
struct PollInterest {
    open: Arc<OpenFile>,
    events: Events,
    /// Where the answer goes: the index of the entry, or the descriptor.
    index: usize,
}

/// Registers for every file and collects what is ready.
fn look(
    interests: &[PollInterest],
    watch: Option<&Watch>,
    ready: &mut Vec<(usize, Events)>,
) -> Result<usize, Errno> {
    ready.clear();
    look_on(interests, watch, ready)?;
    Ok(ready.len())
}

/// The same with what is ready added to what has been found.
fn look_on(
    interests: &[PollInterest],
    watch: Option<&Watch>,
    ready: &mut Vec<(usize, Events)>,
) -> Result<(), Errno> {
    for interest in interests {
        let wanted = interest.events | Events::ERR | Events::HUP;
        // Once something is ready there will be no waiting.
        let watch = watch.filter(|_| ready.is_empty());
        let found = interest.open.file.poll(&interest.open, watch, wanted)?.intersection(wanted);
        if !found.is_empty() {
            fallible::try_push(ready, (interest.index, found))?;
        }
    }
    Ok(())
}

/// When and how a call of this file ends.
struct PollLimit {
    /// On the monotonic clock.
    deadline_ns: Option<u64>,
    /// It does not wait.
    is_zero: bool,
    /// Where the program wants to see the time that was left.
    remaining: Option<Remaining>,
}

/// Where the time that is left goes: what a unit is, and the address.
#[derive(Clone, Copy)]
struct Remaining {
    address: usize,
    unit_ns: u64,
}

/// The unit of the second word of a `struct timespec`, and of a `struct timeval`.
const NANOSECOND: u64 = 1;
const MICROSECOND: u64 = 1000;

impl PollLimit {
    /// One that begins now; the time that is left goes to `address`, unless that is 0.
    fn new(timeout_ns: Option<u64>, address: usize, unit_ns: u64) -> Self {
        let deadline_ns = timeout_ns.map(|timeout| now_ns().saturating_add(timeout));
        let remaining = (address != 0 && timeout_ns.is_some()).then_some(Remaining { address, unit_ns });
        Self { deadline_ns, is_zero: timeout_ns == Some(0), remaining }
    }

    /// Tells the program how much time is left. Memory that only can be read is no error, as in Linux.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn store(&self, thread: &Caller, result: Result<usize, Errno>) -> SyscallResult {
        let Some((remaining, deadline_ns)) = self.remaining.zip(self.deadline_ns) else {
            return Ok(result?.into());
        };
        if thread.personality() & Thread::STICKY_TIMEOUTS != 0 {
            let interrupted = |error| if error == Errno::ERESTARTNOHAND { Errno::EINTR } else { error };
            return Ok(result.map_err(interrupted)?.into());
        }
        let left_ns = if self.is_zero { 0 } else { deadline_ns.saturating_sub(now_ns()) };
        let words = [left_ns / 1_000_000_000, left_ns % 1_000_000_000 / remaining.unit_ns];
        let space = thread.space();
        if user::write_words(&space, remaining.address, &words).is_ok() {
            return Ok(result?.into());
        }
        let thread = thread.clone();
        pending(async move {
            let store = |space: &Space| user::write_words(space, remaining.address, &words);
            match (thread.resolve(store).await, result) {
                // A restart would begin with the whole time again.
                (Err(_), Err(Errno::ERESTARTNOHAND)) => Err(Errno::EINTR),
                (_, result) => result,
            }
        })
    }

    /// As [`PollLimit::store`], after a wait.
    async fn finish(&self, thread: &Caller, result: Result<usize, Errno>) -> Result<usize, Errno> {
        match self.store(thread, result) {
            Ok(SyscallState::Done(value)) => Ok(value),
            Ok(SyscallState::Pending(future)) => future.await,
            Ok(SyscallState::Yield) => Ok(0),
            Err(TryError::Error(error)) => Err(error),
            Err(TryError::Fault(_) | TryError::WouldBlock) => result,
        }
    }
}

/// A signal that ends the wait isn't followed by a restart once there was a handler.
fn interrupted(error: Errno) -> Errno {
    if error == Errno::ERESTARTSYS { Errno::ERESTARTNOHAND } else { error }
}

const POLL_ENTRY: usize = size_of::<linux::pollfd>();

/// poll(2).
pub fn poll(call: &mut Call<'_>) -> SyscallResult {
    let timeout = call.int(2);
    let timeout = u64::try_from(timeout).ok().map(|timeout| timeout * 1_000_000);
    let (address, count) = (call.word(0), call.uint(1) as usize);
    start_poll(call, (address, count), PollLimit::new(timeout, 0, NANOSECOND), None)
}

/// ppoll(2).
pub fn ppoll(call: &mut Call<'_>) -> SyscallResult {
    let timeout = get_timeout(call, call.word(2))?;
    let mask = get_mask(call, call.word(3), call.word(4))?;
    let limit = PollLimit::new(timeout, call.word(2), NANOSECOND);
    let (address, count) = (call.word(0), call.uint(1) as usize);
    start_poll(call, (address, count), limit, mask)
}

/// A duration that may be missing, as `struct timespec`.
pub fn get_timeout(call: &Call<'_>, address: usize) -> TryResult<Option<u64>> {
    if address == 0 {
        return Ok(None);
    }
    let seconds = i64::from_ne_bytes(get(call, address)?);
    let nanoseconds = i64::from_ne_bytes(get(call, address.wrapping_add(8))?);
    let seconds = u64::try_from(seconds).map_err(|_| Errno::EINVAL)?;
    let nanoseconds =
        u64::try_from(nanoseconds).ok().filter(|&part| part < 1_000_000_000).ok_or(Errno::EINVAL)?;
    Ok(Some(seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)))
}

/// A signal mask that may be missing.
pub fn get_mask(call: &Call<'_>, address: usize, size: usize) -> TryResult<Option<SignalSet>> {
    if address == 0 {
        return Ok(None);
    }
    if size != size_of::<u64>() {
        return Err(Errno::EINVAL.into());
    }
    Ok(Some(SignalSet(u64::from_ne_bytes(get(call, address)?))))
}

fn start_poll(
    call: &mut Call<'_>,
    (address, count): (usize, usize),
    limit: PollLimit,
    mask: Option<SignalSet>,
) -> SyscallResult {
    if count > call.thread.process.descriptor_limit() {
        return Err(Errno::EINVAL.into());
    }
    if count > MANY {
        if let Some(mask) = mask {
            call.thread.set_blocked_for_wait(mask);
        }
        return pending(poll_many(call.thread.clone(), address, count, limit));
    }
    let mut entries = get_bytes(call, address, count * POLL_ENTRY)?;
    let table = call.thread.descriptors();
    let mut interests = fallible::try_with_capacity(count)?;
    let mut invalid = 0;
    for (index, entry) in entries.chunks_exact_mut(POLL_ENTRY).enumerate() {
        let descriptor = i32::from_ne_bytes([entry[0], entry[1], entry[2], entry[3]]);
        let events = u32::from(u16::from_ne_bytes([entry[4], entry[5]]));
        entry[6..8].fill(0);
        if descriptor < 0 {
            continue;
        }
        match table.get(descriptor) {
            Ok(open) if !open.flags().contains(crate::fs::StatusFlags::PATH) => {
                push_reserved(
                    &mut interests,
                    PollInterest { open, events: Events::from_bits_retain(events), index },
                );
            }
            _ => {
                entry[6..8].copy_from_slice(&(linux::POLLNVAL as u16).to_ne_bytes());
                invalid += 1;
            }
        }
    }
    if let Some(mask) = mask {
        call.thread.set_blocked_for_wait(mask);
    }
    let mut ready = Vec::new();
    look(&interests, None, &mut ready)?;
    if invalid > 0 || !ready.is_empty() || limit.is_zero {
        if invalid == 0 && ready.is_empty() && call.thread.is_interrupted(WaitKind::Interruptible) {
            return limit.store(call.thread, Err(Errno::ERESTARTNOHAND));
        }
        set_results(&mut entries, &ready);
        put(call, address, &entries)?;
        return limit.store(call.thread, Ok(ready.len() + invalid));
    }
    let thread = call.thread.clone();
    pending(async move {
        let waited = until(&thread, WaitKind::Interruptible, limit.deadline_ns, |watch| {
            Ok((look(&interests, Some(watch), &mut ready)? > 0).then_some(()))
        });
        let result = match waited.await {
            Ok(_) => {
                set_results(&mut entries, &ready);
                store(&thread, address, &entries).await.map(|()| ready.len())
            }
            Err(error) => Err(error),
        };
        end_poll(&thread, (address, count), &limit, result).await
    })
}

/// Ends a call of poll(2) after a wait: one that a signal has interrupted goes on with the rest of its time.
async fn end_poll(
    thread: &Caller,
    (address, count): (usize, usize),
    limit: &PollLimit,
    result: Result<usize, Errno>,
) -> Result<usize, Errno> {
    let deadline_ns = limit.deadline_ns;
    if result == Err(Errno::ERESTARTSYS) && limit.remaining.is_none() && deadline_ns.is_some() {
        // Only this place knows the rest of the time.
        let restart = move |call: &mut Call<'_>| {
            let limit = PollLimit { deadline_ns, is_zero: false, remaining: None };
            start_poll(call, (address, count), limit, None)
        };
        thread.set_restart(fallible::try_arc(restart)?);
        return Err(Errno::ERESTART_RESTARTBLOCK);
    }
    limit.finish(thread, result.map_err(interrupted)).await
}

/// Descriptors that are looked at in one go. Calls with more of them give way in between.
const MANY: usize = 64;

/// poll(2) with many descriptors.
async fn poll_many(thread: Caller, address: usize, count: usize, limit: PollLimit) -> Result<usize, Errno> {
    let (mut interests, mut invalid) = (Vec::new(), Vec::new());
    let table = thread.descriptors();
    let mut budget = Budget::new();
    let looked = async {
        interests.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
        let mut bytes = [0; MANY * POLL_ENTRY];
        for first in (0..count).step_by(MANY) {
            let part = &mut bytes[..(count - first).min(MANY) * POLL_ENTRY];
            thread.resolve(|space| space.read_bytes(address + first * POLL_ENTRY, part)).await?;
            for (entry, index) in part.chunks_exact(POLL_ENTRY).zip(first..) {
                let descriptor = i32::from_ne_bytes([entry[0], entry[1], entry[2], entry[3]]);
                let events = Events::from_bits_retain(u32::from(u16::from_ne_bytes([entry[4], entry[5]])));
                if descriptor < 0 {
                    continue;
                }
                match table.get(descriptor) {
                    Ok(open) if !open.flags().contains(crate::fs::StatusFlags::PATH) => {
                        push_reserved(&mut interests, PollInterest { open, events, index });
                    }
                    _ => fallible::try_push(&mut invalid, index)?,
                }
            }
            thread.pace(&mut budget, PART_COST).await?;
        }
        let mut ready = Vec::new();
        if invalid.is_empty() {
            wait_for_many(&thread, &interests, &limit, &mut ready, |ready| !ready.is_empty()).await?;
        } else {
            look_in_steps(&thread, &mut budget, &interests, None, &mut ready).await?;
        }
        // In the order of the entries, those without an event included.
        let (mut found, mut wrong) = (ready.iter().peekable(), invalid.iter().peekable());
        for index in 0..count {
            let mut events = 0;
            if let Some((_, ready)) = found.next_if(|(place, _)| *place == index) {
                events = ready.bits() as u16;
            } else if wrong.next_if_eq(&&index).is_some() {
                events = linux::POLLNVAL as u16;
            }
            let at = address + index * POLL_ENTRY + POLL_ENTRY - size_of::<u16>();
            store(&thread, at, &events.to_ne_bytes()).await?;
            thread.pace(&mut budget, 1).await?;
        }
        Ok(ready.len() + invalid.len())
    };
    let result = looked.await;
    release(interests, &mut budget).await;
    end_poll(&thread, (address, count), &limit, result).await
}

/// The cost of a look at [`MANY`] descriptors, in units of a [`Budget`].
const PART_COST: u32 = 32;

/// As [`look`], which others interrupt.
async fn look_in_steps(
    thread: &Caller,
    budget: &mut Budget,
    interests: &[PollInterest],
    watch: Option<&Watch>,
    ready: &mut Vec<(usize, Events)>,
) -> Result<(), Errno> {
    ready.clear();
    for part in interests.chunks(MANY) {
        look_on(part, watch, ready)?;
        thread.pace(budget, PART_COST).await?;
    }
    Ok(())
}

/// Waits until `is_answer` holds for what is ready, or the time is over.
async fn wait_for_many(
    thread: &Caller,
    interests: &[PollInterest],
    limit: &PollLimit,
    ready: &mut Vec<(usize, Events)>,
    is_answer: impl Fn(&[(usize, Events)]) -> bool,
) -> Result<(), Errno> {
    let mut budget = Budget::exhausted();
    loop {
        let watch = (!limit.is_zero).then(|| thread.node().begin_in_steps());
        let looked = look_in_steps(thread, &mut budget, interests, watch.as_ref(), ready).await;
        let is_over = limit.is_zero || looked.is_err() || is_answer(ready);
        if is_over {
            thread.node().end();
            looked?;
            let is_interrupted = !is_answer(ready) && thread.is_interrupted(WaitKind::Interruptible);
            return if is_interrupted { Err(Errno::ERESTARTNOHAND) } else { Ok(()) };
        }
        if !woken(thread, WaitKind::Interruptible, limit.deadline_ns).await? {
            return Ok(());
        }
    }
}

/// Lets go of many files, each of which may be the last to be open.
async fn release(mut interests: Vec<PollInterest>, budget: &mut Budget) {
    while let Some(interest) = interests.pop() {
        drop(interest);
        budget.step(1).await;
    }
}

fn set_results(entries: &mut [u8], ready: &[(usize, Events)]) {
    for &(index, events) in ready {
        entries[index * POLL_ENTRY + 6..][..2].copy_from_slice(&(events.bits() as u16).to_ne_bytes());
    }
}

/// Writes a result after a wait.
///
/// # Errors
/// `EFAULT`.
pub(super) async fn store(thread: &Caller, address: usize, bytes: &[u8]) -> Result<(), Errno> {
    let space = thread.space();
    let mut budget = Budget::new();
    while let Err(fault) = space.write_bytes(address, bytes) {
        thread.pace(&mut budget, FAULT_COST).await?;
        space.fault_in_for(fault, || thread.is_dying()).await?;
    }
    Ok(())
}

/// The cost of a page that is missing, in units of a [`Budget`].
const FAULT_COST: u32 = 8;

/// The three sets of select(2), as bitmaps.
struct Sets {
    bytes: [Vec<u8>; 3],
    addresses: [usize; 3],
}

/// The events that each set of select(2) asks for, and those that count as an answer.
const SETS: [(Events, Events); 3] = [
    (Events::IN, Events::IN.union(Events::RDNORM).union(Events::HUP).union(Events::ERR)),
    (Events::OUT, Events::OUT.union(Events::WRNORM).union(Events::ERR)),
    (Events::PRI, Events::PRI),
];

/// select(2).
pub fn select(call: &mut Call<'_>) -> SyscallResult {
    let timeout = match call.word(4) {
        0 => None,
        address => {
            let seconds = i64::from_ne_bytes(get(call, address)?);
            let microseconds = i64::from_ne_bytes(get(call, address.wrapping_add(8))?);
            let seconds = u64::try_from(seconds).map_err(|_| Errno::EINVAL)?;
            let microseconds = u64::try_from(microseconds).map_err(|_| Errno::EINVAL)?;
            Some(seconds.saturating_mul(1_000_000_000).saturating_add(microseconds.saturating_mul(1000)))
        }
    };
    start_select(call, PollLimit::new(timeout, call.word(4), MICROSECOND), None)
}

/// pselect6(2).
pub fn pselect6(call: &mut Call<'_>) -> SyscallResult {
    let timeout = get_timeout(call, call.word(4))?;
    let mask = match call.word(5) {
        0 => None,
        address => {
            let set = usize::from_ne_bytes(get(call, address)?);
            let size = usize::from_ne_bytes(get(call, address.wrapping_add(8))?);
            get_mask(call, set, size)?
        }
    };
    start_select(call, PollLimit::new(timeout, call.word(4), NANOSECOND), mask)
}

fn start_select(call: &mut Call<'_>, limit: PollLimit, mask: Option<SignalSet>) -> SyscallResult {
    let count = usize::try_from(call.int(0)).map_err(|_| Errno::EINVAL)?;
    let count = count.min(call.thread.descriptors().reach());
    // The kernel's unit is the word.
    let length = count.div_ceil(64) * 8;
    let addresses = [call.word(1), call.word(2), call.word(3)];
    let mut sets = Sets { bytes: [const { Vec::new() }; 3], addresses };
    for (bytes, address) in sets.bytes.iter_mut().zip(addresses) {
        if address != 0 {
            *bytes = get_bytes(call, address, length)?;
        }
    }
    if count > MANY {
        if let Some(mask) = mask {
            call.thread.set_blocked_for_wait(mask);
        }
        return pending(select_many(call.thread.clone(), count, sets, limit));
    }
    let table = call.thread.descriptors();
    let mut interests = Vec::new();
    sets.interests(&table, 0..count, &mut interests)?;
    if let Some(mask) = mask {
        call.thread.set_blocked_for_wait(mask);
    }
    let mut ready = Vec::new();
    look(&interests, None, &mut ready)?;
    let is_ready = sets.has_answer(&ready);
    if is_ready || limit.is_zero {
        if !is_ready && call.thread.is_interrupted(WaitKind::Interruptible) {
            return limit.store(call.thread, Err(Errno::ERESTARTNOHAND));
        }
        let mut results = sets.no_results()?;
        let found = sets.add_results(&ready, &mut results);
        for (bytes, address) in results.iter().zip(addresses) {
            if address != 0 {
                put(call, address, bytes)?;
            }
        }
        return limit.store(call.thread, Ok(found));
    }
    let thread = call.thread.clone();
    pending(async move {
        let waited = until(&thread, WaitKind::Interruptible, limit.deadline_ns, |watch| {
            look(&interests, Some(watch), &mut ready)?;
            Ok((sets.has_answer(&ready)).then_some(()))
        });
        let result = match waited.await {
            Ok(_) => sets.store(&thread, &mut Budget::new(), &ready).await,
            Err(error) => Err(interrupted(error)),
        };
        limit.finish(&thread, result).await
    })
}

/// select(2) with many descriptors.
async fn select_many(thread: Caller, count: usize, sets: Sets, limit: PollLimit) -> Result<usize, Errno> {
    let (table, mut interests, mut budget) = (thread.descriptors(), Vec::new(), Budget::new());
    let looked = async {
        for first in (0..count).step_by(MANY) {
            sets.interests(&table, first..count.min(first + MANY), &mut interests)?;
            thread.pace(&mut budget, PART_COST).await?;
        }
        let mut ready = Vec::new();
        wait_for_many(&thread, &interests, &limit, &mut ready, |ready| sets.has_answer(ready)).await?;
        sets.store(&thread, &mut budget, &ready).await
    };
    let result = looked.await.map_err(interrupted);
    release(interests, &mut budget).await;
    limit.finish(&thread, result).await
}

impl Sets {
    /// The files that these descriptors ask for.
    fn interests(
        &self,
        table: &DescriptorTable,
        descriptors: Range<usize>,
        interests: &mut Vec<PollInterest>,
    ) -> Result<(), Errno> {
        for descriptor in descriptors {
            let mut events = Events::empty();
            for (bytes, (asked, _)) in self.bytes.iter().zip(SETS) {
                if bytes.get(descriptor / 8).is_some_and(|byte| byte >> (descriptor % 8) & 1 != 0) {
                    events |= asked;
                }
            }
            if !events.is_empty() {
                let open = table.get(descriptor as i32)?;
                fallible::try_push(interests, PollInterest { open, events, index: descriptor })?;
            }
        }
        Ok(())
    }

    fn bits<'a>(&'a self, ready: &'a [(usize, Events)]) -> impl Iterator<Item = (usize, usize)> + 'a {
        ready.iter().flat_map(move |&(descriptor, events)| {
            (0..3).filter_map(move |set| {
                let asked = self.bytes[set].get(descriptor / 8)? >> (descriptor % 8) & 1 != 0;
                (asked && events.intersects(SETS[set].1)).then_some((set, descriptor))
            })
        })
    }

    /// Whether one of the bits is set.
    fn has_answer(&self, ready: &[(usize, Events)]) -> bool {
        self.bits(ready).next().is_some()
    }

    /// Gives the program what is ready; the number of bits.
    async fn store(
        &self,
        thread: &Caller,
        budget: &mut Budget,
        ready: &[(usize, Events)],
    ) -> Result<usize, Errno> {
        let (mut found, mut results) = (0, self.no_results()?);
        for part in ready.chunks(MANY) {
            found += self.add_results(part, &mut results);
            thread.pace(budget, PART_COST).await?;
        }
        for (bytes, address) in results.iter().zip(self.addresses) {
            if address != 0 {
                store(thread, address, bytes).await?;
            }
        }
        Ok(found)
    }

    fn no_results(&self) -> Result<[Vec<u8>; 3], Errno> {
        let mut results = [const { Vec::new() }; 3];
        for (result, bytes) in results.iter_mut().zip(&self.bytes) {
            *result = fallible::try_filled(0, bytes.len())?;
        }
        Ok(results)
    }

    /// Sets the bits of what is ready; the number of them.
    fn add_results(&self, ready: &[(usize, Events)], results: &mut [Vec<u8>; 3]) -> usize {
        let mut found = 0;
        for (set, descriptor) in self.bits(ready) {
            results[set][descriptor / 8] |= 1 << (descriptor % 8);
            found += 1;
        }
        found
    }
}
