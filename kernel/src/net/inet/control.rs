//! Control data of datagrams: `IP_PKTINFO`, `IP_TTL`, `IP_RECVERR` and their kin.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use heddle_inet::address::Endpoint;
use heddle_inet::datagram::{Datagram, ErrorReport};
use heddle_inet::options::Options;
use heddle_inet::udp::SendOptions;
use linux_raw_sys::net;

use heddle_kernel_core::fallible::{extend_reserved, resize_reserved};

use crate::error::{Errno, TryError, TryResult};
use crate::fs::IoBuffer;
use crate::memory::user::PageFault;
use crate::net::inet::{InetSocket, Transport, address};
use crate::net::protocol::{Incoming, Outgoing};

const HEADER: usize = size_of::<net::cmsghdr>();
const WORD: usize = size_of::<usize>();
/// `struct in_pktinfo` and `struct in6_pktinfo`.
const INFO_BYTES: usize = 12;
const INFO_V6_BYTES: usize = 20;
/// `struct sock_extended_err` with the offender's address behind it.
const REPORT_BYTES: usize = 16 + 28;
/// Origins of an error.
const ORIGIN_ICMP: u8 = 2;
const ORIGIN_ICMP_V6: u8 = 3;

impl InetSocket {
    /// The settings of one send, from a message's address and control data.
    pub(super) fn send_options(&self, message: &Outgoing<'_>) -> Result<SendOptions, Errno> {
        let mut how = SendOptions::default();
        if let Some(target) = message.address {
            // A socket of IPv6 takes an address of IPv4, too.
            let is_v6 = self.is_v6 && target.family() != net::AF_INET;
            how.target = match target.family() {
                // As in Linux, this is none to one, and IPv4's to the other.
                net::AF_UNSPEC if self.is_v6 && target.as_slice().len() >= 2 => None,
                net::AF_UNSPEC if !self.is_v6 => Some(address::parse_v4(target)?),
                _ => Some(address::parse(target, is_v6)?),
            };
        }
        let mut rest = message.control;
        while rest.len() >= HEADER {
            let number = |at: usize| u32::from_ne_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
            let length = rest.first_chunk().map_or(0, |length| usize::from_ne_bytes(*length));
            let data = rest.get(HEADER..length).ok_or(Errno::EINVAL)?;
            let value = || -> Result<u32, Errno> {
                data.first_chunk().map(|value| u32::from_ne_bytes(*value)).ok_or(Errno::EINVAL)
            };
            match (number(WORD), number(WORD + 4)) {
                (net::SOL_IP, net::IP_PKTINFO) => {
                    let info = data.first_chunk::<INFO_BYTES>().ok_or(Errno::EINVAL)?;
                    let source = Ipv4Addr::new(info[4], info[5], info[6], info[7]);
                    how.source = Some(IpAddr::V4(source)).filter(|source| !source.is_unspecified());
                }
                (net::SOL_IPV6, net::IPV6_PKTINFO) => {
                    let info = data.first_chunk::<INFO_V6_BYTES>().ok_or(Errno::EINVAL)?;
                    let octets: [u8; 16] = *info.first_chunk().ok_or(Errno::EINVAL)?;
                    let source = IpAddr::V6(Ipv6Addr::from(octets)).to_canonical();
                    how.source = Some(source).filter(|source| !source.is_unspecified());
                }
                (net::SOL_IP, net::IP_TTL) | (net::SOL_IPV6, net::IPV6_HOPLIMIT) => {
                    how.ttl = Some(u8::try_from(value()?).map_err(|_| Errno::EINVAL)?);
                }
                (net::SOL_IP, net::IP_TOS) => how.tos = Some(*data.first().ok_or(Errno::EINVAL)?),
                (net::SOL_IPV6, net::IPV6_TCLASS) => how.tos = Some(value()? as u8),
                (net::SOL_SOCKET | net::SOL_UDP, _) => {}
                _ => return Err(Errno::EINVAL),
            }
            rest = rest.get(length.next_multiple_of(WORD)..).unwrap_or_default();
        }
        Ok(how)
    }

