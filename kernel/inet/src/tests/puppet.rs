//! A peer that is played by hand, segment by segment: it can do what no TCP does.

use super::malformed::finish;
use super::*;
use crate::ip::{ETHERNET_BYTES, IpHeader, protocol};
use crate::tcp::TcpState;
use crate::tcp::segment::{Draft, Offer, Segment, flags, is_before};

const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const SECOND_MS: u64 = 1000;
/// The host beside it that is tested.
const HOST: usize = 1;

/// A segment of the host.
#[derive(Debug)]
struct Heard {
    number: u32,
    acknowledged: u32,
    flags: u8,
    data: Vec<u8>,
}

impl Heard {
    const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn end(&self) -> u32 {
        let ends = self.has(flags::SYN) || self.has(flags::FIN);
        self.number.wrapping_add(self.data.len() as u32 + u32::from(ends))
    }
}

/// The peer of a socket of the second host. Its windows are not shifted, nor are the host's.
struct Puppet {
    net: Net,
    own: Endpoint,
    server: Arc<TcpSocket<Simulated>>,
    listener: Arc<TcpSocket<Simulated>>,
    /// The number of what it says next, and the one that it expects.
    next: u32,
    expected: u32,
    window: u16,
}

impl Puppet {
    /// A peer that has connected.
    fn new(seed: u64) -> Self {
        let net = Net::new(seed, Faults::default());
        let listener = net.socket(HOST);
        listener.bind(Endpoint::new(V4[HOST], 80)).unwrap();
        listener.listen(4).unwrap();
        let own = Endpoint::new(ADDRESS.into(), 4000);
        let (server, next) = (net.socket(HOST), random() as u32);
        let mut puppet = Self { net, own, server, listener, next, expected: 0, window: u16::MAX };
        puppet.speak(next, None, flags::SYN, &[]);
        let heard = puppet.hear();
        let [answer] = heard.as_slice() else { panic!("{heard:?}") };
        assert!(answer.has(flags::SYN) && answer.acknowledged == next.wrapping_add(1));
        (puppet.next, puppet.expected) = (next.wrapping_add(1), answer.end());
        puppet.say(&[]);
        assert!(puppet.hear().is_empty());
        puppet.server = puppet.listener.accept().unwrap();
        puppet
    }

    fn speak(&self, number: u32, acknowledged: Option<u32>, given: u8, data: &[u8]) {
        let is_syn = given & flags::SYN != 0;
        let offer = Offer { segment_max: 1000, scale: None, selective: false };
        let draft = Draft {
            from: self.own,
            to: Endpoint::new(V4[HOST], 80),
            number,
            acknowledged,
            flags: given,
            window: self.window,
            offer: Some(offer).filter(|_| is_syn),
            data,
        };
        let mut frame = draft.frame(true).unwrap();
        finish(&mut frame, &draft.header(), self.net.hosts[HOST].link.mac);
        self.net.hosts[HOST].engine.receive(&frame, true);
    }

    /// Says something from `offset` bytes behind what it should say next on, without counting it.
    fn say_at(&self, offset: i32, given: u8, data: &[u8]) {
        self.speak(self.next.wrapping_add_signed(offset), Some(self.expected), given, data);
    }

    /// Says what comes next.
    fn say(&mut self, data: &[u8]) {
        self.say_at(0, 0, data);
        self.next = self.next.wrapping_add(data.len() as u32);
    }

    /// Everything that the host says now.
    fn hear(&self) -> Vec<Heard> {
        let host = &self.net.hosts[HOST];
        let mut heard = Vec::new();
        loop {
            while work() {}
            let sent = core::mem::take(&mut *host.link.sent.lock().unwrap());
            if sent.is_empty() {
                break;
            }
            for (frame, _) in sent {
                match [frame[12], frame[13]] {
                    [8, 6] => self.answer_arp(&frame),
                    [8, 0] => heard.extend(parse(&frame)),
                    _ => {}
                }
            }
            if host.link.was_refused.swap(false, Ordering::Relaxed) {
                host.engine.link_has_room();
            }
        }
        heard
    }

