//! The coroutines for `/proc/PID/heddle`: a table in memory of the process's own. The kernel finds its place in the
//! process's pages, and reads it when that file is read.
//!
//! The table has an entry for each coroutine that there could be, by the index in its id, and costs memory as far as
//! there have been so many. The thread that queues or runs a coroutine writes its entry, in single words and in no
//! order: a reader may see a coroutine between two states, and the table has no other users.
#![allow(unsafe_code)] // Memory that is shared with readers outside.

use crate::place;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use heddle_abi::user_sched::{CoroutineInfo, state};
use heddle_coroutine::{Id, MAX_COROUTINES};

/// [`CoroutineInfo`], as words that several threads write.
#[repr(C)]
struct Entry {
    id: AtomicU64,
    /// Kind in bits 0 to 31, level in 32 to 39, state in 40 to 47.
    what: AtomicU64,
    polls: AtomicU64,
    since_ns: AtomicU64,
    delayed_ns: AtomicU64,
}

const LEVEL_SHIFT: u32 = 32;
const STATE_SHIFT: u32 = 40;
const KIND: u64 = u32::MAX as u64;

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Entry>() == size_of::<CoroutineInfo>());
    assert!(offset_of!(Entry, what) == offset_of!(CoroutineInfo, kind));
    assert!(offset_of!(CoroutineInfo, level) == offset_of!(CoroutineInfo, kind) + 4);
    assert!(offset_of!(CoroutineInfo, state) == offset_of!(CoroutineInfo, kind) + 5);
    assert!(offset_of!(Entry, polls) == offset_of!(CoroutineInfo, polls));
    assert!(offset_of!(Entry, since_ns) == offset_of!(CoroutineInfo, since_ns));
    assert!(offset_of!(Entry, delayed_ns) == offset_of!(CoroutineInfo, delayed_ns));
};

/// The table; null if the kernel has no use for one, or there was no room.
static TABLE: AtomicPtr<Entry> = AtomicPtr::new(core::ptr::null_mut());

/// Makes the table, if the kernel reads such, and publishes its address. Once.
pub(crate) fn open() {
    const BYTES: usize = MAX_COROUTINES as usize * size_of::<Entry>();
    if !place::is_known() {
        return;
    }
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: new memory at a place of the kernel's choice; zeros are unused entries.
    let start = unsafe { libc::mmap(core::ptr::null_mut(), BYTES, protection, flags, -1, 0) };
    if start != libc::MAP_FAILED {
        TABLE.store(start.cast(), Ordering::Release);
        publish();
    }
}

/// Tells the kernel where the table is.
pub(crate) fn publish() {
    let start = TABLE.load(Ordering::Acquire);
    if !start.is_null() {
        place::publish_table(start.expose_provenance(), size_of::<Entry>());
    }
}

#[inline(always)]
fn entry(id: Id) -> Option<&'static Entry> {
    let table = TABLE.load(Ordering::Acquire);
    if table.is_null() || id.index() >= MAX_COROUTINES {
        return None;
    }
    // SAFETY: the table has so many entries, of atomic words, and stays.
    Some(unsafe { &*table.add(id.index() as usize) })
}

impl Entry {
    fn is_of(&self, id: Id) -> bool {
        self.id.load(Ordering::Relaxed) == id.to_bits()
    }

    #[inline(always)]
    fn set_what(&self, what: u64, level: u8, state: u8) {
        let what = what & KIND | u64::from(level) << LEVEL_SHIFT | u64::from(state) << STATE_SHIFT;
        self.what.store(what, Ordering::Relaxed);
    }

    /// Starts the entry of a new coroutine.
    #[cold]
    fn begin(&self, id: Id, now_ns: u64) {
        place::raise_count(id.index() + 1);
        self.what.store(0, Ordering::Relaxed);
        self.polls.store(0, Ordering::Relaxed);
        self.delayed_ns.store(0, Ordering::Relaxed);
        self.since_ns.store(now_ns, Ordering::Relaxed);
        self.id.store(id.to_bits(), Ordering::Relaxed);
    }
}

const fn state_of(what: u64) -> u8 {
    (what >> STATE_SHIFT) as u8
}

/// See [`Host::queued`](heddle_coroutine::host::Host::queued).
#[inline]
pub(crate) fn queued(id: Id, level: u8) {
    let Some(entry) = entry(id) else { return };
    if !entry.is_of(id) {
        entry.begin(id, place::now_ns());
    }
    let what = entry.what.load(Ordering::Relaxed);
    if state_of(what) != state::READY {
        entry.since_ns.store(place::now_ns(), Ordering::Relaxed);
    }
    entry.set_what(what, level, state::READY);
}

/// See [`Host::posted`](heddle_coroutine::host::Host::posted).
#[inline]
pub(crate) fn posted(id: Id) {
    let Some(entry) = entry(id).filter(|entry| entry.is_of(id)) else { return };
    let what = entry.what.load(Ordering::Relaxed);
    if state_of(what) != state::WAITING {
        return;
    }
    let ready = what & !(0xff << STATE_SHIFT) | u64::from(state::READY) << STATE_SHIFT;
    // Its core may be queueing or running it already, and knows better.
    if entry.what.compare_exchange(what, ready, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        entry.since_ns.store(place::now_ns(), Ordering::Relaxed);
    }
}

/// See [`Host::is_of_kind`](heddle_coroutine::host::Host::is_of_kind).
pub(crate) fn is_of_kind(id: Id, kind: u32) {
    if let Some(entry) = entry(id).filter(|entry| entry.is_of(id)) {
        entry.what.fetch_or(kind.into(), Ordering::Relaxed);
    }
}

/// See [`Host::turn_begins`](heddle_coroutine::host::Host::turn_begins).
#[inline]
pub(crate) fn turn_begins(id: Id, level: u8) {
    place::turn_begins(id.to_bits(), level);
    let Some(entry) = entry(id) else { return };
    let now_ns = place::now_ns();
    let delay_ns = now_ns.saturating_sub(entry.since_ns.load(Ordering::Relaxed));
    let delayed_ns = entry.delayed_ns.load(Ordering::Relaxed).wrapping_add(delay_ns);
    entry.delayed_ns.store(delayed_ns, Ordering::Relaxed);
    entry.polls.store(entry.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    entry.since_ns.store(now_ns, Ordering::Relaxed);
    entry.set_what(entry.what.load(Ordering::Relaxed), level, state::RUNNING);
}

/// See [`Host::turn_ends`](heddle_coroutine::host::Host::turn_ends). Since when it waits is when its turn began: the
/// clock is read twice a turn, not three times.
#[inline]
pub(crate) fn turn_ends(id: Id, has_ended: bool) {
    place::set_current(0);
    let Some(entry) = entry(id) else { return };
    if has_ended {
        entry.id.store(0, Ordering::Relaxed);
    } else {
        let what = entry.what.load(Ordering::Relaxed);
        entry.set_what(what, (what >> LEVEL_SHIFT) as u8, state::WAITING);
    }
}
