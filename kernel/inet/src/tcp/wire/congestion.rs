//! Congestion control: how many bytes a connection may have under way.
//!
//! smoltcp takes its windows from the peer's acknowledgements and keeps no other limit here
//! (`CongestionControl::None`). Each segment that comes is given to it with the smaller of the peer's window and the
//! one kept here ([`Congestion::clamp`]), so the arithmetic is integers of ours: CUBIC (RFC 9438), or Reno, and
//! NewReno's recovery (RFC 6582). Acknowledgements and segments are all that is seen of smoltcp; a number before the
//! last one that was sent means a retransmission, and whether it was a timeout follows from counting duplicates as
//! smoltcp does.

use crate::tcp::segment::is_before;

/// CUBIC keeps 7/10 of the window after a loss, Reno a half.
const CUBIC_KEEPS: (u64, u64) = (7, 10);
const RENO_KEEPS: (u64, u64) = (1, 2);
/// The weight of Reno's window in CUBIC until it is where the loss was: 3 * (1 - 0.7) / (1 + 0.7).
const FRIENDLY: (u64, u64) = (9, 17);
/// Segments that may be sent first, RFC 6928.
const FIRST_SEGMENTS: u64 = 10;
/// Equal acknowledgements that mean a loss.
pub(super) const DUPLICATES: u8 = 3;
/// The farthest from the curve's middle that is computed, in milliseconds.
const FAR_MS: i64 = 40_000;
/// The window beyond which none grows.
const WINDOW_MAX: u64 = 1 << 30;

/// The part of a connection's congestion control that `TCP_INFO` tells: windows in segments.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Segments that may be under way.
    pub window: u32,
    /// The window up to which it grows fast.
    pub threshold: u32,
    /// The smoothed time of a round trip; 0 if none was measured.
    pub round_trip_ns: u64,
}

impl Default for Pace {
    /// That of a connection on which nothing was sent.
    fn default() -> Self {
        Self { window: FIRST_SEGMENTS as u32, threshold: i32::MAX as u32, round_trip_ns: 0 }
    }
}

/// How the connection fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Episode {
    Open,
    /// Equal acknowledgements told of a loss: until all up to `recover` is acknowledged.
    Recovering,
    /// Nothing was heard for too long: until all up to `recover` is acknowledged.
    TimedOut,
}

/// The treatment of a segment's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heed {
    /// The smaller of both windows.
    Clamp,
    /// The same as before: smoltcp counts it as a repetition.
    Keep,
    /// Another one than before: smoltcp must not count it as a repetition.
    Differ,
    /// The smaller of both, and the next segment is missing as well: smoltcp must send it.
    Repeat,
}

/// See the module. Windows are in bytes.
#[derive(Debug)]
pub(super) struct Congestion {
    pub(super) is_reno: bool,
    segment: u64,
    window: u64,
    threshold: u64,
    phase: Episode,
    /// The first byte that is not acknowledged, and the end of what was sent at the last loss.
    una: u32,
    recover: u32,
    /// The number that smoltcp sends next, and how many equal acknowledgements it has counted.
    front: u32,
    counted: u8,
    /// smoltcp will send the first segment again on their account.
    repeats: bool,
    /// How many equal ones told of the same gap, and whether nothing was acknowledged since the last timeout.
    duplicates: u8,
    is_unanswered: bool,
    /// The peer's window in its last segment, and what smoltcp was given last: a number and a window.
    told: u16,
    given_for: u32,
    given: u16,
    /// A timeout has made the window smaller, which smoltcp does not know yet.
    pub(super) has_shrunk: bool,
    /// The window before the last loss, and Reno's in its place.
    most: u64,
    prior: u64,
    friendly: u64,
    /// When the curve was begun, its origin, and how long after that it reaches it, in milliseconds.
    since_ns: Option<u64>,
    origin: u64,
    reach_ms: i64,
    /// Parts of bytes that the windows have grown.
    credit: u64,
    friendly_credit: u64,
    /// The segment that is timed, and the smoothed time.
    timed: Option<(u32, u64)>,
    round_trip_ns: u64,
    /// Losses that were noticed.
    pub(super) losses: u32,
}

