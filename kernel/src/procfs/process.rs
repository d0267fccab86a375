//! Files of `/proc` about a process or thread.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::procfs::{Subject, Text};
use heddle_kernel_core::mempolicy::NODES_MAX;
use heddle_kernel_core::signal::Action;

use crate::error::Errno;
use crate::fs::inotify::Inotify;
use crate::fs::{OpenFile, StatusFlags, downcast};
use crate::memory::source::Object;
use crate::memory::space::{Flags, MappingView, Protection};
use crate::memory::{Space, fallible};
use crate::process::namespaces::Namespaces;
use crate::process::pidfd::ProcessFile;
use crate::process::thread::UsageCounts;
use crate::process::{Credentials, ExitStatus, Limits, Process, Resource, Thread};
use crate::process::{control_group, pid_namespace};
use crate::sched::Parameters;
use crate::signal;
use crate::signal::Signal;
use crate::time::clock_ticks;

type Shown = Result<(), Errno>;

const PAGE_BYTES: usize = 4096;

/// The name as it was set, without the zeros behind it.
fn trim(name: &[u8]) -> &[u8] {
    &name[..name.iter().position(|&byte| byte == 0).unwrap_or(name.len())]
}

fn name_of(subject: &Subject) -> [u8; Thread::NAME_BYTES] {
    subject.thread().map_or([0; Thread::NAME_BYTES], |thread| thread.name())
}

pub(super) fn space_of(subject: &Subject) -> Option<Arc<Space>> {
    subject.thread().ok().map(|thread| thread.space())
}

/// The letter of the state. A process without threads is a zombie, or the kernel's own reaper.
fn state_of(subject: &Subject) -> char {
    let ended = || subject.process().is_ok_and(|process| process.exit_status().is_some());
    match subject.thread() {
        Ok(thread) => thread.run_state().letter(),
        Err(_) if ended() => 'Z',
        Err(_) => 'S',
    }
}

pub fn name(subject: &Subject, text: &mut Text) -> Shown {
    subject.process()?;
    text.bytes(trim(&name_of(subject)))?;
    text.bytes(b"\n")
}

/// A thread's name is its process's matter.
pub fn set_name(subject: &Subject, writer: &Thread, name: &[u8]) -> Shown {
    let thread = subject.thread()?;
    if thread.process.pid != writer.process.pid {
        return Err(Errno::EINVAL);
    }
    thread.set_name(name.strip_suffix(b"\n").unwrap_or(name));
    Ok(())
}

/// Appends memory of a program, as far as it is there: pages that the program has not touched yet are left out.
fn memory_of(subject: &Subject, (start, end): (usize, usize), text: &mut Text) -> Shown {
    let Some(space) = space_of(subject) else { return Ok(()) };
    let mut at = start;
    while at < end {
        let mut piece = [0; 256];
        let length = piece.len().min(end - at);
        match space.read_bytes(at, &mut piece[..length]) {
            Ok(()) => text.bytes(&piece[..length])?,
            Err(fault) => match space.try_fault_in(fault) {
                Some(Ok(())) => continue,
                _ => break,
            },
        }
        at += length;
    }
    Ok(())
}

pub fn command_line(subject: &Subject, text: &mut Text) -> Shown {
    memory_of(subject, subject.process()?.layout().arguments, text)
}

pub fn environment(subject: &Subject, text: &mut Text) -> Shown {
    memory_of(subject, subject.process()?.layout().environment, text)
}

pub fn auxiliary(subject: &Subject, text: &mut Text) -> Shown {
    memory_of(subject, subject.process()?.layout().auxiliary, text)
}

/// The mappings that a core dump has, as hexadecimal bits.
pub fn dump_filter(subject: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{:08x}\n", subject.process()?.dump_filter()))
}

pub fn set_dump_filter(subject: &Subject, bytes: &[u8]) -> Shown {
    let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?.trim_ascii();
    // In any base, as in C.
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16),
        None if text.len() > 1 && text.starts_with('0') => u32::from_str_radix(text, 8),
        None => text.parse(),
    };
    subject.process()?.set_dump_filter(parsed.map_err(|_| Errno::EINVAL)?);
    Ok(())
}

/// How late timers of the thread may be, in nanoseconds.
pub fn timer_slack(subject: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{}\n", subject.thread()?.timer_slack_ns()))
}

