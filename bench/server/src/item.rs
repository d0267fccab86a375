//! One item of the experiment: a server as a process of its own, and loads on it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use hdrhistogram::Histogram;
use heddle_bench_programs::arguments::Arguments;
use heddle_bench_programs::measure::{allow_descriptors, pin, report, report_rate};

use crate::load::{self, Arrival, Load, Outcome};
use crate::realtime;
use crate::wire::PRIORITIES;

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
    /// Starts the form that the arguments name, on the first processors.
    fn start(arguments: &Arguments, processors: u64, has_priorities: bool) -> Result<Self, String> {
        let mut command = Command::new("/proc/self/exe");
        command.arg("serve").arg(format!("cpus={processors}"));
        command.arg(format!("priorities={}", u8::from(has_priorities)));
        for name in ["form", "strict"] {
            let value = arguments.text(name, "");
            if !value.is_empty() {
                command.arg(format!("{name}={value}"));
            }
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

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `server what=connections|priorities form=FORM [strict=1] [cpus=N] rows=N n=CONNECTIONS …`
///
/// With `cpus=N` the server has the first N processors and the generator the next one; otherwise they share all.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    allow_descriptors(DESCRIPTORS)?;
    realtime::lift_bound();
    match arguments.text("what", "connections") {
        "connections" => connections(arguments),
        "priorities" => priorities(arguments),
        what => Err(format!("unknown: what={what}")),
    }
}

/// Gives the calling process the generator's place. After the server has started, which would inherit it.
fn lead(processors: u64) -> Result<(), String> {
    if processors > 0 {
        pin(processors as usize)?;
    }
    realtime::lead()
}

/// Prints the percentiles of a series at a place of the axis.
pub fn print(series: &str, x: u64, histogram: &Histogram<u64>) {
    for (name, percentile) in PERCENTILES {
        let value = histogram.value_at_percentile(percentile);
        report(&format!("{series}-{name}-{x}"), histogram.len(), value.into());
    }
}

/// Figure 5.1: so many connections, each with a timer.
fn connections(arguments: &Arguments) -> Result<(), String> {
    let (count, rows) = (arguments.number("n", 1)?, arguments.number("rows", 20)?);
    let period_ns = arguments.number("period_ms", 100)? * MS_NS;
    let measured_ns = arguments.number("ms", 1000)? * MS_NS;
    let processors = arguments.number("cpus", 0)?;
    let server = Server::start(arguments, processors.max(1), false)?;
    lead(processors)?;
    let load = Load {
        at: server.at,
        connections: count as usize,
        rows: rows as u16,
        priorities: 1,
        arrival: Arrival::Closed { period_ns },
        warm_up_ns: measured_ns.min(period_ns * 2),
        measured_ns,
        seed: arguments.number("seed", 1)?,
    };
    let outcome = load::run(&load)?;
    outcome.check()?;
    let series = format!("matrix{rows}");
    report_rate(&format!("{series}-throughput-{count}"), outcome.throughput(None));
    print(&series, count, &outcome.all());
    let sent = &outcome.since_sent;
    report(&format!("{series}-sent-median-{count}"), sent.len(), sent.value_at_percentile(50.0).into());
    Ok(())
}

/// Figure 5.2: eight priorities, at parts of what the server can do.
fn priorities(arguments: &Arguments) -> Result<(), String> {
    let (count, rows) = (arguments.number("n", 128)?, arguments.number("rows", 20)? as u16);
    let measured_ns = arguments.number("ms", 1000)? * MS_NS;
    let processors = arguments.number("cpus", 0)?;
    let server = Server::start(arguments, processors.max(1), true)?;
    lead(processors)?;
    let load = Load {
        at: server.at,
        connections: count as usize,
        rows,
        priorities: PRIORITIES,
        arrival: Arrival::Closed { period_ns: 0 },
        warm_up_ns: measured_ns / 5,
        measured_ns,
        seed: arguments.number("seed", 1)?,
    };
    let run = |load: &Load| -> Result<Outcome, String> {
        let outcome = load::run(load)?;
        outcome.check().map(|()| outcome)
    };
    let capacity = run(&load)?.throughput(None);
    report_rate(&format!("of{count}-capacity"), capacity);
    for percent in arguments.text("loads", "50,90,100,150").split(',') {
        let part: f64 = percent.parse().map_err(text)?;
        let interval_ns = (count as f64 * 1e9 * 100.0 / (capacity * part)) as u64;
        let load = Load { arrival: Arrival::Open { interval_ns }, ..load.clone() };
        let outcome = run(&load)?;
        for priority in 0..PRIORITIES {
            let series = format!("of{count}-load{percent}");
            let place = u64::from(priority) + 1;
            print(&series, place, &outcome.since_due[usize::from(priority)]);
            report_rate(&format!("{series}-throughput-{place}"), outcome.throughput(Some(priority)));
        }
        // The most urgent connections with nobody beside them, at the same rate each.
        let alone = Load { connections: load.connections / usize::from(PRIORITIES), priorities: 1, ..load };
        let outcome = run(&alone)?;
        print(&format!("of{count}-load{percent}-alone"), 1, &outcome.since_due[0]);
    }
    Ok(())
}
