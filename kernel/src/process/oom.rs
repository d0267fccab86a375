//! When memory runs out for good: who ends, and how.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use heddle_kernel_core::oom;
use heddle_kernel_core::signal::{Information, Signal};

use crate::arch::time::now_ns;
use crate::memory::frame;
use crate::process::{Process, Thread, table};
use crate::signal::send_to_process;
use crate::sync::SpinLock;
use crate::wait::queue::{Events, WaitQueue};

/// How long a process that is ending is waited for before another one has to end.
const ACKNOWLEDGE_TIMEOUT_NS: u64 = 2_000_000_000;

/// How many kills can be waiting to be reported.
const REPORTS_MAX: usize = 8;

/// A process that was killed.
#[derive(Clone, Copy)]
pub struct OomKill {
    /// The process.
    pub pid: i32,
    /// The name of its first thread, filled up with zeros.
    pub name: [u8; Thread::NAME_BYTES],
    /// The memory that it had.
    pub pages: usize,
}

/// The kills that the session has not reported yet, the first ones if there are too many.
static REPORTS: SpinLock<[Option<OomKill>; REPORTS_MAX]> = SpinLock::new([None; REPORTS_MAX]);

/// Notified after a kill.
pub static REPORTED: WaitQueue = WaitQueue::new();

/// Whether [`take_report`] has one.
pub fn has_report() -> bool {
    REPORTS.lock()[0].is_some()
}

/// The oldest kill that nobody has taken.
pub fn take_report() -> Option<OomKill> {
    let mut reports = REPORTS.lock();
    reports.rotate_left(1);
    reports[REPORTS_MAX - 1].take()
}

fn report(kill: OomKill) {
    if let Some(slot) = REPORTS.lock().iter_mut().find(|slot| slot.is_none()) {
        *slot = Some(kill);
    }
    REPORTED.wake(Events::all());
}

/// Leave to end with memory of the emergency reserve, which is for this as long as there is no other.
pub struct ExitReserve(());

static EXITS: AtomicUsize = AtomicUsize::new(0);

impl ExitReserve {
    /// How many threads may end so at a time: each takes a page and a few small objects.
    fn most() -> usize {
        frame::emergency_frames() / 4
    }

    /// `None` if as many threads have it as may.
    #[must_use]
    pub fn take() -> Option<Self> {
        let most = Self::most();
        let more = |count| (count < most).then_some(count + 1);
        EXITS.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok().map(|_| Self(()))
    }
}

impl Drop for ExitReserve {
    fn drop(&mut self) {
        EXITS.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Ends the process with the most points, unless one is ending already and gets on with it. Allocates nothing.
pub fn kill() {
    static IS_CHOOSING: AtomicBool = AtomicBool::new(false);
    /// When the one that is ending has had its time; 0 if none is known.
    static KILL_DEADLINE: AtomicU64 = AtomicU64::new(0);
    if IS_CHOOSING.swap(true, Ordering::AcqRel) {
        return;
    }
    let now_ns = now_ns();
    let until_ns = KILL_DEADLINE.load(Ordering::Relaxed);
    let is_waited_for = is_victim_exiting() && (until_ns == 0 || now_ns < until_ns);
    if !is_waited_for {
        choose_and_kill();
    }
    if !is_waited_for || until_ns == 0 {
        KILL_DEADLINE.store(now_ns + ACKNOWLEDGE_TIMEOUT_NS, Ordering::Relaxed);
    }
    IS_CHOOSING.store(false, Ordering::Release);
}

fn choose_and_kill() {
    static IS_LOGGED: AtomicBool = AtomicBool::new(false);
    let Some(Victim { process, pages, points }) = choose() else {
        if !IS_LOGGED.swap(true, Ordering::Relaxed) {
            ::log::warn!("out of memory: there is no process that may be ended");
        }
        return;
    };
    IS_LOGGED.store(false, Ordering::Relaxed);
    let name = process.main_thread().map_or([0; Thread::NAME_BYTES], |thread| thread.name());
    report(OomKill { pid: process.pid, name, pages });
    let name = core::str::from_utf8(&name).unwrap_or("?").trim_end_matches('\0');
    let (adjustment, uid) = (process.oom_adjustment(), process.uid());
    ::log::warn!(
        "out of memory: process {} ({name}) of user {uid} ends, with {pages} pages, oom_score_adj {adjustment}, \
         {points} points",
        process.pid
    );
    if let Some(space) = process.main_thread().and_then(|thread| thread.try_space()) {
        space.doom();
    }
    // SIGKILL always finds room.
    let _ = send_to_process(&process, Information::kernel(Signal::KILL));
}

/// Whether a process is ending.
pub fn is_dying(process: &Process) -> bool {
    let state = process.signal_state();
    state.ending().is_some() && !state.threads().is_empty()
}

/// Whether a process is ending but still has its memory.
fn is_victim_exiting() -> bool {
    let mut next = 0;
    while let Some(process) = table::next_process(next) {
        next = process.pid + 1;
        if is_dying(&process) && resident_pages(&process) > 0 {
            return true;
        }
    }
    false
}

/// So many descriptors of a process are looked at: a program may have a million, and the choice is made at once.
const DESCRIPTORS_MAX: usize = 1024;

/// The pages of a process that are in memory.
pub fn resident_pages(process: &Process) -> usize {
    let space = process.main_thread().and_then(|thread| thread.try_space());
    space.map_or(0, |space| space.resident_pages())
}

/// The pages of pipes, of sockets and of files without a name that a process has open. Others may have them open too,
/// and pages that are also mapped count twice.
fn held_pages(process: &Process) -> usize {
    let Some(thread) = process.main_thread() else { return 0 };
    let table = thread.descriptors();
    let mut next = 0;
    let numbers = core::iter::from_fn(|| {
        let number = table.next_in_use(next)?;
        next = number + 1;
        Some(number)
    });
    let files =
        numbers.take(DESCRIPTORS_MAX).filter_map(|number| table.get(i32::try_from(number).ok()?).ok());
    files.map(|open| open.file.held_pages()).sum()
}

/// The pages by which a process is weighed. Linux counts what is in memory of its space and no more, and bounds pipes
/// and sockets by limits that suit its machines; in a small one, who fills memory with them must not outlive those who
/// use theirs.
fn weighed_pages(process: &Process) -> usize {
    resident_pages(process) + held_pages(process)
}

fn points_with(process: &Process, pages: usize) -> Option<i64> {
    oom::points(pages, process.oom_adjustment(), frame::total_frames())
}

/// The weight of a process in the choice of a victim; `None` if it must not be chosen.
#[must_use]
pub fn points(process: &Process) -> Option<i64> {
    points_with(process, weighed_pages(process))
}

/// A process to end.
struct Victim {
    process: Arc<Process>,
    pages: usize,
    points: i64,
}

/// The process with the most points, of those that have memory.
fn choose() -> Option<Victim> {
    let mut next = 0;
    let mut chosen: Option<Victim> = None;
    while let Some(process) = table::next_process(next) {
        next = process.pid + 1;
        if process.oom_adjustment() == oom::ADJUSTMENT_MIN || is_dying(&process) {
            continue;
        }
        let pages = weighed_pages(&process);
        let Some(points) = points_with(&process, pages).filter(|_| pages > 0) else { continue };
        if chosen.as_ref().is_none_or(|chosen| points > chosen.points) {
            chosen = Some(Victim { process, pages, points });
        }
    }
    chosen
}
