//! Sockets within one machine.

use super::*;
use crate::ip::{IpHeader, fold, protocol, sum};
use crate::tcp::TcpState;
use crate::udp::{SendOptions, UdpSocket};

fn pair(net: &Net) -> [Arc<TcpSocket<Simulated>>; 2] {
    let listener = net.socket(0);
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    listener.bind(Endpoint::new(address, 0)).unwrap();
    listener.listen(1).unwrap();
    let client = net.socket(0);
    assert_eq!(client.connect(listener.local(), true), Ok(()));
    let server = listener.accept().unwrap();
    listener.close();
    [client, server]
}

#[test]
fn bytes_pass_without_packets() {
    let net = Net::new(1, Faults::default());
    let [client, server] = pair(&net);
    let bytes = pattern(100_000, 1);
    let mut offset = 0;
    let mut received = Vec::new();
    while received.len() < bytes.len() {
        offset += send(&client, &bytes[offset..]).unwrap_or(0);
        received.extend(receive(&server, 7_777).unwrap_or_default());
    }
    assert!(received == bytes);
    assert!(net.hosts[0].link.sent.lock().unwrap().is_empty());
}

#[test]
fn data_after_a_close_is_answered_as_in_tcp() {
    let net = Net::new(2, Faults::default());
    let [client, server] = pair(&net);
    server.close();
    assert_eq!(receive(&client, 1), Ok(Vec::new()));
    assert_eq!(send(&client, b"first"), Ok(5));
    assert_eq!(send(&client, b"second"), Err(InetError::BrokenPipe));
    let [client, server] = pair(&net);
    send(&client, b"unread").unwrap();
    server.close();
    assert_eq!(receive(&client, 1), Err(InetError::ConnectionReset));
}

#[test]
fn a_full_queue_makes_clients_wait() {
    let net = Net::new(3, Faults::default());
    let listener = net.socket(0);
    listener.bind(Endpoint::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0)).unwrap();
    listener.listen(0).unwrap();
    let target = listener.local();
    let clients: Vec<_> = (0..3).map(|_| net.socket(0)).collect();
    assert_eq!(clients[0].connect(target, true), Ok(()));
    assert_eq!(clients[1].connect(target, true), Err(InetError::WouldBlock));
    assert_eq!(clients[2].connect(target, true), Err(InetError::WouldBlock));
    let _first = listener.accept().unwrap();
    assert_eq!(clients[1].connect(target, true), Ok(()));
    listener.close();
    assert_eq!(clients[2].connect(target, true), Err(InetError::ConnectionRefused));
    assert_eq!(receive(&clients[1], 1), Err(InetError::ConnectionReset));
}

#[test]
fn ports_are_taken_and_given_back() {
    let net = Net::new(4, Faults::default());
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let one = net.socket(0);
    one.bind(Endpoint::new(address, 5000)).unwrap();
    let other = net.socket(0);
    assert_eq!(other.bind(Endpoint::new(address, 5000)), Err(InetError::AddressInUse));
    one.close();
    assert_eq!(other.bind(Endpoint::new(address, 5000)), Ok(()));
    other.listen(1).unwrap();
    let client = net.socket(0);
    client.connect(Endpoint::new(address, 5000), true).unwrap();
    let server = other.accept().unwrap();
    // The server closes first, and its port stays taken.
    server.close();
    client.close();
    other.close();
    let again = net.socket(0);
    assert_eq!(again.bind(Endpoint::new(address, 5000)), Err(InetError::AddressInUse));
    NOW_NS.set(NOW_NS.get() + 61_000 * MILLISECOND_NS);
    net.hosts[0].engine.tick();
    assert_eq!(again.bind(Endpoint::new(address, 5000)), Ok(()));
}

