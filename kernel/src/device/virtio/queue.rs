//! A virtqueue together with the buffers that travel through it.
//!
//! `unsafe` here: the device owns a buffer from [`BufferQueue::post`] until [`BufferQueue::take_used`] returns it.
#![allow(unsafe_code)]

use alloc::alloc::{alloc_zeroed, dealloc};
use core::alloc::Layout;
use core::ptr::NonNull;

use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::mmio::MmioTransport;

use crate::arch::paging::PAGE_SIZE;
use crate::device::virtio::VirtioHal;
use crate::error::Errno;

/// Descriptors of a queue: the most buffers that can be in flight.
pub const QUEUE_LENGTH: usize = 32;

/// The side that fills the buffers of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The device.
    Receive,
    /// The driver.
    Transmit,
}

/// Equal buffers in one piece of memory, and the queue that moves them.
pub struct BufferQueue {
    queue: VirtQueue<VirtioHal, QUEUE_LENGTH>,
    direction: Direction,
    memory: Option<NonNull<u8>>,
    layout: Layout,
    buffer_bytes: usize,
    count: usize,
    /// Bit by buffer: the driver owns it.
    owned: u32,
    /// The buffer that each descriptor carries, and how much of it was posted.
    posted: [(u8, u32); QUEUE_LENGTH],
}

// SAFETY: the memory belongs to this value alone (and to the device, by the rule above), not to a CPU.
unsafe impl Send for BufferQueue {}

impl BufferQueue {
    /// Sets up queue `index` of the device, without buffers.
    ///
    /// # Errors
    /// `ENODEV`: the device has no such queue.
    pub fn new(
        transport: &mut MmioTransport<'static>,
        index: u16,
        direction: Direction,
    ) -> Result<Self, Errno> {
        let queue = VirtQueue::new(transport, index, false, false).map_err(|error| {
            ::log::error!("virtio queue {index}: {error}");
            Errno::ENODEV
        })?;
        Ok(Self {
            queue,
            direction,
            memory: None,
            layout: Layout::new::<[u8; PAGE_SIZE]>(),
            buffer_bytes: 0,
            count: 0,
            owned: 0,
            posted: [(0, 0); QUEUE_LENGTH],
        })
    }

    /// Gives the queue `count` (at most 32) buffers of `bytes` bytes; does nothing if it has buffers.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn allocate(&mut self, count: usize, bytes: usize) -> Result<(), Errno> {
        if self.memory.is_some() {
            return Ok(());
        }
        let count = count.min(QUEUE_LENGTH);
        let size = (count * bytes).next_multiple_of(PAGE_SIZE);
        let layout = Layout::from_size_align(size, PAGE_SIZE).map_err(|_| Errno::EINVAL)?;
        // SAFETY: the size is at least a page.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(Errno::ENOMEM)?;
        (self.memory, self.layout, self.buffer_bytes, self.count) = (Some(memory), layout, bytes, count);
        self.owned = (u64::MAX >> (64 - count)) as u32;
        Ok(())
    }

    /// The number of buffers.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// A buffer that the driver owns.
    pub const fn free_buffer(&self) -> Option<usize> {
        if self.owned == 0 { None } else { Some(self.owned.trailing_zeros() as usize) }
    }

    /// Whether the driver owns every buffer.
    pub const fn is_idle(&self) -> bool {
        self.owned.count_ones() as usize == self.count
    }

    /// The bytes of a buffer; empty if the device owns it.
    pub fn bytes_mut(&mut self, buffer: usize) -> &mut [u8] {
        if self.owned & 1 << buffer == 0 {
            return &mut [];
        }
        // SAFETY: the driver owns the buffer, and the borrow of `self` keeps it from being posted.
        unsafe { self.slice(buffer, self.buffer_bytes) }
    }

    /// Hands the first `length` bytes of a buffer that the driver owns to the device.
    pub fn post(&mut self, buffer: usize, length: usize) {
        let length = length.min(self.buffer_bytes);
        if self.owned & 1 << buffer == 0 || length == 0 {
            return;
        }
        // SAFETY: the driver owns the buffer, which stays allocated as long as the queue; clearing its bit in `owned`
        // keeps everyone from its bytes until `take_used` pops this descriptor.
        let token = unsafe {
            let bytes = self.slice(buffer, length);
            match self.direction {
                Direction::Receive => self.queue.add(&[], &mut [bytes]),
                Direction::Transmit => self.queue.add(&[bytes], &mut []),
            }
        };
        // There are no more buffers than descriptors, so there is always one.
        if let Ok(token) = token {
            self.owned &= !(1 << buffer);
            self.posted[usize::from(token) % QUEUE_LENGTH] = (buffer as u8, length as u32);
        }
    }

    /// Takes back a buffer that the device has used: its index, and how many bytes the device wrote.
    pub fn take_used(&mut self) -> Option<(usize, usize)> {
        let token = self.queue.peek_used()?;
        let (buffer, length) = *self.posted.get(usize::from(token))?;
        let (buffer, length) = (usize::from(buffer), length as usize);
        // SAFETY: `post` gave the device exactly these bytes with this token.
        let written = unsafe {
            let bytes = self.slice(buffer, length);
            match self.direction {
                Direction::Receive => self.queue.pop_used(token, &[], &mut [bytes]),
                Direction::Transmit => self.queue.pop_used(token, &[bytes], &mut []),
            }
        };
        self.owned |= 1 << buffer;
        Some((buffer, (written.ok()? as usize).min(length)))
    }

    /// Whether [`BufferQueue::take_used`] would return something.
    pub fn has_used(&self) -> bool {
        self.queue.can_pop()
    }

    /// Whether the device wants to be told of posted buffers.
    pub fn should_notify(&self) -> bool {
        self.queue.should_notify()
    }

    /// Switches the device's interrupts for used buffers on or off.
    pub fn set_interrupts(&mut self, enable: bool) {
        self.queue.set_dev_notify(enable);
    }

    /// The first `length` bytes of a buffer.
    ///
    /// # Safety
    /// The bytes have no other use as long as the slice is used.
    unsafe fn slice<'a>(&self, buffer: usize, length: usize) -> &'a mut [u8] {
        let Some(memory) = self.memory.filter(|_| buffer < self.count) else { return &mut [] };
        // SAFETY: buffer and length lie inside the allocation, which is initialized; the caller guarantees the rest.
        unsafe { core::slice::from_raw_parts_mut(memory.as_ptr().add(buffer * self.buffer_bytes), length) }
    }
}

impl Drop for BufferQueue {
    fn drop(&mut self) {
        if let Some(memory) = self.memory {
            // SAFETY: allocated with this layout; queues are dropped only if their device's set-up failed, before it
            // was given a buffer.
            unsafe { dealloc(memory.as_ptr(), self.layout) };
        }
    }
}
