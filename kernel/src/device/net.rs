//! The virtio network device, virtio 1.2 section 5.1: frames out by [`Link::transmit`], frames in to a [`FrameSink`].
//!
//! ```text
//!   interrupt ─▶ on_interrupt (acknowledges, wakes) ─▶ serve: used buffers ─▶ FrameSink::receive, buffers back
//!                                                            room to send again ─▶ FrameSink::has_room
//! ```
//!
//! The device's interrupts for received frames are off while the coroutine works, those for sent frames are on only
//! while somebody was refused; so a busy link costs few interrupts. Event indices, by which the device would count
//! instead, are left alone: `virtio-drivers` cannot switch interrupts off with them. Every frame is copied out of its
//! buffer before the buffer goes back, so a reader that is slow, or memory that is short, costs frames and never the
//! device its buffers.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::task::Poll;

use heddle_inet::link::{Link, LinkCapabilities, LinkFull, TransmitOffload};
use virtio_drivers::transport::{DeviceType, Transport};

use heddle_kernel_core::fallible::extend_reserved;

use crate::arch::interrupt;
use crate::device::virtio;
use crate::device::virtio::{FrameQueue, Registers};
use crate::error::Errno;
use crate::memory::fallible;
use crate::sched;
use crate::sched::{Budget, Priority, TaskRef};
use crate::sync::SpinLock;

const RECEIVE: u16 = 0;
const TRANSMIT: u16 = 1;
/// Bytes of an Ethernet header.
const ETHERNET_BYTES: usize = 14;
/// The largest IP packet, unless the device says otherwise.
const MTU_DEFAULT: usize = 1500;
/// The longest frame: a segment of 64 KiB with its Ethernet header.
const FRAME_BYTES_MAX: usize = (64 << 10) + ETHERNET_BYTES;
/// Payload of the longest segment that the device cuts: the packet has 16 bits for its length.
const SEGMENT_BYTES_MAX: usize = 65_535 - 120;
/// Units of the budget for a frame.
const FRAME_COST: u32 = 4;

/// Offsets in the device's configuration.
const CONFIGURATION_MAC: usize = 0;
const CONFIGURATION_STATUS: usize = 6;
const CONFIGURATION_MTU: usize = 10;
const STATUS_LINK_UP: u16 = 1;

bitflags::bitflags! {
    /// The features that this driver knows.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct NetFeatures: u64 {
        const CHECKSUM = 1 << 0;
        const GUEST_CHECKSUM = 1 << 1;
        const MTU = 1 << 3;
        const MAC = 1 << 5;
        const GUEST_TSO4 = 1 << 7;
        const GUEST_TSO6 = 1 << 8;
        const HOST_TSO4 = 1 << 11;
        const HOST_TSO6 = 1 << 12;
        const MERGEABLE_BUFFERS = 1 << 15;
        const STATUS = 1 << 16;
        const VERSION_1 = 1 << 32;
    }
}

/// `struct virtio_net_hdr`, before each frame.
#[derive(Clone, Copy, Debug, Default)]
struct FrameHeader {
    flags: u8,
    segmentation: u8,
    header_bytes: u16,
    segment_bytes: u16,
    checksum_start: u16,
    checksum_offset: u16,
    /// Of a received frame: how many buffers it fills.
    buffers: u16,
}

impl FrameHeader {
    const BYTES: usize = 12;
    const NEEDS_CHECKSUM: u8 = 1;
    const CHECKSUM_VALID: u8 = 2;
    const TCP_V4: u8 = 1;
    const TCP_V6: u8 = 4;

    fn new(offload: &TransmitOffload) -> Self {
        let mut header = Self::default();
        if let Some(checksum) = offload.checksum {
            header.flags = Self::NEEDS_CHECKSUM;
            header.checksum_start = checksum.start as u16;
            header.checksum_offset = checksum.offset as u16;
        }
        if let Some(segmentation) = offload.segmentation {
            header.segmentation = if segmentation.is_v6 { Self::TCP_V6 } else { Self::TCP_V4 };
            header.header_bytes = segmentation.header_bytes as u16;
            header.segment_bytes = segmentation.segment_bytes as u16;
        }
        header
    }

