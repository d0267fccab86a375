//! The ports of a protocol: who is bound where, and who gets what comes.
//!
//! A port has a short list of bindings and counts of the connections on it, so that neither finding a listener nor
//! releasing a connection depends on how many connections there are.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::net::IpAddr;
use core::ops::RangeInclusive;
use heddle_kernel_core::hash::KeyedMap;

use crate::address::{Endpoint, Tuple};
use crate::error::{InetError, InetResult};
use crate::options::Options;
use crate::platform::OutOfMemory;

/// The addresses and conditions under which a socket takes a port.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// The address; nothing for any.
    pub address: Option<IpAddr>,
    /// Whether IPv4 comes in, if the address is any.
    pub v4: bool,
    /// Whether IPv6 comes in, if the address is any.
    pub v6: bool,
    /// `SO_REUSEADDR`.
    pub reuse_address: bool,
    /// `SO_REUSEPORT`.
    pub reuse_port: bool,
    /// The user, for `SO_REUSEPORT`.
    pub user: u32,
}

impl Claim {
    /// The claim of a socket with these options on `address`.
    pub fn new(address: Option<IpAddr>, is_v6: bool, options: &Options, user: u32) -> Self {
        Self {
            address,
            v4: !is_v6 || !Options::is_on(&options.only_v6),
            v6: is_v6,
            reuse_address: Options::is_on(&options.reuse_address),
            reuse_port: Options::is_on(&options.reuse_port),
            user,
        }
    }

    fn accepts(&self, address: IpAddr) -> bool {
        match self.address {
            Some(own) => own == address,
            None => {
                if address.is_ipv4() {
                    self.v4
                } else {
                    self.v6
                }
            }
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        match (self.address, other.address) {
            (Some(one), _) => other.accepts(one),
            (None, Some(other)) => self.accepts(other),
            (None, None) => self.v4 && other.v4 || self.v6 && other.v6,
        }
    }
}

pub(crate) struct Binding<S> {
    claim: Claim,
    owner: Weak<S>,
    /// The peer of a connected datagram socket.
    remote: Option<Endpoint>,
    is_listening: bool,
}

struct PortEntry<S> {
    bindings: Vec<Binding<S>>,
    /// Connections whose sockets have, or had, `SO_REUSEADDR`; and others.
    reusable: u32,
    held: u32,
}

/// See the module.
pub(crate) struct PortTable<S> {
    ports: KeyedMap<u16, PortEntry<S>>,
    /// Whether `SO_REUSEADDR` lets two sockets that receive share a port: of datagrams it does.
    shares_receivers: bool,
}

impl<S> PortTable<S> {
    pub fn new(shares_receivers: bool) -> Self {
        Self { ports: KeyedMap::default(), shares_receivers }
    }

    fn conflicts(&self, port: u16, claim: &Claim) -> bool {
        let Some(known) = self.ports.get(&port) else { return false };
        if known.held > 0 || known.reusable > 0 && !claim.reuse_address {
            return true;
        }
        known.bindings.iter().any(|other| {
            let shares = claim.reuse_address && other.claim.reuse_address;
            let shares = shares && (self.shares_receivers || !other.is_listening);
            let shares_port = claim.reuse_port && other.claim.reuse_port && claim.user == other.claim.user;
            other.claim.overlaps(claim) && !shares && !shares_port
        })
    }

    /// Whether a socket is bound to a port.
    pub fn is_bound(&self, port: u16) -> bool {
        self.ports.get(&port).is_some_and(|known| !known.bindings.is_empty())
    }

    fn entry(&mut self, port: u16) -> InetResult<&mut PortEntry<S>> {
        self.ports.try_reserve(1).map_err(|_| InetError::NoMemory)?;
        Ok(self.ports.entry(port).or_insert(PortEntry { bindings: Vec::new(), reusable: 0, held: 0 }))
    }

    /// Binds a socket to a port, to one of `free` if `port` is 0: these ports, from a random one on.
    pub fn bind(
        &mut self,
        port: u16,
        claim: Claim,
        owner: Weak<S>,
        free: (RangeInclusive<u16>, u32),
    ) -> InetResult<u16> {
        let port = if port != 0 {
            if self.conflicts(port, &claim) {
                return Err(InetError::AddressInUse);
            }
            port
        } else {
            let strict = Claim { reuse_address: false, ..claim };
            ephemeral(free.0, free.1)
                .find(|&port| !self.conflicts(port, &strict))
                .ok_or(InetError::AddressInUse)?
        };
        let known = self.entry(port)?;
        if known.bindings.try_reserve(1).is_err() {
            self.tidy(port);
            return Err(InetError::NoMemory);
        }
        known.bindings.push(Binding { claim, owner, remote: None, is_listening: false });
        Ok(port)
    }

