//! The load generator: one thread, which sends by a schedule and records how long each reply took since its request was
//! *due*, whenever it was sent. So a server that stops for a while is charged for every request of that while, and
//! nothing is omitted in coordination with it.

mod connection;
mod generator;
mod schedule;

use std::net::SocketAddr;

use hdrhistogram::Histogram;

pub use schedule::Arrival;

/// Latencies are recorded to so many digits.
const DIGITS: u8 = 3;
/// The longest latency that is told apart from longer ones: an hour.
const LATENCY_MAX_NS: u64 = 3_600_000_000_000;

/// Connections that are alike.
#[derive(Clone, Copy, Debug)]
pub struct Class {
    /// How many.
    pub connections: usize,
    /// The priority that their first message names.
    pub priority: u8,
    /// When requests are due on each.
    pub arrival: Arrival,
    /// Whether the server computes the replies under its lock.
    pub is_locked: bool,
}

/// A load.
#[derive(Clone, Debug)]
pub struct Load {
    /// The server.
    pub at: SocketAddr,
    /// Its connections.
    pub classes: Vec<Class>,
    /// Rows of the matrices.
    pub rows: u16,
    /// How long the load is on before latencies are recorded.
    pub warm_up_ns: u64,
    /// How long they are recorded.
    pub measured_ns: u64,
    /// Of what is random.
    pub seed: u64,
}

impl Load {
    /// So many connections in all, of all priorities below `priorities` in equal parts, with the same arrivals.
    #[must_use]
    pub fn even(connections: usize, priorities: u8, arrival: Arrival) -> Vec<Class> {
        let each = connections / usize::from(priorities.max(1));
        (0..priorities.max(1))
            .map(|priority| Class { connections: each, priority, arrival, is_locked: false })
            .collect()
    }
}

/// The result of a load.
#[derive(Debug)]
pub struct Outcome {
    /// Requests that were sent in all.
    pub sent: u64,
    /// Requests with their reply, which was right.
    pub replied: u64,
    /// Requests that ended with an error of their connection.
    pub failed: u64,
    /// Replies while latencies were recorded, by class.
    pub in_time: Vec<u64>,
    /// How long that was.
    pub measured_ns: u64,
    /// From when a request was due to its reply, by class.
    pub since_due: Vec<Histogram<u64>>,
    /// From when a request was sent to its reply, all classes: what the paper calls latency.
    pub since_sent: Histogram<u64>,
}

impl Outcome {
    fn new(load: &Load) -> Result<Self, String> {
        let histogram =
            || Histogram::new_with_bounds(1, LATENCY_MAX_NS, DIGITS).map_err(|error| error.to_string());
        Ok(Outcome {
            sent: 0,
            replied: 0,
            failed: 0,
            in_time: vec![0; load.classes.len()],
            measured_ns: load.measured_ns,
            since_due: load.classes.iter().map(|_| histogram()).collect::<Result<_, _>>()?,
            since_sent: histogram()?,
        })
    }

    /// Replies a second, of one class or all.
    #[must_use]
    pub fn throughput(&self, class: Option<usize>) -> f64 {
        let count = class.map_or_else(|| self.in_time.iter().sum(), |class| self.in_time[class]);
        count as f64 * 1e9 / self.measured_ns.max(1) as f64
    }

    /// All classes together.
    #[must_use]
    pub fn all(&self) -> Histogram<u64> {
        let mut all = self.since_sent.clone();
        all.reset();
        for histogram in &self.since_due {
            let _ = all.add(histogram);
        }
        all
    }

    /// That no request was lost: each has its reply or an error.
    ///
    /// # Errors
    /// It is not so, or there were errors.
    pub fn check(&self) -> Result<(), String> {
        if self.sent != self.replied + self.failed {
            return Err(format!("{} requests, {} replies, {} errors", self.sent, self.replied, self.failed));
        }
        if self.failed > 0 {
            return Err(format!("{} of {} requests ended with an error", self.failed, self.sent));
        }
        Ok(())
    }
}

/// Puts a load on a server.
///
/// # Errors
/// There is no connection, a reply was wrong, or replies are missing although they were waited for long enough.
pub fn run(load: &Load) -> Result<Outcome, String> {
    generator::Generator::new(load)?.run()
}
