//! Files of `/proc` about the machine.

use crate::arch::{MAX_CPUS, cpu, features, interrupt};
use crate::boot::{RELEASE, VERSION};
use crate::device::share;
use crate::error::Errno;
use crate::fs::tree;
use crate::memory::space::LOWEST_ADDRESS;
use crate::memory::{counters, frame, heap, isolation};
use crate::process::detour::with_thread_here;
use crate::process::namespaces::Namespaces;
use crate::process::{Credentials, control_group, dump, load, table, time_namespace};
use crate::procfs::{Subject, Text};
use crate::sched;
use crate::sched::usage::{self, CpuUsage};
use crate::time::{Clock, NS_PER_SECOND, clock_ticks};

const KIB_PER_FRAME: usize = 4;

type Shown = Result<(), Errno>;

pub fn command_line(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"\n")
}

pub fn processors(_: &Subject, text: &mut Text) -> Shown {
    (0..cpu::count()).try_for_each(|number| features::describe(number, text)).map_err(|_| Errno::ENOMEM)
}

pub fn devices(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"Character devices:\n  1 mem\n  5 /dev/tty\n  5 /dev/console\n  5 /dev/ptmx\n136 pts\n")?;
    text.bytes(b"\nBlock devices:\n")
}

pub fn file_systems(_: &Subject, text: &mut Text) -> Shown {
    const KINDS: &[&str] =
        &["sysfs", "tmpfs", "proc", "cgroup2", "devtmpfs", "devpts", "mqueue", "pipefs", "ramfs", "overlay"];
    KINDS.iter().try_for_each(|kind| text.line(format_args!("nodev\t{kind}\n")))
}

/// The controllers, which are all in the one hierarchy of version 2.
pub fn control_groups(_: &Subject, text: &mut Text) -> Shown {
    let count = control_group::group_count();
    text.bytes(b"#subsys_name\thierarchy\tnum_cgroups\tenabled\n")?;
    control_group::CONTROLLERS.names().try_for_each(|name| text.line(format_args!("{name}\t0\t{count}\t1\n")))
}

pub fn load(subject: &Subject, text: &mut Text) -> Shown {
    for average in load::averages() {
        // Rounded to hundredths.
        let hundredths = (average * 100 + (1 << (load::FRACTION_BITS - 1))) >> load::FRACTION_BITS;
        text.line(format_args!("{}.{:02} ", hundredths / 100, hundredths % 100))?;
    }
    // That of whoever reads, whatever namespace the mount shows.
    let pids = with_thread_here(|thread| thread.process.pids.clone()).unwrap_or_else(|| subject.view.clone());
    let last = pids.as_ref().map_or_else(table::last_pid, |pids| pids.last());
    let (running, count) = (load::running(), table::thread_count());
    text.line(format_args!("{running}/{count} {last}\n"))
}

