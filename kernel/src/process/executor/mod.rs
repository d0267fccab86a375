//! Executor threads: threads of a program that run coroutines, as the kernel's scheduler sees them.
//!
//! An executor thread has the level of the best coroutine that it can run, worked out from the process's pages whenever
//! its turn starts or ends, at a clock tick, and when it gives way. `docs/SHARED-SCHEDULER.md` has the rules.

mod delivery;
mod turns;

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use heddle_abi::protocol::{Runnable, process_level, record};
use heddle_abi::user_sched::calls::policy;
use heddle_abi::user_sched::{ExecutorRecord, PENDING_COMPLETION, PENDING_KICK, PENDING_SPARE, levels};
use heddle_kernel_core::fallible::{extend_items_reserved, push_reserved};
use heddle_kernel_core::group::{self, APART, BEHIND};
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::memory::fallible;
use crate::memory::process_pages::Pages;
use crate::process::user_group::{self, GroupMembership};
use crate::process::{Process, Resource, Thread, futex};
use crate::sched;
use crate::sched::{LevelReader, Priority};
use crate::sync::SpinLock;
use crate::wait::node::WaitNode;

use self::delivery::{BySoftware, Delivery};

pub use self::delivery::{enter_handler, is_unmasked, mask, unmask};
pub use self::turns::{may_enter, turn_ends};

pub(super) use self::turns::{charge, group_pays_for_call, turn_starts};

/// No level of its own, and no boost.
const LEVEL_NONE: u8 = 64;

/// The record of a thread that is an executor.
pub struct Executor {
    /// Its number in the process.
    pub number: u32,
    /// Where a user interrupt enters; 0 for nowhere.
    pub handler: usize,
    /// The argument of the handler.
    pub argument: usize,
    pages: Arc<Pages>,
    may_be_urgent: bool,
    /// Its place among the user's executors.
    membership: Option<GroupMembership>,
    _reader: LevelReader,
}

impl Executor {
    /// The scheduler words that the thread and others write.
    #[must_use]
    pub fn record(&self) -> Option<&ExecutorRecord> {
        self.pages.record(self.number)
    }
}

/// An executor and its thread.
type Registered = (Arc<Executor>, Arc<Thread>);

/// A thread's part of this.
pub struct ExecutorSlot {
    /// Whether `executor` is there, for a look without the lock.
    is_executor: AtomicBool,
    executor: SpinLock<Option<Arc<Executor>>>,
    /// Waits in the kernel, so that it can run no coroutine.
    is_blocked: AtomicBool,
    /// A level of the process that something which became ready lends the thread, until it has looked.
    boost: AtomicU8,
    /// Has been given the group's turn, and has not had it yet.
    is_called: AtomicBool,
    /// Has entered its program in the turn that goes on.
    is_in: AtomicBool,
    /// Has entered its program since it was last woken to find its place.
    may_arrive: AtomicBool,
    /// The level among the user's executors, for a look without a lock; 0 if it is not ordered there.
    level: AtomicU8,
    /// The number of their group; 0 for none.
    group: AtomicU8,
}

impl ExecutorSlot {
    /// Of a thread that is no executor.
    pub const fn new() -> Self {
        Self {
            is_executor: AtomicBool::new(false),
            executor: SpinLock::new(None),
            is_blocked: AtomicBool::new(false),
            boost: AtomicU8::new(LEVEL_NONE),
            is_called: AtomicBool::new(false),
            is_in: AtomicBool::new(false),
            may_arrive: AtomicBool::new(false),
            level: AtomicU8::new(0),
            group: AtomicU8::new(0),
        }
    }

    /// The thread is given its group's turn.
    pub(super) fn is_called(&self) {
        self.is_called.store(true, Ordering::Relaxed);
    }

    /// Whether the thread has its turn, and nobody of the group goes before it.
    #[inline]
    fn may_stay(&self) -> bool {
        self.is_in.load(Ordering::Relaxed)
            && !self.is_called.load(Ordering::Relaxed)
            && user_group::waiting(self.group.load(Ordering::Relaxed))
                & levels::ordered_before(self.level.load(Ordering::Relaxed).into())
                == 0
    }

