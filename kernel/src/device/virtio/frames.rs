//! A virtqueue of network frames: equal buffers, of which a frame takes one or, where it is longer, a chain.
//!
//! `unsafe` here: the device owns a buffer from the moment it is posted until it comes back through the used ring.
#![allow(unsafe_code)]

use alloc::alloc::{alloc_zeroed, dealloc};
use alloc::boxed::Box;
use core::alloc::Layout;
use core::ptr::NonNull;
use core::sync::atomic::{Ordering, fence};

use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::mmio::MmioTransport;

use crate::arch::paging::PAGE_SIZE;
use crate::device::virtio::VirtioHal;
use crate::error::Errno;
use crate::memory::{fallible, frame};

/// Descriptors of a queue, and the most buffers: one for each.
const FRAME_BUFFERS: usize = 128;
/// The fewest buffers, where the machine has little memory.
const FRAME_BUFFERS_MIN: usize = 4;
/// Bytes of a buffer: an Ethernet frame of the usual length and the device's header fit.
pub const FRAME_BUFFER_BYTES: usize = 2048;
/// Buffers of the longest chain: a segment of 64 KiB with its headers.
const CHAIN_MAX: usize = (64 << 10) / FRAME_BUFFER_BYTES + 1;

/// How many buffers a queue has in this machine.
fn buffers() -> usize {
    frame::in_proportion(FRAME_BUFFERS, FRAME_BUFFERS_MIN)
}

/// Whether the queues have room for frames that are longer than a buffer, and others beside them.
pub fn has_room_for_chains() -> bool {
    buffers() >= 2 * CHAIN_MAX
}

/// A queue and its buffers.
pub struct FrameQueue {
    queue: VirtQueue<VirtioHal, FRAME_BUFFERS>,
    memory: NonNull<u8>,
    layout: Layout,
    /// Bit by buffer: the driver owns it.
    owned: u128,
    /// By buffer that the device owns: the next one of its chain, or itself at the end.
    next: [u8; FRAME_BUFFERS],
    /// By descriptor that heads a chain: the first buffer.
    first: [u8; FRAME_BUFFERS],
    /// By buffer that the device owns: how many of its bytes were posted.
    posted_bytes: [u16; FRAME_BUFFERS],
}

// SAFETY: the memory belongs to this value alone (and to the device, by the rule above), not to a CPU.
unsafe impl Send for FrameQueue {}

impl FrameQueue {
    /// Sets up queue `index` of the device, all of whose buffers the driver owns.
    ///
    /// # Errors
    /// `ENODEV` (the device has no such queue), `ENOMEM`.
    pub fn new(transport: &mut MmioTransport<'static>, index: u16) -> Result<Box<Self>, Errno> {
        let queue = VirtQueue::new(transport, index, false, false).map_err(|error| {
            ::log::error!("virtio queue {index}: {error}");
            Errno::ENODEV
        })?;
        let count = buffers();
        let layout =
            Layout::from_size_align(count * FRAME_BUFFER_BYTES, PAGE_SIZE).map_err(|_| Errno::EINVAL)?;
        // SAFETY: the size is not zero.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(Errno::ENOMEM)?;
        fallible::try_box(Self {
            queue,
            memory,
            layout,
            owned: u128::MAX >> (FRAME_BUFFERS - count),
            next: [0; FRAME_BUFFERS],
            first: [0; FRAME_BUFFERS],
            posted_bytes: [0; FRAME_BUFFERS],
        })
    }

    /// How many buffers there are.
    pub const fn count(&self) -> usize {
        self.layout.size() / FRAME_BUFFER_BYTES
    }

    /// How many buffers the driver owns.
    pub const fn owned(&self) -> usize {
        self.owned.count_ones() as usize
    }

    /// Hands `parts`, one after the other, to the device to be sent. Returns whether there was room.
    pub fn send(&mut self, parts: [&[u8]; 2]) -> bool {
        let length = parts[0].len() + parts[1].len();
        let count = length.div_ceil(FRAME_BUFFER_BYTES);
        if count == 0 || count > CHAIN_MAX || count > self.owned() {
            return false;
        }
        let first = self.owned.trailing_zeros() as usize;
        let (mut buffer, mut left) = (first, length);
        let mut source = parts.into_iter().flat_map(|part| part.chunks(FRAME_BUFFER_BYTES));
        let mut chunk: &[u8] = &[];
        loop {
            let bytes = left.min(FRAME_BUFFER_BYTES);
            let target = self.bytes_mut(buffer);
            let mut filled = 0;
            while filled < bytes {
                if chunk.is_empty() {
                    let Some(following) = source.next() else { return false };
                    chunk = following;
                }
                let step = chunk.len().min(bytes - filled);
                let (now, later) = chunk.split_at(step);
                target[filled..filled + step].copy_from_slice(now);
                (chunk, filled) = (later, filled + step);
            }
            self.owned &= !(1 << buffer);
            self.posted_bytes[buffer] = bytes as u16;
            left -= bytes;
            if left == 0 {
                self.next[buffer] = buffer as u8;
                break;
            }
            let following = self.owned.trailing_zeros() as usize;
            self.next[buffer] = following as u8;
            buffer = following;
        }
        let mut chain: [&[u8]; CHAIN_MAX] = [&[]; CHAIN_MAX];
        let count = self.chain(first, &mut chain);
        // SAFETY: the chain's buffers have just left `owned`, so nobody reaches their bytes until `reclaim` has popped
        // this chain; they stay allocated as long as the queue.
        let token = unsafe { self.queue.add(&chain[..count], &mut []) };
        // There are no more buffers than descriptors, so there are always enough.
        if let Ok(token) = token {
            self.first[usize::from(token) % FRAME_BUFFERS] = first as u8;
        }
        token.is_ok()
    }

