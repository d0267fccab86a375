//! The bounds of what is kept of a folder's files: for how long, and how much of it.
//!
//! Answers are relied on for [`VALID_NS`], or until the host says that it has changed something. States are visited in
//! turn when there is too much: one that was used since the last visit is left alone once more.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use heddle_kernel_core::ninep::Attributes;
use heddle_kernel_core::ninep::knowledge::{FileQuestion, Horizon, ServerClock};

use crate::error::Errno;
use crate::fs::share::names::Hand;
use crate::fs::share::server::Server;
use crate::fs::share::state::FileState;
use crate::memory::{fallible, frame};
use crate::sched;
use crate::sync::SpinLock;
use crate::time::{NS_PER_SECOND, host_realtime_ns, now_ns};

/// How long an answer is relied on.
pub const VALID_NS: u64 = NS_PER_SECOND;
/// How long, if the host announces changes. Stores of the host's programs through mappings are not announced.
const VALID_WATCHED_NS: u64 = 30 * NS_PER_SECOND;
/// The memory's frames for each name that may be kept: an entry with its node and state takes about a kilobyte.
const FRAMES_PER_NAME: usize = 8;
/// How much later than the host's clock times of files may be that are taken for a server's time, in seconds.
const AHEAD_SECONDS: u64 = 2;
/// States that one step looks at.
const LOOKS: usize = 8;
/// The part of the memory that may hold bytes of files that were opened without the host.
const PINNED_PART: usize = 16;

/// All servers.
static SERVERS: SpinLock<Vec<Weak<Server>>> = SpinLock::new(Vec::new());

/// Lets what is kept of a server's files be dropped when memory is short.
///
/// # Errors
/// `ENOMEM`.
pub fn register(server: &Arc<Server>) -> Result<(), Errno> {
    fallible::try_push(&mut SERVERS.lock(), Arc::downgrade(server))
}

pub(super) fn nth(index: usize) -> Option<Option<Arc<Server>>> {
    SERVERS.lock().get(index).map(Weak::upgrade)
}

/// Drops all that is kept of files and is not in use.
pub fn drain() {
    for server in (0..).map_while(nth).flatten() {
        // A name that goes may have been what kept names below it.
        while server.drain_once() {}
    }
}

/// Has all files asked about before they are used again: who starts a program expects it to see what was changed
/// before.
pub fn announce() {
    for server in (0..).map_while(nth).flatten() {
        server.distrust();
    }
}

/// Counts of what is kept, and clocks.
pub struct CacheCounts {
    /// Counts the guest's changes.
    moment: AtomicU64,
    /// Counts announcements of changes.
    epoch: AtomicU64,
    names: AtomicUsize,
    frames: AtomicUsize,
    /// How long answers are relied on.
    valid_ns: AtomicU64,
    /// Some files may not be found by the names by which the host announces them.
    has_gaps: AtomicBool,
    /// Frames with the bytes of files that were opened without the host.
    pinned: AtomicUsize,
    /// The number of the state that was visited last.
    hand: AtomicU64,
    clock: SpinLock<ServerClock>,
}

/// The time in seconds by a clock that no program sets.
pub fn wall_seconds() -> u64 {
    host_realtime_ns() / NS_PER_SECOND
}

impl CacheCounts {
    pub const fn new() -> Self {
        Self {
            moment: AtomicU64::new(1),
            epoch: AtomicU64::new(0),
            names: AtomicUsize::new(0),
            frames: AtomicUsize::new(0),
            valid_ns: AtomicU64::new(VALID_NS),
            has_gaps: AtomicBool::new(false),
            pinned: AtomicUsize::new(0),
            hand: AtomicU64::new(0),
            clock: SpinLock::new(ServerClock::new()),
        }
    }
}

fn count(counter: &AtomicUsize, difference: isize) {
    if difference != 0 {
        counter.fetch_add(difference.cast_unsigned(), Ordering::Relaxed);
    }
}

