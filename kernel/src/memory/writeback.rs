//! Objects whose pages can be read again: stores to them are written back to somewhere else than memory.
//!
//! Each file system has a coroutine, its *storer*, that writes pages back: when memory is short, at the end of a
//! mapping, and when all is to be stored. Whoever waits for it does so as long as it gets on: a host that hangs keeps
//! the storer of its folder, and then other memory has to do.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::task::{Context, Poll};

use crate::arch::time::now_ns;
use crate::error::Errno;
use crate::memory::fallible::{try_arc, try_push};
use crate::memory::source::{MapSource, Written};
use crate::memory::space::unmap_shared;
use crate::memory::{frame, reclaim};
use crate::sched;
use crate::sched::{Priority, TaskRef, detour, usage};
use crate::sync::SpinLock;
use crate::time;

/// How long a storer may take for a page before it counts as stuck.
const STUCK_NS: u64 = 5 * time::NS_PER_SECOND;
/// How often who waits for it looks.
const LOOK_NS: u64 = 1_000_000;

/// The storers. A file system's is made for its first object, and stays.
static STORERS: SpinLock<Vec<Arc<Storer>>> = SpinLock::new(Vec::new());
/// All objects that are mapped.
static MAPPED: SpinLock<Vec<Weak<dyn MapSource>>> = SpinLock::new(Vec::new());

/// A coroutine that stores what was written to the objects of one file system.
struct Storer {
    device: u64,
    task: spin::Once<TaskRef>,
    /// Rounds in which it stores pages that nobody has mapped, and gives them up.
    evictions: StoreRounds,
    /// Rounds in which it stores all.
    stores: StoreRounds,
    /// The error of the last of these.
    error: SpinLock<Option<Errno>>,
    /// Objects whose last mapping has ended, the first one first, and how many there were and are finished.
    ending: SpinLock<Vec<Arc<dyn MapSource>>>,
    endings: StoreRounds,
    /// Counts pages that were stored.
    progress: AtomicU64,
    /// Nobody waits for it until it has stored something.
    is_stuck: AtomicBool,
    /// It is nobody's, and ends.
    is_over: AtomicBool,
}

/// Rounds that were asked for, and that are done.
struct StoreRounds {
    asked: AtomicU64,
    done: AtomicU64,
}

impl StoreRounds {
    const fn new() -> Self {
        Self { asked: AtomicU64::new(0), done: AtomicU64::new(0) }
    }

    /// Asks for a round; its number.
    fn ask(&self) -> u64 {
        self.asked.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The last round that was asked for, if it is not done.
    fn next(&self) -> Option<u64> {
        let asked = self.asked.load(Ordering::Acquire);
        (asked != self.done.load(Ordering::Relaxed)).then_some(asked)
    }

    fn end(&self, round: u64) {
        self.done.store(round, Ordering::Release);
    }

    fn is_done(&self, round: u64) -> bool {
        self.done.load(Ordering::Acquire) >= round
    }
}

/// A storer's work.
struct StorerWork {
    evicts: Option<u64>,
    stores: Option<u64>,
    ends: Option<u64>,
}

/// The storer of a file system, if it has one.
fn storer_of(device: u64) -> Option<Arc<Storer>> {
    STORERS.lock().iter().find(|storer| storer.device == device).cloned()
}

fn nth_storer(index: usize) -> Option<Arc<Storer>> {
    STORERS.lock().get(index).cloned()
}

/// Makes the storer of a file system, if there is none.
fn make_storer(device: u64) -> Result<(), Errno> {
    if storer_of(device).is_some() {
        return Ok(());
    }
    let storer = try_arc(Storer {
        is_over: AtomicBool::new(false),
        device,
        task: spin::Once::new(),
        evictions: StoreRounds::new(),
        stores: StoreRounds::new(),
        error: SpinLock::new(None),
        ending: SpinLock::new(Vec::new()),
        endings: StoreRounds::new(),
        progress: AtomicU64::new(0),
        is_stuck: AtomicBool::new(false),
    })?;
    let task = sched::spawn(Priority::KERNEL, storer.clone().run())?;
    storer.task.call_once(|| task);
    // Only now: whoever finds it can wake it.
    let mut storers = STORERS.lock();
    let is_known = storers.iter().any(|known| known.device == device);
    let result = if is_known { Ok(()) } else { try_push(&mut storers, storer.clone()) };
    drop(storers);
    if is_known || result.is_err() {
        storer.is_over.store(true, Ordering::Release);
        storer.wake();
    }
    result
}

/// Has an object stored at the machine's end, and its pages taken when memory is short.
///
/// # Errors
/// `ENOMEM`.
pub fn register(source: &Arc<dyn MapSource>) -> Result<(), Errno> {
    make_storer(source.identity().0)?;
    let mut mapped = MAPPED.lock();
    mapped.retain(|known| known.strong_count() > 0);
    try_push(&mut mapped, Arc::downgrade(source))
}

/// The object at this place of the list, if it still is one; `None` behind the last.
fn nth(index: usize) -> Option<Option<Arc<dyn MapSource>>> {
    MAPPED.lock().get(index).map(Weak::upgrade)
}

/// The file systems of which all is to be stored, and for how long that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreWait {
    /// All, for as long as it takes.
    All,
    /// All, as long as their storers get on.
    Willing,
    /// The one of this number, likewise.
    Device(u64),
}

