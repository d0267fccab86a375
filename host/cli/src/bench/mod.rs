//! `heddle bench`: every claim beside Linux or a rival, all sides in one run on the same machine.
//!
//! An experiment is a file in [`experiments`]: mostly a [`plan`] of machines and what runs in them. All end in a
//! [`record::Record`], which becomes a table, JSON and drawings.

pub mod baseline;
mod elf;
mod environment;
pub mod experiments;
mod goal;
mod guest;
mod interrupt;
mod machines;
pub mod plan;
mod plot;
mod progress;
mod record;
mod side;
pub mod summary;
mod table;

use std::path::PathBuf;

use anyhow::{Context, Result};

pub use interrupt::{Interrupt, Interrupted};
pub use plan::Effort;

use environment::Environment;
use experiments::{Experiment, Kind};
use goal::Goal;
use machines::Rounds;
use record::{Record, SCHEMA, Scale};

/// The side whose goals are judged.
const OURS: &str = "heddle";
/// Where results are kept, below the repository.
const RESULTS: &str = "bench/results";
/// Where those of quick runs go, which replace none that are kept.
const QUICK_RESULTS: &str = "target/bench-results";
/// Where the experiments' programs are built, below the repository.
const PROGRAM_FOLDER: &str = "target/release";
/// With a load above this, other programs take part of the time of a machine with one processor.
const BUSY_LOAD: f64 = 1.0;

/// The experiments to run, and how.
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
pub fn run(request: &Request, interrupt: &Interrupt) -> Result<()> {
    let experiment = experiments::find(&request.name)?;
    let mut record = Record {
        schema: SCHEMA,
        experiment: request.name.clone(),
        command: request.command.clone(),
        environment: Environment::here()?,
        reference: "linux".to_owned(),
        ..Record::default()
    };
    if record.environment.load.parse().is_ok_and(|load: f64| load > BUSY_LOAD) {
        let load = &record.environment.load;
        record.note(format!("the host was busy when the run began: load {load}"));
    }
    let outcome = measure(experiment, request, &mut record, interrupt);
    if outcome.as_ref().is_err_and(anyhow::Error::is::<Interrupted>) && !record.figures.is_empty() {
        // Figures that were measured until then are shown, and do not replace complete results.
        record.note("interrupted: fewer rounds than asked for; not kept".to_owned());
        record.summarize();
        print!("{}", table::render(&record));
    }
    let results = if request.effort == Effort::Quick { QUICK_RESULTS } else { RESULTS };
    finish(record, &outcome?, results)
}

/// Runs the experiment into `record`, and says what is wanted of it.
fn measure(
    experiment: &Experiment,
    request: &Request,
    record: &mut Record,
    interrupt: &Interrupt,
) -> Result<Vec<Goal>> {
    let runs = request.runs.unwrap_or(request.effort.runs());
    match experiment.kind {
        Kind::Own(run) => run(request, runs, record, interrupt),
        Kind::Judged(run, judge) => {
            let goals = run(request, runs, record, interrupt)?;
            judge(record);
            Ok(goals)
        }
        Kind::Machines(plan) => {
            let plan = plan(request.effort, request.processors);
            record.axis = plan.axis.map(str::to_owned);
            let rounds = Rounds { emulated: runs, instructions: request.effort.instruction_runs() };
            let runner = guest::Runner::new(plan.packages, interrupt)?;
            let progress = progress::Progress::new(machines::steps(&plan, rounds))?;
            machines::run(&plan, rounds, &runner, record, &progress, interrupt)?;
            Ok(plan.goals)
        }
    }
}

/// Computes what follows, prints the table, and keeps everything.
fn finish(mut record: Record, goals: &[Goal], results: &str) -> Result<()> {
    record.summarize();
    let verdicts: Vec<_> = goals.iter().flat_map(|goal| goal.judge(&record, OURS)).collect();
    record.goals.extend(verdicts);
    print!("{}", table::render(&record));
    let folder = keep(&record, results)?;
    crate::say!("results are in {}", folder.display());
    Ok(())
}

/// Tabulates and draws kept results anew.
///
/// # Errors
/// If there are none, or files can't be written.
pub fn draw(name: &str) -> Result<()> {
    let experiment = experiments::find(name)?;
    let mut record = kept(experiment.name)?.with_context(|| format!("no results of {name} are kept"))?;
    if let Kind::Judged(_, judge) = experiment.kind {
        judge(&mut record);
    }
    print!("{}", table::render(&record));
    keep(&record, RESULTS).map(drop)
}

/// The kept results of an experiment, if there are any.
fn kept(name: &str) -> Result<Option<Record>> {
    let path = crate::paths::repository()?.join(RESULTS).join(name).join("results.json");
    let place = || path.display().to_string();
    if !path.exists() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(&path).with_context(place)?;
    let record: Record = serde_json::from_str(&text).with_context(place)?;
    anyhow::ensure!(record.schema == SCHEMA, "{}: of another version of this tool", place());
    Ok(Some(record))
}

/// Writes what there is to keep, below the folder `results` of the repository.
fn keep(record: &Record, results: &str) -> Result<PathBuf> {
    let folder = crate::paths::repository()?.join(results).join(&record.experiment);
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string())
    };
    write("results.json", &(serde_json::to_string_pretty(record)? + "\n"))?;
    write("table.md", &table::render(record))?;
    for scale in [Scale::Instructions, Scale::Emulated, Scale::Native, Scale::Size] {
        if record.figures.iter().any(|figure| figure.scale == scale) {
            plot::draw(record, scale, &folder.join(format!("{}.svg", scale.name())))?;
        }
    }
    Ok(folder)
}