    /// Copies a datagram to a program, with what the program wants to know of it. Returns the bytes copied.
    pub(super) fn take(
        &self,
        datagram: &Datagram,
        buffer: &mut IoBuffer<'_>,
        message: &mut Incoming,
    ) -> Result<usize, PageFault> {
        let before = buffer.mark();
        let payload = datagram.payload();
        let count = buffer.copy_out(payload).inspect_err(|_| buffer.rewind(before))?;
        message.length = payload.len();
        if message.wants_address {
            message.address = Some(address::encode(datagram.source, self.is_v6));
        }
        let options = self.options();
        if let Some((kind, time)) = self.last_arrival.read(datagram, options) {
            put(message, net::SOL_SOCKET, kind, &time);
        }
        let wants = Options::is_on;
        match datagram.destination {
            IpAddr::V4(destination) => {
                if wants(&options.packet_info) {
                    let mut info = [0; INFO_BYTES];
                    info[..4].copy_from_slice(&datagram.interface.to_ne_bytes());
                    info[4..8].copy_from_slice(&destination.octets());
                    info[8..].copy_from_slice(&destination.octets());
                    put(message, net::SOL_IP, net::IP_PKTINFO, &info);
                }
                if wants(&options.receive_ttl) {
                    put(message, net::SOL_IP, net::IP_TTL, &u32::from(datagram.ttl).to_ne_bytes());
                }
                if wants(&options.receive_tos) {
                    put(message, net::SOL_IP, net::IP_TOS, &[datagram.tos]);
                }
                if wants(&options.receive_destination) && datagram.port != 0 {
                    let address = address::encode(sent_to(datagram), false);
                    put(message, net::SOL_IP, net::IP_ORIGDSTADDR, address.as_slice());
                }
            }
            IpAddr::V6(_) => {}
        }
        if self.is_v6 {
            if wants(&options.packet_info_v6) {
                let octets = match datagram.destination {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                    IpAddr::V6(v6) => v6.octets(),
                };
                let mut info = [0; INFO_V6_BYTES];
                info[..16].copy_from_slice(&octets);
                info[16..].copy_from_slice(&datagram.interface.to_ne_bytes());
                put(message, net::SOL_IPV6, net::IPV6_PKTINFO, &info);
            }
            if wants(&options.receive_hops) {
                put(message, net::SOL_IPV6, net::IPV6_HOPLIMIT, &u32::from(datagram.ttl).to_ne_bytes());
            }
            if wants(&options.receive_class) {
                put(message, net::SOL_IPV6, net::IPV6_TCLASS, &u32::from(datagram.tos).to_ne_bytes());
            }
            if wants(&options.receive_destination_v6) && datagram.port != 0 {
                let address = address::encode(sent_to(datagram), true);
                put(message, net::SOL_IPV6, net::IPV6_ORIGDSTADDR, address.as_slice());
            }
        }
        Ok(count)
    }

    /// `MSG_ERRQUEUE`: what the network reported, with the beginning of what was sent.
    pub(super) fn receive_report(
        &self,
        buffer: &mut IoBuffer<'_>,
        message: &mut Incoming,
    ) -> TryResult<usize> {
        let report = match &self.transport {
            Transport::Udp(socket) => socket.take_report(),
            Transport::Raw(socket) => socket.take_report(),
            Transport::Tcp(_) => None,
        };
        // The queue is looked at and not waited for.
        let report = report.ok_or(TryError::Error(Errno::EAGAIN))?;
        let count = buffer.copy_out(&report.payload)?;
        message.length = count;
        message.flags |= net::MSG_ERRQUEUE;
        message.address = Some(address::encode(report.destination, self.is_v6));
        let (level, kind) =
            if self.is_v6 { (net::SOL_IPV6, net::IPV6_RECVERR) } else { (net::SOL_IP, net::IP_RECVERR) };
        put(message, level, kind, &encode_report(&report, self.is_v6));
        Ok(count)
    }
}

/// Address and port that a datagram was sent to.
const fn sent_to(datagram: &Datagram) -> Endpoint {
    Endpoint { address: datagram.destination, port: datagram.port }
}

/// `struct sock_extended_err`, and who reported the error.
fn encode_report(report: &ErrorReport, is_v6: bool) -> [u8; REPORT_BYTES] {
    let mut bytes = [0; REPORT_BYTES];
    bytes[..4].copy_from_slice(&u32::from(Errno::from(report.error).0).to_ne_bytes());
    bytes[4] = if report.offender.is_ipv4() { ORIGIN_ICMP } else { ORIGIN_ICMP_V6 };
    (bytes[5], bytes[6]) = (report.kind, report.code);
    bytes[8..12].copy_from_slice(&report.information.to_ne_bytes());
    let offender = address::encode(Endpoint { address: report.offender, port: 0 }, is_v6);
    let offender = offender.as_slice();
    bytes[16..16 + offender.len()].copy_from_slice(offender);
    bytes
}

/// Appends a piece of control data; what doesn't fit is lost, and the flags say so.
fn put(message: &mut Incoming, level: u32, kind: u32, data: &[u8]) {
    let control = &mut message.control;
    let (start, length) = (control.len(), HEADER + data.len());
    let room = control.capacity();
    if start + length > room {
        message.flags |= net::MSG_CTRUNC;
        return;
    }
    extend_reserved(control, &length.to_ne_bytes());
    extend_reserved(control, &level.to_ne_bytes());
    extend_reserved(control, &kind.to_ne_bytes());
    extend_reserved(control, data);
    let end = (start + length.next_multiple_of(WORD)).min(room);
    resize_reserved(control, end, 0);
}
