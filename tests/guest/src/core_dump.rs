//! Core dumps, core(5): which signals leave one, under which name, and what is in it.
#![allow(unsafe_code)] // The C library has no safe forms of these calls.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Barrier;

use nix::errno::Errno;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill, raise};
use nix::unistd::{Pid, chdir, pause};

use crate::harness::{OrFail, Outcome, Scratch, own_path, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    a_dump_has_threads_files_and_memory
    only_some_signals_leave_a_dump
    limits_and_closed_processes
    what_is_dumped_can_be_chosen
    the_filter_reads_back_and_is_inherited
    patterns_name_the_file
    a_dump_takes_the_place_of_a_file
    a_blocked_fault_leaves_a_dump
    a_dump_can_be_killed
    waitid_tells_of_the_dump
}

const PAGE: usize = 4096;
const DUMPED: i32 = 0x80;
const UNLIMITED: u64 = u64::MAX;

/// Memory that is to be found in a dump.
static MARK: [u64; 2] = [0x0123_4567_89ab_cdef, 0x1122_3344_5566_7788];

/// Ends a child in `directory` by what `body` does, with this limit of dumps. Returns the status word.
fn crash(directory: &Path, limit: u64, body: impl FnOnce() -> i32) -> Result<i32, String> {
    let child = spawn_child(|| {
        for signal in [libc::SIGSEGV, libc::SIGABRT, libc::SIGQUIT, libc::SIGTERM] {
            // SAFETY: the default action runs no code of ours.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        if chdir(directory).is_err() || setrlimit(Resource::RLIMIT_CORE, limit, limit).is_err() {
            return 98;
        }
        body()
    })?;
    status_of(child)
}

fn status_of(child: Pid) -> Result<i32, String> {
    let mut status = 0;
    // SAFETY: the status lives during the call.
    Errno::result(unsafe { libc::waitpid(child.as_raw(), &raw mut status, 0) }).or_fail()?;
    Ok(status)
}

fn send_to_self(signal: Signal) -> i32 {
    let _ = raise(signal);
    99
}

fn half(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

fn int(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

fn word(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index])) as usize
}

/// A segment: address, size in memory, flags, and its bytes in the file.
struct Segment {
    start: usize,
    size: usize,
    flags: u32,
    at: usize,
    dumped: usize,
}

/// A core file, taken apart.
struct Dump {
    bytes: Vec<u8>,
    segments: Vec<Segment>,
    /// The descriptions of notes by type, in order.
    notes: BTreeMap<u32, Vec<Vec<u8>>>,
}

impl Dump {
    fn read(path: &Path) -> Result<Self, String> {
        let bytes = fs::read(path).or_fail()?;
        expect_eq!(&bytes[..7], b"\x7fELF\x02\x01\x01");
        // A core file.
        expect_eq!(half(&bytes, 16), 4);
        let (headers, count) = (word(&bytes, 32), half(&bytes, 56));
        let mut dump = Self { bytes, segments: Vec::new(), notes: BTreeMap::new() };
        for index in 0..count {
            let at = headers + 56 * index;
            let field = |offset| word(&dump.bytes, at + offset);
            let (position, start, dumped, size) = (field(8), field(16), field(32), field(40));
            match int(&dump.bytes, at) {
                1 => {
                    let flags = int(&dump.bytes, at + 4);
                    dump.segments.push(Segment { start, size, flags, at: position, dumped });
                }
                4 => dump.take_notes(position, dumped),
                other => return Err(format!("a program header of type {other}")),
            }
        }
        Ok(dump)
    }

    fn take_notes(&mut self, mut at: usize, length: usize) {
        let end = at + length;
        while at < end {
            let (name, size) = (int(&self.bytes, at) as usize, int(&self.bytes, at + 4) as usize);
            let start = at + 12 + name.next_multiple_of(4);
            let description = self.bytes[start..start + size].to_vec();
            self.notes.entry(int(&self.bytes, at + 8)).or_default().push(description);
            at = start + size.next_multiple_of(4);
        }
    }

