//! A socket's part in a connection over the link, beside smoltcp's in [`Wire`].
//!
//! Packets wait in the socket's inbox. A worker, which runs at the level of whoever waits for the connection, takes
//! them and does what time has made due ([`TcpSocket::work`]). Sending runs in the caller, at its level.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use smoltcp::socket::tcp::State as WireState;

use crate::address::{Endpoint, Tuple};
use crate::engine::{Engine, Entry, TIME_WAIT_NS};
use crate::error::{InetError, InetResult, MoveError};
use crate::options::Options;
use crate::platform::{Platform, Readiness, Waiters};
use crate::settings::{Settings, patience_ns};
use crate::tcp::fused::Progress;
use crate::tcp::wire::Wire;
use crate::tcp::{Connecting, Phase, State, TcpSocket, TcpState};

/// Packets that are taken in one call of `work`.
const PACKETS_MAX: usize = 32;
/// Packets and bytes that may wait in an inbox; more are lost, as on a wire.
const INBOX_MAX: usize = 2048;

/// How long a closed connection waits until its peer takes more of what was sent, or its end: as long as nine
/// retransmissions take in Linux. A peer that answers without ever having room would keep the connection's memory.
const DRAIN_NS: u64 = patience_ns(200_000_000, 9);

/// How long a closed connection still waits for its peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Patience {
    /// Whether the peer has not taken all, how many bytes it has, and until when it may do nothing further.
    since: Option<((bool, u64), u64)>,
}

impl Patience {
    /// The end of the wait of `wait_ns`, which began when the connection had got so far.
    fn until_ns(&mut self, progress: (bool, u64), wait_ns: u64, now_ns: u64) -> u64 {
        match self.since {
            Some((last, until_ns)) if last == progress => until_ns,
            _ => {
                let until_ns = now_ns + wait_ns;
                self.since = Some((progress, until_ns));
                until_ns
            }
        }
    }
}

/// The state that waiters have been told.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    received: u64,
    has_peer_ended: bool,
    is_connected: bool,
    is_closed: bool,
    is_draining: bool,
}

/// The result of a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settled {
    wakes: Readiness,
    next_ns: Option<u64>,
    is_over: bool,
    waits_for_link: bool,
}

/// The next step of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Calls again at once, after others have had a turn.
    Again,
    /// Calls again at this moment, or when there is work.
    At(Option<u64>),
    /// Nothing: the connection is over.
    Over,
}

/// TCP's state in our words.
pub(super) const fn tcp_state(state: WireState) -> TcpState {
    match state {
        WireState::Closed => TcpState::Close,
        WireState::Listen => TcpState::Listen,
        WireState::SynSent => TcpState::SynSent,
        WireState::SynReceived => TcpState::SynReceived,
        WireState::Established => TcpState::Established,
        WireState::FinWait1 => TcpState::FinWait1,
        WireState::FinWait2 => TcpState::FinWait2,
        WireState::CloseWait => TcpState::CloseWait,
        WireState::Closing => TcpState::Closing,
        WireState::LastAck => TcpState::LastAck,
        WireState::TimeWait => TcpState::TimeWait,
    }
}

/// Whether a connection waits for the peer to acknowledge the end.
const fn is_draining(state: WireState) -> bool {
    matches!(state, WireState::FinWait1 | WireState::Closing | WireState::LastAck)
}

impl<P: Platform> TcpSocket<P> {
    /// The socket of a connection that a peer has asked a listener for.
    pub(super) fn accepted(
        listener: &Arc<Self>,
        local: Endpoint,
        remote: Endpoint,
        wire: Wire,
    ) -> InetResult<Arc<Self>> {
        let socket = Self::new(&listener.engine, listener.is_v6, listener.user)?;
        socket.options.copy_from(&listener.options);
        let wire = boxed::<P>(wire)?;
        let mut state = socket.state.lock();
        state.local = Some(local);
        state.remote = Some(remote);
        state.connecting = Connecting::Done;
        state.phase = Phase::Wire(wire);
        state.seen.is_connected = true;
        drop(state);
        Ok(socket)
    }

