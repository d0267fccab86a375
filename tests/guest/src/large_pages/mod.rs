//! Large pages of anonymous memory: who gets them, and that nothing else changes for a program.
#![allow(unsafe_code, reason = "mapping memory has no safe form")]

pub mod stress;

use std::fs;

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};

use crate::harness::{OrFail, Outcome, in_child, is_heddle, skip, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    the_policy_is_shown_and_set
    memory_that_asks_gets_large_pages
    memory_that_does_not_ask_gets_none_without_a_policy
    memory_that_is_filled_in_order_gets_large_pages
    memory_of_which_only_starts_are_touched_gets_few
    a_process_can_do_without
    parts_go_their_own_way
    rights_change_for_a_part_and_for_the_whole
    a_child_has_the_same_pages_until_one_of_them_writes
    a_parent_writes_when_its_child_is_gone
    a_moved_mapping_keeps_its_contents
    another_process_writes_into_a_large_page
    the_page_map_shows_one_block
    memory_counts_exactly
    small_pages_become_a_large_one_when_asked
    the_pool_of_large_pages_is_empty
}

const PAGE: usize = 4096;
const LARGE: usize = 2 << 20;
const LARGE_KIB: u64 = (LARGE / 1024) as u64;
const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// The policy as long as this lives, and the one before afterwards.
struct Policy(String);

impl Policy {
    fn set(name: &str) -> Result<Self, String> {
        let before = chosen(ENABLED)?;
        fs::write(ENABLED, name).or_fail()?;
        Ok(Self(before))
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        let _ = fs::write(ENABLED, &self.0);
    }
}

/// The name in brackets.
fn chosen(path: &str) -> Result<String, String> {
    let text = fs::read_to_string(path).or_fail()?;
    let inner = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inner.map(|(name, _)| name.to_owned()).ok_or(text)
}

/// Memory that begins where a large page can, with unmapped pages around.
struct Memory {
    start: *mut u8,
    length: usize,
}

// SAFETY: threads of the tests use disjoint parts, by volatile accesses.
unsafe impl Sync for Memory {}