    fn encode(&self) -> [u8; Self::BYTES] {
        let words =
            [self.header_bytes, self.segment_bytes, self.checksum_start, self.checksum_offset, self.buffers];
        let mut bytes = [0; Self::BYTES];
        (bytes[0], bytes[1]) = (self.flags, self.segmentation);
        for (target, word) in bytes[2..].chunks_exact_mut(2).zip(words) {
            target.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..Self::BYTES)?;
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Some(Self {
            flags: bytes[0],
            segmentation: bytes[1],
            header_bytes: word(2),
            segment_bytes: word(4),
            checksum_start: word(6),
            checksum_offset: word(8),
            buffers: word(10),
        })
    }
}

/// Whoever the frames are for.
pub trait FrameSink: Sync {
    /// A frame has come. `checked`: its checksum needs no check. It must not wait, and copies what it keeps.
    fn receive(&self, frame: &[u8], checked: bool);

    /// After [`LinkFull`]: frames are taken again.
    fn has_room(&self);
}

/// Traffic in one direction.
#[derive(Debug)]
pub struct Traffic {
    /// Frames that went through.
    pub frames: AtomicU64,
    /// Their bytes.
    pub bytes: AtomicU64,
    /// Frames that were lost for want of room.
    pub dropped: AtomicU64,
    /// Frames that made no sense.
    pub errors: AtomicU64,
}

impl Traffic {
    /// Nothing so far.
    pub const fn new() -> Self {
        Self {
            frames: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            errors: AtomicU64::new(0),
        }
    }