impl Congestion {
    pub(super) const fn new(first: u32, segment: usize) -> Self {
        let segment = segment as u64;
        Self {
            is_reno: false,
            segment,
            window: segment * FIRST_SEGMENTS,
            threshold: WINDOW_MAX,
            phase: Episode::Open,
            una: first,
            recover: first,
            front: first,
            counted: 0,
            repeats: false,
            duplicates: 0,
            is_unanswered: false,
            told: u16::MAX,
            given_for: first,
            given: 0,
            has_shrunk: false,
            most: 0,
            prior: 0,
            friendly: 0,
            since_ns: None,
            origin: 0,
            reach_ms: 0,
            credit: 0,
            friendly_credit: 0,
            timed: None,
            round_trip_ns: 0,
            losses: 0,
        }
    }

    /// The connection begins: the longest segment is known, and the number of the first byte.
    pub(super) fn begin(&mut self, first: u32, segment: usize) {
        *self = Self { is_reno: self.is_reno, ..Self::new(first, segment) };
    }

    /// Packets have become shorter.
    pub(super) const fn set_segment(&mut self, segment: usize) {
        self.segment = segment as u64;
    }

    /// The part of it that `TCP_INFO` tells.
    pub(super) const fn pace(&self) -> Pace {
        let threshold = match self.threshold {
            WINDOW_MAX => i32::MAX as u32,
            bytes => (bytes / self.segment) as u32,
        };
        Pace { window: (self.window / self.segment) as u32, threshold, round_trip_ns: self.round_trip_ns }
    }

    /// The bytes that may be under way.
    pub(super) const fn window(&self) -> u64 {
        self.window
    }

    /// The smoothed time of a round trip; 0 if none was measured.
    pub(super) const fn round_trip_ns(&self) -> u64 {
        self.round_trip_ns
    }

    /// The number up to which all is acknowledged.
    pub(super) const fn acknowledged(&self) -> u32 {
        self.una
    }

    /// The window for smoltcp with a segment that was treated so, in place of the peer's.
    pub(super) fn window_for(&self, heed: Heed, peer: u16, shift: u8) -> u16 {
        let window = self.clamp(peer, shift);
        match heed {
            Heed::Keep => self.given,
            Heed::Differ if window == self.given && window > 1 => window - 1,
            _ => window,
        }
    }

    /// The window that smoltcp is to be given in place of the peer's, in units that are shifted by `shift`. Whole
    /// segments, so that no short ones are sent at its edge.
    pub(super) fn clamp(&self, peer: u16, shift: u8) -> u16 {
        let bytes = self.window / self.segment * self.segment;
        peer.min(u16::try_from(bytes >> shift).unwrap_or(u16::MAX).max(1))
    }

    /// smoltcp gets a window with an acknowledgement: counts repetitions as it does.
    pub(super) const fn give(&mut self, acknowledged: u32, is_bare: bool, window: u16) {
        let is_new = acknowledged != self.given_for;
        let is_same = is_bare && !is_new && window == self.given;
        self.given = window;
        self.given_for = acknowledged;
        // Something new keeps it from sending what it was about to send again.
        self.repeats &= !is_new;
        if is_same && is_before(acknowledged, self.front) {
            self.counted = self.counted.saturating_add(1);
            self.repeats |= self.counted == DUPLICATES;
        } else {
            self.counted = 0;
        }
    }

    /// smoltcp sends a segment with bytes or an end. `sent` is the number behind all that were sent before.
    pub(super) fn send(&mut self, number: u32, end: u32, sent: u32, now_ns: u64) {
        if self.told == 0 {
            // A question about a window that is closed.
            return;
        }
        if !is_before(number, self.front) {
            if self.timed.is_none() && !is_before(number, sent) {
                self.timed = Some((end, now_ns));
            }
            self.front = end;
            return;
        }
        self.timed = None;
        if self.una == self.front {
            // A byte that was acknowledged: a question whether the peer is there.
            return;
        }
        if core::mem::replace(&mut self.repeats, false) {
            return;
        }
        self.front = end;
        self.time_out(sent);
    }

    fn time_out(&mut self, sent: u32) {
        // Until something is acknowledged, another timeout is of the same loss.
        if !core::mem::replace(&mut self.is_unanswered, true) {
            self.reduce(u64::from(sent.wrapping_sub(self.una)));
            // The curve begins where the next loss is looked for.
            self.most = 0;
        }
        self.window = self.segment;
        self.phase = Episode::TimedOut;
        self.recover = sent;
        self.since_ns = None;
        self.has_shrunk = true;
    }

