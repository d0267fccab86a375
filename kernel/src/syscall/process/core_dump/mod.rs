//! Writing a core dump, core(5): the thread that took the signal does it, while all others of the process wait.
//!
//! The file is written front to back, with holes where memory is all zeros; so nothing is kept but the list of segments
//! and the notes. Changes that another process makes meanwhile, which shares the memory, may be in the dump or not.

mod notes;
mod output;

use alloc::sync::Arc;
use alloc::vec::Vec;

use heddle_kernel_core::core_dump::{
    DumpFacts, DumpedSegment, HEADER_BYTES, PAGE_BYTES, PROGRAM_HEADER_BYTES, Pieces, header, notes_header,
    segment_header,
};
use heddle_kernel_core::signal::{Information, Signal, SignalSet};
use heddle_kernel_core::signal_state::ExitStatus;
use linux_raw_sys::general as linux;

use crate::arch::paging::PAGE_SIZE;
use crate::arch::{ELF_MACHINE, UserContext};
use crate::error::Errno;
use crate::fs::{FileType, OpenFile};
use crate::memory::space::RemoteAccess;
use crate::memory::{Space, fallible};
use crate::process::{Resource, Thread, dump};
use crate::sched::Budget;
use crate::syscall::fs::names::remove;
use crate::syscall::fs::open::open_dump;
use crate::syscall::process::core_dump::notes::Notes;
use crate::syscall::process::core_dump::output::{Output, Written};
use crate::time::{Clock, NS_PER_SECOND};

/// Ends the process of a thread by a signal, and leaves a core dump if one can be written. The thread ends next.
pub async fn end_with_dump(thread: &Arc<Thread>, context: &UserContext, signal: Signal) {
    let process = &thread.process;
    let taken = process.signal_state().take(thread, SignalSet::of(&[signal]));
    let information = taken.unwrap_or(Information::lost(signal));
    // Boxed, because few threads come here; the thread's own coroutine stays small.
    let Ok(writing) = fallible::try_box(write(thread, context, information)) else {
        process.signal_state().begin_exit(ExitStatus::Signaled { signal, core: false });
        return;
    };
    let begun = process.signal_state().begin_dump(thread, signal);
    if begun.is_err() {
        // The process ends already, or another thread executes a program and this one ends.
        process.signal_state().begin_exit(ExitStatus::Signaled { signal, core: false });
        return;
    }
    let written = alloc::boxed::Box::into_pin(writing).await;
    if let Err(error) = &written {
        ::log::debug!("thread {}: no core dump: {error:?}", thread.tid());
    }
    process.signal_state().end_dump(thread, written.is_ok());
    process.wake_thread_watchers();
}

/// Writes the dump. `Err`: nothing of it was written.
async fn write(thread: &Arc<Thread>, context: &UserContext, information: Information) -> Result<(), Errno> {
    dump::wait_for_others(thread).await?;
    let open = open(thread, &information)?;
    let space = thread.space();
    let mut budget = Budget::new();
    let segments = segments(thread, &space, &mut budget).await?;
    let notes = Notes::collect(thread, context, &information, &space, &mut budget).await?;
    let mut output = Output::new(thread, open)?;
    // Whatever stops it from here on, what was written stays.
    let _ = write_all(&mut output, &segments, &notes, &space).await;
    Ok(())
}

/// Makes the file; one that is there gives way. It must come out as a file of the user's alone.
fn open(thread: &Arc<Thread>, information: &Information) -> Result<Arc<OpenFile>, Errno> {
    let (credentials, host, name) =
        (thread.credentials(), thread.namespaces().names.host_name(), thread.name());
    let program = thread.process.executable();
    let path = match program.as_ref().and_then(|program| program.place.as_ref()) {
        Some(place) => place.path(&thread.directories().root()).unwrap_or_default(),
        None => Vec::new(),
    };
    let file_name = dump::file_name(&DumpFacts {
        pid: thread.process.pid,
        tid: thread.tid(),
        uid: credentials.uid,
        gid: credentials.gid,
        signal: information.signal.number(),
        time: Clock::Realtime.now_ns() / NS_PER_SECOND,
        limit: thread.process.limit(Resource::Core).soft,
        host: before_zero(&host),
        name: before_zero(&name),
        path: &path,
    })?;
    // If there is none, or it stays, is seen next.
    let _ = remove(thread, linux::AT_FDCWD, &file_name, false);
    let open = open_dump(thread, &file_name)?;
    let metadata = open.metadata();
    let is_own = metadata.uid == credentials.fsuid && metadata.permissions & 0o677 == 0o600;
    let is_fit = metadata.kind == FileType::Regular && metadata.links == 1 && is_own;
    if is_fit { Ok(open) } else { Err(Errno::EPERM) }
}

fn before_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// The segments of the dump: all mappings, with how much of each is in the file.
async fn segments(
    thread: &Thread,
    space: &Space,
    budget: &mut Budget,
) -> Result<Pieces<DumpedSegment>, Errno> {
    let filter = thread.process.dump_filter();
    let mut segments = Pieces::default();
    let mut at = 0;
    while let Some(mapping) = space.mapping_at_or_above(at) {
        budget.step(1).await;
        let dumped = space.dumped_bytes(&mapping, filter, budget).await as u64;
        let (start, end) = (mapping.start as u64, mapping.end as u64);
        segments.push(&[DumpedSegment { start, end, dumped, protection: mapping.protection }])?;
        at = mapping.end;
    }
    Ok(segments)
}

async fn write_all(
    output: &mut Output,
    segments: &Pieces<DumpedSegment>,
    notes: &Notes,
    space: &Space,
) -> Written {
    // There are never so many mappings that the count has no place here.
    let count = u16::try_from(segments.len() + 1).map_err(|_| Errno::EFBIG)?;
    output.put(&header(ELF_MACHINE, count)).await?;
    let notes_at = (HEADER_BYTES + usize::from(count) * PROGRAM_HEADER_BYTES) as u64;
    output.put(&notes_header(notes_at, notes.size() as u64)).await?;
    let mut position = (notes_at + notes.size() as u64).next_multiple_of(PAGE_BYTES);
    for segment in segments.iter().flatten() {
        output.put(&segment_header(segment, position)).await?;
        position += segment.dumped;
    }
    notes.write(output).await?;
    output.skip_to_page();
    for segment in segments.iter().flatten() {
        let end = output.position() + segment.dumped;
        write_segment(output, segment, space).await?;
        output.skip_to(end);
    }
    output.finish().await
}

/// Writes the memory of a segment. Pages that are not there are holes.
async fn write_segment(output: &mut Output, segment: &DumpedSegment, space: &Space) -> Written {
    let first = output.position();
    let (start, end) = (segment.start as usize, (segment.start + segment.dumped) as usize);
    let mut page = fallible::try_filled(0_u8, PAGE_SIZE)?;
    let mut at = start;
    while at < end {
        let Some(mapping) = space.mapping_at_or_above(at).filter(|mapping| mapping.start < end) else {
            break;
        };
        at = space.skip_untouched(&mapping, at.max(mapping.start)).await?;
        if at >= end {
            break;
        }
        output.skip_to(first + (at - start) as u64);
        let found =
            at < mapping.end && space.read_remote(at, &mut page, RemoteAccess::Forced, || true).await.is_ok();
        if found && page.iter().any(|&byte| byte != 0) {
            output.put(&page).await?;
        } else {
            output.pace().await?;
        }
        at = if at < mapping.end { at + PAGE_SIZE } else { at };
    }
    Ok(())
}