pub fn set_timer_slack(subject: &Subject, bytes: &[u8]) -> Shown {
    let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?.trim_ascii();
    subject.thread()?.set_timer_slack_ns(text.parse().map_err(|_| Errno::EINVAL)?);
    Ok(())
}

/// The control group, as a path from the root of the viewer's cgroup namespace.
pub fn control_group(subject: &Subject, viewer: &Namespaces, text: &mut Text) -> Shown {
    let group = subject.process()?.control_group();
    text.bytes(b"0::")?;
    control_group::write_path(&viewer.groups.root, &group, &mut |piece| text.bytes(piece))?;
    let is_removed = group.is_some_and(|group| group.is_removed());
    text.bytes(if is_removed { b" (deleted)\n" } else { b"\n" })
}

pub fn wait_channel(_: &Subject, text: &mut Text) -> Shown {
    text.bytes(b"0")
}

pub fn oom_score(subject: &Subject, text: &mut Text) -> Shown {
    let points = crate::process::oom::points(&*subject.process()?);
    let score = heddle_kernel_core::oom::score(points, crate::memory::frame::total_frames());
    text.line(format_args!("{score}\n"))
}

pub fn oom_adjustment(subject: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{}\n", subject.process()?.oom_adjustment()))
}

pub fn set_oom_adjustment(subject: &Subject, opener: &Credentials, bytes: &[u8]) -> Shown {
    let value = heddle_kernel_core::oom::parse(bytes).ok_or(Errno::EINVAL)?;
    let is_privileged = opener.is_capable(linux_raw_sys::general::CAP_SYS_RESOURCE);
    subject.process()?.set_oom_adjustment(value, is_privileged, false)
}

/// `oom_adj`, the older name with a scale of its own.
pub fn oom_legacy(subject: &Subject, text: &mut Text) -> Shown {
    let value = heddle_kernel_core::oom::to_legacy(subject.process()?.oom_adjustment());
    text.line(format_args!("{value}\n"))
}

pub fn set_oom_legacy(subject: &Subject, opener: &Credentials, bytes: &[u8]) -> Shown {
    let value = heddle_kernel_core::oom::parse(bytes).and_then(heddle_kernel_core::oom::from_legacy);
    let is_privileged = opener.is_capable(linux_raw_sys::general::CAP_SYS_RESOURCE);
    subject.process()?.set_oom_adjustment(value.ok_or(Errno::EINVAL)?, is_privileged, true)
}

pub fn statistics(subject: &Subject, text: &mut Text) -> Shown {
    let process = subject.process()?;
    let thread = subject.thread().ok();
    text.line(format_args!("{} (", subject.shown(subject.tid.unwrap_or(process.pid))))?;
    text.bytes(trim(&name_of(subject)))?;
    let (group, session) = (process.group(), process.session());
    let terminal = session.terminal();
    let (device, foreground) =
        terminal.map_or((0, -1), |tty| (tty.device(), subject.shown(tty.foreground_group())));
    let counts = match (&thread, subject.tid) {
        (Some(thread), Some(_)) => thread.counts(),
        _ => process.counts(),
    };
    text.line(format_args!(
        ") {} {} {} {} {device} {foreground} 0 {} {} 0 0",
        state_of(subject),
        subject.shown(process.parent_pid()),
        subject.shown(group.id),
        subject.shown(session.id),
        counts.faults,
        process.children_counts().faults
    ))?;
    let times = match (&thread, subject.tid) {
        (Some(thread), Some(_)) => thread.cpu_times(),
        _ => process.cpu_times(),
    };
    let children = process.children_times();
    for nanoseconds in [times.0, times.1, children.0, children.1] {
        text.line(format_args!(" {}", clock_ticks(nanoseconds)))?;
    }
    let space = space_of(subject);
    let bytes = space.as_ref().map_or(0, |space| space.mapped_bytes());
    let resident = space.as_ref().map_or(0, |space| space.resident_pages());
    let scheduling = thread.as_ref().map_or(Parameters::ORDINARY, |thread| thread.scheduling());
    let (nice, realtime) = (i32::from(scheduling.nice), i32::from(scheduling.realtime));
    let priority = if scheduling.policy.is_realtime() { -1 - realtime } else { 20 + nice };
    let start = clock_ticks(process.start_ns);
    text.line(format_args!(" {priority} {nice} {} 0 {start} {bytes} {resident}", process.thread_count()))?;
    let limit = process.limit(Resource::ResidentSet).soft;
    // Addresses of code and stack are only for those who may look into the process; nobody is told registers.
    text.line(format_args!(" {limit} 1 1 0 0 0"))?;
    let (ignored, caught) = actions_of(&process);
    let (pending, blocked) =
        thread.as_ref().map_or((0, 0), |thread| (signal::pending(thread).0.0, thread.blocked().0));
    // Only the first 31 signals have a place here, as signed numbers.
    for set in [pending, blocked, ignored, caught] {
        text.line(format_args!(" {}", set & 0x7fff_ffff))?;
    }
    let exit_signal = process.exit_signal().map_or(0, Signal::number);
    let processor = thread.as_ref().map_or(0, |thread| thread.last_cpu());
    let policy = scheduling.policy.number();
    text.line(format_args!(" 0 0 0 {exit_signal} {processor} {realtime} {policy} 0 0 0 0 0 0 0 0 0 0"))?;
    let status = process.exit_status().map_or(0, ExitStatus::to_wait_status);
    text.line(format_args!(" {status}\n"))
}

