//! `--check`: instruction counts beside those that were committed, so that a change that makes Heddle slower is seen
//! with the change that did it. Counts are comparable only with the same compiler, emulator and C library.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::environment::Versions;
use super::guest::Runner;
use super::machines::{self, Rounds};
use super::plan::{Effort, Group, Plan, plan};
use super::progress::Progress;
use super::record::{Record, SCHEMA};
use super::side::HEDDLE;
use super::{Interrupt, OURS};
use crate::machine::Clock;
use crate::paths;

/// Where the committed counts are, below the repository.
const FOLDER: &str = "bench/baseline";
/// The experiments that have counts.
const CHECKED: [&str; 3] = ["syscalls", "yield", "pipeline"];
/// By which factor a count may rise.
const RISE_MAX: f64 = 1.05;

/// What is committed for an experiment: counts by versions, because several hosts may check.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Baseline {
    entries: Vec<Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    versions: Versions,
    instructions: BTreeMap<String, f64>,
}

/// Compares; false if a count has risen too far.
///
/// # Errors
/// If the measurement fails.
pub fn check(only: Option<&str>) -> Result<bool> {
    let versions = Versions::here()?;
    let mut is_good = true;
    for (name, measured) in measure(only)? {
        let baseline = read(name)?;
        let Some(entry) = baseline.entries.into_iter().find(|entry| entry.versions == versions) else {
            println!("{name}: not compared: nothing is committed for {versions:?}");
            continue;
        };
        for line in compare(&entry.instructions, &measured) {
            is_good &= line.is_good;
            println!("{name}: {}", line.text);
        }
    }
    Ok(is_good)
}

/// Measures, and writes the files to commit.
///
/// # Errors
/// If the measurement fails, or the files can't be written.
pub fn update(only: Option<&str>) -> Result<()> {
    let versions = Versions::here()?;
    for (name, instructions) in measure(only)? {
        let mut baseline = read(name)?;
        baseline.entries.retain(|entry| entry.versions != versions);
        baseline.entries.push(Entry { versions: versions.clone(), instructions });
        let path = path(name)?;
        std::fs::create_dir_all(path.parent().context("no folder")?)?;
        std::fs::write(&path, serde_json::to_string_pretty(&baseline)? + "\n")
            .with_context(|| path.display().to_string())?;
        println!("{name}: wrote {}", path.display());
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

/// The instruction counts of the experiments' quick form on Heddle.
fn measure(only: Option<&str>) -> Result<Vec<(&'static str, BTreeMap<String, f64>)>> {
    let names: Vec<_> = CHECKED.into_iter().filter(|name| only.is_none_or(|only| only == *name)).collect();
    if names.is_empty() {
        bail!("no counts are kept of '{}', only of {}", only.unwrap_or_default(), CHECKED.join(", "));
    }
    let interrupt = Interrupt::watch()?;
    let runner = Runner::new()?;
    let progress = Progress::new(names.len())?;
    let mut all = Vec::new();
    for name in names {
        let plan = plan(name, Effort::Quick, None).context("no plan")?;
        let counting = |group: &Group| group.clock == Clock::Instructions;
        let groups = plan.groups.into_iter().filter(counting);
        let groups = groups.map(|group| Group { sides: vec![HEDDLE], ..group }).collect();
        let plan = Plan { groups, ..plan };
        let mut record = Record { schema: SCHEMA, experiment: name.to_owned(), ..Record::default() };
        let rounds = Rounds { emulated: 0, instructions: 1 };
        machines::run(&plan, rounds, &runner, &mut record, &progress, &interrupt)?;
        record.summarize();
        let ours = record.figures.iter().filter(|figure| figure.side == OURS);
        let named = ours.filter_map(|figure| {
            let x = figure.x.map_or_else(String::new, |x| format!("-{x}"));
            Some((format!("{}{x}", figure.name), figure.median?))
        });
        all.push((name, named.collect()));
    }
    Ok(all)
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
