//! Pipes and unix streams on which several write and read much at the same time: nothing is lost, doubled or out of
//! order, whatever memory is missing meanwhile, and whoever stops half-way keeps nobody waiting.
#![allow(unsafe_code, reason = "mappings with holes")]

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice, tee};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, socketpair};
use nix::unistd::{pipe, read, write};

use crate::harness::{OrFail, Outcome};
use crate::{expect, expect_eq};

crate::tests! {
    two_ends_copy_at_the_same_time
    many_writers_and_readers_lose_nothing
    large_writes_are_not_mixed
    a_write_that_stops_half_way_leaves_its_room
    a_read_that_stops_half_way_leaves_the_rest
    what_pipes_share_stays_as_it_was
    a_peek_sees_what_is_read_next
    small_and_large_pieces_take_no_more_than_the_capacity
}

const PAGE: usize = 4096;
const LARGE: usize = 16 * PAGE;

fn byte_at(index: usize) -> u8 {
    (index.wrapping_mul(2_654_435_761) >> 13) as u8
}

fn pattern(from: usize, length: usize) -> Vec<u8> {
    (from..from + length).map(byte_at).collect()
}

/// Numbers that look random.
struct Numbers(u32);

impl Numbers {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 9) as usize % below
    }
}

fn stream() -> Result<(OwnedFd, OwnedFd), String> {
    socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::empty()).or_fail()
}

/// A pipe and a unix stream, the reading end first.
fn channels() -> Result<[(OwnedFd, OwnedFd); 2], String> {
    Ok([pipe().or_fail()?, stream()?])
}

fn two_ends_copy_at_the_same_time() -> Outcome {
    const TOTAL: usize = 6_000_000;
    for (reader, writer) in channels()? {
        std::thread::scope(|scope| {
            let sending = scope.spawn(move || {
                let (mut numbers, mut done) = (Numbers(3), 0);
                let mut file = std::fs::File::from(writer);
                while done < TOTAL {
                    let count = (numbers.next(3 * LARGE) + 1).min(TOTAL - done);
                    // Fresh memory each time, so that pages are missing on the way.
                    file.write_all(&pattern(done, count)).or_fail()?;
                    done += count;
                }
                Outcome::Ok(())
            });
            let (mut numbers, mut done) = (Numbers(5), 0);
            loop {
                let mut buffer = vec![0; numbers.next(3 * LARGE) + 1];
                let count = read(&reader, &mut buffer).or_fail()?;
                if count == 0 {
                    break;
                }
                expect!(
                    buffer[..count].iter().enumerate().all(|(index, &byte)| byte == byte_at(done + index))
                );
                done += count;
            }
            expect_eq!(done, TOTAL);
            sending.join().map_err(|_| "the writer panicked")?
        })?;
    }
    Ok(())
}

fn many_writers_and_readers_lose_nothing() -> Outcome {
    const WRITERS: u8 = 3;
    const READERS: u32 = 3;
    const TOTAL: usize = 1_500_000;
    for (reader, writer) in channels()? {
        let reader = &reader;
        let counted = std::thread::scope(|scope| {
            for value in 1..=WRITERS {
                let writer = writer.try_clone().or_fail()?;
                scope.spawn(move || {
                    let (mut numbers, mut done) = (Numbers(value.into()), 0);
                    let mut file = std::fs::File::from(writer);
                    while done < TOTAL {
                        let count = (numbers.next(2 * LARGE) + 1).min(TOTAL - done);
                        if file.write_all(&vec![value; count]).is_err() {
                            return;
                        }
                        done += count;
                    }
                });
            }
            drop(writer);
            let count_all = |seed| {
                let (mut numbers, mut counts) = (Numbers(seed), BTreeMap::<u8, usize>::new());
                loop {
                    let mut buffer = vec![0; numbers.next(2 * LARGE) + 1];
                    match read(reader, &mut buffer) {
                        Ok(0) | Err(_) => return counts,
                        Ok(count) => {
                            buffer[..count].iter().for_each(|byte| *counts.entry(*byte).or_default() += 1);
                        }
                    }
                }
            };
            let readers: Vec<_> =
                (0..READERS).map(|seed| scope.spawn(move || count_all(seed + 70))).collect();
            let mut sum = BTreeMap::<u8, usize>::new();
            for reader in readers {
                for (value, count) in reader.join().map_err(|_| "a reader panicked")? {
                    *sum.entry(value).or_default() += count;
                }
            }
            Ok::<_, String>(sum)
        })?;
        expect_eq!(counted, (1..=WRITERS).map(|value| (value, TOTAL)).collect());
    }
    Ok(())
}

