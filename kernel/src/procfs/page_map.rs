//! `/proc/PID/pagemap`: a word for each page of a program.

use alloc::sync::{Arc, Weak};

use linux_raw_sys::general as linux;

use crate::arch::paging::{PAGE_SIZE, USER_END};
use crate::error::{Errno, TryResult};
use crate::fs::inode::{Inode, Metadata};
use crate::fs::{File, IoBuffer, OpenFile};
use crate::memory::space::{PAGES_AT_ONCE, PageState};
use crate::memory::{Space, fallible};
use crate::process::Thread;
use crate::procfs::ProcNode;

const ENTRY_BYTES: usize = 8;
/// The most entries that an attempt shows.
const ATTEMPT_ENTRIES: usize = 512;

/// Since nothing resets them, all pages have been written to since the mark that this bit is about.
const SOFT_DIRTY: u64 = 1 << 55;
const EXCLUSIVE: u64 = 1 << 56;
const OF_OBJECT: u64 = 1 << 61;
const PRESENT: u64 = 1 << 63;

/// An open file. It shows the memory that the process had when it was opened, until that is gone.
struct PageMapFile {
    node: Arc<ProcNode>,
    space: Weak<Space>,
    /// Whether whoever opened it may know the frames.
    shows_frames: bool,
}

pub(super) fn open(node: Arc<ProcNode>, opener: Option<&Arc<Thread>>) -> Result<Arc<dyn File>, Errno> {
    let space = Arc::downgrade(&node.subject.thread().map_err(|_| Errno::EACCES)?.space());
    let shows_frames = opener.is_none_or(|opener| opener.credentials().is_capable(linux::CAP_SYS_ADMIN));
    Ok(fallible::try_arc(PageMapFile { node, space, shows_frames })?)
}

impl PageMapFile {
    fn entry(&self, state: &PageState) -> u64 {
        let when = |is_set: bool, bit| if is_set { bit } else { 0 };
        let frame = state.frame.filter(|_| self.shows_frames).unwrap_or(0);
        frame
            | when(state.is_mapped, SOFT_DIRTY)
            | when(state.is_exclusive, EXCLUSIVE)
            | when(state.is_of_object, OF_OBJECT)
            | when(state.frame.is_some(), PRESENT)
    }
}

impl File for PageMapFile {
    fn is_pollable(&self) -> bool {
        false
    }

    fn read(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> TryResult<usize> {
        let Some(space) = self.space.upgrade().filter(|space| space.thread_count() > 0) else { return Ok(0) };
        let is_whole = offset.is_multiple_of(ENTRY_BYTES as u64);
        if !is_whole || !buffer.remaining().is_multiple_of(ENTRY_BYTES) {
            return Err(Errno::EINVAL.into());
        }
        let first = usize::try_from(offset).map_err(|_| Errno::EINVAL)? / ENTRY_BYTES;
        let left = (USER_END / PAGE_SIZE).saturating_sub(first);
        let wanted = (buffer.remaining() / ENTRY_BYTES).min(ATTEMPT_ENTRIES).min(left);
        let mut shown = 0;
        while shown < wanted {
            let mut states = [PageState::default(); PAGES_AT_ONCE];
            let states = &mut states[..PAGES_AT_ONCE.min(wanted - shown)];
            match space.try_page_states((first + shown) * PAGE_SIZE, states) {
                Err(_) if shown > 0 => break,
                result => result?,
            }
            for state in &*states {
                let before = buffer.mark();
                // An entry is shown whole or not at all.
                buffer.copy_out(&self.entry(state).to_ne_bytes()).inspect_err(|_| buffer.rewind(before))?;
                shown += 1;
            }
        }
        Ok(shown * ENTRY_BYTES)
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn metadata(&self) -> Metadata {
        self.node.metadata()
    }
}
