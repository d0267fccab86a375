//! The notes of a core dump. Those of the thread that writes it come first, then the process's, then those of the other
//! threads, which are made one after the other when they are written: each thread's take as many bytes.

use alloc::sync::Arc;
use alloc::vec::Vec;

use heddle_kernel_core::core_dump::{
    ARGUMENT_BYTES, PAGE_BYTES, Pieces, ProcessStatus, REGISTER_WORDS, STATUS_BYTES, ThreadStatus, add_note,
    begin_note, note, note_bytes,
};
use heddle_kernel_core::signal::Information;

use crate::arch::float::with_key_rights;
use crate::arch::{FloatState, UserContext, debug, float, protection_key};
use crate::error::Errno;
use crate::memory::source::Object;
use crate::memory::space::RemoteAccess;
use crate::memory::{Space, fallible};
use crate::process::{Process, Thread};
use crate::sched::Budget;
use crate::syscall::process::core_dump::output::{Output, Written};

/// The floating-point registers without their extended part, and where it says which components it has.
const FLOAT_BYTES: usize = 512;
const COMPONENTS_OFFSET: usize = 464;
/// The most bytes of the note about mapped files, as in Linux; a longer one is left out.
const FILES_MAX: usize = 4 << 20;
const WORD: usize = size_of::<u64>();

/// See the module.
pub struct Notes {
    thread: Arc<Thread>,
    signal: [i32; 3],
    head: Pieces<u8>,
    /// The other threads, as many as wait for the end of the dump.
    others: usize,
    /// Bytes of the extended registers; 0 where there are none.
    extended: usize,
}

impl Notes {
    /// Makes those of the thread and the process, and counts the others.
    pub async fn collect(
        thread: &Arc<Thread>,
        context: &UserContext,
        information: &Information,
        space: &Space,
        budget: &mut Budget,
    ) -> Result<Self, Errno> {
        thread.with_float(FloatState::save);
        let has_extended = debug::components() != 0;
        let extended = if has_extended { float::visible_bytes() } else { 0 };
        let signal = [information.signal.number(), information.code, information.errno];
        let mut notes = Self { thread: thread.clone(), signal, head: Pieces::default(), others: 0, extended };
        let mut head = Pieces::default();
        let hides_step = thread.with_tracee(|tracee| tracee.is_some_and(|tracee| tracee.is_step_forced));
        let registers = debug::registers(context, hides_step);
        add_note(&mut head, note::STATUS, &status(thread, signal, registers).to_bytes())?;
        add_note(&mut head, note::PROCESS, &process_note(thread, space).await)?;
        let words = information.to_words();
        begin_note(&mut head, note::SIGNAL, Information::BYTES)?;
        words.iter().try_for_each(|word| head.push(&word.to_le_bytes()))?;
        let (start, end) = thread.process.layout().auxiliary;
        add_note(&mut head, note::AUXILIARY, &read(space, start, end - start).await?)?;
        add_files(&mut head, space, budget).await?;
        notes.add_float(&mut head, thread)?;
        notes.head = head;
        let mut from = 0;
        while let Some(other) = notes.next_other(from) {
            budget.step(1).await;
            from = other.tid().saturating_add(1);
            notes.others += 1;
        }
        Ok(notes)
    }

    /// The next thread that waits with its registers kept.
    fn next_other(&self, mut from: i32) -> Option<Arc<Thread>> {
        loop {
            let next = self.thread.process.next_thread(from)?;
            let is_other = !Arc::ptr_eq(&next, &self.thread);
            if is_other && next.with_kept_context(|_| ()).is_some() {
                return Some(next);
            }
            from = next.tid().saturating_add(1);
        }
    }

    /// Bytes of all notes.
    pub const fn size(&self) -> usize {
        let extended = if self.extended > 0 { note_bytes(note::EXTENDED, self.extended) } else { 0 };
        let each = note_bytes(note::STATUS, STATUS_BYTES) + note_bytes(note::FLOAT, FLOAT_BYTES) + extended;
        self.head.len() + self.others * each
    }

    /// Writes them all.
    pub async fn write(&self, output: &mut Output) -> Written {
        for piece in self.head.iter() {
            output.put(piece).await?;
        }
        let mut from = 0;
        for _ in 0..self.others {
            let other = self.next_other(from).ok_or(Errno::ESRCH)?;
            from = other.tid().saturating_add(1);
            let registers = other.with_kept_context(|context| debug::registers(context, false));
            let registers = registers.ok_or(Errno::ESRCH)?;
            let mut pieces = Pieces::default();
            add_note(&mut pieces, note::STATUS, &status(&other, self.signal, registers).to_bytes())?;
            self.add_float(&mut pieces, &other)?;
            for piece in pieces.iter() {
                output.put(piece).await?;
            }
        }
        Ok(())
    }