    fn count(&self, bytes: usize) {
        self.frames.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

struct TransmitQueue {
    queue: Box<FrameQueue>,
    /// Somebody was refused and is to be told.
    refused: bool,
}

/// The device.
pub struct NetDevice {
    registers: Registers,
    mac: [u8; 6],
    mtu: usize,
    has_link: bool,
    capabilities: LinkCapabilities,
    transmit: SpinLock<TransmitQueue>,
    /// Until [`start`] gives it to the coroutine.
    receive: SpinLock<Option<Receiver>>,
    irq: u32,
    /// Traffic received.
    pub received: Traffic,
    /// Traffic sent.
    pub sent: Traffic,
}

/// The receiving side, which one coroutine has.
struct Receiver {
    queue: Box<FrameQueue>,
    /// Room for a frame of several buffers.
    merged: Vec<u8>,
}

static DEVICE: spin::Once<NetDevice> = spin::Once::new();
/// The coroutine that looks at the queues after an interrupt.
static SERVICE: spin::Once<TaskRef> = spin::Once::new();
/// An interrupt came that the coroutine has not looked at.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Finds the device and sets it up; none if the machine has none. It is silent until [`start`].
///
/// # Errors
/// `ENODEV` (it does not work), `ENOMEM`.
pub fn find() -> Result<Option<&'static NetDevice>, Errno> {
    let Some(found) = virtio::find(DeviceType::Network) else { return Ok(None) };
    let mut transport = found.transport;
    let offered = NetFeatures::from_bits_truncate(transport.read_device_features());
    let mut wanted = NetFeatures::all();
    if !offered.contains(NetFeatures::MERGEABLE_BUFFERS | NetFeatures::GUEST_CHECKSUM) {
        // Long frames fit into nothing but a row of buffers.
        wanted -= NetFeatures::GUEST_TSO4 | NetFeatures::GUEST_TSO6;
    }
    if !offered.contains(NetFeatures::CHECKSUM) {
        wanted -= NetFeatures::HOST_TSO4 | NetFeatures::HOST_TSO6;
    }
    if !virtio::has_room_for_chains() {
        wanted -= NetFeatures::GUEST_TSO4 | NetFeatures::GUEST_TSO6;
        wanted -= NetFeatures::HOST_TSO4 | NetFeatures::HOST_TSO6;
    }
    let features = transport.begin_init(wanted);
    if !features.contains(NetFeatures::VERSION_1 | NetFeatures::MAC) {
        ::log::error!("virtio net: {features:?}");
        return Err(Errno::ENODEV);
    }
    let mac = transport.read_config_space(CONFIGURATION_MAC).map_err(|_| Errno::ENODEV)?;
    let mut mtu = MTU_DEFAULT;
    if features.contains(NetFeatures::MTU) {
        let said: u16 = transport.read_config_space(CONFIGURATION_MTU).map_err(|_| Errno::ENODEV)?;
        mtu = usize::from(said);
    }
    let mut has_link = true;
    if features.contains(NetFeatures::STATUS) {
        let status: u16 = transport.read_config_space(CONFIGURATION_STATUS).map_err(|_| Errno::ENODEV)?;
        has_link = status & STATUS_LINK_UP != 0;
    }
    let queue = FrameQueue::new(&mut transport, RECEIVE)?;
    let mut merged = Vec::new();
    if features.intersects(NetFeatures::GUEST_TSO4 | NetFeatures::GUEST_TSO6) {
        merged = fallible::try_with_capacity(FRAME_BYTES_MAX)?;
    }
    let mut transmit = FrameQueue::new(&mut transport, TRANSMIT)?;
    transmit.set_interrupts(false);
    transport.finish_init();
    // Dropping it would reset the device.
    core::mem::forget(transport);
    let segmentation = |feature| if features.contains(feature) { SEGMENT_BYTES_MAX } else { 0 };
    let device = NetDevice {
        registers: found.registers,
        mac,
        mtu,
        has_link,
        capabilities: LinkCapabilities {
            transmit_checksum: features.contains(NetFeatures::CHECKSUM),
            receive_checksum: features.contains(NetFeatures::GUEST_CHECKSUM),
            tcp_segmentation_v4: segmentation(NetFeatures::HOST_TSO4),
            tcp_segmentation_v6: segmentation(NetFeatures::HOST_TSO6),
        },
        transmit: SpinLock::new(TransmitQueue { queue: transmit, refused: false }),
        receive: SpinLock::new(Some(Receiver { queue, merged })),
        irq: found.irq,
        received: Traffic::new(),
        sent: Traffic::new(),
    };
    ::log::info!("net: {:02x?}, mtu {mtu}, {features:?}", device.mac);
    Ok(Some(DEVICE.call_once(|| device)))
}

/// Starts the coroutine that hands received frames to `sink`, and lets the device receive.
///
/// # Errors
/// `EBUSY` (it was started before), `ENOMEM`.
pub fn start(device: &'static NetDevice, sink: &'static dyn FrameSink) -> Result<(), Errno> {
    let receiver = device.receive.lock().take().ok_or(Errno::EBUSY)?;
    let service = sched::spawn(Priority::KERNEL, serve(device, receiver, sink))?;
    SERVICE.call_once(|| service);
    interrupt::register(device.irq, on_interrupt);
    // Interrupts from before are lost: the coroutine posts the first buffers now.
    on_interrupt();
    Ok(())
}

/// Interrupt handler: the queues are looked at by a coroutine.
fn on_interrupt() {
    if let Some(device) = DEVICE.get() {
        device.registers.acknowledge_interrupt();
    }
    INTERRUPTED.store(true, Ordering::Release);
    if let Some(service) = SERVICE.get() {
        service.wake();
    }
}

async fn serve(device: &'static NetDevice, mut receiver: Receiver, sink: &'static dyn FrameSink) {
    let mut budget = Budget::new();
    loop {
        let interrupted = poll_fn(|_| match INTERRUPTED.swap(false, Ordering::AcqRel) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        });
        interrupted.await;
        if device.finish_sending() {
            sink.has_room();
        }
        receiver.queue.set_interrupts(false);
        loop {
            while receiver.next(device, sink) {
                // Half of the buffers stay with the device, which is told of others in batches: that costs an exit.
                if receiver.queue.owned() >= receiver.queue.count() / 2 {
                    receiver.post(&device.registers);
                }
                budget.step(FRAME_COST).await;
            }
            receiver.post(&device.registers);
            receiver.queue.set_interrupts(true);
            // A frame that came before interrupts were on again causes none.
            if !receiver.queue.has_used() {
                break;
            }
            receiver.queue.set_interrupts(false);
        }
    }
}

