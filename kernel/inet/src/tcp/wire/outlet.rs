//! The segments of a connection on their way out: what smoltcp keeps to itself is read from them, and what it would say
//! of its storage is put right.

use alloc::vec::Vec;

use crate::address::Endpoint;
use crate::engine::{Engine, put_sum};
use crate::error::InetError;
use crate::ip::{ETHERNET_BYTES, IpHeader, protocol};
use crate::link::{SegmentationOffload, TransmitOffload};
use crate::platform::Platform;
use crate::tcp::segment::{HEADER_BYTES, SUM_AT, Segment, WINDOW_AT, flags, is_before};
use crate::tcp::wire::congestion::Congestion;

/// The numbers of a connection that smoltcp keeps to itself, as the segments tell them.
#[derive(Debug)]
pub(super) struct Outlet {
    pub(super) local: Endpoint,
    pub(super) remote: Endpoint,
    /// By how much this side's windows are shifted on the wire, and in smoltcp.
    pub(super) scale: u8,
    pub(super) inner_scale: u8,
    /// The window that the peer may use, less what waits to be read.
    pub(super) window: usize,
    pub(super) unread: usize,
    /// The number behind the last byte that was sent, and the last acknowledgement.
    pub(super) sent: u32,
    pub(super) acknowledged: u32,
    /// The right edge of the window that was promised, and of smoltcp's.
    pub(super) promised: u32,
    pub(super) inner_edge: u32,
    /// Segments go nowhere: they were sent before.
    pub(super) is_replay: bool,
    /// A frame for which the link had no room.
    pub(super) pending: Option<(Vec<u8>, TransmitOffload)>,
    pub(super) congestion: Congestion,
    pub(super) ttl: u8,
    pub(super) tos: u8,
}

impl Outlet {
    /// A segment leaves smoltcp, behind room for Ethernet's header.
    pub(super) fn emit<P: Platform>(
        &mut self,
        engine: &Engine<P>,
        frame: &mut [u8],
        piece: Option<usize>,
        is_answer: bool,
    ) {
        let header_bytes =
            if self.local.address.is_ipv4() { crate::ip::V4_BYTES } else { crate::ip::V6_BYTES };
        let start = ETHERNET_BYTES + header_bytes;
        let protocol_at = ETHERNET_BYTES + if self.local.address.is_ipv4() { 9 } else { 6 };
        if frame.get(protocol_at) != Some(&protocol::TCP) {
            return;
        }
        let Some(segment) = frame.get(start..).and_then(Segment::parse) else { return };
        let (number, end, given) = (segment.number, segment.end(), segment.flags);
        let (acknowledged, window, data_bytes) = (segment.acknowledged, segment.window, segment.data.len());
        let is_syn = segment.has(flags::SYN);
        if segment.has(flags::ACK) {
            let shift = if is_syn { 0 } else { self.inner_scale };
            self.inner_edge = acknowledged.wrapping_add(u32::from(window) << shift);
        }
        if self.is_replay {
            return;
        }
        // The program's window in place of the storage's.
        let room = self.window.saturating_sub(self.unread);
        let shift = if is_syn { 0 } else { self.scale };
        let units = (room >> shift).min(usize::from(u16::MAX));
        let mut edge = acknowledged.wrapping_add((units << shift) as u32);
        let mut units = units as u16;
        if is_before(edge, self.promised) && !is_syn {
            // A window that was promised stays promised.
            edge = self.promised;
            let left = edge.wrapping_sub(acknowledged) >> shift;
            units = left.min(u32::from(u16::MAX)) as u16;
        }
        let is_bare = data_bytes == 0 && given & !(flags::ACK | flags::PSH) == 0;
        let opens =
            is_before(self.promised, edge) && edge.wrapping_sub(self.promised) as usize >= self.window / 4;
        let is_news = acknowledged != self.acknowledged || opens;
        if is_bare && !is_answer && !is_news {
            // smoltcp's storage has room again, of which the peer knew.
            return;
        }
        if end != number && given & (flags::SYN | flags::RST) == 0 {
            self.congestion.send(number, end, self.sent, P::now_ns());
        }
        let is_new = is_before(self.sent, end);
        if is_new {
            self.sent = end;
        }
        if given & flags::ACK != 0 {
            self.acknowledged = acknowledged;
            self.promised = edge;
        }
        let bytes = &mut frame[start..];
        bytes[WINDOW_AT..WINDOW_AT + 2].copy_from_slice(&units.to_be_bytes());
        if is_bare || given & flags::RST != 0 && !is_answer {
            // After a timeout smoltcp's next number is one that the peer may have seen, and an acknowledgement with an
            // old number does not count: two ends that both send again would never hear each other. Neither does a
            // reset.
            bytes[4..8].copy_from_slice(&self.sent.to_be_bytes());
        }
        if is_syn {
            put_scale(bytes, self.scale);
        }
        let header = IpHeader {
            source: self.local.address,
            destination: self.remote.address,
            protocol: protocol::TCP,
            ttl: self.ttl,
            tos: self.tos,
        };
        let Some(interface) = engine.interface() else { return };
        let payload_bytes = frame.len() - start;
        header.write(&mut frame[ETHERNET_BYTES..], payload_bytes, None);
        let is_offloaded = interface.capabilities().transmit_checksum;
        let checksum = put_sum(&header, frame, SUM_AT, is_offloaded);
        let options_end = start + HEADER_BYTES.max(payload_bytes - data_bytes);
        let segmentation = piece.map(|segment_bytes| SegmentationOffload {
            segment_bytes,
            header_bytes: options_end,
            is_v6: !self.local.address.is_ipv4(),
        });
        let offload = TransmitOffload { checksum, segmentation };
        let repeats = end != number && !is_new;
        self.count(engine, given, piece.map_or(1, |piece| data_bytes.div_ceil(piece).max(1)), repeats);
        if interface.send(frame, header.destination, offload, P::now_ns()) == Err(InetError::NoBuffers) {
            let mut copy = Vec::new();
            if copy.try_reserve_exact(frame.len()).is_ok() {
                copy.extend_from_slice(frame);
                self.pending = Some((copy, offload));
            }
        }
    }
}

impl Outlet {
    /// Counts a segment, which the device may cut into several.
    fn count<P: Platform>(&self, engine: &Engine<P>, given: u8, segments: usize, repeats: bool) {
        let (segments, tcp) = (segments as u64, &engine.counters.tcp);
        engine.counters.ip(!self.local.address.is_ipv4()).sent.add(segments);
        if repeats { &tcp.segments_repeated } else { &tcp.segments_sent }.add(segments);
        if given & flags::RST != 0 {
            tcp.resets_sent.count();
        }
    }
}

/// Sets the shift in a SYN's options, and the window, which a SYN does not shift.
fn put_scale(segment: &mut [u8], scale: u8) {
    let end = (usize::from(segment[12] >> 4) * 4).min(segment.len());
    let mut at = HEADER_BYTES;
    while at < end {
        match segment[at] {
            0 => break,
            1 => at += 1,
            kind => {
                let Some(&length) = segment.get(at + 1) else { break };
                if kind == 3 && at + 2 < end {
                    segment[at + 2] = scale;
                }
                at += usize::from(length.max(2));
            }
        }
    }
}
