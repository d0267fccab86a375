//! A connection over the link: smoltcp's TCP, one interface and one socket for each.
//!
//! Every segment in and out passes `outlet`. That is what lets a connection's buffers grow: its
//! socket is made anew with larger ones, and the handshake, unread bytes and the peer's end are played to it, so that
//! it continues with the numbers of the old one (`storage`). Sequence numbers are chosen here for that: smoltcp takes
//! its first one from a seed, and [`stack::seed_for`] finds the seed. A program's window is promised to the peer at
//! once, and storage is provided when bytes come that need it; so an idle connection has no buffers. How much is sent
//! at once is decided in `congestion`.

mod acceptance;
mod congestion;
mod ending;
#[cfg_attr(
    not(test),
    expect(clippy::disallowed_methods, reason = "packets have the room that was reserved for them")
)]
mod outlet;
#[cfg_attr(
    not(test),
    expect(
        clippy::disallowed_methods,
        reason = "in `Platform::reserved`, of reserved memory, or into `Engine::scratch` with room for a packet"
    )
)]
mod stack;
#[cfg_attr(
    not(test),
    expect(
        clippy::disallowed_methods,
        reason = "room is reserved before each, or was left by what is put back"
    )
)]
mod storage;
mod transfer;

pub use crate::tcp::wire::congestion::Pace;

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::num::NonZeroUsize;

use smoltcp::iface::{PollIngressSingleResult, PollResult};
use smoltcp::socket::tcp::{Socket, State};
use smoltcp::time::Duration;

use crate::address::Endpoint;
use crate::engine::Engine;
use crate::error::InetError;
use crate::ip::{ETHERNET_BYTES, IpHeader};
use crate::options::Options;
use crate::platform::{OutOfMemory, Platform, random_u64};
use crate::settings::{Settings, patience_ns};
use crate::tcp::half_open::HalfOpen;
use crate::tcp::segment::{Draft, FLAGS_AT, Offer, Segment, WINDOW_AT, flags, is_before};
use crate::tcp::wire::congestion::{Congestion, Heed};
use crate::tcp::wire::outlet::Outlet;
use crate::tcp::wire::stack::{Stack, StackDevice, capabilities, endpoint, instant};

/// By how many bits the windows that are sent are shifted, if the peer shifts its own.
pub(crate) const OWN_SCALE: u8 = 7;
/// Storage that a connection gets with its first byte, and the most.
const FIRST_BYTES: usize = 8 << 10;
const STORAGE_MAX: usize = 4 << 20;
/// How long a connection is quiet before its storage is given back.
const QUIET_NS: u64 = 5_000_000_000;
/// Segments that are sent in one pass.
const SEGMENTS_MAX: usize = 64;
/// The pauses before unacknowledged bytes, and an answer to `connect`, are asked for the first time.
const RETRY_NS: u64 = 200_000_000;
const CONNECT_NS: u64 = 1_000_000_000;
/// The segment that every peer takes.
const SMALLEST_SEGMENT: usize = 536;
/// A round trip from which on it is worth a pause to give a connection more storage.
const LONG_PATH_NS: u64 = 2_000_000;
/// How long corked bytes wait for more.
const CORK_NS: u64 = 200_000_000;

/// See the module.
pub(crate) struct Wire {
    stack: Stack,
    outlet: Outlet,
    mtu: usize,
    /// The first numbers of both sides, and what the peer offered.
    own_start: u32,
    peer_start: u32,
    offer: Offer,
    /// The window in the peer's last segment.
    peer_window: u16,
    /// How long nothing had been heard of the peer when smoltcp was made to believe that something was.
    unheard_ns: u64,
    /// Bytes ever put in and taken out by the program.
    pub sent: u64,
    pub received: u64,
    /// Segments whose bytes must wait until there is storage for them.
    held: VecDeque<Vec<u8>>,
    /// The number behind the last byte that smoltcp was given, and the one it expected when `held` was looked at.
    farthest: u32,
    looked_at: u32,
    /// The program found no room: it is to be woken when there is some, and storage is to grow.
    pub writer_waits: bool,
    was_short: bool,
    /// Storage must grow before more is sent.
    wants_storage: bool,
    /// The program sends no more, and the peer is to be told once all has been acknowledged.
    is_ending: bool,
    /// When something was last moved.
    active_ns: u64,
    started_ns: u64,
    corked_ns: Option<u64>,
    /// When the next doubtful segment is answered.
    challenge_ns: u64,
}

