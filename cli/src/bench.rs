//! `heddle bench`: every claim beside Linux or a rival, all sides in one run on the same machine.
//!
//! An experiment is a [`plan`] of machines and what runs in them, or a tool of its own on the host ([`host`]), or
//! `boot`, whose subject is the machine itself. All end in a [`record::Record`], which becomes a table, JSON and
//! drawings.

mod baseline;
mod boot;
mod elf;
mod environment;
mod goal;
mod guest;
mod host;
mod machines;
pub mod plan;
mod plot;
mod progress;
mod record;
mod side;
mod table;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

pub use baseline::{check, update};
pub use plan::Effort;

use environment::Environment;
use goal::Goal;
use machines::Rounds;
use record::{Record, SCHEMA, Scale};

/// The side whose goals are judged.
const OURS: &str = "heddle";
/// Where results are kept, below the repository.
const RESULTS: &str = "bench/results";

/// An experiment that can be asked for by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experiment {
    /// Its name on the command line and the name of its folder of results.
    pub name: &'static str,
    /// What it measures, in a line.
    pub summary: &'static str,
}

/// All experiments.
pub const EXPERIMENTS: [Experiment; 8] = [
    Experiment {
        name: "boot",
        summary: "from command to exit of `true`, guest time to main, memory floor, sizes",
    },
    Experiment {
        name: "syscalls",
        summary: "system calls, pairs of threads and processes, making and ending them",
    },
    Experiment { name: "yield", summary: "paper 5: two processes that yield to each other" },
    Experiment { name: "ring", summary: "papers 1 and 2, A: N threads that take turns" },
    Experiment { name: "pipeline", summary: "papers 1 and 2, B: N threads joined by pipes" },
    Experiment { name: "memory", summary: "mapping, touching and unmapping disjoint memory on 1 to 4 CPUs" },
    Experiment { name: "executors", summary: "heddle-coroutine beside other executors, on this host" },
    Experiment { name: "ranges", summary: "heddle-range-lock beside other range locks, on this host" },
];

/// The user wants it to end.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Notices signals that ask this tool to end, between machines; while one runs, its session does.
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Starts to notice.
    ///
    /// # Errors
    /// What the system says.
    pub fn watch() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in
            [rustix::process::Signal::INT, rustix::process::Signal::TERM, rustix::process::Signal::HUP]
        {
            signal_hook::flag::register(signal.as_raw(), flag.clone()).context("watching signals")?;
        }
        Ok(Self(flag))
    }

    /// # Errors
    /// [`Interrupted`] once a signal has come.
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) { Err(Interrupted.into()) } else { Ok(()) }
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Request {
    /// The experiment's name.
    pub name: String,
    /// How long to measure.
    pub effort: Effort,
    /// Processors of the machines that have more than one.
    pub processors: Option<u32>,
    /// How often to measure what varies.
    pub runs: Option<usize>,
    /// The command line that repeats it.
    pub command: String,
}

/// Runs an experiment, prints its table, and keeps the results.
///
/// # Errors
/// If there is no such experiment, the user interrupted, or something that it needs is missing.
pub fn run(request: &Request) -> Result<()> {
    let known = EXPERIMENTS.iter().any(|experiment| experiment.name == request.name);
    anyhow::ensure!(known, "no experiment '{}'; `./heddle bench` lists them", request.name);
    let interrupt = Interrupt::watch()?;
    let mut record = Record {
        schema: SCHEMA,
        experiment: request.name.clone(),
        command: request.command.clone(),
        environment: Environment::here()?,
        reference: "linux".to_owned(),
        ..Record::default()
    };
    let outcome = measure(request, &mut record, &interrupt);
    let goals = match outcome {
        Ok(goals) => goals,
        // What was measured until then is worth keeping.
        Err(error) if error.is::<Interrupted>() && !record.figures.is_empty() => {
            record.note("interrupted: fewer rounds than asked for".to_owned());
            finish(record, &[])?;
            return Err(error);
        }
        Err(error) => return Err(error),
    };
    finish(record, &goals)
}

/// Runs the experiment into `record`, and says what is wanted of it.
fn measure(request: &Request, record: &mut Record, interrupt: &Interrupt) -> Result<Vec<Goal>> {
    let runs = request.runs.unwrap_or(request.effort.runs());
    match request.name.as_str() {
        "boot" => boot::run(request.effort, runs, record, interrupt),
        "executors" | "ranges" => host::run(request, record, interrupt),
        _ => {
            let plan = plan::plan(&request.name, request.effort, request.processors)
                .with_context(|| format!("no plan for '{}'", request.name))?;
            record.axis = plan.axis.map(str::to_owned);
            let rounds = Rounds { emulated: runs, instructions: request.effort.instruction_runs() };
            let runner = guest::Runner::new()?;
            let progress = progress::Progress::new(rounds.machines(&plan))?;
            machines::run(&plan, rounds, &runner, record, &progress, interrupt)?;
            Ok(plan.goals)
        }
    }
}

/// Computes what follows, prints the table, and keeps everything.
fn finish(mut record: Record, goals: &[Goal]) -> Result<()> {
    record.summarize();
    let verdicts: Vec<_> = goals.iter().flat_map(|goal| goal.judge(&record, OURS)).collect();
    record.goals.extend(verdicts);
    print!("{}", table::render(&record));
    let folder = keep(&record)?;
    eprintln!("heddle: results are in {}", folder.display());
    Ok(())
}

/// Writes what there is to keep.
fn keep(record: &Record) -> Result<PathBuf> {
    let folder = crate::paths::repository()?.join(RESULTS).join(&record.experiment);
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string())
    };
    write("results.json", &(serde_json::to_string_pretty(record)? + "\n"))?;
    write("table.md", &table::render(record))?;
    for scale in [Scale::Instructions, Scale::Emulated, Scale::Native] {
        if record.figures.iter().any(|figure| figure.scale == scale) {
            plot::draw(record, scale, &folder.join(format!("{}.svg", scale.name())))?;
        }
    }
    Ok(folder)
}
