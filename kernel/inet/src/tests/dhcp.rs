//! A client of DHCP over frames: from no address to one that is renewed by unicast.

use super::*;
use crate::dhcp::DhcpPort;
use crate::interface::InterfaceSettings;
use crate::udp::{SendOptions, UdpSocket};
use heddle_dhcp::{CLIENT_PORT, Change, Client, SERVER_PORT, Step};

const GIVEN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 77);
const LEASE_SECONDS: u32 = 40;
const SECOND_NS: u64 = 1000 * MILLISECOND_NS;

/// A host without an address, and a server on the other.
struct Leased {
    net: Net,
    port: DhcpPort<Simulated>,
    client: Client,
    server: Arc<UdpSocket<Simulated>>,
    is_server_up: bool,
    /// The address that the server gives, those that were declined, and whether one was given back.
    gives: Ipv4Addr,
    declined: Vec<Ipv4Addr>,
    is_released: bool,
    changes: Vec<Change>,
    /// The sources of what the server has received.
    sources: Vec<IpAddr>,
}

fn set_addresses(net: &Net, host: usize, addresses: Vec<InterfaceAddress>) {
    let settings = InterfaceSettings { addresses, routes: Vec::new(), is_up: true, mtu: 1500 };
    net.hosts[host].engine.interface().unwrap().change(settings);
}

impl Leased {
    fn new(seed: u64, faults: Faults) -> Self {
        let capabilities = LinkCapabilities { transmit_checksum: true, ..LinkCapabilities::default() };
        let net = Net::with(seed, faults, capabilities);
        set_addresses(&net, 0, Vec::new());
        let port = DhcpPort::open(&net.hosts[0].engine, [CLIENT_PORT, SERVER_PORT]).unwrap();
        let client = Client::new(net.hosts[0].link.mac, "guest", seed, NOW_NS.get());
        let server = UdpSocket::new(&net.hosts[1].engine, false, 0).unwrap();
        server.options.broadcast.store(1, Ordering::Relaxed);
        server.bind(Endpoint { address: Ipv4Addr::UNSPECIFIED.into(), port: SERVER_PORT }).unwrap();
        let (changes, sources) = (Vec::new(), Vec::new());
        Self {
            net,
            port,
            client,
            server,
            is_server_up: true,
            gives: GIVEN,
            declined: Vec::new(),
            is_released: false,
            changes,
            sources,
        }
    }

    fn drive(&mut self) {
        loop {
            let now_ns = NOW_NS.get();
            if self.port.is_taken(self.client.probed()) {
                self.client.conflict(now_ns);
            }
            let mut change = None;
            while self.port.receive(|bytes| change = self.client.receive(now_ns, bytes)) {
                self.changes.extend(change.take());
            }
            match self.client.step(now_ns) {
                Step::Wait(_) => break,
                Step::Lost => self.changes.push(Change::Lost),
                Step::Bound => self.changes.push(Change::Bound),
                Step::Probe(address) => self.port.probe(address),
                Step::Send(outgoing) => {
                    // A message that cannot be sent is lost.
                    let _ = self.port.send(outgoing.from, outgoing.to, outgoing.bytes);
                }
            }
        }
        let held = self.client.lease().map(|lease| lease.address.into());
        let addresses = held.map(|address| InterfaceAddress { address, prefix: 24 });
        set_addresses(&self.net, 0, addresses.into_iter().collect());
    }

    fn serve(&mut self) {
        let take = |datagram: &crate::datagram::Datagram| {
            Ok::<_, ()>((datagram.payload().to_vec(), datagram.source.address, datagram.destination))
        };
        while let Ok(Some((question, source, destination))) = self.server.receive(false, true, take) {
            if !self.is_server_up {
                continue;
            }
            let number =
                |at: usize| Ipv4Addr::new(question[at], question[at + 1], question[at + 2], question[at + 3]);
            match question[242] {
                4 => {
                    self.declined.push(self.gives);
                    self.gives = Ipv4Addr::from_bits(self.gives.to_bits() + 1);
                    continue;
                }
                7 => {
                    assert_eq!((number(12), source), (self.gives, self.gives.into()));
                    self.is_released = true;
                    continue;
                }
                _ => {}
            }
            self.sources.push(source);
            let is_broadcast = destination == IpAddr::V4(Ipv4Addr::BROADCAST);
            assert_eq!(question[10] & 0x80 != 0, source.is_unspecified());
            assert!(is_broadcast || destination == V4[1] && source == IpAddr::V4(self.gives));
            let kind = if question[242] == 1 { 2 } else { 5 };
            let mut answer = question[..240].to_vec();
            answer[0] = 2;
            answer[16..20].copy_from_slice(&self.gives.octets());
            let IpAddr::V4(own) = V4[1] else { unreachable!("it is of IPv4") };
            answer.extend(
                [&[53, 1, kind, 54, 4][..], &own.octets(), &[1, 4, 255, 255, 255, 0, 51, 4]].concat(),
            );
            answer.extend(LEASE_SECONDS.to_be_bytes());
            answer.push(255);
            let target = if source.is_unspecified() { Ipv4Addr::BROADCAST.into() } else { source };
            let target = Some(Endpoint { address: target, port: CLIENT_PORT });
            let how = SendOptions { target, ..SendOptions::default() };
            let copy = |place: &mut [u8]| {
                place.copy_from_slice(&answer);
                Ok::<_, ()>(answer.len())
            };
            self.server.send(answer.len(), &how, copy).unwrap();
        }
    }

