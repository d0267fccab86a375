//! Which calls in a program's text become jumps into the kernel, in a machine with direct calls
//! ([`crate::arch::direct`]), and when.
//!
//! A page of text that is patched is the program's own from then on, which costs a copy of it and the copy's memory.
//! So a place is patched at its fourth use: most places of a program that does not run long are used once.
//!
//! Another CPU that is in the midst of the seven bytes while they are written may see a part of them. So with several
//! CPUs only the one thread of a space patches it; what many threads began with stays as it is. On one CPU whoever
//! was interrupted in a place is before, between or behind its two instructions, all of which go on rightly.

use alloc::boxed::Box;

use heddle_kernel_core::call_place::{self, AFTER_LENGTH, CALL_LENGTH, JUMP_LENGTH, PlaceKind};
use heddle_kernel_core::call_uses::CallUses;

use crate::arch::direct::CallPlaces;
use crate::arch::paging::PAGE_SIZE;
use crate::arch::{cpu, direct};
use crate::error::{Errno, TryError};
use crate::memory::counters;
use crate::memory::counters::count;
use crate::memory::fallible::try_box;
use crate::memory::space::remote::RemoteAccess;
use crate::memory::space::{Flags, Protection, Space};

/// The calls of a space's program.
pub(super) struct ProgramCalls {
    places: CallPlaces,
    uses: CallUses,
}

/// Why a place was not patched.
enum Unpatched {
    /// It cannot be.
    Never,
    /// Something is in the way.
    Now,
}

impl ProgramCalls {
    /// Those of a new program; `None` where calls are ordinary ones.
    pub(super) fn new() -> Result<Option<Box<Self>>, Errno> {
        if !direct::is_on() {
            return Ok(None);
        }
        try_box(Self { places: CallPlaces::new(), uses: CallUses::new() }).map(Some)
    }
}

impl Space {
    /// The places that are patched, in a machine with direct calls.
    #[must_use]
    pub fn call_places(&self) -> Option<&CallPlaces> {
        self.calls.as_deref().map(|calls| &calls.places)
    }

    /// The one that runs in the space has made system call `number` by the instruction before this address: such a
    /// place becomes a jump, sooner or later.
    pub fn note_call(&self, end: usize, number: u32) {
        let Some(calls) = &self.calls else { return };
        if !calls.uses.add(end) || cpu::count() > 1 && self.thread_count() > 1 {
            return;
        }
        match self.patch(&calls.places, end, number) {
            Ok(()) => {
                calls.uses.forget(end);
                count(&counters::CALLS_PATCHED);
            }
            Err(Unpatched::Never) => calls.uses.give_up(end),
            Err(Unpatched::Now) => {}
        }
    }

    fn patch(&self, places: &CallPlaces, end: usize, number: u32) -> Result<(), Unpatched> {
        let mut before = [0; JUMP_LENGTH + 1];
        let mut after = [0; AFTER_LENGTH];
        let start = end.checked_sub(before.len()).ok_or(Unpatched::Never)?;
        // The jump lies in one page, of which all or nothing is written. The byte before it may be another's.
        let rest = PAGE_SIZE.checked_sub((start + 1) % PAGE_SIZE + JUMP_LENGTH).ok_or(Unpatched::Never)?;
        let after = &mut after[..rest.min(AFTER_LENGTH)];
        let is_text = self.state.lock().mappings.get(start).is_some_and(|mapping| {
            mapping.protection.contains(Protection::EXECUTE)
                && !mapping.protection.contains(Protection::WRITE)
                && !mapping.flags.contains(Flags::SHARED)
                && end + after.len() <= mapping.end
        });
        if !is_text {
            return Err(Unpatched::Never);
        }
        let (prefix, place) = before.split_at_mut(1);
        self.try_read_remote(start, prefix, RemoteAccess::Checked)?;
        self.try_read_remote(start + 1, place, RemoteAccess::Checked)?;
        if !after.is_empty() {
            self.try_read_remote(end, after, RemoteAccess::Checked)?;
        }
        let kind = call_place::recognize(&before, after, number).ok_or(Unpatched::Never)?;
        let jump = places.add(end, kind, number).ok_or(Unpatched::Never)?;
        let write = |at: usize, bytes: &[u8]| self.try_write_remote(at, bytes, RemoteAccess::Forced);
        let written = match kind {
            PlaceKind::Move | PlaceKind::Ninth => write(end - JUMP_LENGTH, &jump),
            // First what nobody executes yet.
            PlaceKind::Padding(distance) => write(end + usize::from(distance), &jump)
                .and_then(|()| write(end - CALL_LENGTH, &call_place::short_jump(distance))),
        };
        written.inspect_err(|_| places.forget(end))?;
        direct::instructions_have_changed();
        Ok(())
    }

    /// In a child that nobody runs in yet, and whose parent's range is locked: the places of the text that both have.
    pub(super) fn inherit_calls(&self, parent: &Self) {
        if let (Some(own), Some(from)) = (self.call_places(), parent.call_places()) {
            own.copy(from);
        }
    }
}

impl From<TryError> for Unpatched {
    fn from(_: TryError) -> Self {
        Self::Now
    }
}
