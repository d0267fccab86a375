//! One item of the experiment: a server as a process of its own, and loads on it.

mod beyond;
mod check;
mod figures;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use hdrhistogram::Histogram;
use heddle_bench_programs::arguments::Arguments;
use heddle_bench_programs::measure::{allow_descriptors, pin, report};

use crate::load::{self, Load, Outcome};
use crate::realtime;

const MS_NS: u64 = 1_000_000;
/// Descriptors of the generator.
const DESCRIPTORS: u64 = 20_000;
/// Percentiles that are reported, and their names.
const PERCENTILES: [(&str, f64); 3] = [("median", 50.0), ("p99", 99.0), ("p99.9", 99.9)];

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A server that ends with this value.
struct Server {
    child: Child,
    at: SocketAddr,
}

impl Server {
    /// Starts a form on the first processors, with these words beside.
    fn start(arguments: &Arguments, words: &[&str]) -> Result<Self, String> {
        let mut command = Command::new("/proc/self/exe");
        command.arg("serve").arg(format!("cpus={}", arguments.number("cpus", 0)?.max(1))).args(words);
        for name in ["form", "strict"] {
            let value = arguments.text(name, "");
            if !value.is_empty() {
                command.arg(format!("{name}={value}"));
            }
        }
        if arguments.number("cpus", 0)? > 0 {
            command.arg("pinned=1");
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(text)?;
        let output = child.stdout.take().ok_or("no output of the server")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).map_err(text)?;
        match line.trim().parse() {
            Ok(at) => Ok(Server { child, at }),
            Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(format!("the server did not start: '{}'", line.trim()))
            }
        }
    }
}

impl Server {
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// `server what=connections|priorities|flood|raise|lock|two|check form=FORM [strict=1] [cpus=N] rows=N n=CONNECTIONS …`
///
/// With `cpus=N` the server has the first N processors and the generator the next one; otherwise they share all.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    allow_descriptors(DESCRIPTORS)?;
    realtime::prepare_machine()?;
    match arguments.text("what", "connections") {
        "connections" => figures::connections(arguments),
        "priorities" => figures::priorities(arguments),
        "check" => check::run(arguments),
        "flood" => beyond::flood(arguments),
        "raise" => beyond::raise(arguments),
        "lock" => beyond::lock(arguments),
        "two" => beyond::two(arguments),
        what => Err(format!("unknown: what={what}")),
    }
}

/// Gives the calling thread the generator's place. After servers have started, which would inherit it.
fn lead(arguments: &Arguments) -> Result<(), String> {
    if let processors @ 1.. = arguments.number("cpus", 0)? {
        pin(processors as usize)?;
    }
    realtime::lead()
}

/// Runs a load; every request has its right reply.
fn loaded(load: &Load) -> Result<Outcome, String> {
    let outcome = load::run(load)?;
    outcome.check().map(|()| outcome)
}

/// Prints the percentiles of a series at a place of the axis.
pub fn print(series: &str, x: u64, histogram: &Histogram<u64>) {
    for (name, percentile) in PERCENTILES {
        let value = histogram.value_at_percentile(percentile);
        report(&format!("{series}-{name}-{x}"), histogram.len(), value.into());
    }
}