/// The result of a pass.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pass {
    /// When the next is due, if nothing comes before.
    pub next_ns: Option<u64>,
}

impl Wire {
    fn with(stack: Stack, local: Endpoint, remote: Endpoint, mtu: usize, own_start: u32) -> Self {
        let now_ns = 0;
        Self {
            stack,
            outlet: Outlet {
                local,
                remote,
                scale: OWN_SCALE,
                inner_scale: 0,
                window: usize::from(u16::MAX),
                unread: 0,
                sent: own_start,
                acknowledged: 0,
                promised: 0,
                inner_edge: 0,
                is_replay: false,
                pending: None,
                ttl: 64,
                tos: 0,
                congestion: Congestion::new(own_start, SMALLEST_SEGMENT),
            },
            mtu,
            own_start,
            peer_start: 0,
            offer: Offer::default(),
            peer_window: 0,
            unheard_ns: 0,
            sent: 0,
            received: 0,
            held: VecDeque::new(),
            farthest: 0,
            looked_at: 0,
            writer_waits: false,
            was_short: false,
            wants_storage: false,
            is_ending: false,
            active_ns: now_ns,
            started_ns: now_ns,
            corked_ns: None,
            challenge_ns: 0,
        }
    }

    /// The connection that a peer has confirmed, with a window of so many units.
    pub fn accepted<P: Platform>(
        engine: &Arc<Engine<P>>,
        local: Endpoint,
        remote: Endpoint,
        half_open: &HalfOpen,
        peer_window: u16,
    ) -> Result<Self, OutOfMemory> {
        let mtu = engine.interface().map_or(1280, |interface| interface.mtu());
        let stack = Stack::new(engine, local, mtu, half_open.own, 0, 0)?;
        let mut wire = Self::with(stack, local, remote, mtu, half_open.own);
        wire.peer_start = half_open.peer;
        wire.offer = half_open.offer;
        wire.peer_window = peer_window;
        (wire.farthest, wire.looked_at) = (half_open.peer.wrapping_add(1), half_open.peer);
        wire.active_ns = P::now_ns();
        wire.outlet.scale = if half_open.offer.scale.is_some() { OWN_SCALE } else { 0 };
        wire.outlet.sent = half_open.own.wrapping_add(1);
        wire.outlet.congestion.begin(wire.outlet.sent, wire.segment_bytes());
        wire.outlet.acknowledged = half_open.peer.wrapping_add(1);
        wire.outlet.promised = wire.outlet.acknowledged.wrapping_add(u32::from(u16::MAX));
        wire.play_handshake(engine)?;
        Ok(wire)
    }

    /// A connection that this side asks for.
    pub fn connecting<P: Platform>(
        engine: &Arc<Engine<P>>,
        local: Endpoint,
        remote: Endpoint,
    ) -> Result<Self, OutOfMemory> {
        let mtu = engine.interface().map_or(1280, |interface| interface.mtu());
        let number = random_u64::<P>() as u32;
        let mut stack = Stack::new(engine, local, mtu, number, 0, 0)?;
        let Stack { interface, sockets, handle, .. } = &mut stack;
        let socket: &mut Socket<'_> = sockets.get_mut(*handle);
        let (from, to) = (endpoint(local), endpoint(remote));
        socket.connect(interface.context(), to, from).map_err(|_| OutOfMemory)?;
        let mut wire = Self::with(stack, local, remote, mtu, number);
        wire.started_ns = P::now_ns();
        wire.active_ns = wire.started_ns;
        Ok(wire)
    }

