//! `/proc/net/snmp`, `snmp6`, `netstat` and `dev`: events of the loopback are counted.

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};

use super::{connection, receive, set};
use crate::harness::{OrFail, Outcome};
use crate::{expect, expect_eq};

crate::tests! {
    connections_are_counted
    resets_are_counted
    datagrams_are_counted
    datagrams_without_room_are_counted
    the_loopback_counts_its_traffic
}

/// All counts, by names as `TcpActiveOpens` and `Udp6InDatagrams`.
struct Counts(HashMap<String, i64>);

impl Counts {
    fn now() -> Result<Self, String> {
        let mut counts = HashMap::new();
        for file in ["snmp", "netstat"] {
            let text = fs::read_to_string(format!("/proc/net/{file}")).or_fail()?;
            let lines: Vec<&str> = text.lines().collect();
            for pair in lines.chunks_exact(2) {
                let (head, names) = pair[0].split_once(':').ok_or("no head")?;
                let values = pair[1].strip_prefix(head).and_then(|rest| rest.strip_prefix(':'));
                let values = values.ok_or("no values")?.split_whitespace();
                for (name, value) in names.split_whitespace().zip(values) {
                    counts.insert(format!("{head}{name}"), value.parse().or_fail()?);
                }
            }
        }
        for line in fs::read_to_string("/proc/net/snmp6").or_fail()?.lines() {
            let mut words = line.split_whitespace();
            if let (Some(name), Some(value)) = (words.next(), words.next()) {
                counts.insert(name.to_owned(), value.parse().or_fail()?);
            }
        }
        Ok(Self(counts))
    }

    /// By how much counts have risen until now.
    fn risen<const N: usize>(&self, names: [&str; N]) -> Result<[i64; N], String> {
        let now = Self::now()?;
        let mut risen = [0; N];
        for (place, name) in risen.iter_mut().zip(names) {
            let count = |of: &Self| of.0.get(name).copied().ok_or(format!("{name} is not counted"));
            *place = count(&now)? - count(self)?;
        }
        Ok(risen)
    }
}

fn connections_are_counted() -> Outcome {
    let before = Counts::now()?;
    let mut pairs = [connection()?, connection()?, connection()?];
    let opens = ["TcpActiveOpens", "TcpPassiveOpens", "TcpCurrEstab", "TcpAttemptFails"];
    expect_eq!(before.risen(opens)?, [3, 3, 6, 0]);
    for (client, server) in &mut pairs {
        for _ in 0..5 {
            client.write_all(b"question").or_fail()?;
            server.read_exact(&mut [0; 8]).or_fail()?;
        }
    }
    let [received, sent, ip_received, ip_delivered, ip_sent] =
        before.risen(["TcpInSegs", "TcpOutSegs", "IpInReceives", "IpInDelivers", "IpOutRequests"])?;
    // Three to open each, and five sendings; acknowledgements may come on top.
    for count in [received, sent, ip_received, ip_delivered, ip_sent] {
        expect!(count >= 24);
    }
    let listener = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).or_fail()?;
    let _client = TcpStream::connect(listener.local_addr().or_fail()?).or_fail()?;
    expect!(
        before.risen(["Ip6InReceives", "Ip6OutRequests", "Ip6InDelivers"])?.iter().all(|&count| count >= 3)
    );
    Ok(())
}

fn resets_are_counted() -> Outcome {
    let before = Counts::now()?;
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?.local_addr().or_fail()?;
    expect!(TcpStream::connect(closed).is_err());
    let names = ["TcpActiveOpens", "TcpAttemptFails", "TcpOutRsts", "TcpEstabResets"];
    expect_eq!(before.risen(names)?, [1, 1, 1, 0]);
    // Bytes that nobody reads are answered by a reset, which ends both ends.
    let before = Counts::now()?;
    let (mut client, server) = connection()?;
    client.write_all(b"unread").or_fail()?;
    drop(server);
    expect!(client.read(&mut [0]).is_err());
    expect_eq!(before.risen(["TcpOutRsts", "TcpEstabResets", "TcpExtTCPAbortOnClose"])?, [1, 2, 1]);
    // An orderly end is none.
    let before = Counts::now()?;
    let (mut client, server) = connection()?;
    drop(server);
    expect_eq!(client.read(&mut [0]).or_fail()?, 0);
    drop(client);
    expect_eq!(before.risen(["TcpOutRsts", "TcpEstabResets"])?, [0, 0]);
    Ok(())
}

