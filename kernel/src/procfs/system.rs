//! Files of `/proc` about the machine.

use crate::arch::cpu;
use crate::arch::time::now_ns;
use crate::error::Errno;
use crate::memory::{counters, frame, heap};
use crate::process::{load, table};
use crate::procfs::{Subject, Text};
use crate::time::{NS_PER_SECOND, clock_ticks};

/// Linux's version that programs are shown.
use crate::boot::RELEASE;

const KIB_PER_FRAME: usize = 4;

type Shown = Result<(), Errno>;

pub fn command_line(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"\n")
}

pub fn processors(_: &Subject, text: &mut Text) -> Shown {
    for number in 0..cpu::count() {
        text.line(format_args!(
            "processor\t: {number}\nvendor_id\t: Heddle\nmodel name\t: Virtual CPU\ncpu cores\t: 1\n\
             flags\t\t: fpu tsc cx8 cmov fxsr sse sse2 syscall nx lm\n\n"
        ))?;
    }
    Ok(())
}

pub fn devices(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"Character devices:\n  1 mem\n  5 /dev/tty\n  5 /dev/console\n  5 /dev/ptmx\n136 pts\n")?;
    text.bytes(b"\nBlock devices:\n")
}

pub fn file_systems(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"nodev\tproc\nnodev\ttmpfs\nnodev\tdevtmpfs\nnodev\tmqueue\nnodev\tpipefs\n")
}

pub fn load(_: &Subject, text: &mut Text) -> Shown {
    for average in load::averages() {
        // Rounded to hundredths.
        let hundredths = (average * 100 + (1 << (load::FRACTION_BITS - 1))) >> load::FRACTION_BITS;
        text.line(format_args!("{}.{:02} ", hundredths / 100, hundredths % 100))?;
    }
    let (running, count, last) = (load::running(), table::thread_count(), table::last_pid());
    text.line(format_args!("{running}/{count} {last}\n"))
}

pub fn memory(_: &Subject, text: &mut Text) -> Shown {
    let (total, free) = (frame::total_frames() * KIB_PER_FRAME, frame::free_frames() * KIB_PER_FRAME);
    for (name, value) in [
        ("MemTotal", total),
        ("MemFree", free),
        ("MemAvailable", free),
        ("Buffers", 0),
        ("Cached", 0),
        ("SwapCached", 0),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("Dirty", 0),
        ("Shmem", 0),
        ("CommitLimit", total),
        ("Committed_AS", total - free),
        ("HugePages_Total", 0),
    ] {
        let (unit, width) = if name == "HugePages_Total" { ("", 8) } else { (" kB", 8) };
        text.line(format_args!(
            "{name}:{:pad$}{value:width$}{unit}\n",
            "",
            pad = 15_usize.saturating_sub(name.len())
        ))?;
    }
    Ok(())
}

pub fn statistics(_: &Subject, text: &mut Text) -> Shown {
    let (mut user, mut system) = (0, 0);
    let (mut running, mut next) = (0, 0);
    while let Some(process) = table::next_process(next) {
        let times = process.cpu_times();
        (user, system) = (user + times.0, system + times.1);
        running +=
            usize::from(process.main_thread().is_some_and(|thread| thread.run_state().letter() == 'R'));
        next = process.pid.saturating_add(1);
    }
    let all = now_ns().saturating_mul(cpu::count() as u64);
    let idle = clock_ticks(all.saturating_sub(user + system));
    let (user, system) = (clock_ticks(user), clock_ticks(system));
    text.line(format_args!("cpu  {user} 0 {system} {idle} 0 0 0 0 0 0\n"))?;
    let count = cpu::count() as i64;
    for number in 0..count {
        let (user, system, idle) = (user / count, system / count, idle / count);
        text.line(format_args!("cpu{number} {user} 0 {system} {idle} 0 0 0 0 0 0\n"))?;
    }
    let boot = crate::time::Clock::realtime_offset_ns() / NS_PER_SECOND;
    let (switches, last) =
        (counters::SWITCHES.load(core::sync::atomic::Ordering::Relaxed), table::last_pid());
    text.line(format_args!(
        "intr 0\nctxt {switches}\nbtime {boot}\nprocesses {last}\nprocs_running {running}\nprocs_blocked 0\n"
    ))
}

pub fn uptime(_: &Subject, text: &mut Text) -> Shown {
    let (seconds, hundredths) = (now_ns() / NS_PER_SECOND, now_ns() % NS_PER_SECOND / 10_000_000);
    text.line(format_args!("{seconds}.{hundredths:02} {seconds}.{hundredths:02}\n"))
}

pub fn version(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("Linux version {RELEASE} (heddle) #1 SMP\n"))
}

pub fn virtual_memory(_: &Subject, text: &mut Text) -> Shown {
    let faults = counters::FAULTS.load(core::sync::atomic::Ordering::Relaxed);
    text.line(format_args!("nr_free_pages {}\npgfault {faults}\npgmajfault 0\n", frame::free_frames()))
}

