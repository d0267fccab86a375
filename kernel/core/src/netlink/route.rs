//! Routes: those that were given, and those that follow from the interfaces' addresses.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::network::{Interface, InterfaceAddress, InterfaceKind, Network, scope};
use super::settings::{GivenRoute, METRIC_V6};

/// The origin of a route.
const PROTOCOL_KERNEL: u8 = 2;
const PROTOCOL_BOOT: u8 = 3;
/// Routes to others, and those to this machine itself.
pub(super) const TABLE_MAIN: u8 = 254;
const TABLE_LOCAL: u8 = 255;
/// The cost of IPv6 routes, as Linux sets it.
const METRIC_CONNECTED: u32 = 256;

/// The kind of a route, `rtm_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteKind {
    /// To others.
    Unicast = 1,
    /// To this machine.
    Local = 2,
    /// To all on a link.
    Broadcast = 3,
    /// To a group.
    Multicast = 5,
}

/// A way to a set of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The addresses.
    pub destination: InterfaceAddress,
    /// The router, where the addresses are not on the link.
    pub gateway: Option<IpAddr>,
    /// The index of the interface.
    pub interface: u32,
    /// The address that packets come from.
    pub source: Option<IpAddr>,
    /// The destination.
    pub kind: RouteKind,
    /// `rtm_table`.
    pub table: u8,
    /// `rtm_protocol`.
    pub protocol: u8,
    /// `rtm_scope`.
    pub scope: u8,
    /// The cost; 0 for IPv4.
    pub metric: u32,
}

impl Route {
    const fn is_v4(&self) -> bool {
        self.destination.address.is_ipv4()
    }

    /// Whether it is among the routes that one looks at, not those to the machine's own addresses.
    #[must_use]
    pub const fn is_main(&self) -> bool {
        self.table == TABLE_MAIN
    }
}

impl Network<'_> {
    /// Calls `visit` with each route, those to others before those to the machine itself; ends early when it returns
    /// false.
    pub fn routes(&self, visit: &mut dyn FnMut(&Route) -> bool) {
        let mut up = self.interfaces.iter().filter(|interface| interface.is_up);
        if let Some(interface) = up.find(|interface| interface.kind == InterfaceKind::Ethernet)
            && !self.routes.iter().all(|given| visit(&given_route(interface, given)))
        {
            return;
        }
        let up = || self.interfaces.iter().filter(|interface| interface.is_up);
        for interface in up() {
            for with in interface.addresses {
                if !connected(interface, with).is_none_or(|route| visit(&route)) {
                    return;
                }
            }
        }
        for interface in up() {
            for with in interface.addresses {
                let own = own_routes(interface, with);
                if !own.iter().flatten().all(&mut *visit) {
                    return;
                }
            }
            let is_v6 = interface.addresses.iter().any(|with| with.address.is_ipv6());
            if interface.kind == InterfaceKind::Ethernet && is_v6 && !visit(&multicast_route(interface)) {
                return;
            }
        }
    }

    /// The route of packets to an address: the one with the longest prefix.
    #[must_use]
    pub fn route_to(&self, address: IpAddr) -> Option<Route> {
        let mut best: Option<Route> = None;
        self.routes(&mut |route| {
            let is_better = best.is_none_or(|best| {
                // Between equals, the machine itself comes first.
                (route.destination.length, route.table, best.metric)
                    > (best.destination.length, best.table, route.metric)
            });
            if route.destination.contains(address) && is_better {
                best = Some(*route);
            }
            true
        });
        best
    }

    /// The address from which packets go out to a destination by a route.
    #[must_use]
    pub fn source(&self, route: &Route) -> Option<IpAddr> {
        if route.source.is_some() {
            return route.source;
        }
        let target = route.gateway.unwrap_or(route.destination.address);
        let addresses = self.by_index(route.interface)?.addresses;
        let on_link = addresses.iter().find(|with| with.contains(target));
        let same_family = || addresses.iter().find(|with| with.address.is_ipv4() == target.is_ipv4());
        on_link.or_else(same_family).map(|with| with.address)
    }
}

