//! Load on a server that is somewhere else, as soon as that answers:
//! `load at=ADDRESS [rows=N] [n=CONNECTIONS] [priorities=N] [period_us=N | interval_us=N] [ms=N]`. Prints throughput
//! and percentiles, of each priority if there are several.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use heddle_bench_programs::arguments::Arguments;
use heddle_bench_programs::measure::allow_descriptors;

use crate::item::print;
use crate::load::{self, Arrival, Load};
use heddle_bench_programs::measure::report_rate;

const US_NS: u64 = 1000;
/// How long a server may take to start.
const START_LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);

/// Runs what the arguments say.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let at: SocketAddr = arguments.text("at", "").parse().map_err(|_| "at= is not an address")?;
    let connections = arguments.number("n", 1)?;
    allow_descriptors(connections + 64)?;
    let arrival = match arguments.number("interval_us", 0)? {
        0 => Arrival::Closed { period_ns: arguments.number("period_us", 100_000)? * US_NS },
        interval_us => Arrival::Open { interval_ns: interval_us * US_NS },
    };
    let measured_ns = arguments.number("ms", 1000)? * 1000 * US_NS;
    let priorities = arguments.number("priorities", 1)?.clamp(1, 8) as u8;
    let load = Load {
        at,
        classes: Load::even(connections as usize, priorities, arrival),
        rows: arguments.number("rows", 20)? as u16,
        warm_up_ns: measured_ns / 5,
        measured_ns,
        seed: arguments.number("seed", 1)?,
    };
    wait_for(&load)?;
    let outcome = load::run(&load)?;
    outcome.check()?;
    let series = format!("matrix{}", load.rows);
    report_rate(&format!("{series}-throughput-{connections}"), outcome.throughput(None));
    print(&series, connections, &outcome.all());
    for priority in (0..usize::from(priorities)).filter(|_| priorities > 1) {
        let name = format!("{series}-priority{}", priority + 1);
        report_rate(&format!("{name}-throughput-{connections}"), outcome.throughput(Some(priority)));
        print(&name, connections, &outcome.since_due[priority]);
    }
    Ok(())
}

/// Waits until the server answers a request.
fn wait_for(load: &Load) -> Result<(), String> {
    let classes = Load::even(1, 1, Arrival::Closed { period_ns: 0 });
    let first = Load { classes, warm_up_ns: 0, measured_ns: 1, ..load.clone() };
    let deadline = Instant::now() + START_LIMIT;
    loop {
        match load::run(&first).and_then(|outcome| outcome.check()) {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() > deadline => return Err(format!("no answer: {error}")),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}
