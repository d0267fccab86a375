//! Storage that grows with use: a socket is made anew with other buffers, and what its connection has behind it is
//! played to it.

use alloc::vec::Vec;

use smoltcp::socket::tcp::State;
use smoltcp::wire::IpListenEndpoint;

use crate::engine::Engine;
use crate::ip::{ETHERNET_BYTES, IpHeader};
use crate::platform::{OutOfMemory, Platform};
use crate::tcp::segment::{Draft, Segment, flags, is_before};
use crate::tcp::wire::stack::{Stack, address};
use crate::tcp::wire::{FIRST_BYTES, STORAGE_MAX, Wire};

/// Packets that wait for storage: each of them is looked at with each that comes.
const HELD_MAX: usize = 2048;

impl Wire {
    /// Has a new stack pass through the handshake that the connection has behind it.
    pub(super) fn play_handshake<P: Platform>(&mut self, engine: &Engine<P>) -> Result<(), OutOfMemory> {
        let una = self.own_start.wrapping_add(1).wrapping_add(self.sent as u32);
        let next = self.peer_start.wrapping_add(1).wrapping_add(self.received as u32);
        let port =
            IpListenEndpoint { addr: Some(address(self.outlet.local.address)), port: self.outlet.local.port };
        self.stack.socket().set_nagle_enabled(false);
        // A fresh socket can listen on a port that is not 0.
        let _ = self.stack.socket().listen(port);
        self.outlet.inner_scale = if self.offer.scale.is_some() { self.stack.scale() } else { 0 };
        self.outlet.is_replay = true;
        let (from, to) = (self.outlet.remote, self.outlet.local);
        let draft = Draft {
            from,
            to,
            number: next.wrapping_sub(1),
            acknowledged: None,
            flags: flags::SYN,
            window: u16::MAX,
            offer: Some(self.offer),
            data: &[],
        };
        let result = draft.frame(true).and_then(|syn| {
            self.input(engine, &syn[ETHERNET_BYTES..])?;
            self.output(engine)?;
            let draft = Draft {
                number: next,
                acknowledged: Some(una),
                flags: 0,
                window: self.inner_window(una, true),
                offer: None,
                ..draft
            };
            self.input(engine, &draft.frame(true)?[ETHERNET_BYTES..])
        });
        self.outlet.is_replay = false;
        result
    }

    /// Makes the stack anew with other storage. All that it has sent must have been acknowledged.
    ///
    /// # Errors
    /// [`OutOfMemory`]: it stays as it is.
    pub(super) fn rebuild<P: Platform>(
        &mut self,
        engine: &Engine<P>,
        receive_bytes: usize,
        send_bytes: usize,
    ) -> Result<(), OutOfMemory> {
        let unread_bytes = self.stack.peek().recv_queue();
        let mut unread = Vec::new();
        unread.try_reserve_exact(unread_bytes).map_err(|_| OutOfMemory)?;
        unread.resize(unread_bytes, 0);
        let _ = self.stack.socket().peek_slice(&mut unread);
        let has_ended = self.stack.peek().state() == State::CloseWait;
        let una = self.own_start.wrapping_add(1).wrapping_add(self.sent as u32);
        let stack =
            Stack::new(engine, self.outlet.local, self.mtu, una.wrapping_sub(1), receive_bytes, send_bytes)?;
        let old = core::mem::replace(&mut self.stack, stack);
        let result =
            self.play_handshake(engine).and_then(|()| self.play_unread(engine, &unread, has_ended, una));
        if result.is_err() || self.stack.peek().recv_queue() != unread_bytes {
            self.stack = old;
            self.outlet.inner_scale = if self.offer.scale.is_some() { self.stack.scale() } else { 0 };
            return Err(OutOfMemory);
        }
        self.outlet.unread = unread_bytes;
        // The new socket believes that all was acknowledged.
        let next = self.next_number(has_ended);
        if self.outlet.acknowledged != next {
            self.acknowledge(engine, next);
        }
        Ok(())
    }

    pub(super) fn play_unread<P: Platform>(
        &mut self,
        engine: &Engine<P>,
        unread: &[u8],
        has_ended: bool,
        una: u32,
    ) -> Result<(), OutOfMemory> {
        let mut number = self.peer_start.wrapping_add(1).wrapping_add(self.received as u32);
        self.outlet.is_replay = true;
        let mut result = Ok(());
        let pieces = unread.chunks(16 << 10).chain(core::iter::once(&[][..]).filter(|_| has_ended));
        for piece in pieces {
            let draft = Draft {
                from: self.outlet.remote,
                to: self.outlet.local,
                number,
                acknowledged: Some(una),
                flags: if piece.is_empty() { flags::FIN } else { 0 },
                window: self.inner_window(una, false),
                offer: None,
                data: piece,
            };
            result = draft.frame(true).and_then(|frame| self.input(engine, &frame[ETHERNET_BYTES..]));
            if result.is_err() {
                break;
            }
            // Each acknowledgement opens smoltcp's window again.
            result = self.nudge(engine, number.wrapping_add(piece.len() as u32), una);
            number = number.wrapping_add(piece.len() as u32);
        }
        self.outlet.is_replay = false;
        result
    }

