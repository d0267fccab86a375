//! The options of TCP that are more than kept.

use core::sync::atomic::Ordering;

use heddle_inet::options::Options;
use heddle_inet::settings::Settings;
use heddle_inet::tcp::{TcpSocket, TcpState};
use linux_raw_sys::net;

use crate::error::Errno;
use crate::net::inet::InetSocket;
use crate::net::inet::options::{RECEIVE_BUFFER_MIN, int};
use crate::net::inet::platform::Kernel;
use crate::net::protocol::OptionValue;

/// `TCP_MAXSEG` before there is a connection.
const SEGMENT_DEFAULT: u32 = 536;
/// The bytes of the name of a way of congestion control as it is told.
const CONGESTION_NAME_BYTES: usize = 16;
/// The smallest `TCP_WINDOW_CLAMP`.
const WINDOW_CLAMP_MIN: u32 = RECEIVE_BUFFER_MIN / 2;
/// The bounds of what `TCP_MAXSEG` can be set to.
const SEGMENT_MIN: u32 = 88;
const SEGMENT_MAX: u32 = 32_767;
/// The largest number of seconds of `TCP_LINGER2`.
const LINGER2_MAX: i32 = 120;

/// The value of an option.
pub(super) fn get(socket: &InetSocket, tcp: &TcpSocket<Kernel>, name: u32) -> Result<OptionValue, Errno> {
    let options = &tcp.options;
    let number = match name {
        net::TCP_MAXSEG => segment_limit(tcp),
        net::TCP_CONGESTION => {
            let mut name = [0; CONGESTION_NAME_BYTES];
            let own: &[u8] = if Options::is_on(&options.reno) { b"reno" } else { b"cubic" };
            name[..own.len()].copy_from_slice(own);
            return Ok(OptionValue::new(&name));
        }
        net::TCP_LINGER2 => linger2(socket)?,
        net::TCP_DEFER_ACCEPT => Options::get(&options.defer_accept),
        net::TCP_WINDOW_CLAMP => Options::get(&options.window_clamp),
        net::TCP_INFO => return Ok(tcp_info(tcp)),
        _ => return Err(Errno::ENOPROTOOPT),
    };
    Ok(OptionValue::int(number))
}

/// Sets an option.
pub(super) fn set(
    socket: &InetSocket,
    tcp: &TcpSocket<Kernel>,
    name: u32,
    value: &[u8],
) -> Result<(), Errno> {
    let (options, level) = (&tcp.options, net::SOL_TCP);
    match name {
        net::TCP_CONGESTION => {
            let is_reno = match value.split(|&byte| byte == 0).next() {
                Some(b"cubic") => 0,
                Some(b"reno") => 1,
                _ => return Err(Errno::ENOENT),
            };
            options.reno.store(is_reno, Ordering::Relaxed);
        }
        net::TCP_DEFER_ACCEPT => {
            options.defer_accept.store(deferred_seconds(int(value, level)? as i32), Ordering::Relaxed);
        }
        net::TCP_LINGER2 => {
            options.linger2.store((int(value, level)? as i32).clamp(-1, LINGER2_MAX), Ordering::Relaxed);
        }
        net::TCP_MAXSEG => {
            let asked = int(value, level)?;
            if asked != 0 && !(SEGMENT_MIN..=SEGMENT_MAX).contains(&asked) {
                return Err(Errno::EINVAL);
            }
            options.max_segment.store(asked, Ordering::Relaxed);
        }
        net::TCP_WINDOW_CLAMP => {
            let asked = int(value, level)?;
            if asked == 0 && tcp.tcp_state() != TcpState::Close {
                return Err(Errno::EINVAL);
            }
            let clamp = if asked == 0 { 0 } else { asked.max(WINDOW_CLAMP_MIN) };
            options.window_clamp.store(clamp, Ordering::Relaxed);
            socket.option_changed(level, name);
        }
        _ => return Err(Errno::ENOPROTOOPT),
    }
    Ok(())
}

/// The seconds after which a peer that says nothing was asked as often as fits into `wanted`, each time twice as long
/// after the last, 120 seconds at most: `TCP_DEFER_ACCEPT`.
fn deferred_seconds(wanted: i32) -> u32 {
    const PAUSE_MAX: u32 = 120;
    const ATTEMPTS_MAX: u32 = 255;
    let Ok(wanted @ 1..) = u32::try_from(wanted) else { return 0 };
    let (mut seconds, mut pause) = (1, 1);
    for _ in 1..ATTEMPTS_MAX {
        if seconds >= wanted {
            break;
        }
        pause = (pause * 2).min(PAUSE_MAX);
        seconds += pause;
    }
    seconds
}

/// `TCP_LINGER2`: that of the socket, or the setting.
fn linger2(socket: &InetSocket) -> Result<u32, Errno> {
    Ok(match socket.options().linger2.load(Ordering::Relaxed) {
        0 => Settings::get(&socket.namespace.engine()?.settings.fin_timeout),
        seconds => seconds as u32,
    })
}

/// `TCP_MAXSEG`: that of the connection, or what was asked for, or the default.
fn segment_limit(tcp: &TcpSocket<Kernel>) -> u32 {
    match Options::get(&tcp.options.max_segment) {
        _ if tcp.remote().is_ok() => tcp.segment_bytes() as u32,
        0 => SEGMENT_DEFAULT,
        asked => asked,
    }
}

/// `struct tcp_info`, as far as there is something to tell.
fn tcp_info(tcp: &TcpSocket<Kernel>) -> OptionValue {
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
