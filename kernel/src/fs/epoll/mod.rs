//! epoll(7).
//!
//! An instance holds *interests*, one for each file it watches. An interest is a watcher that stays in the file's wait
//! queue: when the file wakes its queue, the interest puts its number into the instance's ready list, unless it is
//! there already, and wakes whoever waits for the instance. That may happen in an interrupt handler, so the list has
//! room for every interest from the start.
//!
//! A number in the ready list is a hint: epoll_wait(2) takes it out, asks the file, and puts it back when the file is
//! ready and the interest is level-triggered.

mod interests;

use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use linux_raw_sys::general as linux;
use smallvec::SmallVec;

use crate::error::Errno;
use crate::fs::epoll::interests::Interests;
use crate::fs::{File, FileType, Metadata, OpenFile, downcast};
use crate::memory::fallible;
use crate::sync::SpinLock;
use crate::wait::queue::{Disposition, Events, WaitQueue, Watch, Watcher};

/// How deep instances may watch one another, as in Linux.
const DEPTH_LIMIT: u32 = 5;
/// How many instances are looked at to find that out; who builds a larger web is refused.
const VISITS_MAX: u32 = 4096;
/// The bits of an interest that are not events.
const MODIFIERS: u32 = linux::EPOLLET | linux::EPOLLONESHOT | linux::EPOLLEXCLUSIVE | linux::EPOLLWAKEUP;

/// An instance.
pub struct Epoll {
    interests: SpinLock<Interests>,
    ready: Arc<Ready>,
    /// How many instances are above this one at most. It only grows, so that depth is limited whatever the order in
    /// which instances come to watch one another.
    above: AtomicU32,
}

/// What may be ready, and who waits for it.
struct Ready {
    list: SpinLock<VecDeque<u32>>,
    queue: WaitQueue,
}

/// A file that an instance watches.
struct EpollInterest {
    ready: Arc<Ready>,
    index: u32,
    descriptor: i32,
    open: Weak<OpenFile>,
    /// The number of the open file, which stays when it is closed.
    id: u64,
    /// Events and modifiers; 0 after a one-shot interest has been reported.
    events: AtomicU32,
    data: AtomicU64,
    queued: AtomicBool,
    generation: AtomicU32,
}

/// Reports that are taken together: the few of most calls need no memory of their own.
pub type Reports = SmallVec<[ReadyReport; 8]>;

/// What is reported.
#[derive(Clone, Copy, Debug)]
pub struct ReadyReport {
    /// What the file is ready for.
    pub events: u32,
    /// What the program attached to the interest.
    pub data: u64,
}

impl EpollInterest {
    fn wanted(&self) -> Events {
        let events = self.events.load(Ordering::Relaxed);
        if events == 0 {
            Events::empty()
        } else {
            Events::from_bits_retain(events & !MODIFIERS) | Events::ERR | Events::HUP
        }
    }

    fn queue(&self) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.ready.list.lock().push_back(self.index);
        }
    }

    /// Registers with the file anew and looks once, so that nothing before the registration is missed.
    fn watch(self: &Arc<Self>, open: &OpenFile) -> Result<(), Errno> {
        self.generation.fetch_add(1, Ordering::AcqRel);
        let watcher: Arc<dyn Watcher> = self.clone();
        let found = open.file.poll(open, Some(&Watch::new(watcher)), self.wanted())?;
        if found.intersects(self.wanted()) {
            self.queue();
            self.ready.queue.wake(Events::IN | Events::RDNORM);
        }
        Ok(())
    }
}

impl Watcher for EpollInterest {
    fn notify(&self, generation: u32, _events: Events) -> Disposition {
        if self.generation() != generation {
            return Disposition::Stale;
        }
        self.queue();
        self.ready.queue.wake(Events::IN | Events::RDNORM);
        Disposition::Keep
    }

    fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }
}

