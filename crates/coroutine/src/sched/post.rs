//! Requests from anywhere: wake, cancel, set a level.
//!
//! Each has two ways. On the owning core, with its gate open, the change is made at once by plain stores. Anywhere
//! else, and in a handler that interrupted the owner inside its gate, the request is written into the slot's
//! `remote` word, and the slot is linked into the owner's inbox unless it already is.

use super::core_state::LEVEL_NONE;
use super::slot::{asked_rank, remote};
use super::{CoreState, Id, Phase, Rank, Slot, Table};
use crate::sync::Ordering;

/// The result of handing in a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Woken {
    /// The coroutine has ended: nothing was done.
    Stale,
    /// The coroutine is ready already, or will be queued when its turn ends.
    Already,
    /// It was put into the calling core's queue.
    Queued,
    /// It is left in another core's inbox.
    Posted,
}

/// A request to the owner, in both encodings.
#[derive(Clone, Copy)]
enum Request {
    Wake,
    Cancel,
    /// A rank, and whether a queued coroutine goes before the others of it.
    Base(Rank, bool),
    Lent(u8),
}

impl Request {
    #[inline(always)]
    fn is_overtaken_by(self, pending: u64) -> bool {
        match self {
            Request::Wake | Request::Cancel => false,
            Request::Base(..) => pending & remote::BASE != 0,
            Request::Lent(_) => pending & remote::LENT != 0,
        }
    }
}

/// Makes the coroutine `id` ready if it waits; if it is being polled, it is queued again afterwards. `here` is the
/// core on which the caller runs. Lock-free from any context.
#[inline(always)]
pub fn wake<T: Table>(table: &T, here: Option<&CoreState>, id: Id) -> Woken {
    request(table, here, id, Request::Wake)
}

/// Asks the owner of `id` to drop the coroutine's future at its next turn.
pub fn cancel<T: Table>(table: &T, here: Option<&CoreState>, id: Id) -> Woken {
    request(table, here, id, Request::Cancel)
}

/// Gives the coroutine `id` the level `level`, whether it is queued, runs or waits; takes effect at its owner's next
/// pick at the latest. A queued one goes to the tail of its new level.
pub fn set_priority<T: Table>(table: &T, here: Option<&CoreState>, id: Id, level: u8) -> Woken {
    set_rank(table, here, id, level.into(), false)
}

/// [`set_priority`] with an order within the level. A queued one whose rank changes goes behind the others of its new
/// rank, with `front` before them.
pub fn set_rank<T: Table>(table: &T, here: Option<&CoreState>, id: Id, rank: Rank, front: bool) -> Woken {
    request(table, here, id, Request::Base(rank, front))
}

/// Runs the coroutine `id` at `level` as long as its own level is less urgent; `None` takes the loan back.
pub fn lend<T: Table>(table: &T, here: Option<&CoreState>, id: Id, level: Option<u8>) -> Woken {
    request(table, here, id, Request::Lent(level.map_or(LEVEL_NONE, |level| level.min(63))))
}

/// Starts a coroutine in the free slot `index`, which nobody else knows of, on the core of index `owner`.
pub fn post_new<T: Table>(
    table: &T,
    index: u32,
    task: *mut (),
    rank: impl Into<Rank>,
    owner: u16,
) -> Option<Id> {
    let rank = rank.into();
    let (slot, core) = (table.slot(index)?, table.core(owner as u32)?);
    let requests = remote::WAKE | remote::LINKED;
    let generation = slot.begin(task, rank, owner, Phase::Waiting, requests);
    if leave(table, core, index, slot, rank.level()) {
        table.kick(owner as u32);
    }
    Id::new(index, generation)
}

#[inline(always)]
fn request<T: Table>(table: &T, here: Option<&CoreState>, id: Id, request: Request) -> Woken {
    let index = id.index();
    let Some(slot) = table.slot(index) else { return Woken::Stale };
    if let Some(core) = here.filter(|core| slot.owner() as u32 == core.index() && core.gate.try_enter()) {
        // The owner changes only under its gate, so now it is known, and with it that the generation is current.
        if slot.owner() as u32 == core.index() {
            let pending = slot.remote.load(Ordering::Relaxed);
            if request.is_overtaken_by(pending) {
                // An older request of the kind waits in the inbox, and would undo this one when it is applied.
                core.gate.leave();
                return post(table, id, slot, request);
            }
            let woken = if (pending >> 32) as u32 == id.generation() {
                at_home(table, core, index, slot, request)
            } else {
                Woken::Stale
            };
            core.gate.leave();
            // Only a handler finds its own core so: it interrupted the core on its way to park.
            if core.inbox.is_away() && woken == Woken::Queued && core.inbox.prod(slot.level()) {
                table.kick(core.index());
            }
            return woken;
        }
        core.gate.leave();
    }
    post(table, id, slot, request)
}

