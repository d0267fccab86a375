//! The client against servers on a simulated link, with a simulated clock.

mod malformed;
mod states;

use std::net::Ipv4Addr;

use crate::client::{Change, Client, Step};
use crate::message::code;

const SECOND_NS: u64 = 1_000_000_000;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 50);
const DECLINE: u8 = 4;
const RELEASE: u8 = 7;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn happens(&mut self, parts: u64) -> bool {
        self.draw() % 1000 < parts
    }
}

/// A client's message, as a server reads it.
struct Question {
    kind: u8,
    client: Ipv4Addr,
    asks_all: bool,
    requested: Option<Ipv4Addr>,
    server: Option<Ipv4Addr>,
    name: Vec<u8>,
    parameters: Vec<u8>,
}

fn v4(bytes: &[u8]) -> Ipv4Addr {
    Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])
}

fn question(bytes: &[u8]) -> Question {
    assert!(bytes.len() >= 300 && bytes[..3] == [1, 1, 6] && bytes[236..240] == [99, 130, 83, 99]);
    assert_eq!(bytes[28..34], MAC);
    let mut question = Question {
        kind: 0,
        client: v4(&bytes[12..16]),
        asks_all: bytes[10] & 0x80 != 0,
        requested: None,
        server: None,
        name: Vec::new(),
        parameters: Vec::new(),
    };
    let mut rest = &bytes[240..];
    while rest[0] != code::END {
        let (kind, length) = (rest[0], usize::from(rest[1]));
        let value = &rest[2..2 + length];
        match kind {
            code::MESSAGE_KIND => question.kind = value[0],
            code::REQUESTED_ADDRESS => question.requested = Some(v4(value)),
            code::SERVER => question.server = Some(v4(value)),
            code::HOST_NAME => question.name = value.to_vec(),
            code::PARAMETERS => question.parameters = value.to_vec(),
            code::CLIENT => assert_eq!(value, [1, 2, 0, 0, 0, 0, 7]),
            _ => {}
        }
        rest = &rest[2 + length..];
    }
    // A message without an answer asks for nothing.
    assert_eq!(question.parameters.is_empty(), question.kind == DECLINE || question.kind == RELEASE);
    assert_eq!(question.name.is_empty(), question.parameters.is_empty());
    question
}

/// Whether the client takes its address, of which nobody else says that it is theirs.
fn takes_address(client: &mut Client) -> bool {
    let mut now_ns = 0;
    loop {
        match client.step(now_ns) {
            Step::Probe(address) => assert_eq!(address, FIRST),
            Step::Bound => return true,
            Step::Wait(until_ns) if until_ns < SECOND_NS => now_ns = until_ns,
            _ => return false,
        }
    }
}

/// An answer to `bytes` without options but its kind and its server.
fn answer(bytes: &[u8], kind: u8, yours: Ipv4Addr, server: Ipv4Addr, options: &[u8]) -> Vec<u8> {
    let mut answer = vec![0; 240];
    answer[..3].copy_from_slice(&[2, 1, 6]);
    answer[4..8].copy_from_slice(&bytes[4..8]);
    answer[16..20].copy_from_slice(&yours.octets());
    answer[28..34].copy_from_slice(&bytes[28..34]);
    answer[236..240].copy_from_slice(&[99, 130, 83, 99]);
    answer.extend([code::MESSAGE_KIND, 1, kind, code::SERVER, 4]);
    answer.extend(server.octets());
    answer.extend(options);
    answer.push(code::END);
    answer
}

fn option(kind: u8, value: &[u8]) -> Vec<u8> {
    [&[kind, value.len() as u8], value].concat()
}

/// The options of [`Server`].
fn options(seconds: u32) -> Vec<u8> {
    [
        option(code::SUBNET_MASK, &[255, 255, 255, 0]),
        option(code::ROUTER, &SERVER.octets()),
        option(code::LEASE_TIME, &seconds.to_be_bytes()),
    ]
    .concat()
}

/// A server with one client.
struct Server {
    address: Ipv4Addr,
    /// The address that it gives, and until when it is the client's.
    gives: Ipv4Addr,
    until_ns: u64,
    seconds: u32,
    options: Vec<u8>,
    is_up: bool,
    /// It refuses every request.
    refuses: bool,
    /// The addresses that were declined.
    declined: Vec<Ipv4Addr>,
}

impl Server {
    fn new(seconds: u32) -> Self {
        let options = options(seconds);
        Self {
            address: SERVER,
            gives: FIRST,
            until_ns: 0,
            seconds,
            options,
            is_up: true,
            refuses: false,
            declined: Vec::new(),
        }
    }