    fn of<'a>(&'a mut self, port: u16, owner: &Arc<S>) -> Option<&'a mut Binding<S>> {
        let known = self.ports.get_mut(&port)?;
        known.bindings.iter_mut().find(|binding| binding.owner.as_ptr() == Arc::as_ptr(owner))
    }

    /// Gives a binding up.
    pub fn unbind(&mut self, port: u16, owner: *const S) {
        if let Some(known) = self.ports.get_mut(&port) {
            known.bindings.retain(|binding| !core::ptr::eq(binding.owner.as_ptr(), owner));
            if known.bindings.is_empty() {
                known.bindings = Vec::new();
            }
        }
        self.tidy(port);
    }

    fn tidy(&mut self, port: u16) {
        let is_idle =
            |known: &PortEntry<S>| known.bindings.is_empty() && known.held == 0 && known.reusable == 0;
        if self.ports.get(&port).is_some_and(is_idle) {
            self.ports.remove(&port);
        }
    }

    /// Says whether a bound socket listens. Two that may not share a port while listening are told so.
    pub fn set_listening(&mut self, port: u16, owner: &Arc<S>, is_listening: bool) -> InetResult<()> {
        let Some(own) = self.of(port, owner) else { return Err(InetError::Invalid) };
        let claim = own.claim;
        if is_listening && let Some(known) = self.ports.get(&port) {
            let is_taken = known.bindings.iter().any(|other| {
                other.is_listening
                    && other.owner.as_ptr() != Arc::as_ptr(owner)
                    && other.claim.overlaps(&claim)
                    && !(claim.reuse_port && other.claim.reuse_port && claim.user == other.claim.user)
            });
            if is_taken {
                return Err(InetError::AddressInUse);
            }
        }
        if let Some(own) = self.of(port, owner) {
            own.is_listening = is_listening;
        }
        Ok(())
    }

    /// Sets the peer of a connected datagram socket, and the local address that comes with it.
    pub fn set_remote(&mut self, port: u16, owner: &Arc<S>, local: Option<IpAddr>, remote: Option<Endpoint>) {
        if let Some(own) = self.of(port, owner) {
            own.claim.address = local;
            own.remote = remote;
        }
    }

    /// Changes the sharing of a bound socket.
    pub fn set_reuse(&mut self, port: u16, owner: &Arc<S>, address: bool, shared: bool) {
        if let Some(own) = self.of(port, owner) {
            own.claim.reuse_address = address;
            own.claim.reuse_port = shared;
        }
    }

    /// A connection is on a port.
    pub fn hold(&mut self, port: u16, is_reusable: bool) -> InetResult<()> {
        let known = self.entry(port)?;
        *(if is_reusable { &mut known.reusable } else { &mut known.held }) += 1;
        Ok(())
    }

    /// A connection has left a port.
    pub fn release(&mut self, port: u16, is_reusable: bool) {
        if let Some(known) = self.ports.get_mut(&port) {
            let count = if is_reusable { &mut known.reusable } else { &mut known.held };
            *count = count.saturating_sub(1);
        }
        self.tidy(port);
    }

    /// The socket that gets what comes to `local` from `remote`. Of several that fit equally one is chosen by a hash of
    /// the endpoints, so that what comes from one peer goes to one socket.
    pub fn find(&self, local: Endpoint, remote: Endpoint, listening: bool) -> Option<Arc<S>> {
        let known = self.ports.get(&local.port)?;
        let score = |binding: &Binding<S>| {
            if listening != binding.is_listening || !binding.claim.accepts(local.address) {
                return 0;
            }
            // In Linux's order: the peer, the address, then a socket of IPv4 alone before one of both.
            let own = 1 + u8::from(!binding.claim.v6) + 2 * u8::from(binding.claim.address.is_some());
            match binding.remote {
                Some(peer) if peer == remote => own + 4,
                Some(_) => 0,
                None => own,
            }
        };
        if let [only] = known.bindings.as_slice() {
            return if score(only) > 0 { only.owner.upgrade() } else { None };
        }
        let best = known.bindings.iter().map(score).max().filter(|&best| best > 0)?;
        let fitting = || known.bindings.iter().filter(|binding| score(binding) == best);
        let first = fitting().next()?;
        let count = if first.claim.reuse_port { fitting().count() } else { 1 };
        // The latest of those that share an address without balancing gets all, as in Linux.
        let chosen = if count > 1 {
            fitting().nth(Tuple::new(local, remote).spread() as usize % count)
        } else {
            fitting().next_back()
        };
        chosen?.owner.upgrade()
    }

    /// The sockets that get a broadcast or multicast datagram; none if there is no memory.
    pub fn all_for(&self, local: Endpoint, remote: Endpoint) -> Vec<Arc<S>> {
        let mut all = Vec::new();
        let Some(known) = self.ports.get(&local.port) else { return all };
        if all.try_reserve_exact(known.bindings.len()).is_err() {
            return all;
        }
        let fits = |binding: &&Binding<S>| {
            binding.claim.accepts(local.address) && binding.remote.is_none_or(|peer| peer == remote)
        };
        all.extend(known.bindings.iter().filter(fits).filter_map(|binding| binding.owner.upgrade()));
        all
    }

    /// Gives back memory that is not needed.
    pub fn shrink(&mut self) {
        if self.ports.is_empty() {
            self.ports = KeyedMap::default();
        }
    }

    /// Every bound socket.
    pub fn all(&self) -> Result<Vec<Arc<S>>, OutOfMemory> {
        let mut all = Vec::new();
        let count = self.ports.values().map(|port| port.bindings.len()).sum();
        all.try_reserve_exact(count).map_err(|_| OutOfMemory)?;
        all.extend(
            self.ports.values().flat_map(|port| &port.bindings).filter_map(|binding| binding.owner.upgrade()),
        );
        Ok(all)
    }
}

/// The ports to try, from a random one on.
pub(crate) fn ephemeral(ports: RangeInclusive<u16>, random: u32) -> impl Iterator<Item = u16> {
    let (first, last) = (u32::from(*ports.start()), u32::from(*ports.end()));
    let count = last - first + 1;
    (0..count).map(move |step| (first + (random % count + step) % count) as u16)
}
