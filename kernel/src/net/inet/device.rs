//! The way between the machine's network device and the engine of the first namespace.

use alloc::sync::Arc;
use heddle_inet::engine::Engine;

use crate::device;
use crate::device::net::FrameSink;
use crate::error::Errno;
use crate::net::inet::platform::Kernel;
use crate::net::inet::{dhcp, settings};
use crate::net::interface::Ethernet;
use crate::net::namespace::NetNamespace;

/// Takes the frames of the device to the engine.
struct Frames;

/// The engine that the device belongs to.
fn device_engine() -> Option<&'static Arc<Engine<Kernel>>> {
    NetNamespace::first().ok()?.running_engine()
}

impl FrameSink for Frames {
    fn receive(&self, frame: &[u8], checked: bool) {
        if let Some(engine) = device_engine() {
            engine.receive(frame, checked);
        }
    }

    fn has_room(&self) {
        if let Some(engine) = device_engine() {
            engine.link_has_room();
        }
    }
}

/// Gives the engine the machine's network device.
///
/// # Errors
/// `ENOMEM`.
pub fn attach(ethernet: &'static Ethernet) -> Result<(), Errno> {
    NetNamespace::first()?.engine()?.configure(ethernet.device, &[], &[]).map_err(|_| Errno::ENOMEM)?;
    settings::configure(&ethernet.settings())?;
    device::net::start(ethernet.device, &Frames)?;
    if ethernet.uses_dhcp { dhcp::start(ethernet) } else { Ok(()) }
}
