//! Mappings: anonymous, of files, private, shared; protection; fork.
#![allow(unsafe_code, reason = "mapping memory has no safe form")]

use std::fs::OpenOptions;
use std::io::Write;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::mman::{MRemapFlags, MapFlags, MmapAdvise, ProtFlags};
use nix::sys::mman::{madvise, mmap, mmap_anonymous, mprotect, mremap, munmap};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};

use crate::harness::{OrFail, Outcome, Scratch, in_child, is_direct, is_heddle, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    anonymous_memory_is_zero
    protection_is_enforced
    protection_splits_mappings
    unmapping_a_middle
    fixed_replaces_and_noreplace_refuses
    shared_memory_crosses_fork
    private_file_mapping_copies
    shared_file_mapping_writes_through
    beyond_end_of_file_is_sigbus
    truncation_takes_mapped_pages
    a_mapped_file_comes_in_windows
    remap_grows_and_moves
    remap_maps_shared_memory_once_more
    remap_to_a_fixed_place_unmaps_what_is_too_much
    only_own_memory_is_wiped_in_a_child
    dont_need_drops
    huge_sparse_reservation
    break_grows_and_shrinks
    stack_grows
    bad_arguments
    copy_on_write_both_ways
    execute_generated_code
    kernel_addresses_fault
    bad_pointers_in_calls
    many_mappings
}

const PAGE: usize = 4096;
const RW: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);

type Memory = NonNull<std::ffi::c_void>;

fn map(length: usize, protection: ProtFlags, flags: MapFlags) -> Result<Memory, String> {
    let length = NonZeroUsize::new(length).ok_or("a mapping needs a length")?;
    // SAFETY: a new mapping at an address of the kernel's choice disturbs no object.
    unsafe { mmap_anonymous(None, length, protection, flags) }.or_fail()
}

fn at(memory: Memory, offset: usize) -> *mut u8 {
    memory.as_ptr().cast::<u8>().wrapping_add(offset)
}

fn load(memory: Memory, offset: usize) -> u8 {
    // SAFETY: the tests load from mappings of theirs, or want the fault.
    unsafe { at(memory, offset).read_volatile() }
}

fn store(memory: Memory, offset: usize, value: u8) {
    // SAFETY: the tests store to mappings of theirs that no reference covers, or want the fault.
    unsafe { at(memory, offset).write_volatile(value) }
}

/// For values that are read only to see whether the read faults.
fn ignore<T>(_: T) {}

fn killed_by(signal: Signal, body: impl FnOnce()) -> Result<bool, String> {
    let ended = in_child(|| {
        // SAFETY: the default disposition runs no code of ours.
        let _ = unsafe { nix::sys::signal::signal(signal, nix::sys::signal::SigHandler::SigDfl) };
        body();
        0
    })?;
    Ok(matches!(ended, WaitStatus::Signaled(_, number, _) if number == signal))
}

fn anonymous_memory_is_zero() -> Outcome {
    let memory = map(64 * PAGE, RW, MapFlags::MAP_PRIVATE)?;
    for page in 0..64 {
        expect_eq!(load(memory, page * PAGE + page), 0);
        store(memory, page * PAGE, page as u8 + 1);
    }
    for page in 0..64 {
        expect_eq!(load(memory, page * PAGE), page as u8 + 1);
    }
    // SAFETY: nothing refers to the mapping any more.
    unsafe { munmap(memory, 64 * PAGE) }.or_fail()?;
    expect!(killed_by(Signal::SIGSEGV, || ignore(load(memory, 0)))?);
    Ok(())
}

fn protection_is_enforced() -> Outcome {
    let memory = map(PAGE, RW, MapFlags::MAP_PRIVATE)?;
    store(memory, 0, 5);
    // SAFETY: only raw accesses follow.
    unsafe { mprotect(memory, PAGE, ProtFlags::PROT_READ) }.or_fail()?;
    expect_eq!(load(memory, 0), 5);
    expect!(killed_by(Signal::SIGSEGV, || store(memory, 0, 6))?);
    // SAFETY: only raw accesses follow.
    unsafe { mprotect(memory, PAGE, ProtFlags::PROT_NONE) }.or_fail()?;
    expect!(killed_by(Signal::SIGSEGV, || ignore(load(memory, 0)))?);
    // SAFETY: only raw accesses follow.
    unsafe { mprotect(memory, PAGE, RW) }.or_fail()?;
    store(memory, 0, 7);
    expect_eq!(load(memory, 0), 7);
    Ok(())
}