pub fn memory(_: &Subject, text: &mut Text) -> Shown {
    let (total, free) = (frame::total_frames() * KIB_PER_FRAME, frame::free_frames() * KIB_PER_FRAME);
    // Files are in memory alone: all that is cached of them is also what Linux counts for tmpfs, and none of it can be
    // had back. There are no block devices whose blocks were buffered.
    let files = usize::try_from(tree::page_count()).unwrap_or(usize::MAX).saturating_mul(KIB_PER_FRAME);
    for (name, value) in [
        ("MemTotal", total),
        ("MemFree", free),
        ("MemAvailable", free.saturating_sub(frame::emergency_frames() * KIB_PER_FRAME)),
        ("Buffers", 0),
        ("Cached", files),
        ("SwapCached", 0),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("Dirty", 0),
        ("Shmem", files),
        ("CommitLimit", total),
        ("Committed_AS", total - free),
        ("AnonHugePages", frame::large_bytes() / 1024),
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

/// A line of `stat` about one CPU, or all. There is no paging, and no other machine takes time from this one.
fn cpu_line(name: core::fmt::Arguments<'_>, usage: CpuUsage, text: &mut Text) -> Shown {
    let [user, system, idle, stolen] =
        [usage.user_ns, usage.system_ns, usage.idle_ns, usage.stolen_ns].map(clock_ticks);
    text.line(format_args!("{name} {user} 0 {system} {idle} 0 0 0 {stolen} 0 0\n"))
}

pub fn statistics(own: &Namespaces, _: &Credentials, text: &mut Text) -> Shown {
    let mut all = CpuUsage::default();
    let mut each = [CpuUsage::default(); MAX_CPUS];
    for (number, usage) in each.iter_mut().enumerate().take(cpu::count()) {
        *usage = usage::of_cpu(number);
        all.user_ns += usage.user_ns;
        all.system_ns += usage.system_ns;
        all.idle_ns += usage.idle_ns;
        all.stolen_ns += usage.stolen_ns;
    }
    cpu_line(format_args!("cpu "), all, text)?;
    for (number, &usage) in each.iter().enumerate().take(cpu::count()) {
        cpu_line(format_args!("cpu{number}"), usage, text)?;
    }
    let ahead_ns = time_namespace::offsets(&own.times).boottime_ns;
    let boot = Clock::realtime_offset_ns().saturating_add_signed(ahead_ns.saturating_neg()) / NS_PER_SECOND;
    let (switches, started, running) = (sched::switches(), table::started_count(), load::running());
    text.line(format_args!("intr {}\nctxt {switches}\nbtime {boot}\n", interrupt::count()))?;
    // Nothing waits for a device in a way that counts as blocked: every wait is of a kind that shows as sleep.
    text.line(format_args!("processes {started}\nprocs_running {running}\nprocs_blocked 0\n"))?;
    // Work after interrupts is coroutines', of no such kind.
    text.bytes(b"softirq 0 0 0 0 0 0 0 0 0 0 0\n")
}

/// How often each line of a device interrupted the CPUs, their timers, and they one another.
pub fn interrupts(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"           ")?;
    (0..cpu::count()).try_for_each(|number| text.line(format_args!("CPU{number:<8}")))?;
    text.bytes(b"\n")?;
    let lines = (0..interrupt::LINES).filter_map(|line| Some((line, interrupt::taken_of(line)?)));
    for (line, taken) in lines {
        text.line(format_args!("{line:>3}: "))?;
        // Devices interrupt the first CPU.
        let of_cpu = |number| if number == 0 { taken } else { 0 };
        (0..cpu::count()).try_for_each(|number| text.line(format_args!("{:>10} ", of_cpu(number))))?;
        text.line(format_args!("  IO-APIC  {line:>2}-level     virtio\n"))?;
    }
    own_interrupts("LOC", interrupt::timers, "Local timer interrupts", text)?;
    own_interrupts("RES", interrupt::kicks, "Rescheduling interrupts", text)
}

/// A line about interrupts of the CPUs' own.
fn own_interrupts(name: &str, taken: fn(usize) -> u64, meaning: &str, text: &mut Text) -> Shown {
    text.line(format_args!("{name}: "))?;
    (0..cpu::count()).try_for_each(|number| text.line(format_args!("{:>10} ", taken(number))))?;
    text.line(format_args!("  {meaning}\n"))
}

pub fn uptime(own: &Namespaces, _: &Credentials, text: &mut Text) -> Shown {
    let idle = (0..cpu::count()).map(|number| usage::of_cpu(number).idle_ns).sum();
    let hundredths = |nanoseconds: u64| nanoseconds % NS_PER_SECOND / 10_000_000;
    for (nanoseconds, end) in [(time_namespace::now_ns(&own.times, Clock::Boottime), ' '), (idle, '\n')] {
        text.line(format_args!("{}.{:02}{end}", nanoseconds / NS_PER_SECOND, hundredths(nanoseconds)))?;
    }
    Ok(())
}

pub fn version(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("Linux version {RELEASE} (heddle) {VERSION}\n"))
}

pub fn virtual_memory(_: &Subject, text: &mut Text) -> Shown {
    let faults = counters::FAULTS.load(core::sync::atomic::Ordering::Relaxed);
    text.line(format_args!("nr_free_pages {}\npgfault {faults}\npgmajfault 0\n", frame::free_frames()))?;
    let value = |counter: &counters::Counter| counter.load(core::sync::atomic::Ordering::Relaxed);
    let (faults, fallbacks) = (value(&counters::LARGE_FAULTS), value(&counters::LARGE_FALLBACKS));
    let splits = value(&counters::LARGE_SPLITS);
    text.line(format_args!(
        "thp_fault_alloc {faults}\nthp_fault_fallback {fallbacks}\nthp_split_pmd {splits}\n"
    ))
}