pub fn memory(subject: &Subject, text: &mut Text) -> Shown {
    subject.process()?;
    let space = space_of(subject);
    let pages = space.as_ref().map_or(0, |space| space.mapped_bytes() / PAGE_BYTES);
    let resident = space.as_ref().map_or(0, |space| space.resident_pages());
    text.line(format_args!("{pages} {resident} 0 0 0 {pages} 0\n"))
}

pub fn status(subject: &Subject, viewer: &Credentials, text: &mut Text) -> Shown {
    let process = subject.process()?;
    let thread = subject.thread().ok();
    text.bytes(b"Name:\t")?;
    text.escaped(trim(&name_of(subject)), b"\n\\")?;
    let tracer =
        thread.as_ref().and_then(|thread| thread.tracer()).map_or(0, |tracer| subject.shown(tracer.tid()));
    let umask = thread.as_ref().map_or(0, |thread| thread.directories().umask());
    let state = state_of(subject);
    let word = match state {
        'R' => "running",
        'D' => "disk sleep",
        'T' => "stopped",
        't' => "tracing stop",
        'Z' => "zombie",
        _ => "sleeping",
    };
    text.line(format_args!(
        "\nUmask:\t{umask:04o}\nState:\t{state} ({word})\nTgid:\t{}\nNgid:\t0\nPid:\t{}\nPPid:\t{}\n\
         TracerPid:\t{tracer}\n",
        subject.shown(process.pid),
        subject.shown(subject.tid.unwrap_or(process.pid)),
        subject.shown(process.parent_pid())
    ))?;
    match &thread {
        Some(thread) => status_of_thread(subject, &process, thread, viewer, text)?,
        // One that has ended counts until its parent has heard of it.
        None => text.line(format_args!("Threads:\t{}\n", process.thread_count().max(1)))?,
    }
    let switches = thread.map_or_else(UsageCounts::default, |thread| thread.counts());
    text.line(format_args!(
        "voluntary_ctxt_switches:\t{}\nnonvoluntary_ctxt_switches:\t{}\n",
        switches.voluntary, switches.involuntary
    ))
}

/// The signals that the process ignores, and those it has handlers for.
fn actions_of(process: &Process) -> (u64, u64) {
    let actions = process.actions();
    let actions = actions.lock();
    let (mut ignored, mut caught) = (0, 0);
    for signal in (1..=64).filter_map(Signal::new) {
        let action = actions.get(signal);
        let bit = 1 << signal.index();
        if action.has_handler() {
            caught |= bit;
        } else if action.handler == Action::IGNORE {
            ignored |= bit;
        }
    }
    (ignored, caught)
}

/// The numbers in each namespace that a process is in, from the one that is shown on.
fn numbers(subject: &Subject, process: &Process, name: &str, number: i32, text: &mut Text) -> Shown {
    text.line(format_args!("{name}:"))?;
    let mut views = Vec::new();
    let mut next = Some(&process.pids);
    while let Some(view) = next {
        fallible::try_push(&mut views, view)?;
        if pid_namespace::is_same(view, &subject.view) {
            break;
        }
        next = view.as_ref().map(|inner| &inner.parent);
    }
    for view in views.iter().rev() {
        text.line(format_args!("\t{}", pid_namespace::shown(number, view)))?;
    }
    text.bytes(b"\n")
}

