//! The workloads, the same code for every side.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::random::{Random, Zipf};
use crate::side::Side;
use crate::store::{AREA_PAGES, BLOB_PAGES, Keys, Store};

/// Keys to a range: the paper's 1 KB.
pub const UNIT: u64 = 1024;
/// Disjoint ranges of the paper's workloads.
pub const RANGES: u64 = 1 << 20;
/// Ranges locked at once in W2.
pub const BATCH: usize = 16;
/// Memory that memset writes to; ranges beyond wrap around.
const ARENA_BYTES: usize = 64 << 20;

/// The operations of the threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// W1: lock a range, perhaps memset 1 KB, unlock. No two threads ask for the same range.
    Fine {
        /// Whether the range is written to.
        memset: bool,
    },
    /// W2: lock sixteen ranges, perhaps memset them, unlock them.
    Batch {
        /// Whether the ranges are written to.
        memset: bool,
    },
    /// Lock and unlock single ranges among this many that stay held.
    Held(u64),
    /// Everybody waits for one range.
    Hot,
    /// Everybody waits for one of 1,000 ranges, chosen with YCSB's skew (0.99).
    Zipf,
    /// Ranges of 1 to 16 units among 1,000 that may overlap; this many of 100 are shared.
    Mix(u64),
    /// Storage engine: reserve 1 MB of a shared aliasing area, show a blob there, read it, give it up.
    Blobs {
        /// Which blobs.
        keys: Keys,
        /// Whether the blob is copied there; otherwise its frames are entered in a table.
        copies: bool,
    },
}

impl Kind {
    /// The name in tables.
    pub fn name(&self) -> String {
        match self {
            Self::Fine { memset: true } => "W1 memset".into(),
            Self::Fine { memset: false } => "W1".into(),
            Self::Batch { memset: true } => "W2 memset".into(),
            Self::Batch { memset: false } => "W2".into(),
            Self::Held(ranges) => format!("held {ranges}"),
            Self::Hot => "hot range".into(),
            Self::Zipf => "zipf 0.99".into(),
            Self::Mix(shared) => format!("{shared}% shared"),
            Self::Blobs { keys, copies: true } => format!("blobs {}", keys.name()),
            Self::Blobs { keys, copies: false } => format!("alias {}", keys.name()),
        }
    }

    fn space(&self) -> u64 {
        match self {
            Self::Held(ranges) => units_around(*ranges) * UNIT,
            Self::Blobs { .. } => AREA_PAGES * UNIT,
            _ => RANGES * UNIT,
        }
    }

    fn writes(&self) -> bool {
        matches!(self, Self::Fine { memset: true } | Self::Batch { memset: true })
    }
}

/// Units of the space in which `held` ranges are spread evenly: at least as many free ones as held ones.
fn units_around(held: u64) -> u64 {
    held * 2 * (4096 / held).max(1)
}

/// The measurements of one run.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Acquisitions (with their releases) a second.
    pub rate: f64,
    /// Nanoseconds of processor time for each: holds still when other programs keep the machine busy.
    pub cpu_ns: f64,
    /// Sampled times of an acquisition with its release, in nanoseconds, if asked for.
    pub latencies_ns: Vec<u32>,
}

/// One thread's view of a run.
struct Worker<'a, S: Side> {
    lock: &'a S,
    thread: u64,
    threads: u64,
    random: Random,
    arena: *mut u8,
    store: Option<&'static Store>,
    zipf: &'a Zipf,
    batch: Vec<S::Held>,
}

impl<S: Side> Worker<'_, S> {
    /// A unit of its own among `units`.
    fn own(&mut self, units: u64) -> u64 {
        self.random.below(units / self.threads) * self.threads + self.thread
    }

    #[inline]
    fn take(&mut self, unit: u64, memset: bool) -> S::Held {
        let held = loop {
            // Nobody else asks for this unit, so a refusal is only ever passing.
            if let Some(held) = self.lock.try_lock(unit * UNIT, (unit + 1) * UNIT) {
                break held;
            }
        };
        if memset {
            self.write(unit);
        }
        held
    }

    #[allow(unsafe_code)] // Threads write to disjoint parts of one arena, which is what the locks are for.
    fn write(&mut self, unit: u64) {
        let offset = (unit * UNIT) as usize % ARENA_BYTES;
        // SAFETY: inside of the arena; racing writers could only come from units that wrap to the same place, and
        // units of different threads differ in their remainder by the number of threads, which divides the arena.
        unsafe { self.arena.add(offset).write_bytes(unit as u8, UNIT as usize) };
    }

    /// One step; how many acquisitions it made.
    #[inline]
    fn step(&mut self, kind: Kind) -> u64 {
        match kind {
            Kind::Fine { memset } => {
                let unit = self.own(RANGES);
                let held = self.take(unit, memset);
                self.lock.unlock(held);
            }
            Kind::Batch { memset } => {
                for _ in 0..BATCH {
                    let unit = self.own(RANGES);
                    // The same range twice in a batch would wait for itself.
                    if let Some(held) = self.lock.try_lock(unit * UNIT, (unit + 1) * UNIT) {
                        if memset {
                            self.write(unit);
                        }
                        self.batch.push(held);
                    }
                }
                self.batch.drain(..).for_each(|held| self.lock.unlock(held));
                return BATCH as u64;
            }
            Kind::Held(ranges) => {
                let units = units_around(ranges);
                let stride = units / ranges;
                // Of every stride the first unit is held: count the others only.
                let free = self.own(ranges * (stride - 1));
                let unit = free / (stride - 1) * stride + 1 + free % (stride - 1);
                let held = self.take(unit, false);
                self.lock.unlock(held);
            }
            Kind::Hot => {
                let held = self.lock.lock(0, UNIT);
                self.lock.unlock(held);
            }
            Kind::Zipf => {
                let unit = self.zipf.item(&mut self.random);
                let held = self.lock.lock(unit * UNIT, (unit + 1) * UNIT);
                self.lock.unlock(held);
            }
            Kind::Mix(shared) => {
                let start = self.random.below(1000);
                let end = start + 1 + self.random.below(16);
                let held = if self.random.below(100) < shared {
                    self.lock.lock_shared(start * UNIT, end * UNIT)
                } else {
                    self.lock.lock(start * UNIT, end * UNIT)
                };
                self.lock.unlock(held);
            }
            Kind::Blobs { keys, copies } => self.read_blob(keys, copies),
        }
        1
    }

    #[allow(unsafe_code)] // The lock on the pages is what the call asks for.
    fn read_blob(&mut self, keys: Keys, copies: bool) {
        let Some(store) = self.store else { return };
        let blob = store.choose(keys, &mut self.random);
        let (page, held) = loop {
            let page = self.random.below(AREA_PAGES - BLOB_PAGES);
            if let Some(held) = self.lock.try_lock(page * UNIT, (page + BLOB_PAGES) * UNIT) {
                break (page, held);
            }
        };
        if copies {
            // SAFETY: the pages are locked.
            unsafe { store.copy(blob, page) };
        } else {
            store.map(blob, page);
        }
        self.lock.unlock(held);
    }
}