    /// Takes the place of the record of a half-open connection.
    pub(super) fn register_wire(self: &Arc<Self>, local: Endpoint, remote: Endpoint) -> InetResult<()> {
        let is_reusable = Options::is_on(&self.options.reuse_address);
        let tuple = Tuple::new(local, remote);
        let mut connections = self.engine.connections.lock();
        // Another CPU may have been faster.
        if !matches!(connections.get(&tuple), Some(Entry::HalfOpen(_))) {
            return Err(InetError::ConnectionAborted);
        }
        self.engine.tcp_ports.lock().hold(local.port, is_reusable)?;
        connections.insert(tuple, Entry::Wire(self.clone()));
        drop(connections);
        self.state.lock().registered = Some((tuple, is_reusable));
        Ok(())
    }

    /// Asks the peer for a connection.
    pub(super) fn start_wire(
        self: &Arc<Self>,
        state: &mut State<P>,
        local: Endpoint,
        remote: Endpoint,
    ) -> InetResult<()> {
        let wire = boxed::<P>(Wire::connecting(&self.engine, local, remote)?)?;
        P::start_worker(self.clone())?;
        state.phase = Phase::Wire(wire);
        // The worker sends the SYN.
        self.waiters.work();
        Ok(())
    }

    /// Whether no more connections may wait.
    pub(super) fn is_queue_full(&self) -> bool {
        match &self.state.lock().phase {
            Phase::Listening(listener) => listener.is_full(),
            _ => true,
        }
    }

    /// A packet has come over the link.
    pub(crate) fn receive_packet(&self, packet: &[u8]) {
        let mut copy = Vec::new();
        if copy.try_reserve_exact(packet.len()).is_err() {
            return;
        }
        copy.extend_from_slice(packet);
        let mut inbox = self.inbox.lock();
        if inbox.len() >= INBOX_MAX || inbox.try_reserve(1).is_err() {
            return;
        }
        inbox.push_back(copy);
        let is_first = inbox.len() == 1;
        drop(inbox);
        if is_first {
            self.waiters.work();
        }
    }

    /// Something is to be done for the connection.
    pub(crate) fn has_work(&self) {
        self.waiters.work();
    }

    /// Takes packets that have come, and does what time has made due.
    pub fn work(self: &Arc<Self>) -> Work {
        let mut state = self.state.lock();
        let mut is_left = false;
        for taken in 0.. {
            if taken == PACKETS_MAX {
                is_left = true;
                break;
            }
            let Some(packet) = self.inbox.lock().pop_front() else { break };
            self.take_packet(&mut state, packet);
        }
        let settled = self.settle(&mut state);
        state.planned_ns = settled.next_ns.unwrap_or(u64::MAX);
        drop(state);
        if settled.waits_for_link {
            let mut waiting = self.engine.waits_for_link.lock();
            if waiting.try_reserve(1).is_ok() {
                waiting.push(Arc::downgrade(self));
            }
        }
        if !settled.wakes.is_empty() {
            self.waiters.wake(settled.wakes);
        }
        match () {
            () if settled.is_over => Work::Over,
            () if is_left => Work::Again,
            () => Work::At(settled.next_ns),
        }
    }

    fn take_packet(&self, state: &mut State<P>, packet: Vec<u8>) {
        let Phase::Wire(wire) = &mut state.phase else { return };
        let before = wire.state();
        wire.receive_packet(&self.engine, packet, &self.options);
        if wire.state() == WireState::Closed && before != WireState::Closed {
            count_end(&self.engine, before);
            let error = match before {
                WireState::SynSent => Some(InetError::ConnectionRefused),
                WireState::CloseWait => Some(InetError::BrokenPipe),
                WireState::LastAck | WireState::Closing | WireState::TimeWait => None,
                _ => Some(InetError::ConnectionReset),
            };
            state.error = state.error.or(error);
        }
    }