#[test]
fn connections_leave_nothing_behind() {
    let net = Net::new(5, Faults::default());
    let listener = net.socket(0);
    listener.bind(Endpoint::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 80)).unwrap();
    listener.listen(16).unwrap();
    for _ in 0..100_000 {
        let client = net.socket(0);
        client.connect(listener.local(), true).unwrap();
        let server = listener.accept().unwrap();
        client.close();
        server.close();
    }
    assert!(net.hosts[0].engine.tcp_sockets().unwrap().len() <= 8193);
    NOW_NS.set(NOW_NS.get() + 61_000 * MILLISECOND_NS);
    net.hosts[0].engine.tick();
    assert_eq!(net.hosts[0].engine.tcp_sockets().unwrap().len(), 1);
}

fn datagram(
    socket: &Arc<UdpSocket<Simulated>>,
    target: Option<Endpoint>,
    bytes: &[u8],
) -> Result<usize, InetError> {
    let how = SendOptions { target, ..SendOptions::default() };
    let copy = |free: &mut [u8]| -> Result<usize, ()> {
        free.copy_from_slice(bytes);
        Ok(bytes.len())
    };
    socket.send(bytes.len(), &how, copy).map_err(reason)
}

fn next(socket: &UdpSocket<Simulated>) -> Result<(Endpoint, Vec<u8>), InetError> {
    let taken =
        socket.receive(false, true, |datagram| Ok::<_, ()>((datagram.source, datagram.payload().to_vec())));
    taken.map_err(reason).map(Option::unwrap)
}

#[test]
fn datagrams_arrive_here_and_over_the_link() {
    let mut net = Net::new(6, Faults::default());
    for (target_host, target) in [(0, V4[0]), (1, V4[1]), (1, V6[1])] {
        let is_v6 = !target.is_ipv4();
        let receiver = UdpSocket::new(&net.hosts[target_host].engine, is_v6, 0).unwrap();
        receiver.bind(Endpoint::new(target, 53)).unwrap();
        let sender = UdpSocket::new(&net.hosts[0].engine, is_v6, 0).unwrap();
        for size in [0, 1, 1000, 1472, 1473, 9000, 65_000] {
            let bytes = pattern(size, size as u64);
            assert_eq!(datagram(&sender, Some(receiver.local()), &bytes), Ok(size));
            assert!(net.run(|_| receiver.readiness().contains(Readiness::IN)), "{size} bytes to {target}");
            let (from, received) = next(&receiver).unwrap();
            assert!(received == bytes);
            assert_eq!(from.port, sender.local().port);
        }
        receiver.close();
        sender.close();
    }
}

#[test]
fn a_datagram_to_nobody_is_refused() {
    let mut net = Net::new(7, Faults::default());
    for target in [V4[0], V4[1], V6[1]] {
        let sender = UdpSocket::new(&net.hosts[0].engine, !target.is_ipv4(), 0).unwrap();
        sender.connect(Some(Endpoint::new(target, 99))).unwrap();
        datagram(&sender, None, b"hello").unwrap();
        assert!(net.run(|_| sender.readiness().contains(Readiness::ERROR)), "{target}");
        assert_eq!(datagram(&sender, None, b"hello"), Err(InetError::ConnectionRefused));
        sender.close();
    }
}

/// The frames that a host has sent, taken off its link.
fn sent(net: &Net, host: usize) -> Vec<Vec<u8>> {
    net.hosts[host].link.sent.lock().unwrap().drain(..).map(|(frame, _)| frame).collect()
}

