//! TCP between two engines.

use super::*;

/// Moves `sizes` bytes each way, in pieces of up to `piece`, and compares them.
fn transfer(net: &mut Net, ends: &[Arc<TcpSocket<Simulated>>; 2], sizes: [usize; 2], piece: usize) {
    let sent = [pattern(sizes[0], 1), pattern(sizes[1], 2)];
    let (mut offsets, mut received) = ([0, 0], [Vec::new(), Vec::new()]);
    let mut ended = [false, false];
    let done = net.run(|_| {
        for side in 0..2 {
            while offsets[side] < sent[side].len() {
                let end = sent[side].len().min(offsets[side] + 1 + random() as usize % piece);
                match send(&ends[side], &sent[side][offsets[side]..end]) {
                    Ok(count) => offsets[side] += count,
                    Err(InetError::WouldBlock) => break,
                    Err(error) => panic!("side {side} cannot send at {}: {error:?}", offsets[side]),
                }
            }
            if offsets[side] == sent[side].len() && !ended[side] {
                ended[side] = true;
                ends[side].shut_down(false, true).unwrap();
            }
            let other = &mut received[1 - side];
            loop {
                match receive(&ends[side], piece) {
                    Ok(bytes) if bytes.is_empty() => break,
                    Ok(bytes) => other.extend(bytes),
                    Err(InetError::WouldBlock) => break,
                    Err(error) => panic!("side {side} cannot receive at {}: {error:?}", other.len()),
                }
            }
        }
        received[0].len() == sizes[0] && received[1].len() == sizes[1]
    });
    assert_eq!([received[0].len(), received[1].len()], sizes);
    assert!(done);
    assert!(received[0] == sent[0] && received[1] == sent[1]);
}

#[test]
fn bytes_arrive_both_ways() {
    for addresses in [V4, V6] {
        let mut net = Net::new(1, Faults::default());
        let ends = net.connect(addresses, 80);
        transfer(&mut net, &ends, [300_000, 200_000], 20_000);
        for end in &ends {
            end.close();
        }
        net.run(|_| WORKERS.with_borrow(Vec::is_empty));
        assert!(WORKERS.with_borrow(Vec::is_empty), "the connections are over");
    }
}

#[test]
fn one_direction_grows_its_storage() {
    let mut net = Net::new(2, Faults::default());
    let ends = net.connect(V4, 80);
    let start_ns = NOW_NS.get();
    transfer(&mut net, &ends, [4_000_000, 0], 100_000);
    let took_ms = (NOW_NS.get() - start_ns) / MILLISECOND_NS;
    assert!(took_ms < 1000, "4 MB over a link of 0.1 ms took {took_ms} ms");
}

#[test]
fn a_device_cuts_segments() {
    let capabilities = LinkCapabilities {
        transmit_checksum: true,
        receive_checksum: true,
        tcp_segmentation_v4: 65_000,
        tcp_segmentation_v6: 65_000,
    };
    for addresses in [V4, V6] {
        let mut net = Net::with(3, Faults::default(), capabilities);
        let ends = net.connect(addresses, 80);
        transfer(&mut net, &ends, [1_000_000, 500_000], 70_000);
    }
}

#[test]
fn a_bad_link_changes_no_byte() {
    for seed in 0..40 {
        let faults = Faults {
            lost: seed % 5 * 20,
            repeated: seed % 3 * 30,
            corrupted: seed % 4 * 10,
            jitter_ns: seed % 6 * 200_000,
        };
        let mut net = Net::new(seed, faults);
        let ends = net.connect(if seed % 2 == 0 { V4 } else { V6 }, 80);
        transfer(&mut net, &ends, [60_000, 40_000], 9_000);
    }
}

/// Milliseconds that 16 MB take over a path of 200 ms, which loses one frame of 2000.
fn time_of_a_long_path(is_reno: bool, capabilities: LinkCapabilities) -> u64 {
    let mut net = Net::with(20, Faults::default(), capabilities);
    (net.delay_ns, net.lost_of) = (100 * MILLISECOND_NS, 2000);
    let ends = net.connect(V4, 80);
    for end in &ends {
        end.options.reno.store(is_reno.into(), Ordering::Relaxed);
        end.options.send_buffer.store(4 << 20, Ordering::Relaxed);
        end.options.receive_buffer.store(4 << 20, Ordering::Relaxed);
    }
    let start_ns = NOW_NS.get();
    transfer(&mut net, &ends, [16_000_000, 0], 100_000);
    (NOW_NS.get() - start_ns) / MILLISECOND_NS
}