    /// The registration, if the thread is an executor.
    pub(super) fn get(&self) -> Option<Arc<Executor>> {
        if self.is_executor.load(Ordering::Relaxed) { self.executor.lock().clone() } else { None }
    }

    /// Whether the thread is an executor.
    #[inline]
    pub fn is_executor(&self) -> bool {
        self.is_executor.load(Ordering::Relaxed)
    }
}

/// A process's executors.
pub struct Executors {
    list: SpinLock<Vec<(Arc<Executor>, Weak<Thread>)>>,
    /// How long the list is.
    count: AtomicU32,
    runnable: Runnable,
    /// The executor in reserve has been told, as the last to sleep, what the others have left since one of them last
    /// ran or blocked.
    is_reserve_told: AtomicBool,
    policy: AtomicU32,
}

impl Executors {
    /// None.
    pub const fn new() -> Self {
        Self {
            list: SpinLock::new(Vec::new()),
            count: AtomicU32::new(0),
            runnable: Runnable::new(),
            is_reserve_told: AtomicBool::new(false),
            policy: AtomicU32::new(policy::RELAXED),
        }
    }

    /// Sets the policy and returns the one before.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn set_policy(&self, new: u32) -> Result<u32, Errno> {
        match new {
            policy::KEEP => Ok(self.policy()),
            policy::RELAXED | policy::STRICT => Ok(self.policy.swap(new, Ordering::Relaxed)),
            _ => Err(Errno::EINVAL),
        }
    }

    /// How the process gives way.
    #[must_use]
    pub fn policy(&self) -> u32 {
        self.policy.load(Ordering::Relaxed)
    }

    /// The executors that are registered, with their threads.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn snapshot(&self) -> Result<Vec<Registered>, Errno> {
        let list = self.list.lock();
        let mut found = Vec::new();
        found.try_reserve(list.len()).map_err(|_| Errno::ENOMEM)?;
        let living = list.iter().filter_map(|(each, thread)| Some((each.clone(), thread.upgrade()?)));
        extend_items_reserved(&mut found, living);
        Ok(found)
    }

    /// Whether there are any; may be stale.
    fn are_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// The thread of the executor at `index` of the list or behind, which then is the index of the next.
    fn next(&self, index: &mut usize) -> Option<Arc<Thread>> {
        let list = self.list.lock();
        list.iter().skip(*index).find_map(|(_, thread)| {
            *index += 1;
            thread.upgrade()
        })
    }

    /// Whom to tell of something that became ready: one that looks around anyway, then one that sleeps, then the one
    /// that runs the least urgent coroutine, and last one that is blocked in a coroutine.
    fn to_notify(&self) -> Option<Registered> {
        let list = self.list.lock();
        let mut best = None;
        for (executor, thread) in list.iter() {
            let (Some(record), Some(thread)) = (executor.record(), thread.upgrade()) else { continue };
            let is_blocked = is_blocked(&thread);
            if record::is_reserve(record) {
                continue;
            }
            let rank = match record::running(record) {
                None => u32::MAX - u32::from(is_blocked),
                Some(_) if is_blocked => 0,
                Some(level) => level + 1,
            };
            if best.as_ref().is_none_or(|(_, _, found)| rank > *found) {
                best = Some((executor, thread, rank));
            }
        }
        best.map(|(executor, thread, _)| (executor.clone(), thread))
    }

    /// The thread, an executor, runs again or blocks. If it is not the one in reserve, that can be told anew. This
    /// comes before the count of [`Runnable`], by which the last one sees it.
    fn regular_changes(&self, thread: &Thread) {
        let executor = thread.executor().get();
        if self.is_reserve_told.load(Ordering::Relaxed)
            && !executor.and_then(|executor| executor.record().map(record::is_reserve)).unwrap_or(false)
        {
            self.is_reserve_told.store(false, Ordering::Relaxed);
        }
    }

    /// One in reserve that sleeps.
    fn reserve(&self) -> Option<Registered> {
        let list = self.list.lock();
        list.iter().find_map(|(executor, thread)| {
            executor.record().filter(|record| record::is_reserve(record))?;
            Some((executor.clone(), thread.upgrade()?))
        })
    }

    /// Levels that `own`'s thread can run: in nobody's queue, in its own, and in those of executors that cannot run.
    fn ready(&self, own: &Executor) -> u64 {
        let mut ready = own.pages.header().map_or(0, |header| header.bitmap.load(Ordering::Relaxed));
        for (each, thread) in self.list.lock().iter() {
            let is_own = each.number == own.number;
            if is_own || thread.upgrade().is_none_or(|thread| !can_run(&thread)) {
                ready |= each.record().map_or(0, |record| record.ready.load(Ordering::Relaxed));
            }
        }
        ready
    }
}