#[test]
fn routers_hear_of_groups() {
    let net = Net::new(1, Faults::default());
    let engine = &net.hosts[0].engine;
    let group = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
    let [first, second] = [0, 1].map(|_| UdpSocket::new(engine, false, 0).unwrap());
    sent(&net, 0);
    first.join(group, 0, true).unwrap();
    second.join(group, 0, true).unwrap();
    let reports = sent(&net, 0);
    assert_eq!(reports.len(), 1, "the second member is no news");
    let packet = &reports[0][14..];
    assert_eq!((packet[0], packet[8], packet[9]), (0x46, 1, protocol::IGMP));
    assert_eq!(fold(sum(&packet[..24], 0)), 0xffff);
    assert_eq!((packet[24], &packet[28..32]), (0x16, &[239, 1, 2, 3][..]));
    assert_eq!(fold(sum(&packet[24..], 0)), 0xffff);
    // A router asks who is there.
    let mut query = vec![0x46, 0, 0, 32, 0, 0, 0, 0, 1, 2, 0, 0, 10, 0, 0, 2, 224, 0, 0, 1, 0x94, 4, 0, 0];
    let checksum = !fold(sum(&query, 0));
    query[10..12].copy_from_slice(&checksum.to_be_bytes());
    let mut message = [0x11, 100, 0, 0, 0, 0, 0, 0];
    let checksum = !fold(sum(&message, 0));
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let mut frame = vec![1, 0, 0x5e, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend(query.iter().chain(&message));
    engine.receive(&frame, false);
    assert_eq!(sent(&net, 0), reports);
    first.join(group, 0, false).unwrap();
    assert_eq!(sent(&net, 0).len(), 0);
    second.close();
    let left = sent(&net, 0);
    assert_eq!((left.len(), left[0][14 + 24], &left[0][14 + 16..14 + 20]), (1, 0x17, &[224, 0, 0, 2][..]));
}

#[test]
fn routers_hear_of_groups_of_v6() {
    let net = Net::new(1, Faults::default());
    let socket = UdpSocket::new(&net.hosts[0].engine, true, 0).unwrap();
    sent(&net, 0);
    let group = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, 0x99);
    for group in
        [Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xff01, 0, 0, 0, 0, 0, 0, 7), group]
    {
        socket.join(IpAddr::V6(group), 0, true).unwrap();
    }
    let reports = sent(&net, 0);
    assert_eq!(reports.len(), 1, "those of all hosts and within the machine are not told");
    let parsed = IpHeader::parse(&reports[0][14..]).unwrap();
    assert_eq!((parsed.header.protocol, parsed.header.ttl), (protocol::ICMP_V6, 1));
    assert!(parsed.header.has_valid_checksum(parsed.payload));
    assert_eq!((parsed.payload[0], &parsed.payload[8..24]), (131, &group.octets()[..]));
    socket.close();
    assert_eq!(IpHeader::parse(&sent(&net, 0)[0][14..]).unwrap().payload[0], 132);
}

/// Connects, sends a byte and dissolves the connection. Returns the other end.
fn made_and_dissolved(
    client: &Arc<TcpSocket<Simulated>>,
    listener: &Arc<TcpSocket<Simulated>>,
) -> Arc<TcpSocket<Simulated>> {
    assert_eq!(client.connect(listener.local(), true), Ok(()));
    let server = listener.accept().unwrap();
    assert_eq!(
        server.receive(Reading::First, |bytes| Ok::<_, ()>(bytes.len())),
        Err(InetError::WouldBlock.into())
    );
    assert_eq!(client.send(1, |free| Ok::<_, ()>(free.len())), Ok(1));
    assert_eq!(server.progress().unread, 1);
    client.disconnect();
    assert_eq!(client.take_error(), Some(InetError::ConnectionReset));
    assert_eq!(client.remote(), Err(InetError::NotConnected));
    server
}

#[test]
fn a_dissolved_connection_makes_room_for_another() {
    let net = Net::new(1, Faults::default());
    let listener = net.socket(0);
    listener.bind(Endpoint::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0)).unwrap();
    listener.listen(1).unwrap();
    let client = net.socket(0);
    for _ in 0..3000 {
        made_and_dissolved(&client, &listener).close();
    }
    assert_eq!(client.links(), 1);
    // Ends that stay open stay reset, and keep their bytes.
    let open: Vec<_> = (0..100).map(|_| made_and_dissolved(&client, &listener)).collect();
    assert_eq!(client.links(), 100);
    for server in &open {
        assert_eq!(server.receive(Reading::First, |bytes| Ok::<_, ()>(bytes.len())), Ok(1));
        let error = server.receive(Reading::First, |bytes| Ok::<_, ()>(bytes.len()));
        assert_eq!(error, Err(InetError::ConnectionReset.into()));
        server.close();
    }
    drop(open);
    for _ in 0..300 {
        made_and_dissolved(&client, &listener).close();
    }
    assert_eq!(client.links(), 100);
    client.close();
    listener.close();
}

