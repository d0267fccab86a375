//! POSIX message queues, mq_overview(7): one directory of queues in a namespace, which can be mounted, and the queues.
//!
//! A queue is inode and open object in one. It keeps its messages in the order in which they are received. A process
//! that asked for a notification gets it when a message comes to an empty queue without waiting receivers; a message
//! for a waiting receiver counts as gone.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::{AtomicU64, Ordering};

use linux_raw_sys::general as linux;

use crate::error::{Errno, TryResult};
use crate::fs::inode::{
    Contents, Creation, Inode, InodeChange, Listed, Metadata, NAME_LIMIT, Opening, Statistics, Timestamp,
    device_number,
};
use crate::fs::{Dentry, File, FileType, IoBuffer, Mount, OpenFile, Path};
use crate::ipc::limits::{IpcLimit, IpcLimits};
use crate::ipc::namespace::IpcNamespace;
use crate::memory::fallible;
use crate::net::netlink::NetlinkSocket;
use crate::process::detour::with_thread_here;
use crate::process::{Credentials, Process, Resource};
use crate::signal;
use crate::signal::Signal;
use crate::sync::SpinLock;
use crate::wait::queue::{Events, WaitQueue, Watch};
use heddle_kernel_core::signal::{Detail, Information};

/// The number of the file system, and what `statfs` calls it.
const DEVICE: u64 = device_number(0, 6);
const MAGIC: u32 = 0x1980_0202;
/// Priorities stay below this.
pub const PRIORITIES: u32 = 32_768;
/// The most that a program without the limits in `/proc/sys/fs/mqueue` may ask for.
const MESSAGES_MAX: u64 = 65_536;
const BYTES_MAX: u64 = 16 << 20;
/// The bytes that Linux counts for a message beside its text: its head, and a node for each priority.
const HEAD_BYTES: u64 = 48;
/// The length that `stat` shows of a queue: as long as what reading it shows.
const STATUS_BYTES: u64 = 80;

/// The notification that a process asked for.
pub enum MqueueNotice {
    /// Nothing; the wish only keeps others from having it.
    Nothing,
    /// A signal with a value.
    Signal(Signal, u64),
    /// A message to a socket, by which the C library starts a thread: `SIGEV_THREAD`.
    Socket(Arc<NetlinkSocket>, MqueueCookie),
}

/// A notice as a program wants it; its last byte then says what happened.
pub type MqueueCookie = [u8; 32];

/// A message came, or the wish was taken back.
const WOKEN: u8 = 1;
const REMOVED: u8 = 2;

impl MqueueNotice {
    /// Tells a socket, if it is to be told.
    fn tell_socket(&self, event: u8) {
        let Self::Socket(socket, cookie) = self else { return };
        let mut message = *cookie;
        message[31] = event;
        let _ = socket.tell(&message); // A full one loses it, as in Linux.
    }
}

struct NotifyRequest {
    process: Weak<Process>,
    pid: i32,
    notice: MqueueNotice,
}

struct QueuedMessage {
    priority: u32,
    text: Vec<u8>,
}

struct MqueueState {
    permissions: u32,
    uid: u32,
    gid: u32,
    touched: Timestamp,
    /// Highest priority first, and the oldest first among equals.
    messages: VecDeque<QueuedMessage>,
    bytes: usize,
    /// How many wait for a message.
    receivers: usize,
    wish: Option<NotifyRequest>,
}

/// A queue.
pub struct Queue {
    inode: u64,
    /// The most messages, and the most bytes of one.
    pub message_limit: usize,
    pub size_limit: usize,
    /// Its charge to its maker's `RLIMIT_MSGQUEUE`.
    _charge: Charge,
    state: SpinLock<MqueueState>,
    waiters: WaitQueue,
}

/// Bytes that count for a user as long as this exists.
struct Charge {
    uid: u32,
    bytes: u64,
}

static CHARGES: SpinLock<BTreeMap<u32, u64>> = SpinLock::new(BTreeMap::new());

