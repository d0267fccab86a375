//! A connection between two sockets of this machine.
//!
//! No packet would ever be lost, reordered or changed between them, so none is made: the ends share two byte rings
//! (Solaris calls it TCP fusion). A program sees TCP all the same: half closes, resets, the errors that follow them,
//! and ports that stay taken.

use crate::lock::SpinMutex;
use alloc::boxed::Box;
use alloc::sync::Arc;

use crate::counters::Counters;
use crate::engine::Engine;
use crate::error::{InetError, MoveError};
use crate::options::Options;
use crate::platform::{OutOfMemory, Platform, Readiness, Waiters, try_arc};
use crate::ring::ByteRing;
use crate::tcp::held::{Deferred, Held};
use crate::tcp::wire::Pace;

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The end that connected.
    Client,
    /// The end that was accepted.
    Server,
}

impl Side {
    const fn index(self) -> usize {
        match self {
            Self::Client => 0,
            Self::Server => 1,
        }
    }

    pub const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// Bytes on their way to one end, and the state of that end.
pub(super) struct Inward<P: Platform> {
    pub ring: ByteRing,
    /// Bytes that wait for more, and an end that waits for bytes.
    pub held: Option<Box<Held<P>>>,
    /// The other end sends no more.
    ended: bool,
    /// This end reads no more, though it is open.
    reading_ended: bool,
    /// This end is closed.
    closed: bool,
    /// To be told to this end once.
    pub error: Option<InetError>,
    /// The other end found no room, and is to be woken when there is some.
    pub writer_waits: bool,
    /// Urgent data: the byte, until it is taken, and how many bytes were read before it.
    urgent: Option<(u8, u64)>,
    urgent_taken: bool,
    /// Bytes ever written and read.
    pub written: u64,
    read: u64,
    /// `SO_SNDBUF` of the other end and `SO_RCVBUF` of this one.
    send_buffer: usize,
    receive_buffer: usize,
}

impl<P: Platform> Default for Inward<P> {
    fn default() -> Self {
        Self {
            ring: ByteRing::new(),
            held: None,
            ended: false,
            reading_ended: false,
            closed: false,
            error: None,
            writer_waits: false,
            urgent: None,
            urgent_taken: false,
            written: 0,
            read: 0,
            send_buffer: 0,
            receive_buffer: 0,
        }
    }
}

impl<P: Platform> Inward<P> {
    /// How many bytes may wait here.
    pub const fn limit(&self) -> usize {
        self.send_buffer + self.receive_buffer
    }

    /// Whether a call that has bytes is at the mark of urgent data.
    #[cold]
    fn ends_call(&self, reading: Reading) -> bool {
        match reading {
            Reading::First | Reading::Peek(0) => false,
            Reading::Further => self.bytes_to_mark(0) == Some(0),
            Reading::Peek(skip) => self.bytes_to_mark(skip) == Some(0),
        }
    }

    /// How far the mark of urgent data is behind the first `skip` bytes; nothing if it is before them.
    #[inline]
    fn bytes_to_mark(&self, skip: usize) -> Option<usize> {
        let (_, at) = self.urgent?;
        usize::try_from(at.checked_sub(self.read + skip as u64)?).ok()
    }
}

pub(super) struct Shared<P: Platform> {
    inward: [Inward<P>; 2],
    /// The connection was reset.
    pub reset: bool,
    /// The end that ended its direction first.
    first: Option<Side>,
    /// It is one of IPv6.
    pub is_v6: bool,
}

impl<P: Platform> Default for Shared<P> {
    fn default() -> Self {
        Self { inward: [Inward::default(), Inward::default()], reset: false, first: None, is_v6: false }
    }
}

/// The rest of an end that was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remains {
    /// Nothing: the other end was the first to end, or the connection was reset.
    Nothing,
    /// Both have ended.
    TimeWait,
    /// The other end has not ended.
    FinWait,
}

/// See the module.
pub(crate) struct Pair<P: Platform> {
    pub(super) shared: SpinMutex<Shared<P>>,
    waiters: [Arc<P::Waiters>; 2],
}

/// The permissions and progress of an end, for `TCP_INFO` and ioctls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Bytes that can be read.
    pub unread: usize,
    /// Bytes that the peer has not taken.
    pub unsent: usize,
    /// Bytes ever received.
    pub received: u64,
    /// Bytes ever sent.
    pub sent: u64,
    /// The peer has ended its direction.
    pub peer_ended: bool,
    /// This end has ended its direction.
    pub ended: bool,
    /// Neither end can do anything more.
    pub over: bool,
    /// The next byte to read is the mark of urgent data.
    pub at_mark: bool,
    /// Bytes that can be read before that mark, wherever it is.
    pub before_mark: usize,
    /// Its congestion control.
    pub pace: Pace,
}