#[test]
fn cubic_fills_a_long_path_better_than_reno() {
    let [reno_ms, cubic_ms] =
        [true, false].map(|is_reno| time_of_a_long_path(is_reno, LinkCapabilities::default()));
    println!("16 MB took {reno_ms} ms with Reno and {cubic_ms} ms with CUBIC");
    assert!(cubic_ms * 5 < reno_ms * 4, "16 MB took {reno_ms} ms with Reno and {cubic_ms} ms with CUBIC");
}

#[test]
fn several_losses_in_one_window_need_no_timeout() {
    let mut net = Net::new(21, Faults::default());
    net.delay_ns = 10 * MILLISECOND_NS;
    let ends = net.connect(V4, 80);
    let go = |net: &mut Net, length: usize| {
        let bytes = pattern(length, 6);
        let (mut offset, mut received, start_ns) = (0, Vec::new(), NOW_NS.get());
        assert!(net.run(|_| {
            if offset < bytes.len() {
                offset += send(&ends[0], &bytes[offset..]).unwrap_or(0);
            }
            received.extend(receive(&ends[1], 100_000).unwrap_or_default());
            received.len() == bytes.len()
        }));
        assert!(received == bytes);
        (NOW_NS.get() - start_ns) / MILLISECOND_NS
    };
    go(&mut net, 300_000);
    (net.lost_of, net.losses_max, net.carried) = (3, 4, 0);
    let took_ms = go(&mut net, 200_000);
    assert!(took_ms < 1000, "a timeout was needed: {took_ms} ms");
}

#[test]
fn nobody_listens() {
    let mut net = Net::new(4, Faults::default());
    let client = net.socket(0);
    let target = Endpoint::new(V4[1], 81);
    assert_eq!(client.connect(target, false), Err(InetError::InProgress));
    assert!(net.run(|_| client.readiness().contains(Readiness::ERROR)));
    assert_eq!(client.take_error(), Some(InetError::ConnectionRefused));
}

#[test]
fn nobody_is_there() {
    let mut net = Net::new(5, Faults { lost: 1000, ..Faults::default() });
    let client = net.socket(0);
    assert_eq!(client.connect(Endpoint::new(V4[1], 81), false), Err(InetError::InProgress));
    assert!(net.run(|_| client.readiness().contains(Readiness::ERROR)));
    assert_eq!(client.take_error(), Some(InetError::TimedOut));
}

#[test]
fn closing_with_unread_bytes_resets() {
    let mut net = Net::new(6, Faults::default());
    let [client, server] = net.connect(V4, 80);
    send(&client, b"unread").unwrap();
    assert!(net.run(|_| server.readiness().contains(Readiness::IN)));
    server.close();
    assert!(net.run(|_| client.readiness().contains(Readiness::ERROR)));
    assert_eq!(receive(&client, 10), Err(InetError::ConnectionReset));
    assert_eq!(receive(&client, 10), Ok(Vec::new()));
}

#[test]
fn a_half_closed_connection_goes_on() {
    let mut net = Net::new(7, Faults::default());
    let [client, server] = net.connect(V4, 80);
    send(&client, b"question").unwrap();
    client.shut_down(false, true).unwrap();
    assert!(net.run(|_| server.readiness().contains(Readiness::READ_HANG_UP)));
    assert_eq!(receive(&server, 100), Ok(b"question".to_vec()));
    assert_eq!(receive(&server, 100), Ok(Vec::new()));
    assert_eq!(send(&client, b"more"), Err(InetError::BrokenPipe));
    let answer = pattern(50_000, 3);
    let (mut offset, mut received) = (0, Vec::new());
    assert!(net.run(|_| {
        if offset < answer.len() {
            offset += send(&server, &answer[offset..]).unwrap_or(0);
        }
        received.extend(receive(&client, 100_000).unwrap_or_default());
        received.len() == answer.len()
    }));
    assert!(received == answer);
}

#[test]
fn a_quiet_connection_gives_its_storage_back_and_goes_on() {
    let mut net = Net::new(8, Faults::default());
    let ends = net.connect(V4, 80);
    for round in 0..3 {
        send(&ends[0], &pattern(30_000, round)).unwrap();
        let mut received = Vec::new();
        assert!(net.run(|_| {
            received.extend(receive(&ends[1], 100_000).unwrap_or_default());
            received.len() == 30_000
        }));
        assert!(received == pattern(30_000, round));
        let until_ns = NOW_NS.get() + 30_000 * MILLISECOND_NS;
        net.run(|_| NOW_NS.get() >= until_ns);
        NOW_NS.set(until_ns);
    }
}