impl Charge {
    /// Counts what a queue of this shape may take.
    fn new(process: &Process, uid: u32, messages: u64, size: u64) -> Result<Self, Errno> {
        let text = messages.checked_mul(size).ok_or(Errno::EOVERFLOW)?;
        let heads = (messages + messages.min(PRIORITIES.into())) * HEAD_BYTES;
        let bytes = text.checked_add(heads).ok_or(Errno::EOVERFLOW)?;
        let limit = process.limit(Resource::MessageQueues).soft;
        let mut charges = CHARGES.lock();
        let all = charges.get(&uid).copied().unwrap_or(0).checked_add(bytes).ok_or(Errno::EMFILE)?;
        if all > limit {
            return Err(Errno::EMFILE);
        }
        fallible::try_insert(&mut charges, uid, all)?;
        Ok(Self { uid, bytes })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut charges = CHARGES.lock();
        if let Some(all) = charges.get_mut(&self.uid) {
            *all -= self.bytes;
            if *all == 0 {
                charges.remove(&self.uid);
            }
        }
    }
}

/// The capacity of a queue.
#[derive(Clone, Copy)]
pub struct MqAttributes {
    /// The most messages.
    pub messages: i64,
    /// The most bytes of one.
    pub size: i64,
}

impl MqAttributes {
    /// The capacity of a queue whose maker gives none.
    fn usual(limits: &IpcLimits) -> Self {
        let least = |first: &IpcLimit, second: &IpcLimit| first.get().min(second.get()) as i64;
        Self {
            messages: least(&limits.mq_msg_max, &limits.mq_msg_default),
            size: least(&limits.mq_msgsize_max, &limits.mq_msgsize_default),
        }
    }

    fn check(self, limits: &IpcLimits, who: &Credentials) -> Result<(u64, u64), Errno> {
        let messages = u64::try_from(self.messages).map_err(|_| Errno::EINVAL)?;
        let size = u64::try_from(self.size).map_err(|_| Errno::EINVAL)?;
        let (most, longest) = if who.is_capable(linux::CAP_SYS_RESOURCE) {
            (MESSAGES_MAX, BYTES_MAX)
        } else {
            (limits.mq_msg_max.get() as u64, limits.mq_msgsize_max.get() as u64)
        };
        if messages == 0 || size == 0 || messages > most || size > longest {
            return Err(Errno::EINVAL);
        }
        Ok((messages, size))
    }
}

impl Queue {
    fn new(
        process: &Process,
        limits: &IpcLimits,
        who: &Credentials,
        permissions: u32,
        shape: Option<MqAttributes>,
    ) -> Result<Arc<Self>, Errno> {
        static NEXT: AtomicU64 = AtomicU64::new(2);
        let shape = shape.unwrap_or_else(|| MqAttributes::usual(limits));
        let (messages, size) = shape.check(limits, who)?;
        let charge = Charge::new(process, who.uid, messages, size)?;
        let state = MqueueState {
            permissions,
            uid: who.fsuid,
            gid: who.fsgid,
            touched: Timestamp::now(),
            messages: VecDeque::new(),
            bytes: 0,
            receivers: 0,
            wish: None,
        };
        fallible::try_arc(Self {
            inode: NEXT.fetch_add(1, Ordering::Relaxed),
            message_limit: usize::try_from(messages).map_err(|_| Errno::EINVAL)?,
            size_limit: usize::try_from(size).map_err(|_| Errno::EINVAL)?,
            _charge: charge,
            state: SpinLock::new(state),
            waiters: WaitQueue::new(),
        })
    }

    /// How many messages there are.
    pub fn len(&self) -> usize {
        self.state.lock().messages.len()
    }