impl Server {
    /// The moment of a change by the guest.
    pub fn next_moment(&self) -> u64 {
        self.kept.moment.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The state of the clocks before a question is put.
    pub fn question(&self) -> FileQuestion {
        let asked_ns = now_ns();
        FileQuestion {
            begun: self.kept.moment.load(Ordering::Relaxed),
            asked_ns,
            epoch: self.kept.epoch.load(Ordering::Relaxed),
            is_watched: self.kept.valid_ns.load(Ordering::Relaxed) == VALID_WATCHED_NS,
            wall_seconds: wall_seconds(),
            server_seconds: self.kept.clock.lock().seconds(asked_ns),
        }
    }

    /// An answer shows what time it is there.
    pub fn show_time(&self, attributes: &Attributes) {
        let seconds = attributes.changed.0;
        // A file system may have times of a clock that was wrong.
        if seconds <= wall_seconds() + AHEAD_SECONDS {
            self.kept.clock.lock().show(seconds, now_ns());
        }
    }

    /// The limits of what may be relied on now.
    pub fn horizon(&self) -> Horizon {
        Horizon {
            now_ns: now_ns(),
            valid_ns: self.kept.valid_ns.load(Ordering::Relaxed),
            // A file with several names may be changed by one that is not in the folder.
            valid_doubtful_ns: VALID_NS,
            epoch: self.kept.epoch.load(Ordering::Relaxed),
        }
    }

    /// Changes are announced from now on, or not any more.
    pub fn set_watched(&self, is_watched: bool) {
        if is_watched {
            // Only a file system of the host's own is watched, and the machine has had its clock from there.
            self.kept.clock.lock().show(wall_seconds(), now_ns());
        }
        self.kept.valid_ns.store(if is_watched { VALID_WATCHED_NS } else { VALID_NS }, Ordering::Relaxed);
        self.distrust();
    }

    /// From now on a file may be in use that the host's announcements do not find by its name.
    pub fn has_lost_name(&self) {
        self.kept.has_gaps.store(true, Ordering::Relaxed);
    }

    /// A name was announced that is not kept.
    pub fn unknown_name(&self) {
        if self.kept.has_gaps.load(Ordering::Relaxed) {
            self.distrust();
        }
    }

    /// Keeps the bytes of a file, of so many frames, from being dropped; whether there may be so many.
    pub fn pin(&self, frames: usize) -> bool {
        let most = frame::total_frames() / PINNED_PART;
        let add = |pinned: usize| pinned.checked_add(frames).filter(|&sum| sum <= most);
        self.kept.pinned.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    /// Takes that back.
    pub fn unpin(&self, frames: usize) {
        self.kept.pinned.fetch_sub(frames, Ordering::Relaxed);
    }

    /// Has all files asked about before they are used again.
    pub fn distrust(&self) {
        self.kept.epoch.fetch_add(1, Ordering::Relaxed);
    }

    /// There are so many more names.
    pub fn count_names(&self, difference: isize) {
        count(&self.kept.names, difference);
    }

    /// There are so many more frames.
    pub fn count_frames(&self, difference: isize) {
        count(&self.kept.frames, difference);
    }

    /// Whether bytes may be kept that nobody needs yet.
    pub fn has_room(&self) -> bool {
        self.kept.frames.load(Ordering::Relaxed) < frame::total_frames() / 2 && frame::is_plentiful()
    }

    fn has_many_names(&self) -> bool {
        self.kept.names.load(Ordering::Relaxed) > frame::total_frames() / FRAMES_PER_NAME
    }

    /// Drops a little of what is kept, if that is too much.
    pub fn make_room(&self) {
        let (names, frames) = (self.has_many_names(), !self.has_room());
        if !names && !frames {
            return;
        }
        for _ in 0..LOOKS {
            let Some(state) = self.next_state() else { continue };
            let is_any = names && state.forget_names(self, false, &mut Hand::new()).0 > 0;
            if is_any || frames && self.take_frames(&state) {
                return;
            }
        }
    }

    fn take_frames(&self, state: &FileState) -> bool {
        let (taken, are_more) = state.forget_pages(self, false);
        if are_more {
            // The next visit is of the same.
            self.kept.hand.fetch_sub(1, Ordering::Relaxed);
        }
        taken > 0
    }

    fn next_state(&self) -> Option<Arc<FileState>> {
        let Some((number, state)) = self.state_after(self.kept.hand.load(Ordering::Relaxed)) else {
            self.kept.hand.store(0, Ordering::Relaxed);
            return None;
        };
        self.kept.hand.store(number, Ordering::Relaxed);
        state
    }

    /// Visits all states; whether there was anything to drop.
    fn drain_once(&self) -> bool {
        let (mut number, mut is_any) = (0, false);
        while let Some((next, state)) = self.state_after(number) {
            number = next;
            let Some(state) = state else { continue };
            let mut hand = Hand::new();
            loop {
                let (count, are_more) = state.forget_names(self, true, &mut hand);
                is_any |= count > 0;
                sched::poll_interrupts();
                if !are_more {
                    break;
                }
            }
            while state.forget_pages(self, true).1 {
                sched::poll_interrupts();
            }
        }
        is_any
    }
}
