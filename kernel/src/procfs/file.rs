//! Reading and writing the files of `/proc`.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::arch::cpu;
use crate::error::{Errno, TryResult};
use crate::fs::inode::{Inode, Metadata};
use crate::fs::mount::{self, MountSet};
use crate::fs::{File, IoBuffer, OpenFile};
use crate::memory::fallible;
use crate::process::keys::{KeyCaller, KeyViewer};
use crate::process::namespaces::Namespaces;
use crate::process::{Credentials, Thread};
use crate::procfs::usage::Sum;
use crate::procfs::{ProcNode, Text, What};
use crate::sync::SpinLock;
use crate::wait::queue::{Events, Watch};

/// The most bytes that a write to such a file takes.
const WRITE_LIMIT: usize = 4096;

/// An open file, with the text that it showed when it was last read from the start.
struct ProcFile {
    node: Arc<ProcNode>,
    /// The thread that opened it; none if the kernel did.
    opener: Option<Arc<Credentials>>,
    /// Its namespaces, for a file about them.
    namespaces: Option<Arc<Namespaces>>,
    /// Its view on keys, for a file about them.
    keys: Option<KeyViewer>,
    /// The writer and its CPU, from the beginning of an attempt on, for a file where the writer's rights count.
    writer: SpinLock<Option<(usize, Arc<Thread>)>>,
    /// The mounts of the process, for a list of them, and how many changes its poller has been told of.
    mounts: Option<(Arc<MountSet>, AtomicU64)>,
    shown: SpinLock<Option<Shown>>,
}

/// A part of what a file shows; most have only one.
struct Shown {
    text: Vec<u8>,
    /// Where in the file it begins.
    offset: u64,
    /// The position of the next part; `None` after the last.
    next: Option<u64>,
    /// The sums of the parts so far.
    sum: Sum,
    /// The read that made it has not come to its offset, and goes on with it.
    is_unfinished: bool,
}

impl ProcFile {
    /// Whoever the file shows numbers to.
    fn viewer(&self) -> &Credentials {
        const KERNEL: &Credentials = &Credentials::ROOT;
        self.opener.as_deref().unwrap_or(KERNEL)
    }

    /// The thread whose write this is. An attempt keeps its CPU; of two that write at once one is refused.
    fn take_writer(&self) -> Result<Arc<Thread>, Errno> {
        let writer = self.writer.lock().take().filter(|(cpu, _)| *cpu == cpu::id());
        writer.map(|(_, writer)| writer).ok_or(Errno::EPERM)
    }

    /// The part that follows `before`, or the first.
    fn part(&self, before: Option<Shown>) -> Result<Shown, Errno> {
        let (from, offset, mut sum) = before.map_or((0, 0, Sum::default()), |before| {
            (before.next.unwrap_or(0), before.offset + before.text.len() as u64, before.sum)
        });
        let mut text = Text::new();
        let subject = &self.node.subject;
        let next = match self.node.item.what {
            What::Text(show)
            | What::Writable(show, _)
            | What::Controlled(show, _)
            | What::WritableByThread(show, _) => show(subject, &mut text).map(|()| None)?,
            What::Own(show) | What::WritableOwn(show, _) => match &self.namespaces {
                Some(namespaces) => show(namespaces, self.viewer(), &mut text).map(|()| None)?,
                None => None,
            },
            What::Viewed(show) => match &self.namespaces {
                Some(namespaces) => show(subject, namespaces, &mut text).map(|()| None)?,
                None => None,
            },
            What::Keys(show) => match &self.keys {
                Some(viewer) => show(viewer, &mut text, from)?,
                None => None,
            },
            What::Seen(show) | What::WritableSeen(show, _) | What::WritableMap(show, _) => {
                show(subject, self.viewer(), &mut text).map(|()| None)?
            }
            What::Parts(show) | What::Mounts(show) => show(subject, &mut text, from)?,
            What::Sums(show) => show(subject, &mut text, &mut sum)?.then_some(0),
            _ => return Err(Errno::EISDIR),
        };
        Ok(Shown { text: text.into_bytes(), offset, next, sum, is_unfinished: false })
    }
}