#[test]
fn a_reader_that_stops_is_waited_for() {
    let mut net = Net::new(9, Faults::default());
    let [client, server] = net.connect(V4, 80);
    let bytes = pattern(3_000_000, 4);
    let mut offset = 0;
    let until_ns = NOW_NS.get() + 60_000 * MILLISECOND_NS;
    net.run(|_| {
        offset += send(&client, &bytes[offset..]).unwrap_or(0);
        NOW_NS.get() >= until_ns
    });
    assert!(offset < 2_000_000, "{offset} bytes wait for a reader");
    let mut received = Vec::new();
    assert!(net.run(|_| {
        if offset < bytes.len() {
            offset += send(&client, &bytes[offset..]).unwrap_or(0);
        }
        while let Ok(part) = receive(&server, 100_000)
            && !part.is_empty()
        {
            received.extend(part);
        }
        received.len() == bytes.len()
    }));
    assert!(received == bytes);
}

#[test]
fn a_flood_of_requests_leaves_room_for_the_honest() {
    let mut net = Net::new(10, Faults::default());
    let listener = net.socket(1);
    listener.bind(Endpoint::new(V4[1], 80)).unwrap();
    listener.listen(16).unwrap();
    // The neighbours know each other.
    let first = net.socket(0);
    let _ = first.connect(Endpoint::new(V4[1], 80), false);
    let mut accepted = None;
    assert!(net.run(|_| {
        accepted = accepted.take().or_else(|| listener.accept().ok());
        accepted.is_some()
    }));
    for number in 0..5000_u32 {
        let source = Endpoint::new(IpAddr::V4(Ipv4Addr::from(0x0a00_0100 + number)), 1000);
        let frame = super::malformed::syn(source, Endpoint::new(V4[1], 80), net.hosts[1].link.mac);
        net.hosts[1].engine.receive(&frame, false);
        net.hosts[1].link.sent.lock().unwrap().clear();
    }
    assert!(net.hosts[1].engine.tcp_sockets().unwrap().len() < 1100);
    let second = net.socket(0);
    let _ = second.connect(Endpoint::new(V4[1], 80), false);
    assert!(net.run(|_| listener.accept().is_ok()));
}

#[test]
fn many_connections_live_side_by_side() {
    const COUNT: usize = 10_000;
    let mut net = Net::new(11, Faults::default());
    let listener = net.socket(1);
    listener.bind(Endpoint::new(V4[1], 80)).unwrap();
    listener.listen(4096).unwrap();
    let (mut clients, mut servers) = (Vec::new(), Vec::new());
    while clients.len() < COUNT {
        for _ in 0..100 {
            let client = net.socket(0);
            assert_eq!(client.connect(Endpoint::new(V4[1], 80), false), Err(InetError::InProgress));
            clients.push(client);
        }
        let wanted = clients.len();
        assert!(net.run(|_| {
            while let Ok(server) = listener.accept() {
                servers.push(server);
            }
            servers.len() == wanted
        }));
    }
    let by_peer: std::collections::HashMap<_, _> =
        servers.iter().map(|server| (server.peer(), server)).collect();
    for number in [0, 1, COUNT / 2, COUNT - 1] {
        let client = &clients[number];
        send(client, &number.to_le_bytes()).unwrap();
        let server = by_peer[&client.local()];
        let mut received = Vec::new();
        assert!(net.run(|_| {
            received.extend(receive(server, 100).unwrap_or_default());
            received.len() == 8
        }));
        assert_eq!(received, number.to_le_bytes());
    }
    for socket in clients.iter().chain(&servers) {
        socket.options.linger.store(0, Ordering::Relaxed);
        socket.close();
    }
    net.run(|_| WORKERS.with_borrow(Vec::is_empty));
    let left: Vec<_> = net.hosts[0].engine.tcp_sockets().unwrap();
    assert!(left.is_empty(), "{} are left", left.len());
}

#[test]
fn a_slow_reader_of_a_small_window_is_told_of_room() {
    let mut net = Net::new(12, Faults::default());
    net.step_ns = MILLISECOND_NS;
    let [client, server] = net.connect(V4, 80);
    server.options.receive_buffer.store(60_000, Ordering::Relaxed);
    let bytes = pattern(2_000_000, 5);
    let (mut offset, mut received, mut last_ns) = (0, Vec::new(), NOW_NS.get());
    let start_ns = NOW_NS.get();
    assert!(net.run(|_| {
        if offset < bytes.len() {
            offset += send(&client, &bytes[offset..]).unwrap_or(0);
        }
        // It looks every millisecond at most.
        if NOW_NS.get() >= last_ns + MILLISECOND_NS {
            last_ns = NOW_NS.get();
            received.extend(receive(&server, 100_000).unwrap_or_default());
        }
        received.len() == bytes.len()
    }));
    assert!(received == bytes);
    let took_ms = (NOW_NS.get() - start_ns) / MILLISECOND_NS;
    assert!(took_ms < 500, "2 MB took {took_ms} ms");
}
