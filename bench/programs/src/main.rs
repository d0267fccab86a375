//! The guest side of `./heddle bench`: measures, and prints one line a result.
//!
//! `heddle-bench-programs EXPERIMENT [NAME=VALUE…]` prints lines of the form `result NAME ITERATIONS NANOSECONDS`. The
//! time is that of all iterations by the monotonic clock; under QEMU's icount that clock counts instructions. Other
//! lines are `size NAME BYTES` and `count NAME NUMBER`. With `limit=SECONDS` an experiment ends by `SIGALRM` after that
//! time. A run that could not be made is printed as `absent NAME: reason`.

mod asynccall;
mod calls;
mod copies;
mod coroutine;
mod first;
mod idle;
mod memory;
mod net;
mod order;
mod pair;
mod pipeline;
mod priority;
mod processes;
mod ring;
mod servers;
mod shares;
mod signals;
mod spaces;
mod yields;

use arguments::Arguments;
use heddle_bench_programs::{arguments, batch, measure};

type Experiment = fn(&Arguments) -> Result<(), String>;

/// The experiments by name: a module each.
const EXPERIMENTS: [(&str, Experiment); 16] = [
    ("calls", calls::run),
    ("copies", copies::run),
    ("pair", pair::run),
    ("processes", processes::run),
    ("yields", yields::run),
    ("ring", ring::run),
    ("pipeline", pipeline::run),
    ("memory", memory::run),
    ("idle", idle::run),
    ("order", order::run),
    ("priority", priority::run),
    ("asynccall", asynccall::run),
    ("net", net::run),
    ("servers", servers::run),
    ("shares", shares::run),
    ("spaces", spaces::run),
];

fn main() -> std::process::ExitCode {
    let mut words = std::env::args().skip(1);
    let experiment = words.next().unwrap_or_default();
    if std::process::id() == 1 && experiment.is_empty() {
        return first::run().map_or_else(|error| fail(&error), |()| std::process::ExitCode::SUCCESS);
    }
    if experiment == "batch" {
        return batch::run(words).map_or_else(|error| fail(&error), |()| std::process::ExitCode::SUCCESS);
    }
    let arguments = match Arguments::parse(words) {
        Ok(arguments) => arguments,
        Err(error) => return fail(&error),
    };
    // Ends the process by a signal if the experiment takes longer.
    if let Ok(seconds @ 1..) = arguments.number("limit", 0) {
        nix::unistd::alarm::set(seconds.try_into().unwrap_or(u32::MAX));
    }
    let outcome = match EXPERIMENTS.iter().find(|(name, _)| *name == experiment) {
        Some((_, run)) => run(&arguments),
        // The experiment for processes that only begin and end.
        None if experiment == "exit" => Ok(()),
        None => Err(format!("unknown experiment '{experiment}'")),
    };
    outcome.map_or_else(|error| fail(&error), |()| std::process::ExitCode::SUCCESS)
}

fn fail(error: &str) -> std::process::ExitCode {
    eprintln!("heddle-bench-programs: {error}");
    std::process::ExitCode::FAILURE
}