fn datagrams_are_counted() -> Outcome {
    for (address, head) in
        [(IpAddr::V4(Ipv4Addr::LOCALHOST), "Udp"), (IpAddr::V6(Ipv6Addr::LOCALHOST), "Udp6")]
    {
        let receiver = UdpSocket::bind((address, 0)).or_fail()?;
        let sender = UdpSocket::bind((address, 0)).or_fail()?;
        let target = receiver.local_addr().or_fail()?;
        let before = Counts::now()?;
        for _ in 0..7 {
            sender.send_to(b"datagram", target).or_fail()?;
        }
        for _ in 0..4 {
            receiver.recv(&mut [0; 8]).or_fail()?;
        }
        // A peek receives nothing.
        expect_eq!(receive(&receiver, &mut [0; 8], libc::MSG_PEEK), Ok(8));
        let name = |count: &str| format!("{head}{count}");
        let names = ["OutDatagrams", "InDatagrams", "NoPorts", "InErrors"].map(name);
        expect_eq!(before.risen(names.each_ref().map(String::as_str))?, [7, 4, 0, 0]);
        drop(receiver);
        sender.connect(target).or_fail()?;
        expect_eq!(sender.send(b"to nobody").or_fail()?, 9);
        expect_eq!(before.risen(names.each_ref().map(String::as_str))?, [8, 4, 1, 0]);
        let told = if head == "Udp" {
            ["IcmpOutDestUnreachs", "IcmpInDestUnreachs"]
        } else {
            ["Icmp6OutDestUnreachs", "Icmp6InDestUnreachs"]
        };
        expect_eq!(before.risen(told)?, [1, 1]);
    }
    Ok(())
}

fn datagrams_without_room_are_counted() -> Outcome {
    const SENT: i64 = 100;
    let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    set(&receiver, libc::SOL_SOCKET, libc::SO_RCVBUF, 5000).or_fail()?;
    receiver.set_nonblocking(true).or_fail()?;
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    let before = Counts::now()?;
    for _ in 0..SENT {
        sender.send_to(&[0; 500], receiver.local_addr().or_fail()?).or_fail()?;
    }
    let mut taken = 0;
    while receiver.recv(&mut [0; 500]).is_ok() {
        taken += 1;
    }
    expect!(taken > 0 && taken < SENT);
    let names = ["UdpOutDatagrams", "UdpInDatagrams", "UdpRcvbufErrors", "UdpInErrors", "UdpNoPorts"];
    expect_eq!(before.risen(names)?, [SENT, taken, SENT - taken, SENT - taken, 0]);
    Ok(())
}

/// Bytes and packets that have come by the loopback, and that were sent there.
fn traffic() -> Result<[u64; 4], String> {
    let text = fs::read_to_string("/proc/net/dev").or_fail()?;
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("lo:")).ok_or("no loopback")?;
    let numbers: Result<Vec<u64>, _> = line.split_whitespace().map(str::parse).collect();
    let numbers = numbers.or_fail()?;
    let at = |index: usize| numbers.get(index).copied().ok_or("a short line");
    Ok([at(0)?, at(1)?, at(8)?, at(9)?])
}

fn the_loopback_counts_its_traffic() -> Outcome {
    let risen = |before: [u64; 4]| -> Result<[u64; 4], String> {
        let now = traffic()?;
        Ok([0, 1, 2, 3].map(|index: usize| now[index] - before[index]))
    };
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    let before = traffic()?;
    for _ in 0..20 {
        sender.send_to(&[0; 1000], receiver.local_addr().or_fail()?).or_fail()?;
    }
    let [received_bytes, received, sent_bytes, sent] = risen(before)?;
    expect_eq!([received_bytes, received], [sent_bytes, sent]);
    expect_eq!([sent_bytes, sent], [20 * 1028, 20]);
    let before = traffic()?;
    let (mut client, mut server) = connection()?;
    client.write_all(&[0; 50_000]).or_fail()?;
    server.read_exact(&mut [0; 50_000]).or_fail()?;
    let [received_bytes, received, sent_bytes, sent] = risen(before)?;
    expect_eq!([received_bytes, received], [sent_bytes, sent]);
    expect!(sent_bytes >= 50_000 + 4 * 52 && sent >= 4);
    Ok(())
}
