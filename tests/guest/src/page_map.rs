//! `/proc/PID/io` and `/proc/PID/pagemap`, proc(5).

#![allow(unsafe_code)] // Memory whose pages are looked at.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};

use nix::errno::Errno;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Gid, Uid, pipe, setresgid, setresuid};

use crate::harness::{OrFail, Outcome, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    reads_and_writes_are_counted
    calls_count_whatever_comes_of_them
    copies_count_as_both
    what_children_moved_counts_once_they_are_waited_for
    each_thread_has_its_own_counts
    counts_are_for_who_may_look
    pages_tell_what_is_behind_them
    pages_of_objects_are_told_apart
    frames_are_for_the_privileged
    page_maps_are_read_by_whole_entries
}

const PAGE: usize = 4096;
const SOFT_DIRTY: u64 = 1 << 55;
const EXCLUSIVE: u64 = 1 << 56;
const OF_OBJECT: u64 = 1 << 61;
const SWAPPED: u64 = 1 << 62;
const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;

/// Bytes read and written, calls that read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts([u64; 4]);

impl std::ops::Sub for Counts {
    type Output = [u64; 4];

    fn sub(self, before: Self) -> [u64; 4] {
        std::array::from_fn(|index| self.0[index] - before.0[index])
    }
}

/// The counts in an open file, which one read shows, and its length.
fn counts(file: &File) -> Result<(Counts, u64), String> {
    let mut bytes = [0; 512];
    let length = file.read_at(&mut bytes, 0).or_fail()?;
    let text = std::str::from_utf8(&bytes[..length]).or_fail()?;
    let names: Vec<&str> = text.lines().filter_map(|line| line.split_once(": ")).map(|line| line.0).collect();
    let expected = ["rchar", "wchar", "syscr", "syscw", "read_bytes", "write_bytes", "cancelled_write_bytes"];
    expect_eq!(names, expected);
    let mut values = text.lines().filter_map(|line| line.split_once(": ")?.1.parse().ok());
    Ok((Counts(std::array::from_fn(|_| values.next().unwrap_or(u64::MAX))), length as u64))
}

/// The amounts that `work` added to the counts of the process.
fn added(work: impl FnOnce() -> Result<(), Errno>) -> Result<[u64; 4], String> {
    let file = File::open("/proc/self/io").or_fail()?;
    let (before, length) = counts(&file)?;
    work().or_fail()?;
    let [read, written, reads, writes] = counts(&file)?.0 - before;
    // The look itself is a read that counts once it is over.
    Ok([read - length, written, reads - 1, writes])
}

fn reads_and_writes_are_counted() -> Outcome {
    let (from, to) = pipe().or_fail()?;
    let mut bytes = [0; 100];
    let total = added(|| {
        nix::unistd::write(&to, &[7; 60])?;
        nix::unistd::write(&to, &[7; 4])?;
        nix::unistd::read(&from, &mut bytes)?;
        Ok(())
    })?;
    expect_eq!(total, [64, 64, 1, 2]);
    let scratch = crate::harness::Scratch::new("io")?;
    let file =
        File::options().read(true).write(true).create_new(true).open(scratch.path("file")).or_fail()?;
    let large = vec![1_u8; 100_000];
    let total = added(|| {
        // SAFETY: memory of the test.
        unsafe {
            Errno::result(libc::pwrite(file.as_raw_fd(), large.as_ptr().cast(), large.len(), 5))?;
            let pieces = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 10 }; 3];
            Errno::result(libc::preadv(file.as_raw_fd(), pieces.as_ptr(), 3, 0))?;
            Errno::result(libc::pread(file.as_raw_fd(), bytes.as_mut_ptr().cast(), 100, 1 << 30))?;
        }
        Ok(())
    })?;
    expect_eq!(total, [30, 100_000, 2, 1]);
    Ok(())
}