impl Memory {
    /// So many large pages' worth, which ask for large pages if they are `advised`.
    fn new(count: usize, advised: bool) -> Result<Self, String> {
        let length = count * LARGE;
        // SAFETY: new memory, of which what is around the aligned part stays without rights.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let around = libc::mmap(std::ptr::null_mut(), length + 2 * LARGE, libc::PROT_NONE, flags, -1, 0);
            Errno::result(around as isize).or_fail()?;
            let start = (around.addr() + PAGE).next_multiple_of(LARGE);
            let start = around.cast::<u8>().wrapping_add(start - around.addr());
            let memory = Self { start, length };
            memory.map(0, length)?;
            if advised {
                memory.advise(0, length, libc::MADV_HUGEPAGE)?;
            }
            Ok(memory)
        }
    }

    fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.length);
        self.start.wrapping_add(offset)
    }

    /// New memory in place of a part.
    fn map(&self, offset: usize, length: usize) -> Outcome {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: in the reserved part, where no reference leads.
        let mapped = unsafe { libc::mmap(self.start.wrapping_add(offset).cast(), length, RW, flags, -1, 0) };
        Errno::result(mapped as isize).map(drop).or_fail()
    }

    fn advise(&self, offset: usize, length: usize, advice: i32) -> Outcome {
        // SAFETY: in the mapping, where no reference leads.
        Errno::result(unsafe { libc::madvise(self.at(offset).cast(), length, advice) }).map(drop).or_fail()
    }

    fn protect(&self, offset: usize, length: usize, rights: i32) -> Outcome {
        // SAFETY: as above.
        Errno::result(unsafe { libc::mprotect(self.at(offset).cast(), length, rights) }).map(drop).or_fail()
    }

    fn unmap(&self, offset: usize, length: usize) -> Outcome {
        // SAFETY: as above.
        Errno::result(unsafe { libc::munmap(self.at(offset).cast(), length) }).map(drop).or_fail()
    }

    fn load(&self, offset: usize) -> u8 {
        // SAFETY: in the mapping, or the test wants the fault.
        unsafe { self.at(offset).read_volatile() }
    }

    fn store(&self, offset: usize, value: u8) {
        // SAFETY: as above.
        unsafe { self.at(offset).write_volatile(value) };
    }

    /// A byte in each page, from the first to the last.
    fn fill(&self) {
        (0..self.length / PAGE).for_each(|page| self.store(page * PAGE, mark(page)));
    }

    fn check(&self, pages: std::ops::Range<usize>) -> Outcome {
        for page in pages {
            let found = (self.load(page * PAGE), self.load(page * PAGE + PAGE - 1));
            if found != (mark(page), 0) {
                return Err(format!("page {page} has {found:?} in place of {:?}", (mark(page), 0)));
            }
        }
        Ok(())
    }

    /// A field of `smaps` for the mappings that lie here, in KiB.
    fn amount(&self, field: &str) -> Result<u64, String> {
        let text = fs::read_to_string("/proc/self/smaps").or_fail()?;
        let own = self.start.addr()..self.start.addr() + self.length;
        let (mut is_own, mut sum) = (false, 0);
        for line in text.lines() {
            let first = line.split_whitespace().next().unwrap_or_default();
            if let Some((start, _)) = first.split_once('-') {
                is_own = usize::from_str_radix(start, 16).is_ok_and(|start| own.contains(&start));
            } else if is_own && first.strip_suffix(':') == Some(field) {
                sum += line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
            }
        }
        Ok(sum)
    }

    fn large_kib(&self) -> Result<u64, String> {
        self.amount("AnonHugePages")
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the test's own mapping, of which nothing is used any more.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

/// The byte that [`Memory::fill`] stores to a page.
fn mark(page: usize) -> u8 {
    (page % 251 + 1) as u8
}

/// Whether what a child does ends it with a signal.
fn faults(body: impl FnOnce()) -> Result<bool, String> {
    let ended = in_child(|| {
        // SAFETY: the default disposition runs no code of ours.
        let _ = unsafe { nix::sys::signal::signal(Signal::SIGSEGV, nix::sys::signal::SigHandler::SigDfl) };
        body();
        0
    })?;
    Ok(matches!(ended, WaitStatus::Signaled(_, Signal::SIGSEGV, _)))
}

/// For values that are read only to see whether the read faults.
fn ignore<T>(_: T) {}

fn the_policy_is_shown_and_set() -> Outcome {
    let folder = "/sys/kernel/mm/transparent_hugepage";
    expect_eq!(fs::read_to_string(format!("{folder}/hpage_pmd_size")).or_fail()?, format!("{LARGE}\n"));
    let efforts = ["always", "defer", "defer+madvise", "madvise", "never"];
    for (file, names) in [("enabled", &["always", "madvise", "never"][..]), ("defrag", &efforts[..])] {
        let path = format!("{folder}/{file}");
        let before = chosen(&path)?;
        for name in names {
            fs::write(&path, format!("{name}\n")).or_fail()?;
            let shown: Vec<String> = names
                .iter()
                .map(|other| if other == name { format!("[{name}]") } else { (*other).to_owned() })
                .collect();
            expect_eq!(fs::read_to_string(&path).or_fail()?, shown.join(" ") + "\n");
        }
        for wrong in ["sometimes", "alway", "always never"] {
            let error = fs::write(&path, wrong).err().and_then(|error| error.raw_os_error());
            expect_eq!(error, Some(libc::EINVAL));
        }
        fs::write(&path, before).or_fail()?;
    }
    Ok(())
}

fn memory_that_asks_gets_large_pages() -> Outcome {
    for policy in ["always", "madvise"] {
        let _policy = Policy::set(policy)?;
        let memory = Memory::new(2, true)?;
        expect_eq!(memory.large_kib()?, 0);
        memory.store(LARGE / 2, 1);
        expect_eq!(memory.large_kib()?, LARGE_KIB);
        expect_eq!(memory.amount("Rss")?, LARGE_KIB);
        expect_eq!(memory.amount("THPeligible")?, 1);
        expect_eq!(memory.load(LARGE / 2), 1);
        expect!((0..LARGE).step_by(512).all(|offset| offset == LARGE / 2 || memory.load(offset) == 0));
        memory.store(2 * LARGE - 1, 1);
        expect_eq!(memory.large_kib()?, 2 * LARGE_KIB);
        memory.advise(0, 2 * LARGE, libc::MADV_DONTNEED)?;
        expect_eq!((memory.large_kib()?, memory.amount("Rss")?), (0, 0));
        expect_eq!(memory.load(LARGE / 2), 0);
    }
    Ok(())
}

fn memory_that_does_not_ask_gets_none_without_a_policy() -> Outcome {
    for (policy, advice) in
        [("never", libc::MADV_HUGEPAGE), ("madvise", libc::MADV_NORMAL), ("always", libc::MADV_NOHUGEPAGE)]
    {
        let _policy = Policy::set(policy)?;
        let memory = Memory::new(4, false)?;
        memory.advise(0, 4 * LARGE, advice)?;
        memory.fill();
        expect_eq!((memory.large_kib()?, memory.amount("Rss")?), (0, 4 * LARGE_KIB));
        expect_eq!(memory.amount("THPeligible")?, 0);
        memory.check(0..4 * LARGE / PAGE)?;
    }
    Ok(())
}

fn memory_that_is_filled_in_order_gets_large_pages() -> Outcome {
    let _policy = Policy::set("always")?;
    let memory = Memory::new(4, false)?;
    let before = shown("/proc/meminfo", "AnonHugePages:")?;
    memory.fill();
    // Linux gives the first, too.
    expect!(memory.large_kib()? >= 3 * LARGE_KIB);
    expect!(shown("/proc/meminfo", "AnonHugePages:")? >= before + 3 * LARGE_KIB);
    expect_eq!(memory.amount("Rss")?, 4 * LARGE_KIB);
    memory.check(0..4 * LARGE / PAGE)?;
    // A buffer that is filled again is large from its beginning.
    memory.advise(0, 4 * LARGE, libc::MADV_DONTNEED)?;
    memory.fill();
    expect_eq!(memory.large_kib()?, 4 * LARGE_KIB);
    memory.check(0..4 * LARGE / PAGE)
}

fn memory_of_which_only_starts_are_touched_gets_few() -> Outcome {
    const COUNT: usize = 40;
    if !is_heddle() {
        skip("Linux gives a large page for each touch");
        return Ok(());
    }
    let _policy = Policy::set("always")?;
    let memory = Memory::new(COUNT, false)?;
    // A walk that has got a large page, and goes no further.
    (0..LARGE / PAGE + 1).for_each(|page| memory.store(page * PAGE, mark(page)));
    expect_eq!(memory.large_kib()?, LARGE_KIB);
    (2..COUNT).for_each(|number| memory.store(number * LARGE, 1));
    expect!(memory.large_kib()? <= 3 * LARGE_KIB);
    Ok(())
}

/// The number behind a name at the start of a line.
fn shown(path: &str, name: &str) -> Result<u64, String> {
    let text = fs::read_to_string(path).or_fail()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let word = line.and_then(|line| line.split_whitespace().next());
    word.and_then(|word| word.parse().ok()).ok_or_else(|| format!("{path} has no {name}"))
}

fn a_process_can_do_without() -> Outcome {
    let _policy = Policy::set("always")?;
    // SAFETY: no pointers.
    let prctl = |name, value: libc::c_ulong| unsafe { libc::prctl(name, value, 0, 0, 0) };
    expect_eq!(prctl(libc::PR_SET_THP_DISABLE, 1), 0);
    let try_one = || -> Result<u64, String> {
        let memory = Memory::new(1, true)?;
        memory.store(0, 1);
        memory.large_kib()
    };
    expect_eq!(try_one()?, 0);
    expect!(matches!(in_child(|| i32::from(try_one() != Ok(0)))?, WaitStatus::Exited(_, 0)));
    expect_eq!(prctl(libc::PR_SET_THP_DISABLE, 0), 0);
    expect_eq!(try_one()?, LARGE_KIB);
    Ok(())
}

fn parts_go_their_own_way() -> Outcome {
    let _policy = Policy::set("madvise")?;
    let memory = Memory::new(3, true)?;
    memory.fill();
    expect_eq!(memory.large_kib()?, 3 * LARGE_KIB);
    // In the first a page goes that comes again as zeros.
    memory.advise(5 * PAGE, PAGE, libc::MADV_DONTNEED)?;
    expect_eq!(memory.large_kib()?, 2 * LARGE_KIB);
    expect_eq!(memory.amount("Rss")?, 3 * LARGE_KIB - 4);
    expect_eq!(memory.load(5 * PAGE), 0);
    memory.check(0..5)?;
    memory.check(6..LARGE / PAGE)?;
    // The second ends in the midst.
    memory.unmap(LARGE + LARGE / 2, LARGE / 2)?;
    expect_eq!(memory.large_kib()?, LARGE_KIB);
    memory.check(LARGE / PAGE..LARGE / PAGE * 3 / 2)?;
    expect!(faults(|| ignore(memory.load(LARGE + LARGE / 2)))?);
    // Other memory comes in place of a part of the third.
    memory.map(2 * LARGE + 7 * PAGE, 2 * PAGE)?;
    expect_eq!(memory.load(2 * LARGE + 7 * PAGE), 0);
    let third = 2 * LARGE / PAGE;
    memory.check(third..third + 7)?;
    memory.check(third + 9..third + LARGE / PAGE)?;
    expect_eq!(memory.large_kib()?, 0);
    // Stores go to the same pages as before.
    memory.store(6 * PAGE, 77);
    expect_eq!(memory.load(6 * PAGE), 77);
    Ok(())
}

fn rights_change_for_a_part_and_for_the_whole() -> Outcome {
    let _policy = Policy::set("madvise")?;
    let memory = Memory::new(2, true)?;
    memory.fill();
    memory.protect(0, LARGE, libc::PROT_READ)?;
    expect!(faults(|| memory.store(3 * PAGE, 9))?);
    expect!(!faults(|| memory.store(LARGE, 9))?);
    memory.check(0..LARGE / PAGE)?;
    expect_eq!(memory.large_kib()?, 2 * LARGE_KIB);
    memory.protect(0, LARGE, libc::PROT_NONE)?;
    expect!(faults(|| ignore(memory.load(3 * PAGE)))?);
    memory.protect(0, LARGE, RW)?;
    memory.check(0..LARGE / PAGE)?;
    memory.store(0, mark(0));
    // A part without a right, beside one with all of them.
    memory.protect(8 * PAGE, 8 * PAGE, libc::PROT_READ)?;
    for page in [0, 7, 16, 511] {
        memory.store(page * PAGE, mark(page));
    }
    for page in [8, 15] {
        expect!(faults(|| memory.store(page * PAGE, 9))?);
    }
    memory.check(0..LARGE / PAGE)?;
    // A right that a part lacks does not come back with that of the rest.
    memory.protect(LARGE, LARGE, libc::PROT_READ)?;
    memory.protect(LARGE, LARGE / 2, RW)?;
    memory.store(LARGE, mark(LARGE / PAGE));
    expect!(faults(|| memory.store(LARGE + LARGE / 2, 9))?);
    // Instructions.
    memory.protect(0, 2 * LARGE, RW | libc::PROT_EXEC)?;
    memory.check(0..2 * LARGE / PAGE)
}

fn a_child_has_the_same_pages_until_one_of_them_writes() -> Outcome {
    let _policy = Policy::set("madvise")?;
    let memory = Memory::new(2, true)?;
    memory.fill();
    let pages = 2 * LARGE / PAGE;
    let ended = in_child(|| {
        let work = || -> Outcome {
            memory.check(0..pages)?;
            expect_eq!(memory.large_kib()?, 2 * LARGE_KIB);
            memory.store(9 * PAGE, 200);
            memory.check(0..9)?;
            memory.check(10..pages)?;
            expect_eq!(memory.load(9 * PAGE), 200);
            // A grandchild of pages of both kinds.
            let inner = in_child(|| {
                memory.store(10 * PAGE, 201);
                memory.store(LARGE, 202);
                i32::from(memory.check(11..LARGE / PAGE).is_err() || memory.load(9 * PAGE) != 200)
            })?;
            expect!(matches!(inner, WaitStatus::Exited(_, 0)));
            memory.check(10..pages)
        };
        work().inspect_err(|error| eprintln!("{error}")).is_err().into()
    })?;
    expect!(matches!(ended, WaitStatus::Exited(_, 0)));
    memory.check(0..pages)?;
    // The parent writes while the child looks on.
    let (reader, writer) = nix::unistd::pipe().or_fail()?;
    let child = spawn_child(|| {
        let told = nix::unistd::read(&reader, &mut [0]) == Ok(1);
        i32::from(!told || memory.check(0..pages).is_err())
    })?;
    memory.store(0, 210);
    memory.store(LARGE + 5 * PAGE, 211);
    nix::unistd::write(&writer, b"x").or_fail()?;
    expect!(matches!(waitpid(child, None).or_fail()?, WaitStatus::Exited(_, 0)));
    expect_eq!((memory.load(0), memory.load(LARGE + 5 * PAGE)), (210, 211));
    memory.check(1..LARGE / PAGE)
}

fn a_parent_writes_when_its_child_is_gone() -> Outcome {
    let _policy = Policy::set("madvise")?;
    let memory = Memory::new(1, true)?;
    memory.fill();
    for round in 0..3 {
        expect!(matches!(in_child(|| i32::from(memory.check(1..512).is_err()))?, WaitStatus::Exited(_, 0)));
        memory.store(0, round);
        memory.check(1..512)?;
        expect_eq!(memory.load(0), round);
    }
    expect_eq!(memory.amount("Rss")?, LARGE_KIB);
    // The page is whole again, unless the child's memory went too late.
    let mut is_whole = false;
    for _ in 0..8 {
        let memory = Memory::new(1, true)?;
        memory.fill();
        expect!(matches!(in_child(|| 0)?, WaitStatus::Exited(_, 0)));
        std::thread::sleep(std::time::Duration::from_millis(30));
        memory.store(0, mark(0));
        memory.store(LARGE - PAGE, mark(511));
        memory.check(0..512)?;
        is_whole |= memory.large_kib()? == LARGE_KIB;
    }
    expect!(is_whole);
    // A child that keeps a page of its own leaves the others to the parent.
    expect!(matches!(
        in_child(|| {
            memory.store(PAGE, 99);
            i32::from(memory.load(PAGE) != 99)
        })?,
        WaitStatus::Exited(_, 0)
    ));
    memory.store(2 * PAGE, mark(2));
    memory.check(1..512)
}

fn a_moved_mapping_keeps_its_contents() -> Outcome {
    let _policy = Policy::set("madvise")?;
    for offset in [0, 3 * PAGE] {
        let (memory, target) = (Memory::new(2, true)?, Memory::new(3, true)?);
        memory.fill();
        // The target may have pages already.
        target.store(0, 1);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both are the test's own.
        let moved = unsafe {
            libc::mremap(memory.at(0).cast(), 2 * LARGE, 2 * LARGE, flags, target.at(offset).cast::<u8>())
        };
        expect_eq!(moved.cast::<u8>(), target.at(offset));
        let moved = Memory { start: target.at(offset), length: 2 * LARGE };
        moved.check(0..2 * LARGE / PAGE)?;
        if offset == 0 {
            // Otherwise it may be one mapping with what is before it.
            expect_eq!(moved.amount("Rss")?, 2 * LARGE_KIB);
        }
        moved.store(LARGE, 88);
        expect_eq!(moved.load(LARGE), 88);
        expect!(faults(|| ignore(memory.load(0)))?);
    }
    Ok(())
}

fn another_process_writes_into_a_large_page() -> Outcome {
    let _policy = Policy::set("madvise")?;
    let memory = Memory::new(1, true)?;
    memory.fill();
    let (reader, writer) = nix::unistd::pipe().or_fail()?;
    let child = spawn_child(|| {
        let told = nix::unistd::read(&reader, &mut [0]) == Ok(1);
        let is_written = memory.load(4 * PAGE) == 7 && memory.load(5 * PAGE - 1) == 7;
        i32::from(!told || !is_written || memory.check(5..512).is_err())
    })?;
    let bytes = [7_u8; PAGE];
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: PAGE };
    let remote = libc::iovec { iov_base: memory.at(4 * PAGE).cast(), iov_len: PAGE };
    // SAFETY: the bytes are read only; the other memory is the child's.
    let written =
        unsafe { libc::process_vm_writev(child.as_raw(), &raw const local, 1, &raw const remote, 1, 0) };
    expect_eq!(Errno::result(written).or_fail()?, PAGE as isize);
    nix::unistd::write(&writer, b"x").or_fail()?;
    expect!(matches!(waitpid(child, None).or_fail()?, WaitStatus::Exited(_, 0)));
    memory.check(0..512)
}

