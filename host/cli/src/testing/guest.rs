//! The guest tests: a program of ours that tests the Linux interface from inside, a line for each test.
//!
//! The line protocol is `ok NAME`, `not ok NAME: REASON`, `skip NAME: REASON`. A machine that ends early leaves tests
//! without a line: the first of them is what ended it, and the others run in another machine.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::process::{heddle_run, run};
use super::side_by_side::side_by_side;
use super::{Tally, Verdict, cargo};
use crate::guest::Kernel;

/// The package of the program.
pub const PACKAGE: &str = "heddle-guest-tests";
/// A hung test is ended by the program itself, and says so, after a minute.
const QUIET_MAX: Duration = Duration::from_secs(150);
/// The machine with the checking kernel.
const CHECKING: &str = "heddle-checking";
/// The machines with a part of the tests in which the long tier runs every test.
const WHOLE_IN_LONG_TIER: [&str; 5] =
    [CHECKING, "heddle-private", "heddle-direct", "heddle-direct-2", "heddle-direct-4"];
/// The most machines for one list of tests.
const MACHINES_MAX: usize = 16;

/// Parses a line of the protocol.
#[must_use]
pub fn parse_line(line: &str) -> Option<(&str, Verdict)> {
    if let Some(name) = line.strip_prefix("ok ") {
        return Some((name.trim_end(), Verdict::Passed));
    }
    let (rest, is_skip) = match line.strip_prefix("not ok ") {
        Some(rest) => (rest, false),
        None => (line.strip_prefix("skip ")?, true),
    };
    let (name, reason) = rest.split_once(": ").unwrap_or((rest, "no reason given"));
    let reason = reason.trim_end().to_owned();
    Some((name, if is_skip { Verdict::Skipped(reason) } else { Verdict::Failed(reason) }))
}

/// How a machine for the guest tests is started, and which of the tests run in it: those whose names begin with one of
/// these, or all.
struct TestMachine {
    name: &'static str,
    kernel: Kernel,
    options: &'static [&'static str],
    families: &'static [&'static str],
}

/// The tests that run on each model of a processor.
const PROCESSOR_FAMILIES: &[&str] = &["signal::", "preemption::"];

/// The tests that depend most on which root a program runs on.
const KEPT_FAMILIES: &[&str] = &["process::", "space::", "slots::", "memory::", "privilege::"];

/// The same, and those whose calls go on in turns of others, in a machine where each program has rights of its own.
const KEYS_FAMILIES: &[&str] = &[
    "process::",
    "space::",
    "slots::",
    "memory::",
    "privilege::",
    "signal::",
    "trace::",
    "asynchronous::",
    "asynchronous_calls::",
    "uring::",
    "aio::",
    "fuse::",
    "large_pages::",
];

/// The tests that depend on whose memory is in which page table.
const PRIVATE_FAMILIES: &[&str] = &[
    "process::",
    "thread::",
    "space::",
    "slots::",
    "memory::",
    "large_pages::",
    "protection_keys::",
    "privilege::",
    "signal::",
    "delivery::",
    "trace::",
    "core_dump::",
    "pipe",
    "socket::",
    "uring::",
    "asynchronous",
    "runtime::",
    "vdso::",
    "fuse::",
    "pi::",
];

/// The tests that depend most on how programs enter the kernel and leave it.
const DIRECT_FAMILIES: &[&str] = &[
    "direct::",
    "process::",
    "thread::",
    "signal::",
    "delivery::",
    "preemption::",
    "trace::",
    "seccomp::",
    "user_dispatch::",
    "rseq::",
    "vdso::",
    "memory::",
    "protection_keys::",
    "pipe::",
];

/// Of these, the ones in which several processors make a difference.
const DIRECT_FAMILIES_ON_SEVERAL: &[&str] =
    &["direct::", "thread::", "signal::", "delivery::", "preemption::"];

