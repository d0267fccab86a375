//! Peers that vanish, are killed, do not read, or do not accept.

use super::*;

/// Connections that are left on both hosts.
fn left(net: &Net) -> usize {
    net.hosts.iter().map(|host| host.engine.tcp_sockets().unwrap().len()).sum()
}

/// Lets so many seconds pass.
fn pass(net: &mut Net, seconds: u64) {
    let until_ns = NOW_NS.get() + seconds * 1000 * MILLISECOND_NS;
    net.run(|_| NOW_NS.get() >= until_ns);
    NOW_NS.set(NOW_NS.get().max(until_ns));
}

#[test]
fn a_client_that_vanishes_is_given_up() {
    for user_timeout in [0, 10_000] {
        let mut net = Net::new(30, Faults::default());
        let [_client, server] = net.connect(V4, 80);
        server.options.user_timeout.store(user_timeout, Ordering::Relaxed);
        net.faults.lost = 1000;
        let start_ns = NOW_NS.get();
        send(&server, &pattern(20_000, 1)).unwrap();
        assert!(net.run(|_| server.readiness().contains(Readiness::ERROR)));
        assert_eq!(server.take_error(), Some(InetError::TimedOut));
        let took_s = (NOW_NS.get() - start_ns) / (1000 * MILLISECOND_NS);
        let expected = if user_timeout == 0 { 900..1100 } else { 9..20 };
        assert!(expected.contains(&took_s), "it was given up after {took_s} s");
        server.close();
        net.settle();
        assert_eq!(net.hosts[1].engine.tcp_sockets().unwrap().len(), 0);
    }
}

#[test]
fn a_client_that_vanishes_without_a_word_is_asked() {
    let mut net = Net::new(31, Faults::default());
    let [_client, server] = net.connect(V6, 80);
    for (option, value) in [
        (&server.options.keep_alive, 1),
        (&server.options.keep_idle, 20),
        (&server.options.keep_interval, 5),
        (&server.options.keep_count, 3),
    ] {
        option.store(value, Ordering::Relaxed);
    }
    server.timers_changed();
    pass(&mut net, 300);
    assert!(!server.readiness().contains(Readiness::ERROR), "it answers");
    net.faults.lost = 1000;
    assert!(net.run(|_| server.readiness().contains(Readiness::ERROR)));
    assert_eq!(server.take_error(), Some(InetError::TimedOut));
}

#[test]
fn a_server_that_is_killed_in_mid_stream_resets() {
    for has_unread in [false, true] {
        let mut net = Net::new(32, Faults::default());
        let [client, server] = net.connect(V4, 80);
        let bytes = pattern(1_000_000, 2);
        let (mut offset, mut received) = (0, 0);
        assert!(net.run(|_| {
            offset += send(&server, &bytes[offset..]).unwrap_or(0);
            received += receive(&client, 5000).map_or(0, |part| part.len());
            received > 200_000
        }));
        if has_unread {
            send(&client, b"a request").unwrap();
            assert!(net.run(|_| server.readiness().contains(Readiness::IN)));
        }
        // The end of a process closes what it had open.
        server.close();
        let mut last = Err(InetError::WouldBlock);
        assert!(net.run(|_| {
            if !has_unread
                && let Err(error @ (InetError::ConnectionReset | InetError::BrokenPipe)) =
                    send(&client, b"more")
            {
                // Whoever asks first is told.
                last = Err(error);
                return true;
            }
            loop {
                last = receive(&client, 100_000);
                match &last {
                    Ok(part) if !part.is_empty() => {}
                    Err(InetError::WouldBlock) => return false,
                    _ => return true,
                }
            }
        }));
        assert!(matches!(last, Err(InetError::ConnectionReset | InetError::BrokenPipe)), "{last:?}");
        client.close();
        net.run(|net| left(net) == 0);
        assert_eq!(left(&net), 0);
    }
}

#[test]
fn clients_wait_for_room_in_a_full_queue() {
    const CLIENTS: usize = 8;
    let mut net = Net::new(33, Faults::default());
    net.step_ns = 100 * MILLISECOND_NS;
    let listener = net.socket(1);
    listener.bind(Endpoint::new(V4[1], 80)).unwrap();
    listener.listen(1).unwrap();
    let clients: Vec<_> = (0..CLIENTS).map(|_| net.socket(0)).collect();
    for client in &clients {
        assert_eq!(client.connect(Endpoint::new(V4[1], 80), false), Err(InetError::InProgress));
    }
    let until_ns = NOW_NS.get() + 1000 * MILLISECOND_NS;
    net.run(|_| NOW_NS.get() >= until_ns);
    assert!(clients.iter().all(|client| client.take_error().is_none()), "nobody is refused");
    // One is accepted now and then.
    let (mut servers, mut next_ns) = (Vec::new(), NOW_NS.get());
    assert!(net.run(|_| {
        if NOW_NS.get() >= next_ns {
            next_ns = NOW_NS.get() + 200 * MILLISECOND_NS;
            servers.extend(listener.accept());
        }
        servers.len() == CLIENTS
    }));
    for client in &clients {
        assert_eq!(client.take_error(), None);
        assert_eq!(client.connect(Endpoint::new(V4[1], 80), false), Ok(()));
    }
}

#[test]
fn a_host_that_stops_reading_is_asked_until_it_vanishes() {
    let mut net = Net::new(34, Faults::default());
    let [client, server] = net.connect(V4, 80);
    let bytes = pattern(3_000_000, 3);
    let mut offset = 0;
    let until_ns = NOW_NS.get() + 1_800_000 * MILLISECOND_NS;
    net.run(|_| {
        offset += send(&client, &bytes[offset..]).unwrap_or(0);
        NOW_NS.get() >= until_ns
    });
    // Half an hour later it is still there, because it answers.
    assert!(!client.readiness().contains(Readiness::ERROR));
    assert!(server.readiness().contains(Readiness::IN));
    net.faults.lost = 1000;
    assert!(net.run(|_| client.readiness().contains(Readiness::ERROR)));
    assert_eq!(client.take_error(), Some(InetError::TimedOut));
}
