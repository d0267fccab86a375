//! Tests that programs bring along, on both kernels: a test that passes on Linux must pass on Heddle.
//!
//! Tests that differ are listed in `tests/programs/differences`, each with its reason. The list must be exact: an entry
//! whose test passes is a failure too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::guest::parse_line;
use super::process::{heddle_run, run};
use super::{Tally, Verdict};
use crate::guest::Kernel;

/// Where the programs that run the tests are, here and in the guest.
const FOLDER: &str = "tests/programs";
const GUEST_FOLDER: &str = "/programs";
/// The driver ends a test that takes longer than four minutes.
const QUIET_MAX: Duration = Duration::from_secs(400);
/// The most machines for one suite on one kernel.
const MACHINES_MAX: usize = 12;
/// The memory of each machine.
const MEMORY_MIB: &str = "512";

/// Tests of one package, run by a driver of ours that speaks the line protocol of the guest tests.
struct Suite {
    name: &'static str,
    /// Options of the machine: packages, its clock.
    machine: &'static [&'static str],
    driver: &'static [&'static str],
    /// A script that builds the tests into the folder `tests` of one that it is told, and prints the names of the tests
    /// that only the long tier runs.
    build: Option<&'static str>,
    /// The tests that CI runs, too.
    quick: &'static [&'static str],
    /// The tests that only the long tier runs.
    long: &'static [&'static str],
}

/// Where built tests are in the guest.
const BUILT_FOLDER: &str = "/built";

/// Tests of io_uring by the library that programs use for it. They sleep and count, so the machine's clock is its
/// instructions: a busy host changes nothing.
const LIBURING: Suite = Suite {
    name: "liburing",
    machine: &["--count-instructions"],
    driver: &["bash", "/programs/liburing/run.sh"],
    build: Some("liburing/build.sh"),
    quick: &[],
    long: &[],
};

/// Only what needs no network.
const PYTHON: Suite = Suite {
    name: "python",
    machine: &["--deb", "python3,libpython3.11-testsuite"],
    driver: &["python3", "/programs/python.py"],
    build: None,
    quick: &["test_posix", "test_fcntl", "test_select", "test_mmap", "test_tempfile"],
    long: &[
        "test_os",
        "test_shutil",
        "test_subprocess",
        "test_signal",
        "test_selectors",
        "test_poll",
        "test_epoll",
        "test_pty",
        "test_threading",
        "test_threadsignals",
        "test_thread",
        "test_fork1",
        "test_wait3",
        "test_wait4",
        "test_popen",
        "test_pathlib",
        "test_glob",
        "test_posixpath",
        "test_io",
        "test_file",
        "test_fileio",
        "test_eintr",
        "test_time",
        "test_resource",
        "test_socket:BasicUnixTest,BasicSocketPairTest,TestUnixDomain,SendmsgUnixStreamTest,RecvmsgUnixStreamTest,\
         RecvmsgIntoUnixStreamTest,SendmsgUnixDgramTest,RecvmsgSCMRightsStreamTest,SendRecvFdsTests,\
         RecvmsgIntoSCMRightsStreamTest,InterruptedRecvTimeoutTest,InheritanceTest,NonblockConstantTest",
        "test_multiprocessing_fork",
        "test_concurrent_futures:ProcessPoolForkExecutorTest,ThreadPoolExecutorTest,ProcessPoolForkMixin",
        "test_asyncio.test_subprocess",
        "test_asyncio.test_unix_events",
        "test_asyncio.test_selector_events",
        "test_asyncio.test_tasks",
        "test_asyncio.test_locks",
        "test_asyncio.test_queues",
        "test_asyncio.test_base_events",
        "test_asyncio.test_context",
        "test_asyncio.test_futures",
        "test_asyncio.test_futures2",
        "test_asyncio.test_pep492",
        "test_asyncio.test_protocols",
        "test_asyncio.test_runners",
        "test_asyncio.test_server",
        "test_asyncio.test_sslproto",
        "test_asyncio.test_streams",
        "test_asyncio.test_taskgroups",
        "test_asyncio.test_threads",
        "test_asyncio.test_timeouts",
        "test_asyncio.test_transports",
        "test_asyncio.test_waitfor",
    ],
};

/// Every suite.
const SUITES: [&Suite; 2] = [&PYTHON, &LIBURING];

type Verdicts = BTreeMap<String, Verdict>;

/// The results that one machine's output reports.
#[derive(Debug, Default, PartialEq, Eq)]
struct SuiteProgress {
    verdicts: Verdicts,
    /// The module that ran last, and its tests that were started.
    module: Option<String>,
    started: Vec<String>,
    ended: bool,
}

