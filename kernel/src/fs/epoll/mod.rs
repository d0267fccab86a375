//! epoll(7).
//!
//! An instance holds *interests*, one for each file it watches. An interest is a listener that stays in the file's wait
//! queue: when the file wakes its queue, the interest goes into the instance's ready list, unless it is there already,
//! and whoever waits for the instance is woken. The list links the interests themselves, so it needs no memory.
//!
//! An interest in the ready list is a hint: epoll_wait(2) takes it out, asks the file, and puts it back when the file
//! is ready and the interest is level-triggered.
//!
//! An instance that ends takes its interests out of use, so no wake goes through it any more.

mod interests;
mod nesting;
mod ready;
pub mod remains;

use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use linux_raw_sys::general as linux;
use smallvec::SmallVec;

use crate::error::Errno;
use crate::fs::epoll::interests::Interests;
use crate::fs::epoll::nesting::{Links, Nesting};
use crate::fs::epoll::ready::Ready;
use crate::fs::{File, FileType, Metadata, OpenFile, downcast, downcast_arc};
use crate::memory::fallible;
use crate::sync::SpinLock;
use crate::wait::queue::{Events, Listener, RelayQueue, Watch};

/// Hints that a question for readiness looks at; with more of them the answer is that something may be ready.
const LOOKS_MAX: usize = 1024;
/// The bits that an exclusive interest may have.
const EXCLUSIVE_KNOWN: u32 = linux::EPOLLIN
    | linux::EPOLLOUT
    | linux::EPOLLERR
    | linux::EPOLLHUP
    | linux::EPOLLWAKEUP
    | linux::EPOLLET
    | linux::EPOLLEXCLUSIVE;
/// The bits of an interest that are not events.
const MODIFIERS: u32 = linux::EPOLLET | linux::EPOLLONESHOT | linux::EPOLLEXCLUSIVE | linux::EPOLLWAKEUP;

/// An instance.
pub struct Epoll {
    interests: SpinLock<Interests>,
    ready: Arc<Ready>,
    /// How many instances are above this one at most. It only grows, so that depth is limited whatever the order in
    /// which instances come to watch one another.
    above: AtomicU32,
    links: SpinLock<Links>,
}

/// Hints that one look into the ready list takes at most.
const HINTS_MAX: usize = 128;

/// A file that an instance watches.
struct EpollInterest {
    ready: Arc<Ready>,
    index: AtomicU32,
    descriptor: i32,
    open: Weak<OpenFile>,
    /// The number of the open file, which stays when it is closed.
    id: u64,
    /// Events and modifiers; 0 after a one-shot interest has been reported.
    events: AtomicU32,
    data: AtomicU64,
    /// It is in the ready list, and what follows it there.
    queued: AtomicBool,
    next: SpinLock<Option<Arc<EpollInterest>>>,
    generation: AtomicU32,
    /// It was taken out of the instance.
    is_gone: AtomicBool,
}

/// Reports that are taken together: the few of most calls need no memory of their own.
pub type Reports = SmallVec<[ReadyReport; 8]>;

/// A reported event.
#[derive(Clone, Copy, Debug)]
pub struct ReadyReport {
    /// The events that the file is ready for.
    pub events: u32,
    /// The program's own value for the interest.
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

    /// Puts it into the ready list.
    fn queue(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.ready.push(self.clone());
        }
    }

    /// The wanted events that the file is ready for.
    fn look(&self) -> Result<Events, Errno> {
        let Some(open) = self.open.upgrade() else { return Ok(Events::empty()) };
        Ok(open.file.poll(&open, None, self.wanted())?.intersection(self.wanted()))
    }

    /// Registers with the file anew and looks once, so that nothing before the registration is missed.
    fn watch(self: &Arc<Self>, open: &OpenFile) -> Result<(), Errno> {
        self.generation.fetch_add(1, Ordering::AcqRel);
        let is_exclusive = self.events.load(Ordering::Relaxed) & linux::EPOLLEXCLUSIVE != 0;
        let watch = Watch::listener(self.clone(), is_exclusive);
        let found = open.file.poll(open, Some(&watch), self.wanted())?;
        if self.is_gone.load(Ordering::Acquire) {
            // Somebody has taken it out in between.
            self.generation.fetch_add(1, Ordering::AcqRel);
        } else if found.intersects(self.wanted()) {
            self.queue();
            self.ready.relay.wake();
        }
        Ok(())
    }

    /// Whether it was taken out of use.
    fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    /// Takes it out of use: no wake of its file reaches it any more.
    fn retire(&self) {
        self.events.store(0, Ordering::Relaxed);
        self.is_gone.store(true, Ordering::Release);
        self.generation.fetch_add(1, Ordering::AcqRel);
    }
}

impl Listener for EpollInterest {
    fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    fn notify(self: Arc<Self>, _events: Events) {
        self.queue();
    }

    fn relay(&self) -> &Arc<RelayQueue> {
        &self.ready.relay
    }
}

