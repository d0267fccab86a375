//! perf_event_open(2): events that the kernel counts for a program.
//!
//! Nothing is counted for this: threads have their counters and clocks anyway, so an event is the difference between
//! two looks at those of its threads. All events are in one table with one lock, as there are few; while there is none,
//! a new thread, its end and an execve(2) cost one load.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use linux_raw_sys::ioctl as requests;

use heddle_kernel_core::fallible::push_reserved;
use heddle_kernel_core::perf::{EventAttributes, EventCount, EventTimes, SoftwareEvent};

use crate::arch::time::now_ns;
use crate::call::{Call, get, put};
use crate::error::{Errno, TryResult};
use crate::fs::{File, IoBuffer, OpenFile, StatusFlags, downcast};
use crate::memory::fallible;
use crate::process::Thread;
use crate::sync::SpinLock;
use crate::wait::queue::{Events, Watch};

/// The most events, and the most threads of all of them together.
const EVENTS_MAX: usize = 256;
const SOURCES_MAX: usize = 1024;

/// How little is allowed to ordinary users: `/proc/sys/kernel/perf_event_paranoid`. Debian's kernel begins with 3:
/// nobody but the administrator.
pub static PARANOIA: AtomicI32 = AtomicI32::new(3);

static TABLE: SpinLock<Vec<PerfEvent>> = SpinLock::new(Vec::new());
/// The length of the table, for a look without the lock.
static EVENTS: AtomicUsize = AtomicUsize::new(0);
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Requests of ioctl(2), which `linux-raw-sys` leaves out, and the bit by which they are to the whole group.
const ENABLE: u32 = 0x2400;
const DISABLE: u32 = 0x2401;
const REFRESH: u32 = 0x2402;
const RESET: u32 = 0x2403;
const SET_OUTPUT: u32 = 0x2405;
const FOR_GROUP: usize = 1;

/// The target of an event.
pub enum PerfTarget {
    /// A thread, and perhaps its children.
    Thread(Arc<Thread>),
    /// Time as it passes: a clock of a processor.
    Processor,
}

/// A thread that is counted, and its readings when counting began.
struct CountedThread {
    thread: Arc<Thread>,
    start: Reading,
}

/// A look at a thread's counters.
#[derive(Clone, Copy, Default)]
struct Reading {
    value: u64,
    clock_ns: u64,
}

struct PerfEvent {
    id: u64,
    leader: u64,
    event: SoftwareEvent,
    attributes: EventAttributes,
    /// The thread that has opened it.
    owner: Weak<Thread>,
    threads: Vec<CountedThread>,
    /// When a processor's clock began to be counted.
    start_ns: Option<u64>,
    is_for_processor: bool,
    is_enabled: bool,
    is_counting: bool,
    enabled_by_exec: bool,
    /// The count of the times before, and how long they were.
    value: u64,
    counted_ns: u64,
}

impl PerfEvent {
    fn read(&self, thread: &Thread) -> Reading {
        let (user, system) = thread.cpu_times();
        let clock_ns = user + system;
        let counts = thread.counts();
        let value = match self.event {
            _ if !self.attributes.counts(self.event) => 0,
            SoftwareEvent::Clock => clock_ns,
            SoftwareEvent::PageFaults => counts.faults,
            SoftwareEvent::ContextSwitches => counts.voluntary + counts.involuntary,
            SoftwareEvent::Migrations => thread.migrations(),
            SoftwareEvent::Nothing => 0,
        };
        Reading { value, clock_ns }
    }

    /// The count since the start.
    fn since_start(&self) -> Reading {
        let mut sum = Reading::default();
        if !self.is_counting {
            return sum;
        }
        for counted in &self.threads {
            let now = self.read(&counted.thread);
            sum.value += now.value.saturating_sub(counted.start.value);
            sum.clock_ns += now.clock_ns.saturating_sub(counted.start.clock_ns);
        }
        if let Some(start_ns) = self.start_ns {
            let passed = now_ns().saturating_sub(start_ns);
            sum.clock_ns += passed;
            sum.value += if self.event == SoftwareEvent::Clock { passed } else { 0 };
        }
        sum
    }

