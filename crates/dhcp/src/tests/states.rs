//! Leases that come, are renewed, and go.

use super::*;
use crate::lease::{Lease, StaticRoute};

#[test]
fn a_lease_comes_with_its_settings() {
    let mut server = Server::new(3600);
    let names = [&[4][..], b"here", &[3], b"net", &[0, 3], b"two", &[0xc0, 5]].concat();
    // The list of domains comes in two pieces.
    let (first, second) = names.split_at(7);
    for (kind, value) in [
        (code::NAME_SERVERS, &[10, 9, 0, 2, 0, 0, 0, 0, 10, 9, 0, 3, 10, 9, 0, 4, 10, 9, 0, 5][..]),
        (code::HOST_NAME, b"given\0"),
        (code::DOMAIN_NAME, b"unused.net"),
        (code::MTU, &[5, 180]),
        (code::DOMAIN_SEARCH, first),
        (code::DOMAIN_SEARCH, second),
    ] {
        server.options.extend(option(kind, value));
    }
    let mut world = World::new(1, vec![server]);
    world.run(5);
    assert_eq!(world.kinds(), [Change::Bound]);
    let lease = *world.client.lease().unwrap();
    assert_eq!((lease.address, lease.prefix, lease.server), (FIRST, 24, SERVER));
    assert_eq!((lease.router, lease.mtu), (Some(SERVER), Some(1460)));
    assert_eq!(lease.host_name.as_str(), "given");
    let resolver = "search here.net two.net\nnameserver 10.9.0.2\nnameserver 10.9.0.3\nnameserver 10.9.0.4\n";
    assert_eq!(lease.resolver().as_str(), resolver);
    let kinds: Vec<_> = world.sent.iter().map(|(_, to, kind)| (*to, *kind)).collect();
    assert_eq!(kinds, [(Ipv4Addr::BROADCAST, 1), (Ipv4Addr::BROADCAST, 3)]);
}

#[test]
fn what_a_server_leaves_out_is_assumed() {
    let mut server = Server::new(3600);
    server.options = option(code::DOMAIN_NAME, b"a.net b.net");
    let mut world = World::new(1, vec![server]);
    world.run(5);
    let lease = *world.client.lease().unwrap();
    // A network of class A, from when there were classes, and an hour.
    assert_eq!((lease.prefix, lease.router, lease.mtu), (8, None, None));
    assert_eq!(lease.resolver().as_str(), "search a.net b.net\n");
    world.run(1790);
    assert_eq!(world.sent.len(), 2);
    world.run(10);
    assert_eq!(world.kinds(), [Change::Bound, Change::Renewed]);
}

#[test]
fn options_may_be_in_other_fields() {
    let mut world = World::new(1, Vec::new());
    for kind in [2, 5] {
        let Step::Send(outgoing) = world.client.step(0) else { panic!("nothing is sent") };
        let question = outgoing.bytes.to_vec();
        assert!(matches!(world.client.step(0), Step::Wait(_)));
        let mut bytes = answer(&question, kind, FIRST, SERVER, &option(code::OVERLOAD, &[3]));
        bytes[44..50].copy_from_slice(&option(code::SUBNET_MASK, &[255, 255, 0, 0]));
        bytes[50] = code::END;
        bytes[108..114].copy_from_slice(&option(code::NAME_SERVERS, &[10, 9, 0, 9]));
        assert_eq!(world.client.receive(0, &bytes), None);
    }
    assert!(takes_address(&mut world.client));
    let lease = world.client.lease().unwrap();
    assert_eq!((lease.prefix, lease.resolver().as_str()), (16, "nameserver 10.9.0.9\n"));
}