fn calls_count_whatever_comes_of_them() -> Outcome {
    let (from, to) = pipe().or_fail()?;
    // SAFETY: no pointers are passed.
    unsafe { libc::fcntl(from.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    let mut bytes = [0; 10];
    let total = added(|| {
        assert_eq!(nix::unistd::read(&from, &mut bytes), Err(Errno::EAGAIN));
        // SAFETY: memory of the test, and descriptors that are not there or for something else.
        unsafe {
            assert!(libc::read(-1, bytes.as_mut_ptr().cast(), 10) < 0);
            assert!(libc::read(to.as_raw_fd(), bytes.as_mut_ptr().cast(), 10) < 0);
        }
        Ok(())
    })?;
    expect_eq!(total, [0, 0, 1, 0]);
    Ok(())
}

fn copies_count_as_both() -> Outcome {
    // In a tmpfs: Linux's overlay counts what it hands on a second time.
    let path = format!("/dev/shm/copies-{}", std::process::id());
    fs::write(&path, [3; 5000]).or_fail()?;
    let from = File::open(&path).or_fail()?;
    fs::remove_file(&path).or_fail()?;
    let to = File::options().read(true).write(true).create_new(true).open(&path).or_fail()?;
    fs::remove_file(&path).or_fail()?;
    let (_source, sink) = pipe().or_fail()?;
    let total = added(|| {
        // SAFETY: no memory is passed.
        unsafe {
            let none = std::ptr::null_mut();
            Errno::result(libc::sendfile(to.as_raw_fd(), from.as_raw_fd(), none, 3000))?;
            let (none, other) = (std::ptr::null_mut(), std::ptr::null_mut());
            Errno::result(libc::copy_file_range(from.as_raw_fd(), none, to.as_raw_fd(), other, 9000, 0))?;
        }
        Ok(())
    })?;
    expect_eq!(total, [5000, 5000, 2, 2]);
    std::io::Seek::rewind(&mut &from).or_fail()?;
    let total = added(|| {
        // SAFETY: no memory is passed.
        unsafe {
            let (none, other) = (std::ptr::null_mut(), std::ptr::null_mut());
            Errno::result(libc::splice(from.as_raw_fd(), none, sink.as_raw_fd(), other, 1000, 0))?;
        }
        Ok(())
    })?;
    expect_eq!(total, [0, 0, 0, 0]);
    Ok(())
}

fn what_children_moved_counts_once_they_are_waited_for() -> Outcome {
    let mut zero = File::open("/dev/zero").or_fail()?;
    let (_from, to) = pipe().or_fail()?;
    let child = {
        let (ready, wait) = pipe().or_fail()?;
        let child = spawn_child(|| {
            let mut bytes = [0; 1000];
            let read = zero.read_exact(&mut bytes);
            let _ = nix::unistd::write(&wait, &[1]);
            i32::from(read.is_err())
        })?;
        let mut byte = [0];
        nix::unistd::read(&ready, &mut byte).or_fail()?;
        child
    };
    let mut status = None;
    let total = added(|| {
        status = Some(waitpid(child, None)?);
        Ok(())
    })?;
    expect_eq!(status, Some(WaitStatus::Exited(child, 0)));
    expect!(total[0] >= 1000 && total[1] >= 1 && total[2] >= 1 && total[3] >= 1);
    drop(to);
    Ok(())
}

fn each_thread_has_its_own_counts() -> Outcome {
    let thread = std::thread::spawn(|| -> Result<(), String> {
        let file = File::open("/proc/thread-self/io").or_fail()?;
        let (before, length) = counts(&file)?;
        let mut zero = File::open("/dev/zero").or_fail()?;
        zero.read_exact(&mut [0; 777]).or_fail()?;
        let after = counts(&file)?.0 - before;
        expect_eq!(after, [length + 777, 0, 2, 0]);
        Ok(())
    });
    let mut result = Ok(());
    let total = added(|| {
        result = thread.join().unwrap_or(Err(String::from("a thread")));
        Ok(())
    })?;
    result?;
    expect!(total[0] >= 777);
    Ok(())
}

fn counts_are_for_who_may_look() -> Outcome {
    for name in ["io", "pagemap"] {
        let mode = fs::metadata(format!("/proc/self/{name}")).or_fail()?.permissions().mode();
        expect_eq!(mode & 0o777, 0o400);
    }
    let child = spawn_child(|| {
        let attempt = || {
            setresgid(Gid::from_raw(78), Gid::from_raw(78), Gid::from_raw(78))?;
            setresuid(Uid::from_raw(78), Uid::from_raw(78), Uid::from_raw(78))
        };
        let is_denied = |path: &str| match File::open(path) {
            Ok(mut file) => file.read(&mut [0; 8]).is_err(),
            Err(_) => true,
        };
        i32::from(attempt().is_err() || !is_denied("/proc/1/io") || !is_denied("/proc/1/pagemap"))
    })?;
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
    expect!(File::options().write(true).open("/proc/self/io").or_fail()?.write(b"x").is_err());
    Ok(())
}

/// Memory of the test.
struct Memory {
    start: *mut u8,
    pages: usize,
}

impl Memory {
    fn new(pages: usize, flags: i32, file: i32) -> Result<Self, String> {
        let both = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE, both, flags, file, 0) };
        if start == libc::MAP_FAILED {
            Err(Errno::last().to_string())
        } else {
            Ok(Self { start: start.cast(), pages })
        }
    }

    fn anonymous(pages: usize) -> Result<Self, String> {
        Self::new(pages, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    fn read(&self, page: usize) -> u8 {
        // SAFETY: the page is the test's.
        unsafe { self.start.add(page * PAGE).read_volatile() }
    }

    fn write(&self, page: usize) {
        // SAFETY: the page is the test's.
        unsafe { self.start.add(page * PAGE).write_volatile(1) };
    }

    /// The entries of its pages.
    fn entries(&self, map: &File) -> Result<Vec<u64>, String> {
        let mut bytes = vec![0; self.pages * 8];
        let offset = (self.start.addr() / PAGE * 8) as u64;
        expect_eq!(map.read_at(&mut bytes, offset).or_fail()?, bytes.len());
        Ok(bytes
            .chunks_exact(8)
            .map(|entry| u64::from_ne_bytes(entry.try_into().unwrap_or_default()))
            .collect())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the memory is the test's.
        unsafe { libc::munmap(self.start.cast(), self.pages * PAGE) };
    }
}

fn pages_tell_what_is_behind_them() -> Outcome {
    let map = File::open("/proc/self/pagemap").or_fail()?;
    let memory = Memory::anonymous(5)?;
    memory.write(1);
    expect_eq!(memory.read(2), 0);
    // SAFETY: the page is the test's.
    unsafe { libc::munmap(memory.start.add(4 * PAGE).cast(), PAGE) };
    let entries = memory.entries(&map)?;
    let kinds: Vec<u64> = entries.iter().map(|entry| entry & !FRAME).collect();
    let dirty = SOFT_DIRTY;
    expect_eq!(kinds, [dirty, PRESENT | dirty | EXCLUSIVE, PRESENT | dirty, dirty, 0]);
    expect_eq!(
        entries.iter().map(|entry| entry & FRAME != 0).collect::<Vec<_>>(),
        [false, true, true, false, false]
    );
    // Two processes have the page until one writes to it.
    let (ready, wait) = pipe().or_fail()?;
    let child = spawn_child(|| {
        let _ = nix::unistd::read(&ready, &mut [0]);
        0
    })?;
    let shared = memory.entries(&map)?[1];
    expect_eq!(shared & !FRAME, PRESENT | dirty);
    memory.write(1);
    let own = memory.entries(&map)?[1];
    expect_eq!(own & !FRAME, PRESENT | dirty | EXCLUSIVE);
    expect!(own & FRAME != shared & FRAME);
    nix::unistd::write(&wait, &[1]).or_fail()?;
    waitpid(child, None).or_fail()?;
    expect_eq!(own & SWAPPED, 0);
    Ok(())
}

fn pages_of_objects_are_told_apart() -> Outcome {
    let map = File::open("/proc/self/pagemap").or_fail()?;
    let shared = Memory::new(2, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1)?;
    shared.write(0);
    let entries = shared.entries(&map)?;
    expect_eq!(entries[0] & !FRAME, PRESENT | SOFT_DIRTY | EXCLUSIVE | OF_OBJECT);
    expect_eq!(entries[1], SOFT_DIRTY);
    let scratch = crate::harness::Scratch::new("objects")?;
    fs::write(scratch.path("file"), [5; 2 * PAGE]).or_fail()?;
    let file = File::open(scratch.path("file")).or_fail()?;
    let private = Memory::new(2, libc::MAP_PRIVATE, file.as_raw_fd())?;
    expect_eq!(private.read(0), 5);
    expect_eq!(private.read(1), 5);
    private.write(1);
    let entries = private.entries(&map)?;
    expect_eq!(entries[0] & (PRESENT | OF_OBJECT), PRESENT | OF_OBJECT);
    expect_eq!(entries[1] & !FRAME, PRESENT | SOFT_DIRTY | EXCLUSIVE);
    // One frame has one number.
    let other = Memory::new(1, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1)?;
    other.write(0);
    expect!(other.entries(&map)?[0] & FRAME != shared.entries(&map)?[0] & FRAME);
    Ok(())
}

fn frames_are_for_the_privileged() -> Outcome {
    let memory = Memory::anonymous(1)?;
    memory.write(0);
    let opened = File::open("/proc/self/pagemap").or_fail()?;
    expect!(memory.entries(&opened)?[0] & FRAME != 0);
    let child = spawn_child(|| {
        let attempt = || -> Result<(), String> {
            setresgid(Gid::from_raw(78), Gid::from_raw(78), Gid::from_raw(78)).or_fail()?;
            setresuid(Uid::from_raw(78), Uid::from_raw(78), Uid::from_raw(78)).or_fail()?;
            // SAFETY: no pointers are passed. The process has changed its user, and may look into itself again.
            unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) };
            memory.write(0);
            let map = File::open("/proc/self/pagemap").or_fail()?;
            expect_eq!(memory.entries(&map)?[0], PRESENT | SOFT_DIRTY | EXCLUSIVE);
            // The opener of the file counts.
            expect!(memory.entries(&opened)?[0] & PRESENT != 0);
            Ok(())
        };
        attempt().map_or_else(
            |error| {
                eprintln!("{error}");
                1
            },
            |()| 0,
        )
    })?;
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
    Ok(())
}