    /// Adds a message, and notifies the process that asked for it. `false` if there is no room; the text is left then.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn send(&self, text: &mut Vec<u8>, priority: u32, sender: (i32, u32)) -> Result<bool, Errno> {
        let mut state = self.state.lock();
        if state.messages.len() >= self.message_limit {
            return Ok(false);
        }
        let place = state.messages.partition_point(|message| message.priority >= priority);
        state.messages.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let text = core::mem::take(text);
        state.bytes += text.len();
        heddle_kernel_core::fallible::try_insert_at(
            &mut state.messages,
            place,
            QueuedMessage { priority, text },
        )?;
        state.touched = Timestamp::now();
        let is_first = state.messages.len() == state.receivers + 1;
        let wish = if is_first { state.wish.take() } else { None };
        drop(state);
        self.waiters.wake(Events::IN | Events::RDNORM);
        if let Some(wish) = &wish {
            wish.notice.tell_socket(WOKEN);
        }
        if let Some(wish) = wish
            && let MqueueNotice::Signal(signal, value) = wish.notice
            && let Some(process) = wish.process.upgrade()
        {
            let detail = Detail::Value { pid: sender.0, uid: sender.1, value };
            let information = Information { signal, code: linux::SI_MESGQ, errno: 0, detail };
            // A queue of signals that is full has no room for this one, as in Linux.
            let _ = signal::send_to_process(&process, information);
        }
        Ok(true)
    }

    /// Hands the next message to `deliver`, and takes it out if that succeeds. `None` if there is none.
    ///
    /// # Errors
    /// The error of `deliver`.
    pub fn receive<T>(&self, deliver: impl FnOnce(&[u8], u32) -> TryResult<T>) -> TryResult<Option<T>> {
        let mut state = self.state.lock();
        let Some(message) = state.messages.front() else { return Ok(None) };
        let result = deliver(&message.text, message.priority)?;
        let taken = state.messages.pop_front();
        state.bytes -= taken.as_ref().map_or(0, |message| message.text.len());
        state.touched = Timestamp::now();
        let empty =
            if state.messages.is_empty() { core::mem::take(&mut state.messages) } else { VecDeque::new() };
        drop(state);
        drop((taken, empty));
        self.waiters.wake(Events::OUT | Events::WRNORM);
        Ok(Some(result))
    }

    /// Counts one receiver more, or one less, that waits for a message.
    pub fn count_receiver(&self, waits: bool) {
        let mut state = self.state.lock();
        state.receivers = if waits { state.receivers + 1 } else { state.receivers - 1 };
    }

    /// The events that are ready now, after registering a watch for `events`.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn ready(&self, watch: Option<&Watch>, events: Events) -> Result<Events, Errno> {
        if let Some(watch) = watch {
            self.waiters.watch(watch, events)?;
        }
        let count = self.len();
        let mut ready = Events::empty();
        ready.set(Events::IN | Events::RDNORM, count > 0);
        ready.set(Events::OUT | Events::WRNORM, count < self.message_limit);
        Ok(ready)
    }

    /// A process wants to be told of a message, once.
    ///
    /// # Errors
    /// `EBUSY`: another does already, or this one.
    pub fn set_notice(&self, process: &Arc<Process>, notice: MqueueNotice) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if state.wish.as_ref().is_some_and(|wish| wish.process.strong_count() > 0) {
            return Err(Errno::EBUSY);
        }
        let wish = NotifyRequest { process: Arc::downgrade(process), pid: process.pid, notice };
        let before = state.wish.replace(wish);
        drop(state);
        drop(before);
        Ok(())
    }

    /// A process no longer wants to be told, or has closed a descriptor of the queue.
    pub fn forget_notice(&self, pid: i32) {
        let wish = self.state.lock().wish.take_if(|wish| wish.pid == pid);
        if let Some(wish) = wish {
            wish.notice.tell_socket(REMOVED);
        }
    }
}

impl File for Queue {
    /// There are no bytes to cut, and `O_TRUNC` does no harm.
    fn truncate(&self, _: u64) -> Result<bool, Errno> {
        Ok(true)
    }