fn read(text: &str) -> SuiteProgress {
    let mut progress = SuiteProgress::default();
    for line in text.lines() {
        if let Some((name, verdict)) = parse_line(line) {
            // A test may be said to fail in several places; what went wrong stays.
            if !matches!(progress.verdicts.get(name), Some(Verdict::Failed(_))) {
                progress.verdicts.insert(name.to_owned(), verdict);
            }
        } else if let Some(name) = line.strip_prefix("module ") {
            progress.module = Some(name.to_owned());
            progress.started.clear();
        } else if let Some(name) = line.strip_prefix("start ") {
            progress.started.push(name.to_owned());
        } else if line == "end" {
            progress.ended = true;
        }
    }
    progress
}

/// Where the tests of a suite are built.
fn built(repository: &Path, suite: &Suite) -> PathBuf {
    repository.join("target/suites").join(suite.name)
}

/// The tests of a suite that are to run: those that CI runs too, and with `is_long` all.
fn modules(repository: &Path, suite: &Suite, is_long: bool) -> Result<Vec<String>> {
    let long: &[&str] = if is_long { suite.long } else { &[] };
    let mut modules: Vec<String> = suite.quick.iter().chain(long).map(|name| (*name).to_owned()).collect();
    if let Some(script) = suite.build.filter(|_| is_long) {
        let mut build = Command::new(repository.join(FOLDER).join(script));
        build.arg(built(repository, suite)).stderr(Stdio::inherit());
        let output = build.output().with_context(|| format!("building the tests of {}", suite.name))?;
        ensure!(output.status.success(), "the tests of {} could not be built: see above", suite.name);
        modules.extend(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned));
    }
    Ok(modules)
}

/// Runs a suite's modules on a kernel; a machine that ends early costs the test that ran.
fn verdicts(repository: &Path, kernel: Kernel, suite: &Suite, modules: &[String]) -> Result<Verdicts> {
    let mut all = Verdicts::new();
    let mut rest = modules.to_vec();
    let mut excluded: BTreeSet<String> = BTreeSet::new();
    let folder = format!("{}:{GUEST_FOLDER}", repository.join(FOLDER).display());
    for _ in 0..MACHINES_MAX {
        let mut arguments = ["--memory", MEMORY_MIB, "--add", &folder].map(str::to_owned).to_vec();
        arguments.extend(suite.machine.iter().map(|word| (*word).to_owned()));
        if suite.build.is_some() {
            let tests = built(repository, suite).join("tests");
            arguments.extend([String::from("--add"), format!("{}:{BUILT_FOLDER}", tests.display())]);
        }
        arguments.push(String::from("--"));
        arguments.extend(suite.driver.iter().map(|word| (*word).to_owned()));
        arguments.extend(excluded.iter().flat_map(|name| [String::from("-x"), name.clone()]));
        arguments.extend(rest.iter().cloned());
        let output = run(&mut heddle_run(kernel, &arguments)?, b"", QUIET_MAX)?;
        let mut progress = read(&output.text());
        if progress.ended {
            all.append(&mut progress.verdicts);
            return Ok(all);
        }
        let status = output.status.map_or(String::from("stuck"), |status| format!("status {status}"));
        let reason = Verdict::Failed(format!("the machine ended here: {status} {}", output.complaints()));
        let Some(module) = progress.module else {
            all.insert(format!("{} does not start", suite.name), reason);
            return Ok(all);
        };
        let culprit = progress.started.last().filter(|name| !progress.verdicts.contains_key(*name)).cloned();
        progress.verdicts.insert(culprit.unwrap_or_else(|| format!("{module} as a whole")), reason);
        all.append(&mut progress.verdicts);
        excluded = progress.started.into_iter().collect();
        let position = rest.iter().position(|name| *name == module).unwrap_or(rest.len());
        rest.drain(..position);
    }
    Ok(all)
}

/// The tests that are known to pass on Linux only, and why: lines `NAME: REASON`, where a name may end with `*`.
#[derive(Debug, Default)]
struct Differences {
    exact: BTreeMap<String, String>,
    prefixes: Vec<(String, String)>,
}

impl Differences {
    fn parse(text: &str) -> Result<Self> {
        let mut differences = Self::default();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (name, reason) = line.split_once(": ").with_context(|| format!("no reason: {line}"))?;
            match name.strip_suffix('*') {
                Some(prefix) => differences.prefixes.push((prefix.to_owned(), reason.to_owned())),
                None => drop(differences.exact.insert(name.to_owned(), reason.to_owned())),
            }
        }
        Ok(differences)
    }

    fn reason(&self, name: &str) -> Option<&str> {
        let of_prefix = || self.prefixes.iter().find(|(prefix, _)| name.starts_with(prefix.as_str()));
        self.exact.get(name).or_else(|| of_prefix().map(|(_, reason)| reason)).map(String::as_str)
    }
}