    /// How long a closed connection waits for the peer's end: `TCP_LINGER2`, or the setting.
    pub(super) fn end_wait_ns(&self) -> u64 {
        let seconds = match self.options.linger2.load(Ordering::Relaxed) {
            0 => Settings::get(&self.engine.settings.fin_timeout),
            own => u32::try_from(own).unwrap_or(0),
        };
        u64::from(seconds) * 1_000_000_000
    }

    /// Has the connection do what is due, and finds out what those who wait must hear.
    pub(super) fn settle(&self, state: &mut State<P>) -> Settled {
        let mut settled =
            Settled { wakes: Readiness::empty(), next_ns: None, is_over: true, waits_for_link: false };
        let Phase::Wire(wire) = &mut state.phase else { return settled };
        if state.closed && wire.unread() > 0 && wire.state() != WireState::Closed {
            // Nobody will read it, and the peer must know.
            self.engine.counters.tcp.aborts_unread.count();
            abort(&self.engine, wire);
        }
        let before = wire.state();
        settled.next_ns = wire.pass(&self.engine, &self.options).next_ns;
        settled.waits_for_link = wire.waits_for_link();
        let now = wire.state();
        if now == WireState::Closed && before != WireState::Closed {
            count_end(&self.engine, before);
            state.error = state.error.or(state.soft_error).or(Some(InetError::TimedOut));
        }
        if state.closed && (now == WireState::FinWait2 || is_draining(now)) {
            let wait_ns = if is_draining(now) { DRAIN_NS } else { self.end_wait_ns() };
            let acknowledged = wire.sent - wire.unacknowledged() as u64;
            let until_ns = state.patience.until_ns((is_draining(now), acknowledged), wait_ns, P::now_ns());
            if P::now_ns() >= until_ns {
                abort(&self.engine, wire);
            }
            settled.next_ns = Some(settled.next_ns.map_or(until_ns, |next_ns| next_ns.min(until_ns)));
        }
        let seen = Seen {
            received: wire.received + wire.unread() as u64,
            has_peer_ended: wire.has_peer_ended(),
            is_connected: !wire.is_connecting(),
            is_closed: now == WireState::Closed,
            is_draining: is_draining(now),
        };
        let old = core::mem::replace(&mut state.seen, seen);
        if seen.received > old.received {
            settled.wakes |= Readiness::IN;
        }
        if seen.has_peer_ended && !old.has_peer_ended {
            settled.wakes |= Readiness::IN | Readiness::READ_HANG_UP;
        }
        if seen.is_connected && !old.is_connected {
            settled.wakes |= Readiness::OUT;
        }
        let has_drained = old.is_draining && !seen.is_draining;
        if seen.is_closed && !old.is_closed || has_drained {
            settled.wakes = Readiness::all();
        }
        if wire.writer_waits {
            let (limit, room) = (wire.room_max(), wire.room(&self.options));
            if room > 0 && room >= limit / 3 {
                wire.writer_waits = false;
                settled.wakes |= Readiness::OUT;
            }
        }
        // A reset still has to leave, which makes smoltcp forget the peer.
        settled.is_over = match now {
            WireState::Closed => !settled.waits_for_link,
            WireState::TimeWait => true,
            _ => false,
        };
        if settled.is_over {
            let numbers = wire.last_numbers();
            let waits = now == WireState::TimeWait;
            self.unregister(state, waits.then_some(TIME_WAIT_NS), waits.then_some(numbers));
        }
        settled
    }

    /// Does what a pass outside of the worker leaves: call it with no lock held.
    pub(super) fn finish(&self, settled: Settled) {
        if !settled.wakes.is_empty() {
            self.waiters.wake(settled.wakes);
        }
        let next_ns = settled.next_ns.unwrap_or(u64::MAX);
        let mut state = self.state.lock();
        let is_sooner = settled.is_over || settled.waits_for_link || next_ns < state.planned_ns;
        if is_sooner {
            state.planned_ns = next_ns;
        }
        drop(state);
        if is_sooner {
            self.waiters.work();
        }
    }

