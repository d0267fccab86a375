//! Frames that packet sockets send.

use heddle_inet::link::{Link, TransmitOffload};
use heddle_kernel_core::fallible::resize_reserved;

use crate::error::{Errno, TryResult};
use crate::fs::IoBuffer;
use crate::memory::fallible;
use crate::net::interface::ethernet;
use crate::net::packet::registry::{Checksums, Frame, HEADER, PacketKind};
use crate::net::packet::{HARDWARE_AT, MAC_BYTES, PacketDevice, PacketSocket, decode, device};
use crate::net::protocol::SocketAddress;

/// Bytes of the tag of a virtual network, by which a frame may be longer.
const TAG_BYTES: usize = 4;
/// The type of a frame with such a tag.
const TAGGED: [u8; 2] = [0x81, 0x00];

/// A frame's way, from the address of a message or what the socket is bound to.
struct Way {
    protocol: u16,
    device: PacketDevice,
    target: [u8; MAC_BYTES],
}

fn way(socket: &PacketSocket, address: Option<&SocketAddress>) -> Result<Way, Errno> {
    let Some(address) = address else {
        let (protocol, interface) = socket.bound();
        let device = device(&socket.namespace, interface).ok_or(Errno::ENXIO)?;
        return Ok(Way { protocol, device, target: [0; MAC_BYTES] });
    };
    let bytes = address.as_slice();
    let (protocol, interface) = decode(bytes)?;
    if usize::from(bytes[11]) + HARDWARE_AT > bytes.len() {
        return Err(Errno::EINVAL);
    }
    let device = device(&socket.namespace, interface).ok_or(Errno::ENXIO)?;
    let target = bytes.get(HARDWARE_AT..).and_then(|bytes| bytes.first_chunk()).ok_or(Errno::EINVAL)?;
    Ok(Way { protocol, device, target: *target })
}

/// Sends what is in `buffer` as one frame, or as the packet of one.
pub(super) fn send(
    socket: &PacketSocket,
    buffer: &mut IoBuffer<'_>,
    address: Option<&SocketAddress>,
) -> TryResult<usize> {
    let Way { protocol, device, target } = way(socket, address)?;
    if !device.is_up {
        return Err(Errno::ENETDOWN.into());
    }
    let length = buffer.remaining();
    // A raw frame has its header already.
    let start = if socket.is_raw() { 0 } else { HEADER };
    let most = device.mtu + if socket.is_raw() { HEADER } else { 0 };
    if length > most + TAG_BYTES {
        return Err(Errno::EMSGSIZE.into());
    }
    let mut frame = fallible::try_with_capacity(start + length)?;
    resize_reserved(&mut frame, start + length, 0);
    let before = buffer.mark();
    buffer.copy_in(&mut frame[start..]).inspect_err(|_| buffer.rewind(before))?;
    if socket.is_raw() {
        if length < HEADER {
            return Err(Errno::EINVAL.into());
        }
        if length > most && frame[12..HEADER] != TAGGED {
            return Err(Errno::EMSGSIZE.into());
        }
    } else {
        if length > most {
            return Err(Errno::EMSGSIZE.into());
        }
        frame[..MAC_BYTES].copy_from_slice(&target);
        frame[MAC_BYTES..12].copy_from_slice(&device.mac);
        frame[12..HEADER].copy_from_slice(&protocol.to_be_bytes());
    }
    transmit(socket, &device, &frame)?;
    Ok(length)
}

fn transmit(socket: &PacketSocket, device: &PacketDevice, frame: &[u8]) -> Result<(), Errno> {
    let registry = socket.namespace.packets();
    let shown = |kind| Frame {
        bytes: frame,
        interface: device.index,
        hardware: device.hardware,
        kind,
        checksums: Checksums::Unknown,
    };
    if !device.is_loopback {
        let ethernet = ethernet().ok_or(Errno::ENXIO)?;
        ethernet.device.transmit(frame, TransmitOffload::default()).map_err(|_| Errno::ENOBUFS)?;
        registry.offer(&shown(PacketKind::Outgoing), Some(socket));
        return Ok(());
    }
    registry.offer(&shown(PacketKind::Outgoing), Some(socket));
    // The frame comes back at once, also to the sender.
    let kind = PacketKind::of(frame, device.mac);
    let back = shown(kind);
    registry.offer(&back, None);
    if kind != PacketKind::Other {
        socket.namespace.engine()?.receive_on_loopback(&frame[HEADER..], back.protocol());
    }
    Ok(())
}
