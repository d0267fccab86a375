//! PID namespaces, pid_namespaces(7): numbers of processes and threads as those inside see them.
//!
//! The kernel keeps the numbers of the first namespace everywhere; calls translate at their edge, by
//! [`Process::named`] what a program passes, and by [`Process::shown`] what it gets. The first namespace is `None` in
//! [`Pids`], so that its programs translate nothing. The table of numbers knows for each number those of the deeper
//! namespaces ([`PidNames`]), as long as a process, a thread, a group or a session has it.

use alloc::sync::Arc;
use alloc::vec::Vec;

use heddle_kernel_core::fallible::{insert_reserved, push_reserved};
use heddle_kernel_core::signal::{Information, Signal};

use crate::error::Errno;
use crate::fs::mount::next_namespace_number;
use crate::memory::fallible;
use crate::process::namespace_counts::{CountedNamespace, NamespaceKind};
use crate::process::table::{PidTable, pid_max};
use crate::process::user_namespace::{Users, is_within};
use crate::process::{Credentials, Process, exit, table};
use crate::signal;
use crate::sync::SpinLock;
use crate::wait::queue::{Events, WaitQueue};

/// A PID namespace; `None` is the first.
pub type Pids = Option<Arc<PidNamespace>>;

/// The number of the first one, which is the same on every Linux.
pub const FIRST_NUMBER: u64 = 0xefff_fffc;
/// A number that nothing has, in the place of one that a namespace does not know.
pub const NOBODY: i32 = i32::MAX;
/// A namespace of this level has no children.
const LEVEL_MAX: u32 = 32;
/// Numbers below this one are given out once, as long as they are the next.
const RESERVED: i32 = 300;

/// A namespace other than the first.
pub struct PidNamespace {
    /// Its number, as `/proc/PID/ns/pid` shows it.
    pub number: u64,
    /// The one in which it was made.
    pub parent: Pids,
    /// 1 for a child of the first.
    level: u32,
    numbers: Arc<PidNumbers>,
    counted: CountedNamespace,
}

/// The numbers that a namespace has given out. Changed with the table of numbers locked.
pub struct PidNumbers {
    state: SpinLock<NumbersInUse>,
    /// Notified when a number has become free while the namespace ends.
    freed: WaitQueue,
}

struct NumbersInUse {
    /// Numbers with those of the first namespace, in order.
    used: Vec<(i32, i32)>,
    /// The one given out last.
    last: i32,
    /// The first process, by its number in the first namespace; 0 before there was one.
    init: i32,
    /// The first process is ending or has ended: no other starts any more.
    is_closed: bool,
}

/// The numbers of one thread in the namespaces below the first, from the outermost to its own.
#[derive(Default)]
pub struct PidNames(Vec<(Arc<PidNumbers>, i32)>);

impl PidNames {
    /// Whether there are none: the thread is in the first namespace.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number in the thread's own namespace, which is `first` for one in the first.
    pub fn own(&self, first: i32) -> i32 {
        self.0.last().map_or(first, |&(_, number)| number)
    }

    /// The number in a namespace, 0 if the thread isn't there.
    fn of(&self, namespace: &PidNamespace) -> i32 {
        let index = namespace.level as usize - 1;
        self.0.get(index).map_or(
            0,
            |(numbers, number)| {
                if Arc::ptr_eq(numbers, &namespace.numbers) { *number } else { 0 }
            },
        )
    }

    /// Enters the numbers, for which there is room.
    pub fn enter(&self, first: i32) {
        for (numbers, number) in &self.0 {
            let mut state = numbers.state.lock();
            let place = state.used.partition_point(|&(used, _)| used < *number);
            insert_reserved(&mut state.used, place, (*number, first));
            state.last = *number;
            if *number == 1 {
                state.init = first;
            }
        }
    }

    /// Takes the numbers out.
    pub fn release(&self) {
        for (numbers, number) in &self.0 {
            let mut state = numbers.state.lock();
            if let Ok(place) = state.used.binary_search_by_key(number, |&(used, _)| used) {
                state.used.remove(place);
            }
            if state.used.is_empty() {
                state.used = Vec::new();
            }
        }
    }

    /// Something that had one of the numbers is gone: an end of a namespace may wait for that.
    pub fn tell(&self) {
        for (numbers, _) in &self.0 {
            let is_closed = numbers.state.lock().is_closed;
            if is_closed {
                numbers.freed.wake(Events::all());
            }
        }
    }
}

