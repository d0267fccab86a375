//! ICMP and ICMPv6: answers to echo requests, and errors, sent and received.

use alloc::vec::Vec;

use crate::address::{Endpoint, Tuple};
use crate::datagram::ErrorReport;
use crate::engine::Engine;
use crate::error::InetError;
use crate::ip::{ETHERNET_BYTES, ICMP_BYTES, IpHeader, fold, protocol, sum};
use crate::membership::QUERY_V6;
use crate::platform::Platform;
use crate::raw::{ECHO_REPLY, ECHO_REPLY_V6, ECHO_REQUEST, ECHO_REQUEST_V6, put_icmp_sum};

/// Bytes of a packet that an ICMP error quotes.
const QUOTE_MAX: usize = 548;

impl<P: Platform> Engine<P> {
    pub(crate) fn receive_icmp(&self, header: &IpHeader, message: &[u8]) {
        let is_v4 = header.source.is_ipv4();
        let is_right =
            if is_v4 { fold(sum(message, 0)) == 0xffff } else { header.has_valid_checksum(message) };
        let counters = self.counters.icmp(!is_v4);
        let Some(head) = message.first_chunk::<ICMP_BYTES>().filter(|_| is_right) else {
            counters.received.count();
            counters.errors.count();
            if !is_right {
                counters.checksum_errors.count();
            }
            return;
        };
        counters.receive(head[0]);
        match (is_v4, head[0]) {
            (true, ECHO_REQUEST) | (false, ECHO_REQUEST_V6) => self.answer_echo(header, message),
            (true, 3 | 4 | 11 | 12) | (false, 1..=4) => {
                self.receive_error(header, head, &message[ICMP_BYTES..])
            }
            (false, QUERY_V6) => self.receive_query(message),
            (false, 133..=137) => {
                if let Some(interface) = self.interface() {
                    interface.receive_neighbour(header, message, P::now_ns());
                }
            }
            _ => {}
        }
    }

    fn answer_echo(&self, header: &IpHeader, message: &[u8]) {
        let is_group = header.destination.is_multicast() || self.is_broadcast(header.destination);
        let source = if is_group { self.source_for(header.source, None) } else { Ok(header.destination) };
        let Ok(source) = source else { return };
        let answer = IpHeader {
            source,
            destination: header.source,
            protocol: header.protocol,
            ttl: 64,
            tos: header.tos,
        };
        let kind = if header.source.is_ipv4() { ECHO_REPLY } else { ECHO_REPLY_V6 };
        self.send_icmp(&answer, message, |copy| copy[0] = kind);
    }

    /// Sends an ICMP message that is like another but for what `change` does.
    fn send_icmp(&self, header: &IpHeader, message: &[u8], change: impl FnOnce(&mut [u8])) {
        let start = ETHERNET_BYTES + header.length();
        let mut frame = Vec::new();
        if frame.try_reserve_exact(start + message.len()).is_err() {
            return;
        }
        frame.resize(start, 0);
        frame.extend_from_slice(message);
        change(&mut frame[start..]);
        put_icmp_sum(&mut frame[start..], header);
        let _ = self.send_packet(header, &mut frame, None);
    }

    /// Tells a packet's sender that it could not be delivered.
    pub(crate) fn send_error(&self, header: &IpHeader, packet: &[u8], kind: u8, code: u8) {
        let is_group = header.destination.is_multicast() || self.is_broadcast(header.destination);
        if is_group || header.source.is_unspecified() {
            return;
        }
        let quote = &packet[..packet.len().min(QUOTE_MAX)];
        let answer = IpHeader {
            source: header.destination,
            destination: header.source,
            protocol: if header.source.is_ipv4() { protocol::ICMP } else { protocol::ICMP_V6 },
            ttl: 64,
            tos: 0,
        };
        let start = ETHERNET_BYTES + answer.length();
        let mut frame = Vec::new();
        if frame.try_reserve_exact(start + ICMP_BYTES + quote.len()).is_err() {
            return;
        }
        frame.resize(start, 0);
        frame.extend_from_slice(&[kind, code, 0, 0, 0, 0, 0, 0]);
        frame.extend_from_slice(quote);
        put_icmp_sum(&mut frame[start..], &answer);
        let _ = self.send_packet(&answer, &mut frame, None);
    }

    /// Someone could not deliver a packet of ours, the beginning of which is quoted.
    fn receive_error(&self, header: &IpHeader, head: &[u8; ICMP_BYTES], quote: &[u8]) {
        let Some(sent) = IpHeader::parse_beginning(quote) else { return };
        let is_v4 = header.source.is_ipv4();
        let (kind, code) = (head[0], head[1]);
        let mtu = if is_v4 {
            u16::from_be_bytes([head[6], head[7]]).into()
        } else {
            u32::from_be_bytes([head[4], head[5], head[6], head[7]])
        };
        let (error, is_fatal) = match (is_v4, kind, code) {
            (true, 3, 2) | (false, 4, 1) => (InetError::ProtocolNotAvailable, true),
            (true, 3, 3) | (false, 1, 4) => (InetError::ConnectionRefused, true),
            (true, 3, 4) | (false, 2, _) => (InetError::MessageTooLong, false),
            (true, 3, 0 | 6 | 11) | (false, 1, 0) => (InetError::NetworkUnreachable, false),
            (false, 1, 1) => (InetError::Access, true),
            _ => (InetError::HostUnreachable, false),
        };
        let Some(ports) = sent.payload.first_chunk::<4>() else { return };
        let local = Endpoint::new(sent.header.source, u16::from_be_bytes([ports[0], ports[1]]));
        let remote = Endpoint::new(sent.header.destination, u16::from_be_bytes([ports[2], ports[3]]));
        let report = |destination: Endpoint, skip: usize| {
            let mut payload = Vec::new();
            let quoted = sent.payload.get(skip..).unwrap_or_default();
            if payload.try_reserve_exact(quoted.len()).is_ok() {
                payload.extend_from_slice(quoted);
            }
            let information = if error == InetError::MessageTooLong { mtu } else { 0 };
            ErrorReport { error, kind, code, information, offender: header.source, destination, payload }
        };
        match sent.header.protocol {
            protocol::UDP => {
                let found = self.udp_ports.lock().find(local, remote, false);
                if let Some(socket) = found {
                    socket.report(report(remote, crate::udp::HEADER_BYTES), is_fatal);
                }
            }
            protocol::TCP => self.receive_tcp_error(Tuple::new(local, remote), sent.payload, error, mtu),
            protocol::ICMP | protocol::ICMP_V6 => {
                let Some(echo) = sent.payload.get(4..6) else { return };
                let identifier = u16::from_be_bytes([echo[0], echo[1]]);
                for socket in self.raw_sockets() {
                    if socket.is_ping_with(identifier, !is_v4) {
                        socket.report(report(Endpoint { port: 0, ..remote }, 0));
                    }
                }
            }
            _ => {}
        }
    }
}
