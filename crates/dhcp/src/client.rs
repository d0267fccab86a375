//! The client's states.

use core::net::Ipv4Addr;

use crate::lease::{HOST_NAME_BYTES, Lease, Text, Validity};
use crate::message::{DRAFT_BYTES_MAX, Draft, Message, MessageKind};

const SECOND_NS: u64 = 1_000_000_000;
/// How long the first answer is waited for; twice as long for each further one, up to a most. A random part of
/// [`JITTER_NS`] more or less keeps clients that were started together apart.
const ANSWER_NS: u64 = 2 * SECOND_NS;
const ANSWER_MAX_NS: u64 = 64 * SECOND_NS;
const JITTER_NS: u64 = SECOND_NS;
/// How often an offer is asked for that is not acknowledged.
const REQUESTS_MAX: u32 = 4;
/// How long a renewal waits at least before it is repeated.
const RENEWAL_NS: u64 = 60 * SECOND_NS;
/// How often the link is asked who has a new address, and how long each answer is waited for. RFC 5227 has seconds
/// here, but the links of machines answer at once, and programs wait for the address.
const PROBES: u32 = 3;
const PROBE_NS: u64 = SECOND_NS / 10;
/// How long the client waits before it asks the network again that has given somebody's address.
const DECLINED_NS: u64 = 10 * SECOND_NS;

/// How long a machine that ends waits at most for the message that gives its lease back to leave: a neighbour may have
/// to be asked first.
pub const RELEASE_PATIENCE_NS: u64 = SECOND_NS / 5;

/// A message to be sent from [`crate::CLIENT_PORT`] to [`crate::SERVER_PORT`].
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The address that it comes from; none as long as there is none.
    pub from: Option<Ipv4Addr>,
    /// The server that it is for, or everyone.
    pub to: Ipv4Addr,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// The next thing to do.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// To send a message. One that cannot be sent counts as lost on its way.
    Send(Outgoing<'a>),
    /// To ask the link who has this address, by ARP and from no address. An answer is told by [`Client::conflict`].
    Probe(Ipv4Addr),
    /// To take the address: there is a lease.
    Bound,
    /// To give the address up: its time is over.
    Lost,
    /// Nothing until this moment, or a message comes.
    Wait(u64),
}

/// A message's effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The lease has other settings than before.
    Bound,
    /// The lease is valid for longer.
    Renewed,
    /// The server has taken the lease back.
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Servers are asked for offers.
    Selecting,
    /// An offer is asked for.
    Requesting { address: Ipv4Addr, server: Ipv4Addr, tries: u32 },
    /// The server has acknowledged, and the link was asked so often who has the address.
    Checking { probes: u32 },
    /// Somebody has it, of which the server does not know.
    Declining { address: Ipv4Addr, server: Ipv4Addr },
    /// There is a lease.
    Bound,
    /// Its server is asked for a longer one.
    Renewing,
    /// Any server is.
    Rebinding,
    /// The lease was given back, and no other is wanted.
    Released,
}

/// The moments of a lease.
#[derive(Clone, Copy, Debug)]
struct Moments {
    renewal_ns: u64,
    rebinding_ns: u64,
    end_ns: u64,
}

impl Moments {
    fn new(start_ns: u64, validity: Option<Validity>) -> Self {
        let moment = |seconds: u32| start_ns.saturating_add(u64::from(seconds) * SECOND_NS);
        match validity {
            Some(Validity { renewal, rebinding, end }) => {
                Self { renewal_ns: moment(renewal), rebinding_ns: moment(rebinding), end_ns: moment(end) }
            }
            None => Self { renewal_ns: u64::MAX, rebinding_ns: u64::MAX, end_ns: u64::MAX },
        }
    }
}

/// A client. Moments are nanoseconds of a clock that never goes back.
#[derive(Debug)]
pub struct Client {
    mac: [u8; 6],
    /// The host's name, which servers are told.
    name: Text<HOST_NAME_BYTES>,
    random: u64,
    state: State,
    transaction: u32,
    /// When the exchange has begun.
    begun_ns: u64,
    /// When the lease of this exchange was first asked for: it is valid from then on, whichever request is answered.
    asked_ns: u64,
    /// When the state has something to do.
    due_ns: u64,
    /// How often servers were asked for offers, and how often one refused, since there was a lease.
    searches: u32,
    refusals: u32,
    /// The lease; while it is being checked the address is nobody's yet.
    lease: Option<(Lease, Moments)>,
    bytes: [u8; DRAFT_BYTES_MAX],
}