impl Receiver {
    fn post(&mut self, registers: &Registers) {
        if self.queue.post_all() && self.queue.should_notify() {
            registers.notify(RECEIVE);
        }
    }

    /// Hands the next frame over. Returns whether there was one.
    fn next(&mut self, device: &NetDevice, sink: &dyn FrameSink) -> bool {
        let Some((buffer, length)) = self.queue.take() else { return false };
        let bytes = &self.queue.bytes(buffer)[..length];
        let Some(header) = FrameHeader::decode(bytes) else {
            device.received.errors.fetch_add(1, Ordering::Relaxed);
            return true;
        };
        let checked = header.flags & (FrameHeader::NEEDS_CHECKSUM | FrameHeader::CHECKSUM_VALID) != 0;
        let frame = &bytes[FrameHeader::BYTES..];
        if header.buffers <= 1 {
            device.received.count(frame.len());
            sink.receive(frame, checked);
            return true;
        }
        self.merged.clear();
        let mut complete = append(&mut self.merged, frame);
        for _ in 1..header.buffers {
            // The device gives all buffers of a frame at once.
            let Some((buffer, length)) = self.queue.take() else {
                complete = false;
                break;
            };
            complete &= append(&mut self.merged, &self.queue.bytes(buffer)[..length]);
        }
        if complete {
            device.received.count(self.merged.len());
            sink.receive(&self.merged, checked);
        } else {
            device.received.errors.fetch_add(1, Ordering::Relaxed);
        }
        true
    }
}

/// Appends to a vector that does not grow. Returns whether there was room.
fn append(to: &mut Vec<u8>, bytes: &[u8]) -> bool {
    let fits = to.capacity() - to.len() >= bytes.len();
    if fits {
        extend_reserved(to, bytes);
    }
    fits
}

impl NetDevice {
    /// Whether the device says that it is connected; one that cannot say is.
    pub const fn has_link(&self) -> bool {
        self.has_link
    }

    /// Takes sent frames back. Returns whether somebody waits for that.
    fn finish_sending(&self) -> bool {
        let mut transmit = self.transmit.lock();
        if !transmit.refused {
            return false;
        }
        transmit.queue.reclaim();
        // A quarter is room for more than a frame or two.
        if transmit.queue.owned() < transmit.queue.count() / 4 {
            return false;
        }
        transmit.refused = false;
        transmit.queue.set_interrupts(false);
        true
    }
}

impl Link for NetDevice {
    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn capabilities(&self) -> LinkCapabilities {
        self.capabilities
    }

    fn transmit(&self, frame: &[u8], offload: TransmitOffload) -> Result<(), LinkFull> {
        if frame.len() > FRAME_BYTES_MAX {
            self.sent.errors.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let header = FrameHeader::new(&offload).encode();
        let mut transmit = self.transmit.lock();
        let queue = &mut transmit.queue;
        if queue.owned() < queue.count() / 2 {
            queue.reclaim();
        }
        let mut sent = queue.send([&header, frame]);
        if !sent {
            queue.set_interrupts(true);
            // Frames that were sent before interrupts were on cause none.
            queue.reclaim();
            sent = queue.send([&header, frame]);
        }
        if sent {
            if queue.should_notify() {
                self.registers.notify(TRANSMIT);
            }
            self.sent.count(frame.len());
            return Ok(());
        }
        transmit.refused = true;
        Err(LinkFull)
    }
}
