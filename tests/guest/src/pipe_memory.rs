//! Reads from pipes that wait with much memory: the bytes may come there without a buffer between, whatever kind of
//! memory it is, and nothing of a stream is lost, doubled or out of order.
#![allow(unsafe_code, reason = "mappings, and reads into memory that is not there")]

use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::mpsc::channel;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, sigaction};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::stat::Mode;
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, pipe, read, write};

use crate::harness::{OrFail, Outcome, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    a_waiting_read_gets_what_is_written
    more_than_fits_stays
    several_writes_come_in_order
    memory_that_was_never_touched
    memory_shared_with_a_parent_stays_the_parents
    memory_shared_by_mapping
    memory_that_may_not_be_written
    memory_that_goes_away_while_a_read_waits
    several_waiting_readers_each_get_a_write
    signals_lose_nothing
    random_sizes_keep_the_stream
    a_record_is_not_torn
    an_error_comes_after_the_bytes
    a_write_to_a_waiting_reader_sends_its_signal
    two_senders_are_not_mixed
}

const PAGE: usize = 4096;
const LARGE: usize = 16 * PAGE;

/// Lets the other side get to where it waits.
fn settle() {
    std::thread::sleep(Duration::from_millis(30));
}

fn byte_at(index: usize) -> u8 {
    (index.wrapping_mul(2_654_435_761) >> 13) as u8
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(byte_at).collect()
}

/// Private memory of whole pages, or memory shared with children.
struct Area {
    start: NonNull<libc::c_void>,
    length: usize,
}

impl Area {
    fn new(length: usize, sharing: MapFlags) -> Result<Self, String> {
        let size = NonZeroUsize::new(length).ok_or("no length")?;
        let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, wherever there is room.
        let start =
            unsafe { mmap_anonymous(None, size, rights, sharing | MapFlags::MAP_ANONYMOUS) }.or_fail()?;
        Ok(Self { start, length })
    }

    /// Reads from a file to an offset.
    fn read_at(&self, file: &OwnedFd, offset: usize, length: usize) -> nix::Result<usize> {
        let to = self.start.as_ptr().cast::<u8>().wrapping_add(offset);
        // SAFETY: the kernel checks the memory; nothing refers to it.
        Errno::result(unsafe { libc::read(file.as_raw_fd(), to.cast(), length) }).map(|count| count as usize)
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: whole pages that can be read, and no read goes on.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.length) }
    }

    fn fill(&self, byte: u8) {
        // SAFETY: whole pages that can be written, which nobody else uses.
        unsafe { std::ptr::write_bytes(self.start.as_ptr().cast::<u8>(), byte, self.length) };
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        let _ = unsafe { munmap(self.start, self.length) };
    }
}

// SAFETY: plain memory; who uses it when is up to the test.
unsafe impl Sync for Area {}

/// A child that waits for bytes in `LARGE` bytes of touched memory, from an odd address on, and checks them.
fn checking_child(reader: &OwnedFd, expected: &[usize], most: usize) -> Result<Pid, String> {
    let area = Area::new(LARGE + PAGE, MapFlags::MAP_PRIVATE)?;
    let pid = spawn_child(|| {
        area.fill(0xee);
        let mut done = 0;
        for &count in expected {
            if area.read_at(reader, 17, most) != Ok(count) {
                return 1;
            }
            let came = &area.bytes()[17..17 + count];
            if came.iter().enumerate().any(|(index, &byte)| byte != byte_at(done + index)) {
                return 2;
            }
            done += count;
        }
        0
    })?;
    settle();
    Ok(pid)
}

fn ends_well(child: Pid) -> Outcome {
    expect_eq!(waitpid(child, None).or_fail()?, nix::sys::wait::WaitStatus::Exited(child, 0));
    Ok(())
}

fn a_waiting_read_gets_what_is_written() -> Outcome {
    for length in [1, 100, PAGE - 1, PAGE, PAGE + 1, 10_000, LARGE] {
        let (reader, writer) = pipe().or_fail()?;
        let child = checking_child(&reader, &[length], LARGE)?;
        expect_eq!(write(&writer, &pattern(length)), Ok(length));
        ends_well(child)?;
    }
    Ok(())
}