    fn run(&mut self, seconds: u64) {
        let end_ns = NOW_NS.get() + seconds * SECOND_NS;
        while NOW_NS.get() < end_ns {
            self.drive();
            self.net.settle();
            self.serve();
            self.net.settle();
            NOW_NS.set(NOW_NS.get() + 10 * MILLISECOND_NS);
        }
    }
}

#[test]
fn a_host_without_an_address_gets_one() {
    let mut leased = Leased::new(1, Faults::default());
    leased.run(2);
    assert_eq!(leased.changes, [Change::Bound]);
    assert!(leased.net.hosts[0].engine.is_local(GIVEN.into()));
    assert_eq!(leased.sources, [IpAddr::V4(Ipv4Addr::UNSPECIFIED); 2]);
    leased.run(20);
    assert_eq!(leased.changes, [Change::Bound, Change::Renewed]);
    assert_eq!(leased.sources[2..], [IpAddr::V4(GIVEN)], "by unicast");
    leased.is_server_up = false;
    leased.run(50);
    assert_eq!(leased.changes.last(), Some(&Change::Lost));
    assert!(!leased.net.hosts[0].engine.is_local(GIVEN.into()));
    leased.is_server_up = true;
    leased.run(70);
    assert!(leased.net.hosts[0].engine.is_local(GIVEN.into()));
}

#[test]
fn a_bad_link_only_delays_an_address() {
    for seed in 0..20 {
        let faults = Faults {
            lost: seed % 5 * 80,
            repeated: seed % 3 * 100,
            corrupted: seed % 4 * 50,
            jitter_ns: seed % 6 * 50 * MILLISECOND_NS,
        };
        let mut leased = Leased::new(seed, faults);
        leased.run(600);
        let bound = leased.changes.iter().filter(|&&change| change == Change::Bound).count();
        assert!(bound > 0, "seed {seed}");
        assert!(leased.client.lease().is_none_or(|lease| lease.address == GIVEN && lease.prefix == 24));
        leased.net.faults = Faults::default();
        leased.run(100);
        assert!(leased.net.hosts[0].engine.is_local(GIVEN.into()), "seed {seed}");
    }
}

#[test]
fn an_address_of_another_host_is_declined() {
    let mut leased = Leased::new(3, Faults::default());
    let both = [V4[1], GIVEN.into()].map(|address| InterfaceAddress { address, prefix: 24 });
    set_addresses(&leased.net, 1, both.to_vec());
    leased.run(2);
    assert_eq!((leased.declined.as_slice(), leased.changes.len()), ([GIVEN].as_slice(), 0));
    assert!(!leased.net.hosts[0].engine.is_local(GIVEN.into()));
    leased.run(12);
    assert_eq!((leased.declined.len(), leased.changes.as_slice()), (1, [Change::Bound].as_slice()));
    assert!(leased.net.hosts[0].engine.is_local(leased.gives.into()));
}

#[test]
fn who_asks_for_the_same_address_is_heard() {
    let mut net = Net::new(4, Faults::default());
    let other = Some(Ipv4Addr::new(10, 0, 0, 78));
    let exchange = |net: &mut Net| {
        for _ in 0..2 {
            net.settle();
            NOW_NS.set(NOW_NS.get() + MILLISECOND_NS);
        }
        net.settle();
    };
    let engines = [0, 1].map(|host: usize| net.hosts[host].engine.clone());
    let [one, two] = [0, 1].map(|host: usize| engines[host].interface().unwrap());
    one.probe(GIVEN);
    exchange(&mut net);
    assert!(!one.is_taken(Some(GIVEN)));
    // Only who asks already hears of it.
    two.probe(GIVEN);
    exchange(&mut net);
    assert!(one.is_taken(Some(GIVEN)) && !two.is_taken(Some(GIVEN)));
    one.probe(GIVEN);
    exchange(&mut net);
    assert!(two.is_taken(Some(GIVEN)));
    // With another address it begins anew.
    assert!(!one.is_taken(other) && !one.is_taken(Some(GIVEN)));
    two.announce(GIVEN);
    exchange(&mut net);
    assert!(!one.is_taken(Some(GIVEN)));
    one.probe(GIVEN);
    two.announce(GIVEN);
    exchange(&mut net);
    assert!(one.is_taken(Some(GIVEN)));
    assert!(!one.is_taken(None));
}

#[test]
fn a_lease_is_given_back() {
    let mut leased = Leased::new(5, Faults::default());
    leased.run(2);
    let outgoing = leased.client.release(NOW_NS.get()).unwrap();
    leased.port.send(outgoing.from, outgoing.to, outgoing.bytes).unwrap();
    assert!(leased.port.is_sending(), "the server's hardware address is not known yet");
    for _ in 0..5 {
        leased.net.settle();
        leased.serve();
        NOW_NS.set(NOW_NS.get() + MILLISECOND_NS);
    }
    assert!(leased.is_released && !leased.port.is_sending());
}