/// The arena's address, for the threads of one run.
#[derive(Clone, Copy)]
struct Arena(*mut u8);

#[allow(unsafe_code)] // Sent to the threads that write to disjoint parts of it.
// SAFETY: see `Worker::write`.
unsafe impl Send for Arena {}

/// Locks what stays held while `kind` runs.
fn keep<S: Side>(kind: Kind, lock: &S) -> Vec<S::Held> {
    let Kind::Held(ranges) = kind else { return Vec::new() };
    let stride = units_around(ranges) / ranges;
    // From the upper end down, so that a sorted list inserts at its head.
    let units = (0..ranges).rev().map(|at| at * stride);
    units.filter_map(|unit| lock.try_lock(unit * UNIT, (unit + 1) * UNIT)).collect()
}

/// Runs `operations` acquisitions of a kind that writes nothing on one thread, for a profiler to count.
pub fn count<S: Side>(kind: Kind, operations: u64) {
    let lock = S::new(kind.space());
    let kept = keep(kind, &lock);
    let mut worker = Worker {
        lock: &lock,
        thread: 0,
        threads: 1,
        random: Random::new(0),
        arena: std::ptr::null_mut(),
        store: None,
        zipf: &Zipf::new(1000, 0.99),
        batch: Vec::with_capacity(BATCH),
    };
    let mut done = 0;
    while done < operations {
        done += worker.step(kind);
    }
    kept.into_iter().for_each(|held| lock.unlock(held));
}

/// Runs `kind` with `threads` threads for `time` on a fresh lock.
pub fn run<S: Side>(kind: Kind, threads: usize, time: Duration, latencies: bool) -> Sample {
    let lock = S::new(kind.space());
    let kept = keep(kind, &lock);
    let mut arena = vec![0u8; if kind.writes() { ARENA_BYTES } else { 0 }];
    let arena = Arena(arena.as_mut_ptr());
    let store = matches!(kind, Kind::Blobs { .. }).then(Store::get);
    let zipf = Zipf::new(1000, 0.99);
    let (stop, start) = (AtomicBool::new(false), Barrier::new(threads + 1));
    let mut sample = Sample::default();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let (lock, stop, start, zipf) = (&lock, &stop, &start, &zipf);
                scope.spawn(move || {
                    let arena: Arena = arena;
                    let mut worker = Worker {
                        lock,
                        thread: thread as u64,
                        threads: threads as u64,
                        random: Random::new(thread as u64),
                        arena: arena.0,
                        store,
                        zipf,
                        batch: Vec::with_capacity(BATCH),
                    };
                    start.wait();
                    work(&mut worker, kind, stop, latencies)
                })
            })
            .collect();
        start.wait();
        thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        let (mut operations, mut cpu_ns) = (0, 0);
        // By the workers' own clocks: with more threads than cores this thread comes late to both ends.
        let mut span: Option<(Instant, Instant)> = None;
        for worker in workers {
            let (done, mut times, began, ended, cpu) = worker.join().expect("a worker panicked");
            operations += done;
            cpu_ns += cpu;
            sample.latencies_ns.append(&mut times);
            let (first, last) = span.unwrap_or((began, ended));
            span = Some((first.min(began), last.max(ended)));
        }
        sample.cpu_ns = cpu_ns as f64 / operations as f64;
        sample.rate = span.map_or(0.0, |(first, last)| operations as f64 / (last - first).as_secs_f64());
    });
    kept.into_iter().for_each(|held| lock.unlock(held));
    sample
}

fn work<S: Side>(
    worker: &mut Worker<'_, S>,
    kind: Kind,
    stop: &AtomicBool,
    latencies: bool,
) -> (u64, Vec<u32>, Instant, Instant, u64) {
    let (mut operations, mut times, began, cpu) = (0, Vec::new(), Instant::now(), thread_cpu_ns());
    while !stop.load(Ordering::Relaxed) {
        if latencies {
            let before = Instant::now();
            operations += worker.step(kind);
            times.push(before.elapsed().as_nanos().min(u128::from(u32::MAX)) as u32);
        } else {
            operations += worker.step(kind);
        }
    }
    (operations, times, began, Instant::now(), thread_cpu_ns() - cpu)
}

/// Processor time of the running thread.
fn thread_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