fn protection_splits_mappings() -> Outcome {
    let memory = map(10 * PAGE, RW, MapFlags::MAP_PRIVATE)?;
    for page in 0..10 {
        store(memory, page * PAGE, 1);
    }
    let middle = NonNull::new(at(memory, 4 * PAGE).cast()).ok_or("null")?;
    // SAFETY: only raw accesses follow.
    unsafe { mprotect(middle, 2 * PAGE, ProtFlags::PROT_READ) }.or_fail()?;
    store(memory, 3 * PAGE, 2);
    store(memory, 6 * PAGE, 2);
    expect!(killed_by(Signal::SIGSEGV, || store(memory, 4 * PAGE, 2))?);
    expect!(killed_by(Signal::SIGSEGV, || store(memory, 5 * PAGE + 9, 2))?);
    Ok(())
}

fn unmapping_a_middle() -> Outcome {
    let memory = map(3 * PAGE, RW, MapFlags::MAP_PRIVATE)?;
    let middle = NonNull::new(at(memory, PAGE).cast()).ok_or("null")?;
    // SAFETY: nothing refers to the page.
    unsafe { munmap(middle, PAGE) }.or_fail()?;
    store(memory, 0, 1);
    store(memory, 2 * PAGE, 1);
    expect!(killed_by(Signal::SIGSEGV, || store(memory, PAGE, 1))?);
    // SAFETY: unmapping twice is allowed, with or without something there.
    unsafe { munmap(memory, 3 * PAGE) }.or_fail()
}

fn fixed_replaces_and_noreplace_refuses() -> Outcome {
    let memory = map(2 * PAGE, RW, MapFlags::MAP_PRIVATE)?;
    store(memory, 0, 9);
    let address = NonZeroUsize::new(memory.as_ptr() as usize);
    let length = NonZeroUsize::MIN.saturating_add(PAGE - 1);
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED_NOREPLACE;
    // SAFETY: refused, because something is there.
    let refused = unsafe { mmap_anonymous(address, length, RW, flags) };
    expect_eq!(refused.err(), Some(Errno::EEXIST));
    // SAFETY: replaces a mapping of this test's.
    let again = unsafe { mmap_anonymous(address, length, RW, MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED) }
        .or_fail()?;
    expect_eq!(again, memory);
    expect_eq!(load(memory, 0), 0);
    Ok(())
}

fn shared_memory_crosses_fork() -> Outcome {
    let memory = map(4 * PAGE, RW, MapFlags::MAP_SHARED)?;
    store(memory, 0, 1);
    let ended = in_child(|| {
        store(memory, 3 * PAGE, load(memory, 0) + 1);
        0
    })?;
    expect!(matches!(ended, WaitStatus::Exited(_, 0)));
    expect_eq!(load(memory, 3 * PAGE), 2);
    Ok(())
}

fn scratch_file(scratch: &Scratch, pages: usize) -> Result<std::fs::File, String> {
    let mut options = OpenOptions::new();
    let mut file = options.read(true).write(true).create_new(true).open(scratch.path("file")).or_fail()?;
    file.write_all(&vec![b'f'; pages * PAGE]).or_fail()?;
    Ok(file)
}

fn map_file(file: &std::fs::File, length: usize, flags: MapFlags) -> Result<Memory, String> {
    let length = NonZeroUsize::new(length).ok_or("a mapping needs a length")?;
    // SAFETY: a new mapping at an address of the kernel's choice; only raw accesses follow.
    unsafe { mmap(None, length, RW, flags, file, 0) }.or_fail()
}

fn private_file_mapping_copies() -> Outcome {
    let scratch = Scratch::new("private")?;
    let file = scratch_file(&scratch, 2)?;
    let memory = map_file(&file, 2 * PAGE, MapFlags::MAP_PRIVATE)?;
    store(memory, 0, b'm');
    file.write_all_at(b"w", PAGE as u64).or_fail()?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, 0).or_fail()?;
    expect_eq!((byte[0], load(memory, 0)), (b'f', b'm'));
    expect_eq!(load(memory, PAGE), b'w');
    Ok(())
}

