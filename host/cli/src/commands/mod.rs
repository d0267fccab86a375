//! The commands of the front door.

pub mod bench;
pub mod clean;
pub mod cp;
pub mod exec;
pub mod info;
pub mod install;
pub mod machines;
pub mod named;
pub mod oci;
pub mod run;
pub mod test;

use std::ffi::OsString;
use std::path::Path;

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::paths;

/// The name by which this program is the command `oci`.
const OCI_NAME: &str = "heddle-oci";

/// Runs unmodified Linux programs in virtual machines of their own.
#[derive(Parser)]
#[command(name = "heddle", version, propagate_version = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program in a virtual machine.
    Run(Box<run::RunOptions>),
    /// Run a further program in a machine that has a name.
    Exec(exec::ExecOptions),
    /// Copy files and folders between this host and a machine that has a name.
    Cp(cp::CpOptions),
    /// List machines that have names.
    Ps(machines::List),
    /// End machines: SIGTERM for the program, and after a time the end.
    Stop(machines::Stop),
    /// Send a signal to the program of machines.
    Kill(machines::Kill),
    /// Show the output of a machine that runs in the background.
    Logs(machines::Logs),
    /// Remove machines that have ended from the list, with their output.
    Rm(machines::Remove),
    /// Run containers as an OCI runtime does, for podman, containerd and others; also as `heddle-oci`.
    Oci(Box<oci::OciOptions>),
    /// Measure, all sides in one run.
    Bench(bench::BenchOptions),
    /// Empty the cache of root images, packages and kernels.
    Clean(clean::CleanOptions),
    /// Show versions, the accelerator and the cache.
    Info(info::InfoOptions),
    /// Put the command, its kernel, manual pages and completions under a folder, where it needs no clone and no Rust.
    Install(install::InstallOptions),
    /// Remove what `install` has put there; the cache stays until `clean`.
    Uninstall(install::Removal),
    /// Run the tests.
    Test(test::TestOptions),
}

impl Arguments {
    /// The arguments of this process.
    ///
    /// # Errors
    /// The text to print instead of running a command, which may be the help.
    pub fn of_process() -> Result<Self, clap::Error> {
        let version = std::env::args_os().nth(1).is_some_and(|first| first == "--version" || first == "-V");
        // Asking for the commit takes time.
        let version = if version { paths::version() } else { env!("CARGO_PKG_VERSION").to_owned() };
        let mut words: Vec<OsString> = std::env::args_os().collect();
        let name = words.first().and_then(|name| Path::new(name).file_name());
        if name.is_some_and(|name| name == OCI_NAME) {
            words.insert(1, "oci".into());
        }
        Self::from_arg_matches(&Self::command().version(version).try_get_matches_from(words)?)
    }

    /// Runs the command and says with which status to end.
    ///
    /// # Errors
    /// Any failure of the command.
    pub fn execute(&self) -> Result<u8> {
        match &self.command {
            Command::Run(options) => run::execute(options),
            Command::Exec(options) => exec::execute(options),
            Command::Cp(options) => cp::execute(options),
            Command::Ps(options) => machines::list(options),
            Command::Stop(options) => machines::stop(options),
            Command::Kill(options) => machines::kill(options),
            Command::Logs(options) => machines::logs(options),
            Command::Rm(options) => machines::remove(options),
            Command::Oci(options) => oci::execute(options),
            Command::Bench(options) => bench::execute(options),
            Command::Clean(options) => clean::execute(options),
            Command::Info(options) => info::execute(options),
            Command::Install(options) => install::execute(options),
            Command::Uninstall(options) => install::remove(options),
            Command::Test(options) => test::execute(options),
        }
    }
}
