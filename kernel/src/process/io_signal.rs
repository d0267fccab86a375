//! Signals of files that have become ready: `O_ASYNC`, `F_SETOWN`, `F_SETOWN_EX`, `F_SETSIG`. Leases and `F_NOTIFY`
//! tell the same receivers.
//!
//! An open file has a [`ReadyNotice`] once a program has asked for any of it. While `O_ASYNC` is on, the notice is a
//! listener in the file's wait queues, as an interest of an epoll instance is. A wake puts it on a list, from which a
//! coroutine of the kernel sends the signals, without the queue's lock. Files without notices pay nothing.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use heddle_kernel_core::signal::{Detail, Information, Signal, SignalSet};
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::{FileType, OpenFile};
use crate::memory::fallible;
use crate::process::{Credentials, Process, Thread, table};
use crate::sched::{self, Budget, Priority};
use crate::signal::{send_to_member, send_to_process, send_to_thread};
use crate::sync::SpinLock;
use crate::wait::engine;
use crate::wait::queue::{Events, Listener, RelayQueue, Watch};

/// The receiver of a file's signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOwner {
    /// A thread, by its number; 0 for none.
    Thread(i32),
    /// A process.
    Process(i32),
    /// A process group.
    Group(i32),
}

impl Default for FileOwner {
    fn default() -> Self {
        Self::Thread(0)
    }
}

/// A file's signals, and their receiver.
#[derive(Clone, Copy, Debug, Default)]
struct NoticeState {
    owner: FileOwner,
    /// The user who set the owner: a signal is sent if that user may send it.
    uid: u32,
    euid: u32,
    /// `F_SETSIG`; none is `SIGIO` without further information.
    signal: Option<Signal>,
    /// The descriptor by which `O_ASYNC` was set.
    descriptor: i32,
    /// Whether bytes to read, and room to write, are told.
    wants: (bool, bool),
    /// Events that have come and are not told yet.
    pending: u32,
}

/// The signals of an open file.
pub struct ReadyNotice {
    state: SpinLock<NoticeState>,
    /// The generation of its registration: odd while it is on.
    generation: AtomicU32,
    relay: Arc<RelayQueue>,
    /// The next on the list of those that have something to tell, while it is there.
    next: SpinLock<Option<Arc<ReadyNotice>>>,
}

/// The cost of telling one owner, in units of a [`Budget`].
const TELL_COST: u32 = 8;

/// The last notice that has something to tell; it leads to the ones before.
static PENDING: SpinLock<Option<Arc<ReadyNotice>>> = SpinLock::new(None);
/// Woken when there are such.
static RELAY: spin::Once<Arc<RelayQueue>> = spin::Once::new();

impl Listener for ReadyNotice {
    fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    fn notify(self: Arc<Self>, events: Events) {
        let mut state = self.state.lock();
        let was_idle = state.pending == 0;
        state.pending |= events.bits();
        drop(state);
        if was_idle {
            let mut first = PENDING.lock();
            *self.next.lock() = first.take();
            *first = Some(self);
        }
    }

    fn relay(&self) -> &Arc<RelayQueue> {
        &self.relay
    }
}

/// The events of which the owner of a file wants to know: room to write is told of pipes only.
fn events_of(open: &OpenFile) -> Events {
    const READ: Events = Events::IN.union(Events::PRI).union(Events::RDHUP);
    match (open.kind() == FileType::Fifo, open.is_readable(), open.is_writable()) {
        (true, false, _) => Events::OUT,
        (true, true, true) => READ | Events::OUT,
        _ => READ,
    }
}

/// Whether signals are sent for a file of this kind.
#[must_use]
pub fn is_supported(open: &OpenFile) -> bool {
    match open.kind() {
        FileType::Fifo | FileType::Socket => true,
        FileType::Character => open.file.is_pollable(),
        _ => open.file.name() == "anon_inode:inotify",
    }
}