fn judge(linux: Option<&Verdict>, heddle: Option<&Verdict>, known: Option<&str>, is_exact: bool) -> Verdict {
    let reason = match (linux, heddle) {
        (_, Some(Verdict::Passed)) if is_exact => {
            return Verdict::Failed(String::from("passes, but is listed as a difference"));
        }
        (_, Some(Verdict::Passed)) => return Verdict::Passed,
        (Some(Verdict::Passed), Some(Verdict::Failed(reason))) => reason.clone(),
        (Some(Verdict::Passed), Some(Verdict::Skipped(reason))) => {
            format!("skipped on Heddle only: {reason}")
        }
        (Some(Verdict::Passed), None) => String::from("not run"),
        (Some(Verdict::Failed(reason)), _) => {
            return Verdict::Skipped(format!("fails on Linux too: {reason}"));
        }
        (Some(Verdict::Skipped(reason)), _) => return Verdict::Skipped(reason.clone()),
        (None, _) => return Verdict::Skipped(String::from("not run on Linux")),
    };
    match known {
        Some(known) => Verdict::Skipped(format!("{known} ({reason})")),
        None => Verdict::Failed(reason),
    }
}

/// Passed, failed, skipped.
fn counts(verdicts: &Verdicts) -> String {
    let count = |is: fn(&Verdict) -> bool| verdicts.values().filter(|verdict| is(verdict)).count();
    let passed = count(|verdict| *verdict == Verdict::Passed);
    let failed = count(|verdict| matches!(verdict, Verdict::Failed(_)));
    let skipped = count(|verdict| matches!(verdict, Verdict::Skipped(_)));
    format!("{passed} passed, {failed} failed, {skipped} skipped")
}

/// Runs the suites, of which CI takes a part, on both kernels, and compares.
///
/// # Errors
/// If the list of differences cannot be read or the tool cannot be started.
pub fn test(repository: &Path, is_long: bool, filter: Option<&str>, tally: &mut Tally) -> Result<()> {
    let list = repository.join(FOLDER).join("differences");
    let list = std::fs::read_to_string(&list).with_context(|| list.display().to_string())?;
    let differences = Differences::parse(&list)?;
    let mut lines = Vec::new();
    for suite in SUITES {
        let mut modules = modules(repository, suite, is_long)?;
        let is_wanted =
            |name: &str| filter.is_none_or(|filter| name.contains(filter) || suite.name == filter);
        modules.retain(|name| is_wanted(name));
        if modules.is_empty() {
            continue;
        }
        println!("{} modules of {}'s tests", modules.len(), suite.name);
        let linux = verdicts(repository, Kernel::Linux, suite, &modules)?;
        let heddle = verdicts(repository, Kernel::Heddle, suite, &modules)?;
        for name in linux.keys().chain(heddle.keys()).collect::<BTreeSet<_>>() {
            let is_exact = differences.exact.contains_key(name);
            let verdict = judge(linux.get(name), heddle.get(name), differences.reason(name), is_exact);
            tally.record(&format!("programs/{}: {name}", suite.name), &verdict);
        }
        lines.push(format!("{}: Linux: {}", suite.name, counts(&linux)));
        lines.push(format!("{}: Heddle: {}", suite.name, counts(&heddle)));
    }
    for line in lines {
        println!("{line}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_read() {
        let progress =
            read("module a\nstart a.x\nok a.x\nstart a.y\nok a.y\nnot ok a.y: late\nmodule b\nstart b.x\n");
        assert_eq!(progress.module.as_deref(), Some("b"));
        assert_eq!(progress.started, ["b.x"]);
        assert!(!progress.ended);
        assert_eq!(progress.verdicts.get("a.y"), Some(&Verdict::Failed(String::from("late"))));
        assert!(read("end\n").ended);
    }

    #[test]
    fn differences_have_reasons_and_must_be_true() {
        let differences = Differences::parse("# comment\na.x: why\nb.*: network\n").unwrap();
        assert_eq!(differences.reason("a.x"), Some("why"));
        assert_eq!(differences.reason("b.y"), Some("network"));
        assert_eq!(differences.reason("c"), None);
        assert!(Differences::parse("a.x\n").is_err());
        let failed = Verdict::Failed(String::from("bad"));
        assert!(matches!(judge(Some(&Verdict::Passed), Some(&failed), None, false), Verdict::Failed(_)));
        assert!(matches!(
            judge(Some(&Verdict::Passed), Some(&failed), Some("why"), true),
            Verdict::Skipped(_)
        ));
        assert!(matches!(judge(Some(&failed), Some(&failed), None, false), Verdict::Skipped(_)));
        let passed = Some(&Verdict::Passed);
        assert!(matches!(judge(passed, passed, Some("why"), true), Verdict::Failed(_)));
    }
}