fn the_page_map_shows_one_block() -> Outcome {
    use std::os::unix::fs::FileExt;
    let _policy = Policy::set("madvise")?;
    let memory = Memory::new(1, true)?;
    memory.store(0, 1);
    let mut bytes = vec![0; LARGE / PAGE * 8];
    let file = fs::File::open("/proc/self/pagemap").or_fail()?;
    file.read_exact_at(&mut bytes, (memory.start.addr() / PAGE * 8) as u64).or_fail()?;
    let entries: Vec<u64> =
        bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default())).collect();
    let frame = |entry: u64| entry & ((1 << 55) - 1);
    expect_eq!(frame(entries[0]) % 512, 0);
    expect!(
        entries.iter().enumerate().all(|(index, &entry)| frame(entry) == frame(entries[0]) + index as u64)
    );
    // Present and exclusive.
    expect!(entries.iter().all(|entry| entry >> 63 == 1 && entry >> 56 & 1 == 1));
    Ok(())
}

fn memory_counts_exactly() -> Outcome {
    let _policy = Policy::set("madvise")?;
    let resident = || -> Result<u64, String> { shown("/proc/self/status", "VmRSS:") };
    // Linux notes single pages now and then only, by processor.
    let tolerance = if is_heddle() { 256 } else { 2048 };
    let check = |found: u64, wanted: u64| {
        if found.abs_diff(wanted) <= tolerance {
            Ok(())
        } else {
            Err(format!("{found} in place of {wanted}"))
        }
    };
    let memory = Memory::new(4, true)?;
    let before = resident()?;
    memory.fill();
    let filled = resident()?;
    check(filled, before + 4 * LARGE_KIB)?;
    memory.unmap(0, LARGE)?;
    memory.unmap(LARGE + 16 * PAGE, 16 * PAGE)?;
    memory.advise(2 * LARGE, PAGE, libc::MADV_DONTNEED)?;
    check(resident()?, before + 3 * LARGE_KIB - 64 - 4)?;
    let peak = shown("/proc/self/status", "VmHWM:")?;
    expect!(peak >= filled);
    memory.unmap(0, 4 * LARGE)?;
    check(resident()?, before)
}

