//! The options of a socket that the engine acts on.

use core::net::IpAddr;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use crate::settings::Settings;

macro_rules! options {
    ($($(#[$doc:meta])* $name:ident: $atomic:ty = $default:expr;)*) => {
        /// See the module. Flags are 0 or 1.
        #[derive(Debug)]
        pub struct Options {
            $($(#[$doc])* pub $name: $atomic,)*
        }

        impl Options {
            /// As a new socket has them.
            #[must_use]
            pub const fn new() -> Self {
                Self { $($name: <$atomic>::new($default),)* }
            }

            /// Takes over those of another socket: a connection has its listener's.
            pub fn copy_from(&self, other: &Self) {
                $(self.$name.store(other.$name.load(Ordering::Relaxed), Ordering::Relaxed);)*
            }
        }
    };
}

/// `SO_SNDBUF` and `SO_RCVBUF` of a connection that has not set them: the buffer may grow so far.
pub const DEFAULT_BUFFER: u32 = 262_144;

/// The hop limit of IPv6, which Linux sets by interface.
const DEFAULT_HOPS: u8 = 64;

options! {
    /// `SO_REUSEADDR`.
    reuse_address: AtomicU32 = 0;
    /// `SO_REUSEPORT`.
    reuse_port: AtomicU32 = 0;
    /// `SO_BROADCAST`.
    broadcast: AtomicU32 = 0;
    /// `SO_KEEPALIVE`.
    keep_alive: AtomicU32 = 0;
    /// `SO_OOBINLINE`.
    out_of_band_inline: AtomicU32 = 0;
    /// `SO_LINGER`, in seconds; -1 for off.
    linger: AtomicI32 = -1;
    /// The seconds that were set last, on or off.
    linger_seconds: AtomicU32 = 0;
    /// Bytes that may wait to be sent.
    send_buffer: AtomicU32 = DEFAULT_BUFFER;
    /// Bytes that may wait to be read.
    receive_buffer: AtomicU32 = DEFAULT_BUFFER;
    /// `SO_RCVLOWAT`.
    low_water: AtomicU32 = 1;
    /// `SO_PRIORITY`.
    priority: AtomicU32 = 0;
    /// `SO_MARK`.
    mark: AtomicU32 = 0;
    /// `TCP_NODELAY`.
    no_delay: AtomicU32 = 0;
    /// `TCP_CORK`.
    cork: AtomicU32 = 0;
    /// `TCP_CONGESTION`: Reno in place of CUBIC.
    reno: AtomicU32 = 0;
    /// `TCP_QUICKACK`.
    quick_ack: AtomicU32 = 1;
    /// `TCP_KEEPIDLE`, in seconds.
    keep_idle: AtomicU32 = 7200;
    /// `TCP_KEEPINTVL`, in seconds.
    keep_interval: AtomicU32 = 75;
    /// `TCP_KEEPCNT`.
    keep_count: AtomicU32 = 9;
    /// `TCP_USER_TIMEOUT`, in milliseconds; 0 for the default.
    user_timeout: AtomicU32 = 0;
    /// `TCP_DEFER_ACCEPT`, in seconds.
    defer_accept: AtomicU32 = 0;
    /// `TCP_SYNCNT`.
    syn_count: AtomicU32 = 6;
    /// `TCP_LINGER2`, in seconds; 0 for the default, -1 for none.
    linger2: AtomicI32 = 0;
    /// `TCP_MAXSEG`; 0 for the link's.
    max_segment: AtomicU32 = 0;
    /// `TCP_WINDOW_CLAMP`.
    window_clamp: AtomicU32 = 0;
    /// `TCP_FASTOPEN`: the length of a queue that is not used.
    fast_open: AtomicU32 = 0;
    /// `TCP_FASTOPEN_CONNECT`, kept.
    fast_open_connect: AtomicU32 = 0;
    /// `TCP_NOTSENT_LOWAT`.
    unsent_low_water: AtomicU32 = 0;
    /// `IP_TTL`; 0 for the default.
    ttl: AtomicU32 = 0;
    /// `IP_MULTICAST_TTL`.
    multicast_ttl: AtomicU32 = 1;
    /// `IP_MULTICAST_LOOP`.
    multicast_loop: AtomicU32 = 1;
    /// `IP_MULTICAST_IF`: the address, its first byte lowest.
    multicast_address: AtomicU32 = 0;
    /// `IPV6_MULTICAST_IF`: the interface's number.
    multicast_interface: AtomicU32 = 0;
    /// `SO_BINDTODEVICE`: the interface's number; 0 for none.
    bound_interface: AtomicU32 = 0;
    /// `IPV6_UNICAST_HOPS`; -1 for the default.
    hops: AtomicI32 = -1;
    /// `IPV6_MULTICAST_HOPS`.
    multicast_hops: AtomicI32 = 1;
    /// `IPV6_MULTICAST_LOOP`.
    multicast_loop_v6: AtomicU32 = 1;
    /// `IP_TOS`.
    tos: AtomicU32 = 0;
    /// `IPV6_TCLASS`; -1 for the default.
    traffic_class: AtomicI32 = -1;
    /// `IPV6_V6ONLY`.
    only_v6: AtomicU32 = 0;
    /// `IP_MTU_DISCOVER`.
    mtu_discover: AtomicU32 = 1;
    /// `IP_PKTINFO`.
    packet_info: AtomicU32 = 0;
    /// `IPV6_RECVPKTINFO`.
    packet_info_v6: AtomicU32 = 0;
    /// `IP_RECVTTL`.
    receive_ttl: AtomicU32 = 0;
    /// `IP_RECVTOS`.
    receive_tos: AtomicU32 = 0;
    /// `IP_RECVORIGDSTADDR`.
    receive_destination: AtomicU32 = 0;
    /// `IPV6_RECVORIGDSTADDR`.
    receive_destination_v6: AtomicU32 = 0;
    /// `IPV6_RECVHOPLIMIT`.
    receive_hops: AtomicU32 = 0;
    /// `IPV6_RECVTCLASS`.
    receive_class: AtomicU32 = 0;
    /// `IP_RECVERR`.
    receive_errors: AtomicU32 = 0;
    /// `IPV6_RECVERR`.
    receive_errors_v6: AtomicU32 = 0;
    /// `IP_HDRINCL`.
    header_included: AtomicU32 = 0;
    /// `IP_FREEBIND`.
    free_bind: AtomicU32 = 0;
    /// `IP_TRANSPARENT`, kept.
    transparent: AtomicU32 = 0;
    /// `IP_BIND_ADDRESS_NO_PORT`.
    no_port: AtomicU32 = 0;
    /// `SO_TIMESTAMP`, or 2 for `SO_TIMESTAMPNS`.
    timestamp: AtomicU32 = 0;
    /// The time of each datagram is noted when it arrives.
    notes_arrival: AtomicU32 = 0;
    /// `SO_DEBUG`, kept.
    debug: AtomicU32 = 0;
    /// `SO_DONTROUTE`, kept.
    no_route: AtomicU32 = 0;
    /// `SO_NO_CHECK`, kept.
    no_check: AtomicU32 = 0;
    /// `SO_PASSSEC`: there are no labels to pass.
    pass_label: AtomicU32 = 0;
    /// `SO_PASSCRED`, kept: no credentials come with packets.
    pass_credentials: AtomicU32 = 0;
    /// `SO_PEEK_OFF` of datagrams: where the next peek starts; below 0 at the front, always.
    peek_offset: AtomicI32 = -1;
    /// `SO_NOFCS`, kept.
    no_frame_check: AtomicU32 = 0;
    /// `SO_LOCK_FILTER`, kept.
    lock_filter: AtomicU32 = 0;
    /// `SO_SELECT_ERR_QUEUE`, kept.
    select_error_queue: AtomicU32 = 0;
    /// `IP_RECVOPTS`: packets have no options here.
    receive_options: AtomicU32 = 0;
    /// `IP_RETOPTS`, as that.
    return_options: AtomicU32 = 0;
    /// Which of `SO_SNDBUF` (1) and `SO_RCVBUF` (2) were set.
    buffers_set: AtomicU32 = 0;
    /// `IP_MULTICAST_ALL`.
    multicast_all: AtomicU32 = 1;
}

impl Options {
    /// Whether a flag is on.
    #[must_use]
    pub fn is_on(flag: &AtomicU32) -> bool {
        flag.load(Ordering::Relaxed) != 0
    }

    /// Time to live, or hop limit, of packets to an address.
    #[must_use]
    pub fn ttl_for(&self, settings: &Settings, target: IpAddr) -> u8 {
        let default = Settings::get(&settings.ttl) as u8;
        let signed =
            |option: &AtomicI32, default| u8::try_from(option.load(Ordering::Relaxed)).unwrap_or(default);
        match target {
            IpAddr::V4(v4) if v4.is_multicast() => Self::get(&self.multicast_ttl) as u8,
            IpAddr::V4(_) => match Self::get(&self.ttl) as u8 {
                0 => default,
                ttl => ttl,
            },
            IpAddr::V6(v6) if v6.is_multicast() => signed(&self.multicast_hops, 1),
            IpAddr::V6(_) => signed(&self.hops, DEFAULT_HOPS),
        }
    }

    /// Type of service, or traffic class, of packets to an address.
    #[must_use]
    pub fn tos_for(&self, target: IpAddr) -> u8 {
        match target {
            IpAddr::V4(_) => Self::get(&self.tos) as u8,
            IpAddr::V6(_) => u8::try_from(self.traffic_class.load(Ordering::Relaxed)).unwrap_or(0),
        }
    }

    /// The value of an option.
    #[must_use]
    pub fn get(option: &AtomicU32) -> u32 {
        option.load(Ordering::Relaxed)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}
