//! Reads and writes of one file at the same time.

use std::fs::{File, OpenOptions};
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::unistd::write;

use crate::harness::{OrFail, Outcome, Scratch, is_heddle};
use crate::{expect, expect_eq};

crate::tests! {
    writes_of_one_range_do_not_mix
    large_writes_of_one_range_do_not_mix
    appended_records_stay_whole
    writes_of_other_ranges_do_not_wait
    a_cut_waits_for_a_write
}

const WRITERS: u8 = 4;

fn open(scratch: &Scratch) -> Result<File, String> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).open(scratch.path("file")).or_fail()
}

fn is_uniform(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == bytes[0])
}

/// Several write records to the same place, each of one byte all over, and others read them. Linux does not keep
/// readers from seeing half a write, so there only the records that are left in the end are looked at.
fn expect_whole(length: usize, offset: u64, rounds: usize) -> Outcome {
    let scratch = Scratch::new("ranges")?;
    let file = open(&scratch)?;
    file.write_all_at(&vec![b'0'; length], offset).or_fail()?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| -> Outcome {
                    let file = open(&scratch)?;
                    let mut seen = vec![0; length];
                    while !is_over.load(Ordering::Relaxed) {
                        expect_eq!(file.read_at(&mut seen, offset).or_fail()?, length);
                        expect!(!is_heddle() || is_uniform(&seen));
                        std::thread::yield_now();
                    }
                    Ok(())
                })
            })
            .collect();
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let scratch = &scratch;
                scope.spawn(move || -> Outcome {
                    let (file, record) = (open(scratch)?, vec![b'a' + writer; length]);
                    for _ in 0..rounds {
                        expect_eq!(file.write_at(&record, offset).or_fail()?, length);
                        std::thread::yield_now();
                    }
                    Ok(())
                })
            })
            .collect();
        let wrote =
            writers.into_iter().try_for_each(|writer| writer.join().unwrap_or(Err("panicked".into())));
        is_over.store(true, Ordering::Relaxed);
        let read = readers.into_iter().try_for_each(|reader| reader.join().unwrap_or(Err("panicked".into())));
        wrote.and(read)
    })?;
    let mut left = vec![0; length];
    file.read_exact_at(&mut left, offset).or_fail()?;
    expect!(is_uniform(&left));
    Ok(())
}

fn writes_of_one_range_do_not_mix() -> Outcome {
    expect_whole(100, 4050, 300)?;
    expect_whole(40_000, 1000, 60)
}

fn large_writes_of_one_range_do_not_mix() -> Outcome {
    expect_whole(500_000, 77, 20)
}

/// Each record is written from memory that is not there yet, so that the call stops at every page of it.
#[allow(unsafe_code, reason = "a mapping to write from")]
fn append(scratch: &Scratch, writer: u8, length: usize) -> Outcome {
    let source = scratch.path(&format!("source-{writer}"));
    std::fs::write(&source, vec![b'a' + writer; length]).or_fail()?;
    let (source, size) = (File::open(&source).or_fail()?, NonZeroUsize::new(length).ok_or("0")?);
    let file = OpenOptions::new().append(true).create(true).open(scratch.path("file")).or_fail()?;
    for _ in 0..6 {
        // SAFETY: a new mapping at a place of the kernel's choice, of a file that nobody changes.
        let map = unsafe { mmap(None, size, ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE, &source, 0) };
        let map = map.or_fail()?;
        // SAFETY: it is as long, and stays until it has been written.
        let bytes = unsafe { std::slice::from_raw_parts(map.as_ptr().cast::<u8>(), length) };
        let written = write(&file, bytes).or_fail();
        // SAFETY: `bytes` is not used any more.
        unsafe { munmap(map, length) }.or_fail()?;
        expect_eq!(written?, length);
    }
    Ok(())
}

