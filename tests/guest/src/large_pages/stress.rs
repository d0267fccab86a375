//! Many changes of large pages: in an order by chance, by several threads, and where there are few of them.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::wait::WaitStatus;

use super::{LARGE, LARGE_KIB, Memory, PAGE, Policy, RW, faults, mark, shown};
use crate::harness::{Outcome, in_child, is_heddle};
use crate::{expect, expect_eq};

crate::tests! {
    random_changes_agree_with_a_reference
    threads_fault_and_split_at_once
    where_there_is_no_large_page_there_are_small_ones
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// A page as it must be.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Expected {
    value: u8,
    is_writable: bool,
}

fn agrees(memory: &Memory, reference: &[Expected]) -> Outcome {
    for (page, expected) in reference.iter().enumerate() {
        let found = memory.load(page * PAGE + page % PAGE);
        if found != expected.value {
            return Err(format!("page {page} has {found} in place of {}", expected.value));
        }
    }
    Ok(())
}

fn random_changes_agree_with_a_reference() -> Outcome {
    const LARGE_PAGES: usize = 3;
    let _policy = Policy::set("madvise")?;
    let pages = LARGE_PAGES * LARGE / PAGE;
    for seed in 1..7 {
        let mut random = Random(seed);
        let memory = Memory::new(LARGE_PAGES, true)?;
        let mut reference = vec![Expected { value: 0, is_writable: true }; pages];
        for step in 0..120_u32 {
            let kind = random.below(9);
            // Whole large pages, and any parts.
            let (start, end) = if random.below(3) == 0 {
                let first = random.below(LARGE_PAGES);
                (first * 512, (first + 1 + random.below(LARGE_PAGES - first)) * 512)
            } else {
                let first = random.below(pages);
                (first, first + 1 + random.below((pages - first).min(40)))
            };
            let (offset, length) = (start * PAGE, (end - start) * PAGE);
            let part = &mut reference[start..end];
            match kind {
                0..=2 => {
                    for (page, expected) in
                        (start..end).zip(part).filter(|(_, expected)| expected.is_writable)
                    {
                        expected.value = (step as usize % 250 + 1) as u8;
                        memory.store(page * PAGE + page % PAGE, expected.value);
                    }
                }
                3 => {
                    memory.protect(offset, length, libc::PROT_READ)?;
                    part.iter_mut().for_each(|expected| expected.is_writable = false);
                }
                4 => {
                    memory.protect(offset, length, RW)?;
                    part.iter_mut().for_each(|expected| expected.is_writable = true);
                }
                5 => {
                    memory.advise(offset, length, libc::MADV_DONTNEED)?;
                    part.iter_mut().for_each(|expected| expected.value = 0);
                }
                6 => {
                    memory.unmap(offset, length)?;
                    memory.map(offset, length)?;
                    memory.advise(offset, length, libc::MADV_HUGEPAGE)?;
                    part.fill(Expected { value: 0, is_writable: true });
                }
                7 => {
                    let seen = reference.clone();
                    let ended = in_child(|| {
                        let changed = (0..pages).step_by(97).filter(|&page| seen[page].is_writable);
                        let is_same = agrees(&memory, &seen).is_ok();
                        changed.for_each(|page| memory.store(page * PAGE + page % PAGE, 255));
                        i32::from(!is_same)
                    })?;
                    expect!(matches!(ended, WaitStatus::Exited(_, 0)));
                }
                _ => {
                    let forbidden = part.iter().position(|expected| !expected.is_writable);
                    if let Some(page) = forbidden {
                        expect!(faults(|| memory.store((start + page) * PAGE, 1))?);
                    }
                }
            }
            agrees(&memory, &reference).map_err(|error| format!("seed {seed}, step {step}: {error}"))?;
        }
    }
    Ok(())
}

fn threads_fault_and_split_at_once() -> Outcome {
    const THREADS: usize = 4;
    let _policy = Policy::set("madvise")?;
    for round in 0..12 {
        let memory = Memory::new(2, true)?;
        let (barrier, is_wrong) = (Barrier::new(THREADS), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (memory, barrier, is_wrong) = (&memory, &barrier, &is_wrong);
                scope.spawn(move || {
                    let pages = 2 * LARGE / PAGE;
                    barrier.wait();
                    // Pages in turn, so that all threads are in each large page at once.
                    for page in (thread..pages).step_by(THREADS) {
                        memory.store(page * PAGE, mark(page));
                        if page % 64 == thread + 8 * thread {
                            let rights = if round % 2 == 0 { libc::PROT_READ } else { libc::PROT_NONE };
                            let result = memory
                                .protect(page * PAGE, PAGE, rights)
                                .and_then(|()| memory.protect(page * PAGE, PAGE, RW));
                            is_wrong.fetch_or(result.is_err(), Ordering::Relaxed);
                        }
                        if page % 128 == 100 + thread {
                            let result = memory.advise(page * PAGE, PAGE, libc::MADV_DONTNEED);
                            is_wrong.fetch_or(
                                result.is_err() || memory.load(page * PAGE) != 0,
                                Ordering::Relaxed,
                            );
                            memory.store(page * PAGE, mark(page));
                        }
                    }
                    for page in (thread..pages).step_by(THREADS) {
                        is_wrong.fetch_or(memory.load(page * PAGE) != mark(page), Ordering::Relaxed);
                    }
                });
            }
        });
        expect!(!is_wrong.load(Ordering::Relaxed));
        memory.check(0..2 * LARGE / PAGE)?;
        expect_eq!(memory.amount("Rss")?, 2 * LARGE_KIB);
    }
    Ok(())
}

fn where_there_is_no_large_page_there_are_small_ones() -> Outcome {
    let _policy = Policy::set("madvise")?;
    let free = shown("/proc/meminfo", "MemAvailable:")? as usize * 1024;
    // A child takes most of what is free in small pages, and gives every second one back: what is free then is in
    // pieces.
    let ended = in_child(|| {
        let work = || -> Outcome {
            let small = Memory::new(free / 6 * 5 / LARGE, false)?;
            small.advise(0, small.length, libc::MADV_NOHUGEPAGE)?;
            small.fill();
            for page in (0..small.length / PAGE).step_by(2) {
                small.advise(page * PAGE, PAGE, libc::MADV_DONTNEED)?;
            }
            // More than is left whole.
            let count = free / 6 / LARGE + 2;
            let fallbacks = shown("/proc/vmstat", "thp_fault_fallback ")?;
            let memory = Memory::new(count, true)?;
            memory.fill();
            memory.check(0..count * LARGE / PAGE)?;
            expect_eq!(memory.amount("Rss")?, count as u64 * LARGE_KIB);
            // Linux may have moved pages to make room.
            expect!(!is_heddle() || shown("/proc/vmstat", "thp_fault_fallback ")? > fallbacks);
            for page in (1..small.length / PAGE).step_by(2) {
                if small.load(page * PAGE) != mark(page) {
                    return Err(format!("small page {page} was changed"));
                }
            }
            Ok(())
        };
        work().inspect_err(|error| eprintln!("{error}")).is_err().into()
    })?;
    expect!(matches!(ended, WaitStatus::Exited(_, 0)));
    Ok(())
}
