//! Random operations on mappings, with a model of what every page must contain.
#![allow(unsafe_code, reason = "mapping memory and fork have no safe form")]

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::arguments::Plan;
use crate::random::Random;

const PAGE_BYTES: usize = 4096;
const REGIONS_MAX: usize = 24;
const PAGES_MAX: usize = 40;

/// A mapping and what is in it: the tag of each page's first word, 0 for a page never written.
struct Region {
    address: usize,
    tags: Vec<u64>,
    writable: bool,
    shared: bool,
}

/// Runs all processes and reports the first failure.
pub fn run(plan: &Plan) -> Result<(), String> {
    let mut children = Vec::new();
    for process in 0..plan.processes {
        // SAFETY: this process has one thread.
        match unsafe { fork() }.map_err(|error| error.to_string())? {
            ForkResult::Child => {
                let status = match run_process(plan, process) {
                    Ok(()) => 0,
                    Err(reason) => {
                        eprintln!("process {process}: {reason}");
                        1
                    }
                };
                std::process::exit(status);
            }
            ForkResult::Parent { child } => children.push(child),
        }
    }
    let ends: Vec<_> = children.into_iter().map(|child| waitpid(child, None)).collect();
    let failed = ends.iter().find(|end| !matches!(end, Ok(WaitStatus::Exited(_, 0))));
    failed.map_or(Ok(()), |end| Err(format!("a process ended with {end:?}")))
}

fn run_process(plan: &Plan, process: u64) -> Result<(), String> {
    let worker = |thread| Random::new(plan.seed, process * plan.threads + thread);
    let threads: Vec<_> = (0..plan.threads)
        .map(|thread| {
            let (random, steps) = (worker(thread), plan.steps);
            std::thread::spawn(move || Worker { random, regions: Vec::new() }.run(steps))
        })
        .collect();
    threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
}

struct Worker {
    random: Random,
    regions: Vec<Region>,
}

impl Worker {
    fn run(mut self, steps: u64) -> Result<(), String> {
        for step in 0..steps {
            let choice = self.random.below(100);
            self.step(choice).map_err(|reason| format!("step {step}, choice {choice}: {reason}"))?;
        }
        while !self.regions.is_empty() {
            self.unmap(0)?;
        }
        Ok(())
    }

    fn step(&mut self, choice: usize) -> Result<(), String> {
        if self.regions.is_empty() || (choice < 15 && self.regions.len() < REGIONS_MAX) {
            return self.map();
        }
        let index = self.random.below(self.regions.len());
        match choice {
            0..=49 => self.touch(index),
            50..=59 => self.protect(index),
            60..=67 => self.drop_pages(index),
            68..=75 => self.resize(index),
            76..=85 => self.split(index),
            86..=93 => self.unmap(index),
            _ => self.fork(),
        }
    }