fn shared_file_mapping_writes_through() -> Outcome {
    let scratch = Scratch::new("shared")?;
    let file = scratch_file(&scratch, 2)?;
    let memory = map_file(&file, 2 * PAGE, MapFlags::MAP_SHARED)?;
    let second = map_file(&file, 2 * PAGE, MapFlags::MAP_SHARED)?;
    store(memory, 100, b'm');
    let mut byte = [0];
    file.read_exact_at(&mut byte, 100).or_fail()?;
    expect_eq!((byte[0], load(second, 100)), (b'm', b'm'));
    file.write_all_at(b"w", 200).or_fail()?;
    expect_eq!(load(memory, 200), b'w');
    Ok(())
}

fn beyond_end_of_file_is_sigbus() -> Outcome {
    let scratch = Scratch::new("sigbus")?;
    let file = scratch_file(&scratch, 1)?;
    let memory = map_file(&file, 3 * PAGE, MapFlags::MAP_SHARED)?;
    expect_eq!(load(memory, 0), b'f');
    expect!(killed_by(Signal::SIGBUS, || ignore(load(memory, PAGE)))?);
    file.set_len(2 * PAGE as u64 + 10).or_fail()?;
    expect_eq!(load(memory, 2 * PAGE + 9), 0);
    Ok(())
}

fn truncation_takes_mapped_pages() -> Outcome {
    let scratch = Scratch::new("truncated")?;
    let file = scratch_file(&scratch, 3)?;
    let memory = map_file(&file, 3 * PAGE, MapFlags::MAP_SHARED)?;
    expect_eq!(load(memory, 2 * PAGE), b'f');
    file.set_len(PAGE as u64 + 10).or_fail()?;
    expect_eq!((load(memory, PAGE + 9), load(memory, PAGE + 10)), (b'f', 0));
    expect!(killed_by(Signal::SIGBUS, || ignore(load(memory, 2 * PAGE)))?);
    file.set_len(3 * PAGE as u64).or_fail()?;
    expect_eq!(load(memory, 2 * PAGE), 0);
    Ok(())
}

/// The process's page faults that needed no device.
fn faults() -> i64 {
    // SAFETY: the call fills the structure.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage.ru_minflt
    }
}

/// A file that is read in order costs a fault for sixteen pages at most, here fewer as the walk goes on. What is read
/// here and there brings no more than that.
fn a_mapped_file_comes_in_windows() -> Outcome {
    const PAGES: usize = 1024;
    let scratch = Scratch::new("windows")?;
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).open(scratch.path("file")).or_fail()?;
    for page in 0..PAGES {
        file.write_all_at(&[page as u8; PAGE], (page * PAGE) as u64).or_fail()?;
    }
    let length = NonZeroUsize::new(PAGES * PAGE).ok_or("a mapping needs a length")?;
    // SAFETY: a new mapping.
    let memory =
        unsafe { mmap(None, length, ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE, &file, 0) }.or_fail()?;
    for round in 0..2 {
        let before = faults();
        for page in 0..PAGES {
            if load(memory, page * PAGE) != page as u8 {
                return Err(format!("page {page} has {}", load(memory, page * PAGE)));
            }
        }
        let count = faults() - before;
        let most = if is_heddle() { 24 } else { 80 };
        if count > most {
            return Err(format!("{count} faults in round {round}"));
        }
        // SAFETY: the pages come back from the file.
        unsafe { madvise(memory, PAGES * PAGE, MmapAdvise::MADV_DONTNEED) }.or_fail()?;
    }
    // Backwards, and with gaps, nothing doubles; the contents are the same.
    for page in (0..PAGES).rev().chain((0..PAGES).step_by(37)) {
        expect_eq!(load(memory, page * PAGE), page as u8);
    }
    Ok(())
}

