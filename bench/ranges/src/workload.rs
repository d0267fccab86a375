//! The workloads, the same code for every side.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::counters::{self, Counters, Counts};
use crate::engine::{self, BlobEngine, BlobSession};
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
    /// Reserve 1 MB of a storage engine's aliasing area, enter a blob's frames in a table of its pages, read them, give
    /// the range up.
    Alias(Keys),
    /// The storage engine itself: a blob of 1 MB is copied out through the shared aliasing area.
    Engine(Keys),
    /// The engine with blobs that find room in the workers' own areas, without a lock: what the rest takes.
    EngineSmall,
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
            Self::Alias(keys) => format!("alias {}", keys.name()),
            Self::Engine(keys) => format!("engine {}", keys.name()),
            Self::EngineSmall => "engine small".into(),
        }
    }

    fn space(&self) -> u64 {
        match self {
            Self::Held(ranges) => units_around(*ranges) * UNIT,
            Self::Alias(_) => AREA_PAGES * UNIT,
            _ => RANGES * UNIT,
        }
    }

    fn new_lock<S: Side>(&self) -> S {
        match self {
            Self::Engine(_) | Self::EngineSmall => S::new_area(engine::AREA_PAGES),
            _ => S::new(self.space()),
        }
    }

    /// Whether it is the thesis' experiment in a storage engine, of which hardware counters are shown.
    pub fn is_engine(&self) -> bool {
        matches!(self, Self::Engine(_) | Self::EngineSmall)
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
    /// Counts of the hardware counters for each, in the storage engine.
    pub counts: Counts,
}

/// One thread's view of a run.
struct Worker<'a, S: Side> {
    lock: &'a S,
    thread: u64,
    threads: u64,
    random: Random,
    arena: *mut u8,
    store: Option<&'static Store>,
    engine: Option<(&'static BlobEngine, BlobSession)>,
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
            Kind::Alias(keys) => self.show_blob(keys),
            Kind::Engine(keys) => {
                if let Some((engine, session)) = &mut self.engine {
                    let blob = engine.choose(keys, &mut self.random);
                    engine.read(self.lock, blob, session);
                }
            }
            Kind::EngineSmall => {
                if let Some((engine, session)) = &mut self.engine {
                    let blob = engine.choose(Keys::Uniform, &mut self.random);
                    engine.read_small(blob, session);
                }
            }
        }
        1
    }

    fn show_blob(&mut self, keys: Keys) {
        let Some(store) = self.store else { return };
        let blob = store.choose(keys, &mut self.random);
        let (page, held) = loop {
            let page = self.random.below(AREA_PAGES - BLOB_PAGES);
            if let Some(held) = self.lock.try_lock(page * UNIT, (page + BLOB_PAGES) * UNIT) {
                break (page, held);
            }
        };
        store.map(blob, page);
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

/// Operations of a kind that writes nothing and is no engine's, made one at a time, for a tracer.
pub struct Steps<S: Side> {
    kind: Kind,
    /// Boxed, as it does not move once something is held.
    lock: Box<S>,
    zipf: Zipf,
}

/// One thread's part of [`Steps`].
pub struct Stepper<'a, S: Side> {
    kind: Kind,
    worker: Worker<'a, S>,
}

impl<S: Side> Steps<S> {
    /// A fresh lock.
    pub fn new(kind: Kind) -> Self {
        let lock: Box<S> = Box::new(kind.new_lock());
        // Held until the program ends.
        std::mem::forget(keep::<S>(kind, &lock));
        Self { kind, lock, zipf: Zipf::new(1000, 0.99) }
    }

    /// The part of thread `thread` of `threads`.
    pub fn worker(&self, thread: usize, threads: usize) -> Stepper<'_, S> {
        let lock: &S = &self.lock;
        let worker = Worker {
            lock,
            thread: thread as u64,
            threads: threads as u64,
            random: Random::new(thread as u64),
            arena: std::ptr::null_mut(),
            store: None,
            engine: None,
            zipf: &self.zipf,
            batch: Vec::with_capacity(BATCH),
        };
        Stepper { kind: self.kind, worker }
    }
}

impl<S: Side> Stepper<'_, S> {
    /// One operation.
    pub fn step(&mut self) {
        self.worker.step(self.kind);
    }
}

/// Runs `operations` acquisitions of a kind that writes nothing on one thread, for a profiler to count.
pub fn count<S: Side>(kind: Kind, operations: u64) {
    let lock: S = kind.new_lock();
    let kept = keep(kind, &lock);
    let mut worker = Worker {
        lock: &lock,
        thread: 0,
        threads: 1,
        random: Random::new(0),
        arena: std::ptr::null_mut(),
        store: None,
        engine: None,
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
    let lock: S = kind.new_lock();
    let kept = keep(kind, &lock);
    let mut arena = vec![0u8; if kind.writes() { ARENA_BYTES } else { 0 }];
    let arena = Arena(arena.as_mut_ptr());
    let store = matches!(kind, Kind::Alias(_)).then(Store::get);
    let engine = kind.is_engine().then(BlobEngine::get);
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
                        engine: engine.map(|engine| (engine, BlobSession::new())),
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
        let (mut operations, mut cpu_ns, mut counted) = (0, 0, Vec::new());
        // By the workers' own clocks: with more threads than cores this thread comes late to both ends.
        let mut span: Option<(Instant, Instant)> = None;
        for worker in workers {
            let ThreadWork { operations: done, mut times, began, ended, cpu_ns: cpu, counts } =
                worker.join().expect("a worker panicked");
            operations += done;
            cpu_ns += cpu;
            counted.push(counts);
            sample.latencies_ns.append(&mut times);
            let (first, last) = span.unwrap_or((began, ended));
            span = Some((first.min(began), last.max(ended)));
        }
        sample.counts = counters::for_each(&counted, operations);
        sample.cpu_ns = cpu_ns as f64 / operations as f64;
        sample.rate = span.map_or(0.0, |(first, last)| operations as f64 / (last - first).as_secs_f64());
    });
    kept.into_iter().for_each(|held| lock.unlock(held));
    sample
}

/// The work of one thread in a run.
struct ThreadWork {
    operations: u64,
    times: Vec<u32>,
    began: Instant,
    ended: Instant,
    cpu_ns: u64,
    counts: Counts,
}

fn work<S: Side>(worker: &mut Worker<'_, S>, kind: Kind, stop: &AtomicBool, latencies: bool) -> ThreadWork {
    let mut counters = kind.is_engine().then(Counters::start);
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
    let counts = counters.as_mut().map(Counters::read).unwrap_or_default();
    ThreadWork { operations, times, began, ended: Instant::now(), cpu_ns: thread_cpu_ns() - cpu, counts }
}

/// Processor time of the running thread.
fn thread_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
