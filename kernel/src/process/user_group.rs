//! The executor threads of one user: a group with an exact order and one part in the processors
//! (`heddle_kernel_core::group`).
//!
//! A thread joins when it registers as an executor, by the real user id that it has then. Whether it takes part is
//! decided at the start of each turn: a realtime thread does not, nor do those of `SCHED_BATCH` and `SCHED_IDLE`, nor
//! one with a nice value, because an urgent level would else be a way out of that.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use heddle_abi::user_sched::{GROUPS_MAX, levels};
use heddle_kernel_core::fairness::Account;
use heddle_kernel_core::group::{
    APART, BEHIND, Circumstances, End, Group, MEMBERS_MAX, ORDERED, Payer, Place, Ruling, Start,
    URGENT_FIRST, URGENT_LEVELS,
};

use crate::arch;
use crate::arch::time::now_ns;
use crate::error::Errno;
use crate::memory::fallible;
use crate::process::Thread;
use crate::sched;
use crate::sched::{Fetched, Priority, TaskRef};
use crate::sync::SpinLock;
use crate::time::system_page::PAGE;

const _: () = {
    assert!(ORDERED as u32 == levels::ORDERED && URGENT_FIRST as u32 == levels::URGENT_FIRST);
    assert!((URGENT_FIRST + URGENT_LEVELS) as u32 == *levels::ORDINARY.start());
};

/// A user's executors.
pub(super) struct UserGroup {
    uid: u32,
    /// The element of the system page that tells programs which levels of the group wait.
    number: u32,
    order: SpinLock<Group<Weak<Thread>>>,
}

/// All groups that have members, at most one less than [`GROUPS_MAX`].
static GROUPS: SpinLock<Vec<Weak<UserGroup>>> = SpinLock::new(Vec::new());

impl UserGroup {
    /// The group of a user; `None`: too many users have one, and this one's executors have no order.
    fn of(uid: u32) -> Result<Option<Arc<Self>>, Errno> {
        let new = fallible::try_arc(Self {
            uid,
            number: 0,
            order: SpinLock::new(Group::new(arch::cpu::count()).map_err(|_| Errno::ENOMEM)?),
        })?;
        let mut groups = GROUPS.lock();
        if groups.is_empty() {
            groups.try_reserve_exact(GROUPS_MAX).map_err(|_| Errno::ENOMEM)?;
            heddle_kernel_core::fallible::push_reserved(&mut groups, Weak::new());
        }
        let living = groups.iter().filter_map(Weak::upgrade);
        for group in living {
            if group.uid == uid {
                return Ok(Some(group));
            }
        }
        let free = groups.iter().skip(1).position(|group| group.strong_count() == 0).map(|index| index + 1);
        let index = free.unwrap_or(groups.len());
        if index >= GROUPS_MAX {
            return Ok(None);
        }
        let mut new = new;
        if let Some(group) = Arc::get_mut(&mut new) {
            group.number = index as u32;
        }
        if index == groups.len() {
            heddle_kernel_core::fallible::push_reserved(&mut groups, Weak::new());
        }
        groups[index] = Arc::downgrade(&new);
        Ok(Some(new))
    }

    /// The word that says which levels wait.
    fn word(&self) -> &'static AtomicU64 {
        &PAGE.groups[self.number as usize % GROUPS_MAX]
    }

    /// Changes the order, tells programs, and has a CPU look that the change names.
    fn change<R>(&self, change: impl FnOnce(&mut Group<Weak<Thread>>) -> (R, Option<usize>)) -> R {
        let (result, cpu) = {
            let mut order = self.order.lock();
            let (result, cpu) = change(&mut order);
            let ready = order.ready();
            if self.word().load(Ordering::Relaxed) != ready {
                self.word().store(ready, Ordering::Relaxed);
            }
            (result, cpu)
        };
        disturb(cpu);
        result
    }

    /// Other CPUs may run something less urgent by now than what the group knows of them. Has one look that does, at
    /// the cost of something that waits.
    #[cold]
    fn look_around(&self) {
        for cpu in (0..arch::cpu::count()).filter(|&cpu| cpu != arch::cpu::id()) {
            let running = self.order.lock().running(cpu);
            if let Some(thread) = running.and_then(|running| running.upgrade()) {
                thread.with_entity(|_| {});
            }
        }
        let cpu = self.order.lock().passed(now_ns());
        disturb(cpu);
    }
}

/// Has a CPU look whose turn it is, if it is another one and in a program.
fn disturb(cpu: Option<usize>) {
    if let Some(cpu) = cpu.filter(|&cpu| cpu != arch::cpu::id()) {
        // Either that CPU, once it can be interrupted, sees the word that says which levels wait, or it is seen here
        // that it can be.
        fence(Ordering::SeqCst);
        sched::disturb(cpu);
    }
}

/// A thread's membership.
pub(super) struct GroupMembership {
    group: Arc<UserGroup>,
    place: Place,
    level: AtomicU8,
}

