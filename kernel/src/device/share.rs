//! virtio-9p devices: folders of the host, by their tags.
//!
//! A request is a plain call, so a folder's files behave like any others to the calls above, none of which waits in a
//! node's operation. The host answers within microseconds from its page cache, and so long the CPU waits. If it takes
//! longer, the call waits in a detour ([`crate::sched::detour`]) and the CPU goes on with others.

use alloc::vec::Vec;

use virtio_drivers::transport::{DeviceType, Transport};

use crate::arch::interrupt;
use crate::device::virtio;
use crate::device::virtio::Registers;
use crate::error::Errno;
use crate::memory::fallible;
use crate::sched::detour;

pub use crate::device::virtio::{
    BATCH_MAX, Exchange, GiveUp, RequestBatch, SMALL_BYTES, exchange_counters as counters,
};

/// Bytes of a message, at most.
pub const MESSAGE_BYTES: usize = 64 << 10;
const QUEUE: u16 = 0;
const TAG_BYTES_MAX: u16 = 64;

bitflags::bitflags! {
    /// The features that this driver knows.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct ShareFeatures: u64 {
        const MOUNT_TAG = 1 << 0;
        const VERSION_1 = 1 << 32;
    }
}

/// A device.
pub struct Share {
    /// The name by which the host and the kernel's command line know it.
    pub tag: Vec<u8>,
    /// Its queue.
    pub exchange: Exchange,
}

/// The devices, for the interrupt handler.
static DEVICES: spin::Once<Vec<Registers>> = spin::Once::new();

/// Interrupt handler: whoever waits in a detour looks at the queues.
fn on_interrupt() {
    for registers in DEVICES.get().into_iter().flatten() {
        registers.acknowledge_interrupt();
    }
    detour::look_again();
}

/// Finds and starts all devices.
///
/// # Errors
/// `ENODEV` (one doesn't work), `ENOMEM`.
pub fn find_all() -> Result<Vec<Share>, Errno> {
    let (mut shares, mut devices, mut lines) = (Vec::new(), Vec::new(), Vec::new());
    let mut slot = 0;
    while let Some(found) = virtio::find_from(DeviceType::_9P, slot) {
        slot = found.slot + 1;
        let mut transport = found.transport;
        let features = transport.begin_init(ShareFeatures::all());
        if features != ShareFeatures::all() {
            ::log::error!("virtio 9p: {features:?}");
            return Err(Errno::ENODEV);
        }
        let length: u16 = transport.read_config_space(0).map_err(|_| Errno::ENODEV)?;
        let mut tag = Vec::new();
        for index in 0..length.min(TAG_BYTES_MAX) {
            let byte: u8 = transport.read_config_space(2 + usize::from(index)).map_err(|_| Errno::ENODEV)?;
            fallible::try_push(&mut tag, byte)?;
        }
        let exchange = Exchange::new(&mut transport, found.registers, QUEUE, MESSAGE_BYTES)?;
        transport.finish_init();
        // Dropping it would reset the device.
        core::mem::forget(transport);
        fallible::try_push(&mut shares, Share { tag, exchange })?;
        fallible::try_push(&mut devices, found.registers)?;
        fallible::try_push(&mut lines, found.irq)?;
    }
    DEVICES.call_once(|| devices);
    for line in lines {
        interrupt::register(line, on_interrupt);
    }
    Ok(shares)
}
