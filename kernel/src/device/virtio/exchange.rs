//! A virtqueue for requests with replies. Whoever makes a request waits for its reply in a detour.
//!
//! A request has two buffers of its own, so many can be under way, and the device answers in any order. The device is
//! looked at by whoever waits; it interrupts only while somebody waits for longer than a reply usually takes.
//!
//! `unsafe` here: the device owns the buffers of a request from [`Request::exchange`] until the reply is taken from the
//! queue.
#![allow(unsafe_code)]

use alloc::alloc::{alloc_zeroed, dealloc};
use core::alloc::Layout;
use core::ptr::NonNull;

use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::mmio::MmioTransport;

use crate::arch::paging::PAGE_SIZE;
use crate::arch::time::now_ns;
use crate::device::virtio::{Registers, VirtioHal};
use crate::error::Errno;
use crate::sched::detour;
use crate::sync::SpinLock;

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

/// A queue of requests.
pub struct Exchange {
    ring: SpinLock<Ring>,
    index: u16,
    registers: Registers,
    layout: Layout,
    /// Bytes of each buffer; the reply's follows the request's.
    buffer_bytes: usize,
}

/// What becomes of a request whose thread is killed before the reply comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveUp {
    /// The thread waits all the same: what comes after relies on the reply.
    Never,
    /// It is left to the device.
    Forget,
    /// It is left to the device, and once it is over this word comes out of [`Exchange::late`].
    Tell(u32),
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

struct Place {
    /// The two buffers.
    memory: Option<NonNull<u8>>,
    progress: Progress,
}

struct Ring {
    queue: VirtQueue<VirtioHal, DESCRIPTORS>,
    places: [Place; REQUESTS_MAX],
    /// How many wait with the device's interrupts on.
    waiting: usize,
    /// Words of requests that were given up and are over.
    late: [u32; REQUESTS_MAX],
    late_count: usize,
}