fn large_writes_are_not_mixed() -> Outcome {
    const PIECE: usize = 4 * PAGE;
    // All of them fit, so that none is cut for want of room.
    const PIECES: usize = 20;
    for _ in 0..10 {
        let (reader, writer) = pipe().or_fail()?;
        fcntl(&writer, FcntlArg::F_SETPIPE_SZ((64 * PIECE) as i32)).or_fail()?;
        let all_went = std::thread::scope(|scope| {
            let write_all = |value| (0..PIECES).all(|_| write(&writer, &[value; PIECE]) == Ok(PIECE));
            let writers: Vec<_> = (1..=3_u8).map(|value| scope.spawn(move || write_all(value))).collect();
            writers.into_iter().all(|writer| writer.join().unwrap_or(false))
        });
        expect!(all_went);
        drop(writer);
        let mut all = Vec::new();
        std::fs::File::from(reader).read_to_end(&mut all).or_fail()?;
        expect_eq!(all.len(), 3 * PIECES * PIECE);
        expect!(all.chunks(PIECE).all(|piece| piece.iter().all(|byte| *byte == piece[0])));
    }
    Ok(())
}

/// Memory of so many pages, followed by a hole.
fn before_a_hole<T>(pages: usize, work: impl FnOnce(*mut u8, usize) -> T) -> Result<T, String> {
    let size = NonZeroUsize::new((pages + 1) * PAGE).ok_or("no length")?;
    let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_ANONYMOUS;
    // SAFETY: a new mapping, wherever there is room.
    let start = unsafe { mmap_anonymous(None, size, rights, flags) }.or_fail()?;
    let hole = start.as_ptr().cast::<u8>().wrapping_add(pages * PAGE);
    // SAFETY: the last page of the mapping, which nothing refers to.
    Errno::result(unsafe { libc::munmap(hole.cast(), PAGE) }).or_fail()?;
    let result = work(start.as_ptr().cast(), pages * PAGE);
    if pages > 0 {
        // SAFETY: the rest of the mapping, which is the function's own.
        unsafe { munmap(start, pages * PAGE) }.or_fail()?;
    }
    Ok(result)
}

fn a_write_that_stops_half_way_leaves_its_room() -> Outcome {
    for (reader, writer) in channels()? {
        // SAFETY: the kernel checks the memory; here and below.
        let write_from = |at: *mut u8, length: usize| {
            Errno::result(unsafe { libc::write(writer.as_raw_fd(), at.cast_const().cast(), length) })
        };
        // All of it is missing, and then the rest behind some pages.
        let none = before_a_hole(0, |start, _| write_from(start, 8 * PAGE))?;
        expect_eq!(none, Err(Errno::EFAULT));
        let some = before_a_hole(5, |start, length| {
            // SAFETY: the memory before the hole, which nothing else refers to.
            unsafe { std::slice::from_raw_parts_mut(start, length) }.copy_from_slice(&pattern(0, length));
            write_from(start, length + 3 * PAGE)
        })?;
        // Linux's unix sockets take all of a piece or nothing.
        if let Ok(some) = some {
            let some = usize::try_from(some).or_fail()?;
            expect!((1..=5 * PAGE).contains(&some));
            let mut buffer = vec![0; LARGE];
            expect_eq!(read(&reader, &mut buffer), Ok(some));
            expect!(buffer[..some] == pattern(0, some));
        }
        // Nothing is in the way of a pipe's full capacity.
        fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).or_fail()?;
        expect_eq!(write(&writer, &vec![1; LARGE]), Ok(LARGE));
    }
    Ok(())
}

fn a_read_that_stops_half_way_leaves_the_rest() -> Outcome {
    for (reader, writer) in channels()? {
        expect_eq!(write(&writer, &pattern(0, LARGE)), Ok(LARGE));
        // SAFETY: the kernel checks the memory.
        let read_to = |at: *mut u8, length: usize| {
            Errno::result(unsafe { libc::read(reader.as_raw_fd(), at.cast(), length) })
        };
        let none = before_a_hole(0, |start, _| read_to(start, 8 * PAGE))?;
        expect_eq!(none, Err(Errno::EFAULT));
        let some = before_a_hole(5, |start, length| {
            let count = read_to(start, length + 3 * PAGE)?;
            // SAFETY: the memory before the hole, which nothing else refers to.
            let bytes = unsafe { std::slice::from_raw_parts(start, length) };
            Ok::<_, Errno>(bytes[..(count as usize).min(length)].to_vec())
        })?;
        let some = some.unwrap_or_default();
        expect!(some == pattern(0, some.len()));
        let mut buffer = vec![0; LARGE];
        let count = read(&reader, &mut buffer).or_fail()?;
        expect_eq!(count, LARGE - some.len());
        expect!(buffer[..count] == pattern(some.len(), count));
    }
    Ok(())
}

