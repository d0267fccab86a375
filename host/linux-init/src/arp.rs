//! ARP by frames, RFC 826: who has an address that may become this machine's, and news of one that has, RFC 5227.
#![allow(unsafe_code)] // No safe function makes a socket for frames.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::net::{RecvFlags, recv};

const REQUEST: u8 = 1;
/// Bytes of a message, and of the room for one with padding.
const MESSAGE_BYTES: usize = 28;
const FRAME_BYTES: usize = 64;
/// The beginning of each message: Ethernet, IPv4, and the lengths of their addresses.
const KIND: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// A socket for messages of ARP.
pub struct Arp {
    socket: OwnedFd,
    index: u32,
    mac: [u8; 6],
}

impl Arp {
    /// A socket on the interface with this index and hardware address.
    pub fn open(index: u32, mac: [u8; 6]) -> io::Result<Self> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: The call takes no pointers.
        let number = unsafe { libc::socket(libc::AF_PACKET, kind, i32::from(protocol())) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: Nobody else has the descriptor.
        let socket = unsafe { OwnedFd::from_raw_fd(number) };
        let arp = Self { socket, index, mac };
        let everyone = arp.everyone();
        let length = size_of_val(&everyone) as libc::socklen_t;
        // SAFETY: The address is that many bytes of memory, which the call reads and does not keep.
        let result = unsafe { libc::bind(arp.socket.as_raw_fd(), (&raw const everyone).cast(), length) };
        if result == 0 { Ok(arp) } else { Err(io::Error::last_os_error()) }
    }

    /// The address of everyone on the link.
    fn everyone(&self) -> libc::sockaddr_ll {
        libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: protocol(),
            sll_ifindex: self.index.cast_signed(),
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 6,
            sll_addr: [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
        }
    }

    /// Asks everyone on the link who has `target`, from an own address or from none. One that cannot be sent is lost.
    pub fn ask(&self, source: Ipv4Addr, target: Ipv4Addr) {
        let mut message = [0; MESSAGE_BYTES];
        message[..6].copy_from_slice(&KIND);
        message[7] = REQUEST;
        message[8..14].copy_from_slice(&self.mac);
        message[14..18].copy_from_slice(&source.octets());
        message[24..28].copy_from_slice(&target.octets());
        let everyone = self.everyone();
        let length = size_of_val(&everyone) as libc::socklen_t;
        // SAFETY: Message and address are that many bytes of memory, which the call reads and does not keep.
        unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                message.as_ptr().cast(),
                message.len(),
                0,
                (&raw const everyone).cast(),
                length,
            );
        }
    }

    /// Takes all messages that have come. Returns whether one says that another host has an address, or is about to
    /// take it.
    pub fn is_taken(&self, address: Option<Ipv4Addr>) -> bool {
        let (mut bytes, mut is_taken) = ([0; FRAME_BYTES], false);
        while let Ok((length, _)) = recv(&self.socket, &mut bytes, RecvFlags::empty()) {
            is_taken |=
                address.is_some_and(|address| self.is_claim(&bytes[..length.min(FRAME_BYTES)], address));
        }
        is_taken
    }

    fn is_claim(&self, message: &[u8], address: Ipv4Addr) -> bool {
        let Some(message) = message.first_chunk::<MESSAGE_BYTES>() else { return false };
        if message[..6] != KIND || message[6] != 0 || message[8..14] == self.mac {
            return false;
        }
        let [source, target] = [14, 24]
            .map(|at: usize| Ipv4Addr::new(message[at], message[at + 1], message[at + 2], message[at + 3]));
        source == address || message[7] == REQUEST && source.is_unspecified() && target == address
    }
}

impl AsFd for Arp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// ARP's number, as the calls take it.
const fn protocol() -> u16 {
    (libc::ETH_P_ARP as u16).to_be()
}
