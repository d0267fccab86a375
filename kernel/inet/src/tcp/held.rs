//! Waits of connections within the machine: `TCP_CORK`, by which bytes that make no full segment wait for more, and
//! `TCP_DEFER_ACCEPT`, by which an end that nobody has sent anything to waits before it can be accepted.
//!
//! Bytes that wait are in a ring of their own, so the reader's path knows nothing of them, and the writer's path asks
//! one pointer. Moments at which a wait ends are planned in the engine, in order; those of one end one at a time.

use crate::lock::SpinMutexGuard;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::Ordering;

use crate::engine::Engine;
use crate::error::{InetError, InetResult, MoveError};
use crate::platform::{Platform, Readiness, Waiters};
use crate::ring::ByteRing;
use crate::tcp::fused::{Inward, Pair, Shared, Side, fill};
use crate::tcp::{LOCAL_SEGMENT, Phase, TcpSocket};

/// How long corked bytes wait for more.
const CORK_NS: u64 = 200_000_000;
/// Ends of waits that may be planned; beyond that nothing waits.
const PLANS_MAX: usize = 4096;
/// Waits that one tick ends, and the pause before the next.
const ENDED_AT_ONCE: usize = 8;
const PAUSE_NS: u64 = 1_000_000;

/// An end that was not accepted yet because nothing has come for it.
pub(crate) struct Deferred<P: Platform> {
    pub listener: Weak<TcpSocket<P>>,
    pub accepted: Arc<TcpSocket<P>>,
    pub until_ns: u64,
}

/// The waits of what goes to one end.
pub(super) struct Held<P: Platform> {
    /// For the plans of the engine.
    pair: Weak<Pair<P>>,
    /// The sender has `TCP_CORK` on.
    is_corked: bool,
    ring: ByteRing,
    /// When the first byte in the ring was sent.
    since_ns: u64,
    is_planned: bool,
    deferred: Option<Deferred<P>>,
}

/// Moments at which something is due at an end, in order. Those of connections that are gone keep their memory until
/// then, or until others need it.
pub(crate) type Plans<P> = VecDeque<Plan<P>>;
type Plan<P> = (u64, Weak<Pair<P>>, Side);

/// Whether the connection of a plan is still there.
pub(crate) fn is_of_use<P: Platform>(plan: &Plan<P>) -> bool {
    plan.1.strong_count() > 0
}

impl<P: Platform> Held<P> {
    /// When the next wait ends.
    fn next_ns(&self) -> Option<u64> {
        let corked_ns = (!self.ring.is_empty()).then_some(self.since_ns + CORK_NS);
        let deferred_ns = self.deferred.as_ref().map(|deferred| deferred.until_ns);
        corked_ns.into_iter().chain(deferred_ns).min()
    }

    fn is_needed(&self) -> bool {
        self.is_corked || self.is_planned || self.deferred.is_some() || !self.ring.is_empty()
    }
}

impl<P: Platform> Inward<P> {
    /// The waits of the end, which it has from now on.
    fn held_mut(&mut self, pair: &Arc<Pair<P>>) -> InetResult<&mut Held<P>> {
        if self.held.is_none() {
            let held = Held {
                pair: Arc::downgrade(pair),
                is_corked: false,
                ring: ByteRing::new(),
                since_ns: 0,
                is_planned: false,
                deferred: None,
            };
            self.held = Some(P::reserved(size_of::<Held<P>>(), || Box::new(held))?);
        }
        self.held.as_deref_mut().ok_or(InetError::NoMemory)
    }

    /// Lets the bytes that wait go. Returns whether there were any.
    fn let_go(&mut self) -> bool {
        let limit = self.limit();
        let Some(held) = &mut self.held else { return false };
        let count = held.ring.len();
        if count == 0 || self.ring.reserve(count, limit.max(self.ring.len() + count)).is_err() {
            return false;
        }
        let (first, second) = held.ring.parts();
        for mut part in [first, second] {
            while !part.is_empty() {
                let free = self.ring.free(usize::MAX);
                let length = free.len().min(part.len());
                if length == 0 {
                    break;
                }
                free[..length].copy_from_slice(&part[..length]);
                self.ring.commit(length);
                part = &part[length..];
            }
        }
        held.ring.consume(count);
        held.ring.release();
        true
    }

