//! The options of a socket that are kept, socket(7).

use core::sync::atomic::{AtomicU32, Ordering};
use linux_raw_sys::net;

use bitflags::bitflags;

use crate::net::BUFFER_BYTES;

bitflags! {
    /// Options that are on or off. A local connection has nothing that they would change; they are told as they were
    /// set, as Linux does.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OptionFlags: u32 {
        /// `SO_REUSEADDR`.
        const REUSE_ADDRESS = 1 << 0;
        /// `SO_REUSEPORT`.
        const REUSE_PORT = 1 << 1;
        /// `SO_KEEPALIVE`.
        const KEEP_ALIVE = 1 << 2;
        /// `SO_BROADCAST`.
        const BROADCAST = 1 << 3;
        /// `SO_OOBINLINE`.
        const OUT_OF_BAND_INLINE = 1 << 4;
        /// `SO_DONTROUTE`.
        const DO_NOT_ROUTE = 1 << 5;
        /// `SO_LINGER` is on.
        const LINGER = 1 << 6;
        /// `SO_DEBUG`.
        const DEBUG = 1 << 7;
        /// `SO_PASSSEC`: there are no labels to pass.
        const PASS_LABEL = 1 << 8;
        /// `SO_NOFCS`.
        const NO_FRAME_CHECK = 1 << 9;
        /// `SO_LOCK_FILTER`.
        const LOCK_FILTER = 1 << 10;
        /// `SO_SELECT_ERR_QUEUE`.
        const SELECT_ERROR_QUEUE = 1 << 11;
        /// `SO_NO_CHECK`.
        const NO_CHECK = 1 << 12;
    }
}

impl OptionFlags {
    /// The option of this number, if it is one that is on or off and has no other effect here.
    #[must_use]
    pub const fn of(option: u32) -> Option<Self> {
        Some(match option {
            net::SO_REUSEADDR => Self::REUSE_ADDRESS,
            net::SO_REUSEPORT => Self::REUSE_PORT,
            net::SO_KEEPALIVE => Self::KEEP_ALIVE,
            net::SO_BROADCAST => Self::BROADCAST,
            net::SO_OOBINLINE => Self::OUT_OF_BAND_INLINE,
            net::SO_DONTROUTE => Self::DO_NOT_ROUTE,
            net::SO_DEBUG => Self::DEBUG,
            net::SO_PASSSEC => Self::PASS_LABEL,
            net::SO_NOFCS => Self::NO_FRAME_CHECK,
            net::SO_LOCK_FILTER => Self::LOCK_FILTER,
            net::SO_SELECT_ERR_QUEUE => Self::SELECT_ERROR_QUEUE,
            net::SO_NO_CHECK => Self::NO_CHECK,
            _ => return None,
        })
    }
}

/// The options of a socket.
pub struct SocketOptions {
    flags: AtomicU32,
    linger_seconds: AtomicU32,
    priority: AtomicU32,
    mark: AtomicU32,
    low_water: AtomicU32,
    send_buffer: AtomicU32,
    receive_buffer: AtomicU32,
}

impl SocketOptions {
    /// The smallest buffers that can be asked for: Linux's, where they hold two packets and one.
    const SEND_BUFFER_MIN: u32 = 4608;
    const RECEIVE_BUFFER_MIN: u32 = 2304;
    /// Bytes that a buffer has beyond those of the largest message in it.
    const MESSAGE_OVERHEAD: usize = 32;

    pub(super) const fn new() -> Self {
        Self {
            flags: AtomicU32::new(0),
            linger_seconds: AtomicU32::new(0),
            priority: AtomicU32::new(0),
            mark: AtomicU32::new(0),
            low_water: AtomicU32::new(1),
            send_buffer: AtomicU32::new(BUFFER_BYTES as u32),
            receive_buffer: AtomicU32::new(BUFFER_BYTES as u32),
        }
    }

    /// Whether an option is on.
    #[must_use]
    pub fn has(&self, flag: OptionFlags) -> bool {
        self.flags.load(Ordering::Relaxed) & flag.bits() != 0
    }

    /// Switches an option on or off.
    pub fn set(&self, flag: OptionFlags, is_on: bool) {
        if is_on {
            self.flags.fetch_or(flag.bits(), Ordering::Relaxed);
        } else {
            self.flags.fetch_and(!flag.bits(), Ordering::Relaxed);
        }
    }

    /// `SO_LINGER`: whether it is on, and the seconds that were set last.
    #[must_use]
    pub fn linger(&self) -> (bool, u32) {
        (self.has(OptionFlags::LINGER), self.linger_seconds.load(Ordering::Relaxed))
    }

    /// Sets `SO_LINGER`; the seconds stay when it is switched off.
    pub fn set_linger(&self, seconds: Option<u32>) {
        if let Some(seconds) = seconds {
            self.linger_seconds.store(seconds, Ordering::Relaxed);
        }
        self.set(OptionFlags::LINGER, seconds.is_some());
    }

    /// `SO_PRIORITY`.
    #[must_use]
    pub fn priority(&self) -> u32 {
        self.priority.load(Ordering::Relaxed)
    }

    /// Sets `SO_PRIORITY`.
    pub fn set_priority(&self, priority: u32) {
        self.priority.store(priority, Ordering::Relaxed);
    }

    /// `SO_MARK`.
    pub const fn mark(&self) -> &AtomicU32 {
        &self.mark
    }

    /// `SO_RCVLOWAT`: the bytes that a read waits for.
    pub const fn low_water(&self) -> &AtomicU32 {
        &self.low_water
    }

    /// `SO_SNDBUF` or `SO_RCVBUF`, in bytes.
    #[must_use]
    pub fn buffer(&self, send: bool) -> u32 {
        if send { &self.send_buffer } else { &self.receive_buffer }.load(Ordering::Relaxed)
    }

    /// Sets `SO_SNDBUF` or `SO_RCVBUF` to twice what is asked for, and no less than the smallest.
    pub fn set_buffer(&self, send: bool, asked: u32) {
        let doubled = asked.min(i32::MAX as u32 / 2) * 2;
        if send {
            self.send_buffer.store(doubled.max(Self::SEND_BUFFER_MIN), Ordering::Relaxed);
        } else {
            self.receive_buffer.store(doubled.max(Self::RECEIVE_BUFFER_MIN), Ordering::Relaxed);
        }
    }

    /// How many bytes may wait at a peer before the socket's sending waits.
    #[must_use]
    pub fn send_limit(&self) -> usize {
        (self.buffer(true) as usize).min(BUFFER_BYTES)
    }

    /// The longest message that can be sent.
    #[must_use]
    pub fn message_limit(&self) -> usize {
        self.send_limit() - Self::MESSAGE_OVERHEAD
    }
}