    /// Has smoltcp acknowledge what it has, by repeating a byte of it.
    pub(super) fn nudge<P: Platform>(
        &mut self,
        engine: &Engine<P>,
        number: u32,
        una: u32,
    ) -> Result<(), OutOfMemory> {
        let draft = Draft {
            from: self.outlet.remote,
            to: self.outlet.local,
            number: number.wrapping_sub(1),
            acknowledged: Some(una),
            flags: 0,
            window: self.inner_window(una, false),
            offer: None,
            data: &[0],
        };
        self.input(engine, &draft.frame(true)?[ETHERNET_BYTES..])
    }

    /// The number that is expected of the peer next.
    pub(super) fn next_number(&self, has_ended: bool) -> u32 {
        let unread = self.stack.peek().recv_queue() as u32;
        let start = self.peer_start.wrapping_add(1).wrapping_add(self.received as u32);
        start.wrapping_add(unread).wrapping_add(u32::from(has_ended))
    }

    /// Sends an acknowledgement without smoltcp.
    pub(super) fn acknowledge<P: Platform>(&mut self, engine: &Engine<P>, next: u32) {
        let draft = Draft {
            from: self.outlet.local,
            to: self.outlet.remote,
            number: self.outlet.sent,
            acknowledged: Some(next),
            flags: 0,
            window: 0,
            offer: None,
            data: &[],
        };
        if let Ok(mut frame) = draft.frame(true) {
            let inner_edge = self.outlet.inner_edge;
            self.outlet.emit(engine, &mut frame, None, true);
            self.outlet.inner_edge = inner_edge;
        }
    }

    /// Makes sure that what a packet brings can be stored, as far as the peer may send it. Returns whether it can.
    pub(super) fn has_storage<P: Platform>(&mut self, engine: &Engine<P>, packet: &[u8]) -> bool {
        let Some(parsed) = IpHeader::parse(packet) else { return true };
        let Some(segment) = Segment::parse(parsed.payload) else { return true };
        let can_grow = matches!(self.state(), State::Established | State::CloseWait);
        if segment.data.is_empty() || segment.has(flags::SYN | flags::RST) {
            return true;
        }
        let start = self.peer_start.wrapping_add(1).wrapping_add(self.received as u32);
        let end = segment.number.wrapping_add(segment.data.len() as u32);
        if is_before(end, start) || is_before(self.outlet.promised, end) {
            // Old, or more than was allowed: smoltcp answers that.
            return true;
        }
        let needed = end.wrapping_sub(start) as usize;
        if needed > self.stack.receive_bytes && can_grow {
            if self.stack.peek().send_queue() > 0 {
                // The numbers of what is under way are smoltcp's.
                self.wants_storage = true;
                return false;
            }
            if self.has_gap() && is_before(self.next_number(false), segment.number) {
                // Bytes behind the gap would be lost.
                return false;
            }
            let bytes = (needed * 2).next_power_of_two().clamp(FIRST_BYTES, STORAGE_MAX);
            let send = self.stack.send_bytes;
            return self.rebuild(engine, bytes, send).is_ok();
        }
        if is_before(self.outlet.inner_edge, end) && needed <= self.stack.receive_bytes && can_grow {
            let una = self.own_start.wrapping_add(1);
            let una = una.wrapping_add((self.sent - self.stack.peek().send_queue() as u64) as u32);
            return self.nudge(engine, self.next_number(self.state() == State::CloseWait), una).is_ok();
        }
        true
    }

    /// Keeps a packet until there is storage for it. Its acknowledgement counts at once.
    pub(super) fn hold<P: Platform>(&mut self, engine: &Engine<P>, packet: Vec<u8>) {
        if let Some(parsed) = IpHeader::parse(&packet)
            && let Some(segment) = Segment::parse(parsed.payload)
            && segment.has(flags::ACK)
        {
            let draft = Draft {
                from: self.outlet.remote,
                to: self.outlet.local,
                number: self.next_number(false),
                acknowledged: Some(segment.acknowledged),
                flags: segment.flags & flags::RST,
                window: segment.window,
                offer: None,
                data: &[],
            };
            if let Ok(mut frame) = draft.frame(true) {
                self.take_packet(engine, &mut frame[ETHERNET_BYTES..], true);
            }
        }
        let bytes: usize = self.held.iter().map(Vec::len).sum();
        if bytes < self.outlet.window && self.held.len() < HELD_MAX && self.held.try_reserve(1).is_ok() {
            self.held.push_back(packet);
        }
        if self.has_gap() {
            // The peer must hear that something is missing.
            self.acknowledge(engine, self.next_number(false));
        }
    }

    /// Whether smoltcp may have bytes behind some that are missing.
    pub(super) fn has_gap(&self) -> bool {
        is_before(self.next_number(false), self.farthest)
    }

    /// Takes what was held, as far as there is storage for it now.
    pub(super) fn take_held<P: Platform>(&mut self, engine: &Engine<P>) {
        let next = self.next_number(false);
        if !self.wants_storage && self.looked_at == next {
            // The gap is still there.
            return;
        }
        self.looked_at = next;
        self.wants_storage = false;
        for _ in 0..self.held.len() {
            let Some(mut packet) = self.held.pop_front() else { break };
            if self.has_storage(engine, &packet) {
                self.take_packet(engine, &mut packet, false);
            } else {
                self.held.push_back(packet);
            }
        }
    }
}
