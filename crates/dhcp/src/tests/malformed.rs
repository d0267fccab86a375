//! Messages that are no answers.

use super::*;

/// A client that has sent its first question, and that.
fn asking() -> (Client, Vec<u8>) {
    let mut client = Client::new(MAC, "guest", 9, 0);
    let Step::Send(outgoing) = client.step(0) else { panic!("nothing is sent") };
    let bytes = outgoing.bytes.to_vec();
    assert_eq!(question(&bytes).name, b"guest");
    (client, bytes)
}

/// A client that has asked for the server's offer, and the question.
fn requesting() -> (Client, Vec<u8>) {
    let (mut client, bytes) = asking();
    assert_eq!(client.receive(0, &answer(&bytes, 2, FIRST, SERVER, &options(60))), None);
    let Step::Send(outgoing) = client.step(0) else { panic!("the offer is not taken") };
    let bytes = outgoing.bytes.to_vec();
    let question = question(&bytes);
    assert_eq!((question.kind, question.requested, question.server), (3, Some(FIRST), Some(SERVER)));
    (client, bytes)
}

/// Neither has an effect on a client that waits for it.
fn has_no_effect(make: impl Fn(&[u8], u8) -> Vec<u8>) {
    let (mut client, bytes) = asking();
    assert_eq!(client.receive(0, &make(&bytes, 2)), None);
    assert!(matches!(client.step(0), Step::Wait(_)), "an offer is taken");
    let (mut client, bytes) = requesting();
    assert_eq!(client.receive(0, &make(&bytes, 5)), None);
    assert!(matches!(client.step(0), Step::Wait(_)));
    // The right answer still has.
    assert_eq!(client.receive(0, &answer(&bytes, 5, FIRST, SERVER, &options(60))), None);
    assert!(takes_address(&mut client));
}

#[test]
fn messages_for_others_have_no_effect() {
    for place in [0, 1, 2, 4, 7, 28, 33, 236] {
        has_no_effect(|bytes, kind| {
            let mut answer = answer(bytes, kind, FIRST, SERVER, &options(60));
            answer[place] ^= 1;
            answer
        });
    }
}

#[test]
fn short_messages_have_no_effect() {
    let length = answer(&[0; 300], 2, FIRST, SERVER, &[]).len();
    for length in 0..length - 1 {
        has_no_effect(|bytes, kind| {
            let mut answer = answer(bytes, kind, FIRST, SERVER, &options(60));
            // In the middle of its server's option it has no server.
            answer.truncate(length);
            answer
        });
    }
}

#[test]
fn options_that_are_too_long_have_no_effect() {
    for tail in
        [&[code::MTU][..], &[code::MTU, 2, 5], &[code::ROUTER, 255, 1], &[code::SUBNET_MASK, 3, 1, 2, 3]]
    {
        has_no_effect(|bytes, kind| {
            let mut answer = answer(bytes, kind, FIRST, SERVER, &[]);
            answer.pop();
            answer.extend(tail);
            answer
        });
    }
    has_no_effect(|bytes, kind| {
        let mut answer = answer(bytes, kind, FIRST, SERVER, &option(code::OVERLOAD, &[1]));
        answer[108..110].copy_from_slice(&[code::MTU, 200]);
        answer
    });
    has_no_effect(|bytes, kind| answer(bytes, kind, FIRST, SERVER, &[code::PAD; 1300]));
}

#[test]
fn settings_that_no_host_can_have_have_no_effect() {
    let with = |mask: [u8; 4]| option(code::SUBNET_MASK, &mask);
    for mask in [[0; 4], [255, 0, 255, 0], [0, 255, 255, 255], [255, 255, 255, 206]] {
        has_no_effect(|bytes, kind| answer(bytes, kind, FIRST, SERVER, &with(mask)));
    }
    for address in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "10.9.0.0", "10.9.0.255"] {
        has_no_effect(|bytes, kind| answer(bytes, kind, address.parse().unwrap(), SERVER, &options(60)));
    }
    has_no_effect(|bytes, kind| answer(bytes, kind, FIRST, Ipv4Addr::UNSPECIFIED, &options(60)));
}

