//! smoltcp's part of a connection: its interface with one socket, and the device that it sees.

use alloc::vec::Vec;
use core::net::IpAddr;
use core::num::NonZeroUsize;

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, PacketMeta, RxToken, TxToken};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr, IpEndpoint};

use crate::address::Endpoint;
use crate::engine::Engine;
use crate::ip::ETHERNET_BYTES;
use crate::platform::{OutOfMemory, Platform};
use crate::tcp::wire::outlet::Outlet;

/// Bytes of the longest packet that the device is to cut.
const SEGMENT_MAX: usize = 60_000;
/// The memory of an interface, a socket and their set.
const STACK_BYTES: usize = 4096;

/// The seed with which smoltcp chooses a number as the first of a connection.
///
/// Its generator goes from one state to the next by `state * MULTIPLIER + INCREMENT`, and yields 32 bits of the new
/// one: those from 29 on if the topmost are 0. An interface draws a number for itself first, and once more if that is
/// 0.
fn seed_for(number: u32) -> u64 {
    const MULTIPLIER: u64 = 0xbb2e_fcec_3c39_611d;
    const INCREMENT: u64 = 0x7590_ef39;
    let mut inverse = MULTIPLIER;
    // Newton's iteration doubles the right bits, of which an odd number has three.
    for _ in 0..5 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(MULTIPLIER.wrapping_mul(inverse)));
    }
    let before = |state: u64| state.wrapping_sub(INCREMENT).wrapping_mul(inverse);
    let mut free_bits = 0;
    loop {
        let first = before(u64::from(number) << 29 | free_bits);
        let drawn = (first >> (29 - (first >> 61))) as u32;
        if (drawn ^ drawn >> 16) as u16 != 0 {
            return before(first);
        }
        free_bits += 1;
    }
}

/// smoltcp's part.
pub(super) struct Stack {
    pub(super) interface: Interface,
    pub(super) sockets: SocketSet<'static>,
    pub(super) handle: SocketHandle,
    pub(super) receive_bytes: usize,
    pub(super) send_bytes: usize,
}

/// smoltcp's device for one pass.
pub(super) struct StackDevice<'a, P: Platform> {
    pub(super) engine: &'a Engine<P>,
    pub(super) outlet: &'a mut Outlet,
    pub(super) incoming: Option<&'a [u8]>,
    /// Where a frame is put together; it has the capacity for the longest.
    pub(super) scratch: &'a mut Vec<u8>,
    pub(super) capabilities: DeviceCapabilities,
}

pub(super) struct Incoming<'a>(&'a [u8]);

pub(super) struct Outgoing<'a, P: Platform> {
    pub(super) engine: &'a Engine<P>,
    pub(super) outlet: &'a mut Outlet,
    pub(super) scratch: &'a mut Vec<u8>,
    /// Payload bytes of the pieces that the device is to make.
    pub(super) piece: Option<usize>,
    pub(super) is_answer: bool,
}

impl RxToken for Incoming<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

impl<P: Platform> TxToken for Outgoing<'_, P> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        self.scratch.clear();
        self.scratch.resize(ETHERNET_BYTES + length, 0);
        let result = f(&mut self.scratch[ETHERNET_BYTES..]);
        self.outlet.emit(self.engine, self.scratch, self.piece, self.is_answer);
        result
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.piece = meta.segmentation_offload_size.map(|size| usize::from(size.get()));
    }
}

impl<P: Platform> Device for StackDevice<'_, P> {
    type RxToken<'b>
        = Incoming<'b>
    where
        Self: 'b;
    type TxToken<'b>
        = Outgoing<'b, P>
    where
        Self: 'b;

    fn receive(&mut self, _: Instant) -> Option<(Incoming<'_>, Outgoing<'_, P>)> {
        let packet = self.incoming.take()?;
        let (engine, outlet, scratch) = (self.engine, &mut *self.outlet, &mut *self.scratch);
        Some((Incoming(packet), Outgoing { engine, outlet, scratch, piece: None, is_answer: true }))
    }

    fn transmit(&mut self, _: Instant) -> Option<Outgoing<'_, P>> {
        if self.outlet.pending.is_some() {
            return None;
        }
        let (engine, outlet, scratch) = (self.engine, &mut *self.outlet, &mut *self.scratch);
        Some(Outgoing { engine, outlet, scratch, piece: None, is_answer: false })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.capabilities.clone()
    }
}

