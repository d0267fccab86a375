//! Lines of cache that an operation writes, and those that it takes from other cores: what tells how a lock does on
//! machines with more cores than there are here.
//!
//! A program of a few threads, which take turns one operation at a time, runs under valgrind's lackey, which tells
//! every access to memory. From these [`Caches`] works out which lines a core with a cache of its own, as large as it
//! likes, would have had to get from another. [`LineCost::model`] then says what that comes to on so many cores. It is
//! a model and no measurement: each transfer takes the same time, and the core that waits for one does nothing else.

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use serde::Serialize;

use crate::side::Side;
use crate::workload::{Kind, Steps};

/// The argument for the role of the program that is traced.
pub const TRACED: &str = "--traced";
/// Threads of that program.
pub const THREADS: usize = 8;
/// Operations of each of them that are counted; as many before are not.
const OPERATIONS: u64 = 100;
/// Bytes below and above a variable of its first function that are a thread's stack.
const STACK: (u64, u64) = (128 << 10, 16 << 10);
/// The time that the model gives a line to come from another core, and for which nobody else can have it.
pub const TRANSFER_NS: f64 = 60.0;
/// Numbers of cores that the model is asked about.
pub const CORES: [u32; 4] = [16, 32, 64, 128];

/// The words that a traced thread writes when an operation begins and when it has ended.
#[repr(align(64))]
struct Mark {
    begin: AtomicU64,
    end: AtomicU64,
}

static MARKS: [Mark; THREADS] =
    [const { Mark { begin: AtomicU64::new(0), end: AtomicU64::new(0) } }; THREADS];

/// The traced program: prints where marks and stacks are, and has the threads take turns.
pub fn traced<S: Side>(kind: Kind) {
    println!("marks {:x}", MARKS.as_ptr().addr());
    let shared = Steps::<S>::new(kind);
    let turn = (Mutex::new(0), Condvar::new());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (shared, turn) = (&shared, &turn);
            scope.spawn(move || {
                let here = 0_u8;
                println!("stack {:x}", (&raw const here).addr());
                let mut steps = shared.worker(thread, THREADS);
                for number in 0..2 * OPERATIONS {
                    let is_others = |now: &mut u64| *now % THREADS as u64 != thread as u64;
                    let now = turn.0.lock().unwrap_or_else(PoisonError::into_inner);
                    let mut now = turn.1.wait_while(now, is_others).unwrap_or_else(PoisonError::into_inner);
                    let mark = (number >= OPERATIONS).then(|| &MARKS[thread]);
                    mark.into_iter().for_each(|mark| mark.begin.store(1, Ordering::SeqCst));
                    steps.step();
                    mark.into_iter().for_each(|mark| mark.end.store(1, Ordering::SeqCst));
                    *now += 1;
                    turn.1.notify_all();
                }
            });
        }
    });
}

/// The lines of a pair of lock and unlock, on average.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct LineCost {
    /// Lines written, but for the thread's stack.
    pub written: f64,
    /// Lines that came from another core, or were taken from others to be written.
    pub transferred: f64,
    /// How often the line that changes hands most often did.
    pub hottest: f64,
}

impl LineCost {
    /// Pairs a second on so many cores, where one takes `pair_ns` on one core: each is lengthened by its transfers, and
    /// the line that changes hands most often can be with one core only.
    pub fn model(&self, cores: u32, pair_ns: f64) -> f64 {
        let alone = f64::from(cores) / (pair_ns + self.transferred * TRANSFER_NS);
        let limit = if self.hottest > 0.0 { 1.0 / (self.hottest * TRANSFER_NS) } else { f64::INFINITY };
        alone.min(limit) * 1e9
    }
}

/// A line, and the cores that have it.
#[derive(Default)]
struct CachedLine {
    /// A bit for each core.
    holders: u32,
    is_changed: bool,
    handovers: u32,
}

/// The caches of the cores: as large as they need to be, so that a line is only ever lost to another core.
#[derive(Default)]
struct Caches {
    lines: HashMap<u64, CachedLine>,
    written: u64,
    transferred: u64,
    /// Lines that the operation has written so far.
    of_operation: HashSet<u64>,
}

impl Caches {
    /// `core` reads or writes a line.
    fn touch(&mut self, core: usize, address: u64, is_write: bool) {
        let line = self.lines.entry(address).or_default();
        let own = 1 << core;
        let others = line.holders & !own != 0;
        let comes = if is_write { others } else { line.holders & own == 0 && others && line.is_changed };
        if comes {
            self.transferred += 1;
            line.handovers += 1;
        }
        if is_write {
            (line.holders, line.is_changed) = (own, true);
            if self.of_operation.insert(address) {
                self.written += 1;
            }
        } else {
            // The one who had changed it keeps a copy, and memory has it now.
            line.is_changed &= line.holders & !own == 0;
            line.holders |= own;
        }
    }