/// The place of a receive in its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// It takes what came first, for a call that has nothing yet.
    First,
    /// It takes more for a call that has bytes, which ends at the mark of urgent data.
    Further,
    /// It looks at what is behind so many bytes, and leaves all.
    Peek(usize),
}

impl Reading {
    /// The bytes to be passed over, if all are to stay.
    pub(super) const fn peeked(self) -> Option<usize> {
        match self {
            Self::Peek(skip) => Some(skip),
            Self::First | Self::Further => None,
        }
    }
}

/// The end of a direction.
const ENDED: Readiness = Readiness::IN.union(Readiness::READ_HANG_UP).union(Readiness::OUT);

impl<P: Platform> Pair<P> {
    pub fn new(client: &Arc<P::Waiters>, server: &Arc<P::Waiters>) -> Result<Arc<Self>, OutOfMemory> {
        let shared = Shared::default();
        let waiters = [client.clone(), server.clone()];
        try_arc::<P, _>(Self { shared: SpinMutex::new(shared), waiters })
    }

    /// Those who wait for the end that is accepted.
    pub fn server_waiters(&self) -> &Arc<P::Waiters> {
        &self.waiters[Side::Server.index()]
    }

    /// Says which version of IP it would have.
    pub fn set_v6(&self, is_v6: bool) {
        self.shared.lock().is_v6 = is_v6;
    }

    /// Forgets the connection.
    pub(super) fn renew(&self) {
        let old = core::mem::take(&mut *self.shared.lock());
        drop(old);
    }

    pub(super) fn wake(&self, side: Side, ready: Readiness) {
        self.waiters[side.index()].wake(ready);
    }

    /// Sends what `copy` puts into the free parts of the ring that it is given; `wanted` is how many bytes it has.
    pub fn send<F>(
        &self,
        engine: &Engine<P>,
        side: Side,
        wanted: usize,
        mut copy: impl FnMut(&mut [u8]) -> Result<usize, F>,
    ) -> Result<usize, MoveError<F>> {
        let mut shared = self.shared.lock();
        let (own, peer) = shared.ends(side);
        if let Some(error) = own.error.take() {
            return Err(error.into());
        }
        if peer.ended {
            return Err(InetError::BrokenPipe.into());
        }
        if wanted == 0 {
            return Ok(0);
        }
        if peer.closed {
            // The bytes would meet a reset.
            let error = if own.ended { InetError::BrokenPipe } else { InetError::ConnectionReset };
            shared.reset(Some((side, error)));
            engine.counters.tcp.resets_sent.count();
            engine.counters.tcp.established_resets.count();
            engine.counters.segment::<P>(shared.is_v6, wanted);
            drop(shared);
            self.wake(side, Readiness::all());
            return Ok(wanted);
        }
        if peer.held.is_some() {
            return self.send_held(engine, shared, side, wanted, &mut copy);
        }
        let limit = peer.limit();
        if peer.ring.len() >= limit {
            peer.writer_waits = true;
            return Err(InetError::WouldBlock.into());
        }
        let result = fill(&mut peer.ring, limit, wanted, &mut copy);
        let sent = *result.as_ref().unwrap_or(&0);
        peer.written += sent as u64;
        let is_v6 = shared.is_v6;
        drop(shared);
        if sent > 0 {
            engine.counters.segment::<P>(is_v6, sent);
            self.wake(side.other(), Readiness::IN);
        }
        result
    }

    /// Sends a byte of urgent data.
    pub fn send_urgent(&self, side: Side, byte: u8) -> Result<(), InetError> {
        let mut shared = self.shared.lock();
        let (own, peer) = shared.ends(side);
        if let Some(error) = own.error.take() {
            return Err(error);
        }
        if peer.ended || peer.closed {
            return Err(InetError::BrokenPipe);
        }
        peer.urgent = Some((byte, peer.written));
        peer.urgent_taken = false;
        drop(shared);
        self.wake(side.other(), Readiness::PRIORITY | Readiness::IN);
        Ok(())
    }

    /// Takes the byte of urgent data.
    pub fn receive_urgent(&self, side: Side, peek: bool) -> Result<u8, InetError> {
        let mut shared = self.shared.lock();
        let (own, _) = shared.ends(side);
        match own.urgent {
            Some(_) if own.urgent_taken => Err(InetError::Invalid),
            Some((byte, _)) => {
                own.urgent_taken = !peek;
                Ok(byte)
            }
            None if own.ended => Err(InetError::Invalid),
            None => Err(InetError::Invalid),
        }
    }