    fn notes(&self, kind: u32) -> &[Vec<u8>] {
        self.notes.get(&kind).map_or(&[], Vec::as_slice)
    }

    fn segment(&self, address: usize) -> Result<&Segment, String> {
        let found = self.segments.iter().find(|each| (each.start..each.start + each.size).contains(&address));
        found.ok_or_else(|| format!("no segment has {address:#x}"))
    }

    fn memory(&self, address: usize, length: usize) -> Result<&[u8], String> {
        let segment = self.segment(address)?;
        let offset = address - segment.start;
        if offset + length > segment.dumped {
            return Err(format!("{address:#x} is not in the file"));
        }
        Ok(&self.bytes[segment.at + offset..][..length])
    }
}

const STATUS: u32 = 1;
const FLOAT: u32 = 2;
const PROCESS: u32 = 3;
const AUXILIARY: u32 = 6;
const SIGNAL: u32 = 0x5349_4749;
const FILES: u32 = 0x4649_4c45;
const THREADS: usize = 3;

fn a_dump_has_threads_files_and_memory() -> Outcome {
    let scratch = Scratch::new("core")?;
    let heap = Box::new(MARK);
    let address = std::ptr::from_ref(&*heap).addr();
    let status = crash(&scratch.0, UNLIMITED, || {
        let barrier = Barrier::new(THREADS + 1);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    barrier.wait();
                    loop {
                        pause();
                    }
                });
            }
            barrier.wait();
            send_to_self(Signal::SIGABRT)
        })
    })?;
    expect_eq!(status, libc::SIGABRT | DUMPED);
    let dump = Dump::read(&scratch.path("core"))?;
    let statuses = dump.notes(STATUS);
    expect_eq!(statuses.len(), THREADS + 1);
    expect_eq!(dump.notes(FLOAT).len(), THREADS + 1);
    let mut ids: Vec<u32> = statuses.iter().map(|status| int(status, 32)).collect();
    // The process's number is that of its first thread, which sent itself the signal.
    expect_eq!(ids[0], int(&dump.notes(PROCESS)[0], 24));
    expect_eq!(int(&statuses[0], 36), std::process::id());
    ids.sort_unstable();
    ids.dedup();
    expect_eq!(ids.len(), THREADS + 1);
    expect_eq!(half(&statuses[0], 12), libc::SIGABRT as usize);
    for status in statuses {
        // The instruction pointer is in code, the stack pointer in memory that can be written and is in the file.
        let (code, stack) = (word(status, 112 + 16 * 8), word(status, 112 + 19 * 8));
        expect_eq!(dump.segment(code)?.flags & 1, 1);
        expect_eq!(dump.segment(stack)?.flags & 2, 2);
        dump.memory(stack, 16)?;
    }
    expect_eq!(int(&dump.notes(SIGNAL)[0], 0), libc::SIGABRT as u32);
    expect_eq!(dump.notes(SIGNAL)[0].len(), 128);
    let own = own_path();
    let name = own.file_name().unwrap_or_default().as_encoded_bytes();
    let name = &name[..name.len().min(15)];
    expect_eq!(&dump.notes(PROCESS)[0][40..40 + name.len()], name);
    let entry = dump.notes(AUXILIARY)[0].chunks(16).find(|pair| word(pair, 0) == libc::AT_ENTRY as usize);
    // SAFETY: reading the vector has no preconditions.
    expect_eq!(entry.map(|pair| word(pair, 8)), Some(unsafe { libc::getauxval(libc::AT_ENTRY) } as usize));
    let files = &dump.notes(FILES)[0];
    expect!(files.windows(own.as_os_str().len()).any(|part| part == own.as_os_str().as_encoded_bytes()));
    expect_eq!(word(files, 8), PAGE);
    let bytes = dump.memory(address, 16)?;
    expect_eq!([word(bytes, 0), word(bytes, 8)], MARK.map(|word| word as usize));
    Ok(())
}

