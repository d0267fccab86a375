//! A set of semaphores, semop(2).
//!
//! A row of operations happens as a whole or not at all. Those that cannot happen yet wait in the set, in order; after
//! each change the set goes through them and carries out what has become possible, on behalf of the waiters, so that no
//! later caller takes what they were woken for.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::fallible::{push_back_reserved, push_reserved, resize_reserved};
use crate::sysv_ipc::OutOfMemory;

/// The largest value of a semaphore, and the largest adjustment.
pub const VALUE_MAX: i32 = 32_767;

/// One operation of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The index of the semaphore; below the size of the set.
    pub number: usize,
    /// The number to add; 0 waits for the value 0.
    pub change: i16,
    /// Fail instead of waiting.
    pub no_wait: bool,
    /// Undone when the process ends.
    pub undo: bool,
}

/// Why a row of operations did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A value or an adjustment would leave its range.
    Range,
    /// It would have to wait, and does not want to.
    NoWait,
    /// It has to wait for the operation at this position.
    Blocked(usize),
}

/// A semaphore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Semaphore {
    /// Its value, 0 to [`VALUE_MAX`].
    pub value: i32,
    /// The process that changed it last.
    pub pid: i32,
}

/// The owner of the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actor {
    /// The process.
    pub pid: i32,
    /// The owner of the adjustments: processes can share them.
    pub undoes: u64,
}

struct Waiting<W> {
    ticket: u64,
    operations: Vec<Operation>,
    actor: Actor,
    /// The position of the operation that is waited for.
    blocked: usize,
    /// Its place among the others.
    rank: u8,
    token: W,
}

struct Undo {
    owner: u64,
    adjustments: Vec<i16>,
}

/// A set of semaphores and its waiters.
pub struct Set<W> {
    values: Vec<Semaphore>,
    undos: Vec<Undo>,
    waiting: VecDeque<Waiting<W>>,
    next_ticket: u64,
}