impl Client {
    /// A client that begins at once. `random` differs from that of other clients; of a `name` that is too long, servers
    /// hear nothing.
    #[must_use]
    pub fn new(mac: [u8; 6], name: &str, random: u64, now_ns: u64) -> Self {
        let mut text = Text::new();
        let _ = core::fmt::Write::write_str(&mut text, name);
        let mut client = Self {
            mac,
            name: text,
            random,
            state: State::Selecting,
            transaction: 0,
            begun_ns: 0,
            asked_ns: 0,
            due_ns: 0,
            searches: 0,
            refusals: 0,
            lease: None,
            bytes: [0; DRAFT_BYTES_MAX],
        };
        client.begin(State::Selecting, now_ns);
        client
    }

    /// The lease, as long as there is one.
    #[must_use]
    pub fn lease(&self) -> Option<&Lease> {
        let is_checked = !matches!(self.state, State::Checking { .. });
        self.lease.as_ref().filter(|_| is_checked).map(|(lease, _)| lease)
    }

    /// The address of which it is not known yet whether somebody has it.
    #[must_use]
    pub fn probed(&self) -> Option<Ipv4Addr> {
        let is_unsure = matches!(self.state, State::Checking { .. });
        self.lease.as_ref().filter(|_| is_unsure).map(|(lease, _)| lease.address)
    }

    /// Another host has the address that is [`Client::probed`].
    pub fn conflict(&mut self, now_ns: u64) {
        let Some(address) = self.probed() else { return };
        if let Some((lease, _)) = self.lease.take() {
            self.state = State::Declining { address, server: lease.server };
            self.due_ns = now_ns;
        }
    }