    fn cost(&self, operations: u64) -> LineCost {
        let each = |count: u64| count as f64 / operations.max(1) as f64;
        let hottest = self.lines.values().map(|line| line.handovers).max().unwrap_or(0);
        LineCost {
            written: each(self.written),
            transferred: each(self.transferred),
            hottest: each(hottest.into()),
        }
    }
}

/// The addresses that the traced program has printed.
#[derive(Default)]
struct TracedLayout {
    marks: u64,
    stacks: Vec<u64>,
}

impl TracedLayout {
    /// The thread whose mark this is, and whether an operation begins.
    fn mark(&self, address: u64) -> Option<(usize, bool)> {
        let offset = address.checked_sub(self.marks).filter(|_| self.marks != 0)?;
        let thread = offset as usize / size_of::<Mark>();
        (thread < THREADS).then_some((thread, offset as usize % size_of::<Mark>() == 0))
    }

    fn is_stack(&self, address: u64) -> bool {
        self.stacks.iter().any(|stack| (stack.saturating_sub(STACK.0)..stack + STACK.1).contains(&address))
    }
}

/// Counts the lines of a row for one side; `None` where there is no valgrind.
///
/// # Errors
/// If the traced program fails, or says nothing of use.
pub fn count(side: &str, row: &str) -> Result<Option<LineCost>, Box<dyn Error>> {
    let started = Command::new("valgrind")
        .args(["--tool=lackey", "--trace-mem=yes", "--basic-counts=no", "--log-fd=1"])
        .arg(std::env::current_exe()?)
        .args([TRACED, side, row])
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn();
    let Ok(mut program) = started else { return Ok(None) };
    let output = program.stdout.take().ok_or("no output")?;
    let (mut caches, mut layout, mut running, mut operations) =
        (Caches::default(), TracedLayout::default(), None, 0);
    for line in BufReader::with_capacity(1 << 20, output).lines() {
        let line = line?;
        let (kind, rest) = line.split_at_checked(3).unwrap_or_default();
        let is_write = match kind {
            " L " => false,
            " S " | " M " => true,
            "I  " => continue,
            _ => {
                note(&mut layout, &line)?;
                continue;
            }
        };
        let Some((address, bytes)) = rest.split_once(',') else { continue };
        let (address, bytes) = (u64::from_str_radix(address, 16)?, bytes.trim().parse::<u64>()?);
        match layout.mark(address) {
            Some((thread, true)) => running = Some(thread),
            Some((_, false)) => {
                operations += u64::from(running.take().is_some());
                caches.of_operation.clear();
            }
            None if layout.is_stack(address) => {}
            None => {
                // Between the operations the threads take turns.
                let Some(core) = running else { continue };
                for line in address / 64..=(address + bytes.max(1) - 1) / 64 {
                    caches.touch(core, line, is_write);
                }
            }
        }
    }
    if !program.wait()?.success() || operations == 0 {
        return Err(format!("{side}, {row}: the traced program failed").into());
    }
    Ok(Some(caches.cost(operations)))
}

/// A line that is the program's own.
fn note(layout: &mut TracedLayout, line: &str) -> Result<(), Box<dyn Error>> {
    match line.split_once(' ') {
        Some(("marks", address)) => layout.marks = u64::from_str_radix(address, 16)?,
        Some(("stack", address)) => layout.stacks.push(u64::from_str_radix(address, 16)?),
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_when_they_come_from_another_core() {
        let mut caches = Caches::default();
        // The first to come finds it in memory, and keeps it.
        caches.touch(0, 1, true);
        caches.touch(0, 1, false);
        assert_eq!((caches.written, caches.transferred), (1, 0));
        // Read by others it comes once from who changed it, then from memory.
        caches.touch(1, 1, false);
        caches.touch(2, 1, false);
        assert_eq!(caches.transferred, 1);
        // Written again it is taken from all.
        caches.touch(0, 1, true);
        caches.touch(1, 1, true);
        assert_eq!((caches.written, caches.transferred), (1, 3));
        let cost = caches.cost(2);
        assert_eq!((cost.written, cost.transferred, cost.hottest), (0.5, 1.5, 1.5));
    }

    #[test]
    fn the_model_is_bound_by_transfers_and_by_one_line() {
        let free = LineCost { written: 2.0, transferred: 0.0, hottest: 0.0 };
        assert_eq!(free.model(16, 20.0), 16.0 / 20.0 * 1e9);
        let shared = LineCost { written: 2.0, transferred: 1.0, hottest: 1.0 };
        assert_eq!(shared.model(1, 40.0), 1e9 / (40.0 + TRANSFER_NS));
        assert_eq!(shared.model(128, 40.0), 1e9 / TRANSFER_NS);
    }
}
