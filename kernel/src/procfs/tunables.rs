//! Files of `/proc/sys` that hold a number which an administrator may change. Each acts where its static is used; what
//! would change nothing here is absent, or can only be read.

use core::sync::atomic::{AtomicU32, Ordering};
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::{aio_share, inotify, pipe, protection};
use crate::log::IS_RESTRICTED;
use crate::memory::{frame, overcommit, reclaim};
use crate::process::{self, Credentials, exec, table, user_namespace};
use crate::procfs::{Subject, Text};
use crate::tty::pty;
use crate::{memory, sched};

type Shown = Result<(), Errno>;

/// The first word that a program writes, as a number, whose beginning says whether it is hexadecimal or octal.
fn number<T: TryFrom<i64>>(bytes: &[u8]) -> Result<T, Errno> {
    let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
    let word = text.split_ascii_whitespace().next().ok_or(Errno::EINVAL)?;
    let (is_negative, digits) = word.strip_prefix('-').map_or((false, word), |digits| (true, digits));
    let (digits, base) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if digits.len() > 1 && digits.starts_with('0') => (digits, 8),
        None => (digits, 10),
    };
    if digits.starts_with(['+', '-']) {
        return Err(Errno::EINVAL);
    }
    let number = i64::from_str_radix(digits, base).map_err(|_| Errno::EINVAL)?;
    T::try_from(if is_negative { -number } else { number }).map_err(|_| Errno::EINVAL)
}

fn set(place: &AtomicU32, bytes: &[u8], least: u32, most: u32) -> Shown {
    let number = number(bytes)?;
    if !(least..=most).contains(&number) {
        return Err(Errno::EINVAL);
    }
    place.store(number, Ordering::Relaxed);
    Ok(())
}

macro_rules! tunables {
    ($($show:ident $set:ident $value:path, $least:expr, $most:expr;)*) => {
        $(
            pub fn $show(_: &Subject, text: &mut Text) -> Shown {
                text.line(format_args!("{}\n", $value.load(Ordering::Relaxed)))
            }

            pub fn $set(_: &Subject, bytes: &[u8]) -> Shown {
                set(&$value, bytes, $least, $most)
            }
        )*
    };
}

const MOST: u32 = i32::MAX as u32;
const DESCRIPTORS_MOST: u32 = process::ResourceLimit::OPEN_FILES_MAX as u32;
/// A word of descriptors' bits.
const DESCRIPTORS_LEAST: u32 = 64;
/// Calls copy and search a space's mappings in steps; their memory is the kernel's.
const MAPPINGS_MOST: u32 = 1 << 20;

tunables! {
    pid_max set_pid_max table::PID_MAX, table::PID_MAX_LEAST, table::PID_LIMIT as u32;
    threads_max set_threads_max table::THREADS_MAX, 1, table::PID_LIMIT as u32;
    randomization set_randomization exec::RANDOMIZATION, 0, 2;
    terminals set_terminals pty::TERMINALS_MAX, 0, pty::LIMIT as u32;
    users_made_by_all set_users_made_by_all user_namespace::MADE_BY_ALL, 0, 1;
    descriptors set_descriptors process::DESCRIPTORS_MAX, DESCRIPTORS_LEAST, DESCRIPTORS_MOST;
    aio_requests set_aio_requests aio_share::REQUESTS_MAX, 0, MOST;
    inotify_events set_inotify_events inotify::QUEUE_MAX, 0, MOST;
    inotify_instances set_inotify_instances inotify::INSTANCES_MAX, 0, MOST;
    inotify_marks set_inotify_marks inotify::MARKS_MAX, 0, MOST;
    pipe_pages set_pipe_pages pipe::PAGES_SOFT, 0, MOST;
    pipe_pages_hard set_pipe_pages_hard pipe::PAGES_HARD, 0, MOST;
    hard_links set_hard_links protection::HARD_LINKS, 0, 1;
    symbolic_links set_symbolic_links protection::SYMBOLIC_LINKS, 0, 1;
    fifos set_fifos protection::FIFOS, 0, 2;
    regular_files set_regular_files protection::REGULAR, 0, 2;
    closed_dumpable set_closed_dumpable process::CLOSED_DUMPABLE, 0, 1;
    mappings set_mappings memory::space::MAPPINGS_MAX, 0, MAPPINGS_MOST;
}

pub fn log_is_restricted(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{}\n", IS_RESTRICTED.load(Ordering::Relaxed)))
}

/// The owner of the file needs the capability as well: others may read the log then.
pub fn set_log_is_restricted(_: &Subject, who: &Credentials, bytes: &[u8]) -> Shown {
    if !who.is_capable(linux::CAP_SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    set(&IS_RESTRICTED, bytes, 0, 1)
}

pub fn terminals_open(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{}\n", pty::open_count()))
}

pub fn pipe_size(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{}\n", pipe::CAPACITY_MAX.load(Ordering::Relaxed)))
}

/// Rounded up to what a pipe can have.
pub fn set_pipe_size(_: &Subject, bytes: &[u8]) -> Shown {
    const LEAST: u32 = 4096;
    const MOST: u32 = 1 << 31;
    let number: u32 = number(bytes)?;
    if number > MOST {
        return Err(Errno::EINVAL);
    }
    pipe::CAPACITY_MAX.store(number.max(LEAST).next_power_of_two(), Ordering::Relaxed);
    Ok(())
}

const NS_PER_US: u64 = 1000;

pub fn realtime_period(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{}\n", sched::realtime_share_ns().1 / NS_PER_US))
}

pub fn realtime_share(_: &Subject, text: &mut Text) -> Shown {
    match sched::realtime_share_ns() {
        (u64::MAX, _) => text.bytes(b"-1\n"),
        (share, _) => text.line(format_args!("{}\n", share / NS_PER_US)),
    }
}

/// -1 stands for no limit, as the whole window does.
pub fn set_realtime_share(_: &Subject, bytes: &[u8]) -> Shown {
    let window = sched::realtime_share_ns().1;
    let share = match number::<i64>(bytes)? {
        -1 => u64::MAX,
        share => {
            u64::try_from(share).ok().and_then(|share| share.checked_mul(NS_PER_US)).ok_or(Errno::EINVAL)?
        }
    };
    if share > window && share != u64::MAX {
        return Err(Errno::EINVAL);
    }
    sched::set_realtime_share_ns(share);
    Ok(())
}

/// Takes caches back. Linux's bits say which kinds; here they are taken together.
pub fn drop_caches(_: &Subject, bytes: &[u8]) -> Shown {
    if !(1..=4).contains(&number::<u32>(bytes)?) {
        return Err(Errno::EINVAL);
    }
    reclaim::reclaim();
    Ok(())
}

pub fn overcommit_kib(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{}\n", overcommit::limit_kib()))
}

pub fn set_overcommit_kib(_: &Subject, bytes: &[u8]) -> Shown {
    overcommit::set_limit_kib(number(bytes)?);
    Ok(())
}

pub fn pool_bits(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{}\n", crate::random::POOL_BITS))
}

pub fn filter_actions(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"kill_process kill_thread trap errno user_notif trace log allow\n")
}

/// The most that may be promised where promises are limited, and what is promised, in KiB.
pub fn promises() -> [usize; 2] {
    [overcommit::limit_bytes(frame::total_frames()) / 1024, overcommit::promised() / 1024]
}

pub fn machine(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"x86_64\n")
}
