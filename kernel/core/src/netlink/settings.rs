//! The settings of an interface with a device, and what changes to them do.

use alloc::vec::Vec;
use core::net::IpAddr;

use super::loopback::LoopbackChange;
use super::network::{InterfaceAddress, link_local};
use crate::fallible::{try_push, try_with_capacity};

const ESRCH: i32 = 3;
const ENOMEM: i32 = 12;
pub(super) const EEXIST: i32 = 17;
pub(super) const EINVAL: i32 = 22;
pub(super) const EOPNOTSUPP: i32 = 95;
pub(super) const EADDRNOTAVAIL: i32 = 99;
const ENETDOWN: i32 = 100;
pub(super) const ENETUNREACH: i32 = 101;
const ENOBUFS: i32 = 105;
const EHOSTUNREACH: i32 = 113;

/// The most addresses and routes: whoever looks for one looks at all.
const ADDRESSES_MAX: usize = 64;
const ROUTES_MAX: usize = 256;
/// The smallest packets that IPv6 works with; below, Linux would switch it off.
const MTU_MIN: u32 = 1280;
/// The cost of a route by IPv6 if none is named.
pub(super) const METRIC_V6: u32 = 1024;

/// A route that was given: on the command line, or by a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenRoute {
    /// The addresses that it leads to.
    pub destination: InterfaceAddress,
    /// The router, if they are not on the link.
    pub gateway: Option<IpAddr>,
    /// The cost: the lowest of equal length counts.
    pub metric: u32,
    /// `rtm_protocol`: who gave it.
    pub protocol: u8,
}

/// See the module.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DeviceSettings {
    /// Its addresses.
    pub addresses: Vec<InterfaceAddress>,
    /// The routes by it that do not follow from its addresses.
    pub routes: Vec<GivenRoute>,
    /// Whether packets come and go.
    pub is_up: bool,
    /// Bytes of the largest packet.
    pub mtu: u32,
}

/// The properties of a device that bound its settings.
#[derive(Clone, Copy, Debug)]
pub struct DeviceLimits {
    /// Its hardware address.
    pub mac: [u8; 6],
    /// Bytes of the largest packet that it takes.
    pub mtu: u32,
}

/// A change that a program asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkChange {
    /// A further address; one that is there is no error if it `replaces`.
    AddAddress {
        /// The address.
        with: InterfaceAddress,
        /// `NLM_F_REPLACE`.
        replaces: bool,
    },
    /// One address less.
    RemoveAddress(InterfaceAddress),
    /// The first IPv4 address, with this one in its place.
    SetAddress(InterfaceAddress),
    /// Up or down, and the largest packet.
    Link {
        /// Whether it is to be up.
        is_up: Option<bool>,
        /// Bytes of the largest packet.
        mtu: Option<u32>,
    },
    /// A further route, or another in place of one to the same addresses.
    AddRoute {
        /// The route.
        route: GivenRoute,
        /// `NLM_F_REPLACE`.
        replaces: bool,
    },
    /// Of the loopback.
    Loopback(LoopbackChange),
    /// One route less.
    RemoveRoute {
        /// The addresses that it leads to.
        destination: InterfaceAddress,
        /// The router, if one was named.
        gateway: Option<IpAddr>,
        /// The cost, if one was named.
        metric: Option<u32>,
    },
}