/// Whether an executor's thread runs or is about to. One that has been woken is its own again from that moment, not
/// only from its next turn: whoever went on having its levels would be its equal, and keep the processor from it for
/// a slice.
fn can_run(thread: &Thread) -> bool {
    !is_blocked(thread) || thread.task().is_some_and(sched::TaskRef::runs_or_is_ready)
}

/// Whether an executor's thread has said that it blocks and has begun no turn since. It may still be on its way to
/// sleep, where nobody would look for what it is told: so this, and not [`can_run`], decides who hears of a completion.
fn is_blocked(thread: &Thread) -> bool {
    thread.executor().is_blocked.load(Ordering::Relaxed)
}

/// Makes the calling thread executor `number`.
///
/// # Errors
/// `EINVAL`, `EBUSY`, `ENOMEM`.
pub fn register(thread: &Arc<Thread>, number: usize, handler: usize, argument: usize) -> Result<(), Errno> {
    let number = u32::try_from(number).map_err(|_| Errno::EINVAL)?;
    let pages = thread.space().pages().ok_or(Errno::EINVAL)?;
    pages.need_records()?;
    pages.record(number).ok_or(Errno::EINVAL)?;
    let may_be_urgent = may_be_urgent(thread);
    let membership = GroupMembership::join(thread)?;
    let group = membership.as_ref().map_or(0, GroupMembership::number);
    if let Some(header) = pages.header() {
        header.group.store(group, Ordering::Relaxed);
    }
    let _reader = LevelReader::new();
    let executor = Executor { number, handler, argument, pages, may_be_urgent, membership, _reader };
    let executor = fallible::try_arc(executor)?;
    let executors = &thread.process.executors();
    let mut list = executors.list.lock();
    let is_other = |other: &Weak<Thread>| !core::ptr::eq(other.as_ptr(), Arc::as_ptr(thread));
    let is_taken = |(each, other): &(Arc<Executor>, Weak<Thread>)| each.number == number && is_other(other);
    if list.iter().any(is_taken) {
        return Err(Errno::EBUSY);
    }
    list.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    let was_executor = list.iter().any(|(_, other)| !is_other(other));
    list.retain(|(_, other)| is_other(other));
    push_reserved(&mut list, (executor.clone(), Arc::downgrade(thread)));
    executors.count.store(list.len() as u32, Ordering::Relaxed);
    drop(list);
    if !was_executor {
        executors.runnable.starts();
    }
    let slot = thread.executor();
    drop(slot.executor.lock().replace(executor));
    slot.is_called.store(false, Ordering::Relaxed);
    slot.is_in.store(false, Ordering::Relaxed);
    slot.level.store(0, Ordering::Relaxed);
    slot.group.store(group as u8, Ordering::Relaxed);
    thread.executor().is_executor.store(true, Ordering::Relaxed);
    refresh(thread);
    Ok(())
}

/// The group pays for the turn so far.
fn leave_group(thread: &Thread, membership: &GroupMembership) {
    let now_ns = crate::arch::time::now_ns();
    thread.look_at_entity(|entity| entity.leave_shared(now_ns, |ran_ns| membership.split(ran_ns)));
}

