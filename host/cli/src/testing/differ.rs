//! The differential fuzzer: the same random calls on both kernels, whose results must be equal.
//!
//! Each line of the guest program is one sequence of calls. A line that differs fails the family, and is shown from
//! both kernels: `heddle-guest-tests --differ FAMILY SEED COUNT` makes it again.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use super::process::{heddle_run, run};
use super::{Tally, Verdict, cargo};
use crate::guest::Kernel;

const PACKAGE: &str = "heddle-guest-tests";
/// A line comes for each sequence, and a sequence that waits is ended.
const QUIET_MAX: Duration = Duration::from_secs(150);
/// Sequences of each family: in CI from one seed, in the long tier from many.
const SEQUENCES: &str = "40";
const SEQUENCES_LONG: &str = "400";
const SEEDS: std::ops::RangeInclusive<u32> = 1..=1;
const SEEDS_LONG: std::ops::RangeInclusive<u32> = 1..=20;
/// Sequences that differ are shown up to this many.
const SHOWN_MAX: usize = 5;

/// The lines of the sequences, by family, seed and number.
type Lines = BTreeMap<(String, u32, u32), String>;

/// Parses `FAMILY SEED NUMBER: TEXT`.
fn parse_line(line: &str) -> Option<((String, u32, u32), String)> {
    let (head, text) = line.split_once(": ")?;
    let mut words = head.split(' ');
    let (family, seed, number) = (words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    words.next().is_none().then(|| ((family.to_owned(), seed, number), text.trim_end().to_owned()))
}

fn lines(kernel: Kernel, program: &str, seed: &str, count: &str) -> Result<Lines> {
    let arguments = ["--", program, "--differ", "all", seed, count].map(String::from);
    let output = run(&mut heddle_run(kernel, &arguments)?, b"", QUIET_MAX)?;
    if output.status != Some(0) {
        bail!("the fuzzer on {}: {:?} {}", kernel.name(), output.status, output.complaints());
    }
    Ok(output.text().lines().filter_map(parse_line).collect())
}

/// Says where two kernels differ about a family.
fn compare(family: &str, linux: &Lines, heddle: &Lines) -> Verdict {
    let of_family = |lines: &Lines| -> Lines {
        lines
            .iter()
            .filter(|(name, _)| name.0 == family)
            .map(|(name, text)| (name.clone(), text.clone()))
            .collect()
    };
    let (linux, heddle) = (of_family(linux), of_family(heddle));
    let differing: Vec<String> = linux
        .iter()
        .filter(|(name, text)| heddle.get(*name) != Some(text))
        .map(|((_, seed, number), text)| {
            let other = heddle.get(&(family.to_owned(), *seed, *number)).map_or("no line", String::as_str);
            format!("{seed} {number}:\n    Linux  {text}\n    Heddle {other}")
        })
        .collect();
    if differing.is_empty() && linux.len() == heddle.len() {
        return Verdict::Passed;
    }
    let shown = differing.iter().take(SHOWN_MAX).cloned().collect::<Vec<_>>().join("\n");
    Verdict::Failed(format!("{} of {} sequences differ\n{shown}", differing.len(), linux.len()))
}

/// Runs the fuzzer on both kernels.
///
/// # Errors
/// If it does not build or the tool cannot be started.
pub fn test(repository: &Path, is_long: bool, filter: Option<&str>, tally: &mut Tally) -> Result<()> {
    if filter.is_some_and(|filter| !"differ/".contains(filter) && !filter.starts_with("differ")) {
        return Ok(());
    }
    let program = cargo::program(repository, PACKAGE)?.to_string_lossy().into_owned();
    let (seeds, count) = if is_long { (SEEDS_LONG, SEQUENCES_LONG) } else { (SEEDS, SEQUENCES) };
    for seed in seeds {
        let text = seed.to_string();
        let linux = lines(Kernel::Linux, &program, &text, count)?;
        let heddle = lines(Kernel::Heddle, &program, &text, count)?;
        let mut families: Vec<&str> = linux.keys().map(|name| name.0.as_str()).collect();
        families.dedup();
        for family in families {
            let name = format!("differ/{family}, seed {seed}");
            if filter.is_none_or(|filter| name.contains(filter)) {
                tally.record(&name, &compare(family, &linux, &heddle));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_fuzzer_are_parsed_and_compared() {
        let parsed = |text: &str| -> Lines { text.lines().filter_map(parse_line).collect() };
        let linux = parsed("file 1 0: open()=3 \nfile 1 1: close()=EBADF\nnoise\ntime 1 0: x");
        assert_eq!(linux.len(), 3);
        assert_eq!(compare("file", &linux, &linux), Verdict::Passed);
        let heddle = parsed("file 1 0: open()=3\nfile 1 1: close()=0\ntime 1 0: x");
        assert!(
            matches!(compare("file", &linux, &heddle), Verdict::Failed(reason) if reason.starts_with("1 of 2"))
        );
        assert_eq!(compare("time", &linux, &heddle), Verdict::Passed);
        assert!(matches!(compare("time", &linux, &Lines::new()), Verdict::Failed(_)));
    }
}
