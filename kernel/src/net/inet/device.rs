//! The way between the machine's network device and the engine of the first namespace.

use alloc::sync::Arc;
use heddle_inet::engine::Engine;
use heddle_inet::interface::ETHERNET_INDEX;
use heddle_inet::link::{Link, LinkCapabilities, LinkFull, TransmitOffload};
use heddle_kernel_core::netlink::InterfaceKind;

use crate::device;
use crate::device::net::{FrameSink, NetDevice};
use crate::error::Errno;
use crate::net::inet::platform::Kernel;
use crate::net::inet::{dhcp, settings};
use crate::net::interface::Ethernet;
use crate::net::namespace::NetNamespace;
use crate::net::packet::registry::{Checksums, Frame, PacketKind};

/// Takes the frames of the device to the engine, and shows them to packet sockets.
struct Frames;

/// The device as the engine knows it, where packet sockets see what is sent.
struct Tapped(&'static NetDevice);

static TAPPED: spin::Once<Tapped> = spin::Once::new();

/// Shows a frame to the packet sockets of the namespace that the device is in.
fn show(bytes: &[u8], kind: PacketKind, checksums: Checksums) {
    let hardware = InterfaceKind::Ethernet.number();
    if let Ok(namespace) = NetNamespace::first() {
        namespace
            .packets()
            .offer(&Frame { bytes, interface: ETHERNET_INDEX, hardware, kind, checksums }, None);
    }
}

/// Whether anybody wants to see frames.
fn is_watched() -> bool {
    NetNamespace::first().is_ok_and(|namespace| namespace.packets().is_watched())
}

impl Link for Tapped {
    fn mac(&self) -> [u8; 6] {
        self.0.mac()
    }

    fn mtu(&self) -> usize {
        self.0.mtu()
    }

    fn capabilities(&self) -> LinkCapabilities {
        self.0.capabilities()
    }

    fn transmit(&self, frame: &[u8], offload: TransmitOffload) -> Result<(), LinkFull> {
        let checksums = if offload.checksum.is_some() { Checksums::Missing } else { Checksums::Right };
        self.0.transmit(frame, offload)?;
        if is_watched() {
            show(frame, PacketKind::Outgoing, checksums);
        }
        Ok(())
    }
}

/// The engine that the device belongs to.
fn device_engine() -> Option<&'static Arc<Engine<Kernel>>> {
    NetNamespace::first().ok()?.running_engine()
}

impl FrameSink for Frames {
    fn receive(&self, frame: &[u8], checked: bool) {
        if let (true, Some(Tapped(device))) = (is_watched(), TAPPED.get()) {
            let checksums = if checked { Checksums::Right } else { Checksums::Unknown };
            show(frame, PacketKind::of(frame, device.mac()), checksums);
        }
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
    let tapped = TAPPED.call_once(|| Tapped(ethernet.device));
    NetNamespace::first()?.engine()?.configure(tapped, &[], &[]).map_err(|_| Errno::ENOMEM)?;
    settings::configure(&ethernet.settings())?;
    device::net::start(ethernet.device, &Frames)?;
    if ethernet.uses_dhcp { dhcp::start(ethernet) } else { Ok(()) }
}
