//! Whether somebody else has an address that is to be this machine's, and news of one that it has: RFC 5227.

use core::net::Ipv4Addr;

use crate::interface::{ARP_REQUEST, EVERYONE, Interface};
use crate::link::TransmitOffload;

/// An address that the link is asked about, and what is known of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probed {
    address: Ipv4Addr,
    is_taken: bool,
}

impl Interface {
    /// Asks everyone on the link who has an address, as a host without one.
    pub fn probe(&self, address: Ipv4Addr) {
        let mut probed = self.probed.lock();
        if probed.is_none_or(|last| last.address != address) {
            *probed = Some(Probed { address, is_taken: false });
        }
        drop(probed);
        self.ask_everyone(Ipv4Addr::UNSPECIFIED, address);
    }

    /// Whether another host has the address that is probed. With another address, or none, the probing is over.
    pub fn is_taken(&self, address: Option<Ipv4Addr>) -> bool {
        let mut probed = self.probed.lock();
        match *probed {
            Some(last) if Some(last.address) == address => last.is_taken,
            _ => {
                *probed = None;
                false
            }
        }
    }

    /// Tells everyone on the link of an own address, which may have been another host's before.
    pub fn announce(&self, address: Ipv4Addr) {
        self.ask_everyone(address, address);
    }

    fn ask_everyone(&self, source: Ipv4Addr, target: Ipv4Addr) {
        let frame = self.arp(ARP_REQUEST, EVERYONE, [0; 6], source, target);
        // A frame that finds no room is lost, as on the link.
        let _ = self.link.transmit(&frame, TransmitOffload::default());
    }

    /// Another host has sent ARP from one address to another: it has the one, or is about to take the other.
    pub(crate) fn note_claim(&self, source: Ipv4Addr, target: Ipv4Addr, is_request: bool) {
        let mut probed = self.probed.lock();
        if let Some(probed) = &mut *probed {
            let is_probe = is_request && source.is_unspecified() && target == probed.address;
            probed.is_taken |= source == probed.address || is_probe;
        }
    }
}