    /// Takes back the buffers of frames that were sent.
    pub fn reclaim(&mut self) {
        while let Some(token) = self.queue.peek_used() {
            let Some(&first) = self.first.get(usize::from(token)) else { return };
            let mut chain: [&[u8]; CHAIN_MAX] = [&[]; CHAIN_MAX];
            let count = self.chain(usize::from(first), &mut chain);
            // SAFETY: `send` gave the device exactly these slices with this token.
            if unsafe { self.queue.pop_used(token, &chain[..count], &mut []) }.is_err() {
                return;
            }
            let mut buffer = usize::from(first);
            loop {
                self.owned |= 1 << buffer;
                let following = usize::from(self.next[buffer]);
                if following == buffer {
                    break;
                }
                buffer = following;
            }
        }
    }

    /// Collects the slices of a chain that the device owns or is about to own. Returns their number.
    fn chain(&self, first: usize, chain: &mut [&[u8]; CHAIN_MAX]) -> usize {
        let (mut buffer, mut count) = (first, 0);
        while let Some(slot) = chain.get_mut(count) {
            // SAFETY: only the device uses the bytes, and it reads them; the slice is for its address and length.
            *slot = unsafe { self.slice(buffer, usize::from(self.posted_bytes[buffer])) };
            count += 1;
            let following = usize::from(self.next[buffer]);
            if following == buffer {
                break;
            }
            buffer = following;
        }
        count
    }

    /// Hands every buffer that the driver owns to the device to be filled. Returns whether there was one.
    pub fn post_all(&mut self) -> bool {
        let any = self.owned != 0;
        while self.owned != 0 {
            let buffer = self.owned.trailing_zeros() as usize;
            // SAFETY: the driver owns the buffer; clearing its bit in `owned` keeps everyone from its bytes until
            // `take` pops this descriptor.
            let token = unsafe {
                let bytes = self.slice(buffer, FRAME_BUFFER_BYTES);
                self.queue.add(&[], &mut [bytes])
            };
            let Ok(token) = token else { break };
            self.owned &= !(1 << buffer);
            self.first[usize::from(token) % FRAME_BUFFERS] = buffer as u8;
        }
        any
    }

    /// Takes a buffer that the device has filled: its index, and how many bytes came. The driver owns it until
    /// [`FrameQueue::post_all`].
    pub fn take(&mut self) -> Option<(usize, usize)> {
        let token = self.queue.peek_used()?;
        let buffer = usize::from(*self.first.get(usize::from(token))?);
        // SAFETY: `post_all` gave the device exactly this slice with this token.
        let written = unsafe {
            let bytes = self.slice(buffer, FRAME_BUFFER_BYTES);
            self.queue.pop_used(token, &[], &mut [bytes])
        };
        self.owned |= 1 << buffer;
        Some((buffer, (written.ok()? as usize).min(FRAME_BUFFER_BYTES)))
    }

    /// The bytes of a buffer; empty if the device owns it.
    pub fn bytes(&self, buffer: usize) -> &[u8] {
        if buffer >= FRAME_BUFFERS || self.owned & 1 << buffer == 0 {
            return &[];
        }
        // SAFETY: the driver owns the buffer, and the borrow of `self` keeps it from being posted or written.
        unsafe { self.slice(buffer, FRAME_BUFFER_BYTES) }
    }

    fn bytes_mut(&mut self, buffer: usize) -> &mut [u8] {
        if buffer >= FRAME_BUFFERS || self.owned & 1 << buffer == 0 {
            return &mut [];
        }
        // SAFETY: as in `bytes`, and the borrow is the only one.
        unsafe { self.slice(buffer, FRAME_BUFFER_BYTES) }
    }

    /// Whether the device has used buffers that were not taken back.
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
        // Before the caller looks whether something was used meanwhile: the device writes that and looks at the flag.
        fence(Ordering::SeqCst);
    }

    /// The first bytes of a buffer.
    ///
    /// # Safety
    /// The bytes have no other use as long as the slice is used, or nobody writes them if the slice is only read.
    unsafe fn slice<'a>(&self, buffer: usize, length: usize) -> &'a mut [u8] {
        let (buffer, length) = (buffer % FRAME_BUFFERS, length.min(FRAME_BUFFER_BYTES));
        // SAFETY: buffers beyond the allocation are never in `owned`, by which callers choose; so buffer and length lie
        // inside it, and it is initialized. The caller guarantees the rest.
        unsafe {
            core::slice::from_raw_parts_mut(self.memory.as_ptr().add(buffer * FRAME_BUFFER_BYTES), length)
        }
    }
}

impl Drop for FrameQueue {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; queues are dropped only if their device's set-up failed, before it was
        // given a buffer.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}
