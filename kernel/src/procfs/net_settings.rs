//! `/proc/sys/net`: settings of the engine, which an administrator may change, and facts that nobody changes.

use alloc::sync::Arc;
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use heddle_inet::engine::Engine;
use heddle_inet::settings::Settings;

use crate::error::Errno;
use crate::net::DATAGRAMS_MAX;
use crate::net::inet::platform::Kernel;
use crate::net::namespace::NetNamespace;
use crate::process::Credentials;
use crate::process::namespaces::Namespaces;
use crate::procfs::{Subject, Text};

type Shown = Result<(), Errno>;

fn engine(own: &Namespaces) -> Result<Arc<Engine<Kernel>>, Errno> {
    Ok(NetNamespace::among(own)?.engine()?.clone())
}

/// The numbers of a line that a program writes; those that it leaves out stay as they are.
///
/// # Errors
/// `EINVAL`: a word is no number within its bounds, or there are too many.
fn numbers<const N: usize>(
    bytes: &[u8],
    old: [u32; N],
    bounds: &RangeInclusive<u32>,
) -> Result<[u32; N], Errno> {
    let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
    let mut all = old;
    for (index, word) in text.split_ascii_whitespace().enumerate() {
        let number = word.parse().ok().filter(|number| bounds.contains(number)).ok_or(Errno::EINVAL)?;
        *all.get_mut(index).ok_or(Errno::EINVAL)? = number;
    }
    Ok(all)
}

macro_rules! settings {
    ($($show:ident $set:ident $setting:ident $bounds:expr;)*) => {
        $(
            pub fn $show(own: &Namespaces, _: &Credentials, text: &mut Text) -> Shown {
                text.line(format_args!("{}\n", Settings::get(&engine(own)?.settings.$setting)))
            }

            pub fn $set(own: &Namespaces, bytes: &[u8]) -> Shown {
                set(&engine(own)?.settings.$setting, bytes, &$bounds)
            }
        )*
    };
}

fn set(setting: &AtomicU32, bytes: &[u8], bounds: &RangeInclusive<u32>) -> Shown {
    let [number] = numbers(bytes, [Settings::get(setting)], bounds)?;
    setting.store(number, Ordering::Relaxed);
    Ok(())
}

const SECONDS: RangeInclusive<u32> = 0..=i32::MAX as u32 / 1000;
const COUNT: RangeInclusive<u32> = 0..=i32::MAX as u32;

settings! {
    show_accepts_local set_accepts_local accepts_local 0..=1;
    show_routes_loopback set_routes_loopback routes_loopback 0..=1;
    show_backlog set_backlog backlog_max COUNT;
    show_receive_buffer set_receive_buffer receive_buffer_max 2304..=i32::MAX as u32;
    show_send_buffer set_send_buffer send_buffer_max 4608..=i32::MAX as u32;
    show_ttl set_ttl ttl 1..=255;
    show_binds_anywhere set_binds_anywhere binds_anywhere 0..=1;
    show_only_v6 set_only_v6 only_v6 0..=1;
    show_half_open set_half_open half_open_max COUNT;
    show_syn_retries set_syn_retries syn_retries 1..=127;
    show_confirmation_retries set_confirmation_retries confirmation_retries 0..=255;
    show_retries set_retries retries 0..=255;
    show_fin_timeout set_fin_timeout fin_timeout SECONDS;
    show_keep_idle set_keep_idle keep_idle SECONDS;
    show_keep_interval set_keep_interval keep_interval SECONDS;
    show_keep_count set_keep_count keep_count 0..=255;
}

pub fn show_ports(own: &Namespaces, _: &Credentials, text: &mut Text) -> Shown {
    let ports = engine(own)?.settings.ports();
    text.line(format_args!("{}\t{}\n", ports.start(), ports.end()))
}

/// The range holds no port that needs a privilege.
pub fn set_ports(own: &Namespaces, bytes: &[u8]) -> Shown {
    let engine = engine(own)?;
    let settings = &engine.settings;
    let old = settings.ports();
    let [first, last] = numbers(bytes, [u32::from(*old.start()), u32::from(*old.end())], &(1..=65_535))?;
    if first > last || first < Settings::get(&settings.unprivileged_port) {
        return Err(Errno::EINVAL);
    }
    settings.set_ports(&(first as u16..=last as u16));
    Ok(())
}

pub fn show_unprivileged(own: &Namespaces, _: &Credentials, text: &mut Text) -> Shown {
    text.line(format_args!("{}\n", Settings::get(&engine(own)?.settings.unprivileged_port)))
}

pub fn set_unprivileged(own: &Namespaces, bytes: &[u8]) -> Shown {
    let engine = engine(own)?;
    let settings = &engine.settings;
    let [first] = numbers(bytes, [Settings::get(&settings.unprivileged_port)], &(0..=65_535))?;
    if first > u32::from(*settings.ports().start()) {
        return Err(Errno::EINVAL);
    }
    settings.unprivileged_port.store(first, Ordering::Relaxed);
    Ok(())
}

pub fn show_ping_groups(own: &Namespaces, _: &Credentials, text: &mut Text) -> Shown {
    let engine = engine(own)?;
    let settings = &engine.settings;
    let (first, last) = (Settings::get(&settings.ping_group_first), Settings::get(&settings.ping_group_last));
    text.line(format_args!("{first}\t{last}\n"))
}

/// A range that ends before it begins holds nobody.
pub fn set_ping_groups(own: &Namespaces, bytes: &[u8]) -> Shown {
    let engine = engine(own)?;
    let settings = &engine.settings;
    let old = [Settings::get(&settings.ping_group_first), Settings::get(&settings.ping_group_last)];
    let [first, last] = numbers(bytes, old, &(0..=u32::MAX - 1))?;
    let [first, last] = if first > last { [1, 0] } else { [first, last] };
    settings.ping_group_first.store(first, Ordering::Relaxed);
    settings.ping_group_last.store(last, Ordering::Relaxed);
    Ok(())
}

pub fn show_congestion(own: &Namespaces, _: &Credentials, text: &mut Text) -> Shown {
    text.bytes(if Settings::get(&engine(own)?.settings.reno) == 0 { b"cubic\n" } else { b"reno\n" })
}

pub fn set_congestion(own: &Namespaces, bytes: &[u8]) -> Shown {
    let is_reno = match bytes.trim_ascii() {
        b"cubic" => 0,
        b"reno" => 1,
        _ => return Err(Errno::ENOENT),
    };
    engine(own)?.settings.reno.store(is_reno, Ordering::Relaxed);
    Ok(())
}

pub fn show_datagrams(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{}\n", DATAGRAMS_MAX.load(Ordering::Relaxed)))
}

pub fn set_datagrams(_: &Subject, bytes: &[u8]) -> Shown {
    let place: &AtomicUsize = &DATAGRAMS_MAX;
    let [number] = numbers(bytes, [place.load(Ordering::Relaxed) as u32], &(0..=i32::MAX as u32))?;
    place.store(number as usize, Ordering::Relaxed);
    Ok(())
}

macro_rules! facts {
    ($($(#[$documentation:meta])* $name:ident = $value:expr;)*) => {
        $(
            $(#[$documentation])*
            pub fn $name(_: &Subject, text: &mut Text) -> Shown {
                text.line(format_args!("{}\n", $value))
            }
        )*
    };
}

facts! {
    device_backlog = 1000;
    buffer_default = 212_992;
    option_memory = 131_072;
    yes = 1;
    no = 0;
    congestion_controls = "reno cubic";
    receive_memory = "4096\t131072\t6291456";
    send_memory = "4096\t16384\t4194304";
}
