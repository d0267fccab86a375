//! The guest side of `./heddle bench`: measures, and prints one line a result.
//!
//! `heddle-bench-apps EXPERIMENT [NAME=VALUE…]` prints lines of the form
//! `result NAME ITERATIONS NANOSECONDS`, where the time is that of all iterations by the monotonic clock. Under
//! QEMU's icount that clock counts instructions. With `limit=SECONDS` an experiment ends by `SIGALRM` after that time.
//! What a run was not able to do it prints as `absent NAME: reason`.

mod arguments;
mod batch;
mod calls;
mod first;
mod measure;
mod memory;
mod pair;
mod pipeline;
mod processes;
mod ring;
mod yields;

use arguments::Arguments;

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
    let outcome = match experiment.as_str() {
        "calls" => calls::run(&arguments),
        "pair" => pair::run(&arguments),
        "processes" => processes::run(&arguments),
        "yields" => yields::run(&arguments),
        "ring" => ring::run(&arguments),
        "pipeline" => pipeline::run(&arguments),
        "memory" => memory::run(&arguments),
        "exit" => Ok(()),
        _ => Err(format!("unknown experiment '{experiment}'")),
    };
    outcome.map_or_else(|error| fail(&error), |()| std::process::ExitCode::SUCCESS)
}

fn fail(error: &str) -> std::process::ExitCode {
    eprintln!("heddle-bench-apps: {error}");
    std::process::ExitCode::FAILURE
}
