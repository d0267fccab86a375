//! How much memory there may be: limits of a process, promises, and who ends when there is none left.
#![allow(unsafe_code, reason = "mapping memory and setting limits have no safe form")]

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount, umount};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

use crate::harness::{OrFail, Outcome, Scratch, in_child, is_heddle, skip, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    adjustments_read_back_and_are_inherited
    lowering_an_adjustment_needs_a_capability
    the_adjustment_chooses_who_ends
    address_space_is_limited
    data_is_limited
    a_limit_reaches_another_process
    promises_are_checked
    future_mappings_are_locked
    faults_are_counted
    file_systems_in_memory_leave_room
}

const PAGE: usize = 4096;
const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
const USER: u32 = 12_345;

const OWN_ADJUSTMENT: &str = "/proc/self/oom_score_adj";
const OVERCOMMIT: &str = "/proc/sys/vm/overcommit_memory";

/// Maps memory at an address of the kernel's choice; 0 with an error.
fn map(length: usize, protection: i32, flags: i32) -> Result<usize, Errno> {
    // SAFETY: a new mapping at an address of the kernel's choice disturbs no object.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
    if address == libc::MAP_FAILED { Err(Errno::last()) } else { Ok(address.addr()) }
}

fn unmap(address: usize, length: usize) {
    // SAFETY: the tests unmap what they have mapped, and nothing refers to it.
    let _ = unsafe { libc::munmap(std::ptr::without_provenance_mut(address), length) };
}

fn protect(address: usize, length: usize, protection: i32) -> Result<(), Errno> {
    // SAFETY: the tests change mappings of theirs.
    let result = unsafe { libc::mprotect(std::ptr::without_provenance_mut(address), length, protection) };
    Errno::result(result).map(drop)
}

fn limit(resource: libc::__rlimit_resource_t, bytes: u64) -> bool {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the structure lives during the call.
    unsafe { libc::setrlimit(resource, &raw const limit) == 0 }
}

fn total_memory() -> usize {
    // SAFETY: the structure is plain numbers, and lives during the call.
    unsafe {
        let mut information: libc::sysinfo = std::mem::zeroed();
        libc::sysinfo(&raw mut information);
        information.totalram as usize * information.mem_unit as usize
    }
}

fn read_number(path: &str) -> Result<i64, String> {
    fs::read_to_string(path).or_fail()?.trim().parse().or_fail()
}

fn write(path: &str, text: &str) -> Result<(), Option<Errno>> {
    let written =
        OpenOptions::new().write(true).open(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| error.raw_os_error().map(Errno::from_raw))
}

fn adjustments_read_back_and_are_inherited() -> Outcome {
    expect_eq!(read_number(OWN_ADJUSTMENT)?, 0);
    let before = read_number("/proc/self/oom_score")?;
    expect_eq!(write(OWN_ADJUSTMENT, "300\n"), Ok(()));
    expect_eq!(read_number(OWN_ADJUSTMENT)?, 300);
    expect_eq!(read_number("/proc/self/oom_adj")?, 5);
    let after = read_number("/proc/self/oom_score")?;
    // 300 thousandths count two thirds.
    expect!((195..=205).contains(&(after - before)));
    let child = in_child(|| i32::from(read_number(OWN_ADJUSTMENT) != Ok(300)))?;
    expect!(matches!(child, WaitStatus::Exited(_, 0)));
    let shown = Command::new("cat").arg(OWN_ADJUSTMENT).output().or_fail()?;
    expect_eq!(String::from_utf8_lossy(&shown.stdout), "300\n");
    for wrong in ["1001", "-1001", "1x", "x"] {
        expect_eq!(write(OWN_ADJUSTMENT, wrong), Err(Some(Errno::EINVAL)));
    }
    expect_eq!(read_number(OWN_ADJUSTMENT)?, 300);
    expect_eq!(write(OWN_ADJUSTMENT, "-1000"), Ok(()));
    expect_eq!(read_number("/proc/self/oom_adj")?, -17);
    expect_eq!(read_number("/proc/self/oom_score")?, 0);
    expect_eq!(write("/proc/self/oom_adj", "15"), Ok(()));
    expect_eq!(read_number(OWN_ADJUSTMENT)?, 1000);
    expect_eq!(write("/proc/self/oom_adj", "16"), Err(Some(Errno::EINVAL)));
    Ok(())
}

