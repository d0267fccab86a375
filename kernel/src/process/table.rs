//! The table of processes, threads, groups and sessions by number.
//!
//! Its lock also orders every change of the links among processes (parent, children, group): fork, the end of a
//! process, `setpgid`, `setsid` and `wait` hold it for a few pointer moves.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::error::Errno;
use crate::memory::fallible;
use crate::process::pid_namespace::PidNames;
use crate::process::{Group, Process, Session, Thread};
use crate::sync::{SpinGuard, SpinLock};

/// The objects that one number stands for.
#[derive(Default)]
struct PidEntry {
    thread: Option<Arc<Thread>>,
    /// The process, from its start until it has been waited for.
    process: Option<Arc<Process>>,
    /// The group, as long as it has a process.
    group: Option<Arc<Group>>,
    /// The session, as long as it has a group.
    session: Option<Arc<Session>>,
    /// The names of the number in the namespaces below the first.
    names: PidNames,
    /// There are such.
    is_named: bool,
}

impl PidEntry {
    const fn is_free(&self) -> bool {
        self.thread.is_none() && self.process.is_none() && self.group.is_none() && self.session.is_none()
    }
}

/// Numbers in a chunk.
const CHUNK: usize = 64;

type Chunk = [PidEntry; CHUNK];

/// The table: chunks of entries that exist only where numbers are in use.
pub struct PidTable {
    chunks: [Option<Box<Chunk>>; PID_LIMIT as usize / CHUNK],
    last: i32,
    /// Threads that are entered.
    threads: usize,
    /// Threads that were ever entered.
    started: u64,
}

static TABLE: SpinLock<PidTable> = SpinLock::new(PidTable {
    chunks: [const { None }; PID_LIMIT as usize / CHUNK],
    last: 0,
    threads: 0,
    started: 0,
});

/// The number of the kernel's own reaper, parent of orphans.
pub const REAPER_PID: i32 = 1;

/// The highest number that there is room for, plus one.
pub const PID_LIMIT: i32 = 32_768;
/// The least value of [`PID_MAX`], as Linux has it: beyond the numbers that daemons took at boot.
pub const PID_MAX_LEAST: u32 = 301;
/// The highest number that is given out, plus one: `/proc/sys/kernel/pid_max`.
pub static PID_MAX: AtomicU32 = AtomicU32::new(PID_LIMIT as u32);
/// The most threads: `/proc/sys/kernel/threads-max`.
pub static THREADS_MAX: AtomicU32 = AtomicU32::new(PID_LIMIT as u32);

/// The value of [`PID_MAX`], as the numbers are.
#[must_use]
pub fn pid_max() -> i32 {
    PID_MAX.load(Ordering::Relaxed) as i32
}

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

/// All processes in the order of their numbers, zombies included; no lock is held between two of them.
pub fn each_process() -> impl Iterator<Item = Arc<Process>> {
    let mut from = 0;
    core::iter::from_fn(move || {
        let process = next_process(from)?;
        from = process.pid.saturating_add(1);
        Some(process)
    })
}

/// The process group of this number.
#[must_use]
pub fn group(id: i32) -> Option<Arc<Group>> {
    lock().group(id)
}

/// The session of this number.
#[must_use]
pub fn session(id: i32) -> Option<Arc<Session>> {
    lock().entry(id)?.session.clone()
}

/// The number of threads, for `sysinfo` and `/proc/loadavg`.
#[must_use]
pub fn thread_count() -> usize {
    lock().threads
}

/// The number given out last.
#[must_use]
pub fn last_pid() -> i32 {
    lock().last
}

/// How many threads have been started, for `/proc/stat`.
#[must_use]
pub fn started_count() -> u64 {
    lock().started
}

/// Locks the table, and with it the links among processes.
pub fn lock() -> SpinGuard<'static, PidTable> {
    TABLE.lock()
}

impl PidTable {
    fn entry(&self, number: i32) -> Option<&PidEntry> {
        let index = usize::try_from(number).ok()?;
        Some(&self.chunks.get(index / CHUNK)?.as_ref()?[index % CHUNK])
    }

    fn entry_mut(&mut self, number: i32) -> Option<&mut PidEntry> {
        let index = usize::try_from(number).ok()?;
        Some(&mut self.chunks.get_mut(index / CHUNK)?.as_mut()?[index % CHUNK])
    }

    fn entries(&self) -> impl Iterator<Item = &PidEntry> {
        self.chunks.iter().flatten().flat_map(|chunk| chunk.iter())
    }

    /// Frees the chunk of a number that has become free if it was the last one in use there. The chunk from which
    /// numbers are given out stays, so that what comes and goes does not build it anew each time.
    fn tidy(&mut self, number: i32) {
        if let Some(entry) = self.entry_mut(number).filter(|entry| entry.is_named) {
            if entry.is_free() {
                entry.is_named = false;
                let names = core::mem::take(&mut entry.names);
                names.release();
                names.tell();
            } else {
                entry.names.tell();
            }
        }
        let index = usize::try_from(number).unwrap_or(0) / CHUNK;
        if index == self.last as usize / CHUNK {
            return;
        }
        if let Some(place) = self.chunks.get_mut(index)
            && place.as_ref().is_some_and(|chunk| chunk.iter().all(PidEntry::is_free))
        {
            *place = None;
        }
    }

    pub fn thread(&self, tid: i32) -> Option<Arc<Thread>> {
        self.entry(tid)?.thread.clone()
    }

    /// The process of a number.
    #[must_use]
    pub fn process(&self, pid: i32) -> Option<Arc<Process>> {
        self.entry(pid)?.process.clone()
    }

