//! Leases of files, `F_SETLEASE` of fcntl(2): who holds one, and the wait of whoever opens the file otherwise.
//!
//! Opening comes first and looks for leases then; setting a lease looks for openings once the lease is there. So of
//! two that happen at once at least one sees the other; the counts and [`LEASES`] are sequentially consistent for that.
//! While there are no leases anywhere, an opening pays one load.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use heddle_kernel_core::lease::{LeaseKind, Leases, Refused};
use linux_raw_sys::general as linux;

use crate::arch::time::now_ns;
use crate::error::Errno;
use crate::fs::{OpenFile, StatusFlags};
use crate::memory::fallible;
use crate::process::io_signal::ReadyNotice;
use crate::sched::Budget;
use crate::sync::SpinLock;
use crate::wait::engine;
use crate::wait::node::{WaitKind, Waiter};
use crate::wait::operation::pace;
use crate::wait::queue::{Events, WaitQueue};

/// How many leases there are.
static LEASES: AtomicUsize = AtomicUsize::new(0);
/// How long the holder of a lease that is broken may keep it, in seconds: `/proc/sys/fs/lease-break-time`. 0 is for
/// ever.
pub static BREAK_SECONDS: AtomicU32 = AtomicU32::new(45);
/// Whether new leases are given: `/proc/sys/fs/leases-enable`.
pub static ENABLED: AtomicU32 = AtomicU32::new(1);

/// The cost of telling a holder, in units of a [`Budget`].
const TELL_COST: u32 = 8;

/// The band of a signal that says `POLL_MSG`.
pub const MESSAGE_BAND: u32 = linux::EPOLLIN | linux::EPOLLRDNORM | linux::EPOLLMSG;

/// Whether there are no leases at all.
#[inline]
#[must_use]
pub fn is_idle() -> bool {
    LEASES.load(Ordering::SeqCst) == 0
}

/// The leases on one file.
pub struct FileLeases {
    leases: SpinLock<Leases<Arc<ReadyNotice>>>,
    /// Woken when a lease goes or becomes less.
    lessened: WaitQueue,
}

impl FileLeases {
    /// None.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new() -> Result<Arc<Self>, Errno> {
        fallible::try_arc(Self { leases: SpinLock::new(Leases::new()), lessened: WaitQueue::new() })
    }

    /// The open file's lease went.
    fn ended(&self, notice: &ReadyNotice) {
        LEASES.fetch_sub(1, Ordering::SeqCst);
        notice.forget_owner();
        self.lessened.wake(Events::IN);
    }

    /// Lets go what has expired.
    fn expire(&self) {
        let mut leases = self.leases.lock();
        if leases.next_expiry_ns().is_none_or(|moment| moment > now_ns()) {
            return;
        }
        loop {
            let gone = leases.expire_one(now_ns());
            drop(leases);
            let Some(notice) = gone else { break };
            self.ended(&notice);
            leases = self.leases.lock();
        }
        self.lessened.wake(Events::IN);
    }

    /// The lease of an open file, or what it is to become.
    pub fn of(&self, open: &OpenFile) -> Option<LeaseKind> {
        self.expire();
        self.leases.lock().of(open.id())
    }

    /// Gives an open file a lease, or another, and calls `claim` before anybody can break it.
    ///
    /// # Errors
    /// `EAGAIN` (the file is in use, or other leases are in the way), `EINVAL` (no more are given), `ENOLCK`,
    /// `ENOMEM`.
    pub fn set(
        &self,
        open: &OpenFile,
        kind: LeaseKind,
        notice: &Arc<ReadyNotice>,
        claim: impl FnOnce(),
    ) -> Result<(), Errno> {
        self.expire();
        let node = &open.place.as_ref().ok_or(Errno::EINVAL)?.entry.node;
        let is_used = || node.openers().conflict(kind, open.is_writable());
        if is_used() {
            return Err(Errno::EAGAIN);
        }
        let mut leases = self.leases.lock();
        let is_new = leases.set(open.id(), kind, notice.clone()).map_err(|refused| match refused {
            Refused::Conflict => Errno::EAGAIN,
            Refused::TooMany => Errno::ENOLCK,
            Refused::OutOfMemory => Errno::ENOMEM,
        })?;
        if is_new {
            LEASES.fetch_add(1, Ordering::SeqCst);
            let refused = if ENABLED.load(Ordering::Relaxed) == 0 {
                Some(Errno::EINVAL)
            } else {
                is_used().then_some(Errno::EAGAIN)
            };
            if let Some(error) = refused {
                let removed = leases.remove(open.id());
                LEASES.fetch_sub(1, Ordering::SeqCst);
                drop(leases);
                drop(removed);
                self.lessened.wake(Events::IN);
                return Err(error);
            }
        }
        claim();
        drop(leases);
        self.lessened.wake(Events::IN);
        Ok(())
    }

    /// Takes an open file's lease away; whether it had one.
    pub fn remove(&self, open: &OpenFile) -> bool {
        let removed = self.leases.lock().remove(open.id());
        if let Some(notice) = &removed {
            self.ended(notice);
        }
        removed.is_some()
    }

    fn conflict(&self, writes: bool) -> bool {
        self.expire();
        self.leases.lock().conflict(writes)
    }

    /// Breaks a lease that is in the way; whether there was one that had not been broken before.
    fn break_one(&self, writes: bool) -> bool {
        let seconds = u64::from(BREAK_SECONDS.load(Ordering::Relaxed));
        let until_ns = if seconds == 0 { u64::MAX } else { now_ns().saturating_add(seconds * 1_000_000_000) };
        let broken = self.leases.lock().break_one(writes, until_ns).cloned();
        if let Some(notice) = &broken {
            notice.tell_message(MESSAGE_BAND);
        }
        broken.is_some()
    }
}

