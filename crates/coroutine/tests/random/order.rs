//! One core: random programs, run by the executor and by a model of lists that are searched.

use super::Random;
use heddle_coroutine::{
    Builder, Id, LocalExecutor, LocalJoinHandle, abort, preempted, set_priority, spawn_local,
    try_spawn_local, wake, yield_now,
};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// The actions of a coroutine in one turn, before it yields.
#[derive(Clone, Debug)]
enum Act {
    Wake(usize),
    Rank(usize, u8),
    Abort(usize),
    Spawn(u8),
}

/// How a turn ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Yield,
    Preempted,
    Wait,
    Finish,
}

type Program = Vec<(Vec<Act>, End)>;

const LEVELS: usize = 5;
const MOST: usize = 24;

fn program(random: &mut Random) -> Program {
    let turns = 1 + random.below(6);
    let mut program: Program = (0..turns)
        .map(|_| {
            let act = |random: &mut Random| match random.below(8) {
                0..=3 => Act::Wake(random.below(MOST)),
                4 | 5 => Act::Rank(random.below(MOST), random.below(LEVELS) as u8),
                6 => Act::Spawn(random.below(LEVELS) as u8),
                _ => Act::Abort(random.below(MOST)),
            };
            let acts = (0..random.below(4)).map(|_| act(random)).collect();
            let end = [End::Yield, End::Yield, End::Preempted, End::Wait, End::Wait][random.below(5)];
            (acts, end)
        })
        .collect();
    program.push((Vec::new(), End::Finish));
    program
}

/// (coroutine, turn) in the order in which turns happened.
type Trace = Vec<(usize, usize)>;

/// Everything that both sides share: the programs by number.
struct Plan {
    programs: Vec<Program>,
    first: Vec<u8>,
}

fn plan(random: &mut Random) -> Plan {
    let programs = (0..MOST).map(|_| program(random)).collect();
    let first = (0..1 + random.below(6)).map(|_| random.below(LEVELS) as u8).collect();
    Plan { programs, first }
}

#[derive(Default)]
struct Real {
    ids: RefCell<Vec<Id>>,
    handles: RefCell<Vec<LocalJoinHandle<()>>>,
    trace: RefCell<Trace>,
}

/// Spawns the next coroutine of the plan, unless all have been.
fn start(plan: &Rc<Plan>, real: &Rc<Real>, level: u8, executor: Option<&LocalExecutor>) {
    let number = real.ids.borrow().len();
    if number == MOST {
        return;
    }
    let (own_plan, own) = (plan.clone(), real.clone());
    let body = async move {
        for (turn, (acts, end)) in own_plan.programs[number].iter().enumerate() {
            own.trace.borrow_mut().push((number, turn));
            for act in acts {
                let id = |other: usize| own.ids.borrow().get(other).copied();
                match *act {
                    Act::Wake(other) => id(other).map_or((), wake),
                    Act::Rank(other, level) => id(other).map_or((), |id| set_priority(id, level)),
                    Act::Abort(other) => id(other).map_or((), abort),
                    Act::Spawn(level) => start(&own_plan, &own, level, None),
                }
            }
            match end {
                End::Yield => yield_now().await,
                End::Preempted => preempted().await,
                End::Wait => {
                    let mut waited = false;
                    std::future::poll_fn(|_| match std::mem::replace(&mut waited, true) {
                        true => std::task::Poll::Ready(()),
                        false => std::task::Poll::Pending,
                    })
                    .await;
                }
                End::Finish => {}
            }
        }
    };
    let builder = Builder::new().priority(level);
    let handle = match executor {
        Some(executor) => executor.try_spawn(builder, body),
        None => try_spawn_local(builder, body),
    };
    let handle = handle.unwrap();
    real.ids.borrow_mut().push(handle.id());
    real.handles.borrow_mut().push(handle);
}

fn run_real(plan: &Rc<Plan>) -> Trace {
    let executor = LocalExecutor::new();
    let real = Rc::<Real>::default();
    for level in &plan.first {
        start(plan, &real, *level, Some(&executor));
    }
    executor.run_until_idle();
    real.trace.take()
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Waiting,
    Queued,
    Running,
    Notified,
    Ended,
}

struct Coroutine {
    phase: Phase,
    level: u8,
    turn: usize,
    cancelled: bool,
}