impl PidNamespace {
    /// A namespace below `parent`, made with these credentials.
    ///
    /// # Errors
    /// `EINVAL` (the parent's owner is not above the maker's user namespace), `ENOSPC`, `ENOMEM`.
    pub fn new(parent: &Pids, maker: &Credentials) -> Result<Arc<Self>, Errno> {
        if !is_within(&maker.users, &owner(parent)) {
            return Err(Errno::EINVAL);
        }
        let level = parent.as_ref().map_or(0, |parent| parent.level) + 1;
        if level > LEVEL_MAX {
            return Err(Errno::ENOSPC);
        }
        let counted = CountedNamespace::new(maker, NamespaceKind::Pids)?;
        let state = NumbersInUse { used: Vec::new(), last: 0, init: 0, is_closed: false };
        let numbers = fallible::try_arc(PidNumbers { state: SpinLock::new(state), freed: WaitQueue::new() })?;
        let parent = parent.clone();
        fallible::try_arc(Self { number: next_namespace_number(), parent, level, numbers, counted })
    }

    /// Whether it has or had a first process.
    #[must_use]
    pub fn has_init(&self) -> bool {
        self.numbers.state.lock().init != 0
    }

    /// The number in the first namespace for one of this; [`NOBODY`] if nothing has it.
    #[must_use]
    pub fn first(&self, number: i32) -> i32 {
        let state = self.numbers.state.lock();
        let found = state.used.binary_search_by_key(&number, |&(used, _)| used);
        found.map_or(NOBODY, |place| state.used[place].1)
    }

    /// The number given out last.
    #[must_use]
    pub fn last(&self) -> i32 {
        self.numbers.state.lock().last
    }

    /// The smallest number in use from `from` on, with that in the first namespace.
    fn next_number(&self, from: i32) -> Option<(i32, i32)> {
        let state = self.numbers.state.lock();
        let place = state.used.partition_point(|&(used, _)| used < from);
        state.used.get(place).copied()
    }

    /// The process with the smallest number from `from` on, and its number here.
    #[must_use]
    pub fn next_process(&self, from: i32) -> Option<(i32, Arc<Process>)> {
        let table = table::lock();
        let mut next = from;
        loop {
            let (number, first) = self.next_number(next)?;
            if let Some(process) = table.process(first) {
                return Some((number, process));
            }
            next = number.saturating_add(1);
        }
    }

    /// The first process, as long as it is the parent of orphans.
    pub(super) fn init(&self, table: &PidTable) -> Option<Arc<Process>> {
        let init = self.numbers.state.lock().init;
        table.process(init).filter(|process| is_init_of(process, self))
    }

    fn is_closed(&self) -> bool {
        self.numbers.state.lock().is_closed
    }

    /// A free number, the next after the last one or `wanted`, with room to enter it.
    fn choose(&self, wanted: Option<i32>) -> Result<i32, Errno> {
        let mut state = self.numbers.state.lock();
        if state.is_closed {
            return Err(Errno::ENOMEM);
        }
        state.used.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        if let Some(wanted) = wanted {
            if state.init == 0 && wanted != 1 {
                return Err(Errno::EINVAL);
            }
            let taken = state.used.binary_search_by_key(&wanted, |&(used, _)| used).is_ok();
            return if taken { Err(Errno::EEXIST) } else { Ok(wanted) };
        }
        let free_from = |start: i32| {
            let mut place = state.used.partition_point(|&(used, _)| used < start);
            let mut number = start;
            while state.used.get(place).is_some_and(|&(used, _)| used == number) {
                (place, number) = (place + 1, number + 1);
            }
            (number < pid_max()).then_some(number)
        };
        free_from(state.last + 1).or_else(|| free_from(RESERVED)).ok_or(Errno::EAGAIN)
    }
}

/// The user namespace that owns it.
#[must_use]
pub fn owner(pids: &Pids) -> Users {
    pids.as_ref().and_then(|pids| pids.counted.owner().clone())
}

/// The number of a namespace.
#[must_use]
pub fn number(pids: &Pids) -> u64 {
    pids.as_ref().map_or(FIRST_NUMBER, |pids| pids.number)
}

/// Whether two are the same.
#[inline]
#[must_use]
pub fn is_same(one: &Pids, other: &Pids) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        _ => false,
    }
}

/// Whether `pids` is `above` or lies below it.
#[must_use]
pub fn is_below(pids: &Pids, above: &Pids) -> bool {
    let mut next = pids;
    loop {
        if is_same(next, above) {
            return true;
        }
        let Some(inner) = next else { return false };
        next = &inner.parent;
    }
}

/// Numbers for a new thread of a namespace, with room to enter them; those that `wanted` has, from the innermost on,
/// are to be these. The table stays locked until they are entered.
///
/// # Errors
/// `ENOMEM` (also: the namespace has ended), `EAGAIN` (no number is left), `EEXIST`, `EINVAL` (the first process of a
/// namespace has another number than 1).
pub fn choose(pids: &Pids, wanted: &[i32], _: &PidTable) -> Result<PidNames, Errno> {
    let mut names = Vec::new();
    let mut next = pids;
    let mut wanted = wanted.iter().copied();
    names.try_reserve(pids.as_ref().map_or(0, |pids| pids.level as usize)).map_err(|_| Errno::ENOMEM)?;
    while let Some(namespace) = next {
        let number = namespace.choose(wanted.next())?;
        push_reserved(&mut names, (namespace.numbers.clone(), number));
        next = &namespace.parent;
    }
    names.reverse();
    Ok(PidNames(names))
}