    fn answer_arp(&self, question: &[u8]) {
        if question[38..42] != ADDRESS.octets() || question[21] != 1 {
            return;
        }
        let mut answer = question.to_vec();
        answer[21] = 2;
        answer[..6].copy_from_slice(&question[6..12]);
        answer[6..12].copy_from_slice(&MAC);
        answer[22..28].copy_from_slice(&MAC);
        answer[28..32].copy_from_slice(&question[38..42]);
        answer[32..38].copy_from_slice(&question[22..28]);
        answer[38..42].copy_from_slice(&question[28..32]);
        self.net.hosts[HOST].engine.receive(&answer, true);
    }

    /// Everything that the host says in so many milliseconds, with `react` called for each segment.
    fn pass_with(&mut self, milliseconds: u64, mut react: impl FnMut(&mut Self, &Heard)) -> Vec<Heard> {
        let end_ns = NOW_NS.get() + milliseconds * MILLISECOND_NS;
        let mut all = Vec::new();
        loop {
            let heard = self.hear();
            for segment in &heard {
                react(self, segment);
            }
            let is_quiet = heard.is_empty();
            all.extend(heard);
            assert!(all.len() < 10_000, "a storm of segments: {:?}", &all[all.len() - 4..]);
            if !is_quiet {
                continue;
            }
            let tick = self.net.hosts[HOST].engine.tick();
            let workers: Vec<u64> =
                WORKERS.with_borrow(|all| all.iter().filter_map(|worker| worker.next_ns).collect());
            match tick.into_iter().chain(workers).min() {
                Some(next_ns) if next_ns <= end_ns => NOW_NS.set(next_ns.max(NOW_NS.get() + 1)),
                _ => break,
            }
        }
        NOW_NS.set(end_ns);
        all
    }

    fn pass(&mut self, milliseconds: u64) -> Vec<Heard> {
        self.pass_with(milliseconds, |_, _| {})
    }

    /// Acknowledges what it hears.
    fn take(&mut self, heard: &Heard) {
        if !is_before(self.expected, heard.number) && is_before(self.expected, heard.end()) {
            self.expected = heard.end();
        }
        self.say_at(0, 0, &[]);
    }

    /// All that the program has not read.
    fn read(&self) -> Vec<u8> {
        receive(&self.server, 1 << 20).unwrap_or_default()
    }

    fn is_alive(&self) -> bool {
        self.server.tcp_state() == TcpState::Established
    }

    /// The connections that the host knows beside the listener.
    fn left(&self) -> usize {
        self.net.hosts[HOST].engine.tcp_sockets().unwrap().len() - 1
    }
}

fn parse(frame: &[u8]) -> Option<Heard> {
    let packet = IpHeader::parse(&frame[ETHERNET_BYTES..])?;
    if packet.header.protocol != protocol::TCP {
        return None;
    }
    let segment = Segment::parse(packet.payload)?;
    Some(Heard {
        number: segment.number,
        acknowledged: segment.acknowledged,
        flags: segment.flags,
        data: segment.data.to_vec(),
    })
}

#[test]
fn only_a_reset_with_the_right_number_counts() {
    let mut puppet = Puppet::new(1);
    puppet.say(b"bytes");
    puppet.pass(SECOND_MS);
    // Outside of the window nothing answers.
    for offset in [-1, -1000, 70_000, 1 << 30, i32::MIN] {
        puppet.say_at(offset, flags::RST, &[]);
        assert!(puppet.pass(SECOND_MS).is_empty() && puppet.is_alive(), "a reset at {offset}");
    }
    for offset in [1, 100, 60_000] {
        puppet.say_at(offset, flags::RST, &[]);
        let heard = puppet.pass(SECOND_MS);
        let [challenge] = heard.as_slice() else { panic!("{heard:?} to a reset at {offset}") };
        assert_eq!((challenge.flags, challenge.acknowledged), (flags::ACK, puppet.next));
        assert!(puppet.is_alive());
    }
    // A flood is not answered by a flood.
    for offset in 1..1000 {
        puppet.say_at(offset, flags::RST, &[]);
    }
    assert_eq!((puppet.pass(100).len(), puppet.is_alive()), (1, true));
    puppet.pass(SECOND_MS);
    puppet.say_at(0, flags::RST, &[]);
    assert!(puppet.pass(SECOND_MS).is_empty());
    assert_eq!(puppet.server.take_error(), Some(InetError::ConnectionReset));
    assert_eq!(puppet.left(), 0);
}

