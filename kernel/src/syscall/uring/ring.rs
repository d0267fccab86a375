//! The rings: their memory, completions, and the requests under way.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use linux_raw_sys::io_uring::{IORING_OFF_CQ_RING, IORING_OFF_SQES};
use spin::Once;

use heddle_kernel_core::uring::{Restrictions, RingLayout, SQE_WORDS, Sqe, at};

use crate::arch::paging::PAGE_SIZE;
use crate::error::Errno;
use crate::fs::{File, OpenFile};
use crate::memory::source::SerialNumber;
use crate::memory::{FrameRef, MapSource, PageRef, fallible};
use crate::sync::SpinLock;
use crate::syscall::submitted::zeroed;
use crate::syscall::uring::completions::Completions;
use crate::syscall::uring::poller::Poller;
use crate::syscall::uring::provided::ProvidedBuffers;
use crate::syscall::uring::request::UringRequest;
use crate::syscall::uring::resources::{BufferResource, FileTable, ResourceEras};
use crate::wait::queue::{Events, WaitQueue, Watch};

/// The pages that a program maps: both rings in one piece, and the entries.
pub struct RingMemory {
    pub layout: RingLayout,
    rings: Vec<FrameRef>,
    entries: Vec<FrameRef>,
    serial: SerialNumber,
}

impl RingMemory {
    /// Empty rings.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub async fn new(layout: RingLayout) -> Result<Arc<Self>, Errno> {
        let rings = zeroed(layout.ring_bytes()).await?;
        let entries = zeroed(layout.sqe_bytes()).await?;
        let memory = Self { layout, rings, entries, serial: SerialNumber::default() };
        let constants = [
            (at::SQ_MASK, layout.sq_entries - 1),
            (at::CQ_MASK, layout.cq_entries - 1),
            (at::SQ_ENTRIES, layout.sq_entries),
            (at::CQ_ENTRIES, layout.cq_entries),
        ];
        for (offset, value) in constants {
            memory.word(offset).store(value, Ordering::Relaxed);
        }
        fallible::try_arc(memory)
    }

    /// The word at an offset of the rings.
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        &self.rings[offset / PAGE_SIZE].words()[offset % PAGE_SIZE / size_of::<u32>()]
    }

    /// The entry at an index, read once.
    fn sqe(&self, index: u32) -> Sqe {
        let offset = index as usize * self.layout.sqe_size;
        let words = &self.entries[offset / PAGE_SIZE].words()[offset % PAGE_SIZE / size_of::<u32>()..];
        let half = |at: usize| u64::from(words[at].load(Ordering::Relaxed));
        Sqe::from_words(core::array::from_fn::<u64, SQE_WORDS, _>(|at| half(at * 2) | half(at * 2 + 1) << 32))
    }

    /// Writes a completion, as much of it as the ring has room for.
    pub fn put(&self, index: u32, words: [u64; 4]) {
        let offset = self.layout.cqe(index);
        let words = &words[..self.layout.cqe_size / size_of::<u64>()];
        for (at, value) in words.iter().flat_map(|word| [*word, word >> 32]).enumerate() {
            self.word(offset + at * size_of::<u32>()).store(value as u32, Ordering::Relaxed);
        }
    }

    /// How many pages it has.
    const fn pages(&self) -> usize {
        self.rings.len() + self.entries.len()
    }
}

impl MapSource for RingMemory {
    fn serial(&self) -> (u64, u64) {
        self.serial.pair()
    }

    /// Page numbers are those of `IORING_OFF_SQ_RING` and its relatives.
    fn page(&self, index: u64, _write: bool) -> Result<PageRef, Errno> {
        const ENTRIES: u64 = IORING_OFF_SQES as u64 / PAGE_SIZE as u64;
        const COMPLETIONS: u64 = IORING_OFF_CQ_RING as u64 / PAGE_SIZE as u64;
        let (frames, index) = match index {
            ENTRIES.. => (&self.entries, index - ENTRIES),
            COMPLETIONS.. => (&self.rings, index - COMPLETIONS),
            _ => (&self.rings, index),
        };
        let frame = usize::try_from(index).ok().and_then(|index| frames.get(index));
        frame.map(|frame| PageRef::Counted(frame.clone())).ok_or(Errno::EFAULT)
    }

    fn path(&self) -> Option<Vec<u8>> {
        fallible::try_to_vec(b"anon_inode:[io_uring]").ok()
    }
}

/// Requests under way, by their user data and a number of their own.
#[derive(Default)]
pub struct Requests {
    by_data: BTreeMap<(u64, u64), Arc<UringRequest>>,
    next: u64,
    count: usize,
}

