//! Open file descriptions.

use alloc::sync::Arc;
use bitflags::bitflags;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::{File, FileType, Metadata, Path, notify};
use crate::process::io_signal::ReadyNotice;
use crate::sched::detour::{DetourGuard, DetourLock, ProgramWait};
use crate::sync::SpinLock;

bitflags! {
    /// Access mode and status flags of an open file description, with the bits of open(2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct StatusFlags: u32 {
        /// Only writable; with neither this nor `RDWR`, only readable.
        const WRONLY = linux::O_WRONLY;
        /// Readable and writable.
        const RDWR = linux::O_RDWR;
        /// Every write goes to the end.
        const APPEND = linux::O_APPEND;
        /// Nothing waits.
        const NONBLOCK = linux::O_NONBLOCK;
        /// A place in the file system only: neither readable nor writable.
        const PATH = linux::O_PATH;
        /// Accepted and without effect where there is no device behind: see open(2).
        const DIRECT = linux::O_DIRECT;
        /// Large offsets: on in whatever was opened by its path, and told, but without a meaning.
        const LARGEFILE = linux::O_LARGEFILE;
        /// Access times stay.
        const NOATIME = linux::O_NOATIME;
        /// A directory was asked for.
        const DIRECTORY = linux::O_DIRECTORY;
        /// Opened to be run: nobody may write to it meanwhile. A bit that no flag of open(2) has.
        const EXECUTE = 0x20;
        const _ = !0;
    }
}

/// An open file description: what `dup` and `fork` share.
pub struct OpenFile {
    /// The object.
    pub file: Arc<dyn File>,
    /// Where it was opened; nothing for what is in no file system.
    pub place: Option<Path>,
    flags: AtomicU32,
    /// The position of the next `read` or `write`, in bytes.
    pub offset: SpinLock<u64>,
    /// Held by whoever moves `offset` and may have to wait for the file's answer: see [`OpenFile::move_alone`].
    alone: DetourLock,
    id: u64,
    /// The signals that say when it is ready, once a program has asked for any.
    notice: spin::Once<Arc<ReadyNotice>>,
    /// Whether a program opened it, so that its closing is to be reported.
    is_reported: AtomicBool,
    /// Whether nothing at all is to be reported.
    is_silent: AtomicBool,
    /// Whether it counts as one that is written through its mount.
    holds_mount: bool,
}

impl From<ProgramWait> for Errno {
    fn from(end: ProgramWait) -> Self {
        match end {
            ProgramWait::Killed => Self::EINTR,
            ProgramWait::NoStack | ProgramWait::Over => Self::ENOMEM,
        }
    }
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl OpenFile {
    /// Opens an object at offset 0.
    #[must_use]
    pub fn new(file: Arc<dyn File>, flags: StatusFlags) -> Self {
        Self::with_place(file, flags, None)
    }

    /// Opens an object that is at a place.
    #[must_use]
    pub fn at(file: Arc<dyn File>, flags: StatusFlags, place: Path) -> Self {
        Self::with_place(file, flags, Some(place))
    }

    fn with_place(file: Arc<dyn File>, flags: StatusFlags, place: Option<Path>) -> Self {
        let writes =
            !flags.contains(StatusFlags::PATH) && flags.intersects(StatusFlags::WRONLY | StatusFlags::RDWR);
        let holds_mount = match &place {
            Some(place) if writes && place.entry.node.kind() == FileType::Regular => {
                place.mount.begin_writing();
                true
            }
            _ => false,
        };
        Self {
            file,
            place,
            flags: AtomicU32::new(flags.bits()),
            offset: SpinLock::new(0),
            alone: DetourLock::new(),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            notice: spin::Once::new(),
            is_reported: AtomicBool::new(false),
            is_silent: AtomicBool::new(false),
            holds_mount,
        }
    }

    /// Has `operate` move bytes at the offset, and moves that by as many as it says, while nobody else does. For files
    /// that may wait for their answer, so no spinlock is held meanwhile; files with ranges of their own do not.
    ///
    /// # Errors
    /// `EINTR`: the thread was killed while it waited for others; `ENOMEM`: nor could it wait.
    pub fn move_alone<R>(&self, appends: bool, operate: impl FnOnce(u64) -> (R, usize)) -> Result<R, Errno> {
        let _alone = self.wait_alone()?;
        let offset = *self.offset.lock();
        let (result, moved) = operate(offset);
        if moved > 0 {
            let end = if appends { self.file.size() } else { None };
            *self.offset.lock() = end.unwrap_or(offset + moved as u64);
        }
        Ok(result)
    }

    /// Keeps others from [`OpenFile::move_alone`], where the file is one of those.
    ///
    /// # Errors
    /// `EINTR`: the thread was killed while it waited for others; `ENOMEM`: nor could it wait.
    pub fn lock_alone(&self) -> Result<Option<DetourGuard<'_>>, Errno> {
        if self.file.ranges().is_some() {
            return Ok(None);
        }
        self.wait_alone().map(Some)
    }

