//! The table of processes, threads, groups and sessions by number.
//!
//! Its lock also orders every change of the links among processes (parent, children, group): fork, the end of a
//! process, `setpgid`, `setsid` and `wait` hold it for a few pointer moves.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use super::{Group, Process, Session, Thread};
use crate::error::Errno;
use crate::sync::{SpinGuard, SpinLock};

/// What one number stands for.
#[derive(Default)]
struct Entry {
    thread: Option<Arc<Thread>>,
    /// The process, from its start until it has been waited for.
    process: Option<Arc<Process>>,
    group: Weak<Group>,
    session: Weak<Session>,
}

impl Entry {
    fn is_free(&self) -> bool {
        self.thread.is_none()
            && self.process.is_none()
            && self.group.strong_count() == 0
            && self.session.strong_count() == 0
    }
}

/// The table.
pub struct Table {
    entries: Vec<Entry>,
    last: i32,
}

static TABLE: SpinLock<Table> = SpinLock::new(Table { entries: Vec::new(), last: 0 });

/// The number of the kernel's own reaper, parent of orphans.
pub const REAPER_PID: i32 = 1;

/// The highest number, plus one, as `/proc/sys/kernel/pid_max` says.
pub const PID_LIMIT: i32 = 32_768;

/// The process of this number, zombies included.
#[must_use]
pub fn process(pid: i32) -> Option<Arc<Process>> {
    lock().process(pid)
}

/// The thread of this number.
#[must_use]
pub fn thread(tid: i32) -> Option<Arc<Thread>> {
    lock().entry(tid)?.thread.clone()
}

/// The process with the smallest number from `from` on, zombies included, to walk all processes without holding a lock.
#[must_use]
pub fn next_process(from: i32) -> Option<Arc<Process>> {
    lock().next_process(from)
}

/// The process group of this number.
#[must_use]
pub fn group(id: i32) -> Option<Arc<Group>> {
    lock().entry(id)?.group.upgrade()
}

/// The session of this number.
#[must_use]
pub fn session(id: i32) -> Option<Arc<Session>> {
    lock().entry(id)?.session.upgrade()
}

/// The number of threads, for `sysinfo` and `/proc/loadavg`.
#[must_use]
pub fn thread_count() -> usize {
    lock().entries.iter().filter(|entry| entry.thread.is_some()).count()
}

/// The number given out last.
#[must_use]
pub fn last_pid() -> i32 {
    lock().last
}

/// Gives back what the table keeps of groups and sessions that are gone, and its room behind the last number in use.
pub fn drain() {
    let mut table = lock();
    for entry in table.entries.iter_mut().filter(|entry| entry.is_free()) {
        *entry = Entry::default();
    }
    let used = table.entries.iter().rposition(|entry| !entry.is_free()).map_or(0, |last| last + 1);
    table.entries.truncate(used);
    if crate::memory::heap::reserve(used * size_of::<Entry>()).is_ok() {
        table.entries.shrink_to_fit();
    }
}

/// Locks the table, and with it the links among processes.
pub(super) fn lock() -> SpinGuard<'static, Table> {
    TABLE.lock()
}

impl Table {
    fn entry(&self, number: i32) -> Option<&Entry> {
        self.entries.get(usize::try_from(number).ok()?)
    }

    fn entry_mut(&mut self, number: i32) -> Option<&mut Entry> {
        self.entries.get_mut(usize::try_from(number).ok()?)
    }

    pub(super) fn process(&self, pid: i32) -> Option<Arc<Process>> {
        self.entry(pid)?.process.clone()
    }

    pub(super) fn next_process(&self, from: i32) -> Option<Arc<Process>> {
        let from = usize::try_from(from).unwrap_or(0);
        self.entries.get(from..)?.iter().find_map(|entry| entry.process.clone())
    }

    /// All processes, in the order of their numbers.
    pub(super) fn processes(&self) -> impl Iterator<Item = &Arc<Process>> {
        self.entries.iter().filter_map(|entry| entry.process.as_ref())
    }

    pub(super) fn group(&self, id: i32) -> Option<Arc<Group>> {
        self.entry(id)?.group.upgrade()
    }

    /// A number that nothing uses, the next after the last one given out. It stays free until something is entered.
    ///
    /// # Errors
    /// `EAGAIN` (none is left), `ENOMEM`.
    pub(super) fn free_number(&mut self) -> Result<i32, Errno> {
        for step in 1..PID_LIMIT {
            let number = (self.last + step - 1) % (PID_LIMIT - 1) + 1;
            let index = number as usize;
            if index >= self.entries.len() {
                self.entries.try_reserve(index + 1 - self.entries.len()).map_err(|_| Errno::ENOMEM)?;
                self.entries.resize_with(index + 1, Entry::default);
            }
            if self.entries[index].is_free() {
                self.last = number;
                return Ok(number);
            }
        }
        Err(Errno::EAGAIN)
    }

    pub(super) fn enter_process(&mut self, process: &Arc<Process>) {
        if let Some(entry) = self.entry_mut(process.pid) {
            entry.process = Some(process.clone());
        }
    }

    pub(super) fn enter_thread(&mut self, thread: &Arc<Thread>) {
        if let Some(entry) = self.entry_mut(thread.tid()) {
            entry.thread = Some(thread.clone());
        }
    }

    pub(super) fn enter_group(&mut self, group: &Arc<Group>) {
        if let Some(entry) = self.entry_mut(group.id) {
            entry.group = Arc::downgrade(group);
        }
    }

    pub(super) fn enter_session(&mut self, session: &Arc<Session>) {
        if let Some(entry) = self.entry_mut(session.id) {
            entry.session = Arc::downgrade(session);
        }
    }

    /// Takes a thread out; the caller drops it once the table is unlocked.
    #[must_use]
    pub(super) fn remove_thread(&mut self, tid: i32) -> Option<Arc<Thread>> {
        self.entry_mut(tid)?.thread.take()
    }

    /// Takes a process out; the caller drops it once the table is unlocked.
    #[must_use]
    pub(super) fn remove_process(&mut self, pid: i32) -> Option<Arc<Process>> {
        self.entry_mut(pid)?.process.take()
    }
}