impl StoreWait {
    /// The wait of `syncfs`, which stores the files of a device: an overlay's files are of other file systems, so they
    /// may be any.
    #[must_use]
    pub fn of(device: Option<u64>) -> Self {
        device.filter(|&device| storer_of(device).is_some()).map_or(Self::Willing, Self::Device)
    }
}

/// Stores what was written to all objects, those of each file system beside those of others.
///
/// # Errors
/// The error of storing one; `EIO`: a storer does not get on.
pub async fn store_all(wait: StoreWait) -> Result<(), Errno> {
    let is_asked = |storer: &Storer| !matches!(wait, StoreWait::Device(device) if device != storer.device);
    for storer in (0..).map_while(nth_storer).filter(|storer| is_asked(storer)) {
        storer.stores.ask();
        storer.wake();
    }
    let mut result = Ok(());
    let mut index = 0;
    while let Some(storer) = nth_storer(index) {
        index += 1;
        if !is_asked(&storer) {
            continue;
        }
        let round = storer.stores.asked.load(Ordering::Acquire);
        if wait != StoreWait::All {
            storer.watch(|| storer.stores.is_done(round)).await;
        }
        while wait == StoreWait::All && !storer.stores.is_done(round) {
            time::sleep_until(now_ns() + LOOK_NS).await;
        }
        let is_done = storer.stores.is_done(round);
        let stored = if is_done { storer.error.lock().map_or(Ok(()), Err) } else { Err(Errno::EIO) };
        result = result.and(stored);
    }
    result
}

/// The storer of a file system has stored a page.
pub fn note_progress(device: u64) {
    if let Some(storer) = storer_of(device) {
        storer.progress.fetch_add(1, Ordering::Relaxed);
        storer.is_stuck.store(false, Ordering::Relaxed);
    }
}

/// Has the storer of an object's file system finish it. A program waits for that as long as the storer gets on.
///
/// # Errors
/// `ENOMEM`: the object has to be finished here.
pub fn finish_later(source: &Arc<dyn MapSource>) -> Result<(), Errno> {
    let storer = storer_of(source.identity().0).ok_or(Errno::ENOMEM)?;
    let round = {
        let mut ending = storer.ending.lock();
        try_push(&mut ending, source.clone())?;
        // With the lock held, so that the numbers are in the order of the list.
        storer.endings.ask()
    };
    storer.wake();
    // Only a program waits: the storer itself may be what has come here.
    if usage::thread_here().is_some() && !storer.is_stuck.load(Ordering::Relaxed) {
        storer.wait_for_ending(round);
    }
    Ok(())
}

impl Storer {
    fn wake(&self) {
        if let Some(task) = self.task.get() {
            task.wake();
        }
    }

