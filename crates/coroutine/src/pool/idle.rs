//! An executor's thread whose core has nothing ready: it waits a little, takes from others, or
//! sleeps.

use crate::core_entry::CoreEntry;
use crate::machine::{MACHINE_CORES, Shared, victims};
use crate::os;
use crate::park::Patience;
use crate::registry::Global;
use crate::sched::{BATCH, CoreState, LEVELS, WATCH_PARKED, steal, steal_watched};
use crate::sync::Ordering;
use core::time::Duration;
use std::time::Instant;

/// How often an idle core looks whether a coroutine waits behind another's long turn.
const WATCH: Duration = Duration::from_micros(200);

/// State of a core from one idle spell to the next.
pub(super) struct Idler {
    patience: Patience,
    /// For each core, what was seen of it when it last had work; `None` if it had none.
    seen: [Option<Seen>; MACHINE_CORES],
    /// When.
    looked: Instant,
    /// How often nothing was found since something was.
    vain: u32,
}

/// How many looks a watching core takes after all others went idle, before it sleeps for good: work that comes and
/// goes need not wake it each time.
const VAIN_LOOKS: u32 = 25;

/// A core's counters at a look.
#[derive(Clone, Copy)]
struct Seen {
    idles: u64,
    picks: u64,
    wakes: u64,
}

impl Seen {
    fn of(core: &CoreState) -> Seen {
        Seen { idles: core.idles(), picks: core.ready().picks(), wakes: core.wakes() }
    }

    /// Whether `core`, seen so before, has been busy since with more than it can run. One that has a single coroutine
    /// waiting, and whose turns were all due to wakes, runs a conversation: apart, its ends would wake each other from
    /// core to core.
    fn is_overloaded(self, core: &CoreState) -> bool {
        let now = Seen::of(core);
        let picks = now.picks.wrapping_sub(self.picks);
        let wakes = now.wakes.wrapping_sub(self.wakes);
        now.idles == self.idles && (core.ready().has_two() || picks == 0 || wakes < picks / 2)
    }
}

impl Idler {
    pub fn new() -> Idler {
        Idler { patience: Patience::new(), seen: [None; MACHINE_CORES], looked: Instant::now(), vain: 0 }
    }

    /// Nothing is ready here: takes what others cannot run soon, or else sleeps.
    #[cold]
    pub fn idle(&mut self, shared: &Shared, entry: &'static CoreEntry) {
        entry.running.store(LEVELS as u32, Ordering::Relaxed);
        if self.patience.spin(entry) || self.take(shared, entry) || !entry.state.expose(WATCH_PARKED) {
            self.vain = 0;
            return;
        }
        if entry.is_more_in_reserve() {
            // It has passed something on on its way here.
            return entry.state.inbox().cover();
        }
        shared.set_idle(entry.state.number(), true);
        self.vain = if shared.all_idle() { self.vain + 1 } else { 0 };
        // One idle core keeps looking as long as others run, for what waits behind a long turn.
        let watch = self.vain < VAIN_LOOKS && shared.watched.swap(1, Ordering::Relaxed) == 0;
        if !shared.is_closed() {
            self.patience.sleep(entry, watch.then_some(WATCH));
        }
        if watch {
            shared.watched.store(0, Ordering::Relaxed);
        }
        entry.state.inbox().cover();
        shared.set_idle(entry.state.number(), false);
    }

    /// Takes from other cores: at once what is more urgent than what they run, or what nobody runs; else only from
    /// those that have been busy, with more waiting, for as long as a watch. Moving a coroutine costs more than many
    /// a turn, so a short queue is best left where it is.
    fn take(&mut self, shared: &Shared, entry: &CoreEntry) -> bool {
        let due = self.looked.elapsed() >= WATCH / 2;
        let mut taken = 0;
        for victim in victims(shared, entry) {
            let number = victim.state.number() as usize % MACHINE_CORES;
            let busy = due && self.seen[number].is_some_and(|seen| seen.is_overloaded(&victim.state));
            if busy || !victim.has_thread() {
                taken += steal(&Global, &entry.state, &victim.state, u64::MAX, BATCH, os::heavy_barrier);
            } else if victim.has_more_urgent() || left_in_a_turn(shared, victim) {
                let running = || victim.running.load(Ordering::Relaxed).min(LEVELS as u32) as u8;
                let urgent = (1 << running().min(63)) - 1;
                let (core, other, heavy) = (&entry.state, &victim.state, os::heavy_barrier);
                taken += steal_watched(&Global, core, other, (urgent, 1), running, heavy).unwrap_or(0);
            }
        }
        if due {
            self.looked = Instant::now();
            self.seen = [None; MACHINE_CORES];
            for victim in victims(shared, entry) {
                self.seen[victim.state.number() as usize % MACHINE_CORES] = Some(Seen::of(&victim.state));
            }
        }
        taken != 0
    }
}

/// Whether something was left with a core that watches for what is more urgent than what it runs.
fn left_in_a_turn(shared: &Shared, victim: &CoreEntry) -> bool {
    shared.watching.load(Ordering::Relaxed) != 0 && victim.is_in_turn() && !victim.state.inbox().is_empty()
}