impl Requests {
    /// Enters a request; returns its number.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn enter(&mut self, active: &Arc<UringRequest>) -> Result<u64, Errno> {
        let number = self.next;
        self.next += 1;
        fallible::try_insert(&mut self.by_data, (active.user_data(), number), active.clone())?;
        self.count += 1;
        Ok(number)
    }

    /// Takes a request out.
    pub fn leave(&mut self, active: &UringRequest, number: u64) -> Option<Arc<UringRequest>> {
        let taken = self.by_data.remove(&(active.user_data(), number));
        self.count -= usize::from(taken.is_some());
        taken
    }

    /// Gives a request other user data.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn rename(&mut self, active: &Arc<UringRequest>, user_data: u64) -> Result<(), Errno> {
        let before = active.user_data();
        let found =
            self.by_data.range((before, 0)..=(before, u64::MAX)).find(|(_, each)| Arc::ptr_eq(each, active));
        let Some((&(_, number), _)) = found else { return Ok(()) };
        fallible::try_insert(&mut self.by_data, (user_data, number), active.clone())?;
        drop(self.by_data.remove(&(before, number)).filter(|_| before != user_data));
        active.set_user_data(user_data);
        Ok(())
    }

    /// The first request from a place on, and its place.
    pub fn next(&self, from: (u64, u64)) -> Option<((u64, u64), Arc<UringRequest>)> {
        self.by_data.range(from..).next().map(|(place, active)| (*place, active.clone()))
    }
}

/// The submitting thread, and the requests that have to come in order.
#[derive(Default)]
pub struct Submission {
    pub is_taken: bool,
    /// Chains submitted so far.
    pub sequence: u64,
    /// Chains under way, by the order of submission.
    pub under_way: BTreeMap<u64, ()>,
    /// Those of them that all behind them wait for (`IOSQE_IO_DRAIN`).
    pub drains: BTreeMap<u64, ()>,
}

/// The rights of a program on a ring, and limits.
#[derive(Default)]
pub struct Rules {
    pub restrictions: Restrictions,
    /// The most workers, bounded and unbounded (`IORING_REGISTER_IOWQ_MAX_WORKERS`). Requests are coroutines and need
    /// none, so that there are never more.
    pub workers: [u32; 2],
}

/// An instance of `io_uring`.
pub struct Uring {
    pub memory: Arc<RingMemory>,
    pub setup: u32,
    /// Whether it takes submissions (`IORING_SETUP_R_DISABLED`).
    pub is_enabled: AtomicBool,
    /// Whether the last descriptor is gone, so that no request may begin to wait.
    is_closed: AtomicBool,
    /// Whether an entry has asked for no completion, after which none may drain.
    pub skips_completions: AtomicBool,
    /// The thread that may submit, with `IORING_SETUP_SINGLE_ISSUER`; 0 for none yet.
    pub issuer: AtomicU32,
    pub submission: SpinLock<Submission>,
    pub requests: Arc<SpinLock<Requests>>,
    pub files: SpinLock<FileTable>,
    pub buffers: SpinLock<Vec<Option<Arc<BufferResource>>>>,
    pub eras: SpinLock<ResourceEras>,
    pub provided: SpinLock<ProvidedBuffers>,
    pub rules: SpinLock<Rules>,
    pub completions: Completions,
    /// The coroutine that submits (`IORING_SETUP_SQPOLL`).
    pub poller: Once<Arc<Poller>>,
    /// How many polls have been told of events and have not looked.
    pub told_polls: Arc<AtomicU32>,
    /// Woken by each completion, and when a submission is over.
    pub queue: WaitQueue,
}