#[test]
fn a_socket_is_its_own_peer_again_and_again() {
    let net = Net::new(1, Faults::default());
    let (socket, listener) = (net.socket(0), net.socket(0));
    socket.bind(Endpoint::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 40_000)).unwrap();
    listener.bind(Endpoint::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0)).unwrap();
    listener.listen(1).unwrap();
    for _ in 0..300 {
        assert_eq!(socket.connect(Endpoint::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 40_000), true), Ok(()));
        assert_eq!(socket.send(5, |free| Ok::<_, ()>(free.len())), Ok(5));
        assert_eq!(socket.receive(Reading::First, |bytes| Ok::<_, ()>(bytes.len())), Ok(5));
        socket.disconnect();
        assert_eq!(socket.take_error(), Some(InetError::ConnectionReset));
        made_and_dissolved(&socket, &listener).close();
    }
    assert_eq!(socket.links(), 2);
    socket.close();
    listener.close();
}

#[test]
fn a_socket_is_its_own_peer() {
    let net = Net::new(1, Faults::default());
    let socket = net.socket(0);
    socket.bind(Endpoint::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0)).unwrap();
    assert_eq!(socket.connect(socket.local(), true), Ok(()));
    assert_eq!(socket.remote(), Ok(socket.local()));
    assert_eq!(socket.send(5, |free| Ok::<_, ()>(free.len())), Ok(5));
    assert!(socket.readiness().contains(Readiness::IN | Readiness::OUT));
    assert_eq!(socket.receive(Reading::First, |bytes| Ok::<_, ()>(bytes.len())), Ok(5));
    socket.shut_down(false, true).unwrap();
    assert_eq!(socket.receive(Reading::First, |bytes| Ok::<_, ()>(bytes.len())), Ok(0));
    socket.close();
    // Its place waits, as that of any end that was first.
    assert_eq!(net.hosts[0].engine.tcp_sockets().map(|all| all.len()), Ok(1));
}

#[test]
fn corked_bytes_wait_for_more() {
    let mut net = Net::new(1, Faults::default());
    let [client, server] = pair(&net);
    let cork = |is_on: u32| {
        client.options.cork.store(is_on, Ordering::Relaxed);
        client.cork_changed();
    };
    let read = || server.receive(Reading::First, |bytes| Ok::<_, ()>(bytes.len()));
    let send = |count: usize| {
        client.send(count, |free| {
            free.fill(b'x');
            Ok::<_, ()>(free.len())
        })
    };
    cork(1);
    assert_eq!((send(10), send(20)), (Ok(10), Ok(20)));
    assert_eq!(read(), Err(InetError::WouldBlock.into()));
    cork(0);
    assert_eq!(read(), Ok(30));
    assert_eq!((send(5), read()), (Ok(5), Ok(5)));
    // Nobody takes the cork away: the bytes go after a while.
    cork(1);
    assert_eq!(send(7), Ok(7));
    assert_eq!(read(), Err(InetError::WouldBlock.into()));
    assert!(net.run(|_| server.progress().unread > 0));
    assert_eq!(read(), Ok(7));
    // A segment's worth goes at once, and so does the rest with the end.
    assert_eq!(send(70_000), Ok(70_000));
    assert_eq!(server.progress().unread, 70_000);
    assert_eq!(send(3), Ok(3));
    assert_eq!(server.progress().unread, 70_000);
    client.close();
    assert_eq!(server.progress().unread, 70_003);
    server.close();
}