#[test]
fn a_lease_is_renewed_by_its_server() {
    let mut world = World::new(2, vec![Server::new(600)]);
    world.run(3600);
    assert!(world.kinds()[1..].iter().all(|change| *change == Change::Renewed));
    assert_eq!(world.changes.len(), 12, "one that comes, and one renewal each 300 s");
    assert!(world.sent[2..].iter().all(|(_, to, kind)| (*to, *kind) == (SERVER, 3)));
    // Another setting is a change.
    world.servers[0].options.extend(option(code::MTU, &[5, 0]));
    world.run(600);
    assert!(world.kinds().ends_with(&[Change::Bound, Change::Renewed]));
}

#[test]
fn a_lease_without_end_is_left_alone() {
    let mut world = World::new(2, vec![Server::new(u32::MAX)]);
    world.run(1_000_000);
    assert_eq!((world.kinds(), world.sent.len()), (vec![Change::Bound], 2));
}

#[test]
fn another_server_takes_over() {
    let mut other = Server::new(6000);
    (other.address, other.is_up) = (Ipv4Addr::new(10, 9, 0, 2), false);
    let mut world = World::new(3, vec![Server::new(6000), other]);
    world.run(100);
    (world.servers[0].is_up, world.servers[1].is_up) = (false, true);
    world.run(5500);
    let (unicast, all): (Vec<_>, Vec<(u64, Ipv4Addr, u8)>) =
        world.sent[2..].iter().copied().partition(|(_, to, _)| *to == SERVER);
    // From T1 on after half of the time that is left, at least a minute.
    let seconds: Vec<_> = unicast.iter().map(|(at_ns, ..)| at_ns / SECOND_NS).collect();
    assert_eq!(seconds, [3000, 4125, 4687, 4968, 5109, 5179, 5239]);
    assert_eq!(all.len(), 1);
    assert_eq!((all[0].0 / SECOND_NS, all[0].1), (5250, Ipv4Addr::BROADCAST));
    // The server is part of the lease.
    assert_eq!(world.kinds(), [Change::Bound, Change::Bound]);
    assert_eq!(world.client.lease().unwrap().server, world.servers[1].address);
}

#[test]
fn a_lease_that_nobody_renews_ends() {
    let mut world = World::new(4, vec![Server::new(600)]);
    world.run(10);
    world.servers[0].is_up = false;
    world.run(580);
    assert_eq!(world.kinds(), [Change::Bound]);
    world.run(20);
    assert_eq!(world.kinds(), [Change::Bound, Change::Lost]);
    assert_eq!(world.changes[1].0 / SECOND_NS, 600);
    assert!(world.client.lease().is_none());
    world.run(1000);
    world.servers[0].is_up = true;
    world.run(130);
    assert_eq!(world.kinds(), [Change::Bound, Change::Lost, Change::Bound]);
}

#[test]
fn a_silent_network_is_asked_less_and_less() {
    let mut world = World::new(5, Vec::new());
    world.run(1000);
    let pauses = world.sent.windows(2).map(|pair| (pair[1].0 - pair[0].0) / SECOND_NS);
    for (number, pause) in pauses.enumerate() {
        let middle = 64.min(2 << number.min(5));
        assert!((middle - 1..=middle).contains(&pause), "pause {number} took {pause} s");
    }
    assert!(world.sent.iter().all(|(_, to, kind)| to.is_broadcast() && *kind == 1));
}

#[test]
fn a_refusal_starts_again() {
    let mut world = World::new(6, vec![Server::new(600)]);
    world.servers[0].refuses = true;
    world.run(1000);
    assert!(world.changes.is_empty());
    // The second search begins at once, and the others after pauses.
    let searches = world.sent.iter().filter(|(.., kind)| *kind == 1).count();
    assert!((10..40).contains(&searches), "{searches} searches");
    world.servers[0].refuses = false;
    world.run(100);
    assert_eq!(world.kinds(), [Change::Bound]);
    // A network with other addresses takes the old one away.
    world.servers[0].gives = Ipv4Addr::new(10, 9, 0, 60);
    world.servers[0].until_ns = u64::MAX;
    let held = world.client.lease().unwrap().address;
    let until_ns = world.now_ns + 600 * SECOND_NS;
    world.servers.push(Server { gives: held, until_ns, is_up: false, ..Server::new(600) });
    world.run(400);
    assert_eq!(world.kinds(), [Change::Bound, Change::Lost, Change::Bound]);
    assert_eq!(world.client.lease().unwrap().address, world.servers[0].gives);
}