impl Epoll {
    /// An instance that watches nothing.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new() -> Result<Arc<Self>, Errno> {
        let ready =
            fallible::try_arc(Ready { list: SpinLock::new(VecDeque::new()), queue: WaitQueue::new() })?;
        let above = AtomicU32::new(0);
        fallible::try_arc(Self { interests: SpinLock::new(Interests::new()), ready, above })
    }

    /// The queue that is woken when something may be ready.
    pub fn queue(&self) -> &WaitQueue {
        &self.ready.queue
    }

    fn find(&self, descriptor: i32, id: u64) -> Option<Arc<EpollInterest>> {
        self.interests.lock().find(descriptor, id)
    }

    /// Begins to watch a file: `EPOLL_CTL_ADD`.
    ///
    /// # Errors
    /// `EEXIST`, `EPERM` (the file is always ready), `ELOOP`, `ENOMEM`.
    pub fn add(
        self: &Arc<Self>,
        descriptor: i32,
        open: &Arc<OpenFile>,
        events: u32,
        data: u64,
    ) -> Result<(), Errno> {
        if !open.file.is_pollable() {
            return Err(Errno::EPERM);
        }
        if let Some(inner) = downcast::<Epoll>(open) {
            let above = self.above.load(Ordering::Relaxed) + 1;
            inner.admit(self, above, false, &mut VISITS_MAX.clone())?;
            inner.admit(self, above, true, &mut VISITS_MAX.clone())?;
        }
        if self.find(descriptor, open.id()).is_some() {
            return Err(Errno::EEXIST);
        }
        let interest = {
            let mut interests = self.interests.lock();
            let index = interests.reserve()?;
            let mut list = self.ready.list.lock();
            let missing = (2 * interests.len()).saturating_sub(list.len());
            list.try_reserve(missing).map_err(|_| Errno::ENOMEM)?;
            drop(list);
            let interest = fallible::try_arc(EpollInterest {
                ready: self.ready.clone(),
                index: index as u32,
                descriptor,
                open: Arc::downgrade(open),
                id: open.id(),
                events: AtomicU32::new(events),
                data: AtomicU64::new(data),
                queued: AtomicBool::new(false),
                generation: AtomicU32::new(0),
            })?;
            interests.put(interest.clone());
            interest
        };
        let watched = interest.watch(open);
        if watched.is_err() {
            self.forget(&interest);
        }
        watched
    }

    /// Changes what is watched for: `EPOLL_CTL_MOD`.
    ///
    /// # Errors
    /// `ENOENT`, `ENOMEM`.
    pub fn modify(&self, descriptor: i32, open: &Arc<OpenFile>, events: u32, data: u64) -> Result<(), Errno> {
        let interest = self.find(descriptor, open.id()).ok_or(Errno::ENOENT)?;
        interest.events.store(events, Ordering::Relaxed);
        interest.data.store(data, Ordering::Relaxed);
        interest.watch(open)
    }

    /// Stops watching a file: `EPOLL_CTL_DEL`.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn remove(&self, descriptor: i32, open: &Arc<OpenFile>) -> Result<(), Errno> {
        let interest = self.find(descriptor, open.id()).ok_or(Errno::ENOENT)?;
        self.forget(&interest);
        Ok(())
    }

    fn forget(&self, interest: &Arc<EpollInterest>) {
        interest.events.store(0, Ordering::Relaxed);
        interest.generation.fetch_add(1, Ordering::AcqRel);
        let old = self.interests.lock().remove(interest);
        drop(old);
    }

    /// Checks that `outer` may watch this instance, or with `mark` notes that it does: no circle, and no more than so
    /// many instances above one another.
    fn admit(&self, outer: &Arc<Self>, above: u32, mark: bool, visits: &mut u32) -> Result<(), Errno> {
        *visits = visits.checked_sub(1).ok_or(Errno::EINVAL)?;
        if core::ptr::eq(self, Arc::as_ptr(outer)) || above >= DEPTH_LIMIT {
            return Err(Errno::ELOOP);
        }
        if mark {
            self.above.fetch_max(above, Ordering::Relaxed);
        }
        let count = self.interests.lock().len();
        for index in 0..count {
            let open = self.interests.lock().get(index).map(|known| known.open.clone());
            let Some(open) = open.and_then(|open| open.upgrade()) else { continue };
            if let Some(inner) = downcast::<Epoll>(&open) {
                inner.admit(outer, above + 1, mark, visits)?;
            }
        }
        Ok(())
    }

    /// Reports up to `limit` files that are ready.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn collect(&self, limit: usize, reports: &mut Reports) -> Result<(), Errno> {
        let mut left = self.ready.list.lock().len();
        while left > 0 && reports.len() < limit {
            left -= 1;
            let Some(index) = self.ready.list.lock().pop_front() else { break };
            let interest = self.interests.lock().get(index as usize).cloned();
            // A number may be there twice after its place was given to another file.
            let Some(interest) = interest.filter(|interest| interest.queued.swap(false, Ordering::AcqRel))
            else {
                continue;
            };
            let Some(open) = interest.open.upgrade() else { continue };
            let found = open.file.poll(&open, None, interest.wanted())?.intersection(interest.wanted());
            if found.is_empty() {
                continue;
            }
            let data = interest.data.load(Ordering::Relaxed);
            reports.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            reports.push(ReadyReport { events: found.bits(), data });
            let events = interest.events.load(Ordering::Relaxed);
            if events & linux::EPOLLONESHOT != 0 {
                interest.events.store(0, Ordering::Relaxed);
            } else if events & linux::EPOLLET == 0 {
                interest.queue();
            }
        }
        Ok(())
    }

    /// Whether anything is ready.
    fn is_ready(&self) -> Result<bool, Errno> {
        let count = self.interests.lock().len();
        for index in 0..count {
            let interest = self.interests.lock().get(index).cloned();
            let Some(interest) = interest.filter(|interest| interest.queued.load(Ordering::Acquire)) else {
                continue;
            };
            let Some(open) = interest.open.upgrade() else { continue };
            if open.file.poll(&open, None, interest.wanted())?.intersects(interest.wanted()) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl File for Epoll {
    fn poll(&self, _: &OpenFile, watch: Option<&Watch>, events: Events) -> Result<Events, Errno> {
        if let Some(watch) = watch {
            self.ready.queue.watch(watch, events)?;
        }
        Ok(if self.is_ready()? { Events::IN | Events::RDNORM } else { Events::empty() })
    }

    fn metadata(&self) -> Metadata {
        Metadata::anonymous(FileType::Regular, 0)
    }

    fn name(&self) -> &'static str {
        "anon_inode:[eventpoll]"
    }
}
