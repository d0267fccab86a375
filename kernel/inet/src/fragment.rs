//! Fragments: cutting packets that are too long for the link, and putting them together.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::ip::{FragmentPlace, IpHeader};

/// Packets that are being put together, and the bytes of all of them.
const PACKETS_MAX: usize = 64;
const BYTES_MAX: usize = 1 << 20;
/// How long the rest of a packet is waited for.
const WAIT_NS: u64 = 30_000_000_000;
/// The longest packet.
const PACKET_MAX: usize = 65_535;

#[derive(PartialEq, Eq)]
struct Key {
    source: IpAddr,
    destination: IpAddr,
    identification: u32,
    protocol: u8,
}

struct Partial {
    key: Key,
    header: IpHeader,
    until_ns: u64,
    bytes: Vec<u8>,
    /// The ranges of `bytes` that have come, in order and apart.
    there: Vec<(usize, usize)>,
    /// Its length, once the last fragment has come.
    total: Option<usize>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Reassembly {
    partial: VecDeque<Partial>,
    bytes: usize,
}

impl Reassembly {
    /// Takes a fragment; returns the packet's payload if it is complete. Fragments that overlap end the packet, RFC
    /// 5722.
    pub fn add(
        &mut self,
        header: &IpHeader,
        place: FragmentPlace,
        payload: &[u8],
        now_ns: u64,
    ) -> Option<(IpHeader, Vec<u8>)> {
        self.expire(now_ns);
        let end = place.offset + payload.len();
        if end > PACKET_MAX || place.has_more && !payload.len().is_multiple_of(8) || payload.is_empty() {
            return None;
        }
        let key = Key {
            source: header.source,
            destination: header.destination,
            identification: place.identification,
            // Fragments of IPv6 but the first don't say what the packet is.
            protocol: if header.source.is_ipv4() { header.protocol } else { 0 },
        };
        let at = match self.partial.iter().position(|partial| partial.key == key) {
            Some(at) => at,
            None => {
                while self.partial.len() >= PACKETS_MAX || self.bytes + PACKET_MAX > BYTES_MAX {
                    self.remove(0);
                }
                self.partial.try_reserve(1).ok()?;
                self.partial.push_back(Partial {
                    key,
                    header: *header,
                    until_ns: now_ns + WAIT_NS,
                    bytes: Vec::new(),
                    there: Vec::new(),
                    total: None,
                });
                self.partial.len() - 1
            }
        };
        let partial = &mut self.partial[at];
        let is_over = partial.total.is_some_and(|total| end > total || !place.has_more && end != total);
        let overlaps = partial.there.iter().any(|&(first, last)| place.offset < last && first < end);
        if is_over || overlaps {
            self.remove(at);
            return None;
        }
        if place.offset == 0 {
            partial.header = *header;
        }
        if partial.bytes.len() < end {
            let more = end - partial.bytes.len();
            if partial.bytes.try_reserve(more).is_err() || partial.there.try_reserve(1).is_err() {
                self.remove(at);
                return None;
            }
            partial.bytes.resize(end, 0);
            self.bytes += more;
        } else if partial.there.try_reserve(1).is_err() {
            self.remove(at);
            return None;
        }
        partial.bytes[place.offset..end].copy_from_slice(payload);
        partial.add_range(place.offset, end);
        if !place.has_more {
            partial.total = Some(end);
        }
        if partial.total.is_some_and(|total| partial.there == [(0, total)] && partial.bytes.len() == total) {
            return self.remove(at).map(|partial| (partial.header, partial.bytes));
        }
        None
    }

    fn expire(&mut self, now_ns: u64) {
        while self.partial.front().is_some_and(|first| first.until_ns <= now_ns) {
            self.remove(0);
        }
    }

    fn remove(&mut self, at: usize) -> Option<Partial> {
        let partial = self.partial.remove(at)?;
        self.bytes -= partial.bytes.len();
        Some(partial)
    }
}

impl Partial {
    /// Notes a range that overlaps no other, joined with its neighbours.
    fn add_range(&mut self, first: usize, last: usize) {
        let at = self.there.partition_point(|known| known.0 < first);
        let joins_before = at > 0 && self.there[at - 1].1 == first;
        let joins_after = self.there.get(at).is_some_and(|next| next.0 == last);
        match (joins_before, joins_after) {
            (true, true) => {
                self.there[at - 1].1 = self.there[at].1;
                self.there.remove(at);
            }
            (true, false) => self.there[at - 1].1 = last,
            (false, true) => self.there[at].0 = first,
            (false, false) => self.there.insert(at, (first, last)),
        }
    }
}
