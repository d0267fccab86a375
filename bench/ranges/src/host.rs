//! Whether other programs had the machine's processors while something was measured.

use std::fs;

use rustix::param::clock_ticks_per_second;
use rustix::time::{ClockId, clock_gettime};

/// Share of one processor that others may have had in a row that counts as quiet.
const QUIET: f64 = 0.1;

/// Processor time so far, in seconds.
#[derive(Clone, Copy)]
pub struct Watch {
    all: f64,
    own: f64,
    began: f64,
}

fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Time that all processors together were not idle, other guests' included; 0 where the system does not tell.
fn all() -> f64 {
    let Ok(text) = fs::read_to_string("/proc/stat") else { return 0.0 };
    let Some(line) = text.lines().next() else { return 0.0 };
    let ticks: Vec<f64> = line.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    // User, nice, system, idle, waiting, interrupts, soft ones, stolen; guests are counted under user already.
    let busy: f64 =
        ticks.iter().take(8).enumerate().filter(|(at, _)| !matches!(at, 3 | 4)).map(|(_, t)| t).sum();
    busy / clock_ticks_per_second() as f64
}

impl Watch {
    /// Begins to watch.
    pub fn start() -> Self {
        Self { all: all(), own: seconds(ClockId::ProcessCPUTime), began: seconds(ClockId::Monotonic) }
    }

    /// Processors that other programs had meanwhile, on average.
    pub fn others(&self) -> f64 {
        let now = Self::start();
        let span = (now.began - self.began).max(1e-9);
        ((now.all - self.all) - (now.own - self.own)).max(0.0) / span
    }

    /// Whether that was more than a quiet machine has.
    pub fn was_busy(&self) -> bool {
        self.others() > QUIET
    }
}