#[test]
fn a_reset_behind_lost_bytes_is_asked_for_again() {
    let mut puppet = Puppet::new(2);
    puppet.say_at(100, 0, b"behind a gap");
    puppet.pass(SECOND_MS);
    puppet.say_at(112, flags::RST, &[]);
    let heard = puppet.pass(SECOND_MS);
    let [challenge] = heard.as_slice() else { panic!("{heard:?}") };
    assert!(puppet.is_alive());
    puppet.speak(challenge.acknowledged, None, flags::RST, &[]);
    puppet.pass(SECOND_MS);
    assert_eq!(puppet.server.take_error(), Some(InetError::ConnectionReset));
}

#[test]
fn a_request_within_a_connection_is_questioned() {
    let mut puppet = Puppet::new(3);
    for offset in [0, 10, -5, 1 << 30] {
        for is_confirmed in [false, true] {
            let acknowledged = Some(puppet.expected).filter(|_| is_confirmed);
            puppet.speak(puppet.next.wrapping_add_signed(offset), acknowledged, flags::SYN, &[]);
            let heard = puppet.pass(SECOND_MS);
            let [challenge] = heard.as_slice() else { panic!("{heard:?} to a request at {offset}") };
            assert_eq!((challenge.flags, challenge.acknowledged), (flags::ACK, puppet.next));
            assert!(puppet.is_alive());
        }
    }
    puppet.say(b"bytes");
    puppet.pass(SECOND_MS);
    assert_eq!(puppet.read(), b"bytes");
}

#[test]
fn acknowledgements_of_what_was_not_sent_have_no_effect() {
    let mut puppet = Puppet::new(4);
    send(&puppet.server, &pattern(3000, 1)).unwrap();
    let sent: usize = puppet.pass(10).iter().map(|heard| heard.data.len()).sum();
    assert_eq!(sent, 3000);
    for ahead in [3001, 100_000, 1 << 30, i32::MAX as u32] {
        puppet.speak(puppet.next, Some(puppet.expected.wrapping_add(ahead)), 0, &[]);
        puppet.pass(10);
        assert_eq!((puppet.server.unacknowledged(), puppet.is_alive()), (3000, true));
    }
    puppet.expected = puppet.expected.wrapping_add(3000);
    puppet.say(&[]);
    puppet.pass(10);
    assert_eq!(puppet.server.unacknowledged(), 0);
}

#[test]
fn overlapping_segments_make_one_stream() {
    for seed in 0..40 {
        let mut puppet = Puppet::new(seed);
        let bytes = pattern(20_000, seed);
        let (start, mut received) = (puppet.next, Vec::new());
        let mut known = 0;
        while received.len() < bytes.len() {
            // Somewhere around what the host has, of any length, and now and then exactly what is next.
            let from = match random() % 4 {
                0 => known,
                _ => (known as u64 + random() % 6000).saturating_sub(2000).min(19_999) as usize,
            };
            let to = (from + 1 + random() as usize % 900).min(bytes.len());
            puppet.speak(start.wrapping_add(from as u32), Some(puppet.expected), 0, &bytes[from..to]);
            for heard in puppet.pass(random() % 3) {
                known = known.max(heard.acknowledged.wrapping_sub(start) as usize);
            }
            received.extend(puppet.read());
            assert!(received[..] == bytes[..received.len()], "seed {seed}");
        }
        assert!(puppet.is_alive());
    }
}

