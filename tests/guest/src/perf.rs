//! perf_event_open(2): what the kernel counts for a program.
#![allow(unsafe_code, reason = "the call has no safe form")]

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::wait::WaitStatus;

use crate::harness::{OrFail, Outcome, in_child};
use crate::{expect, expect_eq};

crate::tests! {
    arguments_are_checked
    faults_and_switches_are_counted
    time_is_counted_while_it_is_enabled
    groups_are_read_at_once
    children_are_counted_on_request
    a_child_that_cannot_be_made_is_not_kept
    all_events_of_a_thread_at_once
    ordinary_users_count_nothing_by_default
}

const BYTES: usize = 128;
const PAGE: usize = 4096;
const SOFTWARE: u32 = 1;
const TASK_CLOCK: u64 = 1;
const PAGE_FAULTS: u64 = 2;
const SWITCHES: u64 = 3;
const DISABLED: u64 = 1;
const INHERIT: u64 = 2;
const SAMPLE_READ: u64 = 1 << 4;
const ENABLE: libc::c_ulong = 0x2400;
const DISABLE: libc::c_ulong = 0x2401;
const RESET: libc::c_ulong = 0x2403;

/// `struct perf_event_attr`.
#[derive(Clone, Copy)]
struct Attributes([u8; BYTES]);

impl Attributes {
    fn new(config: u64, flags: u64, read_format: u64) -> Self {
        let mut own = Self([0; BYTES]);
        own.put(0, &SOFTWARE.to_ne_bytes());
        own.put(4, &(BYTES as u32).to_ne_bytes());
        own.put(8, &config.to_ne_bytes());
        own.put(32, &read_format.to_ne_bytes());
        own.put(40, &flags.to_ne_bytes());
        own
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn with(mut self, at: usize, bytes: &[u8]) -> Self {
        self.put(at, bytes);
        self
    }
}

fn open(attributes: &mut Attributes, pid: i32, cpu: i32, group: i32, flags: u64) -> Result<File, Errno> {
    // SAFETY: the structure lives during the call.
    let result = unsafe {
        libc::syscall(libc::SYS_perf_event_open, attributes.0.as_mut_ptr(), pid, cpu, group, flags)
    };
    let number = Errno::result(result)?;
    // SAFETY: the descriptor is new.
    Ok(unsafe { OwnedFd::from_raw_fd(number as i32) }.into())
}

fn count(config: u64, flags: u64, format: u64) -> Result<File, String> {
    open(&mut Attributes::new(config, flags, format), 0, -1, -1, 0).or_fail()
}

fn control(event: &File, request: libc::c_ulong, argument: usize) -> Result<(), Errno> {
    // SAFETY: the requests take numbers.
    Errno::result(unsafe { libc::ioctl(event.as_raw_fd(), request, argument) }).map(drop)
}

fn read<const N: usize>(mut event: &File) -> Result<[u64; N], String> {
    let mut words = [[0; 8]; N];
    let length = event.read(words.as_flattened_mut()).or_fail()?;
    expect_eq_or(length, N * 8)?;
    Ok(words.map(u64::from_ne_bytes))
}

fn expect_eq_or(found: usize, expected: usize) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{found} bytes instead of {expected}")) }
}

