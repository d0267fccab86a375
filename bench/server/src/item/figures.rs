//! The paper's two figures.

use heddle_bench_programs::arguments::Arguments;
use heddle_bench_programs::measure::{report, report_rate};

use super::{MS_NS, Server, lead, loaded, print, text};
use crate::load::{Arrival, Load};
use crate::wire::PRIORITIES;

/// Figure 5.1: so many connections, each with a timer.
pub fn connections(arguments: &Arguments) -> Result<(), String> {
    let (count, rows) = (arguments.number("n", 1)?, arguments.number("rows", 20)?);
    let period_ns = arguments.number("period_ms", 100)? * MS_NS;
    let measured_ns = arguments.number("ms", 1000)? * MS_NS;
    let server = Server::start(arguments, &[])?;
    lead(arguments)?;
    let load = Load {
        at: server.at,
        classes: Load::even(count as usize, 1, Arrival::Closed { period_ns }),
        rows: rows as u16,
        warm_up_ns: measured_ns.min(period_ns * 2),
        measured_ns,
        seed: arguments.number("seed", 1)?,
    };
    let outcome = loaded(&load)?;
    let series = format!("matrix{rows}");
    report_rate(&format!("{series}-throughput-{count}"), outcome.throughput(None));
    print(&series, count, &outcome.all());
    let sent = &outcome.since_sent;
    report(&format!("{series}-sent-median-{count}"), sent.len(), sent.value_at_percentile(50.0).into());
    Ok(())
}

/// Figure 5.2: eight priorities, at parts of what the server can do.
pub fn priorities(arguments: &Arguments) -> Result<(), String> {
    let (count, rows) = (arguments.number("n", 128)?, arguments.number("rows", 20)? as u16);
    let measured_ns = arguments.number("ms", 1000)? * MS_NS;
    let server = Server::start(arguments, &["priorities=1"])?;
    lead(arguments)?;
    let load = Load {
        at: server.at,
        classes: Load::even(count as usize, PRIORITIES, Arrival::Closed { period_ns: 0 }),
        rows,
        warm_up_ns: measured_ns / 5,
        measured_ns,
        seed: arguments.number("seed", 1)?,
    };
    let capacity = loaded(&load)?.throughput(None);
    report_rate(&format!("of{count}-capacity"), capacity);
    for percent in arguments.text("loads", "50,90,100,150").split(',') {
        let part: f64 = percent.parse().map_err(text)?;
        let interval_ns = (count as f64 * 1e9 * 100.0 / (capacity * part)) as u64;
        let arrival = Arrival::Open { interval_ns };
        let load = Load { classes: Load::even(count as usize, PRIORITIES, arrival), ..load.clone() };
        let outcome = loaded(&load)?;
        let series = format!("of{count}-load{percent}");
        for (class, histogram) in outcome.since_due.iter().enumerate() {
            let place = class as u64 + 1;
            print(&series, place, histogram);
            report_rate(&format!("{series}-throughput-{place}"), outcome.throughput(Some(class)));
        }
        // The most urgent connections with nobody beside them, at the same rate each.
        let outcome = loaded(&Load { classes: load.classes[..1].to_vec(), ..load })?;
        print(&format!("{series}-alone"), 1, &outcome.since_due[0]);
    }
    Ok(())
}