pub(super) fn open(node: Arc<ProcNode>, thread: Option<&Arc<Thread>>) -> Result<Arc<dyn File>, Errno> {
    let is_own = matches!(node.item.what, What::Own(_) | What::Viewed(_) | What::WritableOwn(..));
    let namespaces = thread.filter(|_| is_own).map(|thread| thread.namespaces());
    let sees_keys = matches!(node.item.what, What::Keys(_));
    let keys = thread.filter(|_| sees_keys).map(|thread| KeyCaller::new(thread).viewer());
    let opener = thread.map(|thread| thread.credentials());
    let is_list = matches!(node.item.what, What::Mounts(_));
    let mounts = if is_list { node.subject.thread().ok() } else { None };
    let mounts = mounts.map(|thread| {
        let set = thread.namespaces().mounts.set().clone();
        let seen = AtomicU64::new(set.changes());
        (set, seen)
    });
    let (writer, shown) = (SpinLock::new(None), SpinLock::new(None));
    Ok(fallible::try_arc(ProcFile { node, opener, namespaces, keys, writer, mounts, shown })?)
}

impl File for ProcFile {
    fn before_transfer(&self, thread: &Arc<Thread>, events: Events) -> Result<(), Errno> {
        if events.contains(Events::OUT)
            && matches!(self.node.item.what, What::WritableMap(..) | What::WritableByThread(..))
        {
            let before = self.writer.lock().replace((cpu::id(), thread.clone()));
            drop(before);
        }
        Ok(())
    }

    fn read(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> TryResult<usize> {
        // Taken out, so that no text is made under the lock. A reader that shares the open file begins anew meanwhile.
        let kept = self.shown.lock().take();
        // A reader that starts again sees the present state; one that continues sees the rest of what it began.
        let mut shown = match kept {
            Some(shown) if (shown.is_unfinished || offset > 0) && offset >= shown.offset => shown,
            before => {
                drop(before);
                self.part(None)?
            }
        };
        // One part at a time: the next attempt goes on with the next.
        let is_behind =
            |shown: &Shown| shown.next.is_some() && offset >= shown.offset + shown.text.len() as u64;
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
            return Err(Errno::EINVAL.into());
        }
        let mut bytes = fallible::try_filled(0, length)?;
        let start = buffer.mark();
        buffer.copy_in(&mut bytes)?;
        let stored = match (&self.node.item.what, &self.opener) {
            (What::Writable(_, store), _) => store(&self.node.subject, &bytes),
            (What::Controlled(_, store) | What::WritableSeen(_, store), Some(opener)) => {
                store(&self.node.subject, opener, &bytes)
            }
            (What::WritableMap(_, store), Some(opener)) => {
                let writer = self.take_writer();
                writer.and_then(|writer| store(&self.node.subject, opener, &writer.credentials(), &bytes))
            }
            (What::WritableByThread(_, store), _) => {
                self.take_writer().and_then(|writer| store(&self.node.subject, &writer, &bytes))
            }
            (What::WritableOwn(_, store), _) => {
                self.namespaces.as_ref().ok_or(Errno::EIO).and_then(|namespaces| store(namespaces, &bytes))
            }
            _ => Err(Errno::EIO),
        };
        if let Err(error) = stored {
            // A write that was refused wrote nothing, not even in part.
            buffer.rewind(start);
            return Err(error.into());
        }
        Ok(length)
    }

    fn poll(&self, _: &OpenFile, watch: Option<&Watch>, events: Events) -> Result<Events, Errno> {
        let mut ready = Events::IN | Events::RDNORM;
        let Some((set, seen)) = &self.mounts else { return Ok(ready | Events::OUT | Events::WRNORM) };
        if let Some(watch) = watch {
            mount::watch_changes(watch, events)?;
        }
        // Each change is told once, as in Linux.
        let changes = set.changes();
        ready.set(Events::PRI | Events::ERR, seen.swap(changes, Ordering::Relaxed) != changes);
        Ok(ready)
    }

    fn is_pollable(&self) -> bool {
        self.node.is_pollable()
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
}