fn only_some_signals_leave_a_dump() -> Outcome {
    let scratch = Scratch::new("core-signals")?;
    let core = scratch.path("core");
    for (signal, dumps) in [
        (Signal::SIGTERM, false),
        (Signal::SIGKILL, false),
        (Signal::SIGUSR1, false),
        (Signal::SIGQUIT, true),
        (Signal::SIGXCPU, true),
        (Signal::SIGSYS, true),
        (Signal::SIGTRAP, true),
    ] {
        let status = crash(&scratch.0, UNLIMITED, || send_to_self(signal))?;
        expect_eq!(status, signal as i32 | if dumps { DUMPED } else { 0 });
        expect_eq!(core.exists(), dumps);
        let _ = fs::remove_file(&core);
    }
    Ok(())
}

fn limits_and_closed_processes() -> Outcome {
    let scratch = Scratch::new("core-limits")?;
    let core = scratch.path("core");
    expect_eq!(crash(&scratch.0, 0, || send_to_self(Signal::SIGABRT))?, libc::SIGABRT);
    expect_eq!(crash(&scratch.0, PAGE as u64 - 1, || send_to_self(Signal::SIGABRT))?, libc::SIGABRT);
    expect!(!core.exists());
    let status = crash(&scratch.0, 3 * PAGE as u64, || send_to_self(Signal::SIGABRT))?;
    expect_eq!(status, libc::SIGABRT | DUMPED);
    expect!(fs::metadata(&core).or_fail()?.len() <= 3 * PAGE as u64);
    fs::remove_file(&core).or_fail()?;
    let status = crash(&scratch.0, UNLIMITED, || {
        let _ = nix::sys::prctl::set_dumpable(false);
        send_to_self(Signal::SIGABRT)
    })?;
    expect_eq!(status, libc::SIGABRT);
    expect!(!core.exists());
    Ok(())
}

/// A fresh private mapping of two pages with something in both.
fn mapping() -> Result<usize, String> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping replaces nothing.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), 2 * PAGE, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err("no mapping".to_owned());
    }
    // SAFETY: it is as long.
    unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), 2 * PAGE) }.fill(7);
    Ok(start.addr())
}

fn advise(address: usize, length: usize, advice: i32) -> Outcome {
    let start = std::ptr::without_provenance_mut(address);
    // SAFETY: the advice changes no memory.
    Errno::result(unsafe { libc::madvise(start, length, advice) }).or_fail()?;
    Ok(())
}

fn what_is_dumped_can_be_chosen() -> Outcome {
    let scratch = Scratch::new("core-choice")?;
    let core = scratch.path("core");
    let (left_out, kept, untouched) = (mapping()?, mapping()?, mapping()?);
    advise(left_out, PAGE, libc::MADV_DONTDUMP)?;
    advise(kept, 2 * PAGE, libc::MADV_DONTDUMP)?;
    advise(kept, 2 * PAGE, libc::MADV_DODUMP)?;
    advise(untouched, 2 * PAGE, libc::MADV_DONTNEED)?;
    let smaps = fs::read_to_string("/proc/self/smaps").or_fail()?;
    let head = format!("{left_out:08x}-");
    let lines = smaps.lines().skip_while(|line| !line.starts_with(&head));
    let flags = lines.skip(1).find(|line| line.starts_with("VmFlags")).unwrap_or_default();
    expect!(flags.split_whitespace().any(|flag| flag == "dd"));
    expect_eq!(crash(&scratch.0, UNLIMITED, || send_to_self(Signal::SIGABRT))?, libc::SIGABRT | DUMPED);
    let dump = Dump::read(&core)?;
    expect_eq!(dump.segment(left_out)?.dumped, 0);
    expect_eq!(dump.memory(left_out + PAGE, PAGE)?, [7; PAGE]);
    expect_eq!(dump.memory(kept, 2 * PAGE)?, [7; 2 * PAGE]);
    let status = crash(&scratch.0, UNLIMITED, || {
        let _ = fs::write("/proc/self/coredump_filter", "0x0");
        send_to_self(Signal::SIGABRT)
    })?;
    expect_eq!(status, libc::SIGABRT | DUMPED);
    let dump = Dump::read(&core)?;
    expect_eq!(dump.segment(kept)?.dumped, 0);
    Ok(())
}