fn what_pipes_share_stays_as_it_was() -> Outcome {
    let ((one_out, one_in), (two_out, two_in)) = (pipe().or_fail()?, pipe().or_fail()?);
    let mut numbers = Numbers(11);
    let (mut sent, mut seen) = (Vec::new(), Vec::new());
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for file in [&one_out, &one_in, &two_out, &two_in] {
        fcntl(file, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).or_fail()?;
    }
    for _ in 0..400 {
        let bytes = pattern(sent.len(), numbers.next(3 * PAGE) + 1);
        if let Ok(count) = write(&one_in, &bytes) {
            sent.extend_from_slice(&bytes[..count]);
        }
        // A tee always begins at the front of what is there.
        let from = first.len();
        if let Ok(count) =
            tee(&one_out, &two_in, numbers.next(2 * LARGE) + 1, SpliceFFlags::SPLICE_F_NONBLOCK)
        {
            seen.extend_from_slice(&sent[from..from + count]);
        }
        // Bytes that are moved are as good as read.
        let most = numbers.next(2 * PAGE) + 1;
        if numbers.next(3) == 0
            && let Ok(count) = splice(&one_out, None, &two_in, None, most, SpliceFFlags::SPLICE_F_NONBLOCK)
        {
            let from = first.len();
            let moved = sent[from..from + count].to_vec();
            seen.extend_from_slice(&moved);
            first.extend(moved);
        }
        let mut buffer = vec![0; numbers.next(2 * PAGE) + 1];
        if let Ok(count) = read(&one_out, &mut buffer) {
            first.extend_from_slice(&buffer[..count]);
        }
        if numbers.next(2) == 0
            && let Ok(count) = read(&two_out, &mut buffer)
        {
            second.extend_from_slice(&buffer[..count]);
        }
        // Bytes of its own come between those that are shared.
        if numbers.next(3) == 0 && write(&two_in, b"own").is_ok() {
            seen.extend_from_slice(b"own");
        }
        expect!(first == sent[..first.len()]);
        expect!(second == seen[..second.len()]);
    }
    expect!(second.len() > LARGE);
    Ok(())
}

fn a_peek_sees_what_is_read_next() -> Outcome {
    let (reader, writer) = stream()?;
    let mut numbers = Numbers(17);
    std::thread::scope(|scope| {
        const TOTAL: usize = 2_000_000;
        scope.spawn(move || {
            let mut file = std::fs::File::from(writer);
            for from in (0..TOTAL).step_by(50_000) {
                if file.write_all(&pattern(from, 50_000)).is_err() {
                    return;
                }
            }
        });
        let mut done = 0;
        while done < TOTAL {
            let mut buffer = vec![0; numbers.next(LARGE) + 1];
            let fd = reader.as_fd().as_raw_fd();
            let peeked = recv(fd, &mut buffer, MsgFlags::MSG_PEEK).or_fail()?;
            expect!(buffer[..peeked] == pattern(done, peeked));
            let count = read(&reader, &mut buffer).or_fail()?;
            expect!(count >= peeked);
            expect!(buffer[..count] == pattern(done, count));
            done += count;
        }
        Ok(())
    })
}

fn small_and_large_pieces_take_no_more_than_the_capacity() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).or_fail()?;
    let (mut numbers, mut sent, mut taken) = (Numbers(23), 0, 0);
    for _ in 0..2000 {
        // One vector of two pieces, of which the first is small.
        let (small, large) = (pattern(sent, numbers.next(30) + 1), numbers.next(3 * PAGE) + 1);
        let large = pattern(sent + small.len(), large);
        match nix::sys::uio::writev(&writer, &[IoSlice::new(&small), IoSlice::new(&large)]) {
            Ok(count) => sent += count,
            Err(error) => expect_eq!(error, Errno::EAGAIN),
        }
        expect!(sent - taken <= LARGE);
        if numbers.next(3) == 0 && sent > taken {
            let (mut one, mut two) = (vec![0; numbers.next(100) + 1], vec![0; numbers.next(LARGE) + 1]);
            let mut both = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
            let count = nix::sys::uio::readv(&reader, &mut both).or_fail()?;
            let came: Vec<u8> = one.iter().chain(&two).copied().take(count).collect();
            expect!(came == pattern(taken, count));
            taken += count;
        }
    }
    Ok(())
}