    pub(super) fn next_process(&self, from: i32) -> Option<Arc<Process>> {
        let from = usize::try_from(from).unwrap_or(0);
        let chunks = self.chunks.iter().enumerate().skip(from / CHUNK);
        let in_chunk = |(number, chunk): (usize, &Option<Box<Chunk>>)| {
            let skipped = from.saturating_sub(number * CHUNK);
            chunk.as_ref()?.iter().skip(skipped).find_map(|entry| entry.process.clone())
        };
        chunks.into_iter().find_map(in_chunk)
    }

    /// All processes, in the order of their numbers.
    pub fn processes(&self) -> impl Iterator<Item = &Arc<Process>> {
        self.entries().filter_map(|entry| entry.process.as_ref())
    }

    pub fn group(&self, id: i32) -> Option<Arc<Group>> {
        self.entry(id)?.group.clone()
    }

    /// A number that nothing uses, the next after the last one given out. It stays free until something is entered.
    ///
    /// # Errors
    /// `EAGAIN` (none is left, or there are as many threads as may be), `ENOMEM`.
    pub fn free_number(&mut self) -> Result<i32, Errno> {
        if self.threads >= THREADS_MAX.load(Ordering::Relaxed) as usize {
            return Err(Errno::EAGAIN);
        }
        let limit = pid_max();
        for step in 1..limit {
            let number = (self.last + step - 1) % (limit - 1) + 1;
            if self.entry(number).is_none() {
                let chunk = fallible::try_box(core::array::from_fn(|_| PidEntry::default()))?;
                self.chunks[number as usize / CHUNK] = Some(chunk);
            }
            if self.entry(number).is_some_and(PidEntry::is_free) {
                let before = core::mem::replace(&mut self.last, number);
                self.tidy(before);
                return Ok(number);
            }
        }
        Err(Errno::EAGAIN)
    }

    /// Takes this number instead of the next, for clone3(2).
    ///
    /// # Errors
    /// `EEXIST`, `EINVAL` (it is no number), `ENOMEM`.
    pub fn wanted_number(&mut self, number: i32) -> Result<i32, Errno> {
        if !(1..pid_max()).contains(&number) {
            return Err(Errno::EINVAL);
        }
        let before = core::mem::replace(&mut self.last, number - 1);
        let found = if self.entry(number).is_some_and(|entry| !entry.is_free()) {
            Err(Errno::EEXIST)
        } else {
            self.free_number()
        };
        self.last = before;
        found
    }

    /// The names of a number in the namespaces below the first.
    pub(super) fn names(&self, number: i32) -> Option<&PidNames> {
        self.entry(number).map(|entry| &entry.names)
    }

    /// Enters the names of a number that is about to be in use.
    pub fn enter_names(&mut self, number: i32, names: PidNames) {
        if names.is_empty() {
            return;
        }
        if let Some(entry) = self.entry_mut(number) {
            names.enter(number);
            entry.names = names;
            entry.is_named = true;
        }
    }

    pub fn enter_process(&mut self, process: &Arc<Process>) {
        if let Some(entry) = self.entry_mut(process.pid) {
            entry.process = Some(process.clone());
        }
    }

    pub fn enter_thread(&mut self, thread: &Arc<Thread>) {
        if let Some(entry) = self.entry_mut(thread.tid()) {
            entry.thread = Some(thread.clone());
            self.threads += 1;
            self.started += 1;
        }
    }

    /// A process becomes a member of its group, which has room; the first one enters the group, and the session with
    /// its first group.
    pub fn join(&mut self, process: &Arc<Process>) {
        let group = process.group();
        if group.enter(process) {
            if group.session.groups.fetch_add(1, Ordering::Relaxed) == 0
                && let Some(entry) = self.entry_mut(group.session.id)
            {
                entry.session = Some(group.session.clone());
            }
            if let Some(entry) = self.entry_mut(group.id) {
                entry.group = Some(group);
            }
        }
    }

    /// A process leaves a group. The last one takes the group out, and with the last group the session; the caller
    /// drops what is returned once the table is unlocked.
    #[must_use]
    pub fn leave(
        &mut self,
        process: &Process,
        group: &Arc<Group>,
    ) -> (Option<Arc<Group>>, Option<Arc<Session>>) {
        if !group.remove(process) {
            return (None, None);
        }
        let left = self.entry_mut(group.id).and_then(|entry| entry.group.take());
        let mut session = None;
        if group.session.groups.fetch_sub(1, Ordering::Relaxed) == 1 {
            session = self.entry_mut(group.session.id).and_then(|entry| entry.session.take());
            self.tidy(group.session.id);
        }
        self.tidy(group.id);
        (left, session)
    }

    /// Moves a process to another group, which has room. The caller drops what is returned once the table is unlocked.
    #[must_use]
    pub fn move_to_group(&mut self, process: &Arc<Process>, group: Arc<Group>) -> impl Sized + use<> {
        let old = process.group();
        let left = self.leave(process, &old);
        let before = process.set_group(group);
        self.join(process);
        (old, before, left)
    }

    /// Takes a thread out; the caller drops it once the table is unlocked.
    #[must_use]
    pub(super) fn remove_thread(&mut self, tid: i32) -> Option<Arc<Thread>> {
        let thread = self.entry_mut(tid)?.thread.take();
        self.threads -= usize::from(thread.is_some());
        self.tidy(tid);
        thread
    }

    /// Takes a process out, unless its number is another's by now; the caller drops it once the table is unlocked.
    #[must_use]
    pub(super) fn remove_process(&mut self, process: &Arc<Process>) -> Option<Arc<Process>> {
        let pid = process.pid;
        let removed = self.entry_mut(pid)?.process.take_if(|known| Arc::ptr_eq(known, process));
        self.tidy(pid);
        removed
    }
}