    fn serve(&mut self, bytes: &[u8], now_ns: u64) -> Option<Vec<u8>> {
        let question = question(bytes);
        let is_other = question.server.is_some_and(|server| server != self.address);
        if !self.is_up || is_other {
            return None;
        }
        let (kind, yours) = match question.kind {
            1 => (2, self.gives),
            3 => {
                let own = question.requested.unwrap_or(question.client);
                assert_eq!(question.asks_all, question.client.is_unspecified());
                if own == self.gives && !self.refuses { (5, own) } else { (6, Ipv4Addr::UNSPECIFIED) }
            }
            DECLINE => {
                let taken = question.requested.unwrap();
                assert_eq!((question.server, question.asks_all), (Some(self.address), false));
                if taken == self.gives {
                    self.gives = Ipv4Addr::from_bits(taken.to_bits() + 1);
                    self.declined.push(taken);
                }
                return None;
            }
            RELEASE => {
                assert_eq!((question.server, question.requested), (Some(self.address), None));
                assert_eq!(question.client, self.gives);
                self.until_ns = 0;
                return None;
            }
            other => panic!("a client sends no {other}"),
        };
        if kind == 5 {
            self.until_ns = now_ns + u64::from(self.seconds) * SECOND_NS;
        }
        let options = if kind == 6 { &[] } else { &self.options[..] };
        Some(answer(bytes, kind, yours, self.address, options))
    }
}

/// How bad the link is, in parts of 1000.
#[derive(Clone, Copy, Default)]
struct Faults {
    lost: u64,
    repeated: u64,
    /// A message takes up to so much longer.
    late_ns: u64,
}

/// A message under way: when it arrives, and for whom.
struct Letter {
    at_ns: u64,
    to: Option<Ipv4Addr>,
    bytes: Vec<u8>,
}

/// A client and its servers.
struct World {
    now_ns: u64,
    client: Client,
    servers: Vec<Server>,
    letters: Vec<Letter>,
    faults: Faults,
    random: Random,
    changes: Vec<(u64, Change)>,
    /// When the client has sent, to whom, and the messages' kinds.
    sent: Vec<(u64, Ipv4Addr, u8)>,
    /// The addresses that other hosts have.
    taken: Vec<Ipv4Addr>,
}

const DELAY_NS: u64 = 1_000_000;

impl World {
    fn new(seed: u64, servers: Vec<Server>) -> Self {
        Self {
            now_ns: 0,
            client: Client::new(MAC, "guest", seed, 0),
            servers,
            letters: Vec::new(),
            faults: Faults::default(),
            random: Random(!seed),
            changes: Vec::new(),
            sent: Vec::new(),
            taken: Vec::new(),
        }
    }

    fn post(&mut self, to: Option<Ipv4Addr>, bytes: &[u8]) {
        let copies = u32::from(!self.random.happens(self.faults.lost))
            * (1 + u32::from(self.random.happens(self.faults.repeated)));
        for _ in 0..copies {
            let late_ns = self.random.draw() % self.faults.late_ns.max(1);
            let at_ns = self.now_ns + DELAY_NS + late_ns;
            self.letters.push(Letter { at_ns, to, bytes: bytes.to_vec() });
        }
    }

    /// Does what the client wants. Returns when it wants something next.
    fn step(&mut self) -> u64 {
        loop {
            let (to, bytes) = match self.client.step(self.now_ns) {
                Step::Wait(until_ns) => return until_ns,
                Step::Lost => {
                    self.changes.push((self.now_ns, Change::Lost));
                    continue;
                }
                Step::Bound => {
                    self.changes.push((self.now_ns, Change::Bound));
                    continue;
                }
                Step::Probe(address) => {
                    assert_eq!(self.client.probed(), Some(address));
                    if self.taken.contains(&address) {
                        self.client.conflict(self.now_ns);
                    }
                    continue;
                }
                Step::Send(outgoing) => {
                    let question = question(outgoing.bytes);
                    assert_eq!(outgoing.from.unwrap_or(Ipv4Addr::UNSPECIFIED), question.client);
                    self.sent.push((self.now_ns, outgoing.to, question.kind));
                    (outgoing.to, outgoing.bytes.to_vec())
                }
            };
            self.post(Some(to), &bytes);
        }
    }

    fn deliver(&mut self, letter: &Letter) {
        let Some(to) = letter.to else {
            let change = self.client.receive(self.now_ns, &letter.bytes);
            self.changes.extend(change.map(|change| (self.now_ns, change)));
            return;
        };
        for number in 0..self.servers.len() {
            let server = &mut self.servers[number];
            if to.is_broadcast() || to == server.address {
                let answer = server.serve(&letter.bytes, self.now_ns);
                answer.into_iter().for_each(|answer| self.post(None, &answer));
            }
        }
    }

    /// Lets so much time pass.
    fn run(&mut self, seconds: u64) {
        let end_ns = self.now_ns + seconds * SECOND_NS;
        loop {
            let due_ns = self.step();
            // A lease that the client has is one that its server gave.
            if let Some(lease) = self.client.lease() {
                let gave = |server: &Server| server.gives == lease.address && server.until_ns > self.now_ns;
                assert!(self.servers.iter().any(gave), "{lease:?} at {} ns", self.now_ns);
            }
            let next = self.letters.iter().map(|letter| letter.at_ns).chain([due_ns]).min();
            match next {
                Some(next_ns) if next_ns <= end_ns => self.now_ns = next_ns.max(self.now_ns),
                _ => break,
            }
            let now_ns = self.now_ns;
            let due: Vec<_> = self.letters.extract_if(.., |letter| letter.at_ns <= now_ns).collect();
            due.iter().for_each(|letter| self.deliver(letter));
        }
        self.now_ns = end_ns;
    }

    fn kinds(&self) -> Vec<Change> {
        self.changes.iter().map(|(_, change)| *change).collect()
    }
}
