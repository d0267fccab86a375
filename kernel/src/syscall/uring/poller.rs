//! The coroutine that takes submissions from rings without a system call (`IORING_SETUP_SQPOLL`).
//!
//! It looks at the tails of its rings again and again. When others are ready it gives way between two looks, and when
//! nobody is it sleeps for a short time: a program on the same CPU is never kept from its work. After the idle time
//! without a submission it says so in the rings (`IORING_SQ_NEED_WAKEUP`) and sleeps until it is woken.
//!
//! It counts among the asynchronous calls of the process that made the ring, whose end ends it.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use linux_raw_sys::io_uring as abi;

use crate::arch::UserContext;
use crate::arch::time::now_ns;
use crate::call::asynchronous::AsyncRequest;
use crate::call::asynchronous::charge::charged;
use crate::call::caller::Caller;
use crate::error::Errno;
use crate::memory::fallible;
use crate::process::Process;
use crate::sched;
use crate::sched::Budget;
use crate::sync::SpinLock;
use crate::syscall::uring::request::{Submitter, new_holder};
use crate::syscall::uring::ring::Uring;
use crate::syscall::uring::submit::{Batch, ENTRY_COST, Turn, submit_chain};
use crate::wait::engine::until;
use crate::wait::node::WaitKind;
use crate::wait::queue::{Events, WaitQueue};

/// Chains that are taken from a ring before the next one's turn.
const CHAINS_AT_ONCE: u32 = 8;
/// The time between two looks when nobody else has work.
const PAUSE_NS: u64 = 50_000;
/// The most rings of one poller.
const RINGS_MAX: usize = 1024;

/// See the module.
pub struct Poller {
    rings: SpinLock<Vec<Weak<Uring>>>,
    /// The longest idle time that one of its rings asked for.
    idle_ns: AtomicU64,
    /// Woken when there is something to look at.
    queue: WaitQueue,
    is_over: AtomicBool,
    process: Weak<Process>,
}

impl Poller {
    /// A poller of one ring, which works for `caller`, on the CPUs of `affinity`.
    ///
    /// # Errors
    /// `ENOMEM`, `EINVAL`.
    pub fn start(
        ring: &Arc<Uring>,
        caller: &Caller,
        idle_ns: u64,
        affinity: u64,
    ) -> Result<Arc<Self>, Errno> {
        let poller = fallible::try_arc(Self {
            rings: SpinLock::new(Vec::new()),
            idle_ns: AtomicU64::new(0),
            queue: WaitQueue::new(),
            is_over: AtomicBool::new(false),
            process: Arc::downgrade(&caller.process),
        })?;
        poller.add(ring, idle_ns)?;
        let holder = new_holder(caller)?;
        let calls = &caller.process.asynchronous;
        calls.enter(&holder)?;
        let (own, its_holder) = (poller.clone(), holder.clone());
        let coroutine = charged(Arc::clone(caller), move || run(own, its_holder));
        if let Err(error) = sched::spawn_on(caller.standing_priority(), affinity, coroutine) {
            calls.leave(&holder, 0);
            holder.release();
            return Err(error);
        }
        Ok(poller)
    }

    /// Adds a ring.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add(&self, ring: &Arc<Uring>, idle_ns: u64) -> Result<(), Errno> {
        let mut rings = self.rings.lock();
        rings.retain(|ring| ring.strong_count() > 0);
        if rings.len() >= RINGS_MAX {
            return Err(Errno::ENOMEM);
        }
        fallible::try_push(&mut rings, Arc::downgrade(ring))?;
        self.idle_ns.fetch_max(idle_ns, Ordering::Relaxed);
        drop(rings);
        self.wake();
        Ok(())
    }

    /// Whether it works for this process.
    pub fn is_of(&self, process: &Arc<Process>) -> bool {
        core::ptr::eq(self.process.as_ptr(), Arc::as_ptr(process))
    }

    /// Whether it has ended, with its process.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Lets it look.
    pub fn wake(&self) {
        self.queue.wake(Events::IN);
    }

    /// The first ring from an index on that is there, and its index.
    fn next(&self, from: usize) -> Option<(usize, Arc<Uring>)> {
        let rings = self.rings.lock();
        let mut rest = rings.iter().enumerate().skip(from);
        rest.find_map(|(index, ring)| Some((index, ring.upgrade().filter(|ring| !ring.is_closed())?)))
    }

    /// Whether it has something to take.
    fn has_work(&self) -> bool {
        let mut from = 0;
        while let Some((index, ring)) = self.next(from) {
            if ring.is_enabled.load(Ordering::Acquire) && ring.submitted() > 0 {
                return true;
            }
            from = index + 1;
        }
        false
    }

    fn set_flags(&self, is_asleep: bool) {
        let mut from = 0;
        while let Some((index, ring)) = self.next(from) {
            ring.set_flag(abi::IORING_SQ_NEED_WAKEUP, is_asleep);
            from = index + 1;
        }
    }
}