// SAFETY: the memory belongs to this value alone (and to the device, by the rule above), not to a CPU.
unsafe impl Send for Ring {}

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
        let layout = Layout::from_size_align(2 * buffer_bytes, PAGE_SIZE).map_err(|_| Errno::EINVAL)?;
        if buffer_bytes == 0 {
            return Err(Errno::EINVAL);
        }
        let mut places = [const { Place { memory: None, progress: Progress::Free } }; REQUESTS_MAX];
        // One request can always be made.
        places[0].memory = Some(allocate(layout)?);
        let ring = Ring { queue, places, waiting: 0, late: [0; REQUESTS_MAX], late_count: 0 };
        Ok(Self { ring: SpinLock::new(ring), index, registers, layout, buffer_bytes })
    }

    /// Begins a request. Waits while there are as many as there can be.
    ///
    /// # Errors
    /// `EINTR`: the thread was killed meanwhile.
    pub fn begin(&self) -> Result<Request<'_>, Errno> {
        #[cfg(feature = "checking")]
        crate::sync::order::expect_none("where the host is asked");
        loop {
            if let Some(request) = self.try_begin() {
                return Ok(request);
            }
            // Only one that ends frees a place or memory for one.
            self.expect_interrupts(true);
            let is_free = || {
                let mut ring = self.ring.lock();
                ring.collect(self.buffer_bytes);
                ring.places.iter().any(|place| place.progress == Progress::Free && place.memory.is_some())
            };
            let is_free = detour::wait_killably(&is_free);
            self.expect_interrupts(false);
            if !is_free {
                return Err(Errno::EINTR);
            }
        }
    }

    fn try_begin(&self) -> Option<Request<'_>> {
        let mut ring = self.ring.lock();
        ring.collect(self.buffer_bytes);
        let is_free = |place: &Place| place.progress == Progress::Free;
        if let Some(number) = ring.places.iter().position(|place| is_free(place) && place.memory.is_some()) {
            ring.places[number].progress = Progress::Owned;
            return Some(Request { exchange: self, number, memory: ring.places[number].memory?, replied: 0 });
        }
        let number = ring.places.iter().position(is_free)?;
        ring.places[number].progress = Progress::Owned;
        drop(ring);
        // Large, so not with the lock held.
        let memory = allocate(self.layout).ok();
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
        ring.collect(self.buffer_bytes);
        matches!(ring.places[number].progress, Progress::Done(_))
    }

    /// The word of a request that was given up and is over by now.
    pub fn late(&self) -> Option<u32> {
        let mut ring = self.ring.lock();
        ring.collect(self.buffer_bytes);
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

fn allocate(layout: Layout) -> Result<NonNull<u8>, Errno> {
    // SAFETY: the size is not zero (`Exchange::new`).
    NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(Errno::ENOMEM)
}

impl Ring {
    /// Takes what the device has answered from the queue.
    fn collect(&mut self, buffer_bytes: usize) {
        let mut others = false;
        while let Some(token) = self.queue.peek_used() {
            let is_it =
                |place: &Place| matches!(place.progress, Progress::Sent { token: sent, .. } if sent == token);
            let Some(number) = self.places.iter().position(is_it) else { return };
            let place = &mut self.places[number];
            let (Progress::Sent { length, given_up, .. }, Some(memory)) = (place.progress, place.memory)
            else {
                return;
            };
            // SAFETY: `exchange` gave the device these two buffers with this token.
            let written = unsafe {
                let request = core::slice::from_raw_parts(memory.as_ptr(), length);
                let reply = core::slice::from_raw_parts_mut(memory.as_ptr().add(buffer_bytes), buffer_bytes);
                self.queue.pop_used(token, &[request], &mut [reply])
            };
            let replied = written.ok().map(|written| (written as usize).min(buffer_bytes));
            place.progress = match given_up {
                None => Progress::Done(replied),
                Some(how) => {
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
}

/// A request, until it is dropped.
pub struct Request<'a> {
    exchange: &'a Exchange,
    number: usize,
    memory: NonNull<u8>,
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
        unsafe { core::slice::from_raw_parts_mut(self.memory.as_ptr(), self.exchange.buffer_bytes) }
    }

    /// The reply.
    pub fn reply(&self) -> &[u8] {
        // SAFETY: as in `request`; the reply's buffer follows, and `replied` is at most its length.
        unsafe {
            core::slice::from_raw_parts(self.memory.as_ptr().add(self.exchange.buffer_bytes), self.replied)
        }
    }

    /// Sends the first `length` bytes of the request's buffer and waits for the reply.
    ///
    /// # Errors
    /// `EIO`: the device took it wrongly; `EINTR`: the thread was killed.
    pub fn exchange(mut self, length: usize, give_up: GiveUp) -> Result<Self, Errno> {
        let exchange = self.exchange;
        let (number, length) = (self.number, length.min(exchange.buffer_bytes));
        {
            let mut ring = exchange.ring.lock();
            // SAFETY: the two buffers are this request's and do not overlap; its progress keeps all from them until
            // `collect` takes them from the queue.
            let sent = unsafe {
                let request = core::slice::from_raw_parts(self.memory.as_ptr(), length);
                let place = self.memory.as_ptr().add(exchange.buffer_bytes);
                let reply = core::slice::from_raw_parts_mut(place, exchange.buffer_bytes);
                ring.queue.add(&[request], &mut [reply])
            };
            let token = sent.map_err(|_| Errno::EIO)?;
            ring.places[number].progress = Progress::Sent { token, length, given_up: None };
            if ring.queue.should_notify() {
                exchange.registers.notify(exchange.index);
            }
        }
        if !exchange.spin(number) {
            exchange.expect_interrupts(true);
            let is_done = || exchange.is_done(number);
            match give_up {
                GiveUp::Never => detour::wait(&is_done),
                // What has become of the request says its progress.
                _ => _ = detour::wait_killably(&is_done),
            }
            exchange.expect_interrupts(false);
        }
        let mut ring = exchange.ring.lock();
        let place = &mut ring.places[number];
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
            Progress::Free | Progress::Owned => Err(Errno::EIO),
        }
    }
}

impl Exchange {
    /// Does nothing but wait for a reply, for a short time. Whether it came.
    fn spin(&self, number: usize) -> bool {
        let until_ns = now_ns() + SPIN_NS;
        while now_ns() < until_ns {
            for _ in 0..LOOKS {
                if self.is_done(number) {
                    return true;
                }
                core::hint::spin_loop();
            }
        }
        false
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let mut ring = self.exchange.ring.lock();
        let kept = ring.places.iter().filter(|place| place.memory.is_some()).count() <= KEPT;
        let place = &mut ring.places[self.number];
        place.progress = Progress::Free;
        let memory = if kept || self.number == 0 { None } else { place.memory.take() };
        let somebody_waits = ring.waiting > 0;
        drop(ring);
        if let Some(memory) = memory {
            // SAFETY: allocated with this layout; the place, which was this request's, does not have it any more.
            unsafe { dealloc(memory.as_ptr(), self.exchange.layout) };
        }
        if somebody_waits {
            detour::look_again();
        }
    }
}