    /// Calls `pass` with smoltcp's device.
    fn with_port<P: Platform, R>(
        &mut self,
        engine: &Engine<P>,
        incoming: Option<&[u8]>,
        pass: impl FnOnce(&mut Stack, &mut StackDevice<'_, P>) -> R,
    ) -> Result<R, OutOfMemory> {
        let capabilities = capabilities(engine, self.mtu);
        let segmentation = &capabilities.segmentation;
        let longest = segmentation.tcpv4.map_or(self.mtu, NonZeroUsize::get);
        let mut scratch = engine.scratch(ETHERNET_BYTES + longest.max(self.mtu) + 128)?;
        let mut port =
            StackDevice { engine, outlet: &mut self.outlet, incoming, scratch: &mut scratch, capabilities };
        let result = pass(&mut self.stack, &mut port);
        engine.give_scratch(scratch);
        Ok(result)
    }

    /// Gives smoltcp a packet.
    fn input<P: Platform>(&mut self, engine: &Engine<P>, packet: &[u8]) -> Result<(), OutOfMemory> {
        self.with_port(engine, Some(packet), |stack, port| {
            let now = instant(P::now_ns());
            let result = stack.interface.poll_ingress_single(now, port, &mut stack.sockets);
            debug_assert!(result != PollIngressSingleResult::None);
        })
    }

    /// Has smoltcp send what it may. Returns whether there is more.
    fn output<P: Platform>(&mut self, engine: &Engine<P>) -> Result<bool, OutOfMemory> {
        self.outlet.unread = self.stack.peek().recv_queue();
        if let Some((mut frame, offload)) = self.outlet.pending.take() {
            let target = self.outlet.remote.address;
            let sent =
                engine.interface().map(|interface| interface.send(&mut frame, target, offload, P::now_ns()));
            if sent == Some(Err(InetError::NoBuffers)) {
                self.outlet.pending = Some((frame, offload));
                return Ok(false);
            }
        }
        let is_left = self.with_port(engine, None, |stack, port| {
            let now = instant(P::now_ns());
            for _ in 0..SEGMENTS_MAX {
                if stack.interface.poll_egress(now, port, &mut stack.sockets) == PollResult::None {
                    return false;
                }
                if port.outlet.congestion.has_shrunk {
                    break;
                }
            }
            true
        })?;
        if core::mem::replace(&mut self.outlet.congestion.has_shrunk, false) {
            self.unheard_ns = P::now_ns().saturating_sub(self.active_ns);
            self.repeat_acknowledgement(engine)?;
        }
        Ok(is_left)
    }

    /// Whether the link had no room for something.
    pub const fn waits_for_link(&self) -> bool {
        self.outlet.pending.is_some()
    }

    /// TCP's state.
    pub fn state(&self) -> State {
        self.stack.peek().state()
    }

    /// Takes a packet of the connection.
    pub fn receive_packet<P: Platform>(
        &mut self,
        engine: &Engine<P>,
        mut packet: Vec<u8>,
        options: &Options,
    ) {
        self.outlet.window = self.window(options);
        if !self.has_storage(engine, &packet) {
            self.hold(engine, packet);
            return;
        }
        self.take_packet(engine, &mut packet, false);
    }

    /// The window that the peer may use.
    fn window(&self, options: &Options) -> usize {
        let mut wanted = (Options::get(&options.receive_buffer) as usize).min(STORAGE_MAX);
        if matches!(self.state(), State::FinWait1 | State::FinWait2) {
            // Storage that is there cannot grow any more.
            wanted = wanted.min(self.stack.receive_bytes);
        }
        if self.outlet.scale == 0 { wanted.min(usize::from(u16::MAX)) } else { wanted }
    }

    /// Gives smoltcp a packet with a window of ours. One that stands in for another, which is kept, tells of no loss.
    fn take_packet<P: Platform>(&mut self, engine: &Engine<P>, packet: &mut [u8], stands_in: bool) {
        let Some(parsed) = IpHeader::parse(packet) else { return };
        let (window_at, flags_at) = (parsed.header_bytes + WINDOW_AT, parsed.header_bytes + FLAGS_AT);
        let Some(segment) = Segment::parse(parsed.payload) else { return };
        if self.refuses(engine, &segment) {
            return;
        }
        // smoltcp looks at nothing else of a segment that is outside of the window.
        let is_acceptable = stands_in || self.is_acceptable(&segment);
        let cuts_end = self.cuts_end(&segment);
        if segment.has(flags::SYN) && self.state() == State::SynSent && segment.has(flags::ACK) {
            self.peer_start = segment.number;
            self.offer = segment.offer();
            (self.farthest, self.looked_at) = (segment.number.wrapping_add(1), segment.number);
            self.outlet.scale = if self.offer.scale.is_some() { OWN_SCALE } else { 0 };
            self.outlet.inner_scale = if self.offer.scale.is_some() { self.stack.scale() } else { 0 };
            self.outlet.acknowledged = segment.number;
            self.outlet.promised = segment.number.wrapping_add(1).wrapping_add(u32::from(u16::MAX));
            self.outlet.congestion.begin(segment.acknowledged, self.segment_bytes());
            // A SYN's window is not shifted.
            self.peer_window = segment.window >> self.offer.scale.unwrap_or(0);
        }
        if is_acceptable && !segment.has(flags::SYN | flags::RST) {
            self.peer_window = segment.window;
        }
        (self.active_ns, self.unheard_ns) = (P::now_ns(), 0);
        let end = segment.end();
        if is_acceptable && !segment.data.is_empty() && (!self.has_gap() || is_before(self.farthest, end)) {
            self.farthest = end;
        }
        let mut heed = Heed::Clamp;
        if is_acceptable && segment.has(flags::ACK) && !segment.has(flags::RST) {
            let shift = if segment.has(flags::SYN) { 0 } else { self.offer.scale.unwrap_or(0) };
            let (acknowledged, is_bare) = (segment.acknowledged, segment.data.is_empty());
            let (told, sent) = (segment.window, self.outlet.sent);
            let congestion = &mut self.outlet.congestion;
            heed = congestion.acknowledge(acknowledged, is_bare && !stands_in, told, sent, self.active_ns);
            let window = congestion.window_for(if stands_in { Heed::Differ } else { heed }, told, shift);
            congestion.give(acknowledged, is_bare, window);
            packet[window_at..window_at + 2].copy_from_slice(&window.to_be_bytes());
        }
        if cuts_end {
            packet[flags_at] &= !flags::FIN;
        }
        // Without memory for a pass the packet is lost, and will come again.
        let _ = self.input(engine, packet);
        if heed == Heed::Repeat {
            for _ in 0..congestion::DUPLICATES {
                let _ = self.repeat_acknowledgement(engine);
            }
        }
        self.outlet.unread = self.stack.peek().recv_queue();
    }

    /// Gives smoltcp the peer's last acknowledgement again, with the window of now.
    fn repeat_acknowledgement<P: Platform>(&mut self, engine: &Engine<P>) -> Result<(), OutOfMemory> {
        if matches!(self.state(), State::Closed | State::SynSent | State::SynReceived) {
            return Ok(());
        }
        let acknowledged = self.outlet.congestion.acknowledged();
        let draft = Draft {
            from: self.outlet.remote,
            to: self.outlet.local,
            number: self.next_number(self.has_peer_ended()),
            acknowledged: Some(acknowledged),
            flags: 0,
            window: self.inner_window(acknowledged, true),
            offer: None,
            data: &[],
        };
        self.input(engine, &draft.frame(true)?[ETHERNET_BYTES..])
    }

    /// The window that smoltcp gets in place of the peer's last one, with an acknowledgement.
    fn inner_window(&mut self, acknowledged: u32, is_bare: bool) -> u16 {
        let congestion = &mut self.outlet.congestion;
        let window = congestion.clamp(self.peer_window, self.offer.scale.unwrap_or(0));
        congestion.give(acknowledged, is_bare, window);
        window
    }

    /// Everything that time, a packet or the program has made due.
    pub fn pass<P: Platform>(&mut self, engine: &Engine<P>, options: &Options) -> Pass {
        let now_ns = P::now_ns();
        self.outlet.window = self.window(options);
        self.outlet.ttl = options.ttl_for(&engine.settings, self.outlet.remote.address);
        self.outlet.tos = options.tos_for(self.outlet.remote.address);
        self.outlet.congestion.is_reno = Options::is_on(&options.reno);
        self.take_held(engine);
        self.try_to_end(engine);
        self.set_timers(&engine.settings, options);
        let is_corked = self.is_corked(options, now_ns);
        let mut next_ns = None;
        if !is_corked {
            match self.output(engine) {
                Ok(false) => self.open_window(engine),
                Ok(true) => next_ns = Some(now_ns),
                // Memory may be there later.
                Err(OutOfMemory) => next_ns = Some(now_ns + CORK_NS),
            }
        }
        if is_corked {
            next_ns = self.corked_ns.map(|since_ns| since_ns + CORK_NS);
        } else if next_ns.is_none() && self.outlet.pending.is_none() {
            let Stack { interface, sockets, .. } = &mut self.stack;
            let due = interface.poll_at(instant(now_ns), sockets);
            next_ns =
                due.map(|due| (due.total_micros().max(0) as u64).saturating_mul(1000).max(now_ns + 1000));
        }
        if self.stack.receive_bytes + self.stack.send_bytes > 0 && self.state() == State::Established {
            let quiet_ns = self.active_ns + QUIET_NS;
            if now_ns < quiet_ns {
                next_ns = Some(next_ns.map_or(quiet_ns, |next_ns| next_ns.min(quiet_ns)));
            } else if self.stack.peek().send_queue() == 0 && self.stack.peek().recv_queue() == 0 {
                // If that fails, it keeps what it has.
                let _ = self.rebuild(engine, 0, 0);
            }
        }
        Pass { next_ns }
    }

    /// Tells the peer of room, when that is a good part of the window. smoltcp would tell of its storage.
    fn open_window<P: Platform>(&mut self, engine: &Engine<P>) {
        if !matches!(self.state(), State::Established | State::FinWait1 | State::FinWait2) {
            return;
        }
        self.outlet.unread = self.stack.peek().recv_queue();
        let next = self.next_number(false);
        let room = self.outlet.window.saturating_sub(self.outlet.unread);
        let units = (room >> self.outlet.scale).min(usize::from(u16::MAX));
        let edge = next.wrapping_add((units << self.outlet.scale) as u32);
        let more = edge.wrapping_sub(self.outlet.promised);
        if is_before(self.outlet.promised, edge) && more as usize >= self.outlet.window / 4 {
            self.acknowledge(engine, next);
        }
    }

    /// Whether bytes that make no full segment wait for more.
    fn is_corked(&mut self, options: &Options, now_ns: u64) -> bool {
        let queued = self.stack.peek().send_queue();
        if !Options::is_on(&options.cork) || queued == 0 || queued >= self.mtu || self.drains(options) {
            self.corked_ns = None;
            return false;
        }
        now_ns < *self.corked_ns.get_or_insert(now_ns) + CORK_NS && self.state() == State::Established
    }

    /// Tells smoltcp when to give up, to probe, and to wait for more.
    fn set_timers(&mut self, settings: &Settings, options: &Options) {
        let seconds = |option| u64::from(Options::get(option));
        let keeps_alive = Options::is_on(&options.keep_alive);
        let idle = seconds(&options.keep_idle);
        let retry_ns = match seconds(&options.user_timeout) {
            0 => patience_ns(RETRY_NS, Settings::get(&settings.retries)),
            milliseconds => milliseconds * 1_000_000,
        };
        let socket = self.stack.socket();
        let timeout_ns = if socket.state() == State::SynSent {
            Some(patience_ns(CONNECT_NS, Options::get(&options.syn_count)))
        } else if socket.send_queue() > 0
            || matches!(socket.state(), State::FinWait1 | State::Closing | State::LastAck)
        {
            Some(retry_ns.saturating_sub(self.unheard_ns))
        } else if keeps_alive {
            Some((idle + seconds(&options.keep_interval) * seconds(&options.keep_count)) * 1_000_000_000)
        } else {
            None
        };
        let timeout = timeout_ns.map(|timeout_ns| Duration::from_micros(timeout_ns / 1000));
        if socket.timeout() != timeout {
            socket.set_timeout(timeout);
        }
        let keep_alive = keeps_alive.then(|| Duration::from_secs(idle));
        if socket.keep_alive() != keep_alive {
            socket.set_keep_alive(keep_alive);
        }
        socket.set_nagle_enabled(!Options::is_on(&options.no_delay));
    }

    /// Whether the peer has ended its direction.
    pub fn has_peer_ended(&self) -> bool {
        matches!(
            self.state(),
            State::CloseWait | State::LastAck | State::Closing | State::TimeWait | State::Closed
        )
    }

    /// Whether the peer has not answered yet.
    pub fn is_connecting(&self) -> bool {
        matches!(self.state(), State::SynSent | State::SynReceived)
    }

    /// Whether there is a peer.
    pub fn is_connected(&self) -> bool {
        !matches!(self.state(), State::SynSent | State::SynReceived | State::Closed | State::TimeWait)
    }

    /// Whether a program may send, now or once the connection is made.
    pub fn may_send(&self) -> bool {
        self.stack.peek().may_send() && !self.is_ending
    }

    /// Whether storage limits a long path: nothing is taken until all is acknowledged, so that it can grow.
    pub(super) fn drains(&self, options: &Options) -> bool {
        let (bytes, congestion) = (self.stack.send_bytes, &self.outlet.congestion);
        self.was_short
            && congestion.round_trip_ns() >= LONG_PATH_NS
            && self.stack.peek().send_queue() > 0
            && bytes * 2 <= self.send_limit(options).next_power_of_two()
            && congestion.window() > bytes as u64
            && usize::from(self.peer_window) << self.offer.scale.unwrap_or(0) > bytes
    }

    /// The most that may wait to be acknowledged.
    fn send_limit(&self, options: &Options) -> usize {
        (Options::get(&options.send_buffer) as usize).clamp(FIRST_BYTES, STORAGE_MAX)
    }

    /// Room for what a program sends.
    pub fn room(&self, options: &Options) -> usize {
        if self.wants_storage || self.drains(options) {
            return 0;
        }
        let limit = self.send_limit(options);
        let socket = self.stack.peek();
        if socket.send_queue() == 0 { limit } else { self.stack.send_bytes - socket.send_queue() }
    }

    /// The room when nothing waits.
    pub const fn room_max(&self) -> usize {
        self.stack.send_bytes
    }

    /// Bytes that were received and not read.
    pub fn unread(&self) -> usize {
        self.stack.peek().recv_queue()
    }

    /// Bytes that were sent and not acknowledged.
    pub fn unacknowledged(&self) -> usize {
        self.stack.peek().send_queue()
    }

    /// A router said how long packets may be.
    pub fn shorten<P: Platform>(&mut self, engine: &Engine<P>, mtu: usize) {
        let mtu = mtu.max(if self.outlet.local.address.is_ipv4() { 576 } else { 1280 });
        if mtu < self.mtu {
            self.mtu = mtu;
            self.outlet.congestion.set_segment(self.segment_bytes());
            if self.stack.peek().send_queue() == 0 {
                let (receive, send) = (self.stack.receive_bytes, self.stack.send_bytes);
                let _ = self.rebuild(engine, receive, send);
            }
        }
    }

    /// Whether a number is of something that was sent and not acknowledged.
    pub fn is_in_flight(&self, number: u32) -> bool {
        let una = self.own_start.wrapping_add((self.sent - self.stack.peek().send_queue() as u64) as u32);
        !is_before(number, una) && !is_before(self.outlet.sent, number)
    }

    /// Congestion control's windows, and the time of a round trip.
    pub const fn pace(&self) -> Pace {
        self.outlet.congestion.pace()
    }

    /// The longest segment that is sent.
    pub fn segment_bytes(&self) -> usize {
        let header = if self.outlet.local.address.is_ipv4() { 40 } else { 60 };
        (self.mtu - header).min(usize::from(self.offer.segment_max).max(48))
    }
}
