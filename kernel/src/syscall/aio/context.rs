//! A context: the ring that a program maps, the requests under way, and who takes events.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicU32, Ordering};

use heddle_kernel_core::aio::{COMPATIBLE, EVENT_BYTES, EventRing, HEADER_BYTES, MAGIC, at};

use crate::arch::paging::PAGE_SIZE;
use crate::call::asynchronous::AsyncRequest;
use crate::error::Errno;
use crate::fs::aio_share::RequestShare;
use crate::fs::eventfd::EventCounter;
use crate::memory::source::{Object as Backing, SerialNumber};
use crate::memory::{FrameRef, MapSource, PageRef, Space, fallible};
use crate::sync::SpinLock;
use crate::syscall::submitted::zeroed;
use crate::wait::queue::{Events, WaitQueue};

/// A request under way.
pub struct PendingControl {
    /// The program's value for its event.
    pub data: u64,
    /// The eventfd that is told of its end.
    pub counter: Option<Arc<EventCounter>>,
    /// The request, once it has one.
    pub request: Option<Arc<AsyncRequest>>,
    /// Whether it waits for events and so can be cancelled.
    pub is_poll: bool,
}

/// A request's address in the program and a number of its own.
pub type ControlKey = (u64, u64);

#[derive(Default)]
struct AioState {
    under_way: BTreeMap<ControlKey, PendingControl>,
    next_number: u64,
    tail: u32,
    is_closed: bool,
    has_reader: bool,
}

/// See the module.
pub struct AioContext {
    ring: EventRing,
    frames: Vec<FrameRef>,
    serial: SerialNumber,
    /// The space that it belongs to: a child that inherits the mapping has no context.
    space: Weak<Space>,
    state: SpinLock<AioState>,
    /// Woken by each event, by the end of the context, and when whoever takes events has done so.
    pub queue: WaitQueue,
    _share: RequestShare,
}

impl AioContext {
    /// A context for so many requests.
    ///
    /// # Errors
    /// `EAGAIN`: there are too many; `ENOMEM`.
    pub async fn new(requests: u32, space: &Arc<Space>) -> Result<Arc<Self>, Errno> {
        let share = RequestShare::take(requests)?;
        let ring = EventRing::new(requests, PAGE_SIZE);
        let context = fallible::try_arc(Self {
            ring,
            frames: zeroed(ring.bytes()).await?,
            serial: SerialNumber::default(),
            space: Arc::downgrade(space),
            state: SpinLock::new(AioState::default()),
            queue: WaitQueue::new(),
            _share: share,
        })?;
        let constants = [
            (at::ENTRIES, ring.entries),
            (at::MAGIC, MAGIC),
            (at::COMPATIBLE, COMPATIBLE),
            (at::HEADER, HEADER_BYTES as u32),
        ];
        for (offset, value) in constants {
            context.word(offset).store(value, Ordering::Relaxed);
        }
        Ok(context)
    }

    /// Bytes of its mapping.
    pub const fn bytes(&self) -> usize {
        self.ring.bytes()
    }

