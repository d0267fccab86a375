//! `heddle test`: everything that the CI tier runs, and one line of counts at the end.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use clap::ValueEnum;

use crate::guest::Kernel;
use crate::machine::accelerator;
use crate::testing::{
    Tally, Verdict, bench, cargo, checking, checks, differ, front, guest, hung, languages, network,
    processors, programs, screens, scripts, server, share_cache, share_edges, shares, streams, stress,
    terminals, threads, tool,
};
use crate::{paths, signals};

const STATUS_FAILED: u8 = 1;

/// Runs the tests.
#[derive(Clone, Debug, clap::Args)]
pub struct TestOptions {
    /// Also run the tests that take long.
    #[arg(long)]
    pub long: bool,
    /// The accelerator.
    #[command(flatten)]
    pub accelerator: accelerator::AcceleratorOptions,
    /// Run only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Part>,
    /// Run checks, and tests in machines, only where the name contains this.
    #[arg(value_name = "FILTER")]
    pub filter: Option<String>,
}

/// A part of the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// The tests that cargo runs on this host, tidiness included, and a check that the kernel builds.
    Host,
    /// Checks of single crates that take more than `cargo test`, such as models of every interleaving.
    Checks,
    /// The command itself and its errors.
    Front,
    /// Streams and statuses.
    Streams,
    /// Terminals.
    Terminals,
    /// Folders of the host in the guest.
    Shares,
    /// Published ports, outgoing connections, joined machines.
    Network,
    /// Machines with names.
    Machines,
    /// Container engines, with `heddle oci` as their runtime; with --long, or where they are asked for.
    Engines,
    /// Programs in shell scripts, compared with Linux.
    Apps,
    /// The Linux interface from inside.
    Guest,
    /// Random calls whose results both kernels must agree on; with --long, or where they are asked for.
    Differ,
    /// Processors that lack something, and KVM.
    Processors,
    /// The kernel's checking build: the faults that it must notice.
    Checking,
    /// Instruction counts compared with the committed ones, and interrupted experiments.
    Bench,
    /// Random operations on several processors.
    Stress,
    /// Test suites of Debian packages, compared with Linux; a part of them unless --long.
    Programs,
}

impl TestOptions {
    /// Whether the part runs.
    fn has(&self, part: Part) -> bool {
        let is_asked_for = self.only.contains(&part);
        let is_long = matches!(part, Part::Engines | Part::Differ);
        is_asked_for || self.only.is_empty() && (self.long || !is_long)
    }

    fn matches(&self, name: &str) -> bool {
        self.filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()))
    }
}

/// Runs the command and says with which status to end.
///
/// # Errors
/// If a part cannot be run at all.
pub fn execute(options: &TestOptions) -> Result<u8> {
    accelerator::choose(options.accelerator.accel);
    signals::give_children_defaults()?;
    let repository = paths::repository()?;
    let mut tally = Tally::default();
    let mut times = Vec::new();
    for part in Part::value_variants().iter().filter(|part| options.has(**part)) {
        let start = Instant::now();
        run_part(*part, options, &repository, &mut tally)?;
        let name = part.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        times.push(format!("{name} {}", start.elapsed().as_secs()));
    }
    println!("seconds: {}", times.join(", "));
    tally.finish();
    Ok(if tally.is_success() { 0 } else { STATUS_FAILED })
}

fn run_part(part: Part, options: &TestOptions, repository: &Path, tally: &mut Tally) -> Result<()> {
    let (is_long, filter) = (options.long, options.filter.as_deref());
    match part {
        Part::Host => {
            cargo::run(repository, &["test", "--no-fail-fast"], tally)?;
            let kernel =
                ["build", "--release", "--package", "heddle-kernel", "--target", "x86_64-unknown-none"];
            cargo::build(repository, &kernel, tally)?;
            if is_long {
                cargo::run(repository, &["test", "--no-fail-fast", "--release", "--", "--ignored"], tally)?;
            }
        }
        Part::Checks => checks::run(repository, is_long, filter, tally)?,
        Part::Front => {
            front::test(repository, tally);
            tool::test(repository, "setup", filter, tally);
        }
        Part::Streams => on_both_kernels("streams", &streams::TESTS, options, tally),
        Part::Terminals => {
            on_both_kernels("terminals", &terminals::TESTS, options, tally);
            on_both_kernels("screens", &screens::TESTS, options, tally);
        }
        Part::Shares => {
            for tests in [&shares::TESTS[..], &share_cache::TESTS, &share_edges::TESTS] {
                on_both_kernels("shares", tests, options, tally);
            }
            on_kernel(Kernel::Heddle, "shares", &hung::TESTS, options, tally);
        }
        Part::Network => {
            on_both_kernels("network", &network::TESTS, options, tally);
            if is_long {
                on_both_kernels("network", &network::long::TESTS, options, tally);
            }
        }
        Part::Machines => scripts_of(&["machines", "oci"], repository, filter, tally),
        Part::Engines => scripts_of(&["podman", "rootless", "containerd"], repository, filter, tally),
        Part::Apps => {
            scripts::test(repository, is_long, filter, tally)?;
            threads::test(repository, filter, tally)?;
            languages::test(repository, filter, tally)?;
        }
        Part::Guest => {
            server::test(repository, filter, tally)?;
            guest::test(repository, is_long, filter, tally)?;
        }
        Part::Differ => differ::test(repository, is_long, filter, tally)?,
        Part::Processors => processors::test(repository, is_long, filter, tally)?,
        Part::Checking => checking::test(repository, filter, tally)?,
        Part::Bench => bench::test(filter, tally),
        Part::Stress => stress::test(repository, is_long, filter, tally)?,
        Part::Programs => programs::test(repository, is_long, filter, tally)?,
    }
    Ok(())
}

fn scripts_of(names: &[&str], repository: &Path, filter: Option<&str>, tally: &mut Tally) {
    for name in names {
        tool::test(repository, name, filter, tally);
    }
}

/// A test of one kernel, with its name.
type KernelTest<V> = (&'static str, fn(Kernel) -> V);

fn on_both_kernels<V: Into<Verdict>>(
    group: &str,
    tests: &[KernelTest<V>],
    options: &TestOptions,
    tally: &mut Tally,
) {
    for kernel in [Kernel::Linux, Kernel::Heddle] {
        on_kernel(kernel, group, tests, options, tally);
    }
}

fn on_kernel<V: Into<Verdict>>(
    kernel: Kernel,
    group: &str,
    tests: &[KernelTest<V>],
    options: &TestOptions,
    tally: &mut Tally,
) {
    for (name, test) in tests {
        let name = format!("{group}/{}: {name}", kernel.name());
        if options.matches(&name) {
            tally.record(&name, &test(kernel).into());
        }
    }
}
