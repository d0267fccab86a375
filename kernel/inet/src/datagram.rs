//! Queues of datagrams, and the state that UDP, ping and raw sockets have in common.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::address::Endpoint;
use crate::error::{InetError, InetResult, MoveError};
use crate::options::Options;

/// The memory that Linux counts for a datagram in a receive buffer, so that as many fit as there: its buffer and the
/// description of it, the buffer with headers and an end of its own; the bytes of a long one are in pages.
const DESCRIPTION_BYTES: usize = 256;
const HEADER_BYTES: usize = 28 + 31;
const END_BYTES: usize = 320;
const LINE_BYTES: usize = 64;
const LONG_BYTES: usize = 16_000;
/// Reports of errors that wait to be read.
const REPORTS_MAX: usize = 64;
/// Groups of one socket, `net.ipv4.igmp_max_memberships` and more.
const GROUPS_MAX: usize = 64;

/// A datagram that has come.
#[derive(Debug)]
pub struct Datagram {
    /// Its bytes are those from `start` on.
    pub bytes: Vec<u8>,
    /// See `bytes`.
    pub start: usize,
    /// From where.
    pub source: Endpoint,
    /// To which address.
    pub destination: IpAddr,
    /// To which port; 0 where there are none.
    pub port: u16,
    /// The number of the interface by which it came.
    pub interface: u32,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Type of service, or traffic class.
    pub tos: u8,
    /// When it arrived, by the platform's clock; 0 where nobody wanted to know.
    pub arrived_ns: u64,
}

impl Datagram {
    /// The payload that was sent.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }
}

/// An error that the network reported: `IP_RECVERR`.
#[derive(Debug)]
pub struct ErrorReport {
    /// The error.
    pub error: InetError,
    /// The ICMP message's type and code.
    pub kind: u8,
    /// See `kind`.
    pub code: u8,
    /// The message's own value: the next hop's MTU.
    pub information: u32,
    /// The reporter.
    pub offender: IpAddr,
    /// Where the datagram was to go.
    pub destination: Endpoint,
    /// The beginning of what was sent.
    pub payload: Vec<u8>,
}

/// The receive queue of a socket.
#[derive(Debug, Default)]
pub(crate) struct DatagramQueue {
    datagrams: VecDeque<Datagram>,
    bytes: usize,
    reports: VecDeque<ErrorReport>,
    /// To be told once.
    pub error: Option<InetError>,
    pub dropped: u64,
    groups: Vec<(IpAddr, u32)>,
}

/// The memory that a datagram counts for in its queue.
fn cost(datagram: &Datagram) -> usize {
    let length = datagram.payload().len();
    if length > LONG_BYTES {
        return cost_of(0) + length;
    }
    cost_of(length)
}

const fn cost_of(length: usize) -> usize {
    ((length + HEADER_BYTES).next_multiple_of(LINE_BYTES) + END_BYTES).next_power_of_two() + DESCRIPTION_BYTES
}

impl DatagramQueue {
    /// Gives the first datagram to `take`, and removes and returns it unless it is only peeked at; nothing from an
    /// empty queue into which nothing comes any more. A peek may `skip` bytes.
    ///
    /// # Errors
    /// [`InetError::WouldBlock`], an error that the network reported; those of `take`, after which it stays.
    pub fn receive<T, F>(
        &mut self,
        is_ended: bool,
        peek: bool,
        skip: usize,
        take: impl FnOnce(&Datagram) -> Result<T, F>,
    ) -> Result<Option<(T, Option<Datagram>)>, MoveError<F>> {
        if let Some(error) = self.error.take() {
            return Err(error.into());
        }
        if skip > 0 {
            return self.peek_on(is_ended, skip, take);
        }
        let Some(first) = self.first() else {
            return if is_ended { Ok(None) } else { Err(InetError::WouldBlock.into()) };
        };
        let taken = take(first).map_err(MoveError::Copy)?;
        let old = if peek { None } else { self.take() };
        Ok(Some((taken, old)))
    }

