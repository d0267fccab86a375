//! Sockets in flight that nobody can receive any more.
//!
//! A descriptor of a socket can be on its way to the socket itself, or two can be on their way to each other. When all
//! programs have closed them, their references keep each other alive. The collector knows every socket that is in
//! flight, and how many references to it are. One is a *candidate* if there are no others. Of the references to a
//! candidate, those that wait in the inboxes of candidates are subtracted. A candidate with references left, and what
//! can be reached through its inbox, stays; what waits for the others is dropped, and they end with it.
//!
//! # Why nobody receives meanwhile
//! References enter and leave the table under its lock, which is held while the collector looks. So the number of
//! references in flight stands still, and to equal the number of all references it must have been so at that moment.
//! To receive from a candidate afterwards, a program needs a reference to it, which it can only have received from
//! another candidate; the first to do so would have needed one before.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use heddle_kernel_core::fallible::insert_reserved;

use crate::error::Errno;
use crate::fs::{OpenFile, downcast};
use crate::net::{Ancillary, Socket};
use crate::sync::SpinLock;
use crate::wait::queue::{Events, WaitQueue};

/// No entry.
const NONE: usize = usize::MAX;
/// So many more in flight than after the last look are a reason for the next one.
const MORE: usize = 256;

/// A socket that is in flight.
struct InFlight {
    file: Weak<OpenFile>,
    /// References in flight.
    count: usize,
    /// References that no candidate's inbox accounts for.
    left: usize,
    is_candidate: bool,
    is_garbage: bool,
    /// The next entry whose inbox is to be looked at.
    next: usize,
}

impl InFlight {
    fn key(&self) -> usize {
        self.file.as_ptr() as usize
    }
}

/// All of them, in the order of their addresses.
static IN_FLIGHT: SpinLock<Vec<InFlight>> = SpinLock::new(Vec::new());
/// How many there are, and how many the last look left.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static LEFT: AtomicUsize = AtomicUsize::new(0);

static IS_REQUESTED: AtomicBool = AtomicBool::new(false);
static WANTED: WaitQueue = WaitQueue::new();

fn find(entries: &[InFlight], key: usize) -> Result<usize, usize> {
    entries.binary_search_by_key(&key, InFlight::key)
}

fn socket_of(file: &OpenFile) -> Option<&Socket> {
    downcast(file)
}

/// Takes note of sockets that are in flight from now on.
///
/// # Errors
/// `ENOMEM`; none is then.
pub(super) fn enter(files: &[Arc<OpenFile>]) -> Result<(), Errno> {
    let sockets = || files.iter().filter(|file| socket_of(file).is_some());
    let added = sockets().count();
    if added == 0 {
        return Ok(());
    }
    let mut entries = IN_FLIGHT.lock();
    entries.try_reserve(added).map_err(|_| Errno::ENOMEM)?;
    for file in sockets() {
        match find(&entries, Arc::as_ptr(file) as usize) {
            Ok(index) => entries[index].count += 1,
            Err(index) => {
                let file = Arc::downgrade(file);
                let entry =
                    InFlight { file, count: 1, left: 0, is_candidate: false, is_garbage: false, next: NONE };
                insert_reserved(&mut entries, index, entry);
            }
        }
    }
    let count = entries.len();
    drop(entries);
    COUNT.store(count, Ordering::Relaxed);
    if count > LEFT.load(Ordering::Relaxed) + MORE {
        want();
    }
    Ok(())
}

/// They are in flight no more. The caller still has the references.
pub(super) fn leave(files: &[Arc<OpenFile>]) {
    let mut unused = Vec::new();
    for file in files.iter().filter(|file| socket_of(file).is_some()) {
        let mut entries = IN_FLIGHT.lock();
        let Ok(index) = find(&entries, Arc::as_ptr(file) as usize) else { continue };
        entries[index].count -= 1;
        if entries[index].count == 0 {
            entries.remove(index);
        }
        if entries.is_empty() {
            unused = core::mem::take(&mut *entries);
        }
        COUNT.store(entries.len(), Ordering::Relaxed);
    }
    drop(unused);
}

/// A socket has ended, which may have been the last that a program had of a circle.
pub(super) fn socket_ended() {
    if COUNT.load(Ordering::Relaxed) > 0 {
        want();
    }
}

fn want() {
    IS_REQUESTED.store(true, Ordering::Release);
    WANTED.wake(Events::all());
}

/// Collects whenever there may be something to collect.
pub async fn run() {
    loop {
        crate::device::wait(&WANTED, || IS_REQUESTED.swap(false, Ordering::AcqRel)).await;
        collect();
    }
}

/// Ends the sockets that nobody can receive. Allocates nothing, and may be called when memory is short.
pub fn collect() {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    {
        let mut entries = IN_FLIGHT.lock();
        find_candidates(&mut entries);
        find_garbage(&mut entries);
        LEFT.store(entries.len(), Ordering::Relaxed);
    }
    loop {
        let next = {
            let mut entries = IN_FLIGHT.lock();
            let garbage = entries.iter_mut().find(|entry| entry.is_garbage);
            garbage.and_then(|entry| {
                entry.is_garbage = false;
                entry.file.upgrade()
            })
        };
        let Some(file) = next else { break };
        if let Some(socket) = socket_of(&file) {
            socket.drop_unread();
        }
    }
}

fn find_candidates(entries: &mut [InFlight]) {
    for entry in entries.iter_mut() {
        entry.is_candidate = entry.file.strong_count() == entry.count;
        entry.left = entry.count;
        entry.is_garbage = false;
    }
    for index in 0..entries.len() {
        if entries[index].is_candidate {
            each_reference(entries, index, |entry, _| entry.left -= 1);
        }
    }
}

/// Marks the candidates that cannot be reached.
fn find_garbage(entries: &mut [InFlight]) {
    let mut first = NONE;
    for (index, entry) in entries.iter_mut().enumerate() {
        entry.is_garbage = entry.is_candidate && entry.left == 0;
        if entry.is_candidate && !entry.is_garbage {
            (entry.next, first) = (first, index);
        }
    }
    while let Some(entry) = entries.get(first) {
        let mut rest = entry.next;
        each_reference(entries, first, |entry, index| {
            if core::mem::take(&mut entry.is_garbage) {
                (entry.next, rest) = (rest, index);
            }
        });
        first = rest;
    }
}

/// Shows the candidates to which there are references in the inbox of an entry, once for each reference, and their
/// places.
fn each_reference(entries: &mut [InFlight], index: usize, mut found: impl FnMut(&mut InFlight, usize)) {
    // The table's lock keeps the references in flight, so this one is never the last.
    let Some(file) = entries[index].file.upgrade() else { return };
    let Some(socket) = socket_of(&file) else { return };
    socket.each_waiting(&mut |ancillary: &Ancillary| {
        for file in ancillary.files() {
            if let Ok(index) = find(entries, Arc::as_ptr(file) as usize)
                && entries[index].is_candidate
            {
                found(&mut entries[index], index);
            }
        }
    });
}