#[test]
fn bytes_beyond_the_window_are_not_taken() {
    let mut puppet = Puppet::new(6);
    puppet.say(b"first");
    puppet.pass(SECOND_MS);
    for offset in [70_000, 1_000_000, 1 << 30] {
        puppet.say_at(offset, 0, &[7; 500]);
        let heard = puppet.pass(SECOND_MS);
        assert!(heard.iter().all(|answer| answer.acknowledged == puppet.next), "{heard:?}");
    }
    // Refused bytes leave no gap behind.
    let bytes = pattern(60_000, 6);
    let mut last = None;
    for piece in bytes.chunks(1000) {
        puppet.say(piece);
        last = puppet.pass(1).pop().or(last);
    }
    last = puppet.pass(SECOND_MS).pop().or(last);
    assert_eq!(last.map(|answer| answer.acknowledged), Some(puppet.next));
    assert_eq!(puppet.read(), [&b"first"[..], &bytes].concat());
}

/// Sends bytes without regard to the window. Returns what the host takes of them.
fn fill(puppet: &mut Puppet, bytes: &[u8]) -> Vec<u8> {
    let start = puppet.next;
    for (number, piece) in bytes.chunks(1000).enumerate() {
        puppet.speak(start.wrapping_add(number as u32 * 1000), Some(puppet.expected), 0, piece);
        puppet.pass(1);
    }
    puppet.pass(SECOND_MS);
    let received = puppet.read();
    assert!(received[..] == bytes[..received.len()]);
    puppet.next = start.wrapping_add(received.len() as u32);
    received
}

#[test]
fn a_peer_that_sends_on_into_a_full_window_loses_bytes_only() {
    let mut puppet = Puppet::new(7);
    let bytes = pattern(800_000, 7);
    let received = fill(&mut puppet, &bytes);
    // Storage is larger than the window, but has its end.
    assert!((60_000..300_000).contains(&received.len()), "{} bytes", received.len());
    let mut rest = Vec::new();
    for piece in bytes[received.len()..].chunks(1000) {
        puppet.say(piece);
        puppet.pass(1);
        rest.extend(puppet.read());
    }
    assert!(rest == bytes[received.len()..] && puppet.is_alive());
}

/// Plays a reader to the end of `bytes`, whose window is `window` each time.
fn receive_all(puppet: &mut Puppet, bytes: &[u8], start: u32, window: u16) {
    let mut received = vec![None; bytes.len()];
    let mut offset = 0;
    for _ in 0..400 {
        puppet.window = window;
        puppet.say(&[]);
        puppet.pass_with(500, |puppet, heard| {
            puppet.take(heard);
            let at = heard.number.wrapping_sub(start) as usize;
            for (place, byte) in heard.data.iter().enumerate() {
                received[at + place] = Some(*byte);
            }
        });
        offset = offset.max(puppet.expected.wrapping_sub(start) as usize);
        if offset == bytes.len() && puppet.server.unacknowledged() == 0 {
            break;
        }
    }
    assert_eq!((offset, puppet.server.unacknowledged()), (bytes.len(), 0));
    let wrong = received.iter().zip(bytes).filter(|(got, byte)| got.is_some_and(|got| got != **byte));
    assert_eq!(wrong.count(), 0);
}

#[test]
fn a_window_may_shrink() {
    let mut puppet = Puppet::new(8);
    let (bytes, start) = (pattern(14_000, 8), puppet.expected);
    assert_eq!(send(&puppet.server, &bytes), Ok(14_000));
    let flight: usize = puppet.pass(10).iter().map(|heard| heard.data.len()).sum();
    assert!(flight >= 5000, "{flight} bytes are under way");
    // The right edge goes back to where bytes are under way already.
    puppet.expected = start.wrapping_add(2000);
    puppet.window = 500;
    puppet.say(&[]);
    let edge = start.wrapping_add(flight.max(2500) as u32);
    let heard = puppet.pass(20 * SECOND_MS);
    assert!(heard.iter().all(|heard| !is_before(edge, heard.end())), "{heard:?}");
    assert!(puppet.is_alive());
    receive_all(&mut puppet, &bytes, start, 3000);
}

