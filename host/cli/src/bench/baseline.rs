//! `--check`: instruction counts beside those that were committed, so that a change that makes Heddle slower is seen
//! with the change that did it. Counts are comparable only with the same compiler, emulator and C library.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::environment::Versions;
use super::experiments::{ALL, Experiment, Kind};
use super::guest::Runner;
use super::machines::{self, Rounds};
use super::plan::{Effort, Plan};
use super::progress::{Progress, Step};
use super::record::{Record, SCHEMA, Scale};
use super::side::HEDDLE;
use super::{Interrupt, OURS};
use crate::machine::Clock;
use crate::paths;

/// Where the committed counts are, below the repository.
const FOLDER: &str = "bench/baseline";
/// By which factor a count may rise.
const RISE_MAX: f64 = 1.05;
/// How often counts are taken that seem to have risen, each time with other random numbers: the median counts. A kernel
/// whose instructions are others draws other numbers for its hashes and addresses, and by those alone a call that looks
/// up names takes some percent more or less.
const ROUNDS_IN_DOUBT: usize = 3;

/// The committed counts of an experiment, by versions, because several hosts may check.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Baseline {
    entries: Vec<Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    versions: Versions,
    instructions: BTreeMap<String, f64>,
}

/// The result of comparing an experiment's counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No count rose too far. A line for each.
    Good(Vec<String>),
    /// A line for each count that rose too far, or vanished; and all lines.
    Bad(Vec<String>, Vec<String>),
    /// The versions differ from those of the committed counts, in this way.
    NotComparable(String),
}

/// The experiments whose counts are committed, or the one that is asked for.
///
/// # Errors
/// If that one has none.
pub fn checked(only: Option<&str>) -> Result<Vec<&'static Experiment>> {
    let is_meant = |experiment: &&Experiment| {
        experiment.checked.is_some() && only.is_none_or(|only| only == experiment.name)
    };
    let found: Vec<_> = ALL.iter().filter(is_meant).collect();
    if found.is_empty() {
        let known: Vec<_> =
            ALL.iter().filter(|experiment| experiment.checked.is_some()).map(|one| one.name).collect();
        bail!("no counts are kept of '{}', only of {}", only.unwrap_or_default(), known.join(", "));
    }
    Ok(found)
}

