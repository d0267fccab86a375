//! Settings that an administrator changes while the network runs, as the files of Linux's `/proc/sys/net` do.
//!
//! An option of a socket begins with the setting's value when the socket is made, and does not follow it later.

use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::options::Options;

macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident = $default:expr;)*) => {
        /// See the module. Times are in seconds.
        #[derive(Debug)]
        pub struct Settings {
            $($(#[$doc])* pub $name: AtomicU32,)*
        }

        impl Settings {
            /// The values that Linux begins with.
            #[must_use]
            pub const fn new() -> Self {
                Self { $($name: AtomicU32::new($default),)* }
            }
        }
    };
}

settings! {
    /// `net.ipv4.ip_local_port_range`: the first port in the upper half, the last in the lower.
    local_ports = 32_768 << 16 | 60_999;
    /// `net.ipv4.ip_unprivileged_port_start`: ports below are for those with `CAP_NET_BIND_SERVICE`.
    unprivileged_port = 1024;
    /// `net.ipv4.ip_default_ttl`.
    ttl = 64;
    /// `net.ipv4.ip_nonlocal_bind`: whether sockets may be bound to addresses that are not the machine's.
    binds_anywhere = 0;
    /// `net.ipv6.bindv6only`.
    only_v6 = 0;
    /// `net.ipv4.ping_group_range`: the groups whose members may send pings without `CAP_NET_RAW`, first and last.
    ping_group_first = 0;
    /// See `ping_group_first`.
    ping_group_last = i32::MAX as u32;
    /// `net.ipv4.conf.lo.accept_local`: whether packets that somebody sends on the loopback may come from the
    /// machine's own addresses.
    accepts_local = 0;
    /// `net.ipv4.conf.lo.route_localnet`: whether they may have addresses of the loopback.
    routes_loopback = 0;
    /// `net.core.somaxconn`: the most connections that may wait to be accepted.
    backlog_max = 4096;
    /// `net.core.rmem_max` and `net.core.wmem_max`: the most that `SO_RCVBUF` and `SO_SNDBUF` take.
    receive_buffer_max = 212_992;
    /// See `receive_buffer_max`.
    send_buffer_max = 212_992;
    /// `net.ipv4.tcp_max_syn_backlog`: the most connections that may be half open.
    half_open_max = 1024;
    /// `net.ipv4.tcp_syn_retries`.
    syn_retries = 6;
    /// `net.ipv4.tcp_synack_retries`.
    confirmation_retries = 5;
    /// `net.ipv4.tcp_retries2`: how often unacknowledged bytes are sent again.
    retries = 15;
    /// `net.ipv4.tcp_fin_timeout`.
    fin_timeout = 60;
    /// `net.ipv4.tcp_keepalive_time`.
    keep_idle = 7200;
    /// `net.ipv4.tcp_keepalive_intvl`.
    keep_interval = 75;
    /// `net.ipv4.tcp_keepalive_probes`.
    keep_count = 9;
    /// `net.ipv4.tcp_congestion_control`: Reno in place of CUBIC.
    reno = 0;
}

/// The longest pause between two attempts.
const PAUSE_MAX_NS: u64 = 120_000_000_000;

impl Settings {
    /// The value of a setting.
    #[must_use]
    pub fn get(setting: &AtomicU32) -> u32 {
        setting.load(Ordering::Relaxed)
    }

    /// The ports from which one is chosen for a socket that names none.
    #[must_use]
    pub fn ports(&self) -> RangeInclusive<u16> {
        let both = Self::get(&self.local_ports);
        (both >> 16) as u16..=both as u16
    }

    /// Sets [`Settings::ports`].
    pub fn set_ports(&self, ports: &RangeInclusive<u16>) {
        let both = u32::from(*ports.start()) << 16 | u32::from(*ports.end());
        self.local_ports.store(both, Ordering::Relaxed);
    }

    /// The options of a new socket.
    #[must_use]
    pub fn options(&self) -> Options {
        let options = Options::new();
        let begins = [
            (&options.keep_idle, &self.keep_idle),
            (&options.keep_interval, &self.keep_interval),
            (&options.keep_count, &self.keep_count),
            (&options.syn_count, &self.syn_retries),
            (&options.reno, &self.reno),
            (&options.only_v6, &self.only_v6),
        ];
        for (option, setting) in begins {
            option.store(Self::get(setting), Ordering::Relaxed);
        }
        options
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::new()
    }
}

/// The pause after `attempts` attempts, of which each doubles it.
#[must_use]
pub const fn pause_ns(first_ns: u64, attempts: u32) -> u64 {
    let doubled = first_ns.saturating_mul(1 << if attempts < 32 { attempts } else { 32 });
    if doubled < PAUSE_MAX_NS { doubled } else { PAUSE_MAX_NS }
}

/// How long it takes until the last of `retries` attempts after the first has got no answer.
#[must_use]
pub const fn patience_ns(first_ns: u64, retries: u32) -> u64 {
    // The pauses below the longest are a geometric series.
    let doublings = (PAUSE_MAX_NS / first_ns).ilog2();
    let (doubled, rest) = if retries < doublings { (retries, 0) } else { (doublings, retries - doublings) };
    first_ns * ((2 << doubled) - 1) + rest as u64 * PAUSE_MAX_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_linux_s() {
        let second = 1_000_000_000;
        assert_eq!(patience_ns(second, 6), 127 * second);
        assert_eq!(patience_ns(second / 5, 15), 924_600 * second / 1000);
        for retries in 0..20 {
            let sum: u64 = (0..=retries).map(|attempt| pause_ns(second, attempt)).sum();
            assert_eq!(patience_ns(second, retries), sum, "{retries}");
        }
        assert_eq!(pause_ns(second, 200), PAUSE_MAX_NS);
    }

    #[test]
    fn ports_are_kept_as_a_pair() {
        let settings = Settings::new();
        assert_eq!(settings.ports(), 32_768..=60_999);
        settings.set_ports(&(1..=65_535));
        assert_eq!(settings.ports(), 1..=65_535);
    }
}