/// An opening that leases are in the way of.
pub struct LeaseBreak {
    /// The file, which counts as open already.
    open: Arc<OpenFile>,
    writes: bool,
    no_wait: bool,
}

impl LeaseBreak {
    /// Looks for leases in the way of a file that has just been opened.
    #[inline]
    #[must_use]
    pub fn find(open: &Arc<OpenFile>) -> Option<Self> {
        if open.place.is_none() || is_idle() { None } else { Self::look(open) }
    }

    #[cold]
    fn look(open: &Arc<OpenFile>) -> Option<Self> {
        let flags = open.flags();
        let writes = flags.intersects(StatusFlags::WRONLY | StatusFlags::RDWR);
        let found = Self { open: open.clone(), writes, no_wait: flags.contains(StatusFlags::NONBLOCK) };
        let is_blocked = found.leases().is_some_and(|leases| leases.conflict(writes));
        is_blocked.then_some(found)
    }

    fn leases(&self) -> Option<&FileLeases> {
        self.open.place.as_ref()?.entry.node.leases(false).ok()?
    }

    /// Tells the holders, and waits until nothing is in the way.
    ///
    /// # Errors
    /// `EWOULDBLOCK` (an opening that does not wait), `ERESTARTSYS`.
    pub async fn wait(self, waiter: &impl Waiter) -> Result<(), Errno> {
        let Some(leases) = self.leases() else { return Ok(()) };
        let mut budget = Budget::new();
        loop {
            while leases.break_one(self.writes) {
                pace(waiter, &mut budget, TELL_COST).await?;
            }
            if !leases.conflict(self.writes) {
                return Ok(());
            }
            if self.no_wait {
                return Err(Errno::EAGAIN);
            }
            let deadline = leases.leases.lock().next_expiry_ns().filter(|&moment| moment != u64::MAX);
            engine::until(waiter, WaitKind::Interruptible, deadline, |watch| {
                leases.lessened.watch(watch, Events::IN)?;
                Ok((!leases.conflict(self.writes)).then_some(()))
            })
            .await?;
            pace(waiter, &mut budget, TELL_COST).await?;
        }
    }
}