    /// Begins to count, or ends it.
    fn set_counting(&mut self, counts: bool) {
        if counts == self.is_counting {
            return;
        }
        if counts {
            for index in 0..self.threads.len() {
                self.threads[index].start = self.read(&self.threads[index].thread);
            }
            self.start_ns = self.is_for_processor.then(now_ns);
        } else {
            let counted = self.since_start();
            self.value += counted.value;
            self.counted_ns += counted.clock_ns;
        }
        self.is_counting = counts;
    }

    /// Takes over the count of a thread, which is returned to be dropped without the lock.
    fn release(&mut self, index: usize) -> CountedThread {
        let counted = self.threads.swap_remove(index);
        if self.is_counting {
            let now = self.read(&counted.thread);
            self.value += now.value.saturating_sub(counted.start.value);
            self.counted_ns += now.clock_ns.saturating_sub(counted.start.clock_ns);
        }
        counted
    }

    fn count(&self) -> EventCount {
        EventCount { value: self.value + self.since_start().value, id: self.id }
    }

    fn times(&self) -> EventTimes {
        let counted_ns = self.counted_ns + self.since_start().clock_ns;
        EventTimes { enabled_ns: counted_ns, running_ns: counted_ns }
    }

    fn place_of(&self, thread: &Thread) -> Option<usize> {
        self.threads.iter().position(|counted| core::ptr::eq(&*counted.thread, thread))
    }
}

/// Whether there are no events.
#[inline]
fn is_idle() -> bool {
    EVENTS.load(Ordering::Relaxed) == 0
}

/// Lets the members of a group count that are enabled, if its leader is.
fn settle(table: &mut [PerfEvent], leader: u64) {
    let is_led = table.iter().find(|event| event.id == leader).is_none_or(|leader| leader.is_enabled);
    for event in table.iter_mut().filter(|event| event.leader == leader) {
        event.set_counting(event.is_enabled && (is_led || event.id == leader));
    }
}

/// A child of `parent` is about to run: those events that are inherited count it, from its beginning on, as far as
/// there is room. Whoever takes the child back calls [`forget`].
pub fn inherit(parent: &Arc<Thread>, child: &Arc<Thread>) {
    if !is_idle() {
        inherit_all(parent, child);
    }
}

#[cold]
fn inherit_all(parent: &Arc<Thread>, child: &Arc<Thread>) {
    let is_thread = Arc::ptr_eq(&parent.process, &child.process);
    let mut table = TABLE.lock();
    let mut sources: usize = table.iter().map(|event| event.threads.len()).sum();
    for event in table.iter_mut() {
        let is_wanted = event.attributes.is_inherited() && (is_thread || !event.attributes.is_for_threads());
        if !is_wanted || sources >= SOURCES_MAX || event.place_of(parent).is_none() {
            continue;
        }
        let counted = CountedThread { thread: child.clone(), start: Reading::default() };
        // Without memory the child is not counted.
        sources += usize::from(fallible::try_push(&mut event.threads, counted).is_ok());
    }
}

/// A thread has ended: what it has used stays with its events.
pub fn ended(thread: &Arc<Thread>) {
    if !is_idle() {
        each_of(thread, |event, index| Some(event.release(index)));
    }
}

/// Calls `change` with each event of a thread and the thread's place in it; drops what it takes out without the lock.
fn each_of(thread: &Thread, mut change: impl FnMut(&mut PerfEvent, usize) -> Option<CountedThread>) {
    let mut last = 0;
    loop {
        let mut table = TABLE.lock();
        // Events lie in the order of their numbers, and some may go between two looks.
        let next = table.iter_mut().filter(|event| event.id > last);
        let Some((event, index)) =
            next.filter_map(|event| event.place_of(thread).map(|index| (event, index))).next()
        else {
            return;
        };
        last = event.id;
        let leader = event.leader;
        let was_enabled = event.is_enabled;
        let removed = change(event, index);
        if event.is_enabled != was_enabled {
            settle(&mut table, leader);
        }
        drop(table);
        drop(removed);
    }
}

/// A child that was counted from its beginning on is taken back.
pub fn forget(child: &Arc<Thread>) {
    if !is_idle() {
        each_of(child, |event, index| Some(event.threads.swap_remove(index)));
    }
}