fn remap_grows_and_moves() -> Outcome {
    let memory = map(2 * PAGE, RW, MapFlags::MAP_PRIVATE)?;
    store(memory, 0, 1);
    store(memory, PAGE, 2);
    // SAFETY: nothing but the returned address is used afterwards.
    let grown =
        unsafe { mremap(memory, 2 * PAGE, 64 * PAGE, MRemapFlags::MREMAP_MAYMOVE, None) }.or_fail()?;
    expect_eq!((load(grown, 0), load(grown, PAGE), load(grown, 63 * PAGE)), (1, 2, 0));
    // SAFETY: the tail is not used afterwards.
    let shrunk = unsafe { mremap(grown, 64 * PAGE, PAGE, MRemapFlags::empty(), None) }.or_fail()?;
    expect_eq!(shrunk, grown);
    expect!(killed_by(Signal::SIGSEGV, || ignore(load(grown, PAGE)))?);
    Ok(())
}

/// An old length of 0 leaves the old mapping, and makes another of the same memory.
fn remap_maps_shared_memory_once_more() -> Outcome {
    let memory = map(3 * PAGE, RW, MapFlags::MAP_SHARED)?;
    store(memory, PAGE, 1);
    let again = |from: Memory, flags: MRemapFlags, to: Option<Memory>| {
        // SAFETY: nothing is unmapped but a place of the test's own.
        unsafe { mremap(from, 0, 2 * PAGE, flags, to) }
    };
    let second = NonNull::new(at(memory, PAGE).cast()).ok_or("null")?;
    let found = again(second, MRemapFlags::MREMAP_MAYMOVE, None).or_fail()?;
    expect_eq!(load(found, 0), 1);
    store(found, PAGE, 2);
    expect_eq!((load(memory, PAGE), load(memory, 2 * PAGE)), (1, 2));
    let place = map(2 * PAGE, RW, MapFlags::MAP_PRIVATE)?;
    let fixed = MRemapFlags::MREMAP_MAYMOVE | MRemapFlags::MREMAP_FIXED;
    expect_eq!(again(memory, fixed, Some(place)), Ok(place));
    expect_eq!(load(place, PAGE), 1);
    expect_eq!(again(memory, MRemapFlags::empty(), None), Err(Errno::ENOMEM));
    let own = map(PAGE, RW, MapFlags::MAP_PRIVATE)?;
    expect_eq!(again(own, MRemapFlags::MREMAP_MAYMOVE, None), Err(Errno::EINVAL));
    Ok(())
}

fn remap_to_a_fixed_place_unmaps_what_is_too_much() -> Outcome {
    let fixed = MRemapFlags::MREMAP_MAYMOVE | MRemapFlags::MREMAP_FIXED;
    // The tail is another mapping than what is moved.
    let memory = map(4 * PAGE, RW, MapFlags::MAP_PRIVATE)?;
    let tail = NonNull::new(at(memory, 2 * PAGE).cast()).ok_or("null")?;
    store(memory, PAGE, 1);
    // SAFETY: only raw accesses follow.
    unsafe { mprotect(tail, 2 * PAGE, ProtFlags::PROT_READ) }.or_fail()?;
    let place = map(4 * PAGE, RW, MapFlags::MAP_PRIVATE)?;
    store(place, 3 * PAGE, 3);
    // SAFETY: likewise.
    let moved = unsafe { mremap(memory, 4 * PAGE, 2 * PAGE, fixed, Some(place)) };
    expect_eq!(moved, Ok(place));
    expect_eq!((load(place, PAGE), load(place, 3 * PAGE)), (1, 3));
    expect!(killed_by(Signal::SIGSEGV, || ignore(load(memory, 0)))?);
    expect!(killed_by(Signal::SIGSEGV, || ignore(load(memory, 2 * PAGE)))?);
    // What is left is two mappings: an error, after both have gone that were in the way.
    let memory = map(4 * PAGE, RW, MapFlags::MAP_PRIVATE)?;
    let second = NonNull::new(at(memory, PAGE).cast()).ok_or("null")?;
    // SAFETY: likewise.
    unsafe { mprotect(second, PAGE, ProtFlags::PROT_READ) }.or_fail()?;
    // SAFETY: likewise.
    let moved = unsafe { mremap(memory, 4 * PAGE, 2 * PAGE, fixed, Some(place)) };
    expect_eq!(moved, Err(Errno::EFAULT));
    expect!(killed_by(Signal::SIGSEGV, || ignore(load(memory, 2 * PAGE)))?);
    expect!(killed_by(Signal::SIGSEGV, || ignore(load(place, 0)))?);
    expect_eq!((load(memory, PAGE), load(place, 3 * PAGE)), (0, 3));
    Ok(())
}