fn more_than_fits_stays() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let child = checking_child(&reader, &[3 * PAGE, 3 * PAGE, 1000], 3 * PAGE)?;
    expect_eq!(write(&writer, &pattern(6 * PAGE + 1000)), Ok(6 * PAGE + 1000));
    ends_well(child)
}

fn several_writes_come_in_order() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let area = Area::new(LARGE, MapFlags::MAP_PRIVATE)?;
    area.fill(0xee);
    let bytes = pattern(3 * PAGE + 50);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| area.read_at(&reader, 0, LARGE));
        settle();
        for part in [&bytes[..2 * PAGE], &bytes[2 * PAGE..2 * PAGE + 50], &bytes[2 * PAGE + 50..]] {
            expect_eq!(write(&writer, part), Ok(part.len()));
        }
        let mut done = waiting.join().map_err(|_| "panicked")?.or_fail()?;
        while done < bytes.len() {
            done += area.read_at(&reader, done, LARGE - done).or_fail()?;
        }
        expect_eq!(&area.bytes()[..done], &bytes[..]);
        Ok(())
    })
}

fn memory_that_was_never_touched() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let area = Area::new(LARGE, MapFlags::MAP_PRIVATE)?;
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| area.read_at(&reader, 0, LARGE));
        settle();
        expect_eq!(write(&writer, &pattern(LARGE)), Ok(LARGE));
        expect_eq!(waiting.join().map_err(|_| "panicked")?, Ok(LARGE));
        expect_eq!(area.bytes(), &pattern(LARGE)[..]);
        Ok(())
    })
}

fn memory_shared_with_a_parent_stays_the_parents() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let area = Area::new(LARGE, MapFlags::MAP_PRIVATE)?;
    area.fill(0x55);
    let child = spawn_child(|| {
        let is_good = area.read_at(&reader, 0, LARGE) == Ok(LARGE) && area.bytes() == &pattern(LARGE)[..];
        i32::from(!is_good)
    })?;
    settle();
    expect_eq!(write(&writer, &pattern(LARGE)), Ok(LARGE));
    ends_well(child)?;
    expect!(area.bytes().iter().all(|&byte| byte == 0x55));
    Ok(())
}

fn memory_shared_by_mapping() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let area = Area::new(LARGE, MapFlags::MAP_SHARED)?;
    area.fill(0x55);
    let child = spawn_child(|| i32::from(area.read_at(&reader, 0, LARGE) != Ok(LARGE)))?;
    settle();
    expect_eq!(write(&writer, &pattern(LARGE)), Ok(LARGE));
    ends_well(child)?;
    expect_eq!(area.bytes(), &pattern(LARGE)[..]);
    Ok(())
}

fn memory_that_may_not_be_written() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let area = Area::new(LARGE, MapFlags::MAP_PRIVATE)?;
    area.fill(0x55);
    // SAFETY: the mapping is the test's own, and nothing writes to it.
    unsafe { mprotect(area.start, LARGE, ProtFlags::PROT_READ) }.or_fail()?;
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| area.read_at(&reader, 0, LARGE));
        settle();
        expect_eq!(write(&writer, &pattern(2 * PAGE)), Ok(2 * PAGE));
        expect_eq!(waiting.join().map_err(|_| "panicked")?, Err(Errno::EFAULT));
        Ok(())
    })?;
    expect!(area.bytes().iter().all(|&byte| byte == 0x55));
    let mut rest = vec![0; 2 * PAGE];
    expect_eq!(read(&reader, &mut rest), Ok(2 * PAGE));
    expect_eq!(rest, pattern(2 * PAGE));
    Ok(())
}

fn memory_that_goes_away_while_a_read_waits() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let area = Area::new(LARGE, MapFlags::MAP_PRIVATE)?;
    area.fill(0x55);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| area.read_at(&reader, 0, LARGE));
        settle();
        let half = area.start.as_ptr().cast::<u8>().wrapping_add(LARGE / 2);
        let half = NonNull::new(half.cast()).ok_or("no address")?;
        // SAFETY: the kernel alone refers to it, and checks.
        unsafe { munmap(half, LARGE / 2) }.or_fail()?;
        expect_eq!(write(&writer, &pattern(LARGE)), Ok(LARGE));
        expect_eq!(waiting.join().map_err(|_| "panicked")?, Ok(LARGE / 2));
        Ok(())
    })?;
    let mut rest = vec![0; LARGE];
    expect_eq!(read(&reader, &mut rest), Ok(LARGE / 2));
    expect_eq!(&rest[..LARGE / 2], &pattern(LARGE)[LARGE / 2..]);
    Ok(())
}

