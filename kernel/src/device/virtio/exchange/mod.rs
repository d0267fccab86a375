//! A virtqueue for requests with replies. Whoever makes a request waits for its reply in a detour.
//!
//! A request has two buffers of its own, so many can be under way, and the device answers in any order. The device is
//! looked at by whoever waits; it interrupts only while somebody waits for longer than a reply usually takes.
//!
//! Several requests can be sent at once (`batch.rs`), of which one is waited for as long as it takes, and the others
//! for a short time more; and one of which the reply says nothing can be sent without a wait.
//!
//! `unsafe` here: the device owns the buffers of a request from [`Request::exchange`] until the reply is taken from the
//! queue.
#![allow(unsafe_code)]

mod batch;

use alloc::alloc::{alloc_zeroed, dealloc};
use core::alloc::Layout;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::mmio::MmioTransport;

use crate::arch::paging::PAGE_SIZE;
use crate::arch::time::now_ns;
use crate::device::virtio::{Registers, VirtioHal};
use crate::error::Errno;
use crate::sched::detour;
use crate::sync::SpinLock;

pub use crate::device::virtio::exchange::batch::{BATCH_MAX, RequestBatch};

/// The most requests under way.
pub const REQUESTS_MAX: usize = 32;
/// Descriptors of the queue: each request takes two.
const DESCRIPTORS: usize = 2 * REQUESTS_MAX;
/// Requests whose buffers are kept while nobody uses them.
const KEPT: usize = 2;
/// How long the CPU does nothing but wait for a reply: most come within that time.
const SPIN_NS: u64 = 200_000;
/// Looks between two looks at the clock.
const LOOKS: u32 = 16;
/// Bytes of each buffer of a small request.
pub const SMALL_BYTES: usize = PAGE_SIZE;

/// Requests that were sent, and how often somebody has waited for replies.
static SENT: AtomicU64 = AtomicU64::new(0);
static WAITS: AtomicU64 = AtomicU64::new(0);

/// Counters of all queues, by name.
pub fn counters() -> [(&'static str, u64); 2] {
    [("share_requests", SENT.load(Ordering::Relaxed)), ("share_waits", WAITS.load(Ordering::Relaxed))]
}

/// A queue of requests.
pub struct Exchange {
    ring: SpinLock<RequestRing>,
    index: u16,
    registers: Registers,
    /// Bytes of each buffer of a large request.
    buffer_bytes: usize,
}

/// The fate of a request whose thread is killed before the reply comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveUp {
    /// The thread waits all the same: what comes after relies on the reply.
    Never,
    /// It is left to the device.
    Forget,
    /// It is left to the device, and once it is over this word comes out of [`Exchange::late`].
    Tell(u32),
    /// Nobody waits for it from the start.
    Posted,
}

/// The state of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Nobody's.
    Free,
    /// Made, or the reply is read.
    Owned,
    /// The device has its buffers. Whoever made it may have given it up.
    Sent { token: u16, length: usize, given_up: Option<GiveUp> },
    /// The reply is there, of so many bytes; `None`: the device took the request wrongly.
    Done(Option<usize>),
}

struct RequestPlace {
    memory: Option<RequestBuffers>,
    progress: Progress,
}

/// The two buffers of a request, one behind the other, of so many bytes each.
#[derive(Clone, Copy)]
struct RequestBuffers {
    start: NonNull<u8>,
    bytes: usize,
}

struct RequestRing {
    queue: VirtQueue<VirtioHal, DESCRIPTORS>,
    places: [RequestPlace; REQUESTS_MAX],
    /// How many wait with the device's interrupts on.
    waiting: usize,
    /// Counts requests that are over.
    ended: u64,
    /// Words of requests that were given up and are over.
    late: [u32; REQUESTS_MAX],
    late_count: usize,
}

// SAFETY: the memory belongs to this value alone (and to the device, by the rule above), not to a CPU.
unsafe impl Send for RequestRing {}

