//! Several cores whose steps a random scheduler interleaves, on the scheduler's core itself.

use super::Random;
use heddle_coroutine::sched::{
    CoreState, Flat, Id, Outcome, Slot, Stealing, Table, WATCH_PARKED, cancel, set_priority, steal, wake,
};
use std::cell::RefCell;

const CORES: usize = 3;
const COROUTINES: usize = 12;
const LEVELS: usize = 6;

/// Every how many turns a core takes what is more urgent elsewhere than its own best.
const LOOK: u32 = 4;

struct Running {
    number: usize,
    id: Id,
}

/// The test's knowledge of a coroutine.
struct Known {
    id: Id,
    level: u8,
    /// It was woken, and has had no turn since.
    due: bool,
    /// Turns of less urgent coroutines that began on cores that had looked since it became due.
    passed: u32,
    running: bool,
    ended: bool,
}

#[test]
fn several_cores_lose_nothing_and_bound_inversion() {
    super::seeds(2000, |random, seed| Machine::new().play(random, seed));
}

struct Machine {
    slots: Vec<Slot>,
    cores: Vec<CoreState>,
}

impl Machine {
    fn new() -> Machine {
        let machine = Machine {
            slots: (0..=COROUTINES).map(|_| Slot::new()).collect(),
            cores: (0..CORES).map(|_| CoreState::new()).collect(),
        };
        let table = Flat { slots: &machine.slots, cores: &machine.cores, kick: |_| {} };
        for (index, core) in machine.cores.iter().enumerate() {
            core.set_index(index as u16, index as u32);
            core.gate().set_stealing(Stealing::Fenced);
        }
        (1..=COROUTINES).for_each(|index| machine.cores[index % CORES].give_slot(&table, index as u32));
        machine
    }

    fn play(&self, random: &mut Random, seed: u64) {
        let kicks = RefCell::new(Vec::new());
        let table =
            Flat { slots: &self.slots, cores: &self.cores, kick: |core: u32| kicks.borrow_mut().push(core) };
        let mut known: Vec<Known> = (0..COROUTINES)
            .map(|number| {
                let level = random.below(LEVELS) as u8;
                let core = &self.cores[(number + 1) % CORES];
                let id = core.spawn(&table, std::ptr::null_mut(), level).unwrap();
                Known { id, level, due: true, passed: 0, running: false, ended: false }
            })
            .collect();
        let mut running: [Option<Running>; CORES] = Default::default();
        let mut turns = [0u32; CORES];
        for _ in 0..400 {
            let at = random.below(CORES);
            let core = &self.cores[at];
            match random.below(10) {
                // A turn begins, if none is under way.
                0..=3 if running[at].is_none() => {
                    turns[at] += 1;
                    let looked = turns[at] % LOOK == 0;
                    if looked {
                        self.look(&table, at);
                    }
                    running[at] = self.begin(&table, at, &mut known, looked, seed);
                }
                4..=6 => {
                    if let Some(Running { number, id }) = running[at].take() {
                        known[number].running = false;
                        let slot = table.slot(id.index()).unwrap();
                        core.finish(&table, id, slot, Outcome::Pending);
                    }
                }
                7 | 8 => {
                    let number = random.below(COROUTINES);
                    wake(&table, Some(core).filter(|_| random.below(3) > 0), known[number].id);
                    known[number].due |= !known[number].ended;
                }
                9 => {
                    let (number, level) = (random.below(COROUTINES), random.below(LEVELS) as u8);
                    set_priority(&table, Some(core), known[number].id, level);
                    known[number].level = level;
                    known[number].passed = 0;
                }
                _ => self.steal_something(&table, random, at),
            }
        }
        self.end(&table, running, &mut known, seed);
        for core in kicks.take() {
            assert!((core as usize) < CORES);
        }
    }

    /// Takes one coroutine that is more urgent than the core's own best.
    fn look(&self, table: &impl Table, at: usize) {
        let own = self.cores[at].ready().bitmap();
        let above = (own & own.wrapping_neg()).wrapping_sub(1);
        for victim in (0..CORES).filter(|victim| *victim != at) {
            steal(table, &self.cores[at], &self.cores[victim], above, 1, || {});
        }
    }

    fn steal_something(&self, table: &impl Table, random: &mut Random, at: usize) {
        let victim = (at + 1 + random.below(CORES - 1)) % CORES;
        steal(table, &self.cores[at], &self.cores[victim], u64::MAX, 1 + random.below(4), || {});
    }

    fn begin(
        &self,
        table: &impl Table,
        at: usize,
        known: &mut [Known],
        looked: bool,
        seed: u64,
    ) -> Option<Running> {
        let picked = self.cores[at].pick(table)?;
        let number = known.iter().position(|known| known.id == picked.id).unwrap();
        assert!(!known[number].running, "seed {seed}: {number} runs twice");
        // The owner's own queue is in exact order, so nothing more urgent is left in it.
        let left = self.cores[at].ready().bitmap().trailing_zeros();
        assert!(left >= u32::from(picked.level), "seed {seed}");
        known[number].running = true;
        known[number].due = false;
        known[number].passed = 0;
        let level = known[number].level;
        for other in known.iter_mut().filter(|other| other.due && !other.running && other.level < level) {
            // A core that has just looked passes over a more urgent one only while that is on its way through an inbox.
            other.passed += u32::from(looked);
            assert!(other.passed <= CORES as u32 * 2, "seed {seed}: passed over {} times", other.passed);
        }
        Some(Running { number, id: picked.id })
    }

    /// Everything that is due runs; then everything is cancelled, and every slot is free again.
    fn end(&self, table: &impl Table, running: [Option<Running>; CORES], known: &mut [Known], seed: u64) {
        for (at, running) in running.into_iter().enumerate() {
            if let Some(Running { number, id }) = running {
                known[number].running = false;
                self.cores[at].finish(table, id, table.slot(id.index()).unwrap(), Outcome::Pending);
            }
        }
        self.drain(table, known);
        assert!(known.iter().all(|known| !known.due), "seed {seed}: a wake was lost");
        for known in known.iter_mut() {
            let slot = table.slot(known.id.index()).unwrap();
            assert_eq!(slot.level(), known.level, "seed {seed}");
            cancel(table, None, known.id);
        }
        self.drain(table, known);
        assert!(known.iter().all(|known| known.ended), "seed {seed}");
        assert_eq!(self.cores.iter().map(CoreState::free_slots).sum::<u32>(), COROUTINES as u32);
        assert!(self.cores.iter().all(|core| core.expose(WATCH_PARKED)), "seed {seed}");
    }

    fn drain(&self, table: &impl Table, known: &mut [Known]) {
        // A stale owner forwards what was posted to it, so go round until nobody has anything.
        while self.cores.iter().any(CoreState::has_work) {
            for core in &self.cores {
                while let Some(picked) = core.pick(table) {
                    let number = known.iter().position(|known| known.id == picked.id).unwrap();
                    known[number].due = false;
                    known[number].ended |= picked.cancelled;
                    let outcome = if picked.cancelled { Outcome::Complete } else { Outcome::Pending };
                    core.finish(table, picked.id, picked.slot, outcome);
                }
            }
        }
    }
}