/// The thread has been given another program.
pub fn executed(thread: &Thread) {
    if is_idle() {
        return;
    }
    let is_closed = !thread.process.is_dumpable();
    each_of(thread, |event, index| {
        if is_closed || event.attributes.is_removed_by_exec() {
            return Some(event.release(index));
        }
        event.is_enabled |= core::mem::take(&mut event.enabled_by_exec);
        None
    });
}

/// Enables all events that a thread has opened, or disables them: `PR_TASK_PERF_EVENTS_ENABLE`.
pub fn set_all_of(owner: &Thread, is_enabled: bool) {
    let mut table = TABLE.lock();
    for index in 0..table.len() {
        let event = &mut table[index];
        if core::ptr::eq(event.owner.as_ptr(), owner) && event.is_enabled != is_enabled {
            event.is_enabled = is_enabled;
            let leader = event.leader;
            settle(&mut table, leader);
        }
    }
}

/// A change of an event by ioctl(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerfChange {
    Enable,
    Disable,
    Reset,
}

/// An event as an open file.
pub struct PerfFile {
    id: u64,
    attributes: EventAttributes,
}

impl PerfFile {
    /// Has an event counted; in the group of `leader`, if one is given.
    ///
    /// # Errors
    /// `ENOENT`, `EINVAL` (the group is another thread's, or its leader is led itself), `ENOSPC`, `ENOMEM`.
    pub fn open(
        attributes: EventAttributes,
        event: SoftwareEvent,
        target: PerfTarget,
        owner: &Arc<Thread>,
        leader: Option<&Self>,
    ) -> Result<Arc<OpenFile>, Errno> {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let is_for_processor = matches!(target, PerfTarget::Processor);
        let mut threads = Vec::new();
        if let PerfTarget::Thread(thread) = target {
            fallible::try_push(&mut threads, CountedThread { thread, start: Reading::default() })?;
        }
        let mut new = PerfEvent {
            id,
            leader: id,
            event,
            attributes,
            owner: Arc::downgrade(owner),
            threads,
            start_ns: None,
            is_for_processor,
            is_enabled: !attributes.is_disabled(),
            is_counting: false,
            enabled_by_exec: attributes.is_enabled_by_exec(),
            value: 0,
            counted_ns: 0,
        };
        // Made first: what is in the table goes with its file.
        let file = fallible::try_arc(Self { id, attributes })?;
        let open = fallible::try_arc(OpenFile::new(file, StatusFlags::RDWR))?;
        let mut table = TABLE.lock();
        if let Some(leader) = leader {
            new.leader = leader.id;
            let known = table.iter().find(|event| event.id == leader.id).ok_or(Errno::EINVAL)?;
            let is_same = match (known.threads.first(), new.threads.first()) {
                (Some(theirs), Some(ours)) => Arc::ptr_eq(&theirs.thread, &ours.thread),
                (None, None) => true,
                _ => false,
            };
            if known.leader != known.id || !is_same || !attributes.may_follow() {
                return Err(Errno::EINVAL);
            }
        }
        if table.len() >= EVENTS_MAX {
            return Err(Errno::ENOSPC);
        }
        table.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let leader = new.leader;
        push_reserved(&mut table, new);
        EVENTS.store(table.len(), Ordering::Relaxed);
        settle(&mut table, leader);
        Ok(open)
    }

    /// The event of an open file.
    ///
    /// # Errors
    /// `EBADF`: it is none.
    pub fn of(open: &OpenFile) -> Result<&Self, Errno> {
        downcast(open).ok_or(Errno::EBADF)
    }

    /// The number of the event.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Whether its children are counted.
    #[must_use]
    pub const fn is_inherited(&self) -> bool {
        self.attributes.is_inherited()
    }

    /// Changes the event, or all of its group.
    pub fn change(&self, change: PerfChange, is_for_group: bool) {
        let mut table = TABLE.lock();
        let leader = table.iter().find(|event| event.id == self.id).map_or(self.id, |event| event.leader);
        for event in table.iter_mut() {
            let is_meant = if is_for_group { event.leader == leader } else { event.id == self.id };
            if !is_meant {
                continue;
            }
            match change {
                PerfChange::Enable => event.is_enabled = true,
                PerfChange::Disable => event.is_enabled = false,
                PerfChange::Reset => {
                    // The times go on.
                    let was_counting = event.is_counting;
                    event.set_counting(false);
                    event.value = 0;
                    event.set_counting(was_counting);
                }
            }
        }
        settle(&mut table, leader);
    }