    fn work(&self) -> Option<StorerWork> {
        let (evicts, stores, ends) = (self.evictions.next(), self.stores.next(), self.endings.next());
        let is_any = evicts.is_some() || stores.is_some() || ends.is_some();
        is_any.then_some(StorerWork { evicts, stores, ends })
    }

    /// The objects of the file system.
    fn sources(&self) -> impl Iterator<Item = Arc<dyn MapSource>> {
        (0..).map_while(nth).flatten().filter(move |source| source.identity().0 == self.device)
    }

    async fn run(self: Arc<Self>) {
        loop {
            let is_over = || self.is_over.load(Ordering::Acquire);
            let next = |_: &mut Context<'_>| match self.work() {
                None if !is_over() => Poll::Pending,
                work => Poll::Ready(work),
            };
            let Some(work) = poll_fn(next).await else { return };
            if work.ends.is_some() {
                for source in self.take_ending() {
                    source.finish();
                    drop(source);
                    self.endings.done.fetch_add(1, Ordering::Release);
                    detour::look_again();
                    sched::yield_now().await;
                }
            }
            if let Some(round) = work.stores {
                let (all, mut error) = (Written { pages: 0..u64::MAX, moment: 0 }, None);
                // One that cannot be stored keeps none of the others from it.
                for source in self.sources() {
                    error = error.or(source.store(&all, false).err());
                }
                *self.error.lock() = error;
                self.stores.end(round);
            }
            if let Some(round) = work.evicts {
                for source in self.sources() {
                    source.store_unmapped();
                }
                self.evictions.end(round);
            }
            self.is_stuck.store(false, Ordering::Relaxed);
        }
    }

    fn take_ending(&self) -> Vec<Arc<dyn MapSource>> {
        core::mem::take(&mut *self.ending.lock())
    }

    /// Waits in a detour until objects are finished, or the storer does not get on.
    fn wait_for_ending(self: &Arc<Self>, round: u64) {
        let storer = self.clone();
        let watch = async move {
            storer.watch(|| storer.endings.is_done(round)).await;
            detour::look_again();
        };
        if sched::spawn(Priority::KERNEL, watch).is_ok() {
            detour::wait(&|| self.endings.is_done(round) || self.is_stuck.load(Ordering::Relaxed));
        }
    }

    /// Waits until something is over, or the storer does not get on.
    async fn watch(&self, is_over: impl Fn() -> bool) {
        let (mut progress, mut since_ns) = (self.progress.load(Ordering::Relaxed), now_ns());
        while !is_over() && !self.is_stuck.load(Ordering::Relaxed) {
            let stored = self.progress.load(Ordering::Relaxed);
            if stored != progress {
                (progress, since_ns) = (stored, now_ns());
            } else if now_ns().saturating_sub(since_ns) > STUCK_NS {
                ::log::warn!("pages of a shared folder are not stored: the host does not answer");
                self.is_stuck.store(true, Ordering::Relaxed);
            }
            time::sleep_until(now_ns() + LOOK_NS).await;
        }
    }
}

/// Has the storers store all pages that are not mapped, and waits for each as long as it gets on.
async fn store_unmapped() {
    for storer in (0..).map_while(nth_storer) {
        storer.evictions.ask();
        storer.wake();
    }
    let mut index = 0;
    while let Some(storer) = nth_storer(index) {
        index += 1;
        let round = storer.evictions.asked.load(Ordering::Acquire);
        storer.watch(|| storer.evictions.is_done(round)).await;
    }
}

/// Takes all pages from the programs that have them mapped shared, and gives them back; whether that was any memory.
pub async fn evict() -> bool {
    let before = frame::free_frames();
    let mut index = 0;
    while let Some(next) = nth(index) {
        index += 1;
        if let Some(source) = next {
            // Pages that remain mapped are kept.
            unmap_shared(&source, 0..u64::MAX).await;
        }
    }
    // Deferred frees still refer to unmapped pages, so they are released first.
    frame::drain_caches();
    store_unmapped().await;
    reclaim::reclaim();
    frame::free_frames() > before
}