fn the_filter_reads_back_and_is_inherited() -> Outcome {
    let path = "/proc/self/coredump_filter";
    expect_eq!(fs::read_to_string(path).or_fail()?, "00000033\n");
    for (text, shown) in [("0x7f", "0000007f\n"), ("17", "00000011\n"), ("017\n", "0000000f\n")] {
        fs::write(path, text).or_fail()?;
        expect_eq!(fs::read_to_string(path).or_fail()?, shown);
    }
    expect_eq!(fs::write(path, "x").err().and_then(|error| error.raw_os_error()), Some(libc::EINVAL));
    let child = spawn_child(|| i32::from(fs::read_to_string(path).ok().as_deref() != Some("0000000f\n")))?;
    expect_eq!(status_of(child)?, 0);
    let output = std::process::Command::new("cat").arg(path).output().or_fail()?;
    expect_eq!(output.stdout, b"0000000f\n");
    Ok(())
}

/// Sets the pattern, and the old one back at the end.
struct PatternGuard(String);

const PATTERN: &str = "/proc/sys/kernel/core_pattern";
const USES_PID: &str = "/proc/sys/kernel/core_uses_pid";

impl PatternGuard {
    fn set(pattern: &str) -> Result<Self, String> {
        let before = fs::read_to_string(PATTERN).or_fail()?;
        fs::write(PATTERN, pattern).or_fail()?;
        Ok(Self(before))
    }
}

impl Drop for PatternGuard {
    fn drop(&mut self) {
        let _ = fs::write(PATTERN, &self.0);
        let _ = fs::write(USES_PID, "0");
    }
}

fn patterns_name_the_file() -> Outcome {
    let scratch = Scratch::new("core-names")?;
    let guard = PatternGuard::set(&format!("{}/%s-%u-%e-%%-%q.x\n", scratch.0.display()))?;
    expect_eq!(fs::read_to_string(PATTERN).or_fail()?, format!("{}/%s-%u-%e-%%-%q.x\n", scratch.0.display()));
    let abort = || {
        let _ = nix::sys::prctl::set_name(c"a/b");
        send_to_self(Signal::SIGABRT)
    };
    expect_eq!(crash(Path::new("/"), UNLIMITED, abort)?, libc::SIGABRT | DUMPED);
    expect!(scratch.path("6-0-a!b-%-.x").exists());
    fs::write(PATTERN, "dump").or_fail()?;
    fs::write(USES_PID, "1").or_fail()?;
    expect_eq!(crash(&scratch.0, UNLIMITED, abort)?, libc::SIGABRT | DUMPED);
    let names: Vec<String> = fs::read_dir(&scratch.0)
        .or_fail()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with("dump."))
        .collect();
    expect_eq!(names.len(), 1);
    expect!(names[0]["dump.".len()..].parse::<u32>().is_ok());
    drop(guard);
    Ok(())
}

fn a_dump_takes_the_place_of_a_file() -> Outcome {
    let scratch = Scratch::new("core-files")?;
    let (core, other) = (scratch.path("core"), scratch.path("other"));
    let abort = || send_to_self(Signal::SIGABRT);
    // Links and files of others are removed, and what they lead to stays.
    fs::write(&other, "kept").or_fail()?;
    fs::hard_link(&other, &core).or_fail()?;
    expect_eq!(crash(&scratch.0, UNLIMITED, abort)?, libc::SIGABRT | DUMPED);
    fs::remove_file(&core).or_fail()?;
    std::os::unix::fs::symlink(&other, &core).or_fail()?;
    expect_eq!(crash(&scratch.0, UNLIMITED, abort)?, libc::SIGABRT | DUMPED);
    expect_eq!(fs::read(&other).or_fail()?, b"kept");
    std::os::unix::fs::chown(&core, Some(12_345), None).or_fail()?;
    expect_eq!(crash(&scratch.0, UNLIMITED, abort)?, libc::SIGABRT | DUMPED);
    let metadata = fs::symlink_metadata(&core).or_fail()?;
    expect_eq!((metadata.uid(), metadata.mode()), (0, libc::S_IFREG | 0o600));
    // A directory stays, and so do files in a directory that is another's.
    fs::remove_file(&core).or_fail()?;
    fs::create_dir(&core).or_fail()?;
    expect_eq!(crash(&scratch.0, UNLIMITED, abort)?, libc::SIGABRT);
    fs::remove_dir(&core).or_fail()?;
    let status = crash(&scratch.0, UNLIMITED, || {
        let _ = nix::unistd::setuid(nix::unistd::Uid::from_raw(12_345));
        let _ = nix::sys::prctl::set_dumpable(true);
        send_to_self(Signal::SIGABRT)
    })?;
    expect_eq!(status, libc::SIGABRT);
    expect!(!core.exists());
    // The mask of permissions takes what the file needs.
    let status = crash(&scratch.0, UNLIMITED, || {
        nix::sys::stat::umask(nix::sys::stat::Mode::S_IRUSR);
        send_to_self(Signal::SIGABRT)
    })?;
    expect_eq!(status, libc::SIGABRT);
    Ok(())
}