fn only_own_memory_is_wiped_in_a_child() -> Outcome {
    for (flags, wanted) in [(MapFlags::MAP_PRIVATE, Ok(())), (MapFlags::MAP_SHARED, Err(Errno::EINVAL))] {
        let memory = map(PAGE, RW, flags)?;
        // SAFETY: changes what a child gets.
        let advised = unsafe { libc::madvise(memory.as_ptr(), PAGE, libc::MADV_WIPEONFORK) };
        expect_eq!(Errno::result(advised).map(drop), wanted);
    }
    Ok(())
}

fn dont_need_drops() -> Outcome {
    let memory = map(4 * PAGE, RW, MapFlags::MAP_PRIVATE)?;
    store(memory, PAGE, 1);
    // SAFETY: only raw accesses follow.
    unsafe { madvise(memory, 4 * PAGE, MmapAdvise::MADV_DONTNEED) }.or_fail()?;
    expect_eq!(load(memory, PAGE), 0);
    Ok(())
}

fn huge_sparse_reservation() -> Outcome {
    let length = 16 << 30;
    let memory = map(length, RW, MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE)?;
    for offset in (0..length).step_by(1 << 30) {
        store(memory, offset, 1);
    }
    expect_eq!(load(memory, length - 1), 0);
    let none = map(100 << 30, ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE)?;
    // SAFETY: nothing refers to either mapping.
    unsafe { munmap(memory, length).and(munmap(none, 100 << 30)) }.or_fail()
}

fn break_grows_and_shrinks() -> Outcome {
    // SAFETY: the test process allocates nothing between growing the break and giving it back, and the allocator
    // tolerates a break that somebody else moved.
    unsafe {
        let before = libc::sbrk(0) as usize;
        let old = libc::sbrk(1 << 20) as usize;
        expect_eq!(old, before);
        let memory = std::ptr::with_exposed_provenance_mut::<u8>(old);
        expect_eq!(memory.add((1 << 20) - 1).read_volatile(), 0);
        memory.write_volatile(3);
        expect_eq!(libc::sbrk(-(1 << 20)) as usize, old + (1 << 20));
        expect_eq!(libc::sbrk(0) as usize, before);
    }
    Ok(())
}

fn stack_grows() -> Outcome {
    #[inline(never)]
    fn descend(depth: usize) -> usize {
        let mut frame = [0u8; 4096];
        frame[depth % 4096] = 1;
        std::hint::black_box(&mut frame);
        if depth == 0 { 0 } else { descend(depth - 1) + usize::from(frame[depth % 4096]) }
    }
    expect_eq!(descend(1200), 1200);
    Ok(())
}

fn bad_arguments() -> Outcome {
    let none = std::ptr::null_mut();
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let attempts = [
        (0, anonymous, 0, Errno::EINVAL),
        (PAGE, libc::MAP_ANONYMOUS, 0, Errno::EINVAL),
        (usize::MAX - PAGE, anonymous, 0, Errno::ENOMEM),
        (PAGE, libc::MAP_PRIVATE, 0, Errno::EBADF),
        (PAGE, anonymous, 1, Errno::EINVAL),
    ];
    for (length, flags, offset, expected) in attempts {
        // SAFETY: every attempt is refused.
        let result = unsafe { libc::mmap(none, length, libc::PROT_READ, flags, -1, offset) };
        expect!(result == libc::MAP_FAILED);
        expect_eq!(Errno::last(), expected);
    }
    // SAFETY: refused, because the address is not of a page.
    expect_eq!(unsafe { libc::munmap(std::ptr::without_provenance_mut(1), PAGE) }, -1);
    expect_eq!(Errno::last(), Errno::EINVAL);
    Ok(())
}