#[test]
fn only_the_chosen_server_is_heard() {
    let other = Ipv4Addr::new(10, 9, 0, 2);
    let (mut client, bytes) = requesting();
    for kind in [2, 5, 6] {
        assert_eq!(client.receive(0, &answer(&bytes, kind, FIRST, other, &options(60))), None);
    }
    // An offer that comes late, an address that was not asked for, and a message of a client.
    let second = Ipv4Addr::new(10, 9, 0, 51);
    assert_eq!(client.receive(0, &answer(&bytes, 2, second, SERVER, &options(60))), None);
    assert_eq!(client.receive(0, &answer(&bytes, 5, second, SERVER, &options(60))), None);
    assert_eq!(client.receive(0, &answer(&bytes, 3, FIRST, SERVER, &options(60))), None);
    assert!(matches!(client.step(0), Step::Wait(_)));
    assert_eq!(client.receive(0, &answer(&bytes, 5, FIRST, SERVER, &options(60))), None);
    // It comes twice, before and after the check.
    assert_eq!(client.receive(0, &answer(&bytes, 5, FIRST, SERVER, &options(60))), None);
    assert_eq!(client.receive(0, &answer(&bytes, 6, FIRST, SERVER, &options(60))), None);
    assert!(takes_address(&mut client));
    assert_eq!(client.receive(0, &answer(&bytes, 5, FIRST, SERVER, &options(60))), None);
    assert_eq!(client.receive(0, &answer(&bytes, 6, FIRST, SERVER, &options(60))), None);
    assert!(client.lease().is_some());
}

#[test]
fn names_that_are_none_are_left_out() {
    let lists: [&[u8]; 8] = [
        &[3, b'n', b'e'],
        &[0],
        &[0xc0, 0],
        &[1, b'a', 0xc0, 0],
        &[1, b'a', 0xc0, 9],
        &[1, b'\n', 0],
        &[64, b'a', 0],
        &[1, b'a'],
    ];
    for list in lists {
        let (mut client, bytes) = requesting();
        let more = [option(code::DOMAIN_SEARCH, list), option(code::DOMAIN_NAME, b"a.net")].concat();
        let options = [options(60), more].concat();
        assert_eq!(client.receive(0, &answer(&bytes, 5, FIRST, SERVER, &options)), None);
        assert!(takes_address(&mut client));
        assert_eq!(client.lease().unwrap().search.as_str(), "a.net", "{list:?}");
    }
    for name in [&b"two\nnameserver 1.2.3.4"[..], b"", b"-a", b"a b", b"a;b", &[b'a'; 64], &[0xff, 0xfe]] {
        let (mut client, bytes) = requesting();
        let options = [options(60), option(code::HOST_NAME, name)].concat();
        assert_eq!(client.receive(0, &answer(&bytes, 5, FIRST, SERVER, &options)), None);
        assert!(takes_address(&mut client));
        assert!(client.lease().unwrap().host_name.is_empty(), "{name:?}");
    }
}

/// Noise of which a good part looks like an answer.
#[test]
fn noise_harms_nobody() {
    let mut random = Random(1);
    for round in 0..20_000_u64 {
        let (mut client, bytes) = if round.is_multiple_of(2) { asking() } else { requesting() };
        let kind = [2, 5, 6][random.draw() as usize % 3];
        let noise: Vec<u8> = (0..random.draw() % 300).map(|_| random.draw() as u8 % 130).collect();
        let mut bytes = answer(&bytes, kind, FIRST, SERVER, &noise);
        for _ in 0..random.draw() % 3 {
            let place = random.draw() as usize % bytes.len();
            bytes[place] = random.draw() as u8;
        }
        client.receive(0, &bytes);
        let mut now_ns = 0;
        for _ in 0..16 {
            match client.step(now_ns) {
                Step::Wait(until_ns) => now_ns = until_ns,
                Step::Send(_) | Step::Probe(_) | Step::Bound | Step::Lost => {}
            }
        }
        if let Some(lease) = client.lease() {
            assert!(lease.routes().count() <= 17);
            assert!(lease.resolver().as_str().lines().all(|line| line.contains(' ')));
        }
    }
}