/// The rules, in the plainest form.
struct Model {
    coroutines: Vec<Coroutine>,
    queue: Vec<VecDeque<usize>>,
    trace: Trace,
}

impl Model {
    fn start(&mut self, level: u8) {
        if self.coroutines.len() < MOST {
            self.queue[level as usize].push_back(self.coroutines.len());
            self.coroutines.push(Coroutine { phase: Phase::Queued, level, turn: 0, cancelled: false });
        }
    }

    fn wake(&mut self, number: usize) {
        let Some(coroutine) = self.coroutines.get_mut(number) else { return };
        match coroutine.phase {
            Phase::Waiting => {
                coroutine.phase = Phase::Queued;
                self.queue[coroutine.level as usize].push_back(number);
            }
            Phase::Running => coroutine.phase = Phase::Notified,
            _ => {}
        }
    }

    fn rank(&mut self, number: usize, level: u8) {
        let Some(coroutine) = self.coroutines.get_mut(number).filter(|c| c.phase != Phase::Ended) else {
            return;
        };
        let before = std::mem::replace(&mut coroutine.level, level);
        if before != level && coroutine.phase == Phase::Queued {
            self.queue[before as usize].retain(|other| *other != number);
            self.queue[level as usize].push_back(number);
        }
        if level < before {
            self.wake(number);
        }
    }

    fn run(&mut self, plan: &Plan) {
        plan.first.iter().for_each(|level| self.start(*level));
        while let Some(number) = self.queue.iter_mut().find_map(VecDeque::pop_front) {
            let turn = self.coroutines[number].turn;
            if self.coroutines[number].cancelled {
                self.coroutines[number].phase = Phase::Ended;
                continue;
            }
            self.coroutines[number].phase = Phase::Running;
            self.trace.push((number, turn));
            let (acts, end) = &plan.programs[number][turn];
            for act in acts {
                match *act {
                    Act::Wake(other) => self.wake(other),
                    Act::Rank(other, level) => self.rank(other, level),
                    Act::Spawn(level) => self.start(level),
                    Act::Abort(other) => {
                        if let Some(coroutine) = self.coroutines.get_mut(other) {
                            coroutine.cancelled = true;
                            self.wake(other);
                        }
                    }
                }
            }
            let coroutine = &mut self.coroutines[number];
            coroutine.turn = turn + 1;
            let again = coroutine.phase == Phase::Notified || matches!(end, End::Yield | End::Preempted);
            let queue = &mut self.queue[coroutine.level as usize];
            match (end, again) {
                (End::Finish, _) => coroutine.phase = Phase::Ended,
                (_, false) => coroutine.phase = Phase::Waiting,
                (End::Preempted, true) => {
                    coroutine.phase = Phase::Queued;
                    queue.push_front(number);
                }
                (_, true) => {
                    coroutine.phase = Phase::Queued;
                    queue.push_back(number);
                }
            }
        }
    }
}

/// A random program has the order of the model. The number is for messages.
pub fn keeps_the_exact_order(random: &mut Random, seed: u64) {
    let plan = Rc::new(plan(random));
    let mut model = Model { coroutines: Vec::new(), queue: vec![VecDeque::new(); LEVELS], trace: Vec::new() };
    model.run(&plan);
    assert_eq!(run_real(&plan), model.trace, "seed {seed}");
}

/// An executor that is dropped in the middle drops every coroutine.
pub fn drops_everything(random: &mut Random, seed: u64) {
    let alive = Rc::new(());
    let executor = LocalExecutor::new();
    for _ in 0..10 {
        let (token, turns) = (alive.clone(), random.below(5));
        let body = async move {
            let inner = token.clone();
            for turn in 0..turns {
                if turn == 2 {
                    let inner = inner.clone();
                    spawn_local(async move { drop(inner) }).detach();
                }
                yield_now().await;
            }
            std::future::pending::<()>().await;
        };
        executor.try_spawn(Builder::new().priority(random.below(64) as u8), body).unwrap().detach();
    }
    for _ in 0..random.below(30) {
        executor.run_one();
    }
    drop(executor);
    assert_eq!(Rc::strong_count(&alive), 1, "seed {seed}");
}

#[test]
fn one_core_keeps_the_exact_order() {
    super::seeds(3000, keeps_the_exact_order);
}

#[test]
fn an_executor_that_is_dropped_in_the_middle_drops_everything() {
    super::seeds(300, drops_everything);
}
