//! Which rows are measured, and the loop that alternates the sides.

use std::time::Duration;

use crate::lines;
use crate::memory;
use crate::side::Side;
use crate::sides::bitmap::Bitmap;
use crate::sides::heddle::Heddle;
use crate::sides::kara::Kara;
use crate::sides::kogan::Kogan;
use crate::sides::leanstore::Bits;
use crate::sides::map::MutexMap;
use crate::sides::skiplist::SkipList;
use crate::sides::song::Song;
use crate::sides::stripes::Stripes;
use crate::store::Keys;
use crate::workload::{Kind, Sample, count, run};

/// A competitor as the plan sees it.
#[derive(Clone, Copy)]
pub struct Entrant {
    /// Its name.
    pub name: &'static str,
    /// Whether shared requests share.
    pub shares: bool,
    /// Its tuning.
    pub parameters: fn() -> String,
    /// Measures one row.
    pub run: fn(Kind, usize, Duration, bool) -> Sample,
    /// Runs so many operations of a row on one thread.
    pub count: fn(Kind, u64),
    /// The program whose accesses to memory are traced.
    pub traced: fn(Kind),
    /// Bytes with so many ranges held, and after their release.
    pub memory: fn(u64, memory::Order) -> (usize, usize),
}

fn entrant<S: Side>() -> Entrant {
    Entrant {
        name: S::NAME,
        shares: S::SHARES,
        parameters: || S::new(1024).parameters(),
        run: run::<S>,
        count: count::<S>,
        traced: lines::traced::<S>,
        memory: memory::measure::<S>,
    }
}

/// All sides; this project's first.
pub fn entrants() -> Vec<Entrant> {
    vec![
        entrant::<Heddle>(),
        entrant::<Stripes>(),
        entrant::<MutexMap>(),
        entrant::<Song>(),
        entrant::<Kogan>(),
        entrant::<Kara>(),
        entrant::<Bitmap>(),
        entrant::<Bits>(),
        entrant::<SkipList>(),
    ]
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The operations of the threads.
    pub kind: Kind,
    /// How many there are.
    pub threads: usize,
}

/// How thoroughly to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Rounds; every side runs once in each.
    pub rounds: usize,
    /// Time of one run.
    pub time: Duration,
    /// Whether to measure the rows of `--full` too.
    pub full: bool,
}

/// The rows of the throughput table.
pub fn rows(full: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    let threads: &[usize] = if full { &[1, 2, 4, 8, 16, 32] } else { &[1, 2, 8, 32] };
    let mut add = |kind, threads: &[usize]| rows.extend(threads.iter().map(|&threads| Row { kind, threads }));
    for memset in [true, false] {
        add(Kind::Fine { memset }, threads);
        add(Kind::Batch { memset }, threads);
    }
    for held in [1, 10, 100, 1_000, 10_000, 100_000] {
        add(Kind::Held(held), if full { &[1, 2, 8, 32] } else { &[1, 2, 8] });
    }
    add(Kind::Hot, threads);
    add(Kind::Zipf, threads);
    for shared in [50, 90, 100] {
        add(Kind::Mix(shared), if full { threads } else { &[1, 2, 8] });
    }
    for keys in [Keys::Uniform, Keys::Zipf, Keys::Latest] {
        add(Kind::Alias(keys), if full { threads } else { &[1, 2, 8] });
    }
    for kind in [Kind::EngineSmall, Kind::Engine(Keys::Uniform), Kind::Engine(Keys::Zipf)] {
        add(kind, if full { threads } else { &[1, 2, 8] });
    }
    rows
}

/// The rows whose latencies are measured.
pub fn latency_rows() -> Vec<Row> {
    let kinds = [Kind::Fine { memset: false }, Kind::Held(1_000), Kind::Hot, Kind::Mix(90)];
    kinds.into_iter().flat_map(|kind| [1, 2, 8].map(|threads| Row { kind, threads })).collect()
}

/// The rows whose lines of cache are counted; the first of them alone in a quick run.
pub fn line_kinds() -> [Kind; 4] {
    [Kind::Held(100), Kind::Fine { memset: false }, Kind::Held(1000), Kind::Hot]
}

/// Measures a row: all sides in every round, each round beginning with another one. A warm-up round is thrown away.
pub fn measure(row: Row, sides: &[Entrant], effort: Effort, latencies: bool) -> Vec<Vec<Sample>> {
    let mut samples = vec![Vec::new(); sides.len()];
    for round in 0..effort.rounds {
        for turn in 0..sides.len() {
            let at = (turn + round) % sides.len();
            samples[at].push((sides[at].run)(row.kind, row.threads, effort.time, latencies));
        }
    }
    samples
}
