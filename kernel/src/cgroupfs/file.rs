//! Reading and writing the files of groups.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::arch::cpu;
use crate::cgroupfs::GroupNode;
use crate::cgroupfs::table::GroupFile;
use crate::error::{Errno, TryResult};
use crate::fs::inode::{Inode, InodeChange, Metadata, Opening};
use crate::fs::{File, FileType, IoBuffer, OpenFile};
use crate::memory::fallible;
use crate::process::control_group::ControlGroup;
use crate::process::{Credentials, Process, Thread};
use crate::procfs::text::Text;
use crate::sync::SpinLock;
use crate::wait::queue::{Events, Watch};

/// The most bytes that a write takes.
const WRITE_LIMIT: usize = 4096;

/// A part of what a file shows. Most files have only one; lists are made part by part.
#[derive(Default)]
pub(super) struct ShownPart {
    text: Vec<u8>,
    /// Where in the file it begins.
    offset: u64,
    /// Where the next part begins; `None` after the last.
    next: Option<u64>,
    /// Sums over the parts so far.
    sums: [u64; 2],
    /// The read that made it has not come to its offset, and goes on with it.
    is_unfinished: bool,
}

/// A request for a part of what a file shows.
pub(super) struct Showing<'a> {
    pub group: &'a Arc<ControlGroup>,
    /// The process that opened the file, whose numbers are shown.
    pub viewer: Option<&'a Process>,
    pub text: Text,
    /// Where this part begins, 0 for the first.
    pub from: u64,
    pub sums: [u64; 2],
}

/// Something that a write does to each process of a group, some at a time.
#[derive(Clone, Copy, Default)]
pub(super) struct Walk {
    /// The smallest number that has not been looked at.
    pub next: i32,
    /// It is under way.
    pub has_begun: bool,
    /// A process was found in this round to which it had to be done.
    pub has_found: bool,
}

/// A write.
pub(super) struct Writing<'a> {
    pub group: &'a Arc<ControlGroup>,
    pub text: &'a str,
    /// Whoever opened the file.
    pub opener: &'a Credentials,
    /// The process that writes.
    pub writer: &'a Arc<Process>,
    pub walk: &'a mut Walk,
}

/// How far a write has come.
#[derive(PartialEq, Eq)]
pub(super) enum WriteProgress {
    Done,
    /// It goes on when others have had a turn.
    More,
}

/// The writer of an attempt, which keeps its CPU.
struct Writer {
    cpu: usize,
    process: Arc<Process>,
}

/// An open file.
struct OpenGroupFile {
    node: Arc<GroupNode>,
    opener: Option<Arc<Credentials>>,
    viewer: Option<Arc<Process>>,
    writer: SpinLock<Option<Writer>>,
    walk: SpinLock<Walk>,
    shown: SpinLock<Option<ShownPart>>,
    /// How many changes whoever polls has seen.
    seen: AtomicU64,
}

pub(super) fn open(node: Arc<GroupNode>, opening: &Opening<'_>) -> Result<Arc<dyn File>, Errno> {
    let opener = opening.thread.map(|thread| thread.credentials());
    let viewer = opening.thread.map(|thread| thread.process.clone());
    let seen = AtomicU64::new(node.changes());
    let (writer, shown) = (SpinLock::new(None), SpinLock::new(None));
    let walk = SpinLock::new(Walk::default());
    Ok(fallible::try_arc(OpenGroupFile { node, opener, viewer, writer, walk, shown, seen })?)
}

impl GroupNode {
    fn changes(&self) -> u64 {
        let event = self.file.and_then(|file| file.event);
        event.map_or(0, |event| event(&self.group).changes())
    }
}

impl OpenGroupFile {
    /// Checks whether the group is there, and has the controller of the file.
    fn check_file(&self, file: &GroupFile) -> Result<(), Errno> {
        let group = &self.node.group;
        let is_there = !group.is_removed() && group.controllers().contains(file.controller);
        if is_there { Ok(()) } else { Err(Errno::ENODEV) }
    }

    /// The part that follows `before`, or the first.
    fn part(&self, before: Option<ShownPart>) -> Result<ShownPart, Errno> {
        let file = self.node.file.ok_or(Errno::EISDIR)?;
        let show = file.show.ok_or(Errno::EINVAL)?;
        self.check_file(file)?;
        let before = before.unwrap_or_default();
        let mut showing = Showing {
            group: &self.node.group,
            viewer: self.viewer.as_deref(),
            text: Text::new(),
            from: before.next.unwrap_or(0),
            sums: before.sums,
        };
        let next = show(&mut showing)?;
        let offset = before.offset + before.text.len() as u64;
        let (text, sums) = (showing.text.into_bytes(), showing.sums);
        Ok(ShownPart { text, offset, next, sums, is_unfinished: false })
    }
}