impl<W> Set<W> {
    /// `count` semaphores with the value 0.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(count: usize) -> Result<Self, OutOfMemory> {
        let mut values = Vec::new();
        values.try_reserve_exact(count).map_err(|_| OutOfMemory)?;
        resize_reserved(&mut values, count, Semaphore::default());
        Ok(Self { values, undos: Vec::new(), waiting: VecDeque::new(), next_ticket: 0 })
    }

    /// The semaphores.
    #[must_use]
    pub fn values(&self) -> &[Semaphore] {
        &self.values
    }

    /// How many rows wait at semaphore `number` for the value 0, or for a larger value.
    #[must_use]
    pub fn waiting_at(&self, number: usize, for_zero: bool) -> usize {
        let waits = |waiting: &&Waiting<W>| {
            let blocked = waiting.operations.get(waiting.blocked);
            blocked.is_some_and(|operation| operation.number == number && (operation.change == 0) == for_zero)
        };
        self.waiting.iter().filter(waits).count()
    }

    /// Makes sure that there is room for the adjustments of a row, before it is tried.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn reserve_undo(&mut self, owner: u64) -> Result<(), OutOfMemory> {
        if self.undos.iter().any(|undo| undo.owner == owner) {
            return Ok(());
        }
        let mut adjustments = Vec::new();
        adjustments.try_reserve_exact(self.values.len()).map_err(|_| OutOfMemory)?;
        resize_reserved(&mut adjustments, self.values.len(), 0);
        self.undos.try_reserve(1).map_err(|_| OutOfMemory)?;
        push_reserved(&mut self.undos, Undo { owner, adjustments });
        Ok(())
    }

    /// Carries a row out if it can happen now. Afterwards [`Self::update`] lets others continue.
    ///
    /// # Errors
    /// [`Refusal`]; nothing has changed then.
    pub fn attempt(&mut self, operations: &[Operation], actor: Actor) -> Result<(), Refusal> {
        let undo = self.undos.iter_mut().find(|undo| undo.owner == actor.undoes);
        let mut adjustments = undo.map(|undo| undo.adjustments.as_mut_slice());
        for (index, operation) in operations.iter().enumerate() {
            if let Err(refusal) = step(&mut self.values, adjustments.as_deref_mut(), operation, index) {
                for done in operations[..index].iter().rev() {
                    take_back(&mut self.values, adjustments.as_deref_mut(), done);
                }
                return Err(refusal);
            }
        }
        for operation in operations {
            self.values[operation.number].pid = actor.pid;
        }
        Ok(())
    }

    /// Lets a row wait that was refused as [`Refusal::Blocked`]. The ticket withdraws it. Of two that can proceed the
    /// one of the smaller rank goes first, among equals the one that came first.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn wait(
        &mut self,
        operations: Vec<Operation>,
        actor: Actor,
        (blocked, rank): (usize, u8),
        token: W,
    ) -> Result<u64, OutOfMemory> {
        self.waiting.try_reserve(1).map_err(|_| OutOfMemory)?;
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        push_back_reserved(&mut self.waiting, Waiting { ticket, operations, actor, blocked, rank, token });
        let mut index = self.waiting.len() - 1;
        while index > 0 && self.waiting[index - 1].rank > rank {
            self.waiting.swap(index - 1, index);
            index -= 1;
        }
        Ok(ticket)
    }

    /// Takes a waiting row back. `None` if it has been carried out or refused meanwhile.
    pub fn withdraw(&mut self, ticket: u64) -> Option<W> {
        let index = self.waiting.iter().position(|waiting| waiting.ticket == ticket)?;
        Some(self.waiting.remove(index)?.token)
    }

    /// Goes through the waiting rows after a change, until none can proceed. `finished` is called for each that did, or
    /// that is refused for good.
    pub fn update(&mut self, mut finished: impl FnMut(W, Result<(), Refusal>)) {
        let mut index = 0;
        while index < self.waiting.len() {
            let Waiting { operations, actor, .. } = &mut self.waiting[index];
            let (operations, actor) = (core::mem::take(operations), *actor);
            match self.attempt(&operations, actor) {
                Err(Refusal::Blocked(blocked)) => {
                    let waiting = &mut self.waiting[index];
                    waiting.operations = operations;
                    waiting.blocked = blocked;
                    index += 1;
                }
                result => {
                    let Some(waiting) = self.waiting.remove(index) else { return };
                    finished(waiting.token, result);
                    // A change may let earlier ones proceed; without one the order decides.
                    if result.is_ok() && operations.iter().any(|operation| operation.change != 0) {
                        index = 0;
                    }
                }
            }
        }
    }

    /// Sets a value, and forgets all adjustments of it.
    pub fn set(&mut self, number: usize, value: i32, pid: i32) {
        self.values[number] = Semaphore { value, pid };
        for undo in &mut self.undos {
            undo.adjustments[number] = 0;
        }
    }

    /// A process has ended: its operations are undone as far as the values allow.
    pub fn leave(&mut self, owner: u64, pid: i32) {
        let Some(index) = self.undos.iter().position(|undo| undo.owner == owner) else { return };
        let undo = self.undos.swap_remove(index);
        for (semaphore, &adjustment) in self.values.iter_mut().zip(&undo.adjustments) {
            if adjustment != 0 {
                let value = (semaphore.value + i32::from(adjustment)).clamp(0, VALUE_MAX);
                *semaphore = Semaphore { value, pid };
            }
        }
    }

    /// Removes the set: returns all waiters.
    pub fn dissolve(&mut self) -> impl Iterator<Item = W> + use<W> {
        self.undos = Vec::new();
        core::mem::take(&mut self.waiting).into_iter().map(|waiting| waiting.token)
    }
}

fn step(
    values: &mut [Semaphore],
    adjustments: Option<&mut [i16]>,
    operation: &Operation,
    index: usize,
) -> Result<(), Refusal> {
    let value = &mut values[operation.number].value;
    let change = i32::from(operation.change);
    let result = *value + change;
    if result < 0 || change == 0 && *value != 0 {
        return Err(if operation.no_wait { Refusal::NoWait } else { Refusal::Blocked(index) });
    }
    if result > VALUE_MAX {
        return Err(Refusal::Range);
    }
    if operation.undo
        && let Some(adjustments) = adjustments
    {
        let adjustment = i32::from(adjustments[operation.number]) - change;
        if !(-VALUE_MAX - 1..=VALUE_MAX).contains(&adjustment) {
            return Err(Refusal::Range);
        }
        adjustments[operation.number] = adjustment as i16;
    }
    *value = result;
    Ok(())
}

fn take_back(values: &mut [Semaphore], adjustments: Option<&mut [i16]>, operation: &Operation) {
    values[operation.number].value -= i32::from(operation.change);
    if operation.undo
        && let Some(adjustments) = adjustments
    {
        // It was in range before.
        adjustments[operation.number] = adjustments[operation.number].wrapping_add(operation.change);
    }
}

#[cfg(test)]
mod tests {
    use super::{Actor, Operation, Refusal, Set, VALUE_MAX};
    use std::vec;
    use std::vec::Vec;

    const ME: Actor = Actor { pid: 5, undoes: 1 };