pub fn counters(_: &Subject, text: &mut Text) -> Shown {
    for (name, value) in counters::all().into_iter().chain(crate::sched::counters()) {
        text.line(format_args!("{name} {value}\n"))?;
    }
    Ok(())
}

/// Page frames: those that are free, caches of frames included; all that programs and the kernel share; those of the
/// kernel's heap, and the bytes in use in them.
pub fn frames(_: &Subject, text: &mut Text) -> Shown {
    let (free, total, heap) = (frame::free_frames(), frame::total_frames(), heap::usage());
    text.line(format_args!("free_frames {free}\ntotal_frames {total}\n"))?;
    text.line(format_args!("heap_frames {}\nheap_bytes {}\n", heap.frames, heap.bytes))
}

/// Where each process is: its number; `shared` for the page table that programs share, with the number of its slot
/// there, or `private` for one of its own, with 0; how many mappings it has; its name. One line a process.
pub fn spaces(_: &Subject, text: &mut Text) -> Shown {
    let mut next = 0;
    while let Some(process) = table::next_process(next) {
        next = process.pid.saturating_add(1);
        let Some(thread) = process.main_thread() else { continue };
        let Some(space) = thread.try_space() else { continue };
        let kind = if space.is_shared() { "shared" } else { "private" };
        text.line(format_args!("{} {kind} {} {} ", process.pid, space.slot(), space.mapping_count()))?;
        let name = thread.name();
        text.bytes(name.split(|&byte| byte == 0).next().unwrap_or(&[]))?;
        text.bytes(b"\n")?;
    }
    Ok(())
}

/// A line a process: its number, pages that are its alone, page tables that are its alone. A process that changes its
/// mappings at the moment has none.
pub fn own_frames(_: &Subject, text: &mut Text) -> Shown {
    let mut next = 0;
    while let Some(process) = table::next_process(next) {
        next = process.pid.saturating_add(1);
        let space = process.main_thread().and_then(|thread| thread.try_space());
        if let Some((pages, tables)) = space.and_then(|space| space.own_frames()) {
            text.line(format_args!("{} {pages} {tables}\n", process.pid))?;
        }
    }
    Ok(())
}

pub fn nothing(_: &Subject, _: &mut Text) -> Shown {
    Ok(())
}

/// Releases all caches, so that tests can count frames.
pub fn drain(_: &Subject, _: &[u8]) -> Shown {
    crate::memory::reclaim::reclaim();
    Ok(())
}

/// The step of the last call that failed by injection.
#[cfg(feature = "checking")]
pub fn injected(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{}\n", crate::memory::fault_injection::failed()))
}

/// Orders that the n-th step of the next call fails.
#[cfg(feature = "checking")]
pub fn inject(_: &Subject, number: &[u8]) -> Shown {
    let number = core::str::from_utf8(number.trim_ascii_end()).ok().and_then(|text| text.parse().ok());
    crate::memory::fault_injection::arm(number.ok_or(Errno::EINVAL)?);
    Ok(())
}

/// Makes one of the mistakes that the checking build is to notice.
#[cfg(feature = "checking")]
pub fn provoke(_: &Subject, name: &[u8]) -> Shown {
    if crate::sync::order::provoke(name.trim_ascii_end()) { Ok(()) } else { Err(Errno::EINVAL) }
}

pub fn file_limit(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{}\n", i64::MAX))
}

pub fn descriptor_limit(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"1048576\n")
}

pub fn pipe_limit(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{}\n", crate::fs::pipe::CAPACITY_LIMIT))
}

pub fn last_capability(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"40\n")
}

pub fn host_name(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"heddle\n")
}

pub fn group_limit(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"65536\n")
}

pub fn os_release(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{RELEASE}\n"))
}

pub fn os_type(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"Linux\n")
}

pub fn os_version(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"#1 SMP\n")
}

pub fn pid_limit(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{}\n", table::PID_LIMIT))
}

pub fn thread_limit(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{}\n", table::PID_LIMIT))
}

/// A random UUID, as RFC 4122 writes them.
fn write_uuid(bytes: &mut [u8; 16], text: &mut Text) -> Shown {
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    for (index, byte) in bytes.iter().enumerate() {
        let dash = if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" };
        text.line(format_args!("{dash}{byte:02x}"))?;
    }
    text.bytes(b"\n")
}

pub fn boot_id(_: &Subject, text: &mut Text) -> Shown {
    static ID: spin::Once<[u8; 16]> = spin::Once::new();
    let id = ID.call_once(|| {
        let mut id = [0; 16];
        crate::random::fill(&mut id);
        id
    });
    write_uuid(&mut id.clone(), text)
}

pub fn uuid(_: &Subject, text: &mut Text) -> Shown {
    let mut id = [0; 16];
    crate::random::fill(&mut id);
    write_uuid(&mut id, text)
}

pub fn mapping_limit(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"65530\n")
}

pub fn overcommit(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"1\n")
}