pub(super) fn endpoint(endpoint: Endpoint) -> IpEndpoint {
    IpEndpoint::new(address(endpoint.address), endpoint.port)
}

pub(super) fn address(address: IpAddr) -> IpAddress {
    match address {
        IpAddr::V4(v4) => IpAddress::Ipv4(v4),
        IpAddr::V6(v6) => IpAddress::Ipv6(v6),
    }
}

pub(super) fn instant(now_ns: u64) -> Instant {
    Instant::from_micros((now_ns / 1000) as i64)
}

pub(super) fn capabilities<P: Platform>(engine: &Engine<P>, mtu: usize) -> DeviceCapabilities {
    let mut capabilities = DeviceCapabilities::default();
    capabilities.medium = Medium::Ip;
    capabilities.max_transmission_unit = mtu;
    // Both are put in, and were checked, outside.
    capabilities.checksum.ipv4 = Checksum::None;
    capabilities.checksum.tcp = Checksum::None;
    if let Some(link) = engine.interface().map(crate::interface::Interface::capabilities) {
        // smoltcp drops a packet of IPv6 that is longer than the MTU, whoever would cut it; and the length in a header
        // has 16 bits.
        let longest = link.tcp_segmentation_v4.min(SEGMENT_MAX);
        capabilities.segmentation.tcpv4 = NonZeroUsize::new(longest).filter(|bytes| bytes.get() > mtu);
    }
    capabilities
}

impl Stack {
    pub(super) fn new<P: Platform>(
        engine: &Engine<P>,
        local: Endpoint,
        mtu: usize,
        number: u32,
        receive_bytes: usize,
        send_bytes: usize,
    ) -> Result<Self, OutOfMemory> {
        let storage = |bytes: usize| -> Result<Vec<u8>, OutOfMemory> {
            let mut storage = Vec::new();
            storage.try_reserve_exact(bytes).map_err(|_| OutOfMemory)?;
            storage.resize(bytes, 0);
            Ok(storage)
        };
        let (receive, send) = (storage(receive_bytes)?, storage(send_bytes)?);
        P::reserved(STACK_BYTES, || {
            let mut config = Config::new(HardwareAddress::Ip);
            config.random_seed = seed_for(number);
            let mut device = Described(capabilities(engine, mtu));
            let mut interface = Interface::new(config, &mut device, instant(P::now_ns()));
            let bits = if local.address.is_ipv4() { 32 } else { 128 };
            interface.update_ip_addrs(|all| {
                // There is room for one.
                let _ = all.push(IpCidr::new(address(local.address), bits));
            });
            let mut socket = Socket::new(SocketBuffer::new(receive), SocketBuffer::new(send));
            // `congestion` does it.
            socket.set_congestion_control(CongestionControl::None);
            let mut sockets = SocketSet::new(Vec::with_capacity(1));
            let handle = sockets.add(socket);
            Self { interface, sockets, handle, receive_bytes, send_bytes }
        })
    }

    pub(super) fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    pub(super) fn peek(&self) -> &Socket<'static> {
        self.sockets.get(self.handle)
    }

    /// By how much smoltcp shifts the windows that it sends.
    pub(super) const fn scale(&self) -> u8 {
        (usize::BITS - self.receive_bytes.leading_zeros()).saturating_sub(16) as u8
    }
}

/// Says what a device can do, and does nothing.
struct Described(DeviceCapabilities);

impl Device for Described {
    type RxToken<'b> = Incoming<'b>;
    type TxToken<'b> = Silent;

    fn receive(&mut self, _: Instant) -> Option<(Incoming<'_>, Silent)> {
        None
    }

    fn transmit(&mut self, _: Instant) -> Option<Silent> {
        None
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.0.clone()
    }
}

struct Silent;

impl TxToken for Silent {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, _: usize, f: F) -> R {
        // Never called: no token is ever given out.
        f(&mut [])
    }
}