fn status_of_thread(
    subject: &Subject,
    process: &Process,
    thread: &Arc<Thread>,
    viewer: &Credentials,
    text: &mut Text,
) -> Shown {
    let who = thread.credentials();
    let [uid, euid, suid, fsuid] =
        [who.uid, who.euid, who.suid, who.fsuid].map(|user| viewer.shown_user(user));
    text.line(format_args!("Uid:\t{uid}\t{euid}\t{suid}\t{fsuid}\n"))?;
    let [gid, egid, sgid, fsgid] =
        [who.gid, who.egid, who.sgid, who.fsgid].map(|group| viewer.shown_group(group));
    text.line(format_args!("Gid:\t{gid}\t{egid}\t{sgid}\t{fsgid}\n"))?;
    let table = thread.descriptors();
    text.line(format_args!("FDSize:\t{}\nGroups:\t", table.size()))?;
    for &group in who.supplementary_groups() {
        text.line(format_args!("{} ", viewer.shown_group(group)))?;
    }
    text.bytes(b"\n")?;
    let (group, session) = (process.group_id(), process.session().id);
    for (name, number) in
        [("NStgid", process.pid), ("NSpid", thread.tid()), ("NSpgid", group), ("NSsid", session)]
    {
        numbers(subject, process, name, number, text)?;
    }
    {
        let space = thread.space();
        let (peak, kib) = (space.peak_bytes() / 1024, space.mapped_bytes() / 1024);
        let resident = space.resident_pages() * PAGE_BYTES / 1024;
        text.line(format_args!("VmPeak:\t{peak:8} kB\nVmSize:\t{kib:8} kB"))?;
        text.line(format_args!("\nVmLck:\t{:8} kB", space.locked_bytes() / 1024))?;
        let most = space.peak_resident_pages() * PAGE_BYTES / 1024;
        text.line(format_args!("\nVmHWM:\t{most:8} kB\nVmRSS:\t{resident:8} kB"))?;
        let data = space.data_bytes() / 1024;
        text.line(format_args!("\nVmData:\t{data:8} kB\nVmSwap:\t       0 kB"))?;
    }
    let (queued, limit) = (signal::queued_count(process), process.limit(Resource::PendingSignals).soft);
    text.line(format_args!("\nThreads:\t{}\nSigQ:\t{queued}/{limit}\n", process.thread_count()))?;
    let (ignored, caught) = actions_of(process);
    let (own, shared) = signal::pending(thread);
    for (name, set) in [
        ("SigPnd", own.0),
        ("ShdPnd", shared.0),
        ("SigBlk", thread.blocked().0),
        ("SigIgn", ignored),
        ("SigCgt", caught),
    ] {
        text.line(format_args!("{name}:\t{set:016x}\n"))?;
    }
    let capabilities = &who.capabilities;
    for (name, set) in [
        ("CapInh", capabilities.inheritable),
        ("CapPrm", capabilities.permitted),
        ("CapEff", capabilities.effective),
        ("CapBnd", capabilities.bounding),
        ("CapAmb", capabilities.ambient),
    ] {
        text.line(format_args!("{name}:\t{set:016x}\n"))?;
    }
    let no_new_privileges = u8::from(thread.has_no_new_privileges());
    let mode = thread.seccomp();
    let (number, filters) = (mode.number(), mode.depth());
    text.line(format_args!(
        "NoNewPrivs:\t{no_new_privileges}\nSeccomp:\t{number}\nSeccomp_filters:\t{filters}\n"
    ))?;
    cpus_allowed(thread.scheduling().affinity, text)
}

/// The CPUs that a thread may run on, and the nodes of memory: a mask of as many digits as they need, and a list of
/// ranges.
fn cpus_allowed(affinity: u64, text: &mut Text) -> Shown {
    let count = crate::arch::cpu::count();
    let (mask, digits) = (affinity & (u64::MAX >> (64 - count.clamp(1, 64))), count.div_ceil(4));
    text.line(format_args!("Cpus_allowed:\t{mask:0digits$x}\nCpus_allowed_list:\t"))?;
    let (mut rest, mut separator) = (mask, "");
    while rest != 0 {
        let first = rest.trailing_zeros();
        let length = (rest >> first).trailing_ones();
        let last = first + length - 1;
        text.line(format_args!("{separator}{first}"))?;
        if length > 1 {
            text.line(format_args!("-{last}"))?;
        }
        rest = if last >= 63 { 0 } else { rest >> (last + 1) << (last + 1) };
        separator = ",";
    }
    // One node has all memory.
    let node_digits = NODES_MAX / 4;
    text.line(format_args!("\nMems_allowed:\t{:0node_digits$x}\nMems_allowed_list:\t0\n", 1))
}