    /// A loss: less may be under way.
    fn reduce(&mut self, flight: u64) {
        let (kept, of) = if self.is_reno { RENO_KEEPS } else { CUBIC_KEEPS };
        self.prior = self.window;
        // Connections that find less room than before make some for others.
        self.most = if self.window < self.most { self.window * 17 / 20 } else { self.window };
        self.threshold = (flight * kept / of).max(2 * self.segment);
        self.since_ns = None;
        self.losses = self.losses.saturating_add(1);
    }

    /// The peer has acknowledged all before a number, in a segment without (`is_bare`) or with bytes. `sent` is the
    /// number behind all that were sent.
    pub(super) fn acknowledge(
        &mut self,
        acknowledged: u32,
        is_bare: bool,
        told: u16,
        sent: u32,
        now_ns: u64,
    ) -> Heed {
        let is_update = core::mem::replace(&mut self.told, told) != told;
        if is_before(acknowledged, self.una) || is_before(sent, acknowledged) {
            return Heed::Clamp;
        }
        let flight = u64::from(sent.wrapping_sub(self.una));
        if acknowledged == self.una {
            return match () {
                () if !is_bare || flight == 0 => Heed::Clamp,
                () if is_update => Heed::Differ,
                () => self.duplicate(sent, flight),
            };
        }
        let count = u64::from(acknowledged.wrapping_sub(self.una));
        self.una = acknowledged;
        (self.duplicates, self.is_unanswered) = (0, false);
        if is_before(self.front, acknowledged) {
            self.front = acknowledged;
        }
        if let Some((_, since_ns)) = self.timed.take_if(|(end, _)| !is_before(acknowledged, *end)) {
            self.measure(now_ns - since_ns);
        }
        match self.phase {
            Episode::Recovering if is_before(acknowledged, self.recover) => {
                // The segment that was sent again has come, and the next one is missing, too.
                self.window = self.window.saturating_sub(count).max(self.segment) + self.segment;
                return Heed::Repeat;
            }
            Episode::Recovering => {
                self.phase = Episode::Open;
                self.window = self.threshold.min((flight - count).max(self.segment) + self.segment);
            }
            Episode::Open | Episode::TimedOut => {
                if !is_before(acknowledged, self.recover) {
                    self.phase = Episode::Open;
                }
                self.grow(count, flight, now_ns);
            }
        }
        Heed::Clamp
    }

    /// The peer has acknowledged the same as before: a segment came that was not the next.
    fn duplicate(&mut self, sent: u32, flight: u64) -> Heed {
        match self.phase {
            Episode::Recovering => {
                self.window = (self.window + self.segment).min(WINDOW_MAX);
                Heed::Clamp
            }
            Episode::TimedOut => Heed::Clamp,
            Episode::Open => {
                self.duplicates = self.duplicates.saturating_add(1);
                if self.duplicates < DUPLICATES {
                    return Heed::Keep;
                }
                self.reduce(flight);
                self.window = self.threshold + u64::from(DUPLICATES) * self.segment;
                self.phase = Episode::Recovering;
                self.recover = sent;
                Heed::Keep
            }
        }
    }

    /// Notes the time of a round trip, RFC 6298.
    const fn measure(&mut self, time_ns: u64) {
        self.round_trip_ns = match self.round_trip_ns {
            0 => time_ns,
            old_ns => old_ns - old_ns / 8 + time_ns / 8,
        };
    }

    /// So many bytes of those under way were acknowledged.
    fn grow(&mut self, count: u64, flight: u64, now_ns: u64) {
        if self.window < self.threshold {
            // A window that is not used says nothing of the network.
            if flight * 2 >= self.window {
                self.window = (self.window + count).min(self.threshold).min(WINDOW_MAX);
            }
            return;
        }
        if flight + 3 * self.segment < self.window {
            // Time in which the program sends little is none of the curve's.
            self.since_ns = None;
            return;
        }
        let count = count.min(self.window);
        if self.is_reno {
            self.credit += self.segment * count;
        } else {
            let target = self.target(count, now_ns);
            self.credit += target.saturating_sub(self.window) * count;
        }
        self.window = (self.window + self.credit / self.window).min(WINDOW_MAX);
        self.credit %= self.window;
    }

