//! Randomized schedules of whole machines: the real code on threads that shuttle switches at each access to an atomic,
//! beside a record of what is due. Loom's models are exhaustive and tiny; these are larger and drawn at random.

use super::{
    BATCH, CoreState, Id, Outcome, Slot, Stealing, Table, WATCH_PARKED, cancel, post_new, set_priority,
    steal, wake,
};
use crate::sync::{Ordering, fence};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Arc;
use shuttle::thread;
use std::sync::Mutex;
use std::vec::Vec;

const CORES: usize = 3;
/// Coroutines that exist from the start; one more is posted on the way.
const COROUTINES: u32 = 5;
const LEVELS: u8 = super::LEVELS as u8;
/// Steps of each core.
const STEPS: usize = 14;
/// Requests of each thread that is no core.
const REQUESTS: usize = 12;

/// The reference: what must be true of a coroutine, whatever the schedule.
struct Known {
    id: Id,
    /// It was woken, and no turn has begun since.
    due: bool,
    running: bool,
    /// The level that was asked for last.
    level: u8,
    ended: bool,
}

struct World {
    slots: Vec<Slot>,
    cores: Vec<CoreState>,
    /// Never held at an access that shuttle sees.
    known: Mutex<Vec<Known>>,
}

impl Table for World {
    fn slot(&self, index: u32) -> Option<&Slot> {
        self.slots.get(index as usize)
    }
    fn core(&self, index: u32) -> Option<&CoreState> {
        self.cores.get(index as usize)
    }
    fn kick(&self, _: u32) {}
}

impl World {
    fn new() -> World {
        let world = World {
            slots: (0..COROUTINES + 2).map(|_| Slot::new()).collect(),
            cores: (0..CORES).map(|_| CoreState::new()).collect(),
            known: Mutex::default(),
        };
        for (index, core) in world.cores.iter().enumerate() {
            core.set_index(index as u16, index as u32);
            core.gate().set_stealing(Stealing::Fenced);
        }
        for index in 1..=COROUTINES {
            let core = &world.cores[index as usize % CORES];
            core.give_slot(&world, index);
            let level = index as u8 % LEVELS;
            let id = core.spawn(&world, core::ptr::null_mut(), level).unwrap();
            world.add(id, level);
        }
        world
    }

    fn add(&self, id: Id, level: u8) {
        self.known.lock().unwrap().push(Known { id, due: true, running: false, level, ended: false });
    }

    fn with<R>(&self, id: Id, f: impl FnOnce(&mut Known) -> R) -> R {
        let mut known = self.known.lock().unwrap();
        f(known.iter_mut().find(|known| known.id == id).expect("a coroutine that was spawned"))
    }

    /// One turn on core `at`; its level, unless nothing was ready.
    fn turn(&self, at: usize) -> Option<u8> {
        let picked = self.cores[at].pick(self)?;
        self.with(picked.id, |known| {
            assert!(!known.running, "{} runs twice", known.id);
            assert!(!known.ended, "{} runs after its end", known.id);
            known.running = true;
            known.due = false;
        });
        thread::yield_now();
        self.with(picked.id, |known| {
            known.running = false;
            known.ended = picked.cancelled;
        });
        let outcome = if picked.cancelled { Outcome::Complete } else { Outcome::Pending };
        self.cores[at].finish(self, picked.id, picked.slot, outcome);
        Some(picked.level)
    }

    fn run_core(&self, at: usize) {
        for _ in 0..STEPS {
            match thread_rng().gen_range(0..6) {
                0 => {
                    let victim = (at + 1 + thread_rng().gen_range(0..CORES - 1)) % CORES;
                    let want = 1 + thread_rng().gen_range(0..BATCH);
                    let heavy = || fence(Ordering::SeqCst);
                    steal(self, &self.cores[at], &self.cores[victim], u64::MAX, want, heavy);
                }
                1 => self.wake_one(Some(&self.cores[at])),
                _ => drop(self.turn(at)),
            }
        }
    }

    fn wake_one(&self, here: Option<&CoreState>) {
        let id = {
            let mut known = self.known.lock().unwrap();
            let number = thread_rng().gen_range(0..known.len());
            known[number].due = true;
            known[number].id
        };
        wake(self, here, id);
    }

    /// The only one who changes levels, so that there is a last change.
    fn run_ranker(&self) {
        for _ in 0..REQUESTS {
            let number = thread_rng().gen_range(0..COROUTINES as usize);
            let level = thread_rng().gen_range(0..LEVELS);
            let id = self.known.lock().unwrap()[number].id;
            self.with(id, |known| known.level = level);
            set_priority(self, None, id, level);
        }
    }

    fn run_waker(&self) {
        for request in 0..REQUESTS {
            if request == REQUESTS / 2 {
                let owner = thread_rng().gen_range(0..CORES) as u16;
                // Known before it can run, by the id that it is going to have.
                self.add(Id::new(COROUTINES + 1, 1).unwrap(), 1);
                post_new(self, COROUTINES + 1, core::ptr::null_mut(), 1, owner).unwrap();
            }
            self.wake_one(None);
        }
    }

    /// Runs what is ready, each core's by level.
    fn drain(&self) {
        while self.cores.iter().any(CoreState::has_work) {
            for (at, core) in self.cores.iter().enumerate() {
                core.drain(self);
                let mut last = 0;
                while let Some(level) = self.turn(at) {
                    assert!(level >= last, "level {level} after {last}");
                    last = level;
                }
            }
        }
    }

    fn end(&self) {
        self.drain();
        let ids: Vec<Id> = self.known.lock().unwrap().iter().map(|known| known.id).collect();
        for id in &ids {
            let slot = self.slot(id.index()).unwrap();
            self.with(*id, |known| assert!(!known.due, "a wake of {id} was lost"));
            let level = self.with(*id, |known| known.level);
            assert_eq!(slot.level(), level, "{id}");
            cancel(self, None, *id);
        }
        self.drain();
        assert!(self.known.lock().unwrap().iter().all(|known| known.ended));
        let free: u32 = self.cores.iter().map(CoreState::free_slots).sum();
        assert_eq!(free, COROUTINES + 1);
        assert!(self.cores.iter().all(|core| core.expose(WATCH_PARKED)));
    }
}

fn play() {
    let world = Arc::new(World::new());
    let start = |run: fn(&World)| {
        let world = world.clone();
        thread::spawn(move || run(&world))
    };
    let others = [start(World::run_ranker), start(World::run_waker)];
    let cores: Vec<_> = (0..CORES)
        .map(|at| {
            let world = world.clone();
            thread::spawn(move || world.run_core(at))
        })
        .collect();
    cores.into_iter().chain(others).for_each(|thread| thread.join().unwrap());
    world.end();
}

fn rounds() -> usize {
    if std::env::var_os("HEDDLE_LONG").is_some() { 50_000 } else { 500 }
}

#[test]
fn schedules_drawn_at_random() {
    shuttle::check_random(play, rounds());
}

/// Few changes of the running thread, at places drawn at random: finds what needs one thread to rest for long.
#[test]
fn schedules_with_few_switches() {
    shuttle::check_pct(play, rounds(), 4);
}