/// The calling thread has other credentials: if it is an executor, it belongs to its user's group, and may use the
/// levels that they allow. Without memory it is none any more.
pub fn user_changes(thread: &Arc<Thread>) {
    let Some(executor) = thread.executor().get() else { return };
    let is_same =
        executor.membership.as_ref().is_some_and(|membership| membership.uid() == thread.credentials().uid);
    if is_same && executor.may_be_urgent == may_be_urgent(thread) {
        return;
    }
    if let Some(membership) = &executor.membership {
        leave_group(thread, membership);
    }
    let (number, handler, argument) = (executor.number, executor.handler, executor.argument);
    drop(executor);
    if register(thread, number as usize, handler, argument).is_err() {
        leave(thread);
    }
}

/// Whether the thread may use urgent levels.
fn may_be_urgent(thread: &Thread) -> bool {
    thread.credentials().is_capable(linux::CAP_SYS_NICE)
        || thread.process.limit(Resource::RealtimePriority).soft > 0
}

/// Makes the thread an ordinary one again: at its wish, at its end, and when it runs another program.
pub fn leave(thread: &Arc<Thread>) {
    if !thread.executor().is_executor() {
        return;
    }
    thread.executor().is_executor.store(false, Ordering::Relaxed);
    let registration = thread.executor().executor.lock().take();
    if let Some(membership) = registration.as_ref().and_then(|executor| executor.membership.as_ref()) {
        leave_group(thread, membership);
    }
    let executors = &thread.process.executors();
    {
        let mut list = executors.list.lock();
        list.retain(|(_, other)| !core::ptr::eq(other.as_ptr(), Arc::as_ptr(thread)));
        executors.count.store(list.len() as u32, Ordering::Relaxed);
    }
    let is_last = !thread.executor().is_blocked.swap(false, Ordering::Relaxed) && executors.runnable.blocks();
    if let Some(executor) = registration.filter(|_| is_last) {
        wake_spare(thread, &executor);
    }
    refresh(thread);
}

/// The thread may run on other CPUs from now on.
pub(super) fn affinity_changes(thread: &Thread, affinity: u64) {
    if let Some(membership) = thread.executor().get().as_ref().and_then(|each| each.membership.as_ref()) {
        membership.set_cores(affinity);
    }
}

/// The level that the thread has as an executor; `None`: the one it has anyway.
#[inline(never)]
pub(super) fn level(thread: &Thread, is_ordinary: bool) -> Option<Priority> {
    let executor = thread.executor().get()?;
    let ready = thread.process.executors().ready(&executor);
    let running = executor.record().map_or(u32::MAX, |record| record.running.load(Ordering::Relaxed));
    let slot = thread.executor();
    let running = running.min(slot.boost.load(Ordering::Relaxed).into());
    // Urgent coroutines are subject to the limit of realtime threads.
    let level = process_level(ready, running, executor.may_be_urgent).map(Priority::new);
    let is_throttled = level.is_some_and(Priority::is_realtime) && sched::is_realtime_throttled(thread.cpu());
    let level = level.filter(|_| !is_throttled);
    // Those of a group that have used the time up are ordered there.
    let behind = (is_throttled && !(is_ordinary && executor.membership.is_some())).then_some(Priority::SPENT);
    if let Some(membership) = &executor.membership {
        let best = ready.trailing_zeros().min(running);
        let is_blocked = slot.is_blocked.load(Ordering::Relaxed);
        let ordered = match level.map(|level| level.level() as u8) {
            _ if !is_ordinary => APART,
            Some(level) if level >= BEHIND => BEHIND,
            Some(level) => group::urgent(level),
            None if best < u32::from(LEVEL_NONE) => best.min(levels::ORDERED - 1) as u8,
            // Nothing is known of a thread that has no coroutine yet, or has looked for one: it goes first, and looks.
            None if is_blocked || membership.level() >= BEHIND => 0,
            // It was found between two coroutines.
            None => membership.level(),
        };
        let was_behind = membership.level() == BEHIND;
        if membership.set_level(ordered) {
            if was_behind != (ordered == BEHIND) {
                // Another pays for it: see to that before it is next in its program.
                slot.is_in.store(false, Ordering::Relaxed);
            }
            let level = if ordered == APART { 0 } else { group::level_for_programs(ordered) };
            slot.level.store(level, Ordering::Relaxed);
        }
        if ordered < BEHIND
            && (slot.is_called.load(Ordering::Relaxed)
                || is_blocked && slot.may_arrive.load(Ordering::Relaxed) && membership.has_others())
        {
            return Some(Priority::ARRIVAL);
        }
    }
    level.or(behind)
}

