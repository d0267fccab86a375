//! `heddle test`: everything that the CI tier runs, and one line of counts at the end.

use anyhow::Result;

use crate::guest::Kernel;
use crate::machine::accelerator;
use crate::testing::{
    Tally, bench, cargo, checking, checks, differ, front, guest, hung, languages, network, processors,
    programs, screens, scripts, server, share_cache, share_edges, shares, streams, stress, terminals,
    threads, tool,
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
    fn has(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
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
    if options.has(Part::Host) {
        cargo::run(&repository, &["test", "--no-fail-fast"], &mut tally)?;
        let kernel = ["build", "--release", "--package", "heddle-kernel", "--target", "x86_64-unknown-none"];
        cargo::build(&repository, &kernel, &mut tally)?;
        if options.long {
            cargo::run(&repository, &["test", "--no-fail-fast", "--release", "--", "--ignored"], &mut tally)?;
        }
    }
    if options.has(Part::Checks) {
        checks::run(&repository, options.long, options.filter.as_deref(), &mut tally)?;
    }
    if options.has(Part::Front) {
        front::test(&repository, &mut tally);
    }
    let groups = [
        (Part::Streams, "streams", &streams::TESTS[..]),
        (Part::Terminals, "terminals", &terminals::TESTS[..]),
        (Part::Terminals, "screens", &screens::TESTS[..]),
        (Part::Shares, "shares", &shares::TESTS[..]),
        (Part::Shares, "shares", &share_cache::TESTS[..]),
        (Part::Shares, "shares", &share_edges::TESTS[..]),
        (Part::Network, "network", &network::TESTS[..]),
    ];
    for (part, group, tests) in groups {
        for kernel in [Kernel::Linux, Kernel::Heddle] {
            for (name, test) in tests.iter().filter(|_| options.has(part)) {
                let name = format!("{group}/{}: {name}", kernel.name());
                if options.filter.as_ref().is_none_or(|filter| name.contains(filter.as_str())) {
                    tally.record(&name, &test(kernel).into());
                }
            }
        }
    }
    for (name, test) in hung::TESTS.iter().filter(|_| options.has(Part::Shares)) {
        let name = format!("shares/heddle: {name}");
        if options.filter.as_ref().is_none_or(|filter| name.contains(filter.as_str())) {
            tally.record(&name, &test(Kernel::Heddle).into());
        }
    }
    if options.has(Part::Network) && options.long {
        for kernel in [Kernel::Linux, Kernel::Heddle] {
            for (name, test) in network::long::TESTS {
                let name = format!("network/{}: {name}", kernel.name());
                if options.filter.as_ref().is_none_or(|filter| name.contains(filter.as_str())) {
                    tally.record(&name, &test(kernel));
                }
            }
        }
    }
    let engines = ["podman", "rootless", "containerd"].map(|script| (Part::Engines, script, true));
    let quick =
        [(Part::Front, "setup", false), (Part::Machines, "machines", false), (Part::Machines, "oci", false)];
    for (part, script, is_long) in quick.into_iter().chain(engines) {
        if options.has(part) && (options.long || !is_long || !options.only.is_empty()) {
            tool::test(&repository, script, options.filter.as_deref(), &mut tally);
        }
    }
    if options.has(Part::Apps) {
        scripts::test(&repository, options.long, options.filter.as_deref(), &mut tally)?;
        threads::test(&repository, options.filter.as_deref(), &mut tally)?;
        languages::test(&repository, options.filter.as_deref(), &mut tally)?;
    }
    if options.has(Part::Guest) {
        server::test(&repository, options.filter.as_deref(), &mut tally)?;
        guest::test(&repository, options.long, options.filter.as_deref(), &mut tally)?;
    }
    if options.has(Part::Differ) && (options.long || !options.only.is_empty()) {
        differ::test(&repository, options.long, options.filter.as_deref(), &mut tally)?;
    }
    if options.has(Part::Processors) {
        processors::test(&repository, options.long, options.filter.as_deref(), &mut tally)?;
    }
    if options.has(Part::Checking) {
        checking::test(&repository, options.filter.as_deref(), &mut tally)?;
    }
    if options.has(Part::Bench) {
        bench::test(options.filter.as_deref(), &mut tally);
    }
    if options.has(Part::Stress) {
        stress::test(&repository, options.long, options.filter.as_deref(), &mut tally)?;
    }
    if options.has(Part::Programs) {
        programs::test(&repository, options.long, options.filter.as_deref(), &mut tally)?;
    }
    tally.finish();
    Ok(if tally.is_success() { 0 } else { STATUS_FAILED })
}