/// Mappings that one part of `maps` shows.
const MAPPINGS_AT_ONCE: usize = 64;

/// Shows the mappings from an address on, as many as one part has.
pub fn mappings(subject: &Subject, text: &mut Text, from: u64) -> Result<Option<u64>, Errno> {
    each_mapping(subject, from, MAPPINGS_AT_ONCE, |_, mapping| mapping_line(mapping, text))
}

/// Visits up to `count` mappings from an address on; returns the address to continue at if there are more.
pub(super) fn each_mapping(
    subject: &Subject,
    from: u64,
    count: usize,
    mut visit: impl FnMut(&Space, &MappingView) -> Shown,
) -> Result<Option<u64>, Errno> {
    subject.process()?;
    let Some(space) = space_of(subject) else { return Ok(None) };
    let mut at = usize::try_from(from).unwrap_or(usize::MAX);
    for _ in 0..count {
        let Some(mapping) = space.mapping_at_or_above(at) else { return Ok(None) };
        visit(&space, &mapping)?;
        at = mapping.end;
    }
    Ok(Some(at as u64))
}

/// Where in a line of `maps` a name begins, unless the numbers before it are longer.
const NAME_COLUMN: usize = 73;

/// The line of `maps` about a mapping.
pub(super) fn mapping_line(mapping: &MappingView, text: &mut Text) -> Shown {
    let right = |bit: Protection, letter| if mapping.protection.contains(bit) { letter } else { '-' };
    let (device, inode) = match &mapping.object {
        Object::Source(source) => source.identity(),
        Object::Anonymous(_) => (0, 0),
    };
    let start = text.len();
    text.line(format_args!(
        "{:08x}-{:08x} {}{}{}{} {:08x} {:02x}:{:02x} {inode} ",
        mapping.start,
        mapping.end,
        right(Protection::READ, 'r'),
        right(Protection::WRITE, 'w'),
        right(Protection::EXECUTE, 'x'),
        if mapping.flags.contains(Flags::SHARED) { 's' } else { 'p' },
        mapping.offset,
        crate::fs::inode::device_major(device),
        crate::fs::inode::device_minor(device),
    ))?;
    match &mapping.object {
        Object::Source(source) => {
            let path = source.path().unwrap_or_default();
            text.pad(start + NAME_COLUMN)?;
            text.escaped(&path, b"\n")?;
        }
        Object::Anonymous(Some(name)) => {
            text.pad(start + NAME_COLUMN)?;
            text.line(format_args!("{name}"))?;
        }
        Object::Anonymous(None) => {}
    }
    text.bytes(b"\n")
}

/// Children that one part of `children` looks at.
const CHILDREN_AT_ONCE: usize = 64;

/// The children that a thread has made, in the order of their numbers; those of a thread that has ended are its
/// process's first thread's. Each part looks at those behind the number before.
pub fn children(subject: &Subject, text: &mut Text, from: u64) -> Result<Option<u64>, Errno> {
    let process = subject.process()?;
    let tid = subject.thread()?.tid();
    let (next, count) = next_children(&process, i32::try_from(from).unwrap_or(i32::MAX));
    for &(pid, creator) in &next[..count] {
        let is_own = creator == tid || tid == process.pid && crate::process::table::thread(creator).is_none();
        let shown = subject.shown(pid);
        if is_own && shown != 0 {
            text.line(format_args!("{shown} "))?;
        }
    }
    let last = if count == CHILDREN_AT_ONCE { Some(next[count - 1].0) } else { None };
    Ok(last.map(|pid| u64::from(pid.unsigned_abs())))
}

/// The children with the next numbers after one, with their makers, and how many there are.
fn next_children(process: &Process, after: i32) -> ([(i32, i32); CHILDREN_AT_ONCE], usize) {
    let (mut next, mut count) = ([(0, 0); CHILDREN_AT_ONCE], 0);
    for child in process.children().iter().filter(|child| child.pid > after) {
        let place = next[..count].partition_point(|&(pid, _)| pid < child.pid);
        if place == CHILDREN_AT_ONCE {
            continue;
        }
        count = (count + 1).min(CHILDREN_AT_ONCE);
        next[place..count].rotate_right(1);
        next[place] = (child.pid, child.creator());
    }
    (next, count)
}

