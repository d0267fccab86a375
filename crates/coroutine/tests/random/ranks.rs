//! Orders within a level, against a list that is kept sorted.

use super::Random;
use heddle_coroutine::sched::{
    CoreState, Flat, Id, Outcome, Rank, Slot, Stealing, Table, set_rank, steal_before, wake,
};
use std::cell::Cell;
use std::ptr::null_mut;

const COROUTINES: usize = 12;

#[test]
fn orders_within_a_level_are_kept() {
    super::seeds(3000, play);
}

/// A rank of few levels, which many share, and any order.
fn rank(random: &mut Random) -> Rank {
    Rank::new(5 + random.below(2) as u8, random.below(8) as u8)
}

/// Puts `id` where it belongs among those that are queued.
fn insert(queue: &mut Vec<(Rank, Id)>, rank: Rank, id: Id, front: bool) {
    let before = |other: &(Rank, Id)| if front { other.0 < rank } else { other.0 <= rank };
    queue.insert(queue.partition_point(before), (rank, id));
}

/// Plays a random game. The number is for messages.
pub fn play(random: &mut Random, seed: u64) {
    let slots: Vec<_> = (0..=COROUTINES).map(|_| Slot::new()).collect();
    let cores = [CoreState::new(), CoreState::new()];
    let table = Flat { slots: &slots, cores: &cores, kick: |_| {} };
    for (index, core) in cores.iter().enumerate() {
        core.set_index(index as u16, index as u32);
        core.gate().set_stealing(Stealing::Fenced);
    }
    let core = &cores[0];
    (1..=COROUTINES).for_each(|index| core.give_slot(&table, index as u32));
    let (mut queue, mut waiting) = (Vec::new(), Vec::new());
    for _ in 0..COROUTINES {
        let rank = rank(random);
        let id = core.spawn(&table, null_mut(), rank).unwrap();
        insert(&mut queue, rank, id, false);
    }
    for _ in 0..60 {
        // Half of what is asked is left in the inbox, which the next pick empties.
        let here = (random.below(2) == 0).then_some(core);
        match random.below(5) {
            0 | 1 if !waiting.is_empty() => {
                let (rank, id) = waiting.swap_remove(random.below(waiting.len()));
                wake(&table, here, id);
                core.drain(&table);
                insert(&mut queue, rank, id, false);
            }
            2 if !queue.is_empty() => {
                let at = random.below(queue.len());
                let (old, id) = queue[at];
                let (new, front) = (rank(random), random.below(2) == 0);
                set_rank(&table, here, id, new, front);
                core.drain(&table);
                // A change to the same value leaves it where it is.
                if new != old {
                    queue.remove(at);
                    insert(&mut queue, new, id, front);
                }
            }
            3 if !queue.is_empty() => {
                let limit = rank(random);
                assert_eq!(core.ready().is_before(limit), queue[0].0 < limit, "seed {seed}");
                if steal_before(&table, &cores[1], core, limit, || {}) {
                    let stolen = cores[1].pick(&table).unwrap();
                    assert_eq!((stolen.id, queue[0].0 < limit), (queue[0].1, true), "seed {seed}");
                    // It goes back, as what is preempted does: before its equals.
                    cores[1].requeue_at_head(stolen.slot);
                    cores[1].hand_over(&table, stolen.id, stolen.slot, core);
                    core.drain(&table);
                } else {
                    assert!(queue[0].0 >= limit, "seed {seed}");
                }
            }
            _ => {
                let Some(picked) = core.pick(&table) else { continue };
                assert_eq!(picked.id, queue[0].1, "seed {seed}");
                let (rank, id) = queue.remove(0);
                let ends = random.below(3);
                if ends == 0 {
                    core.requeue_at_head(picked.slot);
                }
                if ends == 2 {
                    waiting.push((rank, id));
                } else {
                    insert(&mut queue, rank, id, ends == 0);
                }
                let outcome = if ends == 2 { Outcome::Pending } else { Outcome::Yielded };
                core.finish(&table, picked.id, picked.slot, outcome);
            }
        }
    }
}

/// A table that notes what was left with a core that is not disturbed.
struct Noting<'a> {
    slots: &'a [Slot],
    core: &'a CoreState,
    left: Cell<Option<u8>>,
}

impl Table for Noting<'_> {
    fn slot(&self, index: u32) -> Option<&Slot> {
        self.slots.get(index as usize)
    }

    fn core(&self, index: u32) -> Option<&CoreState> {
        (index == 0).then_some(self.core)
    }

    fn left(&self, _: u32, level: u8) {
        self.left.set(Some(level));
    }

    fn kick(&self, _: u32) {
        panic!("it runs nothing less urgent");
    }
}

/// A request that makes something in the inbox more urgent is told of, though the core is not disturbed for it.
#[test]
fn a_later_urgency_is_told_of() {
    let (slots, core) = ([Slot::new(), Slot::new()], CoreState::new());
    core.set_index(0, 0);
    let table = Noting { slots: &slots, core: &core, left: Cell::new(None) };
    core.give_slot(&table, 1);
    let id = core.spawn(&table, null_mut(), Rank::new(30, 0)).unwrap();
    let picked = core.pick(&table).unwrap();
    core.finish(&table, id, picked.slot, Outcome::Pending);
    assert!(core.expose_program(Rank::new(5, 0)));
    wake(&table, None, id);
    assert_eq!(table.left.get(), Some(30));
    set_rank(&table, None, id, Rank::new(5, 0), false);
    assert_eq!(table.left.get(), Some(5));
}