    /// Waits for `alone`. Whoever holds it waits for the host, or for a program that may never answer.
    fn wait_alone(&self) -> Result<DetourGuard<'_>, Errno> {
        if self.file.is_served() {
            return Ok(self.alone.lock_beside_programs()?);
        }
        self.alone.lock_killably().ok_or(Errno::EINTR)
    }

    /// A number that no other open file description ever has.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// The signals that say when it is ready, if there are any.
    pub fn notice(&self) -> Option<&Arc<ReadyNotice>> {
        self.notice.get()
    }

    /// As [`OpenFile::notice`]; makes what is not there yet.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn make_notice(&self) -> Result<Arc<ReadyNotice>, Errno> {
        self.notice.try_call_once(ReadyNotice::new).cloned()
    }

    /// Access mode and status flags.
    #[must_use]
    pub fn flags(&self) -> StatusFlags {
        StatusFlags::from_bits_retain(self.flags.load(Ordering::Relaxed))
    }

    /// Replaces the flags that `F_SETFL` may change.
    pub fn set_flags(&self, flags: StatusFlags) {
        self.flags.store(flags.bits(), Ordering::Relaxed);
    }

    /// Whether `read` is allowed.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        !self.flags().intersects(StatusFlags::WRONLY | StatusFlags::PATH)
    }

    /// Whether `write` is allowed.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        let flags = self.flags();
        flags.intersects(StatusFlags::WRONLY | StatusFlags::RDWR) && !flags.contains(StatusFlags::PATH)
    }

    /// Whether it is open to be written although its mount has become read-only meanwhile.
    #[must_use]
    pub fn came_too_late(&self) -> bool {
        self.holds_mount && self.place.as_ref().is_some_and(|place| place.mount.is_read_only())
    }

    /// A process has closed a descriptor of the file: a program that serves it hears so, and what the process holds on
    /// it goes. Waits for that program, without a spinlock.
    ///
    /// # Errors
    /// The program's, which close(2) returns.
    pub fn closed_by(&self, pid: i32) -> Result<(), Errno> {
        let flushed = if self.file.lingers() { self.file.flush() } else { Ok(()) };
        self.release_locks(pid);
        flushed
    }

    /// Takes away what a process holds on the file, since it has closed a descriptor of it: byte-range locks, and the
    /// wish to hear of a message queue.
    pub fn release_locks(&self, pid: i32) {
        let Some(place) = &self.place else { return };
        if self.notice.get().is_some() && !notify::is_idle() {
            notify::forget_directory(self, Some(pid));
        }
        if let Ok(Some(locks)) = place.entry.node.locks(false) {
            locks.release_process(pid);
            return;
        }
        place.entry.node.closed_by(pid);
    }

    /// Reports an `IN_` event of the file to inotify(7).
    #[inline]
    pub fn report(&self, event: u32) {
        if notify::is_idle() {
            return;
        }
        if let Some(place) = &self.place
            && self.is_told()
        {
            notify::report_at(place, event);
        }
    }

    /// Whether what is done by it is reported.
    #[must_use]
    pub fn is_told(&self) -> bool {
        !self.is_silent.load(Ordering::Relaxed) && !self.flags().contains(StatusFlags::PATH)
    }

    /// Has nothing reported of what is done by it: a reader of fanotify(7) looks at the file with it.
    pub fn keep_silent(&self) {
        self.is_silent.store(true, Ordering::Relaxed);
    }

    /// Reports that a program opened the file, and later its closing.
    pub fn report_opening(&self) {
        if !self.flags().contains(StatusFlags::PATH) {
            self.is_reported.store(true, Ordering::Relaxed);
            self.report(linux::IN_OPEN);
        }
    }

    /// The type of the file.
    #[must_use]
    pub fn kind(&self) -> FileType {
        match &self.place {
            Some(place) => place.entry.node.kind(),
            None => self.file.metadata().kind,
        }
    }

    /// The attributes for a permission check.
    #[must_use]
    pub fn access(&self) -> Metadata {
        match &self.place {
            Some(place) => place.entry.node.access(),
            None => self.file.metadata(),
        }
    }

    /// The result of `fstat`.
    ///
    /// # Errors
    /// As [`Inode::metadata_now`](crate::fs::Inode::metadata_now).
    pub fn metadata_now(&self) -> Result<Metadata, Errno> {
        match &self.place {
            Some(place) => place.entry.node.metadata_now(),
            None => Ok(self.file.metadata()),
        }
    }

    /// The same, or what was known last.
    #[must_use]
    pub fn metadata(&self) -> Metadata {
        match &self.place {
            Some(place) => place.entry.node.metadata(),
            None => self.file.metadata(),
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if *self.is_reported.get_mut() {
            let written = self.is_writable();
            self.report(if written { linux::IN_CLOSE_WRITE } else { linux::IN_CLOSE_NOWRITE });
        }
        if let Some(notice) = self.notice.get() {
            notice.stop();
            if !notify::is_idle() {
                notify::forget_directory(self, None);
            }
        }
        self.file.released(self);
        if self.holds_mount
            && let Some(place) = &self.place
        {
            place.mount.end_writing();
        }
    }
}