    /// The context whose ring a space has at an address.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn find(space: &Arc<Space>, address: usize) -> Result<Arc<Self>, Errno> {
        let mapping = space.mapping_at_or_above(address).ok_or(Errno::EINVAL)?;
        let begins = mapping.start == address && mapping.offset == 0;
        let Backing::Source(source) = &mapping.object else { return Err(Errno::EINVAL) };
        let any: Arc<dyn Any + Send + Sync> = source.clone();
        let context: Arc<Self> = any.downcast().map_err(|_| Errno::EINVAL)?;
        let is_own = core::ptr::eq(context.space.as_ptr(), Arc::as_ptr(space));
        if begins && is_own && !context.is_closed() { Ok(context) } else { Err(Errno::EINVAL) }
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        &self.frames[offset / PAGE_SIZE].words()[offset % PAGE_SIZE / size_of::<u32>()]
    }

    pub fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Enters a request whose control block is at `address`.
    ///
    /// # Errors
    /// `EAGAIN`: there is no room for its event; `EINVAL`: the context is at its end; `ENOMEM`.
    pub fn enter(&self, address: u64, pending: PendingControl) -> Result<ControlKey, Errno> {
        let head = self.word(at::HEAD).load(Ordering::Acquire);
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(Errno::EINVAL);
        }
        if !self.ring.has_room(head, state.tail, state.under_way.len() as u32) {
            return Err(Errno::EAGAIN);
        }
        let key = (address, state.next_number);
        state.next_number += 1;
        fallible::try_insert(&mut state.under_way, key, pending)?;
        Ok(key)
    }

    /// Takes a request out that did not start.
    pub fn leave(&self, key: ControlKey) {
        let taken = self.state.lock().under_way.remove(&key);
        drop(taken);
    }

    /// A request has ended: it becomes an event.
    pub fn end(&self, key: ControlKey, result: i64) {
        let taken = {
            let mut state = self.state.lock();
            let taken = state.under_way.remove(&key);
            if let Some(pending) = &taken {
                let offset = self.ring.offset(state.tail);
                let words = [pending.data, key.0, result.cast_unsigned(), 0];
                for (index, word) in words.into_iter().enumerate() {
                    let offset = offset + index * size_of::<u64>();
                    self.word(offset).store(word as u32, Ordering::Relaxed);
                    self.word(offset + size_of::<u32>()).store((word >> 32) as u32, Ordering::Relaxed);
                }
                state.tail = self.ring.next(state.tail);
                self.word(at::TAIL).store(state.tail, Ordering::Release);
            }
            taken
        };
        self.queue.wake(Events::IN | Events::RDNORM);
        if let Some(counter) = taken.and_then(|pending| pending.counter) {
            counter.signal();
        }
    }

    /// The request from a place on, and its place.
    pub fn next_from(&self, from: ControlKey) -> Option<(ControlKey, Option<Arc<AsyncRequest>>)> {
        let state = self.state.lock();
        state.under_way.range(from..).next().map(|(key, pending)| (*key, pending.request.clone()))
    }

    /// The request of a control block that waits for events.
    pub fn find_poll(&self, address: u64) -> Option<Arc<AsyncRequest>> {
        let state = self.state.lock();
        let mut of_address = state.under_way.range((address, 0)..=(address, u64::MAX));
        of_address.find_map(|(_, pending)| pending.request.clone().filter(|_| pending.is_poll))
    }

    pub fn is_idle(&self) -> bool {
        self.state.lock().under_way.is_empty()
    }

    /// Lets nothing start any more; `false` if it was so already.
    pub fn close(&self) -> bool {
        let was_closed = core::mem::replace(&mut self.state.lock().is_closed, true);
        self.queue.wake(Events::all());
        !was_closed
    }

    /// How many events nobody has taken.
    pub fn ready(&self) -> u32 {
        let tail = self.state.lock().tail;
        self.ring.count(self.word(at::HEAD).load(Ordering::Acquire), tail)
    }

    /// Copies untaken events, as many as there are and fit.
    fn peek(&self, events: &mut [[u8; EVENT_BYTES]]) -> usize {
        let count = (self.ready() as usize).min(events.len());
        let mut place = self.ring.place(self.word(at::HEAD).load(Ordering::Relaxed));
        for event in &mut events[..count] {
            let offset = self.ring.offset(place);
            for (index, bytes) in event.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let word = self.word(offset + index * size_of::<u32>()).load(Ordering::Relaxed);
                *bytes = word.to_ne_bytes();
            }
            place = self.ring.next(place);
        }
        count
    }
}

/// The one that takes events: there is one at a time.
pub struct EventReader<'a> {
    context: &'a AioContext,
}

impl<'a> EventReader<'a> {
    pub fn try_new(context: &'a AioContext) -> Option<Self> {
        let had_reader = core::mem::replace(&mut context.state.lock().has_reader, true);
        (!had_reader).then_some(Self { context })
    }

    /// Copies the next events without taking them.
    pub fn peek(&self, events: &mut [[u8; EVENT_BYTES]]) -> usize {
        self.context.peek(events)
    }

    /// Takes so many events.
    pub fn advance(&self, count: usize) {
        let word = self.context.word(at::HEAD);
        let ring = self.context.ring;
        word.store(ring.place(ring.place(word.load(Ordering::Relaxed)) + count as u32), Ordering::Release);
    }
}

impl Drop for EventReader<'_> {
    fn drop(&mut self) {
        self.context.state.lock().has_reader = false;
        self.context.queue.wake(Events::OUT | Events::WRNORM);
    }
}

impl MapSource for AioContext {
    fn serial(&self) -> (u64, u64) {
        self.serial.pair()
    }

    fn page(&self, index: u64, _write: bool) -> Result<PageRef, Errno> {
        let frame = usize::try_from(index).ok().and_then(|index| self.frames.get(index));
        frame.map(|frame| PageRef::Counted(frame.clone())).ok_or(Errno::EFAULT)
    }

    fn path(&self) -> Option<Vec<u8>> {
        fallible::try_to_vec(b"/[aio] (deleted)").ok()
    }
}