fn several_waiting_readers_each_get_a_write() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    std::thread::scope(|scope| {
        let (sender, receiver) = channel();
        for _ in 0..3 {
            let (reader, sender) = (&reader, sender.clone());
            scope.spawn(move || {
                let mut buffer = vec![0; LARGE];
                sender.send(read(reader, &mut buffer).map(|count| buffer[..count].to_vec()))
            });
        }
        settle();
        for _ in 0..3 {
            expect_eq!(write(&writer, &pattern(2 * PAGE)), Ok(2 * PAGE));
            let came = receiver.recv_timeout(Duration::from_secs(20)).or_fail()?.or_fail()?;
            expect_eq!(came, pattern(2 * PAGE));
        }
        Ok(())
    })
}

extern "C" fn ignore(_: libc::c_int) {}

fn signals_lose_nothing() -> Outcome {
    const WRITES: usize = 300;
    let (reader, writer) = pipe().or_fail()?;
    let action = SigAction::new(SigHandler::Handler(ignore), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler does nothing.
    unsafe { sigaction(Signal::SIGUSR1, &action) }.or_fail()?;
    let child = spawn_child(move || {
        let (mut done, mut buffer) = (0, vec![0; LARGE]);
        while done < WRITES * 2 * PAGE {
            match read(&reader, &mut buffer) {
                Ok(0) => return 2,
                Ok(count) => {
                    let is_good = |(index, &byte): (usize, &u8)| byte == byte_at((done + index) % (2 * PAGE));
                    if !buffer[..count].iter().enumerate().all(is_good) {
                        return 3;
                    }
                    done += count;
                }
                Err(Errno::EINTR) => {}
                Err(_) => return 4,
            }
        }
        0
    })?;
    settle();
    let bytes = pattern(2 * PAGE);
    for round in 0..WRITES {
        if round % 3 == 0 {
            kill(child, Signal::SIGUSR1).or_fail()?;
        }
        expect_eq!(write(&writer, &bytes), Ok(bytes.len()));
        if round % 5 == 0 {
            kill(child, Signal::SIGUSR1).or_fail()?;
            std::thread::yield_now();
        }
    }
    ends_well(child)
}

fn random_sizes_keep_the_stream() -> Outcome {
    const TOTAL: usize = 2_000_000;
    let (reader, writer) = pipe().or_fail()?;
    let child = spawn_child(move || {
        let (mut done, mut random, mut buffer) = (0, 1_u32, vec![0; 2 * LARGE]);
        while done < TOTAL {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (from, most) = ((random >> 24) as usize, (random >> 12) as usize % (LARGE + PAGE) + 1);
            let Ok(count @ 1..) = read(&reader, &mut buffer[from..from + most]) else { return 1 };
            let came = &buffer[from..from + count];
            if came.iter().enumerate().any(|(index, &byte)| byte != byte_at(done + index)) {
                return 2;
            }
            done += count;
        }
        0
    })?;
    let (mut done, mut random, bytes) = (0, 7_u32, pattern(TOTAL));
    while done < TOTAL {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let most = ((random >> 14) as usize % (LARGE + 3 * PAGE) + 1).min(TOTAL - done);
        done += write(&writer, &bytes[done..done + most]).or_fail()?;
        if random >> 29 == 0 {
            std::thread::yield_now();
        }
    }
    ends_well(child)
}

/// Whether bytes are whole records of a page, each of one value.
fn are_records(bytes: &[u8]) -> bool {
    bytes.len().is_multiple_of(PAGE)
        && bytes.chunks(PAGE).all(|record| record.iter().all(|byte| *byte == record[0]))
}

fn a_record_is_not_torn() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
    let other = open(path.as_str(), OFlag::O_RDONLY | OFlag::O_NONBLOCK, Mode::empty()).or_fail()?;
    for _ in 0..20 {
        let area = Area::new(4 * PAGE, MapFlags::MAP_PRIVATE)?;
        // The first page is there and the others are not.
        // SAFETY: the mapping is the test's own.
        unsafe { area.start.as_ptr().cast::<u8>().write_volatile(0) };
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| area.read_at(&reader, PAGE - 100, 2 * PAGE));
            settle();
            let mut buffer = vec![0; 2 * PAGE];
            for value in [1, 2] {
                expect_eq!(write(&writer, &[value; PAGE]), Ok(PAGE));
                match read(&other, &mut buffer) {
                    Ok(count) => expect!(are_records(&buffer[..count])),
                    Err(error) => expect_eq!(error, Errno::EAGAIN),
                }
            }
            // Where the other reader was faster both times, one still waits.
            expect_eq!(write(&writer, &[3; PAGE]), Ok(PAGE));
            let count = waiting.join().map_err(|_| "panicked")?.or_fail()?;
            expect!(count > 0 && are_records(&area.bytes()[PAGE - 100..PAGE - 100 + count]));
            while read(&other, &mut buffer).is_ok() {}
            Ok(())
        })?;
    }
    Ok(())
}

