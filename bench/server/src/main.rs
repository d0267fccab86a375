//! Paper 3's experiment: a matrix server in four forms, and the load on it. An ordinary Linux program.
//!
//! - `heddle-bench-server serve form=FORM` serves ([`serve`]).
//! - `heddle-bench-server load at=ADDRESS …` loads a server that is somewhere ([`remote`]).
//! - `heddle-bench-server server what=… form=FORM …` does both in one machine ([`item`]), which is what
//!   `./heddle bench server` runs; `batch` runs several of them.

mod item;
mod load;
mod realtime;
mod remote;
mod serve;
mod wire;
mod work;

use std::process::ExitCode;

use heddle_bench_programs::arguments::Arguments;
use heddle_bench_programs::batch;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("heddle-bench-server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let mut words = std::env::args().skip(1);
    let what = words.next().unwrap_or_default();
    if what == "batch" {
        return batch::run(words);
    }
    let arguments = Arguments::parse(words)?;
    // Ends the process by a signal if the item takes longer.
    if let Ok(seconds @ 1..) = arguments.number("limit", 0) {
        nix::unistd::alarm::set(seconds.try_into().unwrap_or(u32::MAX));
    }
    match what.as_str() {
        "serve" => serve::run(&arguments),
        "load" => remote::run(&arguments),
        "server" => item::run(&arguments),
        _ => Err(format!("unknown: '{what}'")),
    }
}