impl ReadyNotice {
    /// A notice without an owner.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new() -> Result<Arc<Self>, Errno> {
        let relay = RELAY.try_call_once(|| {
            let relay = RelayQueue::new()?;
            sched::spawn(Priority::KERNEL, run(relay.clone()))?;
            Ok::<_, Errno>(relay)
        })?;
        fallible::try_arc(Self {
            state: SpinLock::new(NoticeState::default()),
            generation: AtomicU32::new(0),
            relay: relay.clone(),
            next: SpinLock::new(None),
        })
    }

    /// Turns the signals on for a file, as the descriptor says.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn start(self: &Arc<Self>, open: &OpenFile, descriptor: i32) -> Result<(), Errno> {
        let events = events_of(open);
        {
            let mut state = self.state.lock();
            state.descriptor = descriptor;
            state.wants = (events.contains(Events::IN), events.contains(Events::OUT));
        }
        if !self.generation.load(Ordering::Relaxed).is_multiple_of(2) {
            return Ok(());
        }
        self.generation.fetch_add(1, Ordering::AcqRel);
        let watch = Watch::listener(self.clone(), false);
        open.file.poll(open, Some(&watch), events).inspect_err(|_| self.stop())?;
        Ok(())
    }

    /// Turns the signals off.
    pub fn stop(&self) {
        if !self.generation.load(Ordering::Relaxed).is_multiple_of(2) {
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Changes the receiver.
    pub fn set_owner(&self, owner: FileOwner, by: &Credentials) {
        let mut state = self.state.lock();
        (state.owner, state.uid, state.euid) = (owner, by.uid, by.euid);
    }

    /// The receiver; its number is 0 if it is gone.
    #[must_use]
    pub fn owner(&self) -> FileOwner {
        match self.state.lock().owner {
            FileOwner::Thread(tid) if table::thread(tid).is_none() => FileOwner::Thread(0),
            FileOwner::Process(pid) if table::process(pid).is_none() => FileOwner::Process(0),
            FileOwner::Group(id) if table::group(id).is_none() => FileOwner::Group(0),
            owner => owner,
        }
    }

    /// Changes the signal.
    pub fn set_signal(&self, signal: Option<Signal>) {
        self.state.lock().signal = signal;
    }

    /// The signal, as `F_SETSIG` has set it.
    #[must_use]
    pub fn signal(&self) -> Option<Signal> {
        self.state.lock().signal
    }

    /// The receiver is the process `pid` unless a program has said another, and hears of the file by this descriptor.
    pub fn claim(&self, pid: i32, descriptor: i32, by: &Credentials) {
        let mut state = self.state.lock();
        state.descriptor = descriptor;
        if matches!(state.owner, FileOwner::Thread(0) | FileOwner::Process(0) | FileOwner::Group(0)) {
            (state.owner, state.uid, state.euid) = (FileOwner::Process(pid), by.uid, by.euid);
        }
    }

    /// Nobody is told any more, until a program says so again.
    pub fn forget_owner(&self) {
        let mut state = self.state.lock();
        (state.owner, state.signal) = (FileOwner::default(), None);
    }

    /// Tells the receiver that something happened to the file that is no readiness, on the spot.
    pub fn tell_message(&self, band: u32) {
        let state = *self.state.lock();
        state.send(linux::POLL_MSG, Events::from_bits_retain(band));
    }

    /// Sends the signals for what has come.
    fn tell(&self) {
        let (state, events) = {
            let mut state = self.state.lock();
            let events = core::mem::take(&mut state.pending);
            (*state, Events::from_bits_retain(events))
        };
        if self.generation.load(Ordering::Acquire).is_multiple_of(2) {
            return;
        }
        let (wants_in, wants_out) = state.wants;
        if wants_in && events.intersects(Events::IN | Events::RDHUP) {
            state.send(linux::POLL_IN, Events::IN | Events::RDNORM);
        }
        if wants_out && events.contains(Events::OUT) {
            const WRBAND: u32 = linux::EPOLLWRBAND;
            state.send(linux::POLL_OUT, Events::OUT | Events::WRNORM | Events::from_bits_retain(WRBAND));
        }
        if wants_in && !wants_out && events.contains(Events::PRI) && !events.contains(Events::HUP) {
            const RDBAND: u32 = linux::EPOLLRDBAND;
            state.send(linux::POLL_PRI, Events::PRI | Events::from_bits_retain(RDBAND));
        }
        if events.contains(Events::HUP) && !events.intersects(Events::IN | Events::OUT) {
            state.send(linux::POLL_HUP, Events::HUP | Events::ERR);
        }
    }
}

impl NoticeState {
    /// Whether who set the owner may send it signals.
    fn is_permitted(&self, target: &Process) -> bool {
        let Some(theirs) = target.credentials() else { return false };
        self.euid == 0 || [self.uid, self.euid].iter().any(|&user| user == theirs.uid || user == theirs.suid)
    }

    fn send(&self, reason: u32, band: Events) {
        match self.owner {
            FileOwner::Thread(tid) => {
                if let Some(thread) = table::thread(tid).filter(|thread| self.is_permitted(&thread.process)) {
                    self.send_with(reason, band, |information| send_to_thread(&thread, information));
                }
            }
            FileOwner::Process(pid) => {
                if let Some(process) = table::process(pid).filter(|process| self.is_permitted(process)) {
                    self.send_with(reason, band, |information| send_to_process(&process, information));
                }
            }
            FileOwner::Group(id) => {
                let table = table::lock();
                let Some(group) = table.group(id) else { return };
                group.for_each(&table, |process| {
                    if self.is_permitted(process) {
                        self.send_with(reason, band, |information| {
                            send_to_member(&table, process, information)
                        });
                    }
                });
            }
        }
    }

    /// Sends the signal, with its information if there is room for it.
    fn send_with(&self, reason: u32, band: Events, send: impl Fn(Information) -> Result<(), Errno>) {
        /// Signals whose codes mean something else.
        const OTHERS: SignalSet = SignalSet::of(&[
            Signal::SEGV,
            Signal::BUS,
            Signal::ILL,
            Signal::TRAP,
            Signal::FPE,
            Signal::SYS,
            Signal::CHLD,
        ]);
        if let Some(signal) = self.signal {
            let detail = Detail::Poll { band: u64::from(band.bits()), fd: self.descriptor };
            let code = if OTHERS.contains(signal) { linux::SI_SIGIO } else { reason as i32 };
            if send(Information { signal, code, errno: 0, detail }).is_ok() {
                return;
            }
        }
        // Only queued realtime signals can be refused.
        let _ = send(Information::kernel(Signal::IO));
    }
}

/// Tells the owners of files whenever there is something to tell.
async fn run(relay: Arc<RelayQueue>) {
    let mut budget = Budget::new();
    loop {
        let waited = engine::kernel_answer(|watch| {
            relay.watch(watch, Events::all())?;
            Ok(PENDING.lock().is_some().then_some(()))
        });
        if waited.await.is_err() {
            // There is no memory for a watch.
            sched::yield_now().await;
        }
        let mut newest = PENDING.lock().take();
        // The oldest comes first.
        let mut oldest: Option<Arc<ReadyNotice>> = None;
        while let Some(notice) = newest {
            newest = core::mem::replace(&mut *notice.next.lock(), oldest.take());
            oldest = Some(notice);
        }
        while let Some(notice) = oldest {
            oldest = notice.next.lock().take();
            notice.tell();
            // A program may have as many notices as descriptors.
            budget.step(TELL_COST).await;
        }
    }
}

/// The receiver that a number means to this process: a process, or a group if it is negative.
///
/// # Errors
/// `EINVAL`, `ESRCH`.
pub fn owner_of_number(viewer: &Process, number: i32) -> Result<FileOwner, Errno> {
    match number {
        0 => Ok(FileOwner::Process(0)),
        1.. => find_process(viewer.named(number)),
        i32::MIN => Err(Errno::EINVAL),
        _ => table::group(viewer.named(-number)).map(|group| FileOwner::Group(group.id)).ok_or(Errno::ESRCH),
    }
}

fn find_process(number: i32) -> Result<FileOwner, Errno> {
    let thread: Option<Arc<Thread>> = table::thread(number);
    let is_there = thread.is_some() || table::process(number).is_some();
    if is_there { Ok(FileOwner::Process(number)) } else { Err(Errno::ESRCH) }
}