/// Compares the counts of these experiments with the committed ones. Experiments that can't be compared are not
/// measured.
///
/// # Errors
/// If the measurement fails.
pub fn check(experiments: &[&'static Experiment]) -> Result<Vec<(&'static str, Outcome)>> {
    let versions = Versions::here()?;
    let (mut outcomes, mut comparable) = (Vec::new(), Vec::new());
    for experiment in experiments {
        let baseline = read(experiment.name)?;
        match baseline.entries.iter().find(|entry| entry.versions == versions) {
            Some(entry) => comparable.push((*experiment, entry.instructions.clone())),
            None => {
                let reason = difference(&baseline, &versions);
                outcomes.push((experiment.name, Outcome::NotComparable(reason)));
            }
        }
    }
    let measured = measure(&comparable.iter().map(|(experiment, _)| *experiment).collect::<Vec<_>>(), 1)?;
    for ((experiment, committed), mut measured) in comparable.iter().zip(measured) {
        let mut lines = compare(committed, &measured.instructions);
        if lines.iter().any(|line| !line.is_good)
            && let Some(again) = measure(&[experiment], ROUNDS_IN_DOUBT)?.pop()
        {
            measured = again;
            lines = compare(committed, &measured.instructions);
        }
        let text = |line: &Comparison| line.text.clone();
        let mut bad: Vec<_> = lines.iter().filter(|line| !line.is_good).map(text).collect();
        let mut all: Vec<_> = lines.iter().map(text).collect();
        if !bad.is_empty() {
            bad.extend(measured.notes.clone());
            all.extend(measured.notes);
        }
        let outcome = if bad.is_empty() { Outcome::Good(all) } else { Outcome::Bad(bad, all) };
        outcomes.push((experiment.name, outcome));
    }
    Ok(outcomes)
}

/// Why counts cannot be compared with any that is committed.
fn difference(baseline: &Baseline, here: &Versions) -> String {
    let Some(entry) = baseline.entries.first() else { return "no counts are committed".to_owned() };
    let parts = [
        (&entry.versions.rustc, &here.rustc),
        (&entry.versions.qemu, &here.qemu),
        (&entry.versions.libc, &here.libc),
    ];
    let differs = parts.iter().filter(|(committed, here)| committed != here);
    let words: Vec<_> = differs.map(|(committed, here)| format!("{here} here, {committed} there")).collect();
    words.join("; ")
}

/// Measures, and writes the files to commit.
///
/// # Errors
/// If the measurement fails, or the files can't be written.
pub fn update(experiments: &[&'static Experiment]) -> Result<()> {
    let versions = Versions::here()?;
    for (experiment, measured) in experiments.iter().zip(measure(experiments, ROUNDS_IN_DOUBT)?) {
        let mut baseline = read(experiment.name)?;
        baseline.entries.retain(|entry| entry.versions != versions);
        baseline.entries.push(Entry { versions: versions.clone(), instructions: measured.instructions });
        measured.notes.iter().for_each(|note| println!("{}: {note}", experiment.name));
        let path = path(experiment.name)?;
        std::fs::create_dir_all(path.parent().context("no folder")?)?;
        std::fs::write(&path, serde_json::to_string_pretty(&baseline)? + "\n")
            .with_context(|| path.display().to_string())?;
        println!("{}: wrote {}", experiment.name, path.display());
    }
    Ok(())
}

fn path(name: &str) -> Result<PathBuf> {
    Ok(paths::repository()?.join(FOLDER).join(format!("{name}.json")))
}

fn read(name: &str) -> Result<Baseline> {
    let path = path(name)?;
    match std::fs::read_to_string(&path) {
        Ok(text) => serde_json::from_str(&text).with_context(|| path.display().to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Baseline::default()),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

struct Measured {
    instructions: BTreeMap<String, f64>,
    /// Remarks of the run: why a figure is absent.
    notes: Vec<String>,
}

/// The instruction counts of the experiments' quick form on Heddle, in their order.
fn measure(experiments: &[&Experiment], instructions: usize) -> Result<Vec<Measured>> {
    if experiments.is_empty() {
        return Ok(Vec::new());
    }
    let interrupt = Interrupt::watch()?;
    let runner = Runner::new(&[], &interrupt)?;
    let rounds = Rounds { emulated: 0, instructions };
    let plans: Vec<_> = experiments.iter().filter_map(|experiment| counting_plan(experiment)).collect();
    let steps = |(experiment, plan): (&&Experiment, &Plan)| {
        let name = experiment.name;
        machines::steps(plan, rounds)
            .into_iter()
            .map(move |step| Step::new(format!("{name}: {}", step.label)))
    };
    let progress = Progress::new(experiments.iter().zip(&plans).flat_map(steps).collect())?;
    let mut all = Vec::new();
    for (experiment, plan) in experiments.iter().zip(&plans) {
        let mut record =
            Record { schema: SCHEMA, experiment: experiment.name.to_owned(), ..Record::default() };
        machines::run(plan, rounds, &runner, &mut record, &progress, &interrupt)?;
        record.summarize();
        let ours = record.figures.iter();
        let ours = ours.filter(|figure| figure.side == OURS && figure.scale == Scale::Instructions);
        let named = ours.filter_map(|figure| {
            let x = figure.x.map_or_else(String::new, |x| format!("-{x}"));
            Some((format!("{}{x}", figure.name), figure.median?))
        });
        let instructions = named.collect();
        all.push(Measured { instructions, notes: record.notes.clone() });
    }
    Ok(all)
}

/// The part of an experiment's quick form that counts instructions on Heddle.
fn counting_plan(experiment: &Experiment) -> Option<Plan> {
    let (Kind::Machines(plan), Some(is_checked)) = (&experiment.kind, experiment.checked) else {
        return None;
    };
    let mut plan = plan(Effort::Quick, None);
    plan.groups.retain(|group| group.clock == Clock::Instructions);
    for group in &mut plan.groups {
        group.sides = vec![HEDDLE];
        group.rounds = ROUNDS_IN_DOUBT;
        group.items.retain(|item| is_checked(item));
    }
    Some(plan)
}

struct Comparison {
    is_good: bool,
    text: String,
}

/// A line for each figure that is on either side.
fn compare(committed: &BTreeMap<String, f64>, measured: &BTreeMap<String, f64>) -> Vec<Comparison> {
    let mut lines = Vec::new();
    for (name, &before) in committed {
        let Some(&now) = measured.get(name) else {
            lines.push(Comparison { is_good: false, text: format!("{name}: was {before:.0}, is absent") });
            continue;
        };
        let is_good = now <= before * RISE_MAX;
        let verdict = if is_good { "" } else { ": RISEN" };
        let change = (now / before - 1.0) * 100.0;
        lines.push(Comparison {
            is_good,
            text: format!("{name}: {before:.0} to {now:.0} instructions ({change:+.1} %){verdict}"),
        });
    }
    for name in measured.keys().filter(|name| !committed.contains_key(*name)) {
        lines.push(Comparison { is_good: true, text: format!("{name}: new, nothing is committed") });
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(pairs: &[(&str, f64)]) -> BTreeMap<String, f64> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn a_rise_of_more_than_a_twentieth_fails_and_so_does_what_vanishes() {
        let committed = counts(&[("same", 100.0), ("risen", 100.0), ("gone", 1.0), ("fallen", 100.0)]);
        let measured = counts(&[("same", 105.0), ("risen", 105.5), ("fallen", 10.0), ("new", 1.0)]);
        let bad: Vec<_> = compare(&committed, &measured)
            .into_iter()
            .filter(|line| !line.is_good)
            .map(|line| line.text)
            .collect();
        assert_eq!(bad.len(), 2);
        assert!(bad[0].starts_with("gone") && bad[1].starts_with("risen"), "{bad:?}");
    }
}
