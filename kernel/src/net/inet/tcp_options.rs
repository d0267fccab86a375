//! The options of TCP that tell of a connection.

use core::sync::atomic::Ordering;

use heddle_inet::options::Options;
use heddle_inet::settings::Settings;
use heddle_inet::tcp::TcpSocket;
use linux_raw_sys::net;

use crate::error::Errno;
use crate::net::inet::InetSocket;
use crate::net::inet::platform::Kernel;
use crate::net::protocol::OptionValue;

/// `TCP_MAXSEG` before there is a connection.
const SEGMENT_DEFAULT: u32 = 536;

/// `TCP_LINGER2`: that of the socket, or the setting.
pub(super) fn linger2(socket: &InetSocket) -> Result<u32, Errno> {
    Ok(match socket.options().linger2.load(Ordering::Relaxed) {
        0 => Settings::get(&socket.namespace.engine()?.settings.fin_timeout),
        seconds => seconds as u32,
    })
}

/// `TCP_MAXSEG`: that of the connection, or what was asked for, or the default.
pub(super) fn segment_limit(tcp: &TcpSocket<Kernel>) -> u32 {
    match Options::get(&tcp.options.max_segment) {
        _ if tcp.remote().is_ok() => tcp.segment_bytes() as u32,
        0 => SEGMENT_DEFAULT,
        asked => asked,
    }
}

/// `struct tcp_info`, as far as there is something to tell.
pub(super) fn tcp_info(tcp: &TcpSocket<Kernel>) -> OptionValue {
    let progress = tcp.progress();
    let mut bytes = [0; size_of::<net::tcp_info>()];
    bytes[0] = tcp.tcp_state() as u8;
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(core::mem::offset_of!(net::tcp_info, tcpi_rto), &204_000_u32.to_ne_bytes());
    put(core::mem::offset_of!(net::tcp_info, tcpi_snd_mss), &(tcp.segment_bytes() as u32).to_ne_bytes());
    put(core::mem::offset_of!(net::tcp_info, tcpi_rcv_mss), &(tcp.segment_bytes() as u32).to_ne_bytes());
    put(core::mem::offset_of!(net::tcp_info, tcpi_pmtu), &65_535_u32.to_ne_bytes());
    let pace = progress.pace;
    put(core::mem::offset_of!(net::tcp_info, tcpi_snd_cwnd), &pace.window.to_ne_bytes());
    put(core::mem::offset_of!(net::tcp_info, tcpi_snd_ssthresh), &pace.threshold.to_ne_bytes());
    put(core::mem::offset_of!(net::tcp_info, tcpi_rtt), &((pace.round_trip_ns / 1000) as u32).to_ne_bytes());
    put(core::mem::offset_of!(net::tcp_info, tcpi_bytes_acked), &progress.sent.to_ne_bytes());
    put(core::mem::offset_of!(net::tcp_info, tcpi_bytes_received), &progress.received.to_ne_bytes());
    put(core::mem::offset_of!(net::tcp_info, tcpi_bytes_sent), &progress.sent.to_ne_bytes());
    OptionValue::new(&bytes)
}