#[test]
fn a_closed_window_is_probed_less_and_less() {
    let mut puppet = Puppet::new(9);
    let (bytes, start) = (pattern(5000, 9), puppet.expected);
    puppet.window = 0;
    puppet.say(&[]);
    puppet.pass(SECOND_MS);
    send(&puppet.server, &bytes).unwrap();
    let heard = puppet.pass_with(600 * SECOND_MS, |puppet, _| puppet.say_at(0, 0, &[]));
    assert!((5..200).contains(&heard.len()), "{} questions in ten minutes", heard.len());
    assert!(heard.iter().all(|question| question.data.len() <= 1));
    assert!(puppet.is_alive());
    receive_all(&mut puppet, &bytes, start, 2000);
}

#[test]
fn a_window_of_one_byte_is_used() {
    let mut puppet = Puppet::new(10);
    let (bytes, start) = (pattern(40, 10), puppet.expected);
    puppet.window = 1;
    puppet.say(&[]);
    puppet.pass(SECOND_MS);
    send(&puppet.server, &bytes).unwrap();
    receive_all(&mut puppet, &bytes, start, 1);
}

#[test]
fn an_end_that_is_never_acknowledged_is_given_up() {
    for answers in [false, true] {
        let mut puppet = Puppet::new(11);
        send(&puppet.server, b"the last").unwrap();
        puppet.pass(10);
        puppet.expected = puppet.expected.wrapping_add(8);
        puppet.say(&[]);
        puppet.server.close();
        let mut ends = 0;
        puppet.pass_with(150 * SECOND_MS, |puppet, heard| {
            ends += u32::from(heard.has(flags::FIN));
            if answers {
                puppet.say_at(0, 0, &[]);
            }
        });
        assert_eq!(puppet.left(), 1);
        assert!(ends >= 3, "it was told {ends} times");
        let heard = puppet.pass(100 * SECOND_MS);
        assert!(heard.iter().any(|last| last.has(flags::RST)), "{heard:?}");
        assert_eq!(puppet.left(), 0);
    }
}

#[test]
fn a_reader_that_stops_does_not_keep_a_closed_connection() {
    let mut puppet = Puppet::new(12);
    send(&puppet.server, &pattern(8000, 12)).unwrap();
    puppet.pass_with(10, Puppet::take);
    puppet.window = 0;
    puppet.say(&[]);
    let rest = send(&puppet.server, &pattern(8000, 13)).unwrap();
    assert!(rest > 0);
    puppet.server.close();
    // It is there, and takes nothing.
    puppet.pass_with(150 * SECOND_MS, |puppet, _| puppet.say_at(0, 0, &[]));
    assert_eq!(puppet.left(), 1);
    let heard = puppet.pass_with(100 * SECOND_MS, |puppet, heard| {
        if !heard.has(flags::RST) {
            puppet.say_at(0, 0, &[]);
        }
    });
    assert!(heard.iter().any(|last| last.has(flags::RST)), "{heard:?}");
    assert_eq!(puppet.left(), 0);
}

#[test]
fn a_slow_reader_keeps_a_closed_connection() {
    let mut puppet = Puppet::new(13);
    let (bytes, start) = (pattern(4000, 14), puppet.expected);
    puppet.window = 100;
    puppet.say(&[]);
    puppet.pass(SECOND_MS);
    send(&puppet.server, &bytes).unwrap();
    puppet.server.close();
    let mut ended = false;
    for _ in 0..100 {
        // A little every minute.
        puppet.pass_with(60 * SECOND_MS, |puppet, heard| {
            if heard.number == puppet.expected {
                puppet.expected = heard.end();
            }
            ended |= heard.has(flags::FIN) && heard.end() == puppet.expected;
        });
        puppet.window = 300;
        puppet.say(&[]);
        if ended {
            break;
        }
    }
    assert!(ended && puppet.expected == start.wrapping_add(4001));
}