/// Works the level out anew, because the thread's program may have gone on. A lent level stays until it has
/// looked: an interrupt in between must not send it back behind others.
pub fn refresh(thread: &Thread) {
    let executor = thread.executor().get();
    let record = executor.as_ref().and_then(|executor| executor.record());
    if record.is_none_or(|record| record.pending.load(Ordering::Relaxed) == 0) {
        thread.executor().boost.store(LEVEL_NONE, Ordering::Relaxed);
    }
    thread.with_entity(|_| {});
}

/// An interrupt found the thread in its program: whatever that has written into its pages counts from now on. Takes
/// what is more urgent from another CPU, if there is such a thing.
pub fn tick(thread: &Thread) {
    let executors = &thread.process.executors();
    if executors.are_any() {
        // Those that wait in a queue get the level that their process has by now.
        let mut index = 0;
        while let Some(other) = executors.next(&mut index) {
            if !core::ptr::eq(&raw const *other, thread) {
                other.with_entity(|_| {});
            }
        }
    }
    if thread.executor().is_executor() {
        refresh(thread);
        sched::pull(levels::before(thread.priority().level() as u32));
    }
}

/// No executor of the process can run: if something is ready, wakes one that sleeps, to run it.
fn wake_spare(thread: &Arc<Thread>, own: &Executor) {
    let ready = thread.process.executors().ready(own);
    if ready == 0 {
        return;
    }
    let level = ready.trailing_zeros() as u8;
    if thread.process.asynchronous.wake_one(level) {
        return;
    }
    if own.record().is_some_and(record::is_reserve) {
        // The others blocked while it was on its way to sleep: it is told itself, once, because what they had ready may
        // be what they run.
        if !thread.process.executors().is_reserve_told.swap(true, Ordering::Relaxed) {
            wake(thread, own, PENDING_SPARE, level);
        }
        return;
    }
    // Without memory for the list nobody is woken; the levels stay withdrawn until a thread comes back.
    for (executor, other) in thread.process.executors().snapshot().unwrap_or_default() {
        let is_reserve = executor.record().is_some_and(record::is_reserve);
        let reason = if is_reserve { PENDING_SPARE } else { PENDING_KICK };
        if executor.number != own.number && wake(&other, &executor, reason, level) {
            return;
        }
    }
}

/// Lends an executor thread the level of something that became ready for it, before it is woken.
pub fn lend(thread: &Thread, level: u8) {
    if let Some(executor) = thread.executor().get() {
        if let Some(record) = executor.record() {
            // It gives the level back when it has looked. It does that anyway, so it is not interrupted.
            let _ = record::post(record, PENDING_COMPLETION);
        }
        boost(thread, level);
    }
}

/// Wakes an executor if it sleeps at its pending word, at the given level of its process.
fn wake(thread: &Arc<Thread>, executor: &Executor, reason: u32, level: u8) -> bool {
    let Some(record) = executor.record() else { return false };
    let _ = record::post(record, reason);
    let address = executor.pages.pending_address(executor.number);
    boost(thread, level);
    futex::wake_word(&thread.space(), address)
}

/// Lends the thread the level of something that became ready for it.
fn boost(thread: &Thread, level: u8) {
    if keep_boost(thread, level) {
        thread.with_entity(|_| {});
    }
}