impl GroupMembership {
    /// The calling thread joins the group of its user. `None`: that has no group, or no place in it, so the thread has
    /// no order.
    pub(super) fn join(thread: &Arc<Thread>) -> Result<Option<Self>, Errno> {
        let Some(group) = UserGroup::of(thread.credentials().uid)? else { return Ok(None) };
        let now_ns = now_ns();
        let joined = thread.look_at_entity(|entity| {
            let mut order = group.order.lock();
            if order.count() == 0 {
                order.start_with(entity.join(now_ns), now_ns);
            }
            if order.count() >= MEMBERS_MAX {
                return None;
            }
            let first = order.only();
            Some((order.join(Arc::downgrade(thread), arch::cpu::id(), entity.parameters().affinity), first))
        });
        let Some((place, first)) = joined else { return Ok(None) };
        let place = place.map_err(|_| Errno::ENOMEM)?;
        // Until now it was woken as one that has no order to keep.
        if let Some(first) = first.and_then(|first| first.upgrade()) {
            first.with_entity(|_| {});
        }
        Ok(Some(Self { group, place, level: AtomicU8::new(APART) }))
    }

    /// The user whose group it is.
    pub(super) fn uid(&self) -> u32 {
        self.group.uid
    }

    /// The member is about to leave in the midst of a turn, which the group pays for; returns its part of what is left.
    pub(super) fn split(&self, ran_ns: u64) -> Account {
        self.group.order.lock().split(arch::cpu::id(), ran_ns)
    }

    /// The number of the group, for programs.
    pub(super) fn number(&self) -> u32 {
        self.group.number
    }

    /// Whether there are other members.
    pub(super) fn has_others(&self) -> bool {
        self.group.order.lock().count() > 1
    }

    /// The level that it has in the group.
    pub(super) fn level(&self) -> u8 {
        self.level.load(Ordering::Relaxed)
    }

    /// The best that the member can run has that level. Whether it had another.
    pub(super) fn set_level(&self, level: u8) -> bool {
        let has_changed = self.level.load(Ordering::Relaxed) != level;
        if has_changed {
            self.level.store(level, Ordering::Relaxed);
            self.group.change(|order| ((), order.set_level(self.place, level, now_ns())));
        }
        has_changed
    }

    /// The member may run on these CPUs.
    pub(super) fn set_cores(&self, cores: u64) {
        self.group.change(|order| ((), order.set_cores(self.place, cores, now_ns())));
    }

    /// A turn starts. Returns whose time it uses.
    pub(super) fn starts(&self, cores: u64, start: Start) -> Payer {
        self.group.change(|order| (order.starts(self.place, arch::cpu::id(), cores, start), None))
    }

    /// The group's account on this CPU.
    pub(super) fn account(&self) -> Account {
        self.group.order.lock().account(arch::cpu::id())
    }

    /// A turn has used so much time.
    pub(super) fn charge(&self, ran_ns: u64) -> Account {
        self.group.order.lock().charge(arch::cpu::id(), ran_ns)
    }

    /// A turn ends.
    pub(super) fn ends(&self, end: End) {
        let is_told = self.group.change(|order| {
            let cpu = order.ends(self.place, end, now_ns());
            (cpu.is_some(), cpu)
        });
        if !is_told && arch::cpu::count() > 1 && self.group.word().load(Ordering::Relaxed) != 0 {
            self.group.look_around();
        }
    }

    /// Whether the member, whose turn goes on, may enter its program; if not, whoever is to have the turn comes.
    /// `is_in`: it was there before, in this turn.
    pub(super) fn may_enter(&self, is_in: bool, priority: Priority) -> bool {
        let level = self.level.load(Ordering::Relaxed);
        if level == APART {
            return true;
        }
        let contender = if level == BEHIND { Priority::SPENT } else { priority };
        let circumstances = Circumstances {
            now_ns: now_ns(),
            is_spent: priority == Priority::SPENT,
            is_contended: sched::is_contended(contender),
            is_alone: sched::is_alone(),
        };
        let cpu = arch::cpu::id();
        let entry = self.group.change(|order| {
            let ruling = order.decide(self.place, cpu, is_in, circumstances);
            (ruling, order.gives_back(cpu, circumstances.now_ns))
        });
        match entry {
            Ruling::Enters => true,
            Ruling::Waits => false,
            Ruling::Calls(other, place) => {
                if let Some(other) = other.upgrade() {
                    self.bring(&other, place, cpu);
                }
                false
            }
        }
    }

    /// Brings the member that was called to this CPU, before everybody's here. It gets its level only when it is here:
    /// another CPU that saw that would run it.
    fn bring(&self, other: &Thread, place: Place, cpu: usize) {
        let found = other.task().map_or(Fetched::Elsewhere, TaskRef::fetch);
        // In motion, it is in a queue by the time that the caller, whose turn ends, comes to its next, or soon after.
        if found != Fetched::Moving {
            self.group.order.lock().called(place, cpu, found == Fetched::Here, now_ns());
            other.call_to_turn();
        }
    }
}

/// It leaves the group.
impl Drop for GroupMembership {
    fn drop(&mut self) {
        drop(self.group.change(|order| (order.leave(self.place, now_ns()), None)));
    }
}

/// The levels of a group that wait for a processor.
#[inline]
pub(super) fn waiting(number: u8) -> u64 {
    PAGE.groups[usize::from(number) % GROUPS_MAX].load(Ordering::Relaxed)
}
