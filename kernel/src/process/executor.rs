//! Executor threads: threads of a program that run coroutines, as the kernel's scheduler sees them.
//!
//! An executor thread has the level of the best coroutine that it can run, worked out from the process's pages whenever
//! its turn starts or ends, at a clock tick, and when it gives way. `docs/SHARED-SCHEDULER.md` has the rules.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use heddle_abi::protocol::{Runnable, process_level, record};
use heddle_abi::user_sched::calls::{InterruptFrame, RED_ZONE_BYTES, policy};
use heddle_abi::user_sched::{ExecutorRecord, PENDING_COMPLETION, PENDING_KICK, PENDING_SPARE, levels};
use heddle_kernel_core::fallible::{extend_items_reserved, push_reserved};
use linux_raw_sys::general as linux;

use crate::arch::UserContext;
use crate::error::Errno;
use crate::memory::process_pages::Pages;
use crate::memory::{fallible, values as user};
use crate::process::{Process, Resource, Thread, futex};
use crate::sched;
use crate::sched::Priority;
use crate::signal::PendingWork;
use crate::sync::SpinLock;
use crate::wait::node::WaitKind;

/// No level of its own, and no boost.
const LEVEL_NONE: u8 = 64;
/// Flags that a handler starts without: trap and direction.
const FLAGS_CLEARED: usize = 0x500;

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
    /// A level that something which became ready lends the thread, until it has looked.
    boost: AtomicU8,
}

impl ExecutorSlot {
    /// Of a thread that is no executor.
    pub const fn new() -> Self {
        Self {
            is_executor: AtomicBool::new(false),
            executor: SpinLock::new(None),
            is_blocked: AtomicBool::new(false),
            boost: AtomicU8::new(LEVEL_NONE),
        }
    }

    /// The registration, if the thread is an executor.
    pub(super) fn get(&self) -> Option<Arc<Executor>> {
        if self.is_executor.load(Ordering::Relaxed) { self.executor.lock().clone() } else { None }
    }