/// Whatever is lost, repeated or late: the client has an address for most of the time, and never longer than its server
/// knows, which [`World::run`] watches.
#[test]
fn a_bad_link_delays_only() {
    for seed in 0..200 {
        let seconds = [20, 120, 600, 3600][seed as usize % 4];
        let mut world = World::new(seed, vec![Server::new(seconds)]);
        world.faults = Faults {
            lost: seed % 7 * 60,
            repeated: seed % 5 * 100,
            late_ns: [0, SECOND_NS, 5 * SECOND_NS][seed as usize % 3],
        };
        world.run(20_000);
        let bound = world.changes.iter().filter(|(_, change)| *change != Change::Lost).count();
        assert!(bound >= 5, "seed {seed}: {:?}", world.changes);
        world.faults = Faults::default();
        world.run(200);
        assert!(world.client.lease().is_some(), "seed {seed}");
    }
}

/// The lease from a server with these options beside the usual ones.
fn lease_with(options: &[Vec<u8>]) -> Lease {
    let mut server = Server::new(3600);
    options.iter().for_each(|option| server.options.extend(option));
    let mut world = World::new(1, vec![server]);
    world.run(5);
    *world.client.lease().unwrap()
}

fn route(destination: [u8; 4], prefix: u8, router: Option<[u8; 4]>) -> StaticRoute {
    StaticRoute { destination: destination.into(), prefix, router: router.map(Ipv4Addr::from) }
}

#[test]
fn a_router_is_a_route() {
    let routes: Vec<_> = lease_with(&[]).routes().collect();
    assert_eq!(routes, [route([0; 4], 0, Some([10, 9, 0, 1]))]);
}

#[test]
fn routes_of_any_length_replace_the_router() {
    let list = [
        &[0, 10, 9, 0, 254][..],
        &[8, 10, 10, 9, 0, 253],
        // Bits behind the prefix don't count.
        &[12, 172, 31, 10, 9, 0, 252],
        // Hosts on the link, and the own network, whose route comes with the address.
        &[32, 10, 8, 0, 1, 0, 0, 0, 0],
        &[24, 10, 9, 0, 0, 0, 0, 0],
        // No host can use these.
        &[16, 10, 1, 224, 0, 0, 1],
        &[16, 10, 2, 10, 9, 0, 50],
    ]
    .concat();
    let expected = [
        route([10, 8, 0, 1], 32, None),
        route([0; 4], 0, Some([10, 9, 0, 254])),
        route([10, 0, 0, 0], 8, Some([10, 9, 0, 253])),
        route([172, 16, 0, 0], 12, Some([10, 9, 0, 252])),
    ];
    for pieces in [vec![&list[..]], vec![&list[..7], &list[7..]]] {
        let options: Vec<_> = pieces.iter().map(|piece| option(code::CLASSLESS_ROUTES, piece)).collect();
        let lease = lease_with(&options);
        assert_eq!(lease.router, None);
        assert_eq!(lease.routes().collect::<Vec<_>>(), expected);
    }
    // As many as there is room for.
    let many: Vec<u8> = (0..40).flat_map(|number| [16, 20, number, 10, 9, 0, 1]).collect();
    let many: Vec<_> = many.chunks(140).map(|piece| option(code::CLASSLESS_ROUTES, piece)).collect();
    assert_eq!(lease_with(&many).routes().count(), 16);
}