    fn op(number: usize, change: i16) -> Operation {
        Operation { number, change, no_wait: false, undo: false }
    }

    fn values(set: &Set<u8>) -> Vec<i32> {
        set.values().iter().map(|semaphore| semaphore.value).collect()
    }

    fn finished(set: &mut Set<u8>) -> Vec<(u8, Result<(), Refusal>)> {
        let mut all = Vec::new();
        set.update(|token, result| all.push((token, result)));
        all
    }

    #[test]
    fn a_row_happens_as_a_whole() {
        let mut set: Set<u8> = Set::new(2).unwrap();
        set.attempt(&[op(0, 2), op(1, 1), op(0, -1)], ME).unwrap();
        assert_eq!(values(&set), [1, 1]);
        assert_eq!(set.attempt(&[op(0, -1), op(1, -2)], ME), Err(Refusal::Blocked(1)));
        assert_eq!(set.attempt(&[op(0, 0), op(1, 1)], ME), Err(Refusal::Blocked(0)));
        let impatient = Operation { no_wait: true, ..op(1, -2) };
        assert_eq!(set.attempt(&[op(0, 5), impatient], ME), Err(Refusal::NoWait));
        assert_eq!(set.attempt(&[op(1, 1), op(0, VALUE_MAX as i16)], ME), Err(Refusal::Range));
        assert_eq!(values(&set), [1, 1]);
        assert_eq!(set.values()[0].pid, 5);
    }

    #[test]
    fn the_most_urgent_waiter_goes_first() {
        let mut set = Set::new(1).unwrap();
        for (token, rank) in [(b'a', 120), (b'b', 89), (b'c', 69), (b'd', 120), (b'e', 69)] {
            set.wait(vec![op(0, -1)], ME, (0, rank), token).unwrap();
        }
        set.set(0, 5, 1);
        let order: Vec<u8> = finished(&mut set).iter().map(|(token, _)| *token).collect();
        assert_eq!(order, *b"cebad");
    }

    #[test]
    fn waiters_continue_in_order() {
        let mut set: Set<u8> = Set::new(1).unwrap();
        let wait = |set: &mut Set<u8>, change, token| {
            assert_eq!(set.attempt(&[op(0, change)], ME), Err(Refusal::Blocked(0)));
            set.wait(vec![op(0, change)], ME, (0, 120), token).unwrap()
        };
        wait(&mut set, -2, b'a');
        let second = wait(&mut set, -1, b'b');
        wait(&mut set, -1, b'c');
        assert_eq!((set.waiting_at(0, false), set.waiting_at(0, true)), (3, 0));
        set.attempt(&[op(0, 1)], ME).unwrap();
        assert_eq!(finished(&mut set), [(b'b', Ok(()))]);
        assert_eq!(set.withdraw(second), None);
        set.attempt(&[op(0, 3)], ME).unwrap();
        assert_eq!(set.attempt(&[op(0, 0)], ME), Err(Refusal::Blocked(0)));
        set.wait(vec![op(0, 0)], ME, (0, 120), b'z').unwrap();
        assert_eq!(finished(&mut set), [(b'a', Ok(())), (b'c', Ok(())), (b'z', Ok(()))]);
    }

    #[test]
    fn ends_are_undone_within_the_range() {
        let mut set: Set<u8> = Set::new(2).unwrap();
        set.reserve_undo(1).unwrap();
        let undo = |number, change| Operation { undo: true, ..op(number, change) };
        set.attempt(&[undo(0, 3), undo(1, 2)], ME).unwrap();
        set.attempt(&[op(0, -2)], ME).unwrap();
        set.leave(1, 9);
        assert_eq!(values(&set), [0, 0]);
        assert_eq!(set.values()[1].pid, 9);
        set.reserve_undo(1).unwrap();
        set.attempt(&[undo(0, 3)], ME).unwrap();
        set.set(0, 4, 1);
        set.leave(1, 9);
        assert_eq!(values(&set), [4, 0]);
        // A refused row leaves no adjustment behind.
        set.reserve_undo(1).unwrap();
        assert_eq!(set.attempt(&[undo(0, 1), op(1, -1)], ME), Err(Refusal::Blocked(1)));
        set.leave(1, 9);
        assert_eq!(values(&set), [4, 0]);
    }

    #[test]
    fn the_end_of_a_set_gives_back_who_waits() {
        let mut set: Set<u8> = Set::new(1).unwrap();
        set.wait(vec![op(0, -1)], ME, (0, 120), b'a').unwrap();
        assert_eq!(set.dissolve().collect::<Vec<_>>(), [b'a']);
    }
}