fn copy_on_write_both_ways() -> Outcome {
    let memory = map(64 * PAGE, RW, MapFlags::MAP_PRIVATE)?;
    for page in 0..64 {
        store(memory, page * PAGE, 1);
    }
    let (reader, writer) = nix::unistd::pipe().or_fail()?;
    let child = spawn_child(|| {
        let _ = nix::unistd::read(&reader, &mut [0]);
        i32::from((0..64).any(|page| load(memory, page * PAGE) != 1))
    })?;
    for page in 0..64 {
        store(memory, page * PAGE, 2);
    }
    nix::unistd::write(&writer, b"x").or_fail()?;
    expect_eq!(waitpid(child, None).or_fail()?, WaitStatus::Exited(child, 0));
    let ended = in_child(|| {
        (0..64).for_each(|page| store(memory, page * PAGE, 3));
        0
    })?;
    expect!(matches!(ended, WaitStatus::Exited(_, 0)));
    expect!((0..64).all(|page| load(memory, page * PAGE) == 2));
    Ok(())
}

fn execute_generated_code() -> Outcome {
    let memory = map(PAGE, RW, MapFlags::MAP_PRIVATE)?;
    for (offset, byte) in [0xb8, 42, 0, 0, 0, 0xc3].into_iter().enumerate() {
        store(memory, offset, byte);
    }
    // SAFETY: the code is `mov eax, 42; ret`, a function without arguments.
    let call = || unsafe { std::mem::transmute::<*mut u8, extern "C" fn() -> i32>(at(memory, 0))() };
    expect!(killed_by(Signal::SIGSEGV, || ignore(call()))?);
    // SAFETY: only the code above is in the page.
    unsafe { mprotect(memory, PAGE, ProtFlags::PROT_READ | ProtFlags::PROT_EXEC) }.or_fail()?;
    expect_eq!(call(), 42);
    Ok(())
}

fn kernel_addresses_fault() -> Outcome {
    const NOBODYS: usize = 2;
    let all = [0x8000_0000_0000, usize::MAX - 7, 0xffff_8000_0000_0000, 0xffff_ffff_8010_0000];
    // Programs can read the kernel's memory on a machine with direct calls.
    for &address in if is_direct() { &all[..NOBODYS] } else { &all } {
        let pointer = std::ptr::without_provenance_mut::<u8>(address);
        // SAFETY: the access faults by intent.
        expect!(killed_by(Signal::SIGSEGV, || ignore(unsafe { pointer.read_volatile() }))?);
    }
    Ok(())
}

fn bad_pointers_in_calls() -> Outcome {
    let (reader, writer) = nix::unistd::pipe().or_fail()?;
    use std::os::fd::AsRawFd;
    for address in [0x10, 0xffff_8000_0000_0000usize, 0x7fff_ffff_f000, usize::MAX - 7] {
        let pointer = std::ptr::without_provenance_mut::<std::ffi::c_void>(address);
        // SAFETY: the kernel refuses the address.
        let result = unsafe { libc::write(writer.as_raw_fd(), pointer, 8) };
        expect_eq!((result, Errno::last()), (-1, Errno::EFAULT));
        // SAFETY: the kernel refuses the address.
        let result = unsafe { libc::open(pointer.cast(), libc::O_RDONLY) };
        expect_eq!((result, Errno::last()), (-1, Errno::EFAULT));
    }
    nix::unistd::write(&writer, b"12345678").or_fail()?;
    // SAFETY: the kernel refuses the address.
    let result = unsafe { libc::read(reader.as_raw_fd(), std::ptr::without_provenance_mut(0x10), 8) };
    expect_eq!((result, Errno::last()), (-1, Errno::EFAULT));
    let mut buffer = [0; 8];
    expect_eq!(nix::unistd::read(&reader, &mut buffer), Ok(8));
    Ok(())
}

fn many_mappings() -> Outcome {
    let mut all = Vec::new();
    for index in 0..2000usize {
        let protection = if index % 2 == 0 { RW } else { ProtFlags::PROT_READ };
        all.push(map(PAGE * (index % 3 + 1), protection, MapFlags::MAP_PRIVATE)?);
    }
    for (index, memory) in all.iter().enumerate().filter(|(index, _)| index % 2 == 0) {
        store(*memory, 0, index as u8);
    }
    for (index, memory) in all.iter().enumerate().rev() {
        let expected = if index % 2 == 0 { index as u8 } else { 0 };
        expect_eq!(load(*memory, 0), expected);
        // SAFETY: nothing refers to the mapping.
        unsafe { munmap(*memory, PAGE * (index % 3 + 1)) }.or_fail()?;
    }
    Ok(())
}
