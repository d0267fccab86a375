//! Files that are mapped to be written, in the current folder, which is one of another system's: what was stored comes
//! out there. `mapped` checks contents from several processes; `mapped-large` writes to more than the memory holds.
#![allow(unsafe_code, reason = "memory is shared with other processes, and fork has no safe form")]

use std::fs::{File, OpenOptions};
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, MsFlags, ProtFlags, mmap, msync, munmap};
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use crate::arguments::Plan;
use crate::random::Random;

const PAGE: usize = 4096;
/// Pages of each file, and bytes after them.
const PAGES: usize = 5;
const TAIL: usize = 100;

/// A file's pages, shared with everybody who has them.
struct Mapping {
    start: NonNull<libc::c_void>,
    length: usize,
}

impl Mapping {
    fn new(file: &File, length: usize) -> Result<Self, String> {
        let size = NonZeroUsize::new(length).ok_or("nothing to map")?;
        let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a mapping of its own, at an address that the kernel chooses.
        let start = unsafe { mmap(None, size, rights, MapFlags::MAP_SHARED, file, 0) };
        Ok(Self { start: start.map_err(|error| format!("mmap: {error}"))?, length })
    }

    fn at(&self, index: usize) -> *mut u8 {
        assert!(index < self.length);
        // SAFETY: inside the mapping.
        unsafe { self.start.as_ptr().cast::<u8>().add(index) }
    }

    fn load(&self, index: usize) -> u8 {
        // SAFETY: inside the mapping; another process may write there, which gives one of the two bytes.
        unsafe { self.at(index).read_volatile() }
    }

    fn store(&self, index: usize, value: u8) {
        // SAFETY: as above.
        unsafe { self.at(index).write_volatile(value) };
    }

    fn sync(&self) -> Result<(), String> {
        // SAFETY: the whole mapping.
        unsafe { msync(self.start, self.length, MsFlags::MS_SYNC) }.map_err(|error| format!("msync: {error}"))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody has a reference into it.
        let _ = unsafe { munmap(self.start, self.length) };
    }
}

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?}, expected {expected:?}")) }
}

fn create(name: &str, bytes: &[u8]) -> Result<File, String> {
    let text = |error: std::io::Error| format!("{name}: {error}");
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(name).map_err(text)?;
    file.write_all_at(bytes, 0).map_err(text)?;
    Ok(file)
}

fn read(file: &File, offset: usize, length: usize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; length];
    let count = file.read_at(&mut bytes, offset as u64).map_err(|error| format!("read: {error}"))?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Runs `work` in a child and says how it ended.
fn in_child(work: impl FnOnce() -> Result<(), String>) -> Result<WaitStatus, String> {
    // SAFETY: this program has one thread.
    match unsafe { fork() }.map_err(|error| format!("fork: {error}"))? {
        ForkResult::Child => {
            let result = work();
            if let Err(reason) = &result {
                println!("in a child: {reason}");
            }
            // SAFETY: ends the child as it is, with its mappings.
            unsafe { libc::_exit(i32::from(result.is_err())) }
        }
        ForkResult::Parent { child } => waitpid(child, None).map_err(|error| format!("wait: {error}")),
    }
}

fn ends_well(status: WaitStatus) -> Result<(), String> {
    match status {
        WaitStatus::Exited(_, 0) => Ok(()),
        other => Err(format!("a child ended with {other:?}")),
    }
}

/// The contents of each file.
fn pattern() -> Vec<u8> {
    (0..PAGES * PAGE + TAIL).map(|index| (index % 251) as u8).collect()
}

/// Stored bytes reach the file: by msync, at the end of the mapping, and at the end of a process that exits or is
/// killed.
fn comes_out() -> Result<(), String> {
    let mut expected = pattern();
    let file = create("synced", &expected)?;
    let mapping = Mapping::new(&file, expected.len())?;
    for index in (0..expected.len()).step_by(1000) {
        expect("mapped byte", mapping.load(index), expected[index])?;
        mapping.store(index, 255);
        expected[index] = 255;
    }
    mapping.sync()?;
    expect("what was synced", read(&file, 0, expected.len() + 1)? == expected, true)?;
    // Behind the end of the file the page is there, and nothing comes out.
    mapping.store(expected.len() - 1, 254);
    // SAFETY: in the last page, behind the mapping's last byte.
    unsafe { mapping.at(expected.len() - 1).add(1).write_volatile(253) };
    drop(mapping);
    expected.pop();
    expected.push(254);
    expect("what was unmapped", read(&file, 0, expected.len() + 1)? == expected, true)?;
    for (name, killed) in [("left", false), ("killed", true)] {
        let file = create(name, &pattern())?;
        let status = in_child(|| {
            let mapping = Mapping::new(&file, PAGE)?;
            mapping.store(7, 99);
            if killed {
                raise(Signal::SIGKILL).map_err(|error| error.to_string())?;
            }
            std::mem::forget(mapping);
            Ok(())
        })?;
        expect("how it ended", matches!(status, WaitStatus::Signaled(_, Signal::SIGKILL, _)), killed)?;
        expect("what it left", read(&file, 7, 1)?, vec![99])?;
    }
    Ok(())
}

/// Whoever touches what the file has no longer is told.
fn cut_off() -> Result<(), String> {
    let file = create("cut", &pattern())?;
    let mapping = Mapping::new(&file, PAGES * PAGE)?;
    mapping.store(3 * PAGE, 1);
    file.set_len(PAGE as u64 + 10).map_err(|error| format!("ftruncate: {error}"))?;
    let status = in_child(|| expect("a byte that is gone", mapping.load(3 * PAGE), 0))?;
    expect("its end", matches!(status, WaitStatus::Signaled(_, Signal::SIGBUS, _)), true)?;
    expect("a byte that is left", mapping.load(PAGE + 9), pattern()[PAGE + 9])?;
    drop(mapping);
    expect("the length", file.metadata().map_err(|error| error.to_string())?.len(), PAGE as u64 + 10)
}