    /// Takes the end that waits to be accepted.
    fn take_deferred(&mut self) -> Option<Deferred<P>> {
        self.held.as_mut()?.deferred.take()
    }

    /// Forgets waits that are over.
    fn tidy(&mut self) {
        if self.held.as_ref().is_some_and(|held| !held.is_needed()) {
            self.held = None;
        }
    }

    /// Has what waits come now, because the sender ends its direction. Returns the end that may be accepted.
    pub(super) fn end_waits(&mut self) -> Option<Deferred<P>> {
        self.let_go();
        let deferred = self.take_deferred();
        self.tidy();
        deferred
    }

    /// Drops what waits, because the connection is reset. Returns the end that nobody will accept.
    pub(super) fn drop_waits(&mut self) -> Option<Deferred<P>> {
        self.held.take().and_then(|held| held.deferred)
    }
}

impl<P: Platform> Deferred<P> {
    /// The end can be accepted from now on. Call it with no lock held.
    pub fn promote(self) {
        let Self { listener, accepted, .. } = self;
        if let Some(listener) = listener.upgrade() {
            let mut state = listener.state.lock();
            if let Phase::Listening(queue) = &mut state.phase
                && queue.reserve().is_ok()
            {
                // The queue may be full by now; there was room when the connection was made.
                queue.push(accepted);
                drop(state);
                listener.waiters().wake(Readiness::IN);
                return;
            }
        }
        Self { listener: Weak::new(), accepted, until_ns: 0 }.discard();
    }

    /// Nobody will accept the end: it is reset. Call it with no lock held.
    pub fn discard(self) {
        self.accepted.options.linger.store(0, Ordering::Relaxed);
        self.accepted.close();
    }
}

impl<P: Platform> Pair<P> {
    /// The sender at `side` corks what it sends, or no longer does.
    pub fn set_cork(self: &Arc<Self>, side: Side, is_on: bool) {
        let mut shared = self.shared.lock();
        let peer = shared.ends(side).1;
        if !is_on && peer.held.is_none() {
            return;
        }
        // Without memory nothing waits.
        let Ok(held) = peer.held_mut(self) else { return };
        held.is_corked = is_on;
        let has_come = !is_on && peer.let_go();
        peer.tidy();
        drop(shared);
        if has_come {
            self.wake(side.other(), Readiness::IN);
        }
    }

    /// Lets corked bytes go that wait at the moment.
    pub fn push(&self, side: Side) {
        let mut shared = self.shared.lock();
        let has_come = shared.ends(side).1.let_go();
        drop(shared);
        if has_come {
            self.wake(side.other(), Readiness::IN);
        }
    }

    /// Has the end that is accepted wait for the first bytes. Returns the wait if it cannot be planned.
    pub fn defer(self: &Arc<Self>, engine: &Engine<P>, deferred: Deferred<P>) -> Option<Deferred<P>> {
        let mut shared = self.shared.lock();
        let peer = shared.ends(Side::Client).1;
        let Ok(held) = peer.held_mut(self) else { return Some(deferred) };
        held.deferred = Some(deferred);
        if engine.plan(held, Side::Server) { None } else { held.deferred.take() }
    }