pub fn limits(subject: &Subject, text: &mut Text) -> Shown {
    const ROWS: &[(&str, Resource, &str)] = &[
        ("Max cpu time", Resource::CpuTime, "seconds"),
        ("Max file size", Resource::FileSize, "bytes"),
        ("Max data size", Resource::Data, "bytes"),
        ("Max stack size", Resource::Stack, "bytes"),
        ("Max core file size", Resource::Core, "bytes"),
        ("Max resident set", Resource::ResidentSet, "bytes"),
        ("Max processes", Resource::Processes, "processes"),
        ("Max open files", Resource::OpenFiles, "files"),
        ("Max locked memory", Resource::LockedMemory, "bytes"),
        ("Max address space", Resource::AddressSpace, "bytes"),
        ("Max file locks", Resource::FileLocks, "locks"),
        ("Max pending signals", Resource::PendingSignals, "signals"),
        ("Max msgqueue size", Resource::MessageQueues, "bytes"),
        ("Max nice priority", Resource::Nice, ""),
        ("Max realtime priority", Resource::RealtimePriority, ""),
        ("Max realtime timeout", Resource::RealtimeTime, "us"),
    ];
    let process = subject.process()?;
    text.line(format_args!("{:<25} {:<20} {:<20} {:<10}\n", "Limit", "Soft Limit", "Hard Limit", "Units"))?;
    for &(name, resource, unit) in ROWS {
        let limit = process.limit(resource);
        text.line(format_args!("{name:<25} "))?;
        for value in [limit.soft, limit.hard] {
            match value {
                Limits::INFINITY => text.line(format_args!("{:<20} ", "unlimited"))?,
                value => text.line(format_args!("{value:<20} "))?,
            }
        }
        text.line(format_args!("{unit:<10}\n"))?;
    }
    Ok(())
}

/// Shows what a descriptor is for; of an instance of inotify(7) the next marks.
pub fn descriptor_information(subject: &Subject, text: &mut Text, from: u64) -> Result<Option<u64>, Errno> {
    let open = subject.open()?;
    if from == 0 {
        common_information(subject, &open, text)?;
    }
    downcast::<Inotify>(&open).map_or(Ok(None), |instance| marks(instance, text, from))
}

/// Lines about marks from an index on. Returns the next index, if there may be more.
fn marks(instance: &Inotify, text: &mut Text, from: u64) -> Result<Option<u64>, Errno> {
    const MARKS_PER_PART: usize = 16;
    let marks = instance.marks(from as usize, MARKS_PER_PART)?;
    for mark in &marks {
        let Some((inode, device)) = mark.place() else { continue };
        let (major, minor) = (device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xf_ff00);
        let mask = mark.mask.load(Ordering::Relaxed);
        text.line(format_args!(
            "inotify wd:{:x} ino:{inode:x} sdev:{:x} mask:{mask:x} ignored_mask:0 \n",
            mark.number,
            major << 20 | minor,
        ))?;
    }
    Ok((marks.len() == MARKS_PER_PART).then_some(from + MARKS_PER_PART as u64))
}

fn common_information(subject: &Subject, open: &OpenFile, text: &mut Text) -> Shown {
    let mount = open.place.as_ref().map_or(0, |place| place.mount.id);
    let (offset, inode) = (*open.offset.lock(), open.metadata().inode);
    let closes = subject
        .descriptor
        .zip(subject.thread().ok())
        .is_some_and(|(descriptor, thread)| thread.descriptors().close_on_exec(descriptor).unwrap_or(false));
    let closes = if closes { linux_raw_sys::general::O_CLOEXEC } else { 0 };
    text.line(format_args!(
        "pos:\t{offset}\nflags:\t0{:o}\nmnt_id:\t{mount}\nino:\t{inode}\n",
        open.flags().difference(StatusFlags::EXECUTE).bits() | closes
    ))?;
    match downcast::<ProcessFile>(open) {
        Some(file) => {
            let Some(pid) = file.pid() else { return text.bytes(b"Pid:\t-1\nNSpid:\t-1\n") };
            let shown = subject.shown(pid);
            text.line(format_args!("Pid:\t{shown}\n"))?;
            // A process that the reader's namespace does not know has no numbers.
            if shown == 0 {
                return text.bytes(b"NSpid:\t0\n");
            }
            let process = ProcessFile::process_of(open)?;
            numbers(subject, &process, "NSpid", pid, text)
        }
        None => Ok(()),
    }
}