    /// The window that CUBIC wants in a round trip.
    fn target(&mut self, count: u64, now_ns: u64) -> u64 {
        let since_ns = match self.since_ns {
            Some(since_ns) => since_ns,
            None => {
                self.since_ns = Some(now_ns);
                self.origin = self.most.max(self.window);
                let missing = self.origin - self.window;
                // C is 0.4 segments per second to the third.
                self.reach_ms = cube_root(missing * 2_500_000_000 / self.segment) as i64;
                self.friendly = self.window;
                self.friendly_credit = 0;
                now_ns
            }
        };
        // Reno's window, which is the larger one where round trips are short.
        let (weight, of) = if self.friendly >= self.prior { (1, 1) } else { FRIENDLY };
        self.friendly_credit += self.segment * count * weight / of;
        self.friendly += self.friendly_credit / self.window;
        self.friendly_credit %= self.window;
        let at_ns = now_ns - since_ns;
        if self.curve(at_ns) < self.friendly {
            self.window = self.window.max(self.friendly).min(WINDOW_MAX);
            return self.window;
        }
        self.curve(at_ns + self.round_trip_ns).min(self.window + self.window / 2)
    }

    /// The cubic curve, so long after its begin.
    fn curve(&self, at_ns: u64) -> u64 {
        let at_ms = i64::try_from(at_ns / 1_000_000).unwrap_or(FAR_MS);
        let from_ms = at_ms.saturating_sub(self.reach_ms).clamp(-FAR_MS, FAR_MS);
        // Milliseconds to the third, times segments of at most 64 KiB, fit into 63 bits.
        let bytes = from_ms * from_ms * from_ms * self.segment as i64 / 2_500_000_000;
        self.origin.saturating_add_signed(bytes).min(WINDOW_MAX)
    }
}

