//! How much memory a process takes: `/proc/PID/smaps`, `/proc/PID/smaps_rollup`.
#![allow(unsafe_code, reason = "mapping memory has no safe form")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};

use nix::sys::wait::waitpid;
use nix::unistd::pipe;

use crate::harness::{OrFail, Outcome, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    touched_pages_are_counted
    a_child_shares_pages_until_one_writes
    shared_memory_is_shared_by_who_touched_it
    sums_are_right
}

const PAGE: usize = 4096;
const PAGES: usize = 16;
const KIB: u64 = (PAGES * PAGE / 1024) as u64;

/// Memory that no neighbour's mapping is merged with.
struct Memory(*mut u8);

impl Memory {
    fn new(kind: i32) -> Result<Self, String> {
        let map = |address: *mut libc::c_void, pages: usize, protection, flags| {
            // SAFETY: new memory, or a part of what was just reserved.
            let at =
                unsafe { libc::mmap(address, pages * PAGE, protection, flags | libc::MAP_ANONYMOUS, -1, 0) };
            if at == libc::MAP_FAILED { Err(String::from("no memory")) } else { Ok(at.cast::<u8>()) }
        };
        let around = map(std::ptr::null_mut(), PAGES + 2, libc::PROT_NONE, libc::MAP_PRIVATE)?;
        let start = around.wrapping_add(PAGE);
        map(start.cast(), PAGES, libc::PROT_READ | libc::PROT_WRITE, kind | libc::MAP_FIXED).map(Self)
    }

    fn touch(&self, pages: usize) {
        for page in 0..pages {
            // SAFETY: in the mapping.
            unsafe { self.0.add(page * PAGE).write_volatile(1) };
        }
    }

    fn usage(&self) -> Result<BTreeMap<String, u64>, String> {
        let text = fs::read_to_string("/proc/self/smaps").or_fail()?;
        let start = format!("{:08x}-", self.0.addr());
        let all = parse(&text);
        all.into_iter().find(|(head, _)| head.starts_with(&start)).map(|(_, fields)| fields).ok_or(text)
    }

    /// `Rss`, `Pss`, `Shared_Dirty`, `Private_Dirty`.
    fn amounts(&self) -> Result<[u64; 4], String> {
        let usage = self.usage()?;
        Ok(["Rss", "Pss", "Shared_Dirty", "Private_Dirty"]
            .map(|name| usage.get(name).copied().unwrap_or(u64::MAX)))
    }
}

/// Each mapping's line, and its amounts in KiB.
fn parse(text: &str) -> Vec<(String, BTreeMap<String, u64>)> {
    let mut mappings: Vec<(String, BTreeMap<String, u64>)> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        match (first.strip_suffix(':'), mappings.last_mut()) {
            (Some(name), Some((_, fields))) => {
                if let Some(value) = words.next().and_then(|word| word.parse().ok()) {
                    fields.insert(name.to_owned(), value);
                }
            }
            _ => mappings.push((line.to_owned(), BTreeMap::new())),
        }
    }
    mappings
}

fn touched_pages_are_counted() -> Outcome {
    let memory = Memory::new(libc::MAP_PRIVATE)?;
    expect_eq!(memory.amounts()?, [0, 0, 0, 0]);
    memory.touch(5);
    expect_eq!(memory.amounts()?, [20, 20, 0, 20]);
    memory.touch(PAGES);
    let usage = memory.usage()?;
    expect_eq!(
        (usage["Size"], usage["Rss"], usage["Anonymous"], usage["Private_Dirty"]),
        (KIB, KIB, KIB, KIB)
    );
    expect_eq!((usage["KernelPageSize"], usage["Swap"], usage["Shared_Clean"]), (4, 0, 0));
    // SAFETY: the mapping.
    unsafe { libc::madvise(memory.0.cast(), PAGE, libc::MADV_DONTNEED) };
    expect_eq!(memory.amounts()?, [KIB - 4, KIB - 4, 0, KIB - 4]);
    Ok(())
}

/// A child that runs `body` and then stays until it is told to end.
fn with_child(body: impl Fn(), look: impl FnOnce() -> Outcome) -> Outcome {
    let (ready, says_ready) = pipe().or_fail()?;
    let (end, says_end) = pipe().or_fail()?;
    let child = spawn_child(|| {
        body();
        let _ = nix::unistd::write(&says_ready, b"x");
        let _ = nix::unistd::read(&end, &mut [0]);
        0
    })?;
    File::from(ready).read_exact(&mut [0]).or_fail()?;
    let result = look();
    File::from(says_end).write_all(b"x").or_fail()?;
    waitpid(child, None).or_fail()?;
    result
}

/// Whether all pages are the process's own again. A child that was waited for gives its pages back when no other CPU
/// can have them in its TLB, which may be a moment later.
fn is_unshared_soon(memory: &Memory) -> Outcome {
    const LOOKS: usize = 500;
    for _ in 0..LOOKS {
        if memory.amounts()? == [KIB, KIB, 0, KIB] {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    expect_eq!(memory.amounts()?, [KIB, KIB, 0, KIB]);
    Ok(())
}

fn a_child_shares_pages_until_one_writes() -> Outcome {
    let memory = Memory::new(libc::MAP_PRIVATE)?;
    memory.touch(PAGES);
    with_child(
        || {},
        || {
            expect_eq!(memory.amounts()?, [KIB, KIB / 2, KIB, 0]);
            Ok(())
        },
    )?;
    with_child(
        || memory.touch(4),
        || {
            expect_eq!(memory.amounts()?, [KIB, 16 + (KIB - 16) / 2, KIB - 16, 16]);
            Ok(())
        },
    )?;
    is_unshared_soon(&memory)
}

fn shared_memory_is_shared_by_who_touched_it() -> Outcome {
    let memory = Memory::new(libc::MAP_SHARED)?;
    memory.touch(PAGES);
    expect_eq!(memory.amounts()?, [KIB, KIB, 0, KIB]);
    with_child(
        || memory.touch(PAGES),
        || {
            expect_eq!(memory.amounts()?, [KIB, KIB / 2, KIB, 0]);
            expect!(memory.usage()?["Anonymous"] == 0);
            Ok(())
        },
    )?;
    is_unshared_soon(&memory)
}

fn sums_are_right() -> Outcome {
    let memory = Memory::new(libc::MAP_PRIVATE)?;
    memory.touch(PAGES);
    let parts = ["Shared_Clean", "Shared_Dirty", "Private_Clean", "Private_Dirty"];
    for (head, fields) in parse(&fs::read_to_string("/proc/self/smaps").or_fail()?) {
        // Linux's mappings of devices and of its own pages have no memory.
        let sum: u64 = parts.iter().map(|part| fields[*part]).sum();
        if sum != fields["Rss"] || fields["Pss"] > fields["Rss"] || fields["Rss"] > fields["Size"] {
            return Err(format!("{head}: {fields:?}"));
        }
    }
    let text = fs::read_to_string("/proc/self/smaps_rollup").or_fail()?;
    let [(head, fields)] = &parse(&text)[..] else { return Err(text) };
    expect!(head.ends_with("[rollup]"));
    let sum: u64 = parts.iter().map(|part| fields[*part]).sum();
    expect_eq!(sum, fields["Rss"]);
    // Each is rounded down.
    let share: u64 = ["Pss_Anon", "Pss_File", "Pss_Shmem"].iter().map(|part| fields[*part]).sum();
    expect!(share <= fields["Pss"] && fields["Pss"] <= share + 3);
    expect!(fields["Private_Dirty"] >= KIB && fields["Anonymous"] >= KIB);
    Ok(())
}
