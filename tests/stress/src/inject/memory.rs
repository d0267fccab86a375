//! Calls on mappings.

use super::{Shot, close, must, path, sys};

super::cases! {
    map map_file map_shared map_populated protect unmap move_mapping grow advise program_break residency synchronize
    lock_memory touch_by_read
}

const PAGE: usize = 4096;
const PAGES: usize = 600;
const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;
const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

type Outcome = Result<(), String>;

fn raw_map(length: usize, flags: i32, file: i64) -> i64 {
    sys!(SYS_mmap, 0, length, BOTH, flags, file, 0)
}

/// A mapping whose pages are there, one in three.
fn mapped() -> Result<i64, String> {
    let start = must("mmap", raw_map(PAGES * PAGE, ANONYMOUS, -1))?;
    for page in (0..PAGES).step_by(3) {
        // SAFETY: the mapping is new, and this long.
        unsafe { ((start as usize + page * PAGE) as *mut u8).write_volatile(1) };
    }
    Ok(start)
}

fn unmap_all(start: i64) -> Outcome {
    must("munmap", sys!(SYS_munmap, start, PAGES * PAGE)).map(|_| ())
}

fn map(shot: &mut Shot) -> Outcome {
    unmap_all(shot.fire(|| raw_map(PAGES * PAGE, ANONYMOUS, -1))?)
}

fn map_file(shot: &mut Shot) -> Outcome {
    let name = path("/etc/passwd");
    let file = must("open", sys!(SYS_openat, libc::AT_FDCWD, name.as_ptr(), libc::O_RDONLY))?;
    let start = shot.fire(|| raw_map(PAGE, libc::MAP_PRIVATE, file))?;
    close(file)?;
    must("munmap", sys!(SYS_munmap, start, PAGE)).map(|_| ())
}

fn map_shared(shot: &mut Shot) -> Outcome {
    unmap_all(shot.fire(|| raw_map(PAGES * PAGE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1))?)
}

fn map_populated(shot: &mut Shot) -> Outcome {
    let start = shot.fire(|| raw_map(20 * PAGE, ANONYMOUS | libc::MAP_POPULATE, -1))?;
    must("munmap", sys!(SYS_munmap, start, 20 * PAGE)).map(|_| ())
}

fn protect(shot: &mut Shot) -> Outcome {
    let start = mapped()?;
    let middle = start as usize + 100 * PAGE;
    shot.fire(|| sys!(SYS_mprotect, middle, 30 * PAGE, libc::PROT_READ))?;
    unmap_all(start)
}

fn unmap(shot: &mut Shot) -> Outcome {
    let start = mapped()?;
    let middle = start as usize + 100 * PAGE;
    shot.fire(|| sys!(SYS_munmap, middle, 30 * PAGE))?;
    unmap_all(start)
}

fn move_mapping(shot: &mut Shot) -> Outcome {
    let (start, target) = (mapped()?, must("mmap", raw_map(PAGES * PAGE, ANONYMOUS, -1))?);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    shot.fire(|| sys!(SYS_mremap, start, PAGES * PAGE, PAGES * PAGE, flags, target))?;
    unmap_all(target)
}

fn grow(shot: &mut Shot) -> Outcome {
    let start = must("mmap", raw_map(PAGE, ANONYMOUS, -1))?;
    let moved = shot.fire(|| sys!(SYS_mremap, start, PAGE, PAGES * PAGE, libc::MREMAP_MAYMOVE))?;
    unmap_all(moved)
}

fn advise(shot: &mut Shot) -> Outcome {
    let start = mapped()?;
    for advice in [libc::MADV_WILLNEED, libc::MADV_DONTNEED, libc::MADV_DONTFORK] {
        shot.fire(|| sys!(SYS_madvise, start as usize + 100 * PAGE, 100 * PAGE, advice))?;
    }
    unmap_all(start)
}

/// `brk` says by an unchanged end that it failed.
fn program_break(shot: &mut Shot) -> Outcome {
    let end = must("brk", sys!(SYS_brk, 0))?;
    shot.fire(|| sys!(SYS_brk, end + (PAGES * PAGE) as i64))?;
    let back = sys!(SYS_brk, end);
    if back == end { Ok(()) } else { Err(format!("the break is at {back:#x} instead of {end:#x}")) }
}

fn residency(shot: &mut Shot) -> Outcome {
    let start = mapped()?;
    let mut pages = [0u8; PAGES];
    let pointer = pages.as_mut_ptr();
    shot.fire(|| sys!(SYS_mincore, start, PAGES * PAGE, pointer))?;
    unmap_all(start)
}

fn synchronize(shot: &mut Shot) -> Outcome {
    let start = mapped()?;
    shot.fire(|| sys!(SYS_msync, start, PAGES * PAGE, libc::MS_SYNC))?;
    unmap_all(start)
}

fn lock_memory(shot: &mut Shot) -> Outcome {
    let start = mapped()?;
    shot.fire(|| sys!(SYS_mlock, start, 10 * PAGE))?;
    shot.fire(|| sys!(SYS_munlock, start, 10 * PAGE))?;
    unmap_all(start)
}

/// The kernel itself brings pages in.
fn touch_by_read(shot: &mut Shot) -> Outcome {
    let name = path("/etc/passwd");
    let file = must("open", sys!(SYS_openat, libc::AT_FDCWD, name.as_ptr(), libc::O_RDONLY))?;
    let start = must("mmap", raw_map(PAGES * PAGE, ANONYMOUS, -1))?;
    shot.fire(|| sys!(SYS_pread64, file, start as usize + 200 * PAGE - 10, 100, 0))?;
    close(file)?;
    unmap_all(start)
}
