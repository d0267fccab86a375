//! One-sided system calls and page faults: `calls n=ITERATIONS [only=NAME]`.
#![allow(unsafe_code, reason = "the calls are made without a library between, and mappings are raw memory")]

use std::fs::File;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::arguments::Arguments;
use crate::measure::{check, repeat};

const BLOCK_BYTES: usize = 4096;

type Step = Box<dyn FnMut() -> Result<(), std::io::Error>>;
type Prepare = fn() -> Result<Step, std::io::Error>;

/// Runs every call, or the one named `only`.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let iterations = arguments.number("n", 10_000)?;
    let only = arguments.text("only", "");
    let benches: [(&str, Prepare); 11] = [
        ("null", null),
        ("clock", clock),
        ("read-4k", read_block),
        ("write-4k", write_block),
        ("open-close", open_close),
        ("stat", stat),
        ("epoll", epoll),
        ("signal", signal),
        ("mmap-touch-unmap", map_touch_unmap),
        ("page-fault", page_fault),
        (MAPPED_FILE, mapped_file),
    ];
    let is_meant = |name: &str| if only.is_empty() { name != MAPPED_FILE } else { only == name };
    for (name, prepare) in benches.iter().filter(|(name, _)| is_meant(name)) {
        match prepare() {
            Ok(step) => repeat(name, iterations, step)?,
            Err(error) => println!("absent {name}: {error}"),
        }
    }
    Ok(())
}

fn null() -> Result<Step, std::io::Error> {
    // SAFETY: getppid has no preconditions.
    Ok(Box::new(|| check(unsafe { libc::syscall(libc::SYS_getppid) }).map(drop)))
}

fn clock() -> Result<Step, std::io::Error> {
    Ok(Box::new(|| {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the result lives in this frame.
        check(unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) }.into()).map(drop)
    }))
}

/// A file of one block in the temporary file system.
fn block_file() -> Result<File, std::io::Error> {
    let path = format!("/tmp/heddle-bench-{}", std::process::id());
    std::fs::write(&path, [1; BLOCK_BYTES])?;
    let file = File::options().read(true).write(true).open(&path);
    std::fs::remove_file(&path)?;
    file
}

fn read_block() -> Result<Step, std::io::Error> {
    use std::os::unix::fs::FileExt;
    let file = block_file()?;
    let mut buffer = [0; BLOCK_BYTES];
    Ok(Box::new(move || file.read_exact_at(&mut buffer, 0)))
}

fn write_block() -> Result<Step, std::io::Error> {
    use std::os::unix::fs::FileExt;
    let file = block_file()?;
    let buffer = [2; BLOCK_BYTES];
    Ok(Box::new(move || file.write_all_at(&buffer, 0)))
}

fn open_close() -> Result<Step, std::io::Error> {
    Ok(Box::new(|| File::open("/etc/passwd").map(drop)))
}

fn stat() -> Result<Step, std::io::Error> {
    Ok(Box::new(|| std::fs::metadata("/etc/passwd").map(drop)))
}

fn epoll() -> Result<Step, std::io::Error> {
    let (reader, writer) = nix::unistd::pipe()?;
    nix::unistd::write(&writer, b"x")?;
    let epoll = Epoll::new(EpollCreateFlags::empty())?;
    epoll.add(&reader, EpollEvent::new(EpollFlags::EPOLLIN, 1))?;
    let mut events = [EpollEvent::empty(); 1];
    Ok(Box::new(move || {
        let _keep = (&reader, &writer);
        epoll.wait(&mut events, EpollTimeout::ZERO).map(drop).map_err(Into::into)
    }))
}

fn signal() -> Result<Step, std::io::Error> {
    extern "C" fn nothing(_: libc::c_int) {}
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler does nothing.
    unsafe { sigaction(Signal::SIGUSR1, &action) }?;
    Ok(Box::new(|| raise(Signal::SIGUSR1).map_err(Into::into)))
}

fn map(pages: usize) -> Result<*mut u8, std::io::Error> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address of the kernel's choice disturbs no object.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), pages * BLOCK_BYTES, protection, flags, -1, 0) };
    if memory == libc::MAP_FAILED { Err(std::io::Error::last_os_error()) } else { Ok(memory.cast()) }
}

fn map_touch_unmap() -> Result<Step, std::io::Error> {
    Ok(Box::new(|| {
        let memory = map(1)?;
        // SAFETY: the page was mapped above, is written once, and nothing refers to it when it goes.
        check(
            unsafe {
                memory.write_volatile(1);
                libc::munmap(memory.cast(), BLOCK_BYTES)
            }
            .into(),
        )
        .map(drop)
    }))
}

/// The call that is made by name only.
const MAPPED_FILE: &str = "mapped-file";

/// Reads a mapped file in order, a byte of each page.
fn mapped_file() -> Result<Step, std::io::Error> {
    const PAGES: usize = 1024;
    let path = format!("/tmp/heddle-bench-mapped-{}", std::process::id());
    std::fs::write(&path, vec![1; PAGES * BLOCK_BYTES])?;
    let file = File::open(&path);
    std::fs::remove_file(&path)?;
    let file = std::os::fd::AsRawFd::as_raw_fd(&file?);
    let (length, flags) = (PAGES * BLOCK_BYTES, libc::MAP_PRIVATE);
    // SAFETY: a new mapping, which outlives its descriptor.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, flags, file, 0) };
    if memory == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    let mut page = 0;
    Ok(Box::new(move || {
        // SAFETY: the page lies in the mapping above, of which nothing is changed; its pages come back from the file.
        unsafe {
            memory.cast::<u8>().add(page * BLOCK_BYTES).read_volatile();
            page = (page + 1) % PAGES;
            if page == 0 {
                check(libc::madvise(memory, length, libc::MADV_DONTNEED).into())?;
            }
        }
        Ok(())
    }))
}

fn page_fault() -> Result<Step, std::io::Error> {
    const PAGES: usize = 1024;
    let memory = map(PAGES)?;
    let mut page = 0;
    Ok(Box::new(move || {
        // SAFETY: the page lies in the mapping above, which is never unmapped and otherwise unused; dropping its
        // content makes the next round fault again.
        unsafe {
            memory.add(page * BLOCK_BYTES).write_volatile(1);
            page = (page + 1) % PAGES;
            if page == 0 {
                check(libc::madvise(memory.cast(), PAGES * BLOCK_BYTES, libc::MADV_DONTNEED).into())?;
            }
        }
        Ok(())
    }))
}