    /// Peeks at what lies behind so many bytes.
    fn peek_on<T, F>(
        &mut self,
        is_ended: bool,
        mut skip: usize,
        take: impl FnOnce(&Datagram) -> Result<T, F>,
    ) -> Result<Option<(T, Option<Datagram>)>, MoveError<F>> {
        let mut all = self.datagrams.iter_mut();
        let found = all.find(|datagram| {
            let length = datagram.payload().len();
            let is_found = skip < length;
            if !is_found {
                skip -= length;
            }
            is_found
        });
        let Some(found) = found else {
            return if is_ended { Ok(None) } else { Err(InetError::WouldBlock.into()) };
        };
        found.start += skip;
        let taken = take(found);
        found.start -= skip;
        Ok(Some((taken.map_err(MoveError::Copy)?, None)))
    }

    pub fn has_data(&self) -> bool {
        !self.datagrams.is_empty()
    }

    pub fn has_reports(&self) -> bool {
        !self.reports.is_empty()
    }

    /// Bytes of the first datagram, and of all with what they cost.
    pub fn lengths(&self) -> (usize, usize) {
        (self.datagrams.front().map_or(0, |first| first.payload().len()), self.bytes)
    }

    /// Appends a datagram if there is room. Returns whether there was.
    pub fn push(&mut self, datagram: Datagram, limit: usize) -> bool {
        let cost = cost(&datagram);
        // As in Linux, the last one may go beyond the limit.
        if self.bytes > limit || self.datagrams.try_reserve(1).is_err() {
            self.dropped += 1;
            return false;
        }
        self.bytes += cost;
        self.datagrams.push_back(datagram);
        true
    }

    pub fn first(&self) -> Option<&Datagram> {
        self.datagrams.front()
    }

    pub fn take(&mut self) -> Option<Datagram> {
        let first = self.datagrams.pop_front()?;
        self.bytes -= cost(&first);
        Some(first)
    }

    /// Notes an error of the network: as a report if the socket wants them, and to be told.
    pub fn report(&mut self, report: ErrorReport, wanted: bool, is_told: bool) {
        if is_told || wanted {
            self.error = Some(report.error);
        }
        if wanted && self.reports.len() < REPORTS_MAX && self.reports.try_reserve(1).is_ok() {
            self.reports.push_back(report);
        }
    }

    pub fn take_report(&mut self) -> Option<ErrorReport> {
        let report = self.reports.pop_front()?;
        // The next one is what would be told.
        self.error = self.reports.front().map(|next| next.error);
        Some(report)
    }

    /// Joins or leaves a group.
    pub fn join(&mut self, group: IpAddr, interface: u32, joins: bool) -> InetResult<()> {
        let place =
            self.groups.iter().position(|known| known.0 == group && (interface == 0 || known.1 == interface));
        match (place, joins) {
            (Some(_), true) => Err(InetError::AddressInUse),
            (None, false) => Err(InetError::AddressNotAvailable),
            (Some(place), false) => {
                self.groups.swap_remove(place);
                Ok(())
            }
            (None, true) if self.groups.len() >= GROUPS_MAX => Err(InetError::NoBuffers),
            (None, true) => {
                self.groups.try_reserve(1).map_err(|_| InetError::NoMemory)?;
                self.groups.push((group, interface));
                Ok(())
            }
        }
    }

    /// Whether what is sent to a group is for the socket.
    pub fn receives(&self, group: IpAddr, options: &Options) -> bool {
        self.groups.iter().any(|known| known.0 == group)
            // As in Linux, a socket that is bound to any address hears what anyone on the machine joined.
            || group.is_ipv4() && Options::is_on(&options.multicast_all) && self.groups.is_empty()
    }

    /// The groups that were joined.
    pub fn groups(&self) -> impl Iterator<Item = IpAddr> {
        self.groups.iter().map(|known| known.0)
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}