    /// Whether the thread is an executor.
    #[inline]
    pub(super) fn is_executor(&self) -> bool {
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
    let may_be_urgent = thread.credentials().is_capable(linux::CAP_SYS_NICE)
        || thread.process.limit(Resource::RealtimePriority).soft > 0;
    let executor = fallible::try_arc(Executor { number, handler, argument, pages, may_be_urgent })?;
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
    drop(thread.executor().executor.lock().replace(executor));
    thread.executor().is_executor.store(true, Ordering::Relaxed);
    refresh(thread);
    Ok(())
}

/// Makes the thread an ordinary one again: at its wish, at its end, and when it runs another program.
pub fn leave(thread: &Arc<Thread>) {
    if !thread.executor().is_executor() {
        return;
    }
    thread.executor().is_executor.store(false, Ordering::Relaxed);
    let registration = thread.executor().executor.lock().take();
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

/// The level that the thread has as an executor; `None`: the one it has anyway.
#[inline]
pub(super) fn level(thread: &Thread) -> Option<Priority> {
    let executor = thread.executor().get()?;
    let ready = thread.process.executors().ready(&executor);
    let running = executor.record().map_or(u32::MAX, |record| record.running.load(Ordering::Relaxed));
    let own = process_level(ready, running, executor.may_be_urgent);
    let boost = thread.executor().boost.load(Ordering::Relaxed);
    let boost = (boost != LEVEL_NONE).then_some(boost);
    let level = own.into_iter().chain(boost).min().map(Priority::new)?;
    // Urgent coroutines are subject to the limit of realtime threads.
    Some(if level.is_realtime() && sched::is_realtime_throttled() { Priority::SPENT } else { level })
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

/// A turn of the thread starts.
#[inline]
pub fn turn_starts(thread: &Thread) {
    if thread.executor().is_executor() && thread.executor().is_blocked.swap(false, Ordering::Relaxed) {
        let executors = thread.process.executors();
        executors.regular_changes(thread);
        executors.runnable.starts();
    }
}

/// A turn of the thread ends, at the level that it had last.
#[inline]
pub fn charge(thread: &Thread, now_ns: u64) {
    let is_urgent = thread.executor().is_executor() && thread.priority().is_realtime();
    if is_urgent && !thread.scheduling().policy.is_realtime() {
        sched::charge_realtime(now_ns.saturating_sub(thread.since_ns()));
    }
}

/// A turn of the thread ends, because it waits or has to give way.
#[inline]
pub fn turn_ends(thread: &Arc<Thread>) {
    if !thread.executor().is_executor() {
        return;
    }
    refresh(thread);
    let waits = thread.look_at_entity(|entity| entity.is_waiting());
    if waits && !thread.executor().is_blocked.swap(true, Ordering::Relaxed) {
        thread.process.executors().regular_changes(thread);
        let is_last = thread.process.executors().runnable.blocks();
        if let Some(executor) = thread.executor().get().filter(|_| is_last) {
            wake_spare(thread, &executor);
        }
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
        boost(thread, &executor, level);
    }
}

/// Wakes an executor if it sleeps at its pending word, at the given level of its process.
fn wake(thread: &Arc<Thread>, executor: &Executor, reason: u32, level: u8) -> bool {
    let Some(record) = executor.record() else { return false };
    let _ = record::post(record, reason);
    let address = executor.pages.pending_address(executor.number);
    boost(thread, executor, level);
    futex::wake_word(&thread.space(), address)
}

/// Lends the thread the level of something that became ready for it.
fn boost(thread: &Thread, executor: &Executor, level: u8) {
    if keep_boost(thread, executor, level) {
        thread.with_entity(|_| {});
    }
}

/// The same, from when its level is next worked out on. `false`: there is nothing to lend.
fn keep_boost(thread: &Thread, executor: &Executor, level: u8) -> bool {
    let level = levels::in_machine(level.into(), executor.may_be_urgent);
    if let Some(level) = level {
        thread.executor().boost.fetch_min(level, Ordering::Relaxed);
    }
    level.is_some()
}

/// The level in the machine of a coroutine of `level`, or of what is done for it: the thread's own if it is ordinary.
#[must_use]
pub fn priority_of(thread: &Thread, level: u8) -> Priority {
    let may_be_urgent = thread.executor().get().is_some_and(|executor| executor.may_be_urgent);
    levels::in_machine(level.into(), may_be_urgent).map_or(thread.standing_priority(), Priority::new)
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
            boost(&thread, &executor, level);
            // It looks by itself, unless it has fallen asleep at the word meanwhile.
            futex::wake_word(&thread.space(), executor.pages.pending_address(executor.number));
        }
        Some(running) if running > u32::from(level) => {
            boost(&thread, &executor, level);
            if may_interrupt {
                BySoftware.interrupt(&thread);
            }
        }
        // It has the level already, and keeps it if its turn ends before it has looked.
        Some(_) => {
            let _ = keep_boost(&thread, &executor, level);
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
        boost(&thread, &executor, level);
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

/// How an executor thread that is in its program is brought to its handler. Where a processor has interrupts between
/// programs (UINTR), it does both by itself.
trait Delivery {
    /// Sends word to the thread, whose record is pending and was not masked.
    fn interrupt(&self, thread: &Thread);

    /// On the thread's way to its program: makes the handler the next thing to run, if it should be.
    async fn enter(&self, thread: &Arc<Thread>, context: &mut UserContext);
}

/// By the way out of the kernel, on which the CPU is brought by an interprocessor interrupt.
struct BySoftware;

impl Delivery for BySoftware {
    fn interrupt(&self, thread: &Thread) {
        thread.add_work(PendingWork::INTERRUPT);
        thread.interrupt();
    }

    async fn enter(&self, thread: &Arc<Thread>, context: &mut UserContext) {
        let Some(executor) = thread.executor().get() else { return };
        let Some(record) = executor.record().filter(|_| executor.handler != 0) else { return };
        let address = context.sp().wrapping_sub(RED_ZONE_BYTES + size_of::<InterruptFrame>());
        let space = thread.space();
        // Brings the stack in first: from the look at the record on nothing waits.
        let is_dying = || thread.is_interrupted(WaitKind::Killable);
        let ready = user::resolve_attempt(&space, is_dying, |space| {
            space.probe_write(address, size_of::<InterruptFrame>())?;
            crate::process::rseq::attempt(thread, space, context)
        });
        if ready.await.is_err() {
            return;
        }
        let frame = InterruptFrame {
            argument: executor.argument as u64,
            flags: context.flags() as u64,
            ip: context.ip() as u64,
        };
        let words = [frame.argument, frame.flags, frame.ip];
        if !record::enter_handler(record) {
            return;
        }
        if user::write_words(&space, address, &words).is_err() {
            // The program has taken its stack away meanwhile. The word stays pending, so nothing is lost.
            record.mask.store(0, Ordering::SeqCst);
            return;
        }
        record.interrupts.fetch_add(1, Ordering::Relaxed);
        context.set_sp(address);
        context.set_ip(executor.handler);
        context.set_flags(context.flags() & !FLAGS_CLEARED);
    }
}

/// On the thread's way to its program, when there is word for it.
pub async fn enter_handler(thread: &Arc<Thread>, context: &mut UserContext) {
    BySoftware.enter(thread, context).await;
}

/// Whether the thread may be interrupted, before a signal's handler is entered: what its frame keeps.
pub fn is_unmasked(thread: &Thread) -> bool {
    let executor = thread.executor().get();
    executor
        .as_ref()
        .and_then(|executor| executor.record())
        .is_some_and(|record| record.mask.load(Ordering::SeqCst) == 0)
}

/// A signal's handler is entered: it is not interrupted.
pub fn mask(thread: &Thread) {
    if let Some(record) = thread.executor().get().as_ref().and_then(|executor| executor.record()) {
        record::mask(record);
    }
}

/// A signal's handler returns to where interrupts were allowed.
pub fn unmask(thread: &Thread) {
    if let Some(record) = thread.executor().get().as_ref().and_then(|executor| executor.record())
        && record::unmask(record)
    {
        thread.add_work(PendingWork::INTERRUPT);
    }
}