impl File for OpenGroupFile {
    fn before_transfer(&self, thread: &Arc<Thread>, events: Events) -> Result<(), Errno> {
        if events.contains(Events::OUT) {
            let writer = Writer { cpu: cpu::id(), process: thread.process.clone() };
            let before = self.writer.lock().replace(writer);
            drop(before);
        }
        Ok(())
    }

    fn read(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> TryResult<usize> {
        if self.node.kind() == FileType::Directory {
            return Err(Errno::EISDIR.into());
        }
        // Taken out, so that no text is made under the lock.
        let kept = self.shown.lock().take();
        let mut shown = match kept {
            Some(shown) if (shown.is_unfinished || offset > 0) && offset >= shown.offset => shown,
            before => {
                drop(before);
                self.seen.store(self.node.changes(), Ordering::Relaxed);
                self.part(None)?
            }
        };
        let is_behind =
            |shown: &ShownPart| shown.next.is_some() && offset >= shown.offset + shown.text.len() as u64;
        if is_behind(&shown) {
            shown = self.part(Some(shown))?;
        }
        shown.is_unfinished = is_behind(&shown);
        let result = if shown.is_unfinished {
            buffer.set_unfinished();
            Ok(0)
        } else {
            let from = usize::try_from(offset - shown.offset).unwrap_or(usize::MAX).min(shown.text.len());
            buffer.copy_out(&shown.text[from..])
        };
        let other = self.shown.lock().replace(shown);
        drop(other);
        Ok(result?)
    }

    fn write(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        let length = buffer.remaining();
        if length > WRITE_LIMIT {
            return Err(Errno::E2BIG.into());
        }
        let mut bytes = fallible::try_filled(0, length)?;
        let start = buffer.mark();
        buffer.copy_in(&mut bytes)?;
        // Of two that write at once through one open file one is refused.
        let writer = self.writer.lock().take().filter(|writer| writer.cpu == cpu::id());
        let result = writer.ok_or(Errno::EBUSY).and_then(|writer| self.store(&bytes, &writer.process));
        match result {
            Ok(WriteProgress::Done) => Ok(length),
            Ok(WriteProgress::More) => {
                buffer.rewind(start);
                buffer.set_unfinished();
                Ok(0)
            }
            Err(error) => {
                buffer.rewind(start);
                Err(error.into())
            }
        }
    }

    fn writes_once(&self) -> bool {
        true
    }

    fn poll(&self, _: &OpenFile, watch: Option<&Watch>, events: Events) -> Result<Events, Errno> {
        let mut ready = Events::IN | Events::RDNORM | Events::OUT | Events::WRNORM;
        let Some(event) = self.node.file.and_then(|file| file.event) else { return Ok(ready) };
        let event = event(&self.node.group);
        if let Some(watch) = watch {
            event.queue.watch(watch, events)?;
        }
        ready.set(Events::PRI | Events::ERR, self.seen.load(Ordering::Relaxed) != event.changes());
        Ok(ready)
    }

    fn truncate(&self, _: u64) -> Result<bool, Errno> {
        Ok(true)
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn metadata(&self) -> Metadata {
        self.node.metadata()
    }

    fn change(&self, change: &InodeChange) -> Result<(), Errno> {
        self.node.change(change)
    }
}

impl OpenGroupFile {
    fn store(&self, bytes: &[u8], writer: &Arc<Process>) -> Result<WriteProgress, Errno> {
        const KERNEL: &Credentials = &Credentials::ROOT;
        let file = self.node.file.ok_or(Errno::EINVAL)?;
        let store = file.store.ok_or(Errno::EINVAL)?;
        self.check_file(file)?;
        let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
        let mut walk = *self.walk.lock();
        let progress = store(Writing {
            group: &self.node.group,
            text: text.trim_matches(|letter: char| letter.is_ascii_whitespace() || letter == '\0'),
            opener: self.opener.as_deref().unwrap_or(KERNEL),
            writer,
            walk: &mut walk,
        });
        *self.walk.lock() = if matches!(progress, Ok(WriteProgress::More)) { walk } else { Walk::default() };
        progress
    }
}