fn page_maps_are_read_by_whole_entries() -> Outcome {
    let map = File::open("/proc/self/pagemap").or_fail()?;
    let mut bytes = [0; 64];
    for (length, offset) in [(7, 0), (8, 4), (12, 8)] {
        let error = map.read_at(&mut bytes[..length], offset).err().and_then(|error| error.raw_os_error());
        expect_eq!(error, Some(libc::EINVAL));
    }
    expect_eq!(map.read_at(&mut bytes[..0], 0).or_fail()?, 0);
    // The first pages are never mapped, and behind the last there is nothing.
    expect_eq!(map.read_at(&mut bytes, 0).or_fail()?, 64);
    expect_eq!(bytes, [0; 64]);
    expect_eq!(map.read_at(&mut bytes, (1 << 47) / PAGE as u64 * 8).or_fail()?, 0);
    expect!(File::options().write(true).open("/proc/self/pagemap").or_fail()?.write(&[0; 8]).is_err());
    // More than one attempt shows, into memory that begins anywhere.
    let memory = Memory::anonymous(1500)?;
    memory.write(1499);
    let mut bytes = vec![0; 1500 * 8 + 3];
    let offset = (memory.start.addr() / PAGE * 8) as u64;
    expect_eq!(map.read_at(&mut bytes[3..], offset).or_fail()?, 1500 * 8);
    let last = u64::from_ne_bytes(bytes[1499 * 8 + 3..].try_into().unwrap_or_default());
    expect_eq!(last & !FRAME, PRESENT | SOFT_DIRTY | EXCLUSIVE);
    expect!(bytes[3..1499 * 8 + 3].chunks_exact(8).all(|entry| entry == SOFT_DIRTY.to_ne_bytes()));
    Ok(())
}