    /// Shows the queue's state, as Linux does.
    fn read(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> TryResult<usize> {
        let mut text = fallible::try_string("")?;
        text.try_reserve(STATUS_BYTES as usize * 2).map_err(|_| Errno::ENOMEM)?;
        let (bytes, pid, kind, signal) = {
            let state = self.state.lock();
            let (pid, kind, signal) = match &state.wish {
                Some(NotifyRequest { pid, notice: MqueueNotice::Signal(signal, _), .. }) => {
                    (*pid, linux::SIGEV_SIGNAL, signal.number())
                }
                Some(NotifyRequest { pid, notice: MqueueNotice::Socket(..), .. }) => {
                    (*pid, linux::SIGEV_THREAD, 0)
                }
                Some(wish) => (wish.pid, linux::SIGEV_NONE, 0),
                None => (0, 0, 0),
            };
            (state.bytes, pid, kind, signal)
        };
        writeln!(text, "QSIZE:{bytes:<10} NOTIFY:{kind:<5} SIGNO:{signal:<5} NOTIFY_PID:{pid:<6}")
            .map_err(|_| Errno::ENOMEM)?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
        Ok(buffer.copy_out(&text.as_bytes()[from..])?)
    }

    fn poll(&self, _: &OpenFile, watch: Option<&Watch>, events: Events) -> Result<Events, Errno> {
        self.ready(watch, events)
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn metadata(&self) -> Metadata {
        Inode::metadata(self)
    }
}

impl Inode for Queue {
    fn closed_by(&self, pid: i32) {
        self.forget_notice(pid);
    }

    fn kind(&self) -> FileType {
        FileType::Regular
    }

    fn metadata(&self) -> Metadata {
        let state = self.state.lock();
        Metadata {
            device: DEVICE,
            permissions: state.permissions,
            uid: state.uid,
            gid: state.gid,
            size: STATUS_BYTES,
            accessed: state.touched,
            modified: state.touched,
            changed: state.touched,
            born: state.touched,
            ..Metadata::anonymous(FileType::Regular, self.inode)
        }
    }

    fn statistics(&self) -> Statistics {
        STATISTICS
    }

    fn change(&self, change: &InodeChange) -> Result<(), Errno> {
        let mut state = self.state.lock();
        state.permissions = change.permissions.unwrap_or(state.permissions);
        state.uid = change.uid.unwrap_or(state.uid);
        state.gid = change.gid.unwrap_or(state.gid);
        Ok(())
    }

    fn open(self: Arc<Self>, _: &Opening<'_>) -> Result<Arc<dyn File>, Errno> {
        Ok(self)
    }
}

const STATISTICS: Statistics =
    Statistics { magic: MAGIC, blocks: 0, free: 0, nodes: 0, free_nodes: 0, device: DEVICE };

/// The directory of all queues of a namespace.
struct Directory {
    entries: SpinLock<Vec<Arc<Dentry>>>,
    made: Timestamp,
}

impl Directory {
    /// Gives a new queue a name.
    fn add(
        &self,
        this: &Arc<Dentry>,
        limits: &IpcLimits,
        who: &Credentials,
        name: &[u8],
        queue: Arc<Queue>,
    ) -> Result<Arc<Dentry>, Errno> {
        let entry = Dentry::new(queue, Some(this.clone()), name)?;
        let mut entries = self.entries.lock();
        if entries.iter().any(|found| found.with_name(|found| found == name)) {
            return Err(Errno::EEXIST);
        }
        let is_free = who.is_capable(linux::CAP_SYS_RESOURCE);
        if entries.len() >= limits.mq_queues_max.get() && !is_free {
            return Err(Errno::ENOSPC);
        }
        fallible::try_push(&mut entries, entry.clone())?;
        Ok(entry)
    }
}

impl Inode for Directory {
    fn kind(&self) -> FileType {
        FileType::Directory
    }

    fn metadata(&self) -> Metadata {
        Metadata {
            device: DEVICE,
            permissions: 0o1777,
            links: 2,
            accessed: self.made,
            modified: self.made,
            changed: self.made,
            born: self.made,
            ..Metadata::anonymous(FileType::Directory, 1)
        }
    }

    fn statistics(&self) -> Statistics {
        STATISTICS
    }

    fn lookup(&self, _: &Arc<Dentry>, name: &[u8]) -> Result<Arc<Dentry>, Errno> {
        let entries = self.entries.lock();
        let found = entries.iter().find(|entry| entry.with_name(|found| found == name));
        found.cloned().ok_or(Errno::ENOENT)
    }

    fn list(&self, cookie: u64, visit: &mut dyn FnMut(Listed<'_>) -> bool) -> Result<(), Errno> {
        // By inode, which only goes up, so that removals meanwhile do no harm.
        let mut last = cookie;
        loop {
            let next = {
                let entries = self.entries.lock();
                let rest = entries.iter().map(|entry| (entry.node.metadata().inode, entry));
                rest.filter(|&(inode, _)| inode > last)
                    .min_by_key(|&(inode, _)| inode)
                    .map(|(i, e)| (i, e.clone()))
            };
            let Some((inode, entry)) = next else { return Ok(()) };
            last = inode;
            let name = entry.name()?;
            if !visit(Listed { name: &name, inode, kind: FileType::Regular, next: inode }) {
                return Ok(());
            }
        }
    }

    fn create(&self, this: &Arc<Dentry>, name: &[u8], creation: &Creation<'_>) -> Result<Arc<Dentry>, Errno> {
        if !matches!(creation.contents, Contents::Regular) {
            return Err(Errno::EPERM);
        }
        let (process, ipc) = with_thread_here(|thread| (thread.process.clone(), IpcNamespace::of(thread)))
            .ok_or(Errno::EPERM)?;
        let ipc = ipc?;
        // A mount of another namespace's queues has neither limits nor somebody to charge here.
        let is_own = ipc.queue_files.get().is_some_and(|own| core::ptr::eq(&raw const *own.directory, self));
        if !is_own {
            return Err(Errno::EPERM);
        }
        let queue = Queue::new(&process, &ipc.limits, creation.credentials, creation.permissions, None)?;
        self.add(this, &ipc.limits, creation.credentials, name, queue)
    }

    fn unlink(&self, entry: &Arc<Dentry>) -> Result<(), Errno> {
        let mut entries = self.entries.lock();
        let index = entries.iter().position(|found| Arc::ptr_eq(found, entry)).ok_or(Errno::ENOENT)?;
        let removed = entries.swap_remove(index);
        removed.mark_removed();
        if entries.is_empty() {
            *entries = Vec::new();
        }
        drop(entries);
        drop(removed);
        Ok(())
    }

    fn open(self: Arc<Self>, _: &Opening<'_>) -> Result<Arc<dyn File>, Errno> {
        struct Opened;
        impl File for Opened {}
        Ok(fallible::try_arc(Opened)?)
    }
}

/// The file system: the directory, and a mount of it that shows nowhere, through which calls see queues.
pub(super) struct QueueFileSystem {
    directory: Arc<Directory>,
    hidden: Arc<Mount>,
}

impl QueueFileSystem {
    /// Takes the queues out of the directory, each of which leads back to it.
    pub(super) fn take_queues(&self) -> Vec<Arc<Dentry>> {
        core::mem::take(&mut *self.directory.entries.lock())
    }
}

fn file_system(ipc: &IpcNamespace) -> Result<&QueueFileSystem, Errno> {
    if let Some(made) = ipc.queue_files.get() {
        return Ok(made);
    }
    let entries = SpinLock::new(Vec::new());
    let directory = fallible::try_arc(Directory { entries, made: Timestamp::now() })?;
    let hidden = Mount::new(Dentry::new(directory.clone(), None, b"")?, "mqueue", b"mqueue", 0)?;
    Ok(ipc.queue_files.call_once(|| QueueFileSystem { directory, hidden }))
}

/// A mount that shows all queues of a namespace.
///
/// # Errors
/// `ENOMEM`.
pub fn mount(ipc: &IpcNamespace, source: &[u8], flags: u32) -> Result<Arc<Mount>, Errno> {
    Mount::new(file_system(ipc)?.hidden.root.clone(), "mqueue", source, flags)
}

/// The directory of all queues of a namespace.
///
/// # Errors
/// `ENOMEM`.
pub fn top(ipc: &IpcNamespace) -> Result<Path, Errno> {
    Ok(file_system(ipc)?.hidden.top())
}

/// The queue with a name.
///
/// # Errors
/// `ENOENT`, `EACCES` (no name for a queue), `ENAMETOOLONG`, `ENOMEM`.
pub fn find(ipc: &IpcNamespace, name: &[u8]) -> Result<Path, Errno> {
    check_name(name)?;
    let top = top(ipc)?;
    let entry = top.entry.node.lookup(&top.entry, name)?;
    Ok(Path { mount: top.mount, entry })
}

fn check_name(name: &[u8]) -> Result<(), Errno> {
    match name {
        b"" => Err(Errno::ENOENT),
        b"." | b".." => Err(Errno::EACCES),
        _ if name.contains(&b'/') => Err(Errno::EACCES),
        _ if name.len() > NAME_LIMIT => Err(Errno::ENAMETOOLONG),
        _ => Ok(()),
    }
}

/// Makes a queue.
///
/// # Errors
/// `EEXIST`, `ENOSPC` (there are as many as there may be), `EINVAL` (no such shape), `EMFILE` (`RLIMIT_MSGQUEUE`),
/// `ENOMEM`.
pub fn create(
    process: &Process,
    ipc: &IpcNamespace,
    who: &Credentials,
    name: &[u8],
    permissions: u32,
    shape: Option<MqAttributes>,
) -> Result<Path, Errno> {
    check_name(name)?;
    let system = file_system(ipc)?;
    let queue = Queue::new(process, &ipc.limits, who, permissions, shape)?;
    let entry = system.directory.add(&system.hidden.root, &ipc.limits, who, name, queue)?;
    Ok(Path { mount: system.hidden.clone(), entry })
}
