//! `heddle bench ranges`: this project's range lock beside its competitors, all in one run.

use std::error::Error;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use heddle_range_lock_bench::host::Watch;
use heddle_range_lock_bench::lines;
use heddle_range_lock_bench::memory::{self, Order};
use heddle_range_lock_bench::plan::{self, Effort, Entrant, Row};
use heddle_range_lock_bench::plot;
use heddle_range_lock_bench::report::{self, LineCosts, Memory, Report};
use heddle_range_lock_bench::side::Side;
use heddle_range_lock_bench::sides::skiplist::SkipList;
use heddle_range_lock_bench::workload::{self, Kind, Sample};

const USAGE: &str = "usage: heddle-range-lock-bench [OPTIONS]
  --quick        about two minutes; without it, about five
  --full         more rounds, longer runs, more rows: about half an hour
  --memory SIDE  only the memory of a side, with ranges taken in no order, ascending and descending
  --lines        only lines of cache, by valgrind, and what a model makes of them for more cores
  --filter TEXT  only workloads whose name begins with TEXT
  --json FILE    write everything as JSON
  --svg DIR      write plots";

struct Options {
    effort: Effort,
    lines: bool,
    filter: String,
    json: Option<PathBuf>,
    svg: Option<PathBuf>,
}

fn options() -> Result<Options, String> {
    let quick = Effort { rounds: 3, time: Duration::from_millis(25), full: false };
    let full = Effort { rounds: 7, time: Duration::from_millis(150), full: true };
    let normal = Effort { rounds: 5, time: Duration::from_millis(40), full: false };
    let mut options = Options { effort: normal, lines: false, filter: String::new(), json: None, svg: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value\n{USAGE}"));
        match argument.as_str() {
            "--quick" => options.effort = quick,
            "--full" => options.effort = full,
            "--lines" => options.lines = true,
            "--filter" => options.filter = value()?,
            "--json" => options.json = Some(value()?.into()),
            "--svg" => options.svg = Some(value()?.into()),
            _ => return Err(format!("{argument}: unknown\n{USAGE}")),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, side, ranges, order] = &arguments[..]
        && flag == MEMORY
    {
        return exit(memory_of(side, ranges, order));
    }
    if let [flag, side] = &arguments[..]
        && flag == "--memory"
    {
        return exit(memories(&mut Report::default(), side, &Order::ALL));
    }
    if let [flag, side, row] = &arguments[..]
        && flag == lines::TRACED
    {
        return exit(traced(side, row));
    }
    exit(options().map_err(Into::into).and_then(|options| measure(&options)))
}

fn exit(outcome: Result<(), Box<dyn Error>>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("heddle-range-lock-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<(), Box<dyn Error>> {
    let (effort, sides) = (options.effort, plan::entrants());
    let cores = std::thread::available_parallelism()?.get();
    let mut report = Report { parameters: parameters(effort, cores, &sides), ..Report::default() };
    for (name, value) in &report.parameters {
        println!("{name}: {value}");
    }
    let wanted = |row: &Row| row.kind.name().starts_with(&options.filter);
    println!(
        "\nMillions of lock+unlock pairs a second: median, half the range of the rounds, and heddle's ratio to it.\n\
         *: more threads than cores, so preempted holders are measured. !: other programs had more than a tenth of a\n\
         processor meanwhile. x: shared requests served as exclusive."
    );
    report::print_head(&sides);
    let rows = if options.lines {
        plan::line_kinds().map(|kind| Row { kind, threads: 1 }).to_vec()
    } else {
        plan::rows(effort.full)
    };
    for row in rows.into_iter().filter(wanted) {
        let watch = Watch::start();
        let samples = plan::measure(row, &sides, effort, false);
        let figures = report::figures(row, &sides, &samples, cores, watch.was_busy());
        report::print_row(&figures);
        report.figures.extend(figures);
    }
    report::print_cpu(&report.figures, &sides);
    if options.lines {
        lines_of_cache(&mut report, &sides, effort)?;
    } else {
        report::print_counts(&report.figures, &sides);
    }
    if options.filter.is_empty() && !options.lines {
        heights(&mut report, effort, cores);
        latencies(&mut report, &sides, effort);
        lines_of_cache(&mut report, &sides, effort)?;
        memories(&mut report, "", &[Order::Shuffled])?;
    }
    if let Some(file) = &options.json {
        std::fs::write(file, serde_json::to_string_pretty(&report)?)?;
    }
    if let Some(folder) = &options.svg {
        plot::write(&report, folder)?;
    }
    Ok(())
}

fn parameters(effort: Effort, cores: usize, sides: &[Entrant]) -> Vec<(String, String)> {
    let mut parameters = vec![
        ("cores".into(), cores.to_string()),
        ("rounds".into(), effort.rounds.to_string()),
        ("time of a run".into(), format!("{} ms", effort.time.as_millis())),
        ("ranges".into(), format!("{} of {} keys, batches of 16", workload::RANGES, workload::UNIT)),
    ];
    parameters.extend(sides.iter().map(|side| (side.name.into(), (side.parameters)())));
    parameters
}

/// The paper's height sweep, on its own list.
fn heights(report: &mut Report, effort: Effort, cores: usize) {
    fn at<const LEVELS: usize>() -> Entrant {
        Entrant {
            name: NAMES[LEVELS],
            shares: false,
            parameters: String::new,
            run: |kind, threads, time, latencies| {
                workload::run::<Tall<LEVELS>>(kind, threads, time, latencies)
            },
            count: workload::count::<Tall<LEVELS>>,
            traced: lines::traced::<Tall<LEVELS>>,
            memory: memory::measure::<Tall<LEVELS>>,
        }
    }
    println!("\nThe thesis' list by its height (ratio: height 1 over this one)");
    let sides = [at::<1>(), at::<2>(), at::<4>(), at::<6>(), at::<8>(), at::<10>(), at::<12>(), at::<16>()];
    report::print_head(&sides);
    for kind in [Kind::Fine { memset: true }, Kind::Batch { memset: true }, Kind::Held(1_000)] {
        let row = Row { kind, threads: cores };
        let watch = Watch::start();
        let samples: Vec<Vec<Sample>> = plan::measure(row, &sides, effort, false);
        let figures = report::figures(row, &sides, &samples, cores, watch.was_busy());
        report::print_row(&figures);
        report.heights.extend(figures);
    }
}

const NAMES: [&str; 17] = [
    "0",
    "height 1",
    "height 2",
    "3",
    "height 4",
    "5",
    "height 6",
    "7",
    "height 8",
    "9",
    "height 10",
    "11",
    "height 12",
    "13",
    "14",
    "15",
    "height 16",
];

/// The thesis' list at a given height.
struct Tall<const LEVELS: usize>(SkipList);

impl<const LEVELS: usize> Side for Tall<LEVELS> {
    type Held = usize;
    const NAME: &'static str = NAMES[LEVELS];
    const SHARES: bool = false;

    fn new(_: u64) -> Self {
        Self(SkipList::with_levels(LEVELS))
    }

    fn parameters(&self) -> String {
        self.0.parameters()
    }

    fn try_lock(&self, start: u64, end: u64) -> Option<usize> {
        self.0.try_lock(start, end)
    }

    fn lock(&self, start: u64, end: u64) -> usize {
        self.0.lock(start, end)
    }

    fn unlock(&self, held: usize) {
        self.0.unlock(held);
    }
}

fn latencies(report: &mut Report, sides: &[Entrant], effort: Effort) {
    println!("\nNanoseconds of one lock+unlock pair, the clock's own time included: p50 / p99 / p99.9 / max");
    report::print_head(sides);
    for row in plan::latency_rows() {
        let samples = plan::measure(row, sides, effort, true);
        let found = report::latencies(row, sides, &samples);
        print!("{:<14}{:>3} ", row.kind.name(), row.threads);
        for latency in &found {
            let max_us = latency.max_ns / 1000;
            let cell = format!("{}/{}/{}/{max_us}µs", latency.p50_ns, latency.p99_ns, latency.p999_ns);
            print!("{cell:>23}");
        }
        println!();
        report.latencies.extend(found);
    }
}

/// The program that [`lines::count`] starts.
fn traced(side: &str, row: &str) -> Result<(), Box<dyn Error>> {
    let kind = plan::line_kinds().into_iter().find(|kind| kind.name() == row).ok_or("no such row")?;
    let side = plan::entrants().into_iter().find(|entrant| entrant.name == side).ok_or("no such side")?;
    (side.traced)(kind);
    Ok(())
}

/// Lines of cache that an operation writes, and what a model makes of them.
fn lines_of_cache(report: &mut Report, sides: &[Entrant], effort: Effort) -> Result<(), Box<dyn Error>> {
    println!(
        "\nLines of cache in a lock+unlock pair of {} threads that take turns, under valgrind: written / had \
         from other cores /\nhandovers of the line that has most; then millions of pairs a second on {:?} cores by a \
         model, which is no\nmeasurement: {} ns for each line from another core",
        lines::THREADS,
        lines::CORES,
        lines::TRANSFER_NS,
    );
    let kinds = plan::line_kinds();
    let (kinds, sides) = if effort.rounds < 5 { (&kinds[..1], &sides[..3]) } else { (&kinds[..], sides) };
    for (kind, side) in kinds.iter().flat_map(|kind| sides.iter().map(move |side| (kind, side))) {
        let row = kind.name();
        let Some(cost) = lines::count(side.name, &row)? else {
            println!("no valgrind: not counted");
            return Ok(());
        };
        // The time of a pair on one thread, from the table.
        let is_alone = |figure: &&report::Figure| {
            figure.workload == row && figure.side == side.name && figure.threads == 1
        };
        let pair_ns = report.figures.iter().find(is_alone).map_or(0.0, |figure| figure.cpu_ns_each);
        let model = lines::CORES.map(|cores| (cores, cost.model(cores, pair_ns)));
        print!(
            "{row:<14}{:<12}{:>6.1} /{:>5.1} /{:>5.2}   ",
            side.name, cost.written, cost.transferred, cost.hottest
        );
        model.iter().for_each(|(_, rate)| print!("{:>9.1}", rate / 1e6));
        println!();
        report.lines.push(LineCosts { workload: row, side: side.name, cost, model: model.to_vec() });
    }
    Ok(())
}

/// The argument for the role of a program that measures one side's memory and prints it.
const MEMORY: &str = "--memory-of";

/// Ranges held to measure memory with.
const MEMORY_RANGES: [u64; 2] = [1_000, 100_000];

/// Measures memory, each side, or the named one, in a program of its own: what earlier runs left in pools would be
/// taken up here.
fn memories(report: &mut Report, only: &str, orders: &[Order]) -> Result<(), Box<dyn Error>> {
    println!("\n{:<12}{:>8}{:>12}{:>14}{:>14}", "side", "held", "taken", "resident each", "after");
    for side in plan::entrants().iter().filter(|side| only.is_empty() || side.name == only) {
        for (ranges, order) in
            MEMORY_RANGES.iter().flat_map(|ranges| orders.iter().map(move |order| (*ranges, *order)))
        {
            let output = Command::new(std::env::current_exe()?)
                .args([MEMORY, side.name, &ranges.to_string(), order.name()])
                .stderr(Stdio::inherit())
                .output()?;
            let text = String::from_utf8(output.stdout)?;
            let (full, after) = text.trim().split_once(' ').ok_or("no figures of memory")?;
            let (full, bytes_after): (usize, usize) = (full.parse()?, after.parse()?);
            let bytes_per_range = full as f64 / ranges as f64;
            println!(
                "{:<12}{ranges:>8}{:>12}{bytes_per_range:>14.1}{bytes_after:>14}",
                side.name,
                order.name()
            );
            if order == Order::Shuffled {
                report.memory.push(Memory { side: side.name, ranges, bytes_per_range, bytes_after });
            }
        }
    }
    Ok(())
}

/// The program that [`memories`] starts: `--memory-of SIDE RANGES ORDER`.
fn memory_of(side: &str, ranges: &str, order: &str) -> Result<(), Box<dyn Error>> {
    let sides = plan::entrants();
    let side = sides.iter().find(|entrant| entrant.name == side).ok_or("no such side")?;
    let order = Order::of_name(order).ok_or("no such order")?;
    let (full, after) = (side.memory)(ranges.parse()?, order);
    println!("{full} {after}");
    Ok(())
}