impl DeviceSettings {
    /// A copy.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn try_clone(&self) -> Result<Self, i32> {
        let mut addresses = try_with_capacity(self.addresses.len()).map_err(|_| ENOMEM)?;
        for &with in &self.addresses {
            try_push(&mut addresses, with).map_err(|_| ENOMEM)?;
        }
        let mut routes = try_with_capacity(self.routes.len()).map_err(|_| ENOMEM)?;
        for &route in &self.routes {
            try_push(&mut routes, route).map_err(|_| ENOMEM)?;
        }
        Ok(Self { addresses, routes, is_up: self.is_up, mtu: self.mtu })
    }

    /// Carries a change out, which is not one of the loopback.
    ///
    /// # Errors
    /// As rtnetlink's; nothing has changed then.
    pub fn apply(&mut self, change: &NetworkChange, limits: &DeviceLimits) -> Result<(), i32> {
        match *change {
            NetworkChange::AddAddress { with, replaces } => self.add_address(with, replaces),
            NetworkChange::RemoveAddress(with) => self.remove_address(with),
            NetworkChange::SetAddress(with) => {
                let old = self.addresses.iter_mut().find(|own| own.address.is_ipv4());
                match old {
                    Some(old) => *old = with,
                    None => self.add_address(with, false)?,
                }
                Ok(())
            }
            NetworkChange::Loopback(_) => Err(EINVAL),
            NetworkChange::Link { is_up, mtu } => self.set_link(is_up, mtu, limits),
            NetworkChange::AddRoute { route, replaces } => self.add_route(route, replaces),
            NetworkChange::RemoveRoute { destination, gateway, metric } => {
                self.remove_route(destination, gateway, metric)
            }
        }
    }

    fn add_address(&mut self, with: InterfaceAddress, replaces: bool) -> Result<(), i32> {
        let is_odd = with.address.is_multicast() || with.address.is_unspecified();
        if is_odd || with.address.is_loopback() {
            return Err(EINVAL);
        }
        // IPv6 has an address once, IPv4 once with each length.
        let is_same = |own: &&InterfaceAddress| {
            own.address == with.address && (own.length == with.length || !with.address.is_ipv4())
        };
        if self.addresses.iter().any(|own| is_same(&own)) {
            return if replaces { Ok(()) } else { Err(EEXIST) };
        }
        if self.addresses.len() >= ADDRESSES_MAX {
            return Err(ENOBUFS);
        }
        try_push(&mut self.addresses, with).map_err(|_| ENOBUFS)
    }

    fn remove_address(&mut self, with: InterfaceAddress) -> Result<(), i32> {
        let place = self.addresses.iter().position(|own| *own == with).ok_or(EADDRNOTAVAIL)?;
        self.addresses.remove(place);
        let is_v4 = with.address.is_ipv4();
        if !self.addresses.iter().any(|own| own.address.is_ipv4() == is_v4) {
            // Without an address there is nothing to send by.
            self.routes.retain(|route| route.destination.address.is_ipv4() != is_v4);
        }
        Ok(())
    }

    fn set_link(&mut self, is_up: Option<bool>, mtu: Option<u32>, limits: &DeviceLimits) -> Result<(), i32> {
        let mtu = mtu.unwrap_or(self.mtu);
        if !(MTU_MIN..=limits.mtu).contains(&mtu) {
            return Err(EINVAL);
        }
        match is_up {
            Some(true) if !self.is_up => {
                let own = link_local(limits.mac);
                if !self.addresses.contains(&own) {
                    self.add_address(own, true)?;
                }
                self.is_up = true;
            }
            Some(false) if self.is_up => {
                // As in Linux: routes go, addresses of IPv6 too, those of IPv4 stay.
                self.routes.clear();
                self.addresses.retain(|own| own.address.is_ipv4());
                self.is_up = false;
            }
            _ => {}
        }
        self.mtu = mtu;
        Ok(())
    }

    fn add_route(&mut self, mut route: GivenRoute, replaces: bool) -> Result<(), i32> {
        let is_v4 = route.destination.address.is_ipv4();
        if route.destination != route.destination.network() {
            if is_v4 {
                return Err(EINVAL);
            }
            route.destination = route.destination.network();
        }
        if !self.is_up {
            return Err(ENETDOWN);
        }
        if let Some(gateway) = route.gateway {
            if gateway.is_ipv4() != is_v4 || self.addresses.iter().any(|own| own.address == gateway) {
                return Err(EINVAL);
            }
            let is_near = self.addresses.iter().any(|own| own.contains(gateway))
                || self
                    .routes
                    .iter()
                    .any(|near| near.gateway.is_none() && near.destination.contains(gateway));
            if !is_near {
                return Err(if is_v4 { ENETUNREACH } else { EHOSTUNREACH });
            }
        }
        let is_same =
            |old: &&mut GivenRoute| old.destination == route.destination && old.metric == route.metric;
        if let Some(old) = self.routes.iter_mut().find(is_same) {
            if !replaces {
                return Err(EEXIST);
            }
            *old = route;
            return Ok(());
        }
        if is_v4 && route.metric == 0 && self.follows(route.destination) {
            return Err(EEXIST);
        }
        if self.routes.len() >= ROUTES_MAX {
            return Err(ENOBUFS);
        }
        try_push(&mut self.routes, route).map_err(|_| ENOBUFS)
    }

    /// Whether a route to a network follows from an address.
    fn follows(&self, destination: InterfaceAddress) -> bool {
        self.addresses.iter().any(|own| own.network() == destination)
    }

    fn remove_route(
        &mut self,
        destination: InterfaceAddress,
        gateway: Option<IpAddr>,
        metric: Option<u32>,
    ) -> Result<(), i32> {
        let place = self.routes.iter().position(|route| {
            route.destination == destination.network()
                && (gateway.is_none() || route.gateway == gateway)
                && metric.is_none_or(|metric| route.metric == metric)
        });
        match place {
            Some(place) => {
                self.routes.remove(place);
                Ok(())
            }
            // A route to the hosts of an own network goes with the address.
            None if gateway.is_none() && self.follows(destination) => Err(EOPNOTSUPP),
            None => Err(ESRCH),
        }
    }
}