impl Epoll {
    /// An instance that watches nothing.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new() -> Result<Arc<Self>, Errno> {
        let ready = Ready::new()?;
        let (above, links) = (AtomicU32::new(0), SpinLock::new(Links::default()));
        fallible::try_arc(Self { interests: SpinLock::new(Interests::new()), ready, above, links })
    }

    /// Registers for the instance, and says whether something may be ready.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn may_be_ready(&self, watch: &Watch) -> Result<bool, Errno> {
        self.ready.relay.watch(watch, Events::IN)?;
        Ok(!self.ready.is_empty())
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
        let inner: Option<Arc<Self>> = downcast_arc(&open.file);
        if events & linux::EPOLLEXCLUSIVE != 0 && (events & !EXCLUSIVE_KNOWN != 0 || inner.is_some()) {
            return Err(Errno::EINVAL);
        }
        let interest = fallible::try_arc(EpollInterest {
            ready: self.ready.clone(),
            index: AtomicU32::new(0),
            descriptor,
            open: Arc::downgrade(open),
            id: open.id(),
            events: AtomicU32::new(events),
            data: AtomicU64::new(data),
            queued: AtomicBool::new(false),
            next: SpinLock::new(None),
            generation: AtomicU32::new(0),
            is_gone: AtomicBool::new(false),
        })?;
        let mut nesting = Nesting::begin(self, inner.as_deref());
        nesting.admit(self, inner.as_ref())?;
        if let Err(error) = self.put(&interest) {
            if let Some(inner) = &inner {
                nesting::forget(self, inner);
            }
            return Err(error);
        }
        drop(nesting);
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
        if (events | interest.events.load(Ordering::Relaxed)) & linux::EPOLLEXCLUSIVE != 0 {
            return Err(Errno::EINVAL);
        }
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

    /// Takes an interest in.
    fn put(&self, interest: &Arc<EpollInterest>) -> Result<(), Errno> {
        let mut interests = self.interests.lock();
        if interests.find(interest.descriptor, interest.id).is_some() {
            return Err(Errno::EEXIST);
        }
        let index = interests.reserve()?;
        interest.index.store(index as u32, Ordering::Relaxed);
        interests.put(interest.clone());
        Ok(())
    }

    fn forget(&self, interest: &Arc<EpollInterest>) {
        interest.retire();
        if interest.queued.load(Ordering::Acquire) {
            self.ready.drop_gone();
        }
        if let Some(open) = interest.open.upgrade()
            && let Some(inner) = downcast::<Self>(&open)
        {
            nesting::forget(self, inner);
        }
        let old = self.interests.lock().remove(interest);
        drop(old);
    }

    /// Reports up to `limit` files that are ready, from so many hints as one look takes and at most `left`, which is
    /// counted down. Whatever is reported before an error counts.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn collect(&self, limit: usize, left: &mut usize, reports: &mut Reports) -> Result<(), Errno> {
        let mut looks = (*left).min(HINTS_MAX);
        while looks > 0 && reports.len() < limit {
            // Before a hint is taken, which is to be reported then.
            reports.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            let Some(interest) = self.ready.pop() else {
                *left = 0;
                break;
            };
            (looks, *left) = (looks - 1, *left - 1);
            let found = interest.look().inspect_err(|_| interest.queue())?;
            if found.is_empty() {
                continue;
            }
            let data = interest.data.load(Ordering::Relaxed);
            #[expect(clippy::disallowed_methods, reason = "there is room")]
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

    /// Wakes another thread that waits, if there is anything for it.
    pub fn pass_on(&self) {
        if !self.ready.is_empty() {
            self.ready.relay.wake_next();
        }
    }

    /// How many files may be ready.
    #[must_use]
    pub fn hints(&self) -> usize {
        self.ready.len()
    }

    /// Whether nothing is in the ready list.
    #[must_use]
    pub fn has_no_hints(&self) -> bool {
        self.ready.is_empty()
    }

    /// Whether anything is ready. Hints that were wrong are dropped.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn is_ready(&self) -> Result<bool, Errno> {
        for _ in 0..LOOKS_MAX {
            let Some(interest) = self.ready.first() else { return Ok(false) };
            if !interest.look()?.is_empty() {
                return Ok(true);
            }
            // An event between the look and the removal finds the interest in the list and is not noted.
            if self.ready.remove_first(&interest) && !interest.look()?.is_empty() {
                interest.queue();
                return Ok(true);
            }
        }
        Ok(true)
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        // Wakes of files end at the closed list from here on, and the interests are retired as soon as may be.
        self.ready.close();
        let interests = core::mem::replace(self.interests.get_mut(), Interests::new());
        remains::free(interests, self.ready.clone());
    }
}

impl File for Epoll {
    fn poll(&self, _: &OpenFile, watch: Option<&Watch>, events: Events) -> Result<Events, Errno> {
        if let Some(watch) = watch {
            self.ready.relay.watch(watch, events)?;
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