    /// Sends over the link; nothing if there is no such connection.
    pub(super) fn send_over_link<F>(
        &self,
        wanted: usize,
        copy: &mut dyn FnMut(&mut [u8]) -> Result<usize, F>,
    ) -> Option<Result<usize, MoveError<F>>> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let Phase::Wire(wire) = &mut state.phase else { return None };
        if let Some(error) = state.error.take() {
            return Some(Err(error.into()));
        }
        if wire.is_connecting() {
            return Some(Err(InetError::WouldBlock.into()));
        }
        if !wire.may_send() {
            return Some(Err(InetError::BrokenPipe.into()));
        }
        if wanted == 0 {
            return Some(Ok(0));
        }
        let result = match wire.send(&self.engine, &self.options, wanted, copy) {
            Ok(Ok(count)) => Ok(count),
            Ok(Err(error)) => Err(MoveError::Copy(error)),
            Err(error) => Err(error.into()),
        };
        if result.is_err() {
            return Some(result);
        }
        let settled = self.settle(state);
        self.finish_locked(state, settled);
        Some(result)
    }

    /// As [`TcpSocket::finish`], under the lock of the state.
    fn finish_locked(&self, state: &mut State<P>, settled: Settled) {
        if !settled.wakes.is_empty() {
            self.waiters.wake(settled.wakes);
        }
        let next_ns = settled.next_ns.unwrap_or(u64::MAX);
        if settled.is_over || settled.waits_for_link || next_ns < state.planned_ns {
            state.planned_ns = next_ns;
            self.waiters.work();
        }
    }

    /// Receives what has come over the link; nothing if there is no such connection.
    pub(super) fn receive_over_link<F>(
        &self,
        peek: Option<usize>,
        copy: &mut dyn FnMut(&[u8]) -> Result<usize, F>,
    ) -> Option<Result<usize, MoveError<F>>> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let Phase::Wire(wire) = &mut state.phase else { return None };
        if wire.is_connecting() {
            return Some(Err(InetError::WouldBlock.into()));
        }
        let result = wire.receive::<P, F>(peek, copy);
        let is_moved = matches!(result, Ok(Ok(1..)));
        let result = match result {
            Ok(Ok(count)) => Ok(count),
            Ok(Err(error)) => Err(MoveError::Copy(error)),
            Err(error) => match state.error.take() {
                Some(error) => Err(error.into()),
                None if state.reading_ended || error == InetError::NotConnected => Ok(0),
                None => Err(error.into()),
            },
        };
        if is_moved && peek.is_none() {
            // The peer may hear of the room.
            let settled = self.settle(state);
            self.finish_locked(state, settled);
        }
        Some(result)
    }

    /// shutdown(2) of a connection over the link.
    pub(super) fn end_over_link(
        &self,
        state: &mut State<P>,
        reading: bool,
        writing: bool,
    ) -> InetResult<Settled> {
        let Phase::Wire(wire) = &mut state.phase else { return Err(InetError::NotConnected) };
        if !wire.is_connected() {
            return Err(InetError::NotConnected);
        }
        if writing {
            wire.end(&self.engine, &self.options, true);
        }
        state.reading_ended |= reading;
        let mut settled = self.settle(state);
        settled.wakes = Readiness::all();
        Ok(settled)
    }

    /// Whether the end of this side's direction, or bytes before it, have not reached the peer.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        match &self.state.lock().phase {
            Phase::Wire(wire) => is_draining(wire.state()),
            _ => false,
        }
    }

    /// Resets a connection over the link, if it is one.
    pub(super) fn abort_over_link(&self, state: &mut State<P>) {
        if let Phase::Wire(wire) = &mut state.phase {
            abort(&self.engine, wire);
            let settled = self.settle(state);
            self.finish_locked(state, settled);
        }
    }

    /// Nobody has the connection open any more.
    pub(super) fn orphan(&self, state: &mut State<P>, aborts: bool) -> Settled {
        if let Phase::Wire(wire) = &mut state.phase {
            if aborts || wire.unread() > 0 || wire.is_connecting() {
                let tcp = &self.engine.counters.tcp;
                if wire.is_connected() && aborts {
                    tcp.aborts_asked.count();
                } else if wire.unread() > 0 {
                    tcp.aborts_unread.count();
                }
                abort(&self.engine, wire);
            } else {
                wire.end(&self.engine, &self.options, false);
            }
        }
        self.settle(state)
    }

    /// The events that a connection over the link is ready for.
    pub(super) fn readiness_over_link(&self, state: &mut State<P>) -> Readiness {
        let mut ready = Readiness::empty();
        let Phase::Wire(wire) = &mut state.phase else { return ready };
        ready.set(Readiness::ERROR, state.error.is_some());
        if wire.is_connecting() {
            return ready;
        }
        let ends_reading = wire.has_peer_ended() || state.reading_ended;
        let low_water = Options::get(&self.options.low_water).max(1) as usize;
        ready.set(Readiness::IN, wire.unread() >= low_water || ends_reading);
        ready.set(Readiness::READ_HANG_UP, ends_reading);
        let ends_writing = !wire.may_send();
        let has_room = wire.room(&self.options) > 0 && wire.room(&self.options) >= wire.room_max() / 3;
        if !ends_writing && !has_room {
            wire.writer_waits = true;
        }
        ready.set(Readiness::OUT, ends_writing || has_room);
        ready.set(Readiness::HANG_UP, ends_reading && ends_writing);
        ready
    }

    /// How far a connection over the link is.
    pub(super) fn progress_over_link(&self) -> Progress {
        let state = self.state.lock();
        let Phase::Wire(wire) = &state.phase else { return Progress::default() };
        Progress {
            unread: wire.unread(),
            unsent: wire.unacknowledged(),
            received: wire.received + wire.unread() as u64,
            sent: wire.sent,
            peer_ended: wire.has_peer_ended(),
            ended: !wire.may_send(),
            over: !wire.is_connected(),
            at_mark: false,
            before_mark: wire.unread(),
            pace: wire.pace(),
        }
    }

    /// A router or the peer's machine reported an error for a segment with this number.
    pub(crate) fn network_error(self: &Arc<Self>, number: u32, error: InetError, mtu: u32) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let Phase::Wire(wire) = &mut state.phase else { return };
        if !wire.is_in_flight(number) {
            return;
        }
        if error == InetError::MessageTooLong {
            wire.shorten(&self.engine, mtu as usize);
        } else if wire.is_connecting() {
            // There will be no answer.
            state.error = Some(error);
            abort(&self.engine, wire);
            self.waiters.wake(Readiness::all());
        } else {
            state.soft_error = Some(error);
        }
        self.waiters.work();
    }

    /// Options that the connection acts on have changed.
    pub fn timers_changed(&self) {
        if matches!(self.state.lock().phase, Phase::Wire(_)) {
            self.waiters.work();
        }
    }

    /// Whether closing resets the connection.
    #[must_use]
    pub fn resets_on_close(&self) -> bool {
        self.options.linger.load(Ordering::Relaxed) == 0
    }
}

/// Resets a connection.
fn abort<P: Platform>(engine: &Engine<P>, wire: &mut Wire) {
    count_end(engine, wire.state());
    wire.abort();
}

/// Counts a connection that is closed without the end that is due in a state.
fn count_end<P: Platform>(engine: &Engine<P>, state: WireState) {
    let tcp = &engine.counters.tcp;
    match state {
        WireState::SynSent | WireState::SynReceived => tcp.attempts_failed.count(),
        WireState::Established | WireState::CloseWait => tcp.established_resets.count(),
        _ => {}
    }
}

fn boxed<P: Platform>(wire: Wire) -> InetResult<Box<Wire>> {
    Ok(P::reserved(size_of::<Wire>(), || Box::new(wire))?)
}
