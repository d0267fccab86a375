//! TCP segments from the link: finds the connection, opens new ones, and answers for those that are no more.
//!
//! A connection that is being opened is a small record until the peer confirms it; the socket is made then. There is a
//! bound on the records, and the oldest makes room, so a flood of SYNs costs little and keeps nobody out for long.

use alloc::sync::Arc;

use crate::address::{Endpoint, Tuple};
use crate::engine::{Engine, Entry, LastNumbers};
use crate::error::{InetError, InetResult};
use crate::ip::IpHeader;
use crate::options::Options;
use crate::platform::{Platform, Readiness, Waiters, random_u64};
use crate::settings::Settings;
use crate::tcp::half_open::HalfOpen;
use crate::tcp::segment::{Draft, Offer, Segment, flags, is_before};
use crate::tcp::wire::{OWN_SCALE, Wire};
use crate::tcp::{Phase, TcpSocket};

/// The window of a SYN, which is not scaled.
const SYN_WINDOW: u16 = u16::MAX;

impl<P: Platform> Engine<P> {
    /// A segment has come over the link; its checksum is right.
    pub(crate) fn receive_tcp(self: &Engine<P>, header: &IpHeader, packet: &[u8], payload: &[u8]) {
        let Some(segment) = Segment::parse(payload) else {
            self.counters.tcp.errors.count();
            return;
        };
        let local = Endpoint::new(header.destination, segment.target_port);
        let remote = Endpoint::new(header.source, segment.source_port);
        if local.port == 0 || remote.port == 0 {
            return;
        }
        let tuple = Tuple::new(local, remote);
        let connections = self.connections.lock();
        match connections.get(&tuple) {
            Some(Entry::Wire(socket)) => {
                let socket = socket.clone();
                drop(connections);
                socket.receive_packet(packet);
            }
            Some(&Entry::HalfOpen(half_open)) => {
                drop(connections);
                self.confirm(tuple, half_open, &segment, packet);
            }
            Some(&Entry::TimeWait { numbers: Some(numbers), .. }) => {
                drop(connections);
                self.answer_ended(tuple, numbers, &segment);
            }
            Some(Entry::Local(_)) => {}
            Some(Entry::TimeWait { numbers: None, .. }) | None => {
                drop(connections);
                self.open(tuple, &segment);
            }
        }
    }

    /// A segment for an ended connection: a new one may begin, else the last acknowledgement is repeated.
    fn answer_ended(&self, tuple: Tuple, numbers: LastNumbers, segment: &Segment<'_>) {
        if segment.has(flags::RST) {
            return;
        }
        let is_new = segment.flags & (flags::SYN | flags::ACK) == flags::SYN
            && is_before(numbers.received, segment.number);
        if is_new {
            self.leave(core::ptr::null(), tuple, None, None, false, None);
            self.open(tuple, segment);
            return;
        }
        let (from, to) = tuple.endpoints();
        self.send_segment(&Draft {
            from,
            to,
            number: numbers.sent,
            acknowledged: Some(numbers.received),
            flags: 0,
            window: 0,
            offer: None,
            data: &[],
        });
    }

    /// A segment that belongs to no connection.
    fn open(&self, tuple: Tuple, segment: &Segment<'_>) {
        let (local, remote) = tuple.endpoints();
        if segment.flags & (flags::SYN | flags::ACK | flags::RST) != flags::SYN {
            self.refuse(tuple, segment);
            return;
        }
        let listener = self.tcp_ports.lock().find(local, remote, true);
        let Some(listener) = listener else {
            self.refuse(tuple, segment);
            return;
        };
        // A peer asks again when it hears nothing.
        if listener.is_queue_full() {
            self.counters.tcp.queue_full.count();
            return;
        }
        let half_open = HalfOpen {
            own: random_u64::<P>() as u32,
            peer: segment.number,
            offer: segment.offer(),
            retries: 0,
        };
        let due_ns = {
            let mut connections = self.connections.lock();
            let mut all = self.half_open.lock();
            let most = (Settings::get(&self.settings.half_open_max) as usize).max(1);
            while all.len() >= most {
                let Some(oldest) = all.pop_oldest() else { break };
                if matches!(connections.get(&oldest), Some(Entry::HalfOpen(_))) {
                    connections.remove(&oldest);
                }
            }
            if connections.try_reserve(1).is_err() {
                return;
            }
            let Ok(due_ns) = all.push(P::now_ns(), tuple, 0) else { return };
            connections.insert(tuple, Entry::HalfOpen(half_open));
            due_ns
        };
        P::tick_at(&self.alarm, due_ns);
        self.send_confirmation(tuple, &half_open);
    }

    /// Sends a SYN that acknowledges the peer's.
    fn send_confirmation(&self, tuple: Tuple, half_open: &HalfOpen) {
        let (from, to) = tuple.endpoints();
        let offer = Offer {
            segment_max: self.segment_max(to),
            scale: half_open.offer.scale.map(|_| OWN_SCALE),
            selective: half_open.offer.selective,
        };
        self.send_segment(&Draft {
            from,
            to,
            number: half_open.own,
            acknowledged: Some(half_open.peer.wrapping_add(1)),
            flags: flags::SYN,
            window: SYN_WINDOW,
            offer: Some(offer),
            data: &[],
        });
    }