/// Takes some chains from a ring. Returns whether there were any.
fn submit_some(ring: &Arc<Uring>, caller: &Caller) -> Result<bool, Errno> {
    if !ring.is_enabled.load(Ordering::Acquire) {
        return Ok(false);
    }
    ring.flush(true);
    let most = ring.submitted();
    if most == 0 {
        return Ok(false);
    }
    let Some(_turn) = Turn::try_take(ring) else { return Ok(false) };
    let mut context = fallible::try_box(UserContext::new_user())?;
    let mut submitter = Submitter { caller, context: &mut context, unused: None };
    let mut taken = 0;
    for _ in 0..CHAINS_AT_ONCE {
        if taken >= most {
            break;
        }
        match submit_chain(ring, &mut submitter, &mut taken, most)? {
            Batch::GoesOn => {}
            Batch::Ends => break,
        }
    }
    Ok(taken > 0)
}

/// The coroutine.
async fn run(poller: Arc<Poller>, holder: Arc<AsyncRequest>) {
    holder.begin();
    core::future::poll_fn(|context| {
        holder.polled(context);
        core::task::Poll::Ready(())
    })
    .await;
    let caller = Caller::Request(holder.clone());
    let mut budget = Budget::new();
    let mut since_ns = now_ns();
    while !holder.is_interrupted(WaitKind::Killable) {
        let (mut from, mut has_worked) = (0, false);
        while let Some((index, ring)) = poller.next(from) {
            // Without memory it looks again later.
            has_worked |= submit_some(&ring, &caller).unwrap_or(false);
            drop(ring);
            budget.step(CHAINS_AT_ONCE * ENTRY_COST).await;
            from = index + 1;
        }
        if from == 0 {
            // Every ring has been closed.
            break;
        }
        if has_worked {
            since_ns = now_ns();
            sched::yield_now().await;
            continue;
        }
        if now_ns().saturating_sub(since_ns) < poller.idle_ns.load(Ordering::Relaxed) {
            pause(&poller, &caller).await;
            continue;
        }
        poller.set_flags(true);
        // The program looks at the flag after it has written the tail.
        fence(Ordering::SeqCst);
        sleep(&poller, &caller, None).await;
        poller.set_flags(false);
        since_ns = now_ns();
    }
    poller.is_over.store(true, Ordering::Release);
    poller.set_flags(true);
    let mut from = 0;
    while let Some((index, ring)) = poller.next(from) {
        ring.queue.wake(Events::all());
        from = index + 1;
    }
    drop(caller);
    holder.release();
    holder.thread.process.asynchronous.leave(&holder, 0);
}

/// Lets others run, and sleeps for a short time.
async fn pause(poller: &Poller, caller: &Caller) {
    if !sched::is_alone() {
        return sched::yield_now().await;
    }
    sleep(poller, caller, Some(now_ns().saturating_add(PAUSE_NS))).await;
}

/// Sleeps until there is something to take, the poller is woken, or the time has come.
async fn sleep(poller: &Poller, caller: &Caller, deadline_ns: Option<u64>) {
    let mut is_woken = false;
    let waited = until(caller, WaitKind::Killable, deadline_ns, |watch| {
        poller.queue.watch(watch, Events::IN)?;
        let was_woken = core::mem::replace(&mut is_woken, true);
        Ok((was_woken || poller.has_work()).then_some(()))
    });
    if waited.await == Err(Errno::ENOMEM) {
        sched::yield_now().await;
    }
}