/// Applies a request by plain stores. Gate of `core` held, `slot` owned by it.
#[inline(always)]
fn at_home<T: Table>(table: &T, core: &CoreState, index: u32, slot: &Slot, request: Request) -> Woken {
    match request {
        Request::Wake => match core.wake_in_gate(table, index, slot) {
            true => return Woken::Queued,
            false => return Woken::Already,
        },
        Request::Cancel => core.cancel_in_gate(table, index, slot),
        Request::Base(rank, front) => core.relevel(table, index, slot, Some(rank), None, front),
        Request::Lent(level) => core.relevel(table, index, slot, None, Some(level), false),
    }
    Woken::Queued
}

/// Leaves a request with the owner.
#[inline(never)]
fn post<T: Table>(table: &T, id: Id, slot: &Slot, request: Request) -> Woken {
    let (set, clear) = match request {
        Request::Wake => (remote::WAKE, 0),
        Request::Cancel => (remote::CANCEL, 0),
        Request::Base(rank, front) => (
            remote::BASE
                | (rank.to_bits() as u64) << remote::BASE_SHIFT
                | if front { remote::FRONT } else { 0 },
            remote::BASE_MASK | remote::FRONT,
        ),
        Request::Lent(level) => (remote::LENT | ((level as u64) << remote::LENT_SHIFT), remote::LENT_MASK),
    };
    let mut word = slot.remote.load(Ordering::Relaxed);
    let before = loop {
        if (word >> 32) as u32 != id.generation() {
            return Woken::Stale;
        }
        let asked = (word & !clear) | set | remote::LINKED;
        // Release, even where nothing changes: the coroutine's next turn sees what the requester did before.
        match slot.remote.compare_exchange_weak(word, asked, Ordering::Release, Ordering::Relaxed) {
            Ok(before) => break before,
            Err(now) => word = now,
        }
    };
    let level = match request {
        Request::Base(rank, _) => rank.level().min(slot.level()),
        Request::Lent(level) => level.min(slot.level()),
        Request::Wake | Request::Cancel => slot.level(),
    };
    // The owner may change once the slot is linked; the stale one forwards it.
    let owner = slot.owner() as u32;
    let Some(core) = table.core(owner) else { return Woken::Stale };
    if matches!(request, Request::Wake) && before & remote::WAKE == 0 {
        table.posted(id);
    }
    let kick = if before & remote::LINKED == 0 {
        // Another may have asked for a more urgent level since, and found the core not exposed yet: either its prod
        // came after this push, and saw the watch, or this look sees its request.
        leave(table, core, id.index(), slot, level) || {
            let now = slot.remote.load(Ordering::Relaxed);
            let asked = asked_level(now);
            (now >> 32) as u32 == id.generation() && asked < level && core.inbox.prod(asked)
        }
    } else {
        // Already on its way, perhaps at a less urgent level than it is to have now.
        let is_level = matches!(request, Request::Base(..) | Request::Lent(_));
        let kick = is_level && core.inbox.prod(level);
        if is_level && !kick && core.inbox.watch() != 0 {
            table.left(owner, level);
        }
        kick
    };
    if kick {
        table.kick(owner);
    }
    Woken::Posted
}

/// Links `slot` into the inbox of `core`; returns whether the caller must kick it.
#[inline]
fn leave<T: Table>(table: &T, core: &CoreState, index: u32, slot: &Slot, level: u8) -> bool {
    let kick = core.inbox.push(index, slot, level);
    if !kick && core.inbox.watch() != 0 {
        table.left(core.index(), level);
    }
    kick
}

/// The most urgent level that the pending requests of `word` ask for; 64 if they ask for none.
fn asked_level(word: u64) -> u8 {
    let base = if word & remote::BASE != 0 { asked_rank(word).level() } else { LEVEL_NONE };
    let lent = ((word & remote::LENT_MASK) >> remote::LENT_SHIFT) as u8;
    if word & remote::LENT != 0 { base.min(lent) } else { base }
}