/// The integer part of the cube root.
fn cube_root(value: u64) -> u64 {
    let mut root: u64 = 0;
    // The root of 64 bits has 22.
    for bit in (0..22).rev() {
        let next = root | 1 << bit;
        if next.checked_pow(3).is_some_and(|cube| cube <= value) {
            root = next;
        }
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 1000;
    const MILLISECOND_NS: u64 = 1_000_000;

    /// A connection whose window is always used: a round trip is acknowledged at once, segment by segment.
    struct Path {
        control: Congestion,
        sent: u32,
        now_ns: u64,
        round_trip_ns: u64,
    }

    impl Path {
        fn new(is_reno: bool, round_trip_ms: u64) -> Self {
            let mut control = Congestion::new(0, SEGMENT as usize);
            control.is_reno = is_reno;
            Self { control, sent: 0, now_ns: 0, round_trip_ns: round_trip_ms * MILLISECOND_NS }
        }

        fn fill(&mut self) {
            while u64::from(self.sent.wrapping_sub(self.control.una)) + SEGMENT <= self.control.window {
                let end = self.sent.wrapping_add(SEGMENT as u32);
                self.control.send(self.sent, end, self.sent, self.now_ns);
                self.sent = end;
            }
        }

        fn round(&mut self) {
            self.fill();
            self.now_ns += self.round_trip_ns;
            let segments = self.sent.wrapping_sub(self.control.una) / SEGMENT as u32;
            for _ in 0..segments {
                let next = self.control.una.wrapping_add(SEGMENT as u32);
                assert_eq!(self.control.acknowledge(next, true, 60_000, self.sent, self.now_ns), Heed::Clamp);
                self.control.give(next, true, 60_000);
                self.fill();
            }
        }

        /// The first segment is lost, the others arrive, and it arrives when it is sent again.
        fn lose(&mut self) {
            self.fill();
            let una = self.control.una;
            for _ in 0..3 {
                assert_eq!(self.control.acknowledge(una, true, 60_000, self.sent, self.now_ns), Heed::Keep);
                self.control.give(una, true, 60_000);
            }
            assert!(self.control.repeats);
            self.control.send(una, una.wrapping_add(SEGMENT as u32), self.sent, self.now_ns);
            assert_eq!(
                self.control.acknowledge(self.sent, true, 60_000, self.sent, self.now_ns),
                Heed::Clamp
            );
            assert_eq!(self.control.phase, Episode::Open);
        }
    }

    #[test]
    fn cube_roots_are_exact() {
        for root in [0, 1, 2, 3, 10, 999, 1000, 65_535, 2_642_245] {
            let cube = root * root * root;
            assert_eq!(cube_root(cube), root);
            assert_eq!(cube_root(cube + 1), if root == 0 { 1 } else { root });
            if cube > 1 {
                assert_eq!(cube_root(cube - 1), root - 1);
            }
        }
        assert_eq!(cube_root(u64::MAX), 2_642_245);
    }

    #[test]
    fn the_window_doubles_until_the_first_loss() {
        let mut path = Path::new(false, 100);
        for doubled in 1..6 {
            path.round();
            let window = path.control.window;
            assert!(window >= FIRST_SEGMENTS * SEGMENT << doubled, "{window} after {doubled} round trips");
        }
    }

    #[test]
    fn cubic_returns_to_the_window_of_the_loss_and_goes_beyond() {
        let mut path = Path::new(false, 100);
        for _ in 0..5 {
            path.round();
        }
        let before = path.control.window;
        path.lose();
        assert!(path.control.threshold < before * 3 / 4);
        // 0.3 * 640 segments / 0.4 are 480, whose root is 7.8 seconds.
        for _ in 0..60 {
            path.round();
        }
        let plateau = path.control.window;
        assert!(plateau > before * 9 / 10 && plateau < before * 11 / 10, "{plateau} of {before}");
        for _ in 0..100 {
            path.round();
        }
        assert!(path.control.window > before * 3 / 2, "{} of {before}", path.control.window);
    }

    #[test]
    fn reno_grows_by_a_segment_in_each_round_trip() {
        let mut path = Path::new(true, 100);
        for _ in 0..5 {
            path.round();
        }
        path.lose();
        while path.control.window < path.control.threshold {
            path.round();
        }
        let start = path.control.window;
        for _ in 0..50 {
            path.round();
        }
        let grown = path.control.window - start;
        assert!((48 * SEGMENT..=52 * SEGMENT).contains(&grown), "{grown} bytes in 50 round trips");
    }

    #[test]
    fn cubic_is_no_slower_than_reno_where_round_trips_are_short() {
        let windows = [true, false].map(|is_reno| {
            let mut path = Path::new(is_reno, 1);
            for _ in 0..3 {
                path.round();
            }
            path.lose();
            for _ in 0..200 {
                path.round();
            }
            path.control.window
        });
        assert!(windows[1] * 10 >= windows[0] * 9, "Reno and CUBIC have {windows:?}");
    }

    #[test]
    fn a_timeout_begins_anew_and_a_second_one_takes_no_more() {
        let mut path = Path::new(false, 100);
        for _ in 0..4 {
            path.round();
        }
        path.fill();
        let (una, sent) = (path.control.una, path.sent);
        path.control.send(una, una.wrapping_add(1000), sent, path.now_ns);
        assert!(core::mem::take(&mut path.control.has_shrunk));
        assert_eq!(path.control.window, SEGMENT);
        let threshold = path.control.threshold;
        assert!(threshold > 10 * SEGMENT);
        path.control.send(una, una.wrapping_add(1000), sent, path.now_ns);
        path.control.has_shrunk = false;
        assert_eq!(path.control.threshold, threshold);
        // The rest is sent again as well, and that is no further timeout.
        let next = una.wrapping_add(1000);
        assert_eq!(path.control.acknowledge(next, true, 60_000, sent, path.now_ns), Heed::Clamp);
        assert_eq!(path.control.window, 2 * SEGMENT);
        path.control.send(next, next.wrapping_add(1000), sent, path.now_ns);
        assert!(!path.control.has_shrunk);
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut control = Congestion::new(0, SEGMENT as usize);
        for number in 0..100_u32 {
            let (start, end) = (number * 100, number * 100 + 100);
            control.send(start, end, start, 0);
            control.acknowledge(end, true, 60_000, end, MILLISECOND_NS);
        }
        assert_eq!(control.window, FIRST_SEGMENTS * SEGMENT);
    }

    #[test]
    fn news_of_the_window_are_no_loss() {
        let mut control = Congestion::new(0, SEGMENT as usize);
        control.send(0, 1000, 0, 0);
        for told in 1..10 {
            assert_eq!(control.acknowledge(0, true, told, 1000, 0), Heed::Differ);
        }
        assert_eq!(control.losses, 0);
    }
}