    /// Sends while something waits.
    #[cold]
    #[inline(never)]
    pub(super) fn send_held<F>(
        &self,
        engine: &Engine<P>,
        mut shared: SpinMutexGuard<'_, Shared<P>>,
        side: Side,
        wanted: usize,
        copy: &mut dyn FnMut(&mut [u8]) -> Result<usize, F>,
    ) -> Result<usize, MoveError<F>> {
        let peer = shared.ends(side).1;
        let limit = peer.limit();
        let mut has_come = false;
        let corked = |peer: &Inward<P>| {
            let held = peer.held.as_ref();
            (held.is_some_and(|held| held.is_corked), held.map_or(0, |held| held.ring.len()))
        };
        let (is_corked, waiting) = corked(peer);
        if !is_corked || peer.ring.len() + waiting >= limit {
            has_come = peer.let_go();
        }
        let mut result = Err(InetError::WouldBlock.into());
        if peer.ring.len() < limit {
            result = if is_corked {
                self.cork(engine, peer, side, (wanted, limit), copy)
            } else {
                fill(&mut peer.ring, limit, wanted, copy)
            };
        } else {
            peer.writer_waits = true;
        }
        let sent = *result.as_ref().unwrap_or(&0);
        peer.written += sent as u64;
        let (is_corked, waiting) = corked(peer);
        has_come |= !is_corked && sent > 0;
        if waiting >= LOCAL_SEGMENT.min(limit / 2) {
            has_come |= peer.let_go();
        }
        let deferred = if has_come { peer.take_deferred() } else { None };
        peer.tidy();
        let is_v6 = shared.is_v6;
        drop(shared);
        if has_come {
            engine.counters.segment::<P>(is_v6, sent);
            self.wake(side.other(), Readiness::IN);
        }
        if let Some(deferred) = deferred {
            deferred.promote();
        }
        result
    }

    /// Puts bytes where they wait for more.
    fn cork<F>(
        &self,
        engine: &Engine<P>,
        peer: &mut Inward<P>,
        side: Side,
        (wanted, limit): (usize, usize),
        copy: &mut dyn FnMut(&mut [u8]) -> Result<usize, F>,
    ) -> Result<usize, MoveError<F>> {
        let room = limit - peer.ring.len();
        let Some(held) = &mut peer.held else { return Ok(0) };
        let was_empty = held.ring.is_empty();
        let sent = fill(&mut held.ring, room, wanted, copy)?;
        if was_empty {
            held.since_ns = P::now_ns();
            if !engine.plan(held, side.other()) {
                peer.let_go();
            }
        }
        Ok(sent)
    }

    /// A moment that was planned for what goes to `side` has come.
    fn due(&self, engine: &Engine<P>, side: Side, now_ns: u64) {
        let mut shared = self.shared.lock();
        let own = shared.ends(side).0;
        let Some(held) = &mut own.held else { return };
        held.is_planned = false;
        let is_late = held.deferred.as_ref().is_some_and(|deferred| deferred.until_ns <= now_ns);
        let mut deferred = if is_late { held.deferred.take() } else { None };
        let has_come = held.since_ns + CORK_NS <= now_ns && own.let_go();
        if has_come {
            deferred = deferred.or_else(|| own.take_deferred());
        }
        if let Some(held) = &mut own.held
            && held.next_ns().is_some()
            && !engine.plan(held, side)
        {
            own.let_go();
        }
        own.tidy();
        drop(shared);
        if has_come {
            self.wake(side, Readiness::IN);
        }
        if let Some(deferred) = deferred {
            deferred.promote();
        }
    }
}

impl<P: Platform> Engine<P> {
    /// Plans the end of the next wait of an end, if that is not done yet. Returns whether it is.
    fn plan(&self, held: &mut Held<P>, side: Side) -> bool {
        let Some(due_ns) = held.next_ns().filter(|_| !held.is_planned) else { return true };
        let mut plans = self.plans.lock();
        if plans.len() >= PLANS_MAX {
            plans.retain(is_of_use);
        }
        if plans.len() >= PLANS_MAX || plans.try_reserve(1).is_err() {
            return false;
        }
        // Almost all waits are equally long, so the place is the last.
        let place = plans.partition_point(|plan| plan.0 <= due_ns);
        plans.insert(place, (due_ns, held.pair.clone(), side));
        drop(plans);
        held.is_planned = true;
        P::tick_at(&self.alarm, due_ns);
        true
    }

    /// Ends the waits that are due. Returns when the next one is.
    pub(crate) fn end_waits(&self, now_ns: u64) -> Option<u64> {
        for _ in 0..ENDED_AT_ONCE {
            let mut plans = self.plans.lock();
            let due_ns = plans.front()?.0;
            if due_ns > now_ns {
                return Some(due_ns);
            }
            let (_, pair, side) = plans.pop_front()?;
            drop(plans);
            if let Some(pair) = pair.upgrade() {
                pair.due(self, side, now_ns);
            }
        }
        Some(now_ns + PAUSE_NS)
    }
}