    /// Gives the bytes that are there to `copy`, which says how many it took. 0 is the end, or the mark of urgent data
    /// for a call that has bytes.
    pub fn receive<F>(
        &self,
        side: Side,
        reading: Reading,
        mut copy: impl FnMut(&[u8]) -> Result<usize, F>,
    ) -> Result<usize, MoveError<F>> {
        let peek = reading.peeked();
        let skip = peek.unwrap_or(0);
        let mut shared = self.shared.lock();
        let was_reset = shared.reset;
        let (own, _) = shared.ends(side);
        if own.urgent.is_some() && own.ends_call(reading) {
            return Ok(0);
        }
        if own.ring.is_empty() {
            if own.ended && !was_reset {
                return Ok(0);
            }
            if let Some(error) = own.error.take() {
                return Err(error.into());
            }
            if own.ended || own.reading_ended || was_reset {
                return Ok(0);
            }
            return Err(InetError::WouldBlock.into());
        }
        if skip > 0 && skip >= own.ring.len() {
            return if own.ended { Ok(0) } else { Err(InetError::WouldBlock.into()) };
        }
        let (first, second) = own.ring.parts();
        let (first, second) = if skip < first.len() {
            (&first[skip..], second)
        } else {
            (&second[skip - first.len()..], &[][..])
        };
        // Bytes before urgent data are read by a call of their own.
        let before_mark = own.bytes_to_mark(skip).unwrap_or(usize::MAX);
        let (mut taken, mut stopped) = (0, None);
        let most = if before_mark == 0 { usize::MAX } else { before_mark };
        for part in [first, second] {
            let part = &part[..part.len().min(most - taken)];
            if part.is_empty() {
                continue;
            }
            match copy(part) {
                Ok(count) => {
                    taken += count;
                    if count < part.len() {
                        break;
                    }
                }
                Err(error) => {
                    stopped = Some(error);
                    break;
                }
            }
        }
        let mut wakes = false;
        if peek.is_none() && taken > 0 {
            own.ring.consume(taken);
            own.read += taken as u64;
            if before_mark == 0 {
                own.urgent = None;
            }
            // Writers are woken when a third of the room is free, as in Linux.
            let limit = own.limit();
            if own.writer_waits && own.ring.len() <= limit - limit / 3 {
                own.writer_waits = false;
                wakes = true;
            }
        }
        drop(shared);
        if wakes {
            self.wake(side.other(), Readiness::OUT);
        }
        match stopped {
            Some(error) if taken == 0 => Err(MoveError::Copy(error)),
            _ => Ok(taken),
        }
    }

    /// Ends one or both directions.
    pub(super) fn shut_down(
        &self,
        counters: &Counters,
        side: Side,
        reader: Side,
        reading: bool,
        writing: bool,
    ) {
        let mut shared = self.shared.lock();
        shared.ends(reader).0.reading_ended |= reading;
        let peer = shared.ends(side).1;
        let has_ended = writing && !peer.ended;
        peer.ended |= writing;
        let mut deferred = None;
        if has_ended {
            shared.first.get_or_insert(side);
            deferred = shared.ends(side).1.end_waits();
            counters.segment::<P>(shared.is_v6, 0);
        }
        drop(shared);
        deferred.into_iter().for_each(Deferred::promote);
        self.wake(side, Readiness::all());
        if has_ended {
            self.wake(side.other(), ENDED | Readiness::HANG_UP);
        }
    }

    /// The end is closed; unread bytes, or `asked_abort`, make it a reset. Returns what is left of it.
    pub(super) fn close(&self, counters: &Counters, side: Side, reader: Side, asked_abort: bool) -> Remains {
        let mut shared = self.shared.lock();
        let (was_reset, is_v6) = (shared.reset, shared.is_v6);
        let peer_ended = shared.ends(side).1.ended;
        let own = shared.ends(reader).0;
        let abort = asked_abort || !own.ring.is_empty();
        let other_ended = own.ended;
        own.closed = true;
        let length = own.ring.len();
        own.ring.consume(length);
        own.ring.release();
        let was_first = *shared.first.get_or_insert(side) == side;
        let peer = shared.ends(side).1;
        let is_reset = abort && !peer.closed && !was_reset;
        let deferred = if is_reset { peer.drop_waits() } else { peer.end_waits() };
        if is_reset {
            let error = if peer.ended { InetError::BrokenPipe } else { InetError::ConnectionReset };
            shared.reset(Some((side.other(), error)));
            let tcp = &counters.tcp;
            tcp.resets_sent.count();
            tcp.established_resets.add(u64::from(!peer_ended) + u64::from(!other_ended));
            if asked_abort { &tcp.aborts_asked } else { &tcp.aborts_unread }.count();
        } else {
            peer.ended = true;
        }
        if !was_reset && !peer_ended {
            counters.segment::<P>(is_v6, 0);
        }
        drop(shared);
        deferred.into_iter().for_each(if is_reset { Deferred::discard } else { Deferred::promote });
        self.wake(side.other(), Readiness::all());
        match was_first && !abort && !was_reset {
            true if other_ended => Remains::TimeWait,
            true => Remains::FinWait,
            false => Remains::Nothing,
        }
    }

