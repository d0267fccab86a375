//! The way of a datagram from socket to socket, to the link, and from it.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::address::Endpoint;
use crate::datagram::{Datagram, ErrorReport};
use crate::engine::{Engine, put_sum};
use crate::error::{InetError, InetResult};
use crate::ip::{ETHERNET_BYTES, IpHeader};
use crate::local::put_ethernet;
use crate::options::Options;
use crate::platform::Platform;
use crate::udp::{HEADER_BYTES, UdpSocket};

impl<P: Platform> Engine<P> {
    /// Brings a datagram that lies behind room for its headers to where it goes.
    pub(super) fn send_udp(
        &self,
        sender: &Arc<UdpSocket<P>>,
        datagram: Datagram,
        header: &IpHeader,
        target: Endpoint,
    ) -> InetResult<()> {
        let is_group = target.address.is_multicast();
        let is_broadcast = self.is_broadcast(target.address);
        if is_group || is_broadcast {
            let leaves = self.interface().is_some() && !datagram.source.address.is_loopback();
            // A datagram that does not leave comes back over the loopback, whatever the options say.
            let loops = match target.address {
                _ if is_broadcast || !leaves => true,
                IpAddr::V4(_) => Options::is_on(&sender.options.multicast_loop),
                IpAddr::V6(_) => Options::is_on(&sender.options.multicast_loop_v6),
            };
            let is_v6 = !target.address.is_ipv4();
            if loops {
                self.counters.ip(is_v6).received.count();
                self.counters.ip(is_v6).delivered.count();
                self.deliver_to_all(&datagram, target.port, is_group);
            }
            if leaves {
                return self.send_udp_packet(datagram, header, target);
            }
            self.counters.udp(is_v6).sent.count();
            self.counters.ip(is_v6).sent.count();
            return Ok(());
        }
        if !self.is_local(target.address) {
            return self.send_udp_packet(datagram, header, target);
        }
        let is_v6 = !target.address.is_ipv4();
        self.counters.datagram::<P>(is_v6, datagram.payload().len());
        if P::watches_loopback(&self.alarm) {
            self.show_udp(&datagram, header, target);
        }
        let from = datagram.source;
        let found = self.udp_ports.lock().find(target, from, false);
        match found {
            Some(receiver) => {
                receiver.deliver(datagram, false);
            }
            None => {
                // Nobody is there, and the sender's machine says so.
                let is_v4 = !is_v6;
                let mut payload = datagram.bytes;
                payload.drain(..datagram.start);
                self.counters.udp(is_v6).no_ports.count();
                self.counters.local_error(is_v6, if is_v4 { 3 } else { 1 });
                sender.report(
                    ErrorReport {
                        error: InetError::ConnectionRefused,
                        kind: if is_v4 { 3 } else { 1 },
                        code: if is_v4 { 3 } else { 4 },
                        information: 0,
                        offender: target.address,
                        destination: target,
                        payload,
                    },
                    true,
                );
            }
        }
        Ok(())
    }

    /// Gives a datagram for everyone to those who want it. Returns whether there was one.
    pub(crate) fn deliver_to_all(&self, datagram: &Datagram, port: u16, checks_group: bool) -> bool {
        if checks_group && !self.is_joined(datagram.destination) {
            return false;
        }
        let local = Endpoint { address: datagram.destination, port };
        let receivers = self.udp_ports.lock().all_for(local, datagram.source);
        let mut is_delivered = false;
        for receiver in receivers {
            let mut bytes = Vec::new();
            if bytes.try_reserve_exact(datagram.payload().len()).is_err() {
                continue;
            }
            bytes.extend_from_slice(datagram.payload());
            is_delivered |= receiver.deliver(Datagram { bytes, start: 0, ..*datagram }, checks_group);
        }
        is_delivered
    }

    /// Shows a datagram within the machine to those who look at the loopback, as the packet that it would be; not
    /// without memory for that.
    fn show_udp(&self, datagram: &Datagram, header: &IpHeader, target: Endpoint) {
        let start = ETHERNET_BYTES + header.length();
        let length = HEADER_BYTES + datagram.payload().len();
        let mut frame = Vec::new();
        if frame.try_reserve_exact(start + length).is_err() {
            return;
        }
        frame.resize(start + HEADER_BYTES, 0);
        frame.extend_from_slice(datagram.payload());
        put_ethernet(&mut frame, target.address.is_ipv4());
        header.write(&mut frame[ETHERNET_BYTES..], length, None);
        let ports = [datagram.source.port, target.port, length as u16].map(u16::to_be_bytes);
        frame[start..start + 6].copy_from_slice(ports.as_flattened());
        put_sum(header, &mut frame, 6, false);
        P::show_on_loopback(&self.alarm, &frame);
    }

    fn send_udp_packet(&self, datagram: Datagram, header: &IpHeader, target: Endpoint) -> InetResult<()> {
        let (mut frame, at) = (datagram.bytes, datagram.start - HEADER_BYTES);
        let length = (frame.len() - at) as u16;
        frame[at..at + 2].copy_from_slice(&datagram.source.port.to_be_bytes());
        frame[at + 2..at + 4].copy_from_slice(&target.port.to_be_bytes());
        frame[at + 4..at + 6].copy_from_slice(&length.to_be_bytes());
        self.counters.udp(!header.destination.is_ipv4()).sent.count();
        self.send_packet(header, &mut frame, Some(6))
    }

    /// A UDP datagram has come over the link.
    pub(crate) fn receive_udp(
        &self,
        header: &IpHeader,
        payload: &[u8],
        checked: bool,
        interface: u32,
    ) -> bool {
        let counters = self.counters.udp(!header.source.is_ipv4());
        let head = payload.first_chunk::<HEADER_BYTES>().copied().unwrap_or_default();
        let length = usize::from(u16::from_be_bytes([head[4], head[5]]));
        let Some(payload) = payload.get(..length).filter(|_| length >= HEADER_BYTES) else {
            counters.errors.count();
            return true;
        };
        let has_sum = head[6..8] != [0, 0];
        if has_sum && !checked && !header.has_valid_checksum(payload) || !has_sum && !header.source.is_ipv4()
        {
            counters.errors.count();
            counters.checksum_errors.count();
            return true;
        }
        let port = u16::from_be_bytes([head[2], head[3]]);
        let source = Endpoint::new(header.source, u16::from_be_bytes([head[0], head[1]]));
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact(length - HEADER_BYTES).is_err() {
            return true;
        }
        bytes.extend_from_slice(&payload[HEADER_BYTES..]);
        let datagram = Datagram {
            bytes,
            start: 0,
            source,
            destination: header.destination,
            port,
            interface,
            ttl: header.ttl,
            tos: header.tos,
            arrived_ns: 0,
        };
        let is_group = header.destination.is_multicast();
        if is_group || self.is_broadcast(header.destination) {
            self.deliver_to_all(&datagram, port, is_group);
            return true;
        }
        let local = Endpoint { address: header.destination, port };
        let found = self.udp_ports.lock().find(local, source, false);
        match found {
            Some(receiver) => receiver.deliver(datagram, false),
            None => false,
        }
    }
}