fn appended_records_stay_whole() -> Outcome {
    for length in [20_000, 300_000] {
        let scratch = Scratch::new("appended")?;
        std::thread::scope(|scope| {
            let scratch = &scratch;
            let writers: Vec<_> =
                (0..WRITERS).map(|writer| scope.spawn(move || append(scratch, writer, length))).collect();
            writers.into_iter().try_for_each(|writer| writer.join().unwrap_or(Err("panicked".into())))
        })?;
        let all = std::fs::read(scratch.path("file")).or_fail()?;
        expect_eq!(all.len(), length * 6 * usize::from(WRITERS));
        expect!(all.chunks(length).all(is_uniform));
    }
    Ok(())
}

/// Figures of Heddle: how many ranges were held, and how many of these had to be waited for.
fn figures() -> Result<(u64, u64), String> {
    if !is_heddle() {
        return Ok((0, 0));
    }
    let text = std::fs::read_to_string("/proc/heddle/counters").or_fail()?;
    let value = |name: &str| -> Result<u64, String> {
        let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        found.ok_or(format!("no {name}"))?.parse().or_fail()
    };
    Ok((value("file_ranges")?, value("file_range_waits")?))
}

fn writes_of_other_ranges_do_not_wait() -> Outcome {
    const LENGTH: usize = 200_000;
    const ROUNDS: u64 = 10;
    let scratch = Scratch::new("disjoint")?;
    let before = figures()?;
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let scratch = &scratch;
                scope.spawn(move || -> Outcome {
                    let (file, record) = (open(scratch)?, vec![b'a' + writer; LENGTH]);
                    for _ in 0..ROUNDS {
                        let offset = u64::from(writer) * LENGTH as u64;
                        expect_eq!(file.write_at(&record, offset).or_fail()?, LENGTH);
                    }
                    Ok(())
                })
            })
            .collect();
        writers.into_iter().try_for_each(|writer| writer.join().unwrap_or(Err("panicked".into())))
    })?;
    let after = figures()?;
    expect_eq!(after.1, before.1);
    expect!(!is_heddle() || after.0 - before.0 >= ROUNDS * u64::from(WRITERS));
    let all = std::fs::read(scratch.path("file")).or_fail()?;
    expect!(all.chunks(LENGTH).zip(b'a'..).all(|(part, byte)| is_uniform(part) && part[0] == byte));
    Ok(())
}

/// A large write and a cut of its file are one after the other, whichever comes first.
fn a_cut_waits_for_a_write() -> Outcome {
    const LENGTH: usize = 1 << 20;
    const CUT: u64 = 300_000;
    let scratch = Scratch::new("cut")?;
    let record = vec![b'x'; LENGTH];
    for round in 0..24 {
        let file = open(&scratch)?;
        file.set_len(0).or_fail()?;
        let is_cut_by_length = round % 2 == 0;
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| file.write_at(&record, 0));
            while round % 3 != 0 && file.metadata().or_fail()?.len() == 0 {
                std::thread::yield_now();
            }
            if is_cut_by_length {
                file.set_len(CUT).or_fail()?;
            } else {
                let (kept, length) = (CUT as i64 / 4096 * 4096, LENGTH as i64);
                let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
                fallocate(&file, mode, kept, length).or_fail()?;
            }
            expect_eq!(writer.join().map_err(|_| "the writer failed")?.or_fail()?, LENGTH);
            Ok::<(), String>(())
        })?;
        let mut seen = vec![0; file.metadata().or_fail()?.len() as usize];
        file.read_exact_at(&mut seen, 0).or_fail()?;
        if is_cut_by_length {
            // Cut before the write, or after it; with parts of both the rest would be holes.
            expect!(seen.len() == LENGTH || seen.len() == CUT as usize);
            expect!(is_uniform(&seen));
        } else {
            expect_eq!(seen.len(), LENGTH);
            expect!(is_uniform(&seen[..CUT as usize / 4096 * 4096]));
            expect!(is_uniform(&seen[CUT as usize / 4096 * 4096..]));
        }
    }
    Ok(())
}