#[test]
fn damaged_lists_of_routes_leave_the_router() {
    let lists: [&[u8]; 6] = [
        &[],
        &[33, 10, 9, 0, 0, 1, 10, 9, 0, 1],
        &[24, 10, 9],
        &[24, 10, 8, 0, 10, 9, 0],
        &[0, 10, 9, 0, 1, 7],
        &[8, 10, 10, 9, 0, 1, 255],
    ];
    for list in lists {
        let lease = lease_with(&[option(code::CLASSLESS_ROUTES, list)]);
        assert_eq!((lease.router, lease.routes().count()), (Some(SERVER), 1), "{list:?}");
    }
}

#[test]
fn routes_are_asked_for_before_the_router() {
    let mut client = Client::new(MAC, "guest", 1, 0);
    let Step::Send(outgoing) = client.step(0) else { panic!("nothing is sent") };
    let wanted = question(outgoing.bytes).parameters;
    let place = |code: u8| wanted.iter().position(|wanted| *wanted == code).unwrap();
    assert!(place(code::CLASSLESS_ROUTES) < place(code::ROUTER));
}

#[test]
fn an_address_that_somebody_has_is_declined() {
    let mut world = World::new(7, vec![Server::new(600)]);
    world.taken = vec![FIRST, Ipv4Addr::new(10, 9, 0, 51)];
    world.run(40);
    let kinds: Vec<_> = world.sent.iter().map(|(.., kind)| *kind).collect();
    assert_eq!(kinds, [1, 3, DECLINE, 1, 3, DECLINE, 1, 3]);
    assert!(world.sent.iter().all(|(_, to, _)| to.is_broadcast()));
    for number in [2, 5] {
        let pause_ns = world.sent[number + 1].0 - world.sent[number].0;
        assert_eq!(pause_ns / SECOND_NS, 10, "after a refusal the client waits");
    }
    assert_eq!(world.kinds(), [Change::Bound]);
    assert_eq!(world.servers[0].declined, world.taken);
    assert_eq!(world.client.lease().unwrap().address, Ipv4Addr::new(10, 9, 0, 52));
    // A conflict that is found later is not about the check.
    world.client.conflict(world.now_ns);
    assert!(world.client.lease().is_some());
}

#[test]
fn an_address_is_not_used_before_it_is_checked() {
    let mut world = World::new(8, vec![Server::new(600)]);
    let mut probes = 0;
    let bound_ns = loop {
        let now_ns = world.now_ns;
        match world.client.step(now_ns) {
            Step::Send(outgoing) => {
                let bytes = world.servers[0].serve(outgoing.bytes, now_ns).unwrap();
                assert_eq!(world.client.receive(now_ns, &bytes), None);
            }
            Step::Probe(address) => {
                assert_eq!(address, FIRST);
                assert!(world.client.lease().is_none());
                probes += 1;
            }
            Step::Wait(until_ns) => world.now_ns = until_ns,
            Step::Bound => break now_ns,
            Step::Lost => panic!("nothing is lost"),
        }
    };
    assert_eq!((probes, bound_ns), (3, 300_000_000));
    assert_eq!(world.client.probed(), None);
    assert_eq!(world.client.lease().unwrap().address, FIRST);
}

#[test]
fn a_lease_is_given_back() {
    let mut world = World::new(9, vec![Server::new(600)]);
    world.run(10);
    let now_ns = world.now_ns;
    let outgoing = world.client.release(now_ns).unwrap();
    assert_eq!((outgoing.from, outgoing.to), (Some(FIRST), SERVER));
    assert!(world.servers[0].serve(outgoing.bytes, now_ns).is_none());
    assert_eq!(world.servers[0].until_ns, 0);
    assert!(world.client.lease().is_none() && world.client.release(now_ns).is_none());
    let sent = world.sent.len();
    world.run(100_000);
    assert_eq!((world.sent.len(), world.kinds()), (sent, vec![Change::Bound]));
}

#[test]
fn who_has_no_lease_gives_none_back() {
    for seconds in [0, 1] {
        let mut world = World::new(10, Vec::new());
        world.run(seconds);
        assert!(world.client.release(world.now_ns).is_none());
        assert!(matches!(world.client.step(world.now_ns), Step::Wait(u64::MAX)));
    }
}
