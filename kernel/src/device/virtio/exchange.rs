//! A virtqueue for one request at a time, whose reply the driver awaits on the spot.
//!
//! `unsafe` here: the device owns both buffers during [`Exchange::exchange`], which returns when it has used them.
#![allow(unsafe_code)]

use alloc::alloc::{alloc_zeroed, dealloc};
use core::alloc::Layout;
use core::ptr::NonNull;

use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::mmio::MmioTransport;

use crate::arch::paging::PAGE_SIZE;
use crate::device::virtio::{QUEUE_LENGTH, Registers, VirtioHal};
use crate::error::Errno;

/// The queue, and a buffer for each direction.
pub struct Exchange {
    queue: VirtQueue<VirtioHal, QUEUE_LENGTH>,
    index: u16,
    registers: Registers,
    memory: NonNull<u8>,
    layout: Layout,
    /// Bytes of each buffer; the reply's follows the request's.
    buffer_bytes: usize,
    /// Bytes of the last reply.
    replied: usize,
}

// SAFETY: the memory belongs to this value alone (and to the device, by the rule above), not to a CPU.
unsafe impl Send for Exchange {}

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
        // SAFETY: the size is not zero.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(Errno::ENOMEM)?;
        Ok(Self { queue, index, registers, memory, layout, buffer_bytes, replied: 0 })
    }

    /// The buffer for a request.
    pub fn request(&mut self) -> &mut [u8] {
        // SAFETY: the driver owns both buffers outside `exchange`, and the borrow keeps `exchange` from running.
        unsafe { core::slice::from_raw_parts_mut(self.memory.as_ptr(), self.buffer_bytes) }
    }

    /// The last reply.
    pub fn reply(&self) -> &[u8] {
        // SAFETY: as in `request`; the reply's buffer follows, and `replied` is at most its length.
        unsafe { core::slice::from_raw_parts(self.memory.as_ptr().add(self.buffer_bytes), self.replied) }
    }

    /// Sends the first `length` bytes of the request's buffer and waits for the reply.
    ///
    /// # Errors
    /// `EIO`: the device took it wrongly.
    pub fn exchange(&mut self, length: usize) -> Result<(), Errno> {
        let length = length.min(self.buffer_bytes);
        // SAFETY: the two buffers are this value's and do not overlap; nothing else reaches them before the device has
        // used them, because this call, which has the only reference, waits for that.
        unsafe {
            let request = core::slice::from_raw_parts(self.memory.as_ptr(), length);
            let place = self.memory.as_ptr().add(self.buffer_bytes);
            let reply = core::slice::from_raw_parts_mut(place, self.buffer_bytes);
            let token = self.queue.add(&[request], &mut [&mut *reply]).map_err(|_| Errno::EIO)?;
            if self.queue.should_notify() {
                self.registers.notify(self.index);
            }
            while !self.queue.can_pop() {
                core::hint::spin_loop();
            }
            let written = self.queue.pop_used(token, &[request], &mut [reply]);
            self.replied = (written.map_err(|_| Errno::EIO)? as usize).min(self.buffer_bytes);
        }
        Ok(())
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; no exchange is in progress.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}
