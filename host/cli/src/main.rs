//! The Heddle host tool.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use heddle_cli::{STATUS_TOOL_FAILED, commands};

/// Runs unmodified Linux programs in virtual machines of their own.
#[derive(Parser)]
#[command(name = "heddle", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program in a virtual machine.
    Run(Box<commands::run::Options>),
    /// Measure, all sides in one run.
    Bench(commands::bench::Options),
    /// Empty the cache of root images, packages and kernels.
    Clean(commands::clean::Options),
    /// Run the tests.
    Test(commands::test::Options),
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(STATUS_TOOL_FAILED) } else { ExitCode::SUCCESS };
        }
    };
    let result = match arguments.command {
        Command::Run(options) => commands::run::execute(&options),
        Command::Bench(options) => commands::bench::execute(&options),
        Command::Clean(options) => commands::clean::execute(&options),
        Command::Test(options) => commands::test::execute(&options),
    };
    ExitCode::from(result.unwrap_or_else(|error| {
        heddle_cli::say!("{error:#}");
        STATUS_TOOL_FAILED
    }))
}