/// The same, from when its level is next worked out on. `false`: there is nothing to lend.
fn keep_boost(thread: &Thread, level: u8) -> bool {
    let is_level = level < LEVEL_NONE;
    if is_level {
        thread.executor().boost.fetch_min(level, Ordering::Relaxed);
    }
    is_level
}

/// The level in the machine of a coroutine of `level`, or of what is done for it: the thread's own if it is ordinary.
#[must_use]
pub fn priority_of(thread: &Thread, level: u8) -> Priority {
    let may_be_urgent = thread.executor().get().is_some_and(|executor| executor.may_be_urgent);
    levels::in_machine(level.into(), may_be_urgent).map_or(thread.standing_priority(), Priority::new)
}

/// Where a call of a program's `level` stands among those who wait for the same ([`WaitNode::set_place`]): level 32 is
/// where an ordinary thread is.
pub fn place_of(thread: &Thread, level: u8) -> u8 {
    const AHEAD_OF_LEVELS: u8 = WaitNode::PLACE_ORDINARY - 32;
    let priority = priority_of(thread, level);
    match priority.realtime_place() {
        Some(place) => place,
        // Others may wait there, too, so a program's own order begins behind those who are not nice.
        None => (AHEAD_OF_LEVELS + level.min(LEVEL_NONE)).max(WaitNode::PLACE_ORDINARY),
    }
}

/// Something of `level` has become ready for a process: a completion in its ring. Wakes an executor that sleeps; else
/// tells one that looks around anyway; else, if the one that runs the least urgent coroutine runs something less
/// urgent, wakes one in reserve or interrupts that one; else leaves word for it.
pub fn completed(process: &Process, level: u8) {
    if process.asynchronous.wake_one(level) {
        return;
    }
    let told = process.executors().to_notify();
    let Some((executor, thread)) = told else { return };
    let Some(record) = executor.record() else { return };
    let running = record::running(record);
    if running.is_some_and(|running| is_blocked(&thread) || running > u32::from(level))
        && let Some((executor, other)) = process.executors().reserve()
    {
        let reason = if is_blocked(&thread) { PENDING_SPARE } else { PENDING_COMPLETION };
        if wake(&other, &executor, reason, level) {
            return;
        }
    }
    let may_interrupt = record::post(record, PENDING_COMPLETION);
    match record::running(record) {
        None => {
            boost(&thread, level);
            // It looks by itself, unless it has fallen asleep at the word meanwhile.
            futex::wake_word(&thread.space(), executor.pages.pending_address(executor.number));
        }
        Some(running) if running > u32::from(level) => {
            boost(&thread, level);
            if may_interrupt {
                BySoftware.interrupt(&thread);
            }
        }
        // It has the level already, and keeps it if its turn ends before it has looked.
        Some(_) => {
            let _ = keep_boost(&thread, level);
        }
    }
}

/// Makes executor `number` look around: wakes it if it sleeps, at the level `lent` if it is one, and interrupts it if
/// it is in its program and unmasked.
///
/// # Errors
/// `EINVAL`.
pub fn kick(process: &Process, number: usize, lent: Option<u8>) -> Result<bool, Errno> {
    let found = {
        let list = process.executors().list.lock();
        let found = list.iter().find(|(executor, _)| executor.number as usize == number);
        found.and_then(|(executor, thread)| Some((executor.clone(), thread.upgrade()?)))
    };
    let (executor, thread) = found.ok_or(Errno::EINVAL)?;
    let record = executor.record().ok_or(Errno::EINVAL)?;
    let may_interrupt = record::post(record, PENDING_KICK);
    if let Some(level) = lent {
        boost(&thread, level);
    }
    if futex::wake_word(&thread.space(), executor.pages.pending_address(executor.number)) {
        return Ok(true);
    }
    if may_interrupt && record::running(record).is_some() {
        BySoftware.interrupt(&thread);
        return Ok(true);
    }
    Ok(false)
}