fn stream() -> Result<(OwnedFd, OwnedFd), String> {
    socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::empty()).or_fail()
}

fn an_error_comes_after_the_bytes() -> Outcome {
    for _ in 0..10 {
        let (own, peer) = stream()?;
        let area = Area::new(2 * PAGE, MapFlags::MAP_PRIVATE)?;
        area.fill(0xee);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| area.read_at(&own, 0, 2 * PAGE));
            settle();
            expect_eq!(write(&own, b"x"), Ok(1));
            expect_eq!(write(&peer, &pattern(PAGE)), Ok(PAGE));
            // The byte that it has not read makes the end an error.
            drop(peer);
            expect_eq!(waiting.join().map_err(|_| "panicked")?, Ok(PAGE));
            expect_eq!(area.read_at(&own, 0, PAGE), Err(Errno::ECONNRESET));
            expect_eq!(area.read_at(&own, 0, PAGE), Ok(0));
            Ok(())
        })?;
    }
    Ok(())
}

fn a_write_to_a_waiting_reader_sends_its_signal() -> Outcome {
    let mut set = SigSet::empty();
    set.add(Signal::SIGIO);
    set.thread_block().or_fail()?;
    // A socket's signal is for those only who do not wait in a read, in Linux.
    let (reader, writer) = pipe().or_fail()?;
    // SAFETY: plain numbers.
    let own = unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETOWN, libc::getpid()) };
    expect_eq!(own, 0);
    fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_ASYNC)).or_fail()?;
    let area = Area::new(2 * PAGE, MapFlags::MAP_PRIVATE)?;
    area.fill(0xee);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| area.read_at(&reader, 0, 2 * PAGE));
        settle();
        expect_eq!(write(&writer, &pattern(PAGE)), Ok(PAGE));
        expect_eq!(waiting.join().map_err(|_| "panicked")?, Ok(PAGE));
        expect_eq!(set.wait(), Ok(Signal::SIGIO));
        Ok(())
    })
}

fn two_senders_are_not_mixed() -> Outcome {
    const PIECE: usize = 4 * PAGE;
    // All of it fits into a socket's buffer, so that no write is cut for want of room.
    const PIECES: usize = 6;
    for _ in 0..10 {
        let (reader, writer) = stream()?;
        let senders = [1_u8, 2].map(|value| {
            spawn_child(|| i32::from((0..PIECES).any(|_| write(&writer, &[value; PIECE]) != Ok(PIECE))))
        });
        let (mut all, mut buffer) = (Vec::new(), vec![0xee; PAGE]);
        while all.len() < 2 * PIECES * PIECE {
            let count = read(&reader, &mut buffer).or_fail()?;
            all.extend_from_slice(&buffer[..count]);
        }
        for sender in senders {
            ends_well(sender?)?;
        }
        expect!(all.chunks(PIECE).all(|piece| piece.iter().all(|byte| *byte == piece[0])));
    }
    Ok(())
}