    /// Adds the floating-point registers, which have been saved.
    fn add_float(&self, pieces: &mut Pieces<u8>, thread: &Thread) -> Result<(), Errno> {
        let is_own = core::ptr::eq(thread, &raw const *self.thread);
        let rights = if is_own { protection_key::rights() } else { thread.key_rights() };
        let mut bytes = thread.with_float(|float| with_key_rights(float.as_bytes(), rights))?;
        add_note(pieces, note::FLOAT, &bytes[..FLOAT_BYTES])?;
        if self.extended > 0 {
            bytes[COMPONENTS_OFFSET..COMPONENTS_OFFSET + WORD]
                .copy_from_slice(&float::visible_components().to_le_bytes());
            add_note(pieces, note::EXTENDED, &bytes)?;
        }
        Ok(())
    }
}

fn ids(process: &Process, own: i32) -> [i32; 4] {
    let others = [process.parent_pid(), process.group_id(), process.session().id];
    let [parent, group, session] = others.map(|number| process.shown(number));
    [own, parent, group, session]
}

fn status(thread: &Thread, signal: [i32; 3], registers: [u64; REGISTER_WORDS]) -> ThreadStatus {
    let process = &thread.process;
    // The first thread's times are the process's.
    let own = if thread.tid() == process.pid { process.cpu_times() } else { thread.cpu_times() };
    let children = process.children_times();
    ThreadStatus {
        signal,
        pending: thread.pending_signals().0,
        blocked: thread.blocked().0,
        ids: ids(process, thread.own_tid()),
        times_us: [own.0, own.1, children.0, children.1].map(|time| time / 1000),
        registers,
    }
}

async fn process_note(
    thread: &Arc<Thread>,
    space: &Space,
) -> [u8; heddle_kernel_core::core_dump::PROCESS_BYTES] {
    let (process, credentials) = (&thread.process, thread.credentials());
    let (start, end) = process.layout().arguments;
    let arguments = read(space, start, (end - start).min(ARGUMENT_BYTES)).await.unwrap_or_default();
    let name = thread.name();
    ProcessStatus {
        nice: thread.scheduling().nice,
        uid: credentials.uid,
        gid: credentials.gid,
        ids: ids(process, process.own_pid),
        name: super::before_zero(&name),
        arguments: &arguments,
    }
    .to_bytes()
}

/// Reads a little of the program's memory; what is not there is zeros.
async fn read(space: &Space, start: usize, length: usize) -> Result<Vec<u8>, Errno> {
    const LENGTH_MAX: usize = 4096;
    let mut bytes = fallible::try_filled(0, length.min(LENGTH_MAX))?;
    let mut done = 0;
    while done < bytes.len() {
        let at = start + done;
        let count = (bytes.len() - done).min(PAGE_BYTES as usize - at % PAGE_BYTES as usize);
        // Gone for good.
        let _ = space.read_remote(at, &mut bytes[done..done + count], RemoteAccess::Forced, || true).await;
        done += count;
    }
    Ok(bytes)
}

/// Adds the files that are mapped: addresses, positions in pages, and paths.
async fn add_files(head: &mut Pieces<u8>, space: &Space, budget: &mut Budget) -> Result<(), Errno> {
    let (mut places, mut paths, mut count) = (Pieces::default(), Pieces::default(), 0_u64);
    let mut at = 0;
    while let Some(mapping) = space.mapping_at_or_above(at) {
        budget.step(1).await;
        at = mapping.end;
        let Object::Source(source) = &mapping.object else { continue };
        let Some(path) = source.path().filter(|path| path.first() == Some(&b'/')) else { continue };
        for word in [mapping.start as u64, mapping.end as u64, mapping.offset / PAGE_BYTES] {
            places.push(&word.to_le_bytes())?;
        }
        paths.push(&path)?;
        paths.push(&[0])?;
        count += 1;
    }
    let length = 2 * WORD + places.len() + paths.len();
    if length > FILES_MAX {
        return Ok(());
    }
    begin_note(head, note::FILES, length)?;
    head.push(&count.to_le_bytes())?;
    head.push(&PAGE_BYTES.to_le_bytes())?;
    for piece in places.iter().chain(paths.iter()) {
        budget.step(1).await;
        head.push(piece)?;
    }
    head.pad(WORD / 2)?;
    Ok(())
}