const fn processor(name: &'static str, options: &'static [&'static str]) -> TestMachine {
    TestMachine { name, kernel: Kernel::Heddle, options, families: PROCESSOR_FAMILIES }
}

const MACHINES: [TestMachine; 23] = [
    TestMachine { name: "linux", kernel: Kernel::Linux, options: &[], families: &[] },
    TestMachine { name: "heddle", kernel: Kernel::Heddle, options: &[], families: &[] },
    TestMachine {
        name: "heddle-private",
        kernel: Kernel::Heddle,
        options: &["--isolation", "private"],
        families: PRIVATE_FAMILIES,
    },
    TestMachine {
        name: "heddle-user",
        kernel: Kernel::Heddle,
        options: &["--isolation", "user", "--smp", "2"],
        families: &["process::", "thread::", "privilege::", "slots::", "space::", "large_pages::"],
    },
    TestMachine {
        name: "heddle-none",
        kernel: Kernel::Heddle,
        options: &["--isolation", "none", "--smp", "4"],
        families: &["process::", "privilege::", "slots::", "space::", "large_pages::"],
    },
    TestMachine {
        name: "heddle-keys",
        kernel: Kernel::Heddle,
        options: &["--isolation", "keys"],
        families: KEYS_FAMILIES,
    },
    // Programs at the kernel's level, where all that is about entering and leaving it is another.
    TestMachine {
        name: "heddle-direct",
        kernel: Kernel::Heddle,
        options: &["--isolation", "direct"],
        families: DIRECT_FAMILIES,
    },
    TestMachine {
        name: "heddle-direct-2",
        kernel: Kernel::Heddle,
        options: &["--isolation", "direct", "--smp", "2"],
        families: DIRECT_FAMILIES_ON_SEVERAL,
    },
    TestMachine {
        name: "heddle-direct-4",
        kernel: Kernel::Heddle,
        options: &["--isolation", "direct", "--smp", "4"],
        families: DIRECT_FAMILIES_ON_SEVERAL,
    },
    TestMachine {
        name: "heddle-8-cpus",
        kernel: Kernel::Heddle,
        options: &["--smp", "8"],
        families: &[
            "process::",
            "thread::",
            "delivery::",
            "memory::",
            "large_pages::",
            "slots::",
            "space::",
            "protection_keys::",
        ],
    },
    TestMachine {
        name: "heddle-4-slots",
        kernel: Kernel::Heddle,
        options: &["--boot", "heddle.slots=4"],
        families: &["space::", "slots::", "process::exec"],
    },
    // Roots that a CPU keeps while it uses another one; what flushes too little shows on processors with tags only.
    TestMachine {
        name: "heddle-kept-roots",
        kernel: Kernel::Heddle,
        options: &["--boot", "heddle.pcid=dry-run", "--smp", "2"],
        families: KEPT_FAMILIES,
    },
    TestMachine {
        name: "heddle-kept-private",
        kernel: Kernel::Heddle,
        options: &["--boot", "heddle.pcid=dry-run", "--isolation", "private", "--smp", "4"],
        families: KEPT_FAMILIES,
    },
    TestMachine {
        name: CHECKING,
        kernel: Kernel::Heddle,
        options: &["--checking", "--smp", "2"],
        families: &[
            "process::",
            "thread::",
            "signal::",
            "delivery::",
            "privilege::",
            "socket::",
            "memory::",
            "large_pages::",
        ],
    },
    processor("heddle-qemu64", &["--cpu", "qemu64"]),
    processor("heddle-nehalem", &["--cpu", "Nehalem"]),
    processor("heddle-haswell", &["--cpu", "Haswell"]),
    processor("heddle-skylake", &["--cpu", "Skylake-Server"]),
    processor("heddle-epyc", &["--cpu", "EPYC", "--smp", "2"]),
    // The emulator has the instructions of the measures, or ignores their registers.
    processor(
        "heddle-mitigations",
        &[
            "--cpu",
            "Skylake-Server",
            "--boot",
            "heddle.setcpuid=md_clear,spec_ctrl,erms",
            "--isolation",
            "private",
        ],
    ),
    processor("heddle-no-xsave", &["--cpu", "max,-xsave"]),
    processor("heddle-no-smap", &["--cpu", "max,-smap,-smep,-umip,-fsgsbase"]),
    processor(
        "heddle-no-large",
        &["--cpu", "max,-pdpe1gb,-pge,-la57,-rdrand", "--smp", "2", "--memory", "4096"],
    ),
];

/// The names of the tests.
///
/// # Errors
/// If the program can't be started, or lists none.
pub fn list(program: &Path) -> Result<Vec<String>> {
    let output = Command::new(program).arg("--list").output().context("listing the guest tests")?;
    let names: Vec<_> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    if names.is_empty() {
        bail!("the guest tests' program lists none");
    }
    Ok(names)
}

/// Runs these tests, of which there are `total`.
fn verdicts(
    machine: &TestMachine,
    program: &Path,
    names: &[String],
    total: usize,
) -> Result<BTreeMap<String, Verdict>> {
    let mut verdicts: BTreeMap<String, Verdict> = BTreeMap::new();
    for _ in 0..MACHINES_MAX {
        let missing: Vec<_> = names.iter().filter(|name| !verdicts.contains_key(*name)).collect();
        let Some(first) = missing.first() else { break };
        let mut arguments: Vec<String> = machine.options.iter().map(ToString::to_string).collect();
        arguments.extend([String::from("--"), program.to_string_lossy().into_owned()]);
        if missing.len() < total {
            arguments.extend(missing.iter().map(|name| (*name).clone()));
        }
        let output = run(&mut heddle_run(machine.kernel, &arguments)?, b"", QUIET_MAX)?;
        let text = output.text();
        let mut any = false;
        for (name, verdict) in text.lines().filter_map(parse_line) {
            if names.iter().any(|known| known == name) && !verdicts.contains_key(name) {
                any |= name == first.as_str();
                verdicts.insert(name.to_owned(), verdict);
            }
        }
        let unheard = names.iter().find(|name| !verdicts.contains_key(*name));
        if let Some(culprit) = unheard.filter(|_| !any || output.status != Some(0)) {
            let status = output.status.map_or(String::from("stuck"), |status| format!("status {status}"));
            let reason = format!("the machine ended here: {status} {}", output.complaints());
            verdicts.insert(culprit.clone(), Verdict::Failed(reason));
        }
    }
    Ok(verdicts)
}

/// Runs the guest tests in every kind of machine.
///
/// # Errors
/// If they do not build or the tool cannot be started.
pub fn test(repository: &Path, is_long: bool, filter: Option<&str>, tally: &mut Tally) -> Result<()> {
    let program = cargo::program(repository, PACKAGE)?;
    let all = list(&program)?;
    let is_chosen = |machine: &TestMachine, name: &String| {
        let families = machine.families;
        (families.is_empty()
            || is_long && WHOLE_IN_LONG_TIER.contains(&machine.name)
            || families.iter().any(|family| name.starts_with(family)))
            && filter.is_none_or(|filter| format!("guest/{}/{name}", machine.name).contains(filter))
    };
    let mut runs: Vec<(&TestMachine, Vec<String>)> = Vec::new();
    for machine in &MACHINES {
        let names: Vec<String> = all.iter().filter(|name| is_chosen(machine, name)).cloned().collect();
        if names.is_empty() {
            continue;
        }
        if machine.name == CHECKING {
            // A run that built it would be silent for longer than one may be.
            crate::guest::heddle::build_checking()?;
        }
        runs.push((machine, names));
    }
    let mut counts = vec![String::new(); runs.len()];
    side_by_side(
        &runs,
        |(machine, names)| {
            println!("{} guest tests on {}", names.len(), machine.name);
            verdicts(machine, &program, names, all.len())
        },
        |index, verdicts| {
            let (machine, names) = &runs[index];
            let verdicts = verdicts?;
            for name in names {
                let missing = Verdict::Failed(format!("not reached within {MACHINES_MAX} machines"));
                tally.record(
                    &format!("guest/{}/{name}", machine.name),
                    verdicts.get(name).unwrap_or(&missing),
                );
            }
            counts[index] = summary(machine.name, &verdicts, names.len());
            Ok(())
        },
    )?;
    for line in counts {
        println!("{line}");
    }
    Ok(())
}

/// The line that says how many passed. Those that show nothing on a kernel are counted apart.
fn summary(machine: &str, verdicts: &BTreeMap<String, Verdict>, total: usize) -> String {
    let count = |wanted: fn(&Verdict) -> bool| verdicts.values().filter(|verdict| wanted(verdict)).count();
    let passed = count(|verdict| matches!(verdict, Verdict::Passed));
    let skipped = count(|verdict| matches!(verdict, Verdict::Skipped(_)));
    let rest = if skipped > 0 { format!(", {skipped} more skipped") } else { String::new() };
    format!("guest tests on {machine}: {passed} of {} passed{rest}", total - skipped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_tests_count_apart() {
        let skipped = Verdict::Skipped(String::from("why"));
        let verdicts = [("a", Verdict::Passed), ("b", skipped), ("c", Verdict::Passed)];
        let verdicts = verdicts.into_iter().map(|(name, verdict)| (name.to_owned(), verdict)).collect();
        assert_eq!(summary("linux", &verdicts, 4), "guest tests on linux: 2 of 3 passed, 1 more skipped");
    }

    #[test]
    fn lines_of_the_protocol_are_parsed() {
        assert_eq!(parse_line("ok a::b"), Some(("a::b", Verdict::Passed)));
        let failed = Verdict::Failed(String::from("x: y"));
        assert_eq!(parse_line("not ok a::b: x: y"), Some(("a::b", failed)));
        assert_eq!(parse_line("skip c: no"), Some(("c", Verdict::Skipped(String::from("no")))));
        assert_eq!(parse_line("anything else"), None);
    }
}