pub fn counters(_: &Subject, text: &mut Text) -> Shown {
    for (name, value) in counters::all().into_iter().chain(crate::sched::counters()).chain(share::counters())
    {
        text.line(format_args!("{name} {value}\n"))?;
    }
    Ok(())
}

/// Page frames: those that are free, caches of frames included; all that programs and the kernel share; those of the
/// kernel's heap, and the bytes in use in them; the objects in use there by their sizes.
pub fn frames(_: &Subject, text: &mut Text) -> Shown {
    let (free, total, heap) = (frame::free_frames(), frame::total_frames(), heap::usage());
    text.line(format_args!("free_frames {free}\ntotal_frames {total}\n"))?;
    text.line(format_args!("heap_frames {}\nheap_bytes {}\n", heap.frames, heap.bytes))?;
    for (size, count) in heap::objects() {
        text.line(format_args!("objects_{size} {count}\n"))?;
    }
    Ok(())
}

/// The machine's isolation as it was chosen, and what that means at the moment.
pub fn isolation(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{} {}\n", isolation::chosen().name(), isolation::machine().name()))
}

/// Where each process is: its number; which others may reach its memory (`none`: all may, `user`: those with its
/// credentials, `private`: no other); the number of its slot, 0 for the low window, `whole` for all addresses; how many
/// mappings it has; its name. One line a process.
pub fn spaces(_: &Subject, text: &mut Text) -> Shown {
    let mut next = 0;
    while let Some(process) = table::next_process(next) {
        next = process.pid.saturating_add(1);
        let Some(thread) = process.main_thread() else { continue };
        let Some(space) = thread.try_space() else { continue };
        text.line(format_args!("{} {} ", process.pid, isolation::of_program(space.isolation()).name()))?;
        match space.slot() {
            Some(number) => text.line(format_args!("{number} "))?,
            None => text.bytes(b"whole ")?,
        }
        text.line(format_args!("{} ", space.mapping_count()))?;
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
    let name = name.trim_ascii_end();
    if let Some(address) = name.strip_prefix(b"user-access ") {
        let text = core::str::from_utf8(address).map_err(|_| Errno::EINVAL)?;
        let end = usize::from_str_radix(text, 16).map_err(|_| Errno::EINVAL)?;
        crate::memory::user::provoke_access(end);
        return Ok(());
    }
    if crate::sync::order::provoke(name) { Ok(()) } else { Err(Errno::EINVAL) }
}

pub fn file_limit(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{}\n", i64::MAX))
}

pub fn descriptor_limit(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"1048576\n")
}

pub fn aio_limit(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{}\n", crate::fs::aio_share::REQUESTS_MAX))
}

pub fn aio_requests(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{}\n", crate::fs::aio_share::requests()))
}

pub fn pipe_limit(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{}\n", crate::fs::pipe::CAPACITY_LIMIT))
}

pub fn last_capability(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"40\n")
}

pub fn core_pattern(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(dump::pattern().as_bytes())?;
    text.bytes(b"\n")
}

pub fn set_core_pattern(_: &Subject, bytes: &[u8]) -> Shown {
    dump::set_pattern(bytes)
}

pub fn core_uses_pid(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{}\n", u8::from(dump::pattern().adds_pid)))
}

pub fn set_core_uses_pid(_: &Subject, bytes: &[u8]) -> Shown {
    dump::set_adds_pid(number(bytes)? != 0);
    Ok(())
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
    text.line(format_args!("{VERSION}\n"))
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

pub fn lowest_address(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{LOWEST_ADDRESS}\n"))
}

pub fn overcommit(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{}\n", crate::memory::overcommit::mode_number()))
}

/// A number that a program writes, white space around it.
fn number(bytes: &[u8]) -> Result<u32, Errno> {
    let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
    text.trim_ascii().parse().map_err(|_| Errno::EINVAL)
}

pub fn set_overcommit(_: &Subject, bytes: &[u8]) -> Shown {
    crate::memory::overcommit::set_mode(number(bytes)?)
}

pub fn overcommit_ratio(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{}\n", crate::memory::overcommit::ratio()))
}

pub fn set_overcommit_ratio(_: &Subject, bytes: &[u8]) -> Shown {
    crate::memory::overcommit::set_ratio(number(bytes)?);
    Ok(())
}