    /// The words that a read gives.
    fn told(&self) -> Result<Vec<u64>, Errno> {
        let table = TABLE.lock();
        let Some(own) = table.iter().find(|event| event.id == self.id) else { return Ok(Vec::new()) };
        // A group is told from its leader on, whoever of it is read.
        let first = match table.iter().find(|event| event.id == own.leader) {
            Some(leader) if self.attributes.tells_group() => leader,
            _ => own,
        };
        let mut counts = Vec::new();
        fallible::try_push(&mut counts, first.count())?;
        if self.attributes.tells_group() {
            for member in table.iter().filter(|event| event.leader == first.id && event.id != first.id) {
                fallible::try_push(&mut counts, member.count())?;
            }
        }
        let mut words = Vec::new();
        for word in self.attributes.told(first.times(), &counts) {
            fallible::try_push(&mut words, word)?;
        }
        Ok(words)
    }
}

/// The requests to an event. Those about samples say what Linux says of events that have none.
///
/// # Errors
/// `ENOTTY`, `EINVAL`, `EBADF`; a page fault.
fn ioctl(call: &Call<'_>, file: &PerfFile, request: u32, argument: usize) -> TryResult<usize> {
    let is_for_group = argument & FOR_GROUP != 0;
    match request {
        ENABLE => file.change(PerfChange::Enable, is_for_group),
        DISABLE => file.change(PerfChange::Disable, is_for_group),
        RESET => file.change(PerfChange::Reset, is_for_group),
        requests::PERF_EVENT_IOC_ID => put(call, argument, &file.id().to_ne_bytes())?,
        SET_OUTPUT if argument as i32 == -1 => {}
        SET_OUTPUT => {
            let other = call.thread.descriptors().get(argument as i32)?;
            PerfFile::of(&other)?;
            return Err(Errno::EINVAL.into());
        }
        requests::PERF_EVENT_IOC_PERIOD => {
            let _: [u8; 8] = get(call, argument)?;
            return Err(Errno::EINVAL.into());
        }
        REFRESH
        | requests::PERF_EVENT_IOC_SET_FILTER
        | requests::PERF_EVENT_IOC_SET_BPF
        | requests::PERF_EVENT_IOC_PAUSE_OUTPUT => return Err(Errno::EINVAL.into()),
        _ => return Err(Errno::ENOTTY.into()),
    }
    Ok(0)
}

impl File for PerfFile {
    fn read(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        let words = self.told()?;
        if buffer.remaining() < words.len() * size_of::<u64>() {
            return Err(Errno::ENOSPC.into());
        }
        let before = buffer.mark();
        for word in &words {
            if let Err(fault) = buffer.copy_out(&word.to_ne_bytes()) {
                buffer.rewind(before);
                return Err(fault.into());
            }
        }
        Ok(words.len() * size_of::<u64>())
    }

    /// There are no samples to wait for.
    fn poll(&self, _: &OpenFile, _: Option<&Watch>, _: Events) -> Result<Events, Errno> {
        Ok(Events::HUP)
    }

    fn ioctl(&self, call: &Call<'_>, _: &OpenFile, request: u32, argument: usize) -> TryResult<usize> {
        ioctl(call, self, request, argument)
    }

    fn name(&self) -> &'static str {
        "anon_inode:[perf_event]"
    }
}

impl Drop for PerfFile {
    fn drop(&mut self) {
        let mut table = TABLE.lock();
        let place = table.iter().position(|event| event.id == self.id);
        let removed = place.map(|place| table.remove(place));
        // Members go on alone.
        for member in table.iter_mut().filter(|event| event.leader == self.id) {
            member.leader = member.id;
            member.set_counting(member.is_enabled);
        }
        let is_last = table.is_empty();
        let room = if is_last { core::mem::take(&mut *table) } else { Vec::new() };
        EVENTS.store(table.len(), Ordering::Relaxed);
        drop(table);
        drop((removed, room));
    }
}