impl Exchange {
    /// Sets up queue `index` of the device.
    ///
    /// # Errors
    /// `ENODEV` (no such queue), `ENOMEM`.
    pub fn new(
        transport: &mut MmioTransport<'static>,
        registers: Registers,
        index: u16,
        buffer_bytes: usize,
    ) -> Result<Self, Errno> {
        let mut queue = VirtQueue::new(transport, index, false, false).map_err(|error| {
            ::log::error!("virtio queue {index}: {error}");
            Errno::ENODEV
        })?;
        queue.set_dev_notify(false);
        let mut places = [const { RequestPlace { memory: None, progress: Progress::Free } }; REQUESTS_MAX];
        // One request can always be made.
        places[0].memory = Some(RequestBuffers::allocate(buffer_bytes)?);
        let ring =
            RequestRing { queue, places, waiting: 0, ended: 0, late: [0; REQUESTS_MAX], late_count: 0 };
        Ok(Self { ring: SpinLock::new(ring), index, registers, buffer_bytes })
    }

    /// Begins a request. Waits while there are as many as there can be.
    ///
    /// # Errors
    /// `EINTR`: the thread was killed meanwhile.
    pub fn begin(&self) -> Result<Request<'_>, Errno> {
        #[cfg(feature = "checking")]
        crate::sync::order::expect_none("where the host is asked");
        loop {
            let ended = self.ring.lock().ended;
            if let Some(request) = self.try_begin(self.buffer_bytes) {
                return Ok(request);
            }
            // Only one that ends frees a place or memory for one.
            self.expect_interrupts(true);
            let is_free = || {
                let mut ring = self.ring.lock();
                ring.collect();
                ring.ended != ended || ring.places.iter().any(|place| place.is_free_with(self.buffer_bytes))
            };
            let is_free = detour::wait_killably(&is_free);
            self.expect_interrupts(false);
            if !is_free {
                return Err(Errno::EINTR);
            }
        }
    }

    /// Begins a request with buffers of so many bytes, if there is a place and memory for it.
    fn try_begin(&self, bytes: usize) -> Option<Request<'_>> {
        let mut ring = self.ring.lock();
        ring.collect();
        if let Some(number) = ring.places.iter().position(|place| place.is_free_with(bytes)) {
            ring.places[number].progress = Progress::Owned;
            return Some(Request { exchange: self, number, memory: ring.places[number].memory?, replied: 0 });
        }
        // The first one's memory stays, so that a request can always be made.
        let is_free = |place: &RequestPlace| place.progress == Progress::Free;
        let number = 1 + ring.places.iter().skip(1).position(is_free)?;
        ring.places[number].progress = Progress::Owned;
        let old = ring.places[number].memory.take();
        drop(ring);
        // Large, so not with the lock held.
        if let Some(old) = old {
            old.free();
        }
        let memory = RequestBuffers::allocate(bytes).ok();
        let mut ring = self.ring.lock();
        let place = &mut ring.places[number];
        place.memory = memory;
        if memory.is_none() {
            place.progress = Progress::Free;
        }
        Some(Request { exchange: self, number, memory: memory?, replied: 0 })
    }

    /// Whether the reply to a request is there.
    fn is_done(&self, number: usize) -> bool {
        let mut ring = self.ring.lock();
        ring.collect();
        matches!(ring.places[number].progress, Progress::Done(_))
    }

    /// Whether the device was given a request.
    fn is_sent(&self, number: usize) -> bool {
        let progress = self.ring.lock().places[number].progress;
        matches!(progress, Progress::Sent { .. } | Progress::Done(_))
    }

    /// The word of a request that was given up and is over by now.
    pub fn late(&self) -> Option<u32> {
        let mut ring = self.ring.lock();
        ring.collect();
        ring.late_count = ring.late_count.checked_sub(1)?;
        Some(ring.late[ring.late_count])
    }

    /// Somebody waits for longer, so that the device is to interrupt, or has ended to wait.
    fn expect_interrupts(&self, begins: bool) {
        let mut ring = self.ring.lock();
        ring.waiting = if begins { ring.waiting + 1 } else { ring.waiting - 1 };
        let waiting = ring.waiting;
        if waiting == usize::from(begins) {
            ring.queue.set_dev_notify(begins);
        }
    }
}