/// Touches fresh pages.
fn touch(pages: usize) {
    let (both, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: new memory, which nothing else refers to.
    unsafe {
        let start = libc::mmap(std::ptr::null_mut(), pages * PAGE, both, flags, -1, 0);
        if start != libc::MAP_FAILED {
            for page in 0..pages {
                start.cast::<u8>().add(page * PAGE).write_volatile(1);
            }
            libc::munmap(start, pages * PAGE);
        }
    }
}

/// Computes for a while of the thread's own time.
fn compute() {
    let start = Instant::now();
    while start.elapsed().as_millis() < 5 {
        std::hint::black_box(0);
    }
}

fn arguments_are_checked() -> Outcome {
    let fine = Attributes::new(PAGE_FAULTS, 0, 0);
    for (attributes, pid, cpu, group, flags, error) in [
        (fine, 0, -1, -1, 1 << 10, Errno::EINVAL),
        (fine, -1, -1, -1, 0, Errno::EINVAL),
        (fine, 0, 4096, -1, 0, Errno::EINVAL),
        (fine, 0, -1, 1000, 0, Errno::EBADF),
        (fine, 4_000_000, -1, -1, 0, Errno::ESRCH),
        (fine.with(0, &77_u32.to_ne_bytes()), 0, -1, -1, 0, Errno::ENOENT),
        (fine.with(8, &99_u64.to_ne_bytes()), 0, -1, -1, 0, Errno::ENOENT),
        (fine.with(24, &u64::MAX.to_ne_bytes()), 0, -1, -1, 0, Errno::EINVAL),
        (fine.with(32, &0x100_u64.to_ne_bytes()), 0, -1, -1, 0, Errno::EINVAL),
        (fine.with(116, &[1]), 0, -1, -1, 0, Errno::EINVAL),
        (fine.with(16, &u64::MAX.to_ne_bytes()), 0, -1, -1, 0, Errno::EINVAL),
        (
            Attributes::new(PAGE_FAULTS, INHERIT, 0).with(24, &SAMPLE_READ.to_ne_bytes()),
            0,
            -1,
            -1,
            0,
            Errno::EINVAL,
        ),
    ] {
        expect_eq!(open(&mut attributes.clone(), pid, cpu, group, flags).err(), Some(error));
    }
    // A structure that the kernel does not know is too long, and it says how long it may be.
    let mut short = fine.with(4, &8_u32.to_ne_bytes());
    expect_eq!(open(&mut short, 0, -1, -1, 0).err(), Some(Errno::E2BIG));
    expect!(short.0[4] >= 112);
    // SAFETY: nothing lies there, which the call finds.
    let nowhere = unsafe { libc::syscall(libc::SYS_perf_event_open, 8, 0, -1, -1, 0) };
    expect_eq!(Errno::result(nowhere), Err(Errno::EFAULT));
    let event = count(PAGE_FAULTS, 0, 0)?;
    expect_eq!((&event).read(&mut [0; 7]).err().and_then(|error| error.raw_os_error()), Some(libc::ENOSPC));
    // There are no samples that could go to another event.
    let output = open(&mut fine.clone(), 0, -1, event.as_raw_fd(), 2).err();
    expect_eq!(output, Some(Errno::EINVAL));
    expect_eq!(control(&event, 0x2402, 1), Err(Errno::EINVAL));
    expect_eq!(control(&event, 0x24ff, 1), Err(Errno::ENOTTY));
    Ok(())
}

fn faults_and_switches_are_counted() -> Outcome {
    let faults = count(PAGE_FAULTS, 0, 0)?;
    let switches = count(SWITCHES, 0, 0)?;
    let in_program = count(SWITCHES, 1 << 5, 0)?;
    let [before] = read(&faults)?;
    touch(64);
    let [after] = read(&faults)?;
    expect!(after > before);
    let [before] = read(&switches)?;
    for _ in 0..10 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let [after] = read(&switches)?;
    expect!(after >= before + 10);
    // They happen in the kernel.
    expect_eq!(read::<1>(&in_program)?, [0]);
    control(&faults, RESET, 0).or_fail()?;
    let [reset] = read(&faults)?;
    expect!(reset < 64);
    Ok(())
}

fn time_is_counted_while_it_is_enabled() -> Outcome {
    let event = count(TASK_CLOCK, DISABLED, 0b111)?;
    compute();
    let [count, enabled, running, id] = read(&event)?;
    expect_eq!((count, enabled, running), (0, 0, 0));
    expect!(id != 0);
    control(&event, ENABLE, 0).or_fail()?;
    compute();
    control(&event, DISABLE, 0).or_fail()?;
    let [count, enabled, running, _] = read(&event)?;
    expect!(count > 0 && enabled > 0 && running > 0 && running <= enabled);
    compute();
    let [later, later_enabled, _, _] = read(&event)?;
    expect_eq!((later, later_enabled), (count, enabled));
    Ok(())
}

fn groups_are_read_at_once() -> Outcome {
    let leader = count(TASK_CLOCK, DISABLED, 0b1100)?;
    let mut attributes = Attributes::new(PAGE_FAULTS, 0, 0b1100);
    let member = open(&mut attributes, 0, -1, leader.as_raw_fd(), 0).or_fail()?;
    // Nobody is led by who is led.
    expect_eq!(open(&mut attributes, 0, -1, member.as_raw_fd(), 0).err(), Some(Errno::EINVAL));
    expect_eq!(open(&mut attributes, 0, -1, 0, 0).err(), Some(Errno::EBADF));
    touch(64);
    let [events, clock, first, faults, second] = read(&leader)?;
    expect_eq!((events, clock, faults), (2, 0, 0));
    expect!(first != second);
    control(&leader, ENABLE, 0).or_fail()?;
    touch(64);
    let [_, clock, _, faults, _] = read(&leader)?;
    expect!(clock > 0 && faults > 0);
    // Whoever of the group is read, it is told from its leader on.
    let [events, _, id, _, last] = read(&member)?;
    expect_eq!((events, id, last), (2, first, second));
    // A member counts only beside its leader.
    control(&leader, DISABLE, 0).or_fail()?;
    let [_, _, _, before, _] = read(&leader)?;
    touch(64);
    let [_, _, _, after, _] = read(&leader)?;
    expect_eq!(after, before);
    drop(leader);
    let [events, _, id] = read(&member)?;
    expect_eq!((events, id), (1, second));
    Ok(())
}

fn children_are_counted_on_request() -> Outcome {
    let (own, all) = (count(PAGE_FAULTS, 0, 0)?, count(PAGE_FAULTS, INHERIT, 0)?);
    for _ in 0..3 {
        let status = in_child(|| {
            touch(256);
            0
        })?;
        expect!(matches!(status, WaitStatus::Exited(_, 0)));
    }
    let ([own], [all]) = (read(&own)?, read(&all)?);
    expect!(all > own + 3);
    Ok(())
}

fn a_child_that_cannot_be_made_is_not_kept() -> Outcome {
    let event = count(PAGE_FAULTS, INHERIT, 0)?;
    let (mut reader, writer) = std::io::pipe().or_fail()?;
    let status = in_child(|| {
        let limit = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
        // SAFETY: the calls take numbers and a structure that lives.
        let result = unsafe {
            if libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit) != 0 || libc::setuid(65534) != 0 {
                return 1;
            }
            libc::fork()
        };
        if result == 0 {
            // SAFETY: as in any child.
            unsafe { libc::_exit(0) };
        }
        i32::from(Errno::last() != Errno::EAGAIN) * 2
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    drop(writer);
    // Nobody has the other end any more.
    expect_eq!(reader.read(&mut [0]).or_fail()?, 0);
    drop(event);
    Ok(())
}

fn all_events_of_a_thread_at_once() -> Outcome {
    let faults = count(PAGE_FAULTS, 0, 0)?;
    // SAFETY: the call takes numbers.
    unsafe { libc::prctl(libc::PR_TASK_PERF_EVENTS_DISABLE) };
    let [before] = read(&faults)?;
    touch(64);
    expect_eq!(read(&faults)?, [before]);
    // SAFETY: the call takes numbers.
    unsafe { libc::prctl(libc::PR_TASK_PERF_EVENTS_ENABLE) };
    touch(64);
    let [after] = read(&faults)?;
    expect!(after > before);
    Ok(())
}

fn ordinary_users_count_nothing_by_default() -> Outcome {
    let status = in_child(|| {
        // SAFETY: the call takes a number only.
        if unsafe { libc::setuid(65534) } != 0 {
            return 1;
        }
        let opened = open(&mut Attributes::new(PAGE_FAULTS, 0, 0), 0, -1, -1, 0);
        i32::from(opened.err() != Some(Errno::EACCES))
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    Ok(())
}