#[test]
fn a_call_with_bytes_ends_at_urgent_data() {
    let net = Net::new(1, Faults::default());
    let [client, server] = pair(&net);
    let read = |reading| server.receive(reading, |bytes| Ok::<_, ()>(bytes.len()));
    send(&client, b"abc").unwrap();
    client.send_urgent(b'!').unwrap();
    send(&client, b"de").unwrap();
    assert_eq!((server.progress().unread, server.progress().before_mark), (5, 3));
    assert_eq!((read(Reading::Peek(0)), read(Reading::Peek(3))), (Ok(3), Ok(0)));
    assert_eq!((read(Reading::First), read(Reading::Further)), (Ok(3), Ok(0)));
    assert_eq!((server.progress().at_mark, server.progress().before_mark), (true, 0));
    assert_eq!(read(Reading::Peek(0)), Ok(2));
    assert_eq!(read(Reading::Peek(2)), Err(InetError::WouldBlock.into()));
    assert_eq!(read(Reading::First), Ok(2));
    assert_eq!(read(Reading::Further), Err(InetError::WouldBlock.into()));
    // Nothing follows.
    send(&client, b"f").unwrap();
    client.send_urgent(b'!').unwrap();
    assert_eq!((read(Reading::First), read(Reading::Further)), (Ok(1), Ok(0)));
    assert_eq!(read(Reading::First), Err(InetError::WouldBlock.into()));
    client.close();
    server.close();
}

#[test]
fn a_full_buffer_of_corked_bytes_makes_the_writer_wait() {
    let net = Net::new(1, Faults::default());
    let [client, server] = pair(&net);
    client.options.send_buffer.store(3000, Ordering::Relaxed);
    client.buffers_changed();
    server.options.receive_buffer.store(3000, Ordering::Relaxed);
    server.buffers_changed();
    client.options.cork.store(1, Ordering::Relaxed);
    client.cork_changed();
    let mut sent = 0;
    while let Ok(count) = client.send(1000, |free| Ok::<_, ()>(free.len())) {
        sent += count;
    }
    assert_eq!(sent, 6000);
    assert!(!client.readiness().contains(Readiness::OUT));
    assert_eq!(server.receive(Reading::First, |bytes| Ok::<_, ()>(bytes.len())), Ok(6000));
    assert!(client.readiness().contains(Readiness::OUT));
    client.close();
    server.close();
}

#[test]
fn an_end_that_hears_nothing_is_accepted_late() {
    let mut net = Net::new(1, Faults::default());
    let listener = net.socket(0);
    listener.bind(Endpoint::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0)).unwrap();
    listener.options.defer_accept.store(3, Ordering::Relaxed);
    listener.listen(8).unwrap();
    let connected = || {
        let client = net.socket(0);
        assert_eq!(client.connect(listener.local(), true), Ok(()));
        assert_eq!(listener.accept().err(), Some(InetError::WouldBlock));
        client
    };
    let talker = connected();
    assert_eq!(talker.send(4, |free| Ok::<_, ()>(free.len())), Ok(4));
    let server = listener.accept().unwrap();
    assert_eq!(server.progress().unread, 4);
    server.close();
    // An end without bytes can be accepted, too.
    connected().close();
    listener.accept().unwrap().close();
    // A reset is forgotten.
    let aborter = connected();
    aborter.options.linger.store(0, Ordering::Relaxed);
    aborter.close();
    assert_eq!(listener.accept().err(), Some(InetError::WouldBlock));
    let silent = connected();
    let late = connected();
    assert!(net.run(|_| listener.readiness().contains(Readiness::IN)));
    listener.accept().unwrap().close();
    listener.accept().unwrap().close();
    // The listener ends before the peer says anything.
    let orphan = connected_to_nobody(&net, &listener);
    assert_eq!(orphan.send(1, |free| Ok::<_, ()>(free.len())), Ok(1));
    assert_eq!(orphan.take_error(), Some(InetError::ConnectionReset));
    for socket in [talker, silent, late, orphan] {
        socket.close();
    }
    let open = net.hosts[0].engine.tcp_sockets().unwrap();
    assert!(open.iter().all(|socket| socket.state == TcpState::TimeWait), "{open:?}");
}

/// A connection whose listener ends before it is accepted.
fn connected_to_nobody(net: &Net, listener: &TcpSocket<Simulated>) -> Arc<TcpSocket<Simulated>> {
    let client = net.socket(0);
    assert_eq!(client.connect(listener.local(), true), Ok(()));
    listener.close();
    client
}
