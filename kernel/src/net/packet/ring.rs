//! A ring of frames in memory that a program maps, `PACKET_RX_RING` of versions 1 and 2: packets are put there in
//! place of the socket's queue, and the program says by a word of each frame when it has read it.
//!
//! The memory comes page by page when it is used first. The kernel reads nothing of it but that word.

use alloc::sync::Arc;
use core::ops::ControlFlow;
use core::sync::atomic::Ordering;

use crate::arch::paging::PAGE_SIZE;
use crate::error::Errno;
use crate::memory::source::SharedMemory;
use crate::memory::{FrameRef, MapSource, PageRef, fallible};
use crate::net::packet::{ADDRESS_BYTES, STATUS_KERNEL, STATUS_LOSING};
use crate::time::{NS_PER_SECOND, realtime_ns};

/// Frames begin at multiples of this.
const ALIGNMENT: usize = 16;
/// Bytes of `struct tpacket_hdr` and of `struct tpacket2_hdr`, with what aligns them.
pub(super) const HEADER_BYTES: usize = 32;
/// A frame's header with the address behind it.
const DESCRIPTION_BYTES: usize = HEADER_BYTES + ADDRESS_BYTES;
/// The room that a link header has at least.
const LINK_ROOM: usize = 16;
/// The most memory of one ring.
const RING_BYTES_MAX: usize = 64 << 20;

/// The layout of a frame's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// `TPACKET_V1`.
    First,
    /// `TPACKET_V2`.
    Second,
}

impl Version {
    /// The version of this number.
    pub const fn of(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::First),
            1 => Some(Self::Second),
            _ => None,
        }
    }
}

/// A packet to be put into the ring.
pub(super) struct RingPacket<'a> {
    /// Its bytes as far as they are wanted, and how many there were.
    pub bytes: &'a [u8],
    pub length: usize,
    /// How many of them are the link's header.
    pub link: usize,
    pub address: [u8; ADDRESS_BYTES],
    pub status: u32,
}

/// See the module.
pub(super) struct PacketRing {
    memory: Arc<SharedMemory>,
    version: Version,
    block_bytes: usize,
    frame_bytes: usize,
    frames: usize,
    /// Bytes that the program wants to be free before each packet.
    reserve: usize,
    next: usize,
}

impl PacketRing {
    /// A ring as a `struct tpacket_req` asks for it; `None` for one without blocks.
    ///
    /// # Errors
    /// `EINVAL`, `ENOMEM`.
    pub fn new(request: [u32; 4], version: Version, reserve: usize) -> Result<Option<Self>, Errno> {
        let [block_bytes, blocks, frame_bytes, frames] = request.map(|number| number as usize);
        if blocks == 0 {
            return if frames == 0 { Ok(None) } else { Err(Errno::EINVAL) };
        }
        let least = DESCRIPTION_BYTES + reserve;
        let is_valid = (1..=i32::MAX as usize).contains(&block_bytes)
            && block_bytes.is_multiple_of(PAGE_SIZE)
            && frame_bytes >= least
            && frame_bytes.is_multiple_of(ALIGNMENT)
            && block_bytes >= frame_bytes
            && (block_bytes / frame_bytes).checked_mul(blocks) == Some(frames);
        if !is_valid {
            return Err(Errno::EINVAL);
        }
        if block_bytes.checked_mul(blocks).is_none_or(|bytes| bytes > RING_BYTES_MAX) {
            return Err(Errno::ENOMEM);
        }
        let memory = fallible::try_arc(SharedMemory::default())?;
        Ok(Some(Self { memory, version, block_bytes, frame_bytes, frames, reserve, next: 0 }))
    }

    /// The memory, to be mapped.
    pub fn source(&self) -> Arc<dyn MapSource> {
        self.memory.clone()
    }

    /// Where a frame begins.
    const fn place(&self, frame: usize) -> usize {
        let each = self.block_bytes / self.frame_bytes;
        frame / each * self.block_bytes + frame % each * self.frame_bytes
    }

    fn page(&self, at: usize) -> Result<FrameRef, Errno> {
        match self.memory.page((at / PAGE_SIZE) as u64, true)? {
            PageRef::Counted(frame) => Ok(frame),
            PageRef::Static(_) => Err(Errno::ENOMEM),
        }
    }

    fn status(&self, frame: usize) -> Result<u32, Errno> {
        let at = self.place(frame);
        let word = at % PAGE_SIZE / size_of::<u32>();
        Ok(self.page(at)?.words()[word].load(Ordering::Acquire))
    }

    fn write(&self, mut at: usize, mut bytes: &[u8]) -> Result<(), Errno> {
        while !bytes.is_empty() {
            let from = at % PAGE_SIZE;
            let (piece, rest) = bytes.split_at(bytes.len().min(PAGE_SIZE - from));
            self.page(at)?.bytes().part(from..from + piece.len()).write(piece);
            (at, bytes) = (at + piece.len(), rest);
        }
        Ok(())
    }

    /// Whether the program has not read the newest packet.
    pub fn has_unread(&self) -> bool {
        let newest = self.next.checked_sub(1).unwrap_or(self.frames - 1);
        self.status(newest).is_ok_and(|status| status != STATUS_KERNEL)
    }

    /// Puts a packet into the next frame. It is lost (`Break`) if the program has not read what was there, or if
    /// there is no memory.
    pub fn put(&mut self, packet: &RingPacket<'_>, is_losing: bool) -> ControlFlow<()> {
        let put = self.try_put(packet, is_losing);
        if put.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn try_put(&mut self, packet: &RingPacket<'_>, is_losing: bool) -> Result<(), Errno> {
        if self.status(self.next)? != STATUS_KERNEL {
            return Err(Errno::ENOBUFS);
        }
        let at = self.place(self.next);
        let network = if packet.link == 0 {
            DESCRIPTION_BYTES.next_multiple_of(ALIGNMENT) + LINK_ROOM + self.reserve
        } else {
            (DESCRIPTION_BYTES + packet.link.max(LINK_ROOM)).next_multiple_of(ALIGNMENT) + self.reserve
        };
        let start = network - packet.link;
        let kept = packet.bytes.len().min(self.frame_bytes.saturating_sub(start));
        self.write(at + start, &packet.bytes[..kept])?;
        self.write(at + HEADER_BYTES, &packet.address)?;
        let now_ns = realtime_ns();
        let (seconds, rest_ns) = ((now_ns / NS_PER_SECOND) as u32, (now_ns % NS_PER_SECOND) as u32);
        let places = (start as u32) | (network as u32) << 16;
        let words = [packet.length as u32, kept as u32, places, seconds];
        let mut header = [0; HEADER_BYTES];
        // The status of the first version has eight bytes, and its time microseconds.
        let (first, part) = match self.version {
            Version::First => (8, rest_ns / 1000),
            Version::Second => (4, rest_ns),
        };
        let all = words.into_iter().chain([part]);
        for (place, word) in header[first..].chunks_exact_mut(4).zip(all) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        self.write(at + size_of::<u32>(), &header[size_of::<u32>()..])?;
        let losing = if is_losing { STATUS_LOSING } else { 0 };
        // Last: with it the frame is the program's.
        let word = at % PAGE_SIZE / size_of::<u32>();
        self.page(at)?.words()[word].store(packet.status | losing, Ordering::Release);
        self.next = (self.next + 1) % self.frames;
        Ok(())
    }
}
