//! The device below the engine: something that carries Ethernet frames.
//!
//! The engine calls [`Link::transmit`] with a whole frame; the driver hands each frame that has come to the engine's
//! `receive`. The driver never calls the engine from an interrupt handler: the handler wakes a coroutine, and that
//! coroutine passes the frames on.

/// Work that the device can take over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCapabilities {
    /// The device fills in the TCP and UDP checksum of a frame whose [`TransmitOffload::checksum`] asks for it.
    pub transmit_checksum: bool,
    /// The device checks TCP and UDP checksums of what it receives; each frame is still handed over with a word on
    /// whether its own was checked.
    pub receive_checksum: bool,
    /// Payload bytes of the largest TCP segment over IPv4 that the device cuts into smaller ones; 0 for none.
    pub tcp_segmentation_v4: usize,
    /// The same over IPv6.
    pub tcp_segmentation_v6: usize,
}

/// A checksum for the device to fill in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumOffload {
    /// Offset in the frame from which on bytes are summed up: the transport header.
    pub start: usize,
    /// Offset from `start` of the two bytes of the sum. They hold the sum of the pseudo header, not inverted.
    pub offset: usize,
}

/// How the device cuts a TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentationOffload {
    /// Payload bytes of each piece.
    pub segment_bytes: usize,
    /// Bytes of all headers, from the start of the frame to the payload.
    pub header_bytes: usize,
    /// Whether the network protocol is IPv6.
    pub is_v6: bool,
}

/// Work that the device is to do on one frame. Only what its [`LinkCapabilities`] offer is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransmitOffload {
    /// The checksum to fill in; always there with `segmentation`.
    pub checksum: Option<ChecksumOffload>,
    /// The cut to make; the frame may be longer than the MTU then.
    pub segmentation: Option<SegmentationOffload>,
}

/// The device has no room for a frame. It calls `Engine::link_has_room` once it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkFull;

/// A device that carries Ethernet frames. Its methods never wait and may be called on any CPU, with spinlocks of the
/// engine held; they call nothing of the engine.
pub trait Link: Send + Sync {
    /// Its hardware address.
    fn mac(&self) -> [u8; 6];

    /// Bytes of the largest IP packet, without the Ethernet header.
    fn mtu(&self) -> usize;

    /// Work that it can take over.
    fn capabilities(&self) -> LinkCapabilities;

    /// Sends a frame: Ethernet header and packet, without the frame check sequence. The bytes are copied or sent before
    /// it returns.
    ///
    /// # Errors
    /// [`LinkFull`]: nothing was sent.
    fn transmit(&self, frame: &[u8], offload: TransmitOffload) -> Result<(), LinkFull>;
}
