//! Sockets within one machine.

use super::*;
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
