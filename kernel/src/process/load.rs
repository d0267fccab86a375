//! Load averages: how many threads wanted to run or waited for the host, averaged over 1, 5 and 15 minutes as Linux
//! does it.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::arch::time::now_ns;
use crate::process::{RunState, table};
use crate::time::{NS_PER_SECOND, sleep_until};

/// Averages are numbers with so many bits behind the point.
pub const FRACTION_BITS: u32 = 11;
const ONE: u64 = 1 << FRACTION_BITS;
/// How often the threads are counted.
const PERIOD_NS: u64 = 5 * NS_PER_SECOND;
/// The rest of an average after a period: `ONE * exp(-5 s / 1 min)`, and for 5 and 15 minutes.
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
    count(|state| state == RunState::Running)
}

fn count(is_counted: impl Fn(RunState) -> bool) -> u64 {
    let threads = table::each_process()
        .map(|process| process.threads().filter(|thread| is_counted(thread.run_state())).count() as u64);
    threads.sum()
}

/// Keeps the averages, for ever.
pub async fn keep() {
    let mut due_ns = now_ns();
    loop {
        due_ns = due_ns.saturating_add(PERIOD_NS);
        sleep_until(due_ns).await;
        let running = count(|state| matches!(state, RunState::Running | RunState::Uninterruptible)) * ONE;
        for (average, decay) in AVERAGES.iter().zip(DECAY) {
            let old = average.load(Ordering::Relaxed);
            // Rounded towards the number of threads, so that it is reached.
            let up = if running >= old { ONE - 1 } else { 0 };
            average.store((old * decay + running * (ONE - decay) + up) / ONE, Ordering::Relaxed);
        }
    }
}
