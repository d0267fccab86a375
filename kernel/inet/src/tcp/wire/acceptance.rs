//! Segments that somebody may have made up who does not see the connection: RFC 9293, section 3.10.7.4, and RFC 5961.

use smoltcp::socket::tcp::State;

use crate::engine::Engine;
use crate::platform::Platform;
use crate::tcp::segment::{Segment, flags, is_before};
use crate::tcp::wire::Wire;

/// The pause between two answers to doubtful resets, as Linux has it.
const CHALLENGE_NS: u64 = 500_000_000;

/// The number behind the last byte of a segment.
const fn data_end(segment: &Segment<'_>) -> u32 {
    segment.number.wrapping_add(segment.data.len() as u32)
}

impl Wire {
    /// Whether both sides know each other's numbers.
    fn is_synchronized(&self) -> bool {
        !matches!(self.state(), State::Closed | State::Listen | State::SynSent | State::SynReceived)
    }

    /// The number behind the last one that smoltcp may take.
    fn edge(&self) -> u32 {
        let (promised, inner) = (self.outlet.promised, self.outlet.inner_edge);
        if is_before(promised, inner) { inner } else { promised }
    }

    /// Whether the peer's end comes with bytes of which the last are not taken: smoltcp would take the end.
    pub(super) fn cuts_end(&self, segment: &Segment<'_>) -> bool {
        segment.has(flags::FIN) && self.is_synchronized() && is_before(self.edge(), data_end(segment))
    }

    /// Whether a segment is within the window, as smoltcp will see it: of any other it takes neither bytes nor
    /// acknowledgement.
    pub(super) fn is_acceptable(&self, segment: &Segment<'_>) -> bool {
        if !self.is_synchronized() {
            return true;
        }
        let (next, edge) = (self.next_number(self.has_peer_ended()), self.edge());
        let (start, end) = (segment.number, data_end(segment));
        if segment.data.is_empty() {
            return start == next || is_before(next, start) && is_before(start, edge);
        }
        is_before(start, edge) && is_before(next, end)
    }

    /// Whether a segment has no effect: a request for the connection that is there, or a reset that has not the next
    /// number, as all others of the window are easy to guess. A peer that means it is told the right number, and resets
    /// with that: one that has begun anew, too. Neither have bytes behind the peer's end, which smoltcp would take.
    pub(super) fn refuses<P: Platform>(&mut self, engine: &Engine<P>, segment: &Segment<'_>) -> bool {
        let (is_doubtful, has_ended) = (segment.has(flags::SYN | flags::RST), self.has_peer_ended());
        let is_behind_end = has_ended && !segment.data.is_empty();
        if !(is_doubtful || is_behind_end) || !self.is_synchronized() {
            return false;
        }
        let (next, number) = (self.next_number(has_ended), segment.number);
        if !is_doubtful {
            return is_before(next, data_end(segment));
        }
        if segment.has(flags::RST) && number == next {
            return false;
        }
        let now_ns = P::now_ns();
        let is_inside = is_before(next, number) && is_before(number, self.outlet.promised);
        if (is_inside || !segment.has(flags::RST)) && now_ns >= self.challenge_ns {
            self.challenge_ns = now_ns + CHALLENGE_NS;
            self.acknowledge(engine, next);
        }
        true
    }
}
