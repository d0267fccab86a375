//! Correctness, whatever the time it takes: no request is lost, and none is answered wrongly.

use std::time::Duration;

use heddle_bench_programs::arguments::Arguments;

use super::{MS_NS, Server, loaded};
use crate::load::{self, Arrival, Class, Load};
use crate::wire::PRIORITIES;

const CONNECTIONS: usize = 16;
const ROWS: u16 = 20;
const MEASURED_NS: u64 = 100 * MS_NS;
/// Requests of each connection are due so far apart, which is more than a machine can do.
const TOO_SOON_NS: u64 = MS_NS;
/// When the server is killed.
const KILL_AFTER: Duration = Duration::from_millis(50);

/// Runs all.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let mut server = Server::start(arguments, &["priorities=1"])?;
    let load = |rows, classes| Load {
        at: server.at,
        classes,
        rows,
        warm_up_ns: 0,
        measured_ns: MEASURED_NS,
        seed: 9,
    };
    let closed = Arrival::Closed { period_ns: 5 * MS_NS };
    loaded(&load(1, Load::even(CONNECTIONS, 1, closed)))?;
    loaded(&load(ROWS, Load::even(CONNECTIONS, 1, Arrival::Closed { period_ns: 0 })))?;
    let too_much = Load::even(CONNECTIONS, PRIORITIES, Arrival::Open { interval_ns: TOO_SOON_NS });
    loaded(&load(ROWS, too_much.clone()))?;
    let locked = too_much.iter().map(|class| Class { is_locked: true, ..*class }).collect();
    loaded(&load(ROWS, locked))?;
    // A server that is gone: each request has its reply or an error.
    let last = load(ROWS, too_much);
    let outcome = std::thread::scope(|scope| {
        let loading = scope.spawn(|| load::run(&last));
        std::thread::sleep(KILL_AFTER);
        server.kill();
        loading.join().map_err(|_| "a thread panicked".to_owned())?
    });
    match outcome {
        Ok(outcome) if outcome.sent == outcome.replied + outcome.failed => Ok(()),
        Ok(outcome) => Err(format!(
            "the server was killed: {} requests, {} replies, {} errors",
            outcome.sent, outcome.replied, outcome.failed
        )),
        // It was killed before all connections were made or had answered.
        Err(error) if error.starts_with("connection ") || error.ends_with("do not answer") => Ok(()),
        Err(error) => Err(error),
    }
}
