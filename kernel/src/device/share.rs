//! virtio-9p devices: folders of the host, by their tags.
//!
//! A request is carried out on the spot: the CPU waits for the host, which answers within microseconds from its page
//! cache. So a folder's files behave like any others to the calls above, none of which waits in a node's operation. The
//! price is that a slow host file system stops the guest's CPU as long.

use alloc::vec::Vec;

use virtio_drivers::transport::{DeviceType, Transport};

use crate::device::virtio;
use crate::device::virtio::Exchange;
use crate::error::Errno;
use crate::memory::fallible;
use crate::sync::SpinLock;

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
    exchange: SpinLock<Exchange>,
}

impl Share {
    /// Calls `f` with the queue; it has no other users meanwhile.
    pub fn with<R>(&self, f: impl FnOnce(&mut Exchange) -> R) -> R {
        f(&mut self.exchange.lock())
    }
}

/// Finds and starts all devices.
///
/// # Errors
/// `ENODEV` (one doesn't work), `ENOMEM`.
pub fn find_all() -> Result<Vec<Share>, Errno> {
    let mut shares = Vec::new();
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
        fallible::try_push(&mut shares, Share { tag, exchange: SpinLock::new(exchange) })?;
    }
    Ok(shares)
}