fn a_blocked_fault_leaves_a_dump() -> Outcome {
    let scratch = Scratch::new("core-fault")?;
    let place = mapping()?;
    for how in [libc::SIG_BLOCK, libc::SIG_UNBLOCK] {
        let status = crash(&scratch.0, UNLIMITED, || {
            // SAFETY: a set of signals, and a mapping of this test's that nobody else uses.
            unsafe {
                let mut set = std::mem::zeroed();
                libc::sigemptyset(&raw mut set);
                libc::sigaddset(&raw mut set, libc::SIGSEGV);
                libc::sigprocmask(how, &raw const set, std::ptr::null_mut());
                let start = std::ptr::with_exposed_provenance_mut::<u8>(place);
                libc::mprotect(start.cast(), PAGE, libc::PROT_NONE);
                start.write_volatile(1);
            }
            99
        })?;
        expect_eq!(status, libc::SIGSEGV | DUMPED);
        let dump = Dump::read(&scratch.path("core"))?;
        // The address of the fault, and the page that the program could not reach.
        let signal = &dump.notes(SIGNAL)[0];
        expect_eq!((int(signal, 0), word(signal, 16)), (libc::SIGSEGV as u32, place));
        expect_eq!(dump.memory(place, PAGE)?, [7; PAGE]);
    }
    Ok(())
}

fn a_dump_can_be_killed() -> Outcome {
    let scratch = Scratch::new("core-killed")?;
    for round in 0..8 {
        let child = spawn_child(|| {
            let is_ready =
                chdir(&scratch.0).is_ok() && setrlimit(Resource::RLIMIT_CORE, UNLIMITED, UNLIMITED).is_ok();
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        loop {
                            pause();
                        }
                    });
                }
                if is_ready { send_to_self(Signal::SIGABRT) } else { 98 }
            })
        })?;
        for _ in 0..round {
            std::thread::yield_now();
        }
        kill(child, Signal::SIGKILL).or_fail()?;
        // Whichever came first; a dump that was stopped may be there in part.
        let signal = status_of(child)? & 0x7f;
        expect!(signal == libc::SIGABRT || signal == libc::SIGKILL);
    }
    Ok(())
}

fn waitid_tells_of_the_dump() -> Outcome {
    let scratch = Scratch::new("core-waitid")?;
    for (limit, code) in [(UNLIMITED, libc::CLD_DUMPED), (0, libc::CLD_KILLED)] {
        let child = spawn_child(|| {
            let _ = chdir(&scratch.0);
            let _ = setrlimit(Resource::RLIMIT_CORE, limit, limit);
            send_to_self(Signal::SIGABRT)
        })?;
        // SAFETY: zeros are a siginfo_t, which lives during the call.
        let mut information: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let id = child.as_raw() as libc::id_t;
        // SAFETY: as above.
        Errno::result(unsafe { libc::waitid(libc::P_PID, id, &raw mut information, libc::WEXITED) })
            .or_fail()?;
        // SAFETY: what waitid has stored has these fields.
        expect_eq!((information.si_code, unsafe { information.si_status() }), (code, libc::SIGABRT));
    }
    Ok(())
}
