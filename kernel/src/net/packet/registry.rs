//! The packet sockets of a network namespace, and the way of frames to them.
//!
//! Whoever has a frame asks [`PacketRegistry::is_watched`] first, so a machine without packet sockets pays one load
//! for each. A frame is offered to all sockets under one lock; so that this has a bound, so have the sockets of a
//! namespace and the instructions of their filters. A socket is listed until its open file is released.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use heddle_kernel_core::fallible::push_reserved;

use crate::error::Errno;
use crate::net::packet::PacketSocket;
use crate::sync::SpinLock;

/// Bytes of an Ethernet header.
pub const HEADER: usize = 14;
/// Where the hardware addresses and the type are in it.
const SOURCE: core::ops::Range<usize> = 6..12;
const TYPE: usize = 12;
/// Types below this one are lengths, of packets that say what they are in another way: `ETH_P_802_2`.
const TYPE_MIN: u16 = 0x600;
const TYPE_BY_CONTENT: u16 = 4;
const EVERYONE: [u8; 6] = [0xff; 6];

/// The most sockets of a namespace, and the most instructions of their filters together.
const SOCKETS_MAX: usize = 16;
const INSTRUCTIONS_MAX: usize = 16_384;

/// The kinds of packets, `PACKET_HOST` and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    /// For this machine.
    Host = 0,
    /// For everyone.
    Broadcast = 1,
    /// For a group.
    Multicast = 2,
    /// For somebody else.
    Other = 3,
    /// From this machine.
    Outgoing = 4,
}

impl PacketKind {
    /// The kind of a frame that has come, by its header.
    #[must_use]
    pub fn of(frame: &[u8], own: [u8; 6]) -> Self {
        match frame.first_chunk::<6>() {
            Some(&EVERYONE) => Self::Broadcast,
            Some(target) if *target == own => Self::Host,
            Some(target) if target[0] & 1 != 0 => Self::Multicast,
            _ => Self::Other,
        }
    }
}

/// The state of a frame's checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// Nobody.
    Unknown,
    /// They are right.
    Right,
    /// The device has to fill them in.
    Missing,
}

/// A frame on its way.
#[derive(Clone, Copy)]
pub struct Frame<'a> {
    /// Its bytes, from the Ethernet header on.
    pub bytes: &'a [u8],
    /// The interface's number.
    pub interface: u32,
    /// The interface's kind, `ARPHRD_`.
    pub hardware: u16,
    /// Where it goes.
    pub kind: PacketKind,
    /// See [`Checksums`].
    pub checksums: Checksums,
}

impl Frame<'_> {
    /// The packet's protocol.
    #[must_use]
    pub fn protocol(&self) -> u16 {
        let number = self.bytes.get(TYPE..HEADER).and_then(|bytes| bytes.first_chunk());
        let number = number.map_or(0, |bytes| u16::from_be_bytes(*bytes));
        if number < TYPE_MIN { TYPE_BY_CONTENT } else { number }
    }

    /// The hardware address of the sender.
    #[must_use]
    pub fn source(&self) -> [u8; 6] {
        self.bytes.get(SOURCE).and_then(|bytes| bytes.first_chunk()).copied().unwrap_or_default()
    }
}

/// See the module.
pub struct PacketRegistry {
    sockets: SpinLock<Vec<Arc<PacketSocket>>>,
    count: AtomicUsize,
    instructions: AtomicUsize,
}

impl Default for PacketRegistry {
    fn default() -> Self {
        Self::new()
    }
}

impl PacketRegistry {
    /// No sockets.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            sockets: SpinLock::new(Vec::new()),
            count: AtomicUsize::new(0),
            instructions: AtomicUsize::new(0),
        }
    }

    /// Whether there is a socket.
    #[inline]
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Lists a socket.
    ///
    /// # Errors
    /// `ENOBUFS` (there are too many), `ENOMEM`.
    pub(super) fn add(&self, socket: &Arc<PacketSocket>) -> Result<(), Errno> {
        let mut sockets = self.sockets.lock();
        if sockets.len() >= SOCKETS_MAX {
            return Err(Errno::ENOBUFS);
        }
        sockets.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        push_reserved(&mut sockets, socket.clone());
        self.count.store(sockets.len(), Ordering::Relaxed);
        Ok(())
    }

    /// Takes a socket off the list; the caller drops it without a lock held.
    pub(super) fn remove(&self, socket: &PacketSocket) -> Option<Arc<PacketSocket>> {
        let mut sockets = self.sockets.lock();
        let place = sockets.iter().position(|listed| core::ptr::eq(Arc::as_ptr(listed), socket))?;
        let removed = sockets.swap_remove(place);
        self.count.store(sockets.len(), Ordering::Relaxed);
        Some(removed)
    }

    /// Counts the instructions of a filter that takes the place of another.
    ///
    /// # Errors
    /// `ENOMEM`: they are too many.
    pub(super) fn count_filter(&self, before: usize, after: usize) -> Result<(), Errno> {
        let fits = |all: usize| Some(all - before + after).filter(|&all| all <= INSTRUCTIONS_MAX);
        let counted = self.instructions.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        counted.map(drop).map_err(|_| Errno::ENOMEM)
    }

    /// Offers a frame to all sockets but `sender`.
    pub fn offer(&self, frame: &Frame<'_>, sender: Option<&PacketSocket>) {
        if !self.is_watched() {
            return;
        }
        for socket in self.sockets.lock().iter() {
            if !sender.is_some_and(|sender| core::ptr::eq(sender, Arc::as_ptr(socket))) {
                socket.take(frame);
            }
        }
    }
}