/// The route to everything, by a router.
#[must_use]
pub const fn default_route(gateway: IpAddr) -> GivenRoute {
    let (address, metric) = match gateway {
        IpAddr::V4(_) => (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
        IpAddr::V6(_) => (IpAddr::V6(Ipv6Addr::UNSPECIFIED), METRIC_V6),
    };
    let destination = InterfaceAddress { address, length: 0 };
    GivenRoute { destination, gateway: Some(gateway), metric, protocol: PROTOCOL_BOOT }
}

fn given_route(interface: &Interface<'_>, given: &GivenRoute) -> Route {
    let is_near = given.gateway.is_none() && given.destination.address.is_ipv4();
    Route {
        destination: given.destination,
        gateway: given.gateway,
        interface: interface.index,
        source: None,
        kind: RouteKind::Unicast,
        table: TABLE_MAIN,
        protocol: given.protocol,
        scope: if is_near { scope::LINK } else { scope::UNIVERSE },
        metric: given.metric,
    }
}

/// The route to the other hosts of an address's network.
fn connected(interface: &Interface<'_>, with: &InterfaceAddress) -> Option<Route> {
    let is_v4 = with.address.is_ipv4();
    let is_alone = with.length == if is_v4 { 32 } else { 128 };
    let is_loopback = interface.kind == InterfaceKind::Loopback;
    // As in Linux, the main table has `::1` and not `127.0.0.0/8`, which the local table has.
    if is_loopback && is_v4 || is_alone && !is_loopback {
        return None;
    }
    Some(Route {
        destination: with.network(),
        gateway: None,
        interface: interface.index,
        source: is_v4.then_some(with.address),
        kind: RouteKind::Unicast,
        table: TABLE_MAIN,
        protocol: PROTOCOL_KERNEL,
        scope: if is_v4 { scope::LINK } else { scope::UNIVERSE },
        metric: if is_v4 { 0 } else { METRIC_CONNECTED },
    })
}

/// The routes to the machine's own address, and to all hosts of its network.
fn own_routes(interface: &Interface<'_>, with: &InterfaceAddress) -> [Option<Route>; 3] {
    let is_v4 = with.address.is_ipv4();
    let alone = |address: IpAddr| InterfaceAddress { address, length: if is_v4 { 32 } else { 128 } };
    let own = Route {
        destination: alone(with.address),
        gateway: None,
        interface: interface.index,
        source: is_v4.then_some(with.address),
        kind: RouteKind::Local,
        table: TABLE_LOCAL,
        protocol: PROTOCOL_KERNEL,
        scope: if is_v4 { scope::HOST } else { scope::UNIVERSE },
        metric: 0,
    };
    let is_net = is_v4 && interface.kind == InterfaceKind::Loopback;
    let net = is_net.then(|| Route { destination: with.network(), ..own });
    let all = with.broadcast().map(|broadcast| Route {
        destination: alone(IpAddr::V4(broadcast)),
        kind: RouteKind::Broadcast,
        scope: scope::LINK,
        ..own
    });
    [net, Some(own), all]
}

/// The route to IPv6 groups on a link.
fn multicast_route(interface: &Interface<'_>) -> Route {
    let groups = IpAddr::V6(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0));
    Route {
        destination: InterfaceAddress { address: groups, length: 8 },
        gateway: None,
        interface: interface.index,
        source: None,
        kind: RouteKind::Multicast,
        table: TABLE_LOCAL,
        protocol: PROTOCOL_KERNEL,
        scope: scope::UNIVERSE,
        metric: METRIC_CONNECTED,
    }
}

/// The families of an address, `AF_…`.
pub(super) const fn family(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => super::message::AF_INET,
        IpAddr::V6(_) => super::message::AF_INET6,
    }
}

impl Route {
    /// `AF_…`.
    pub(super) const fn family(&self) -> u8 {
        if self.is_v4() { super::message::AF_INET } else { super::message::AF_INET6 }
    }
}