impl RequestBuffers {
    fn layout(bytes: usize) -> Result<Layout, Errno> {
        let layout = Layout::from_size_align(2 * bytes, PAGE_SIZE).map_err(|_| Errno::EINVAL)?;
        if layout.size() == 0 { Err(Errno::EINVAL) } else { Ok(layout) }
    }

    fn allocate(bytes: usize) -> Result<Self, Errno> {
        // SAFETY: the size is not zero (`layout`).
        let start = NonNull::new(unsafe { alloc_zeroed(Self::layout(bytes)?) }).ok_or(Errno::ENOMEM)?;
        Ok(Self { start, bytes })
    }

    fn free(self) {
        if let Ok(layout) = Self::layout(self.bytes) {
            // SAFETY: allocated with this layout; whoever calls this has taken them from their place.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }

    /// Both buffers, of the first so many bytes.
    ///
    /// # Safety
    /// Nobody else uses them for that long.
    unsafe fn both<'a>(self, length: usize) -> (&'a [u8], &'a mut [u8]) {
        // SAFETY: they are of so many bytes each, one behind the other, and initialized; the rest is the caller's.
        unsafe {
            let request = core::slice::from_raw_parts(self.start.as_ptr(), length.min(self.bytes));
            let reply = core::slice::from_raw_parts_mut(self.start.as_ptr().add(self.bytes), self.bytes);
            (request, reply)
        }
    }
}

impl RequestPlace {
    /// Whether it is nobody's, and has buffers of so many bytes.
    fn is_free_with(&self, bytes: usize) -> bool {
        self.progress == Progress::Free && self.memory.is_some_and(|memory| memory.bytes == bytes)
    }
}

impl RequestRing {
    /// Takes what the device has answered from the queue.
    fn collect(&mut self) {
        let mut others = false;
        while let Some(token) = self.queue.peek_used() {
            let is_it = |place: &RequestPlace| match place.progress {
                Progress::Sent { token: sent, .. } => sent == token,
                _ => false,
            };
            let Some(number) = self.places.iter().position(is_it) else { return };
            let place = &mut self.places[number];
            let (Progress::Sent { length, given_up, .. }, Some(memory)) = (place.progress, place.memory)
            else {
                return;
            };
            // SAFETY: `send` gave the device these two buffers with this token.
            let written = unsafe {
                let (request, reply) = memory.both(length);
                self.queue.pop_used(token, &[request], &mut [reply])
            };
            let replied = written.ok().map(|written| (written as usize).min(memory.bytes));
            place.progress = match given_up {
                None => Progress::Done(replied),
                Some(how) => {
                    self.ended += 1;
                    if let GiveUp::Tell(word) = how
                        && self.late_count < REQUESTS_MAX
                    {
                        self.late[self.late_count] = word;
                        self.late_count += 1;
                    }
                    Progress::Free
                }
            };
            others = true;
        }
        if others && self.waiting > 0 {
            // Whoever waits for one of these may do so on another CPU.
            detour::look_again();
        }
    }

    /// Gives a request to the device, which is not told of it.
    fn send(&mut self, number: usize, length: usize, given_up: Option<GiveUp>) -> Result<(), Errno> {
        let memory = self.places[number].memory.ok_or(Errno::EIO)?;
        let length = length.min(memory.bytes);
        // SAFETY: the two buffers are this request's and do not overlap; its progress keeps all from them until
        // `collect` takes them from the queue.
        let sent = unsafe {
            let (request, reply) = memory.both(length);
            self.queue.add(&[request], &mut [reply])
        };
        let token = sent.map_err(|_| Errno::EIO)?;
        SENT.fetch_add(1, Ordering::Relaxed);
        self.places[number].progress = Progress::Sent { token, length, given_up };
        Ok(())
    }
}

/// A request, until it is dropped.
pub struct Request<'a> {
    exchange: &'a Exchange,
    number: usize,
    memory: RequestBuffers,
    /// Bytes of the reply.
    replied: usize,
}