impl Uring {
    /// An instance with these rings.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(memory: Arc<RingMemory>, setup: u32, is_enabled: bool) -> Result<Arc<Self>, Errno> {
        fallible::try_arc(Self {
            memory,
            setup,
            is_enabled: AtomicBool::new(is_enabled),
            is_closed: AtomicBool::new(false),
            skips_completions: AtomicBool::new(false),
            issuer: AtomicU32::new(0),
            submission: SpinLock::new(Submission::default()),
            requests: fallible::try_arc(SpinLock::new(Requests::default()))?,
            files: SpinLock::new(FileTable::default()),
            buffers: SpinLock::new(Vec::new()),
            eras: SpinLock::new(ResourceEras::default()),
            provided: SpinLock::new(ProvidedBuffers::default()),
            rules: SpinLock::new(Rules::default()),
            completions: Completions::default(),
            poller: Once::new(),
            told_polls: fallible::try_arc(AtomicU32::new(0))?,
            queue: WaitQueue::new(),
        })
    }

    /// Whether nobody can take a completion any more.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Takes the next entry that the program has submitted; `None` if there is none. The submitter is one at a time.
    ///
    /// # Errors
    /// `EINVAL`: the index was none of an entry, and has been counted as dropped.
    pub fn take_sqe(&self) -> Result<Option<Sqe>, Errno> {
        let memory = &self.memory;
        let head = memory.word(at::SQ_HEAD).load(Ordering::Relaxed);
        if self.submitted() == 0 {
            return Ok(None);
        }
        let index = memory.word(memory.layout.sq_index(head)).load(Ordering::Relaxed);
        let sqe = (index < memory.layout.sq_entries).then(|| memory.sqe(index));
        memory.word(at::SQ_HEAD).store(head.wrapping_add(1), Ordering::Release);
        if sqe.is_none() {
            memory.word(at::SQ_DROPPED).fetch_add(1, Ordering::Relaxed);
            return Err(Errno::EINVAL);
        }
        Ok(sqe)
    }

    /// The first request under way with these user data that `matches`.
    pub fn find(&self, user_data: u64, matches: impl Fn(&UringRequest) -> bool) -> Option<Arc<UringRequest>> {
        let requests = self.requests.lock();
        let mut of_data =
            requests.by_data.range((user_data, 0)..=(user_data, u64::MAX)).map(|(_, active)| active);
        of_data.find(|active| matches(active)).cloned()
    }

    /// Whether a poll has been told of events and has not looked.
    pub fn has_told_polls(&self) -> bool {
        self.told_polls.load(Ordering::Relaxed) > 0
    }

    /// Whether there are requests under way.
    pub fn has_requests(&self) -> bool {
        self.requests.lock().count > 0
    }

    /// How many entries the program has submitted that have not been taken.
    pub fn submitted(&self) -> u32 {
        let head = self.memory.word(at::SQ_HEAD).load(Ordering::Relaxed);
        let tail = self.memory.word(at::SQ_TAIL).load(Ordering::Acquire);
        tail.wrapping_sub(head).min(self.memory.layout.sq_entries)
    }

    /// Sets or clears flags that the program sees.
    pub fn set_flag(&self, flag: u32, is_set: bool) {
        let flags = self.memory.word(at::SQ_FLAGS);
        if is_set {
            flags.fetch_or(flag, Ordering::SeqCst);
        } else {
            flags.fetch_and(!flag, Ordering::SeqCst);
        }
    }
}

impl File for Uring {
    fn poll(&self, _: &OpenFile, watch: Option<&Watch>, events: Events) -> Result<Events, Errno> {
        if let Some(watch) = watch {
            self.queue.watch(watch, events)?;
        }
        let mut ready = Events::empty();
        ready.set(Events::IN | Events::RDNORM, self.ready() > 0 || self.has_more());
        ready.set(Events::OUT | Events::WRNORM, self.submitted() < self.memory.layout.sq_entries);
        Ok(ready)
    }

    fn map_source(self: Arc<Self>) -> Result<Arc<dyn MapSource>, Errno> {
        Ok(self.memory.clone())
    }

    fn name(&self) -> &'static str {
        "anon_inode:[io_uring]"
    }

    /// The rings, and about what requests and kept completions take.
    fn held_pages(&self) -> usize {
        const REQUEST: usize = 1024;
        let requests = self.requests.lock().count * REQUEST;
        let kept = self.completions.kept_bytes() + self.provided.lock().bytes();
        self.memory.pages() + (requests + kept) / PAGE_SIZE
    }

    /// Ends the requests under way: nobody can take their completions.
    fn released(&self, _: &OpenFile) {
        // A request that is entered after this sees it and ends itself.
        self.is_closed.store(true, Ordering::SeqCst);
        let (files, buffers) =
            (core::mem::take(&mut *self.files.lock()), core::mem::take(&mut *self.buffers.lock()));
        let provided = core::mem::take(&mut *self.provided.lock());
        let notification = self.completions.notification.lock().take();
        let eras = core::mem::take(&mut *self.eras.lock());
        drop((files, buffers, provided, notification, eras));
        if let Some(poller) = self.poller.get() {
            poller.wake();
        }
        let mut from = (0, 0);
        loop {
            let next = self.requests.lock().next(from);
            let Some(((user_data, number), active)) = next else { return };
            active.request.kill();
            from = (user_data, number + 1);
        }
    }
}