/// `SO_LINGER` waits for that.
#[test]
fn a_closed_connection_drains_until_its_end_is_acknowledged() {
    for is_reset in [false, true] {
        let mut puppet = Puppet::new(17);
        let waiters = puppet.server.waiters().clone();
        send(&puppet.server, &pattern(3000, 17)).unwrap();
        assert!(!puppet.server.is_draining());
        puppet.server.close();
        puppet.pass(10);
        // The bytes are not all.
        puppet.expected = puppet.expected.wrapping_add(3000);
        puppet.say(&[]);
        puppet.pass(10);
        assert!(puppet.server.is_draining());
        waiters.woken.store(0, Ordering::Relaxed);
        if is_reset {
            puppet.say_at(0, flags::RST, &[]);
        } else {
            puppet.expected = puppet.expected.wrapping_add(1);
            puppet.say(&[]);
        }
        puppet.pass(10);
        assert!(!puppet.server.is_draining());
        assert_eq!(waiters.woken.load(Ordering::Relaxed), Readiness::all().bits());
    }
}

#[test]
fn a_reset_has_the_number_of_all_that_was_sent() {
    let mut puppet = Puppet::new(14);
    send(&puppet.server, &pattern(5000, 15)).unwrap();
    let end = puppet.pass(10).iter().map(Heard::end).next_back().unwrap();
    // They are sent again, from the first one on.
    assert!(!puppet.pass(5 * SECOND_MS).is_empty());
    puppet.server.options.linger.store(0, Ordering::Relaxed);
    puppet.server.close();
    let heard = puppet.pass(SECOND_MS);
    let reset = heard.iter().find(|heard| heard.has(flags::RST)).unwrap();
    assert_eq!(reset.number, end);
    assert_eq!(puppet.left(), 0);
}

#[test]
fn bytes_behind_the_end_are_nobodys() {
    let mut puppet = Puppet::new(15);
    puppet.say(b"all");
    puppet.say_at(0, flags::FIN, &[]);
    puppet.next = puppet.next.wrapping_add(1);
    puppet.say(b"more");
    puppet.pass(SECOND_MS);
    assert_eq!(puppet.read(), b"all");
    assert_eq!(receive(&puppet.server, 100), Ok(Vec::new()));
    assert_eq!(puppet.server.tcp_state(), TcpState::CloseWait);
}

#[test]
fn an_end_beyond_the_window_is_not_heard() {
    let bytes = pattern(400_000, 18);
    let room = fill(&mut Puppet::new(18), &bytes).len();
    let (mut puppet, near) = (Puppet::new(18), room / 1000 * 1000 - 5000);
    for piece in bytes[..near].chunks(1000) {
        puppet.say(piece);
        puppet.pass(1);
    }
    let end = near + 20_000;
    puppet.say_at(0, flags::FIN, &bytes[near..end]);
    puppet.pass(SECOND_MS);
    assert!(puppet.is_alive(), "the last bytes are missing");
    let mut received = puppet.read();
    let known = received.len();
    assert!((near..end).contains(&known), "{known} bytes");
    puppet.pass(SECOND_MS);
    puppet.say_at((known - near) as i32, flags::FIN, &bytes[known..end]);
    puppet.pass(SECOND_MS);
    received.extend(puppet.read());
    assert!(received == bytes[..end]);
    assert_eq!(puppet.server.tcp_state(), TcpState::CloseWait);
}

#[test]
fn requests_that_nobody_confirms_are_forgotten() {
    let mut puppet = Puppet::new(16);
    for port in 5000..8000 {
        puppet.own.port = port;
        puppet.speak(random() as u32, None, flags::SYN, &[]);
        puppet.hear();
    }
    let waiting = puppet.left();
    assert!((1000..1100).contains(&waiting), "{waiting} half-open connections");
    // The connection that is there goes on meanwhile.
    puppet.own.port = 4000;
    puppet.say(b"bytes");
    puppet.pass(100);
    assert_eq!(puppet.read(), b"bytes");
    puppet.pass(300 * SECOND_MS);
    assert_eq!(puppet.left(), 1);
}