impl Request<'_> {
    /// Its number among those under way.
    pub const fn number(&self) -> usize {
        self.number
    }

    /// The buffer for the request.
    pub fn request(&mut self) -> &mut [u8] {
        // SAFETY: the driver owns both buffers outside `exchange`, and the borrow keeps `exchange` from running.
        unsafe { core::slice::from_raw_parts_mut(self.memory.start.as_ptr(), self.memory.bytes) }
    }

    /// The reply.
    pub fn reply(&self) -> &[u8] {
        // SAFETY: as in `request`; the reply's buffer follows, and `replied` is at most its length.
        unsafe {
            core::slice::from_raw_parts(self.memory.start.as_ptr().add(self.memory.bytes), self.replied)
        }
    }

    /// Sends the first `length` bytes of the request's buffer and waits for the reply.
    ///
    /// # Errors
    /// `EIO`: the device took it wrongly; `EINTR`: the thread was killed.
    pub fn exchange(self, length: usize, give_up: GiveUp) -> Result<Self, Errno> {
        let exchange = self.exchange;
        let number = self.number;
        {
            let mut ring = exchange.ring.lock();
            ring.send(number, length, None)?;
            if ring.queue.should_notify() {
                exchange.registers.notify(exchange.index);
            }
        }
        exchange.wait(number, give_up);
        self.replied(give_up)
    }

    /// Takes the reply once the wait for it has ended, or leaves the request to the device.
    fn replied(mut self, give_up: GiveUp) -> Result<Self, Errno> {
        let mut ring = self.exchange.ring.lock();
        ring.collect();
        let place = &mut ring.places[self.number];
        match &mut place.progress {
            Progress::Sent { given_up, .. } => {
                *given_up = Some(give_up);
                drop(ring);
                core::mem::forget(self);
                Err(Errno::EINTR)
            }
            Progress::Done(replied) => {
                let replied = *replied;
                place.progress = Progress::Owned;
                drop(ring);
                self.replied = replied.ok_or(Errno::EIO)?;
                Ok(self)
            }
            Progress::Free | Progress::Owned => {
                drop(ring);
                Err(Errno::EIO)
            }
        }
    }
}

impl Exchange {
    /// Waits for the reply to a request, or until the thread is killed; the request's progress says how that ended.
    fn wait(&self, number: usize, give_up: GiveUp) {
        WAITS.fetch_add(1, Ordering::Relaxed);
        let is_done = || self.is_done(number);
        if spin(is_done) {
            return;
        }
        self.expect_interrupts(true);
        match give_up {
            GiveUp::Never => detour::wait(&is_done),
            _ => _ = detour::wait_killably(&is_done),
        }
        self.expect_interrupts(false);
    }
}

/// Does nothing but wait, for a short time. Whether it is over.
fn spin(is_over: impl Fn() -> bool) -> bool {
    let until_ns = now_ns() + SPIN_NS;
    while now_ns() < until_ns {
        for _ in 0..LOOKS {
            if is_over() {
                return true;
            }
            core::hint::spin_loop();
        }
    }
    false
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let mut ring = self.exchange.ring.lock();
        let bytes = self.memory.bytes;
        let is_like_it = |place: &&RequestPlace| place.memory.is_some_and(|memory| memory.bytes == bytes);
        let kept = ring.places.iter().filter(is_like_it).count() <= KEPT;
        ring.ended += 1;
        let place = &mut ring.places[self.number];
        place.progress = Progress::Free;
        let memory = if kept || self.number == 0 { None } else { place.memory.take() };
        let somebody_waits = ring.waiting > 0;
        drop(ring);
        if let Some(memory) = memory {
            memory.free();
        }
        if somebody_waits {
            detour::look_again();
        }
    }
}
