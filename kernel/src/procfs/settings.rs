//! Files of `/proc/sys` and `/sys/devices` that say or set one thing.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::arch::cpu;
use crate::error::Errno;
use crate::fs::{lease, notify};
use crate::process::Credentials;
use crate::process::host_name::HOST_NAME_BYTES;
use crate::process::namespaces::Namespaces;
use crate::process::{keys, perf};
use crate::procfs::{Subject, Text};

type Shown = Result<(), Errno>;

/// The bits of `kernel/tainted`, which programs may set and nobody takes away.
static TAINTED: AtomicU32 = AtomicU32::new(0);

/// Users that a number of 16 bits cannot name.
pub fn overflow_id(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"65534\n")
}

pub fn no(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"0\n")
}

/// The levels of messages that go to the console: all do.
pub fn message_levels(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"7\t4\t1\t7\n")
}

pub fn tainted(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{}\n", TAINTED.load(Ordering::Relaxed)))
}

pub fn set_tainted(_: &Subject, bytes: &[u8]) -> Shown {
    let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
    let bits: u32 = text.trim_ascii().parse().map_err(|_| Errno::EINVAL)?;
    TAINTED.fetch_or(bits, Ordering::Relaxed);
    Ok(())
}

/// A limit of fanotify(7).
pub fn fanotify_limit<const N: usize>(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{N}\n"))
}

pub fn sample_rate(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"100000\n")
}

pub fn sample_memory(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"516\n")
}

pub fn paranoia(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{}\n", perf::PARANOIA.load(Ordering::Relaxed)))
}

pub fn set_paranoia(_: &Subject, bytes: &[u8]) -> Shown {
    let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
    let number: i32 = text.trim_ascii().parse().map_err(|_| Errno::EINVAL)?;
    if number < -1 {
        return Err(Errno::EINVAL);
    }
    perf::PARANOIA.store(number, Ordering::Relaxed);
    Ok(())
}

/// The number that a program writes.
fn number(bytes: &[u8]) -> Result<u32, Errno> {
    let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
    text.split_ascii_whitespace().next().ok_or(Errno::EINVAL)?.parse().map_err(|_| Errno::EINVAL)
}

macro_rules! number_files {
    ($($show:ident $set:ident $value:path, $max:expr;)*) => {
        $(
            pub fn $show(_: &Subject, text: &mut Text) -> Shown {
                text.line(format_args!("{}\n", $value.load(Ordering::Relaxed)))
            }

            pub fn $set(_: &Subject, bytes: &[u8]) -> Shown {
                let number = number(bytes)?;
                if number > $max {
                    return Err(Errno::EINVAL);
                }
                $value.store(number, Ordering::Relaxed);
                Ok(())
            }
        )*
    };
}

number_files! {
    lease_time set_lease_time lease::BREAK_SECONDS, i32::MAX as u32;
    keys set_keys keys::KEYS_LIMIT, i32::MAX as u32;
    key_bytes set_key_bytes keys::BYTES_LIMIT, i32::MAX as u32;
    root_keys set_root_keys keys::ROOT_KEYS_LIMIT, i32::MAX as u32;
    root_key_bytes set_root_key_bytes keys::ROOT_BYTES_LIMIT, i32::MAX as u32;
    leases set_leases lease::ENABLED, i32::MAX as u32;
    owners_are_told set_owners_are_told notify::OWNERS_ARE_TOLD, i32::MAX as u32;
}

fn show_name(name: [u8; HOST_NAME_BYTES], text: &mut Text) -> Shown {
    text.bytes(name.split(|&byte| byte == 0).next().unwrap_or_default())?;
    text.bytes(b"\n")
}

/// A name that a program writes: its first line, cut to what there is room for.
fn name_of(bytes: &[u8]) -> [u8; HOST_NAME_BYTES] {
    let line = bytes.split(|&byte| byte == b'\n' || byte == 0).next().unwrap_or_default();
    let mut name = [0; HOST_NAME_BYTES];
    let length = line.len().min(HOST_NAME_BYTES - 1);
    name[..length].copy_from_slice(&line[..length]);
    name
}

pub fn host(namespaces: &Namespaces, _: &Credentials, text: &mut Text) -> Shown {
    show_name(namespaces.names.host_name(), text)
}

pub fn set_host(namespaces: &Namespaces, bytes: &[u8]) -> Shown {
    namespaces.names.set_host_name(name_of(bytes));
    Ok(())
}

pub fn domain(namespaces: &Namespaces, _: &Credentials, text: &mut Text) -> Shown {
    show_name(namespaces.names.domain_name(), text)
}

pub fn set_domain(namespaces: &Namespaces, bytes: &[u8]) -> Shown {
    namespaces.names.set_domain_name(name_of(bytes));
    Ok(())
}

/// The CPUs that there are, as a list of ranges.
pub fn processors(_: &Subject, text: &mut Text) -> Shown {
    match cpu::count() {
        1 => text.bytes(b"0\n"),
        count => text.line(format_args!("0-{}\n", count - 1)),
    }
}

/// No CPU is switched off.
pub fn no_processors(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"\n")
}

pub fn last_processor(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{}\n", crate::arch::MAX_CPUS - 1))
}

/// There is no block device, no swap and no module: the files have their headings alone.
pub fn partitions(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"major minor  #blocks  name\n\n")
}

pub fn swap(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n")
}