/// How many namespaces a process of this one is in.
#[must_use]
pub fn depth(pids: &Pids) -> usize {
    pids.as_ref().map_or(0, |pids| pids.level as usize) + 1
}

/// The number that a namespace shows for one of the first; 0 if it hasn't got it.
#[must_use]
pub fn shown(number: i32, view: &Pids) -> i32 {
    match view {
        None => number,
        Some(_) => table::lock().shown(number, view),
    }
}

/// The number in the first namespace for one of `view`'s.
#[must_use]
pub fn named(number: i32, view: &Pids) -> i32 {
    match view {
        Some(namespace) if number > 0 => namespace.first(number),
        _ => number,
    }
}

impl PidTable {
    /// As [`shown`], with the table locked.
    #[must_use]
    pub fn shown(&self, number: i32, view: &Pids) -> i32 {
        match view {
            None => number,
            Some(namespace) => self.names(number).map_or(0, |names| names.of(namespace)),
        }
    }
}

impl Process {
    /// The number as this process sees it, for one of the first namespace; 0 if it doesn't.
    #[inline]
    #[must_use]
    pub fn shown(&self, number: i32) -> i32 {
        if self.pids.is_none() { number } else { shown(number, &self.pids) }
    }

    /// The number in the first namespace for what this process calls so; [`NOBODY`] if nothing has the number. Zero and
    /// negative numbers stay what they are.
    #[inline]
    #[must_use]
    pub fn named(&self, number: i32) -> i32 {
        if self.pids.is_none() { number } else { named(number, &self.pids) }
    }

    /// Whether it is the first process of its namespace, which its orphans go to and whose end is theirs.
    #[must_use]
    pub fn is_init(&self) -> bool {
        self.own_pid == 1 && self.pids.is_some()
    }

    /// Whether it is the first process of a namespace and is ending.
    #[must_use]
    pub fn is_ending_init(&self) -> bool {
        self.is_init() && self.pids.as_ref().is_some_and(|pids| pids.is_closed())
    }
}

fn is_init_of(process: &Process, namespace: &PidNamespace) -> bool {
    process.own_pid == 1
        && process.pids.as_ref().is_some_and(|pids| core::ptr::eq(&raw const **pids, namespace))
}

/// The first process of a namespace is about to end: nobody is left in its namespace once this completes.
pub async fn end_with(process: &Arc<Process>) {
    let Some(namespace) = process.pids.as_ref().filter(|_| process.is_init()) else { return };
    let table = table::lock();
    namespace.numbers.state.lock().is_closed = true;
    drop(table);
    let (mut next, mut told) = (2, 0_u32);
    while let Some((number, other)) = namespace.next_process(next) {
        next = number.saturating_add(1);
        // Only a queued realtime signal can be refused.
        let _ = signal::send_to_process(&other, Information::kernel(Signal::KILL));
        told += 1;
        if told.is_multiple_of(64) {
            crate::sched::yield_now().await;
        }
    }
    loop {
        let waited = crate::wait::engine::kernel_answer(|watch| {
            namespace.numbers.freed.watch(watch, Events::all())?;
            process.watch_children(watch)?;
            reap_children(process);
            Ok(is_alone(process, namespace).then_some(()))
        });
        if waited.await.is_ok() {
            return;
        }
        // Without memory for a watch, look again when everyone else has had a turn.
        crate::sched::yield_now().await;
    }
}

/// Whether the namespace has nobody but its first process.
fn is_alone(process: &Arc<Process>, namespace: &PidNamespace) -> bool {
    let table = table::lock();
    let state = namespace.numbers.state.lock();
    let is_other = |found: &Arc<Process>| !Arc::ptr_eq(found, process);
    !state.used.iter().any(|&(_, first)| {
        table.process(first).as_ref().is_some_and(is_other)
            || table.thread(first).is_some_and(|thread| is_other(&thread.process))
    })
}

/// Children that have ended go; those that somebody else traces are that one's to wait for.
fn reap_children(process: &Process) {
    loop {
        let ended = {
            let children = process.children();
            let is_over =
                |child: &&Arc<Process>| child.exit_status().is_some() && child.main_tracer().is_none();
            children.iter().find(is_over).cloned()
        };
        let Some(child) = ended else { return };
        if !exit::reap(&child).is_reaped() {
            return;
        }
    }
}
