//! The loopback's settings: whether it is up, and which of its two addresses it has.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::network::InterfaceAddress;
use super::settings::{EADDRNOTAVAIL, EEXIST, EOPNOTSUPP};

/// The addresses that a loopback can have.
pub const LOOPBACK_ADDRESSES: [InterfaceAddress; 2] = [
    InterfaceAddress { address: IpAddr::V4(Ipv4Addr::LOCALHOST), length: 8 },
    InterfaceAddress { address: IpAddr::V6(Ipv6Addr::LOCALHOST), length: 128 },
];

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loopback {
    /// Whether packets come and go.
    pub is_up: bool,
    /// Whether it has 127.0.0.1/8.
    pub has_v4: bool,
    /// Whether it has ::1/128.
    pub has_v6: bool,
}

/// A change of a loopback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopbackChange {
    /// Up or down.
    Link {
        /// Whether it is to be up.
        is_up: bool,
    },
    /// A further address; one that is there is no error if it `replaces`.
    AddAddress {
        /// The address.
        with: InterfaceAddress,
        /// `NLM_F_REPLACE`.
        replaces: bool,
    },
    /// One address less.
    RemoveAddress(InterfaceAddress),
}

impl Loopback {
    /// As it is in use.
    pub const UP: Self = Self { is_up: true, has_v4: true, has_v6: true };
    /// As a new network namespace has it.
    pub const DOWN: Self = Self { is_up: false, has_v4: false, has_v6: false };

    /// Its addresses.
    #[must_use]
    pub fn addresses(&self) -> &'static [InterfaceAddress] {
        match (self.has_v4, self.has_v6) {
            (true, true) => &LOOPBACK_ADDRESSES,
            (true, false) => &LOOPBACK_ADDRESSES[..1],
            (false, true) => &LOOPBACK_ADDRESSES[1..],
            (false, false) => &[],
        }
    }

    /// Carries a change out.
    ///
    /// # Errors
    /// `EEXIST`, `EADDRNOTAVAIL`, and `EOPNOTSUPP` for an address that it cannot have; nothing has changed then.
    pub fn apply(&mut self, change: LoopbackChange) -> Result<(), i32> {
        match change {
            LoopbackChange::Link { is_up: true } if !self.is_up => *self = Self::UP,
            // The address of IPv4 stays, as in Linux.
            LoopbackChange::Link { is_up: false } => *self = Self { is_up: false, has_v6: false, ..*self },
            LoopbackChange::Link { .. } => {}
            LoopbackChange::AddAddress { with, replaces } => {
                let has = self.place(with).ok_or(EOPNOTSUPP)?;
                if *has && !replaces {
                    return Err(EEXIST);
                }
                *has = true;
            }
            LoopbackChange::RemoveAddress(with) => {
                let has = self.place(with).filter(|has| **has).ok_or(EADDRNOTAVAIL)?;
                *has = false;
            }
        }
        Ok(())
    }

    fn place(&mut self, with: InterfaceAddress) -> Option<&mut bool> {
        let [v4, v6] = LOOPBACK_ADDRESSES;
        if with == v4 {
            Some(&mut self.has_v4)
        } else if with == v6 {
            Some(&mut self.has_v6)
        } else {
            None
        }
    }
}
