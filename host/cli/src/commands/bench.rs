//! `heddle bench`: experiments, each with all its sides in one run.

use std::time::Instant;

use anyhow::Result;

use crate::bench::baseline::{self, Outcome};
use crate::bench::experiments::{ALL, EVERY};
use crate::bench::{self, Effort, Interrupt, Interrupted, Request, summary};
use crate::machine::accelerator;
use crate::paths;
use crate::{STATUS_SIGNAL_BASE, STATUS_TOOL_FAILED};

/// Runs an experiment, or lists them.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchOptions {
    /// The experiment, or `all` for one after the other; without a name, all are listed.
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// The shortest run that shows anything.
    #[arg(long, conflicts_with = "full")]
    pub quick: bool,
    /// All points that the papers show.
    #[arg(long)]
    pub full: bool,
    /// Processors of the machines that have more than one.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=8))]
    pub smp: Option<u32>,
    /// The accelerator.
    #[command(flatten)]
    pub accelerator: accelerator::AcceleratorOptions,
    /// How many times to repeat measurements that vary.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: Option<u32>,
    /// Only make tables and plots of the kept results again.
    #[arg(long, requires = "name", conflicts_with_all = ["quick", "full", "smp", "runs", "check"])]
    pub draw: bool,
    /// Compare instruction counts with the committed ones, and fail where one has risen by more than 5 %.
    #[arg(long, group = "kept", conflicts_with_all = ["smp", "runs"])]
    pub check: bool,
    /// Print the main figures of all kept results, as bench/README.md shows them.
    #[arg(long, group = "kept", conflicts_with_all = ["name", "quick", "full", "smp", "runs"])]
    pub summary: bool,
    /// With `--check`, replace the committed instruction counts by new ones; with `--summary`, the tables in
    /// bench/README.md.
    #[arg(long, requires = "kept", visible_alias = "accept")]
    pub update: bool,
}

/// Runs the command and says with which status to end.
///
/// # Errors
/// Any failure that keeps the experiment from being run.
pub fn execute(options: &BenchOptions) -> Result<u8> {
    accelerator::choose(options.accelerator.accel);
    let result = match (&options.name, options.check) {
        _ if options.summary => summary(options.update).map(|()| 0),
        (name, true) => check(name.as_deref(), options.update),
        (Some(name), false) if options.draw => bench::draw(name).map(|()| 0),
        (Some(name), false) if name == EVERY => every(options).map(|()| 0),
        (Some(name), false) => bench::run(&request(options, name), &Interrupt::watch()?).map(|()| 0),
        (None, false) => {
            for experiment in ALL {
                println!("{:10} {}", experiment.name, experiment.summary);
            }
            Ok(0)
        }
    };
    result.or_else(|error| {
        if error.is::<Interrupted>() {
            let interrupt = rustix::process::Signal::INT.as_raw();
            return Ok(STATUS_SIGNAL_BASE + u8::try_from(interrupt).unwrap_or(STATUS_TOOL_FAILED));
        }
        Err(error)
    })
}

/// Runs one experiment after the other, and says how long each took.
fn every(options: &BenchOptions) -> Result<()> {
    let (begin, interrupt) = (Instant::now(), Interrupt::watch()?);
    for experiment in ALL {
        let begin = Instant::now();
        bench::run(&request(options, experiment.name), &interrupt)?;
        crate::say!("{} took {} s", experiment.name, begin.elapsed().as_secs());
    }
    crate::say!("all took {} s", begin.elapsed().as_secs());
    Ok(())
}

fn summary(update: bool) -> Result<()> {
    if update {
        return summary::write(&paths::repository()?.join("bench/README.md"));
    }
    print!("{}", summary::render()?);
    Ok(())
}

/// Compares instruction counts, or replaces the committed ones.
fn check(name: Option<&str>, update: bool) -> Result<u8> {
    let experiments = baseline::checked(name)?;
    if update {
        return baseline::update(&experiments).map(|()| 0);
    }
    let mut is_good = true;
    for (name, outcome) in baseline::check(&experiments)? {
        let lines = match outcome {
            Outcome::Good(lines) => lines,
            Outcome::Bad(_, lines) => {
                is_good = false;
                lines
            }
            Outcome::NotComparable(reason) => vec![format!("not comparable: {reason}")],
        };
        for line in lines {
            println!("{name}: {line}");
        }
    }
    Ok(u8::from(!is_good))
}

fn request(options: &BenchOptions, name: &str) -> Request {
    let mut command = format!("./heddle bench {name}");
    let effort = match (options.quick, options.full) {
        (true, _) => Effort::Quick,
        (_, true) => Effort::Full,
        _ => Effort::Normal,
    };
    for (flag, is_set) in [(" --quick", options.quick), (" --full", options.full)] {
        command += if is_set { flag } else { "" };
    }
    for (flag, value) in [("smp", options.smp), ("runs", options.runs)] {
        command += &value.map_or_else(String::new, |value| format!(" --{flag} {value}"));
    }
    Request {
        name: name.to_owned(),
        effort,
        processors: options.smp,
        runs: options.runs.map(|runs| runs as usize),
        command,
    }
}