    /// The longest segment that the link to a peer takes.
    fn segment_max(&self, peer: Endpoint) -> u16 {
        let mtu = self.interface().map_or(1280, |interface| interface.mtu());
        (mtu - if peer.address.is_ipv4() { 40 } else { 60 }) as u16
    }

    /// Repeats questions that were not answered. Returns when the next one is due.
    pub(crate) fn ask_again(&self, now_ns: u64) -> Option<u64> {
        let retries = Settings::get(&self.settings.confirmation_retries);
        loop {
            let mut connections = self.connections.lock();
            let mut all = self.half_open.lock();
            let Some(tuple) = all.pop_due(now_ns) else { return all.next_ns() };
            let Some(Entry::HalfOpen(half_open)) = connections.get_mut(&tuple) else { continue };
            half_open.retries += 1;
            let half_open_now = *half_open;
            if half_open_now.retries > retries || all.push(now_ns, tuple, half_open_now.retries).is_err() {
                connections.remove(&tuple);
                self.counters.tcp.attempts_failed.count();
                continue;
            }
            drop(all);
            drop(connections);
            self.send_confirmation(tuple, &half_open_now);
        }
    }

    /// A segment for a half-open connection: the peer may confirm it.
    fn confirm(&self, tuple: Tuple, half_open: HalfOpen, segment: &Segment<'_>, packet: &[u8]) {
        if segment.has(flags::RST) {
            if segment.number == half_open.peer.wrapping_add(1) {
                self.counters.tcp.attempts_failed.count();
                self.forget_half_open(tuple);
            }
            return;
        }
        if segment.has(flags::SYN) {
            if segment.number == half_open.peer {
                self.send_confirmation(tuple, &half_open);
            } else {
                self.forget_half_open(tuple);
                self.open(tuple, segment);
            }
            return;
        }
        if !segment.has(flags::ACK) || segment.acknowledged != half_open.own.wrapping_add(1) {
            self.refuse(tuple, segment);
            return;
        }
        let (local, remote) = tuple.endpoints();
        let listener = self.tcp_ports.lock().find(local, remote, true);
        let Some(listener) = listener else {
            self.forget_half_open(tuple);
            self.refuse(tuple, segment);
            return;
        };
        let defers = Options::get(&listener.options.defer_accept) > 0;
        if defers && segment.data.is_empty() && !segment.has(flags::FIN) {
            return;
        }
        // Whatever goes wrong: the peer will send again, and the record is still there.
        if let Ok(socket) = self.accept_wire(tuple, &half_open, segment, &listener) {
            socket.receive_packet(packet);
            listener.waiters().wake(Readiness::IN);
        }
    }

    fn forget_half_open(&self, tuple: Tuple) {
        let mut connections = self.connections.lock();
        if matches!(connections.get(&tuple), Some(Entry::HalfOpen(_))) {
            connections.remove(&tuple);
        }
    }

    /// Makes the socket of a connection that is confirmed.
    fn accept_wire(
        &self,
        tuple: Tuple,
        half_open: &HalfOpen,
        segment: &Segment<'_>,
        listener: &Arc<TcpSocket<P>>,
    ) -> InetResult<Arc<TcpSocket<P>>> {
        let (local, remote) = tuple.endpoints();
        let engine = listener.engine();
        let wire = Wire::accepted(engine, local, remote, half_open, segment.window)?;
        let socket = TcpSocket::accepted(listener, local, remote, wire)?;
        let mut state = listener.state.lock();
        let Phase::Listening(queue) = &mut state.phase else { return Err(InetError::ConnectionRefused) };
        if queue.is_full() {
            self.counters.tcp.queue_full.count();
            return Err(InetError::NoBuffers);
        }
        queue.reserve()?;
        P::start_worker(socket.clone())?;
        socket.register_wire(local, remote)?;
        queue.push(socket.clone());
        drop(state);
        self.counters.tcp.passive_opens.count();
        Ok(socket)
    }

    /// Answers a segment that nobody wants.
    pub(crate) fn refuse(&self, tuple: Tuple, segment: &Segment<'_>) {
        if segment.has(flags::RST) {
            return;
        }
        let (from, to) = tuple.endpoints();
        let (number, acknowledged) =
            if segment.has(flags::ACK) { (segment.acknowledged, None) } else { (0, Some(segment.end())) };
        self.counters.tcp.resets_sent.count();
        self.send_segment(&Draft {
            from,
            to,
            number,
            acknowledged,
            flags: flags::RST,
            window: 0,
            offer: None,
            data: &[],
        });
    }

    /// Sends a segment that belongs to no connection yet, or no longer.
    pub(crate) fn send_segment(&self, draft: &Draft<'_>) {
        if let Ok(mut frame) = draft.frame(false) {
            self.counters.tcp.segments_sent.count();
            let _ = self.send_packet(&draft.header(), &mut frame, Some(super::segment::SUM_AT));
        }
    }

    /// The network could not deliver a segment of ours, the beginning of which is quoted.
    pub(crate) fn receive_tcp_error(&self, tuple: Tuple, quote: &[u8], error: InetError, mtu: u32) {
        let Some(number) = quote.get(4..8) else { return };
        let number = u32::from_be_bytes([number[0], number[1], number[2], number[3]]);
        let connections = self.connections.lock();
        let Some(Entry::Wire(socket)) = connections.get(&tuple) else { return };
        let socket = socket.clone();
        drop(connections);
        socket.network_error(number, error, mtu);
    }
}