    /// The events that the end is ready for.
    pub(super) fn readiness(&self, side: Side, reader: Side, low_water: usize) -> Readiness {
        let mut shared = self.shared.lock();
        let is_reset = shared.reset;
        let own = shared.ends(reader).0;
        let mut ready = Readiness::empty();
        let ends_reading = own.ended || own.reading_ended || is_reset;
        let has_mark = own.urgent.is_some_and(|(_, at)| at == own.read && !own.ring.is_empty());
        let enough = own.ring.len() >= low_water.max(1) || has_mark;
        ready.set(Readiness::IN, enough || ends_reading);
        ready.set(Readiness::READ_HANG_UP, ends_reading);
        ready.set(Readiness::PRIORITY, own.urgent.is_some() && !own.urgent_taken);
        ready.set(Readiness::ERROR, own.error.is_some());
        let peer = shared.ends(side).1;
        let ends_writing = peer.ended || is_reset;
        let limit = peer.limit();
        let has_room = peer.ring.len() <= limit - limit / 3 && peer.ring.len() < limit;
        if !ends_writing && !has_room {
            peer.writer_waits = true;
        }
        ready.set(Readiness::OUT, ends_writing || has_room);
        ready.set(Readiness::HANG_UP, ends_reading && ends_writing);
        ready
    }

    /// Takes over the sizes of the end's buffers.
    pub(super) fn set_buffers(&self, side: Side, reader: Side, options: &Options) {
        let mut shared = self.shared.lock();
        shared.ends(reader).0.receive_buffer = Options::get(&options.receive_buffer) as usize;
        shared.ends(side).1.send_buffer = Options::get(&options.send_buffer) as usize;
    }

    /// How far the end is.
    pub(super) fn progress(&self, side: Side, reader: Side) -> Progress {
        let shared = self.shared.lock();
        let is_reset = shared.reset;
        let (own, peer) = (&shared.inward[reader.index()], &shared.inward[side.other().index()]);
        Progress {
            unread: own.ring.len(),
            unsent: peer.ring.len(),
            received: own.written,
            sent: peer.written,
            peer_ended: own.ended,
            ended: peer.ended,
            over: is_reset || own.ended && peer.ended,
            at_mark: own.urgent.is_some_and(|(_, at)| at == own.read),
            before_mark: own.bytes_to_mark(0).unwrap_or(usize::MAX).min(own.ring.len()),
            pace: Pace::default(),
        }
    }
}

/// Has `copy` put up to `wanted` bytes into a ring, whose contents stay within `limit`. An error counts if there was
/// nothing before it.
#[inline(always)]
pub(super) fn fill<F>(
    ring: &mut ByteRing,
    limit: usize,
    wanted: usize,
    copy: &mut (impl FnMut(&mut [u8]) -> Result<usize, F> + ?Sized),
) -> Result<usize, MoveError<F>> {
    ring.reserve(wanted, limit).map_err(InetError::from)?;
    let mut sent = 0;
    while sent < wanted {
        let free = ring.free(limit);
        let part = free.len().min(wanted - sent);
        if part == 0 {
            break;
        }
        match copy(&mut free[..part]) {
            Ok(count) => {
                ring.commit(count);
                sent += count;
                if count < part {
                    break;
                }
            }
            Err(error) if sent == 0 => return Err(MoveError::Copy(error)),
            Err(_) => break,
        }
    }
    Ok(sent)
}

impl<P: Platform> Shared<P> {
    /// The inward directions of an end and of its peer.
    pub fn ends(&mut self, side: Side) -> (&mut Inward<P>, &mut Inward<P>) {
        let [client, server] = &mut self.inward;
        match side {
            Side::Client => (client, server),
            Side::Server => (server, client),
        }
    }

    fn reset(&mut self, told: Option<(Side, InetError)>) {
        self.reset = true;
        for inward in &mut self.inward {
            inward.ended = true;
        }
        if let Some((side, error)) = told {
            self.ends(side).0.error = Some(error);
        }
    }
}
