//! When datagrams arrived: `SO_TIMESTAMP`, `SO_TIMESTAMPNS`, `SIOCGSTAMP`, `SIOCGSTAMPNS`; socket(7).

use core::sync::atomic::{AtomicU64, Ordering};

use heddle_inet::datagram::Datagram;
use heddle_inet::options::Options;
use linux_raw_sys::net;

use crate::error::Errno;
use crate::time::{Clock, NS_PER_SECOND};

/// [`Options::timestamp`] for control data in microseconds, and in nanoseconds.
const MICROSECONDS: u32 = 1;
const NANOSECONDS: u32 = 2;
/// Bytes of `struct timeval` and `struct timespec`.
pub(super) const TIME_BYTES: usize = 16;
/// In [`LastArrival`]: nothing was read yet.
const NOTHING_READ: u64 = u64::MAX;

/// Whether `SO_TIMESTAMP` or `SO_TIMESTAMPNS` is on.
pub(super) fn option(options: &Options, name: u32) -> u32 {
    let wanted = if name == net::SO_TIMESTAMP { MICROSECONDS } else { NANOSECONDS };
    (Options::get(&options.timestamp) == wanted).into()
}

/// Sets one of them, of which the last counts.
pub(super) fn set_option(options: &Options, name: u32, is_on: bool) {
    let value = match (is_on, name) {
        (false, _) => 0,
        (true, net::SO_TIMESTAMP) => MICROSECONDS,
        (true, _) => NANOSECONDS,
    };
    options.timestamp.store(value, Ordering::Relaxed);
    if is_on {
        options.notes_arrival.store(1, Ordering::Relaxed);
    }
}

/// Seconds, and microseconds or nanoseconds, of a time of day.
fn encode(ns: u64, kind: u32) -> [u8; TIME_BYTES] {
    let rest = ns % NS_PER_SECOND;
    let rest = if kind == MICROSECONDS { rest / 1000 } else { rest };
    let mut bytes = [0; TIME_BYTES];
    bytes[..8].copy_from_slice(&(ns / NS_PER_SECOND).to_ne_bytes());
    bytes[8..].copy_from_slice(&rest.to_ne_bytes());
    bytes
}

/// The time of day at which a datagram arrived, or that of now where nobody noted it.
fn time_of_day(datagram: &Datagram) -> u64 {
    let arrived_ns = if datagram.arrived_ns == 0 { crate::arch::time::now_ns() } else { datagram.arrived_ns };
    arrived_ns.saturating_add(Clock::realtime_offset_ns())
}

/// The arrival of the datagram that was read last.
pub(super) struct LastArrival(AtomicU64);

impl LastArrival {
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(NOTHING_READ))
    }

    /// A datagram is read. The kind and the bytes of the control data that tell of its arrival, if the socket's are to.
    pub(super) fn read(&self, datagram: &Datagram, options: &Options) -> Option<(u32, [u8; TIME_BYTES])> {
        match Options::get(&options.timestamp) {
            0 if Options::is_on(&options.notes_arrival) => {
                self.0.store(time_of_day(datagram), Ordering::Relaxed);
                None
            }
            0 => {
                if self.0.load(Ordering::Relaxed) == NOTHING_READ {
                    self.0.store(0, Ordering::Relaxed);
                }
                None
            }
            kind => {
                let name = if kind == MICROSECONDS { net::SO_TIMESTAMP } else { net::SO_TIMESTAMPNS };
                Some((name, encode(time_of_day(datagram), kind)))
            }
        }
    }

    /// The answer to `SIOCGSTAMP`, or its relative of nanoseconds. From here on arrivals are noted.
    ///
    /// # Errors
    /// `ENOENT`: nothing was read.
    pub(super) fn tell(&self, options: &Options, request: u32) -> Result<[u8; TIME_BYTES], Errno> {
        options.notes_arrival.store(1, Ordering::Relaxed);
        let kind = if request == net::SIOCGSTAMP_OLD { MICROSECONDS } else { NANOSECONDS };
        match self.0.load(Ordering::Relaxed) {
            NOTHING_READ => Err(Errno::ENOENT),
            0 => {
                let now_ns = crate::arch::time::now_ns().saturating_add(Clock::realtime_offset_ns());
                self.0.store(now_ns, Ordering::Relaxed);
                Ok(encode(now_ns, kind))
            }
            ns => Ok(encode(ns, kind)),
        }
    }
}