    fn map(&mut self) -> Result<(), String> {
        let pages = self.random.below(PAGES_MAX) + 1;
        let shared = self.random.below(4) == 0;
        let kind = if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, kind | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice disturbs no object.
        let memory =
            unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE_BYTES, protection, flags, -1, 0) };
        if memory == libc::MAP_FAILED {
            return Err(last_error("mmap"));
        }
        let region = Region { address: memory as usize, tags: vec![0; pages], writable: true, shared };
        self.regions.push(region);
        self.check(self.regions.len() - 1)
    }

    fn touch(&mut self, index: usize) -> Result<(), String> {
        self.check(index)?;
        let tag = self.random.next() | 1;
        let page = self.random.below(self.regions[index].tags.len());
        let region = &mut self.regions[index];
        if region.writable {
            region.store(page, tag);
        }
        self.check(index)
    }

    fn protect(&mut self, index: usize) -> Result<(), String> {
        let region = &mut self.regions[index];
        region.writable = !region.writable;
        let write = if region.writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: the region is this worker's, and only raw accesses go there.
        let result =
            unsafe { libc::mprotect(region.pointer(0).cast(), region.bytes(), libc::PROT_READ | write) };
        if result != 0 { Err(last_error("mprotect")) } else { self.check(index) }
    }

    fn drop_pages(&mut self, index: usize) -> Result<(), String> {
        let pages = self.regions[index].tags.len();
        let first = self.random.below(pages);
        let count = self.random.below(pages - first) + 1;
        let region = &mut self.regions[index];
        // SAFETY: the pages are this worker's, and only raw accesses go there.
        let result =
            unsafe { libc::madvise(region.pointer(first).cast(), count * PAGE_BYTES, libc::MADV_DONTNEED) };
        if result != 0 {
            return Err(last_error("madvise"));
        }
        if !region.shared {
            region.tags[first..first + count].fill(0);
        }
        self.check(index)
    }

    fn resize(&mut self, index: usize) -> Result<(), String> {
        let pages = self.random.below(PAGES_MAX) + 1;
        let region = &mut self.regions[index];
        if region.shared && pages > region.tags.len() {
            return Ok(());
        }
        // SAFETY: the region is this worker's, and its old address is not used afterwards.
        let memory = unsafe {
            libc::mremap(region.pointer(0).cast(), region.bytes(), pages * PAGE_BYTES, libc::MREMAP_MAYMOVE)
        };
        if memory == libc::MAP_FAILED {
            return Err(last_error("mremap"));
        }
        region.address = memory as usize;
        region.tags.resize(pages, 0);
        self.check(index)
    }

    /// Unmaps a middle, so that one region becomes two.
    fn split(&mut self, index: usize) -> Result<(), String> {
        let pages = self.regions[index].tags.len();
        if pages < 3 {
            return Ok(());
        }
        let hole = 1 + self.random.below(pages - 2);
        let region = &mut self.regions[index];
        // SAFETY: the page is this worker's, and nothing refers to it.
        if unsafe { libc::munmap(region.pointer(hole).cast(), PAGE_BYTES) } != 0 {
            return Err(last_error("munmap"));
        }
        let tags = region.tags.split_off(hole + 1);
        region.tags.pop();
        let (writable, shared) = (region.writable, region.shared);
        let address = region.address + (hole + 1) * PAGE_BYTES;
        self.regions.push(Region { address, tags, writable, shared });
        self.check(index)?;
        self.check(self.regions.len() - 1)
    }

    fn unmap(&mut self, index: usize) -> Result<(), String> {
        self.check(index)?;
        let region = self.regions.swap_remove(index);
        // SAFETY: the region is this worker's, and nothing refers to it any more.
        if unsafe { libc::munmap(region.pointer(0).cast(), region.bytes()) } != 0 {
            return Err(last_error("munmap"));
        }
        Ok(())
    }

    /// A child checks all that this worker has, writes its own copies, and checks again; then so does the parent.
    fn fork(&mut self) -> Result<(), String> {
        let tag = self.random.next() | 1;
        // SAFETY: the child only reads and writes mappings and then leaves by `_exit`.
        let child = match unsafe { fork() }.map_err(|error| format!("fork: {error}"))? {
            ForkResult::Child => {
                let before = self.check_all("at the child's start");
                for region in self.regions.iter_mut().filter(|region| region.writable && !region.shared) {
                    (0..region.tags.len()).step_by(3).for_each(|page| region.store(page, tag));
                }
                let after = self.check_all("after the child's stores");
                // SAFETY: `_exit` has no preconditions.
                unsafe { libc::_exit(i32::from(!before) + 2 * i32::from(!after)) }
            }
            ForkResult::Parent { child } => child,
        };
        self.write_some(tag)?;
        wait_for(child)?;
        (0..self.regions.len()).try_for_each(|index| self.check(index))
    }

    /// Whether everything is as it should be; says what is not.
    fn check_all(&self, when: &str) -> bool {
        let wrong = (0..self.regions.len()).filter_map(|index| self.check(index).err());
        wrong.map(|reason| eprintln!("{when}: {reason}")).count() == 0
    }

    /// Writes while a child may still share the pages.
    fn write_some(&mut self, tag: u64) -> Result<(), String> {
        for region in self.regions.iter_mut().filter(|region| region.writable && !region.shared) {
            (1..region.tags.len()).step_by(4).for_each(|page| region.store(page, tag ^ 2));
        }
        Ok(())
    }

    fn check(&self, index: usize) -> Result<(), String> {
        let region = &self.regions[index];
        for (page, &expected) in region.tags.iter().enumerate() {
            let seen = region.load(page);
            if seen != expected {
                let address = region.address + page * PAGE_BYTES;
                return Err(format!("page {page} at {address:#x} holds {seen:#x}, expected {expected:#x}"));
            }
        }
        Ok(())
    }
}

fn wait_for(child: Pid) -> Result<(), String> {
    match waitpid(child, None) {
        Ok(WaitStatus::Exited(_, 0)) => Ok(()),
        other => Err(format!("the forked child ended with {other:?}")),
    }
}

impl Region {
    fn pointer(&self, page: usize) -> *mut u64 {
        std::ptr::with_exposed_provenance_mut(self.address + page * PAGE_BYTES)
    }

    fn bytes(&self) -> usize {
        self.tags.len() * PAGE_BYTES
    }

    fn store(&mut self, page: usize, tag: u64) {
        // SAFETY: the page is mapped writable for this worker alone and only accessed through raw pointers.
        unsafe {
            self.pointer(page).write_volatile(tag);
            self.pointer(page).add(PAGE_BYTES / 8 - 1).write_volatile(!tag);
        }
        self.tags[page] = tag;
    }

    /// The page's tag, or a value that cannot be one if first and last word don't belong together.
    fn load(&self, page: usize) -> u64 {
        // SAFETY: the page is mapped readable and only accessed through raw pointers.
        let (first, last) = unsafe {
            (self.pointer(page).read_volatile(), self.pointer(page).add(PAGE_BYTES / 8 - 1).read_volatile())
        };
        let together = (first == 0 && last == 0) || last == !first;
        if together { first } else { u64::MAX - 1 }
    }
}

fn last_error(call: &str) -> String {
    format!("{call}: {}", std::io::Error::last_os_error())
}