/// All sides see one file, whichever way it is written.
fn is_one_file() -> Result<(), String> {
    let file = create("one", &pattern())?;
    let mapping = Mapping::new(&file, PAGES * PAGE + TAIL)?;
    let other = Mapping::new(&file, PAGES * PAGE)?;
    mapping.store(5000, 200);
    expect("a store, read", read(&file, 5000, 1)?, vec![200])?;
    expect("a store, mapped", other.load(5000), 200)?;
    file.write_all_at(&[1; 9000], 100).map_err(|error| error.to_string())?;
    expect("a write, mapped", (mapping.load(99), mapping.load(100), other.load(9099)), (99, 1, 1))?;
    ends_well(in_child(|| {
        mapping.store(3 * PAGE, 77);
        let again = File::open("one").map_err(|error| error.to_string())?;
        expect("a store, read by another opening", read(&again, 3 * PAGE, 1)?, vec![77])
    })?)?;
    expect("a child's store", mapping.load(3 * PAGE), 77)?;
    // Cut off in the middle of a page and made longer again: what was behind the cut is zero.
    file.set_len(2 * PAGE as u64 + 50).map_err(|error| error.to_string())?;
    file.set_len(4 * PAGE as u64).map_err(|error| error.to_string())?;
    expect("what was cut off", (mapping.load(2 * PAGE + 49), mapping.load(2 * PAGE + 50)), (1, 0))?;
    expect("a page that was cut off", mapping.load(3 * PAGE), 0)?;
    // It goes on without a name.
    std::fs::remove_file("one").map_err(|error| error.to_string())?;
    mapping.store(3 * PAGE + 5, 5);
    mapping.sync()?;
    expect("without a name", read(&file, 3 * PAGE + 5, 1)?, vec![5])
}

/// Processes write to stripes of their own, by all ways in turn, and find what they wrote.
fn stripes(plan: &Plan) -> Result<(), String> {
    const STRIPE: usize = 64;
    let processes = (plan.processes as usize).clamp(1, PAGE / STRIPE);
    let file = create("stripes", &vec![0; PAGES * PAGE])?;
    let mut children = Vec::new();
    for process in 0..processes {
        // SAFETY: this program has one thread.
        match unsafe { fork() }.map_err(|error| format!("fork: {error}"))? {
            ForkResult::Parent { child } => children.push(child),
            ForkResult::Child => {
                let result = stripe(plan, process, STRIPE);
                if let Err(reason) = &result {
                    println!("in process {process}: {reason}");
                }
                // SAFETY: as in `in_child`.
                unsafe { libc::_exit(i32::from(result.is_err())) }
            }
        }
    }
    for child in children {
        ends_well(waitpid(child, None).map_err(|error| error.to_string())?)?;
    }
    for page in 0..PAGES {
        for process in 0..processes {
            let expected = vec![(plan.steps % 256) as u8; STRIPE];
            expect("a stripe", read(&file, page * PAGE + process * STRIPE, STRIPE)?, expected)?;
        }
    }
    Ok(())
}

fn stripe(plan: &Plan, process: usize, length: usize) -> Result<(), String> {
    let mut random = Random::new(plan.seed, process as u64);
    let file =
        OpenOptions::new().read(true).write(true).open("stripes").map_err(|error| error.to_string())?;
    let mut mapping = Mapping::new(&file, PAGES * PAGE)?;
    let mut model = [[0_u8; PAGE]; PAGES];
    for step in 0..plan.steps {
        let (page, at) = (random.below(PAGES), random.below(length));
        let place = page * PAGE + process * length + at;
        let value = step as u8;
        match random.below(8) {
            0..=2 => {
                mapping.store(place, value);
                model[page][at] = value;
            }
            3 => {
                file.write_all_at(&[value], place as u64).map_err(|error| error.to_string())?;
                model[page][at] = value;
            }
            4 => expect("a byte, read", read(&file, place, 1)?, vec![model[page][at]])?,
            5 => expect("a byte, mapped", mapping.load(place), model[page][at])?,
            6 => mapping.sync()?,
            _ => mapping = Mapping::new(&file, PAGES * PAGE)?,
        }
    }
    for page in 0..PAGES {
        for at in 0..length {
            mapping.store(page * PAGE + process * length + at, (plan.steps % 256) as u8);
        }
    }
    Ok(())
}

/// Runs it all.
pub fn run(plan: &Plan) -> Result<(), String> {
    comes_out().map_err(|reason| format!("what comes out: {reason}"))?;
    cut_off().map_err(|reason| format!("cut off: {reason}"))?;
    // Linux's client keeps mapped pages apart from what is read and written.
    if Path::new("/proc/heddle").exists() {
        is_one_file().map_err(|reason| format!("one file: {reason}"))?;
        stripes(plan).map_err(|reason| format!("stripes: {reason}"))?;
    }
    Ok(())
}

/// Writes to `steps` pages and looks at them again.
pub fn large(plan: &Plan) -> Result<(), String> {
    let pages = plan.steps as usize;
    let file = create("large", b"")?;
    file.set_len((pages * PAGE) as u64).map_err(|error| error.to_string())?;
    let mapping = Mapping::new(&file, pages * PAGE)?;
    let value = |page: usize| (page % 250 + 1) as u8;
    for page in 0..pages {
        mapping.store(page * PAGE + page % PAGE, value(page));
    }
    for page in (0..pages).step_by(7) {
        expect("a byte", mapping.load(page * PAGE + page % PAGE), value(page))?;
    }
    Ok(())
}