fn small_pages_become_a_large_one_when_asked() -> Outcome {
    const COLLAPSE: i32 = 25;
    let _policy = Policy::set("never")?;
    let memory = Memory::new(3, false)?;
    memory.fill();
    // Pages of all kinds: copied by a child, not there, read only.
    let child = spawn_child(|| {
        memory.store(0, 9);
        nix::unistd::pause();
        0
    })?;
    // Linux wants a page in each to which it can store.
    for page in [1, 513, 1025] {
        memory.store(page * PAGE, mark(page));
    }
    memory.advise(2 * PAGE, PAGE, libc::MADV_DONTNEED)?;
    memory.advise(3 * PAGE, PAGE, libc::MADV_DONTNEED)?;
    expect_eq!(memory.load(3 * PAGE), 0);
    memory.advise(PAGE, 3 * LARGE - 2 * PAGE, COLLAPSE)?;
    expect_eq!(memory.large_kib()?, LARGE_KIB);
    memory.advise(0, 3 * LARGE, COLLAPSE)?;
    expect_eq!((memory.large_kib()?, memory.amount("Rss")?), (3 * LARGE_KIB, 3 * LARGE_KIB));
    expect_eq!((memory.load(2 * PAGE), memory.load(3 * PAGE)), (0, 0));
    memory.store(0, mark(0));
    memory.check(0..2)?;
    memory.check(4..3 * LARGE / PAGE)?;
    nix::sys::signal::kill(child, Signal::SIGKILL).or_fail()?;
    waitpid(child, None).or_fail()?;
    memory.check(4..3 * LARGE / PAGE)?;
    // Not where it must not be.
    memory.advise(0, LARGE, libc::MADV_NOHUGEPAGE)?;
    memory.advise(0, PAGE, libc::MADV_DONTNEED)?;
    // SAFETY: in the mapping.
    let refused = unsafe { libc::madvise(memory.at(0).cast(), LARGE, COLLAPSE) };
    expect_eq!(Errno::result(refused), Err(Errno::EINVAL));
    Ok(())
}

fn the_pool_of_large_pages_is_empty() -> Outcome {
    expect_eq!(shown("/proc/meminfo", "HugePages_Total:")?, 0);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
    for (size, error) in [(0, Errno::ENOMEM), (21, Errno::ENOMEM), (24, Errno::EINVAL)] {
        let flags = flags | size << libc::MAP_HUGE_SHIFT;
        // SAFETY: a new mapping disturbs no object.
        let mapped = unsafe { libc::mmap(std::ptr::null_mut(), LARGE, RW, flags, -1, 0) };
        expect_eq!(Errno::result(mapped as isize), Err(error));
    }
    Ok(())
}
