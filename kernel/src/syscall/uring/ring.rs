//! The rings: their memory, completions, and the requests under way.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use linux_raw_sys::io_uring::{
    IORING_CQ_EVENTFD_DISABLED, IORING_OFF_CQ_RING, IORING_OFF_SQES, IORING_SQ_CQ_OVERFLOW,
};

use heddle_kernel_core::fallible::push_back_reserved;
use heddle_kernel_core::uring::{RingLayout, SQE_BYTES, SQE_WORDS, Sqe, at};

use crate::arch::paging::PAGE_SIZE;
use crate::error::Errno;
use crate::fs::eventfd::EventCounter;
use crate::fs::{File, OpenFile};
use crate::memory::source::SerialNumber;
use crate::memory::{FrameRef, MapSource, PageRef, fallible};
use crate::sync::SpinLock;
use crate::syscall::submitted::zeroed;
use crate::syscall::uring::request::UringRequest;
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
        let offset = index as usize * SQE_BYTES;
        let words = &self.entries[offset / PAGE_SIZE].words()[offset % PAGE_SIZE / size_of::<u32>()..];
        let half = |at: usize| u64::from(words[at].load(Ordering::Relaxed));
        Sqe::from_words(core::array::from_fn::<u64, SQE_WORDS, _>(|at| half(at * 2) | half(at * 2 + 1) << 32))
    }

    /// Writes a completion.
    fn put(&self, index: u32, [user_data, outcome]: [u64; 2]) {
        let offset = self.layout.cqe(index);
        for (at, value) in [user_data, user_data >> 32, outcome, outcome >> 32].into_iter().enumerate() {
            self.word(offset + at * size_of::<u32>()).store(value as u32, Ordering::Relaxed);
        }
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

/// Files, buffers and the eventfd that the program has registered.
#[derive(Default)]
pub struct Registered {
    pub files: Vec<Option<Arc<OpenFile>>>,
    /// Address and length of each buffer.
    pub buffers: Vec<(u64, u64)>,
    pub counter: Option<Arc<EventCounter>>,
}

/// Completions that found no room.
#[derive(Default)]
struct Completions {
    tail: u32,
    /// How many there have been, with those without room.
    posted: u64,
    overflow: VecDeque<[u64; 2]>,
}

/// Requests under way, by their user data and a number of their own.
#[derive(Default)]
pub struct Requests {
    by_data: BTreeMap<(u64, u64), Arc<UringRequest>>,
    next: u64,
}

impl Requests {
    /// Enters a request; returns its number.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn enter(&mut self, active: &Arc<UringRequest>) -> Result<u64, Errno> {
        let number = self.next;
        self.next += 1;
        fallible::try_insert(&mut self.by_data, (active.sqe.user_data, number), active.clone())?;
        Ok(number)
    }

    /// Takes a request out.
    pub fn leave(&mut self, user_data: u64, number: u64) -> Option<Arc<UringRequest>> {
        self.by_data.remove(&(user_data, number))
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

/// An instance of `io_uring`.
pub struct Uring {
    pub memory: Arc<RingMemory>,
    pub setup: u32,
    /// Whether it takes submissions (`IORING_SETUP_R_DISABLED`).
    pub is_enabled: AtomicBool,
    /// Whether the last descriptor is gone, so that no request may begin to wait.
    is_closed: AtomicBool,
    /// The thread that may submit, with `IORING_SETUP_SINGLE_ISSUER`; 0 for none yet.
    pub issuer: AtomicU32,
    pub submission: SpinLock<Submission>,
    pub requests: Arc<SpinLock<Requests>>,
    pub registered: SpinLock<Registered>,
    completions: SpinLock<Completions>,
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
            issuer: AtomicU32::new(0),
            submission: SpinLock::new(Submission::default()),
            requests: fallible::try_arc(SpinLock::new(Requests::default()))?,
            registered: SpinLock::new(Registered::default()),
            completions: SpinLock::new(Completions::default()),
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

    /// How many entries the program has submitted that have not been taken.
    pub fn submitted(&self) -> u32 {
        let head = self.memory.word(at::SQ_HEAD).load(Ordering::Relaxed);
        let tail = self.memory.word(at::SQ_TAIL).load(Ordering::Acquire);
        tail.wrapping_sub(head).min(self.memory.layout.sq_entries)
    }

    /// Completions that the program has not taken.
    pub fn ready(&self) -> u32 {
        let tail = self.completions.lock().tail;
        tail.wrapping_sub(self.memory.word(at::CQ_HEAD).load(Ordering::Acquire))
    }

    /// How many completions there have been.
    pub fn posted(&self) -> u64 {
        self.completions.lock().posted
    }

    /// Posts a completion. Without room it is kept until there is some ([`Self::flush`]); without memory for that it
    /// is counted as lost.
    pub fn post(&self, user_data: u64, result: i32, flags: u32) {
        let entry = [user_data, u64::from(result as u32) | u64::from(flags) << 32];
        {
            let mut completions = self.completions.lock();
            completions.posted += 1;
            if !completions.overflow.is_empty() || !self.put(&mut completions, entry) {
                if completions.overflow.try_reserve(1).is_ok() {
                    push_back_reserved(&mut completions.overflow, entry);
                    self.memory.word(at::SQ_FLAGS).fetch_or(IORING_SQ_CQ_OVERFLOW, Ordering::Release);
                } else {
                    self.memory.word(at::CQ_OVERFLOW).fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        self.queue.wake(Events::IN | Events::RDNORM);
        let counter = self.registered.lock().counter.clone();
        if let Some(counter) = counter
            && self.memory.word(at::CQ_FLAGS).load(Ordering::Relaxed) & IORING_CQ_EVENTFD_DISABLED == 0
        {
            counter.signal();
        }
    }

    /// Puts a completion into the ring, if there is room.
    fn put(&self, completions: &mut Completions, entry: [u64; 2]) -> bool {
        let head = self.memory.word(at::CQ_HEAD).load(Ordering::Acquire);
        if completions.tail.wrapping_sub(head) >= self.memory.layout.cq_entries {
            return false;
        }
        self.memory.put(completions.tail, entry);
        completions.tail = completions.tail.wrapping_add(1);
        self.memory.word(at::CQ_TAIL).store(completions.tail, Ordering::Release);
        true
    }

    /// Puts completions that found no room into the ring, as far as there is some now, a bounded number.
    pub fn flush(&self) {
        const STEP: usize = 256;
        let mut completions = self.completions.lock();
        for _ in 0..STEP {
            let Some(&entry) = completions.overflow.front() else { break };
            if !self.put(&mut completions, entry) {
                return;
            }
            completions.overflow.pop_front();
        }
        if completions.overflow.is_empty() {
            self.memory.word(at::SQ_FLAGS).fetch_and(!IORING_SQ_CQ_OVERFLOW, Ordering::Release);
        }
    }
}

impl File for Uring {
    fn poll(&self, _: &OpenFile, watch: Option<&Watch>, events: Events) -> Result<Events, Errno> {
        if let Some(watch) = watch {
            self.queue.watch(watch, events)?;
        }
        let mut ready = Events::empty();
        let has_overflow = !self.completions.lock().overflow.is_empty();
        ready.set(Events::IN | Events::RDNORM, has_overflow || self.ready() > 0);
        ready.set(Events::OUT | Events::WRNORM, self.submitted() < self.memory.layout.sq_entries);
        Ok(ready)
    }

    fn map_source(self: Arc<Self>) -> Result<Arc<dyn MapSource>, Errno> {
        Ok(self.memory.clone())
    }

    fn name(&self) -> &'static str {
        "anon_inode:[io_uring]"
    }

    /// Ends the requests under way: nobody can take their completions.
    fn released(&self, _: &OpenFile) {
        // A request that is entered after this sees it and ends itself.
        self.is_closed.store(true, Ordering::SeqCst);
        let registered = core::mem::take(&mut *self.registered.lock());
        drop(registered);
        let mut from = (0, 0);
        loop {
            let next = self.requests.lock().next(from);
            let Some(((user_data, number), active)) = next else { return };
            active.request.kill();
            from = (user_data, number + 1);
        }
    }
}