    /// Gives the lease back, for the end of the machine: returns the message to be sent, if there is a lease. The
    /// client asks for none any more.
    pub fn release(&mut self, now_ns: u64) -> Option<Outgoing<'_>> {
        let lease = self.lease().copied();
        self.lease = None;
        self.begin(State::Released, u64::MAX);
        let Lease { address, server, .. } = lease?;
        Some(self.message(MessageKind::Release, now_ns, None, Some((address, server))))
    }

    /// A random number: SplitMix64.
    const fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// How long the answer to try number `tries`, counted from 0, is waited for.
    const fn patience_ns(&mut self, tries: u32) -> u64 {
        let doubled = if tries < 6 { ANSWER_NS << tries } else { ANSWER_MAX_NS };
        let middle = if doubled < ANSWER_MAX_NS { doubled } else { ANSWER_MAX_NS };
        middle - JITTER_NS + self.draw() % (2 * JITTER_NS)
    }

    /// Starts an exchange, whose messages have a number of their own.
    const fn begin(&mut self, state: State, due_ns: u64) {
        self.transaction = self.draw() as u32;
        self.state = state;
        self.begun_ns = due_ns;
        self.due_ns = due_ns;
    }

    /// Does what is due. Call it until it says to wait.
    pub fn step(&mut self, now_ns: u64) -> Step<'_> {
        if let Some((_, moments)) = self.lease
            && now_ns >= moments.end_ns
        {
            self.lease = None;
            self.begin(State::Selecting, now_ns);
            return Step::Lost;
        }
        if now_ns < self.due_ns {
            return Step::Wait(self.due_ns);
        }
        match (self.state, self.lease) {
            (State::Requesting { address, server, tries }, _) if tries < REQUESTS_MAX => {
                self.state = State::Requesting { address, server, tries: tries + 1 };
                self.due_ns = now_ns.saturating_add(self.patience_ns(tries));
                if tries == 0 {
                    self.asked_ns = now_ns;
                }
                self.send(MessageKind::Request, now_ns, Some((address, server)), None)
            }
            (State::Checking { probes }, Some((lease, _))) if probes < PROBES => {
                self.state = State::Checking { probes: probes + 1 };
                self.due_ns = now_ns.saturating_add(PROBE_NS);
                Step::Probe(lease.address)
            }
            (State::Checking { .. }, Some((_, moments))) => {
                self.state = State::Bound;
                self.due_ns = moments.renewal_ns;
                (self.searches, self.refusals) = (0, 0);
                Step::Bound
            }
            (State::Declining { address, server }, _) => {
                self.begin(State::Selecting, now_ns.saturating_add(DECLINED_NS));
                self.send(MessageKind::Decline, now_ns, Some((address, server)), None)
            }
            (State::Bound | State::Renewing, Some((lease, moments))) if now_ns < moments.rebinding_ns => {
                self.begin(State::Renewing, now_ns);
                self.renew(now_ns, lease.address, lease.server, moments.rebinding_ns)
            }
            (State::Bound | State::Renewing | State::Rebinding, Some((lease, moments))) => {
                self.begin(State::Rebinding, now_ns);
                self.renew(now_ns, lease.address, Ipv4Addr::BROADCAST, moments.end_ns)
            }
            _ => {
                if self.state != State::Selecting {
                    self.begin(State::Selecting, now_ns);
                }
                let patience_ns = self.patience_ns(self.searches);
                self.searches = self.searches.saturating_add(1);
                self.due_ns = now_ns.saturating_add(patience_ns);
                self.send(MessageKind::Discover, now_ns, None, None)
            }
        }
    }

    /// Asks for a longer lease, and once more after half of the time that is left, in an exchange of its own: an answer
    /// to an earlier question would make the lease end later than the server thinks.
    fn renew(&mut self, now_ns: u64, own: Ipv4Addr, to: Ipv4Addr, until_ns: u64) -> Step<'_> {
        let half_ns = until_ns.saturating_sub(now_ns) / 2;
        self.due_ns = now_ns.saturating_add(half_ns.max(RENEWAL_NS)).min(until_ns);
        self.asked_ns = now_ns;
        self.send(MessageKind::Request, now_ns, None, Some((own, to)))
    }

    fn send(
        &mut self,
        kind: MessageKind,
        now_ns: u64,
        offer: Option<(Ipv4Addr, Ipv4Addr)>,
        own: Option<(Ipv4Addr, Ipv4Addr)>,
    ) -> Step<'_> {
        Step::Send(self.message(kind, now_ns, offer, own))
    }

    /// A message about an address that a server offers, or from the client's own to the receiver beside it.
    fn message(
        &mut self,
        kind: MessageKind,
        now_ns: u64,
        offer: Option<(Ipv4Addr, Ipv4Addr)>,
        own: Option<(Ipv4Addr, Ipv4Addr)>,
    ) -> Outgoing<'_> {
        let server = if kind == MessageKind::Release { own } else { offer };
        let seconds = now_ns.saturating_sub(self.begun_ns) / SECOND_NS;
        let draft = Draft {
            kind,
            transaction: self.transaction,
            seconds: u16::try_from(seconds).unwrap_or(u16::MAX),
            client: own.map(|(own, _)| own),
            mac: self.mac,
            requested: offer.map(|(address, _)| address),
            server: server.map(|(_, server)| server),
            name: self.name.as_bytes(),
        };
        let length = draft.write(&mut self.bytes);
        Outgoing {
            from: own.map(|(own, _)| own),
            to: own.map_or(Ipv4Addr::BROADCAST, |(_, to)| to),
            bytes: &self.bytes[..length],
        }
    }

    /// A message has come to the client's port. One that is damaged, or no answer to what was asked, has no effect.
    pub fn receive(&mut self, now_ns: u64, bytes: &[u8]) -> Option<Change> {
        let message = Message::parse(bytes)?;
        if message.transaction != self.transaction || message.mac != self.mac {
            return None;
        }
        let held = self.lease.map(|(lease, _)| lease);
        // The address and the server that an answer must have; none stands for any server.
        let (address, server) = match (self.state, held) {
            (State::Selecting, _) if message.kind == MessageKind::Offer => {
                let (lease, _) = Lease::of(&message)?;
                self.state = State::Requesting { address: lease.address, server: lease.server, tries: 0 };
                self.due_ns = now_ns;
                return None;
            }
            (State::Requesting { address, server, .. }, _) => (address, Some(server)),
            (State::Renewing, Some(lease)) => (lease.address, Some(lease.server)),
            (State::Rebinding, Some(lease)) => (lease.address, None),
            _ => return None,
        };
        if server.is_some() && message.server != server {
            return None;
        }
        match message.kind {
            MessageKind::Ack if message.yours == address => {
                let (lease, validity) = Lease::of(&message)?;
                let moments = Moments::new(self.asked_ns, validity);
                self.lease = Some((lease, moments));
                if held.is_none() {
                    self.state = State::Checking { probes: 0 };
                    self.due_ns = now_ns;
                    return None;
                }
                self.state = State::Bound;
                self.due_ns = moments.renewal_ns;
                Some(if held == Some(lease) { Change::Renewed } else { Change::Bound })
            }
            MessageKind::Nak => {
                // The first refusal is most often of an address of another network: a new search finds one of this.
                let pause_ns = match self.refusals.checked_sub(1) {
                    None => 0,
                    Some(tries) => self.patience_ns(tries),
                };
                self.refusals = self.refusals.saturating_add(1);
                self.begin(State::Selecting, now_ns.saturating_add(pause_ns));
                self.lease.take().map(|_| Change::Lost)
            }
            _ => None,
        }
    }
}