fn lowering_an_adjustment_needs_a_capability() -> Outcome {
    let steps = [("300", Ok(())), ("250", Ok(())), ("200", Ok(())), ("199", Err(Some(Errno::EACCES)))];
    let status = in_child(|| {
        // The value that a privileged writer sets is the lowest from then on.
        let is_user = write(OWN_ADJUSTMENT, "200") == Ok(())
            && setgroups(&[]).is_ok()
            && setresgid(Gid::from_raw(USER), Gid::from_raw(USER), Gid::from_raw(USER)).is_ok()
            && setresuid(Uid::from_raw(USER), Uid::from_raw(USER), Uid::from_raw(USER)).is_ok()
            && nix::sys::prctl::set_dumpable(true).is_ok();
        if !is_user {
            return 100;
        }
        let failed = steps.iter().position(|(value, expected)| write(OWN_ADJUSTMENT, value) != *expected);
        failed.map_or(0, |step| step as i32 + 1)
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    Ok(())
}

/// A small process that wants to end first does, and the large one that took the memory goes on meanwhile.
fn the_adjustment_chooses_who_ends() -> Outcome {
    let (ready, told) = nix::unistd::pipe().or_fail()?;
    let willing = spawn_child(|| {
        let is_willing = write(OWN_ADJUSTMENT, "1000").is_ok();
        let _ = nix::unistd::write(&told, &[u8::from(is_willing)]);
        loop {
            nix::unistd::pause();
        }
    })?;
    let mut is_willing = [0];
    nix::unistd::read(&ready, &mut is_willing).or_fail()?;
    expect_eq!(is_willing, [1]);
    let greedy = spawn_child(|| {
        let length = total_memory();
        let Ok(start) = map(length, RW, PRIVATE | libc::MAP_NORESERVE) else { return 1 };
        for page in (start..start + length).step_by(PAGE) {
            // SAFETY: the page is in a mapping of this process that no reference covers.
            unsafe { std::ptr::with_exposed_provenance_mut::<u8>(page).write_volatile(1) };
        }
        0
    })?;
    let ended = waitpid(None, None).or_fail()?;
    let rest = if ended.pid() == Some(greedy) { willing } else { greedy };
    let _ = kill(rest, Signal::SIGKILL);
    let other = waitpid(rest, None);
    expect_eq!(ended, WaitStatus::Signaled(willing, Signal::SIGKILL, false));
    expect!(other.is_ok());
    Ok(())
}

/// Runs checks in a child, which may have no memory to say more than which of them failed.
fn all_hold<const N: usize>(checks: impl FnOnce() -> [bool; N]) -> Outcome {
    let status = in_child(|| checks().iter().position(|holds| !holds).map_or(0, |index| index as i32 + 1))?;
    match status {
        WaitStatus::Exited(_, 0) => Ok(()),
        WaitStatus::Exited(_, number) => Err(format!("check {number} failed")),
        status => Err(format!("the child ended with {status:?}")),
    }
}

const MIB: usize = 1 << 20;

fn address_space_is_limited() -> Outcome {
    let statm = fs::read_to_string("/proc/self/statm").or_fail()?;
    let mapped: u64 = statm.split_whitespace().next().unwrap_or_default().parse().or_fail()?;
    all_hold(|| {
        let is_limited = limit(libc::RLIMIT_AS, mapped * PAGE as u64 + 16 * MIB as u64);
        let large = map(64 * MIB, libc::PROT_NONE, PRIVATE) == Err(Errno::ENOMEM);
        let small = map(12 * MIB, RW, PRIVATE);
        let second = map(8 * MIB, RW, PRIVATE) == Err(Errno::ENOMEM);
        let start = small.unwrap_or(0);
        // A mapping that is replaced doesn't count.
        let replaced = unsafe {
            // SAFETY: the mapping is this process's, and nothing refers to it.
            let at = std::ptr::without_provenance_mut(start);
            libc::mmap(at, 12 * MIB, RW, PRIVATE | libc::MAP_FIXED, -1, 0) != libc::MAP_FAILED
        };
        let grown = unsafe {
            // SAFETY: as above.
            let at = std::ptr::without_provenance_mut(start);
            libc::mremap(at, 12 * MIB, 64 * MIB, libc::MREMAP_MAYMOVE) == libc::MAP_FAILED
                && Errno::last() == Errno::ENOMEM
        };
        // SAFETY: the break stays where it is.
        let heap = unsafe { libc::sbrk(64 << 20).addr() == usize::MAX };
        unmap(start, 12 * MIB);
        let again = map(8 * MIB, RW, PRIVATE).is_ok();
        [is_limited, large, small.is_ok(), second, replaced, grown, heap, again]
    })
}

fn data_is_limited() -> Outcome {
    all_hold(|| {
        let is_limited = limit(libc::RLIMIT_DATA, PAGE as u64);
        let writable = map(MIB, RW, PRIVATE) == Err(Errno::ENOMEM);
        let readable = map(MIB, libc::PROT_READ, PRIVATE);
        let shared = map(MIB, RW, libc::MAP_SHARED | libc::MAP_ANONYMOUS).is_ok();
        let made_writable = protect(readable.unwrap_or(0), MIB, RW) == Err(Errno::ENOMEM);
        // SAFETY: the break stays where it is.
        let heap = unsafe { libc::sbrk(1 << 20).addr() == usize::MAX };
        [is_limited, writable, readable.is_ok(), shared, made_writable, heap]
    })
}

fn a_limit_reaches_another_process() -> Outcome {
    let (ready, told) = nix::unistd::pipe().or_fail()?;
    let child = spawn_child(|| {
        let mut byte = [0];
        let is_told = nix::unistd::read(&ready, &mut byte) == Ok(1);
        i32::from(!is_told || map(64 * MIB, RW, PRIVATE) != Err(Errno::ENOMEM))
    })?;
    let limit = libc::rlimit { rlim_cur: MIB as u64, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the structure lives during the call.
    let result =
        unsafe { libc::prlimit(child.as_raw(), libc::RLIMIT_AS, &raw const limit, std::ptr::null_mut()) };
    nix::unistd::write(&told, &[1]).or_fail()?;
    expect_eq!(waitpid(child, None).or_fail()?, WaitStatus::Exited(child, 0));
    expect_eq!(result, 0);
    // The one that set it has none.
    let own = map(64 * MIB, RW, PRIVATE);
    expect!(own.is_ok());
    unmap(own.unwrap_or(0), 64 * MIB);
    Ok(())
}

/// Sets the mode of promises, and the usual one at the end.
struct Mode;

impl Mode {
    fn set(number: &str) -> Result<Self, String> {
        write(OVERCOMMIT, number).map_err(|error| format!("overcommit_memory: {error:?}"))?;
        Ok(Self)
    }
}

impl Drop for Mode {
    fn drop(&mut self) {
        let _ = write(OVERCOMMIT, "0");
    }
}

fn promises_are_checked() -> Outcome {
    const NO_RESERVE: i32 = libc::MAP_NORESERVE;
    let total = total_memory();
    let large = 2 * total / PAGE * PAGE;
    let try_map =
        |length, protection, flags| map(length, protection, flags).map(|start| unmap(start, length));
    expect_eq!(read_number(OVERCOMMIT)?, 0);
    expect_eq!(try_map(large, RW, PRIVATE), Err(Errno::ENOMEM));
    expect_eq!(try_map(large, RW, libc::MAP_SHARED | libc::MAP_ANONYMOUS), Err(Errno::ENOMEM));
    expect_eq!(try_map(large, RW, PRIVATE | NO_RESERVE), Ok(()));
    expect_eq!(try_map(large, libc::PROT_READ, PRIVATE), Ok(()));
    let start = map(large, libc::PROT_NONE, PRIVATE).or_fail()?;
    expect_eq!(protect(start, large, RW), Err(Errno::ENOMEM));
    expect_eq!(protect(start, PAGE, RW), Ok(()));
    unmap(start, large);
    {
        let _mode = Mode::set("1")?;
        expect_eq!(read_number(OVERCOMMIT)?, 1);
        expect_eq!(try_map(large, RW, PRIVATE), Ok(()));
    }
    {
        let _mode = Mode::set("2\n")?;
        let most = total / PAGE * PAGE;
        expect_eq!(try_map(most, RW, PRIVATE), Err(Errno::ENOMEM));
        expect_eq!(try_map(most, RW, PRIVATE | NO_RESERVE), Err(Errno::ENOMEM));
        expect_eq!(try_map(most, libc::PROT_READ, PRIVATE), Ok(()));
        expect_eq!(try_map(MIB, RW, PRIVATE), Ok(()));
    }
    expect_eq!(write(OVERCOMMIT, "3"), Err(Some(Errno::EINVAL)));
    expect_eq!(read_number(OVERCOMMIT)?, 0);
    Ok(())
}

/// Writes until the file system is full; how many bytes.
fn fill(path: &Path) -> Result<usize, String> {
    let file = File::create(path).or_fail()?;
    let piece = vec![1_u8; 1 << 16];
    let mut written = 0;
    loop {
        // SAFETY: the piece lives during the call.
        let result = unsafe { libc::write(file.as_raw_fd(), piece.as_ptr().cast(), piece.len()) };
        match Errno::result(result) {
            Ok(bytes) => written += bytes as usize,
            Err(Errno::ENOSPC) => return Ok(written),
            Err(error) => return Err(format!("filling {}: {error}", path.display())),
        }
    }
}

fn file_systems_in_memory_leave_room() -> Outcome {
    if !is_heddle() {
        skip("Linux limits each file system by itself");
        return Ok(());
    }
    let scratch = Scratch::new("room").or_fail()?;
    let places = ["first", "second"].map(|name| scratch.path(name));
    for place in &places {
        fs::create_dir(place).or_fail()?;
        mount(Some("room"), place, Some("tmpfs"), MsFlags::empty(), Some("size=60%")).or_fail()?;
    }
    let filled: Vec<_> = places.iter().map(|place| fill(&place.join("file"))).collect();
    // Programs still run.
    let child = in_child(|| 3);
    for place in &places {
        umount(place).or_fail()?;
    }
    let mut sum = 0;
    for bytes in filled {
        sum += bytes?;
    }
    expect!(sum <= total_memory() / 4 * 3);
    expect!(sum > total_memory() / 2);
    expect!(matches!(child?, WaitStatus::Exited(_, 3)));
    Ok(())
}

/// A number of kilobytes in `/proc/self/status`.
fn status_kib(name: &str) -> Result<usize, String> {
    let text = std::fs::read_to_string("/proc/self/status").or_fail()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    number.and_then(|number| number.trim().parse().ok()).ok_or(format!("no {name}"))
}

fn future_mappings_are_locked() -> Outcome {
    const LENGTH: usize = 64 * PAGE;
    let before = status_kib("VmLck")?;
    // SAFETY: no pointer is passed.
    expect_eq!(unsafe { libc::mlockall(libc::MCL_FUTURE) }, 0);
    map(LENGTH, RW, PRIVATE).or_fail()?;
    expect_eq!(status_kib("VmLck")?, before + LENGTH / 1024);
    // SAFETY: as above.
    expect_eq!(unsafe { libc::munlockall() }, 0);
    map(LENGTH, RW, PRIVATE).or_fail()?;
    expect_eq!(status_kib("VmLck")?, 0);
    Ok(())
}

fn minor_faults(who: libc::c_int) -> usize {
    // SAFETY: a structure of integers; the kernel fills it.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure outlives the call.
    unsafe { libc::getrusage(who, &raw mut usage) };
    usize::try_from(usage.ru_minflt).unwrap_or(0)
}

fn faults_are_counted() -> Outcome {
    const PAGES: usize = 200;
    let start = map(PAGES * PAGE, RW, PRIVATE).or_fail()?;
    let before = [libc::RUSAGE_SELF, libc::RUSAGE_THREAD].map(minor_faults);
    // From the end on: where memory is filled in order, a fault may bring in several pages.
    for page in (start..start + PAGES / 2 * PAGE).step_by(PAGE).rev() {
        // SAFETY: the page is in a mapping of this process that no reference covers.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(page).write_volatile(1) };
    }
    // The kernel's own count too, when it writes for the program.
    let zeros = std::fs::File::open("/dev/zero").or_fail()?;
    let half = start + PAGES / 2 * PAGE;
    // SAFETY: the memory is mapped, and no reference covers it.
    let read = unsafe {
        libc::read(zeros.as_raw_fd(), std::ptr::with_exposed_provenance_mut(half), PAGES / 2 * PAGE)
    };
    expect_eq!(read, (PAGES / 2 * PAGE) as isize);
    for (who, before) in [libc::RUSAGE_SELF, libc::RUSAGE_THREAD].into_iter().zip(before) {
        expect!((PAGES / 2 + 1..2 * PAGES).contains(&(minor_faults(who) - before)));
    }
    let stat = std::fs::read_to_string("/proc/self/stat").or_fail()?;
    let shown =
        stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(7)?.parse::<usize>().ok());
    expect!(shown > Some(before[0] + PAGES / 2));
    Ok(())
}
