//! Packets that make no sense.

use super::*;
use crate::ip::{ETHERNET_BYTES, IpHeader, fold, protocol, sum};
use crate::tcp::segment::{Draft, Offer, flags};

/// A frame with a request for a connection.
pub(super) fn syn(from: Endpoint, to: Endpoint, mac: [u8; 6]) -> Vec<u8> {
    let offer = Offer { segment_max: 1460, scale: Some(7), selective: true };
    let draft = Draft {
        from,
        to,
        number: random() as u32,
        acknowledged: None,
        flags: flags::SYN,
        window: 1000,
        offer: Some(offer),
        data: &[],
    };
    let mut frame = draft.frame(true).unwrap();
    finish(&mut frame, &draft.header(), mac);
    frame
}

/// Puts the Ethernet header and the checksum in.
pub(super) fn finish(frame: &mut [u8], header: &IpHeader, mac: [u8; 6]) {
    let start = ETHERNET_BYTES + header.length();
    frame[..6].copy_from_slice(&mac);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    frame[12..14].copy_from_slice(if header.source.is_ipv4() { &[8, 0] } else { &[0x86, 0xdd] });
    let at = match header.protocol {
        protocol::TCP => 16,
        protocol::UDP => 6,
        _ => 2,
    };
    let payload = &mut frame[start..];
    if payload.len() < at + 2 {
        return;
    }
    payload[at..at + 2].fill(0);
    let pseudo = if header.protocol == protocol::ICMP { 0 } else { header.pseudo_sum(payload.len()) };
    let checksum = !fold(sum(payload, pseudo));
    payload[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// How many frames of noise are sent: `HEDDLE_FRAMES`, or a few.
fn rounds_of_noise() -> u64 {
    std::env::var("HEDDLE_FRAMES").ok().and_then(|text| text.parse().ok()).unwrap_or(100_000)
}

/// Frames of noise, of which a good part has a right header and checksum.
#[test]
fn noise_harms_nobody() {
    let mut net = Net::new(1, Faults::default());
    let [client, server] = net.connect(V4, 80);
    let udp = crate::udp::UdpSocket::new(&net.hosts[1].engine, false, 0).unwrap();
    udp.bind(Endpoint::new(V4[1], 53)).unwrap();
    let _raw = crate::raw::RawSocket::new(&net.hosts[1].engine, false, false, 1, 0).unwrap();
    let listener = net.socket(1);
    listener.bind(Endpoint::new(V4[1], 81)).unwrap();
    listener.listen(4).unwrap();
    let (port, mac) = (client.local().port, net.hosts[1].link.mac);
    for round in 0..rounds_of_noise() {
        let is_v6 = random().is_multiple_of(4);
        let addresses = if is_v6 { V6 } else { V4 };
        let kinds =
            [protocol::TCP, protocol::TCP, protocol::UDP, protocol::ICMP, protocol::ICMP_V6, random() as u8];
        let header = IpHeader {
            source: addresses[0],
            destination: addresses[1],
            protocol: kinds[random() as usize % kinds.len()],
            ttl: if random().is_multiple_of(2) { 255 } else { random() as u8 },
            tos: random() as u8,
        };
        let length = random() as usize % if random().is_multiple_of(8) { 1400 } else { 80 };
        let start = ETHERNET_BYTES + header.length();
        let mut frame = vec![0; start];
        frame.extend((0..length).map(|_| random() as u8));
        if header.protocol == protocol::TCP && length >= 20 {
            let own = [port, 5000, random() as u16][random() as usize % 3];
            frame[start..start + 2].copy_from_slice(&own.to_be_bytes());
            let ports: [u16; 3] = [80, 81, random() as u16];
            frame[start + 2..start + 4].copy_from_slice(&ports[random() as usize % 3].to_be_bytes());
            if random().is_multiple_of(2) {
                frame[start + 12] = 0x50 | frame[start + 12] & 0x30;
            }
        }
        header.write(&mut frame[ETHERNET_BYTES..], length, None);
        finish(&mut frame, &header, mac);
        match random() % 8 {
            0 => {
                let at = random() as usize % frame.len();
                frame[at] = random() as u8;
            }
            1 => frame.truncate(random() as usize % frame.len()),
            _ => {}
        }
        net.hosts[1].engine.receive(&frame, random().is_multiple_of(2));
        if round.is_multiple_of(64) {
            net.settle();
            NOW_NS.set(NOW_NS.get() + MILLISECOND_NS);
            while let Ok(socket) = listener.accept() {
                socket.close();
            }
            let _ = receive(&server, 100_000);
            let _ = udp.receive(false, true, |_| Ok::<(), ()>(()));
        }
    }
    net.settle();
}

/// Segments that are almost right, for a connection that is open.
#[test]
fn segments_near_the_window_harm_nobody() {
    for seed in 0..200 {
        let mut net = Net::new(seed, Faults::default());
        let [client, server] = net.connect(V4, 80);
        send(&client, b"some bytes").unwrap();
        send(&server, b"some others").unwrap();
        net.settle();
        let mac = net.hosts[1].link.mac;
        // The numbers of a segment that was really sent.
        let mut last = None;
        for _ in 0..10 {
            let next_ns = net.settle();
            for (_, to, frame, _) in &net.under_way {
                if *to == 1 && frame.len() >= 54 && frame[23] == protocol::TCP {
                    last = Some((frame[38..42].to_vec(), frame[42..46].to_vec()));
                }
            }
            NOW_NS.set(next_ns.unwrap_or(NOW_NS.get()).max(NOW_NS.get() + 1));
        }
        let Some((number, acknowledged)) = last else { continue };
        let number = u32::from_be_bytes(number.try_into().unwrap());
        let acknowledged = u32::from_be_bytes(acknowledged.try_into().unwrap());
        for _ in 0..200 {
            let near = |at: u32| match random() % 4 {
                0 => at,
                1 => at.wrapping_add(random() as u32 % 20),
                2 => at.wrapping_sub(random() as u32 % 20),
                _ => at.wrapping_add(random() as u32),
            };
            let data = pattern(random() as usize % 40, 1);
            let draft = Draft {
                from: client.local(),
                to: server.local(),
                number: near(number),
                acknowledged: Some(near(acknowledged)).filter(|_| !random().is_multiple_of(8)),
                flags: random() as u8 & if random().is_multiple_of(2) { 0 } else { 0x1b },
                window: random() as u16,
                offer: None,
                data: &data,
            };
            let mut frame = draft.frame(true).unwrap();
            finish(&mut frame, &draft.header(), mac);
            net.hosts[1].engine.receive(&frame, true);
            if random().is_multiple_of(4) {
                net.settle();
                let _ = receive(&server, 1000);
                let _ = send(&server, &data);
                NOW_NS.set(NOW_NS.get() + random() % (500 * MILLISECOND_NS));
            }
        }
        net.settle();
    }
}
