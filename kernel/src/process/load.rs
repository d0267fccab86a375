//! Load averages: how many threads wanted to run, averaged over 1, 5 and 15 minutes as Linux does it.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::arch::time::now_ns;
use crate::process::table;
use crate::time::{NS_PER_SECOND, sleep_until};

/// Averages are numbers with so many bits behind the point.
pub const FRACTION_BITS: u32 = 11;
const ONE: u64 = 1 << FRACTION_BITS;
/// How often the threads are counted.
const PERIOD_NS: u64 = 5 * NS_PER_SECOND;
/// What is left of an average after a period: `ONE * exp(-5 s / 1 min)`, and for 5 and 15 minutes.
const DECAY: [u64; 3] = [1884, 2014, 2037];

static AVERAGES: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// The averages over 1, 5 and 15 minutes, with [`FRACTION_BITS`] behind the point.
#[must_use]
pub fn averages() -> [u64; 3] {
    [0, 1, 2].map(|index| AVERAGES[index].load(Ordering::Relaxed))
}

/// The number of threads that run or could.
#[must_use]
pub fn running() -> u64 {
    let (mut running, mut next) = (0, 0);
    while let Some(process) = table::next_process(next) {
        next = process.pid.saturating_add(1);
        let mut thread = process.next_thread(0);
        while let Some(current) = thread {
            running += u64::from(current.run_state().letter() == 'R');
            thread = process.next_thread(current.tid().saturating_add(1));
        }
    }
    running
}

/// Keeps the averages, for ever.
pub async fn keep() {
    let mut due_ns = now_ns();
    loop {
        due_ns = due_ns.saturating_add(PERIOD_NS);
        sleep_until(due_ns).await;
        let running = running() * ONE;
        for (average, decay) in AVERAGES.iter().zip(DECAY) {
            let old = average.load(Ordering::Relaxed);
            // Rounded towards the number of threads, so that it is reached.
            let up = if running >= old { ONE - 1 } else { 0 };
            average.store((old * decay + running * (ONE - decay) + up) / ONE, Ordering::Relaxed);
        }
    }
}
