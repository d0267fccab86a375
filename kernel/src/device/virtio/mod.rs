//! virtio over memory-mapped registers: finding devices, and what drivers share.
//!
//! Queue layout and device initialization are those of the `virtio-drivers` crate; this module supplies the memory.
//! `unsafe` here: device registers, and memory that a device reads and writes.
#![allow(unsafe_code)]

mod exchange;
mod frames;
mod queue;

use alloc::alloc::{alloc_zeroed, dealloc, handle_alloc_error};
use core::alloc::Layout;
use core::ptr::NonNull;

use virtio_drivers::transport::mmio::{MmioTransport, VirtIOHeader};
use virtio_drivers::transport::{DeviceType, Transport};
use virtio_drivers::{BufferDirection, Hal, PhysAddr};

use crate::arch::paging::{PAGE_SIZE, direct_map, physical_of};

pub use crate::device::virtio::exchange::{
    BATCH_MAX, Exchange, GiveUp, RequestBatch, SMALL_BYTES, counters as exchange_counters,
};
pub use crate::device::virtio::frames::{FrameQueue, has_room_for_chains};
pub use crate::device::virtio::queue::{BufferQueue, Direction, QUEUE_LENGTH};

/// Physical address of the machine's first slot for a virtio device.
const FIRST_SLOT: u64 = 0xfeb0_0000;
/// Bytes between slots, and the size of one.
const SLOT_BYTES: u64 = 512;
/// Slots of the machine; the ones it doesn't have read as other than a device.
const SLOTS: u64 = 24;
/// Interrupt line of the first slot; the others follow.
const FIRST_IRQ: u32 = 5;
/// Interrupt lines of the machine.
const IRQS: u32 = 24;

/// A device that was found, before its initialization.
pub struct VirtioDevice {
    /// For initialization; afterwards to be forgotten, because dropping it resets the device.
    pub transport: MmioTransport<'static>,
    /// Its registers.
    pub registers: Registers,
    /// Its interrupt line.
    pub irq: u32,
    /// The index of its slot.
    pub slot: u64,
}

/// Finds the first device of a type.
pub fn find(wanted: DeviceType) -> Option<VirtioDevice> {
    find_from(wanted, 0)
}

/// Finds the first device of a type in this slot or a later one.
pub fn find_from(wanted: DeviceType, first: u64) -> Option<VirtioDevice> {
    for slot in first..SLOTS {
        let header = direct_map::<VirtIOHeader>(FIRST_SLOT + slot * SLOT_BYTES);
        let registers = Registers { base: header.cast() };
        // A slot without a device has device number 0, memory without a slot no magic value. The devices of other
        // types are left alone: dropping a transport resets its device, which may have a driver.
        if registers.read(Registers::MAGIC) != Registers::MAGIC_VALUE
            || registers.read(Registers::DEVICE) != wanted as u32
        {
            continue;
        }
        let irq = FIRST_IRQ + slot as u32;
        // SAFETY: the slot is a device's registers, mapped permanently by the direct map, and nothing else uses them:
        // devices are looked for once per type, before their drivers run.
        let transport = unsafe { MmioTransport::new(NonNull::new(header)?, SLOT_BYTES as usize) };
        match transport {
            Ok(transport) if transport.device_type() == wanted && irq < IRQS => {
                return Some(VirtioDevice { transport, registers, irq, slot });
            }
            Ok(_) => {}
            Err(error) => ::log::warn!("virtio slot {slot}: {error}"),
        }
    }
    None
}

/// The registers that a running driver uses.
#[derive(Clone, Copy)]
pub struct Registers {
    base: *mut u8,
}

impl Registers {
    const MAGIC: usize = 0x00;
    const MAGIC_VALUE: u32 = u32::from_le_bytes(*b"virt");
    const DEVICE: usize = 0x08;
    const NOTIFY: usize = 0x50;
    const INTERRUPT_STATUS: usize = 0x60;
    const INTERRUPT_ACKNOWLEDGE: usize = 0x64;

    /// Tells the device that a queue has new buffers.
    pub fn notify(&self, queue: u16) {
        self.write(Self::NOTIFY, u32::from(queue));
    }

    /// Ends the interrupt condition; to be called before the queues are looked at.
    pub fn acknowledge_interrupt(&self) {
        self.write(Self::INTERRUPT_ACKNOWLEDGE, self.read(Self::INTERRUPT_STATUS));
    }

    fn read(&self, offset: usize) -> u32 {
        // SAFETY: the direct map covers the slot, `find` made `base` from it, and the offsets lie inside; reading these
        // registers has no side effect.
        unsafe { self.base.byte_add(offset).cast::<u32>().read_volatile() }
    }

    fn write(&self, offset: usize, value: u32) {
        // SAFETY: as in `read`; these two registers can be written at any time by any CPU.
        unsafe { self.base.byte_add(offset).cast::<u32>().write_volatile(value) }
    }
}

// SAFETY: each access is one 32-bit load or store, which devices take in any order from any CPU.
unsafe impl Send for Registers {}
// SAFETY: as above.
unsafe impl Sync for Registers {}

/// Page-aligned, zeroed, physically contiguous memory.
fn layout(pages: usize) -> Layout {
    Layout::from_size_align(pages * PAGE_SIZE, PAGE_SIZE).unwrap_or(Layout::new::<[u8; PAGE_SIZE]>())
}

/// The requirements of `virtio-drivers` on the machine: the direct map makes addresses of memory and device the same
/// but for a constant.
pub struct VirtioHal;

// SAFETY: `dma_alloc` gives memory of the heap, page-aligned and contiguous in the direct map and therefore in
// physical memory, until `dma_dealloc`; without an IOMMU sharing needs no more than the translation.
unsafe impl Hal for VirtioHal {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        let layout = layout(pages);
        // SAFETY: the layout's size is not zero.
        let memory = unsafe { alloc_zeroed(layout) };
        // The crate cannot be told of a failure; queues are made once, at the start, when memory is free.
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout) };
        (physical_of(memory.as_ptr()), memory)
    }

    unsafe fn dma_dealloc(_: PhysAddr, memory: NonNull<u8>, pages: usize) -> i32 {
        // SAFETY: the caller passes what `dma_alloc` returned for this number of pages.
        unsafe { dealloc(memory.as_ptr(), layout(pages)) };
        0
    }

    unsafe fn mmio_phys_to_virt(physical: PhysAddr, _: usize) -> NonNull<u8> {
        NonNull::new(direct_map(physical)).unwrap_or(NonNull::dangling())
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        physical_of(buffer.cast::<u8>().as_ptr())
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}
